//! What is free on a disk, while something runs and afterwards: asked of the disk, since a failing test may print any words.

use std::path::Path;
use std::time::Duration;

use nix::sys::statvfs::statvfs;

/// With less free nothing that a gate says can be trusted.
const NOTHING: u64 = 16 << 20;
/// What a gate wrote last may be gone again when it has ended: where it says that the disk is full, this is little enough to
/// believe it.
const LITTLE: u64 = 1 << 30;

/// How often it is looked while a command runs.
const LOOK: Duration = Duration::from_millis(250);

/// What can still be written on the disk of a folder, in bytes; nothing where it does not tell.
pub(crate) fn free(folder: &Path) -> Option<u64> {
    Room::at(folder).map(|room| room.bytes)
}

/// Ends when less than this is free on the disk of a folder.
pub(crate) async fn below(folder: &Path, bytes: u64) {
    while free(folder).is_none_or(|free| free >= bytes) {
        tokio::time::sleep(LOOK).await;
    }
}

/// What is free on a disk.
#[derive(Debug, Clone, Copy)]
struct Room {
    bytes: u64,
    /// Files that can still be made; nothing where the disk does not count them.
    files: Option<u64>,
}

impl Room {
    fn at(path: &Path) -> Option<Self> {
        let disk = statvfs(path).ok()?;
        // A part is root's alone.
        let is_root = nix::unistd::geteuid().is_root();
        let blocks = if is_root { disk.blocks_free() } else { disk.blocks_available() };
        let files = (disk.files() > 0).then(|| if is_root { disk.files_free() } else { disk.files_available() });
        Some(Self { bytes: blocks.saturating_mul(disk.fragment_size()), files })
    }

    fn is_full(self, is_said: bool) -> bool {
        self.files == Some(0) || self.bytes < if is_said { LITTLE } else { NOTHING }
    }
}

/// Whether the disk of a tree is full, or the one for temporary files, which in the sandbox is the tree's. `said` is what a
/// failed gate printed last.
pub(crate) fn is_full(tree: &Path, has_own_tmp: bool, said: &str) -> bool {
    let is_said = said.contains("No space left on device");
    let tmp = (!has_own_tmp).then(std::env::temp_dir);
    [Some(tree), tmp.as_deref()].into_iter().flatten().filter_map(Room::at).any(|room| room.is_full(is_said))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_disk_is_believed_and_words_only_where_little_is_left() {
        let files = Some(1_000);
        for (bytes, files, silent, said) in [
            (0, files, true, true),
            (NOTHING - 1, files, true, true),
            (NOTHING, files, false, true),
            (LITTLE - 1, None, false, true),
            (LITTLE, files, false, false),
            (LITTLE, None, false, false),
            (LITTLE, Some(0), true, true),
        ] {
            let room = Room { bytes, files };
            assert_eq!((room.is_full(false), room.is_full(true)), (silent, said), "{room:?}");
        }
    }

    #[test]
    fn a_disk_can_be_asked() {
        let folder = tempfile::tempdir().unwrap();
        assert!(Room::at(folder.path()).unwrap().bytes > 0);
        assert!(Room::at(Path::new("/no/such/folder")).is_none());
    }
}
