//! Replies that call tools, in each provider's wire format.

use refile_config::schema::ProviderKind;
use serde_json::{Value, json};

use super::model::{End, Say, whole};

/// A reply that says this and calls these tools, each with its arguments. Its usage is 15 tokens in, 5 of them out of a
/// cache, and 4 out.
pub fn calls(kind: ProviderKind, text: &str, calls: &[(&str, Value)]) -> Say {
    let mut reply = whole(kind, text, End::Said);
    let numbered = calls.iter().enumerate();
    match kind {
        ProviderKind::Anthropic => {
            reply["stop_reason"] = json!("tool_use");
            let blocks = numbered.map(|(at, (name, input))| {
                json!({"type": "tool_use", "id": format!("toolu_{at}"), "name": name, "input": input})
            });
            reply["content"].as_array_mut().unwrap().extend(blocks);
        }
        ProviderKind::Openai | ProviderKind::Ollama => {
            let choice = &mut reply["choices"][0];
            choice["finish_reason"] = json!("tool_calls");
            choice["message"]["content"] = if text.is_empty() { Value::Null } else { json!(text) };
            let calls = numbered.map(|(at, (name, arguments))| {
                let arguments = arguments.as_str().map_or_else(|| arguments.to_string(), str::to_owned);
                json!({"id": format!("call_{at}"), "type": "function",
                    "function": {"name": name, "arguments": arguments}})
            });
            choice["message"]["tool_calls"] = calls.collect();
            choice["message"]["reasoning_content"] = json!("hm");
        }
        ProviderKind::OpenaiResponses => {
            let items = numbered.map(|(at, (name, arguments))| {
                json!({"type": "function_call", "id": format!("fc_{at}"), "call_id": format!("call_{at}"),
                    "name": name, "arguments": arguments.to_string(), "status": "completed"})
            });
            reply["output"].as_array_mut().unwrap().extend(items);
        }
        ProviderKind::Gemini => {
            let parts = numbered.map(|(at, (name, args))| {
                json!({"functionCall": {"id": format!("f{at}"), "name": name, "args": args}, "thoughtSignature": "c2ln"})
            });
            reply["candidates"][0]["content"]["parts"].as_array_mut().unwrap().extend(parts);
        }
    }
    Say::Reply(200, Vec::new(), reply.to_string())
}

/// A reply that calls one tool.
pub fn call(kind: ProviderKind, name: &str, arguments: Value) -> Say {
    calls(kind, "", &[(name, arguments)])
}
