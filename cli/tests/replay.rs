//! Three hundred tasks of which a third of the review calls fail: real stores, the real coordinator, real workers that review
//! real changes of a real repository over HTTP. Only coding and landing take no time here.

#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod common;

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use common::git;
use common::judge::{Kept, Provider, Say, Script};
use refile_config::Config;
use refile_coordinator::Coordinator;
use refile_coordinator::submission::{self, TaskRequest};
use refile_core::task::{AttemptOutcome, Change, Usage};
use refile_core::{Outcome, Queue, Task, TaskState};
use refile_store::artifacts::Artifacts;
use refile_store::{Claim, Filter, OpenOptions, Store};
use refile_telemetry::{Health, Metrics};
use refile_worker::backpressure::Room;
use refile_worker::llm::Client;
use refile_worker::pool::{self, Execute, Pool};
use refile_worker::worker::{Role, Worker};
use refile_worker::workspace::Workspace;
use tokio_util::sync::CancellationToken;

/// How long a limit that is used up turns calls away. It says so as late, so that others ask before anybody knows.
const BURST: Duration = Duration::from_millis(400);

/// What coders do: nothing takes any time, and each attempt leaves the change that was made for it.
struct Coder {
    changes: Vec<Change>,
}

#[async_trait]
impl Execute for Coder {
    async fn room(&self) -> Room {
        Room::fixed(Arc::default())
    }

    async fn execute(&self, claim: &Claim) -> Outcome {
        if claim.queue == Queue::Land {
            return Outcome::Landed { commit: "c".repeat(40) };
        }
        Outcome::Coded {
            change: self.changes[claim.attempt as usize - 1].clone(),
            gates: Vec::new(),
            prompt_digest: String::new(),
            transcript: None,
            usage: Usage::default(),
        }
    }
}

/// A repository, with a branch and a change for each attempt that a task may have.
fn repository(dir: &Path) -> Vec<Change> {
    let repo = dir.join("repo");
    std::fs::create_dir(&repo).unwrap();
    git(&repo, &["init", "--quiet", "--initial-branch=main"]);
    std::fs::write(repo.join("list.txt"), "one\ntwo\n").unwrap();
    git(&repo, &["add", "--all"]);
    git(&repo, &["commit", "--quiet", "--message=Start"]);
    let base_commit = git(&repo, &["rev-parse", "HEAD"]).trim().to_owned();
    let change = |attempt: usize| {
        let branch = format!("work-{attempt}");
        git(&repo, &["checkout", "--quiet", "-b", &branch, "main"]);
        std::fs::write(repo.join("list.txt"), format!("one\ntwo\nof attempt {attempt}\n")).unwrap();
        git(&repo, &["commit", "--quiet", "--all", "--message=Work"]);
        let head = git(&repo, &["rev-parse", "HEAD"]).trim().to_owned();
        let base_commit = base_commit.clone();
        Change {
            branch,
            base_commit,
            patch_id: head.clone(),
            head,
            files: 1,
            lines: 1,
            diff: None,
            summary: String::new(),
            unfinished: false,
        }
    };
    (1..=3).map(change).collect()
}

/// A fleet on a store. Dropping it does not stop it; [`Fleet::stop`] does.
struct Fleet {
    store: Arc<dyn Store>,
    config: Arc<Config>,
    stop: CancellationToken,
    parts: Vec<tokio::task::JoinHandle<()>>,
    _dir: tempfile::TempDir,
}

impl Fleet {
    /// One coordinator, one coder, and reviewers of which each is a process to the store: a claim loop, a client and a
    /// view of the providers of its own.
    async fn start(url: &str, provider: &str, reviewers: usize, at_once: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let text = format!(
            "[repository]\nurl = \"repo\"\n[policy]\nbackoff = \"20ms\"\nmax_backoff = \"50ms\"\n\
             [agents.coder]\ncommand = [\"true\"]\n[reviewers.judge]\ntype = \"llm\"\nprovider = \"p\"\nmodel = \"m\"\n\
             timeout = \"3s\"\n[providers.p]\nkind = \"openai\"\nbase_url = \"{provider}\"\n"
        );
        std::fs::write(dir.path().join("refile.toml"), text).unwrap();
        let (config, _) = refile_config::load(Some(&dir.path().join("refile.toml")), [], &[]).unwrap();
        let config = Arc::new(config);
        let open = async || refile_store::open(url, dir.path(), OpenOptions::default()).await.unwrap();
        let (store, stop, mut parts) = (open().await, CancellationToken::new(), Vec::new());
        let coordinator = Coordinator {
            store: store.clone(),
            config: config.clone(),
            metrics: Metrics::new().unwrap(),
            health: Health::default(),
            name: "coordinator".to_owned(),
        };
        parts.push(tokio::spawn(coordinator.run(None, stop.clone())));
        let coder = Pool {
            store: store.clone(),
            metrics: Metrics::new().unwrap(),
            health: Health::default(),
            name: "coder".to_owned(),
            role: Role::Coder,
            queues: Role::Coder.queues(),
            concurrency: 50,
            lease: config.workers.lease.0,
            grace: config.workers.grace.0,
            agent: Arc::new(Coder { changes: repository(dir.path()) }),
        };
        let mut pools = vec![coder];
        let workspace = Workspace::open(&dir.path().join("work")).unwrap();
        for number in 0..reviewers {
            let worker = Worker {
                store: open().await,
                config: config.clone(),
                artifacts: Artifacts::open("file:artifacts", dir.path()).unwrap(),
                workspace: workspace.clone(),
                client: Client::new().unwrap(),
                metrics: Metrics::new().unwrap(),
                health: Health::default(),
                name: format!("reviewer-{number}"),
                role: Role::Reviewer,
                queues: Role::Reviewer.queues(),
                concurrency: at_once,
            };
            pools.push(worker.pool());
        }
        for pool in pools {
            let stop = stop.clone();
            parts.push(tokio::spawn(async move { pool::run(Arc::new(pool), stop).await.unwrap() }));
        }
        Self { store, config, stop, parts, _dir: dir }
    }

    async fn submit(&self, tasks: u64) {
        let new = |n| {
            let request = TaskRequest { title: format!("Task {n}"), ..TaskRequest::default() };
            submission::read(request, &self.config).unwrap()
        };
        submission::submit(self.store.as_ref(), &self.config, (1..=tasks).map(new).collect()).await.unwrap();
    }

    async fn tasks(&self) -> Vec<Task> {
        let (mut tasks, mut cursor) = (Vec::new(), None);
        loop {
            let page = self.store.list(&Filter::default(), cursor, 500).await.unwrap();
            tasks.extend(page.tasks);
            cursor = page.next;
            if cursor.is_none() {
                return tasks;
            }
        }
    }

    /// Waits until every task has ended or waits for a person.
    async fn all_done(&self, tasks: usize) -> Vec<Task> {
        let deadline = Instant::now() + Duration::from_mins(4);
        loop {
            let all = self.tasks().await;
            if all.len() == tasks && all.iter().all(|t| t.state != TaskState::Open) {
                return all;
            }
            assert!(
                Instant::now() < deadline,
                "{} are open",
                all.iter().filter(|t| t.state == TaskState::Open).count()
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn stop(self) {
        self.stop.cancel();
        for part in self.parts {
            part.await.unwrap();
        }
    }
}

/// How calls fail, a third of them: by the task and the number of its call, and never so many in a row that a person would
/// be asked. Now and then a limit is used up, and whoever calls then is turned away.
fn failing() -> Script {
    let answered_and_burst = Mutex::new((0_u64, None::<Instant>));
    Arc::new(move |task, n| {
        let mut state = answered_and_burst.lock().unwrap();
        let (answered, burst) = &mut *state;
        if burst.is_some_and(|since| since.elapsed() < BURST) {
            return Say::RateLimit;
        }
        *answered += 1;
        if answered.is_multiple_of(35) {
            *burst = Some(Instant::now());
            return Say::RateLimit;
        }
        drop(state);
        if n.is_multiple_of(4) {
            return Say::Verdict;
        }
        let mut mixed = task.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ n.wrapping_mul(0xd1b5_4a32_d192_ed03);
        mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        match mixed >> 32 & 0xff {
            0..=9 => Say::Nothing,
            10..=34 => Say::Truncated,
            35..=51 => Say::Garbage,
            _ => Say::Verdict,
        }
    })
}

/// The tasks by number: state, attempts, refiles, failed reviews.
async fn lives(kept: &Kept, script: Script, tasks: u64) -> (Vec<(TaskState, usize, usize)>, usize, Vec<Say>) {
    let (provider, address) = Provider::start(script, BURST).await;
    let fleet = Fleet::start(&kept.url(), &address, 2, 20).await;
    fleet.submit(tasks).await;
    let mut all = fleet.all_done(tasks as usize).await;
    fleet.stop().await;
    all.sort_by_key(|t| t.title.trim_start_matches("Task ").parse::<u64>().unwrap());
    let attempts = |t: &Task| t.phases[0].attempts.len();
    let refiles =
        |t: &Task| t.phases[0].attempts.iter().filter(|a| a.outcome == Some(AttemptOutcome::NeedsChanges)).count();
    let failed =
        all.iter().flat_map(|t| &t.phases[0].attempts).flat_map(|a| &a.reviews).filter(|r| r.failure.is_some());
    let failed = failed.count();
    let said = provider.calls().into_iter().map(|(_, said)| said).collect();
    (all.iter().map(|t| (t.state, attempts(t), refiles(t))).collect(), failed, said)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_third_of_the_review_calls_fail_and_no_coder_pays_for_it() {
    const TASKS: u64 = 300;
    for (with, without) in Kept::both().into_iter().zip(Kept::both()) {
        let (expected, failed, _) = lives(&without, Arc::new(|_, _| Say::Verdict), TASKS).await;
        assert_eq!(failed, 0);
        let (found, failed, calls) = lives(&with, failing(), TASKS).await;
        assert_eq!(found, expected, "state, attempts and refiles of every task are those of the run without failures");
        let said = |kinds: &[Say]| calls.iter().filter(|c| kinds.contains(c)).count();
        let turned_away = said(&[Say::RateLimit]);
        let bad = calls.len() - said(&[Say::Verdict]);
        let share = bad as f64 / calls.len() as f64;
        println!(
            "{bad} of {} calls failed ({:.0} %), {turned_away} were turned away, {failed} failed reviews",
            calls.len(),
            share * 100.0
        );
        // On a busy machine more calls are under way when a limit begins.
        assert!((0.28..=0.6).contains(&share), "{share}");
        assert!(turned_away * 3 >= bad, "{turned_away} of {bad}");
        for kind in [Say::Nothing, Say::Truncated, Say::Garbage] {
            assert!(said(&[kind]) > 0, "{kind:?} was never said");
        }
        assert!(failed > 0);
    }
}
