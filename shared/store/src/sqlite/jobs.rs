//! What workers and housekeeping do: claim, extend, report, release, promote, reclaim.

use std::time::Duration;

use refile_core::count::Count;
use refile_core::{Queue, Task, TaskId};
use rusqlite::{Result, Row, params};

use super::sql::{self, all, one, run};
use super::writer::Tx;
use crate::envelope::decode;
use crate::model::{Claim, ClaimRequest, Lease, LeaseState, Promoted, Reclaimed, Reported};

/// The end of a queue, as a subquery: `?1` is the queue and `?2` the priority.
macro_rules! behind {
    () => {
        "(SELECT COALESCE(MAX(position), 0) + 1 FROM jobs WHERE place = 'queued' AND queue = ?1 AND priority = ?2)"
    };
}
pub(super) use behind;

/// The jobs that were claimed, and in how many milliseconds a pause of one of the queues ends.
pub(super) struct Claimed {
    pub(super) claims: Vec<Claim>,
    pub(super) look_again_in_ms: Option<u64>,
}

struct Ready {
    task: TaskId,
    phase: String,
    attempt: u32,
    fence: u64,
    deliveries: u32,
    since: u64,
    record: Vec<u8>,
}

/// Claims up to `max` jobs.
pub(super) fn claim(tx: &mut Tx<'_>, request: &ClaimRequest) -> Result<Claimed> {
    let mut claimed = Claimed { claims: Vec::new(), look_again_in_ms: None };
    for &queue in &request.queues {
        match pause_of(tx, queue)? {
            Pause::None => {}
            Pause::Open => continue,
            Pause::Ends(in_ms) => {
                claimed.look_again_in_ms = claimed.look_again_in_ms.map_or(Some(in_ms), |ms| Some(ms.min(in_ms)));
                continue;
            }
        }
        while claimed.claims.len() < request.max {
            let ready = ready(tx, queue, request.max - claimed.claims.len())?;
            if ready.is_empty() {
                break;
            }
            for job in ready {
                claimed.claims.extend(hand_out(tx, request, queue, job)?);
            }
        }
    }
    Ok(claimed)
}

enum Pause {
    None,
    Open,
    Ends(u64),
}

fn pause_of(tx: &Tx<'_>, queue: Queue) -> Result<Pause> {
    let key = crate::model::PauseTarget::Queue(queue).key();
    let until = one(tx.conn, "SELECT until FROM pauses WHERE target = ?1", [key], |row| row.get::<_, Option<u64>>(0))?;
    Ok(match until {
        None => Pause::None,
        Some(None) => Pause::Open,
        Some(Some(until)) if until <= tx.now => Pause::None,
        Some(Some(until)) => Pause::Ends(until - tx.now),
    })
}

fn ready(tx: &Tx<'_>, queue: Queue, max: usize) -> Result<Vec<Ready>> {
    let sql = "SELECT j.task, j.phase, j.attempt, j.fence, j.deliveries, j.due, t.record
        FROM jobs j JOIN tasks t ON t.id = j.task
        WHERE j.place = 'queued' AND j.queue = ?1 ORDER BY j.priority, j.position LIMIT ?2";
    all(tx.conn, sql, params![queue.as_str(), sql::limit(max)], |row| {
        Ok(Ready {
            task: sql::task(row, 0)?,
            phase: row.get(1)?,
            attempt: row.get(2)?,
            fence: row.get(3)?,
            deliveries: row.get(4)?,
            since: row.get(5)?,
            record: row.get(6)?,
        })
    })
}

/// Leases a job, or sets it aside where its record cannot be read.
fn hand_out(tx: &Tx<'_>, request: &ClaimRequest, queue: Queue, job: Ready) -> Result<Option<Claim>> {
    let Ready { task: id, phase, attempt, fence, deliveries, since, record } = job;
    let task = match decode::<Task>(&record) {
        Ok(task) => task,
        Err(error) => {
            let sql = "UPDATE jobs SET place = 'quarantined', reason = ?3 WHERE task = ?1 AND phase = ?2";
            run(tx.conn, sql, params![id.as_str(), phase, error.to_string()])?;
            super::commits::count(tx, &Count::new("quarantined_total", &[]))?;
            return Ok(None);
        }
    };
    let sql = "UPDATE jobs SET place = 'leased', owner = ?3, due = ?4, fence = ?5, deliveries = ?6
        WHERE task = ?1 AND phase = ?2";
    let (fence, deliveries) = (fence + 1, deliveries.saturating_add(1));
    run(tx.conn, sql, params![id.as_str(), phase, request.owner, runs_out(tx, request.lease), fence, deliveries])?;
    let lease = Lease { task: id, phase, fence, owner: request.owner.clone() };
    Ok(Some(Claim { lease, queue, attempt, deliveries, waited_ms: tx.now.saturating_sub(since), task }))
}

/// When a lease that starts now runs out. SQLite's numbers are signed.
fn runs_out(tx: &Tx<'_>, lease: Duration) -> i64 {
    let lease = i64::try_from(lease.as_millis()).unwrap_or(i64::MAX);
    lease.saturating_add(tx.now as i64)
}

/// Extends leases.
pub(super) fn extend(tx: &mut Tx<'_>, leases: &[Lease], lease: Duration) -> Result<Vec<LeaseState>> {
    let until = runs_out(tx, lease);
    leases
        .iter()
        .map(|Lease { task, phase, fence, owner }| {
            let sql = "UPDATE jobs SET due = ?5
                WHERE task = ?1 AND phase = ?2 AND place = 'leased' AND fence = ?3 AND owner = ?4";
            if run(tx.conn, sql, params![task.as_str(), phase, fence, owner, until])? > 0 {
                return Ok(LeaseState::Held);
            }
            let sql = "SELECT 1 FROM tasks WHERE id = ?1 AND state = 'cancelled'";
            let cancelled = one(tx.conn, sql, [task.as_str()], |_| Ok(()))?.is_some();
            Ok(if cancelled { LeaseState::Cancelled } else { LeaseState::Lost })
        })
        .collect()
}

/// Takes outcomes in. Each comes with its payload, which was encoded before.
pub(super) fn report(tx: &mut Tx<'_>, reports: &[(Lease, Vec<u8>)]) -> Result<Vec<Reported>> {
    reports
        .iter()
        .map(|(Lease { task, phase, fence, owner }, payload)| {
            let sql = "SELECT place, attempt FROM jobs WHERE task = ?1 AND phase = ?2 AND fence = ?3 AND owner = ?4
                AND place IN ('leased', 'reported')";
            let found = one(tx.conn, sql, params![task.as_str(), phase, fence, owner], |row| {
                Ok((row.get_ref(0)?.as_str()? == "leased", row.get::<_, u32>(1)?))
            })?;
            let Some((is_leased, attempt)) = found else { return Ok(Reported::Stale) };
            // What is reported already was reported by this very call, whose answer was lost.
            if is_leased {
                let sql = "UPDATE jobs SET place = 'reported' WHERE task = ?1 AND phase = ?2";
                run(tx.conn, sql, params![task.as_str(), phase])?;
                let sql = "INSERT INTO outcomes (task, phase, attempt, fence, payload) VALUES (?1, ?2, ?3, ?4, ?5)";
                run(tx.conn, sql, params![task.as_str(), phase, attempt, fence, payload])?;
                tx.wakes_takes = true;
            }
            Ok(Reported::Accepted)
        })
        .collect()
}

/// Gives jobs back, uncharged.
pub(super) fn release(tx: &mut Tx<'_>, leases: &[Lease]) -> Result<()> {
    for Lease { task, phase, fence, owner } in leases {
        let sql = "SELECT queue, priority FROM jobs
            WHERE task = ?1 AND phase = ?2 AND place = 'leased' AND fence = ?3 AND owner = ?4";
        let found = one(tx.conn, sql, params![task.as_str(), phase, fence, owner], lane)?;
        if let Some((queue, rank)) = found {
            let sql = concat!(
                "UPDATE jobs SET place = 'queued', owner = NULL, fence = fence + 1, deliveries = deliveries - 1,
                due = ?5, position = ",
                behind!(),
                " WHERE task = ?3 AND phase = ?4"
            );
            run(tx.conn, sql, params![queue, rank, task.as_str(), phase, tx.now])?;
            tx.wakes_claims = true;
        }
    }
    Ok(())
}

fn lane(row: &Row<'_>) -> Result<(String, u32)> {
    Ok((row.get(0)?, row.get(1)?))
}

/// Puts delayed jobs that are due into their queues.
pub(super) fn promote(tx: &mut Tx<'_>, max: usize) -> Result<Promoted> {
    let sql = "SELECT queue, priority, task, phase FROM jobs
        WHERE place = 'delayed' AND due <= ?1 ORDER BY due LIMIT ?2";
    let due = all(tx.conn, sql, params![tx.now, sql::limit(max)], |row| {
        Ok((lane(row)?, row.get::<_, String>(2)?, row.get::<_, String>(3)?))
    })?;
    for ((queue, rank), task, phase) in &due {
        let sql = concat!(
            "UPDATE jobs SET place = 'queued', due = ?5, position = ",
            behind!(),
            " WHERE task = ?3 AND phase = ?4"
        );
        run(tx.conn, sql, params![queue, rank, task, phase, tx.now])?;
        tx.wakes_claims = true;
    }
    let next: Option<u64> = next(tx, "SELECT MIN(due) FROM jobs WHERE place = 'delayed'")?;
    Ok(Promoted { moved: due.len(), next_in_ms: next })
}

fn next(tx: &Tx<'_>, sql: &str) -> Result<Option<u64>> {
    let due: Option<u64> = one(tx.conn, sql, [], |row| row.get(0))?.flatten();
    Ok(due.map(|due| due.saturating_sub(tx.now)))
}

/// Puts jobs whose leases ran out back into their queues, or gives them up.
pub(super) fn reclaim(tx: &mut Tx<'_>, max_deliveries: u32, max: usize) -> Result<Reclaimed> {
    let sql = "SELECT queue, priority, task, phase, deliveries, attempt, fence FROM jobs
        WHERE place = 'leased' AND due <= ?1 ORDER BY due LIMIT ?2";
    let expired = all(tx.conn, sql, params![tx.now, sql::limit(max)], |row| {
        let job = (row.get::<_, String>(2)?, row.get::<_, String>(3)?);
        Ok((lane(row)?, job, row.get::<_, u32>(4)?, row.get::<_, u32>(5)?, row.get::<_, u64>(6)?))
    })?;
    let mut reclaimed = Reclaimed::default();
    for ((queue, rank), (task, phase), deliveries, attempt, fence) in expired {
        if deliveries > max_deliveries {
            let sql = "UPDATE jobs SET place = 'reported', owner = NULL, fence = fence + 1
                WHERE task = ?1 AND phase = ?2";
            run(tx.conn, sql, params![task, phase])?;
            let sql = "INSERT INTO outcomes (task, phase, attempt, fence, poisoned, payload)
                VALUES (?1, ?2, ?3, ?4, ?5, x'')";
            run(tx.conn, sql, params![task, phase, attempt, fence + 1, deliveries])?;
            tx.wakes_takes = true;
            reclaimed.poisoned += 1;
        } else {
            let sql = concat!(
                "UPDATE jobs SET place = 'queued', owner = NULL, fence = fence + 1, due = ?5, position = ",
                behind!(),
                " WHERE task = ?3 AND phase = ?4"
            );
            run(tx.conn, sql, params![queue, rank, task, phase, tx.now])?;
            tx.wakes_claims = true;
            reclaimed.redelivered += 1;
        }
        super::commits::count(tx, &Count::new("leases_expired_total", &[&queue]))?;
    }
    reclaimed.next_in_ms = next(tx, "SELECT MIN(due) FROM jobs WHERE place = 'leased'")?;
    Ok(reclaimed)
}
