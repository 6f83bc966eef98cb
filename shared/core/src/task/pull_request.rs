//! A pull request on a forge: what the record keeps of it.

use serde::{Deserialize, Serialize};

/// The pull request of a phase. There is one for all attempts: a new attempt's change updates it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
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
    /// The commit of the base branch with which the gates let it through; empty where nobody knows.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub base_commit: String,
    /// How often it had to be looked at again since the base had moved, of this attempt.
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub moves: u32,
    /// Whether the fleet merges it, as soon as the forge lets it.
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub auto: bool,
    /// Why the forge did not let the fleet merge it when it was last asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_yet: Option<String>,
    /// The reviews on the forge that have counted already, by the forge's own ids.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reviews: Vec<String>,
}

impl PullRequest {
    /// Whether people on the forge are waited for: not while the fleet is about to merge it by itself.
    pub fn needs_people(&self) -> bool {
        self.waits && (!self.auto || self.not_yet.is_some())
    }
}
