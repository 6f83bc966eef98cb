//! The table of decisions, row by row: both sides of each condition, with the values at the border.
//!
//! Each line of a test is one case: the steps that lead there, the step that is decided, and what must follow; see
//! `common` for the steps and for the words of what follows. `conf` passes above 0.6, the cap is 3 unless said. What
//! reviews lead to is in `reviews`.

mod common;
#[path = "decisions/reviews.rs"]
mod reviews;

use common::Table;
use refile_core::Policy;
use refile_core::policy::OnExhausted;

fn cap(max_attempts: u32, on_exhausted: OnExhausted) -> Policy {
    Policy { max_attempts, on_exhausted, ..Policy::default() }
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
