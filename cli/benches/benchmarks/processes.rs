//! What processes take that have nothing to do, and how fast they start.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use serde_json::json;

use crate::figures::{Idle, Start, median};
use crate::fleet::coordinator;
use crate::server::{Process, Programs, Redis, SETTINGS, free_port};
use crate::{Sizes, say};

/// A member of the benchmark's fleet. Its output is kept open: it would end with it.
struct Member {
    process: Process,
    _out: BufReader<ChildStdout>,
}

impl Member {
    /// Starts the real claim loop with agents that do nothing.
    fn start(programs: &Programs, dir: &Path, kind: &str, url: &str) -> anyhow::Result<Self> {
        let mut command = programs.command("refile", dir);
        let mut child = command.arg("bench-part").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (stdin, stdout) = (child.stdin.as_mut(), child.stdout.take());
        let (stdin, mut out) = (stdin.context("no input")?, BufReader::new(stdout.context("no output")?));
        let load = json!({ "tasks": 1, "payload": 64, "concurrency": 4, "rejected": 0.0, "rate": null });
        writeln!(stdin, "{}", json!({ "kind": kind, "store": url, "allow_volatile": false, "load": load }))?;
        writeln!(stdin, "\"go\"")?;
        let mut line = String::new();
        out.read_line(&mut line)?;
        ensure!(line.trim() == "\"ready\"", "the {kind} said {line:?} and not that it is ready");
        Ok(Self { process: Process(child), _out: out })
    }
}

/// Three processes and a server with nothing to do.
pub(crate) async fn idle(programs: &Programs, sizes: &Sizes) -> anyhow::Result<Idle> {
    let (server, folder) = (Redis::start(&SETTINGS).await?, tempfile::tempdir()?);
    let coordinator = coordinator(programs, folder.path(), &server.url)?;
    let coder = Member::start(programs, folder.path(), "coder", &server.url)?;
    let reviewer = Member::start(programs, folder.path(), "reviewer", &server.url)?;
    // Their start is not what is measured.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let processes = [&coordinator, &coder.process, &reviewer.process];
    let look = || processes.iter().map(|p| p.cpu_s()).collect::<anyhow::Result<Vec<f64>>>();
    let (before, redis, start) = (look()?, server.sample().await?.cpu_s, Instant::now());
    tokio::time::sleep(Duration::from_secs(if sizes.is_quick { 5 } else { 20 })).await;
    let (after, redis_after) = (look()?, server.sample().await?.cpu_s);
    let seconds = start.elapsed().as_secs_f64();
    let percent = |n: usize| 100.0 * (after[n] - before[n]) / seconds;
    let found = Idle {
        seconds,
        coordinator_percent: percent(0),
        coder_percent: percent(1),
        reviewer_percent: percent(2),
        redis_percent: 100.0 * (redis_after - redis) / seconds,
        coordinator_rss: coordinator.rss()?,
    };
    let fleet: f64 = (0..3).map(percent).sum();
    say(&format!("idle: the fleet {fleet:.2} %, Redis {:.2} %", found.redis_percent));
    Ok(found)
}

/// Starts `refile up` some times on each engine.
pub(crate) async fn starts(programs: &Programs, sizes: &Sizes) -> anyhow::Result<Vec<Start>> {
    let server = Redis::start(&SETTINGS).await?;
    let rounds = sizes.rounds(5);
    let mut found = Vec::new();
    for engine in ["SQLite", "Redis"] {
        let mut times = Vec::new();
        let mut rss = 0.0;
        for round in 0..rounds {
            let folder = tempfile::Builder::new().prefix("refile-benchmarks-").tempdir()?;
            prepare(folder.path())?;
            let (port, mut command) = (free_port()?, programs.command("refile", folder.path()));
            command.arg("up").env("REFILE_COORDINATOR_LISTEN", format!("127.0.0.1:{port}"));
            if engine == "Redis" {
                command.args(["--store", &server.url]);
            }
            let start = Instant::now();
            let process = Process::start(&mut command)?;
            while !is_ready(port) {
                ensure!(start.elapsed() < Duration::from_secs(30), "`refile up` was not ready within 30 s");
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            times.push(start.elapsed().as_secs_f64() * 1_000.0);
            if round + 1 == rounds {
                tokio::time::sleep(Duration::from_secs(5)).await;
                rss = process.rss()?;
            }
        }
        let ready_ms = median(&times);
        say(&format!("start on {engine}: {ready_ms:.0} ms"));
        found.push(Start { engine: engine.to_owned(), rounds, ready_ms, rss });
    }
    Ok(found)
}

/// A repository and a configuration, as small as can be.
fn prepare(dir: &Path) -> anyhow::Result<()> {
    let config =
        "[repository]\nurl = \"repo\"\n[agents.none]\ncommand = [\"true\"]\n[reviewers.none]\ncommand = [\"true\"]\n";
    std::fs::write(dir.join("refile.toml"), config)?;
    let git = |arguments: &[&str]| {
        let ended = Command::new("git").arg("-C").arg(dir).args(arguments).output().context("cannot run git")?;
        if !ended.status.success() {
            bail!("git {}: {}", arguments.join(" "), String::from_utf8_lossy(&ended.stderr));
        }
        Ok(())
    };
    git(&["init", "--quiet", "--initial-branch=main", "repo"])?;
    let who = ["-c", "user.name=bench", "-c", "user.email=bench@localhost"];
    git(&[&["-C", "repo"], &who[..], &["commit", "--quiet", "--allow-empty", "--message=Start"]].concat())
}

/// Whether the probe says yes.
fn is_ready(port: u16) -> bool {
    let ask = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    ask().is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"))
}

/// The size of `refile` without its symbols; with them where there is no `strip`.
pub(crate) fn binary_bytes(programs: &Programs) -> anyhow::Result<f64> {
    let (folder, refile) = (tempfile::tempdir()?, programs.path("refile"));
    let stripped = folder.path().join("refile");
    let ended = Command::new("strip").arg("-o").arg(&stripped).arg(&refile).status();
    let measured = if ended.is_ok_and(|status| status.success()) { stripped } else { refile };
    Ok(std::fs::metadata(measured)?.len() as f64)
}
