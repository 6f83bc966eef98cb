//! What reviewers report.

use super::coding::on_exhausted;
use super::draft::Draft;
use super::{Refusal, Transition, What};
use crate::event::Actor;
use crate::failure::{Behaviour, Failure, FailureKind};
use crate::task::{AttemptOutcome, Cause, EscalationReason, Job, PhaseState, Queue, Rejection, Review};
use crate::verdict::{Verdict, VerdictKind};

/// A review ended, with a verdict or without.
pub(super) fn reviewed(draft: Draft<'_>, review: &Review) -> Result<Transition, Refusal> {
    let mut draft = draft.with_job_in(Queue::Review)?;
    let head = draft.attempt()?.change.as_ref().map(|c| c.head.clone()).unwrap_or_default();
    let mut review = Review { at: draft.now, ..review.clone() };
    for member in &mut review.members {
        member.at = draft.now;
        member.verdict.conf = finite(member.verdict.conf);
    }
    if let Some(why) = unusable(&draft, &review, &head) {
        review.failure = Some(Failure::new(FailureKind::Malformed, why));
    }
    review.verdict.conf = finite(review.verdict.conf);
    if review.failure.is_none() && review.verdict.verdict == VerdictKind::Retry {
        review.failure = Some(Failure::new(FailureKind::Malformed, "the reviewer asked to be asked again"));
    }
    draft.spend(review.usage);
    draft.attempt_mut()?.reviews.push(review.clone());
    for member in &review.members {
        // How it did is worth as much as that of one that is asked on its own.
        match &member.failure {
            Some(failure) => draft.count("review_failures_total", &[&member.reviewer, failure.kind.as_str()]),
            None => draft.count("reviews_total", &[&member.reviewer, member.verdict.verdict.as_str()]),
        }
    }
    if let Some(failure) = review.failure.clone() {
        return failed(draft, &review, &failure, &head);
    }
    let Verdict { verdict, required_change, critique, conf, phase } = review.verdict;
    draft.count("reviews_total", &[&review.reviewer, verdict.as_str()]);
    let words = if required_change.is_empty() { &critique } else { &required_change };
    let said = format!("{}: {verdict} (conf {conf:.2}) {}", review.reviewer, crate::text::cut(words, 300));
    draft.notify(What::Reviewed, said.trim_end());
    let rejection = Rejection { cause: Cause::Review, by: review.reviewer.clone(), required_change, critique };
    match verdict {
        VerdictKind::Escalate => draft.escalate(EscalationReason::ReviewerAsked, rejection.critique),
        _ if conf <= draft.policy.threshold(&rejection.by) => low_confidence(&mut draft, &head)?,
        VerdictKind::Approved => draft.approve(Actor::Reviewer(review.reviewer))?,
        VerdictKind::NeedsChanges => {
            let on_exhausted = on_exhausted(&draft);
            draft.refile(AttemptOutcome::NeedsChanges, rejection, on_exhausted)?;
        }
        VerdictKind::Reject => {
            draft.close_attempt(AttemptOutcome::Rejected, Some(rejection))?;
            draft.reject()?;
        }
        VerdictKind::RetryPredecessor => send_back(&mut draft, &phase.unwrap_or_default(), rejection)?,
        // A `retry` was made a failure above.
        VerdictKind::Retry => {}
    }
    Ok(draft.done())
}

/// A confidence that a record can hold: one must be equal to itself and survive JSON, which has no NaN.
fn finite(conf: f64) -> f64 {
    if (0.0..=1.0).contains(&conf) { conf } else { 0.0 }
}

/// Why a verdict cannot be taken as one.
fn unusable(draft: &Draft<'_>, review: &Review, head: &str) -> Option<String> {
    if review.failure.is_some() {
        return None;
    }
    if review.head != head {
        return Some(format!("the review is about {}, and the change is {head}", review.head));
    }
    let verdict = &review.verdict;
    if matches!(verdict.verdict, VerdictKind::Escalate | VerdictKind::Retry) {
        return None;
    }
    // Readers hold to this as well; a worker of another version may not.
    if !(0.0..=1.0).contains(&verdict.conf) {
        return Some(format!("`conf` is {}, which is not from 0.0 to 1.0", verdict.conf));
    }
    let demands = matches!(verdict.verdict, VerdictKind::NeedsChanges | VerdictKind::RetryPredecessor);
    if demands && verdict.required_change.trim().is_empty() {
        return Some(format!("`{}` needs a `required_change`", verdict.verdict));
    }
    if verdict.verdict != VerdictKind::RetryPredecessor || verdict.conf <= draft.policy.threshold(&review.reviewer) {
        return None;
    }
    let name = review.verdict.phase.as_deref().unwrap_or_default();
    let phase = draft.phase();
    if !phase.after.iter().any(|p| p == name) {
        return Some(format!("`{name}` is not a direct predecessor of `{}`", phase.name));
    }
    if draft.task.phase(name).is_none_or(|p| p.state != PhaseState::Accepted) {
        return Some(format!("`{name}` is already being done again"));
    }
    let most = phase.limits.max_predecessor_retries.unwrap_or(draft.policy.max_predecessor_retries);
    (times_sent_back(draft, name) >= most).then(|| format!("`{name}` was sent back {most} times already"))
}

/// The review failed, or gave no judgement. Not charged.
fn failed(mut draft: Draft<'_>, review: &Review, failure: &Failure, head: &str) -> Result<Transition, Refusal> {
    draft.count("review_failures_total", &[&review.reviewer, failure.kind.as_str()]);
    draft.notify(What::ReviewFailed, format!("{}: {failure}", review.reviewer));
    let tries = on_this_head(&draft, head)?.filter(|r| r.failure.is_some()).count();
    if tries >= draft.policy.max_review_failures as usize {
        draft.escalate(EscalationReason::ReviewerUnavailable, failure.to_string());
        return Ok(draft.done());
    }
    // Where the same reviewer is asked again, the wait heeds what the provider asked for. Pausing the provider and stopping
    // the pool are the worker's part; the re-ask was done within the review.
    if failure.kind.behaviour() == Behaviour::OtherReviewer || draft.policy.continues_without(&review.reviewer) {
        let asked: Vec<String> = on_this_head(&draft, head)?.map(|r| r.reviewer.clone()).collect();
        let asked: Vec<&str> = asked.iter().map(String::as_str).collect();
        let next = draft.next_review(&asked)?;
        draft.phase_mut().job = Some(next);
    }
    draft.requeue(tries, failure);
    Ok(draft.done())
}

/// The opinion was given with too little confidence to count: another reviewer is asked, and at last a person.
fn low_confidence(draft: &mut Draft<'_>, head: &str) -> Result<(), Refusal> {
    let (asked, opinions): (Vec<String>, Vec<String>) = on_this_head(draft, head)?
        .filter(|r| r.failure.is_none())
        .map(|r| {
            let v = &r.verdict;
            let said =
                format!("{}: {} (conf {:.2}) {} {}", r.reviewer, v.verdict, v.conf, v.required_change, v.critique);
            (r.reviewer.clone(), said.trim_end().to_owned())
        })
        .unzip();
    if opinions.len() >= draft.policy.max_reviews as usize {
        draft.escalate(EscalationReason::LowConfidence, opinions.join("\n"));
    } else {
        let asked: Vec<&str> = asked.iter().map(String::as_str).collect();
        let review = draft.next_review(&asked)?;
        if let Job::Review { reviewer } = &review {
            draft.notify(What::Requeued, format!("to {reviewer}: the confidence was too low"));
        }
        draft.enqueue(review, 0);
    }
    Ok(())
}

/// The reviews of the change as it is now that still count.
fn on_this_head<'d>(draft: &'d Draft<'_>, head: &'d str) -> Result<impl Iterator<Item = &'d Review>, Refusal> {
    let attempt = draft.attempt()?;
    let counted = attempt.reviews.get(attempt.forgiven.reviews..).unwrap_or_default();
    // A failed review may not know what it was about; it is about the change at hand.
    Ok(counted.iter().filter(move |r| r.failure.is_some() || r.head == head))
}

fn times_sent_back(draft: &Draft<'_>, name: &str) -> u32 {
    draft.phase().sent_back.iter().find(|(p, _)| p == name).map_or(0, |(_, n)| *n)
}

/// The predecessor is done again, led by the feedback; then this phase from attempt 1. [`unusable`] let only a direct,
/// accepted predecessor with budget through.
fn send_back(draft: &mut Draft<'_>, predecessor: &str, rejection: Rejection) -> Result<(), Refusal> {
    let times = times_sent_back(draft, predecessor) + 1;
    draft.close_attempt(AttemptOutcome::SentBack, None)?;
    let phase = draft.phase_mut();
    phase.sent_back.retain(|(name, _)| name != predecessor);
    phase.sent_back.push((predecessor.to_owned(), times));
    phase.state = PhaseState::Waiting;
    phase.job = None;
    let successor = phase.name.clone();
    draft.turn_to(predecessor);
    draft.count("refiles_total", &[Cause::Successor.as_str()]);
    draft.notify(What::SentBack, format!("by {successor}: {}", rejection.required_change));
    let number = draft.attempt()?.number;
    draft.phase_mut().granted = number;
    // No longer accepted, even where a spent budget parks it before its next attempt.
    draft.phase_mut().state = PhaseState::Coding;
    draft.phase_mut().approval = None;
    draft.attempt_mut()?.rejection = Some(Rejection { cause: Cause::Successor, by: successor, ..rejection });
    draft.start_attempt();
    Ok(())
}
