//! The HTTP clients that make calls: one that shows no client certificate, and one for each certificate.
//!
//! # Invariants
//! 1. A connection on which one certificate was shown serves no call that shows another, or none.
//! 2. At most [`CERTIFICATES`] clients with a certificate are kept. Calls that are open keep theirs beside that.
//! 3. No redirect is followed, and no proxy of the environment is used.

use std::sync::Arc;
use std::time::Duration;

use reqwest::{Client, ClientBuilder, Proxy, redirect, retry};
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;
use url::Url;

use super::certificate::Certificate;
use super::request::Refused;
use super::resolver::Resolver;

/// Name, connection and TLS.
pub(super) const CONNECT: Duration = Duration::from_secs(3);
/// A connection that is not used for so long is closed. Many servers keep theirs for a minute.
const IDLE: Duration = Duration::from_secs(30);
/// Idle connections to one host.
const IDLE_PER_HOST: usize = 256;
/// Clients with a certificate. Each has the authorities of the system in memory once more: about a mebibyte.
const CERTIFICATES: usize = 64;

pub(super) struct Clients {
    plain: Client,
    /// By the names of the secrets; that which was used last is the last.
    with_certificate: Mutex<Vec<(String, Client)>>,
    resolver: Arc<Resolver>,
    proxy: Option<Proxy>,
}

impl Clients {
    pub(super) fn new(resolver: Arc<Resolver>, proxy: Option<Url>) -> Result<Self, reqwest::Error> {
        let proxy = proxy.map(Proxy::all).transpose()?;
        let plain = builder(&resolver, proxy.as_ref()).build()?;
        Ok(Self { plain, with_certificate: Mutex::new(Vec::new()), resolver, proxy })
    }

    /// The client that shows this certificate, and no other. It is made at the first call.
    pub(super) async fn that_shows(&self, shown: Option<Certificate>) -> Result<Client, Refused> {
        let Some(Certificate { secret, identity }) = shown else { return Ok(self.plain.clone()) };
        // The calls of other certificates wait meanwhile: it reads the authorities of the system, which takes some milliseconds.
        let mut kept = self.with_certificate.lock().await;
        let client = if let Some(at) = kept.iter().position(|(name, _)| *name == secret) {
            kept.remove(at).1
        } else {
            let builder = builder(&self.resolver, self.proxy.as_ref()).identity(identity.http);
            let made = spawn_blocking(|| builder.build()).await;
            made.ok().and_then(Result::ok).ok_or_else(|| {
                Refused::secret(format!("the secret {secret} gives no client certificate"))
            })?
        };
        if kept.len() == CERTIFICATES {
            kept.remove(0);
        }
        kept.push((secret, client.clone()));
        Ok(client)
    }
}

fn builder(resolver: &Arc<Resolver>, proxy: Option<&Proxy>) -> ClientBuilder {
    let client = Client::builder()
        .redirect(redirect::Policy::none())
        .no_proxy()
        .referer(false)
        .retry(retry::never())
        .http1_only()
        // An answer that inflates could fill the memory.
        .no_gzip()
        .no_brotli()
        .no_zstd()
        .no_deflate()
        .connect_timeout(CONNECT)
        .pool_idle_timeout(IDLE)
        .pool_max_idle_per_host(IDLE_PER_HOST);
    match proxy {
        // It looks names up by itself; the only name that is asked for here is its own, which the operator gave.
        Some(proxy) => client.proxy(proxy.clone()),
        None => client.dns_resolver(Arc::clone(resolver)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::certificate;
    use super::super::guard::Guard;
    use super::super::resolver::system;
    use super::super::tests::certificate::PEM;
    use super::*;

    #[tokio::test]
    async fn the_clients_that_are_kept_are_those_that_were_used_last() {
        let guard = Arc::new(Guard::new(&[], None).unwrap());
        let resolver = Arc::new(Resolver::new(guard, system()));
        let clients = Clients::new(resolver, None).unwrap();
        let identity = certificate::parse(&PEM).unwrap();
        let show = async |nth: usize| {
            let secret = nth.to_string();
            let shown = Certificate { secret, identity: identity.clone() };
            clients.that_shows(Some(shown)).await.unwrap();
        };
        for nth in (0..CERTIFICATES).chain([0, CERTIFICATES, 0]) {
            show(nth).await;
        }
        let kept = clients.with_certificate.lock().await;
        let kept: Vec<_> = kept.iter().map(|(name, _)| name.as_str()).collect();
        let want = (2..=CERTIFICATES).chain([0]).map(|nth| nth.to_string());
        assert_eq!(kept, want.collect::<Vec<_>>());
    }
}
