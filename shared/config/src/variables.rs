//! `REFILE_*` variables that nothing reads: a name that is mistyped would be passed over without a word.

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
    let unread = names.filter(|name| name.starts_with(PREFIX) && !known.contains(name));
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
