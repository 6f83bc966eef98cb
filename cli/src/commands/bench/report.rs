//! The figures, for people as a table and for scripts as JSON.

use comfy_table::CellAlignment;
use serde::Serialize;

use super::latency::Summary;
use crate::output;

/// What a benchmark found.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    /// The store's URL without its password.
    pub(super) store: String,
    pub(super) tasks: u64,
    /// From the first submission to the end of the last task.
    pub(super) seconds: f64,
    pub(super) tasks_per_s: f64,
    /// From the call that submits, or from when the task was due with `--rate`, to the claim.
    pub(super) submit_to_claim_ms: Summary,
    /// From the end of a job to the claim of the job that follows from it.
    pub(super) outcome_to_claim_ms: Summary,
    /// Of calls that claim: those that found jobs which were ready.
    pub(super) claim_ms: Summary,
    pub(super) claims: Claims,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) limit_tasks_per_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ratio: Option<f64>,
    pub(super) cpu_s_per_1000: Cpu,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) redis: Option<OnRedis>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) sqlite: Option<OnSqlite>,
    /// Open tasks beside those that were done.
    pub(super) backlog: u64,
    pub(super) payload: usize,
    pub(super) workers: usize,
    pub(super) concurrency: usize,
    pub(super) rejected: f64,
    pub(super) rate: Option<f64>,
}

/// Jobs that were claimed.
#[derive(Debug, Serialize)]
pub(super) struct Claims {
    pub(super) code: u64,
    pub(super) review: u64,
}

/// Seconds of processor time per 1,000 tasks.
#[derive(Debug, Default, Serialize)]
pub(super) struct Cpu {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) coordinator: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) workers: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) submitter: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) redis: Option<f64>,
    /// All of them, where they are one process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) process: Option<f64>,
}

/// What a Redis server tells.
#[derive(Debug, Serialize)]
pub(super) struct OnRedis {
    pub(super) version: String,
    /// Commands that clients sent: scripts by their digests, waits for a token.
    pub(super) commands_per_task: f64,
    /// Commands that were carried out, those inside scripts included.
    pub(super) inner_commands_per_task: f64,
    /// Of the backlog's tasks, where there is one.
    pub(super) memory_bytes_per_open_task: Option<f64>,
    pub(super) memory_bytes_per_finished_task: Option<f64>,
    /// Bytes that were appended to the file; nothing where it was rewritten meanwhile, or there is none.
    pub(super) aof_bytes_per_open_task: Option<f64>,
    pub(super) aof_bytes_per_finished_task: Option<f64>,
}

/// How much room a task takes in a SQLite file.
#[derive(Debug, Serialize)]
pub(super) struct OnSqlite {
    pub(super) file_bytes_per_open_task: f64,
    pub(super) file_bytes_per_finished_task: f64,
}

impl Report {
    /// Prints the figures.
    pub(super) fn print(&self, json: bool) -> anyhow::Result<()> {
        if json {
            return output::json(self);
        }
        output::line(format!(
            "{} tasks on {}: {:.0} tasks/s in {:.2} s ({} code and {} review jobs)",
            self.tasks, self.store, self.tasks_per_s, self.seconds, self.claims.code, self.claims.review
        ));
        if let (Some(limit), Some(ratio)) = (self.limit_tasks_per_s, self.ratio) {
            output::line(format!("bare streams on the same server: {limit:.0} tasks/s; ratio {ratio:.3}"));
        }
        output::line("");
        let mut table = output::table(&["milliseconds", "p50", "p90", "p99", "p99.9", "max"]);
        for (name, s) in [
            ("submit to claim", self.submit_to_claim_ms),
            ("outcome to next claim", self.outcome_to_claim_ms),
            ("a call that claims", self.claim_ms),
        ] {
            let figures = [s.p50, s.p90, s.p99, s.p99_9, s.max].map(|ms| format!("{ms:.2}"));
            table.add_row(std::iter::once(name.to_owned()).chain(figures));
        }
        aligned(table);
        output::line("");
        let mut table = output::table(&["per task", "value"]);
        for (name, value) in self.per_task() {
            table.add_row([name.to_owned(), value]);
        }
        aligned(table);
        Ok(())
    }

    fn per_task(&self) -> Vec<(&'static str, String)> {
        let cpu = &self.cpu_s_per_1000;
        // Seconds per 1,000 tasks are milliseconds per task.
        let ms = |of: Option<f64>| of.map(|s| format!("{s:.3} ms"));
        let bytes = |of: Option<f64>| of.map(|b| format!("{b:.0} B"));
        let (redis, sqlite) = (self.redis.as_ref(), self.sqlite.as_ref());
        let number = |of: Option<f64>| of.map(|n| format!("{n:.2}"));
        [
            ("processor: coordinator", ms(cpu.coordinator)),
            ("processor: workers", ms(cpu.workers)),
            ("processor: submitter", ms(cpu.submitter)),
            ("processor: Redis", ms(cpu.redis)),
            ("processor", ms(cpu.process)),
            ("commands beside reads of records", number(redis.map(|r| r.commands_per_task))),
            ("commands carried out", number(redis.map(|r| r.inner_commands_per_task))),
            ("memory while open", bytes(redis.and_then(|r| r.memory_bytes_per_open_task))),
            ("memory when finished", bytes(redis.and_then(|r| r.memory_bytes_per_finished_task))),
            ("append-only file while open", bytes(redis.and_then(|r| r.aof_bytes_per_open_task))),
            ("append-only file when finished", bytes(redis.and_then(|r| r.aof_bytes_per_finished_task))),
            ("file while open", bytes(sqlite.map(|s| s.file_bytes_per_open_task))),
            ("file when finished", bytes(sqlite.map(|s| s.file_bytes_per_finished_task))),
        ]
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)))
        .collect()
    }
}

/// Prints a table with its figures on the right.
fn aligned(mut table: comfy_table::Table) {
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    output::print_table(&table, "");
}
