//! Issues with the label become tasks, and are told what became of them.

use refile_core::{Priority, Task, TaskState};
use refile_forge::{Forge, Issue, Place, Thread, comment_once, text};

use super::{LookError, Watch};
use crate::submission::{self, TaskRequest};

/// The longest title, in characters; what is beyond it stands in the description as well as in the issue.
const MAX_TITLE: usize = 250;
/// The longest description, in bytes.
const MAX_DESCRIPTION: usize = 500_000;

impl Watch<'_> {
    /// Looks at the issues with the label, where one is configured.
    pub(super) async fn issues(&mut self) {
        let Some(label) = self.coordinator.config.forge.label.clone() else { return };
        let looked = self.look_for(&label).await;
        if self.note("the issues could not be looked at", looked) {
            self.said.retain(|said| !said.starts_with("the issues"));
        }
    }

    async fn look_for(&mut self, label: &str) -> Result<(), LookError> {
        let (store, config) = (self.coordinator.store.clone(), self.coordinator.config.clone());
        let repository = config.repository_url(&config.repository.url);
        let name = Place::of(&config, &repository)?.name();
        let forge = self.forges.of(&repository)?;
        let (mut numbers, mut tasks) = (Vec::new(), Vec::new());
        for issue in forge.issues(label).await? {
            let number = issue.number;
            match submission::read(request(&name, label, issue), &config) {
                Ok(new) => {
                    numbers.push(number);
                    tasks.push(new);
                }
                Err(why) => tracing::warn!(number, why, "an issue cannot be a task"),
            }
        }
        let submitted = submission::submit(store.as_ref(), &config, tasks).await?;
        let ids: Vec<_> = submitted.into_iter().map(|submitted| submitted.id).collect();
        for (number, found) in numbers.into_iter().zip(store.tasks(&ids).await?) {
            if let Some(found) = found {
                self.tell(forge.as_ref(), number, &found.task).await?;
            }
        }
        Ok(())
    }

    /// Says on an issue what became of its task, once; one whose change is merged is closed.
    async fn tell(&mut self, forge: &dyn Forge, number: u64, task: &Task) -> Result<(), LookError> {
        let Some(outcome) = text::outcome(task) else { return Ok(()) };
        let marker = text::outcome_marker(task);
        if self.told.contains(&marker) {
            return Ok(());
        }
        if !self.speaks().await? {
            return Ok(());
        }
        comment_once(forge, Thread::Issue(number), &marker, &outcome).await?;
        if matches!(task.state, TaskState::Merged | TaskState::Accepted) {
            forge.close(Thread::Issue(number)).await?;
        }
        self.told.insert(marker);
        Ok(())
    }
}

/// The task that an issue asks for. Equal issues have equal keys, whoever sees them and how often.
fn request(repository: &str, label: &str, issue: Issue) -> TaskRequest {
    let number = issue.number;
    let visible = |text: String| -> String { text.chars().filter(|c| !c.is_control() || c.is_whitespace()).collect() };
    let title: String = visible(issue.title).split_whitespace().collect::<Vec<_>>().join(" ");
    let title: String = title.chars().take(MAX_TITLE).collect();
    let title = if title.is_empty() { format!("Issue {number}") } else { title };
    let mut description = issue.body.replace('\0', "");
    if description.len() > MAX_DESCRIPTION {
        let end = (0..=MAX_DESCRIPTION).rev().find(|at| description.is_char_boundary(*at)).unwrap_or(0);
        description.truncate(end);
        description.push_str("\n\n[…] the rest stands in the issue");
    }
    // The title of an issue often says half of what is wanted.
    if !description.trim().is_empty() {
        description = format!("{title}\n\n{description}");
    }
    TaskRequest {
        title,
        description,
        priority: issue.labels.iter().find_map(|label| priority(label)),
        key: Some(format!("forge:{repository}#{number}")),
        labels: vec![label.to_owned()],
        ..TaskRequest::default()
    }
}

/// `high`, `priority:high`, `priority/high`, `Priority: High`.
fn priority(label: &str) -> Option<Priority> {
    let label = label.to_lowercase();
    let word = label.strip_prefix("priority").unwrap_or(&label);
    Priority::parse(word.trim_start_matches([':', '/', '-', ' ']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_issue_is_a_task_of_its_own_key() {
        let issue = |body: &str| Issue {
            number: 7,
            title: " Panics\n on\u{0} 429 ".to_owned(),
            body: body.to_owned(),
            labels: vec!["bug".to_owned(), "Priority: High".to_owned()],
        };
        let task = request("h/a/b", "refile", issue("See\0 fetch()."));
        assert_eq!((task.title.as_str(), task.key.as_deref()), ("Panics on 429", Some("forge:h/a/b#7")));
        assert_eq!((task.description.as_str(), task.priority), ("Panics on 429\n\nSee fetch().", Some(Priority::High)));
        assert_eq!(task.labels, ["refile"]);
        assert!(submission::read(task, &refile_config::Config::default()).is_ok());
        assert_eq!(request("r", "l", issue(" ")).description, " ");
        let long = request("r", "l", issue(&"ä".repeat(MAX_DESCRIPTION)));
        assert!(submission::read(long, &refile_config::Config::default()).is_ok());
        assert_eq!(priority("priority"), None);
    }
}
