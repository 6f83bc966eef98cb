//! Escalations: list, decide.

use axum::Json;
use axum::extract::{Path, State};
use refile_core::event::PersonDecision;
use refile_core::{Event, TaskState};
use refile_store::Filter;
use serde::Deserialize;

use super::{ApiError, tasks};
use crate::{Coordinator, apply, view};

/// The most escalations that one call lists.
const MAX: usize = 1_000;

pub(super) async fn list(State(coordinator): State<Coordinator>) -> Result<Json<Vec<view::EscalationView>>, ApiError> {
    let filter = Filter { states: vec![TaskState::Escalated], ..Filter::default() };
    let page = coordinator.store.list(&filter, None, MAX).await?;
    let open = page.tasks.iter().flat_map(|t| t.open_escalations().map(move |e| view::escalation(t, e)));
    Ok(Json(open.collect()))
}

/// A person's decision.
#[derive(Debug, Deserialize)]
pub(super) struct DecisionBody {
    #[serde(flatten)]
    decision: PersonDecision,
    by: String,
    #[serde(default)]
    note: Option<String>,
}

pub(super) async fn decide(
    State(coordinator): State<Coordinator>,
    Path(id): Path<String>,
    Json(body): Json<DecisionBody>,
) -> Result<Json<view::TaskSummary>, ApiError> {
    let task = task_of(&id).ok_or_else(|| ApiError::bad_request(format!("`{id}` is not the id of an escalation")))?;
    let task = tasks::parse_id(task)?;
    let event = Event::Decided { escalation: id, decision: body.decision, by: body.by, note: body.note };
    let task = apply::apply(coordinator.store.as_ref(), &coordinator.config.policy(), &task, &event).await?;
    Ok(Json(view::summary(&task)))
}

/// The task that an escalation's id names.
fn task_of(id: &str) -> Option<&str> {
    id.rsplit_once('.').map(|(task, _)| task)
}
