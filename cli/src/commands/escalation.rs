//! `refile escalation`: look at what waits for a person, and decide it.

use anyhow::bail;
use refile_coordinator::apply::apply;
use refile_coordinator::escalations::waiting;
use refile_coordinator::{now, view};
use refile_core::event::PersonDecision;
use refile_core::prompt::prompt;
use refile_core::task::{Attempt, Escalation};
use refile_core::{Event, Policy, Task, possible};
use refile_store::Store;
use serde_json::json;

use crate::Ended;
use crate::arguments::{Audit, DecisionArguments, EscalationArgument, EscalationCommand, RefileArguments};
use crate::commands::history::decided_words;
use crate::commands::task::{last_change, say};
use crate::context::{Context, look_for_task, user};
use crate::output::{self, BOLD, DIM, WAITS, styled, untrusted};

/// Runs a command about escalations.
pub(crate) async fn run(context: &Context, command: EscalationCommand) -> anyhow::Result<Ended> {
    let store = context.existing_store().await?;
    let store = store.as_ref();
    match command {
        EscalationCommand::List => list(context, store).await,
        EscalationCommand::Show(EscalationArgument { escalation }) => show(context, store, &escalation).await,
        EscalationCommand::Approve(a) => decide(context, store, a, PersonDecision::Approve).await,
        EscalationCommand::Retry(a) => decide(context, store, a, PersonDecision::Retry).await,
        EscalationCommand::Reject(a) => decide(context, store, a, PersonDecision::Reject).await,
        EscalationCommand::Refile(RefileArguments { which, required_change, attempts, audit }) => {
            let decision = PersonDecision::Refile { required_change, attempts };
            decide(context, store, DecisionArguments { which, audit }, decision).await
        }
    }
}

async fn list(context: &Context, store: &dyn Store) -> anyhow::Result<Ended> {
    let open = waiting(store).await?;
    if context.json {
        output::json(&open)?;
        return Ok(Ended::Done);
    }
    let mut table = output::table(&["id", "reason", "waits", "title"]);
    for escalation in &open {
        table.add_row([
            escalation.id.clone(),
            escalation.reason.to_string(),
            output::age(escalation.at, now()),
            untrusted(&escalation.title),
        ]);
    }
    output::print_table(&table, "nothing waits for a person");
    Ok(Ended::Done)
}

/// Finds an escalation by its id, or by its task's where only one is open.
async fn find(store: &dyn Store, given: &str) -> anyhow::Result<(Task, Escalation)> {
    let none = || format!("no escalation {given} waits; `refile escalation list` shows what does");
    if let Some((task, _)) = given.rsplit_once('.') {
        let Some(task) = look_for_task(store, task).await? else { bail!(none()) };
        let number = given.rsplit('.').next().unwrap_or_default();
        let found = task.escalations.iter().find(|e| e.id == format!("{}.{number}", task.id)).cloned();
        return match found {
            Some(escalation) => Ok((task, escalation)),
            None => bail!(none()),
        };
    }
    let Some(task) = look_for_task(store, given).await? else { bail!(none()) };
    let open: Vec<Escalation> = task.open_escalations().cloned().collect();
    match open.as_slice() {
        [one] => Ok((task, one.clone())),
        [] => bail!("task {} is {}: nothing of it waits for a person", task.id, task.state),
        _ => bail!("task {} has several open escalations; name one: {}", task.id, ids(&open)),
    }
}

fn ids(escalations: &[Escalation]) -> String {
    escalations.iter().map(|e| e.id.as_str()).collect::<Vec<_>>().join(", ")
}

async fn show(context: &Context, store: &dyn Store, given: &str) -> anyhow::Result<Ended> {
    let (task, escalation) = find(store, given).await?;
    if context.json {
        let jobs = store.jobs(&task.id).await?;
        let detail = view::detail(&task, jobs, context.config.carry());
        output::json(&json!({ "escalation": view::escalation(&task, &escalation), "task": detail }))?;
        return Ok(Ended::Done);
    }
    output::line(format!("{}  {}", styled(BOLD, &escalation.id), untrusted(&task.title)));
    output::line(format!("{} since {} UTC", escalation.reason, output::time(escalation.at)));
    output::line(format!("\n{}", untrusted(&escalation.detail)));
    if let Some(phase) = task.phase(&escalation.phase) {
        let heading = format!("--- what attempt {} started with", phase.attempt_number());
        output::line(format!(
            "\n{}\n{}",
            styled(DIM, heading),
            untrusted(&prompt(&task, phase, context.config.carry()))
        ));
    }
    let refile = context.command();
    output::line(format!("\n{}\n  {refile} task log {} --full", styled(DIM, "--- its evidence"), task.id));
    if last_change(&task, None).is_some_and(|change| change.diff.is_some() && !change.patch_id.is_empty()) {
        output::line(format!("  {refile} task diff {}", task.id));
    }
    if let Some(decided) = &escalation.decision {
        output::line(format!("\nIt was decided at {} UTC: {}", output::time(decided.at), decided_words(decided, "  ")));
        return Ok(Ended::Done);
    }
    let lines = decisions(&refile, &task, &escalation, &context.config.policy());
    if lines.is_empty() {
        output::line(format!("\nThere is nothing left to decide: the task is {}", task.state));
        return Ok(Ended::Done);
    }
    output::line(format!("\n{}", styled(DIM, "--- to decide it")));
    let failed: Vec<&str> = attempt_of(&task, &escalation.phase).into_iter().flat_map(Attempt::failed_gates).collect();
    if !failed.is_empty() && lines[0].contains(" escalation approve ") {
        output::line(format!("  to approve lands it although this failed: {}", failed.join(", ")));
    }
    lines.iter().for_each(output::line);
    Ok(Ended::Done)
}

/// The commands that decide an escalation: those that can work.
pub(crate) fn decisions(refile: &str, task: &Task, escalation: &Escalation, policy: &Policy) -> Vec<String> {
    let line = |action: &str| {
        let words = if action == "refile" { " \"WHAT THE NEXT ATTEMPT MUST DO\"" } else { "" };
        format!("  {refile} escalation {action} {}{words}", escalation.id)
    };
    possible(task, &escalation.id, policy, now()).into_iter().map(line).collect()
}

/// The attempt that a phase is at.
fn attempt_of<'a>(task: &'a Task, phase: &str) -> Option<&'a Attempt> {
    task.phase(phase)?.attempt()
}

async fn decide(
    context: &Context,
    store: &dyn Store,
    DecisionArguments { which, audit: Audit { by, note } }: DecisionArguments,
    decision: PersonDecision,
) -> anyhow::Result<Ended> {
    let (task, escalation) = find(store, &which.escalation).await?;
    let by = by.unwrap_or_else(user);
    let event = Event::Decided { escalation: escalation.id.clone(), decision: decision.clone(), by, note };
    let task = apply(store, &context.config.policy(), &task.id, &event).await?;
    let decided = view::decision(&task, &escalation.id);
    if context.json {
        output::json(&decided)?;
        return Ok(Ended::Done);
    }
    let overrides =
        || task.phase(&escalation.phase).and_then(|phase| phase.approval.as_ref()).is_some_and(|a| a.overrides_gates);
    if !decided.overridden_gates.is_empty() {
        let gates = decided.overridden_gates.join(", ");
        output::line(format!("{} it was approved although this failed: {gates}", styled(WAITS, "over a failed gate:")));
    } else if decision == PersonDecision::Approve && overrides() {
        output::line(format!("{} no gate has run on what was approved", styled(WAITS, "without the gates:")));
    }
    say(context, &task)
}
