//! Agents that speak the Agent Client Protocol: a real process, which asks, writes through us, tries to get out, and hangs.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::path::Path;
use std::time::{Duration, Instant};

use common::Place;
use common::fleet::{Try, artifacts, task};
use common::processes::is_dead;
use refile_config::schema::AgentType;
use refile_config::{Agent, Span, Tool};
use refile_core::Outcome;
use refile_core::failure::FailureKind;
use serde_json::Value;

/// An attempt by the scripted agent, in this mode.
fn attempt(place: &Place, mode: &str, change: impl FnOnce(&mut Agent)) -> Try<'static> {
    let outside = place.root.path().join("outside");
    std::fs::create_dir_all(&outside).unwrap();
    std::fs::write(outside.join("secret.txt"), "c4nary").unwrap();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/scripts/acp_agent.py");
    let command = ["python3", script].map(str::to_owned).to_vec();
    let args = [mode, outside.to_str().unwrap()].map(str::to_owned).to_vec();
    let mut agent = Agent { kind: AgentType::Acp, command, args, timeout: Span::seconds(60), ..Agent::default() };
    change(&mut agent);
    Try { agent, ..Try::script("") }
}

async fn log(place: &Place, transcript: Option<&String>) -> String {
    let log = artifacts(place).get(transcript.unwrap()).await.unwrap().unwrap();
    String::from_utf8(log.to_vec()).unwrap()
}

#[tokio::test]
async fn it_gets_what_is_allowed_and_what_is_in_the_tree() {
    let place = Place::new();
    let attempt = attempt(&place, "work", |a| {
        a.allowed_tools = Some(vec![Tool::Read, Tool::Edit]);
        a.env = vec!["CARGO_MANIFEST_DIR".to_owned()];
    });
    let outcome = attempt.run(&place, &task(&place, "t1")).await;
    let Outcome::Coded { change, usage, transcript, .. } = &outcome else { panic!("{outcome:?}") };
    assert_eq!(change.files, 2);
    assert_eq!(place.show(&format!("{}:deep/new.txt", change.head)), "new");
    let report: Value = serde_json::from_str(&place.show(&format!("{}:report.json", change.head))).unwrap();
    assert_eq!(report["prompt"], "Do it well.");
    assert_eq!(report["cwd"], true);
    assert_eq!(report["capabilities"]["fs"], serde_json::json!({"readTextFile": true, "writeTextFile": true}));
    assert_ne!(report["capabilities"]["terminal"], true);
    let expected = serde_json::json!({
        "read": "yes", "edit": "yes", "edit outside": "no", "execute": "no", "fetch": "no",
    });
    assert_eq!(report["permissions"], expected);
    assert_eq!((report["read"].as_str(), report["write"].is_null()), (Some("two\nthree\n"), true));
    let refused = report["refused"].as_object().unwrap();
    assert_eq!(refused.len(), 6);
    for (what, why) in refused {
        let why = why.as_str().unwrap();
        assert!(why.contains("outside of the repository") || why.contains("out of bounds"), "{what}: {why}");
    }
    assert_eq!(report["terminal"], -32601, "a method that nobody offered");
    assert_eq!(std::fs::read_to_string(place.root.path().join("outside/secret.txt")).unwrap(), "c4nary");

    assert_eq!((usage.input_tokens, usage.output_tokens, usage.cost_micros), (50, 20, 250_000));
    assert_eq!(change.summary, "It is done. The key is [CARGO_MANIFEST_DIR].");
    let log = log(&place, transcript.as_ref()).await;
    for line in [
        "I look at it.\n",
        "> Edit early {\"path\":\"new.txt\"}\n",
        "? Execute rm -rf /: refused\n",
        "? Edit new.txt: allowed\n",
        "< Completed c-early\n",
    ] {
        assert!(log.contains(line), "{line:?}: {log}");
    }
    assert!(!log.contains(env!("CARGO_MANIFEST_DIR")) && !log.contains("c4nary"), "{log}");
}

#[tokio::test]
async fn it_may_write_nothing_where_writing_is_not_allowed() {
    let place = Place::new();
    let attempt = attempt(&place, "work", |a| a.allowed_tools = Some(vec![Tool::Read]));
    let outcome = attempt.run(&place, &task(&place, "t1")).await;
    let Outcome::Coded { change, transcript, .. } = &outcome else { panic!("{outcome:?}") };
    assert_eq!(change.files, 0);
    assert!(log(&place, transcript.as_ref()).await.contains("report.json: writing files is not among"));
}

#[tokio::test]
async fn each_reason_to_stop_is_one_outcome() {
    let place = Place::new();
    let task = task(&place, "t1");
    let outcome = async |mode| attempt(&place, mode, |_| {}).run(&place, &task).await;
    for (mode, words) in [("max_tokens", "its tokens are used up"), ("max_turn_requests", "its steps are used up")] {
        let outcome = outcome(mode).await;
        let Outcome::Coded { change, .. } = outcome else { panic!("{outcome:?}") };
        assert!(change.files == 1 && change.summary.contains(words), "{change:?}");
        common::git(&place.origin, &["branch", "-D", &change.branch]);
    }
    for (mode, asked) in [("refusal", "As far as I came."), ("ask", "Which port?")] {
        let outcome = outcome(mode).await;
        let Outcome::NeedsInput { words, .. } = outcome else { panic!("{outcome:?}") };
        assert_eq!(words, asked, "{mode}");
    }
    for (mode, expected, says) in [
        ("cancelled", FailureKind::Crash, "cancelled its own work"),
        ("crash", FailureKind::RateLimit, "HTTP 429 Too Many Requests"),
        ("auth", FailureKind::Auth, "Authentication required"),
        ("endless", FailureKind::Crash, "longer than"),
    ] {
        let outcome = outcome(mode).await;
        let Outcome::AgentFailed { failure, transcript: Some(_), .. } = outcome else { panic!("{outcome:?}") };
        assert!(failure.kind == expected && failure.detail.contains(says), "{mode}: {failure}");
    }
    let mut missing = attempt(&place, "work", |_| {});
    missing.agent.command = vec!["no-such-agent".to_owned()];
    let outcome = missing.run(&place, &task).await;
    let Outcome::AgentFailed { failure, .. } = outcome else { panic!("{outcome:?}") };
    assert_eq!(failure.kind, FailureKind::Configuration);
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn pids(outside: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(outside.join("pids")).unwrap_or_default();
    if text.ends_with('\n') { text.split_whitespace().map(str::to_owned).collect() } else { Vec::new() }
}

#[tokio::test]
async fn one_that_hangs_is_asked_to_stop_and_then_killed_with_its_children() {
    let place = Place::new();
    let attempt = attempt(&place, "hang", |a| a.timeout = Span::seconds(6));
    let outcome = attempt.run(&place, &task(&place, "t1")).await;
    let Outcome::AgentFailed { failure, usage, .. } = outcome else { panic!("{outcome:?}") };
    assert!(
        failure.kind == FailureKind::Timeout && failure.detail.contains("6 s") && usage.wall_ms >= 6_000,
        "{failure}"
    );
    let outside = place.root.path().join("outside");
    assert_eq!(std::fs::read_to_string(outside.join("cancelled")).unwrap(), "s-1");
    let pids = pids(&outside);
    assert_eq!(pids.len(), 2);
    until("its processes end", || pids.iter().all(|pid| is_dead(pid))).await;
}

#[tokio::test]
async fn one_whose_lease_is_lost_is_asked_to_stop_and_killed_with_its_children() {
    let place = std::sync::Arc::new(Place::new());
    let outside = place.root.path().join("outside");
    let attempt = attempt(&place, "hang", |_| {});
    let running = tokio::spawn({
        let place = place.clone();
        async move { attempt.run(&place, &task(&place, "t1")).await }
    });
    until("the agent hangs", || pids(&outside).len() == 2).await;
    running.abort();
    assert!(running.await.unwrap_err().is_cancelled());
    until("its processes end", || pids(&outside).iter().all(|pid| is_dead(pid))).await;
    assert_eq!(std::fs::read_to_string(outside.join("cancelled")).unwrap(), "s-1");
    assert_eq!(std::fs::read_dir(place.workspace.dir().join("trees")).unwrap().count(), 0);
}

#[tokio::test]
async fn what_one_says_is_kept_while_it_works_and_after_it_was_killed() {
    let place = std::sync::Arc::new(Place::new());
    let attempt = attempt(&place, "says", |a| a.env = vec!["CARGO_MANIFEST_DIR".to_owned()]);
    let running = tokio::spawn({
        let place = place.clone();
        async move { attempt.run(&place, &task(&place, "t1")).await }
    });
    let file = place.root.path().join("artifacts/t1/change/1-10/transcript.log");
    let kept = || std::fs::read_to_string(&file).unwrap_or_default();
    until("its words are kept", || kept().contains("I look around.")).await;
    assert!(kept().contains("> Read a.txt") && !running.is_finished(), "{}", kept());
    running.abort();
    assert!(running.await.unwrap_err().is_cancelled());
    assert!(kept().contains("I look around.") && !kept().contains("still being said /"), "{}", kept());
}

/// The most memory that this process ever had, in MiB.
fn most_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() / 1024
}

#[tokio::test]
async fn however_much_one_says_and_asks_the_worker_keeps_little() {
    let place = Place::new();
    place.commit(&[("large.txt", &"x".repeat(15 << 20))]);
    let task = task(&place, "t1");
    // Its updates have names of 20 MB each, 400 MB together.
    let outcome = attempt(&place, "flood", |a| a.timeout = Span::seconds(200)).run(&place, &task).await;
    let Outcome::Coded { change, .. } = outcome else { panic!("{outcome:?}") };
    assert_eq!(change.summary, "That was much.");
    // It asks for 450 MB of answers and takes none of them.
    let outcome = attempt(&place, "greedy", |a| a.timeout = Span::seconds(10)).run(&place, &task).await;
    let Outcome::AgentFailed { failure, .. } = outcome else { panic!("{outcome:?}") };
    assert_eq!(failure.kind, FailureKind::Timeout, "{failure}");
    assert!(most_memory() < 350, "{} MiB", most_memory());
}
