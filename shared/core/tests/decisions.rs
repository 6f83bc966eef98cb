//! The table of decisions, row by row: both sides of each condition, with the values at the border.
//!
//! Each line of a test is one case: the steps that lead there, the step that is decided, and what must follow; see
//! `common` for the steps and for the words of what follows. `conf` passes above 0.6, the cap is 3 unless said.

mod common;

use common::{Table, World, effects};
use refile_core::Policy;
use refile_core::decide::What;
use refile_core::policy::{Budget, OnExhausted, Reviewer};

fn cap(max_attempts: u32, on_exhausted: OnExhausted) -> Policy {
    Policy { max_attempts, on_exhausted, ..Policy::default() }
}

fn reviewers() -> Policy {
    Policy { reviewers: vec!["strict".into(), "kind".into()], ..Policy::default() }
}

#[test]
fn a_change_that_passes_its_gates_is_reviewed() {
    let mut table = Table::new(Policy::default());
    table.case("", "coded", "reviewing #1, open: enqueue review #1");
    table.case("coded; needs_changes 0.9 Fix a.", "coded", "reviewing #2, open: enqueue review #2");
}

#[test]
fn a_failed_gate_refiles_without_a_model_and_is_never_accepted() {
    let mut table = Table::new(cap(3, OnExhausted::Escalate));
    table.case(
        "",
        "gate lint",
        "coding #2, open: count gate_failures_total{lint}, count refiles_total{gate}, enqueue code #2",
    );
    table.case(
        "",
        "gate empty_diff",
        "coding #2, open: count gate_failures_total{empty_diff}, count refiles_total{gate}, enqueue code #2",
    );
    table.case(
        "coded; needs_changes 0.9 Fix a.",
        "gate test",
        "coding #3, open: count gate_failures_total{test}, count refiles_total{gate}, enqueue code #3",
    );
    table.case(
        "coded; needs_changes 0.9 Fix a.; coded; needs_changes 0.9 Fix b.",
        "gate lint",
        "coding #3, parked, escalated: count gate_failures_total{lint}, count escalations_total{attempts_exhausted}",
    );
}

#[test]
fn a_failed_gate_at_the_cap_rejects_only_where_the_policy_says_so() {
    let mut table = Table::new(cap(1, OnExhausted::Reject));
    table.case("", "gate lint", "rejected #1, rejected: count gate_failures_total{lint}, count tasks_finished_total{rejected}, count task_attempts{change,change,rejected,1}");
}

#[test]
fn a_failed_gate_at_the_cap_is_not_accepted() {
    let mut table = Table::new(cap(1, OnExhausted::Accept));
    table.case(
        "",
        "gate lint",
        "coding #1, parked, escalated: count gate_failures_total{lint}, count escalations_total{attempts_exhausted}",
    );
    table.case("", "gate empty_diff", "coding #1, parked, escalated: count gate_failures_total{empty_diff}, count escalations_total{attempts_exhausted}");
}

#[test]
fn an_approval_counts_above_the_threshold_only() {
    let mut table = Table::new(Policy::default());
    table.case("coded", "approved 0.61", "landing #1, open: count reviews_total{default,approved}, enqueue land #1");
    table.case("coded", "approved 0.6", "reviewing #1, open: count reviews_total{default,approved}, enqueue review #1");
    table.case("coded", "approved 0.0", "reviewing #1, open: count reviews_total{default,approved}, enqueue review #1");
    table.case("coded", "approved 1.0", "landing #1, open: count reviews_total{default,approved}, enqueue land #1");
    table.case(
        "coded",
        "approved NaN",
        "reviewing #1, open: count review_failures_total{default,malformed}, enqueue review #1 in 2 s",
    );
    table.case(
        "coded",
        "approved 1.01",
        "reviewing #1, open: count review_failures_total{default,malformed}, enqueue review #1 in 2 s",
    );
    table.case(
        "coded",
        "approved 0.9 stale",
        "reviewing #1, open: count review_failures_total{default,malformed}, enqueue review #1 in 2 s",
    );
}

#[test]
fn an_approval_of_a_phase_with_successors_starts_the_next() {
    let mut table = Table::of(Policy::default(), "plan, build<plan, docs<plan");
    table.case(
        "plan: coded",
        "plan: approved 0.9",
        "accepted #1, open: count reviews_total{default,approved}, enqueue build/code #1, enqueue docs/code #1",
    );
    table.case(
        "plan: coded; plan: approved 0.9; build: coded",
        "build: approved 0.9",
        "accepted #1, open: count reviews_total{default,approved}",
    );
    table.case(
        "plan: coded; plan: approved 0.9; build: coded; build: approved 0.9; docs: coded",
        "docs: approved 0.9",
        "landing #1, open: count reviews_total{default,approved}, enqueue land #1",
    );
}

#[test]
fn needs_changes_refiles_below_the_cap() {
    let mut table = Table::new(Policy::default());
    table.case(
        "coded",
        "needs_changes 0.61",
        "coding #2, open: count reviews_total{default,needs_changes}, count refiles_total{review}, enqueue code #2",
    );
    table.case(
        "coded",
        "needs_changes 0.6",
        "reviewing #1, open: count reviews_total{default,needs_changes}, enqueue review #1",
    );
    table.case(
        "coded",
        "needs_changes 0.9 blank",
        "reviewing #1, open: count review_failures_total{default,malformed}, enqueue review #1 in 2 s",
    );
    table.case(
        "coded; needs_changes 0.9 Fix a.; coded",
        "needs_changes 0.9 Fix b.",
        "coding #3, open: count reviews_total{default,needs_changes}, count refiles_total{review}, enqueue code #3",
    );
    table.case("coded; needs_changes 0.9 Fix a.; coded; needs_changes 0.9 Fix b.; coded", "needs_changes 0.9 Fix c.", "reviewing #3, parked, escalated: count reviews_total{default,needs_changes}, count escalations_total{attempts_exhausted}");
    table.case(
        "coded; needs_changes 0.9 Fix a.; coded; needs_changes 0.9 Fix b.; coded",
        "needs_changes 0.6 Fix c.",
        "reviewing #3, open: count reviews_total{default,needs_changes}, enqueue review #3",
    );
}

#[test]
fn needs_changes_at_the_cap_may_be_accepted() {
    let mut table = Table::new(cap(2, OnExhausted::Accept));
    table.case(
        "coded",
        "needs_changes 0.9",
        "coding #2, open: count reviews_total{default,needs_changes}, count refiles_total{review}, enqueue code #2",
    );
    table.case(
        "coded; needs_changes 0.9 Fix a.; coded",
        "needs_changes 0.9 Fix b.",
        "landing #2, open: count reviews_total{default,needs_changes}, enqueue land #2",
    );
}

#[test]
fn needs_changes_at_the_cap_may_reject() {
    let mut table = Table::new(cap(2, OnExhausted::Reject));
    table.case(
        "coded",
        "needs_changes 0.9",
        "coding #2, open: count reviews_total{default,needs_changes}, count refiles_total{review}, enqueue code #2",
    );
    table.case("coded; needs_changes 0.9 Fix a.; coded", "needs_changes 0.9 Fix b.", "rejected #2, rejected: count reviews_total{default,needs_changes}, count tasks_finished_total{rejected}, count task_attempts{change,change,rejected,2}");
}

#[test]
fn low_confidence_asks_another_reviewer_and_at_last_a_person() {
    let mut table = Table::new(reviewers());
    table.case(
        "coded",
        "approved 0.6",
        "reviewing #1, open: count reviews_total{strict,approved}, enqueue review #1 (kind)",
    );
    table.case(
        "coded; approved 0.1",
        "needs_changes 0.6",
        "reviewing #1, open: count reviews_total{kind,needs_changes}, enqueue review #1 (strict)",
    );
    table.case(
        "coded; approved 0.1; needs_changes 0.2",
        "reject 0.3",
        "reviewing #1, parked, escalated: count reviews_total{strict,reject}, count escalations_total{low_confidence}",
    );
    table.case("coded; approved 0.1; needs_changes 0.2", "reject 0.7", "rejected #1, rejected: count reviews_total{strict,reject}, count tasks_finished_total{rejected}, count task_attempts{change,change,rejected,1}");
    table.case("coded; approved 0.1; needs_changes 0.2", "retry_predecessor 0.3 phase:x", "reviewing #1, parked, escalated: count reviews_total{strict,retry_predecessor}, count escalations_total{low_confidence}");
    table.case(
        "coded; approved 0.1; needs_changes 0.2",
        "approved 0.7",
        "landing #1, open: count reviews_total{strict,approved}, enqueue land #1",
    );
}

#[test]
fn a_review_that_fails_is_asked_for_again_with_backoff() {
    let mut table = Table::new(Policy::default());
    table.case(
        "coded",
        "retry 0.0",
        "reviewing #1, open: count review_failures_total{default,malformed}, enqueue review #1 in 2 s",
    );
    table.case(
        "coded",
        "retry 0.9",
        "reviewing #1, open: count review_failures_total{default,malformed}, enqueue review #1 in 2 s",
    );
    table.case(
        "coded",
        "review-failed timeout",
        "reviewing #1, open: count review_failures_total{default,timeout}, enqueue review #1 in 2 s",
    );
    table.case(
        "coded",
        "review-failed rate_limit",
        "reviewing #1, open: count review_failures_total{default,rate_limit}, enqueue review #1 in 2 s",
    );
    table.case(
        "coded; retry 0; retry 0",
        "retry 0",
        "reviewing #1, open: count review_failures_total{default,malformed}, enqueue review #1 in 8 s",
    );
    table.case(
        "coded; retry 0; retry 0; retry 0",
        "review-failed malformed",
        "reviewing #1, open: count review_failures_total{default,malformed}, enqueue review #1 in 16 s",
    );
    table.case("coded; retry 0; retry 0; retry 0; retry 0", "review-failed auth", "reviewing #1, parked, escalated: count review_failures_total{default,auth}, count escalations_total{reviewer_unavailable}");
    table.case(
        "coded; retry 0; retry 0; retry 0; retry 0",
        "approved 0.9",
        "landing #1, open: count reviews_total{default,approved}, enqueue land #1",
    );
    table.case("coded; retry 0; retry 0; retry 0; retry 0; approved 0.1", "retry 0", "reviewing #1, parked, escalated: count review_failures_total{default,malformed}, count escalations_total{reviewer_unavailable}");
}

#[test]
fn each_reviewer_has_a_threshold_of_its_own() {
    let sure = |name: &str, t| Reviewer { confidence: Some(t), ..name.into() };
    let policy = Policy { reviewers: vec![sure("strict", 0.9), sure("kind", 0.2)], ..Policy::default() };
    let mut table = Table::new(policy);
    let to_kind = "reviewing #1, open: count reviews_total{strict,approved}, enqueue review #1 (kind)";
    table.case("coded", "approved 0.9", to_kind);
    table.case(
        "coded; approved 0.9",
        "approved 0.21",
        "landing #1, open: count reviews_total{kind,approved}, enqueue land #1",
    );
}

#[test]
fn a_person_as_the_reviewer_is_an_escalation() {
    let ann = || Reviewer { is_person: true, ..Reviewer::from("ann") };
    let mut table = Table::new(Policy { reviewers: vec![ann()], ..Policy::default() });
    table.case("", "coded", "reviewing #1, parked, escalated: count escalations_total{human_review}");
    table.case(
        "coded",
        "person approve",
        "landing #1, open: count escalation_decisions_total{approve}, enqueue land #1",
    );
    table.case(
        "coded",
        "person refile Add a test.",
        "coding #2, open: count escalation_decisions_total{refile}, count refiles_total{person}, enqueue code #2",
    );
    table.case("coded", "person retry", "reviewing #1, parked, escalated: count escalation_decisions_total{retry}, count escalations_total{human_review}");
    let mut table = Table::new(Policy { reviewers: vec!["judge".into(), ann()], ..Policy::default() });
    table.case(
        "coded",
        "approved 0.6",
        "reviewing #1, parked, escalated: count reviews_total{judge,approved}, count escalations_total{human_review}",
    );
}

#[test]
fn a_change_goes_past_a_reviewer_of_the_coders_model() {
    let judge = Reviewer { not_for: vec!["m-1".into()], ..Reviewer::from("judge") };
    let models = [("cheap".to_owned(), "m-1".to_owned()), ("strong".to_owned(), "m-2".to_owned())];
    let policy = Policy {
        ladder: vec!["cheap".into(), "strong".into()],
        models: models.into(),
        reviewers: vec![judge, "other".into()],
        ..Policy::default()
    };
    let mut table = Table::new(policy.clone());
    table.case("", "coded", "reviewing #1, open: enqueue review #1 (other)");
    table.case(
        "coded",
        "approved 0.1",
        "reviewing #1, open: count reviews_total{other,approved}, enqueue review #1 (other)",
    );
    table.case("coded; needs_changes 0.9", "coded", "reviewing #2, open: enqueue review #2 (judge)");
    drop(table);
    // Where there is no other, the review goes on and the event log says so.
    let alone = Policy { reviewers: policy.reviewers[..1].to_vec(), ..policy };
    let mut world = World::new(alone);
    let done = world.must("coded");
    assert_eq!(effects("change", &done), "enqueue review #1 (judge)");
    let said = done.notices().find(|n| n.what == What::SameModel).map(|n| n.detail.clone());
    assert_eq!(said.as_deref(), Some("judge judges what its own model made: there is no other reviewer for cheap"));
}

#[test]
fn a_reviewer_may_ask_for_a_person_however_unsure() {
    let mut table = Table::new(Policy::default());
    table.case("coded", "escalate 0.0", "reviewing #1, parked, escalated: count reviews_total{default,escalate}, count escalations_total{reviewer_asked}");
    table.case("coded", "escalate 1.0", "reviewing #1, parked, escalated: count reviews_total{default,escalate}, count escalations_total{reviewer_asked}");
    table.case("coded", "escalate 0.6", "reviewing #1, parked, escalated: count reviews_total{default,escalate}, count escalations_total{reviewer_asked}");
}

#[test]
fn a_rejection_ends_the_phase_and_skips_those_after_it() {
    let mut table = Table::of(Policy::default(), "plan, build<plan, ship<build, docs");
    table.case("plan: coded", "plan: reject 0.61", "rejected #1, open: count reviews_total{default,reject}");
    table.case(
        "plan: coded",
        "plan: reject 0.6",
        "reviewing #1, open: count reviews_total{default,reject}, enqueue review #1",
    );
    table.case("docs: coded; docs: approved 0.9; plan: coded", "plan: reject 0.9", "rejected #1, rejected: count reviews_total{default,reject}, count tasks_finished_total{rejected}, count task_attempts{custom,plan,rejected,1}, count task_attempts{custom,docs,rejected,1}");
    table.case("plan: coded; plan: reject 0.9; docs: coded", "docs: approved 0.9", "accepted #1, rejected: count reviews_total{default,approved}, count tasks_finished_total{rejected}, count task_attempts{custom,plan,rejected,1}, count task_attempts{custom,docs,rejected,1}");
}

#[test]
fn a_predecessor_is_sent_back_while_its_budget_lasts() {
    let mut table =
        Table::of(Policy { max_predecessor_retries: 1, ..Policy::default() }, "plan, build<plan, ship<build");
    table.case("plan: coded; plan: approved 0.9; build: coded", "build: retry_predecessor 0.61 phase:plan", "waiting #1, open: count reviews_total{default,retry_predecessor}, count refiles_total{successor}, enqueue plan/code #2");
    table.case(
        "plan: coded; plan: approved 0.9; build: coded",
        "build: retry_predecessor 0.6 phase:plan",
        "reviewing #1, open: count reviews_total{default,retry_predecessor}, enqueue review #1",
    );
    table.case(
        "plan: coded; plan: approved 0.9; build: coded",
        "build: retry_predecessor 0.9 phase:ship",
        "reviewing #1, open: count review_failures_total{default,malformed}, enqueue review #1 in 2 s",
    );
    table.case(
        "plan: coded; plan: approved 0.9; build: coded",
        "build: retry_predecessor 0.9",
        "reviewing #1, open: count review_failures_total{default,malformed}, enqueue review #1 in 2 s",
    );
    table.case(
        "plan: coded; plan: approved 0.9; build: coded; build: approved 0.9; ship: coded",
        "ship: retry_predecessor 0.9 phase:plan",
        "reviewing #1, open: count review_failures_total{default,malformed}, enqueue review #1 in 2 s",
    );
    table.case(
        "plan: coded; plan: approved 0.9; build: coded; build: retry_predecessor 0.9 phase:plan",
        "plan: coded",
        "reviewing #2, open: enqueue review #2",
    );
    table.case(
        "plan: coded; plan: approved 0.9; build: coded; build: retry_predecessor 0.9 phase:plan; plan: coded",
        "plan: approved 0.9",
        "accepted #2, open: count reviews_total{default,approved}, enqueue build/code #1",
    );
    table.case("plan: coded; plan: approved 0.9; build: coded; build: retry_predecessor 0.9 phase:plan; plan: coded; plan: approved 0.9; build: coded", "build: retry_predecessor 0.9 phase:plan", "reviewing #1, open: count review_failures_total{default,malformed}, enqueue review #1 in 2 s");
}

#[test]
fn a_predecessor_that_is_being_redone_is_not_sent_back_again() {
    let mut table = Table::of(Policy::default(), "plan, build<plan, docs<plan");
    table.case(
        "plan: coded; plan: approved 0.9; docs: coded; build: coded; build: retry_predecessor 0.9 phase:plan",
        "docs: retry_predecessor 0.9 phase:plan",
        "reviewing #1, open: count review_failures_total{default,malformed}, enqueue review #1 in 2 s",
    );
}

#[test]
fn an_agent_that_fails_is_run_again_and_nobody_is_charged() {
    let mut table = Table::new(Policy::default());
    table.case(
        "",
        "agent-failed crash",
        "coding #1, open: count agent_failures_total{default,crash}, enqueue code #1 in 2 s",
    );
    table.case(
        "agent-failed; agent-failed; agent-failed",
        "agent-failed timeout",
        "coding #1, open: count agent_failures_total{default,timeout}, enqueue code #1 in 16 s",
    );
    table.case("agent-failed; agent-failed; agent-failed; agent-failed", "agent-failed timeout", "coding #1, parked, escalated: count agent_failures_total{default,timeout}, count escalations_total{coder_unavailable}");
    table.case(
        "agent-failed; agent-failed; agent-failed; agent-failed",
        "coded",
        "reviewing #1, open: enqueue review #1",
    );
    table.case(
        "agent-failed; agent-failed; agent-failed; agent-failed; gate lint",
        "agent-failed timeout",
        "coding #2, open: count agent_failures_total{default,timeout}, enqueue code #2 in 2 s",
    );
}

#[test]
fn an_agent_that_asks_is_heard_by_a_person() {
    let mut table = Table::new(Policy::default());
    table.case("", "asks", "coding #1, parked, escalated: count escalations_total{needs_input}");
    table.case(
        "coded; needs_changes 0.9 Fix a.",
        "asks",
        "coding #2, parked, escalated: count escalations_total{needs_input}",
    );
}

#[test]
fn the_same_demand_again_goes_to_a_person() {
    let mut table = Table::new(Policy::default());
    table.case("coded; needs_changes 0.9 Fix a.; coded", "needs_changes 0.9 fix  A!", "reviewing #2, parked, escalated: count reviews_total{default,needs_changes}, count repeated_rejections_total, count escalations_total{repeated_rejection}");
    table.case(
        "coded; needs_changes 0.9 Fix a.; coded",
        "needs_changes 0.9 Fix b.",
        "coding #3, open: count reviews_total{default,needs_changes}, count refiles_total{review}, enqueue code #3",
    );
    table.case(
        "coded; needs_changes 0.9 Fix a.",
        "coded same",
        "coding #2, parked, escalated: count repeated_rejections_total, count escalations_total{repeated_rejection}",
    );
    table.case(
        "gate lint",
        "gate lint",
        "coding #3, open: count gate_failures_total{lint}, count refiles_total{gate}, enqueue code #3",
    );
    table.case("gate lint", "gate lint same", "coding #2, parked, escalated: count gate_failures_total{lint}, count repeated_rejections_total, count escalations_total{repeated_rejection}");
    table.case("gate lint", "coded same", "reviewing #2, open: enqueue review #2");
    table.case(
        "gate empty_diff",
        "gate empty_diff",
        "coding #3, open: count gate_failures_total{empty_diff}, count refiles_total{gate}, enqueue code #3",
    );
    table.case("coded; needs_changes 0.9 Fix a.; coded; needs_changes 0.9 Fix b.; coded", "needs_changes 0.9 Fix b.", "reviewing #3, parked, escalated: count reviews_total{default,needs_changes}, count repeated_rejections_total, count escalations_total{attempts_exhausted}");
}

#[test]
fn the_same_demand_again_goes_to_the_next_agent_on_the_ladder() {
    let mut table = Table::new(Policy {
        ladder: vec!["cheap".into(), "cheap".into(), "strong".into()],
        max_attempts: 5,
        ..Policy::default()
    });
    table.case("coded; needs_changes 0.9 Fix a.; coded", "needs_changes 0.9 Fix a.", "coding #3, open: count reviews_total{default,needs_changes}, count repeated_rejections_total, count refiles_total{review}, enqueue code #3 (strong)");
    table.case(
        "coded; needs_changes 0.9 Fix a.",
        "coded same",
        "coding #3, open: count repeated_rejections_total, count refiles_total{review}, enqueue code #3 (strong)",
    );
    table.case("coded; needs_changes 0.9 Fix a.; coded; needs_changes 0.9 Fix b.; coded", "needs_changes 0.9 Fix b.", "reviewing #3, parked, escalated: count reviews_total{default,needs_changes}, count repeated_rejections_total, count escalations_total{repeated_rejection}");
}

#[test]
fn a_stronger_agent_is_gone_to_over_all_rungs_of_the_same_and_kept() {
    const PARKED: &str = "parked, escalated: count reviews_total{default,needs_changes}, count repeated_rejections_total, count escalations_total{repeated_rejection}";
    let ladder = |names: &str| {
        let ladder = names.split(' ').map(str::to_owned).collect();
        Table::new(Policy { ladder, max_attempts: 9, ..Policy::default() })
    };
    let again = |step: &str, number: u32, agent: &str| {
        let reviews = if step.starts_with("coded") { "" } else { "count reviews_total{default,needs_changes}, " };
        format!(
            "coding #{number}, open: {reviews}count repeated_rejections_total, count refiles_total{{review}}, enqueue code #{number} ({agent})"
        )
    };
    let refiled = |number: u32, agent: &str| {
        format!(
            "coding #{number}, open: count reviews_total{{default,needs_changes}}, count refiles_total{{review}}, enqueue code #{number} ({agent})"
        )
    };
    let (twice, other) = ("coded; needs_changes 0.9 Fix a.; coded", "needs_changes 0.9 Fix b.");
    let same = "needs_changes 0.9 Fix a.";
    let mut table = ladder("cheap cheap cheap strong");
    table.case(twice, other, &refiled(3, "cheap"));
    table.case(twice, same, &again(same, 3, "strong"));
    table.case("coded; needs_changes 0.9 Fix a.", "coded same", &again("coded same", 3, "strong"));
    let strong = format!("{twice}; {same}; coded");
    table.case(&strong, other, &refiled(4, "strong"));
    table.case(&format!("{strong}; {other}; coded"), "needs_changes 0.9 Fix c.", &refiled(5, "strong"));
    table.case(&strong, same, &format!("reviewing #3, {PARKED}"));
    // The next one in between is not left out.
    let mut table = ladder("cheap cheap cheap fair fair strong");
    table.case(&strong, other, &refiled(4, "fair"));
    table.case(&strong, same, &again(same, 4, "strong"));
    table.case(&format!("{strong}; {other}; coded"), "needs_changes 0.9 Fix c.", &refiled(5, "strong"));
    // Nobody else is left.
    let mut table = ladder("cheap cheap cheap");
    table.case(twice, same, &format!("reviewing #2, {PARKED}"));
    // It is gone to also where a budget was spent in between, and a person said to go on.
    let budget = Budget { tokens: Some(350), ..Budget::default() };
    let ladder = ["cheap", "cheap", "cheap", "strong"].map(str::to_owned).into();
    let mut table = Table::new(Policy { ladder, budget, max_attempts: 9, ..Policy::default() });
    table.case(twice, same, "reviewing #2, parked, escalated: count reviews_total{default,needs_changes}, count repeated_rejections_total, count refiles_total{review}, count escalations_total{budget_exhausted}");
    table.case(
        &format!("{twice}; {same}"),
        "person retry",
        "coding #3, open: count escalation_decisions_total{retry}, enqueue code #3 (strong)",
    );
}

#[test]
fn a_job_delivered_too_often_is_poison() {
    let mut table = Table::of(Policy::default(), "plan, build<plan");
    table.case("", "plan: poison", "coding #1, parked, escalated: count escalations_total{poison_job}");
    table.case("plan: coded", "plan: poison", "reviewing #1, parked, escalated: count escalations_total{poison_job}");
    table.case("", "build: poison", "refused: stale");
}

#[test]
fn a_landing_that_fails_is_tried_again_and_a_base_that_moved_is_reviewed_again() {
    let mut table = Table::new(Policy::default());
    table.case(
        "coded; approved 0.9",
        "landed",
        "accepted #1, merged: count tasks_finished_total{merged}, count task_attempts{change,change,merged,1}",
    );
    table.case("coded; approved 0.9", "rebased", "reviewing #1, open: enqueue review #1");
    table.case(
        "coded; approved 0.9",
        "conflict",
        "coding #2, open: count gate_failures_total{merge_conflict}, count refiles_total{landing}, enqueue code #2",
    );
    table.case("coded; needs_changes 0.9 Fix a.; coded; needs_changes 0.9 Fix b.; coded; approved 0.9", "conflict", "landing #3, parked, escalated: count gate_failures_total{merge_conflict}, count escalations_total{attempts_exhausted}");
    table.case("coded; approved 0.9", "land-failed network", "landing #1, open: enqueue land #1 in 2 s");
    table.case(
        "coded; approved 0.9; land-failed; land-failed; land-failed",
        "land-failed",
        "landing #1, open: enqueue land #1 in 16 s",
    );
    table.case(
        "coded; approved 0.9; land-failed; land-failed; land-failed; land-failed",
        "land-failed",
        "landing #1, parked, escalated: count escalations_total{landing_failed}",
    );
    table.case(
        "coded; approved 0.9; land-failed; land-failed; land-failed; land-failed",
        "rebased",
        "landing #1, parked, escalated: count escalations_total{landing_failed}",
    );
    table.case(
        "coded; approved 0.9; land-failed; land-failed; land-failed; land-failed; rebased",
        "person retry",
        "reviewing #1, open: count escalation_decisions_total{retry}, enqueue review #1",
    );
    table.case(
        "coded; approved 0.9; land-failed; land-failed; land-failed; land-failed; land-failed",
        "person retry",
        "landing #1, open: count escalation_decisions_total{retry}, enqueue land #1",
    );
    table.case(
        "coded; approved 0.9; rebased",
        "approved 0.9 stale",
        "reviewing #1, open: count review_failures_total{default,malformed}, enqueue review #1 in 2 s",
    );
    table.case(
        "coded; approved 0.9; rebased",
        "approved 0.9",
        "landing #1, open: count reviews_total{default,approved}, enqueue land #1",
    );
}

#[test]
fn a_landing_rejected_at_the_cap_waits_for_a_person_whatever_the_policy() {
    let mut table = Table::new(cap(1, OnExhausted::Accept));
    table.case("coded; approved 0.9", "conflict", "landing #1, parked, escalated: count gate_failures_total{merge_conflict}, count escalations_total{attempts_exhausted}");
}
