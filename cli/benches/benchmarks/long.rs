//! Millions of tasks through one server: what is left is the records of finished tasks, and nothing else grows.

use std::collections::BTreeMap;
use std::path::Path;

use refile_store::redis::bench::{KeySize, Server};

use crate::command::number;
use crate::report::table;
use crate::server::{Programs, Redis};
use crate::{machine, say, svg};

/// As for the set, but the file is rewritten when it has doubled: tens of gigabytes would be written otherwise.
const SETTINGS: [&str; 8] =
    ["--appendonly", "yes", "--appendfsync", "everysec", "--save", "", "--auto-aof-rewrite-percentage", "100"];
/// What holds the records of finished tasks, by design.
const RECORDS: [&str; 4] = ["records", "texts", "heads", "idx:accepted"];
/// The keys of the benchmark's only partition start with this.
const PREFIX: &str = "refile-bench:{0}:";

/// What was there after a round.
struct Round {
    tasks_per_s: f64,
    memory: u64,
    keys: BTreeMap<String, KeySize>,
    scripts: u64,
}

impl Round {
    /// A figure over all keys but those of the records.
    fn rest(&self, of: fn(&KeySize) -> u64) -> u64 {
        self.keys.iter().filter(|(name, _)| !RECORDS.contains(&name.as_str())).map(|(_, key)| of(key)).sum()
    }
}

/// Runs the rounds and writes the table.
pub(crate) async fn run(programs: &Programs, rounds: u64, tasks: u64, root: &Path) -> anyhow::Result<()> {
    let server = Redis::start(&SETTINGS).await?;
    let empty = server.sample().await?.memory;
    let mut seen: Vec<Round> = Vec::new();
    for round in 1..=rounds {
        let text = format!("--tasks {tasks} --concurrency 500 --keep --store {}", server.url);
        let figures = programs.bench(&text.split(' ').map(str::to_owned).collect::<Vec<_>>()).await?;
        let mut watched = Server::watch(&server.url).await?;
        let strip = |key: KeySize| (key.name.strip_prefix(PREFIX).unwrap_or(&key.name).to_owned(), key);
        let keys = watched.keys("refile-bench").await?.into_iter().map(strip).collect();
        let (memory, scripts) = (watched.sample().await?.memory, watched.scripts().await?);
        let now = Round { tasks_per_s: number(&figures, "/tasks_per_s"), memory, keys, scripts };
        say(&format!(
            "round {round} of {rounds}: {:.0} tasks/s, {} keys, {} bytes beside the records",
            now.tasks_per_s,
            now.keys.len(),
            now.rest(|k| k.bytes)
        ));
        seen.push(now);
    }
    let text = markdown(programs, tasks, empty, &seen);
    std::fs::create_dir_all(root.join("docs/benchmarks"))?;
    std::fs::write(root.join("docs/benchmarks/long.md"), text)?;
    say("wrote docs/benchmarks/long.md");
    Ok(())
}

fn markdown(programs: &Programs, tasks: u64, empty: u64, seen: &[Round]) -> String {
    let machine = machine::read(programs);
    let whole = |n: u64| svg::number(n as f64);
    let total = tasks * seen.len() as u64;
    let rows: Vec<Vec<String>> = seen
        .iter()
        .enumerate()
        .map(|(n, round)| {
            let passed = tasks * (n as u64 + 1);
            let before = if n == 0 { empty } else { seen[n - 1].memory };
            let grown = (round.memory as f64 - before as f64) / tasks as f64;
            let all = (round.memory as f64 - empty as f64) / passed as f64;
            vec![
                whole(passed),
                format!("{:.0}", round.tasks_per_s),
                format!("{all:.0}"),
                format!("{grown:.0}"),
                whole(round.keys.len() as u64),
                whole(round.rest(|k| k.bytes)),
                whole(round.rest(|k| k.groups)),
                whole(round.rest(|k| k.consumers)),
                whole(round.rest(|k| k.pending)),
                whole(round.scripts),
            ]
        })
        .collect();
    let head = [
        "tasks so far",
        "tasks/s",
        "bytes per finished task",
        "of this round's",
        "keys",
        "bytes beside the records",
        "groups",
        "consumers",
        "pending",
        "scripts",
    ];
    let verdict = verdict(seen);
    format!(
        "# {} tasks through one server\n\n{}, {} cores, Redis {}; {}. `make bench-long` writes this.\n\n\
         Rounds of {} tasks, each with new processes, on what the rounds before left. Finished tasks keep their records by design \
         (`{}`): those grow. All other keys together are \"beside the records\".\n\n{}{verdict}\n\n## Keys beside the records\n\n\
         Members (fields, entries) and bytes after the first, the middle and the last round.\n\n{}",
        whole(total),
        machine.cpu,
        machine.cores,
        machine.redis,
        machine.refile,
        whole(tasks),
        RECORDS.join("`, `"),
        table(&head, &rows),
        table(&["key", "first", "middle", "last", "bytes: first", "middle", "last"], &keys(seen)),
    )
}

/// Each key beside the records, in the first, the middle and the last round.
fn keys(seen: &[Round]) -> Vec<Vec<String>> {
    let Some(last) = seen.len().checked_sub(1) else { return Vec::new() };
    let looks = [0, seen.len() / 2, last].map(|n| &seen[n].keys);
    let mut names: Vec<&String> = looks.iter().flat_map(|keys| keys.keys()).collect();
    names.sort_unstable();
    names.dedup();
    let cells = |name: &String, of: fn(&KeySize) -> u64| {
        looks.map(|keys| keys.get(name).map_or_else(|| "–".to_owned(), |key| svg::number(of(key) as f64)))
    };
    names
        .into_iter()
        .filter(|name| !RECORDS.contains(&name.as_str()))
        .map(|name| {
            let (members, bytes) = (cells(name, |k| k.members), cells(name, |k| k.bytes));
            std::iter::once(format!("`{name}`")).chain(members).chain(bytes).collect()
        })
        .collect()
}

/// Whether the rest stayed as large as it was after half of the rounds: by then what has a bound has reached it.
fn verdict(seen: &[Round]) -> String {
    let (Some(last), Some(half)) = (seen.last(), seen.get(seen.len() / 2)) else { return String::new() };
    let (then, now) = (half.rest(|k| k.bytes) as f64, last.rest(|k| k.bytes) as f64);
    let is_flat = now <= then * 1.1
        && last.keys.len() <= half.keys.len()
        && last.rest(|k| k.consumers) <= half.rest(|k| k.consumers)
        && last.scripts <= half.scripts;
    let word = if is_flat { "**Flat**" } else { "**Not flat**" };
    format!("{word}: beside the records there were {then:.0} bytes in the middle of the run and {now:.0} at its end.")
}
