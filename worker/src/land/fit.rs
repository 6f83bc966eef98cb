//! Whether one change still is what was approved, where it would land.

use refile_core::Outcome;
use refile_core::failure::{Failure, FailureKind};
use refile_core::gate::{GateReport, output_tail};

use super::LandJob;
use crate::code::{describe, git, message, publish};
use crate::gates::{self, Bases, Gates};
use crate::git::{GitError, Mirror, names};

/// What an approved change is on top of a commit.
pub(super) enum Fit {
    /// The change that was approved, and the tree with it.
    Same(String),
    /// It conflicts in these files.
    Conflict(Vec<String>),
    /// Nothing: all that it does is there already.
    Nothing,
    /// Another change than the one that was approved, and the tree with it.
    Other(String),
}

impl LandJob<'_> {
    /// What the change is on top of a commit.
    pub(super) async fn fit(&self, mirror: &Mirror, onto: &str) -> Result<Fit, GitError> {
        let merge = mirror.bring(onto, &self.change.base_commit, &self.change.head).await?;
        if onto == self.change.base_commit {
            return Ok(Fit::Same(merge.tree));
        }
        if !merge.conflicts.is_empty() {
            return Ok(Fit::Conflict(merge.conflicts));
        }
        if mirror.tree_of(onto).await? == merge.tree {
            return Ok(Fit::Nothing);
        }
        let is_same = mirror.patch_id(onto, &merge.tree).await? == self.approval.patch_id;
        Ok(if is_same { Fit::Same(merge.tree) } else { Fit::Other(merge.tree) })
    }

    /// What becomes of a change that is not on the base what was approved.
    pub(super) async fn misfit(&self, mirror: &Mirror, base: &str, fit: Fit) -> Result<Outcome, Failure> {
        let branch = &self.site.task.base;
        let gate = match fit {
            Fit::Conflict(files) => {
                gates::conflict(&format!("`{branch}` moved to {base}, and the change conflicts with it in"), &files)
            }
            Fit::Nothing => {
                let output = format!("`{branch}` already holds all that the change does");
                GateReport { output, ..gates::empty_diff(&[]) }
            }
            Fit::Same(tree) | Fit::Other(tree) => match self.failed_gate(mirror, base, &tree).await? {
                Some(gate) => gate,
                None => return self.rebased(mirror, base, &tree).await,
            },
        };
        Ok(Outcome::LandingRejected { gate })
    }

    /// The commit on the base branch that carries the task's trailer.
    pub(super) async fn landed_before(&self, mirror: &Mirror, base: &str) -> Result<Option<String>, GitError> {
        // A landing lies on top of what the task's first change was made on; what is older need not be searched.
        let mut since = Vec::new();
        if let Some(first) = self.site.task.attempts().find_map(|(_, attempt)| attempt.change.as_ref())
            && mirror.has(&first.base_commit).await?
        {
            since.push(first.base_commit.as_str());
        }
        mirror.with_trailer(base, &since, "Refile-Task", self.site.task.id.as_str()).await
    }

    /// Holds the attempt branch, the change and the approval against each other: they must be about one commit. Where
    /// somebody pushed to the branch since, gates and reviewers judge what is there now: gives its outcome.
    pub(super) async fn check_approved(&self, mirror: &Mirror, base: &str) -> Result<Option<Outcome>, Failure> {
        let LandJob { change, approval, .. } = *self;
        let found = match mirror.fetch(&change.branch).await {
            // What the diff policy turned down was never pushed, and a person approved it.
            Err(GitError::NoBranch { .. })
                if approval.overrides_gates && mirror.has(&approval.head).await.map_err(git)? =>
            {
                approval.head.clone()
            }
            found => found.map_err(git)?,
        };
        names::commit(&change.base_commit).map_err(git)?;
        if change.head != approval.head {
            let (head, approved) = (&change.head, &approval.head);
            let detail = format!("the record's change is {head}, and what was approved is {approved}: refile the task");
            return Err(Failure::new(FailureKind::Repository, detail));
        }
        if found != approval.head {
            let merge = mirror.bring(base, &change.base_commit, &found).await.map_err(git)?;
            let is_nothing = mirror.tree_of(base).await.map_err(git)? == merge.tree;
            let fit = match merge.conflicts {
                none if none.is_empty() && is_nothing => Fit::Nothing,
                none if none.is_empty() => Fit::Other(merge.tree),
                files => Fit::Conflict(files),
            };
            return self.misfit(mirror, base, fit).await.map(Some);
        }
        if mirror.patch_id(&change.base_commit, &change.head).await.map_err(git)? != approval.patch_id {
            let detail = format!("the diff of {} is not the one that was approved: refile the task", change.head);
            return Err(Failure::new(FailureKind::Repository, detail));
        }
        Ok(None)
    }

    /// The first gate that fails on a tree that nobody has worked in: an attempt's own holds what git ignores as well.
    pub(super) async fn failed_gate(
        &self,
        mirror: &Mirror,
        base: &str,
        tree: &str,
    ) -> Result<Option<GateReport>, Failure> {
        if self.gates.is_empty() || self.approval.overrides_gates {
            return Ok(None);
        }
        let files = mirror.files(base, tree).await.map_err(git)?;
        let claim = self.site.claim();
        let tree = self.site.workspace.tree(mirror, claim, &self.site.task.base, base, tree).await.map_err(git)?;
        let bases = Bases { workspace: self.site.workspace, mirror, branch: &self.site.task.base };
        let secrets = self.site.workspace.secrets();
        let configured = Gates { gates: self.gates, keep_going: false, shelf: self.site.shelf, claim, bases, secrets };
        let reports = gates::run(&configured, &tree, base, &files).await?;
        let mut failed = reports.into_iter().find(|report| !report.passed);
        // On another base, or with other changes, it may be these that it does not go with.
        if let Some(report) = failed.as_mut().filter(|_| base == self.change.base_commit) {
            let note = format!(
                "[before the landing on `{}` the gate `{}` ran on a fresh checkout, without the ignored files that an attempt \
                 leaves: what it needs must be kept in the repository, or be made by a gate]",
                self.site.task.base, report.name
            );
            report.output = output_tail(format!("{}\n{note}", report.output).trim_start());
        }
        Ok(failed)
    }

    /// Removes the task's attempt branches. They are of no use any more, and a failure to remove them changes nothing.
    pub(super) async fn tidy(&self, mirror: &Mirror) {
        let task = &self.site.task.id;
        let remove = async {
            let branches = mirror.branches(&names::attempt_branches(task)).await?;
            mirror.delete(&branches).await
        };
        if let Err(error) = remove.await {
            tracing::warn!(%task, %error, "the attempt branches could not be removed");
        }
    }

    /// The merge is clean and no longer what was reviewed: it becomes a change of its own.
    async fn rebased(&self, mirror: &Mirror, base: &str, tree: &str) -> Result<Outcome, Failure> {
        let head = mirror.commit(tree, base, &message(self.site.task)).await.map_err(git)?;
        let branch = self.site.claim().branch().map_err(git)?;
        let mut change = describe(mirror, self.site.shelf, &branch, base, &head).await?;
        change.summary.clone_from(&self.change.summary);
        publish(mirror, &change).await?;
        Ok(Outcome::Rebased { change })
    }
}
