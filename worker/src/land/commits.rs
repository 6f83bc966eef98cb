//! The commits that an approved change becomes on the base branch, and what they say of it.

use refile_config::Strategy;
use refile_core::Phase;

use super::LandJob;
use crate::code::message;
use crate::git::{GitError, Mirror};

/// Lines of a message that tell of a landing; nobody else's commit may hold them.
const KEYS: [&str; 3] = ["refile-task:", "refile-attempt:", "reviewed-by:"];

/// Makes the commits on top of `tip`; the last one's tree is `tree`. Gives the last one.
pub(super) async fn commit(job: &LandJob<'_>, mirror: &Mirror, tip: &str, tree: &str) -> Result<String, GitError> {
    let title = one_line(&message(job.site.task));
    let trailers = trailers(job);
    match job.strategy {
        // A pull request is merged by the forge; what is made here is one commit.
        Strategy::Squash | Strategy::PullRequest => mirror.commit(tree, tip, &format!("{title}\n\n{trailers}")).await,
        Strategy::Rebase => replay(job, mirror, tip, tree, &trailers).await,
        Strategy::Merge => {
            let change = job.change;
            // Where the base was put back, the approved commit stands on what was taken from it: only the change may come.
            let side = if mirror.is_before(&change.base_commit, tip).await? {
                change.head.clone()
            } else {
                mirror.commit(tree, tip, &title).await?
            };
            mirror.commit_merge(tree, tip, &side, &format!("Merge {title}\n\n{trailers}")).await
        }
    }
}

/// Each commit of the attempt again, on top of `tip`. Where one of them conflicts on the way, though all together do not,
/// they become one.
async fn replay(job: &LandJob<'_>, mirror: &Mirror, tip: &str, tree: &str, trailers: &str) -> Result<String, GitError> {
    let commits = mirror.commits(&job.change.base_commit, &job.change.head).await?;
    let Some((last, before)) = commits.split_last() else {
        return mirror.commit(tree, tip, &format!("{}\n\n{trailers}", one_line(&message(job.site.task)))).await;
    };
    let mut at = tip.to_owned();
    for step in before {
        let brought = mirror.bring(&at, &step.parent, &step.commit).await?;
        if !brought.conflicts.is_empty() {
            at = tip.to_owned();
            break;
        }
        at = mirror.commit_by(&brought.tree, &at, &step.author, &plain(&step.message)).await?;
    }
    let words = plain(&last.message);
    mirror.commit_by(tree, &at, &last.author, &format!("{}\n\n{trailers}", words.trim_end())).await
}

/// A message without lines that could be taken for a landing's trailers.
fn plain(message: &str) -> String {
    let is_ours = |line: &str| {
        let line = line.trim_start().to_ascii_lowercase();
        KEYS.iter().any(|key| line.starts_with(key))
    };
    let line = |line: &str| if is_ours(line) { format!("> {line}") } else { line.to_owned() };
    message.replace('\0', " ").lines().map(line).map(|line| line + "\n").collect()
}

/// What says whose landing it is. One line each: a name with a line break could forge another.
fn trailers(job: &LandJob<'_>) -> String {
    let (id, approval) = (&job.site.task.id, job.approval);
    let models = job.site.task.phase(job.site.phase).map(Phase::approving_models).unwrap_or_default();
    let mut by = one_line(&approval.by.to_string());
    if !models.is_empty() {
        by = format!("{by} ({})", one_line(&models.join(", ")));
    }
    format!("Refile-Task: {id}\nRefile-Attempt: {}\nReviewed-by: {by}\n", approval.attempt)
}

/// White space of any kind becomes one space, and what cannot be seen goes.
fn one_line(text: &str) -> String {
    let shown: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    shown.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_elses_message_holds_a_landings_trailers() {
        let forged = "Do it\n\n Refile-Task: other\nREVIEWED-BY: me\nSigned-off-by: x\n";
        assert_eq!(plain(forged), "Do it\n\n>  Refile-Task: other\n> REVIEWED-BY: me\nSigned-off-by: x\n");
    }

    #[test]
    fn a_name_is_one_line_whatever_it_holds() {
        assert_eq!(one_line("a\r\nReviewed-by: b\u{2028}c\0d \u{85} e"), "a Reviewed-by: b c d e");
    }
}
