//! A worker as a process: what it is made of, what it checks before it starts, and how it stops.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, bail};
use clap::Parser;
use refile_config::{Agent, Config};
use refile_core::Queue;
use refile_store::OpenOptions;
use refile_store::artifacts::Artifacts;
use refile_telemetry::{Health, Metrics, logging, process};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::agent::preset::known;
use crate::llm::{Client, key};
use crate::pool;
use crate::process::Guard;
use crate::worker::{Role, Worker};
use crate::workspace::Workspace;

/// Programs whose first argument is a program's file.
const INTERPRETERS: [&str; 7] = ["python3", "python", "sh", "bash", "node", "ruby", "perl"];

/// The arguments of `refile-coder` and `refile-reviewer`.
#[derive(Debug, Parser)]
#[command(version)]
pub struct Arguments {
    /// The configuration; `refile.toml` here by default
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The store, in place of the configuration's
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// Jobs at once; the configuration's `workers.coders` or `workers.reviewers` by default
    #[arg(long, value_name = "N")]
    concurrency: Option<usize>,
    /// The queues to serve: code, review, land
    #[arg(long, value_name = "QUEUE", value_delimiter = ',', value_parser = parse_queue)]
    queues: Vec<Queue>,
    /// Serve metrics and probes on this address
    #[arg(long, value_name = "ADDRESS")]
    metrics_addr: Option<String>,
    /// Take a Redis server that may evict keys or keeps nothing on disk
    #[arg(long)]
    allow_volatile: bool,
}

fn parse_queue(name: &str) -> Result<Queue, String> {
    Queue::parse(name).ok_or_else(|| format!("`{name}` is not a queue; there are code, review and land"))
}

/// Runs a worker until a signal stops it.
pub async fn serve(role: Role, arguments: Arguments) -> anyhow::Result<()> {
    logging::init(false);
    process::install_tls();
    let flags: Vec<_> = arguments.store.map(|url| ("store", url)).into_iter().collect();
    let (config, sources) = refile_config::load(arguments.config.as_deref(), refile_config::environment()?, &flags)?;
    sources.unread().iter().for_each(|variable| tracing::warn!("{variable}"));
    require_ready(&config, role).await?;
    if role != Role::Reviewer && arguments.queues.contains(&Queue::Review) {
        require_ready(&config, Role::Reviewer).await?;
    }
    config.warnings().iter().for_each(|warning| tracing::warn!("{warning}"));
    let guard = Guard::start(&config).await?;
    let metrics = Metrics::new()?;
    let options = OpenOptions {
        allow_volatile: arguments.allow_volatile,
        observer: Some(process::observer(&metrics)),
        ..OpenOptions::default()
    };
    let concurrency = match role {
        Role::Coder => config.workers.coders,
        Role::Reviewer => config.workers.reviewers,
    };
    let worker = Worker {
        store: refile_store::open(&config.store, &config.dir, options).await?,
        artifacts: Artifacts::open(&config.artifacts, &config.dir)?,
        workspace: Workspace::open(&config.path(&config.workers.dir))?.guarded(guard, config.workspace.max_bytes),
        client: Client::new()?.with_metrics(&metrics).with_prices(&config.prices),
        config: Arc::new(config),
        metrics,
        health: Health::default(),
        name: process::unique_name(role.as_str()),
        role,
        queues: if arguments.queues.is_empty() { role.queues() } else { arguments.queues },
        concurrency: arguments.concurrency.unwrap_or(concurrency).max(1),
    };
    let shutdown = CancellationToken::new();
    if let Some(address) = arguments.metrics_addr {
        let listener = TcpListener::bind(&address).await.with_context(|| format!("cannot listen on {address}"))?;
        tracing::info!(address = %listener.local_addr()?, "serving metrics and probes");
        let (registry, health) = (worker.metrics.registry.clone(), worker.health.clone());
        tokio::spawn(refile_telemetry::http::serve(listener, registry, health, shutdown.clone().cancelled_owned()));
    }
    process::stop_on_signal(shutdown.clone(), crate::process::kill_all)?;
    tracing::info!(name = worker.name, concurrency = worker.concurrency, "the {} is up", role.as_str());
    let ended = pool::run(Arc::new(worker.pool()), shutdown).await;
    tracing::info!("the {} has stopped", role.as_str());
    Ok(ended?)
}

/// Holds that everything that a worker of this role would run is there, before it claims a job that it cannot do.
pub async fn require_ready(config: &Config, role: Role) -> anyhow::Result<()> {
    crate::git::require_version().await?;
    let commands: Vec<(String, Vec<String>)> = match role {
        Role::Coder if config.agents.is_empty() => bail!(
            "no agent is configured; add to the configuration:\n\n  [agents.NAME]\n  command = [\"PROGRAM\", \"ARGUMENT\"]\n\n`refile init` writes a start"
        ),
        Role::Coder => config
            .agents
            .iter()
            .map(|(name, agent)| Ok((format!("agents.{name}"), programs(agent)?)))
            .collect::<anyhow::Result<_>>()?,
        Role::Reviewer if config.reviewers.is_empty() => bail!(
            "no reviewer is configured; add to the configuration:\n\n  [reviewers.NAME]\n  command = [\"PROGRAM\", \"ARGUMENT\"]\n\n`refile init` writes a start"
        ),
        Role::Reviewer => config
            .reviewers
            .iter()
            .filter(|(_, r)| !r.command.is_empty())
            .map(|(name, r)| (format!("reviewers.{name}"), r.command.clone()))
            .collect(),
    };
    if role == Role::Reviewer {
        require_keys(config)?;
    }
    if role == Role::Coder {
        require_keys_of_agents(config)?;
    }
    for (section, command) in commands {
        if let Some(missing) = missing(config, &command) {
            bail!("{section}.command: {missing}");
        }
    }
    Ok(())
}

/// What a command lacks to be run, and what to do about it.
pub fn missing(config: &Config, command: &[String]) -> Option<String> {
    let program = command.first()?;
    if !is_there(config, program) {
        return Some(format!("the program `{program}` is not there; install it, or name its path"));
    }
    // `python3 agent.py`: without the file the interpreter would fail at each attempt.
    let file = command.get(1).filter(|file| INTERPRETERS.contains(&program.as_str()) && !file.starts_with('-'))?;
    let lacks_file = !config.path(file).is_file();
    lacks_file.then(|| format!("the file `{file}` is not there; relative paths start at the configuration's folder"))
}

/// Holds that the key of each provider is there that a reviewer may call. Without it every review would fail.
fn require_keys(config: &Config) -> anyhow::Result<()> {
    for (provider, reviewer) in config.providers_asked() {
        if let Some(Err(missing)) = config.providers.get(provider).map(key) {
            bail!("reviewers.{reviewer} asks the provider `{provider}`, and {}", missing.detail);
        }
    }
    Ok(())
}

/// Holds that the keys are there of the models that agents work with which may get a job.
fn require_keys_of_agents(config: &Config) -> anyhow::Result<()> {
    for name in config.policy().ladder {
        let provider = config.agents.get(&name).and_then(|agent| config.providers.get(agent.provider.as_ref()?));
        if let Some(Err(failure)) = provider.map(key) {
            bail!("agents.{name}: {}", failure.detail);
        }
    }
    Ok(())
}

/// The program of an agent and its arguments; of a preset the program that its command needs.
fn programs(agent: &Agent) -> anyhow::Result<Vec<String>> {
    match agent.preset {
        Some(preset) if agent.command.is_empty() => Ok(vec![known(preset)?.program]),
        _ => Ok(agent.command.clone()),
    }
}

/// Whether a program can be found: by its path, from the configuration's folder, or on PATH.
pub fn is_there(config: &Config, program: &str) -> bool {
    if program.contains('/') {
        return config.path(program).is_file();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}
