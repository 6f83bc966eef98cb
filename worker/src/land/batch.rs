//! Several changes one after the other onto the base, tried together and pushed at once.

use refile_core::Outcome;
use refile_core::failure::{Failure, FailureKind};
use refile_core::gate::GateReport;

use super::commits::commit;
use super::fit::Fit;
use super::{LandJob, Leases};
use crate::code::git;
use crate::git::{Expected, GitError, Mirror, Push, names};

/// How often a landing starts again since the base moved under it.
const ROUNDS: u32 = 10;

/// Jobs that land together.
pub(super) struct Batch<'a> {
    jobs: &'a [LandJob<'a>],
    leases: &'a dyn Leases,
    outcomes: Vec<Option<Outcome>>,
    /// Which jobs were held against their approvals: that cannot change.
    checked: Vec<bool>,
    /// The repository refused some of them together: each is told by itself.
    is_one_by_one: bool,
}

/// A change on top of the base and of those before it.
struct Link {
    job: usize,
    commit: String,
}

/// The first change with which a gate fails.
struct Culprit {
    /// Its place among the links.
    link: usize,
    gate: GateReport,
}

impl<'a> Batch<'a> {
    pub(super) fn new(jobs: &'a [LandJob<'a>], leases: &'a dyn Leases) -> Self {
        let (outcomes, checked) = (vec![None; jobs.len()], vec![false; jobs.len()]);
        Self { jobs, leases, outcomes, checked, is_one_by_one: false }
    }

    /// Lands what can land. Each job has an outcome of its own.
    pub(super) async fn land(mut self) -> Vec<Outcome> {
        let Some(first) = self.jobs.first() else { return Vec::new() };
        let landed = match first.site.mirror().await {
            Ok(mirror) => {
                let landed = self.rounds(&mirror).await;
                self.tidy(&mirror).await;
                landed
            }
            Err(error) => Err(git(error)),
        };
        let why = landed.err().unwrap_or_else(|| Failure::new(FailureKind::Repository, "it had no turn"));
        let failed = || Outcome::LandingFailed { failure: why.clone() };
        self.outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(failed)).collect()
    }

    /// Tries until every job has its outcome. In each round one has, or the base moved.
    async fn rounds(&mut self, mirror: &Mirror) -> Result<(), Failure> {
        let branch = &self.jobs[0].site.task.base;
        let mut moved = 0;
        while moved < ROUNDS {
            if self.waiting().is_empty() {
                return Ok(());
            }
            let base = mirror.fetch(branch).await.map_err(git)?;
            self.look(mirror, &base).await;
            let links = self.stack(mirror, &base).await;
            if links.is_empty() {
                continue;
            }
            if self.round(mirror, &base, links).await? == Push::Moved {
                moved += 1;
            }
        }
        let detail = format!("`{branch}` moved {ROUNDS} times while the change was brought onto it");
        Err(Failure::new(FailureKind::Repository, detail))
    }

    /// Tries these and pushes those that pass.
    async fn round(&mut self, mirror: &Mirror, base: &str, mut links: Vec<Link>) -> Result<Push, Failure> {
        let culprit = self.culprit(mirror, base, &links).await?;
        if let Some(culprit) = &culprit {
            links.truncate(culprit.link + 1);
        }
        let rejected = culprit.and_then(|culprit| Some((links.pop()?, culprit.gate)));
        // What was tried holds all of them: without one it is another tree, and they are tried again.
        if self.lost(&links).await {
            return Ok(Push::Done);
        }
        if let Some(last) = links.last() {
            let branch = &self.jobs[last.job].site.task.base;
            match mirror.push(&last.commit, branch, Expected::At(base)).await {
                Ok(Push::Done) => {}
                Ok(Push::Moved) => return Ok(Push::Moved),
                Err(GitError::Refused { .. }) if links.len() > 1 => {
                    self.is_one_by_one = true;
                    return Ok(Push::Done);
                }
                // What one push is refused for, another may be allowed.
                Err(error @ GitError::Refused { .. }) => {
                    self.outcomes[last.job] = Some(Outcome::LandingFailed { failure: git(error) });
                    return Ok(Push::Done);
                }
                Err(error) => return Err(git(error)),
            }
        }
        for Link { job, commit } in links {
            self.outcomes[job] = Some(Outcome::Landed { commit });
        }
        // It was tried on exactly what the base is now.
        if let Some((Link { job, .. }, gate)) = rejected {
            self.outcomes[job] = Some(Outcome::LandingRejected { gate });
        }
        Ok(Push::Done)
    }

    fn waiting(&self) -> Vec<usize> {
        (0..self.jobs.len()).filter(|job| self.outcomes[*job].is_none()).collect()
    }

    fn fail(&mut self, job: usize, failure: Failure) {
        self.outcomes[job] = Some(Outcome::LandingFailed { failure });
    }

    /// Finds out which changes are on the base already, and which are not what was approved.
    async fn look(&mut self, mirror: &Mirror, base: &str) {
        for job in self.waiting() {
            match self.jobs[job].landed_before(mirror, base).await {
                Ok(Some(commit)) => self.outcomes[job] = Some(Outcome::Landed { commit }),
                Ok(None) if self.jobs[job].approval.called_off.is_some() => {
                    self.outcomes[job] = Some(Outcome::CalledOff);
                }
                Ok(None) if self.checked[job] => {}
                Ok(None) => match self.jobs[job].check_approved(mirror, base).await {
                    Ok(None) => self.checked[job] = true,
                    Ok(other) => self.outcomes[job] = other,
                    Err(failure) => self.fail(job, failure),
                },
                Err(error) => self.fail(job, git(error)),
            }
        }
    }

    /// Puts changes one on top of the other. One that cannot stand on the base by itself gets its outcome; one that could
    /// not stand on those before it waits.
    async fn stack(&mut self, mirror: &Mirror, base: &str) -> Vec<Link> {
        let mut links: Vec<Link> = Vec::new();
        for job in self.waiting() {
            // Whose gates a person overrides must not have them held against others.
            let is_alone = |at: usize| self.is_one_by_one || self.jobs[at].approval.overrides_gates;
            if links.first().is_some_and(|first| is_alone(first.job) || is_alone(job)) {
                continue;
            }
            match self.link(mirror, base, links.last().map_or(base, |l| l.commit.as_str()), job).await {
                Ok(Ok(link)) => links.extend(link),
                Ok(Err(outcome)) => self.outcomes[job] = Some(outcome),
                Err(failure) => self.fail(job, failure),
            }
        }
        links
    }

    /// One change on top of `tip`; nothing where it has to wait, an outcome where it does not fit the base itself.
    async fn link(
        &self,
        mirror: &Mirror,
        base: &str,
        tip: &str,
        job: usize,
    ) -> Result<Result<Option<Link>, Outcome>, Failure> {
        let this = &self.jobs[job];
        match this.fit(mirror, tip).await.map_err(git)? {
            Fit::Same(tree) => {
                let commit = commit(this, mirror, tip, &tree).await.map_err(git)?;
                Ok(Ok(Some(Link { job, commit })))
            }
            misfit if tip == base => this.misfit(mirror, base, misfit).await.map(Err),
            _ => match this.fit(mirror, base).await.map_err(git)? {
                Fit::Same(_) => Ok(Ok(None)),
                misfit => this.misfit(mirror, base, misfit).await.map(Err),
            },
        }
    }

    /// The first change with which a gate fails, where one does on the last tree: with half as many to choose from after
    /// each run.
    async fn culprit(&self, mirror: &Mirror, base: &str, links: &[Link]) -> Result<Option<Culprit>, Failure> {
        // The numbers of changes with which the gates pass and fail.
        let (mut passes, mut fails) = (0, links.len());
        let Some(mut gate) = self.failed_gate(mirror, base, links).await? else { return Ok(None) };
        while fails - passes > 1 {
            let half = usize::midpoint(passes, fails);
            match self.failed_gate(mirror, base, &links[..half]).await? {
                Some(failed) => (fails, gate) = (half, failed),
                None => passes = half,
            }
        }
        Ok(Some(Culprit { link: passes, gate }))
    }

    async fn failed_gate(&self, mirror: &Mirror, base: &str, links: &[Link]) -> Result<Option<GateReport>, Failure> {
        let Some(last) = links.last() else { return Ok(None) };
        let tree = mirror.tree_of(&last.commit).await.map_err(git)?;
        self.jobs[last.job].failed_gate(mirror, base, &tree).await
    }

    /// Whether one of these is no longer this worker's; it is dropped.
    async fn lost(&mut self, links: &[Link]) -> bool {
        if links.is_empty() {
            return false;
        }
        let jobs: Vec<usize> = links.iter().map(|link| link.job).collect();
        let held = self.leases.held(&jobs).await;
        let lost: Vec<usize> = jobs.into_iter().zip(held).filter(|(_, held)| !held).map(|(job, _)| job).collect();
        for job in &lost {
            self.fail(*job, Failure::new(FailureKind::Crash, "the job is no longer this worker's"));
        }
        !lost.is_empty()
    }

    /// Removes the attempt branches of what landed. They are of no use any more, and a failure to remove them changes
    /// nothing.
    async fn tidy(&self, mirror: &Mirror) {
        let outcomes = self.jobs.iter().zip(&self.outcomes);
        let landed = outcomes.filter(|(_, outcome)| matches!(outcome, Some(Outcome::Landed { .. })));
        let ours: Vec<String> = landed.map(|(job, _)| names::attempt_branches(&job.site.task.id)).collect();
        if ours.is_empty() {
            return;
        }
        let remove = async {
            let branches = mirror.all_attempt_branches().await?;
            let of_landed = branches.into_iter().filter(|branch| ours.iter().any(|prefix| branch.starts_with(prefix)));
            mirror.delete(&of_landed.collect::<Vec<_>>()).await
        };
        if let Err(error) = remove.await {
            let task = &self.jobs[0].site.task.id;
            tracing::warn!(%task, %error, "the attempt branches could not be removed");
        }
    }
}
