//! From the scripts' replies to the model. Everything that comes out of the server is parsed here, strictly.

use redis::{FromRedisValue, Value};
use refile_core::{Outcome, Priority, Queue, Task, TaskId};
use serde::Deserialize;

use super::is_known_count;
use crate::envelope::{DecodeError, decode, encode_into};
use crate::model::{
    Claim, Committed, Guard, Happening, JobView, Lease, Place, Quarantined, Receipt, Stats, Taken, Versioned,
};
use crate::{Result, StoreError};

/// Something that could not be decoded, as `quarantine.lua` takes it.
pub(super) struct Broken {
    pub(super) kind: &'static str,
    pub(super) id: String,
    pub(super) task: String,
    pub(super) phase: String,
    pub(super) reason: String,
}

fn odd(operation: &'static str, what: impl Into<crate::error::Cause>) -> StoreError {
    StoreError::Engine { operation, source: what.into() }
}

/// Reads a reply of a known shape.
pub(super) fn read<T: FromRedisValue>(operation: &'static str, reply: Value) -> Result<T> {
    T::from_redis_value(reply).map_err(|error| odd(operation, error))
}

pub(super) fn committed(what: &str) -> Result<Committed> {
    match what {
        "a" | "r" => Ok(Committed::Applied),
        "s" => Ok(Committed::Stale),
        // A task that is nowhere has no version.
        "c" | "m" => Ok(Committed::Conflict),
        other => Err(odd("commit", format!("unknown result `{other}`"))),
    }
}

/// A record and its version. They are stored as one value, so that nobody reads one of them without the other.
#[derive(Debug, Default)]
pub(super) struct Record {
    bytes: Vec<u8>,
    description: Vec<u8>,
    pub(super) version: u64,
}

/// How long the version before the record is, in bytes; the most significant one is first.
const VERSION: usize = size_of::<u64>();

impl Record {
    /// Reads a stored value; nothing where it is too short to be one.
    pub(super) fn read(mut value: Vec<u8>, description: Vec<u8>) -> Option<Self> {
        let version = u64::from_be_bytes(*value.first_chunk::<VERSION>()?);
        value.drain(..VERSION);
        Some(Self { bytes: value, description, version })
    }

    /// The value to store. The description never changes and is stored apart.
    pub(super) fn write(task: &Task, version: u64) -> std::result::Result<Vec<u8>, rmp_serde::encode::Error> {
        let mut value = version.to_be_bytes().to_vec();
        encode_into(&mut value, &Task { description: String::new(), ..task.clone() })?;
        Ok(value)
    }

    pub(super) fn decode(self) -> std::result::Result<Task, DecodeError> {
        let task: Task = decode(&self.bytes)?;
        let description = String::from_utf8(self.description).map_err(|_| DecodeError::Description)?;
        Ok(Task { description, ..task })
    }
}

/// A job that `claim.lua` handed out; its record is read afterwards.
pub(super) struct Leased {
    pub(super) task: TaskId,
    phase: String,
    queue: Queue,
    attempt: u32,
    fence: u64,
    deliveries: u32,
    waited_ms: u64,
}

/// What `claim.lua` gave.
pub(super) struct Leases {
    /// What was leased; what cannot be read is to be set apart.
    pub(super) jobs: Vec<std::result::Result<Leased, Broken>>,
    /// The queues that have more.
    pub(super) more: Vec<String>,
    /// The jobs' records; nothing where there are too many for a script.
    pub(super) records: Option<Vec<Option<Record>>>,
}

/// Reads what `claim.lua` gave.
pub(super) fn leases(reply: Value) -> Result<Leases> {
    let (now, rows, more, records): (u64, Vec<String>, Vec<String>, Vec<Vec<u8>>) = read("claim", reply)?;
    let jobs = rows.chunks_exact(3).map(|row| {
        one_leased(now, &row[0], &row[1], &row[2]).ok_or_else(|| {
            let (task, phase) = row[0].split_once('/').unwrap_or_default();
            Broken {
                kind: "job",
                id: row[2].split(' ').next().unwrap_or_default().to_owned(),
                task: task.to_owned(),
                phase: phase.to_owned(),
                reason: format!("its job cannot be read: `{}`", row[2]),
            }
        })
    });
    let record = |pair: &[Vec<u8>]| Record::read(pair[0].clone(), pair[1].clone());
    let records = (!records.is_empty()).then(|| records.chunks_exact(2).map(record).collect());
    Ok(Leases { jobs: jobs.collect(), more, records })
}

fn one_leased(now: u64, name: &str, entry: &str, stored: &str) -> Option<Leased> {
    // A phase's name may hold a slash; the task's holds none.
    let (task, phase) = name.split_once('/')?;
    let JobView { queue, attempt, fence, deliveries, .. } = job(phase, stored).ok()??;
    let since: u64 = entry.split_once('-')?.0.parse().ok()?;
    let waited_ms = now.saturating_sub(since);
    let task = TaskId::parse(task).ok()?;
    Some(Leased { task, phase: phase.to_owned(), queue, attempt, fence, deliveries, waited_ms })
}

impl Leased {
    /// Its lease.
    pub(super) fn lease(&self, owner: &str) -> Lease {
        let Self { task, phase, fence, .. } = self;
        Lease { task: task.clone(), phase: phase.clone(), fence: *fence, owner: owner.to_owned() }
    }

    /// With its record. One that cannot be decoded is set apart.
    pub(super) fn with(self, record: Option<Record>, owner: &str) -> std::result::Result<Claim, Broken> {
        let Self { task: id, phase, queue, attempt, fence, deliveries, waited_ms } = self;
        match record.unwrap_or_default().decode() {
            Ok(task) => {
                let lease = Lease { task: id, phase, fence, owner: owner.to_owned() };
                Ok(Claim { lease, queue, attempt, deliveries, waited_ms, task })
            }
            Err(error) => Err(Broken {
                kind: "job",
                id: fence.to_string(),
                task: id.to_string(),
                phase,
                reason: error.to_string(),
            }),
        }
    }
}

/// An entry of the outcomes' stream: its id, and its fields.
pub(super) type Entry = (String, Vec<(String, Vec<u8>)>);

/// What `XREADGROUP` gives of one stream.
pub(super) fn entries(reply: Value) -> Result<Vec<Entry>> {
    let streams: Option<Vec<(String, Vec<Entry>)>> = read("take", reply)?;
    Ok(streams.unwrap_or_default().into_iter().flat_map(|(_, entries)| entries).collect())
}

/// A reported outcome; the record that it is about is read afterwards.
pub(super) struct Outgoing {
    entry: String,
    pub(super) task: TaskId,
    phase: String,
    fence: u64,
    attempt: u32,
    payload: Vec<u8>,
}

/// Reads an entry. One that is none of an outcome is set apart.
pub(super) fn outgoing((id, mut fields): Entry) -> std::result::Result<Outgoing, Broken> {
    let read = |name: &str| {
        let mut parts = name.split('/');
        let task = TaskId::parse(parts.next()?).ok()?;
        // A phase's name may hold what stands between the parts.
        let (attempt, fence) = (parts.next_back()?.parse().ok()?, parts.next_back()?.parse().ok()?);
        Some((task, parts.collect::<Vec<_>>().join("/"), fence, attempt))
    };
    let first = fields.pop().filter(|_| fields.is_empty());
    match first.and_then(|(name, payload)| Some((read(&name)?, payload))) {
        Some(((task, phase, fence, attempt), payload)) => {
            Ok(Outgoing { entry: id, task, phase, fence, attempt, payload })
        }
        None => Err(Broken {
            kind: "outcome",
            id,
            task: "unknown".to_owned(),
            phase: String::new(),
            reason: "the entry is not one of an outcome".to_owned(),
        }),
    }
}

impl Outgoing {
    /// With its record and that one's version. One that cannot be decoded is set apart.
    pub(super) fn with(self, partition: u32, record: Option<Record>) -> std::result::Result<Taken, Broken> {
        let version = record.as_ref().map_or(0, |r| r.version);
        let reason = match (happening(&self.payload), record.map(Record::decode)) {
            (Ok(happening), Some(Ok(task))) => {
                let receipt = Receipt { task: self.task, id: format!("{partition}:{}", self.entry) };
                let guard = Guard { phase: self.phase.clone(), fence: self.fence, receipt };
                let task = Versioned { task, version };
                return Ok(Taken { phase: self.phase, attempt: self.attempt, guard, happening, task });
            }
            (Err(error), _) | (_, Some(Err(error))) => error.to_string(),
            (_, None) => "its task is not there".to_owned(),
        };
        Err(Broken { kind: "outcome", id: self.entry, task: self.task.to_string(), phase: self.phase, reason })
    }
}

fn happening(payload: &[u8]) -> std::result::Result<Happening, DecodeError> {
    match payload.strip_prefix(b"!") {
        Some(deliveries) => {
            let deliveries = std::str::from_utf8(deliveries).ok().and_then(|text| text.parse().ok());
            Ok(Happening::Poisoned { deliveries: deliveries.unwrap_or(u32::MAX) })
        }
        None => decode::<Outcome>(payload).map(|outcome| Happening::Outcome(Box::new(outcome))),
    }
}

/// A stored job as `prelude.lua` describes it. `None` where only its fence is kept; a leased one may have been reported.
pub(super) fn job(phase: &str, stored: &str) -> Result<Option<JobView>> {
    let mut parts = stored.splitn(8, ' ');
    let mut next = || parts.next().unwrap_or_default();
    let (fence, place, who, deliveries) = (next().parse(), next(), next(), next().parse());
    let (attempt, queue, priority) = (next().parse(), Queue::parse(next()), Priority::parse(next()));
    let (place, owner) = match place {
        "q" => (Place::Queued, None),
        "d" => (Place::Delayed, None),
        "l" => (Place::Leased, Some(who.to_owned())),
        "r" => (Place::Reported, None),
        "x" => (Place::Quarantined, None),
        "n" => return Ok(None),
        _ => return Err(odd("jobs", format!("cannot read `{stored}`"))),
    };
    let (Ok(fence), Ok(deliveries), Ok(attempt), Some(queue), Some(priority)) =
        (fence, deliveries, attempt, queue, priority)
    else {
        return Err(odd("jobs", format!("cannot read `{stored}`")));
    };
    Ok(Some(JobView { phase: phase.to_owned(), place, queue, priority, attempt, fence, deliveries, owner }))
}

type StatsRow = (Vec<(String, i64)>, Vec<(String, i64)>, Vec<(String, u64, i64)>, u64, u64, u64, i64, Vec<String>);

pub(super) fn stats(reply: Value) -> Result<Stats> {
    let (counts, depth, queues, delayed, outcomes, quarantined, oldest_escalation, workers): StatsRow =
        read("stats", reply)?;
    let mut stats = Stats {
        counts: counts.into_iter().filter(|(key, n)| *n != 0 && is_known_count(key)).collect(),
        delayed,
        outcomes,
        quarantined,
        oldest_escalation_ms: u64::try_from(oldest_escalation).ok(),
        workers: workers.iter().filter_map(|json| serde_json::from_str(json).ok()).collect(),
        ..Stats::default()
    };
    for (key, jobs) in depth {
        let (queue, priority) = key.split_once(':').unwrap_or_default();
        if let (Some(queue), Some(priority), Ok(jobs @ 1..)) =
            (Queue::parse(queue), Priority::parse(priority), u64::try_from(jobs))
        {
            stats.depth.insert((queue, priority), jobs);
        }
    }
    for (name, leases, oldest) in queues {
        let Some(queue) = Queue::parse(&name) else { continue };
        if leases > 0 {
            stats.leases.insert(queue, leases);
        }
        if let Ok(oldest) = u64::try_from(oldest) {
            stats.oldest_ms.insert(queue, oldest);
        }
    }
    Ok(stats)
}

/// Adds the numbers of a further partition.
pub(super) fn add_stats(all: &mut Stats, more: Stats) {
    for (key, n) in more.counts {
        *all.counts.entry(key).or_default() += n;
    }
    all.counts.retain(|_, n| *n != 0);
    for (key, n) in more.depth {
        *all.depth.entry(key).or_default() += n;
    }
    for (queue, ms) in more.oldest_ms {
        let oldest = all.oldest_ms.entry(queue).or_default();
        *oldest = (*oldest).max(ms);
    }
    for (queue, n) in more.leases {
        *all.leases.entry(queue).or_default() += n;
    }
    all.delayed += more.delayed;
    all.outcomes += more.outcomes;
    all.quarantined += more.quarantined;
    all.oldest_escalation_ms = all.oldest_escalation_ms.max(more.oldest_escalation_ms);
    all.workers.extend(more.workers);
    all.workers.sort_by(|a, b| a.id.cmp(&b.id));
}

/// What `quarantine.lua` keeps.
#[derive(Deserialize)]
struct Aside {
    task: TaskId,
    phase: String,
    what: String,
    reason: String,
}

pub(super) fn quarantined(kept: Vec<(String, String)>) -> Vec<Quarantined> {
    let read = |(id, json): (String, String)| {
        let Aside { task, phase, what, reason } = serde_json::from_str(&json).ok()?;
        Some(Quarantined { id, task, phase, what, reason })
    };
    kept.into_iter().filter_map(read).collect()
}
