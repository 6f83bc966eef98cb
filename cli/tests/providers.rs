//! Providers that fail, and a whole fleet in this process that must not mind: real stores, the real coordinator, real
//! claim loops, the real judge and its client over HTTP. Only coding and landing take no time here.

#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod common;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use common::redis::Redis;
use refile_config::Config;
use refile_coordinator::Coordinator;
use refile_coordinator::submission::{self, TaskRequest};
use refile_core::task::{Change, Review, Usage};
use refile_core::verdict::Verdict;
use refile_core::{Outcome, Queue, Task, TaskState};
use refile_store::{Claim, Filter, OpenOptions, Store};
use refile_telemetry::{Health, Metrics};
use refile_worker::backpressure::{Backpressure, Room};
use refile_worker::judge::{Opinion, llm, packet};
use refile_worker::llm::Client;
use refile_worker::pool::{self, Execute, Pool};
use refile_worker::worker::Role;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

/// What a server says to a call: of task `.0`, the `.1`-th about it, the `.2`-th of all.
type Script = Arc<dyn Fn(u64, u64, u64) -> Say + Send + Sync>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Say {
    Verdict,
    RateLimit,
}

/// A server that speaks chat completions.
#[derive(Clone)]
struct Provider {
    script: Script,
    /// When each call came, and what it was told.
    calls: Arc<Mutex<Vec<(Instant, Say)>>>,
    of_task: Arc<Mutex<HashMap<u64, u64>>>,
}

impl Provider {
    async fn start(script: Script) -> (Self, String) {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let provider = Self { script, calls: Arc::default(), of_task: Arc::default() };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}/v1", listener.local_addr().unwrap());
        let app = Router::new().fallback(answer).with_state(provider.clone());
        tokio::spawn(async move { axum::serve(listener, app).await });
        (provider, address)
    }

    fn calls(&self) -> Vec<(Instant, Say)> {
        self.calls.lock().unwrap().clone()
    }
}

async fn answer(State(provider): State<Provider>, body: Bytes) -> Response {
    let request: Value = serde_json::from_slice(&body).unwrap();
    let packet = request["messages"].as_array().unwrap().iter().find(|m| m["role"] == "user").unwrap();
    let packet = packet["content"].as_str().unwrap();
    let number: u64 = between(packet, "Task ", "\n").parse().unwrap();
    let of_task = {
        let mut of_task = provider.of_task.lock().unwrap();
        let calls = of_task.entry(number).or_default();
        *calls += 1;
        *calls
    };
    let said = {
        let mut calls = provider.calls.lock().unwrap();
        let said = (provider.script)(number, of_task, calls.len() as u64);
        calls.push((Instant::now(), said));
        said
    };
    let receipt = format!(
        r#""files": {}, "diff_hash": "{}""#,
        between(packet, "The diff has ", " files"),
        between(packet, "its hash is ", ".")
    );
    let again = packet.contains("previous_required_change");
    let verdict = if number.is_multiple_of(5) && !again {
        format!(
            r#"{{"verdict": "needs_changes", "required_change": "Handle the empty list.", "critique": "It fails there.", "conf": 0.9, {receipt}}}"#
        )
    } else {
        format!(r#"{{"verdict": "approved", "required_change": "", "critique": "", "conf": 0.9, {receipt}}}"#)
    };
    let (text, stop) = match said {
        Say::Verdict => (verdict, "stop"),
        Say::RateLimit => {
            let body =
                json!({"error": {"message": "Rate limit reached", "type": "requests", "code": "rate_limit_exceeded"}});
            return (StatusCode::TOO_MANY_REQUESTS, [("retry-after", "1")], body.to_string()).into_response();
        }
    };
    json!({
        "id": "1", "object": "chat.completion", "model": "m",
        "choices": [{"index": 0, "finish_reason": stop, "message": {"role": "assistant", "content": text}}],
        "usage": {"prompt_tokens": 100, "completion_tokens": 10},
    })
    .to_string()
    .into_response()
}

fn between<'t>(text: &'t str, before: &str, after: &str) -> &'t str {
    text.split_once(before).unwrap().1.split_once(after).unwrap().0
}

/// What does jobs: the judge for real, the rest at once.
struct Crew {
    config: Arc<Config>,
    client: Client,
    backpressure: Arc<Backpressure>,
}

#[async_trait]
impl Execute for Crew {
    async fn room(&self) -> Room {
        self.backpressure.room().await
    }

    async fn execute(&self, claim: &Claim) -> Outcome {
        let phase = claim.task.phase(&claim.lease.phase).unwrap();
        let change = phase.attempt().and_then(|a| a.change.clone());
        match claim.queue {
            Queue::Code => coded(claim),
            Queue::Land => Outcome::Landed { commit: "c".repeat(40) },
            Queue::Review => {
                let demand = phase.leading_rejection().map(|r| r.required_change.as_str());
                review(self, &claim.task, &change.unwrap(), demand).await
            }
        }
    }
}

fn coded(claim: &Claim) -> Outcome {
    let head = format!("{:x>40}", format!("{}{}", claim.task.id, claim.attempt));
    Outcome::Coded {
        change: Change {
            branch: format!("refile/{}/change/{}", claim.task.id, claim.attempt),
            base_commit: "b".repeat(40),
            patch_id: head.clone(),
            head,
            files: 1,
            diff: None,
            summary: String::new(),
        },
        gates: Vec::new(),
        prompt_digest: String::new(),
        transcript: None,
        usage: Usage::default(),
    }
}

async fn review(crew: &Crew, task: &Task, change: &Change, demand: Option<&str>) -> Outcome {
    let reviewer = &crew.config.reviewers["judge"];
    let packet = packet::build(&packet::Inputs {
        wanted: &reviewer.inputs,
        title: &task.title,
        description: &task.description,
        previous_required_change: demand,
        summary: "",
        gates: &[],
        changed: &[],
        diff: change.head.as_bytes(),
        files: 1,
        max_bytes: 10_000,
        nonce: "n0nce",
    });
    let system = llm::system_prompt(reviewer, &[]);
    let opinion = llm::ask(&crew.client, &crew.config.providers["p"], reviewer, &system, &[], &packet).await;
    let Opinion { verdict, calls, usage, .. } = opinion;
    let (verdict, failure) = match verdict {
        Ok(verdict) => (verdict, None),
        Err(failure) => (Verdict::retry(failure.to_string()), Some(failure)),
    };
    Outcome::Reviewed(Review { failure, calls, usage, ..Review::new("judge", change.head.clone(), verdict) })
}

/// A fleet on a store. Dropping it does not stop it; [`Fleet::stop`] does.
struct Fleet {
    store: Arc<dyn Store>,
    config: Arc<Config>,
    stop: CancellationToken,
    parts: Vec<tokio::task::JoinHandle<()>>,
}

impl Fleet {
    /// One coordinator, one coder, and reviewers of which each is a process to the store: a claim loop, a client and a
    /// view of the providers of its own.
    async fn start(url: &str, provider: &str, reviewers: usize, at_once: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let text = format!(
            "[repository]\nurl = \"https://h/r.git\"\n[policy]\nbackoff = \"20ms\"\nmax_backoff = \"50ms\"\n\
             [agents.coder]\ncommand = [\"true\"]\n[reviewers.judge]\ntype = \"llm\"\nprovider = \"p\"\nmodel = \"m\"\n\
             timeout = \"2s\"\n[providers.p]\nkind = \"openai\"\nbase_url = \"{provider}\"\n"
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
        let workers = (0..reviewers).map(|n| (Role::Reviewer, n, at_once)).chain([(Role::Coder, reviewers, 50)]);
        for (role, number, concurrency) in workers {
            let store = open().await;
            let backpressure = Arc::new(Backpressure::new(store.clone(), config.clone(), Arc::default()));
            let client = Client::new().unwrap().behind(backpressure.clone());
            let pool = Pool {
                store,
                metrics: Metrics::new().unwrap(),
                health: Health::default(),
                name: format!("{}-{number}", role.as_str()),
                role,
                queues: role.queues(),
                concurrency,
                lease: config.workers.lease.0,
                grace: config.workers.grace.0,
                agent: Arc::new(Crew { config: config.clone(), client, backpressure }),
            };
            let stop = stop.clone();
            parts.push(tokio::spawn(async move { pool::run(Arc::new(pool), stop).await.unwrap() }));
        }
        Self { store, config, stop, parts }
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

/// Where the fleets of a test keep their tasks.
enum Kept {
    File(tempfile::TempDir),
    Server(Redis),
}

impl Kept {
    fn both() -> [Self; 2] {
        [Self::File(tempfile::tempdir().unwrap()), Self::Server(Redis::start())]
    }

    fn url(&self) -> String {
        match self {
            Self::File(dir) => format!("sqlite:{}", dir.path().join("fleet.db").display()),
            Self::Server(server) => server.url(),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_reviewers_leave_a_provider_alone_that_says_so() {
    for kept in Kept::both() {
        // From its third call on it turns everything away for a while, and says that it does for one second more.
        let began: Arc<Mutex<Option<Instant>>> = Arc::default();
        let script: Script = Arc::new({
            let began = began.clone();
            move |_, _, call| {
                if call < 2 {
                    return Say::Verdict;
                }
                let since = *began.lock().unwrap().get_or_insert_with(Instant::now);
                if since.elapsed() < Duration::from_secs(6) { Say::RateLimit } else { Say::Verdict }
            }
        });
        let (provider, address) = Provider::start(script).await;
        let fleet = Fleet::start(&kept.url(), &address, 20, 1).await;
        fleet.submit(60).await;
        let tasks = fleet.all_done(60).await;

        assert!(tasks.iter().all(|t| t.state == TaskState::Accepted || t.state == TaskState::Merged));
        let reviews = || tasks.iter().flat_map(|t| &t.phases[0].attempts).flat_map(|a| &a.reviews);
        assert!(reviews().all(|r| r.failure.is_none()), "nothing is counted");
        assert_eq!(reviews().count(), 72, "each of sixty once, and twelve again");
        // Calls that were under way when the first was turned away are as many as there are reviewers; from then on there
        // is one a second, which is what the provider asks for.
        let turned_away: Vec<Instant> =
            provider.calls().iter().filter(|c| c.1 == Say::RateLimit).map(|c| c.0).collect();
        let first = turned_away[0];
        let later: Vec<Instant> =
            turned_away.iter().copied().filter(|at| at.duration_since(first) > Duration::from_millis(900)).collect();
        assert!(turned_away.len() - later.len() <= 20, "{} at first", turned_away.len() - later.len());
        assert!((1..=6).contains(&later.len()), "{} probes", later.len());
        for pair in later.windows(2) {
            assert!(
                pair[1].duration_since(pair[0]) >= Duration::from_millis(900),
                "{:?}",
                pair[1].duration_since(pair[0])
            );
        }
        assert!(fleet.store.pauses().await.unwrap().is_empty(), "the call that went well ended the pause");
        fleet.stop().await;
    }
}
