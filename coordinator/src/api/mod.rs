//! The HTTP side: tasks and escalations as JSON, metrics, probes. On loopback only, and only for callers from there.

mod tasks;
mod escalations;

use std::future::Future;

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
use crate::{Coordinator, fleet};

/// Serves the API until `shutdown`.
pub async fn serve(
    listener: TcpListener,
    coordinator: Coordinator,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    axum::serve(listener, router(coordinator)).with_graceful_shutdown(shutdown).await
}

/// The routes.
pub fn router(coordinator: Coordinator) -> Router {
    let health = coordinator.health.clone();
    Router::new()
        .route("/api/v1/tasks", get(tasks::list).post(tasks::submit))
        .route("/api/v1/tasks/{id}", get(tasks::show))
        .route("/api/v1/tasks/{id}/cancel", post(tasks::cancel))
        .route("/api/v1/escalations", get(escalations::list))
        .route("/api/v1/escalations/{id}/decision", post(escalations::decide))
        .route("/metrics", get(metrics))
        .with_state(coordinator)
        .merge(refile_telemetry::http::probes(health))
        .layer(axum::middleware::from_fn(from_loopback_names))
}

/// Metrics and probes alone, for an address that others can reach.
pub fn metrics_router(coordinator: Coordinator) -> Router {
    let health = coordinator.health.clone();
    Router::new().route("/metrics", get(metrics)).with_state(coordinator).merge(refile_telemetry::http::probes(health))
}

async fn metrics(State(coordinator): State<Coordinator>) -> Response {
    match coordinator.store.stats().await {
        Ok(stats) => {
            let mut families = fleet::families(&stats);
            families.extend(coordinator.metrics.registry.gather());
            refile_telemetry::http::exposition(&families)
        }
        Err(error) => ApiError::from(error).into_response(),
    }
}

/// Refuses requests that a web page of somebody else's makes a browser send here: their `Host` or `Origin` is not a
/// name of loopback.
async fn from_loopback_names(request: Request, next: Next) -> Response {
    let named = |headers: &HeaderMap, name| headers.get(name).map(|v| v.to_str().unwrap_or_default().to_owned());
    let headers = request.headers();
    let host = named(headers, header::HOST).unwrap_or_default();
    let origin = named(headers, header::ORIGIN).and_then(|o| o.split_once("://").map(|(_, host)| host.to_owned()));
    if is_loopback_name(&host) && origin.is_none_or(|o| is_loopback_name(&o)) {
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
