//! One part of the benchmark's fleet, as a process of its own or in this one: told what it is, it gets ready, goes, and
//! tells what it saw when it is stopped.

use std::sync::Arc;

use nix::sys::resource::{UsageWho, getrusage};
use refile_store::redis::bench::BareStreams;
use refile_store::{OpenOptions, Store};
use refile_telemetry::process;
use refile_worker::worker::Role;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::latency::Counts;
use super::load::Load;
use super::{backlog, limit, parts, submitter};

/// The keys of a benchmark on a Redis server start with this.
pub(super) const NAMESPACE: &str = "refile-bench";

/// What a member does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Kind {
    Coordinator,
    Coder,
    Reviewer,
    Submitter,
    /// Submits what is not due yet.
    Backlog,
    /// The same two stages on bare streams.
    LimitSubmitter,
    LimitCoder,
    LimitReviewer,
}

/// What a member is told first.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Spec {
    pub(super) kind: Kind,
    pub(super) store: String,
    pub(super) allow_volatile: bool,
    pub(super) load: Load,
}

/// What a member is told then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Told {
    Go,
    Stop,
}

/// What a member says.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Said {
    /// It can go.
    Ready,
    /// So many tasks have ended.
    Progress(u64),
    /// It has done what it had to do, and waits for its stop.
    Done,
    /// It has stopped.
    Result(Figures),
    /// It cannot go on.
    Failed(String),
}

/// What a member saw.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Figures {
    /// When it began to submit, in microseconds since 1970.
    pub(super) first_us: u64,
    /// When the last task ended.
    pub(super) last_us: u64,
    /// Jobs that it claimed.
    pub(super) claims: u64,
    /// Processor time of its process from go to stop, in seconds.
    pub(super) cpu_s: f64,
    pub(super) submit_to_claim: Counts,
    pub(super) outcome_to_claim: Counts,
    pub(super) claim: Counts,
}

/// The processor time of this process so far, in seconds.
pub(super) fn cpu_s() -> f64 {
    let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) else { return 0.0 };
    let seconds = |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
    seconds(usage.user_time()) + seconds(usage.system_time())
}

/// Opens the store of a benchmark.
pub(super) async fn open(url: &str, allow_volatile: bool) -> refile_store::Result<Arc<dyn Store>> {
    let namespace = Some(NAMESPACE.to_owned());
    let options = OpenOptions { allow_volatile, namespace, ..OpenOptions::default() };
    refile_store::open(url, std::path::Path::new("."), options).await
}

/// What a member works on.
enum Station {
    Fleet(Arc<dyn Store>),
    Bare(BareStreams),
}

/// Lives the life of a member. `store` is the one that members of one process share.
pub(super) async fn run(
    spec: Spec,
    store: Option<Arc<dyn Store>>,
    told: mpsc::UnboundedReceiver<Told>,
    say: mpsc::UnboundedSender<Said>,
) {
    let last = match live(spec, store, told, &say).await {
        Ok(figures) => Said::Result(figures),
        Err(error) => Said::Failed(process::explained(error.as_ref())),
    };
    // Nobody listens any more where the benchmark was stopped.
    let _ = say.send(last);
}

async fn live(
    spec: Spec,
    store: Option<Arc<dyn Store>>,
    mut told: mpsc::UnboundedReceiver<Told>,
    say: &mpsc::UnboundedSender<Said>,
) -> anyhow::Result<Figures> {
    let is_bare = matches!(spec.kind, Kind::LimitSubmitter | Kind::LimitCoder | Kind::LimitReviewer);
    let station = match store {
        Some(store) => Station::Fleet(store),
        None if is_bare => Station::Bare(BareStreams::open(&spec.store, NAMESPACE).await?),
        None => Station::Fleet(open(&spec.store, spec.allow_volatile).await?),
    };
    let _ = say.send(Said::Ready);
    anyhow::ensure!(told.recv().await == Some(Told::Go), "it was stopped before it began");
    let (before, stop) = (cpu_s(), CancellationToken::new());
    let mut playing = std::pin::pin!(play(&spec, station, say, &stop));
    let figures = tokio::select! {
        played = &mut playing => {
            let figures = played?;
            told.recv().await;
            figures
        }
        _ = told.recv() => {
            stop.cancel();
            playing.await?
        }
    };
    Ok(Figures { cpu_s: cpu_s() - before, ..figures })
}

/// Does the member's part until it is done, or stopped where it would go on for ever.
async fn play(
    spec: &Spec,
    station: Station,
    say: &mpsc::UnboundedSender<Said>,
    stop: &CancellationToken,
) -> anyhow::Result<Figures> {
    match (spec.kind, station) {
        (Kind::Coordinator, Station::Fleet(store)) => parts::coordinate(store, spec.load, say, stop).await,
        (Kind::Coder, Station::Fleet(store)) => parts::work(store, Role::Coder, spec.load, stop).await,
        (Kind::Reviewer, Station::Fleet(store)) => parts::work(store, Role::Reviewer, spec.load, stop).await,
        (Kind::Submitter, Station::Fleet(store)) => submitter::submit(store, spec.load, say, stop).await,
        (Kind::Backlog, Station::Fleet(store)) => backlog::submit(store, spec.load, say, stop).await,
        (Kind::LimitSubmitter, Station::Bare(bare)) => limit::submit(bare, spec.load).await,
        (Kind::LimitCoder, Station::Bare(bare)) => limit::pass_on(bare, spec.load, stop).await,
        (Kind::LimitReviewer, Station::Bare(bare)) => limit::finish(bare, spec.load.tasks, say, stop).await,
        (kind, _) => anyhow::bail!("{kind:?} has no place here"),
    }
}
