//! Many approved changes from eight coders onto one branch, which also moves by hand: each lands exactly once, and the
//! tests pass at every commit on it.
//!
//! Forty changes, or as many as `REFILE_TEST_LANDINGS` says (`make land-200`).

#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::redis::Redis;
use common::{git, origin};
use refile_config::Config;
use refile_coordinator::Coordinator;
use refile_core::decide::submission::{NewTask, Workflow, submit};
use refile_core::task::Cause;
use refile_core::{Priority, Queue, Task, TaskId, TaskState, Timestamp};
use refile_store::artifacts::Artifacts;
use refile_store::commit::commit;
use refile_store::{OpenOptions, Pause, PauseTarget, Store};
use refile_telemetry::{Health, Metrics, process};
use refile_worker::llm::Client;
use refile_worker::pool;
use refile_worker::worker::{Role, Worker};
use refile_worker::workspace::Workspace;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

const CODERS: usize = 8;
/// Of ten changes, the last two do not go together, though each passes by itself.
const PAIR_EVERY: usize = 10;
/// How often the branch moves by hand.
const MOVES: usize = 8;
const PAUSE: Duration = Duration::from_millis(50);

/// Fails where both halves of a pair are there.
const TEST: &str = r#"for left in pairs/*-left; do
    [ -e "$left" ] || continue
    [ ! -e "${left%-left}-right" ] || { echo "both halves of $left are there"; exit 1; }
done
"#;

/// Writes its part; half a pair in the first attempt, and in the second, after the landing was rejected, does without.
const AGENT: &str = r#"set -eu
prompt=$(cat)
value() { printf '%s\n' "$prompt" | sed -n "s/^$1: //p"; }
number=$(value Number) half=$(value Half)
mkdir -p parts pairs
echo "$number" > "parts/$number"
[ -z "$half" ] || if [ "$REFILE_ATTEMPT" = 1 ]; then echo "$number" > "pairs/$half"; else rm "pairs/$half"; fi
"#;

/// How many changes there are.
fn changes() -> usize {
    std::env::var("REFILE_TEST_LANDINGS").map_or(40, |n| n.parse().expect("REFILE_TEST_LANDINGS is a number"))
}

/// A repository, a configuration and a store.
struct Scene {
    root: tempfile::TempDir,
    store: String,
    config: Arc<Config>,
}

impl Scene {
    fn new(store: Option<&str>, batch: usize, strategy: &str) -> Self {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path();
        let first = dir.join("first");
        std::fs::create_dir(&first).unwrap();
        std::fs::write(first.join("test.sh"), TEST).unwrap();
        std::fs::write(dir.join("agent.sh"), AGENT).unwrap();
        origin(dir);
        let text = format!(
            "[repository]\nurl = \"origin.git\"\n[land]\nbatch = {batch}\nstrategy = \"{strategy}\"\n\
             [agents.scripted]\ncommand = [\"sh\", \"{0}/agent.sh\"]\n\
             [reviewers.scripted]\ncommand = [\"sh\", \"-c\", \"cat > /dev/null; echo APPROVE\"]\n\
             [[gates]]\nname = \"test\"\nrun = \"sh test.sh\"\n",
            dir.display()
        );
        std::fs::write(dir.join("refile.toml"), text).unwrap();
        let (config, _) = refile_config::load(Some(&dir.join("refile.toml")), [], &[]).unwrap();
        let store = store.map_or_else(|| format!("sqlite:{}", dir.join("fleet.db").display()), str::to_owned);
        Self { root, store, config: Arc::new(config) }
    }

    fn origin(&self) -> PathBuf {
        self.root.path().join("origin.git")
    }

    async fn open(&self) -> Arc<dyn Store> {
        let namespace = Some(self.root.path().file_name().unwrap().to_string_lossy().replace('.', "x"));
        let options = OpenOptions { namespace, ..OpenOptions::default() };
        refile_store::open(&self.store, self.root.path(), options).await.unwrap()
    }

    fn worker(&self, store: Arc<dyn Store>, role: Role, concurrency: usize) -> Worker {
        Worker {
            store,
            config: self.config.clone(),
            artifacts: Artifacts::open(&self.config.artifacts, self.root.path()).unwrap(),
            workspace: Workspace::open(&self.root.path().join("work")).unwrap(),
            client: Client::new().unwrap(),
            metrics: Metrics::new().unwrap(),
            health: Health::default(),
            name: process::unique_name(role.as_str()),
            role,
            queues: role.queues(),
            concurrency,
        }
    }

    /// Starts the fleet. On Redis each part has a connection of its own, as on a machine of its own.
    async fn start(&self, store: &Arc<dyn Store>, shutdown: &CancellationToken) -> JoinSet<()> {
        process::install_tls();
        let mut parts = JoinSet::new();
        let coordinator = Coordinator {
            store: store.clone(),
            config: self.config.clone(),
            metrics: Metrics::new().unwrap(),
            health: Health::default(),
            name: process::unique_name("coordinator"),
        };
        parts.spawn(coordinator.run(None, shutdown.clone()));
        let coders = std::iter::repeat_n((Role::Coder, 1), CODERS);
        for (role, concurrency) in coders.chain([(Role::Reviewer, 4)]) {
            let own = if self.store.starts_with("redis") { self.open().await } else { store.clone() };
            let (pool, shutdown) = (self.worker(own, role, concurrency).pool(), shutdown.clone());
            parts.spawn(async move { pool::run(Arc::new(pool), shutdown).await.unwrap() });
        }
        parts
    }

    /// Submits the tasks; of the pairs both halves.
    async fn submit(&self, store: &Arc<dyn Store>, most: usize) {
        let mut commits = Vec::new();
        for number in 0..most {
            let half = match (number / PAIR_EVERY, number % PAIR_EVERY) {
                (pair, 8) => format!("Half: {pair}-left\n"),
                (pair, 9) => format!("Half: {pair}-right\n"),
                _ => String::new(),
            };
            let new = NewTask {
                title: format!("Part {number}"),
                description: format!("Add it.\n\nNumber: {number}\n{half}"),
                repository: self.config.repository_url(&self.config.repository.url),
                base: "main".to_owned(),
                priority: Priority::Normal,
                key: None,
                labels: Vec::new(),
                workflow: Workflow::default(),
            };
            let id = TaskId::parse(&format!("t{number}")).unwrap();
            commits.push(commit(submit(id, new, &self.config.policy(), Timestamp(1)), None, None));
        }
        assert!(store.submit(&commits).await.unwrap().iter().all(|s| s.added));
    }

    /// Moves the branch by hand, each time that some changes have landed. Gives how often.
    fn move_by_hand(&self, most: usize, is_over: Arc<AtomicBool>) -> std::thread::JoinHandle<usize> {
        let (origin, dir) = (self.origin(), self.root.path().join("by-hand"));
        git(self.root.path(), &["clone", "-q", "origin.git", "by-hand"]);
        let count = move || git(&origin, &["rev-list", "--count", "main"]).parse::<usize>().unwrap();
        std::thread::spawn(move || {
            let (mut moves, mut seen) = (0, 0);
            while !is_over.load(Ordering::SeqCst) && moves < MOVES {
                if count() < seen {
                    std::thread::sleep(PAUSE);
                    continue;
                }
                std::fs::write(dir.join("by-hand.txt"), format!("{moves}\n")).unwrap();
                git(&dir, &["add", "-A"]);
                git(&dir, &["commit", "-q", "-m", "by hand"]);
                // Somebody else may be quicker: then on top of that, as people do.
                while !quiet(&dir, &["push", "-q", "origin", "HEAD:main"]) {
                    git(&dir, &["pull", "-q", "--rebase", "origin", "main"]);
                }
                moves += 1;
                seen = count() + most / (2 * MOVES);
            }
            moves
        })
    }
}

/// Runs git, which may fail.
fn quiet(dir: &Path, args: &[&str]) -> bool {
    Command::new("git").args(args).current_dir(dir).output().unwrap().status.success()
}

/// Polls until something holds.
async fn until<F: Future<Output = bool>>(what: &str, within: Duration, mut so: impl FnMut() -> F) {
    let deadline = Instant::now() + within;
    while !so().await {
        assert!(Instant::now() < deadline, "not within {} s: {what}", within.as_secs());
        tokio::time::sleep(PAUSE).await;
    }
}

async fn all(store: &Arc<dyn Store>, most: usize) -> Vec<Task> {
    let ids: Vec<_> = (0..most).map(|n| TaskId::parse(&format!("t{n}")).unwrap()).collect();
    store.tasks(&ids).await.unwrap().into_iter().map(|found| found.unwrap().task).collect()
}

async fn land_all(store_url: Option<&str>, batch: usize, strategy: &str) {
    let (scene, most) = (Scene::new(store_url, batch, strategy), changes());
    let within = Duration::from_secs(60 + 5 * most as u64);
    let store = scene.open().await;
    let paused = PauseTarget::Queue(Queue::Land);
    store
        .set_pause(&paused, Some(&Pause { until: None, reason: "until all are approved".to_owned(), tries: 0 }))
        .await
        .unwrap();
    scene.submit(&store, most).await;
    let shutdown = CancellationToken::new();
    let mut parts = scene.start(&store, &shutdown).await;
    until("all are approved", within, || async {
        let depth = store.stats().await.unwrap().depth;
        depth.iter().filter(|((queue, _), _)| *queue == Queue::Land).map(|(_, n)| *n as usize).sum::<usize>() == most
    })
    .await;
    let started = Instant::now();
    store.set_pause(&paused, None).await.unwrap();
    let is_over = Arc::new(AtomicBool::new(false));
    let by_hand = scene.move_by_hand(most, is_over.clone());
    until("all have landed", within, || async {
        all(&store, most).await.iter().all(|task| task.state != TaskState::Open)
    })
    .await;
    eprintln!("{most} changes landed in {:.1} s, {batch} at a time", started.elapsed().as_secs_f64());
    is_over.store(true, Ordering::SeqCst);
    let moves = by_hand.join().unwrap();
    shutdown.cancel();
    while let Some(ended) = parts.join_next().await {
        ended.unwrap();
    }
    assert!(moves > 0, "the branch did not move by hand");
    check_records(&all(&store, most).await);
    check_history(&scene, most, moves);
}

/// Holds that each is merged, that of each pair one was refiled, and that no landing failed.
#[track_caller]
fn check_records(tasks: &[Task]) {
    let mut second: BTreeMap<usize, usize> = BTreeMap::new();
    for (number, task) in tasks.iter().enumerate() {
        assert_eq!(task.state, TaskState::Merged, "{task:#?}");
        let attempts = &task.phases[0].attempts;
        assert!(attempts.iter().all(|a| a.land_failures.is_empty()), "a landing failed: {task:#?}");
        if number % PAIR_EVERY < 8 {
            assert_eq!(attempts.len(), 1, "{task:#?}");
        } else if attempts.len() > 1 {
            let rejection = attempts[0].rejection.as_ref().unwrap();
            assert_eq!((attempts.len(), rejection.cause, rejection.by.as_str()), (2, Cause::Landing, "test"));
            *second.entry(number / PAIR_EVERY).or_default() += 1;
        }
    }
    let pairs = tasks.len() / PAIR_EVERY;
    assert_eq!(second, (0..pairs).map(|pair| (pair, 1)).collect(), "of each pair exactly one is refiled");
}

/// Holds that each task is on the branch once, and that the tests pass at every commit.
#[track_caller]
fn check_history(scene: &Scene, most: usize, moves: usize) {
    let origin = scene.origin();
    git(&origin, &["fsck", "--full", "--strict"]);
    let format = "--format=%H %(trailers:key=Refile-Task,valueonly,separator=%x2C)";
    let log = git(&origin, &["log", "--first-parent", "--reverse", format, "main"]);
    let commits: Vec<(&str, &str)> = log.lines().map(|line| line.split_once(' ').unwrap_or((line, ""))).collect();
    let landed: Vec<&str> = commits.iter().map(|(_, id)| *id).filter(|id| !id.is_empty()).collect();
    let expected: BTreeSet<String> = (0..most).map(|n| format!("t{n}")).collect();
    assert_eq!(landed.len(), most);
    assert_eq!(landed.iter().map(|id| (*id).to_owned()).collect::<BTreeSet<_>>(), expected);
    assert_eq!(commits.len(), 1 + most + moves);
    assert_eq!(git(&origin, &["for-each-ref", "--format=%(refname)", "refs/heads/refile"]), "");
    let dir = scene.root.path().join("each");
    git(scene.root.path(), &["clone", "-q", "origin.git", "each"]);
    for (number, (commit, id)) in commits.iter().enumerate() {
        git(&dir, &["checkout", "-q", commit]);
        let test = Command::new("sh").arg("test.sh").current_dir(&dir).output().unwrap();
        assert!(test.status.success(), "commit {number} ({commit} {id}) fails its test");
        if let Some(part) = id.strip_prefix('t') {
            assert_eq!(std::fs::read_to_string(dir.join("parts").join(part)).unwrap(), format!("{part}\n"));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_changes_land_one_after_the_other_on_one_sqlite_file() {
    land_all(None, 1, "squash").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_changes_land_in_batches_on_one_sqlite_file() {
    land_all(None, 4, "merge").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_changes_land_one_after_the_other_on_redis() {
    let server = Redis::start();
    land_all(Some(&server.url()), 1, "rebase").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_changes_land_in_batches_on_redis() {
    let server = Redis::start();
    land_all(Some(&server.url()), 4, "squash").await;
}
