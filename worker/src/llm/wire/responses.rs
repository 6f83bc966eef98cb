//! `OpenAI`'s responses.

use refile_core::failure::Failure;
use serde_json::{Value, json};

use super::{Message, Question, Read, Role, ToolCall, joined, of_openai, said, tokens, unless_refused};
use crate::llm::tools::arguments;

pub(super) fn write(base: &str, question: &Question<'_>) -> (String, Value) {
    let mut body = json!({
        "model": question.model,
        "instructions": question.system,
        "input": question.messages.iter().flat_map(items).collect::<Vec<_>>(),
        "max_output_tokens": question.max_tokens,
        // What was asked is on record here; it need not be kept there.
        "store": false,
    });
    if !question.tools.is_empty() {
        let tools = question.tools.iter().map(|tool| {
            json!({
                "type": "function", "name": tool.name, "description": tool.description,
                // A strict schema may hold no argument that can be left out.
                "parameters": tool.parameters, "strict": false,
            })
        });
        body["tools"] = tools.collect();
    }
    if let Some(schema) = question.schema {
        let format = json!({"type": "json_schema", "name": "reply", "strict": true, "schema": schema});
        body["text"] = json!({"format": format});
    }
    (of_openai(base, "responses"), body)
}

/// A message's words, its calls and their results: an item each. Calls go back without the provider's ids of items: those
/// stand for what it would have kept.
fn items(message: &Message) -> Vec<Value> {
    let results = message.results.iter();
    let mut items: Vec<Value> =
        results.map(|r| json!({"type": "function_call_output", "call_id": r.id, "output": r.text})).collect();
    if !message.text.is_empty() || (items.is_empty() && message.calls.is_empty()) {
        let role = if message.role == Role::User { "user" } else { "assistant" };
        items.push(json!({"role": role, "content": message.text}));
    }
    items.extend(message.calls.iter().map(|call| {
        let arguments = call.arguments.as_str().map_or_else(|| call.arguments.to_string(), str::to_owned);
        json!({"type": "function_call", "call_id": call.id, "name": call.name, "arguments": arguments})
    }));
    items
}

pub(super) fn read(reply: &Value) -> Read {
    let items = reply["output"].as_array().map(Vec::as_slice).unwrap_or_default();
    let calls: Vec<ToolCall> = items
        .iter()
        .filter(|item| item["type"] == "function_call")
        .map(|item| ToolCall {
            id: item["call_id"].as_str().unwrap_or_default().to_owned(),
            name: item["name"].as_str().unwrap_or_default().to_owned(),
            arguments: arguments(item["arguments"].as_str().unwrap_or_default()),
        })
        .collect();
    Read {
        text: words(reply, items, &calls),
        raw: None,
        calls,
        input_tokens: tokens(&reply["usage"], &["input_tokens"]),
        cached_input_tokens: tokens(&reply["usage"]["input_tokens_details"], &["cached_tokens"]),
        output_tokens: tokens(&reply["usage"], &["output_tokens"]),
    }
}

fn words(reply: &Value, items: &[Value], calls: &[ToolCall]) -> Result<String, Failure> {
    let stop = match reply["status"].as_str().unwrap_or_default() {
        "incomplete" => reply["incomplete_details"]["reason"].as_str().unwrap_or("incomplete"),
        status => status,
    };
    let contents: Vec<&Value> = items.iter().filter(|i| i["type"] == "message").map(|i| &i["content"]).collect();
    let text = contents.iter().map(|c| joined(c, |part| part["type"] == "output_text")).collect();
    let mut parts = contents.iter().filter_map(|c| c.as_array()).flatten();
    unless_refused(said(stop, text, calls), parts.find_map(|part| part["refusal"].as_str()))
}
