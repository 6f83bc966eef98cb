//! What a command may reach and use up: a `bubblewrap` sandbox and limits around it.
//!
//! In the sandbox a command sees the system's folders and the usual tools, both read-only, and its own tree, which it may
//! write. `/tmp` and the home are empty folders of its own. There are no other processes, and without `network` there is
//! no address but its own loopback.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use refile_config::Config;
use refile_config::bounds::ProcessLimits;

use super::{Command, Limits, caches, cgroup, etc};
use crate::disk;

/// The system's folders: they hold programs and their settings, and no work.
const SYSTEM: &[&str] =
    &["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/nix/store", "/gnu/store"];

/// Folders of a home that hold tools and what they downloaded, and no keys.
const TOOLS: &[&str] = &[
    ".cargo/bin",
    ".cargo/env",
    ".cargo/registry",
    ".cargo/git",
    ".rustup",
    ".pyenv",
    ".nvm/versions",
    ".fnm",
    ".volta",
    ".asdf",
    ".local/bin",
    ".local/lib",
    ".local/pipx",
    ".local/share/pipx",
    ".local/share/uv",
    ".local/share/mise",
    ".local/share/claude",
    ".npm-global",
    ".bun/bin",
    ".deno/bin",
    ".opencode/bin",
    ".rbenv",
    ".sdkman/candidates",
    "go",
    ".m2/repository",
];

/// The folders beside a tree that a command in the sandbox is given as `/tmp`, as `/dev/shm`, as its home and as Cargo's caches.
const OWN: [&str; 4] = ["tmp", "shm", "home", "cargo"];
/// The same for gates: what an agent puts into its own must not make them pass.
const OF_GATES: [&str; 4] = ["gate-tmp", "gate-shm", "gate-home", "gate-cargo"];
/// What the host hands to a command: its prompt, a diff.
pub(crate) const GIVEN: &str = "given";

/// How the commands of a worker are confined.
#[derive(Debug, Clone)]
pub struct Guard {
    /// The sandbox's program; nothing where there is no sandbox.
    pub(super) bwrap: Option<PathBuf>,
    pub(super) limits: ProcessLimits,
    /// What commands leave free on the disk of the worker's folder, in bytes.
    pub(super) min_free: u64,
    pub(super) groups: Option<cgroup::Parent>,
    /// Where relative paths of the configuration start.
    pub(super) dir: PathBuf,
    pub(super) readable: Vec<String>,
    /// What no command sees, wherever it lies: the configuration, the store's file, artifacts, mirrors and other trees.
    pub(super) hidden: Vec<PathBuf>,
}

/// What a command may reach beside its tree.
#[derive(Debug, Clone, Copy, Default)]
pub struct Reach<'a> {
    /// The network.
    pub network: bool,
    /// Files and folders to read, as the configuration names them.
    pub readable: &'a [String],
    /// Files and folders to write.
    pub writable: &'a [String],
    /// It shares its home and `/tmp` with the gates of its tree, and not with the agent.
    pub is_gate: bool,
}

/// The bounds of one command.
#[derive(Debug, Clone)]
pub struct Sandbox {
    guard: Arc<Guard>,
    tree: PathBuf,
    side: PathBuf,
    network: bool,
    is_gate: bool,
    readable: Vec<PathBuf>,
    writable: Vec<PathBuf>,
}

impl Guard {
    /// Whether there is room for what no job waits for yet.
    pub(crate) fn has_room_ahead(&self, folder: &Path) -> bool {
        disk::free(folder).is_none_or(|free| free / 2 >= self.min_free)
    }

    /// With less free on the disk what runs is stopped: half of that below which nothing begins.
    fn least_free(&self) -> u64 {
        self.min_free / 2
    }

    /// Whether a command on the disk of a folder would be stopped.
    pub(crate) fn lacks_room(&self, folder: &Path) -> bool {
        disk::free(folder).is_some_and(|free| free < self.least_free())
    }

    /// Holds that there is room on the disk of a worker's folder for a command to begin.
    pub(crate) fn has_room(&self, folder: &Path) -> Result<(), String> {
        let Some(free) = disk::free(folder).filter(|free| *free < self.min_free) else { return Ok(()) };
        let (dir, min) = (folder.display(), self.min_free);
        Err(format!("{free} bytes are free on the disk of {dir}; below workspace.min_free_bytes ({min}) no job begins"))
    }

    /// What the configuration says, without having tried it.
    pub(super) fn new(config: &Config, bwrap: Option<PathBuf>, groups: Option<cgroup::Parent>) -> Self {
        let of = |path: &str| {
            let path = config.path(path);
            path.canonicalize().or_else(|_| std::path::absolute(&path)).unwrap_or(path)
        };
        let dir = of("");
        let mut hidden = vec![dir.clone(), of(&config.workers.dir)];
        hidden.extend(config.artifacts.strip_prefix("file:").map(of));
        let store = config.store.strip_prefix("sqlite:").map(of);
        hidden.extend(store.and_then(|file| file.parent().map(Path::to_path_buf)));
        Self {
            bwrap,
            limits: config.limits.process.clone(),
            min_free: config.workspace.min_free_bytes,
            groups,
            dir,
            readable: config.workers.readable.clone(),
            hidden,
        }
    }

    /// The bounds of a command that works in a tree. `side` is a folder of the host's beside it, `objects` what the
    /// tree's own repository borrows from. Of `command` the files that it names can be read.
    pub(crate) fn sandbox(
        self: &Arc<Self>,
        (tree, side): (&Path, &Path),
        objects: &Path,
        command: &[OsString],
        reach: Reach<'_>,
    ) -> Sandbox {
        let mut readable: Vec<PathBuf> = self.readable.iter().chain(reach.readable).map(|p| self.path(p)).collect();
        readable.extend(command.iter().flat_map(named_files));
        readable.extend([objects.to_owned(), side.join(GIVEN)]);
        Sandbox {
            guard: self.clone(),
            tree: tree.to_owned(),
            side: side.to_owned(),
            network: reach.network,
            is_gate: reach.is_gate,
            readable,
            writable: reach.writable.iter().map(|p| self.path(p)).collect(),
        }
    }

    /// What of this decides how a command ends, as a text.
    pub(crate) fn terms(&self) -> String {
        let (is_closed, is_grouped) = (self.bwrap.is_some(), self.groups.is_some());
        format!("{is_closed} {is_grouped} {:?} {:?}", self.readable, self.limits)
    }

    fn path(&self, path: &str) -> PathBuf {
        match (path.strip_prefix("~/"), home()) {
            (Some(rest), Some(home)) => home.join(rest),
            _ => self.dir.join(path),
        }
    }

    /// The script that sets the limits and becomes the command.
    fn shell(&self) -> String {
        use std::fmt::Write as _;
        let limits = &self.limits;
        let mut script = "ulimit -c 0 2> /dev/null; ".to_owned();
        let mut set = |letter: char, value: u64| {
            if value > 0 {
                // A hard limit that is lower already stays.
                let _ = write!(script, "ulimit -{letter} {value} 2> /dev/null; ");
            }
        };
        set('t', limits.cpu.0.as_secs());
        set('n', limits.open_files);
        // In blocks of 512 bytes, and in KiB.
        set('f', limits.file_bytes.div_ceil(512));
        if !self.groups.as_ref().is_some_and(|g| g.bounds_memory) {
            // The data and not the address space: runtimes reserve far more of that than they use.
            set('d', limits.memory_bytes.div_ceil(1024));
        }
        if self.counts_processes() && limits.processes > 0 {
            // The letter of bash and busybox, and that of dash.
            let _ = write!(script, "ulimit -u {0} 2> /dev/null || ulimit -p {0} 2> /dev/null; ", limits.processes);
        }
        script.push_str("exec \"$@\"");
        script
    }

    /// Whether the limit of processes is one of the kernel's for the sandbox alone. Outside of one it would count all
    /// processes of the worker's user; root has none; before Linux 5.14 it counted outside of the sandbox too.
    pub(super) fn counts_processes(&self) -> bool {
        self.bwrap.is_some() && self.groups.is_none() && !nix::unistd::geteuid().is_root() && kernel() >= (5, 14)
    }
}

/// The kernel's version.
fn kernel() -> (u32, u32) {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// The worker's home; nothing where it is none that could be replaced.
fn home() -> Option<PathBuf> {
    let home = PathBuf::from(std::env::var_os("HOME")?);
    let is_fit =
        home.is_absolute() && home.parent().is_some() && !SYSTEM.iter().any(|dir| Path::new(dir).starts_with(&home));
    is_fit.then_some(home)
}

/// The files that a word of a command names by absolute paths, in a shell's script too.
fn named_files(word: &OsString) -> Vec<PathBuf> {
    let parts = word.to_str().unwrap_or_default().split(|c: char| c.is_whitespace() || "\"';()<>|&=".contains(c));
    let is_of_the_system = |path: &PathBuf| ["/proc", "/sys", "/dev"].iter().any(|dir| path.starts_with(dir));
    let paths = parts.filter(|part| part.starts_with('/')).map(PathBuf::from);
    paths.filter(|path| !is_of_the_system(path) && path.is_file()).collect()
}

/// A command as it is started: with what stands around it, and the group that must live as long as it.
pub struct Prepared {
    /// The program and its arguments.
    pub argv: Vec<OsString>,
    /// The whole environment.
    pub env: Vec<(OsString, OsString)>,
    /// The control group.
    pub group: Option<cgroup::Group>,
}

impl Sandbox {
    /// Whether it shows less than there is: not where it only sets limits.
    pub(crate) fn hides(&self) -> bool {
        self.guard.bwrap.is_some()
    }

    /// Ends when there is too little room on the disk for what runs.
    pub(crate) async fn no_room(&self) {
        disk::below(&self.side, self.guard.least_free()).await;
    }

    /// Bounds the command's output.
    pub(crate) fn output(&self) -> Limits {
        let all = self.guard.limits.output_bytes;
        Limits { head: all / 5, tail: all - all / 5 }
    }

    /// Puts the bounds around a command.
    pub(super) fn around(&self, command: &Command) -> std::io::Result<Prepared> {
        let limits = &self.guard.limits;
        let group = self.guard.groups.as_ref().map(|p| p.group(limits.processes, limits.memory_bytes)).transpose()?;
        let mut argv: Vec<OsString> = Vec::new();
        if let Some(group) = &group {
            argv.extend(["/bin/sh".into(), "-c".into(), "echo $$ > \"$1\" || exit 126; shift; exec \"$@\"".into()]);
            argv.extend(["refile".into(), group.dir.join("cgroup.procs").into()]);
        }
        let mut env = command.env.clone();
        if let Some(bwrap) = &self.guard.bwrap {
            argv.push(bwrap.into());
            argv.extend(self.mounts(command)?);
            argv.extend(["--chdir".into(), command.cwd.clone().into(), "--".into()]);
            let home = home().unwrap_or_else(|| "/tmp".into());
            env.retain(|(name, _)| name != "TMPDIR" && name != "HOME");
            env.push(("HOME".into(), home.into()));
        }
        argv.extend(["/bin/sh".into(), "-c".into(), self.guard.shell().into(), "refile".into()]);
        argv.extend(command.argv.iter().cloned());
        Ok(Prepared { argv, env, group })
    }

    /// The sandbox's file system. What comes later lies on top of what came before.
    fn mounts(&self, command: &Command) -> std::io::Result<Vec<OsString>> {
        let own = if self.is_gate { OF_GATES } else { OWN };
        let [tmp, shm, own_home, own_cargo] = own.map(|name| self.side.join(name));
        for folder in [&tmp, &shm, &own_home, &self.side.join(GIVEN)] {
            std::fs::create_dir_all(folder)?;
        }
        let mut of = Mounts(Vec::new());
        of.flags(&["--unshare-user-try", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]);
        if !self.network {
            of.flags(&["--unshare-net"]);
        }
        of.flags(&["--die-with-parent", "--new-session", "--cap-drop", "ALL"]);
        // Of a worker that is root a command could read what only root may.
        let is_root = nix::unistd::geteuid().is_root();
        for dir in SYSTEM.iter().map(Path::new).filter(|dir| !is_root || *dir != Path::new(etc::FOLDER)) {
            of.read(dir);
        }
        if is_root {
            of.flag_of("--dir", Path::new(etc::FOLDER));
            let shown = etc::public();
            for path in &shown {
                of.read(path);
            }
            for path in etc::private(&shown) {
                if path.is_dir() {
                    of.flag_of("--tmpfs", &path);
                } else {
                    of.put("--ro-bind", Path::new("/dev/null"), &path);
                }
            }
        }
        of.flags(&["--proc", "/proc", "--dev", "/dev"]);
        // What else lies in `/dev` is memory that no limit counts.
        of.put("--bind", &shm, Path::new("/dev/shm"));
        of.put("--bind", &tmp, Path::new("/tmp"));
        of.put("--bind", &tmp, Path::new("/var/tmp"));
        let home = home();
        if let Some(home) = &home {
            of.put("--bind", &own_home, home);
            for tool in TOOLS {
                of.read(&home.join(tool));
            }
            // What one gate fetches is there for the next one, which may have no network.
            if (self.is_gate || self.network) && caches::make(&own_cargo, &self.tree, home) {
                for part in caches::PARTS {
                    let place = home.join(".cargo").join(part);
                    of.put("--ro-bind-try", &place, &Path::new(caches::SHOWN).join(part));
                    of.put("--bind-try", &own_cargo.join(part), &place);
                }
            }
        }
        // Where the names of hosts are looked up may lie outside of `/etc`.
        if let Some(file) = Path::new("/etc/resolv.conf").canonicalize().ok().filter(|p| !p.starts_with("/etc")) {
            of.read(&file);
        }
        let mut empty: Vec<&Path> = Vec::new();
        for hidden in self.guard.hidden.iter().filter(|path| path.is_dir()) {
            let holds = |other: &Path| other.starts_with(hidden);
            let is_private = home.as_deref().is_some_and(holds) || holds(Path::new("/tmp"));
            if !is_private && !SYSTEM.iter().any(|dir| holds(Path::new(dir))) {
                empty.push(hidden);
            }
        }
        // What lies below another of them is gone with it, and nothing that could be made read-only.
        let all = empty.clone();
        empty.retain(|path| !all.iter().any(|other| other != path && path.starts_with(other)));
        empty.sort_unstable();
        empty.dedup();
        for path in &empty {
            of.flag_of("--tmpfs", path);
        }
        // They may lie beside the configuration.
        self.programs(command, home.as_deref()).iter().chain(&self.readable).for_each(|path| of.read(path));
        of.put("--bind", &self.tree, &self.tree);
        self.writable.iter().for_each(|path| of.put("--bind-try", path, path));
        // What is empty lies in memory: nobody writes there.
        for path in &empty {
            of.flag_of("--remount-ro", path);
        }
        for path in ["/dev", "/"] {
            of.flag_of("--remount-ro", Path::new(path));
        }
        Ok(of.0)
    }

    /// Where programs are looked for outside of the system's folders, and where the command's own program really lies.
    fn programs(&self, command: &Command, home: Option<&Path>) -> Vec<PathBuf> {
        let path =
            command.env.iter().find(|(name, _)| name == "PATH").map(|(_, value)| value.clone()).unwrap_or_default();
        let is_system = |path: &Path| SYSTEM.iter().any(|dir| path.starts_with(dir));
        let holds_more = |path: &Path| {
            path.parent().is_none()
                || home.is_some_and(|home| home.starts_with(path))
                || self.guard.hidden.iter().any(|hidden| hidden.starts_with(path))
        };
        let is_fit = |path: &PathBuf| path.is_absolute() && !is_system(path) && !holds_more(path);
        let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
        let mut found: Vec<PathBuf> = folders.iter().filter(|p| is_fit(p)).cloned().collect();
        let name = command.argv.first().map(Path::new);
        let program = name.and_then(|name| {
            if name.is_absolute() {
                Some(name.to_owned())
            } else {
                folders.iter().map(|d| d.join(name)).find(|p| p.is_file())
            }
        });
        if let Some(real) = program.and_then(|p| p.canonicalize().ok()).filter(|p| !is_system(p)) {
            // Of a virtual environment and of what npm installed all; of anything else the file.
            let environment = real.parent().filter(|dir| dir.ends_with("bin")).and_then(Path::parent);
            let environment = environment.filter(|dir| dir.join("pyvenv.cfg").is_file());
            let installed = real.ancestors().filter(|dir| dir.ends_with("node_modules")).last();
            let whole = environment.or(installed).map(Path::to_path_buf);
            found.extend(whole.filter(is_fit).or(Some(real)));
        }
        found
    }
}

/// Arguments of the sandbox's program.
struct Mounts(Vec<OsString>);

impl Mounts {
    fn flags(&mut self, flags: &[&str]) {
        self.0.extend(flags.iter().map(OsString::from));
    }

    fn flag_of(&mut self, flag: &str, path: &Path) {
        self.0.extend([flag.into(), path.into()]);
    }

    fn put(&mut self, how: &str, from: &Path, to: &Path) {
        self.0.extend([how.into(), from.into(), to.into()]);
    }

    /// Shows what is there, where it is, to read.
    fn read(&mut self, path: &Path) {
        self.put("--ro-bind-try", path, path);
    }
}
