//! The wire format of `OpenAI`'s chat completions, and of everything that speaks them.

use refile_core::failure::{Failure, FailureKind};
use reqwest::RequestBuilder;
use serde_json::{Value, json};

use super::{Question, Read, Role};

pub(super) const PATH: &str = "chat/completions";

pub(super) fn write(
    request: RequestBuilder,
    question: &Question<'_>,
    key: Option<&str>,
    base_url: &str,
) -> RequestBuilder {
    let mut messages = vec![json!({"role": "system", "content": question.system})];
    messages.extend(question.messages.iter().map(|m| {
        let role = if m.role == Role::User { "user" } else { "assistant" };
        json!({"role": role, "content": m.text})
    }));
    // The provider itself renamed the limit; servers that copy its older interface know only the old name.
    let limit = if base_url.contains("api.openai.com") { "max_completion_tokens" } else { "max_tokens" };
    let body = json!({"model": question.model, "messages": messages, limit: question.max_tokens});
    let request = request.json(&body);
    match key {
        Some(key) => request.bearer_auth(key),
        None => request,
    }
}

pub(super) fn read(reply: &Value) -> Read {
    let tokens = |name: &str| reply["usage"][name].as_u64().unwrap_or(0);
    Read { text: text(reply), input_tokens: tokens("prompt_tokens"), output_tokens: tokens("completion_tokens") }
}

/// The finish reason is read before the text: a reply that was cut off may look whole.
fn text(reply: &Value) -> Result<String, Failure> {
    let choice = &reply["choices"][0];
    if choice.is_null() {
        return Err(Failure::new(FailureKind::Empty, "the reply holds no choice"));
    }
    let finish = choice["finish_reason"].as_str().unwrap_or_default();
    let kind = match finish {
        "stop" => None,
        "length" => Some(FailureKind::Truncated),
        "content_filter" => Some(FailureKind::Filtered),
        _ => Some(FailureKind::Malformed),
    };
    if let Some(kind) = kind {
        return Err(Failure::new(kind, format!("the model finished with `{finish}`")));
    }
    let message = &choice["message"];
    if let Some(words) = message["refusal"].as_str().filter(|w| !w.is_empty()) {
        return Err(Failure::new(FailureKind::Refused, words));
    }
    match message["content"].as_str() {
        Some(text) if !text.trim().is_empty() => Ok(text.to_owned()),
        _ => Err(Failure::new(FailureKind::Empty, "the model's reply holds no text")),
    }
}
