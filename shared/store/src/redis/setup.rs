//! What a server must be like before it is used.

use std::collections::HashMap;

use redis::Cmd;

use super::connection::Link;
use crate::{Result, StoreError};

/// The oldest version that has everything that the scripts use.
const OLDEST: (u32, u32) = (7, 0);

/// Holds that the server is new enough, may not evict keys, and keeps what it is told on disk. In a cluster every master
/// must be so.
pub(super) async fn require_usable(link: &Link, allow_volatile: bool) -> Result<()> {
    let mut info = Cmd::new();
    info.arg("INFO").arg("server");
    let infos: Vec<String> = link.query_nodes("info", &info).await?;
    for info in &infos {
        require_version(link, info)?;
    }
    let mut command = Cmd::new();
    command.arg("CONFIG").arg("GET").arg("maxmemory").arg("maxmemory-policy").arg("appendonly").arg("save");
    let configs: Vec<HashMap<String, String>> = match link.query_nodes("config", &command).await {
        Ok(configs) => configs,
        // A managed server may not tell.
        Err(StoreError::Engine { source, .. }) => {
            tracing::warn!(store = link.name(), error = %source, "the server does not tell its configuration: make sure that it has maxmemory-policy noeviction and appendonly yes");
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    configs.iter().try_for_each(|config| require_lasting(link, config, allow_volatile))
}

fn unsuitable(link: &Link, why: String) -> Result<()> {
    Err(StoreError::Unsuitable { store: link.name().to_owned(), why })
}

fn require_version(link: &Link, info: &str) -> Result<()> {
    let version = info.lines().find_map(|line| line.strip_prefix("redis_version:")).unwrap_or_default().trim();
    let mut parts = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    if (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) < OLDEST {
        return unsuitable(
            link,
            format!("it is version {version}; Refile needs Redis {}.{} or newer, or Valkey", OLDEST.0, OLDEST.1),
        );
    }
    Ok(())
}

fn require_lasting(link: &Link, config: &HashMap<String, String>, allow_volatile: bool) -> Result<()> {
    let get = |key: &str| config.get(key).map_or("", String::as_str);
    let problem = if get("maxmemory") != "0" && get("maxmemory-policy") != "noeviction" {
        format!(
            "it may evict keys (maxmemory-policy {}), and evicted tasks are lost; set maxmemory-policy noeviction",
            get("maxmemory-policy")
        )
    } else if get("appendonly") != "yes" && get("save").is_empty() {
        "it keeps nothing on disk, and a restart would lose every task; set appendonly yes".to_owned()
    } else {
        if get("appendonly") != "yes" {
            tracing::warn!(
                store = link.name(),
                "the server keeps snapshots only: a crash loses what came after the last; set appendonly yes"
            );
        }
        return Ok(());
    };
    if allow_volatile {
        tracing::warn!(store = link.name(), problem, "going on all the same, as --allow-volatile says");
        return Ok(());
    }
    unsuitable(link, format!("{problem}, or start with --allow-volatile"))
}
