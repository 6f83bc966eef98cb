//! `refile provider`: which providers of models the fleet leaves alone, and since when it may call them again.

use refile_config::schema::AgentType;
use refile_config::{Config, nearest};
use refile_core::{Timestamp, counted};
use refile_store::{Pause, PauseTarget, Paused, ProviderPart, Store};
use serde_json::{Value, json};

use crate::Ended;
use crate::arguments::{PauseArguments, ProviderArguments, ProviderCommand};
use crate::context::{Context, UsageError, user};
use crate::output::{self, BAD, GOOD, WAITS, styled, untrusted};

/// Runs the command.
pub(crate) async fn run(context: &Context, command: ProviderCommand) -> anyhow::Result<Ended> {
    match command {
        ProviderCommand::List => list(context).await,
        ProviderCommand::Pause(arguments) => pause(context, &arguments).await,
        ProviderCommand::Resume(arguments) => resume(context, &arguments).await,
    }
}

/// The pauses of providers, those included that the configuration does not know any more.
async fn pauses(store: &dyn Store) -> anyhow::Result<Vec<(ProviderPart, Paused)>> {
    let of_provider = |paused: Paused| match paused.target.clone() {
        PauseTarget::Provider(part) => Some((part, paused)),
        PauseTarget::Queue(_) => None,
    };
    Ok(store.pauses().await?.into_iter().filter_map(of_provider).collect())
}

async fn list(context: &Context) -> anyhow::Result<Ended> {
    let pauses = pauses(context.existing_store().await?.as_ref()).await?;
    let mut names: Vec<String> = context.config.providers.keys().cloned().chain(programs(&context.config)).collect();
    names.extend(pauses.iter().map(|(part, _)| part.provider.clone()));
    let mut seen = std::collections::HashSet::new();
    names.retain(|name| seen.insert(name.clone()));
    let rows: Vec<Value> = names.iter().map(|name| row(&context.config, name, &pauses)).collect();
    if context.json {
        output::json(&rows)?;
        return Ok(Ended::Done);
    }
    let mut table = output::table(&["provider", "kind", "models", "state", "until", "why"]);
    for row in &rows {
        let text = |key: &str| untrusted(row[key].as_str().unwrap_or_default());
        let models: Vec<&str> = row["models"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let first = [text("name"), text("kind"), models.join(" ")];
        let of_row = row["pauses"].as_array().map(Vec::as_slice).unwrap_or_default();
        if of_row.is_empty() {
            table.add_row(first.clone().into_iter().chain([styled(GOOD, "open"), String::new(), String::new()]));
        }
        for pause in of_row {
            let text = |key: &str| untrusted(pause[key].as_str().unwrap_or_default());
            let what = pause["model"].as_str().map_or_else(String::new, |model| format!(" {}", untrusted(model)));
            let state = match pause["state"].as_str() {
                Some("paused") => styled(BAD, format!("paused{what}")),
                _ => styled(WAITS, format!("probing{what}")),
            };
            let until = pause["until"].as_u64().map_or_else(|| "resumed".to_owned(), |at| output::time(Timestamp(at)));
            table.add_row(first.clone().into_iter().chain([state, until, text("reason")]));
        }
    }
    output::print_table(&table, "no provider is configured: [providers.NAME] in refile.toml");
    Ok(Ended::Done)
}

/// The models of a provider that reviewers and agents may ask, by name.
fn models<'c>(config: &'c Config, provider: &str) -> Vec<&'c str> {
    let reviewers = config.reviewers.values().filter(|r| r.provider.as_deref() == Some(provider));
    let agents = config.agents.values().filter(|a| a.provider.as_deref() == Some(provider));
    let asked = reviewers.flat_map(|r| r.model.iter().chain(&r.fallback_model));
    let mut models: Vec<&str> = asked.chain(agents.filter_map(|a| a.model.as_ref())).map(String::as_str).collect();
    models.sort_unstable();
    models.dedup();
    models
}

/// Agents that call models by themselves, as pauses name them.
fn programs(config: &Config) -> impl Iterator<Item = String> {
    config.agents.iter().filter(|(_, a)| a.kind != AgentType::Llm).map(|(name, _)| format!("agent:{name}"))
}

/// A provider with what is paused of it.
fn row(config: &Config, name: &str, pauses: &[(ProviderPart, Paused)]) -> Value {
    let models = models(config, name);
    let kind = match config.providers.get(name) {
        Some(provider) => json!(provider.kind),
        None => json!(programs(config).any(|program| program == name).then_some("agent")),
    };
    let pauses = pauses.iter().filter(|(part, _)| part.provider == name).map(|(part, paused)| {
        json!({
            "model": part.model,
            "key": part.key,
            "state": if paused.holds { "paused" } else { "probing" },
            "until": paused.pause.until,
            "tries": paused.pause.tries,
            "reason": paused.pause.reason,
        })
    });
    json!({
        "name": name,
        "kind": kind,
        "models": models,
        "pauses": pauses.collect::<Vec<_>>(),
    })
}

/// Holds that the fleet knows the provider, and the model where one is named.
fn require_known(config: &Config, ProviderArguments { name, model }: &ProviderArguments) -> anyhow::Result<()> {
    let unknown = |what: String, given: &str, known: Vec<&str>| {
        let hint = match nearest(given, known.iter().copied()) {
            Some(near) => format!("did you mean `{near}`?"),
            None if known.is_empty() => "there is none".to_owned(),
            None => format!("there is: {}", known.join(", ")),
        };
        Err(UsageError(format!("{what}; {hint}")).into())
    };
    let all: Vec<String> = config.providers.keys().cloned().chain(programs(config)).collect();
    if !all.contains(name) {
        let known = all.iter().map(String::as_str).collect();
        return unknown(format!("there is no provider `{name}` in the configuration"), name, known);
    }
    let known = models(config, name);
    match model {
        Some(model) if !known.contains(&model.as_str()) => {
            unknown(format!("nobody asks the provider `{name}` for a model `{model}`"), model, known)
        }
        _ => Ok(()),
    }
}

async fn pause(context: &Context, arguments: &PauseArguments) -> anyhow::Result<Ended> {
    require_known(&context.config, &arguments.provider)?;
    let ProviderArguments { name, model } = &arguments.provider;
    let target = PauseTarget::Provider(ProviderPart { provider: name.clone(), model: model.clone(), key: None });
    let store = context.existing_store().await?;
    let now = store.now().await?.0;
    let until = arguments.for_.map(|span| Timestamp(now.saturating_add(span.as_millis())));
    let reason = match &arguments.reason {
        Some(words) => format!("{}: {words}", user()),
        None => user(),
    };
    store.set_pause(&target, Some(&Pause { until, reason, tries: 0 })).await?;
    let said = until.map_or_else(|| "until it is resumed".to_owned(), |at| format!("until {}", output::time(at)));
    say(context, name, "paused", &format!("{name} is paused {said}; jobs that need it stay in their queue"))
}

async fn resume(context: &Context, arguments: &ProviderArguments) -> anyhow::Result<Ended> {
    let store = context.existing_store().await?;
    let mut ended = 0;
    for (part, paused) in pauses(store.as_ref()).await? {
        if part.provider == arguments.name && (arguments.model.is_none() || part.model == arguments.model) {
            store.set_pause(&paused.target, None).await?;
            ended += 1;
        }
    }
    if ended == 0 {
        require_known(&context.config, arguments)?;
    }
    let name = &arguments.name;
    say(context, name, "open", &format!("{name} may be called again ({} ended)", counted(ended, "pause")))
}

fn say(context: &Context, name: &str, state: &str, words: &str) -> anyhow::Result<Ended> {
    if context.json {
        output::json(&json!({ "name": name, "state": state }))?;
    } else {
        output::line(words);
    }
    Ok(Ended::Done)
}
