//! Coders that die in the middle of a landing, and landings that are called off: real processes on both stores.

#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod common;
#[path = "../../shared/forge/tests/fake/mod.rs"]
mod fake;

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use common::place::{Member, Place, Role};
use common::redis::Redis;
use common::{git, until};
use fake::{Fake, PROJECT};
use refile_config::ForgeKind;

/// How long anything may take that takes well under a second.
const SOON: Duration = Duration::from_mins(1);

/// A fleet whose tasks are approved and wait to land: nobody lands anything yet.
fn approved(store: Option<&str>, land: &str, most: usize) -> (Place, Vec<String>) {
    let mut place = Place::new(store, "", &format!("lease = \"2s\"\n\n[land]\n{land}"));
    let ids = place.submit(&vec!["plain"; most]);
    place.start(Role::Coordinator, &[]);
    place.start(Role::Reviewer, &[]);
    let coder = place.start(Role::Coder, &["--queues", "code"]);
    until("all are approved", SOON, || ids.iter().all(|id| is_queued(&place, id)).then_some(()));
    place.kill(coder);
    (place, ids)
}

fn is_queued(place: &Place, id: &str) -> bool {
    let job = &place.show(id)["jobs"][0];
    job["queue"] == "land" && job["place"] == "queued"
}

fn hook(place: &Place, name: &str, script: &str) {
    let path = place.origin().join("hooks").join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let on_main =
        format!("#!/bin/sh\nwhile read old new ref; do case $ref in refs/heads/main) {script};; esac; done\n");
    std::fs::write(&path, on_main).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// Starts a coder for landings alone; the hook waits until it is told whom to kill.
fn lander(place: &mut Place) -> Member {
    let coder = place.start(Role::Coder, &["--queues", "land"]);
    std::fs::write(place.stage("pid.new"), place.pid(coder).to_string()).unwrap();
    std::fs::rename(place.stage("pid.new"), place.stage("pid")).unwrap();
    coder
}

/// The ids on the base branch, oldest first.
fn ids(place: &Place) -> Vec<String> {
    let format = "--format=%(trailers:key=Refile-Task,valueonly,separator=%x2C)";
    let log = git(&place.origin(), &["log", "--first-parent", "--reverse", format, "main"]);
    log.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

/// The coder dies when its push is through and nobody has been told.
fn killed_after_the_push(store: Option<&str>, batch: usize, strategy: &str) {
    let (mut place, tasks) = approved(store, &format!("batch = {batch}\nstrategy = \"{strategy}\""), batch);
    let stage = place.stage("").display().to_string();
    // Once: the next coder must live.
    let kill = format!(
        "if mkdir {stage}/killed; then while [ ! -e {stage}/pid ]; do sleep 0.02; done; kill -9 $(cat {stage}/pid); fi"
    );
    hook(&place, "post-receive", &kill);
    let coder = lander(&mut place);
    until("the coder is killed", SOON, || place.ended(coder));
    assert_eq!(ids(&place).len(), batch, "all were pushed at once");
    for id in &tasks {
        assert_eq!(place.show(id)["state"], "open", "nobody was told");
    }
    let head = git(&place.origin(), &["rev-parse", "main"]);
    lander(&mut place);
    until("all are merged", SOON, || (place.states().get("merged") == Some(&batch)).then_some(()));
    assert_eq!(git(&place.origin(), &["rev-parse", "main"]), head, "nothing landed a second time");
    let mut landed: Vec<String> = tasks
        .iter()
        .map(|id| {
            let task = place.show(id);
            assert_eq!(task["attempts"].as_array().unwrap().len(), 1);
            let commit = task["landed"].as_str().unwrap().to_owned();
            let of = git(&place.origin(), &["log", "-1", "--format=%(trailers:key=Refile-Task,valueonly)", &commit]);
            assert_eq!(of.trim(), id);
            commit
        })
        .collect();
    landed.sort_unstable();
    landed.dedup();
    assert_eq!(landed.len(), batch, "each has a commit of its own");
    until("the attempt branches are gone", SOON, || {
        git(&place.origin(), &["for-each-ref", "refs/heads/refile"]).is_empty().then_some(())
    });
}

#[test]
fn a_push_that_nobody_was_told_of_is_recognised_on_sqlite() {
    killed_after_the_push(None, 1, "squash");
}

#[test]
fn a_batch_that_nobody_was_told_of_is_recognised_on_sqlite() {
    killed_after_the_push(None, 3, "merge");
}

#[test]
fn a_push_that_nobody_was_told_of_is_recognised_on_redis() {
    let server = Redis::start();
    killed_after_the_push(Some(&server.url()), 1, "rebase");
}

#[test]
fn a_batch_that_nobody_was_told_of_is_recognised_on_redis() {
    let server = Redis::start();
    killed_after_the_push(Some(&server.url()), 3, "squash");
}

/// A task is called off when its change is on the base already and nobody has been told: the record says so.
#[test]
fn a_task_that_is_called_off_after_its_push_is_merged() {
    let server = Redis::start();
    for store in [None, Some(server.url())] {
        let (mut place, tasks) = approved(store.as_deref(), "batch = 1", 1);
        let stage = place.stage("").display().to_string();
        hook(&place, "post-receive", &format!("touch {stage}/pushed; while [ ! -e {stage}/go ]; do sleep 0.02; done"));
        lander(&mut place);
        until("the push is through", SOON, || place.stage("pushed").exists().then_some(()));
        let said = place.refile(&["task", "cancel", &tasks[0]]);
        assert_eq!(said["state"], "open", "whether it is on the base is not known yet: {said}");
        std::fs::write(place.stage("go"), "").unwrap();
        until("the task is merged", SOON, || (place.states().get("merged") == Some(&1)).then_some(()));
        assert_eq!(ids(&place), tasks);
        assert_eq!(place.show(&tasks[0])["landed"], git(&place.origin(), &["rev-parse", "main"]).as_str());
    }
}

/// The base moves and a coder lands, so that gates run; they wait until they are let go by a file `go`.
fn gates_wait(place: &mut Place) -> Member {
    slow_gates(place);
    let coder = lander(place);
    until("the gates run", SOON, || place.stage("began").exists().then_some(()));
    coder
}

/// A worker that does not reach the store pushes nothing: others may have taken its job since.
#[test]
fn nothing_is_pushed_while_the_store_is_away() {
    let mut server = Redis::start();
    let (mut place, tasks) = approved(Some(&server.url()), "batch = 1", 1);
    let coder = gates_wait(&mut place);
    let before = git(&place.origin(), &["rev-parse", "main"]);
    server.kill();
    std::fs::write(place.stage("go"), "").unwrap();
    until("the coder asks whose the job is", SOON, || {
        (place.said(coder, "nothing is pushed before") > 0).then_some(())
    });
    assert_eq!(git(&place.origin(), &["rev-parse", "main"]), before);
    server.start_again();
    until("the task is merged", SOON, || (place.states().get("merged") == Some(&1)).then_some(()));
    assert_eq!(ids(&place), tasks);
}

/// A task is called off while its gates run on the merged tree: nothing lands.
#[test]
fn a_task_that_is_called_off_before_its_push_does_not_land() {
    let server = Redis::start();
    for store in [None, Some(server.url())] {
        let (mut place, tasks) = approved(store.as_deref(), "batch = 2", 2);
        gates_wait(&mut place);
        place.refile(&["task", "cancel", &tasks[0]]);
        std::fs::write(place.stage("go"), "").unwrap();
        until("both are over", SOON, || (place.done() == 2).then_some(()));
        assert_eq!(
            (place.show(&tasks[0])["state"].as_str(), place.show(&tasks[1])["state"].as_str()),
            (Some("cancelled"), Some("merged"))
        );
        assert_eq!(ids(&place), [tasks[1].clone()]);
        // What was called off stays so when it is called off once more, and there is nothing left of it.
        assert_eq!(place.show(&tasks[0])["jobs"].as_array().unwrap().len(), 0);
    }
}

/// The base moves by hand, so that the gates run on the merged tree; they wait until they are let go.
fn slow_gates(place: &Place) {
    let stage = place.stage("").display().to_string();
    let config = std::fs::read_to_string(place.dir().join("refile.toml")).unwrap();
    let run = format!("touch {stage}/began; while [ ! -e {stage}/go ]; do sleep 0.02; done");
    let gate = format!("\n[[gates]]\nname = \"slow\"\nrun = \"{run}\"\n");
    std::fs::write(place.dir().join("refile.toml"), config + &gate).unwrap();
    let first = place.dir().join("first");
    git(&first, &["commit", "-q", "--allow-empty", "-m", "by hand"]);
    git(&first, &["push", "-q", place.origin().to_str().unwrap(), "main"]);
}

/// A task is called off for good while the gates of its landing run: nothing is pushed to the forge, and nothing opened there.
#[test]
fn a_task_that_is_called_off_before_it_is_proposed_is_not_proposed() {
    let server = Redis::start();
    for store in [None, Some(server.url())] {
        let (mut place, tasks) = approved(store.as_deref(), "strategy = \"squash\"", 1);
        let fake = Fake::start(ForgeKind::Github, &place.origin());
        let config = std::fs::read_to_string(place.dir().join("refile.toml")).unwrap();
        let forge = format!(
            "\n[forge]\nkind = \"github\"\nbase_url = \"{}\"\nproject = \"{PROJECT}\"\ntoken_env = \"FORGE_TOKEN\"\n",
            fake.url
        );
        let config = config.replace("strategy = \"squash\"", "strategy = \"pull_request\"") + &forge;
        std::fs::write(place.dir().join("refile.toml"), config).unwrap();
        slow_gates(&place);
        let coder = lander(&mut place);
        until("the gates run", SOON, || place.stage("began").exists().then_some(()));
        // The second time nobody waits for a look.
        for _ in 0..2 {
            place.refile(&["task", "cancel", &tasks[0]]);
        }
        std::fs::write(place.stage("go"), "").unwrap();
        assert_eq!(place.show(&tasks[0])["state"], "cancelled");
        until("the coder has let it go", SOON, || {
            (place.said(coder, "the job went") + place.said(coder, "the lease is gone") > 0).then_some(())
        });
        let branches = git(&place.origin(), &["for-each-ref", "--format=%(refname)", "refs/heads/refile"]);
        assert!(!branches.contains("pull-request"), "{branches}");
        assert_eq!(fake.world().pulls.len(), 0);
    }
}
