//! What coordinators do: submit, take outcomes, commit, discard, replay.

use std::time::Duration;

use refile_core::count::Count;
use refile_core::{Outcome, Task, TaskId, TaskState};
use rusqlite::{Result, params};

use super::lanes::{self, Line, behind};
use super::sql::{self, all, one, run};
use super::writer::Tx;
use crate::envelope::{decode, encode};
use crate::model::{Commit, Committed, Guard, Happening, JobChange, Receipt, Submitted, TakeRequest, Taken, Versioned};

/// About how many lines the event log keeps.
const KEPT_EVENTS: i64 = 10_000;
/// After how many lines the oldest are thrown away.
const SWEEP_EVENTS: i64 = 256;

/// A commit whose record and notices are bytes already: the writing thread encodes nothing.
pub(super) struct Prepared {
    id: TaskId,
    state: TaskState,
    repository: String,
    rank: usize,
    version: u64,
    guard: Option<Guard>,
    jobs: Vec<JobChange>,
    deltas: Vec<(String, i64)>,
    record: Vec<u8>,
    notices: Vec<Vec<u8>>,
}

impl Prepared {
    pub(super) fn new(commit: &Commit) -> std::result::Result<Self, rmp_serde::encode::Error> {
        Ok(Self {
            id: commit.task.id.clone(),
            state: commit.task.state,
            repository: commit.task.repository.clone(),
            rank: sql::rank(commit.task.priority),
            version: commit.version,
            guard: commit.guard.clone(),
            jobs: commit.jobs.clone(),
            deltas: commit.deltas.clone(),
            record: encode(&commit.task)?,
            notices: commit.notices.iter().map(encode).collect::<std::result::Result<_, _>>()?,
        })
    }
}

/// Adds tasks that are not there yet.
pub(super) fn submit(tx: &mut Tx<'_>, submissions: &[Prepared]) -> Result<Vec<Submitted>> {
    submissions.iter().map(|s| submit_one(tx, s)).collect()
}

fn submit_one(tx: &mut Tx<'_>, submission: &Prepared) -> Result<Submitted> {
    let Prepared { id, state, repository, record, .. } = submission;
    let sql = "INSERT INTO tasks (seq, id, version, state, repository, changed_at, record)
        VALUES (MAX((SELECT COALESCE(MAX(seq), 0) + 1 FROM tasks), ?1), ?2, 1, ?3, ?4, ?5, ?6) ON CONFLICT DO NOTHING";
    let added = run(tx.conn, sql, params![tx.now_us, id.as_str(), state.as_str(), repository, tx.now, record])? > 0;
    if added {
        follow(tx, submission)?;
    }
    Ok(Submitted { id: id.clone(), added })
}

/// Commits transitions, each whole or not at all.
pub(super) fn commit(tx: &mut Tx<'_>, commits: &[Prepared]) -> Result<Vec<Committed>> {
    commits.iter().map(|c| commit_one(tx, c)).collect()
}

/// Whatever is refused is refused before the first change.
fn commit_one(tx: &mut Tx<'_>, prepared: &Prepared) -> Result<Committed> {
    let Prepared { id, state, version, guard, record, .. } = prepared;
    if let Some(Guard { phase, fence, receipt }) = guard {
        let sql = "SELECT 1 FROM jobs WHERE task = ?1 AND phase = ?2 AND fence = ?3";
        if one(tx.conn, sql, params![id.as_str(), phase, fence], |_| Ok(()))?.is_none() {
            drop_stale(tx, receipt)?;
            return Ok(Committed::Stale);
        }
    }
    let sql = "UPDATE tasks SET version = version + 1, state = ?3, changed_at = ?4, record = ?5
        WHERE id = ?1 AND version = ?2";
    if run(tx.conn, sql, params![id.as_str(), version, state.as_str(), tx.now, record])? == 0 {
        return Ok(Committed::Conflict);
    }
    if let Some(guard) = guard {
        drop_outcome(tx, &guard.receipt)?;
    }
    follow(tx, prepared)?;
    Ok(Committed::Applied)
}

/// Carries out what goes with a new record: jobs, notices, counters.
fn follow(tx: &mut Tx<'_>, prepared: &Prepared) -> Result<()> {
    let id = prepared.id.as_str();
    // The job of the outcome that is decided on was reported: it is nowhere.
    let reported = prepared.guard.as_ref().map(|g| g.phase.as_str());
    if prepared.state.is_final() {
        forget_jobs(tx, id, reported)?;
    } else {
        // One commit raises a phase's fence once, however often it names the phase.
        let mut raised: Vec<&str> = Vec::new();
        for change in &prepared.jobs {
            let (JobChange::Put { phase, .. } | JobChange::Drop { phase }) = change;
            let raise = !raised.contains(&phase.as_str());
            match change {
                JobChange::Put { queue, attempt, delay_ms, lane, .. } => {
                    let is_nowhere = raise && reported == Some(phase);
                    if !is_nowhere {
                        take_away(tx, id, phase, raise)?;
                    }
                    let line = Line { queue: *queue, rank: prepared.rank, lane: lane.as_str().to_owned() };
                    put(tx, id, phase, &line, *attempt, *delay_ms, is_nowhere)?;
                }
                JobChange::Drop { .. } => take_away(tx, id, phase, raise)?,
            }
            raised.push(phase);
        }
        if let Some(phase) = reported.filter(|phase| !raised.contains(phase)) {
            take_away(tx, id, phase, true)?;
        }
    }
    for notice in &prepared.notices {
        let sql = "INSERT INTO events (at, task, notice) VALUES (?1, ?2, ?3)";
        run(tx.conn, sql, params![tx.now, id, notice])?;
        let last = tx.conn.last_insert_rowid();
        if last % SWEEP_EVENTS == 0 {
            run(tx.conn, "DELETE FROM events WHERE id <= ?1", [last - KEPT_EVENTS])?;
        }
    }
    for (key, by) in &prepared.deltas {
        add(tx, key, *by);
    }
    Ok(())
}

/// A task in a final state keeps no jobs.
fn forget_jobs(tx: &Tx<'_>, task: &str, reported: Option<&str>) -> Result<()> {
    let sql = "SELECT queue, priority, lane FROM jobs WHERE task = ?1 AND phase IS NOT ?2 AND place = 'queued'";
    let queued = all(tx.conn, sql, params![task, reported], |row| Line::read(row, 0))?;
    run(tx.conn, "DELETE FROM jobs WHERE task = ?1", [task])?;
    queued.iter().try_for_each(|line| lanes::leave(tx, line).map(drop))
}

/// Gives a phase this job. `raise` where nothing else has raised its fence in this commit.
fn put(tx: &mut Tx<'_>, task: &str, phase: &str, line: &Line, attempt: u32, delay_ms: u64, raise: bool) -> Result<()> {
    let due = i64::try_from(delay_ms).unwrap_or(i64::MAX).saturating_add(tx.now as i64);
    let place = if delay_ms > 0 { "delayed" } else { "queued" };
    let sql = concat!(
        "INSERT INTO jobs (queue, priority, lane, task, phase, place, attempt, due, fence, deliveries, position)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, 1, 0, ",
        behind!(),
        ") ON CONFLICT (task, phase) DO UPDATE SET queue = excluded.queue, priority = excluded.priority,
            lane = excluded.lane, place = excluded.place, attempt = excluded.attempt, due = excluded.due,
            position = excluded.position, fence = fence + ?9, deliveries = 0, owner = NULL, reason = NULL"
    );
    let Line { queue, rank, lane } = line;
    run(tx.conn, sql, params![queue.as_str(), rank, lane, task, phase, place, attempt, due, u8::from(raise)])?;
    if delay_ms == 0 { lanes::join(tx, line) } else { Ok(()) }
}

/// Takes a phase's job away. The row stays, so that its fence goes on growing.
fn take_away(tx: &Tx<'_>, task: &str, phase: &str, raise: bool) -> Result<()> {
    let sql = "SELECT queue, priority, lane FROM jobs WHERE task = ?1 AND phase = ?2 AND place = 'queued'";
    let queued = one(tx.conn, sql, params![task, phase], |row| Line::read(row, 0))?;
    let sql = "UPDATE jobs SET place = NULL, owner = NULL, reason = NULL, deliveries = 0, fence = fence + ?3
        WHERE task = ?1 AND phase = ?2";
    run(tx.conn, sql, params![task, phase, u8::from(raise)])?;
    queued.map_or(Ok(()), |line| lanes::leave(tx, &line).map(drop))
}

/// Drops outcomes that change nothing.
pub(super) fn discard(tx: &mut Tx<'_>, receipts: &[Receipt]) -> Result<()> {
    receipts.iter().try_for_each(|receipt| drop_stale(tx, receipt))
}

/// Counted once, however often it is dropped.
fn drop_stale(tx: &Tx<'_>, receipt: &Receipt) -> Result<()> {
    if drop_outcome(tx, receipt)? {
        count(tx, &Count::new("stale_outcomes_total", &[]));
    }
    Ok(())
}

fn drop_outcome(tx: &Tx<'_>, receipt: &Receipt) -> Result<bool> {
    let sql = "DELETE FROM outcomes WHERE id = ?1 AND task = ?2";
    let Ok(id) = receipt.id.parse::<i64>() else { return Ok(false) };
    Ok(run(tx.conn, sql, params![id, receipt.task.as_str()])? > 0)
}

/// Raises a counter of the store's own by one.
pub(super) fn count(tx: &Tx<'_>, count: &Count) {
    add(tx, &count.key(), 1);
}

fn add(tx: &Tx<'_>, key: &str, by: i64) {
    let counts = &mut tx.numbers.borrow_mut().counts;
    match counts.get_mut(key) {
        Some(sum) => *sum += by,
        None => {
            counts.insert(key.to_owned(), by);
        }
    }
}

/// The outcomes that were taken, and in how many milliseconds there may be one to take over.
pub(super) struct Took {
    pub(super) entries: Vec<Entry>,
    pub(super) look_again_in_ms: Option<u64>,
}

/// An outcome that was taken. It is decoded by whoever asked, not by the thread that writes.
pub(super) struct Entry {
    id: i64,
    phase: String,
    attempt: u32,
    fence: u64,
    poisoned: Option<u32>,
    payload: Vec<u8>,
    version: u64,
    record: Vec<u8>,
    task: TaskId,
}

impl Entry {
    /// Decodes the outcome and the record. Where that cannot be: the entry, and why.
    pub(super) fn decode(self) -> std::result::Result<Taken, (i64, String)> {
        let happening = match self.poisoned {
            Some(deliveries) => Happening::Poisoned { deliveries },
            None => match decode::<Outcome>(&self.payload) {
                Ok(outcome) => Happening::Outcome(Box::new(outcome)),
                Err(error) => return Err((self.id, error.to_string())),
            },
        };
        let task = decode::<Task>(&self.record).map_err(|error| (self.id, format!("the task's record: {error}")))?;
        let receipt = Receipt { task: self.task, id: self.id.to_string() };
        let guard = Guard { phase: self.phase.clone(), fence: self.fence, receipt };
        let task = Versioned { task, version: self.version };
        Ok(Taken { phase: self.phase, attempt: self.attempt, guard, happening, task })
    }
}

/// Takes outcomes for one coordinator.
pub(super) fn take(tx: &mut Tx<'_>, request: &TakeRequest) -> Result<Took> {
    let takeover = u64::try_from(request.takeover.as_millis()).unwrap_or(u64::MAX);
    let entries = entries(tx, tx.now.checked_sub(takeover), request.max)?;
    for entry in &entries {
        let sql = "UPDATE outcomes SET consumer = ?2, taken_at = ?3 WHERE id = ?1";
        run(tx.conn, sql, params![entry.id, request.consumer, tx.now])?;
    }
    let sql = "SELECT MIN(taken_at) FROM outcomes WHERE consumer IS NOT NULL AND reason IS NULL";
    let oldest = one(tx.conn, sql, [], |row| row.get::<_, Option<u64>>(0))?;
    let due = oldest.flatten().map(|at| at.saturating_add(takeover).saturating_sub(tx.now));
    Ok(Took { entries, look_again_in_ms: due.map(|ms| ms.max(1)) })
}

/// Outcomes that may be taken, oldest first.
fn entries(tx: &Tx<'_>, left_since: Option<u64>, max: usize) -> Result<Vec<Entry>> {
    let sql = "SELECT o.id, o.phase, o.attempt, o.fence, o.poisoned, o.payload, t.version, t.record, o.task
        FROM outcomes o LEFT JOIN tasks t ON t.id = o.task
        WHERE o.id IN (
            SELECT id FROM (SELECT id FROM outcomes WHERE consumer IS NULL AND reason IS NULL ORDER BY id LIMIT ?2)
            UNION ALL
            SELECT id FROM (SELECT id FROM outcomes
                WHERE consumer IS NOT NULL AND reason IS NULL AND taken_at <= ?1 ORDER BY taken_at LIMIT ?2))
        ORDER BY o.id LIMIT ?2";
    all(tx.conn, sql, params![left_since, sql::limit(max)], |row| {
        Ok(Entry {
            id: row.get(0)?,
            phase: row.get(1)?,
            attempt: row.get(2)?,
            fence: row.get(3)?,
            poisoned: row.get(4)?,
            payload: row.get(5)?,
            // Without a record these are nothing, and nothing cannot be read: the outcome is set aside.
            version: row.get::<_, Option<u64>>(6)?.unwrap_or_default(),
            record: row.get::<_, Option<Vec<u8>>>(7)?.unwrap_or_default(),
            task: sql::task(row, 8)?,
        })
    })
}

/// Sets outcomes aside that cannot be read.
pub(super) fn set_aside(tx: &mut Tx<'_>, broken: &[(i64, String)]) -> Result<()> {
    for (outcome, reason) in broken {
        tracing::error!(outcome, reason, "an outcome cannot be decoded: quarantined");
        run(tx.conn, "UPDATE outcomes SET reason = ?2 WHERE id = ?1", params![outcome, reason])?;
        count(tx, &Count::new("quarantined_total", &[]));
    }
    Ok(())
}

/// Puts a quarantined job or outcome back.
pub(super) fn replay(tx: &mut Tx<'_>, id: &str) -> Result<bool> {
    let found = match id.split_once(':') {
        Some(("job", name)) => {
            let Some((task, phase)) = name.split_once('/') else { return Ok(false) };
            let sql = "SELECT queue, priority, lane FROM jobs
                WHERE task = ?1 AND phase = ?2 AND place = 'quarantined'";
            let line = one(tx.conn, sql, params![task, phase], |row| Line::read(row, 0))?;
            let Some(line) = line else { return Ok(false) };
            lanes::make_ready(tx, task, phase, &line)?;
            1
        }
        Some(("outcome", number)) => {
            let Ok(number) = number.parse::<i64>() else { return Ok(false) };
            tx.wakes_takes = true;
            let sql = "UPDATE outcomes SET reason = NULL, consumer = NULL, taken_at = NULL
                WHERE id = ?1 AND reason IS NOT NULL";
            run(tx.conn, sql, [number])?
        }
        _ => 0,
    };
    Ok(found > 0)
}

/// How long at most until somebody who waits looks again.
pub(super) fn until(look_again_in_ms: Option<u64>, left: Duration) -> Duration {
    look_again_in_ms.map_or(left, |ms| left.min(Duration::from_millis(ms)))
}
