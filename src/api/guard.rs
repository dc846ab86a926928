//! Stands before `/v1`: who may ask, how much at once, and how long a body may take.
//!
//! # Invariants
//! 1. No web page gets past: not by a name that points here, not from another origin, and not with a form.
//! 2. No byte of a body is read before its request has a permit. All of the body is here before anything is done.
//! 3. Who asks is known before a permit is taken: a caller without rights takes nobody's place.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;

use super::auth::{Access, Caller};
use super::gate::{Gate, Held, Kind, Permit, Who};
use super::grpc;
use super::hosts::{Foreign, Hosts};
use super::problem::Problem;
use crate::engine::task::request::read_empty;
use crate::telemetry;

/// Longest wait for a whole body.
pub(super) const BODY_MAX: Duration = Duration::from_secs(10);

/// When a request came, which is before its body was read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Came {
    /// The brokers' time.
    pub(super) time: Option<u64>,
    /// The same for what is waited for.
    pub(super) at: Instant,
}

/// The brokers' time in epoch milliseconds; `None`: not known yet.
pub(super) type Clock = Arc<dyn Fn() -> Option<u64> + Send + Sync>;

/// In which form a room is asked, and answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// JSON over HTTP.
    Json,
    /// Messages of gRPC.
    Grpc,
}

/// What a room asks of requests.
#[derive(Clone, Copy)]
pub(super) struct Rules {
    /// What a request costs.
    pub(super) kind: fn(&Method, &str) -> Kind,
    /// Bytes that its body may have.
    pub(super) bytes_max: fn(Kind) -> usize,
    /// What a body is.
    pub(super) form: Form,
    /// Whether a POST to this path has no fields: its body is missing, and so has no type, or is an empty object.
    pub(super) is_bodyless: fn(&str) -> bool,
    /// Whether this path is known not to take this method. A request without a body is told that, and not what a body is.
    pub(super) is_nothing: fn(&Method, &str) -> bool,
    /// Who asks, if he may.
    pub(super) caller: fn(&Access, &Request) -> Result<Caller, Problem>,
}

/// Checks the requests of callers.
pub(super) struct Guard {
    pub(super) rules: Rules,
    pub(super) clock: Clock,
    pub(super) hosts: Hosts,
    pub(super) access: Arc<Access>,
    pub(super) gate: Arc<Gate>,
}

/// Lets a caller's request through, or answers it.
pub(super) async fn callers(
    State(guard): State<Arc<Guard>>,
    request: Request,
    next: Next,
) -> Response {
    // Who does not speak gRPC does not look for a status in its trailers.
    let speaks_grpc = guard.rules.form == Form::Grpc && grpc::is_grpc(request.headers());
    match let_in(&guard, request).await {
        Ok((request, permit)) => {
            let held = request.extensions().get::<Held>().cloned();
            let mut response = next.run(request).await;
            let no_store = HeaderValue::from_static("no-store");
            response.headers_mut().insert(header::CACHE_CONTROL, no_store);
            finish(permit, held);
            response
        }
        Err(problem) => grpc::told(speaks_grpc, problem),
    }
}

/// Gives a permit back when the answer has been written, if that may be large.
pub(super) fn finish((kind, permit): (Kind, Permit), held: Option<Held>) {
    if let (Kind::Large, Some(held)) = (kind, held) {
        held.keep(permit);
    }
}

async fn let_in(guard: &Guard, request: Request) -> Result<(Request, (Kind, Permit)), Problem> {
    guard.hosts.check(&request).map_err(foreign)?;
    guard.access.prepare(request.headers()).await;
    let caller = (guard.rules.caller)(&guard.access, &request)?;
    let kind = (guard.rules.kind)(request.method(), request.uri().path());
    let takes_body = matches!(*request.method(), Method::POST | Method::PATCH | Method::PUT);
    let has_no_fields = takes_body && (guard.rules.is_bodyless)(request.uri().path());
    let wants_none =
        has_no_fields || (guard.rules.is_nothing)(request.method(), request.uri().path());
    let may_be_bare = wants_none && is_bare(request.headers());
    if guard.rules.form == Form::Grpc && !grpc::is_grpc(request.headers()) {
        telemetry::api_refused("media_type");
        let detail = "this is asked over gRPC: POST, with application/grpc as Content-Type";
        return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "not_grpc", detail));
    }
    let wants_json = guard.rules.form == Form::Json && takes_body && !may_be_bare;
    if wants_json && has_body(&request) && !is_json(request.headers()) {
        telemetry::api_refused("media_type");
        let detail = "a body is JSON, and its Content-Type application/json";
        return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "not_json_type", detail));
    }
    let permit = guard.gate.enter(Who::Caller, kind).map_err(Problem::busy)?;
    let (mut head, body) = request.into_parts();
    head.extensions.insert(Came { time: (guard.clock)(), at: Instant::now() });
    head.extensions.insert(caller);
    let bytes_max = (guard.rules.bytes_max)(kind);
    let body = whole(body, bytes_max).await?;
    if has_no_fields {
        read_empty(&body, bytes_max).map_err(|wrongs| Problem::wrong_fields(&wrongs))?;
    }
    Ok((Request::from_parts(head, Body::from(body)), (kind, permit)))
}

/// Why a request is refused that may come from a web page.
pub(super) fn foreign(why: Foreign) -> Problem {
    let refuse = |reason, code: &str, detail| {
        telemetry::api_refused(reason);
        Problem::new(StatusCode::FORBIDDEN, code, detail)
    };
    match why {
        Foreign::NoHost => {
            let detail = "say in one Host header where this is asked";
            refuse("host", "foreign_host", detail.to_owned())
        }
        Foreign::Host(host) => {
            let detail = format!(
                "{host:?} is no IP address, not localhost, not what this instance advertises, and none of its http-hosts"
            );
            refuse("host", "foreign_host", detail)
        }
        Foreign::Page(page) => {
            let detail = format!("a page of another origin asked for this ({page:?})");
            refuse("page", "cross_site", detail)
        }
    }
}

/// Whether one is announced, or the method wants one.
fn has_body(request: &Request) -> bool {
    let headers = request.headers();
    let length = headers.get(header::CONTENT_LENGTH);
    [Method::POST, Method::PATCH, Method::PUT].contains(request.method())
        || headers.contains_key(header::TRANSFER_ENCODING)
        || length.is_some_and(|length| length != "0")
}

/// Whether there is no body and no type of one. A form of a web page has a type, and its page is named besides.
fn is_bare(headers: &HeaderMap) -> bool {
    let length = headers.get(header::CONTENT_LENGTH);
    !headers.contains_key(header::TRANSFER_ENCODING)
        && !headers.contains_key(header::CONTENT_TYPE)
        && length.is_none_or(|length| length == "0")
}

fn is_json(headers: &HeaderMap) -> bool {
    let mut kinds = headers.get_all(header::CONTENT_TYPE).iter();
    let is_json = |kind: &HeaderValue| {
        let kind = kind.to_str().unwrap_or_default().split(';').next().unwrap_or_default();
        kind.trim().eq_ignore_ascii_case("application/json")
    };
    kinds.next().is_some_and(is_json) && kinds.all(is_json)
}

/// The whole of a body.
pub(super) async fn whole(body: Body, most: usize) -> Result<Bytes, Problem> {
    match tokio::time::timeout(BODY_MAX, to_bytes(body, most)).await {
        Ok(Ok(body)) => Ok(body),
        Ok(Err(_)) => {
            let detail = format!("it ends too soon, or has more than {most} bytes");
            Err(Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", detail))
        }
        Err(_) => {
            telemetry::api_refused("slow");
            let detail = format!("it was not there within {} s", BODY_MAX.as_secs());
            Err(Problem::new(StatusCode::REQUEST_TIMEOUT, "too_slow", detail))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_json_or_refused() {
        let of = |method: &str, headers: &[(&str, &str)]| {
            let mut request = Request::builder().method(method).uri("/v1/timers:batchGet");
            for (name, value) in headers {
                request = request.header(*name, *value);
            }
            let request = request.body(Body::empty()).expect("a request");
            !has_body(&request) || is_json(request.headers())
        };
        let (json, form) = ("application/json", "application/x-www-form-urlencoded");
        #[rustfmt::skip]
        let cases: [(&str, bool, bool); 11] = [
            ("none",                of("GET", &[]),                                                     true),
            ("none, and said so",   of("DELETE", &[("content-length", "0")]),                           true),
            ("one of a GET",        of("GET", &[("content-length", "2"), ("content-type", form)]),      false),
            ("in pieces",           of("DELETE", &[("transfer-encoding", "chunked")]),                  false),
            ("JSON",                of("POST", &[("content-type", json)]),                              true),
            ("JSON with a charset", of("PATCH", &[("content-type", "Application/JSON ; charset=utf-8")]), true),
            ("a form",              of("POST", &[("content-type", form)]),                              false),
            ("text",                of("POST", &[("content-type", "text/plain;application/json")]),     false),
            ("another JSON",        of("POST", &[("content-type", "application/jsonp")]),               false),
            ("nothing said",        of("POST", &[]),                                                    false),
            ("JSON and a form",     of("POST", &[("content-type", json), ("content-type", form)]),      false),
        ];
        for (why, is, want) in cases {
            assert_eq!(is, want, "{why}");
        }
    }
}
