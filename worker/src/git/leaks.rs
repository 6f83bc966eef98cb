//! Secrets in a change: an agent may write down what it was given.

use super::contents::{asking, blobs_in};
use super::run::entries;
use super::{GitError, Mirror, names};

/// The largest file that is searched, and the most that is read at once, in bytes.
const MAX_READ: u64 = 48 << 20;

/// A secret that a change holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leak {
    /// The file that holds it.
    pub path: String,
    /// The variable whose value it is.
    pub name: String,
}

/// A text that is looked for, and the variable that holds it.
type Value = (String, String);

impl Mirror {
    /// Where the files that were added or changed, their names or the targets of links hold one of these values, each with
    /// the name of its variable. What stands in the base already is no secret: a setting such as `production` is passed on
    /// in the same way.
    pub async fn leaks(&self, from: &str, to: &str, values: &[Value]) -> Result<Vec<Leak>, GitError> {
        if values.is_empty() {
            return Ok(Vec::new());
        }
        let args = ["diff-tree", "-r", "-z", "--raw", "--no-abbrev", "--no-renames", names::commit(from)?];
        let told = self.git().ok(&[args.as_slice(), &[names::commit(to)?]].concat()).await?.stdout;
        let mut files: Vec<(String, String)> = Vec::new();
        let mut parts = entries(&told).into_iter();
        while let (Some(head), Some(path)) = (parts.next(), parts.next()) {
            let fields: Vec<&str> = head.trim_start_matches(':').split(' ').collect();
            let [_, mode, _, blob, status] = fields[..] else { continue };
            if status != "D" && mode != "160000" {
                files.push((path, blob.to_owned()));
            }
        }
        let blobs: Vec<String> = files.iter().map(|(_, blob)| blob.clone()).collect();
        let sizes = self.git().with_input(&["cat-file", "--batch-check=%(objectsize)"], asking(&blobs), &[0]).await?;
        let sizes: Vec<u64> = sizes.line().lines().map(|size| size.parse().unwrap_or(u64::MAX)).collect();
        let mut found = Vec::new();
        let (mut group, mut total) = (Vec::new(), 0);
        for ((path, blob), size) in files.into_iter().zip(sizes) {
            found.extend(held(path.as_bytes(), values).map(|name| Leak { path: path.clone(), name }));
            if size > MAX_READ {
                continue;
            }
            if total + size > MAX_READ {
                found.extend(self.search(&std::mem::take(&mut group), values).await?);
                total = 0;
            }
            total += size;
            group.push((path, blob));
        }
        found.extend(self.search(&group, values).await?);
        if !found.is_empty() {
            let known = self.known(from, values).await?;
            found.retain(|leak| !known.contains(&leak.name));
        }
        Ok(found)
    }

    /// Searches files, each a path and its blob.
    async fn search(&self, files: &[(String, String)], values: &[Value]) -> Result<Vec<Leak>, GitError> {
        let blobs: Vec<String> = files.iter().map(|(_, blob)| blob.clone()).collect();
        let read = self.git().with_input(&["cat-file", "--batch"], asking(&blobs), &[0]).await?.stdout;
        let leaks = files.iter().zip(blobs_in(&read));
        let leaks =
            leaks.flat_map(|((path, _), blob)| held(blob, values).map(|name| Leak { path: path.clone(), name }));
        Ok(leaks.collect())
    }

    /// Those of the values, by their names, that stand in a commit's files.
    async fn known(&self, commit: &str, values: &[Value]) -> Result<Vec<String>, GitError> {
        let mut known = Vec::new();
        for (name, value) in values.iter().filter(|(_, value)| !value.contains(['\n', '\0'])) {
            // On standard input, where nobody sees it.
            let args = ["grep", "-q", "-a", "-F", "-f", "-", names::commit(commit)?];
            if self.git().with_input(&args, value.clone().into_bytes(), &[0, 1]).await?.code == 0 {
                known.push(name.clone());
            }
        }
        Ok(known)
    }
}

/// The names of those of the values that some bytes hold.
fn held(bytes: &[u8], values: &[Value]) -> impl Iterator<Item = String> {
    let holds = |value: &str| bytes.windows(value.len()).any(|part| part == value.as_bytes());
    values.iter().filter(move |(_, value)| holds(value)).map(|(name, _)| name.clone())
}
