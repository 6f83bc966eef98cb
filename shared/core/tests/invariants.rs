//! The invariants A to H as properties of random histories: outcomes of all kinds, late and wrong ones, people and
//! cancellations, on workflows of one and of several phases, under random policies.

mod common;

use std::collections::{BTreeMap, BTreeSet};

use common::histories::{OF_WORKERS, STEPS, drive, event, moves, policies, text, workflows};
use common::{DESCRIPTION, World, submitted};
use proptest::prelude::*;
use refile_core::count::Count;
use refile_core::event::{News, PersonDecision};
use refile_core::prompt::{Carry, prompts};
use refile_core::task::Escalation;
use refile_core::{Effect, Event, Job, Outcome, Phase, PhaseState, Policy, Queue, Task, TaskState, Timestamp, decide};

/// Few cases by default; `PROPTEST_CASES` asks for more.
fn config(cases: u32) -> ProptestConfig {
    let default = ProptestConfig::default();
    let cases = if std::env::var_os("PROPTEST_CASES").is_some() { default.cases } else { cases };
    ProptestConfig { cases, failure_persistence: None, ..default }
}

/// Phases that a job, an escalation, an open pull request, or a phase before them will bring on.
fn check_a(task: &Task, effects: &[Effect], before: Option<(&Task, &Event)>) {
    for phase in &task.phases {
        let has_job = phase.job.is_some();
        let is_parked = task.open_escalation(&phase.name).is_some();
        let is_open = |name: &String| task.phase(name).is_some_and(|p| !p.state.is_over());
        let waits = phase.state == PhaseState::Waiting && !is_parked && phase.after.iter().any(is_open);
        let is_proposed = phase.waiting_pull_request().is_some();
        assert!(!is_proposed || phase.state == PhaseState::Landing, "{phase:#?}");
        let reasons = usize::from(has_job) + usize::from(is_parked) + usize::from(waits) + usize::from(is_proposed);
        assert_eq!(reasons, usize::from(!phase.state.is_over()), "{}: {phase:#?}", phase.name);
        // The state says which job it is.
        let queue = match phase.state {
            PhaseState::Coding => Some(Queue::Code),
            PhaseState::Reviewing => Some(Queue::Review),
            PhaseState::Landing => Some(Queue::Land),
            _ => None,
        };
        assert!(!has_job || phase.job.as_ref().map(Job::queue) == queue, "{phase:#?}");
        assert!(task.open_escalations().filter(|e| e.phase == phase.name).count() <= 1);
    }
    assert_eq!(task.state.is_final(), task.phases.iter().all(|p| p.state.is_over()), "{:?}", task.state);
    assert_eq!(task.state == TaskState::Escalated, task.open_escalations().next().is_some());
    // What the shell is told makes the queues what the record says.
    let mut queued: BTreeMap<String, (Queue, u32)> = BTreeMap::new();
    if let Some((before, event)) = before {
        for phase in &before.phases {
            if let Some(job) = &phase.job {
                queued.insert(phase.name.clone(), (job.queue(), phase.attempt_number()));
            }
        }
        // The shell's commit takes away the job whose outcome was decided.
        if let Event::Outcome { phase, .. } | Event::Poisoned { phase, .. } = event {
            queued.remove(phase);
        }
    }
    for effect in effects {
        match effect {
            Effect::Enqueue { phase, queue, attempt, .. } => {
                queued.insert(phase.clone(), (*queue, *attempt));
            }
            Effect::Drop { phase } => assert!(queued.remove(phase).is_some(), "{phase} had no job to drop"),
            Effect::Notify(_) | Effect::Count(_) => {}
        }
    }
    let recorded =
        task.phases.iter().filter_map(|p| Some((p.name.clone(), (p.job.as_ref()?.queue(), p.attempt_number()))));
    assert_eq!(queued, recorded.collect());
}

fn cap(policy: &Policy, phase: &Phase) -> u32 {
    phase.limits.max_attempts.unwrap_or(policy.max_attempts) + phase.granted
}

proptest! {
    #![proptest_config(config(500))]

    #[test]
    fn a_every_phase_has_one_thing_that_brings_it_on(policy in policies(), flow in workflows(), moves in moves()) {
        let start = submitted(&policy, flow.clone());
        check_a(&start.task, &start.effects, None);
        drive(policy, flow, &moves, |step| check_a(step.after, step.effects, Some((step.before, step.event))));
    }

    #[test]
    fn b_attempts_are_numbered_without_gaps_up_to_the_cap(policy in policies(), flow in workflows(), moves in moves()) {
        drive(policy, flow, &moves, |step| {
            for phase in &step.after.phases {
                let round = phase.round();
                assert!(round.iter().enumerate().all(|(i, a)| a.number as usize == i + 1), "{phase:#?}");
                let old = step.before.phase(&phase.name).map_or(0, |p| p.attempts.len());
                assert!(phase.attempts.len() <= old + 1, "one step, one attempt");
                assert!(phase.attempt_number() <= cap(step.policy, phase), "{phase:#?}");
            }
        });
    }

    #[test]
    fn b_an_event_for_another_attempt_is_refused(policy in policies(), flow in workflows(), moves in moves()) {
        drive(policy, flow, &moves, |step| {
            if let Event::Outcome { phase, attempt, .. } = step.event {
                assert_eq!(step.before.phase(phase).map(Phase::attempt_number), Some(*attempt));
            }
        });
    }

    /// Of an outcome that moved the phase on, that is: one that put the same job back looks like the next try of it,
    /// and only the store's fence tells the two apart.
    #[test]
    fn c_a_second_delivery_of_an_outcome_is_refused(policy in policies(), flow in workflows(), moves in moves()) {
        drive(policy, flow, &moves, |step| {
            let Event::Outcome { phase, attempt, .. } = step.event else { return };
            let same_job = step.effects.iter().any(|e| match e {
                Effect::Enqueue { phase: p, queue, attempt: a, .. } => {
                    let had = step.before.phase(phase).and_then(|p| p.job.as_ref()).map(Job::queue);
                    p == phase && a == attempt && Some(*queue) == had
                }
                _ => false,
            });
            let again = decide(step.after, step.event, step.policy, Timestamp(9_999));
            if same_job {
                // Even so it is not charged.
                let number = |t: &Task| t.phase(phase).map(|p| p.attempts.len());
                assert_eq!(number(step.before), number(step.after));
            } else {
                assert!(matches!(again, Err(refile_core::Refusal::Stale(_))), "{again:#?}");
            }
        });
    }

    #[test]
    fn c_every_verdict_is_in_the_record_once(policy in policies(), flow in workflows(), moves in moves()) {
        let mut given = 0;
        let mut counted = BTreeSet::new();
        let world = drive(policy, flow, &moves, |step| match step.event {
            Event::Outcome { outcome: Outcome::Reviewed(_), .. } => given += 1,
            // A person's review on the forge is let in once, whatever head it was about.
            Event::Forge { phase, news: News::ChangesRequested { reviews }, .. } => {
                assert!(step.before.phase(phase).is_some_and(|p| p.waiting_pull_request().is_some()));
                assert!(reviews.iter().all(|r| counted.insert(r.id.clone())), "{reviews:?} counted twice");
                given += 1;
            }
            _ => {}
        });
        let kept: usize = world.task.attempts().map(|(_, a)| a.reviews.len()).sum();
        prop_assert_eq!(kept, given);
    }

    #[test]
    fn d_only_what_was_approved_lands_and_it_lands_once(policy in policies(), flow in workflows(), moves in moves()) {
        let mut landed = 0;
        drive(policy, flow, &moves, |step| {
            let landing: Vec<_> = step.after.phases.iter().filter(|p| p.job == Some(Job::Land)).collect();
            assert!(landing.len() <= 1);
            for phase in landing {
                let approval = phase.approval.as_ref().expect("an approval");
                let attempt = phase.attempt().expect("an attempt");
                let change = attempt.change.as_ref().expect("a change");
                assert_eq!((&approval.head, &approval.patch_id), (&change.head, &change.patch_id));
                assert_eq!((approval.attempt, &approval.landed), (attempt.number, &None));
                assert!(step.after.phases.iter().all(|p| p.name == phase.name || p.state == PhaseState::Accepted));
                // Past a failed gate only by a person's word; a reviewer may approve again after a rebase, and the
                // landing runs the gates on the merged tree in any case.
                let is_word = |e: &Escalation| {
                    e.phase == phase.name
                        && e.attempt == attempt.number
                        && e.decision.as_ref().is_some_and(|d| d.decision == PersonDecision::Approve)
                };
                let is_past = step.after.escalations.iter().any(is_word);
                assert!(is_past || attempt.gates.iter().all(|g| g.passed), "{attempt:#?}");
                assert!(is_past || !approval.overrides_gates);
            }
            if matches!(
                step.event,
                Event::Outcome {
                    outcome: Outcome::Landed { .. } | Outcome::PullRequestEnded { news: News::Merged { .. }, .. },
                    ..
                } | Event::Forge { news: News::Merged { .. }, .. }
            ) {
                landed += 1;
                assert_eq!(step.after.state, TaskState::Merged);
            }
            assert_eq!(step.after.state == TaskState::Merged, landed == 1);
        });
        prop_assert!(landed <= 1);
    }

    #[test]
    fn e_no_failure_is_charged_to_the_coder(policy in policies(), flow in workflows(), moves in moves()) {
        drive(policy, flow, &moves, |step| {
            let is_failure = match step.event {
                Event::Poisoned { .. } => true,
                Event::Outcome { outcome, .. } => match outcome {
                    Outcome::AgentFailed { .. } | Outcome::LandingFailed { .. } => true,
                    Outcome::Reviewed(review) => review.failure.is_some() || review.verdict.conf.is_nan(),
                    _ => false,
                },
                _ => false,
            };
            if is_failure {
                for (before, after) in step.before.phases.iter().zip(&step.after.phases) {
                    assert_eq!(before.attempts.len(), after.attempts.len());
                    assert!(after.attempts.iter().zip(&before.attempts).all(|(a, b)| a.rejection == b.rejection));
                }
            }
        });
    }

    /// `drive` holds that a refused event changes nothing; this one makes events that must be refused.
    #[test]
    fn f_a_stale_event_is_refused(policy in policies(), flow in workflows(), moves in moves()) {
        let world = drive(policy, flow, &moves, |_| {});
        for phase in &world.task.phases {
            for step in STEPS.iter().filter(|s| !s.starts_with("person") && !s.starts_with("forge") && **s != "cancel") {
                let mut other = world.clone();
                let step = step.replace("{p}", &phase.name).replace("{long}", "Do it.");
                let event = other.event(&format!("{}: {step}", phase.name));
                let (late, fits) = match &event {
                    Event::Outcome { phase, attempt, outcome } => {
                        let late = Event::Outcome { phase: phase.clone(), attempt: attempt + 1, outcome: outcome.clone() };
                        (late, Some(queue_of(outcome)))
                    }
                    _ => (Event::Poisoned { phase: "nowhere".to_owned(), why: String::new() }, phase.job.as_ref().map(Job::queue)),
                };
                prop_assert!(other.apply(&late).is_err(), "{late:?}");
                let has = phase.job.as_ref().map(Job::queue);
                if has.is_none() || fits != has {
                    prop_assert!(other.apply(&event).is_err(), "{event:?}");
                }
                prop_assert_eq!(&other.task, &world.task);
            }
        }
        if world.task.state.is_final() {
            let mut other = world.clone();
            for step in STEPS {
                let event = other.event(&step.replace("{p}", "change"));
                prop_assert!(other.apply(&event).is_err(), "{event:?}");
            }
        }
    }

    #[test]
    fn g_without_people_every_task_ends_within_its_bound(
        policy in policies(), flow in workflows(), choices in prop::collection::vec(any::<prop::sample::Index>(), 64),
    ) {
        let mut world = World::of(policy, flow);
        let most = bound(&world);
        let mut steps = 0;
        while let Some(phase) = busy_phase(&world, choices[(steps * 7 + 3) as usize % choices.len()]) {
            prop_assert!(steps < most, "still going after {most} steps");
            let queue = world.task.phase(&phase).and_then(|p| p.job.as_ref()).map_or(0, |j| j.queue() as usize);
            // The choices are used again and again, shifted: a history of any length, and always the same one.
            let choice = &choices[(steps + steps / 64) as usize % choices.len()];
            let step = text(&world, choice.get::<&str>(OF_WORKERS[queue]), choices[(steps * 5 + 1) as usize % choices.len()]);
            world.must(&format!("{phase}: {step}"));
            steps += 1;
        }
        // People on the forge are people.
        let is_proposed = world.task.phases.iter().any(|p| p.waiting_pull_request().is_some());
        prop_assert!(world.task.state != TaskState::Open || is_proposed, "{:#?}", world.task);
    }

    #[test]
    fn h_the_rejection_leads_and_the_text_does_not_grow(policy in policies(), flow in workflows(), moves in moves()) {
        let world = drive(policy, flow, &moves, |_| {});
        for phase in &world.task.phases {
            for (text, attempt) in prompts(&world.task, phase, Carry::default()).iter().zip(&phase.attempts) {
                if attempt.number == 1 {
                    prop_assert_eq!(text, DESCRIPTION);
                    continue;
                }
                let head = format!("## ATTEMPT #{} — previous attempt rejected\n\n**Required change**: ", attempt.number);
                prop_assert!(text.starts_with(&head), "{text}");
                let at = phase.attempts.iter().position(|a| std::ptr::eq(a, attempt)).unwrap_or_default();
                // A person's words lead before what the attempt was rejected for.
                let rejection = attempt.led_by.as_ref().or(phase.attempts[at - 1].rejection.as_ref());
                let demand = &rejection.expect("a rejection").required_change;
                let demand: String = demand.chars().take(80).collect();
                let lead = text.find(demand.trim_end()).unwrap_or(usize::MAX);
                prop_assert!(!demand.trim().is_empty() && lead < 200, "{lead}: {text}");
                prop_assert!(text.ends_with(&format!("\n---\n\n{DESCRIPTION}")), "{text}");
                prop_assert!(text.len() <= DESCRIPTION.len() + 4_096);
            }
        }
    }

    #[test]
    fn deciding_is_deterministic_and_keeps_the_description(policy in policies(), flow in workflows(), moves in moves()) {
        drive(policy, flow, &moves, |step| {
            let first = decide(step.before, step.event, step.policy, Timestamp(5));
            assert_eq!(first, decide(step.before, step.event, step.policy, Timestamp(5)));
            assert_eq!(step.after.description, DESCRIPTION);
        });
    }

    /// The numbers that the store keeps, made of nothing but deltas, are those that the record shows.
    #[test]
    fn deltas_keep_the_gauges_true(policy in policies(), flow in workflows(), moves in moves()) {
        let mut numbers: BTreeMap<String, i64> = BTreeMap::new();
        let mut add = |deltas: Vec<(String, i64)>| {
            for (key, by) in deltas {
                *numbers.entry(key).or_default() += by;
            }
        };
        let mut world = World::of(policy.clone(), flow.clone());
        add(submitted(&policy, flow).deltas(None));
        for one in &moves {
            let event = event(&mut world, one);
            let before = world.task.clone();
            if let Ok(done) = world.apply(&event) {
                add(done.deltas(Some(&before)));
            }
        }
        let of = |metric: &str| -> BTreeMap<String, i64> {
            let counts = numbers.iter().filter_map(|(key, n)| Some((Count::parse(key)?, *n)));
            counts.filter(|(c, n)| c.metric == metric && *n != 0).map(|(c, n)| (c.labels.join(","), n)).collect()
        };
        let task = &world.task;
        prop_assert_eq!(of("tasks"), BTreeMap::from([(task.state.to_string(), 1)]));
        prop_assert_eq!(of("tasks_submitted_total"), BTreeMap::from([(String::new(), 1)]));
        let finished = if task.state.is_final() { BTreeMap::from([(task.state.to_string(), 1)]) } else { BTreeMap::new() };
        prop_assert_eq!(of("tasks_finished_total"), finished);
        let mut open = BTreeMap::new();
        for escalation in task.open_escalations().filter(|_| !task.state.is_final()) {
            *open.entry(escalation.reason.to_string()).or_insert(0) += 1;
        }
        prop_assert_eq!(of("escalations_open"), open);
        let current = if task.state.is_final() { BTreeMap::new() } else { BTreeMap::from([(task.attempt_number().to_string(), 1)]) };
        prop_assert_eq!(of("task_attempts_current"), current);
        let reasons: i64 = of("escalations_total").values().sum();
        prop_assert_eq!(reasons, i64::try_from(task.escalations.len())?);
    }
}

fn queue_of(outcome: &Outcome) -> Queue {
    match outcome {
        Outcome::Coded { .. } | Outcome::AgentFailed { .. } | Outcome::NeedsInput { .. } => Queue::Code,
        Outcome::Reviewed(_) => Queue::Review,
        _ => Queue::Land,
    }
}

fn busy_phase(world: &World, choice: prop::sample::Index) -> Option<String> {
    let busy: Vec<&String> = world.task.phases.iter().filter(|p| p.job.is_some()).map(|p| &p.name).collect();
    if busy.is_empty() { None } else { Some((*choice.get(&busy)).clone()) }
}

/// The most outcomes that a task can take in before it is over or waits for people, by its policy alone.
fn bound(world: &World) -> u32 {
    let p = &world.policy;
    // One review decides, or low confidence runs out; each rebase brings a new change to review.
    let reviews = (p.max_land_failures + 1) * (p.max_reviews + 1) + p.max_review_failures;
    let per_attempt = (p.max_infra_failures + 1) + reviews + (p.max_land_failures + 1);
    let phases = &world.task.phases;
    let cap = phases.iter().map(|f| f.limits.max_attempts.unwrap_or(p.max_attempts)).max().unwrap_or(1);
    let sent_back: u32 = phases
        .iter()
        .map(|f| f.after.len() as u32 * f.limits.max_predecessor_retries.unwrap_or(p.max_predecessor_retries))
        .sum();
    // Each phase has its round; each time that work is sent back, two phases get one more.
    per_attempt * cap * (phases.len() as u32 + 2 * sent_back)
}

#[test]
fn the_histories_get_everywhere() {
    // A generator that never reached a state would make every property above empty.
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut seen: BTreeMap<String, u32> = BTreeMap::new();
    let strategy = (policies(), workflows(), moves());
    for _ in 0..2_000 {
        let Ok(tree) = strategy.new_tree(&mut runner) else { panic!("no history") };
        let (policy, flow, moves) = proptest::strategy::ValueTree::current(&tree);
        let mut note = |what: String| *seen.entry(what).or_insert(0) += 1;
        drive(policy, flow, &moves, |step| {
            for phase in &step.after.phases {
                note(phase.state.to_string());
                if let Some(pull_request) = &phase.pull_request {
                    note(if pull_request.waits { "proposed" } else { "not proposed any more" }.to_owned());
                    if !pull_request.reviews.is_empty() && pull_request.waits {
                        note("proposed again".to_owned());
                    }
                }
                if phase.attempt_number() > 2 {
                    note("third attempt".to_owned());
                }
            }
            note(step.after.state.to_string());
            for escalation in &step.after.escalations {
                note(escalation.reason.to_string());
            }
        });
    }
    let states = PhaseState::ALL.iter().map(|s| s.as_str()).chain(TaskState::ALL.iter().map(|s| s.as_str()));
    let reasons = refile_core::task::EscalationReason::ALL.iter().map(|r| r.as_str());
    for what in states.chain(reasons).chain(["third attempt", "proposed", "not proposed any more"]) {
        assert!(seen.get(what).is_some_and(|n| *n >= 5), "`{what}` was seen {:?} times", seen.get(what));
    }
    // Many steps have to go well before it.
    assert!(seen.contains_key("proposed again"), "{seen:?}");
}
