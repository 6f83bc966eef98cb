//! Keeps a worker's folder small: mirrors that were not used for longest go where there is too much, and what git can pack
//! is packed.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::GitError;
use super::mirror::{USED, forget_locks};
use super::run::Git;
use super::trash::{discard, empty};

/// How old what a job may still need is at most, as git says it: it names what it made within minutes.
const IN_PROGRESS: &str = "6.hours.ago";

/// A mirror on disk.
struct Kept {
    dir: PathBuf,
    used: SystemTime,
    bytes: u64,
}

/// Removes mirrors until all that a worker's folder holds is within the bound, and packs what is left. One that is in use is
/// never removed; where that is not enough, it is rid of what no attempt of the last hours made. `allow` is told whether
/// there is room for what can be done without: that goes first.
pub(crate) async fn keep(folder: &Path, max_bytes: u64, allow: impl FnOnce(bool) + Send + 'static) {
    let folder = folder.to_owned();
    let evicted = tokio::task::spawn_blocking(move || {
        allow(taken(&folder) <= max_bytes);
        evict(&folder, max_bytes)
    })
    .await;
    let (left, is_above) = evicted.unwrap_or_default();
    for dir in left {
        if let Err(error) = pack(&dir, is_above).await {
            tracing::warn!(dir = %dir.display(), %error, "a mirror could not be tidied up");
        }
    }
}

/// Removes the oldest that nobody uses; gives those that stay, and whether there is too much all the same.
fn evict(folder: &Path, max_bytes: u64) -> (Vec<PathBuf>, bool) {
    let mirrors = folder.join("mirrors");
    empty(&mirrors);
    let mut all: Vec<Kept> = std::fs::read_dir(&mirrors)
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
    let mut total = taken(folder);
    all.retain(|kept| {
        if total <= max_bytes || !discard_unused(&kept.dir) {
            return true;
        }
        tracing::info!(dir = %kept.dir.display(), bytes = kept.bytes, "removed a mirror that was not used for longest");
        total -= kept.bytes;
        false
    });
    if total > max_bytes {
        tracing::warn!(bytes = total, max_bytes, "what is in use is larger than workspace.max_bytes allows");
    }
    (all.into_iter().map(|kept| kept.dir).collect(), total > max_bytes)
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

/// What a worker's folder takes up, in bytes: the trees of jobs and what is checked out ahead count as well, and not what is
/// being removed.
fn taken(folder: &Path) -> u64 {
    size(folder).saturating_sub(size(&folder.join("trash")))
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

/// Packs a mirror where git finds it worth it. What nothing refers to goes after two weeks, as git has it, and where room is
/// needed after [`IN_PROGRESS`].
async fn pack(dir: &Path, needs_room: bool) -> Result<(), GitError> {
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
    let how = if needs_room { format!("--prune={IN_PROGRESS}") } else { "--auto".to_owned() };
    git.ok(&["-c", "gc.auto=6700", "-c", "gc.autoDetach=false", "gc", "--quiet", &how]).await.map(drop)
}
