//! `/metrics`, `/healthz` and `/readyz`.

use std::future::Future;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use prometheus::proto::MetricFamily;
use prometheus::{Registry, TextEncoder};
use tokio::net::TcpListener;

use crate::Health;

/// The two probes.
pub fn probes(health: Health) -> Router {
    Router::new()
        .route(
            "/healthz",
            get(|State(health): State<Health>| async move { probe(health.is_alive(), "the loop is stuck") }),
        )
        .route(
            "/readyz",
            get(|State(health): State<Health>| async move { probe(health.is_ready(), "the store does not answer") }),
        )
        .with_state(health)
}

fn probe(well: bool, what: &'static str) -> (StatusCode, &'static str) {
    if well { (StatusCode::OK, "ok\n") } else { (StatusCode::SERVICE_UNAVAILABLE, what) }
}

/// Metrics in Prometheus's text format.
pub fn exposition(families: &[MetricFamily]) -> axum::response::Response {
    match TextEncoder::new().encode_to_string(families) {
        Ok(text) => ([(header::CONTENT_TYPE, prometheus::TEXT_FORMAT)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

/// Serves a worker's metrics and probes until `shutdown`.
pub async fn serve(
    listener: TcpListener,
    registry: Registry,
    health: Health,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let metrics = get(|State(registry): State<Registry>| async move { exposition(&registry.gather()) });
    let app = Router::new().route("/metrics", metrics).with_state(registry).merge(probes(health));
    axum::serve(listener, app).with_graceful_shutdown(shutdown).await
}
