//! Finds an instance and asks it: a member of the namespace, as `<ns>.meta` names them, or the one that was named.
//!
//! Any instance answers for any timer, so the first that says how it is will do. While a lane moves it says so, and
//! it is asked again for a while.
//!
//! # Invariants
//! 1. A member that does not answer keeps nobody from asking the next one, unless what was asked for must not be done twice.
//! 2. Whether somebody was asked for a change and has not answered is told: then it may have been done.

use std::time::{Duration, Instant};

use clap::Args;
use reqwest::blocking::{Client, Response};
use reqwest::{Method, StatusCode, Url, header};
use serde_json::Value;

use super::{Exit, Failure, Global};
use crate::config::Config;
use crate::kafka::meta::Error as MetaError;
use crate::kafka::{Connection, Member, NoAnswer, Roster};

/// Longest wait for a connection to a member.
const CONNECT_MAX: Duration = Duration::from_secs(2);
/// How long a member may take to say how it is, which waits for nothing; a process that stands still says nothing.
const PROBE_MAX: Duration = Duration::from_secs(2);
/// What an answer may take on its way, beyond the time in which an instance gives it.
const BESIDE: Duration = Duration::from_secs(3);
/// What an instance may take beyond the wait of a request.
const GRACE: Duration = Duration::from_secs(2);
/// The longest that an instance can be asked to wait.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// How long a look at an instance's health may take, which is never waited for.
const LOOK_MAX: Duration = Duration::from_secs(5);
/// How long to wait for a member where there is none, and how often to look: a starting one needs a second or two.
const START_MAX: Duration = Duration::from_secs(5);
const START_LOOK: Duration = Duration::from_millis(300);
/// How long it is asked again while a lane moves.
const AGAIN_MAX: Duration = Duration::from_secs(20);
/// Between two such questions, where nobody says when to come again.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// What is to be said where somebody was asked for a change and has not answered.
const OPEN: &str = "; one that was asked did not answer, and may have done it: ask again";
/// Longest pause that an instance may ask for.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Where to ask.
#[derive(Args, Clone, Debug, Default)]
pub(super) struct Where {
    /// Asks this instance, as in http://host:port [default: a member that the meta topic names]
    #[arg(long, value_name = "URL")]
    server: Option<String>,
}

/// How long to wait for an instance that starts.
#[derive(Args, Clone, Copy, Debug)]
pub(super) struct StartWait {
    /// How long to wait for an instance that is starting, at most 1m
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = wait)]
    pub(super) wait: Duration,
}

/// How long somebody wants to wait.
pub(super) fn wait(text: &str) -> Result<Duration, String> {
    let wait = crate::engine::header::duration(text).map(|wait| Duration::from_millis(wait.0));
    // Headers take a bare number for milliseconds. Here it is far more often meant as seconds.
    let has_unit = text == "0" || text.ends_with(|last: char| last.is_ascii_alphabetic());
    match wait {
        Ok(wait) if wait <= WAIT_MAX && has_unit => Ok(wait),
        _ => Err("want a duration of at most 1m with its unit, as in 20s".to_owned()),
    }
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
    #[error("no instance answers at {tried}{}", if *is_open { OPEN } else { "" })]
    Silent {
        tried: String,
        /// Whether somebody was asked to change something.
        is_open: bool,
        #[source]
        source: reqwest::Error,
    },
    #[error("{}: {detail}{}", if *status < 500 { "refused" } else { "not available now" }, at.as_ref().map(|at| format!(" (at {at})")).unwrap_or_default())]
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
    let detail = problem["detail"].as_str().unwrap_or_default();
    let option = if problem["code"] == "key_needed" { " (--key)" } else { "" };
    let detail = format!("{detail}{option}");
    // Where it stands in a batch of one says nothing.
    Err(DoorError::Refused { status: status.unwrap_or(500), detail, at: None })
}

/// Instances that can be asked.
pub(super) struct Door {
    client: Client,
    bases: Vec<Url>,
    /// Somebody was named, and is asked whatever it says of itself.
    is_named: bool,
}

/// What is asked for. docs/http-api.md says how long an instance takes for each.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// A look-up of one timer, or of a batch.
    Look,
    /// A list, or a forecast.
    AllLanes,
    /// The count before a bulk cancel.
    Count,
    /// A page of a bulk cancel.
    Page,
    /// A cancel of one timer, with how long to wait for what becomes of it.
    Cancel(Duration),
    /// Another time for one timer, with how long to wait for what becomes of it.
    Reschedule(Duration),
    /// What became of a cancel or of another time, with how long to wait for that.
    Again(Duration),
}

impl Kind {
    /// In what time an instance answers, whatever stands still.
    fn promised(self) -> Duration {
        let seconds = match self {
            Self::Look => 7,
            Self::AllLanes | Self::Page => 20,
            Self::Count => 62,
            Self::Cancel(wait) | Self::Reschedule(wait) | Self::Again(wait) => {
                return wait.min(WAIT_MAX) + GRACE;
            }
        };
        Duration::from_secs(seconds)
    }

    /// Whether it changes something.
    fn is_change(self) -> bool {
        matches!(self, Self::Page | Self::Cancel(_) | Self::Reschedule(_))
    }

    /// Whether another member may be asked after one that fell silent. A page of a bulk cancel may, too, but what the
    /// first one has cancelled would not be counted; and of another time each would make a version.
    fn may_repeat(self) -> bool {
        !matches!(self, Self::Page | Self::Reschedule(_))
    }
}

impl Where {
    /// Finds out whom to ask, and waits a little for a member where there is none; `None`: there is none.
    pub(super) fn door(&self, global: &Global, config: &Config) -> Result<Option<Door>, DoorError> {
        let until = Instant::now() + START_MAX;
        let mut starting = Starting { is_said: global.json(), until };
        loop {
            let door = self.found(global, config)?;
            if door.is_some() || !starting.goes_on() {
                return Ok(door);
            }
        }
    }

    /// Whom to ask now; `None`: there is no member.
    fn found(&self, global: &Global, config: &Config) -> Result<Option<Door>, DoorError> {
        let bases = match &self.server {
            Some(server) => vec![base(server)?],
            None => {
                let members = members(&global.connection(config), config)?;
                let address = |member: &Member| base(&format!("http://{}", member.address)).ok();
                members.iter().filter_map(address).collect()
            }
        };
        if bases.is_empty() {
            return Ok(None);
        }
        let client = Client::builder().connect_timeout(CONNECT_MAX);
        // Members are asked directly, and so is this machine; a proxy of the environment is for the world outside.
        let is_near = self.server.is_none() || bases.iter().all(is_local);
        let client = if is_near { client.no_proxy() } else { client };
        let client = client.build().map_err(DoorError::Client)?;
        Ok(Some(Door { client, bases, is_named: self.is_named() }))
    }

    /// The same, where nothing can be done without.
    pub(super) fn open(&self, global: &Global, config: &Config) -> Result<Door, Failure> {
        let door = self.door(global, config)?;
        door.ok_or_else(|| DoorError::Nobody(config.namespace.clone()).into())
    }

    /// The same, and waits until one of them answers. One that starts is not known yet, or takes no connections: one that takes
    /// them and says nothing is not waited for.
    pub(super) fn open_within(
        &self,
        wait: Duration,
        global: &Global,
        config: &Config,
    ) -> Result<Door, DoorError> {
        let until = Instant::now() + wait;
        let mut starting = Starting { is_said: global.json(), until };
        loop {
            let error = match self.found(global, config)?.map(Door::answered) {
                Some(Ok(door)) => return Ok(door),
                Some(Err(error)) => error,
                None => DoorError::Nobody(config.namespace.clone()),
            };
            let may_start = match &error {
                DoorError::Silent { source, .. } => is_refused(source),
                _ => true,
            };
            if !may_start
                && self.is_named()
                && let Some(door) = self.found(global, config)?
            {
                // It takes connections. Whoever named it wants it asked, whatever it says of itself.
                return Ok(door);
            }
            if !may_start || !starting.goes_on() {
                return Err(error);
            }
        }
    }

    /// The instance at this address.
    pub(super) fn at(server: String) -> Self {
        Self { server: Some(server) }
    }

    /// As it stands in a command.
    pub(super) fn words(&self) -> Vec<&str> {
        self.server.iter().flat_map(|server| ["--server", server]).collect()
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

fn is_local(base: &Url) -> bool {
    base.host_str().is_some_and(crate::kafka::is_loopback)
}

/// A wait for an instance that starts: it is known, or answers, only once it knows the brokers' time.
struct Starting {
    is_said: bool,
    until: Instant,
}

impl Starting {
    /// Waits a moment before the next look, and says so the first time; false: it was long enough.
    fn goes_on(&mut self) -> bool {
        if Instant::now() >= self.until {
            return false;
        }
        if !self.is_said {
            // Standard output has the result only.
            let line = b"no instance answers; waiting for one that is starting\n";
            let _ = std::io::Write::write_all(&mut std::io::stderr(), line);
            self.is_said = true;
        }
        std::thread::sleep(START_LOOK);
        true
    }
}

/// The members that `<ns>.meta` names, in the order of their names.
pub(super) fn members(connection: &Connection, config: &Config) -> Result<Vec<Member>, DoorError> {
    let meta = format!("{}.meta", config.namespace);
    let roster =
        Roster::read(connection, &meta, &config.namespace).map_err(|error| match error {
            MetaError::Away(error) => DoorError::Kafka(error),
            error => DoorError::Members(error),
        })?;
    Ok(roster.members().cloned().collect())
}

impl Door {
    /// Asks for `path` (without its first slash), and asks again while a lane moves.
    pub(super) fn ask(
        &self,
        kind: Kind,
        method: &Method,
        path: &str,
        query: &[(&str, String)],
        body: Option<&Value>,
    ) -> Result<Value, DoorError> {
        self.ask_until(Instant::now() + AGAIN_MAX, kind, method, path, query, body)
    }

    /// The same, and asks again until then.
    fn ask_until(
        &self,
        until: Instant,
        kind: Kind,
        method: &Method,
        path: &str,
        query: &[(&str, String)],
        body: Option<&Value>,
    ) -> Result<Value, DoorError> {
        // Whether somebody was asked for a change and has not answered.
        let mut is_open = false;
        loop {
            let answer = self.first(kind, method, path, query, body, &mut is_open)?;
            let Answer { status, pause, text, at } = answer;
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
            let Some(mut detail) = word("detail") else { return Err(DoorError::Strange(at)) };
            if is_open {
                detail += OPEN;
            }
            return Err(DoorError::Refused { status: status.as_u16(), detail, at: word("at") });
        }
    }

    /// Puts one that says how it is before the others; or why there is none, by what most of all speaks against a start.
    fn answered(mut self) -> Result<Self, DoorError> {
        let mut silent: Option<reqwest::Error> = None;
        for at in 0..self.bases.len() {
            match self.is_alive(&self.bases[at]) {
                Ok(_) => {
                    self.bases[..=at].rotate_right(1);
                    return Ok(self);
                }
                Err(error) => {
                    if silent.as_ref().is_none_or(is_refused) {
                        silent = Some(error);
                    }
                }
            }
        }
        Err(match silent {
            Some(source) => DoorError::Silent { tried: self.tried(), is_open: false, source },
            None => DoorError::Nobody(String::new()),
        })
    }

    fn tried(&self) -> String {
        self.bases.iter().map(Url::as_str).collect::<Vec<_>>().join(", ")
    }

    /// Looks one timer up by a batch of one, and asks again while its lane moves or its owner does not answer.
    pub(super) fn look_up(&self, timer: &Value) -> Result<Value, DoorError> {
        let until = Instant::now() + AGAIN_MAX;
        let body = serde_json::json!({ "timers": [timer] });
        loop {
            let path = "v1/timers:batchGet";
            let told = self.ask_until(until, Kind::Look, &Method::POST, path, &[], Some(&body))?;
            match only(&told) {
                Err(DoorError::Refused { status: 503, .. })
                    if Instant::now() + LOOK_AGAIN < until =>
                {
                    std::thread::sleep(LOOK_AGAIN);
                }
                told => return told.cloned(),
            }
        }
    }

    /// The response there, healthy or not. It asks once.
    pub(super) fn look(&self, path: &str) -> Result<Value, DoorError> {
        let (at, told) = self.read(path)?;
        serde_json::from_str(&told).map_err(|_| DoorError::Strange(at))
    }

    /// The same as text, with where it was asked.
    pub(super) fn read(&self, path: &str) -> Result<(String, String), DoorError> {
        let base = self.bases.first().ok_or_else(|| DoorError::Nobody(String::new()))?;
        let url = base.join(path).map_err(|_| DoorError::Address(base.to_string()))?;
        let told = self.client.get(url).timeout(LOOK_MAX).send().and_then(Response::text);
        let silent = |source| DoorError::Silent { tried: base.to_string(), is_open: false, source };
        Ok((base.to_string(), told.map_err(silent)?))
    }

    /// The answer of the first that gives one.
    fn first(
        &self,
        kind: Kind,
        method: &Method,
        path: &str,
        query: &[(&str, String)],
        body: Option<&Value>,
        is_open: &mut bool,
    ) -> Result<Answer, DoorError> {
        let mut silent = None;
        for base in &self.bases {
            if let Some(error) = self.probe(base) {
                silent = Some(error);
                continue;
            }
            let url = base.join(path).map_err(|_| DoorError::Address(base.to_string()))?;
            let mut asked = self.client.request(method.clone(), url).query(query);
            if let Some(body) = body {
                asked = asked.json(body);
            }
            let answer = asked.timeout(kind.promised() + BESIDE).send().and_then(|response| {
                let (status, pause) = (response.status(), pause(&response));
                Ok(Answer { status, pause, text: response.text()?, at: base.to_string() })
            });
            let error = match answer {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            // Without a connection nothing was asked yet.
            let was_asked = !error.is_connect();
            *is_open |= was_asked && kind.is_change();
            silent = Some(error);
            if was_asked && !kind.may_repeat() {
                break;
            }
        }
        match silent {
            Some(source) => {
                Err(DoorError::Silent { tried: self.tried(), is_open: *is_open, source })
            }
            None => Err(DoorError::Nobody(String::new())),
        }
    }

    /// Why a member says nothing, if it does not. One that was named is not asked that.
    fn probe(&self, base: &Url) -> Option<reqwest::Error> {
        if self.is_named { None } else { self.is_alive(base).err() }
    }

    fn is_alive(&self, base: &Url) -> Result<Response, reqwest::Error> {
        let mut url = base.clone();
        url.set_path(&format!("{}health/live", base.path()));
        self.client.get(url).timeout(PROBE_MAX).send()
    }
}

/// What an instance answered.
struct Answer {
    status: StatusCode,
    /// When to ask again, if it said so.
    pause: Option<Duration>,
    text: String,
    at: String,
}

/// Whether nobody takes connections there, as before a start. One that takes them and says nothing is another case.
fn is_refused(error: &reqwest::Error) -> bool {
    error.is_connect() && !error.is_timeout()
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

    /// An address at which `health/live` is answered, and everything else with `other`; `None`: not at all.
    fn server(other: Option<&'static str>) -> Url {
        use std::io::{BufRead as _, BufReader, Write as _};
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let mut silent = Vec::new();
            for stream in listener.incoming() {
                let mut stream = BufReader::new(stream.unwrap());
                let mut head = String::new();
                stream.read_line(&mut head).unwrap();
                let answer =
                    if head.contains("health/live") { Some("200 OK\r\n\r\n{}") } else { other };
                let Some(answer) = answer else {
                    silent.push(stream);
                    continue;
                };
                let mut line = String::new();
                while stream.read_line(&mut line).unwrap() > 2 {
                    line.clear();
                }
                let answer =
                    format!("HTTP/1.1 {}", answer.replacen("\r\n", "\r\nConnection: close\r\n", 1));
                stream.get_mut().write_all(answer.as_bytes()).unwrap();
            }
        });
        base(&format!("http://{address}")).unwrap()
    }

    #[test]
    fn the_next_member_is_asked_after_a_silent_one_and_what_that_may_have_done_is_told() {
        let (mute, fair) = (server(None), server(Some("200 OK\r\n\r\n{\"timers\":[]}")));
        let busy = server(Some("503 Busy\r\n\r\n{\"detail\":\"busy\"}"));
        let strict = server(Some("400 Bad\r\n\r\n{\"detail\":\"bad\"}"));
        let cancel = Kind::Cancel(Duration::ZERO);
        #[rustfmt::skip]
        let cases = [
            ("it answers",                     cancel,       vec![&mute, &fair], None),
            ("it refuses, and the other?",     cancel,       vec![&mute, &busy], Some("may have done")),
            ("it refuses, alone",              cancel,       vec![&busy],        Some("not available now: busy")),
            ("it does not understand",         cancel,       vec![&strict],      Some("refused: bad")),
        ];
        std::thread::scope(|scope| {
            for (why, kind, bases, want) in cases {
                scope.spawn(move || {
                    let client = Client::builder().no_proxy().build().unwrap();
                    let bases = bases.into_iter().cloned().collect();
                    let door = Door { client, bases, is_named: false };
                    let told = door.ask(kind, &Method::POST, "x", &[], None);
                    match (told, want) {
                        (Ok(_), None) => {}
                        (Err(error), Some(want)) => {
                            assert!(error.to_string().contains(want), "{why}: {error}");
                        }
                        (told, _) => panic!("{why}: {told:?}"),
                    }
                });
            }
        });
    }
}
