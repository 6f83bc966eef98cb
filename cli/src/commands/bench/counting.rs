//! A member's store, with an eye on the tasks that it finishes and on how long its claims take: exact, and no call to the
//! store more.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use refile_core::{TaskId, Timestamp};
use refile_store::{
    Admission, Claim, ClaimRequest, Commit, Committed, Cursor, Entry, Filter, JobView, Lease, LeaseState, LoggedEvent,
    Page, Pause, PauseLength, PauseTarget, Paused, Presence, Promoted, ProviderPart, Quarantined, Receipt, Reclaimed,
    Report, Reported, Result, Stats, Store, Submitted, TakeRequest, Taken, Versioned,
};
use tokio_util::sync::CancellationToken;

use super::latency::{Latency, now_us};

/// A store that counts the commits by which tasks end.
#[derive(Debug)]
pub(super) struct Counting {
    store: Arc<dyn Store>,
    /// Tasks that ended, an escalation included: nobody is there to decide it.
    ended: AtomicU64,
    last_us: AtomicU64,
    expected: u64,
    /// How long calls took that found jobs which were ready.
    pub(super) claim: Latency,
    /// Cancelled when as many ended as are expected.
    pub(super) all_ended: CancellationToken,
}

impl Counting {
    pub(super) fn new(store: Arc<dyn Store>, expected: u64) -> anyhow::Result<Self> {
        let (ended, last_us) = (AtomicU64::new(0), AtomicU64::new(0));
        let (claim, all_ended) = (Latency::new()?, CancellationToken::new());
        Ok(Self { store, ended, last_us, expected, claim, all_ended })
    }

    /// How many tasks ended.
    pub(super) fn ended(&self) -> u64 {
        self.ended.load(Ordering::SeqCst)
    }

    /// When the last one did, in microseconds since 1970.
    pub(super) fn last_us(&self) -> u64 {
        self.last_us.load(Ordering::SeqCst)
    }
}

#[async_trait]
impl Store for Counting {
    async fn commit(&self, commits: &[Commit]) -> Result<Vec<Committed>> {
        let committed = self.store.commit(commits).await?;
        let is_end = |(commit, committed): &(&Commit, &Committed)| {
            **committed == Committed::Applied && commit.task.state != refile_core::TaskState::Open
        };
        let ended = commits.iter().zip(&committed).filter(is_end).count() as u64;
        if ended > 0 {
            self.last_us.store(now_us(), Ordering::SeqCst);
            if self.ended.fetch_add(ended, Ordering::SeqCst) + ended >= self.expected {
                self.all_ended.cancel();
            }
        }
        Ok(committed)
    }

    async fn submit(&self, submissions: &[Commit]) -> Result<Vec<Submitted>> {
        self.store.submit(submissions).await
    }
    async fn claim(&self, request: &ClaimRequest) -> Result<Vec<Claim>> {
        let started = Instant::now();
        let claims = self.store.claim(request).await?;
        let took = started.elapsed();
        // What became ready while the call went on is what the call waited for.
        let ready = claims.iter().map(|claim| claim.waited_ms).max();
        if ready.is_some_and(|ms| Duration::from_millis(ms + 1) > took) {
            self.claim.took(took);
        }
        Ok(claims)
    }
    async fn extend(&self, leases: &[Lease], lease: Duration) -> Result<Vec<LeaseState>> {
        self.store.extend(leases, lease).await
    }
    async fn report(&self, reports: &[Report]) -> Result<Vec<Reported>> {
        self.store.report(reports).await
    }
    async fn release(&self, leases: &[Lease]) -> Result<()> {
        self.store.release(leases).await
    }
    async fn take_outcomes(&self, request: &TakeRequest) -> Result<Vec<Taken>> {
        self.store.take_outcomes(request).await
    }
    async fn discard(&self, receipts: &[Receipt]) -> Result<()> {
        self.store.discard(receipts).await
    }
    async fn promote(&self, max: usize) -> Result<Promoted> {
        self.store.promote(max).await
    }
    async fn reclaim(&self, max_deliveries: u32, max: usize) -> Result<Reclaimed> {
        self.store.reclaim(max_deliveries, max).await
    }
    async fn tasks(&self, ids: &[TaskId]) -> Result<Vec<Option<Versioned>>> {
        self.store.tasks(ids).await
    }
    async fn list(&self, filter: &Filter, cursor: Option<Cursor>, limit: usize) -> Result<Page> {
        self.store.list(filter, cursor, limit).await
    }
    async fn jobs(&self, task: &TaskId) -> Result<Vec<JobView>> {
        self.store.jobs(task).await
    }
    async fn stats(&self) -> Result<Stats> {
        self.store.stats().await
    }
    async fn events(&self, after: &str, max: usize) -> Result<Vec<LoggedEvent>> {
        self.store.events(after, max).await
    }
    async fn set_pause(&self, target: &PauseTarget, pause: Option<&Pause>) -> Result<()> {
        self.store.set_pause(target, pause).await
    }
    async fn pauses(&self) -> Result<Vec<Paused>> {
        self.store.pauses().await
    }
    async fn now(&self) -> Result<Timestamp> {
        self.store.now().await
    }
    async fn hold(&self, target: &PauseTarget, length: PauseLength, reason: &str) -> Result<Option<Pause>> {
        self.store.hold(target, length, reason).await
    }
    async fn admit(&self, entry: &Entry) -> Result<Admission> {
        self.store.admit(entry).await
    }
    async fn answered(&self, call: &ProviderPart, at: Timestamp) -> Result<Vec<PauseTarget>> {
        self.store.answered(call, at).await
    }
    async fn presence(&self, presence: &Presence, gone: bool) -> Result<()> {
        self.store.presence(presence, gone).await
    }
    async fn quarantined(&self) -> Result<Vec<Quarantined>> {
        self.store.quarantined().await
    }
    async fn replay(&self, id: &str) -> Result<bool> {
        self.store.replay(id).await
    }
    async fn partitions(&self, grow_to: Option<u32>) -> Result<u32> {
        self.store.partitions(grow_to).await
    }
    async fn check(&self) -> Result<()> {
        self.store.check().await
    }
}
