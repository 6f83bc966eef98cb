//! What each kind of failure leads to, and that none is charged to the coder.

mod common;

use common::Table;
use refile_core::Policy;
use refile_core::failure::{Behaviour, FailureKind};

fn reviewers() -> Policy {
    Policy { reviewers: vec!["strict".into(), "kind".into()], ..Policy::default() }
}

#[test]
fn each_kind_of_failed_review_is_requeued_uncharged_by_its_behaviour() {
    for kind in FailureKind::ALL {
        let step = format!("review-failed {}", kind.as_str());
        let by = if kind.behaviour() == Behaviour::OtherReviewer { " (kind)" } else { " (strict)" };
        let counted = format!("count review_failures_total{{strict,{}}}", kind.as_str());
        let mut table = Table::new(reviewers());
        table.case("coded", &step, &format!("reviewing #1, open: {counted}, enqueue review #1{by} in 2 s"));
        let mut table = Table::new(Policy::default());
        let counted = format!("count review_failures_total{{default,{}}}", kind.as_str());
        table.case("coded", &step, &format!("reviewing #1, open: {counted}, enqueue review #1 in 2 s"));
        // The last try is a person's, and still attempt 1: the coder is charged with nothing.
        table.case(
            &format!("coded; {step}; {step}; {step}; {step}"),
            &step,
            &format!("reviewing #1, parked, escalated: {counted}, count escalations_total{{reviewer_unavailable}}"),
        );
    }
}

#[test]
fn the_behaviours_are_these() {
    let of = |behaviour| FailureKind::ALL.into_iter().filter(move |k| k.behaviour() == behaviour);
    let names = |behaviour| of(behaviour).map(FailureKind::as_str).collect::<Vec<_>>().join(", ");
    assert_eq!(names(Behaviour::Retry), "timeout, network, truncated, crash, repository");
    assert_eq!(names(Behaviour::PauseProvider), "rate_limit, overloaded, quota");
    assert_eq!(names(Behaviour::OtherReviewer), "context_too_long, refused, filtered, wrong_receipt");
    assert_eq!(names(Behaviour::ReaskOnce), "empty, malformed");
    assert_eq!(names(Behaviour::StopPool), "auth, configuration");
}
