//! The record of a task: its phases, what was approved, what waits for people and what they decided.
//!
//! # Layout
//! - `states`: the states and reasons by name
//! - `attempt`: one attempt, what was said of it, and why it was rejected
//! - `call`: one call of a model
//! - `pull_request`: where changes land by one

mod states;
mod attempt;
mod call;
mod pull_request;

use serde::{Deserialize, Serialize};

use crate::id::{TaskId, Timestamp};
use crate::person::{Actor, PersonDecision};
use crate::policy::OnExhausted;
use crate::verdict::VerdictKind;
pub(crate) use attempt::leading_rejection;
pub use attempt::{Attempt, Change, Forgiven, Rejection, Review};
pub use call::{Call, HUMAN};
pub use pull_request::PullRequest;
pub use states::{AttemptOutcome, Cause, EscalationReason, PhaseState, Priority, Queue, TaskState};

/// What a reader makes of a field that is missing need not be written: records stay small.
fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// One piece of wanted work on one repository.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Task {
    /// Its name.
    pub id: TaskId,
    /// One line for people.
    pub title: String,
    /// What was submitted. It never changes, so a store may keep it apart from the rest.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// The repository: a path or a URL.
    pub repository: String,
    /// The base branch.
    pub base: String,
    /// The workflow's name.
    pub workflow: String,
    /// Which tasks go first.
    pub priority: Priority,
    /// The submitter's idempotency key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Free words to find it by.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<String>,
    /// Whether an approved change goes to the base branch.
    pub lands: bool,
    /// When it was submitted.
    pub submitted_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
    /// When it reached its outcome.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Timestamp>,
    /// Where it stands.
    pub state: TaskState,
    /// The workflow's phases, in order.
    pub phases: Vec<Phase>,
    /// Whatever was ever escalated, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub escalations: Vec<Escalation>,
    /// What agents and reviewers used up.
    #[serde(default, skip_serializing_if = "is_default")]
    pub spent: Usage,
    /// The part of `spent` that no longer counts against the budget, since a person said to go on.
    #[serde(default, skip_serializing_if = "is_default")]
    pub spent_before_budget: Usage,
}

/// What is attempted, gated, reviewed and retried as a unit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    /// Its name, unique in the task.
    pub name: String,
    /// The phases that come directly before it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<String>,
    /// The workflow's own limits for it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub limits: PhaseLimits,
    /// Where it stands.
    pub state: PhaseState,
    /// What it has in a queue or with a worker, and nothing where it waits or is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<Job>,
    /// Attempts beyond the cap that people or later phases granted.
    #[serde(default, skip_serializing_if = "is_default")]
    pub granted: u32,
    /// How often it sent a predecessor back, by the predecessor's name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sent_back: Vec<(String, u32)>,
    /// Every attempt, oldest first. After a predecessor was rerun the numbers start again from 1.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attempts: Vec<Attempt>,
    /// What was approved, while it lands and after.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<Approval>,
    /// The pull request that was opened for it, where changes land by one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pull_request: Option<PullRequest>,
}

/// A workflow's own limits for a phase; `None` takes the fleet's.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PhaseLimits {
    /// The cap on attempts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<u32>,
    /// What follows when the last attempt is rejected by a reviewer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_exhausted: Option<OnExhausted>,
    /// How often it may send each predecessor back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_predecessor_retries: Option<u32>,
}

/// What a worker is asked to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Job {
    /// Make the current attempt with this agent.
    Code {
        /// The agent's name in the configuration.
        agent: String,
    },
    /// Judge the current attempt with this reviewer.
    Review {
        /// The reviewer's name in the configuration.
        reviewer: String,
    },
    /// Bring the approved change to the base branch.
    Land,
}

impl Job {
    /// The queue that it belongs in.
    pub fn queue(&self) -> Queue {
        match self {
            Self::Code { .. } => Queue::Code,
            Self::Review { .. } => Queue::Review,
            Self::Land => Queue::Land,
        }
    }
}

/// What was approved, by whom: landing is bound to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Approval {
    /// The reviewer or the person.
    pub by: Actor,
    /// The attempt's number.
    pub attempt: u32,
    /// The commit that was judged.
    pub head: String,
    /// The patch id of the diff that was judged.
    pub patch_id: String,
    /// A person approved although a gate had failed.
    #[serde(default, skip_serializing_if = "is_default")]
    pub overrides_gates: bool,
    /// The commit on the base branch, once it is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub landed: Option<String>,
    /// Who called the task off while it was landing: nothing is brought to the base any more, and it is only looked
    /// whether it is there already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub called_off: Option<String>,
}

/// A task parked for a person.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Escalation {
    /// `<task>.<n>`.
    pub id: String,
    /// The phase that it is about.
    pub phase: String,
    /// The attempt that it is about.
    pub attempt: u32,
    /// Why.
    pub reason: EscalationReason,
    /// The words behind it.
    pub detail: String,
    /// When.
    pub at: Timestamp,
    /// The job that the phase had: `retry` puts it back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<Job>,
    /// What a person decided; `None` while it is open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision: Option<Decided>,
}

/// A person's decision, as the audit log keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decided {
    /// Who.
    pub by: String,
    /// When.
    pub at: Timestamp,
    /// What.
    pub decision: PersonDecision,
    /// Why, in their words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// The gates that had failed on what they approved.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overridden_gates: Vec<String>,
}

/// What agents and reviewers use up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Tokens read by models.
    pub input_tokens: u64,
    /// Tokens written by models.
    pub output_tokens: u64,
    /// Millionths of a US dollar.
    pub cost_micros: u64,
    /// Working time in milliseconds.
    pub wall_ms: u64,
    /// Nobody knows what a part of it cost: `cost_micros` is the least that it was.
    #[serde(default, skip_serializing_if = "is_default")]
    pub cost_unknown: bool,
}

impl Usage {
    /// Whether a model was paid, as far as anybody said.
    pub fn has_cost(&self) -> bool {
        self.input_tokens > 0 || self.output_tokens > 0 || self.cost_micros > 0
    }

    /// Whether a run that used this up did work, where one of that many milliseconds must have, whatever it said of its cost.
    pub fn is_work(&self, length_ms: u64) -> bool {
        self.has_cost() || self.wall_ms >= length_ms
    }
}

impl std::ops::AddAssign for Usage {
    fn add_assign(&mut self, more: Self) {
        self.input_tokens = self.input_tokens.saturating_add(more.input_tokens);
        self.output_tokens = self.output_tokens.saturating_add(more.output_tokens);
        self.cost_micros = self.cost_micros.saturating_add(more.cost_micros);
        self.wall_ms = self.wall_ms.saturating_add(more.wall_ms);
        self.cost_unknown = self.cost_unknown || more.cost_unknown;
    }
}

impl Task {
    /// The phase of that name.
    pub fn phase(&self, name: &str) -> Option<&Phase> {
        self.phases.iter().find(|p| p.name == name)
    }

    /// The escalations that wait for a person: not decided, and not made pointless since the phase is over.
    pub fn open_escalations(&self) -> impl Iterator<Item = &Escalation> {
        let is_over = |name: &str| self.phase(name).is_some_and(|p| p.state.is_over());
        self.escalations.iter().filter(move |e| e.decision.is_none() && !is_over(&e.phase))
    }

    /// The open escalation of a phase.
    pub fn open_escalation(&self, phase: &str) -> Option<&Escalation> {
        self.open_escalations().find(|e| e.phase == phase)
    }

    /// Every attempt of every phase.
    pub fn attempts(&self) -> impl Iterator<Item = (&Phase, &Attempt)> {
        self.phases.iter().flat_map(|p| p.attempts.iter().map(move |a| (p, a)))
    }

    /// The highest attempt number that any phase is at.
    pub fn attempt_number(&self) -> u32 {
        self.phases.iter().filter_map(|p| p.attempts.last()).map(|a| a.number).max().unwrap_or(0)
    }
}

impl Phase {
    /// A phase that waits for those in `after`.
    pub fn new(name: impl Into<String>, after: Vec<String>, limits: PhaseLimits) -> Self {
        Self {
            name: name.into(),
            after,
            limits,
            state: PhaseState::Waiting,
            job: None,
            granted: 0,
            sent_back: Vec::new(),
            attempts: Vec::new(),
            approval: None,
            pull_request: None,
        }
    }

    /// The pull request that people on the forge have to decide on, where that is what the phase waits for.
    pub fn waiting_pull_request(&self) -> Option<&PullRequest> {
        self.pull_request.as_ref().filter(|p| p.waits)
    }

    /// The models behind its approval: of the last call of the review that gave it; of a panel, of those members' that
    /// approved. None where a person or the policy approved, or no model was asked.
    pub fn approving_models(&self) -> Vec<String> {
        let Some(Approval { by: Actor::Reviewer(name), attempt, .. }) = &self.approval else { return Vec::new() };
        let approves = |review: &&Review| review.failure.is_none() && review.verdict.verdict == VerdictKind::Approved;
        let attempt = self.round().iter().rev().find(|a| a.number == *attempt);
        let approving = attempt.and_then(|a| a.reviews.iter().rev().find(|r| r.reviewer == *name && approves(r)));
        let Some(review) = approving else { return Vec::new() };
        let model = |review: &Review| review.calls.last().map(|call| call.model.clone());
        let of_members: Vec<String> = review.members.iter().filter(approves).filter_map(model).collect();
        let mut models = if of_members.is_empty() { model(review).into_iter().collect() } else { of_members };
        let mut seen = std::collections::BTreeSet::new();
        models.retain(|name| seen.insert(name.clone()));
        models
    }

    /// The attempt that is going on, or was the last.
    pub fn attempt(&self) -> Option<&Attempt> {
        self.attempts.last()
    }

    /// The number of the attempt that is going on, or was the last; 0 before the first.
    pub fn attempt_number(&self) -> u32 {
        self.attempt().map_or(0, |a| a.number)
    }

    /// The attempts since the numbers last started from 1.
    pub fn round(&self) -> &[Attempt] {
        let start = self.attempts.iter().rposition(|a| a.number == 1).unwrap_or(0);
        &self.attempts[start..]
    }

    /// The rejection that leads the attempt that is going on.
    pub fn leading_rejection(&self) -> Option<&Rejection> {
        leading_rejection(self.round())
    }

    /// The change that the attempt that is going on continues from.
    pub fn previous_change(&self) -> Option<&Change> {
        match self.round() {
            [earlier @ .., _] => earlier.iter().rev().find_map(|a| a.change.as_ref()),
            [] => None,
        }
    }
}
