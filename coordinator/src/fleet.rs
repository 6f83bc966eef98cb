//! The fleet's numbers as metrics. The store keeps them; each coordinator exports the same.

use std::collections::{BTreeMap, BTreeSet};

use prometheus::proto::{Bucket, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType};
use refile_core::count::{Count, labels};
use refile_core::event::PersonDecision;
use refile_core::task::{Cause, EscalationReason};
use refile_core::{Queue, TaskState};
use refile_store::{PauseTarget, Paused, Stats};
use refile_telemetry::metrics::{ALL, ATTEMPT_BUCKETS, Definition, Kind, Scope};

/// The values of a metric's labels, and the number.
type Sample = (Vec<String>, f64);

/// The fleet's numbers as metric families, in the order of their definitions. A family without a sample is left out,
/// but a plain number is never: it is 0.
pub fn families(stats: &Stats, pauses: &[Paused]) -> Vec<MetricFamily> {
    let counts: Vec<(Count, i64)> = stats.counts.iter().filter_map(|(k, n)| Some((Count::parse(k)?, *n))).collect();
    ALL.iter()
        .filter(|d| d.scope == Scope::Fleet)
        .map(|d| match d.kind {
            Kind::Histogram => attempts_family(d, &counts),
            _ if d.name == "refile_provider_paused" => family(d, paused(pauses)),
            _ => family(d, samples(d, stats, &counts)),
        })
        .filter(|f| !f.get_metric().is_empty())
        .collect()
}

/// The providers that are left alone, and those that one call is trying.
fn paused(pauses: &[Paused]) -> Vec<Sample> {
    let of_provider = |paused: &Paused| match &paused.target {
        PauseTarget::Provider(part) => Some(vec![part.provider.clone(), part.model.clone().unwrap_or_default()]),
        PauseTarget::Queue(_) => None,
    };
    // Several keys of one provider make one series.
    let labels: BTreeSet<Vec<String>> = pauses.iter().filter_map(of_provider).collect();
    labels.into_iter().map(|labels| (labels, 1.0)).collect()
}

/// The samples of a counter or a gauge.
fn samples(definition: &Definition, stats: &Stats, counts: &[(Count, i64)]) -> Vec<Sample> {
    let plain = |value: f64| vec![(Vec::new(), value)];
    let seconds = |ms: u64| ms as f64 / 1_000.0;
    let name = definition.name.trim_start_matches("refile_");
    match name {
        "merge_ratio" => merge_ratio(counts).map(plain).unwrap_or_default(),
        "attempt_bimodality" => attempt_bimodality(counts).map(plain).unwrap_or_default(),
        "escalation_oldest_seconds" => plain(stats.oldest_escalation_ms.map_or(0.0, seconds)),
        "queue_delayed" => plain(stats.delayed as f64),
        "outcomes_waiting" => plain(stats.outcomes as f64),
        "quarantined" => plain(stats.quarantined as f64),
        "queue_depth" => every_queue()
            .flat_map(|q| refile_core::Priority::ALL.iter().map(move |p| (q, *p)))
            .map(|(q, p)| (vec![q.to_string(), p.to_string()], stats.depth.get(&(q, p)).copied().unwrap_or(0) as f64))
            .collect(),
        "queue_oldest_seconds" => every_queue()
            .map(|q| (vec![q.to_string()], stats.oldest_ms.get(&q).copied().map_or(0.0, seconds)))
            .collect(),
        "leases" => {
            every_queue().map(|q| (vec![q.to_string()], stats.leases.get(&q).copied().unwrap_or(0) as f64)).collect()
        }
        "workers" => {
            let mut roles: BTreeMap<String, f64> =
                ["coordinator", "coder", "reviewer"].map(|role| (role.to_owned(), 0.0)).into();
            for worker in &stats.workers {
                *roles.entry(worker.role.clone()).or_default() += 1.0;
            }
            roles.into_iter().map(|(role, n)| (vec![role], n)).collect()
        }
        _ => {
            let mut samples: BTreeMap<Vec<String>, f64> = zeros(definition).map(|labels| (labels, 0.0)).collect();
            let counted = counts.iter().filter(|(c, _)| c.metric == name);
            samples.extend(counted.map(|(c, n)| (c.labels.clone(), *n as f64)));
            samples.into_iter().collect()
        }
    }
}

/// The series that are there from the start, at 0, so that a rate sees their first event too: the plain number, or one for
/// each value of a label whose values are few and known.
fn zeros(definition: &Definition) -> impl Iterator<Item = Vec<String>> {
    fn names<T: Copy>(all: &[T], name: fn(T) -> &'static str) -> Vec<&'static str> {
        all.iter().map(|one| name(*one)).collect()
    }
    let finals: Vec<TaskState> = TaskState::ALL.iter().copied().filter(|s| s.is_final()).collect();
    let values = match definition.labels {
        [] => return vec![Vec::new()].into_iter(),
        ["outcome"] => names(&finals, TaskState::as_str),
        ["state"] => names(TaskState::ALL, TaskState::as_str),
        ["reason"] => names(EscalationReason::ALL, EscalationReason::as_str),
        ["cause"] => names(Cause::ALL, Cause::as_str),
        ["queue"] => names(Queue::ALL, Queue::as_str),
        ["action"] => PersonDecision::ACTIONS.to_vec(),
        _ => Vec::new(),
    };
    values.into_iter().map(|value| vec![value.to_owned()]).collect::<Vec<_>>().into_iter()
}

fn every_queue() -> impl Iterator<Item = refile_core::Queue> {
    refile_core::Queue::ALL.iter().copied()
}

/// The finished tasks that went through attempts, as (attempts, tasks).
fn attempts_used(counts: &[(Count, i64)]) -> impl Iterator<Item = (u32, f64)> {
    let attempts = labels("task_attempts").len() - 1;
    counts
        .iter()
        .filter(|(c, _)| c.metric == "task_attempts")
        .filter_map(move |(c, n)| Some((c.labels.get(attempts)?.parse().ok()?, *n as f64)))
}

fn merge_ratio(counts: &[(Count, i64)]) -> Option<f64> {
    let finished = |outcome: Option<&str>| -> i64 {
        counts
            .iter()
            .filter(|(c, _)| c.metric == "tasks_finished_total" && outcome.is_none_or(|o| c.labels == [o]))
            .map(|(_, n)| n)
            .sum()
    };
    let all = finished(None);
    (all > 0).then(|| finished(Some("merged")) as f64 / all as f64)
}

/// 4 · (share of tasks that took one attempt) · (share that took three or more).
fn attempt_bimodality(counts: &[(Count, i64)]) -> Option<f64> {
    let (mut one, mut many, mut all) = (0.0, 0.0, 0.0);
    for (attempts, tasks) in attempts_used(counts) {
        all += tasks;
        match attempts {
            1 => one += tasks,
            3.. => many += tasks,
            _ => {}
        }
    }
    (all > 0.0).then(|| 4.0 * (one / all) * (many / all))
}

fn family(definition: &Definition, samples: Vec<Sample>) -> MetricFamily {
    let metrics = samples
        .into_iter()
        .map(|(values, number)| {
            let mut metric = labelled(definition, &values);
            if definition.kind == Kind::Counter {
                let mut counter = Counter::default();
                counter.set_value(number);
                metric.set_counter(counter);
            } else {
                let mut gauge = Gauge::default();
                gauge.set_value(number);
                metric.set_gauge(gauge);
            }
            metric
        })
        .collect();
    let kind = if definition.kind == Kind::Counter { MetricType::COUNTER } else { MetricType::GAUGE };
    named(definition, kind, metrics)
}

/// The histogram of attempts, out of the counts by number of attempts.
fn attempts_family(definition: &Definition, counts: &[(Count, i64)]) -> MetricFamily {
    let mut series: BTreeMap<&[String], Vec<(u32, u64)>> = BTreeMap::new();
    for (count, n) in counts.iter().filter(|(c, _)| c.metric == "task_attempts") {
        let Some((attempts, labels)) = count.labels.split_last() else { continue };
        let (Ok(attempts), Ok(n)) = (attempts.parse(), u64::try_from(*n)) else { continue };
        series.entry(labels).or_default().push((attempts, n));
    }
    let metrics = series
        .into_iter()
        .map(|(values, used)| {
            let mut histogram = Histogram::default();
            let up_to = |most: u32| used.iter().filter(|(a, _)| *a <= most).map(|(_, n)| n).sum::<u64>();
            let buckets = ATTEMPT_BUCKETS.iter().map(|most| {
                let mut bucket = Bucket::default();
                bucket.set_upper_bound(f64::from(*most));
                bucket.set_cumulative_count(up_to(*most));
                bucket
            });
            histogram.set_bucket(buckets.collect());
            histogram.set_sample_count(up_to(u32::MAX));
            histogram.set_sample_sum(used.iter().map(|(a, n)| f64::from(*a) * *n as f64).sum());
            let mut metric = labelled(definition, values);
            metric.set_histogram(histogram);
            metric
        })
        .collect();
    named(definition, MetricType::HISTOGRAM, metrics)
}

fn labelled(definition: &Definition, values: &[String]) -> Metric {
    let pairs = definition.labels.iter().zip(values).map(|(name, value)| {
        let mut pair = LabelPair::default();
        pair.set_name((*name).to_owned());
        pair.set_value(value.clone());
        pair
    });
    let mut metric = Metric::default();
    metric.set_label(pairs.collect());
    metric
}

fn named(definition: &Definition, kind: MetricType, metrics: Vec<Metric>) -> MetricFamily {
    let mut family = MetricFamily::default();
    family.set_name(definition.name.to_owned());
    family.set_help(definition.help.to_owned());
    family.set_field_type(kind);
    family.set_metric(metrics);
    family
}

#[cfg(test)]
mod tests {
    use refile_store::{Pause, ProviderPart};

    use super::*;

    #[test]
    fn counts_become_metrics() {
        let count = |metric, labels: &[&str], n| (Count::new(metric, labels).key(), n);
        let stats = Stats {
            counts: [
                count("tasks_finished_total", &["merged"], 3),
                count("tasks_finished_total", &["rejected"], 1),
                count("task_attempts", &["change", "change", "merged", "1"], 2),
                count("task_attempts", &["change", "change", "merged", "3"], 1),
                count("task_attempts", &["change", "change", "merged", "12"], 1),
            ]
            .into(),
            ..Stats::default()
        };
        let text = prometheus::TextEncoder::new().encode_to_string(&families(&stats, &[])).unwrap();
        for line in [
            "refile_merge_ratio 0.75",
            "refile_attempt_bimodality 1",
            "refile_tasks_submitted_total 0",
            "refile_task_attempts_bucket{workflow=\"change\",phase=\"change\",outcome=\"merged\",le=\"2\"} 2",
            "refile_task_attempts_bucket{workflow=\"change\",phase=\"change\",outcome=\"merged\",le=\"8\"} 3",
            "refile_task_attempts_bucket{workflow=\"change\",phase=\"change\",outcome=\"merged\",le=\"+Inf\"} 4",
            "refile_task_attempts_sum{workflow=\"change\",phase=\"change\",outcome=\"merged\"} 17",
            "refile_queue_depth{queue=\"land\",priority=\"low\"} 0",
            "refile_workers{role=\"coder\"} 0",
            "refile_tasks_finished_total{outcome=\"merged\"} 3",
            "refile_tasks_finished_total{outcome=\"cancelled\"} 0",
            "refile_escalations_total{reason=\"poison_job\"} 0",
        ] {
            assert!(text.lines().any(|l| l == line), "no {line:?} in\n{text}");
        }
    }

    #[test]
    fn what_is_paused_of_a_provider_is_one_series_whatever_its_keys() {
        let paused = |key: &str, holds| Paused {
            target: PauseTarget::Provider(ProviderPart {
                provider: "p".to_owned(),
                model: Some("m".to_owned()),
                key: Some(key.to_owned()),
            }),
            pause: Pause { until: None, reason: String::new(), tries: 0 },
            holds,
        };
        let families = families(&Stats::default(), &[paused("0a", true), paused("1b", false)]);
        let text = prometheus::TextEncoder::new().encode_to_string(&families).unwrap();
        let lines: Vec<&str> = text.lines().filter(|l| l.starts_with("refile_provider_paused")).collect();
        assert_eq!(lines, ["refile_provider_paused{provider=\"p\",model=\"m\"} 1"]);
    }

    #[test]
    fn every_stored_count_has_a_definition_with_its_labels() {
        for (name, labels) in refile_core::count::METRICS {
            let found = ALL.iter().find(|d| d.name == format!("refile_{name}")).unwrap_or_else(|| panic!("{name}"));
            let of_histogram = usize::from(found.kind == Kind::Histogram);
            assert_eq!(found.labels, &labels[..labels.len() - of_histogram], "{name}");
        }
    }
}
