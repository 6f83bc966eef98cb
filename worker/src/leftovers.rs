//! Attempt branches of tasks that are over and have not landed: a landing removes its own, nobody else these.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use refile_core::{Task, TaskId, TaskState};

use crate::worker::Worker;
use crate::workspace::repository;

/// How often the branches of one repository are looked at.
const EVERY: Duration = Duration::from_mins(10);
/// Tasks that are read at once, and branches that are removed at once: no call may hold the store up for others, nor be
/// longer than a command may be.
const AT_ONCE: usize = 200;

/// When each repository was looked at last, by this process.
#[derive(Debug, Default)]
pub(crate) struct Leftovers {
    looked: Mutex<HashMap<String, Instant>>,
}

impl Leftovers {
    /// Removes them from a task's repository in the background, where it was not looked at for a while. A failure changes
    /// nothing: the next look finds them.
    pub(crate) fn remove(&self, worker: &Arc<Worker>, task: &Task) {
        {
            let mut looked = self.looked.lock().unwrap_or_else(PoisonError::into_inner);
            if looked.get(&task.repository).is_some_and(|at| at.elapsed() < EVERY) {
                return;
            }
            looked.insert(task.repository.clone(), Instant::now());
        }
        let (worker, url) = (worker.clone(), repository(&worker.config.dir, &task.repository));
        tokio::spawn(async move {
            match remove(&worker, &url).await {
                Ok(0) => {}
                Ok(branches) => tracing::info!(branches, "removed attempt branches of tasks that are over"),
                // Another worker may have been quicker.
                Err(error) => tracing::debug!(%error, "attempt branches of tasks that are over could not be removed"),
            }
        });
    }
}

/// Removes the attempt branches of tasks that are over; gives how many. Those of tasks that the store does not know are
/// another fleet's, and what was accepted without a landing is what the task was for.
async fn remove(worker: &Worker, url: &str) -> anyhow::Result<usize> {
    let mirror = worker.workspace.mirror(url).await?;
    let mut of_tasks: HashMap<TaskId, Vec<String>> = HashMap::new();
    for branch in mirror.all_attempt_branches().await? {
        if let Some(id) = branch.split('/').nth(1).and_then(|id| TaskId::parse(id).ok()) {
            of_tasks.entry(id).or_default().push(branch);
        }
    }
    let ids: Vec<TaskId> = of_tasks.keys().cloned().collect();
    let mut over = Vec::new();
    for ids in ids.chunks(AT_ONCE) {
        for found in worker.store.tasks(ids).await?.into_iter().flatten() {
            if matches!(found.task.state, TaskState::Merged | TaskState::Rejected | TaskState::Cancelled) {
                over.extend(of_tasks.remove(&found.task.id).unwrap_or_default());
            }
        }
    }
    for branches in over.chunks(AT_ONCE) {
        mirror.delete(branches).await?;
    }
    Ok(over.len())
}
