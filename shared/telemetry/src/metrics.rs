//! Every metric of Refile. Names, labels and help stand in [`ALL`]; nothing else defines one.
//!
//! The numbers of the whole fleet (tasks, reviews, escalations, queues) are kept by the store and exported by each
//! coordinator alike: exact across restarts, so take the maximum over instances, never the sum. The others count what
//! their own process did.

use prometheus::{CounterVec, GaugeVec, HistogramOpts, HistogramVec, IntCounterVec, IntGaugeVec, Opts, Registry};

/// What kind of a metric it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts in buckets.
    Histogram,
}

/// Who keeps the number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// The store, for the whole fleet.
    Fleet,
    /// Each process for itself.
    Process,
}

/// One metric.
#[derive(Debug, Clone, Copy)]
pub struct Definition {
    /// The name, with prefix.
    pub name: &'static str,
    /// What kind it is.
    pub kind: Kind,
    /// Who keeps it.
    pub scope: Scope,
    /// The names of its labels.
    pub labels: &'static [&'static str],
    /// What it tells.
    pub help: &'static str,
}

macro_rules! metrics {
    ($($scope:ident $kind:ident $name:literal [$($label:literal),*] $help:literal;)+) => {
        /// Every metric, in the order of the documentation.
        pub const ALL: &[Definition] = &[$(Definition {
            name: concat!("refile_", $name),
            kind: Kind::$kind,
            scope: Scope::$scope,
            labels: &[$($label),*],
            help: $help,
        }),+];
    };
}

metrics! {
    Fleet Counter "tasks_submitted_total" [] "Tasks submitted.";
    Fleet Counter "tasks_finished_total" ["outcome"] "Tasks that reached their outcome.";
    Fleet Gauge "tasks" ["state"] "Tasks by state.";
    Fleet Histogram "task_attempts" ["workflow", "phase", "outcome"] "Attempts that a phase of a finished task took.";
    Fleet Gauge "task_attempts_current" ["attempt"] "Unfinished tasks by the attempt that they are at.";
    Fleet Gauge "merge_ratio" [] "Merged tasks among finished ones, 0 to 1.";
    Fleet Gauge "attempt_bimodality" [] "Share of finished tasks that took one attempt times four times the share that took three or more: 1 where the fleet is split in halves, 0 where it is not.";
    Fleet Counter "reviews_total" ["reviewer", "verdict"] "Reviews that gave a verdict.";
    Fleet Counter "review_failures_total" ["reviewer", "kind"] "Reviews that failed; never charged to the coder.";
    Fleet Counter "reviewer_labels_total" ["reviewer", "confidence", "result"] "Verdicts that people's decisions called right or wrong, by the tenth of confidence that they lie in.";
    Fleet Counter "agent_failures_total" ["agent", "kind"] "Runs of an agent that failed; never charged to the coder.";
    Fleet Counter "refiles_total" ["cause"] "Attempts started because the one before was rejected.";
    Fleet Counter "repeated_rejections_total" [] "Rejections that repeated the one before, or whose diff was the one before.";
    Fleet Counter "gate_failures_total" ["gate"] "Gates that failed.";
    Fleet Counter "escalations_total" ["reason"] "Tasks parked for a person.";
    Fleet Counter "escalation_decisions_total" ["action"] "Escalations that people decided.";
    Fleet Gauge "escalations_open" ["reason"] "Escalations that wait for a person.";
    Fleet Gauge "pull_requests_waiting" [] "Pull requests that people on the forge have to decide on.";
    Fleet Gauge "escalation_oldest_seconds" [] "How long the oldest open escalation has waited.";
    Fleet Gauge "queue_depth" ["queue", "priority"] "Jobs that are ready and unclaimed.";
    Fleet Gauge "queue_oldest_seconds" ["queue"] "How long the oldest ready job has waited.";
    Fleet Gauge "queue_delayed" [] "Jobs that wait for their time after a failure.";
    Fleet Gauge "outcomes_waiting" [] "Outcomes that no coordinator has decided yet.";
    Fleet Gauge "leases" ["queue"] "Jobs that workers hold.";
    Fleet Counter "leases_expired_total" ["queue"] "Leases that ran out.";
    Fleet Counter "stale_outcomes_total" [] "Outcomes that changed nothing because their fence had moved.";
    Fleet Counter "quarantined_total" [] "Jobs and outcomes that could not be decoded.";
    Fleet Gauge "quarantined" [] "Jobs and outcomes in quarantine now.";
    Fleet Gauge "provider_paused" ["provider", "model"] "1 while a provider is left alone, or one of its models; until a call goes well.";
    Fleet Gauge "workers" ["role"] "Processes that said within the last minute that they live.";
    Process Histogram "job_duration_seconds" ["queue"] "How long jobs took, from claim to report.";
    Process Histogram "job_wait_seconds" ["queue"] "How long claimed jobs had been ready.";
    Process Counter "llm_requests_total" ["provider", "model", "result"] "Calls to models.";
    Process Histogram "llm_request_seconds" ["provider", "model"] "How long calls to models took.";
    Process Counter "llm_tokens_total" ["provider", "model", "direction"] "Tokens, direction input or output.";
    Process Counter "llm_cost_usd_total" ["provider", "model"] "US dollars that calls to models cost; nothing of models whose price nobody knows.";
    Process Gauge "reviewer_threshold" ["reviewer"] "The confidence that a reviewer's verdict must exceed, as a coordinator decides now.";
    Process Gauge "reviewer_verdicts" ["reviewer", "result"] "Verdicts of the newest 10,000 tasks by whether people's decisions, reverts and changes that stood call them right, wrong or neither (unlabelled), as this process found them within ten minutes.";
    Process Gauge "reviewer_changes" ["reviewer", "fate"] "Verdicts among those about changes that stood on their base branch for a week or were reverted; without a series where no process looks into git.";
    Process Gauge "reviewer_right_ratio" ["reviewer", "confidence", "bound"] "Share of right verdicts among those with a label, by the tenth of confidence that they lie in: the share itself, and where its 95 % interval begins (low) and ends (high).";
    Process Gauge "reviewer_suggested_threshold" ["reviewer"] "The threshold above which at least 80 % of a reviewer's verdicts are right as far as labels tell; without a series where there is none or there are too few labels.";
    Process Histogram "store_command_seconds" ["operation"] "How long store operations took, waiting for work excluded.";
    Process Gauge "build_info" ["version"] "Always 1.";
}

/// The buckets of `refile_task_attempts`.
pub const ATTEMPT_BUCKETS: [u32; 6] = [1, 2, 3, 4, 5, 8];

/// What one process counts.
#[derive(Debug, Clone)]
pub struct Metrics {
    /// Where the metrics are gathered from.
    pub registry: Registry,
    /// `refile_job_duration_seconds`
    pub job_duration: HistogramVec,
    /// `refile_job_wait_seconds`
    pub job_wait: HistogramVec,
    /// `refile_llm_requests_total`
    pub llm_requests: IntCounterVec,
    /// `refile_llm_request_seconds`
    pub llm_seconds: HistogramVec,
    /// `refile_llm_tokens_total`
    pub llm_tokens: IntCounterVec,
    /// `refile_llm_cost_usd_total`
    pub llm_cost: CounterVec,
    /// `refile_reviewer_threshold`
    pub reviewer_threshold: GaugeVec,
    /// `refile_reviewer_verdicts`
    pub reviewer_verdicts: GaugeVec,
    /// `refile_reviewer_changes`
    pub reviewer_changes: GaugeVec,
    /// `refile_reviewer_right_ratio`
    pub reviewer_right_ratio: GaugeVec,
    /// `refile_reviewer_suggested_threshold`
    pub reviewer_suggested_threshold: GaugeVec,
    /// `refile_store_command_seconds`
    pub store_command: HistogramVec,
}

/// The definition of a metric.
fn definition(name: &str) -> &'static Definition {
    ALL.iter().find(|d| d.name == name).unwrap_or(&ALL[0])
}

fn histogram(registry: &Registry, name: &str, buckets: &[f64]) -> prometheus::Result<HistogramVec> {
    let d = definition(name);
    let histogram = HistogramVec::new(HistogramOpts::new(d.name, d.help).buckets(buckets.to_vec()), d.labels)?;
    registry.register(Box::new(histogram.clone()))?;
    Ok(histogram)
}

fn counter(registry: &Registry, name: &str) -> prometheus::Result<IntCounterVec> {
    let d = definition(name);
    let counter = IntCounterVec::new(Opts::new(d.name, d.help), d.labels)?;
    registry.register(Box::new(counter.clone()))?;
    Ok(counter)
}

fn gauge(registry: &Registry, name: &str) -> prometheus::Result<GaugeVec> {
    let d = definition(name);
    let gauge = GaugeVec::new(Opts::new(d.name, d.help), d.labels)?;
    registry.register(Box::new(gauge.clone()))?;
    Ok(gauge)
}

/// A counter that grows by fractions.
fn sum(registry: &Registry, name: &str) -> prometheus::Result<CounterVec> {
    let d = definition(name);
    let counter = CounterVec::new(Opts::new(d.name, d.help), d.labels)?;
    registry.register(Box::new(counter.clone()))?;
    Ok(counter)
}

impl Metrics {
    /// Defines the metrics that a process keeps itself.
    pub fn new() -> prometheus::Result<Self> {
        const JOBS: [f64; 10] = [0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 1800.0, 3600.0];
        const CALLS: [f64; 8] = [0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0];
        const COMMANDS: [f64; 9] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0];
        let registry = Registry::new();
        let build = definition("refile_build_info");
        let info = IntGaugeVec::new(Opts::new(build.name, build.help), build.labels)?;
        registry.register(Box::new(info.clone()))?;
        info.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        Ok(Self {
            job_duration: histogram(&registry, "refile_job_duration_seconds", &JOBS)?,
            job_wait: histogram(&registry, "refile_job_wait_seconds", &JOBS)?,
            llm_requests: counter(&registry, "refile_llm_requests_total")?,
            llm_seconds: histogram(&registry, "refile_llm_request_seconds", &CALLS)?,
            llm_tokens: counter(&registry, "refile_llm_tokens_total")?,
            llm_cost: sum(&registry, "refile_llm_cost_usd_total")?,
            reviewer_threshold: gauge(&registry, "refile_reviewer_threshold")?,
            reviewer_verdicts: gauge(&registry, "refile_reviewer_verdicts")?,
            reviewer_changes: gauge(&registry, "refile_reviewer_changes")?,
            reviewer_right_ratio: gauge(&registry, "refile_reviewer_right_ratio")?,
            reviewer_suggested_threshold: gauge(&registry, "refile_reviewer_suggested_threshold")?,
            store_command: histogram(&registry, "refile_store_command_seconds", &COMMANDS)?,
            registry,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_there_once_and_well_formed() {
        let mut seen = std::collections::BTreeSet::new();
        for d in ALL {
            assert!(seen.insert(d.name), "{} is there twice", d.name);
            assert_eq!(d.name.ends_with("_total"), d.kind == Kind::Counter, "{}", d.name);
            assert!(!d.labels.contains(&"task"), "{} has an unbounded label", d.name);
        }
    }

    /// Every metric as a page for people.
    fn page() -> String {
        use std::fmt::Write as _;
        let mut page = "# Metrics\n\nGenerated from `shared/telemetry/src/metrics.rs`; a test there fails when this page says \
                        something else. Numbers of the fleet are kept by the store and exported by each coordinator alike: \
                        take their maximum over instances. Numbers of a process are its own.\n\n\
                        | name | kind | of | labels | |\n| --- | --- | --- | --- | --- |\n"
            .to_owned();
        for d in ALL {
            let labels = d.labels.iter().map(|l| format!("`{l}`")).collect::<Vec<_>>().join(", ");
            let (kind, of) = (format!("{:?}", d.kind).to_lowercase(), format!("{:?}", d.scope).to_lowercase());
            let _ = writeln!(page, "| `{}` | {kind} | {of} | {labels} | {} |", d.name, d.help);
        }
        page
    }

    #[test]
    fn the_page_of_metrics_says_what_there_is() {
        let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
        let found = std::fs::read_to_string(&file).unwrap_or_default();
        assert!(found == page(), "docs/metrics.md should be:\n{}", page());
    }

    #[test]
    fn a_process_defines_what_is_listed() {
        let metrics = Metrics::new().unwrap();
        let names: Vec<&str> = ALL.iter().filter(|d| d.scope == Scope::Process).map(|d| d.name).collect();
        metrics.job_duration.with_label_values(&["code"]).observe(1.0);
        metrics.job_wait.with_label_values(&["code"]).observe(1.0);
        metrics.llm_requests.with_label_values(&["p", "m", "ok"]).inc();
        metrics.llm_seconds.with_label_values(&["p", "m"]).observe(1.0);
        metrics.llm_tokens.with_label_values(&["p", "m", "input"]).inc();
        metrics.llm_cost.with_label_values(&["p", "m"]).inc_by(0.01);
        metrics.reviewer_threshold.with_label_values(&["r"]).set(0.6);
        metrics.reviewer_verdicts.with_label_values(&["r", "right"]).set(1.0);
        metrics.reviewer_changes.with_label_values(&["r", "stood"]).set(1.0);
        metrics.reviewer_right_ratio.with_label_values(&["r", "0.9", "low"]).set(0.8);
        metrics.reviewer_suggested_threshold.with_label_values(&["r"]).set(0.7);
        metrics.store_command.with_label_values(&["claim"]).observe(0.1);
        let gathered: Vec<String> = metrics.registry.gather().iter().map(|f| f.name().to_owned()).collect();
        assert_eq!(gathered.len(), names.len());
        assert!(names.iter().all(|n| gathered.iter().any(|g| g == n)));
    }
}
