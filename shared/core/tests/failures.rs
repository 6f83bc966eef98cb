//! What each kind of failure leads to, and that none is charged to the coder.

#![allow(clippy::unwrap_used)]

mod common;

use common::Table;
use refile_core::Policy;
use refile_core::failure::{Behaviour, FailureKind};
use refile_core::policy::Reviewer;

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
fn the_page_on_failures_says_what_the_code_does() {
    let page = include_str!("../../../ARCHITECTURE.md");
    let (_, table) = page.split_once("| kind | behaviour |\n| --- | --- |\n").unwrap();
    let mut said = Vec::new();
    for row in table.lines().take_while(|line| line.starts_with('|')) {
        let (kinds, behaviour) = row.trim_matches(['|', ' ']).split_once(" | ").unwrap();
        let behaviour = match behaviour {
            "pause the provider" => Behaviour::PauseProvider,
            "retry" => Behaviour::Retry,
            "ask the next reviewer" => Behaviour::OtherReviewer,
            "re-ask once, then retry" => Behaviour::ReaskOnce,
            "stop the pool" => Behaviour::StopPool,
            other => panic!("{other}"),
        };
        said.extend(kinds.split(", ").map(|kind| (kind.trim_matches('`').to_owned(), behaviour)));
    }
    assert_eq!(said.len(), FailureKind::ALL.len());
    for kind in FailureKind::ALL {
        assert!(said.contains(&(kind.as_str().to_owned(), kind.behaviour())), "{}", kind.as_str());
    }
}

#[test]
fn a_reviewer_that_may_be_gone_on_without_gives_way_whatever_fails() {
    let lenient = |name: &str| Reviewer { continue_on_error: true, ..name.into() };
    let two = Policy { reviewers: vec![lenient("first"), "second".into()], ..Policy::default() };
    let alone = Policy { reviewers: vec![lenient("first")], ..Policy::default() };
    for kind in FailureKind::ALL {
        let step = format!("review-failed {}", kind.as_str());
        let counted = |by: &str| format!("count review_failures_total{{{by},{}}}", kind.as_str());
        let first = format!("reviewing #1, open: {}, enqueue review #1", counted("first"));
        Table::new(two.clone()).case("coded", &step, &format!("{first} (second) in 2 s"));
        Table::new(alone.clone()).case("coded", &step, &format!("{first} (first) in 2 s"));
        // Never an approval: at last it is a person's, however many reviewers there are.
        let parked = format!(
            "reviewing #1, parked, escalated: {}, count escalations_total{{reviewer_unavailable}}",
            counted("first")
        );
        Table::new(alone.clone()).case(&format!("coded; {step}; {step}; {step}; {step}"), &step, &parked);
    }
}
