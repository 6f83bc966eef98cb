//! The coordinator: takes outcomes, asks the core what follows, commits it, and keeps the queues tidy.
//!
//! It decides nothing itself ([`refile_core::decide()`] does), and it keeps nothing itself (the store does): any number
//! run at once, and killing one loses nothing.
//!
//! # Layout
//! - [`outcomes`]: take, decide, commit, many at a time
//! - [`housekeeping`]: jobs that are due, leases that ran out, a store that lost data
//! - [`apply`]: one event from a person, applied to one task
//! - [`submission`]: new tasks, as people write them
//! - [`view`]: a task as people and programs see it
//! - [`escalations`]: what waits for a person
//! - [`calibration`]: thresholds that follow recent confidences, and how often verdicts were right
//! - [`forge`]: pull requests that people decide on, issues that become tasks
//! - [`fleet`]: the fleet's numbers as metrics
//! - [`api`]: the HTTP side

pub mod outcomes;
pub mod housekeeping;
pub mod apply;
pub mod submission;
pub mod view;
pub mod escalations;
pub mod calibration;
pub mod forge;
pub mod fleet;
pub mod api;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures::future::join_all;
use refile_config::Config;
use refile_core::Timestamp;
use refile_store::{Presence, Store};
use refile_telemetry::{Health, Metrics};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::calibration::Rules;
use crate::forge::look::Look;

/// How many loops take and decide outcomes, so that some decide while others wait for the store.
const DECIDING: usize = 4;

/// A coordinator that can be run.
#[derive(Debug, Clone)]
pub struct Coordinator {
    /// Where everything is kept.
    pub store: Arc<dyn Store>,
    /// What the fleet is told to do.
    pub config: Arc<Config>,
    /// What this process counts.
    pub metrics: Metrics,
    /// Whether it is alive and ready.
    pub health: Health,
    /// Its name, unique per start.
    pub name: String,
}

/// Why a coordinator does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The API would be open to others.
    #[error(
        "coordinator.listen is {0}, and the API has no tokens yet: it is served on loopback only, e.g. 127.0.0.1:7420; to let Prometheus in, use --metrics-addr"
    )]
    NotLoopback(SocketAddr),
    /// The address is taken or not one of this machine.
    #[error("cannot listen on {address}: {source}; choose another with coordinator.listen (port 0 takes any)")]
    Listen {
        /// The address.
        address: String,
        /// Why.
        source: std::io::Error,
    },
}

/// Now, by this machine's clock: for what records show. Leases and delays go by the store's.
pub fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    Timestamp(since.as_millis() as u64)
}

impl Coordinator {
    /// What it says of itself to the fleet.
    pub fn presence(&self) -> Presence {
        Presence {
            id: self.name.clone(),
            role: "coordinator".to_owned(),
            host: refile_telemetry::process::host_name(),
            pid: std::process::id(),
            running: 0,
        }
    }

    /// Binds the API's address, on loopback only.
    pub async fn listen(&self) -> Result<TcpListener, StartError> {
        let address = self.config.coordinator.listen.clone();
        let listen_error = |source| StartError::Listen { address: address.clone(), source };
        let listener = TcpListener::bind(&address).await.map_err(listen_error)?;
        match listener.local_addr() {
            Ok(bound) if !bound.ip().is_loopback() => Err(StartError::NotLoopback(bound)),
            _ => Ok(listener),
        }
    }

    /// Runs until `shutdown`: outcomes, housekeeping, and the API where there is a listener.
    pub async fn run(self, listener: Option<TcpListener>, shutdown: CancellationToken) {
        // The store answered when it was opened.
        self.health.turned(true);
        let look = Arc::new(Look::default());
        let serving = async {
            if let Some(listener) = listener {
                let stopped = shutdown.clone().cancelled_owned();
                if let Err(error) = api::serve(listener, self.clone(), look.clone(), stopped).await {
                    tracing::error!(%error, "the API stopped");
                }
            }
        };
        let rules = Rules::now(&self).await;
        let current = rules.subscribe();
        let deciding = join_all((0..DECIDING).map(|_| outcomes::run(&self, &current, &look, &shutdown)));
        let watching = forge::run(&self, &look, &shutdown);
        tokio::join!(deciding, rules.follow(&shutdown), housekeeping::run(&self, &shutdown), watching, serving);
        if let Err(error) = self.store.presence(&self.presence(), true).await {
            tracing::debug!(%error, "could not say that the coordinator leaves");
        }
    }
}
