//! `refile demo`: the whole loop on a sample repository, with scripted agents.

mod sample;
mod report;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use refile_coordinator::{submission, view};
use refile_core::Task;
use refile_store::artifacts::Artifacts;
use refile_store::{Filter, OpenOptions, Store};
use refile_telemetry::Metrics;
use refile_worker::process::Guard;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::Ended;
use crate::arguments::DemoArguments;
use crate::context::command_with;
use crate::fleet::{Fleet, Parts, require};
use crate::output;

/// How long the demo may take; scripted agents need a few seconds.
const DEADLINE: Duration = Duration::from_mins(2);

/// Plays the demo.
pub(crate) async fn run(arguments: &DemoArguments, json: bool) -> anyhow::Result<Ended> {
    let dir = match &arguments.dir {
        Some(dir) => {
            std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
            if dir.read_dir()?.next().is_some() {
                bail!("{} is not empty; name a new folder", dir.display());
            }
            dir.canonicalize()?
        }
        // Kept: the commands that the demo prints work on it.
        None => tempfile::Builder::new().prefix("refile-demo-").tempdir()?.keep(),
    };
    if !json {
        output::line(
            "Refile's demo: a fleet in this process works on a sample repository. Its agents and its reviewer are",
        );
        output::line("scripts, not models: they read their prompts and play their parts. Everything else is real.");
        output::line(
            "The scripts run without a sandbox, since they are the demo's own; your fleet has one where it can.\n",
        );
    }
    sample::make(&dir)?;
    let (tasks, config) = play(&dir).await?;
    let tests = sample::run_tests_on_base(&dir)?;
    if json {
        let told: Vec<_> = tasks
            .iter()
            .map(|t| json!({ "id": t.id, "title": t.title, "outcome": t.state, "attempts": t.attempt_number() }))
            .collect();
        let open: Vec<_> = tasks.iter().flat_map(|t| t.open_escalations().map(|e| view::escalation(t, e))).collect();
        output::json(&json!({
            "repository": dir.join(sample::REPOSITORY),
            "base": config.repository.base,
            "tasks": told,
            "escalations": open,
            "scripted": true,
            "config": dir.join(refile_config::FILE_NAME),
            "tests": tests,
        }))?;
    } else {
        report::print(&dir, &tasks, &config, &tests)?;
    }
    Ok(Ended::Done)
}

/// Submits the tasks, runs the fleet until none is open, and gives them as they are then, in the order of submission.
async fn play(dir: &Path) -> anyhow::Result<(Vec<Task>, Arc<refile_config::Config>)> {
    // The environment is left out: a REFILE_STORE of the user's has nothing to do with the demo.
    let (config, _) = refile_config::load(Some(&dir.join(refile_config::FILE_NAME)), [], &[])?;
    let config = Arc::new(config);
    require(&config).await?;
    let store = refile_store::open(&config.store, &config.dir, OpenOptions::default()).await?;
    let new = sample::tasks()?
        .into_iter()
        .map(|request| submission::read(request, &config).map_err(anyhow::Error::msg))
        .collect::<Result<Vec<_>, _>>()?;
    submission::submit(store.as_ref(), &config, new).await?;
    let parts = Parts {
        config: config.clone(),
        store: store.clone(),
        artifacts: Artifacts::open(&config.artifacts, &config.dir)?,
        metrics: Metrics::new()?,
        // What is to be told of the sandbox the demo has told in its own words.
        guard: Guard::tried(&config).await?.0,
    };
    let shutdown = CancellationToken::new();
    let (fleet, _) = Fleet::start(parts, false, shutdown.clone()).await?;
    refile_telemetry::process::stop_on_signal(shutdown.clone(), refile_worker::process::kill_all)?;
    let progress = tokio::spawn(report::progress(store.clone(), shutdown.clone()));
    let drained = tokio::time::timeout(DEADLINE, fleet.drained()).await;
    let was_told_to_stop = shutdown.is_cancelled();
    fleet.stop().await?;
    progress.await?;
    if was_told_to_stop {
        bail!("the demo was stopped; what it did so far is in {}", dir.display());
    }
    let Ok(drained) = drained else {
        bail!(
            "the demo did not end within {} s; `{} task list` shows how far it came",
            DEADLINE.as_secs(),
            command_with(&dir.join(refile_config::FILE_NAME))
        );
    };
    drained?;
    Ok((in_order(store.as_ref()).await?, config))
}

async fn in_order(store: &dyn Store) -> anyhow::Result<Vec<Task>> {
    let mut tasks = store.list(&Filter::default(), None, 100).await?.tasks;
    tasks.reverse();
    Ok(tasks)
}
