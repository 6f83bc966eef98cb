//! A small client for models: one question, one answer, and every failure by its kind.
//!
//! # Layout
//! - [`classify`]: one table from what a provider says to the kind of failure
//! - [`tools`]: what a model may have done for it
//! - `wire`: the wire formats, one file each
//!
//! A TLS provider must be installed before a [`Client`] is made; binaries do that first thing in `main`.

pub mod classify;
pub mod tools;
mod wire;

use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use async_trait::async_trait;
use refile_config::{Price, Prices, Provider, prices};
use refile_core::failure::{Failure, FailureKind, Scope};
use refile_core::task;
use refile_store::Pass;
use refile_telemetry::Metrics;
use serde_json::Value;

use classify::{Trouble, error_in, used_up};
pub use tools::{Tool, ToolCall, ToolResult};
use wire::Read;

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
    /// Of the model: the tools that it wants to have used.
    pub calls: Vec<ToolCall>,
    /// Of us: what came of the calls in the message before.
    pub results: Vec<ToolResult>,
    /// Of the model: what its provider wants back as it wrote it, in place of text and calls.
    pub raw: Option<Value>,
}

/// A question to a model.
#[derive(Debug, Clone, Copy)]
pub struct Question<'a> {
    /// The provider's name, for the records and the metrics.
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
    /// What the answer must look like: a JSON schema, for providers that can hold a model to one.
    pub schema: Option<&'a Value>,
    /// What it may ask to be done.
    pub tools: &'a [Tool],
}

/// What came of a question.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// The whole text, or why there is none. A reply that was cut off is a failure.
    pub text: Result<String, Failure>,
    /// The tools that the model wants to have used; none where the text is a failure.
    pub calls: Vec<ToolCall>,
    /// What must go back as the provider wrote it.
    pub raw: Option<Value>,
    /// What is kept of the call, also where it failed; nothing where none was made.
    pub call: Option<task::Call>,
}

/// A call to a model, as whoever lets it through sees it.
#[derive(Debug, Clone, Copy)]
pub struct Call<'a> {
    /// The provider's name.
    pub provider: &'a str,
    /// The model.
    pub model: &'a str,
    /// About how many tokens it takes: a quarter of its bytes, and the longest answer.
    pub tokens: u64,
    /// How long it may take.
    pub timeout: Duration,
}

impl<'a> Call<'a> {
    /// The run of a program that calls models by itself, whatever they are.
    fn of_program(name: &'a str) -> Self {
        // A run may take hours, and that the program is not turned away shows early.
        Self { provider: name, model: "", tokens: 0, timeout: Duration::from_mins(1) }
    }
}

/// What came of a call that was let through.
#[derive(Debug, Clone, Copy)]
pub struct Left<'a> {
    /// Why there is no answer, where there is none.
    pub failure: Option<&'a Failure>,
    /// For how long the provider says that nothing is left of a limit, where it says so beside its answer.
    pub used_up: Option<Duration>,
}

/// Lets calls through, for the whole fleet.
#[async_trait]
pub trait Turnstile: Debug + Send + Sync {
    /// Waits until the call may be made; a failure where that would take more than half of its time. Gives no pass where
    /// nobody knows.
    async fn enter(&self, call: &Call<'_>) -> Result<Option<Pass>, Failure>;
    /// Is told what came of a call that was let through.
    async fn left(&self, call: &Call<'_>, pass: Option<Pass>, left: Left<'_>);
}

/// The client. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Client {
    http: reqwest::Client,
    metrics: Option<Metrics>,
    prices: Arc<Prices>,
    turnstile: Option<Arc<dyn Turnstile>>,
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
            .map(|http| Self { http, metrics: None, prices: Arc::default(), turnstile: None })
            .map_err(|error| Failure::new(FailureKind::Configuration, format!("no HTTP client can be made: {error}")))
    }

    /// The same client, which counts its calls.
    #[must_use]
    pub fn with_metrics(self, metrics: &Metrics) -> Self {
        Self { metrics: Some(metrics.clone()), ..self }
    }

    /// The same client, which knows prices beside the built-in ones.
    #[must_use]
    pub fn with_prices(self, prices: &Prices) -> Self {
        Self { prices: Arc::new(prices.clone()), ..self }
    }

    /// The same client, whose calls are let through one by one.
    #[must_use]
    pub fn behind(self, turnstile: Arc<dyn Turnstile>) -> Self {
        Self { turnstile: Some(turnstile), ..self }
    }

    /// What a model costs that a program calls by itself; nothing where nobody knows.
    pub(crate) fn list_price(&self, model: &str) -> Option<Price> {
        prices::list_price(&self.prices, model)
    }

    /// Asks a model, where it may be asked.
    pub async fn ask(&self, provider: &Provider, question: &Question<'_>) -> Answer {
        let Some(turnstile) = &self.turnstile else { return self.call(provider, question).await.0 };
        let bytes = question.system.len() + question.messages.iter().map(Message::bytes).sum::<usize>();
        let tokens = bytes as u64 / 4 + u64::from(question.max_tokens);
        let call = Call { provider: question.provider, model: question.model, tokens, timeout: question.timeout };
        let started = Instant::now();
        let pass = match turnstile.enter(&call).await {
            Ok(pass) => pass,
            Err(failure) => return Answer { text: Err(failure), calls: Vec::new(), raw: None, call: None },
        };
        let timeout = question.timeout.saturating_sub(started.elapsed());
        let (answer, used_up) = self.call(provider, &Question { timeout, ..*question }).await;
        turnstile.left(&call, pass, Left { failure: answer.text.as_ref().err(), used_up }).await;
        answer
    }

    /// Runs a program that calls models by itself, where it may; gives why not where it may not. `failure` tells why a run
    /// failed.
    pub(crate) async fn run_program<T>(
        &self,
        name: &str,
        run: impl Future<Output = T>,
        failure: impl Fn(&T) -> Option<&Failure>,
    ) -> Result<T, Failure> {
        let Some(turnstile) = &self.turnstile else { return Ok(run.await) };
        let call = Call::of_program(name);
        let pass = turnstile.enter(&call).await?;
        let ended = run.await;
        turnstile.left(&call, pass, Left { failure: failure(&ended), used_up: None }).await;
        Ok(ended)
    }

    /// Asks, and tells for how long the provider says that nothing is left of a limit.
    async fn call(&self, provider: &Provider, question: &Question<'_>) -> (Answer, Option<Duration>) {
        let started = Instant::now();
        let key = key(provider);
        let read = match &key {
            Ok(key) => self.exchange(provider, question, key.as_deref()).await,
            Err(missing) => Err(missing.clone()),
        };
        let (mut read, used_up) = read.unwrap_or_else(|failure| (Read::failed(failure), None));
        if let Ok(Some(key)) = &key {
            // Once more: what stood in several parts of the reply is one text now.
            match &mut read.text {
                Ok(text) => *text = without_key(text, key),
                Err(failure) => failure.detail = without_key(&failure.detail, key),
            }
        }
        let price = prices::price(&self.prices, provider.kind, question.model);
        let Read { text, calls, raw, input_tokens, cached_input_tokens, output_tokens } = read;
        let call = task::Call {
            provider: question.provider.to_owned(),
            model: question.model.to_owned(),
            failure: text.as_ref().err().map(|failure| failure.kind),
            input_tokens,
            cached_input_tokens,
            output_tokens,
            cost_micros: price.map(|price| price.cost_micros(input_tokens, cached_input_tokens, output_tokens)),
            latency_ms: started.elapsed().as_millis() as u64,
        };
        if let Some(metrics) = &self.metrics {
            count(metrics, &call);
        }
        let calls = if text.is_ok() { calls } else { Vec::new() };
        (Answer { text, calls, raw, call: Some(call) }, used_up)
    }

    /// One request, what came back, and for how long nothing is left of a limit.
    async fn exchange(
        &self,
        provider: &Provider,
        question: &Question<'_>,
        key: Option<&str>,
    ) -> Result<(Read, Option<Duration>), Failure> {
        let schema = question.schema.filter(|_| provider.structured());
        let request = wire::request(&self.http, provider, &Question { schema, ..*question }, key);
        let lost = |error: reqwest::Error| lost(&error, question, key);
        let mut response = request.timeout(question.timeout).send().await.map_err(lost)?;
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(lost)? {
            body.extend_from_slice(&chunk);
            if body.len() > MAX_REPLY {
                let detail = format!("the reply is longer than {MAX_REPLY} bytes");
                return Err(Failure::new(FailureKind::Malformed, detail));
            }
        }
        // Before anything is cut: half a key at the border would be no match any more.
        let body = match key {
            Some(key) => body_without_key(&body, key),
            None => body,
        };
        let texts = || headers.iter().filter_map(|(name, value)| Some((name.as_str(), value.to_str().ok()?)));
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let failed = || {
            let failure = Trouble::of(status, texts(), &body).failure(now);
            if failure.kind == FailureKind::Auth { with_place(failure, provider, question.provider) } else { failure }
        };
        if !(200..300).contains(&status) {
            return Err(failed());
        }
        let reply: Value = serde_json::from_slice(&body).map_err(|error| {
            Failure::new(FailureKind::Malformed, format!("the provider's reply is not JSON: {error}"))
        })?;
        let read = wire::read(provider.kind, &reply);
        // What was used up before the error is paid for.
        let read = if error_in(&reply).is_some() { Read { text: Err(failed()), ..read } } else { read };
        Ok((read, used_up(texts(), now)))
    }
}

/// Counts a call. A model that nobody configured cannot be called, so the labels are bounded.
fn count(metrics: &Metrics, call: &task::Call) {
    let (provider, model) = (call.provider.as_str(), call.model.as_str());
    let result = call.failure.map_or("ok", FailureKind::as_str);
    metrics.llm_requests.with_label_values(&[provider, model, result]).inc();
    metrics.llm_seconds.with_label_values(&[provider, model]).observe(call.latency_ms as f64 / 1_000.0);
    for (direction, tokens) in [("input", call.input_tokens), ("output", call.output_tokens)] {
        metrics.llm_tokens.with_label_values(&[provider, model, direction]).inc_by(tokens);
    }
    // A series that stays at 0 would say that a model is free whose price nobody knows.
    if let Some(cost) = call.cost_micros {
        metrics.llm_cost.with_label_values(&[provider, model]).inc_by(cost as f64 / 1e6);
    }
}

/// The key from the environment variable that the provider names.
pub fn key(provider: &Provider) -> Result<Option<String>, Failure> {
    let Some(name) = &provider.api_key_env else { return Ok(None) };
    match std::env::var(name) {
        Ok(key) if !key.trim().is_empty() => Ok(Some(key.trim().to_owned())),
        _ => {
            let detail =
                format!("the environment variable {name} holds no key; set it for the process that asks the model");
            Err(Failure { scope: Scope::Key, ..Failure::new(FailureKind::Auth, detail) })
        }
    }
}

/// A key that was turned down, with where it comes from and what to do. The provider's words come last: they may be cut.
fn with_place(mut failure: Failure, provider: &Provider, name: &str) -> Failure {
    let why = match (&provider.api_key_env, failure.scope) {
        (None, _) => format!(
            "the provider `{name}` wants a key, and [providers.{name}] names no variable that holds one; set its api_key_env"
        ),
        (Some(variable), Scope::Call) => format!(
            "the provider `{name}` forbids this call with the key in {variable}; see what that key may do, and what lies \
             between here and there"
        ),
        (Some(variable), _) => format!(
            "the provider `{name}` turns down the key in the environment variable {variable}; put one that works into it, and \
             start this process again"
        ),
    };
    failure.detail = Failure::new(failure.kind, format!("{why}\n  it said: {}", failure.detail)).detail;
    failure
}

/// The failure of a request that got no whole answer.
fn lost(error: &reqwest::Error, question: &Question<'_>, key: Option<&str>) -> Failure {
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
    Failure::new(kind, key.map_or_else(|| detail.clone(), |key| without_key(&detail, key)))
}

/// A text without the key. Shorter ones are words, such as the `none` that a local server takes for a key.
fn without_key(text: &str, key: &str) -> String {
    const SHORTEST: usize = 6;
    if key.len() < SHORTEST { text.to_owned() } else { text.replace(key, "[key]") }
}

/// A reply without the key, however JSON writes it.
fn body_without_key(body: &[u8], key: &str) -> Vec<u8> {
    fn clean(value: &mut Value, key: &str) {
        match value {
            Value::String(text) => *text = without_key(text, key),
            Value::Array(items) => items.iter_mut().for_each(|item| clean(item, key)),
            Value::Object(fields) => fields.values_mut().for_each(|field| clean(field, key)),
            _ => {}
        }
    }
    match serde_json::from_slice::<Value>(body) {
        Ok(mut reply) => {
            clean(&mut reply, key);
            reply.to_string().into_bytes()
        }
        Err(_) => without_key(&String::from_utf8_lossy(body), key).into_bytes(),
    }
}
