//! Presets: what is known of well-known coding agents, as data, and the one reader of that data.
//!
//! Each file in `presets/` tells the command for a run without a person, how the prompt is delivered, where usage, cost
//! and the final message stand in the output, and which words and codes mean that the provider failed, not the coder.
//!
//! # Layout
//! - `output`: reads what an agent printed

mod output;

use std::collections::BTreeMap;

use refile_config::schema::PromptDelivery;
use refile_config::{Agent, Preset, Span};
use refile_core::failure::{Failure, FailureKind};
use serde::Deserialize;
use serde_json::Value;

pub use output::{Field, Told};

use crate::process::{Exit, Finished, tail};

/// Stands in a command for the arguments that name the model.
const MODEL: &str = "{model}";
/// Stands in a command for the arguments of the configuration.
const ARGS: &str = "{args}";
/// How much of an output's end is searched for the words of a failure, in characters.
const SEARCHED: usize = 4_000;

/// What is known of one agent.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Known {
    /// Its program.
    pub program: String,
    /// What installs it.
    pub install: String,
    /// The version that the data was tried with.
    pub tried: String,
    /// The whole command; `{model}` and `{args}` stand for further arguments, `{prompt_file}` for the prompt's file.
    pub command: Vec<String>,
    /// How it is given its prompt.
    pub prompt: PromptDelivery,
    /// The arguments that name the model, which `{model}` stands for.
    pub model: Vec<String>,
    /// What prints its version.
    pub version: Vec<String>,
    /// The variables of which one must hold its key; it gets those that are set.
    pub credentials: Vec<String>,
    /// Files below the home in which a login may lie in place of a key.
    #[serde(default)]
    pub login: Vec<String>,
    /// Further variables that it gets where they are set.
    #[serde(default)]
    pub env: Vec<String>,
    /// Variables that it always gets.
    #[serde(default)]
    pub set: BTreeMap<String, String>,
    /// Where things stand in its output.
    pub output: output::Output,
    /// What its words and codes mean, the first that fits.
    pub failures: Vec<Rule>,
}

/// What means a failure of a kind: any of these.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// The kind.
    pub kind: FailureKind,
    /// Exit codes.
    #[serde(default)]
    pub exit: Vec<i32>,
    /// HTTP statuses that the output tells.
    #[serde(default)]
    pub status: Vec<u16>,
    /// Words in what it says of the failure, in lower case.
    #[serde(default)]
    pub says: Vec<String>,
    /// How long it is left alone where it does not say so itself.
    #[serde(default)]
    pub wait: Option<Span>,
}

/// What is known of an agent.
pub fn known(preset: Preset) -> Result<Known, Failure> {
    let text = match preset {
        Preset::Claude => include_str!("presets/claude.toml"),
        Preset::Codex => include_str!("presets/codex.toml"),
        Preset::Gemini => include_str!("presets/gemini.toml"),
        Preset::Aider => include_str!("presets/aider.toml"),
        Preset::Opencode => include_str!("presets/opencode.toml"),
        Preset::MiniSweAgent => include_str!("presets/mini-swe-agent.toml"),
    };
    let broken = |error: toml::de::Error| format!("the preset `{}` cannot be read: {error}", preset.as_str());
    toml::from_str(text).map_err(|error| Failure::new(FailureKind::Configuration, broken(error)))
}

/// A command agent as it is to be run: its own settings go before those of its preset.
#[derive(Debug, Clone)]
pub struct Ready {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// How it is given its prompt.
    pub prompt: PromptDelivery,
    /// Names of the variables that it gets from the worker's environment; they may be keys.
    pub env: Vec<String>,
    /// Variables that it gets beside them.
    pub set: BTreeMap<String, String>,
    /// How its output is read.
    pub known: Option<Known>,
}

/// What an agent of the configuration amounts to.
pub fn ready(agent: &Agent) -> Result<Ready, Failure> {
    let known = agent.preset.map(known).transpose()?;
    let Some(known) = known else {
        let command = agent.command.iter().chain(&agent.args).cloned().collect();
        let (prompt, env) = (agent.prompt, agent.env.clone());
        return Ok(Ready { command, prompt, env, set: BTreeMap::new(), known: None });
    };
    let is_own = !agent.command.is_empty();
    let pattern = if is_own { &agent.command } else { &known.command };
    let model: Vec<String> = match &agent.model {
        Some(name) => known.model.iter().map(|argument| argument.replace(MODEL, name)).collect(),
        None => Vec::new(),
    };
    let mut command = Vec::new();
    for argument in pattern {
        match argument.as_str() {
            MODEL => command.extend(model.iter().cloned()),
            ARGS => command.extend(agent.args.iter().cloned()),
            _ => command.push(argument.clone()),
        }
    }
    if is_own && !pattern.iter().any(|argument| argument == ARGS) {
        command.extend(agent.args.iter().cloned());
    }
    let mut env = agent.env.clone();
    env.extend(known.credentials.iter().chain(&known.env).cloned());
    let prompt = if is_own { agent.prompt } else { known.prompt };
    Ok(Ready { command, prompt, env, set: known.set.clone(), known: Some(known) })
}

impl Known {
    /// Reads what a run printed.
    pub fn read(&self, done: &Finished) -> Told {
        self.output.read(&done.stdout_text(), &done.stderr_text())
    }

    /// Whether a run came to an end of its own: by its exit code and by what it says.
    pub fn ended_well(&self, done: &Finished, told: &Told) -> bool {
        let used_up = matches!(done.exit, Exit::Code(code) if self.output.used_up_exit.contains(&code));
        used_up || told.used_up || (done.exit.is_ok() && !told.failed)
    }

    /// The kind of failure that a run which did not end well amounts to, and how long to wait; nothing where no rule fits.
    pub fn classify(&self, exit: Exit, stderr: &str, stdout: &str, told: &Told) -> Option<(FailureKind, Option<u64>)> {
        // Where it says what went wrong, other words are no evidence: they may be those of a model.
        let said = match &told.error {
            Some(error) => error.clone(),
            None => format!("{}\n{}", tail(stderr, SEARCHED), tail(stdout, SEARCHED)),
        };
        let lower = said.to_lowercase();
        let fits = |rule: &&Rule| {
            matches!(exit, Exit::Code(code) if rule.exit.contains(&code))
                || told.status.is_some_and(|status| rule.status.contains(&status))
                || rule.says.iter().any(|words| lower.contains(words.as_str()))
        };
        let rule = self.failures.iter().find(fits)?;
        let asked = crate::llm::classify::wait_in_words(&said);
        Some((rule.kind, asked.or(rule.wait.map(Span::as_millis))))
    }
}
