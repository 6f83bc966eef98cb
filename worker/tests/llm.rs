//! The client for models against a server that speaks the providers' wire formats.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::time::Duration;

use common::model::{Model, Say, anthropic, openai};
use refile_config::schema::ProviderKind;
use refile_core::failure::{Failure, FailureKind};
use refile_worker::llm::{Answer, Client, Message, Question, Role};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

async fn ask(provider: &refile_config::Provider, timeout: Duration) -> Answer {
    let messages = [("one", Role::User), ("two", Role::Assistant), ("three", Role::User)];
    let messages = messages.map(|(text, role)| Message { role, text: text.to_owned() });
    let question =
        Question { provider: "p", model: "m-1", system: "Be brief.", messages: &messages, max_tokens: 99, timeout };
    Client::new().unwrap().ask(provider, &question).await
}

const LONG: Duration = Duration::from_mins(1);

async fn failure(kind: ProviderKind, say: Say) -> Failure {
    let model = Model::start(vec![say]).await;
    ask(&model.provider(kind), LONG).await.text.unwrap_err()
}

#[tokio::test]
async fn anthropic_is_spoken() {
    let model = Model::start(vec![anthropic("hello", "end_turn")]).await;
    let answer = ask(&model.provider(ProviderKind::Anthropic), LONG).await;
    assert_eq!(answer.text.as_deref(), Ok("hello"));
    assert_eq!((answer.usage.input_tokens, answer.usage.output_tokens), (15, 3));
    let (path, headers, body) = model.asked().remove(0);
    assert_eq!(path, "/v1/messages");
    assert_eq!(headers["x-api-key"].to_str().unwrap(), std::env::var("PATH").unwrap());
    assert_eq!(headers["anthropic-version"], "2023-06-01");
    assert_eq!(
        body,
        json!({
            "model": "m-1", "max_tokens": 99, "system": "Be brief.",
            "messages": [
                {"role": "user", "content": "one"},
                {"role": "assistant", "content": "two"},
                {"role": "user", "content": "three"},
            ],
        })
    );
}

#[tokio::test]
async fn openai_is_spoken() {
    let model = Model::start(vec![openai("hello", "stop"), openai("again", "stop")]).await;
    let mut provider = model.provider(ProviderKind::Openai);
    let answer = ask(&provider, LONG).await;
    assert_eq!(answer.text.as_deref(), Ok("hello"));
    assert_eq!((answer.usage.input_tokens, answer.usage.output_tokens), (20, 4));
    provider.base_url = Some(format!("{}/v1", model.address));
    provider.api_key_env = None;
    assert!(ask(&provider, LONG).await.text.is_ok());
    let asked = model.asked();
    assert_eq!(asked[0].1["authorization"].to_str().unwrap(), format!("Bearer {}", std::env::var("PATH").unwrap()));
    assert!(!asked[1].1.contains_key("authorization"));
    assert!(asked.iter().all(|(path, ..)| path == "/v1/chat/completions"));
    assert_eq!(asked[0].2["messages"][0], json!({"role": "system", "content": "Be brief."}));
    assert_eq!(asked[0].2["max_tokens"], 99);
}

#[tokio::test]
async fn the_stop_reason_is_read_before_the_text() {
    let whole = r#"{"verdict": "approved", "conf": 1.0}"#;
    for (say, kind) in [
        (anthropic(whole, "max_tokens"), FailureKind::Truncated),
        (anthropic(whole, "refusal"), FailureKind::Refused),
        (anthropic(whole, "model_context_window_exceeded"), FailureKind::ContextTooLong),
        (anthropic(whole, "tool_use"), FailureKind::Malformed),
        (anthropic("  ", "end_turn"), FailureKind::Empty),
        ((200, Vec::new(), "{}".to_owned()), FailureKind::Malformed),
        ((200, Vec::new(), "<html>".to_owned()), FailureKind::Malformed),
    ] {
        assert_eq!(failure(ProviderKind::Anthropic, say.clone()).await.kind, kind, "{say:?}");
    }
    let refusal = json!({"choices": [{"finish_reason": "stop", "message": {"refusal": "I will not"}}]});
    for (say, kind) in [
        (openai(whole, "length"), FailureKind::Truncated),
        (openai(whole, "content_filter"), FailureKind::Filtered),
        (openai("", "stop"), FailureKind::Empty),
        ((200, Vec::new(), refusal.to_string()), FailureKind::Refused),
        ((200, Vec::new(), json!({"choices": []}).to_string()), FailureKind::Empty),
    ] {
        assert_eq!(failure(ProviderKind::Openai, say.clone()).await.kind, kind, "{say:?}");
    }
    let model = Model::start(vec![anthropic(whole, "max_tokens")]).await;
    assert_eq!(ask(&model.provider(ProviderKind::Anthropic), LONG).await.usage.output_tokens, 3);
}

#[tokio::test]
async fn a_limit_says_when_to_come_back() {
    let limit = |headers| (429, headers, json!({"error": {"type": "rate_limit_error", "message": "slow"}}).to_string());
    let seconds = failure(ProviderKind::Anthropic, limit(vec![("retry-after", "7".to_owned())])).await;
    assert_eq!((seconds.kind, seconds.retry_after_ms), (FailureKind::RateLimit, Some(7_000)));
    let ms = failure(ProviderKind::Openai, limit(vec![("retry-after-ms", "250".to_owned())])).await;
    assert_eq!(ms.retry_after_ms, Some(250));
    let date = "Fri, 01 Jan 2100 00:00:00 GMT".to_owned();
    let date = failure(ProviderKind::Openai, limit(vec![("retry-after", date)])).await;
    assert_eq!(date.retry_after_ms, Some(86_400_000));
    assert_eq!(failure(ProviderKind::Openai, limit(Vec::new())).await.retry_after_ms, None);
}

#[tokio::test]
async fn an_error_in_a_good_status_is_an_error() {
    let body = json!({"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}).to_string();
    assert_eq!(failure(ProviderKind::Anthropic, (200, Vec::new(), body)).await.kind, FailureKind::Overloaded);
}

#[tokio::test]
async fn the_key_is_never_repeated_and_a_missing_one_is_named() {
    let body =
        json!({"error": {"type": "authentication_error", "message": std::env::var("PATH").unwrap()}}).to_string();
    let refused = failure(ProviderKind::Anthropic, (401, Vec::new(), body)).await;
    assert_eq!(refused.kind, FailureKind::Auth);
    assert!(refused.detail.ends_with("[key]"), "{refused}");
    let model = Model::start(Vec::new()).await;
    let mut provider = model.provider(ProviderKind::Anthropic);
    provider.api_key_env = Some("REFILE_TEST_NO_SUCH_KEY".to_owned());
    let missing = ask(&provider, LONG).await.text.unwrap_err();
    assert_eq!(missing.kind, FailureKind::Auth);
    assert!(missing.detail.contains("REFILE_TEST_NO_SUCH_KEY"), "{missing}");
    assert!(model.asked().is_empty());
}

#[tokio::test]
async fn silence_is_a_timeout_and_a_cut_connection_a_network_failure() {
    let silent = Model::start(Vec::new()).await;
    let answer = ask(&silent.provider(ProviderKind::Openai), Duration::from_millis(100)).await;
    assert_eq!(answer.text.unwrap_err().kind, FailureKind::Timeout);

    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut provider = silent.provider(ProviderKind::Anthropic);
    provider.base_url = Some(format!("http://{}", listener.local_addr().unwrap()));
    let cut = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let _ = stream.read(&mut [0; 4_096]).await.unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n{\"content\": [").await.unwrap();
    });
    assert_eq!(ask(&provider, LONG).await.text.unwrap_err().kind, FailureKind::Network);
    cut.await.unwrap();
    // Nobody listens there any more.
    assert_eq!(ask(&provider, LONG).await.text.unwrap_err().kind, FailureKind::Network);
}
