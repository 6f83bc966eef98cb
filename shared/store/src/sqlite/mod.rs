//! The engine for one machine: one SQLite file, which several processes may share.
//!
//! # Layout
//! - `schema`: the tables, and how a connection is set up
//! - `writer`: the one thread that writes, and who is woken by what it wrote
//! - `lanes`: whose turn it is
//! - `jobs`: claim, extend, report, release, promote, reclaim
//! - `commits`: submit, take outcomes, commit, discard, replay
//! - `pauses`: pauses, and calls that are let through beside them
//! - `reads`: tasks, lists, statistics, events, presence
//! - `sql`: short forms for statements

mod schema;
mod writer;
mod lanes;
mod jobs;
mod commits;
mod pauses;
mod reads;
mod sql;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use refile_core::{TaskId, Timestamp};
use rusqlite::{Connection, ErrorCode, Transaction};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use crate::envelope::{apart, encode};
use crate::error::StoreError;
use crate::model::{
    Admission, Claim, ClaimRequest, Commit, Committed, Cursor, Entry, Filter, JobView, Lease, LeaseState, LoggedEvent,
    Page, Pause, PauseLength, PauseTarget, Paused, Presence, Promoted, ProviderPart, Quarantined, Receipt, Reclaimed,
    Report, Reported, Stats, Submitted, TakeRequest, Taken, Versioned,
};
use crate::{Observer, Result, Store};
use commits::{Prepared, until};
use jobs::Leased;
use schema::OpenError;
use writer::{Bell, Tx, Writer, now};

/// Commits that are written in one go: about two milliseconds.
const PIECE: usize = 25;

/// How many read at once.
const READERS: usize = 4;

/// A SQLite file as a store. Cheap to clone; the file is closed with the last clone.
#[derive(Clone)]
pub struct SqliteStore(Arc<Inner>);

struct Inner {
    path: PathBuf,
    /// The file's id, as it was at open.
    id: Mutex<String>,
    writer: Writer,
    bell: Arc<Bell>,
    readers: reads::Readers,
    permits: Semaphore,
    /// Whether anybody claims under limits that are not for landings alone: then the end of any job makes room for another.
    limited: AtomicBool,
    observer: Option<Observer>,
}

impl std::fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("SqliteStore").field(&self.0.path).finish()
    }
}

impl SqliteStore {
    /// Opens the file; it and its folder are made where they are missing.
    pub fn open(path: &Path, observer: Option<Observer>) -> Result<Self> {
        crate::folder::make(path.parent().unwrap_or(Path::new(""))).map_err(|e| StoreError::Unsuitable {
            store: path.display().to_string(),
            why: format!("its folder cannot be made: {e}; make it, or name another file"),
        })?;
        let bell = Arc::new(Bell::default());
        let started = Writer::start(path.to_owned(), Arc::clone(&bell));
        let (writer, id) = started.map_err(|e| open_error(path, "open", e))?;
        let (id, permits, limited) = (Mutex::new(id), Semaphore::new(READERS), AtomicBool::new(false));
        let readers = reads::Readers::default();
        Ok(Self(Arc::new(Inner { path: path.to_owned(), id, writer, bell, readers, permits, limited, observer })))
    }

    fn name(&self) -> String {
        self.0.path.display().to_string()
    }

    /// Runs `work` in the writing thread, in one transaction.
    async fn write<T: Send + 'static>(
        &self,
        operation: &'static str,
        work: impl FnOnce(&mut Tx<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T> {
        let started = Instant::now();
        let result = match self.0.writer.write(work).await {
            Some(result) => result.map_err(|e| sql_error(&self.0.path, operation, e.sqlite_error_code(), e)),
            None => Err(StoreError::Engine { operation, source: "the thread that writes has ended".into() }),
        };
        self.observe(operation, started);
        result
    }

    /// Writes commits, so many at a time that others do not wait long for their turn. Each is whole by itself.
    async fn write_in_pieces<T: Send + 'static>(
        &self,
        operation: &'static str,
        prepared: Vec<Prepared>,
        work: fn(&mut Tx<'_>, &[Prepared]) -> rusqlite::Result<Vec<T>>,
    ) -> Result<Vec<T>> {
        let mut results = Vec::with_capacity(prepared.len());
        let mut left = prepared.into_iter().peekable();
        while left.peek().is_some() {
            let piece: Vec<Prepared> = left.by_ref().take(PIECE).collect();
            results.extend(self.write(operation, move |tx| work(tx, &piece)).await?);
        }
        Ok(results)
    }

    /// Runs `read` on a thread for blocking work, in one transaction.
    async fn read<T: Send + 'static>(
        &self,
        operation: &'static str,
        read: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T> {
        let started = Instant::now();
        let engine = |source| StoreError::Engine { operation, source };
        let _permit = self.0.permits.acquire().await.map_err(|e| engine(e.into()))?;
        let this = self.clone();
        let result = tokio::task::spawn_blocking(move || this.0.readers.read(&this.0.path, read))
            .await
            .map_err(|e| engine(e.into()))?;
        self.observe(operation, started);
        result.map_err(|e| sql_error(&self.0.path, operation, e.sqlite_error_code(), e))
    }

    fn observe(&self, operation: &'static str, started: Instant) {
        if let Some(observer) = &self.0.observer {
            observer(operation, started.elapsed());
        }
    }
}

#[async_trait]
impl Store for SqliteStore {
    async fn submit(&self, submissions: &[Commit]) -> Result<Vec<Submitted>> {
        let prepared = prepare("submit", submissions)?;
        self.write_in_pieces("submit", prepared, commits::submit).await
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Vec<Claim>> {
        let deadline = end_of(request.wait);
        self.0.limited.fetch_or(!request.limits.is_for_landings_alone(), Ordering::Relaxed);
        let _waiting = (!request.wait.is_zero()).then(|| self.0.bell.wait());
        loop {
            // Interest is registered before looking, so that nothing is missed in between.
            let mut rung = std::pin::pin!(self.0.bell.jobs.notified());
            rung.as_mut().enable();
            let request = request.clone();
            let claimed = self.write("claim", move |tx| jobs::claim(tx, &request)).await?;
            let left = deadline.saturating_duration_since(Instant::now());
            let (claims, broken) = apart(claimed.jobs.into_iter().map(Leased::decode));
            if !broken.is_empty() {
                for (Lease { task, phase, .. }, reason) in &broken {
                    tracing::error!(%task, phase, reason, "a record cannot be decoded: its job is quarantined");
                }
                self.write("claim", move |tx| jobs::set_aside(tx, &broken)).await?;
                if claims.is_empty() {
                    continue;
                }
            }
            if !claims.is_empty() || left.is_zero() {
                return Ok(claims);
            }
            // Either way it is time to look again.
            let _ = timeout(until(claimed.look_again_in_ms, left), rung).await;
        }
    }

    async fn extend(&self, leases: &[Lease], lease: Duration) -> Result<Vec<LeaseState>> {
        let leases = leases.to_vec();
        self.write("extend", move |tx| jobs::extend(tx, &leases, lease)).await
    }

    async fn report(&self, reports: &[Report]) -> Result<Vec<Reported>> {
        let ends_landing = reports.iter().any(|r| r.outcome.is_of_landing());
        let encoded = reports.iter().map(|r| Ok((r.lease.clone(), bytes("report", &r.outcome)?)));
        let reports = encoded.collect::<Result<Vec<_>>>()?;
        let reported = self.write("report", move |tx| jobs::report(tx, &reports)).await;
        if ends_landing || self.0.limited.load(Ordering::Relaxed) {
            self.0.bell.jobs.notify_waiters();
        }
        reported
    }

    async fn release(&self, leases: &[Lease]) -> Result<()> {
        let leases = leases.to_vec();
        self.write("release", move |tx| jobs::release(tx, &leases)).await
    }

    async fn take_outcomes(&self, request: &TakeRequest) -> Result<Vec<Taken>> {
        let deadline = end_of(request.wait);
        let _waiting = (!request.wait.is_zero()).then(|| self.0.bell.wait());
        loop {
            let mut rung = std::pin::pin!(self.0.bell.outcomes.notified());
            rung.as_mut().enable();
            let request = request.clone();
            let took = self.write("take_outcomes", move |tx| commits::take(tx, &request)).await?;
            let left = deadline.saturating_duration_since(Instant::now());
            let (taken, broken) = apart(took.entries.into_iter().map(commits::Entry::decode));
            if !broken.is_empty() {
                self.write("take_outcomes", move |tx| commits::set_aside(tx, &broken)).await?;
                if taken.is_empty() {
                    continue;
                }
            }
            if !taken.is_empty() || left.is_zero() {
                return Ok(taken);
            }
            let _ = timeout(until(took.look_again_in_ms, left), rung).await;
        }
    }

    async fn commit(&self, commits: &[Commit]) -> Result<Vec<Committed>> {
        let prepared = prepare("commit", commits)?;
        self.write_in_pieces("commit", prepared, commits::commit).await
    }

    async fn discard(&self, receipts: &[Receipt]) -> Result<()> {
        let receipts = receipts.to_vec();
        self.write("discard", move |tx| commits::discard(tx, &receipts)).await
    }

    async fn promote(&self, max: usize) -> Result<Promoted> {
        self.write("promote", move |tx| jobs::promote(tx, max)).await
    }

    async fn reclaim(&self, max_deliveries: u32, max: usize) -> Result<Reclaimed> {
        self.write("reclaim", move |tx| jobs::reclaim(tx, max_deliveries, max)).await
    }

    async fn tasks(&self, ids: &[TaskId]) -> Result<Vec<Option<Versioned>>> {
        let ids = ids.to_vec();
        let found = self.read("tasks", move |conn| reads::tasks(conn, &ids)).await?;
        let undecodable = |(task, source)| StoreError::Undecodable { task, source };
        found.into_iter().map(|task| task.transpose().map_err(undecodable)).collect()
    }

    async fn list(&self, filter: &Filter, cursor: Option<Cursor>, limit: usize) -> Result<Page> {
        let filter = filter.clone();
        self.read("list", move |conn| reads::list(conn, &filter, cursor, limit)).await
    }

    async fn jobs(&self, task: &TaskId) -> Result<Vec<JobView>> {
        let task = task.clone();
        self.read("jobs", move |conn| reads::jobs(conn, &task)).await
    }

    async fn stats(&self) -> Result<Stats> {
        self.read("stats", |conn| reads::stats(conn, now().0)).await
    }

    async fn events(&self, after: &str, max: usize) -> Result<Vec<LoggedEvent>> {
        // A cursor that is none of this store's starts from the oldest line that is kept.
        let after = after.parse().unwrap_or(0);
        self.read("events", move |conn| reads::events(conn, after, max)).await
    }

    async fn now(&self) -> Result<Timestamp> {
        Ok(Timestamp(now().0))
    }

    async fn set_pause(&self, target: &PauseTarget, pause: Option<&Pause>) -> Result<()> {
        let (target, pause) = (target.clone(), pause.cloned());
        self.write("set_pause", move |tx| pauses::set(tx, &target, pause.as_ref())).await
    }

    async fn hold(&self, target: &PauseTarget, length: PauseLength, reason: &str) -> Result<Option<Pause>> {
        let (target, reason) = (target.clone(), reason.to_owned());
        self.write("hold", move |tx| pauses::hold(tx, &target, length, &reason)).await
    }

    async fn pauses(&self) -> Result<Vec<Paused>> {
        self.read("pauses", |conn| pauses::all(conn, now().0)).await
    }

    async fn admit(&self, entry: &Entry) -> Result<Admission> {
        let entry = entry.clone();
        self.write("admit", move |tx| pauses::admit(tx, &entry)).await
    }

    async fn answered(&self, call: &ProviderPart, at: Timestamp) -> Result<Vec<PauseTarget>> {
        let call = call.clone();
        self.write("answered", move |tx| pauses::answered(tx, &call, at)).await
    }

    async fn presence(&self, presence: &Presence, gone: bool) -> Result<()> {
        let bytes = bytes("presence", presence)?;
        let presence = presence.clone();
        self.write("presence", move |tx| reads::presence(tx, &presence, &bytes, gone)).await
    }

    async fn quarantined(&self) -> Result<Vec<Quarantined>> {
        self.read("quarantined", |conn| reads::quarantined(conn)).await
    }

    async fn replay(&self, id: &str) -> Result<bool> {
        let id = id.to_owned();
        self.write("replay", move |tx| commits::replay(tx, &id)).await
    }

    async fn partitions(&self, grow_to: Option<u32>) -> Result<u32> {
        match grow_to {
            None | Some(1) => Ok(1),
            Some(_) => Err(StoreError::Unsuitable {
                store: self.name(),
                why: "a file has one partition; a fleet that needs more keeps its tasks in Redis".to_owned(),
            }),
        }
    }

    async fn check(&self) -> Result<()> {
        let this = self.clone();
        let looked = tokio::task::spawn_blocking(move || file_id(&this.0.path)).await;
        let looked = looked.map_err(|e| StoreError::Engine { operation: "check", source: e.into() })?;
        let found = looked.map_err(|e| sql_error(&self.0.path, "check", e.sqlite_error_code(), e))?;
        let known = self.0.id.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if found.as_ref() == Some(&known) {
            return Ok(());
        }
        self.0.readers.close();
        let id = match self.0.writer.reopen().await {
            Some(reopened) => reopened.map_err(|e| open_error(&self.0.path, "check", e))?,
            None => {
                return Err(StoreError::Engine {
                    operation: "check",
                    source: "the thread that writes has ended".into(),
                });
            }
        };
        *self.0.id.lock().unwrap_or_else(PoisonError::into_inner) = id;
        // One may have opened what lay there in between.
        self.0.readers.close();
        let what = match found {
            Some(_) => "another file lies in its place".to_owned(),
            None => "the file is gone; an empty one was made".to_owned(),
        };
        Err(StoreError::LostData { store: self.name(), what })
    }
}

/// The id of the file that lies at the path now; nothing where there is no such file of ours.
fn file_id(path: &Path) -> rusqlite::Result<Option<String>> {
    if !path.exists() {
        return Ok(None);
    }
    let conn: Connection = schema::open_reader(path)?;
    match schema::read_id(&conn) {
        Ok(id) => Ok(Some(id)),
        // It is empty, or a database of something else.
        Err(rusqlite::Error::QueryReturnedNoRows) => Ok(None),
        Err(rusqlite::Error::SqliteFailure(e, _)) if e.code == ErrorCode::Unknown => Ok(None),
        Err(error) => Err(error),
    }
}

/// Encodes what the writing thread then only has to write.
fn prepare(operation: &'static str, commits: &[Commit]) -> Result<Vec<Prepared>> {
    let prepare = |commit: &Commit| {
        Prepared::new(commit).map_err(|source| StoreError::Engine { operation, source: source.into() })
    };
    commits.iter().map(prepare).collect()
}

fn bytes(operation: &'static str, value: &impl serde::Serialize) -> Result<Vec<u8>> {
    encode(value).map_err(|source| StoreError::Engine { operation, source: source.into() })
}

fn open_error(path: &Path, operation: &'static str, error: OpenError) -> StoreError {
    match error {
        OpenError::Sql(error) => sql_error(path, operation, error.sqlite_error_code(), error),
        OpenError::Unsuitable(why) => StoreError::Unsuitable { store: path.display().to_string(), why },
    }
}

/// Where the file is busy or the disk fails, the same may succeed later.
fn sql_error(
    path: &Path,
    operation: &'static str,
    code: Option<ErrorCode>,
    error: impl std::error::Error + Send + Sync + 'static,
) -> StoreError {
    let source = Box::new(error);
    match code {
        Some(
            ErrorCode::DatabaseBusy
            | ErrorCode::DatabaseLocked
            | ErrorCode::SystemIoFailure
            | ErrorCode::CannotOpen
            | ErrorCode::DiskFull,
        ) => StoreError::Unavailable { store: path.display().to_string(), operation, source },
        _ => StoreError::Engine { operation, source },
    }
}

/// When a wait is over that starts now. A day stands for longer ones: whoever waits may ask again.
fn end_of(wait: Duration) -> Instant {
    Instant::now() + wait.min(Duration::from_hours(24))
}
