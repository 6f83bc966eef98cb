//! Where tasks, jobs, leases and outcomes are kept.
//!
//! One trait, [`Store`], and two engines under one conformance suite (`tests/conformance.rs`). The engines carry out;
//! they decide nothing. What they promise is written at each method of the trait.
//!
//! # Layout
//! - [`model`]: what goes in and comes out: claims, leases, reports, commits
//! - [`error`]: what can go wrong, and what to do about it
//! - [`commit`]: a [`refile_core::Transition`] as one atomic step
//! - [`envelope`]: records as bytes, with their schema's version
//! - [`artifacts`]: where logs, diffs and replies lie
//! - [`folder`]: folders that the fleet keeps beside a repository
//! - [`redis`]: the engine for many machines: Redis or Valkey Streams
//! - [`sqlite`]: the engine for one machine: a file

pub mod model;
pub mod error;
pub mod commit;
pub mod envelope;
pub mod redis;
pub mod artifacts;
pub mod folder;
pub mod sqlite;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use refile_core::{TaskId, Timestamp};

pub use error::StoreError;
pub use model::*;
pub use redis::RedisStore;
pub use sqlite::SqliteStore;

/// The result of a store operation.
pub type Result<T> = std::result::Result<T, StoreError>;

/// The queue, the records and the counters of one fleet.
///
/// Every method may be called again after an error: what was applied before is not applied twice. Times are those of
/// the store (the Redis server's clock), never of the caller. Batches keep their order: the n-th result belongs to the
/// n-th input, and one bad input does not fail its neighbours.
#[async_trait]
pub trait Store: Send + Sync + std::fmt::Debug {
    /// Adds tasks with their first jobs. A task whose id is there already is not added again. (An idempotency key makes
    /// the id, so that equal keys are one task wherever it is kept.)
    async fn submit(&self, submissions: &[Commit]) -> Result<Vec<Submitted>>;

    /// Claims up to `max` jobs, nothing from a paused queue, and no more at once than the limits allow. Each claim raises
    /// the job's fence and counts one delivery. Waits up to `wait` where there is none.
    ///
    /// The queues are served in the order given. Of sixteen jobs claimed from one, twelve are of high priority, three of
    /// normal and one of low, where all have ready jobs; what one does not use goes to the others, the higher first.
    /// Within a priority the lanes take turns, a job at a time; within a lane the first in is the first out.
    async fn claim(&self, request: &ClaimRequest) -> Result<Vec<Claim>>;

    /// Extends leases by `lease` from now. A lease that was lost stays lost, whoever asks.
    async fn extend(&self, leases: &[Lease], lease: Duration) -> Result<Vec<LeaseState>>;

    /// Hands in outcomes and ends their leases. Refused where the lease is no longer the reporter's.
    async fn report(&self, reports: &[Report]) -> Result<Vec<Reported>>;

    /// Gives jobs back, uncharged: the delivery is not counted. A lease that was lost is left alone.
    async fn release(&self, leases: &[Lease]) -> Result<()>;

    /// Takes up to `max` outcomes with the records that they are about, oldest first, for this coordinator alone. What
    /// another coordinator took and left for `takeover` is taken over. Waits up to `wait` where there is none.
    async fn take_outcomes(&self, request: &TakeRequest) -> Result<Vec<Taken>>;

    /// Commits transitions, each whole or not at all: the record, the jobs, the notices, the counters, and the
    /// outcome's acknowledgement. A commit with a guard is `Stale` (and its outcome is dropped) where the fence has moved;
    /// any commit is a `Conflict` where the record is not of the version that was read. A task in a final state keeps
    /// no jobs.
    async fn commit(&self, commits: &[Commit]) -> Result<Vec<Committed>>;

    /// Drops outcomes that were taken and change nothing; each is counted as stale.
    async fn discard(&self, receipts: &[Receipt]) -> Result<()>;

    /// Puts up to `max` delayed jobs that are due into their queues.
    async fn promote(&self, max: usize) -> Result<Promoted>;

    /// Puts up to `max` jobs whose leases ran out back into their queues. One that was delivered more often than
    /// `max_deliveries` becomes an outcome instead: [`Happening::Poisoned`]. Either way its fence is raised.
    async fn reclaim(&self, max_deliveries: u32, max: usize) -> Result<Reclaimed>;

    /// Reads tasks by id.
    async fn tasks(&self, ids: &[TaskId]) -> Result<Vec<Option<Versioned>>>;

    /// Lists tasks, newest first, a page at a time.
    async fn list(&self, filter: &Filter, cursor: Option<Cursor>, limit: usize) -> Result<Page>;

    /// Where the jobs of a task are.
    async fn jobs(&self, task: &TaskId) -> Result<Vec<JobView>>;

    /// Counters, gauges, depths and ages, as they are now.
    async fn stats(&self) -> Result<Stats>;

    /// The event log after a cursor (the empty one: from the oldest that is kept), oldest first, up to `max` lines.
    async fn events(&self, after: &str, max: usize) -> Result<Vec<LoggedEvent>>;

    /// The time that everything here goes by.
    async fn now(&self) -> Result<Timestamp>;

    /// Pauses a target, or resumes it with `None`. Jobs of a paused queue stay in it, unclaimed.
    async fn set_pause(&self, target: &PauseTarget, pause: Option<&Pause>) -> Result<()>;

    /// Pauses a target, unless it is paused for as long already; gives the new pause. Called again after an error it may
    /// take its own pause for one that it must make longer, by no more than the time between.
    async fn hold(&self, target: &PauseTarget, length: PauseLength, reason: &str) -> Result<Option<Pause>>;

    /// What is paused, in the order of the targets.
    async fn pauses(&self) -> Result<Vec<Paused>>;

    /// Lets a call to a provider through, or says why not. After a pause that names a key one call goes first, in the whole
    /// fleet: it has the provider to itself until it has [answered](Store::answered), the pause is [extended](Store::hold),
    /// or its time is over. What the call takes of the minute is taken all or nothing, together with the admission. Called
    /// again after an error it may take twice, or wait for itself: some calls wait longer than they must.
    async fn admit(&self, entry: &Entry) -> Result<Admission>;

    /// Ends the pauses whose time was over when this call was let through: the provider has answered it. Those that name no
    /// key are a person's, and end with their time. Gives what was ended.
    async fn answered(&self, call: &ProviderPart, at: Timestamp) -> Result<Vec<PauseTarget>>;

    /// Says that a process lives and what it does; with `gone` that it leaves. Others are forgotten after a minute
    /// without a word.
    async fn presence(&self, presence: &Presence, gone: bool) -> Result<()>;

    /// Jobs and outcomes that could not be decoded and wait for an operator.
    async fn quarantined(&self) -> Result<Vec<Quarantined>>;

    /// Puts a quarantined job or outcome back. `false` where there is none of that id.
    async fn replay(&self, id: &str) -> Result<bool>;

    /// How many partitions there are. With `grow_to` there will be so many: new tasks are spread over all of them, and
    /// tasks that are there stay where they are. Processes that run learn of it within seconds.
    async fn partitions(&self, grow_to: Option<u32>) -> Result<u32>;

    /// Holds that the store answers and still has what it had: a server that was flushed or rolled back is
    /// [`StoreError::LostData`], once; the namespace is made again so that the fleet can go on.
    async fn check(&self) -> Result<()>;
}

/// How a store is opened.
#[derive(Clone, Default)]
pub struct OpenOptions {
    /// Take a Redis server that may evict keys or keeps nothing on disk.
    pub allow_volatile: bool,
    /// Is told of each operation's name and how long it took.
    pub observer: Option<Observer>,
    /// What the keys on a Redis server start with; `refile` where nothing is said. A file is a namespace of its own.
    pub namespace: Option<String>,
}

/// Is told of each operation's name and how long it took.
pub type Observer = Arc<dyn Fn(&'static str, Duration) + Send + Sync>;

/// Opens the store of a URL: `sqlite:PATH`, `redis://…`, `rediss://…` or
/// `redis+cluster://HOST:PORT,HOST:PORT`. `dir` is where relative paths start.
pub async fn open(url: &str, dir: &Path, options: OpenOptions) -> Result<Arc<dyn Store>> {
    match url.split_once(':') {
        Some(("sqlite", path)) if !path.is_empty() => {
            Ok(Arc::new(SqliteStore::open(&dir.join(path), options.observer)?))
        }
        Some(("redis" | "rediss" | "redis+cluster", _)) => Ok(Arc::new(RedisStore::open(url, options).await?)),
        _ => Err(StoreError::Url { url: error::without_password(url) }),
    }
}
