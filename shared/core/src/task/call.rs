//! What is kept of each call of a model.

use serde::{Deserialize, Serialize};

use super::{Review, Usage, is_default};
use crate::failure::{Behaviour, FailureKind};
use crate::id::Timestamp;
use crate::verdict::Verdict;

/// One call of a model.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// The provider's name in the configuration.
    pub provider: String,
    /// The model.
    pub model: String,
    /// Why it came to nothing: there was no whole reply, or none that could be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<FailureKind>,
    /// Tokens that the model read.
    pub input_tokens: u64,
    /// Those of them that came out of the provider's cache.
    #[serde(default, skip_serializing_if = "is_default")]
    pub cached_input_tokens: u64,
    /// Tokens that the model wrote.
    pub output_tokens: u64,
    /// Millionths of a US dollar; absent where nobody knows the model's price.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_micros: Option<u64>,
    /// From the question to the whole reply, in milliseconds.
    pub latency_ms: u64,
}

impl Call {
    /// What it used up. What nobody knows the price of counts as free, and says that it is not known.
    pub fn usage(&self) -> Usage {
        Usage {
            input_tokens: self.input_tokens,
            output_tokens: self.output_tokens,
            cost_micros: self.cost_micros.unwrap_or(0),
            wall_ms: self.latency_ms,
            cost_unknown: self.cost_micros.is_none() && (self.input_tokens > 0 || self.output_tokens > 0),
        }
    }
}

/// What the names of people on a forge begin with, where reviewers and rejections are named.
pub const HUMAN: &str = "human:";

impl Review {
    /// Whether a person gave it on the forge.
    pub fn is_by_human(&self) -> bool {
        self.reviewer.starts_with(HUMAN)
    }

    /// A review of a change, of which nothing but the verdict is known.
    pub fn new(reviewer: impl Into<String>, head: impl Into<String>, verdict: Verdict) -> Self {
        Self {
            reviewer: reviewer.into(),
            at: Timestamp::default(),
            head: head.into(),
            verdict,
            failure: None,
            reply: None,
            prompt_digest: None,
            prompt: None,
            output: None,
            calls: Vec::new(),
            usage: Usage::default(),
            members: Vec::new(),
        }
    }

    /// Whether it used anything up: a token, or a call that was not turned away at once. A failed review that cost something
    /// is always counted, since one that is put back without a trace could cost again and again.
    pub fn has_cost(&self) -> bool {
        let was_turned_away = |call: &Call| {
            let behaviour = call.failure.map(FailureKind::behaviour);
            matches!(behaviour, Some(Behaviour::PauseProvider | Behaviour::StopPool))
        };
        self.usage.has_cost() || !self.calls.iter().all(was_turned_away) || self.members.iter().any(Self::has_cost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_review_that_was_written_before_calls_were_kept_is_read() {
        let old = r#"{"reviewer":"strict","at":5,"head":"abc","reply":"r","prompt_digest":"d",
            "verdict":{"verdict":"approved","required_change":"","critique":"","conf":0.9},
            "usage":{"input_tokens":1,"output_tokens":2,"cost_micros":3,"wall_ms":4}}"#;
        let read: Review = serde_json::from_str(old).unwrap();
        assert_eq!((&read.prompt, &read.output, read.calls.len()), (&None, &None, 0));
        let again = serde_json::to_value(&read).unwrap();
        for absent in ["prompt", "output", "calls"] {
            assert!(again.get(absent).is_none(), "{again}");
        }
    }

    #[test]
    fn a_review_has_cost_where_any_call_was_not_turned_away() {
        let call = |failure| Call { failure, ..Call::default() };
        let of = |calls| Review { calls, ..Review::new("r", "", Verdict::retry("")) };
        assert!(!of(Vec::new()).has_cost());
        for (failure, cost) in [
            (Some(FailureKind::RateLimit), false),
            (Some(FailureKind::Quota), false),
            (Some(FailureKind::Auth), false),
            (None, true),
            (Some(FailureKind::Malformed), true),
            (Some(FailureKind::Refused), true),
            // What was not waited for may have been paid for.
            (Some(FailureKind::Timeout), true),
        ] {
            let one = of(vec![call(failure)]);
            assert_eq!(one.has_cost(), cost, "{failure:?}");
            let last = of(vec![call(failure), call(Some(FailureKind::RateLimit))]);
            assert_eq!(last.has_cost(), cost, "{failure:?}");
            let panel = Review { members: vec![of(Vec::new()), one], ..of(Vec::new()) };
            assert_eq!(panel.has_cost(), cost, "{failure:?}");
        }
        let tokens = Call { input_tokens: 1, ..call(Some(FailureKind::RateLimit)) };
        assert!(Review { usage: tokens.usage(), ..of(vec![tokens]) }.has_cost());
        // Time alone costs nothing: a program that was turned away took some, too.
        assert!(!Review { usage: Usage { wall_ms: 9, ..Usage::default() }, ..of(Vec::new()) }.has_cost());
    }

    #[test]
    fn a_call_of_unknown_price_says_so_and_counts_as_free() {
        let call = Call { provider: "p".into(), model: "m".into(), latency_ms: 7, ..Call::default() };
        let written = serde_json::to_value(&call).unwrap();
        assert!(written.get("cost_micros").is_none() && written["latency_ms"] == 7, "{written}");
        assert_eq!(call.usage(), Usage { wall_ms: 7, ..Usage::default() });
        let paid = Call { input_tokens: 5, ..call };
        assert_eq!((paid.usage().cost_micros, paid.usage().cost_unknown), (0, true));
        let known = Call { cost_micros: Some(9), ..paid }.usage();
        assert_eq!((known.cost_micros, known.cost_unknown), (9, false));
        // What a provider prints may be any number.
        let most = Call { input_tokens: u64::MAX, output_tokens: u64::MAX, ..Call::default() };
        assert!(most.usage().cost_unknown);
    }
}
