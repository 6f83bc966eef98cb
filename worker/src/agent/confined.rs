//! Files of an attempt's tree, for whoever must not leave it: the built-in tools, and agents that ask their client for files.
//!
//! Every path is opened beneath the tree, each part of it by the system or by hand (`cap-std`): no check of a name can be
//! outrun by a link that an agent puts there. Links that stay inside are followed. `.git` is out of bounds, by whatever way.

use std::io::{self, Read, Write};
use std::path::{Component, Path, PathBuf};

use cap_std::ambient_authority;
use cap_std::fs::{Dir, OpenOptions, OpenOptionsExt};

/// The largest file that is read whole, in bytes.
const LARGEST: u64 = 20 << 20;

/// Why a file is not to be had.
#[derive(Debug, thiserror::Error)]
pub(super) enum FileError {
    /// The path leads out of the tree.
    #[error("`{0}` is outside of the repository; only its files can be reached")]
    Outside(String),
    /// The path leads into git's own files.
    #[error("`{0}` belongs to git and is out of bounds")]
    Git(String),
    /// It is a folder, a pipe, a device.
    #[error("`{0}` is no plain file")]
    NotAFile(String),
    /// It holds bytes that are no text.
    #[error("`{0}` is a binary file of {1} bytes")]
    Binary(String, u64),
    /// It is too large.
    #[error("`{0}` has {1} bytes, more than can be read at once")]
    TooLarge(String, u64),
    /// The system objects.
    #[error("`{path}`: {source}")]
    Io {
        /// The path.
        path: String,
        /// Why.
        source: io::Error,
    },
}

/// The files of one tree.
#[derive(Debug)]
pub(super) struct Confined {
    dir: Dir,
    /// The names by which the tree is known.
    roots: Vec<PathBuf>,
}

impl Confined {
    /// The files below a folder.
    pub(super) fn open(root: &Path) -> io::Result<Self> {
        let roots = vec![root.to_owned(), root.canonicalize()?];
        Ok(Self { dir: Dir::open_ambient_dir(root, ambient_authority())?, roots })
    }

    /// A file's text.
    pub(super) fn read(&self, path: &str) -> Result<String, FileError> {
        let (bytes, size) = self.bytes(path)?;
        if size > LARGEST {
            return Err(FileError::TooLarge(path.to_owned(), size));
        }
        if bytes.contains(&0) {
            return Err(FileError::Binary(path.to_owned(), size));
        }
        String::from_utf8(bytes).map_err(|_| FileError::Binary(path.to_owned(), size))
    }

    /// The beginning of a file and its whole length.
    fn bytes(&self, path: &str) -> Result<(Vec<u8>, u64), FileError> {
        let found = self.existing(path)?;
        let error = |source| of(path, source);
        // A pipe must not hold the worker up.
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(nix::fcntl::OFlag::O_NONBLOCK.bits());
        let file = self.dir.open_with(&found, &options).map_err(error)?;
        let metadata = file.metadata().map_err(error)?;
        if !metadata.is_file() {
            return Err(FileError::NotAFile(path.to_owned()));
        }
        let mut bytes = Vec::new();
        file.take(LARGEST + 1).read_to_end(&mut bytes).map_err(error)?;
        Ok((bytes, metadata.len()))
    }

    /// Writes a whole file; its folders are made where they are missing. It is there whole or not at all, and another name
    /// for the same content (a hard link) keeps what it had.
    pub(super) fn write(&self, path: &str, content: &str) -> Result<(), FileError> {
        let error = |source| of(path, source);
        let wanted = self.inside(path)?;
        let target = match self.existing(path) {
            Ok(found) => found,
            Err(FileError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                let parent = wanted.parent().unwrap_or(Path::new(""));
                let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
                self.dir.create_dir_all(parent).map_err(error)?;
                let parent = self.existing(&parent.to_string_lossy())?;
                parent.join(wanted.file_name().ok_or_else(|| FileError::NotAFile(path.to_owned()))?)
            }
            Err(error) => return Err(error),
        };
        let name = target.file_name().ok_or_else(|| FileError::NotAFile(path.to_owned()))?;
        let parent = target.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let parent = self.dir.open_dir(parent).map_err(error)?;
        let before = parent.symlink_metadata(name).ok();
        if before.as_ref().is_some_and(|m| !m.is_file() && !m.is_symlink()) {
            return Err(FileError::NotAFile(path.to_owned()));
        }
        let temporary = format!(".refile-{}", uuid::Uuid::new_v4().simple());
        let put = || -> io::Result<()> {
            let mut options = OpenOptions::new();
            let mut file = parent.open_with(&temporary, options.write(true).create_new(true))?;
            file.write_all(content.as_bytes())?;
            if let Some(before) = before.filter(cap_std::fs::Metadata::is_file) {
                file.set_permissions(before.permissions())?;
            }
            parent.rename(&temporary, &parent, name)
        };
        put().map_err(|source| {
            // It may not have been made.
            let _ = parent.remove_file(&temporary);
            error(source)
        })
    }

    /// Whether a path is one of the tree's, by its words alone, and none of git's.
    pub(super) fn is_inside(&self, path: &Path) -> bool {
        self.inside(&path.to_string_lossy()).is_ok()
    }

    /// The tree itself, for whoever walks through it.
    pub(super) fn dir(&self) -> &Dir {
        &self.dir
    }

    /// The way to something that is there, without links in it.
    pub(super) fn existing(&self, path: &str) -> Result<PathBuf, FileError> {
        let wanted = self.inside(path)?;
        let wanted = if wanted.as_os_str().is_empty() { Path::new(".") } else { &wanted };
        let found = self.dir.canonicalize(wanted).map_err(|source| of(path, source))?;
        if is_gits(&found) { Err(FileError::Git(path.to_owned())) } else { Ok(found) }
    }

    /// A path as one from the tree's top, by its words alone.
    fn inside(&self, path: &str) -> Result<PathBuf, FileError> {
        let given = Path::new(path.trim());
        let relative = match self.roots.iter().find_map(|root| given.strip_prefix(root).ok()) {
            Some(relative) => relative,
            None if given.is_absolute() => return Err(FileError::Outside(path.to_owned())),
            None => given,
        };
        let mut inside = PathBuf::new();
        for part in relative.components() {
            match part {
                Component::Normal(name) => inside.push(name),
                Component::CurDir => {}
                _ => return Err(FileError::Outside(path.to_owned())),
            }
        }
        if is_gits(&inside) { Err(FileError::Git(path.to_owned())) } else { Ok(inside) }
    }
}

/// Whether a path leads to git's own files, on any system.
pub(super) fn is_gits(path: &Path) -> bool {
    path.components().any(|part| part.as_os_str().eq_ignore_ascii_case(".git"))
}

fn of(path: &str, source: io::Error) -> FileError {
    // Without a number it comes from `cap-std`: a link led out of the tree.
    if source.kind() == io::ErrorKind::PermissionDenied && source.raw_os_error().is_none() {
        return FileError::Outside(path.to_owned());
    }
    FileError::Io { path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    /// A tree beside a secret, with every kind of link in it.
    fn place() -> (tempfile::TempDir, Confined) {
        let place = tempfile::tempdir().unwrap();
        let root = place.path().join("tree");
        for folder in ["tree/src", "tree/.git/hooks", "outside"] {
            std::fs::create_dir_all(place.path().join(folder)).unwrap();
        }
        for (file, text) in [("secret", "s3cret"), ("tree/a.txt", "one\n"), ("tree/.git/config", "git")] {
            std::fs::write(place.path().join(file), text).unwrap();
        }
        std::fs::write(root.join("image.bin"), b"a\0b").unwrap();
        std::fs::hard_link(place.path().join("secret"), root.join("hard")).unwrap();
        for (to, at) in [
            ("../secret", "up"),
            ("/etc/passwd", "absolute"),
            ("../outside", "folder"),
            ("a.txt", "inner"),
            (".git", "git"),
            (".git/config", "src/config"),
            ("../gone", "dangling"),
            ("loop", "loop"),
        ] {
            let to = if at == "src/config" { "../.git/config" } else { to };
            symlink(to, root.join(at)).unwrap();
        }
        nix::unistd::mkfifo(&root.join("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let confined = Confined::open(&root).unwrap();
        (place, confined)
    }

    #[test]
    fn nothing_outside_is_read_or_written() {
        let (place, files) = place();
        let absolute = place.path().join("secret").display().to_string();
        let sly = format!("{}/../secret", place.path().join("tree").display());
        for path in
            ["../secret", "src/../../secret", "/etc/passwd", "up", "absolute", "folder/x", "dangling", &absolute, &sly]
        {
            for error in [files.read(path).unwrap_err(), files.write(path, "taken").unwrap_err()] {
                assert!(matches!(error, FileError::Outside(_)), "{path}: {error}");
            }
        }
        assert_eq!(std::fs::read_to_string(place.path().join("secret")).unwrap(), "s3cret");
        assert!(std::fs::read_dir(place.path().join("outside")).unwrap().next().is_none());
        assert!(!place.path().join("gone").exists());
    }

    #[test]
    fn gits_own_files_are_out_of_bounds_by_every_way() {
        let (place, files) = place();
        for path in [".git/config", ".GIT/config", "./.git/hooks/post-commit", "git/config", "src/config", "src/.git/x"]
        {
            for error in [files.read(path).unwrap_err(), files.write(path, "taken").unwrap_err()] {
                assert!(matches!(error, FileError::Git(_)), "{path}: {error}");
            }
        }
        assert_eq!(std::fs::read_to_string(place.path().join("tree/.git/config")).unwrap(), "git");
        assert!(std::fs::read_dir(place.path().join("tree/.git/hooks")).unwrap().next().is_none());
    }

    #[test]
    fn what_is_inside_is_read_and_written() {
        let (place, files) = place();
        let root = place.path().join("tree");
        assert_eq!(files.read("a.txt").unwrap(), "one\n");
        assert_eq!(files.read("./inner").unwrap(), "one\n");
        assert_eq!(files.read(&root.join("a.txt").display().to_string()).unwrap(), "one\n");
        std::fs::set_permissions(root.join("a.txt"), std::fs::Permissions::from_mode(0o755)).unwrap();
        files.write("inner", "two\n").unwrap();
        assert_eq!(std::fs::read_to_string(root.join("a.txt")).unwrap(), "two\n");
        assert_eq!(root.join("a.txt").metadata().unwrap().permissions().mode() & 0o777, 0o755);
        assert!(root.join("inner").is_symlink());
        files.write("new/deep/file.txt", "x").unwrap();
        assert_eq!(files.read("new/deep/file.txt").unwrap(), "x");
        // Another name for a file outside keeps its content.
        files.write("hard", "mine").unwrap();
        assert_eq!(std::fs::read_to_string(place.path().join("secret")).unwrap(), "s3cret");
        let left: Vec<_> = std::fs::read_dir(&root).unwrap().flatten().map(|e| e.file_name()).collect();
        assert!(left.iter().all(|name| !name.to_string_lossy().starts_with(".refile")), "{left:?}");
    }

    #[test]
    fn what_is_no_text_is_said_and_holds_nobody_up() {
        let (_place, files) = place();
        assert!(matches!(files.read("image.bin").unwrap_err(), FileError::Binary(_, 3)));
        for path in ["src", "pipe", "."] {
            assert!(matches!(files.read(path).unwrap_err(), FileError::NotAFile(_)), "{path}");
            assert!(matches!(files.write(path, "x").unwrap_err(), FileError::NotAFile(_)), "{path}");
        }
        assert!(matches!(files.read("loop").unwrap_err(), FileError::Io { .. }));
        assert!(files.read("none").unwrap_err().to_string().contains("`none`"));
        assert!(files.write("a.txt/below", "x").is_err());
    }
}
