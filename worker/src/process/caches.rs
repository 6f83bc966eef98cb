//! What Cargo has downloaded on this machine, for a command that may add to it and change none of it.
//!
//! A command in the sandbox sees the machine's `~/.cargo/registry` and `~/.cargo/git` elsewhere, read-only. At their own
//! place it has folders of its own, on the disk: what its project locks is there as links to the machine's, and what Cargo
//! fetches is written beside them. Entries of the index are copies: Cargo rewrites them in place.
//!
//! The host writes a folder once, under another name, before any command sees it. Nothing of an agent's is ever followed.

use std::collections::BTreeSet;
use std::fs::{DirEntry, File, OpenOptions, create_dir_all};
use std::io::{self, Read};
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;

/// Where a command finds the machine's.
pub(super) const SHOWN: &str = "/run/refile/cargo";
/// The folders of `~/.cargo` that are caches.
pub(super) const PARTS: [&str; 2] = ["registry", "git"];

const LOCK: &str = "Cargo.lock";
/// A lock file that is larger is not looked at.
const LOCK_BYTES: u64 = 16 << 20;
/// The most crates that are there; Cargo fetches the others.
const MOST: usize = 5_000;
/// The most folders of a tree that are looked into.
const LOOKED_AT: usize = 500;
/// How much of the index is copied.
const INDEX_BYTES: u64 = 256 << 20;

/// Makes a command's own caches in the folder `own`, where they are not there yet. Says whether they are there: not where
/// the tree is no project of Cargo's (at its root or one folder below), or the machine has none.
pub(super) fn make(own: &Path, tree: &Path, home: &Path) -> bool {
    let machine = home.join(".cargo");
    if own.is_dir() {
        return true;
    }
    let Some(crates) = wanted(tree).filter(|_| PARTS.iter().any(|part| machine.join(part).is_dir())) else {
        return false;
    };
    let made = || {
        let new = tempfile::Builder::new().prefix("cargo.").tempdir_in(own.parent().unwrap_or(own))?;
        registry(&machine.join("registry"), &new.path().join("registry"), &crates)?;
        repositories(&machine.join("git"), &new.path().join("git"))?;
        match std::fs::rename(new.path(), own) {
            // Another command of the tree was quicker.
            Err(_) if own.is_dir() => Ok(()),
            done => done,
        }
    };
    made().inspect_err(|error: &io::Error| tracing::warn!(%error, "Cargo's caches can only be read")).is_ok()
}

/// What a project needs.
enum Crates {
    /// What its lock files name: names and versions.
    Locked(BTreeSet<(String, String)>),
    /// Nobody knows.
    Any,
}

/// What the projects need that are at a tree's root or one folder below; nothing where there are none.
fn wanted(tree: &Path) -> Option<Crates> {
    let is_folder = |entry: &DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
    let below = std::fs::read_dir(tree).ok()?.flatten().filter(is_folder).take(LOOKED_AT).map(|entry| entry.path());
    let folders: Vec<PathBuf> = std::iter::once(tree.to_owned()).chain(below).collect();
    let has = |name: &str| folders.iter().any(|dir| dir.join(name).symlink_metadata().is_ok_and(|m| m.is_file()));
    if !has("Cargo.toml") {
        return None;
    }
    let locked: BTreeSet<_> =
        folders.iter().filter_map(|dir| lock_file(&dir.join(LOCK))).flat_map(|t| names(&t)).collect();
    Some(if has(LOCK) { Crates::Locked(locked.into_iter().take(MOST).collect()) } else { Crates::Any })
}

/// The text of a lock file. It may be an agent's: links are not followed, and pipes not waited for.
fn lock_file(path: &Path) -> Option<String> {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path).ok()?;
    file.metadata().ok().filter(std::fs::Metadata::is_file)?;
    let mut text = String::new();
    file.take(LOCK_BYTES).read_to_string(&mut text).ok()?;
    Some(text)
}

/// The names and versions in a lock file of what comes from a registry.
fn names(lock: &str) -> Vec<(String, String)> {
    let is_plain = |text: &str| {
        text.starts_with(|c: char| c.is_ascii_alphanumeric())
            && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.+".contains(c))
    };
    let packages = lock.split("[[package]]").skip(1).filter_map(|package| {
        let value = |key: &str| {
            let rest = package.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = \""))?;
            rest.strip_suffix('"')
        };
        value("source").filter(|source| source.starts_with("registry+") || source.starts_with("sparse+"))?;
        Some((value("name")?, value("version")?)).filter(|(name, version)| is_plain(name) && is_plain(version))
    });
    packages.map(|(name, version)| (name.to_owned(), version.to_owned())).collect()
}

/// The folders in a folder; none where it is not there.
fn folders(dir: &Path) -> impl Iterator<Item = DirEntry> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
}

fn registry(machine: &Path, own: &Path, crates: &Crates) -> io::Result<()> {
    if !machine.is_dir() {
        return Ok(());
    }
    let shown = Path::new(SHOWN).join("registry");
    let mut room = INDEX_BYTES;
    for index in folders(&machine.join("index")) {
        let (name, at) = (index.file_name(), index.path());
        let place = own.join("index").join(&name);
        if !at.join(".cache").is_dir() {
            // A whole repository, as registries were before; it can only be read.
            create_dir_all(own.join("index"))?;
            symlink(shown.join("index").join(&name), place)?;
            continue;
        }
        create_dir_all(&place)?;
        copy(&at.join("config.json"), &place.join("config.json"), &mut room)?;
        let names: BTreeSet<String> = match crates {
            Crates::Locked(locked) => locked.iter().map(|(name, _)| name.clone()).collect(),
            Crates::Any => all(&machine.join("cache").join(&name)).iter().flat_map(|file| names_of(file)).collect(),
        };
        for name in names {
            let entry = Path::new(".cache").join(entry(&name));
            copy(&at.join(&entry), &place.join(&entry), &mut room)?;
        }
    }
    for index in folders(&machine.join("cache")) {
        let own_of = |kind: &str| own.join(kind).join(index.file_name());
        let shown_of = |kind: &str| shown.join(kind).join(index.file_name());
        create_dir_all(own_of("cache"))?;
        create_dir_all(own_of("src"))?;
        let files = match crates {
            Crates::Locked(locked) => locked.iter().map(|(name, version)| format!("{name}-{version}")).collect(),
            Crates::Any => all(&index.path()),
        };
        for file in files {
            let packed = format!("{file}.crate");
            if index.path().join(&packed).is_file() {
                symlink(shown_of("cache").join(&packed), own_of("cache").join(&packed))?;
            }
            // One that is not whole is unpacked anew.
            if machine.join("src").join(index.file_name()).join(&file).join(".cargo-ok").is_file() {
                symlink(shown_of("src").join(&file), own_of("src").join(&file))?;
            }
        }
    }
    Ok(())
}

/// The crates that were downloaded, by name and version.
fn all(cache: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(cache).into_iter().flatten().flatten();
    let name = |entry: DirEntry| Some(entry.file_name().to_str()?.strip_suffix(".crate")?.to_owned());
    entries.filter_map(name).take(MOST).collect()
}

/// What the name of a crate may be whose file is called so: a name may hold a dash and a digit, as a version does.
fn names_of(file: &str) -> impl Iterator<Item = String> {
    let begins_version = |at: &usize| file[at + 1..].starts_with(|c: char| c.is_ascii_digit());
    file.match_indices('-').map(|(at, _)| at).filter(begins_version).map(|at| file[..at].to_owned())
}

/// Where a crate's entry lies in an index.
fn entry(name: &str) -> PathBuf {
    let name = name.to_ascii_lowercase();
    match name.len() {
        0..=2 => Path::new(&name.len().to_string()).join(&name),
        3 => Path::new("3").join(&name[..1]).join(&name),
        _ => Path::new(&name[..2]).join(&name[2..4]).join(&name),
    }
}

/// Copies what is there and has room.
fn copy(from: &Path, to: &Path, room: &mut u64) -> io::Result<()> {
    let Ok(mut file) = File::open(from) else { return Ok(()) };
    let bytes = file.metadata()?.len();
    if bytes <= *room {
        *room -= bytes;
        to.parent().map_or(Ok(()), create_dir_all)?;
        io::copy(&mut file, &mut File::create(to)?)?;
    }
    Ok(())
}

/// Dependencies that are repositories: those that are there can be read, and others be put beside them.
fn repositories(machine: &Path, own: &Path) -> io::Result<()> {
    if !machine.is_dir() {
        return Ok(());
    }
    let shown = Path::new(SHOWN).join("git");
    let link = |path: &Path| symlink(shown.join(path), own.join(path));
    for kind in ["db", "checkouts"] {
        create_dir_all(own.join(kind))?;
    }
    for repository in folders(&machine.join("db")).take(MOST) {
        link(&Path::new("db").join(repository.file_name()))?;
    }
    for repository in folders(&machine.join("checkouts")).take(MOST) {
        let place = Path::new("checkouts").join(repository.file_name());
        create_dir_all(own.join(&place))?;
        for commit in folders(&repository.path()).take(MOST) {
            link(&place.join(commit.file_name()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_lock_file_names_is_found_in_an_index() {
        let lock = "version = 4\n\n[[package]]\nname = \"own\"\nversion = \"0.1.0\"\n\n[[package]]\nname = \"Inflector\"\n\
                    version = \"0.11.4+x\"\nsource = \"registry+https://example.org\"\n\n[[package]]\nname = \"../../up\"\n\
                    version = \"1\"\nsource = \"registry+x\"\n\n[[package]]\nname = \"far\"\nversion = \"1\"\nsource = \"git+x\"\n";
        assert_eq!(names(lock), [("Inflector".to_owned(), "0.11.4+x".to_owned())]);
        let places = ["a", "ab", "abc", "abcd", "Inflector"].map(|name| entry(name).display().to_string());
        assert_eq!(places, ["1/a", "2/ab", "3/a/abc", "ab/cd/abcd", "in/fl/inflector"]);
    }
}
