//! Pull requests that people on the forge decide on.

use refile_config::schema::Strategy;
use refile_core::event::News;
use refile_core::failure::FailureKind;
use refile_core::task::PullRequest;
use refile_core::{Event, Phase, PhaseState, Refusal, Task, TaskState};
use refile_forge::{Forge, ForgeError, Merge, State, Verdict, text};
use refile_store::Filter;

use super::{LookError, Watch};
use crate::apply::{ApplyError, apply};

/// Tasks that are read from the store at a time.
const PAGE: usize = 500;

impl Watch<'_> {
    /// Looks at every pull request of a task that is not over.
    pub(super) async fn pull_requests(&mut self) {
        let config = &self.coordinator.config;
        if config.land.strategy != Strategy::PullRequest {
            return;
        }
        let filter = Filter { states: vec![TaskState::Open, TaskState::Escalated], ..Filter::default() };
        let mut cursor = None;
        loop {
            let page = match self.coordinator.store.list(&filter, cursor, PAGE).await {
                Ok(page) => page,
                Err(error) => {
                    self.note("the tasks could not be read", Err(error.into()));
                    return;
                }
            };
            for task in &page.tasks {
                if self.look_in(task).await {
                    return;
                }
            }
            cursor = page.next;
            if cursor.is_none() {
                return;
            }
        }
    }

    /// Looks at a task's pull request, if it has one. Tells whether the forge wants to be left alone.
    pub(super) async fn look_in(&mut self, task: &Task) -> bool {
        let Some((phase, known)) = proposed(task) else { return false };
        let looked = self.look_at(task, phase, known).await;
        let is_limited = matches!(&looked, Err(LookError::Forge(e)) if e.kind == FailureKind::RateLimit);
        let name = format!("pull request {} of task {}", known.number, task.id);
        if self.note(&name, looked) {
            self.said.retain(|said| !said.starts_with(&name));
        }
        is_limited
    }

    async fn look_at(&self, task: &Task, phase: &Phase, known: &PullRequest) -> Result<(), LookError> {
        let forge = self.forges.of(&task.repository)?;
        let news = match self.news(forge.as_ref(), task, phase, known).await {
            // It does not pass by itself, and the task must not wait for the fleet without a word.
            Err(LookError::Forge(error)) if known.waits && known.auto && is_for_people(&error) => {
                Some(News::NotYet { why: error.detail })
            }
            seen => seen?,
        };
        let Some(news) = news else { return Ok(()) };
        // Before it counts: then a worker may begin, and has the last word.
        if let Some((verdict, words)) = text::status_by_news(&news)
            && self.waits_still(task, phase, known).await?
        {
            tell_status(forge.as_ref(), task, known, verdict, &words).await?;
        }
        let is_over = matches!(news, News::Merged { .. } | News::Closed { by: Some(_) });
        let merged = if let News::Merged { commit, .. } = &news { Some(commit.clone()) } else { None };
        let event = Event::Forge { phase: phase.name.clone(), number: known.number, news };
        let policy = self.coordinator.config.policy();
        match apply(self.coordinator.store.as_ref(), &policy, &task.id, &event).await {
            Ok(_) if is_over => tidy(forge.as_ref(), task, known).await,
            Ok(_) => {}
            // Another coordinator was quicker, or the task went on meanwhile.
            Err(ApplyError::Refused(Refusal::Stale(why))) => {
                let now = self.read(task).await?.map(|task| task.state);
                // Called off without a look, or turned down: what is final stays so, and somebody has to know.
                if let (Some(commit), Some(state @ (TaskState::Cancelled | TaskState::Rejected))) = (merged, now) {
                    tracing::warn!(task = %task.id, commit, "the task is {state}, and its pull request is merged");
                } else {
                    tracing::debug!(task = %task.id, why, "old news");
                }
            }
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// What became of a pull request; and the merge, where the fleet is to do it.
    async fn news(
        &self,
        forge: &dyn Forge,
        task: &Task,
        phase: &Phase,
        known: &PullRequest,
    ) -> Result<Option<News>, LookError> {
        let found = forge.pull_request(known.number).await?;
        let (conflicts, blocked) = match found.state {
            State::Merged { commit, by } => return Ok(Some(News::Merged { commit, head: found.head, by })),
            State::Closed { by } => return Ok(Some(News::Closed { by })),
            State::Open { .. } if !known.waits => return Ok(None),
            State::Open { conflicts, blocked } => (conflicts, blocked),
        };
        let reviews = forge.changes_requested(known.number, &known.reviews).await?;
        if !reviews.is_empty() {
            return Ok(Some(News::ChangesRequested { reviews }));
        }
        if conflicts {
            return Ok(Some(News::Conflicts));
        }
        self.merge(forge, task, phase, known, blocked).await
    }

    /// The task as it is now.
    async fn read(&self, task: &Task) -> Result<Option<Task>, LookError> {
        let found = self.coordinator.store.tasks(std::slice::from_ref(&task.id)).await?;
        Ok(found.into_iter().flatten().next().map(|found| found.task))
    }

    /// Whether the task still waits for this. The look may have taken long: somebody may have called it off meanwhile.
    async fn waits_still(&self, task: &Task, phase: &Phase, known: &PullRequest) -> Result<bool, LookError> {
        let now = self.read(task).await?;
        Ok(now.as_ref().and_then(|task| task.phase(&phase.name)?.waiting_pull_request()) == Some(known))
    }

    /// Merges a pull request, where the fleet is to do it: only what the gates let through with the base as it is. The forge
    /// has no way to ask for that in the same step as the merge, so the base is looked at right before it.
    async fn merge(
        &self,
        forge: &dyn Forge,
        task: &Task,
        phase: &Phase,
        known: &PullRequest,
        blocked: Option<String>,
    ) -> Result<Option<News>, LookError> {
        let Some(approval) = phase.approval.as_ref() else { return Ok(None) };
        if !known.auto {
            return Ok(None);
        }
        let base = forge.head_of(&task.base).await?;
        if !self.waits_still(task, phase, known).await? {
            return Ok(None);
        }
        Ok(Some(match blocked {
            // The gates run when it can be merged: until then the base may move on and on.
            Some(why) if base != known.base_commit => News::NotYet { why },
            None if base != known.base_commit => News::BaseMoved { base },
            _ => match forge.merge(known.number, &approval.head, &text::message(task, approval)).await? {
                Merge::Done { commit } => News::Merged { commit, head: approval.head.clone(), by: None },
                Merge::NotYet { why } => News::NotYet { why },
                Merge::Moved => {
                    News::NotYet { why: "somebody pushed to the pull request: people have to merge it".to_owned() }
                }
            },
        }))
    }
}

/// Whether only a person can mend it.
pub(super) fn is_for_people(error: &ForgeError) -> bool {
    matches!(error.kind, FailureKind::Auth | FailureKind::Repository | FailureKind::Configuration)
}

/// Says on the commit that a pull request shows how the fleet stands to it. Nothing waits for that, except for a forge that
/// wants to be left alone.
pub(super) async fn tell_status(
    forge: &dyn Forge,
    task: &Task,
    known: &PullRequest,
    verdict: Verdict,
    words: &str,
) -> Result<(), ForgeError> {
    match forge.status(&known.head, verdict, words).await {
        Err(error) if error.kind != FailureKind::RateLimit => {
            tracing::warn!(task = %task.id, commit = known.head, %error, "the commit's status could not be set");
            Ok(())
        }
        said => said,
    }
}

/// The phase of a task that has a pull request which people can still decide on.
fn proposed(task: &Task) -> Option<(&Phase, &PullRequest)> {
    let works =
        |phase: &&Phase| matches!(phase.state, PhaseState::Coding | PhaseState::Reviewing | PhaseState::Landing);
    task.phases.iter().filter(works).find_map(|phase| Some((phase, phase.pull_request.as_ref()?)))
}

/// Whether the fleet is to merge a task's pull request, and has not tried yet.
pub(super) fn is_to_be_merged(task: &Task) -> bool {
    proposed(task).is_some_and(|(_, known)| known.waits && known.auto && known.not_yet.is_none())
}

/// Removes the branches that the record knows. They are of no use any more, and a failure to remove them changes nothing.
pub(super) async fn tidy(forge: &dyn Forge, task: &Task, known: &PullRequest) {
    let attempts = task.attempts().filter_map(|(_, attempt)| attempt.change.as_ref()).map(|change| &change.branch);
    for branch in attempts.chain([&known.branch]).filter(|branch| branch.starts_with("refile/")) {
        if let Err(error) = forge.delete_branch(branch).await {
            tracing::warn!(task = %task.id, branch, %error, "a branch could not be removed");
        }
    }
}
