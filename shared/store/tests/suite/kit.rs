//! What the tests are made of: the harness of an engine, tasks, workers and a coordinator.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use refile_core::decide::submission::{NewTask, Workflow, submit};
use refile_core::event::PersonDecision;
use refile_core::failure::{Failure, FailureKind};
use refile_core::task::{Change, PhaseLimits, Review, Usage};
use refile_core::verdict::{Verdict, VerdictKind};
use refile_core::{Event, Outcome, Policy, Priority, Queue, Task, TaskId, TaskState, Timestamp, decide};
use refile_store::commit::commit;
use refile_store::{
    Claim, ClaimRequest, Commit, Committed, Happening, JobView, Lease, Report, Reported, Store, TakeRequest, Taken,
    Versioned,
};

/// A lease that no test outlives.
pub(crate) const LONG: Duration = Duration::from_hours(1);

/// What a test needs of an engine. Each harness has a namespace of its own.
#[async_trait]
pub(crate) trait Harness: Send + Sync {
    /// Opens a further handle, as another process would.
    async fn store(&self) -> Arc<dyn Store>;
    /// Puts these bytes in place of a task's record and gives those that were there.
    async fn swap_record(&self, task: &TaskId, bytes: &[u8]) -> Vec<u8>;
    /// Damages the payload of the task's only outcome, which nobody has taken yet.
    async fn corrupt_outcome(&self, task: &TaskId);
    /// Stops the store and starts it again. Every handle must have been dropped.
    async fn restart(&self);

    /// How many partitions there are. Only within one is there an order of jobs and outcomes.
    fn partitions(&self) -> u32 {
        1
    }

    /// Damages a task's record and gives its bytes as they were.
    async fn corrupt_record(&self, task: &TaskId) -> Vec<u8> {
        self.swap_record(task, &[1, 0xc1, 0xc1]).await
    }
}

/// Asks again until it is so; fails after a time that is long for any machine.
pub(crate) async fn until<F, R>(what: &str, mut so: F)
where
    F: FnMut() -> R,
    R: Future<Output = bool>,
{
    let deadline = Instant::now() + Duration::from_secs(30);
    while !so().await {
        assert!(Instant::now() < deadline, "it never came to this: {what}");
        tokio::task::yield_now().await;
    }
}

/// Waits for something that would not come for an hour if it were forgotten.
pub(crate) async fn in_time<T>(what: &str, of: impl Future<Output = T>) -> T {
    let ended = tokio::time::timeout(Duration::from_mins(1), of).await;
    ended.unwrap_or_else(|_| panic!("nobody woke {what}"))
}

pub(crate) fn id(text: &str) -> TaskId {
    TaskId::parse(text).unwrap()
}

/// A task of the built-in workflow that does not land.
pub(crate) fn new_task(title: &str) -> NewTask {
    NewTask {
        title: title.to_owned(),
        description: "Do it.".to_owned(),
        repository: "repo".to_owned(),
        base: "main".to_owned(),
        priority: Priority::Normal,
        key: None,
        labels: Vec::new(),
        workflow: Workflow { lands: false, ..Workflow::default() },
    }
}

/// A workflow of two phases that do not wait for each other.
pub(crate) fn two_phases() -> Workflow {
    let phases = ["left", "right"].map(|name| (name.to_owned(), Vec::new(), PhaseLimits::default())).to_vec();
    Workflow { name: "two".to_owned(), phases, lands: false }
}

pub(crate) fn submission(name: &str, new: NewTask) -> Commit {
    commit(submit(id(name), new, &Policy::default(), Timestamp(1)), None, None)
}

/// Submits tasks of these names, in this order.
pub(crate) async fn add(store: &Arc<dyn Store>, names: &[&str]) {
    let submissions: Vec<_> = names.iter().map(|name| submission(name, new_task(name))).collect();
    let submitted = store.submit(&submissions).await.unwrap();
    assert!(submitted.iter().all(|s| s.added), "{submitted:?}");
}

pub(crate) fn request(owner: &str, max: usize, lease: Duration) -> ClaimRequest {
    ClaimRequest {
        queues: vec![Queue::Code],
        owner: owner.to_owned(),
        max,
        lease,
        wait: Duration::ZERO,
        limits: Arc::default(),
    }
}

pub(crate) async fn claim(store: &Arc<dyn Store>, owner: &str, max: usize, lease: Duration) -> Vec<Claim> {
    store.claim(&request(owner, max, lease)).await.unwrap()
}

/// Claims the only job.
pub(crate) async fn claim_one(store: &Arc<dyn Store>, owner: &str, lease: Duration) -> Claim {
    let mut claims = claim(store, owner, 2, lease).await;
    assert_eq!(claims.len(), 1, "{claims:?}");
    claims.remove(0)
}

pub(crate) fn usage() -> Usage {
    Usage { input_tokens: 1, output_tokens: 2, cost_micros: 3, wall_ms: 4, cost_unknown: false }
}

/// The agent left a change.
pub(crate) fn coded(head: &str) -> Outcome {
    let change = Change {
        branch: format!("refile/{head}"),
        base_commit: "base".to_owned(),
        head: head.to_owned(),
        patch_id: format!("patch-{head}"),
        files: 1,
        lines: 0,
        diff: None,
        summary: String::new(),
        unfinished: false,
    };
    let prompt_digest = "digest".to_owned();
    Outcome::Coded { change, gates: Vec::new(), prompt_digest, transcript: None, usage: usage() }
}

/// The agent crashed.
pub(crate) fn crashed() -> Outcome {
    let failure = Failure::new(FailureKind::Crash, "it crashed");
    Outcome::AgentFailed { failure, prompt_digest: None, transcript: None, usage: usage(), change: None }
}

/// The agent asks: the task is escalated.
pub(crate) fn asks() -> Outcome {
    let (words, prompt_digest) = ("Which one?".to_owned(), "digest".to_owned());
    Outcome::NeedsInput { words, prompt_digest, transcript: None, usage: usage() }
}

/// A review of the change at `head`.
pub(crate) fn reviewed(verdict: VerdictKind, head: &str) -> Outcome {
    let required_change = if verdict == VerdictKind::NeedsChanges { format!("Change {head}.") } else { String::new() };
    let verdict = Verdict { verdict, required_change, critique: "words".to_owned(), conf: 0.9, phase: None };
    Outcome::Reviewed(Review { usage: usage(), ..Review::new("default", head, verdict) })
}

pub(crate) async fn report(store: &Arc<dyn Store>, lease: &Lease, outcome: Outcome) -> Reported {
    store.report(&[Report { lease: lease.clone(), outcome }]).await.unwrap().remove(0)
}

pub(crate) fn take_request(consumer: &str, max: usize) -> TakeRequest {
    TakeRequest { consumer: consumer.to_owned(), max, wait: Duration::ZERO, takeover: LONG }
}

pub(crate) async fn take(store: &Arc<dyn Store>, consumer: &str, max: usize) -> Vec<Taken> {
    store.take_outcomes(&take_request(consumer, max)).await.unwrap()
}

/// Takes the only outcome.
pub(crate) async fn take_one(store: &Arc<dyn Store>, consumer: &str) -> Taken {
    let mut taken = take(store, consumer, 2).await;
    assert_eq!(taken.len(), 1, "{taken:?}");
    taken.remove(0)
}

/// Claims the only job, reports this, and takes it.
pub(crate) async fn work(store: &Arc<dyn Store>, outcome: Outcome) -> Taken {
    let claim = claim_one(store, "worker", LONG).await;
    assert_eq!(report(store, &claim.lease, outcome).await, Reported::Accepted);
    take_one(store, "coordinator").await
}

pub(crate) fn event_of(taken: &Taken) -> Event {
    let phase = taken.phase.clone();
    match &taken.happening {
        Happening::Outcome(outcome) => Event::Outcome { phase, attempt: taken.attempt, outcome: (**outcome).clone() },
        Happening::Poisoned { deliveries } => {
            Event::Poisoned { phase, why: format!("was delivered {deliveries} times") }
        }
    }
}

/// What the core decides of a taken outcome.
pub(crate) fn decided(taken: &Taken, policy: &Policy) -> Commit {
    decided_at(taken, policy, Timestamp(2))
}

pub(crate) fn decided_at(taken: &Taken, policy: &Policy, now: Timestamp) -> Commit {
    let Versioned { task, version } = &taken.task;
    let transition = decide(task, &event_of(taken), policy, now).unwrap();
    commit(transition, Some((task, *version)), Some(taken.guard.clone()))
}

/// What the core decides of what a person says.
pub(crate) fn by_person(before: &Versioned, event: &Event) -> Commit {
    let transition = decide(&before.task, event, &Policy::default(), Timestamp(3)).unwrap();
    commit(transition, Some((&before.task, before.version)), None)
}

pub(crate) fn cancelled() -> Event {
    Event::Cancelled { by: "ann".to_owned() }
}

pub(crate) fn retried(task: &Task) -> Event {
    let escalation = task.open_escalations().next().unwrap().id.clone();
    Event::Decided { escalation, decision: PersonDecision::Retry, by: "ann".to_owned(), note: None }
}

pub(crate) async fn commit_one(store: &Arc<dyn Store>, commit: Commit) -> Committed {
    store.commit(&[commit]).await.unwrap().remove(0)
}

pub(crate) async fn task(store: &Arc<dyn Store>, name: &str) -> Versioned {
    store.tasks(&[id(name)]).await.unwrap().remove(0).unwrap()
}

pub(crate) async fn state(store: &Arc<dyn Store>, name: &str) -> TaskState {
    task(store, name).await.task.state
}

/// The only job of a task.
pub(crate) async fn job(store: &Arc<dyn Store>, name: &str) -> JobView {
    let mut jobs = store.jobs(&id(name)).await.unwrap();
    assert_eq!(jobs.len(), 1, "{jobs:?}");
    jobs.remove(0)
}

/// A counter, or 0 where nothing was counted yet.
pub(crate) async fn counted(store: &Arc<dyn Store>, metric: &'static str, labels: &[&str]) -> i64 {
    let key = refile_core::count::Count::new(metric, labels).key();
    store.stats().await.unwrap().counts.get(&key).copied().unwrap_or(0)
}

/// A policy whose failed jobs are tried again after so many milliseconds.
pub(crate) fn backoff(ms: u64) -> Policy {
    Policy { backoff_ms: ms, max_backoff_ms: ms, ..Policy::default() }
}
