//! One attempt: what the coder left, what gates and reviewers said of it, and why it was rejected.

use serde::{Deserialize, Serialize};

use super::{AttemptOutcome, Call, Cause, Usage, is_default};
use crate::failure::Failure;
use crate::gate::GateReport;
use crate::id::Timestamp;
use crate::verdict::Verdict;

/// One run of a phase that is charged to the coder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Attempt {
    /// Counted from 1.
    pub number: u32,
    /// The agent that makes it.
    pub agent: String,
    /// When it was put into the queue.
    pub started_at: Timestamp,
    /// When its outcome was decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Timestamp>,
    /// SHA-256 (hex) of the prompt that the worker delivered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_digest: Option<String>,
    /// What the coder left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change: Option<Change>,
    /// What the gates said.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gates: Vec<GateReport>,
    /// What the reviewers said, failed reviews included.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reviews: Vec<Review>,
    /// Runs of the agent that failed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub agent_failures: Vec<Failure>,
    /// Landings that failed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub land_failures: Vec<Failure>,
    /// How it ended; `None` while it goes on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<AttemptOutcome>,
    /// What leads it, where that is not why the attempt before was rejected: a person's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub led_by: Option<Rejection>,
    /// Why it was rejected; this leads the next attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rejection: Option<Rejection>,
    /// Where the agent's transcript lies in the artifact store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transcript: Option<String>,
    /// The escalations' budgets start again from here after a person's `retry`: failures before these counts are spent.
    #[serde(default, skip_serializing_if = "is_default")]
    pub forgiven: Forgiven,
}

/// Tries of an attempt that no longer count, since a person said "again".
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Forgiven {
    /// Of [`Attempt::reviews`].
    pub reviews: usize,
    /// Of [`Attempt::agent_failures`].
    pub agent_failures: usize,
    /// Of [`Attempt::land_failures`].
    pub land_failures: usize,
}

/// What a coder left: one commit on top of the base.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// The attempt branch that holds it.
    pub branch: String,
    /// The commit of the base branch that it was made on.
    pub base_commit: String,
    /// The change itself.
    pub head: String,
    /// `git patch-id --verbatim` of the diff, which tells white space apart; empty where the diff is.
    pub patch_id: String,
    /// How many files differ.
    pub files: u32,
    /// How many lines are added and removed; 0 where nobody counted.
    #[serde(default, skip_serializing_if = "is_default")]
    pub lines: u32,
    /// Where the diff lies in the artifact store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diff: Option<String>,
    /// What the coder said of it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub summary: String,
}

/// Why an attempt was rejected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rejection {
    /// Who or what rejected it.
    pub cause: Cause,
    /// The gate's, the reviewer's or the person's name.
    pub by: String,
    /// One imperative sentence.
    pub required_change: String,
    /// Verbatim words behind it.
    pub critique: String,
}

/// One review of one attempt: an opinion, or a failure to give one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Review {
    /// The reviewer's name.
    pub reviewer: String,
    /// When it was decided on.
    #[serde(default)]
    pub at: Timestamp,
    /// The commit that was judged.
    pub head: String,
    /// What was said. `retry` where the review failed.
    pub verdict: Verdict,
    /// Why there is no verdict.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    /// Where the reply lies in the artifact store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reply: Option<String>,
    /// SHA-256 (hex) of all that the reviewer was given: the packet, and before it what a model was told about its task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_digest: Option<String>,
    /// Where that lies in the artifact store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// Where the verdict lies in the artifact store under the name that the reviewer's `output` gives it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// The calls of models that it took, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<Call>,
    /// What it used up.
    #[serde(default, skip_serializing_if = "is_default")]
    pub usage: Usage,
    /// The single opinions, where the reviewer is a panel.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<Review>,
}

impl Attempt {
    /// An attempt that nothing has come of yet.
    pub fn new(number: u32, agent: &str, started_at: Timestamp) -> Self {
        Self {
            number,
            agent: agent.to_owned(),
            started_at,
            finished_at: None,
            prompt_digest: None,
            change: None,
            gates: Vec::new(),
            reviews: Vec::new(),
            agent_failures: Vec::new(),
            land_failures: Vec::new(),
            outcome: None,
            led_by: None,
            rejection: None,
            transcript: None,
            forgiven: Forgiven::default(),
        }
    }
}

/// The rejection that leads the last of these attempts of one round.
pub(crate) fn leading_rejection(round: &[Attempt]) -> Option<&Rejection> {
    match round {
        [.., previous, last] => last.led_by.as_ref().or(previous.rejection.as_ref()),
        _ => None,
    }
}
