//! A pull request on a forge: what the record keeps of it.

use serde::{Deserialize, Serialize};

/// The pull request of a phase. There is one for all attempts: a new attempt's change updates it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PullRequest {
    /// Its number on the forge.
    pub number: u64,
    /// Where people find it.
    pub url: String,
    /// The branch that it brings in.
    pub branch: String,
    /// The attempt whose change it shows.
    pub attempt: u32,
    /// The commit that it shows.
    pub head: String,
    /// Whether the phase waits for what people on the forge decide. Such a phase has no job.
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub waits: bool,
    /// The reviews on the forge that have counted already, by the forge's own ids.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reviews: Vec<String>,
}
