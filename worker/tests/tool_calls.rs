//! Tools over every wire format: how they are offered, how calls are read, and how calls and results go back.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::model::{End, Model, Say, question, says, whole};
use common::tools::calls;
use refile_config::schema::ProviderKind;
use refile_core::failure::FailureKind;
use refile_worker::llm::{Answer, Client, Message, Question, Tool};
use serde_json::{Value, json};

fn tools() -> [Tool; 1] {
    [Tool { name: "read", description: "Reads.", parameters: json!({"type": "object", "properties": {}}) }]
}

async fn ask(model: &Model, kind: ProviderKind, messages: &[Message]) -> Answer {
    let tools = tools();
    let question = Question { tools: &tools, ..question(messages) };
    Client::new().unwrap().ask(&model.provider(kind), &question).await
}

/// What stands for our first message, the model's two calls, and what came of them.
fn conversation(kind: ProviderKind) -> (Value, Value) {
    let parameters = json!({"type": "object", "properties": {}});
    let function = json!({"name": "read", "description": "Reads.", "parameters": parameters});
    let arguments = |path: &str| json!({ "path": path }).to_string();
    match kind {
        ProviderKind::Anthropic => {
            let cached = json!({"type": "ephemeral"});
            let tool = json!({"name": "read", "description": "Reads.", "input_schema": parameters});
            let call = |at, path| json!({"type": "tool_use", "id": at, "name": "read", "input": {"path": path}});
            (
                json!([tool]),
                json!([
                    {"role": "user", "content": "Go."},
                    {"role": "assistant", "content": [
                        {"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "I look."},
                        call("toolu_0", "a"), call("toolu_1", "b"),
                    ]},
                    {"role": "user", "content": [
                        {"type": "tool_result", "tool_use_id": "toolu_0", "content": "A", "is_error": false},
                        {"type": "tool_result", "tool_use_id": "toolu_1", "content": "none", "is_error": true},
                        {"type": "text", "text": "Mind it.", "cache_control": cached},
                    ]},
                ]),
            )
        }
        ProviderKind::Openai | ProviderKind::Ollama => {
            let call = |id, path| json!({"id": id, "type": "function", "function": {"name": "read", "arguments": arguments(path)}});
            (
                json!([{"type": "function", "function": function}]),
                json!([
                    {"role": "system", "content": "Be brief."},
                    {"role": "user", "content": "Go."},
                    {"role": "assistant", "content": "I look.", "reasoning_content": "hm",
                        "tool_calls": [call("call_0", "a"), call("call_1", "b")]},
                    {"role": "tool", "tool_call_id": "call_0", "content": "A"},
                    {"role": "tool", "tool_call_id": "call_1", "content": "none"},
                    {"role": "user", "content": "Mind it."},
                ]),
            )
        }
        ProviderKind::OpenaiResponses => {
            let call = |id, path| json!({"type": "function_call", "call_id": id, "name": "read", "arguments": arguments(path)});
            let output = |id, text| json!({"type": "function_call_output", "call_id": id, "output": text});
            (
                json!([{"type": "function", "name": "read", "description": "Reads.", "parameters": parameters,
                    "strict": false}]),
                json!([
                    {"role": "user", "content": "Go."},
                    {"role": "assistant", "content": "I look."},
                    call("call_0", "a"), call("call_1", "b"),
                    output("call_0", "A"), output("call_1", "none"),
                    {"role": "user", "content": "Mind it."},
                ]),
            )
        }
        ProviderKind::Gemini => {
            let call = |id, path| json!({"functionCall": {"id": id, "name": "read", "args": {"path": path}}, "thoughtSignature": "c2ln"});
            let response =
                |id, key: &str, text| json!({"functionResponse": {"id": id, "name": "read", "response": {key: text}}});
            (
                json!([{"functionDeclarations": [
                    {"name": "read", "description": "Reads.", "parametersJsonSchema": parameters},
                ]}]),
                json!([
                    {"role": "user", "parts": [{"text": "Go."}]},
                    {"role": "model", "parts": [
                        {"text": "hm", "thought": true}, {"text": "I look."}, call("f0", "a"), call("f1", "b"),
                    ]},
                    {"role": "user", "parts": [
                        response("f0", "output", "A"), response("f1", "error", "none"), {"text": "Mind it."},
                    ]},
                ]),
            )
        }
    }
}

#[tokio::test]
async fn calls_are_read_and_go_back_with_what_came_of_them() {
    for kind in ProviderKind::ALL {
        let wanted = [("read", json!({"path": "a"})), ("read", json!({"path": "b"}))];
        let model = Model::start(vec![calls(kind, "I look.", &wanted), says(kind, "Fine.", End::Said)]).await;
        let mut messages = vec![Message::user("Go.")];
        let answer = ask(&model, kind, &messages).await;
        assert_eq!(answer.text.as_deref(), Ok("I look."), "{kind:?}");
        let read: Vec<_> = answer.calls.iter().map(|c| (c.name.as_str(), c.arguments.clone())).collect();
        assert_eq!(read, wanted, "{kind:?}");
        let call = answer.call.unwrap();
        assert_eq!((call.input_tokens, call.cached_input_tokens, call.output_tokens), (15, 5, 4), "{kind:?}");

        let results = vec![answer.calls[0].result("A", false), answer.calls[1].result("none", true)];
        messages.push(Message { calls: answer.calls, raw: answer.raw, ..Message::assistant("I look.") });
        messages.push(Message { text: "Mind it.".to_owned(), ..Message::results(results) });
        let answer = ask(&model, kind, &messages).await;
        assert_eq!((answer.text.as_deref(), answer.calls.len()), (Ok("Fine."), 0), "{kind:?}");
        let body = &model.asked()[1].2;
        let (tools, said) = conversation(kind);
        let key = match kind {
            ProviderKind::Gemini => "contents",
            ProviderKind::OpenaiResponses => "input",
            _ => "messages",
        };
        assert_eq!((&body["tools"], &body[key]), (&tools, &said), "{kind:?}");
        if kind == ProviderKind::Anthropic {
            assert_eq!(body["system"][0]["cache_control"]["type"], "ephemeral");
        }
    }
}

#[tokio::test]
async fn a_call_needs_no_words_and_its_arguments_may_be_none_or_no_json() {
    for kind in ProviderKind::ALL {
        let model = Model::start(vec![calls(kind, "", &[("read", json!({}))])]).await;
        let answer = ask(&model, kind, &[Message::user("Go.")]).await;
        assert_eq!((answer.text.as_deref(), &answer.calls[0].arguments), (Ok(""), &json!({})), "{kind:?}");
    }
    for (written, read) in [("", json!({})), ("{\"path\": ", json!("{\"path\": "))] {
        let model = Model::start(vec![calls(ProviderKind::Openai, "", &[("read", json!(written))])]).await;
        let answer = ask(&model, ProviderKind::Openai, &[Message::user("Go.")]).await;
        assert_eq!(answer.calls[0].arguments, read, "{written}");
    }
}

#[tokio::test]
async fn calls_of_an_answer_that_was_cut_off_are_not_carried_out() {
    for kind in ProviderKind::ALL {
        let Say::Reply(_, _, body) = calls(kind, "I look.", &[("read", json!({"path": "a"}))]) else { panic!() };
        let mut reply: Value = serde_json::from_str(&body).unwrap();
        let cut = whole(kind, "", End::Truncated);
        for field in ["stop_reason", "status", "incomplete_details"] {
            if !cut[field].is_null() {
                reply[field] = cut[field].clone();
            }
        }
        for (list, field) in [("choices", "finish_reason"), ("candidates", "finishReason")] {
            if !cut[list].is_null() {
                reply[list][0][field] = cut[list][0][field].clone();
            }
        }
        let model = Model::start(vec![Say::Reply(200, Vec::new(), reply.to_string())]).await;
        let answer = ask(&model, kind, &[Message::user("Go.")]).await;
        assert_eq!(answer.text.unwrap_err().kind, FailureKind::Truncated, "{kind:?}");
        assert!(answer.calls.is_empty() && answer.call.unwrap().output_tokens == 4, "{kind:?}");
    }
}
