//! A fixed run of 1,000 tasks on the engine in this process, for counting instructions: see `.ci/instructions`.
//!
//! Nothing waits, nothing is drawn at random and nobody works at the same time, so that two runs do the same. Each task
//! is submitted, coded, reviewed and accepted; every tenth is refiled once. Run as a test (without `--bench`) it takes
//! 100 tasks.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use refile_coordinator::outcomes::settle;
use refile_core::decide::submission::{NewTask, Workflow, submit};
use refile_core::task::{Change, Review, Usage};
use refile_core::verdict::{Verdict, VerdictKind};
use refile_core::{Outcome, Policy, Priority, Queue, Task, TaskId, TaskState, Timestamp};
use refile_store::commit::commit;
use refile_store::{ClaimRequest, Report, Reported, SqliteStore, Store, TakeRequest};

/// How many tasks or jobs go in one call.
const BATCH: usize = 100;
/// The size of a description, in bytes.
const DESCRIPTION: usize = 1_024;
/// Longer than the run.
const LEASE: Duration = Duration::from_hours(24);

fn main() {
    let asked = |option: &str| std::env::args().any(|argument| argument == option);
    if asked("--list") {
        // A test runner wants the names of tests; this is none.
        return;
    }
    let tasks = if asked("--bench") { 1_000 } else { 100 };
    let dir = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(run(dir.path(), tasks));
}

async fn run(dir: &Path, tasks: u64) {
    let store = SqliteStore::open(&dir.join("fleet.db"), None).unwrap();
    let policy = Policy::default();
    let ids: Vec<TaskId> = (0..tasks).map(id).collect();
    for batch in ids.chunks(BATCH) {
        let first = |id: &TaskId| commit(submit(id.clone(), new_task(id), &policy, Timestamp(1)), None, None);
        let submitted = store.submit(&batch.iter().map(first).collect::<Vec<_>>()).await.unwrap();
        assert!(submitted.iter().all(|s| s.added));
    }
    loop {
        let coded = work(&store, &policy, Queue::Code).await;
        let reviewed = work(&store, &policy, Queue::Review).await;
        if coded + reviewed == 0 {
            break;
        }
    }
    let mut attempts = 0;
    for found in store.tasks(&ids).await.unwrap() {
        let task = found.unwrap().task;
        assert_eq!(task.state, TaskState::Accepted, "{}", task.id);
        attempts += u64::from(task.attempt_number());
    }
    assert_eq!(attempts, tasks + tasks / 10, "every tenth task takes two attempts, the others one");
}

/// Claims a batch of jobs, reports their outcomes and decides them. Says how many there were.
async fn work(store: &SqliteStore, policy: &Policy, queue: Queue) -> usize {
    let request = ClaimRequest {
        queues: vec![queue],
        owner: "worker".to_owned(),
        max: BATCH,
        lease: LEASE,
        wait: Duration::ZERO,
        limits: Arc::default(),
    };
    let claims = store.claim(&request).await.unwrap();
    let report = |claim: refile_store::Claim| Report { outcome: outcome(queue, &claim.task), lease: claim.lease };
    let reports: Vec<Report> = claims.into_iter().map(report).collect();
    let reported = store.report(&reports).await.unwrap();
    assert!(reported.iter().all(|r| *r == Reported::Accepted));
    let request = TakeRequest { consumer: "coordinator".to_owned(), max: BATCH, wait: Duration::ZERO, takeover: LEASE };
    let taken = store.take_outcomes(&request).await.unwrap();
    assert_eq!(taken.len(), reports.len());
    settle(store, policy, taken).await.unwrap();
    reports.len()
}

fn id(number: u64) -> TaskId {
    TaskId::parse(&format!("task{number:08}")).unwrap()
}

/// Whether the task is one of those that are refiled once.
fn is_tenth(id: &TaskId) -> bool {
    id.as_str().ends_with('0')
}

fn new_task(id: &TaskId) -> NewTask {
    let mut description = format!("Task {id}: ");
    while description.len() < DESCRIPTION {
        description.push_str("Handle the responses that the client passes over, and test that. ");
    }
    description.truncate(DESCRIPTION);
    NewTask {
        title: format!("Task {id}"),
        description,
        repository: "https://git.example/team/repository.git".to_owned(),
        base: "main".to_owned(),
        priority: Priority::Normal,
        key: None,
        labels: Vec::new(),
        workflow: Workflow { lands: false, ..Workflow::default() },
    }
}

/// What a worker without an agent would say of its job.
fn outcome(queue: Queue, task: &Task) -> Outcome {
    let (id, attempt) = (task.id.as_str(), task.attempt_number());
    let (head, usage) = (format!("{id}-{attempt}"), Usage { wall_ms: 1, ..Usage::default() });
    if queue == Queue::Code {
        let change = Change {
            branch: format!("refile/{id}/change/{attempt}-1"),
            base_commit: "base".to_owned(),
            patch_id: format!("patch-{head}"),
            head,
            files: 1,
            lines: 0,
            diff: None,
            summary: String::new(),
            unfinished: false,
        };
        let prompt_digest = "digest".to_owned();
        return Outcome::Coded { change, gates: Vec::new(), prompt_digest, transcript: None, usage };
    }
    let is_refused = attempt == 1 && is_tenth(&task.id);
    Outcome::Reviewed(Review { usage, ..Review::new("default", head, verdict(is_refused)) })
}

fn verdict(is_refused: bool) -> Verdict {
    let (verdict, required_change) = if is_refused {
        (VerdictKind::NeedsChanges, "Handle the responses with status 429.")
    } else {
        (VerdictKind::Approved, "")
    };
    let critique = "The client passes over what it should handle.".to_owned();
    Verdict { verdict, required_change: required_change.to_owned(), critique, conf: 0.9, phase: None }
}
