//! Webhooks of forges. Nothing in one is believed: signed with the secret, it makes the next look at the forge come at
//! once, and that is all; so one that is sent again does no harm.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use axum::{Json, Router};
use refile_config::ForgeKind;
use refile_forge::webhook::is_signed;

use super::ApiError;
use crate::Coordinator;
use crate::forge::look::Look;

/// The largest body, in bytes. A larger one is refused, and polling sees what it was about.
const MAX_BODY: usize = 1 << 20;

#[derive(Clone)]
struct Webhooks {
    coordinator: Coordinator,
    look: Arc<Look>,
}

/// The route of the webhooks. A proxy hands them in under a name of its own: they are known by their signature.
pub(super) fn router(coordinator: Coordinator, look: Arc<Look>) -> Router {
    Router::new()
        .route("/api/v1/webhooks/{kind}", post(receive))
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .with_state(Webhooks { coordinator, look })
}

async fn receive(
    State(webhooks): State<Webhooks>,
    Path(kind): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<(StatusCode, Json<serde_json::Value>), ApiError> {
    let config = &webhooks.coordinator.config;
    let Some(kind) = ForgeKind::parse(&kind) else {
        return Err(ApiError::not_found("there are webhooks for github, gitea and gitlab"));
    };
    let secret = std::env::var(&config.forge.webhook_secret_env).unwrap_or_default();
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    if !is_signed(kind, &secret, header, &body) {
        let message = format!("the webhook is not signed with the secret in ${}", config.forge.webhook_secret_env);
        return Err(ApiError { status: StatusCode::UNAUTHORIZED, message });
    }
    webhooks.look.at_all();
    Ok((StatusCode::ACCEPTED, Json(serde_json::json!({ "looks": true }))))
}
