//! Pushes: compare and swap, and what is said where one is turned down.

use std::path::Path;

use super::mirror::{Mirror, lock};
use super::{GitError, names};

/// What a branch must be for a push to change it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected<'a> {
    /// Not there yet, or already as it shall be.
    Absent,
    /// At this commit.
    At(&'a str),
}

/// How a push ended that the remote did not refuse for a reason of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Push {
    /// The branch is at the commit.
    Done,
    /// The branch is not what was expected, and was left alone.
    Moved,
}

impl Mirror {
    /// Puts a branch of the remote at a commit, if it is what is expected: compare and swap.
    pub async fn push(&self, commit: &str, branch: &str, expected: Expected<'_>) -> Result<Push, GitError> {
        names::commit(commit)?;
        names::branch(branch)?;
        let old = match expected {
            Expected::Absent => "",
            Expected::At(old) => names::commit(old)?,
        };
        let lease = format!("--force-with-lease=refs/heads/{branch}:{old}");
        let refspec = format!("{commit}:refs/heads/{branch}");
        let mut args = vec!["push", "--porcelain", "--no-verify", "--no-follow-tags", &lease];
        let mut _turn = None;
        if names::is_local(&self.url) {
            _turn = self.turn().await;
            // Brings a clean work tree along where the branch is checked out, and refuses where it is not clean.
            args.push("--receive-pack=git -c receive.denyCurrentBranch=updateInstead receive-pack");
        }
        args.extend(["--end-of-options", &self.url, &refspec]);
        let error = match self.git.with_input(&args, Vec::new(), &[0, 1]).await {
            Ok(output) if output.code == 0 => return Ok(Push::Done),
            Ok(output) => {
                let reason = rejection(&output.line());
                let moved =
                    ["stale info", "fetch first", "non-fast-forward", "failed to update ref", "cannot lock ref"];
                // A lock that somebody's crash left behind looks like a branch that moves, for ever.
                let is_locked = output.stderr.contains("File exists");
                let said = said(&output.stderr);
                if !is_locked && moved.iter().any(|m| reason.contains(m)) {
                    return Ok(Push::Moved);
                }
                GitError::Refused {
                    url: names::shown(&self.url),
                    branch: branch.to_owned(),
                    reason: advice(if reason.is_empty() || is_locked { output.stderr } else { reason + &said }),
                }
            }
            Err(error) => error,
        };
        Err(self.explain(error, branch).await)
    }

    /// Removes branches of the remote.
    pub async fn delete(&self, branches: &[String]) -> Result<(), GitError> {
        if branches.is_empty() {
            return Ok(());
        }
        let mut args = vec!["push".to_owned(), "--quiet".to_owned(), "--no-verify".to_owned()];
        args.extend(["--end-of-options".to_owned(), self.url.clone()]);
        for branch in branches {
            args.push(format!(":refs/heads/{}", names::branch(branch)?));
        }
        self.git.ok(&args).await.map(drop)
    }

    /// The turn to push to a repository of this machine, of all its workers: git brings a work tree along before it moves
    /// the branch, and of two that push at once the loser would leave its files there. The lock is on the folder, so that
    /// nothing is added to a repository of somebody else's. Where it cannot be had, the push tells why.
    async fn turn(&self) -> Option<std::fs::File> {
        let folder = Path::new(self.url.strip_prefix("file://").unwrap_or(&self.url));
        let git = folder.join(".git");
        let folder = if git.is_dir() { git } else { folder.to_path_buf() };
        lock(move || std::fs::File::open(folder)).await.ok()
    }
}

/// The words in brackets behind the `!` of `git push --porcelain`.
fn rejection(porcelain: &str) -> String {
    porcelain
        .lines()
        .filter_map(|line| line.strip_prefix("!\t"))
        .filter_map(|line| line.split('\t').nth(1))
        .collect::<Vec<_>>()
        .join("; ")
}

/// What the server's hooks said of a push, as the end of a sentence.
fn said(stderr: &str) -> String {
    const LINES: usize = 20;
    let lines = stderr.lines().filter_map(|line| line.trim_start().strip_prefix("remote:"));
    let words: Vec<&str> = lines.map(str::trim).filter(|line| !line.is_empty()).take(LINES).collect();
    if words.is_empty() { String::new() } else { format!("; it says: {}", words.join("\n  ")) }
}

fn advice(reason: String) -> String {
    let is_dirty =
        ["unstaged changes", "staged changes", "Working directory", "untracked", "Could not update working tree"]
            .iter()
            .any(|words| reason.contains(words));
    if is_dirty {
        return format!(
            "{reason}\n  the branch is checked out there, and the files are not clean: commit or stash them there"
        );
    }
    if reason.contains("declined") || reason.contains("protected branch") {
        return format!("{reason}\n  a rule or a hook there turned the push down: let this worker push to the branch");
    }
    if reason.contains("File exists") {
        return format!(
            "{reason}\n  a git that crashed may have left the lock: where none runs there, remove the file"
        );
    }
    reason
}
