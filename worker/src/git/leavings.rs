//! What an agent may leave in a tree that git must not come across, or would leave out without a word.
//!
//! All of it is taken away or named before git looks at the tree. The tree was written by an agent: it may be thousands of
//! folders deep, so that nothing is called once for each level and no more than two folders are open at a time.

use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use nix::dir::{Dir, Type};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag};
use nix::sys::stat::{Mode, SFlag, fstatat};

use super::names;
use super::trash::{FOLDER, remove_at};

/// The longest path that a change may hold, in bytes: the system opens none that is longer than 4,095, and git puts the names
/// of its own files behind a folder's.
const LONGEST: usize = 4_000;

/// Why git was not given something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Why {
    /// Git, on some system, takes the name for its own.
    LikeGit,
    /// It is a pipe, a socket or a device.
    Special,
    /// Nobody could check it out.
    TooLong,
    /// It lies where a submodule belongs.
    InSubmodule,
    /// The folder cannot be read.
    Unreadable,
    /// Git did not take it; its words.
    NotTaken(String),
}

/// Something that git was not given, or did not take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// Its path; empty where git's words are all that is known.
    pub path: String,
    /// Why.
    pub why: Why,
}

impl Refused {
    pub(super) fn new(path: &OsStr, why: Why) -> Self {
        Self { path: path.to_string_lossy().into_owned(), why }
    }
}

/// What was found in a tree.
#[derive(Debug, Default)]
pub(super) struct Leavings {
    /// Paths that are refused, whatever else there is.
    pub(super) refused: Vec<Refused>,
    /// Paths that are nobody's concern where git ignores them. Pipes, sockets and devices among them were removed.
    pub(super) unless_ignored: Vec<(OsString, Why)>,
}

/// Takes out of a tree what git must not see: every `.git` below the top, so that what lies beside it are plain files;
/// what looks to git as if it were one; pipes, sockets and devices, which it might wait for.
///
/// Git would run `git status` inside a nested repository, with the filters that its configuration names.
pub(super) fn clear(dir: &Path) -> io::Result<Leavings> {
    let root = Dir::open(dir, FOLDER, Mode::empty())?;
    let (mut folders, mut found) = (vec![OsString::new()], Leavings::default());
    while let Some(folder) = folders.pop() {
        let name = if folder.is_empty() { OsStr::new(".") } else { folder.as_os_str() };
        let mut opened = match Dir::openat(root.as_fd(), name, FOLDER | OFlag::O_RDONLY, Mode::empty()) {
            Ok(opened) => opened,
            Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) if !folder.is_empty() => continue,
            Err(Errno::EACCES) if !folder.is_empty() => {
                found.unless_ignored.push((folder, Why::Unreadable));
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        let mut entries: Vec<(CString, Option<Type>)> = Vec::new();
        for entry in opened.iter() {
            let entry = entry?;
            if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
                entries.push((entry.file_name().to_owned(), entry.file_type()));
            }
        }
        for (name, kind) in entries {
            let kind = match kind {
                Some(kind) => kind,
                None => kind_of(&opened, &name)?,
            };
            let name = OsStr::from_bytes(name.to_bytes());
            let path = below(&folder, name);
            if folder.is_empty() && name == ".git" {
                // The agent's own; git does not look at it.
            } else if !folder.is_empty() && name.eq_ignore_ascii_case(".git") {
                remove_at(opened.as_fd(), name)?;
            } else if names::is_like_git(&name.to_string_lossy()) {
                remove_at(opened.as_fd(), name)?;
                found.refused.push(Refused::new(&path, Why::LikeGit));
            } else if !matches!(kind, Type::Directory | Type::File | Type::Symlink) {
                remove_at(opened.as_fd(), name)?;
                found.unless_ignored.push((path, Why::Special));
            } else if path.len() > LONGEST {
                found.unless_ignored.push((path, Why::TooLong));
            } else if kind == Type::Directory {
                folders.push(path);
            }
        }
    }
    Ok(found)
}

/// What is there, where the file system does not say so in its lists.
fn kind_of(folder: &Dir, name: &CString) -> io::Result<Type> {
    let mode = fstatat(folder, name.as_c_str(), AtFlags::AT_SYMLINK_NOFOLLOW)?.st_mode;
    Ok(match SFlag::from_bits_truncate(mode) & SFlag::S_IFMT {
        SFlag::S_IFDIR => Type::Directory,
        SFlag::S_IFREG => Type::File,
        SFlag::S_IFLNK => Type::Symlink,
        _ => Type::Fifo,
    })
}

fn below(folder: &OsStr, name: &OsStr) -> OsString {
    if folder.is_empty() {
        return name.to_owned();
    }
    OsString::from_vec([folder.as_bytes(), b"/", name.as_bytes()].concat())
}
