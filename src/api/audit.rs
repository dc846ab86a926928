//! The audit log: one line for each administrative change that somebody asked for, whatever became of it.
//!
//! # Invariants
//! 1. A change that may have been made has a line, also if its caller had gone before the answer.
//! 2. No line has a token, a secret or the settings themselves.
//! 3. Who may not even ask (401, a foreign host) has none: nothing is known of him. Metrics count him.

use std::future::Future;
use std::net::IpAddr;

use axum::extract::Request;
use axum::http::Method;
use axum::middleware::Next;
use axum::response::Response;

use super::auth::{Caller, Peer};
use super::problem::Problem;
use crate::telemetry::AUDIT;

/// What a change did, as the answer to it says besides.
#[derive(Clone, Copy, Debug)]
pub(super) struct Revisions {
    /// What it took the place of; 0: nothing.
    pub(super) before: u64,
    /// What it made; 0: it took something away.
    pub(super) after: u64,
}

/// Why a request was refused, as the answer to it says besides.
#[derive(Clone, Debug)]
pub(super) struct RefusedFor {
    pub(super) code: String,
    /// The revision in force, if another one was named.
    pub(super) current: Option<u64>,
}

/// Answers a request, and writes a line if it asks for an administrative change.
pub(super) async fn changes(request: Request, next: Next) -> Response {
    let asked = asked(request.method(), request.uri().path());
    let caller = request.extensions().get::<Caller>();
    let (Some((action, key)), Some(caller)) = (asked, caller) else {
        return next.run(request).await;
    };
    let from = request.extensions().get::<Peer>().map(|Peer(address)| *address);
    let mut line = Line { by: caller.name.clone(), from, action, key, is_written: false };
    let response = next.run(request).await;
    let extensions = response.extensions();
    match (extensions.get::<RefusedFor>(), extensions.get::<Revisions>()) {
        (Some(RefusedFor { code, current }), _) => line.write(code, *current, None),
        (None, Some(Revisions { before, after })) => {
            line.write("done", Some(*before), Some(*after));
        }
        (None, None) if response.status().is_success() => line.write("done", None, None),
        (None, None) => line.write(response.status().as_str(), None, None),
    }
    response
}

/// Makes a change that does not come over HTTP with a method and a path that say it, and writes its line. `of`: what `done` made.
pub(super) async fn made<T>(
    (caller, from): (&Caller, Option<Peer>),
    (action, key): (&'static str, String),
    change: impl Future<Output = Result<T, Problem>>,
    of: impl FnOnce(&T) -> Option<Revisions>,
) -> Result<T, Problem> {
    let from = from.map(|Peer(address)| address);
    let mut line = Line { by: caller.name.clone(), from, action, key, is_written: false };
    let made = change.await;
    match &made {
        Ok(done) => {
            let revisions = of(done);
            let of = |revision: fn(&Revisions) -> u64| revisions.as_ref().map(revision);
            line.write("done", of(|of| of.before), of(|of| of.after));
        }
        Err(problem) => line.write(problem.code(), problem.current(), None),
    }
    made
}

/// What a request asks to change, and how; `None`: it is no administrative change.
fn asked(method: &Method, path: &str) -> Option<(&'static str, String)> {
    let of = path.strip_prefix("/v1/")?;
    let settings = ["projects/", "targets/", "schedules/"];
    let is_setting = settings.iter().any(|settings| of.starts_with(settings));
    if of == "schedules" && *method == Method::POST {
        return Some(("create", of.to_owned()));
    }
    if is_setting && *method == Method::PUT {
        return Some(("put", of.to_owned()));
    }
    if is_setting && *method == Method::DELETE {
        return Some(("delete", of.to_owned()));
    }
    let (key, action) = of.rsplit_once(':')?;
    let action = match action {
        "pause" if is_setting => "pause",
        "resume" if is_setting => "resume",
        "trigger" if of.starts_with("schedules/") => "trigger",
        "backfill" if of.starts_with("schedules/") => "backfill",
        "retry" if of.starts_with("tasks/") || of.starts_with("runs/") => "retry",
        "bulkCancel" if key == "timers" => "bulk_cancel",
        _ => return None,
    };
    (*method == Method::POST).then(|| (action, key.to_owned()))
}

/// One line, which is written at the latest when it is dropped.
struct Line {
    by: String,
    from: Option<IpAddr>,
    action: &'static str,
    key: String,
    is_written: bool,
}

impl Line {
    fn write(&mut self, outcome: &str, before: Option<u64>, after: Option<u64>) {
        self.is_written = true;
        let Self { by, from, action, key, .. } = self;
        let (by, key) = (by.as_str(), key.as_str());
        let from = from.map(tracing::field::display);
        tracing::info!(
            target: AUDIT, by, from, action, key, before, after, outcome, "administrative change"
        );
    }
}

/// The caller has gone, or everything stops. What was begun may be done yet.
impl Drop for Line {
    fn drop(&mut self) {
        if !self.is_written {
            self.write("unanswered", None, None);
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::io;
    use std::sync::Arc;

    use axum::http::header;
    use parking_lot::Mutex;
    use serde_json::{Value, json};
    use tracing::Instrument as _;
    use tracing::instrument::WithSubscriber as _;

    use super::super::tasks::Failure;
    use super::super::tasks::tests::Api;
    use super::*;

    /// The lines of the log, as JSON.
    #[derive(Clone, Default)]
    pub(in crate::api) struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Lines {
        /// The audit lines since the last time: who, what, of what, revisions, outcome.
        pub(in crate::api) fn take(&self) -> Vec<Value> {
            let text = String::from_utf8(std::mem::take(&mut *self.0.lock())).expect("text");
            let lines = text.lines().map(|line| serde_json::from_str(line).expect("JSON"));
            let audit = lines.filter(|line: &Value| line["target"] == AUDIT);
            audit
                .map(|line| {
                    let of = &line["fields"];
                    assert_eq!(of["from"], "127.0.0.1", "{line}");
                    let names = ["by", "action", "key", "before", "after", "outcome"];
                    names.map(|name| of[name].clone()).to_vec().into()
                })
                .collect()
        }

        pub(in crate::api) fn subscriber(&self) -> impl tracing::Subscriber + Send + Sync + use<> {
            let lines = self.clone();
            tracing_subscriber::fmt().json().with_writer(move || lines.clone()).finish()
        }
    }

    #[tokio::test]
    async fn each_change_has_a_line_whatever_becomes_of_it() {
        let lines = Lines::default();
        let test = async {
            let api = Api::with_tokens();
            let none = Value::Null;
            let (shop, billing) = ("/v1/projects/shop", "/v1/projects/shop/services/billing");
            let ask = async |who: &str, method: &str, path: &str, body: &Value| {
                api.ask(who, method, path, body).await;
                let mut all = lines.take();
                assert!(all.len() < 2, "{all:?}");
                all.pop().unwrap_or(Value::Null)
            };
            let service = json!({ "address": "https://billing.example" });
            let said = |outcome: &str| json!({ "outcome": outcome });
            #[rustfmt::skip]
            let cases = [
                ("admin",  "PUT",    shop,                          json!({}),       json!(["admin", "put", "projects/shop", 0, 1, "done"])),
                ("admin",  "PUT",    billing,                       service,         json!(["admin", "put", "projects/shop/services/billing", 0, 2, "done"])),
                ("admin",  "POST",   "/v1/projects/shop:pause",     none.clone(),    json!(["admin", "pause", "projects/shop", 1, 3, "done"])),
                ("admin",  "POST",   "/v1/targets/orders:resume",   none.clone(),    json!(["admin", "resume", "targets/orders", 0, 4, "done"])),
                ("writer", "POST",   "/v1/projects/shop:resume",    none.clone(),    json!(["writer", "resume", "projects/shop", null, null, "role_denied"])),
                ("chief",  "PUT",    "/v1/projects/bank",           json!({}),       json!(["chief", "put", "projects/bank", null, null, "unknown_project"])),
                ("admin",  "PUT",    shop,                          json!({"x": 1}), json!(["admin", "put", "projects/shop", null, null, "wrong_fields"])),
                ("chief",  "DELETE", billing,                       none.clone(),    json!(["chief", "delete", "projects/shop/services/billing", 2, 5, "done"])),
                ("writer", "POST",   "/v1/tasks/t1:retry",          none.clone(),    json!(["writer", "retry", "tasks/t1", null, null, "unknown_task"])),
                ("writer", "POST",   "/v1/runs/t1:retry",           none.clone(),    json!(["writer", "retry", "runs/t1", null, null, "unknown_run"])),
                ("admin",  "POST",   "/v1/tasks/t1/result",         said("finished"), json!(["admin", "report_finished", "tasks/t1", null, null, "done"])),
                ("admin",  "POST",   "/v1/tasks/t1/result",         said("gone"),    json!(["admin", "report_gone", "tasks/t1", null, null, "done"])),
                ("writer", "POST",   "/v1/tasks/t1/result",         said("failed"),  json!(["writer", "report_failed", "tasks/t1", null, null, "role_denied"])),
                ("admin",  "POST",   "/v1/tasks/t1/heartbeat",      json!({}),       json!(["admin", "heartbeat", "tasks/t1", null, null, "done"])),
                ("writer", "POST",   "/v1/timers:bulkCancel",       json!({}),       Value::Null),
                ("admin",  "GET",    shop,                          none.clone(),    Value::Null),
                ("nobody", "DELETE", shop,                          none.clone(),    Value::Null),
            ];
            for (who, method, path, body, want) in cases {
                assert_eq!(ask(who, method, path, &body).await, want, "{who} {method} {path}");
            }
            let line = ask("admin", "POST", "/v1/timers:bulkCancel", &json!({})).await;
            assert_eq!((&line[1], &line[2]), (&json!("bulk_cancel"), &json!("timers")), "{line}");

            let request = Request::builder().method("DELETE").uri(shop);
            let request = request.header(header::IF_MATCH, "\"1\"");
            let request = request.header(header::AUTHORIZATION, "Bearer admin");
            assert_eq!(api.send(request, axum::body::Body::empty()).await.status, 409);
            let conflict =
                json!(["admin", "delete", "projects/shop", 3, null, "revision_conflict"]);
            assert_eq!(lines.take(), [conflict]);
            api.world().failure = Some(Failure::Away("no broker answers".to_owned()));
            assert_eq!(ask("writer", "POST", "/v1/tasks/t1:retry", &none).await[5], "kafka_away");
        };
        test.in_current_span().with_subscriber(lines.subscriber()).await;
    }

    #[test]
    fn a_caller_who_goes_before_the_answer_has_a_line() {
        let lines = Lines::default();
        tracing::subscriber::with_default(lines.subscriber(), || {
            let from = Some(IpAddr::from([127, 0, 0, 1]));
            let by = "anna\nby=admin".to_owned();
            let key = "projects/shop".to_owned();
            drop(Line { by, from, action: "delete", key, is_written: false });
        });
        let want = json!(["anna\nby=admin", "delete", "projects/shop", null, null, "unanswered"]);
        assert_eq!(lines.take(), [want]);
    }
}
