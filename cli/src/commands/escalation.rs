//! `refile escalation`: look at what waits for a person, and decide it.

use anyhow::bail;
use refile_coordinator::apply::apply;
use refile_coordinator::escalations::waiting;
use refile_coordinator::{now, view};
use refile_core::event::PersonDecision;
use refile_core::prompt::prompt;
use refile_core::task::Escalation;
use refile_core::{Event, Task};
use refile_store::Store;
use serde_json::json;

use crate::Ended;
use crate::arguments::{Audit, DecisionArguments, EscalationArgument, EscalationCommand, RefileArguments};
use crate::commands::task::say;
use crate::context::{Context, look_for_task, user};
use crate::output::{self, BOLD, DIM, styled, untrusted};

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
    let (id, refile) = (&escalation.id, context.command());
    output::line(format!(
        "\n{}\n  {refile} task log {task} --full\n  {refile} task diff {task}",
        styled(DIM, "--- its evidence"),
        task = task.id,
    ));
    match &escalation.decision {
        Some(decided) => output::line(format!(
            "\nIt was decided at {} UTC: {} by {}",
            output::time(decided.at),
            decided.decision.as_str(),
            untrusted(&decided.by)
        )),
        None => output::line(format!(
            "\n{}\n  {refile} escalation approve {id}\n  {refile} escalation refile {id} \"WHAT THE NEXT ATTEMPT MUST DO\"\n  {refile} escalation retry {id}\n  {refile} escalation reject {id}",
            styled(DIM, "--- to decide it"),
        )),
    }
    Ok(Ended::Done)
}

async fn decide(
    context: &Context,
    store: &dyn Store,
    DecisionArguments { which, audit: Audit { by, note } }: DecisionArguments,
    decision: PersonDecision,
) -> anyhow::Result<Ended> {
    let (task, escalation) = find(store, &which.escalation).await?;
    let by = by.unwrap_or_else(user);
    let event = Event::Decided { escalation: escalation.id, decision, by, note };
    let task = apply(store, &context.config.policy(), &task.id, &event).await?;
    say(context, &task)
}
