//! What the demo prints.

use std::io::IsTerminal;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use indicatif::ProgressBar;
use refile_config::Config;
use refile_core::prompt::prompts;
use refile_core::task::Attempt;
use refile_core::{Phase, Task, TaskState};
use refile_store::Store;
use tokio_util::sync::CancellationToken;

use super::sample;
use crate::commands::escalation::decisions;
use crate::commands::task::unfinished;
use crate::context::command_with;
use crate::fleet::tasks as count;
use crate::output::{self, BOLD, DIM, state_style, styled};

/// On a terminal: a line that tells how far the demo is.
pub(super) async fn progress(store: Arc<dyn Store>, shutdown: CancellationToken) {
    if !std::io::stderr().is_terminal() {
        return;
    }
    let bar = ProgressBar::new_spinner();
    while !shutdown.is_cancelled() {
        if let Ok(stats) = store.stats().await {
            let (open, merged) = (count(&stats, TaskState::Open), count(&stats, TaskState::Merged));
            bar.set_message(format!("{open} open, {merged} merged"));
        }
        bar.tick();
        tokio::select! { () = shutdown.cancelled() => {}, () = tokio::time::sleep(Duration::from_millis(100)) => {} }
    }
    bar.finish_and_clear();
}

/// Prints what happened.
pub(super) fn print(dir: &Path, tasks: &[Task], config: &Config, tests: &str) -> anyhow::Result<()> {
    let mut table = output::table(&["task", "outcome", "attempts", "what happened"]);
    for task in tasks {
        table.add_row([
            task.title.clone(),
            styled(state_style(task.state), task.state),
            task.attempt_number().to_string(),
            story(task).join("\n"),
        ]);
    }
    output::print_table(&table, "");
    print_attempts(tasks);
    print_refile_text(tasks, config);
    let log = sample::log(dir)?;
    output::line(format!("\n{}", styled(BOLD, "On the base branch now")));
    for line in log.lines() {
        output::line(format!("  {line}"));
    }
    output::line(format!("  the sample's own tests, on a fresh clone of it: {tests}"));
    print_escalations(dir, tasks, config);
    output::line(styled(
        DIM,
        format!("\nEverything is kept in {}; remove the folder when you have seen enough.", dir.display()),
    ));
    Ok(())
}

/// What happened to a task, a line for each thing.
fn story(task: &Task) -> Vec<String> {
    let mut lines = Vec::new();
    for (phase, attempt) in task.attempts() {
        for review in attempt.reviews.iter().filter_map(|r| r.failure.as_ref()) {
            lines.push(format!("{}: a review failed ({}), not charged", attempt.number, review.kind.as_str()));
        }
        lines.push(format!("{}: {}", attempt.number, ending(task, phase, attempt)));
    }
    lines.extend(task.open_escalations().map(|e| format!("waits for a person: {}", e.reason)));
    lines
}

fn ending(task: &Task, phase: &Phase, attempt: &Attempt) -> String {
    match (&attempt.rejection, attempt.outcome) {
        (Some(rejection), _) => format!("{} ({}): {}", rejection.cause, rejection.by, rejection.required_change),
        (None, Some(outcome)) => outcome.to_string(),
        (None, None) => unfinished(task, &phase.name).to_owned(),
    }
}

/// A picture of how many attempts tasks took.
fn print_attempts(tasks: &[Task]) {
    output::line(format!("\n{}", styled(BOLD, "Attempts that tasks took")));
    let most = tasks.iter().map(Task::attempt_number).max().unwrap_or(0);
    for attempts in 1..=most {
        let of_state = |is_merged: bool| {
            tasks
                .iter()
                .filter(|t| t.attempt_number() == attempts && (t.state == TaskState::Merged) == is_merged)
                .count()
        };
        let (merged, other) = (of_state(true), of_state(false));
        let bar = format!("{}{}", "█".repeat(merged * 4), "░".repeat(other * 4));
        output::line(format!("  {attempts}  {bar} {}", merged + other));
    }
    output::line(styled(DIM, "  █ merged  ░ not merged"));
}

/// The refile text of one retry, whole.
fn print_refile_text(tasks: &[Task], config: &Config) {
    let rejected_by_review = tasks.iter().filter(|t| t.state == TaskState::Merged).find_map(|task| {
        let phase = task.phases.first()?;
        let second = phase.attempts.get(1)?;
        let was_reviewed = phase.attempts.first()?.outcome == Some(refile_core::task::AttemptOutcome::NeedsChanges);
        was_reviewed.then(|| (task, prompts(task, phase, config.carry()).swap_remove(1), second.number))
    });
    if let Some((task, text, number)) = rejected_by_review {
        let heading = format!("What attempt {number} of \"{}\" started with", task.title);
        output::line(format!("\n{}", styled(BOLD, heading)));
        for line in text.trim_end().lines() {
            output::line(format!("  │ {line}").trim_end());
        }
    }
}

fn print_escalations(dir: &Path, tasks: &[Task], config: &Config) {
    let open: Vec<_> = tasks.iter().flat_map(|t| t.open_escalations().map(move |e| (t, e))).collect();
    if open.is_empty() {
        return;
    }
    output::line(format!("\n{}", styled(BOLD, "Waiting for a person")));
    let refile = command_with(&dir.join(refile_config::FILE_NAME));
    for (task, escalation) in open {
        let id = &escalation.id;
        output::line(format!("  {id}  {}: {}", escalation.reason, task.title));
        output::line(format!("  {refile} escalation show {id}"));
        decisions(&refile, task, escalation, &config.policy()).iter().for_each(output::line);
        output::line(format!("  {refile} up --drain     # then let the fleet go on"));
    }
}
