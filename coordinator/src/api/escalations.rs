//! Escalations: list, decide.

use axum::Json;
use axum::extract::{Path, State};
use refile_core::Event;
use refile_core::event::PersonDecision;
use serde::Deserialize;

use super::{ApiError, tasks};
use crate::{Coordinator, apply, escalations, view};

pub(super) async fn list(State(coordinator): State<Coordinator>) -> Result<Json<Vec<view::EscalationView>>, ApiError> {
    Ok(Json(escalations::waiting(coordinator.store.as_ref()).await?))
}

/// A person's decision. Flat and strict: a key that another action would need is as wrong as an unknown one.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DecisionBody {
    action: Action,
    #[serde(default)]
    required_change: Option<String>,
    #[serde(default)]
    attempts: Option<u32>,
    by: String,
    #[serde(default)]
    note: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Action {
    Approve,
    Refile,
    Retry,
    Reject,
}

impl DecisionBody {
    /// The decision, or what is wrong with it.
    fn decision(&self) -> Result<PersonDecision, ApiError> {
        if self.by.trim().is_empty() {
            return Err(ApiError::bad_request("`by` is empty; say who decides"));
        }
        if self.action != Action::Refile && (self.required_change.is_some() || self.attempts.is_some()) {
            return Err(ApiError::bad_request("`required_change` and `attempts` belong to the action `refile` alone"));
        }
        Ok(match self.action {
            Action::Approve => PersonDecision::Approve,
            Action::Retry => PersonDecision::Retry,
            Action::Reject => PersonDecision::Reject,
            Action::Refile => {
                let required_change = self.required_change.clone().unwrap_or_default();
                let attempts = self.attempts.unwrap_or(1);
                if required_change.trim().is_empty() || attempts == 0 {
                    return Err(ApiError::bad_request(
                        "a refile needs a `required_change` (one imperative sentence) and at least one of `attempts`",
                    ));
                }
                PersonDecision::Refile { required_change, attempts }
            }
        })
    }
}

pub(super) async fn decide(
    State(coordinator): State<Coordinator>,
    Path(id): Path<String>,
    Json(body): Json<DecisionBody>,
) -> Result<Json<view::DecisionView>, ApiError> {
    let decision = body.decision()?;
    let task = task_of(&id).ok_or_else(|| ApiError::bad_request(format!("`{id}` is not the id of an escalation")))?;
    let task = tasks::find(&coordinator, task).await?;
    if task.escalations.iter().all(|e| e.id != id) {
        return Err(ApiError::not_found(format!("there is no escalation {id}")));
    }
    let event = Event::Decided { escalation: id.clone(), decision, by: body.by, note: body.note };
    let task = apply::apply(coordinator.store.as_ref(), &coordinator.config.policy(), &task.id, &event).await?;
    Ok(Json(view::decision(&task, &id)))
}

/// The task that an escalation's id names.
fn task_of(id: &str) -> Option<&str> {
    id.rsplit_once('.').map(|(task, _)| task)
}
