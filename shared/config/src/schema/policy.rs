//! The rules by which the fleet decides: `[policy]`.

use refile_core::policy::{Budget, ContinueFrom, OnExhausted, Policy};
use refile_core::prompt::Carry;
use serde::{Deserialize, Serialize};

use super::Config;
use crate::duration::Span;

/// The rules by which the fleet decides.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PolicySection {
    /// Attempts that a phase has.
    pub max_attempts: u32,
    /// A confidence must be strictly greater than this to count.
    pub confidence: f64,
    /// `escalate`, `accept` or `reject` when a reviewer rejects the last attempt.
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
    /// The first wait before a failed job is tried again; it doubles each time.
    pub backoff: Span,
    /// The longest wait before a failed job is tried again.
    pub max_backoff: Span,
    /// `previous` or `base`: where the next attempt starts.
    pub continue_from: ContinueFrom,
    /// The last attempt that a phase has starts from the base, whatever `continue_from` says.
    pub fresh_last: bool,
    /// Agents by attempt; empty for the first of `[agents]` always.
    pub ladder: Vec<String>,
    /// Run every gate even when one has failed.
    pub keep_going: bool,
    /// What a task may use up before a person is asked.
    pub budget: BudgetSection,
    /// What is carried from one attempt into the next.
    pub carry: CarrySection,
}

impl Default for PolicySection {
    fn default() -> Self {
        let policy = Policy::default();
        Self {
            max_attempts: policy.max_attempts,
            confidence: policy.confidence,
            on_exhausted: policy.on_exhausted,
            max_reviews: policy.max_reviews,
            max_review_failures: policy.max_review_failures,
            max_infra_failures: policy.max_infra_failures,
            max_land_failures: policy.max_land_failures,
            max_deliveries: policy.max_deliveries,
            backoff: Span(std::time::Duration::from_millis(policy.backoff_ms)),
            max_backoff: Span(std::time::Duration::from_millis(policy.max_backoff_ms)),
            continue_from: policy.continue_from,
            fresh_last: false,
            ladder: Vec::new(),
            keep_going: false,
            budget: BudgetSection::default(),
            carry: CarrySection::default(),
        }
    }
}

/// What a task may use up; a key that is absent is no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BudgetSection {
    /// Tokens in and out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// US dollars.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<f64>,
    /// Working time of agents and reviewers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wall: Option<Span>,
}

/// What is carried from one attempt into the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CarrySection {
    /// Characters of the critique.
    pub critique_chars: usize,
    /// How many demands of still earlier attempts are repeated.
    pub still_required: usize,
}

impl Default for CarrySection {
    fn default() -> Self {
        let Carry { critique_chars, still_required } = Carry::default();
        Self { critique_chars, still_required }
    }
}

impl Config {
    /// The rules for [`refile_core::decide()`].
    pub fn policy(&self) -> Policy {
        let p = &self.policy;
        let first = |names: Option<&String>| vec![names.cloned().unwrap_or_else(|| "default".to_owned())];
        let reviewers = self.reviewers_in_turn();
        Policy {
            max_attempts: p.max_attempts,
            confidence: p.confidence,
            on_exhausted: p.on_exhausted,
            max_reviews: p.max_reviews,
            max_review_failures: p.max_review_failures,
            max_infra_failures: p.max_infra_failures,
            max_land_failures: p.max_land_failures,
            max_deliveries: p.max_deliveries,
            backoff_ms: p.backoff.as_millis(),
            max_backoff_ms: p.max_backoff.as_millis(),
            continue_from: p.continue_from,
            fresh_last: p.fresh_last,
            budget: Budget {
                tokens: p.budget.tokens,
                cost_micros: p.budget.cost_usd.map(|usd| (usd * 1e6) as u64),
                wall_ms: p.budget.wall.map(Span::as_millis),
            },
            ladder: if p.ladder.is_empty() { first(self.agents.keys().next()) } else { p.ladder.clone() },
            models: self.agents.iter().filter_map(|(name, a)| Some((name.clone(), a.model.clone()?))).collect(),
            reviewers: if reviewers.is_empty() { Policy::default().reviewers } else { reviewers },
            ..Policy::default()
        }
    }

    /// What is carried from one attempt into the next.
    pub fn carry(&self) -> Carry {
        let c = self.policy.carry;
        Carry { critique_chars: c.critique_chars, still_required: c.still_required }
    }
}
