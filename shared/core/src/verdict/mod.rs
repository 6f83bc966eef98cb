//! What a reviewer says, and how it is read out of a reply.
//!
//! Extraction is tolerant, validation is strict: a reply that cannot be read is `retry` with a failure, never
//! `approved` and never `needs_changes`.

mod json;
mod reply;
mod scan;
mod words;

pub use reply::{Receipt, instructions, schema};

use serde::{Deserialize, Serialize};

use crate::failure::FailureKind;
use crate::names::names;

names! {
    /// The six verdicts.
    VerdictKind {
        /// The change is good.
        Approved = "approved",
        /// The next attempt must do what `required_change` says.
        NeedsChanges = "needs_changes",
        /// There is no judgement; ask again.
        Retry = "retry",
        /// A person must decide.
        Escalate = "escalate",
        /// The task is turned down for good.
        Reject = "reject",
        /// The phase before must be done again.
        RetryPredecessor = "retry_predecessor",
    }
}

/// A reviewer's statement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// Which of the six.
    pub verdict: VerdictKind,
    /// One imperative sentence; not empty for `needs_changes` and `retry_predecessor`.
    pub required_change: String,
    /// The words behind it.
    pub critique: String,
    /// 0.0 to 1.0. An ordering, not a probability.
    pub conf: f64,
    /// The predecessor that `retry_predecessor` names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
}

impl Verdict {
    /// The longest critique that a record keeps, in characters; the whole reply is an artifact.
    pub const MAX_CRITIQUE: usize = 8_000;

    /// No judgement.
    pub fn retry(critique: impl Into<String>) -> Self {
        Self {
            verdict: VerdictKind::Retry,
            required_change: String::new(),
            critique: critique.into(),
            conf: 0.0,
            phase: None,
        }
    }
}

/// The forms in which a reviewer replies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// One object with `verdict`, `required_change`, `critique`, `conf`.
    Json,
    /// `APPROVE`, `RETRY: feedback`, `RETRY_PREDECESSOR phase: feedback`, `REJECT: reason`, `PASS` or `FAIL` with text.
    Text,
    /// One object with `verdict` (`pass` or `fail`), `summary`, `findings`, `required_fixes`.
    Judge,
}

/// What was read out of a reply.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reading {
    /// The verdict; `retry` where the reply could not be read.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// Why it could not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<FailureKind>,
    /// What the object with the verdict repeats of the packet, where it repeats it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receipt: Option<Receipt>,
}

/// What one reply says.
struct Answer {
    verdict: Verdict,
    receipt: Option<Receipt>,
}

/// Why a reply is not a verdict, in words that a re-ask can repeat to the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unreadable {
    kind: FailureKind,
    why: String,
}

impl Unreadable {
    fn malformed(why: impl Into<String>) -> Self {
        Self { kind: FailureKind::Malformed, why: why.into() }
    }
}

/// The longest explanation of what is wrong with a reply, in characters; it may quote the reply.
const MAX_WHY: usize = 500;

/// Reads a reply. Linear in its length; nothing is guessed from prose.
pub fn read(format: Format, reply: &str) -> Reading {
    let reply = reply.trim_start_matches('\u{feff}').trim();
    let read = if reply.is_empty() {
        Err(Unreadable { kind: FailureKind::Empty, why: "the reply is empty".to_owned() })
    } else {
        match format {
            Format::Json => json::verdict(reply),
            Format::Judge => json::judgement(reply),
            Format::Text => words::verdict(reply).map(|verdict| Answer { verdict, receipt: None }),
        }
    };
    match read {
        Ok(Answer { mut verdict, receipt }) => {
            verdict.critique = crate::text::cut(&verdict.critique, Verdict::MAX_CRITIQUE);
            Reading { verdict, failure: None, receipt }
        }
        Err(Unreadable { kind, why }) => {
            Reading { verdict: Verdict::retry(crate::text::cut(&why, MAX_WHY)), failure: Some(kind), receipt: None }
        }
    }
}

/// Joins the parts that say something with an empty line between them.
fn paragraphs<'a>(parts: impl IntoIterator<Item = &'a str>) -> String {
    let said: Vec<&str> = parts.into_iter().map(str::trim).filter(|p| !p.is_empty()).collect();
    said.join("\n\n")
}
