//! Where each value of the configuration comes from.

use std::collections::BTreeMap;
use std::fmt;

use toml::{Table, Value};

use crate::schema::Config;

/// Where a value comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// Nobody set it.
    Default,
    /// The file of that name.
    File(String),
    /// The environment variable of that name.
    Environment(String),
    /// The flag of that name.
    Flag(String),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(name) | Self::Environment(name) | Self::Flag(name) => f.write_str(name),
        }
    }
}

/// The sources of the values that somebody set, by dotted key.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    of: BTreeMap<String, Source>,
    pub(crate) unread: Vec<String>,
}

impl Sources {
    pub(crate) fn of_file(name: &str, table: &Table) -> Self {
        let mut keys = Vec::new();
        flatten("", &Value::Table(table.clone()), &mut keys);
        let of = keys.into_iter().map(|(key, _)| (key, Source::File(name.to_owned()))).collect();
        Self { of, unread: Vec::new() }
    }

    pub(crate) fn set(&mut self, key: &str, source: Source) {
        self.of.insert(key.to_owned(), source);
    }

    /// Where the value of a dotted key comes from.
    pub fn get(&self, key: &str) -> Source {
        self.of.get(key).cloned().unwrap_or(Source::Default)
    }

    /// A sentence for each `REFILE_*` variable of the environment that nothing reads.
    pub fn unread(&self) -> &[String] {
        &self.unread
    }
}

/// One line of `refile config show`.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// The dotted key.
    pub key: String,
    /// The value as TOML.
    pub value: Value,
    /// Where it comes from.
    pub source: Source,
}

/// Every value that is in force, in the order of the file's sections.
pub fn lines(config: &Config, sources: &Sources) -> Vec<Line> {
    let mut keys = Vec::new();
    if let Ok(table) = Table::try_from(config) {
        flatten("", &Value::Table(table), &mut keys);
    }
    keys.into_iter().map(|(key, value)| Line { source: sources.get(&key), key, value }).collect()
}

/// The keys that an environment variable can set: all but the named tables and the lists of tables.
pub(crate) fn fixed_keys() -> Vec<String> {
    let mut keys: Vec<String> = lines(&Config::default(), &Sources::default())
        .into_iter()
        .map(|line| line.key)
        .filter(|k| k != "gates")
        .collect();
    let unset = [
        "policy.budget.tokens",
        "policy.budget.cost_usd",
        "policy.budget.wall",
        "limits.repository",
        "forge.kind",
        "forge.base_url",
        "forge.project",
        "forge.token_env",
        "forge.label",
    ];
    keys.extend(unset.map(str::to_owned));
    keys
}

fn flatten(prefix: &str, value: &Value, into: &mut Vec<(String, Value)>) {
    match value {
        Value::Table(table) => {
            for (key, value) in table {
                let key = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
                flatten(&key, value, into);
            }
        }
        Value::Array(items) if items.iter().any(Value::is_table) => {
            for (i, item) in items.iter().enumerate() {
                flatten(&format!("{prefix}[{i}]"), item, into);
            }
        }
        value => into.push((prefix.to_owned(), value.clone())),
    }
}
