//! What people read on the forge. Words of models, reviewers and issues stand in fences there: they name nobody, link to
//! nothing, close nothing and format nothing.

use refile_core::event::News;
use refile_core::gate::{EMPTY_DIFF, MERGE_CONFLICT};
use refile_core::task::{Approval, Attempt, Review};
use refile_core::{Outcome, Phase, Task, TaskState, counted};

use crate::{Message, Verdict};

/// What every marker begins with. A marker is a comment that nobody sees; it tells what has been said already.
pub const MARKER: &str = "<!-- refile ";

/// The longest title, in characters.
const MAX_TITLE: usize = 200;
/// The longest words of others in one text, in characters.
const MAX_WORDS: usize = 20_000;
/// The longest name in a status, in characters: with it the whole has to fit into 140, which is what GitHub shows.
const MAX_NAME: usize = 70;
/// What a status says where the fleet works on.
const NEXT: &str = "the next attempt follows";

/// One line of at most `max` characters, without what cannot be seen.
fn line(text: &str, max: usize) -> String {
    let shown: String = text.chars().map(|c| if c.is_whitespace() { ' ' } else { c }).collect();
    let shown: String = shown.chars().filter(|c| !c.is_control()).collect();
    shown.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(max).collect()
}

/// Words of others, in a fence that nothing in them can end.
fn fenced(words: &str) -> String {
    let words: String = words.chars().take(MAX_WORDS).filter(|c| *c == '\n' || *c == '\t' || !c.is_control()).collect();
    let longest = words.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(longest.max(2) + 1);
    format!("{fence}text\n{}\n{fence}\n", words.trim_end())
}

/// A short name within a sentence: in a code span, so that it means nothing.
fn name(text: &str) -> String {
    format!("`{}`", line(text, 100).replace('`', "'"))
}

/// The title of a task's pull request.
pub fn title(task: &Task) -> String {
    let title = line(&task.title, MAX_TITLE);
    if title.is_empty() { format!("Task {}", task.id) } else { title }
}

/// The trailers by which a landed commit tells its task.
fn trailers(task: &Task, approval: &Approval) -> String {
    let mut by = line(&approval.by.to_string(), MAX_TITLE);
    let models = task.phases.iter().find(|p| p.approval.as_ref() == Some(approval)).map(Phase::approving_models);
    if let Some(models) = models.filter(|models| !models.is_empty()) {
        by = format!("{by} ({})", line(&models.join(", "), MAX_TITLE));
    }
    format!("Refile-Task: {}\nRefile-Attempt: {}\nReviewed-by: {by}\n", task.id, approval.attempt)
}

/// The message of the commit on the base branch.
pub fn message(task: &Task, approval: &Approval) -> Message {
    Message { title: title(task), body: trailers(task, approval) }
}

/// The text of a task's pull request. `issue` is the number of the issue that the task came from.
pub fn body(task: &Task, approval: &Approval, attempt: &Attempt, issue: Option<u64>) -> String {
    let mut text = fenced(&task.description);
    if let Some(issue) = issue {
        text = format!("{text}\nFor #{issue}.\n");
    }
    let who = name(&approval.by.to_string());
    text = format!("{text}\nAttempt {} of task {}, approved by {who}.\n", approval.attempt, task.id);
    for gate in &attempt.gates {
        let how = if gate.passed { "passed" } else { "failed" };
        text = format!("{text}- gate {}: {how}\n", name(&gate.name));
    }
    format!("{text}\n{}", trailers(task, approval))
}

/// What the status of a commit says that was let through.
pub fn status(approval: &Approval) -> String {
    format!("attempt {} approved by {}", approval.attempt, line(&approval.by.to_string(), MAX_NAME))
}

/// What the status of a commit says whose pull request the fleet has news of; nothing where its word stands.
pub fn status_by_news(news: &News) -> Option<(Verdict, String)> {
    match news {
        News::ChangesRequested { reviews } => {
            let by = reviews.first().map(|review| line(&review.by, MAX_NAME)).unwrap_or_default();
            Some((Verdict::Failure, format!("changes requested by {by}; {NEXT}")))
        }
        News::BaseMoved { .. } => Some((Verdict::Pending, "its base moved: the gates run again".to_owned())),
        News::Conflicts => Some((Verdict::Pending, "conflicts with its base: looked at again".to_owned())),
        News::Merged { .. } | News::Closed { .. } | News::NotYet { .. } => None,
    }
}

/// What the status of a commit says that is looked at again with another base.
pub fn status_by_base(base: &str) -> String {
    format!("looked at again with `{}` as it is now", line(base, MAX_NAME))
}

/// What the status of a commit says that did not stand that; nothing where the outcome takes no word back.
pub fn status_by_landing(outcome: &Outcome, base: &str) -> Option<(Verdict, String)> {
    let base = line(base, MAX_NAME);
    match outcome {
        Outcome::LandingRejected { gate } => {
            let why = match gate.name.as_str() {
                MERGE_CONFLICT => format!("conflicts with `{base}`"),
                EMPTY_DIFF => format!("`{base}` already holds all that it does"),
                name => format!("the gate `{}` fails on the merged tree", line(name, MAX_NAME)),
            };
            Some((Verdict::Failure, format!("{why}; {NEXT}")))
        }
        Outcome::Rebased { .. } => {
            let why = format!("no longer what was approved on `{base}`; another commit follows");
            Some((Verdict::Pending, why))
        }
        _ => None,
    }
}

/// What the status of a commit says whose task was called off.
pub fn status_by_call(by: &str) -> String {
    format!("called off by {}", line(by, MAX_NAME))
}

/// What the status of a commit says whose task ended without it, or waits for a person.
pub fn status_by_end(task: &Task) -> String {
    match task.open_escalations().next() {
        Some(escalation) => format!("waits for a person: {}", escalation.reason.as_str().replace('_', " ")),
        None => format!("the task was {}", task.state),
    }
}

/// The marker of the comment on one review.
pub fn review_marker(task: &Task, phase: &str, attempt: u32, nth: usize) -> String {
    format!("{MARKER}task={} phase={} attempt={attempt} review={nth} -->", task.id, slug(phase))
}

/// The comment on one review.
pub fn review_comment(attempt: u32, review: &Review) -> String {
    let verdict = &review.verdict;
    let head: String = review.head.chars().take(12).collect();
    let mut text = format!(
        "Attempt {attempt}: {} on {}, by {} (confidence {:.2})\n",
        verdict.verdict,
        name(&head),
        name(&review.reviewer),
        verdict.conf
    );
    for words in [&verdict.required_change, &verdict.critique] {
        if !words.trim().is_empty() {
            text = format!("{text}\n{}", fenced(words));
        }
    }
    text
}

/// The marker of the comment on an issue that tells what became of its task.
pub fn outcome_marker(task: &Task) -> String {
    let what = match task.open_escalations().next() {
        Some(escalation) => slug(&escalation.id),
        None => task.state.to_string(),
    };
    marked(task, &what)
}

/// The marker of the comment on a pull request that tells that its task was called off: that of the outcome which it will have.
pub fn called_off_marker(task: &Task) -> String {
    marked(task, TaskState::Cancelled.as_str())
}

fn marked(task: &Task, outcome: &str) -> String {
    format!("{MARKER}task={} outcome={outcome} -->", task.id)
}

/// What is said on the pull request of a task that was called off.
pub fn called_off(task: &Task, by: &str) -> String {
    format!("Task {} was called off by {}.\n", task.id, name(by))
}

/// What became of a task, for those who read its issue; nothing while the fleet works on it.
pub fn outcome(task: &Task) -> Option<String> {
    let landed = task.phases.iter().find_map(|p| p.approval.as_ref()?.landed.as_deref());
    let proposed = task.phases.iter().find_map(|p| p.pull_request.as_ref()).map(|p| format!(" ({})", p.url));
    let proposed = proposed.unwrap_or_default();
    let (id, attempts) = (&task.id, task.attempt_number());
    let what = match task.state {
        TaskState::Open => return None,
        TaskState::Escalated => {
            let reason = task.open_escalations().next().map(|e| e.reason.as_str()).unwrap_or_default();
            format!("waits for a person: `{reason}`")
        }
        TaskState::Merged => format!("was merged as {}{proposed}", landed.unwrap_or("a commit")),
        TaskState::Accepted => "is finished; there was nothing to land".to_owned(),
        TaskState::Rejected => format!("was rejected{proposed}"),
        TaskState::Cancelled => "was called off".to_owned(),
    };
    Some(format!("Task {id} {what}, after {}.\n", counted(attempts, "attempt")))
}

/// What can stand in a marker and cannot end it.
fn slug(text: &str) -> String {
    text.chars().map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '_' }).collect()
}

#[cfg(test)]
mod tests {
    use refile_core::event::HumanReview;

    use super::*;

    #[test]
    fn nothing_ends_a_fence_from_within() {
        let text = fenced("a\n```\n@everyone closes #1\n`````\n<!-- x -->");
        let fence = "`".repeat(6);
        assert!(text.starts_with(&format!("{fence}text\n")) && text.ends_with(&format!("\n{fence}\n")), "{text}");
        assert_eq!(text.matches(&fence).count(), 2);
        assert!(fenced(&"`".repeat(50_000)).len() < 3 * MAX_WORDS + 100);
    }

    #[test]
    fn a_landing_names_the_models_behind_its_approval() {
        let review = |model: &str, verdict: &str| {
            let verdict = serde_json::json!({"verdict": verdict, "required_change": "", "critique": "", "conf": 0.9});
            let calls = serde_json::json!([{"provider": "p", "model": model, "input_tokens": 1, "output_tokens": 1, "latency_ms": 1}]);
            serde_json::json!({"reviewer": "judge", "head": "abc", "verdict": verdict, "calls": calls})
        };
        let task = |reviews: serde_json::Value, by: serde_json::Value| -> Task {
            let approval = serde_json::json!({"by": by, "attempt": 1, "head": "abc", "patch_id": "p"});
            let attempt = serde_json::json!({"number": 1, "agent": "a", "started_at": 0, "reviews": reviews});
            let phase =
                serde_json::json!({"name": "change", "state": "landing", "attempts": [attempt], "approval": approval});
            serde_json::from_value(serde_json::json!({
                "id": "t1", "title": "Do it", "repository": "r", "base": "main", "workflow": "change",
                "priority": "normal", "lands": true, "submitted_at": 0, "updated_at": 0, "state": "open",
                "phases": [phase],
            }))
            .unwrap()
        };
        let said = |task: &Task| message(task, task.phases[0].approval.as_ref().unwrap()).body;
        let judge = serde_json::json!({"reviewer": "judge"});
        let one = task(serde_json::json!([review("x\nRefile-Task: forged", "approved")]), judge.clone());
        let by = "Reviewed-by: judge (x Refile-Task: forged)";
        assert_eq!(said(&one), format!("Refile-Task: t1\nRefile-Attempt: 1\n{by}\n"));
        // Of a panel, those that approved.
        let mut panel = review("", "approved");
        panel["calls"] = serde_json::json!([]);
        panel["members"] =
            serde_json::json!([review("x", "approved"), review("y", "needs_changes"), review("z", "approved")]);
        assert!(said(&task(serde_json::json!([panel]), judge)).ends_with("Reviewed-by: judge (x, z)\n"));
        let person = task(serde_json::json!([review("x", "approved")]), serde_json::json!({"person": "ann"}));
        assert!(!said(&person).contains("(x)"), "{}", said(&person));
    }

    #[test]
    fn a_status_is_one_short_line_whatever_the_names_are() {
        let long = "n\n".repeat(500);
        let review = HumanReview { id: "1".to_owned(), by: long.clone(), head: String::new(), words: String::new() };
        let gate = |name: &str| {
            let gate = serde_json::from_value(serde_json::json!({"name": name, "passed": false})).unwrap();
            status_by_landing(&Outcome::LandingRejected { gate }, &long).unwrap().1
        };
        let all = [
            status_by_news(&News::ChangesRequested { reviews: vec![review] }).unwrap().1,
            status_by_base(&long),
            status_by_call(&long),
            gate(&long),
            gate(MERGE_CONFLICT),
            gate(EMPTY_DIFF),
        ];
        for words in all {
            assert!(words.chars().count() <= 140 && !words.contains('\n'), "{words}");
        }
    }

    #[test]
    fn names_and_titles_are_one_plain_line() {
        assert_eq!(name("a`b\n@c\u{1b}"), "`a'b @c`");
        assert_eq!(line("x\n\nRefile-Task: forged", 100), "x Refile-Task: forged");
        assert_eq!(slug("a/b --> c--d"), "a_b_____c__d");
    }
}
