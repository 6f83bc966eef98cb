//! A small client for models: one question, one answer, and every failure by its kind.
//!
//! # Layout
//! - [`classify`]: one table from what a provider says to the kind of failure
//! - `anthropic`, `openai`: the two wire formats
//!
//! A TLS provider must be installed before a [`Client`] is made; binaries do that first thing in `main`.

pub mod classify;
mod anthropic;
mod openai;

use std::time::{Duration, Instant, SystemTime};

use refile_config::Provider;
use refile_config::schema::ProviderKind;
use refile_core::failure::{Failure, FailureKind};
use refile_core::task::Usage;
use refile_telemetry::Metrics;
use reqwest::header::HeaderMap;
use serde_json::Value;

use classify::Trouble;

/// The longest reply that is read, in bytes.
const MAX_REPLY: usize = 8 << 20;

/// Who said a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// We.
    User,
    /// The model.
    Assistant,
}

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Who said it.
    pub role: Role,
    /// What.
    pub text: String,
}

/// A question to a model.
#[derive(Debug, Clone, Copy)]
pub struct Question<'a> {
    /// The provider's name, for the metrics.
    pub provider: &'a str,
    /// The model.
    pub model: &'a str,
    /// What it is told about its task.
    pub system: &'a str,
    /// The conversation, ending with our words.
    pub messages: &'a [Message],
    /// The longest answer, in tokens.
    pub max_tokens: u32,
    /// How long it may take.
    pub timeout: Duration,
}

/// What came of a question.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// The whole text, or why there is none. A reply that was cut off is a failure.
    pub text: Result<String, Failure>,
    /// What it used up; also where it failed.
    pub usage: Usage,
}

/// What a wire format makes of a reply.
struct Read {
    text: Result<String, Failure>,
    input_tokens: u64,
    output_tokens: u64,
}

/// The client. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Client {
    http: reqwest::Client,
    metrics: Option<Metrics>,
}

impl Client {
    /// A client.
    pub fn new() -> Result<Self, Failure> {
        // A redirect would carry the key to another place.
        reqwest::Client::builder()
            .user_agent(concat!("refile/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(Duration::from_secs(20))
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map(|http| Self { http, metrics: None })
            .map_err(|error| Failure::new(FailureKind::Configuration, format!("no HTTP client can be made: {error}")))
    }

    /// The same client, which counts its calls.
    #[must_use]
    pub fn with_metrics(self, metrics: &Metrics) -> Self {
        Self { metrics: Some(metrics.clone()), ..self }
    }

    /// Asks a model.
    pub async fn ask(&self, provider: &Provider, question: &Question<'_>) -> Answer {
        let started = Instant::now();
        let read = match self.exchange(provider, question).await {
            Ok(reply) => match provider.kind {
                ProviderKind::Anthropic => anthropic::read(&reply),
                ProviderKind::Openai => openai::read(&reply),
            },
            Err(failure) => Read { text: Err(failure), input_tokens: 0, output_tokens: 0 },
        };
        let usage = Usage {
            input_tokens: read.input_tokens,
            output_tokens: read.output_tokens,
            cost_micros: 0,
            wall_ms: started.elapsed().as_millis() as u64,
        };
        let answer = Answer { text: read.text, usage };
        if let Some(metrics) = &self.metrics {
            count(metrics, question, &answer);
        }
        answer
    }

    /// One request, and the object that came back.
    async fn exchange(&self, provider: &Provider, question: &Question<'_>) -> Result<Value, Failure> {
        let key = key(provider)?;
        let url = endpoint(
            provider.base_url(),
            match provider.kind {
                ProviderKind::Anthropic => anthropic::PATH,
                ProviderKind::Openai => openai::PATH,
            },
        );
        let request = self.http.post(url).timeout(question.timeout);
        let request = match provider.kind {
            ProviderKind::Anthropic => anthropic::write(request, question, key.as_deref()),
            ProviderKind::Openai => openai::write(request, question, key.as_deref(), provider.base_url()),
        };
        let mut response = request.send().await.map_err(|error| lost(&error, question))?;
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| lost(&error, question))? {
            body.extend_from_slice(&chunk);
            if body.len() > MAX_REPLY {
                return Err(Failure::new(
                    FailureKind::Malformed,
                    format!("the reply is longer than {MAX_REPLY} bytes"),
                ));
            }
        }
        let failed = |body: &[u8]| {
            let mut failure = Trouble::of(status, body).failure(retry_after_ms(&headers));
            if let Some(key) = &key {
                failure.detail = failure.detail.replace(key.as_str(), "[key]");
            }
            failure
        };
        if !(200..300).contains(&status) {
            return Err(failed(&body));
        }
        let reply: Value = serde_json::from_slice(&body).map_err(|error| {
            Failure::new(FailureKind::Malformed, format!("the provider's reply is not JSON: {error}"))
        })?;
        let is_error = reply.get("error").is_some_and(|e| !e.is_null());
        if is_error { Err(failed(&body)) } else { Ok(reply) }
    }
}

/// Counts a call. A model that nobody configured cannot be called, so the labels are bounded.
fn count(metrics: &Metrics, question: &Question<'_>, answer: &Answer) {
    let (provider, model) = (question.provider, question.model);
    let result = answer.text.as_ref().map_or_else(|failure| failure.kind.as_str(), |_| "ok");
    metrics.llm_requests.with_label_values(&[provider, model, result]).inc();
    metrics.llm_seconds.with_label_values(&[provider, model]).observe(answer.usage.wall_ms as f64 / 1_000.0);
    for (direction, tokens) in [("input", answer.usage.input_tokens), ("output", answer.usage.output_tokens)] {
        metrics.llm_tokens.with_label_values(&[provider, model, direction]).inc_by(tokens);
    }
}

/// The key from the environment variable that the provider names.
fn key(provider: &Provider) -> Result<Option<String>, Failure> {
    let Some(name) = &provider.api_key_env else { return Ok(None) };
    match std::env::var(name) {
        Ok(key) if !key.trim().is_empty() => Ok(Some(key.trim().to_owned())),
        _ => Err(Failure::new(
            FailureKind::Auth,
            format!("the environment variable {name} holds no key; set it for the process that asks the model"),
        )),
    }
}

/// The address of a method. The base may or may not end with `/v1`.
fn endpoint(base: &str, path: &str) -> String {
    let base = base.trim_end_matches('/');
    format!("{}/v1/{path}", base.strip_suffix("/v1").unwrap_or(base))
}

/// The failure of a request that got no whole answer.
fn lost(error: &reqwest::Error, question: &Question<'_>) -> Failure {
    use std::error::Error as _;
    if error.is_timeout() {
        let detail = format!("no answer within {} s", question.timeout.as_secs_f64());
        return Failure::new(FailureKind::Timeout, detail);
    }
    let kind = if error.is_builder() { FailureKind::Configuration } else { FailureKind::Network };
    let mut detail = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        detail = format!("{detail}: {inner}");
        cause = inner.source();
    }
    Failure::new(kind, detail)
}

/// How long the provider asks to be left alone.
fn retry_after_ms(headers: &HeaderMap) -> Option<u64> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    if let Some(ms) = text("retry-after-ms").and_then(|t| t.trim().parse::<f64>().ok()) {
        return classify::wait_ms(ms);
    }
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    classify::retry_after(text("retry-after")?, now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_base_address_may_name_the_version() {
        for base in ["http://h", "http://h/", "http://h/v1", "http://h/v1/"] {
            assert_eq!(endpoint(base, "messages"), "http://h/v1/messages");
        }
        assert_eq!(endpoint("http://h/proxy/v1/", "x"), "http://h/proxy/v1/x");
    }
}
