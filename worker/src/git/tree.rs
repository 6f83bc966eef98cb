//! The folder that an attempt works in: plain files, with an index of the host's outside of it.
//!
//! It is no linked worktree: that would share the mirror's configuration and hooks with the agent. For the agent's
//! comfort it has a throw-away `.git` of its own, whose branch is at the base and whose index holds what the attempt
//! starts with, so that `git diff HEAD` shows all that the change amounts to. The host writes that folder once, before
//! any agent runs, and never reads it.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::leavings::{Leavings, Refused, Why, clear};
use super::run::{Git, pieces};
use super::trash::{self, discard, remove};
use super::{GitError, Mirror, names};
use crate::process::{GIVEN, Guard, Reach, Sandbox};

/// What the name of the folder beside a tree ends with.
const SIDE: &str = "side";
/// The index in the folder beside a tree.
const INDEX: &str = "index";
/// The lock's file there.
const LOCK: &str = "lock";

/// A tree on disk; it and what lies beside it are removed when this is dropped.
#[derive(Debug)]
pub struct Tree {
    dir: PathBuf,
    side: PathBuf,
    git: Git,
    base: String,
    /// What it was checked out from, a commit or a tree.
    start: String,
    guard: Option<Arc<Guard>>,
    /// The repository that the tree borrows from: it is not removed while the tree is there.
    mirror: Mirror,
    /// What git was not given, or did not take.
    refused: Mutex<Vec<Refused>>,
    /// Held for as long as the tree is in use; the system gives it back when the process dies.
    _lock: std::fs::File,
}

/// How old what a dead worker left must be to be removed: one that is being made has no lock yet.
const LEFT_FOR: Duration = Duration::from_mins(1);

/// Removes the trees in a folder that no living process uses, and what was to be removed before.
pub fn sweep(trees: &Path) {
    trash::empty(trees);
    let Ok(entries) = std::fs::read_dir(trees) else { return };
    for side in entries.flatten().map(|entry| entry.path()).filter(|p| p.extension().is_some_and(|e| e == SIDE)) {
        let is_old =
            side.metadata().and_then(|m| m.modified()).is_ok_and(|at| at.elapsed().is_ok_and(|t| t > LEFT_FOR));
        let is_free = || match std::fs::File::open(side.join(LOCK)) {
            Ok(lock) => lock.try_lock().is_ok(),
            Err(_) => true,
        };
        if is_old && is_free() {
            discard(&[&side.with_extension(""), &side]);
        }
    }
}

impl Tree {
    /// Checks a tree out into a new folder. `start` is a commit or a tree, `base` the commit that the branch is at.
    pub async fn check_out(
        mirror: &Mirror,
        dir: &Path,
        branch: &str,
        base: &str,
        start: &str,
    ) -> Result<Self, GitError> {
        names::branch(branch)?;
        let mut tree = Self::bare(mirror, dir, start).await?;
        names::commit(base)?.clone_into(&mut tree.base);
        tree.settle(branch)?;
        Ok(tree)
    }

    /// Checks the files of a commit or tree out, for an attempt that is still to come.
    pub(crate) async fn bare(mirror: &Mirror, dir: &Path, start: &str) -> Result<Self, GitError> {
        let start = names::commit(start)?;
        let side = side_of(dir);
        for folder in [dir, side.as_path()] {
            remove(folder);
            std::fs::create_dir_all(folder).map_err(GitError::folder("make", folder))?;
        }
        let lock = side.join(LOCK);
        let lock = std::fs::File::create(&lock)
            .and_then(|file| file.lock().map(|()| file))
            .map_err(GitError::folder("lock", &lock))?;
        let tree = Self {
            dir: dir.to_owned(),
            git: mirror.git().with_tree(dir, &side.join(INDEX)),
            side,
            base: String::new(),
            start: start.to_owned(),
            guard: None,
            mirror: mirror.clone(),
            refused: Mutex::default(),
            _lock: lock,
        };
        tree.git.ok(&["read-tree", start]).await?;
        tree.git.ok(&["checkout-index", "--all", "--force", "--quiet", "--index"]).await?;
        tree.make_comfortable().await?;
        Ok(tree)
    }

    /// Makes one that was checked out ahead that of an attempt: what differs is brought along.
    pub(crate) async fn turn_into(
        mut self,
        mirror: &Mirror,
        dir: &Path,
        branch: &str,
        base: &str,
        start: &str,
    ) -> Result<Self, GitError> {
        let (branch, start, side) = (names::branch(branch)?, names::commit(start)?, side_of(dir));
        for (from, to) in [(&self.side, side.as_path()), (&self.dir, dir)] {
            remove(to);
            let folder = to.parent().unwrap_or(to);
            std::fs::create_dir_all(folder).map_err(GitError::folder("make", folder))?;
            std::fs::rename(from, to).map_err(GitError::folder("move", to))?;
        }
        (self.dir, self.side, self.mirror) = (dir.to_owned(), side, mirror.clone());
        self.git = mirror.git().with_tree(dir, &self.side.join(INDEX));
        names::commit(base)?.clone_into(&mut self.base);
        if start != self.start {
            self.git.ok(&["read-tree", "-m", "-u", &self.start, start]).await?;
            start.clone_into(&mut self.start);
        }
        self.settle(branch)?;
        Ok(self)
    }

    /// Tells git that nothing was changed since it was checked out, which must be a second ago: with times in seconds git
    /// reads each file again that is as old as the index.
    pub(crate) fn unchanged(&self) -> Result<(), GitError> {
        let index = self.side.join(INDEX);
        let touched = std::fs::File::options().write(true).open(&index);
        touched
            .and_then(|file| file.set_modified(std::time::SystemTime::now()))
            .map_err(GitError::folder("write", &index))
    }

    /// The mirror that it was checked out from.
    pub(crate) fn mirror(&self) -> &Mirror {
        &self.mirror
    }

    /// Makes the agent's own `.git`, but for its branch and its index.
    async fn make_comfortable(&self) -> Result<(), GitError> {
        let own = self.dir.join(".git");
        Git::new(&own, "the attempt's tree").ok(&["init", "--quiet", "--template="]).await?;
        let config = "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n\tlogallrefupdates = true\n\
                      [user]\n\tname = Refile\n\temail = refile@localhost\n[gc]\n\tauto = 0\n";
        let write = || {
            std::fs::create_dir_all(own.join("objects/info"))?;
            std::fs::write(own.join("objects/info/alternates"), format!("{}\n", self.borrowed().display()))?;
            std::fs::write(own.join("config"), config)
        };
        write().map_err(GitError::folder("write", &own))
    }

    /// Puts the agent's own `.git` on its branch, with the index of what is there now.
    fn settle(&self, branch: &str) -> Result<(), GitError> {
        let own = self.dir.join(".git");
        let head = own.join("refs/heads").join(branch);
        let write = || {
            std::fs::create_dir_all(head.parent().unwrap_or(&own))?;
            std::fs::write(&head, format!("{}\n", self.base))?;
            std::fs::write(own.join("HEAD"), format!("ref: refs/heads/{branch}\n"))?;
            std::fs::copy(self.side.join(INDEX), own.join("index"))
        };
        write().map(drop).map_err(GitError::folder("write", &own))
    }

    /// Git on the tree.
    pub(super) fn git(&self) -> &Git {
        &self.git
    }

    /// The folder that the agent works in.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The commit that the change is made on.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// The mirror's objects, which the agent's own repository borrows.
    fn borrowed(&self) -> PathBuf {
        let objects = self.mirror.git().dir().join("objects");
        std::path::absolute(&objects).unwrap_or(objects)
    }

    /// The same tree, whose commands are confined.
    #[must_use]
    pub fn guarded(mut self, guard: Option<Arc<Guard>>) -> Self {
        self.guard = guard;
        self
    }

    /// The bounds of a command that works here; nothing where the worker sets none. Files that `command` names by absolute
    /// paths can be read.
    pub fn sandbox(&self, command: &[OsString], reach: Reach<'_>) -> Option<Sandbox> {
        let guard = self.guard.as_ref()?;
        Some(guard.sandbox((&self.dir, &self.side), &self.borrowed(), command, reach))
    }

    /// Whether the disk is so full that what runs here is stopped.
    pub(crate) fn lacks_room(&self) -> bool {
        self.guard.as_ref().is_some_and(|guard| guard.lacks_room(&self.side))
    }

    /// What the last [`Tree::write`] left out: no change may hold it, or git does not take it.
    pub fn refused(&self) -> Vec<Refused> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Writes a file beside the tree, where no snapshot sees it and commands may read it, and gives its path.
    pub fn put_beside(&self, name: &str, content: &[u8]) -> Result<PathBuf, GitError> {
        let path = self.side.join(GIVEN).join(name);
        std::fs::create_dir_all(self.side.join(GIVEN))
            .and_then(|()| std::fs::write(&path, content))
            .map_err(GitError::folder("write", &path))?;
        std::path::absolute(&path).map_err(GitError::folder("find", &path))
    }

    /// A file beside the tree that goes with it, and that no command sees.
    pub fn file_beside(&self, name: &str) -> PathBuf {
        self.side.join(name)
    }

    /// What lies in the folder now, as a git tree: new files included, ignored ones not.
    pub async fn write(&self) -> Result<String, GitError> {
        if !self.dir.symlink_metadata().is_ok_and(|m| m.is_dir()) {
            let gone = std::io::Error::other("the agent removed or replaced it");
            return Err(GitError::folder("read", &self.dir)(gone));
        }
        let submodules = self.submodules().await?;
        let (dir, kept) = (self.dir.clone(), submodules.clone());
        let look = move || clear(&dir).map(|found| (found, filled(&dir, &kept)));
        let (found, filled) = tokio::task::spawn_blocking(look)
            .await
            .unwrap_or_else(|error| Err(std::io::Error::other(error)))
            .map_err(GitError::folder("read", &self.dir))?;
        let Leavings { mut refused, unless_ignored } = found;
        refused.extend(filled);
        let ignored = self.ignored(&unless_ignored).await?;
        let is_ours = |(path, _): &(OsString, Why)| !ignored.contains(path.as_bytes());
        refused.extend(unless_ignored.into_iter().filter(is_ours).map(|(path, why)| Refused::new(&path, why)));
        // What git does not take is left out and named, and the rest is taken.
        let mut pathspec = b".\0".to_vec();
        for path in &submodules {
            pathspec.extend([b":(top,exclude,literal)".as_slice(), path.as_bytes(), b"\0"].concat());
        }
        let add = ["add", "--all", "--ignore-errors", "--pathspec-from-file=-", "--pathspec-file-nul"];
        refused.extend(
            self.git.take(&add, pathspec).await?.map(|words| Refused::new(OsStr::new(""), Why::NotTaken(words))),
        );
        *self.refused.lock().unwrap_or_else(PoisonError::into_inner) = refused;
        Ok(self.git.ok(&["write-tree"]).await?.line())
    }

    /// Those of the paths that git ignores.
    async fn ignored(&self, paths: &[(OsString, Why)]) -> Result<BTreeSet<Vec<u8>>, GitError> {
        if paths.is_empty() {
            return Ok(BTreeSet::new());
        }
        let input = paths.iter().map(|(path, _)| [path.as_bytes(), b"\0"].concat()).collect::<Vec<_>>().concat();
        // Where git cannot say so of one, it is said of none.
        let told = self.git.with_input(&["check-ignore", "-z", "--stdin"], input, &[0, 1, 128]).await?;
        Ok(pieces(&told.stdout).filter(|_| told.code == 0).map(<[u8]>::to_vec).collect())
    }

    /// Paths of submodules. An attempt does not change them: git would look into them for what they are at.
    async fn submodules(&self) -> Result<Vec<OsString>, GitError> {
        let staged = self.git.ok(&["ls-files", "--stage", "-z"]).await?.stdout;
        let path = |entry: &[u8]| {
            let at = entry.iter().position(|byte| *byte == b'\t')?;
            Some(OsStr::from_bytes(&entry[at + 1..]).to_owned())
        };
        Ok(pieces(&staged).filter(|entry| entry.starts_with(b"160000 ")).filter_map(path).collect())
    }
}

/// Those of the submodules in whose place something lies: it is no part of the change, and gates would see it. A tree
/// begins with an empty folder for each.
fn filled(dir: &Path, submodules: &[OsString]) -> Vec<Refused> {
    let is_filled = |path: &&OsString| {
        let place = dir.join(path);
        let Ok(there) = place.symlink_metadata() else { return false };
        !there.is_dir() || std::fs::read_dir(place).is_ok_and(|mut entries| entries.next().is_some())
    };
    submodules.iter().filter(is_filled).map(|path| Refused::new(path, Why::InSubmodule)).collect()
}

/// The folder beside a tree: its index, its prompt, its lock.
fn side_of(dir: &Path) -> PathBuf {
    let mut side = dir.as_os_str().to_owned();
    side.push(".");
    side.push(SIDE);
    PathBuf::from(side)
}

impl Drop for Tree {
    fn drop(&mut self) {
        discard(&[&self.dir, &self.side]);
    }
}
