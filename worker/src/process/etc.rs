//! What of `/etc` a command sees whose worker is root.
//!
//! Of any other worker a command reads in `/etc` what everybody may. Of root it would read all: keys, passwords, the settings
//! of other services. So it is shown what is named here: what programs, compilers and package managers look up, and what
//! everybody may read of it.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The folder.
pub(super) const FOLDER: &str = "/etc";

/// Files and folders in `/etc`. A star at the end stands for any rest of a name.
const PUBLIC: &[&str] = &[
    // Programs and libraries
    "alternatives",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "ld.so.preload",
    "ld-musl-*",
    "static",
    // Names: of users, hosts, services
    "passwd",
    "group",
    "hosts",
    "hostname",
    "host.conf",
    "resolv.conf",
    "nsswitch.conf",
    "gai.conf",
    "services",
    "protocols",
    "networks",
    "netconfig",
    "rpc",
    "ethertypes",
    "shells",
    // The system, its place and its language
    "os-release",
    "lsb-release",
    "debian_version",
    "*-release",
    "issue",
    "localtime",
    "timezone",
    "locale.*",
    "default/locale",
    "mime.types",
    "magic*",
    "terminfo",
    "inputrc",
    "profile",
    "profile.d",
    "bash*",
    "xdg",
    "fonts",
    "papersize",
    // Whom TLS trusts
    "ssl/certs",
    "ssl/cert.pem",
    "ssl/openssl.cnf",
    "ca-certificates*",
    "pki/tls/certs",
    "pki/tls/cert.pem",
    "pki/tls/openssl.cnf",
    "pki/ca-trust",
    "pki/java",
    "crypto-policies",
    // Languages and their tools
    "python*",
    "java*",
    "perl*",
    "php*",
    "ruby*",
    "lua*",
    "ghc*",
    "erlang*",
    "julia*",
    "octave*",
    "mono*",
    "dotnet*",
    "emacs*",
    "vim*",
    "R",
    "texmf*",
    "groff",
    "sgml",
    "xml",
    "dpkg",
    "gdb",
    // Where packages come from; a file with a password in it is not for everybody to read
    "pip.conf",
    "npmrc",
    "maven",
    "gradle*",
    "gitconfig",
    "wgetrc",
    "debconf.conf",
    "ImageMagick*",
    "OpenCL",
    "vulkan",
    "glvnd",
];

/// What lies in folders that are shown and may not be read by everybody: files, and folders with all that is in them.
pub(super) fn private(shown: &[PathBuf]) -> Vec<PathBuf> {
    let (mut folders, mut found) = (shown.to_vec(), Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            // Not followed: what a link leads to is shown by its own name, or not at all.
            let Ok(about) =
                entry.path().symlink_metadata().map(|about| (about.file_type(), about.permissions().mode()))
            else {
                continue;
            };
            match about {
                (kind, _) if kind.is_symlink() => {}
                (kind, mode) if kind.is_dir() && mode & 0o005 == 0o005 => folders.push(entry.path()),
                (kind, mode) if !kind.is_dir() && mode & 0o004 != 0 => {}
                _ => found.push(entry.path()),
            }
        }
    }
    found
}

/// What of it is there and may be read by everybody.
pub(super) fn public() -> Vec<PathBuf> {
    let folder = Path::new(FOLDER);
    let names: Vec<String> = std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    let of = |public: &&str| -> Vec<PathBuf> {
        match public.split_once('*') {
            None => vec![folder.join(public)],
            Some((begin, end)) => {
                let fits = |name: &&String| name.starts_with(begin) && name.ends_with(end);
                names.iter().filter(fits).map(|name| folder.join(name)).collect()
            }
        }
    };
    // What a link leads to counts: the link itself may always be read.
    let is_public = |path: &PathBuf| path.metadata().is_ok_and(|found| found.permissions().mode() & 0o004 != 0);
    PUBLIC.iter().flat_map(of).filter(is_public).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_not_everybody_may_read_is_found_below_what_is_shown() {
        let dir = tempfile::tempdir().unwrap();
        let make = |name: &str, mode: u32| {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            if name.ends_with('/') {
                std::fs::create_dir_all(&path).unwrap();
            } else {
                std::fs::write(&path, "x").unwrap();
            }
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        make("maven/settings.xml", 0o600);
        make("maven/toolchains.xml", 0o644);
        make("maven/keys/", 0o700);
        make("maven/deep/down/pass", 0o640);
        std::os::unix::fs::symlink("settings.xml", dir.path().join("maven/link")).unwrap();
        let mut found = private(&[dir.path().join("maven"), dir.path().join("not-there")]);
        found.sort();
        let expected = ["maven/deep/down/pass", "maven/keys", "maven/settings.xml"];
        assert_eq!(found, expected.map(|name| dir.path().join(name)));
    }
}
