//! What an agent said and did, step by step, as the log of an attempt keeps it: bounded, and without secrets.

use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use refile_core::task::Call;

use super::model::window::bounded;
use crate::llm::{ToolCall, ToolResult};
use crate::process::Secrets;

/// The longest text of one kind in a step, in bytes.
const LONGEST_PART: usize = 8_000;
/// The longest transcript, in bytes; beyond it steps are counted alone.
const LONGEST: usize = 8 << 20;

/// A transcript that grows. Its clones are the same one.
#[derive(Debug, Clone)]
pub(super) struct Transcript {
    text: Arc<Mutex<String>>,
    secrets: Secrets,
}

impl Transcript {
    pub(super) fn new(secrets: Secrets) -> Self {
        Self { text: Arc::default(), secrets }
    }

    /// The text. A thread that panicked while it held the lock left a whole one behind.
    fn text(&self) -> MutexGuard<'_, String> {
        self.text.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A step begins with a call of the model.
    pub(super) fn step(&self, number: u32, call: &Call) {
        let failure = call.failure.map(|kind| format!(" · {}", kind.as_str())).unwrap_or_default();
        let cost = call.cost_micros.map(|micros| format!(" · ${:.4}", micros as f64 / 1e6)).unwrap_or_default();
        let cached = call.cached_input_tokens;
        let _ = writeln!(
            self.text(),
            "--- step {number} · {} {} · {} tokens in ({cached} cached), {} out{cost} · {} ms{failure}",
            call.provider,
            call.model,
            call.input_tokens,
            call.output_tokens,
            call.latency_ms
        );
    }

    /// A line about what became of the run.
    pub(super) fn note(&self, words: &str) {
        self.part("*", words);
    }

    /// What the model said.
    pub(super) fn words(&self, words: &str) {
        if !words.trim().is_empty() {
            self.part("", words.trim());
        }
    }

    /// What it did, and what came of it.
    pub(super) fn tool(&self, call: &ToolCall, result: Option<&ToolResult>) {
        self.part(">", &format!("{} {}", call.name, call.arguments));
        if let Some(result) = result {
            self.part(if result.is_error { "!" } else { "<" }, &result.text);
        }
    }

    /// A text with a mark before it.
    pub(super) fn part(&self, mark: &str, text: &str) {
        let space = if mark.is_empty() { "" } else { " " };
        // Before the cut: half a secret is one too.
        let text = bounded(&self.secrets.hide(text), LONGEST_PART);
        let mut all = self.text();
        if all.len() > LONGEST {
            return;
        }
        let _ = writeln!(all, "{mark}{space}{}", text.trim_end());
        if all.len() > LONGEST {
            all.push_str("* the transcript is long: what follows is left out, but for the calls of the model\n");
        }
    }

    /// How long it is.
    pub(super) fn length(&self) -> usize {
        self.text().len()
    }

    /// What it holds now, and words that are still being said, without secrets.
    pub(super) fn with(&self, words: &str) -> String {
        let mut all = self.text().clone();
        if !words.trim().is_empty() {
            let _ = writeln!(all, "{}", bounded(words.trim(), LONGEST_PART));
        }
        all
    }

    /// What it holds now, where that is not as long as it was.
    pub(super) fn so_far(&self, known: usize) -> Option<(usize, String)> {
        let length = self.length();
        (length != known).then(|| (length, self.with("")))
    }
}
