//! What `refile bench` measures, in interleaved rounds.

use serde_json::Value;

use crate::figures::{AtRate, Figures, Growth, Points, Sqlite, Throughput, median};
use crate::server::{Programs, Redis, SETTINGS};
use crate::{Sizes, say};

/// Tasks due per second.
const RATE: u64 = 100;

/// One kind of run and what its rounds gave.
struct Series {
    name: &'static str,
    on_redis: bool,
    arguments: Vec<String>,
    rounds: usize,
    seen: Vec<Value>,
}

impl Series {
    fn new(name: &'static str, on_redis: bool, rounds: usize, arguments: &str) -> Self {
        let arguments = arguments.split(' ').map(str::to_owned).collect();
        Self { name, on_redis, arguments, rounds, seen: Vec::new() }
    }
}

/// A server with a backlog.
struct Backlog {
    server: Redis,
    tasks: u64,
    memory: f64,
    seen: Vec<Value>,
}

/// Measures throughput, latency and growth.
pub(crate) async fn run(programs: &Programs, sizes: &Sizes, figures: &mut Figures) -> anyhow::Result<()> {
    let tasks = sizes.of(20_000);
    let (paced, short, long) = (sizes.of(1_000), sizes.rounds(5), sizes.rounds(3));
    let mut series = [
        Series::new("throughput on Redis", true, short, &format!("--tasks {tasks} --concurrency 500 --limit")),
        Series::new("with rejections", true, short, &format!("--tasks {tasks} --concurrency 500 --rejected 0.3")),
        Series::new("SQLite", false, short, &format!("--tasks {tasks}")),
        Series::new("latency on Redis", true, long, &format!("--tasks {paced} --rate {RATE}")),
        Series::new("latency on SQLite", false, long, &format!("--tasks {paced} --rate {RATE}")),
    ];
    for round in 0..short {
        for one in series.iter_mut().filter(|one| round < one.rounds) {
            let mut arguments = one.arguments.clone();
            // A new server for each run, so that none finds what another left.
            let server = if one.on_redis { Some(Redis::start(&SETTINGS).await?) } else { None };
            arguments.extend(server.iter().flat_map(|server| ["--store".to_owned(), server.url.clone()]));
            let seen = programs.bench(&arguments).await?;
            say(&format!(
                "round {} of {}: {}: {:.0} tasks/s{}",
                round + 1,
                one.rounds,
                one.name,
                number(&seen, "/tasks_per_s"),
                seen["ratio"].as_f64().map(|ratio| format!(", ratio {ratio:.3}")).unwrap_or_default()
            ));
            one.seen.push(seen);
        }
    }
    let [fast, rejected, sqlite, on_redis, on_sqlite] = series.map(|one| one.seen);
    figures.throughput = throughput(tasks, &fast);
    figures.rejected = throughput(tasks, &rejected);
    figures.sqlite = Sqlite {
        tasks,
        rounds: sqlite.len(),
        tasks_per_s: middle(&sqlite, "/tasks_per_s"),
        claim: points(&sqlite, "/claim_ms"),
        cpu: middle(&sqlite, "/cpu_s_per_1000/process"),
        file_open: middle(&sqlite, "/sqlite/file_bytes_per_open_task"),
        file_finished: middle(&sqlite, "/sqlite/file_bytes_per_finished_task"),
    };
    let at_rate = |seen: &[Value]| AtRate {
        tasks: paced,
        rate: RATE,
        rounds: seen.len(),
        submit_to_claim: points(seen, "/submit_to_claim_ms"),
        outcome_to_claim: points(seen, "/outcome_to_claim_ms"),
    };
    figures.redis_at_rate = at_rate(&on_redis);
    figures.sqlite_at_rate = at_rate(&on_sqlite);
    Ok(())
}

/// Throughput beside open tasks: a server for each number of them, all at the same time.
pub(crate) async fn growth(programs: &Programs, sizes: &Sizes) -> anyhow::Result<Vec<Growth>> {
    let mut backlogs = Vec::new();
    let run = async |store: &str, tasks: u64, backlog: u64| {
        let text = format!("--tasks {tasks} --concurrency 500 --backlog {backlog} --keep --store {store}");
        programs.bench(&text.split(' ').map(str::to_owned).collect::<Vec<_>>()).await
    };
    for size in [1_000, 10_000, 100_000, 1_000_000] {
        let (server, tasks) = (Redis::start(&SETTINGS).await?, sizes.of(size));
        say(&format!("{tasks} open tasks"));
        let seen = run(&server.url, 100, tasks).await?;
        let memory = number(&seen, "/redis/memory_bytes_per_open_task");
        backlogs.push(Backlog { server, tasks, memory, seen: Vec::new() });
    }
    for round in 0..sizes.rounds(5) {
        for backlog in &mut backlogs {
            let seen = run(&backlog.server.url, sizes.of(20_000), 0).await?;
            let speed = number(&seen, "/tasks_per_s");
            say(&format!("round {}: beside {} open tasks: {speed:.0} tasks/s", round + 1, backlog.tasks));
            backlog.seen.push(seen);
        }
    }
    let grown = |b: Backlog| Growth {
        backlog: b.tasks,
        rounds: b.seen.len(),
        tasks_per_s: middle(&b.seen, "/tasks_per_s"),
        memory_per_open_task: b.memory,
    };
    Ok(backlogs.into_iter().map(grown).collect())
}

fn throughput(tasks: u64, seen: &[Value]) -> Throughput {
    let of = |pointer| middle(seen, pointer);
    Throughput {
        tasks,
        rounds: seen.len(),
        tasks_per_s: of("/tasks_per_s"),
        limit_tasks_per_s: of("/limit_tasks_per_s"),
        ratio: of("/ratio"),
        ratios: seen.iter().filter_map(|s| s["ratio"].as_f64()).collect(),
        cpu_coordinator: of("/cpu_s_per_1000/coordinator"),
        cpu_workers: of("/cpu_s_per_1000/workers"),
        cpu_submitter: of("/cpu_s_per_1000/submitter"),
        cpu_redis: of("/cpu_s_per_1000/redis"),
        commands: of("/redis/commands_per_task"),
        inner_commands: of("/redis/inner_commands_per_task"),
        memory_open: of("/redis/memory_bytes_per_open_task"),
        memory_finished: of("/redis/memory_bytes_per_finished_task"),
        aof_open: of("/redis/aof_bytes_per_open_task"),
        aof_finished: of("/redis/aof_bytes_per_finished_task"),
    }
}

fn points(seen: &[Value], pointer: &str) -> Points {
    let of = |name: &str| middle(seen, &format!("{pointer}/{name}"));
    Points { p50: of("p50"), p90: of("p90"), p99: of("p99"), p99_9: of("p99_9"), max: of("max") }
}

/// The middle of a figure over the runs that tell it.
fn middle(seen: &[Value], pointer: &str) -> f64 {
    median(&seen.iter().filter_map(|one| one.pointer(pointer)?.as_f64()).collect::<Vec<_>>())
}

/// A figure of a run; 0 where it tells none.
pub(crate) fn number(seen: &Value, pointer: &str) -> f64 {
    seen.pointer(pointer).and_then(Value::as_f64).unwrap_or(0.0)
}
