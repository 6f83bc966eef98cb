//! `refile task log`: what happened to a task, in order.

use refile_coordinator::view::{self, AttemptView, EscalationView};
use refile_core::task::{AttemptOutcome, Call, Review};
use refile_core::{Queue, TaskId};
use refile_store::artifacts::Artifacts;
use refile_store::{JobView, Store};
use refile_worker::agent::TRANSCRIPT;
use serde_json::json;

use crate::Ended;
use crate::arguments::LogArguments;
use crate::context::{Context, find_task};
use crate::output::{self, BAD, BOLD, DIM, GOOD, WAITS, styled, untrusted};

/// The most that is shown of one artifact, in bytes: its end.
const MOST_SHOWN: u64 = 8 << 20;

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
        if let Some(artifacts) = &whole {
            print_unfinished(&task.id, attempt, &detail.jobs, artifacts).await?;
        }
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
        print_review(review, "review", whole).await?;
        for member in &review.members {
            print_review(member, "  member: review", whole).await?;
        }
    }
    if let Some(outcome) = attempt.outcome {
        // What was accepted may have been rejected before, by a successor or a person; that is no word on how it ended.
        let demand = attempt.required_change.as_ref().filter(|_| outcome != AttemptOutcome::Accepted);
        let demand = demand.map(|r| format!(": {}", untrusted(r))).unwrap_or_default();
        output::line(format!("  {outcome}{demand}"));
    }
    Ok(())
}

/// What agents said whose runs were reported by nobody: the one that goes on, and those that were killed.
async fn print_unfinished(
    task: &TaskId,
    attempt: &AttemptView,
    jobs: &[JobView],
    artifacts: &Artifacts,
) -> anyhow::Result<()> {
    if attempt.outcome.is_some() {
        return Ok(());
    }
    let is_of_this =
        |job: &&JobView| (&job.phase, job.attempt, job.queue) == (&attempt.phase, attempt.number, Queue::Code);
    let running = jobs.iter().filter(is_of_this).find(|job| job.owner.is_some()).map(|job| job.fence);
    for (fence, name) in artifacts.of_attempt(task, &attempt.phase, attempt.number, TRANSCRIPT).await? {
        if attempt.transcript.as_ref() != Some(&name) {
            let what = if running == Some(fence) { "transcript so far" } else { "transcript of a run that was ended" };
            print_artifact(Some(artifacts), what, Some(&name)).await?;
        }
    }
    Ok(())
}

async fn print_review(review: &Review, what: &str, whole: Option<&Artifacts>) -> anyhow::Result<()> {
    let verdict = &review.verdict;
    if let Some(failure) = &review.failure {
        let why = untrusted(&failure.to_string());
        output::line(format!("  {what} by {}: {why} (not charged)", review.reviewer));
    } else {
        output::line(format!("  {what} by {}: {} (confidence {:.2})", review.reviewer, verdict.verdict, verdict.conf));
        for line in untrusted(&verdict.critique).lines() {
            output::line(format!("    {line}"));
        }
    }
    review.calls.iter().for_each(print_call);
    if let Some(digest) = &review.prompt_digest {
        let name = review.prompt.as_deref().unwrap_or("not kept");
        output::line(styled(DIM, format!("    prompt: {name}, SHA-256 {digest}")));
    }
    print_artifact(whole, "prompt", review.prompt.as_deref()).await?;
    print_artifact(whole, "reply", review.reply.as_deref()).await?;
    print_artifact(whole, "output", review.output.as_deref()).await
}

fn print_call(call: &Call) {
    let cached =
        if call.cached_input_tokens > 0 { format!(" ({} cached)", call.cached_input_tokens) } else { String::new() };
    let cost = call.cost_micros.map_or("cost unknown".to_owned(), output::usd);
    let failed = call.failure.map(|kind| format!(", {}", styled(BAD, kind.as_str()))).unwrap_or_default();
    output::line(format!(
        "    call of {} ({}): {} tokens in{cached}, {} out, {cost}, {:.1} s{failed}",
        untrusted(&call.model),
        call.provider,
        call.input_tokens,
        call.output_tokens,
        call.latency_ms as f64 / 1_000.0
    ));
}

async fn print_artifact(whole: Option<&Artifacts>, what: &str, name: Option<&str>) -> anyhow::Result<()> {
    let (Some(artifacts), Some(name)) = (whole, name) else { return Ok(()) };
    match artifacts.get_end(name, MOST_SHOWN).await? {
        None => output::line(format!("    {what} {name} is no longer there")),
        Some((before, content)) => {
            output::line(styled(DIM, format!("    --- {what}: {name}")));
            if before > 0 {
                output::line(styled(DIM, format!("    [... {before} bytes before this are in the artifact ...]")));
            }
            for line in untrusted(&String::from_utf8_lossy(&content)).lines() {
                output::line(format!("    {line}"));
            }
        }
    }
    Ok(())
}
