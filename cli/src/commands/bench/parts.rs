//! The coordinator and the workers of a benchmark: the real ones, on a store that may be shared.

use std::sync::Arc;
use std::time::Duration;

use refile_config::Config;
use refile_coordinator::Coordinator;
use refile_store::Store;
use refile_telemetry::{Health, Metrics, process};
use refile_worker::pool::{self, Pool};
use refile_worker::worker::Role;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::counting::Counting;
use super::load::{Load, NoOp};
use super::member::{Figures, Said};

/// How often the coordinator tells how far it is.
const PROGRESS: Duration = Duration::from_millis(250);

/// A coordinator without its API. It is done when every task has ended, and goes on until it is stopped.
pub(super) async fn coordinate(
    store: Arc<dyn Store>,
    load: Load,
    say: &mpsc::UnboundedSender<Said>,
    stop: &CancellationToken,
) -> anyhow::Result<Figures> {
    let counting = Arc::new(Counting::new(store, load.tasks)?);
    let coordinator = Coordinator {
        store: counting.clone(),
        config: Arc::new(Config::default()),
        metrics: Metrics::new()?,
        health: Health::default(),
        name: process::unique_name("coordinator"),
    };
    let telling = async {
        loop {
            let is_done = tokio::select! {
                () = counting.all_ended.cancelled() => true,
                () = stop.cancelled() => return,
                () = tokio::time::sleep(PROGRESS) => false,
            };
            let _ = say.send(Said::Progress(counting.ended()));
            if is_done {
                let _ = say.send(Said::Done);
                return;
            }
        }
    };
    tokio::join!(coordinator.run(None, stop.clone()), telling);
    Ok(Figures { last_us: counting.last_us(), ..Figures::default() })
}

/// A worker whose agents do nothing, until it is stopped.
pub(super) async fn work(
    store: Arc<dyn Store>,
    role: Role,
    load: Load,
    stop: &CancellationToken,
) -> anyhow::Result<Figures> {
    let store = Arc::new(Counting::new(store, u64::MAX)?);
    let (metrics, config, agent) = (Metrics::new()?, Config::default(), Arc::new(NoOp::new(load)?));
    let pool = Pool {
        store: store.clone(),
        metrics: metrics.clone(),
        health: Health::default(),
        name: process::unique_name(role.as_str()),
        role,
        queues: role.queues(),
        concurrency: load.concurrency,
        lease: config.workers.lease.0,
        grace: config.workers.grace.0,
        agent: agent.clone(),
    };
    pool::run(Arc::new(pool), stop.clone()).await?;
    let claims = |queue: &refile_core::Queue| metrics.job_wait.with_label_values(&[queue.as_str()]).get_sample_count();
    Ok(Figures {
        claims: role.queues().iter().map(claims).sum(),
        submit_to_claim: agent.submit_to_claim.counts(),
        outcome_to_claim: agent.outcome_to_claim.counts(),
        claim: store.claim.counts(),
        ..Figures::default()
    })
}
