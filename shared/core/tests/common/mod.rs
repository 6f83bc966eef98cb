//! A small world for tests of `decide`: one task, and steps written as short texts.
//!
//! A step is `[phase:] words`, for example `coded`, `gate lint`, `build: approved 0.9`, `person refile Fix it.`; see
//! [`World::event`]. Without a phase it is about the first one that has a job, else the first that waits for a person.

// Each test binary uses its own part of this.
#![allow(dead_code)]

pub(crate) mod histories;

use std::fmt::Write as _;

use refile_core::count::Count;
use refile_core::decide::submission::{NewTask, Workflow, submit};
use refile_core::event::{HumanReview, News, PersonDecision};
use refile_core::failure::{Failure, FailureKind};
use refile_core::gate::GateReport;
use refile_core::task::{Change, PhaseLimits, PullRequest, Review, Usage};
use refile_core::verdict::{Verdict, VerdictKind};
use refile_core::{
    Effect, Event, Job, Outcome, Phase, Policy, Priority, Refusal, Task, TaskId, Timestamp, Transition, decide,
};

/// What the task of a world describes.
pub(crate) const DESCRIPTION: &str = "Write an HTTP client.\n\nIt must not panic.\n";

/// A task under way.
#[derive(Debug, Clone)]
pub(crate) struct World {
    pub(crate) policy: Policy,
    pub(crate) task: Task,
    /// Grows with every event, so that each change is a new one unless it is said to be the same.
    pub(crate) step: u64,
}

/// A workflow out of names and predecessors: `plan, build<plan, ship<plan+build`.
pub(crate) fn workflow(phases: &str) -> Workflow {
    let phase = |text: &str| {
        let (name, after) = text.trim().split_once('<').unwrap_or((text.trim(), ""));
        let after = after.split('+').filter(|a| !a.is_empty()).map(str::to_owned).collect();
        (name.to_owned(), after, PhaseLimits::default())
    };
    Workflow { name: "custom".to_owned(), phases: phases.split(',').map(phase).collect(), lands: true }
}

/// Submits a task.
pub(crate) fn submitted(policy: &Policy, workflow: Workflow) -> Transition {
    let new = NewTask {
        title: "Client".to_owned(),
        description: DESCRIPTION.to_owned(),
        repository: ".".to_owned(),
        base: "main".to_owned(),
        priority: Priority::Normal,
        key: None,
        labels: Vec::new(),
        workflow,
    };
    let id = TaskId::parse("t1").unwrap_or_else(|e| panic!("{e}"));
    submit(id, new, policy, Timestamp(1_000))
}

impl World {
    /// A fresh task of the built-in workflow.
    pub(crate) fn new(policy: Policy) -> Self {
        Self::of(policy, Workflow::default())
    }

    /// A fresh task of this workflow.
    pub(crate) fn of(policy: Policy, workflow: Workflow) -> Self {
        let task = submitted(&policy, workflow).task;
        Self { policy, task, step: 0 }
    }

    /// Decides on an event and takes over what follows.
    pub(crate) fn apply(&mut self, event: &Event) -> Result<Transition, Refusal> {
        let done = decide(&self.task, event, &self.policy, Timestamp(1_000 + self.step))?;
        self.task = done.task.clone();
        Ok(done)
    }

    /// One step that must be possible.
    #[track_caller]
    pub(crate) fn must(&mut self, step: &str) -> Transition {
        let event = self.event(step);
        self.apply(&event).unwrap_or_else(|refusal| panic!("`{step}`: {refusal}\n{:#?}", self.task))
    }

    /// Steps that must be possible, split by `;`.
    #[track_caller]
    pub(crate) fn run(&mut self, steps: &str) {
        for step in steps.split(';').map(str::trim).filter(|s| !s.is_empty()) {
            self.must(step);
        }
    }

    /// The phase that steps are about.
    pub(crate) fn focus(&self) -> &Phase {
        let phases = &self.task.phases;
        let waits = |p: &&Phase| self.task.open_escalation(&p.name).is_some() || p.waiting_pull_request().is_some();
        let parked = || phases.iter().find(waits);
        phases.iter().find(|p| p.job.is_some()).or_else(parked).unwrap_or(&phases[phases.len() - 1])
    }

    /// The event that a step's text stands for.
    pub(crate) fn event(&mut self, step: &str) -> Event {
        self.step += 1;
        let named = step.split_once(": ").filter(|(name, _)| self.task.phase(name).is_some());
        let (phase, words) = match named {
            Some((name, words)) => (self.task.phase(name).cloned().unwrap_or_else(|| self.focus().clone()), words),
            None => (self.focus().clone(), step),
        };
        let (word, rest) = words.trim().split_once(' ').unwrap_or((words.trim(), ""));
        let outcome = match word {
            "coded" => self.coded(&phase, rest == "same", None),
            "gate" => self.coded(&phase, rest.ends_with(" same"), Some(rest.trim_end_matches(" same"))),
            "agent-failed" => Outcome::AgentFailed {
                failure: failure(rest),
                prompt_digest: None,
                transcript: None,
                usage: Usage::default(),
                change: None,
            },
            "no-gate" => Outcome::AgentFailed {
                failure: failure(rest),
                prompt_digest: Some("d".to_owned()),
                transcript: None,
                usage: usage(),
                change: Some(self.change()),
            },
            "broken-off" => Outcome::AgentFailed {
                failure: failure(rest),
                prompt_digest: Some("d".to_owned()),
                transcript: None,
                usage: usage(),
                change: Some(Change { unfinished: true, ..self.change() }),
            },
            "asks" => Outcome::NeedsInput {
                words: "Which port?".to_owned(),
                prompt_digest: "d".to_owned(),
                transcript: None,
                usage: usage(),
            },
            "review-failed" => review(&phase, Verdict::retry("no reply"), Some(failure(rest))),
            "landed" => Outcome::Landed { commit: format!("merged{}", self.step) },
            "rebased" => Outcome::Rebased { change: self.change() },
            "opened" => Outcome::PullRequestOpen { pull_request: pull_request(&phase) },
            "ended" => {
                let Event::Forge { news, .. } = self.news(&phase, rest) else { panic!("no news: {rest}") };
                Outcome::PullRequestEnded { pull_request: pull_request(&phase), news }
            }
            "forge" => return self.news(&phase, rest),
            "conflict" => Outcome::LandingRejected { gate: gate("merge_conflict", false) },
            "called-off" => Outcome::CalledOff,
            "land-failed" => Outcome::LandingFailed { failure: failure(rest) },
            "poison" => return Event::Poisoned { phase: phase.name, why: "was delivered 6 times".to_owned() },
            "cancel" => return Event::Cancelled { by: "operator".to_owned() },
            "person" => return self.decided(&phase, rest),
            verdict => review(&phase, read_verdict(verdict, rest), None),
        };
        Event::Outcome { attempt: phase.attempt_number(), phase: phase.name, outcome }
    }

    fn coded(&self, phase: &Phase, same: bool, failed: Option<&str>) -> Outcome {
        let mut change = self.change();
        if let (true, Some(previous)) = (same, phase.previous_change()) {
            change.patch_id.clone_from(&previous.patch_id);
        }
        let mut gates = vec![gate("diff_policy", true)];
        if failed == Some("empty_diff") {
            change.patch_id.clear();
        }
        gates.extend(failed.map(|name| gate(name, false)));
        Outcome::Coded { change, gates, prompt_digest: "d".to_owned(), transcript: None, usage: usage() }
    }

    fn change(&self) -> Change {
        Change {
            branch: format!("refile/t1/{}", self.step),
            base_commit: "base".to_owned(),
            head: format!("head{}", self.step),
            patch_id: format!("patch{}", self.step),
            files: 1,
            lines: 0,
            diff: None,
            summary: String::new(),
            unfinished: false,
        }
    }

    /// `merged`, `closed`, `closed ann`, `changes ID WORDS`, `moved`, `not-yet WHY`; `@8` before it makes it news of another pull request.
    fn news(&self, phase: &Phase, rest: &str) -> Event {
        let (number, rest) = rest.strip_prefix("@8 ").map_or((7, rest), |rest| (8, rest));
        let (word, rest) = rest.split_once(' ').unwrap_or((rest, ""));
        let head = phase.pull_request.as_ref().map_or_else(|| pull_request(phase).head, |p| p.head.clone());
        let news = match word {
            "merged" => News::Merged { commit: format!("merged{}", self.step), head, by: Some("ann".to_owned()) },
            "closed" => News::Closed { by: Some(rest.to_owned()).filter(|by| !by.is_empty()) },
            "conflicts" => News::Conflicts,
            "moved" => News::BaseMoved { base: format!("base{}", self.step) },
            "not-yet" => News::NotYet { why: rest.to_owned() },
            "changes" => {
                let (id, words) = rest.split_once(' ').unwrap_or((rest, ""));
                let id = if id == "new" { format!("r{}", self.step) } else { id.to_owned() };
                let review = HumanReview { id, by: "ann".to_owned(), head, words: words.to_owned() };
                News::ChangesRequested { reviews: vec![review] }
            }
            other => panic!("no such news: {other}"),
        };
        Event::Forge { phase: phase.name.clone(), number, news }
    }

    fn decided(&self, phase: &Phase, rest: &str) -> Event {
        let (word, rest) = rest.split_once(' ').unwrap_or((rest, ""));
        let decision = match word {
            "approve" => PersonDecision::Approve,
            "retry" => PersonDecision::Retry,
            "reject" => PersonDecision::Reject,
            "refile" => {
                let (attempts, words) = match rest.split_once('x') {
                    Some((n, words)) if n.parse::<u32>().is_ok() => (n.parse().unwrap_or(1), words),
                    _ => (1, rest),
                };
                PersonDecision::Refile { required_change: words.trim().to_owned(), attempts }
            }
            other => panic!("no such decision: {other}"),
        };
        let latest = self.task.escalations.iter().rev().find(|e| e.phase == phase.name);
        let escalation = latest.map_or_else(|| "t1.99".to_owned(), |e| e.id.clone());
        Event::Decided { escalation, decision, by: "ann".to_owned(), note: None }
    }
}

/// There is one for a task, whatever its head is.
fn pull_request(phase: &Phase) -> PullRequest {
    let head = phase.attempt().and_then(|a| a.change.as_ref()).map_or_else(String::new, |c| c.head.clone());
    PullRequest {
        number: 7,
        url: "https://forge.example/pulls/7".to_owned(),
        branch: "refile/t1/pull-request".to_owned(),
        attempt: 0,
        head,
        base_commit: "base".to_owned(),
        ..PullRequest::default()
    }
}

/// 100 tokens.
fn usage() -> Usage {
    Usage { input_tokens: 60, output_tokens: 40, cost_micros: 10, wall_ms: 1_000, cost_unknown: false }
}

pub(crate) fn gate(name: &str, passed: bool) -> GateReport {
    let output = if passed { String::new() } else { format!("the output of {name}\n") };
    GateReport { name: name.to_owned(), passed, required_change: None, output, log: None, duration_ms: 1 }
}

/// A failure of the kind that the text names; a time limit where it names none.
fn failure(kind: &str) -> Failure {
    let kind = FailureKind::ALL.into_iter().find(|k| k.as_str() == kind).unwrap_or(FailureKind::Timeout);
    Failure::new(kind, "it did not work")
}

/// A review of the change that the phase has.
pub(crate) fn review(phase: &Phase, verdict: Verdict, failure: Option<Failure>) -> Outcome {
    let head = phase.attempt().and_then(|a| a.change.as_ref()).map_or_else(String::new, |c| c.head.clone());
    // `of another head` in the critique makes it one of another commit.
    let head = if verdict.critique == "stale" { "another".to_owned() } else { head };
    let reviewer = match &phase.job {
        Some(Job::Review { reviewer }) => reviewer.clone(),
        _ => "default".to_owned(),
    };
    Outcome::Reviewed(Review { failure, usage: usage(), ..Review::new(reviewer, head, verdict) })
}

/// `KIND CONF [phase:NAME] [stale] [demand]`.
fn read_verdict(kind: &str, rest: &str) -> Verdict {
    let verdict = VerdictKind::parse(kind).unwrap_or_else(|| panic!("no such step: {kind}"));
    let (conf, rest) = rest.split_once(' ').unwrap_or((rest, ""));
    let (phase, rest) = match rest.strip_prefix("phase:") {
        Some(rest) => rest.split_once(' ').map_or((Some(rest), ""), |(phase, rest)| (Some(phase), rest)),
        None => (None, rest),
    };
    let is_stale = rest == "stale";
    let demand = match (verdict, rest) {
        (VerdictKind::NeedsChanges | VerdictKind::RetryPredecessor, "" | "stale") => "Handle the error.",
        (VerdictKind::NeedsChanges | VerdictKind::RetryPredecessor, "blank") => " ",
        (_, rest) => rest,
    };
    Verdict {
        verdict,
        required_change: demand.to_owned(),
        critique: if is_stale { "stale" } else { "It panics." }.to_owned(),
        conf: conf.parse().unwrap_or(0.0),
        phase: phase.map(str::to_owned),
    }
}

/// What a step led to, in one line: the phase's state and attempt, the task's state, and the effects without notices.
pub(crate) fn outcome_line(phase: &str, result: &Result<Transition, Refusal>) -> String {
    let done = match result {
        Ok(done) => done,
        Err(Refusal::Stale(_)) => return "refused: stale".to_owned(),
        Err(Refusal::NotAllowed(_)) => return "refused: not allowed".to_owned(),
    };
    let found = done.task.phase(phase).map(|p| (p.state.as_str(), p.attempt_number()));
    let (state, attempt) = found.unwrap_or(("gone", 0));
    let parked = if done.task.open_escalation(phase).is_some() { ", parked" } else { "" };
    let waits = found_waiting(done, phase);
    format!("{state} #{attempt}{parked}{waits}, {}: {}", done.task.state, effects(phase, done))
}

fn found_waiting(done: &Transition, phase: &str) -> &'static str {
    let waits = done.task.phase(phase).is_some_and(|p| p.waiting_pull_request().is_some());
    if waits { ", proposed" } else { "" }
}

/// The effects without notices.
pub(crate) fn effects(phase: &str, done: &Transition) -> String {
    let mut text = String::new();
    for effect in &done.effects {
        if !text.is_empty() && !matches!(effect, Effect::Notify(_)) {
            text.push_str(", ");
        }
        // Who gets the job, where it is not the default.
        let by = |p: &str| match done.task.phase(p).and_then(|p| p.job.as_ref()) {
            Some(Job::Code { agent: by } | Job::Review { reviewer: by }) if by != "default" => format!(" ({by})"),
            _ => String::new(),
        };
        let of = |p: &str| if p == phase { String::new() } else { format!("{p}/") };
        let _ = match effect {
            Effect::Enqueue { phase: p, queue, delay_ms: 0, attempt } => {
                write!(text, "enqueue {}{queue} #{attempt}{}", of(p), by(p))
            }
            Effect::Enqueue { phase: p, queue, delay_ms, attempt } => {
                write!(text, "enqueue {}{queue} #{attempt}{} in {} s", of(p), by(p), delay_ms / 1_000)
            }
            Effect::Drop { phase: p } => write!(text, "drop {}job", of(p)),
            Effect::Count(count) => write!(text, "count {}", counted(count)),
            Effect::Notify(_) => Ok(()),
        };
    }
    text
}

/// A count as a person writes it.
fn counted(count: &Count) -> String {
    if count.labels.is_empty() {
        count.metric.to_owned()
    } else {
        format!("{}{{{}}}", count.metric, count.labels.join(","))
    }
}

/// Runs `before`, then decides on `step`, and compares. All cases of a table are reported at once.
pub(crate) struct Table {
    start: World,
    wrong: String,
}

impl Table {
    pub(crate) fn new(policy: Policy) -> Self {
        Self { start: World::new(policy), wrong: String::new() }
    }

    pub(crate) fn of(policy: Policy, phases: &str) -> Self {
        Self { start: World::of(policy, workflow(phases)), wrong: String::new() }
    }

    #[track_caller]
    pub(crate) fn case(&mut self, before: &str, step: &str, expect: &str) {
        let mut world = self.start.clone();
        world.run(before);
        let event = world.event(step);
        let phase = match &event {
            Event::Outcome { phase, .. } | Event::Poisoned { phase, .. } | Event::Forge { phase, .. } => phase.clone(),
            _ => world.focus().name.clone(),
        };
        let task_before = world.task.clone();
        let result = world.apply(&event);
        if result.is_err() {
            assert_eq!(world.task, task_before);
        }
        let said = outcome_line(&phase, &result);
        if said != expect {
            let _ = writeln!(self.wrong, "[{before}] {step}\n  expected {expect}\n  came to  {said}");
        }
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        assert!(std::thread::panicking() || self.wrong.is_empty(), "\n{}", self.wrong);
    }
}
