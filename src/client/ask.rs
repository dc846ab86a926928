//! What is asked of an instance over HTTP.
//!
//! # Invariants
//! 1. Only what may be repeated is repeated: a look-up, and a cancel, which is answered the same way again.
//! 2. Nothing is asked for longer than the bound; what is undecided then is said to be so, or is an error.

use std::time::{Duration, Instant};

use reqwest::header::{HeaderMap, LOCATION, RETRY_AFTER};
use reqwest::{Method, Response, StatusCode, Url};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::Error;

/// What became of a timer that was to be cancelled.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// It will never be seen in its target; also if it was cancelled before.
    Cancelled,
    /// Too late: it is in its target.
    Delivered,
    /// A version was asked for that another has replaced.
    Superseded,
    /// There is no such timer: it was never met, or it ended otherwise, as `state` says (`expired`, `dead`, `lost`). A record that
    /// was sent straight to a tier is cancelled all the same.
    Unknown {
        /// How it ended, if it is known.
        state: Option<String>,
    },
    /// The instances keep no pending timers (`tracking = "cancellations"`): it is cancelled unless it was delivered.
    Recorded,
    /// Not decided within the bound. Cancel again to ask again: nothing happens twice.
    Pending,
}

/// A timer, as the index knows it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct Timer {
    /// Its id.
    pub id: String,
    /// The key of its record, if it has one that is text.
    #[serde(default)]
    pub key: Option<String>,
    /// The key of its record in base64, if it has one that is no text.
    #[serde(default)]
    pub key_base64: Option<String>,
    /// `delay` while it is pending; else `delivered`, `cancelled`, `expired`, `dead` or `lost`.
    pub state: String,
    /// The topic that it is for.
    #[serde(default)]
    pub target: Option<String>,
    /// When it is or was due, in milliseconds since 1970.
    #[serde(default)]
    pub due: u64,
    /// Its lane.
    #[serde(default)]
    pub lane: u16,
    /// Its label.
    #[serde(default)]
    pub label: Option<String>,
    /// Which of the records of this id it is.
    #[serde(default)]
    pub version: Option<String>,
    /// Why it was dead-lettered: a code of the header contract.
    #[serde(default)]
    pub code: Option<String>,
    /// Since when it is in this state, in milliseconds since 1970.
    #[serde(default)]
    pub since: Option<u64>,
}

#[derive(Deserialize)]
struct Decided {
    outcome: String,
    #[serde(default)]
    state: Option<String>,
    #[serde(default)]
    code: Option<String>,
}

/// A problem as of RFC 9457, as far as it is told on.
#[derive(Default, Deserialize)]
struct Problem {
    #[serde(default)]
    code: String,
    #[serde(default)]
    detail: String,
}

/// The longest that an instance can be asked to wait.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// Longest wait for a connection.
const CONNECT_MAX: Duration = Duration::from_secs(2);
/// How much longer than what was asked for an answer may take.
const BESIDE: Duration = Duration::from_secs(3);
/// Between two attempts, where nobody says how long.
const PAUSE: Duration = Duration::from_millis(200);
/// The longest pause that a server may ask for.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// Makes the HTTP client. Instances that are found through Kafka are on our network: a proxy of the environment is for the
/// world outside.
///
/// # Errors
/// The system has no random numbers or no certificates to offer.
pub(super) fn http(is_named: bool) -> Result<reqwest::Client, Error> {
    let mut builder = reqwest::Client::builder().connect_timeout(CONNECT_MAX);
    if !is_named {
        builder = builder.no_proxy();
    }
    builder.build().map_err(|error| Error::Start(Box::new(error)))
}

/// Reads the address of a server: what follows the host is kept in front of the paths.
///
/// # Errors
/// It is none.
pub(super) fn address(text: &str) -> Result<Url, Error> {
    let no = || Error::Address { url: text.to_owned() };
    let url = Url::parse(text).map_err(|_| no())?;
    let is_http = matches!(url.scheme(), "http" | "https") && url.has_host();
    if is_http { Ok(url) } else { Err(no()) }
}

/// The address of one timer: `{base}/v1/timers/{id}?key=...`.
pub(super) fn timer(base: &Url, key: Option<&[u8]>, id: &str) -> Url {
    let mut url = base.clone();
    if let Ok(mut path) = url.path_segments_mut() {
        path.pop_if_empty().extend(["v1", "timers", id]);
    }
    match key.map(|key| (key, std::str::from_utf8(key))) {
        None => {}
        Some((_, Ok(text))) => {
            url.query_pairs_mut().append_pair("key", text);
        }
        Some((bytes, Err(_))) => {
            use base64::Engine as _;
            let text = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(bytes);
            url.query_pairs_mut().append_pair("key_base64", &text);
        }
    }
    url
}

/// One thing to be asked until there is an answer.
pub(super) struct Ask<'a> {
    pub(super) http: &'a reqwest::Client,
    /// How long in all.
    pub(super) within: Duration,
}

impl Ask<'_> {
    /// Cancels; `at` says whom to ask, anew for each attempt.
    pub(super) async fn cancel(
        &self,
        at: impl Fn(usize) -> Result<Url, Error>,
    ) -> Result<Outcome, Error> {
        let until = Instant::now() + self.within;
        let at = |attempt| {
            let mut url = at(attempt)?;
            let left = until.saturating_duration_since(Instant::now()).min(WAIT_MAX);
            url.query_pairs_mut().append_pair("wait", &format!("{}ms", left.as_millis()));
            Ok(url)
        };
        let mut response = self.insist(&Method::DELETE, until, at).await?;
        while response.status() == StatusCode::ACCEPTED {
            let next = response.headers().get(LOCATION).and_then(|next| next.to_str().ok());
            let next = next.and_then(|next| response.url().join(next).ok());
            let (Some(next), true) = (next, Instant::now() + PAUSE < until) else {
                return Ok(Outcome::Pending);
            };
            tokio::time::sleep(PAUSE).await;
            response = match self.insist(&Method::GET, until, |_| Ok(next.clone())).await {
                // Its lane has moved, and who would have known has forgotten.
                Err(Error::Refused { status: 410, .. }) => {
                    self.insist(&Method::DELETE, until, at).await?
                }
                answered => answered?,
            };
        }
        let url = place(response.url());
        let decided: Decided = read(response).await?;
        Ok(match decided.outcome.as_str() {
            "cancelled" => Outcome::Cancelled,
            "delivered" => Outcome::Delivered,
            "superseded" => Outcome::Superseded,
            "recorded" => Outcome::Recorded,
            "pending" => Outcome::Pending,
            "unknown" => Outcome::Unknown { state: decided.state },
            other => {
                let code = decided.code.unwrap_or_else(|| other.to_owned());
                let detail = format!("the cancel is {other}");
                return Err(Error::Refused { url, status: 200, code, detail });
            }
        })
    }

    /// Looks one timer up.
    pub(super) async fn find(
        &self,
        at: impl Fn(usize) -> Result<Url, Error>,
    ) -> Result<Option<Timer>, Error> {
        let until = Instant::now() + self.within;
        match self.insist(&Method::GET, until, at).await {
            Ok(response) => read(response).await.map(Some),
            Err(Error::Refused { code, .. }) if code == "unknown_timer" => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Asks until somebody has answered, or the time is over.
    async fn insist(
        &self,
        method: &Method,
        until: Instant,
        at: impl Fn(usize) -> Result<Url, Error>,
    ) -> Result<Response, Error> {
        let mut attempt = 0;
        loop {
            let url = at(attempt)?;
            let left = until.saturating_duration_since(Instant::now()) + BESIDE;
            let sent = self.http.request(method.clone(), url.clone()).timeout(left).send().await;
            let (pause, source) = match sent {
                Ok(response) if response.status().is_success() => return Ok(response),
                Ok(response) if passes(response.status()) => (pause(response.headers()), None),
                Ok(response) => return Err(refused(response).await),
                Err(error) => (PAUSE, Some(Box::new(error.without_url()))),
            };
            if Instant::now() + pause >= until {
                return Err(Error::Busy { url: place(&url), within: self.within, source });
            }
            tokio::time::sleep(pause).await;
            attempt += 1;
        }
    }
}

/// What goes by: a lane moves, or something between us and the server has nobody behind it.
fn passes(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::BAD_GATEWAY
            | StatusCode::GATEWAY_TIMEOUT
            | StatusCode::TOO_MANY_REQUESTS
    )
}

fn pause(headers: &HeaderMap) -> Duration {
    let asked = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
    asked.map_or(PAUSE, |seconds| Duration::from_secs(seconds).min(PAUSE_MAX))
}

/// Without what may be a person's: ids and keys stand in paths and queries.
fn place(url: &Url) -> String {
    url.origin().ascii_serialization()
}

async fn refused(response: Response) -> Error {
    let (url, status) = (place(response.url()), response.status().as_u16());
    let Problem { code, detail } = response.json().await.unwrap_or_default();
    Error::Refused { url, status, code, detail }
}

async fn read<T: DeserializeOwned>(response: Response) -> Result<T, Error> {
    let url = place(response.url());
    response
        .json()
        .await
        .map_err(|source| Error::Answer { url, source: Box::new(source.without_url()) })
}
