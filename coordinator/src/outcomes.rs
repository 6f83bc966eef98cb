//! Take, decide, commit: many outcomes at a time.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use refile_core::{Event, Outcome, Policy, Transition, decide};
use refile_store::commit::commit;
use refile_store::{Commit, Committed, Happening, Receipt, Store, StoreError, TakeRequest, Taken};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::forge::look::Look;
use crate::{Coordinator, now};

/// Outcomes that are taken at a time.
const BATCH: usize = 100;
/// How long a call to the store waits for an outcome.
const WAIT: Duration = Duration::from_secs(2);
/// The pause after the store did not answer.
const AWAY: Duration = Duration::from_millis(500);

/// Decides outcomes by the rules of the moment until `shutdown`. What was taken and not decided by then is taken over by
/// another coordinator. `look` is told of tasks that have a pull request.
pub async fn run(
    coordinator: &Coordinator,
    rules: &watch::Receiver<Arc<Policy>>,
    look: &Look,
    shutdown: &CancellationToken,
) {
    let request = TakeRequest {
        consumer: coordinator.name.clone(),
        max: BATCH,
        wait: WAIT,
        takeover: coordinator.config.coordinator.takeover.0,
    };
    let mut was_away = false;
    while !shutdown.is_cancelled() {
        let taken = tokio::select! {
            () = shutdown.cancelled() => break,
            taken = coordinator.store.take_outcomes(&request) => taken,
        };
        let settled = match taken {
            Ok(taken) => {
                let policy = rules.borrow().clone();
                let proposed =
                    taken.iter().filter(|taken| is_proposed(taken)).map(|t| t.task.task.id.clone()).collect();
                let settled = settle(coordinator.store.as_ref(), &policy, taken).await;
                look.at(proposed);
                settled
            }
            Err(error) => Err(error),
        };
        coordinator.health.turned(settled.is_ok());
        match settled {
            Ok(()) if was_away => {
                tracing::info!("the store answers again");
                was_away = false;
            }
            Ok(()) => {}
            Err(error) => {
                // Said once, not at each try: the store may be away for hours.
                if !was_away {
                    tracing::error!(%error, "cannot take or decide outcomes; trying on, nothing is lost");
                }
                was_away = true;
                tokio::select! { () = shutdown.cancelled() => break, () = tokio::time::sleep(AWAY) => {} }
            }
        }
    }
}

/// Whether it is about a task that has a pull request, or gets one.
fn is_proposed(taken: &Taken) -> bool {
    let opens = |outcome: &Outcome| matches!(outcome, Outcome::PullRequestOpen { .. });
    matches!(&taken.happening, Happening::Outcome(outcome) if opens(outcome))
        || taken.task.task.phases.iter().any(|phase| phase.pull_request.is_some())
}

/// Decides and commits a batch. Outcomes of one task follow each other; different tasks share a round trip.
pub async fn settle(store: &dyn Store, policy: &Policy, taken: Vec<Taken>) -> Result<(), StoreError> {
    let mut pending: VecDeque<Taken> = taken.into();
    while !pending.is_empty() {
        let mut seen = HashSet::new();
        let (now_settled, later): (Vec<Taken>, Vec<Taken>) =
            pending.drain(..).partition(|t| seen.insert(t.guard.receipt.task.clone()));
        let mut again = settle_one_each(store, policy, now_settled).await?;
        again.extend(later);
        pending = reloaded(store, again).await?;
    }
    Ok(())
}

/// Settles outcomes of different tasks; gives back those whose records had changed meanwhile.
async fn settle_one_each(store: &dyn Store, policy: &Policy, taken: Vec<Taken>) -> Result<Vec<Taken>, StoreError> {
    let (mut commits, mut committed_for, mut refused): (Vec<Commit>, Vec<Taken>, Vec<Receipt>) = Default::default();
    for taken in taken {
        if let Some(transition) = transition(policy, &taken) {
            let before = Some((&taken.task.task, taken.task.version));
            commits.push(commit(transition, before, Some(taken.guard.clone())));
            committed_for.push(taken);
        } else {
            refused.push(taken.guard.receipt);
        }
    }
    store.discard(&refused).await?;
    let results = store.commit(&commits).await?;
    let mut again = Vec::new();
    for ((result, taken), commit) in results.into_iter().zip(committed_for).zip(&commits) {
        match result {
            Committed::Applied => log(commit),
            Committed::Stale => {
                let task = &taken.guard.receipt.task;
                tracing::info!(%task, phase = taken.phase, attempt = taken.attempt, "a stale outcome changes nothing");
            }
            Committed::Conflict => again.push(taken),
        }
    }
    Ok(again)
}

/// What follows from a taken outcome; nothing where its phase has no job that it could be about.
fn transition(policy: &Policy, taken: &Taken) -> Option<Transition> {
    let task = &taken.task.task;
    let refusal = match decide(task, &event(taken), policy, now()) {
        Ok(transition) => return Some(transition),
        Err(refusal) => refusal,
    };
    tracing::info!(task = %task.id, phase = taken.phase, attempt = taken.attempt, %refusal, "an outcome does not fit");
    // Most such outcomes are stale, and the commit's guard drops them. One whose fence still stands was the only thing that
    // could bring the job on, and dropping it would strand the task: then a person is asked.
    let why = format!("came back with an outcome that does not fit it ({refusal})");
    decide(task, &Event::Poisoned { phase: taken.phase.clone(), why }, policy, now()).ok()
}

/// The event that a taken outcome is.
fn event(taken: &Taken) -> Event {
    match &taken.happening {
        Happening::Outcome(outcome) => {
            Event::Outcome { phase: taken.phase.clone(), attempt: taken.attempt, outcome: (**outcome).clone() }
        }
        Happening::Poisoned { deliveries } => Event::Poisoned {
            phase: taken.phase.clone(),
            why: format!("was delivered {deliveries} times, and no outcome came back"),
        },
    }
}

/// Reads the records of outcomes that are still to be decided.
async fn reloaded(store: &dyn Store, mut taken: Vec<Taken>) -> Result<VecDeque<Taken>, StoreError> {
    let ids: Vec<_> = taken.iter().map(|t| t.guard.receipt.task.clone()).collect();
    let found = store.tasks(&ids).await?;
    for (taken, found) in taken.iter_mut().zip(found) {
        if let Some(found) = found {
            taken.task = found;
        }
    }
    Ok(taken.into())
}

/// Says what was decided.
pub(crate) fn log(commit: &Commit) {
    for notice in &commit.notices {
        let (task, phase) = (&commit.task.id, notice.phase.as_deref().unwrap_or_default());
        tracing::info!(%task, phase, attempt = notice.attempt, detail = notice.detail, "{}", notice.what);
    }
}
