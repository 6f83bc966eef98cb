//! Whose turn it is: the lanes that have ready jobs, and which of them gives the next.

use std::collections::BTreeMap;

use refile_core::{Priority, Queue};
use rusqlite::{Result, Row, params};

use super::sql::{self, all, one, run};
use super::writer::Tx;
use crate::model::{Lane, Limits};

/// Where a job stands: its queue, its priority's rank, and its lane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) queue: Queue,
    pub(super) rank: usize,
    pub(super) lane: String,
}

impl Line {
    /// Reads the columns `queue, priority, lane` from this one on.
    pub(super) fn read(row: &Row<'_>, from: usize) -> Result<Self> {
        Ok(Self { queue: sql::queue(row, from)?, rank: row.get(from + 1)?, lane: row.get(from + 2)? })
    }
}

/// The end of a line, as a subquery: `?1` is the queue, `?2` the priority, `?3` the lane.
macro_rules! behind {
    () => {
        "(SELECT COALESCE(MAX(position), 0) + 1 FROM jobs
            WHERE place = 'queued' AND queue = ?1 AND priority = ?2 AND lane = ?3)"
    };
}
pub(super) use behind;

/// Puts a job at the end of its line; its lane joins the others where it had none.
pub(super) fn make_ready(tx: &mut Tx<'_>, task: &str, phase: &str, line: &Line) -> Result<()> {
    let sql = concat!(
        "UPDATE jobs SET place = 'queued', owner = NULL, reason = NULL, due = ?6, position = ",
        behind!(),
        " WHERE task = ?4 AND phase = ?5"
    );
    run(tx.conn, sql, params![line.queue.as_str(), line.rank, line.lane, task, phase, tx.now])?;
    join(tx, line)
}

/// After a job was put into its line: the lane joins the others.
pub(super) fn join(tx: &mut Tx<'_>, Line { queue, rank, lane }: &Line) -> Result<()> {
    let sql = "SELECT 1 FROM rings WHERE queue = ?1 AND priority = ?2 AND lane = ?3";
    if one(tx.conn, sql, params![queue.as_str(), rank, lane], |_| Ok(()))?.is_none() {
        let turn = raise(tx, &ring(*queue, *rank), 1)?;
        let sql = "INSERT INTO rings (queue, priority, lane, turn) VALUES (?1, ?2, ?3, ?4)";
        run(tx.conn, sql, params![queue.as_str(), rank, lane, turn])?;
    }
    tx.wakes_claims = true;
    Ok(())
}

/// After a job has left its line: a lane without ready jobs leaves the others. Says whether it did.
pub(super) fn leave(tx: &Tx<'_>, line: &Line) -> Result<bool> {
    let sql = "DELETE FROM rings WHERE queue = ?1 AND priority = ?2 AND lane = ?3 AND NOT EXISTS
        (SELECT 1 FROM jobs WHERE place = 'queued' AND queue = ?1 AND priority = ?2 AND lane = ?3)";
    Ok(run(tx.conn, sql, params![line.queue.as_str(), line.rank, line.lane])? > 0)
}

/// After a lane has given so many jobs: it goes behind the others.
pub(super) fn turn(tx: &Tx<'_>, line: &Line, jobs: usize) -> Result<()> {
    let turn = raise(tx, &ring(line.queue, line.rank), jobs)?;
    if !leave(tx, line)? {
        let sql = "UPDATE rings SET turn = ?4 WHERE queue = ?1 AND priority = ?2 AND lane = ?3";
        run(tx.conn, sql, params![line.queue.as_str(), line.rank, line.lane, turn])?;
    }
    Ok(())
}

/// The name under which a ring's last turn is kept.
fn ring(queue: Queue, rank: usize) -> String {
    format!("{queue}:{rank}")
}

/// Notes that so many jobs were claimed from a queue.
pub(super) fn note_claims(tx: &Tx<'_>, queue: Queue, jobs: usize) -> Result<()> {
    raise(tx, queue.as_str(), jobs).map(drop)
}

fn raise(tx: &Tx<'_>, name: &str, by: usize) -> Result<i64> {
    let value = number(tx, name)? + by as i64;
    tx.numbers.borrow_mut().turns.insert(name.to_owned(), value);
    Ok(value)
}

/// A number that is kept by name, as this request knows it.
fn number(tx: &Tx<'_>, name: &str) -> Result<i64> {
    if let Some(value) = tx.numbers.borrow().turns.get(name) {
        return Ok(*value);
    }
    let value = one(tx.conn, "SELECT value FROM turns WHERE name = ?1", [name], |row| row.get(0))?.unwrap_or(0);
    tx.numbers.borrow_mut().turns.insert(name.to_owned(), value);
    Ok(value)
}

/// Writes what a request changed of counters and turns.
pub(super) fn write_numbers(tx: &Tx<'_>) -> Result<()> {
    let numbers = tx.numbers.take();
    for (key, by) in numbers.counts.iter().filter(|(_, by)| **by != 0) {
        let sql = "INSERT INTO counts (key, value) VALUES (?1, ?2) ON CONFLICT DO UPDATE SET value = value + ?2";
        run(tx.conn, sql, params![key, by])?;
    }
    for (name, value) in &numbers.turns {
        let sql = "INSERT INTO turns (name, value) VALUES (?1, ?2)
            ON CONFLICT DO UPDATE SET value = ?2 WHERE value <> ?2";
        run(tx.conn, sql, params![name, value])?;
    }
    Ok(())
}

/// The ranks of the priorities in the order in which the next claim from a queue tries them: of sixteen claims twelve
/// try high first, three normal, one low.
pub(super) fn preference(tx: &Tx<'_>, queue: Queue) -> Result<[usize; 3]> {
    let [high, normal, low] = [Priority::High, Priority::Normal, Priority::Low].map(sql::rank);
    Ok(match number(tx, queue.as_str())? {
        made if made % 16 == 15 => [low, high, normal],
        made if made % 4 == 3 => [normal, high, low],
        _ => [high, normal, low],
    })
}

/// The only lane of a queue that has ready jobs; nothing where there are several, or none.
pub(super) fn only_lane(tx: &Tx<'_>, queue: Queue) -> Result<Option<Line>> {
    let sql = "SELECT queue, priority, lane FROM rings WHERE queue = ?1 LIMIT 2";
    let mut lines = all(tx.conn, sql, [queue.as_str()], |row| Line::read(row, 0))?;
    Ok(lines.pop().filter(|_| lines.is_empty()))
}

/// The lane of a queue and priority whose turn it is, of those that have room.
pub(super) fn next_lane(tx: &Tx<'_>, queue: Queue, rank: usize, room: &mut Room<'_>) -> Result<Option<Line>> {
    let mut after = i64::MIN;
    loop {
        let sql = "SELECT lane, turn FROM rings WHERE queue = ?1 AND priority = ?2 AND turn > ?3 ORDER BY turn LIMIT 1";
        let found = one(tx.conn, sql, params![queue.as_str(), rank, after], |row| {
            Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?))
        })?;
        let Some((lane, turn)) = found else { return Ok(None) };
        if room.is_for(&lane) {
            return Ok(Some(Line { queue, rank, lane }));
        }
        after = turn;
    }
}

/// How many more jobs may run at once, by the names that limits are for.
pub(super) struct Room<'l> {
    limits: &'l Limits,
    held: BTreeMap<String, u32>,
}

impl<'l> Room<'l> {
    /// Counts what runs now; nothing is counted where nothing is limited.
    pub(super) fn look(tx: &Tx<'_>, limits: &'l Limits) -> Result<Self> {
        let mut room = Self { limits, held: BTreeMap::new() };
        if !limits.is_empty() {
            let sql = "SELECT lane, COUNT(*) FROM jobs WHERE place = 'leased' GROUP BY lane";
            for (lane, jobs) in all(tx.conn, sql, [], |row| Ok((row.get::<_, String>(0)?, row.get::<_, u32>(1)?)))? {
                room.hold(&lane, jobs);
            }
        }
        Ok(room)
    }

    /// Whether no limit is for jobs of this lane.
    pub(super) fn is_unlimited(&self, lane: &str) -> bool {
        self.limits.is_empty() || self.limits.of(&Lane::parse(lane)).is_empty()
    }

    fn is_for(&self, lane: &str) -> bool {
        let held = |name: &String| self.held.get(name).copied().unwrap_or(0);
        self.limits.is_empty() || self.limits.of(&Lane::parse(lane)).iter().all(|(name, most)| held(name) < *most)
    }

    /// So many more run.
    pub(super) fn hold(&mut self, lane: &str, jobs: u32) {
        if self.limits.is_empty() {
            return;
        }
        for (name, _) in self.limits.of(&Lane::parse(lane)) {
            *self.held.entry(name).or_default() += jobs;
        }
    }
}
