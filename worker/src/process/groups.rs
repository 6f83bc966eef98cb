//! The process groups of the commands that run, and the watchdog that ends them when the worker itself is killed.
//!
//! Git is left out of both: killed in the middle of a push it would leave its lock behind in the repository, and nobody
//! could push there any more. It ends by itself soon enough.

use std::collections::BTreeSet;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

/// Reads `+ GROUP` and `- GROUP`, and kills what is left when its input ends: then the worker is gone. A group of its own,
/// so that no signal to the worker's reaches it.
const WATCHDOG: &str = r#"
left=' '
while read -r what group; do
    case $what in
    +) left="$left$group " ;;
    -) case $left in *" $group "*) left="${left%% "$group" *} ${left#* "$group" }" ;; esac ;;
    esac
done
for group in $left; do
    kill -s KILL -- "-$group"
done
"#;

/// The groups that run, and the way to the watchdog that knows of them.
struct Groups {
    running: BTreeSet<Pid>,
    watchdog: Option<ChildStdin>,
}

static GROUPS: Mutex<Groups> = Mutex::new(Groups { running: BTreeSet::new(), watchdog: None });

/// The table. A thread that panicked while it held the lock left a whole table behind.
fn groups() -> MutexGuard<'static, Groups> {
    GROUPS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Kills every command of this process with its group: for an exit that drops nothing.
pub fn kill_all() {
    for group in &groups().running {
        // An error means that nobody is left.
        let _ = killpg(*group, Signal::SIGKILL);
    }
}

/// Ends a whole process group when it is dropped.
pub(super) struct Group {
    leader: Option<Pid>,
    /// It is asked, not killed, and not in the table.
    holds_locks: bool,
}

impl Group {
    pub(super) fn new(leader: Option<u32>, holds_locks: bool) -> Self {
        let leader = leader.and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw);
        if let (Some(group), false) = (leader, holds_locks) {
            let mut groups = groups();
            groups.running.insert(group);
            if groups.watchdog.is_some() {
                groups.tell('+', group);
            } else {
                groups.watchdog = start_watchdog();
                for group in groups.running.clone() {
                    groups.tell('+', group);
                }
            }
        }
        Self { leader, holds_locks }
    }

    pub(super) fn signal(&self, signal: Signal) {
        if let Some(group) = self.leader {
            // An error means that nobody is left.
            let _ = killpg(group, signal);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.signal(if self.holds_locks { Signal::SIGTERM } else { Signal::SIGKILL });
        if let (Some(group), false) = (self.leader, self.holds_locks) {
            let mut groups = groups();
            groups.running.remove(&group);
            groups.tell('-', group);
        }
    }
}

impl Groups {
    /// Tells the watchdog. One that is gone is replaced at the next start of a command, and told of all that run.
    fn tell(&mut self, what: char, group: Pid) {
        let Some(watchdog) = &mut self.watchdog else { return };
        if writeln!(watchdog, "{what} {group}").is_err() {
            self.watchdog = None;
        }
    }
}

/// Starts the watchdog; nothing where there is no shell, and then a killed worker's agents run to their end.
fn start_watchdog() -> Option<ChildStdin> {
    let started = Command::new("sh")
        .args(["-c", WATCHDOG])
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .current_dir("/")
        .process_group(0)
        .spawn();
    match started {
        Ok(mut child) => child.stdin.take(),
        Err(error) => {
            tracing::warn!(%error, "no watchdog: agents go on where this process is killed");
            None
        }
    }
}
