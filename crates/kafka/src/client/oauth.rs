//! Tokens for SASL/OAUTHBEARER.
//!
//! ```text
//!  endpoint, or file ──▶ wc-tokens (one thread) ──▶ the token in hand ──▶ every client, when librdkafka asks for one
//! ```
//!
//! The librdkafka of this build has no HTTP client. So the settings that it would take for fetching tokens itself
//! (`sasl.oauthbearer.token.endpoint.url` and its kin) are read here, under the same names. Why: docs/adr/0026.
//!
//! # Invariants
//! 1. A lane thread never waits for a token: a new one is fetched when three quarters of the old one's life are over,
//!    and librdkafka asks for the next at four fifths. A thread waits only if it asks before there ever was one, and
//!    not long.
//! 2. Neither a token nor a client's secret is printed or logged.
//! 3. The thread ends when the last connection that uses it is dropped.

use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::error::Error;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rdkafka::client::OAuthToken;
use serde_json::{Value, json};

use super::settings::{Fault, Given, Secret, readable_by_all};
use super::wall_clock;

const URL: &str = "sasl.oauthbearer.token.endpoint.url";
const CLIENT_ID: &str = "sasl.oauthbearer.client.id";
const CLIENT_SECRET: &str = "sasl.oauthbearer.client.secret";
const SCOPE: &str = "sasl.oauthbearer.scope";
const METHOD: &str = "sasl.oauthbearer.method";
const UNSECURED: &str = "enable.sasl.oauthbearer.unsecure.jwt";
const CONFIG: &str = "sasl.oauthbearer.config";
const CA: &str = "https.ca.location";
/// All of them, none of which librdkafka is given as it is.
const TAKEN: [&str; 8] = [URL, CLIENT_ID, CLIENT_SECRET, SCOPE, METHOD, UNSECURED, CONFIG, CA];

/// Longest wait for a connection to the endpoint, and for its whole answer.
const CONNECT_MAX: Duration = Duration::from_secs(5);
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// A token is a few kilobytes.
const ANSWER_BYTES_MAX: u64 = 1 << 20;
/// Longest wait for the first token.
const FIRST_MAX: Duration = Duration::from_secs(5);
/// Between two attempts to renew: least, and most after failures.
const RENEW_LEAST: Duration = Duration::from_secs(1);
const RENEW_AGAIN_MAX: Duration = Duration::from_secs(10);
/// A token is fetched again at least this often, and a token file is looked at.
const RENEW_MOST: Duration = Duration::from_secs(3_600);
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// The life of an unsecured token, as librdkafka has it.
const UNSECURED_LIFE: Duration = Duration::from_secs(3_600);

/// Where tokens come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The client credentials grant of OAuth 2.0.
    Endpoint { url: String, id: String, secret: Secret, scope: Option<String>, ca: Option<PathBuf> },
    /// A file that somebody else keeps fresh.
    File(PathBuf),
    /// Made here and signed by nobody; for brokers that are being tried out.
    Unsecured { principal: String },
}

/// Why there is no token.
#[derive(Debug, thiserror::Error)]
enum NoToken {
    #[error("could not read the token file {}", .0.display())]
    File(PathBuf, #[source] std::io::Error),
    #[error("everybody may read the token file {} (mode {:o}; chmod o-r)", .0.display(), .1)]
    Open(PathBuf, u32),
    #[error("the token file {} is empty", .0.display())]
    Empty(PathBuf),
    #[error("could not read the certificates in {}", .0.display())]
    Ca(PathBuf, #[source] Box<dyn Error + Send + Sync>),
    #[error("no answer from the token endpoint {0}")]
    Away(String, #[source] reqwest::Error),
    #[error("the token endpoint {url} answered {status}{}", reason.as_ref().map(|r| format!(" ({r})")).unwrap_or_default())]
    Refused { url: String, status: u16, reason: Option<String> },
    #[error("the token endpoint {0} answered something that is no token")]
    NotAToken(String),
    #[error(
        "nothing says how long the token lives: it has no claim exp, and the answer no expires_in"
    )]
    NoLife,
    #[error("the token expired at {0} ms")]
    Expired(i64),
    #[error("the first token is still being fetched")]
    NotYet,
}

impl NoToken {
    /// With its causes, in one line: librdkafka takes a text.
    fn told(&self) -> String {
        let mut told = self.to_string();
        let mut next = self.source();
        while let Some(error) = next {
            told = format!("{told}: {error}");
            next = error.source();
        }
        told.replace('\0', " ")
    }
}

#[derive(Clone)]
struct Token {
    token: String,
    principal: String,
    expires_ms: i64,
}

impl Source {
    /// Whether a setting is read here instead of by librdkafka.
    pub(crate) fn takes(name: &str) -> bool {
        TAKEN.contains(&canonical(name))
    }

    /// What is wrong with the settings that are read here.
    pub(crate) fn check(given: &Given) -> Vec<Fault> {
        Self::read(given).err().unwrap_or_default()
    }

    /// Where tokens come from by these settings; `None`: they are not asked for.
    fn read(given: &Given) -> Result<Option<Self>, Vec<Fault>> {
        let fault = |name: &str, got: &str, want: &str| {
            vec![Fault { name: name.to_owned(), got: got.to_owned(), want: want.to_owned() }]
        };
        let taken: BTreeMap<&str, &str> = given
            .iter()
            .filter(|(name, _)| Self::takes(name))
            .map(|(name, value)| (canonical(name), value.expose()))
            .collect();
        let mechanism = given.get("sasl.mechanism").or_else(|| given.get("sasl.mechanisms"));
        if !mechanism.is_some_and(|name| name.expose().eq_ignore_ascii_case("OAUTHBEARER")) {
            return match taken.keys().next() {
                None => Ok(None),
                Some(name) => {
                    Err(fault(name, "a setting for tokens", "sasl.mechanism OAUTHBEARER beside it"))
                }
            };
        }
        if let Some(method) =
            taken.get(METHOD).filter(|method| !["default", "oidc"].contains(method))
        {
            return Err(fault(METHOD, method, "default or oidc"));
        }
        match (taken.get(URL), taken.get(UNSECURED).copied()) {
            (None, Some("true")) => unsecured(taken.get(CONFIG).copied().unwrap_or_default())
                .map(Some)
                .ok_or_else(|| fault(CONFIG, "(not shown)", "principal=NAME")),
            (Some(_), Some("true")) => {
                Err(fault(UNSECURED, "true", "false, since there is a token endpoint"))
            }
            (_, Some(other)) if other != "false" => Err(fault(UNSECURED, other, "true or false")),
            (None, _) => {
                let want = "https://..., http://... or file:///..., where tokens come from";
                Err(fault(URL, "nothing", want))
            }
            (Some(url), _) => {
                if let Some(path) = url.strip_prefix("file://") {
                    if !path.starts_with('/') {
                        return Err(fault(URL, url, "file:/// and a whole path"));
                    }
                    // A file that is not there yet may come: the program that keeps it fresh may start later.
                    let open = std::fs::metadata(path).ok().and_then(|it| readable_by_all(&it));
                    return match open {
                        Some(mode) => Err(fault(URL, url, &unreadable(mode))),
                        None => Ok(Some(Self::File(path.into()))),
                    };
                }
                let sound = reqwest::Url::parse(url)
                    .is_ok_and(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
                if !sound {
                    return Err(fault(URL, url, "https://..., http://... or file:///..."));
                }
                let (Some(id), Some(secret)) = (taken.get(CLIENT_ID), taken.get(CLIENT_SECRET))
                else {
                    let missing =
                        if taken.contains_key(CLIENT_ID) { CLIENT_SECRET } else { CLIENT_ID };
                    return Err(fault(missing, "nothing", "what the token endpoint knows us by"));
                };
                Ok(Some(Self::Endpoint {
                    url: (*url).to_owned(),
                    id: (*id).to_owned(),
                    secret: Secret::from((*secret).to_owned()),
                    scope: taken.get(SCOPE).map(|scope| (*scope).to_owned()),
                    ca: taken.get(CA).filter(|path| **path != "probe").map(PathBuf::from),
                }))
            }
        }
    }

    fn fetch(&self, now_ms: i64) -> Result<Token, NoToken> {
        let token = match self {
            Self::Unsecured { principal } => Ok(make_unsecured(principal, now_ms)),
            Self::File(path) => read_file(path),
            Self::Endpoint { .. } => self.ask_endpoint(now_ms),
        }?;
        if token.expires_ms <= now_ms { Err(NoToken::Expired(token.expires_ms)) } else { Ok(token) }
    }

    /// Its address, if it is asked without TLS.
    fn plain(&self) -> Option<&str> {
        match self {
            Self::Endpoint { url, .. } => {
                let over_tls = url.get(..6).is_some_and(|it| it.eq_ignore_ascii_case("https:"));
                (!over_tls).then_some(url)
            }
            _ => None,
        }
    }

    fn ask_endpoint(&self, now_ms: i64) -> Result<Token, NoToken> {
        let Self::Endpoint { url, id, secret, scope, ca } = self else {
            return Err(NoToken::NotYet);
        };
        let away = |error: reqwest::Error| NoToken::Away(url.clone(), error.without_url());
        let mut client = reqwest::blocking::Client::builder()
            .connect_timeout(CONNECT_MAX)
            .timeout(ANSWER_MAX)
            // A server that may redirect us may have the secret.
            .redirect(reqwest::redirect::Policy::none());
        let is_near = reqwest::Url::parse(url)
            .is_ok_and(|url| url.host_str().is_some_and(crate::client::is_loopback));
        if is_near {
            // A proxy of the environment is for the world outside.
            client = client.no_proxy();
        }
        if let Some(path) = ca {
            let unread = |error: Box<dyn Error + Send + Sync>| NoToken::Ca(path.clone(), error);
            let pem = std::fs::read(path).map_err(|error| unread(error.into()))?;
            let all = reqwest::Certificate::from_pem_bundle(&pem).map_err(|e| unread(e.into()))?;
            for certificate in all {
                client = client.add_root_certificate(certificate);
            }
        }
        let mut form = vec![("grant_type", "client_credentials")];
        form.extend(scope.as_deref().map(|scope| ("scope", scope)));
        let answer = client
            .build()
            .and_then(|client| {
                client.post(url).basic_auth(id, Some(secret.expose())).form(&form).send()
            })
            .map_err(away)?;
        let status = answer.status();
        let mut body = Vec::new();
        let read = answer.take(ANSWER_BYTES_MAX).read_to_end(&mut body);
        let body: Value = match read.map(|_| serde_json::from_slice(&body)) {
            Ok(Ok(body)) => body,
            _ if status.is_success() => return Err(NoToken::NotAToken(url.clone())),
            _ => Value::Null,
        };
        if !status.is_success() {
            // RFC 6749, 5.2: a short code such as invalid_client.
            let reason = body["error"].as_str().map(|code| code.chars().take(64).collect());
            return Err(NoToken::Refused { url: url.clone(), status: status.as_u16(), reason });
        }
        let token = body["access_token"].as_str().ok_or_else(|| NoToken::NotAToken(url.clone()))?;
        let life_ms = body["expires_in"].as_i64().map(|seconds| seconds.saturating_mul(1_000));
        let expires_ms = life_ms.map(|life| now_ms.saturating_add(life));
        of_text(token, expires_ms, id)
    }
}

/// Newer clients of Java have other names for two of them.
fn canonical(name: &str) -> &str {
    match name {
        "sasl.oauthbearer.client.credentials.client.id" => CLIENT_ID,
        "sasl.oauthbearer.client.credentials.client.secret" => CLIENT_SECRET,
        other => other,
    }
}

/// `principal=NAME`, as librdkafka's own maker of such tokens reads it.
fn unsecured(config: &str) -> Option<Source> {
    let principal = config.strip_prefix("principal=")?;
    let sound = !principal.is_empty() && !principal.contains(char::is_whitespace);
    sound.then(|| Source::Unsecured { principal: principal.to_owned() })
}

fn make_unsecured(principal: &str, now_ms: i64) -> Token {
    let now = now_ms / 1_000;
    let expires = now.saturating_add(UNSECURED_LIFE.as_secs() as i64);
    let part = |json: Value| URL_SAFE_NO_PAD.encode(json.to_string());
    let claims = json!({ "sub": principal, "iat": now, "exp": expires });
    Token {
        token: format!("{}.{}.", part(json!({ "alg": "none" })), part(claims)),
        principal: principal.to_owned(),
        expires_ms: expires * 1_000,
    }
}

fn unreadable(mode: u32) -> String {
    format!("a file that not everybody may read (mode {mode:o}; chmod o-r)")
}

fn read_file(path: &Path) -> Result<Token, NoToken> {
    let unread = |error| NoToken::File(path.to_owned(), error);
    // A program that writes the file again may do so with other rights.
    if let Some(mode) = readable_by_all(&std::fs::metadata(path).map_err(unread)?) {
        return Err(NoToken::Open(path.to_owned(), mode));
    }
    let text = std::fs::read_to_string(path).map_err(unread)?;
    match text.trim() {
        "" => Err(NoToken::Empty(path.to_owned())),
        token => of_text(token, None, "waterclock"),
    }
}

/// What a token says of itself, if it is a JWT; else what was said beside it.
fn of_text(token: &str, expires_ms: Option<i64>, principal: &str) -> Result<Token, NoToken> {
    let claims = token
        .split('.')
        .nth(1)
        .and_then(|part| URL_SAFE_NO_PAD.decode(part.trim_end_matches('=')).ok())
        .and_then(|bytes| serde_json::from_slice::<Value>(&bytes).ok())
        .unwrap_or(Value::Null);
    let exp_ms = claims["exp"].as_f64().map(|seconds| (seconds * 1_000.0) as i64);
    Ok(Token {
        token: token.to_owned(),
        principal: claims["sub"].as_str().unwrap_or(principal).to_owned(),
        expires_ms: exp_ms.or(expires_ms).ok_or(NoToken::NoLife)?,
    })
}

/// The token in hand, kept fresh by a thread of its own.
pub(crate) struct Tokens {
    /// By which a client's configuration names it.
    id: u64,
    source: Source,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    token: Option<Token>,
    /// Why the last attempt gave none.
    trouble: Option<String>,
}

/// Everything that clients may ask for. What is no longer used is gone from it.
static ALL: Mutex<BTreeMap<u64, Weak<Tokens>>> = Mutex::new(BTreeMap::new());
static NEXT: AtomicU64 = AtomicU64::new(0);

impl Tokens {
    /// Begins to fetch tokens, if these settings ask for them.
    pub(crate) fn start(given: &Given) -> Option<Arc<Self>> {
        let source = Source::read(given).ok().flatten()?;
        if let Some(url) = source.plain() {
            tracing::warn!(
                url,
                "the token endpoint is asked without TLS: anyone who hears it has the client's secret and its tokens; use https://"
            );
        }
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let (state, changed) = (Mutex::default(), Condvar::new());
        let tokens = Arc::new(Self { id, source, state, changed });
        let weak = Arc::downgrade(&tokens);
        ALL.lock().insert(id, Weak::clone(&weak));
        let spawned =
            std::thread::Builder::new().name("wc-tokens".into()).spawn(move || keep(&weak));
        if let Err(error) = spawned {
            tokens.note(Err(format!("no thread to fetch tokens with: {error}")));
        }
        Some(tokens)
    }

    /// Names it in a client's configuration.
    pub(crate) fn id(&self) -> String {
        self.id.to_string()
    }

    /// The token in hand. Waits only while there never was one.
    pub(crate) fn token(&self) -> Result<OAuthToken, String> {
        let until = Instant::now() + FIRST_MAX;
        let mut state = self.state.lock();
        while state.token.is_none() && state.trouble.is_none() && Instant::now() < until {
            let left = until.saturating_duration_since(Instant::now());
            self.changed.wait_for(&mut state, left);
        }
        let now_ms = now_ms();
        match (&state.token, &state.trouble) {
            (Some(token), _) if token.expires_ms > now_ms => Ok(OAuthToken {
                token: token.token.clone(),
                principal_name: token.principal.clone(),
                lifetime_ms: token.expires_ms,
            }),
            (_, Some(trouble)) => Err(trouble.clone()),
            (Some(token), None) => Err(NoToken::Expired(token.expires_ms).told()),
            (None, None) => Err(NoToken::NotYet.told()),
        }
    }

    fn note(&self, outcome: Result<Token, String>) {
        let mut state = self.state.lock();
        match outcome {
            Ok(token) => *state = State { token: Some(token), trouble: None },
            Err(trouble) => {
                if state.trouble.as_ref() != Some(&trouble) {
                    tracing::warn!(trouble, "no new token for Kafka, trying again");
                }
                state.trouble = Some(trouble);
            }
        }
        self.changed.notify_all();
    }
}

impl Drop for Tokens {
    fn drop(&mut self) {
        ALL.lock().remove(&self.id);
    }
}

/// Fetches for as long as somebody uses it.
fn keep(tokens: &Weak<Tokens>) {
    let mut failures = 0;
    let mut next = Instant::now();
    loop {
        // Short naps, so that the thread ends soon after the last user.
        std::thread::park_timeout(next.saturating_duration_since(Instant::now()).min(RENEW_LEAST));
        let Some(tokens) = tokens.upgrade() else { return };
        if Instant::now() < next {
            continue;
        }
        let now_ms = now_ms();
        let fetched = tokens.source.fetch(now_ms);
        let wait = match &fetched {
            Ok(token) => {
                failures = 0;
                let left =
                    Duration::from_millis(token.expires_ms.saturating_sub(now_ms).unsigned_abs());
                let most =
                    if let Source::File(_) = tokens.source { LOOK_EVERY } else { RENEW_MOST };
                (left * 3 / 4).clamp(RENEW_LEAST, most)
            }
            Err(_) => {
                failures = (failures + 1).min(4);
                (RENEW_LEAST * (1 << failures)).min(RENEW_AGAIN_MAX)
            }
        };
        tokens.note(fetched.map_err(|why| why.told()));
        next = Instant::now() + wait;
    }
}

fn now_ms() -> i64 {
    i64::try_from(wall_clock().0).unwrap_or(i64::MAX)
}

/// What librdkafka is told when a client of ours asks for a token; `config` is what its settings name.
///
/// # Errors
/// There is none at the moment; librdkafka asks again after some seconds.
pub(crate) fn token(config: Option<&str>) -> Result<OAuthToken, Box<dyn Error>> {
    let id = config.and_then(|id| id.parse().ok());
    let all = ALL.lock();
    let tokens = id.and_then(|id: u64| all.get(&id)?.upgrade());
    drop(all);
    tokens.ok_or("nobody fetches tokens for this client")?.token().map_err(Into::into)
}

/// The items of a `ClientContext` by which its clients are given tokens: every context has them.
macro_rules! tokens {
    () => {
        tokens!(without_log);

        fn log(&self, level: rdkafka::config::RDKafkaLogLevel, facility: &str, message: &str) {
            $crate::client::connect::said(level, facility, message);
        }
    };
    (without_log) => {
        const ENABLE_REFRESH_OAUTH_TOKEN: bool = true;

        fn generate_oauth_token(
            &self,
            config: Option<&str>,
        ) -> Result<rdkafka::client::OAuthToken, Box<dyn std::error::Error>> {
            $crate::client::oauth::token(config)
        }
    };
}
pub(crate) use tokens;

#[cfg(test)]
mod tests;
