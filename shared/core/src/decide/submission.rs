//! A task begins.

use super::draft::Draft;
use super::{Transition, What};
use crate::id::{TaskId, Timestamp};
use crate::policy::Policy;
use crate::task::{Phase, PhaseLimits, Priority, Task, TaskState, Usage};

/// The name of the built-in workflow, which has a single phase.
pub const CHANGE: &str = "change";

/// What is submitted.
#[derive(Debug, Clone, PartialEq)]
pub struct NewTask {
    /// One line for people.
    pub title: String,
    /// What is wanted; the agent reads this.
    pub description: String,
    /// The repository: a path or a URL.
    pub repository: String,
    /// The base branch.
    pub base: String,
    /// Which tasks go first.
    pub priority: Priority,
    /// An idempotency key: a second task with the same one is the first.
    pub key: Option<String>,
    /// Free words to find it by.
    pub labels: Vec<String>,
    /// The workflow that it goes through.
    pub workflow: Workflow,
}

/// The graph of phases that a task goes through.
#[derive(Debug, Clone, PartialEq)]
pub struct Workflow {
    /// Its name.
    pub name: String,
    /// Its phases: name, direct predecessors, limits.
    pub phases: Vec<(String, Vec<String>, PhaseLimits)>,
    /// Whether the approved change goes to the base branch.
    pub lands: bool,
}

impl Default for Workflow {
    /// The built-in workflow.
    fn default() -> Self {
        let phase = (CHANGE.to_owned(), Vec::new(), PhaseLimits::default());
        Self { name: CHANGE.to_owned(), phases: vec![phase], lands: true }
    }
}

/// Makes the record of a new task and starts its first phases.
pub fn submit(id: TaskId, new: NewTask, policy: &Policy, now: Timestamp) -> Transition {
    let phases = new.workflow.phases.into_iter().map(|(name, after, limits)| Phase::new(name, after, limits)).collect();
    let task = Task {
        id,
        title: new.title,
        description: new.description,
        repository: new.repository,
        base: new.base,
        workflow: new.workflow.name,
        priority: new.priority,
        key: new.key,
        labels: new.labels,
        lands: new.workflow.lands,
        submitted_at: now,
        updated_at: now,
        finished_at: None,
        state: TaskState::Open,
        phases,
        escalations: Vec::new(),
        spent: Usage::default(),
        spent_before_budget: Usage::default(),
    };
    let title = task.title.clone();
    let mut draft = Draft::new(task, policy, now);
    draft.count("tasks_submitted_total", &[]);
    draft.notify(What::Submitted, title);
    draft.start_ready_phases();
    draft.done()
}
