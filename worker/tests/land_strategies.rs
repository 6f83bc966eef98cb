//! Each strategy on real repositories: what the history looks like, and what lands at all.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::fleet::{Approved, Try, approval, gate, land_as, landed, task};
use common::{Place, git};
use refile_config::Strategy;
use refile_core::Outcome;
use refile_core::event::Actor;
use refile_core::task::{Call, Review};
use refile_core::verdict::{Verdict, VerdictKind};
use refile_core::{Event, Policy, Task, Timestamp, decide};

const ALL: [Strategy; 3] = [Strategy::Squash, Strategy::Rebase, Strategy::Merge];

async fn land(strategy: Strategy, place: &Place, it: &Approved) -> Outcome {
    land_as(strategy, place, &it.task, &it.change, &it.approval, &[]).await
}

fn of_main(place: &Place, format: &str) -> String {
    git(&place.origin, &["log", "-1", &format!("--format={format}"), "main"])
}

/// The ids in the first-parent history.
fn ids(place: &Place) -> Vec<String> {
    let format = "--format=%(trailers:key=Refile-Task,valueonly,separator=%x2C)";
    let log = git(&place.origin, &["log", "--first-parent", format, "main"]);
    log.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

#[tokio::test]
async fn a_rebased_change_keeps_its_commit_and_a_merged_one_its_side() {
    for strategy in [Strategy::Rebase, Strategy::Merge] {
        let place = Place::bare();
        let it = Approved::new(&place, "t1", "echo x > new.txt").await;
        let base = place.commit(&[("other.txt", "o\n")]);
        let commit = landed(land(strategy, &place, &it).await);
        let written = git(&place.origin, &["log", "-1", "--format=%an %ae %at", &it.change.head]);
        let trailers = "\n\nRefile-Task: t1\nRefile-Attempt: 1\nReviewed-by: strict";
        if strategy == Strategy::Merge {
            assert_eq!(of_main(&place, "%H %P"), format!("{commit} {base} {}", it.change.head));
            assert_eq!(of_main(&place, "%B"), format!("Merge Do t1{trailers}"));
        } else {
            assert_eq!(of_main(&place, "%H %P"), format!("{commit} {base}"));
            assert_eq!(of_main(&place, "%an %ae %at"), written);
            assert_eq!(of_main(&place, "%B"), format!("Do t1{trailers}"));
        }
        assert_eq!((place.show("main:new.txt"), place.show("main:other.txt")), ("x".to_owned(), "o".to_owned()));
        assert_eq!(place.branches(), ["main"]);
        git(&place.origin, &["fsck", "--strict"]);
    }
}

/// Attempts are one commit today. What a rebase makes of several is held here all the same.
#[tokio::test]
async fn a_rebase_keeps_each_commit_and_tells_the_task_in_the_last() {
    let place = Place::bare();
    let mut it = Approved::new(&place, "t1", "echo one > one.txt; sed -i s/five/FIVE/ a.txt").await;
    let mirror = place.mirror().await;
    mirror.fetch(&it.change.branch).await.unwrap();
    let first = it.change.head.clone();
    let dir = place.root.path().join("clone");
    git(place.root.path(), &["clone", "-q", place.url().as_str(), "clone"]);
    git(&dir, &["checkout", "-q", &first]);
    std::fs::write(dir.join("two.txt"), "two\n").unwrap();
    git(&dir, &["add", "-A"]);
    git(&dir, &["commit", "-q", "-m", "Second\n\nRefile-Task: forged\nReviewed-by: forged"]);
    let second = git(&dir, &["rev-parse", "HEAD"]);
    git(&dir, &["push", "-q", "origin", &format!("HEAD:refs/heads/{}", it.change.branch)]);
    mirror.fetch(&it.change.branch).await.unwrap();
    it.change.head.clone_from(&second);
    it.change.patch_id = mirror.patch_id(&it.change.base_commit, &second).await.unwrap();
    it.approval = approval(&it.change);
    let base = place.commit(&[("other.txt", "o\n")]);
    landed(land(Strategy::Rebase, &place, &it).await);
    let log = git(
        &place.origin,
        &[
            "log",
            "--reverse",
            "--format=%an|%s|%(trailers:key=Refile-Task,valueonly,separator=%x2C)",
            &format!("{base}..main"),
        ],
    );
    assert_eq!(log, "Refile|Do t1|\nAnn|Second|t1");
    assert_eq!(ids(&place), ["t1"]);
    assert_eq!((place.show("main:one.txt"), place.show("main:two.txt")), ("one".to_owned(), "two".to_owned()));
    git(&place.origin, &["fsck", "--strict"]);
}

#[tokio::test]
async fn whatever_the_strategy_a_landing_is_recognised() {
    for strategy in ALL {
        let place = Place::bare();
        let it = Approved::new(&place, "t1", "echo x > new.txt").await;
        let commit = landed(land(strategy, &place, &it).await);
        place.commit_on_top();
        // A worker that crashed before it could report, or a zombie; whatever it was told to do.
        for again in ALL {
            assert_eq!(landed(land(again, &place, &it).await), commit, "{strategy:?} {again:?}");
        }
        assert_eq!(ids(&place), ["t1"]);
        // A person brings the base together with a commit of their own the wrong way round.
        let dir = place.root.path().join("clone");
        git(place.root.path(), &["clone", "-q", place.url().as_str(), "clone"]);
        git(&dir, &["checkout", "-q", "-b", "own", &it.change.base_commit]);
        git(&dir, &["commit", "-q", "--allow-empty", "-m", "own"]);
        git(&dir, &["merge", "-q", "origin/main", "-m", "together"]);
        git(&dir, &["push", "-q", "origin", "HEAD:main"]);
        assert_eq!(landed(land(strategy, &place, &it).await), commit, "{strategy:?}");
    }
}

#[tokio::test]
async fn whatever_the_strategy_the_approval_and_the_gates_bind() {
    for strategy in ALL {
        let place = Place::bare();
        let good = Approved::new(&place, "t1", "echo x > new.txt").await;
        let same = Approved::new(&place, "t2", "sed -i s/one/ONE/ a.txt; sed -i s/nine/NINE/ a.txt").await;
        let clash = Approved::new(&place, "t3", "echo mine > b.txt").await;
        let test = [gate("test", "test ! -f forbidden.txt")];
        let base = place.commit(&[
            ("a.txt", "ONE\ntwo\nthree\nfour\nfive\nsix\nseven\neight\nnine\n"),
            ("b.txt", "theirs\n"),
            ("forbidden.txt", "f\n"),
        ]);
        let outcome = land_as(strategy, &place, &good.task, &good.change, &good.approval, &test).await;
        assert!(matches!(&outcome, Outcome::LandingRejected { gate } if gate.name == "test"), "{outcome:?}");
        let outcome = land(strategy, &place, &clash).await;
        assert!(matches!(&outcome, Outcome::LandingRejected { gate } if gate.name == "merge_conflict"), "{outcome:?}");
        // What is left of it is not what was approved.
        let outcome = land(strategy, &place, &same).await;
        let Outcome::Rebased { change } = outcome else { panic!("{outcome:?}") };
        assert_eq!(place.head("main"), base, "{strategy:?}");
        let again = Approved { approval: approval(&change), change, task: same.task };
        landed(land(strategy, &place, &again).await);
        // Another head than the approved one.
        let mut other = good.approval.clone();
        other.head.clone_from(&again.change.head);
        let outcome = land_as(strategy, &place, &good.task, &good.change, &other, &[]).await;
        assert!(matches!(&outcome, Outcome::LandingFailed { .. }), "{outcome:?}");
        assert_eq!(ids(&place), ["t2"], "{strategy:?}");
    }
}

#[tokio::test]
async fn what_a_base_lost_does_not_come_back_with_a_change() {
    for strategy in ALL {
        let place = Place::bare();
        let kept = place.head("main");
        let secret = place.commit(&[("secret.txt", "s\n")]);
        let it = Approved::new(&place, "t1", "echo x > new.txt").await;
        assert_eq!(it.change.base_commit, secret);
        git(&place.origin, &["update-ref", "refs/heads/main", &kept]);
        landed(land(strategy, &place, &it).await);
        let tree = git(&place.origin, &["ls-tree", "-r", "--name-only", "main"]);
        assert_eq!(tree, "a.txt\nb.txt\nnew.txt", "{strategy:?}");
        let history = git(&place.origin, &["rev-list", "main"]);
        assert!(!history.contains(&secret), "{strategy:?}: what was taken back is in the history again");
        // A base that has nothing in common with what it was.
        let dir = place.root.path().join("new");
        git(place.root.path(), &["init", "-q", "-b", "main", "new"]);
        std::fs::write(dir.join("b.txt"), "b\n").unwrap();
        git(&dir, &["add", "-A"]);
        git(&dir, &["commit", "-q", "-m", "a new beginning"]);
        git(&dir, &["push", "-q", "--force", place.url().as_str(), "main"]);
        let more = Approved { task: task(&place, "t2"), ..it };
        git(&place.origin, &["update-ref", &format!("refs/heads/{}", more.change.branch), &more.change.head]);
        landed(land(strategy, &place, &more).await);
        assert_eq!(git(&place.origin, &["ls-tree", "-r", "--name-only", "main"]), "b.txt\nnew.txt");
        assert_eq!(git(&place.origin, &["rev-list", "--count", "--first-parent", "main"]), "2");
    }
}

/// A task whose attempt was judged.
async fn reviewed(place: &Place, review: Review, by: &str) -> (Task, refile_core::task::Change) {
    let new = task(place, "t1");
    let policy = Policy { reviewers: vec![by.into()], ..Policy::default() };
    let coded = Try::script("echo x > new.txt").run(place, &new).await;
    let Outcome::Coded { change, .. } = coded.clone() else { panic!("{coded:?}") };
    let event = |outcome| Event::Outcome { phase: "change".to_owned(), attempt: 1, outcome };
    let task = decide(&new, &event(coded), &policy, Timestamp(2)).unwrap().task;
    let review = Review { head: change.head.clone(), ..review };
    (decide(&task, &event(Outcome::Reviewed(review)), &policy, Timestamp(3)).unwrap().task, change)
}

fn call(model: &str) -> Call {
    Call { model: model.to_owned(), ..Call::default() }
}

fn approves(reviewer: &str, models: &[&str]) -> Review {
    let verdict = Verdict {
        verdict: VerdictKind::Approved,
        required_change: String::new(),
        critique: String::new(),
        conf: 0.9,
        phase: None,
    };
    Review { calls: models.iter().map(|m| call(m)).collect(), ..Review::new(reviewer, "", verdict) }
}

#[tokio::test]
async fn the_model_that_approved_is_told_and_forges_nothing() {
    let panel = Review {
        members: vec![approves("a", &["m1"]), approves("b", &["m2"]), approves("c", &["m1"])],
        ..approves("judge", &[])
    };
    for (review, told) in [
        (approves("judge", &["small", "large"]), "judge (large)"),
        (approves("judge", &["m\nRefile-Task: forged\u{2028}x"]), "judge (m Refile-Task: forged x)"),
        (approves("judge", &[]), "judge"),
        (panel, "judge (m1, m2)"),
    ] {
        let place = Place::bare();
        let (task, change) = reviewed(&place, review, "judge").await;
        let approval = task.phases[0].approval.clone().unwrap();
        landed(land_as(Strategy::Squash, &place, &task, &change, &approval, &[]).await);
        assert_eq!(of_main(&place, "%(trailers:key=Reviewed-by,valueonly)"), told);
        assert_eq!(ids(&place), ["t1"]);
        // A person stands behind it alone, whoever was asked before.
        let place = Place::bare();
        let it = Approved::new(&place, "t1", "echo x > new.txt").await;
        let by =
            refile_core::task::Approval { by: Actor::Person("ann\r\nRefile-Task: forged".to_owned()), ..it.approval };
        landed(land_as(Strategy::Merge, &place, &it.task, &it.change, &by, &[]).await);
        assert_eq!(of_main(&place, "%(trailers:key=Reviewed-by,valueonly)"), "ann Refile-Task: forged");
        assert_eq!(ids(&place), ["t1"]);
    }
}
