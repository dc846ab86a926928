//! Makes calls over gRPC: one message there and one back, over HTTP/2.
//!
//! # Invariants
//! 1. A call ends within its time, whatever the other side does. That time is for all of it: the name, the connection, TLS, and what
//!    the target is asked of its methods.
//! 2. A call that is late when it would be sent is not sent, also where it had to wait for a place on its connection.
//! 3. A connection on which a call broke or ran out of time serves no later call. Calls that are open on it go on.

mod connect;
mod connections;
mod exchange;
mod reflection;
pub(super) mod request;

use std::error::Error as StdError;
use std::io;
use std::sync::Arc;

use reqwest::header::HeaderValue;
use tokio::time::Instant;
use url::Url;

use super::call::{self, ANSWER_MAX, End};
use super::guard::Denied;
use super::request::Refused;
use super::resolver::{Resolver, Unresolved};
use crate::engine::task::answer::{GrpcAnswer, GrpcStatus};
use crate::engine::task::result::{Outcome, RESPONSE_MAX, TaskResult};
use crate::engine::task::spec::BodyFormat;
use crate::engine::{Millis, UnixMillis};
use connect::Connector;
use connections::{Connection, Connections};
use exchange::{Reply, Sending};
use reflection::Descriptors;
use request::Prepared;

/// What all calls over gRPC share.
pub(super) struct Client {
    connections: Connections,
    descriptors: Descriptors,
}

/// How a call ended without a status of the method.
#[derive(Clone, Debug)]
enum Failure {
    /// It would have been sent too late.
    Late,
    /// Nothing of it was sent: the connection was going.
    NotSent(String),
    /// It is not to be called.
    Refused(Refused),
    /// Anything else, and what is said of it.
    Broken(GrpcAnswer, String),
}

impl Failure {
    fn broken(error: impl Into<String>) -> Self {
        Self::Broken(GrpcAnswer::Broken, error.into())
    }

    /// What an error means that came while a connection was made.
    fn of_connecting(error: &(dyn StdError + 'static)) -> Self {
        let chain = || std::iter::successors(Some(error), |&cause| cause.source());
        if let Some(denied) = chain().find_map(|cause| cause.downcast_ref::<Denied>()) {
            return Self::broken(format!("address_denied: {denied}"));
        }
        if let Some(unresolved) = chain().find_map(|cause| cause.downcast_ref::<Unresolved>()) {
            return Self::broken(format!("name_unresolved: {unresolved}"));
        }
        let why = chain().find_map(call::of_tls).unwrap_or_else(|| last_cause(error));
        // TLS tells its own errors as some other error of a connection.
        let is_of_network = chain().any(|cause| {
            cause
                .downcast_ref::<io::Error>()
                .is_some_and(|error| error.kind() != io::ErrorKind::Other)
        });
        if is_of_network {
            return Self::Broken(GrpcAnswer::NoConnection, format!("no_connection: {why}"));
        }
        Self::broken(call::unusable(&why))
    }
}

/// What the innermost error says.
fn last_cause(error: &(dyn StdError + 'static)) -> String {
    let chain = std::iter::successors(Some(error), |&cause| cause.source());
    chain.last().map_or_else(|| "no reason is known".to_owned(), ToString::to_string)
}

/// What came back, and the same as JSON if the task speaks that.
struct Answered {
    reply: Reply,
    as_json: Option<Vec<u8>>,
}

impl Client {
    pub(super) fn new(
        resolver: Arc<Resolver>,
        proxy: Option<Url>,
    ) -> Result<Self, native_tls::Error> {
        let connector = Connector::new(resolver, proxy)?;
        Ok(Self { connections: Connections::new(connector), descriptors: Descriptors::default() })
    }

    /// Makes the call, or none if it is later than `by` when it would be sent. `now`: what a deferred one waits for.
    pub(super) async fn make(&self, prepared: &Prepared, by: Instant, now: UnixMillis) -> End {
        let mut used = None;
        let until = Instant::now() + prepared.timeout;
        let sending = Arc::new(Sending::new(by));
        let asked = self.ask(prepared, (by, until), &sending, &mut used);
        let asked = tokio::time::timeout_at(until, asked).await;
        let failure = match asked {
            Ok(Ok(answered)) => return ended(prepared, answered),
            Ok(Err(failure)) => failure,
            // The other side has not taken it: that is no attempt.
            Err(_) if sending.give_up() => Failure::Late,
            Err(_) => {
                let most = Millis(prepared.timeout.as_millis() as u64);
                let text = format!("timeout: no whole answer within {most}");
                Failure::Broken(GrpcAnswer::Timeout, text)
            }
        };
        let (answer, error) = match failure {
            Failure::Late => {
                let mut result = TaskResult::new(Outcome::Deferred);
                result.until = Some(now);
                return End { result, is_away: false };
            }
            Failure::Refused(Refused { code, detail }) => {
                (GrpcAnswer::Broken, format!("{code}: {detail}"))
            }
            Failure::NotSent(error) => (GrpcAnswer::Broken, error),
            Failure::Broken(answer, error) => (answer, error),
        };
        if let Some(used) = &used {
            self.connections.forget(&prepared.target, used);
        }
        let mut result = TaskResult::new(answer.outcome(&prepared.grpc));
        result.error = Some(error);
        End { result, is_away: answer.is_away(&prepared.grpc) }
    }

    async fn ask(
        &self,
        prepared: &Prepared,
        times: (Instant, Instant),
        sending: &Arc<Sending>,
        used: &mut Option<Arc<Connection>>,
    ) -> Result<Answered, Failure> {
        // A connection may go just when it is to be used: of what was not sent another one can be asked, once.
        match self.ask_once(prepared, times, sending, used).await {
            Err(Failure::NotSent(_)) => {
                if let Some(gone) = used.take() {
                    self.connections.forget(&prepared.target, &gone);
                }
                self.ask_once(prepared, times, sending, used).await
            }
            answered => answered,
        }
    }

    async fn ask_once(
        &self,
        prepared: &Prepared,
        (by, until): (Instant, Instant),
        sending: &Arc<Sending>,
        used: &mut Option<Arc<Connection>>,
    ) -> Result<Answered, Failure> {
        if Instant::now() > by {
            return Err(Failure::Late);
        }
        let connection = self.connections.to(&prepared.target).await?;
        *used = Some(Arc::clone(&connection));
        let (body, method) = match prepared.grpc.format {
            BodyFormat::Protobuf => (prepared.body.clone(), None),
            BodyFormat::Json => {
                let (body, method) = self.descriptors.encode(&connection, prepared).await?;
                (body, Some(method))
            }
        };
        let mut headers = prepared.headers.clone();
        if let Some(signer) = &prepared.signer {
            let signature = signer.signature(&body).map_err(Failure::Refused)?;
            headers.insert("webhook-signature", signature);
        }
        let now = Instant::now();
        if now > by {
            return Err(Failure::Late);
        }
        // At most 300,000: gRPC allows eight digits.
        let left = (until - now).as_millis().max(1);
        let left = HeaderValue::try_from(format!("{left}m"))
            .map_err(|error| Failure::broken(format!("internal: {error}")))?;
        headers.insert("grpc-timeout", left);
        let path = prepared.grpc.path();
        let reply = connection.exchange(&path, headers, body, Some(sending), ANSWER_MAX).await?;
        connection.touch();
        if reply.status == GrpcStatus::UNIMPLEMENTED && method.is_some() {
            self.descriptors.forget(prepared);
        }
        let as_json = method.zip(reply.message.as_ref());
        let as_json = as_json.and_then(|(method, bytes)| reflection::to_json(&method, bytes));
        Ok(Answered { reply, as_json })
    }
}

/// What the answer means for the task.
fn ended(prepared: &Prepared, answered: Answered) -> End {
    let Answered { reply, as_json } = answered;
    let answer =
        GrpcAnswer::Status { status: reply.status, has_retry_info: reply.retry_info.is_some() };
    let outcome = answer.outcome(&prepared.grpc);
    let mut result = TaskResult::new(outcome);
    result.status = Some(reply.status.code().into());
    if outcome == Outcome::Failed {
        let detail = if reply.text.is_empty() { "no message" } else { &reply.text };
        let name = reply.status.name();
        result.error = Some(format!("grpc_status: {name} ({}): {detail}", reply.status.code()));
    }
    result.retry_after = reply.retry_after();
    let response = as_json.or_else(|| reply.message.map(|bytes| bytes.to_vec()));
    result.response = response.filter(|bytes| !bytes.is_empty()).map(|mut bytes| {
        bytes.truncate(RESPONSE_MAX);
        bytes
    });
    End { result, is_away: answer.is_away(&prepared.grpc) }
}
