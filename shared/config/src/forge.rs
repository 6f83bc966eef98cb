//! The forge that repositories lie on: where its API is, and what the fleet does there.

use serde::{Deserialize, Serialize};

use crate::duration::Span;

/// The kinds of forges.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ForgeKind {
    /// GitHub, in the cloud or a server of one's own.
    Github,
    /// Gitea and Forgejo.
    Gitea,
    /// GitLab, in the cloud or a server of one's own.
    Gitlab,
}

impl ForgeKind {
    /// Every kind, for tables and tests.
    pub const ALL: [Self; 3] = [Self::Github, Self::Gitea, Self::Gitlab];

    /// The name in the configuration and in the webhooks' addresses.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Github => "github",
            Self::Gitea => "gitea",
            Self::Gitlab => "gitlab",
        }
    }

    /// Reads the name; `None` for any other text.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == text)
    }

    /// The environment variable that holds the token where nothing else is said.
    pub fn token_env(self) -> &'static str {
        match self {
            Self::Github => "GITHUB_TOKEN",
            Self::Gitea => "GITEA_TOKEN",
            Self::Gitlab => "GITLAB_TOKEN",
        }
    }
}

/// Who merges a pull request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Merging {
    /// People, on the forge.
    #[default]
    Manual,
    /// The fleet, as soon as the forge lets it.
    Auto,
}

/// The forge that repositories lie on. github.com, gitlab.com and codeberg.org are known by the repository's address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ForgeSection {
    /// `github`, `gitea` (Forgejo too) or `gitlab`; guessed from the repository's address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<ForgeKind>,
    /// Where it is: the server's address, or that of its API.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base_url: Option<String>,
    /// The project there (`owner/name`) of `repository.url`, where its address does not tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
    /// The environment variable that holds the token; `GITHUB_TOKEN`, `GITEA_TOKEN` or `GITLAB_TOKEN` by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_env: Option<String>,
    /// The environment variable that holds the secret of the webhooks; without it none is taken.
    pub webhook_secret_env: String,
    /// Open issues with this label become tasks; none do by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// How often the forge is looked at.
    pub poll: Span,
}

impl Default for ForgeSection {
    fn default() -> Self {
        Self {
            kind: None,
            base_url: None,
            project: None,
            token_env: None,
            webhook_secret_env: "REFILE_WEBHOOK_SECRET".to_owned(),
            label: None,
            poll: Span::seconds(60),
        }
    }
}

/// Holds what no single key can say.
pub(crate) fn check(forge: &ForgeSection) -> Result<(), String> {
    if forge.poll < Span::seconds(1) {
        return Err("forge.poll must be at least 1s".to_owned());
    }
    if let Some(base) = &forge.base_url {
        let plain = base.starts_with("http://") || base.starts_with("https://");
        if !plain || base.contains(['@', '?', '#']) || base.contains(char::is_whitespace) {
            return Err(
                "forge.base_url must be an http or https address without a name, a password or a query".to_owned()
            );
        }
    }
    let part_is_fine = |part: &str| {
        !part.is_empty()
            && part.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
            && !part.chars().all(|c| c == '.')
    };
    match &forge.project {
        Some(project) if !project.contains('/') || !project.split('/').all(part_is_fine) => {
            Err(format!("forge.project is `{project}`; write it as `owner/name`"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::tests::{check_error, load_text};
    use crate::schema::Strategy;

    #[test]
    fn a_forge_is_described_by_file_and_environment() {
        let text = "[land]\nstrategy = \"pull_request\"\nmerge = \"auto\"\n[forge]\nkind = \"gitea\"\n\
                    base_url = \"https://git.example\"\nproject = \"a/b\"\npoll = \"5s\"\n";
        let (config, _) = load_text(text, &[("REFILE_FORGE_LABEL", "refile")], &[]).unwrap();
        assert_eq!((config.land.strategy, config.land.merge), (Strategy::PullRequest, Merging::Auto));
        assert_eq!(config.forge.kind, Some(ForgeKind::Gitea));
        assert_eq!((config.forge.label.as_deref(), config.forge.poll), (Some("refile"), Span::seconds(5)));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        check_error("[forge]\nkind = \"gitbucket\"\n", &["gitbucket", "gitea"]);
        check_error("[forge]\ntoken = \"x\"\n", &["token", "did you mean `token_env`?"]);
        check_error("[forge]\nbase_url = \"https://me:secret@h\"\n", &["forge.base_url"]);
        check_error("[forge]\nproject = \"a/../b\"\n", &["owner/name"]);
        check_error("[forge]\npoll = \"10ms\"\n", &["forge.poll"]);
        check_error("[land]\nmerge = \"always\"\n", &["always"]);
    }
}
