//! The instances that commands send their requests to: those that `<ns>.meta` names, or the one that `--server` names.
//!
//! Any instance answers for any timer, so the first that is alive will do. How a request is sent and repeated stands in
//! [`crate::client::http`]; here stands how long a command waits, and what it prints when nobody answers.
//!
//! # Invariants
//! 1. A member that does not answer does not stop a command: the next one is asked, unless the request must not be repeated.
//! 2. An error says whether an instance may have done what was asked for.

use std::cell::Cell;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::runtime::Runtime;

use super::{Exit, Failure, Global, output};
use crate::api::tls::{self, TlsError, TlsSettings};
use crate::client::command::{Batch, Each, Wrong};
use crate::client::http::{
    self, BadAddress, Http, Method, NoAnswer as NoReply, Request, Tls, Url, WAIT_MAX,
};
use crate::config::Config;
use crate::engine::header::duration_with_unit;
use crate::kafka::meta::Error as MetaError;
use crate::kafka::{Connection, Member, NoAnswer, Roster};

/// What an instance may take beyond the wait of a request.
const GRACE: Duration = Duration::from_secs(2);
/// How long a look at an instance's health may take, which waits for nothing.
const LOOK_MAX: Duration = Duration::from_secs(5);
/// How long to wait for a member where there is none, and how often to look: a starting one needs a second or two.
const START_MAX: Duration = Duration::from_secs(5);
const START_LOOK: Duration = Duration::from_millis(300);
/// How long a request is repeated while a lane moves.
const AGAIN_MAX: Duration = Duration::from_secs(20);
/// For how long a request is repeated before a person is told.
const TELL_AFTER: Duration = Duration::from_secs(2);
/// Between two look-ups of a timer whose owner does not answer.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// The end of an error where none did anything.
const START_ONE: &str = " (start one with `waterclock run`, or name one with --server)";
/// The end of an error where an instance may have done what was asked for.
const MAY_BE_DONE: &str = "; one that was asked did not answer, and may have done it: ask again";

/// Which instance is asked.
#[derive(Args, Clone, Debug, Default)]
pub(super) struct ServerArg {
    /// Asks this instance, as in http://host:port [default: an instance that the meta topic names]
    #[arg(long, value_name = "URL")]
    server: Option<String>,
    /// Says who asks, where instances want to know; better set in WATERCLOCK_API__TOKEN than typed
    #[arg(long, value_name = "TOKEN")]
    api_token: Option<String>,
    /// Trusts instances whose certificates these authorities have signed, in PEM [env: WATERCLOCK_API__CA]
    #[arg(long, value_name = "FILE")]
    api_ca: Option<PathBuf>,
    /// Shows this certificate where an instance asks for one, in PEM [env: WATERCLOCK_API__CLIENT_CERTIFICATE]
    #[arg(long, value_name = "FILE", requires = "api_client_key")]
    api_client_certificate: Option<PathBuf>,
    /// The key of that certificate, in PEM [env: WATERCLOCK_API__CLIENT_KEY]
    #[arg(long, value_name = "FILE", requires = "api_client_certificate")]
    api_client_key: Option<PathBuf>,
}

/// How long to wait for an instance that starts.
#[derive(Args, Clone, Copy, Debug)]
pub(super) struct StartWait {
    /// How long to wait for an instance that is starting, at most 1m
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = wait)]
    pub(super) wait: Duration,
}

/// Reads how long a command may wait.
pub(super) fn wait(text: &str) -> Result<Duration, String> {
    let wait = match text {
        "0" => Some(Duration::ZERO),
        _ => duration_with_unit(text).map(|wait| Duration::from_millis(wait.0)),
    };
    match wait {
        Some(wait) if wait <= WAIT_MAX => Ok(wait),
        _ => Err("want a duration of at most 1m with its unit, as in 20s".to_owned()),
    }
}

/// How a command says who asks.
const TOKEN_BY: &str =
    " (with --api-token, WATERCLOCK_API__TOKEN, or api.token of the configuration)";

/// How a command says whom it trusts.
const TRUST_BY: &str = " (name the authority of its certificate with --api-ca, WATERCLOCK_API__CA, or api.ca of the configuration)";

/// How a command says which certificate it shows.
const SHOW_BY: &str = " (it takes no client without a certificate that it trusts: show one with --api-client-certificate and --api-client-key, \
     WATERCLOCK_API__CLIENT_CERTIFICATE and _KEY, or api.client-certificate and api.client-key of the configuration)";

/// Why there is no answer, or what was answered instead.
#[derive(Debug, thiserror::Error)]
pub(super) enum ClientError {
    #[error(transparent)]
    Address(#[from] BadAddress),
    #[error("could not set up TLS")]
    Tls(#[from] TlsError),
    #[error("could not set up the connection")]
    Connection(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("could not reach Kafka")]
    Kafka(#[source] NoAnswer),
    #[error("could not find out who the members are")]
    Members(#[source] MetaError),
    #[error("no instance of namespace {0} runs; start one: `waterclock run`")]
    Nobody(String),
    #[error("no instance answers at {tried}{}", after_silence(*may_be_done, source))]
    Silent {
        tried: String,
        /// Whether an instance may have done what was asked for.
        may_be_done: bool,
        #[source]
        source: http::Error,
    },
    #[error("{}{detail}{}{}", verdict(*status), place(at.as_deref()), if *status == 401 { TOKEN_BY } else { "" })]
    Refused { status: u16, detail: String, at: Option<String> },
    #[error("{0} answered something else than an instance does")]
    Strange(String),
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        let exit = match &error {
            ClientError::Address(_) | ClientError::Refused { status: 400 | 413 | 422, .. } => {
                Exit::Usage
            }
            ClientError::Refused { status: 500.., .. }
            | ClientError::Silent { .. }
            | ClientError::Nobody(_)
            | ClientError::Kafka(_) => Exit::Unavailable,
            ClientError::Tls(_) => Exit::Configuration,
            // What stands there has to be mended.
            ClientError::Members(
                MetaError::Missing { .. } | MetaError::Unreadable { .. } | MetaError::Newer { .. },
            ) => Exit::Negative,
            ClientError::Members(_) => Exit::Unavailable,
            ClientError::Refused { .. } => Exit::Negative,
            ClientError::Connection(_) | ClientError::Strange(_) => Exit::Internal,
        };
        Self::new(exit, error)
    }
}

/// What is to be done where nobody answers.
fn after_silence(may_be_done: bool, why: &http::Error) -> &'static str {
    match untrusted(why) {
        _ if may_be_done => MAY_BE_DONE,
        Some(Untrusted::Theirs) => TRUST_BY,
        Some(Untrusted::Ours) => SHOW_BY,
        None => START_ONE,
    }
}

/// Whose certificate the other side has not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Untrusted {
    /// That of the instance.
    Theirs,
    /// Ours, or we have shown none.
    Ours,
}

/// Whether there is no answer since one side has not taken the certificate of the other.
fn untrusted(why: &(dyn std::error::Error + 'static)) -> Option<Untrusted> {
    /// What the instance says of ours, in its alert.
    const OURS: [&str; 4] = [
        "alert unknown ca",
        "alert bad certificate",
        "alert certificate required",
        "alert certificate unknown",
    ];
    let texts = std::iter::successors(Some(why), |why| why.source()).map(ToString::to_string);
    texts.into_iter().find_map(|text| match text {
        text if text.contains("certificate verify failed") => Some(Untrusted::Theirs),
        text if OURS.iter().any(|alert| text.contains(alert)) => Some(Untrusted::Ours),
        _ => None,
    })
}

impl ClientError {
    /// Whether a certificate is the reason.
    pub(super) fn untrusted(&self) -> Option<Untrusted> {
        match self {
            Self::Silent { source, .. } => untrusted(source),
            _ => None,
        }
    }
}

/// What stands before the reason of a status that is no success.
fn verdict(status: u16) -> &'static str {
    match status {
        // Nobody refuses anything: what was asked for is not there, and the reason says so.
        404 => "",
        ..500 => "refused: ",
        _ => "not available now: ",
    }
}

/// Where in the request it is wrong. The only timer of a command is what was typed.
fn place(at: Option<&str>) -> String {
    let at = at.filter(|at| !at.starts_with("body.timers[0]"));
    at.map(|at| format!(" (at {at})")).unwrap_or_default()
}

/// Timers as an answer has them.
pub(super) fn typed<T: DeserializeOwned>(answer: &Value) -> Result<T, ClientError> {
    T::deserialize(answer).map_err(|error| ClientError::Strange(format!("an instance ({error})")))
}

/// What one element of a batch of one says, or the problem in its place.
fn only<T: DeserializeOwned>(answer: &Value) -> Result<T, ClientError> {
    match typed::<Batch<T>>(answer)?.timers.into_iter().next() {
        Some(Each::Right(each)) => Ok(each),
        Some(Each::Wrong { problem: Wrong { status, problem } }) => {
            let option = if problem.code == "key_needed" { " (--key)" } else { "" };
            let detail = format!("{}{option}", problem.detail.unwrap_or_default());
            // Where it stands in a batch of one says nothing.
            Err(ClientError::Refused { status, detail, at: None })
        }
        None => Err(ClientError::Strange("an instance (nothing of one timer)".to_owned())),
    }
}

/// Sends requests to the instances of a namespace.
pub(super) struct Client {
    runtime: Runtime,
    http: Http,
    bases: Vec<Url>,
    /// `--server` named one, which is asked whether it is alive or not.
    is_named: bool,
    /// Whether a person is told that it asks again.
    tells: bool,
    /// Whether what is asked was typed as options: then errors name these, and not the fields of the API.
    of_options: bool,
}

/// The option by which a field of a task, a project, a service or a target is given; or the argument, of a part of a path.
fn option(field: &str) -> String {
    const OTHERS: [(&str, &str); 12] = [
        ("trigger_at", "--at"),
        ("delay", "--in"),
        ("expires_at", "--expires"),
        ("retry.count", "--retries"),
        ("retry.interval", "--retry-interval"),
        ("poll.interval", "--poll"),
        ("headers", "--header"),
        ("targets", "--target"),
        ("hosts", "--host"),
        ("on_result.topic", "--on-result"),
        ("on_result.service", "--on-result"),
        ("on_result.url", "--on-result"),
    ];
    if let Some(argument) = field.strip_prefix("path.") {
        return argument.to_uppercase();
    }
    let name = field.split('[').next().unwrap_or(field);
    if let Some((_, option)) = OTHERS.iter().find(|(of, _)| *of == name) {
        return (*option).to_owned();
    }
    match name.rsplit('.').next().unwrap_or(name) {
        // All of it.
        "request" => field.to_owned(),
        last => format!("--{}", last.replace('_', "-")),
    }
}

/// What is wrong with an option: a length of time has its unit there, and only JSON has one without.
pub(super) fn of_option(detail: &str) -> String {
    detail.replace("; a number is seconds", "")
}

/// A kind of request. docs/http-api.md says how long an instance takes for each.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind<'a> {
    /// A look-up of one timer or task, or of a batch.
    Look,
    /// A new task with a request id: the same request again makes no other.
    Create,
    /// A change of a project, which may name the revision that it is made to; or a retry.
    Change(Option<u64>),
    /// A change of a schedule, which may name the version that it is made to.
    ChangeSchedule(Option<&'a str>),
    /// A new schedule, or the tasks of its past times: the same request again makes nothing new.
    NewSchedule,
    /// The end of a schedule, with how long to wait until that is decided; it may name the version that is to end.
    DeleteSchedule(Duration, Option<&'a str>),
    /// What an executor says of its turn; to say it twice is safe.
    Report,
    /// A list, or a forecast.
    AllLanes,
    /// The count before a bulk cancel.
    Count,
    /// A page of a bulk cancel.
    Page,
    /// A cancel of one timer, with how long to wait for its outcome.
    Cancel(Duration),
    /// Another time for one timer, with how long to wait for its outcome.
    Reschedule(Duration),
    /// The outcome of a cancel or of another time, with how long to wait for it.
    Again(Duration),
}

impl Kind<'_> {
    /// In what time an instance answers, whatever stands still.
    fn promised(self) -> Duration {
        let seconds = match self {
            Self::Look => 7,
            Self::Create => 17,
            Self::Change(_) | Self::ChangeSchedule(_) | Self::NewSchedule => 22,
            Self::AllLanes | Self::Page | Self::Report => 20,
            Self::Count => 62,
            Self::Cancel(wait)
            | Self::DeleteSchedule(wait, _)
            | Self::Reschedule(wait)
            | Self::Again(wait) => {
                return wait.min(WAIT_MAX) + GRACE;
            }
        };
        Duration::from_secs(seconds)
    }

    /// What it is made to, if it names that: whether that is a revision or a version, and which one.
    fn made_to(self) -> Option<(&'static str, String)> {
        match self {
            Self::Change(revision) => Some(("revision", revision?.to_string())),
            Self::ChangeSchedule(version) | Self::DeleteSchedule(_, version) => {
                Some(("version", version?.to_owned()))
            }
            _ => None,
        }
    }

    /// Whether it changes something.
    fn is_change(self) -> bool {
        !matches!(self, Self::Look | Self::AllLanes | Self::Count | Self::Again(_))
    }

    /// Whether another member may be asked after one that fell silent. A page of a bulk cancel may, too, but what the
    /// first one has cancelled would not be counted. Each change of a time or a schedule would make a version, and each one of a project
    /// a revision.
    fn may_repeat(self) -> bool {
        !matches!(
            self,
            Self::Page | Self::Reschedule(_) | Self::Change(_) | Self::ChangeSchedule(_)
        )
    }
}

impl ServerArg {
    /// Whom to ask now; `None`: there is no member.
    fn find(&self, global: &Global, config: &Config) -> Result<Option<Client>, ClientError> {
        let server = self.server.as_deref().map(http::address).transpose()?;
        let bases = match &server {
            Some(server) => vec![server.clone()],
            None => {
                let mut members = members(&global.connection(config), config)?;
                // One without the API knows no tasks and no projects; it answers for timers, if there is no other.
                members.sort_by_key(|member| !member.api);
                members.iter().filter_map(|member| http::address(&member.url()).ok()).collect()
            }
        };
        if bases.is_empty() {
            return Ok(None);
        }
        let configured = || config.api.token.as_ref().map(|token| token.expose().to_owned());
        let mut client = Client::new(server.as_ref(), bases, &self.tls(config)?)?;
        client.http = client.http.with_token(self.api_token.clone().or_else(configured));
        client.tells = !global.json();
        Ok(Some(client))
    }

    /// Whom to trust, and what to show: as the command says, or else as the configuration does.
    fn tls(&self, config: &Config) -> Result<Tls, TlsError> {
        let ca = self.api_ca.as_ref().or(config.api.ca.as_ref());
        let typed = self.api_client_certificate.as_ref().zip(self.api_client_key.as_ref());
        let api = &config.api;
        let configured = api.client_certificate.as_ref().zip(api.client_key.as_ref());
        let client =
            typed.or(configured).map(|(certificate, key)| (certificate.clone(), key.clone()));
        tls::of_client(TlsSettings { ca: ca.cloned(), client, ..TlsSettings::default() })
    }

    /// Finds out whom to ask, and waits a little for a member where there is none.
    pub(super) fn open(&self, global: &Global, config: &Config) -> Result<Client, Failure> {
        let mut starting = Starting::new(START_MAX, global);
        loop {
            match self.find(global, config)? {
                Some(client) => return Ok(client),
                None if starting.goes_on() => {}
                None => return Err(ClientError::Nobody(config.namespace.clone()).into()),
            }
        }
    }

    /// The same, and waits until one of them answers. One that is starting is not known yet, or takes no connections. One that
    /// takes them and does not answer is not waited for.
    pub(super) fn open_within(
        &self,
        wait: Duration,
        global: &Global,
        config: &Config,
    ) -> Result<Client, ClientError> {
        let mut starting = Starting::new(wait, global);
        loop {
            let error = match self.find(global, config)?.map(Client::alive_first) {
                Some(Ok(client)) => return Ok(client),
                Some(Err(error)) => error,
                None => ClientError::Nobody(config.namespace.clone()),
            };
            let may_start = match &error {
                ClientError::Silent { source, .. } => is_refused(source),
                _ => true,
            };
            if !may_start
                && self.is_named()
                && let Some(client) = self.find(global, config)?
            {
                // It takes connections. It was named by `--server`, so it is asked, alive or not.
                return Ok(client);
            }
            if !may_start || !starting.goes_on() {
                return Err(error);
            }
        }
    }

    /// The instance at this address.
    pub(super) fn at(server: String) -> Self {
        Self { server: Some(server), ..Self::default() }
    }

    /// As it stands in a command.
    pub(super) fn words(&self) -> Vec<&str> {
        let files = [
            ("--api-ca", &self.api_ca),
            ("--api-client-certificate", &self.api_client_certificate),
            ("--api-client-key", &self.api_client_key),
        ];
        let files =
            files.into_iter().filter_map(|(name, file)| Some([name, file.as_ref()?.to_str()?]));
        let server = self.server.iter().map(|server| ["--server", server.as_str()]);
        server.chain(files).flatten().collect()
    }

    /// Whether an instance was named.
    pub(super) fn is_named(&self) -> bool {
        self.server.is_some()
    }
}

/// A wait for an instance that starts: it is known, or answers, only once it knows the brokers' time.
struct Starting {
    is_said: bool,
    until: Instant,
}

impl Starting {
    fn new(wait: Duration, global: &Global) -> Self {
        Self { is_said: global.json(), until: Instant::now() + wait }
    }

    /// Waits a moment before the next look, and says so the first time; false: it was long enough.
    fn goes_on(&mut self) -> bool {
        if Instant::now() >= self.until {
            return false;
        }
        if !self.is_said {
            output::aside("no instance answers; waiting for one that is starting");
            self.is_said = true;
        }
        std::thread::sleep(START_LOOK);
        true
    }
}

/// The members that `<ns>.meta` names, in the order of their names, each with the lanes that no other has claimed since.
pub(super) fn members(
    connection: &Connection,
    config: &Config,
) -> Result<Vec<Member>, ClientError> {
    let meta = format!("{}.meta", config.namespace);
    let roster =
        Roster::read(connection, &meta, &config.namespace).map_err(|error| match error {
            MetaError::Away(error) => ClientError::Kafka(error),
            error => ClientError::Members(error),
        })?;
    Ok(roster.listed())
}

impl Client {
    pub(super) fn new(
        server: Option<&Url>,
        bases: Vec<Url>,
        tls: &Tls,
    ) -> Result<Self, ClientError> {
        let http = Http::new(server, tls).map_err(|error| ClientError::Connection(error.into()))?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| ClientError::Connection(error.into()))?;
        Ok(Self {
            runtime,
            http,
            bases,
            is_named: server.is_some(),
            tells: false,
            of_options: false,
        })
    }

    /// Sends requests to this member, and to no other instance.
    pub(super) fn of_member(member: &Member, config: &Config) -> Result<Self, ClientError> {
        let tls = ServerArg::default().tls(config)?;
        Self::new(None, vec![http::address(&member.url())?], &tls)
    }

    /// The same for what was typed as options.
    pub(super) fn of_options(self) -> Self {
        Self { of_options: true, ..self }
    }

    /// Asks for `path` (without its first slash), and asks again while a lane moves.
    pub(super) fn ask(
        &self,
        kind: Kind<'_>,
        method: &Method,
        path: &str,
        query: &[(&str, String)],
        body: Option<&Value>,
    ) -> Result<Value, ClientError> {
        self.ask_until(Instant::now() + AGAIN_MAX, kind, method, path, query, body)
    }

    /// The same, and asks again until then.
    fn ask_until(
        &self,
        until: Instant,
        kind: Kind<'_>,
        method: &Method,
        path: &str,
        query: &[(&str, String)],
        body: Option<&Value>,
    ) -> Result<Value, ClientError> {
        let made_to = kind.made_to();
        let request = Request {
            method,
            body,
            if_match: made_to.as_ref().map(|(_, which)| which.as_str()),
            promised: Some(kind.promised()),
            looks_first: !self.is_named,
            is_change: kind.is_change(),
            may_repeat: kind.may_repeat(),
            silent_max: Some(self.bases.len()),
        };
        let (asked, is_silent) = (Instant::now(), Cell::new(!self.tells));
        let at = |attempt: usize| -> Result<Url, ClientError> {
            if asked.elapsed() >= TELL_AFTER && !is_silent.replace(true) {
                let left = until.saturating_duration_since(Instant::now()).as_secs();
                output::aside(&format!("not done yet; asking again for up to {left} s"));
            }
            let mut url = at(&self.bases[attempt % self.bases.len()], path)?;
            if !query.is_empty() {
                url.query_pairs_mut().extend_pairs(query);
            }
            Ok(url)
        };
        let answer = match self.runtime.block_on(self.http.ask(&request, until, at)) {
            Ok(answer) => answer,
            Err(NoReply::Nobody(error)) => return Err(error),
            Err(NoReply::Silent { may_be_done, source, .. }) => {
                return Err(ClientError::Silent { tried: self.tried(), may_be_done, source });
            }
        };
        let strange = || ClientError::Strange(answer.url.origin().ascii_serialization());
        if answer.status.is_success() {
            return answer.json().map_err(|_| strange());
        }
        let problem = answer.problem();
        let mut detail = problem.detail.ok_or_else(strange)?;
        if !problem.errors.is_empty() {
            let all = problem.errors.iter().map(|wrong| match self.of_options {
                true => format!("{} {}", option(&wrong.at), of_option(&wrong.detail)),
                false => format!("{} {}", wrong.at, wrong.detail),
            });
            detail = all.collect::<Vec<_>>().join("; ");
        }
        let is_conflict = matches!(&*problem.code, "revision_conflict" | "version_conflict");
        if let Some((what, which)) = made_to.as_ref().filter(|_| is_conflict) {
            detail = format!("it is not at {what} {which}, so nothing was changed: {detail}");
        }
        if answer.may_be_done {
            detail += MAY_BE_DONE;
        }
        // That passes: the call ends soon.
        let is_open = problem.code == "attempt_open";
        let status = if is_open { 503 } else { answer.status.as_u16() };
        let at = problem.at.map(|at| if self.of_options { option(&at) } else { at });
        Err(ClientError::Refused { status, detail, at })
    }

    /// Puts the first that is alive before the others. Where none is, the error is the one that speaks most against a start.
    fn alive_first(mut self) -> Result<Self, ClientError> {
        let mut silent: Option<http::Error> = None;
        for at in 0..self.bases.len() {
            match self.runtime.block_on(self.http.look(&self.bases[at])) {
                Ok(()) => {
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
            Some(source) => ClientError::Silent { tried: self.tried(), may_be_done: false, source },
            None => ClientError::Nobody(String::new()),
        })
    }

    fn tried(&self) -> String {
        self.bases.iter().map(Url::as_str).collect::<Vec<_>>().join(", ")
    }

    /// Looks one timer up.
    pub(super) fn look_up<T: DeserializeOwned>(&self, timer: &Value) -> Result<T, ClientError> {
        let body = serde_json::json!({ "timers": [timer] });
        self.ask_one(Kind::Look, "v1/timers:batchGet", &body)
    }

    /// Asks about one timer by a batch of one, and asks again while its lane moves or its owner does not answer.
    pub(super) fn ask_one<T: DeserializeOwned>(
        &self,
        kind: Kind<'_>,
        path: &str,
        body: &Value,
    ) -> Result<T, ClientError> {
        let until = Instant::now() + AGAIN_MAX;
        loop {
            let told = self.ask_until(until, kind, &Method::POST, path, &[], Some(body))?;
            match only(&told) {
                Err(ClientError::Refused { status: 503, .. })
                    if Instant::now() + LOOK_AGAIN < until =>
                {
                    std::thread::sleep(LOOK_AGAIN);
                }
                answer => return answer,
            }
        }
    }

    /// The response there as JSON, whatever its status is. It asks once.
    pub(super) fn look(&self, path: &str) -> Result<Value, ClientError> {
        let (from, text) = self.read(path)?;
        serde_json::from_str(&text).map_err(|_| ClientError::Strange(from))
    }

    /// The same as text, with where it is from.
    pub(super) fn read(&self, path: &str) -> Result<(String, String), ClientError> {
        let base = self.bases.first().ok_or_else(|| ClientError::Nobody(String::new()))?;
        let answer = self.runtime.block_on(self.http.get(&at(base, path)?, LOOK_MAX));
        let tried = base.to_string();
        match answer {
            Ok(answer) => Ok((tried, answer.text)),
            Err(source) => Err(ClientError::Silent { tried, may_be_done: false, source }),
        }
    }
}

/// A path below the address of an instance, which ends with a slash.
fn at(base: &Url, path: &str) -> Result<Url, ClientError> {
    Ok(base.join(path).map_err(|_| BadAddress(base.to_string()))?)
}

/// Whether nobody takes connections there, as before a start. One that takes them and does not answer is another case.
fn is_refused(error: &http::Error) -> bool {
    error.is_connect() && !error.is_timeout()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_does_not_take_a_certificate_is_no_reason_to_start_an_instance() {
        #[derive(Debug, thiserror::Error)]
        #[error("client error")]
        struct Above(#[source] std::io::Error);
        let of = |text: &str| untrusted(&Above(std::io::Error::other(text.to_owned())));
        for (text, want) in [
            (
                "error:0A000086:SSL routines::certificate verify failed:(self-signed certificate)",
                Some(Untrusted::Theirs),
            ),
            ("0A00045C:SSL routines::tlsv13 alert certificate required", Some(Untrusted::Ours)),
            ("0A000418:SSL routines::tlsv1 alert unknown ca", Some(Untrusted::Ours)),
            ("0A000412:SSL routines::ssl/tls alert bad certificate", Some(Untrusted::Ours)),
            ("Connection refused (os error 111)", None),
        ] {
            assert_eq!(of(text), want, "{text}");
        }
    }

    #[test]
    fn errors_name_what_was_typed() {
        for (field, want) in [
            ("headers[0][0]", "--header"),
            ("hosts[1]", "--host"),
            ("trigger_at", "--at"),
            ("max_pending", "--max-pending"),
            ("retry.max_interval", "--max-interval"),
            ("feedback.heartbeat", "--heartbeat"),
            ("on_result.url", "--on-result"),
            ("query.due_before", "--due-before"),
            ("path.topic", "TOPIC"),
            ("request", "request"),
        ] {
            assert_eq!(option(field), want, "{field}");
        }
        const WRONG: &str = "422 No\r\n\r\n{\"code\":\"wrong_fields\",\"detail\":\"x\",\"errors\":[{\"at\":\"headers[0][0]\",\"detail\":\"is none\"}]}";
        for (of_options, want) in [(true, "--header is none"), (false, "headers[0][0] is none")] {
            let client = Client::new(None, vec![server(Some(WRONG))], &Tls::default()).unwrap();
            let client = Client { of_options, ..client };
            let refused = client.ask(Kind::Create, &Method::POST, "x", &[], None).unwrap_err();
            assert!(refused.to_string().ends_with(want), "{refused}");
        }
    }

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
            let url = http::address(text).ok().map(|base| at(&base, "v1/timers").expect(why));
            assert_eq!(url.as_ref().map(Url::as_str), want, "{why}");
        }
    }

    /// An address at which `health/live` is answered, and everything else with `other`; `None`: not at all.
    fn server(other: Option<&'static str>) -> Url {
        server_that_says(&[], other)
    }

    /// The same, which gives each of these answers once before.
    fn server_that_says(first: &'static [&'static str], other: Option<&'static str>) -> Url {
        use std::io::{BufRead as _, BufReader, Write as _};
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let (mut silent, mut first) = (Vec::new(), first.iter());
            for stream in listener.incoming() {
                let mut stream = BufReader::new(stream.unwrap());
                let mut head = String::new();
                stream.read_line(&mut head).unwrap();
                let answer = if head.contains("health/live") {
                    Some("200 OK\r\n\r\n{}")
                } else {
                    first.next().copied().or(other)
                };
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
        http::address(&format!("http://{address}")).unwrap()
    }

    #[test]
    fn a_change_of_another_revision_says_what_has_happened() {
        for (what, kind) in [
            ("revision", Kind::Change(Some(3))),
            ("version", Kind::ChangeSchedule(Some("3"))),
            ("version", Kind::DeleteSchedule(Duration::ZERO, Some("3"))),
        ] {
            let conflict = format!(
                "409 Conflict\r\n\r\n{{\"code\":\"{what}_conflict\",\"detail\":\"the {what} 7 is in force\"}}"
            );
            let conflict = server(Some(conflict.leak()));
            let client = Client::new(None, vec![conflict], &Tls::default()).unwrap();
            let refused = client.ask(kind, &Method::PUT, "x", &[], None).unwrap_err();
            let text = refused.to_string();
            assert!(text.contains(&format!("not at {what} 3")), "{text}");
            assert!(text.contains(&format!("{what} 7")), "{text}");
            assert_eq!(Failure::from(refused).exit(), Exit::Negative);
        }
    }

    #[test]
    fn a_report_that_comes_too_early_may_come_again_and_one_that_is_stale_may_not() {
        let of = |code: &str| {
            let body = format!("409 Conflict\r\n\r\n{{\"code\":\"{code}\",\"detail\":\"why\"}}");
            let server = server(Some(body.leak()));
            let client = Client::new(None, vec![server], &Tls::default()).unwrap();
            let refused = client.ask(Kind::Report, &Method::POST, "x", &[], None).unwrap_err();
            Failure::from(refused).exit()
        };
        assert_eq!((of("attempt_open"), of("stale")), (Exit::Unavailable, Exit::Negative));
    }

    #[test]
    fn what_is_refused_for_good_is_not_asked_for_again() {
        const NEVER: &str =
            "429 Over\r\n\r\n{\"code\":\"over_pending\",\"detail\":\"it may have 0\"}";
        const LATER: &str = "429 Over\r\nRetry-After: 1\r\n\r\n{\"code\":\"over_pending\",\"detail\":\"it may have 2\"}";
        const DONE: &str = "200 OK\r\n\r\n{}";
        for (first, is_done) in [(NEVER, false), (LATER, true)] {
            let first: &'static [&'static str] = Box::leak(Box::new([first]));
            let server = server_that_says(first, Some(DONE));
            let client = Client::new(None, vec![server], &Tls::default()).unwrap();
            let answer = client.ask(Kind::Create, &Method::POST, "x", &[], None);
            assert_eq!(answer.is_ok(), is_done, "{answer:?}");
        }
    }

    #[test]
    fn what_passes_for_one_timer_of_a_batch_is_waited_for() {
        const MOVING: &str = "200 OK\r\n\r\n{\"timers\":[{\"id\":\"i\",\"problem\":{\"status\":503,\"detail\":\"it moves\"}}]}";
        const DONE: &str = "200 OK\r\n\r\n{\"timers\":[{\"id\":\"i\",\"outcome\":\"cancelled\"}]}";
        for kind in [Kind::Look, Kind::Cancel(Duration::ZERO)] {
            let server = server_that_says(&[MOVING, MOVING], Some(DONE));
            let client = Client::new(None, vec![server], &Tls::default()).unwrap();
            let told: Value = client.ask_one(kind, "x", &Value::Null).expect("it waits");
            assert_eq!(told["outcome"], "cancelled", "{kind:?}");
        }
    }

    #[test]
    fn the_next_member_is_asked_after_a_silent_one_and_what_that_may_have_done_is_told() {
        let (mute, fair) = (server(None), server(Some("200 OK\r\n\r\n{\"timers\":[]}")));
        let busy = server(Some("503 Busy\r\n\r\n{\"detail\":\"busy\"}"));
        let strict = server(Some("400 Bad\r\n\r\n{\"detail\":\"bad\"}"));
        let none = server(Some("404 None\r\n\r\n{\"detail\":\"there is no task with this id\"}"));
        let cancel = Kind::Cancel(Duration::ZERO);
        // What passes is not waited for.
        let until = Instant::now();
        #[rustfmt::skip]
        let cases = [
            ("it answers",                     cancel,       vec![&mute, &fair], None),
            ("it refuses, and the other?",     cancel,       vec![&mute, &busy], Some("may have done")),
            ("it refuses, alone",              cancel,       vec![&busy],        Some("not available now: busy")),
            ("it does not understand",         cancel,       vec![&strict],      Some("refused: bad")),
            ("there is none",                  cancel,       vec![&none],        Some("there is no task")),
        ];
        std::thread::scope(|scope| {
            for (why, kind, bases, want) in cases {
                scope.spawn(move || {
                    let bases = bases.into_iter().cloned().collect();
                    let client = Client::new(None, bases, &Tls::default()).unwrap();
                    let answer = client.ask_until(until, kind, &Method::POST, "x", &[], None);
                    match (answer, want) {
                        (Ok(_), None) => {}
                        (Err(error), Some(want)) => {
                            assert!(error.to_string().contains(want), "{why}: {error}");
                            let says_refused = error.to_string().contains("refused");
                            assert_eq!(says_refused, want.contains("refused"), "{why}: {error}");
                        }
                        (answer, _) => panic!("{why}: {answer:?}"),
                    }
                });
            }
        });
    }
}
