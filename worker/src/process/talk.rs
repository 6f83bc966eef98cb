//! A command that one talks with while it runs. What holds for every other holds for it: a group of its own, which dies with
//! this value.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nix::sys::signal::Signal;
use tokio::io::AsyncReadExt;
use tokio::process::{Child, ChildStdin, ChildStdout};
use tokio_util::task::AbortOnDropHandle;

use super::capture::Capture;
use super::{Command, Exit, Group, Prepared, ProcessError, Veil, start};

/// A command that runs. Dropping it kills its whole group.
pub struct Talk {
    child: Child,
    group: Group,
    /// What is around it lives as long as it.
    _bounds: Prepared,
    stderr: Arc<Mutex<(Capture, Veil)>>,
    _reader: AbortOnDropHandle<()>,
}

impl Talk {
    /// Starts a command and gives its input and output. Its time and its `stdin` are the caller's business; what it writes to
    /// standard error is kept within the command's limits.
    pub fn open(command: &Command) -> Result<(Self, ChildStdin, ChildStdout), ProcessError> {
        let (mut child, bounds) = start(command)?;
        let group = Group::new(child.id(), command.holds_locks);
        let (Some(stdin), Some(stdout), Some(mut errors)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            let source = std::io::Error::other("it has no input or output");
            return Err(ProcessError::Start { program: super::program(command), source });
        };
        let stderr = Arc::new(Mutex::new((Capture::new(command.limits), command.secrets.veil())));
        let kept = stderr.clone();
        let reader = tokio::spawn(async move {
            let mut buffer = vec![0; 16 * 1024];
            while let Ok(n @ 1..) = errors.read(&mut buffer).await {
                let (capture, veil) = &mut *kept.lock().unwrap_or_else(PoisonError::into_inner);
                capture.push(&veil.pass(&buffer[..n]));
            }
        });
        let talk = Self { child, group, _bounds: bounds, stderr, _reader: AbortOnDropHandle::new(reader) };
        Ok((talk, stdin, stdout))
    }

    /// Ends it: with SIGTERM, and by force where it does not heed that within this time. Gives how it ended, and what it
    /// wrote to standard error.
    pub async fn end(mut self, grace: Duration) -> (Option<Exit>, String) {
        let mut ended = self.child.try_wait().ok().flatten();
        if ended.is_none() {
            self.group.signal(Signal::SIGTERM);
            ended = tokio::time::timeout(grace, self.child.wait()).await.ok().and_then(Result::ok);
        }
        self.group.signal(Signal::SIGKILL);
        let (capture, veil) = &mut *self.stderr.lock().unwrap_or_else(PoisonError::into_inner);
        capture.push(&veil.end());
        let said = capture.take();
        (ended.map(Exit::of), String::from_utf8_lossy(&said).into_owned())
    }
}
