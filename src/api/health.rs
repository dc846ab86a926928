//! `/health/live`, `/health/ready`, `/metrics`.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde::{Deserialize, Serialize};

/// An answer to a question for health.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Whether the answer is yes.
    pub ok: bool,
    /// Why: one sentence each, of what was looked at. Never empty when the answer is no.
    pub reasons: Vec<String>,
}

/// What the process knows of itself.
pub trait Status: Send + Sync + 'static {
    /// Whether it works at all; if not, a restart may help.
    fn live(&self) -> Report;
    /// Whether it does what it is there for: it owns lanes, or is a spare that the group knows.
    fn ready(&self) -> Report;
    /// Its figures in Prometheus's text format.
    fn metrics(&self) -> String;
}

/// Where it says whether it is ready.
pub(super) const READY: &str = "/health/ready";
/// The content type of Prometheus's text format.
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

pub(super) fn router(status: Arc<dyn Status>) -> Router {
    Router::new()
        .route("/health/live", get(live))
        .route(READY, get(ready))
        .route("/metrics", get(metrics))
        .fallback(|| async { (StatusCode::NOT_FOUND, "no such page\n") })
        .with_state(status)
}

async fn live(State(status): State<Arc<dyn Status>>) -> Response {
    answer(status.live())
}

async fn ready(State(status): State<Arc<dyn Status>>) -> Response {
    answer(status.ready())
}

async fn metrics(State(status): State<Arc<dyn Status>>) -> Response {
    ([(header::CONTENT_TYPE, PROMETHEUS)], status.metrics()).into_response()
}

fn answer(report: Report) -> Response {
    let code = if report.ok { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    // A health that is remembered on the way is no health.
    (code, [(header::CACHE_CONTROL, "no-store")], Json(report)).into_response()
}
