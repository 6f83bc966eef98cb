//! What is aimed at, and whether it was reached: computed from the figures.

use crate::figures::{Figures, Growth};

/// Attempts that begin together.
pub(crate) const TOGETHER: usize = 4;

/// A bound that a figure is to keep.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Bound {
    AtLeast(f64),
    Under(f64),
    AtMost(f64),
}

impl Bound {
    /// Whether a figure keeps it. One that was not measured, 0 or no number, keeps none.
    pub(crate) fn is_met(self, figure: f64) -> bool {
        let is_measured = figure.is_finite() && figure != 0.0;
        is_measured
            && match self {
                Self::AtLeast(bound) => figure >= bound,
                Self::Under(bound) => figure < bound,
                Self::AtMost(bound) => figure <= bound,
            }
    }

    fn words(self) -> (&'static str, f64) {
        match self {
            Self::AtLeast(bound) => ("at least", bound),
            Self::Under(bound) => ("under", bound),
            Self::AtMost(bound) => ("at most", bound),
        }
    }
}

/// One target and its figure.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) what: String,
    pub(crate) bound: Bound,
    pub(crate) figure: f64,
    pub(crate) unit: &'static str,
}

impl Target {
    /// The line of the table. A trial has no verdicts: its figures are not of the sizes that the targets name.
    pub(crate) fn row(&self, is_trial: bool) -> [String; 4] {
        let (words, bound) = self.bound.words();
        let verdict = if is_trial {
            "a trial"
        } else if self.bound.is_met(self.figure) {
            "met"
        } else {
            "**not met**"
        };
        let unit = self.unit;
        [
            self.what.clone(),
            format!("{words} {}{unit}", short(bound)),
            format!("{}{unit}", short(self.figure)),
            verdict.to_owned(),
        ]
    }
}

/// A number with as many digits as say something.
pub(crate) fn short(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => crate::svg::number(value),
        size if size >= 10.0 => trimmed(format!("{value:.1}")),
        size if size >= 0.1 || size == 0.0 => trimmed(format!("{value:.2}")),
        _ => trimmed(format!("{value:.3}")),
    }
}

fn trimmed(text: String) -> String {
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// Every target with its figure.
pub(crate) fn targets(of: &Figures) -> Vec<Target> {
    let mut all: Vec<Target> = Vec::new();
    let mut add = |what: &str, bound, figure, unit| all.push(Target { what: what.to_owned(), bound, figure, unit });
    let mb = |bytes: f64| bytes / 1e6;
    let (at_least, under) = (Bound::AtLeast, Bound::Under);
    add("Redis: throughput, as a share of bare streams in the same run", at_least(0.4), of.throughput.ratio, "");
    let rate = &of.redis_at_rate;
    add("Redis, 100 tasks/s: submit to claim, p50", under(2.0), rate.submit_to_claim.p50, " ms");
    add("Redis, 100 tasks/s: submit to claim, p99", under(10.0), rate.submit_to_claim.p99, " ms");
    add("Redis, 100 tasks/s: outcome to next claim, p50", under(2.0), rate.outcome_to_claim.p50, " ms");
    add("Redis, 100 tasks/s: outcome to next claim, p99", under(10.0), rate.outcome_to_claim.p99, " ms");
    let idle = &of.idle;
    let fleet = idle.coordinator_percent + idle.coder_percent + idle.reviewer_percent;
    add("An idle fleet of three processes, of a core", under(1.0), fleet, " %");
    add("SQLite, one process: throughput", at_least(3_000.0), of.sqlite.tasks_per_s, " tasks/s");
    add("SQLite: a call that claims, p99, as fast as it goes", under(10.0), of.sqlite.claim.p99, " ms");
    // By their places: the smallest backlog, ten times, a hundred times, a thousand times as many.
    let (many, some) = (of.growth.get(3), of.growth.get(1));
    let speed = |growth: Option<&Growth>| growth.map_or(f64::NAN, |g| g.tasks_per_s);
    let share = 100.0 * speed(many) / speed(some);
    add("1,000,000 open tasks: throughput, of that with 10,000", at_least(80.0), share, " %");
    let memory = many.map_or(f64::NAN, |g| g.memory_per_open_task);
    add("1,000,000 open tasks: Redis memory for each", under(2_500.0), memory, " B");
    let beats = of.heartbeats.coordinator_percent + of.heartbeats.redis_percent;
    add("10,000 leases extended every 10 s: coordinator and Redis, of a core", under(10.0), beats, " %");
    add(
        "A killed worker's job is claimed again: p99 beyond its lease",
        Bound::AtMost(2_000.0),
        of.killed.p99_ms,
        " ms",
    );
    for start in &of.starts {
        add(&format!("`refile up` on {}: start to ready", start.engine), under(300.0), start.ready_ms, " ms");
    }
    add("The tree of an attempt, 10,000 files, checked out ahead", under(200.0), of.trees.ahead_ms, " ms");
    let burst = format!("The same, the last of {TOGETHER} attempts that begin together");
    add(&burst, under(200.0), of.trees.together_ms, " ms");
    add("The `refile` binary", under(30.0), mb(of.binary_bytes), " MB");
    add("An idle coordinator, resident", under(40.0), mb(idle.coordinator_rss), " MB");
    all
}
