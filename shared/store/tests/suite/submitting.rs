//! What `submit` promises.

use refile_core::{Queue, TaskState};
use refile_store::{Place, Submitted};

use super::kit::*;

pub(crate) async fn an_id_is_added_once(harness: &impl Harness) {
    let (one, other) = (harness.store().await, harness.store().await);
    add(&one, &["a"]).await;
    let again = other.submit(&[submission("a", new_task("another title"))]).await.unwrap();
    assert_eq!(again, [Submitted { id: id("a"), added: false }]);
    let found = task(&one, "a").await;
    assert_eq!((found.task.title.as_str(), found.version), ("a", 1));
    assert_eq!(counted(&one, "tasks_submitted_total", &[]).await, 1);
    assert_eq!(counted(&one, "tasks", &["open"]).await, 1);
    assert_eq!(claim(&one, "w", 10, LONG).await.len(), 1);
}

pub(crate) async fn a_batch_keeps_its_order(harness: &impl Harness) {
    let store = harness.store().await;
    add(&store, &["b"]).await;
    let batch = ["a", "b", "c"].map(|name| submission(name, new_task(name)));
    let submitted = store.submit(&batch).await.unwrap();
    let expected = [("a", true), ("b", false), ("c", true)].map(|(name, added)| Submitted { id: id(name), added });
    assert_eq!(submitted, expected);
    let found = store.tasks(&[id("c"), id("none"), id("a")]).await.unwrap();
    let names: Vec<_> = found.iter().map(|t| t.as_ref().map(|t| t.task.id.as_str())).collect();
    assert_eq!(names, [Some("c"), None, Some("a")]);
    assert!(store.submit(&[]).await.unwrap().is_empty());
}

pub(crate) async fn a_task_reads_back(harness: &impl Harness) {
    let store = harness.store().await;
    let submitted =
        submission("a", refile_core::decide::submission::NewTask { workflow: two_phases(), ..new_task("a") });
    store.submit(std::slice::from_ref(&submitted)).await.unwrap();
    let found = task(&store, "a").await;
    assert_eq!((&found.task, found.version), (&submitted.task, 1));
    assert_eq!(found.task.state, TaskState::Open);
    let jobs = store.jobs(&id("a")).await.unwrap();
    assert_eq!(jobs.len(), 2, "{jobs:?}");
    for job in jobs {
        assert_eq!((job.place, job.queue, job.attempt), (Place::Queued, Queue::Code, 1));
        assert_eq!((job.fence, job.deliveries, job.owner), (1, 0, None));
    }
    assert!(store.jobs(&id("none")).await.unwrap().is_empty());
}
