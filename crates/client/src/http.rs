//! Instances over HTTP: how they are reached, how long one is waited for, and when to ask again.
//!
//! The lower half of [`Client`](crate::Client). The command line of waterclock has the same one, so what stands here is said
//! once: proxies, connections, `Retry-After`, and which failures may be repeated. A service does not need it.
//!
//! # Invariants
//! 1. A request that may not be repeated is not sent again once an instance may have read it.
//! 2. Whether an instance may have read a request for a change without an answer is reported: then it may have been done.
//! 3. An error names no id and no key: it says where was asked, and not what for.

use std::time::{Duration, Instant};

use reqwest::header::{HeaderMap, IF_MATCH, LOCATION, RETRY_AFTER};
use reqwest::{Certificate, Identity};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

pub use reqwest::{ClientBuilder, Error, Method, StatusCode, Url};

/// Longest wait for a connection.
const CONNECT_MAX: Duration = Duration::from_secs(2);
/// For so long an unused connection is kept: for less than an instance keeps it (10 s), whose close could meet a request.
const IDLE: Duration = Duration::from_secs(5);
/// How long an instance may take to say that it is alive, which waits for nothing. A process that stands still says nothing.
const ALIVE_MAX: Duration = Duration::from_secs(2);
/// What an answer may take on its way, beyond the time in which an instance gives it.
const BESIDE: Duration = Duration::from_secs(3);
/// Where that is said.
const ALIVE: [&str; 2] = ["health", "live"];
/// Between two attempts, where nobody says how long.
pub(crate) const PAUSE: Duration = Duration::from_millis(200);
/// The longest pause that is made because an instance asks for it, where somebody waits for the answer.
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// The longest that an instance can be asked to wait for a decision.
pub const WAIT_MAX: Duration = Duration::from_secs(60);

/// A text that is not the address of an instance.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no address of an instance; want http://host:port")]
pub struct BadAddress(pub String);

/// The address of an instance, or of a load balancer before several. What follows the host is kept in front of the paths.
///
/// # Errors
/// The text is not one: want `http://host:port` or `https://host:port`.
pub fn address(text: &str) -> Result<Url, BadAddress> {
    let url = Url::parse(text).ok().filter(Url::has_host);
    let url = url.filter(|url| ["http", "https"].contains(&url.scheme()));
    let mut url = url.ok_or_else(|| BadAddress(text.to_owned()))?;
    let path = format!("{}/", url.path().trim_end_matches('/'));
    url.set_path(&path);
    url.set_query(None);
    Ok(url)
}

/// The address of something below that of an instance. Each segment is escaped.
#[must_use]
pub fn below(base: &Url, segments: &[&str]) -> Url {
    let mut url = base.clone();
    if let Ok(mut path) = url.path_segments_mut() {
        path.pop_if_empty().extend(segments);
    }
    url
}

/// Without what may be a person's: ids and keys stand in paths and queries.
pub(crate) fn origin(url: &Url) -> String {
    url.origin().ascii_serialization()
}

/// One request, and how often it may be sent.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Its method.
    pub method: &'a Method,
    /// Its body.
    pub body: Option<&'a Value>,
    /// The revision or the version that it is made to (`If-Match`), without its quotes; `None`: whatever is there.
    pub if_match: Option<&'a str>,
    /// In what time an instance answers; `None`: by the end of all attempts.
    pub promised: Option<Duration>,
    /// Whether an instance is asked first if it is alive, so that one that stands still is passed over. Its address has no
    /// path of its own.
    pub looks_first: bool,
    /// Whether something is done for it.
    pub is_change: bool,
    /// Whether it may be sent again when an instance may have read it.
    pub may_repeat: bool,
    /// After how many instances in a row that do not answer nobody else is asked; `None`: while there is time.
    pub silent_max: Option<usize>,
}

/// What an instance answered.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Whom it is from, and what was asked for.
    pub url: Url,
    /// The status.
    pub status: StatusCode,
    /// How long it asks to wait before the next attempt.
    pub(crate) retry_after: Option<Duration>,
    /// Where to ask for what is not decided yet.
    pub location: Option<Url>,
    /// The body.
    pub text: String,
    /// Whether another instance may have done what was asked for, and has not answered.
    pub may_be_done: bool,
}

/// A problem as of RFC 9457.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Problem {
    /// The word for programs.
    pub code: String,
    /// The words for people; `None`: something else than an instance answered.
    pub detail: Option<String>,
    /// Which part of the request is wrong.
    pub at: Option<String>,
    /// Every field that is wrong, where there may be several.
    pub errors: Vec<WrongField>,
    /// After how many seconds the request may be sent again.
    pub(crate) retry_after: Option<u32>,
}

/// A field of a request that is wrong.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct WrongField {
    /// Where it stands.
    pub at: String,
    /// What is wrong with it, as a sentence whose subject is the field.
    pub detail: String,
}

/// Why there is no answer.
#[derive(Debug)]
pub enum NoAnswer<E> {
    /// There is nobody to ask.
    Nobody(E),
    /// No instance answered.
    Silent {
        /// Where was asked last.
        url: Url,
        /// Whether something may have been done.
        may_be_done: bool,
        /// Why there was no answer.
        source: Error,
    },
}

impl Answer {
    /// Whether the same request may have another answer soon: a lane moves, an instance has too much to do, or something
    /// between us and the instances has nobody behind it.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        match self.status {
            StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::BAD_GATEWAY
            | StatusCode::GATEWAY_TIMEOUT => true,
            // An instance that names no time will refuse it again. What stands between may name none.
            StatusCode::TOO_MANY_REQUESTS => {
                self.retry_after.is_some() || self.problem().code.is_empty()
            }
            _ => false,
        }
    }

    /// An instance says when to come again, and has done nothing. What stands between may have passed the request on.
    fn is_from_an_instance(&self) -> bool {
        self.status == StatusCode::SERVICE_UNAVAILABLE && self.retry_after.is_some()
    }

    /// Its body as JSON.
    ///
    /// # Errors
    /// It is none, or of another shape.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_str(&self.text)
    }

    /// The problem that it reports.
    #[must_use]
    pub fn problem(&self) -> Problem {
        self.json().unwrap_or_default()
    }
}

/// What a client trusts and shows where instances take TLS.
#[derive(Clone, Default)]
pub struct Tls {
    ca: Option<Vec<u8>>,
    identity: Option<Vec<u8>>,
}

/// Without what it holds.
impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tls(..)")
    }
}

impl Tls {
    /// Trusts instances whose certificates one of these authorities has signed, in PEM, and no other authority.
    #[must_use]
    pub fn trusting(self, ca: impl Into<Vec<u8>>) -> Self {
        Self { ca: Some(ca.into()), ..self }
    }

    /// Shows this certificate where an instance asks for one. In PEM: the private key in PKCS #8, its certificate, and the chain.
    #[must_use]
    pub fn showing(self, identity: impl Into<Vec<u8>>) -> Self {
        Self { identity: Some(identity.into()), ..self }
    }

    /// The same for connections that are set up otherwise.
    ///
    /// # Errors
    /// What it holds is not what is said above.
    pub fn apply(&self, mut builder: ClientBuilder) -> Result<ClientBuilder, Error> {
        if let Some(ca) = &self.ca {
            builder = builder.tls_built_in_root_certs(false);
            for of in Certificate::from_pem_bundle(ca)? {
                builder = builder.add_root_certificate(of);
            }
        }
        if let Some(pem) = &self.identity {
            let begin = pem.windows(KEY.len()).position(|at| at == KEY).unwrap_or_default();
            builder = builder.identity(Identity::from_pkcs8_pem(pem, &pem[begin..])?);
        }
        Ok(builder)
    }
}

/// Begins a private key.
const KEY: &[u8] = b"-----BEGIN PRIVATE KEY-----";

/// The connections to instances. Clones share them.
#[derive(Clone)]
pub struct Http {
    client: reqwest::Client,
    /// What a request says who sends it.
    token: Option<String>,
}

/// Without the token.
impl std::fmt::Debug for Http {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Http").field("client", &self.client).finish_non_exhaustive()
    }
}

impl Http {
    /// Connections to a server that was named, or to the instances that Kafka knows. Those are on our network, and so is a server
    /// on this machine: a proxy of the environment is for the world outside.
    ///
    /// # Errors
    /// The system has no random numbers or no certificates to offer, or `tls` cannot be used.
    pub fn new(server: Option<&Url>, tls: &Tls) -> Result<Self, Error> {
        let mut builder =
            reqwest::Client::builder().connect_timeout(CONNECT_MAX).pool_idle_timeout(IDLE);
        if server.is_none_or(|url| url.host_str().is_some_and(waterclock_kafka::is_loopback)) {
            builder = builder.no_proxy();
        }
        tls.apply(builder)?.build().map(|client| Self { client, token: None })
    }

    /// The same, and each request brings this bearer token. Looks at an instance's health bring none.
    #[must_use]
    pub fn with_token(self, token: Option<String>) -> Self {
        Self { token, ..self }
    }

    /// Asks until there is an answer that waiting does not change, or `until` is over. `at` says where, again for each attempt.
    ///
    /// # Errors
    /// Nobody answered.
    pub async fn ask<E>(
        &self,
        request: &Request<'_>,
        until: Instant,
        at: impl Fn(usize) -> Result<Url, E>,
    ) -> Result<Answer, NoAnswer<E>> {
        let (mut attempt, mut silent, mut may_be_done) = (0, 0, false);
        loop {
            let url = at(attempt).map_err(NoAnswer::Nobody)?;
            attempt += 1;
            let left = until.saturating_duration_since(Instant::now());
            let most = request.promised.unwrap_or(left) + BESIDE;
            let pause = match self.attempt(request, &url, most).await {
                Ok(answer) => {
                    silent = 0;
                    let may_repeat = request.may_repeat || answer.is_from_an_instance();
                    let pause = answer.retry_after.unwrap_or(PAUSE).min(PAUSE_MAX);
                    let is_last = !answer.is_passing() || Instant::now() + pause >= until;
                    if is_last || !may_repeat {
                        return Ok(Answer { may_be_done, ..answer });
                    }
                    pause
                }
                Err(Silence { may_be_read, source }) => {
                    silent += 1;
                    may_be_done |= may_be_read && request.is_change;
                    let (pause, is_over) = match request.silent_max {
                        // The next one of a few is asked at once.
                        Some(most) => (Duration::ZERO, silent >= most),
                        None => (PAUSE, Instant::now() + PAUSE >= until),
                    };
                    if is_over || may_be_read && !request.may_repeat {
                        return Err(NoAnswer::Silent { url, may_be_done, source });
                    }
                    pause
                }
            };
            tokio::time::sleep(pause).await;
        }
    }

    /// Sends it once, and waits so long for the answer.
    pub(crate) async fn attempt(
        &self,
        request: &Request<'_>,
        url: &Url,
        most: Duration,
    ) -> Result<Answer, Silence> {
        if request.looks_first {
            let looked = self.look(&root(url)).await;
            looked.map_err(|source| Silence { may_be_read: false, source })?;
        }
        let mut asked = self.client.request(request.method.clone(), url.clone()).timeout(most);
        if let Some(token) = &self.token {
            asked = asked.bearer_auth(token);
        }
        if let Some(made_to) = request.if_match {
            asked = asked.header(IF_MATCH, format!("\"{made_to}\""));
        }
        if let Some(body) = request.body {
            asked = asked.json(body);
        }
        // Without a connection nothing was asked yet.
        let silence = |source: Error| Silence { may_be_read: !source.is_connect(), source };
        let answered = asked.send().await.map_err(Error::without_url).map_err(silence)?;
        read(answered).await.map_err(silence)
    }

    /// What stands there, whatever the status is. It is asked once.
    ///
    /// # Errors
    /// There is no answer within `most`.
    pub async fn get(&self, url: &Url, most: Duration) -> Result<Answer, Error> {
        let answered = self.client.get(url.clone()).timeout(most).send().await;
        read(answered.map_err(Error::without_url)?).await
    }

    /// Whether an instance answers there, which may be unwell.
    ///
    /// # Errors
    /// It does not.
    pub async fn look(&self, base: &Url) -> Result<(), Error> {
        self.get(&below(base, &ALIVE), ALIVE_MAX).await.map(drop)
    }
}

/// Why an attempt has no answer.
pub(crate) struct Silence {
    /// Whether an instance may have read the request.
    pub(crate) may_be_read: bool,
    pub(crate) source: Error,
}

/// The address of an instance that no path stands in front of.
fn root(url: &Url) -> Url {
    let mut root = url.clone();
    root.set_path("/");
    root.set_query(None);
    root
}

async fn read(answered: reqwest::Response) -> Result<Answer, Error> {
    let (url, status) = (answered.url().clone(), answered.status());
    let retry_after = pause(answered.headers());
    let next = answered.headers().get(LOCATION).and_then(|next| next.to_str().ok());
    let location = next.and_then(|next| url.join(next).ok());
    let text = answered.text().await.map_err(Error::without_url)?;
    Ok(Answer { url, status, retry_after, location, text, may_be_done: false })
}

fn pause(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.parse().ok()?;
    Some(Duration::from_secs(seconds))
}
