//! The configuration and the store that a command works on.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::bail;
use refile_config::show::{Source, Sources};
use refile_config::{Config, FILE_NAME};
use refile_core::{Task, TaskId};
use refile_store::artifacts::Artifacts;
use refile_store::{Filter, OpenOptions, Store};

use crate::arguments::Global;

/// Tasks that are looked through at a time for an id that was not given whole.
const PAGE: usize = 500;

/// A wrong use that only shows when the input is read.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct UsageError(pub(crate) String);

/// What a command works on.
#[derive(Debug, Clone)]
pub(crate) struct Context {
    pub(crate) config: Arc<Config>,
    pub(crate) sources: Sources,
    pub(crate) json: bool,
    file: Option<PathBuf>,
    allow_volatile: bool,
}

impl Context {
    /// Reads the configuration.
    pub(crate) fn new(global: &Global) -> anyhow::Result<Self> {
        let flags: Vec<_> = global.store.clone().map(|url| ("store", url)).into_iter().collect();
        let (config, sources) = refile_config::load(global.config.as_deref(), refile_config::environment()?, &flags)?;
        sources.unread().iter().for_each(|variable| tracing::warn!("{variable}"));
        Ok(Self {
            config: Arc::new(config),
            sources,
            json: global.json,
            file: global.config.clone(),
            allow_volatile: global.allow_volatile,
        })
    }

    /// How this program is called on the same configuration, for commands that are printed to be copied.
    pub(crate) fn command(&self) -> String {
        self.file.as_ref().map_or_else(program, |file| command_with(file))
    }

    /// Opens the store.
    pub(crate) async fn store(&self) -> anyhow::Result<Arc<dyn Store>> {
        self.store_with(OpenOptions::default()).await
    }

    /// Opens the store for a look at it. In a folder without a configuration a look must not make an empty store.
    pub(crate) async fn existing_store(&self) -> anyhow::Result<Arc<dyn Store>> {
        let is_default = self.sources.get("store") == Source::Default && !self.config.path(FILE_NAME).exists();
        if is_default && self.file.is_none() && !self.config.path(".refile").exists() {
            bail!(
                "there is no fleet here: no {FILE_NAME}; `refile init` writes one, --config names one that is elsewhere"
            );
        }
        self.store().await
    }

    /// Opens the store, and tells its operations to an observer.
    pub(crate) async fn store_with(&self, options: OpenOptions) -> anyhow::Result<Arc<dyn Store>> {
        let options = OpenOptions { allow_volatile: self.allow_volatile, ..options };
        Ok(refile_store::open(&self.config.store, &self.config.dir, options).await?)
    }

    /// Opens the artifact store.
    pub(crate) fn artifacts(&self) -> anyhow::Result<Artifacts> {
        Ok(Artifacts::open(&self.config.artifacts, &self.config.dir)?)
    }
}

/// Finds the task of an id, or of the beginning of one.
pub(crate) async fn find_task(store: &dyn Store, given: &str) -> anyhow::Result<Task> {
    match look_for_task(store, given).await? {
        Some(task) => Ok(task),
        None => bail!("there is no task {given}; `refile task list` shows what there is"),
    }
}

/// The same, where there may be none.
pub(crate) async fn look_for_task(store: &dyn Store, given: &str) -> anyhow::Result<Option<Task>> {
    let id = TaskId::parse(given).map_err(|error| UsageError(error.to_string()))?;
    if let Some(found) = store.tasks(std::slice::from_ref(&id)).await?.pop().flatten() {
        return Ok(Some(found.task));
    }
    let mut found: Vec<Task> = Vec::new();
    let mut cursor = None;
    let filter = Filter { text: Some(given.to_owned()), ..Filter::default() };
    loop {
        let page = store.list(&filter, cursor, PAGE).await?;
        found.extend(page.tasks.into_iter().filter(|t| t.id.as_str().starts_with(given)));
        cursor = page.next;
        if cursor.is_none() || found.len() > 1 {
            break;
        }
    }
    match found.len() {
        0 => Ok(None),
        1 => Ok(Some(found.remove(0))),
        _ => bail!("more than one task begins with {given}: {}, {}, …", found[0].id, found[1].id),
    }
}

/// How this program is called on a configuration.
pub(crate) fn command_with(file: &Path) -> String {
    format!("{} --config {}", program(), quoted(file))
}

/// How this program is called: by its name where a shell would find this very file by it, else by its path.
pub(crate) fn program() -> String {
    const NAME: &str = "refile";
    let Ok(own) = std::env::current_exe() else { return NAME.to_owned() };
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|dir| dir.join(NAME)).find(|file| file.is_file());
    let is_own =
        found.and_then(|file| file.canonicalize().ok()).is_some_and(|file| own.canonicalize().ok() == Some(file));
    if is_own { NAME.to_owned() } else { quoted(&own) }
}

/// A path as a shell takes it.
fn quoted(path: &Path) -> String {
    let path = path.display().to_string();
    let is_plain = path.chars().all(|c| c.is_alphanumeric() || "/._-+:@".contains(c));
    if is_plain { path } else { format!("'{}'", path.replace('\'', r"'\''")) }
}

/// Who is at the keyboard.
pub(crate) fn user() -> String {
    ["USER", "LOGNAME"]
        .iter()
        .find_map(|name| std::env::var(name).ok())
        .filter(|name| !name.is_empty())
        // Services and containers often have neither, and the audit log should name somebody all the same.
        .or_else(|| {
            let told = std::process::Command::new("id").arg("-un").output().ok().filter(|o| o.status.success())?;
            Some(String::from_utf8_lossy(&told.stdout).trim().to_owned()).filter(|name| !name.is_empty())
        })
        .unwrap_or_else(|| "unknown".to_owned())
}
