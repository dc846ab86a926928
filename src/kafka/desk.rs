//! Answers for the timers of the lanes that run here: looks them up, writes commands about them, hears what became of those.
//!
//! Any number of threads may ask. Nothing here decides: a command is written to the lane's intake, and what becomes of
//! it is told by the engine, in the order of the log, after it was committed.
//!
//! # Invariants
//! 1. What is told of a timer covers everything that was committed about it here before the question: the index is waited
//!    for until it has read what was written to `<ns>.timers` by then. The owner is the only one that writes there.
//! 2. Nothing is told of a lane that is not here, or not known yet.
//! 3. An answer to a command is of a batch that was committed.

mod amend;
pub(super) mod board;
mod search;
mod ticket;

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::follower::{Progress, Reach};
use super::written::Written;
use super::{BrokerClock, Connection, KafkaError, SubmitError, Submitter};
use crate::engine::header::Code;
use crate::engine::timers::{Phase, Place, Timer, TimerKey};
use crate::engine::{
    Lane, Millis, Outcome, Record, Setup, Source, TopicId, Tracking, UnixMillis, murmur2,
};
use crate::index::{self, After, Counted, Filter, Forecast, Page, Reader};

pub use board::Standing;
pub use ticket::{BadTicket, Ticket};

use board::{Board, Heard};
use search::Search;

/// How long a look-up waits for the index, which is behind by the time that a commit's markers take.
const FRESH_MAX: Duration = Duration::from_secs(2);

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Trouble {
    /// The lane is not here, or not all of it is known yet. Ask its owner, or again soon.
    #[error("lane {} is on its way from one member to another", .0.0)]
    Moving(Lane),
    /// The index has not read yet what it must have. Ask again soon.
    #[error("the index of lane {} is not up to date yet", .0.0)]
    Behind(Lane),
    /// There is no index in this run: its disk is full or does not work. A person must mend that, or another member answers
    /// when it has the lane.
    #[error("this process runs without an index")]
    Without,
    /// The command was not written, or it is not known whether it was.
    #[error("could not write the command")]
    Submit(#[from] SubmitError),
    /// It cannot be due at another time; nothing was written. Says what it is, if that is known.
    #[error("the timer is not pending")]
    NotPending(Option<Phase>),
    /// Another version is pending than the one that was named; nothing was written.
    #[error("version {0} is pending")]
    Superseded(Place),
    /// It would be due later than is accepted; nothing was written.
    #[error("it would be due more than {0} from now (max-delay)")]
    TooLate(Millis),
    /// The record was not found in any tier, which takes a while when waterclock is late or much is pending. Nothing was
    /// written; try again.
    #[error("the timer's record was not found in time")]
    NotFound,
    /// Kafka does not let us look for the record. Nothing was written; try again.
    #[error("could not look for the timer's record")]
    Search(#[source] KafkaError),
}

/// What is to be done to a timer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// The key of its record.
    pub key: Option<Vec<u8>>,
    /// Its id.
    pub id: Vec<u8>,
    /// Only if it is this version.
    pub version: Option<Place>,
    /// What.
    pub order: Order,
}

/// See [`Command`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// It is not to be delivered.
    Cancel,
    /// It is to be delivered then.
    Reschedule(UnixMillis),
}

/// What became of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decided {
    /// It is decided, and committed.
    Decided(Fate),
    /// It is written, and not decided within the wait.
    Pending,
    /// It is written, and the lane has gone, or it was decided before the lane came here.
    Lost,
}

/// How a command was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The timer will never be in its target.
    Cancelled,
    /// It was there before.
    Delivered,
    /// Another version stands in the place of the one that was meant.
    Superseded,
    /// It is due at another time now.
    Replaced,
    /// Nothing was pending, and something is now.
    Created,
    /// The cancel is remembered; what it hits is not known (`tracking = "cancellations"`).
    Recorded,
    /// Nothing that it is about is known to be pending, delivered or cancelled.
    Unknown,
    /// It is a dead letter.
    Refused(Code),
}

impl Fate {
    /// As programs see it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cancelled => "cancelled",
            Self::Delivered => "delivered",
            Self::Superseded => "superseded",
            Self::Replaced => "replaced",
            Self::Created => "created",
            Self::Recorded => "recorded",
            Self::Unknown => "unknown",
            Self::Refused(_) => "refused",
        }
    }
}

/// What a desk is made from.
pub(super) struct Plan {
    pub(super) connection: Connection,
    pub(super) setup: Arc<Setup>,
    pub(super) clock: Arc<BrokerClock>,
    pub(super) board: Arc<Board>,
    pub(super) progress: Arc<Progress>,
    pub(super) written: Arc<Written>,
    /// `None`: this run has no index.
    pub(super) reader: Option<Reader>,
}

/// See the module.
pub struct Desk {
    setup: Arc<Setup>,
    clock: Arc<BrokerClock>,
    board: Arc<Board>,
    progress: Arc<Progress>,
    written: Arc<Written>,
    reader: Option<Reader>,
    connection: Connection,
    submitter: Arc<Submitter>,
}

impl Desk {
    /// Makes the producer of commands, and has it connect.
    ///
    /// # Errors
    /// librdkafka refused its settings.
    pub(super) fn new(plan: Plan) -> Result<Self, KafkaError> {
        let Plan { connection, setup, clock, board, progress, written, reader } = plan;
        let submitter = Submitter::new(&connection).map_err(|error| match error {
            SubmitError::Refused { source, .. } => source,
            _ => KafkaError::Canceled,
        })?;
        let submitter = Arc::new(submitter);
        let desk = Self { setup, clock, board, progress, written, reader, connection, submitter };
        let (submitter, intake) = (Arc::clone(&desk.submitter), desk.intake());
        // The first record of a producer takes half a second if nothing was known before. Without the thread, it does.
        let _ = std::thread::Builder::new()
            .name("wc-desk".into())
            .spawn(move || submitter.get_ready(&intake));
        Ok(desk)
    }

    fn intake(&self) -> Arc<str> {
        Arc::clone(self.setup.topics.name(TopicId(0)))
    }

    /// How many lanes there are.
    #[must_use]
    pub fn lanes(&self) -> u16 {
        self.setup.lanes
    }

    /// The lane of a timer.
    #[must_use]
    pub fn lane_of(&self, key: Option<&[u8]>, id: &[u8]) -> Lane {
        Lane(murmur2::partition(key.unwrap_or(id), self.setup.lanes))
    }

    /// Whether timers are tracked, so that they can be looked up.
    #[must_use]
    pub fn tracks(&self) -> bool {
        self.setup.limits.tracking == Tracking::Full
    }

    /// A lower bound of the brokers' time; `None` before it is known.
    #[must_use]
    pub fn now(&self) -> Option<UnixMillis> {
        self.clock.now(Instant::now())
    }

    /// Where a lane is, as far as this process knows.
    #[must_use]
    pub fn standing(&self, lane: Lane) -> Standing {
        self.board.standing(lane)
    }

    /// The timer of this name: pending, or what became of the last version of it, as long as that is kept.
    ///
    /// # Errors
    /// As all that look timers up: ask the owner, or again soon.
    pub fn find(&self, lane: Lane, name: TimerKey) -> Result<Option<Timer>, Trouble> {
        self.look(lane, |reader| reader.find(lane, name))
    }

    /// Timers of this id in a lane, whatever their keys; at most so many.
    ///
    /// # Errors
    /// As those of [`find`](Self::find).
    pub fn by_id(&self, lane: Lane, id: &[u8], most: usize) -> Result<Vec<Timer>, Trouble> {
        self.look(lane, |reader| reader.by_id(lane, id, most))
    }

    /// A lane's timers by due time, behind a place; at most so many.
    ///
    /// # Errors
    /// As those of [`find`](Self::find).
    pub fn page(
        &self,
        lane: Lane,
        filter: &Filter,
        after: Option<After>,
        most: usize,
    ) -> Result<Page, Trouble> {
        self.look(lane, |reader| reader.page(lane, filter, after, most))
    }

    /// How many of a lane's timers are meant, behind a place, of those that one call looks at.
    ///
    /// # Errors
    /// As those of [`find`](Self::find).
    pub fn count(
        &self,
        lane: Lane,
        filter: &Filter,
        after: Option<After>,
    ) -> Result<Counted, Trouble> {
        self.look(lane, |reader| reader.count(lane, filter, after))
    }

    /// When the pending timers of a lane fall due, for each target.
    ///
    /// # Errors
    /// As those of [`find`](Self::find).
    pub fn forecast(
        &self,
        lane: Lane,
        now: UnixMillis,
        target: Option<&str>,
    ) -> Result<Vec<Forecast>, Trouble> {
        self.look(lane, |reader| reader.forecast(lane, now, target))
    }

    /// Asks the index when what it says is true.
    fn look<T>(
        &self,
        lane: Lane,
        question: impl Fn(&Reader) -> Result<T, index::Error>,
    ) -> Result<T, Trouble> {
        let reader = self.reader.as_ref().ok_or(Trouble::Without)?;
        self.fresh(lane)?;
        question(reader).map_err(|error| {
            tracing::debug!(error = &error as &dyn std::error::Error, "looking a timer up");
            Trouble::Behind(lane)
        })
    }

    /// Waits until what the index says of a lane is true.
    fn fresh(&self, lane: Lane) -> Result<(), Trouble> {
        let by = Instant::now() + FRESH_MAX;
        while self.standing(lane) == Standing::Here {
            let Some(mark) = self.written.mark(lane) else {
                // The follower asks for the end.
                if Instant::now() > by {
                    return Err(Trouble::Behind(lane));
                }
                std::thread::sleep(Duration::from_millis(5));
                continue;
            };
            match self.progress.wait(lane, mark, by) {
                // It may have gone while that was waited for.
                Reach::Reached if self.standing(lane) == Standing::Here => return Ok(()),
                Reach::Reached => break,
                Reach::Behind => return Err(Trouble::Behind(lane)),
                Reach::Without => return Err(Trouble::Without),
            }
        }
        Err(Trouble::Moving(lane))
    }

    /// Writes commands about timers of one lane, and waits until they are acknowledged; gives for each what its answer is
    /// asked for with.
    ///
    /// # Errors
    /// For each by itself: nothing was written, unless it says that this is not known.
    pub fn command(&self, lane: Lane, commands: &[Command]) -> Vec<Result<Ticket, Trouble>> {
        if self.standing(lane) != Standing::Here {
            return commands.iter().map(|_| Err(Trouble::Moving(lane))).collect();
        }
        let mut records = Vec::with_capacity(commands.len());
        let made: Vec<Result<TimerKey, Trouble>> = commands
            .iter()
            .map(|command| {
                records.push(self.record(lane, command)?);
                Ok(TimerKey::new(command.key.as_deref(), &command.id))
            })
            .collect();
        let partition = i32::from(lane.0);
        let receipts = self.submitter.submit_all(&self.intake(), partition, &records);
        let mut receipts = receipts.into_iter();
        let ticket = |made: Result<TimerKey, Trouble>| {
            let name = made?;
            let offset = receipts.next().ok_or(Trouble::NotFound)??.offset;
            Ok(Ticket { lane, offset, name })
        };
        made.into_iter().map(ticket).collect()
    }

    /// The record that stands for a command.
    fn record(&self, lane: Lane, command: &Command) -> Result<Record, Trouble> {
        let Command { key, id, version, order } = command;
        let due = match order {
            Order::Cancel => {
                return Ok(amend::cancel(&self.setup, key.as_deref(), id, *version));
            }
            Order::Reschedule(due) => *due,
        };
        let max = self.setup.limits.max_delay;
        let now = self.now().unwrap_or_default();
        if due - now > max {
            return Err(Trouble::TooLate(max));
        }
        let found = self.find(lane, TimerKey::new(key.as_deref(), id))?;
        let timer = found.ok_or(Trouble::NotPending(None))?;
        if timer.phase.is_final() {
            return Err(Trouble::NotPending(Some(timer.phase)));
        }
        if version.is_some_and(|version| version != timer.version) {
            return Err(Trouble::Superseded(timer.version));
        }
        let search = Search::new(&self.connection, &self.setup, lane, &timer);
        let (record, terms) = search.run(now).map_err(Trouble::Search)?.ok_or(Trouble::NotFound)?;
        amend::replace(&self.setup, &record, timer.version, terms, due)
            .map_err(|_| Trouble::NotFound)
    }

    /// What became of a command, waiting for at most so long.
    ///
    /// # Errors
    /// The command stands; ask again.
    pub fn answer(&self, ticket: &Ticket, wait: Duration) -> Result<Decided, Trouble> {
        let source = Source { topic: TopicId(0), lane: ticket.lane };
        let outcome = match self.board.wait(source, ticket.offset, Instant::now() + wait) {
            // Of another cluster, or of a topic that was made anew.
            Heard::Answer(answer) if answer.name != ticket.name => return Ok(Decided::Lost),
            Heard::Answer(answer) => answer.outcome,
            Heard::Nothing => return Ok(Decided::Pending),
            Heard::Before | Heard::Gone => return Ok(Decided::Lost),
        };
        Ok(Decided::Decided(match outcome {
            Outcome::Recorded => Fate::Recorded,
            Outcome::Cancelled => Fate::Cancelled,
            Outcome::Superseded => Fate::Superseded,
            Outcome::Replaced => Fate::Replaced,
            Outcome::Created => Fate::Created,
            Outcome::Refused(code) => Fate::Refused(code),
            Outcome::Absent => self.absent(ticket)?,
        }))
    }

    /// What became of a timer of which nothing was pending when the command was decided.
    fn absent(&self, ticket: &Ticket) -> Result<Fate, Trouble> {
        let found = self.find(ticket.lane, ticket.name)?;
        Ok(match found.map(|timer| timer.phase) {
            Some(Phase::Cancelled) => Fate::Cancelled,
            Some(Phase::Delivered) => Fate::Delivered,
            // A pending one was submitted later than the command.
            Some(Phase::Delay | Phase::Expired | Phase::Dead) | None => Fate::Unknown,
        })
    }
}

impl std::fmt::Debug for Desk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Desk").finish_non_exhaustive()
    }
}
