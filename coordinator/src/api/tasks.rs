//! Tasks: list, submit, show, cancel.

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use refile_core::{Event, Task, TaskId, TaskState};
use refile_store::{Cursor, Filter};
use serde::{Deserialize, Serialize};

use super::ApiError;
use crate::submission::{self, TaskRequest};
use crate::{Coordinator, apply, view};

/// The most tasks on one page.
const MAX_PAGE: usize = 1_000;

/// The query of a listing.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListQuery {
    /// States, separated by commas.
    state: Option<String>,
    repository: Option<String>,
    label: Option<String>,
    text: Option<String>,
    cursor: Option<u64>,
    limit: Option<usize>,
}

/// One page of tasks.
#[derive(Debug, Serialize)]
pub(super) struct TaskPage {
    tasks: Vec<view::TaskSummary>,
    /// What to give as `cursor` for the next page.
    next: Option<u64>,
}

pub(super) async fn list(
    State(coordinator): State<Coordinator>,
    Query(query): Query<ListQuery>,
) -> Result<Json<TaskPage>, ApiError> {
    let states = query.state.iter().flat_map(|s| s.split(',')).map(|name| {
        TaskState::parse(name).ok_or_else(|| ApiError::bad_request(format!("`{name}` is not a state of a task")))
    });
    let filter = Filter {
        states: states.collect::<Result<_, _>>()?,
        repository: query.repository,
        label: query.label,
        text: query.text,
    };
    let limit = query.limit.unwrap_or(100).clamp(1, MAX_PAGE);
    let page = coordinator.store.list(&filter, query.cursor.map(Cursor), limit).await?;
    Ok(Json(TaskPage { tasks: page.tasks.iter().map(view::summary).collect(), next: page.next.map(|c| c.0) }))
}

/// What was submitted.
#[derive(Debug, Serialize)]
pub(super) struct Added {
    id: String,
    added: bool,
}

pub(super) async fn submit(
    State(coordinator): State<Coordinator>,
    Json(request): Json<TaskRequest>,
) -> Result<(StatusCode, Json<Added>), ApiError> {
    let new = submission::read(request, &coordinator.config).map_err(ApiError::bad_request)?;
    let submitted = submission::submit(coordinator.store.as_ref(), &coordinator.config, vec![new]).await?;
    let Some(one) = submitted.into_iter().next() else {
        return Err(ApiError::bad_request("the store did not answer for the task"));
    };
    let status = if one.added { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json(Added { id: one.id.to_string(), added: one.added })))
}

pub(super) async fn show(
    State(coordinator): State<Coordinator>,
    Path(id): Path<String>,
) -> Result<Json<view::TaskDetail>, ApiError> {
    let task = find(&coordinator, &id).await?;
    let jobs = coordinator.store.jobs(&task.id).await?;
    Ok(Json(view::detail(&task, jobs, coordinator.config.carry())))
}

/// Who calls a task off.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CancelBody {
    by: String,
}

pub(super) async fn cancel(
    State(coordinator): State<Coordinator>,
    Path(id): Path<String>,
    Json(body): Json<CancelBody>,
) -> Result<Json<view::TaskSummary>, ApiError> {
    let id = parse_id(&id)?;
    let event = Event::Cancelled { by: body.by };
    let task = apply::apply(coordinator.store.as_ref(), &coordinator.config.policy(), &id, &event).await?;
    Ok(Json(view::summary(&task)))
}

pub(super) fn parse_id(id: &str) -> Result<TaskId, ApiError> {
    TaskId::parse(id).map_err(|error| ApiError::bad_request(error.to_string()))
}

pub(super) async fn find(coordinator: &Coordinator, id: &str) -> Result<Task, ApiError> {
    let id = parse_id(id)?;
    let found = coordinator.store.tasks(std::slice::from_ref(&id)).await?.pop().flatten();
    found.map(|f| f.task).ok_or_else(|| ApiError::not_found(format!("there is no task {id}")))
}
