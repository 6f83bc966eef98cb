//! What has to be done whether or not anything is reported: delayed jobs become due, leases run out, processes vanish.

use std::time::{Duration, Instant};

use refile_store::StoreError;
use tokio_util::sync::CancellationToken;

use crate::Coordinator;

/// Jobs that are moved at a time.
const BATCH: usize = 500;
/// The longest pause between two rounds: so late may a job be that was delayed after the last one.
const ROUND: Duration = Duration::from_millis(500);
/// The shortest pause between two rounds.
const SHORTEST: Duration = Duration::from_millis(10);
/// How often the store is checked and told that the coordinator lives.
const CHECK: Duration = Duration::from_secs(10);

/// Keeps the queues tidy until `shutdown`.
pub async fn run(coordinator: &Coordinator, shutdown: &CancellationToken) {
    let mut checked: Option<Instant> = None;
    let mut said: Option<String> = None;
    while !shutdown.is_cancelled() {
        if checked.is_none_or(|at| at.elapsed() >= CHECK) {
            checked = Some(Instant::now());
            check(coordinator).await;
        }
        let pause = match round(coordinator).await {
            Ok(next) => next.clamp(SHORTEST, ROUND),
            Err(error) if error.is_transient() => {
                // The outcome loop says loudly that the store is away.
                tracing::debug!(%error, "housekeeping did not come about");
                ROUND
            }
            Err(error) => {
                let error = error.to_string();
                if said.as_ref() != Some(&error) {
                    tracing::error!(error, "housekeeping failed: delayed jobs and lost leases wait");
                }
                said = Some(error);
                ROUND
            }
        };
        tokio::select! { () = shutdown.cancelled() => break, () = tokio::time::sleep(pause) => {} }
    }
}

/// One round. Gives the time until something is due.
async fn round(coordinator: &Coordinator) -> Result<Duration, StoreError> {
    let promoted = coordinator.store.promote(BATCH).await?;
    let reclaimed = coordinator.store.reclaim(coordinator.config.policy.max_deliveries, BATCH).await?;
    if reclaimed.redelivered + reclaimed.poisoned > 0 {
        tracing::warn!(
            redelivered = reclaimed.redelivered,
            poisoned = reclaimed.poisoned,
            "leases ran out; nobody is charged"
        );
    }
    let next = [promoted.next_in_ms, reclaimed.next_in_ms].into_iter().flatten().min();
    Ok(next.map_or(ROUND, Duration::from_millis))
}

async fn check(coordinator: &Coordinator) {
    if let Err(error @ StoreError::LostData { .. }) = coordinator.store.check().await {
        tracing::error!(%error, "THE STORE HAS LOST DATA");
    }
    if let Err(error) = coordinator.store.presence(&coordinator.presence(), false).await {
        tracing::debug!(%error, "could not say that the coordinator lives");
    }
}
