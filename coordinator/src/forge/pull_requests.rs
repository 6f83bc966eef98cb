//! Pull requests that people on the forge decide on.

use std::collections::{BTreeMap, BTreeSet};

use refile_config::schema::Strategy;
use refile_core::count::Count;
use refile_core::event::News;
use refile_core::failure::FailureKind;
use refile_core::task::{Job, PullRequest};
use refile_core::{Event, Phase, PhaseState, Refusal, Task, TaskId, TaskState};
use refile_forge::{Forge, ForgeError, Merge, State, Verdict, text};
use refile_store::{Filter, StoreError};

use super::{LookError, Watch};
use crate::apply::{ApplyError, apply};

/// Tasks that are read from the store at a time.
const PAGE: usize = 500;
/// Tasks that are looked at with one reading.
const AT_ONCE: usize = 50;
/// Tasks that one line of the log names.
const MAX_TOLD: usize = 20;

impl Watch<'_> {
    /// Looks at every pull request of a task that is not over, whatever the strategy is now. After a rate limit the next look
    /// goes on where this one ended, so that each has its turn.
    pub(super) async fn pull_requests(&mut self) {
        let mut ids = match self.all_proposed().await {
            Ok(ids) => ids,
            Err(error) => {
                self.note("the tasks could not be read", Err(error.into()));
                return;
            }
        };
        self.any_proposed = !ids.is_empty();
        self.follows_ends |= self.any_proposed;
        ids.sort_unstable();
        self.unreachable.retain(|id, _| ids.binary_search(id).is_ok());
        let first = self.next.take().map_or(0, |next| ids.partition_point(|id| *id < next));
        ids.rotate_left(first);
        'looks: for chunk in ids.chunks(AT_ONCE) {
            let found = match self.coordinator.store.tasks(chunk).await {
                Ok(found) => found,
                Err(error) => {
                    self.next = chunk.first().cloned();
                    self.note("the tasks could not be read", Err(error.into()));
                    break;
                }
            };
            for task in found.into_iter().flatten().map(|found| found.task) {
                if let Some(limit) = self.look_in(&task).await {
                    // One that was asked for first and does not get through must not keep the others waiting.
                    let is_stuck = limit.status.is_some() && ids.first() == Some(&task.id);
                    self.next = if is_stuck { ids.get(1).cloned() } else { Some(task.id) };
                    break 'looks;
                }
            }
        }
        self.tell_unreachable();
    }

    /// The tasks that are not over and have a pull request. Where changes are not proposed, there are none but those that
    /// were proposed before: then all tasks are read only while there are some, or the store counts one.
    async fn all_proposed(&self) -> Result<Vec<TaskId>, StoreError> {
        let store = &self.coordinator.store;
        if self.coordinator.config.land.strategy != Strategy::PullRequest && !self.any_proposed {
            let waiting = Count::new("pull_requests_waiting", &[]).key();
            if store.stats().await?.counts.get(&waiting).is_none_or(|waiting| *waiting <= 0) {
                return Ok(Vec::new());
            }
        }
        let filter = Filter { states: vec![TaskState::Open, TaskState::Escalated], ..Filter::default() };
        let (mut ids, mut cursor) = (Vec::new(), None);
        loop {
            let page = store.list(&filter, cursor, PAGE).await?;
            ids.extend(page.tasks.into_iter().filter(|task| proposed(task).is_some()).map(|task| task.id));
            cursor = page.next;
            if cursor.is_none() {
                return Ok(ids);
            }
        }
    }

    /// Says once which pull requests nobody looks at, and what to do.
    fn tell_unreachable(&mut self) {
        let mut by_reason: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
        for (why, name) in self.unreachable.values() {
            by_reason.entry(why).or_default().insert(name.clone());
        }
        for (why, tasks) in by_reason {
            let tasks = listed(&tasks);
            if self.said.insert(format!("unreachable: {why}: {tasks}")) {
                tracing::error!(
                    "the pull requests of these tasks wait, and the fleet does not see what people do with them: {tasks}; \
                     {why}; put back what [forge] and the environment said when they were opened and start the coordinator \
                     anew, or end the tasks with `refile task cancel`"
                );
            }
        }
        if self.unreachable.is_empty() {
            self.said.retain(|said| !said.starts_with("unreachable: "));
        }
    }

    /// Looks at a task's pull request, if it has one. Gives the error where the forge wants to be left alone.
    pub(super) async fn look_in(&mut self, task: &Task) -> Option<ForgeError> {
        let (phase, known) = proposed(task)?;
        self.any_proposed = true;
        self.follows_ends = true;
        let looked = self.look_at(task, phase, known).await;
        let limit = match &looked {
            Err(LookError::Forge(error)) if error.kind == FailureKind::RateLimit => Some(error.clone()),
            _ => None,
        };
        let name = format!("pull request {} of task {}", known.number, task.id);
        if self.note(&name, looked) {
            self.said.retain(|said| !said.starts_with(&name));
        }
        limit
    }

    async fn look_at(&mut self, task: &Task, phase: &Phase, known: &PullRequest) -> Result<(), LookError> {
        let forge = self.forges.of(&task.repository);
        let seen = match &forge {
            Ok(forge) => self.news(forge.as_ref(), task, phase, known).await,
            Err(error) => Err(error.clone().into()),
        };
        if let Err(LookError::Forge(error)) = &seen
            && is_unasked(error)
        {
            // All of them are told in one line.
            self.unreachable.insert(task.id.clone(), (error.detail.clone(), named(task, known)));
        } else {
            self.unreachable.remove(&task.id);
        }
        let news = match seen {
            // It does not pass by itself, and the task must not wait for the fleet without a word.
            Err(LookError::Forge(error)) if known.waits && known.auto && is_for_people(&error) => {
                Some(News::NotYet { why: error.detail })
            }
            Err(LookError::Forge(error)) if is_unasked(&error) => None,
            seen => seen?,
        };
        let Some(news) = news else { return Ok(()) };
        if let (Ok(forge), News::Closed { by }) = (&forge, &news)
            && self.is_pushed_past(forge.as_ref(), phase, known, by.as_ref()).await?
        {
            return Ok(());
        }
        // Before it counts: then a worker may begin, and has the last word.
        if let (Ok(forge), Some((verdict, words))) = (&forge, text::status_by_news(&news))
            && self.waits_still(task, phase, known).await?
        {
            tell_status(forge.as_ref(), task, known, verdict, &words).await?;
        }
        let is_over = matches!(news, News::Merged { .. } | News::Closed { by: Some(_) });
        let merged = if let News::Merged { commit, .. } = &news { Some(commit.clone()) } else { None };
        let event = Event::Forge { phase: phase.name.clone(), number: known.number, news };
        let policy = self.coordinator.config.policy();
        match apply(self.coordinator.store.as_ref(), &policy, &task.id, &event).await {
            Ok(_) => {
                if let Ok(forge) = forge.as_ref()
                    && is_over
                {
                    tidy(forge.as_ref(), task, known).await;
                }
            }
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

    /// Whether a worker lands the change past its pull request, so that nobody's no closed this: with what has landed its
    /// branches are removed, and the forge closes it for that. It may do so in the name of whom the token belongs to; then the
    /// branches tell, of which a person who closes it leaves the attempt's.
    async fn is_pushed_past(
        &self,
        forge: &dyn Forge,
        phase: &Phase,
        known: &PullRequest,
        by: Option<&String>,
    ) -> Result<bool, ForgeError> {
        if phase.job != Some(Job::Land) || self.coordinator.config.land.strategy == Strategy::PullRequest {
            return Ok(false);
        }
        if by.is_none() {
            return Ok(true);
        }
        let of_attempt = phase.attempt().and_then(|attempt| Some(&attempt.change.as_ref()?.branch));
        for branch in of_attempt.into_iter().chain([&known.branch]) {
            match forge.head_of(branch).await {
                Err(error) if error.status == Some(404) => {}
                found => return found.map(|_| false),
            }
        }
        Ok(true)
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

/// Whether it could not even be asked: the configuration or the environment says no more where it is, or with which token.
pub(super) fn is_unasked(error: &ForgeError) -> bool {
    error.status.is_none() && matches!(error.kind, FailureKind::Auth | FailureKind::Configuration)
}

/// A task and its pull request, as a line of the log names them.
pub(super) fn named(task: &Task, known: &PullRequest) -> String {
    format!("{} ({})", task.id, known.url)
}

/// The first of many, and how many more there are.
pub(super) fn listed(all: &BTreeSet<String>) -> String {
    let first: Vec<&str> = all.iter().take(MAX_TOLD).map(String::as_str).collect();
    let more = match all.len() - first.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("{}{more}", first.join(", "))
}

/// Says on the commit that a pull request shows how the fleet stands to it: once, since what was decided, and all that is
/// looked at after it, must not wait for a forge that is not well. Only one that wants to be left alone ends the look.
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
