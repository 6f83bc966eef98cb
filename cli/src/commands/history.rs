//! `refile task log`: what happened to a task, in order.

use refile_coordinator::view::{self, AttemptView, EscalationView};
use refile_core::task::Review;
use refile_store::Store;
use refile_store::artifacts::Artifacts;
use serde_json::json;

use crate::Ended;
use crate::arguments::LogArguments;
use crate::context::{Context, find_task};
use crate::output::{self, BAD, BOLD, DIM, GOOD, WAITS, styled, untrusted};

/// Prints a task's history.
pub(crate) async fn log(context: &Context, store: &dyn Store, arguments: &LogArguments) -> anyhow::Result<Ended> {
    let task = find_task(store, &arguments.task).await?;
    let jobs = store.jobs(&task.id).await?;
    let detail = view::detail(&task, jobs, context.config.carry());
    if context.json {
        output::json(
            &json!({ "id": detail.summary.id, "attempts": detail.attempts, "escalations": detail.escalations }),
        )?;
        return Ok(Ended::Done);
    }
    let whole = if arguments.full { Some(context.artifacts()?) } else { None };
    output::line(format!("{}  {}", styled(BOLD, &task.id), untrusted(&task.title)));
    output::line(format!("{} UTC  submitted", output::time(task.submitted_at)));
    let mut escalations: Vec<&EscalationView> = detail.escalations.iter().collect();
    for attempt in &detail.attempts {
        print_attempt(attempt, whole.as_ref()).await?;
        // An escalation comes after the attempt that it is about.
        let (of_this, later): (Vec<_>, Vec<_>) =
            escalations.into_iter().partition(|e| (&e.phase, e.attempt) == (&attempt.phase, attempt.number));
        of_this.into_iter().for_each(print_escalation);
        escalations = later;
    }
    escalations.into_iter().for_each(print_escalation);
    if let Some(at) = task.finished_at {
        output::line(format!("\n{} UTC  {}", output::time(at), styled(output::state_style(task.state), task.state)));
    }
    Ok(Ended::Done)
}

fn print_escalation(escalation: &EscalationView) {
    output::line(format!(
        "\n{} UTC  {} {}: {}",
        output::time(escalation.at),
        styled(WAITS, "escalated"),
        escalation.reason,
        untrusted(&escalation.detail)
    ));
    if let Some(decided) = &escalation.decision {
        let note = decided.note.as_ref().map(|n| format!(": {}", untrusted(n))).unwrap_or_default();
        let (at, what, by) = (output::time(decided.at), decided.decision.as_str(), untrusted(&decided.by));
        output::line(format!("{at} UTC  decided: {what} by {by}{note}"));
    }
}

async fn print_attempt(attempt: &AttemptView, whole: Option<&Artifacts>) -> anyhow::Result<()> {
    output::line(format!(
        "\n{} UTC  {} of {}, agent {}",
        output::time(attempt.started_at),
        styled(BOLD, format!("attempt {}", attempt.number)),
        attempt.phase,
        attempt.agent
    ));
    for failure in &attempt.failures {
        output::line(format!("  {} {} (not charged)", styled(DIM, "failed:"), untrusted(failure)));
    }
    if let Some(change) = &attempt.change {
        let files = if change.files == 1 { "file" } else { "files" };
        output::line(format!("  {} {files} changed, on {}", change.files, change.branch));
    }
    print_artifact(whole, "transcript", attempt.transcript.as_deref()).await?;
    for gate in &attempt.gates {
        let said = if gate.passed { styled(GOOD, "passed") } else { styled(BAD, "failed") };
        output::line(format!("  gate {}: {said}", gate.name));
        print_artifact(whole, "output", gate.log.as_deref()).await?;
    }
    for review in &attempt.reviews {
        print_review(review, "review");
        print_artifact(whole, "reply", review.reply.as_deref()).await?;
        for member in &review.members {
            print_review(member, "  member: review");
            print_artifact(whole, "reply", member.reply.as_deref()).await?;
        }
    }
    if let Some(outcome) = attempt.outcome {
        let demand = attempt.required_change.as_ref().map(|r| format!(": {}", untrusted(r))).unwrap_or_default();
        output::line(format!("  {outcome}{demand}"));
    }
    Ok(())
}

fn print_review(review: &Review, what: &str) {
    if let Some(failure) = &review.failure {
        let why = untrusted(&failure.to_string());
        return output::line(format!("  {what} by {}: {why} (not charged)", review.reviewer));
    }
    let verdict = &review.verdict;
    output::line(format!("  {what} by {}: {} (confidence {:.2})", review.reviewer, verdict.verdict, verdict.conf));
    for line in untrusted(&verdict.critique).lines() {
        output::line(format!("    {line}"));
    }
}

async fn print_artifact(whole: Option<&Artifacts>, what: &str, name: Option<&str>) -> anyhow::Result<()> {
    let (Some(artifacts), Some(name)) = (whole, name) else { return Ok(()) };
    match artifacts.get(name).await? {
        None => output::line(format!("    {what} {name} is no longer there")),
        Some(content) => {
            output::line(styled(DIM, format!("    --- {what}: {name}")));
            for line in untrusted(&String::from_utf8_lossy(&content)).lines() {
                output::line(format!("    {line}"));
            }
        }
    }
    Ok(())
}
