//! Tries the sandbox once at the start, and says what holds and what does not.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use refile_config::Config;
use refile_config::bounds::Sandbox as Wanted;

use super::sandbox::{Guard, Reach};
use super::{Command, cgroup, run};

/// How long the trial may take.
const TRIAL: Duration = Duration::from_secs(10);

/// Writes its tree, and fails where it can write elsewhere or see what it must not: `$1` is a file beside the tree, `$2` the
/// worker's process namespace, `$3` its network's where the script must not share it.
const SCRIPT: &str = r#"
echo x > here || exit 10
if (echo x > /etc/refile-trial) 2> /dev/null; then exit 11; fi
[ ! -e "$1" ] || exit 12
[ "$(ls / | wc -l)" -gt 0 ] || exit 13
[ "$(readlink /proc/self/ns/pid)" != "$2" ] || exit 14
[ "$(readlink /proc/self/ns/net)" != "$3" ] || exit 15
if (echo x > /dev/refile-trial) 2> /dev/null; then exit 16; fi
echo it holds
"#;

/// What is to be told of the sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Told {
    /// It holds.
    Holds(String),
    /// There is none.
    Open(String),
}

impl Guard {
    /// How the commands of this process are confined, tried and told. Fails where a sandbox is required and there is none.
    pub async fn start(config: &Config) -> anyhow::Result<Arc<Self>> {
        let (guard, told) = Self::tried(config).await?;
        match told {
            Told::Holds(words) => tracing::info!("{words}"),
            Told::Open(words) => tracing::warn!("{words}"),
        }
        Ok(guard)
    }

    /// Whether commands are in a sandbox.
    pub fn is_sandboxed(&self) -> bool {
        self.bwrap.is_some()
    }

    /// The same as [`Guard::start`], where whoever asks tells it.
    pub async fn tried(config: &Config) -> anyhow::Result<(Arc<Self>, Told)> {
        let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let groups = cgroup::find(Path::new("/sys/fs/cgroup"), &own);
        let open = Self::new(config, None, groups);
        let environment = || {
            if close_environment() {
                "this process's environment is closed to them, unless they are root"
            } else {
                "they can read this process's environment too, keys included"
            }
        };
        if config.sandbox == Wanted::Off {
            let words = format!(
                "sandbox = \"off\": agents, gates and command reviewers can do all that this user can do; {}; {}",
                environment(),
                open.bounds()
            );
            return Ok((Arc::new(open), Told::Open(words)));
        }
        let tried = match find_bwrap() {
            Some(bwrap) => {
                let guard = Arc::new(Self { bwrap: Some(bwrap), ..open.clone() });
                guard.try_out(&config.path(&config.workers.dir)).await.map(|()| guard)
            }
            None => Err(anyhow::anyhow!("the program `bwrap` is not installed")),
        };
        match tried {
            Ok(guard) => {
                let words = format!(
                    "the sandbox works: agents, gates and command reviewers can write nothing but their tree, a home and a \
                     /tmp of their own and what `writable` names, and see no other home, no other process and nothing of \
                     the fleet; the network, this machine's own ports included, is open to \
                     agents and to what has network = true; {}",
                    guard.bounds()
                );
                Ok((guard, Told::Holds(words)))
            }
            Err(why) if config.sandbox == Wanted::Required => bail!(
                "sandbox = \"required\", and there is none here: {why:#}\n  install bubblewrap (`apt-get install bubblewrap`) \
                 and allow user namespaces (sysctl user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns; \
                 of a container its security options), or set sandbox = \"auto\""
            ),
            Err(why) => {
                let words = format!(
                    "there is NO SANDBOX here: {why:#}; agents, gates and command reviewers can do all that this user can \
                     do, with the network; install bubblewrap and allow user namespaces, or set sandbox = \"required\" to \
                     refuse this; {}; {}",
                    environment(),
                    open.bounds()
                );
                Ok((Arc::new(open), Told::Open(words)))
            }
        }
    }

    /// What bounds a command's use of the machine, in words.
    pub fn bounds(&self) -> String {
        let limits = &self.limits;
        let memory = if self.groups.as_ref().is_some_and(|g| g.bounds_memory) { "the command" } else { "each process" };
        let processes = if limits.processes > 0 && (self.groups.is_some() || self.counts_processes()) {
            format!("processes ({})", limits.processes)
        } else {
            "NOT the number of processes".to_owned()
        };
        format!(
            "limited: CPU time ({}), memory of {memory} ({} MiB), files ({} MiB), output, {processes}",
            limits.cpu,
            limits.memory_bytes >> 20,
            limits.file_bytes >> 20
        )
    }

    /// Really runs something.
    async fn try_out(self: &Arc<Self>, workers: &Path) -> anyhow::Result<()> {
        std::fs::create_dir_all(workers).with_context(|| format!("cannot make {}", workers.display()))?;
        let place = tempfile::tempdir_in(workers).with_context(|| format!("cannot write {}", workers.display()))?;
        let place_dir = place.path().canonicalize()?;
        let (tree, side, secret) = (place_dir.join("tree"), place_dir.join("side"), place_dir.join("secret"));
        for folder in [&tree, &side] {
            std::fs::create_dir(folder)?;
        }
        std::fs::write(&secret, "x")?;
        // A disk that is full now says nothing of the sandbox.
        let open = Arc::new(Self { min_free: 0, ..Self::clone(self) });
        for network in [false, true] {
            let own = |kind: &str| std::fs::read_link(Path::new("/proc/self/ns").join(kind)).unwrap_or_default();
            let net = if network { PathBuf::from("open") } else { own("net") };
            let given = [secret.clone(), own("pid"), net].map(OsString::from);
            let argv = ["sh", "-c", SCRIPT, "sh"].map(OsString::from).into_iter().chain(given);
            let mut command = Command::new(argv, &tree, TRIAL);
            command.sandbox = Some(open.sandbox((&tree, &side), &side, &[], Reach { network, ..Reach::default() }));
            let done = run(&command).await?;
            if !done.exit.is_ok() || done.stdout_text() != "it holds\n" {
                bail!("`bwrap` {}: {}", done.exit, super::tail(&done.output_text(), 400));
            }
        }
        Ok(())
    }
}

/// Keeps other processes of this user from reading this one's environment and memory: the system shows them to nobody but
/// root then, and leaves no core dumps. Gives whether it does.
pub(super) fn close_environment() -> bool {
    #[cfg(target_os = "linux")]
    let is_closed = nix::sys::prctl::set_dumpable(false).is_ok();
    #[cfg(not(target_os = "linux"))]
    let is_closed = false;
    is_closed && !nix::unistd::geteuid().is_root()
}

fn find_bwrap() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).filter(|dir| dir.is_absolute()).map(|dir| dir.join("bwrap")).find(|p| p.is_file())
}
