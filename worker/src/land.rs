//! A `land` job: an approved change becomes one commit on the base branch, at most once.
//!
//! Two things keep it at once. The push is a compare-and-swap on the base branch. And before every try the history is
//! searched for the task's trailer: a worker that crashed after its push, or that was believed dead and was not, has
//! left it there.

use refile_config::Gate;
use refile_core::Outcome;
use refile_core::failure::{Failure, FailureKind};
use refile_core::gate::GateReport;
use refile_core::task::{Approval, Change};

use crate::code::{describe, git, message, publish};
use crate::gates::{self, Gates};
use crate::git::{Expected, GitError, Mirror, Push, names};
use crate::workspace::Site;

/// How often a landing starts again since the base moved under it.
const ROUNDS: u32 = 10;

/// All that a landing needs.
#[derive(Debug, Clone, Copy)]
pub struct LandJob<'a> {
    /// Where it is done and what it is about.
    pub site: Site<'a>,
    /// What was approved.
    pub approval: &'a Approval,
    /// The attempt's change.
    pub change: &'a Change,
    /// The configured gates.
    pub gates: &'a [Gate],
}

/// Brings an approved change to the base branch.
pub async fn land(job: &LandJob<'_>) -> Outcome {
    let landed = async {
        let mirror = job.site.mirror().await.map_err(git)?;
        for _ in 0..ROUNDS {
            if let Some(outcome) = round(job, &mirror).await? {
                if matches!(outcome, Outcome::Landed { .. }) {
                    tidy(job, &mirror).await;
                }
                return Ok(outcome);
            }
        }
        let detail = format!("`{}` moved {ROUNDS} times while the change was brought onto it", job.site.task.base);
        Err(Failure::new(FailureKind::Repository, detail))
    };
    landed.await.unwrap_or_else(|failure| Outcome::LandingFailed { failure })
}

/// One try; nothing where the base moved under it.
async fn round(job: &LandJob<'_>, mirror: &Mirror) -> Result<Option<Outcome>, Failure> {
    let LandJob { site, change, approval, .. } = *job;
    let task = site.task;
    let base = mirror.fetch(&task.base).await.map_err(git)?;
    if let Some(commit) = landed_before(job, mirror, &base).await.map_err(git)? {
        return Ok(Some(Outcome::Landed { commit }));
    }
    check_approved(job, mirror).await?;

    let tree = if base == change.base_commit {
        mirror.tree_of(&approval.head).await.map_err(git)?
    } else {
        let merge = mirror.merge_onto(&base, &change.base_commit, &approval.head).await.map_err(git)?;
        if !merge.conflicts.is_empty() {
            let reason = format!("`{}` moved to {base}, and the change conflicts with it in", task.base);
            return Ok(Some(Outcome::LandingRejected { gate: gates::conflict(&reason, &merge.conflicts) }));
        }
        if let Some(gate) = failed_gate(job, mirror, &base, &merge.tree).await? {
            return Ok(Some(Outcome::LandingRejected { gate }));
        }
        if mirror.patch_id(&base, &merge.tree).await.map_err(git)? != approval.patch_id {
            return rebased(job, mirror, &base, &merge.tree).await.map(Some);
        }
        merge.tree
    };
    let commit = mirror.commit(&tree, &base, &squash_message(job)).await.map_err(git)?;
    match mirror.push(&commit, &task.base, Expected::At(&base)).await.map_err(git)? {
        Push::Done => Ok(Some(Outcome::Landed { commit })),
        Push::Moved => Ok(None),
    }
}

/// The commit on the base branch that carries the task's trailer.
async fn landed_before(job: &LandJob<'_>, mirror: &Mirror, base: &str) -> Result<Option<String>, GitError> {
    // A landing lies on top of what the task's first change was made on; what is older need not be searched.
    let mut since = Vec::new();
    if let Some(first) = job.site.task.attempts().find_map(|(_, attempt)| attempt.change.as_ref())
        && mirror.has(&first.base_commit).await?
    {
        since.push(first.base_commit.as_str());
    }
    mirror.with_trailer(base, &since, "Refile-Task", job.site.task.id.as_str()).await
}

/// Holds the attempt branch, the change and the approval against each other: they must be about one commit.
async fn check_approved(job: &LandJob<'_>, mirror: &Mirror) -> Result<(), Failure> {
    let LandJob { change, approval, .. } = *job;
    let found = mirror.fetch(&change.branch).await.map_err(git)?;
    names::commit(&change.base_commit).map_err(git)?;
    if found != approval.head || change.head != approval.head {
        let detail = format!(
            "`{}` is at {found}, the change is {}, and what was approved is {}; review it again",
            change.branch, change.head, approval.head
        );
        return Err(Failure::new(FailureKind::Repository, detail));
    }
    if mirror.patch_id(&change.base_commit, &change.head).await.map_err(git)? != approval.patch_id {
        let detail = format!("the diff of {} is not the one that was approved; review it again", change.head);
        return Err(Failure::new(FailureKind::Repository, detail));
    }
    Ok(())
}

/// The first gate that fails on the merged tree.
async fn failed_gate(
    job: &LandJob<'_>,
    mirror: &Mirror,
    base: &str,
    merged: &str,
) -> Result<Option<GateReport>, Failure> {
    let files = mirror.files(base, merged).await.map_err(git)?;
    let nothing = gates::empty_diff(&files);
    if !nothing.passed {
        let output = format!("`{}` already holds all that the change does", job.site.task.base);
        return Ok(Some(GateReport { output, ..nothing }));
    }
    if job.gates.is_empty() || job.approval.overrides_gates {
        return Ok(None);
    }
    let claim = job.site.claim();
    let tree = job.site.workspace.tree(mirror, claim, &job.site.task.base, base, merged).await.map_err(git)?;
    let configured = Gates { gates: job.gates, keep_going: false, shelf: job.site.shelf, claim };
    let reports = gates::run(&configured, &tree, base, &files).await?;
    Ok(reports.into_iter().find(|report| !report.passed))
}

/// The merge is clean and no longer what was reviewed: it becomes a change of its own.
async fn rebased(job: &LandJob<'_>, mirror: &Mirror, base: &str, merged: &str) -> Result<Outcome, Failure> {
    let head = mirror.commit(merged, base, &message(job.site.task)).await.map_err(git)?;
    let branch = job.site.claim().branch().map_err(git)?;
    let mut change = describe(mirror, job.site.shelf, &branch, base, &head).await?;
    change.summary.clone_from(&job.change.summary);
    publish(mirror, &change).await?;
    Ok(Outcome::Rebased { change })
}

/// Removes the task's attempt branches. They are of no use any more, and a failure to remove them changes nothing.
async fn tidy(job: &LandJob<'_>, mirror: &Mirror) {
    let remove = async {
        let branches = mirror.branches(&names::attempt_branches(&job.site.task.id)).await?;
        mirror.delete(&branches).await
    };
    if let Err(error) = remove.await {
        tracing::warn!(task = %job.site.task.id, %error, "the attempt branches could not be removed");
    }
}

fn squash_message(job: &LandJob<'_>) -> String {
    // One line each: a title or a name with a line break could forge a trailer.
    let by = job.approval.by.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
    let (title, id, attempt) = (message(job.site.task), &job.site.task.id, job.approval.attempt);
    format!("{title}\n\nRefile-Task: {id}\nRefile-Attempt: {attempt}\nReviewed-by: {by}\n")
}
