//! Where workers keep mirrors and trees, and repositories that are not as they were.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use common::fleet::{Try, land_change, task};
use common::{Place, git};
use refile_core::failure::{Failure, FailureKind};
use refile_core::{Outcome, Task, TaskId};
use refile_worker::git::{Mirror, Tree};
use refile_worker::workspace::{Claim, Workspace};

async fn tree(place: &Place, mirror: &Mirror, fence: u64, base: &str) -> Tree {
    let task = TaskId::parse("t1").unwrap();
    let claim = Claim { task: &task, phase: "change", attempt: 1, fence };
    place.workspace.tree(mirror, claim, "main", base, base).await.unwrap()
}

async fn failure(place: &Place, of: &Task) -> Failure {
    match Try::script("echo x > new.txt").run(place, of).await {
        Outcome::AgentFailed { failure, .. } => failure,
        other => panic!("{other:?}"),
    }
}

/// Waits until what is removed in the background is gone.
fn emptied(dir: &Path) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while std::fs::read_dir(dir).is_ok_and(|entries| entries.count() > 0) {
        assert!(Instant::now() < deadline, "{} is not emptied", dir.display());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[tokio::test]
async fn what_was_checked_out_ahead_becomes_the_tree_of_an_attempt_as_the_base_is_then() {
    let place = Place::new();
    std::fs::create_dir(place.origin.join("old")).unwrap();
    place.commit(&[("old/x.txt", "x\n"), ("run.sh", "#!/bin/sh\n")]);
    let mirror = place.mirror().await;
    place.workspace.prepare(&mirror, &mirror.fetch("main").await.unwrap()).await.unwrap();
    let spares = place.workspace.dir().join("spares");
    assert_eq!(std::fs::read_dir(&spares).unwrap().count(), 2, "a tree and what lies beside it");
    // Once more changes nothing.
    place.workspace.prepare(&mirror, &place.head("main")).await.unwrap();
    assert_eq!(std::fs::read_dir(&spares).unwrap().count(), 2);
    std::fs::create_dir(place.origin.join("new")).unwrap();
    let base = place.commit(&[("old/x.txt", ""), ("new/y.txt", "y\n"), ("b.txt", "changed\n")]);
    assert_eq!(mirror.fetch("main").await.unwrap(), base);

    let taken = tree(&place, &mirror, 1, &base).await;
    assert_eq!(std::fs::read_dir(&spares).unwrap().count(), 0);
    assert_eq!(git(taken.dir(), &["status", "--porcelain"]), "");
    assert_eq!(git(taken.dir(), &["rev-parse", "HEAD"]), base);
    assert!(!taken.dir().join("old").exists());
    assert_eq!(std::fs::read_to_string(taken.dir().join("b.txt")).unwrap(), "changed\n");
    assert_eq!(taken.write().await.unwrap(), mirror.tree_of(&base).await.unwrap());
    std::fs::write(taken.dir().join("mine.txt"), "mine\n").unwrap();

    // The next one is not what an attempt left.
    let next = tree(&place, &mirror, 2, &base).await;
    assert!(!next.dir().join("mine.txt").exists());
    drop((taken, next));
    assert_eq!(std::fs::read_dir(place.workspace.dir().join("trees")).unwrap().count(), 0);
    emptied(&place.workspace.dir().join("trash"));
}

#[tokio::test]
async fn a_tree_is_checked_out_ahead_after_each_one_and_what_a_killed_worker_left_is_removed() {
    let place = Place::guarded("").await;
    let mirror = place.mirror().await;
    let base = mirror.fetch("main").await.unwrap();
    drop(tree(&place, &mirror, 1, &base).await);
    let spares = place.workspace.dir().join("spares");
    let deadline = Instant::now() + Duration::from_secs(20);
    while std::fs::read_dir(&spares).map_or(0, Iterator::count) < 2 {
        assert!(Instant::now() < deadline, "no tree is checked out ahead");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // Of another worker, which lives.
    Workspace::open(place.workspace.dir()).unwrap();
    assert_eq!(std::fs::read_dir(&spares).unwrap().count(), 2);
    // Of one that was killed: nobody holds the lock, and it is not of this minute.
    for dir in ["left", "left.side"] {
        std::fs::create_dir_all(spares.join(dir)).unwrap();
        let old = SystemTime::now() - Duration::from_hours(1);
        std::fs::File::open(spares.join(dir)).unwrap().set_modified(old).unwrap();
    }
    std::fs::create_dir_all(place.workspace.dir().join("trash/x/y")).unwrap();
    Workspace::open(place.workspace.dir()).unwrap();
    assert_eq!(std::fs::read_dir(&spares).unwrap().count(), 2);
    emptied(&place.workspace.dir().join("trash"));
}

/// The trees that are checked out ahead, by what a move does not change.
fn spares(place: &Place) -> Vec<u64> {
    let entries = std::fs::read_dir(place.workspace.dir().join("spares")).into_iter().flatten();
    let trees = entries.map(|entry| entry.unwrap().path()).filter(|path| path.extension().is_none());
    trees.filter_map(|tree| tree.metadata().ok()).map(|tree| tree.ino()).collect()
}

async fn until_there_are(place: &Place, wanted: usize) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while spares(place).len() != wanted {
        assert!(Instant::now() < deadline, "{:?} are checked out ahead instead of {wanted}", spares(place));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn attempts_that_begin_together_each_have_a_tree_that_was_checked_out_ahead_also_after_a_restart() {
    let mut place = Place::guarded("").await;
    place.workspace = place.workspace.clone().for_jobs(3);
    let mirror = place.mirror().await;
    let base = mirror.fetch("main").await.unwrap();
    drop(tree(&place, &mirror, 1, &base).await);
    until_there_are(&place, 3).await;
    // The last one is whole before the next begins.
    place.workspace.prepare(&mirror, &base).await.unwrap();
    let ahead = spares(&place);
    let (first, second, third) =
        tokio::join!(tree(&place, &mirror, 2, &base), tree(&place, &mirror, 3, &base), tree(&place, &mirror, 4, &base));
    for tree in [&first, &second, &third] {
        assert!(ahead.contains(&tree.dir().metadata().unwrap().ino()), "{} was not", tree.dir().display());
        assert_eq!(git(tree.dir(), &["status", "--porcelain", "--branch"]), "## main");
    }
    until_there_are(&place, 3).await;
    drop((first, second, third));

    // Where the folder is full they go before anything else does, and no more are made.
    place.workspace.prepare(&mirror, &base).await.unwrap();
    place.workspace.clone().guarded(place.guard("").await, 1).keep_house().await;
    place.workspace.prepare(&mirror, &base).await.unwrap();
    assert_eq!(spares(&place).len(), 0);
    // Until there is room again.
    place.workspace.keep_house().await;
    place.workspace.prepare(&mirror, &base).await.unwrap();
    assert_eq!(spares(&place).len(), 3);

    // The next process begins with the base that was fetched last, though an attempt came after it.
    let (branch, later) = ("refile/t1/change/1-1", "2090-01-01T00:00:00Z");
    let made = ["commit-tree", "-p", "main", "-m", "An attempt", "HEAD^{tree}"];
    let mut commit = std::process::Command::new("git");
    commit.args(["-c", "user.name=A", "-c", "user.email=a@localhost"]).args(made).current_dir(&place.origin);
    let made = commit.env("GIT_COMMITTER_DATE", later).output().unwrap();
    git(&place.origin, &["branch", branch, String::from_utf8(made.stdout).unwrap().trim()]);
    let attempt = mirror.fetch(branch).await.unwrap();
    drop(mirror);
    place.workspace = Workspace::open(place.workspace.dir()).unwrap();
    place.workspace = place.workspace.clone().guarded(place.guard("").await, u64::MAX).for_jobs(2);
    until_there_are(&place, 0).await;
    place.workspace.look_ahead();
    until_there_are(&place, 2).await;
    let mirror = place.mirror().await;
    place.workspace.prepare(&mirror, &base).await.unwrap();
    let ahead = spares(&place);
    let taken = tree(&place, &mirror, 5, &base).await;
    assert!(ahead.contains(&taken.dir().metadata().unwrap().ino()));
    assert_ne!(attempt, base);
    // A change of the same length, at once, is seen for all that git was told of the files' times.
    let unchanged = taken.write().await.unwrap();
    let text = std::fs::read_to_string(taken.dir().join("b.txt")).unwrap();
    std::fs::write(taken.dir().join("b.txt"), text.to_uppercase()).unwrap();
    assert_ne!(taken.write().await.unwrap(), unchanged);
    assert_eq!(std::fs::read_to_string(taken.dir().join(".git/refs/heads/main")).unwrap().trim(), base);
}

#[tokio::test]
async fn mirrors_above_the_bound_go_oldest_first_and_those_in_use_stay() {
    let place = Place::new();
    let mirrors = place.workspace.dir().join("mirrors");
    let held = |url: String| {
        let workspace = place.workspace.clone();
        async move {
            let mirror = workspace.mirror(&url).await.unwrap();
            mirror.fetch("main").await.unwrap();
            mirror
        }
    };
    let of = |n: u32| format!("{}{}", place.url(), "/".repeat(n as usize));
    let (used, oldest, newest) = (held(of(0)).await, held(of(1)).await, held(of(2)).await);
    let dirs = [&used, &oldest, &newest].map(|m| m.git().dir().to_owned());
    // Git's own attempt branches do not stay for ever.
    git(&place.origin, &["branch", "refile/t1/change/1-1"]);
    used.fetch("refile/t1/change/1-1").await.unwrap();
    drop((oldest, newest));
    for (dir, hours) in dirs.iter().zip([9, 5, 1]) {
        let file = std::fs::File::options().write(true).open(dir.with_extension("used")).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_hours(hours)).unwrap();
    }
    let size = |dir: &Path| -> u64 {
        let said =
            std::process::Command::new("find").arg(dir).args(["-type", "f", "-printf", "%s\n"]).output().unwrap();
        String::from_utf8(said.stdout).unwrap().lines().map(|bytes| bytes.parse::<u64>().unwrap()).sum()
    };
    // Room for about two and a half, beside the tree of a job.
    let guard = place.guard("").await;
    let bound = size(&mirrors) * 5 / 6;
    let in_trees = place.workspace.dir().join("trees/t1");
    std::fs::create_dir_all(&in_trees).unwrap();
    std::fs::write(in_trees.join("large"), vec![b'x'; 1 << 20]).unwrap();
    place.workspace.clone().guarded(guard.clone(), bound + (1 << 20)).keep_house().await;
    assert_eq!(dirs.each_ref().map(|dir| dir.exists()), [true, false, true]);
    // What an attempt left that was turned down long ago goes where room is needed, what is new stays.
    let made = ["old", "new"].map(|name| {
        let file = place.root.path().join(name);
        std::fs::write(&file, name.repeat(1_000)).unwrap();
        let id = git(&dirs[0], &["hash-object", "-w", file.to_str().unwrap()]);
        (dirs[0].join("objects").join(&id[..2]).join(&id[2..]), id)
    });
    let old = SystemTime::now() - Duration::from_hours(7);
    std::fs::set_permissions(&made[0].0, std::fs::Permissions::from_mode(0o600)).unwrap();
    std::fs::File::options().write(true).open(&made[0].0).unwrap().set_modified(old).unwrap();
    place.workspace.clone().guarded(guard, 1).keep_house().await;
    assert_eq!(dirs.each_ref().map(|dir| dir.exists()), [true, false, false]);
    let is_there = |id: &str| {
        let asked = std::process::Command::new("git").args(["cat-file", "-e", id]).current_dir(&dirs[0]).output();
        asked.unwrap().status.success()
    };
    assert_eq!(made.each_ref().map(|(_, id)| is_there(id)), [false, true]);
    assert_eq!(git(&dirs[0], &["for-each-ref", "--format=%(refname)"]), "refs/refile/main");
    // One that went is made again.
    assert_eq!(held(of(1)).await.fetch("main").await.unwrap(), place.head("main"));
}

#[tokio::test]
async fn a_repository_without_commits_says_so() {
    let place = Place::new();
    git(place.root.path(), &["init", "-q", "-b", "main", "nothing"]);
    let mut of = task(&place, "t1");
    of.repository = "nothing".to_owned();
    let why = failure(&place, &of).await;
    assert_eq!(why.kind, FailureKind::Repository);
    assert!(why.detail.contains("has no branches at all: commit something there first"), "{why}");
}

#[tokio::test]
async fn a_base_branch_that_is_gone_is_named_with_those_that_there_are() {
    let place = Place::bare();
    let of = task(&place, "t1");
    let change = Try::script("echo x > new.txt").change(&place, &of).await;
    git(&place.origin, &["branch", "-m", "main", "trunk"]);
    let mut again = Try::script("echo x > new.txt");
    (again.attempt, again.continue_from) = (2, Some(&change));
    let Outcome::AgentFailed { failure, .. } = again.run(&place, &of).await else { panic!("no failure") };
    assert_eq!(failure.kind, FailureKind::Repository);
    assert!(failure.detail.contains("has no branch `main`; it has trunk"), "{failure}");
    let Outcome::LandingFailed { failure } = land_change(&place, &of, &change).await else { panic!("no failure") };
    assert!(failure.detail.contains("has no branch `main`; it has trunk"), "{failure}");
}

#[tokio::test]
async fn a_base_branch_that_was_rewritten_takes_the_change_and_nothing_else() {
    let place = Place::bare();
    let origin = place.root.path().join("origin");
    let of = task(&place, "t1");
    place.commit(&[("taken-back.txt", "t\n")]);
    let change = Try::script("echo x > new.txt").change(&place, &of).await;
    // By another history altogether, without what was taken back.
    git(&origin, &["checkout", "-q", "--orphan", "other"]);
    git(&origin, &["rm", "-q", "-f", "taken-back.txt"]);
    git(&origin, &["commit", "-q", "-m", "rewritten"]);
    git(&origin, &["push", "-q", "-f", place.origin.to_str().unwrap(), "other:main"]);
    let mut next = Try::script("test -f new.txt && test ! -e taken-back.txt && echo y >> new.txt");
    (next.attempt, next.continue_from) = (2, Some(&change));
    next.change(&place, &of).await;
    let outcome = land_change(&place, &of, &change).await;
    assert!(matches!(outcome, Outcome::Landed { .. }), "{outcome:?}");
    let files = git(&place.origin, &["ls-tree", "--name-only", "main"]);
    assert!(files.contains("new.txt") && !files.contains("taken-back.txt"), "{files}");
}

#[tokio::test]
async fn credentials_that_are_refused_are_told_from_a_repository_that_is_not_there() {
    let place = Place::new();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let refuse = || async { (axum::http::StatusCode::UNAUTHORIZED, [("www-authenticate", "Basic realm=\"git\"")], "") };
    tokio::spawn(async move { axum::serve(listener, axum::Router::new().fallback(refuse)).await });
    for url in [format!("http://me:expired-token@{address}/x.git"), format!("http://{address}/x.git")] {
        let of = Task { repository: url, ..task(&place, "t1") };
        let why = failure(&place, &of).await;
        assert_eq!(why.kind, FailureKind::Auth, "{why}");
        assert!(why.detail.contains("does not let this worker in") && why.detail.contains("renew"), "{why}");
        assert!(!why.detail.contains("expired-token"), "{why}");
    }
}
