//! What all changes have in common: the revision that a caller has seen, the write, and the revision that it made.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::http::HeaderMap;
use axum::response::{IntoResponse as _, Response};
use serde::Serialize;
use tokio::time::Instant;

use super::super::audit::Revisions;
use super::super::etag;
use super::super::problem::Problem;
use super::super::tasks::Tasks;
use super::PutError;
use super::model::Changed;
use crate::engine::task::registry::{Change, Registry, read_request};

/// How long Kafka may take to acknowledge a change.
const PUT_MAX: Duration = Duration::from_secs(15);

/// Within so long each instance has heard of a change; a little more than `docs/http-api.md` promises.
const HEARD_MAX: Duration = Duration::from_secs(3);
/// Between two looks at what it has heard.
const HEAR_EVERY: Duration = Duration::from_millis(50);

/// What is in force, as this instance has heard, for a change of a part of it. If the caller has seen a revision that this instance has
/// not heard of yet, it waits for that: else the change would bring back what another one has just taken away.
///
/// # Errors
/// The revision that the caller has seen (`asked`) is not in force.
pub(super) async fn in_force(
    tasks: &Tasks,
    asked: Option<u64>,
    revision: impl Fn(&Registry) -> u64,
) -> Result<Arc<Registry>, Problem> {
    let until = Instant::now() + HEARD_MAX;
    loop {
        let registry = tasks.projects.registry()?;
        let (current, is_over) = (revision(&registry), Instant::now() >= until);
        match asked {
            Some(asked) if asked > current && !is_over => tokio::time::sleep(HEAR_EVERY).await,
            Some(asked) if asked != current => return Err(PutError::Conflict { current }.into()),
            _ => return Ok(registry),
        }
    }
}

/// The revision that an `If-Match` asks for.
pub(super) fn if_match(headers: &HeaderMap) -> Result<Option<u64>, Problem> {
    etag::if_match(headers, "revision in quotes, as ETag has it: \"7\"")
}

/// An answer with its revision as `ETag`.
pub(super) fn with_etag(revision: u64, of: impl Serialize) -> Response {
    etag::with_etag(revision, Json(of).into_response())
}

/// The change that these settings ask for, to what has this key.
pub(super) fn asked_for(key: &str, json: &[u8]) -> Result<Change, Problem> {
    read_request(key, json).map_err(|wrongs| Problem::wrong_fields(&wrongs))
}

/// The answer to a change.
pub(super) fn changed(revisions: Revisions) -> Response {
    let mut answer = with_etag(revisions.after, Changed { revision: revisions.after });
    answer.extensions_mut().insert(revisions);
    answer
}

/// Writes a change, and says what it made.
pub(super) async fn write(
    tasks: &Tasks,
    change: Change,
    revision: Option<u64>,
) -> Result<Revisions, Problem> {
    // Without a revision to compare, what this instance has heard: at most two seconds old.
    let before = match revision {
        Some(revision) => revision,
        None => tasks.projects.registry()?.revision_before(&change),
    };
    let put = tokio::time::timeout(PUT_MAX, tasks.projects.put(change, revision)).await;
    let after = put.unwrap_or_else(|_| {
        let detail = format!(
            "Kafka has not acknowledged the change within {} s; it may be made yet",
            PUT_MAX.as_secs()
        );
        Err(PutError::Unavailable(detail))
    })?;
    Ok(Revisions { before, after })
}
