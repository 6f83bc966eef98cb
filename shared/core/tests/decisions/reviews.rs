//! The table of decisions, the rows of reviews: approvals, rejections, doubts, failures, and phases that are sent back.

use refile_core::Policy;
use refile_core::decide::What;
use refile_core::policy::{OnExhausted, Reviewer};

use crate::cap;
use crate::common::{Table, World, effects};

fn reviewers() -> Policy {
    Policy { reviewers: vec!["strict".into(), "kind".into()], ..Policy::default() }
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
