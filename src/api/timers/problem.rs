//! Errors as `application/problem+json` (RFC 9457): a word for programs, a sentence for people.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};

use super::known::Trouble;

/// An answer that is none.
#[derive(Debug)]
pub(super) struct Problem(Box<Told>);

#[derive(Debug)]
struct Told {
    status: StatusCode,
    code: String,
    detail: String,
    /// Which part of the request is wrong: `path.id`, `query.limit`, `body.timers[3].key`.
    at: Option<String>,
    retry_s: Option<u32>,
    more: Map<String, Value>,
}

impl Problem {
    pub(super) fn new(status: StatusCode, code: &str, detail: impl Into<String>) -> Self {
        Self(Box::new(Told {
            status,
            code: code.to_owned(),
            detail: detail.into(),
            at: None,
            retry_s: None,
            more: Map::new(),
        }))
    }

    /// The caller may come again after so many seconds.
    fn later(mut self, seconds: u32) -> Self {
        self.0.retry_s = Some(seconds);
        self
    }

    /// As much is asked already as may be at once.
    pub(super) fn busy(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "too_busy", detail).later(1)
    }

    /// Something in the request that is not as it has to be.
    pub(super) fn bad(code: &str, at: impl Into<String>, detail: impl Into<String>) -> Self {
        let mut bad = Self::new(StatusCode::BAD_REQUEST, code, detail);
        bad.0.at = Some(at.into());
        bad
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
        Value::Object(all)
    }
}

/// What a problem of this type is, in one sentence, whatever the request was.
fn title(code: &str) -> &'static str {
    let found = TITLES.iter().find(|(of, _)| *of == code);
    found.map_or("the request cannot be applied", |(_, title)| title)
}

/// By code. What the header contract refuses in a change of a timer has the last of `title`.
#[rustfmt::skip]
const TITLES: [(&str, &str); 49] = [
    ("answer_lost",       "what became of this command is not known any more"),
    ("bad_base64",        "this is no base64"),
    ("bad_batch",         "a batch has too many timers, or none"),
    ("bad_duration",      "this is no duration, or one that is too long"),
    ("bad_encoding",      "a % in the address is not followed by two hexadecimal digits"),
    ("bad_id",            "this cannot be an id"),
    ("bad_limit",         "the limit is out of range"),
    ("bad_page",          "this is no page that an answer named"),
    ("bad_state",         "there is no such state"),
    ("bad_ticket",        "this is no ticket that an answer gave"),
    ("bad_time",          "this is no point in time"),
    ("bad_token",         "this is no token that a count gave, or it has ended"),
    ("bad_version",       "this is no version"),
    ("bad_window",        "the window ends before it begins"),
    ("cross_site",        "a page of another origin may not ask"),
    ("delay_too_long",    "the delay is longer than max-delay"),
    ("doubled_member",    "a member of the body stands there twice"),
    ("doubled_parameter", "a parameter stands there twice"),
    ("filter_and_token",  "a token stands for its filter: say one of them"),
    ("foreign_host",      "this instance has no such name"),
    ("kafka_away",        "Kafka does not answer"),
    ("key_needed",        "the timer's key is part of its name, and is missing"),
    ("lane_moving",       "the owner of the timer's lane is not available now"),
    ("means_all",         "this filter means every timer"),
    ("no_body",           "the body could not be read"),
    ("no_index",          "timers cannot be looked up in this lane now"),
    ("no_such_method",    "the page does not take this method"),
    ("no_such_page",      "there is no such page"),
    ("no_time",           "a new time is missing, or there are two"),
    ("no_token",          "the token of a count is missing"),
    ("not_a_peer",        "no instance of this namespace asks"),
    ("not_a_question",    "no instance asks so"),
    ("not_an_object",     "want a JSON object"),
    ("not_json",          "the body is no JSON"),
    ("not_json_type",     "the body's Content-Type is not application/json"),
    ("not_pending",       "the timer is not pending"),
    ("not_tracked",       "timers are not tracked here"),
    ("not_utf8",          "this is no UTF-8"),
    ("record_not_found",  "the timer's record was not found in time"),
    ("refused",           "the command was refused, and is a dead letter"),
    ("superseded",        "another version took the place of this one"),
    ("too_busy",          "as much is asked here as may be at once"),
    ("too_large",         "the body is larger than it may be, or ended too soon"),
    ("too_slow",          "the body was not there in time"),
    ("two_keys",          "a key stands there twice"),
    ("unknown_member",    "there is no such member"),
    ("unknown_parameter", "there is no such parameter"),
    ("unknown_timer",     "no timer of this name is known"),
    ("wrong_type",        "a member is of another type"),
];

impl From<Trouble> for Problem {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Moving(detail) | Trouble::Unknown(detail) => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "lane_moving", detail).later(1)
            }
            Trouble::Away(detail) => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "kafka_away", detail).later(5)
            }
            Trouble::Busy(detail) => Self::busy(detail),
            Trouble::NoIndex(detail) => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "no_index", detail).later(30)
            }
            Trouble::NotFound(detail) => {
                let status = StatusCode::SERVICE_UNAVAILABLE;
                Self::new(status, "record_not_found", detail).later(5)
            }
            Trouble::NotPending(state) => {
                let detail = match &state {
                    Some(state) => format!("its state is {state}"),
                    None => "no such version is known to be pending".to_owned(),
                };
                let problem = Self::new(StatusCode::CONFLICT, "not_pending", detail);
                match state {
                    Some(state) => problem.with("state", json!(state)),
                    None => problem,
                }
            }
            Trouble::Refused(code, detail) => {
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
        let headers = response.headers_mut();
        let kind = HeaderValue::from_static("application/problem+json");
        headers.insert(header::CONTENT_TYPE, kind);
        if let Some(seconds) = self.0.retry_s {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
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
        let page = include_str!("../../../docs/http-api.md");
        let (_, table) = page.split_once("| status | codes |").expect("the table of codes");
        let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
        let is_code = |word: &&str| word.contains('_') || ["refused", "superseded"].contains(word);
        let codes: BTreeSet<&str> = rows
            .filter_map(|row| row.split('|').nth(2))
            .flat_map(|codes| codes.split('`').skip(1).step_by(2))
            .filter(|word| {
                word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
            })
            .filter(is_code)
            .collect();
        let told: BTreeSet<&str> = TITLES.iter().map(|(code, _)| *code).collect();
        assert_eq!(
            codes, told,
            "docs/http-api.md has those on the left, and the titles are of those on the right"
        );
        let titles: BTreeSet<&str> = TITLES.iter().map(|(_, title)| *title).collect();
        assert_eq!(titles.len(), TITLES.len(), "two types have one title");
    }
}
