//! Finds an instance and asks it: a member of the namespace, as `<ns>.meta` names them, or the one that was named.
//!
//! Any instance answers for any timer, so the first that takes the connection will do. While a lane moves it says so, and
//! it is asked again for a while.

use std::time::{Duration, Instant};

use clap::Args;
use reqwest::blocking::{Client, Response};
use reqwest::{Method, StatusCode, Url, header};
use serde_json::Value;

use super::{Exit, Failure, Global};
use crate::config::Config;
use crate::kafka::meta::Error as MetaError;
use crate::kafka::{Connection, NoAnswer, Roster};

/// Longest wait for a connection to a member.
const CONNECT_MAX: Duration = Duration::from_secs(2);
/// How long an answer may take beyond what was asked to be waited for; a count looks at every timer.
const ANSWER_MAX: Duration = Duration::from_secs(150);
/// How long it is asked again while a lane moves.
const AGAIN_MAX: Duration = Duration::from_secs(20);
/// Longest pause that an instance may ask for.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Where to ask.
#[derive(Args, Clone, Debug, Default)]
pub(super) struct Where {
    /// Asks this instance, as in http://host:port [default: a member that the meta topic names]
    #[arg(long, value_name = "URL")]
    server: Option<String>,
}

/// Why nobody could be asked, or what was answered instead.
#[derive(Debug, thiserror::Error)]
pub(super) enum DoorError {
    #[error("{0:?} is no address of an instance; want http://host:port")]
    Address(String),
    #[error("could not set up the connection")]
    Client(#[source] reqwest::Error),
    #[error("could not reach Kafka")]
    Kafka(#[source] NoAnswer),
    #[error("could not find out who the members are")]
    Members(#[source] MetaError),
    #[error("no member of {0} is known; is an instance running?")]
    Nobody(String),
    #[error("no instance answers at {tried}")]
    Silent {
        tried: String,
        #[source]
        source: reqwest::Error,
    },
    #[error("refused: {detail}{}", at.as_ref().map(|at| format!(" (at {at})")).unwrap_or_default())]
    Refused { status: u16, detail: String, at: Option<String> },
    #[error("{0} answered something else than an instance does")]
    Strange(String),
}

impl From<DoorError> for Failure {
    fn from(error: DoorError) -> Self {
        let exit = match &error {
            DoorError::Address(_) | DoorError::Refused { status: 400 | 413, .. } => Exit::Usage,
            DoorError::Refused { status: 500.., .. }
            | DoorError::Silent { .. }
            | DoorError::Nobody(_) => Exit::Unavailable,
            DoorError::Kafka(_) | DoorError::Members(MetaError::Slow { .. }) => Exit::Unavailable,
            DoorError::Members(_) | DoorError::Refused { .. } => Exit::Negative,
            DoorError::Client(_) | DoorError::Strange(_) => Exit::Internal,
        };
        Self::new(exit, error)
    }
}

/// What one element of a batch of one says, or the problem in its place.
pub(super) fn only(told: &Value) -> Result<&Value, DoorError> {
    let each = &told["timers"][0];
    let problem = &each["problem"];
    if !problem.is_object() {
        return Ok(each);
    }
    let status = problem["status"].as_u64().and_then(|status| u16::try_from(status).ok());
    let detail = problem["detail"].as_str().unwrap_or_default().to_owned();
    // Where it stands in a batch of one says nothing.
    Err(DoorError::Refused { status: status.unwrap_or(500), detail, at: None })
}

/// Instances that can be asked.
pub(super) struct Door {
    client: Client,
    bases: Vec<Url>,
}

impl Where {
    /// Finds out whom to ask; `None`: there is no member.
    pub(super) fn door(&self, global: &Global, config: &Config) -> Result<Option<Door>, DoorError> {
        let bases = match &self.server {
            Some(server) => vec![base(server)?],
            None => members(&global.connection(config), config)?,
        };
        if bases.is_empty() {
            return Ok(None);
        }
        let client = Client::builder().connect_timeout(CONNECT_MAX).timeout(ANSWER_MAX);
        // Members are asked directly; a proxy of the environment is for the world outside.
        let client = if self.server.is_none() { client.no_proxy() } else { client };
        let client = client.build().map_err(DoorError::Client)?;
        Ok(Some(Door { client, bases }))
    }

    /// The same, where nothing can be done without.
    pub(super) fn open(&self, global: &Global, config: &Config) -> Result<Door, Failure> {
        let door = self.door(global, config)?;
        door.ok_or_else(|| DoorError::Nobody(config.namespace.clone()).into())
    }

    /// Whether an instance was named.
    pub(super) fn is_named(&self) -> bool {
        self.server.is_some()
    }
}

fn base(text: &str) -> Result<Url, DoorError> {
    let url = Url::parse(text).ok().filter(|url| url.has_host());
    let url = url.filter(|url| ["http", "https"].contains(&url.scheme()));
    let mut url = url.ok_or_else(|| DoorError::Address(text.to_owned()))?;
    // What stands behind the host is kept in front of the paths.
    let path = format!("{}/", url.path().trim_end_matches('/'));
    url.set_path(&path);
    url.set_query(None);
    Ok(url)
}

fn members(connection: &Connection, config: &Config) -> Result<Vec<Url>, DoorError> {
    let meta = format!("{}.meta", config.namespace);
    let roster =
        Roster::read(connection, &meta, &config.namespace).map_err(|error| match error {
            MetaError::Away(error) => DoorError::Kafka(error),
            error => DoorError::Members(error),
        })?;
    Ok(roster
        .members()
        .filter_map(|member| base(&format!("http://{}", member.address)).ok())
        .collect())
}

impl Door {
    /// Asks for `path` (without its first slash), and asks again while a lane moves.
    pub(super) fn ask(
        &self,
        method: &Method,
        path: &str,
        query: &[(&str, String)],
        body: Option<&Value>,
    ) -> Result<Value, DoorError> {
        let until = Instant::now() + AGAIN_MAX;
        loop {
            let (response, at) = self.first(method, path, query, body)?;
            let (status, pause) = (response.status(), pause(&response));
            let text = response.text().unwrap_or_default();
            if let (StatusCode::SERVICE_UNAVAILABLE, Some(pause)) = (status, pause)
                && Instant::now() + pause < until
            {
                std::thread::sleep(pause);
                continue;
            }
            let Ok(body) = serde_json::from_str::<Value>(&text) else {
                return Err(DoorError::Strange(at));
            };
            if status.is_success() {
                return Ok(body);
            }
            let word = |name: &str| body[name].as_str().map(str::to_owned);
            let Some(detail) = word("detail") else { return Err(DoorError::Strange(at)) };
            return Err(DoorError::Refused { status: status.as_u16(), detail, at: word("at") });
        }
    }

    /// The answer of the first that takes the connection, and where it is.
    fn first(
        &self,
        method: &Method,
        path: &str,
        query: &[(&str, String)],
        body: Option<&Value>,
    ) -> Result<(Response, String), DoorError> {
        let mut silent = None;
        for base in &self.bases {
            let url = base.join(path).map_err(|_| DoorError::Address(base.to_string()))?;
            let mut asked = self.client.request(method.clone(), url).query(query);
            if let Some(body) = body {
                asked = asked.json(body);
            }
            match asked.send() {
                Ok(response) => return Ok((response, base.to_string())),
                // Nothing was asked yet: another one will do.
                Err(error) if error.is_connect() => silent = Some(error),
                Err(source) => return Err(DoorError::Silent { tried: base.to_string(), source }),
            }
        }
        let tried: Vec<&str> = self.bases.iter().map(Url::as_str).collect();
        match silent {
            Some(source) => Err(DoorError::Silent { tried: tried.join(", "), source }),
            None => Err(DoorError::Nobody(String::new())),
        }
    }
}

fn pause(response: &Response) -> Option<Duration> {
    let seconds = response.headers().get(header::RETRY_AFTER)?.to_str().ok()?.parse().ok()?;
    Some(Duration::from_secs(seconds).min(PAUSE_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_named_with_its_scheme_and_may_stand_behind_a_path() {
        #[rustfmt::skip]
        let cases = [
            ("plain",           "http://a:80",          Some("http://a/v1/timers")),
            ("behind a path",   "https://a/wc",         Some("https://a/wc/v1/timers")),
            ("with a slash",    "http://[::1]:8080/",   Some("http://[::1]:8080/v1/timers")),
            ("no scheme",       "a:80",                 None),
            ("another scheme",  "ftp://a",              None),
            ("nothing",         "",                     None),
        ];
        for (why, text, want) in cases {
            let url = base(text).ok().map(|base| base.join("v1/timers").expect(why).to_string());
            assert_eq!(url.as_deref(), want, "{why}");
        }
    }
}
