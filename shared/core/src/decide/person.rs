//! What people decide.

use super::draft::Draft;
use super::landing;
use super::{Refusal, Transition, What};
use crate::calibration;
use crate::event::{Actor, PersonDecision};
use crate::gate;
use crate::task::{Attempt, AttemptOutcome, Cause, Decided, Forgiven, Job, Phase, PhaseState, Rejection, Task};
use crate::text::{cut, plain_line};
use crate::verdict::Verdict;

/// The longest name of a person, in characters.
const MAX_NAME: usize = 200;

/// A person decided an escalation.
pub(super) fn decided(
    mut draft: Draft<'_>,
    escalation: &str,
    decision: &PersonDecision,
    by: &str,
    note: Option<&str>,
) -> Result<Transition, Refusal> {
    let not_allowed = |why: String| Err(Refusal::NotAllowed(why));
    // A name becomes a line of a commit's message.
    let by = &cut(&plain_line(by), MAX_NAME);
    let note = note.map(|n| cut(n, Verdict::MAX_CRITIQUE));
    let note = note.as_deref();
    let (task, now) = (draft.task.id.clone(), draft.now);
    let overridden_gates = overridden_gates(&draft.task, escalation, decision);
    let over = match overridden_gates.as_slice() {
        [] => String::new(),
        gates => format!(", over what failed: {}", gates.join(", ")),
    };
    let Some(found) = draft.task.escalations.iter_mut().find(|e| e.id == escalation) else {
        return not_allowed(format!(
            "task {task} has no escalation `{escalation}`; `refile task show {task}` lists them"
        ));
    };
    if let Some(done) = &found.decision {
        return not_allowed(format!("{escalation} was decided already: {} by {}", done.decision.as_str(), done.by));
    }
    let note_kept = note.map(str::to_owned);
    found.decision =
        Some(Decided { by: by.to_owned(), at: now, decision: decision.clone(), note: note_kept, overridden_gates });
    let found = found.clone();
    let (phase, job) = (found.phase.clone(), found.job.clone());
    let labels: Vec<[String; 3]> = calibration::labelled(&draft.task, &found)
        .into_iter()
        .map(|(review, right)| {
            let result = if right { "right" } else { "wrong" };
            [review.reviewer.clone(), calibration::bin_label(review.verdict.conf), result.to_owned()]
        })
        .collect();
    if draft.task.state.is_final() {
        return not_allowed(format!("task {task} is {} and stays so; submit it again", draft.task.state));
    }
    draft.turn_to(&phase);
    if draft.phase().state.is_over() {
        return not_allowed(format!("there is nothing left to decide: the phase `{phase}` is {}", draft.phase().state));
    }
    draft.count("escalation_decisions_total", &[decision.as_str()]);
    for label in &labels {
        draft.count("reviewer_labels_total", &label.each_ref().map(String::as_str));
    }
    draft.notify(What::Decided, format!("{} by {by}{over}", decision.as_str()));
    match decision {
        PersonDecision::Approve => approve(&mut draft, by)?,
        PersonDecision::Refile { required_change, attempts } => {
            refile(&mut draft, by, required_change, *attempts, note)?;
        }
        PersonDecision::Retry => retry(&mut draft, job)?,
        PersonDecision::Reject => draft.reject()?,
    }
    Ok(draft.done())
}

/// The gates that had failed on what a person approves.
fn overridden_gates(task: &Task, escalation: &str, decision: &PersonDecision) -> Vec<String> {
    let about = task.escalations.iter().find(|e| e.id == escalation && *decision == PersonDecision::Approve);
    let attempt = about.and_then(|about| task.phase(&about.phase)?.attempt());
    attempt.into_iter().flat_map(Attempt::failed_gates).map(str::to_owned).collect()
}

fn approve(draft: &mut Draft<'_>, by: &str) -> Result<(), Refusal> {
    has_begun(draft)?;
    let attempt = draft.attempt()?;
    if attempt.change.as_ref().is_some_and(|c| c.unfinished) {
        // No gate has run on it.
        return Err(Refusal::NotAllowed(
            "the run that left the change had not ended: `retry` lets the agent go on from it, or refile or reject"
                .to_owned(),
        ));
    }
    let nothing = attempt.change.as_ref().is_none_or(|c| c.patch_id.is_empty());
    if nothing || attempt.gates.iter().any(|g| g.name == gate::EMPTY_DIFF && !g.passed) {
        return Err(Refusal::NotAllowed(
            "there is no change to approve: the attempt left none; refile, retry or reject instead".to_owned(),
        ));
    }
    let attempt = draft.attempt_mut()?;
    attempt.outcome = None;
    attempt.finished_at = None;
    attempt.forgiven.land_failures = attempt.land_failures.len();
    draft.approve(Actor::Person(by.to_owned()))
}

fn refile(
    draft: &mut Draft<'_>,
    by: &str,
    required_change: &str,
    attempts: u32,
    note: Option<&str>,
) -> Result<(), Refusal> {
    let (required_change, rest) = crate::text::imperative(required_change);
    if required_change.is_empty() {
        return Err(Refusal::NotAllowed(
            "the required change is empty: say in one imperative sentence what the next attempt must do, such as \
             \"Return an empty list where there is no input\""
                .to_owned(),
        ));
    }
    if attempts == 0 {
        return Err(Refusal::NotAllowed("a refile needs at least one more attempt".to_owned()));
    }
    let critique = [rest.as_str(), note.unwrap_or_default()].join("\n\n").trim().to_owned();
    let rejection = Rejection { cause: Cause::Person, by: by.to_owned(), required_change, critique };
    has_begun(draft)?;
    let attempt = draft.attempt()?;
    let outcome = attempt.outcome.unwrap_or(AttemptOutcome::Refiled);
    let was_rejected = attempt.rejection.is_some();
    if !was_rejected {
        draft.close_attempt(outcome, Some(rejection.clone()))?;
    }
    grant(draft, attempts);
    renew_budget(draft);
    draft.count("refiles_total", &[Cause::Person.as_str()]);
    draft.start_attempt();
    if was_rejected {
        // Why the attempt before was rejected stays in the record; the person's words lead all the same.
        draft.attempt_mut()?.led_by = Some(rejection);
    }
    Ok(())
}

/// The same job again. Where the job was a coder's whose attempt is over, the same rejection leads one more attempt.
fn retry(draft: &mut Draft<'_>, job: Option<Job>) -> Result<(), Refusal> {
    renew_budget(draft);
    if draft.phase().state == PhaseState::Waiting {
        // It was parked before its round began, and may have to wait again for a phase that is being redone.
        draft.start_ready_phases();
        return Ok(());
    }
    let is_over = draft.attempt().is_ok_and(|a| a.rejection.is_some());
    match job {
        Some(Job::Code { .. }) if is_over => {
            grant(draft, 1);
            draft.start_attempt();
        }
        Some(job) => {
            let attempt = draft.attempt_mut()?;
            attempt.outcome = None;
            attempt.finished_at = None;
            attempt.rejection = None;
            attempt.forgiven = Forgiven {
                reviews: attempt.reviews.len(),
                agent_failures: attempt.agent_failures.len(),
                land_failures: attempt.land_failures.len(),
            };
            draft.enqueue(job, 0);
        }
        None => return Err(Refusal::NotAllowed("there is no job to retry; refile or reject instead".to_owned())),
    }
    Ok(())
}

/// Holds that the phase is in an attempt; one that was parked before its round began has only those of earlier rounds.
fn has_begun(draft: &Draft<'_>) -> Result<(), Refusal> {
    if draft.phase().state == PhaseState::Waiting {
        return Err(Refusal::NotAllowed("the phase has not begun; retry or reject instead".to_owned()));
    }
    Ok(())
}

/// Lets the phase have `more` attempts after the current one.
fn grant(draft: &mut Draft<'_>, more: u32) {
    let missing = draft.phase().attempt_number().saturating_add(more).saturating_sub(draft.cap());
    draft.phase_mut().granted = draft.phase().granted.saturating_add(missing);
}

/// What was spent so far no longer counts against the budget.
fn renew_budget(draft: &mut Draft<'_>) {
    draft.task.spent_before_budget = draft.task.spent;
}

/// A person called the task off.
pub(super) fn cancelled(mut draft: Draft<'_>, by: &str) -> Result<Transition, Refusal> {
    if draft.task.state.is_final() {
        let why = format!("task {} is {} already", draft.task.id, draft.task.state);
        return Err(Refusal::NotAllowed(why));
    }
    let by = &cut(&plain_line(by), MAX_NAME);
    // It lands when all other phases are accepted. A pull request may be merged already, too: whoever lands closes it and sees.
    // Who says it twice does not want to wait.
    let lands = |p: &&Phase| p.job == Some(Job::Land) || p.waiting_pull_request().is_some();
    if let Some(phase) = draft.task.phases.iter().find(lands).map(|p| p.name.clone()) {
        draft.turn_to(&phase);
        if !landing::is_called_off(&draft) {
            landing::call_off(&mut draft, by);
            return Ok(draft.done());
        }
    }
    draft.cancel();
    draft.notify(What::Decided, format!("cancelled by {by}"));
    Ok(draft.done())
}
