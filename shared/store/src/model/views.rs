//! What people and metrics see of a store: lists, jobs, statistics, the event log, processes, what is set aside.

use std::collections::BTreeMap;

use refile_core::decide::Notice;
use refile_core::{Priority, Queue, Task, TaskId, TaskState, Timestamp};
use serde::{Deserialize, Serialize};

/// Which tasks to list. An empty filter is all of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// In one of these states; empty for any.
    pub states: Vec<TaskState>,
    /// Of this repository.
    pub repository: Option<String>,
    /// With this label.
    pub label: Option<String>,
    /// With this text in id or title, whatever its case.
    pub text: Option<String>,
}

impl Filter {
    /// Whether a task is meant.
    pub fn matches(&self, task: &Task) -> bool {
        let contains = |text: &String| {
            let text = text.to_lowercase();
            task.title.to_lowercase().contains(&text) || task.id.as_str().contains(&text)
        };
        (self.states.is_empty() || self.states.contains(&task.state))
            && self.repository.as_ref().is_none_or(|r| *r == task.repository)
            && self.label.as_ref().is_none_or(|l| task.labels.contains(l))
            && self.text.as_ref().is_none_or(contains)
    }
}

/// Where a listing goes on: the sequence number of the last task seen. Opaque to everyone but the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Cursor(pub u64);

/// One page of a listing.
#[derive(Debug, Clone, Default)]
pub struct Page {
    /// The tasks, newest first.
    pub tasks: Vec<Task>,
    /// Where the next page starts; `None` at the end.
    pub next: Option<Cursor>,
    /// Tasks whose records this version of the program cannot read.
    pub undecodable: Vec<TaskId>,
}

/// Where a job is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// Ready in its queue.
    Queued,
    /// Waiting for its time.
    Delayed,
    /// With a worker.
    Leased,
    /// Reported; a coordinator decides.
    Reported,
    /// Not decodable; waiting for an operator.
    Quarantined,
}

/// One job of a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct JobView {
    /// The phase.
    pub phase: String,
    /// Where it is.
    pub place: Place,
    /// The queue that it belongs in.
    pub queue: Queue,
    /// Its priority.
    pub priority: Priority,
    /// The attempt that it is for.
    pub attempt: u32,
    /// Its fence.
    pub fence: u64,
    /// How often it was delivered.
    pub deliveries: u32,
    /// Who has it, or reported it.
    pub owner: Option<String>,
}

/// Counters, gauges, depths and ages at one moment.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Stats {
    /// Counters and gauges by [`refile_core::count::Count::key`].
    pub counts: BTreeMap<String, i64>,
    /// Jobs that are ready, by queue and priority.
    pub depth: BTreeMap<(Queue, Priority), u64>,
    /// How long the oldest ready job of each queue has waited, in milliseconds.
    pub oldest_ms: BTreeMap<Queue, u64>,
    /// Jobs with workers, by queue.
    pub leases: BTreeMap<Queue, u64>,
    /// Jobs that wait for their time.
    pub delayed: u64,
    /// Outcomes that no coordinator has decided yet.
    pub outcomes: u64,
    /// Jobs and outcomes in quarantine.
    pub quarantined: u64,
    /// How long the oldest open escalation has waited, in milliseconds: since the task's record last changed.
    pub oldest_escalation_ms: Option<u64>,
    /// The processes that said so within the last minute.
    pub workers: Vec<Presence>,
}

/// One line of the event log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoggedEvent {
    /// Where the log goes on after it.
    pub cursor: String,
    /// When.
    pub at: Timestamp,
    /// Which task.
    pub task: TaskId,
    /// What happened.
    #[serde(flatten)]
    pub notice: Notice,
}

/// A process of the fleet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Presence {
    /// Its name, unique per start.
    pub id: String,
    /// `coordinator`, `coder` or `reviewer`.
    pub role: String,
    /// The machine's name.
    pub host: String,
    /// Its number there.
    pub pid: u32,
    /// How many jobs it is doing.
    pub running: u32,
}

/// Something that could not be decoded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quarantined {
    /// What to replay it by.
    pub id: String,
    /// The task that it is about.
    pub task: TaskId,
    /// The phase that it is about.
    pub phase: String,
    /// What it is: a job whose record, or an outcome whose payload, cannot be read.
    pub what: String,
    /// Why it cannot be decoded.
    pub reason: String,
}
