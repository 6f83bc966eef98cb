//! Why a model, a provider, an agent, a worker or a forge did not do its part. No failure is charged to the coder.

use serde::{Deserialize, Serialize};

/// The kinds of failure; the label `kind` of the metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// Too many requests; often with the time after which to come back.
    RateLimit,
    /// The provider is overloaded.
    Overloaded,
    /// No answer within the time that was allowed.
    Timeout,
    /// The connection could not be made or was cut, or a server on the way broke down.
    Network,
    /// A quota or the money for a time is used up; where no time is known at which that changes, waiting does not settle it.
    Quota,
    /// The credentials were refused.
    Auth,
    /// The configuration is wrong: a command that does not exist, an unknown model.
    Configuration,
    /// The input is larger than the model can read.
    ContextTooLong,
    /// The reply was cut off.
    Truncated,
    /// The model refused.
    Refused,
    /// A content filter stepped in.
    Filtered,
    /// There was no reply.
    Empty,
    /// The reply could not be read.
    Malformed,
    /// The judge did not repeat the receipt of what it was given: it read something else.
    WrongReceipt,
    /// The process ended with an error or by a signal.
    Crash,
    /// The repository or the forge did not answer as it should.
    Repository,
}

impl FailureKind {
    /// Every kind, for tables and tests.
    pub const ALL: [Self; 16] = [
        Self::RateLimit,
        Self::Overloaded,
        Self::Timeout,
        Self::Network,
        Self::Quota,
        Self::Auth,
        Self::Configuration,
        Self::ContextTooLong,
        Self::Truncated,
        Self::Refused,
        Self::Filtered,
        Self::Empty,
        Self::Malformed,
        Self::WrongReceipt,
        Self::Crash,
        Self::Repository,
    ];

    /// The name in logs, metrics and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::RateLimit => "rate_limit",
            Self::Overloaded => "overloaded",
            Self::Timeout => "timeout",
            Self::Network => "network",
            Self::Quota => "quota",
            Self::Auth => "auth",
            Self::Configuration => "configuration",
            Self::ContextTooLong => "context_too_long",
            Self::Truncated => "truncated",
            Self::Refused => "refused",
            Self::Filtered => "filtered",
            Self::Empty => "empty",
            Self::Malformed => "malformed",
            Self::WrongReceipt => "wrong_receipt",
            Self::Crash => "crash",
            Self::Repository => "repository",
        }
    }

    /// Whether the provider has answered all the same, though with nothing that is of use: so it need not be left alone.
    pub fn is_answer(self) -> bool {
        use FailureKind::{ContextTooLong, Empty, Filtered, Refused, Truncated, WrongReceipt};
        matches!(self, Truncated | Refused | Filtered | Empty | ContextTooLong | WrongReceipt)
    }

    /// What is done about a failure of this kind. Nothing here is charged to the coder, and whatever is done, a person
    /// is asked after [`crate::Policy::max_review_failures`] failed reviews of one attempt.
    pub fn behaviour(self) -> Behaviour {
        match self {
            Self::Timeout | Self::Network | Self::Truncated | Self::Crash | Self::Repository => Behaviour::Retry,
            Self::RateLimit | Self::Overloaded | Self::Quota => Behaviour::PauseProvider,
            Self::ContextTooLong | Self::Refused | Self::Filtered | Self::WrongReceipt => Behaviour::OtherReviewer,
            Self::Empty | Self::Malformed => Behaviour::ReaskOnce,
            Self::Auth | Self::Configuration => Behaviour::StopPool,
        }
    }
}

/// What is done about a failure: one thing for each kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Behaviour {
    /// The same job is tried again, after a wait that grows.
    Retry,
    /// What is in the failure's [`Scope`] is left alone for [`Failure::retry_after_ms`]; with [`FailureKind::Quota`] and
    /// without such a time until a person resumes it.
    ///
    /// Where the scope is more than this call, the job is put back, uncharged; one that has cost something already is a
    /// failed review all the same, or its rounds would cost without end.
    PauseProvider,
    /// The same question would get the same answer: the next reviewer is asked, where there is one.
    OtherReviewer,
    /// A model is asked once more within the same review and told what was wrong; then as [`Behaviour::Retry`].
    ReaskOnce,
    /// Only a person can settle it. Where the failure's [`Scope`] is more than this call, the worker that met it takes no
    /// more jobs and ends with the failure as its error, and the job is put back, uncharged: a worker that lacks a key must
    /// not use up the reviews of jobs that others can do. Where it is about this call alone, it is as [`Behaviour::Retry`].
    StopPool,
}

/// What a failure is about, and so what a pause must hold back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// This call alone; the next one may go well.
    #[default]
    Call,
    /// Every call of this model with this key.
    Model,
    /// Every call with this key.
    Key,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands it over so")]
fn is_call(scope: &Scope) -> bool {
    *scope == Scope::Call
}

/// One failure, with the words that explain it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{}: {detail}", kind.as_str())]
pub struct Failure {
    /// What kind it is.
    pub kind: FailureKind,
    /// What was seen, for a person; bounded by [`Failure::MAX_DETAIL`].
    pub detail: String,
    /// How long the other side asked to be left alone, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// What it is about.
    #[serde(default, skip_serializing_if = "is_call")]
    pub scope: Scope,
}

impl Failure {
    /// Whether further jobs would meet it too: a provider that must be left alone, or a key or model that it turns down.
    /// A job that has cost nothing is put back then, and nothing is counted.
    pub fn holds_beyond_the_call(&self) -> bool {
        self.pauses() || (self.kind.behaviour() == Behaviour::StopPool && self.scope != Scope::Call)
    }

    /// Whether a provider is to be left alone for more than the call that was turned away.
    pub fn pauses(&self) -> bool {
        self.kind.behaviour() == Behaviour::PauseProvider && self.scope != Scope::Call
    }

    /// The longest detail that a record keeps, in characters.
    pub const MAX_DETAIL: usize = 1_000;

    /// A failure with a bounded detail.
    pub fn new(kind: FailureKind, detail: impl AsRef<str>) -> Self {
        let detail = crate::text::cut(detail.as_ref().trim(), Self::MAX_DETAIL);
        Self { kind, detail, retry_after_ms: None, scope: Scope::Call }
    }
}
