//! Every provider, each time: an answer, and every way in which there is none.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::time::Duration;

use common::model::{End, Model, Say, error_in_200, limited, overloaded, question, says, whole};
use refile_config::Provider;
use refile_config::schema::ProviderKind;
use refile_core::failure::{FailureKind, Scope};
use refile_worker::llm::{Answer, Client, Message, Question, Role};
use serde_json::{Value, json};

const LONG: Duration = Duration::from_mins(1);

async fn ask(provider: &Provider, timeout: Duration, schema: Option<&Value>) -> Answer {
    let messages = [("one", Role::User), ("two", Role::Assistant), ("three", Role::User)];
    let messages = messages.map(|(text, role)| Message { role, ..Message::user(text) });
    let question = Question { timeout, schema, ..question(&messages) };
    Client::new().unwrap().ask(provider, &question).await
}

/// What each kind fails with when it is told this.
async fn each(say: impl Fn(ProviderKind) -> Say, expect: impl Fn(ProviderKind) -> (FailureKind, Scope, Option<u64>)) {
    for kind in ProviderKind::ALL {
        let model = Model::start(vec![say(kind)]).await;
        let failure = ask(&model.provider(kind), LONG, None).await.text.unwrap_err();
        assert_eq!((failure.kind, failure.scope, failure.retry_after_ms), expect(kind), "{kind:?}: {failure}");
        assert_eq!(model.asked().len(), 1, "the client itself asks once");
    }
}

#[tokio::test]
async fn an_answer_is_read_with_its_usage() {
    for kind in ProviderKind::ALL {
        let model = Model::start(vec![says(kind, "hello", End::Said)]).await;
        let answer = ask(&model.provider(kind), LONG, None).await;
        assert_eq!(answer.text.as_deref(), Ok("hello"), "{kind:?}");
        let call = answer.call.unwrap();
        assert_eq!((call.input_tokens, call.cached_input_tokens, call.output_tokens), (15, 5, 4), "{kind:?}");
    }
}

#[tokio::test]
async fn each_provider_is_asked_as_it_wants_to_be() {
    let schema = json!({"type": "object", "properties": {}, "required": [], "additionalProperties": false});
    let named = json!({"name": "reply", "strict": true, "schema": schema});
    let roles = |key: &str, other: &str| {
        json!([
            {"role": "user", key: "one"}, {"role": other, key: "two"}, {"role": "user", key: "three"},
        ])
    };
    let mut with_system = vec![json!({"role": "system", "content": "Be brief."})];
    with_system.extend(roles("content", "assistant").as_array().unwrap().clone());
    let chat = json!({"model": "m-1", "max_tokens": 99, "messages": with_system,
        "response_format": {"type": "json_schema", "json_schema": named}});
    let part = |text: &str| json!([{"text": text}]);
    for (kind, path, key_header, body) in [
        (
            ProviderKind::Anthropic,
            "/v1/messages",
            "x-api-key",
            json!({
                "model": "m-1", "max_tokens": 99, "system": "Be brief.", "messages": roles("content", "assistant"),
                "output_config": {"format": {"type": "json_schema", "schema": schema}},
            }),
        ),
        (ProviderKind::Openai, "/v1/chat/completions", "authorization", chat.clone()),
        (ProviderKind::Ollama, "/v1/chat/completions", "authorization", chat),
        (
            ProviderKind::OpenaiResponses,
            "/v1/responses",
            "authorization",
            json!({
                "model": "m-1", "max_output_tokens": 99, "instructions": "Be brief.", "store": false,
                "input": roles("content", "assistant"),
                "text": {"format": {"type": "json_schema", "name": "reply", "strict": true, "schema": schema}},
            }),
        ),
        (
            ProviderKind::Gemini,
            "/v1beta/models/m-1:generateContent",
            "x-goog-api-key",
            json!({
                "systemInstruction": {"parts": part("Be brief.")},
                "contents": [
                    {"role": "user", "parts": part("one")},
                    {"role": "model", "parts": part("two")},
                    {"role": "user", "parts": part("three")},
                ],
                "generationConfig": {"maxOutputTokens": 99, "responseMimeType": "application/json", "responseJsonSchema": schema},
            }),
        ),
    ] {
        let model = Model::start(vec![says(kind, "{}", End::Said), says(kind, "{}", End::Said)]).await;
        let provider = Provider { structured: Some(true), ..model.provider(kind) };
        assert_eq!(ask(&provider, LONG, Some(&schema)).await.text.as_deref(), Ok("{}"), "{kind:?}");
        // Plain JSON where the server is not known to be able to, and no key where none is named.
        let plain = Provider { structured: Some(false), api_key_env: None, ..model.provider(kind) };
        assert!(ask(&plain, LONG, Some(&schema)).await.text.is_ok());
        let asked = model.asked();
        assert_eq!((asked[0].0.as_str(), &asked[0].2), (path, &body), "{kind:?}");
        let key = std::env::var("PATH").unwrap();
        let key = if key_header == "authorization" { format!("Bearer {key}") } else { key };
        assert_eq!(asked[0].1[key_header].to_str().unwrap(), key);
        assert!(!asked[1].1.contains_key(key_header), "{kind:?}");
        assert!(!asked[1].2.to_string().contains("chema"), "{kind:?}: {}", asked[1].2);
    }
    let by_default = ProviderKind::ALL.map(|kind| {
        let provider = |base_url| Provider {
            kind,
            base_url,
            api_key_env: None,
            structured: None,
            requests_per_minute: None,
            tokens_per_minute: None,
        };
        (provider(None).structured(), provider(Some("http://h".to_owned())).structured())
    });
    assert_eq!(by_default, [(true, false), (true, false), (true, true), (true, true), (true, true)]);
}

#[tokio::test]
async fn a_limit_says_when_to_come_back() {
    each(limited, |_| (FailureKind::RateLimit, Scope::Model, Some(7_000))).await;
}

#[tokio::test]
async fn an_overloaded_provider_is_told_from_a_broken_one() {
    each(overloaded, |_| (FailureKind::Overloaded, Scope::Model, None)).await;
    let broken = |_| Say::Reply(500, Vec::new(), "<html>".to_owned());
    each(broken, |_| (FailureKind::Network, Scope::Call, None)).await;
}

#[tokio::test]
async fn an_error_in_a_good_status_is_an_error() {
    each(error_in_200, |_| (FailureKind::Overloaded, Scope::Model, None)).await;
}

#[tokio::test]
async fn the_stop_reason_is_read_before_the_text() {
    let verdict = r#"{"verdict": "approved", "conf": 1.0}"#;
    let of_call = |kind| (kind, Scope::Call, None);
    each(|kind| says(kind, verdict, End::Truncated), |_| of_call(FailureKind::Truncated)).await;
    each(
        |kind| says(kind, verdict, End::Refused),
        |kind| of_call(if kind == ProviderKind::Gemini { FailureKind::Filtered } else { FailureKind::Refused }),
    )
    .await;
    each(
        |kind| says(kind, verdict, End::Filtered),
        |kind| of_call(if kind == ProviderKind::Anthropic { FailureKind::Refused } else { FailureKind::Filtered }),
    )
    .await;
    // What was used up is known also then.
    for kind in ProviderKind::ALL {
        let model = Model::start(vec![says(kind, verdict, End::Truncated)]).await;
        assert_eq!(ask(&model.provider(kind), LONG, None).await.call.unwrap().output_tokens, 4, "{kind:?}");
    }
}

#[tokio::test]
async fn no_text_is_empty_and_no_object_malformed() {
    let of_call = |kind| (kind, Scope::Call, None);
    each(|kind| says(kind, " \n", End::Said), |_| of_call(FailureKind::Empty)).await;
    each(|_| Say::Reply(200, Vec::new(), "<html>".to_owned()), |_| of_call(FailureKind::Malformed)).await;
    let blocked = json!({"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": {"promptTokenCount": 9}});
    let model = Model::start(vec![Say::Reply(200, Vec::new(), blocked.to_string())]).await;
    let answer = ask(&model.provider(ProviderKind::Gemini), LONG, None).await;
    assert_eq!((answer.text.unwrap_err().kind, answer.call.unwrap().input_tokens), (FailureKind::Filtered, 9));
}

#[tokio::test]
async fn a_connection_cut_in_the_body_is_a_network_failure() {
    let cut = |kind| Say::Cut(whole(kind, "hello", End::Said).to_string());
    each(cut, |_| (FailureKind::Network, Scope::Call, None)).await;
}

#[tokio::test]
async fn silence_is_a_timeout() {
    for kind in ProviderKind::ALL {
        let model = Model::start(vec![Say::Nothing]).await;
        let failure = ask(&model.provider(kind), Duration::from_millis(100), None).await.text.unwrap_err();
        assert_eq!((failure.kind, failure.scope), (FailureKind::Timeout, Scope::Call), "{kind:?}");
    }
}
