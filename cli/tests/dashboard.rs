//! A real Prometheus scrapes a running fleet, and every query of the dashboard and of the alerts is asked of it.

#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod common;

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::place::{Place, Role};
use common::until;
use refile_telemetry::metrics::{ALL, Kind};
use serde::Deserialize;
use serde_json::Value;

/// How long the scenario and the queries may take, each.
const DEADLINE: Duration = Duration::from_mins(1);

/// Of these there is nothing without a model, or without a fault that a test cannot make; and what is looked at every ten
/// minutes has a test of its own with a scrape (`coordinator/tests/calibration.rs`).
const NOT_PLAYED: [&str; 9] = [
    "refile_llm_requests_total",
    "refile_llm_request_seconds",
    "refile_llm_tokens_total",
    "refile_llm_cost_usd_total",
    "refile_provider_paused",
    "refile_reviewer_verdicts",
    "refile_reviewer_changes",
    "refile_reviewer_right_ratio",
    "refile_reviewer_suggested_threshold",
];

#[tokio::test(flavor = "multi_thread")]
async fn every_query_finds_what_it_asks_for() {
    let mut place = Place::new(None, "max_attempts = 3", "lease = \"2s\"\ncoders = 3");
    let coordinator = place.start(Role::Coordinator, &[]);
    place.submit(&KINDS);
    // A coder dies at work: a lease runs out.
    let lost = place.start(Role::Coder, &[]);
    place.held("01");
    place.kill(lost);

    let metrics = ["--metrics-addr", "127.0.0.1:0"];
    let [coder, reviewer] = [Role::Coder, Role::Reviewer].map(|role| place.start(role, &metrics));
    let targets: Vec<String> = [coordinator, coder, reviewer].iter().map(|m| place.address(*m)).collect();
    let prometheus = Prometheus::start(&targets).await;
    prometheus.find("every process is scraped", "sum(up) == 3", Instant::now() + DEADLINE).await;
    play(&mut place, &prometheus).await;

    let (panels, alerts) = (panels(), alerts());
    assert!(panels.len() >= 15 && alerts.len() >= 9, "{} queries of panels, {} alerts", panels.len(), alerts.len());
    let deadline = Instant::now() + DEADLINE;
    for Panel { title, query, legend } in &panels {
        let found = prometheus.find(&format!("panel `{title}`"), query, deadline).await;
        for label in legend {
            assert!(found.iter().all(|f| f["metric"][label].is_string()), "panel `{title}`: no `{label}` in {found:?}");
        }
    }
    for (name, query) in &alerts {
        // It need not fire, but it must be a query, and all that it looks at must be there.
        prometheus.ask(query).await.unwrap_or_else(|e| panic!("alert {name}: {e}\n{query}"));
        let selectors = selectors(query);
        assert!(!selectors.is_empty(), "alert {name} looks at no metric: {query}");
        for selector in selectors {
            prometheus.find(&format!("alert {name}"), &selector, deadline).await;
        }
    }
    for definition in ALL.iter().filter(|d| !NOT_PLAYED.contains(&d.name)) {
        let suffix = if definition.kind == Kind::Histogram { "_count" } else { "" };
        prometheus.find("a metric", &format!("{}{suffix}", definition.name), deadline).await;
    }
    for role in ["coordinator", "coder", "reviewer"] {
        let query = format!("max(refile_workers{{role=\"{role}\"}}) > 0");
        prometheus.find("presence", &query, deadline).await;
    }
}

/// What the fleet plays. The first task waits for the test, and the last one stays with its agent.
const KINDS: [&str; 13] = [
    "hold", "plain", "lint", "empty", "retry", "limited", "garbage", "crash", "never", "stubborn", "ask", "reject",
    "hold",
];

/// Lets the fleet do its work while Prometheus looks on.
async fn play(place: &mut Place, prometheus: &Prometheus) {
    place.let_go("01");
    let all_but_one = KINDS.len() - 1;
    until("all but the last are done", DEADLINE, || (place.done() == all_but_one).then_some(()));
    let escalations = place.refile(&["escalation", "list"]);
    let asked = escalations.as_array().unwrap().iter().find(|e| e["reason"] == "needs_input").unwrap();
    place.refile(&["escalation", "reject", asked["id"].as_str().unwrap(), "--by", "Ann"]);
    // Its reviewer was right: a label.
    let never =
        escalations.as_array().unwrap().iter().find(|e| e["title"].as_str().unwrap().starts_with("never")).unwrap();
    place.refile(&["escalation", "reject", never["id"].as_str().unwrap(), "--by", "Ann"]);

    // A growth is between two looks: what was counted once must be seen before it is counted again.
    let deadline = Instant::now() + DEADLINE;
    for seen in ["refile_tasks_finished_total{outcome=\"merged\"}", "refile_review_failures_total{kind=\"rate_limit\"}"]
    {
        prometheus.find("a first count", seen, deadline).await;
    }
    place.submit_from(KINDS.len() + 1, &["plain", "limited"]);
    until("two more are done", DEADLINE, || (place.done() == all_but_one + 2).then_some(()));
}

/// A query of the dashboard.
struct Panel {
    title: String,
    /// With Grafana's variables filled in.
    query: String,
    /// The labels that the legend shows.
    legend: Vec<String>,
}

/// Every query of the dashboard.
fn panels() -> Vec<Panel> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../dashboards/fleet.json");
    let dashboard: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    let mut panels = Vec::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let mut query = target["expr"].as_str().unwrap().to_owned();
            for (variable, value) in [("$__rate_interval", "1m"), ("$__interval", "15s"), ("$__range", "5m")] {
                query = query.replace(variable, value);
            }
            assert!(!query.contains('$'), "a variable that nobody fills in: {query}");
            let parts = target["legendFormat"].as_str().unwrap_or_default().split("{{").skip(1);
            let legend = parts.map(|p| p.split("}}").next().unwrap().trim().to_owned()).collect();
            panels.push(Panel { title: panel["title"].as_str().unwrap().to_owned(), query, legend });
        }
    }
    assert!(panels.iter().map(|p| p.legend.len()).sum::<usize>() >= 8, "most legends show labels");
    panels
}

#[derive(Deserialize)]
struct Rules {
    groups: Vec<Group>,
}

#[derive(Deserialize)]
struct Group {
    rules: Vec<Rule>,
}

#[derive(Deserialize)]
struct Rule {
    alert: String,
    expr: String,
}

/// Every alert with its query.
fn alerts() -> Vec<(String, String)> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/alerts.yaml");
    let rules: Rules = serde_saphyr::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    rules.groups.into_iter().flat_map(|g| g.rules).map(|r| (r.alert, r.expr)).collect()
}

/// Each metric that a query looks at, with its labels and without a range.
fn selectors(query: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let starts = query.match_indices("refile_").map(|(at, _)| at).filter(|at| !query[..*at].ends_with(is_part));
    let selector = |at: usize| {
        let name = query[at..].find(|c| !is_part(c)).unwrap_or(query.len() - at);
        let labels = match query[at + name..].strip_prefix('{').and_then(|rest| rest.find('}')) {
            Some(end) => end + 2,
            None => 0,
        };
        query[at..at + name + labels].to_owned()
    };
    starts.map(selector).collect()
}

#[test]
fn selectors_are_found() {
    let query = "sum(max without (job) (increase(refile_a_total{x=~\"a|b\"}[6h]))) / max(refile_b) > 0 or refile_b";
    let found: Vec<String> = selectors(query).into_iter().collect();
    assert_eq!(found, ["refile_a_total{x=~\"a|b\"}", "refile_b"]);
}

/// A Prometheus of the test's own. It is stopped when this is dropped.
struct Prometheus {
    child: Child,
    address: String,
    client: reqwest::Client,
    folder: tempfile::TempDir,
}

impl Prometheus {
    /// Starts one that looks at these addresses every second.
    async fn start(targets: &[String]) -> Self {
        refile_telemetry::process::install_tls();
        let targets = serde_json::to_string(targets).unwrap();
        let config = format!(
            "global: {{scrape_interval: 1s}}\n\
             scrape_configs:\n  - job_name: refile\n    static_configs: [{{targets: {targets}}}]\n"
        );
        // The port may be lost to somebody else in between: then another one.
        for _ in 0..20 {
            let folder = tempfile::tempdir().unwrap();
            std::fs::write(folder.path().join("prometheus.yml"), &config).unwrap();
            let address = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().to_string();
            let child = Command::new("prometheus")
                .args(["--config.file=prometheus.yml", "--storage.tsdb.path=data"])
                .arg(format!("--web.listen-address={address}"))
                .current_dir(folder.path())
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(std::fs::File::create(folder.path().join("log")).unwrap())
                .spawn();
            let child = child.unwrap_or_else(|e| {
                panic!("prometheus cannot be run: {e}; install it, on Debian: apt-get install prometheus")
            });
            let mut prometheus = Self { child, address, client: reqwest::Client::new(), folder };
            if prometheus.is_ready().await {
                return prometheus;
            }
            eprintln!("{}", prometheus.log());
        }
        panic!("no prometheus could be started on any of 20 ports");
    }

    /// Waits until it answers; not ready where it ended.
    async fn is_ready(&mut self) -> bool {
        let deadline = Instant::now() + DEADLINE;
        while Instant::now() < deadline && self.child.try_wait().unwrap().is_none() {
            let asked = self.client.get(format!("http://{}/-/ready", self.address)).send().await;
            if asked.is_ok_and(|answer| answer.status().is_success()) {
                return true;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        false
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// What a query finds now; an error where it is no query.
    async fn ask(&self, query: &str) -> Result<Vec<Value>, String> {
        let encoded: String = query.bytes().fold(String::new(), |url, byte| format!("{url}%{byte:02X}"));
        let url = format!("http://{}/api/v1/query?query={encoded}", self.address);
        let answer = self.client.get(url).send().await.map_err(|e| e.to_string())?;
        let answer: Value = answer.json().await.map_err(|e| e.to_string())?;
        if answer["status"] != "success" {
            return Err(answer.to_string());
        }
        answer["data"]["result"].as_array().cloned().ok_or_else(|| format!("no vector: {answer}"))
    }

    /// Asks until a number is found; gives all that is found then.
    async fn find(&self, who: &str, query: &str, deadline: Instant) -> Vec<Value> {
        loop {
            let found = self.ask(query).await.unwrap_or_else(|e| panic!("{who}: {e}\n{query}"));
            if found.iter().any(|f| f["value"][1].as_str().is_some_and(|v| v != "NaN")) {
                return found;
            }
            assert!(Instant::now() < deadline, "{who} finds nothing: {query}\n{found:?}");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
