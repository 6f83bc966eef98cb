//! `refile agent`: the coders of the configuration, the presets, and whether one could be run here.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::bail;
use refile_config::schema::AgentType;
use refile_config::{Agent, Preset};
use refile_worker::agent::preset::{Known, known, ready};
use refile_worker::process::{self, Command};
use refile_worker::service::{is_there, missing as lacks};
use serde_json::{Value, json};

use super::dry;
use crate::Ended;
use crate::arguments::{AgentArguments, AgentCommand};
use crate::context::{Context, UsageError};
use crate::output::{self, BAD, BOLD, DIM, GOOD, styled, untrusted};

/// How long a program may take to say its version.
const VERSION: Duration = Duration::from_secs(30);

/// Runs the command.
pub(crate) async fn run(context: &Context, command: AgentCommand) -> anyhow::Result<Ended> {
    match command {
        AgentCommand::List => list(context),
        AgentCommand::Check(arguments) => check(context, &arguments).await,
    }
}

fn list(context: &Context) -> anyhow::Result<Ended> {
    let agents = context.config.agents.iter().map(|(name, agent)| of_agent(context, name, agent));
    let agents = agents.collect::<anyhow::Result<Vec<Value>>>()?;
    let presets = Preset::ALL.into_iter().map(|preset| of_preset(context, preset));
    let presets = presets.collect::<anyhow::Result<Vec<Value>>>()?;
    if context.json {
        output::json(&json!({ "agents": agents, "presets": presets }))?;
        return Ok(Ended::Done);
    }
    let mut table = output::table(&["agent", "type", "preset", "model", "found", "command"]);
    let cell = |row: &Value, key: &str| row[key].as_str().map_or_else(|| "-".to_owned(), untrusted);
    for row in &agents {
        let first = [cell(row, "name"), cell(row, "type"), cell(row, "preset"), cell(row, "model")];
        let words: Vec<&str> = row["command"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let runs = match row["provider"].as_str() {
            Some(provider) => format!("built in, with [providers.{provider}]"),
            None => words.join(" "),
        };
        table.add_row(first.into_iter().chain([found(row), untrusted(&runs)]));
    }
    output::print_table(&table, "no agent is configured: [agents.NAME] in refile.toml");
    let mut table = output::table(&["preset", "found", "tried with", "installed by"]);
    for row in &presets {
        table.add_row([cell(row, "name"), found(row), cell(row, "tried"), cell(row, "install")]);
    }
    output::line("");
    output::print_table(&table, "no presets");
    output::note(styled(DIM, format!("{} agent check NAME says more of one", context.command())));
    Ok(Ended::Done)
}

fn found(row: &Value) -> String {
    if row["found"] == true { styled(GOOD, "yes") } else { styled(BAD, "no") }
}

fn of_agent(context: &Context, name: &str, agent: &Agent) -> anyhow::Result<Value> {
    if agent.kind == AgentType::Llm {
        return Ok(json!({
            "name": name,
            "type": agent.kind,
            "preset": null,
            "provider": agent.provider,
            "model": agent.model,
            "command": [],
            "program": null,
            // There is nothing else to be found of it.
            "found": dry::provider(context, agent).is_some() && dry::key_missing(context, agent).is_none(),
        }));
    }
    let ready = ready(agent)?;
    let program = match &ready.known {
        Some(known) if agent.command.is_empty() => Some(&known.program),
        _ => ready.command.first(),
    };
    Ok(json!({
        "name": name,
        "type": agent.kind,
        "preset": agent.preset,
        "model": agent.model,
        "command": ready.command,
        "program": program,
        "found": program.is_some() && lacks(&context.config, &ready.command).is_none(),
    }))
}

fn of_preset(context: &Context, preset: Preset) -> anyhow::Result<Value> {
    let Known { program, install, tried, command, credentials, .. } = known(preset)?;
    Ok(json!({
        "name": preset,
        "command": command,
        "found": is_there(&context.config, &program),
        "program": program,
        "install": install,
        "tried": tried,
        "credentials": credentials,
    }))
}

/// A prompt is sent where it costs nothing: to a model on this machine. With every known agent one costs money.
async fn check(context: &Context, arguments: &AgentArguments) -> anyhow::Result<Ended> {
    let name = &arguments.name;
    let preset = Preset::ALL.into_iter().find(|preset| preset.as_str() == name);
    let agent = match (context.config.agents.get(name), preset) {
        (Some(agent), _) => agent.clone(),
        (None, Some(preset)) => preset_alone(preset)?,
        (None, None) => {
            return Err(UsageError(format!(
                "there is no [agents.{name}] and no preset `{name}`; `{} agent list` lists both",
                context.command()
            ))
            .into());
        }
    };
    let mut row = of_agent(context, name, &agent)?;
    let is_found = row["found"] == true;
    let mut missing = Vec::new();
    if agent.kind == AgentType::Llm {
        missing.extend(dry::key_missing(context, &agent));
        row["dry_prompt"] = Box::pin(dry::prompt(context, &agent, &mut missing)).await?;
    } else if !is_found {
        let command: Vec<String> = serde_json::from_value(row["command"].clone())?;
        missing.extend(lacks(&context.config, &command));
    }
    if agent.kind == AgentType::Acp && is_found {
        row["version"] = Box::pin(dry::greeting(context, &agent, &mut missing)).await.into();
    }
    if let Some(known) = agent.preset.map(known).transpose()? {
        row["dry_prompt"] = json!({ "made": false, "why": "it would cost money" });
        if is_found {
            row["version"] = version(&known).await.into();
        } else if let Some(missing) = missing.last_mut() {
            *missing = format!("{missing}; `{}` installs it", known.install);
        }
        let set: Vec<&String> = known.credentials.iter().filter(|name| std::env::var_os(name).is_some()).collect();
        let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
        let login = known.login.iter().find(|file| home.join(file).is_file());
        row["credentials"] = json!({ "set": set, "login": login, "any_of": known.credentials });
        if set.is_empty() && login.is_none() {
            missing.push(format!("none of {} is set, and there is no login", known.credentials.join(", ")));
        }
    }
    row["ready"] = missing.is_empty().into();
    row["missing"] = json!(missing);
    if context.json {
        output::json(&row)?;
    } else {
        say(&row);
    }
    if !missing.is_empty() {
        bail!("{name} cannot be run here: {}", missing.join("; "));
    }
    Ok(Ended::Done)
}

fn say(row: &Value) {
    let text = |value: &Value| untrusted(value.as_str().unwrap_or("-"));
    let of = match row["provider"].as_str() {
        Some(provider) => untrusted(&format!("{} of [providers.{provider}]", row["model"].as_str().unwrap_or("-"))),
        None => text(&row["program"]),
    };
    output::line(format!("{}  {of}", styled(BOLD, text(&row["name"]))));
    output::line(format!("found: {}", found(row)));
    if row.get("version").is_some() {
        output::line(format!("version: {}", text(&row["version"])));
    }
    if let Some(set) = row.pointer("/credentials/set").and_then(Value::as_array) {
        let login = row["credentials"]["login"].as_str().map(|file| format!("~/{file}"));
        let names = set.iter().filter_map(Value::as_str).map(str::to_owned).chain(login).collect::<Vec<_>>();
        output::line(format!("key or login: {}", if names.is_empty() { "none".to_owned() } else { names.join(", ") }));
    }
    say_prompt(&row["dry_prompt"]);
}

/// What became of the try that costs nothing.
fn say_prompt(prompt: &Value) {
    let said = match (prompt["answered"].as_bool(), prompt["why"].as_str()) {
        (Some(true), _) => format!("answered after {} ms", prompt["ms"]),
        (Some(false), _) => styled(BAD, "not answered"),
        (None, Some(why)) => format!("not made: {why}"),
        (None, None) => return,
    };
    output::line(format!("dry prompt: {said}"));
}

/// An agent that is nothing but its preset.
fn preset_alone(preset: Preset) -> anyhow::Result<Agent> {
    Ok(serde_json::from_value(json!({ "preset": preset }))?)
}

/// The first line with a digit of what a program says of its version.
async fn version(known: &Known) -> Option<String> {
    let here = std::env::current_dir().ok()?;
    let mut command = Command::new(&known.version, &here, VERSION);
    command.env.extend(known.set.iter().map(|(name, value)| (name.into(), value.into())));
    let done = process::run(&command).await.ok()?;
    let said = done.output_text();
    said.lines().find(|line| line.contains(|c: char| c.is_ascii_digit())).map(|line| line.trim().to_owned())
}
