//! What landings are promised: no more at once on one base branch than the limit says, in the whole fleet.

use std::sync::Arc;
use std::time::Duration;

use refile_core::decide::submission::{NewTask, Workflow};
use refile_core::verdict::VerdictKind;
use refile_core::{Outcome, Policy, Queue};
use refile_store::{Claim, ClaimRequest, Committed, Limits, Store};

use super::kit::*;

/// Submits a task and brings it to where it has a land job.
async fn add_approved(store: &Arc<dyn Store>, name: &str, base: &str) {
    let new = NewTask { base: base.to_owned(), workflow: Workflow::default(), ..new_task(name) };
    assert!(store.submit(&[submission(name, new)]).await.unwrap()[0].added);
    for (queue, outcome) in [(Queue::Code, coded("h")), (Queue::Review, reviewed(VerdictKind::Approved, "h"))] {
        let request = ClaimRequest { queues: vec![queue], ..request("w", 1, LONG) };
        let claim = store.claim(&request).await.unwrap().remove(0);
        report(store, &claim.lease, outcome).await;
        let taken = take_one(store, "c").await;
        assert_eq!(commit_one(store, decided(&taken, &Policy::default())).await, Committed::Applied);
    }
}

fn names(claims: &[Claim]) -> Vec<&str> {
    let mut names: Vec<_> = claims.iter().map(|c| c.task.id.as_str()).collect();
    names.sort_unstable();
    names
}

/// One worker has a landing and takes more to it, while no other may begin one.
pub(crate) async fn who_has_a_landing_may_take_more(harness: &impl Harness) {
    let (store, other) = (harness.store().await, harness.store().await);
    for (name, base) in
        [("m1", "main"), ("m2", "main"), ("m3", "main"), ("m4", "main"), ("r1", "release"), ("r2", "release")]
    {
        add_approved(&store, name, base).await;
    }
    let one = |owner| {
        let limits = Arc::new(Limits { each_landing: Some(1), ..Limits::default() });
        ClaimRequest { limits, ..ask(owner) }
    };
    let first = store.claim(&one("one")).await.unwrap();
    assert_eq!(names(&first).iter().map(|name| &name[..1]).collect::<Vec<_>>(), ["m", "r"]);
    let named = [(Limits::landing("repo", "main"), 3)].into();
    let limits = Arc::new(Limits { named, each_landing: Some(1), ..Limits::default() });
    let more = store.claim(&ClaimRequest { limits, ..ask("one") }).await.unwrap();
    assert_eq!(names(&more).iter().map(|name| &name[..1]).collect::<Vec<_>>(), ["m", "m"]);
    assert!(other.claim(&one("two")).await.unwrap().is_empty());
    // Not before the last of them is over.
    for claim in first.iter().chain(&more).filter(|claim| claim.task.base == "main") {
        assert!(other.claim(&one("two")).await.unwrap().is_empty());
        report(&store, &claim.lease, Outcome::Landed { commit: "c".to_owned() }).await;
    }
    assert_eq!(other.claim(&one("two")).await.unwrap().len(), 1);
}

fn ask(owner: &str) -> ClaimRequest {
    let limits = Arc::new(Limits { each_landing: Some(2), ..Limits::default() });
    ClaimRequest { queues: vec![Queue::Land, Queue::Code], limits, ..request(owner, 9, LONG) }
}

pub(crate) async fn landings_on_one_branch_are_limited(harness: &impl Harness) {
    let (store, other) = (harness.store().await, harness.store().await);
    for (name, base) in [("m1", "main"), ("m2", "main"), ("m3", "main"), ("m4", "main"), ("r1", "release")] {
        add_approved(&store, name, base).await;
    }
    add(&store, &["code"]).await;
    let first = store.claim(&ask("one")).await.unwrap();
    assert_eq!((first.len(), names(&first)[0], names(&first)[3]), (4, "code", "r1"));
    // Another process learns it by being refused, and from then on by looking.
    for _ in 0..3 {
        assert!(other.claim(&ask("two")).await.unwrap().is_empty());
    }
    // Who waits is woken by the end of a landing, in its own process and in others.
    let waits = ClaimRequest { wait: LONG, ..ask("two") };
    let waiting = tokio::spawn({
        let other = other.clone();
        async move { other.claim(&waits).await.unwrap() }
    });
    let of_main: Vec<_> = first.iter().filter(|c| c.task.base == "main").collect();
    assert_eq!(
        report(&store, &of_main[0].lease, Outcome::Landed { commit: "c".to_owned() }).await,
        refile_store::Reported::Accepted
    );
    let second = in_time("the claim", waiting).await.unwrap();
    assert_eq!(second.len(), 1);
    assert!(store.claim(&ask("one")).await.unwrap().is_empty() && other.claim(&ask("two")).await.unwrap().is_empty());
    // What is given back may be claimed again, and a lease that ran out makes room, too.
    store.release(std::slice::from_ref(&of_main[1].lease)).await.unwrap();
    let brief = ClaimRequest { lease: Duration::from_millis(1), ..ask("two") };
    let third = other.claim(&brief).await.unwrap();
    assert_eq!(third.len(), 1);
    until("the lease ran out", || async { store.reclaim(9, 9).await.unwrap().redelivered == 1 }).await;
    until("there is room", || async { store.claim(&ask("one")).await.unwrap().len() == 1 }).await;
}

pub(crate) async fn landings_do_not_limit_other_jobs(harness: &impl Harness) {
    let store = harness.store().await;
    let backlog: Vec<_> = (0..6).map(|n| format!("a{n}")).collect();
    add(&store, &backlog.iter().map(String::as_str).collect::<Vec<_>>()).await;
    assert_eq!(store.claim(&ask("one")).await.unwrap().len(), 6);
}
