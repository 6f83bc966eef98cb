//! The benchmark on a Redis server: every part a process of its own, all keys under a name of their own.

use anyhow::bail;
use refile_store::error::without_password;
use refile_store::redis::bench::{Sample, Server};

use super::backlog::fill;
use super::crew::Crew;
use super::member::{Figures, Kind, NAMESPACE, open};
use super::report::{OnRedis, Report};
use super::{Plan, progress, require_all_accepted};

/// What a task takes on the server while it is open and when it has ended, in bytes.
#[derive(Debug, Clone, Copy, Default)]
struct Room {
    memory: (Option<f64>, Option<f64>),
    aof: (Option<f64>, Option<f64>),
}

/// Runs all of it, and leaves nothing on the server.
pub(super) async fn run(plan: &Plan) -> anyhow::Result<Report> {
    // Whether the server may be used at all is for the store to say; it makes a few keys, which go with the others.
    drop(open(&plan.url, plan.allow_volatile).await?);
    let Some(mut server) = Server::open(&plan.url).await? else {
        bail!("another benchmark runs on this server; they would measure each other");
    };
    let measured = measure(plan, &mut server).await;
    if plan.keep {
        return measured;
    }
    // Also after a failure; that one is told, then.
    let cleared = server.clear(NAMESPACE).await;
    let report = measured?;
    cleared?;
    Ok(report)
}

async fn measure(plan: &Plan, server: &mut Server) -> anyhow::Result<Report> {
    // A backlog is a sample itself.
    let room = if plan.keep || plan.backlog > 0 { Room::default() } else { room(&plan.sample(), server).await? };
    let before = if plan.limit { Some(limit(plan, server).await?) } else { None };
    let mut report = life(plan, server, room).await?;
    if let Some(before) = before {
        let limit = f64::midpoint(before, limit(plan, server).await?);
        report.limit_tasks_per_s = Some(limit);
        report.ratio = Some(report.tasks_per_s / limit);
    }
    Ok(report)
}

/// How much room a task takes: all are submitted while nobody works, and then they are done.
async fn room(plan: &Plan, server: &mut Server) -> anyhow::Result<Room> {
    let tasks = plan.load.tasks;
    server.clear(NAMESPACE).await?;
    // The queues and the scripts are there before the first look.
    drop(open(&plan.url, plan.allow_volatile).await?);
    let bar = progress("room that a task takes", tasks);
    let before = server.sample().await?;
    let mut submitter = Crew::start(vec![plan.spec(Kind::Submitter, tasks)], None).await?;
    submitter.go(&[Kind::Submitter], &bar).await?;
    submitter.stop().await?;
    let open_tasks = server.sample().await?;
    let mut fleet = Crew::start(plan.fleet(tasks), None).await?;
    fleet.go(&[Kind::Coordinator], &bar).await?;
    fleet.stop().await?;
    let finished = server.sample().await?;
    bar.finish_and_clear();
    let grown = |from: u64, to: u64| (to as f64 - from as f64) / tasks as f64;
    let aof = |sample: &Sample| {
        let (size, rewritten) = sample.aof?;
        // A rewrite in between makes the file smaller: then nothing can be said.
        (before.aof.map(|(_, at_start)| at_start) == Some(rewritten)).then_some(size)
    };
    let appended = |to: &Sample| Some(grown(aof(&before)?, aof(to)?));
    let aof = (appended(&open_tasks), appended(&finished));
    let memory = |to: u64| Some(grown(before.memory, to));
    Ok(Room { memory: (memory(open_tasks.memory), memory(finished.memory)), aof })
}

/// The run itself: all parts at once.
async fn life(plan: &Plan, server: &mut Server, mut room: Room) -> anyhow::Result<Report> {
    let tasks = plan.load.tasks;
    if !plan.keep {
        server.clear(NAMESPACE).await?;
    }
    let store = open(&plan.url, plan.allow_volatile).await?;
    if plan.backlog > 0 {
        let before = server.sample().await?.memory;
        fill(plan, None).await?;
        let grown = server.sample().await?.memory as f64 - before as f64;
        room.memory.0 = Some(grown / plan.backlog as f64);
    }
    let stats = store.stats().await?;
    let bar = progress("tasks", tasks);
    let mut crew = Crew::start(plan.everybody(), None).await?;
    let before = server.sample().await?;
    crew.go(&[Kind::Submitter, Kind::Coordinator], &bar).await?;
    let after = server.sample().await?;
    let seen = crew.stop().await?;
    bar.finish_and_clear();
    require_all_accepted(store.as_ref(), &stats, tasks).await?;
    let mut report = plan.report(without_password(&plan.url), &seen)?;
    let per_task = |from: u64, to: u64| to.saturating_sub(from) as f64 / tasks as f64;
    report.cpu_s_per_1000.redis = Some((after.cpu_s - before.cpu_s) * 1_000.0 / tasks as f64);
    report.redis = Some(OnRedis {
        version: after.version,
        commands_per_task: per_task(before.sent, after.sent),
        inner_commands_per_task: per_task(before.processed, after.processed),
        memory_bytes_per_open_task: room.memory.0,
        memory_bytes_per_finished_task: room.memory.1,
        aof_bytes_per_open_task: room.aof.0,
        aof_bytes_per_finished_task: room.aof.1,
    });
    Ok(report)
}

/// What bare streams reach on the same server, in tasks a second.
async fn limit(plan: &Plan, server: &mut Server) -> anyhow::Result<f64> {
    server.clear(NAMESPACE).await?;
    let tasks = plan.load.tasks;
    let bar = progress("bare streams", tasks);
    let kinds = [Kind::LimitSubmitter, Kind::LimitCoder, Kind::LimitReviewer];
    let mut crew = Crew::start(kinds.into_iter().map(|kind| plan.spec(kind, tasks)).collect(), None).await?;
    crew.go(&[Kind::LimitReviewer], &bar).await?;
    let seen = crew.stop().await?;
    bar.finish_and_clear();
    let of =
        |kind: Kind, which: fn(&Figures) -> u64| seen.iter().find(|(k, _)| *k == kind).map_or(0, |(_, f)| which(f));
    let took_us = of(Kind::LimitReviewer, |f| f.last_us).saturating_sub(of(Kind::LimitSubmitter, |f| f.first_us));
    Ok(tasks as f64 / (took_us.max(1) as f64 / 1e6))
}
