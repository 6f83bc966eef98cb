//! What the benchmarks run on.

use std::process::Command;

use crate::figures::Machine;
use crate::server::{Programs, SETTINGS};

/// Reads it from the system.
pub(crate) fn read(programs: &Programs) -> Machine {
    let file = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let field = |text: &str, name: &str| {
        let value = text.lines().find(|line| line.starts_with(name)).and_then(|line| line.split_once(':'));
        value.map_or_else(|| "unknown".to_owned(), |(_, value)| value.trim().to_owned())
    };
    let memory = field(&file("/proc/meminfo"), "MemTotal");
    let kib: f64 = memory.split(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0.0);
    Machine {
        cpu: field(&file("/proc/cpuinfo"), "model name"),
        cores: std::thread::available_parallelism().map_or(0, usize::from),
        memory_gib: kib / 1_048_576.0,
        kernel: format!("Linux {}", file("/proc/sys/kernel/osrelease").trim()),
        redis: said("redis-server", &["--version"])
            .split_whitespace()
            .find_map(|word| word.strip_prefix("v="))
            .unwrap_or("unknown")
            .to_owned(),
        rustc: said("rustc", &["--version"]),
        refile: format!("{}, commit {}", said(programs.path("refile"), &["--version"]), commit()),
        build: if cfg!(debug_assertions) { "Debug builds" } else { "Release builds" }.to_owned(),
        redis_settings: SETTINGS.map(|word| if word.is_empty() { "\"\"" } else { word }).join(" "),
    }
}

/// The commit that the working tree stands on. What the benchmarks write themselves does not count as a change.
fn commit() -> String {
    let changes = said(
        "git",
        &["status", "--porcelain", "--", ":/", ":(top,exclude)BENCHMARKS.md", ":(top,exclude)docs/benchmarks"],
    );
    let dirty = if changes.is_empty() { "" } else { " with changes" };
    format!("{}{dirty}", said("git", &["rev-parse", "--short=10", "HEAD"]))
}

/// What a program prints; nothing where it cannot be run.
fn said(program: impl AsRef<std::ffi::OsStr>, arguments: &[&str]) -> String {
    let ended = Command::new(program).args(arguments).current_dir(env!("CARGO_MANIFEST_DIR")).output();
    ended.map(|ended| String::from_utf8_lossy(&ended.stdout).trim().to_owned()).unwrap_or_default()
}
