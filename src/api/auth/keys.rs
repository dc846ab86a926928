//! The keys of an issuer: fetched from its JWKS URL, and kept.
//!
//! # Invariants
//! 1. They are fetched at most once a minute, whatever requests bring: one task fetches, and rests after each try.
//! 2. Keys that were fetched stay until others are. What cannot be fetched changes nothing.
//! 3. A key is kept only if it is public, for signatures, and strong enough; each with the algorithms of its kind.

use std::collections::BTreeMap;
use std::error::Error as _;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyOperations, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey};
use parking_lot::RwLock;
use reqwest::{Client, Response, header, redirect};
use serde_json::Value;
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use url::{Host, Url};

use super::crypto;

/// Longest wait for a connection, and for the whole answer.
const CONNECT_MAX: Duration = Duration::from_secs(3);
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// A set of keys has some kilobytes.
const SET_BYTES_MAX: usize = 1 << 20;
/// Keys of a set; issuers have a few.
const KEYS_MAX: usize = 100;
/// Longest wait of a request for a key that is not here.
const WAIT_MAX: Duration = Duration::from_secs(3);
/// Bits of an RSA key.
const RSA_BITS_MIN: u32 = 2_048;
/// An RSA key is for all of these, unless it says for which one.
#[rustfmt::skip]
const OF_RSA: [Algorithm; 6] = [
    Algorithm::RS256, Algorithm::RS384, Algorithm::RS512, Algorithm::PS256, Algorithm::PS384, Algorithm::PS512,
];

/// How often keys are fetched; a test has less time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// Between two fetches at least.
    pub(super) least: Duration,
    /// How long keys last, where the issuer does not say it.
    pub(super) unsaid: Duration,
    /// The same at most, whatever it says.
    pub(super) most: Duration,
}

impl Pace {
    pub(super) const OF_ISSUERS: Self = Self {
        least: Duration::from_secs(60),
        unsaid: Duration::from_secs(3_600),
        most: Duration::from_secs(24 * 3_600),
    };

    /// When to fetch again what lasts for so long: before that is over.
    pub(super) fn again(&self, life: Option<Duration>) -> Duration {
        let life = life.map_or(self.unsaid, |life| life.min(self.most));
        life.mul_f64(0.75).max(self.least)
    }
}

/// One key of an issuer.
#[derive(Clone, Debug)]
pub(super) struct Key {
    /// What it may have signed with.
    pub(super) algorithms: Vec<Algorithm>,
    pub(super) of: DecodingKey,
}

/// By their ids.
type Set = BTreeMap<String, Key>;

/// What the task that fetches does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Fetches,
    /// It has just fetched, and does not do so again yet.
    Rests,
    /// It waits until the keys grow old, or a key is wanted.
    Waits,
}

/// The keys of one issuer, until this is dropped.
#[derive(Debug)]
pub(super) struct Keys {
    /// `None`: none were fetched yet.
    set: RwLock<Option<Arc<Set>>>,
    phase: watch::Sender<Phase>,
    wanted: Arc<Notify>,
    fetches: OnceLock<AbortHandle>,
}

impl Drop for Keys {
    fn drop(&mut self) {
        if let Some(task) = self.fetches.get() {
            task.abort();
        }
    }
}

impl Keys {
    /// Begins to fetch. To be called inside of a tokio runtime.
    pub(super) fn of(url: Url, pace: Pace) -> Arc<Self> {
        let keys = Arc::new(Self {
            set: RwLock::default(),
            phase: watch::Sender::new(Phase::Fetches),
            wanted: Arc::default(),
            fetches: OnceLock::new(),
        });
        let task = tokio::spawn(fetch_on(Arc::downgrade(&keys), url, pace));
        let _ = keys.fetches.set(task.abort_handle());
        keys
    }

    /// Whether any were fetched.
    pub(super) fn are_here(&self) -> bool {
        self.set.read().is_some()
    }

    /// The key with this id.
    pub(super) fn find(&self, id: &str) -> Option<Key> {
        self.set.read().as_ref()?.get(id).cloned()
    }

    /// Has keys fetched if this one is not here, and waits for them. Right after a fetch it does not: a caller who makes ids up
    /// costs the issuer one request a minute.
    pub(super) async fn look_for(&self, id: &str) {
        if self.find(id).is_some() {
            return;
        }
        let mut phase = self.phase.subscribe();
        let now = *phase.borrow_and_update();
        match now {
            Phase::Rests => return,
            Phase::Waits => self.wanted.notify_one(),
            Phase::Fetches => {}
        }
        let rests = phase.wait_for(|phase| *phase == Phase::Rests);
        // A key that is not here by then is said to be unknown.
        let _ = tokio::time::timeout(WAIT_MAX, rests).await;
    }

    /// One fetch; gives back how long its keys last, if the issuer says it.
    async fn fetch(&self, client: &Client, url: &Url) -> Result<Option<Duration>, String> {
        let told = |error: reqwest::Error| {
            let error = error.without_url();
            let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
            format!("{error}{cause}")
        };
        let answer = client.get(url.clone()).send().await.map_err(told)?;
        let mut answer = answer.error_for_status().map_err(told)?;
        if answer.status().is_redirection() {
            return Err(format!("it redirects ({}); name the place itself", answer.status()));
        }
        let life = life(&answer);
        let mut body = Vec::new();
        while let Some(part) = answer.chunk().await.map_err(told)? {
            if body.len() + part.len() > SET_BYTES_MAX {
                return Err(format!("it answers with more than {SET_BYTES_MAX} bytes"));
            }
            body.extend_from_slice(&part);
        }
        let set = read(&body)?;
        let mut known = self.set.write();
        if known.as_ref().is_none_or(|known| !known.keys().eq(set.keys())) {
            let ids: Vec<&String> = set.keys().collect();
            tracing::info!(url = url.as_str(), keys = ?ids, "the issuer of API tokens has these keys");
        }
        *known = Some(Arc::new(set));
        Ok(life)
    }
}

async fn fetch_on(keys: Weak<Keys>, url: Url, pace: Pace) {
    let client = client(&url);
    loop {
        let Some(of) = keys.upgrade() else { return };
        of.phase.send_replace(Phase::Fetches);
        let fetched = match &client {
            Ok(client) => of.fetch(client, &url).await,
            Err(error) => Err(error.clone()),
        };
        let again = match fetched {
            Ok(life) => pace.again(life),
            Err(error) => {
                let rest = if of.are_here() { "those from before hold" } else { "there are none" };
                let url = url.as_str();
                tracing::warn!(url, error, "could not fetch the keys of API tokens; {rest}");
                pace.least
            }
        };
        let wanted = Arc::clone(&of.wanted);
        of.phase.send_replace(Phase::Rests);
        drop(of);
        tokio::time::sleep(pace.least).await;
        let Some(of) = keys.upgrade() else { return };
        of.phase.send_replace(Phase::Waits);
        drop(of);
        let _ = tokio::time::timeout(again.saturating_sub(pace.least), wanted.notified()).await;
    }
}

fn client(url: &Url) -> Result<Client, String> {
    let client = Client::builder().connect_timeout(CONNECT_MAX).timeout(ANSWER_MAX);
    // The configuration was checked, and no place that an answer names.
    let client = client.redirect(redirect::Policy::none());
    // A proxy of the environment is for the world outside.
    let client = if is_near(url) { client.no_proxy() } else { client };
    client.build().map_err(|error| error.to_string())
}

/// Whether a URL is of this machine.
fn is_near(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}

/// Whether keys may be fetched from a URL: nobody on the way can change them.
pub(super) fn is_safe(url: &Url) -> bool {
    let is_bare = url.username().is_empty() && url.password().is_none();
    let is_kept = url.scheme() == "https" || url.scheme() == "http" && is_near(url);
    is_bare && is_kept && url.has_host()
}

/// How long an answer may be kept, as it says.
fn life(answer: &Response) -> Option<Duration> {
    let said = answer.headers().get(header::CACHE_CONTROL)?.to_str().ok()?;
    let seconds = said.split(',').find_map(|part| part.trim().strip_prefix("max-age="))?;
    seconds.parse().ok().map(Duration::from_secs)
}

/// Reads a set; a key in it that is not for us is passed over.
fn read(body: &[u8]) -> Result<Set, String> {
    let set: Value = serde_json::from_slice(body).map_err(|error| format!("no JSON: {error}"))?;
    let keys = set.get("keys").and_then(Value::as_array);
    let keys = keys.ok_or_else(|| "no set of keys: it has no list keys".to_owned())?;
    Ok(keys.iter().take(KEYS_MAX).filter_map(key).collect())
}

/// A public key for signatures, with its id.
fn key(value: &Value) -> Option<(String, Key)> {
    let jwk: Jwk = serde_json::from_value(value.clone()).ok()?;
    let common = &jwk.common;
    let is_to_sign = common.public_key_use.as_ref().is_none_or(|of| *of == PublicKeyUse::Signature);
    let may_verify = |all: &Vec<KeyOperations>| all.contains(&KeyOperations::Verify);
    if !is_to_sign || !common.key_operations.as_ref().is_none_or(may_verify) {
        return None;
    }
    let mut algorithms = match &jwk.algorithm {
        AlgorithmParameters::RSA(_) => OF_RSA.to_vec(),
        AlgorithmParameters::EllipticCurve(of) if of.curve == EllipticCurve::P256 => {
            vec![Algorithm::ES256]
        }
        AlgorithmParameters::EllipticCurve(of) if of.curve == EllipticCurve::P384 => {
            vec![Algorithm::ES384]
        }
        AlgorithmParameters::OctetKeyPair(of) if of.curve == EllipticCurve::Ed25519 => {
            vec![Algorithm::EdDSA]
        }
        _ => return None,
    };
    if let Some(said) = common.key_algorithm {
        let said = Algorithm::try_from(said).ok()?;
        algorithms.retain(|algorithm| *algorithm == said);
    }
    let of = DecodingKey::from_jwk(&jwk).ok()?;
    let made = crypto::public_key(*algorithms.first()?, &of).ok()?;
    if made.rsa().is_ok() && made.bits() < RSA_BITS_MIN {
        return None;
    }
    Some((jwk.common.key_id?, Key { algorithms, of }))
}
