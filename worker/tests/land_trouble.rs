//! What goes wrong with a repository while something lands: each has words that tell a person what to do.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::os::unix::fs::PermissionsExt;

use common::fleet::{Approved, Try, land_change};
use common::git_server::Server;
use common::{Place, git};
use refile_core::failure::{Failure, FailureKind};
use refile_core::{Event, Outcome, Policy, Task, TaskState, Timestamp, decide};
use refile_worker::git::{Expected, Push};

#[track_caller]
fn failed(outcome: Outcome, words: &[&str]) -> Failure {
    let Outcome::LandingFailed { failure } = outcome else { panic!("{outcome:?}") };
    assert!(matches!(failure.kind, FailureKind::Repository | FailureKind::Auth), "{failure}");
    for word in words {
        assert!(failure.detail.contains(word), "{failure} does not say {word:?}");
    }
    failure
}

async fn land(place: &Place, it: &Approved) -> Outcome {
    land_change(place, &it.task, &it.change).await
}

fn hook(place: &Place, script: &str) {
    let path = place.origin.join("hooks/pre-receive");
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// The record of a task that is about to land what was approved.
fn landing(it: &Approved) -> Task {
    let mut task = it.task.clone();
    let attempt = &mut task.phases[0].attempts[0];
    attempt.change = Some(it.change.clone());
    task.phases[0].approval = Some(it.approval.clone());
    task.phases[0].job = Some(refile_core::task::Job::Land);
    task.phases[0].state = refile_core::task::PhaseState::Landing;
    task
}

#[tokio::test]
async fn a_protected_branch_says_so_and_a_person_is_asked_in_the_end() {
    let place = Place::bare();
    let base = place.head("main");
    let it = Approved::new(&place, "t1", "echo x > new.txt").await;
    hook(&place, "echo 'main is protected: open a pull request' >&2; exit 1");
    let policy = Policy::default();
    let mut task = landing(&it);
    for number in 1..=policy.max_land_failures {
        let outcome = land(&place, &it).await;
        failed(outcome.clone(), &["main is protected: open a pull request", "let this worker push to the branch"]);
        assert_eq!(task.state, TaskState::Open, "before try {number}");
        let event = Event::Outcome { phase: "change".to_owned(), attempt: 1, outcome };
        task = decide(&task, &event, &policy, Timestamp(u64::from(number))).unwrap().task;
    }
    assert_eq!((task.state, task.phases[0].attempts.len()), (TaskState::Escalated, 1), "nobody is charged");
    let detail = &task.escalations[0].detail;
    for words in ["approved and could not be landed in 5 tries", "main is protected: open a pull request"] {
        assert!(detail.contains(words), "{detail}");
    }
    assert_eq!(place.head("main"), base);
    // The rule is gone, and a person says `retry`.
    std::fs::remove_file(place.origin.join("hooks/pre-receive")).unwrap();
    assert!(matches!(land(&place, &it).await, Outcome::Landed { .. }));
}

#[tokio::test]
async fn a_base_that_was_deleted_is_named_with_those_that_there_are() {
    let place = Place::bare();
    let it = Approved::new(&place, "t1", "echo x > new.txt").await;
    git(&place.origin, &["branch", "trunk", "main"]);
    git(&place.origin, &["update-ref", "-d", "refs/heads/main"]);
    failed(land(&place, &it).await, &["has no branch `main`", "it has trunk", "set the task's base"]);
    assert!(!place.branches().contains(&"main".to_owned()), "a landing does not make a branch again");
}

#[tokio::test]
async fn a_base_that_is_deleted_at_the_last_moment_is_not_made_again() {
    let place = Place::bare();
    let it = Approved::new(&place, "t1", "echo x > new.txt").await;
    let delete =
        "while read old new ref; do case $ref in refs/heads/main) git update-ref -d refs/heads/main;; esac; done";
    // What is seen of a quarantined push is not the repository: leave it.
    hook(&place, &format!("unset GIT_QUARANTINE_PATH; {delete}"));
    failed(land(&place, &it).await, &["has no branch `main`"]);
    assert!(!place.branches().contains(&"main".to_owned()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_that_has_expired_is_told_and_nobody_is_charged() {
    let place = Place::bare();
    let base = place.head("main");
    let mut it = Approved::new(&place, "t1", "echo x > new.txt").await;
    let (server, url) = Server::start(&place.origin).await;
    it.task.repository = url.replace("http://", "http://bot:hunter2@");
    for (status, service) in
        [(401, "git-upload-pack"), (403, "git-upload-pack"), (401, "git-receive-pack"), (403, "git-receive-pack")]
    {
        server.deny(status, service);
        let failure = failed(land(&place, &it).await, &["does not let this worker in", "has expired"]);
        assert_eq!(failure.kind, FailureKind::Auth);
        assert!(!failure.detail.contains("hunter2"), "{failure}");
        let event =
            Event::Outcome { phase: "change".to_owned(), attempt: 1, outcome: Outcome::LandingFailed { failure } };
        let after = decide(&landing(&it), &event, &Policy::default(), Timestamp(2)).unwrap().task;
        assert_eq!((after.state, after.phases[0].attempts.len()), (TaskState::Open, 1), "it is tried again");
    }
    assert_eq!(place.head("main"), base);
    server.let_in();
    let landed = land(&place, &it).await;
    assert!(matches!(landed, Outcome::Landed { .. }), "{landed:?}");
    assert_eq!(place.branches(), ["main"]);
}

#[tokio::test]
async fn the_next_attempt_does_not_bring_back_what_a_base_lost() {
    let place = Place::bare();
    let kept = place.head("main");
    place.commit(&[("secret.txt", "s\n")]);
    let it = Approved::new(&place, "t1", "echo x > new.txt").await;
    git(&place.origin, &["update-ref", "refs/heads/main", &kept]);
    let mut second = Try::script("echo y > two.txt");
    (second.attempt, second.continue_from) = (2, Some(&it.change));
    let next = second.change(&place, &it.task).await;
    assert_eq!(next.base_commit, kept);
    let tree = git(&place.origin, &["ls-tree", "-r", "--name-only", &next.branch]);
    assert_eq!(tree, "a.txt\nb.txt\nnew.txt\ntwo.txt");
}

#[tokio::test]
async fn a_password_in_the_repositorys_address_lets_git_in_and_is_in_no_argument() {
    let place = Place::bare();
    let (server, url) = Server::start(&place.origin).await;
    server.ask_for("me:p@ss/word");
    let (plain, with) = (url.clone(), url.replace("http://", "http://me:p%40ss%2Fword@"));
    let mirror = place.workspace.mirror(&with).await.unwrap();
    assert!(!format!("{mirror:?}").contains("p%40ss"), "{mirror:?}");
    let base = mirror.fetch("main").await.unwrap();
    assert_eq!(base, place.head("main"));
    let absent = Expected::Absent;
    assert_eq!(mirror.push(&base, "refile/t1/change/1-1", absent).await.unwrap(), Push::Done);
    assert_eq!(mirror.branches("refile/").await.unwrap().len(), 1);
    mirror.delete(&["refile/t1/change/1-1".to_owned()]).await.unwrap();
    assert_eq!(place.branches(), ["main"]);
    // Without it nobody gets in, and what is said of that names no login.
    let error = place.workspace.mirror(&plain).await.unwrap().fetch("main").await.unwrap_err().to_string();
    assert!(error.contains("does not let this worker in"), "{error}");
    server.ask_for("me:new");
    let error = mirror.fetch("main").await.unwrap_err().to_string();
    assert!(error.contains("renew the one in the repository's address") && !error.contains("p%40ss"), "{error}");
}
