//! What goes into a store and comes out of it.
//!
//! # Layout
//! - here: commits, claims, leases, reports, outcomes that are taken
//! - `lanes`: what jobs take turns by, and what limits how many run at once
//! - `pauses`: pauses, and calls that are let through beside them
//! - `views`: what people and metrics see

mod lanes;
mod pauses;
mod views;

use std::sync::Arc;
use std::time::Duration;

use refile_core::decide::Notice;
use refile_core::{Outcome, Queue, Task, TaskId};

pub use lanes::*;
pub use pauses::*;
pub use views::*;

/// A change of one task as one atomic step; made by [`crate::commit`].
#[derive(Debug, Clone, PartialEq)]
pub struct Commit {
    /// The new record.
    pub task: Task,
    /// The version of the record that the transition was decided on; ignored by `submit`.
    pub version: u64,
    /// The outcome that it was decided for.
    pub guard: Option<Guard>,
    /// What happens to the task's jobs.
    pub jobs: Vec<JobChange>,
    /// Lines for the event log.
    pub notices: Vec<Notice>,
    /// What counters and gauges change by.
    pub deltas: Vec<(String, i64)>,
}

/// The outcome that a commit is decided for: it counts only while the fence stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guard {
    /// The phase whose outcome it is.
    pub phase: String,
    /// The fence that the outcome carries.
    pub fence: u64,
    /// The outcome's place in the store.
    pub receipt: Receipt,
}

/// The place of a taken outcome in the store.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Receipt {
    /// The task that the outcome is about.
    pub task: TaskId,
    /// The engine's own name for it.
    pub id: String,
}

/// What happens to the job of a phase.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobChange {
    /// It has this job now, whatever it had.
    Put {
        /// The phase.
        phase: String,
        /// The queue.
        queue: Queue,
        /// The attempt that the job is for.
        attempt: u32,
        /// How long to wait first, in milliseconds.
        delay_ms: u64,
        /// The jobs that it shares a turn with.
        lane: Lane,
    },
    /// It has none.
    Drop {
        /// The phase.
        phase: String,
    },
}

/// What became of a submission.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Submitted {
    /// The task that is in the store now.
    pub id: TaskId,
    /// Whether this call added it.
    pub added: bool,
}

/// Which jobs a worker wants.
#[derive(Debug, Clone)]
pub struct ClaimRequest {
    /// From these queues, in this order.
    pub queues: Vec<Queue>,
    /// The worker's name, unique per start of the process.
    pub owner: String,
    /// At most so many.
    pub max: usize,
    /// How long the claim holds without a heartbeat.
    pub lease: Duration,
    /// How long to wait for the first.
    pub wait: Duration,
    /// What may run at once.
    pub limits: Arc<Limits>,
}

/// A worker's temporary claim on a job.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Lease {
    /// The task.
    pub task: TaskId,
    /// The phase.
    pub phase: String,
    /// The fence that this claim raised; whoever carries an older one is stale.
    pub fence: u64,
    /// The worker.
    pub owner: String,
}

/// A claimed job.
#[derive(Debug, Clone)]
pub struct Claim {
    /// The claim.
    pub lease: Lease,
    /// The queue that the job lay in.
    pub queue: Queue,
    /// The attempt that the job is for.
    pub attempt: u32,
    /// How often the job was delivered, this time included.
    pub deliveries: u32,
    /// How long the job lay ready in its queue, in milliseconds.
    pub waited_ms: u64,
    /// The task.
    pub task: Task,
}

/// Whether a lease still holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseState {
    /// It holds.
    Held,
    /// It ran out, or the job went to somebody else.
    Lost,
    /// It is void: the task was cancelled.
    Cancelled,
}

/// An outcome that a worker hands in.
#[derive(Debug, Clone)]
pub struct Report {
    /// The claim that it ends.
    pub lease: Lease,
    /// What happened.
    pub outcome: Outcome,
}

/// What became of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reported {
    /// A coordinator will decide on it.
    Accepted,
    /// The lease was no longer the reporter's: nothing changed.
    Stale,
}

/// Which outcomes a coordinator wants.
#[derive(Debug, Clone)]
pub struct TakeRequest {
    /// The coordinator's name, unique per start of the process.
    pub consumer: String,
    /// At most so many.
    pub max: usize,
    /// How long to wait for the first.
    pub wait: Duration,
    /// What another took and left for so long is taken over.
    pub takeover: Duration,
}

/// A taken outcome.
#[derive(Debug, Clone)]
pub struct Taken {
    /// The phase that it is about.
    pub phase: String,
    /// The attempt that the job was for.
    pub attempt: u32,
    /// The fence that it carries and where it lies.
    pub guard: Guard,
    /// What happened.
    pub happening: Happening,
    /// The task's record.
    pub task: Versioned,
}

/// What an entry of the outcome queue says.
// Few of these live at a time; a box would only add a word to read.
#[allow(clippy::large_enum_variant)]
#[derive(Debug, Clone, PartialEq)]
pub enum Happening {
    /// A worker reported this.
    Outcome(Box<Outcome>),
    /// The job was delivered this often and nobody reported.
    Poisoned {
        /// How often.
        deliveries: u32,
    },
}

/// What became of a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Committed {
    /// It is done.
    Applied,
    /// The outcome's fence was no longer the job's: nothing changed but that the outcome is gone.
    Stale,
    /// The record had changed since it was read: nothing changed. Read, decide and commit again.
    Conflict,
}

/// What [`crate::Store::promote`] did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Promoted {
    /// How many jobs are in their queues now.
    pub moved: usize,
    /// In how many milliseconds the next one is due.
    pub next_in_ms: Option<u64>,
}

/// What [`crate::Store::reclaim`] did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reclaimed {
    /// How many jobs went back into their queues.
    pub redelivered: usize,
    /// How many were given up.
    pub poisoned: usize,
    /// In how many milliseconds the next lease runs out.
    pub next_in_ms: Option<u64>,
}

/// A record and its version.
#[derive(Debug, Clone, PartialEq)]
pub struct Versioned {
    /// The record.
    pub task: Task,
    /// Grows by one with every commit.
    pub version: u64,
}
