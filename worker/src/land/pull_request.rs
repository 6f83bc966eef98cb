//! The strategy `pull_request`: an approved change is proposed on the forge. People merge it there, or the fleet does where
//! it is told to; until then the task waits without holding a worker.
//!
//! The branch has one name for all attempts, so that a new attempt updates the pull request. Everything here may be done
//! again: the branch is found at its commit, the pull request by its branch, a comment by its marker, a landing by the
//! trailer or by the forge's word.

use refile_config::Merging;
use refile_core::failure::{Failure, FailureKind};
use refile_core::task::PullRequest;
use refile_core::{Outcome, Phase};
use refile_forge::{Forge, ForgeError, Forges, Merge, Proposal, State, Thread, Verdict, text};

use super::LandJob;
use super::fit::Fit;
use crate::code::git;
use crate::git::{Expected, GitError, Mirror, Push, names};

/// How many comments one landing adds.
const MAX_COMMENTS: usize = 30;

/// Proposes an approved change on its forge.
pub async fn propose(job: &LandJob<'_>, forges: &Forges, merging: Merging) -> Outcome {
    proposed(job, forges, merging).await.unwrap_or_else(|failure| Outcome::LandingFailed { failure })
}

async fn proposed(job: &LandJob<'_>, forges: &Forges, merging: Merging) -> Result<Outcome, Failure> {
    let LandJob { site, approval, .. } = *job;
    let task = site.task;
    let mirror = site.mirror().await.map_err(git)?;
    let base = mirror.fetch(&task.base).await.map_err(git)?;
    if let Some(commit) = job.landed_before(&mirror, &base).await.map_err(git)? {
        job.tidy(&mirror).await;
        return Ok(Outcome::Landed { commit });
    }
    let forge = forges.of(&task.repository)?;
    let phase = task.phase(site.phase);
    if let Some(commit) = merged_before(forge.as_ref(), phase).await? {
        job.tidy(&mirror).await;
        return Ok(Outcome::Landed { commit });
    }
    if approval.called_off.is_some() {
        return Ok(Outcome::CalledOff);
    }
    if let Some(outcome) = job.check_approved(&mirror, &base).await? {
        return Ok(outcome);
    }
    if let Some(outcome) = misfit(job, &mirror, &base).await? {
        return Ok(outcome);
    }
    let branch = format!("{}pull-request", names::attempt_branches(&task.id));
    publish(job, &mirror, phase, &branch).await?;

    let attempt = phase.and_then(Phase::attempt).ok_or_else(|| failure("the phase has no attempt"))?;
    let issue = task.key.as_deref().and_then(issue_of);
    let proposal = Proposal {
        branch: branch.clone(),
        base: task.base.clone(),
        title: text::title(task),
        body: text::body(task, approval, attempt, issue),
    };
    let pull_request = refile_forge::propose(forge.as_ref(), &proposal).await?;
    let said = forge.status(&approval.head, Verdict::Success, &text::status(approval)).await;
    optional(job, "the commit's status could not be set", said)?;
    let said = comment(job, forge.as_ref(), pull_request.number, phase).await;
    optional(job, "the verdicts could not be told", said)?;

    if merging == Merging::Auto {
        let message = text::message(task, approval);
        match forge.merge(pull_request.number, &approval.head, &message).await? {
            Merge::Done { commit } => {
                job.tidy(&mirror).await;
                return Ok(Outcome::Landed { commit });
            }
            Merge::NotYet { why } => {
                tracing::info!(task = %task.id, why, "the forge does not merge yet; a coordinator tries on");
            }
            Merge::Moved => return Err(failure("the pull request's branch moved while it was to be merged")),
        }
    }
    let open = PullRequest {
        number: pull_request.number,
        url: pull_request.url,
        branch,
        attempt: approval.attempt,
        head: approval.head.clone(),
        waits: true,
        reviews: Vec::new(),
    };
    Ok(Outcome::PullRequestOpen { pull_request: open })
}

fn failure(detail: &str) -> Failure {
    Failure::new(FailureKind::Repository, detail)
}

/// The number of the issue that a task came from: its key is `forge:<repository>#<number>`.
fn issue_of(key: &str) -> Option<u64> {
    key.strip_prefix("forge:")?.rsplit_once('#')?.1.parse().ok()
}

/// The commit of a pull request that people have merged since the record was written.
async fn merged_before(forge: &dyn Forge, phase: Option<&Phase>) -> Result<Option<String>, Failure> {
    let Some(known) = phase.and_then(|phase| phase.pull_request.as_ref()) else { return Ok(None) };
    match forge.pull_request(known.number).await?.state {
        State::Merged { commit, .. } => Ok(Some(commit)),
        State::Open { .. } | State::Closed { .. } => Ok(None),
    }
}

/// Why the change does not go onto the base as it is now, if it does not.
async fn misfit(job: &LandJob<'_>, mirror: &Mirror, base: &str) -> Result<Option<Outcome>, Failure> {
    if base == job.change.base_commit {
        return Ok(None);
    }
    match job.fit(mirror, base).await.map_err(git)? {
        Fit::Same(tree) => {
            let failed = job.failed_gate(mirror, base, &tree).await?;
            Ok(failed.map(|gate| Outcome::LandingRejected { gate }))
        }
        other => job.misfit(mirror, base, other).await.map(Some),
    }
}

/// Puts the pull request's branch at what was approved. Commits that somebody else pushed to it are never overwritten.
async fn publish(job: &LandJob<'_>, mirror: &Mirror, phase: Option<&Phase>, branch: &str) -> Result<(), Failure> {
    let head = &job.approval.head;
    let there = match mirror.fetch(branch).await {
        Ok(commit) => Some(commit),
        Err(GitError::NoBranch { .. }) => None,
        Err(error) => return Err(git(error)),
    };
    if there.as_ref() == Some(head) {
        return Ok(());
    }
    let shown = phase.and_then(|phase| phase.pull_request.as_ref()).map(|known| &known.head);
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

/// Tells each verdict below the pull request, once.
async fn comment(job: &LandJob<'_>, forge: &dyn Forge, number: u64, phase: Option<&Phase>) -> Result<(), ForgeError> {
    let on = Thread::PullRequest(number);
    let mut wanted = Vec::new();
    for (nth, attempt) in phase.iter().flat_map(|phase| phase.attempts.iter().enumerate()) {
        for (review, said) in attempt.reviews.iter().enumerate() {
            // What people said on the forge is there already.
            if said.failure.is_none() && !said.is_by_human() {
                let marker = text::review_marker(job.site.task, job.site.phase, nth as u32 + 1, review);
                wanted.push((marker, text::review_comment(attempt.number, said)));
            }
        }
    }
    if wanted.is_empty() {
        return Ok(());
    }
    let there = forge.comments(on).await?;
    wanted.retain(|(marker, _)| !there.iter().any(|comment| comment.contains(marker)));
    // The newest where there are too many.
    let skipped = wanted.len().saturating_sub(MAX_COMMENTS);
    for (marker, said) in wanted.into_iter().skip(skipped) {
        forge.comment(on, &format!("{marker}\n{said}")).await?;
    }
    Ok(())
}

/// A token that may not do this, or a commit that the forge does not know, does not hold up the change.
fn optional(job: &LandJob<'_>, what: &str, said: Result<(), ForgeError>) -> Result<(), Failure> {
    match said {
        Err(error)
            if matches!(error.kind, FailureKind::Auth | FailureKind::Repository) && error.status != Some(401) =>
        {
            tracing::warn!(task = %job.site.task.id, %error, "{what}");
            Ok(())
        }
        said => Ok(said?),
    }
}
