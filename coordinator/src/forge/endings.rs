//! The pull requests of tasks that end without a merge, or wait for a person: told why, and closed where it is over.

use std::collections::{BTreeMap, BTreeSet};

use refile_config::schema::Strategy;
use refile_core::decide::What;
use refile_core::{Task, TaskId, TaskState};
use refile_forge::{State, Thread, Verdict, comment_once, is_told, tell_verdicts, text};

use super::pull_requests::{is_for_people, is_to_be_merged, is_unasked, listed, named, tell_status, tidy};
use super::{LookError, Watch};

/// Events or tasks that are read from the store at a time.
const PAGE: usize = 1_000;

impl Watch<'_> {
    /// Looks for tasks that have ended or wait for a person since the last look, whoever decided that.
    pub(super) async fn endings(&mut self) {
        let looked = self.end_all().await;
        if self.note("the pull requests of tasks that ended could not be told", looked) {
            self.said.retain(|said| !said.starts_with("the pull requests of tasks"));
        }
    }

    async fn end_all(&mut self) -> Result<(), LookError> {
        let store = self.coordinator.store.clone();
        // Who does not speak now may have to later, and then reads all that the log has kept.
        if !self.speaks().await? {
            return Ok(());
        }
        loop {
            let events = store.events(&self.read, PAGE).await?;
            let is_end = |what: What| matches!(what, What::Finished | What::Escalated);
            self.ending.extend(events.iter().filter(|e| is_end(e.notice.what)).map(|e| e.task.clone()));
            if let Some(last) = events.last() {
                self.read.clone_from(&last.cursor);
            }
            if events.len() < PAGE {
                break;
            }
        }
        let mut unasked = BTreeMap::new();
        let ended = self.end_these(&mut unasked).await;
        for (why, tasks) in unasked {
            let tasks = listed(&tasks);
            tracing::error!(
                "these tasks are over or wait for a person, and their pull requests could not be told and may be open: {tasks}; \
                 {why}; put back what [forge] and the environment said when they were opened and start the coordinator anew, \
                 or close them by hand"
            );
        }
        self.has_read_ends |= ended.is_ok();
        ended
    }

    /// Goes through the tasks whose end is to be told. Those whose forge cannot be asked are given by the reason.
    async fn end_these(&mut self, unasked: &mut BTreeMap<String, BTreeSet<String>>) -> Result<(), LookError> {
        let ending: Vec<TaskId> = self.ending.iter().cloned().collect();
        for ids in ending.chunks(PAGE) {
            for (id, found) in ids.iter().zip(self.coordinator.store.tasks(ids).await?) {
                if let Some(found) = found {
                    let task = &found.task;
                    match self.end(task).await {
                        Err(LookError::Forge(error)) if is_unasked(&error) => {
                            let all = task.phases.iter().filter_map(|phase| phase.pull_request.as_ref());
                            unasked.entry(error.detail).or_default().extend(all.map(|known| named(task, known)));
                        }
                        // One that the forge does not let be told must not hold up the others.
                        Err(LookError::Forge(error)) if is_for_people(&error) => {
                            tracing::warn!(task = %id, %error, "the end of a task could not be told on its pull request");
                        }
                        ended => ended?,
                    }
                }
                self.ending.remove(id);
            }
        }
        Ok(())
    }

    /// Looks at the pull requests of these tasks alone.
    pub(super) async fn tasks(&mut self, wanted: BTreeSet<TaskId>) {
        let ids: Vec<TaskId> = wanted.into_iter().collect();
        let found = match self.coordinator.store.tasks(&ids).await {
            Ok(found) => found,
            Err(error) => {
                self.note("the tasks could not be read", Err(error.into()));
                return;
            }
        };
        let mut is_any_over = false;
        for task in found.into_iter().flatten().map(|found| found.task) {
            is_any_over |= task.state != TaskState::Open;
            if is_to_be_merged(&task) && self.look_in(&task).await.is_some() {
                return;
            }
        }
        if is_any_over {
            self.endings().await;
        }
    }

    /// Says what became of a task on its open pull requests and the commits that they show, once, with what reviewers said
    /// last; closes those of a task that is over.
    async fn end(&mut self, task: &Task) -> Result<(), LookError> {
        let Some(outcome) = text::outcome(task) else { return Ok(()) };
        let marker = text::outcome_marker(task);
        let proposes = self.coordinator.config.land.strategy == Strategy::PullRequest;
        for (phase, known) in task.phases.iter().filter_map(|phase| Some((phase, phase.pull_request.as_ref()?))) {
            // What has landed closed its pull request by that. Where the fleet does not propose changes any more, it may have
            // been pushed past it: the next attempt, or this one when the base had moved.
            let has_landed = matches!(task.state, TaskState::Merged | TaskState::Accepted);
            let is_shown = phase.approval.as_ref().is_none_or(|approval| approval.head == known.head);
            if has_landed && is_shown && (known.moves == 0 || proposes) {
                continue;
            }
            let told = format!("{marker} {}", known.number);
            if self.told.contains(&told) {
                continue;
            }
            let forge = self.forges.of(&task.repository)?;
            if matches!(forge.pull_request(known.number).await?.state, State::Open { .. }) {
                let on = Thread::PullRequest(known.number);
                tell_verdicts(forge.as_ref(), known.number, task, phase).await?;
                // The comment comes last: where it stands all is said.
                if !is_told(forge.as_ref(), on, &marker).await? {
                    if !has_landed {
                        let words = text::status_by_end(task);
                        tell_status(forge.as_ref(), task, known, Verdict::Failure, &words).await?;
                    }
                    comment_once(forge.as_ref(), on, &marker, &outcome).await?;
                }
                if task.state.is_final() {
                    forge.close(on).await?;
                    tidy(forge.as_ref(), task, known).await;
                }
            }
            self.told.insert(told);
        }
        Ok(())
    }
}
