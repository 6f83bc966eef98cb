//! What models cost: `[prices]` of the configuration, and built-in prices of well-known models.
//!
//! # Where the built-in prices come from
//! List prices for standard calls, looked up on 2026-11-22 in copies of the providers' pages and checked against a second
//! table each:
//! - Anthropic: <https://platform.claude.com/docs/en/about-claude/pricing>
//! - `OpenAI`: <https://developers.openai.com/api/docs/pricing>
//! - Google: <https://ai.google.dev/gemini-api/docs/pricing>
//! - the second table of the newer models: <https://github.com/github/docs/blob/main/data/tables/copilot/models-and-pricing.yml>
//!
//! Prices for very long prompts (from 200,000 tokens on), for writing to a cache and for batches are not among them:
//! reviewers do none of that with the default `max_input_bytes`.

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};

use crate::schema::{Agent, AgentType, Config, ProviderKind, ReviewerType};

/// What a model costs, in US dollars per million tokens.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Price {
    /// Tokens that it reads.
    pub input: f64,
    /// Tokens that it writes.
    pub output: f64,
    /// Tokens that it reads and the provider still knows; as others where it is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached_input: Option<f64>,
}

impl Price {
    /// What a call costs in millionths of a US dollar. `cached` of the `input` tokens came out of a cache.
    pub fn cost_micros(&self, input: u64, cached: u64, output: u64) -> u64 {
        let cached = cached.min(input);
        // Dollars per million tokens are millionths of a dollar per token.
        let cost = (input - cached) as f64 * self.input
            + cached as f64 * self.cached_input.unwrap_or(self.input)
            + output as f64 * self.output;
        cost.round() as u64
    }
}

/// The prices by the models' names as the configuration gives them.
pub type Prices = IndexMap<String, Price>;

/// Holds that prices make sense.
pub(crate) fn check(prices: &Prices) -> Result<(), String> {
    let is_bad = |price: &&Price| {
        let all = [Some(price.input), Some(price.output), price.cached_input];
        all.into_iter().flatten().any(|usd| !usd.is_finite() || usd < 0.0)
    };
    match prices.iter().find(|(_, price)| is_bad(price)) {
        Some((model, _)) => Err(format!("prices.\"{model}\": a price must be 0 or more US dollars per million tokens")),
        None => Ok(()),
    }
}

/// Says of whom a budget of money knows nothing, where no other budget stands in for it.
pub(crate) fn unheld_budget(config: &Config) -> Vec<String> {
    let budget = &config.policy.budget;
    if budget.cost_usd.is_none() {
        return Vec::new();
    }
    let mut unknown: Vec<(String, Unknown)> = Vec::new();
    for name in config.policy().ladder {
        let who = format!("agents.{name}");
        let why = config.agents.get(&name).and_then(|agent| unknown_cost(config, agent));
        unknown.extend(why.map(|why| (who.clone(), why)).filter(|_| unknown.iter().all(|(other, _)| *other != who)));
    }
    for (name, reviewer) in &config.reviewers {
        let why = match reviewer.kind {
            ReviewerType::Llm => unknown_price(config, reviewer.provider.as_deref(), reviewer.model.as_deref()),
            ReviewerType::Command => Some(Unknown::Everything("a command reviewer tells its verdict alone")),
            ReviewerType::Panel | ReviewerType::Human => None,
        };
        unknown.extend(why.map(|why| (format!("reviewers.{name}"), why)));
    }
    let is_held = |why: &Unknown| match why {
        Unknown::Everything(_) => budget.wall.is_some(),
        // A run that a limit ends may tell no tokens.
        Unknown::Price(_) | Unknown::Model(_) => budget.tokens.is_some() && budget.wall.is_some(),
    };
    let line = |(who, why): (String, Unknown)| match why {
        Unknown::Price(model) => format!(
            "policy.budget.cost_usd does not count what {who} costs: nobody knows the price of `{model}`; write a section \
             [prices.\"{model}\"], or set policy.budget.tokens and policy.budget.wall"
        ),
        Unknown::Model(what) => format!(
            "policy.budget.cost_usd does not count what {who} costs: {what}; name its `model`, with its price in [prices] \
             where it is not a well-known one, or set policy.budget.tokens and policy.budget.wall"
        ),
        Unknown::Everything(what) => {
            format!("policy.budget.cost_usd does not count what {who} costs: {what}; set policy.budget.wall")
        }
    };
    unknown.into_iter().filter(|(_, why)| !is_held(why)).map(line).collect()
}

/// Why nobody knows what an agent or a reviewer costs.
enum Unknown {
    /// Its model has no price.
    Price(String),
    /// It tells its tokens alone, and nobody its model; the words say what it is.
    Model(String),
    /// It need not tell anything; the words say why.
    Everything(&'static str),
}

fn unknown_cost(config: &Config, agent: &Agent) -> Option<Unknown> {
    let says = match (agent.kind, agent.preset) {
        (AgentType::Llm, _) => return unknown_price(config, agent.provider.as_deref(), agent.model.as_deref()),
        (AgentType::Command, None) => {
            let why = "nothing is read out of what a command prints that is no `preset`";
            return Some(Unknown::Everything(why));
        }
        // Neither cost nor tokens: a price of its model helps only where it tells the latter.
        (AgentType::Acp, _) => {
            return Some(Unknown::Everything("an agent over the protocol need not tell it, nor its tokens"));
        }
        (AgentType::Command, Some(preset)) if preset.prints_cost() => return None,
        (AgentType::Command, Some(preset)) => format!("`{}` prints tokens and no cost", preset.as_str()),
    };
    match &agent.model {
        None => Some(Unknown::Model(says)),
        Some(model) if list_price(&config.prices, model).is_none() => Some(Unknown::Price(model.clone())),
        Some(_) => None,
    }
}

fn unknown_price(config: &Config, provider: Option<&str>, model: Option<&str>) -> Option<Unknown> {
    let (provider, model) = config.providers.get(provider?).zip(model)?;
    price(&config.prices, provider.kind, model).is_none().then(|| Unknown::Price(model.to_owned()))
}

/// What a model of a provider costs; nothing where nobody knows. The configuration's word goes first, under the very name
/// that the provider is asked for.
pub fn price(configured: &Prices, kind: ProviderKind, model: &str) -> Option<Price> {
    match kind {
        // What runs on one's own machine has no list price, whatever its name.
        ProviderKind::Ollama => configured.get(model).copied(),
        _ => list_price(configured, model),
    }
}

/// What a model costs, whoever calls it where; nothing where nobody knows.
pub fn list_price(configured: &Prices, model: &str) -> Option<Price> {
    configured.get(model).copied().or_else(|| built_in(model))
}

/// The built-in price of a model, by its provider's name for it, with or without a path before it and a date behind it.
fn built_in(model: &str) -> Option<Price> {
    let own = model.rsplit('/').next().unwrap_or_default().to_lowercase().replace('.', "-");
    let find = |name: &str| BUILT_IN.iter().find(|row| row.0 == name);
    let (_, input, cached, output) = find(&own).or_else(|| find(without_date(&own)))?;
    Some(Price { input: *input, output: *output, cached_input: Some(*cached) })
}

/// `claude-haiku-4-5-20251001` and `gpt-4.1-2025-04-14` without what says of which day they are.
fn without_date(name: &str) -> &str {
    let name = name.strip_suffix("-latest").or_else(|| name.strip_suffix("-preview")).unwrap_or(name);
    let is_date = |text: &str| {
        let digits = text.chars().filter(char::is_ascii_digit).count();
        digits == 8 && text.starts_with("20") && text.chars().all(|c| c.is_ascii_digit() || c == '-')
    };
    let end = name.match_indices(['-', '@']).map(|(at, _)| at).find(|at| is_date(&name[at + 1..]));
    end.map_or(name, |at| &name[..at])
}

/// Model (dots as dashes), input, cached input, output.
const BUILT_IN: &[(&str, f64, f64, f64)] = &[
    ("claude-fable-5", 10.0, 1.0, 50.0),
    ("claude-opus-5", 5.0, 0.5, 25.0),
    ("claude-opus-4-8", 5.0, 0.5, 25.0),
    ("claude-opus-4-7", 5.0, 0.5, 25.0),
    ("claude-opus-4-6", 5.0, 0.5, 25.0),
    ("claude-opus-4-5", 5.0, 0.5, 25.0),
    ("claude-opus-4-1", 15.0, 1.5, 75.0),
    ("claude-opus-4", 15.0, 1.5, 75.0),
    ("claude-sonnet-5", 2.0, 0.2, 10.0),
    ("claude-sonnet-4-6", 3.0, 0.3, 15.0),
    ("claude-sonnet-4-5", 3.0, 0.3, 15.0),
    ("claude-sonnet-4", 3.0, 0.3, 15.0),
    ("claude-haiku-4-5", 1.0, 0.1, 5.0),
    ("claude-3-5-haiku", 0.8, 0.08, 4.0),
    ("gpt-5-5", 5.0, 0.5, 30.0),
    ("gpt-5-4", 2.5, 0.25, 15.0),
    ("gpt-5-4-mini", 0.75, 0.075, 4.5),
    ("gpt-5-4-nano", 0.2, 0.02, 1.25),
    ("gpt-5-3-codex", 1.75, 0.175, 14.0),
    ("gpt-5-2", 1.75, 0.175, 14.0),
    ("gpt-5-1", 1.25, 0.125, 10.0),
    ("gpt-5", 1.25, 0.125, 10.0),
    ("gpt-5-mini", 0.25, 0.025, 2.0),
    ("gpt-5-nano", 0.05, 0.005, 0.4),
    ("gpt-4-1", 2.0, 0.5, 8.0),
    ("gpt-4-1-mini", 0.4, 0.1, 1.6),
    ("gpt-4-1-nano", 0.1, 0.025, 0.4),
    ("gpt-4o", 2.5, 1.25, 10.0),
    ("gpt-4o-mini", 0.15, 0.075, 0.6),
    ("o3", 2.0, 0.5, 8.0),
    ("o4-mini", 1.1, 0.275, 4.4),
    ("gemini-3-5-flash", 1.5, 0.15, 9.0),
    ("gemini-3-1-pro", 2.0, 0.2, 12.0),
    ("gemini-2-5-pro", 1.25, 0.125, 10.0),
    ("gemini-2-5-flash", 0.3, 0.03, 2.5),
    ("gemini-2-5-flash-lite", 0.1, 0.01, 0.4),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::tests::{check_error, load_text};
    use crate::show::{Source, lines};

    #[track_caller]
    fn input(model: &str) -> Option<f64> {
        price(&Prices::new(), ProviderKind::Openai, model).map(|p| p.input)
    }

    #[test]
    fn a_model_is_known_by_each_of_its_names_and_no_other() {
        for (model, expected) in [
            ("claude-sonnet-4-6", Some(3.0)),
            ("claude-haiku-4-5-20251001", Some(1.0)),
            ("claude-haiku-4-5@20251001", Some(1.0)),
            ("anthropic/claude-sonnet-4.6", Some(3.0)),
            ("claude-3-5-haiku-latest", Some(0.8)),
            ("gpt-4.1", Some(2.0)),
            ("gpt-4.1-2025-04-14", Some(2.0)),
            ("GPT-4o-mini-2024-07-18", Some(0.15)),
            ("models/gemini-2.5-pro", Some(1.25)),
            ("gemini-3.1-pro-preview", Some(2.0)),
            ("claude-sonnet-4-60", None),
            ("gpt-4.1-turbo", None),
            ("gpt-5-pro", None),
            ("claude-opus-4-6-fast", None),
            ("my-model", None),
            ("20251001", None),
            ("-20251001", None),
            ("", None),
        ] {
            assert_eq!(input(model), expected, "{model}");
        }
    }

    #[test]
    fn the_configuration_goes_first_and_ones_own_machine_is_not_priced() {
        let own = Price { input: 0.5, output: 1.0, cached_input: None };
        let prices = Prices::from([("gpt-4.1".to_owned(), own), ("llama3".to_owned(), own)]);
        assert_eq!(price(&prices, ProviderKind::Openai, "gpt-4.1"), Some(own));
        assert_eq!(price(&prices, ProviderKind::Ollama, "llama3"), Some(own));
        assert_eq!(price(&prices, ProviderKind::Ollama, "gpt-4o"), None);
    }

    #[test]
    fn the_cost_is_that_of_each_kind_of_token() {
        let of = |cached_input| Price { input: 3.0, output: 15.0, cached_input };
        assert_eq!(of(Some(0.3)).cost_micros(1_000, 400, 100), 1_800 + 120 + 1_500);
        assert_eq!(of(None).cost_micros(1_000, 400, 100), 4_500);
        // More out of the cache than there is.
        assert_eq!(of(Some(0.3)).cost_micros(10, 400, 0), 3);
        assert_eq!(of(Some(0.3)).cost_micros(0, 0, 0), 0);
        assert_eq!(of(None).cost_micros(u64::MAX, 0, u64::MAX), u64::MAX);
    }

    #[test]
    fn the_table_is_of_different_models_whose_prices_make_sense() {
        let mut seen = std::collections::BTreeSet::new();
        for (name, input, cached, output) in BUILT_IN {
            assert!(seen.insert(name), "{name} is there twice");
            assert!(!name.contains(['.', '/']) && *name == without_date(name), "{name} would never be found");
            assert!(0.0 < *cached && cached < input && input < output, "{name}");
        }
    }

    #[test]
    fn a_budget_of_money_that_cannot_be_held_is_told_with_what_to_do() {
        const BUDGET: &str = "[policy.budget]\ncost_usd = 1.0\n";
        const OWN: &str = "[prices.own]\ninput = 1.0\noutput = 1.0\n";
        let model = |kind: &str, model: &str| {
            format!(
                "[providers.p]\nkind = \"{kind}\"\n[agents.a]\ntype = \"llm\"\nprovider = \"p\"\nmodel = \"{model}\"\n"
            )
        };
        let preset = |name: &str, more: &str| format!("[agents.a]\npreset = \"{name}\"\n{more}\n");
        let acp = |more: &str| format!("[agents.a]\ntype = \"acp\"\ncommand = [\"x\"]\n{more}\n");
        let judge = "[agents.a]\npreset = \"claude\"\n[providers.p]\nkind = \"openai\"\n[reviewers.r]\ntype = \"llm\"\nprovider = \"p\"\nmodel = \"own\"\n";
        let command = "[agents.a]\npreset = \"claude\"\n[reviewers.r]\ncommand = [\"x\"]\n";
        let (tokens, wall, both) = ("tokens = 9\n", "wall = \"1h\"\n", "tokens = 9\nwall = \"1h\"\n");
        for (text, says, instead) in [
            (preset("claude", ""), vec![], both),
            (
                preset("codex", ""),
                vec![
                    "agents.a",
                    "`codex` prints tokens",
                    "[prices]",
                    "set policy.budget.tokens and policy.budget.wall",
                ],
                both,
            ),
            (
                preset("codex", "model = \"own\""),
                vec!["agents.a", "[prices.\"own\"]", "set policy.budget.tokens and policy.budget.wall"],
                both,
            ),
            (preset("codex", "model = \"own\"") + OWN, vec![], both),
            (preset("gemini", "model = \"gemini-2.5-pro\""), vec![], both),
            (acp(""), vec!["agents.a", "the protocol", "; set policy.budget.wall"], wall),
            (acp("model = \"gpt-5\""), vec!["agents.a", "the protocol", "; set policy.budget.wall"], wall),
            (model("openai", "gpt-4.1"), vec![], both),
            (model("openai", "own"), vec!["agents.a", "price of `own`"], both),
            (model("ollama", "gpt-4.1"), vec!["agents.a", "price of `gpt-4.1`"], both),
            ("[agents.a]\ncommand = [\"x\"]\n".to_owned(), vec!["agents.a", "policy.budget.wall"], wall),
            (judge.to_owned(), vec!["reviewers.r", "price of `own`"], both),
            (command.to_owned(), vec!["reviewers.r", "its verdict alone", "; set policy.budget.wall"], wall),
        ] {
            let warnings = |text: &str| load_text(text, &[], &[]).unwrap().0.warnings();
            let said = warnings(&format!("{BUDGET}{text}"));
            assert_eq!(said.len(), usize::from(!says.is_empty()), "{text}{said:?}");
            assert!(says.iter().all(|word| said[0].contains(word)), "{text}{said:?}");
            assert_eq!(warnings(&format!("{BUDGET}{instead}{text}")), [""; 0], "{text}");
            assert_eq!(warnings(&format!("{BUDGET}{tokens}{text}")), said, "tokens alone stand in for nobody: {text}");
            let by_wall = warnings(&format!("{BUDGET}{wall}{text}"));
            assert_eq!(by_wall.is_empty(), says.is_empty() || instead == wall, "{text}{by_wall:?}");
            assert_eq!(warnings(&text), [""; 0], "{text}");
        }
        // Each agent that may get a job, once.
        let two = "ladder = [\"a\", \"b\", \"a\"]\n[policy.budget]\ncost_usd = 1.0\n[agents.a]\npreset = \"codex\"\n\
                   [agents.b]\ncommand = [\"x\"]\n[agents.c]\ncommand = [\"x\"]\n";
        let said = load_text(&format!("[policy]\n{two}"), &[], &[]).unwrap().0.warnings();
        assert!(said.len() == 2 && said[0].contains("agents.a") && said[1].contains("agents.b"), "{said:?}");
    }

    #[test]
    fn prices_are_read_and_shown() {
        let text = "[prices.\"my-model-1.5\"]\ninput = 3.0\noutput = 15\n";
        let (config, sources) = load_text(text, &[], &[]).unwrap();
        assert_eq!(config.prices["my-model-1.5"], Price { input: 3.0, output: 15.0, cached_input: None });
        let shown = lines(&config, &sources);
        let line = shown.iter().find(|l| l.key == "prices.my-model-1.5.output").unwrap();
        assert!(matches!(line.source, Source::File(_)));
        check_error("[prices.m]\ninput = -1.0\noutput = 1.0\n", &["prices.\"m\"", "0 or more"]);
        check_error("[prices.m]\ninput = 1.0\n", &["output"]);
        check_error("[prices.m]\ninput = 1.0\noutput = 1.0\ncache = 1.0\n", &["cache", "cached_input"]);
    }
}
