//! Everything that can happen to a task.

use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::gate::GateReport;
pub use crate::person::{Actor, PersonDecision};
use crate::task::{Change, PullRequest, Review, Usage};

/// What happened.
// One of these lives at a time; a box would only add a word to read.
#[allow(clippy::large_enum_variant)]
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// A worker's job ended.
    Outcome {
        /// The phase whose job it was.
        phase: String,
        /// The attempt that the job was for.
        attempt: u32,
        /// What the worker reports.
        outcome: Outcome,
    },
    /// No outcome that could be decided on can be had for a job: it was delivered more often than the policy allows, or
    /// what was reported does not fit it.
    Poisoned {
        /// The phase whose job it is.
        phase: String,
        /// What was seen.
        why: String,
    },
    /// A person decided an escalation.
    Decided {
        /// The escalation's id.
        escalation: String,
        /// What they decided.
        decision: PersonDecision,
        /// Who.
        by: String,
        /// Why, in their words.
        note: Option<String>,
    },
    /// People did something with a phase's pull request.
    Forge {
        /// The phase.
        phase: String,
        /// The pull request's number.
        number: u64,
        /// What they did.
        news: News,
    },
    /// A person called the task off.
    Cancelled {
        /// Who.
        by: String,
    },
}

/// What became of a pull request on the forge.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum News {
    /// It was merged.
    Merged {
        /// The commit on the base branch.
        commit: String,
        /// The head that was merged.
        head: String,
        /// Whose hand it was, where the forge tells.
        by: Option<String>,
    },
    /// It was closed and not merged.
    Closed {
        /// The person who did it; nothing where it was a program or nobody knows.
        by: Option<String>,
    },
    /// The base moved, and the forge says that it no longer goes onto it.
    Conflicts,
    /// The fleet is to merge it, and the base is no longer the one with which the gates let it through.
    BaseMoved {
        /// The commit that the base is at.
        base: String,
    },
    /// The fleet is to merge it, and the forge does not let it.
    NotYet {
        /// What it said.
        why: String,
    },
    /// People asked for changes.
    ChangesRequested {
        /// What they said, oldest first.
        reviews: Vec<HumanReview>,
    },
}

/// A person's review on the forge that asks for changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HumanReview {
    /// The forge's own name for it: each counts once.
    pub id: String,
    /// The person's name there.
    pub by: String,
    /// The commit that they looked at; empty where the forge does not tell.
    pub head: String,
    /// Their words.
    pub words: String,
}

/// What a worker reports when its job ends.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The coder's agent ran to its end and the gates were run.
    Coded {
        /// What it left, even where that is nothing.
        change: Change,
        /// What the gates said, in their order.
        gates: Vec<GateReport>,
        /// SHA-256 (hex) of the prompt that was delivered.
        prompt_digest: String,
        /// Where the transcript lies.
        transcript: Option<String>,
        /// What it used up.
        usage: Usage,
    },
    /// The coder's agent could not do its part: a provider, a crash, a time limit, a repository that does not answer.
    AgentFailed {
        /// Why.
        failure: Failure,
        /// SHA-256 (hex) of the prompt, where it was delivered.
        prompt_digest: Option<String>,
        /// Where the transcript lies.
        transcript: Option<String>,
        /// What it used up.
        usage: Usage,
        /// What the agent left where it did its part and it is a gate that could not run: the job's next run takes it up
        /// without the agent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        change: Option<Change>,
    },
    /// The agent declined, or asked a question.
    NeedsInput {
        /// Its words.
        words: String,
        /// SHA-256 (hex) of the prompt that was delivered.
        prompt_digest: String,
        /// Where the transcript lies.
        transcript: Option<String>,
        /// What it used up.
        usage: Usage,
    },
    /// A review ended, with a verdict or without.
    Reviewed(Review),
    /// The change is on the base branch.
    Landed {
        /// The commit there.
        commit: String,
    },
    /// The change is proposed on the forge, and people there decide.
    PullRequestOpen {
        /// The pull request; what it says of waiting and of reviews is not looked at.
        pull_request: PullRequest,
    },
    /// Its pull request was merged or closed by a person when nobody looked: there is nothing to propose.
    PullRequestEnded {
        /// The pull request; what it says of waiting and of reviews is not looked at.
        pull_request: PullRequest,
        /// What people did with it.
        news: News,
    },
    /// The base moved and the change, brought onto it without a conflict, is no longer the one that was reviewed.
    Rebased {
        /// The change as it is now.
        change: Change,
    },
    /// The change does not go onto the base: a real conflict, or a gate that fails on the merged tree.
    LandingRejected {
        /// The gate that failed; `merge_conflict` for a conflict.
        gate: GateReport,
    },
    /// The task was called off while it was landing, and the change is not on the base branch.
    CalledOff,
    /// The landing could not be carried out: the forge or the repository failed.
    LandingFailed {
        /// Why.
        failure: Failure,
    },
}

impl Outcome {
    /// Whether it is what a land job came to.
    pub fn is_of_landing(&self) -> bool {
        use Outcome::{CalledOff, Landed, LandingFailed, LandingRejected, PullRequestEnded, PullRequestOpen, Rebased};
        let has_tried = matches!(self, Rebased { .. } | LandingRejected { .. } | LandingFailed { .. });
        has_tried || matches!(self, Landed { .. } | PullRequestOpen { .. } | PullRequestEnded { .. } | CalledOff)
    }
}
