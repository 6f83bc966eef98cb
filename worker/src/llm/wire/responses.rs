//! `OpenAI`'s responses.

use refile_core::failure::Failure;
use serde_json::{Value, json};

use super::{Question, Read, joined, messages, of_openai, text, tokens, unless_refused};

pub(super) fn write(base: &str, question: &Question<'_>) -> (String, Value) {
    let mut body = json!({
        "model": question.model,
        "instructions": question.system,
        "input": messages(question.messages),
        "max_output_tokens": question.max_tokens,
        // What was asked is on record here; it need not be kept there.
        "store": false,
    });
    if let Some(schema) = question.schema {
        let format = json!({"type": "json_schema", "name": "reply", "strict": true, "schema": schema});
        body["text"] = json!({"format": format});
    }
    (of_openai(base, "responses"), body)
}

pub(super) fn read(reply: &Value) -> Read {
    Read {
        text: said(reply),
        input_tokens: tokens(&reply["usage"], &["input_tokens"]),
        cached_input_tokens: tokens(&reply["usage"]["input_tokens_details"], &["cached_tokens"]),
        output_tokens: tokens(&reply["usage"], &["output_tokens"]),
    }
}

fn said(reply: &Value) -> Result<String, Failure> {
    let stop = match reply["status"].as_str().unwrap_or_default() {
        "incomplete" => reply["incomplete_details"]["reason"].as_str().unwrap_or("incomplete"),
        status => status,
    };
    let items = reply["output"].as_array().map(Vec::as_slice).unwrap_or_default();
    let contents: Vec<&Value> = items.iter().filter(|i| i["type"] == "message").map(|i| &i["content"]).collect();
    let words = text(stop, contents.iter().map(|c| joined(c, |part| part["type"] == "output_text")).collect());
    let mut parts = contents.iter().filter_map(|c| c.as_array()).flatten();
    unless_refused(words, parts.find_map(|part| part["refusal"].as_str()))
}
