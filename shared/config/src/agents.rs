//! What follows from the sections of agents: the bounds of the built-in one, and what an agent cannot be told.

use serde::{Deserialize, Serialize};

use crate::prices;
use crate::schema::{Agent, AgentType, Config, PromptDelivery};

/// What an agent may do in its tree: the tools of the built-in agent, and what others ask leave for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tool {
    /// Read a file.
    Read,
    /// Write a whole file.
    Write,
    /// Replace a part of a file.
    Edit,
    /// Find files by their names.
    Glob,
    /// Find lines by what is in them.
    Grep,
    /// Run a command.
    Bash,
}

impl Tool {
    /// All of them: what is allowed where nothing else is said.
    pub const ALL: [Self; 6] = [Self::Read, Self::Write, Self::Edit, Self::Glob, Self::Grep, Self::Bash];

    /// The name in the configuration and for a model.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Edit => "edit",
            Self::Glob => "glob",
            Self::Grep => "grep",
            Self::Bash => "bash",
        }
    }
}

/// What one run of the built-in agent may use up, beside its time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bounds {
    /// Answers of the model.
    pub steps: u32,
    /// Tokens of one answer.
    pub answer_tokens: u32,
    /// Tokens in and out, those from a cache included.
    pub total_tokens: u64,
    /// US dollars, where the model's price is known.
    pub cost_usd: f64,
    /// Bytes of what a tool says.
    pub output_bytes: usize,
    /// Tokens that the model can read and write at once.
    pub context_tokens: u64,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            steps: 100,
            answer_tokens: 8_000,
            total_tokens: 5_000_000,
            cost_usd: 5.0,
            output_bytes: 30_000,
            context_tokens: 120_000,
        }
    }
}

impl Agent {
    /// What a run may use up.
    pub fn bounds(&self) -> Bounds {
        let usual = Bounds::default();
        Bounds {
            steps: self.max_steps.unwrap_or(usual.steps),
            answer_tokens: self.max_tokens.unwrap_or(usual.answer_tokens),
            total_tokens: self.max_total_tokens.unwrap_or(usual.total_tokens),
            cost_usd: self.max_cost_usd.unwrap_or(usual.cost_usd),
            output_bytes: self.max_output_bytes.unwrap_or(usual.output_bytes),
            context_tokens: self.context_tokens.unwrap_or(usual.context_tokens),
        }
    }

    /// Whether it may use a tool.
    pub fn may(&self, tool: Tool) -> bool {
        self.allowed_tools.as_ref().is_none_or(|allowed| allowed.contains(&tool))
    }
}

/// Reads `model = "anthropic/claude-…"` as a model of `[providers.anthropic]` where no provider is named.
pub(crate) fn split_providers(config: &mut Config) {
    for agent in config.agents.values_mut().filter(|a| a.kind == AgentType::Llm && a.provider.is_none()) {
        let split = agent.model.as_deref().and_then(|model| model.split_once('/'));
        if let Some((provider, model)) = split.filter(|(provider, _)| config.providers.contains_key(*provider)) {
            (agent.provider, agent.model) = (Some(provider.to_owned()), Some(model.to_owned()));
        }
    }
}

/// Writes the bounds that are in force into the sections of the agents that have them, so that they can be shown.
pub(crate) fn fill(config: &mut Config) {
    for agent in config.agents.values_mut().filter(|agent| agent.kind == AgentType::Llm) {
        let provider = agent.provider.as_ref().and_then(|name| config.providers.get(name));
        let price =
            provider.zip(agent.model.as_ref()).and_then(|(p, model)| prices::price(&config.prices, p.kind, model));
        let bounds = agent.bounds();
        agent.max_steps = Some(bounds.steps);
        agent.max_tokens = Some(bounds.answer_tokens);
        agent.max_total_tokens = Some(bounds.total_tokens);
        agent.max_cost_usd = price.map(|_| bounds.cost_usd);
        agent.max_output_bytes = Some(bounds.output_bytes);
        agent.context_tokens = Some(bounds.context_tokens);
    }
}

/// Holds that what an agent is told can be done.
pub(crate) fn validate(config: &Config, name: &str, agent: &Agent) -> Result<(), String> {
    let key = format!("agents.{name}");
    if agent.kind == AgentType::Llm {
        return validate_llm(config, &key, agent);
    }
    if agent.preset.is_some() && agent.kind != AgentType::Command {
        return Err(format!("{key}.preset is for agents of type command; leave it out, or the `type`"));
    }
    if agent.command.is_empty() && agent.preset.is_none() {
        return Err(format!("{key}.command is empty; name a program, or a well-known agent as in preset = \"claude\""));
    }
    if agent.command.is_empty() && agent.prompt != PromptDelivery::default() {
        return Err(format!("{key}.prompt belongs to a command; the preset knows its own; leave it out"));
    }
    for (is_set, field) in [
        (agent.provider.is_some(), "provider"),
        (agent.instructions.is_some(), "instructions"),
        (agent.max_steps.is_some(), "max_steps"),
        (agent.max_tokens.is_some(), "max_tokens"),
        (agent.max_total_tokens.is_some(), "max_total_tokens"),
        (agent.max_cost_usd.is_some(), "max_cost_usd"),
        (agent.max_output_bytes.is_some(), "max_output_bytes"),
        (agent.context_tokens.is_some(), "context_tokens"),
    ] {
        if is_set {
            return Err(format!("{key}.{field} is for agents of type llm; set {key}.type = \"llm\" or leave it out"));
        }
    }
    match agent.kind {
        AgentType::Command if agent.allowed_tools.is_some() => {
            Err(format!("{key}.allowed_tools is for agents of type llm and acp; a command keeps its own rules"))
        }
        AgentType::Acp if agent.prompt != PromptDelivery::Stdin => {
            Err(format!("{key}.prompt is for agents of type command; the protocol delivers it; leave it out"))
        }
        _ => Ok(()),
    }
}

fn validate_llm(config: &Config, key: &str, agent: &Agent) -> Result<(), String> {
    let provider = agent.provider.as_ref().and_then(|name| config.providers.get(name));
    let Some(model) = &agent.model else { return Err(format!("{key} needs a `model`")) };
    let Some(provider) = provider else {
        let named = agent.provider.as_deref().unwrap_or("NAME");
        return Err(format!("{key} needs a `provider` that exists: write a section [providers.{named}]"));
    };
    if !agent.command.is_empty()
        || !agent.args.is_empty()
        || agent.preset.is_some()
        || agent.prompt != PromptDelivery::Stdin
    {
        return Err(format!(
            "{key}: `command`, `args`, `preset` and `prompt` are for agents of type command; leave them out"
        ));
    }
    let bounds = agent.bounds();
    if bounds.steps == 0 || bounds.answer_tokens == 0 || bounds.total_tokens == 0 {
        return Err(format!("{key}: `max_steps`, `max_tokens` and `max_total_tokens` must be at least 1"));
    }
    if bounds.output_bytes < 1_000 {
        return Err(format!("{key}.max_output_bytes must be at least 1000: below it a tool says nothing of use"));
    }
    // Room for what it is told to do and for a few steps.
    let least = 8_000 + 2 * u64::from(bounds.answer_tokens);
    if bounds.context_tokens < least {
        return Err(format!("{key}.context_tokens must be at least {least}: 8000 and twice its `max_tokens`"));
    }
    if !bounds.cost_usd.is_finite() || bounds.cost_usd <= 0.0 {
        return Err(format!("{key}.max_cost_usd must be more than 0"));
    }
    if agent.max_cost_usd.is_some() && prices::price(&config.prices, provider.kind, model).is_none() {
        return Err(format!(
            "{key}.max_cost_usd cannot be held: nobody knows the price of `{model}`; write a section [prices.\"{model}\"]"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::tests::{check_error, load_text};

    const PROVIDER: &str = "[providers.p]\nkind = \"openai\"\n";

    fn llm(more: &str) -> String {
        format!("{PROVIDER}[agents.a]\ntype = \"llm\"\nprovider = \"p\"\nmodel = \"gpt-4.1\"\n{more}\n")
    }

    #[test]
    fn an_agent_of_each_type_is_read() {
        let text = llm("allowed_tools = [\"read\", \"grep\"]\nmax_steps = 7")
            + "[agents.b]\ntype = \"acp\"\ncommand = [\"x\"]\nallowed_tools = [\"bash\"]\n[agents.c]\ncommand = [\"x\"]\n";
        let (config, _) = load_text(&text, &[], &[]).unwrap();
        let [a, b, c] = ["a", "b", "c"].map(|name| &config.agents[name]);
        assert_eq!([a.kind, b.kind, c.kind], [AgentType::Llm, AgentType::Acp, AgentType::Command]);
        assert_eq!(Tool::ALL.map(|tool| a.may(tool)), [true, false, false, false, true, false]);
        assert!(b.may(Tool::Bash) && !b.may(Tool::Write) && Tool::ALL.iter().all(|tool| c.may(*tool)));
        assert_eq!(a.bounds(), Bounds { steps: 7, ..Bounds::default() });
        let (config, sources) = load_text(&llm("max_steps = 7"), &[], &[]).unwrap();
        let shown = crate::show::lines(&config, &sources);
        let line = |key: &str| {
            shown.iter().find(|l| l.key == format!("agents.a.{key}")).map(|l| (l.value.to_string(), l.source.clone()))
        };
        assert_eq!(line("max_cost_usd").unwrap(), ("5.0".to_owned(), crate::show::Source::Default));
        assert!(matches!(line("max_steps").unwrap().1, crate::show::Source::File(_)));
        let own = llm("").replace("gpt-4.1", "own");
        assert_eq!(load_text(&own, &[], &[]).unwrap().0.agents["a"].max_cost_usd, None, "nobody knows what it costs");
        let split = llm("").replace("provider = \"p\"\n", "").replace("gpt-4.1", "p/gpt-4.1");
        let (config, _) = load_text(&split, &[], &[]).unwrap();
        assert_eq!(
            (config.agents["a"].provider.as_deref(), config.agents["a"].model.as_deref()),
            (Some("p"), Some("gpt-4.1"))
        );
    }

    #[test]
    fn what_an_agent_cannot_be_told_is_refused() {
        for (text, says) in [
            (llm("allowed_tools = [\"read\", \"bsh\"]"), vec!["bsh", "did you mean `bash`?"]),
            (llm("").replace("model = \"gpt-4.1\"\n", ""), vec!["agents.a needs a `model`"]),
            (llm("").replace("provider = \"p\"\n", ""), vec!["agents.a needs a `provider`", "[providers.NAME]"]),
            (llm("").replace("provider = \"p\"", "provider = \"q\""), vec!["[providers.q]"]),
            (llm("command = [\"x\"]"), vec!["agents.a", "type command"]),
            (llm("max_steps = 0"), vec!["agents.a", "max_steps", "at least 1"]),
            (llm("max_output_bytes = 10"), vec!["agents.a.max_output_bytes"]),
            (llm("context_tokens = 20000"), vec!["agents.a.context_tokens must be at least 24000"]),
            (llm("max_cost_usd = 0.0"), vec!["agents.a.max_cost_usd"]),
            (llm("max_cost_usd = 1.0").replace("gpt-4.1", "own"), vec!["price of `own`", "[prices.\"own\"]"]),
            ("[agents.a]\ntype = \"acp\"\n".to_owned(), vec!["agents.a.command is empty"]),
            ("[agents.a]\ntype = \"lm\"\n".to_owned(), vec!["unknown variant `lm`", "did you mean `llm`?"]),
            ("[agents.a]\ncommand = [\"x\"]\nmax_steps = 3\n".to_owned(), vec!["agents.a.max_steps", "type llm"]),
            ("[agents.a]\ncommand = [\"x\"]\nallowed_tools = []\n".to_owned(), vec!["agents.a.allowed_tools"]),
            ("[agents.a]\ntype = \"acp\"\ncommand = [\"x\"]\nprompt = \"file\"\n".to_owned(), vec!["agents.a.prompt"]),
        ] {
            check_error(&text, &says);
        }
    }
}
