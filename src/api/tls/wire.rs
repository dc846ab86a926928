//! A connection with TLS or without, and how one with TLS begins.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::http::StatusCode;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::TcpStream;
use tokio_openssl::SslStream;

use super::super::auth::Shown;
use super::super::problem::{self, Problem};
use super::Tls;
use crate::telemetry;

/// The first byte of TLS: a record of the handshake.
const HANDSHAKE: u8 = 22;
/// What is read of a plain request, so that its answer is not lost with it.
const PLAIN_BYTES_MAX: usize = 16 << 10;

/// What a client is told that speaks without TLS. One of HTTP/2 cannot read it, and sees the connection close.
fn to_plain() -> String {
    let detail = "this address takes TLS only: ask it by https";
    let body = Problem::new(StatusCode::BAD_REQUEST, "tls_only", detail).as_json().to_string();
    format!(
        "HTTP/1.1 400 Bad Request\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        problem::CONTENT_TYPE,
        body.len()
    )
}

/// A connection with TLS, or without.
pub(in crate::api) enum Wire {
    Plain(TcpStream),
    Tls(SslStream<TcpStream>),
}

impl Tls {
    /// Shakes hands with a client; and who it has shown that it is.
    ///
    /// # Errors
    /// It has not begun TLS, has no certificate that is taken, or has gone.
    pub(in crate::api) async fn accept(
        &self,
        mut stream: TcpStream,
    ) -> io::Result<(Wire, Option<Shown>)> {
        let mut first = [0];
        if stream.peek(&mut first).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let refuse = |error| {
            telemetry::api_refused("tls");
            error
        };
        if first != [HANDSHAKE] {
            let _ = stream.try_read(&mut [0; PLAIN_BYTES_MAX]);
            stream.write_all(to_plain().as_bytes()).await?;
            stream.shutdown().await?;
            return Err(refuse(io::Error::other("the client does not speak TLS")));
        }
        let mut stream = SslStream::new(self.begin()?, stream)?;
        Pin::new(&mut stream).accept().await.map_err(io::Error::other).map_err(refuse)?;
        // A certificate that does not hold has ended the handshake.
        let shown = stream.ssl().peer_certificate().map(|of| Shown::of(&of));
        Ok((Wire::Tls(stream), shown))
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(context, into),
            Self::Tls(stream) => Pin::new(stream).poll_read(context, into),
        }
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(context, parts),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(context, parts),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(context),
            Self::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_speaks_without_tls_is_told_so_as_of_any_error() {
        let answer = to_plain();
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        assert!(head.contains(&format!("Content-Length: {}", body.len())), "{head}");
        let problem: serde_json::Value = serde_json::from_str(body).expect("JSON");
        assert_eq!(problem["code"], "tls_only");
        assert!(
            problem["detail"].as_str().is_some_and(|detail| detail.contains("https")),
            "{body}"
        );
    }
}
