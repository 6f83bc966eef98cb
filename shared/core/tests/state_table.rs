//! The table of phase states and events in ARCHITECTURE.md is what the code does: it is made here by running `decide`.
//!
//! `UPDATE_DOCS=1 cargo test -p refile-core --test state_table` writes it into the file.

mod common;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

use common::{World, effects, workflow};
use refile_core::policy::{Budget, OnExhausted, Reviewer};
use refile_core::{Policy, Task};

const BEGIN: &str = "<!-- state table: begin -->";
const END: &str = "<!-- state table: end -->";

/// A state: how the phase `build` gets there, and the rows of the events that it takes.
struct State {
    name: &'static str,
    /// The task's phases, see [`workflow`].
    phases: &'static str,
    before: &'static str,
    rows: Vec<Row>,
}

/// One event: what is asked of the task beyond the state, and the step.
struct Row {
    event: &'static str,
    condition: &'static str,
    policy: Policy,
    /// Steps after those that lead to the state.
    then: &'static str,
    step: &'static str,
}

fn row(event: &'static str, condition: &'static str, then: &'static str, step: &'static str) -> Row {
    Row { event, condition, policy: Policy::default(), then, step }
}

impl Row {
    fn with(mut self, change: impl FnOnce(&mut Policy)) -> Self {
        change(&mut self.policy);
        self
    }

    /// At the cap from the first attempt on.
    fn capped(self, on_exhausted: OnExhausted) -> Self {
        self.with(|p| {
            p.max_attempts = 1;
            p.on_exhausted = on_exhausted;
        })
    }

    /// With every budget of tries at one.
    fn last_try(self) -> Self {
        self.with(|p| {
            p.max_reviews = 1;
            p.max_review_failures = 1;
            p.max_infra_failures = 1;
            p.max_land_failures = 1;
        })
    }

    /// The budget lasts until the predecessor is reviewed.
    fn broke_after_planning(self) -> Self {
        self.with(|p| p.budget = Budget { tokens: Some(150), ..Budget::default() })
    }
}

/// Every event, with a step that stands for it: what a state has no row for must be refused there.
const EVENTS: &[(&str, &str)] = &[
    ("coded, gates pass", "build: coded"),
    ("coded, gate fails", "build: gate lint"),
    ("agent failed", "build: agent-failed crash"),
    ("needs input", "build: asks"),
    ("approved", "build: approved 0.9"),
    ("needs_changes", "build: needs_changes 0.9"),
    ("reject", "build: reject 0.9"),
    ("escalate", "build: escalate 0.9"),
    ("retry, or review failed", "build: retry 0"),
    ("retry_predecessor", "build: retry_predecessor 0.9 phase:plan"),
    ("landed", "build: landed"),
    ("pull request open", "build: opened"),
    ("forge: merged", "build: forge merged"),
    ("forge: closed by a person", "build: forge closed ann"),
    ("forge: closed, nobody knows by whom", "build: forge closed"),
    ("forge: conflicts", "build: forge conflicts"),
    ("forge: base moved", "build: forge moved"),
    ("forge: not yet", "build: forge not-yet Checks run."),
    ("pull request ended: merged", "build: ended merged"),
    ("pull request ended: closed by a person", "build: ended closed ann"),
    ("forge: changes requested", "build: forge changes new Name the port."),
    ("rebased", "build: rebased"),
    ("landing rejected", "build: conflict"),
    ("landing failed", "build: land-failed network"),
    ("called off", "build: called-off"),
    ("poisoned", "build: poison"),
    ("person: approve", "build: person approve"),
    ("person: refile", "build: person refile Do it."),
    ("person: retry", "build: person retry"),
    ("person: reject", "build: person reject"),
    ("cancelled", "cancel"),
];

const TWO: &str = "plan, build<plan";
const PLANNED: &str = "plan: coded; plan: approved 0.9";

// One long list is easier to read than its parts.
#[allow(clippy::too_many_lines)]
fn states() -> Vec<State> {
    use OnExhausted::{Accept, Escalate, Reject};
    vec![
        State {
            name: "waiting",
            phases: TWO,
            before: "plan: coded",
            rows: vec![
                row("predecessor approved", "it was the last one", "", "plan: approved 0.9"),
                row("predecessor approved", "a budget is spent", "", "plan: approved 0.9").broke_after_planning(),
                row("predecessor rejected", "", "", "plan: reject 0.9"),
                row("cancelled", "", "", "cancel"),
            ],
        },
        State {
            name: "coding",
            phases: TWO,
            before: PLANNED,
            rows: vec![
                row("coded, gates pass", "", "", "build: coded"),
                row("coded, gates pass", "same diff as the one a reviewer turned down", REFILED, "build: coded same"),
                row("coded, gates pass", "the same, a stronger agent is left", REFILED, "build: coded same")
                    .with(|p| p.ladder = vec!["cheap".into(), "cheap".into(), "strong".into()]),
                row("coded, gates pass", "a budget is spent", "", "build: coded")
                    .with(|p| p.budget = Budget { tokens: Some(250), ..Budget::default() }),
                row("coded, gate fails", "attempt < cap", "", "build: gate lint"),
                row("coded, gate fails", "attempt = cap, `escalate` or `accept`", "", "build: gate lint")
                    .capped(Accept),
                row("coded, gate fails", "attempt = cap, `reject`", "", "build: gate lint").capped(Reject),
                row("agent failed", "tries are left", "", "build: agent-failed crash"),
                row("agent failed", "it was the last try", "", "build: agent-failed crash").last_try(),
                row("needs input", "", "", "build: asks"),
                row("poisoned", "", "", "build: poison"),
                row("cancelled", "", "", "cancel"),
            ],
        },
        State {
            name: "coding",
            phases: "build",
            before: "",
            rows: vec![
                row("coded, gates pass", "the reviewer is a person", "", "build: coded")
                    .with(|p| p.reviewers = vec![Reviewer { is_person: true, ..Reviewer::from("ann") }]),
            ],
        },
        State {
            name: "reviewing",
            phases: TWO,
            before: "plan: coded; plan: approved 0.9; build: coded",
            rows: vec![
                row("approved", "conf > t, all other phases accepted", "", "build: approved 0.9"),
                row("needs_changes", "conf > t, attempt < cap", "", "build: needs_changes 0.9"),
                row(
                    "needs_changes",
                    "conf > t, the same required change again",
                    REFILED_AND_CODED,
                    "build: needs_changes 0.9 Fix a",
                ),
                row("needs_changes", "conf > t, attempt = cap, `escalate`", "", "build: needs_changes 0.9")
                    .capped(Escalate),
                row("needs_changes", "conf > t, attempt = cap, `accept`", "", "build: needs_changes 0.9")
                    .capped(Accept),
                row("needs_changes", "conf > t, attempt = cap, `reject`", "", "build: needs_changes 0.9")
                    .capped(Reject),
                row("reject", "conf > t", "", "build: reject 0.9"),
                row("escalate", "any conf", "", "build: escalate 0.0"),
                row(
                    "approved, needs_changes, reject, retry_predecessor",
                    "conf <= t, reviews are left",
                    "",
                    "build: reject 0.6",
                ),
                row(
                    "approved, needs_changes, reject, retry_predecessor",
                    "conf <= t, it was the last review",
                    "",
                    "build: reject 0.6",
                )
                .last_try(),
                row("retry, or review failed", "tries are left", "", "build: retry 0"),
                row("retry, or review failed", "it was the last try", "", "build: retry 0").last_try(),
                row(
                    "retry_predecessor",
                    "a direct predecessor, its budget is left",
                    "",
                    "build: retry_predecessor 0.9 phase:plan",
                ),
                row(
                    "retry_predecessor",
                    "any other phase, or no budget",
                    "",
                    "build: retry_predecessor 0.9 phase:ship",
                ),
                row("poisoned", "", "", "build: poison"),
                row("cancelled", "", "", "cancel"),
            ],
        },
        State {
            name: "reviewing",
            phases: "build, docs",
            before: "build: coded",
            rows: vec![row("approved", "conf > t, another phase is not accepted", "", "build: approved 0.9")],
        },
        State {
            name: "landing",
            phases: TWO,
            before: "plan: coded; plan: approved 0.9; build: coded; build: approved 0.9",
            rows: vec![
                row("landed", "", "", "build: landed"),
                row("pull request open", "", "", "build: opened"),
                row("pull request ended: merged", "", "", "build: ended merged"),
                row("pull request ended: closed by a person", "", "", "build: ended closed ann"),
                row("rebased", "the diff changed, tries are left", "", "build: rebased"),
                row("rebased", "the diff changed, it was the last try", "", "build: rebased").last_try(),
                row("landing rejected", "attempt < cap", "", "build: conflict"),
                row("landing rejected", "attempt = cap, whatever `on_exhausted`", "", "build: conflict").capped(Accept),
                row("landing failed", "tries are left", "", "build: land-failed network"),
                row("landing failed", "it was the last try", "", "build: land-failed network").last_try(),
                row("poisoned", "", "", "build: poison"),
                row("cancelled", "", "", "cancel"),
                row("cancelled", "a second time", "cancel", "cancel"),
                row("landed", "it was cancelled, too late", "cancel", "build: landed"),
                row("pull request ended: merged", "it was cancelled, too late", "cancel", "build: ended merged"),
                row("pull request ended: closed by a person", "it was cancelled", "cancel", "build: ended closed ann"),
                row("called off", "it was cancelled in time", "cancel", "build: called-off"),
                row("rebased", "it was cancelled", "cancel", "build: rebased"),
                row("landing rejected", "it was cancelled", "cancel", "build: conflict"),
                row("landing failed", "it was cancelled, tries are left", "cancel", "build: land-failed network"),
                row("landing failed", "it was cancelled, it was the last try", "cancel", "build: land-failed network")
                    .last_try(),
            ],
        },
        State {
            name: "proposed",
            phases: TWO,
            before: "plan: coded; plan: approved 0.9; build: coded; build: approved 0.9; build: opened",
            rows: vec![
                row("forge: merged", "", "", "build: forge merged"),
                row("forge: closed by a person", "", "", "build: forge closed ann"),
                row("forge: closed, nobody knows by whom", "", "", "build: forge closed"),
                row("forge: conflicts", "tries are left", "", "build: forge conflicts"),
                row("forge: conflicts", "it was the last try", "", "build: forge conflicts").last_try(),
                row("forge: base moved", "", "", "build: forge moved"),
                row("forge: not yet", "", "", "build: forge not-yet Checks run."),
                row("forge: changes requested", "attempt < cap", "", "build: forge changes new Name the port."),
                row(
                    "forge: changes requested",
                    "attempt = cap, `escalate` or `accept`",
                    "",
                    "build: forge changes new Name the port.",
                )
                .capped(Accept),
                row(
                    "forge: changes requested",
                    "attempt = cap, `reject`",
                    "",
                    "build: forge changes new Name the port.",
                )
                .capped(Reject),
                row("cancelled", "", "", "cancel"),
            ],
        },
        State {
            name: "landing",
            phases: "build",
            before: "coded; approved 0.9; opened; cancel",
            rows: vec![
                row("forge: merged", "it was cancelled, too late", "", "build: forge merged"),
                row("forge: closed by a person", "it was cancelled", "", "build: forge closed ann"),
            ],
        },
        State {
            name: "coding",
            phases: "build",
            before: "coded; approved 0.9; opened; forge changes r1 Name the port.",
            rows: vec![
                row("forge: merged", "the pull request shows an earlier attempt", "", "build: forge merged"),
                row("forge: closed by a person", "the same", "", "build: forge closed ann"),
            ],
        },
        State {
            name: "parked",
            phases: "build",
            before: "coded; escalate 1.0",
            rows: vec![
                row("person: approve", "the attempt left a change, and its run had ended", "", "build: person approve"),
                row("person: refile", "", "", "build: person refile Do it."),
                row("person: retry", "", "", "build: person retry"),
                row("person: reject", "", "", "build: person reject"),
                row("cancelled", "", "", "cancel"),
            ],
        },
        State {
            name: "accepted",
            phases: "plan, build, ship<build",
            before: "build: coded; build: approved 0.9; ship: coded",
            rows: vec![
                row("sent back by a successor", "", "", "ship: retry_predecessor 0.9 phase:build"),
                row("cancelled", "", "", "cancel"),
            ],
        },
        State {
            name: "rejected",
            phases: "plan, build",
            before: "build: coded; build: reject 0.9",
            rows: vec![row("cancelled", "", "", "cancel")],
        },
        State {
            name: "skipped",
            phases: "docs, plan, build<plan",
            before: "plan: coded; plan: reject 0.9",
            rows: vec![row("cancelled", "", "", "cancel")],
        },
    ]
}

const REFILED: &str = "build: coded; build: needs_changes 0.9 Fix a.";
const REFILED_AND_CODED: &str = "build: needs_changes 0.9 Fix a.; build: coded";

/// Where the phase stands, as a cell of the table.
fn phase_cell(task: &Task) -> String {
    let Some(phase) = task.phase("build") else { panic!("no phase `build`") };
    match task.open_escalation("build") {
        Some(escalation) => format!("parked: `{}`", escalation.reason),
        None if phase.waiting_pull_request().is_some() => "proposed".to_owned(),
        None => phase.state.to_string(),
    }
}

fn table() -> String {
    let mut text =
        String::from("| state | event | condition | phase | task | effects |\n| --- | --- | --- | --- | --- | --- |\n");
    let mut taken: BTreeSet<(&str, &str)> = BTreeSet::new();
    for state in states() {
        for row in &state.rows {
            let mut world = World::of(row.policy.clone(), workflow(state.phases));
            world.run(state.before);
            world.run(row.then);
            let before = phase_cell(&world.task);
            assert!(before.starts_with(state.name), "{} {}: the fixture is {before}", state.name, row.event);
            let done = world.must(row.step);
            let effects = effects("build", &done);
            // One table for every workflow: the labels of a fixture's own names say nothing.
            let effects: Vec<&str> = effects.split(", ").filter(|e| !e.starts_with("count task_attempts{")).collect();
            let effects = effects.join(", ").replace("count ", "+");
            let (event, condition, task) = (row.event, row.condition, done.task.state);
            let _ = writeln!(
                text,
                "| {} | {event} | {condition} | {} | {task} | {effects} |",
                state.name,
                phase_cell(&done.task)
            );
            taken.extend(event.split(", ").map(|event| (state.name, event)));
            taken.insert((state.name, event));
        }
    }
    for state in states() {
        // What has no row is refused, and changes nothing.
        for (event, step) in EVENTS.iter().filter(|(event, _)| !taken.contains(&(state.name, *event))) {
            let mut world = World::of(Policy::default(), workflow(state.phases));
            world.run(state.before);
            let event_value = world.event(step);
            assert!(world.apply(&event_value).is_err(), "{}: {event} has no row", state.name);
        }
    }
    text.push_str("| any | every other event | | unchanged | unchanged | refused |\n");
    text
}

#[test]
fn the_table_in_the_architecture_is_what_the_code_does() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ARCHITECTURE.md");
    let page = std::fs::read_to_string(&file).expect("ARCHITECTURE.md at the root");
    let (head, rest) = page.split_once(BEGIN).expect("the marker before the table");
    let (shown, tail) = rest.split_once(END).expect("the marker after the table");
    let made = format!("\n{}", table());
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&file, format!("{head}{BEGIN}{made}{END}{tail}")).expect("a writable ARCHITECTURE.md");
        return;
    }
    assert!(
        shown == made,
        "the table in ARCHITECTURE.md is not what the code does; \
         `UPDATE_DOCS=1 cargo test -p refile-core --test state_table` writes it anew:\n{made}"
    );
}
