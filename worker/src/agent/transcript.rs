//! What an agent said and did, step by step, as the log of an attempt keeps it: bounded, and without secrets.

use std::fmt::Write as _;

use refile_core::task::Call;

use super::model::window::bounded;
use crate::llm::{ToolCall, ToolResult};
use crate::process::without_secrets;

/// The longest text of one kind in a step, in bytes.
const LONGEST_PART: usize = 8_000;
/// The longest transcript, in bytes; beyond it steps are counted alone.
const LONGEST: usize = 8 << 20;

/// A transcript that grows.
#[derive(Debug)]
pub(super) struct Transcript {
    text: String,
    secrets: Vec<String>,
}

impl Transcript {
    pub(super) fn new(secrets: Vec<String>) -> Self {
        Self { text: String::new(), secrets }
    }

    /// A step begins with a call of the model.
    pub(super) fn step(&mut self, number: u32, call: &Call) {
        let failure = call.failure.map(|kind| format!(" · {}", kind.as_str())).unwrap_or_default();
        let cost = call.cost_micros.map(|micros| format!(" · ${:.4}", micros as f64 / 1e6)).unwrap_or_default();
        let cached = call.cached_input_tokens;
        let _ = writeln!(
            self.text,
            "--- step {number} · {} {} · {} tokens in ({cached} cached), {} out{cost} · {} ms{failure}",
            call.provider, call.model, call.input_tokens, call.output_tokens, call.latency_ms
        );
    }

    /// A line about what became of the run.
    pub(super) fn note(&mut self, words: &str) {
        self.part("*", words);
    }

    /// What the model said.
    pub(super) fn words(&mut self, words: &str) {
        if !words.trim().is_empty() {
            self.part("", words.trim());
        }
    }

    /// What it did, and what came of it.
    pub(super) fn tool(&mut self, call: &ToolCall, result: Option<&ToolResult>) {
        self.part(">", &format!("{} {}", call.name, call.arguments));
        if let Some(result) = result {
            self.part(if result.is_error { "!" } else { "<" }, &result.text);
        }
    }

    /// A text with a mark before it.
    pub(super) fn part(&mut self, mark: &str, text: &str) {
        if self.text.len() > LONGEST {
            return;
        }
        let space = if mark.is_empty() { "" } else { " " };
        // Before the cut: half a secret is one too.
        let text = bounded(&without_secrets(text, &self.secrets), LONGEST_PART);
        let _ = writeln!(self.text, "{mark}{space}{}", text.trim_end());
        if self.text.len() > LONGEST {
            self.text.push_str("* the transcript is long: what follows is left out, but for the calls of the model\n");
        }
    }

    pub(super) fn end(self) -> String {
        self.text
    }
}
