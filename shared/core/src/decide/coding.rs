//! What coders report.

use super::draft::Draft;
use super::{Refusal, Transition, What};
use crate::failure::Failure;
use crate::gate::{self, GateReport};
use crate::policy::OnExhausted;
use crate::task::{AttemptOutcome, Cause, Change, EscalationReason, Queue, Rejection, Usage};
use crate::text::counted;

/// How a run of the agent went, whatever came of it.
pub(super) struct Ran<'a> {
    pub(super) prompt_digest: Option<&'a String>,
    pub(super) transcript: &'a Option<String>,
    pub(super) usage: Usage,
}

impl Ran<'_> {
    fn note_in(self, draft: &mut Draft<'_>) -> Result<(), Refusal> {
        draft.spend(self.usage);
        let attempt = draft.attempt_mut()?;
        if self.prompt_digest.is_some() {
            attempt.prompt_digest = self.prompt_digest.cloned();
        }
        if self.transcript.is_some() {
            attempt.transcript.clone_from(self.transcript);
        }
        Ok(())
    }
}

/// The agent left a change, and the gates were run on it.
pub(super) fn coded(
    draft: Draft<'_>,
    change: &Change,
    gates: &[GateReport],
    ran: Ran<'_>,
) -> Result<Transition, Refusal> {
    let mut draft = draft.with_job_in(Queue::Code)?;
    ran.note_in(&mut draft)?;
    let attempt = draft.attempt_mut()?;
    attempt.change = Some(change.clone());
    attempt.gates = gates.to_vec();
    for failed in gates.iter().filter(|g| !g.passed) {
        draft.count("gate_failures_total", &[&failed.name]);
    }
    if let Some(failed) = gates.iter().find(|g| !g.passed) {
        let rejection = gate_rejection(failed, &draft.task.base, Cause::Gate);
        draft.notify(What::GateFailed, format!("{}: {}", failed.name, rejection.required_change));
        // A failed gate is never accepted, whatever the policy says of exhausted attempts.
        let on_exhausted = match on_exhausted(&draft) {
            OnExhausted::Reject => OnExhausted::Reject,
            OnExhausted::Escalate | OnExhausted::Accept => OnExhausted::Escalate,
        };
        draft.refile(AttemptOutcome::GateFailed, rejection, on_exhausted)?;
        return Ok(draft.done());
    }
    draft.notify(What::Coded, counted(change.files, "file"));
    let led_by = draft.phase().leading_rejection().cloned();
    match led_by {
        // What a reviewer or a person turned down came back unchanged: another review would say the same.
        Some(led_by) if matches!(led_by.cause, Cause::Review | Cause::Person) && draft.is_same_diff_as_before()? => {
            let on_exhausted = on_exhausted(&draft);
            draft.refile(AttemptOutcome::NeedsChanges, led_by, on_exhausted)?;
        }
        _ => {
            let review = draft.next_review(&[])?;
            draft.enqueue(review, 0);
        }
    }
    Ok(draft.done())
}

/// The agent could not do its part, or a gate could not run on what it left. Not charged.
pub(super) fn agent_failed(
    draft: Draft<'_>,
    failure: &Failure,
    left: Option<&Change>,
    ran: Ran<'_>,
) -> Result<Transition, Refusal> {
    let mut draft = draft.with_job_in(Queue::Code)?;
    ran.note_in(&mut draft)?;
    let attempt = draft.attempt_mut()?;
    if left.is_some() {
        attempt.change = left.cloned();
    }
    attempt.agent_failures.push(failure.clone());
    let tries = attempt.agent_failures.len().saturating_sub(attempt.forgiven.agent_failures);
    let agent = attempt.agent.clone();
    draft.count("agent_failures_total", &[&agent, failure.kind.as_str()]);
    draft.notify(What::AgentFailed, failure.to_string());
    if tries >= draft.policy.max_infra_failures as usize {
        draft.escalate(EscalationReason::CoderUnavailable, failure.to_string());
    } else {
        draft.requeue(tries, failure);
    }
    Ok(draft.done())
}

/// The agent declined, or asked a question.
pub(super) fn needs_input(draft: Draft<'_>, words: &str, ran: Ran<'_>) -> Result<Transition, Refusal> {
    let mut draft = draft.with_job_in(Queue::Code)?;
    ran.note_in(&mut draft)?;
    draft.close_attempt(AttemptOutcome::Declined, None)?;
    draft.escalate(EscalationReason::NeedsInput, words);
    Ok(draft.done())
}

/// The rejection that a failed gate amounts to.
pub(super) fn gate_rejection(failed: &GateReport, base: &str, cause: Cause) -> Rejection {
    Rejection {
        cause,
        by: failed.name.clone(),
        required_change: gate::required_change(&failed.name, base, failed.required_change.as_deref()),
        critique: gate::output_tail(&failed.output),
    }
}

/// What follows when the phase's last attempt is rejected by a reviewer.
pub(super) fn on_exhausted(draft: &Draft<'_>) -> OnExhausted {
    draft.phase().limits.on_exhausted.unwrap_or(draft.policy.on_exhausted)
}
