//! Pauses, and calls that are let through beside them.

use std::time::Duration;

use refile_core::Timestamp;
use rusqlite::{Connection, Result, Row, params};

use super::sql::{all as rows, one, run};
use super::writer::Tx;
use crate::model::{Admission, Entry, Pass, Pause, PauseLength, PauseTarget, Paused, ProviderPart};

/// Reads the columns `until, reason, tries` from this one on.
fn read(row: &Row<'_>, from: usize) -> Result<Pause> {
    let until = row.get::<_, Option<u64>>(from)?.map(Timestamp);
    Ok(Pause { until, reason: row.get(from + 1)?, tries: row.get(from + 2)? })
}

/// What is paused.
pub(super) fn all(conn: &Connection, now: u64) -> Result<Vec<Paused>> {
    let found = rows(conn, "SELECT target, until, reason, tries FROM pauses", [], |row| {
        Ok((PauseTarget::parse(row.get_ref(0)?.as_str()?), read(row, 1)?))
    })?;
    let mut pauses: Vec<Paused> =
        found.into_iter().filter_map(|(target, pause)| Paused::new(target?, pause, now)).collect();
    pauses.sort_by(|a, b| a.target.cmp(&b.target));
    Ok(pauses)
}

/// Pauses a target, or resumes it. Nobody tries whether it is over any more.
pub(super) fn set(tx: &mut Tx<'_>, target: &PauseTarget, pause: Option<&Pause>) -> Result<()> {
    match pause {
        Some(Pause { until, reason, tries }) => {
            let until = until.map(|at| i64::try_from(at.0).unwrap_or(i64::MAX));
            let sql = "INSERT INTO pauses (target, until, reason, tries) VALUES (?1, ?2, ?3, ?4)
                ON CONFLICT DO UPDATE SET until = ?2, reason = ?3, tries = ?4, probe = NULL";
            run(tx.conn, sql, params![target.key(), until, reason, tries])?;
        }
        None => {
            run(tx.conn, "DELETE FROM pauses WHERE target = ?1", [target.key()])?;
        }
    }
    // Whoever waits counts on the end of the pause that was there.
    tx.wakes_claims = true;
    Ok(())
}

/// Pauses a target, unless it is paused for as long already.
pub(super) fn hold(tx: &mut Tx<'_>, target: &PauseTarget, length: PauseLength, reason: &str) -> Result<Option<Pause>> {
    let sql = "SELECT until, reason, tries FROM pauses WHERE target = ?1";
    let before = one(tx.conn, sql, [target.key()], |row| read(row, 0))?;
    let after = Pause::extended(before.as_ref(), length, reason, tx.now);
    if after.is_some() {
        set(tx, target, after.as_ref())?;
    }
    Ok(after)
}

/// Lets a call through, or says why not. Kept of the minutes is when a minute's worth will be there again, in microseconds.
pub(super) fn admit(tx: &mut Tx<'_>, entry: &Entry) -> Result<Admission> {
    let (mut probes, mut probed_until) = (Vec::new(), 0);
    for (at, target) in entry.call.targets().into_iter().enumerate() {
        let sql = "SELECT until, reason, tries, probe FROM pauses WHERE target = ?1";
        let found = one(tx.conn, sql, [target.key()], |row| Ok((read(row, 0)?, row.get::<_, Option<u64>>(3)?)))?;
        let Some((Pause { until, reason, .. }, probe)) = found else { continue };
        if until.is_none_or(|until| until.0 > tx.now) {
            return Ok(Admission::Paused { reason, until });
        }
        // One that names no key ends with its time.
        if at >= 2 {
            probes.push(target);
            probed_until = probed_until.max(probe.unwrap_or(0));
        }
    }
    if probed_until > tx.now {
        return Ok(Admission::Probing { wait: Duration::from_millis(probed_until - tx.now) });
    }
    let (mut wait, mut after) = (0, Vec::with_capacity(entry.draws.len()));
    for draw in &entry.draws {
        let kept = one(tx.conn, "SELECT full_at FROM draws WHERE name = ?1", [&draw.name], |row| row.get::<_, u64>(0))?;
        let (full_at, needed) = draw.after(kept.unwrap_or(0), tx.now_us);
        wait = wait.max(needed);
        after.push((&draw.name, full_at));
    }
    if wait > 0 {
        return Ok(Admission::Spent { wait: Duration::from_micros(wait) });
    }
    for (name, full_at) in after {
        let sql = "INSERT INTO draws (name, full_at) VALUES (?1, ?2) ON CONFLICT DO UPDATE SET full_at = ?2";
        run(tx.conn, sql, params![name, full_at])?;
    }
    let until = tx.now.saturating_add(entry.probe.as_millis() as u64);
    for target in &probes {
        run(tx.conn, "UPDATE pauses SET probe = ?2 WHERE target = ?1", params![target.key(), until])?;
    }
    Ok(Admission::Granted(Pass { at: Timestamp(tx.now), probes }))
}

/// Ends the pauses that a call has shown to be over.
pub(super) fn answered(tx: &mut Tx<'_>, call: &ProviderPart, at: Timestamp) -> Result<Vec<PauseTarget>> {
    let mut ended = Vec::new();
    for target in call.targets().into_iter().skip(2) {
        let sql = "DELETE FROM pauses WHERE target = ?1 AND until <= ?2";
        if run(tx.conn, sql, params![target.key(), at.0])? > 0 {
            ended.push(target);
        }
    }
    tx.wakes_claims |= !ended.is_empty();
    Ok(ended)
}
