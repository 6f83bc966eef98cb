//! What becomes of an approved change on its way to the base branch.

use super::coding::gate_rejection;
use super::draft::Draft;
use super::{Refusal, Transition, What};
use crate::failure::{Failure, FailureKind};
use crate::gate::GateReport;
use crate::policy::OnExhausted;
use crate::task::{AttemptOutcome, Cause, Change, EscalationReason, Queue};

/// The change is on the base branch.
pub(super) fn landed(draft: Draft<'_>, commit: &str) -> Result<Transition, Refusal> {
    let mut draft = draft.with_job_in(Queue::Land)?;
    if let Some(approval) = draft.phase_mut().approval.as_mut() {
        approval.landed = Some(commit.to_owned());
    }
    draft.accept()?;
    Ok(draft.done())
}

/// The base moved, and the change that was brought onto it is not the one that was reviewed: it is reviewed again.
pub(super) fn rebased(draft: Draft<'_>, change: &Change) -> Result<Transition, Refusal> {
    let mut draft = draft.with_job_in(Queue::Land)?;
    draft.notify(What::Rebased, format!("onto {}: reviewed again", change.base_commit));
    draft.attempt_mut()?.change = Some(change.clone());
    // Bounded like every other landing that did not come about: a base that moves for ever must not loop for ever.
    let why = Failure::new(FailureKind::Repository, "the base moved and changed the diff");
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
        draft.escalate(EscalationReason::LandingFailed, failure.to_string());
    } else {
        draft.requeue(tries, failure);
    }
    Ok(draft.done())
}

/// Notes a landing that did not come about and tells how many count.
pub(super) fn note_failure(draft: &mut Draft<'_>, failure: &Failure) -> Result<usize, Refusal> {
    let attempt = draft.attempt_mut()?;
    attempt.land_failures.push(failure.clone());
    Ok(attempt.land_failures.len().saturating_sub(attempt.forgiven.land_failures))
}
