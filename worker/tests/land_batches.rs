//! Several approved changes landed together, on real repositories.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::os::unix::fs::PermissionsExt;
use std::sync::Mutex;

use async_trait::async_trait;
use common::fleet::{Approved, gate, land_all};
use common::{Place, git};
use refile_config::{Gate, Strategy};
use refile_core::Outcome;
use refile_worker::land::Leases;

/// Which jobs are lost, and how often it was asked.
#[derive(Default)]
struct Known {
    lost: Vec<usize>,
    asked: Mutex<Vec<Vec<usize>>>,
}

#[async_trait]
impl Leases for Known {
    async fn held(&self, jobs: &[usize]) -> Vec<bool> {
        self.asked.lock().unwrap().push(jobs.to_vec());
        jobs.iter().map(|job| !self.lost.contains(job)).collect()
    }
}

/// What became of each, in short.
fn words(outcomes: &[Outcome]) -> Vec<&str> {
    let word = |outcome| match outcome {
        &Outcome::Landed { .. } => "landed",
        Outcome::LandingRejected { gate } => gate.name.as_str(),
        Outcome::LandingFailed { .. } => "failed",
        Outcome::Rebased { .. } => "rebased",
        other => panic!("{other:?}"),
    };
    outcomes.iter().map(word).collect()
}

fn hook(place: &Place, name: &str, script: &str) {
    let path = place.origin.join("hooks").join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// A gate that counts its runs, and fails where the script does.
fn counting(place: &Place, script: &str) -> [Gate; 1] {
    [gate("test", &format!("echo x >> {}; {script}", place.root.path().join("runs").display()))]
}

fn runs(place: &Place) -> usize {
    std::fs::read_to_string(place.root.path().join("runs")).unwrap_or_default().lines().count()
}

/// The ids on the branch, oldest first.
fn ids(place: &Place) -> String {
    let format = "--format=%(trailers:key=Refile-Task,valueonly,separator=%x2C)";
    let log = git(&place.origin, &["log", "--first-parent", "--reverse", format, "main"]);
    log.split_whitespace().collect::<Vec<_>>().join(" ")
}

async fn approved(place: &Place, scripts: &[(&str, &str)]) -> Vec<Approved> {
    let mut all = Vec::new();
    for (id, script) in scripts {
        all.push(Approved::new(place, id, script).await);
    }
    all
}

#[tokio::test]
async fn a_batch_is_tried_once_and_pushed_once() {
    for strategy in [Strategy::Squash, Strategy::Rebase, Strategy::Merge] {
        let place = Place::bare();
        let all =
            approved(&place, &[("t1", "echo 1 > 1.txt"), ("t2", "echo 2 > 2.txt"), ("t3", "echo 3 > 3.txt")]).await;
        hook(
            &place,
            "post-receive",
            "while read old new ref; do case $ref in refs/heads/main) echo x >> pushes;; esac; done",
        );
        let gates = counting(&place, "test -f 1.txt && test -f 2.txt && test -f 3.txt");
        let outcomes = land_all(strategy, &place, &all, &gates, &Known::default()).await;
        assert_eq!(words(&outcomes), ["landed"; 3]);
        assert_eq!((runs(&place), ids(&place).as_str()), (1, "t1 t2 t3"));
        assert_eq!(std::fs::read_to_string(place.origin.join("pushes")).unwrap(), "x\n");
        assert_eq!(place.branches(), ["main"]);
        let told: Vec<_> = outcomes
            .iter()
            .map(|o| match o {
                Outcome::Landed { commit } => commit.as_str(),
                _ => "",
            })
            .collect();
        let log = git(&place.origin, &["log", "--first-parent", "--reverse", "-3", "--format=%H", "main"]);
        assert_eq!(told.join("\n"), log);
        // Each is a commit of its own with its own change alone.
        assert_eq!(git(&place.origin, &["diff", "--name-only", "main~1", "main"]), "3.txt");
    }
}

#[tokio::test]
async fn a_culprit_is_found_and_the_others_land() {
    // Each passes by itself; two of them do not go together.
    for (first, second, order, left) in
        [(0, 1, "t1 t3 t4 t5 t6", "t2"), (2, 4, "t1 t2 t3 t4 t6", "t5"), (0, 5, "t1 t2 t3 t4 t5", "t6")]
    {
        let place = Place::bare();
        let mut all = Vec::new();
        for n in 0..6 {
            let file = if n == first {
                "left.txt".to_owned()
            } else if n == second {
                "right.txt".to_owned()
            } else {
                format!("{n}.txt")
            };
            all.push(Approved::new(&place, &format!("t{}", n + 1), &format!("echo x > {file}")).await);
        }
        place.commit(&[("moved.txt", "m\n")]);
        let gates = counting(&place, "test ! -f left.txt || test ! -f right.txt");
        let outcomes = land_all(Strategy::Squash, &place, &all, &gates, &Known::default()).await;
        let expected: Vec<_> = (0..6).map(|n| if n == second { "test" } else { "landed" }).collect();
        assert_eq!(words(&outcomes), expected);
        assert_eq!(ids(&place), order);
        assert!(!ids(&place).contains(left));
        // One run for the batch, at most three to find the culprit, one for those after it.
        assert!(runs(&place) <= 5, "{}", runs(&place));
    }
}

#[tokio::test]
async fn a_batch_of_culprits_is_rejected_one_by_one() {
    let place = Place::bare();
    let all = approved(&place, &[("t1", "echo 1 > bad1"), ("t2", "echo 2 > fine"), ("t3", "echo 3 > bad3")]).await;
    place.commit(&[("moved.txt", "m\n")]);
    let gates = counting(&place, "! ls bad*");
    let outcomes = land_all(Strategy::Rebase, &place, &all, &gates, &Known::default()).await;
    assert_eq!(words(&outcomes), ["test", "landed", "test"]);
    assert_eq!(ids(&place), "t2");
    let Outcome::LandingRejected { gate } = &outcomes[2] else { panic!() };
    assert!(gate.output.contains("bad3") && !gate.output.contains("bad1"), "{}", gate.output);
}

#[tokio::test]
async fn a_change_that_conflicts_with_another_of_the_batch_waits_for_its_turn() {
    let place = Place::bare();
    let edits = [("t1", "echo mine > b.txt; touch bad"), ("t2", "echo his > b.txt"), ("t3", "echo hers > b.txt")];
    let all = approved(&place, &edits).await;
    place.commit(&[("moved.txt", "m\n")]);
    // The first is turned down; so the second, which had to wait for it, lands, and the third conflicts with the base.
    let gates = counting(&place, "test ! -f bad");
    let outcomes = land_all(Strategy::Squash, &place, &all, &gates, &Known::default()).await;
    assert_eq!(words(&outcomes), ["test", "landed", "merge_conflict"]);
    assert_eq!((ids(&place).as_str(), place.show("main:b.txt").as_str()), ("t2", "his"));
}

#[tokio::test]
async fn a_lost_lease_takes_its_change_out_before_the_push() {
    let place = Place::bare();
    let all = approved(&place, &[("t1", "echo 1 > 1.txt"), ("t2", "echo 2 > 2.txt"), ("t3", "echo 3 > 3.txt")]).await;
    let leases = Known { lost: vec![1], ..Known::default() };
    let gates = counting(&place, "true");
    let outcomes = land_all(Strategy::Squash, &place, &all, &gates, &leases).await;
    assert_eq!(words(&outcomes), ["landed", "failed", "landed"]);
    assert_eq!(ids(&place), "t1 t3");
    // The two without it are another tree than the three: it is tried again.
    assert_eq!((runs(&place), leases.asked.lock().unwrap().clone()), (2, vec![vec![0, 1, 2], vec![0, 2]]));
    // And one that is alone.
    let place = Place::bare();
    let all = approved(&place, &[("t1", "echo 1 > 1.txt")]).await;
    let leases = Known { lost: vec![0], ..Known::default() };
    assert_eq!(words(&land_all(Strategy::Merge, &place, &all, &[], &leases).await), ["failed"]);
    assert_eq!(ids(&place), "");
}

#[tokio::test]
async fn what_a_server_refuses_of_one_is_not_held_against_the_others() {
    let place = Place::bare();
    let all = approved(&place, &[("t1", "echo 1 > 1.txt"), ("t2", "echo 2 > odd"), ("t3", "echo 3 > 3.txt")]).await;
    let script = "while read old new ref; do case $ref in refs/heads/main)\n\
                  if git ls-tree --name-only $new | grep -q odd; then echo 'odd files are not allowed here'; exit 1; fi;; esac; done";
    hook(&place, "pre-receive", script);
    let outcomes = land_all(Strategy::Squash, &place, &all, &[], &Known::default()).await;
    assert_eq!(words(&outcomes), ["landed", "failed", "landed"]);
    let Outcome::LandingFailed { failure } = &outcomes[1] else { panic!() };
    assert!(failure.detail.contains("odd files are not allowed here"), "{failure}");
    assert_eq!(ids(&place), "t1 t3");
}

#[tokio::test]
async fn what_a_person_lets_pass_is_tried_alone() {
    let place = Place::bare();
    let mut all = approved(&place, &[("t1", "echo 1 > 1.txt"), ("t2", "echo 2 > bad"), ("t3", "echo 3 > 3.txt")]).await;
    all[1].approval.overrides_gates = true;
    let gates = counting(&place, "test ! -f bad");
    let outcomes = land_all(Strategy::Squash, &place, &all, &gates, &Known::default()).await;
    // The two that need the gates land first; none of them is judged by what was let pass.
    assert_eq!(words(&outcomes), ["landed"; 3]);
    assert_eq!(ids(&place), "t1 t3 t2");
}

#[tokio::test]
async fn each_job_of_a_batch_has_an_outcome_of_its_own() {
    let place = Place::bare();
    let mut all = approved(
        &place,
        &[("t1", "echo 1 > 1.txt"), ("t2", "echo 2 > 2.txt"), ("t3", "echo 3 > 3.txt"), ("t4", "echo x > b.txt")],
    )
    .await;
    // One is there already, one's branch is gone, one conflicts with the base; a batch that meets itself lands once.
    let first = [all.remove(0)];
    assert_eq!(words(&land_all(Strategy::Squash, &place, &first, &[], &Known::default()).await), ["landed"]);
    all.splice(0..0, first);
    git(&place.origin, &["update-ref", "-d", &format!("refs/heads/{}", all[1].change.branch)]);
    git(&place.root.path().join("origin"), &["pull", "-q", place.url().as_str(), "main"]);
    place.commit(&[("b.txt", "theirs\n")]);
    let outcomes = land_all(Strategy::Squash, &place, &all, &[], &Known::default()).await;
    assert_eq!(words(&outcomes), ["landed", "failed", "landed", "merge_conflict"]);
    assert_eq!(ids(&place), "t1 t3");
}
