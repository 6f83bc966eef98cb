//! The folder that an attempt works in: plain files, with an index of the host's outside of it.
//!
//! It is no linked worktree: that would share the mirror's configuration and hooks with the agent. For the agent's
//! comfort it has a throw-away `.git` of its own, whose branch is at the base and whose index holds what the attempt
//! starts with, so that `git diff HEAD` shows all that the change amounts to. The host writes that folder once, before
//! any agent runs, and never reads it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::run::Git;
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
    /// Paths that git would not take, or that it would take for its own.
    refused: Mutex<Vec<String>>,
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
        tree.make_comfortable(branch).await?;
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
        Ok(tree)
    }

    /// Makes one that was checked out ahead that of an attempt: what differs is brought along.
    pub(crate) async fn turn_into(
        mut self,
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
        (self.dir, self.side) = (dir.to_owned(), side);
        self.git = self.mirror.git().with_tree(dir, &self.side.join(INDEX));
        names::commit(base)?.clone_into(&mut self.base);
        if start != self.start {
            self.git.ok(&["read-tree", "-m", "-u", &self.start, start]).await?;
            start.clone_into(&mut self.start);
        }
        self.make_comfortable(branch).await?;
        Ok(self)
    }

    /// The mirror that it was checked out from.
    pub(crate) fn mirror(&self) -> &Mirror {
        &self.mirror
    }

    /// Makes the agent's own `.git`.
    async fn make_comfortable(&self, branch: &str) -> Result<(), GitError> {
        let own = self.dir.join(".git");
        Git::new(&own, "the attempt's tree").ok(&["init", "--quiet", "--template="]).await?;
        let objects = self.borrowed();
        let head = own.join("refs/heads").join(branch);
        let config = "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n\tlogallrefupdates = true\n\
                      [user]\n\tname = Refile\n\temail = refile@localhost\n[gc]\n\tauto = 0\n";
        let write = || {
            std::fs::create_dir_all(own.join("objects/info"))?;
            std::fs::create_dir_all(head.parent().unwrap_or(&own))?;
            std::fs::write(own.join("objects/info/alternates"), format!("{}\n", objects.display()))?;
            std::fs::write(&head, format!("{}\n", self.base))?;
            std::fs::write(own.join("HEAD"), format!("ref: refs/heads/{branch}\n"))?;
            std::fs::write(own.join("config"), config)?;
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

    /// Paths that the last [`Tree::write`] left out: git would take them for its own, or does not take them at all.
    pub fn refused(&self) -> Vec<String> {
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

    /// What lies in the folder now, as a git tree: new files included, ignored ones not.
    pub async fn write(&self) -> Result<String, GitError> {
        if !self.dir.symlink_metadata().is_ok_and(|m| m.is_dir()) {
            let gone = std::io::Error::other("the agent removed or replaced it");
            return Err(GitError::folder("read", &self.dir)(gone));
        }
        let kept = self.submodules().await?;
        let dir = self.dir.clone();
        let odd = tokio::task::spawn_blocking(move || forget_nested_repositories(&dir))
            .await
            .unwrap_or_else(|error| Err(std::io::Error::other(error)))
            .map_err(GitError::folder("read", &self.dir))?;
        let mut args = vec!["add".to_owned(), "--all".to_owned(), "--".to_owned(), ".".to_owned()];
        args.extend(kept.iter().chain(&odd).map(|path| format!(":(top,exclude,literal){path}")));
        *self.refused.lock().unwrap_or_else(PoisonError::into_inner) = odd;
        self.git.ok(&args).await?;
        Ok(self.git.ok(&["write-tree"]).await?.line())
    }

    /// Paths of submodules. An attempt does not change them: git would look into them for what they are at.
    async fn submodules(&self) -> Result<Vec<String>, GitError> {
        let staged = self.git.ok(&["ls-files", "--stage", "-z"]).await?.entries();
        let paths = staged.iter().filter(|e| e.starts_with("160000 ")).filter_map(|e| e.split_once('\t'));
        Ok(paths.map(|(_, path)| path.to_owned()).collect())
    }
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

/// Removes every `.git` below the top, so that git takes what lies there for plain files, and gives the paths that look to
/// git as if they were one: it does not add them.
///
/// Git would run `git status` inside a nested repository, with the filters that its configuration names.
fn forget_nested_repositories(dir: &Path) -> std::io::Result<Vec<String>> {
    let (mut folders, mut odd) = (vec![dir.to_owned()], Vec::new());
    while let Some(folder) = folders.pop() {
        let entries = match std::fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(error) if folder == dir => return Err(error),
            // Git says so itself where it matters.
            Err(_) => continue,
        };
        for entry in entries {
            let entry = entry?;
            let kind = entry.file_type()?;
            let name = entry.file_name();
            if name.eq_ignore_ascii_case(".git") {
                if folder != dir {
                    if kind.is_dir() { remove(&entry.path()) } else { std::fs::remove_file(entry.path())? }
                }
            } else if names::is_like_git(&name.to_string_lossy()) {
                let path = entry.path();
                odd.push(path.strip_prefix(dir).unwrap_or(&path).to_string_lossy().into_owned());
            } else if kind.is_dir() {
                folders.push(entry.path());
            }
        }
    }
    Ok(odd)
}
