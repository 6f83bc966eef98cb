//! What was measured.

use serde::Serialize;

/// All of one run of the set.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Figures {
    /// Whether the sizes were cut down, or the build is none for release: for trying the program and not for its figures.
    pub(crate) is_trial: bool,
    pub(crate) took_s: f64,
    pub(crate) machine: Machine,
    pub(crate) throughput: Throughput,
    pub(crate) rejected: Throughput,
    pub(crate) redis_at_rate: AtRate,
    pub(crate) sqlite: Sqlite,
    pub(crate) sqlite_at_rate: AtRate,
    pub(crate) growth: Vec<Growth>,
    pub(crate) turns: Vec<Turns>,
    pub(crate) heartbeats: Heartbeats,
    pub(crate) idle: Idle,
    pub(crate) killed: Killed,
    pub(crate) starts: Vec<Start>,
    pub(crate) trees: Trees,
    pub(crate) binary_bytes: f64,
}

/// What it ran on.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Machine {
    pub(crate) cpu: String,
    pub(crate) cores: usize,
    pub(crate) memory_gib: f64,
    pub(crate) kernel: String,
    pub(crate) redis: String,
    pub(crate) rustc: String,
    pub(crate) refile: String,
    pub(crate) build: String,
    pub(crate) redis_settings: String,
}

/// As fast as it goes, on Redis.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Throughput {
    pub(crate) tasks: u64,
    pub(crate) rounds: usize,
    pub(crate) tasks_per_s: f64,
    pub(crate) limit_tasks_per_s: f64,
    /// The median of the rounds' ratios.
    pub(crate) ratio: f64,
    pub(crate) ratios: Vec<f64>,
    /// Milliseconds of processor time for a task.
    pub(crate) cpu_coordinator: f64,
    pub(crate) cpu_workers: f64,
    pub(crate) cpu_submitter: f64,
    pub(crate) cpu_redis: f64,
    pub(crate) commands: f64,
    pub(crate) inner_commands: f64,
    pub(crate) memory_open: f64,
    pub(crate) memory_finished: f64,
    pub(crate) aof_open: f64,
    pub(crate) aof_finished: f64,
}

/// Percentiles in milliseconds.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(crate) struct Points {
    pub(crate) p50: f64,
    pub(crate) p90: f64,
    pub(crate) p99: f64,
    pub(crate) p99_9: f64,
    pub(crate) max: f64,
}

/// At a rate that the fleet keeps up with.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct AtRate {
    pub(crate) tasks: u64,
    pub(crate) rate: u64,
    pub(crate) rounds: usize,
    pub(crate) submit_to_claim: Points,
    pub(crate) outcome_to_claim: Points,
}

/// As fast as it goes, on SQLite in one process.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Sqlite {
    pub(crate) tasks: u64,
    pub(crate) rounds: usize,
    pub(crate) tasks_per_s: f64,
    pub(crate) claim: Points,
    /// Milliseconds for a task.
    pub(crate) cpu: f64,
    pub(crate) file_open: f64,
    pub(crate) file_finished: f64,
}

/// How fast it goes with so many further open tasks in the store.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Growth {
    pub(crate) backlog: u64,
    pub(crate) rounds: usize,
    pub(crate) tasks_per_s: f64,
    pub(crate) memory_per_open_task: f64,
}

/// How long single tasks waited for their claim.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(crate) struct Wait {
    pub(crate) p50_ms: f64,
    pub(crate) max_ms: f64,
    /// Jobs that were claimed between the submission and the claim.
    pub(crate) p50_jobs: f64,
    pub(crate) max_jobs: f64,
}

/// The wait in an empty fleet, and behind the backlog of another repository.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Turns {
    pub(crate) engine: String,
    pub(crate) backlog: u64,
    pub(crate) probes: usize,
    pub(crate) empty: Wait,
    pub(crate) behind: Wait,
}

/// Shares of a core while leases are extended.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Heartbeats {
    pub(crate) leases: u64,
    pub(crate) every_s: f64,
    pub(crate) seconds: f64,
    pub(crate) redis_percent: f64,
    pub(crate) coordinator_percent: f64,
    pub(crate) worker_percent: f64,
}

/// Shares of a core while there is nothing to do.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Idle {
    pub(crate) seconds: f64,
    pub(crate) coordinator_percent: f64,
    pub(crate) coder_percent: f64,
    pub(crate) reviewer_percent: f64,
    pub(crate) redis_percent: f64,
    /// Resident bytes of the coordinator.
    pub(crate) coordinator_rss: f64,
}

/// Jobs of a worker that was killed.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Killed {
    pub(crate) jobs: u64,
    pub(crate) kills: usize,
    pub(crate) lease_ms: f64,
    /// From the kill to the next claim, less the lease.
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
}

/// How many attempts begin together where several do.
pub(crate) const TOGETHER: usize = 4;

/// The fetch of the base and the tree of an attempt.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Trees {
    pub(crate) files: u64,
    pub(crate) rounds: usize,
    /// Where nothing was checked out ahead.
    pub(crate) cold_ms: f64,
    /// Where the base as it was before was, and ten files changed since.
    pub(crate) ahead_ms: f64,
    /// The same of the last of several that began together.
    pub(crate) together_ms: f64,
}

/// The start of `refile up`.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Start {
    pub(crate) engine: String,
    pub(crate) rounds: usize,
    /// Until `/readyz` says yes.
    pub(crate) ready_ms: f64,
    /// Resident bytes five seconds later.
    pub(crate) rss: f64,
}

/// The middle of some values; 0 where there are none.
pub(crate) fn median(values: &[f64]) -> f64 {
    let sorted = sorted(values);
    match (sorted.len() / 2, sorted.len() % 2) {
        (0, 0) => 0.0,
        (middle, 0) => f64::midpoint(sorted[middle - 1], sorted[middle]),
        (middle, _) => sorted[middle],
    }
}

/// The least value that so large a share of the values does not exceed; 0 where there are none.
pub(crate) fn quantile(values: &[f64], share: f64) -> f64 {
    let sorted = sorted(values);
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.clamp(1, sorted.len().max(1)) - 1).copied().unwrap_or(0.0)
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}
