//! What a landing makes: a change brought onto another commit, and the commits that it becomes there.

use std::time::{SystemTime, UNIX_EPOCH};

use super::run::Output;
use super::{GitError, Merge, Mirror, names};

/// A commit as it is written down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// Its id.
    pub commit: String,
    /// The commit before it; the first one, where it has several.
    pub parent: String,
    /// Who wrote it and when, as git writes that.
    pub author: String,
    /// Its message.
    pub message: String,
}

impl Mirror {
    /// What was changed between two commits, brought onto another.
    ///
    /// Only that is brought, whatever the three have in common: where a branch was put back, what it lost does not come
    /// back with a change that was made before.
    pub async fn bring(&self, onto: &str, from: &str, to: &str) -> Result<Merge, GitError> {
        if names::commit(onto)? == names::commit(from)? {
            return Ok(Merge { tree: self.tree_of(to).await?, conflicts: Vec::new() });
        }
        // A commit that holds what `onto` holds and comes directly after `from`: then `from` is where the two parted.
        let tree = format!("{onto}^{{tree}}");
        let beside = self.git().with_input(&["commit-tree", &tree, "-p", from, "-F", "-"], Vec::new(), &[0]).await?;
        self.merge(&beside.line(), to).await
    }

    /// Makes a commit that brings two together.
    pub async fn commit_merge(&self, tree: &str, first: &str, second: &str, message: &str) -> Result<String, GitError> {
        let (tree, first, second) = (names::commit(tree)?, names::commit(first)?, names::commit(second)?);
        let args = ["commit-tree", tree, "-p", first, "-p", second, "-F", "-"];
        Ok(self.git().with_input(&args, message.as_bytes().to_vec(), &[0]).await?.line())
    }

    /// Makes a commit whose author is somebody else's word: that of [`Written::author`].
    pub async fn commit_by(&self, tree: &str, parent: &str, author: &str, message: &str) -> Result<String, GitError> {
        let (tree, parent) = (names::commit(tree)?, names::commit(parent)?);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let text = format!(
            "tree {tree}\nparent {parent}\nauthor {author}\ncommitter Refile <refile@localhost> {now} +0000\n\n{message}"
        );
        let args = ["hash-object", "-t", "commit", "-w", "--stdin"];
        Ok(self.git().with_input(&args, text.into_bytes(), &[0]).await?.line())
    }

    /// The commits that lead from one to another, the oldest first; of a merge the side that it was made on.
    pub async fn commits(&self, from: &str, to: &str) -> Result<Vec<Written>, GitError> {
        let range = format!("{}..{}", names::commit(from)?, names::commit(to)?);
        let listed = self.git().ok(&["rev-list", "--first-parent", "--reverse", &range, "--"]).await?;
        let mut commits = Vec::new();
        for commit in listed.line().lines() {
            let object = self.git().ok(&["cat-file", "commit", names::commit(commit)?]).await?;
            commits.extend(written(commit, &object));
        }
        Ok(commits)
    }

    /// Whether a commit is another one, or lies before it.
    pub async fn is_before(&self, commit: &str, other: &str) -> Result<bool, GitError> {
        let args = ["merge-base", "--is-ancestor", names::commit(commit)?, names::commit(other)?];
        Ok(self.git().with_input(&args, Vec::new(), &[0, 1]).await?.code == 0)
    }

    /// The attempt branches of the remote, of all tasks.
    pub async fn all_attempt_branches(&self) -> Result<Vec<String>, GitError> {
        self.branches("refile/").await
    }
}

/// Reads a commit; nothing where it has no commit before it.
fn written(commit: &str, object: &Output) -> Option<Written> {
    let text = String::from_utf8_lossy(&object.stdout).into_owned();
    let (head, message) = text.split_once("\n\n").unwrap_or((&text, ""));
    let line = |key: &str| head.lines().find_map(|line| line.strip_prefix(key)).map(str::to_owned);
    Some(Written {
        commit: commit.to_owned(),
        parent: line("parent ")?,
        author: line("author ")?,
        message: message.to_owned(),
    })
}
