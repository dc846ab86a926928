//! Makes one call, and says how it ended.
//!
//! # Invariants
//! 1. A call ends within its time, whatever the other side does.
//! 2. Of an answer, no more than [`ANSWER_MAX`] is read, and no more than [`RESPONSE_MAX`] is kept.
//! 3. A call that is late when it would be sent is not sent.

use std::error::Error as StdError;
use std::io;
use std::sync::Arc;
use std::time::SystemTime;

use reqwest::Response;
use reqwest::header::{HeaderMap, HeaderValue, RETRY_AFTER};
use tokio::sync::watch;
use tokio::time::Instant;

use super::clients::Clients;
use super::guard::{Denied, Guard};
use super::request::{self, Call, Prepared, Refused};
use super::resolver::{Resolver, Unresolved};
use super::secrets::Secrets;
use super::{Clock, Settings, StartError, grpc};
use crate::engine::header::Code;
use crate::engine::task::answer::Answer;
use crate::engine::task::registry::Registry;
use crate::engine::task::result::{Outcome, RESPONSE_MAX, TaskResult};
use crate::engine::work::{CallEnd, Task};
use crate::engine::{Millis, UnixMillis};
use crate::telemetry;

/// Longest body of an answer, and longest message of one over gRPC, in bytes.
pub(super) const ANSWER_MAX: usize = 64 << 10;
/// Most bytes of an answer's headers, names and values together.
pub(super) const HEADERS_MAX: usize = 16 << 10;

/// What all calls share.
pub(super) struct Caller {
    clients: Clients,
    grpc: grpc::Client,
    guard: Arc<Guard>,
    secrets: Secrets,
    registry: watch::Receiver<Arc<Registry>>,
    clock: Clock,
    worker: String,
}

/// How a call ended, beside when.
pub(super) struct End {
    pub(super) result: TaskResult,
    pub(super) is_away: bool,
}

/// A call that can be made, and what makes it.
enum Ready {
    Http(reqwest::Client, Box<Prepared>),
    Grpc(Box<grpc::request::Prepared>),
}

impl Caller {
    pub(super) fn new(
        settings: Settings,
        registry: watch::Receiver<Arc<Registry>>,
        clock: Clock,
    ) -> Result<Self, StartError> {
        let Settings { worker, guard, secrets, proxy, lookup } = settings;
        let guard = Arc::new(guard);
        let resolver = Arc::new(Resolver::new(Arc::clone(&guard), lookup));
        let clients = Clients::new(Arc::clone(&resolver), proxy.clone())?;
        let grpc = grpc::Client::new(resolver, proxy)?;
        Ok(Self { clients, grpc, guard, secrets, registry, clock, worker })
    }

    /// Makes the call of a task, or none if it is later than `by` when it would be sent.
    pub(super) async fn call(&self, task: &Arc<Task>, by: Instant) -> Box<CallEnd> {
        let (started, since) = ((self.clock)(), Instant::now());
        let End { mut result, is_away } = match self.prepare(task, started).await {
            Ok(_) if Instant::now() > by => {
                let mut result = TaskResult::new(Outcome::Deferred);
                result.until = Some((self.clock)());
                End { result, is_away: false }
            }
            Ok(Ready::Http(client, prepared)) => self.make(&client, *prepared).await,
            Ok(Ready::Grpc(prepared)) => self.grpc.make(&prepared, by, (self.clock)()).await,
            Err(Refused { code, detail }) => {
                // No other call of a record that is not what was submitted ends otherwise.
                let is_final = code == Code::BadTask.as_str();
                let outcome = if is_final { Outcome::Gone } else { Outcome::Failed };
                let mut result = TaskResult::new(outcome);
                result.error = Some(format!("{code}: {detail}"));
                End { result, is_away: false }
            }
        };
        result.started = Some(started);
        result.ended = Some((self.clock)());
        result.worker = Some(self.worker.clone());
        telemetry::call_ended(result.outcome.as_str(), since.elapsed());
        tracing::debug!(
            task = ?task.turn.name,
            turn = task.turn.turn,
            outcome = result.outcome.as_str(),
            status = result.status,
            error = result.error,
            "call ended"
        );
        Box::new(CallEnd { result, is_away })
    }

    /// The request of a task, and what sends it.
    async fn prepare(&self, task: &Arc<Task>, now: UnixMillis) -> Result<Ready, Refused> {
        let registry = Arc::clone(&self.registry.borrow());
        match request::prepare(task, &registry, &self.guard, &self.secrets, now)? {
            Call::Http(mut prepared) => {
                let client = self.clients.that_shows(prepared.certificate.take()).await?;
                Ok(Ready::Http(client, prepared))
            }
            Call::Grpc(prepared) => Ok(Ready::Grpc(prepared)),
        }
    }

    async fn make(&self, client: &reqwest::Client, prepared: Prepared) -> End {
        let Prepared { http, request, timeout, certificate: _ } = prepared;
        let mut seen = Seen::default();
        let asked = tokio::time::timeout(timeout, seen.ask(client, request)).await;
        let (answer, error) = match asked {
            Ok(Ok(answer)) => (answer, None),
            Ok(Err((answer, error))) => (answer, Some(error)),
            Err(_) => {
                let text = format!(
                    "timeout: no whole answer within {}",
                    Millis(timeout.as_millis() as u64)
                );
                (Answer::Timeout, Some(text))
            }
        };
        // Who says that it is gone has said all, however its answer goes on.
        let is_gone =
            seen.status == Some(410) && Answer::Status(410).outcome(&http) == Outcome::Gone;
        let outcome = if is_gone { Outcome::Gone } else { answer.outcome(&http) };
        let mut result = TaskResult::new(outcome);
        result.status = seen.status;
        result.error = match (error, answer) {
            (None, Answer::Status(status)) if outcome == Outcome::Failed => {
                Some(format!("unexpected_status: got {status}, want {}", http.expect))
            }
            _ if is_gone => Some("gone: got 410, so it is not called again".to_owned()),
            (error, _) => error,
        };
        result.retry_after = seen.retry_after.and_then(|text| retry_after(&text, (self.clock)()));
        result.response = Some(seen.body).filter(|body| !body.is_empty());
        End { result, is_away: answer.is_away(&http) }
    }
}

/// What has come of an answer so far.
#[derive(Default)]
struct Seen {
    status: Option<u16>,
    retry_after: Option<HeaderValue>,
    /// Its beginning.
    body: Vec<u8>,
}

impl Seen {
    async fn ask(
        &mut self,
        client: &reqwest::Client,
        request: reqwest::Request,
    ) -> Result<Answer, (Answer, String)> {
        let mut response = client.execute(request).await.map_err(|error| failure(&error))?;
        let status = response.status().as_u16();
        self.status = Some(status);
        self.retry_after = response.headers().get(RETRY_AFTER).cloned();
        if size(response.headers()) > HEADERS_MAX {
            let text = format!("answer_too_large: its headers have more than {HEADERS_MAX} bytes");
            return Err((Answer::Broken, text));
        }
        self.read(&mut response).await?;
        Ok(Answer::Status(status))
    }

    /// Reads the body to its end, and drops all but its beginning.
    async fn read(&mut self, response: &mut Response) -> Result<(), (Answer, String)> {
        let mut length = 0;
        while let Some(bytes) = response.chunk().await.map_err(|error| failure(&error))? {
            length += bytes.len();
            let room = RESPONSE_MAX.saturating_sub(self.body.len()).min(bytes.len());
            self.body.extend_from_slice(&bytes[..room]);
            if length > ANSWER_MAX {
                let text = format!("answer_too_large: its body has more than {ANSWER_MAX} bytes");
                return Err((Answer::Broken, text));
            }
        }
        Ok(())
    }
}

pub(super) fn size(headers: &HeaderMap) -> usize {
    headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum()
}

/// What an error of the client means, and how it is told. Not as the client tells it, which names the whole URL.
fn failure(error: &reqwest::Error) -> (Answer, String) {
    let chain = || std::iter::successors(error.source(), |&cause| cause.source());
    if let Some(denied) = chain().find_map(|cause| cause.downcast_ref::<Denied>()) {
        return (Answer::Broken, format!("address_denied: {denied}"));
    }
    if let Some(unresolved) = chain().find_map(|cause| cause.downcast_ref::<Unresolved>()) {
        return (Answer::Broken, format!("name_unresolved: {unresolved}"));
    }
    let why = chain().last().map_or_else(|| "no reason is known".to_owned(), ToString::to_string);
    if !error.is_connect() {
        return (Answer::Broken, format!("call_broken: {why}"));
    }
    let why = chain().find_map(of_tls).unwrap_or(why);
    // TLS tells its own errors as some other error of a connection.
    let is_of_network = |cause: &(dyn StdError + 'static)| {
        cause.downcast_ref::<io::Error>().is_some_and(|error| error.kind() != io::ErrorKind::Other)
    };
    if error.is_timeout() || chain().any(is_of_network) {
        (Answer::NoConnection, format!("no_connection: {why}"))
    } else {
        (Answer::Broken, unusable(&why))
    }
}

/// The error of a connection that was made and cannot be used. What TLS says in its own words is said before in others.
pub(super) fn unusable(why: &str) -> String {
    const UNKNOWN: [&str; 4] =
        ["issuer certificate", "self-signed", "self signed", "unable to verify the first"];
    let hint = match why {
        why if why.contains("wrong version number") => "no TLS is spoken there: ",
        why if UNKNOWN.iter().any(|word| why.contains(word)) => {
            "the worker does not trust its authority (SSL_CERT_FILE): "
        }
        _ => "",
    };
    format!("connection_failed: {hint}{why}")
}

/// What TLS says: with what is wrong with a certificate, which the innermost error leaves out.
pub(super) fn of_tls(cause: &(dyn StdError + 'static)) -> Option<String> {
    let wrapped = cause.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    let wrapped = wrapped.and_then(|inner| inner.downcast_ref::<native_tls::Error>());
    cause.downcast_ref().or(wrapped).map(native_tls::Error::to_string)
}

/// How long the other side asks to be left alone: a number of seconds, or a date.
fn retry_after(value: &HeaderValue, now: UnixMillis) -> Option<Millis> {
    let text = value.to_str().ok()?.trim();
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        // Digits that make no such number are a long time, as the lane bounds it.
        let seconds = text.parse::<u64>().unwrap_or(u64::MAX);
        return Some(Millis(seconds.saturating_mul(1_000)));
    }
    let date = httpdate::parse_http_date(text).ok()?;
    let at = date.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_millis() as u64;
    Some(Millis(at.saturating_sub(now.0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let now = UnixMillis(784_111_777_000 - 90_000);
        #[rustfmt::skip]
        let cases = [
            ("0",                             Some(0)),
            ("120",                           Some(120_000)),
            (" 7 ",                           Some(7_000)),
            ("18446744073709551615",          Some(u64::MAX)),
            ("18446744073709551616",          Some(u64::MAX)),
            ("99999999999999999999999999999", Some(u64::MAX)),
            ("+7",                            None),
            ("-1",                            None),
            ("1.5",                           None),
            ("soon",                          None),
            ("",                              None),
            ("Sun, 06 Nov 1994 08:49:37 GMT", Some(90_000)),
            ("Sunday, 06-Nov-94 08:49:37 GMT", Some(90_000)),
            ("Sun, 06 Nov 1994 08:00:00 GMT", Some(0)),
            ("Sun, 06 Nov 1994 08:49:37 CET", None),
        ];
        for (text, want) in cases {
            let got = retry_after(&HeaderValue::from_static(text), now);
            assert_eq!(got, want.map(Millis), "{text:?}");
        }
    }
}
