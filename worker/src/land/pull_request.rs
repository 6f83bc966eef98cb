//! The strategy `pull_request`: an approved change is proposed on the forge. People merge it there, or a coordinator does
//! where the fleet is told to; until then the task waits without holding a worker.
//!
//! The branch has one name for all attempts, so that a new attempt updates the pull request. Everything here may be done
//! again: the branch is found at its commit, the pull request by its branch, a comment by its marker, a landing by the
//! trailer or by the forge's word.

use refile_config::Merging;
use refile_core::event::News;
use refile_core::failure::{Failure, FailureKind};
use refile_core::task::PullRequest;
use refile_core::{Outcome, Phase};
use refile_forge::{
    Forge, ForgeError, Forges, Proposal, State, Thread, Verdict, comment_once, set_status, tell_verdicts, text,
};

use super::fit::Fit;
use super::{LandJob, Leases};
use crate::code::git;
use crate::git::{Expected, GitError, Mirror, Push, names};

/// Proposes an approved change on its forge. `leases` knows the one job.
pub async fn propose(job: &LandJob<'_>, forges: &Forges, merging: Merging, leases: &dyn Leases) -> Outcome {
    proposed(job, forges, merging, leases).await.unwrap_or_else(|failure| Outcome::LandingFailed { failure })
}

async fn proposed(
    job: &LandJob<'_>,
    forges: &Forges,
    merging: Merging,
    leases: &dyn Leases,
) -> Result<Outcome, Failure> {
    let LandJob { site, approval, .. } = *job;
    let task = site.task;
    let mirror = site.mirror().await.map_err(git)?;
    let base = mirror.fetch(&task.base).await.map_err(git)?;
    if let Some(commit) = job.landed_before(&mirror, &base).await.map_err(git)? {
        job.tidy(&mirror).await;
        return Ok(Outcome::Landed { commit });
    }
    let forge = forges.of(&task.repository)?;
    let phase = task.phase(site.phase).ok_or_else(|| failure("the task has no such phase"))?;
    let attempt = phase.attempt().ok_or_else(|| failure("the phase has no attempt"))?;
    let branch = format!("{}pull-request", names::attempt_branches(&task.id));
    let mut found = there(forge.as_ref(), phase, &branch).await?;
    if let (Some(by), Some(open)) = (&approval.called_off, found.as_ref().filter(|found| is_open(found))) {
        found = Some(close(job, forge.as_ref(), open, by).await?);
    }
    // It was let through once, and may have to be taken back.
    let is_shown = found.as_ref().is_some_and(|found| is_open(found) && found.head == approval.head);
    if let Some((pull_request, news)) = found.and_then(|found| ended(found, phase, &branch)) {
        job.tidy(&mirror).await;
        return Ok(Outcome::PullRequestEnded { pull_request, news });
    }
    if approval.called_off.is_some() {
        job.tidy(&mirror).await;
        return Ok(Outcome::CalledOff);
    }
    if is_shown && base != job.change.base_commit {
        // Whoever put the job into the queue may have said so, and a person has not.
        require(leases).await?;
        say(job, forge.as_ref(), &approval.head, Verdict::Pending, &text::status_by_base(&task.base)).await;
    }
    let outcome = match job.check_approved(&mirror, &base).await? {
        None => misfit(job, &mirror, &base).await?,
        found => found,
    };
    if let Some(outcome) = outcome {
        if let Some((verdict, words)) = text::status_by_landing(&outcome, &task.base).filter(|_| is_shown) {
            require(leases).await?;
            say(job, forge.as_ref(), &approval.head, verdict, &words).await;
        }
        return Ok(outcome);
    }
    // The gates take their time: the job may be another worker's by now, or called off.
    require(leases).await?;
    publish(job, &mirror, phase, &branch).await?;

    let issue = task.key.as_deref().and_then(issue_of);
    let proposal = Proposal {
        branch: branch.clone(),
        head: approval.head.clone(),
        base: task.base.clone(),
        title: text::title(task),
        body: text::body(task, approval, attempt, issue),
    };
    require(leases).await?;
    let pull_request = refile_forge::propose(forge.as_ref(), &proposal).await?;
    say(job, forge.as_ref(), &approval.head, Verdict::Success, &text::status(approval)).await;
    tell(job, forge.as_ref(), pull_request.number, phase).await?;
    let open = PullRequest {
        number: pull_request.number,
        url: pull_request.url,
        branch,
        attempt: approval.attempt,
        head: approval.head.clone(),
        waits: true,
        base_commit: base,
        auto: merging == Merging::Auto,
        ..PullRequest::default()
    };
    Ok(Outcome::PullRequestOpen { pull_request: open })
}

async fn require(leases: &dyn Leases) -> Result<(), Failure> {
    match leases.held(&[0]).await.as_slice() {
        [true] => Ok(()),
        _ => Err(Failure::new(FailureKind::Crash, "the job is no longer this worker's")),
    }
}

fn failure(detail: &str) -> Failure {
    Failure::new(FailureKind::Repository, detail)
}

/// The number of the issue that a task came from: its key is `forge:<repository>#<number>`.
fn issue_of(key: &str) -> Option<u64> {
    key.strip_prefix("forge:")?.rsplit_once('#')?.1.parse().ok()
}

/// The pull request as it is now: the one that the record knows, or one that a worker opened that nobody heard of again.
async fn there(
    forge: &dyn Forge,
    phase: &Phase,
    branch: &str,
) -> Result<Option<refile_forge::PullRequest>, ForgeError> {
    if let Some(known) = &phase.pull_request {
        let found = forge.pull_request(known.number).await?;
        // Where no person closed it, there may be another one since.
        if !matches!(found.state, State::Closed { by: None }) {
            return Ok(Some(found));
        }
    }
    forge.find(branch).await
}

fn is_open(found: &refile_forge::PullRequest) -> bool {
    matches!(found.state, State::Open { .. })
}

/// Closes the pull request of a task that was called off, and gives it as it is then: the forge may have merged it a moment
/// before, and afterwards it cannot.
async fn close(
    job: &LandJob<'_>,
    forge: &dyn Forge,
    open: &refile_forge::PullRequest,
    by: &str,
) -> Result<refile_forge::PullRequest, Failure> {
    let (task, number) = (job.site.task, open.number);
    say(job, forge, &open.head, Verdict::Failure, &text::status_by_call(by)).await;
    let on = Thread::PullRequest(number);
    comment_once(forge, on, &text::called_off_marker(task), &text::called_off(task, by)).await?;
    let closed = forge.close(on).await;
    let now = forge.pull_request(number).await?;
    if is_open(&now) {
        closed?;
        return Err(failure("the forge was told to close the pull request and has not yet"));
    }
    Ok(now)
}

/// What people did with it, where that ends the landing.
fn ended(found: refile_forge::PullRequest, phase: &Phase, branch: &str) -> Option<(PullRequest, News)> {
    let news = match found.state {
        State::Merged { commit, by } => News::Merged { commit, head: found.head.clone(), by },
        State::Closed { by: Some(by) } => News::Closed { by: Some(by) },
        State::Closed { by: None } | State::Open { .. } => return None,
    };
    let shows = |attempt: &&refile_core::task::Attempt| attempt.change.as_ref().is_some_and(|c| c.head == found.head);
    let attempt = phase.attempts.iter().rev().find(shows).map_or(phase.attempt_number(), |attempt| attempt.number);
    let (number, url, head) = (found.number, found.url, found.head);
    let branch = branch.to_owned();
    Some((PullRequest { number, url, branch, attempt, head, ..PullRequest::default() }, news))
}

/// Why the change does not go onto the base as it is now, if it does not.
async fn misfit(job: &LandJob<'_>, mirror: &Mirror, base: &str) -> Result<Option<Outcome>, Failure> {
    match job.fit(mirror, base).await.map_err(git)? {
        Fit::Same(tree) => {
            let failed = job.failed_gate(mirror, base, &tree).await?;
            Ok(failed.map(|gate| Outcome::LandingRejected { gate }))
        }
        other => job.misfit(mirror, base, other).await.map(Some),
    }
}

/// Puts the pull request's branch at what was approved. Commits that somebody else pushed to it are never overwritten.
async fn publish(job: &LandJob<'_>, mirror: &Mirror, phase: &Phase, branch: &str) -> Result<(), Failure> {
    let head = &job.approval.head;
    let there = match mirror.fetch(branch).await {
        Ok(commit) => Some(commit),
        Err(GitError::NoBranch { .. }) => None,
        Err(error) => return Err(git(error)),
    };
    if there.as_ref() == Some(head) {
        return Ok(());
    }
    let shown = phase.pull_request.as_ref().map(|known| &known.head);
    let attempts = job.site.task.attempts().filter_map(|(_, attempt)| attempt.change.as_ref()).map(|c| &c.head);
    if let Some(there) = there.as_ref().filter(|there| !attempts.chain(shown).any(|ours| ours == *there)) {
        let detail = format!(
            "`{branch}` is at {there}, which the fleet did not push: somebody added to it; merge the pull request or bring \
             those commits to `{}`, and remove the branch",
            job.site.task.base
        );
        return Err(failure(&detail));
    }
    let expected = there.as_deref().map_or(Expected::Absent, Expected::At);
    match mirror.push(head, branch, expected).await.map_err(git)? {
        Push::Done => Ok(()),
        Push::Moved => Err(failure(&format!("`{branch}` moved while it was brought up to date"))),
    }
}

/// Says on a commit how the fleet stands to it. Neither what the gates said nor the proposal must be lost for that.
async fn say(job: &LandJob<'_>, forge: &dyn Forge, commit: &str, verdict: Verdict, words: &str) {
    if let Err(error) = set_status(forge, commit, verdict, words).await {
        tracing::warn!(task = %job.site.task.id, commit, %error, "the commit's status could not be set");
    }
}

/// Tells the verdicts below a pull request. A token that may not do this does not hold up the change.
async fn tell(job: &LandJob<'_>, forge: &dyn Forge, number: u64, phase: &Phase) -> Result<(), Failure> {
    match tell_verdicts(forge, number, job.site.task, phase).await {
        Err(error)
            if matches!(error.kind, FailureKind::Auth | FailureKind::Repository) && error.status != Some(401) =>
        {
            tracing::warn!(task = %job.site.task.id, %error, "the verdicts could not be told");
            Ok(())
        }
        told => Ok(told?),
    }
}
