//! A task as people and programs see it. The names here are relied on by scripts.

use refile_core::gate::GateReport;
use refile_core::growth::growth;
use refile_core::prompt::{Carry, prompts};
use refile_core::task::{Attempt, Change, Decided, Escalation, Phase, Rejection, Review, Usage};
use refile_core::{Task, TaskState, Timestamp};
use refile_store::JobView;
use refile_store::error::without_password;
use serde::Serialize;

/// A task in a list.
#[derive(Debug, Clone, Serialize)]
pub struct TaskSummary {
    /// Its name.
    pub id: String,
    /// One line.
    pub title: String,
    /// Where it stands.
    pub state: TaskState,
    /// What its phases do.
    pub phases: Vec<PhaseSummary>,
    /// Its repository.
    pub repository: String,
    /// Its base branch.
    pub base: String,
    /// Its workflow.
    pub workflow: String,
    /// Which tasks go first.
    pub priority: refile_core::Priority,
    /// The submitter's idempotency key.
    pub key: Option<String>,
    /// Words to find it by.
    pub labels: Vec<String>,
    /// When it was submitted, in milliseconds since 1970.
    pub submitted_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
}

/// A phase in a list.
#[derive(Debug, Clone, Serialize)]
pub struct PhaseSummary {
    /// Its name.
    pub name: String,
    /// Where it stands.
    pub state: refile_core::PhaseState,
    /// The attempt that it is at.
    pub attempt: u32,
}

/// A task with all its evidence.
#[derive(Debug, Clone, Serialize)]
pub struct TaskDetail {
    /// What a list shows.
    #[serde(flatten)]
    pub summary: TaskSummary,
    /// What was submitted.
    pub description: String,
    /// How it ended; `null` while it goes on.
    pub outcome: Option<TaskState>,
    /// When it ended.
    pub finished_at: Option<Timestamp>,
    /// Every attempt of every phase, oldest first.
    pub attempts: Vec<AttemptView>,
    /// Where its jobs are.
    pub jobs: Vec<JobView>,
    /// Whatever was escalated.
    pub escalations: Vec<EscalationView>,
    /// The commit on the base branch.
    pub landed: Option<String>,
    /// Its pull request, where it lands by one.
    pub pull_request: Option<refile_core::task::PullRequest>,
    /// What agents and reviewers used up.
    pub spent: Usage,
    /// The changed lines of the attempts, where each attempt changed more than the one before; else `null`.
    pub growing: Option<Vec<u32>>,
}

/// One attempt.
#[derive(Debug, Clone, Serialize)]
pub struct AttemptView {
    /// The phase.
    pub phase: String,
    /// Counted from 1.
    pub number: u32,
    /// The agent that made it.
    pub agent: String,
    /// The whole text that the agent started with.
    pub prompt: String,
    /// SHA-256 (hex) of the prompt that the worker delivered.
    pub prompt_digest: Option<String>,
    /// How it ended; `null` while it goes on.
    pub outcome: Option<refile_core::task::AttemptOutcome>,
    /// What the next attempt must do.
    pub required_change: Option<String>,
    /// Why it was rejected.
    pub rejection: Option<Rejection>,
    /// What the coder left.
    pub change: Option<Change>,
    /// What the gates said.
    pub gates: Vec<GateReport>,
    /// What the reviewers said, failed reviews included.
    pub reviews: Vec<Review>,
    /// Runs of the agent and landings that failed; not charged.
    pub failures: Vec<String>,
    /// Where the transcript lies.
    pub transcript: Option<String>,
    /// When it was put into the queue.
    pub started_at: Timestamp,
    /// When it ended.
    pub finished_at: Option<Timestamp>,
}

/// One escalation.
#[derive(Debug, Clone, Serialize)]
pub struct EscalationView {
    /// Its name.
    pub id: String,
    /// The task that it is about.
    pub task: String,
    /// The task's title.
    pub title: String,
    /// The phase that it is about.
    pub phase: String,
    /// The attempt that it is about.
    pub attempt: u32,
    /// Why.
    pub reason: refile_core::task::EscalationReason,
    /// The words behind it.
    pub detail: String,
    /// When, in milliseconds since 1970.
    pub at: Timestamp,
    /// What a person decided.
    pub decision: Option<Decided>,
}

/// A repository's address without the password that it may hold.
pub fn shown(repository: &str) -> String {
    if repository.contains("://") { without_password(repository) } else { repository.to_owned() }
}

fn phases(task: &Task) -> Vec<PhaseSummary> {
    let phase = |p: &Phase| PhaseSummary { name: p.name.clone(), state: p.state, attempt: p.attempt_number() };
    task.phases.iter().map(phase).collect()
}

/// A task for a list.
pub fn summary(task: &Task) -> TaskSummary {
    TaskSummary {
        id: task.id.to_string(),
        title: task.title.clone(),
        state: task.state,
        phases: phases(task),
        repository: shown(&task.repository),
        base: task.base.clone(),
        workflow: task.workflow.clone(),
        priority: task.priority,
        key: task.key.clone(),
        labels: task.labels.clone(),
        submitted_at: task.submitted_at,
        updated_at: task.updated_at,
    }
}

/// A task with all its evidence.
pub fn detail(task: &Task, jobs: Vec<JobView>, carry: Carry) -> TaskDetail {
    let attempts = task
        .phases
        .iter()
        .flat_map(|phase| {
            let prompts = prompts(task, phase, carry);
            phase.attempts.iter().zip(prompts).map(|(attempt, prompt)| attempt_view(phase, attempt, prompt))
        })
        .collect();
    TaskDetail {
        summary: summary(task),
        description: task.description.clone(),
        outcome: Some(task.state).filter(|s| s.is_final()),
        finished_at: task.finished_at,
        attempts,
        jobs,
        escalations: task.escalations.iter().map(|e| escalation(task, e)).collect(),
        pull_request: task.phases.iter().find_map(|p| p.pull_request.clone()),
        landed: task.phases.iter().find_map(|p| p.approval.as_ref()?.landed.clone()),
        spent: task.spent,
        growing: task.phases.iter().find_map(growth),
    }
}

fn attempt_view(phase: &Phase, attempt: &Attempt, prompt: String) -> AttemptView {
    let failures = attempt.agent_failures.iter().chain(&attempt.land_failures).map(ToString::to_string).collect();
    AttemptView {
        phase: phase.name.clone(),
        number: attempt.number,
        agent: attempt.agent.clone(),
        prompt,
        prompt_digest: attempt.prompt_digest.clone(),
        outcome: attempt.outcome,
        required_change: attempt.rejection.as_ref().map(|r| r.required_change.clone()).filter(|r| !r.is_empty()),
        rejection: attempt.rejection.clone(),
        change: attempt.change.clone(),
        gates: attempt.gates.clone(),
        reviews: attempt.reviews.clone(),
        failures,
        transcript: attempt.transcript.clone(),
        started_at: attempt.started_at,
        finished_at: attempt.finished_at,
    }
}

/// What a person's decision came to.
#[derive(Debug, Clone, Serialize)]
pub struct DecisionView {
    /// The task as it is then.
    #[serde(flatten)]
    pub summary: TaskSummary,
    /// The gates that had failed on what the person approved.
    pub overridden_gates: Vec<String>,
}

/// What the decision on an escalation came to.
pub fn decision(task: &Task, escalation: &str) -> DecisionView {
    let decided = task.escalations.iter().find(|e| e.id == escalation).and_then(|e| e.decision.as_ref());
    let overridden_gates = decided.map(|decided| decided.overridden_gates.clone()).unwrap_or_default();
    DecisionView { summary: summary(task), overridden_gates }
}

/// An escalation with the task that it is about.
pub fn escalation(task: &Task, escalation: &Escalation) -> EscalationView {
    EscalationView {
        id: escalation.id.clone(),
        task: task.id.to_string(),
        title: task.title.clone(),
        phase: escalation.phase.clone(),
        attempt: escalation.attempt,
        reason: escalation.reason,
        detail: escalation.detail.clone(),
        at: escalation.at,
        decision: escalation.decision.clone(),
    }
}
