//! Google's `generateContent`.

use refile_core::failure::{Failure, FailureKind};
use serde_json::{Value, json};

use super::{Message, Question, Read, Role, ToolCall, empty, joined, said, tokens, versioned};

pub(super) fn write(base: &str, question: &Question<'_>) -> (String, Value) {
    let mut generation = json!({"maxOutputTokens": question.max_tokens});
    if let Some(schema) = question.schema {
        generation["responseMimeType"] = json!("application/json");
        generation["responseJsonSchema"] = schema.clone();
    }
    let mut body = json!({
        "systemInstruction": {"parts": [{"text": question.system}]},
        "contents": question.messages.iter().map(content).collect::<Vec<_>>(),
        "generationConfig": generation,
    });
    if !question.tools.is_empty() {
        let tools = question.tools.iter().map(
            |tool| json!({"name": tool.name, "description": tool.description, "parametersJsonSchema": tool.parameters}),
        );
        body["tools"] = json!([{"functionDeclarations": tools.collect::<Vec<_>>()}]);
    }
    // A model may be named as the provider lists it.
    let model = question.model.strip_prefix("models/").unwrap_or(question.model);
    (versioned(base, "v1beta", &format!("models/{model}:generateContent")), body)
}

fn content(message: &Message) -> Value {
    let role = if message.role == Role::User { "user" } else { "model" };
    if let Some(raw) = &message.raw {
        // Verbatim: the signatures of what it thought are among its parts, and it refuses calls that come back without.
        return json!({"role": role, "parts": raw});
    }
    let results = message.results.iter().map(|result| {
        let key = if result.is_error { "error" } else { "output" };
        named("functionResponse", &result.id, json!({"name": result.name, "response": {key: result.text}}))
    });
    let mut parts: Vec<Value> = results.collect();
    if !message.text.is_empty() || (parts.is_empty() && message.calls.is_empty()) {
        parts.push(json!({"text": message.text}));
    }
    let calls = message.calls.iter();
    parts.extend(calls.map(|c| named("functionCall", &c.id, json!({"name": c.name, "args": c.arguments}))));
    json!({"role": role, "parts": parts})
}

/// A part of this kind, with its id where it has one.
fn named(kind: &str, id: &str, mut part: Value) -> Value {
    if !id.is_empty() {
        part["id"] = json!(id);
    }
    json!({kind: part})
}

pub(super) fn read(reply: &Value) -> Read {
    let usage = &reply["usageMetadata"];
    let parts = &reply["candidates"][0]["content"]["parts"];
    let calls: Vec<ToolCall> = parts
        .as_array()
        .into_iter()
        .flatten()
        .map(|part| &part["functionCall"])
        .filter(|call| !call.is_null())
        .map(|call| ToolCall {
            id: call["id"].as_str().unwrap_or_default().to_owned(),
            name: call["name"].as_str().unwrap_or_default().to_owned(),
            arguments: if call["args"].is_null() { json!({}) } else { call["args"].clone() },
        })
        .collect();
    Read {
        text: words(reply, &calls),
        raw: (!calls.is_empty()).then(|| parts.clone()),
        calls,
        input_tokens: tokens(usage, &["promptTokenCount"]),
        cached_input_tokens: tokens(usage, &["cachedContentTokenCount"]),
        // What the model thought is paid for as what it said.
        output_tokens: tokens(usage, &["candidatesTokenCount", "thoughtsTokenCount"]),
    }
}

fn words(reply: &Value, calls: &[ToolCall]) -> Result<String, Failure> {
    if let Some(reason) = reply["promptFeedback"]["blockReason"].as_str() {
        return Err(Failure::new(FailureKind::Filtered, format!("the prompt was blocked: `{reason}`")));
    }
    let candidate = &reply["candidates"][0];
    if candidate.is_null() {
        return Err(empty());
    }
    let stop = candidate["finishReason"].as_str().unwrap_or_default();
    said(stop, joined(&candidate["content"]["parts"], |part| part["thought"] != true), calls)
}
