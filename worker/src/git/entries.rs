//! What a change consists of, entry by entry, as the diff policy judges it.

use std::collections::{BTreeMap, BTreeSet};

use super::contents::{asking, blobs_in};
use super::run::entries;
use super::{GitError, Mirror, Tree, names};

/// The largest text that is read: of a link its target, of `.gitmodules` all.
const MAX_TEXT: u64 = 64 << 10;

/// What an entry is after the change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// A file.
    File {
        /// Its size.
        bytes: u64,
        /// Whether git takes it for binary.
        is_binary: bool,
    },
    /// A symbolic link and what it leads to.
    Link(String),
    /// A commit of another repository.
    Submodule,
    /// It is no longer there.
    Gone,
}

/// One path that differs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its path.
    pub path: String,
    /// What is there now.
    pub kind: Kind,
    /// Of a `.gitmodules` its text, where it is not too long to be one.
    pub text: Option<String>,
}

impl Mirror {
    /// All that differs between two commits; a renamed file is one that is gone and one that is new.
    pub async fn entries(&self, from: &str, to: &str) -> Result<Vec<Entry>, GitError> {
        // First every entry as `:100644 100644 <old> <new> M`, NUL, path, NUL; then the counted lines of each.
        let args = ["diff-tree", "-r", "-z", "--raw", "--numstat", "--no-abbrev", "--no-renames", "--no-ext-diff"];
        let args = [args.as_slice(), &["--no-textconv", names::commit(from)?, names::commit(to)?]].concat();
        let told = self.git().ok(&args).await?.stdout;
        let (mut found, mut binaries) = (Vec::new(), BTreeSet::new());
        let mut parts = entries(&told).into_iter();
        while let Some(head) = parts.next() {
            let Some(fields) = head.strip_prefix(':') else {
                binaries.extend(head.strip_prefix("-\t-\t").map(str::to_owned));
                continue;
            };
            let fields: Vec<&str> = fields.split(' ').collect();
            let ([_, mode, _, blob, status], Some(path)) = (&fields[..], parts.next()) else { continue };
            let blob = (*status != "D" && *mode != "160000").then(|| (*blob).to_owned());
            found.push((path, (*mode).to_owned(), blob));
        }
        if found.is_empty() {
            return Ok(Vec::new());
        }
        let blobs: Vec<String> = found.iter().filter_map(|(_, _, blob)| blob.clone()).collect();
        let sizes = self.git().with_input(&["cat-file", "--batch-check=%(objectsize)"], asking(&blobs), &[0]).await?;
        let sizes = sizes.line();
        let sizes: BTreeMap<&String, u64> =
            blobs.iter().zip(sizes.lines().map(|size| size.parse().unwrap_or(u64::MAX))).collect();
        let size = |blob: &Option<String>| blob.as_ref().and_then(|blob| sizes.get(blob)).copied().unwrap_or(0);
        let is_text = |(path, mode, blob): &&(String, String, Option<String>)| {
            blob.is_some() && (mode == "120000" || is_modules(path)) && size(blob) <= MAX_TEXT
        };
        let wanted: Vec<String> = found.iter().filter(is_text).filter_map(|(_, _, blob)| blob.clone()).collect();
        let read = if wanted.is_empty() {
            Vec::new()
        } else {
            self.git().with_input(&["cat-file", "--batch"], asking(&wanted), &[0]).await?.stdout
        };
        let texts: BTreeMap<&String, String> =
            wanted.iter().zip(blobs_in(&read).into_iter().map(|b| String::from_utf8_lossy(b).into_owned())).collect();
        let entry = |(path, mode, blob): &(String, String, Option<String>)| {
            let text = blob.as_ref().and_then(|blob| texts.get(blob)).cloned();
            let kind = match (mode.as_str(), blob) {
                ("160000", _) => Kind::Submodule,
                (_, None) => Kind::Gone,
                // One that is too long to be read leads nowhere that would be allowed.
                ("120000", _) => Kind::Link(text.clone().unwrap_or_else(|| "/".to_owned())),
                _ => Kind::File { bytes: size(blob), is_binary: binaries.contains(path) },
            };
            Entry { path: path.clone(), kind, text: text.filter(|_| is_modules(path)) }
        };
        Ok(found.iter().map(entry).collect())
    }
}

/// Whether a path is one where git looks for submodules, on any system.
pub(crate) fn is_modules(path: &str) -> bool {
    path.eq_ignore_ascii_case(".gitmodules")
}

impl Tree {
    /// Those of the paths that the repository keeps with Git LFS: what lies in the tree for them are pointers.
    pub async fn kept_with_lfs(&self, paths: &[String]) -> Result<Vec<String>, GitError> {
        let has_attributes = |path: &String| {
            self.dir()
                .join(path)
                .ancestors()
                .skip(1)
                .take_while(|dir| dir.starts_with(self.dir()))
                .any(|dir| dir.join(".gitattributes").exists())
        };
        if !paths.iter().any(has_attributes) {
            return Ok(Vec::new());
        }
        let input: Vec<u8> = paths.iter().flat_map(|path| [path.as_str(), "\0"]).collect::<String>().into_bytes();
        let told = self.git().with_input(&["check-attr", "-z", "--stdin", "filter"], input, &[0]).await?.entries();
        Ok(told.chunks(3).filter(|c| c.get(2).is_some_and(|v| v == "lfs")).map(|c| c[0].clone()).collect())
    }
}
