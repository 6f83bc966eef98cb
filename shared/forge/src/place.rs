//! Which forge a repository lies on, where its API is, and what the project is called there.

use refile_config::{Config, ForgeKind};
use refile_core::failure::FailureKind;

use crate::ForgeError;

/// A project on a forge.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Place {
    /// What speaks there.
    pub kind: ForgeKind,
    /// The API's address, without a slash at its end.
    pub api: String,
    /// `owner/name`; on GitLab there may be groups in groups.
    pub project: String,
    /// The environment variable that holds the token.
    pub token_env: String,
}

impl Place {
    /// Where a task's repository lies. A token goes to a well-known forge or to the configured one, and nowhere else.
    pub fn of(config: &Config, repository: &str) -> Result<Self, ForgeError> {
        let section = &config.forge;
        let address = address(repository);
        let is_own = config.repository_url(&config.repository.url) == repository;
        let host = address.as_ref().map(|(host, _)| host.as_str()).unwrap_or_default();
        let known = known(host);
        let configured = section.base_url.as_deref().is_some_and(|base| {
            let there = host_of(base);
            is_own || there == host || there == format!("api.{host}")
        });
        let (kind, base) = match (section.kind, known, &section.base_url) {
            (Some(kind), _, Some(base)) if configured => (kind, base.clone()),
            (None, Some((kind, _)), Some(base)) if configured => (kind, base.clone()),
            (_, Some((kind, base)), _) => (kind, base.to_owned()),
            _ => return Err(unknown(repository)),
        };
        let own_project = section.project.clone().filter(|_| is_own);
        let project = own_project.or(address.map(|(_, project)| project)).ok_or_else(|| unknown(repository))?;
        let is_path = |part: &str| !part.is_empty() && !part.chars().all(|c| c == '.');
        let parts = project.split('/').count();
        if parts < 2 || (kind != ForgeKind::Gitlab && parts != 2) || !project.split('/').all(is_path) {
            return Err(unknown(repository));
        }
        let token_env = section.token_env.clone().unwrap_or_else(|| kind.token_env().to_owned());
        // A token that was named for another forge is not for this one.
        let token_env = if known.is_some() && !configured && section.kind.is_some_and(|k| k != kind) {
            kind.token_env().to_owned()
        } else {
            token_env
        };
        Ok(Self { kind, api: api(kind, &base), project, token_env })
    }

    /// The repository's name in idempotency keys: the forge's host and the project.
    pub fn name(&self) -> String {
        let host = host_of(&self.api);
        format!("{}/{}", host.strip_prefix("api.").unwrap_or(&host), self.project)
    }
}

fn unknown(repository: &str) -> ForgeError {
    let shown: String = without_password(repository).chars().take(200).collect();
    ForgeError::new(
        FailureKind::Configuration,
        format!(
            "it is not known which forge {shown} lies on; set `kind` and `base_url` in [forge], and `project` where the \
             repository's address does not end with owner/name"
        ),
    )
}

fn without_password(url: &str) -> String {
    match url.split_once("://") {
        Some((scheme, rest)) => {
            let end = rest.find('/').unwrap_or(rest.len());
            let start = rest[..end].rfind('@').map_or(0, |at| at + 1);
            format!("{scheme}://{}", &rest[start..])
        }
        None => url.to_owned(),
    }
}

/// Forges that everybody knows.
fn known(host: &str) -> Option<(ForgeKind, &'static str)> {
    match host {
        "github.com" | "ssh.github.com" => Some((ForgeKind::Github, "https://api.github.com")),
        "gitlab.com" | "altssh.gitlab.com" => Some((ForgeKind::Gitlab, "https://gitlab.com")),
        "codeberg.org" => Some((ForgeKind::Gitea, "https://codeberg.org")),
        _ => None,
    }
}

/// The API's address: a server's own is completed by the path that its kind has.
fn api(kind: ForgeKind, base: &str) -> String {
    let base = base.trim_end_matches('/');
    let has_path = base.split_once("://").is_some_and(|(_, rest)| rest.contains('/'));
    if has_path || host_of(base).starts_with("api.") {
        return base.to_owned();
    }
    let path = match kind {
        ForgeKind::Github => "/api/v3",
        ForgeKind::Gitea => "/api/v1",
        ForgeKind::Gitlab => "/api/v4",
    };
    format!("{base}{path}")
}

/// The host of a URL, in small letters and without a port.
fn host_of(url: &str) -> String {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = authority.rsplit('@').next().unwrap_or_default();
    host.split(':').next().unwrap_or_default().to_ascii_lowercase()
}

/// Host and project of a repository's address: `https://host/owner/name.git`, `ssh://git@host/owner/name`,
/// `git@host:owner/name`. Nothing for a path.
fn address(url: &str) -> Option<(String, String)> {
    let (host, path) = match url.split_once("://") {
        Some(("http" | "https" | "ssh" | "git", rest)) => (host_of(url), rest.split_once('/')?.1),
        Some(_) => return None,
        None => {
            let (host, path) = url.split_once(':').filter(|(host, _)| !host.contains('/'))?;
            (host_of(host), path)
        }
    };
    let path = path.trim_matches('/');
    let project = path.strip_suffix(".git").unwrap_or(path);
    (!host.is_empty() && !project.is_empty()).then(|| (host, project.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(kind: Option<ForgeKind>, base: Option<&str>, project: Option<&str>) -> Config {
        let mut config = Config::default();
        config.forge.kind = kind;
        config.forge.base_url = base.map(str::to_owned);
        config.forge.project = project.map(str::to_owned);
        config
    }

    #[track_caller]
    fn check(config: &Config, url: &str, api: &str, project: &str, token_env: &str) {
        let place = Place::of(config, url).unwrap();
        assert_eq!((place.api.as_str(), place.project.as_str(), place.token_env.as_str()), (api, project, token_env));
    }

    #[test]
    fn well_known_forges_are_known_by_the_address() {
        let none = config(None, None, None);
        for url in [
            "https://github.com/acme/widgets.git",
            "https://me:secret@GitHub.com/acme/widgets",
            "git@github.com:acme/widgets.git",
            "ssh://git@github.com/acme/widgets",
        ] {
            check(&none, url, "https://api.github.com", "acme/widgets", "GITHUB_TOKEN");
        }
        check(&none, "https://gitlab.com/a/b/c.git", "https://gitlab.com/api/v4", "a/b/c", "GITLAB_TOKEN");
        check(&none, "https://codeberg.org/a/b", "https://codeberg.org/api/v1", "a/b", "GITEA_TOKEN");
        assert_eq!(Place::of(&none, "git@github.com:a/b").unwrap().name(), "github.com/a/b");
    }

    #[test]
    fn a_server_of_ones_own_is_configured() {
        let own = config(Some(ForgeKind::Gitea), Some("https://git.example:3000/"), None);
        check(&own, "https://git.example/a/b.git", "https://git.example:3000/api/v1", "a/b", "GITEA_TOKEN");
        let path = config(Some(ForgeKind::Gitlab), Some("https://h/gitlab/api/v4"), Some("g/p"));
        let here = path.repository_url(".");
        check(&path, &here, "https://h/gitlab/api/v4", "g/p", "GITLAB_TOKEN");
    }

    #[test]
    fn a_token_goes_to_no_other_place() {
        let own = config(Some(ForgeKind::Gitea), Some("https://git.example"), Some("a/b"));
        for url in ["https://evil.example/a/b", "https://git.example.evil/a/b", "/srv/x", "file:///srv/x", "ext::sh"] {
            let error = Place::of(&own, url).unwrap_err();
            assert_eq!(error.kind, FailureKind::Configuration, "{url}");
        }
        let mut named = own;
        named.forge.token_env = Some("MY_GITEA".to_owned());
        check(&named, "https://github.com/a/b", "https://api.github.com", "a/b", "GITHUB_TOKEN");
        let error = Place::of(&named, "https://me:secret@evil.example/a/b").unwrap_err();
        assert!(!error.detail.contains("secret"), "{error}");
        for url in ["https://github.com/a", "https://github.com/a/../b", "https://github.com/../x"] {
            assert!(Place::of(&named, url).is_err(), "{url}");
        }
    }
}
