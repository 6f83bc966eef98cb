//! `OpenAI`'s chat completions, and everything that speaks them.

use refile_core::failure::Failure;
use serde_json::{Value, json};

use super::{Message, Question, Read, Role, ToolCall, empty, of_openai, said, tokens, unless_refused};
use crate::llm::tools::arguments;

/// What some servers write beside a call and want to have back: what the model thought before it.
const THOUGHTS: [&str; 2] = ["reasoning_content", "reasoning_details"];

pub(super) fn write(base: &str, question: &Question<'_>) -> (String, Value) {
    let mut said = vec![json!({"role": "system", "content": question.system})];
    said.extend(question.messages.iter().flat_map(messages));
    // The provider itself renamed the limit; servers that copy its older interface know only the old name.
    let is_new = ["api.openai.com", ".openai.azure.com"].iter().any(|host| base.contains(host));
    let limit = if is_new { "max_completion_tokens" } else { "max_tokens" };
    let mut body = json!({"model": question.model, "messages": said, limit: question.max_tokens});
    if !question.tools.is_empty() {
        let tools = question.tools.iter().map(|tool| {
            let function = json!({"name": tool.name, "description": tool.description, "parameters": tool.parameters});
            json!({"type": "function", "function": function})
        });
        body["tools"] = tools.collect();
    }
    if let Some(schema) = question.schema {
        let schema = json!({"name": "reply", "strict": true, "schema": schema});
        body["response_format"] = json!({"type": "json_schema", "json_schema": schema});
    }
    (of_openai(base, "chat/completions"), body)
}

/// A message; what came of each call of a tool is one of its own.
fn messages(message: &Message) -> Vec<Value> {
    if message.role == Role::Assistant {
        return vec![assistant(message)];
    }
    let results = message.results.iter();
    let mut all: Vec<Value> =
        results.map(|r| json!({"role": "tool", "tool_call_id": r.id, "content": r.text})).collect();
    if !message.text.is_empty() || all.is_empty() {
        all.push(json!({"role": "user", "content": message.text}));
    }
    all
}

fn assistant(message: &Message) -> Value {
    if message.calls.is_empty() {
        return json!({"role": "assistant", "content": message.text});
    }
    let content = Some(&message.text).filter(|text| !text.is_empty());
    let mut value = json!({"role": "assistant", "content": content});
    if let Some(raw) = &message.raw {
        for field in ["tool_calls"].iter().chain(&THOUGHTS) {
            if !raw[field].is_null() {
                value[field] = raw[field].clone();
            }
        }
    } else {
        let calls = message.calls.iter().map(|call| {
            let function = json!({"name": call.name, "arguments": call.arguments.to_string()});
            json!({"id": call.id, "type": "function", "function": function})
        });
        value["tool_calls"] = calls.collect();
    }
    value
}

pub(super) fn read(reply: &Value) -> Read {
    let choice = &reply["choices"][0];
    let message = &choice["message"];
    let calls: Vec<ToolCall> = message["tool_calls"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|call| ToolCall {
            id: call["id"].as_str().unwrap_or_default().to_owned(),
            name: call["function"]["name"].as_str().unwrap_or_default().to_owned(),
            arguments: match &call["function"]["arguments"] {
                Value::String(text) => arguments(text),
                // Some servers do not put the object into a text.
                object => object.clone(),
            },
        })
        .collect();
    Read {
        text: words(choice, &calls),
        raw: (!calls.is_empty()).then(|| message.clone()),
        calls,
        input_tokens: tokens(&reply["usage"], &["prompt_tokens"]),
        cached_input_tokens: tokens(&reply["usage"]["prompt_tokens_details"], &["cached_tokens"]),
        output_tokens: tokens(&reply["usage"], &["completion_tokens"]),
    }
}

fn words(choice: &Value, calls: &[ToolCall]) -> Result<String, Failure> {
    if choice.is_null() {
        return Err(empty());
    }
    let message = &choice["message"];
    let stop = choice["finish_reason"].as_str().unwrap_or_default();
    let words = said(stop, message["content"].as_str().unwrap_or_default().to_owned(), calls);
    unless_refused(words, message["refusal"].as_str())
}
