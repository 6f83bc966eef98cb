//! The HTTP API over a real listener, with a real store: what programs may send, and what they get back.

#![allow(clippy::unwrap_used, missing_docs)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use refile_config::Config;
use refile_coordinator::{Coordinator, StartError};
use refile_core::failure::{Failure, FailureKind};
use refile_core::gate::GateReport;
use refile_core::task::{Change, Review, Usage};
use refile_core::verdict::{self, Format, Verdict};
use refile_core::{Outcome, Queue, TaskState};
use refile_store::{ClaimRequest, OpenOptions, Report, Reported, Store};
use refile_telemetry::{Health, Metrics};
use reqwest::{Client, Method, Response, StatusCode};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

/// How long anything here may take.
const DEADLINE: Duration = Duration::from_secs(30);

/// A coordinator that runs, and a client of it.
struct Api {
    _dir: tempfile::TempDir,
    store: Arc<dyn Store>,
    client: Client,
    url: String,
    shutdown: CancellationToken,
    running: tokio::task::JoinHandle<()>,
}

async fn coordinator(dir: &std::path::Path, listen: &str) -> Coordinator {
    let mut config = Config { dir: dir.to_path_buf(), ..Config::default() };
    config.coordinator.listen = listen.to_owned();
    // One failed run of the agent is enough to ask a person.
    config.policy.max_infra_failures = 1;
    config.policy.backoff = refile_config::Span(Duration::from_millis(1));
    let metrics = Metrics::new().unwrap();
    let observer = Some(refile_telemetry::process::observer(&metrics));
    let options = OpenOptions { observer, ..OpenOptions::default() };
    Coordinator {
        store: refile_store::open(&config.store, dir, options).await.unwrap(),
        config: Arc::new(config),
        metrics,
        health: Health::default(),
        name: "coordinator-1".to_owned(),
    }
}

impl Api {
    async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        refile_telemetry::process::install_tls();
        let coordinator = coordinator(dir.path(), "127.0.0.1:0").await;
        let listener = coordinator.listen().await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (store, shutdown) = (coordinator.store.clone(), CancellationToken::new());
        let running = tokio::spawn(coordinator.run(Some(listener), shutdown.clone()));
        Self { _dir: dir, store, client: Client::new(), url, shutdown, running }
    }

    async fn get(&self, path: &str) -> (StatusCode, Value) {
        read(self.client.get(format!("{}{path}", self.url)).send().await.unwrap()).await
    }

    async fn post(&self, path: &str, body: Value) -> (StatusCode, Value) {
        read(self.client.post(format!("{}{path}", self.url)).json(&body).send().await.unwrap()).await
    }

    /// Submits a task and gives its id.
    async fn submit(&self, body: Value) -> String {
        let (status, added) = self.post("/api/v1/tasks", body).await;
        assert_eq!((status, &added["added"]), (StatusCode::CREATED, &json!(true)), "{added}");
        added["id"].as_str().unwrap().to_owned()
    }

    /// Submits a task, lets its agent fail, and gives the id of the escalation that this makes.
    async fn escalated(&self, title: &str) -> String {
        let id = self.submit(json!({ "title": title })).await;
        let task = self.work(Queue::Code, agent_failed()).await;
        assert_eq!(task, id);
        let deadline = Instant::now() + DEADLINE;
        while self.state(&id).await != "escalated" {
            assert!(Instant::now() < deadline, "nobody decided");
            tokio::task::yield_now().await;
        }
        format!("{id}.1")
    }

    /// Does the next job of a queue as a worker does, with this outcome, and gives its task.
    async fn work(&self, queue: Queue, outcome: Outcome) -> String {
        let request = ClaimRequest {
            queues: vec![queue],
            owner: "worker-1".to_owned(),
            max: 1,
            lease: DEADLINE,
            wait: DEADLINE,
            limits: Arc::default(),
        };
        let lease = self.store.claim(&request).await.unwrap().remove(0).lease;
        let task = lease.task.to_string();
        let reported = self.store.report(&[Report { lease, outcome }]).await.unwrap();
        assert_eq!(reported, [Reported::Accepted]);
        task
    }

    async fn state(&self, task: &str) -> String {
        self.get(&format!("/api/v1/tasks/{task}")).await.1["state"].as_str().unwrap().to_owned()
    }

    async fn stop(self) {
        self.shutdown.cancel();
        tokio::time::timeout(DEADLINE, self.running).await.unwrap().unwrap();
    }
}

fn agent_failed() -> Outcome {
    Outcome::AgentFailed {
        failure: Failure::new(FailureKind::Crash, "it fell over"),
        prompt_digest: None,
        transcript: None,
        usage: Usage::default(),
        change: None,
    }
}

/// A change that a gate let through or did not.
fn coded(head: &str, passed: bool) -> Outcome {
    let change = Change {
        branch: format!("refile/x/change/{head}"),
        base_commit: "base".to_owned(),
        head: head.to_owned(),
        patch_id: format!("patch of {head}"),
        files: 1,
        lines: 0,
        diff: None,
        summary: String::new(),
        unfinished: false,
    };
    let gate = GateReport {
        name: "lint".to_owned(),
        passed,
        required_change: None,
        output: String::new(),
        log: None,
        duration_ms: 1,
    };
    let (prompt_digest, usage) = (String::new(), Usage::default());
    Outcome::Coded { change, gates: vec![gate], prompt_digest, transcript: None, usage }
}

/// A review of a change: a reply in the text format, or a failure.
fn reviewed(head: &str, reply: Result<&str, FailureKind>) -> Outcome {
    let (verdict, failure) = match reply {
        Ok(reply) => (verdict::read(Format::Text, reply).verdict, None),
        Err(kind) => (Verdict::retry("failed"), Some(Failure::new(kind, "failed"))),
    };
    Outcome::Reviewed(Review { failure, ..Review::new("strict", head, verdict) })
}

async fn read(response: Response) -> (StatusCode, Value) {
    let status = response.status();
    let text = response.text().await.unwrap();
    (status, serde_json::from_str(&text).unwrap_or_else(|e| panic!("{status}: {e}: {text}")))
}

/// Holds that an answer is this error, as JSON, and says that.
#[track_caller]
fn refused((status, body): (StatusCode, Value), wanted: u16, says: &str) {
    assert_eq!(status.as_u16(), wanted, "{body}");
    let error = body["error"].as_str().unwrap_or_else(|| panic!("no `error` in {body}"));
    assert!(error.contains(says), "does not say {says:?}: {error}");
}

fn titles(page: &Value) -> Vec<&str> {
    page["tasks"].as_array().unwrap().iter().map(|t| t["title"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn tasks_are_submitted_once_shown_and_called_off() {
    let api = Api::start().await;
    let body = json!({ "title": "A", "description": "do it", "key": "k", "labels": ["x"], "priority": "high" });
    let id = api.submit(body.clone()).await;
    let again = api.post("/api/v1/tasks", body).await;
    assert_eq!(again, (StatusCode::OK, json!({ "id": id, "added": false })));
    let (status, shown) = api.get(&format!("/api/v1/tasks/{id}")).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(
        (&shown["title"], &shown["description"], &shown["state"]),
        (&"A".into(), &"do it".into(), &"open".into())
    );
    assert_eq!((&shown["attempts"][0]["number"], &shown["attempts"][0]["prompt"]), (&1.into(), &"do it".into()));
    refused(api.get("/api/v1/tasks/none-such").await, 404, "no task none-such");
    refused(api.get("/api/v1/tasks/No%20Id").await, 400, "not a task id");

    let cancel = format!("/api/v1/tasks/{id}/cancel");
    refused(api.post(&cancel, json!({})).await, 422, "by");
    let (status, cancelled) = api.post(&cancel, json!({ "by": "ann" })).await;
    assert_eq!((status, &cancelled["state"]), (StatusCode::OK, &"cancelled".into()));
    refused(api.post(&cancel, json!({ "by": "ann" })).await, 409, "cancelled already");
    refused(api.post("/api/v1/tasks/none-such/cancel", json!({ "by": "ann" })).await, 404, "no task");
    api.stop().await;
}

#[tokio::test]
async fn a_list_is_filtered_and_goes_by_pages() {
    let api = Api::start().await;
    for (title, label) in [("one", "a"), ("two", "b"), ("three", "a"), ("four", "a"), ("five", "b")] {
        api.submit(json!({ "title": title, "labels": [label] })).await;
    }
    let (_, first) = api.get("/api/v1/tasks?limit=2").await;
    assert_eq!(titles(&first), ["five", "four"]);
    let (_, second) = api.get(&format!("/api/v1/tasks?limit=2&cursor={}", first["next"])).await;
    assert_eq!(titles(&second), ["three", "two"]);
    let (_, last) = api.get(&format!("/api/v1/tasks?limit=2&cursor={}", second["next"])).await;
    assert_eq!((titles(&last), &last["next"]), (vec!["one"], &Value::Null));
    assert_eq!(titles(&api.get("/api/v1/tasks?label=a&state=open,escalated").await.1), ["four", "three", "one"]);
    assert_eq!(titles(&api.get("/api/v1/tasks?text=FOUR").await.1), ["four"]);
    assert_eq!(titles(&api.get("/api/v1/tasks?state=merged").await.1), Vec::<&str>::new());
    assert_eq!(titles(&api.get("/api/v1/tasks?repository=/none").await.1), Vec::<&str>::new());
    refused(api.get("/api/v1/tasks?state=done").await, 400, "`done`");
    refused(api.get("/api/v1/tasks?colour=red").await, 400, "colour");
    refused(api.get("/api/v1/tasks?limit=many").await, 400, "limit");
    api.stop().await;
}

#[tokio::test]
async fn what_cannot_be_read_is_refused_as_json() {
    let api = Api::start().await;
    refused(api.post("/api/v1/tasks", json!({ "title": "x", "titel": "y" })).await, 422, "titel");
    refused(api.post("/api/v1/tasks", json!({ "description": "x" })).await, 422, "title");
    refused(api.post("/api/v1/tasks", json!({ "title": " " })).await, 400, "`title` is empty");
    refused(api.post("/api/v1/tasks", json!({ "title": "x", "priority": "urgent" })).await, 422, "urgent");
    refused(api.post("/api/v1/tasks", json!({ "title": "x", "workflow": "w" })).await, 400, "`w`");
    refused(api.post("/api/v1/tasks", json!({ "title": "x", "description": "d".repeat(3 << 20) })).await, 413, "");
    let url = format!("{}/api/v1/tasks", api.url);
    let send = async |content: &str, body: &'static str| {
        let request = api.client.post(&url).header("content-type", content).body(body);
        read(request.send().await.unwrap()).await
    };
    refused(send("application/json", "{\"title\":").await, 400, "JSON");
    refused(send("text/plain", "{\"title\":\"x\"}").await, 415, "application/json");
    refused(api.get("/api/v1/nothing").await, 404, "/api/v1/nothing");
    let wrong_method = api.client.request(Method::DELETE, &url).send().await.unwrap();
    assert!(wrong_method.headers()["allow"].to_str().unwrap().contains("POST"));
    refused(read(wrong_method).await, 405, "DELETE /api/v1/tasks");
    assert_eq!(titles(&api.get("/api/v1/tasks").await.1), Vec::<&str>::new(), "nothing was submitted");
    api.stop().await;
}

#[tokio::test]
async fn a_person_decides_over_http() {
    let api = Api::start().await;
    let id = api.escalated("A").await;
    let (task, _) = id.split_once('.').unwrap();
    let (_, list) = api.get("/api/v1/escalations").await;
    assert_eq!(list.as_array().unwrap().len(), 1);
    assert_eq!((&list[0]["id"], &list[0]["task"]), (&json!(id), &json!(task)));
    assert_eq!(list[0]["reason"], "coder_unavailable");

    let decide = format!("/api/v1/escalations/{id}/decision");
    for (body, status, says) in [
        (json!({ "action": "refile", "by": "ann" }), 400, "required_change"),
        (json!({ "action": "refile", "required_change": " ", "by": "ann" }), 400, "required_change"),
        (json!({ "action": "refile", "required_change": "Do it", "attempts": 0, "by": "ann" }), 400, "attempts"),
        (json!({ "action": "reject", "required_change": "Do it", "by": "ann" }), 400, "refile"),
        (json!({ "action": "retry", "by": "" }), 400, "by"),
        (json!({ "action": "retry" }), 422, "by"),
        (json!({ "action": "retry", "by": "ann", "force": true }), 422, "force"),
        (json!({ "action": "merge", "by": "ann" }), 422, "merge"),
        (json!({ "action": "approve", "by": "ann" }), 409, "no change to approve"),
    ] {
        refused(api.post(&decide, body).await, status, says);
    }
    let retry = json!({ "action": "retry", "by": "ann" });
    for (path, status) in [("none-such.1", 404), ("none-such", 400), (&format!("{task}.9"), 404)] {
        refused(api.post(&format!("/api/v1/escalations/{path}/decision"), retry.clone()).await, status, "");
    }
    assert_eq!(api.state(task).await, "escalated", "nothing of that changed anything");

    let refile = json!({ "action": "refile", "required_change": "Do it well", "by": "ann", "note": "please" });
    let (status, decided) = api.post(&decide, refile).await;
    assert_eq!((status, &decided["state"]), (StatusCode::OK, &"open".into()), "{decided}");
    refused(api.post(&decide, retry.clone()).await, 409, "refile by ann");
    let (_, shown) = api.get(&format!("/api/v1/tasks/{task}")).await;
    let prompt = shown["attempts"][1]["prompt"].as_str().unwrap();
    assert!(prompt.starts_with("## ATTEMPT #2") && prompt.contains("**Required change**: Do it well\n"), "{prompt}");
    assert_eq!(shown["escalations"][0]["decision"]["note"], "please");
    assert_eq!(api.get("/api/v1/escalations").await.1, json!([]));
    let (status, _) = api.post(&format!("/api/v1/tasks/{task}/cancel"), json!({ "by": "ann" })).await;
    assert_eq!(status, StatusCode::OK);

    let second = api.escalated("B").await;
    let decide = format!("/api/v1/escalations/{second}/decision");
    assert_eq!(api.post(&decide, retry).await.1["state"], "open");
    let (status, _) =
        api.post(&format!("/api/v1/tasks/{}/cancel", second.trim_end_matches(".1")), json!({ "by": "a" })).await;
    assert_eq!(status, StatusCode::OK);
    let third = api.escalated("C").await;
    let reject = json!({ "action": "reject", "by": "ann" });
    let (_, rejected) = api.post(&format!("/api/v1/escalations/{third}/decision"), reject).await;
    assert_eq!(rejected["state"], TaskState::Rejected.as_str());
    api.stop().await;
}

#[tokio::test]
async fn callers_that_are_not_from_here_are_refused() {
    let api = Api::start().await;
    let url = format!("{}/api/v1/tasks", api.url);
    let with = async |name: &str, value: &str| {
        let request = api.client.get(&url).header(name, value);
        request.send().await.unwrap()
    };
    for (name, value) in [
        ("host", "evil.example"),
        ("host", "localhost.evil.example:7420"),
        ("origin", "http://evil.example"),
        ("origin", "https://127.0.0.1.evil.example"),
        ("origin", "null"),
        ("origin", ""),
    ] {
        refused(read(with(name, value).await).await, 403, "localhost");
    }
    for (name, value) in [("host", "localhost:7420"), ("origin", "http://localhost:7420"), ("origin", "http://[::1]:1")]
    {
        assert_eq!(with(name, value).await.status(), StatusCode::OK, "{name}: {value}");
    }
    let probe = api.client.get(format!("{}/healthz", api.url)).header("host", "evil.example").send().await.unwrap();
    assert_eq!(probe.status(), StatusCode::FORBIDDEN);
    api.stop().await;
}

#[tokio::test]
async fn an_address_that_others_reach_is_refused_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    for address in ["0.0.0.0:0", "[::]:0"] {
        let error = coordinator(dir.path(), address).await.listen().await.unwrap_err();
        assert!(matches!(error, StartError::NotLoopback(_)), "{error}");
        assert!(error.to_string().contains("coordinator.listen"), "{error}");
    }
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let error = coordinator(dir.path(), &taken.local_addr().unwrap().to_string()).await.listen().await.unwrap_err();
    assert!(error.to_string().contains("coordinator.listen"), "{error}");
}

#[tokio::test]
async fn probes_tell_whether_it_is_alive_and_ready() {
    let api = Api::start().await;
    let status = async |path: &str| api.client.get(format!("{}{path}", api.url)).send().await.unwrap().status();
    assert_eq!(status("/healthz").await, StatusCode::OK);
    // Ready once the store has answered; its first answer may take as long as it waits for work.
    let deadline = Instant::now() + DEADLINE;
    while status("/readyz").await != StatusCode::OK {
        assert!(Instant::now() < deadline, "it never got ready");
        tokio::task::yield_now().await;
    }
    api.stop().await;
}

/// One sample of the text format: the metric's name, its labels, its value.
fn sample(line: &str) -> (String, String, f64) {
    let (series, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line:?}"));
    let (name, labels) = match series.split_once('{') {
        Some((name, labels)) => (name, labels.strip_suffix('}').unwrap_or_else(|| panic!("{line:?}"))),
        None => (series, ""),
    };
    assert!(name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'), "{line:?}");
    (name.to_owned(), labels.to_owned(), value.parse().unwrap_or_else(|e| panic!("{line:?}: {e}")))
}

#[tokio::test]
async fn metrics_are_prometheus_text_with_every_family() {
    let api = Api::start().await;
    api.submit(json!({ "title": "A" })).await;
    api.work(Queue::Code, coded("h1", false)).await;
    api.work(Queue::Code, coded("h2", true)).await;
    api.work(Queue::Review, reviewed("h2", Err(FailureKind::RateLimit))).await;
    api.work(Queue::Review, reviewed("h2", Ok("RETRY: Do it well"))).await;
    let task = api.work(Queue::Code, agent_failed()).await;
    let deadline = Instant::now() + DEADLINE;
    while api.state(&task).await != "escalated" {
        assert!(Instant::now() < deadline, "nobody decided");
        tokio::task::yield_now().await;
    }
    api.submit(json!({ "title": "B" })).await;
    let response = api.client.get(format!("{}/metrics", api.url)).send().await.unwrap();
    assert!(response.headers()["content-type"].to_str().unwrap().starts_with("text/plain; version=0.0.4"));
    let text = response.text().await.unwrap();
    let mut helped = std::collections::BTreeSet::new();
    let mut samples = Vec::new();
    for line in text.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, what) = help.split_once(' ').unwrap();
            assert!(!what.is_empty() && helped.insert(name.to_owned()), "{line}");
        } else if !line.starts_with("# TYPE ") {
            let sample = sample(line);
            let family = ["_bucket", "_sum", "_count"].iter().find_map(|s| sample.0.strip_suffix(s));
            assert!(helped.contains(&sample.0) || family.is_some_and(|f| helped.contains(f)), "no help for {line}");
            samples.push(sample);
        }
    }
    for name in [
        "tasks_submitted_total",
        "tasks",
        "reviews_total",
        "review_failures_total",
        "refiles_total",
        "gate_failures_total",
        "escalations_total",
        "escalations_open",
        "queue_depth",
        "queue_oldest_seconds",
        "leases",
        "workers",
        "store_command_seconds",
        "build_info",
    ] {
        assert!(helped.contains(&format!("refile_{name}")), "no family refile_{name} in\n{text}");
    }
    for (name, labels, value) in [
        ("refile_tasks_submitted_total", "", 2.0),
        ("refile_tasks", "state=\"escalated\"", 1.0),
        ("refile_tasks", "state=\"open\"", 1.0),
        ("refile_escalations_open", "reason=\"coder_unavailable\"", 1.0),
        ("refile_gate_failures_total", "gate=\"lint\"", 1.0),
        ("refile_refiles_total", "cause=\"gate\"", 1.0),
        ("refile_refiles_total", "cause=\"review\"", 1.0),
        ("refile_review_failures_total", "reviewer=\"strict\",kind=\"rate_limit\"", 1.0),
        ("refile_reviews_total", "reviewer=\"strict\",verdict=\"needs_changes\"", 1.0),
        ("refile_queue_depth", "queue=\"code\",priority=\"normal\"", 1.0),
        ("refile_leases", "queue=\"code\"", 0.0),
        ("refile_workers", "role=\"coordinator\"", 1.0),
    ] {
        let wanted = (name.to_owned(), labels.to_owned(), value);
        assert!(samples.contains(&wanted), "no {wanted:?} in\n{text}");
    }
    api.stop().await;
}
