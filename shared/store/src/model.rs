//! What goes into a store and comes out of it.

mod pauses;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use refile_core::decide::Notice;
use refile_core::task::Job;
use refile_core::{Outcome, Priority, Queue, Task, TaskId, TaskState, Timestamp};
use serde::{Deserialize, Serialize};

pub use pauses::*;

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

/// What jobs share turns and limits by: repository, workflow, and the agent or the reviewer that does them; of land jobs
/// the base branch.
///
/// The lanes of one queue and priority take turns, so that a backlog in one does not hold up the others.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Lane(String);

/// The last part of a lane of land jobs is this and the base branch.
const LAND: &str = "land:";

/// What the names of limits of landings begin with.
pub(crate) const LANDING: &str = "landing:";

/// Parts of a lane's name are joined by this; it is taken out of the parts.
const UNIT: char = '\u{1f}';

impl Lane {
    /// The lane of a task's phase, by the job that the phase has.
    pub fn of(task: &Task, phase: &str) -> Self {
        let who = match task.phase(phase).and_then(|p| p.job.as_ref()) {
            Some(Job::Code { agent }) => format!("agent:{agent}"),
            Some(Job::Review { reviewer }) => format!("reviewer:{reviewer}"),
            Some(Job::Land) => format!("{LAND}{}", task.base),
            None => String::new(),
        };
        Self([&task.repository, &task.workflow, &who].map(|part| part.replace(UNIT, " ")).join("\u{1f}"))
    }

    /// The name under which an engine keeps it.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Reads [`Lane::as_str`].
    pub fn parse(name: &str) -> Self {
        Self(name.to_owned())
    }
}

/// How many jobs may run at once in the whole fleet, by what they are done on and with. Empty for no limit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Limits {
    /// By name: `repository:URL`, `workflow:NAME`, `agent:NAME`, `reviewer:NAME`, `provider:NAME`, and
    /// [`Limits::landing`].
    pub named: BTreeMap<String, u32>,
    /// Of each repository that is not named.
    pub each_repository: Option<u32>,
    /// Of landings on each base branch of each repository that is not named.
    pub each_landing: Option<u32>,
    /// Which providers (`provider:NAME`, each once) an agent (`agent:NAME`) or a reviewer (`reviewer:NAME`) calls. A job
    /// counts once against each.
    pub providers: BTreeMap<String, Vec<String>>,
}

impl Limits {
    /// Whether nothing is limited.
    pub fn is_empty(&self) -> bool {
        self.is_for_landings_alone() && self.each_landing.is_none()
    }

    /// Whether nothing but landings is limited.
    pub fn is_for_landings_alone(&self) -> bool {
        self.named.keys().all(|name| name.starts_with(LANDING)) && self.each_repository.is_none()
    }

    /// The name that landings on a base branch of a repository are limited by.
    pub fn landing(repository: &str, base: &str) -> String {
        format!("{LANDING}{} {base}", repository.replace(UNIT, " "))
    }

    /// The names whose limits a lane's jobs count against, with those limits.
    pub fn of(&self, lane: &Lane) -> Vec<(String, u32)> {
        let mut parts = lane.0.splitn(3, UNIT);
        let address = parts.next().unwrap_or_default();
        let repository = format!("repository:{address}");
        let workflow = format!("workflow:{}", parts.next().unwrap_or_default());
        let who = parts.next().unwrap_or_default().to_owned();
        let providers = self.providers.get(&who).cloned().unwrap_or_default();
        let most = |name: &String| {
            let each = self.each_repository.filter(|_| name.starts_with("repository:"));
            self.named.get(name).copied().or(each)
        };
        let landing = who.strip_prefix(LAND).map(|base| Self::landing(address, base));
        let landing = landing.and_then(|name| {
            let most = self.named.get(&name).copied().or(self.each_landing)?;
            Some((name, most))
        });
        let names = [repository, workflow, who].into_iter().chain(providers);
        names.filter_map(|n| most(&n).map(|most| (n, most))).chain(landing).collect()
    }
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
