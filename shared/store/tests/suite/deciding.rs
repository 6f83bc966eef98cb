//! What coordinators are promised: take, commit, discard.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use refile_core::decide::submission::NewTask;
use refile_core::verdict::VerdictKind;
use refile_core::{Outcome, Policy, Queue, TaskState};
use refile_store::{
    ClaimRequest, Commit, Committed, Happening, JobChange, Lane, Place, Report, Reported, Store, TakeRequest, Taken,
};

use super::kit::*;

pub(crate) async fn a_commit_is_all_or_nothing(harness: &impl Harness) {
    let store = harness.store().await;
    add(&store, &["a", "b", "c"]).await;
    for claim in claim(&store, "w", 3, LONG).await {
        assert_eq!(report(&store, &claim.lease, coded("h")).await, Reported::Accepted);
    }
    let mut taken = take(&store, "c", 10).await;
    taken.sort_by(|x, y| x.task.task.id.cmp(&y.task.task.id));
    let mut commits: Vec<_> = taken.iter().map(|t| decided(t, &Policy::default())).collect();
    commits[1].version += 1;
    let (record, jobs) = (task(&store, "b").await, store.jobs(&id("b")).await.unwrap());
    let events = store.events("", 100).await.unwrap().len();
    let counts = store.stats().await.unwrap().counts;
    let committed = store.commit(&commits).await.unwrap();
    assert_eq!(committed, [Committed::Applied, Committed::Conflict, Committed::Applied]);

    assert_eq!((task(&store, "b").await, store.jobs(&id("b")).await.unwrap()), (record, jobs));
    let added = store.events("", 100).await.unwrap().split_off(events);
    assert!(!added.is_empty() && added.iter().all(|e| e.task != id("b")), "{added:?}");
    let mut expected = counts;
    for (key, by) in commits[0].deltas.iter().chain(&commits[2].deltas) {
        *expected.entry(key.clone()).or_default() += by;
    }
    assert_eq!(nonzero(store.stats().await.unwrap().counts), nonzero(expected));
    for name in ["a", "c"] {
        assert_eq!(task(&store, name).await.version, 2);
        let view = job(&store, name).await;
        assert_eq!((view.place, view.queue, view.deliveries, view.owner), (Place::Queued, Queue::Review, 0, None));
    }
    // The outcome of the conflict is still this coordinator's: it reads, decides and commits again.
    assert_eq!(store.stats().await.unwrap().outcomes, 1);
    assert_eq!(commit_one(&store, decided(&taken[1], &Policy::default())).await, Committed::Applied);
    assert_eq!(store.stats().await.unwrap().outcomes, 0);
}

fn nonzero(counts: BTreeMap<String, i64>) -> BTreeMap<String, i64> {
    counts.into_iter().filter(|(_, n)| *n != 0).collect()
}

pub(crate) async fn a_stale_fence_is_refused(harness: &impl Harness) {
    let store = harness.store().await;
    add(&store, &["a", "b"]).await;
    let claims = claim(&store, "w", 2, LONG).await;
    for claim in &claims {
        report(&store, &claim.lease, coded("h")).await;
    }
    let mut taken = take(&store, "c", 10).await;
    taken.sort_by(|x, y| x.task.task.id.cmp(&y.task.task.id));
    let commits: Vec<_> = taken.iter().map(|t| decided(t, &Policy::default())).collect();
    assert_eq!(commit_one(&store, commits[0].clone()).await, Committed::Applied);
    let (record, jobs) = (task(&store, "a").await, store.jobs(&id("a")).await.unwrap());
    // The same verdict again, even with the version that is there now.
    let again = Commit { version: record.version, ..commits[0].clone() };
    let committed = store.commit(&[again, commits[1].clone()]).await.unwrap();
    assert_eq!(committed, [Committed::Stale, Committed::Applied]);
    assert_eq!((task(&store, "a").await, store.jobs(&id("a")).await.unwrap()), (record, jobs));

    // A person acted while the outcome lay there.
    add(&store, &["z"]).await;
    let taken = work(&store, coded("h")).await;
    let late = decided(&taken, &Policy::default());
    let found = task(&store, "z").await;
    assert_eq!(commit_one(&store, by_person(&found, &cancelled())).await, Committed::Applied);
    let stale = counted(&store, "stale_outcomes_total", &[]).await;
    let found = task(&store, "z").await;
    assert_eq!(commit_one(&store, late).await, Committed::Stale);
    assert_eq!(task(&store, "z").await, found);
    assert_eq!(counted(&store, "stale_outcomes_total", &[]).await, stale + 1);
    assert_eq!(store.stats().await.unwrap().outcomes, 0, "a stale outcome is gone");
    let taken = TakeRequest { takeover: Duration::ZERO, ..take_request("c2", 10) };
    assert!(store.take_outcomes(&taken).await.unwrap().is_empty());
}

pub(crate) async fn a_commit_raises_each_fence_once(harness: &impl Harness) {
    let store = harness.store().await;
    store.submit(&[submission("a", NewTask { workflow: two_phases(), ..new_task("a") })]).await.unwrap();
    let fences = async || {
        let jobs = store.jobs(&id("a")).await.unwrap();
        jobs.into_iter().map(|j| (j.phase, j.fence)).collect::<BTreeMap<_, _>>()
    };
    let expect = |left: u64, right: u64| BTreeMap::from([("left".to_owned(), left), ("right".to_owned(), right)]);
    assert_eq!(fences().await, expect(1, 1));
    let claim = claim(&store, "w", 1, LONG).await.remove(0);
    assert_eq!(claim.lease.phase, "left");
    report(&store, &claim.lease, coded("h")).await;
    assert_eq!(fences().await, expect(2, 1));
    let taken = take_one(&store, "c").await;
    assert_eq!(commit_one(&store, decided(&taken, &Policy::default())).await, Committed::Applied);
    assert_eq!(fences().await, expect(3, 1), "the guarded phase got a job: one step");
    // Without a guard a Put and a Drop raise theirs, and no other.
    let found = task(&store, "a").await;
    let put = JobChange::Put {
        phase: "right".to_owned(),
        queue: Queue::Code,
        attempt: 1,
        delay_ms: 0,
        lane: Lane::parse("lane"),
    };
    let drop = JobChange::Drop { phase: "left".to_owned() };
    let plain = |version, jobs| Commit {
        task: found.task.clone(),
        version,
        guard: None,
        jobs,
        notices: Vec::new(),
        deltas: Vec::new(),
    };
    assert_eq!(commit_one(&store, plain(2, vec![put.clone()])).await, Committed::Applied);
    assert_eq!(fences().await, expect(3, 2));
    assert_eq!(commit_one(&store, plain(3, vec![drop])).await, Committed::Applied);
    assert_eq!(fences().await, BTreeMap::from([("right".to_owned(), 2)]));
    assert_eq!(commit_one(&store, plain(3, vec![put])).await, Committed::Conflict);
    let back = JobChange::Put {
        phase: "left".to_owned(),
        queue: Queue::Code,
        attempt: 1,
        delay_ms: 0,
        lane: Lane::parse("lane"),
    };
    assert_eq!(commit_one(&store, plain(4, vec![back])).await, Committed::Applied);
    assert_eq!(fences().await, expect(5, 2), "a fence goes on from where it was");
}

pub(crate) async fn a_final_task_has_no_jobs(harness: &impl Harness) {
    let store = harness.store().await;
    store.submit(&[submission("a", NewTask { workflow: two_phases(), ..new_task("a") })]).await.unwrap();
    let leases: Vec<_> = claim(&store, "w", 2, LONG).await.into_iter().map(|c| c.lease).collect();
    report(&store, &leases[0], coded("h")).await;
    let found = task(&store, "a").await;
    // Whatever the commit says of jobs: a task that is over has none.
    let mut over = by_person(&found, &cancelled());
    over.jobs.clear();
    assert_eq!(commit_one(&store, over).await, Committed::Applied);
    assert!(store.jobs(&id("a")).await.unwrap().is_empty());
    let stats = store.stats().await.unwrap();
    assert_eq!(stats.leases.values().sum::<u64>(), 0);
    assert_eq!(report(&store, &leases[1], coded("h")).await, Reported::Stale);
    // The outcome that was underway is handed out, and whatever is made of it is stale.
    let taken = take_one(&store, "c").await;
    let late = Commit {
        task: found.task.clone(),
        version: taken.task.version,
        guard: Some(taken.guard),
        jobs: Vec::new(),
        notices: Vec::new(),
        deltas: Vec::new(),
    };
    assert_eq!(commit_one(&store, late).await, Committed::Stale);
    assert_eq!(state(&store, "a").await, TaskState::Cancelled);
}

pub(crate) async fn a_discarded_outcome_is_gone_and_counted(harness: &impl Harness) {
    let store = harness.store().await;
    add(&store, &["a"]).await;
    let taken = work(&store, coded("h")).await;
    let before = job(&store, "a").await;
    store.discard(std::slice::from_ref(&taken.guard.receipt)).await.unwrap();
    assert_eq!(counted(&store, "stale_outcomes_total", &[]).await, 1);
    assert_eq!(store.stats().await.unwrap().outcomes, 0);
    let takeover = TakeRequest { takeover: Duration::ZERO, ..take_request("c2", 10) };
    assert!(store.take_outcomes(&takeover).await.unwrap().is_empty());
    assert_eq!(job(&store, "a").await, before);
}

pub(crate) async fn outcomes_of_a_dead_coordinator_are_taken_over(harness: &impl Harness) {
    let store = harness.store().await;
    add(&store, &["a", "b", "c"]).await;
    for claim in claim(&store, "w", 3, LONG).await {
        report(&store, &claim.lease, coded(claim.task.id.as_str())).await;
    }
    let dead = take(&store, "dead", 2).await;
    let names = |taken: &[Taken]| taken.iter().map(|t| t.task.task.id.to_string()).collect::<Vec<_>>();
    assert_eq!(names(&dead), ["a", "b"], "oldest first");
    assert_eq!(names(&take(&store, "other", 10).await), ["c"], "what another took is its own");
    assert!(take(&store, "other", 10).await.is_empty());
    let takeover = TakeRequest { takeover: Duration::ZERO, ..take_request("other", 10) };
    let mut taken = store.take_outcomes(&takeover).await.unwrap();
    taken.sort_by_key(|t| t.task.task.id.clone());
    assert!(names(&taken).starts_with(&["a".to_owned(), "b".to_owned()]), "{:?}", names(&taken));
    let commits: Vec<_> = taken.iter().map(|t| decided(t, &Policy::default())).collect();
    assert!(store.commit(&commits).await.unwrap().iter().all(|c| *c == Committed::Applied));
    // The first coordinator was only slow: what it decided comes too late.
    assert_eq!(commit_one(&store, decided(&dead[0], &Policy::default())).await, Committed::Stale);
    assert_eq!(task(&store, "a").await.version, 2);
}

pub(crate) async fn a_waiting_take_is_woken_by_another_handle(harness: &impl Harness) {
    let (store, other) = (harness.store().await, harness.store().await);
    add(&other, &["a"]).await;
    let lease = claim_one(&other, "w", LONG).await.lease;
    let request = TakeRequest { wait: LONG, ..take_request("c", 10) };
    let mut waiting = tokio::spawn(async move { store.take_outcomes(&request).await.unwrap() });
    let early = tokio::time::timeout(Duration::from_millis(100), &mut waiting).await;
    assert!(early.is_err(), "there is nothing to take yet");
    report(&other, &lease, coded("h")).await;
    assert_eq!(in_time("the take", waiting).await.unwrap().len(), 1);
}

/// Takes, decides and commits until every task is over.
async fn coordinate(store: Arc<dyn Store>, name: String, tasks: usize) -> usize {
    let mut applied = 0;
    loop {
        let finished = counted(&store, "tasks_finished_total", &["accepted"]).await;
        if usize::try_from(finished).unwrap() == tasks {
            return applied;
        }
        let wait = Duration::from_millis(50);
        // What others hold is taken over at once, so that most outcomes are decided by several at the same time.
        let request = TakeRequest { wait, takeover: Duration::from_millis(1), ..take_request(&name, 16) };
        let taken = store.take_outcomes(&request).await.unwrap();
        let commits: Vec<_> = taken.iter().filter_map(decide_or_skip).collect();
        let committed = store.commit(&commits).await.unwrap();
        assert_eq!(committed.len(), commits.len());
        applied += committed.iter().filter(|c| **c == Committed::Applied).count();
    }
}

/// Another coordinator may have decided between this one's take and now; then the record says so already.
fn decide_or_skip(taken: &Taken) -> Option<Commit> {
    let task = &taken.task;
    let transition =
        refile_core::decide(&task.task, &event_of(taken), &Policy::default(), refile_core::Timestamp(2)).ok()?;
    Some(refile_store::commit::commit(transition, Some((&task.task, task.version)), Some(taken.guard.clone())))
}

/// Codes and approves until it is told to stop.
async fn labour(store: Arc<dyn Store>, name: String) {
    loop {
        let wait = Duration::from_millis(50);
        let queues = vec![Queue::Review, Queue::Code];
        let claims = store.claim(&ClaimRequest { queues, wait, ..request(&name, 8, LONG) }).await.unwrap();
        let report = |claim: refile_store::Claim| {
            let outcome: Outcome = match claim.queue {
                Queue::Code => coded("h"),
                Queue::Review | Queue::Land => reviewed(VerdictKind::Approved, "h"),
            };
            Report { lease: claim.lease, outcome }
        };
        let reports: Vec<_> = claims.into_iter().map(report).collect();
        let reported = store.report(&reports).await.unwrap();
        assert!(reported.iter().all(|r| *r == Reported::Accepted), "{reported:?}");
    }
}

pub(crate) async fn ten_coordinators_decide_each_task_once(harness: &impl Harness) {
    const TASKS: usize = 200;
    let store = harness.store().await;
    let names: Vec<_> = (0..TASKS).map(|n| format!("t{n}")).collect();
    add(&store, &names.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let mut workers = tokio::task::JoinSet::new();
    for n in 0..4 {
        workers.spawn(labour(store.clone(), format!("w{n}")));
    }
    let mut coordinators = tokio::task::JoinSet::new();
    for n in 0..10 {
        let own = if n % 3 == 0 { harness.store().await } else { store.clone() };
        coordinators.spawn(coordinate(own, format!("c{n}"), TASKS));
    }
    let applied: usize = coordinators.join_all().await.into_iter().sum();
    workers.shutdown().await;
    assert_eq!(applied, 2 * TASKS, "one decision for the change and one for its review");
    let ids: Vec<_> = names.iter().map(|name| id(name)).collect();
    for found in store.tasks(&ids).await.unwrap() {
        let found = found.unwrap();
        assert_eq!((found.task.state, found.version), (TaskState::Accepted, 3));
        assert_eq!(found.task.phases[0].attempts[0].reviews.len(), 1);
    }
    let all = i64::try_from(TASKS).unwrap();
    for (metric, labels) in [
        ("tasks_submitted_total", &[][..]),
        ("tasks_finished_total", &["accepted"]),
        ("reviews_total", &["default", "approved"]),
        ("task_attempts", &["change", "change", "accepted", "1"]),
        ("tasks", &["accepted"]),
    ] {
        assert_eq!(counted(&store, metric, labels).await, all, "{metric}");
    }
    assert_eq!(counted(&store, "tasks", &["open"]).await, 0);
    assert_eq!(counted(&store, "task_attempts_current", &["1"]).await, 0);
    let stats = store.stats().await.unwrap();
    assert_eq!(stats.depth.values().sum::<u64>() + stats.leases.values().sum::<u64>() + stats.delayed, 0);
    let events = store.events("", 10_000).await.unwrap();
    let finished = events.iter().filter(|e| e.notice.what == refile_core::decide::What::Finished).count();
    assert_eq!(finished, TASKS);
    assert!(events.iter().all(|e| e.at.0 > 0));
    drop_leftovers(&store).await;
}

/// Outcomes that were decided by several at once may lie there still; they are stale, all of them.
async fn drop_leftovers(store: &Arc<dyn Store>) {
    let request = TakeRequest { takeover: Duration::ZERO, ..take_request("last", 1_000) };
    for taken in store.take_outcomes(&request).await.unwrap() {
        assert!(matches!(taken.happening, Happening::Outcome(_)));
        let version = taken.task.version;
        let (task, guard) = (taken.task.task, Some(taken.guard));
        let late = Commit { task, version, guard, jobs: Vec::new(), notices: Vec::new(), deltas: Vec::new() };
        assert_eq!(commit_one(store, late).await, Committed::Stale);
    }
    assert_eq!(store.stats().await.unwrap().outcomes, 0);
}
