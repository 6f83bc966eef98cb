//! The secrets that a worker knows, by the names of the variables that hold them.

use refile_config::{Config, ForgeKind};

use crate::agent::preset::known;
use crate::process::Secrets;

/// All that a configuration names: what agents and reviewers are given, the keys of providers, the tokens of forges.
pub fn of(config: &Config) -> Secrets {
    let mut names: Vec<String> = ForgeKind::ALL.into_iter().map(|kind| kind.token_env().to_owned()).collect();
    names.extend(config.forge.token_env.clone());
    names.push(config.forge.webhook_secret_env.clone());
    names.extend(config.providers.values().filter_map(|provider| provider.api_key_env.clone()));
    names.extend(config.reviewers.values().flat_map(|reviewer| reviewer.env.iter().cloned()));
    for agent in config.agents.values() {
        names.extend(agent.env.iter().cloned());
        let preset = agent.preset.and_then(|preset| known(preset).ok());
        names.extend(preset.into_iter().flat_map(|preset| preset.credentials));
    }
    Secrets::of(&names)
}
