//! How much reviewers' confidences are worth: thresholds that follow a reviewer's own recent confidences, and a walk
//! through all records that tells how often its verdicts were right.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use refile_config::Config;
use refile_core::calibration::{FEWEST, Fate, Sample, calibrate, quantile, samples};
use refile_core::{Policy, Task, TaskState, Timestamp};
use refile_store::{Filter, Store, StoreError};
use refile_telemetry::Metrics;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::Coordinator;
use crate::view::shown;

/// How often thresholds are looked at anew.
const EVERY: Duration = Duration::from_mins(1);
/// So many of the newest tasks are looked through for recent confidences: of those that go on, and of the others. A long
/// queue of tasks that nobody has judged yet must not hide those that were.
const RECENT_TASKS: usize = 250;
/// So many of a reviewer's newest confidences count.
const RECENT: usize = 200;
/// Tasks that are read from the store at a time.
const PAGE: usize = 500;
/// How often the figures of `refile calibration` are looked at anew for the metrics.
const FIGURES_EVERY: Duration = Duration::from_mins(10);
/// So many of the newest tasks are looked through for them: a bound on the work, whatever the fleet has behind it.
const FIGURES_OF: usize = 10_000;
/// How long a change must have been on the base branch to be called good. A choice: what is wrong mostly shows sooner.
const STANDS_AFTER_MS: u64 = 7 * 24 * 3_600 * 1_000;

/// The rules as they are now: thresholds that follow recent confidences are numbers.
#[derive(Debug, Clone)]
pub struct Resolved {
    /// The rules.
    pub policy: Policy,
    /// Reviewers with too few confidences, to whom the policy's number applies; and how many those are.
    pub too_few: Vec<(String, usize)>,
}

/// Makes the rules by which outcomes are decided now.
pub async fn resolve(store: &dyn Store, config: &Config) -> Result<Resolved, StoreError> {
    let (mut policy, mut too_few) = (config.policy(), Vec::new());
    let quantiles: BTreeMap<&str, u8> = config.quantiles().into_iter().collect();
    if quantiles.is_empty() {
        return Ok(Resolved { policy, too_few });
    }
    let mut recent: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for task in &newest(store).await? {
        for sample in samples(task, Fate::Unknown).iter().rev() {
            let of_one = recent.entry(sample.reviewer.clone()).or_default();
            if of_one.len() < RECENT {
                of_one.push(sample.conf);
            }
        }
    }
    for reviewer in &mut policy.reviewers {
        let Some(percent) = quantiles.get(reviewer.name.as_str()) else { continue };
        let confidences = recent.get(&reviewer.name).map(Vec::as_slice).unwrap_or_default();
        reviewer.confidence = quantile(confidences, *percent);
        if reviewer.confidence.is_none() {
            too_few.push((reviewer.name.clone(), confidences.len()));
        }
    }
    Ok(Resolved { policy, too_few })
}

/// The tasks that changed last, newest first.
async fn newest(store: &dyn Store) -> Result<Vec<Task>, StoreError> {
    let (going_on, others): (Vec<TaskState>, Vec<TaskState>) =
        TaskState::ALL.iter().partition(|s| **s == TaskState::Open);
    let mut tasks = Vec::new();
    for states in [going_on, others] {
        let filter = Filter { states, ..Filter::default() };
        tasks.extend(store.list(&filter, None, RECENT_TASKS).await?.tasks);
    }
    tasks.sort_by_key(|task| std::cmp::Reverse(task.updated_at));
    Ok(tasks)
}

/// The rules of the moment, for all who decide.
#[derive(Debug)]
pub struct Rules<'a> {
    coordinator: &'a Coordinator,
    current: watch::Sender<Arc<Policy>>,
    /// Reviewers of whom it was said that they have too few confidences.
    said: BTreeSet<String>,
}

impl<'a> Rules<'a> {
    /// The rules as they are now. Where the store does not answer, those of the configuration.
    pub async fn now(coordinator: &'a Coordinator) -> Self {
        let (current, _) = watch::channel(Arc::new(coordinator.config.policy()));
        let mut rules = Self { coordinator, current, said: BTreeSet::new() };
        rules.look().await;
        rules
    }

    /// Where they can be read.
    pub fn subscribe(&self) -> watch::Receiver<Arc<Policy>> {
        self.current.subscribe()
    }

    /// Keeps them up to date until `shutdown`. Where no threshold follows anything there is nothing to do.
    pub async fn follow(mut self, shutdown: &CancellationToken) {
        while !self.coordinator.config.quantiles().is_empty() {
            tokio::select! { () = shutdown.cancelled() => break, () = tokio::time::sleep(EVERY) => {} }
            self.look().await;
        }
    }

    async fn look(&mut self) {
        let Resolved { policy, too_few } =
            match resolve(self.coordinator.store.as_ref(), &self.coordinator.config).await {
                Ok(resolved) => resolved,
                // The outcome loop says loudly that the store is away.
                Err(error) => return tracing::debug!(%error, "could not look at recent confidences"),
            };
        for reviewer in &policy.reviewers {
            let (name, to) = (&reviewer.name, policy.threshold(&reviewer.name));
            self.coordinator.metrics.reviewer_threshold.with_label_values(&[name]).set(to);
            let from = self.current.borrow().threshold(name);
            if (from - to).abs() > f64::EPSILON {
                tracing::info!(reviewer = name, from, to, "the threshold follows recent confidences");
            }
        }
        for (reviewer, confidences) in too_few {
            if self.said.insert(reviewer.clone()) {
                tracing::warn!(
                    reviewer,
                    confidences,
                    needed = FEWEST,
                    "too few confidences for a quantile: policy.confidence holds until there are enough"
                );
            }
        }
        self.current.send_replace(Arc::new(policy));
    }
}

/// What all records tell.
#[derive(Debug, Default)]
pub struct Walked {
    /// How many tasks were read.
    pub tasks: usize,
    /// How many could not be read, since another version wrote them.
    pub unreadable: usize,
    /// Every verdict, with whether it was right where that is known.
    pub samples: Vec<Sample>,
    /// The history of at least one repository was read.
    pub looked_into_git: bool,
    /// Repositories whose history could not be read, and why.
    pub unreachable: BTreeMap<String, String>,
}

/// Walks through the newest `most` tasks. `reverted` tells which tasks' changes were taken back on a base branch, by repository and
/// branch, or why that cannot be known; it is asked once for each.
pub async fn walk<F>(
    store: &dyn Store,
    now: Timestamp,
    most: usize,
    mut reverted: impl FnMut(String, String) -> F,
) -> Result<Walked, StoreError>
where
    F: Future<Output = Result<BTreeSet<String>, String>>,
{
    let mut walked = Walked::default();
    let mut histories: BTreeMap<(String, String), Option<BTreeSet<String>>> = BTreeMap::new();
    let mut cursor = None;
    loop {
        let page = store.list(&Filter::default(), cursor, PAGE.min(most - walked.tasks)).await?;
        walked.unreadable += page.undecodable.len();
        for task in &page.tasks {
            walked.tasks += 1;
            let place = (task.repository.clone(), task.base.clone());
            if task.state == TaskState::Merged && !histories.contains_key(&place) {
                let history = reverted(task.repository.clone(), task.base.clone()).await;
                if let Err(why) = &history {
                    walked.unreachable.insert(shown(&task.repository), why.clone());
                }
                walked.looked_into_git |= history.is_ok();
                histories.insert(place.clone(), history.ok());
            }
            let history = histories.get(&place).and_then(Option::as_ref);
            walked.samples.extend(samples(task, fate(task, history, now)));
        }
        cursor = page.next;
        if cursor.is_none() || walked.tasks >= most {
            return Ok(walked);
        }
    }
}

/// Keeps the figures of `refile calibration` as metrics until `shutdown`, from the newest 10,000 tasks. `reverted` is
/// that of [`walk`]; a process that does not look into git answers with an error.
pub async fn keep_figures<F>(
    store: &dyn Store,
    metrics: &Metrics,
    shutdown: &CancellationToken,
    mut reverted: impl FnMut(String, String) -> F,
) where
    F: Future<Output = Result<BTreeSet<String>, String>>,
{
    loop {
        let looked = async {
            match walk(store, crate::now(), FIGURES_OF, &mut reverted).await {
                Ok(walked) => show(metrics, &walked),
                Err(error) => tracing::debug!(%error, "could not look at what became of verdicts"),
            }
            tokio::time::sleep(FIGURES_EVERY).await;
        };
        tokio::select! { () = shutdown.cancelled() => return, () = looked => {} }
    }
}

/// Sets the figures of `refile calibration` as metrics, in place of those of the last look.
pub fn show(metrics: &Metrics, walked: &Walked) {
    for gauge in [
        &metrics.reviewer_verdicts,
        &metrics.reviewer_changes,
        &metrics.reviewer_right_ratio,
        &metrics.reviewer_suggested_threshold,
    ] {
        gauge.reset();
    }
    for of in calibrate(&walked.samples) {
        let name = of.reviewer.as_str();
        let all = of.all;
        for (result, count) in [("right", all.right), ("wrong", all.wrong), ("unlabelled", all.unlabelled)] {
            metrics.reviewer_verdicts.with_label_values(&[name, result]).set(count as f64);
        }
        // Where no history could be read, 0 would say that nothing was taken back.
        if walked.looked_into_git {
            for (fate, count) in [("stood", of.stood), ("reverted", of.reverted)] {
                metrics.reviewer_changes.with_label_values(&[name, fate]).set(count as f64);
            }
        }
        for bin in &of.bins {
            for (bound, ratio) in [("share", bin.share), ("low", bin.low), ("high", bin.high)] {
                metrics.reviewer_right_ratio.with_label_values(&[name, &format!("{:.1}", bin.from), bound]).set(ratio);
            }
        }
        if let Some(threshold) = of.suggested {
            metrics.reviewer_suggested_threshold.with_label_values(&[name]).set(threshold);
        }
    }
}

/// What became of a task's change.
fn fate(task: &Task, reverted: Option<&BTreeSet<String>>, now: Timestamp) -> Fate {
    match (reverted, task.finished_at) {
        (Some(reverted), _) if reverted.contains(task.id.as_str()) => Fate::Reverted,
        (Some(_), Some(at)) if now.since(at) >= STANDS_AFTER_MS => Fate::Stood,
        _ => Fate::Unknown,
    }
}
