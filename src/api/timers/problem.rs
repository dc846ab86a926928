//! What goes wrong, as `application/problem+json` (RFC 9457): for programs a word, for people a sentence.

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
    title: &'static str,
    detail: String,
    /// Which part of the request is wrong: `path.id`, `query.limit`, `body.timers[3].key`.
    at: Option<String>,
    retry_s: Option<u32>,
    more: Map<String, Value>,
}

impl Problem {
    pub(super) fn new(
        status: StatusCode,
        code: &str,
        title: &'static str,
        detail: impl Into<String>,
    ) -> Self {
        Self(Box::new(Told {
            status,
            code: code.to_owned(),
            title,
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
        let title = "too much is asked here at once";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "too_busy", title, detail).later(1)
    }

    /// Something in the request that is not as it has to be.
    pub(super) fn bad(code: &str, at: impl Into<String>, detail: impl Into<String>) -> Self {
        let mut bad = Self::new(StatusCode::BAD_REQUEST, code, "the request is wrong", detail);
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
        all.insert("title".to_owned(), json!(self.0.title));
        all.insert("status".to_owned(), json!(self.0.status.as_u16()));
        all.insert("code".to_owned(), json!(self.0.code));
        all.insert("detail".to_owned(), json!(self.0.detail));
        if let Some(at) = &self.0.at {
            all.insert("at".to_owned(), json!(at));
        }
        Value::Object(all)
    }
}

impl From<Trouble> for Problem {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Moving(detail) | Trouble::Unknown(detail) => {
                let title = "who answers for this timer is not there now";
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "lane_moving", title, detail).later(1)
            }
            Trouble::Away(detail) => {
                let title = "Kafka does not answer";
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "kafka_away", title, detail).later(5)
            }
            Trouble::Busy(detail) => Self::busy(detail),
            Trouble::NoIndex(detail) => {
                let title = "timers cannot be looked up in this lane now";
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "no_index", title, detail).later(30)
            }
            Trouble::NotFound(detail) => {
                let title = "the timer's record was not found in time";
                let status = StatusCode::SERVICE_UNAVAILABLE;
                Self::new(status, "record_not_found", title, detail).later(5)
            }
            Trouble::NotPending(state) => {
                let detail = match &state {
                    Some(state) => format!("its state is {state}"),
                    None => "no such version is known to be pending".to_owned(),
                };
                let title = "it cannot be done like that";
                let problem = Self::new(StatusCode::CONFLICT, "not_pending", title, detail);
                match state {
                    Some(state) => problem.with("state", json!(state)),
                    None => problem,
                }
            }
            Trouble::Refused(code, detail) => {
                // What no state of any timer would make right is wrong in the request.
                let is_bad = ["bad_ticket", "bad_version", "delay_too_long"].contains(&&*code);
                let status = if is_bad { StatusCode::BAD_REQUEST } else { StatusCode::CONFLICT };
                Self::new(status, &code, "it cannot be done like that", detail)
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
