//! What people do with a pull request, row by row, and what the record keeps of it.

mod common;

use common::{Table, World};
use refile_core::event::{HumanReview, News};
use refile_core::policy::OnExhausted;
use refile_core::prompt::{Carry, prompt};
use refile_core::task::{AttemptOutcome, Cause};
use refile_core::{Event, Policy, Queue, Refusal, TaskState};

const PROPOSED: &str = "coded; approved 0.9; opened";

const CHANGED: &str =
    "coding #2, open: count reviews_total{human,needs_changes}, count refiles_total{review}, enqueue code #2";

fn proposed(policy: Policy) -> World {
    let mut world = World::new(policy);
    world.run(PROPOSED);
    world
}

fn review(id: &str, by: &str, words: &str) -> HumanReview {
    HumanReview { id: id.to_owned(), by: by.to_owned(), head: "old".to_owned(), words: words.to_owned() }
}

fn asked(reviews: Vec<HumanReview>) -> Event {
    Event::Forge { phase: "change".to_owned(), number: 7, news: News::ChangesRequested { reviews } }
}

#[test]
fn people_decide_on_the_forge() {
    let mut table = Table::new(Policy::default());
    table.case("coded; approved 0.9", "opened", "landing #1, proposed, open: ");
    table.case("coded", "opened", "refused: stale");
    table.case(PROPOSED, "opened", "refused: stale");
    table.case(PROPOSED, "landed", "refused: stale");
    table.case("coded; approved 0.9", "forge merged", "refused: stale");
    table.case(PROPOSED, "forge changes new", CHANGED);
}

#[test]
fn an_open_pull_request_holds_no_job_and_waits() {
    let world = proposed(Policy::default());
    let phase = world.focus();
    let pull_request = phase.waiting_pull_request().expect("a pull request that waits");
    assert_eq!((phase.job.as_ref(), pull_request.number, pull_request.attempt), (None, 7, 1));
    assert_eq!(pull_request.head, phase.approval.as_ref().expect("an approval").head);
    assert_eq!(world.task.state, TaskState::Open);
}

#[test]
fn a_merge_by_hand_is_a_landing() {
    let mut world = proposed(Policy::default());
    let approval = world.focus().approval.clone().expect("an approval");
    world.must("forge merged");
    let phase = world.focus();
    let kept = phase.approval.clone().expect("an approval");
    assert_eq!((kept.by, kept.head, kept.landed), (approval.by, approval.head, Some("merged4".to_owned())));
    assert_eq!((world.task.state, phase.attempts[0].outcome), (TaskState::Merged, Some(AttemptOutcome::Accepted)));
}

#[test]
fn a_merge_of_an_earlier_attempt_ends_the_one_that_goes_on() {
    let mut world = proposed(Policy::default());
    let head = world.focus().attempts[0].change.clone().expect("a change").head;
    world.run("forge changes r1 Name the port.");
    let done = world.must("forge merged");
    assert!(done.effects.iter().any(|e| matches!(e, refile_core::Effect::Drop { .. })), "{done:#?}");
    let phase = world.focus();
    let approval = phase.approval.clone().expect("an approval");
    assert_eq!((approval.by.to_string(), approval.head, approval.attempt), ("human:ann".to_owned(), head, 1));
    assert_eq!((world.task.state, phase.attempts[1].outcome), (TaskState::Merged, Some(AttemptOutcome::Cancelled)));
}

#[test]
fn a_persons_words_lead_the_next_attempt() {
    let mut world = proposed(Policy::default());
    let said = "## Please\nName the port in the error. It is 80 by default.\nSee net.rs.";
    world.apply(&asked(vec![review("r1", "ann", said)])).expect("a refile");
    let (first, second) = (&world.focus().attempts[0], &world.focus().attempts[1]);
    let rejection = first.rejection.clone().expect("a rejection");
    assert_eq!((rejection.cause, rejection.by.as_str()), (Cause::Review, "human:ann"));
    assert_eq!(rejection.required_change, "Please Name the port in the error.");
    assert_eq!(rejection.critique, "It is 80 by default. See net.rs.");
    assert_eq!((first.outcome, second.number), (Some(AttemptOutcome::NeedsChanges), 2));
    // Of the review that approved and the person's.
    assert_eq!((first.reviews.len(), first.reviews[1].head.as_str()), (2, "old"));
    let text = prompt(&world.task, world.focus(), Carry::default());
    assert!(text.contains("**Required change**: Please Name the port in the error.\n"), "{text}");
}

#[test]
fn each_review_counts_once_and_several_make_one_rejection() {
    let mut world = proposed(Policy::default());
    let both = vec![review("r1", "ann", "Name the port."), review("r2", "bob\u{202e}", "Say why.")];
    world.apply(&asked(both.clone())).expect("a refile");
    let rejection = world.focus().attempts[0].rejection.clone().expect("a rejection");
    assert_eq!(
        (rejection.required_change.as_str(), rejection.critique.as_str()),
        ("Name the port.", "human:bob: Say why.")
    );
    // While the next attempt goes on it is not the time; afterwards both have counted.
    assert!(matches!(world.apply(&asked(both.clone())), Err(Refusal::Stale(_))));
    world.run(PROPOSED);
    assert!(matches!(world.apply(&asked(both.clone())), Err(Refusal::Stale(_))));
    // One of the older head that nobody had seen still counts.
    let late = [both, vec![review("r3", "cy", "Add a test.")]].concat();
    world.apply(&asked(late)).expect("a refile");
    assert_eq!(world.focus().attempt_number(), 3);
    let rejection = world.focus().attempts[1].rejection.clone().expect("a rejection");
    assert_eq!((rejection.by.as_str(), rejection.critique.as_str()), ("human:cy", ""));
}

#[test]
fn a_review_without_words_still_says_who_asked() {
    let mut world = proposed(Policy::default());
    world.apply(&asked(vec![review("r1", "ann", " ")])).expect("a refile");
    let rejection = world.focus().attempts[0].rejection.clone().expect("a rejection");
    assert_eq!(rejection.required_change, "Make the changes that ann requested on the pull request");
}

#[test]
fn after_the_last_attempt_people_are_asked_and_a_retry_proposes_it_again() {
    for on_exhausted in [OnExhausted::Accept, OnExhausted::Escalate] {
        let mut world = proposed(Policy { max_attempts: 1, on_exhausted, ..Policy::default() });
        world.run("forge changes r1 Name the port.");
        assert_eq!(world.task.state, TaskState::Escalated);
        assert!(world.focus().waiting_pull_request().is_none());
        world.run("person retry; opened");
        assert!(world.focus().waiting_pull_request().is_some());
        // What was said before the retry has counted.
        assert!(world.apply(&asked(vec![review("r1", "ann", "Name the port.")])).is_err());
        world.run("forge merged");
        assert_eq!(world.task.state, TaskState::Merged);
    }
}

#[test]
fn the_same_demand_again_is_a_repeated_rejection() {
    let mut world = proposed(Policy::default());
    world.run(&format!("forge changes r1 Name the port.; {PROPOSED}; forge changes r2 name the port"));
    assert_eq!(world.task.state, TaskState::Escalated);
    assert_eq!(world.task.escalations[0].reason.as_str(), "repeated_rejection");
}

#[test]
fn who_closed_it_makes_the_difference() {
    let mut world = proposed(Policy::default());
    world.run("forge closed ann");
    assert_eq!(world.task.state, TaskState::Rejected);
    let rejection = world.focus().attempts[0].rejection.clone().expect("a rejection");
    assert!(rejection.critique.contains("human:ann closed"), "{}", rejection.critique);

    let mut world = proposed(Policy::default());
    world.run("forge closed");
    assert_eq!(world.task.escalations[0].reason.as_str(), "landing_failed");
    world.run("person retry; opened; forge merged");
    assert_eq!(world.task.state, TaskState::Merged);
}

#[test]
fn a_conflict_on_the_forge_is_looked_into_and_does_not_go_on_for_ever() {
    let mut world = proposed(Policy { max_land_failures: 3, ..Policy::default() });
    let done = world.must("forge conflicts");
    assert!(done.effects.iter().any(|e| matches!(e, refile_core::Effect::Enqueue { queue: Queue::Land, .. })));
    world.run("opened; forge conflicts; opened; forge conflicts");
    assert_eq!(world.task.escalations[0].reason.as_str(), "landing_failed");
    world.run("person retry; opened; forge conflicts; conflict");
    assert_eq!((world.task.state, world.focus().attempt_number()), (TaskState::Open, 2));
}

#[test]
fn news_of_another_pull_request_or_of_a_task_that_is_over_change_nothing() {
    let mut world = proposed(Policy::default());
    let event = world.event("forge @8 merged");
    assert!(matches!(world.apply(&event), Err(Refusal::Stale(_))));
    // Whoever says it twice does not want to wait for a look.
    world.run("cancel; cancel");
    let event = world.event("forge merged");
    assert!(matches!(world.apply(&event), Err(Refusal::Stale(_))));
    assert_eq!(world.task.state, TaskState::Cancelled);
}

#[test]
fn a_task_that_is_called_off_while_it_is_proposed_is_looked_for_first() {
    let mut world = proposed(Policy::default());
    let done = world.must("cancel");
    assert!(done.effects.iter().any(|e| matches!(e, refile_core::Effect::Enqueue { queue: Queue::Land, .. })));
    let mut other = world.clone();
    other.run("called-off");
    assert_eq!(other.task.state, TaskState::Cancelled);
    // The forge was quicker: the record says so, whoever sees it.
    for told in ["forge merged", "ended merged"] {
        let mut other = world.clone();
        let done = other.must(told);
        assert_eq!(other.task.state, TaskState::Merged);
        assert!(done.notices().any(|notice| notice.detail.contains("called off too late")), "{done:#?}");
    }
    // The fleet itself closes it, whoever's token that is.
    for told in ["forge closed ann", "ended closed ann"] {
        let mut other = world.clone();
        other.run(told);
        assert_eq!(other.task.state, TaskState::Cancelled);
    }
}

#[test]
fn what_people_did_before_anybody_looked_counts() {
    let mut world = World::new(Policy::default());
    world.run("coded; approved 0.9; ended merged");
    let phase = world.focus();
    assert_eq!((world.task.state, phase.pull_request.as_ref().map(|p| p.number)), (TaskState::Merged, Some(7)));
    let mut world = proposed(Policy::default());
    world.run("forge changes r1 Name the port.; coded; approved 0.9; ended closed ann");
    assert_eq!(world.task.state, TaskState::Rejected);
    let rejection = world.focus().attempts[1].rejection.clone().expect("a rejection");
    assert_eq!(rejection.by, "human:ann");
    assert_eq!(world.focus().pull_request.clone().expect("a pull request").reviews, ["r1"]);
}

#[test]
fn a_base_that_moves_all_the_time_does_not_go_on_for_ever() {
    let mut world = proposed(Policy { max_land_failures: 2, ..Policy::default() });
    for moves in 1..20 {
        let done = world.must("forge moved");
        let again = done.effects.iter().any(|e| matches!(e, refile_core::Effect::Enqueue { queue: Queue::Land, .. }));
        assert!(again, "{moves}: {done:#?}");
        assert_eq!(world.focus().attempts[0].land_failures.len(), moves / 10);
        world.run("opened");
    }
    world.run("forge moved");
    assert_eq!(world.task.escalations[0].reason.as_str(), "landing_failed");
    assert!(world.task.escalations[0].detail.contains("moved 20 times"), "{}", world.task.escalations[0].detail);
    // The gates ran on exactly this base.
    let mut world = proposed(Policy::default());
    let news = News::BaseMoved { base: "base".to_owned() };
    let same = Event::Forge { phase: "change".to_owned(), number: 7, news };
    assert!(matches!(world.apply(&same), Err(Refusal::Stale(_))));
}

#[test]
fn why_the_forge_does_not_merge_is_kept_until_it_is_proposed_again() {
    let mut world = proposed(Policy::default());
    world.run("forge not-yet 2 checks are expected.");
    let kept = world.focus().waiting_pull_request().expect("one that waits").not_yet.clone();
    assert_eq!(kept.as_deref(), Some("2 checks are expected."));
    let event = world.event("forge not-yet 2 checks are expected.");
    assert!(matches!(world.apply(&event), Err(Refusal::Stale(_))), "nothing new");
    world.run("forge not-yet 1 check is expected.; forge moved; opened");
    assert_eq!(world.focus().waiting_pull_request().expect("one that waits").not_yet, None);
}
