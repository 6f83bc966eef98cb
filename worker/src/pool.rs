//! The claim loop: as many jobs at once as there is room for, whatever a job is.
//!
//! A job runs as a future. Losing its lease drops the future, and dropping it kills the agent's whole process group.
//!
//! # Layout
//! - `reports`: outcomes go to the store, many in one call
//! - `heartbeats`: one heartbeat for all leases

mod reports;
mod heartbeats;

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use refile_core::failure::{Behaviour, Failure};
use refile_core::{Outcome, Queue};
use refile_store::{Claim, ClaimRequest, Lease, Limits, Report, Store};
use refile_telemetry::{Health, Metrics};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::agent;
use crate::backpressure::Room;
use crate::worker::Role;
use heartbeats::{heartbeats, presence};
use reports::{Finished, Held, reports};

/// The pause after the store did not answer.
const AWAY: Duration = Duration::from_millis(500);
/// How often it is said that no job can be begun.
const SAY_AGAIN: Duration = Duration::from_mins(5);
/// How long a claim that is under way at the shutdown may take to answer: what it claimed is given back at once and not
/// first when its leases run out.
const LAST_CLAIM: Duration = Duration::from_millis(100);

/// What is done with a claimed job.
#[async_trait]
pub trait Execute: Send + Sync {
    /// What may be claimed now. Asked before each claim.
    async fn room(&self) -> Room;

    /// Why no job can be begun now; it is tried again after a while.
    fn ready(&self) -> Result<(), String> {
        Ok(())
    }

    /// How many land jobs more may be claimed where there is one: they are done together, and take no place of their own.
    fn more_landings(&self) -> usize {
        0
    }

    /// Is told of what was claimed together, before each is done.
    fn begin(&self, _claims: &[Claim]) {}

    /// How long a run of an agent lasts that must have done work.
    fn long_run(&self) -> Duration {
        agent::LONG_RUN
    }

    /// Does the job. Whatever goes wrong is an outcome too. It is dropped when the lease is lost.
    async fn execute(&self, claim: &Claim) -> Outcome;
}

/// What the claim loop needs.
pub struct Pool {
    /// Where jobs come from.
    pub store: Arc<dyn Store>,
    /// What this process counts.
    pub metrics: Metrics,
    /// Whether it is alive and ready.
    pub health: Health,
    /// Its name, unique per start.
    pub name: String,
    /// What it says that it does.
    pub role: Role,
    /// The queues that it serves, first things first.
    pub queues: Vec<Queue>,
    /// Jobs at once.
    pub concurrency: usize,
    /// How long a claim holds without a heartbeat.
    pub lease: Duration,
    /// How long running jobs may go on after the shutdown.
    pub grace: Duration,
    /// What does the jobs.
    pub agent: Arc<dyn Execute>,
}

/// The jobs that are going on, and how to stop each.
type Running = Arc<Mutex<HashMap<Lease, CancellationToken>>>;

/// Works until `shutdown`; then running jobs get the grace period, and what is left is given back, uncharged.
///
/// Gives the failure where the pool ended by itself, since its next jobs could not go well either; see
/// [`Behaviour::StopPool`].
pub async fn run(pool: Arc<Pool>, shutdown: CancellationToken) -> Result<(), Failure> {
    let ending = Ending { told: shutdown.child_token(), why: Arc::default() };
    // The store answered when it was opened.
    pool.health.turned(true);
    let running: Running = Arc::default();
    let mut jobs = JoinSet::new();
    // Heartbeats go on while jobs do, also after `shutdown`.
    let stopped = CancellationToken::new();
    let heartbeats = tokio::spawn(heartbeats(pool.clone(), running.clone(), stopped.clone()));
    let (finished, waiting) = mpsc::unbounded_channel();
    let mut reporter = tokio::spawn(reports(pool.clone(), waiting));
    // It keeps no end of the channel: the last job to finish closes it, and then the reporter ends.
    claims(&pool, &running, &mut jobs, finished, &ending).await;

    let finishing = async {
        while let Some(ended) = jobs.join_next().await {
            say_if_broken(ended);
        }
        say_if_broken((&mut reporter).await);
    };
    if tokio::time::timeout(pool.grace, finishing).await.is_err() {
        let left: Vec<Lease> = locked(&running).keys().cloned().collect();
        tracing::warn!(
            jobs = left.len(),
            "the grace period is over: running jobs are stopped and given back, uncharged"
        );
        jobs.shutdown().await;
        reporter.abort();
        // An error says that it was stopped.
        let _ = reporter.await;
        give_back(&pool, &left).await;
    }
    stopped.cancel();
    if let Err(error) = heartbeats.await {
        tracing::error!(%error, "the heartbeat stopped");
    }
    if let Err(error) = pool.store.presence(&presence(&pool, 0), true).await {
        tracing::debug!(%error, "could not say that the worker leaves");
    }
    let why = ending.why.lock().unwrap_or_else(PoisonError::into_inner).take();
    why.map_or(Ok(()), Err)
}

/// Tells the pool to take no more jobs, and why where nobody told it from outside.
#[derive(Clone)]
struct Ending {
    told: CancellationToken,
    why: Arc<Mutex<Option<Failure>>>,
}

impl Ending {
    /// Ends the pool where a person must change the configuration first.
    fn heed(&self, failure: Option<&Failure>) {
        let stops = |f: &&Failure| f.kind.behaviour() == Behaviour::StopPool && f.holds_beyond_the_call();
        if let Some(failure) = failure.filter(stops) {
            tracing::error!(%failure, "the worker takes no more jobs: change the configuration and start it again");
            *self.why.lock().unwrap_or_else(PoisonError::into_inner) = Some(failure.clone());
            self.told.cancel();
        }
    }
}

/// Why a job did not come to what it was for.
fn failure_of(outcome: &Outcome) -> Option<&Failure> {
    match outcome {
        Outcome::Reviewed(review) => review.failure.as_ref(),
        Outcome::AgentFailed { failure, .. } => Some(failure),
        _ => None,
    }
}

/// Why a job is put back without a trace, where it is: other jobs would fail in the same way now, and it has cost nothing.
///
/// What has cost something is an outcome like any other. It counts against the budget of failed reviews or of the agent's
/// tries, never against attempts: so a person is asked at last and it does not cost for ever.
fn put_back(outcome: &Outcome, long_run: Duration) -> Option<&Failure> {
    let has_cost = match outcome {
        Outcome::Reviewed(review) => review.has_cost(),
        // Many programs say nothing of their cost where they fail.
        Outcome::AgentFailed { usage, .. } => usage.is_work(long_run.as_millis() as u64),
        _ => true,
    };
    failure_of(outcome).filter(|failure| !has_cost && failure.holds_beyond_the_call())
}

/// Gives jobs back, uncharged.
async fn give_back(pool: &Pool, leases: &[Lease]) {
    if let Err(error) = pool.store.release(leases).await {
        tracing::warn!(%error, "could not give jobs back; they are redelivered when their leases run out");
    }
}

/// Claims jobs and starts them, until `shutdown`.
async fn claims(
    pool: &Arc<Pool>,
    running: &Running,
    jobs: &mut JoinSet<()>,
    finished: mpsc::UnboundedSender<Finished>,
    ending: &Ending,
) {
    let shutdown = &ending.told;
    let room = Arc::new(Semaphore::new(pool.concurrency));
    let (mut was_away, mut said_at) = (false, None::<Instant>);
    while !shutdown.is_cancelled() {
        let permit = tokio::select! {
            () = shutdown.cancelled() => return,
            permit = room.clone().acquire_owned() => permit,
        };
        let Ok(first) = permit else { return };
        if let Err(why) = pool.agent.ready() {
            if said_at.is_none_or(|at| at.elapsed() > SAY_AGAIN) {
                said_at = Some(Instant::now());
                tracing::error!("no job is begun: {why}");
            }
            // It lives, and takes no work.
            pool.health.turned(false);
            tokio::select! { () = shutdown.cancelled() => return, () = tokio::time::sleep(AWAY) => continue }
        }
        if said_at.take().is_some() {
            tracing::info!("jobs are begun again");
        }
        let now = pool.agent.room().await;
        let request = ClaimRequest {
            queues: pool.queues.clone(),
            owner: pool.name.clone(),
            max: 1 + room.available_permits(),
            lease: pool.lease,
            wait: now.look_again,
            limits: now.limits,
        };
        let mut claim = pool.store.claim(&request);
        let claimed = tokio::select! {
            // First of all: a job that a worker puts back since it cannot do it must not be done by the same one.
            biased;
            () = shutdown.cancelled() => {
                if let Ok(Ok(claims)) = tokio::time::timeout(LAST_CLAIM, &mut claim).await {
                    give_back(pool, &claims.into_iter().map(|c| c.lease).collect::<Vec<_>>()).await;
                }
                return;
            }
            claimed = &mut claim => claimed,
        };
        pool.health.turned(claimed.is_ok());
        while let Some(ended) = jobs.try_join_next() {
            say_if_broken(ended);
        }
        match claimed {
            Ok(claims) => {
                if was_away {
                    tracing::info!("the store answers again");
                    was_away = false;
                }
                let claims = with_more_landings(pool, claims, request.limits.clone()).await;
                pool.agent.begin(&claims);
                let mut permits = vec![first];
                for claim in claims {
                    let permit = permits.pop().or_else(|| room.clone().try_acquire_owned().ok());
                    jobs.spawn(job(pool.clone(), running.clone(), claim, permit, finished.clone(), ending.clone()));
                }
            }
            Err(error) => {
                if !was_away {
                    tracing::error!(%error, "cannot claim jobs; trying on, running jobs go on");
                }
                was_away = true;
                tokio::select! { () = shutdown.cancelled() => return, () = tokio::time::sleep(AWAY) => {} }
            }
        }
    }
}

/// What was claimed, and the land jobs that may be done together with one among it.
async fn with_more_landings(pool: &Pool, mut claims: Vec<Claim>, limits: Arc<Limits>) -> Vec<Claim> {
    let max = pool.agent.more_landings();
    let branches: BTreeSet<String> = claims
        .iter()
        .filter(|claim| claim.queue == Queue::Land)
        .map(|claim| Limits::landing(&claim.task.repository, &claim.task.base))
        .collect();
    if max > 0 && !branches.is_empty() {
        let mut limits = Limits::clone(&limits);
        limits.named.extend(branches.into_iter().map(|name| (name, 1 + max as u32)));
        let request = ClaimRequest {
            queues: vec![Queue::Land],
            owner: pool.name.clone(),
            max,
            lease: pool.lease,
            wait: Duration::ZERO,
            limits: Arc::new(limits),
        };
        match pool.store.claim(&request).await {
            Ok(more) => claims.extend(more),
            Err(error) => tracing::debug!(%error, "cannot claim more landings"),
        }
    }
    claims
}

/// One claimed job, from its claim to its outcome. Its place is taken until the outcome is handed in.
async fn job(
    pool: Arc<Pool>,
    running: Running,
    claim: Claim,
    permit: Option<OwnedSemaphorePermit>,
    finished: mpsc::UnboundedSender<Finished>,
    ending: Ending,
) {
    let queue = claim.queue.as_str();
    let entry = Entry::new(running, claim.lease.clone());
    pool.metrics.job_wait.with_label_values(&[queue]).observe(claim.waited_ms as f64 / 1_000.0);
    let (task, phase, attempt) = (&claim.lease.task, claim.lease.phase.as_str(), claim.attempt);
    tracing::info!(%task, phase, attempt, queue, delivery = claim.deliveries, "claimed");
    let started = Instant::now();
    let done = tokio::select! {
        () = entry.lost.cancelled() => None,
        outcome = pool.agent.execute(&claim) => Some(outcome),
    };
    pool.metrics.job_duration.with_label_values(&[queue]).observe(started.elapsed().as_secs_f64());
    match done {
        None => {
            tracing::warn!(%task, phase, attempt, queue, "the lease is gone: the job was stopped, nobody is charged");
        }
        Some(outcome) => {
            // Before the job is put back: this worker must not claim it again.
            ending.heed(failure_of(&outcome));
            if let Some(failure) = put_back(&outcome, pool.agent.long_run()) {
                tracing::info!(%task, phase, attempt, queue, %failure, "put back, uncharged: it would fail again now");
                give_back(&pool, std::slice::from_ref(&claim.lease)).await;
                return;
            }
            let report = Report { lease: claim.lease, outcome };
            if finished.send((report, Held { attempt, entry, permit })).is_err() {
                tracing::error!("outcomes are no longer handed in; the job is redelivered when its lease has run out");
            }
        }
    }
}

/// A job's line in the table of running jobs, until its outcome is handed in. It goes with the job, also where that
/// breaks down: a lease that nobody works on must run out.
struct Entry {
    running: Running,
    lease: Lease,
    lost: CancellationToken,
}

impl Entry {
    fn new(running: Running, lease: Lease) -> Self {
        let lost = CancellationToken::new();
        locked(&running).insert(lease.clone(), lost.clone());
        Self { running, lease, lost }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        locked(&self.running).remove(&self.lease);
    }
}

/// Says that a part broke down: an error of this program. Leases run out, and jobs are redelivered.
fn say_if_broken(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended.map_err(|e| e.to_string()) {
        tracing::error!(error, "a job broke down; it is redelivered when its lease has run out");
    }
}

/// The table of running jobs. A thread that panicked while it held the lock left a whole table behind.
fn locked(running: &Running) -> std::sync::MutexGuard<'_, HashMap<Lease, CancellationToken>> {
    running.lock().unwrap_or_else(PoisonError::into_inner)
}
