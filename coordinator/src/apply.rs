//! One event from a person, applied to one task.

use refile_core::{Event, Policy, Refusal, Task, TaskId, decide};
use refile_store::commit::commit;
use refile_store::{Committed, Store, StoreError};

use crate::{now, outcomes};

/// How often a decision is made again because the record changed meanwhile.
const TRIES: usize = 20;

/// Why an event was not applied.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// There is no such task.
    #[error("there is no task {0}; `refile task list` shows what there is")]
    NoTask(TaskId),
    /// It is not possible as things stand.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The record changed each time.
    #[error("task {0} changes faster than the decision can be written; try again")]
    Busy(TaskId),
}

/// Applies an event and gives the task as it is then.
pub async fn apply(store: &dyn Store, policy: &Policy, id: &TaskId, event: &Event) -> Result<Task, ApplyError> {
    for _ in 0..TRIES {
        let found = store.tasks(std::slice::from_ref(id)).await?.pop().flatten();
        let before = found.ok_or_else(|| ApplyError::NoTask(id.clone()))?;
        let transition = decide(&before.task, event, policy, now())?;
        let commit = commit(transition, Some((&before.task, before.version)), None);
        let result = store.commit(std::slice::from_ref(&commit)).await?;
        if result == [Committed::Applied] {
            outcomes::log(&commit);
            return Ok(commit.task);
        }
    }
    Err(ApplyError::Busy(id.clone()))
}
