//! The real binary, run in a temporary folder with nothing of the user's environment.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use super::git;

/// A folder with `refile.toml` and a repository `repo` whose branch is `main`.
pub struct Desk {
    pub dir: tempfile::TempDir,
}

/// How a command ended and what it said.
#[derive(Debug)]
pub struct Ran {
    pub status: i32,
    pub out: String,
    pub err: String,
}

/// Approves a change whose prompt led with a demand, and demands one of all others.
pub const STRICT_REVIEWER: &str =
    "grep -q DONE work.txt && echo APPROVE || echo 'RETRY: Write DONE into work.txt. It is not there.'";

impl Desk {
    /// With an agent that writes its prompt's first line into `work.txt`, and a reviewer that approves everything.
    pub fn new() -> Self {
        Self::with("cat > work.txt", "echo APPROVE", "")
    }

    /// With an agent, a reviewer (both shell scripts) and more configuration.
    pub fn with(agent: &str, reviewer: &str, more: &str) -> Self {
        let place = Self::empty();
        let quoted = |text: &str| Value::from(text).to_string();
        place.write(
            "refile.toml",
            &format!(
                "[repository]\nurl = \"repo\"\n[policy]\nbackoff = \"50ms\"\nmax_attempts = 1\n[agents.fixer]\ncommand = [\"sh\", \"-c\", {}]\n[reviewers.strict]\ncommand = [\"sh\", \"-c\", {}]\n{more}\n",
                quoted(agent),
                quoted(reviewer)
            ),
        );
        std::fs::create_dir(place.path("repo")).unwrap();
        place.git(&["init", "--quiet", "--initial-branch=main"]);
        place.write("repo/README.md", "A repository\n");
        place.git(&["add", "--all"]);
        place.git(&["commit", "--quiet", "--message=Start"]);
        place
    }

    /// An empty folder.
    pub fn empty() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn write(&self, name: &str, text: &str) {
        std::fs::create_dir_all(self.path(name).parent().unwrap()).unwrap();
        std::fs::write(self.path(name), text).unwrap();
    }

    /// Runs git in `repo`.
    pub fn git(&self, args: &[&str]) -> String {
        git(&self.path("repo"), args)
    }

    /// The command, ready to be run in the folder.
    pub fn command(&self, args: &[&str]) -> Command {
        command(self.dir.path(), args)
    }

    pub fn run(&self, args: &[&str]) -> Ran {
        ended(self.command(args).output().unwrap())
    }

    /// Runs with a text on standard input.
    pub fn run_with_input(&self, args: &[&str], input: &str) -> Ran {
        let mut child =
            self.command(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // It may refuse its arguments before it reads.
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        ended(child.wait_with_output().unwrap())
    }

    /// Runs what must succeed, and gives what it printed.
    #[track_caller]
    pub fn ok(&self, args: &[&str]) -> String {
        let ran = self.run(args);
        assert_eq!(ran.status, 0, "{args:?}: {ran:?}");
        ran.out
    }

    /// Runs what must succeed with `--json`, and gives its JSON.
    #[track_caller]
    pub fn json(&self, args: &[&str]) -> Value {
        let mut all = args.to_vec();
        all.push("--json");
        serde_json::from_str(&self.ok(&all)).unwrap()
    }

    /// Runs what must fail so, and say all of that on standard error.
    #[track_caller]
    pub fn fails(&self, args: &[&str], status: i32, says: &[&str]) -> Ran {
        self.run(args).must(status, says)
    }

    /// Submits a task and gives its id.
    #[track_caller]
    pub fn submit(&self, title: &str) -> String {
        self.ok(&["submit", title]).trim().to_owned()
    }

    /// How many tasks there are.
    #[track_caller]
    pub fn tasks(&self) -> usize {
        self.json(&["task", "list"]).as_array().unwrap().len()
    }
}

impl Ran {
    /// Holds the status and what standard error says.
    #[track_caller]
    pub fn must(self, status: i32, says: &[&str]) -> Self {
        assert_eq!(self.status, status, "{self:?}");
        for word in says {
            assert!(self.err.contains(word), "does not say {word:?}: {}", self.err);
        }
        assert!(!self.err.contains("panicked"), "{}", self.err);
        self
    }
}

/// The binary in a folder, with PATH and a user's name, and with any free port for the API.
pub fn command(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_refile"));
    command
        .args(args)
        .current_dir(dir)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap())
        .env("USER", "ann")
        .env("REFILE_COORDINATOR_LISTEN", "127.0.0.1:0")
        .stdin(Stdio::null());
    // Tools that live there are shown in the sandbox.
    if let Some(home) = std::env::var_os("HOME") {
        command.env("HOME", home);
    }
    command
}

pub fn ended(output: Output) -> Ran {
    Ran {
        status: output.status.code().unwrap_or(-1),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}
