//! Removes folders without making anybody wait: they are moved aside at once and removed by another thread.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// The folder for what is to be removed, beside the one that it lay in.
fn trash_of(folder: &Path) -> PathBuf {
    folder.with_file_name("trash")
}

/// Moves folders of one parent aside and removes them in the background. What a process that ends leaves there is removed
/// by the next one that starts.
pub(super) fn discard(folders: &[&Path]) {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let mut moved = Vec::new();
    for folder in folders {
        let Some(trash) = folder.parent().map(trash_of) else { continue };
        let aside = trash.join(format!("{}-{}", uuid::Uuid::new_v4().simple(), NEXT.fetch_add(1, Ordering::Relaxed)));
        let _ = std::fs::create_dir_all(&trash);
        match std::fs::rename(folder, &aside) {
            Ok(()) => moved.push(aside),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            // On another disk, or full: then whoever asked waits.
            Err(_) => remove(folder),
        }
    }
    if !moved.is_empty() {
        std::thread::spawn(move || moved.iter().for_each(|folder| remove(folder)));
    }
}

/// Removes, in the background, what was moved aside from a folder and is still there.
pub(super) fn empty(folder: &Path) {
    let left: Vec<PathBuf> =
        std::fs::read_dir(trash_of(folder)).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    if !left.is_empty() {
        std::thread::spawn(move || left.iter().for_each(|folder| remove(folder)));
    }
}

/// Removes a folder, also where an agent left folders in it that may not be written.
pub(super) fn remove(dir: &Path) {
    // More than once: a process that was killed a moment ago may still have written a file.
    if (0..3).any(|_| std::fs::remove_dir_all(dir).is_ok() || dir.symlink_metadata().is_err()) {
        return;
    }
    let mut folders = vec![dir.to_owned()];
    while let Some(folder) = folders.pop() {
        let _ = std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o700));
        let Ok(entries) = std::fs::read_dir(&folder) else { continue };
        folders.extend(entries.flatten().filter(|e| e.file_type().is_ok_and(|t| t.is_dir())).map(|e| e.path()));
    }
    if let Err(error) = std::fs::remove_dir_all(dir)
        && dir.symlink_metadata().is_ok()
    {
        tracing::warn!(dir = %dir.display(), %error, "a folder could not be removed");
    }
}
