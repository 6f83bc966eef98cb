//! The limit: the same two stages on bare streams, with nothing that makes a fleet.

use refile_store::redis::bench::BareStreams;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::latency::now_us;
use super::load::Load;
use super::member::{Figures, Said};

/// After so many tasks it is told how far the run is.
const TOLD_AFTER: u64 = 5_000;

/// Adds every task.
pub(super) async fn submit(mut bare: BareStreams, load: Load) -> anyhow::Result<Figures> {
    let record = load.task(0, 0).description.into_bytes();
    let first_us = now_us();
    bare.add(0..load.tasks, &record).await?;
    Ok(Figures { first_us, ..Figures::default() })
}

/// Passes every task on.
pub(super) async fn pass_on(mut bare: BareStreams, load: Load, stop: &CancellationToken) -> anyhow::Result<Figures> {
    let record = load.task(0, 0).description.into_bytes();
    let mut passed = 0;
    while passed < load.tasks && !stop.is_cancelled() {
        passed += bare.pass_on(&record).await? as u64;
    }
    Ok(Figures { claims: passed, ..Figures::default() })
}

/// Acknowledges every task.
pub(super) async fn finish(
    mut bare: BareStreams,
    tasks: u64,
    say: &mpsc::UnboundedSender<Said>,
    stop: &CancellationToken,
) -> anyhow::Result<Figures> {
    let (mut finished, mut told) = (0, 0);
    while finished < tasks && !stop.is_cancelled() {
        finished += bare.finish().await? as u64;
        if finished / TOLD_AFTER > told {
            told = finished / TOLD_AFTER;
            let _ = say.send(Said::Progress(finished));
        }
    }
    let last_us = now_us();
    let _ = say.send(Said::Done);
    Ok(Figures { claims: finished, last_us, ..Figures::default() })
}
