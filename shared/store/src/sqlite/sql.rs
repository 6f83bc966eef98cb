//! Short forms for statements that are prepared once, and the columns that hold names of this project.

use refile_core::{Priority, Queue, TaskId};
use rusqlite::types::Type;
use rusqlite::{Connection, OptionalExtension, Params, Result, Row};

use crate::model::Place;

/// Runs a statement and says how many rows it changed.
pub(super) fn run(conn: &Connection, sql: &str, params: impl Params) -> Result<usize> {
    conn.prepare_cached(sql)?.execute(params)
}

/// Reads the only row, where there is one.
pub(super) fn one<T>(
    conn: &Connection,
    sql: &str,
    params: impl Params,
    read: impl FnOnce(&Row<'_>) -> Result<T>,
) -> Result<Option<T>> {
    conn.prepare_cached(sql)?.query_row(params, read).optional()
}

/// Reads every row.
pub(super) fn all<T>(
    conn: &Connection,
    sql: &str,
    params: impl Params,
    read: impl FnMut(&Row<'_>) -> Result<T>,
) -> Result<Vec<T>> {
    conn.prepare_cached(sql)?.query_map(params, read)?.collect()
}

/// A value that cannot be what a column holds: somebody else wrote it.
fn foreign(row: &Row<'_>, column: usize, text: &str) -> rusqlite::Error {
    let name = row.as_ref().column_name(column).unwrap_or("?");
    let why = format!("column `{name}` holds `{text}`, which this program does not know");
    rusqlite::Error::FromSqlConversionFailure(column, Type::Text, why.into())
}

/// Reads a task's name.
pub(super) fn task(row: &Row<'_>, column: usize) -> Result<TaskId> {
    let text = row.get_ref(column)?.as_str()?;
    TaskId::parse(text).map_err(|_| foreign(row, column, text))
}

/// Reads a queue's name.
pub(super) fn queue(row: &Row<'_>, column: usize) -> Result<Queue> {
    let text = row.get_ref(column)?.as_str()?;
    Queue::parse(text).ok_or_else(|| foreign(row, column, text))
}

/// Reads a priority.
pub(super) fn priority(row: &Row<'_>, column: usize) -> Result<Priority> {
    let rank: usize = row.get(column)?;
    Priority::ALL.get(rank).copied().ok_or_else(|| foreign(row, column, &rank.to_string()))
}

/// The number that a priority is kept as; the smallest is claimed first.
pub(super) fn rank(priority: Priority) -> usize {
    Priority::ALL.iter().position(|p| *p == priority).unwrap_or(usize::MAX)
}

/// A number of rows as SQLite takes it.
pub(super) fn limit(max: usize) -> i64 {
    i64::try_from(max).unwrap_or(i64::MAX)
}

/// Reads a place.
pub(super) fn place(row: &Row<'_>, column: usize) -> Result<Place> {
    let text = row.get_ref(column)?.as_str()?;
    Ok(match text {
        "queued" => Place::Queued,
        "delayed" => Place::Delayed,
        "leased" => Place::Leased,
        "reported" => Place::Reported,
        "quarantined" => Place::Quarantined,
        other => return Err(foreign(row, column, other)),
    })
}
