//! Keeps the mirrors small: those that were not used for longest go where there are too many, and what git can pack is
//! packed.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::GitError;
use super::mirror::{USED, forget_locks};
use super::run::Git;
use super::trash::{discard, empty};

/// A mirror on disk.
struct Kept {
    dir: PathBuf,
    used: SystemTime,
    bytes: u64,
}

/// Removes mirrors until the rest is within the bound, and packs what is left. One that is in use is never removed.
pub(crate) async fn keep(mirrors: &Path, max_bytes: u64) {
    let folder = mirrors.to_owned();
    let left = tokio::task::spawn_blocking(move || evict(&folder, max_bytes)).await.unwrap_or_default();
    for dir in left {
        if let Err(error) = pack(&dir).await {
            tracing::warn!(dir = %dir.display(), %error, "a mirror could not be tidied up");
        }
    }
}

/// Removes the oldest that nobody uses; gives those that stay.
fn evict(mirrors: &Path, max_bytes: u64) -> Vec<PathBuf> {
    empty(mirrors);
    let mut all: Vec<Kept> = std::fs::read_dir(mirrors)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|e| e == "git"))
        .map(|dir| {
            let used = dir.with_extension(USED).metadata().and_then(|m| m.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
            Kept { bytes: size(&dir), used, dir }
        })
        .collect();
    all.sort_by_key(|kept| kept.used);
    let mut total: u64 = all.iter().map(|kept| kept.bytes).sum();
    all.retain(|kept| {
        if total <= max_bytes || !discard_unused(&kept.dir) {
            return true;
        }
        tracing::info!(dir = %kept.dir.display(), bytes = kept.bytes, "removed a mirror that was not used for longest");
        total -= kept.bytes;
        false
    });
    if total > max_bytes {
        tracing::warn!(bytes = total, max_bytes, "the mirrors in use are larger than workspace.max_bytes allows");
    }
    all.into_iter().map(|kept| kept.dir).collect()
}

/// Removes a mirror if nobody uses it. Who opens it meanwhile waits and makes it anew.
fn discard_unused(dir: &Path) -> bool {
    let used = std::fs::OpenOptions::new().create(true).truncate(false).write(true).open(dir.with_extension(USED));
    let Ok(used) = used else { return false };
    if used.try_lock().is_err() {
        return false;
    }
    discard(&[dir]);
    !dir.exists()
}

/// What a folder takes up, in bytes.
fn size(dir: &Path) -> u64 {
    let (mut folders, mut bytes) = (vec![dir.to_owned()], 0);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(found) if found.is_dir() => folders.push(entry.path()),
                Ok(found) => bytes += found.len(),
                Err(_) => {}
            }
        }
    }
    bytes
}

/// Packs a mirror where git finds it worth it. What nothing refers to goes after two weeks, as git has it: a job in
/// progress has made its commits since.
async fn pack(dir: &Path) -> Result<(), GitError> {
    let git = Git::new(dir, "a mirror");
    {
        // What a fetch brings is read under the same lock. Attempt branches are fetched again where they are needed.
        let _lock = super::mirror::locked(dir.with_extension("lock")).await?;
        let args = ["for-each-ref", "--format=delete %(refname)", "refs/refile/refile%2F*"];
        let attempts = git.ok(&args).await?.stdout;
        if !attempts.is_empty() {
            forget_locks(dir);
            git.with_input(&["update-ref", "--stdin"], attempts, &[0]).await?;
        }
    }
    // The last setting wins: calls of other kinds never start this by themselves.
    git.ok(&["-c", "gc.auto=6700", "-c", "gc.autoDetach=false", "gc", "--auto", "--quiet"]).await.map(drop)
}
