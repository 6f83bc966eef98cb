//! From the scripts' replies to the model. Everything that comes out of the server is parsed here, strictly.

use redis::{FromRedisValue, Value};
use refile_core::{Outcome, Priority, Queue, TaskId};
use serde::Deserialize;

use super::is_known_count;
use crate::envelope::{DecodeError, decode};
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

/// What `take.lua` gave.
pub(super) struct Outcomes {
    pub(super) taken: Vec<Taken>,
    pub(super) broken: Vec<Broken>,
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
        "a" => Ok(Committed::Applied),
        "s" => Ok(Committed::Stale),
        // A task that is nowhere has no version.
        "c" | "m" => Ok(Committed::Conflict),
        other => Err(odd("commit", format!("unknown result `{other}`"))),
    }
}

type ClaimRow = (String, String, String, u32, u64, u32, u64, Vec<u8>);

/// What `claim.lua` gave.
pub(super) struct Claimed {
    pub(super) jobs: Vec<Claim>,
    pub(super) broken: Vec<Broken>,
    /// The queues that have more.
    pub(super) more: Vec<String>,
}

/// Reads claims; those whose records cannot be decoded are set apart.
pub(super) fn claims(reply: Value, owner: &str) -> Result<Claimed> {
    let (rows, more): (Vec<Value>, Vec<String>) = read("claim", reply)?;
    let (mut claims, mut broken) = (Vec::with_capacity(rows.len()), Vec::new());
    for row in rows {
        let (task, phase, queue, attempt, fence, deliveries, waited_ms, record): ClaimRow = tuple("claim", row)?;
        let queue = Queue::parse(&queue).ok_or_else(|| odd("claim", format!("unknown queue `{queue}`")))?;
        match decode(&record) {
            Ok(record) => {
                let id = TaskId::try_from(task).map_err(|error| odd("claim", error))?;
                let lease = Lease { task: id, phase, fence, owner: owner.to_owned() };
                claims.push(Claim { lease, queue, attempt, deliveries, waited_ms, task: record });
            }
            Err(error) => {
                broken.push(Broken { kind: "job", id: fence.to_string(), task, phase, reason: error.to_string() });
            }
        }
    }
    Ok(Claimed { jobs: claims, broken, more })
}

/// Reads a tuple out of a nested reply.
fn tuple<T: FromRedisValue>(operation: &'static str, row: Value) -> Result<T> {
    T::from_redis_value(row).map_err(|error| odd(operation, error))
}

type OutcomeFields = (String, String, u64, u32, String, Vec<u8>);

/// Reads outcomes; those that cannot be decoded are set apart.
pub(super) fn outcomes(
    reply: Value,
    partition: u32,
    payload: fn(&[u8]) -> std::result::Result<Outcome, DecodeError>,
) -> Result<Outcomes> {
    let rows: Vec<Value> = read("take", reply)?;
    let mut outcomes = Outcomes { taken: Vec::with_capacity(rows.len()), broken: Vec::new() };
    for row in rows {
        let (id, fields, record, version): (String, Value, Vec<u8>, u64) = tuple("take", row)?;
        let (task, phase, fence, attempt, kind, content): OutcomeFields = tuple("take", fields)?;
        let task_id = TaskId::parse(&task).map_err(|error| odd("take", error))?;
        let receipt = Receipt { task: task_id, id: format!("{partition}:{id}") };
        if record.is_empty() {
            let reason = "its task is not there".to_owned();
            outcomes.broken.push(Broken { kind: "outcome", id, task, phase, reason });
            continue;
        }
        match (happening(&kind, &content, payload), decode(&record)) {
            (Ok(happening), Ok(record)) => outcomes.taken.push(Taken {
                phase: phase.clone(),
                attempt,
                guard: Guard { phase, fence, receipt },
                happening,
                task: Versioned { task: record, version },
            }),
            (Err(error), _) | (_, Err(error)) => {
                outcomes.broken.push(Broken { kind: "outcome", id, task, phase, reason: error.to_string() });
            }
        }
    }
    Ok(outcomes)
}

fn happening(
    kind: &str,
    content: &[u8],
    payload: fn(&[u8]) -> std::result::Result<Outcome, DecodeError>,
) -> std::result::Result<Happening, DecodeError> {
    match kind {
        "poisoned" => {
            let deliveries = std::str::from_utf8(content).ok().and_then(|text| text.parse().ok()).unwrap_or(u32::MAX);
            Ok(Happening::Poisoned { deliveries })
        }
        _ => payload(content).map(|outcome| Happening::Outcome(Box::new(outcome))),
    }
}

/// A job as `prelude.lua` describes it.
#[derive(Deserialize)]
struct Packed(String, String, String, u32, u64, u32, String, String, u64, String);

/// Reads a job; `None` where only its fence is kept.
pub(super) fn job(phase: &str, packed: &[u8]) -> Result<Option<JobView>> {
    let Packed(place, queue, priority, attempt, fence, deliveries, owner, _entry, _since, _lane) =
        rmp_serde::from_slice(packed).map_err(|error| odd("jobs", error))?;
    let place = match place.as_str() {
        "q" => Place::Queued,
        "d" => Place::Delayed,
        "l" => Place::Leased,
        "r" => Place::Reported,
        "x" => Place::Quarantined,
        _ => return Ok(None),
    };
    let (Some(queue), Some(priority)) = (Queue::parse(&queue), Priority::parse(&priority)) else {
        return Err(odd("jobs", format!("unknown queue `{queue}` or priority `{priority}`")));
    };
    let owner = Some(owner).filter(|o| !o.is_empty());
    Ok(Some(JobView { phase: phase.to_owned(), place, queue, priority, attempt, fence, deliveries, owner }))
}

type StatsRow = (Vec<(String, i64)>, Vec<(String, i64)>, Vec<(String, u64, i64)>, u64, u64, u64, i64, Vec<String>);

pub(super) fn stats(reply: Value) -> Result<Stats> {
    let (counts, depth, queues, delayed, outcomes, quarantined, oldest_escalation, workers): StatsRow =
        tuple("stats", reply)?;
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
