//! What is kept of a run that failed in the middle of its work: it was paid for, and the attempt's next run goes on from it.

use refile_core::failure::Failure;
use refile_core::task::Change;

use super::{CodeJob, Judged, Run, bare_change, described, git, message, policy};
use crate::git::{Mirror, Tree};

/// What such a run left.
pub(super) struct Found<'a> {
    pub(super) tree: &'a Tree,
    pub(super) base: &'a str,
    /// What the tree held at its start.
    pub(super) started_with: &'a str,
    /// Its last words.
    pub(super) summary: String,
}

/// Keeps what a run left, where that may be worth something: it worked, and it changed something.
pub(super) async fn keep(
    job: &CodeJob<'_>,
    mirror: &Mirror,
    found: Found<'_>,
    failure: Failure,
    run: &mut Run,
) -> Failure {
    // What filled the disk is not put into the mirror, which lies on it.
    if !run.usage.is_work(job.long_run.as_millis() as u64) || found.tree.lacks_room() {
        return failure;
    }
    match change(job, mirror, found).await {
        Ok(Some(change)) if change.patch_id.is_empty() => {
            // Not to be shown to others: this worker alone goes on from it.
            run.kept = Some(change);
            failure
        }
        Ok(Some(change)) => super::keep(mirror, change, failure, run, "its next run goes on from there").await,
        Ok(None) => failure,
        Err(error) => {
            tracing::warn!(task = %job.site.task.id, %error, "what the agent left before it failed is lost");
            failure
        }
    }
}

/// What it left as a change; nothing where it changed nothing.
async fn change(job: &CodeJob<'_>, mirror: &Mirror, found: Found<'_>) -> Result<Option<Change>, Failure> {
    let Found { tree, base, started_with, summary } = found;
    let written = tree.write().await.map_err(git)?;
    if written == started_with {
        return Ok(None);
    }
    let head = mirror.commit(&written, base, &message(job.site.task)).await.map_err(git)?;
    let branch = job.site.claim().branch().map_err(git)?;
    let Judged { report, patch_id, files } = policy(job, mirror, tree, base, &head).await.map_err(git)?;
    let change = match patch_id.filter(|_| report.passed) {
        Some(patch_id) => described(mirror, job.site.shelf, &branch, (base, &head), patch_id).await?,
        None => Change { files, ..bare_change(&branch, base, &head) },
    };
    Ok(Some(Change { summary, unfinished: true, ..change }))
}
