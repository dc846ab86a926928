//! Two futures, and which one was ready first.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

pub(super) enum First<A, B> {
    One(A),
    Other(B),
}

/// Drops the one that was not ready. The first one is asked first.
pub(super) async fn first<A: Future, B: Future>(one: A, other: B) -> First<A::Output, B::Output> {
    let (mut one, mut other) = (pin!(one), pin!(other));
    poll_fn(|context| match one.as_mut().poll(context) {
        Poll::Ready(of) => Poll::Ready(First::One(of)),
        Poll::Pending => other.as_mut().poll(context).map(First::Other),
    })
    .await
}
