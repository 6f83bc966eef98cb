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
