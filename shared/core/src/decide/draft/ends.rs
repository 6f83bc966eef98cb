//! How a phase and the task end: approved, accepted, turned down, skipped, called off, and what the task is then.

use super::Draft;
use crate::count::Count;
use crate::decide::{Effect, Notice, Refusal, Transition, What};
use crate::event::Actor;
use crate::task::{Approval, AttemptOutcome, Job, PhaseState, TaskState};

impl Draft<'_> {
    /// Approves the current attempt: the phase lands where it is the task's last, else it is accepted.
    pub(in crate::decide) fn approve(&mut self, by: Actor) -> Result<(), Refusal> {
        let attempt = self.attempt()?;
        let Some(change) = attempt.change.clone() else {
            return Err(Refusal::NotAllowed("the attempt left no change that could be approved".to_owned()));
        };
        // Where no gate could run there is no report at all.
        let is_gated = !attempt.gates.is_empty() && attempt.gates.iter().all(|g| g.passed);
        let overrides_gates = matches!(by, Actor::Person(_)) && !is_gated;
        let number = attempt.number;
        self.notify(What::Approved, format!("by {by}"));
        self.phase_mut().approval = Some(Approval {
            by,
            attempt: number,
            head: change.head,
            patch_id: change.patch_id,
            overrides_gates,
            landed: None,
            called_off: None,
        });
        let name = self.phase().name.clone();
        let is_last = self.task.phases.iter().all(|p| p.name == name || p.state == PhaseState::Accepted);
        if is_last && self.task.lands {
            self.enqueue(Job::Land, 0);
            Ok(())
        } else {
            self.accept()
        }
    }

    /// The phase is done; those after it start.
    pub(in crate::decide) fn accept(&mut self) -> Result<(), Refusal> {
        self.close_attempt(AttemptOutcome::Accepted, None)?;
        self.stop_waiting();
        let phase = self.phase_mut();
        phase.state = PhaseState::Accepted;
        phase.job = None;
        self.start_ready_phases();
        Ok(())
    }

    /// The phase is turned down; those after it are skipped, independent ones go on.
    pub(in crate::decide) fn reject(&mut self) -> Result<(), Refusal> {
        if self.attempt().is_ok_and(|a| a.outcome.is_none()) {
            self.close_attempt(AttemptOutcome::Rejected, None)?;
        }
        self.stop_waiting();
        let phase = self.phase_mut();
        phase.state = PhaseState::Rejected;
        phase.job = None;
        let mut turned_down = vec![phase.name.clone()];
        while let Some(name) = turned_down.pop() {
            for at in 0..self.task.phases.len() {
                let phase = &self.task.phases[at];
                if !phase.state.is_over() && phase.after.contains(&name) {
                    turned_down.push(phase.name.clone());
                    self.skip(at, None);
                }
            }
        }
        Ok(())
    }

    /// Ends a phase that will not be done; its attempt, if it is in one, gets this outcome.
    pub(in crate::decide) fn skip(&mut self, at: usize, outcome: Option<AttemptOutcome>) {
        let now = self.now;
        let phase = &mut self.task.phases[at];
        phase.state = PhaseState::Skipped;
        if let Some(pull_request) = phase.pull_request.as_mut() {
            pull_request.waits = false;
        }
        if phase.job.take().is_some() {
            self.effects.push(Effect::Drop { phase: phase.name.clone() });
        }
        if let (Some(attempt), Some(_)) = (phase.attempts.last_mut().filter(|a| a.outcome.is_none()), outcome) {
            attempt.outcome = outcome;
            attempt.finished_at = Some(now);
        }
    }

    /// Ends the task and every phase that is not over.
    pub(in crate::decide) fn cancel(&mut self) {
        for at in 0..self.task.phases.len() {
            if !self.task.phases[at].state.is_over() {
                self.skip(at, Some(AttemptOutcome::Cancelled));
            }
        }
        self.task.state = TaskState::Cancelled;
    }

    /// Settles the task's state and hands the transition over.
    pub(in crate::decide) fn done(mut self) -> Transition {
        self.task.updated_at = self.now;
        let phases = &self.task.phases;
        let is_over = phases.iter().all(|p| p.state.is_over());
        let landed = phases.iter().any(|p| p.approval.as_ref().is_some_and(|a| a.landed.is_some()));
        let state = if self.task.state == TaskState::Cancelled {
            TaskState::Cancelled
        } else if self.task.open_escalations().next().is_some() {
            TaskState::Escalated
        } else if !is_over {
            TaskState::Open
        } else if phases.iter().any(|p| p.state == PhaseState::Rejected) {
            TaskState::Rejected
        } else if landed {
            TaskState::Merged
        } else {
            TaskState::Accepted
        };
        self.task.state = state;
        if state.is_final() {
            self.finish();
        }
        Transition { task: self.task, effects: self.effects }
    }

    fn finish(&mut self) {
        self.task.finished_at = Some(self.now);
        let outcome = self.task.state.as_str();
        self.count("tasks_finished_total", &[outcome]);
        let mut used = Vec::new();
        for phase in self.task.phases.iter().filter(|p| !p.attempts.is_empty()) {
            let attempts = phase.attempt_number().to_string();
            used.push(Count::new("task_attempts", &[&self.task.workflow, &phase.name, outcome, &attempts]));
        }
        self.effects.extend(used.into_iter().map(Effect::Count));
        let attempt = self.task.attempt_number();
        self.effects.push(Effect::Notify(Notice {
            what: What::Finished,
            phase: None,
            attempt,
            detail: outcome.to_owned(),
        }));
    }
}
