//! What the tests share: the binary in a folder, a whole fleet of processes, a real Redis.
#![allow(dead_code, unreachable_pub)]

pub mod command;
#[path = "../../../worker/tests/common/git.rs"]
mod git;
pub mod judge;
pub mod place;
pub mod redis;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub use git::git;

/// Between two looks: many of them start a program.
const PAUSE: Duration = Duration::from_millis(100);

/// A program of the workspace, beside the one that this package builds.
#[track_caller]
pub fn program(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_BIN_EXE_refile")).with_file_name(name);
    assert!(path.is_file(), "{} is not there; build it first: cargo build --workspace", path.display());
    path
}

/// Polls until something is there; panics where it is not in time.
#[track_caller]
pub fn until<T>(what: &str, within: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + within;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "not within {} s: {what}", within.as_secs());
        std::thread::sleep(PAUSE);
    }
}

/// Makes the folder `first` the beginning of a history, and `origin.git` a bare repository of it.
#[track_caller]
pub fn origin(dir: &Path) {
    let first = dir.join("first");
    git(&first, &["init", "-q", "-b", "main"]);
    git(&first, &["add", "-A"]);
    git(&first, &["commit", "-q", "-m", "the beginning"]);
    git(dir, &["clone", "-q", "--bare", "first", "origin.git"]);
}

/// The processes of a group that still run.
pub fn group(leader: i32) -> Vec<i32> {
    processes().into_iter().filter(|p| p.group == leader && !p.is_dead).map(|p| p.pid).collect()
}

/// A process of this machine.
pub struct Process {
    pub pid: i32,
    pub group: i32,
    /// It has ended, and nobody has asked for its status yet.
    pub is_dead: bool,
}

/// The processes of this machine.
pub fn processes() -> Vec<Process> {
    let entries = std::fs::read_dir("/proc").expect("these tests need /proc");
    let pids = entries.flatten().filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok());
    pids.filter_map(|pid| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name may hold anything; what follows its last parenthesis is state, parent, group.
        let mut fields = stat.rsplit_once(") ")?.1.split(' ');
        let is_dead = matches!(fields.next()?, "Z" | "X");
        Some(Process { pid, group: fields.nth(1)?.parse().ok()?, is_dead })
    })
    .collect()
}
