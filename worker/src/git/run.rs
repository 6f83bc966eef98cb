//! One call of git: fixed environment, fixed configuration, bounded output.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::Duration;

use refile_forge::Login;

use super::{GitError, names};
use crate::process::{self, Command, Exit, Limits};

/// How long one call may take; a first fetch of a large repository is the longest.
const TIMEOUT: Duration = Duration::from_mins(30);

/// The same for one that reads or writes the files of a tree.
const TREE_TIMEOUT: Duration = Duration::from_mins(10);

/// The most that is read from one call, in bytes.
const MAX_OUTPUT: usize = 64 << 20;

/// How git reaches a server over SSH: it asks nobody, and gives a server up that does not answer for a minute.
const SSH: &str = "ssh -o BatchMode=yes -o ConnectTimeout=30 -o ServerAliveInterval=15 -o ServerAliveCountMax=4";

/// How git's lines end where the machine is to blame, and not what lies in the tree.
const TROUBLE: &[&str] = &[
    "No space left on device",
    "Disk quota exceeded",
    "Input/output error",
    "Read-only file system",
    "Cannot allocate memory",
    "Too many open files in system",
    "Stale file handle",
];

/// What every call is told: nothing that lies in a repository may run anything on the host.
const CONFIG: &[&str] = &[
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.excludesFile=/dev/null",
    "core.attributesFile=/dev/null",
    "core.quotePath=false",
    "protocol.ext.allow=never",
    "gc.auto=0",
    "maintenance.auto=false",
    "submodule.recurse=false",
    "fetch.recurseSubmodules=false",
    "diff.ignoreSubmodules=dirty",
    "commit.gpgSign=false",
    "log.showSignature=false",
    // What is larger is handled as binary, and never whole in memory.
    "core.bigFileThreshold=32m",
    // As many at once as there are cores.
    "checkout.workers=0",
    // A server that sends next to nothing for a minute is gone: others wait for the mirror's lock.
    "http.lowSpeedLimit=1000",
    "http.lowSpeedTime=60",
    "core.protectNTFS=true",
    "core.protectHFS=true",
];

/// A repository's git directory, and optionally a work tree with an index of its own.
#[derive(Debug, Clone)]
pub struct Git {
    dir: PathBuf,
    tree: Option<(PathBuf, PathBuf)>,
    place: String,
    login: Option<Login>,
}

/// What a call gave.
pub(super) struct Output {
    /// The exit code.
    pub(super) code: i32,
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: String,
}

impl Output {
    /// Standard output without the line end, as text.
    pub(super) fn line(&self) -> String {
        String::from_utf8_lossy(&self.stdout).trim_end().to_owned()
    }

    /// The entries of a NUL-separated list, as text.
    pub(super) fn entries(&self) -> Vec<String> {
        entries(&self.stdout)
    }
}

/// The entries of a NUL-separated list.
pub(super) fn pieces(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    bytes.split(|b| *b == 0).filter(|e| !e.is_empty())
}

/// The entries of a NUL-separated list, as text.
pub(super) fn entries(bytes: &[u8]) -> Vec<String> {
    pieces(bytes).map(|e| String::from_utf8_lossy(e).into_owned()).collect()
}

impl Git {
    /// Git on a bare repository. `place` is what errors call it: the address that it is a copy of.
    pub fn new(git_dir: &Path, place: &str) -> Self {
        Self { dir: git_dir.to_owned(), tree: None, place: place.to_owned(), login: None }
    }

    /// The same repository with a work tree and the index that belongs to it.
    #[must_use]
    pub fn with_tree(&self, tree: &Path, index: &Path) -> Self {
        Self { tree: Some((tree.to_owned(), index.to_owned())), ..self.clone() }
    }

    /// The same repository, with a login for the server that it is a copy from.
    #[must_use]
    pub fn with_login(&self, login: Option<Login>) -> Self {
        Self { login, ..self.clone() }
    }

    /// The environment variable that the login is from.
    pub(super) fn login_variable(&self) -> Option<&str> {
        self.login.as_ref().and_then(Login::variable)
    }

    /// The git directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Runs a subcommand that must end well.
    pub(super) async fn ok<S: AsRef<OsStr>>(&self, args: &[S]) -> Result<Output, GitError> {
        self.with_input(args, Vec::new(), &[0]).await
    }

    /// Runs a subcommand on some input; any of `codes` is a good end.
    pub(super) async fn with_input<S: AsRef<OsStr>>(
        &self,
        args: &[S],
        stdin: Vec<u8>,
        codes: &[i32],
    ) -> Result<Output, GitError> {
        let mut line: Vec<OsString> = vec!["git".into()];
        for setting in CONFIG {
            line.extend(["-c".into(), setting.into()]);
        }
        line.extend(args.iter().map(|a| a.as_ref().to_owned()));
        let what = args.first().map(|a| a.as_ref().to_string_lossy().into_owned()).unwrap_or_default();
        let cwd = self.tree.as_ref().map_or(self.dir.as_path(), |(tree, _)| tree.as_path());
        let cwd = if cwd.is_dir() { cwd } else { Path::new("/") };
        // Where it works on a tree, its locks lie beside that tree and go with it.
        let is_on_tree = self.tree.is_some();
        let mut command = Command::new(line, cwd, if is_on_tree { TREE_TIMEOUT } else { TIMEOUT });
        command.env = self.environment();
        command.stdin = stdin;
        command.holds_locks = !is_on_tree;
        command.limits = Limits { head: MAX_OUTPUT, tail: 0 };
        let done = process::run(&command).await?;
        if done.cut {
            return Err(GitError::TooLarge { what, limit: MAX_OUTPUT });
        }
        // An address may hold a password, and errors are kept.
        let shown = names::shown(&self.place);
        let stderr = done.stderr_text().trim().replace(&self.place, &shown);
        match done.exit {
            Exit::Code(code) if codes.contains(&code) => Ok(Output { code, stdout: done.stdout, stderr }),
            exit => Err(GitError::Failed { what, place: shown, exit: exit.to_string(), stderr }),
        }
    }

    /// Runs a subcommand on what an agent left. Gives git's words where that is what it objects to; trouble of this
    /// machine is an error.
    pub(super) async fn take<S: AsRef<OsStr>>(&self, args: &[S], stdin: Vec<u8>) -> Result<Option<String>, GitError> {
        let words = match self.with_input(args, stdin, &[0, 1, 128]).await? {
            Output { code: 0, .. } => return Ok(None),
            Output { stderr, .. } => stderr,
        };
        let is_trouble = words.lines().any(|line| {
            line.starts_with("fatal: Out of memory") || TROUBLE.iter().any(|trouble| line.ends_with(trouble))
        });
        // Git may have been too badly off to say so: then it cannot do the least thing either.
        let new = uuid::Uuid::new_v4().to_string().into_bytes();
        let probe = self.with_input(&["hash-object", "-w", "--stdin"], new, &[0]);
        if !is_trouble && probe.await.is_ok() {
            return Ok(Some(words));
        }
        let what = args.first().map(|a| a.as_ref().to_string_lossy().into_owned()).unwrap_or_default();
        let exit = "could not store what it was given".to_owned();
        Err(GitError::Failed { what, place: names::shown(&self.place), exit, stderr: words })
    }

    fn environment(&self) -> Vec<(OsString, OsString)> {
        let mut env: Vec<(OsString, OsString)> = ["PATH", "HOME", "SSH_AUTH_SOCK"]
            .into_iter()
            .filter_map(|name| std::env::var_os(name).map(|value| (name.into(), value)))
            .collect();
        let mut set = |name: &str, value: &OsStr| env.push((name.into(), value.to_owned()));
        for (name, value) in [
            ("GIT_CONFIG_NOSYSTEM", "1"),
            ("GIT_CONFIG_GLOBAL", "/dev/null"),
            ("GIT_ATTR_NOSYSTEM", "1"),
            ("GIT_TERMINAL_PROMPT", "0"),
            ("GIT_SSH_COMMAND", SSH),
            ("GIT_ALLOW_PROTOCOL", "file:git:http:https:ssh"),
            ("GIT_OPTIONAL_LOCKS", "0"),
            ("GIT_NO_REPLACE_OBJECTS", "1"),
            ("LC_ALL", "C"),
            ("GIT_AUTHOR_NAME", "Refile"),
            ("GIT_AUTHOR_EMAIL", "refile@localhost"),
            ("GIT_COMMITTER_NAME", "Refile"),
            ("GIT_COMMITTER_EMAIL", "refile@localhost"),
        ] {
            set(name, value.as_ref());
        }
        if let Some((key, value)) = self.login.as_ref().map(Login::setting) {
            set("GIT_CONFIG_COUNT", "1".as_ref());
            set("GIT_CONFIG_KEY_0", key.as_ref());
            set("GIT_CONFIG_VALUE_0", value.as_ref());
        }
        set("GIT_DIR", self.dir.as_os_str());
        if let Some((tree, index)) = &self.tree {
            set("GIT_WORK_TREE", tree.as_os_str());
            set("GIT_INDEX_FILE", index.as_os_str());
        }
        env
    }
}
