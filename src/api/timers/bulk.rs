//! `POST /v1/timers:bulkCancel`: all pending timers that fit a filter, in two steps.
//!
//! Without a token it counts, and gives a token. With the token it cancels, page by page. The token holds the filter and
//! the time of the count, sealed with the namespace's secret: it cannot be made by hand, nor used for another filter. Only
//! versions from before the count are cancelled: what was submitted or replaced since is not what was counted.
//!
//! # Invariants
//! 1. Nothing is cancelled without a token of a count within the last [`COUNT_MS_MAX`].
//! 2. A page that is asked for again cancels nothing that it did not mean the first time: each cancel names its version.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::response::IntoResponse as _;
use axum::{Extension, Json};
use serde_json::{Map, Value, json};

use super::super::guard::Came;
use super::super::problem::Problem;
use super::deadline::{self, Deadline};
use super::model::{CommandKind, CommandStatus, Filter, TimerCommand, TimerState};
use super::peer::{Owners, PeerReply, PeerRequest, fault};
use super::token::{self, BadToken, COUNT_MS_MAX, Counted};
use super::{Answered, batch, list, params, single, tracked};
use crate::client::command::{BulkCount, BulkPage, CommandResult};
use crate::engine::UnixMillis;

/// How many timers one request cancels, unless it says so itself.
const LIMIT: usize = 500;

fn counted(owners: &Owners, token: &str, now: u64) -> Result<Counted, Problem> {
    Counted::of_token(|what| owners.timers().seal(what), token, now).map_err(|bad| {
        let detail = match bad {
            BadToken::Expired => "it has expired; count again",
            _ => "it is not a token that a count of this namespace gave",
        };
        Problem::bad("bad_token", "body.token", detail)
    })
}

pub(super) async fn cancel(
    State(owners): State<Owners>,
    Extension(came): Extension<Came>,
    body: Result<Bytes, BytesRejection>,
) -> Answered {
    let filters = ["target", "label", "due_after", "due_before", "all"];
    let known = [&filters[..], &["token", "page", "limit"]].concat();
    let mut body = params::body(body, &known)?;
    let token: Option<String> = params::member(&mut body, "body", "token", "a string")?;
    match token {
        None => count(&owners, body, Deadline::new(came.at, deadline::COUNT)).await,
        Some(token) => {
            if let Some(name) = filters.iter().find(|name| body.contains_key(**name)) {
                let detail = "the token contains the filter; send only the token";
                return Err(Problem::bad("filter_and_token", format!("body.{name}"), detail));
            }
            let deadline = Deadline::new(came.at, deadline::ALL_LANES);
            carry_out(&owners, &token, body, deadline).await
        }
    }
}

async fn count(owners: &Owners, mut body: Map<String, Value>, deadline: Deadline) -> Answered {
    for name in ["page", "limit"] {
        if body.contains_key(name) {
            let detail = "only with the token of a count; leave it out to count";
            return Err(Problem::bad("no_token", format!("body.{name}"), detail));
        }
    }
    let all: Option<bool> = params::member(&mut body, "body", "all", "true or false")?;
    let mut time = |name: &str| -> Result<Option<UnixMillis>, Problem> {
        match body.remove(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => params::moment(&value, &format!("body.{name}")).map(Some),
        }
    };
    let (due_after, due_before) = (time("due_after")?, time("due_before")?);
    let filter = Filter {
        target: params::member(&mut body, "body", "target", "a string")?,
        label: params::member(&mut body, "body", "label", "a string")?,
        state: None,
        due_after,
        due_before,
    };
    if (filter == Filter::default()) != (all == Some(true)) {
        let detail = if all == Some(true) {
            "\"all\" means all timers; leave out the rest, or leave out \"all\""
        } else {
            "this filter means all timers; say \"all\": true to count them"
        };
        return Err(Problem::bad("means_all", "body", detail));
    }
    let filter = Filter { state: Some(TimerState::Delay), ..params::checked(filter, "body")? };
    tracked(owners.timers())?;
    let at = owners.timers().now().ok_or_else(single::no_time)?;
    let mut count = 0;
    for reply in owners.all(PeerRequest::Count(filter.clone()), deadline).await? {
        let PeerReply::Counted(counted) = reply else { return Err(fault().into()) };
        count += counted;
    }
    let token = Counted { filter, at, count }.token(|what| owners.timers().seal(what));
    let expires = at + COUNT_MS_MAX;
    let more = Map::new();
    Ok(Json(json!(BulkCount { count, token, expires, more })).into_response())
}

async fn carry_out(
    owners: &Owners,
    token: &str,
    mut body: Map<String, Value>,
    deadline: Deadline,
) -> Answered {
    let now = owners.timers().now().ok_or_else(single::no_time)?;
    let counted = counted(owners, token, now)?;
    let limit: Option<usize> = params::member(&mut body, "body", "limit", "a number")?;
    let limit = limit.unwrap_or(LIMIT);
    if !(1..=list::LIMIT_MAX).contains(&limit) {
        let detail = format!("want 1 to {}", list::LIMIT_MAX);
        return Err(Problem::bad("bad_limit", "body.limit", detail));
    }
    let page: Option<String> = params::member(&mut body, "body", "page", "a string")?;
    let after = page.map(|page| list::place(&page, &counted.filter)).transpose()?;
    tracked(owners.timers())?;
    let wait = Duration::from_millis(super::WAIT_MS);
    let look = deadline.with_time_for(wait);
    let (timers, next) = list::page(owners, &counted.filter, after, limit, look).await?;
    // A key that is not kept whole names no timer.
    let (meant, unnamed): (Vec<_>, Vec<_>) = timers
        .into_iter()
        .filter(|of| of.timer.version.first_appended.0 < counted.at)
        .partition(|of| !of.timer.key_cut);
    let commands: Vec<TimerCommand> = meant
        .into_iter()
        .map(|of| TimerCommand {
            name: of.name(),
            version: Some(of.timer.version),
            kind: CommandKind::Cancel,
        })
        .collect();
    let mut outcomes: BTreeMap<&str, u64> = BTreeMap::new();
    for done in batch::carry_out(owners, &commands, deadline.wait_at_most(wait)).await {
        let word = match done {
            Ok((_, CommandStatus::Decided { outcome, .. })) => outcome.as_str(),
            Ok((_, CommandStatus::Pending | CommandStatus::Lost)) => CommandResult::PENDING,
            Err(_) => "failed",
        };
        *outcomes.entry(word).or_default() += 1;
    }
    if !unnamed.is_empty() {
        outcomes.insert("key_too_long", unnamed.len() as u64);
    }
    let next = next.map(|cursor| token::of_page(cursor, &counted.filter));
    let outcomes = outcomes.into_iter().map(|(word, count)| (word.to_owned(), count)).collect();
    Ok(Json(json!(BulkPage { count: counted.count, outcomes, next })).into_response())
}
