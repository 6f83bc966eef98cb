//! What is promised where bytes are damaged or the store goes away.

use std::time::Duration;

use refile_core::{Policy, TaskState};
use refile_store::{Committed, Filter, Happening, Place, Reported, StoreError};

use super::kit::*;

pub(crate) async fn an_unreadable_record_is_set_aside_at_claim(harness: &impl Harness) {
    let store = harness.store().await;
    add(&store, &["a", "b"]).await;
    let good = harness.corrupt_record(&id("a")).await;
    // Of several partitions the one with `b` may be asked first.
    let max = if harness.partitions() > 1 { 2 } else { 1 };
    let claims = claim(&store, "w", max, LONG).await;
    assert_eq!(claims.iter().map(|c| c.task.id.as_str()).collect::<Vec<_>>(), ["b"], "the others go on");
    let set_aside = store.quarantined().await.unwrap();
    assert_eq!(set_aside.len(), 1, "{set_aside:?}");
    let found = &set_aside[0];
    assert_eq!((found.task.as_str(), found.phase.as_str()), ("a", "change"));
    assert!(!found.reason.is_empty() && !found.what.is_empty());
    assert_eq!(job(&store, "a").await.place, Place::Quarantined);
    assert_eq!(store.stats().await.unwrap().quarantined, 1);
    assert_eq!(counted(&store, "quarantined_total", &[]).await, 1);
    assert_eq!(store.reclaim(5, 10).await.unwrap().redelivered, 0);
    assert!(!store.replay("nonsense").await.unwrap());

    harness.swap_record(&id("a"), &good).await;
    assert!(store.replay(&found.id).await.unwrap());
    assert!(!store.replay(&found.id).await.unwrap(), "it is there no more");
    assert!(store.quarantined().await.unwrap().is_empty());
    assert_eq!(store.stats().await.unwrap().quarantined, 0);
    let claim = claim_one(&store, "w", LONG).await;
    assert_eq!((claim.task.id.as_str(), claim.deliveries), ("a", 1), "nothing was charged");
    assert_eq!(report(&store, &claim.lease, coded("h")).await, Reported::Accepted);
}

pub(crate) async fn an_unreadable_outcome_is_set_aside_at_take(harness: &impl Harness) {
    let store = harness.store().await;
    add(&store, &["a", "b"]).await;
    for claim in claim(&store, "w", 2, LONG).await {
        report(&store, &claim.lease, coded("h")).await;
    }
    harness.corrupt_outcome(&id("a")).await;
    let taken = take(&store, "c", 10).await;
    assert_eq!(taken.iter().map(|t| t.task.task.id.as_str()).collect::<Vec<_>>(), ["b"], "the others go on");
    let set_aside = store.quarantined().await.unwrap();
    assert_eq!(set_aside.len(), 1, "{set_aside:?}");
    assert_eq!((set_aside[0].task.as_str(), set_aside[0].phase.as_str()), ("a", "change"));
    assert_eq!(counted(&store, "quarantined_total", &[]).await, 1);
    assert!(take(&store, "c", 10).await.is_empty());
    let stats = store.stats().await.unwrap();
    assert_eq!((stats.quarantined, stats.outcomes), (1, 1), "b's is taken and not decided");
    // Nothing was repaired: it is put back, and set aside again.
    assert!(store.replay(&set_aside[0].id).await.unwrap());
    assert!(store.quarantined().await.unwrap().is_empty());
    assert!(take(&store, "c", 10).await.is_empty());
    assert_eq!(store.quarantined().await.unwrap().len(), 1);
    assert_eq!(counted(&store, "quarantined_total", &[]).await, 2);
}

pub(crate) async fn an_outcome_of_an_unreadable_record_is_set_aside(harness: &impl Harness) {
    let store = harness.store().await;
    add(&store, &["a", "b"]).await;
    for claim in claim(&store, "w", 2, LONG).await {
        report(&store, &claim.lease, coded("h")).await;
    }
    let good = harness.corrupt_record(&id("a")).await;
    let taken = take(&store, "c", 10).await;
    assert_eq!(taken.iter().map(|t| t.task.task.id.as_str()).collect::<Vec<_>>(), ["b"], "the others go on");
    let set_aside = store.quarantined().await.unwrap();
    assert_eq!(set_aside.len(), 1, "{set_aside:?}");
    harness.swap_record(&id("a"), &good).await;
    assert!(store.replay(&set_aside[0].id).await.unwrap());
    let again = take_one(&store, "c").await;
    assert_eq!((again.task.task.id.as_str(), &again.happening), ("a", &Happening::Outcome(Box::new(coded("h")))));
    assert_eq!(commit_one(&store, decided(&again, &Policy::default())).await, Committed::Applied);
}

pub(crate) async fn an_unreadable_record_is_named(harness: &impl Harness) {
    let store = harness.store().await;
    add(&store, &["a", "b"]).await;
    harness.swap_record(&id("a"), &[250, 0]).await;
    let error = store.tasks(&[id("b"), id("a")]).await.unwrap_err();
    assert!(matches!(&error, StoreError::Undecodable { task, .. } if *task == id("a")), "{error}");
    assert!(error.to_string().contains("schema 250"), "{error}");
    let page = store.list(&Filter::default(), None, 10).await.unwrap();
    assert_eq!(page.undecodable, [id("a")]);
    assert_eq!(page.tasks.iter().map(|t| t.id.as_str()).collect::<Vec<_>>(), ["b"]);
}

pub(crate) async fn a_restart_loses_nothing(harness: &impl Harness) {
    let store = harness.store().await;
    add(&store, &["queued", "held", "reported", "taken", "delayed", "escalated"]).await;
    let claims = claim(&store, "w", 6, LONG).await;
    let lease = |name: &str| claims.iter().find(|c| c.task.id.as_str() == name).unwrap().lease.clone();
    store.release(&[lease("queued")]).await.unwrap();
    for (name, outcome) in [("delayed", crashed()), ("escalated", asks())] {
        report(&store, &lease(name), outcome).await;
        let taken = take_one(&store, "c").await;
        assert_eq!(commit_one(&store, decided(&taken, &backoff(3_600_000))).await, Committed::Applied);
    }
    report(&store, &lease("taken"), coded("h")).await;
    let taken = take_one(&store, "c").await;
    report(&store, &lease("reported"), coded("h")).await;

    let names = ["queued", "held", "reported", "taken", "delayed", "escalated"].map(id);
    let everything = async |store: &std::sync::Arc<dyn refile_store::Store>| {
        let mut jobs = Vec::new();
        for name in &names {
            jobs.push(store.jobs(name).await.unwrap());
        }
        let stats = store.stats().await.unwrap();
        let events = store.events("", 1_000).await.unwrap();
        let stats = (stats.counts, stats.depth, stats.leases, stats.delayed, stats.outcomes);
        (store.tasks(&names).await.unwrap(), jobs, stats, events)
    };
    let before = everything(&store).await;
    drop(store);
    harness.restart().await;
    let store = harness.store().await;
    assert_eq!(everything(&store).await, before);
    store.check().await.unwrap();

    assert_eq!(report(&store, &lease("held"), coded("h")).await, Reported::Accepted);
    assert_eq!(commit_one(&store, decided(&taken, &Policy::default())).await, Committed::Applied);
    let mut left: Vec<_> = take(&store, "c2", 10).await.into_iter().map(|t| t.task.task.id.to_string()).collect();
    if harness.partitions() > 1 {
        left.sort_by(|a, b| b.cmp(a));
    }
    assert_eq!(left, ["reported", "held"]);
    assert_eq!(claim_one(&store, "w2", Duration::ZERO).await.task.id, id("queued"));
    assert_eq!(store.reclaim(5, 10).await.unwrap().redelivered, 1);
    assert_eq!(state(&store, "escalated").await, TaskState::Escalated);
}
