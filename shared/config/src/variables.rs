//! `REFILE_*` variables that nothing reads: a name that is mistyped would be passed over without a word.

use crate::load::ConfigError;
use crate::nearest::nearest;
use crate::schema::Config;
use crate::show::fixed_keys;

/// What every variable of the fleet's begins with.
const PREFIX: &str = "REFILE_";

/// Those that are no keys of the configuration: what is logged, and what a command of the fleet is told.
const OTHERS: [&str; 7] = [
    "REFILE_LOG",
    "REFILE_TASK_ID",
    "REFILE_PHASE",
    "REFILE_ATTEMPT",
    "REFILE_BASE",
    "REFILE_PROMPT_FILE",
    "REFILE_DIFF_FILE",
];

/// Those of the project's own checks and of `deploy/compose.yaml`, which no command reads: passed over, and meant by nobody.
const ELSEWHERE: [&str; 5] =
    ["REFILE_TEST_LANDINGS", "REFILE_FUZZ_SECONDS", "REFILE_MUTATIONS", "REFILE_AGENTS", "REFILE_REPOSITORY"];

/// The environment of this process, for [`load`](crate::load). A name that is no text is no name of ours. A value that is none is
/// an error in a variable of ours: it might be the name of another file; elsewhere it is read as nearly as it can be.
pub fn environment() -> Result<Vec<(String, String)>, ConfigError> {
    let named = std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value)));
    let read = named.map(|(name, value)| match value.into_string() {
        Ok(value) => Ok((name, value)),
        Err(_) if name.starts_with(PREFIX) => {
            let message = "its value is no text (not UTF-8): set another, or unset it".to_owned();
            Err(ConfigError::Invalid { path: format!("the environment variable {name}"), message })
        }
        Err(value) => Ok((name, value.to_string_lossy().into_owned())),
    });
    read.collect()
}

/// Whether Kubernetes sets a variable for a service: for each of a namespace it tells every pod host and ports, so that the one
/// named `refile` gives `REFILE_PORT_7420_TCP_ADDR` and others.
fn is_of_service(name: &str, names: &[&str]) -> bool {
    let has_host = |service: &str| names.iter().any(|other| other.strip_suffix("_SERVICE_HOST") == Some(service));
    name.ends_with("_SERVICE_HOST")
        || name.ends_with("_SERVICE_PORT")
        || name.contains("_SERVICE_PORT_")
        || name == "REFILE_PORT"
        || name.starts_with("REFILE_PORT_")
        || name.match_indices("_PORT").any(|(at, _)| has_host(&name[..at]))
}

/// The variable that sets a key.
pub(crate) fn variable(key: &str) -> String {
    format!("{PREFIX}{}", key.to_uppercase().replace('.', "_"))
}

/// A sentence for each variable that nothing reads, with the one that was most likely meant.
pub(crate) fn unread<'n>(config: &Config, names: impl Iterator<Item = &'n str>) -> Vec<String> {
    let keys: Vec<String> = fixed_keys().iter().map(|key| variable(key)).collect();
    let own = config.providers.values().filter_map(|provider| provider.api_key_env.as_deref());
    let own = own.chain(config.forge.token_env.as_deref()).chain([config.forge.webhook_secret_env.as_str()]);
    let known: Vec<&str> = keys.iter().map(String::as_str).chain(OTHERS).chain(own).collect();
    let names: Vec<&str> = names.filter(|name| name.starts_with(PREFIX)).collect();
    let is_read = |name: &str| known.contains(&name) || ELSEWHERE.contains(&name) || is_of_service(name, &names);
    let unread = names.iter().filter(|name| !is_read(name));
    unread.map(|name| format!("nothing reads the environment variable {name}; {}", meant(name, &known))).collect()
}

/// What somebody may have meant by a variable.
fn meant(name: &str, known: &[&str]) -> String {
    let rest = |name: &str| name.strip_prefix(PREFIX).unwrap_or(name).to_owned();
    // The key without its section, as in REFILE_MAX_ATTEMPTS.
    let end = format!("_{}", rest(name));
    let mut ending = known.iter().filter(|known| known.ends_with(&end));
    let meant = if let (Some(only), None) = (ending.next(), ending.next()) {
        Some((*only).to_owned())
    } else {
        // What all begin with says nothing of which is meant.
        let rests: Vec<String> = known.iter().map(|known| rest(known)).collect();
        nearest(&rest(name), rests.iter().map(String::as_str)).map(|near| format!("{PREFIX}{near}"))
    };
    match meant {
        Some(meant) => format!("did you mean {meant}?"),
        None => "the key `policy.max_attempts` is set by REFILE_POLICY_MAX_ATTEMPTS, and so on".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use crate::load::tests::load_text;

    #[track_caller]
    fn said(text: &str, names: &[&str]) -> Vec<String> {
        let env: Vec<(&str, &str)> = names.iter().map(|name| (*name, "x")).collect();
        load_text(text, &env, &[]).unwrap().1.unread().to_vec()
    }

    #[test]
    fn a_variable_that_nothing_reads_is_told_with_the_one_that_was_meant() {
        for (name, meant) in [
            ("REFILE_STROE", "REFILE_STORE?"),
            ("REFILE_MAX_ATTEMPTS", "REFILE_POLICY_MAX_ATTEMPTS?"),
            ("REFILE_POLICY_MAX_ATEMPTS", "REFILE_POLICY_MAX_ATTEMPTS?"),
            ("REFILE_LOGS", "REFILE_LOG?"),
            ("REFILE_ZZZ", "and so on"),
        ] {
            let said = said("", &[name]);
            assert_eq!(said.len(), 1, "{said:?}");
            assert!(said[0].contains(name) && said[0].ends_with(meant), "{said:?}");
        }
    }

    #[test]
    fn what_others_set_is_passed_over() {
        let services = [
            "REFILE_SERVICE_HOST",
            "REFILE_SERVICE_PORT",
            "REFILE_SERVICE_PORT_HTTP",
            "REFILE_PORT",
            "REFILE_PORT_7420_TCP",
            "REFILE_PORT_7420_TCP_ADDR",
        ];
        let own = super::ELSEWHERE;
        for name in services.iter().chain(&own) {
            assert_eq!(said("", &[name]), Vec::<String>::new());
        }
        // A service of another name that begins so, and what looks like its port where there is none.
        let (port, address) = ("REFILE_COORDINATOR_PORT", "REFILE_COORDINATOR_PORT_7420_TCP");
        assert_eq!(said("", &["REFILE_COORDINATOR_SERVICE_HOST", port, address]), Vec::<String>::new());
        assert_eq!(said("", &[port]).len(), 1);
        for name in ["REFILE_PORTS", "REFILE_AGENT", "REFILE_TEST_LANDING", "REFILE_SERVICE"] {
            let said = said("", &[name]);
            assert!(said.len() == 1 && own.iter().all(|own| !said[0].contains(&format!("{own}?"))), "{said:?}");
        }
    }

    #[test]
    fn what_something_reads_is_passed_over() {
        let names =
            ["REFILE_LOG", "REFILE_TASK_ID", "REFILE_PHASE", "REFILE_BASE", "REFILE_PROMPT_FILE", "REFILE_DIFF_FILE"];
        assert_eq!(said("", &names), Vec::<String>::new());
        assert_eq!(said("", &["REFILE_STORE_X", "HOME", "XREFILE_STORE"]).len(), 1);
        assert_eq!(said("", &["REFILE_WEBHOOK_SECRET", "REFILE_REPOSITORY_URL"]), Vec::<String>::new());
        let own = "[providers.p]\nkind = \"openai\"\napi_key_env = \"REFILE_KEY\"\n";
        assert_eq!(said(own, &["REFILE_KEY"]), Vec::<String>::new());
        assert_eq!(said("", &["REFILE_KEY"]).len(), 1);
    }
}
