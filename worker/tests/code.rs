//! Code jobs with real agents and real repositories.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::time::Duration;

use common::Place;
use common::fleet::{Try, agent, artifacts, gate, task};
use common::processes::dies_with;
use refile_config::schema::PromptDelivery;
use refile_config::{Baseline, Span};
use refile_core::Outcome;
use refile_core::failure::FailureKind;
use refile_core::gate::GateReport;
use refile_core::task::Change;
use refile_worker::agent::LONG_RUN;

fn names(gates: &[GateReport]) -> Vec<(&str, bool)> {
    gates.iter().map(|g| (g.name.as_str(), g.passed)).collect()
}

#[tokio::test]
async fn an_attempt_becomes_a_branch_with_its_evidence() {
    let place = Place::bare();
    let task = task(&place, "t1");
    let script =
        "cat > got.txt; cp \"$REFILE_PROMPT_FILE\" file.txt; env | grep ^REFILE_ | sort; git log --oneline | wc -l";
    let mut first = Try::script(script);
    first.gates = vec![gate("lint", "test -f got.txt && echo fine $REFILE_TASK_ID"), gate("test", "true")];
    let outcome = first.run(&place, &task).await;
    let Outcome::Coded { change, gates, prompt_digest, transcript, usage } = outcome else { panic!("{outcome:?}") };
    assert_eq!(
        names(&gates),
        [("empty_diff", true), ("diff_policy", true), ("merge_conflict", true), ("lint", true), ("test", true)]
    );
    assert_eq!(gates[3].output, "fine t1");
    assert_eq!(change.branch, "refile/t1/change/1-10");
    assert_eq!((change.files, change.base_commit.as_str()), (2, place.head("main").as_str()));
    assert_eq!(place.head(&change.branch), change.head);
    assert_eq!(place.show(&format!("{}:got.txt", change.head)), "Do it well.");
    assert_eq!(place.show(&format!("{}:file.txt", change.head)), "Do it well.");
    assert_eq!(prompt_digest, refile_worker::agent::digest("Do it well."));
    assert!(usage.wall_ms > 0);
    let read =
        async |name: &str| String::from_utf8(artifacts(&place).get(name).await.unwrap().unwrap().to_vec()).unwrap();
    let log = read(&transcript.unwrap()).await;
    for line in ["REFILE_ATTEMPT=1", "REFILE_PHASE=change", "REFILE_TASK_ID=t1"] {
        assert!(log.contains(line), "{log}");
    }
    assert!(log.contains(&format!("REFILE_BASE={}", change.base_commit)), "{log}");
    assert!(read(&change.diff.unwrap()).await.contains("+Do it well."));
    assert_eq!(read("t1/change/1-10/gate-lint.log").await, "fine t1\n");
    assert_eq!(read("t1/change/1-10/prompt.md").await, "Do it well.");
    assert_eq!(std::fs::read_dir(place.workspace.dir().join("trees")).unwrap().count(), 0);
}

#[tokio::test]
async fn a_prompt_comes_as_a_file_or_as_an_argument() {
    let place = Place::new();
    let task = task(&place, "t1");
    std::fs::write(place.root.path().join("agent.sh"), "cp \"$1\" got.txt\n").unwrap();
    let mut by_file = Try::script("");
    by_file.agent.command = ["sh", "agent.sh", "{prompt_file}"].map(str::to_owned).to_vec();
    by_file.agent.prompt = PromptDelivery::File;
    let change = by_file.change(&place, &task).await;
    assert_eq!(place.show(&format!("{}:got.txt", change.head)), "Do it well.");

    let mut by_argument = Try::script("printf %s \"$0\" > got.txt");
    by_argument.attempt = 2;
    by_argument.agent.prompt = PromptDelivery::Argument;
    let change = by_argument.change(&place, &task).await;
    assert_eq!(place.show(&format!("{}:got.txt", change.head)), "Do it well.");
}

#[tokio::test]
async fn nothing_changed_is_the_empty_diff_gate() {
    let place = Place::new();
    let mut nothing = Try::script("echo done");
    nothing.gates = vec![gate("test", "true")];
    let outcome = nothing.run(&place, &task(&place, "t1")).await;
    let Outcome::Coded { change, gates, .. } = outcome else { panic!("{outcome:?}") };
    assert_eq!(names(&gates), [("empty_diff", false)]);
    assert_eq!((change.files, change.patch_id.as_str()), (0, ""));
}

#[tokio::test]
async fn gates_stop_at_the_first_failure_unless_told_to_go_on() {
    let place = Place::new();
    let task = task(&place, "t1");
    let mut attempt = Try::script("echo x > new.txt");
    attempt.gates = vec![gate("lint", "true"), gate("build", "echo broken >&2; exit 1"), gate("test", "sleep 100")];
    attempt.gates[2].timeout = Span::parse("200ms").unwrap();
    let outcome = attempt.run(&place, &task).await;
    let Outcome::Coded { gates, .. } = outcome else { panic!("{outcome:?}") };
    let passed = [("empty_diff", true), ("diff_policy", true), ("merge_conflict", true), ("lint", true)];
    assert_eq!(names(&gates), [passed.as_slice(), &[("build", false)]].concat());
    assert_eq!(gates[4].output, "broken\n[the gate `build` ended with exit code 1]");

    (attempt.attempt, attempt.keep_going) = (2, true);
    let outcome = attempt.run(&place, &task).await;
    let Outcome::Coded { gates, .. } = outcome else { panic!("{outcome:?}") };
    assert_eq!(names(&gates), [passed.as_slice(), &[("build", false), ("test", false)]].concat());
    assert!(gates[5].output.contains("timed out after 0.2 s"), "{}", gates[5].output);
}

#[tokio::test]
async fn a_gate_that_cannot_run_is_not_the_coders_fault_unless_it_is() {
    let place = Place::new();
    place.commit(&[("check.sh", "true\n")]);
    let (another, task) = (task(&place, "t2"), task(&place, "t1"));
    let mut attempt = Try::script("echo x > new.txt");
    attempt.gates = vec![gate("test", "true; no-such-program --all")];
    let outcome = attempt.run(&place, &task).await;
    let Outcome::AgentFailed { failure, transcript, usage, .. } = outcome else { panic!("{outcome:?}") };
    assert_eq!(failure.kind, FailureKind::Configuration);
    assert!(failure.detail.contains("`test` cannot run `true; no-such-program --all`"), "{failure}");
    assert!(transcript.is_some() && usage.wall_ms > 0);

    attempt = Try::script("git rm -q check.sh");
    attempt.gates = vec![gate("test", "./check.sh")];
    let outcome = attempt.run(&place, &another).await;
    let Outcome::Coded { gates, .. } = outcome else { panic!("{outcome:?}") };
    assert_eq!(names(&gates).last(), Some(&("test", false)));
}

#[tokio::test]
async fn agents_fail_in_ways_that_are_told_apart() {
    let place = Place::new();
    let task = task(&place, "t1");
    let failure = async |attempt: Try<'_>| match attempt.run(&place, &task).await {
        Outcome::AgentFailed { failure, .. } => failure,
        other => panic!("{other:?}"),
    };
    for (script, kind) in [
        ("echo oops >&2; exit 3", FailureKind::Crash),
        ("kill -SEGV $$", FailureKind::Crash),
        ("echo 'API error 429' >&2; exit 1", FailureKind::RateLimit),
        ("echo overloaded_error; exit 1", FailureKind::Overloaded),
    ] {
        assert_eq!(failure(Try::script(script)).await.kind, kind, "{script}");
    }
    assert!(failure(Try::script("echo oops >&2; exit 3")).await.detail.contains("oops"));
    let mut slow = Try::script("exec sleep 100");
    slow.agent.timeout = Span::parse("200ms").unwrap();
    assert_eq!(failure(slow).await.kind, FailureKind::Timeout);
    let mut missing = Try::script("");
    missing.agent.command = vec!["no-such-agent".to_owned()];
    let missing = failure(missing).await;
    assert_eq!(missing.kind, FailureKind::Configuration);
    assert!(missing.detail.contains("`no-such-agent` was not found"), "{missing}");
}

#[tokio::test]
async fn an_agent_that_changed_nothing_may_ask() {
    let place = Place::new();
    let task = task(&place, "t1");
    let outcome = Try::script("echo thinking; echo 'REFILE: ask Which port?'").run(&place, &task).await;
    let Outcome::NeedsInput { words, .. } = outcome else { panic!("{outcome:?}") };
    assert_eq!(words, "Which port?");
    let mut changed = Try::script("echo x > new.txt; echo 'REFILE: decline no'");
    changed.attempt = 2;
    assert_eq!(changed.change(&place, &task).await.files, 1);
}

#[tokio::test]
async fn a_flaky_gate_passes_when_a_retry_does_and_both_runs_are_kept() {
    let place = Place::new();
    let task = task(&place, "t1");
    let mut attempt = Try::script("echo x > new.txt");
    let seen = place.root.path().join("seen");
    let flaky = format!("echo run; test -f {0} || {{ touch {0}; echo flaked; exit 1; }}", seen.display());
    attempt.gates = vec![gate("test", &flaky)];
    attempt.gates[0].retries = 2;
    let outcome = attempt.run(&place, &task).await;
    let Outcome::Coded { gates, .. } = outcome else { panic!("{outcome:?}") };
    let ran = "run\nflaked\n[the gate `test` ended with exit code 1]\n\n[run 2 of the gate `test`]\nrun\n\
               [the gate `test` failed, and passed in run 2]";
    assert_eq!((gates[3].passed, gates[3].output.as_str()), (true, ran));
    let log = artifacts(&place).get(gates[3].log.as_ref().unwrap()).await.unwrap().unwrap();
    assert_eq!(log, format!("{ran}\n"));

    attempt.attempt = 2;
    attempt.gates = vec![gate("test", "echo run; exit 1")];
    attempt.gates[0].retries = 2;
    let outcome = attempt.run(&place, &task).await;
    let Outcome::Coded { gates, .. } = outcome else { panic!("{outcome:?}") };
    assert!(!gates[3].passed);
    assert_eq!(gates[3].output.matches("run\n[the gate `test` ended").count(), 3, "{}", gates[3].output);
}

#[tokio::test]
async fn a_failure_that_the_base_has_as_well_is_not_held_against_the_change() {
    let place = Place::new();
    place.commit(&[("old.bad", "x\n")]);
    let task = task(&place, "t1");
    let count = place.root.path().join("runs");
    let counted = format!("echo >> {}; ls *.bad && exit 1 || true", count.display());
    let runs = || std::fs::read_to_string(&count).unwrap_or_default().lines().count();
    let mut attempt = Try::script("echo x > new.txt");
    for (number, baseline, passed, seen) in [
        (1, Baseline::Fail, Some(false), 1),
        // The change, and the base once for both that follow.
        (2, Baseline::Warn, Some(true), 3),
        (3, Baseline::Ignore, None, 4),
    ] {
        attempt.attempt = number;
        attempt.gates = vec![gate("lint", &counted), gate("test", "true")];
        attempt.gates[0].baseline = baseline;
        let outcome = attempt.run(&place, &task).await;
        let Outcome::Coded { gates, .. } = outcome else { panic!("{outcome:?}") };
        let lint = gates.iter().find(|g| g.name == "lint");
        assert_eq!((lint.map(|g| g.passed), runs()), (passed, seen), "{baseline:?}");
        assert_eq!(gates.iter().any(|g| g.name == "test"), passed != Some(false), "{baseline:?}");
        if baseline == Baseline::Warn {
            let output = &lint.unwrap().output;
            assert!(output.contains("fails on the untouched base") && output.contains("old.bad"), "{output}");
        }
    }
    // Where the base is well, the change is to blame.
    place.commit(&[("old.bad", "")]);
    attempt.agent = agent("echo x > new.bad");
    (attempt.attempt, attempt.gates[0].baseline) = (4, Baseline::Ignore);
    let outcome = attempt.run(&place, &task).await;
    let Outcome::Coded { gates, .. } = outcome else { panic!("{outcome:?}") };
    assert_eq!(names(&gates)[3], ("lint", false));
    // So it is where the gate's script comes with the change.
    attempt.agent = agent("echo 'exit 1' > check.sh");
    (attempt.attempt, attempt.gates[0].run) = (5, "sh ./check.sh".to_owned());
    let outcome = attempt.run(&place, &task).await;
    let Outcome::Coded { gates, .. } = outcome else { panic!("{outcome:?}") };
    assert_eq!(names(&gates)[3], ("lint", false));
    assert_eq!(std::fs::read_dir(place.workspace.dir().join("trees")).unwrap().count(), 0);
}

#[tokio::test]
async fn a_gate_that_was_killed_says_nothing_of_the_change() {
    let place = Place::new();
    for (number, run) in [(1, "kill -9 $$"), (2, "sh -c 'kill -9 $$'; exit $?")] {
        let mut attempt = Try::script("echo x > new.txt");
        (attempt.attempt, attempt.gates) = (number, vec![gate("test", run)]);
        let outcome = attempt.run(&place, &task(&place, "t1")).await;
        let Outcome::AgentFailed { failure, .. } = outcome else { panic!("{outcome:?}") };
        assert_eq!(failure.kind, FailureKind::Crash);
        assert!(failure.detail.contains("`test`") && failure.detail.contains("memory"), "{failure}");
    }
}

#[tokio::test]
async fn repository_trouble_says_what_to_do() {
    let place = Place::new();
    let failure = async |task| match Try::script("true").run(&place, &task).await {
        Outcome::AgentFailed { failure, prompt_digest: None, .. } => failure,
        other => panic!("{other:?}"),
    };
    let mut of = task(&place, "t1");
    of.base = "trunk".to_owned();
    let why = failure(of.clone()).await;
    assert_eq!(why.kind, FailureKind::Repository);
    assert!(why.detail.contains("has no branch `trunk`; it has main"), "{why}");
    of.base = "--upload-pack=x".to_owned();
    assert!(failure(of.clone()).await.detail.contains("not a branch name"));
    of.repository = "gone".to_owned();
    of.base = "main".to_owned();
    let why = failure(of).await;
    assert!(why.detail.contains("no git repository at") && why.detail.contains("gone"), "{why}");
}

#[tokio::test]
async fn the_next_attempt_goes_on_from_the_previous_one_on_the_moved_base() {
    let place = Place::bare();
    let task = task(&place, "t1");
    let first = Try::script("echo one > new.txt; echo mine > b.txt").change(&place, &task).await;
    let base = place.commit(&[("c.txt", "c\n")]);
    let mut second = Try::script("test -f c.txt && test -f new.txt && git diff HEAD --stat && echo two >> new.txt");
    (second.attempt, second.continue_from) = (2, Some(&first));
    let next = second.change(&place, &task).await;
    assert_eq!(next.base_commit, base);
    assert_eq!(place.show(&format!("{}:new.txt", next.head)), "one\ntwo");
    assert_eq!(place.show(&format!("{}:b.txt", next.head)), "mine");
    assert_eq!(next.files, 2);
}

#[tokio::test]
async fn a_run_that_worked_and_failed_is_gone_on_from_and_nothing_else_is_kept() {
    const FAILS: &str = "echo half > new.txt; echo oops >&2; exit 3";
    let place = Place::bare();
    let task = task(&place, "t1");
    let first = Try::script("echo one > old.txt").change(&place, &task).await;
    let left = async |number, script: &str, kept: Option<&Change>, long_run| {
        let of = Try { long_run, kept, continue_from: Some(&first), attempt: number, ..Try::script(script) };
        match of.run(&place, &task).await {
            Outcome::AgentFailed { change, failure, .. } => (change, failure),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(left(2, FAILS, None, LONG_RUN).await.0, None, "it was too short");
    assert_eq!(left(3, "exit 3", None, Duration::ZERO).await.0, None, "it changed nothing");
    let (kept, failure) = left(4, FAILS, None, Duration::ZERO).await;
    let kept = kept.unwrap();
    assert!(kept.unfinished && failure.detail.contains("its next run goes on from there"), "{failure}");
    assert_eq!(place.show(&format!("{}:new.txt", kept.branch)), "half", "it is for any worker");
    let (link, _) = left(5, "ln -s / out; exit 3", None, Duration::ZERO).await;
    let is_shown = place.branches().iter().any(|branch| branch.ends_with("/5-50"));
    assert_eq!((link.unwrap().patch_id.as_str(), is_shown), ("", false));
    // On another machine, on a base that moved: what the run did, and what the attempt before left.
    std::fs::remove_dir_all(place.workspace.dir().join("mirrors")).unwrap();
    place.commit(&[("c.txt", "c\n")]);
    let told = "grep -q 'stopped in the middle of its work' \"$REFILE_PROMPT_FILE\"";
    let mut next = Try::script(&format!("{told} && test -f c.txt && test -f old.txt && echo whole >> new.txt"));
    (next.attempt, next.kept, next.continue_from) = (6, Some(&kept), Some(&first));
    let change = next.change(&place, &task).await;
    assert_eq!((place.show(&format!("{}:new.txt", change.head)).as_str(), change.unfinished), ("half\nwhole", false));
    // Where it is gone, what the attempt before left is not.
    let gone = Change { branch: "refile/t1/change/1-7".to_owned(), head: "a".repeat(40), ..kept };
    let mut next = Try::script(&format!("! {told} && test -f old.txt && test ! -f new.txt && echo new > new.txt"));
    (next.attempt, next.kept, next.continue_from) = (7, Some(&gone), Some(&first));
    next.change(&place, &task).await;
}

#[tokio::test]
async fn a_conflict_with_the_base_must_be_resolved_by_the_attempt() {
    let place = Place::new();
    let task = task(&place, "t1");
    let first = Try::script("echo mine > b.txt").change(&place, &task).await;
    place.commit(&[("b.txt", "theirs\n")]);
    let mut ignoring = Try::script("echo x > x.txt");
    (ignoring.attempt, ignoring.continue_from) = (2, Some(&first));
    let outcome = ignoring.run(&place, &task).await;
    let Outcome::Coded { gates, .. } = outcome else { panic!("{outcome:?}") };
    assert_eq!(names(&gates), [("empty_diff", true), ("diff_policy", true), ("merge_conflict", false)]);
    assert!(gates[2].output.contains("- b.txt"), "{}", gates[2].output);
    let mut resolving = Try::script("grep -q '<<<<<<<' b.txt && echo both > b.txt");
    (resolving.attempt, resolving.continue_from) = (3, Some(&first));
    let change = resolving.change(&place, &task).await;
    assert_eq!(place.show(&format!("{}:b.txt", change.head)), "both");
}

#[tokio::test]
async fn a_base_that_moves_into_the_change_meanwhile_fails_the_conflict_gate() {
    let place = Place::new();
    let task = task(&place, "t1");
    let origin = place.origin.display();
    let script = format!(
        "echo mine > b.txt; cd {origin} && echo theirs > b.txt && git -c user.name=A -c user.email=a@b commit -qam moved"
    );
    let outcome = Try::script(&script).run(&place, &task).await;
    let Outcome::Coded { gates, .. } = outcome else { panic!("{outcome:?}") };
    assert_eq!(names(&gates), [("empty_diff", true), ("diff_policy", true), ("merge_conflict", false)]);
    assert!(gates[2].output.contains("- b.txt"), "{}", gates[2].output);
}

#[tokio::test]
async fn a_previous_attempt_that_is_gone_is_no_dead_end() {
    let place = Place::new();
    let task = task(&place, "t1");
    let first = Try::script("echo one > new.txt").change(&place, &task).await;
    common::git(&place.origin, &["branch", "-D", &first.branch]);
    std::fs::remove_dir_all(place.workspace.dir().join("mirrors")).unwrap();
    let mut second = Try { agent: agent("test ! -f new.txt && echo two > two.txt"), ..Try::script("") };
    (second.attempt, second.continue_from) = (2, Some(&first));
    assert_eq!(second.change(&place, &task).await.files, 1);
}

#[tokio::test]
async fn what_an_agent_was_given_by_name_is_not_kept() {
    let place = Place::new();
    let mut telling = Try::script("echo $CARGO_MANIFEST_DIR; echo $CARGO_MANIFEST_DIR >&2; exit 1");
    telling.agent.env = vec!["CARGO_MANIFEST_DIR".to_owned()];
    let outcome = telling.run(&place, &task(&place, "t1")).await;
    let Outcome::AgentFailed { failure, transcript, .. } = outcome else { panic!("{outcome:?}") };
    assert!(failure.detail.ends_with("[CARGO_MANIFEST_DIR]"), "{failure}");
    let log = artifacts(&place).get(&transcript.unwrap()).await.unwrap().unwrap();
    assert_eq!(log, "[CARGO_MANIFEST_DIR]\n[CARGO_MANIFEST_DIR]\n");
}

#[tokio::test]
async fn a_job_that_is_dropped_leaves_no_process_and_no_tree() {
    let place = std::sync::Arc::new(Place::new());
    let task = task(&place, "t1");
    let file = place.root.path().join("pid");
    let attempt = Try::script(&format!("sleep 1000 & echo $! > {}; wait", file.display()));
    let running = tokio::spawn({
        let place = place.clone();
        async move { attempt.run(&place, &task).await }
    });
    dies_with(running, &file).await;
    assert_eq!(std::fs::read_dir(place.workspace.dir().join("trees")).unwrap().count(), 0);
}
