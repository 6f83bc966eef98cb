//! `refile submit`: a task, or a file of them. Either every task of a file is submitted, or none.

use std::collections::BTreeSet;
use std::io::Read;
use std::path::Path;

use anyhow::Context as _;
use refile_coordinator::submission::{self, TaskRequest};
use refile_core::decide::submission::NewTask;
use serde_json::json;

use crate::Ended;
use crate::arguments::SubmitArguments;
use crate::context::{Context, UsageError};
use crate::output::{self, BOLD, styled};

/// A task of a file, or why there is none, and where that stands.
struct Entry {
    place: String,
    request: Result<TaskRequest, String>,
}

/// Submits.
pub(crate) async fn run(context: &Context, arguments: SubmitArguments) -> anyhow::Result<Ended> {
    let entries = match &arguments.file {
        Some(path) => from_file(path)?,
        None => vec![Entry { place: "the task".to_owned(), request: Ok(from_arguments(&arguments)?) }],
    };
    let (mut tasks, mut wrong) = (Vec::with_capacity(entries.len()), Vec::new());
    for Entry { place, request } in entries {
        let task = request.and_then(|mut request| {
            request.repository = request.repository.or_else(|| arguments.repository.clone());
            request.base = request.base.or_else(|| arguments.base.clone());
            request.priority = request.priority.or(arguments.priority);
            request.labels.extend(arguments.label.iter().cloned());
            submission::read(request, &context.config)
        });
        match task {
            Ok(task) => tasks.push(task),
            Err(why) => wrong.push(format!("{place}: {why}")),
        }
    }
    if !wrong.is_empty() {
        return Err(UsageError(format!("{}\nnothing was submitted", wrong.join("\n"))).into());
    }
    require_branches(context, &tasks).await?;
    let store = context.store().await?;
    let submitted = submission::submit(store.as_ref(), &context.config, tasks).await?;
    if context.json {
        let list: Vec<_> = submitted.iter().map(|s| json!({ "id": s.id, "added": s.added })).collect();
        output::json(&list)?;
        return Ok(Ended::Done);
    }
    for one in &submitted {
        let there = if one.added { "" } else { "  was there already" };
        output::line(format!("{}{there}", styled(BOLD, &one.id)));
    }
    Ok(Ended::Done)
}

fn from_arguments(arguments: &SubmitArguments) -> anyhow::Result<TaskRequest> {
    let description = match arguments.description.as_deref() {
        Some("-") => {
            let mut text = String::new();
            std::io::stdin()
                .lock()
                .read_to_string(&mut text)
                .context("cannot read the description from standard input")?;
            text
        }
        other => other.unwrap_or_default().to_owned(),
    };
    Ok(TaskRequest {
        title: arguments.title.clone().unwrap_or_default(),
        description,
        key: arguments.key.clone(),
        ..TaskRequest::default()
    })
}

/// Reads a task file: JSON lines or YAML, by its name, or by its first character where it has none.
fn from_file(path: &Path) -> anyhow::Result<Vec<Entry>> {
    let (name, text) = if path.as_os_str() == "-" {
        let mut text = String::new();
        std::io::stdin().lock().read_to_string(&mut text).context("cannot read tasks from standard input")?;
        ("standard input".to_owned(), text)
    } else {
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        (path.display().to_string(), text)
    };
    let is_json = match path.extension().and_then(|e| e.to_str()) {
        Some("jsonl" | "ndjson") => true,
        Some("yaml" | "yml") => false,
        _ => text.trim_start().starts_with('{'),
    };
    let entries = if is_json { from_json_lines(&name, &text) } else { from_yaml(&name, &text) };
    if entries.is_empty() {
        return Err(UsageError(format!("{name} holds no task")).into());
    }
    Ok(entries)
}

fn from_json_lines(name: &str, text: &str) -> Vec<Entry> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    lines
        .map(|(i, line)| Entry {
            place: format!("{name}, line {}", i + 1),
            request: serde_json::from_str(line).map_err(|error| {
                // The library counts lines of its own input, which is always the first here.
                let why = error.to_string();
                let why = why.split(" at line 1").next().unwrap_or_default();
                format!("column {}: {why}", error.column())
            }),
        })
        .collect()
}

/// A YAML file is read whole or not at all.
fn from_yaml(name: &str, text: &str) -> Vec<Entry> {
    let requests: Vec<serde_saphyr::Spanned<TaskRequest>> = match serde_saphyr::from_str(text) {
        Ok(requests) => requests,
        Err(error) => {
            let why = error.to_string().trim_start_matches("error: ").to_owned();
            return vec![Entry { place: name.to_owned(), request: Err(why) }];
        }
    };
    let entry = |spanned: serde_saphyr::Spanned<TaskRequest>| Entry {
        place: format!("{name}, line {}", spanned.referenced.line()),
        request: Ok(spanned.value),
    };
    requests.into_iter().map(entry).collect()
}

/// Holds that each repository is there and has the base branch, before anything is submitted.
async fn require_branches(context: &Context, tasks: &[NewTask]) -> anyhow::Result<()> {
    let wanted: BTreeSet<(&str, &str)> = tasks.iter().map(|t| (t.repository.as_str(), t.base.as_str())).collect();
    for (repository, base) in wanted {
        refile_worker::workspace::require_branch(&context.config, repository, base)
            .await
            .map_err(|error| UsageError(format!("{error}\nnothing was submitted")))?;
    }
    Ok(())
}
