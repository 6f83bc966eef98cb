//! The wire formats of providers: how a question is written, and how the answer is read. Whatever is no answer belongs to
//! [`super::classify`].

mod anthropic;
mod gemini;
mod openai;
mod responses;

use refile_config::Provider;
use refile_config::schema::ProviderKind;
use refile_core::failure::{Failure, FailureKind};
use reqwest::RequestBuilder;
use serde_json::Value;

use super::{Message, Question, Role, ToolCall};
use crate::llm::classify::stopped;

/// What a wire format makes of a reply.
pub(super) struct Read {
    pub(super) text: Result<String, Failure>,
    /// The tools that the model wants to have used.
    pub(super) calls: Vec<ToolCall>,
    /// What must go back as the provider wrote it.
    pub(super) raw: Option<Value>,
    /// Those from a cache included.
    pub(super) input_tokens: u64,
    pub(super) cached_input_tokens: u64,
    pub(super) output_tokens: u64,
}

impl Read {
    /// Of a call that told nothing of what it used up.
    pub(super) fn failed(failure: Failure) -> Self {
        Self {
            text: Err(failure),
            calls: Vec::new(),
            raw: None,
            input_tokens: 0,
            cached_input_tokens: 0,
            output_tokens: 0,
        }
    }
}

/// Writes a question. Its schema is sent: ask [`Provider::structured`] before.
pub(super) fn request(
    http: &reqwest::Client,
    provider: &Provider,
    question: &Question<'_>,
    key: Option<&str>,
) -> RequestBuilder {
    let base = provider.base_url();
    let (url, body) = match provider.kind {
        ProviderKind::Anthropic => anthropic::write(base, question),
        ProviderKind::Openai | ProviderKind::Ollama => openai::write(base, question),
        ProviderKind::OpenaiResponses => responses::write(base, question),
        ProviderKind::Gemini => gemini::write(base, question),
    };
    let request = http.post(url).json(&body);
    match (provider.kind, key) {
        (ProviderKind::Anthropic, key) => {
            let request = request.header("anthropic-version", "2023-06-01");
            key.into_iter().fold(request, |request, key| request.header("x-api-key", key))
        }
        (ProviderKind::Gemini, Some(key)) => request.header("x-goog-api-key", key),
        (_, Some(key)) => request.bearer_auth(key),
        (_, None) => request,
    }
}

/// Reads a reply that holds no error.
pub(super) fn read(kind: ProviderKind, reply: &Value) -> Read {
    match kind {
        ProviderKind::Anthropic => anthropic::read(reply),
        ProviderKind::Openai | ProviderKind::Ollama => openai::read(reply),
        ProviderKind::OpenaiResponses => responses::read(reply),
        ProviderKind::Gemini => gemini::read(reply),
    }
}

/// The address of a method where the base is a host, a path on it, or either with the version behind it.
fn versioned(base: &str, version: &str, method: &str) -> String {
    let base = base.trim_end_matches('/');
    let base = base.strip_suffix(version).and_then(|base| base.strip_suffix('/')).unwrap_or(base);
    format!("{base}/{version}/{method}")
}

/// The address of a method of `OpenAI`'s: a base with a path is taken as it is, since not every server's ends with `v1`.
fn of_openai(base: &str, method: &str) -> String {
    let base = base.trim_end_matches('/');
    let host = base.split_once("://").map_or(base, |(_, rest)| rest);
    if host.contains('/') { format!("{base}/{method}") } else { format!("{base}/v1/{method}") }
}

/// The text, if there is one. The reason to stop is read before it: a reply that was cut off may look whole.
fn text(stop: &str, text: String) -> Result<String, Failure> {
    match stopped(stop) {
        Some(failure) => Err(failure),
        None if text.trim().is_empty() => Err(empty()),
        None => Ok(text),
    }
}

/// The words of a reply that may call tools: then there need be none, and it may have stopped for them.
fn said(stop: &str, words: String, calls: &[ToolCall]) -> Result<String, Failure> {
    let for_tools = ["tool_use", "tool_calls", "function_call"].contains(&stop);
    match stopped(stop) {
        _ if calls.is_empty() => text(stop, words),
        Some(failure) if !for_tools => Err(failure),
        _ => Ok(words),
    }
}

/// The same, unless the model refused in a field of its own: a refusal ends like an answer.
fn unless_refused(text: Result<String, Failure>, refusal: Option<&str>) -> Result<String, Failure> {
    let ended_well = text.as_ref().map_or_else(|failure| failure.kind == FailureKind::Empty, |_| true);
    match refusal.filter(|words| ended_well && !words.is_empty()) {
        Some(words) => Err(Failure::new(FailureKind::Refused, words)),
        None => text,
    }
}

fn empty() -> Failure {
    Failure::new(FailureKind::Empty, "the model's reply holds no text")
}

/// The texts of all parts of which `is_text` holds, in one.
fn joined(parts: &Value, is_text: impl Fn(&Value) -> bool) -> String {
    let parts = parts.as_array().map(Vec::as_slice).unwrap_or_default();
    parts.iter().filter(|part| is_text(part)).filter_map(|part| part["text"].as_str()).collect()
}

fn tokens(usage: &Value, names: &[&str]) -> u64 {
    names.iter().filter_map(|name| usage[name].as_u64()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_base_address_may_name_the_version() {
        for base in ["http://h", "http://h/", "http://h/v1", "http://h/v1/"] {
            assert_eq!(versioned(base, "v1", "messages"), "http://h/v1/messages");
            assert_eq!(of_openai(base, "responses"), "http://h/v1/responses");
        }
        assert_eq!(versioned("http://h/anthropic", "v1", "messages"), "http://h/anthropic/v1/messages");
        assert_eq!(versioned("http://h/v1beta/", "v1beta", "x"), "http://h/v1beta/x");
        for (base, url) in [
            ("https://openrouter.ai/api/v1", "https://openrouter.ai/api/v1/chat/completions"),
            ("https://me.openai.azure.com/openai/v1/", "https://me.openai.azure.com/openai/v1/chat/completions"),
            ("https://h/v1beta/openai/", "https://h/v1beta/openai/chat/completions"),
        ] {
            assert_eq!(of_openai(base, "chat/completions"), url);
        }
    }
}
