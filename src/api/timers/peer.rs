//! Asks the owner of a lane: this instance, or over HTTP the one that announced itself.
//!
//! # Invariants
//! 1. A query that came from another instance is answered here or not at all. It is never forwarded, so nothing goes in
//!    circles. An owner that lost a lane says so instead of guessing.
//! 2. If nobody answers for a lane, the whole answer is a [`TimersError`]: a part is never given out as the whole.
//! 3. Every query has an answer by its [`Deadline`], also where an instance stands still. Its owner does nothing for it
//!    afterwards.
//! 4. A cancel is written here if its lane's owner does not answer or is not known. The next owner of the lane carries
//!    it out. The old owner may have written it, too: then it stands there twice.
//! 5. Once an instance was asked for a change and has not answered, no caller hears that nothing was written:
//!    [`TimersError::Unknown`].
//! 6. A caller that named no version waits before it hears how the last known version ended. Everything that stood in
//!    the intakes when it asked must be decided first, in all lanes: a later version may stand in a wrong partition, or
//!    in another intake.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::RwLock;
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout, timeout_at};

use super::super::gate::Kind;
use super::super::health::{self, Report};
use super::super::members::ANSWER_MAX;
use super::deadline::{Deadline, Times};
use super::model::{
    CommandKind, CommandStatus, Cursor, Filter, Forecast, LaneOwner, LaneTimer, PAGE_BYTES_MAX,
    Page, PeerAddress, TimerCommand, TimerName, Timers, TimersError,
};
use super::tasks::{self, TaskQuestion, TaskReply};
use super::{list, seal};
use crate::client::http::{self, Tls};

/// Where instances ask each other.
pub(super) const PATH: &str = "/v1/peer";
/// Longest wait for a connection to the owner; it is on the same network.
const CONNECT_MAX: Duration = Duration::from_secs(1);
/// For so long an unused connection is kept: for less than the owner keeps it, whose close could meet a query.
const IDLE: Duration = Duration::from_secs(5);
/// Bytes of an answer of another instance.
const REPLY_BYTES_MAX: usize = 64 << 20;
/// Bytes of what another instance says of how it is.
const REPORT_BYTES_MAX: usize = 1 << 20;
/// The error text of a change whose outcome is unknown.
const UNKNOWN: &str = "the change may have been done; it is safe to ask again";
/// How long to wait before looking again for an owner that does not answer or is not known.
pub(super) const PAUSE: Duration = Duration::from_millis(100);

/// A question about lanes, to their owner.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct PeerQuestion {
    pub(super) lanes: Vec<u16>,
    pub(super) what: PeerRequest,
    #[serde(default)]
    pub(super) times: Times,
    /// The address of the instance that is asked. A query for a change names it, and no other instance makes the
    /// change.
    #[serde(default)]
    pub(super) to: Option<String>,
    /// Makes the seal of each request its own, also of the same question.
    #[serde(default)]
    pub(super) number: u64,
}

/// What an owner is asked.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum PeerRequest {
    /// The timers of these names, each of one of the lanes.
    Find(Vec<TimerName>),
    /// The timers of these ids in all of the lanes.
    ByIds(Vec<String>),
    /// A page of all lanes.
    Page { filter: Filter, after: Option<Cursor>, most: usize },
    /// How many timers fit.
    Count(Filter),
    /// When timers fall due.
    Forecast { now: u64, target: Option<String> },
    /// Commands about timers of the lanes, and what becomes of them.
    Do(Vec<TimerCommand>),
    /// What became of a command about a timer of the lane.
    Answer(String),
    /// That all is decided that stands in the intakes of the lanes.
    Settle,
    /// About tasks.
    Task(TaskQuestion),
}

/// The answer to a [`PeerRequest`] of the same kind.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum PeerReply {
    Found(Vec<Option<LaneTimer>>),
    Timers(Vec<LaneTimer>),
    Pages(Vec<Page>),
    Counted(u64),
    Forecast(Vec<Forecast>, Vec<(String, u64)>),
    /// For each command its ticket, and what became of it.
    Done(Vec<Result<(String, CommandStatus), TimersError>>),
    Answer(CommandStatus),
    Settled,
    Task(TaskReply),
}

impl PeerRequest {
    /// Whether something is done for it. All else may be asked as often as anybody likes.
    pub(super) fn is_change(&self) -> bool {
        match self {
            Self::Do(_) => true,
            Self::Task(question) => question.is_change(),
            _ => false,
        }
    }

    /// The kind of work that the answer costs.
    pub(super) fn kind(&self) -> Kind {
        match self {
            Self::Do(commands) if commands.len() <= 1 => Kind::Wait,
            Self::Answer(_) => Kind::Wait,
            Self::Find(names) if names.len() <= 1 => Kind::Look,
            Self::ByIds(ids) if ids.len() <= 1 => Kind::Look,
            // An instance asks it once at a time.
            Self::Settle => Kind::Look,
            Self::Task(question) => question.kind(),
            _ => Kind::Large,
        }
    }
}

/// What one owner answers.
pub(super) type Reply = Result<PeerReply, TimersError>;

/// Answers a question here, in time.
pub(super) async fn answer(
    timers: &dyn Timers,
    lanes: &[u16],
    what: &PeerRequest,
    deadline: Deadline,
) -> Reply {
    match timeout_at(deadline.by(), answer_by(timers, lanes, what, deadline)).await {
        Ok(reply) => reply,
        Err(_) => Err(no_answer("there was no answer in time".to_owned(), what)),
    }
}

async fn answer_by(
    timers: &dyn Timers,
    lanes: &[u16],
    what: &PeerRequest,
    deadline: Deadline,
) -> Reply {
    for lane in lanes {
        if timers.owner_of(*lane) != LaneOwner::Here {
            return Err(TimersError::Moving(format!("this instance does not run lane {lane} now")));
        }
    }
    Ok(match what {
        PeerRequest::Find(names) => {
            let names: Vec<(u16, TimerName)> =
                names.iter().map(|name| (timers.lane_of(name), name.clone())).collect();
            PeerReply::Found(timers.find(&names).await?)
        }
        PeerRequest::ByIds(ids) => PeerReply::Timers(timers.by_ids(lanes, ids).await?),
        PeerRequest::Page { filter, after, most } => {
            // One page of all lanes: a process may have a thousand of them.
            let mut page = Page::default();
            for lane in lanes {
                let of_lane = timers.page(*lane, filter, *after, *most).await?;
                let (timers, more) = list::merged(vec![page, of_lane], (*most, PAGE_BYTES_MAX));
                page = Page { timers, more };
            }
            PeerReply::Pages(vec![page])
        }
        PeerRequest::Count(filter) => PeerReply::Counted(timers.count(lanes, filter).await?),
        PeerRequest::Forecast { now, target } => {
            let all = timers.forecast(lanes, *now, target.as_deref()).await?;
            PeerReply::Forecast(all, timers.backlog())
        }
        PeerRequest::Do(commands) => PeerReply::Done(carry_out(timers, commands, deadline).await),
        PeerRequest::Answer(ticket) => {
            let lane = lanes.first().copied().unwrap_or_default();
            PeerReply::Answer(status(timers, lane, ticket, deadline).await?)
        }
        PeerRequest::Settle => {
            timers.settle(lanes, deadline.request_times().by).await?;
            PeerReply::Settled
        }
        PeerRequest::Task(question) => {
            PeerReply::Task(tasks::answer(timers, lanes, question, deadline).await?)
        }
    })
}

/// What became of a command, within its wait.
async fn status(
    timers: &dyn Timers,
    lane: u16,
    ticket: &str,
    deadline: Deadline,
) -> Result<CommandStatus, TimersError> {
    let answer = timers.status(lane, ticket, deadline.wait_left());
    // It may be decided, and the state that says how cannot be read.
    timeout_at(deadline.request_times().by.into(), answer)
        .await
        .unwrap_or(Ok(CommandStatus::Pending))
}

/// Writes commands; for each the lane and the ticket.
async fn write(
    timers: &dyn Timers,
    commands: &[TimerCommand],
    deadline: Deadline,
) -> Vec<Result<(u16, String), TimersError>> {
    let mut by_lane: BTreeMap<u16, Vec<usize>> = BTreeMap::new();
    for (at, command) in commands.iter().enumerate() {
        by_lane.entry(timers.lane_of(&command.name)).or_default().push(at);
    }
    let mut tickets: Vec<Result<(u16, String), TimersError>> = commands
        .iter()
        .map(|_| Err(TimersError::Moving("the command was not written".to_owned())))
        .collect();
    for (lane, places) in by_lane {
        let own: Vec<TimerCommand> = places.iter().map(|at| commands[*at].clone()).collect();
        let submitted = timers.submit(lane, &own, deadline.request_times()).await;
        for (at, ticket) in places.into_iter().zip(submitted) {
            tickets[at] = ticket.map(|ticket| (lane, ticket));
        }
    }
    tickets
}

/// Writes all commands before it waits for the first answer, so that they share transactions.
async fn carry_out(
    timers: &dyn Timers,
    commands: &[TimerCommand],
    deadline: Deadline,
) -> Vec<Result<(String, CommandStatus), TimersError>> {
    let tickets = write(timers, commands, deadline).await;
    let mut done = Vec::with_capacity(tickets.len());
    for ticket in tickets {
        done.push(match ticket {
            Err(trouble) => Err(trouble),
            Ok((lane, ticket)) => {
                // The command stands, whatever keeps the answer away.
                let answer = status(timers, lane, &ticket, deadline).await;
                Ok((ticket, answer.unwrap_or(CommandStatus::Lost)))
            }
        });
    }
    done
}

/// Where a lane's questions go.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Route {
    Here,
    At(PeerAddress),
    /// Nobody is known to have this lane, or it is not ready yet.
    Nowhere(u16),
}

/// The connections to other instances. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Peers(Arc<RwLock<reqwest::Client>>);

impl Peers {
    /// They trust and show this where an instance takes TLS.
    ///
    /// # Errors
    /// It cannot be used.
    pub fn new(tls: &Tls) -> Result<Self, http::Error> {
        Ok(Self(Arc::new(RwLock::new(Self::client(tls)?))))
    }

    /// The same, from the next query on.
    ///
    /// # Errors
    /// It cannot be used; nothing changes.
    pub fn set(&self, tls: &Tls) -> Result<(), http::Error> {
        *self.0.write() = Self::client(tls)?;
        Ok(())
    }

    /// What an instance says when it is asked whether it is ready; `None`: no instance answers there, or not in time.
    pub async fn ready(&self, peer: &PeerAddress) -> Option<Report> {
        let (client, url) = (self.0.read().clone(), peer.url(health::READY));
        let asked = async {
            let mut reply = client.get(url).send().await.ok()?;
            let body = whole(&mut reply, REPORT_BYTES_MAX).await.ok()??;
            serde_json::from_slice(&body).ok()
        };
        timeout(ANSWER_MAX, asked).await.ok().flatten()
    }

    fn client(tls: &Tls) -> Result<reqwest::Client, http::Error> {
        // Not the client of services: it hands a request on once, sealed, as it came, and the one who asked may repeat it.
        // Instances are on one network; a proxy of the environment is for the world outside.
        let client = reqwest::Client::builder().no_proxy().connect_timeout(CONNECT_MAX);
        let client = client.pool_idle_timeout(IDLE);
        // An instance that redirects a query is no owner.
        tls.apply(client.redirect(reqwest::redirect::Policy::none()))?.build()
    }
}

/// Sends queries to the owners of lanes.
#[derive(Clone)]
pub(super) struct Owners {
    timers: Arc<dyn Timers>,
    peers: Peers,
    /// When the last wait began that ended with all settled.
    settled: Arc<Mutex<Option<Instant>>>,
}

impl Owners {
    pub(super) fn new(timers: Arc<dyn Timers>, peers: Peers) -> Self {
        Self { timers, peers, settled: Arc::default() }
    }

    pub(super) fn timers(&self) -> &dyn Timers {
        &*self.timers
    }

    fn route(&self, lane: u16) -> Route {
        match self.timers.owner_of(lane) {
            LaneOwner::Here => Route::Here,
            LaneOwner::Elsewhere(address) => Route::At(address),
            LaneOwner::Moving => Route::Nowhere(lane),
        }
    }

    /// All lanes by where they are.
    fn routes(
        &self,
        lanes: impl Iterator<Item = u16>,
    ) -> Result<BTreeMap<Route, Vec<u16>>, TimersError> {
        let mut routes: BTreeMap<Route, Vec<u16>> = BTreeMap::new();
        for lane in lanes {
            match self.route(lane) {
                Route::Nowhere(lane) => return Err(moving(lane)),
                route => routes.entry(route).or_default().push(lane),
            }
        }
        Ok(routes)
    }

    /// Asks the owner of one lane.
    pub(super) async fn one(&self, lane: u16, what: PeerRequest, deadline: Deadline) -> Reply {
        self.ask(self.route(lane), vec![lane], what, deadline).await
    }

    /// Asks the owners of all lanes the same query, which changes nothing.
    pub(super) async fn all(
        &self,
        what: PeerRequest,
        deadline: Deadline,
    ) -> Result<Vec<PeerReply>, TimersError> {
        self.started()?;
        let lanes = self.timers.lanes();
        let mut asking = JoinSet::new();
        for (route, lanes) in self.routes(0..lanes)? {
            let (owners, what) = (self.clone(), what.clone());
            asking.spawn(async move { owners.ask_once(route, lanes, what, deadline).await });
        }
        let mut replies = Vec::new();
        while let Some(reply) = asking.join_next().await {
            replies.push(reply.unwrap_or_else(|_| Err(fault()))?);
        }
        Ok(replies)
    }

    /// Splits a batch by the owners of its names' lanes, asks each for its part, and puts the parts together again.
    ///
    /// An owner that does not answer fails its own part only.
    pub(super) async fn split<T: Clone + Send + 'static, R: Send + 'static>(
        &self,
        batch: &[T],
        name: impl Fn(&T) -> &TimerName,
        what: impl Fn(Vec<T>) -> PeerRequest,
        read: impl Fn(PeerReply) -> Vec<Result<R, TimersError>>,
        deadline: Deadline,
    ) -> Vec<Result<R, TimersError>> {
        let mut all: Vec<Option<Result<R, TimersError>>> = batch.iter().map(|_| None).collect();
        let mut parts: BTreeMap<Route, (Vec<u16>, Vec<usize>)> = BTreeMap::new();
        for (at, each) in batch.iter().enumerate() {
            let lane = self.timers.lane_of(name(each));
            let (lanes, places) = parts.entry(self.route(lane)).or_default();
            places.push(at);
            if !lanes.contains(&lane) {
                lanes.push(lane);
            }
        }
        let mut asking = JoinSet::new();
        for (route, (lanes, places)) in parts {
            let part: Vec<T> = places.iter().map(|at| batch[*at].clone()).collect();
            let (owners, what) = (self.clone(), what(part));
            asking.spawn(async move { (owners.ask(route, lanes, what, deadline).await, places) });
        }
        while let Some(Ok((reply, places))) = asking.join_next().await {
            match reply.map(&read) {
                Ok(replies) if replies.len() == places.len() => {
                    for (at, each) in places.into_iter().zip(replies) {
                        all[at] = Some(each);
                    }
                }
                Ok(_) => places.into_iter().for_each(|at| all[at] = Some(Err(fault()))),
                Err(trouble) => {
                    places.into_iter().for_each(|at| all[at] = Some(Err(trouble.clone())));
                }
            }
        }
        all.into_iter().map(|each| each.unwrap_or_else(|| Err(fault()))).collect()
    }

    async fn ask(
        &self,
        route: Route,
        lanes: Vec<u16>,
        what: PeerRequest,
        deadline: Deadline,
    ) -> Reply {
        match what {
            PeerRequest::Do(commands)
                if commands.iter().all(|of| of.kind == CommandKind::Cancel) =>
            {
                self.cancel(route, lanes, commands, deadline).await.map(PeerReply::Done)
            }
            PeerRequest::Answer(ticket) => {
                let lane = lanes.first().copied().unwrap_or_default();
                self.status(lane, ticket, deadline).await.map(PeerReply::Answer)
            }
            what => self.ask_once(route, lanes, what, deadline).await,
        }
    }

    /// Asks the instance of a route, once.
    async fn ask_once(
        &self,
        route: Route,
        lanes: Vec<u16>,
        what: PeerRequest,
        deadline: Deadline,
    ) -> Reply {
        let peer = match route {
            Route::Here => return answer(&*self.timers, &lanes, &what, deadline).await,
            Route::At(peer) => peer,
            Route::Nowhere(lane) => return Err(moving(lane)),
        };
        let (to, number) = (Some(peer.address.clone()), rand::random());
        let question = PeerQuestion { lanes, what, times: deadline.times(), to, number };
        let answered = timeout_at(deadline.by(), self.ask_at(&peer, &question)).await;
        answered.unwrap_or_else(|_| Err(silent(&peer.address, &question.what)))
    }

    /// Has cancels written, by the owner of their lanes or, if that does not answer, here; then waits for their outcomes. As long
    /// as Kafka takes writes, a cancel does not depend on whether the lanes have an owner.
    async fn cancel(
        &self,
        route: Route,
        lanes: Vec<u16>,
        commands: Vec<TimerCommand>,
        deadline: Deadline,
    ) -> Result<Vec<Result<(String, CommandStatus), TimersError>>, TimersError> {
        self.started()?;
        let first = if route == Route::Here { deadline } else { deadline.of_first_try() };
        let done = match self.ask_once(route, lanes, PeerRequest::Do(commands.clone()), first).await
        {
            Ok(PeerReply::Done(done)) => done,
            Ok(_) => return Err(fault()),
            // Nothing is done, and the owner is there: another attempt would not help.
            Err(TimersError::Busy(detail)) => return Err(TimersError::Busy(detail)),
            // The owner may have written them, or may still write them: then they stand there twice. A cancel without a version
            // ends what stands before it, each time, also what was created between the two.
            Err(trouble) => {
                let tickets = write(&*self.timers, &commands, deadline);
                let Ok(tickets) = timeout_at(deadline.by(), tickets).await else {
                    let why = "it was not written in time".to_owned();
                    return Err(no_answer(why, &PeerRequest::Do(commands)));
                };
                let pending = |ticket: Result<(u16, String), TimersError>| match ticket {
                    Ok((_, of)) => Ok((of, CommandStatus::Pending)),
                    // That it was not written here does not mean that the owner did not write it.
                    Err(_) if matches!(trouble, TimersError::Unknown(_)) => Err(trouble.clone()),
                    Err(why) => Err(why),
                };
                tickets.into_iter().map(pending).collect()
            }
        };
        let mut all = Vec::with_capacity(done.len());
        for (each, command) in done.into_iter().zip(&commands) {
            all.push(match each {
                Ok((ticket, CommandStatus::Pending | CommandStatus::Lost))
                    if !deadline.is_wait_over() =>
                {
                    let lane = self.timers.lane_of(&command.name);
                    // The command stands, whatever keeps the answer away.
                    let answer = self.status(lane, ticket.clone(), deadline).await;
                    Ok((ticket, answer.unwrap_or(CommandStatus::Lost)))
                }
                Ok((ticket, answer)) => {
                    let lane = self.timers.lane_of(&command.name);
                    let answer = self.once_settled(lane, &ticket, answer, deadline).await;
                    Ok((ticket, answer))
                }
                each => each,
            });
        }
        Ok(all)
    }

    /// What became of a written command, within its wait, by the owner that its lane has by then.
    async fn status(
        &self,
        lane: u16,
        ticket: String,
        deadline: Deadline,
    ) -> Result<CommandStatus, TimersError> {
        self.started()?;
        loop {
            let (what, turn) = (PeerRequest::Answer(ticket.clone()), deadline.of_turn());
            match self.ask_once(self.route(lane), vec![lane], what, turn).await {
                Ok(PeerReply::Answer(CommandStatus::Pending))
                | Err(TimersError::Moving(_) | TimersError::Away(_)) => {}
                Ok(PeerReply::Answer(answer)) => {
                    return Ok(self.once_settled(lane, &ticket, answer, deadline).await);
                }
                Ok(_) => return Err(fault()),
                Err(trouble) => return Err(trouble),
            }
            if deadline.is_wait_over() {
                return Ok(CommandStatus::Pending);
            }
            sleep(PAUSE.min(deadline.wait_left())).await;
        }
    }

    /// An answer that can no longer change by a version that was submitted before its command.
    async fn once_settled(
        &self,
        lane: u16,
        ticket: &str,
        answer: CommandStatus,
        deadline: Deadline,
    ) -> CommandStatus {
        if !matches!(answer, CommandStatus::Decided { is_last: true, .. }) {
            return answer;
        }
        let settling = deadline.of_settling();
        if timeout_at(settling.by(), self.settle(settling)).await.is_err() {
            return CommandStatus::Pending;
        }
        let what = PeerRequest::Answer(ticket.to_owned());
        match self.ask_once(self.route(lane), vec![lane], what, deadline.of_turn()).await {
            Ok(PeerReply::Answer(answer)) => answer,
            _ => CommandStatus::Pending,
        }
    }

    /// Waits until all is decided, in all lanes, that stood in the intakes when a request came; as long as it takes. Requests
    /// that came meanwhile share one wait.
    async fn settle(&self, deadline: Deadline) {
        loop {
            let mut settled = self.settled.lock().await;
            if settled.is_some_and(|at| at >= deadline.request_times().came) {
                return;
            }
            let now = Instant::now();
            // First all stands in its lane. Then that is decided.
            let in_lane = self.all(PeerRequest::Settle, deadline).await;
            if in_lane.is_ok() && self.all(PeerRequest::Settle, deadline).await.is_ok() {
                *settled = Some(now);
                return;
            }
            // The lock is held: no other request tries it meanwhile.
            sleep(PAUSE).await;
        }
    }

    /// Refuses a request that cannot be carried out before the lanes are known.
    pub(super) fn started(&self) -> Result<(), TimersError> {
        if self.timers.lanes() > 0 {
            return Ok(());
        }
        Err(TimersError::not_ready())
    }

    /// Asks another instance. If it does not answer, its lanes count as moving.
    async fn ask_at(&self, peer: &PeerAddress, question: &PeerQuestion) -> Reply {
        let address = &*peer.address;
        let body = serde_json::to_vec(&question).map_err(|_| fault())?;
        let headers = seal::of_question(&*self.timers, PATH, &body)?;
        let silence = |error: reqwest::Error| {
            tracing::debug!(%error, address, "the owner of a lane does not answer");
            // A refused connection, and a request that the instance refuses, are quick: nothing was done. Any other answer without
            // a seal is of a proxy between the two, which may have forwarded the request.
            let is_refusal = error.status().is_some_and(|status| status.is_client_error());
            let is_refused = error.is_connect() && !error.is_timeout() || is_refusal;
            if is_refused { away(address) } else { silent(address, &question.what) }
        };
        let client = self.peers.0.read().clone();
        let request = client.post(peer.url(PATH)).body(body);
        let request = request.header("content-type", "application/json");
        let request =
            headers.iter().fold(request, |request, (name, value)| request.header(*name, value));
        let reply = request.send().await;
        let mut reply = reply.and_then(reqwest::Response::error_for_status).map_err(silence)?;
        let given = reply.headers().get(seal::SEAL).and_then(|seal| seal.to_str().ok());
        let given = given.unwrap_or_default().to_owned();
        let body = whole(&mut reply, REPLY_BYTES_MAX).await.map_err(silence)?;
        let body = body.ok_or_else(|| garbled(&question.what))?;
        if !seal::is_answer(&*self.timers, &headers[2].1, &body, &given) {
            tracing::warn!(address, "the server at this address is no instance of this namespace");
            let detail = format!("no instance of this namespace answers at {address}");
            return Err(no_answer(detail, &question.what));
        }
        serde_json::from_slice::<Reply>(&body).unwrap_or_else(|_| Err(garbled(&question.what)))
    }
}

/// The body of an answer; `None`: it has more bytes than that.
async fn whole(
    reply: &mut reqwest::Response,
    most: usize,
) -> Result<Option<Vec<u8>>, reqwest::Error> {
    let mut body = Vec::new();
    while let Some(part) = reply.chunk().await? {
        if body.len() + part.len() > most {
            return Ok(None);
        }
        body.extend_from_slice(&part);
    }
    Ok(Some(body))
}

fn moving(lane: u16) -> TimersError {
    TimersError::Moving(format!("lane {lane} is moving between instances"))
}

fn away(address: &str) -> TimersError {
    TimersError::Moving(silence(address))
}

/// The problem to report of an owner that may have been asked.
fn silent(address: &str, what: &PeerRequest) -> TimersError {
    no_answer(silence(address), what)
}

fn silence(address: &str) -> String {
    format!("the lane's owner does not answer at {address}")
}

/// The problem to report when there is no response: a change may have been made.
fn no_answer(why: String, what: &PeerRequest) -> TimersError {
    if what.is_change() {
        TimersError::Unknown(format!("{why}; {UNKNOWN}"))
    } else {
        TimersError::Moving(why)
    }
}

/// The problem of a request for which a stopping instance has no time left: a change may have been made.
pub(super) fn stopping(reads: bool) -> TimersError {
    let why = "this instance is stopping".to_owned();
    if reads { TimersError::Moving(why) } else { TimersError::Unknown(format!("{why}; {UNKNOWN}")) }
}

/// The problem to report of an answer that cannot be read.
fn garbled(what: &PeerRequest) -> TimersError {
    match fault() {
        TimersError::Moving(why) => no_answer(why, what),
        other => other,
    }
}

/// The problem of a query whose answer is not of its kind, or that panicked: a bug of ours, reported as temporary.
pub(super) fn fault() -> TimersError {
    tracing::error!("internal error: a query about timers had an unexpected answer");
    TimersError::Moving("internal error; see the log".to_owned())
}
