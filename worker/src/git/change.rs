//! Snapshots, diffs, patch ids and merges. All of it works on objects; nothing is checked out.

use super::run::entries;
use super::{GitError, Mirror, names};

/// Two commits brought together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Merge {
    /// The merged tree; files in conflict hold conflict markers.
    pub tree: String,
    /// The files in conflict.
    pub conflicts: Vec<String>,
}

impl Mirror {
    /// Makes a commit of a tree on top of another commit.
    pub async fn commit(&self, tree: &str, parent: &str, message: &str) -> Result<String, GitError> {
        let args = ["commit-tree", names::commit(tree)?, "-p", names::commit(parent)?, "-F", "-"];
        Ok(self.git().with_input(&args, message.as_bytes().to_vec(), &[0]).await?.line())
    }

    /// The tree of a commit.
    pub async fn tree_of(&self, commit: &str) -> Result<String, GitError> {
        let tree = format!("{}^{{tree}}", names::commit(commit)?);
        Ok(self.git().ok(&["rev-parse", "--verify", "--end-of-options", &tree]).await?.line())
    }

    /// The diff between two commits or trees, as a reviewer reads it.
    pub async fn diff(&self, from: &str, to: &str) -> Result<Vec<u8>, GitError> {
        let args = ["diff-tree", "-r", "-p", "-M", "--no-ext-diff", "--no-textconv", "--no-color"];
        let ends = [names::commit(from)?, names::commit(to)?];
        Ok(self.git().ok(&[args.as_slice(), &ends].concat()).await?.stdout)
    }

    /// The files that differ; a renamed one counts once.
    pub async fn files(&self, from: &str, to: &str) -> Result<Vec<String>, GitError> {
        let args = ["diff-tree", "-r", "-M", "-z", "--name-only", names::commit(from)?, names::commit(to)?];
        Ok(self.git().ok(&args).await?.entries())
    }

    /// `git patch-id --verbatim` of the diff; empty where the diff is.
    pub async fn patch_id(&self, from: &str, to: &str) -> Result<String, GitError> {
        // Whole ids, since those are what tells one binary file from another.
        let args =
            ["diff-tree", "-r", "-p", "--no-renames", "--no-ext-diff", "--no-textconv", "--no-color", "--full-index"];
        let ends = [names::commit(from)?, names::commit(to)?];
        let diff = self.git().ok(&[args.as_slice(), &ends].concat()).await?.stdout;
        let id = self.git().with_input(&["patch-id", "--verbatim"], diff, &[0]).await?.line();
        Ok(id.split_whitespace().next().unwrap_or_default().to_owned())
    }

    /// Merges two commits.
    pub async fn merge(&self, ours: &str, theirs: &str) -> Result<Merge, GitError> {
        let ends = [names::commit(ours)?, names::commit(theirs)?];
        let args = ["merge-tree", "--write-tree", "-z", "--name-only", "--no-messages"];
        let merged = self.git().with_input(&[args.as_slice(), &ends].concat(), Vec::new(), &[0, 1]).await?;
        let mut parts = entries(&merged.stdout).into_iter();
        let tree = parts.next().unwrap_or_default();
        names::commit(&tree)?;
        Ok(Merge { tree, conflicts: if merged.code == 1 { parts.collect() } else { Vec::new() } })
    }

    /// Those of the files that still hold conflict markers in a commit or tree.
    pub async fn with_markers(&self, tree: &str, files: &[String]) -> Result<Vec<String>, GitError> {
        if files.is_empty() {
            return Ok(Vec::new());
        }
        let mut args: Vec<String> =
            ["grep", "-z", "-l", "-I", "-E", "-e", "^(<<<<<<<|>>>>>>>)( |$)"].map(str::to_owned).into();
        args.extend([names::commit(tree)?.to_owned(), "--".to_owned()]);
        args.extend(files.iter().map(|path| format!(":(top,literal){path}")));
        let found = self.git().with_input(&args, Vec::new(), &[0, 1]).await?;
        let name = |entry: String| entry.split_once(':').map_or_else(String::new, |(_, path)| path.to_owned());
        Ok(found.entries().into_iter().map(name).collect())
    }
}
