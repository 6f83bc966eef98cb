//! One heartbeat for all leases, and the word that the worker lives.

use std::sync::Arc;
use std::time::{Duration, Instant};

use refile_store::{Lease, LeaseState, Presence, StoreError};
use tokio_util::sync::CancellationToken;

use super::{Pool, Running, locked};

/// How often a worker says that it lives.
const PRESENCE: Duration = Duration::from_secs(10);
/// Leases that are extended in one call: no call may hold the store up for others.
const BATCH: usize = 1_000;

/// Extends all leases every third of their length or oftener, and stops the jobs whose leases are gone.
pub(super) async fn heartbeats(pool: Arc<Pool>, running: Running, stopped: CancellationToken) {
    let mut said: Option<Instant> = None;
    while !stopped.is_cancelled() {
        let leases: Vec<Lease> = locked(&running).keys().cloned().collect();
        if !leases.is_empty() {
            let beaten = beat(&pool, &running, &leases).await;
            // With every place taken the claim loop does not turn; this one does.
            pool.health.turned(beaten.is_ok());
            if let Err(error) = beaten {
                // Jobs go on: when the store is back, it says whether they are still this worker's.
                tracing::warn!(%error, jobs = leases.len(), "cannot extend leases");
            }
        }
        if said.is_none_or(|at| at.elapsed() >= PRESENCE) {
            said = Some(Instant::now());
            if let Err(error) = pool.store.presence(&presence(&pool, leases.len()), false).await {
                tracing::debug!(%error, "could not say that the worker lives");
            }
        }
        tokio::select! { () = stopped.cancelled() => {}, () = tokio::time::sleep(PRESENCE.min(pool.lease / 3)) => {} }
    }
}

async fn beat(pool: &Pool, running: &Running, leases: &[Lease]) -> Result<(), StoreError> {
    for leases in leases.chunks(BATCH) {
        let states = pool.store.extend(leases, pool.lease).await?;
        for (lease, state) in leases.iter().zip(states) {
            if state != LeaseState::Held {
                // A job that has just reported is no longer in the table, and that its lease is gone is as it should be.
                if let Some(lost) = locked(running).get(lease) {
                    lost.cancel();
                }
            }
        }
    }
    Ok(())
}

/// What a worker says of itself to the fleet.
pub(super) fn presence(pool: &Pool, running: usize) -> Presence {
    Presence {
        id: pool.name.clone(),
        role: pool.role.as_str().to_owned(),
        host: refile_telemetry::process::host_name(),
        pid: std::process::id(),
        running: running as u32,
    }
}
