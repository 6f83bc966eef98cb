//! The submitter: as fast as the store takes tasks, or at a rate that does not wait for it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use refile_config::Config;
use refile_coordinator::submission;
use refile_store::Store;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::latency::now_us;
use super::load::Load;
use super::member::{Figures, Said};

/// Tasks that are submitted in one call.
const BATCH: usize = 500;

/// Submits every task of the load.
pub(super) async fn submit(
    store: Arc<dyn Store>,
    load: Load,
    say: &mpsc::UnboundedSender<Said>,
    stop: &CancellationToken,
) -> anyhow::Result<Figures> {
    let config = Config::default();
    let first_us = now_us();
    if let Some(rate) = load.rate {
        let mut due = due_tasks(load.tasks, rate, first_us, stop.clone());
        let mut batch = Vec::with_capacity(BATCH);
        while due.recv_many(&mut batch, BATCH).await > 0 {
            let tasks = batch.drain(..).map(|(number, due_us)| load.task(number, due_us)).collect();
            submission::submit(store.as_ref(), &config, tasks).await?;
        }
    } else {
        let mut from = 0;
        while from < load.tasks && !stop.is_cancelled() {
            let to = load.tasks.min(from + BATCH as u64);
            let now = now_us();
            submission::submit(store.as_ref(), &config, (from..to).map(|n| load.task(n, now)).collect()).await?;
            from = to;
        }
    }
    let _ = say.send(Said::Done);
    Ok(Figures { first_us, ..Figures::default() })
}

/// Gives each task when it is due, `1/rate` seconds after the one before, however long the store takes for those: what
/// comes late because of it counts from when it was due. A thread of its own sleeps more exactly than a timer of the
/// runtime, which goes by whole milliseconds.
fn due_tasks(tasks: u64, rate: f64, first_us: u64, stop: CancellationToken) -> mpsc::UnboundedReceiver<(u64, u64)> {
    let (send, receive) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        let start = Instant::now();
        for number in 0..tasks {
            let due = Duration::from_secs_f64(number as f64 / rate);
            std::thread::sleep(due.saturating_sub(start.elapsed()));
            if stop.is_cancelled() || send.send((number, first_us + due.as_micros() as u64)).is_err() {
                return;
            }
        }
    });
    receive
}
