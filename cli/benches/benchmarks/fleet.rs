//! What is measured through the store's own calls: turns, heartbeats, a killed worker.

use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use async_trait::async_trait;
use nix::sys::resource::{UsageWho, getrusage};
use refile_config::Config;
use refile_coordinator::{Coordinator, submission};
use refile_core::decide::submission::{NewTask, Workflow};
use refile_core::task::{Change, Usage};
use refile_core::{Outcome, Priority, Queue};
use refile_store::{Claim, ClaimRequest, Lease, LeaseState, OpenOptions, Store};
use refile_telemetry::{Health, Metrics, process};
use refile_worker::backpressure::Room;
use refile_worker::pool::{self, Execute, Pool};
use refile_worker::worker::Role;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::figures::{Heartbeats, Killed, Turns, Wait, median, quantile};
use crate::server::{Process, Programs, Redis, SETTINGS};
use crate::{Sizes, say};

/// Calls carry so many tasks or leases.
const BATCH: usize = 1_000;
/// The repository whose single tasks wait.
const SINGLE: &str = "single";

async fn open(url: &str) -> anyhow::Result<Arc<dyn Store>> {
    Ok(refile_store::open(url, Path::new("."), OpenOptions::default()).await?)
}

/// Submits tasks of 1 KiB.
async fn submit(store: &dyn Store, repository: &str, tasks: u64) -> anyhow::Result<()> {
    let new = |number: u64| NewTask {
        title: format!("Task {number}"),
        description: format!("{number:01024}"),
        repository: repository.to_owned(),
        base: "main".to_owned(),
        priority: Priority::Normal,
        key: None,
        labels: Vec::new(),
        workflow: Workflow { lands: false, ..Workflow::default() },
    };
    submission::submit(store, &Config::default(), (0..tasks).map(new).collect()).await?;
    Ok(())
}

/// A coder's agent that takes no time. It counts, and tells when it has a single task, and how many jobs there were before.
struct Counter {
    claimed: AtomicU64,
    single: mpsc::UnboundedSender<(Instant, u64)>,
}

#[async_trait]
impl Execute for Counter {
    async fn room(&self) -> Room {
        Room::fixed(Arc::default())
    }

    async fn execute(&self, claim: &Claim) -> Outcome {
        let before = self.claimed.fetch_add(1, Ordering::SeqCst);
        if claim.task.repository == SINGLE {
            let _ = self.single.send((Instant::now(), before));
        }
        Outcome::Coded {
            change: Change {
                branch: format!("refile/{}", claim.lease.task),
                base_commit: "0".repeat(40),
                head: format!("{:0>40}", claim.lease.task.as_str()),
                patch_id: format!("{:0>40}", claim.lease.task.as_str()),
                files: 1,
                lines: 0,
                diff: None,
                summary: String::new(),
                unfinished: false,
            },
            gates: Vec::new(),
            prompt_digest: "0".repeat(64),
            transcript: None,
            usage: Usage::default(),
        }
    }
}

/// The wait of single tasks on both engines.
pub(crate) async fn turns(sizes: &Sizes) -> anyhow::Result<Vec<Turns>> {
    let server = Redis::start(&SETTINGS).await?;
    let folder = tempfile::Builder::new().prefix("refile-benchmarks-").tempdir()?;
    let file = format!("sqlite:{}", folder.path().join("fleet.db").display());
    // A smaller backlog would be done before the last single task.
    let (backlog, probes) = (sizes.of(100_000).max(20_000), if sizes.is_quick { 10 } else { 20 });
    let mut all = Vec::new();
    for (engine, url) in [("Redis", server.url.as_str()), ("SQLite", file.as_str())] {
        let store = open(url).await?;
        let empty = waits(&store, 0, probes).await?;
        submit(store.as_ref(), "backlog", backlog).await?;
        let behind = waits(&store, backlog, probes).await?;
        say(&format!("turns on {engine}: {:.1} ms empty, {:.1} ms behind {backlog} jobs", empty.p50_ms, behind.p50_ms));
        all.push(Turns { engine: engine.to_owned(), backlog, probes, empty, behind });
    }
    Ok(all)
}

/// Runs a coordinator and a coder, and submits single tasks one after the other.
async fn waits(store: &Arc<dyn Store>, backlog: u64, probes: usize) -> anyhow::Result<Wait> {
    let (single, mut claimed) = mpsc::unbounded_channel();
    let agent = Arc::new(Counter { claimed: AtomicU64::new(0), single });
    let (shutdown, config, metrics) = (CancellationToken::new(), Config::default(), Metrics::new()?);
    let coordinator = Coordinator {
        store: store.clone(),
        config: Arc::new(Config::default()),
        metrics: metrics.clone(),
        health: Health::default(),
        name: process::unique_name("coordinator"),
    };
    let pool = Pool {
        store: store.clone(),
        metrics,
        health: Health::default(),
        name: process::unique_name("coder"),
        role: Role::Coder,
        queues: vec![Queue::Code],
        concurrency: 100,
        lease: config.workers.lease.0,
        grace: Duration::from_secs(5),
        agent: agent.clone(),
    };
    let deciding = tokio::spawn(coordinator.run(None, shutdown.clone()));
    let working = tokio::spawn(pool::run(Arc::new(pool), shutdown.clone()));
    let (mut ms, mut jobs) = (Vec::new(), Vec::new());
    for _ in 0..probes {
        tokio::time::sleep(Duration::from_millis(10)).await;
        let (start, before) = (Instant::now(), agent.claimed.load(Ordering::SeqCst));
        submit(store.as_ref(), SINGLE, 1).await?;
        let told = tokio::time::timeout(Duration::from_mins(1), claimed.recv()).await;
        let (at, place) = told.context("a single task was not claimed within a minute")?.context("the coder ended")?;
        ms.push(at.duration_since(start).as_secs_f64() * 1_000.0);
        jobs.push(place.saturating_sub(before) as f64);
    }
    let done = agent.claimed.load(Ordering::SeqCst);
    shutdown.cancel();
    working.await??;
    deciding.await?;
    ensure!(backlog == 0 || done < backlog, "the backlog was done before the last single task: nothing was measured");
    let most = |values: &[f64]| quantile(values, 1.0);
    Ok(Wait { p50_ms: median(&ms), max_ms: most(&ms), p50_jobs: median(&jobs), max_jobs: most(&jobs) })
}

/// A coordinator as a process.
pub(crate) fn coordinator(programs: &Programs, dir: &Path, url: &str) -> anyhow::Result<Process> {
    Process::start(programs.command("refile-coordinator", dir).args(["--store", url]))
}

/// Claims jobs until there are so many or none more come.
async fn claim(store: &dyn Store, owner: &str, jobs: usize, lease: Duration) -> anyhow::Result<Vec<Lease>> {
    let mut leases = Vec::new();
    while leases.len() < jobs {
        let request = ClaimRequest {
            queues: vec![Queue::Code],
            owner: owner.to_owned(),
            max: BATCH.min(jobs - leases.len()),
            lease,
            wait: Duration::from_secs(5),
            limits: Arc::default(),
        };
        let claims = store.claim(&request).await?;
        ensure!(!claims.is_empty(), "only {} of {jobs} jobs could be claimed", leases.len());
        leases.extend(claims.into_iter().map(|claim| claim.lease));
    }
    Ok(leases)
}

/// Extends leases for a while, beside a coordinator that has nothing else to do.
pub(crate) async fn heartbeats(programs: &Programs, sizes: &Sizes) -> anyhow::Result<Heartbeats> {
    let (server, folder) = (Redis::start(&SETTINGS).await?, tempfile::tempdir()?);
    let store = open(&server.url).await?;
    let (tasks, every, lease) = (sizes.of(10_000), Duration::from_secs(10), Duration::from_secs(30));
    let beats = if sizes.is_quick { 1 } else { 3 };
    submit(store.as_ref(), "bench", tasks).await?;
    let leases = claim(store.as_ref(), "holder", tasks as usize, lease).await?;
    let coordinator = coordinator(programs, folder.path(), &server.url)?;
    // Its start is not what is measured.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let (before, own, coordinators) = (server.sample().await?.cpu_s, cpu_s()?, coordinator.cpu_s()?);
    let start = Instant::now();
    for beat in 0..beats {
        for batch in leases.chunks(BATCH) {
            let states = store.extend(batch, lease).await?;
            ensure!(states.iter().all(|state| *state == LeaseState::Held), "leases were lost");
        }
        tokio::time::sleep((every * (beat + 1)).saturating_sub(start.elapsed())).await;
    }
    let seconds = start.elapsed().as_secs_f64();
    let percent = |to: f64, from: f64| 100.0 * (to - from) / seconds;
    let found = Heartbeats {
        leases: tasks,
        every_s: every.as_secs_f64(),
        seconds,
        worker_percent: percent(cpu_s()?, own),
        coordinator_percent: percent(coordinator.cpu_s()?, coordinators),
        redis_percent: percent(server.sample().await?.cpu_s, before),
    };
    say(&format!("heartbeats: Redis {:.2} %, coordinator {:.2} %", found.redis_percent, found.coordinator_percent));
    Ok(found)
}

/// Processor time of this process, in seconds.
fn cpu_s() -> anyhow::Result<f64> {
    let usage = getrusage(UsageWho::RUSAGE_SELF)?;
    let seconds = |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
    Ok(seconds(usage.user_time()) + seconds(usage.system_time()))
}

/// What the process does that will be killed: claims, says so, and waits.
pub(crate) async fn hold(url: &str, jobs: usize, lease: Duration) -> anyhow::Result<()> {
    let store = open(url).await?;
    claim(store.as_ref(), "doomed", jobs, lease).await?;
    println!("claimed");
    std::future::pending::<()>().await;
    Ok(())
}

/// Kills a process that has leases, and claims again.
pub(crate) async fn killed(programs: &Programs, sizes: &Sizes) -> anyhow::Result<Killed> {
    let (jobs, lease) = (200_usize, Duration::from_secs(2));
    let kills = sizes.rounds(3);
    let mut beyond = Vec::new();
    for _ in 0..kills {
        let (server, folder) = (Redis::start(&SETTINGS).await?, tempfile::tempdir()?);
        let store = open(&server.url).await?;
        submit(store.as_ref(), "bench", jobs as u64).await?;
        let _coordinator = coordinator(programs, folder.path(), &server.url)?;
        let mut doomed = tokio::process::Command::new(std::env::current_exe()?)
            .args(["--hold", &server.url, &jobs.to_string(), &lease.as_millis().to_string()])
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let stdout = doomed.stdout.take().context("the process has no output")?;
        let said = BufReader::new(stdout).lines().next_line().await?;
        ensure!(said.as_deref() == Some("claimed"), "the process that is to be killed claimed nothing");
        doomed.start_kill()?;
        let start = Instant::now();
        let mut again = 0;
        while again < jobs {
            let found = claim(store.as_ref(), "other", 1, Duration::from_mins(1)).await?;
            again += found.len();
            let ms = (start.elapsed().as_secs_f64() - lease.as_secs_f64()) * 1_000.0;
            beyond.extend(found.iter().map(|_| ms));
        }
        doomed.wait().await?;
    }
    let found = Killed {
        jobs: jobs as u64,
        kills,
        lease_ms: lease.as_secs_f64() * 1_000.0,
        p50_ms: median(&beyond),
        p99_ms: quantile(&beyond, 0.99),
    };
    say(&format!("a killed worker: claimed again p99 {:.0} ms after the lease", found.p99_ms));
    Ok(found)
}
