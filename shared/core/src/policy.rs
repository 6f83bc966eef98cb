//! The limits that a fleet sets. Each budget is counted apart and each is bounded.

use serde::{Deserialize, Serialize};

/// What happens when the last attempt's change is rejected by a reviewer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnExhausted {
    /// A person decides.
    #[default]
    Escalate,
    /// The last change is taken as it is. Never past a failed gate.
    Accept,
    /// The task is rejected.
    Reject,
}

/// Where the next attempt starts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ContinueFrom {
    /// From what the previous attempt left, brought onto the newest base.
    #[default]
    Previous,
    /// From the base branch, as the first attempt did.
    Base,
}

/// What a task may use up before a person is asked. `None` is no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Budget {
    /// Tokens in and out, over all attempts and reviews.
    pub tokens: Option<u64>,
    /// Cost in millionths of a US dollar.
    pub cost_micros: Option<u64>,
    /// Working time of agents and reviewers, in milliseconds.
    pub wall_ms: Option<u64>,
}

/// The rules by which [`crate::decide()`] decides.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Policy {
    /// Attempts that a phase has (the cap); at least 1.
    pub max_attempts: u32,
    /// A confidence must be strictly greater than this to count.
    pub confidence: f64,
    /// What follows when the last attempt is rejected by a reviewer.
    pub on_exhausted: OnExhausted,
    /// Opinions of low confidence on one attempt, after which a person decides.
    pub max_reviews: u32,
    /// Failed reviews of one attempt, after which a person is asked.
    pub max_review_failures: u32,
    /// Failed runs of one attempt's agent, after which a person is asked.
    pub max_infra_failures: u32,
    /// Failed landings of one attempt, after which a person is asked.
    pub max_land_failures: u32,
    /// Deliveries of one job, after which it is taken for a poison job.
    pub max_deliveries: u32,
    /// How often a phase may send each of its predecessors back.
    pub max_predecessor_retries: u32,
    /// The first wait before a job that failed is tried again, in milliseconds; it doubles each time.
    pub backoff_ms: u64,
    /// The longest wait before a job that failed is tried again, in milliseconds.
    pub max_backoff_ms: u64,
    /// Where the next attempt starts.
    pub continue_from: ContinueFrom,
    /// What a task may use up.
    pub budget: Budget,
    /// Agents by attempt: the first makes the first attempt, each rejection goes one further.
    pub ladder: Vec<String>,
    /// Reviewers in the order in which they are asked.
    pub reviewers: Vec<String>,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            max_attempts: 3,
            confidence: 0.6,
            on_exhausted: OnExhausted::Escalate,
            max_reviews: 3,
            max_review_failures: 5,
            max_infra_failures: 5,
            max_land_failures: 5,
            max_deliveries: 5,
            max_predecessor_retries: 2,
            backoff_ms: 2_000,
            max_backoff_ms: 300_000,
            continue_from: ContinueFrom::Previous,
            budget: Budget::default(),
            ladder: vec!["default".to_owned()],
            reviewers: vec!["default".to_owned()],
        }
    }
}

impl Policy {
    /// The wait before try number `tries + 1`, in milliseconds, after `tries` failures (from 1).
    ///
    /// It doubles up to `max_backoff_ms`; `asked` (what the other side asked for) is never undercut, but never followed
    /// beyond a day.
    pub fn backoff(&self, tries: u32, asked: Option<u64>) -> u64 {
        const DAY_MS: u64 = 86_400_000;
        let doubled = self.backoff_ms.saturating_mul(1 << tries.saturating_sub(1).min(20));
        doubled.min(self.max_backoff_ms).max(asked.unwrap_or(0).min(DAY_MS))
    }

    /// The agent for an attempt, by its number (from 1).
    pub fn agent(&self, attempt: u32) -> &str {
        let rung = (attempt.saturating_sub(1) as usize).min(self.ladder.len().saturating_sub(1));
        self.ladder.get(rung).map_or("default", String::as_str)
    }

    /// Whether the ladder has an agent for the attempt after this one that is not the same.
    pub fn has_stronger_agent_after(&self, attempt: u32) -> bool {
        self.agent(attempt) != self.agent(attempt + 1)
    }

    /// The reviewer to ask after `opinions` others have spoken on the same attempt.
    pub fn reviewer(&self, opinions: usize) -> &str {
        match self.reviewers.len() {
            0 => "default",
            n => &self.reviewers[opinions % n],
        }
    }

    /// The reviewer who follows this one; the same where there is no other.
    pub fn reviewer_after(&self, name: &str) -> &str {
        self.reviewer(self.reviewers.iter().position(|r| r == name).map_or(0, |at| at + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_doubles_is_bounded_and_heeds_what_was_asked() {
        let policy = Policy::default();
        let waits: Vec<_> = (1..=9).map(|n| policy.backoff(n, None)).collect();
        assert_eq!(waits, [2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 128_000, 256_000, 300_000]);
        assert_eq!(policy.backoff(1, Some(60_000)), 60_000);
        assert_eq!(policy.backoff(1, Some(u64::MAX)), 86_400_000);
        assert_eq!(policy.backoff(u32::MAX, None), 300_000);
    }

    #[test]
    fn reviewers_take_turns() {
        let policy = Policy { reviewers: vec!["strict".into(), "kind".into()], ..Policy::default() };
        assert_eq!(["strict", "kind", "gone"].map(|name| policy.reviewer_after(name)), ["kind", "strict", "strict"]);
        assert_eq!(Policy::default().reviewer_after("default"), "default");
        assert_eq!(Policy { reviewers: Vec::new(), ..policy }.reviewer_after("x"), "default");
    }

    #[test]
    fn the_ladder_ends_with_its_last_agent() {
        let policy = Policy { ladder: vec!["cheap".into(), "strong".into()], ..Policy::default() };
        assert_eq!([1, 2, 3].map(|n| policy.agent(n)), ["cheap", "strong", "strong"]);
        assert!(policy.has_stronger_agent_after(1));
        assert!(!policy.has_stronger_agent_after(2));
    }
}
