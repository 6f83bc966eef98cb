//! The demo: what it promises is what happens, and the commands that it prints work on what it leaves.

#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod common;

use std::path::Path;
use std::process::Command;

use common::command::Desk;
use common::git;
use serde_json::Value;

/// Each task of the scenario: how it ends, and after how many attempts.
const PROMISED: &[(&str, &str, u64)] = &[
    ("Add a command that reverses lines", "merged", 1),
    ("Add a command that numbers lines", "merged", 2),
    ("Add a command that trims lines", "merged", 2),
    ("Add a command that finds the longest line", "merged", 2),
    ("Add a command that squeezes empty lines", "merged", 1),
    ("Rewrite the README", "escalated", 3),
];
/// The two that conflict: one of them, whichever lands last, needs a second attempt.
const CONFLICTING: [&str; 2] = ["Greet in the morning", "Greet in the evening"];

/// What the scenario demands of the second attempts.
const DEMANDS: &[(&str, &str)] = &[
    ("Add a command that numbers lines", "Push actual file changes — the PR diff is empty"),
    ("Add a command that trims lines", "Fix lint errors listed in the gate output"),
    ("Add a command that finds the longest line", "Add a test for empty input."),
    ("Rewrite the README", "Name the reader in the first sentence."),
];

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_else(|| panic!("no text `{key}` in {value}"))
}

fn named<'a>(tasks: &'a [Value], title: &str) -> &'a Value {
    tasks.iter().find(|t| t["title"] == title).unwrap_or_else(|| panic!("no task {title:?}"))
}

/// How often each task's trailer is in the history of the base branch.
fn landed(repository: &Path, id: &str) -> usize {
    let log = git(repository, &["log", "--format=%(trailers:key=Refile-Task,valueonly)", "main"]);
    log.lines().filter(|line| *line == id).count()
}

fn tests_pass_on_a_fresh_clone(repository: &Path) {
    let dir = tempfile::tempdir().unwrap();
    git(dir.path(), &["clone", "--quiet", "--branch=main", repository.to_str().unwrap(), "clone"]);
    let clone = dir.path().join("clone");
    for file in ["bin/reverse", "bin/number", "bin/trim", "bin/longest", "bin/squeeze", "tests/longest-empty.sh"] {
        assert!(clone.join(file).is_file(), "{file} is not on the base branch");
    }
    let ran = Command::new("sh").arg("run-tests.sh").current_dir(&clone).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stdout));
}

/// Arguments on the demo's configuration.
fn on<'a>(config: &'a str, args: &[&'a str]) -> Vec<&'a str> {
    [&["--config", config], args].concat()
}

#[test]
fn the_demo_keeps_its_promises_and_can_be_gone_on_with() {
    let place = Desk::empty();
    let told = place.json(&["demo", "--dir", "kept"]);
    let (repository, tasks) = (Path::new(text(&told, "repository")), told["tasks"].as_array().unwrap());
    assert_eq!(text(&told, "base"), "main");
    assert_eq!(tasks.len(), 8);
    for (title, outcome, attempts) in PROMISED {
        let task = named(tasks, title);
        assert_eq!((text(task, "outcome"), &task["attempts"]), (*outcome, &Value::from(*attempts)), "{title}");
    }
    let mut of_conflict = CONFLICTING.map(|title| {
        assert_eq!(text(named(tasks, title), "outcome"), "merged", "{title}");
        named(tasks, title)["attempts"].as_u64().unwrap()
    });
    of_conflict.sort_unstable();
    assert_eq!(of_conflict, [1, 2]);
    for task in tasks {
        let wanted = usize::from(text(task, "outcome") == "merged");
        assert_eq!(landed(repository, text(task, "id")), wanted, "{}", text(task, "title"));
    }
    assert_eq!(git(repository, &["rev-list", "--count", "main"]), "8");
    assert_eq!(git(repository, &["status", "--porcelain"]), "", "the work tree follows its branch");
    tests_pass_on_a_fresh_clone(repository);
    let escalations = told["escalations"].as_array().unwrap();
    assert_eq!(escalations.len(), 1);
    let readme = text(named(tasks, "Rewrite the README"), "id");
    assert_eq!((text(&escalations[0], "task"), text(&escalations[0], "reason")), (readme, "attempts_exhausted"));

    let config = place.path("kept/refile.toml");
    let config = config.to_str().unwrap();
    what_it_leaves_can_be_looked_at(&place, config, tasks);
    a_person_decides(&place, config, readme, repository);
}

fn what_it_leaves_can_be_looked_at(place: &Desk, config: &str, tasks: &[Value]) {
    for (title, demand) in DEMANDS {
        let shown = place.json(&on(config, &["task", "show", text(named(tasks, title), "id")]));
        let attempts = shown["attempts"].as_array().unwrap();
        assert_eq!((&attempts[0]["number"], &attempts[0]["required_change"]), (&1.into(), &(*demand).into()));
        let description = text(&shown, "description");
        assert_eq!(text(&attempts[0], "prompt"), description);
        let second = text(&attempts[1], "prompt");
        let lead = format!("## ATTEMPT #2 — previous attempt rejected\n\n**Required change**: {demand}\n");
        assert!(second.starts_with(&lead), "{second}");
        assert!(second.ends_with(description), "{second}");
        assert!(attempts.iter().all(|a| a["outcome"].is_string() && a["gates"].is_array() && a["reviews"].is_array()));
    }
    let trimmed = place.json(&on(config, &["task", "show", text(named(tasks, PROMISED[2].0), "id")]));
    let first = &trimmed["attempts"][0];
    assert_eq!(text(first, "outcome"), "gate_failed");
    assert!(first["gates"].as_array().unwrap().iter().any(|g| g["name"] == "lint" && g["passed"] == false), "{first}");
    assert_eq!(first["reviews"], Value::Array(Vec::new()), "what a gate stops costs no review");
    let squeezed = place.json(&on(config, &["task", "show", text(named(tasks, PROMISED[4].0), "id")]));
    let reviews = squeezed["attempts"][0]["reviews"].as_array().unwrap();
    let kinds: Vec<&Value> = reviews.iter().map(|r| &r["failure"]["kind"]).collect();
    assert_eq!(kinds, [&Value::from("rate_limit"), &Value::from("malformed"), &Value::Null]);

    let readme = text(named(tasks, "Rewrite the README"), "id");
    let log = place.ok(&on(config, &["task", "log", readme]));
    for said in ["attempt 1", "attempt 3", "review by scripted", "gate lint: passed", "escalated attempts_exhausted"] {
        assert!(log.contains(said), "no {said:?} in\n{log}");
    }
    let full = place.ok(&on(config, &["task", "log", readme, "--full"]));
    assert!(full.contains("RETRY: Cut the text to ten lines. Now it is too long."), "{full}");
    assert!(full.contains("required change: Show one example of each command."), "the transcript of attempt 3: {full}");
    let diff = place.ok(&on(config, &["task", "diff", readme]));
    assert!(diff.contains("+Attempt 3: ") && diff.contains("+++ b/README.md"), "{diff}");
    let diff = place.ok(&on(config, &["task", "diff", readme, "--attempt", "1"]));
    assert!(diff.contains("+Attempt 1: ") && !diff.contains("Attempt 2"), "{diff}");
}

fn a_person_decides(place: &Desk, config: &str, readme: &str, repository: &Path) {
    let open = |of: &str| {
        let list = place.json(&on(config, &["escalation", "list"]));
        let list = list.as_array().unwrap();
        assert_eq!(list.len(), 1, "{list:?}");
        assert_eq!((text(&list[0], "task"), text(&list[0], "reason")), (of, "attempts_exhausted"));
        text(&list[0], "id").to_owned()
    };
    let first = open(readme);
    let shown = place.ok(&on(config, &["escalation", "show", &first]));
    // The program is not on PATH here: its path is what can be copied.
    let copied = format!("{} --config {config} escalation approve {first}", env!("CARGO_BIN_EXE_refile"));
    for said in ["attempts_exhausted", "Cut the text to ten lines.", "## ATTEMPT #3", copied.as_str()] {
        assert!(shown.contains(said), "no {said:?} in\n{shown}");
    }
    place.ok(&on(config, &["escalation", "refile", &first, "Praise the reader, not the program"]));
    let drained = place.run(&on(config, &["up", "--drain"]));
    assert_eq!(drained.status, 3, "the reviewer is never content: {drained:?}");
    let attempts = place.json(&on(config, &["task", "show", readme]))["attempts"].clone();
    assert_eq!(attempts.as_array().unwrap().len(), 4);
    let prompt = text(&attempts[3], "prompt");
    assert!(prompt.contains("**Required change**: Praise the reader, not the program\n"), "{prompt}");
    let second = open(readme);
    assert_ne!(first, second);
    place.ok(&on(config, &["escalation", "approve", &second]));
    let drained = place.run(&on(config, &["up", "--drain", "--json"]));
    assert_eq!(drained.status, 0, "{drained:?}");
    let counts: Value = serde_json::from_str(&drained.out).unwrap();
    assert_eq!((&counts["merged"], &counts["escalated"]), (&8.into(), &0.into()));
    assert_eq!(landed(repository, readme), 1);
    tests_pass_on_a_fresh_clone(repository);
}

#[test]
fn the_demo_tells_people_what_it_is_and_what_happened() {
    let place = Desk::empty();
    let ran = place.run(&["demo", "--dir", "kept"]).must(0, &[]);
    assert_eq!(ran.err, "", "what is so by design is no warning");
    let told = ran.out;
    for said in [
        "scripts, not models",
        "without a sandbox",
        "merged",
        "escalated",
        "## ATTEMPT #2 — previous attempt rejected",
        "**Required change**: Add a test for empty input.",
        "rate_limit",
        "not charged",
        "merge_conflict",
        "0 failed",
        "escalation refile",
        "up --drain",
        "kept",
    ] {
        assert!(told.contains(said), "no {said:?} in\n{told}");
    }
    assert!(!told.contains('\u{1b}'), "no colours outside of a terminal");
    let before = std::fs::read_dir(place.path("kept")).unwrap().count();
    place.fails(&["demo", "--dir", "kept"], 1, &["is not empty", "name a new folder"]);
    assert_eq!(std::fs::read_dir(place.path("kept")).unwrap().count(), before);
    // The commands are those that were printed, word for word.
    let line = told.lines().find(|line| line.contains("escalation show")).unwrap();
    let pasted = |line: &str, path: &str| {
        let ran =
            Command::new("sh").args(["-c", line]).current_dir(place.dir.path()).env("PATH", path).output().unwrap();
        assert!(ran.status.success(), "{line}: {}", String::from_utf8_lossy(&ran.stderr));
        String::from_utf8(ran.stdout).unwrap()
    };
    let path = std::env::var("PATH").unwrap();
    assert!(pasted(line, &path).contains("Rewrite the README"));
    // Where the program is found by its name, that is what is printed.
    let dir = Path::new(env!("CARGO_BIN_EXE_refile")).parent().unwrap().display().to_string();
    let shown = pasted(line, &format!("{dir}:{path}"));
    assert!(shown.contains("  refile --config "), "{shown}");
    let other = place.path("bin");
    place.write("bin/refile", "another program");
    let shown = pasted(line, &format!("{}:{dir}:{path}", other.display()));
    assert!(!shown.contains("  refile --config "), "{shown}");
}
