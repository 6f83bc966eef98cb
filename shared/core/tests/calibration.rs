//! Which verdicts count as right and wrong, by what people decide and by what becomes of the landed change; and that
//! the counters which the store keeps say the same as a look through the records.

mod common;

use std::collections::BTreeMap;

use common::World;
use common::histories::{drive, moves, policies, workflows};
use proptest::prelude::*;
use refile_core::calibration::{Fate, samples};
use refile_core::count::Count;
use refile_core::policy::Reviewer;
use refile_core::{Effect, Event, Outcome, Policy};

/// Two reviewers, and a person for what both are unsure of.
fn policy() -> Policy {
    Policy { max_attempts: 2, max_reviews: 2, reviewers: vec!["a".into(), "b".into()], ..Policy::default() }
}

/// Each verdict of a task as `reviewer verdict result`.
fn labels(world: &World, fate: Fate) -> Vec<String> {
    let result = |right| match right {
        Some(true) => "right",
        Some(false) => "wrong",
        None => "-",
    };
    samples(&world.task, fate).iter().map(|s| format!("{} {} {}", s.reviewer, s.verdict, result(s.right))).collect()
}

#[track_caller]
fn check(steps: &str, expect: &[&str]) {
    let mut world = World::new(policy());
    world.run(steps);
    assert_eq!(labels(&world, Fate::Unknown), expect, "{steps}");
}

#[test]
fn a_decision_calls_the_verdicts_on_the_change_right_or_wrong() {
    let unsure = "coded; approved 0.5; needs_changes 0.4";
    check(unsure, &["a approved -", "b needs_changes -"]);
    check(&format!("{unsure}; person approve"), &["a approved right", "b needs_changes wrong"]);
    check(&format!("{unsure}; person reject"), &["a approved wrong", "b needs_changes right"]);
    check(&format!("{unsure}; person refile Do it."), &["a approved wrong", "b needs_changes right"]);
    check(&format!("{unsure}; person retry"), &["a approved -", "b needs_changes -"]);
    // What was said of an earlier attempt is not meant.
    let at_the_cap = "coded; needs_changes 0.9 Fix a.; coded; needs_changes 0.9 Fix b.; person approve";
    check(at_the_cap, &["a needs_changes -", "a needs_changes wrong"]);
}

#[test]
fn the_same_diff_again_puts_the_first_verdict_in_doubt() {
    let again = "coded; needs_changes 0.9 Fix a.; coded same; person approve";
    let mut world = World::new(Policy { max_attempts: 3, ..policy() });
    world.run(again);
    assert_eq!(labels(&world, Fate::Unknown), ["a needs_changes wrong"]);
    // What was decided of it before holds, and is not counted again.
    let mut world = World::new(Policy { max_attempts: 1, ..policy() });
    world.run("coded; needs_changes 0.9 Fix a.; person refile Fix a.; coded same");
    let done = world.must("person approve");
    assert_eq!(labels(&world, Fate::Unknown), ["a needs_changes right"]);
    assert!(!common::effects("change", &done).contains("reviewer_labels_total"));
}

#[test]
fn a_decision_stays_with_the_change_that_it_was_about() {
    // The base moves after the approval, and another change is reviewed on the same attempt.
    let rebased = "coded; approved 0.5; needs_changes 0.4; person approve; rebased; approved 0.9";
    check(rebased, &["a approved right", "b needs_changes wrong", "a approved -"]);
    // A predecessor is done again, and the numbers of attempts start again.
    let mut world = World::of(Policy { max_attempts: 1, ..policy() }, common::workflow("plan, build<plan"));
    world.run("plan: coded; plan: approved 0.9; build: coded; build: needs_changes 0.9 Fix a.");
    world.run("build: person refile Fix a.; build: coded; build: retry_predecessor 0.9 phase:plan Plan again.");
    world.run("plan: coded; plan: approved 0.8; build: coded; build: approved 0.7");
    let expect = ["a approved -", "a approved -", "a needs_changes right", "a retry_predecessor -", "a approved -"];
    assert_eq!(labels(&world, Fate::Unknown), expect);
}

#[test]
fn a_decision_on_something_else_says_nothing_of_verdicts() {
    let mut world = World::new(Policy { max_land_failures: 1, ..policy() });
    world.run("coded; approved 0.9; land-failed network; person reject");
    assert_eq!(labels(&world, Fate::Unknown), ["a approved -"]);
    // A gate on the merged tree rejects it at the cap: no reviewer was wrong about what it saw.
    let mut world = World::new(Policy { max_attempts: 1, ..policy() });
    world.run("coded; approved 0.9; conflict; person refile Rebase it.");
    assert_eq!(labels(&world, Fate::Unknown), ["a approved -"]);
    // Whoever asks for a person has said nothing that could be right; failures have said nothing at all.
    check("coded; review-failed timeout; approved 0.3; escalate 0.9; person approve", &["a approved right"]);
}

#[test]
fn what_becomes_of_the_landed_change_goes_before_what_people_decided() {
    let mut world = World::new(policy());
    world.run("coded; needs_changes 0.9 Fix a.; coded; approved 0.5; needs_changes 0.4; person approve; landed");
    for (fate, expect) in [
        (Fate::Unknown, ["a needs_changes -", "a approved right", "b needs_changes wrong"]),
        (Fate::Stood, ["a needs_changes -", "a approved right", "b needs_changes wrong"]),
        (Fate::Reverted, ["a needs_changes -", "a approved wrong", "b needs_changes right"]),
    ] {
        assert_eq!(labels(&world, fate), expect, "{fate:?}");
    }
    let mut world = World::new(policy());
    world.run("coded; approved 0.9; landed");
    assert_eq!(labels(&world, Fate::Stood), ["a approved right"]);
    assert_eq!(labels(&world, Fate::Reverted), ["a approved wrong"]);
    // What did not land did not stand either.
    let mut world = World::new(policy());
    world.run("coded; reject 0.9");
    assert_eq!(labels(&world, Fate::Stood), ["a reject -"]);
}

#[test]
fn members_of_a_panel_are_reviewers_of_their_own() {
    let mut world =
        World::new(Policy { reviewers: vec![Reviewer::from("panel")], max_reviews: 1, ..Policy::default() });
    world.run("coded");
    let mut event = world.event("approved 0.5");
    if let Event::Outcome { outcome: Outcome::Reviewed(review), .. } = &mut event {
        let mut member = review.clone();
        member.reviewer = "a".to_owned();
        let mut failed = member.clone();
        failed.reviewer = "b".to_owned();
        failed.failure = Some(refile_core::failure::Failure::new(refile_core::failure::FailureKind::Timeout, "late"));
        review.members = vec![member, failed];
    }
    let done = world.apply(&event).unwrap_or_else(|e| panic!("{e}"));
    let shown = common::effects("change", &done);
    for counted in ["reviews_total{a,approved}", "review_failures_total{b,timeout}", "reviews_total{panel,approved}"] {
        assert!(shown.contains(counted), "{shown}");
    }
    let done = world.must("person approve");
    assert_eq!(labels(&world, Fate::Unknown), ["a approved right", "panel approved right"]);
    let shown = common::effects("change", &done);
    for counted in ["reviewer_labels_total{a,0.5,right}", "reviewer_labels_total{panel,0.5,right}"] {
        assert!(shown.contains(counted), "{shown}");
    }
}

/// The labels that effects count, by reviewer and result.
fn counted(effects: &[Effect], into: &mut BTreeMap<(String, String), usize>) {
    for effect in effects {
        if let Effect::Count(Count { metric: "reviewer_labels_total", labels }) = effect {
            *into.entry((labels[0].clone(), labels[2].clone())).or_default() += 1;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_counters_say_what_the_records_say(policy in policies(), workflow in workflows(), moves in moves()) {
        let mut total = BTreeMap::new();
        let world = drive(policy, workflow, &moves, |step| counted(step.effects, &mut total));
        let mut looked_up = BTreeMap::new();
        for sample in samples(&world.task, Fate::Unknown) {
            if let Some(right) = sample.right {
                let result = if right { "right" } else { "wrong" };
                *looked_up.entry((sample.reviewer, result.to_owned())).or_default() += 1;
            }
        }
        prop_assert_eq!(total, looked_up, "{:#?}", world.task);
    }
}
