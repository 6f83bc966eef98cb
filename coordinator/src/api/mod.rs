//! The HTTP side: tasks and escalations as JSON, metrics, probes. On loopback only, and only for callers from there; and the
//! forges' webhooks, for whoever signs them.

mod tasks;
mod escalations;
mod webhooks;

use std::future::Future;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use refile_core::Refusal;
use refile_store::StoreError;
use tokio::net::TcpListener;

use crate::apply::ApplyError;
use crate::forge::look::Look;
use crate::{Coordinator, fleet};

/// The longest refusal of the framework that is passed on, in bytes.
const MAX_REFUSAL: usize = 64 << 10;

/// Serves the API until `shutdown`. `look` is told when the forge is to be looked at.
pub async fn serve(
    listener: TcpListener,
    coordinator: Coordinator,
    look: Arc<Look>,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    axum::serve(listener, router(coordinator, look)).with_graceful_shutdown(shutdown).await
}

/// The routes.
pub fn router(coordinator: Coordinator, look: Arc<Look>) -> Router {
    let health = coordinator.health.clone();
    let webhooks = webhooks::router(coordinator.clone(), look).layer(axum::middleware::from_fn(errors_as_json));
    Router::new()
        .route("/api/v1/tasks", get(tasks::list).post(tasks::submit))
        .route("/api/v1/tasks/{id}", get(tasks::show))
        .route("/api/v1/tasks/{id}/cancel", post(tasks::cancel))
        .route("/api/v1/escalations", get(escalations::list))
        .route("/api/v1/escalations/{id}/decision", post(escalations::decide))
        .route("/metrics", get(metrics))
        .with_state(coordinator)
        .layer(axum::middleware::from_fn(errors_as_json))
        .merge(refile_telemetry::http::probes(health))
        .fallback(nothing_there)
        .layer(axum::middleware::from_fn(from_loopback_names))
        .merge(webhooks)
}

/// Metrics and probes alone, for an address that others can reach.
pub fn metrics_router(coordinator: Coordinator) -> Router {
    let health = coordinator.health.clone();
    Router::new().route("/metrics", get(metrics)).with_state(coordinator).merge(refile_telemetry::http::probes(health))
}

async fn nothing_there(request: Request) -> ApiError {
    ApiError::not_found(format!("there is nothing at {}", request.uri().path()))
}

/// Gives the refusals that the framework makes itself (a body that is no JSON, an unknown query, a wrong method) the form
/// that every other error has.
async fn errors_as_json(request: Request, next: Next) -> Response {
    let what = format!("{} {}", request.method(), request.uri().path());
    let response = next.run(request).await;
    let status = response.status();
    let content = response.headers().get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    if !status.is_client_error() && !status.is_server_error() || content.starts_with("application/json") {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    let said = axum::body::to_bytes(body, MAX_REFUSAL).await.unwrap_or_default();
    let message = match String::from_utf8_lossy(&said).trim() {
        "" => format!("{what}: {}", status.canonical_reason().unwrap_or("refused")),
        said => said.to_owned(),
    };
    let answer = ApiError { status, message }.into_response();
    // A header such as `Allow` still holds; those of the old body do not.
    parts.headers.remove(header::CONTENT_LENGTH);
    parts.headers.extend(answer.headers().clone());
    Response::from_parts(parts, answer.into_body())
}

async fn metrics(State(coordinator): State<Coordinator>) -> Response {
    let (stats, pauses) = match tokio::try_join!(coordinator.store.stats(), coordinator.store.pauses()) {
        Ok(read) => read,
        Err(error) => return ApiError::from(error).into_response(),
    };
    let mut families = fleet::families(&stats, &pauses);
    families.extend(coordinator.metrics.registry.gather());
    refile_telemetry::http::exposition(&families)
}

/// Refuses requests that a web page of somebody else's makes a browser send here: their `Host` or `Origin` is not a
/// name of loopback.
async fn from_loopback_names(request: Request, next: Next) -> Response {
    let named = |headers: &HeaderMap, name| headers.get(name).map(|v| v.to_str().unwrap_or_default().to_owned());
    let headers = request.headers();
    let host = named(headers, header::HOST).unwrap_or_default();
    // A browser sends the origin `null` for pages that it does not trust: nothing with a name is let in without it.
    let origin = named(headers, header::ORIGIN);
    let is_ours = |origin: &str| origin.split_once("://").is_some_and(|(_, host)| is_loopback_name(host));
    if is_loopback_name(&host) && origin.is_none_or(|o| is_ours(&o)) {
        return next.run(request).await;
    }
    let message = "requests must name this server as localhost, 127.0.0.1 or [::1]".to_owned();
    ApiError { status: StatusCode::FORBIDDEN, message }.into_response()
}

fn is_loopback_name(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(v6) => v6.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    name == "localhost" || name.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// An error as JSON: `{"error": "..."}`.
pub(crate) struct ApiError {
    status: StatusCode,
    message: String,
}

impl ApiError {
    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self { status: StatusCode::BAD_REQUEST, message: message.into() }
    }

    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self { status: StatusCode::NOT_FOUND, message: message.into() }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        (self.status, Json(serde_json::json!({ "error": self.message }))).into_response()
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        let status =
            if error.is_transient() { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::INTERNAL_SERVER_ERROR };
        Self { status, message: error.to_string() }
    }
}

impl From<ApplyError> for ApiError {
    fn from(error: ApplyError) -> Self {
        let status = match &error {
            ApplyError::NoTask(_) => StatusCode::NOT_FOUND,
            ApplyError::Refused(Refusal::NotAllowed(_) | Refusal::Stale(_)) | ApplyError::Busy(_) => {
                StatusCode::CONFLICT
            }
            ApplyError::Store(_) => StatusCode::SERVICE_UNAVAILABLE,
        };
        Self { status, message: error.to_string() }
    }
}

#[cfg(test)]
mod tests {
    use super::is_loopback_name;

    #[test]
    fn only_names_of_loopback_are_let_in() {
        for good in ["localhost", "localhost:7420", "127.0.0.1:7420", "[::1]:7420", "127.8.9.1"] {
            assert!(is_loopback_name(good), "{good}");
        }
        for bad in ["", "evil.example", "localhost.evil.example:7420", "10.0.0.1", "127.0.0.1.evil.example", "[::2]"] {
            assert!(!is_loopback_name(bad), "{bad}");
        }
    }
}
