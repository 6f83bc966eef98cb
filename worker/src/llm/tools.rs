//! Tools that a model may ask for, what it asks for, and what came of it.

use serde_json::Value;

use super::{Message, Role};

/// A tool, as a model is told of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tool {
    /// Its name.
    pub name: &'static str,
    /// What it does, and when to use it.
    pub description: &'static str,
    /// Its arguments as a JSON schema: an object.
    pub parameters: Value,
}

/// A model's wish to have a tool used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCall {
    /// The provider's name for it; empty where it gave none.
    pub id: String,
    /// The tool's name.
    pub name: String,
    /// An object; or a string, where what the model wrote is no JSON.
    pub arguments: Value,
}

/// What came of a call of a tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolResult {
    /// The call's id.
    pub id: String,
    /// The tool's name.
    pub name: String,
    /// What the model is told.
    pub text: String,
    /// Whether it failed.
    pub is_error: bool,
}

impl ToolCall {
    /// What came of it.
    pub fn result(&self, text: impl Into<String>, is_error: bool) -> ToolResult {
        ToolResult { id: self.id.clone(), name: self.name.clone(), text: text.into(), is_error }
    }
}

impl Message {
    /// Our words.
    pub fn user(text: impl Into<String>) -> Self {
        Self { role: Role::User, text: text.into(), calls: Vec::new(), results: Vec::new(), raw: None }
    }

    /// The model's words.
    pub fn assistant(text: impl Into<String>) -> Self {
        Self { role: Role::Assistant, ..Self::user(text) }
    }

    /// What came of the calls in the message before, each in its turn.
    pub fn results(results: Vec<ToolResult>) -> Self {
        Self { results, ..Self::user("") }
    }

    /// About how many bytes it takes in a question.
    pub fn bytes(&self) -> usize {
        let calls = self.calls.iter().map(|call| call.name.len() + call.arguments.to_string().len());
        let own: usize = self.text.len() + calls.sum::<usize>();
        // What the provider wrote is sent in place of what was read out of it.
        let own = self.raw.as_ref().map_or(own, |raw| raw.to_string().len());
        own + self.results.iter().map(|result| result.text.len()).sum::<usize>()
    }
}

/// The arguments of a call that come as a text.
pub(super) fn arguments(text: &str) -> Value {
    // Some servers write nothing for no arguments.
    let text = if text.trim().is_empty() { "{}" } else { text };
    serde_json::from_str(text).unwrap_or_else(|_| Value::from(text))
}
