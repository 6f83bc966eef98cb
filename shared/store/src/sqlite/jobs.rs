//! What workers and housekeeping do: claim, extend, report, release, promote, reclaim.

use std::time::Duration;

use refile_core::count::Count;
use refile_core::{Queue, Task};
use rusqlite::{Result, params};

use super::lanes::{self, Line, Room};
use super::sql::{self, all, one, run};
use super::writer::Tx;
use crate::envelope::decode;
use crate::model::{Claim, ClaimRequest, Lease, LeaseState, Promoted, Reclaimed, Reported};

/// The jobs that were claimed, and in how many milliseconds a pause of one of the queues ends.
pub(super) struct Claimed {
    pub(super) jobs: Vec<Leased>,
    pub(super) look_again_in_ms: Option<u64>,
}

/// A job that was claimed. Its record is decoded by whoever asked, not by the thread that writes.
pub(super) struct Leased {
    lease: Lease,
    queue: Queue,
    attempt: u32,
    deliveries: u32,
    waited_ms: u64,
    record: Vec<u8>,
}

impl Leased {
    /// Decodes the record. Where that cannot be: the lease, and why.
    pub(super) fn decode(self) -> std::result::Result<Claim, (Lease, String)> {
        let Self { lease, queue, attempt, deliveries, waited_ms, record } = self;
        match decode::<Task>(&record) {
            Ok(task) => Ok(Claim { lease, queue, attempt, deliveries, waited_ms, task }),
            Err(error) => Err((lease, error.to_string())),
        }
    }
}

/// Claims up to `max` jobs.
pub(super) fn claim(tx: &mut Tx<'_>, request: &ClaimRequest) -> Result<Claimed> {
    let mut claimed = Claimed { jobs: Vec::new(), look_again_in_ms: None };
    let mut room = Room::look(tx, &request.limits)?;
    for &queue in &request.queues {
        match pause_of(tx, queue)? {
            Pause::None => {}
            Pause::Open => continue,
            Pause::Ends(in_ms) => {
                claimed.look_again_in_ms = claimed.look_again_in_ms.map_or(Some(in_ms), |ms| Some(ms.min(in_ms)));
                continue;
            }
        }
        while claimed.jobs.len() < request.max {
            let left = request.max - claimed.jobs.len();
            // With one lane nobody else's turn is passed over: then its jobs come together.
            let only = if left > 1 { lanes::only_lane(tx, queue)? } else { None };
            let only = only.filter(|line| room.is_unlimited(&line.lane));
            let (line, most) = match only {
                Some(line) => (line, left),
                None => match next_line(tx, queue, &mut room)? {
                    Some(line) => (line, 1),
                    None => break,
                },
            };
            let leased = lease_first(tx, request, &line, most)?;
            room.hold(&line.lane, leased.len() as u32);
            lanes::turn(tx, &line, leased.len().max(1))?;
            lanes::note_claims(tx, queue, leased.len().max(1))?;
            claimed.jobs.extend(leased);
        }
    }
    Ok(claimed)
}

/// The lane that gives the next job of a queue.
fn next_line(tx: &Tx<'_>, queue: Queue, room: &mut Room<'_>) -> Result<Option<Line>> {
    for rank in lanes::preference(tx, queue)? {
        if let Some(line) = lanes::next_lane(tx, queue, rank, room)? {
            return Ok(Some(line));
        }
    }
    Ok(None)
}

/// Leases the first jobs of a lane.
fn lease_first(tx: &Tx<'_>, request: &ClaimRequest, line: &Line, most: usize) -> Result<Vec<Leased>> {
    let Line { queue, rank, lane } = line;
    let sql = "SELECT j.task, j.phase, j.attempt, j.fence, j.deliveries, j.due, t.record
        FROM jobs j JOIN tasks t ON t.id = j.task
        WHERE j.place = 'queued' AND j.queue = ?1 AND j.priority = ?2 AND j.lane = ?3 ORDER BY j.position LIMIT ?4";
    let leased = all(tx.conn, sql, params![queue.as_str(), rank, lane, sql::limit(most)], |row| {
        let (task, phase) = (sql::task(row, 0)?, row.get(1)?);
        let (fence, deliveries) = (row.get::<_, u64>(3)? + 1, row.get::<_, u32>(4)?.saturating_add(1));
        Ok(Leased {
            lease: Lease { task, phase, fence, owner: request.owner.clone() },
            queue: *queue,
            attempt: row.get(2)?,
            deliveries,
            waited_ms: tx.now.saturating_sub(row.get(5)?),
            record: row.get(6)?,
        })
    })?;
    let until = runs_out(tx, request.lease);
    for Leased { lease: Lease { task, phase, fence, owner }, deliveries, .. } in &leased {
        let sql = "UPDATE jobs SET place = 'leased', owner = ?3, due = ?4, fence = ?5, deliveries = ?6
            WHERE task = ?1 AND phase = ?2";
        run(tx.conn, sql, params![task.as_str(), phase, owner, until, fence, deliveries])?;
    }
    Ok(leased)
}

/// Sets claimed jobs aside whose records cannot be read. The delivery does not count: nobody could work on it.
pub(super) fn set_aside(tx: &mut Tx<'_>, broken: &[(Lease, String)]) -> Result<()> {
    for (Lease { task, phase, fence, .. }, reason) in broken {
        let sql = "UPDATE jobs SET place = 'quarantined', owner = NULL, deliveries = deliveries - 1, reason = ?4
            WHERE task = ?1 AND phase = ?2 AND place = 'leased' AND fence = ?3";
        if run(tx.conn, sql, params![task.as_str(), phase, fence, reason])? > 0 {
            super::commits::count(tx, &Count::new("quarantined_total", &[]));
        }
    }
    Ok(())
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
        let sql = "UPDATE jobs SET fence = fence + 1, deliveries = deliveries - 1
            WHERE task = ?1 AND phase = ?2 AND place = 'leased' AND fence = ?3 AND owner = ?4
            RETURNING queue, priority, lane";
        let line = one(tx.conn, sql, params![task.as_str(), phase, fence, owner], |row| Line::read(row, 0))?;
        if let Some(line) = line {
            lanes::make_ready(tx, task.as_str(), phase, &line)?;
        }
    }
    Ok(())
}

/// Puts delayed jobs that are due into their queues.
pub(super) fn promote(tx: &mut Tx<'_>, max: usize) -> Result<Promoted> {
    let sql = "SELECT queue, priority, lane, task, phase FROM jobs
        WHERE place = 'delayed' AND due <= ?1 ORDER BY due LIMIT ?2";
    let due = all(tx.conn, sql, params![tx.now, sql::limit(max)], |row| {
        Ok((Line::read(row, 0)?, row.get::<_, String>(3)?, row.get::<_, String>(4)?))
    })?;
    for (line, task, phase) in &due {
        lanes::make_ready(tx, task, phase, line)?;
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
    let sql = "SELECT queue, priority, lane, task, phase, deliveries, attempt, fence FROM jobs
        WHERE place = 'leased' AND due <= ?1 ORDER BY due LIMIT ?2";
    let expired = all(tx.conn, sql, params![tx.now, sql::limit(max)], |row| {
        let job = (row.get::<_, String>(3)?, row.get::<_, String>(4)?);
        Ok((Line::read(row, 0)?, job, row.get::<_, u32>(5)?, row.get::<_, u32>(6)?, row.get::<_, u64>(7)?))
    })?;
    let mut reclaimed = Reclaimed::default();
    for (line, (task, phase), deliveries, attempt, fence) in expired {
        let sql = "UPDATE jobs SET place = 'reported', owner = NULL, fence = fence + 1
            WHERE task = ?1 AND phase = ?2";
        run(tx.conn, sql, params![task, phase])?;
        if deliveries > max_deliveries {
            let sql = "INSERT INTO outcomes (task, phase, attempt, fence, poisoned, payload)
                VALUES (?1, ?2, ?3, ?4, ?5, x'')";
            run(tx.conn, sql, params![task, phase, attempt, fence + 1, deliveries])?;
            tx.wakes_takes = true;
            reclaimed.poisoned += 1;
        } else {
            lanes::make_ready(tx, &task, &phase, &line)?;
            reclaimed.redelivered += 1;
        }
        super::commits::count(tx, &Count::new("leases_expired_total", &[line.queue.as_str()]));
    }
    reclaimed.next_in_ms = next(tx, "SELECT MIN(due) FROM jobs WHERE place = 'leased'")?;
    Ok(reclaimed)
}
