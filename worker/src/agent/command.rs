//! Any program as an agent.
//!
//! One that ends with exit code 0 and changes nothing may say that it will not, or cannot yet, do the work: the
//! last line of its standard output is then `REFILE: decline <why>` or `REFILE: ask <question>`, and a person decides.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::Path;

use refile_config::schema::PromptDelivery;
use refile_core::failure::{Failure, FailureKind, Scope};
use refile_core::task::Usage;

use super::preset::{self, Ready, Told};
use super::shown::shown;
use super::{Ended, Job, Ran, reach};
use crate::git::Tree;
use crate::process::{self, Command, Exit, Finished, Limits, Output, ProcessError, Reach, Secrets, tail};

/// What in a command stands for the file that holds the prompt.
const PROMPT_FILE: &str = "{prompt_file}";
/// How much is kept of an output in which a preset finds what the run used up. It is read and not shown.
const READ: Limits = Limits { head: 8 << 20, tail: 56 << 20 };

/// Said below an output of which the middle was not kept.
const USAGE_UNKNOWN: &str =
    "\n* its output was longer than what is read of it: tokens and cost may be more than what is counted\n";

/// Runs an agent to its end.
pub(super) async fn run(job: &Job<'_>) -> Ran {
    let ran = async {
        let ready = preset::ready(job.agent)?;
        let done = start(job, &ready).await?;
        Ok((ready, done))
    };
    match ran.await {
        Ok((ready, done)) => {
            let ran = ended(&ready, &done, job.secrets);
            Ran { ended: ran.ended.map_err(|failure| advised(failure, job, &done)), ..ran }
        }
        Err(failure) => Ran::not_started(failure),
    }
}

/// What a run that was started came to.
fn ended(ready: &Ready, done: &Finished, secrets: &Secrets) -> Ran {
    let told = ready.known.as_ref().map(|known| known.read(done));
    let is_well = match (&ready.known, &told) {
        (Some(known), Some(told)) => known.ended_well(done, told),
        _ => done.exit.is_ok(),
    };
    let said = told.as_ref().and_then(|t| t.message.clone()).unwrap_or_else(|| done.stdout_text());
    // The output came without them. In a message that was read out of JSON they may stand as they did not there.
    let mut transcript = done.output_text();
    if ready.known.is_some() && done.stdout_cut {
        transcript.push_str(USAGE_UNKNOWN);
    }
    let ended = if is_well {
        Ok(request(&secrets.hide(&said)).map_or(Ended::Done, Ended::Says))
    } else {
        Err(failure_of(ready, done, told.as_ref(), secrets))
    };
    Ran {
        ended,
        summary: tail(&secrets.hide(&said), 500).to_owned(),
        transcript,
        cached_input_tokens: told.as_ref().map_or(0, |t| t.cached_input_tokens),
        usage: Usage {
            wall_ms: done.wall_ms(),
            ..told.map_or(Usage { cost_unknown: true, ..Usage::default() }, |t| t.usage)
        },
    }
}

/// A failure with what to do about it, where a limit of the configuration is what ended the run.
fn advised(mut failure: Failure, job: &Job<'_>, done: &Finished) -> Failure {
    let said = done.output_text();
    let said = tail(&said, 600).to_lowercase();
    let is_crash = matches!(failure.kind, FailureKind::Crash | FailureKind::Configuration);
    if done.exit == Exit::TimedOut {
        let (name, timeout) = (job.name, job.agent.timeout);
        let _ = write!(failure.detail, "\n  it had {timeout}; where that is too short, set agents.{name}.timeout");
    } else if !done.exit.is_ok()
        && ["cannot fork", "fork: ", "resource temporarily unavailable"].iter().any(|w| said.contains(w))
    {
        failure.detail.push_str("\n  where it needs that many processes at once, raise limits.process.processes");
    } else if failure.kind == FailureKind::Auth {
        let name = job.name;
        let _ = write!(failure.detail, "\n  `refile agent check {name}` says which key or login the agent has");
    } else if is_crash && is_confined(job.tree) && misses(&said) {
        let hint = hidden(&format!("agents.{}.readable", job.name));
        failure.detail.push_str(&hint);
    }
    failure
}

/// Whether commands that work in a tree see less than there is.
pub(crate) fn is_confined(tree: &Tree) -> bool {
    tree.sandbox(&[], Reach::default()).is_some_and(|sandbox| sandbox.hides())
}

/// Whether a program's last words, in small letters, are about a file or a module that it did not find.
pub(crate) fn misses(said: &str) -> bool {
    const WORDS: [&str; 8] = [
        "no such file or directory",
        "modulenotfounderror",
        "no module named",
        "cannot find module",
        "cannot load such file",
        "can't locate",
        ": not found",
        "command not found",
    ];
    WORDS.iter().any(|words| said.contains(words))
}

/// What to do about something that is there for everybody but a command in the sandbox.
pub(crate) fn hidden(key: &str) -> String {
    format!("\n  the sandbox shows little of this machine: where what it misses is there, {key} = [\"PATH\"] shows it")
}

/// Why a run failed: by the rules of its preset where one fits.
fn failure_of(ready: &Ready, done: &Finished, told: Option<&Told>, secrets: &Secrets) -> Failure {
    let mut failure = failed(&ready.command, done, secrets);
    let is_clear = matches!(done.exit, Exit::TimedOut | Exit::NoRoom | Exit::Code(126 | 127));
    let (Some(known), Some(told), false) = (&ready.known, told, is_clear) else { return failure };
    if let Some(error) = &told.error {
        let said = secrets.hide(error);
        let said = tail(&said, 600);
        failure = Failure::new(failure.kind, format!("`{}` {}: {said}", known.program, done.exit));
    }
    if let Some((kind, wait)) = known.classify(done.exit, &done.stderr_text(), &done.stdout_text(), told) {
        (failure.kind, failure.retry_after_ms) = (kind, wait);
        // What it says in a field for that holds for its next run, too. Words in its log may be those of a model or a file,
        // whatever they begin with: they hold for this run.
        if told.is_certain {
            failure.scope = Scope::Key;
        }
    }
    failure
}

async fn start(job: &Job<'_>, ready: &Ready) -> Result<Finished, Failure> {
    let Job { agent, config_dir, prompt, tree, claim, .. } = *job;
    let (file, _) = job.surroundings()?;
    let mut argv = resolve(&ready.command, config_dir);
    // Of what the configuration says: a path in the prompt shows nothing. A preset's agent may read its login.
    let logins = ready.known.iter().flat_map(|known| &known.login).map(|login| format!("~/{login}"));
    let readable: Vec<String> = agent.readable.iter().cloned().chain(logins).collect();
    let sandbox = tree.sandbox(&argv, Reach { readable: &readable, ..reach(agent) });
    for argument in &mut argv {
        if let Some(text) = argument.to_str().filter(|a| a.contains(PROMPT_FILE)) {
            *argument = text.replace(PROMPT_FILE, &file.to_string_lossy()).into();
        }
    }
    if ready.prompt == PromptDelivery::Argument {
        argv.push(prompt.into());
    }
    let mut command = Command::new(argv, tree.dir(), agent.timeout.0).confined(sandbox);
    command.env = claim.environment(tree.base(), &ready.env);
    command.env.push(("REFILE_PROMPT_FILE".into(), file.into()));
    command.env.extend(ready.set.iter().map(|(name, value)| (name.into(), value.into())));
    if ready.prompt == PromptDelivery::Stdin {
        command.stdin = prompt.as_bytes().to_vec();
    }
    command.secrets = job.secrets.clone();
    command.stdout_limits = ready.known.as_ref().map(|_| READ);
    let output = Output::of(&command);
    let run = Box::pin(process::run_into(&command, &output));
    shown(job.shelf, run, |known| output.so_far(known)).await.map_err(|error| not_started(&error))
}

/// A command of the configuration, whose relative paths start from the configuration's folder: a program with a slash
/// in its name, and every argument that names a file there.
pub(crate) fn resolve(command: &[String], config_dir: &Path) -> Vec<OsString> {
    let dir = std::path::absolute(config_dir).unwrap_or_else(|_| config_dir.to_owned());
    let absolute = |(i, argument): (usize, &String)| {
        let is_path = if i == 0 {
            argument.contains('/')
        } else {
            !argument.is_empty() && !argument.starts_with('-') && dir.join(argument).is_file()
        };
        if is_path { dir.join(argument).into_os_string() } else { argument.into() }
    };
    command.iter().enumerate().map(absolute).collect()
}

/// The failure that a command which could not be started amounts to.
pub(crate) fn not_started(error: &ProcessError) -> Failure {
    let too_long = "\n  the prompt does not fit into an argument: deliver it with prompt = \"stdin\" or \"file\"";
    let hint = match error {
        ProcessError::Start { source, .. } if source.kind() == std::io::ErrorKind::ArgumentListTooLong => too_long,
        _ => "",
    };
    Failure::new(FailureKind::Configuration, format!("{error}{hint}"))
}

/// The failure of a command that was stopped since the disk was nearly full.
pub(crate) fn no_room(what: &str) -> Failure {
    let why = format!(
        "{what} {}\n  make room on the disk of the worker's folder (workers.dir), or let fewer jobs run at once",
        Exit::NoRoom
    );
    Failure::new(FailureKind::Configuration, why)
}

/// The failure that a command which did not end well amounts to.
pub(crate) fn failed(command: &[String], done: &Finished, secrets: &Secrets) -> Failure {
    let (stdout, stderr) = (done.stdout_text(), done.stderr_text());
    let said = if stderr.trim().is_empty() { &stdout } else { &stderr };
    let said = secrets.hide(said);
    let said = tail(&said, 600);
    let kind = match done.exit {
        Exit::TimedOut => FailureKind::Timeout,
        Exit::NoRoom => return no_room(&format!("`{}`", command.first().map_or("the command", String::as_str))),
        Exit::Code(126 | 127) => FailureKind::Configuration,
        _ => provider_trouble(tail(&stderr, 4_000))
            .or_else(|| provider_trouble(tail(&stdout, 4_000)))
            .unwrap_or(FailureKind::Crash),
    };
    let program = command.first().map_or("the command", String::as_str);
    let said = if said.trim().is_empty() { " and said nothing".to_owned() } else { format!(": {said}") };
    Failure::new(kind, format!("`{program}` {}{said}", done.exit))
}

/// What a failed program's last words say of its provider, where they obviously do.
pub(super) fn provider_trouble(words: &str) -> Option<FailureKind> {
    let words = words.to_lowercase();
    let says = |phrases: &[&str]| phrases.iter().any(|p| words.contains(p));
    let number = |wanted: &str| words.split(|c: char| !c.is_ascii_alphanumeric()).any(|word| word == wanted);
    if number("429") || says(&["rate limit", "rate_limit", "ratelimit", "too many requests"]) {
        return Some(FailureKind::RateLimit);
    }
    (number("529") || says(&["overloaded"])).then_some(FailureKind::Overloaded)
}

/// What an agent asks or why it declines, where its last line says so.
pub(super) fn request(stdout: &str) -> Option<String> {
    let last = stdout.trim_end().lines().next_back()?.trim();
    let words = last.strip_prefix("REFILE: decline ").or_else(|| last.strip_prefix("REFILE: ask "))?.trim();
    (!words.is_empty()).then(|| words.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_paths_start_from_the_configuration() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("agent.py"), "").unwrap();
        let command = ["python3", "agent.py", "--fast", "other.py", "{prompt_file}"].map(str::to_owned);
        let resolved = resolve(&command, dir.path());
        let script = dir.path().join("agent.py").into_os_string();
        assert_eq!(resolved, ["python3".into(), script, "--fast".into(), "other.py".into(), "{prompt_file}".into()]);
        let program = resolve(&["./bin/agent".to_owned()], dir.path());
        assert_eq!(program, [dir.path().join("./bin/agent").into_os_string()]);
    }

    #[test]
    fn only_the_last_line_asks_or_declines() {
        assert_eq!(request("x\nREFILE: ask Which port?\n\n").as_deref(), Some("Which port?"));
        assert_eq!(request("REFILE: decline too risky").as_deref(), Some("too risky"));
        for other in ["", "REFILE: ask x\nmore", "REFILE: ask ", "refile: ask x", "He said REFILE: ask x"] {
            assert_eq!(request(other), None, "{other}");
        }
    }

    #[test]
    fn what_a_program_misses_is_seen() {
        for (words, is_so) in [
            ("python3: can't open file '/x/a.py': [errno 2] no such file or directory", true),
            ("modulenotfounderror: no module named 'requests'", true),
            ("error: cannot find module 'left-pad'", true),
            ("sh: 1: ruff: not found", true),
            ("assertionerror: 1 != 2", false),
        ] {
            assert_eq!(misses(words), is_so, "{words}");
        }
    }

    #[test]
    fn obvious_provider_trouble_is_seen() {
        for (words, kind) in [
            ("HTTP 429: slow down", Some(FailureKind::RateLimit)),
            ("Error: Rate limit reached", Some(FailureKind::RateLimit)),
            ("status=529", Some(FailureKind::Overloaded)),
            ("{\"type\":\"overloaded_error\"}", Some(FailureKind::Overloaded)),
            ("panicked at src/x.rs:4290", None),
            ("line 1429", None),
        ] {
            assert_eq!(provider_trouble(words), kind, "{words}");
        }
    }
}
