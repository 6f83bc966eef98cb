//! What goes wrong around a running fleet, with separate processes: a store that goes away, signals, a task called off.

#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod common;

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::Duration;

use common::command::Desk;
use common::place::{Member, Place, Role};
use common::redis::Redis;
use common::{group, until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

/// How long anything may take that takes well under a second.
const SOON: Duration = Duration::from_secs(30);

#[test]
fn a_store_that_goes_away_and_comes_back_loses_nothing() {
    let mut server = Redis::start();
    let mut place = Place::new(Some(&server.url()), "max_attempts = 3", "lease = \"3s\"");
    let kinds = ["plain", "retry", "lint", "plain", "garbage", "empty", "plain", "retry", "plain", "limited", "hold"];
    let ids = place.submit(&kinds);
    let roles = [Role::Coordinator, Role::Coder, Role::Reviewer];
    let members = roles.map(|role| place.start(role, &[]));
    until("some tasks are done", SOON, || (place.done() >= 3).then_some(()));

    server.kill();
    let missed = |place: &Place, member: Member| {
        let words = ["cannot take", "cannot claim", "cannot report", "cannot extend", "nothing is pushed"];
        words.into_iter().map(|words| place.said(member, words)).sum::<usize>()
    };
    until("every process misses the store", SOON, || members.iter().all(|m| missed(&place, *m) > 0).then_some(()));
    // An agent goes on meanwhile, and its outcome is handed in when the store is back.
    place.let_go("11");
    server.start_again();

    until("all tasks are done", Duration::from_mins(1), || (place.done() == kinds.len()).then_some(()));
    for member in members {
        assert!(place.ended(member).is_none(), "a process ended by itself");
    }
    place.assert_prompts_were_right();
    for (id, kind) in ids.iter().zip(kinds) {
        let task = place.show(id);
        let attempts = if ["retry", "lint", "empty"].contains(&kind) { 2 } else { 1 };
        assert_eq!((&task["state"], count(&task, "attempts")), (&"merged".into(), attempts), "{task:#}");
    }
}

fn count(task: &Value, what: &str) -> usize {
    task[what].as_array().unwrap().len()
}

/// A fleet whose only coder runs the agent of the only task; gives the agent's group too.
fn holding(grace: &str) -> (Place, String, Member, i32) {
    let mut place = Place::new(None, "", &format!("lease = \"3s\"\ngrace = \"{grace}\""));
    let id = place.submit(&["hold"]).remove(0);
    place.start(Role::Coordinator, &[]);
    place.start(Role::Reviewer, &[]);
    let coder = place.start(Role::Coder, &[]);
    let agent = place.held("01");
    assert!(group(agent).len() >= 2, "the agent and its own process run");
    (place, id, coder, agent)
}

#[track_caller]
fn assert_gone(agent: i32) {
    until("the agent's processes are gone", SOON, || group(agent).is_empty().then_some(()));
}

#[test]
fn sigterm_gives_a_running_job_back_uncharged() {
    let (mut place, id, coder, agent) = holding("300ms");
    let before = place.show(&id);
    assert_eq!((&before["jobs"][0]["place"], &before["jobs"][0]["deliveries"]), (&"leased".into(), &1.into()));

    place.signal(coder, Signal::SIGTERM);
    let status = until("the coder ends", SOON, || place.ended(coder));
    assert_eq!(status.code(), Some(0), "{status}");
    assert_gone(agent);
    let after = place.show(&id);
    assert_eq!(count(&after, "attempts"), 1, "{after:#}");
    assert_eq!(count(&after["attempts"][0], "failures"), 0, "{after:#}");
    assert_eq!(after["jobs"][0]["place"], "queued", "{after:#}");
    assert!(after["jobs"][0]["deliveries"].as_u64().unwrap() <= 1, "{after:#}");

    // Another coder does it, in the same attempt.
    std::fs::remove_file(place.stage("held-01")).unwrap();
    place.start(Role::Coder, &[]);
    place.held("01");
    let again = place.show(&id);
    assert_eq!(again["jobs"][0]["deliveries"], 1, "a job that was given back is not one delivery more: {again:#}");
    place.let_go("01");
    until("the task is merged", SOON, || (place.states().get("merged") == Some(&1)).then_some(()));
    assert_eq!(count(&place.show(&id), "attempts"), 1);
}

/// What reads a fleet's log may be gone before it: that is no reason not to stop.
#[test]
fn a_fleet_whose_log_nobody_reads_any_more_still_stops() {
    let place = Desk::new();
    let mut up = place.command(&["up"]).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let mut log = BufReader::new(up.stderr.take().unwrap()).lines();
    assert!(log.any(|line| line.unwrap().contains("the fleet is up")));
    drop(log);
    kill(Pid::from_raw(i32::try_from(up.id()).unwrap()), Signal::SIGTERM).unwrap();
    let status = until("the fleet ends", SOON, || up.try_wait().unwrap());
    assert_eq!(status.code(), Some(0), "{status}");
}

#[test]
fn a_second_sigterm_leaves_at_once() {
    let (mut place, id, coder, agent) = holding("10m");
    place.signal(coder, Signal::SIGTERM);
    until("the coder heard it", SOON, || (place.said(coder, "stopping") > 0).then_some(()));
    assert!(place.ended(coder).is_none() && !group(agent).is_empty(), "the job has its grace period");

    place.signal(coder, Signal::SIGTERM);
    let status = until("the coder ends", SOON, || place.ended(coder));
    assert_eq!(status.code(), Some(130), "{status}");
    assert_gone(agent);
    let task = place.show(&id);
    assert_eq!((&task["state"], count(&task, "attempts")), (&"open".into(), 1), "{task:#}");
}

#[test]
fn an_agent_does_not_outlive_a_coder_that_is_killed() {
    let (mut place, id, coder, agent) = holding("10m");
    place.signal(coder, Signal::SIGKILL);
    until("the coder is gone", SOON, || place.ended(coder));
    assert_gone(agent);
    let task = place.show(&id);
    assert_eq!((&task["state"], count(&task, "attempts")), (&"open".into(), 1), "{task:#}");
}

#[test]
fn a_task_that_is_called_off_stops_its_agent() {
    let (mut place, id, coder, agent) = holding("10m");
    assert_eq!(place.refile(&["task", "cancel", &id])["state"], "cancelled");
    assert_gone(agent);
    until("the coder says so", SOON, || (place.said(coder, "the lease is gone") > 0).then_some(()));
    let task = place.show(&id);
    assert_eq!((&task["state"], count(&task, "jobs")), (&"cancelled".into(), 0), "{task:#}");
    assert!(place.ended(coder).is_none(), "the coder goes on");
    let tree = common::git(&place.origin(), &["ls-tree", "-r", "--name-only", "main"]);
    assert!(!tree.contains("tasks/01.txt"), "{tree}");
}

#[test]
fn a_coder_that_is_killed_leaks_no_permit() {
    let server = Redis::start();
    // On Redis permits are kept apart from leases; a file counts the leases themselves.
    for store in [None, Some(server.url())] {
        let mut place = Place::new(store.as_deref(), "", "lease = \"1s\"\n\n[limits]\nrepository = 1");
        let ids = place.submit(&["hold", "plain"]);
        place.start(Role::Coordinator, &[]);
        place.start(Role::Reviewer, &[]);
        let coder = place.start(Role::Coder, &[]);
        let agent = place.held("01");
        assert_eq!(place.show(&ids[1])["jobs"][0]["place"], "queued", "the only permit is taken");
        place.kill(coder);
        assert_gone(agent);
        std::fs::remove_file(place.stage("held-01")).unwrap();

        // With a permit for good in dead hands, nobody could do any job of this repository again.
        place.start(Role::Coder, &[]);
        place.held("01");
        place.let_go("01");
        until("both tasks are merged", SOON, || (place.states().get("merged") == Some(&2)).then_some(()));
        assert_eq!(count(&place.show(&ids[0]), "attempts"), 1);
    }
}
