//! The land jobs that one worker claimed together: those for one base branch of one repository are tried as a batch.
//!
//! A batch runs beside its jobs and not within one of them: a job whose lease is lost leaves it, and the others go on.
//! When all have left, the batch is dropped, and what it runs with it.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use refile_core::Outcome;
use refile_core::failure::{Failure, FailureKind};
use refile_core::task::{Approval, Change, Job};
use refile_forge::Forges;
use refile_store::artifacts::Shelf;
use refile_store::{Claim, Lease, LeaseState};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::land::pull_request::propose;
use crate::land::{LandJob, Leases, land_together};
use crate::worker::Worker;

/// After how long a store that is away is asked again.
const ASK_AGAIN: Duration = Duration::from_millis(500);

/// What a job waits for.
struct Waiting {
    outcome: oneshot::Receiver<Outcome>,
    /// Cancelled when the job leaves.
    left: CancellationToken,
}

/// A job in its batch.
struct Member {
    claim: Claim,
    shelf: Shelf,
    left: CancellationToken,
}

/// The land jobs of a worker that are going on.
#[derive(Default)]
pub(crate) struct Landings {
    waiting: Mutex<HashMap<Lease, Waiting>>,
}

/// What a claim is to land; nothing where its record has no such thing.
pub(crate) fn approved(claim: &Claim) -> Option<(&Approval, &Change)> {
    let phase = claim.task.phase(&claim.lease.phase)?;
    let change = phase.attempt()?.change.as_ref()?;
    (phase.job == Some(Job::Land)).then_some((phase.approval.as_ref()?, change))
}

impl Landings {
    /// Starts the batches of what was claimed together.
    pub(crate) fn begin(&self, worker: &Arc<Worker>, claims: &[Claim]) {
        let mut by_branch: BTreeMap<(&str, &str), Vec<&Claim>> = BTreeMap::new();
        for claim in claims.iter().filter(|claim| approved(claim).is_some()) {
            by_branch.entry((&claim.task.repository, &claim.task.base)).or_default().push(claim);
        }
        let most = worker.config.land.batch.max(1) as usize;
        for claims in by_branch.values().flat_map(|claims| claims.chunks(most)) {
            let (mut members, mut told) = (Vec::new(), Vec::new());
            for approved in claims {
                let member = member(worker, approved);
                let (tell, outcome) = oneshot::channel();
                self.locked().insert(approved.lease.clone(), Waiting { outcome, left: member.left.clone() });
                members.push(member);
                told.push(tell);
            }
            tokio::spawn(run(worker.clone(), members, told));
        }
    }

    /// What becomes of a job.
    pub(crate) async fn outcome(&self, worker: &Arc<Worker>, claim: &Claim) -> Outcome {
        if !self.locked().contains_key(&claim.lease) {
            self.begin(worker, std::slice::from_ref(claim));
        }
        let waiting = self.locked().remove(&claim.lease);
        let nothing = || {
            let failure = Failure::new(FailureKind::Crash, "the landing broke down; the worker's log says where");
            Outcome::LandingFailed { failure }
        };
        let Some(Waiting { outcome, left }) = waiting else { return nothing() };
        let _leaves = left.drop_guard();
        outcome.await.unwrap_or_else(|_| nothing())
    }

    fn locked(&self) -> std::sync::MutexGuard<'_, HashMap<Lease, Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lands a batch, for as long as anybody wants it.
async fn run(worker: Arc<Worker>, members: Vec<Member>, told: Vec<oneshot::Sender<Outcome>>) {
    let all_left = async {
        for member in &members {
            member.left.cancelled().await;
        }
    };
    tokio::select! {
        outcomes = land_all(&worker, &members) => {
            for (tell, outcome) in told.into_iter().zip(outcomes) {
                // Whoever left does not hear it.
                let _ = tell.send(outcome);
            }
        }
        () = all_left => {}
    }
}

async fn land_all(worker: &Worker, members: &[Member]) -> Vec<Outcome> {
    let jobs: Vec<LandJob<'_>> = members.iter().filter_map(|member| job(worker, member)).collect();
    land_together(&jobs, &Held { worker, members }).await
}

/// A landing by a pull request; nothing where the claim's record has nothing to land.
pub(crate) async fn proposal(worker: &Worker, forges: &Forges, claim: &Claim) -> Option<Outcome> {
    let members = [member(worker, claim)];
    let job = job(worker, &members[0])?;
    Some(propose(&job, forges, worker.config.land.merge, &Held { worker, members: &members }).await)
}

fn member(worker: &Worker, claim: &Claim) -> Member {
    Member { claim: claim.clone(), shelf: worker.shelf(claim), left: CancellationToken::new() }
}

fn job<'a>(worker: &'a Worker, Member { claim, shelf, .. }: &'a Member) -> Option<LandJob<'a>> {
    let config = &worker.config;
    let (approval, change) = approved(claim)?;
    let site = worker.site(claim, shelf);
    Some(LandJob { site, approval, change, gates: &config.gates, strategy: config.land.strategy })
}

/// Asks the store, since a heartbeat may be a while ago.
struct Held<'a> {
    worker: &'a Worker,
    members: &'a [Member],
}

#[async_trait]
impl Leases for Held<'_> {
    async fn held(&self, jobs: &[usize]) -> Vec<bool> {
        let members: Vec<&Member> = jobs.iter().map(|job| &self.members[*job]).collect();
        let leases: Vec<Lease> = members.iter().map(|member| member.claim.lease.clone()).collect();
        let length = self.worker.config.workers.lease.0;
        let mut is_said = false;
        let stands: Vec<bool> = loop {
            match self.worker.store.extend(&leases, length).await {
                Ok(states) => break states.into_iter().map(|state| state == LeaseState::Held).collect(),
                // Others may see a store that this worker does not, and may have taken the jobs or called them off.
                Err(error) if !is_said => {
                    tracing::warn!(%error, "nothing is pushed before the store says whose the jobs are");
                    is_said = true;
                }
                Err(_) => {}
            }
            tokio::time::sleep(ASK_AGAIN).await;
        };
        stands
            .into_iter()
            .zip(members)
            .map(|(stands, member): (bool, _)| stands && !member.left.is_cancelled())
            .collect()
    }
}
