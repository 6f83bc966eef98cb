//! What each kind of failure leads to, and that none is charged to the coder.

#![allow(clippy::unwrap_used)]

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
