//! The wire format of Anthropic's Messages.

use refile_core::failure::{Failure, FailureKind};
use reqwest::RequestBuilder;
use serde_json::{Value, json};

use super::{Question, Read, Role};

pub(super) const PATH: &str = "messages";

pub(super) fn write(request: RequestBuilder, question: &Question<'_>, key: Option<&str>) -> RequestBuilder {
    let messages: Vec<Value> = question
        .messages
        .iter()
        .map(|m| json!({"role": if m.role == Role::User { "user" } else { "assistant" }, "content": m.text}))
        .collect();
    let body = json!({
        "model": question.model,
        "max_tokens": question.max_tokens,
        "system": question.system,
        "messages": messages,
    });
    let request = request.header("anthropic-version", "2023-06-01").json(&body);
    match key {
        Some(key) => request.header("x-api-key", key),
        None => request,
    }
}

pub(super) fn read(reply: &Value) -> Read {
    let tokens = |name: &str| reply["usage"][name].as_u64().unwrap_or(0);
    Read {
        text: text(reply),
        input_tokens: tokens("input_tokens")
            + tokens("cache_creation_input_tokens")
            + tokens("cache_read_input_tokens"),
        output_tokens: tokens("output_tokens"),
    }
}

/// The stop reason is read before the text: a reply that was cut off may look whole.
fn text(reply: &Value) -> Result<String, Failure> {
    let stop = reply["stop_reason"].as_str().unwrap_or_default();
    let kind = match stop {
        "end_turn" | "stop_sequence" => None,
        "max_tokens" => Some(FailureKind::Truncated),
        "model_context_window_exceeded" => Some(FailureKind::ContextTooLong),
        "refusal" => Some(FailureKind::Refused),
        _ => Some(FailureKind::Malformed),
    };
    if let Some(kind) = kind {
        return Err(Failure::new(kind, format!("the model stopped with `{stop}`")));
    }
    let blocks = reply["content"].as_array().map(Vec::as_slice).unwrap_or_default();
    let texts = blocks.iter().filter(|b| b["type"] == "text").filter_map(|b| b["text"].as_str());
    let text = texts.collect::<Vec<_>>().concat();
    if text.trim().is_empty() {
        return Err(Failure::new(FailureKind::Empty, "the model's reply holds no text"));
    }
    Ok(text)
}
