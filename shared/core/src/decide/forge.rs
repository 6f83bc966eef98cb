//! What people decide on a pull request: they merge it, close it, or ask for changes.
//!
//! A phase whose pull request is open has no job and holds no worker; it waits like one with an escalation. What people do
//! there counts while the phase waits, and a merge or a closing also while it works on the next attempt: it is a fact then.

use super::draft::Draft;
use super::{Refusal, Transition, What, landing};
use crate::event::{Actor, HumanReview, News};
use crate::failure::{Failure, FailureKind};
use crate::policy::OnExhausted;
use crate::task::{
    Approval, AttemptOutcome, Cause, EscalationReason, HUMAN, Job, Phase, PhaseState, PullRequest, Queue, Rejection,
    Review,
};
use crate::text::{cut, imperative, plain_line};
use crate::verdict::{Verdict, VerdictKind};

/// The longest name of a person, in characters.
const MAX_NAME: usize = 100;

/// How often the base may move under a change that the fleet merges before that counts as a landing that did not come
/// about; as often as under one that is pushed.
const MOVES: u32 = 10;
/// The longest words of the forge, in characters.
const MAX_WHY: usize = 500;

/// Whose word it is, as records tell it.
fn human(login: &str) -> String {
    format!("{HUMAN}{}", cut(&plain_line(login), MAX_NAME))
}

/// The change is proposed; people on the forge decide.
pub(super) fn opened(draft: Draft<'_>, pull_request: &PullRequest) -> Result<Transition, Refusal> {
    let mut draft = draft.with_job_in(Queue::Land)?;
    if landing::is_called_off(&draft) {
        return Ok(landing::cancelled(draft));
    }
    let attempt = draft.attempt()?.number;
    let phase = draft.phase_mut();
    let known = known(phase, pull_request.number);
    let moves = if known.attempt == attempt { known.moves } else { 0 };
    let reviews = known.reviews;
    phase.pull_request = Some(PullRequest { attempt, waits: true, moves, reviews, ..pull_request.clone() });
    phase.job = None;
    draft.notify(What::PullRequest, format!("open: {}", pull_request.url));
    Ok(draft.done())
}

/// What was known of a pull request, with nothing where it was not.
fn known(phase: &mut Phase, number: u64) -> PullRequest {
    phase.pull_request.take().filter(|known| known.number == number).unwrap_or_default()
}

/// A landing found that people had decided on the pull request already.
pub(super) fn ended(draft: Draft<'_>, pull_request: &PullRequest, news: &News) -> Result<Transition, Refusal> {
    let mut draft = draft.with_job_in(Queue::Land)?;
    let phase = draft.phase_mut();
    // The outcome ended it.
    phase.job = None;
    let reviews = known(phase, pull_request.number).reviews;
    phase.pull_request = Some(PullRequest { waits: false, reviews, ..pull_request.clone() });
    match news {
        News::Merged { commit, head, by } => merged(draft, pull_request, commit, head, by.as_deref()),
        News::Closed { by: Some(by) } => closed_by(draft, pull_request, by),
        _ => Err(Refusal::Stale("people have not decided on the pull request".to_owned())),
    }
}

/// Something happened to a pull request.
pub(super) fn news(mut draft: Draft<'_>, phase: &str, number: u64, news: &News) -> Result<Transition, Refusal> {
    if draft.task.phase(phase).is_none() {
        return Err(Refusal::Stale(format!("the task has no phase `{phase}`")));
    }
    draft.turn_to(phase);
    let phase = draft.phase();
    let Some(pull_request) = phase.pull_request.clone().filter(|p| p.number == number) else {
        return Err(Refusal::Stale(format!("the phase `{}` has no pull request {number}", phase.name)));
    };
    if !matches!(phase.state, PhaseState::Coding | PhaseState::Reviewing | PhaseState::Landing) {
        // One that waits for a phase before it finds the pull request as it is when its own turn has come.
        return Err(Refusal::Stale(format!("the phase `{}` is {}", phase.name, phase.state)));
    }
    match news {
        News::Merged { commit, head, by } => merged(draft, &pull_request, commit, head, by.as_deref()),
        News::Closed { by: Some(by) } => closed_by(draft, &pull_request, by),
        _ if !pull_request.waits => Err(Refusal::Stale("the phase does not wait for the forge".to_owned())),
        News::Closed { by: None } => Ok(closed(draft, &pull_request)),
        News::Conflicts => conflicts(draft, &pull_request),
        News::BaseMoved { base } => base_moved(draft, &pull_request, base),
        News::NotYet { why } => not_yet(draft, &pull_request, why),
        News::ChangesRequested { reviews } => changes_requested(draft, &pull_request, reviews),
    }
}

/// The change is on the base branch, by a person's hand: of whichever attempt it was.
fn merged(
    mut draft: Draft<'_>,
    pull_request: &PullRequest,
    commit: &str,
    head: &str,
    by: Option<&str>,
) -> Result<Transition, Refusal> {
    let by = by.map(human);
    let whose = by.as_ref().map(|by| format!(" by {by}")).unwrap_or_default();
    draft.notify(What::PullRequest, format!("merged{whose}: {}", pull_request.url));
    if landing::is_called_off(&draft) {
        draft.notify(What::Decided, landing::TOO_LATE);
    }
    draft.drop_job();
    let approved = draft.phase_mut().approval.take().filter(|approval| approval.head == head);
    let landed = Some(commit.to_owned());
    let approval = approved.unwrap_or_else(|| {
        // Not what was approved here: an earlier attempt's change, or one that a person added to. It is on the base by
        // their word.
        let shown = draft.phase().attempts.iter().rev().filter_map(|a| a.change.as_ref()).find(|c| c.head == head);
        Approval {
            by: Actor::Person(by.unwrap_or_else(|| human("unknown"))),
            attempt: pull_request.attempt,
            head: head.to_owned(),
            patch_id: shown.map(|change| change.patch_id.clone()).unwrap_or_default(),
            overrides_gates: false,
            landed: None,
            called_off: None,
        }
    });
    let is_this_attempts = draft.attempt()?.change.as_ref().is_some_and(|change| change.head == approval.head);
    draft.phase_mut().approval = Some(Approval { landed, ..approval });
    let before = draft.attempt()?.outcome;
    draft.accept()?;
    if !is_this_attempts {
        draft.close_attempt(before.unwrap_or(AttemptOutcome::Cancelled), None)?;
    }
    Ok(draft.done())
}

/// A person closed it: that is their no, as `reject` is.
fn closed_by(mut draft: Draft<'_>, pull_request: &PullRequest, by: &str) -> Result<Transition, Refusal> {
    let by = human(by);
    draft.notify(What::PullRequest, format!("closed by {by}: {}", pull_request.url));
    draft.drop_job();
    if landing::is_called_off(&draft) {
        return Ok(landing::cancelled(draft));
    }
    let critique = format!("{by} closed the pull request {} without merging it", pull_request.url);
    let rejection = Rejection { cause: Cause::Person, by, required_change: String::new(), critique };
    if draft.attempt()?.outcome.is_none() {
        draft.close_attempt(AttemptOutcome::Rejected, Some(rejection))?;
    }
    draft.reject()?;
    Ok(draft.done())
}

/// It is closed, and no person is known who did it: a branch that was removed, a program that tidies up. Nobody has decided.
fn closed(mut draft: Draft<'_>, pull_request: &PullRequest) -> Transition {
    draft.notify(What::PullRequest, format!("closed: {}", pull_request.url));
    // `retry` opens another one.
    draft.phase_mut().job = Some(Job::Land);
    let detail = format!(
        "{} was closed without a merge, and the forge names no person who did it; `retry` opens it anew",
        pull_request.url
    );
    draft.escalate(EscalationReason::LandingFailed, detail);
    draft.done()
}

/// The landing looks at it again: it brings the change onto the base, or finds the conflict that the next attempt must
/// resolve. Bounded like every landing that does not come about, since a forge may say so for ever.
fn conflicts(mut draft: Draft<'_>, pull_request: &PullRequest) -> Result<Transition, Refusal> {
    let why = format!("the forge says that {} conflicts with its base branch", pull_request.url);
    draft.notify(What::PullRequest, why.clone());
    look_again(draft, why)
}

/// The fleet merges nothing that the gates have not seen on this base. A base that moves faster than the gates run is a
/// landing that does not come about: after some of those a person is asked.
fn base_moved(mut draft: Draft<'_>, pull_request: &PullRequest, base: &str) -> Result<Transition, Refusal> {
    if pull_request.base_commit == base {
        return Err(Refusal::Stale("the base is where it was".to_owned()));
    }
    let moves = pull_request.moves.saturating_add(1);
    if let Some(kept) = draft.phase_mut().pull_request.as_mut() {
        kept.moves = moves;
    }
    draft.notify(What::PullRequest, format!("its base moved to {}: looked at again", cut(base, 12)));
    if moves.is_multiple_of(MOVES) {
        let branch = draft.task.base.clone();
        return look_again(draft, format!("`{branch}` moved {moves} times while {} waited", pull_request.url));
    }
    draft.enqueue(Job::Land, 0);
    Ok(draft.done())
}

/// The forge does not let the fleet merge; what it says is for people to read.
fn not_yet(mut draft: Draft<'_>, pull_request: &PullRequest, why: &str) -> Result<Transition, Refusal> {
    let why = cut(&plain_line(why), MAX_WHY);
    if pull_request.not_yet.as_ref() == Some(&why) {
        return Err(Refusal::Stale("the forge says what it said before".to_owned()));
    }
    // Once: words such as `2 of 5 checks` change with every look.
    if pull_request.not_yet.is_none() {
        draft.notify(What::PullRequest, format!("the forge does not merge {} yet: {why}", pull_request.url));
    }
    if let Some(kept) = draft.phase_mut().pull_request.as_mut() {
        kept.not_yet = Some(why);
    }
    Ok(draft.done())
}

/// Lands it again, unless that has not come about too often.
fn look_again(mut draft: Draft<'_>, why: String) -> Result<Transition, Refusal> {
    let failure = Failure::new(FailureKind::Repository, &why);
    let tries = landing::note_failure(&mut draft, &failure)?;
    if tries >= draft.policy.max_land_failures as usize {
        draft.phase_mut().job = Some(Job::Land);
        draft.escalate(EscalationReason::LandingFailed, why);
    } else {
        draft.enqueue(Job::Land, 0);
    }
    Ok(draft.done())
}

/// A person's words lead the next attempt, like any reviewer's.
fn changes_requested(
    mut draft: Draft<'_>,
    pull_request: &PullRequest,
    reviews: &[HumanReview],
) -> Result<Transition, Refusal> {
    let fresh: Vec<&HumanReview> = reviews.iter().filter(|r| !pull_request.reviews.contains(&r.id)).collect();
    let Some(first) = fresh.first() else {
        return Err(Refusal::Stale("these reviews have counted already".to_owned()));
    };
    let (by, now) = (human(&first.by), draft.now);
    let verdict = verdict(&fresh);
    let (required_change, critique) = (verdict.required_change.clone(), verdict.critique.clone());
    draft.notify(What::Reviewed, format!("{by}: needs_changes {}", cut(&required_change, 300)));
    // People's names are many: as a label they are one.
    draft.count("reviews_total", &["human", VerdictKind::NeedsChanges.as_str()]);
    let review = Review { at: now, ..Review::new(by.clone(), first.head.clone(), verdict) };
    draft.attempt_mut()?.reviews.push(review);
    if let Some(kept) = draft.phase_mut().pull_request.as_mut() {
        kept.reviews.extend(fresh.iter().map(|review| review.id.clone()));
    }
    // Where it was the last attempt, `retry` proposes the same change again.
    draft.phase_mut().job = Some(Job::Land);
    let rejection = Rejection { cause: Cause::Review, by, required_change, critique };
    // A person's no is never made a yes by the policy, as a failed gate is not.
    let on_exhausted = match super::coding::on_exhausted(&draft) {
        OnExhausted::Reject => OnExhausted::Reject,
        OnExhausted::Escalate | OnExhausted::Accept => OnExhausted::Escalate,
    };
    draft.refile(AttemptOutcome::NeedsChanges, rejection, on_exhausted)?;
    Ok(draft.done())
}

/// What several people said, as one verdict: the first one's demand leads, the rest is the critique.
fn verdict(reviews: &[&HumanReview]) -> Verdict {
    let (mut required_change, mut critique) = (String::new(), Vec::new());
    for (nth, review) in reviews.iter().enumerate() {
        let (demand, rest) = imperative(&review.words);
        if nth == 0 && !demand.is_empty() {
            required_change = demand;
            critique.push(rest);
        } else {
            critique.push(format!("{}: {}", human(&review.by), review.words.trim()));
        }
    }
    if required_change.is_empty() {
        let by = reviews.first().map(|review| cut(&plain_line(&review.by), MAX_NAME)).unwrap_or_default();
        required_change = format!("Make the changes that {by} requested on the pull request");
    }
    let critique = cut(critique.join("\n\n").trim(), Verdict::MAX_CRITIQUE);
    Verdict { verdict: VerdictKind::NeedsChanges, required_change, critique, conf: 1.0, phase: None }
}
