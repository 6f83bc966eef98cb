//! What people can decide, and who decided.

use serde::{Deserialize, Serialize};

/// What a person can decide about an escalation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "action")]
pub enum PersonDecision {
    /// The change is good: it lands.
    Approve,
    /// Another attempt, led by this.
    Refile {
        /// What the next attempt must do.
        required_change: String,
        /// How many more attempts the phase gets; at least 1.
        #[serde(default = "one")]
        attempts: u32,
    },
    /// The same job again, with its budget of tries renewed.
    Retry,
    /// The phase, and with it the task, is turned down.
    Reject,
}

fn one() -> u32 {
    1
}

impl PersonDecision {
    /// The names of the four decisions.
    pub const ACTIONS: [&'static str; 4] = ["approve", "refile", "retry", "reject"];

    /// The name in the audit log and the metrics.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Approve => "approve",
            Self::Refile { .. } => "refile",
            Self::Retry => "retry",
            Self::Reject => "reject",
        }
    }
}

/// Who approved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Actor {
    /// A reviewer of the fleet.
    Reviewer(String),
    /// A person.
    Person(String),
    /// The policy: `on_exhausted = "accept"`.
    Policy,
}

impl std::fmt::Display for Actor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Reviewer(name) | Self::Person(name) => f.write_str(name),
            Self::Policy => f.write_str("policy"),
        }
    }
}
