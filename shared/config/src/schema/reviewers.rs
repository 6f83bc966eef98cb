//! Reviewers: `[reviewers.NAME]`.

use refile_core::panel::Rule;
use refile_core::verdict::Format;
use serde::{Deserialize, Serialize};

use crate::duration::Span;
use crate::inputs::{Input, Require};
use crate::threshold::Threshold;

/// The kinds of reviewers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReviewerType {
    /// Any program.
    #[default]
    Command,
    /// A model.
    Llm,
    /// A person: a review is an escalation.
    Human,
    /// Several reviewers, whose opinions are made into one.
    Panel,
}

impl ReviewerType {
    /// The name in the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Command => "command",
            Self::Llm => "llm",
            Self::Human => "human",
            Self::Panel => "panel",
        }
    }
}

/// A reviewer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reviewer {
    /// What it is.
    #[serde(rename = "type", default)]
    pub kind: ReviewerType,
    /// Of a `command`: the program and its arguments.
    #[serde(default)]
    pub command: Vec<String>,
    /// How it replies: `text` by default for a command, `json` for a model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<Format>,
    /// Of an `llm`: the name of its provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// Of an `llm`: the model. A `command` may tell which one it calls, for `other_model_than_coder`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Of an `llm`: the model that is asked where the first one refuses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fallback_model: Option<String>,
    /// Of an `llm`: what it should look at, beside the rules that every judge is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instructions: Option<String>,
    /// Of an `llm`: the longest reply, in tokens.
    #[serde(default = "reply_tokens")]
    pub max_tokens: u32,
    /// What it is given to judge by.
    #[serde(default = "Input::default_list")]
    pub inputs: Vec<Input>,
    /// The largest packet that it is given, in bytes.
    #[serde(default = "packet_bytes")]
    pub max_input_bytes: usize,
    /// What must hold for its word to count.
    #[serde(default, skip_serializing_if = "Require::is_usual")]
    pub require: Require,
    /// The name under which its verdict is kept as an artifact of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// Where it fails, in whatever way, the next reviewer is asked. A failed review approves nothing.
    #[serde(default, skip_serializing_if = "is_default")]
    pub continue_on_error: bool,
    /// How long one review may take.
    #[serde(default = "two_minutes")]
    pub timeout: Span,
    /// Of a `command`: names of environment variables that it gets from the worker's environment.
    #[serde(default)]
    pub env: Vec<String>,
    /// Of a `command`: whether it reaches the network from the sandbox; it does not by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<bool>,
    /// Of a `panel`: the reviewers that are asked, each a `command` or an `llm` with keys of its own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<String>,
    /// Of a `panel`: how many members must approve: `any`, `majority` or `unanimous`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub rule: Rule,
    /// Its own threshold, where it is asked on its own: a number, or `"q20"` for one at which the lowest 20 % of its own recent confidences do not pass;
    /// `policy.confidence` by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confidence: Option<Threshold>,
    /// It does not judge a change that was made by its own model, while there is another reviewer.
    #[serde(default, skip_serializing_if = "is_default")]
    pub other_model_than_coder: bool,
}

pub(super) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Reviewer {
    /// The smallest packet that can be asked for, in bytes: below it the markers leave no room for what is judged.
    pub const MIN_INPUT_BYTES: usize = 4_000;

    /// How it replies.
    pub fn format(&self) -> Format {
        self.format.unwrap_or(match self.kind {
            ReviewerType::Llm => Format::Json,
            ReviewerType::Command | ReviewerType::Human | ReviewerType::Panel => Format::Text,
        })
    }
}

fn two_minutes() -> Span {
    Span::seconds(120)
}

fn reply_tokens() -> u32 {
    2_000
}

fn packet_bytes() -> usize {
    200_000
}
