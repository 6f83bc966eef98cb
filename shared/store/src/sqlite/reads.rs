//! What changes nothing, or nothing about tasks: reading, listing, statistics, pauses, presence.

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use refile_core::decide::Notice;
use refile_core::{Task, TaskId, Timestamp};
use rusqlite::{Connection, Result, Transaction, params};

use super::schema;
use super::sql::{self, all, one, run};
use super::writer::Tx;
use crate::envelope::{DecodeError, decode};
use crate::model::{Cursor, Filter, JobView, LoggedEvent, Page, Presence, Quarantined, Stats, Versioned};

/// Who said nothing for so long is forgotten, in milliseconds.
const FORGOTTEN_MS: u64 = 60_000;

/// Connections that read, at most so many as ever read at once.
#[derive(Default)]
pub(super) struct Readers(Mutex<Pool>);

#[derive(Default)]
struct Pool {
    idle: Vec<Connection>,
    /// How often the file was opened again: a connection from before must not come back.
    generation: u64,
}

impl Readers {
    fn pool(&self) -> MutexGuard<'_, Pool> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads in one transaction: everything is of the same moment.
    pub(super) fn read<T>(&self, path: &Path, read: impl FnOnce(&Transaction<'_>) -> Result<T>) -> Result<T> {
        let (idle, generation) = {
            let mut pool = self.pool();
            (pool.idle.pop(), pool.generation)
        };
        let mut conn = match idle {
            Some(conn) => conn,
            None => schema::open_reader(path)?,
        };
        let result = conn.transaction().and_then(|tx| read(&tx))?;
        let mut pool = self.pool();
        if pool.generation == generation {
            pool.idle.push(conn);
        }
        Ok(result)
    }

    /// Lets go of the file that lay at the path so far.
    pub(super) fn close(&self) {
        let mut pool = self.pool();
        pool.idle.clear();
        pool.generation += 1;
    }
}

/// A record that may be unreadable.
pub(super) type Read<T> = std::result::Result<T, (TaskId, DecodeError)>;

/// Reads tasks by id.
pub(super) fn tasks(conn: &Connection, ids: &[TaskId]) -> Result<Vec<Option<Read<Versioned>>>> {
    let sql = "SELECT version, record FROM tasks WHERE id = ?1";
    ids.iter()
        .map(|id| {
            one(conn, sql, [id.as_str()], |row| {
                let version = row.get(0)?;
                let task = decode(row.get_ref(1)?.as_blob()?);
                Ok(task.map(|task| Versioned { task, version }).map_err(|e| (id.clone(), e)))
            })
        })
        .collect()
}

/// Lists a page of tasks, newest first.
pub(super) fn list(conn: &Connection, filter: &Filter, cursor: Option<Cursor>, limit: usize) -> Result<Page> {
    let limit = limit.max(1);
    let mut statement = conn.prepare_cached(
        "SELECT seq, id, state, record FROM tasks
        WHERE seq < ?1 AND (?2 IS NULL OR repository = ?2) ORDER BY seq DESC",
    )?;
    let before = cursor.map_or(i64::MAX, |c| i64::try_from(c.0).unwrap_or(i64::MAX));
    let mut rows = statement.query(params![before, filter.repository])?;
    let mut page = Page::default();
    let mut last = None;
    while let Some(row) = rows.next()? {
        if page.tasks.len() + page.undecodable.len() == limit {
            page.next = last;
            break;
        }
        last = Some(Cursor(row.get(0)?));
        let state = row.get_ref(2)?.as_str()?;
        if !filter.states.is_empty() && !filter.states.iter().any(|s| s.as_str() == state) {
            continue;
        }
        match decode::<Task>(row.get_ref(3)?.as_blob()?) {
            Ok(task) if filter.matches(&task) => page.tasks.push(task),
            Ok(_) => {}
            Err(_) => page.undecodable.push(sql::task(row, 1)?),
        }
    }
    Ok(page)
}

/// Where the jobs of a task are.
pub(super) fn jobs(conn: &Connection, task: &TaskId) -> Result<Vec<JobView>> {
    let sql = "SELECT phase, place, queue, priority, attempt, fence, deliveries, owner FROM jobs
        WHERE task = ?1 AND place IS NOT NULL ORDER BY phase";
    all(conn, sql, [task.as_str()], |row| {
        Ok(JobView {
            phase: row.get(0)?,
            place: sql::place(row, 1)?,
            queue: sql::queue(row, 2)?,
            priority: sql::priority(row, 3)?,
            attempt: row.get(4)?,
            fence: row.get(5)?,
            deliveries: row.get(6)?,
            owner: row.get(7)?,
        })
    })
}

/// Counters, gauges, depths and ages.
pub(super) fn stats(conn: &Connection, now: u64) -> Result<Stats> {
    let mut stats = Stats::default();
    let counts = all(conn, "SELECT key, value FROM counts", [], |row| Ok((row.get(0)?, row.get(1)?)))?;
    stats.counts = counts.into_iter().collect();
    let sql = "SELECT queue, priority, COUNT(*), MIN(due) FROM jobs WHERE place = 'queued' GROUP BY queue, priority";
    let ready = all(conn, sql, [], |row| {
        Ok((sql::queue(row, 0)?, sql::priority(row, 1)?, row.get::<_, u64>(2)?, row.get::<_, u64>(3)?))
    })?;
    for (queue, priority, depth, since) in ready {
        stats.depth.insert((queue, priority), depth);
        let oldest = stats.oldest_ms.entry(queue).or_default();
        *oldest = (*oldest).max(now.saturating_sub(since));
    }
    let sql = "SELECT queue, COUNT(*) FROM jobs WHERE place = 'leased' GROUP BY queue";
    stats.leases = all(conn, sql, [], |row| Ok((sql::queue(row, 0)?, row.get(1)?)))?.into_iter().collect();
    stats.delayed = number(conn, "SELECT COUNT(*) FROM jobs WHERE place = 'delayed'")?;
    stats.outcomes = number(conn, "SELECT COUNT(*) FROM outcomes WHERE reason IS NULL")?;
    stats.quarantined = number(
        conn,
        "SELECT (SELECT COUNT(*) FROM jobs WHERE place = 'quarantined')
            + (SELECT COUNT(*) FROM outcomes WHERE reason IS NOT NULL)",
    )?;
    let sql = "SELECT MIN(changed_at) FROM tasks WHERE state = 'escalated'";
    let oldest = one(conn, sql, [], |row| row.get::<_, Option<u64>>(0))?.flatten();
    stats.oldest_escalation_ms = oldest.map(|at| now.saturating_sub(at));
    let sql = "SELECT presence FROM workers WHERE seen > ?1 ORDER BY id";
    let workers = all(conn, sql, [now.saturating_sub(FORGOTTEN_MS)], |row| Ok(decode(row.get_ref(0)?.as_blob()?)))?;
    // A process of another version may say more than this one can read; it is no job and no record.
    stats.workers = workers.into_iter().filter_map(std::result::Result::ok).collect();
    Ok(stats)
}

fn number(conn: &Connection, sql: &str) -> Result<u64> {
    conn.prepare_cached(sql)?.query_row([], |row| row.get(0))
}

/// The event log after a cursor. Lines that this version of the program cannot read are left out.
pub(super) fn events(conn: &Connection, after: i64, max: usize) -> Result<Vec<LoggedEvent>> {
    let mut statement = conn.prepare_cached("SELECT id, at, task, notice FROM events WHERE id > ?1 ORDER BY id")?;
    let mut rows = statement.query([after])?;
    let mut events = Vec::new();
    while events.len() < max
        && let Some(row) = rows.next()?
    {
        if let Ok(notice) = decode::<Notice>(row.get_ref(3)?.as_blob()?) {
            let cursor = row.get::<_, u64>(0)?.to_string();
            events.push(LoggedEvent { cursor, at: Timestamp(row.get(1)?), task: sql::task(row, 2)?, notice });
        }
    }
    Ok(events)
}

/// Jobs and outcomes that wait for an operator.
pub(super) fn quarantined(conn: &Connection) -> Result<Vec<Quarantined>> {
    let sql = "SELECT 'job:' || task || '/' || phase, task, phase, 'job', reason FROM jobs WHERE place = 'quarantined'
        UNION ALL
        SELECT 'outcome:' || id, task, phase, 'outcome', reason FROM outcomes WHERE reason IS NOT NULL";
    all(conn, sql, [], |row| {
        Ok(Quarantined {
            id: row.get(0)?,
            task: sql::task(row, 1)?,
            phase: row.get(2)?,
            what: row.get(3)?,
            reason: row.get::<_, Option<String>>(4)?.unwrap_or_default(),
        })
    })
}

/// Notes that a process lives, or that it leaves. `bytes` is the encoded presence.
pub(super) fn presence(tx: &mut Tx<'_>, presence: &Presence, bytes: &[u8], gone: bool) -> Result<()> {
    run(tx.conn, "DELETE FROM workers WHERE seen <= ?1", [tx.now.saturating_sub(FORGOTTEN_MS)])?;
    if gone {
        run(tx.conn, "DELETE FROM workers WHERE id = ?1", [&presence.id])?;
    } else {
        let sql = "INSERT INTO workers (id, seen, presence) VALUES (?1, ?2, ?3)
            ON CONFLICT DO UPDATE SET seen = ?2, presence = ?3";
        run(tx.conn, sql, params![presence.id, tx.now, bytes])?;
    }
    Ok(())
}
