//! A model that judges: a server that speaks chat completions, approves or demands, and fails when it is told to.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::redis::Redis;

/// What a server says to a call: of task `.0`, the `.1`-th about it that is not turned away.
pub(crate) type Script = Arc<dyn Fn(u64, u64) -> Say + Send + Sync>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Say {
    Verdict,
    /// Too many calls.
    RateLimit,
    Nothing,
    Truncated,
    Garbage,
}

/// A server that speaks chat completions.
#[derive(Clone)]
pub(crate) struct Provider {
    script: Script,
    late: Duration,
    /// When each call came, and what it was told.
    calls: Arc<Mutex<Vec<(Instant, Say)>>>,
    of_task: Arc<Mutex<HashMap<u64, u64>>>,
}

impl Provider {
    /// Starts one; gives its address. Whoever is turned away learns so late.
    pub(crate) async fn start(script: Script, late: Duration) -> (Self, String) {
        refile_telemetry::process::install_tls();
        let provider = Self { script, late, calls: Arc::default(), of_task: Arc::default() };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}/v1", listener.local_addr().unwrap());
        let app = Router::new().fallback(answer).with_state(provider.clone());
        tokio::spawn(async move { axum::serve(listener, app).await });
        (provider, address)
    }

    pub(crate) fn calls(&self) -> Vec<(Instant, Say)> {
        self.calls.lock().unwrap().clone()
    }
}

async fn answer(State(provider): State<Provider>, body: Bytes) -> Response {
    let request: Value = serde_json::from_slice(&body).unwrap();
    let packet = request["messages"].as_array().unwrap().iter().find(|m| m["role"] == "user").unwrap();
    let packet = packet["content"].as_str().unwrap();
    let number: u64 = between(packet, "Task ", "\n").parse().unwrap();
    let said = {
        let (mut calls, mut of_task) = (provider.calls.lock().unwrap(), provider.of_task.lock().unwrap());
        let of_task = of_task.entry(number).or_default();
        let said = (provider.script)(number, *of_task + 1);
        // What is turned away was not asked: each task comes to the same answers in the same order.
        *of_task += u64::from(said != Say::RateLimit);
        calls.push((Instant::now(), said));
        said
    };
    if said == Say::RateLimit {
        tokio::time::sleep(provider.late).await;
    }
    let receipt = format!(
        r#""files": {}, "diff_hash": "{}""#,
        between(packet, "The diff has ", " files"),
        between(packet, "its hash is ", ".")
    );
    let again = packet.contains("previous_required_change");
    let verdict = if number.is_multiple_of(5) && !again {
        format!(
            r#"{{"verdict": "needs_changes", "required_change": "Handle the empty list.", "critique": "It fails there.", "conf": 0.9, {receipt}}}"#
        )
    } else {
        format!(r#"{{"verdict": "approved", "required_change": "", "critique": "", "conf": 0.9, {receipt}}}"#)
    };
    let (text, stop) = match said {
        Say::Verdict => (verdict, "stop"),
        Say::Truncated => (verdict[..verdict.len() / 2].to_owned(), "length"),
        Say::Garbage => ("I like it! Approved, I would say. {\"verdict\": \"fine\"}".to_owned(), "stop"),
        Say::Nothing => return std::future::pending().await,
        Say::RateLimit => {
            let body =
                json!({"error": {"message": "Rate limit reached", "type": "requests", "code": "rate_limit_exceeded"}});
            return (StatusCode::TOO_MANY_REQUESTS, [("retry-after", "1")], body.to_string()).into_response();
        }
    };
    json!({
        "id": "1", "object": "chat.completion", "model": "m",
        "choices": [{"index": 0, "finish_reason": stop, "message": {"role": "assistant", "content": text}}],
        "usage": {"prompt_tokens": 100, "completion_tokens": 10},
    })
    .to_string()
    .into_response()
}

fn between<'t>(text: &'t str, before: &str, after: &str) -> &'t str {
    text.split_once(before).unwrap().1.split_once(after).unwrap().0
}

/// Where the fleets of a test keep their tasks.
pub(crate) enum Kept {
    File(tempfile::TempDir),
    Server(Redis),
}

impl Kept {
    pub(crate) fn both() -> [Self; 2] {
        [Self::File(tempfile::tempdir().unwrap()), Self::Server(Redis::start())]
    }

    pub(crate) fn url(&self) -> String {
        match self {
            Self::File(dir) => format!("sqlite:{}", dir.path().join("fleet.db").display()),
            Self::Server(server) => server.url(),
        }
    }
}
