//! `decide(task, event, policy, now) -> Transition`: what follows from what happened.
//!
//! # Layout
//! - [`submission`]: a task begins
//! - `coding`, `reviewing`, `landing`: what workers report
//! - `person`: what people decide
//! - `forge`: what people decide on a pull request
//! - `draft`: the steps that all of these are made of: refile, requeue, escalate; in `draft/ends`: approve, reject, cancel

pub mod submission;
mod coding;
mod reviewing;
mod landing;
mod person;
mod forge;
mod draft;

use crate::count::{Count, deltas};
use crate::event::{Event, Outcome};
use crate::id::Timestamp;
use crate::names::names;
use crate::policy::Policy;
use crate::task::{Queue, Task};
use draft::Draft;

/// The task as it is now, and what the shell has to carry out in the same atomic step.
#[derive(Debug, Clone, PartialEq)]
pub struct Transition {
    /// The new record.
    pub task: Task,
    /// What goes with it, in order.
    pub effects: Vec<Effect>,
}

/// Something that the shell carries out.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// The phase gets this job, in place of any that it had.
    Enqueue {
        /// The phase.
        phase: String,
        /// The queue.
        queue: Queue,
        /// The attempt that the job is for.
        attempt: u32,
        /// How long to wait first, in milliseconds.
        delay_ms: u64,
    },
    /// The phase loses its job, whoever has it.
    Drop {
        /// The phase.
        phase: String,
    },
    /// People and programs that watch are told.
    Notify(Notice),
    /// A counter goes up by one.
    Count(Count),
}

/// One line of the fleet's event log.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Notice {
    /// What happened.
    pub what: What,
    /// The phase, or nothing where the whole task is meant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// The attempt's number, 0 where there is none.
    pub attempt: u32,
    /// The words behind it.
    pub detail: String,
}

names! {
    /// The kinds of [`Notice`].
    What {
        /// A task was submitted.
        Submitted = "submitted",
        /// An attempt was put into the queue.
        AttemptStarted = "attempt_started",
        /// A coder left a change and every gate passed.
        Coded = "coded",
        /// A gate failed.
        GateFailed = "gate_failed",
        /// The agent could not do its part; not charged.
        AgentFailed = "agent_failed",
        /// The change goes to a reviewer that should not judge it, since there is no other.
        SameModel = "same_model",
        /// A reviewer gave a verdict.
        Reviewed = "reviewed",
        /// A review failed; not charged.
        ReviewFailed = "review_failed",
        /// The next attempt is led by the rejection.
        Refiled = "refiled",
        /// The same job was put back; not charged.
        Requeued = "requeued",
        /// The change was approved.
        Approved = "approved",
        /// A pull request was opened or updated, merged or closed.
        PullRequest = "pull_request",
        /// The change was brought onto a base that had moved.
        Rebased = "rebased",
        /// The landing did not come about; not charged.
        LandingFailed = "landing_failed",
        /// The approved change does not go onto the base.
        LandingRejected = "landing_rejected",
        /// A person is needed.
        Escalated = "escalated",
        /// A person decided.
        Decided = "decided",
        /// A later phase sent this one back.
        SentBack = "sent_back",
        /// The task reached its outcome.
        Finished = "finished",
    }
}

/// Why an event changes nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It belongs to a job that the phase no longer has.
    #[error("stale: {0}")]
    Stale(String),
    /// It is not possible as things stand; the text says why and what is.
    #[error("{0}")]
    NotAllowed(String),
}

impl Transition {
    /// What the store's counters and gauges change by.
    pub fn deltas(&self, before: Option<&Task>) -> Vec<(String, i64)> {
        let counted = self.effects.iter().filter_map(|e| match e {
            Effect::Count(count) => Some(count),
            _ => None,
        });
        deltas(before, &self.task, counted)
    }

    /// The lines for the event log.
    pub fn notices(&self) -> impl Iterator<Item = &Notice> {
        self.effects.iter().filter_map(|e| match e {
            Effect::Notify(notice) => Some(notice),
            _ => None,
        })
    }
}

/// Decides what follows from an event. Pure: equal arguments give equal results.
///
/// An event that does not fit the task as it stands is refused and changes nothing.
pub fn decide(task: &Task, event: &Event, policy: &Policy, now: Timestamp) -> Result<Transition, Refusal> {
    let draft = Draft::new(task.clone(), policy, now);
    match event {
        Event::Outcome { phase, attempt, outcome } => {
            let draft = draft.with_phase(phase)?.for_attempt(*attempt)?;
            match outcome {
                Outcome::Coded { change, gates, prompt_digest, transcript, usage } => {
                    let ran = coding::Ran { prompt_digest: Some(prompt_digest), transcript, usage: *usage };
                    coding::coded(draft, change, gates, ran)
                }
                Outcome::AgentFailed { failure, prompt_digest, transcript, usage, change } => {
                    let ran = coding::Ran { prompt_digest: prompt_digest.as_ref(), transcript, usage: *usage };
                    coding::agent_failed(draft, failure, change.as_ref(), ran)
                }
                Outcome::NeedsInput { words, prompt_digest, transcript, usage } => {
                    let ran = coding::Ran { prompt_digest: Some(prompt_digest), transcript, usage: *usage };
                    coding::needs_input(draft, words, ran)
                }
                Outcome::Reviewed(review) => reviewing::reviewed(draft, review),
                Outcome::Landed { commit } => landing::landed(draft, commit),
                Outcome::PullRequestOpen { pull_request } => forge::opened(draft, pull_request),
                Outcome::PullRequestEnded { pull_request, news } => forge::ended(draft, pull_request, news),
                Outcome::Rebased { change } => landing::rebased(draft, change),
                Outcome::LandingRejected { gate } => landing::rejected(draft, gate),
                Outcome::CalledOff => landing::called_off(draft),
                Outcome::LandingFailed { failure } => landing::failed(draft, failure),
            }
        }
        Event::Poisoned { phase, why } => Ok(draft.with_phase(phase)?.poisoned(why)),
        Event::Decided { escalation, decision, by, note } => {
            person::decided(draft, escalation, decision, by, note.as_deref())
        }
        Event::Forge { phase, number, news } => forge::news(draft, phase, *number, news),
        Event::Cancelled { by } => person::cancelled(draft, by),
    }
}
