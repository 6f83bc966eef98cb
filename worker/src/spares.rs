//! Trees that are checked out ahead: while one attempt works, the next one's files are brought out already.
//!
//! To write ten thousand files takes longer than all the rest that an attempt needs to start. A spare holds what the base
//! was at the last attempt; what changed since is brought along when it is used. No agent ever saw it.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::git::{GitError, Mirror, Tree, tree};

/// The most spares of one process: one for each of so many repositories.
const MOST: usize = 4;
/// How long one is kept.
const KEPT_FOR: Duration = Duration::from_mins(30);

/// The spares of a process.
#[derive(Debug, Clone)]
pub(crate) struct Spares {
    dir: PathBuf,
    ready: Arc<Mutex<Vec<(Instant, Tree)>>>,
}

impl Spares {
    /// In this folder. What dead workers left there is removed.
    pub(crate) fn open(dir: PathBuf) -> Self {
        tree::sweep(&dir);
        Self { dir, ready: Arc::default() }
    }

    fn ready(&self) -> std::sync::MutexGuard<'_, Vec<(Instant, Tree)>> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The spare of a repository.
    pub(crate) fn take(&self, mirror: &Mirror) -> Option<Tree> {
        let mut ready = self.ready();
        let place = ready.iter().position(|(_, tree)| is_of(tree, mirror))?;
        Some(ready.remove(place).1)
    }

    /// Checks one out if there is none of the repository.
    pub(crate) async fn prepare(&self, mirror: &Mirror, start: &str) -> Result<(), GitError> {
        if self.ready().iter().any(|(_, tree)| is_of(tree, mirror)) {
            return Ok(());
        }
        let name = uuid::Uuid::new_v4().simple().to_string();
        let tree = Tree::bare(mirror, &self.dir.join(name), start).await?;
        let mut ready = self.ready();
        ready.retain(|(at, _)| at.elapsed() < KEPT_FOR);
        if ready.len() >= MOST {
            ready.remove(0);
        }
        ready.push((Instant::now(), tree));
        Ok(())
    }

    /// Lets go of those that nobody needed for long.
    pub(crate) fn tidy(&self) {
        self.ready().retain(|(at, _)| at.elapsed() < KEPT_FOR);
    }
}

fn is_of(tree: &Tree, mirror: &Mirror) -> bool {
    let dir = |mirror: &Mirror| -> PathBuf { Path::to_path_buf(mirror.git().dir()) };
    dir(tree.mirror()) == dir(mirror)
}
