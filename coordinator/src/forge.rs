//! The forge, as a coordinator looks at it: pull requests that people decide on, and issues that become tasks.
//!
//! Any number of coordinators look at the same time. What they see becomes an event that the core lets in once, a task whose
//! key makes its id, or a comment with a marker; so a second look changes nothing. A webhook only makes the next look come
//! at once, and so does a proposal that the fleet is to merge.
//!
//! # Layout
//! - [`look`]: what makes the next look come before its time
//! - `pull_requests`: merged, closed, changes requested; and merging, where the fleet is to do it
//! - `endings`: the pull requests of tasks that end without a merge, or wait for a person
//! - `issues`: issues with the label, and what became of their tasks

pub mod look;
mod pull_requests;
mod endings;
mod issues;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use refile_config::schema::Strategy;
use refile_core::TaskId;
use refile_core::failure::FailureKind;
use refile_forge::{ForgeError, Forges};
use refile_store::StoreError;
use tokio_util::sync::CancellationToken;

use crate::Coordinator;
use crate::apply::ApplyError;
use look::Look;

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
    /// How far the event log was read for tasks that end.
    read: String,
    /// Tasks whose pull requests are to be told of their end.
    ending: BTreeSet<TaskId>,
    /// What was said last of a failure, so that it is said once.
    said: BTreeSet<String>,
    /// Whether any task has a pull request, as far as the last look at all of them tells. The first one always looks: the
    /// configuration may have been another one when they were opened.
    any_proposed: bool,
    /// Whether the ends of tasks matter to pull requests.
    follows_ends: bool,
    /// Whether the ends that came before this coordinator were looked at: tasks may have ended while none was there.
    has_read_ends: bool,
    /// The task with which the next look begins: the last one came no further.
    next: Option<TaskId>,
    /// Tasks whose pull requests are on a forge that cannot be asked: the reason, and how each is named.
    unreachable: BTreeMap<TaskId, (String, String)>,
}

/// Looks at the forge until `shutdown`: every `forge.poll`, and at once when told so. Where changes are not proposed (any
/// more), it costs a question or two to the store each time.
pub async fn run(coordinator: &Coordinator, look: &Look, shutdown: &CancellationToken) {
    let config = &coordinator.config;
    let mut watch = Watch {
        coordinator,
        forges: Forges::new(config.clone()),
        told: BTreeSet::new(),
        read: String::new(),
        ending: BTreeSet::new(),
        said: BTreeSet::new(),
        any_proposed: true,
        follows_ends: config.land.strategy == Strategy::PullRequest || config.forge.label.is_some(),
        has_read_ends: false,
        next: None,
        unreachable: BTreeMap::new(),
    };
    let pause = config.forge.poll.0;
    let mut due = Instant::now();
    while !shutdown.is_cancelled() {
        let wanted = look.take();
        let began = Instant::now();
        let looking = async {
            if wanted.all || began >= due {
                watch.pull_requests().await;
                if watch.follows_ends || !watch.has_read_ends {
                    watch.endings().await;
                }
                watch.issues().await;
                due = Instant::now() + pause;
            } else {
                watch.tasks(wanted.tasks).await;
            }
        };
        // Whatever a look was about to do, the next one does it.
        tokio::select! { () = shutdown.cancelled() => break, () = looking => {} }
        let early = async {
            look.asked().await;
            tokio::time::sleep_until((began + SHORTEST).into()).await;
        };
        tokio::select! {
            () = shutdown.cancelled() => break,
            () = tokio::time::sleep_until(due.into()) => {}
            () = early => {}
        }
    }
}

impl Watch<'_> {
    /// Whether this coordinator is the one that speaks. Two that look at the same moment would both see no comment: the
    /// first by name among those that live speaks.
    async fn speaks(&self) -> Result<bool, StoreError> {
        let all = self.coordinator.store.stats().await?.workers;
        let first = all.iter().filter(|process| process.role == "coordinator").map(|process| &process.id).min();
        Ok(first.is_none_or(|first| *first == self.coordinator.name))
    }

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
