//! Where a worker keeps its files: mirrors of repositories, and the trees of the jobs that are going on.

use std::path::{Path, PathBuf};

use refile_core::TaskId;

use crate::git::{GitError, Mirror, Tree};

/// A worker's folder. Several processes may share one.
#[derive(Debug, Clone)]
pub struct Workspace {
    dir: PathBuf,
}

/// What one claim of a job is about; names its tree and its branch.
#[derive(Debug, Clone, Copy)]
pub struct Claim<'a> {
    /// The task.
    pub task: &'a TaskId,
    /// The phase.
    pub phase: &'a str,
    /// The attempt.
    pub attempt: u32,
    /// The claim's fence.
    pub fence: u64,
}

impl Workspace {
    /// A worker's folder; it is made where it is missing.
    pub fn open(dir: &Path) -> Result<Self, GitError> {
        std::fs::create_dir_all(dir).map_err(GitError::folder("make", dir))?;
        let dir = dir.canonicalize().map_err(GitError::folder("find", dir))?;
        Ok(Self { dir })
    }

    /// The folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The mirror of a repository.
    pub async fn mirror(&self, url: &str) -> Result<Mirror, GitError> {
        Mirror::open(&self.dir.join("mirrors"), url).await
    }

    /// A new tree for a claim.
    pub async fn tree(
        &self,
        mirror: &Mirror,
        claim: Claim<'_>,
        branch: &str,
        base: &str,
        start: &str,
    ) -> Result<Tree, GitError> {
        let Claim { task, phase, attempt, fence } = claim;
        // A phase's name may hold a slash; a folder's may not.
        let name = format!("{task}-{}-{attempt}-{fence}", phase.replace(['/', '\\'], "-"));
        Tree::check_out(mirror, &self.dir.join("trees").join(name), branch, base, start).await
    }
}
