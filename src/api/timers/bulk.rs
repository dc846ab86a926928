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

use super::ask::{Asker, Told, What, fault};
use super::deadline::{self, Deadline};
use super::guard::Came;
use super::known::{Answer, Command, Filter, Order};
use super::problem::Problem;
use super::token::{self, BadToken, COUNT_MS_MAX, Counted};
use super::{Answered, batch, list, read, single, tracked};

/// How many timers one request cancels, unless it says so itself.
const LIMIT: usize = 500;

fn counted(asker: &Asker, token: &str, now: u64) -> Result<Counted, Problem> {
    Counted::of_token(|what| asker.timers().seal(what), token, now).map_err(|bad| {
        let detail = match bad {
            BadToken::Expired => "it has expired; count again",
            _ => "it is not a token that a count of this namespace gave",
        };
        Problem::bad("bad_token", "body.token", detail)
    })
}

pub(super) async fn cancel(
    State(asker): State<Asker>,
    Extension(came): Extension<Came>,
    body: Result<Bytes, BytesRejection>,
) -> Answered {
    let filters = ["target", "label", "due_after", "due_before", "all"];
    let known = [&filters[..], &["token", "page", "limit"]].concat();
    let mut body = read::body(body, &known)?;
    let token: Option<String> = read::member(&mut body, "body", "token", "a string")?;
    match token {
        None => count(&asker, body, Deadline::new(came.at, deadline::COUNT)).await,
        Some(token) => {
            if let Some(name) = filters.iter().find(|name| body.contains_key(**name)) {
                let detail = "the token has its filter in it; say nothing beside it";
                return Err(Problem::bad("filter_and_token", format!("body.{name}"), detail));
            }
            let deadline = Deadline::new(came.at, deadline::ALL_LANES);
            carry_out(&asker, &token, body, deadline).await
        }
    }
}

async fn count(asker: &Asker, mut body: Map<String, Value>, deadline: Deadline) -> Answered {
    for name in ["page", "limit"] {
        if body.contains_key(name) {
            let detail = "only with the token of a count; leave it out to count";
            return Err(Problem::bad("no_token", format!("body.{name}"), detail));
        }
    }
    let all: Option<bool> = read::member(&mut body, "body", "all", "true or false")?;
    let mut time = |name: &str| -> Result<Option<u64>, Problem> {
        match body.remove(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => read::moment(asker.timers(), &value, &format!("body.{name}")).map(Some),
        }
    };
    let (due_after, due_before) = (time("due_after")?, time("due_before")?);
    let filter = Filter {
        target: read::member(&mut body, "body", "target", "a string")?,
        label: read::member(&mut body, "body", "label", "a string")?,
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
    let filter = Filter { state: Some("delay".to_owned()), ..read::checked(filter, "body")? };
    tracked(asker.timers())?;
    let at = asker.timers().now().ok_or_else(single::no_time)?;
    let mut count = 0;
    for told in asker.all(What::Count(filter.clone()), deadline).await? {
        let Told::Counted(counted) = told else { return Err(fault().into()) };
        count += counted;
    }
    let token = Counted { filter, at, count }.token(|what| asker.timers().seal(what));
    let expires = at + COUNT_MS_MAX;
    Ok(Json(json!({ "count": count, "token": token, "expires": expires })).into_response())
}

async fn carry_out(
    asker: &Asker,
    token: &str,
    mut body: Map<String, Value>,
    deadline: Deadline,
) -> Answered {
    let now = asker.timers().now().ok_or_else(single::no_time)?;
    let counted = counted(asker, token, now)?;
    let limit: Option<usize> = read::member(&mut body, "body", "limit", "a number")?;
    let limit = limit.unwrap_or(LIMIT);
    if !(1..=list::LIMIT_MAX).contains(&limit) {
        let detail = format!("want 1 to {}", list::LIMIT_MAX);
        return Err(Problem::bad("bad_limit", "body.limit", detail));
    }
    let page: Option<String> = read::member(&mut body, "body", "page", "a string")?;
    let after = page.map(|page| list::place(&page, &counted.filter)).transpose()?;
    tracked(asker.timers())?;
    let wait = Duration::from_millis(super::WAIT_MS);
    let look = deadline.with_time_for(wait);
    let (timers, next) = list::page(asker, &counted.filter, after, limit, look).await?;
    // A key that is not kept whole names no timer.
    let (meant, unnamed): (Vec<_>, Vec<_>) = timers
        .into_iter()
        .filter(|timer| timer.born() < counted.at)
        .partition(|timer| !timer.key_cut);
    let commands: Vec<Command> = meant
        .into_iter()
        .map(|timer| Command {
            name: timer.name,
            version: Some(timer.version),
            order: Order::Cancel,
        })
        .collect();
    let mut outcomes: BTreeMap<String, u64> = BTreeMap::new();
    for done in batch::carry_out(asker, &commands, deadline.wait_at_most(wait)).await {
        let word = match done {
            Ok((_, Answer::Decided { outcome, .. })) => outcome,
            Ok((_, Answer::Pending | Answer::Lost)) => "pending".to_owned(),
            Err(_) => "failed".to_owned(),
        };
        *outcomes.entry(word).or_default() += 1;
    }
    if !unnamed.is_empty() {
        outcomes.insert("key_too_long".to_owned(), unnamed.len() as u64);
    }
    let next = next.map(|cursor| token::of_page(cursor, &counted.filter));
    let told = json!({ "count": counted.count, "outcomes": outcomes, "next": next });
    Ok(Json(told).into_response())
}
