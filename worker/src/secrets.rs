//! The secrets that a worker knows: the variables that hold keys, by their names. Values are read where they are needed.

use std::collections::BTreeSet;
use std::sync::Arc;

use refile_config::{Config, ForgeKind};

use crate::agent::preset::known;
use crate::process::{ALLOWED, without_secrets};

/// The shortest value that is looked for in a change, in bytes. Shorter ones are words such as `1` or `true`.
const SHORTEST: usize = 8;

/// Names of variables that may hold secrets.
#[derive(Debug, Clone, Default)]
pub struct Secrets(Arc<BTreeSet<String>>);

impl Secrets {
    /// All that a configuration names: what agents and reviewers are given, the keys of providers, the tokens of forges.
    pub fn of(config: &Config) -> Self {
        let mut names: BTreeSet<String> = ForgeKind::ALL.into_iter().map(|kind| kind.token_env().to_owned()).collect();
        names.extend(config.forge.token_env.clone());
        names.insert(config.forge.webhook_secret_env.clone());
        names.extend(config.providers.values().filter_map(|provider| provider.api_key_env.clone()));
        names.extend(config.reviewers.values().flat_map(|reviewer| reviewer.env.iter().cloned()));
        for agent in config.agents.values() {
            names.extend(agent.env.iter().cloned());
            let preset = agent.preset.and_then(|preset| known(preset).ok());
            names.extend(preset.into_iter().flat_map(|preset| preset.credentials));
        }
        Self(Arc::new(names))
    }

    /// These and more.
    #[must_use]
    pub(crate) fn and(&self, names: &[String]) -> Self {
        Self(Arc::new(self.0.iter().chain(names).cloned().collect()))
    }

    /// A text without the values.
    pub(crate) fn hide(&self, text: &str) -> String {
        let mut names: Vec<String> = self.0.iter().cloned().collect();
        // One value may be the beginning of another.
        names.sort_by_key(|name| std::cmp::Reverse(std::env::var(name).map_or(0, |value| value.len())));
        without_secrets(text, &names)
    }

    /// The names that are set to something that may be a secret, and what it is.
    pub(crate) fn values(&self) -> Vec<(String, String)> {
        let value = |name: &String| Some((name.clone(), std::env::var(name).ok()?));
        let may_be = |(name, value): &(String, String)| value.len() >= SHORTEST && !ALLOWED.contains(&name.as_str());
        self.0.iter().filter_map(value).filter(may_be).collect()
    }
}
