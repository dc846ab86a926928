//! A connection whose client has to read the response that it asked for, and that says which HTTP it speaks.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

use super::tls::Wire;

/// How a client begins that speaks HTTP/2 without being asked (RFC 9113, 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// See the module. The writer flushes when all of an answer was written, and not before.
pub(super) struct Stream {
    stream: Wire,
    /// What was read already.
    first: Bytes,
    most: Duration,
    /// When what waits to be written has waited for too long.
    late: Option<Pin<Box<Sleep>>>,
    /// Called when all is written.
    written: Box<dyn Fn() + Send>,
}

impl Stream {
    pub(super) fn new(stream: Wire, most: Duration, written: impl Fn() + Send + 'static) -> Self {
        Self { stream, first: Bytes::new(), most, late: None, written: Box::new(written) }
    }

    /// Reads until it is known whether the client speaks HTTP/2.
    ///
    /// # Errors
    /// As the connection has it. Its end is none: who reads on finds it.
    pub(super) async fn speaks_http2(&mut self) -> io::Result<bool> {
        let (mut begin, mut read) = ([0; PREFACE.len()], 0);
        while read < begin.len() && PREFACE.starts_with(&begin[..read]) {
            match self.stream.read(&mut begin[read..]).await? {
                0 => break,
                more => read += more,
            }
        }
        self.first = Bytes::copy_from_slice(&begin[..read]);
        Ok(begin[..read] == *PREFACE)
    }

    fn write<T>(
        &mut self,
        context: &mut Context<'_>,
        write: impl FnOnce(Pin<&mut Wire>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        let written = write(Pin::new(&mut self.stream), context);
        // From the first byte that is not taken until all of the answer is: a client that takes little by little is slow, too.
        if written.is_pending() || self.late.is_some() {
            let late = self.late.get_or_insert_with(|| Box::pin(sleep(self.most)));
            if late.as_mut().poll(context).is_ready() {
                let slow = "the client does not take its answer";
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, slow)));
            }
        }
        written
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.first.is_empty() {
            let most = into.remaining().min(self.first.len());
            into.put_slice(&self.first.split_to(most));
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_read(context, into)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.write(context, |stream, context| stream.poll_write(context, bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.write(context, |stream, context| stream.poll_write_vectored(context, parts))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_flush(context))?;
        self.late = None;
        (self.written)();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // TLS says that it ends, which the client has to take, too.
        self.write(context, |stream, context| stream.poll_shutdown(context))
    }
}
