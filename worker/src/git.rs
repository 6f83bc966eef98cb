//! The only place that runs git.
//!
//! # Layout
//! - [`run`]: one call of git, with a fixed environment and configuration
//! - [`names`]: branches and commits, checked before git sees them
//! - [`mirror`]: the worker's own bare copy of a repository, and what is fetched into it
//! - [`push`]: compare and swap on the remote's branches
//! - [`tree`]: the folder that an attempt works in
//! - `leavings`: what an agent left that git must not come across
//! - `trash`: removes trees and mirrors without making anybody wait
//! - `housekeeping`: keeps the mirrors small
//! - [`change`]: snapshots, diffs, patch ids and merges
//! - [`contents`]: the changed files as they are now
//! - [`leaks`]: secrets in a change
//! - [`entries`]: what a change consists of
//! - [`history`]: what the commits of a branch tell
//! - [`landing`](mod@landing): what a landing makes: a change brought onto another commit, and the commits there
//!
//! The host's git works with the mirror as its `GIT_DIR` and an index outside the tree. It never reads what lies in a
//! tree's `.git`: an agent may have written hooks, filters and monitors there.

pub mod run;
pub mod names;
pub mod mirror;
pub mod push;
pub mod tree;
mod leavings;
mod trash;
pub(crate) mod housekeeping;
pub mod change;
pub mod contents;
pub mod leaks;
pub mod entries;
pub mod history;
pub mod landing;

pub use change::Merge;
pub use contents::{ChangedFile, Content};
pub use leaks::Leak;
pub use leavings::{Refused, Why};
pub use mirror::{Mirror, require_branch};
pub use push::{Expected, Push};
pub use tree::Tree;

use refile_core::failure::{Failure, FailureKind};

use crate::process::ProcessError;

/// Why git did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum GitError {
    /// Git itself could not be run.
    #[error("git cannot be run: {0}")]
    Run(#[from] ProcessError),
    /// Git is older than what is used here.
    #[error("{told} is too old; install git {oldest} or newer")]
    TooOld {
        /// What it said of itself.
        told: String,
        /// What it must be at least.
        oldest: String,
    },
    /// A name that is no branch.
    #[error("`{0}` is not a branch name that is safe to use; choose one of letters, digits, `-`, `_`, `.` and `/`")]
    Branch(String),
    /// A text that is no commit.
    #[error("`{0}` is not the full id of a commit")]
    Commit(String),
    /// A repository's address that git might take for something else.
    #[error("`{0}` is not the address of a repository; give a path, or a URL with file, http, https, ssh or git")]
    Address(String),
    /// There is no repository.
    #[error("there is no git repository at {url}: {stderr}\n  correct the task's repository, or {advice}")]
    NoRepository {
        /// Where it was looked for.
        url: String,
        /// What git said.
        stderr: String,
        /// What else may be done.
        advice: String,
    },
    /// There is no such branch.
    #[error("{url} has no branch `{branch}`; {}", existing(branch, branches))]
    NoBranch {
        /// The repository.
        url: String,
        /// The branch that was looked for.
        branch: String,
        /// The branches that there are.
        branches: Vec<String>,
    },
    /// The remote refused a push.
    #[error("{url} refused the push to `{branch}`: {reason}")]
    Refused {
        /// The repository.
        url: String,
        /// The branch.
        branch: String,
        /// What it said.
        reason: String,
    },
    /// Whoever holds the repository does not know this worker, or not any more.
    #[error(
        "{url} does not let this worker in: {stderr}\n  its token, password or key is missing, has expired or lacks the right: {advice}"
    )]
    Denied {
        /// The repository.
        url: String,
        /// What git said.
        stderr: String,
        /// Where a new one goes.
        advice: String,
    },
    /// Git ended with an error.
    #[error("git {what} on {place} {exit}: {stderr}")]
    Failed {
        /// The subcommand.
        what: String,
        /// The repository.
        place: String,
        /// How it ended.
        exit: String,
        /// What git said.
        stderr: String,
    },
    /// Git gave more than can be held.
    #[error("git {what} gave more than {limit} bytes; the change is too large to be judged, make it smaller")]
    TooLarge {
        /// The subcommand.
        what: String,
        /// The most that is read.
        limit: usize,
    },
    /// A file or folder of the worker could not be used.
    #[error("cannot {what} {place}: {source}; check the worker's folder (workers.dir) and the space on its disk")]
    Folder {
        /// What was tried.
        what: &'static str,
        /// The path.
        place: String,
        /// Why.
        source: std::io::Error,
    },
}

fn existing(branch: &str, branches: &[String]) -> String {
    const SHOWN: usize = 10;
    if branch.starts_with("refile/") {
        return "it was removed there, or the task's address now leads to another repository: start another attempt"
            .to_owned();
    }
    if branches.is_empty() {
        return "it has no branches at all: commit something there first".to_owned();
    }
    let more = if branches.len() > SHOWN { ", …" } else { "" };
    let shown = branches.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ");
    format!("it has {shown}{more}: set the task's base, or `repository.base`, to one of them")
}

/// The oldest git that has all that is used here: `merge-tree --write-tree` (2.38), `patch-id --verbatim` (2.39).
const OLDEST: (u32, u32) = (2, 39);

/// Holds that git is there and new enough.
pub async fn require_version() -> Result<(), GitError> {
    let told = run::Git::new(std::path::Path::new("/"), "git").ok(&["version"]).await?.line();
    match version(&told) {
        Some(found) if found < OLDEST => Err(GitError::TooOld { told, oldest: format!("{}.{}", OLDEST.0, OLDEST.1) }),
        _ => Ok(()),
    }
}

/// Reads `git version 2.39.5 (…)`; nothing where a vendor words it in another way.
fn version(told: &str) -> Option<(u32, u32)> {
    let mut numbers = told.strip_prefix("git version ")?.split('.').map(|n| n.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

impl GitError {
    /// The failure that a record keeps.
    pub fn failure(&self) -> Failure {
        let kind = match self {
            Self::Run(_) | Self::Folder { .. } => FailureKind::Configuration,
            Self::Denied { .. } => FailureKind::Auth,
            _ => FailureKind::Repository,
        };
        Failure::new(kind, self.to_string())
    }

    pub(crate) fn folder(what: &'static str, place: &std::path::Path) -> impl FnOnce(std::io::Error) -> Self {
        let place = place.display().to_string();
        move |source| Self::Folder { what, place, source }
    }
}

#[cfg(test)]
mod tests {
    use super::version;

    #[test]
    fn versions_are_read_and_odd_ones_are_let_in() {
        assert_eq!(version("git version 2.39.5"), Some((2, 39)));
        assert_eq!(version("git version 2.34.1 (Apple Git-137)"), Some((2, 34)));
        assert_eq!(version("git 3"), None);
    }

    #[tokio::test]
    async fn the_git_of_this_machine_is_new_enough() {
        super::require_version().await.unwrap();
    }
}
