//! A `redis-server` of the program's own, and what processes use.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use refile_store::redis::bench::{Sample, Server};

/// On disk every second, and no rewrite beside the run.
pub(crate) const SETTINGS: [&str; 8] =
    ["--appendonly", "yes", "--appendfsync", "everysec", "--save", "", "--auto-aof-rewrite-percentage", "0"];

/// How long anything may take to start.
const START: Duration = Duration::from_secs(30);

/// A process that is ended when this is dropped.
#[derive(Debug)]
pub(crate) struct Process(pub(crate) Child);

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Process {
    /// Starts a command; what it says is not read.
    pub(crate) fn start(command: &mut Command) -> anyhow::Result<Self> {
        command.stdout(Stdio::null());
        Ok(Self(command.spawn().with_context(|| format!("cannot start {}", command.get_program().display()))?))
    }

    /// Seconds of processor time that it has used.
    pub(crate) fn cpu_s(&self) -> anyhow::Result<f64> {
        let stat = self.proc("stat")?;
        // The name may hold blanks; it ends with the last bracket. Then come state and 10 numbers, and the two times.
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let ticks = |n: usize| fields.get(n).and_then(|f| f.parse::<f64>().ok()).context("/proc has another form");
        // Linux tells it in hundredths of a second.
        Ok((ticks(11)? + ticks(12)?) / 100.0)
    }

    /// Bytes of memory that it has.
    pub(crate) fn rss(&self) -> anyhow::Result<f64> {
        let status = self.proc("status")?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("/proc tells no VmRSS")?;
        Ok(line.trim().trim_end_matches("kB").trim().parse::<f64>()? * 1_024.0)
    }

    fn proc(&self, name: &str) -> anyhow::Result<String> {
        let path = format!("/proc/{}/{name}", self.0.id());
        std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}; this runs on Linux"))
    }
}

/// A server with an empty folder.
#[derive(Debug)]
pub(crate) struct Redis {
    // Ended before its folder goes.
    _process: Process,
    _folder: tempfile::TempDir,
    pub(crate) url: String,
}

impl Redis {
    /// Starts a server, and waits until it answers.
    pub(crate) async fn start(settings: &[&str]) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new().prefix("refile-benchmarks-").tempdir()?;
        let port = free_port()?;
        let mut command = Command::new("redis-server");
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1"]).args(settings);
        let process =
            Process::start(command.arg("--dir").arg(folder.path())).context("redis-server must be installed")?;
        let redis = Self { _process: process, _folder: folder, url: format!("redis://127.0.0.1:{port}/0") };
        let deadline = Instant::now() + START;
        while redis.sample().await.is_err() {
            if Instant::now() > deadline {
                bail!("redis-server does not answer on port {port}");
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        Ok(redis)
    }

    /// Its own numbers.
    pub(crate) async fn sample(&self) -> anyhow::Result<Sample> {
        Ok(Server::watch(&self.url).await?.sample().await?)
    }
}

/// A port of loopback on which nobody listens at the moment.
pub(crate) fn free_port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

/// The programs that are measured.
#[derive(Debug, Clone)]
pub(crate) struct Programs(PathBuf);

impl Programs {
    /// Those that were built with this one.
    pub(crate) fn find() -> anyhow::Result<Self> {
        let refile = Path::new(env!("CARGO_BIN_EXE_refile"));
        let programs = Self(refile.parent().context("the programs lie in no folder")?.to_owned());
        for name in ["refile", "refile-coordinator"] {
            let path = programs.path(name);
            anyhow::ensure!(path.exists(), "{} is missing: start this with `make bench`", path.display());
        }
        Ok(programs)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// A program in a folder, without the user's settings, with any port for an API.
    pub(crate) fn command(&self, name: &str, dir: &Path) -> Command {
        let mut command = Command::new(self.path(name));
        command.current_dir(dir).env_clear().stdin(Stdio::null());
        command.envs(["PATH", "TMPDIR"].into_iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
        command.env("REFILE_COORDINATOR_LISTEN", "127.0.0.1:0").env("REFILE_LOG", "error").env("USER", "bench");
        command
    }

    /// Runs `refile bench` and gives its figures.
    pub(crate) async fn bench(&self, arguments: &[String]) -> anyhow::Result<serde_json::Value> {
        let dir = std::env::temp_dir();
        let mut command = tokio::process::Command::from(self.command("refile", &dir));
        command.arg("bench").args(arguments).arg("--json").stderr(Stdio::piped()).kill_on_drop(true);
        let ended = command.output().await.context("cannot start refile")?;
        if !ended.status.success() {
            bail!("refile bench {}: {}", arguments.join(" "), String::from_utf8_lossy(&ended.stderr));
        }
        Ok(serde_json::from_slice(&ended.stdout)?)
    }
}
