//! A member as a process of its own: lines of JSON on its standard streams. It does not outlive whoever started it.

use std::io::{BufRead, Write};

use anyhow::Context as _;
use serde::Serialize;
use tokio::sync::mpsc;

use super::member::{self, Spec, Told};
use crate::Ended;

/// The command, which is not for people.
pub(super) const COMMAND: &str = "bench-part";

/// A value as a line.
pub(super) fn line<T: Serialize>(value: &T) -> anyhow::Result<String> {
    Ok(serde_json::to_string(value)? + "\n")
}

/// Runs until it is told to stop.
pub(crate) async fn run() -> anyhow::Result<Ended> {
    let mut first = String::new();
    std::io::stdin().lock().read_line(&mut first).context("cannot read what to do")?;
    let spec: Spec = serde_json::from_str(&first).context("this command is started by `refile bench`")?;
    let (tell, told) = mpsc::unbounded_channel();
    // A thread, since it may wait for ever: the process must be able to end all the same.
    std::thread::spawn(move || {
        let mut is_stopped = false;
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            let Ok(what) = serde_json::from_str::<Told>(&line) else { break };
            is_stopped = what == Told::Stop;
            let _ = tell.send(what);
        }
        if !is_stopped {
            // Whoever started this is gone.
            std::process::exit(1);
        }
    });
    let (say, mut said) = mpsc::unbounded_channel();
    let speaking = async {
        while let Some(said) = said.recv().await {
            let mut out = std::io::stdout().lock();
            out.write_all(line(&said)?.as_bytes())?;
            out.flush()?;
        }
        anyhow::Ok(())
    };
    let ((), spoken) = tokio::join!(member::run(spec, None, told, say), speaking);
    spoken?;
    Ok(Ended::Done)
}
