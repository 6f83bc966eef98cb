//! Outcomes as coordinators settle them, on a real store.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Duration;

use refile_coordinator::outcomes::settle;
use refile_core::decide::submission::{NewTask, Workflow, submit};
use refile_core::task::EscalationReason;
use refile_core::{Outcome, Policy, Priority, Queue, TaskId, TaskState, Timestamp};
use refile_store::commit::commit;
use refile_store::{Claim, ClaimRequest, Report, SqliteStore, Store, TakeRequest};

async fn store_with_one_claim() -> (tempfile::TempDir, Arc<dyn Store>, Claim) {
    let dir = tempfile::tempdir().unwrap();
    let store: Arc<dyn Store> = Arc::new(SqliteStore::open(&dir.path().join("fleet.db"), None).unwrap());
    let new = NewTask {
        title: "title".into(),
        description: "text".into(),
        repository: "repo".into(),
        base: "main".into(),
        priority: Priority::Normal,
        key: None,
        labels: Vec::new(),
        workflow: Workflow::default(),
    };
    let first = submit(TaskId::parse("t1").unwrap(), new, &Policy::default(), Timestamp(1));
    store.submit(&[commit(first, None, None)]).await.unwrap();
    let request = ClaimRequest {
        queues: vec![Queue::Code],
        owner: "w".into(),
        max: 1,
        lease: Duration::from_mins(1),
        wait: Duration::ZERO,
        limits: Arc::default(),
    };
    let claim = store.claim(&request).await.unwrap().remove(0);
    (dir, store, claim)
}

async fn settle_all(store: &dyn Store) {
    let request = TakeRequest { consumer: "c".into(), max: 10, wait: Duration::ZERO, takeover: Duration::from_mins(1) };
    let taken = store.take_outcomes(&request).await.unwrap();
    settle(store, &Policy::default(), taken).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outcome_that_does_not_fit_its_job_does_not_strand_the_task() {
    let (_dir, store, claim) = store_with_one_claim().await;
    let lease = claim.lease.clone();
    store.report(&[Report { lease, outcome: Outcome::Landed { commit: "c".into() } }]).await.unwrap();
    settle_all(store.as_ref()).await;
    let task = store.tasks(&[claim.task.id]).await.unwrap().remove(0).unwrap().task;
    assert_eq!(task.state, TaskState::Escalated);
    assert_eq!(task.escalations[0].reason, EscalationReason::PoisonJob);
    assert!(task.escalations[0].detail.contains("does not fit"), "{}", task.escalations[0].detail);
    assert_eq!(task.attempt_number(), 1);
}
