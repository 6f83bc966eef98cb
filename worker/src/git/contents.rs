//! The changed files with their new content, as a reviewer may ask for them.

use super::run::entries;
use super::{GitError, Mirror, names};

/// The largest file that is read, in bytes.
const MAX_FILE: u64 = 4 << 20;
/// The most that is read of all files together, in bytes.
const MAX_ALL: u64 = 24 << 20;

/// A file that differs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangedFile {
    /// Its path; the new one where it was renamed.
    pub path: String,
    /// What is in it now.
    pub content: Content,
}

/// What is in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// Text; the target where it is a link.
    Text(String),
    /// No text.
    Binary {
        /// Its size.
        bytes: u64,
    },
    /// More than is read.
    TooLarge {
        /// Its size.
        bytes: u64,
    },
    /// It is no longer there.
    Removed,
    /// A commit of another repository.
    Submodule,
}

impl Mirror {
    /// The files that differ between two commits, with their content in the second.
    pub async fn contents(&self, from: &str, to: &str) -> Result<Vec<ChangedFile>, GitError> {
        let args = ["diff-tree", "-r", "-M", "-z", "--raw", "--no-abbrev", names::commit(from)?, names::commit(to)?];
        let mut files = listed(&self.git().ok(&args).await?.stdout);
        let blobs: Vec<String> = files.iter().filter_map(|(_, blob)| blob.clone().ok()).collect();
        let sizes = self.git().with_input(&["cat-file", "--batch-check=%(objectsize)"], asking(&blobs), &[0]).await?;
        let sizes = sizes.line();
        let mut sizes = sizes.lines().map(|size| size.parse::<u64>().unwrap_or(u64::MAX));
        let (mut wanted, mut total) = (Vec::new(), 0);
        for (_, blob) in &mut files {
            let Ok(name) = blob else { continue };
            let bytes = sizes.next().unwrap_or(u64::MAX);
            if bytes <= MAX_FILE && total + bytes <= MAX_ALL {
                total += bytes;
                wanted.push(name.clone());
            } else {
                *blob = Err(Content::TooLarge { bytes });
            }
        }
        let read = self.git().with_input(&["cat-file", "--batch"], asking(&wanted), &[0]).await?.stdout;
        let mut contents = blobs_in(&read).into_iter();
        let file = |(path, blob): (String, Result<String, Content>)| {
            let content = match blob {
                Ok(_) => contents.next().map_or(Content::Removed, text_or_binary),
                Err(other) => other,
            };
            ChangedFile { path, content }
        };
        Ok(files.into_iter().map(file).collect())
    }
}

/// One object on each line.
pub(super) fn asking(blobs: &[String]) -> Vec<u8> {
    blobs.iter().flat_map(|blob| [blob.as_str(), "\n"]).collect::<String>().into_bytes()
}

/// Reads `:100644 100644 <old> <new> M`, NUL, path, NUL; of a rename two paths.
fn listed(raw: &[u8]) -> Vec<(String, Result<String, Content>)> {
    let mut parts = entries(raw).into_iter();
    let mut files = Vec::new();
    while let Some(entry) = parts.next() {
        let fields: Vec<&str> = entry.trim_start_matches(':').split(' ').collect();
        let [_, mode, _, blob, status] = fields[..] else { continue };
        let Some(mut path) = parts.next() else { break };
        if status.starts_with(['R', 'C']) {
            path = parts.next().unwrap_or(path);
        }
        let content = match (status, mode) {
            ("D", _) => Err(Content::Removed),
            (_, "160000") => Err(Content::Submodule),
            _ => Ok(blob.to_owned()),
        };
        files.push((path, content));
    }
    files
}

/// Reads `<object> blob <size>`, newline, content, newline.
pub(super) fn blobs_in(mut batch: &[u8]) -> Vec<&[u8]> {
    let mut blobs = Vec::new();
    while let Some(end) = batch.iter().position(|b| *b == b'\n') {
        let head = String::from_utf8_lossy(&batch[..end]);
        let size = head.rsplit(' ').next().and_then(|size| size.parse::<usize>().ok());
        let Some(blob) = size.and_then(|size| batch.get(end + 1..end + 1 + size)) else { break };
        blobs.push(blob);
        batch = batch.get(end + 2 + blob.len()..).unwrap_or_default();
    }
    blobs
}

/// As git tells them apart: by a NUL near the beginning.
fn text_or_binary(blob: &[u8]) -> Content {
    if blob.iter().take(8_000).any(|b| *b == 0) {
        Content::Binary { bytes: blob.len() as u64 }
    } else {
        Content::Text(String::from_utf8_lossy(blob).into_owned())
    }
}
