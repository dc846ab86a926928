//! The body of an answer over HTTP/2, where a client takes many answers on one connection.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::gate::Held;

/// Bytes that are handed over at once: only as much as the client has room for.
const PART_BYTES: usize = 16 << 10;

/// An answer that may go on for as long as the connection does, such as a watch. It says this in its extensions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Endless;

/// See the module. It is handed over in small parts, so that all of it is here no longer than until the client has room for the
/// last one.
pub(super) struct Answer<E: Ending> {
    body: Body,
    rest: Bytes,
    ending: Option<E>,
    /// Permits that are given back with the last part.
    _held: Held,
    /// Cuts the connection of a client that does not take it.
    timer: Option<JoinHandle<()>>,
}

/// What is told when the last part of an answer is handed over, and will be written. One that is dropped before was given up by
/// its client.
pub(super) trait Ending: Send + Unpin + 'static {
    /// See the trait.
    fn handed_over(self);
}

impl<E: Ending> Answer<E> {
    /// `most`: how long the client may take for it, and what is told otherwise; `None`: for ever.
    pub(super) fn new(
        body: Body,
        ending: E,
        held: Held,
        most: Option<(Duration, Arc<Notify>)>,
    ) -> Self {
        let timer = most.map(|(most, cut)| {
            tokio::spawn(async move {
                tokio::time::sleep(most).await;
                cut.notify_one();
            })
        });
        Self { body, rest: Bytes::new(), ending: Some(ending), _held: held, timer }
    }

    /// The next part of what is there.
    fn part(&mut self) -> Frame<Bytes> {
        let part = self.rest.split_to(self.rest.len().min(PART_BYTES));
        if self.is_end_stream() {
            self.end();
        }
        Frame::data(part)
    }

    fn end(&mut self) {
        if let Some(ending) = self.ending.take() {
            ending.handed_over();
        }
    }
}

impl<E: Ending> HttpBody for Answer<E> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if !self.rest.is_empty() {
            return Poll::Ready(Some(Ok(self.part())));
        }
        let next = ready!(Pin::new(&mut self.body).poll_frame(context));
        Poll::Ready(match next {
            Some(Ok(frame)) => Some(Ok(match frame.into_data() {
                Ok(data) => {
                    self.rest = data;
                    self.part()
                }
                // Trailers, behind which there is nothing.
                Err(trailers) => {
                    self.end();
                    trailers
                }
            })),
            other => {
                self.end();
                other
            }
        })
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        match (self.rest.len() as u64, self.body.size_hint().exact()) {
            (rest, Some(behind)) => SizeHint::with_exact(rest + behind),
            _ => SizeHint::new(),
        }
    }
}

impl<E: Ending> Drop for Answer<E> {
    fn drop(&mut self) {
        if let Some(timer) = self.timer.take() {
            timer.abort();
        }
    }
}
