//! What agents leave in their trees, on purpose or not: the worker lives on, and the coder is told what is wrong.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::time::{Duration, Instant};

use common::fleet::{Try, gate, task};
use common::{Place, git};
use refile_core::Outcome;

/// A place whose commands run as they are.
fn attempt(script: &str) -> Try<'static> {
    Try { gates: vec![gate("test", "true")], ..Try::script(script) }
}

/// What the diff policy says of an attempt, which must be what turned it down.
async fn said(place: &Place, attempt: &Try<'_>) -> String {
    match attempt.run(place, &task(place, "t1")).await {
        Outcome::Coded { gates, .. } => {
            let last = gates.last().unwrap();
            assert_eq!((last.name.as_str(), last.passed), ("diff_policy", false), "{gates:?}");
            last.required_change.clone().unwrap()
        }
        other => panic!("{other:?}"),
    }
}

/// Makes folders in folders, each with the name `$1`, and a file in the deepest; more of them than a path can name.
const DEEP: &str = "deep() { python3 -c 'import os, sys\nfor _ in range(6000):\n    os.mkdir(sys.argv[1])\n    \
                    os.chdir(sys.argv[1])\nopen(\"deepest\", \"w\").close()' $1; }; ";

#[tokio::test]
async fn what_git_does_not_take_is_the_coders_to_correct() {
    let place = Place::bare();
    let base = place.commit(&[("c.txt", "c\n")]);
    for (at, (script, says)) in [
        ("echo x > 'x\\.git'", "Remove `x\\.git`: git keeps such names for itself"),
        ("echo x > 'x\\git~1 '", "Remove `x\\git~1 `"),
        ("mkdir -p \"$(printf '\\377')\"; echo x > \"$(printf '\\377/git~1')\"", "/git~1`: git keeps such names"),
        ("ln -s a.txt .gitmodules", "Remove or correct what git does not take: invalid path '.gitmodules'"),
        ("ln -s a.txt gitmod~1", "invalid path 'gitmod~1'"),
        ("rm a.txt; mkfifo a.txt", "Remove `a.txt`: it is a pipe, a socket or a device, and no file"),
        ("mkdir d; mkfifo d/.gitignore", "Remove `d/.gitignore`: it is a pipe"),
        ("mkfifo .gitattributes", "Remove `.gitattributes`: it is a pipe"),
        ("mkfifo .gitignore; mkfifo other", ": it is a pipe"),
        ("echo 'a.txt working-tree-encoding=UTF-16' > .gitattributes; echo x > a.txt", "BOM is required in 'a.txt'"),
        ("echo '* working-tree-encoding=none' > .gitattributes; echo x > a.txt", "failed to encode 'a.txt' from none"),
        ("mkdir .GIT; echo x > .GIT/config", "Remove `.GIT`"),
    ]
    .into_iter()
    .enumerate()
    {
        let mut attempt = attempt(&format!("{script}; echo kept > kept.txt"));
        attempt.attempt = at as u32 + 1;
        let told = said(&place, &attempt).await;
        assert!(told.contains(says) && !told.contains('\n'), "{script}: {told}");
    }
    // Thousands of them are no longer line for git than one.
    let many = "for i in $(seq 30000); do echo d$i-which-has-a-name-that-is-somewhat-longer-than-the-others-are; done | \
                xargs mkdir; for d in d*; do echo x > $d/git~1; done";
    let told = said(&place, &Try { attempt: 20, ..attempt(many) }).await;
    assert!(told.contains("/git~1`"), "{told}");
    // What an agent says in passing does not make a question of what it left.
    let told = said(&place, &Try { attempt: 21, ..attempt("mkfifo a; echo REFILE: ask Why?") }).await;
    assert!(told.contains("Remove `a`"), "{told}");
    assert_eq!(place.head("main"), base);
}

#[tokio::test]
async fn the_rest_of_a_change_is_kept_for_the_next_attempt() {
    let place = Place::bare();
    let Outcome::Coded { change, .. } =
        attempt("ln -s a.txt .gitmodules; echo kept > kept.txt").run(&place, &task(&place, "t1")).await
    else {
        panic!()
    };
    let mut next = Try::script("test -f kept.txt && echo x > new.txt");
    (next.attempt, next.continue_from) = (2, Some(&change));
    assert_eq!(next.change(&place, &task(&place, "t1")).await.files, 2);
}

#[tokio::test]
async fn pipes_that_git_ignores_are_nobodys_concern() {
    let place = Place::bare();
    place.commit(&[(".gitignore", "cache/\n*.sock\n")]);
    let script = "mkdir cache; mkfifo cache/pipe a.sock; echo x > new.txt";
    assert_eq!(attempt(script).change(&place, &task(&place, "t1")).await.files, 1);
}

#[tokio::test]
async fn folders_thousands_deep_are_named_and_removed() {
    let place = Place::bare();
    let trees = place.workspace.dir().join("trees");
    // As files of the change, below a `.git`, and in the agent's own.
    for (at, script) in ["deep d", "mkdir y; cd y; deep .git", "cd .git; deep d"].iter().enumerate() {
        let mut attempt = attempt(&format!("{DEEP} echo x > new.txt; {script}"));
        attempt.attempt = at as u32 + 1;
        match attempt.run(&place, &task(&place, "t1")).await {
            Outcome::Coded { gates, .. } if at == 0 => {
                let said = gates.iter().find(|g| !g.passed).and_then(|g| g.required_change.clone()).unwrap();
                assert!(said.contains("Remove `d/d/d") && said.contains("too long to be checked out"), "{said}");
            }
            Outcome::Coded { gates, change, .. } => {
                assert!(gates.iter().all(|g| g.passed), "{gates:?}");
                assert_eq!(change.files, 1);
            }
            other => panic!("{other:?}"),
        }
    }
    let deadline = Instant::now() + Duration::from_mins(1);
    let left = || std::fs::read_dir(place.workspace.dir().join("trash")).map_or(0, Iterator::count);
    while std::fs::read_dir(&trees).unwrap().count() > 0 || left() > 0 {
        assert!(Instant::now() < deadline, "{} folders are left", left());
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[tokio::test]
async fn what_lies_in_a_submodules_place_is_named() {
    let place = Place::new();
    let pinned = place.head("main");
    git(&place.origin, &["update-index", "--add", "--cacheinfo", &format!("160000,{pinned},sub")]);
    git(&place.origin, &["commit", "-q", "-m", "a submodule"]);
    for (at, script) in
        ["echo x > sub/x", "rmdir sub; echo x > sub", "git init -q sub; echo x > sub/x"].iter().enumerate()
    {
        let told = said(&place, &Try { attempt: at as u32 + 1, ..attempt(&format!("{script}; echo y > y")) }).await;
        assert!(told.contains("Empty the folder `sub`: a submodule belongs there"), "{script}: {told}");
    }
    let fine = Try { attempt: 9, ..attempt("git init -q sub; echo y > y") };
    assert_eq!(fine.change(&place, &task(&place, "t1")).await.files, 1);
}

#[tokio::test]
async fn trouble_of_the_machine_is_not_the_coders() {
    let place = Place::bare();
    let mirror = place.mirror().await;
    mirror.fetch("main").await.unwrap();
    // Nothing can be stored in the mirror any more: files lie where its folders of objects belong.
    let script = format!(
        "echo x > new.txt; mv {0} {0}.away; mkdir -p {0}/info; echo {0}.away > {0}/info/alternates; \
         for i in $(seq 0 255); do echo x > {0}/$(printf %02x $i); done",
        mirror.git().dir().join("objects").display()
    );
    let outcome = Try::script(&script).run(&place, &task(&place, "t1")).await;
    let Outcome::AgentFailed { failure, .. } = outcome else { panic!("{outcome:?}") };
    assert!(failure.detail.contains("git add"), "{failure}");
}
