//! The claim loop of a worker in this process, on a real store.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::Place;
use common::fleet::task;
use refile_core::Policy;
use refile_core::decide::submission::{NewTask, Workflow, submit};
use refile_store::artifacts::Artifacts;
use refile_store::commit::commit;
use refile_store::{SqliteStore, Store};
use refile_telemetry::{Health, Metrics};
use refile_worker::llm::Client;
use refile_worker::pool;
use refile_worker::worker::{Role, Worker};
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
    let _ = rustls::crypto::ring::default_provider().install_default();
    Worker {
        store,
        artifacts: Artifacts::open("file:artifacts", dir).unwrap(),
        workspace: place.workspace.clone(),
        client: Client::new().unwrap(),
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

async fn add(store: &Arc<dyn Store>, place: &Place) {
    let like = task(place, "t1");
    let new = NewTask {
        title: like.title,
        description: like.description,
        repository: like.repository,
        base: like.base,
        priority: like.priority,
        key: None,
        labels: Vec::new(),
        workflow: Workflow::default(),
    };
    let policy = Policy { ladder: vec!["slow".to_owned()], ..Policy::default() };
    store.submit(&[commit(submit(like.id, new, &policy, like.submitted_at), None, None)]).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_with_every_place_taken_is_alive() {
    let place = Place::new();
    let path: &Path = place.root.path();
    let store: Arc<dyn Store> = Arc::new(SqliteStore::open(&path.join("fleet.db"), None).unwrap());
    add(&store, &place).await;
    let worker = coder(&place, store);
    let (health, shutdown) = (worker.health.clone(), CancellationToken::new());
    let running = tokio::spawn(pool::run(Arc::new(worker), shutdown.clone()));
    until("the agent runs", || path.join("began").exists()).await;
    // Its only place is taken: the age of the last turn must go back to nothing again and again all the same.
    for _ in 0..2 {
        until("it has not turned for a while", || health.since_last_turn() > Duration::from_millis(100)).await;
        until("it turned", || health.since_last_turn() < Duration::from_millis(100)).await;
    }
    assert!(health.is_alive() && health.is_ready());
    std::fs::write(path.join("go"), "").unwrap();
    shutdown.cancel();
    running.await.unwrap();
}
