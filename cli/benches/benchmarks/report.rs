//! The figures as `BENCHMARKS.md` and its plots.

use crate::figures::{AtRate, Figures, Points, Throughput, Wait};
use crate::svg::{Line, Plot, number};
use crate::targets::{TOGETHER, short, targets};

/// The headings, in their order.
pub(crate) const HEADINGS: [&str; 11] = [
    "# Benchmarks",
    "## Targets",
    "## Throughput on Redis",
    "## Latency at 100 tasks a second",
    "## SQLite in one process",
    "## Growth",
    "## Turns between repositories",
    "## Heartbeats and idleness",
    "## A killed worker",
    "## Start and size",
    "## How it was measured",
];

/// The plots, by file name.
pub(crate) const PLOTS: [&str; 3] = ["throughput.svg", "latency.svg", "growth.svg"];

/// A table.
pub(crate) fn table<R: AsRef<[String]>>(head: &[&str], rows: &[R]) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let mut out = line(&head.iter().map(|h| (*h).to_owned()).collect::<Vec<_>>());
    // Numbers stand on the right.
    let rule: Vec<String> = (0..head.len()).map(|n| if n == 0 { "---" } else { "---:" }.to_owned()).collect();
    out.push_str(&line(&rule));
    for row in rows {
        let cells: Vec<String> = row.as_ref().iter().map(|cell| cell.replace('|', "\\|")).collect();
        out.push_str(&line(&cells));
    }
    out.push('\n');
    out
}

/// Reads a figure.
type Get = fn(&Throughput) -> f64;

/// The whole of `BENCHMARKS.md`.
pub(crate) fn markdown(of: &Figures) -> String {
    let sections = [
        intro(of),
        targets_table(of),
        throughput(of),
        latency(of),
        sqlite(of),
        growth(of),
        turns(of),
        processes(of),
        killed(of),
        starts(of),
        method(of),
    ];
    let all: Vec<String> =
        HEADINGS.iter().zip(sections).map(|(h, text)| format!("{h}\n\n{}\n", text.trim_end())).collect();
    all.join("\n")
}

fn intro(of: &Figures) -> String {
    let quick = if of.is_trial {
        "**This is a trial of the program, with sizes cut down to a twentieth or with programs that were not built for release: \
         its figures say nothing. `make bench` writes those that do.**\n\n"
    } else {
        ""
    };
    let machine = &of.machine;
    let rows = [
        ["processor".to_owned(), format!("{}, {} cores", machine.cpu, machine.cores)],
        ["memory".to_owned(), format!("{:.0} GiB", machine.memory_gib)],
        ["kernel".to_owned(), machine.kernel.clone()],
        ["Redis".to_owned(), machine.redis.clone()],
        ["compiler".to_owned(), machine.rustc.clone()],
        ["Refile".to_owned(), machine.refile.clone()],
    ];
    format!(
        "{quick}What Refile itself costs: tasks live their whole life (submitted, coded, decided, reviewed, decided) through the real \
         client, store and coordinator, with agents that do nothing. `make bench` measures all of it and writes this file and \
         its plots; nothing here is written by hand. Speeds are to be compared by ratio within one run, not in seconds between \
         machines.\n\n{}The runs took {:.1} minutes.\n",
        table(&["machine", ""], &rows),
        of.took_s / 60.0
    )
}

fn targets_table(of: &Figures) -> String {
    let targets = targets(of);
    let met = targets.iter().filter(|t| t.bound.is_met(t.figure)).count();
    let rows: Vec<[String; 4]> = targets.iter().map(|t| t.row(of.is_trial)).collect();
    let sum = if of.is_trial { String::new() } else { format!("{met} of {} are met.\n", targets.len()) };
    format!("{}{sum}", table(&["what", "target", "measured", ""], &rows))
}

fn throughput(of: &Figures) -> String {
    let (all, rejected) = (&of.throughput, &of.rejected);
    let lines: [(&str, Get, &str); 13] = [
        ("tasks/s", |t| t.tasks_per_s, ""),
        ("bare streams, tasks/s", |t| t.limit_tasks_per_s, ""),
        ("ratio (median of the rounds' ratios)", |t| t.ratio, ""),
        ("processor per task: coordinator", |t| t.cpu_coordinator, " ms"),
        ("processor per task: workers", |t| t.cpu_workers, " ms"),
        ("processor per task: submitter", |t| t.cpu_submitter, " ms"),
        ("processor per task: Redis", |t| t.cpu_redis, " ms"),
        ("commands that clients send beside reads of records, per task", |t| t.commands, ""),
        ("commands carried out, per task", |t| t.inner_commands, ""),
        ("memory per open task", |t| t.memory_open, " B"),
        ("memory per finished task", |t| t.memory_finished, " B"),
        ("append-only file per open task", |t| t.aof_open, " B"),
        ("append-only file per finished task", |t| t.aof_finished, " B"),
    ];
    let cell = |value: f64, unit: &str| if value == 0.0 { "–".to_owned() } else { format!("{}{unit}", short(value)) };
    let rows: Vec<[String; 3]> = lines
        .into_iter()
        .map(|(name, get, unit)| [name.to_owned(), cell(get(all), unit), cell(get(rejected), unit)])
        .collect();
    format!(
        "{} tasks of 1 KiB, as fast as they go; one coordinator, one coder (500 jobs at once), one reviewer (500) and one submitter, \
         each a process, beside the server on the same cores. Bare streams are pipelined `HSET` and `XADD`, `XREADGROUP COUNT 100` \
         and `XACK` through the same two stages, measured before and after in the same run on the same server: no leases, \
         no fences, no decisions.\n\n{}Ratios of the rounds: {}.\n\n![Throughput]({})\n",
        number(all.tasks as f64),
        table(&["", "all approved", "30 % rejected once"], &rows),
        all.ratios.iter().map(|r| format!("{r:.3}")).collect::<Vec<_>>().join(", "),
        path("throughput.svg"),
    )
}

fn points(name: &str, p: Points) -> Vec<String> {
    std::iter::once(name.to_owned()).chain([p.p50, p.p90, p.p99, p.p99_9, p.max].map(short)).collect()
}

const POINTS: [&str; 6] = ["milliseconds", "p50", "p90", "p99", "p99.9", "max"];

fn latency(of: &Figures) -> String {
    let two = |engine: &str, at: &AtRate| {
        [
            points(&format!("{engine}: submit to claim"), at.submit_to_claim),
            points(&format!("{engine}: outcome to next claim"), at.outcome_to_claim),
        ]
    };
    let rows: Vec<Vec<String>> =
        two("Redis", &of.redis_at_rate).into_iter().chain(two("SQLite", &of.sqlite_at_rate)).collect();
    format!(
        "{} tasks, due at {} a second whether or not the store keeps up: what comes late counts from when it was due. Each figure \
         is the median of {} rounds.\n\n{}![Latency]({})\n",
        number(of.redis_at_rate.tasks as f64),
        of.redis_at_rate.rate,
        of.redis_at_rate.rounds,
        table(&POINTS, &rows),
        path("latency.svg"),
    )
}

fn sqlite(of: &Figures) -> String {
    let s = &of.sqlite;
    let rows = [
        ["tasks/s".to_owned(), short(s.tasks_per_s)],
        ["processor per task".to_owned(), format!("{} ms", short(s.cpu))],
        ["file per open task".to_owned(), format!("{} B", short(s.file_open))],
        ["file per finished task".to_owned(), format!("{} B", short(s.file_finished))],
    ];
    format!(
        "{} tasks of 1 KiB through coordinator, coder (200 jobs at once), reviewer (200) and submitter in one process, on one file \
         with `synchronous=NORMAL`.\n\n{}A call that claims, of those that found jobs ready; one call gives up to 200 jobs:\n\n{}",
        number(s.tasks as f64),
        table(&["", ""], &rows),
        table(&POINTS, &[points("claim", s.claim)]),
    )
}

fn growth(of: &Figures) -> String {
    let rows: Vec<[String; 4]> = of
        .growth
        .iter()
        .map(|g| {
            let share = of.growth.first().map_or(f64::NAN, |first| g.tasks_per_s / first.tasks_per_s);
            [number(g.backlog as f64), short(g.tasks_per_s), format!("{share:.2}"), short(g.memory_per_open_task)]
        })
        .collect();
    format!(
        "Throughput on Redis with so many further open tasks in the store. Those are recorded, indexed and counted like all \
         others; they are not due for a week, so that nobody claims them: an entry of the delayed jobs stands in place \
         of an entry of a queue. The four servers run side by side, and their rounds are interleaved. The memory per task \
         of a small backlog holds the server's buffers, too.\n\n{}![Growth]({})\n",
        table(&["open tasks", "tasks/s", "of the first", "bytes of memory per open task"], &rows),
        path("growth.svg"),
    )
}

fn turns(of: &Figures) -> String {
    let cells = |w: Wait| [w.p50_ms, w.max_ms, w.p50_jobs, w.max_jobs].map(short);
    let mut rows = Vec::new();
    for t in &of.turns {
        for (name, wait) in [("an empty fleet", t.empty), ("behind the backlog", t.behind)] {
            rows.push(std::iter::once(format!("{}: {name}", t.engine)).chain(cells(wait)).collect::<Vec<_>>());
        }
    }
    let (backlog, probes) = of.turns.first().map_or((0, 0), |t| (t.backlog, t.probes));
    format!(
        "How long a single task of another repository waits for its claim: in an empty fleet, and while a coder with 100 places \
         works through {} jobs of one repository; {probes} single tasks each, one after the other. Store, coordinator, coder and \
         submitter are one process here. The jobs are those that were claimed between its submission and its own claim.\n\n{}",
        number(backlog as f64),
        table(&["", "p50, ms", "max, ms", "p50, jobs before it", "max, jobs before it"], &rows),
    )
}

fn processes(of: &Figures) -> String {
    let percent = |p: f64| format!("{} %", short(p));
    let (beats, idle) = (&of.heartbeats, &of.idle);
    let rows = [
        ["Redis".to_owned(), percent(beats.redis_percent), percent(idle.redis_percent)],
        ["coordinator".to_owned(), percent(beats.coordinator_percent), percent(idle.coordinator_percent)],
        [
            "coder (on the left: the process that extends)".to_owned(),
            percent(beats.worker_percent),
            percent(idle.coder_percent),
        ],
        ["reviewer".to_owned(), "–".to_owned(), percent(idle.reviewer_percent)],
    ];
    format!(
        "Shares of one core: while {} leases are extended every {:.0} s (over {:.0} s), and while there is nothing to do at all \
         (over {:.0} s).\n\n{}",
        number(beats.leases as f64),
        beats.every_s,
        beats.seconds,
        idle.seconds,
        table(&["", "heartbeats", "idle"], &rows),
    )
}

fn killed(of: &Figures) -> String {
    let k = &of.killed;
    format!(
        "A process with {} leases of {} s is killed (SIGKILL), {} times; another claims what becomes free. From the kill to the next \
         claim of each job, less the lease: p50 {} ms, p99 {} ms.\n",
        k.jobs,
        short(k.lease_ms / 1_000.0),
        k.kills,
        short(k.p50_ms),
        short(k.p99_ms)
    )
}

fn starts(of: &Figures) -> String {
    let mb = |bytes: f64| format!("{} MB", short(bytes / 1e6));
    let mut rows: Vec<[String; 3]> = of
        .starts
        .iter()
        .map(|s| [format!("`refile up` on {}", s.engine), format!("{} ms", short(s.ready_ms)), mb(s.rss)])
        .collect();
    rows.push(["`refile-coordinator` on Redis".to_owned(), "–".to_owned(), mb(of.idle.coordinator_rss)]);
    format!(
        "From the start of the process until `/readyz` says yes (median of {}), and the resident memory (VmRSS) of the idle process \
         at least 5 s later.\n\n{}The stripped `refile` binary has {}.\n\nAn attempt in a repository of {} files that the worker \
         has a copy of waits {} ms for its fetch and its tree where the files are written then, and {} ms where the base of \
         before was checked out ahead, as after every attempt and at a worker's start, and ten files changed since; the last of {TOGETHER} \
         that begin together waits {} ms (medians of {}).\n",
        of.starts.first().map_or(0, |s| s.rounds),
        table(&["", "ready after", "resident"], &rows),
        mb(of.binary_bytes),
        number(of.trees.files as f64),
        short(of.trees.cold_ms),
        short(of.trees.ahead_ms),
        short(of.trees.together_ms),
        of.trees.rounds,
    )
}

fn method(of: &Figures) -> String {
    format!(
        "- {}; everything on one machine and on all of its cores ({}). On a larger machine `taskset -c 0,1 make bench` \
         holds it to two.\n\
         - Throughput: median of {}; latency: median of {}; growth: median of {}. The rounds are interleaved: the first of all, \
         the second of all, and so on. A figure is the median of that figure over the rounds.\n\
         - Each run has a new `redis-server` on loopback with `{}`: on disk every second, and no rewrite of the file, which \
         would run on the same cores whenever it happened to be due. Bytes of the file per task are those without a rewrite.\n\
         - Throughput, latency, growth: `refile bench`, which anybody can run on their own server. SQLite lies in the folder for \
         temporary files.\n\
         - Processor time of processes: `getrusage` and `/proc`; of Redis: `INFO cpu`.\n\
         - `make bench-long` passes 2,000,000 tasks through one server and shows that nothing but the records of finished tasks \
         grows.\n",
        of.machine.build,
        of.machine.cores,
        of.throughput.rounds,
        of.redis_at_rate.rounds,
        of.growth.first().map_or(0, |g| g.rounds),
        of.machine.redis_settings,
    )
}

fn path(plot: &str) -> String {
    format!("docs/benchmarks/{plot}")
}

/// The plots, each with its file name.
pub(crate) fn plots(of: &Figures) -> Vec<(&'static str, String)> {
    let all = &of.throughput;
    let rounds = || all.ratios.iter().enumerate();
    let throughput = Plot {
        title: "Redis: throughput as a share of bare streams".to_owned(),
        x: "round".to_owned(),
        y: "share".to_owned(),
        ticks: rounds().map(|(n, _)| (n as f64, (n + 1).to_string())).collect(),
        is_logarithmic: false,
        lines: vec![
            Line { name: "Refile".to_owned(), points: rounds().map(|(n, r)| (n as f64, *r)).collect() },
            Line { name: "target".to_owned(), points: rounds().map(|(n, _)| (n as f64, 0.4)).collect() },
        ],
    };
    let line = |name: &str, p: Points| {
        let values = [p.p50, p.p90, p.p99, p.p99_9, p.max];
        Line { name: name.to_owned(), points: values.iter().enumerate().map(|(n, v)| (n as f64, *v)).collect() }
    };
    let latency = Plot {
        title: format!("Latency at {} tasks a second", of.redis_at_rate.rate),
        x: "percentile".to_owned(),
        y: "milliseconds".to_owned(),
        ticks: POINTS[1..].iter().enumerate().map(|(n, name)| (n as f64, (*name).to_owned())).collect(),
        is_logarithmic: true,
        lines: vec![
            line("Redis: submit to claim", of.redis_at_rate.submit_to_claim),
            line("Redis: outcome to claim", of.redis_at_rate.outcome_to_claim),
            line("SQLite: submit to claim", of.sqlite_at_rate.submit_to_claim),
            line("SQLite: outcome to claim", of.sqlite_at_rate.outcome_to_claim),
        ],
    };
    let place = |backlog: u64| (backlog.max(1) as f64).log10();
    let growth = Plot {
        title: "Redis: throughput beside a backlog".to_owned(),
        x: "further open tasks".to_owned(),
        y: "tasks/s".to_owned(),
        ticks: of.growth.iter().map(|g| (place(g.backlog), number(g.backlog as f64))).collect(),
        is_logarithmic: false,
        lines: vec![Line {
            name: "Redis".to_owned(),
            points: of.growth.iter().map(|g| (place(g.backlog), g.tasks_per_s)).collect(),
        }],
    };
    PLOTS.into_iter().zip([throughput, latency, growth].map(|plot| plot.svg())).collect()
}
