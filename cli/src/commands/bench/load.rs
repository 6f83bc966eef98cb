//! The tasks of a benchmark, and the agents that do nothing but say so. Points in time travel in the records themselves.

use std::sync::Arc;

use async_trait::async_trait;
use refile_core::decide::submission::{NewTask, Workflow};
use refile_core::gate::GateReport;
use refile_core::task::{Attempt, Change, Review, Usage};
use refile_core::verdict::{Verdict, VerdictKind};
use refile_core::{Outcome, Phase, Priority, Queue};
use refile_store::Claim;
use refile_worker::backpressure::Room;
use refile_worker::pool::Execute;
use serde::{Deserialize, Serialize};

use super::latency::{Latency, now_us};

/// What descriptions are made of.
const WORDS: [&str; 16] = [
    "handle",
    "the",
    "429",
    "responses",
    "of",
    "client",
    "and",
    "retry",
    "after",
    "header",
    "names",
    "time",
    "in",
    "queue",
    "a",
    "test",
];

/// What every part of the benchmark is told.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Load {
    /// How many tasks.
    pub(super) tasks: u64,
    /// Bytes of a description.
    pub(super) payload: usize,
    /// Jobs at once in one worker.
    pub(super) concurrency: usize,
    /// The share of tasks whose first attempt is rejected.
    pub(super) rejected: f64,
    /// Tasks due per second; as fast as they are taken where nothing is said.
    pub(super) rate: Option<f64>,
}

impl Load {
    /// The task of a number, which is to be done from `due_us` on.
    pub(super) fn task(&self, number: u64, due_us: u64) -> NewTask {
        let mut description = format!("{due_us} {number} ");
        // No two tasks have the same text, as no two real ones have: xorshift64 (Marsaglia 2003) draws the words.
        let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        while description.len() < self.payload {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            description.push_str(WORDS[state as usize % WORDS.len()]);
            description.push(' ');
        }
        description.truncate(self.payload.max(format!("{due_us} {number} ").len()));
        NewTask {
            title: format!("Task {number} of the benchmark"),
            description,
            repository: "bench".to_owned(),
            base: "main".to_owned(),
            priority: Priority::Normal,
            key: None,
            labels: Vec::new(),
            workflow: Workflow { lands: false, ..Workflow::default() },
        }
    }

    /// Whether the first attempt of a task is rejected: the same tasks in every run, spread evenly.
    fn is_rejected(&self, number: u64) -> bool {
        // A product just below a whole number is meant as that number.
        let rejected_before = |n: u64| (n as f64 * self.rejected + 1e-6).floor();
        rejected_before(number + 1) > rejected_before(number)
    }
}

/// The number at a word's place in a text that a benchmark wrote.
fn word(text: &str, place: usize) -> Option<u64> {
    text.split(' ').nth(place)?.parse().ok()
}

/// An agent and a reviewer that take no time. They note how long a claim took that follows from a submission or an
/// outcome.
#[derive(Debug)]
pub(super) struct NoOp {
    load: Load,
    pub(super) submit_to_claim: Latency,
    pub(super) outcome_to_claim: Latency,
}

impl NoOp {
    pub(super) fn new(load: Load) -> anyhow::Result<Self> {
        Ok(Self { load, submit_to_claim: Latency::new()?, outcome_to_claim: Latency::new()? })
    }

    /// When what led to this claim happened; a job that was delivered before has no such point in time.
    fn note(&self, claim: &Claim, phase: &Phase) {
        if claim.deliveries > 1 {
            return;
        }
        if claim.queue == Queue::Review {
            let summary = phase.attempt().and_then(|a| a.change.as_ref()).map(|c| c.summary.as_str());
            if let Some(reported) = summary.and_then(|s| word(s, 0)) {
                self.outcome_to_claim.since(reported);
            }
        } else if let Some(rejection) = phase.leading_rejection() {
            if let Some(reported) = word(&rejection.critique, 0) {
                self.outcome_to_claim.since(reported);
            }
        } else if let Some(due) = word(&claim.task.description, 0) {
            self.submit_to_claim.since(due);
        }
    }
}

#[async_trait]
impl Execute for NoOp {
    async fn room(&self) -> Room {
        Room::fixed(Arc::default())
    }

    async fn execute(&self, claim: &Claim) -> Outcome {
        let phase = claim.task.phase(&claim.lease.phase);
        if let Some(phase) = phase {
            self.note(claim, phase);
        }
        let number = word(&claim.task.description, 1).unwrap_or(0);
        match (claim.queue, phase.and_then(Phase::attempt)) {
            (Queue::Review, Some(attempt)) => {
                reviewed(attempt, claim.attempt == 1 && self.load.is_rejected(number), number)
            }
            _ => coded(claim, number),
        }
    }
}

/// A commit, a patch or a digest as a record holds it.
fn hex(kind: u64, number: u64, attempt: u32) -> String {
    format!("{:040x}", (u128::from(kind) << 96) + (u128::from(number) << 32) + u128::from(attempt))
}

/// A change that passed its gates.
fn coded(claim: &Claim, number: u64) -> Outcome {
    let (lease, attempt) = (&claim.lease, claim.attempt);
    let passed = |name: &str| GateReport {
        name: name.to_owned(),
        passed: true,
        required_change: None,
        output: String::new(),
        log: None,
        duration_ms: 1,
    };
    Outcome::Coded {
        change: Change {
            branch: format!("refile/{}/{}/{attempt}-{}", lease.task, lease.phase, lease.fence),
            base_commit: hex(1, 0, 0),
            head: hex(2, number, attempt),
            patch_id: hex(3, number, attempt),
            files: 1,
            lines: 0,
            diff: None,
            summary: now_us().to_string(),
            unfinished: false,
        },
        gates: vec![passed("lint"), passed("test")],
        prompt_digest: hex(4, number, attempt),
        transcript: None,
        usage: usage(),
    }
}

/// A verdict on the attempt.
fn reviewed(attempt: &Attempt, is_rejected: bool, number: u64) -> Outcome {
    let (verdict, required_change) = if is_rejected {
        (VerdictKind::NeedsChanges, "Retry only on 429.".to_owned())
    } else {
        (VerdictKind::Approved, String::new())
    };
    let critique = if is_rejected { format!("{} Other failures are retried too.", now_us()) } else { String::new() };
    let head = attempt.change.as_ref().map(|c| c.head.clone()).unwrap_or_default();
    let verdict = Verdict { verdict, required_change, critique, conf: 1.0, phase: None };
    let prompt_digest = Some(hex(5, number, attempt.number));
    Outcome::Reviewed(Review { prompt_digest, usage: usage(), ..Review::new("default", head, verdict) })
}

fn usage() -> Usage {
    Usage { input_tokens: 1_000, output_tokens: 100, cost_micros: 1_000, wall_ms: 1, cost_unknown: false }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_description_has_the_length_that_is_asked_for_and_tells_its_time() {
        let load = Load { tasks: 10, payload: 1_024, concurrency: 1, rejected: 0.3, rate: None };
        let task = load.task(7, 1_700_000_000_000_000);
        assert_eq!(task.description.len(), 1_024);
        assert_eq!((word(&task.description, 0), word(&task.description, 1)), (Some(1_700_000_000_000_000), Some(7)));
    }

    #[test]
    fn the_share_that_is_rejected_is_exact() {
        for (share, expected) in [(0.0, 0), (0.3, 300), (0.5, 500), (1.0, 1_000)] {
            let load = Load { tasks: 1_000, payload: 64, concurrency: 1, rejected: share, rate: None };
            assert_eq!((0..1_000).filter(|n| load.is_rejected(*n)).count(), expected, "{share}");
        }
    }
}
