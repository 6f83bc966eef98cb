//! The whole fleet as separate processes: fifty tasks on one repository, while coders and coordinators are killed.

#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use common::place::{Member, Place, Role};
use common::redis::Redis;
use common::{git, until};
use serde_json::Value;
use sha2::{Digest, Sha256};

/// The cap on attempts.
const CAP: usize = 4;
/// How long the fleet may take for all.
const DEADLINE: Duration = Duration::from_mins(2);

#[test]
fn fifty_tasks_on_redis() {
    let server = Redis::start();
    fifty_tasks(Some(&server.url()));
}

#[test]
fn fifty_tasks_on_one_sqlite_file() {
    fifty_tasks(None);
}

/// Fifty tasks of every kind, well mixed; the first two meet each other.
fn kinds() -> Vec<&'static str> {
    let mut left = [
        ("shared", 6),
        ("plain", 14),
        ("empty", 4),
        ("lint", 5),
        ("retry", 5),
        ("limited", 4),
        ("garbage", 3),
        ("crash", 2),
        ("never", 3),
        ("stubborn", 1),
        ("ask", 1),
    ];
    let mut kinds = vec!["shared", "shared"];
    while kinds.len() < 50 {
        for (kind, left) in left.iter_mut().filter(|(_, left)| *left > 0) {
            kinds.push(*kind);
            *left -= 1;
        }
    }
    kinds
}

fn fifty_tasks(store: Option<&str>) {
    let mut place = Place::new(store, &format!("max_attempts = {CAP}"), "lease = \"3s\"\ngrace = \"5s\"");
    let kinds = kinds();
    let ids = place.submit(&kinds);
    let mut start = |role| -> Member { place.start(role, &[]) };
    let [coordinator, other_coordinator] = [start(Role::Coordinator), start(Role::Coordinator)];
    let [coder, other_coder] = [start(Role::Coder), start(Role::Coder)];
    let reviewers = [start(Role::Reviewer), start(Role::Reviewer)];

    let mut alive = vec![reviewers[0], reviewers[1]];
    let deadline = Instant::now() + DEADLINE;
    let reached = |place: &Place, n: usize| {
        // One bound for the whole run, whatever part of it takes long.
        until(&format!("{n} tasks are done"), deadline.saturating_duration_since(Instant::now()), || {
            // A look costs what a small job costs, and there are only so many processors.
            std::thread::sleep(Duration::from_millis(300));
            (place.done() >= n).then_some(())
        });
    };
    reached(&place, 5);
    place.kill_at_work(coder);
    reached(&place, 8);
    alive.push(place.start(Role::Coder, &[]));
    reached(&place, 12);
    place.kill(coordinator);
    reached(&place, 16);
    alive.push(place.start(Role::Coordinator, &[]));
    reached(&place, 20);
    place.kill_at_work(other_coder);
    place.kill(other_coordinator);
    alive.push(place.start(Role::Coder, &[]));
    alive.push(place.start(Role::Coordinator, &[]));
    reached(&place, kinds.len());

    for member in alive.clone() {
        assert!(place.ended(member).is_none(), "a process ended by itself");
    }
    let expired: usize = alive.iter().map(|m| place.said(*m, "leases ran out")).sum();
    let expired = expired + place.said(coordinator, "leases ran out") + place.said(other_coordinator, "leases ran out");
    assert!(expired > 0, "coders were killed at work, and no lease ran out");
    place.assert_prompts_were_right();
    let tasks: Vec<Value> = ids.iter().map(|id| place.show(id)).collect();
    for (i, (task, kind)) in tasks.iter().zip(&kinds).enumerate() {
        check_history(task, kind);
        check_prompts(&place, task);
        check_content(&place, task, &format!("{:02}", i + 1), kind);
    }
    check_failures_of_reviewers(&tasks);
    check_base(&place, &tasks);
}

fn texts<'v>(list: &'v Value, pointer: &str) -> Vec<&'v str> {
    list.as_array().unwrap().iter().map(|v| v.pointer(pointer).and_then(Value::as_str).unwrap_or("")).collect()
}

/// Holds that a task ended as its kind demands, and that each of its attempts is explained by what came before it.
#[track_caller]
fn check_history(task: &Value, kind: &str) {
    let shown = format!("{task:#}");
    let attempts = task["attempts"].as_array().unwrap();
    let numbers: Vec<u64> = attempts.iter().map(|a| a["number"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (1..=attempts.len() as u64).collect::<Vec<_>>(), "{shown}");
    assert!(attempts.len() <= CAP, "{shown}");
    assert!(attempts.iter().all(|a| a["finished_at"].is_u64()), "{shown}");

    let rejected_by: Vec<&str> =
        attempts.iter().filter_map(|a| a.pointer("/rejection/by").and_then(Value::as_str)).collect();
    let state = task["state"].as_str().unwrap();
    let reasons = texts(&task["escalations"], "/reason");
    let (expected, ends): (Vec<&str>, &[&str]) = match kind {
        "empty" => (vec!["empty_diff"], &[]),
        "lint" => (vec!["lint"], &[]),
        "retry" => (vec!["scripted"], &[]),
        "never" => (vec!["scripted"; CAP], &["attempts_exhausted"]),
        "stubborn" => (vec!["scripted"; 2], &["repeated_rejection"]),
        "ask" => (vec![], &["needs_input"]),
        // How often others were faster is chance.
        "shared" if state == "escalated" => (vec!["merge_conflict"; CAP], &["attempts_exhausted"]),
        "shared" => (vec!["merge_conflict"; attempts.len() - 1], &[]),
        _ => (vec![], &[]),
    };
    assert_eq!(rejected_by, expected, "{shown}");
    assert_eq!(reasons, ends, "{shown}");
    assert_eq!(state, if ends.is_empty() { "merged" } else { "escalated" }, "{shown}");
    // A merged task has one attempt more than rejections, and so has one whose agent asked.
    let unrejected = usize::from(ends.is_empty() || kind == "ask");
    assert_eq!(attempts.len(), rejected_by.len() + unrejected, "{shown}");
    for attempt in &attempts[..attempts.len() - 1] {
        assert!(attempt["rejection"].is_object(), "{shown}");
    }
    assert_eq!(task["landed"].is_string(), state == "merged", "{shown}");
    assert!(task["jobs"].as_array().unwrap().is_empty(), "{shown}");
}

/// Holds that each attempt's agent was given the prompt that the record shows, and that the demand leads it.
#[track_caller]
fn check_prompts(place: &Place, task: &Value) {
    let id = task["id"].as_str().unwrap();
    let description = task["description"].as_str().unwrap();
    let attempts = task["attempts"].as_array().unwrap();
    for (i, attempt) in attempts.iter().enumerate() {
        let prompt = attempt["prompt"].as_str().unwrap();
        let digest = attempt["prompt_digest"].as_str().expect("every attempt was delivered");
        assert_eq!(sha256(prompt.as_bytes()), digest, "{id}: {prompt}");
        let given = given(place, &format!("{id}-{}-", attempt["number"]));
        assert!(!given.is_empty() && given.iter().all(|g| g == prompt.as_bytes()), "{id}: {prompt}");
        if i == 0 {
            assert_eq!(prompt, description);
            continue;
        }
        let demand = attempts[i - 1]["required_change"].as_str().unwrap();
        let (heading, rest) = prompt.split_once('\n').unwrap();
        assert_eq!(heading, format!("## ATTEMPT #{} — previous attempt rejected", i + 1));
        let at = rest.find(&format!("**Required change**: {demand}\n"));
        assert!(at.is_some_and(|at| at + "**Required change**: ".len() + demand.len() <= 200), "{prompt}");
        assert!(prompt.ends_with(&format!("\n---\n\n{description}")), "{prompt}");
    }
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::new(), |hex, byte| format!("{hex}{byte:02x}"))
}

/// What agents were given on standard input, for the attempt whose notes are named so.
fn given(place: &Place, prefix: &str) -> Vec<Vec<u8>> {
    let entries = std::fs::read_dir(place.stage("prompts")).unwrap().map(|e| e.unwrap());
    let of_attempt = entries.filter(|e| e.file_name().to_string_lossy().starts_with(prefix));
    // An agent that was killed may not have read all.
    of_attempt.map(|e| std::fs::read(e.path()).unwrap()).filter(|given| !given.is_empty()).collect()
}

/// Holds that a merged task's change is on the base branch, and nothing of an escalated one.
#[track_caller]
fn check_content(place: &Place, task: &Value, number: &str, kind: &str) {
    let file = format!("tasks/{number}.txt");
    let tree = git(&place.origin(), &["ls-tree", "-r", "--name-only", "main"]);
    let is_merged = task["state"] == "merged";
    assert_eq!(tree.lines().any(|f| f == file), is_merged, "{file} of {task:#}");
    if is_merged {
        let more = if kind == "retry" { "\npolite" } else { "" };
        assert_eq!(git(&place.origin(), &["show", &format!("main:{file}")]), format!("task {number}{more}"));
    }
    if kind == "shared" {
        let common = git(&place.origin(), &["show", "main:common.txt"]);
        assert_eq!(common.lines().filter(|l| *l == number).count(), usize::from(is_merged), "{common}");
    }
}

/// Holds that the reviewer's failures came about; [`check_history`] holds that they cost no attempt.
#[track_caller]
fn check_failures_of_reviewers(tasks: &[Value]) {
    let attempts = tasks.iter().flat_map(|t| t["attempts"].as_array().unwrap());
    let reviews = attempts.flat_map(|a| a["reviews"].as_array().unwrap());
    let failures: BTreeSet<&str> = reviews.filter_map(|r| r.pointer("/failure/kind")?.as_str()).collect();
    assert!(failures.contains("rate_limit") && failures.contains("malformed"), "{failures:?}");
    let conflicts =
        tasks.iter().flat_map(|t| texts(&t["attempts"], "/rejection/by")).filter(|b| *b == "merge_conflict");
    assert!(conflicts.count() > 0, "no task met a conflict, although two began at once");
}

/// Holds that the base branch is the beginning and one commit for each merged task, and nothing else.
#[track_caller]
fn check_base(place: &Place, tasks: &[Value]) {
    let origin = place.origin();
    git(&origin, &["fsck", "--full", "--strict"]);
    let merged: BTreeMap<&str, &str> = tasks
        .iter()
        .filter(|t| t["state"] == "merged")
        .map(|t| (t["id"].as_str().unwrap(), t["landed"].as_str().unwrap()))
        .collect();
    let commits = git(&origin, &["rev-list", "--count", "main"]);
    assert_eq!(commits, (1 + merged.len()).to_string());
    let log = git(&origin, &["log", "--format=%H %(trailers:key=Refile-Task,valueonly,separator=%x2C)", "main"]);
    let landed: Vec<(&str, &str)> =
        log.lines().filter_map(|l| l.split_once(' ')).filter(|(_, id)| !id.is_empty()).map(|(c, id)| (id, c)).collect();
    assert_eq!(landed.len(), merged.len(), "{log}");
    assert_eq!(landed.into_iter().collect::<BTreeMap<_, _>>(), merged);
    let common = git(&origin, &["show", "main:common.txt"]);
    assert!(common.starts_with("start\n") && !common.contains("<<<<"), "{common}");
    for branch in git(&origin, &["for-each-ref", "--format=%(refname:lstrip=2)", "refs/heads/refile"]).lines() {
        let id = branch.split('/').nth(1).unwrap();
        assert!(!merged.contains_key(id), "{branch} is left of a merged task");
    }
}
