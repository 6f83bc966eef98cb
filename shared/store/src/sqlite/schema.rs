//! The tables, and how a connection is set up.

use std::path::Path;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags, TransactionBehavior};

/// The version of the tables below, as the file's `user_version`.
const VERSION: i64 = 4;

/// How long a statement waits for another process's transaction.
const BUSY: Duration = Duration::from_secs(5);

/// Every table and index. A job's row outlives the job: its fence must not start again from 0. `due` is since when a
/// queued job is ready, when a delayed one is, and when a lease runs out. `rings` holds the lanes that have ready jobs, and whose
/// turn it is: the smallest `turn`. `turns` holds the last turn of each ring, and by a queue's name how many were claimed. A
/// pause's `probe` is until when one call has the provider to itself.
const TABLES: &str = "
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;

CREATE TABLE tasks (
    seq INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    version INTEGER NOT NULL,
    state TEXT NOT NULL,
    repository TEXT NOT NULL,
    changed_at INTEGER NOT NULL,
    record BLOB NOT NULL
) STRICT;
CREATE INDEX tasks_escalated ON tasks (changed_at) WHERE state = 'escalated';

CREATE TABLE jobs (
    task TEXT NOT NULL,
    phase TEXT NOT NULL,
    place TEXT,
    queue TEXT NOT NULL,
    priority INTEGER NOT NULL,
    lane TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    fence INTEGER NOT NULL,
    deliveries INTEGER NOT NULL,
    owner TEXT,
    due INTEGER NOT NULL,
    position INTEGER NOT NULL,
    reason TEXT,
    PRIMARY KEY (task, phase)
) STRICT, WITHOUT ROWID;
CREATE INDEX jobs_queued ON jobs (queue, priority, lane, position, due) WHERE place = 'queued';
CREATE INDEX jobs_delayed ON jobs (due) WHERE place = 'delayed';
CREATE INDEX jobs_leased ON jobs (due, queue) WHERE place = 'leased';
CREATE INDEX jobs_quarantined ON jobs (task) WHERE place = 'quarantined';

CREATE TABLE rings (
    queue TEXT NOT NULL,
    priority INTEGER NOT NULL,
    lane TEXT NOT NULL,
    turn INTEGER NOT NULL,
    PRIMARY KEY (queue, priority, lane)
) STRICT, WITHOUT ROWID;
CREATE INDEX rings_by_turn ON rings (queue, priority, turn);

CREATE TABLE outcomes (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    task TEXT NOT NULL,
    phase TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    fence INTEGER NOT NULL,
    poisoned INTEGER,
    payload BLOB NOT NULL,
    consumer TEXT,
    taken_at INTEGER,
    reason TEXT
) STRICT;
CREATE INDEX outcomes_fresh ON outcomes (id) WHERE consumer IS NULL AND reason IS NULL;
CREATE INDEX outcomes_taken ON outcomes (taken_at) WHERE consumer IS NOT NULL AND reason IS NULL;
CREATE INDEX outcomes_quarantined ON outcomes (id) WHERE reason IS NOT NULL;

CREATE TABLE events (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    at INTEGER NOT NULL,
    task TEXT NOT NULL,
    notice BLOB NOT NULL
) STRICT;

CREATE TABLE turns (name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE counts (key TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE pauses (
    target TEXT PRIMARY KEY,
    until INTEGER,
    reason TEXT NOT NULL,
    tries INTEGER NOT NULL,
    probe INTEGER
) STRICT, WITHOUT ROWID;
CREATE TABLE draws (name TEXT PRIMARY KEY, full_at INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE workers (id TEXT PRIMARY KEY, seen INTEGER NOT NULL, presence BLOB NOT NULL) STRICT, WITHOUT ROWID;
";

/// Why a file cannot be opened.
pub(super) enum OpenError {
    /// SQLite says so.
    Sql(rusqlite::Error),
    /// It is a file of another kind, or of a newer program.
    Unsuitable(String),
}

impl From<rusqlite::Error> for OpenError {
    fn from(error: rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => Self::Unsuitable(format!(
                "it is not a sound SQLite database ({error}); move the file away or name another one"
            )),
            _ => Self::Sql(error),
        }
    }
}

/// Opens the one connection that writes. The file is made where it is missing.
pub(super) fn open_writer(path: &Path) -> Result<Connection, OpenError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut conn = Connection::open_with_flags(path, flags)?;
    set_up(&conn)?;
    to_wal(&conn)?;
    // Small steps (pages of 4 KiB): whoever commits as the log is full waits for it to be carried over.
    conn.pragma_update(None, "wal_autocheckpoint", 250)?;
    create(&mut conn)?;
    Ok(conn)
}

/// Opens a connection that reads; the file must be there.
pub(super) fn open_reader(path: &Path) -> rusqlite::Result<Connection> {
    // Readers of a WAL file write to its shared memory, so the file itself is opened for writing.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(path, flags)?;
    set_up(&conn)?;
    conn.pragma_update(None, "query_only", true)?;
    Ok(conn)
}

/// The id that the file was given when it was made.
pub(super) fn read_id(conn: &Connection) -> rusqlite::Result<String> {
    conn.query_row("SELECT value FROM meta WHERE key = 'id'", [], |row| row.get(0))
}

fn set_up(conn: &Connection) -> rusqlite::Result<()> {
    conn.busy_timeout(BUSY)?;
    conn.set_prepared_statement_cache_capacity(128);
    // Without it SQLite plans a statement anew whenever a value is bound that its plan may depend on: half of all work.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    conn.pragma_update(None, "synchronous", "NORMAL")
}

/// Turns the write-ahead log on. SQLite does not wait for others at this step, so it is tried again.
fn to_wal(conn: &Connection) -> rusqlite::Result<()> {
    let mut tries = 0;
    loop {
        match conn.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get::<_, String>(0)) {
            Ok(_) => return Ok(()),
            Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) && tries < 200 => {
                tries += 1;
                std::thread::sleep(Duration::from_millis(10));
            }
            Err(error) => return Err(error),
        }
    }
}

/// Makes the tables in a new file; two processes may come to it at once.
fn create(conn: &mut Connection) -> Result<(), OpenError> {
    let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let found: i64 = tx.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    match found {
        0 => {
            let strangers: i64 = tx.query_row("SELECT COUNT(*) FROM sqlite_schema", [], |row| row.get(0))?;
            if strangers > 0 {
                return Err(OpenError::Unsuitable(
                    "it is the database of another program; name another file".to_owned(),
                ));
            }
            tx.execute_batch(TABLES)?;
            let id = uuid::Uuid::new_v4().to_string();
            tx.execute("INSERT INTO meta (key, value) VALUES ('id', ?1)", [id])?;
            tx.pragma_update(None, "user_version", VERSION)?;
        }
        VERSION => {}
        older if older < VERSION => {
            return Err(OpenError::Unsuitable(format!(
                "an older program made it (its tables have version {older}, this one's {VERSION}), and it cannot be carried on: finish its tasks with the program that made it, or move the file away"
            )));
        }
        newer => {
            return Err(OpenError::Unsuitable(format!(
                "its tables have version {newer}, and this program knows version {VERSION}: update the program"
            )));
        }
    }
    Ok(tx.commit()?)
}
