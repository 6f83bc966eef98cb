//! How git itself gets into a repository over HTTP: with the forge's token, which never stands in an address, an argument or
//! a file.

use std::fmt;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use percent_encoding::percent_decode_str;
use refile_config::ForgeKind;

/// A login for the repositories of one server.
#[derive(Clone)]
pub struct Login {
    server: String,
    header: String,
    /// Nothing where the repository's address held it.
    variable: Option<String>,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login").field("server", &self.server).finish_non_exhaustive()
    }
}

impl Login {
    /// The login for a repository's address; nothing where that is no plain HTTP address or has a login of its own. Without
    /// TLS a token goes to the configured server alone, if that has none either.
    pub(crate) fn new(kind: ForgeKind, api: &str, repository: &str, (variable, token): (&str, &str)) -> Option<Self> {
        let (scheme, rest) = repository.split_once("://")?;
        let host = rest.split('/').next().filter(|host| !host.is_empty() && !host.contains('@'))?;
        if scheme != "https" && (scheme != "http" || !api.starts_with("http://")) {
            return None;
        }
        // The name means nothing to any of them; some ask for one that says that the rest is a token.
        let name = match kind {
            ForgeKind::Github => "x-access-token",
            ForgeKind::Gitea | ForgeKind::Gitlab => "oauth2",
        };
        let server = format!("{scheme}://{host}/");
        Some(Self { server, header: basic(format!("{name}:{token}")), variable: Some(variable.to_owned()) })
    }

    /// What an address over HTTP holds itself, and the address without it: arguments are seen by all users of a machine.
    pub fn of_address(address: &str) -> Option<(String, Self)> {
        let (scheme, rest) = address.split_once("://").filter(|(scheme, _)| ["http", "https"].contains(scheme))?;
        let (login, _) = rest.split('/').next()?.rsplit_once('@')?;
        let rest = &rest[login.len() + 1..];
        let host = rest.split('/').next().unwrap_or_default();
        let login = if login.contains(':') { login.to_owned() } else { format!("{login}:") };
        let header = basic(percent_decode_str(&login).collect::<Vec<u8>>());
        let server = format!("{scheme}://{host}/");
        Some((format!("{scheme}://{rest}"), Self { server, header, variable: None }))
    }

    /// The environment variable that holds the token; nothing where it was in the repository's address.
    pub fn variable(&self) -> Option<&str> {
        self.variable.as_deref()
    }

    /// Git's setting for it and the setting's value.
    pub fn setting(&self) -> (String, &str) {
        (format!("http.{}.extraHeader", self.server), &self.header)
    }
}

/// The header of a name and a password with a colon between them.
fn basic(login: impl AsRef<[u8]>) -> String {
    format!("Authorization: Basic {}", BASE64_STANDARD.encode(login))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_is_for_one_server_and_is_not_shown() {
        let api = "https://api.github.com";
        let login =
            Login::new(ForgeKind::Github, api, "https://github.com/a/b.git", ("GITHUB_TOKEN", "token")).unwrap();
        let header = "Authorization: Basic eC1hY2Nlc3MtdG9rZW46dG9rZW4=";
        assert_eq!(login.setting(), ("http.https://github.com/.extraHeader".to_owned(), header));
        assert!(!format!("{login:?}").contains("eC1h"));
        for other in [
            "git@github.com:a/b",
            "ssh://github.com/a/b",
            "/srv/x",
            "http://github.com/a/b",
            "https://me:x@github.com/a",
        ] {
            assert!(Login::new(ForgeKind::Github, api, other, ("GITHUB_TOKEN", "token")).is_none(), "{other}");
        }
        assert!(
            Login::new(ForgeKind::Gitea, "http://127.0.0.1:3000/api/v1", "http://127.0.0.1:3000/a/b", ("T", "t"))
                .is_some()
        );
    }

    #[test]
    fn a_login_in_an_address_is_taken_out_of_it() {
        for (address, rest, login) in [
            ("https://me:a%40b@host.org:8443/x/y.git", "https://host.org:8443/x/y.git", "me:a@b"),
            ("http://token@host/x", "http://host/x", "token:"),
            ("https://me:a@b@host/x@y", "https://host/x@y", "me:a@b"),
        ] {
            let (without, found) = Login::of_address(address).unwrap();
            assert_eq!((without.as_str(), found.variable()), (rest, None));
            assert_eq!(found.setting().1, format!("Authorization: Basic {}", BASE64_STANDARD.encode(login)));
            let key = found.setting().0;
            let server = key.strip_prefix("http.").and_then(|key| key.strip_suffix(".extraHeader")).unwrap();
            assert!(rest.starts_with(server) && server.ends_with('/'), "{server}");
        }
        for other in ["https://host/x@y", "ssh://git@host/x", "git@host:x", "/srv/me@x"] {
            assert!(Login::of_address(other).is_none(), "{other}");
        }
    }
}
