//! Control groups: one for each command, so that its memory and its processes are bounded together.
//!
//! Version 2 where it was delegated to this process or to the group above it (systemd: `Delegate=yes` with
//! `DelegateSubgroup=`); of version 1 the number of processes alone.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// What the folder of a command begins with; the process id of the worker follows.
const PREFIX: &str = "refile-";

/// Folders that could not be removed yet: what was killed in them was not gone.
static LEFT: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Where groups can be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Parent {
    dir: PathBuf,
    /// Whether memory is bounded too.
    pub(super) bounds_memory: bool,
}

/// The group of one command; it is removed when this is dropped.
#[derive(Debug)]
pub struct Group {
    /// Its folder.
    pub(super) dir: PathBuf,
}

/// Finds where this process may make groups; `own` is `/proc/self/cgroup`.
pub(super) fn find(root: &Path, own: &str) -> Option<Parent> {
    let path_of = |controller: &str| {
        own.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            let is_it = parts.next()?.split(',').any(|c| c == controller);
            is_it.then(|| parts.next().unwrap_or("/").trim_start_matches('/').to_owned())
        })
    };
    let mut candidates = Vec::new();
    if root.join("cgroup.controllers").exists() {
        let at = root.join(path_of("")?);
        candidates.extend(at.parent().filter(|p| p.starts_with(root)).map(Path::to_path_buf));
        candidates.insert(0, at);
        for dir in &candidates {
            // Refused in a group that has processes of its own.
            let _ = fs::write(dir.join("cgroup.subtree_control"), "+pids +memory");
        }
    } else {
        candidates.push(root.join("pids").join(path_of("pids")?));
    }
    candidates.into_iter().find_map(|dir| {
        sweep(&dir);
        let tried = Group { dir: dir.join(format!("{PREFIX}{}-try", std::process::id())) };
        fs::create_dir(&tried.dir).ok()?;
        let can = |file: &str| fs::OpenOptions::new().write(true).open(tried.dir.join(file)).is_ok();
        (can("pids.max") && can("cgroup.procs")).then(|| Parent { dir, bounds_memory: can("memory.max") })
    })
}

/// Removes what killed workers left.
fn sweep(dir: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let of = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
        if of.is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists()) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

impl Parent {
    /// A new group with its bounds; 0 is none.
    pub(super) fn group(&self, processes: u64, memory_bytes: u64) -> std::io::Result<Group> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        LEFT.lock().unwrap_or_else(PoisonError::into_inner).retain(|dir| fs::remove_dir(dir).is_err() && dir.exists());
        let name = format!("{PREFIX}{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let group = Group { dir: self.dir.join(name) };
        fs::create_dir(&group.dir)?;
        if processes > 0 {
            fs::write(group.dir.join("pids.max"), processes.to_string())?;
        }
        if memory_bytes > 0 && self.bounds_memory {
            fs::write(group.dir.join("memory.max"), memory_bytes.to_string())?;
            // Where there is swap: all of the bound at once.
            let _ = fs::write(group.dir.join("memory.oom.group"), "1");
        }
        Ok(group)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Of version 2: ends what left the process group too.
        let _ = fs::OpenOptions::new()
            .write(true)
            .open(self.dir.join("cgroup.kill"))
            .and_then(|mut file| std::io::Write::write_all(&mut file, b"1"));
        if fs::remove_dir(&self.dir).is_err() && self.dir.exists() {
            LEFT.lock().unwrap_or_else(PoisonError::into_inner).push(std::mem::take(&mut self.dir));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_none_where_none_can_be_made() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(find(root.path(), "0::/\n"), None);
        assert_eq!(find(root.path(), "8:pids:/x\n"), None);
        // A plain folder makes no `pids.max`.
        fs::create_dir_all(root.path().join("pids/x")).unwrap();
        assert_eq!(find(root.path(), "8:pids:/x\n"), None);
        assert_eq!(fs::read_dir(root.path().join("pids/x")).unwrap().count(), 0);
    }
}
