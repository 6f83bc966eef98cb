//! What becomes of an approved change on its way to the base branch.

use super::coding::gate_rejection;
use super::draft::Draft;
use super::{Refusal, Transition, What};
use crate::failure::{Failure, FailureKind};
use crate::gate::GateReport;
use crate::policy::OnExhausted;
use crate::task::{AttemptOutcome, Cause, Change, EscalationReason, Job, Queue};

/// What is told where a task is called off and its change is on the base all the same.
pub(super) const TOO_LATE: &str = "it was called off too late: the change is on the base";

/// The change is on the base branch.
pub(super) fn landed(draft: Draft<'_>, commit: &str) -> Result<Transition, Refusal> {
    let mut draft = draft.with_job_in(Queue::Land)?;
    if let Some(approval) = draft.phase_mut().approval.as_mut() {
        approval.landed = Some(commit.to_owned());
    }
    if is_called_off(&draft) {
        draft.notify(What::Decided, TOO_LATE);
    }
    draft.accept()?;
    Ok(draft.done())
}

/// The base moved, and the change that was brought onto it is not the one that was reviewed: it is reviewed again.
pub(super) fn rebased(draft: Draft<'_>, change: &Change) -> Result<Transition, Refusal> {
    let mut draft = draft.with_job_in(Queue::Land)?;
    if is_called_off(&draft) {
        return Ok(cancelled(draft));
    }
    draft.notify(What::Rebased, format!("onto {}: reviewed again", change.base_commit));
    draft.attempt_mut()?.change = Some(change.clone());
    // Bounded like every other landing that did not come about: a base that moves for ever must not loop for ever.
    let why =
        Failure::new(FailureKind::Repository, "the base, or the branch of the attempt, moved and changed the diff");
    let tries = note_failure(&mut draft, &why)?;
    let review = draft.next_review(&[])?;
    draft.phase_mut().approval = None;
    if tries >= draft.policy.max_land_failures as usize {
        // A person's `retry` must not land what nobody has reviewed.
        draft.phase_mut().job = Some(review);
        draft.escalate(EscalationReason::LandingFailed, why.to_string());
    } else {
        draft.enqueue(review, 0);
    }
    Ok(draft.done())
}

/// A real conflict, or a gate that fails on the merged tree.
pub(super) fn rejected(draft: Draft<'_>, gate: &GateReport) -> Result<Transition, Refusal> {
    let mut draft = draft.with_job_in(Queue::Land)?;
    if is_called_off(&draft) {
        return Ok(cancelled(draft));
    }
    draft.count("gate_failures_total", &[&gate.name]);
    let rejection = gate_rejection(gate, &draft.task.base, Cause::Landing);
    draft.notify(What::LandingRejected, format!("{}: {}", gate.name, rejection.required_change));
    draft.refile(AttemptOutcome::LandingRejected, rejection, OnExhausted::Escalate)?;
    Ok(draft.done())
}

/// The forge or the repository failed. Not charged.
pub(super) fn failed(draft: Draft<'_>, failure: &Failure) -> Result<Transition, Refusal> {
    let mut draft = draft.with_job_in(Queue::Land)?;
    draft.notify(What::LandingFailed, failure.to_string());
    let tries = note_failure(&mut draft, failure)?;
    if tries >= draft.policy.max_land_failures as usize {
        if is_called_off(&draft) {
            draft.notify(What::LandingFailed, "it could not be looked whether the change is on the base already");
            return Ok(cancelled(draft));
        }
        let why = format!(
            "the change is approved and could not be landed in {tries} tries; the last time: {}",
            failure.detail
        );
        draft.escalate(EscalationReason::LandingFailed, why);
    } else {
        draft.requeue(tries, failure);
    }
    Ok(draft.done())
}

/// The task was called off while it was landing, and the change is not on the base.
pub(super) fn called_off(draft: Draft<'_>) -> Result<Transition, Refusal> {
    let draft = draft.with_job_in(Queue::Land)?;
    if !is_called_off(&draft) {
        return Err(Refusal::Stale("nobody called the task off".to_owned()));
    }
    Ok(cancelled(draft))
}

/// Calls a landing off. The change may be on the base already and nobody has been told: its job is put into the queue
/// again, so that whoever has it now may land it no more, and whoever has it next says which it is.
pub(super) fn call_off(draft: &mut Draft<'_>, by: &str) {
    if let Some(approval) = draft.phase_mut().approval.as_mut() {
        approval.called_off = Some(by.to_owned());
    }
    draft.notify(
        What::Decided,
        format!("cancelled by {by} while it lands: it is looked whether it is on the base already"),
    );
    draft.enqueue(Job::Land, 0);
}

pub(super) fn is_called_off(draft: &Draft<'_>) -> bool {
    draft.phase().approval.as_ref().is_some_and(|approval| approval.called_off.is_some())
}

/// The end of a task that was called off in time.
pub(super) fn cancelled(mut draft: Draft<'_>) -> Transition {
    // The outcome ended it.
    draft.phase_mut().job = None;
    draft.cancel();
    draft.done()
}

/// Notes a landing that did not come about and tells how many count.
pub(super) fn note_failure(draft: &mut Draft<'_>, failure: &Failure) -> Result<usize, Refusal> {
    let attempt = draft.attempt_mut()?;
    attempt.land_failures.push(failure.clone());
    Ok(attempt.land_failures.len().saturating_sub(attempt.forgiven.land_failures))
}
