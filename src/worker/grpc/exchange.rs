//! One message there and one back, as gRPC frames them.
//!
//! # Invariants
//! 1. Of an answer, no more is held than the longest message that is wanted, and one frame of HTTP/2.
//! 2. An answer that is no gRPC is an error that says what is wrong with it. Only a status makes a [`Reply`].

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use bytes::{Buf as _, Bytes, BytesMut};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::{Method, Request};
use prost::Message as _;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderValue, TE};
use tokio::time::Instant;

use super::super::call::{HEADERS_MAX, size};
use super::connections::Connection;
use super::{Failure, last_cause};
use crate::engine::Millis;
use crate::engine::task::answer::GrpcStatus;

/// What stands before a message: whether it is compressed, and its length.
const PREFIX: usize = 5;
/// The type of a detail of a status, which says when to call again.
const RETRY_INFO: &str = "/google.rpc.RetryInfo";

/// A request had to wait until it was too late, as the other side takes only so many at once.
#[derive(Debug, thiserror::Error)]
#[error("it would be sent too late")]
pub(super) struct TooLate;

/// How far the request of a call is. The other side takes only so many at once, so one may have to wait for its place.
#[derive(Debug)]
pub(super) struct Sending {
    /// It is not to be sent later.
    by: Instant,
    at: AtomicU8,
}

impl Sending {
    const WAITS: u8 = 1;
    const SENT: u8 = 2;
    const TOO_LATE: u8 = 3;

    pub(super) fn new(by: Instant) -> Self {
        Self { by, at: AtomicU8::default() }
    }

    /// Nobody waits for an answer any more. Whether the request only waited for its place; then it is not sent any more, even if it
    /// is given its place at this moment.
    pub(super) fn give_up(&self) -> bool {
        self.goes_from_waiting_to(Self::TOO_LATE) || self.is_too_late()
    }

    fn is_too_late(&self) -> bool {
        self.at.load(Ordering::Relaxed) == Self::TOO_LATE
    }

    /// Whether it may be sent now.
    fn begin(&self) -> Result<(), TooLate> {
        let next = if Instant::now() > self.by { Self::TOO_LATE } else { Self::SENT };
        let may = self.goes_from_waiting_to(next) && next == Self::SENT;
        if may { Ok(()) } else { Err(TooLate) }
    }

    /// The connection and who waits for the answer are different tasks: only one of them decides.
    fn goes_from_waiting_to(&self, next: u8) -> bool {
        let order = Ordering::Relaxed;
        self.at.compare_exchange(Self::WAITS, next, order, order).is_ok()
    }
}

/// The body of a request: one message.
pub(super) struct Message {
    prefix: Option<Bytes>,
    message: Option<Bytes>,
    sending: Option<Arc<Sending>>,
}

impl Message {
    fn new(message: Bytes, sending: Option<Arc<Sending>>) -> Self {
        let mut prefix = [0; PREFIX];
        // A body has 1 MiB at most.
        prefix[1..].copy_from_slice(&(message.len() as u32).to_be_bytes());
        Self {
            prefix: Some(Bytes::copy_from_slice(&prefix)),
            message: Some(message).filter(|bytes| !bytes.is_empty()),
            sending,
        }
    }
}

impl Body for Message {
    type Data = Bytes;
    type Error = TooLate;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, TooLate>>> {
        if let Some(sending) = self.sending.take()
            && let Err(late) = sending.begin()
        {
            return Poll::Ready(Some(Err(late)));
        }
        let next = self.prefix.take().or_else(|| self.message.take());
        Poll::Ready(next.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.prefix.is_none() && self.message.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        let left =
            [&self.prefix, &self.message].into_iter().flatten().map(Bytes::len).sum::<usize>();
        SizeHint::with_exact(left as u64)
    }
}

/// What the other side answered.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) status: GrpcStatus,
    /// What it says for people.
    pub(super) text: String,
    /// The message; there is one where the status is OK.
    pub(super) message: Option<Bytes>,
    /// Present: the call may be made again, after this time if it names one.
    pub(super) retry_info: Option<Option<Duration>>,
    /// How long the other side asks to be left alone, in a header.
    pushback: Option<Millis>,
}

impl Reply {
    /// How long the other side asks to be left alone.
    pub(super) fn retry_after(&self) -> Option<Millis> {
        let of_info = || {
            let delay = self.retry_info??;
            Some(Millis(u64::try_from(delay.as_millis()).unwrap_or(u64::MAX)))
        };
        self.pushback.or_else(of_info)
    }

    fn of(headers: &HeaderMap, message: Option<Bytes>) -> Option<Self> {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let status = headers.get("grpc-status")?;
        // What is no number is no status that anybody knows.
        let status = status.to_str().ok().and_then(|code| code.parse().ok()).unwrap_or(-1);
        let retry_info =
            headers.get("grpc-status-details-bin").and_then(|value| retry_info(value.as_bytes()));
        // A negative number says "never"; that is for the task's own policy to say.
        let pushback = text("grpc-retry-pushback-ms").and_then(|ms| ms.parse().ok()).map(Millis);
        Some(Self {
            status: GrpcStatus::of_code(status),
            text: percent_decoded(headers.get("grpc-message").map_or(b"", HeaderValue::as_bytes)),
            message,
            retry_info,
            pushback,
        })
    }
}

impl Connection {
    /// Sends one message and waits for what is answered. `max`: bytes of the message that comes back. `sending`: that of a call,
    /// which may be too late.
    pub(super) async fn exchange(
        &self,
        path: &str,
        mut headers: HeaderMap,
        message: Bytes,
        sending: Option<&Arc<Sending>>,
        max: usize,
    ) -> Result<Reply, Failure> {
        if let Some(sending) = sending {
            sending.at.store(Sending::WAITS, Ordering::Relaxed);
        }
        let message = Message::new(message, sending.cloned());
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert(TE, HeaderValue::from_static("trailers"));
        let request = Request::builder()
            .method(Method::POST)
            .uri(format!("{}{path}", self.base))
            .body(message);
        let mut request = request.map_err(|error| Failure::broken(format!("bad_task: {error}")))?;
        *request.headers_mut() = headers;
        let sent = self.sender.clone().try_send_request(request).await;
        let response = sent.map_err(|error| {
            if sending.is_some_and(|of| of.is_too_late()) {
                return Failure::Late;
            }
            let why = format!("call_broken: {}", last_cause(error.error()));
            match error.message() {
                Some(_) => Failure::NotSent(why),
                None => Failure::broken(why),
            }
        })?;
        let (head, mut body) = response.into_parts();
        is_small(&head.headers)?;
        if let Some(reply) = Reply::of(&head.headers, None) {
            return with_message(reply);
        }
        let is_grpc = head.headers.get(CONTENT_TYPE).is_some_and(|value| {
            value.as_bytes().get(..16).is_some_and(|of| of == b"application/grpc")
        });
        if head.status.as_u16() != 200 {
            let text = format!("HTTP status {}", head.status.as_u16());
            let status = GrpcStatus::of_http(head.status.as_u16());
            return Ok(Reply { status, text, message: None, retry_info: None, pushback: None });
        }
        if !is_grpc {
            return Err(Failure::broken(
                "call_broken: the answer is no gRPC: its content-type is not application/grpc",
            ));
        }
        let (message, trailers) = read(&mut body, max).await?;
        let reply = trailers.as_ref().and_then(|trailers| Reply::of(trailers, message));
        let reply = reply
            .ok_or_else(|| Failure::broken("call_broken: the answer ends without a grpc-status"))?;
        with_message(reply)
    }
}

/// A call that was done has an answer.
fn with_message(reply: Reply) -> Result<Reply, Failure> {
    if reply.status == GrpcStatus::OK && reply.message.is_none() {
        return Err(Failure::broken("call_broken: the status is OK, and there is no message"));
    }
    Ok(reply)
}

fn is_small(headers: &HeaderMap) -> Result<(), Failure> {
    if size(headers) > HEADERS_MAX {
        let text = format!("answer_too_large: its headers have more than {HEADERS_MAX} bytes");
        return Err(Failure::broken(text));
    }
    Ok(())
}

/// Reads the body of an answer: at most one message, and the trailers.
async fn read(
    body: &mut Incoming,
    max: usize,
) -> Result<(Option<Bytes>, Option<HeaderMap>), Failure> {
    let (mut held, mut message) = (BytesMut::new(), None);
    while let Some(frame) = poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await {
        let frame = frame
            .map_err(|error| Failure::broken(format!("call_broken: {}", last_cause(&error))))?;
        let frame = match frame.into_data() {
            Ok(bytes) => {
                held.extend_from_slice(&bytes);
                take(&mut held, &mut message, max)?;
                continue;
            }
            Err(frame) => frame,
        };
        if let Ok(trailers) = frame.into_trailers() {
            is_small(&trailers)?;
            is_whole(&held)?;
            return Ok((message, Some(trailers)));
        }
    }
    is_whole(&held)?;
    Ok((message, None))
}

/// Takes the messages that are whole.
fn take(held: &mut BytesMut, message: &mut Option<Bytes>, max: usize) -> Result<(), Failure> {
    while let Some(prefix) = held.first_chunk::<PREFIX>() {
        let [is_compressed, length @ ..] = *prefix;
        let length = u32::from_be_bytes(length) as usize;
        if is_compressed != 0 {
            return Err(Failure::broken(
                "call_broken: the message of the answer is compressed, which nobody asked for",
            ));
        }
        if length > max {
            let text =
                format!("answer_too_large: its message has {length} bytes; want {max} at most");
            return Err(Failure::broken(text));
        }
        if message.is_some() {
            return Err(Failure::broken(
                "call_broken: the answer has more than one message; is it a stream?",
            ));
        }
        if held.len() < PREFIX + length {
            return Ok(());
        }
        held.advance(PREFIX);
        *message = Some(held.split_to(length).freeze());
    }
    Ok(())
}

fn is_whole(held: &BytesMut) -> Result<(), Failure> {
    if held.is_empty() {
        return Ok(());
    }
    Err(Failure::broken("call_broken: the answer ends within a message"))
}

/// A text as gRPC sends it in a header. What is wrong in it is kept as it is.
fn percent_decoded(text: &[u8]) -> String {
    let digit = |at: usize| text.get(at).and_then(|byte| char::from(*byte).to_digit(16));
    let mut decoded = Vec::with_capacity(text.len());
    let mut at = 0;
    while let Some(byte) = text.get(at) {
        match (byte, digit(at + 1), digit(at + 2)) {
            (b'%', Some(high), Some(low)) => {
                // Two digits make one byte.
                decoded.push((high * 16 + low) as u8);
                at += 3;
            }
            _ => {
                decoded.push(*byte);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

/// When the details of a status say that the call may be made again. Details that cannot be read say nothing.
fn retry_info(base64: &[u8]) -> Option<Option<Duration>> {
    let end = base64.iter().rposition(|byte| *byte != b'=').map_or(0, |at| at + 1);
    let bytes = STANDARD_NO_PAD.decode(&base64[..end]).ok()?;
    let status = tonic_types::pb::Status::decode(&bytes[..]).ok()?;
    let detail = status.details.iter().find(|detail| detail.type_url.ends_with(RETRY_INFO))?;
    let info = tonic_types::pb::RetryInfo::decode(&detail.value[..]).ok()?;
    Some(info.retry_delay.and_then(|delay| Duration::try_from(delay).ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let pairs = pairs.iter().map(|(name, value)| {
            (name.parse().expect("a name"), HeaderValue::try_from(*value).expect("a value"))
        });
        pairs.collect()
    }

    #[test]
    fn a_request_is_sent_or_given_up_and_never_both() {
        let waiting = |by| {
            let sending = Sending::new(by);
            sending.at.store(Sending::WAITS, Ordering::Relaxed);
            sending
        };
        let later = Instant::now() + Duration::from_secs(60);
        let given_up = waiting(later);
        assert!(given_up.give_up());
        assert!(given_up.begin().is_err(), "it is given its place too late");
        let sent = waiting(later);
        assert!(sent.begin().is_ok());
        assert!(!sent.give_up(), "it was sent");
        let late = waiting(Instant::now().checked_sub(Duration::from_millis(1)).expect("a time"));
        assert!(late.begin().is_err());
        assert!(late.give_up() && late.is_too_late());
        assert!(!Sending::new(later).give_up(), "no connection was there yet");
    }

    #[test]
    fn a_status_is_read_whatever_stands_in_its_headers() {
        let of = |pairs: &[(&'static str, &str)]| Reply::of(&headers(pairs), None);
        assert!(of(&[("grpc-message", "lost")]).is_none());
        let reply =
            of(&[("grpc-status", "5"), ("grpc-message", "no %C3%A4 %zz %4")]).expect("a status");
        assert_eq!((reply.status.name(), reply.text.as_str()), ("NOT_FOUND", "no ä %zz %4"));
        for code in ["", "x", "99", "-1", "5 "] {
            let reply = of(&[("grpc-status", code)]).expect("a status");
            assert_eq!(reply.status, GrpcStatus::UNKNOWN, "{code:?}");
        }
        // Made with Python, not with this code: 14, "later", and a RetryInfo of 1.5 s.
        let details = "CA4SBWxhdGVyGjYKKHR5cGUuZ29vZ2xlYXBpcy5jb20vZ29vZ2xlLnJwYy5SZXRyeUluZm8SCgoICAEQgMq17gE";
        let want = Some(Some(Duration::from_millis(1_500)));
        for (details, want) in [
            (details, want),
            (&details[..details.len() - 4], None),
            ("", None),
            ("????", None),
            ("CA4=", None),
        ] {
            let reply = of(&[("grpc-status", "14"), ("grpc-status-details-bin", details)]);
            assert_eq!(reply.expect("a status").retry_info, want, "{details}");
        }
    }

    #[test]
    fn who_asks_to_be_left_alone_says_so_in_a_header_or_in_a_detail() {
        let status = tonic_types::pb::Status {
            code: 14,
            message: String::new(),
            details: vec![prost_types::Any {
                type_url: "type.googleapis.com/google.rpc.RetryInfo".to_owned(),
                value: tonic_types::pb::RetryInfo {
                    retry_delay: Some(prost_types::Duration { seconds: 1, nanos: 500_000_000 }),
                }
                .encode_to_vec(),
            }],
        };
        let bare = STANDARD_NO_PAD.encode(status.encode_to_vec());
        let after = |pairs: &[(&'static str, &str)]| {
            let reply = Reply::of(&headers(pairs), None).expect("a status");
            (reply.retry_info.is_some(), reply.retry_after())
        };
        let (status, details) = (("grpc-status", "14"), "grpc-status-details-bin");
        let pushback = "grpc-retry-pushback-ms";
        assert_eq!(after(&[status]), (false, None));
        let want = (true, Some(Millis(1_500)));
        assert_eq!(after(&[status, (details, &bare)]), want);
        assert_eq!(after(&[status, (details, &format!("{bare}="))]), want);
        assert_eq!(after(&[status, (pushback, "700")]), (false, Some(Millis(700))));
        let both = after(&[status, (details, &bare), (pushback, "700")]);
        assert_eq!(both, (true, Some(Millis(700))));
        for none in ["-1", "soon", ""] {
            assert_eq!(after(&[status, (pushback, none)]), (false, None), "{none:?}");
        }
    }
}
