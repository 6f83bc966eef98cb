//! The client for models, where the provider makes no difference: keys, addresses, waits.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use common::model::{End, Model, Say, question, says};
use refile_config::Provider;
use refile_config::schema::ProviderKind;
use refile_core::failure::{Failure, FailureKind, Scope};
use refile_store::Pass;
use refile_worker::llm::{Answer, Call, Client, Left, Message, Turnstile};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

async fn ask(provider: &Provider) -> Answer {
    ask_with(&Client::new().unwrap(), provider).await
}

async fn ask_with(client: &Client, provider: &Provider) -> Answer {
    let messages = [Message::user("one")];
    client.ask(provider, &question(&messages)).await
}

async fn failure(kind: ProviderKind, say: Say) -> Failure {
    let model = Model::start(vec![say]).await;
    ask(&model.provider(kind)).await.text.unwrap_err()
}

#[tokio::test]
async fn a_server_at_an_address_of_its_own_needs_no_key() {
    let model = Model::start(vec![says(ProviderKind::Openai, "hello", End::Said)]).await;
    let base_url = Some(format!("{}/api/v1", model.address));
    let provider = Provider { base_url, api_key_env: None, ..model.provider(ProviderKind::Openai) };
    assert_eq!(ask(&provider).await.text.as_deref(), Ok("hello"));
    let (path, headers, _) = model.asked().remove(0);
    assert_eq!(path, "/api/v1/chat/completions");
    assert!(!headers.contains_key("authorization"));
    assert!(headers["user-agent"].to_str().unwrap().starts_with("refile/"));
}

#[tokio::test]
async fn what_waiting_does_not_settle_has_no_wait() {
    let body = json!({"error": {"message": "x", "type": "insufficient_quota", "code": "insufficient_quota"}});
    let spent = Say::Reply(429, vec![("retry-after", "1".to_owned())], body.to_string());
    let spent = failure(ProviderKind::Openai, spent).await;
    assert_eq!((spent.kind, spent.scope, spent.retry_after_ms), (FailureKind::Quota, Scope::Key, None));
    let date = vec![("retry-after", "Fri, 01 Jan 2100 00:00:00 GMT".to_owned())];
    let far = failure(ProviderKind::Openai, Say::Reply(429, date, String::new())).await;
    assert_eq!(far.retry_after_ms, Some(86_400_000), "a day at most");
}

#[tokio::test]
async fn the_key_is_never_repeated_and_a_missing_one_is_named() {
    let key = std::env::var("PATH").unwrap();
    let body = json!({"error": {"type": "authentication_error", "message": key}}).to_string();
    let refused = failure(ProviderKind::Anthropic, Say::Reply(401, Vec::new(), body)).await;
    assert_eq!((refused.kind, refused.scope), (FailureKind::Auth, Scope::Key));
    assert!(refused.detail.ends_with("[key]"), "{refused}");
    let said = json!({"choices": [{"finish_reason": "stop", "message": {"refusal": format!("not with {key}")}}]});
    let refused = failure(ProviderKind::Openai, Say::Reply(200, Vec::new(), said.to_string())).await;
    assert_eq!((refused.kind, refused.detail.as_str()), (FailureKind::Refused, "not with [key]"));
    let model = Model::start(Vec::new()).await;
    let mut provider = model.provider(ProviderKind::Anthropic);
    provider.api_key_env = Some("REFILE_TEST_NO_SUCH_KEY".to_owned());
    let missing = ask(&provider).await.text.unwrap_err();
    assert_eq!((missing.kind, missing.scope), (FailureKind::Auth, Scope::Key));
    assert!(missing.detail.contains("REFILE_TEST_NO_SUCH_KEY"), "{missing}");
    assert!(model.asked().is_empty());
}

#[tokio::test]
async fn no_part_of_the_key_survives_where_a_failure_is_cut_or_a_reply_repeats_it() {
    let key = std::env::var("PATH").unwrap();
    for before in (880..1_010).step_by(10) {
        let message = format!("{}{key}{key}", "x".repeat(before));
        let body = json!({"error": {"type": "authentication_error", "message": message}}).to_string();
        // As it is, and as a server writes it that escapes slashes; and where the body is no JSON.
        for body in [body.replace('/', "\\/"), message.clone(), body] {
            let refused = failure(ProviderKind::Anthropic, Say::Reply(401, Vec::new(), body)).await;
            assert!(refused.detail.contains("xxx") && !refused.detail.contains(&key[..4]), "{before}: {refused}");
        }
    }
    for kind in ProviderKind::ALL {
        let model = Model::start(vec![says(kind, &format!("it is {key}, I think"), End::Said)]).await;
        assert_eq!(ask(&model.provider(kind)).await.text.as_deref(), Ok("it is [key], I think"), "{kind:?}");
    }
    // Two parts of a reply are one text.
    let (one, other) = key.split_at(key.len() / 2);
    let parts = json!([{"type": "text", "text": one}, {"type": "text", "text": other}]);
    let reply = json!({"type": "message", "stop_reason": "end_turn", "content": parts, "usage": {}}).to_string();
    let model = Model::start(vec![Say::Reply(200, Vec::new(), reply)]).await;
    assert_eq!(ask(&model.provider(ProviderKind::Anthropic)).await.text.as_deref(), Ok("[key]"));
}

#[tokio::test]
async fn a_connection_that_is_cut_or_refused_is_a_network_failure() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    refile_telemetry::process::install_tls();
    let provider = Provider {
        kind: ProviderKind::Anthropic,
        base_url: Some(address),
        api_key_env: None,
        structured: None,
        requests_per_minute: None,
        tokens_per_minute: None,
    };
    let cut = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let _ = stream.read(&mut [0; 4_096]).await.unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n{\"content\": [").await.unwrap();
    });
    assert_eq!(ask(&provider).await.text.unwrap_err().kind, FailureKind::Network);
    cut.await.unwrap();
    // Nobody listens there any more.
    assert_eq!(ask(&provider).await.text.unwrap_err().kind, FailureKind::Network);
}

/// Lets every call through and keeps for how long each said that nothing is left.
#[derive(Debug, Default)]
struct Gate(Mutex<Vec<Option<Duration>>>);

#[async_trait]
impl Turnstile for Gate {
    async fn enter(&self, _: &Call<'_>) -> Result<Option<Pass>, Failure> {
        Ok(None)
    }

    async fn left(&self, _: &Call<'_>, _: Option<Pass>, left: Left<'_>) {
        self.0.lock().unwrap().push(left.used_up);
    }
}

#[tokio::test]
async fn an_answer_tells_that_nothing_is_left_of_a_limit() {
    let with = |remaining: &str| {
        let Say::Reply(status, _, body) = says(ProviderKind::Openai, "hello", End::Said) else { panic!("no reply") };
        let headers = vec![
            ("x-ratelimit-remaining-requests", remaining.to_owned()),
            ("x-ratelimit-reset-requests", "1m30s".to_owned()),
        ];
        Say::Reply(status, headers, body)
    };
    let model = Model::start(vec![with("0"), with("7")]).await;
    let gate = Arc::new(Gate::default());
    let client = Client::new().unwrap().behind(gate.clone());
    for _ in 0..2 {
        assert!(ask_with(&client, &model.provider(ProviderKind::Openai)).await.text.is_ok());
    }
    assert_eq!(*gate.0.lock().unwrap(), [Some(Duration::from_secs(90)), None]);
}
