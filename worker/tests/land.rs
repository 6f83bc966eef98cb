//! Landings on real repositories.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::fleet::{Approved, Try, approval, gate, land_change, land_with, landed, task};
use common::{Place, git};
use refile_core::failure::FailureKind;
use refile_core::task::Approval;
use refile_core::{Event, Outcome, Policy, Timestamp, decide};

fn trailers(place: &Place, id: &str) -> usize {
    let log = git(&place.origin, &["log", "--format=%(trailers:key=Refile-Task,valueonly)", "main"]);
    log.lines().filter(|l| *l == id).count()
}

#[tokio::test]
async fn an_approved_change_becomes_one_commit() {
    let place = Place::bare();
    let mut task = task(&place, "t1");
    task.title = "A title\n\nRefile-Task: forged".to_owned();
    let base = place.head("main");
    let change = Try::script("echo x > new.txt").change(&place, &task).await;
    let commit = landed(land_change(&place, &task, &change).await);
    assert_eq!(place.head("main"), commit);
    assert_eq!(
        git(&place.origin, &["log", "-1", "--format=%P|%B", "main"]),
        format!("{base}|A title Refile-Task: forged\n\nRefile-Task: t1\nRefile-Attempt: 1\nReviewed-by: strict")
    );
    assert_eq!(place.show("main:new.txt"), "x");
    assert_eq!(place.branches(), ["main"]);
    // Once more: a worker that crashed before it could report, or a zombie.
    assert_eq!(landed(land_change(&place, &task, &change).await), commit);
    place.commit_on_top();
    assert_eq!(landed(land_change(&place, &task, &change).await), commit);
    assert_eq!(trailers(&place, "t1"), 1);
}

#[tokio::test]
async fn a_moved_base_with_the_same_patch_lands_after_the_gates_ran_on_the_merge() {
    let place = Place::bare();
    let task = task(&place, "t1");
    let change = Try::script("echo x > new.txt").change(&place, &task).await;
    place.commit(&[("other.txt", "o\n")]);
    let gates = [gate("test", "test -f new.txt && test ! -f forbidden.txt")];
    place.commit(&[("forbidden.txt", "f\n")]);
    let outcome = land_with(&place, &task, &change, &approval(&change), &gates).await;
    let Outcome::LandingRejected { gate: failed } = outcome else { panic!("{outcome:?}") };
    assert_eq!((failed.name.as_str(), failed.passed), ("test", false));
    assert_eq!(trailers(&place, "t1"), 0);

    let base = place.commit(&[("forbidden.txt", "")]);
    landed(land_with(&place, &task, &change, &approval(&change), &gates).await);
    assert_eq!(git(&place.origin, &["rev-parse", "main^"]), base);
    assert_eq!((place.show("main:other.txt"), place.show("main:new.txt")), ("o".to_owned(), "x".to_owned()));
}

/// The base has not moved: the gates of the attempt ran on the same commit, in a tree with more in it.
#[tokio::test]
async fn what_only_passes_with_what_git_ignores_does_not_land() {
    let place = Place::bare();
    let base = place.commit(&[(".gitignore", "deps/\n")]);
    let task = task(&place, "t1");
    let gates = [gate("lint", "true"), gate("test", "cat deps/lib.txt")];
    let mut attempt = Try::script("mkdir deps; echo lib > deps/lib.txt; echo x > new.txt");
    attempt.gates = gates.to_vec();
    let change = attempt.change(&place, &task).await;
    assert_eq!((change.base_commit.as_str(), change.files), (base.as_str(), 1));
    let outcome = land_with(&place, &task, &change, &approval(&change), &gates).await;
    let Outcome::LandingRejected { gate: failed } = outcome else { panic!("{outcome:?}") };
    assert_eq!((failed.name.as_str(), failed.passed), ("test", false));
    for words in
        ["deps/lib.txt", "the landing on `main`", "the gate `test` ran on a fresh checkout, without the ignored"]
    {
        assert!(failed.output.contains(words), "{}", failed.output);
    }
    assert_eq!(place.head("main"), base);

    // A gate may make what it needs; and where there is none, no tree is made.
    let made = [gate("install", "mkdir deps; echo lib > deps/lib.txt"), gate("test", "cat deps/lib.txt")];
    landed(land_with(&place, &task, &change, &approval(&change), &made).await);
    let next = Approved::new(&place, "t2", "echo x > two.txt").await;
    let trees = place.workspace.dir().join("trees");
    std::fs::remove_dir_all(&trees).unwrap();
    std::fs::write(&trees, "no folder").unwrap();
    landed(land_change(&place, &next.task, &next.change).await);
}

/// What the diff policy turns down stays on the worker's machine; a person may approve it all the same.
#[tokio::test]
async fn a_person_may_land_what_was_never_pushed() {
    let place = Place::bare();
    let base = place.head("main");
    let task = task(&place, "t1");
    let mut attempt = Try::script("echo x > new.lock");
    attempt.diff_policy.forbidden = vec!["*.lock".to_owned()];
    let Outcome::Coded { change, .. } = attempt.run(&place, &task).await else { panic!("no change") };
    assert_eq!(place.branches(), ["main"]);
    let outcome = land_change(&place, &task, &change).await;
    assert!(matches!(&outcome, Outcome::LandingFailed { failure } if failure.detail.contains("has no branch")));
    assert_eq!(place.head("main"), base);
    let approval = Approval { overrides_gates: true, ..approval(&change) };
    landed(land_with(&place, &task, &change, &approval, &[]).await);
    assert_eq!(place.show("main:new.lock"), "x");
}

#[tokio::test]
async fn a_person_may_override_the_gates() {
    let place = Place::bare();
    let task = task(&place, "t1");
    let change = Try::script("echo x > new.txt").change(&place, &task).await;
    place.commit(&[("other.txt", "o\n")]);
    let approval = refile_core::task::Approval { overrides_gates: true, ..approval(&change) };
    landed(land_with(&place, &task, &change, &approval, &[gate("test", "false")]).await);
}

#[tokio::test]
async fn a_real_conflict_is_rejected_with_the_files() {
    let place = Place::bare();
    let task = task(&place, "t1");
    let change = Try::script("echo mine > b.txt").change(&place, &task).await;
    let base = place.commit(&[("b.txt", "theirs\n")]);
    let outcome = land_change(&place, &task, &change).await;
    let Outcome::LandingRejected { gate } = outcome else { panic!("{outcome:?}") };
    assert_eq!(gate.name, "merge_conflict");
    assert!(gate.output.contains("- b.txt"), "{}", gate.output);
    assert_eq!(place.head("main"), base);
}

#[tokio::test]
async fn a_merge_that_is_another_diff_is_reviewed_again() {
    let place = Place::bare();
    let task = task(&place, "t1");
    // Both make the same change to one line; what is left of the attempt's diff is less than was approved.
    let change = Try::script("sed -i s/one/ONE/ a.txt; sed -i s/nine/NINE/ a.txt").change(&place, &task).await;
    let base = place.commit(&[("a.txt", "ONE\ntwo\nthree\nfour\nfive\nsix\nseven\neight\nnine\n")]);
    let outcome = land_change(&place, &task, &change).await;
    let Outcome::Rebased { change: rebased } = outcome else { panic!("{outcome:?}") };
    assert_eq!(rebased.base_commit, base);
    assert_eq!(rebased.branch, "refile/t1/change/1-90");
    assert_eq!(place.head(&rebased.branch), rebased.head);
    assert_ne!(rebased.patch_id, change.patch_id);
    assert_eq!(place.head("main"), base);
    landed(land_change(&place, &task, &rebased).await);
    assert!(place.show("main:a.txt").contains("NINE"));
}

#[tokio::test]
async fn a_change_that_the_base_already_holds_is_an_empty_diff() {
    let place = Place::bare();
    let task = task(&place, "t1");
    let change = Try::script("echo new > b.txt").change(&place, &task).await;
    place.commit(&[("b.txt", "new\n")]);
    let outcome = land_change(&place, &task, &change).await;
    assert!(matches!(&outcome, Outcome::LandingRejected { gate } if gate.name == "empty_diff"), "{outcome:?}");
}

#[tokio::test]
async fn what_was_not_approved_does_not_land() {
    let place = Place::bare();
    let task = task(&place, "t1");
    let base = place.head("main");
    let change = Try::script("echo x > new.txt").change(&place, &task).await;
    let mut other = approval(&change);
    other.patch_id = "0".repeat(40);
    let outcome = land_with(&place, &task, &change, &other, &[]).await;
    assert!(matches!(&outcome, Outcome::LandingFailed { failure } if failure.kind == FailureKind::Repository));
    let other = Approval { head: base.clone(), ..approval(&change) };
    let outcome = land_with(&place, &task, &change, &other, &[]).await;
    let Outcome::LandingFailed { failure } = outcome else { panic!("{outcome:?}") };
    assert!(failure.detail.contains("what was approved is"), "{failure}");
    assert_eq!(place.head("main"), base);
}

/// Somebody pushes to the branch of an approved attempt: what is there now is reviewed again, if it fits and passes.
#[tokio::test]
async fn what_was_pushed_onto_an_approved_attempt_is_reviewed_again() {
    let place = Place::bare();
    let task = task(&place, "t1");
    let base = place.head("main");
    let change = Try::script("echo x > new.txt").change(&place, &task).await;
    let by_hand = tempfile::tempdir().unwrap();
    let origin = place.origin.to_str().unwrap();
    git(by_hand.path(), &["clone", "--quiet", "--branch", &change.branch, origin, "."]);
    std::fs::write(by_hand.path().join("new.txt"), "x, by hand\n").unwrap();
    git(by_hand.path(), &["commit", "--quiet", "--all", "--message=By hand"]);
    git(by_hand.path(), &["push", "--quiet", "origin", &change.branch]);
    let gates = [gate("look", "! grep bad new.txt")];
    let outcome = land_with(&place, &task, &change, &approval(&change), &gates).await;
    let Outcome::Rebased { change: now } = outcome else { panic!("{outcome:?}") };
    assert_eq!(place.head("main"), base, "nothing lands before it is reviewed");
    assert_eq!(place.show(&format!("{}:new.txt", now.head)), "x, by hand");
    assert!(now.branch != change.branch && now.patch_id != change.patch_id, "{now:?}");
    assert_eq!(now.base_commit, base);

    std::fs::write(by_hand.path().join("new.txt"), "bad\n").unwrap();
    git(by_hand.path(), &["commit", "--quiet", "--all", "--message=By hand"]);
    git(by_hand.path(), &["push", "--quiet", "origin", &change.branch]);
    let outcome = land_with(&place, &task, &change, &approval(&change), &gates).await;
    assert!(matches!(&outcome, Outcome::LandingRejected { gate } if gate.name == "look"), "{outcome:?}");
}

#[tokio::test]
async fn landings_at_the_same_time_all_land_exactly_once() {
    let place = Place::bare();
    let mut work = Vec::new();
    for id in ["t1", "t2", "t3"] {
        let task = task(&place, id);
        let change = Try::script(&format!("echo {id} > {id}.txt")).change(&place, &task).await;
        // Each twice: the second is a zombie.
        work.extend([(task.clone(), change.clone()), (task, change)]);
    }
    let landings = work.iter().map(|(task, change)| land_change(&place, task, change));
    for outcome in futures::future::join_all(landings).await {
        // A zombie may find its branch tidied away by the one that landed; it must never land a second time.
        assert!(matches!(outcome, Outcome::Landed { .. } | Outcome::LandingFailed { .. }), "{outcome:?}");
    }
    for id in ["t1", "t2", "t3"] {
        assert_eq!(trailers(&place, id), 1, "{id}");
        assert_eq!(place.show(&format!("main:{id}.txt")), id);
    }
}

#[tokio::test]
async fn a_checked_out_base_is_brought_along_where_it_is_clean() {
    let place = Place::new();
    let task = task(&place, "t1");
    let change = Try::script("echo x > new.txt; rm b.txt").change(&place, &task).await;
    std::fs::write(place.origin.join("a.txt"), "work in progress\n").unwrap();
    let outcome = land_change(&place, &task, &change).await;
    let Outcome::LandingFailed { failure } = outcome else { panic!("{outcome:?}") };
    assert!(failure.detail.contains("commit or stash them there"), "{failure}");
    assert_eq!(std::fs::read_to_string(place.origin.join("a.txt")).unwrap(), "work in progress\n");
    assert_eq!(trailers(&place, "t1"), 0);

    git(&place.origin, &["checkout", "-q", "a.txt"]);
    landed(land_change(&place, &task, &change).await);
    assert_eq!(std::fs::read_to_string(place.origin.join("new.txt")).unwrap(), "x\n");
    assert!(!place.origin.join("b.txt").exists());
    assert_eq!(git(&place.origin, &["status", "--porcelain"]), "");
}

/// A landing of attempt 1 that comes through only after attempt 2 has started from it.
#[tokio::test]
async fn a_zombies_landing_below_the_next_attempt_is_found() {
    let place = Place::bare();
    place.commit(&[("before.txt", "b\n")]);
    let new = task(&place, "t1");
    let first = Try::script("echo one > new.txt").run(&place, &new).await;
    let Outcome::Coded { change, .. } = first.clone() else { panic!("{first:?}") };
    let event = Event::Outcome { phase: "change".to_owned(), attempt: 1, outcome: first };
    let known = decide(&new, &event, &Policy::default(), Timestamp(2)).unwrap().task;
    let zombies = landed(land_change(&place, &known, &change).await);
    let mut second = Try::script("echo two > two.txt");
    second.attempt = 2;
    let next = second.change(&place, &known).await;
    assert_eq!(next.base_commit, zombies);
    assert_eq!(landed(land_change(&place, &known, &next).await), zombies);
    assert_eq!(trailers(&place, "t1"), 1);
}

#[tokio::test]
async fn landings_at_once_leave_a_checked_out_branch_clean() {
    let place = Place::new();
    let mut changes = Vec::new();
    for id in ["t1", "t2", "t3", "t4", "t5", "t6"] {
        let task = task(&place, id);
        let change = Try::script(&format!("echo x > {id}.txt")).change(&place, &task).await;
        changes.push((task, change));
    }
    let landings = changes.iter().map(|(task, change)| land_change(&place, task, change));
    let outcomes = futures::future::join_all(landings).await;
    for (outcome, (task, _)) in outcomes.into_iter().zip(&changes) {
        landed(outcome);
        assert_eq!(trailers(&place, task.id.as_str()), 1);
    }
    assert_eq!(git(&place.origin, &["status", "--porcelain", "--untracked-files=no"]), "");
}

#[tokio::test]
async fn a_lock_that_a_crash_left_is_named_and_is_no_base_that_moves() {
    let place = Place::bare();
    let task = task(&place, "t1");
    let change = Try::script("echo x > new.txt").change(&place, &task).await;
    let lock = place.origin.join("refs/heads/main.lock");
    std::fs::write(&lock, "").unwrap();
    match land_change(&place, &task, &change).await {
        Outcome::LandingFailed { failure } => {
            assert!(failure.detail.contains("main.lock") && failure.detail.contains("remove the file"), "{failure}");
        }
        other => panic!("{other:?}"),
    }
    std::fs::remove_file(&lock).unwrap();
    landed(land_change(&place, &task, &change).await);
}
