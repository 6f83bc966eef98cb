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
    /// The connection could not be made, or was cut.
    Network,
    /// A quota or a bill that waiting does not settle.
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
    /// The process ended with an error or by a signal.
    Crash,
    /// The repository or the forge did not answer as it should.
    Repository,
}

impl FailureKind {
    /// Every kind, for tables and tests.
    pub const ALL: [Self; 15] = [
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
            Self::Crash => "crash",
            Self::Repository => "repository",
        }
    }
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
}

impl Failure {
    /// The longest detail that a record keeps, in characters.
    pub const MAX_DETAIL: usize = 1_000;

    /// A failure with a bounded detail.
    pub fn new(kind: FailureKind, detail: impl AsRef<str>) -> Self {
        Self { kind, detail: crate::text::cut(detail.as_ref().trim(), Self::MAX_DETAIL), retry_after_ms: None }
    }
}
