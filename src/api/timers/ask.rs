//! Asks whoever owns a lane: this instance, or the one that said so, over HTTP.
//!
//! # Invariants
//! 1. A question that came from another instance is answered here or not at all: it is never handed on, so nothing goes
//!    in circles, and an owner that lost a lane says so instead of guessing.
//! 2. Lanes that nobody answers for make the whole answer a [`Trouble`]: a part is never given out as the whole.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

use super::super::gate::Kind;
use super::known::{
    Answer, Command, Cursor, Filter, Forecast, Name, Page, Standing, Timer, Timers, Trouble,
};
use super::{WAIT_MS_MAX, list, seal};

/// Where instances ask each other.
pub(super) const PATH: &str = "/v1/peer";
/// Longest wait for a connection to the owner; it is on the same network.
const CONNECT_MAX: Duration = Duration::from_secs(1);
/// What an owner is given beyond what it was asked to wait; to find a record that is to be put off takes 10 s at most.
const REPLY_MAX: Duration = Duration::from_secs(20);
/// The same for what looks at every timer of a lane.
const COUNT_MAX: Duration = Duration::from_secs(120);

/// Bytes of an answer of another instance.
const REPLY_BYTES_MAX: usize = 64 << 20;

/// A question about lanes, to their owner.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Question {
    pub(super) lanes: Vec<u16>,
    pub(super) what: What,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum What {
    /// The timers of these names, each of one of the lanes.
    Find(Vec<Name>),
    /// The timers of these ids in all of the lanes.
    ByIds(Vec<String>),
    /// A page of all lanes.
    Page { filter: Filter, after: Option<Cursor>, most: usize },
    /// How many timers fit.
    Count(Filter),
    /// When timers fall due.
    Forecast { now: u64, target: Option<String> },
    /// Commands about timers of the lanes, and the wait for what becomes of them.
    Do { commands: Vec<Command>, wait_ms: u64 },
    /// What became of a command about a timer of the lane.
    Answer { ticket: String, wait_ms: u64 },
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Told {
    Found(Vec<Option<Timer>>),
    Timers(Vec<Timer>),
    Pages(Vec<Page>),
    Counted(u64),
    Forecast(Vec<Forecast>, Vec<(String, u64)>),
    /// For each command its ticket, and what became of it.
    Done(Vec<Result<(String, Answer), Trouble>>),
    Answer(Answer),
}

impl What {
    /// What it costs to answer.
    pub(super) fn kind(&self) -> Kind {
        match self {
            Self::Do { commands, .. } if commands.len() <= 1 => Kind::Wait,
            Self::Answer { .. } => Kind::Wait,
            Self::Find(names) if names.len() <= 1 => Kind::Look,
            Self::ByIds(ids) if ids.len() <= 1 => Kind::Look,
            _ => Kind::Large,
        }
    }
}

/// What one owner answers.
pub(super) type Reply = Result<Told, Trouble>;

/// Answers a question here.
pub(super) async fn answer(timers: &dyn Timers, question: &Question) -> Reply {
    let Question { lanes, what } = question;
    for lane in lanes {
        if timers.standing(*lane) != Standing::Here {
            return Err(Trouble::Moving(format!("lane {lane} is not run here now")));
        }
    }
    Ok(match what {
        What::Find(names) => {
            let names: Vec<(u16, Name)> =
                names.iter().map(|name| (timers.lane_of(name), name.clone())).collect();
            Told::Found(timers.find(&names).await?)
        }
        What::ByIds(ids) => Told::Timers(timers.by_ids(lanes, ids).await?),
        What::Page { filter, after, most } => {
            // One page of all lanes: a process may have a thousand of them.
            let mut page = Page::default();
            for lane in lanes {
                let of_lane = timers.page(*lane, filter, *after, *most).await?;
                let (timers, more) = list::merged(vec![page, of_lane], *most);
                page = Page { timers, more };
            }
            Told::Pages(vec![page])
        }
        What::Count(filter) => Told::Counted(timers.count(lanes, filter).await?),
        What::Forecast { now, target } => {
            let all = timers.forecast(lanes, *now, target.as_deref()).await?;
            Told::Forecast(all, timers.backlog())
        }
        What::Do { commands, wait_ms } => Told::Done(carry_out(timers, commands, *wait_ms).await),
        What::Answer { ticket, wait_ms } => {
            let lane = lanes.first().copied().unwrap_or_default();
            Told::Answer(timers.answer(lane, ticket, wait(*wait_ms)).await?)
        }
    })
}

/// No longer than a caller may say, whoever asks.
fn wait(ms: u64) -> Duration {
    Duration::from_millis(ms.min(WAIT_MS_MAX))
}

/// Writes all commands before it waits for the first answer, so that they share transactions.
async fn carry_out(
    timers: &dyn Timers,
    commands: &[Command],
    wait_ms: u64,
) -> Vec<Result<(String, Answer), Trouble>> {
    let mut by_lane: BTreeMap<u16, Vec<usize>> = BTreeMap::new();
    for (at, command) in commands.iter().enumerate() {
        by_lane.entry(timers.lane_of(&command.name)).or_default().push(at);
    }
    let mut tickets: Vec<Result<(u16, String), Trouble>> = commands
        .iter()
        .map(|_| Err(Trouble::Moving("the command was not written".to_owned())))
        .collect();
    for (lane, places) in by_lane {
        let own: Vec<Command> = places.iter().map(|at| commands[*at].clone()).collect();
        for (at, ticket) in places.into_iter().zip(timers.submit(lane, &own).await) {
            tickets[at] = ticket.map(|ticket| (lane, ticket));
        }
    }
    let until = Instant::now() + wait(wait_ms);
    let mut done = Vec::with_capacity(tickets.len());
    for ticket in tickets {
        done.push(match ticket {
            Err(trouble) => Err(trouble),
            Ok((lane, ticket)) => {
                let left = until.saturating_duration_since(Instant::now());
                // The command stands, whatever keeps the answer away.
                let answer = timers.answer(lane, &ticket, left).await.unwrap_or(Answer::Lost);
                Ok((ticket, answer))
            }
        });
    }
    done
}

/// Where a lane's questions go.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Here,
    At(String),
}

/// Hands questions to the owners.
#[derive(Clone)]
pub(super) struct Asker {
    timers: Arc<dyn Timers>,
    client: reqwest::Client,
}

impl Asker {
    pub(super) fn new(timers: Arc<dyn Timers>) -> Self {
        // Instances are on one network; a proxy of the environment is for the world outside.
        let client = reqwest::Client::builder().no_proxy().connect_timeout(CONNECT_MAX);
        // Who sends a question on is no owner.
        let client = client.redirect(reqwest::redirect::Policy::none()).build();
        // Only TLS that cannot be set up fails, and then nothing is asked over it.
        Self { timers, client: client.unwrap_or_default() }
    }

    pub(super) fn timers(&self) -> &dyn Timers {
        &*self.timers
    }

    fn place(&self, lane: u16) -> Result<Place, Trouble> {
        match self.timers.standing(lane) {
            Standing::Here => Ok(Place::Here),
            Standing::Elsewhere(address) => Ok(Place::At(address)),
            Standing::Moving => Err(Trouble::Moving(format!(
                "lane {lane} is on its way from one instance to another"
            ))),
        }
    }

    /// All lanes by where they are.
    fn places(
        &self,
        lanes: impl Iterator<Item = u16>,
    ) -> Result<BTreeMap<Place, Vec<u16>>, Trouble> {
        let mut places: BTreeMap<Place, Vec<u16>> = BTreeMap::new();
        for lane in lanes {
            places.entry(self.place(lane)?).or_default().push(lane);
        }
        Ok(places)
    }

    /// Asks the owner of one lane.
    pub(super) async fn one(&self, lane: u16, what: What) -> Reply {
        let place = self.place(lane)?;
        self.clone().ask(place, Question { lanes: vec![lane], what }).await
    }

    /// Asks the owners of all lanes the same.
    pub(super) async fn all(&self, what: What) -> Result<Vec<Told>, Trouble> {
        let lanes = self.timers.lanes();
        if lanes == 0 {
            return Err(Trouble::Moving("this instance has not started yet".to_owned()));
        }
        let mut asking = JoinSet::new();
        for (place, lanes) in self.places(0..lanes)? {
            let (asker, what) = (self.clone(), what.clone());
            asking.spawn(async move { asker.ask(place, Question { lanes, what }).await });
        }
        let mut told = Vec::new();
        while let Some(reply) = asking.join_next().await {
            told.push(reply.unwrap_or_else(|_| Err(fault()))?);
        }
        Ok(told)
    }

    /// Splits a batch by the owners of its names' lanes, asks each for its part, and puts the parts together again.
    ///
    /// An owner that does not answer fails its own part only.
    pub(super) async fn split<T: Clone + Send + 'static, R: Send + 'static>(
        &self,
        batch: &[T],
        name: impl Fn(&T) -> &Name,
        what: impl Fn(Vec<T>) -> What,
        read: impl Fn(Told) -> Vec<Result<R, Trouble>>,
    ) -> Vec<Result<R, Trouble>> {
        let mut all: Vec<Option<Result<R, Trouble>>> = batch.iter().map(|_| None).collect();
        let mut parts: BTreeMap<Place, (Vec<u16>, Vec<usize>)> = BTreeMap::new();
        for (at, each) in batch.iter().enumerate() {
            let lane = self.timers.lane_of(name(each));
            match self.place(lane) {
                Err(trouble) => all[at] = Some(Err(trouble)),
                Ok(place) => {
                    let (lanes, places) = parts.entry(place).or_default();
                    places.push(at);
                    if !lanes.contains(&lane) {
                        lanes.push(lane);
                    }
                }
            }
        }
        let mut asking = JoinSet::new();
        for (place, (lanes, places)) in parts {
            let part: Vec<T> = places.iter().map(|at| batch[*at].clone()).collect();
            let (asker, question) = (self.clone(), Question { lanes, what: what(part) });
            asking.spawn(async move { (asker.ask(place, question).await, places) });
        }
        while let Some(Ok((reply, places))) = asking.join_next().await {
            match reply.map(&read) {
                Ok(told) if told.len() == places.len() => {
                    for (at, each) in places.into_iter().zip(told) {
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

    async fn ask(self, place: Place, question: Question) -> Reply {
        let address = match place {
            Place::Here => return answer(&*self.timers, &question).await,
            Place::At(address) => address,
        };
        let commands = matches!(question.what, What::Do { .. });
        let silent = |error: &reqwest::Error| {
            tracing::debug!(%error, address, "the owner of a lane does not answer");
            let unknown = if commands && !error.is_connect() {
                "; what was asked of it may have been done, and may be asked again"
            } else {
                ""
            };
            Trouble::Moving(format!("the owner of its lane does not answer at {address}{unknown}"))
        };
        let wait = match &question.what {
            What::Do { wait_ms, .. } | What::Answer { wait_ms, .. } => {
                Duration::from_millis(*wait_ms) + REPLY_MAX
            }
            What::Count(_) => COUNT_MAX,
            _ => REPLY_MAX,
        };
        let body = serde_json::to_vec(&question).map_err(|_| fault())?;
        let headers = seal::of_question(&*self.timers, PATH, &body)?;
        let asked = self.client.post(format!("http://{address}{PATH}")).timeout(wait).body(body);
        let asked = asked.header("content-type", "application/json");
        let asked = headers.iter().fold(asked, |asked, (name, value)| asked.header(*name, value));
        let reply = asked.send().await;
        let mut reply =
            reply.and_then(reqwest::Response::error_for_status).map_err(|e| silent(&e))?;
        let given = reply.headers().get(seal::SEAL).and_then(|seal| seal.to_str().ok());
        let given = given.unwrap_or_default().to_owned();
        let mut told = Vec::new();
        while let Some(part) = reply.chunk().await.map_err(|e| silent(&e))? {
            if told.len() + part.len() > REPLY_BYTES_MAX {
                return Err(fault());
            }
            told.extend_from_slice(&part);
        }
        if !seal::is_answer(&*self.timers, &headers[2].1, &told, &given) {
            tracing::warn!(address, "what answers there is no instance of this namespace");
            return Err(Trouble::Moving(format!("no instance of this namespace is at {address}")));
        }
        serde_json::from_slice::<Reply>(&told).map_err(|_| fault())?
    }
}

/// A question whose answer is not of its kind, or that panicked: a mistake of ours, told as what may pass.
pub(super) fn fault() -> Trouble {
    tracing::error!("a question about timers was not answered as it should be");
    Trouble::Moving("it was not answered as it should be; the log has more".to_owned())
}
