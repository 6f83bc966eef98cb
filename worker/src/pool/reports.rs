//! Outcomes go to the store: all that wait in one call, and then those that came meanwhile.
//!
//! Nothing waits for company: a lone outcome goes at once, and under load batches form while a call is under way.

use std::sync::Arc;

use refile_core::Outcome;
use refile_store::{Report, Reported, StoreError};
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::UnboundedReceiver;

use super::{AWAY, Entry, Pool};

/// Outcomes that are handed in in one call.
const BATCH: usize = 100;

/// An outcome that is to be handed in, and what its job holds until it is: its lease is extended and its place is taken.
pub(super) type Finished = (Report, Held);

/// What a job holds until its outcome is handed in.
pub(super) struct Held {
    pub(super) attempt: u32,
    pub(super) entry: Entry,
    pub(super) permit: Option<OwnedSemaphorePermit>,
}

/// What the store said of one report.
type Answer = Result<Reported, StoreError>;

/// Hands outcomes in until no job is left that could have one, for as long as it takes: the work is done, and a store
/// that is away comes back.
pub(super) async fn reports(pool: Arc<Pool>, mut waiting: UnboundedReceiver<Finished>) {
    let mut batch: Vec<Finished> = Vec::new();
    let mut was_away = false;
    loop {
        if batch.is_empty() && waiting.recv_many(&mut batch, BATCH).await == 0 {
            return;
        }
        while batch.len() < BATCH
            && let Ok(finished) = waiting.try_recv()
        {
            batch.push(finished);
        }
        batch.retain(is_still_ours);
        let away = hand_in(&pool, &mut batch).await;
        if let Some(error) = &away {
            if !was_away {
                tracing::error!(outcomes = batch.len(), %error, "cannot report; trying on, nothing is lost");
            }
            tokio::time::sleep(AWAY).await;
        }
        was_away = away.is_some();
    }
}

/// Whether an outcome is worth handing in: where the lease is lost, another has the job.
fn is_still_ours((report, held): &Finished) -> bool {
    let is_lost = held.entry.lost.is_cancelled();
    if is_lost {
        say_dropped(report, held.attempt);
    }
    !is_lost
}

/// Hands a batch in. What the store could not take because it is away stays in the batch.
async fn hand_in(pool: &Pool, batch: &mut Vec<Finished>) -> Option<StoreError> {
    if batch.is_empty() {
        return None;
    }
    let (reports, held): (Vec<Report>, Vec<Held>) = std::mem::take(batch).into_iter().unzip();
    let (answers, away) = answers(pool, &reports).await;
    let (mut answers, mut free): (_, Option<OwnedSemaphorePermit>) = (answers.into_iter(), None);
    for (report, held) in reports.into_iter().zip(held) {
        match answers.next() {
            None => {
                batch.push((report, held));
                continue;
            }
            Some(Ok(Reported::Accepted)) => say_reported(&report, held.attempt),
            Some(Ok(Reported::Stale)) => say_dropped(&report, held.attempt),
            Some(Err(error)) => say_refused(&report, held.attempt, &error),
        }
        // Places become free together, so that the next claim is for as many.
        match (&mut free, held.permit) {
            (Some(free), Some(permit)) => free.merge(permit),
            (None, permit) => free = permit,
            (Some(_), None) => {}
        }
    }
    away
}

/// What the store says of the first reports, in their order; and why not of all, where it is away.
async fn answers(pool: &Pool, reports: &[Report]) -> (Vec<Answer>, Option<StoreError>) {
    let mut answers = Vec::with_capacity(reports.len());
    match pool.store.report(reports).await {
        Ok(said) => answers.extend(said.into_iter().map(Ok)),
        Err(error) if error.is_transient() => return (answers, Some(error)),
        Err(error) if reports.len() == 1 => answers.push(Err(error)),
        // One of them is bad, and the others must not suffer for it.
        Err(_) => {
            for report in reports {
                match pool.store.report(std::slice::from_ref(report)).await {
                    Ok(said) => answers.push(Ok(said.first().copied().unwrap_or(Reported::Stale))),
                    Err(error) if error.is_transient() => return (answers, Some(error)),
                    Err(error) => answers.push(Err(error)),
                }
            }
        }
    }
    answers.truncate(reports.len());
    answers.extend((answers.len()..reports.len()).map(|_| Ok(Reported::Stale)));
    (answers, None)
}

fn say_reported(report: &Report, attempt: u32) {
    let (task, phase) = (&report.lease.task, report.lease.phase.as_str());
    tracing::info!(%task, phase, attempt, outcome = word(&report.outcome), "reported");
}

fn say_dropped(report: &Report, attempt: u32) {
    let (task, phase) = (&report.lease.task, report.lease.phase.as_str());
    tracing::warn!(%task, phase, attempt, "the job went to somebody else: the outcome is dropped");
}

/// The job will be redelivered when its lease runs out.
fn say_refused(report: &Report, attempt: u32, error: &StoreError) {
    let (task, phase) = (&report.lease.task, report.lease.phase.as_str());
    tracing::error!(%task, phase, attempt, %error, "cannot report");
}

fn word(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Coded { .. } => "coded",
        Outcome::AgentFailed { .. } => "agent_failed",
        Outcome::NeedsInput { .. } => "needs_input",
        Outcome::Reviewed(_) => "reviewed",
        Outcome::Landed { .. } => "landed",
        Outcome::PullRequestOpen { .. } => "pull_request_open",
        Outcome::PullRequestEnded { .. } => "pull_request_ended",
        Outcome::Rebased { .. } => "rebased",
        Outcome::LandingRejected { .. } => "landing_rejected",
        Outcome::CalledOff => "called_off",
        Outcome::LandingFailed { .. } => "landing_failed",
    }
}
