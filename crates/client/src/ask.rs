//! What a service asks instances, and what they answer.
//!
//! # Invariants
//! 1. The client repeats only what may be repeated: a look-up; a cancel, which gets the same answer again; and a time
//!    that is given as a point in time.
//! 2. No request lasts longer than the bound. What is undecided then is reported as undecided, or is an error.

use std::time::{Duration, Instant, SystemTime};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::command::{Batch, CommandResult, Each, Wrong};
use super::http::{
    Answer, Http, Method, NoAnswer, PAUSE, Problem, Request, StatusCode, Url, WAIT_MAX, below,
    origin,
};
use super::{Error, Timer};

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
        /// Why it is a dead letter, if it is: a code of the header contract.
        code: Option<String>,
    },
    /// The instances keep no pending timers (`tracking = "cancellations"`): it is cancelled unless it was delivered.
    Recorded,
    /// Not decided within the bound. Cancel again to ask again: nothing happens twice.
    Pending,
}

/// What became of a timer that was to be given another time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rescheduled {
    /// It is due then, as a new version; key, value and headers stay.
    Replaced,
    /// There is no such timer, or it is not pending any more; [`find`](super::Client::find) says how it ended.
    NotPending,
    /// Another version was put in its place at the same time.
    Superseded,
    /// Not decided within the bound. Say it again to ask again: with the same time nothing happens twice.
    Pending,
}

/// Which timers are meant; what is not said does not matter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Those with this target.
    pub target: Option<String>,
    /// Those with this label.
    pub label: Option<String>,
    /// Those in this state, as [`Timer::state`] has it.
    pub state: Option<String>,
    /// Those due then or later.
    pub due_after: Option<SystemTime>,
    /// Those due before.
    pub due_before: Option<SystemTime>,
    /// At most so many, the earliest first.
    pub limit: Option<usize>,
}

impl Filter {
    fn put(&self, url: &mut Url) {
        let time = |at: Option<SystemTime>| at.map(|at| millis(at).to_string());
        let all = [
            ("target", self.target.clone()),
            ("label", self.label.clone()),
            ("state", self.state.clone()),
            ("due_after", time(self.due_after)),
            ("due_before", time(self.due_before)),
        ];
        let mut query = url.query_pairs_mut();
        for (name, value) in all {
            if let Some(value) = value {
                query.append_pair(name, &value);
            }
        }
    }
}

/// Milliseconds since 1970, rounded up. An earlier time is 0.
pub(super) fn millis(at: SystemTime) -> u64 {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// What a cancel came to.
fn outcome(of: CommandResult, url: String) -> Result<Outcome, Error> {
    Ok(match of.outcome.as_str() {
        "cancelled" => Outcome::Cancelled,
        "delivered" => Outcome::Delivered,
        "superseded" => Outcome::Superseded,
        "recorded" => Outcome::Recorded,
        CommandResult::PENDING => Outcome::Pending,
        "unknown" => Outcome::Unknown { state: of.state, code: of.code },
        other => {
            let code = of.code.unwrap_or_else(|| other.to_owned());
            let detail = format!("the cancel is {other}");
            return Err(Error::Refused { url, status: 200, code, detail });
        }
    })
}

#[derive(Deserialize)]
struct Page {
    timers: Vec<Timer>,
    #[serde(default)]
    next: Option<String>,
}

/// Timers that can be named at once, and listed at once.
const AT_ONCE: usize = 1_000;
/// The address below which all timers are, or what is done with many of them: `{base}/v1/{what}`.
pub(super) fn timers(base: &Url, what: &str) -> Url {
    below(base, &["v1", what])
}

/// A timer, as a body names it.
fn named(key: Option<&[u8]>, id: &str) -> Value {
    match key.map(|key| (key, std::str::from_utf8(key))) {
        None => json!({ "id": id, "key": null }),
        Some((_, Ok(text))) => json!({ "id": id, "key": text }),
        Some((bytes, Err(_))) => json!({ "id": id, "key_base64": base64(bytes) }),
    }
}

fn base64(bytes: &[u8]) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(bytes)
}

/// How long an instance may wait.
fn wait(until: Instant) -> String {
    let left = until.saturating_duration_since(Instant::now()).min(WAIT_MAX);
    format!("{}ms", left.as_millis())
}

/// The address of one timer: `{base}/v1/timers/{id}?key=...`.
pub(super) fn timer(base: &Url, key: Option<&[u8]>, id: &str) -> Url {
    let mut url = below(base, &["v1", "timers", id]);
    match key.map(|key| (key, std::str::from_utf8(key))) {
        None => {}
        Some((_, Ok(text))) => {
            url.query_pairs_mut().append_pair("key", text);
        }
        Some((bytes, Err(_))) => {
            url.query_pairs_mut().append_pair("key_base64", &base64(bytes));
        }
    }
    url
}

/// One thing to be asked until there is an answer.
pub(super) struct Ask<'a> {
    pub(super) http: &'a Http,
    /// How long in all.
    pub(super) within: Duration,
}

impl Ask<'_> {
    /// Cancels; `at` says whom to ask, again for each attempt.
    pub(super) async fn cancel(
        &self,
        at: impl Fn(usize) -> Result<Url, Error>,
    ) -> Result<Outcome, Error> {
        let Some(answer) = self.decided(&Method::DELETE, None, at).await? else {
            return Ok(Outcome::Pending);
        };
        outcome(read(&answer)?, origin(&answer.url))
    }

    /// Gives a timer another time, in milliseconds since 1970.
    pub(super) async fn reschedule(
        &self,
        due: u64,
        at: impl Fn(usize) -> Result<Url, Error>,
    ) -> Result<Rescheduled, Error> {
        let body = json!({ "due": due });
        match self.decided(&Method::PATCH, Some(&body), at).await {
            Ok(Some(_)) => Ok(Rescheduled::Replaced),
            Ok(None) => Ok(Rescheduled::Pending),
            Err(Error::Refused { code, .. })
                if ["unknown_timer", "not_pending"].contains(&&*code) =>
            {
                Ok(Rescheduled::NotPending)
            }
            Err(Error::Refused { code, .. }) if code == "superseded" => Ok(Rescheduled::Superseded),
            Err(error) => Err(error),
        }
    }

    /// Asks for a change until it is decided; `None`: it is not within the bound.
    async fn decided(
        &self,
        method: &Method,
        body: Option<&Value>,
        at: impl Fn(usize) -> Result<Url, Error>,
    ) -> Result<Option<Answer>, Error> {
        let until = Instant::now() + self.within;
        let at = |attempt| {
            let mut url = at(attempt)?;
            url.query_pairs_mut().append_pair("wait", &wait(until));
            Ok(url)
        };
        let mut answer = self.insist(method, body, until, at).await?;
        while answer.status == StatusCode::ACCEPTED {
            let (Some(next), true) = (answer.location, Instant::now() + PAUSE < until) else {
                return Ok(None);
            };
            tokio::time::sleep(PAUSE).await;
            answer = match self.insist(&Method::GET, None, until, |_| Ok(next.clone())).await {
                // Its lane has moved, and who would have known has forgotten.
                Err(Error::Refused { status: 410, .. }) => {
                    self.insist(method, body, until, at).await?
                }
                answered => answered?,
            };
        }
        Ok(Some(answer))
    }

    /// Cancels many; what became of each, in the same order.
    pub(super) async fn cancel_all(
        &self,
        names: &[(Option<&[u8]>, &str)],
        at: impl Fn(usize) -> Result<Url, Error>,
    ) -> Result<Vec<Result<Outcome, Error>>, Error> {
        let until = Instant::now() + self.within;
        let mut outcomes = Vec::with_capacity(names.len());
        for names in names.chunks(AT_ONCE) {
            let timers: Vec<Value> = names.iter().map(|(key, id)| named(*key, id)).collect();
            let body = json!({ "timers": timers, "wait": wait(until) });
            let answer = self.insist(&Method::POST, Some(&body), until, &at).await?;
            let url = origin(&answer.url);
            let Batch::<CommandResult> { timers } = read(&answer)?;
            outcomes.extend(timers.into_iter().map(|each| match each {
                Each::Right(result) => outcome(result, url.clone()),
                Each::Wrong { problem: Wrong { status, problem } } => {
                    Err(of_problem(url.clone(), status, problem))
                }
            }));
        }
        Ok(outcomes)
    }

    /// Lists timers by due time.
    pub(super) async fn list(
        &self,
        filter: &Filter,
        at: impl Fn(usize) -> Result<Url, Error>,
    ) -> Result<Vec<Timer>, Error> {
        let until = Instant::now() + self.within;
        let most = filter.limit.unwrap_or(usize::MAX);
        let (mut timers, mut next) = (Vec::new(), None::<String>);
        while timers.len() < most {
            let left = (most - timers.len()).min(AT_ONCE);
            let at = |attempt| {
                let mut url = at(attempt)?;
                filter.put(&mut url);
                url.query_pairs_mut().append_pair("limit", &left.to_string());
                if let Some(page) = &next {
                    url.query_pairs_mut().append_pair("page", page);
                }
                Ok(url)
            };
            let page: Page = read(&self.insist(&Method::GET, None, until, at).await?)?;
            timers.extend(page.timers);
            next = page.next;
            if next.is_none() {
                break;
            }
        }
        Ok(timers)
    }

    /// Looks one timer up.
    pub(super) async fn find(
        &self,
        at: impl Fn(usize) -> Result<Url, Error>,
    ) -> Result<Option<Timer>, Error> {
        let until = Instant::now() + self.within;
        match self.insist(&Method::GET, None, until, at).await {
            Ok(answer) => read(&answer).map(Some),
            Err(Error::Refused { code, .. }) if code == "unknown_timer" => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Asks until somebody has answered, or the time is over.
    async fn insist(
        &self,
        method: &Method,
        body: Option<&Value>,
        until: Instant,
        at: impl Fn(usize) -> Result<Url, Error>,
    ) -> Result<Answer, Error> {
        let request = Request {
            method,
            body,
            if_match: None,
            promised: None,
            looks_first: false,
            is_change: false,
            may_repeat: true,
            silent_max: None,
        };
        let within = self.within;
        match self.http.ask(&request, until, at).await {
            Ok(answer) if answer.status.is_success() => Ok(answer),
            Ok(answer) if answer.is_passing() => {
                Err(Error::Busy { url: origin(&answer.url), within, source: None })
            }
            Ok(answer) => {
                let (url, status) = (origin(&answer.url), answer.status.as_u16());
                Err(of_problem(url, status, answer.problem()))
            }
            Err(NoAnswer::Nobody(error)) => Err(error),
            Err(NoAnswer::Silent { url, source, .. }) => {
                Err(Error::Busy { url: origin(&url), within, source: Some(Box::new(source)) })
            }
        }
    }
}

fn of_problem(url: String, status: u16, problem: Problem) -> Error {
    let Problem { code, detail, .. } = problem;
    Error::Refused { url, status, code, detail: detail.unwrap_or_default() }
}

fn read<T: DeserializeOwned>(answer: &Answer) -> Result<T, Error> {
    let url = origin(&answer.url);
    answer.json().map_err(|source| Error::Answer { url, source: Box::new(source) })
}
