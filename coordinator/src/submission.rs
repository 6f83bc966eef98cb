//! New tasks, as people and programs write them.

use refile_config::Config;
use refile_core::decide::submission::{CHANGE, NewTask, Workflow, submit as first_transition};
use refile_core::{Priority, TaskId};
use refile_store::commit::commit;
use refile_store::{Store, StoreError, Submitted};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{now, outcomes};

/// Tasks that go to the store in one step.
const BATCH: usize = 500;
/// The longest title, in characters.
const MAX_TITLE: usize = 300;
/// The longest description, in bytes.
const MAX_DESCRIPTION: usize = 1 << 20;

/// One task as it is submitted: a line of a task file, or the body of a request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskRequest {
    /// One line for people.
    pub title: String,
    /// What is wanted; the title where there is none.
    #[serde(default)]
    pub description: String,
    /// A path or a URL; the configuration's where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repository: Option<String>,
    /// The base branch; the configuration's where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<String>,
    /// The workflow; `change` where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workflow: Option<String>,
    /// `high`, `normal` or `low`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<Priority>,
    /// An idempotency key: a second task with the same one is the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Words to find it by.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<String>,
}

/// Reads a request strictly: what is missing comes from the configuration, what cannot be is an error.
pub fn read(request: TaskRequest, config: &Config) -> Result<NewTask, String> {
    let title = request.title.split_whitespace().collect::<Vec<_>>().join(" ");
    if title.is_empty() {
        return Err("`title` is empty; give the task one line that says what is wanted".to_owned());
    }
    let lines = [("title", title.as_str()), ("key", request.key.as_deref().unwrap_or_default())];
    let labels = request.labels.iter().map(|label| ("labels", label.as_str()));
    for (name, line) in lines.into_iter().chain(labels) {
        if line.contains(char::is_control) {
            return Err(format!("`{name}` holds a control character"));
        }
    }
    if request.description.contains('\0') {
        return Err("`description` holds a NUL character, which no agent can be given".to_owned());
    }
    if title.chars().count() > MAX_TITLE {
        return Err(format!("`title` is longer than {MAX_TITLE} characters; put the details into `description`"));
    }
    let description = if request.description.trim().is_empty() { title.clone() } else { request.description };
    if description.len() > MAX_DESCRIPTION {
        return Err(format!(
            "`description` is longer than {MAX_DESCRIPTION} bytes; put large inputs into the repository"
        ));
    }
    match request.workflow.as_deref() {
        None | Some(CHANGE) => {}
        Some(other) => return Err(format!("there is no workflow `{other}`; there is `{CHANGE}`")),
    }
    let base = request.base.unwrap_or_else(|| config.repository.base.clone());
    if base.is_empty() || base.starts_with('-') || base.contains(char::is_whitespace) {
        return Err(format!("`base` is {base:?}, which is no branch name"));
    }
    let key = request.key.filter(|k| !k.is_empty());
    if key.as_ref().is_some_and(|k| k.len() > 500) {
        return Err("`key` is longer than 500 bytes".to_owned());
    }
    Ok(NewTask {
        title,
        description,
        repository: config.repository_url(request.repository.as_deref().unwrap_or(&config.repository.url)),
        base,
        priority: request.priority.unwrap_or(Priority::Normal),
        key,
        labels: request.labels,
        workflow: Workflow::default(),
    })
}

/// Adds tasks, in order. What is there already (by key) is named, not added again.
pub async fn submit(store: &dyn Store, config: &Config, tasks: Vec<NewTask>) -> Result<Vec<Submitted>, StoreError> {
    let policy = config.policy();
    let mut submitted = Vec::with_capacity(tasks.len());
    let mut tasks = tasks.into_iter().peekable();
    while tasks.peek().is_some() {
        let commits: Vec<_> = tasks
            .by_ref()
            .take(BATCH)
            .map(|new| commit(first_transition(id_of(&new), new, &policy, now()), None, None))
            .collect();
        let added = store.submit(&commits).await?;
        for (result, commit) in added.iter().zip(&commits) {
            if result.added {
                outcomes::log(commit);
            }
        }
        submitted.extend(added);
    }
    Ok(submitted)
}

/// The name of a new task: 60 bits. Those of its idempotency key (SHA-256), so that equal keys are one task wherever and
/// however often it is submitted; random ones where it has none.
fn id_of(new: &NewTask) -> TaskId {
    let bits = match &new.key {
        Some(key) => {
            Sha256::digest(key.as_bytes()).iter().take(8).fold(0, |bits: u64, byte| bits << 8 | u64::from(*byte))
        }
        None => uuid::Uuid::new_v4().as_u128() as u64,
    };
    TaskId::from_bits(bits)
}
