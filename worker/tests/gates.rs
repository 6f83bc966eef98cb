//! Gates that cannot run, that fail on the base as well, and what is kept of them.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::Place;
use common::fleet::{Try, agent, artifacts, gate, task};
use refile_config::{Baseline, Gate};
use refile_core::Outcome;
use refile_core::failure::{Failure, FailureKind};
use refile_core::gate::GateReport;
use refile_core::task::Change;

/// An attempt with one gate, whose number no other has.
fn one(number: u32, script: &str, gate: Gate) -> Try<'static> {
    Try { attempt: number, agent: agent(script), gates: vec![gate], ..Try::script("") }
}

/// What the configured gate said.
#[track_caller]
fn said(outcome: Outcome) -> GateReport {
    let Outcome::Coded { mut gates, .. } = outcome else { panic!("{outcome:?}") };
    gates.pop().unwrap()
}

#[track_caller]
fn failure(outcome: Outcome) -> Failure {
    let Outcome::AgentFailed { failure, .. } = outcome else { panic!("{outcome:?}") };
    failure
}

#[tokio::test]
async fn what_a_gate_says_of_a_base_holds_for_the_same_network_and_sandbox_only() {
    let mut place = Place::bare();
    place.commit(&[("old.bad", "x\n")]);
    let task = task(&place, "t1");
    let count = place.root.path().join("runs");
    let runs = || std::fs::read_to_string(&count).unwrap_or_default().lines().count();
    let mut counted = gate("lint", &format!("echo >> {}; ls *.bad && exit 1 || true", count.display()));
    counted.baseline = Baseline::Warn;
    // On the change, and once on the base for each answer to the question of the network.
    for (number, network, seen) in [(1, None, 2), (2, Some(true), 4), (3, Some(true), 5), (4, Some(false), 6)] {
        counted.network = network;
        one(number, "echo x > new.txt", counted.clone()).change(&place, &task).await;
        assert_eq!(runs(), seen, "{network:?}");
    }
    // Without a sandbox the base fails too, since the gate sees what lies beside its tree.
    let root = place.root.path().display();
    let mut beside = gate("lint", &format!("ls *.new && exit 1; cd {root} && test ! -e refile.toml"));
    beside.baseline = Baseline::Warn;
    let guard = place.guard("").await;
    one(5, "echo x > x.new", beside.clone()).change(&place, &task).await;
    place.workspace = place.workspace.clone().guarded(guard, u64::MAX);
    let confined = said(one(6, "echo x > x.new", beside).run(&place, &task).await);
    assert!(!confined.passed, "{}", confined.output);
}

#[tokio::test]
async fn a_program_that_no_gate_can_find_is_told_before_the_agent_is_paid() {
    for place in [Place::new(), Place::guarded("").await] {
        let count = place.root.path().join("paid");
        let mut missing = Try::script("echo x > new.txt; echo paid");
        missing.gates = vec![gate("lint", "true"), gate("test", "no-such-program --all")];
        let outcome = missing.run(&place, &task(&place, "t1")).await;
        let Outcome::AgentFailed { failure, transcript, .. } = outcome else { panic!("{outcome:?}") };
        assert_eq!((failure.kind, transcript), (FailureKind::Configuration, None), "{failure}");
        for words in ["`test`", "`no-such-program`", "no attempt was made", "[[gates]]"] {
            assert!(failure.detail.contains(words), "{failure}");
        }
        assert!(!count.exists());
        // What a shell knows by itself, what it is told on the way, and what may come with the change is not looked for.
        let mut fine = Try::script("echo true > check.sh; chmod +x check.sh");
        fine.attempt = 2;
        let lines =
            ["cd . && true", "X=1 true", "if true; then true; fi", "(true)", "./check.sh", "! false", "$X true"];
        fine.gates = lines.iter().enumerate().map(|(at, run)| gate(&format!("g{at}"), run)).collect();
        fine.change(&place, &task(&place, "t1")).await;
    }
}

#[tokio::test]
async fn what_an_agent_left_is_not_lost_with_a_gate_that_cannot_run() {
    let place = Place::bare();
    let task = task(&place, "t1");
    let outcome = one(1, "echo x > new.txt; echo done", gate("test", "kill -9 $$")).run(&place, &task).await;
    let Outcome::AgentFailed { failure, change: Some(kept), .. } = outcome else { panic!("{outcome:?}") };
    assert_eq!(failure.kind, FailureKind::Crash);
    assert_eq!(place.show("refile/t1/change/1-10:new.txt"), "x");
    // The job's next run, on another machine and when the base has moved on.
    std::fs::remove_dir_all(place.workspace.dir().join("mirrors")).unwrap();
    place.commit(&[("c.txt", "c\n")]);
    let mut again = one(2, "echo the agent ran again > agent.txt", gate("test", "test -f new.txt"));
    again.kept = Some(&kept);
    let outcome = again.run(&place, &task).await;
    let Outcome::Coded { change, transcript: None, usage, prompt_digest, gates } = outcome else {
        panic!("{outcome:?}")
    };
    assert_eq!((&change.head, &change.branch, &change.patch_id), (&kept.head, &kept.branch, &kept.patch_id));
    assert_eq!((change.summary.as_str(), usage.wall_ms, prompt_digest.len()), ("done", 0, 64));
    assert!(gates.len() == 4 && gates.iter().all(|gate| gate.passed), "{gates:?}");
    // Where it is gone, the agent is asked again; where it goes against the base by now, it is told so.
    let lost = Change { branch: "refile/t1/change/1-7".to_owned(), head: "a".repeat(40), ..kept.clone() };
    let mut anew = one(3, "echo y > new.txt", gate("test", "true"));
    anew.kept = Some(&lost);
    assert_eq!(place.show(&format!("{}:new.txt", anew.change(&place, &task).await.head)), "y");
    place.commit(&[("new.txt", "theirs\n")]);
    (again.attempt, again.gates) = (4, Vec::new());
    let report = said(again.run(&place, &task).await);
    assert_eq!((report.name.as_str(), report.passed), ("merge_conflict", false));
}

#[tokio::test]
async fn what_the_policy_turned_down_is_not_kept_for_a_gate_that_cannot_run() {
    let place = Place::bare();
    let mut it = one(1, "ln -s / out", gate("test", "kill -9 $$"));
    it.keep_going = true;
    let outcome = it.run(&place, &task(&place, "t1")).await;
    assert!(matches!(outcome, Outcome::AgentFailed { change: None, .. }), "{outcome:?}");
}

#[tokio::test]
async fn a_program_that_make_does_not_find_is_no_fault_of_the_change_where_the_base_lacks_it_too() {
    let place = Place::new();
    place.commit(&[
        ("Makefile", "lint:\n\tno-such-linter .\ntest:\n\tsh test.sh\n"),
        ("test.sh", "echo fine\n"),
        ("script.sh", "no-such-linter || exit 1\n"),
    ]);
    let task = task(&place, "t1");
    for (number, run) in [(1, "make lint"), (2, "sh script.sh"), (3, "true; no-such-linter --all")] {
        let why = failure(one(number, "echo x > new.txt", gate("lint", run)).run(&place, &task).await);
        assert_eq!(why.kind, FailureKind::Configuration, "{why}");
        for words in ["the gate `lint` cannot run", "no-such-linter", "on the untouched base as well"] {
            assert!(why.detail.contains(words), "{why}");
        }
    }
    // Where the change brought the name in, or another one, it is the change's.
    for (number, script, run) in [
        (4, "printf 'test:\\n\\tno-such-linter .\\n' > Makefile", "make test"),
        (5, "printf 'lint:\\n\\tno-such-other .\\n' > Makefile", "make lint"),
        (6, "echo no-such-linter > test.sh", "make test"),
        (7, "echo no-such-linter > check.sh; chmod +x check.sh", "./check.sh"),
        (8, "echo true > check.sh", "./check.sh"),
        // The words alone say nothing.
        (9, "echo 'echo user: not found; exit 1' > test.sh", "make test"),
    ] {
        let report = said(one(number, script, gate("test", run)).run(&place, &task).await);
        assert!(!report.passed, "{run}: {}", report.output);
    }
    // Words that the base's failing tests say as well are no missing program.
    place.commit(&[("test.sh", "echo user: not found; exit 1\n")]);
    let report = said(one(10, "echo x > new.txt", gate("test", "make test")).run(&place, &task).await);
    assert!(!report.passed, "{}", report.output);
}

#[tokio::test]
async fn a_program_that_went_missing_since_the_base_was_tried_is_no_fault_of_the_change() {
    let place = Place::new();
    let task = task(&place, "t1");
    let tool = place.root.path().join("tool");
    std::os::unix::fs::symlink("/bin/true", &tool).unwrap();
    let mut looks = gate("lint", &format!("true && {} && ! ls *.bad", tool.display()));
    looks.baseline = Baseline::Warn;
    // The base passes, and that is kept.
    assert!(!said(one(1, "echo x > x.bad", looks.clone()).run(&place, &task).await).passed);
    std::fs::remove_file(&tool).unwrap();
    let why = failure(one(2, "echo x > new.txt", looks).run(&place, &task).await);
    assert!(why.kind == FailureKind::Configuration && why.detail.contains("on the untouched base as well"), "{why}");
}

#[tokio::test]
async fn a_test_that_tells_of_a_full_disk_is_a_failed_test_where_the_disk_has_room() {
    let place = Place::new();
    let run = "echo 'assert failed: No space left on device'; exit 1";
    let report = said(one(1, "echo x > new.txt", gate("test", run)).run(&place, &task(&place, "t1")).await);
    assert!(!report.passed && report.output.contains("No space left on device"), "{report:?}");
}

#[tokio::test]
async fn gates_whose_names_look_alike_have_each_its_own_log() {
    let place = Place::new();
    let mut both = Try::script("echo x > new.txt");
    let names = ["a b", "a-b", "a/b", "ä", "ö"];
    both.gates = names.iter().map(|name| gate(name, &format!("echo this is {name}"))).collect();
    let Outcome::Coded { gates, .. } = both.run(&place, &task(&place, "t1")).await else { panic!("no change") };
    for (name, report) in names.iter().zip(&gates[3..]) {
        let log = artifacts(&place).get(report.log.as_ref().unwrap()).await.unwrap().unwrap();
        assert_eq!(log, format!("this is {name}\n"));
    }
}

#[tokio::test]
async fn the_base_is_asked_unless_the_gate_runs_what_only_the_change_has() {
    let place = Place::new();
    place.commit(&[("bad.txt", "x\n"), ("check.sh", "test ! -e bad.txt\n")]);
    let task = task(&place, "t1");
    let mut number = 0;
    let mut passes = async |script: &str, run: &str| {
        number += 1;
        let mut gate = gate("lint", run);
        gate.baseline = Baseline::Warn;
        said(one(number, script, gate).run(&place, &task).await).passed
    };
    // The base has the file as well, whatever the change does to it.
    assert!(passes("echo y >> bad.txt", "test ! -e bad.txt").await);
    assert!(passes("echo '# more' >> check.sh", "sh check.sh").await);
    // It fails on the base for want of what the change brings, and that excuses nothing.
    assert!(!passes("echo 'exit 1' > new.sh", "sh ./new.sh").await);
    assert!(!passes("mkdir tests; echo 'exit 1' > tests/a.sh", "cd tests && exit 1").await);
    assert!(
        !passes("mkdir tests; echo 'exit 1' > tests/a.sh", "sh -c 'for t in tests/*; do sh $t || exit 1; done'").await
    );
}

#[tokio::test]
async fn all_that_a_gate_printed_is_kept_and_its_end_goes_into_the_rejection() {
    let place = Place::bare();
    place.commit(&[("numbers.sh", "seq 1 1500000; echo 'the last line' >&2; exit 1\n")]);
    let task = task(&place, "t1");
    let numbers = (1..=1_500_000).map(|n| n.to_string()).collect::<Vec<_>>().join("\n") + "\n";
    assert!(numbers.len() > 10 << 20, "more than what is kept of a command otherwise");
    let mut wordy = gate("test", "sh numbers.sh");
    wordy.retries = 1;
    let kept = async |number, gate: &Gate| {
        let report = said(one(number, "echo x > new.txt", gate.clone()).run(&place, &task).await);
        let log = artifacts(&place).get(report.log.as_ref().unwrap()).await.unwrap().unwrap();
        (report, String::from_utf8(log.to_vec()).unwrap())
    };
    let (report, log) = kept(1, &wordy).await;
    let ended = "[the gate `test` ended with exit code 1]\n";
    let run = format!("{numbers}the last line\n{ended}");
    let again = format!("{run}\n[run 2 of the gate `test`]\n{run}");
    assert!(log == again, "{} bytes instead of {}: {:?}", log.len(), again.len(), &log[log.len() - 300..]);
    assert!(
        report.output.len() <= 2_000
            && report.output.ends_with("1500000\nthe last line\n[the gate `test` ended with exit code 1]"),
        "{}",
        report.output
    );

    // What it says on the base comes first.
    wordy.baseline = Baseline::Warn;
    wordy.retries = 0;
    let (report, log) = kept(2, &wordy).await;
    assert!(report.passed && log.starts_with("[on the untouched base]\n1\n2\n"), "{log:.100}");
    let change = log.split_once("\n\n[on the change]\n").unwrap().1;
    assert!(change.starts_with(&run) && change.contains("it is not held against the change"), "{:?}", &change[..50]);
}

#[tokio::test]
async fn a_gate_that_fails_again_says_whether_the_base_does_too() {
    let place = Place::new();
    place.commit(&[("old.bad", "x\n")]);
    let task = task(&place, "t1");
    let count = place.root.path().join("runs");
    let runs = || std::fs::read_to_string(&count).unwrap_or_default().lines().count();
    let counted = gate("lint", &format!("echo >> {}; ! ls *.bad", count.display()));
    let note = "[the gate `lint` fails on the untouched base as well: see whether it can run here at all";
    // The first attempt looks at no base; of the others it is looked at once.
    for (number, is_told, seen) in [(1, false, 1), (2, true, 3), (3, true, 4)] {
        let report = said(one(number, "echo x > new.txt", counted.clone()).run(&place, &task).await);
        assert!(!report.passed, "the verdict stays");
        assert_eq!((report.output.contains(note), runs()), (is_told, seen), "{}", report.output);
        let log = artifacts(&place).get(report.log.as_ref().unwrap()).await.unwrap().unwrap();
        assert_eq!(String::from_utf8_lossy(&log).contains(note), is_told);
    }
    // Not where the base is well, nor where it lacks what the change brings.
    place.commit(&[("old.bad", "")]);
    let report = said(one(4, "echo x > x.bad", counted).run(&place, &task).await);
    assert!(!report.passed && !report.output.contains("untouched base"), "{}", report.output);
    let report = said(one(5, "echo 'exit 1' > new.sh", gate("lint", "sh ./new.sh")).run(&place, &task).await);
    assert!(!report.passed && !report.output.contains("untouched base"), "{}", report.output);
}

#[tokio::test]
async fn the_base_is_tried_with_what_the_gates_before_make() {
    let place = Place::new();
    place.commit(&[("old.bad", "x\n")]);
    let task = task(&place, "t1");
    let mut attempt = Try::script("echo x > new.bad");
    let needing = gate("test", "cat made.txt && test ! -e new.bad");
    attempt.gates = vec![gate("install", "echo made > made.txt"), Gate { baseline: Baseline::Warn, ..needing }];
    let report = said(attempt.run(&place, &task).await);
    assert!(!report.passed, "the base would pass: {}", report.output);
    // What earlier gates do is part of what is known of a base.
    (attempt.attempt, attempt.gates[0].run) = (2, "true".to_owned());
    attempt.agent = agent("echo x > new.txt");
    let report = said(attempt.run(&place, &task).await);
    assert!(report.passed && report.output.contains("not held against the change"), "{}", report.output);
}

#[tokio::test]
async fn a_gate_that_brings_what_others_need_cannot_run_where_the_base_fails_it_too() {
    let place = Place::bare();
    let task = task(&place, "t1");
    let away = place.root.path().join("away");
    let run = format!("test ! -e {} && test ! -e broken.lock", away.display());
    let setup = Gate { setup: true, ..gate("install", &run) };
    std::fs::write(&away, "").unwrap();
    let outcome = one(1, "echo x > new.txt", setup.clone()).run(&place, &task).await;
    assert!(matches!(outcome, Outcome::AgentFailed { change: Some(_), .. }), "what was paid for is kept: {outcome:?}");
    let why = failure(outcome);
    assert!(why.kind == FailureKind::Configuration && why.detail.contains("`install` cannot run"), "{why}");
    // Of a check it is the change's failure, and of this one where the base is well.
    let check = Gate { setup: false, ..setup.clone() };
    assert!(!said(one(2, "echo x > new.txt", check).run(&place, &task).await).passed);
    std::fs::remove_file(&away).unwrap();
    assert!(!said(one(3, "echo x > broken.lock", setup.clone()).run(&place, &task).await).passed);
    assert!(said(one(4, "echo x > new.txt", setup).run(&place, &task).await).passed);
}
