//! What is compared: everything about a store but the names and the times that are its own.

use std::collections::BTreeMap;
use std::sync::Arc;

use refile_core::decide::Notice;
use refile_core::{Priority, Queue, TaskId, TaskState};
use refile_store::{Claim, Filter, Happening, JobView, Lease, Paused, Store, Taken, Versioned};

/// The state of a store.
#[derive(Debug, PartialEq)]
pub(crate) struct View {
    pub(crate) tasks: Vec<Option<Versioned>>,
    pub(crate) jobs: Vec<Vec<JobView>>,
    pub(crate) listed: Vec<TaskId>,
    pub(crate) escalated: Vec<TaskId>,
    pub(crate) counts: BTreeMap<String, i64>,
    pub(crate) depth: BTreeMap<(Queue, Priority), u64>,
    pub(crate) leases: BTreeMap<Queue, u64>,
    pub(crate) numbers: [u64; 3],
    pub(crate) has_escalation: bool,
    pub(crate) quarantined: Vec<(TaskId, String)>,
    pub(crate) pauses: Vec<Paused>,
    pub(crate) events: Vec<(TaskId, Notice)>,
    pub(crate) workers: Vec<String>,
}

pub(crate) async fn view(store: &Arc<dyn Store>, ids: &[TaskId]) -> View {
    let mut jobs = Vec::new();
    for id in ids {
        let mut of_task = store.jobs(id).await.unwrap();
        of_task.sort_by(|a, b| a.phase.cmp(&b.phase));
        jobs.push(of_task);
    }
    let mut stats = store.stats().await.unwrap();
    stats.counts.retain(|_, n| *n != 0);
    stats.depth.retain(|_, n| *n != 0);
    stats.leases.retain(|_, n| *n != 0);
    let mut quarantined: Vec<_> = store.quarantined().await.unwrap().into_iter().map(|q| (q.task, q.phase)).collect();
    quarantined.sort();
    let mut workers: Vec<_> = stats.workers.into_iter().map(|w| w.id).collect();
    workers.sort();
    let events = store.events("", 10_000).await.unwrap();
    View {
        tasks: store.tasks(ids).await.unwrap(),
        jobs,
        listed: listed(store, &Filter::default()).await,
        escalated: listed(store, &Filter { states: vec![TaskState::Escalated], ..Filter::default() }).await,
        counts: stats.counts,
        depth: stats.depth,
        leases: stats.leases,
        numbers: [stats.delayed, stats.outcomes, stats.quarantined],
        has_escalation: stats.oldest_escalation_ms.is_some(),
        quarantined,
        pauses: store.pauses().await.unwrap(),
        events: events.into_iter().map(|e| (e.task, e.notice)).collect(),
        workers,
    }
}

async fn listed(store: &Arc<dyn Store>, filter: &Filter) -> Vec<TaskId> {
    let (mut ids, mut cursor) = (Vec::new(), None);
    loop {
        let page = store.list(filter, cursor, 7).await.unwrap();
        ids.extend(page.tasks.into_iter().map(|t| t.id));
        match page.next {
            Some(next) => cursor = Some(next),
            None => return ids,
        }
    }
}

/// A claim without how long its job lay there.
pub(crate) fn claimed(claim: &Claim) -> (Lease, Queue, u32, u32, refile_core::Task) {
    (claim.lease.clone(), claim.queue, claim.attempt, claim.deliveries, claim.task.clone())
}

/// What a taken outcome is about, without its place in the store.
pub(crate) fn about(taken: &Taken) -> (TaskId, String, u64) {
    (taken.guard.receipt.task.clone(), taken.phase.clone(), taken.guard.fence)
}

/// A taken outcome without its place in the store.
pub(crate) fn taken(taken: &Taken) -> ((TaskId, String, u64), u32, Happening, Versioned) {
    (about(taken), taken.attempt, taken.happening.clone(), taken.task.clone())
}
