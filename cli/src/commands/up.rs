//! `refile up`: the whole fleet in this process.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use refile_core::decide::What;
use refile_core::{Queue, TaskState};
use refile_store::{OpenOptions, Stats, Store};
use refile_telemetry::{Metrics, process};
use refile_worker::process::Guard;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::Ended;
use crate::arguments::UpArguments;
use crate::context::Context;
use crate::fleet::{Fleet, Parts, proposed, require, tasks, waits};
use crate::output::{self, DIM, styled, untrusted};

/// How often the line that tells the progress is renewed.
const RENEW: Duration = Duration::from_millis(500);

/// Runs the fleet until a signal, or until no work is left.
pub(crate) async fn run(context: &Context, arguments: &UpArguments) -> anyhow::Result<Ended> {
    require(&context.config).await?;
    let metrics = Metrics::new()?;
    let options = OpenOptions { observer: Some(process::observer(&metrics)), ..OpenOptions::default() };
    let store = context.store_with(options).await?;
    let guard = Guard::start(&context.config).await?;
    if std::io::stderr().is_terminal() && guard.is_sandboxed() {
        // That there is none is a warning, which is shown everywhere.
        output::note(
            "the sandbox works: agents, gates and command reviewers can write nothing but their tree, a home and a /tmp of \
             their own and what `writable` names; the network is for agents and what has network = true",
        );
    }
    let config = context.config.clone();
    let parts = Parts { config, store: store.clone(), artifacts: context.artifacts()?, metrics, guard };
    let shutdown = CancellationToken::new();
    let (fleet, address) = Fleet::start(parts, true, shutdown.clone()).await?;
    process::stop_on_signal(shutdown.clone(), refile_worker::process::kill_all)?;
    if let Some(address) = address {
        tracing::info!(%address, "the fleet is up");
        if std::io::stderr().is_terminal() {
            output::note(format!("the fleet is up; API and metrics at http://{address}; ctrl-c stops it"));
        }
    }
    let watching = tokio::spawn(watch(store, shutdown.clone()));
    let drained = if arguments.drain {
        fleet.drained().await
    } else {
        shutdown.cancelled().await;
        Ok(())
    };
    let was_told_to_stop = shutdown.is_cancelled();
    let stats = fleet.stop().await?;
    watching.await?;
    report(context, &stats)?;
    drained?;
    let waits = tasks(&stats, TaskState::Escalated) + proposed(&stats) > 0;
    Ok(if arguments.drain && waits && !was_told_to_stop { Ended::Waiting } else { Ended::Done })
}

/// Says where the fleet's tasks stand.
fn report(context: &Context, stats: &Stats) -> anyhow::Result<()> {
    let counts: serde_json::Map<String, serde_json::Value> =
        TaskState::ALL.iter().map(|s| (s.to_string(), json!(tasks(stats, *s)))).collect();
    if context.json {
        return output::json(&counts);
    }
    let said: Vec<String> = TaskState::ALL
        .iter()
        .map(|s| (s, tasks(stats, *s)))
        .filter(|(_, n)| *n > 0)
        .map(|(s, n)| format!("{n} {s}"))
        .collect();
    output::line(if said.is_empty() { "no tasks".to_owned() } else { said.join(", ") });
    if proposed(stats) > 0 {
        output::note(styled(DIM, format!("{} of the open ones wait for people on the forge", proposed(stats))));
    }
    if tasks(stats, TaskState::Escalated) > 0 {
        output::note(styled(DIM, format!("`{} escalation list` shows what waits for a person", context.command())));
    }
    Ok(())
}

/// On a terminal: a line that tells the progress, and a line for each thing worth telling. Elsewhere the log tells it.
async fn watch(store: std::sync::Arc<dyn Store>, shutdown: CancellationToken) {
    if !std::io::stderr().is_terminal() {
        return;
    }
    let bar = ProgressBar::new_spinner();
    bar.set_style(ProgressStyle::default_spinner());
    let mut cursor = newest(store.as_ref()).await;
    loop {
        // Looked at before the events are read, so that those of the very end are told too.
        let is_last = shutdown.is_cancelled();
        if let Ok(stats) = store.stats().await {
            let waits = waits(store.as_ref(), &stats).await.map(|waits| format!("\n{waits}")).unwrap_or_default();
            bar.set_message(progress(&stats) + &waits);
        }
        bar.tick();
        for event in store.events(&cursor, 1_000).await.unwrap_or_default() {
            if is_worth_telling(event.notice.what) {
                let detail = untrusted(&event.notice.detail).replace('\n', " ");
                bar.println(format!(
                    "{}  attempt {}  {}  {detail}",
                    event.task, event.notice.attempt, event.notice.what
                ));
            }
            cursor = event.cursor;
        }
        if is_last {
            break;
        }
        tokio::select! { () = shutdown.cancelled() => {}, () = tokio::time::sleep(RENEW) => {} }
    }
    bar.finish_and_clear();
}

/// The end of the event log.
async fn newest(store: &dyn Store) -> String {
    let mut cursor = String::new();
    while let Some(last) = store.events(&cursor, 1_000).await.ok().and_then(|events| events.into_iter().last()) {
        cursor = last.cursor;
    }
    cursor
}

fn is_worth_telling(what: What) -> bool {
    matches!(
        what,
        What::Refiled | What::AgentFailed | What::ReviewFailed | What::LandingFailed | What::Escalated | What::Finished
    )
}

fn progress(stats: &Stats) -> String {
    let leases = |queue| stats.leases.get(&queue).copied().unwrap_or(0);
    let ready: u64 = stats.depth.values().sum();
    format!(
        "open {}  coding {}  reviewing {}  landing {}  queued {}  merged {}  escalated {}",
        tasks(stats, TaskState::Open),
        leases(Queue::Code),
        leases(Queue::Review),
        leases(Queue::Land),
        ready + stats.delayed,
        tasks(stats, TaskState::Merged),
        tasks(stats, TaskState::Escalated),
    )
}
