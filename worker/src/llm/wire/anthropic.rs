//! Anthropic's Messages.

use serde_json::{Value, json};

use super::{Message, Question, Read, Role, ToolCall, joined, said, tokens, versioned};

pub(super) fn write(base: &str, question: &Question<'_>) -> (String, Value) {
    let mut messages: Vec<Value> = question.messages.iter().map(message).collect();
    let mut body = json!({"model": question.model, "max_tokens": question.max_tokens, "system": question.system});
    if !question.tools.is_empty() {
        let tools = question
            .tools
            .iter()
            .map(|tool| json!({"name": tool.name, "description": tool.description, "input_schema": tool.parameters}));
        body["tools"] = tools.collect();
        // A loop says nearly the same again with each step: what was said before is read from the provider's cache.
        let cached = json!({"type": "ephemeral"});
        body["system"] = json!([{"type": "text", "text": question.system, "cache_control": cached}]);
        if let Some(content) = messages.last_mut().map(|last| &mut last["content"]) {
            if let Some(text) = content.as_str() {
                *content = json!([{"type": "text", "text": text}]);
            }
            if let Some(block) = content.as_array_mut().and_then(|blocks| blocks.last_mut()) {
                block["cache_control"] = cached;
            }
        }
    }
    body["messages"] = messages.into();
    if let Some(schema) = question.schema {
        body["output_config"] = json!({"format": {"type": "json_schema", "schema": schema}});
    }
    (versioned(base, "v1", "messages"), body)
}

fn message(message: &Message) -> Value {
    let role = if message.role == Role::User { "user" } else { "assistant" };
    if let Some(raw) = &message.raw {
        return json!({"role": role, "content": raw});
    }
    if message.calls.is_empty() && message.results.is_empty() {
        return json!({"role": role, "content": message.text});
    }
    let mut blocks: Vec<Value> = message
        .results
        .iter()
        .map(|r| json!({"type": "tool_result", "tool_use_id": r.id, "content": r.text, "is_error": r.is_error}))
        .collect();
    if !message.text.is_empty() {
        blocks.push(json!({"type": "text", "text": message.text}));
    }
    let calls = message.calls.iter();
    blocks.extend(calls.map(|c| json!({"type": "tool_use", "id": c.id, "name": c.name, "input": c.arguments})));
    json!({"role": role, "content": blocks})
}

pub(super) fn read(reply: &Value) -> Read {
    let content = &reply["content"];
    let blocks = content.as_array().map(Vec::as_slice).unwrap_or_default();
    let calls: Vec<ToolCall> = blocks
        .iter()
        .filter(|block| block["type"] == "tool_use")
        .map(|block| ToolCall {
            id: block["id"].as_str().unwrap_or_default().to_owned(),
            name: block["name"].as_str().unwrap_or_default().to_owned(),
            arguments: block["input"].clone(),
        })
        .collect();
    let words = joined(content, |block| block["type"] == "text");
    let input = ["input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"];
    Read {
        text: said(reply["stop_reason"].as_str().unwrap_or_default(), words, &calls),
        raw: (!calls.is_empty()).then(|| content.clone()),
        calls,
        input_tokens: tokens(&reply["usage"], &input),
        cached_input_tokens: tokens(&reply["usage"], &["cache_read_input_tokens"]),
        output_tokens: tokens(&reply["usage"], &["output_tokens"]),
    }
}
