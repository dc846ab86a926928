//! Errors as `application/problem+json` (RFC 9457): a code for programs, a sentence for people.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};

use super::audit::RefusedFor;
use super::timers::model::TimersError;
use crate::engine::task::Wrong;

/// What a problem is sent as.
pub(super) const CONTENT_TYPE: &str = "application/problem+json";

/// Why a request was not answered.
#[derive(Debug)]
pub(super) struct Problem(Box<Body>);

#[derive(Debug)]
struct Body {
    status: StatusCode,
    code: String,
    detail: String,
    /// Which part of the request is wrong: `path.id`, `query.limit`, `body.timers[3].key`.
    at: Option<String>,
    retry_s: Option<u32>,
    /// The answer says how to authenticate.
    challenges: bool,
    more: Map<String, Value>,
}

impl Problem {
    pub(super) fn new(status: StatusCode, code: &str, detail: impl Into<String>) -> Self {
        Self(Box::new(Body {
            status,
            code: code.to_owned(),
            detail: detail.into(),
            at: None,
            retry_s: None,
            challenges: false,
            more: Map::new(),
        }))
    }

    /// The caller may try again after so many seconds.
    pub(super) fn later(mut self, seconds: u32) -> Self {
        self.0.retry_s = Some(seconds);
        self
    }

    /// Too many requests are being answered already.
    pub(super) fn busy(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "too_busy", detail).later(1)
    }

    /// A mistake in the request.
    pub(super) fn bad(code: &str, at: impl Into<String>, detail: impl Into<String>) -> Self {
        let mut bad = Self::new(StatusCode::BAD_REQUEST, code, detail);
        bad.0.at = Some(at.into());
        bad
    }

    /// Every field of a body that is wrong, at least one.
    pub(super) fn wrong_fields(wrongs: &[Wrong]) -> Self {
        let errors: Vec<Value> =
            wrongs.iter().map(|wrong| json!({ "at": wrong.at, "detail": wrong.detail })).collect();
        let first = wrongs.first().map(ToString::to_string).unwrap_or_default();
        let detail = match wrongs.len() {
            0 | 1 => first,
            more => format!("{first}; and {} more, see errors", more - 1),
        };
        let problem = Self::new(StatusCode::UNPROCESSABLE_ENTITY, "wrong_fields", detail);
        problem.with("errors", Value::Array(errors))
    }

    /// The caller did not say who it is.
    pub(super) fn no_credentials(code: &str, detail: &str) -> Self {
        let mut problem = Self::new(StatusCode::UNAUTHORIZED, code, detail);
        problem.0.challenges = true;
        problem
    }

    /// The word for programs.
    pub(super) fn code(&self) -> &str {
        &self.0.code
    }

    /// The revision in force, if another one was named.
    pub(super) fn current(&self) -> Option<u64> {
        self.0.more.get("current").and_then(Value::as_u64)
    }

    /// The words for people.
    pub(super) fn detail(&self) -> &str {
        &self.0.detail
    }

    /// After how many seconds the caller may try again, if that helps.
    pub(super) fn retry_s(&self) -> Option<u32> {
        self.0.retry_s
    }

    /// Every field that is wrong: where it stands, and what is wrong with it.
    pub(super) fn wrong_fields_named(&self) -> Vec<(String, String)> {
        let text = |of: &Value, name: &str| of[name].as_str().unwrap_or_default().to_owned();
        let errors = self.0.more.get("errors").and_then(Value::as_array).into_iter().flatten();
        let errors: Vec<_> = errors.map(|of| (text(of, "at"), text(of, "detail"))).collect();
        match &self.0.at {
            Some(at) if errors.is_empty() => vec![(at.clone(), self.0.detail.clone())],
            _ => errors,
        }
    }

    /// The status that it is answered with.
    pub(super) fn status(&self) -> StatusCode {
        self.0.status
    }

    /// Adds a member.
    pub(super) fn with(mut self, name: &str, value: Value) -> Self {
        self.0.more.insert(name.to_owned(), value);
        self
    }

    /// The same, said of one element of a batch.
    pub(super) fn as_json(&self) -> Value {
        let mut all = self.0.more.clone();
        all.insert("type".to_owned(), json!(format!("urn:waterclock:problem:{}", self.0.code)));
        all.insert("title".to_owned(), json!(title(&self.0.code)));
        all.insert("status".to_owned(), json!(self.0.status.as_u16()));
        all.insert("code".to_owned(), json!(self.0.code));
        all.insert("detail".to_owned(), json!(self.0.detail));
        if let Some(at) = &self.0.at {
            all.insert("at".to_owned(), json!(at));
        }
        // One of a batch has no header of its own to say so.
        if let Some(seconds) = self.0.retry_s {
            all.insert("retry_after".to_owned(), json!(seconds));
        }
        Value::Object(all)
    }
}

/// What a problem of this type is, in a few words, whatever the request was.
fn title(code: &str) -> &'static str {
    let found = TITLES.iter().find(|(of, _)| *of == code);
    found.map_or("the request cannot be applied", |(_, title)| title)
}

/// By code. A change that the header contract refuses has the default of `title`.
#[rustfmt::skip]
const TITLES: [(&str, &str); 88] = [
    ("answer_lost",       "the outcome of this command is no longer known"),
    ("attempt_open",      "the call that handed this turn over is open"),
    ("bad_base64",        "not base64"),
    ("bad_batch",         "a batch must have 1 to 1000 timers"),
    ("bad_claims",        "a claim of the token is missing or malformed"),
    ("bad_count",         "the count is out of range"),
    ("bad_credentials",   "the token is not one that is configured"),
    ("bad_duration",      "not a duration, or too long"),
    ("bad_encoding",      "a % in the URL is not followed by two hexadecimal digits"),
    ("bad_id",            "not a valid id"),
    ("bad_if_match",      "If-Match is not a revision"),
    ("bad_limit",         "the limit is out of range"),
    ("bad_name",          "not a name of a project, a group or a service"),
    ("bad_page",          "not a page token of this list"),
    ("bad_span",          "the span has no time"),
    ("bad_state",         "no such state or status"),
    ("bad_ticket",        "not a ticket of a command"),
    ("bad_time",          "not a point in time"),
    ("bad_token",         "not a token of a count, or it has expired"),
    ("bad_type",          "not a type of a task"),
    ("bad_version",       "not a version of a timer"),
    ("bad_window",        "the time window ends before it begins"),
    ("cross_site",        "requests from pages of other origins are not allowed"),
    ("delay_too_long",    "the delay is longer than max-delay"),
    ("doubled_member",    "a member of the body appears twice"),
    ("doubled_parameter", "a query parameter appears twice"),
    ("expired_token",     "the token is not valid at this time"),
    ("filter_and_token",  "a token already contains its filter: send only one of them"),
    ("foreign_host",      "this instance does not answer for this host name"),
    ("internal_error",    "waterclock has made a mistake"),
    ("kafka_away",        "Kafka does not answer"),
    ("key_needed",        "the timer has a key, and the key is missing"),
    ("lane_moving",       "lane owner unavailable"),
    ("local_only",        "without a token only this machine may ask"),
    ("means_all",         "this filter matches every timer"),
    ("no_body",           "the body could not be read"),
    ("no_credentials",    "a token is needed"),
    ("no_index",          "look-ups are not available in this lane now"),
    ("no_keys",           "tokens cannot be checked now"),
    ("no_room",           "there is no room for it"),
    ("no_such_method",    "method not allowed on this path"),
    ("no_such_page",      "no such path"),
    ("no_time",           "want exactly one new time"),
    ("no_token",          "the token of a count is missing"),
    ("not_a_peer",        "not a request of another instance of this namespace"),
    ("not_a_question",    "not a query that instances send to each other"),
    ("not_an_object",     "want a JSON object"),
    ("not_available",     "tasks are not in force in this namespace"),
    ("not_grpc",          "want a request of gRPC"),
    ("not_json",          "the body is not JSON"),
    ("not_json_type",     "the Content-Type is not application/json"),
    ("not_pending",       "the timer is not pending"),
    ("not_retryable",     "the task or run cannot be retried"),
    ("not_tracked",       "timers are not tracked here"),
    ("not_utf8",          "not UTF-8"),
    ("over_create_rate",  "the project creates too many tasks"),
    ("over_pending",      "the project has too many pending tasks"),
    ("payload_gone",      "the payload of the task is gone"),
    ("project_deleted",   "the project was deleted"),
    ("project_denied",    "the token does not cover this"),
    ("record_not_found",  "the timer's record was not found in time"),
    ("record_too_large",  "the record is too large"),
    ("refused",           "the command was refused, and is a dead letter"),
    ("revision_conflict", "another revision is in force"),
    ("role_denied",       "the role of the token does not allow this"),
    ("schedule_ended",    "the schedule has ended"),
    ("schedule_exists",   "another schedule has this name"),
    ("stale",             "this turn of the task is over"),
    ("superseded",        "another version replaced this one"),
    ("tls_only",          "this address takes TLS only"),
    ("too_busy",          "too many requests at once"),
    ("too_large",         "the body is too large, or ended too soon"),
    ("too_slow",          "the body did not arrive in time"),
    ("two_keys",          "send key or key_base64, not both"),
    ("unknown_key",       "the key of the token is not known"),
    ("unknown_member",    "unknown member in the body"),
    ("unknown_parameter", "unknown query parameter"),
    ("unknown_project",   "no such project"),
    ("unknown_run",       "no such run"),
    ("unknown_schedule",  "no such schedule"),
    ("unknown_service",   "no such service"),
    ("unknown_task",      "no such task"),
    ("unknown_timer",     "no such timer"),
    ("version_conflict",  "another version is in force"),
    ("wrong_audience",    "the token is for somebody else"),
    ("wrong_fields",      "fields of the request are wrong"),
    ("wrong_ticket",      "the ticket is not one of this task"),
    ("wrong_type",        "a member has the wrong type"),
];

impl From<TimersError> for Problem {
    fn from(trouble: TimersError) -> Self {
        match trouble {
            TimersError::Moving(detail) | TimersError::Unknown(detail) => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "lane_moving", detail).later(1)
            }
            TimersError::Away(detail) => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "kafka_away", detail).later(5)
            }
            TimersError::Busy(detail) => Self::busy(detail),
            TimersError::NoIndex(detail) => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "no_index", detail).later(30)
            }
            TimersError::NotFound(detail) => {
                let status = StatusCode::SERVICE_UNAVAILABLE;
                Self::new(status, "record_not_found", detail).later(5)
            }
            TimersError::NotPending(state) => {
                let detail = match &state {
                    Some(state) => format!("its state is {}", state.as_str()),
                    None => "no such version is known to be pending".to_owned(),
                };
                let problem = Self::new(StatusCode::CONFLICT, "not_pending", detail);
                match state {
                    Some(state) => problem.with("state", json!(state.as_str())),
                    None => problem,
                }
            }
            TimersError::Refused(code, detail) => {
                // What no state of any timer would make right is wrong in the request.
                let is_bad = ["bad_ticket", "bad_version", "delay_too_long"].contains(&&*code);
                let status = if is_bad { StatusCode::BAD_REQUEST } else { StatusCode::CONFLICT };
                Self::new(status, &code, detail)
            }
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = (self.0.status, Json(self.as_json())).into_response();
        let (code, current) = (self.0.code.clone(), self.current());
        response.extensions_mut().insert(RefusedFor { code, current });
        let headers = response.headers_mut();
        let kind = HeaderValue::from_static(CONTENT_TYPE);
        headers.insert(header::CONTENT_TYPE, kind);
        if let Some(seconds) = self.0.retry_s {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.0.challenges {
            let scheme = HeaderValue::from_static("Bearer realm=\"waterclock\"");
            headers.insert(header::WWW_AUTHENTICATE, scheme);
        }
        // The rest of the body is not read, so nothing more can be asked on this connection.
        if [StatusCode::PAYLOAD_TOO_LARGE, StatusCode::REQUEST_TIMEOUT].contains(&self.0.status) {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_code_of_the_documents_has_a_title_of_its_own() {
        let page = include_str!("../../docs/http-api.md");
        let (_, table) = page.split_once("| status | codes |").expect("the table of codes");
        let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
        let is_code =
            |word: &&str| word.contains('_') || ["refused", "stale", "superseded"].contains(word);
        let codes: BTreeSet<&str> = rows
            .filter_map(|row| row.split('|').nth(2))
            .flat_map(|codes| codes.split('`').skip(1).step_by(2))
            .filter(|word| {
                word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
            })
            .filter(is_code)
            .collect();
        let titled: BTreeSet<&str> = TITLES.iter().map(|(code, _)| *code).collect();
        assert_eq!(
            codes, titled,
            "docs/http-api.md has those on the left, and the titles are of those on the right"
        );
        let titles: BTreeSet<&str> = TITLES.iter().map(|(_, title)| *title).collect();
        assert_eq!(titles.len(), TITLES.len(), "two types have one title");
    }
}
