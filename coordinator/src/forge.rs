//! The forge, as a coordinator looks at it: pull requests that people decide on, and issues that become tasks.
//!
//! Any number of coordinators look at the same time. What they see becomes an event that the core lets in once, a task whose
//! key makes its id, or a comment with a marker; so a second look changes nothing. A webhook only makes the next look come
//! at once.
//!
//! # Layout
//! - `pull_requests`: merged, closed, changes requested; and merging, where the fleet is to do it
//! - `issues`: issues with the label, and what became of their tasks

mod pull_requests;
mod issues;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use refile_config::Config;
use refile_config::schema::Strategy;
use refile_core::failure::FailureKind;
use refile_forge::{ForgeError, Forges};
use refile_store::StoreError;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::Coordinator;
use crate::apply::ApplyError;

/// The shortest pause between two looks, however many webhooks come.
const SHORTEST: Duration = Duration::from_secs(1);

/// Why a look came to nothing.
#[derive(Debug, thiserror::Error)]
enum LookError {
    #[error(transparent)]
    Forge(#[from] ForgeError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Apply(#[from] ApplyError),
}

/// What a coordinator keeps between two looks. All of it may be lost: it only saves calls.
struct Watch<'a> {
    coordinator: &'a Coordinator,
    forges: Forges,
    /// What is known to be told on its issue.
    told: BTreeSet<String>,
    /// What was said last of a failure, so that it is said once.
    said: BTreeSet<String>,
}

/// Whether there is anything to look at.
pub fn is_wanted(config: &Config) -> bool {
    config.land.strategy == Strategy::PullRequest || config.forge.label.is_some()
}

/// Looks at the forge until `shutdown`: every `forge.poll`, and at once when told so.
pub async fn run(coordinator: &Coordinator, look: &Arc<Notify>, shutdown: &CancellationToken) {
    if !is_wanted(&coordinator.config) {
        return;
    }
    let forges = Forges::new(coordinator.config.clone());
    let mut watch = Watch { coordinator, forges, told: BTreeSet::new(), said: BTreeSet::new() };
    let pause = coordinator.config.forge.poll.0;
    while !shutdown.is_cancelled() {
        let looking = async {
            watch.pull_requests().await;
            watch.issues().await;
        };
        // Whatever a look was about to do, the next one does it.
        tokio::select! { () = shutdown.cancelled() => break, () = looking => {} }
        tokio::select! {
            () = shutdown.cancelled() => break,
            () = tokio::time::sleep(pause) => {}
            () = look.notified() => {
                tokio::select! { () = shutdown.cancelled() => break, () = tokio::time::sleep(SHORTEST) => {} }
            }
        }
    }
}

impl Watch<'_> {
    /// Says what went wrong, once until it goes well again.
    fn note(&mut self, what: &str, result: Result<(), LookError>) -> bool {
        let error = match result {
            Ok(()) => return true,
            Err(error) => error,
        };
        match &error {
            LookError::Store(error) if error.is_transient() => {
                tracing::debug!(%error, "the forge was not looked at");
            }
            // The limit's end is another moment each time.
            LookError::Forge(limited) if limited.kind == FailureKind::RateLimit => {
                if self.said.insert(format!("{what}: limited")) {
                    tracing::warn!(%error, "{what}: waiting for the forge");
                }
            }
            _ => {
                if self.said.insert(format!("{what}: {error}")) {
                    tracing::error!(%error, "{what}");
                }
            }
        }
        false
    }
}
