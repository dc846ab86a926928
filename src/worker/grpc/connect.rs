//! Makes connections for calls over gRPC.
//!
//! # Invariants
//! 1. A connection goes to an address that the guard has seen in this very attempt, or to the operator's proxy.
//! 2. It is there within [`CONNECT`], or it is none.
//! 3. With TLS, the certificate is verified, and both sides have agreed on HTTP/2.

use std::error::Error as StdError;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use native_tls::{Protocol, TlsConnector};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::spawn_blocking;
use url::{Host, Position, Url};

use super::super::clients::CONNECT;
use super::super::resolver::Resolver;
use super::Failure;
use super::request::Target;
use crate::engine::task::answer::GrpcAnswer;

/// Most bytes of what a proxy says before it connects.
const PROXY_HEAD_MAX: usize = 8 << 10;

pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

type AnyError = Box<dyn StdError + Send + Sync>;

pub(super) struct Connector {
    resolver: Arc<Resolver>,
    proxy: Option<Url>,
    /// Shows no client certificate.
    plain: TlsConnector,
}

impl Connector {
    pub(super) fn new(
        resolver: Arc<Resolver>,
        proxy: Option<Url>,
    ) -> Result<Self, native_tls::Error> {
        Ok(Self { resolver, proxy, plain: tls(None)? })
    }

    pub(super) async fn connect(&self, target: &Target) -> Result<Box<dyn Stream>, Failure> {
        match tokio::time::timeout(CONNECT, self.open(target)).await {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(error)) => Err(Failure::of_connecting(error.as_ref())),
            Err(_) => {
                let text = format!("no_connection: none within {} s", CONNECT.as_secs());
                Err(Failure::Broken(GrpcAnswer::NoConnection, text))
            }
        }
    }

    async fn open(&self, target: &Target) -> Result<Box<dyn Stream>, AnyError> {
        let stream: Box<dyn Stream> = match &self.proxy {
            // It looks names up by itself; whom it may be asked for is checked by the list of hosts.
            Some(proxy) => self.through(proxy, &target.url).await?,
            None => {
                let addresses = self.addresses(&target.url).await?;
                Box::new(tcp(&addresses[..]).await?)
            }
        };
        if target.url.scheme() != "https" {
            return Ok(stream);
        }
        let connector = match &target.certificate {
            None => self.plain.clone(),
            Some((_, identity)) => {
                let identity = identity.clone();
                // It reads the authorities of the system, which takes some milliseconds.
                spawn_blocking(|| tls(Some(identity))).await??
            }
        };
        let stream = secure(connector, &target.url, stream).await?;
        if stream.get_ref().negotiated_alpn()?.as_deref() != Some(b"h2") {
            return Err("the other side does not agree on HTTP/2 in TLS (ALPN h2)".into());
        }
        Ok(Box::new(stream))
    }

    /// The addresses of a host, all of them checked.
    async fn addresses(&self, url: &Url) -> Result<Vec<SocketAddr>, AnyError> {
        let port = url.port_or_known_default().unwrap_or_default();
        let found: Vec<IpAddr> = match url.host() {
            Some(Host::Domain(name)) => self.resolver.checked(name.to_owned()).await?,
            Some(Host::Ipv4(ip)) => self.resolver.literal(url, ip.into())?,
            Some(Host::Ipv6(ip)) => self.resolver.literal(url, ip.into())?,
            None => return Err("the address has no host".into()),
        };
        Ok(found.into_iter().map(|ip| SocketAddr::new(ip, port)).collect())
    }

    /// A tunnel through a proxy of HTTP.
    async fn through(&self, proxy: &Url, to: &Url) -> Result<Box<dyn Stream>, AnyError> {
        let host = proxy.host_str().unwrap_or_default().trim_matches(['[', ']']);
        let port = proxy.port_or_known_default().unwrap_or_default();
        let stream = tcp((host, port)).await?;
        let mut stream: Box<dyn Stream> = match proxy.scheme() {
            "https" => {
                let bare = TlsConnector::builder().build()?;
                Box::new(secure(bare, proxy, Box::new(stream)).await?)
            }
            _ => Box::new(stream),
        };
        let host = &to[Position::BeforeHost..Position::AfterHost];
        let port = to.port_or_known_default().unwrap_or_default();
        let ask = format!("CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n");
        stream.write_all(ask.as_bytes()).await?;
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            // Nothing of what follows may be taken: it is the target's.
            head.push(stream.read_u8().await?);
            if head.len() > PROXY_HEAD_MAX {
                return Err("the proxy answers with too many headers".into());
            }
        }
        let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
        let status = line.split(|byte| *byte == b' ').nth(1).unwrap_or_default();
        if line.starts_with(b"HTTP/1.") && status.starts_with(b"2") {
            Ok(stream)
        } else {
            let line = String::from_utf8_lossy(line);
            Err(format!("the proxy does not connect: {line}").into())
        }
    }
}

async fn tcp(to: impl tokio::net::ToSocketAddrs) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(to).await?;
    // Messages are small, and each one is waited for.
    stream.set_nodelay(true)?;
    Ok(stream)
}

fn tls(identity: Option<native_tls::Identity>) -> Result<TlsConnector, native_tls::Error> {
    let mut builder = TlsConnector::builder();
    builder.request_alpns(&["h2"]).min_protocol_version(Some(Protocol::Tlsv12));
    if let Some(identity) = identity {
        builder.identity(identity);
    }
    builder.build()
}

async fn secure(
    connector: TlsConnector,
    to: &Url,
    stream: Box<dyn Stream>,
) -> Result<tokio_native_tls::TlsStream<Box<dyn Stream>>, native_tls::Error> {
    let name = to.host_str().unwrap_or_default().trim_matches(['[', ']']);
    tokio_native_tls::TlsConnector::from(connector).connect(name, stream).await
}
