//! Why a forge did not do what it was asked for, as one of the core's kinds of failure.

use refile_core::failure::{Failure, FailureKind};

/// A call that came to nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{detail}")]
pub struct ForgeError {
    /// What kind it is.
    pub kind: FailureKind,
    /// The status, where there was an answer.
    pub status: Option<u16>,
    /// What was seen and what to do, without any secret.
    pub detail: String,
    /// For how long the forge wants to be left alone, in milliseconds.
    pub retry_after_ms: Option<u64>,
}

impl ForgeError {
    /// An error without an answer behind it.
    pub fn new(kind: FailureKind, detail: impl Into<String>) -> Self {
        Self { kind, status: None, detail: detail.into(), retry_after_ms: None }
    }

    /// Whether the answer had one of these statuses.
    pub(crate) fn is(&self, statuses: &[u16]) -> bool {
        self.status.is_some_and(|status| statuses.contains(&status))
    }
}

impl From<ForgeError> for Failure {
    fn from(error: ForgeError) -> Self {
        Self { retry_after_ms: error.retry_after_ms, ..Self::new(error.kind, error.detail) }
    }
}
