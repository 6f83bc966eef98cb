//! Anthropic's Messages.

use serde_json::{Value, json};

use super::{Question, Read, joined, messages, text, tokens, versioned};

pub(super) fn write(base: &str, question: &Question<'_>) -> (String, Value) {
    let mut body = json!({
        "model": question.model,
        "max_tokens": question.max_tokens,
        "system": question.system,
        "messages": messages(question.messages),
    });
    if let Some(schema) = question.schema {
        body["output_config"] = json!({"format": {"type": "json_schema", "schema": schema}});
    }
    (versioned(base, "v1", "messages"), body)
}

pub(super) fn read(reply: &Value) -> Read {
    let said = joined(&reply["content"], |block| block["type"] == "text");
    let input = ["input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"];
    Read {
        text: text(reply["stop_reason"].as_str().unwrap_or_default(), said),
        input_tokens: tokens(&reply["usage"], &input),
        cached_input_tokens: tokens(&reply["usage"], &["cache_read_input_tokens"]),
        output_tokens: tokens(&reply["usage"], &["output_tokens"]),
    }
}
