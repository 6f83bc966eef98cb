//! `refile bench`: how fast the queue is. Tasks live their whole life through the real client, store and coordinator, with
//! agents that do nothing.
//!
//! # Layout
//! - `load`: the tasks, and the agents that do nothing
//! - `latency`: times of many processes as one histogram
//! - `submitter`, `backlog`, `parts`: who submits, decides and works
//! - `counting`: when the last task has ended
//! - `limit`: the same stages on bare streams
//! - `member`, `child`, `crew`: each of those as a process, and how they are led
//! - `on_redis`, `on_sqlite`: what is run and measured on each engine
//! - `report`: the figures for people and scripts

mod load;
mod latency;
mod submitter;
mod backlog;
mod parts;
mod counting;
mod limit;
mod member;
mod child;
mod crew;
mod on_redis;
mod on_sqlite;
mod report;

use std::time::Duration;

use anyhow::bail;
use indicatif::{ProgressBar, ProgressStyle};
use refile_core::TaskState;
use refile_store::{Stats, Store};

use crate::Ended;
use crate::arguments::{BenchArguments, Global};
use crate::context::UsageError;
use crate::fleet::tasks as count;
pub(crate) use child::run as run_part;
use latency::{Counts, Summary};
use load::Load;
use member::{Figures, Kind, Spec};
use report::{Claims, Cpu, Report};

/// Tasks of the run of its own that tells how much room a task takes.
const SAMPLE: u64 = 5_000;

/// What is run, and where.
#[derive(Debug, Clone)]
struct Plan {
    url: String,
    allow_volatile: bool,
    load: Load,
    workers: usize,
    limit: bool,
    /// Open tasks beside those of the load.
    backlog: u64,
    /// Whether the keys of earlier runs stay.
    keep: bool,
}

/// Runs the benchmark.
pub(crate) async fn run(global: &Global, arguments: BenchArguments) -> anyhow::Result<Ended> {
    let load = Load {
        tasks: arguments.tasks,
        payload: arguments.payload as usize,
        concurrency: arguments.concurrency as usize,
        rejected: arguments.rejected,
        rate: arguments.rate,
    };
    let plan = Plan {
        url: global.store.clone().unwrap_or_default(),
        allow_volatile: global.allow_volatile,
        load,
        workers: arguments.workers as usize,
        limit: arguments.limit,
        backlog: arguments.backlog,
        keep: arguments.keep,
    };
    let report = match plan.url.split_once(':') {
        Some(("redis" | "rediss", _)) => on_redis::run(&plan).await?,
        _ if plan.limit => {
            return Err(
                UsageError("--limit compares with bare Redis streams: give --store redis://…".to_owned()).into()
            );
        }
        _ if plan.keep => {
            return Err(UsageError("--keep is for a Redis server: give --store redis://…".to_owned()).into());
        }
        None if plan.url.is_empty() => on_sqlite::run(&plan, None).await?,
        Some(("sqlite", path)) if !path.is_empty() => on_sqlite::run(&plan, Some(path.as_ref())).await?,
        _ => {
            let url = refile_store::error::without_password(&plan.url);
            return Err(UsageError(format!("`{url}` is not a store; write sqlite:PATH or redis://HOST:PORT/DB")).into());
        }
    };
    report.print(global.json)?;
    Ok(Ended::Done)
}

impl Plan {
    fn spec(&self, kind: Kind, tasks: u64) -> Spec {
        let load = Load { tasks, ..self.load };
        Spec { kind, store: self.url.clone(), allow_volatile: self.allow_volatile, load }
    }

    /// The coordinator and the workers for so many tasks.
    fn fleet(&self, tasks: u64) -> Vec<Spec> {
        let workers = [Kind::Coder, Kind::Reviewer].into_iter().flat_map(|k| std::iter::repeat_n(k, self.workers));
        std::iter::once(Kind::Coordinator).chain(workers).map(|kind| self.spec(kind, tasks)).collect()
    }

    /// The same, and the submitter.
    fn everybody(&self) -> Vec<Spec> {
        let mut specs = self.fleet(self.load.tasks);
        specs.push(self.spec(Kind::Submitter, self.load.tasks));
        specs
    }

    /// How many tasks the run has that tells how much room a task takes. They come as fast as they are taken.
    fn sample(&self) -> Self {
        let load = Load { tasks: self.load.tasks.min(SAMPLE), rate: None, ..self.load };
        Self { load, ..self.clone() }
    }

    /// What the members saw, as figures. The engine's own are added by whoever knows the engine.
    fn report(&self, store: String, seen: &[(Kind, Figures)]) -> anyhow::Result<Report> {
        let of = |kind: Kind| seen.iter().filter(move |(k, _)| *k == kind).map(|(_, figures)| figures);
        let first_us = of(Kind::Submitter).map(|f| f.first_us).min().unwrap_or(0);
        let last_us = of(Kind::Coordinator).map(|f| f.last_us).max().unwrap_or(0);
        let seconds = Duration::from_micros(last_us.saturating_sub(first_us)).as_secs_f64().max(1e-6);
        let claims = |kind| of(kind).map(|f| f.claims).sum();
        let per_1000 = |cpu_s: f64| cpu_s * 1_000.0 / self.load.tasks as f64;
        let cpu = |kind| per_1000(of(kind).map(|f| f.cpu_s).sum());
        let summary = |which: fn(&Figures) -> &Counts| Summary::of(seen.iter().map(|(_, f)| which(f)));
        Ok(Report {
            store,
            tasks: self.load.tasks,
            seconds,
            tasks_per_s: self.load.tasks as f64 / seconds,
            submit_to_claim_ms: summary(|f| &f.submit_to_claim)?,
            outcome_to_claim_ms: summary(|f| &f.outcome_to_claim)?,
            claim_ms: summary(|f| &f.claim)?,
            claims: Claims { code: claims(Kind::Coder), review: claims(Kind::Reviewer) },
            limit_tasks_per_s: None,
            ratio: None,
            cpu_s_per_1000: Cpu {
                coordinator: Some(cpu(Kind::Coordinator)),
                workers: Some(cpu(Kind::Coder) + cpu(Kind::Reviewer)),
                submitter: Some(cpu(Kind::Submitter)),
                ..Cpu::default()
            },
            redis: None,
            sqlite: None,
            backlog: self.backlog,
            payload: self.load.payload,
            workers: self.workers,
            concurrency: self.load.concurrency,
            rejected: self.load.rejected,
            rate: self.load.rate,
        })
    }
}

/// Holds that every task came to its good end since `before`: figures of a run that went wrong say nothing.
async fn require_all_accepted(store: &dyn Store, before: &Stats, tasks: u64) -> anyhow::Result<()> {
    let stats: Stats = store.stats().await?;
    let since = |state| count(&stats, state) - count(before, state);
    let accepted = since(TaskState::Accepted);
    if u64::try_from(accepted) != Ok(tasks) {
        let escalated = since(TaskState::Escalated);
        bail!("of {tasks} tasks {accepted} were accepted and {escalated} escalated: the figures would say nothing");
    }
    Ok(())
}

/// A line on the terminal that tells how far a run is; nothing where standard error is no terminal.
fn progress(what: &'static str, tasks: u64) -> ProgressBar {
    let bar = ProgressBar::new(tasks);
    if let Ok(style) = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len}") {
        bar.set_style(style);
    }
    bar.set_message(what);
    bar
}
