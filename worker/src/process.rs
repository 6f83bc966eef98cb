//! Runs one command to its end, in a process group of its own, with bounds on time and output.
//!
//! The group dies with the run: when the command ends, when its time is up, when the future is dropped, and when the worker
//! itself is killed. Without a sandbox a process that leaves the group (`setsid`) is out of reach.
//!
//! # Layout
//! - `sandbox`: what a command may reach and use up
//! - `etc`: what of `/etc` is shown where the worker is root
//! - `caches`: what Cargo has downloaded, for commands that add to it
//! - `probe`: tries the sandbox at the start, and says what holds
//! - `cgroup`: control groups, where they can be made
//! - `capture`: the beginning and the end of an output, and the whole of it in a file
//! - `secrets`: what must not show in it
//! - `groups`: process groups, and the watchdog

mod sandbox;
mod etc;
mod caches;
mod probe;
mod cgroup;
mod capture;
mod secrets;
mod groups;
mod talk;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};

pub(crate) use capture::Output;
pub use capture::{Limits, Whole};
use groups::Group;
pub use groups::kill_all;
pub use probe::Told;
pub(crate) use sandbox::GIVEN;
pub use sandbox::{Guard, Prepared, Reach, Sandbox};
pub use secrets::Secrets;
pub(crate) use secrets::Veil;
pub use talk::Talk;

/// How long a command may go on after SIGTERM, and how long its pipes are read after its end.
const GRACE: Duration = Duration::from_secs(2);

/// The variables that every command gets where the worker has them, beside all that begin with `LC_`.
pub(crate) const ALLOWED: &[&str] = &["PATH", "HOME", "USER", "LANG", "TERM", "TMPDIR", "TZ", "SHELL"];

/// A command to run.
#[derive(Debug, Clone)]
pub struct Command {
    /// The program and its arguments.
    pub argv: Vec<OsString>,
    /// Where it runs.
    pub cwd: PathBuf,
    /// Its whole environment; nothing else is passed on.
    pub env: Vec<(OsString, OsString)>,
    /// What it is given on standard input.
    pub stdin: Vec<u8>,
    /// How long it may take.
    pub timeout: Duration,
    /// How much of its output is kept.
    pub limits: Limits,
    /// How much of its standard output is kept by itself, where that is read and not shown.
    pub stdout_limits: Option<Limits>,
    /// Where its output goes whole as well.
    pub whole: Option<Whole>,
    /// What must not show in its output. It is hidden before anything is cut.
    pub secrets: Secrets,
    /// What it may reach and use up; nothing for all that the worker may.
    pub sandbox: Option<Sandbox>,
    /// It is asked to end (SIGTERM) where it would be killed otherwise, and the watchdog leaves it alone: it holds locks that
    /// it must take away itself, as git does in the repositories of others.
    pub holds_locks: bool,
}

impl Command {
    /// A command with the [`environment`] and nothing on standard input.
    pub fn new<S: AsRef<OsStr>>(argv: impl IntoIterator<Item = S>, cwd: &Path, timeout: Duration) -> Self {
        Self {
            argv: argv.into_iter().map(|a| a.as_ref().to_owned()).collect(),
            cwd: cwd.to_owned(),
            env: environment(&[]),
            stdin: Vec::new(),
            timeout,
            limits: Limits::default(),
            stdout_limits: None,
            whole: None,
            secrets: Secrets::default(),
            sandbox: None,
            holds_locks: false,
        }
    }

    /// The same command within bounds, where there are any.
    #[must_use]
    pub fn confined(mut self, sandbox: Option<Sandbox>) -> Self {
        if let Some(sandbox) = &sandbox {
            self.limits = sandbox.output();
        }
        self.sandbox = sandbox;
        self
    }
}

/// The variables of the worker's environment that a command may see: a fixed few, and those that are asked for.
///
/// Names that begin with `REFILE_` are never passed on: they configure the fleet and may hold the store's address.
pub fn environment(asked: &[String]) -> Vec<(OsString, OsString)> {
    std::env::vars_os()
        .filter(|(name, _)| {
            let Some(name) = name.to_str() else { return false };
            let wanted = ALLOWED.contains(&name) || name.starts_with("LC_") || asked.iter().any(|a| a == name);
            wanted && !name.starts_with("REFILE_")
        })
        .collect()
}

/// The last `max` characters of a text.
pub fn tail(text: &str, max: usize) -> &str {
    let text = text.trim_end();
    let start = text.char_indices().rev().nth(max.saturating_sub(1)).map_or(0, |(i, _)| i);
    &text[start..]
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// By itself, with this code.
    Code(i32),
    /// By this signal.
    Signal(i32),
    /// Its time was up.
    TimedOut,
    /// The disk of the worker's folder was nearly full.
    NoRoom,
}

impl Exit {
    /// Whether it ended by itself and well.
    pub fn is_ok(self) -> bool {
        self == Self::Code(0)
    }

    fn of(status: ExitStatus) -> Self {
        use std::os::unix::process::ExitStatusExt;
        status.code().map_or_else(|| Self::Signal(status.signal().unwrap_or_default()), Self::Code)
    }
}

impl std::fmt::Display for Exit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Code(code) => write!(f, "ended with exit code {code}"),
            Self::Signal(signal) => write!(f, "was ended by signal {signal}"),
            Self::TimedOut => f.write_str("was stopped since its time was up"),
            Self::NoRoom => f.write_str("was stopped since the disk was nearly full"),
        }
    }
}

/// What a command left.
#[derive(Debug, Clone)]
pub struct Finished {
    /// How it ended.
    pub exit: Exit,
    /// What it wrote to standard output.
    pub stdout: Vec<u8>,
    /// What it wrote to standard error.
    pub stderr: Vec<u8>,
    /// Both, in the order in which they came.
    pub output: Vec<u8>,
    /// Whether some of the output was left out.
    pub cut: bool,
    /// Whether some of standard output by itself was.
    pub stdout_cut: bool,
    /// How long it ran.
    pub wall: Duration,
}

impl Finished {
    /// Standard output as text.
    pub fn stdout_text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Standard error as text.
    pub fn stderr_text(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }

    /// Standard output and error as text.
    pub fn output_text(&self) -> String {
        String::from_utf8_lossy(&self.output).into_owned()
    }

    /// How long it ran, in milliseconds.
    pub fn wall_ms(&self) -> u64 {
        self.wall.as_millis() as u64
    }
}

/// Why a command could not be run at all.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// There is no command.
    #[error("the command is empty; name a program")]
    Empty,
    /// There is no such program.
    #[error("the program `{0}` was not found; install it, or correct its name in the configuration")]
    NotFound(String),
    /// The file is no program.
    #[error("`{0}` cannot be executed; make it executable (chmod +x), or name the program that runs it")]
    NotExecutable(String),
    /// The folder to run in is not there.
    #[error("the folder {} is not there, so `{program}` cannot run in it", cwd.display())]
    NoFolder {
        /// The program.
        program: String,
        /// The folder.
        cwd: PathBuf,
    },
    /// Anything else that the system objects to.
    #[error("cannot run `{program}`: {source}")]
    Start {
        /// The program.
        program: String,
        /// Why.
        source: std::io::Error,
    },
}

/// Runs a command to its end. When the future is dropped, the command and everything it started in its group is killed.
pub async fn run(command: &Command) -> Result<Finished, ProcessError> {
    run_into(command, &Output::of(command)).await
}

/// The same, where somebody looks at its output while it runs.
pub(crate) async fn run_into(command: &Command, output: &Output) -> Result<Finished, ProcessError> {
    let started = Instant::now();
    let (mut child, bounds) = start(command)?;
    let group = Group::new(child.id(), command.holds_locks);
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let talk = async {
        let write = async {
            if let Some(mut stdin) = stdin {
                // A command that does not read all of its input is free to do so.
                let _ = stdin.write_all(&command.stdin).await;
            }
        };
        tokio::join!(write, read(stdout, |piece| output.stdout(piece)), read(stderr, |piece| output.stderr(piece)));
    };
    tokio::pin!(talk);
    let mut talked = false;
    let over = over(command);
    tokio::pin!(over);
    let mut exit = None;
    let mut wait_error = None;
    while exit.is_none() {
        tokio::select! {
            status = child.wait() => match status {
                Ok(status) => exit = Some(Exit::of(status)),
                Err(source) => { wait_error = Some(source); break }
            },
            () = &mut talk, if !talked => talked = true,
            why = &mut over => {
                group.signal(Signal::SIGTERM);
                let grace = tokio::time::sleep(GRACE);
                tokio::pin!(grace);
                loop {
                    tokio::select! {
                        _ = child.wait() => break,
                        () = &mut talk, if !talked => talked = true,
                        () = &mut grace => break,
                    }
                }
                exit = Some(why);
            }
        }
    }
    drop(group);
    drop(bounds);
    if let Some(source) = wait_error {
        return Err(ProcessError::Start { program: program(command), source });
    }
    // Reaps a command that outlived SIGTERM; returns at once for every other.
    let _ = child.wait().await;
    if !talked {
        // A process that left the group may hold the pipes open for ever.
        let _ = tokio::time::timeout(GRACE, &mut talk).await;
    }
    Ok(output.finish(exit.unwrap_or(Exit::TimedOut), started.elapsed()))
}

/// When a command has to be stopped, and why.
async fn over(command: &Command) -> Exit {
    let no_room = async {
        match &command.sandbox {
            Some(sandbox) => sandbox.no_room().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = tokio::time::sleep(command.timeout) => Exit::TimedOut,
        () = no_room => Exit::NoRoom,
    }
}

fn program(command: &Command) -> String {
    command.argv.first().map(|p| p.to_string_lossy().into_owned()).unwrap_or_default()
}

/// A command as it is to be started: with its sandbox and its limits around it. Its control group must live as long as it.
pub fn prepare(command: &Command) -> Result<Prepared, ProcessError> {
    let Some(sandbox) = &command.sandbox else {
        return Ok(Prepared { argv: command.argv.clone(), env: command.env.clone(), group: None });
    };
    // The shell that sets the limits would report it as its own failure.
    require_program(command)?;
    sandbox.around(command).map_err(|source| ProcessError::Start { program: program(command), source })
}

/// Holds that the program is there and can be executed.
fn require_program(command: &Command) -> Result<(), ProcessError> {
    use std::os::unix::fs::PermissionsExt;
    let name = Path::new(command.argv.first().ok_or(ProcessError::Empty)?);
    let is_program = |path: &Path| path.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0);
    if name.components().count() > 1 {
        let path = command.cwd.join(name);
        return match path.metadata() {
            Err(_) => Err(ProcessError::NotFound(program(command))),
            Ok(_) if !is_program(&path) => Err(ProcessError::NotExecutable(program(command))),
            Ok(_) => Ok(()),
        };
    }
    let path = command.env.iter().find(|(name, _)| name == "PATH").map(|(_, value)| value.clone()).unwrap_or_default();
    let found = std::env::split_paths(&path).any(|dir| is_program(&dir.join(name)));
    if found { Ok(()) } else { Err(ProcessError::NotFound(program(command))) }
}

fn start(command: &Command) -> Result<(tokio::process::Child, Prepared), ProcessError> {
    let prepared = prepare(command)?;
    let (name, arguments) = prepared.argv.split_first().ok_or(ProcessError::Empty)?;
    let started = tokio::process::Command::new(name)
        .args(arguments)
        .current_dir(&command.cwd)
        .env_clear()
        .envs(prepared.env.iter().map(|(k, v)| (k, v)))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(!command.holds_locks)
        .spawn();
    match started {
        Ok(child) => Ok((child, prepared)),
        Err(source) => Err(not_started(command, source)),
    }
}

/// Why the system did not start a command.
fn not_started(command: &Command, source: std::io::Error) -> ProcessError {
    let program = program(command);
    match source.kind() {
        _ if !command.cwd.is_dir() => ProcessError::NoFolder { program, cwd: command.cwd.clone() },
        std::io::ErrorKind::NotFound => ProcessError::NotFound(program),
        std::io::ErrorKind::PermissionDenied => ProcessError::NotExecutable(program),
        _ if source.raw_os_error() == Some(nix::errno::Errno::ENOEXEC as i32) => ProcessError::NotExecutable(program),
        _ => ProcessError::Start { program, source },
    }
}

async fn read(stream: Option<impl AsyncRead + Unpin>, take: impl Fn(&[u8])) {
    let Some(mut stream) = stream else { return };
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(n @ 1..) = stream.read(&mut buffer).await {
        take(&buffer[..n]);
    }
}

#[cfg(test)]
mod tests;
