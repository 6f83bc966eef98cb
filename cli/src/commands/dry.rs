//! Tries of agents that cost nothing: a greeting over the Agent Client Protocol, and a prompt for a model on this machine.

use std::time::{Duration, Instant};

use refile_config::{Agent, Provider};
use refile_core::failure::FailureKind;
use refile_worker::agent::acp;
use refile_worker::llm::{Client, Message, Question, key};
use serde_json::{Value, json};

use crate::context::Context;

/// How long a model may take; it may have to be loaded first.
const ANSWER: Duration = Duration::from_mins(2);

/// Why the key of a built-in agent's provider is not there, where it is not.
pub(super) fn key_missing(context: &Context, agent: &Agent) -> Option<String> {
    provider(context, agent).and_then(|provider| key(provider).err()).map(|failure| failure.detail)
}

pub(super) fn provider<'a>(context: &'a Context, agent: &Agent) -> Option<&'a Provider> {
    context.config.providers.get(agent.provider.as_ref()?)
}

/// Asks a model that is free, and tells what came of it; what went wrong is added to what is missing.
pub(super) async fn prompt(context: &Context, agent: &Agent, missing: &mut Vec<String>) -> anyhow::Result<Value> {
    let (Some(provider), Some(model)) = (provider(context, agent), &agent.model) else { return Ok(Value::Null) };
    if !is_here(provider.base_url()) {
        return Ok(json!({ "made": false, "why": "it would cost money" }));
    }
    if !missing.is_empty() {
        return Ok(json!({ "made": false, "why": "something is missing" }));
    }
    let question = Question {
        provider: agent.provider.as_deref().unwrap_or_default(),
        model,
        system: "",
        messages: &[Message::user("Reply with OK")],
        max_tokens: 16,
        timeout: ANSWER,
        schema: None,
        tools: &[],
    };
    let started = Instant::now();
    let answer = Client::new()?.ask(provider, &question).await;
    match answer.text {
        // A model that thinks first has said something, though not to its end.
        Err(failure) if !matches!(failure.kind, FailureKind::Truncated | FailureKind::Empty) => {
            missing.push(format!("the model `{model}` does not answer: {failure}"));
            Ok(json!({ "made": true, "answered": false }))
        }
        _ => Ok(json!({ "made": true, "answered": true, "ms": started.elapsed().as_millis() as u64 })),
    }
}

/// Greets an agent over the protocol. Gives its name and version, where it says them.
pub(super) async fn greeting(context: &Context, agent: &Agent, missing: &mut Vec<String>) -> Option<String> {
    let said = match tempfile::tempdir() {
        Ok(empty) => acp::greet(agent, &context.config.dir, empty.path()).await.map_err(|failure| failure.to_string()),
        Err(error) => Err(format!("no temporary folder can be made: {error}")),
    };
    said.map_err(|why| missing.push(format!("it does not speak the Agent Client Protocol: {why}"))).ok().flatten()
}

/// Whether an address is one of this machine.
fn is_here(url: &str) -> bool {
    let host = url.split_once("://").map_or(url, |(_, rest)| rest).split('/').next().unwrap_or_default();
    let host = host.rsplit('@').next().unwrap_or_default();
    let name = match host.strip_prefix('[') {
        Some(six) => six.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    name == "localhost" || name.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_this_machine_is_known() {
        for (url, is_ours) in [
            ("http://127.0.0.1:8080/v1", true),
            ("http://localhost/", true),
            ("http://[::1]:1/", true),
            ("https://api.openai.com/", false),
            ("http://127.0.0.1.example.org/", false),
            ("http://127.0.0.1@example.org/", false),
            ("http://192.168.0.1/", false),
        ] {
            assert_eq!(is_here(url), is_ours, "{url}");
        }
    }
}
