//! The table of decisions, the rows that people and budgets have a part in; see `decisions.rs`.

mod common;

use common::{Table, World};
use refile_core::decide::possible;
use refile_core::policy::{Budget, OnExhausted};
use refile_core::prompt::{Carry, prompt};
use refile_core::{Event, Outcome, Policy, TaskState, Timestamp};

fn cap(max_attempts: u32, on_exhausted: OnExhausted) -> Policy {
    Policy { max_attempts, on_exhausted, ..Policy::default() }
}

#[test]
fn a_spent_budget_waits_for_a_person() {
    let mut table =
        Table::new(Policy { budget: Budget { tokens: Some(100), ..Budget::default() }, ..Policy::default() });
    table.case("", "coded", "reviewing #1, open: enqueue review #1");
    table.case("coded", "needs_changes 0.9", "reviewing #1, parked, escalated: count reviews_total{default,needs_changes}, count refiles_total{review}, count escalations_total{budget_exhausted}");
    table.case("coded", "approved 0.9", "landing #1, open: count reviews_total{default,approved}, enqueue land #1");
    table.case("coded", "approved 0.6", "reviewing #1, parked, escalated: count reviews_total{default,approved}, count escalations_total{budget_exhausted}");
    table.case("coded", "retry 0", "reviewing #1, parked, escalated: count review_failures_total{default,malformed}, count escalations_total{budget_exhausted}");
    table.case(
        "coded; needs_changes 0.9",
        "person retry",
        "coding #2, open: count escalation_decisions_total{retry}, enqueue code #2",
    );
    table.case(
        "coded; retry 0",
        "person retry",
        "reviewing #1, open: count escalation_decisions_total{retry}, enqueue review #1",
    );
}

#[test]
fn each_of_the_budgets_stops_a_task() {
    // An attempt of the table uses up 100 tokens, 10 millionths of a dollar and a second.
    let none = Budget::default();
    for (budget, is_spent) in [
        (none, false),
        (Budget { tokens: Some(100), ..none }, false),
        (Budget { tokens: Some(99), ..none }, true),
        (Budget { cost_micros: Some(10), ..none }, false),
        (Budget { cost_micros: Some(9), ..none }, true),
        (Budget { wall_ms: Some(1_000), ..none }, false),
        (Budget { wall_ms: Some(999), ..none }, true),
    ] {
        let mut table = Table::new(Policy { budget, ..Policy::default() });
        let expected = if is_spent {
            "coding #1, parked, escalated: count escalations_total{budget_exhausted}"
        } else {
            "reviewing #1, open: enqueue review #1"
        };
        table.case("", "coded", expected);
    }
}

#[test]
fn a_spent_budget_parks_a_phase_before_it_begins() {
    let mut table = Table::of(
        Policy { budget: Budget { tokens: Some(100), ..Budget::default() }, ..Policy::default() },
        "plan, build<plan, ship<build",
    );
    table.case(
        "plan: coded",
        "plan: approved 0.9",
        "accepted #1, escalated: count reviews_total{default,approved}, count escalations_total{budget_exhausted}",
    );
    table.case(
        "plan: coded; plan: approved 0.9",
        "build: person retry",
        "coding #1, open: count escalation_decisions_total{retry}, enqueue code #1",
    );
    table.case("plan: coded; plan: approved 0.9", "build: person reject", "rejected #0, rejected: count escalation_decisions_total{reject}, count tasks_finished_total{rejected}, count task_attempts{custom,plan,rejected,1}");
    table.case("plan: coded; plan: approved 0.9", "build: person refile Do it.", "refused: not allowed");
    table.case("plan: coded; plan: approved 0.9", "build: person approve", "refused: not allowed");
}

#[test]
fn a_phase_that_was_sent_back_and_parked_begins_again_from_attempt_1() {
    let budget = Budget { tokens: Some(500), ..Budget::default() };
    let mut table = Table::of(Policy { budget, ..Policy::default() }, "plan, build<plan");
    table.case("plan: coded; plan: approved 0.9; build: coded; build: retry_predecessor 0.9 phase:plan; plan: coded; plan: approved 0.9", "build: person retry", "coding #1, open: count escalation_decisions_total{retry}, enqueue code #1");
    table.case("plan: coded; plan: approved 0.9; build: coded; build: retry_predecessor 0.9 phase:plan; plan: coded; plan: approved 0.9", "build: person approve", "refused: not allowed");
}

#[test]
fn a_predecessor_that_is_sent_back_with_a_spent_budget_is_parked_and_no_longer_accepted() {
    let budget = Budget { tokens: Some(350), ..Budget::default() };
    let mut table = Table::of(Policy { budget, ..Policy::default() }, "plan, build<plan");
    let before = "plan: coded; plan: approved 0.9; build: coded; build: retry_predecessor 0.9 phase:plan";
    table.case(
        before,
        "plan: person retry",
        "coding #2, open: count escalation_decisions_total{retry}, enqueue code #2",
    );
    table.case(
        before,
        "plan: person reject",
        "rejected #1, rejected: count escalation_decisions_total{reject}, count tasks_finished_total{rejected}, \
         count task_attempts{custom,plan,rejected,1}, count task_attempts{custom,build,rejected,1}",
    );
}

#[test]
fn a_persons_words_lead_and_do_not_overwrite_why_the_attempt_was_rejected() {
    let mut world = World::new(cap(1, OnExhausted::Escalate));
    world.run("coded; needs_changes 0.9 Fix a.; person refile Do b.");
    let phase = &world.task.phases[0];
    let demand = |attempt: usize| phase.attempts[attempt].rejection.as_ref().map(|r| r.required_change.as_str());
    assert_eq!((demand(0), demand(1)), (Some("Fix a."), None));
    assert_eq!(phase.leading_rejection().map(|r| r.required_change.as_str()), Some("Do b."));
    let text = prompt(&world.task, phase, Carry::default());
    assert!(text.starts_with("## ATTEMPT #2 — previous attempt rejected\n\n**Required change**: Do b.\n"), "{text}");
}

#[test]
fn a_person_decides() {
    let mut table = Table::new(cap(1, OnExhausted::Escalate));
    table.case(
        "coded; needs_changes 0.9 Fix a.",
        "person approve",
        "landing #1, open: count escalation_decisions_total{approve}, count reviewer_labels_total{default,0.9,wrong}, enqueue land #1",
    );
    table.case(
        "coded; needs_changes 0.9 Fix a.",
        "person refile Do b.",
        "coding #2, open: count escalation_decisions_total{refile}, count reviewer_labels_total{default,0.9,right}, count refiles_total{person}, enqueue code #2",
    );
    table.case("coded; needs_changes 0.9 Fix a.", "person refile 0x Do b.", "refused: not allowed");
    table.case("coded; needs_changes 0.9 Fix a.", "person refile", "refused: not allowed");
    table.case(
        "coded; needs_changes 0.9 Fix a.",
        "person retry",
        "reviewing #1, open: count escalation_decisions_total{retry}, enqueue review #1",
    );
    table.case("coded; needs_changes 0.9 Fix a.", "person reject", "rejected #1, rejected: count escalation_decisions_total{reject}, count reviewer_labels_total{default,0.9,right}, count tasks_finished_total{rejected}, count task_attempts{change,change,rejected,1}");
    table.case(
        "coded; needs_changes 0.9 Fix a.; person refile 2x Do b.; coded",
        "needs_changes 0.9 Fix c.",
        "coding #3, open: count reviews_total{default,needs_changes}, count refiles_total{review}, enqueue code #3",
    );
    table.case("coded; needs_changes 0.9 Fix a.; person refile Do b.; coded", "needs_changes 0.9 Fix c.", "reviewing #2, parked, escalated: count reviews_total{default,needs_changes}, count escalations_total{attempts_exhausted}");
    table.case("coded; needs_changes 0.9 Fix a.; person reject", "person approve", "refused: not allowed");
    table.case("coded; needs_changes 0.9 Fix a.; person retry", "person retry", "refused: not allowed");
    table.case(
        "gate lint",
        "person approve",
        "landing #1, open: count escalation_decisions_total{approve}, enqueue land #1",
    );
    table.case("gate empty_diff", "person approve", "refused: not allowed");
    table.case(
        "gate lint",
        "person retry",
        "coding #2, open: count escalation_decisions_total{retry}, enqueue code #2",
    );
    table.case("asks", "person approve", "refused: not allowed");
    table.case("asks", "person retry", "coding #1, open: count escalation_decisions_total{retry}, enqueue code #1");
    table.case(
        "asks",
        "person refile Use port 80.",
        "coding #2, open: count escalation_decisions_total{refile}, count refiles_total{person}, enqueue code #2",
    );
    table.case("poison", "person retry", "coding #1, open: count escalation_decisions_total{retry}, enqueue code #1");
    table.case("", "person approve", "refused: not allowed");
    table.case("cancel", "person approve", "refused: not allowed");
}

#[test]
fn a_cancelled_task_drops_its_jobs() {
    let mut table = Table::of(Policy::default(), "plan, docs, build<plan");
    table.case("", "cancel", "skipped #1, cancelled: drop job, drop docs/job, count tasks_finished_total{cancelled}, count task_attempts{custom,plan,cancelled,1}, count task_attempts{custom,docs,cancelled,1}");
    table.case("plan: coded; plan: approved 0.9; docs: coded", "cancel", "skipped #1, cancelled: drop job, drop build/job, count tasks_finished_total{cancelled}, count task_attempts{custom,plan,cancelled,1}, count task_attempts{custom,docs,cancelled,1}, count task_attempts{custom,build,cancelled,1}");
    table.case("cancel", "cancel", "refused: not allowed");
    table.case("cancel", "plan: coded", "refused: stale");
    table.case("plan: poison", "cancel", "skipped #1, cancelled: drop job, count tasks_finished_total{cancelled}, count task_attempts{custom,plan,cancelled,1}, count task_attempts{custom,docs,cancelled,1}");
}

#[test]
fn what_is_called_off_while_it_lands_is_looked_for_on_the_base() {
    let mut table = Table::new(Policy::default());
    let over = "count tasks_finished_total{cancelled}, count task_attempts{change,change,cancelled,1}";
    let landing = "coded; approved 0.9";
    table.case(landing, "cancel", "landing #1, open: enqueue land #1");
    table.case(landing, "called-off", "refused: stale");
    let called_off = "coded; approved 0.9; cancel";
    table.case(called_off, "cancel", &format!("skipped #1, cancelled: drop job, {over}"));
    table.case(called_off, "called-off", &format!("skipped #1, cancelled: {over}"));
    table.case(called_off, "conflict", &format!("skipped #1, cancelled: {over}"));
    table.case(called_off, "rebased", &format!("skipped #1, cancelled: {over}"));
    table.case(called_off, "land-failed network", "landing #1, open: enqueue land #1 in 2 s");
    table.case(
        called_off,
        "landed",
        "accepted #1, merged: count tasks_finished_total{merged}, count task_attempts{change,change,merged,1}",
    );
    // A person who is asked since nobody comes back with an answer may still want it landed.
    table.case(
        "coded; approved 0.9; cancel; poison",
        "person approve",
        "landing #1, open: count escalation_decisions_total{approve}, enqueue land #1",
    );
    table.case(
        "coded; approved 0.9; cancel; poison; person approve",
        "conflict",
        "coding #2, open: count gate_failures_total{merge_conflict}, count refiles_total{landing}, enqueue code #2",
    );
}

#[test]
fn what_comes_late_is_refused() {
    let mut table = Table::new(Policy::default());
    table.case("", "approved 0.9", "refused: stale");
    table.case("", "landed", "refused: stale");
    table.case("coded", "coded", "refused: stale");
    table.case("coded", "agent-failed", "refused: stale");
    table.case("coded; approved 0.9", "approved 0.9", "refused: stale");
    table.case("coded; approved 0.9; landed", "landed", "refused: stale");
    table.case("coded; approved 0.9; landed", "cancel", "refused: not allowed");
    table.case("asks", "coded", "refused: stale");
    table.case("poison", "poison", "refused: stale");
}

#[test]
fn what_no_gate_could_run_on_is_kept_and_who_approves_it_overrides_the_gates() {
    let mut world = World::new(Policy { max_infra_failures: 2, ..Policy::default() });
    world.run("no-gate configuration");
    let left = world.task.phases[0].attempts[0].change.clone();
    assert!(left.is_some());
    // A failure of another kind does not take it away, and nobody is charged.
    world.run("agent-failed crash");
    let phase = &world.task.phases[0];
    assert_eq!((phase.attempts.len(), &phase.attempts[0].change, phase.attempts[0].outcome), (1, &left, None));
    assert_eq!(world.task.state, TaskState::Escalated);
    for (decision, overrides) in [("person approve", Some(true)), ("person retry", None)] {
        let mut world = world.clone();
        world.run(decision);
        let phase = &world.task.phases[0];
        assert_eq!(phase.approval.as_ref().map(|approval| approval.overrides_gates), overrides, "{decision}");
        assert_eq!(phase.attempts[0].change, left, "{decision}");
    }
}

#[test]
fn what_a_run_left_that_had_not_ended_is_gone_on_from_and_not_approved() {
    let policy = Policy { max_infra_failures: 1, ..cap(1, OnExhausted::Escalate) };
    let mut table = Table::new(policy.clone());
    table.case("broken-off crash", "person approve", "refused: not allowed");
    table.case(
        "broken-off crash",
        "person retry",
        "coding #1, open: count escalation_decisions_total{retry}, enqueue code #1",
    );
    table.case(
        "broken-off crash; person retry; gate lint",
        "person approve",
        "landing #1, open: count escalation_decisions_total{approve}, enqueue land #1",
    );
    let mut world = World::new(policy);
    world.run("broken-off crash");
    let escalation = world.task.escalations[0].id.clone();
    let offered = possible(&world.task, &escalation, &world.policy, Timestamp(9_000));
    assert_eq!(offered, ["refile", "retry", "reject"]);
    let approve = world.event("person approve");
    let refusal = world.apply(&approve).unwrap_err().to_string();
    assert!(refusal.contains("had not ended") && refusal.contains("`retry`"), "{refusal}");
}

#[test]
fn a_spent_budget_says_no_cost_that_nobody_knows() {
    for (tokens, cost_micros, cost_unknown, says) in [
        (60, 10, false, "100 tokens, 0.000010 USD, 1 s of work"),
        (60, 0, false, "100 tokens, 0.000000 USD, 1 s of work"),
        (60, 10, true, "100 tokens, at least 0.000010 USD, 1 s of work"),
        (60, 0, true, "100 tokens, cost unknown, 1 s of work"),
        (0, 0, true, "tokens and cost unknown, 1 s of work"),
    ] {
        let budget = Budget { wall_ms: Some(999), ..Budget::default() };
        let mut world = World::new(Policy { budget, ..Policy::default() });
        let mut event = world.event("coded");
        let Event::Outcome { outcome: Outcome::Coded { usage, .. }, .. } = &mut event else { panic!("{event:?}") };
        (usage.cost_micros, usage.cost_unknown) = (cost_micros, cost_unknown);
        (usage.input_tokens, usage.output_tokens) = (tokens, if tokens > 0 { 40 } else { 0 });
        world.apply(&event).unwrap();
        assert_eq!(world.task.escalations[0].detail, says);
    }
}
