//! One job as one pipeline: what the record says, made into values for the parts that do the work.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use refile_config::schema::Strategy;
use refile_core::failure::{Failure, FailureKind};
use refile_core::policy::ContinueFrom;
use refile_core::prompt::prompt;
use refile_core::task::{Job, Review, Usage};
use refile_core::verdict::Verdict;
use refile_core::{Outcome, Phase, Queue};
use refile_forge::Forges;
use refile_store::Claim;

use crate::backpressure::{Backpressure, Room};
use crate::code::{CodeJob, code};
use crate::landings::{self, Landings};
use crate::leftovers::Leftovers;
use crate::pool::Execute;
use crate::review::{ReviewJob, review};
use crate::worker::Worker;
use crate::workspace::Site;

/// A worker at work: what it may claim depends on how the providers are.
pub(crate) struct AtWork {
    pub(crate) worker: Arc<Worker>,
    pub(crate) backpressure: Arc<Backpressure>,
    pub(crate) forges: Arc<Forges>,
    pub(crate) landings: Landings,
    pub(crate) leftovers: Leftovers,
    /// How long a run of an agent lasts that must have done work.
    pub(crate) long_run: Duration,
}

impl AtWork {
    /// Whether changes land by pull requests, each by itself.
    fn proposes(&self) -> bool {
        self.worker.config.land.strategy == Strategy::PullRequest
    }
}

#[async_trait]
impl Execute for AtWork {
    async fn room(&self) -> Room {
        self.backpressure.room().await
    }

    fn ready(&self) -> Result<(), String> {
        self.worker.workspace.has_room().inspect_err(|_| self.worker.workspace.make_room())
    }

    fn more_landings(&self) -> usize {
        if self.proposes() { 0 } else { self.worker.config.land.batch.saturating_sub(1) as usize }
    }

    fn begin(&self, claims: &[Claim]) {
        if !self.proposes() {
            self.landings.begin(&self.worker, claims);
        }
    }

    fn long_run(&self) -> Duration {
        self.long_run
    }

    async fn execute(&self, claim: &Claim) -> Outcome {
        if claim.queue == Queue::Land && landings::approved(claim).is_some() {
            if self.proposes() {
                let proposed = landings::proposal(&self.worker, &self.forges, claim).await;
                return proposed.unwrap_or_else(|| cannot(claim, "nothing was approved".to_owned()));
            }
            return self.landings.outcome(&self.worker, claim).await;
        }
        if claim.queue == Queue::Code {
            self.leftovers.remove(&self.worker, &claim.task);
        }
        execute(&self.worker, claim, self.long_run).await
    }
}

/// Does a claimed job. Whatever goes wrong is an outcome too.
async fn execute(worker: &Worker, claim: &Claim, long_run: Duration) -> Outcome {
    let lease = &claim.lease;
    let Some(phase) = claim.task.phase(&lease.phase) else {
        return cannot(claim, format!("the task has no phase `{}`", lease.phase));
    };
    let shelf = worker.shelf(claim);
    let site = worker.site(claim, &shelf);
    match phase.job.as_ref() {
        Some(Job::Code { agent }) if claim.queue == Queue::Code => {
            attempt(worker, claim, phase, site, (agent, long_run)).await
        }
        Some(Job::Review { reviewer }) if claim.queue == Queue::Review => {
            opinion(worker, claim, phase, site, reviewer).await
        }
        Some(Job::Land) if claim.queue == Queue::Land => cannot(claim, "nothing was approved".to_owned()),
        _ => cannot(claim, format!("the phase `{}` is {} and has no {} job", phase.name, phase.state, claim.queue)),
    }
}

async fn attempt(
    worker: &Worker,
    claim: &Claim,
    phase: &Phase,
    site: Site<'_>,
    (name, long_run): (&str, Duration),
) -> Outcome {
    let config = &worker.config;
    let Some(agent) = config.agents.get(name) else {
        return cannot(claim, format!("this worker's configuration has no [agents.{name}]"));
    };
    let prompt = prompt(&claim.task, phase, config.carry());
    let continue_from = match config.policy().start(phase) {
        ContinueFrom::Previous => phase.previous_change(),
        ContinueFrom::Base => None,
    };
    // An attempt that is not over and has a change is one whose gates could not run, or whose agent failed at its work.
    let kept = phase.attempt().filter(|attempt| attempt.outcome.is_none()).and_then(|attempt| attempt.change.as_ref());
    code(&CodeJob {
        site,
        prompt: &prompt,
        continue_from,
        kept,
        long_run,
        name,
        agent,
        providers: &config.providers,
        client: &worker.client,
        gates: &config.gates,
        keep_going: config.policy.keep_going,
        diff_policy: &config.diff_policy,
    })
    .await
}

async fn opinion(worker: &Worker, claim: &Claim, phase: &Phase, site: Site<'_>, name: &str) -> Outcome {
    let config = &worker.config;
    let Some(reviewer) = config.reviewers.get(name) else {
        return cannot(claim, format!("this worker's configuration has no [reviewers.{name}]"));
    };
    let Some((attempt, change)) = phase.attempt().and_then(|a| Some((a, a.change.as_ref()?))) else {
        return cannot(claim, "the attempt has no change to review".to_owned());
    };
    review(&ReviewJob {
        site,
        change,
        gates: &attempt.gates,
        previous_required_change: phase.leading_rejection().map(|r| r.required_change.as_str()),
        name,
        reviewer,
        reviewers: &config.reviewers,
        providers: &config.providers,
        client: &worker.client,
    })
    .await
}

/// The outcome of a job that this worker cannot do. Not charged; after some tries a person is asked.
fn cannot(claim: &Claim, why: String) -> Outcome {
    let failure = Failure::new(FailureKind::Configuration, why);
    match claim.queue {
        Queue::Code => {
            let usage = Usage::default();
            Outcome::AgentFailed { failure, prompt_digest: None, transcript: None, usage, change: None }
        }
        Queue::Land => Outcome::LandingFailed { failure },
        Queue::Review => {
            let reviewer = match claim.task.phase(&claim.lease.phase).and_then(|p| p.job.as_ref()) {
                Some(Job::Review { reviewer }) => reviewer.as_str(),
                _ => "unknown",
            };
            let verdict = Verdict::retry(failure.to_string());
            Outcome::Reviewed(Review { failure: Some(failure), ..Review::new(reviewer, "", verdict) })
        }
    }
}
