//! `refile task`: look at tasks, call them off, do them again.

use anyhow::bail;
use refile_coordinator::apply::apply;
use refile_coordinator::{now, submission, view};
use refile_core::decide::submission::{NewTask, Workflow};
use refile_core::event::PersonDecision;
use refile_core::task::{AttemptOutcome, Change, Review, Usage};
use refile_core::{Event, Queue, Task, TaskState};
use refile_store::{Filter, Store};
use serde_json::json;

use crate::Ended;
use crate::arguments::{DiffArguments, ListArguments, TaskArgument, TaskCommand};
use crate::commands::history;
use crate::context::{Context, find_task, user};
use crate::output::{self, BOLD, DIM, state_style, styled, untrusted};

/// Tasks that are read from the store at a time.
const PAGE: usize = 500;

/// Runs a command about tasks.
pub(crate) async fn run(context: &Context, command: TaskCommand) -> anyhow::Result<Ended> {
    let store = context.existing_store().await?;
    match command {
        TaskCommand::List(arguments) => list(context, store.as_ref(), arguments).await,
        TaskCommand::Show(TaskArgument { task }) => show(context, store.as_ref(), &task).await,
        TaskCommand::Log(arguments) => history::log(context, store.as_ref(), &arguments).await,
        TaskCommand::Diff(arguments) => diff(context, store.as_ref(), &arguments).await,
        TaskCommand::Cancel(TaskArgument { task }) => cancel(context, store.as_ref(), &task).await,
        TaskCommand::Retry(TaskArgument { task }) => retry(context, store.as_ref(), &task).await,
    }
}

async fn list(context: &Context, store: &dyn Store, arguments: ListArguments) -> anyhow::Result<Ended> {
    let limit = arguments.limit.get();
    let filter = Filter {
        states: arguments.state,
        repository: arguments.repository.map(|r| context.config.repository_url(&r)),
        label: arguments.label,
        text: arguments.text,
    };
    let mut tasks: Vec<Task> = Vec::new();
    let mut cursor = None;
    let more = loop {
        let page = store.list(&filter, cursor, PAGE.min(limit - tasks.len())).await?;
        for id in &page.undecodable {
            output::note(format!("task {id} was written by another version and cannot be read"));
        }
        tasks.extend(page.tasks);
        cursor = page.next;
        if cursor.is_none() || tasks.len() >= limit {
            break cursor.is_some();
        }
    };
    if context.json {
        output::json(&tasks.iter().map(view::summary).collect::<Vec<_>>())?;
        return Ok(Ended::Done);
    }
    let mut table = output::table(&["id", "state", "phase", "attempt", "age", "title"]);
    for task in &tasks {
        table.add_row([
            task.id.to_string(),
            styled(state_style(task.state), task.state),
            task.phases.iter().map(|p| p.state.as_str()).collect::<Vec<_>>().join(" "),
            task.attempt_number().to_string(),
            output::age(task.submitted_at, now()),
            untrusted(&task.title),
        ]);
    }
    let is_filtered = filter != Filter::default();
    output::print_table(
        &table,
        if is_filtered { "no task is like that" } else { "no tasks; `refile submit TITLE` adds one" },
    );
    if more {
        output::note(styled(DIM, format!("more than {limit}; --limit shows more")));
    }
    Ok(Ended::Done)
}

async fn show(context: &Context, store: &dyn Store, given: &str) -> anyhow::Result<Ended> {
    let task = find_task(store, given).await?;
    let jobs = store.jobs(&task.id).await?;
    let detail = view::detail(&task, jobs, context.config.carry());
    if context.json {
        output::json(&detail)?;
        return Ok(Ended::Done);
    }
    output::line(format!("{}  {}", styled(BOLD, &task.id), untrusted(&task.title)));
    output::line(format!(
        "{}, submitted {} UTC",
        styled(state_style(task.state), task.state),
        output::time(task.submitted_at)
    ));
    output::line(format!("{} ({})", untrusted(&detail.summary.repository), untrusted(&task.base)));
    if let Some(pull_request) = &detail.pull_request {
        let waits = match &pull_request.not_yet {
            Some(why) => format!(", which the forge does not merge yet: {}", untrusted(why)),
            None if pull_request.needs_people() => ", people there decide".to_owned(),
            None => String::new(),
        };
        output::line(format!("pull request {}{waits}", untrusted(&pull_request.url)));
    }
    if let Some(commit) = &detail.landed {
        output::line(format!("landed as {commit}"));
    }
    if detail.spent != Usage::default() {
        output::line(format!("spent {}", spent(&task)));
    }
    for job in &detail.jobs {
        let place = serde_json::to_value(job.place)?;
        let owner = job.owner.as_ref().map(|o| format!(", with {o}")).unwrap_or_default();
        output::line(format!("{} job of {}: {}{owner}", job.queue, job.phase, place.as_str().unwrap_or_default()));
    }
    output::line("");
    let mut table = output::table(&["attempt", "agent", "outcome", "gates", "reviews", "required change"]);
    for attempt in &detail.attempts {
        let failed: Vec<&str> = attempt.gates.iter().filter(|g| !g.passed).map(|g| g.name.as_str()).collect();
        let gates = match (attempt.gates.len(), failed.as_slice()) {
            (0, _) => "-".to_owned(),
            (_, []) => "passed".to_owned(),
            (_, failed) => format!("{} failed", failed.join(", ")),
        };
        let reviews: Vec<String> = attempt.reviews.iter().map(said).collect();
        let is_accepted = attempt.outcome == Some(AttemptOutcome::Accepted);
        let demand = attempt.required_change.as_deref().filter(|_| !is_accepted);
        table.add_row([
            attempt.number.to_string(),
            attempt.agent.clone(),
            attempt.outcome.map_or_else(|| unfinished(&task, &attempt.phase), |o| o.as_str()).to_owned(),
            gates,
            if reviews.is_empty() { "-".to_owned() } else { reviews.join(", ") },
            untrusted(demand.unwrap_or("-")),
        ]);
    }
    output::print_table(&table, "no attempts yet");
    if let Some(lines) = &detail.growing {
        let lines = lines.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
        output::line(format!(
            "\n{} each attempt changed more lines than the one before: {lines}",
            styled(output::WAITS, "it grows:")
        ));
    }
    for open in task.open_escalations() {
        output::line(format!(
            "\n{} {}: {}\n{}",
            styled(output::WAITS, "waits for a person:"),
            open.reason,
            untrusted(&open.detail),
            styled(DIM, format!("{} escalation show {}", context.command(), open.id))
        ));
    }
    Ok(Ended::Done)
}

/// What is said of an attempt that has no outcome.
pub(crate) fn unfinished(task: &Task, phase: &str) -> &'static str {
    match task.open_escalation(phase) {
        Some(_) => "waits for a person",
        None if task.state.is_final() || task.phase(phase).is_some_and(|phase| phase.state.is_over()) => "ended",
        None => "going on",
    }
}

/// What a task used up, as far as anybody knows: most programs do not tell, and not every model has a known price.
fn spent(task: &Task) -> String {
    let Usage { input_tokens, output_tokens, cost_micros, wall_ms, cost_unknown } = task.spent;
    let work = format!("{:.1} s of work", wall_ms as f64 / 1_000.0);
    let reviews = task.attempts().flat_map(|(_, attempt)| &attempt.reviews);
    let mut calls = reviews.flat_map(|review| review.calls.iter().chain(review.members.iter().flat_map(|m| &m.calls)));
    let is_unknown = cost_unknown || calls.any(|call| call.usage().cost_unknown);
    let cost = match cost_micros {
        0 if is_unknown && (input_tokens, output_tokens) == (0, 0) => {
            return format!("{work}; tokens and cost are unknown");
        }
        0 if is_unknown => "cost unknown".to_owned(),
        known if is_unknown => format!("at least {}", output::usd(known)),
        known => output::usd(known),
    };
    format!("{input_tokens} tokens in, {output_tokens} out, {cost}, {work}")
}

/// What came of a review in a word; of a panel also what its members said.
fn said(review: &Review) -> String {
    let word = |r: &Review| r.failure.as_ref().map_or(r.verdict.verdict.as_str(), |f| f.kind.as_str()).to_owned();
    if review.members.is_empty() {
        return word(review);
    }
    let members: Vec<String> = review.members.iter().map(|m| format!("{}: {}", m.reviewer, word(m))).collect();
    format!("{} ({})", word(review), members.join(", "))
}

/// The change of the attempt of that number, or of the last that left one.
pub(crate) fn last_change(task: &Task, number: Option<u32>) -> Option<&Change> {
    let of_number = task.attempts().filter(|(_, a)| number.is_none_or(|n| a.number == n));
    of_number.filter_map(|(_, a)| a.change.as_ref()).last()
}

async fn diff(context: &Context, store: &dyn Store, arguments: &DiffArguments) -> anyhow::Result<Ended> {
    let task = find_task(store, &arguments.task).await?;
    let Some(name) = last_change(&task, arguments.attempt).and_then(|change| change.diff.as_ref()) else {
        bail!("task {} has no such attempt with a change; `refile task show {}` lists its attempts", task.id, task.id);
    };
    let Some(diff) = context.artifacts()?.get(name).await? else {
        bail!(
            "the diff {name} is not in the artifact store {}; is it the one that the workers use?",
            context.config.artifacts
        );
    };
    if context.json {
        output::json(&json!({ "task": task.id, "diff": String::from_utf8_lossy(&diff) }))?;
    } else {
        output::raw(&diff);
    }
    Ok(Ended::Done)
}

async fn cancel(context: &Context, store: &dyn Store, given: &str) -> anyhow::Result<Ended> {
    let task = find_task(store, given).await?;
    let event = Event::Cancelled { by: user() };
    let task = apply(store, &context.config.policy(), &task.id, &event).await?;
    if !context.json && task.state == TaskState::Open {
        let base = &task.base;
        output::line(format!(
            "task {} was landing: if it is on `{base}` already it will be merged, else cancelled; say it again to cancel \
             without a look",
            task.id
        ));
        return Ok(Ended::Done);
    }
    say(context, &task)
}

/// An escalated task gets its last job again; one that is over is submitted anew, since an outcome is final.
async fn retry(context: &Context, store: &dyn Store, given: &str) -> anyhow::Result<Ended> {
    let task = find_task(store, given).await?;
    if let Some(open) = task.open_escalations().last().filter(|_| task.state == TaskState::Escalated) {
        let event =
            Event::Decided { escalation: open.id.clone(), decision: PersonDecision::Retry, by: user(), note: None };
        let task = apply(store, &context.config.policy(), &task.id, &event).await?;
        return say(context, &task);
    }
    if !task.state.is_final() {
        bail!("task {} is going on; `refile task show {}` tells where it is", task.id, task.id);
    }
    let again = NewTask {
        title: task.title.clone(),
        description: task.description.clone(),
        repository: task.repository.clone(),
        base: task.base.clone(),
        priority: task.priority,
        key: None,
        labels: task.labels.clone(),
        workflow: Workflow::default(),
    };
    let added = submission::submit(store, &context.config, vec![again]).await?;
    let id = added.first().map(|a| a.id.to_string()).unwrap_or_default();
    if context.json {
        output::json(&json!({ "id": id, "retry_of": task.id }))?;
    } else {
        output::line(format!(
            "task {} is {} and stays so; submitted again as {}",
            task.id,
            task.state,
            styled(BOLD, id)
        ));
    }
    Ok(Ended::Done)
}

/// Prints where a task stands now.
pub(crate) fn say(context: &Context, task: &Task) -> anyhow::Result<Ended> {
    if context.json {
        output::json(&view::summary(task))?;
    } else {
        let next = task.phases.iter().find_map(|p| Some((p.job.as_ref()?.queue(), p.attempt_number())));
        let next = match next {
            Some((Queue::Code, attempt)) => format!("; attempt {attempt} is next"),
            Some((Queue::Review, attempt)) => format!("; a review of attempt {attempt} is next"),
            Some((Queue::Land, _)) => "; landing is next".to_owned(),
            None => String::new(),
        };
        output::line(format!("{} is {}{next}", task.id, styled(state_style(task.state), task.state)));
        if !next.is_empty() {
            let up = format!("a running fleet carries it out; `{} up --drain` starts one", context.command());
            output::note(styled(DIM, up));
        }
    }
    Ok(Ended::Done)
}
