//! A transition in the making: the record as it will be, the effects so far, and the steps that decisions are made of.
//! How phases and tasks end is in `ends`.

mod ends;

use super::{Effect, Notice, Refusal, Transition, What};
use crate::count::Count;
use crate::event::Actor;
use crate::failure::Failure;
use crate::id::Timestamp;
use crate::policy::{OnExhausted, Policy};
use crate::task::{
    Attempt, AttemptOutcome, Cause, Escalation, EscalationReason, Job, Phase, PhaseState, Queue, Rejection, Task, Usage,
};
use crate::text::normalised;

/// A transition in the making, for one phase of the task.
pub(super) struct Draft<'a> {
    pub(super) task: Task,
    pub(super) policy: &'a Policy,
    pub(super) now: Timestamp,
    effects: Vec<Effect>,
    at: usize,
}

impl<'a> Draft<'a> {
    pub(super) fn new(task: Task, policy: &'a Policy, now: Timestamp) -> Self {
        Self { task, policy, now, effects: Vec::new(), at: 0 }
    }

    /// Turns to the phase of that name, which must have a job.
    pub(super) fn with_phase(mut self, name: &str) -> Result<Self, Refusal> {
        let found = self.task.phases.iter().position(|p| p.name == name);
        self.at = found.ok_or_else(|| Refusal::Stale(format!("the task has no phase `{name}`")))?;
        if self.phase().job.is_none() {
            return Err(Refusal::Stale(format!("the phase `{name}` has no job: it is {}", self.phase().state)));
        }
        Ok(self)
    }

    /// Whatever the phase's pull request comes to, the phase does something else now.
    pub(super) fn stop_waiting(&mut self) {
        if let Some(pull_request) = self.phase_mut().pull_request.as_mut() {
            pull_request.waits = false;
        }
    }

    /// Turns to the phase of that name, whatever it does.
    pub(super) fn turn_to(&mut self, name: &str) {
        self.at = self.task.phases.iter().position(|p| p.name == name).unwrap_or(self.at);
    }

    /// Holds that the phase is at this attempt.
    pub(super) fn for_attempt(self, number: u32) -> Result<Self, Refusal> {
        match self.phase().attempt_number() {
            current if current == number => Ok(self),
            current => Err(Refusal::Stale(format!("it is about attempt {number}, and the phase is at {current}"))),
        }
    }

    /// Holds that the phase's job is one for this queue.
    pub(super) fn with_job_in(self, queue: Queue) -> Result<Self, Refusal> {
        match self.phase().job.as_ref().map(Job::queue) {
            Some(current) if current == queue => Ok(self),
            _ => Err(Refusal::Stale(format!("it is about a {queue} job, and the phase is {}", self.phase().state))),
        }
    }

    pub(super) fn phase(&self) -> &Phase {
        &self.task.phases[self.at]
    }

    pub(super) fn phase_mut(&mut self) -> &mut Phase {
        &mut self.task.phases[self.at]
    }

    /// The attempt that the phase is at. A phase with a job always has one: [`Draft::start_attempt`] made it.
    pub(super) fn attempt(&self) -> Result<&Attempt, Refusal> {
        self.phase().attempts.last().ok_or_else(no_attempt)
    }

    pub(super) fn attempt_mut(&mut self) -> Result<&mut Attempt, Refusal> {
        self.phase_mut().attempts.last_mut().ok_or_else(no_attempt)
    }

    /// The attempts that the phase may have.
    pub(super) fn cap(&self) -> u32 {
        let phase = self.phase();
        self.policy.attempts(phase).saturating_add(phase.granted)
    }

    pub(super) fn count(&mut self, metric: &'static str, labels: &[&str]) {
        self.effects.push(Effect::Count(Count::new(metric, labels)));
    }

    pub(super) fn notify(&mut self, what: What, detail: impl Into<String>) {
        let phase = self.phase();
        let notice =
            Notice { what, phase: Some(phase.name.clone()), attempt: phase.attempt_number(), detail: detail.into() };
        self.effects.push(Effect::Notify(notice));
    }

    pub(super) fn spend(&mut self, usage: Usage) {
        self.task.spent += usage;
    }

    /// The review that comes next, after these reviewers have been asked. Says so where the reviewer has the coder's
    /// model and should not judge its change: a review that is less worth is better than none.
    pub(super) fn next_review(&mut self, asked: &[&str]) -> Result<Job, Refusal> {
        let policy = self.policy;
        let agent = &self.attempt()?.agent;
        let (reviewer, may_judge) = policy.next_reviewer(agent, asked);
        if !may_judge {
            let why = format!("{reviewer} judges what its own model made: there is no other reviewer for {agent}");
            self.notify(What::SameModel, why);
        }
        Ok(Job::Review { reviewer: reviewer.to_owned() })
    }

    /// Gives the phase a job. A review by a person is an escalation at once.
    pub(super) fn enqueue(&mut self, job: Job, delay_ms: u64) {
        let spends = !matches!(job, Job::Land);
        if spends && self.budget_is_spent() {
            self.phase_mut().job = Some(job);
            self.escalate(EscalationReason::BudgetExhausted, self.what_was_spent());
            return;
        }
        let state = match job.queue() {
            Queue::Code => PhaseState::Coding,
            Queue::Review => PhaseState::Reviewing,
            Queue::Land => PhaseState::Landing,
        };
        let policy = self.policy;
        self.stop_waiting();
        let phase = self.phase_mut();
        phase.state = state;
        if let Job::Review { reviewer } = &job
            && policy.is_person(reviewer)
        {
            let detail = format!("{reviewer} is a person and reviews this change");
            phase.job = Some(job);
            return self.escalate(EscalationReason::HumanReview, detail);
        }
        let effect = Effect::Enqueue {
            phase: phase.name.clone(),
            queue: job.queue(),
            attempt: phase.attempt_number(),
            delay_ms,
        };
        phase.job = Some(job);
        self.effects.push(effect);
    }

    /// Puts the phase's job back after a failure, uncharged; the wait grows with `tries`.
    pub(super) fn requeue(&mut self, tries: usize, failure: &Failure) {
        let delay = self.policy.backoff(tries as u32, failure.retry_after_ms);
        if let Some(job) = self.phase().job.clone() {
            self.notify(What::Requeued, format!("again in {}: {failure}", seconds(delay)));
            self.enqueue(job, delay);
        }
    }

    /// Starts the phase's next attempt; its first where it waited.
    pub(super) fn start_attempt(&mut self) {
        let waited = self.phase().state == PhaseState::Waiting;
        let number = if waited { 1 } else { self.phase().attempt_number().saturating_add(1) };
        let agent = self.next_agent(waited);
        if self.budget_is_spent() {
            self.phase_mut().job = Some(Job::Code { agent });
            self.escalate(EscalationReason::BudgetExhausted, self.what_was_spent());
            return;
        }
        let started_at = self.now;
        if waited {
            // What was granted was granted to the round before.
            self.phase_mut().granted = 0;
        }
        self.phase_mut().approval = None;
        self.phase_mut().attempts.push(Attempt::new(number, &agent, started_at));
        self.notify(What::AttemptStarted, format!("agent {agent}"));
        self.enqueue(Job::Code { agent }, 0);
    }

    /// Who makes the next attempt: the agent of the next rung, where the last rejection repeated itself the next other one.
    fn next_agent(&self, is_new_round: bool) -> String {
        let made_by = if is_new_round { Vec::new() } else { self.made_by() };
        let last = self.attempt().ok().and_then(|attempt| attempt.rejection.as_ref());
        let repeats = last.is_some_and(|rejection| self.repeats(rejection).is_ok_and(|why| why.is_some()));
        let other = self.policy.next_other_agent(&made_by).filter(|_| repeats);
        other.unwrap_or_else(|| self.policy.next_agent(&made_by)).to_owned()
    }

    /// The agents of the round's attempts, in order.
    fn made_by(&self) -> Vec<&str> {
        self.phase().round().iter().map(|attempt| attempt.agent.as_str()).collect()
    }

    /// Starts every phase whose predecessors are all accepted.
    pub(super) fn start_ready_phases(&mut self) {
        let accepted: Vec<String> =
            self.task.phases.iter().filter(|p| p.state == PhaseState::Accepted).map(|p| p.name.clone()).collect();
        let here = self.at;
        for at in 0..self.task.phases.len() {
            let phase = &self.task.phases[at];
            // A phase that waits for a person has an escalation, not a job.
            let is_free = phase.state == PhaseState::Waiting && self.task.open_escalation(&phase.name).is_none();
            if is_free && phase.after.iter().all(|name| accepted.contains(name)) {
                self.at = at;
                self.start_attempt();
            }
        }
        self.at = here;
    }

    /// Ends the current attempt with a rejection.
    pub(super) fn close_attempt(
        &mut self,
        outcome: AttemptOutcome,
        rejection: Option<Rejection>,
    ) -> Result<(), Refusal> {
        let now = self.now;
        let attempt = self.attempt_mut()?;
        attempt.outcome = Some(outcome);
        attempt.finished_at = Some(now);
        if rejection.is_some() {
            attempt.rejection = rejection;
        }
        Ok(())
    }

    /// Rejects the current attempt: the next one is led by the rejection, unless the cap is reached or the rejection
    /// repeats itself.
    pub(super) fn refile(
        &mut self,
        outcome: AttemptOutcome,
        rejection: Rejection,
        on_exhausted: OnExhausted,
    ) -> Result<(), Refusal> {
        let repeats = self.repeats(&rejection)?;
        let number = self.attempt()?.number;
        let (cause, demand) = (rejection.cause, rejection.required_change.clone());
        self.close_attempt(outcome, Some(rejection))?;
        if repeats.is_some() {
            self.count("repeated_rejections_total", &[]);
        }
        if number >= self.cap() {
            match on_exhausted {
                OnExhausted::Escalate => self.escalate(EscalationReason::AttemptsExhausted, demand),
                OnExhausted::Accept => self.approve(Actor::Policy)?,
                OnExhausted::Reject => self.reject()?,
            }
        } else if let (Some(why), None) = (repeats, self.policy.next_other_agent(&self.made_by())) {
            self.escalate(EscalationReason::RepeatedRejection, format!("{why}: {demand}"));
        } else {
            self.count("refiles_total", &[cause.as_str()]);
            self.notify(What::Refiled, demand);
            self.start_attempt();
        }
        Ok(())
    }

    /// How the rejection repeats the one before, if it does: the same required change again, or the same diff again.
    ///
    /// A gate's imperative is the same sentence whatever is wrong, so for a gate only the diff tells. An empty diff is
    /// no diff.
    fn repeats(&self, rejection: &Rejection) -> Result<Option<String>, Refusal> {
        let Some(led_by) = self.phase().leading_rejection() else { return Ok(None) };
        let number = self.attempt()?.number;
        if self.is_same_diff_as_before()? {
            return Ok(Some(format!("attempt {number} left the same diff as the attempt before it")));
        }
        let same_demand = rejection.cause == Cause::Review
            && led_by.cause != Cause::Gate
            && normalised(&led_by.required_change) == normalised(&rejection.required_change);
        Ok(same_demand.then(|| format!("attempt {number} was rejected for what it had been told to do")))
    }

    /// Whether the attempt left what the one before it left.
    pub(super) fn is_same_diff_as_before(&self) -> Result<bool, Refusal> {
        let before = match self.phase().round() {
            [.., previous, _] => previous.change.as_ref(),
            _ => None,
        };
        let now = self.attempt()?.change.as_ref();
        Ok(match (before, now) {
            (Some(before), Some(now)) => !now.patch_id.is_empty() && before.patch_id == now.patch_id,
            _ => false,
        })
    }

    /// Parks the phase for a person.
    pub(super) fn escalate(&mut self, reason: EscalationReason, detail: impl Into<String>) {
        let detail = crate::text::cut(&detail.into(), 4_000);
        self.stop_waiting();
        let job = self.phase_mut().job.take();
        let escalation = Escalation {
            id: format!("{}.{}", self.task.id, self.task.escalations.len() + 1),
            phase: self.phase().name.clone(),
            attempt: self.phase().attempt_number(),
            reason,
            detail: detail.clone(),
            at: self.now,
            job,
            decision: None,
        };
        self.count("escalations_total", &[reason.as_str()]);
        self.notify(What::Escalated, format!("{reason}: {detail}"));
        self.task.escalations.push(escalation);
    }

    /// A job for which no outcome can be had.
    pub(super) fn poisoned(mut self, why: &str) -> Transition {
        let job = self.phase().job.as_ref().map_or("", |j| j.queue().as_str());
        self.escalate(EscalationReason::PoisonJob, format!("the {job} job {why}"));
        self.done()
    }

    /// Takes the phase's job away, whoever has it.
    pub(super) fn drop_job(&mut self) {
        if self.phase_mut().job.take().is_some() {
            let phase = self.phase().name.clone();
            self.effects.push(Effect::Drop { phase });
        }
    }

    fn budget_is_spent(&self) -> bool {
        let (budget, spent, free) = (self.policy.budget, self.task.spent, self.task.spent_before_budget);
        let over = |limit: Option<u64>, used: u64, free: u64| limit.is_some_and(|l| used.saturating_sub(free) > l);
        let tokens = |u: Usage| u.input_tokens.saturating_add(u.output_tokens);
        over(budget.tokens, tokens(spent), tokens(free))
            || over(budget.cost_micros, spent.cost_micros, free.cost_micros)
            || over(budget.wall_ms, spent.wall_ms, free.wall_ms)
    }

    fn what_was_spent(&self) -> String {
        let s = self.task.spent;
        let tokens = s.input_tokens.saturating_add(s.output_tokens);
        let usd = format!("{}.{:06} USD", s.cost_micros / 1_000_000, s.cost_micros % 1_000_000);
        let spent = match (tokens, s.cost_micros, s.cost_unknown) {
            (0, 0, true) => "tokens and cost unknown".to_owned(),
            (_, 0, true) => format!("{tokens} tokens, cost unknown"),
            (_, _, true) => format!("{tokens} tokens, at least {usd}"),
            (_, _, false) => format!("{tokens} tokens, {usd}"),
        };
        format!("{spent}, {} s of work", s.wall_ms / 1_000)
    }
}

fn no_attempt() -> Refusal {
    Refusal::NotAllowed("the phase has no attempt yet".to_owned())
}

/// Milliseconds as people read them.
fn seconds(ms: u64) -> String {
    if ms < 1_000 { format!("{ms} ms") } else { format!("{} s", ms.div_ceil(1_000)) }
}
