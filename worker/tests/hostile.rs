//! Hostile repositories against every git command that the host runs: none executes anything, none leaks anything.
//!
//! The commands are those of `worker/src/git`: `version`, `init`, `fetch`, `ls-remote`, `push`, `rev-parse`, `cat-file`,
//! `merge-base`, `commit-tree`, `diff-tree`, `patch-id`, `merge-tree`, `grep`, `log`, `read-tree`, `checkout-index`, `add`,
//! `write-tree`, `ls-files`, `check-attr`, `check-ignore`, `gc`, `for-each-ref`, `update-ref`, `rev-list` and
//! `hash-object`. [`every_command_is_run`] holds that the list is whole and that each is run.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;
#[path = "hostile/ruined.rs"]
mod ruined;
#[path = "hostile/traps.rs"]
mod traps;

use std::collections::BTreeSet;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use common::fleet::{Try, artifacts, gate, task};
use common::{Place, git};
use refile_config::bounds::DiffPolicy;
use refile_core::{Outcome, TaskId};
use refile_worker::git::{Expected, Mirror, Tree, require_branch, require_version};
use refile_worker::workspace::Claim;
use traps::TRAPS;

/// What [`host`] runs.
const COMMANDS: &[&str] = &[
    "version",
    "init",
    "fetch",
    "ls-remote",
    "push",
    "rev-parse",
    "cat-file",
    "merge-base",
    "commit-tree",
    "diff-tree",
    "patch-id",
    "merge-tree",
    "grep",
    "log",
    "read-tree",
    "checkout-index",
    "add",
    "write-tree",
    "ls-files",
    "check-attr",
    "check-ignore",
    "gc",
    "for-each-ref",
    "update-ref",
    "rev-list",
    "hash-object",
];

/// Runs a script as an agent or a user without any protection would.
fn sh(dir: &Path, script: &str, canary: &Path) {
    let evil = format!("touch {}", canary.display());
    let mut command = Command::new("sh");
    command.args(["-c", script]).current_dir(dir).env("EVIL", evil);
    for (name, value) in
        [("GIT_CONFIG_GLOBAL", "/dev/null"), ("GIT_CONFIG_NOSYSTEM", "1"), ("GIT_ALLOW_PROTOCOL", "file:ext:ssh:git")]
    {
        command.env(name, value);
    }
    for who in ["AUTHOR", "COMMITTER"] {
        command.env(format!("GIT_{who}_NAME"), "A").env(format!("GIT_{who}_EMAIL"), "a@b");
    }
    command.output().unwrap();
}

async fn tree(place: &Place, mirror: &Mirror, fence: u64, base: &str, start: &str) -> Tree {
    let task = TaskId::parse("t1").unwrap();
    let claim = Claim { task: &task, phase: "change", attempt: 1, fence };
    place.workspace.tree(mirror, claim, "main", base, start).await.unwrap()
}

/// Everything that the host does with git, on a tree that an agent has left.
async fn host(place: &Place, mirror: &Mirror, tree: &Tree, base: &str, fence: u64) -> String {
    require_version().await.unwrap();
    require_branch(&place.url(), "main", None).await.unwrap();
    let now = mirror.fetch("main").await.unwrap();
    let written = tree.write().await.unwrap();
    let head = mirror.commit(&written, base, "by the host").await.unwrap();
    assert!(mirror.has(&head).await.unwrap());
    mirror.tree_of(&head).await.unwrap();
    mirror.diff(base, &head).await.unwrap();
    let files = mirror.files(base, &head).await.unwrap();
    mirror.contents(base, &head).await.unwrap();
    mirror.entries(base, &head).await.unwrap();
    tree.kept_with_lfs(&files).await.unwrap();
    mirror.patch_id(base, &head).await.unwrap();
    let merge = mirror.bring(&now, base, &head).await.unwrap();
    // The base moves on in the same file: then contents are merged.
    place.commit(&[("b.txt", "theirs\n")]);
    let moved = mirror.fetch("main").await.unwrap();
    mirror.bring(&moved, base, &head).await.unwrap();
    assert!(mirror.is_before(base, &head).await.unwrap());
    let commits = mirror.commits(base, &head).await.unwrap();
    mirror.commit_by(&merge.tree, &now, &commits[0].author, &commits[0].message).await.unwrap();
    mirror.commit_merge(&merge.tree, &now, &head, "Merge").await.unwrap();
    mirror.with_markers(&head, &files).await.unwrap();
    mirror.with_trailer(&head, &[], "Refile-Task", "t1").await.unwrap();
    mirror.reverted(&head, "Refile-Task").await.unwrap();
    let branch = format!("refile/t1/change/1-{fence}");
    mirror.push(&head, &branch, Expected::Absent).await.unwrap();
    assert_eq!(mirror.fetch(&branch).await.unwrap(), head);
    assert_eq!(mirror.branches("refile/").await.unwrap(), std::slice::from_ref(&branch));
    // The next attempt starts from what the agent left.
    let next = self::tree(place, mirror, fence + 1, &now, &merge.tree).await;
    next.write().await.unwrap();
    mirror.delete(&[branch]).await.unwrap();
    place.workspace.keep_house().await;
    head
}

#[tokio::test]
async fn nothing_that_a_repository_or_an_agent_holds_runs_on_the_host() {
    let mut wrong = Vec::new();
    for trap in TRAPS {
        let place = Place::bare();
        let canary = place.root.path().join("canary");
        // In the repository itself, from its first commit on.
        sh(&place.root.path().join("origin"), trap.files, &canary);
        let _ = std::fs::remove_file(&canary);
        place.commit(&[("c.txt", "c\n")]);
        let mirror = place.mirror().await;
        let base = mirror.fetch("main").await.unwrap();
        let attempt = tree(&place, &mirror, 1, &base, &base).await;
        // And left by an agent.
        std::fs::write(attempt.dir().join("b.txt"), "changed\n").unwrap();
        for script in [trap.files, trap.own] {
            sh(attempt.dir(), script, &canary);
        }
        let _ = std::fs::remove_file(&canary);
        host(&place, &mirror, &attempt, &base, 1).await;
        if canary.exists() {
            wrong.push(format!("{}: the host ran something", trap.name));
            std::fs::remove_file(&canary).unwrap();
        }
        sh(attempt.dir(), trap.control, &canary);
        if !canary.exists() {
            wrong.push(format!("{}: the trap does not work", trap.name));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Notes the subcommands that the worker runs, by what only the worker sets, and becomes the real git.
const NOTE: &str = r#"#!/bin/sh
if [ -n "$GIT_NO_REPLACE_OBJECTS" ]; then
    for word; do
        case $skip$word in
        -c) skip=1 ;;
        1*) skip= ;;
        *) echo "$word" >> "$0.commands"; echo "$word $GIT_SSH_COMMAND $*" >> "$0.calls"; break ;;
        esac
    done
fi
exec REAL "$@"
"#;

/// Set where the test runs again with the noting git.
const NOTING: &str = "REFILE_TEST_NOTING";

/// The subcommands that the sources name.
fn named_in_the_sources() -> BTreeSet<String> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/git");
    let mut used = BTreeSet::new();
    for file in std::fs::read_dir(&sources).unwrap().flatten() {
        let text = std::fs::read_to_string(file.path()).unwrap();
        // A command is the first of the words of a list.
        for (at, _) in text.match_indices('[') {
            let rest = text[at + 1..].trim_start();
            let Some(word) = rest.strip_prefix('"').and_then(|r| r.split('"').next()) else { continue };
            let is_call = text[..at].trim_end().ends_with(['=', '(', '&', '!', '>']);
            if is_call && word.chars().all(|c| c.is_ascii_lowercase() || c == '-') && !word.starts_with('-') {
                used.insert(word.to_owned());
            }
        }
    }
    let listed = Command::new("git").args(["help", "-a"]).output().unwrap();
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    let is_git = |word: &String| listed.lines().any(|line| line.split_whitespace().next() == Some(word));
    used.into_iter().filter(is_git).collect()
}

#[tokio::test]
async fn every_command_is_run() {
    if std::env::var_os(NOTING).is_some() {
        let place = Place::bare();
        let mirror = place.mirror().await;
        let base = mirror.fetch("main").await.unwrap();
        let attempt = tree(&place, &mirror, 1, &base, &base).await;
        // What git does not take, what it might ignore, and what may be kept with LFS have commands of their own.
        sh(
            attempt.dir(),
            "ln -s a.txt gitmod~1; mkfifo pipe; echo '*.x text' > .gitattributes",
            Path::new("/dev/null"),
        );
        host(&place, &mirror, &attempt, &base, 1).await;
        mirror.leaks(&base, &base, &[("KEY".to_owned(), "canary-of-nobody".to_owned())]).await.unwrap();
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let noting = dir.path().join("git");
    let path = std::env::var_os("PATH").unwrap();
    let git = std::env::split_paths(&path).map(|dir| dir.join("git")).find(|program| program.is_file()).unwrap();
    std::fs::write(&noting, NOTE.replace("REAL", git.to_str().unwrap())).unwrap();
    std::fs::set_permissions(&noting, std::fs::Permissions::from_mode(0o755)).unwrap();
    let path =
        std::env::join_paths(std::iter::once(dir.path().to_owned()).chain(std::env::split_paths(&path))).unwrap();
    let again = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "every_command_is_run", "--nocapture"])
        .env(NOTING, "1")
        .env("PATH", path)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&again.stdout).into_owned() + &String::from_utf8_lossy(&again.stderr);
    assert!(again.status.success() && said.contains("1 passed"), "{said}");
    let read = |of: &str| std::fs::read_to_string(dir.path().join(format!("git.{of}"))).unwrap();
    let ran: BTreeSet<String> = read("commands").lines().map(str::to_owned).collect();
    let known: BTreeSet<String> = COMMANDS.iter().map(|c| (*c).to_owned()).collect();
    assert_eq!(ran, known, "what is run, and what the suite knows of");
    let used = named_in_the_sources();
    assert!(used.is_subset(&known), "not in the suite: {:?}", used.difference(&known).collect::<Vec<_>>());
    assert!(used.len() > 15, "{used:?}");
    // A server that is gone is given up.
    let calls = read("calls");
    let fetch = calls.lines().find(|call| call.starts_with("fetch ")).unwrap();
    assert!(fetch.contains("http.lowSpeedTime=60") && fetch.contains("ConnectTimeout=30"), "{fetch}");
}

#[tokio::test]
async fn links_and_alternates_bring_nothing_of_the_host_into_a_change() {
    let place = Place::bare();
    let secret = place.root.path().join("secret.txt");
    std::fs::write(&secret, "canary-of-the-host\n").unwrap();
    let mirror = place.mirror().await;
    let base = mirror.fetch("main").await.unwrap();
    let attempt = tree(&place, &mirror, 1, &base, &base).await;
    let dir = attempt.dir();
    symlink(&secret, dir.join("link")).unwrap();
    std::fs::remove_file(dir.join("a.txt")).unwrap();
    symlink("../../../secret.txt", dir.join("a.txt")).unwrap();
    symlink(place.root.path(), dir.join("folder")).unwrap();
    std::fs::write(dir.join(".git/objects/info/alternates"), "/\n").unwrap();
    std::fs::write(dir.join("new\nline"), "x\n").unwrap();
    std::fs::write(dir.join("git~1"), "x\n").unwrap();
    std::fs::create_dir(dir.join(".Git ")).unwrap();
    std::fs::write(dir.join(".Git /config"), "x\n").unwrap();
    let head = host(&place, &mirror, &attempt, &base, 1).await;
    let diff = String::from_utf8(mirror.diff(&base, &head).await.unwrap()).unwrap();
    assert!(!diff.contains("canary-of-the-host"), "{diff}");
    let mut files = mirror.files(&base, &head).await.unwrap();
    files.sort();
    assert_eq!(files, ["a.txt", "folder", "link", "new\nline"]);
    let mut refused: Vec<String> = attempt.refused().into_iter().map(|refused| refused.path).collect();
    refused.sort();
    assert_eq!(refused, [".Git ", "git~1"]);
}

/// The gates of an attempt, and the required change of the first that failed.
async fn gates_of(place: &Place, attempt: &Try<'_>) -> (Vec<(String, bool)>, String) {
    let outcome = attempt.run(place, &task(place, "t1")).await;
    let Outcome::Coded { gates, .. } = outcome else { panic!("{outcome:?}") };
    let said = gates.iter().find(|g| !g.passed).and_then(|g| g.required_change.clone()).unwrap_or_default();
    (gates.into_iter().map(|g| (g.name, g.passed)).collect(), said)
}

#[tokio::test]
async fn the_diff_policy_names_the_path_or_the_size() {
    let place = Place::bare();
    place.commit(&[(".gitattributes", "*.psd filter=lfs\n")]);
    for (at, (script, says)) in [
        ("ln -s /etc/passwd link", "Remove the link `link`: it leads out of the repository, to `/etc/passwd`"),
        ("mkdir d; ln -s ../.git/config d/c", "Remove the link `d/c`"),
        ("echo x > git~1", "Remove `git~1`: git keeps such names for itself"),
        ("mkdir '.git '; echo x > '.git /x'; echo x > y", "Remove `.git `"),
        (
            "printf '[submodule \"s\"]\\n\\turl = ext::sh -c x\\n' > .gitmodules",
            "Correct `.gitmodules`: `url = `ext::sh -c x``",
        ),
        ("head -c 2000 /dev/zero > x.bin", "Remove `x.bin` or make it smaller: it is binary and has 2000 bytes"),
        ("mkdir ci; echo x > ci/run.yml", "Leave `ci/run.yml` as it was"),
        ("echo x > a.psd", "Leave `a.psd` as it was: it is kept with Git LFS"),
        ("for i in 1 2 3 4 5 6; do echo x > $i; done", "Change fewer files: 6 are touched, and at most 5"),
        ("echo x > \"$(printf 'new\\nline')\"; ln -s / \"$(printf 'l\\nl')\"", "Remove the link `l\\nl`"),
    ]
    .into_iter()
    .enumerate()
    {
        let mut attempt = Try::script(script);
        attempt.attempt = at as u32 + 1;
        attempt.gates = vec![gate("test", "true")];
        attempt.diff_policy =
            DiffPolicy { max_files: 5, binaries: 1_000, forbidden: vec!["ci/**".to_owned()], ..DiffPolicy::default() };
        let (gates, said) = gates_of(&place, &attempt).await;
        assert_eq!(gates.last(), Some(&("diff_policy".to_owned(), false)), "{script}: {gates:?}");
        assert!(said.contains(says), "{script}: {said}");
        // A forge's CI may run on what is pushed, with the repository's secrets.
        assert_eq!(place.branches(), ["main"], "{script}");
    }
}

#[tokio::test]
async fn what_the_diff_policy_turned_down_is_gone_on_from_where_it_is_known() {
    let place = Place::bare();
    let policy = DiffPolicy { forbidden: vec![".ci/**".to_owned()], ..DiffPolicy::default() };
    let mut first = Try::script("mkdir .ci; echo evil > .ci/run.yml; echo x > new.txt");
    first.diff_policy = policy.clone();
    // Nor is it pushed where all gates are to run.
    (first.keep_going, first.gates) = (true, vec![gate("test", "true")]);
    let Outcome::Coded { change, gates, .. } = first.run(&place, &task(&place, "t1")).await else {
        panic!("no change")
    };
    let said: Vec<_> = gates.iter().map(|g| (g.name.as_str(), g.passed)).collect();
    let all = [("empty_diff", true), ("diff_policy", false), ("merge_conflict", true), ("test", true)];
    assert_eq!((said.as_slice(), place.branches()), (all.as_slice(), vec!["main".to_owned()]));
    let diff = artifacts(&place).get(change.diff.as_ref().unwrap()).await.unwrap().unwrap();
    assert!(String::from_utf8_lossy(&diff).contains("+evil"));
    let mut next = Try::script("test -f new.txt && rm .ci/run.yml");
    (next.attempt, next.continue_from, next.diff_policy) = (2, Some(&change), policy);
    let mended = next.change(&place, &task(&place, "t1")).await;
    assert_eq!((place.branches().len(), mended.files), (2, 1));
    // Nothing of what was turned down came with it.
    assert_eq!(git(&place.origin, &["log", "--format=%H", &mended.branch, "--", ".ci"]), "");
    // Another machine does not have it: there the next attempt starts from the base.
    std::fs::remove_dir_all(place.workspace.dir().join("mirrors")).unwrap();
    let mut elsewhere = Try::script("test ! -e new.txt && echo y > other.txt");
    (elsewhere.attempt, elsewhere.continue_from) = (3, Some(&change));
    assert_eq!(elsewhere.change(&place, &task(&place, "t1")).await.files, 1);
}

#[tokio::test]
async fn a_gigabyte_in_a_change_is_turned_down_by_its_size_and_goes_nowhere() {
    let place = Place::bare();
    let outcome = Try::script("truncate -s 1G big.txt; echo x > small.txt").run(&place, &task(&place, "t1")).await;
    let Outcome::Coded { change, gates, .. } = outcome else { panic!("{outcome:?}") };
    assert_eq!((gates.len(), gates[0].name.as_str(), change.files, change.diff), (1, "diff_policy", 2, None));
    let said = gates[0].required_change.as_deref().unwrap();
    assert!(said.contains("`big.txt` alone 1073741824, and at most 16777216 are allowed"), "{said}");
    assert_eq!(place.branches(), ["main"]);
    // The next attempt starts from it and takes it away.
    let previous = refile_core::task::Change { diff: None, ..change };
    let mut next = Try::script("rm big.txt; test -f small.txt");
    (next.attempt, next.continue_from) = (2, Some(&previous));
    assert_eq!(next.change(&place, &task(&place, "t1")).await.files, 1);
}

#[tokio::test]
async fn a_large_diff_below_the_policy_is_bounded_too() {
    let place = Place::bare();
    let mut attempt = Try::script(
        "yes 'a long line of text that repeats' | head -c 80000000 > big.txt; \
                                   yes x | head -c 20000000 > less.txt",
    );
    attempt.diff_policy.max_bytes = 1 << 40;
    attempt.diff_policy.binaries = 1 << 40;
    let change = attempt.change(&place, &task(&place, "t1")).await;
    let diff = artifacts(&place).get(&change.diff.unwrap()).await.unwrap().unwrap();
    // What is larger than 32 MiB is told as a binary file that differs.
    assert!(diff.len() < 64 << 20, "{}", diff.len());
    assert!(String::from_utf8_lossy(&diff).contains("Binary files /dev/null and b/big.txt differ"));
}

#[tokio::test]
async fn a_diff_that_takes_too_much_away_is_turned_down_by_its_size() {
    let place = Place::bare();
    for part in ["1", "2", "3"] {
        place.commit(&[(part, &format!("a line of part {part}\n").repeat(1_300_000))]);
    }
    let (gates, said) = gates_of(&place, &Try::script("rm 1 2 3")).await;
    assert_eq!(gates, [("diff_policy".to_owned(), false)]);
    assert!(said.contains("its diff holds more than 67108864 bytes"), "{said}");
}

/// Run again by itself with a secret in its environment.
const SECRET: &str = "REFILE_TEST_CANARY";

#[tokio::test]
async fn a_secret_of_the_worker_reaches_no_agent_no_log_and_no_artifact() {
    let Some(secret) = std::env::var_os(SECRET) else {
        let again = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "a_secret_of_the_worker_reaches_no_agent_no_log_and_no_artifact", "--nocapture"])
            .env(SECRET, "canary-8d1f0c")
            .env("OTHER_API_KEY", "canary-8d1f0c")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&again.stdout).into_owned() + &String::from_utf8_lossy(&again.stderr);
        assert!(again.status.success() && said.contains("1 passed"), "{said}");
        assert!(!said.contains("canary-8d1f0c"), "{said}");
        return;
    };
    let secret = secret.into_string().unwrap();
    let seek = "env; cat /proc/[0-9]*/environ 2> /dev/null | tr '\\0' '\\n'; git config -l; set; echo x > new.txt; env > env.txt";
    let place = Place::guarded("").await;
    let mut attempt = Try::script(seek);
    attempt.gates = vec![gate("test", seek)];
    let change = attempt.change(&place, &task(&place, "t1")).await;
    let holds = |dir: &Path| {
        let found = Command::new("grep").args(["-rlF", &secret]).arg(dir).output().unwrap();
        String::from_utf8_lossy(&found.stdout).into_owned()
    };
    assert_eq!(holds(&place.root.path().join("artifacts")), "");
    assert!(!place.show(&format!("{}:env.txt", change.head)).contains(&secret));
    // The search works: without a sandbox the worker's own environment can be read.
    let open = Place::bare();
    Try::script(seek).change(&open, &task(&open, "t1")).await;
    let found = Command::new("grep").args(["-rlF", &secret]).arg(open.root.path().join("artifacts")).output().unwrap();
    assert!(!found.stdout.is_empty(), "nothing was found where there is something");
}
