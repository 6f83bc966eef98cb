//! What a worker is made of.

use std::sync::Arc;

use refile_config::Config;
use refile_core::Queue;
use refile_store::Store;
use refile_store::artifacts::Artifacts;
use refile_telemetry::{Health, Metrics};

use crate::llm::Client;
use crate::pool::Pool;
use crate::workspace::Workspace;

/// What a worker does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Makes attempts and lands approved changes.
    Coder,
    /// Judges attempts.
    Reviewer,
}

impl Role {
    /// The name in metrics and presence.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Coder => "coder",
            Self::Reviewer => "reviewer",
        }
    }

    /// The queues that it serves where nothing else is said, first things first.
    pub fn queues(self) -> Vec<Queue> {
        match self {
            // An approved change is nearly done: it goes before a new attempt.
            Self::Coder => vec![Queue::Land, Queue::Code],
            Self::Reviewer => vec![Queue::Review],
        }
    }
}

/// A worker that can be run; it keeps nothing that a job needs later.
#[derive(Debug)]
pub struct Worker {
    /// Where jobs come from.
    pub store: Arc<dyn Store>,
    /// What the fleet is told to do.
    pub config: Arc<Config>,
    /// Where logs, diffs and replies go.
    pub artifacts: Artifacts,
    /// Where mirrors and trees lie.
    pub workspace: Workspace,
    /// The client for models.
    pub client: Client,
    /// What this process counts.
    pub metrics: Metrics,
    /// Whether it is alive and ready.
    pub health: Health,
    /// Its name, unique per start.
    pub name: String,
    /// What it does.
    pub role: Role,
    /// The queues that it serves, first things first.
    pub queues: Vec<Queue>,
    /// Jobs at once.
    pub concurrency: usize,
}

impl Worker {
    /// The claim loop that does this worker's jobs.
    pub fn pool(self) -> Pool {
        Pool {
            store: self.store.clone(),
            metrics: self.metrics.clone(),
            health: self.health.clone(),
            name: self.name.clone(),
            role: self.role,
            queues: self.queues.clone(),
            concurrency: self.concurrency,
            lease: self.config.workers.lease.0,
            grace: self.config.workers.grace.0,
            agent: Arc::new(self),
        }
    }
}
