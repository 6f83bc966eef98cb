//! How git itself gets into a repository over HTTP: with the forge's token, which never stands in an address, an argument or
//! a file.

use std::fmt;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use refile_config::ForgeKind;

/// A login for the repositories of one server.
#[derive(Clone)]
pub struct Login {
    server: String,
    header: String,
    variable: String,
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
        let basic = BASE64_STANDARD.encode(format!("{name}:{token}"));
        let (server, header) = (format!("{scheme}://{host}/"), format!("Authorization: Basic {basic}"));
        Some(Self { server, header, variable: variable.to_owned() })
    }

    /// The environment variable that holds the token.
    pub fn variable(&self) -> &str {
        &self.variable
    }

    /// Git's setting for it and the setting's value.
    pub fn setting(&self) -> (String, &str) {
        (format!("http.{}.extraHeader", self.server), &self.header)
    }
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
}
