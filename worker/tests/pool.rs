//! The claim loop of a worker in this process, on a real store.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use common::Place;
use common::fleet::{client, wanted};
use refile_core::decide::submission::submit;
use refile_core::failure::{Failure, FailureKind, Scope};
use refile_core::task::Usage;
use refile_core::{Outcome, Policy, TaskId, Timestamp};
use refile_store::artifacts::Artifacts;
use refile_store::commit::commit;
use refile_store::{Claim, Limits, SqliteStore, Store, TakeRequest, Taken};
use refile_telemetry::{Health, Metrics};
use refile_worker::backpressure::Room;
use refile_worker::pool::{self, Execute, Pool};
use refile_worker::worker::{Role, Worker};
use tokio::sync::{Barrier, Semaphore};
use tokio_util::sync::CancellationToken;

const DEADLINE: Duration = Duration::from_secs(30);

/// A coder with a place for one job, whose agent says that it began and waits until it is let go.
fn coder(place: &Place, store: Arc<dyn Store>) -> Worker {
    let dir = place.root.path();
    let script = format!("touch {0}/began; while [ ! -e {0}/go ]; do sleep 1; done; echo x > new.txt", dir.display());
    let script = script.replace('"', "\\\"");
    let text = format!("[workers]\nlease = \"1s\"\n[agents.slow]\ncommand = [\"sh\", \"-c\", \"{script}\"]\n");
    std::fs::write(dir.join("refile.toml"), text).unwrap();
    let (config, _) = refile_config::load(Some(&dir.join("refile.toml")), [], &[]).unwrap();
    Worker {
        store,
        artifacts: Artifacts::open("file:artifacts", dir).unwrap(),
        workspace: place.workspace.clone(),
        client: client(),
        metrics: Metrics::new().unwrap(),
        health: Health::default(),
        name: "coder".to_owned(),
        role: Role::Coder,
        queues: Role::Coder.queues(),
        concurrency: 1,
        config: Arc::new(config),
    }
}

async fn until(what: &str, so: impl Fn() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !so() {
        assert!(Instant::now() < deadline, "it never came to this: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn add(store: &Arc<dyn Store>, place: &Place, id: &str) {
    let policy = Policy { ladder: vec!["slow".to_owned()], ..Policy::default() };
    store
        .submit(&[commit(submit(TaskId::parse(id).unwrap(), wanted(place, id), &policy, Timestamp(1)), None, None)])
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_with_every_place_taken_is_alive() {
    let place = Place::new();
    let path: &Path = place.root.path();
    let store: Arc<dyn Store> = Arc::new(SqliteStore::open(&path.join("fleet.db"), None).unwrap());
    add(&store, &place, "t1").await;
    let worker = coder(&place, store);
    let (health, shutdown) = (worker.health.clone(), CancellationToken::new());
    let running = tokio::spawn(pool::run(Arc::new(worker.pool()), shutdown.clone()));
    until("the agent runs", || path.join("began").exists()).await;
    // Its only place is taken: the age of the last turn must go back to nothing again and again all the same.
    for _ in 0..2 {
        until("it has not turned for a while", || health.since_last_turn() > Duration::from_millis(100)).await;
        until("it turned", || health.since_last_turn() < Duration::from_millis(100)).await;
    }
    assert!(health.is_alive() && health.is_ready());
    std::fs::write(path.join("go"), "").unwrap();
    shutdown.cancel();
    running.await.unwrap().unwrap();
}

/// A store that counts the calls that hand outcomes in.
fn counted(place: &Place) -> (Arc<dyn Store>, Arc<AtomicUsize>) {
    let calls = Arc::new(AtomicUsize::new(0));
    let counter = calls.clone();
    let observer = move |operation: &'static str, _| {
        if operation == "report" {
            counter.fetch_add(1, Ordering::SeqCst);
        }
    };
    let file = place.root.path().join("fleet.db");
    (Arc::new(SqliteStore::open(&file, Some(Arc::new(observer))).unwrap()), calls)
}

fn pool_of(store: &Arc<dyn Store>, agent: Arc<dyn Execute>, concurrency: usize) -> Arc<Pool> {
    Arc::new(Pool {
        store: store.clone(),
        metrics: Metrics::new().unwrap(),
        health: Health::default(),
        name: "coder".to_owned(),
        role: Role::Coder,
        queues: Role::Coder.queues(),
        concurrency,
        lease: Duration::from_hours(1),
        grace: DEADLINE,
        agent,
    })
}

fn asks() -> Outcome {
    let (words, prompt_digest) = ("Which one?".to_owned(), "digest".to_owned());
    Outcome::NeedsInput { words, prompt_digest, transcript: None, usage: Usage::default() }
}

/// Takes this many outcomes, or fails.
async fn taken(store: &Arc<dyn Store>, count: usize) -> Vec<Taken> {
    let request =
        TakeRequest { consumer: "c".to_owned(), max: 1_000, wait: Duration::from_millis(100), takeover: DEADLINE * 10 };
    let (deadline, mut taken) = (Instant::now() + DEADLINE, Vec::new());
    while taken.len() < count {
        assert!(Instant::now() < deadline, "{} of {count} outcomes came", taken.len());
        taken.extend(store.take_outcomes(&request).await.unwrap());
    }
    taken
}

/// Jobs that end when all of them have begun.
struct Together(Barrier);

#[async_trait]
impl Execute for Together {
    async fn room(&self) -> Room {
        Room::fixed(Arc::default())
    }

    async fn execute(&self, _: &Claim) -> Outcome {
        self.0.wait().await;
        asks()
    }
}

#[tokio::test]
async fn jobs_that_end_together_are_handed_in_together_and_each_once() {
    const JOBS: usize = 50;
    let place = Place::new();
    let (store, calls) = counted(&place);
    for n in 0..JOBS {
        add(&store, &place, &format!("t{n}")).await;
    }
    let shutdown = CancellationToken::new();
    let agent = Arc::new(Together(Barrier::new(JOBS)));
    let running = tokio::spawn(pool::run(pool_of(&store, agent, JOBS), shutdown.clone()));
    let taken = taken(&store, JOBS).await;
    shutdown.cancel();
    running.await.unwrap().unwrap();
    let tasks: BTreeSet<&TaskId> = taken.iter().map(|t| &t.guard.receipt.task).collect();
    assert_eq!((taken.len(), tasks.len()), (JOBS, JOBS));
    let calls = calls.load(Ordering::SeqCst);
    assert!((1..JOBS).contains(&calls), "{calls} calls");
}

/// The job of one task ends at once, those of others when they are let go.
struct OneIsQuick {
    quick: TaskId,
    go: Semaphore,
}

#[async_trait]
impl Execute for OneIsQuick {
    async fn room(&self) -> Room {
        Room::fixed(Arc::default())
    }

    async fn execute(&self, claim: &Claim) -> Outcome {
        if claim.lease.task != self.quick {
            self.go.acquire().await.unwrap().forget();
        }
        asks()
    }
}

#[tokio::test]
async fn a_lone_job_is_handed_in_while_others_go_on() {
    let place = Place::new();
    let (store, calls) = counted(&place);
    for id in ["slow1", "quick", "slow2"] {
        add(&store, &place, id).await;
    }
    let quick = TaskId::parse("quick").unwrap();
    let agent = Arc::new(OneIsQuick { quick: quick.clone(), go: Semaphore::new(0) });
    let shutdown = CancellationToken::new();
    let running = tokio::spawn(pool::run(pool_of(&store, agent.clone(), 3), shutdown.clone()));
    let first = taken(&store, 1).await;
    assert_eq!(first.len(), 1);
    assert_eq!(first[0].guard.receipt.task, quick);
    // The observer hears of a call after others may have seen what it did.
    until("the report was counted", || calls.load(Ordering::SeqCst) > 0).await;
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    // The others are running, and go on after the shutdown until they are done and handed in.
    shutdown.cancel();
    agent.go.add_permits(2);
    assert_eq!(taken(&store, 2).await.len(), 2);
    running.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_report_that_the_store_cannot_take_does_not_fail_its_neighbours() {
    const JOBS: usize = 10;
    let place = Place::new();
    let (store, calls) = counted(&place);
    for n in 0..JOBS {
        add(&store, &place, &format!("t{n}")).await;
    }
    // The database itself refuses one outcome, and with it the whole call that it is in.
    let file = rusqlite::Connection::open(place.root.path().join("fleet.db")).unwrap();
    let refuse =
        "CREATE TRIGGER no BEFORE INSERT ON outcomes WHEN NEW.task = 't5' BEGIN SELECT RAISE(ABORT, 'no'); END";
    file.execute_batch(refuse).unwrap();
    let shutdown = CancellationToken::new();
    let agent = Arc::new(Together(Barrier::new(JOBS)));
    let pool = pool_of(&store, agent, JOBS);
    let running = tokio::spawn(pool::run(pool, shutdown.clone()));
    let taken = taken(&store, JOBS - 1).await;
    let tasks: BTreeSet<&str> = taken.iter().map(|t| t.guard.receipt.task.as_str()).collect();
    assert_eq!(tasks, BTreeSet::from(["t0", "t1", "t2", "t3", "t4", "t6", "t7", "t8", "t9"]));
    // What was refused is not tried for ever: the worker has nothing left to do.
    shutdown.cancel();
    running.await.unwrap().unwrap();
    assert!(calls.load(Ordering::SeqCst) <= 1 + JOBS, "{calls:?} calls");
}

/// Counts how many jobs go on at once, and how many there were at most.
#[derive(Default)]
struct Crowd {
    now: AtomicUsize,
    most: AtomicUsize,
}

#[async_trait]
impl Execute for Crowd {
    async fn room(&self) -> Room {
        Room::fixed(Arc::default())
    }

    async fn execute(&self, _: &Claim) -> Outcome {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        // Long enough for every claim that would be one too many.
        tokio::time::sleep(Duration::from_millis(100)).await;
        self.now.fetch_sub(1, Ordering::SeqCst);
        asks()
    }
}

/// A crowd under limits.
struct Limited(Arc<Crowd>, Arc<Limits>);

#[async_trait]
impl Execute for Limited {
    async fn room(&self) -> Room {
        Room::fixed(self.1.clone())
    }

    async fn execute(&self, claim: &Claim) -> Outcome {
        self.0.execute(claim).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_more_jobs_of_an_agent_run_at_once_than_its_limit_says() {
    let place = Place::new();
    let (store, _) = counted(&place);
    for n in 0..5 {
        add(&store, &place, &format!("t{n}")).await;
    }
    let config = coder(&place, store.clone());
    let file = place.root.path().join("refile.toml");
    let text = std::fs::read_to_string(&file).unwrap() + "[limits]\nagents = { slow = 2 }\n";
    std::fs::write(&file, text).unwrap();
    let (limited, _) = refile_config::load(Some(&file), [], &[]).unwrap();
    // The limits that a worker makes of its configuration, and two processes with room for all.
    let limits = Worker { config: Arc::new(limited), ..config }.pool().agent.room().await.limits;
    let (shutdown, crowd) = (CancellationToken::new(), Arc::new(Crowd::default()));
    let running: Vec<_> = ["one", "two"]
        .map(|name| {
            let of = Arc::into_inner(pool_of(&store, crowd.clone(), 5)).unwrap();
            let agent = Arc::new(Limited(crowd.clone(), limits.clone()));
            let pool = Pool { name: name.to_owned(), agent, ..of };
            tokio::spawn(pool::run(Arc::new(pool), shutdown.clone()))
        })
        .into();
    assert_eq!(taken(&store, 5).await.len(), 5);
    shutdown.cancel();
    for one in running {
        one.await.unwrap().unwrap();
    }
    assert_eq!(crowd.most.load(Ordering::SeqCst), 2);
}

/// Fails with what stands in it, having used up that many tokens.
struct Fails(Failure, u64);

#[async_trait]
impl Execute for Fails {
    async fn room(&self) -> Room {
        Room::fixed(Arc::default())
    }

    async fn execute(&self, _: &Claim) -> Outcome {
        let (failure, usage) = (self.0.clone(), Usage { output_tokens: self.1, ..Usage::default() });
        Outcome::AgentFailed { failure, prompt_digest: None, transcript: None, usage, change: None }
    }
}

#[tokio::test]
async fn a_worker_whose_key_is_refused_ends_with_that_error_and_its_job_is_put_back() {
    let refused = Failure { scope: Scope::Key, ..Failure::new(FailureKind::Auth, "HTTP 401") };
    // What has cost something is handed in, so that it can be counted.
    for (tokens, handed_in) in [(0, 0), (1, 1)] {
        let place = Place::new();
        let (store, _) = counted(&place);
        for n in 0..3 {
            add(&store, &place, &format!("t{n}")).await;
        }
        let pool = pool_of(&store, Arc::new(Fails(refused.clone(), tokens)), 1);
        let shutdown = CancellationToken::new();
        assert_eq!(pool::run(pool, shutdown.clone()).await, Err(refused.clone()));
        assert!(!shutdown.is_cancelled(), "whoever shares the token decides for itself");
        let stats = store.stats().await.unwrap();
        assert_eq!((stats.outcomes, stats.depth.values().sum::<u64>()), (handed_in, 3 - handed_in));
        assert!(stats.leases.values().all(|held| *held == 0), "{stats:?}");
    }
}

#[tokio::test]
async fn a_failure_that_is_about_its_call_alone_is_handed_in_and_the_worker_goes_on() {
    for kind in [FailureKind::Configuration, FailureKind::RateLimit, FailureKind::Timeout] {
        let place = Place::new();
        let (store, _) = counted(&place);
        for n in 0..3 {
            add(&store, &place, &format!("t{n}")).await;
        }
        let pool = pool_of(&store, Arc::new(Fails(Failure::new(kind, "x"), 0)), 1);
        let shutdown = CancellationToken::new();
        let running = tokio::spawn(pool::run(pool, shutdown.clone()));
        assert_eq!(taken(&store, 3).await.len(), 3, "{kind:?}");
        shutdown.cancel();
        running.await.unwrap().unwrap();
    }
}

/// A coder whose provider turns it away, after it has used up so many tokens; counts its jobs.
struct TurnedAway(u64, AtomicUsize);

#[async_trait]
impl Execute for TurnedAway {
    async fn room(&self) -> Room {
        Room::fixed(Arc::default())
    }

    async fn execute(&self, _: &Claim) -> Outcome {
        self.1.fetch_add(1, Ordering::SeqCst);
        let failure = Failure { scope: Scope::Model, ..Failure::new(FailureKind::RateLimit, "HTTP 429") };
        let usage = Usage { input_tokens: self.0, ..Usage::default() };
        Outcome::AgentFailed { failure, prompt_digest: None, transcript: None, usage, change: None }
    }
}

#[tokio::test]
async fn a_job_that_cost_nothing_goes_back_and_one_that_did_is_reported() {
    for tokens in [0, 7] {
        let place = Place::new();
        let (store, _) = counted(&place);
        add(&store, &place, "t0").await;
        let agent = Arc::new(TurnedAway(tokens, AtomicUsize::new(0)));
        let shutdown = CancellationToken::new();
        let running = tokio::spawn(pool::run(pool_of(&store, agent.clone(), 1), shutdown.clone()));
        if tokens > 0 {
            let reported = taken(&store, 1).await;
            let outcome = format!("{reported:?}");
            assert!(outcome.contains("RateLimit") && outcome.contains("input_tokens: 7"), "{outcome}");
        } else {
            let deadline = Instant::now() + DEADLINE;
            while agent.1.load(Ordering::SeqCst) < 2 {
                assert!(Instant::now() < deadline, "it was not claimed again");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        shutdown.cancel();
        running.await.unwrap().unwrap();
        let waiting = store.stats().await.unwrap().depth.values().sum::<u64>();
        assert_eq!((waiting, agent.1.load(Ordering::SeqCst) == 1), if tokens > 0 { (0, true) } else { (1, false) });
    }
}
