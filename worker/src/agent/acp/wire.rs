//! The lines between us and an agent, bounded: none is too long, and what we still owe it in answers is never much.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use agent_client_protocol::Lines;
use futures::{Sink, Stream, sink, stream};
use serde::Deserialize;
use serde::de::IgnoredAny;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{ChildStdin, ChildStdout};
use tokio::sync::Semaphore;

/// The longest message that is read, in bytes.
const LONGEST_MESSAGE: usize = 32 << 20;
/// Requests of the agent whose answers it has not taken; while there are so many nothing more is read. Each answer may be a
/// whole file.
const MOST_OWED: usize = 4;
/// How long an agent may leave its answers where they are.
const PATIENCE: Duration = Duration::from_mins(1);

/// What a line is.
#[derive(Debug, PartialEq, Eq)]
enum Kind {
    /// A request: an answer follows.
    Asks,
    /// A notification.
    Tells,
    /// An answer.
    Answers,
    /// Anything else, such as a log line.
    Nothing,
}

#[derive(Deserialize)]
struct Envelope {
    id: Option<IgnoredAny>,
    method: Option<IgnoredAny>,
}

fn kind(line: &str) -> Kind {
    match serde_json::from_str(line) {
        Ok(Envelope { method: Some(_), id: Some(_) }) => Kind::Asks,
        Ok(Envelope { method: Some(_), id: None }) => Kind::Tells,
        Ok(Envelope { method: None, id: Some(_) }) => Kind::Answers,
        _ => Kind::Nothing,
    }
}

/// The way to an agent.
pub(super) fn lines(
    stdin: ChildStdin,
    stdout: ChildStdout,
) -> Lines<impl Sink<String, Error = io::Error> + Send + 'static, impl Stream<Item = io::Result<String>> + Send + 'static>
{
    let room = Arc::new(Semaphore::new(MOST_OWED));
    Lines::new(outgoing(stdin, room.clone()), incoming(stdout, room))
}

fn outgoing(stdin: ChildStdin, room: Arc<Semaphore>) -> impl Sink<String, Error = io::Error> + Send + 'static {
    sink::unfold((stdin, room), |(mut stdin, room), mut line: String| async move {
        let is_answer = kind(&line) == Kind::Answers;
        line.push('\n');
        stdin.write_all(line.as_bytes()).await?;
        stdin.flush().await?;
        if is_answer && room.available_permits() < MOST_OWED {
            room.add_permits(1);
        }
        Ok((stdin, room))
    })
}

fn incoming(stdout: ChildStdout, room: Arc<Semaphore>) -> impl Stream<Item = io::Result<String>> + Send + 'static {
    stream::unfold((BufReader::new(stdout), room), |(mut stdout, room)| async move {
        loop {
            let Ok(Ok(one)) = tokio::time::timeout(PATIENCE, room.acquire()).await else {
                let why = io::Error::other("it does not take the answers to what it asked for");
                return Some((Err(why), (stdout, room)));
            };
            let line = next(&mut stdout).await.transpose()?;
            match line.as_ref().map_or(Kind::Tells, |line| kind(line)) {
                Kind::Asks => one.forget(),
                Kind::Tells | Kind::Answers => drop(one),
                // Nobody waits for an answer to it.
                Kind::Nothing => continue,
            }
            return Some((line, (stdout, room)));
        }
    })
}

/// The next line; nothing where there is no more.
async fn next(stdout: &mut BufReader<ChildStdout>) -> io::Result<Option<String>> {
    let mut line = Vec::new();
    let length = stdout.take(LONGEST_MESSAGE as u64).read_until(b'\n', &mut line).await?;
    if length == LONGEST_MESSAGE && line.last() != Some(&b'\n') {
        return Err(io::Error::other(format!("a message is longer than {LONGEST_MESSAGE} bytes")));
    }
    Ok((length > 0).then(|| String::from_utf8_lossy(&line).trim_end().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_told_from_all_else() {
        for (line, expected) in [
            (r#"{"jsonrpc":"2.0","id":0,"method":"fs/read_text_file","params":{}}"#, Kind::Asks),
            (r#"{"jsonrpc":"2.0","method":"session/update","params":{"id":1}}"#, Kind::Tells),
            (r#"{"jsonrpc":"2.0","id":"x","result":null}"#, Kind::Answers),
            (r#"{"jsonrpc":"2.0","id":1,"error":{"method":"x"}}"#, Kind::Answers),
            (r#"{"jsonrpc":"2.0"}"#, Kind::Nothing),
            ("starting...", Kind::Nothing),
            ("[1]", Kind::Nothing),
            ("", Kind::Nothing),
        ] {
            assert_eq!(kind(line), expected, "{line}");
        }
    }
}
