//! What `deploy/` and `dashboards/` say about the metrics is true: every name is defined, promtool takes the rules and
//! their tests, each alert is tested both ways, and numbers of the fleet are never added up over coordinators.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use refile_telemetry::metrics::{ALL, Kind, Scope};
use serde_json::Value;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn text(file: &str) -> String {
    let path = root().join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Runs promtool in `deploy/`; a machine without it fails the test, it does not skip it.
#[track_caller]
fn promtool(arguments: &[&str]) {
    let run = Command::new("promtool").args(arguments).current_dir(root().join("deploy")).output();
    let run = run
        .unwrap_or_else(|e| panic!("promtool cannot be run: {e}; install it, on Debian: apt-get install prometheus"));
    let said = format!("{}{}", String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    assert!(run.status.success(), "promtool {}:\n{said}", arguments.join(" "));
}

/// The panels of the dashboard.
fn panels() -> Vec<Value> {
    let dashboard: Value = serde_json::from_str(&text("dashboards/fleet.json")).unwrap_or_else(|e| panic!("{e}"));
    dashboard["panels"].as_array().cloned().unwrap_or_default()
}

/// Every query of the dashboard, with Grafana's variables filled in.
fn queries() -> Vec<String> {
    let panels = panels();
    let targets = panels.iter().flat_map(|p| p["targets"].as_array().into_iter().flatten());
    let queries = targets.map(|t| t["expr"].as_str().unwrap_or_default());
    queries.map(|q| q.replace("$__rate_interval", "5m").replace("$__range", "6h")).collect()
}

/// Each mention of a metric: where it begins and its name.
fn mentions(text: &str) -> Vec<(usize, String)> {
    let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let found = text.match_indices("refile_").filter(|(at, _)| !text[..*at].ends_with(is_part));
    found.map(|(at, _)| (at, text[at..].chars().take_while(|c| is_part(*c)).collect())).collect()
}

/// The scope of a metric, or nothing where it is not defined. A histogram has three names besides its own.
fn scope(name: &str) -> Option<Scope> {
    let is_it = |d: &&refile_telemetry::metrics::Definition| {
        let part = name.strip_prefix(d.name);
        part == Some("") && d.kind != Kind::Histogram
            || d.kind == Kind::Histogram && part.is_some_and(|p| ["_bucket", "_sum", "_count"].contains(&p))
    };
    ALL.iter().find(is_it).map(|d| d.scope)
}

/// What is wrong with the metrics in a text of queries.
fn faults(text: &str) -> Vec<String> {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut faults = Vec::new();
    for (at, name) in mentions(&text) {
        let before = text[..at].trim_end();
        let before = ["increase(", "rate("].iter().find_map(|f| before.strip_suffix(f)).unwrap_or(before);
        let function = before.strip_suffix('(').unwrap_or_default().trim_end();
        let function =
            function.strip_suffix(')').and_then(|f| f.rsplit_once('(')).map_or(function, |(f, _)| f.trim_end());
        let is_one_of_many = ["max without", "max by", "max", "absent"].iter().any(|f| function.ends_with(f));
        match scope(&name) {
            None => faults.push(format!("`{name}` is no metric")),
            Some(Scope::Fleet) if !is_one_of_many => {
                let near: Vec<char> = before.chars().rev().take(40).collect();
                let near: String = near.iter().rev().collect();
                faults.push(format!("`{name}` is shown by every coordinator alike; take the maximum, after `{near}`"));
            }
            Some(_) => {}
        }
    }
    faults
}

#[test]
fn every_metric_is_defined_and_none_is_counted_twice() {
    for (file, least) in [("deploy/alerts.yaml", 15), ("dashboards/fleet.json", 18)] {
        let text = if file.starts_with("dashboards/") { queries().join("\n") } else { text(file) };
        assert!(mentions(&text).len() >= least, "{file}: {}", mentions(&text).len());
        assert!(faults(&text).is_empty(), "{file}:\n{}", faults(&text).join("\n"));
    }
    for file in ["deploy/alerts_test.yaml", "deploy/prometheus.yml", "deploy/compose.yaml", "dashboards/fleet.json"] {
        let unknown: Vec<_> = mentions(&text(file)).into_iter().filter(|(_, name)| scope(name).is_none()).collect();
        assert!(unknown.is_empty(), "{file}: {unknown:?}");
    }
}

#[test]
fn the_check_finds_unknown_metrics_and_double_counting() {
    for bad in [
        "sum(refile_task_total)",
        "sum by (queue) (refile_queue_depth)",
        "refile_quarantined > 0",
        "sum(increase(refile_reviews_total[5m]))",
        "max(refile_task_attempts)",
        "sum without (instance, job) (rate(refile_refiles_total[5m]))",
    ] {
        assert_eq!(faults(bad).len(), 1, "{bad}");
    }
    for good in [
        "max(refile_quarantined) > 0",
        "sum by (le) (max without (instance, job) (increase(refile_task_attempts_bucket[6h])))",
        "max by (queue, priority) (refile_queue_depth)",
        "sum(rate(refile_job_duration_seconds_sum[5m]))",
        "absent(refile_queue_depth)",
    ] {
        assert!(faults(good).is_empty(), "{good}: {:?}", faults(good));
    }
}

#[test]
fn promtool_takes_rules_tests_and_configuration() {
    promtool(&["check", "rules", "alerts.yaml"]);
    promtool(&["test", "rules", "alerts_test.yaml"]);
    promtool(&["check", "config", "prometheus.yml"]);
}

#[test]
fn promtool_takes_every_query_of_the_dashboard() {
    let mut rules = String::from("groups:\n  - name: dashboard\n    rules:\n");
    for (i, query) in queries().iter().enumerate() {
        let query = serde_json::to_string(query).expect("a text");
        let _ = writeln!(rules, "      - {{record: 'q:{i}', expr: {query}}}");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("queries.yaml");
    std::fs::write(&file, rules).expect("a writable folder");
    promtool(&["check", "rules", &file.display().to_string()]);
}

#[test]
fn each_alert_is_tested_both_ways() {
    let alerts = text("deploy/alerts.yaml");
    let alerts: BTreeSet<&str> = alerts.lines().filter_map(|l| l.trim().strip_prefix("- alert: ")).collect();
    let tests = text("deploy/alerts_test.yaml");
    let (mut fires, mut is_quiet) = (BTreeSet::new(), BTreeSet::new());
    let lines: Vec<&str> = tests.lines().map(str::trim).collect();
    for pair in lines.windows(2) {
        if let Some(name) = pair[0].strip_prefix("alertname: ") {
            if pair[1] == "exp_alerts: []" {
                is_quiet.insert(name)
            } else {
                fires.insert(name)
            };
        }
    }
    assert!(alerts.len() >= 9, "{alerts:?}");
    assert_eq!(fires, alerts, "each alert fires in a test");
    assert_eq!(is_quiet, alerts, "each alert is quiet in a test");
}

#[test]
fn the_dashboard_asks_the_source_that_is_chosen() {
    let dashboard: Value = serde_json::from_str(&text("dashboards/fleet.json")).expect("a dashboard in JSON");
    assert_eq!(dashboard["templating"]["list"][0]["name"], "datasource");
    let panels = panels();
    let ids: BTreeSet<u64> = panels.iter().filter_map(|p| p["id"].as_u64()).collect();
    assert_eq!(ids.len(), panels.len(), "each panel has an id of its own");
    for panel in &panels {
        let title = panel["title"].as_str().expect("a title");
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{title}");
        assert!(panel["description"].as_str().is_some_and(|d| !d.is_empty()), "{title} says what it shows");
    }
}

#[test]
fn the_configuration_of_the_composed_fleet_is_one() {
    let file = root().join("deploy/refile.toml");
    let compose = text("deploy/compose.yaml");
    let pairs = compose.lines().filter_map(|line| line.trim().split_once(": "));
    let env: Vec<_> =
        pairs.filter(|(k, _)| k.starts_with("REFILE_")).map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
    assert_eq!(env.len(), 3, "{env:?}");
    let (config, _) = refile_config::load(Some(&file), env, &[]).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(config.store, "redis://redis:6379/0");
    assert_eq!(config.workers.dir, "/var/lib/refile-work");
    assert_eq!((config.agents.len(), config.reviewers.len(), config.gates.len()), (1, 1, 1));
}

#[test]
fn the_redis_configuration_keeps_what_it_is_given() {
    let text = text("deploy/redis.conf");
    let set: BTreeSet<&str> = text.lines().filter(|l| !l.starts_with('#')).map(str::trim).collect();
    for line in ["appendonly yes", "appendfsync everysec", "maxmemory-policy noeviction"] {
        assert!(set.contains(line), "{line}");
    }
}
