//! The benchmark on SQLite: every part in this process, on one store, in a new file.

use std::path::{Path, PathBuf};

use anyhow::Context as _;

use super::backlog::fill;
use super::crew::Crew;
use super::member::{Kind, cpu_s, open};
use super::report::{Cpu, OnSqlite, Report};
use super::{Plan, progress, require_all_accepted};
use crate::context::UsageError;

/// Runs all of it. The files lie beside `path`, on the disk that it names, or in the folder for temporary files; they are
/// gone when this ends.
pub(super) async fn run(plan: &Plan, path: Option<&Path>) -> anyhow::Result<Report> {
    let mut folder = tempfile::Builder::new();
    folder.prefix("refile-bench-");
    let folder = match path {
        None => folder.tempdir().context("cannot make a folder for temporary files")?,
        Some(path) if path.exists() => {
            let why =
                format!("{} is there already; name a file that is not: nobody's tasks are touched", path.display());
            return Err(UsageError(why).into());
        }
        Some(path) => {
            let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
            folder.tempdir_in(parent).with_context(|| format!("cannot make a folder in {}", parent.display()))?
        }
    };
    let room = room(&plan.sample(), &folder.path().join("room.db")).await?;
    let file = folder.path().join("fleet.db");
    let store = open(&url(&file), plan.allow_volatile).await?;
    if plan.backlog > 0 {
        fill(plan, Some(store.clone())).await?;
    }
    let stats = store.stats().await?;
    let bar = progress("tasks", plan.load.tasks);
    let mut crew = Crew::start(plan.everybody(), Some(store.clone())).await?;
    let before = cpu_s();
    crew.go(&[Kind::Submitter, Kind::Coordinator], &bar).await?;
    let used = cpu_s() - before;
    let seen = crew.stop().await?;
    bar.finish_and_clear();
    require_all_accepted(store.as_ref(), &stats, plan.load.tasks).await?;
    let name = path.map_or_else(|| "sqlite".to_owned(), |path| format!("sqlite:{}", path.display()));
    let mut report = plan.report(name, &seen)?;
    report.sqlite = Some(room);
    // One process cannot tell its parts apart.
    let process = Some(used * 1_000.0 / plan.load.tasks as f64);
    report.cpu_s_per_1000 = Cpu { process, ..Cpu::default() };
    Ok(report)
}

/// How much room a task takes: all are submitted while nobody works, and then they are done.
async fn room(plan: &Plan, file: &Path) -> anyhow::Result<OnSqlite> {
    let tasks = plan.load.tasks;
    let bar = progress("room that a task takes", tasks);
    drop(open(&url(file), plan.allow_volatile).await?);
    let before = size(file)?;
    let mut submitter =
        Crew::start(vec![plan.spec(Kind::Submitter, tasks)], Some(open(&url(file), false).await?)).await?;
    submitter.go(&[Kind::Submitter], &bar).await?;
    submitter.stop().await?;
    let open_tasks = size(file)?;
    let mut fleet = Crew::start(plan.fleet(tasks), Some(open(&url(file), false).await?)).await?;
    fleet.go(&[Kind::Coordinator], &bar).await?;
    fleet.stop().await?;
    let finished = size(file)?;
    bar.finish_and_clear();
    let grown = |to: u64| (to as f64 - before as f64) / tasks as f64;
    Ok(OnSqlite { file_bytes_per_open_task: grown(open_tasks), file_bytes_per_finished_task: grown(finished) })
}

fn url(file: &Path) -> String {
    format!("sqlite:{}", file.display())
}

/// The bytes of a closed file, and of its log where that was not taken up.
fn size(file: &Path) -> anyhow::Result<u64> {
    let log = PathBuf::from(format!("{}-wal", file.display()));
    let log = std::fs::metadata(log).map_or(0, |m| m.len());
    Ok(std::fs::metadata(file).with_context(|| format!("cannot read {}", file.display()))?.len() + log)
}
