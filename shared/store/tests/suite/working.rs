//! What workers are promised: claim, extend, report, release; and what keeps their jobs going: promote, reclaim.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use refile_core::decide::submission::NewTask;
use refile_core::{Policy, Priority, Queue, TaskState};
use refile_store::{
    Claim, ClaimRequest, Committed, Happening, LeaseState, Limits, Place, Promoted, Reclaimed, Reported, Store,
};

use super::kit::*;

/// Submits one task a line: its name, its repository and its priority.
async fn add_so(store: &Arc<dyn Store>, lines: &[(&str, &str, Priority)]) {
    let batch: Vec<_> = lines
        .iter()
        .map(|(name, repository, priority)| {
            let new = NewTask { repository: (*repository).to_owned(), priority: *priority, ..new_task(name) };
            submission(name, new)
        })
        .collect();
    assert!(store.submit(&batch).await.unwrap().iter().all(|s| s.added));
}

/// Claims so many at a time and gives the tasks' names in order.
async fn claim_names(store: &Arc<dyn Store>, sizes: &[usize]) -> Vec<String> {
    let mut names = Vec::new();
    for max in sizes {
        names.extend(claim(store, "w", *max, LONG).await.into_iter().map(|c| c.task.id.to_string()));
    }
    names
}

pub(crate) async fn high_goes_before_normal_before_low_and_first_before_last(harness: &impl Harness) {
    let store = harness.store().await;
    let of = |name, priority| (name, "repo", priority);
    let lines = [
        of("l1", Priority::Low),
        of("n1", Priority::Normal),
        of("h1", Priority::High),
        of("n2", Priority::Normal),
        of("h2", Priority::High),
        of("l2", Priority::Low),
    ];
    add_so(&store, &lines).await;
    assert_eq!(claim_names(&store, &[1, 1, 5]).await, ["h1", "h2", "n1", "n2", "l1", "l2"]);
}

pub(crate) async fn no_priority_starves(harness: &impl Harness) {
    let store = harness.store().await;
    let mut lines = Vec::new();
    let names: Vec<_> = (0..64).map(|n| format!("{n:02}")).collect();
    let tasks: Vec<_> = Priority::ALL
        .iter()
        .flat_map(|p| names.iter().map(move |n| (format!("{}{n}", &p.as_str()[..1]), *p)))
        .collect();
    for (name, priority) in &tasks {
        lines.push((name.as_str(), "repo", *priority));
    }
    add_so(&store, &lines).await;
    // Whatever the sizes of the claims: of sixteen jobs twelve are high, three normal, one low.
    let claimed = claim_names(&store, &[1, 2, 5, 8, 16, 16]).await;
    let share = |first: &str| claimed.iter().filter(|name| name.starts_with(first)).count();
    assert_eq!((share("h"), share("n"), share("l")), (36, 9, 3), "{claimed:?}");
}

pub(crate) async fn repositories_take_turns(harness: &impl Harness) {
    let store = harness.store().await;
    let backlog: Vec<_> = (0..30).map(|n| format!("a{n:02}")).collect();
    let mut lines: Vec<_> = backlog.iter().map(|name| (name.as_str(), "big", Priority::Normal)).collect();
    add_so(&store, &lines).await;
    assert_eq!(claim_names(&store, &[2]).await, ["a00", "a01"]);
    lines =
        vec![("b1", "small", Priority::Normal), ("c1", "other", Priority::Normal), ("b2", "small", Priority::Normal)];
    add_so(&store, &lines).await;
    // Newcomers stand behind the lanes that were there, not behind their backlogs.
    assert_eq!(claim_names(&store, &[1, 3, 4]).await, ["a02", "b1", "c1", "a03", "b2", "a04", "a05", "a06"]);
}

pub(crate) async fn limits_hold_and_nobody_leaks_a_permit(harness: &impl Harness) {
    let (store, other) = (harness.store().await, harness.store().await);
    let line = |name, repository| (name, repository, Priority::Normal);
    add_so(&store, &[line("a1", "a"), line("a2", "a"), line("a3", "a"), line("b1", "b"), line("b2", "b")]).await;
    let limits =
        Limits { named: [("repository:b".to_owned(), 2)].into(), each_repository: Some(1), ..Limits::default() };
    let limits = Arc::new(limits);
    let ask = |owner: &str, lease| ClaimRequest { limits: limits.clone(), ..request(owner, 9, lease) };
    let names = |claims: &[Claim]| claims.iter().map(|c| c.task.id.to_string()).collect::<Vec<_>>();
    let repositories = |claims: &[Claim]| {
        let mut names: Vec<_> = claims.iter().map(|c| c.task.repository.clone()).collect();
        names.sort();
        names
    };
    // This worker is killed: nobody extends its leases.
    let killed = store.claim(&ask("killed", Duration::from_secs(1))).await.unwrap();
    assert_eq!(repositories(&killed), ["a", "b", "b"]);
    if harness.partitions() == 1 {
        assert_eq!(names(&killed), ["a1", "b1", "b2"]);
    }
    until("the leases ran out", || async {
        store.reclaim(9, 9).await.unwrap().redelivered == 3 || claimable(&store).await >= 5
    })
    .await;
    // A permit may run out a moment after its lease, since it is taken after it.
    let waits = ClaimRequest { wait: LONG, ..ask("w", LONG) };
    let claims = in_time("the claims", async {
        let mut claims = Vec::new();
        while claims.len() < 3 {
            claims.extend(other.claim(&waits).await.unwrap());
        }
        claims
    })
    .await;
    assert_eq!(repositories(&claims), ["a", "b", "b"]);
    assert!(store.claim(&ask("w2", LONG)).await.unwrap().is_empty());
    // One job of `a` ends, and the next may run.
    let of_a = claims.iter().find(|c| c.task.repository == "a").unwrap();
    report(&other, &of_a.lease, coded("h")).await;
    let next = store.claim(&ask("w2", LONG)).await.unwrap();
    assert_eq!(next.iter().map(|c| c.task.repository.as_str()).collect::<Vec<_>>(), ["a"]);
    // One is given back, and may be claimed again.
    store.release(std::slice::from_ref(&next[0].lease)).await.unwrap();
    assert_eq!(other.claim(&ask("w", LONG)).await.unwrap().len(), 1);
}

pub(crate) async fn room_under_a_limit_wakes_who_waits(harness: &impl Harness) {
    let store = harness.store().await;
    add(&store, &["a", "b"]).await;
    let limits = Arc::new(Limits { each_repository: Some(1), ..Limits::default() });
    let ask = ClaimRequest { limits, wait: LONG, ..request("w", 9, LONG) };
    let first = store.claim(&ask).await.unwrap();
    assert_eq!(first.len(), 1, "{first:?}");
    let waiting = tokio::spawn({
        let (store, ask) = (store.clone(), ask.clone());
        async move { store.claim(&ask).await.unwrap() }
    });
    report(&store, &first[0].lease, coded("h")).await;
    assert_eq!(in_time("the claim", waiting).await.unwrap().len(), 1);
}

async fn claimable(store: &Arc<dyn Store>) -> u64 {
    store.stats().await.unwrap().depth.values().sum()
}

pub(crate) async fn a_limit_of_an_agent_or_a_provider_holds(harness: &impl Harness) {
    let store = harness.store().await;
    add(&store, &["a", "b", "c"]).await;
    let agent = claim_one_of(&store).await;
    let limits = |named: &[(&str, u32)], providers: &[&str]| {
        let named = named.iter().map(|(name, most)| ((*name).to_owned(), *most)).collect();
        let providers = [(agent.clone(), providers.iter().map(|name| (*name).to_owned()).collect())].into();
        Arc::new(Limits { named, providers, ..Limits::default() })
    };
    let by_agent = limits(&[(&agent, 1)], &[]);
    let by_provider = limits(&[("provider:p", 2)], &["provider:p"]);
    let by_one_of_two = limits(&[("provider:p", 3), ("provider:q", 2)], &["provider:p", "provider:q"]);
    let by_workflow = limits(&[("workflow:change", 3)], &[]);
    for (limits, most) in [(by_agent, 1), (by_provider, 2), (by_one_of_two, 2), (by_workflow, 3)] {
        let claims = store.claim(&ClaimRequest { limits: limits.clone(), ..request("w", 9, LONG) }).await.unwrap();
        assert_eq!(claims.len(), most, "{limits:?}");
        store.release(&claims.into_iter().map(|c| c.lease).collect::<Vec<_>>()).await.unwrap();
    }
}

/// The name that limits know the agent by that the first job is for.
async fn claim_one_of(store: &Arc<dyn Store>) -> String {
    let claim = claim(store, "w", 1, LONG).await.remove(0);
    store.release(std::slice::from_ref(&claim.lease)).await.unwrap();
    match claim.task.phases[0].job.clone().unwrap() {
        refile_core::task::Job::Code { agent } => format!("agent:{agent}"),
        other => panic!("{other:?}"),
    }
}

pub(crate) async fn queues_are_served_in_the_order_asked_for(harness: &impl Harness) {
    let store = harness.store().await;
    add(&store, &["a"]).await;
    let taken = work(&store, coded("h")).await;
    assert_eq!(commit_one(&store, decided(&taken, &Policy::default())).await, Committed::Applied);
    add(&store, &["b"]).await;
    assert!(
        store.claim(&ClaimRequest { queues: vec![Queue::Land], ..request("w", 9, LONG) }).await.unwrap().is_empty()
    );
    let both = ClaimRequest { queues: vec![Queue::Review, Queue::Code], ..request("w", 9, LONG) };
    let claims = store.claim(&both).await.unwrap();
    let mut got: Vec<_> = claims.iter().map(|c| (c.queue, c.task.id.as_str())).collect();
    if harness.partitions() > 1 {
        // The order of the queues is that within a partition.
        got.sort_by_key(|(_, task)| *task);
    }
    assert_eq!(got, [(Queue::Review, "a"), (Queue::Code, "b")]);
}

pub(crate) async fn no_two_workers_hold_one_job(harness: &impl Harness) {
    let first = harness.store().await;
    let names: Vec<_> = (0..300).map(|n| format!("t{n}")).collect();
    add(&first, &names.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let mut workers = tokio::task::JoinSet::new();
    for n in 0..12 {
        // Some share a handle, some have their own.
        let store = if n % 3 == 0 { harness.store().await } else { first.clone() };
        workers.spawn(async move {
            let mut got = Vec::new();
            loop {
                let claims = claim(&store, &format!("w{n}"), 1 + n % 4, LONG).await;
                if claims.is_empty() {
                    return got;
                }
                got.extend(claims.into_iter().map(|c| c.task.id.to_string()));
            }
        });
    }
    let all: Vec<String> = workers.join_all().await.into_iter().flatten().collect();
    assert_eq!(all.len(), 300);
    assert_eq!(all.iter().collect::<BTreeSet<_>>(), names.iter().collect::<BTreeSet<_>>());
}

pub(crate) async fn a_heartbeat_keeps_a_long_job(harness: &impl Harness) {
    let store = harness.store().await;
    add(&store, &["a"]).await;
    // The lease has run out at once, and as long as nobody reclaimed it the heartbeat still saves it.
    let held = claim_one(&store, "w", Duration::ZERO).await;
    assert_eq!(store.extend(std::slice::from_ref(&held.lease), LONG).await.unwrap(), [LeaseState::Held]);
    let reclaimed = store.reclaim(5, 10).await.unwrap();
    assert_eq!((reclaimed.redelivered, reclaimed.poisoned), (0, 0));
    assert!(reclaimed.next_in_ms.is_some_and(|ms| ms > 0 && ms <= 3_600_000), "{reclaimed:?}");
    assert_eq!(job(&store, "a").await.place, Place::Leased);
    assert_eq!(report(&store, &held.lease, coded("h")).await, Reported::Accepted);
    assert_eq!(store.extend(&[held.lease], LONG).await.unwrap(), [LeaseState::Lost]);
}

pub(crate) async fn an_expired_lease_is_delivered_again(harness: &impl Harness) {
    let store = harness.store().await;
    add(&store, &["a", "b"]).await;
    let first = claim(&store, "w1", 1, Duration::ZERO).await.remove(0);
    assert_eq!((first.lease.fence, first.deliveries, first.attempt), (2, 1, 1));
    let reclaimed = store.reclaim(5, 10).await.unwrap();
    assert_eq!(reclaimed, Reclaimed { redelivered: 1, poisoned: 0, next_in_ms: None });
    let view = job(&store, "a").await;
    assert_eq!((view.place, view.fence, view.deliveries, view.owner), (Place::Queued, 3, 1, None));
    assert_eq!(counted(&store, "leases_expired_total", &["code"]).await, 1);
    // It goes to the back of its queue, uncharged: still the first attempt.
    let again = claim(&store, "w2", 2, LONG).await;
    assert_eq!(again.iter().map(|c| c.task.id.as_str()).collect::<Vec<_>>(), ["b", "a"]);
    assert_eq!((again[1].lease.fence, again[1].deliveries, again[1].attempt), (4, 2, 1));
    assert_eq!(task(&store, "a").await.version, 1);
}

pub(crate) async fn a_zombie_changes_nothing(harness: &impl Harness) {
    let store = harness.store().await;
    add(&store, &["a"]).await;
    let zombie = claim_one(&store, "w", Duration::ZERO).await.lease;
    store.reclaim(5, 10).await.unwrap();
    let owner = claim_one(&store, "w", LONG).await.lease;
    let before = job(&store, "a").await;
    assert_eq!(store.extend(std::slice::from_ref(&zombie), Duration::ZERO).await.unwrap(), [LeaseState::Lost]);
    assert_eq!(report(&store, &zombie, coded("z")).await, Reported::Stale);
    store.release(std::slice::from_ref(&zombie)).await.unwrap();
    // Neither does a stranger who knows the fence.
    let stranger = refile_store::Lease { owner: "stranger".to_owned(), ..owner.clone() };
    assert_eq!(store.extend(std::slice::from_ref(&stranger), Duration::ZERO).await.unwrap(), [LeaseState::Lost]);
    assert_eq!(report(&store, &stranger, coded("s")).await, Reported::Stale);
    store.release(&[stranger]).await.unwrap();
    assert_eq!(job(&store, "a").await, before);
    assert_eq!(store.reclaim(5, 10).await.unwrap().redelivered, 0, "the zombie's heartbeat must not shorten the lease");
    assert!(take(&store, "c", 10).await.is_empty());
    // One bad lease does not fail its neighbours.
    let states = store.extend(&[zombie, owner.clone()], LONG).await.unwrap();
    assert_eq!(states, [LeaseState::Lost, LeaseState::Held]);
    assert_eq!(report(&store, &owner, coded("h")).await, Reported::Accepted);
}

pub(crate) async fn a_report_may_be_repeated(harness: &impl Harness) {
    let store = harness.store().await;
    add(&store, &["a"]).await;
    let lease = claim_one(&store, "w", LONG).await.lease;
    assert_eq!(report(&store, &lease, coded("h")).await, Reported::Accepted);
    assert_eq!(report(&store, &lease, coded("h")).await, Reported::Accepted);
    let view = job(&store, "a").await;
    assert_eq!((view.place, view.fence, view.owner.as_deref()), (Place::Reported, 2, Some("w")));
    assert_eq!(store.stats().await.unwrap().outcomes, 1);
    let taken = take_one(&store, "c").await;
    assert_eq!(taken.happening, Happening::Outcome(Box::new(coded("h"))));
    assert_eq!((taken.phase.as_str(), taken.attempt, taken.guard.fence), ("change", 1, 2));
    assert_eq!(report(&store, &lease, coded("h")).await, Reported::Accepted);
    assert!(take(&store, "c", 10).await.is_empty(), "it was taken already");
    assert_eq!(commit_one(&store, decided(&taken, &Policy::default())).await, Committed::Applied);
    assert_eq!(report(&store, &lease, coded("h")).await, Reported::Stale);
    assert!(take(&store, "c", 10).await.is_empty());
    assert_eq!(store.stats().await.unwrap().outcomes, 0);
}

pub(crate) async fn a_release_is_not_charged(harness: &impl Harness) {
    let store = harness.store().await;
    add(&store, &["a", "b"]).await;
    let lease = claim(&store, "w", 1, LONG).await.remove(0).lease;
    store.release(std::slice::from_ref(&lease)).await.unwrap();
    let view = job(&store, "a").await;
    assert_eq!((view.place, view.fence, view.deliveries, view.owner), (Place::Queued, 3, 0, None));
    store.release(std::slice::from_ref(&lease)).await.unwrap();
    assert_eq!(job(&store, "a").await.fence, 3, "a second release changes nothing");
    assert_eq!(report(&store, &lease, coded("h")).await, Reported::Stale);
    let claims = claim(&store, "w", 10, LONG).await;
    let got: Vec<_> = claims.iter().map(|c| (c.task.id.as_str(), c.deliveries)).collect();
    assert_eq!(got, [("b", 1), ("a", 1)], "it lies at the back");
}

pub(crate) async fn a_delayed_job_waits_for_its_time(harness: &impl Harness) {
    let store = harness.store().await;
    add(&store, &["a"]).await;
    let taken = work(&store, crashed()).await;
    assert_eq!(commit_one(&store, decided(&taken, &backoff(3_600_000))).await, Committed::Applied);
    let view = job(&store, "a").await;
    assert_eq!((view.place, view.attempt, view.deliveries), (Place::Delayed, 1, 0));
    assert_eq!(store.stats().await.unwrap().delayed, 1);
    let promoted = store.promote(10).await.unwrap();
    assert_eq!(promoted.moved, 0);
    assert!(promoted.next_in_ms.is_some_and(|ms| ms > 3_000_000 && ms <= 3_600_000), "{promoted:?}");
    assert!(claim(&store, "w", 10, LONG).await.is_empty());

    add(&store, &["b"]).await;
    let taken = work(&store, crashed()).await;
    assert_eq!(commit_one(&store, decided(&taken, &backoff(1))).await, Committed::Applied);
    let fence = job(&store, "b").await.fence;
    until("the job is due", async || store.promote(10).await.unwrap().moved == 1).await;
    let view = job(&store, "b").await;
    assert_eq!((view.place, view.fence), (Place::Queued, fence), "being due is no transition");
    assert_eq!(claim_one(&store, "w", LONG).await.task.id, id("b"));
    assert_eq!(store.promote(10).await.unwrap().moved, 0);
    assert_eq!(store.stats().await.unwrap().delayed, 1);
}

pub(crate) async fn a_job_that_nobody_survives_is_poison(harness: &impl Harness) {
    let store = harness.store().await;
    add(&store, &["a"]).await;
    let mut last = None;
    for deliveries in 1..=3 {
        let claim = claim_one(&store, "w", Duration::ZERO).await;
        assert_eq!(claim.deliveries, deliveries);
        last = Some(claim.lease);
        let reclaimed = store.reclaim(2, 10).await.unwrap();
        assert_eq!((reclaimed.redelivered, reclaimed.poisoned), if deliveries > 2 { (0, 1) } else { (1, 0) });
    }
    assert_eq!(report(&store, &last.unwrap(), coded("h")).await, Reported::Stale);
    assert!(claim(&store, "w", 10, LONG).await.is_empty());
    assert_eq!(job(&store, "a").await.place, Place::Reported);
    assert_eq!(counted(&store, "leases_expired_total", &["code"]).await, 3);
    let taken = take_one(&store, "c").await;
    assert_eq!(taken.happening, Happening::Poisoned { deliveries: 3 });
    assert_eq!(commit_one(&store, decided(&taken, &Policy::default())).await, Committed::Applied);
    let found = task(&store, "a").await;
    assert_eq!(found.task.state, TaskState::Escalated);
    assert_eq!(counted(&store, "escalations_total", &["poison_job"]).await, 1);
    // A person's retry gives it its deliveries back, and the fence goes on from where it was.
    let before = taken.guard.fence;
    assert_eq!(commit_one(&store, by_person(&found, &retried(&found.task))).await, Committed::Applied);
    let view = job(&store, "a").await;
    assert_eq!((view.place, view.deliveries), (Place::Queued, 0));
    assert_eq!(view.fence, before + 2, "one for the escalation, one for the new job");
}

pub(crate) async fn a_cancelled_task_takes_its_worker_off(harness: &impl Harness) {
    let store = harness.store().await;
    add(&store, &["a", "b"]).await;
    let mut claims = claim(&store, "w", 2, LONG).await;
    claims.sort_by(|x, y| x.task.id.cmp(&y.task.id));
    let (b, a) = (claims.remove(1).lease, claims.remove(0).lease);
    let found = task(&store, "a").await;
    assert_eq!(commit_one(&store, by_person(&found, &cancelled())).await, Committed::Applied);
    let states = store.extend(&[a.clone(), b], LONG).await.unwrap();
    assert_eq!(states, [LeaseState::Cancelled, LeaseState::Held]);
    assert_eq!(report(&store, &a, coded("h")).await, Reported::Stale);
    store.release(&[a]).await.unwrap();
    assert!(store.jobs(&id("a")).await.unwrap().is_empty());
    assert!(claim(&store, "w", 10, LONG).await.is_empty());
    assert_eq!(store.stats().await.unwrap().leases.get(&Queue::Code), Some(&1));
}

pub(crate) async fn a_waiting_claim_is_woken_by_another_handle(harness: &impl Harness) {
    let (store, other) = (harness.store().await, harness.store().await);
    let request = ClaimRequest { wait: LONG, ..request("w", 1, LONG) };
    let mut waiting = {
        let store = store.clone();
        tokio::spawn(async move { store.claim(&request).await.unwrap() })
    };
    let early = tokio::time::timeout(Duration::from_millis(100), &mut waiting).await;
    assert!(early.is_err(), "there is nothing to claim yet");
    add(&other, &["a"]).await;
    assert_eq!(in_time("the claim", waiting).await.unwrap().len(), 1);
    assert!(claim(&store, "w", 1, LONG).await.is_empty());
    assert_eq!(store.promote(10).await.unwrap(), Promoted::default());
}
