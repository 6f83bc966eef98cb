//! The claim loop: as many jobs at once as there is room for, one heartbeat for all of them.
//!
//! A job runs as a future. Losing its lease drops the future, and dropping it kills the agent's whole process group.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use refile_core::Outcome;
use refile_store::{Claim, ClaimRequest, Lease, LeaseState, Presence, Report, Reported, StoreError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::executor::execute;
use crate::worker::Worker;

/// How long a call to the store waits for a job.
const WAIT: Duration = Duration::from_secs(2);
/// The pause after the store did not answer.
const AWAY: Duration = Duration::from_millis(500);
/// How long a claim that is under way at the shutdown may take to answer: what it claimed is given back at once and not
/// first when its leases run out.
const LAST_CLAIM: Duration = Duration::from_millis(100);
/// How often a worker says that it lives.
const PRESENCE: Duration = Duration::from_secs(10);

/// The jobs that are going on, and how to stop each.
type Running = Arc<Mutex<HashMap<Lease, CancellationToken>>>;

/// Works until `shutdown`; then running jobs get the grace period, and what is left is given back, uncharged.
pub async fn run(worker: Arc<Worker>, shutdown: CancellationToken) {
    // The store answered when it was opened.
    worker.health.turned(true);
    let running: Running = Arc::default();
    let mut jobs = JoinSet::new();
    // Heartbeats go on while jobs do, also after `shutdown`.
    let stopped = CancellationToken::new();
    let heartbeats = tokio::spawn(heartbeats(worker.clone(), running.clone(), stopped.clone()));
    claims(&worker, &running, &mut jobs, &shutdown).await;

    let grace = worker.config.workers.grace.0;
    let ending = async {
        while let Some(ended) = jobs.join_next().await {
            say_if_broken(ended);
        }
    };
    if tokio::time::timeout(grace, ending).await.is_err() {
        let left: Vec<Lease> = locked(&running).keys().cloned().collect();
        tracing::warn!(
            jobs = left.len(),
            "the grace period is over: running jobs are stopped and given back, uncharged"
        );
        jobs.shutdown().await;
        give_back(&worker, &left).await;
    }
    stopped.cancel();
    if let Err(error) = heartbeats.await {
        tracing::error!(%error, "the heartbeat stopped");
    }
    if let Err(error) = worker.store.presence(&presence(&worker, 0), true).await {
        tracing::debug!(%error, "could not say that the worker leaves");
    }
}

/// Gives jobs back, uncharged.
async fn give_back(worker: &Worker, leases: &[Lease]) {
    if let Err(error) = worker.store.release(leases).await {
        tracing::warn!(%error, "could not give jobs back; they are redelivered when their leases run out");
    }
}

/// Claims jobs and starts them, until `shutdown`.
async fn claims(worker: &Arc<Worker>, running: &Running, jobs: &mut JoinSet<()>, shutdown: &CancellationToken) {
    let room = Arc::new(Semaphore::new(worker.concurrency));
    let mut was_away = false;
    while !shutdown.is_cancelled() {
        let permit = tokio::select! {
            () = shutdown.cancelled() => return,
            permit = room.clone().acquire_owned() => permit,
        };
        let Ok(first) = permit else { return };
        let request = ClaimRequest {
            queues: worker.queues.clone(),
            owner: worker.name.clone(),
            max: 1 + room.available_permits(),
            lease: worker.config.workers.lease.0,
            wait: WAIT,
            limits: Arc::default(),
        };
        let mut claim = worker.store.claim(&request);
        let claimed = tokio::select! {
            () = shutdown.cancelled() => {
                if let Ok(Ok(claims)) = tokio::time::timeout(LAST_CLAIM, &mut claim).await {
                    give_back(worker, &claims.into_iter().map(|c| c.lease).collect::<Vec<_>>()).await;
                }
                return;
            }
            claimed = &mut claim => claimed,
        };
        worker.health.turned(claimed.is_ok());
        while let Some(ended) = jobs.try_join_next() {
            say_if_broken(ended);
        }
        match claimed {
            Ok(claims) => {
                if was_away {
                    tracing::info!("the store answers again");
                    was_away = false;
                }
                let mut permits = vec![first];
                for claim in claims {
                    let permit = permits.pop().or_else(|| room.clone().try_acquire_owned().ok());
                    jobs.spawn(job(worker.clone(), running.clone(), claim, permit));
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

/// One claimed job, from its claim to its report.
async fn job(worker: Arc<Worker>, running: Running, claim: Claim, permit: Option<OwnedSemaphorePermit>) {
    let queue = claim.queue.as_str();
    let lease = claim.lease.clone();
    let lost = CancellationToken::new();
    let _entry = Entry::new(&running, &lease, &lost);
    worker.metrics.job_wait.with_label_values(&[queue]).observe(claim.waited_ms as f64 / 1_000.0);
    let (task, phase, attempt) = (&lease.task, lease.phase.as_str(), claim.attempt);
    tracing::info!(%task, phase, attempt, queue, delivery = claim.deliveries, "claimed");
    let started = Instant::now();
    let done = tokio::select! {
        () = lost.cancelled() => None,
        outcome = execute(&worker, &claim) => Some(outcome),
    };
    worker.metrics.job_duration.with_label_values(&[queue]).observe(started.elapsed().as_secs_f64());
    match done {
        None => {
            tracing::warn!(%task, phase, attempt, queue, "the lease is gone: the job was stopped, nobody is charged");
        }
        Some(outcome) => {
            let report = Report { lease: lease.clone(), outcome };
            tokio::select! { () = lost.cancelled() => {}, () = hand_in(&worker, &report, attempt) => {} }
        }
    }
    drop(permit);
}

/// A job's line in the table of running jobs. It goes with the job, also where that breaks down: a lease that nobody works
/// on must run out.
struct Entry<'a> {
    running: &'a Running,
    lease: &'a Lease,
}

impl<'a> Entry<'a> {
    fn new(running: &'a Running, lease: &'a Lease, lost: &CancellationToken) -> Self {
        locked(running).insert(lease.clone(), lost.clone());
        Self { running, lease }
    }
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        locked(self.running).remove(self.lease);
    }
}

/// Says that a job broke down: an error of this program. Its lease runs out, and it is redelivered.
fn say_if_broken(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended.map_err(|e| e.to_string()) {
        tracing::error!(error, "a job broke down; it is redelivered when its lease has run out");
    }
}

/// Hands an outcome in, for as long as it takes: the work is done, and a store that is away comes back.
async fn hand_in(worker: &Worker, report: &Report, attempt: u32) {
    let Report { lease, outcome } = report;
    let (task, phase) = (&lease.task, lease.phase.as_str());
    let mut was_away = false;
    loop {
        match worker.store.report(std::slice::from_ref(report)).await {
            Ok(results) if results == [Reported::Accepted] => {
                return tracing::info!(%task, phase, attempt, outcome = word(outcome), "reported");
            }
            Ok(_) => {
                return tracing::warn!(%task, phase, attempt, "the job went to somebody else: the outcome is dropped");
            }
            Err(error) if error.is_transient() => {
                if !was_away {
                    tracing::error!(%task, phase, attempt, %error, "cannot report; trying on, nothing is lost");
                }
                was_away = true;
                tokio::time::sleep(AWAY).await;
            }
            Err(error) => {
                // It will be redelivered when the lease runs out.
                return tracing::error!(%task, phase, attempt, %error, "cannot report");
            }
        }
    }
}

/// Extends all leases every third of their length or oftener, and stops the jobs whose leases are gone.
async fn heartbeats(worker: Arc<Worker>, running: Running, stopped: CancellationToken) {
    let lease = worker.config.workers.lease.0;
    let mut said: Option<Instant> = None;
    while !stopped.is_cancelled() {
        let leases: Vec<Lease> = locked(&running).keys().cloned().collect();
        if !leases.is_empty() {
            let beaten = beat(&worker, &running, &leases, lease).await;
            // With every place taken the claim loop does not turn; this one does.
            worker.health.turned(beaten.is_ok());
            if let Err(error) = beaten {
                // Jobs go on: when the store is back, it says whether they are still this worker's.
                tracing::warn!(%error, jobs = leases.len(), "cannot extend leases");
            }
        }
        if said.is_none_or(|at| at.elapsed() >= PRESENCE) {
            said = Some(Instant::now());
            if let Err(error) = worker.store.presence(&presence(&worker, leases.len()), false).await {
                tracing::debug!(%error, "could not say that the worker lives");
            }
        }
        tokio::select! { () = stopped.cancelled() => {}, () = tokio::time::sleep(PRESENCE.min(lease / 3)) => {} }
    }
}

async fn beat(worker: &Worker, running: &Running, leases: &[Lease], length: Duration) -> Result<(), StoreError> {
    let states = worker.store.extend(leases, length).await?;
    for (lease, state) in leases.iter().zip(states) {
        if state != LeaseState::Held {
            // A job that has just reported is no longer in the table, and that its lease is gone is as it should be.
            if let Some(lost) = locked(running).get(lease) {
                lost.cancel();
            }
        }
    }
    Ok(())
}

fn presence(worker: &Worker, running: usize) -> Presence {
    Presence {
        id: worker.name.clone(),
        role: worker.role.as_str().to_owned(),
        host: refile_telemetry::process::host_name(),
        pid: std::process::id(),
        running: running as u32,
    }
}

/// The table of running jobs. A thread that panicked while it held the lock left a whole table behind.
fn locked(running: &Running) -> std::sync::MutexGuard<'_, HashMap<Lease, CancellationToken>> {
    running.lock().unwrap_or_else(PoisonError::into_inner)
}

fn word(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Coded { .. } => "coded",
        Outcome::AgentFailed { .. } => "agent_failed",
        Outcome::NeedsInput { .. } => "needs_input",
        Outcome::Reviewed(_) => "reviewed",
        Outcome::Landed { .. } => "landed",
        Outcome::Rebased { .. } => "rebased",
        Outcome::LandingRejected { .. } => "landing_rejected",
        Outcome::LandingFailed { .. } => "landing_failed",
    }
}
