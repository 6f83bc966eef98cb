//! Pull requests that people on the forge decide on.

use refile_config::Merging;
use refile_config::schema::Strategy;
use refile_core::event::News;
use refile_core::failure::FailureKind;
use refile_core::task::PullRequest;
use refile_core::{Event, Phase, PhaseState, Refusal, Task, TaskState};
use refile_forge::{Forge, Merge, State, text};
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
                let Some((phase, known)) = proposed(task) else { continue };
                let looked = self.look_at(task, phase, known).await;
                let is_limited = matches!(&looked, Err(LookError::Forge(e)) if e.kind == FailureKind::RateLimit);
                let name = format!("pull request {} of task {}", known.number, task.id);
                if self.note(&name, looked) {
                    self.said.retain(|said| !said.starts_with(&name));
                }
                if is_limited {
                    return;
                }
            }
            cursor = page.next;
            if cursor.is_none() {
                return;
            }
        }
    }

    async fn look_at(&self, task: &Task, phase: &Phase, known: &PullRequest) -> Result<(), LookError> {
        let forge = self.forges.of(&task.repository)?;
        let found = forge.pull_request(known.number).await?;
        let news = match found.state {
            State::Merged { commit, by } => Some(News::Merged { commit, head: found.head, by }),
            State::Closed { by } => Some(News::Closed { by }),
            State::Open { conflicts } if known.waits => {
                self.of_open(forge.as_ref(), task, phase, known).await?.or(conflicts.then_some(News::Conflicts))
            }
            State::Open { .. } => None,
        };
        let Some(news) = news else { return Ok(()) };
        let merged = matches!(news, News::Merged { .. });
        let event = Event::Forge { phase: phase.name.clone(), number: known.number, news };
        let policy = self.coordinator.config.policy();
        match apply(self.coordinator.store.as_ref(), &policy, &task.id, &event).await {
            Ok(_) if merged => tidy(forge.as_ref(), task, known).await,
            Ok(_) => {}
            // Another coordinator was quicker, or the task went on meanwhile.
            Err(ApplyError::Refused(Refusal::Stale(why))) => tracing::debug!(task = %task.id, why, "old news"),
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// What people said of a pull request that is open; and the merge, where the fleet is to do it.
    async fn of_open(
        &self,
        forge: &dyn Forge,
        task: &Task,
        phase: &Phase,
        known: &PullRequest,
    ) -> Result<Option<News>, LookError> {
        let reviews = forge.changes_requested(known.number, &known.reviews).await?;
        if !reviews.is_empty() {
            return Ok(Some(News::ChangesRequested { reviews }));
        }
        let Some(approval) = phase.approval.as_ref() else { return Ok(None) };
        if self.coordinator.config.land.merge != Merging::Auto {
            return Ok(None);
        }
        match forge.merge(known.number, &approval.head, &text::message(task, approval)).await? {
            Merge::Done { commit } => Ok(Some(News::Merged { commit, head: approval.head.clone(), by: None })),
            Merge::NotYet { why } => {
                tracing::debug!(task = %task.id, why, "the forge does not merge yet");
                Ok(None)
            }
            Merge::Moved => {
                tracing::warn!(task = %task.id, "somebody pushed to the pull request: people have to merge it");
                Ok(None)
            }
        }
    }
}

/// The phase of a task that has a pull request which people can still decide on.
fn proposed(task: &Task) -> Option<(&Phase, &PullRequest)> {
    let works =
        |phase: &&Phase| matches!(phase.state, PhaseState::Coding | PhaseState::Reviewing | PhaseState::Landing);
    task.phases.iter().filter(works).find_map(|phase| Some((phase, phase.pull_request.as_ref()?)))
}

/// Removes the branches that the record knows. They are of no use any more, and a failure to remove them changes nothing.
async fn tidy(forge: &dyn Forge, task: &Task, known: &PullRequest) {
    let attempts = task.attempts().filter_map(|(_, attempt)| attempt.change.as_ref()).map(|change| &change.branch);
    for branch in attempts.chain([&known.branch]).filter(|branch| branch.starts_with("refile/")) {
        if let Err(error) = forge.delete_branch(branch).await {
            tracing::warn!(task = %task.id, branch, %error, "a branch could not be removed");
        }
    }
}
