//! The built-in agent's tools: what a model is told of them, and what they do.
//!
//! # Layout
//! - [`search`]: `glob` and `grep`
//!
//! Files are reached through [`Confined`] alone. `bash` runs like every other command of an agent: in a process group of
//! its own, with the agent's environment, and in the sandbox where there is one.

mod search;

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use refile_config::{self as config, Agent};
use refile_core::failure::{Failure, FailureKind};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::window::bounded;
use crate::agent::confined::Confined;
use crate::agent::{Environment, Job, reach};
use crate::git::Tree;
use crate::llm::{Tool, ToolCall, ToolResult};
use crate::process::{self, Command, Exit, Limits, ProcessError, Secrets};

/// How long a command may run where the model does not say.
const USUAL_TIMEOUT: u64 = 120;
/// How long it may run at most, in seconds.
const LONGEST_TIMEOUT: u64 = 1_200;
/// Lines of a file where the model does not say how many.
const USUAL_LINES: usize = 1_000;

/// How the model ends its work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Ending {
    /// It says that the work is done.
    Done(String),
    /// It will not, or cannot yet, do the work: its words.
    Asks(String),
}

/// What a model may have done, in the order in which it is told of it.
pub(super) fn offered(agent: &Agent) -> Vec<Tool> {
    let text = |about: &str| json!({"type": "string", "description": about});
    let number = |about: &str| json!({"type": "integer", "description": about});
    let tool = |name, description, properties: Value, required: Value| Tool {
        name,
        description,
        parameters: json!({"type": "object", "properties": properties, "required": required}),
    };
    let path = "From the repository's top, as in src/main.py";
    let of = |which: config::Tool| match which {
        config::Tool::Read => tool(
            "read",
            "Read a text file. Each line has its number and a tab before it, which are not part of the file.",
            json!({"path": text(path), "offset": number("The first line, from 1"), "limit": number("How many lines")}),
            json!(["path"]),
        ),
        config::Tool::Write => tool(
            "write",
            "Write a whole file, new or in place of what it held. Folders are made.",
            json!({"path": text(path), "content": text("All that the file is to hold")}),
            json!(["path", "content"]),
        ),
        config::Tool::Edit => tool(
            "edit",
            "Replace a part of a file. `old` must be in the file exactly once, with all its white space: take in lines \
             around it until it is.",
            json!({"path": text(path), "old": text("What is there now"), "new": text("What is to be there")}),
            json!(["path", "old", "new"]),
        ),
        config::Tool::Glob => tool(
            "glob",
            "List files whose path fits a pattern, as in **/*.py. Ignored files are left out.",
            json!({"pattern": text("`*` within a folder, `**` over folders, `?`, `[ab]`, `{a,b}`")}),
            json!(["pattern"]),
        ),
        config::Tool::Grep => tool(
            "grep",
            "Find lines that fit a regular expression, as path:line:text. Ignored and binary files are left out.",
            json!({
                "pattern": text("The expression, as Rust's regex and RE2 read it"),
                "path": text("A file or folder to look in; all by default"),
                "glob": text("Only files whose path fits this pattern"),
            }),
            json!(["pattern"]),
        ),
        config::Tool::Bash => tool(
            "bash",
            "Run a command in the repository's top folder, without a terminal or input. What it starts is ended with it.",
            json!({"command": text("For bash -c"), "timeout": number("In seconds; 120 by default, 1200 at most")}),
            json!(["command"]),
        ),
    };
    let mut tools: Vec<Tool> = config::Tool::ALL.into_iter().filter(|tool| agent.may(*tool)).map(of).collect();
    tools.extend([
        tool(
            "done",
            "The work is finished and checked. Ends your work.",
            json!({"summary": text("What was changed and why, in a few sentences")}),
            json!(["summary"]),
        ),
        tool(
            "decline",
            "The work should not or cannot be done. A person will read why. Ends your work; your changes are dropped.",
            json!({"reason": text("Why")}),
            json!(["reason"]),
        ),
        tool(
            "ask",
            "Only a person can answer what you must know to go on. Ends your work; your changes are dropped.",
            json!({"question": text("The question")}),
            json!(["question"]),
        ),
    ]);
    tools
}

/// How a call ends the work, where it is one that does.
pub(super) fn ending(call: &ToolCall) -> Option<Ending> {
    let field = match call.name.as_str() {
        "done" => "summary",
        "decline" => "reason",
        "ask" => "question",
        _ => return None,
    };
    let words = call.arguments[field].as_str().unwrap_or_default().trim();
    Some(match field {
        "summary" => Ending::Done(words.to_owned()),
        _ if words.is_empty() => Ending::Asks(format!("the agent called `{}` and did not say why", call.name)),
        _ => Ending::Asks(words.to_owned()),
    })
}

/// The tools at work on one tree.
pub(super) struct Toolbox<'a> {
    agent: &'a Agent,
    tree: &'a Tree,
    env: Environment,
    files: Arc<Confined>,
    max_output: usize,
    /// What is kept out of what tools say.
    secrets: Secrets,
}

/// What a tool says, or why it failed.
type Said = Result<String, String>;

#[derive(Deserialize)]
struct ReadArguments {
    path: String,
    offset: Option<usize>,
    limit: Option<usize>,
}

#[derive(Deserialize)]
struct WriteArguments {
    path: String,
    content: String,
}

#[derive(Deserialize)]
struct EditArguments {
    path: String,
    old: String,
    new: String,
}

#[derive(Deserialize)]
struct BashArguments {
    command: String,
    timeout: Option<u64>,
}

impl<'a> Toolbox<'a> {
    pub(super) fn new(job: &Job<'a>, secrets: Secrets) -> Result<Self, Failure> {
        let Job { agent, tree, .. } = *job;
        let (_, env) = job.surroundings()?;
        let files = Confined::open(tree.dir())
            .map_err(|error| Failure::new(FailureKind::Crash, format!("cannot open the attempt's tree: {error}")))?;
        Ok(Self { agent, tree, env, files: Arc::new(files), max_output: agent.bounds().output_bytes, secrets })
    }

    /// Does what a model asked for. Whatever goes wrong is told to the model.
    pub(super) async fn call(&self, call: &ToolCall, deadline: Instant) -> ToolResult {
        let known = config::Tool::ALL.into_iter().find(|tool| tool.as_str() == call.name);
        let said = match known {
            Some(tool) if self.agent.may(tool) => self.carry_out(tool, call.arguments.clone(), deadline).await,
            _ => {
                let names: Vec<&str> = offered(self.agent).iter().map(|tool| tool.name).collect();
                Err(format!("there is no tool `{}`; there are {}", call.name, names.join(", ")))
            }
        };
        let (text, is_error) = said.map_or_else(|why| (why, true), |text| (text, false));
        let text = bounded(&self.secrets.hide(&text), self.max_output);
        call.result(if text.trim().is_empty() { "(nothing)".to_owned() } else { text }, is_error)
    }

    async fn carry_out(&self, tool: config::Tool, arguments: Value, deadline: Instant) -> Said {
        let files = self.files.clone();
        match tool {
            config::Tool::Bash => self.bash(read(arguments)?, deadline).await,
            config::Tool::Read => apart(move || read_lines(&files, &read(arguments)?)).await,
            config::Tool::Write => {
                apart(move || {
                    let WriteArguments { path, content } = read(arguments)?;
                    files.write(&path, &content).map_err(|error| error.to_string())?;
                    Ok(format!("wrote {} bytes to {path}", content.len()))
                })
                .await
            }
            config::Tool::Edit => apart(move || edit(&files, &read(arguments)?)).await,
            config::Tool::Glob => apart(move || search::glob(&files, &read(arguments)?)).await,
            config::Tool::Grep => {
                let secrets = self.secrets.clone();
                apart(move || search::grep(&files, &read(arguments)?, &secrets)).await
            }
        }
    }

    async fn bash(&self, arguments: BashArguments, deadline: Instant) -> Said {
        let asked = Duration::from_secs(arguments.timeout.unwrap_or(USUAL_TIMEOUT).clamp(1, LONGEST_TIMEOUT));
        let timeout = asked.min(deadline.saturating_duration_since(Instant::now()));
        let done = match self.shell("bash", &arguments.command, timeout).await {
            Err(ProcessError::NotFound(_)) => self.shell("sh", &arguments.command, timeout).await,
            other => other,
        };
        let done = done.map_err(|error| error.to_string())?;
        let output = if done.output.contains(&0) {
            format!("[{} bytes of binary output]", done.output.len())
        } else {
            done.output_text()
        };
        let ended = match done.exit {
            Exit::NoRoom => "stopped: the disk of this machine is nearly full".to_owned(),
            Exit::TimedOut => format!("stopped: it had not ended after {} s", timeout.as_secs()),
            Exit::Code(code) => format!("exit code {code}"),
            Exit::Signal(signal) => format!("ended by signal {signal}"),
        };
        let said = format!("{ended}\n{output}");
        if done.exit.is_ok() { Ok(said) } else { Err(said) }
    }

    async fn shell(&self, shell: &str, script: &str, timeout: Duration) -> Result<process::Finished, ProcessError> {
        let mut command = Command::new([shell, "-c", script], self.tree.dir(), timeout)
            .confined(self.tree.sandbox(&[], reach(self.agent)));
        command.env.clone_from(&self.env);
        // Room is left for the line that says how it ended.
        let half = self.max_output.saturating_sub(200) / 2;
        command.limits = Limits { head: half, tail: half };
        command.secrets = self.secrets.clone();
        process::run(&command).await
    }
}

/// Does what may take a while, or wait for a disk, off the thread that everything else runs on.
async fn apart(work: impl FnOnce() -> Said + Send + 'static) -> Said {
    match tokio::task::spawn_blocking(work).await {
        Ok(said) => said,
        Err(error) => Err(format!("the tool broke down: {error}")),
    }
}

/// The arguments of a call, as the tool knows them.
fn read<T: DeserializeOwned>(arguments: Value) -> Result<T, String> {
    if !arguments.is_object() {
        return Err("the arguments are no JSON object; call the tool again with one".to_owned());
    }
    serde_json::from_value(arguments).map_err(|error| format!("the arguments do not fit: {error}"))
}

fn read_lines(files: &Confined, arguments: &ReadArguments) -> Said {
    let text = files.read(&arguments.path).map_err(|error| error.to_string())?;
    let all = text.lines().count();
    let first = arguments.offset.unwrap_or(1).max(1);
    let limit = arguments.limit.unwrap_or(USUAL_LINES).max(1);
    if first > all {
        return if all == 0 { Ok("(the file is empty)".to_owned()) } else { Err(format!("it has {all} lines alone")) };
    }
    let lines = text.lines().enumerate().skip(first - 1).take(limit);
    let mut shown = String::new();
    for (at, line) in lines {
        let _ = writeln!(shown, "{}\t{line}", at + 1);
    }
    let last = first.saturating_add(limit - 1).min(all);
    if first > 1 || last < all {
        let _ = writeln!(shown, "[lines {first} to {last} of {all}]");
    }
    Ok(shown)
}

fn edit(files: &Confined, arguments: &EditArguments) -> Said {
    let EditArguments { path, old, new } = arguments;
    let text = files.read(path).map_err(|error| error.to_string())?;
    if old.is_empty() || old == new {
        return Err("`old` must be a part of the file and differ from `new`".to_owned());
    }
    match count(&text, old) {
        0 => Err(format!("`old` is not in {path}; read the file and copy the part exactly, white space included")),
        1 => {
            files.write(path, &text.replacen(old, new, 1)).map_err(|error| error.to_string())?;
            Ok(format!("edited {path}"))
        }
        n => Err(format!("`old` is {n} times in {path}; take in more lines around the one that is meant")),
    }
}

/// How often a part is in a text; also where it overlaps with itself.
fn count(text: &str, part: &str) -> usize {
    let next = |at: usize| at + text[at..].chars().next().map_or(1, char::len_utf8);
    let (mut from, mut found) = (0, 0);
    while let Some(at) = text.get(from..).and_then(|rest| rest.find(part)) {
        found += 1;
        from = next(from + at);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> (tempfile::TempDir, Confined) {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a.txt"), "one\ntwo\nthree\ntwo\naaa\n").unwrap();
        let files = Confined::open(dir.path()).unwrap();
        (dir, files)
    }

    #[test]
    fn an_edit_is_exact_and_of_one_place() {
        let (dir, files) = place();
        let edit = |old: &str, new: &str| {
            edit(&files, &EditArguments { path: "a.txt".to_owned(), old: old.to_owned(), new: new.to_owned() })
        };
        for (old, new, says) in [
            ("two", "x", "2 times"),
            ("aa", "x", "2 times"),
            ("Two", "x", "not in a.txt"),
            ("one ", "x", "not in a.txt"),
            ("", "x", "differ"),
            ("one", "one", "differ"),
        ] {
            let why = edit(old, new).unwrap_err();
            assert!(why.contains(says), "{old}: {why}");
        }
        edit("three\ntwo", "3\n2").unwrap();
        assert_eq!(std::fs::read_to_string(dir.path().join("a.txt")).unwrap(), "one\ntwo\n3\n2\naaa\n");
    }

    #[test]
    fn lines_are_numbered_and_a_part_says_that_it_is_one() {
        let (dir, files) = place();
        let lines = |offset, limit| read_lines(&files, &ReadArguments { path: "a.txt".to_owned(), offset, limit });
        assert_eq!(lines(None, None).unwrap(), "1\tone\n2\ttwo\n3\tthree\n4\ttwo\n5\taaa\n");
        assert_eq!(lines(Some(2), Some(2)).unwrap(), "2\ttwo\n3\tthree\n[lines 2 to 3 of 5]\n");
        assert_eq!(lines(Some(5), Some(usize::MAX)).unwrap(), "5\taaa\n[lines 5 to 5 of 5]\n");
        assert_eq!(lines(Some(6), None).unwrap_err(), "it has 5 lines alone");
        std::fs::write(dir.path().join("a.txt"), "").unwrap();
        assert_eq!(lines(None, None).unwrap(), "(the file is empty)");
    }

    #[test]
    fn only_allowed_tools_are_offered_and_the_endings_always() {
        let names = |agent: &Agent| offered(agent).iter().map(|tool| tool.name).collect::<Vec<_>>();
        let all = names(&Agent::default());
        assert_eq!(all, ["read", "write", "edit", "glob", "grep", "bash", "done", "decline", "ask"]);
        let few = Agent { allowed_tools: Some(vec![config::Tool::Grep]), ..Agent::default() };
        assert_eq!(names(&few), ["grep", "done", "decline", "ask"]);
    }

    #[test]
    fn the_endings_carry_their_words() {
        let of =
            |name: &str, arguments: Value| ending(&ToolCall { id: String::new(), name: name.to_owned(), arguments });
        assert_eq!(of("done", json!({"summary": " Fixed. "})), Some(Ending::Done("Fixed.".to_owned())));
        assert_eq!(of("done", json!({})), Some(Ending::Done(String::new())));
        assert_eq!(of("ask", json!({"question": "Which port?"})), Some(Ending::Asks("Which port?".to_owned())));
        assert!(matches!(of("decline", json!("x")), Some(Ending::Asks(words)) if words.contains("decline")));
        assert_eq!(of("read", json!({})), None);
    }
}
