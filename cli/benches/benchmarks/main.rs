//! The benchmarks: runs the set, and writes `BENCHMARKS.md` and its plots. Started by `make bench` and `make bench-long`,
//! which build the programs first.
//!
//! # Layout
//! - `server`, `machine`: the server and the programs that are measured; what they run on
//! - `command`: throughput, latency and growth, through `refile bench`
//! - `fleet`: turns, heartbeats and a killed worker, through the store's own calls
//! - `processes`: idle processes, starts, sizes
//! - `trees`: trees of attempts
//! - `figures`, `targets`, `report`, `svg`: what was measured, what was aimed at, and both as text
//! - `long`: millions of tasks through one server

mod figures;
mod targets;
mod svg;
mod report;
mod server;
mod machine;
mod command;
mod fleet;
mod processes;
mod trees;
mod long;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use figures::Figures;
use server::Programs;

/// Most of the work is small texts that come and go; this allocator is made for that.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const USAGE: &str = "usage: benchmarks [--quick] [--out DIR]\n       benchmarks --trees\n       benchmarks --long [ROUNDS TASKS] [--out DIR]";

/// How large the set is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    /// A twentieth of it, to try the program.
    pub(crate) is_quick: bool,
}

impl Sizes {
    pub(crate) fn of(self, tasks: u64) -> u64 {
        if self.is_quick { tasks / 20 } else { tasks }
    }

    pub(crate) fn rounds(self, rounds: usize) -> usize {
        if self.is_quick { 1 } else { rounds }
    }
}

/// Tells how far it is.
pub(crate) fn say(words: &str) {
    eprintln!("{words}");
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut root = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    if let Some(place) = arguments.iter().position(|a| a == "--out") {
        root = arguments.get(place + 1).context(USAGE)?.into();
        arguments.drain(place..place + 2);
    }
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        // A test runner wants the names of tests; this is none.
        ["--list", ..] => Ok(()),
        ["--hold", url, jobs, lease_ms] => {
            fleet::hold(url, jobs.parse()?, Duration::from_millis(lease_ms.parse()?)).await
        }
        ["--long"] => long::run(&Programs::find()?, 20, 100_000, &root).await,
        ["--long", rounds, tasks] => long::run(&Programs::find()?, rounds.parse()?, tasks.parse()?, &root).await,
        ["--trees"] => trees::trees(&Sizes { is_quick: false }).await.map(drop),
        ["--quick"] => set(Sizes { is_quick: true }, &root).await,
        [] => set(Sizes { is_quick: false }, &root).await,
        _ => anyhow::bail!(USAGE),
    }
}

/// Runs the set and writes what it found.
async fn set(sizes: Sizes, root: &std::path::Path) -> anyhow::Result<()> {
    let (start, programs) = (Instant::now(), Programs::find()?);
    let is_trial = sizes.is_quick || cfg!(debug_assertions);
    let mut found = Figures { is_trial, machine: machine::read(&programs), ..Figures::default() };
    found.binary_bytes = processes::binary_bytes(&programs)?;
    // What is short comes first: where something is wrong, it shows at once.
    found.trees = trees::trees(&sizes).await?;
    found.turns = fleet::turns(&sizes).await?;
    found.heartbeats = fleet::heartbeats(&programs, &sizes).await?;
    found.idle = processes::idle(&programs, &sizes).await?;
    found.killed = fleet::killed(&programs, &sizes).await?;
    found.starts = processes::starts(&programs, &sizes).await?;
    command::run(&programs, &sizes, &mut found).await?;
    found.growth = command::growth(&programs, &sizes).await?;
    found.took_s = start.elapsed().as_secs_f64();
    let folder = root.join("docs/benchmarks");
    std::fs::create_dir_all(&folder)?;
    for (name, svg) in report::plots(&found) {
        std::fs::write(folder.join(name), svg)?;
    }
    std::fs::write(folder.join("figures.json"), serde_json::to_string_pretty(&found)? + "\n")?;
    std::fs::write(root.join("BENCHMARKS.md"), report::markdown(&found))?;
    for target in targets::targets(&found) {
        say(&target.row(is_trial).join(" | "));
    }
    say(&format!("wrote BENCHMARKS.md and docs/benchmarks after {:.0} s", found.took_s));
    Ok(())
}
