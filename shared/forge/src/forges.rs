//! The forges of a configuration: one client for each API and token in the whole process, so that what one job learns of
//! a limit holds for all.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use refile_config::{Config, ForgeKind};
use refile_core::failure::FailureKind;

use crate::http::Http;
use crate::{Forge, ForgeError, Login, Place, Result, gitea, github, gitlab};

/// Reads an environment variable.
type Environment = Box<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// The forges that tasks' repositories lie on.
pub struct Forges {
    config: Arc<Config>,
    environment: Environment,
    open: Mutex<BTreeMap<(ForgeKind, String, String), Arc<Http>>>,
}

impl fmt::Debug for Forges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Forges").finish_non_exhaustive()
    }
}

impl Forges {
    /// Those of a configuration, with tokens from the process's environment.
    pub fn new(config: Arc<Config>) -> Self {
        Self::with(config, |name| std::env::var(name).ok())
    }

    /// The same, with tokens from elsewhere.
    pub fn with(config: Arc<Config>, environment: impl Fn(&str) -> Option<String> + Send + Sync + 'static) -> Self {
        Self { config, environment: Box::new(environment), open: Mutex::default() }
    }

    /// The project that a task's repository is.
    pub fn of(&self, repository: &str) -> Result<Arc<dyn Forge>> {
        let Place { kind, api, project, token_env } = Place::of(&self.config, repository)?;
        let http = self.http(kind, &api, &token_env)?;
        Ok(match kind {
            ForgeKind::Github => Arc::new(github::GitHub::new(http, &project)),
            ForgeKind::Gitea => Arc::new(gitea::Gitea::new(http, &project)),
            ForgeKind::Gitlab => Arc::new(gitlab::GitLab::new(http, &project)),
        })
    }

    /// How git gets into a repository over HTTP, where it is known which forge that lies on and there is a token.
    pub fn login(&self, repository: &str) -> Option<Login> {
        let place = Place::of(&self.config, repository).ok()?;
        let token = (self.environment)(&place.token_env)?;
        Login::new(place.kind, &place.api, repository, (&place.token_env, token.trim()))
            .filter(|_| !token.trim().is_empty())
    }

    fn http(&self, kind: ForgeKind, api: &str, token_env: &str) -> Result<Arc<Http>> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (kind, api.to_owned(), token_env.to_owned());
        if let Some(http) = open.get(&key) {
            return Ok(http.clone());
        }
        // A redirect would carry the token to another place.
        let client = reqwest::Client::builder()
            .user_agent(concat!("refile/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(Duration::from_secs(20))
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(|error| {
                ForgeError::new(FailureKind::Configuration, format!("no HTTP client can be made: {error}"))
            })?;
        let http = Arc::new(Http::new(client, kind, api, token_env, (self.environment)(token_env)));
        open.insert(key, http.clone());
        Ok(http)
    }
}
