//! Google's `generateContent`.

use refile_core::failure::{Failure, FailureKind};
use serde_json::{Value, json};

use super::{Question, Read, Role, empty, joined, text, tokens, versioned};

pub(super) fn write(base: &str, question: &Question<'_>) -> (String, Value) {
    let role = |role| if role == Role::User { "user" } else { "model" };
    let contents: Vec<Value> =
        question.messages.iter().map(|m| json!({"role": role(m.role), "parts": [{"text": m.text}]})).collect();
    let mut generation = json!({"maxOutputTokens": question.max_tokens});
    if let Some(schema) = question.schema {
        generation["responseMimeType"] = json!("application/json");
        generation["responseJsonSchema"] = schema.clone();
    }
    let body = json!({
        "systemInstruction": {"parts": [{"text": question.system}]},
        "contents": contents,
        "generationConfig": generation,
    });
    // A model may be named as the provider lists it.
    let model = question.model.strip_prefix("models/").unwrap_or(question.model);
    (versioned(base, "v1beta", &format!("models/{model}:generateContent")), body)
}

pub(super) fn read(reply: &Value) -> Read {
    let usage = &reply["usageMetadata"];
    Read {
        text: said(reply),
        input_tokens: tokens(usage, &["promptTokenCount"]),
        cached_input_tokens: tokens(usage, &["cachedContentTokenCount"]),
        // What the model thought is paid for as what it said.
        output_tokens: tokens(usage, &["candidatesTokenCount", "thoughtsTokenCount"]),
    }
}

fn said(reply: &Value) -> Result<String, Failure> {
    if let Some(reason) = reply["promptFeedback"]["blockReason"].as_str() {
        return Err(Failure::new(FailureKind::Filtered, format!("the prompt was blocked: `{reason}`")));
    }
    let candidate = &reply["candidates"][0];
    if candidate.is_null() {
        return Err(empty());
    }
    let stop = candidate["finishReason"].as_str().unwrap_or_default();
    text(stop, joined(&candidate["content"]["parts"], |part| part["thought"] != true))
}
