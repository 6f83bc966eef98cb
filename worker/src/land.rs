//! `land` jobs: approved changes come to the base branch, each at most once.
//!
//! Two things keep it at once. The push is a compare-and-swap on the base branch. And before every try the history is
//! searched for the task's trailer: a worker that crashed after its push, or that was believed dead and was not, has
//! left it there.
//!
//! # Layout
//! - `batch`: several changes one after the other onto the base, tried together and pushed at once
//! - `fit`: whether one change still is what was approved, where it would land
//! - `commits`: the commits that it becomes there

mod batch;
mod fit;
mod commits;
pub mod pull_request;

use async_trait::async_trait;
use refile_config::{Gate, Strategy};
use refile_core::Outcome;
use refile_core::task::{Approval, Change};

use crate::workspace::Site;

/// All that a landing needs.
#[derive(Debug, Clone, Copy)]
pub struct LandJob<'a> {
    /// Where it is done and what it is about.
    pub site: Site<'a>,
    /// What was approved.
    pub approval: &'a Approval,
    /// The attempt's change.
    pub change: &'a Change,
    /// The configured gates.
    pub gates: &'a [Gate],
    /// How it comes to the base branch.
    pub strategy: Strategy,
}

/// Knows whether jobs are still this worker's.
#[async_trait]
pub trait Leases: Send + Sync {
    /// Of these jobs, by their place in the list: which may land. Asked right before a push.
    async fn held(&self, jobs: &[usize]) -> Vec<bool>;
}

/// Of a job that nobody can take away.
struct Always;

#[async_trait]
impl Leases for Always {
    async fn held(&self, jobs: &[usize]) -> Vec<bool> {
        vec![true; jobs.len()]
    }
}

/// Brings an approved change to the base branch.
pub async fn land(job: &LandJob<'_>) -> Outcome {
    land_together(std::slice::from_ref(job), &Always).await.remove(0)
}

/// Brings approved changes of one repository to one base branch, in their order. The n-th outcome is the n-th job's.
///
/// The gates run once, on all of them together. Where they fail, the first change is looked for with which they do: it is
/// rejected, and the others land. A change that only conflicts with one before it waits until that one has landed.
pub async fn land_together(jobs: &[LandJob<'_>], leases: &dyn Leases) -> Vec<Outcome> {
    batch::Batch::new(jobs, leases).land().await
}
