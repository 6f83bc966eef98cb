//! `OpenAI`'s chat completions, and everything that speaks them.

use refile_core::failure::Failure;
use serde_json::{Value, json};

use super::{Question, Read, empty, messages, of_openai, text, tokens, unless_refused};

pub(super) fn write(base: &str, question: &Question<'_>) -> (String, Value) {
    let mut said = vec![json!({"role": "system", "content": question.system})];
    said.extend(messages(question.messages));
    // The provider itself renamed the limit; servers that copy its older interface know only the old name.
    let is_new = ["api.openai.com", ".openai.azure.com"].iter().any(|host| base.contains(host));
    let limit = if is_new { "max_completion_tokens" } else { "max_tokens" };
    let mut body = json!({"model": question.model, "messages": said, limit: question.max_tokens});
    if let Some(schema) = question.schema {
        let schema = json!({"name": "reply", "strict": true, "schema": schema});
        body["response_format"] = json!({"type": "json_schema", "json_schema": schema});
    }
    (of_openai(base, "chat/completions"), body)
}

pub(super) fn read(reply: &Value) -> Read {
    Read {
        text: said(&reply["choices"][0]),
        input_tokens: tokens(&reply["usage"], &["prompt_tokens"]),
        cached_input_tokens: tokens(&reply["usage"]["prompt_tokens_details"], &["cached_tokens"]),
        output_tokens: tokens(&reply["usage"], &["completion_tokens"]),
    }
}

fn said(choice: &Value) -> Result<String, Failure> {
    if choice.is_null() {
        return Err(empty());
    }
    let message = &choice["message"];
    let stop = choice["finish_reason"].as_str().unwrap_or_default();
    let words = text(stop, message["content"].as_str().unwrap_or_default().to_owned());
    unless_refused(words, message["refusal"].as_str())
}
