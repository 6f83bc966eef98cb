//! Trees that are checked out ahead: while attempts work, the next ones' files are brought out already.
//!
//! To write ten thousand files takes longer than all the rest that an attempt needs to start. Of a repository there are as
//! many as the worker does jobs at a time, so that attempts that begin together have one each. A spare holds what the base
//! was at the last attempt; what changed since is brought along when it is used. No agent ever saw it.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::git::{GitError, Mirror, Tree, tree};

/// The most spares of one process, but for those of a repository that has more by itself.
const MOST: usize = 8;
/// When the second is over in which its last file was written: nobody changes one before it is used.
const NO_LONGER_NEW: Duration = Duration::from_millis(1_100);
/// How long one is kept: a working day begins with what the last one left.
const KEPT_FOR: Duration = Duration::from_hours(24);

/// The spares of a process.
#[derive(Debug, Clone)]
pub(crate) struct Spares {
    dir: PathBuf,
    /// How many there are of one repository.
    each: usize,
    ready: Arc<Mutex<Vec<(Instant, Tree)>>>,
    /// One is checked out at a time: attempts need the disk as well.
    making: Arc<tokio::sync::Mutex<()>>,
    /// Whether there is no room for any.
    no_room: Arc<AtomicBool>,
}

impl Spares {
    /// In this folder. What dead workers left there is removed.
    pub(crate) fn open(dir: PathBuf) -> Self {
        tree::sweep(&dir);
        Self { dir, each: 1, ready: Arc::default(), making: Arc::default(), no_room: Arc::default() }
    }

    /// The same, with so many of each repository.
    pub(crate) fn of_each(self, each: usize) -> Self {
        Self { each, ..self }
    }

    fn ready(&self) -> std::sync::MutexGuard<'_, Vec<(Instant, Tree)>> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A spare of a repository.
    pub(crate) fn take(&self, mirror: &Mirror) -> Option<Tree> {
        let mut ready = self.ready();
        let place = ready.iter().position(|(_, tree)| is_of(tree, mirror))?;
        Some(ready.remove(place).1)
    }

    /// Checks out what the repository has too few of, for as long as there is room.
    pub(crate) async fn prepare(
        &self,
        mirror: &Mirror,
        start: &str,
        has_room: impl Fn() -> bool,
    ) -> Result<(), GitError> {
        let _one_at_a_time = self.making.lock().await;
        while !self.no_room.load(Ordering::Relaxed) && has_room() && self.may_have_more(mirror) {
            let name = uuid::Uuid::new_v4().simple().to_string();
            let tree = Tree::bare(mirror, &self.dir.join(name), start).await?;
            tokio::time::sleep(NO_LONGER_NEW).await;
            tree.unchanged()?;
            self.ready().push((Instant::now(), tree));
        }
        Ok(())
    }

    /// Whether one more of a repository may be made. Where there are enough of all together, the repository that has the most
    /// gives its oldest, if it has more than this one would have then.
    fn may_have_more(&self, mirror: &Mirror) -> bool {
        let mut ready = self.ready();
        let count = |of: &Mirror| ready.iter().filter(|(_, tree)| is_of(tree, of)).count();
        let mine = count(mirror);
        if mine >= self.each || ready.len() < MOST.max(self.each) {
            return mine < self.each;
        }
        let most = ready.iter().map(|(_, tree)| count(tree.mirror())).max().unwrap_or_default();
        let Some(place) = ready.iter().position(|(_, tree)| count(tree.mirror()) == most && most > mine + 1) else {
            return false;
        };
        ready.remove(place);
        true
    }

    /// Lets go of those that nobody needed for long.
    pub(crate) fn tidy(&self) {
        self.ready().retain(|(at, _)| at.elapsed() < KEPT_FOR);
    }

    /// Whether there is room for any; where not, they are let go of.
    pub(crate) fn allow(&self, room: bool) {
        self.no_room.store(!room, Ordering::Relaxed);
        if !room {
            self.ready().clear();
        }
    }
}

fn is_of(tree: &Tree, mirror: &Mirror) -> bool {
    let dir = |mirror: &Mirror| -> PathBuf { Path::to_path_buf(mirror.git().dir()) };
    dir(tree.mirror()) == dir(mirror)
}
