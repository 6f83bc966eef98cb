//! Coordinator, coders and reviewers in this process.

use std::sync::Arc;
use std::time::{Duration, Instant};

use refile_config::Config;
use refile_coordinator::Coordinator;
use refile_coordinator::calibration::keep_figures;
use refile_core::count::Count;
use refile_core::failure::Failure;
use refile_core::{Queue, TaskState, counted};
use refile_store::artifacts::Artifacts;
use refile_store::{PauseTarget, Paused, Stats, Store};
use refile_telemetry::{Health, Metrics, process};
use refile_worker::llm::Client;
use refile_worker::pool;
use refile_worker::process::Guard;
use refile_worker::service::require_ready;
use refile_worker::worker::{Role, Worker};
use refile_worker::workspace::Workspace;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::commands::calibration::taken_back;
use crate::output::{self, untrusted};

/// How often it is looked whether work is left.
const LOOK: Duration = Duration::from_millis(200);

/// How often it is looked what jobs wait for.
const TELL: Duration = Duration::from_secs(1);
/// For how long a drain waits for room on the disk where nothing runs.
const GIVE_UP: Duration = Duration::from_secs(10);

/// A fleet that runs.
pub(crate) struct Fleet {
    store: Arc<dyn Store>,
    parts: JoinSet<Result<(), Failure>>,
    shutdown: CancellationToken,
    workspace: Workspace,
}

/// What a fleet is made of.
pub(crate) struct Parts {
    pub(crate) config: Arc<Config>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) artifacts: Artifacts,
    pub(crate) metrics: Metrics,
    pub(crate) guard: Arc<Guard>,
}

/// Holds that the fleet could do its work: agents, reviewers and keys are configured and there. Says what is most likely not
/// meant.
pub(crate) async fn require(config: &Config) -> anyhow::Result<()> {
    require_ready(config, Role::Coder).await?;
    require_ready(config, Role::Reviewer).await?;
    config.warnings().iter().for_each(|warning| tracing::warn!("{warning}"));
    Ok(())
}

impl Fleet {
    /// Starts every part. With `serve` the coordinator's API is served; gives its address.
    pub(crate) async fn start(
        parts: Parts,
        serve: bool,
        shutdown: CancellationToken,
    ) -> anyhow::Result<(Self, Option<std::net::SocketAddr>)> {
        let Parts { config, store, artifacts, metrics, guard } = parts;
        let coordinator = Coordinator {
            store: store.clone(),
            config: config.clone(),
            metrics: metrics.clone(),
            health: Health::default(),
            name: process::unique_name("coordinator"),
        };
        let listener: Option<TcpListener> = if serve { Some(coordinator.listen().await?) } else { None };
        let address = listener.as_ref().map(TcpListener::local_addr).transpose()?;
        let worker = |role: Role, concurrency: usize| -> anyhow::Result<Worker> {
            Ok(Worker {
                store: store.clone(),
                config: config.clone(),
                artifacts: artifacts.clone(),
                workspace: Workspace::open(&config.path(&config.workers.dir))?
                    .guarded(guard.clone(), config.workspace.max_bytes),
                client: Client::new()?.with_metrics(&metrics).with_prices(&config.prices),
                metrics: metrics.clone(),
                health: Health::default(),
                name: process::unique_name(role.as_str()),
                role,
                queues: role.queues(),
                concurrency: concurrency.max(1),
            })
        };
        let (coder, reviewer) =
            (worker(Role::Coder, config.workers.coders)?, worker(Role::Reviewer, config.workers.reviewers)?);
        let mut running = JoinSet::new();
        let workspace = coder.workspace.clone();
        let figures = (store.clone(), metrics.clone(), shutdown.clone(), workspace.clone());
        running.spawn(async move {
            let (store, metrics, shutdown, workspace) = figures;
            let look = |repository, base| taken_back(workspace.clone(), repository, base);
            keep_figures(store.as_ref(), &metrics, &shutdown, look).await;
            Ok(())
        });
        let coordinating = coordinator.run(listener, shutdown.clone());
        running.spawn(async {
            coordinating.await;
            Ok(())
        });
        for worker in [coder, reviewer] {
            let shutdown = shutdown.clone();
            running.spawn(async move {
                let ended = pool::run(Arc::new(worker.pool()), shutdown.clone()).await;
                // A fleet without one of its parts would wait for ever.
                shutdown.cancel();
                ended
            });
        }
        Ok((Self { store, parts: running, shutdown, workspace }, address))
    }

    /// Returns when no task is open any more but those whose pull requests people have to decide on, or the fleet is told to
    /// stop. A store that is away is waited for. Fails where nothing runs, and nothing can begin for want of room on the disk.
    pub(crate) async fn drained(&self) -> anyhow::Result<()> {
        let (mut said, mut next, mut stuck) = (String::new(), Instant::now(), None::<Instant>);
        while !self.shutdown.is_cancelled() {
            match self.store.stats().await {
                Ok(stats) if tasks(&stats, TaskState::Open) <= proposed(&stats) => return Ok(()),
                Ok(stats) => {
                    match self.workspace.has_room() {
                        Err(why) if stats.leases.values().all(|jobs| *jobs == 0) => {
                            // What ended last may still be removed.
                            if stuck.get_or_insert_with(Instant::now).elapsed() > GIVE_UP {
                                anyhow::bail!(
                                    "{why}\n  nothing runs that could make room: make some, and start again; nothing is lost"
                                );
                            }
                        }
                        _ => stuck = None,
                    }
                    if Instant::now() >= next {
                        next = Instant::now() + TELL;
                        let waits = waits(self.store.as_ref(), &stats).await.unwrap_or_default();
                        if !waits.is_empty() && waits != said {
                            tracing::info!("{waits}");
                        }
                        said = waits;
                    }
                }
                Err(error) => tracing::debug!(%error, "cannot tell whether work is left"),
            }
            tokio::select! { () = self.shutdown.cancelled() => {}, () = tokio::time::sleep(LOOK) => {} }
        }
        Ok(())
    }

    /// Stops every part and waits for its end. Fails where a part had ended by itself.
    pub(crate) async fn stop(mut self) -> anyhow::Result<Stats> {
        self.shutdown.cancel();
        let mut failed = None;
        while let Some(ended) = self.parts.join_next().await {
            match ended {
                Ok(Ok(())) => {}
                Ok(Err(failure)) => failed = Some(failure),
                Err(error) => tracing::error!(%error, "a part of the fleet broke down"),
            }
        }
        match failed {
            Some(failure) => Err(failure.into()),
            None => Ok(self.store.stats().await?),
        }
    }
}

/// What attempts and reviews wait for where providers are paused; nothing where none is, or nothing waits.
pub(crate) async fn waits(store: &dyn Store, stats: &Stats) -> Option<String> {
    let waiting = |of: Queue| stats.depth.iter().filter(|((queue, _), _)| *queue == of).map(|(_, n)| n).sum::<u64>();
    let counts = [(waiting(Queue::Code), "attempt"), (waiting(Queue::Review), "review")];
    let said: Vec<String> = counts.iter().filter(|(n, _)| *n > 0).map(|(n, what)| counted(*n, what)).collect();
    let wait = if counts.iter().map(|(n, _)| n).sum::<u64>() == 1 { "waits" } else { "wait" };
    let paused: Vec<String> =
        store.pauses().await.ok()?.iter().filter(|paused| paused.holds).filter_map(told).collect();
    (!said.is_empty() && !paused.is_empty()).then(|| format!("{} {wait}: {}", said.join(" and "), paused.join("; ")))
}

/// What is paused, until when and why.
fn told(Paused { target, pause, .. }: &Paused) -> Option<String> {
    let PauseTarget::Provider(part) = target else { return None };
    let model = part.model.as_ref().map(|model| format!(" ({})", untrusted(model))).unwrap_or_default();
    let until = match pause.until {
        Some(at) => format!("until {} UTC", output::time(at)),
        None => format!("until `refile provider resume {}`", part.provider),
    };
    Some(format!("the provider {}{model} is paused {until}: {}", part.provider, untrusted(&pause.reason)))
}

/// How many tasks are in a state.
pub(crate) fn tasks(of: &Stats, state: TaskState) -> i64 {
    of.counts.get(&Count::new("tasks", &[state.as_str()]).key()).copied().unwrap_or(0)
}

/// How many pull requests wait for people on the forge.
pub(crate) fn proposed(of: &Stats) -> i64 {
    of.counts.get(&Count::new("pull_requests_waiting", &[]).key()).copied().unwrap_or(0)
}
