//! What the commits of a branch tell: which one landed a task, and which ones were taken back.

use std::collections::BTreeSet;

use super::{GitError, Mirror, names};

/// What `git revert` writes before the commit that it takes back.
const REVERTS: &str = "This reverts commit ";

impl Mirror {
    /// The newest commit reachable from `head`, and not from any of `without`, that carries the trailer.
    pub async fn with_trailer(
        &self,
        head: &str,
        without: &[&str],
        key: &str,
        value: &str,
    ) -> Result<Option<String>, GitError> {
        let format = format!("--format=%H%x09%(trailers:key={key},valueonly=true,separator=%x09)");
        let mut args = vec!["log".to_owned(), "-z".to_owned(), format, names::commit(head)?.to_owned()];
        for commit in without {
            args.push(format!("^{}", names::commit(commit)?));
        }
        args.push("--".to_owned());
        let log = self.git().ok(&args).await?.entries();
        let carries = |entry: &&String| entry.split('\t').skip(1).any(|v| v.trim() == value);
        Ok(log.iter().find(carries).and_then(|e| e.split('\t').next()).map(|commit| commit.trim().to_owned()))
    }

    /// The values of a trailer on those commits that were taken back on the way to `head`, as `git revert` words it. What
    /// was taken back and brought again by reverting the revert is not among them.
    pub async fn reverted(&self, head: &str, key: &str) -> Result<BTreeSet<String>, GitError> {
        let grep = format!("--grep=^{REVERTS}");
        let args = ["log", "-z", "--topo-order", &grep, "--format=%H%n%B", names::commit(head)?, "--"];
        let mut reverted: BTreeSet<String> = BTreeSet::new();
        // Newest first: a revert that was taken back itself is known as such before it is read.
        for entry in self.git().ok(&args).await?.entries() {
            let (commit, message) = entry.split_once('\n').unwrap_or((&entry, ""));
            if !reverted.contains(commit) {
                reverted.extend(message.lines().filter_map(reverts).map(str::to_owned));
            }
        }
        let format = format!("--format=%(trailers:key={key},valueonly=true,separator=%x09)");
        let args = ["log", "-z", "--no-walk=unsorted", "--ignore-missing", "--stdin", &format];
        if reverted.is_empty() {
            return Ok(reverted);
        }
        let ids = reverted.into_iter().collect::<Vec<_>>().join("\n");
        let found = self.git().with_input(&args, ids.into_bytes(), &[0]).await?.entries();
        Ok(found.iter().flat_map(|e| e.split('\t')).map(|v| v.trim().to_owned()).filter(|v| !v.is_empty()).collect())
    }
}

/// The commit that a line of a message says is taken back.
fn reverts(line: &str) -> Option<&str> {
    let id = line.strip_prefix(REVERTS)?.split(|c: char| !c.is_ascii_hexdigit()).next()?;
    names::commit(id).ok()
}
