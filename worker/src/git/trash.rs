//! Removes folders without making anybody wait: they are moved aside at once and removed by another thread.
//!
//! What is removed was written by an agent: folders may lie thousands deep, with paths that are longer than any that can be
//! opened, and links may lead anywhere. So nothing is called once for each level, at most three files are open at a time,
//! nothing is followed, and every name is one within an open folder.

use std::ffi::{CStr, CString, OsStr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use nix::dir::{Dir, Type};
use nix::errno::Errno;
use nix::fcntl::{OFlag, openat, renameat};
use nix::sys::stat::{FchmodatFlags, Mode, fchmod, fchmodat};
use nix::unistd::{UnlinkatFlags, unlinkat};

/// How a folder is opened: as one and never by a link.
pub(super) const FOLDER: OFlag = OFlag::O_DIRECTORY.union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);

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
    in_background(moved);
}

/// Removes, in the background, what was moved aside from a folder and is still there.
pub(super) fn empty(folder: &Path) {
    in_background(
        std::fs::read_dir(trash_of(folder)).into_iter().flatten().flatten().map(|entry| entry.path()).collect(),
    );
}

/// Removes folders in a thread of its own. Where none can be had they stay: the next process that starts removes them.
fn in_background(folders: Vec<PathBuf>) {
    if folders.is_empty() {
        return;
    }
    let remove_all = move || folders.iter().for_each(|folder| remove(folder));
    if let Err(error) = std::thread::Builder::new().name("trash".to_owned()).spawn(remove_all) {
        tracing::warn!(%error, "no thread could be started; what is to be removed stays until the next start");
    }
}

/// Removes a folder with all that is in it, whatever an agent left there.
pub(super) fn remove(dir: &Path) {
    let (Some(parent), Some(name)) = (dir.parent(), dir.file_name()) else { return };
    let removed = match std::fs::File::open(parent) {
        Ok(parent) => remove_at(parent.as_fd(), name),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    };
    // Another process may have removed it meanwhile.
    if let Err(error) = removed.or_else(|e| if e.kind() == std::io::ErrorKind::NotFound { Ok(()) } else { Err(e) }) {
        tracing::warn!(dir = %dir.display(), %error, "a folder could not be removed");
    }
}

/// Removes what has this name in an open folder, whatever it is.
pub(super) fn remove_at(parent: BorrowedFd<'_>, name: &OsStr) -> std::io::Result<()> {
    let name = CString::new(name.as_encoded_bytes())?;
    // More than once: a process that was killed a moment ago may still have written a file.
    let mut tried = try_to_remove(parent, &name);
    for _ in 0..2 {
        if tried.is_err() {
            tried = try_to_remove(parent, &name);
        }
    }
    Ok(tried?)
}

fn try_to_remove(parent: BorrowedFd<'_>, name: &CStr) -> nix::Result<()> {
    if unlink(parent, name)? {
        return Ok(());
    }
    let top = match open_folder(parent, name) {
        Err(Errno::ENOENT) => return Ok(()),
        top => top?,
    };
    let mut heap = Heap { top: &top, mark: uuid::Uuid::new_v4().simple().to_string(), folders: Vec::new(), next: 0 };
    heap.clear(None)?;
    while let Some(name) = heap.folders.pop() {
        heap.clear(Some(&name))?;
        remove_empty(top.as_fd(), &name)?;
    }
    remove_empty(parent, name)
}

/// A folder that is removed. The folders in it are brought to its top before they are emptied, so that none is ever deeper.
struct Heap<'a> {
    top: &'a OwnedFd,
    /// What the names begin with that folders get there; nothing that an agent wrote has one of them.
    mark: String,
    /// The folders at the top.
    folders: Vec<CString>,
    next: u64,
}

impl Heap<'_> {
    /// Removes the files of one of the folders at the top and brings its folders there; of the top itself the same.
    fn clear(&mut self, name: Option<&CStr>) -> nix::Result<()> {
        let opened = open_folder(self.top.as_fd(), name.unwrap_or(c"."))?;
        let mut folder = Dir::from_fd(opened)?;
        let mut found: Vec<(CString, Option<Type>)> = Vec::new();
        for entry in folder.iter() {
            let entry = entry?;
            if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
                found.push((entry.file_name().to_owned(), entry.file_type()));
            }
        }
        for (entry, kind) in found {
            if kind != Some(Type::Directory) && unlink(folder.as_fd(), &entry)? {
                continue;
            }
            if name.is_none() {
                self.folders.push(entry);
            } else if unlinkat(folder.as_fd(), entry.as_c_str(), UnlinkatFlags::RemoveDir).is_err() {
                self.bring_up(folder.as_fd(), &entry)?;
            }
        }
        Ok(())
    }

    /// Moves a folder to the top.
    fn bring_up(&mut self, folder: BorrowedFd<'_>, name: &CStr) -> nix::Result<()> {
        let new = CString::new(format!("{}-{}", self.mark, self.next)).unwrap_or_default();
        self.next += 1;
        let rename = || renameat(folder, name, self.top, new.as_c_str());
        if let Err(Errno::EACCES | Errno::EPERM) = rename() {
            // Only one that may be written can be moved.
            let _ = fchmodat(folder, name, Mode::S_IRWXU, FchmodatFlags::NoFollowSymlink);
            rename()?;
        }
        self.folders.push(new);
        Ok(())
    }
}

/// Removes a file, a link or anything else that is no folder; says whether it did. What is not there is as good as removed.
fn unlink(folder: BorrowedFd<'_>, name: &CStr) -> nix::Result<bool> {
    let unlink = || unlinkat(folder, name, UnlinkatFlags::NoRemoveDir);
    let mut done = unlink();
    if done == Err(Errno::EACCES) {
        // An agent may have made the folder one that may not be written.
        let _ = fchmod(folder, Mode::S_IRWXU);
        done = unlink();
    }
    match done {
        Ok(()) | Err(Errno::ENOENT) => Ok(true),
        // Linux says the one of a folder, and POSIX the other.
        Err(Errno::EISDIR | Errno::EPERM) => Ok(false),
        Err(error) => Err(error),
    }
}

fn remove_empty(folder: BorrowedFd<'_>, name: &CStr) -> nix::Result<()> {
    match unlinkat(folder, name, UnlinkatFlags::RemoveDir) {
        Err(Errno::EACCES) => {
            let _ = fchmod(folder, Mode::S_IRWXU);
            unlinkat(folder, name, UnlinkatFlags::RemoveDir)
        }
        Err(Errno::ENOENT) => Ok(()),
        done => done,
    }
}

/// Opens a folder that will be emptied, and sees to it that it can be.
fn open_folder(parent: BorrowedFd<'_>, name: &CStr) -> nix::Result<OwnedFd> {
    let open = || openat(parent, name, FOLDER, Mode::empty());
    let opened = match open() {
        Err(Errno::EACCES) => {
            let _ = fchmodat(parent, name, Mode::S_IRWXU, FchmodatFlags::NoFollowSymlink);
            open()?
        }
        other => other?,
    };
    let _ = fchmod(&opened, Mode::S_IRWXU);
    Ok(opened)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn links_are_removed_and_not_followed_and_closed_folders_go_too() {
        let place = tempfile::tempdir().unwrap();
        let (dir, kept) = (place.path().join("dir"), place.path().join("kept"));
        std::fs::create_dir_all(dir.join("a/b/c")).unwrap();
        std::fs::create_dir(&kept).unwrap();
        std::fs::write(kept.join("file"), "x").unwrap();
        for at in ["link", "a/link", "a/b/c/link"] {
            symlink(&kept, dir.join(at)).unwrap();
        }
        nix::unistd::mkfifo(&dir.join("a/pipe"), Mode::S_IRWXU).unwrap();
        for at in ["a/b/c", "a/b", "a"] {
            std::fs::set_permissions(dir.join(at), std::fs::Permissions::from_mode(0o000)).unwrap();
        }
        remove(&dir);
        assert!(!dir.exists());
        assert_eq!(std::fs::read_to_string(kept.join("file")).unwrap(), "x");
        // A link in its place is removed alone; what is not there is no failure.
        symlink(&kept, &dir).unwrap();
        remove(&dir);
        remove(&dir);
        assert!(dir.symlink_metadata().is_err() && kept.join("file").exists());
    }
}
