//! Answers for the timers of the lanes that run here: looks them up, writes commands about them, reports their outcome.
//!
//! Any number of tasks may use it. It decides nothing: it writes a command to the lane's intake, and the engine reports the
//! outcome, in the order of the log, after it was committed.
//!
//! # Invariants
//! 1. An answer about a timer covers everything that was committed about it here before the question. It waits until
//!    the index has read all that was written to `<ns>.timers` by then. The owner is the only one that writes there.
//! 2. There is no answer about a lane that is not here, or whose timers are not loaded yet. That a timer does not exist is
//!    reported only once everything is decided that stood in the lane's intakes when it was taken over.
//! 3. An answer to a command is of a batch that was committed.
//! 4. That a timer cannot be rescheduled is reported only once everything is decided that stood in the lane's intakes after
//!    the request came.
//! 5. A task that waits holds no thread. A task that reads the disk, or Kafka, has a thread for as long as it reads,
//!    and there are only so many of these: [`READS_MAX`], [`SEARCHES_MAX`].

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout, timeout_at};

use super::changelog::{Progress, Reach};
use super::commands;
use super::find_record::{self, Search};
use super::replies::{Replies, Reply};
use crate::engine::header::Code;
use crate::engine::timers::{
    About, CommandKind, CommandOutcome, CommandStatus, Filter, Forecast, Found, LaneTimer, Timer,
    TimerCommand, TimerId, TimerName, TimerState, Version,
};
use crate::engine::{
    Lane, Millis, Offset, Outcome, Record, Setup, Source, TopicId, Tracking, UnixMillis, murmur2,
};
use crate::kafka::end_offsets::{self, EndOffsets};
use crate::kafka::topic_reader::ReadError;
use crate::kafka::{BrokerClock, Connection, SubmitError, Submitter, Written};
use crate::timers::index::{self, After, Counted, Listing, Reader};

pub(crate) use super::find_record::MAX as SEARCH_MAX;
pub use super::replies::LaneState;
pub use super::ticket::{BadTicket, Ticket};

/// How long a look-up waits for the index, which is behind by the time that a commit's markers take.
const CATCH_UP_MAX: Duration = Duration::from_secs(2);
/// How long it sleeps while the follower lists the end of a lane.
const RETRY_EVERY: Duration = Duration::from_millis(5);
/// Queries that read the index at once. Each is short.
const READS_MAX: usize = 32;
/// Searches for a record at once. Each has a Kafka client of its own, for [`SEARCH_MAX`] at most.
const SEARCHES_MAX: usize = 8;
/// How much of a command's time must be left for writing it, once its record is found.
const WRITE_MIN: Duration = Duration::from_millis(250);
/// How long a query waits for its turn to read.
const TURN_MAX: Duration = Duration::from_secs(2);

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The lane is not here, or not all of its timers are known yet. Ask its owner, or again soon.
    #[error("lane {} is moving between members", .0.0)]
    Moving(Lane),
    /// The index has not read yet what it must have. Ask again soon.
    #[error("the index of lane {} is not up to date yet", .0.0)]
    Behind(Lane),
    /// What stands in the lane's intakes was not all decided in time. Nothing was written; ask again soon.
    #[error("lane {} has commands that are not decided yet", .0.0)]
    Undecided(Lane),
    /// There is no index in this run: its disk is full or does not work. A person must mend that, or another member answers
    /// when it has the lane.
    #[error("this process runs without an index")]
    Without,
    /// As much is looked up already as may be at once. Nothing was written; try again.
    #[error("too many look-ups at once")]
    Busy,
    /// A bug of ours; the log has more.
    #[error("internal error; see the log")]
    Fault,
    /// The brokers' time is not known yet. Nothing was written; try again soon.
    #[error("the brokers' time is not known yet")]
    Timeless,
    /// There was no time left to write the command. Nothing was written; try again.
    #[error("there was no time left to write the command; nothing was written")]
    Late,
    /// The command was not written, or it is not known whether it was.
    #[error("could not write the command")]
    Submit(#[from] SubmitError),
    /// It cannot be due at another time; nothing was written. Says what it is, if that is known.
    #[error("the timer is not pending")]
    NotPending(Option<TimerState>),
    /// Another version was put in the place of the one that was named, or that was pending when it was asked; nothing was
    /// written.
    #[error("another version took its place: {0}")]
    Superseded(Version),
    /// It would be due later than is accepted; nothing was written.
    #[error("it would be due more than {0} from now (max-delay)")]
    TooLate(Millis),
    /// The record was not found in any tier, which takes a while when waterclock is late or much is pending. Nothing was
    /// written; try again.
    #[error("the timer's record was not found in time")]
    NotFound,
    /// Kafka does not let us look for the record. Nothing was written; try again.
    #[error("could not look for the timer's record")]
    Search(#[source] ReadError),
}

/// What a service is made from.
pub(super) struct Plan {
    pub(super) connection: Connection,
    /// Writes commands.
    pub(super) submitter: Submitter,
    pub(super) setup: Arc<Setup>,
    pub(super) clock: Arc<BrokerClock>,
    pub(super) replies: Arc<Replies>,
    pub(super) progress: Arc<Progress>,
    pub(super) written: Arc<Written>,
    /// Says where intakes end.
    pub(super) ends: EndOffsets,
    /// `None`: this run has no index.
    pub(super) reader: Option<Reader>,
}

/// See the module.
pub struct Service {
    pub(super) setup: Arc<Setup>,
    clock: Arc<BrokerClock>,
    pub(super) replies: Arc<Replies>,
    progress: Arc<Progress>,
    written: Arc<Written>,
    ends: EndOffsets,
    pub(super) reader: Option<Reader>,
    pub(super) connection: Connection,
    pub(super) submitter: Arc<Submitter>,
    reads: Arc<Semaphore>,
    pub(super) searches: Arc<Semaphore>,
}

impl Service {
    /// Has the producer of commands connect.
    pub(super) fn new(plan: Plan) -> Self {
        let Plan { connection, submitter, setup, clock, replies, progress, written, ends, reader } =
            plan;
        let submitter = Arc::new(submitter);
        let (reads, searches) = (Semaphore::new(READS_MAX), Semaphore::new(SEARCHES_MAX));
        let service = Self {
            setup,
            clock,
            replies,
            progress,
            written,
            ends,
            reader,
            connection,
            submitter,
            reads: Arc::new(reads),
            searches: Arc::new(searches),
        };
        let (submitter, intake) = (Arc::clone(&service.submitter), service.intake());
        // The first record of a producer takes half a second if nothing was known before. Without the thread, it does.
        let _ = std::thread::Builder::new()
            .name("wc-service".into())
            .spawn(move || submitter.get_ready(&intake));
        service
    }

    pub(super) fn intake(&self) -> Arc<str> {
        Arc::clone(self.setup.topics.name(TopicId(0)))
    }

    /// How many lanes there are.
    #[must_use]
    pub fn lanes(&self) -> u16 {
        self.setup.lanes
    }

    /// The lane of a timer.
    #[must_use]
    pub fn lane_of(&self, name: &TimerName) -> Lane {
        let key = name.key.as_deref().unwrap_or(name.id.as_bytes());
        Lane(murmur2::partition(key, self.setup.lanes))
    }

    /// Whether timers are tracked, so that they can be looked up.
    #[must_use]
    pub fn tracks(&self) -> bool {
        self.setup.limits.tracking == Tracking::Full
    }

    /// Whether lanes may hold tasks: what they decide is committed in transactions, and timers are tracked.
    #[must_use]
    pub fn may_have_tasks(&self) -> bool {
        self.tracks() && self.setup.limits.aborts
    }

    /// The longest delay that is accepted.
    #[must_use]
    pub fn max_delay(&self) -> Millis {
        self.setup.limits.max_delay
    }

    /// A lower bound of the brokers' time; `None` before it is known.
    #[must_use]
    pub fn now(&self) -> Option<UnixMillis> {
        self.clock.now(Instant::now())
    }

    /// Where a lane is, as far as this process knows.
    #[must_use]
    pub fn lane_state(&self, lane: Lane) -> LaneState {
        self.replies.lane_state(lane)
    }

    /// The timer of this name: pending, or what became of the last version of it, as long as that is kept.
    ///
    /// # Errors
    /// As all that look timers up: ask the owner, or again soon.
    pub async fn find(&self, lane: Lane, timer_id: TimerId) -> Result<Option<Timer>, Error> {
        let found = self.find_all(vec![(lane, timer_id)]).await?;
        Ok(found.into_iter().next().flatten())
    }

    /// As [`find`](Self::find), for many names.
    ///
    /// # Errors
    /// As those of [`find`](Self::find).
    pub async fn find_all(&self, names: Vec<(Lane, TimerId)>) -> Result<Vec<Option<Timer>>, Error> {
        let mut lanes: Vec<Lane> = names.iter().map(|(lane, _)| *lane).collect();
        lanes.sort_unstable();
        lanes.dedup();
        // Collect these before the look-up: it may not see what is decided meanwhile.
        let behind: Vec<Lane> =
            lanes.iter().copied().filter(|lane| !self.replies.has_caught_up(*lane)).collect();
        let of: Vec<Lane> = names.iter().map(|(lane, _)| *lane).collect();
        let found: Vec<Option<Timer>> = self
            .look(&lanes, move |reader| {
                names.into_iter().map(|(lane, timer_id)| reader.find(lane, timer_id)).collect()
            })
            .await?;
        let missing = of.iter().zip(&found).filter(|(_, timer)| timer.is_none());
        match missing.map(|(lane, _)| *lane).find(|lane| behind.contains(lane)) {
            Some(lane) => Err(Error::Undecided(lane)),
            None => Ok(found),
        }
    }

    /// Timers of these ids in these lanes, whatever their keys; of each id and lane at most so many.
    ///
    /// # Errors
    /// As those of [`find`](Self::find).
    pub async fn by_ids(
        &self,
        lanes: Vec<Lane>,
        ids: Vec<Vec<u8>>,
        most: usize,
    ) -> Result<Vec<LaneTimer>, Error> {
        self.look(&lanes.clone(), move |reader| {
            let mut all = Vec::new();
            for lane in lanes {
                for id in &ids {
                    let found = reader.by_id(lane, id, most)?;
                    all.extend(found.into_iter().map(|timer| LaneTimer { lane, timer }));
                }
            }
            Ok(all)
        })
        .await
    }

    /// A lane's timers by due time, behind a place; at most so many.
    ///
    /// # Errors
    /// As those of [`find`](Self::find).
    pub async fn page(
        &self,
        lane: Lane,
        filter: Filter,
        after: Option<After>,
        most: usize,
    ) -> Result<Listing, Error> {
        self.look(&[lane], move |reader| reader.page(lane, &filter, after, most)).await
    }

    /// How many of a lane's timers are meant, behind a place, of those that one call looks at.
    ///
    /// # Errors
    /// As those of [`find`](Self::find).
    pub async fn count(
        &self,
        lane: Lane,
        filter: &Filter,
        after: Option<After>,
    ) -> Result<Counted, Error> {
        let filter = filter.clone();
        self.look(&[lane], move |reader| reader.count(lane, &filter, after)).await
    }

    /// When the pending timers of these lanes fall due, for each lane and target.
    ///
    /// # Errors
    /// As those of [`find`](Self::find).
    pub async fn forecast(
        &self,
        lanes: Vec<Lane>,
        now: UnixMillis,
        target: Option<String>,
    ) -> Result<Vec<Forecast>, Error> {
        self.look(&lanes.clone(), move |reader| {
            let mut all = Vec::new();
            for lane in lanes {
                all.extend(reader.forecast(lane, now, target.as_deref())?);
            }
            Ok(all)
        })
        .await
    }

    /// Asks the index about these lanes when what it says of them is true.
    pub(super) async fn look<T: Send + 'static>(
        &self,
        lanes: &[Lane],
        query: impl FnOnce(&Reader) -> Result<T, index::Error> + Send + 'static,
    ) -> Result<T, Error> {
        let reader = self.reader.clone().ok_or(Error::Without)?;
        let by = Instant::now() + CATCH_UP_MAX;
        for lane in lanes {
            self.catch_up(*lane, by).await?;
        }
        let answer = in_turn(&self.reads, move || query(&reader)).await?;
        answer.map_err(|error| {
            tracing::debug!(error = &error as &dyn std::error::Error, "looking a timer up");
            Error::Behind(lanes.first().copied().unwrap_or_default())
        })
    }

    /// Waits until all is decided and committed that stands in the intakes of these lanes now. What belongs in another lane
    /// stands there then.
    ///
    /// # Errors
    /// Not by then, or one of the lanes is not here.
    pub async fn settle(&self, lanes: &[Lane], by: Instant) -> Result<(), Error> {
        let undecided = Error::Undecided(lanes.first().copied().unwrap_or_default());
        let topics = &self.setup.topics;
        let mut partitions = Vec::new();
        for name in topics.names().iter().take(topics.intakes.len()) {
            partitions.extend(lanes.iter().map(|lane| (Arc::clone(name), i32::from(lane.0))));
        }
        let (ends, left) = (self.ends.clone(), by.saturating_duration_since(Instant::now()));
        let listing = in_turn(&self.reads, move || ends.wait(&partitions, left.min(CATCH_UP_MAX)));
        let listed = listing.await?;
        let listed = listed.inspect_err(
            |error| tracing::debug!(%error, "could not list the intakes' end offsets"),
        );
        let Ok(listed) = listed else { return Err(undecided) };
        let end = |end: end_offsets::EndOffset| {
            let lane = Lane(u16::try_from(end.partition).ok()?);
            Some((Source { topic: topics.find(&end.topic)?, lane }, end.last?))
        };
        let ends: Vec<_> = listed.into_iter().filter_map(end).collect();
        if self.replies.decided(lanes, &ends, by).await { Ok(()) } else { Err(undecided) }
    }

    /// Waits until what the index says of a lane is true.
    async fn catch_up(&self, lane: Lane, by: Instant) -> Result<(), Error> {
        while self.lane_state(lane) == LaneState::Here {
            let Some(mark) = self.written.mark(lane) else {
                // The follower asks for the end.
                if Instant::now() > by {
                    return Err(Error::Behind(lane));
                }
                sleep(RETRY_EVERY).await;
                continue;
            };
            match self.progress.wait(lane, mark, by).await {
                // It may have gone while that was waited for.
                Reach::Reached if self.lane_state(lane) == LaneState::Here => return Ok(()),
                Reach::Reached => break,
                Reach::Behind => return Err(Error::Behind(lane)),
                Reach::Without => return Err(Error::Without),
            }
        }
        Err(Error::Moving(lane))
    }

    /// Writes commands about timers of one lane, which came then and are answered by then, and waits until they are
    /// acknowledged; gives for each what its answer is asked for with. A cancel may be written wherever its lane runs.
    ///
    /// # Errors
    /// For each by itself: nothing was written, unless it says that this is not known.
    pub async fn command(
        &self,
        lane: Lane,
        commands: &[TimerCommand],
        (came, by): (Instant, Instant),
    ) -> Vec<Result<Ticket, Error>> {
        let mut records = Vec::with_capacity(commands.len());
        let mut made: Vec<Result<TimerId, Error>> = Vec::with_capacity(commands.len());
        for command in commands {
            made.push(self.record(lane, command, (came, by)).await.map(|record| {
                records.push(record);
                TimerId::of_name(&command.name)
            }));
        }
        // This process may have hung. Then the caller no longer waits, and another version may be pending than the one that
        // it meant.
        if Instant::now() >= by {
            return made.into_iter().map(|made| Err(made.err().unwrap_or(Error::Late))).collect();
        }
        let mut offsets = self.write(lane, &records, by).await.into_iter();
        let ticket = |made: Result<TimerId, Error>| {
            let timer_id = made?;
            let offset = offsets.next().ok_or(Error::NotFound)??;
            Ok(Ticket { lane, offset, timer_id })
        };
        made.into_iter().map(ticket).collect()
    }

    /// Writes commands, and gives for each its place in the log. Sometimes Kafka has a command and does not say where.
    /// Then a cancel is searched in its intake. Another time is requested again by the caller.
    pub(super) async fn write(
        &self,
        lane: Lane,
        records: &[Record],
        by: Instant,
    ) -> Vec<Result<Offset, SubmitError>> {
        let (topic, partition) = (self.intake(), i32::from(lane.0));
        let began = self.now().unwrap_or_default();
        let each = records.iter().map(|record| (partition, record));
        let receipts = self.submitter.submit_all(&topic, each, by).await;
        let mut offsets = Vec::with_capacity(receipts.len());
        for (record, receipt) in records.iter().zip(receipts) {
            offsets.push(match receipt.map(|receipt| receipt.stands) {
                Err(error) => Err(error),
                Ok(Some(stands)) => Ok(stands.offset),
                Ok(None) => self
                    .written(lane, record, began, by)
                    .await
                    .ok_or_else(|| SubmitError::Unacknowledged { topic: topic.to_string() }),
            });
        }
        offsets
    }

    /// Where a cancel stands that Kafka has taken since then; `None`: that cannot be found out, or it is no cancel.
    ///
    /// It is not written once more: without a version it would end also what was made between the two.
    async fn written(
        &self,
        lane: Lane,
        command: &Record,
        since: UnixMillis,
        by: Instant,
    ) -> Option<Offset> {
        let (name, value) = commands::mark(command)?;
        let (name, value) = (name.to_vec(), value.to_vec());
        let (connection, topic) = (self.connection.clone(), self.intake());
        let found = in_turn(&self.searches, move || {
            let place = (&*topic, i32::from(lane.0));
            find_record::find_header(&connection, place, (&name, &value), since, by)
        });
        let found = timeout_at(by.into(), found).await.ok()?.ok()?;
        found.inspect_err(|error| tracing::debug!(%error, "looking for a command")).ok()?
    }

    /// The record that stands for a command.
    async fn record(
        &self,
        lane: Lane,
        command: &TimerCommand,
        (came, by): (Instant, Instant),
    ) -> Result<Record, Error> {
        let TimerCommand { name, version, kind } = command;
        let due = match kind {
            CommandKind::Cancel => return Ok(commands::cancel(&self.setup, name, *version)),
            CommandKind::Reschedule(due) => *due,
        };
        let max = self.setup.limits.max_delay;
        let now = self.now().unwrap_or_default();
        let timer_id = TimerId::of_name(name);
        let by = by.checked_sub(WRITE_MIN).unwrap_or(by).min(Instant::now() + find_record::MAX);
        let found = timeout_at(by.into(), async {
            let timer = match self.pending(lane, timer_id, *version).await {
                // It may have been created or replaced just before the request came.
                Err(Error::NotPending(_) | Error::Superseded(_) | Error::Undecided(_)) => {
                    self.settle(&[lane], by).await?;
                    self.pending(lane, timer_id, *version).await?
                }
                found => found?,
            };
            if due - now > max {
                return Err(Error::TooLate(max));
            }
            let meant = timer.version;
            let found = self.search(lane, timer, now, by).await?;
            let is_late = version.is_none() && self.replies.was_replaced(lane, timer_id, came);
            match found {
                Some((record, terms)) if !is_late => Ok((record, terms, meant)),
                // A version that is not found may be replaced or ended meanwhile. The version that is pending in its
                // place was not meant.
                _ => {
                    let pending = self.pending(lane, timer_id, Some(meant)).await?;
                    // Without a version, the one that was pending when the request came was meant: this one came later.
                    Err(if is_late { Error::Superseded(pending.version) } else { Error::NotFound })
                }
            }
        });
        let (record, terms, meant) = found.await.unwrap_or(Err(Error::NotFound))?;
        commands::replace(&self.setup, &record, meant, terms, due).map_err(|_| Error::NotFound)
    }

    /// The pending version of a timer, if it is the one that is named.
    async fn pending(
        &self,
        lane: Lane,
        timer_id: TimerId,
        version: Option<Version>,
    ) -> Result<Timer, Error> {
        let timer = self.find(lane, timer_id).await?.ok_or(Error::NotPending(None))?;
        if !timer.state.is_final() && version.is_none_or(|version| version == timer.version) {
            return Ok(timer);
        }
        let about = About::Version(version.unwrap_or(timer.version));
        Err(match about.found(Some(&timer)) {
            Found::Replaced => Error::Superseded(timer.version),
            Found::Ended(state) => Error::NotPending(Some(state)),
            Found::Done | Found::Nothing => Error::NotPending(None),
        })
    }

    /// The record of a pending timer, and what of it stays; `None`: not found in time, or not as long as it was pending.
    async fn search(
        &self,
        lane: Lane,
        timer: Timer,
        now: UnixMillis,
        by: Instant,
    ) -> Result<Option<(Record, commands::Terms)>, Error> {
        let (connection, setup) = (self.connection.clone(), Arc::clone(&self.setup));
        let reader = self.reader.clone().ok_or(Error::Without)?;
        let found = in_turn(&self.searches, move || {
            let stands = || {
                let now = reader.find(lane, timer.timer_id);
                matches!(now, Ok(Some(now)) if (now.version, now.state) == (timer.version, timer.state))
            };
            Search::new(&connection, &setup, lane, &timer, by).run(now, &stands)
        });
        found.await?.map_err(Error::Search)
    }

    /// What became of a command, waiting for at most so long.
    ///
    /// # Errors
    /// The command stands; ask again.
    pub async fn answer(&self, ticket: &Ticket, wait: Duration) -> Result<CommandStatus, Error> {
        let source = Source { topic: TopicId(0), lane: ticket.lane };
        let reply = self.replies.wait(source, ticket.offset, Instant::now() + wait).await;
        let answer = match reply {
            // Of another cluster, or of a topic that was created again.
            Reply::Answer(answer) if answer.timer_id != ticket.timer_id => {
                return Ok(CommandStatus::Lost);
            }
            Reply::Answer(answer) => answer,
            Reply::Nothing => return Ok(CommandStatus::Pending),
            Reply::Before | Reply::Gone => return Ok(CommandStatus::Lost),
        };
        let (outcome, state, code) = match answer.outcome {
            Outcome::Recorded => (CommandOutcome::Recorded, None, None),
            Outcome::Cancelled => (CommandOutcome::Cancelled, None, None),
            Outcome::Superseded => (CommandOutcome::Superseded, None, None),
            Outcome::Replaced => (CommandOutcome::Replaced, None, None),
            Outcome::Created => (CommandOutcome::Created, None, None),
            Outcome::Refused(code) => (CommandOutcome::Refused, None, Some(code)),
            // No name of a timer is about a task.
            Outcome::Underway | Outcome::Reported(_) => return Ok(CommandStatus::Pending),
            Outcome::Absent => self.absent(ticket, answer.about).await?,
        };
        let is_end = outcome == CommandOutcome::Delivered || state.is_some();
        let is_last = is_end && matches!(answer.about, About::Before(_));
        Ok(CommandStatus::Decided { outcome, state, code, is_last })
    }

    /// What became of what a command is about, of which nothing was pending when it was decided: the outcome, and how the timer
    /// ended if the outcome does not say it.
    async fn absent(
        &self,
        ticket: &Ticket,
        about: About,
    ) -> Result<(CommandOutcome, Option<TimerState>, Option<Code>), Error> {
        if !self.tracks() {
            return Ok((CommandOutcome::Unknown, None, None));
        }
        let (lane, timer_id) = (ticket.lane, ticket.timer_id);
        // The command itself was decided, and so was what stands before it.
        let last = self.look(&[lane], move |reader| reader.find(lane, timer_id)).await?;
        let code = last.as_ref().and_then(|last| last.code);
        Ok(match about.found(last.as_ref()) {
            Found::Replaced => (CommandOutcome::Superseded, None, None),
            Found::Done => (CommandOutcome::Replaced, None, None),
            Found::Ended(TimerState::Cancelled) => (CommandOutcome::Cancelled, None, None),
            Found::Ended(TimerState::Delivered) => (CommandOutcome::Delivered, None, None),
            Found::Ended(state) => (CommandOutcome::Unknown, Some(state), code),
            Found::Nothing => (CommandOutcome::Unknown, None, None),
        })
    }
}

/// Does blocking work on a thread, when it is its turn. The turn ends with the work, also when no task waits for it any more.
pub(super) async fn in_turn<T: Send + 'static>(
    turns: &Arc<Semaphore>,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Error> {
    let turn = timeout(TURN_MAX, Arc::clone(turns).acquire_owned()).await;
    let Ok(Ok(turn)) = turn else { return Err(Error::Busy) };
    let working = spawn_blocking(move || {
        let done = work();
        drop(turn);
        done
    });
    working.await.map_err(|error| {
        tracing::error!(%error, "a query about timers panicked");
        Error::Fault
    })
}

impl std::fmt::Debug for Service {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Service").finish_non_exhaustive()
    }
}
