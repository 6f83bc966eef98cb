//! A server on loopback that speaks the providers' wire formats and says what the test told it to say.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use refile_config::Provider;
use refile_config::schema::ProviderKind;
use refile_worker::llm::{Message, Question};
use serde_json::{Value, json};

/// One thing to say.
#[derive(Debug, Clone)]
pub enum Say {
    /// A status, headers, a body.
    Reply(u16, Vec<(&'static str, String)>, String),
    /// A good reply whose connection is cut in the middle of its body.
    Cut(String),
    /// No answer within any time.
    Nothing,
}

/// A question of these messages, as brief as can be.
pub fn question(messages: &[Message]) -> Question<'_> {
    Question {
        provider: "p",
        model: "m-1",
        system: "Be brief.",
        messages,
        max_tokens: 99,
        timeout: Duration::from_mins(1),
        schema: None,
        tools: &[],
    }
}

/// What the server was asked: path, headers, body.
pub type Asked = (String, HeaderMap, Value);

#[derive(Clone)]
pub struct Model {
    pub address: String,
    say: Arc<Mutex<VecDeque<Say>>>,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Model {
    /// A server that says these, in order, and then nothing. `{receipt}` in a body becomes the receipt that was asked for.
    pub async fn start(say: Vec<Say>) -> Self {
        refile_telemetry::process::install_tls();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let model = Self {
            address: format!("http://{}", listener.local_addr().unwrap()),
            say: Arc::new(Mutex::new(say.into())),
            asked: Arc::default(),
        };
        let app = Router::new().fallback(answer).with_state(model.clone());
        tokio::spawn(async move { axum::serve(listener, app).await });
        model
    }

    pub fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }

    pub fn provider(&self, kind: ProviderKind) -> Provider {
        // Every environment has a PATH; the test needs a variable that is set, and may not set one itself.
        let api_key_env = Some("PATH".to_owned());
        Provider {
            kind,
            base_url: Some(format!("{}/", self.address)),
            api_key_env,
            structured: None,
            requests_per_minute: None,
            tokens_per_minute: None,
        }
    }
}

async fn answer(State(model): State<Model>, uri: Uri, headers: HeaderMap, body: Bytes) -> Response {
    let asked: Asked = (uri.path().to_owned(), headers, serde_json::from_slice(&body).unwrap());
    model.asked.lock().unwrap().push(asked.clone());
    let said = model.say.lock().unwrap().pop_front().unwrap_or(Say::Nothing);
    let (status, headers, mut body) = match said {
        Say::Reply(status, headers, body) => (status, headers, body),
        Say::Cut(body) => {
            let half = body[..body.floor_char_boundary(body.len() / 2)].to_owned();
            let pieces = [Ok(half), Err(std::io::Error::other("cut"))];
            return Body::from_stream(futures::stream::iter(pieces)).into_response();
        }
        Say::Nothing => return std::future::pending().await,
    };
    if body.contains("{receipt}") {
        body = body.replace("{receipt}", &receipt(&asked.2));
    }
    let mut response = (StatusCode::from_u16(status).unwrap(), body).into_response();
    for (name, value) in headers {
        response.headers_mut().insert(HeaderName::from_static(name), HeaderValue::from_str(&value).unwrap());
    }
    response
}

/// The receipt that the packet in this request asks for, as it stands in a text inside of JSON.
fn receipt(request: &Value) -> String {
    let packet = request.to_string();
    let (_, rest) = packet.split_once("The diff has ").unwrap();
    let (files, rest) = rest.split_once(" files; its hash is ").unwrap();
    format!(r#"\"files\": {files}, \"diff_hash\": \"{}\""#, &rest[..12])
}

/// How a model ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Said,
    Truncated,
    Refused,
    Filtered,
}

/// A whole reply in a provider's wire format, whose usage is 15 tokens in, 5 of them out of a cache, and 4 out.
pub fn says(kind: ProviderKind, text: &str, end: End) -> Say {
    Say::Reply(200, Vec::new(), whole(kind, text, end).to_string())
}

pub fn whole(kind: ProviderKind, text: &str, end: End) -> Value {
    let refusal = (end == End::Refused).then_some("I will not.");
    match kind {
        ProviderKind::Anthropic => json!({
            "type": "message", "role": "assistant",
            "stop_reason": match end {
                End::Said => "end_turn",
                End::Truncated => "max_tokens",
                End::Refused | End::Filtered => "refusal",
            },
            "content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": text}],
            "usage": {"input_tokens": 10, "cache_read_input_tokens": 5, "output_tokens": 4},
        }),
        ProviderKind::Openai | ProviderKind::Ollama => json!({
            "object": "chat.completion",
            "choices": [{
                "index": 0,
                "finish_reason": match end {
                    End::Said | End::Refused => "stop",
                    End::Truncated => "length",
                    End::Filtered => "content_filter",
                },
                "message": {"role": "assistant", "content": text, "refusal": refusal},
            }],
            "usage": {
                "prompt_tokens": 15, "completion_tokens": 4, "total_tokens": 19,
                "prompt_tokens_details": {"cached_tokens": 5},
            },
        }),
        ProviderKind::OpenaiResponses => {
            let (status, reason) = match end {
                End::Said | End::Refused => ("completed", None),
                End::Truncated => ("incomplete", Some("max_output_tokens")),
                End::Filtered => ("incomplete", Some("content_filter")),
            };
            let part = match refusal {
                Some(words) => json!({"type": "refusal", "refusal": words}),
                None => json!({"type": "output_text", "text": text, "annotations": []}),
            };
            json!({
                "object": "response", "status": status, "error": null,
                "incomplete_details": reason.map(|reason| json!({"reason": reason})),
                "output": [
                    {"type": "reasoning", "summary": []},
                    {"type": "message", "role": "assistant", "content": [part]},
                ],
                "usage": {"input_tokens": 15, "input_tokens_details": {"cached_tokens": 5}, "output_tokens": 4},
            })
        }
        ProviderKind::Gemini => json!({
            "candidates": [{
                "finishReason": match end {
                    End::Said => "STOP",
                    End::Truncated => "MAX_TOKENS",
                    End::Refused => "PROHIBITED_CONTENT",
                    End::Filtered => "SAFETY",
                },
                "content": {"role": "model", "parts": [{"text": "hm", "thought": true}, {"text": text}]},
            }],
            "usageMetadata": {
                "promptTokenCount": 15, "cachedContentTokenCount": 5, "candidatesTokenCount": 3, "thoughtsTokenCount": 1,
            },
        }),
    }
}

/// A limit that is used up, as a provider says it; it clears in seven seconds.
pub fn limited(kind: ProviderKind) -> Say {
    let seven = || vec![("retry-after", "7".to_owned())];
    match kind {
        ProviderKind::Anthropic => {
            Say::Reply(429, seven(), r#"{"type":"error","error":{"type":"rate_limit_error","message":"slow"}}"#.into())
        }
        ProviderKind::Gemini => {
            let details = json!([{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "7s"}]);
            let error = json!({"code": 429, "message": "x", "status": "RESOURCE_EXHAUSTED", "details": details});
            Say::Reply(429, Vec::new(), json!({"error": error}).to_string())
        }
        _ => {
            let headers = vec![
                ("x-ratelimit-remaining-requests", "0".to_owned()),
                ("x-ratelimit-reset-requests", "7s".to_owned()),
            ];
            let error = json!({"message": "slow", "type": "requests", "code": "rate_limit_exceeded"});
            Say::Reply(429, headers, json!({"error": error}).to_string())
        }
    }
}

/// Too much to do for everybody, as a provider says it.
pub fn overloaded(kind: ProviderKind) -> Say {
    let (status, error) = match kind {
        ProviderKind::Anthropic => (529, json!({"type": "overloaded_error", "message": "Overloaded"})),
        ProviderKind::Gemini => (503, json!({"code": 503, "message": "busy", "status": "UNAVAILABLE"})),
        _ => (503, json!({"message": "The engine is currently overloaded", "type": "server_error"})),
    };
    Say::Reply(status, Vec::new(), json!({"type": "error", "error": error}).to_string())
}

/// An error in a good status, as gateways send it.
pub fn error_in_200(kind: ProviderKind) -> Say {
    let body = match kind {
        ProviderKind::Anthropic => json!({"type": "error", "error": {"type": "overloaded_error", "message": "x"}}),
        ProviderKind::Gemini => json!([{"error": {"code": 503, "message": "x", "status": "UNAVAILABLE"}}]),
        ProviderKind::OpenaiResponses => {
            json!({"status": "failed", "error": {"code": "overloaded_error", "message": "x"}, "output": []})
        }
        _ => json!({"choices": [{"finish_reason": "error", "message": {"content": "{\"ver"},
            "error": {"code": 503, "message": "x"}}]}),
    };
    Say::Reply(200, Vec::new(), body.to_string())
}
