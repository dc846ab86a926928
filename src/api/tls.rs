//! TLS: what the listener shows and whom it takes, and what this instance trusts and shows where it asks others.
//!
//! # Invariants
//! 1. A connection has TLS 1.2 or newer. Its handshake has a bounded time, and nobody waits for that of another.
//! 2. No session is resumed: the certificate of a client is verified with each connection, by the files as they are then.
//! 3. Files that cannot be used change nothing: what was read before stays in force. The log says why, and it is counted.
//! 4. No error shows what a file holds.

mod files;
mod wire;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use openssl::ssl::{Ssl, SslContext};
use parking_lot::RwLock;
use tokio::task::spawn_blocking;

use super::timers::Peers;
use crate::client::http;
use crate::telemetry;
use files::{Files, InForce};

pub use files::TlsError;
pub(super) use wire::Wire;

/// How often the files are looked at. What has changed is taken once it was the same twice, so that nothing is taken that is
/// half written.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Where certificates and keys stand, all in PEM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsSettings {
    /// What the listener shows; `None`: it is plain.
    pub listener: Option<ListenerSettings>,
    /// The authorities of instances; `None`: those of the system.
    pub ca: Option<PathBuf>,
    /// The certificate and the key that this side shows where it asks an instance.
    pub client: Option<(PathBuf, PathBuf)>,
}

/// What the listener shows, and whose certificates it takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerSettings {
    /// Its certificate, and then the chain.
    pub certificate: PathBuf,
    /// The key of the certificate.
    pub key: PathBuf,
    /// The authorities of clients; `None`: clients are asked for no certificate.
    pub client_ca: Option<PathBuf>,
    /// Whether a client without a certificate is refused.
    pub is_required: bool,
}

/// TLS on the listener, by the files that were read last.
pub struct Tls(RwLock<SslContext>);

/// Without what it holds.
impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tls(..)")
    }
}

impl Tls {
    /// A connection that has not begun.
    fn begin(&self) -> Result<Ssl, openssl::error::ErrorStack> {
        Ssl::new(&self.0.read())
    }
}

/// All that was read, and follows its files.
pub struct Certificates {
    settings: TlsSettings,
    tls: Option<Arc<Tls>>,
    peers: Peers,
    /// What was taken or refused last.
    tried: Files,
    /// What was there at the last look.
    seen: Files,
}

impl Certificates {
    /// Reads the files. Blocks for as long as the disk takes.
    ///
    /// # Errors
    /// Which file cannot be used, and what is wanted in its place.
    pub fn open(settings: TlsSettings) -> Result<Self, TlsError> {
        let files = Files::read(&settings);
        let InForce { context, client, expires } = files.check()?;
        let peers = Peers::new(&client).map_err(|error| files.unused(error))?;
        let tls = context.map(|context| Arc::new(Tls(RwLock::new(context))));
        note(expires);
        Ok(Self { settings, tls, peers, seen: files.clone(), tried: files })
    }

    /// TLS of the listener; `None`: it is plain.
    #[must_use]
    pub fn listener(&self) -> Option<Arc<Tls>> {
        self.tls.clone()
    }

    /// The connections to other instances.
    #[must_use]
    pub fn peers(&self) -> Peers {
        self.peers.clone()
    }

    /// Says in the log why others would not trust what the listener shows at the address that they are told.
    pub fn warn_if_strange(&self, advertise: &str) {
        if let Err(why) = self.tried.is_trusted_at(advertise) {
            tracing::warn!(
                advertise,
                why,
                "instances and commands that find this instance in Kafka will not trust its certificate"
            );
        }
    }

    /// Looks at the files again and again, and takes what has changed.
    pub async fn follow(mut self) {
        if self.settings == TlsSettings::default() {
            return std::future::pending().await;
        }
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let looked = spawn_blocking(move || {
                self.look();
                self
            });
            match looked.await {
                Ok(same) => self = same,
                // It was stopped.
                Err(_) => return std::future::pending().await,
            }
        }
    }

    pub(in crate::api) fn look(&mut self) {
        let now = Files::read(&self.settings);
        let is_still = now == self.seen;
        self.seen = now;
        if !is_still || self.seen == self.tried {
            return;
        }
        self.tried = self.seen.clone();
        let checked = self.tried.check().and_then(|of| {
            self.peers.set(&of.client).map_err(|error| self.tried.unused(error))?;
            Ok(of)
        });
        match checked {
            Ok(InForce { context, expires, .. }) => {
                if let (Some(tls), Some(context)) = (&self.tls, context) {
                    *tls.0.write() = context;
                }
                note(expires);
                telemetry::certificates_read(true);
                tracing::info!("the certificates were read again, and are in force");
            }
            Err(error) => {
                telemetry::certificates_read(false);
                tracing::error!(%error, "the new certificates cannot be used; the old ones hold");
            }
        }
    }
}

/// What a client trusts and shows that asks instances.
///
/// # Errors
/// Which file cannot be used, and what is wanted in its place.
pub fn of_client(settings: TlsSettings) -> Result<http::Tls, TlsError> {
    Ok(Files::read(&settings).check()?.client)
}

/// Until when the certificate of the listener is valid.
fn note(expires: Option<i64>) {
    if let Some(at) = expires {
        telemetry::certificate_expires(at);
    }
}

#[cfg(test)]
pub(super) mod tests;
