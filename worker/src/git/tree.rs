//! The folder that an attempt works in: plain files, with an index of the host's outside of it.
//!
//! It is no linked worktree: that would share the mirror's configuration and hooks with the agent. For the agent's
//! comfort it has a throw-away `.git` of its own, whose branch is at the base and whose index holds what the attempt
//! starts with, so that `git diff HEAD` shows all that the change amounts to. The host writes that folder once, before
//! any agent runs, and never reads it.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::run::Git;
use super::{GitError, Mirror, names};

/// What the name of the folder beside a tree ends with.
const SIDE: &str = "side";
/// The lock's file in the folder beside a tree.
const LOCK: &str = "lock";

/// A tree on disk; it and what lies beside it are removed when this is dropped.
#[derive(Debug)]
pub struct Tree {
    dir: PathBuf,
    side: PathBuf,
    git: Git,
    base: String,
    /// Held for as long as the tree is in use; the system gives it back when the process dies.
    _lock: std::fs::File,
}

/// How old what a dead worker left must be to be removed: one that is being made has no lock yet.
const LEFT_FOR: Duration = Duration::from_mins(1);

/// Removes the trees in a folder that no living process uses.
pub fn sweep(trees: &Path) {
    let Ok(entries) = std::fs::read_dir(trees) else { return };
    for side in entries.flatten().map(|entry| entry.path()).filter(|p| p.extension().is_some_and(|e| e == SIDE)) {
        let is_old =
            side.metadata().and_then(|m| m.modified()).is_ok_and(|at| at.elapsed().is_ok_and(|t| t > LEFT_FOR));
        let is_free = || match std::fs::File::open(side.join(LOCK)) {
            Ok(lock) => lock.try_lock().is_ok(),
            Err(_) => true,
        };
        if is_old && is_free() {
            remove(&side.with_extension(""));
            remove(&side);
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
        let (branch, base, start) = (names::branch(branch)?, names::commit(base)?, names::commit(start)?);
        let side = side_of(dir);
        for folder in [dir, side.as_path()] {
            remove(folder);
            std::fs::create_dir_all(folder).map_err(GitError::folder("make", folder))?;
        }
        let lock = side.join(LOCK);
        let lock = std::fs::File::create(&lock)
            .and_then(|file| file.lock().map(|()| file))
            .map_err(GitError::folder("lock", &lock))?;
        let index = side.join("index");
        let git = mirror.git().with_tree(dir, &index);
        let tree = Self { dir: dir.to_owned(), side, git, base: base.to_owned(), _lock: lock };
        tree.git.ok(&["read-tree", start]).await?;
        tree.git.ok(&["checkout-index", "--all", "--force", "--quiet", "--index"]).await?;
        tree.make_comfortable(mirror, branch).await?;
        Ok(tree)
    }

    /// Makes the agent's own `.git`.
    async fn make_comfortable(&self, mirror: &Mirror, branch: &str) -> Result<(), GitError> {
        let own = self.dir.join(".git");
        Git::new(&own, "the attempt's tree").ok(&["init", "--quiet", "--template="]).await?;
        let objects =
            std::path::absolute(mirror.git().dir().join("objects")).map_err(GitError::folder("find", &own))?;
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
            std::fs::copy(self.side.join("index"), own.join("index"))
        };
        write().map(drop).map_err(GitError::folder("write", &own))
    }

    /// The folder that the agent works in.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The commit that the change is made on.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// Writes a file beside the tree, where no snapshot sees it, and gives its path.
    pub fn put_beside(&self, name: &str, content: &[u8]) -> Result<PathBuf, GitError> {
        let path = self.side.join(name);
        std::fs::write(&path, content).map_err(GitError::folder("write", &path))?;
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
        tokio::task::spawn_blocking(move || forget_nested_repositories(&dir))
            .await
            .unwrap_or_else(|error| Err(std::io::Error::other(error)))
            .map_err(GitError::folder("read", &self.dir))?;
        let mut args = vec!["add".to_owned(), "--all".to_owned(), "--".to_owned(), ".".to_owned()];
        args.extend(kept.iter().map(|path| format!(":(top,exclude,literal){path}")));
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
        remove(&self.dir);
        remove(&self.side);
    }
}

/// Removes every `.git` below the top, so that git takes what lies there for plain files.
///
/// Git would run `git status` inside a nested repository, with the filters that its configuration names.
fn forget_nested_repositories(dir: &Path) -> std::io::Result<()> {
    let mut folders = vec![dir.to_owned()];
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
            if entry.file_name().eq_ignore_ascii_case(".git") {
                if folder != dir {
                    if kind.is_dir() { remove(&entry.path()) } else { std::fs::remove_file(entry.path())? }
                }
            } else if kind.is_dir() {
                folders.push(entry.path());
            }
        }
    }
    Ok(())
}

/// Removes a folder, also where an agent left folders in it that may not be written.
fn remove(dir: &Path) {
    // More than once: a process that was killed a moment ago may still have written a file.
    if (0..3).any(|_| std::fs::remove_dir_all(dir).is_ok() || dir.symlink_metadata().is_err()) {
        return;
    }
    let mut folders = vec![dir.to_owned()];
    while let Some(folder) = folders.pop() {
        let _ = std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o700));
        let Ok(entries) = std::fs::read_dir(&folder) else { continue };
        folders.extend(entries.flatten().filter(|e| e.file_type().is_ok_and(|t| t.is_dir())).map(|e| e.path()));
    }
    if let Err(error) = std::fs::remove_dir_all(dir) {
        tracing::warn!(dir = %dir.display(), %error, "a tree could not be removed");
    }
}
