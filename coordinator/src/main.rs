//! The coordinator as a process of its own.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use clap::Parser;
use refile_coordinator::calibration::keep_figures;
use refile_coordinator::{Coordinator, api};
use refile_store::OpenOptions;
use refile_telemetry::{Health, Metrics, logging, process};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// Decides what follows from what coders and reviewers report. Any number may run on one store.
#[derive(Debug, Parser)]
#[command(name = "refile-coordinator", version)]
struct Arguments {
    /// The configuration; `refile.toml` here by default
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The store, in place of the configuration's
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// Where to serve the API; loopback only
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// Serve metrics and probes alone on this address too
    #[arg(long, value_name = "ADDRESS")]
    metrics_addr: Option<String>,
    /// Take a Redis server that may evict keys or keeps nothing on disk
    #[arg(long)]
    allow_volatile: bool,
}

/// Most of the work is small texts that come and go; this allocator is made for that.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

// One thread: the work waits for others, and handing it between threads cost more than it gained. Agents are processes.
#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run(Arguments::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => process::failed(error.as_ref()),
    }
}

async fn run(arguments: Arguments) -> anyhow::Result<()> {
    logging::init(false);
    process::install_tls();
    let mut flags = Vec::new();
    flags.extend(arguments.store.map(|url| ("store", url)));
    flags.extend(arguments.listen.map(|address| ("coordinator.listen", address)));
    let (config, sources) = refile_config::load(arguments.config.as_deref(), refile_config::environment()?, &flags)?;
    config.warnings().iter().chain(sources.unread()).for_each(|warning| tracing::warn!("{warning}"));
    let metrics = Metrics::new()?;
    let options = OpenOptions {
        allow_volatile: arguments.allow_volatile,
        observer: Some(process::observer(&metrics)),
        ..OpenOptions::default()
    };
    let store = refile_store::open(&config.store, &config.dir, options).await?;
    let coordinator = Coordinator {
        store,
        config: Arc::new(config),
        metrics,
        health: Health::default(),
        name: process::unique_name("coordinator"),
    };
    let listener = coordinator.listen().await?;
    tracing::info!(address = %listener.local_addr()?, name = coordinator.name, "the coordinator is up");
    let shutdown = CancellationToken::new();
    if let Some(address) = arguments.metrics_addr {
        let listener = TcpListener::bind(&address).await.with_context(|| format!("cannot listen on {address}"))?;
        let (app, stopped) = (api::metrics_router(coordinator.clone()), shutdown.clone().cancelled_owned());
        tokio::spawn(async move { axum::serve(listener, app).with_graceful_shutdown(stopped).await });
    }
    process::stop_on_signal(shutdown.clone(), || {})?;
    let (store, metrics) = (coordinator.store.clone(), coordinator.metrics.clone());
    // It is workers that know git: reverts are known to `refile calibration` and `refile up`.
    let no_git = |_, _| std::future::ready(Err("a coordinator does not look into git".to_owned()));
    let figures = keep_figures(store.as_ref(), &metrics, &shutdown, no_git);
    tokio::join!(coordinator.run(Some(listener), shutdown.clone()), figures);
    tracing::info!("the coordinator has stopped");
    Ok(())
}
