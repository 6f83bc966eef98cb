//! Random histories: policies, workflows and moves, and what is tried on a task.

use proptest::prelude::*;
use refile_core::decide::submission::Workflow;
use refile_core::policy::{Budget, OnExhausted, Reviewer};
use refile_core::task::PhaseLimits;
use refile_core::{Effect, Event, Job, Policy, Task};

use super::{World, workflow};

/// The workflows that histories run on.
pub(crate) const WORKFLOWS: &[&str] = &[
    "change",
    "plan, build<plan, ship<build",
    "plan, build<plan, docs<plan, ship<build+docs",
    "left, right",
    "left, right, join<left+right",
];

/// Everything that a step's text may say, and how often it is drawn. `{p}` is another phase's name.
pub(crate) const STEPS: &[&str] = &[
    "coded",
    "coded",
    "coded",
    "coded",
    "coded same",
    "gate lint",
    "gate lint same",
    "gate empty_diff",
    "agent-failed crash",
    "agent-failed timeout",
    "asks",
    "approved 0.9",
    "approved 0.9",
    "approved 0.9",
    "approved 0.6",
    "approved 0.9 stale",
    "approved NaN",
    "needs_changes 0.9",
    "needs_changes 0.8 Add a test.",
    "needs_changes 1 {long}",
    "needs_changes 0.2",
    "needs_changes 0.9 blank",
    "reject 0.9",
    "reject 0.3",
    "escalate 0.1",
    "retry 0",
    "review-failed malformed",
    "retry_predecessor 0.9 phase:{p}",
    "retry_predecessor 0.9 phase:{p}",
    "retry_predecessor 0.1 phase:{p}",
    "landed",
    "landed",
    "rebased",
    "opened",
    "opened",
    "conflict",
    "land-failed network",
    "called-off",
    "poison",
    "person approve",
    "person refile Do it again.",
    "person refile 2x Do it right.",
    "person retry",
    "person retry",
    "person reject",
    "cancel",
    "forge merged",
    "forge @8 merged",
    "forge closed",
    "forge closed ann",
    "forge conflicts",
    "forge moved",
    "forge not-yet Checks run.",
    "ended merged",
    "ended closed ann",
    "forge changes new Name the port. It is 80.",
    "forge changes new {long}",
    "forge changes new",
    "forge changes r1 Again.",
];

/// What people do with a pull request that waits for them.
pub(crate) const OF_THE_FORGE: &[&str] = &[
    "forge merged",
    "forge closed",
    "forge closed ann",
    "forge conflicts",
    "forge moved",
    "forge moved",
    "forge not-yet Checks run.",
    "forge changes new Name the port. It is 80.",
    "forge changes new Say why.",
    "forge changes new Add a test.",
    "forge changes new Add a word.",
    "forge changes new Add a line.",
    "forge changes r1 Again.",
    "person refile Do it again.",
    "coded",
];

/// The steps that no person takes, by the queue of the job that they end.
pub(crate) const OF_WORKERS: [&[&str]; 3] = [
    &["coded", "coded same", "gate lint", "gate empty_diff", "agent-failed crash", "no-gate configuration", "coded"],
    &[
        "approved 0.9",
        "approved 0.9",
        "approved 0.9",
        "approved 0.5",
        "needs_changes 0.9",
        "needs_changes 0.9 {long}",
        "retry 0",
        "review-failed timeout",
        "retry_predecessor 0.9 phase:{p}",
        "approved 0.9 stale",
    ],
    &["rebased", "conflict", "land-failed network", "rebased", "landed", "opened", "opened", "opened"],
];

/// One random move, meant for whatever the task is at when it comes.
#[derive(Debug, Clone)]
pub(crate) struct Move {
    step: prop::sample::Index,
    phase: prop::sample::Index,
    other: prop::sample::Index,
    /// Aim at a phase that has a job, so that most histories get somewhere.
    aimed: bool,
    /// What is added to the attempt's number: mostly nothing.
    late: i8,
}

pub(crate) fn moves() -> impl Strategy<Value = Vec<Move>> {
    let at = any::<prop::sample::Index>;
    let late = prop_oneof![12 => Just(0_i8), 1 => Just(-1), 1 => Just(1)];
    let one = (at(), at(), at(), prop::bool::weighted(0.8), late);
    let one = one.prop_map(|(step, phase, other, aimed, late)| Move { step, phase, other, aimed, late });
    prop::collection::vec(one, 1..60)
}

pub(crate) fn on_exhausted() -> impl Strategy<Value = OnExhausted> {
    prop::sample::select(vec![OnExhausted::Escalate, OnExhausted::Accept, OnExhausted::Reject])
}

pub(crate) fn policies() -> impl Strategy<Value = Policy> {
    let ladder = prop::sample::select(vec![vec!["a"], vec!["a", "b"], vec!["a", "b", "c"]]);
    let ann = || Reviewer { is_person: true, ..Reviewer::from("ann") };
    let reviewers = prop::sample::select(vec![vec!["r".into()], vec!["r".into(), "s".into()], vec!["r".into(), ann()]]);
    let budget = prop_oneof![Just(None), (1_u64..1_500).prop_map(Some)];
    let tries = (1_u32..4, 1_u32..4, 1_u32..4, 1_u32..4, 1_u32..4, 0_u32..3);
    (tries, on_exhausted(), ladder, reviewers, budget).prop_map(|(tries, on_exhausted, ladder, reviewers, tokens)| {
        Policy {
            max_attempts: tries.0,
            max_reviews: tries.1,
            max_review_failures: tries.2,
            max_infra_failures: tries.3,
            max_land_failures: tries.4,
            max_predecessor_retries: tries.5,
            on_exhausted,
            ladder: ladder.into_iter().map(str::to_owned).collect(),
            reviewers,
            budget: Budget { tokens, ..Budget::default() },
            ..Policy::default()
        }
    })
}

pub(crate) fn workflows() -> impl Strategy<Value = Workflow> {
    let limits = (prop::option::of(1_u32..4), prop::option::of(on_exhausted()), prop::option::of(0_u32..3));
    let limits = limits.prop_map(|(max_attempts, on_exhausted, max_predecessor_retries)| PhaseLimits {
        max_attempts,
        on_exhausted,
        max_predecessor_retries,
    });
    let shape = (prop::sample::select(WORKFLOWS), prop::bool::weighted(0.8), prop::collection::vec(limits, 4));
    shape.prop_map(|(phases, lands, limits)| {
        let mut made = workflow(phases);
        made.lands = lands;
        for (phase, limits) in made.phases.iter_mut().zip(limits) {
            phase.2 = limits;
        }
        made
    })
}

/// One step of a history, as the checks see it.
pub(crate) struct Step<'a> {
    pub(crate) before: &'a Task,
    pub(crate) event: &'a Event,
    pub(crate) after: &'a Task,
    pub(crate) effects: &'a [Effect],
    pub(crate) policy: &'a Policy,
}

/// Runs a history and shows each step that changed something; a refused one must change nothing.
pub(crate) fn drive(policy: Policy, workflow: Workflow, moves: &[Move], mut check: impl FnMut(&Step<'_>)) -> World {
    let mut world = World::of(policy, workflow);
    for one in moves {
        let event = event(&mut world, one);
        let before = world.task.clone();
        match world.apply(&event) {
            Ok(done) => check(&Step {
                before: &before,
                event: &event,
                after: &done.task,
                effects: &done.effects,
                policy: &world.policy,
            }),
            Err(_) => assert_eq!(world.task, before),
        }
    }
    world
}

pub(crate) fn text(world: &World, template: &str, other: prop::sample::Index) -> String {
    let other = other.get(&world.task.phases).name.clone();
    template.replace("{p}", &other).replace("{long}", &"Handle ünïcode thoroughly, ".repeat(300))
}

pub(crate) fn event(world: &mut World, one: &Move) -> Event {
    let goes_on = |p: &&refile_core::Phase| p.job.is_some() || p.waiting_pull_request().is_some();
    let busy: Vec<String> = world.task.phases.iter().filter(goes_on).map(|p| p.name.clone()).collect();
    let phase = if one.aimed && !busy.is_empty() {
        one.phase.get(&busy).clone()
    } else {
        one.phase.get(&world.task.phases).name.clone()
    };
    let queue = world.task.phase(&phase).and_then(|p| p.job.as_ref()).map(Job::queue);
    let step = match queue {
        Some(queue) if one.aimed => one.step.get(OF_WORKERS[queue as usize]),
        None if one.aimed && world.task.phase(&phase).is_some_and(|p| p.waiting_pull_request().is_some()) => {
            one.step.get(OF_THE_FORGE)
        }
        _ => one.step.get(STEPS),
    };
    let step = text(world, step, one.other);
    let mut event = world.event(&format!("{phase}: {step}"));
    if let Event::Outcome { attempt, .. } = &mut event {
        *attempt = attempt.saturating_add_signed(i32::from(one.late));
    }
    event
}
