//! What can be told of addresses before anything is opened: whether they are some at all.

use crate::schema::Config;

/// What a store can be.
const STORES: &str =
    "write sqlite:PATH, redis://HOST:PORT/DB, rediss://HOST:PORT/DB or redis+cluster://HOST:PORT,HOST:PORT";

/// Why the store's URL is none; nothing where it may be one.
pub(crate) fn check_store(url: &str) -> Result<(), String> {
    match url.split_once(':') {
        Some(("sqlite", path)) if !path.trim().is_empty() => Ok(()),
        Some(("redis" | "rediss" | "redis+cluster", rest)) if rest.starts_with("//") => Ok(()),
        _ => Err(format!("`{}` is not a store; {STORES}", shown(url))),
    }
}

/// Holds that the addresses of artifacts and providers could be some.
pub(crate) fn check(config: &Config) -> Result<(), String> {
    if config.artifacts.strip_prefix("file:").is_none_or(|path| path.trim().is_empty()) {
        return Err(format!(
            "artifacts is `{}`, which is no place for them; write file:PATH",
            shown(&config.artifacts)
        ));
    }
    for (name, provider) in &config.providers {
        let Some(url) = provider.base_url.as_deref().filter(|url| !is_http(url)) else { continue };
        return Err(format!(
            "providers.{name}.base_url is `{}`, which is no address; write one such as https://HOST/v1",
            shown(url)
        ));
    }
    Ok(())
}

/// Whether it is the beginning of addresses: `http` or `https`, a host, perhaps a port and a path.
fn is_http(url: &str) -> bool {
    let Some((scheme, rest)) = url.split_once("://") else { return false };
    let host = rest.split('/').next().unwrap_or_default();
    let host = host.rsplit('@').next().unwrap_or_default();
    let is_port = |port: &str| port.parse::<u16>().is_ok();
    let (name, port) = match (host.strip_prefix('['), host.rsplit_once(':')) {
        (Some(six), _) => match six.split_once(']') {
            Some((name, rest)) => (name, rest.strip_prefix(':')),
            None => return false,
        },
        (None, Some((name, port))) => (name, Some(port)),
        (None, None) => (host, None),
    };
    let is_plain = |c: char| !c.is_whitespace() && !c.is_control() && !matches!(c, '?' | '#');
    matches!(scheme, "http" | "https") && !name.is_empty() && port.is_none_or(is_port) && url.chars().all(is_plain)
}

/// As much of an address as may be shown: not what may hold a password.
fn shown(url: &str) -> String {
    match url.split_once(':') {
        Some((scheme, rest)) if rest.contains('@') => format!("{scheme}:…"),
        _ => url.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::tests::{check_error, load_text};

    #[test]
    fn a_store_is_known_by_its_scheme() {
        for good in ["sqlite:a.db", "redis://h/0", "rediss://h:1/0", "redis+cluster://a:1,b:2"] {
            assert_eq!(check_store(good), Ok(()), "{good}");
        }
        for bad in ["", "fleet.db", "sqlite:", "sqlite: ", "postgres://h/d", "redis:h", "reddis://h"] {
            let why = check_store(bad).unwrap_err();
            assert!(why.contains("is not a store") && why.contains("sqlite:PATH"), "{why}");
        }
        for secret in ["postgres://me:s3cret@h/d", "reddis:me:s3cret@host"] {
            assert!(!check_store(secret).unwrap_err().contains("s3cret"), "{secret}");
        }
        check_error("store = \"bogus\"\n", &["refile.toml: `bogus` is not a store"]);
        let flag = load_text("", &[], &[("store", "bogus".to_owned())]).unwrap_err().to_string();
        assert!(flag.starts_with("--store: `bogus`"), "{flag}");
        let variable = load_text("", &[("REFILE_STORE", "bogus")], &[]).unwrap_err().to_string();
        assert!(variable.starts_with("REFILE_STORE: `bogus`"), "{variable}");
    }

    #[test]
    fn a_providers_address_is_one() {
        let text = |url: &str| format!("[providers.p]\nkind = \"openai\"\nbase_url = \"{url}\"\n");
        for good in [
            "http://127.0.0.1:9000/",
            "https://openrouter.ai/api/v1",
            "http://localhost",
            "http://[::1]:8080/v1",
            "https://u:p@gateway.example/x",
        ] {
            load_text(&text(good), &[], &[]).unwrap_or_else(|e| panic!("{good}: {e}"));
        }
        for bad in [
            "",
            "bogus",
            "localhost:9000",
            "htp://h/",
            "http://",
            "http:///v1",
            "http://h:port/",
            "http://h x/",
            "http://h/?a=b",
        ] {
            check_error(&text(bad), &["providers.p.base_url", "https://HOST/v1"]);
        }
        check_error("artifacts = \"bogus\"\n", &["artifacts is `bogus`", "file:PATH"]);
    }
}
