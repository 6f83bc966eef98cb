//! A server on loopback that speaks the providers' wire formats and says what the test told it to say.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use refile_config::Provider;
use refile_config::schema::ProviderKind;
use serde_json::{Value, json};

/// One thing to say: a status, headers, a body.
pub type Say = (u16, Vec<(&'static str, String)>, String);

/// What the server was asked: path, headers, body.
pub type Asked = (String, HeaderMap, Value);

#[derive(Clone)]
pub struct Model {
    pub address: String,
    say: Arc<Mutex<VecDeque<Say>>>,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Model {
    /// A server that says these, in order.
    pub async fn start(say: Vec<Say>) -> Self {
        // A second test of the process finds it installed.
        let _ = rustls::crypto::ring::default_provider().install_default();
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
        Provider { kind, base_url: Some(format!("{}/", self.address)), api_key_env: Some("PATH".to_owned()) }
    }
}

async fn answer(State(model): State<Model>, uri: Uri, headers: HeaderMap, body: Bytes) -> Response {
    let asked = (uri.path().to_owned(), headers, serde_json::from_slice(&body).unwrap());
    model.asked.lock().unwrap().push(asked.clone());
    let said = model.say.lock().unwrap().pop_front();
    let Some((status, headers, mut body)) = said else {
        // Nothing more to say: no answer within any time.
        return std::future::pending().await;
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
    let packet = request["messages"].to_string();
    let (_, rest) = packet.split_once("The diff has ").unwrap();
    let (files, rest) = rest.split_once(" files; its hash is ").unwrap();
    format!(r#"\"files\": {files}, \"diff_hash\": \"{}\""#, &rest[..12])
}

/// A whole reply of Anthropic's.
pub fn anthropic(text: &str, stop: &str) -> Say {
    let body = json!({
        "type": "message", "role": "assistant", "stop_reason": stop,
        "content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": text}],
        "usage": {"input_tokens": 10, "cache_read_input_tokens": 5, "output_tokens": 3},
    });
    (200, Vec::new(), body.to_string())
}

/// A whole reply of `OpenAI`'s.
pub fn openai(text: &str, finish: &str) -> Say {
    let body = json!({
        "choices": [{"finish_reason": finish, "message": {"role": "assistant", "content": text}}],
        "usage": {"prompt_tokens": 20, "completion_tokens": 4},
    });
    (200, Vec::new(), body.to_string())
}
