//! Flags over environment over file over defaults.

use std::path::{Path, PathBuf};

use toml::{Table, Value};

use crate::nearest::hint;
use crate::schema::{Config, ReviewerType};
use crate::show::{Source, Sources, fixed_keys};
use crate::variables::{unread, variable};

/// The file's usual name.
pub const FILE_NAME: &str = "refile.toml";

/// A value that a flag sets: the key with dots, and its text.
pub type Override = (&'static str, String);

/// Why there is no usable configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file is not there, or cannot be read.
    #[error("cannot read {}: {source}\n  `refile init` writes one for the repository that you stand in", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The text is not TOML, a key is unknown, or a value has the wrong type.
    #[error("{path}: {message}")]
    Parse {
        /// The file, or the environment variable or flag.
        path: String,
        /// Line, place and cause.
        message: String,
    },
    /// Every key is right by itself, and together they make no sense.
    #[error("{path}: {message}")]
    Invalid {
        /// The file.
        path: String,
        /// What does not fit, and what would.
        message: String,
    },
}

/// Reads the configuration.
///
/// `file` is what `--config` names; without it `refile.toml` is read from here or the nearest folder above that has one,
/// and the defaults stand where none has. `env` is the process's [environment](crate::environment); `flags` win over everything.
pub fn load(
    file: Option<&Path>,
    env: impl IntoIterator<Item = (String, String)>,
    flags: &[Override],
) -> Result<(Config, Sources), ConfigError> {
    let path = file.map_or_else(nearest_file, Path::to_path_buf);
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => Some(text),
        Err(error) if file.is_none() && error.kind() == std::io::ErrorKind::NotFound => None,
        Err(source) => return Err(ConfigError::Read { path, source }),
    };
    let name = path.display().to_string();
    let text_or_empty = text.clone().unwrap_or_default();
    // The file by itself first: only then can an error point at its line.
    let _: Config = toml::from_str(&text_or_empty).map_err(|error| parse_error(&name, &error))?;
    let mut table: Table = toml::from_str(&text_or_empty).map_err(|error| parse_error(&name, &error))?;
    let mut sources = Sources::of_file(&name, &table);

    let env: Vec<(String, String)> = env.into_iter().collect();
    for key in fixed_keys() {
        let variable = variable(&key);
        if let Some((_, value)) = env.iter().find(|(name, _)| *name == variable) {
            set(&mut table, &key, value, &variable)?;
            sources.set(&key, Source::Environment(variable));
        }
    }
    for (key, value) in flags {
        let flag = format!("--{}", key.rsplit('.').next().unwrap_or(key));
        set(&mut table, key, value, &flag)?;
        sources.set(key, Source::Flag(flag));
    }
    let fields = crate::fields::written(&table);
    let mut config: Config = table.try_into().map_err(|error| parse_error(&name, &error))?;
    config.dir = match path.parent() {
        Some(dir) if text.is_some() && !dir.as_os_str().is_empty() => dir.to_path_buf(),
        _ => PathBuf::from("."),
    };
    split_providers(&mut config);
    crate::agents::split_providers(&mut config);
    let of_store = |message| match sources.get("store") {
        // It may stand in a flag or in the environment.
        Source::Default => ConfigError::Invalid { path: name.clone(), message },
        source => ConfigError::Invalid { path: source.to_string(), message },
    };
    crate::addresses::check_store(&config.store).map_err(of_store)?;
    let invalid = |message| ConfigError::Invalid { path: name.clone(), message };
    crate::fields::check(&config, &fields).and_then(|()| validate(&config)).map_err(invalid)?;
    crate::agents::fill(&mut config);
    sources.unread = unread(&config, env.iter().map(|(name, _)| name.as_str()));
    Ok((config, sources))
}

/// The file here, or in the nearest folder above that has one, as git finds its repository.
fn nearest_file() -> PathBuf {
    let here = PathBuf::from(FILE_NAME);
    if here.exists() {
        return here;
    }
    let above = std::env::current_dir().ok();
    let found = above.iter().flat_map(|dir| dir.ancestors()).map(|dir| dir.join(FILE_NAME)).find(|file| file.exists());
    found.unwrap_or(here)
}

/// Reads `model = "anthropic/claude-…"` as a model of `[providers.anthropic]` where no provider is named.
fn split_providers(config: &mut Config) {
    for reviewer in config.reviewers.values_mut().filter(|r| r.kind == ReviewerType::Llm && r.provider.is_none()) {
        let split = reviewer.model.as_deref().and_then(|model| model.split_once('/'));
        if let Some((provider, model)) = split.filter(|(provider, _)| config.providers.contains_key(*provider)) {
            (reviewer.provider, reviewer.model) = (Some(provider.to_owned()), Some(model.to_owned()));
        }
    }
}

/// Sets a dotted key. The text is read as a TOML value where it is one that the key can hold, else taken as a string.
fn set(table: &mut Table, key: &str, text: &str, origin: &str) -> Result<(), ConfigError> {
    let mut candidates = Vec::new();
    if let Ok(parsed) = toml::from_str::<Table>(&format!("value = {text}")) {
        candidates.extend(parsed.get("value").cloned());
    }
    candidates.push(Value::String(text.to_owned()));
    let mut first_error = None;
    for value in candidates {
        let mut changed = table.clone();
        insert(&mut changed, key, value);
        match Config::deserialize_table(changed.clone()) {
            Ok(()) => {
                *table = changed;
                return Ok(());
            }
            Err(error) => first_error = first_error.or(Some(error)),
        }
    }
    let message = first_error.map(|e| e.message().to_owned()).unwrap_or_default();
    Err(ConfigError::Parse { path: origin.to_owned(), message: format!("`{text}` does not fit {key}: {message}") })
}

fn insert(table: &mut Table, key: &str, value: Value) {
    match key.split_once('.') {
        None => {
            table.insert(key.to_owned(), value);
        }
        Some((section, rest)) => {
            let section = table.entry(section).or_insert_with(|| Value::Table(Table::new()));
            if let Value::Table(section) = section {
                insert(section, rest, value);
            }
        }
    }
}

impl Config {
    fn deserialize_table(table: Table) -> Result<(), toml::de::Error> {
        table.try_into::<Self>().map(drop)
    }
}

/// The library's message with its line and caret, and the known key that is nearest to an unknown one.
fn parse_error(path: &str, error: &toml::de::Error) -> ConfigError {
    let mut message = error.to_string().trim_end().to_owned();
    if let Some(nearest) = nearest_key(error.message()) {
        message = format!("{message}\n  did you mean `{nearest}`?");
    }
    ConfigError::Parse { path: path.to_owned(), message }
}

/// Reads ``unknown field `x`, expected one of `a`, `b` `` and finds the name nearest to `x`; so too of a value that is
/// one of several words.
fn nearest_key(message: &str) -> Option<String> {
    let rest = message.strip_prefix("unknown field `").or_else(|| message.strip_prefix("unknown variant `"))?;
    let (unknown, known) = rest.split_once("`, expected ")?;
    crate::nearest(unknown, known.split('`').skip(1).step_by(2)).map(str::to_owned)
}

/// Holds what no single key can say.
fn validate(config: &Config) -> Result<(), String> {
    let p = &config.policy;
    if p.max_attempts == 0 {
        return Err("policy.max_attempts must be at least 1".to_owned());
    }
    if !(0.0..1.0).contains(&p.confidence) {
        return Err(format!("policy.confidence is {}; it must be at least 0 and less than 1", p.confidence));
    }
    for (budget, name) in [
        (p.max_reviews, "max_reviews"),
        (p.max_review_failures, "max_review_failures"),
        (p.max_infra_failures, "max_infra_failures"),
        (p.max_land_failures, "max_land_failures"),
        (p.max_deliveries, "max_deliveries"),
    ] {
        if budget == 0 {
            return Err(format!("policy.{name} must be at least 1"));
        }
    }
    if config.land.batch == 0 {
        return Err("land.batch must be at least 1".to_owned());
    }
    if config.workers.lease < crate::Span::seconds(1) {
        return Err("workers.lease must be at least 1s".to_owned());
    }
    for (name, agent) in &config.agents {
        crate::agents::validate(config, name, agent)?;
    }
    for name in &p.ladder {
        if !config.agents.contains_key(name) {
            let hint = hint(name, config.agents.keys().map(String::as_str));
            return Err(format!("policy.ladder names `{name}`, and there is no [agents.{name}]{hint}"));
        }
    }
    for (name, reviewer) in &config.reviewers {
        crate::reviewers::validate(config, name, reviewer)?;
        crate::inputs::check(&format!("reviewers.{name}"), reviewer)?;
    }
    crate::addresses::check(config)?;
    crate::prices::check(&config.prices)?;
    crate::forge::check(&config.forge)?;
    validate_limits(config)?;
    crate::bounds::check(&config.limits.process, &config.diff_policy)?;
    if p.budget.cost_usd.is_some_and(|usd| !usd.is_finite() || usd < 0.0) {
        return Err("policy.budget.cost_usd must be 0 or more".to_owned());
    }
    let mut seen = std::collections::BTreeSet::new();
    for gate in &config.gates {
        if gate.name.trim().is_empty() || gate.run.trim().is_empty() {
            return Err("a gate needs a `name` and what it should `run`".to_owned());
        }
        if gate.retries > 10 {
            return Err(format!("the gate `{}` has more than 10 retries: what fails so often says nothing", gate.name));
        }
        let built_in =
            [refile_core::gate::EMPTY_DIFF, refile_core::gate::MERGE_CONFLICT, refile_core::gate::DIFF_POLICY];
        if built_in.contains(&gate.name.as_str()) {
            return Err(format!("the gate `{}` is built in; give yours another name", gate.name));
        }
        if !seen.insert(&gate.name) {
            return Err(format!("the gate `{}` is there twice", gate.name));
        }
    }
    Ok(())
}

/// Holds that limits let something run, and are of what there is. Repositories are known by tasks alone.
fn validate_limits(config: &Config) -> Result<(), String> {
    let limits = &config.limits;
    if limits.repository == Some(0) {
        return Err("limits.repository must be at least 1; leave it out for no limit".to_owned());
    }
    let built_in = refile_core::decide::submission::Workflow::default().name;
    let names = |section: &str| -> Option<Vec<&str>> {
        match section {
            "workflows" => Some(vec![built_in.as_str()]),
            "agents" => Some(config.agents.keys().map(String::as_str).collect()),
            "reviewers" => Some(config.reviewers.keys().map(String::as_str).collect()),
            "providers" => Some(config.providers.keys().map(String::as_str).collect()),
            _ => None,
        }
    };
    for (section, named) in [
        ("repositories", &limits.repositories),
        ("workflows", &limits.workflows),
        ("agents", &limits.agents),
        ("reviewers", &limits.reviewers),
        ("providers", &limits.providers),
    ] {
        for (name, most) in named {
            if let Some(known) = names(section).filter(|known| !known.contains(&name.as_str())) {
                let absent = match section {
                    "workflows" => "workflow of that name".to_owned(),
                    _ => format!("[{section}.{name}]"),
                };
                let hint = hint(name, known);
                return Err(format!("limits.{section} names `{name}`, and there is no {absent}{hint}"));
            }
            if *most == 0 {
                return Err(format!("limits.{section}.{name} must be at least 1; leave it out for no limit"));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn load_text(
        text: &str,
        env: &[(&str, &str)],
        flags: &[Override],
    ) -> Result<(Config, Sources), ConfigError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("refile.toml");
        std::fs::write(&path, text).unwrap();
        load(Some(&path), env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())), flags)
    }

    #[track_caller]
    pub(crate) fn check_error(text: &str, says: &[&str]) {
        let error = load_text(text, &[], &[]).unwrap_err().to_string();
        for word in says {
            assert!(error.contains(word), "{error:?} does not say {word:?}");
        }
    }

    #[test]
    fn an_empty_file_is_the_defaults() {
        let (config, _) = load_text("", &[], &[]).unwrap();
        assert_eq!(config.policy(), Policy { reviewers: vec!["default".into()], ..Policy::default() });
        assert_eq!(config.store, "sqlite:.refile/fleet.db");
    }

    use refile_core::Policy;

    #[test]
    fn an_unknown_key_is_named_with_its_line_and_the_nearest_known_one() {
        check_error("[policy]\nmax_atempts = 4\n", &["max_atempts", "line 2", "did you mean `max_attempts`?"]);
        check_error("stroe = \"x\"\n", &["stroe", "did you mean `store`?"]);
        check_error("[agents.a]\ncommand = [\"x\"]\ntimout = \"1m\"\n", &["timout", "did you mean `timeout`?"]);
    }

    #[test]
    fn values_that_make_no_sense_are_refused() {
        check_error("[policy]\nmax_attempts = 0\n", &["policy.max_attempts must be at least 1"]);
        check_error("[policy]\nconfidence = 1.0\n", &["less than 1"]);
        check_error("[workers]\nlease = \"soon\"\n", &["soon", "90s"]);
        check_error("[reviewers.j]\ntype = \"llm\"\nmodel = \"m\"\n", &["reviewers.j", "provider"]);
        check_error("[[gates]]\nname = \"empty_diff\"\nrun = \"true\"\n", &["built in"]);
        check_error("[policy]\nladder = [\"x\"]\n", &["no [agents.x]"]);
        check_error("[policy.budget]\ncost_usd = -1.0\n", &["cost_usd"]);
        check_error("[land]\nbatch = 0\n", &["land.batch must be at least 1"]);
        check_error("[land]\nstrategy = \"rebaes\"\n", &["did you mean `rebase`?"]);
        check_error("[[gates]]\nname = \"\"\nrun = \"true\"\n", &["`name`"]);
    }

    #[test]
    fn limits_let_something_run_and_are_of_what_there_is() {
        let text = "[limits]\nrepository = 4\nrepositories = { \"https://example.org/a.git\" = 2 }\n\
                    workflows = { change = 20 }\nagents = { fixer = 8 }\n[agents.fixer]\ncommand = [\"x\"]\n";
        let (config, sources) = load_text(text, &[("REFILE_LIMITS_REPOSITORY", "5")], &[]).unwrap();
        assert_eq!((config.limits.repository, config.limits.agents["fixer"]), (Some(5), 8));
        assert_eq!(config.limits.repositories["https://example.org/a.git"], 2);
        let shown = crate::show::lines(&config, &sources);
        let line = |key: &str| shown.iter().find(|l| l.key == key).map(|l| (l.value.clone(), l.source.clone()));
        assert_eq!(line("limits.repository").unwrap().1, Source::Environment("REFILE_LIMITS_REPOSITORY".into()));
        let (value, source) = line("limits.workflows.change").unwrap();
        assert!(value == 20.into() && matches!(source, Source::File(_)));
        check_error("[limits]\nrepository = 0\n", &["limits.repository must be at least 1"]);
        check_error("[limits]\nworkflows = { change = 0 }\n", &["limits.workflows.change must be at least 1"]);
        check_error("[limits]\nworkflows = { change = -1 }\n", &["line 2"]);
        check_error("[limits]\nagent = { fixer = 1 }\n", &["agent", "did you mean `agents`?"]);
        for section in ["agents", "reviewers", "providers"] {
            let text = format!("[limits]\n{section} = {{ x = 1 }}\n");
            check_error(&text, &["names `x`", &format!("no [{section}.x]")]);
        }
        check_error("[limits]\nworkflows = { chnge = 1 }\n", &["names `chnge`", "did you mean `change`?"]);
        let typo = "[limits]\nagents = { fixr = 1 }\n[agents.fixer]\ncommand = [\"x\"]\n";
        check_error(typo, &["names `fixr`", "did you mean `fixer`?"]);
    }

    #[test]
    fn flags_win_over_environment_over_file() {
        let text = "store = \"sqlite:a\"\n[policy]\nmax_attempts = 4\n[workers]\ncoders = 1\n";
        let env = [("REFILE_POLICY_MAX_ATTEMPTS", "5"), ("REFILE_STORE", "sqlite:b"), ("REFILE_WORKERS_LEASE", "9s")];
        let (config, sources) = load_text(text, &env, &[("store", "sqlite:c".to_owned())]).unwrap();
        assert_eq!((config.store.as_str(), config.policy.max_attempts, config.workers.coders), ("sqlite:c", 5, 1));
        assert_eq!(config.workers.lease, crate::Span::seconds(9));
        assert_eq!(sources.get("store"), Source::Flag("--store".into()));
        assert_eq!(sources.get("policy.max_attempts"), Source::Environment("REFILE_POLICY_MAX_ATTEMPTS".into()));
        assert!(matches!(sources.get("workers.coders"), Source::File(_)));
        assert_eq!(sources.get("workers.reviewers"), Source::Default);
    }

    #[test]
    fn a_bad_environment_variable_is_named() {
        let error = load_text("", &[("REFILE_POLICY_MAX_ATTEMPTS", "many")], &[]).unwrap_err().to_string();
        assert!(error.contains("REFILE_POLICY_MAX_ATTEMPTS") && error.contains("many"), "{error}");
    }

    #[test]
    fn the_first_agent_is_the_default() {
        let (config, _) =
            load_text("[agents.zed]\ncommand = [\"z\"]\n[agents.abc]\ncommand = [\"a\"]\n", &[], &[]).unwrap();
        assert_eq!(config.policy().ladder, ["zed"]);
    }

    #[test]
    fn a_file_that_was_named_must_be_there() {
        let error = load(Some(Path::new("/nonexistent/refile.toml")), [], &[]).unwrap_err().to_string();
        assert!(error.contains("/nonexistent/refile.toml") && error.contains("refile init"), "{error}");
    }
}
