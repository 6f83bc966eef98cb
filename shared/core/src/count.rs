//! What is counted. Counters and gauges are kept by the store and change in the same step as the record, so that they
//! stay true whoever crashes.

use std::collections::BTreeMap;

use crate::task::{EscalationReason, Task, TaskState};

/// One counted thing: a metric's name and the values of its labels.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Count {
    /// The metric's name without the prefix `refile_`.
    pub metric: &'static str,
    /// The labels' values, in the order of [`labels`].
    pub labels: Vec<String>,
}

/// Parts of a stored key are joined by this; it is taken out of label values.
const SEPARATOR: char = '\u{1f}';

/// The counters and gauges that the store keeps, with the names of their labels.
pub const METRICS: &[(&str, &[&str])] = &[
    ("tasks_submitted_total", &[]),
    ("tasks_finished_total", &["outcome"]),
    ("task_attempts", &["workflow", "phase", "outcome", "attempts"]),
    ("reviews_total", &["reviewer", "verdict"]),
    ("review_failures_total", &["reviewer", "kind"]),
    ("reviewer_labels_total", &["reviewer", "confidence", "result"]),
    ("agent_failures_total", &["agent", "kind"]),
    ("refiles_total", &["cause"]),
    ("repeated_rejections_total", &[]),
    ("gate_failures_total", &["gate"]),
    ("escalations_total", &["reason"]),
    ("escalation_decisions_total", &["action"]),
    ("leases_expired_total", &["queue"]),
    ("stale_outcomes_total", &[]),
    ("quarantined_total", &[]),
    ("tasks", &["state"]),
    ("pull_requests_waiting", &[]),
    ("task_attempts_current", &["attempt"]),
    ("escalations_open", &["reason"]),
];

/// The names of a stored metric's labels.
pub fn labels(metric: &str) -> &'static [&'static str] {
    METRICS.iter().find(|(name, _)| *name == metric).map_or(&[], |(_, labels)| labels)
}

impl Count {
    /// A counted thing. `metric` is one of [`METRICS`].
    pub fn new(metric: &'static str, values: &[&str]) -> Self {
        debug_assert_eq!(labels(metric).len(), values.len(), "{metric}");
        Self { metric, labels: values.iter().map(|v| v.replace(SEPARATOR, " ")).collect() }
    }

    /// The key under which the store keeps it.
    pub fn key(&self) -> String {
        let mut key = self.metric.to_owned();
        for value in &self.labels {
            key.push(SEPARATOR);
            key.push_str(value);
        }
        key
    }

    /// Reads a stored key; `None` where it is of no known metric or has other labels.
    pub fn parse(key: &str) -> Option<Self> {
        let mut parts = key.split(SEPARATOR);
        let name = parts.next()?;
        let (metric, labels) = METRICS.iter().find(|(metric, _)| *metric == name)?;
        let values: Vec<String> = parts.map(str::to_owned).collect();
        (values.len() == labels.len()).then_some(Self { metric, labels: values })
    }
}

/// What the gauges say of a task: its state, and while it is open its attempt and why people are asked.
#[derive(PartialEq)]
struct Gauges {
    state: TaskState,
    attempt: Option<u32>,
    asked: Vec<EscalationReason>,
    /// Pull requests that people on the forge have to decide on.
    proposed: usize,
}

impl Gauges {
    fn of(task: &Task) -> Self {
        let is_open = matches!(task.state, TaskState::Open | TaskState::Escalated);
        let asked = if is_open { task.open_escalations().map(|e| e.reason).collect() } else { Vec::new() };
        let proposed = task.phases.iter().filter_map(|p| p.waiting_pull_request()).filter(|p| p.needs_people()).count();
        Self { state: task.state, attempt: is_open.then(|| task.attempt_number()), asked, proposed }
    }

    /// The gauges that the task is part of, each by 1.
    fn counts(&self) -> Vec<Count> {
        let mut counts = vec![Count::new("tasks", &[self.state.as_str()])];
        counts.extend(self.attempt.map(|n| Count::new("task_attempts_current", &[&n.to_string()])));
        counts.extend(self.asked.iter().map(|reason| Count::new("escalations_open", &[reason.as_str()])));
        counts.extend((0..self.proposed).map(|_| Count::new("pull_requests_waiting", &[])));
        counts
    }
}

/// What the stored numbers change by when `before` (nothing for a new task) becomes `after` and `counted` happened.
pub fn deltas<'a>(before: Option<&Task>, after: &Task, counted: impl Iterator<Item = &'a Count>) -> Vec<(String, i64)> {
    let mut deltas: BTreeMap<String, i64> = BTreeMap::new();
    let mut add = |count: &Count, by: i64| *deltas.entry(count.key()).or_default() += by;
    for count in counted {
        add(count, 1);
    }
    let (before, after) = (before.map(Gauges::of), Gauges::of(after));
    // Most steps leave the gauges as they are.
    if before.as_ref() != Some(&after) {
        after.counts().iter().for_each(|count| add(count, 1));
        before.iter().flat_map(Gauges::counts).for_each(|count| add(&count, -1));
    }
    deltas.into_iter().filter(|(_, by)| *by != 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_reads_back_and_odd_ones_do_not() {
        let count = Count::new("reviews_total", &["a\u{1f}b", "approved"]);
        assert_eq!(Count::parse(&count.key()), Some(count));
        assert_eq!(Count::parse("nonsense"), None);
        assert_eq!(Count::parse("reviews_total\u{1f}x"), None);
    }
}
