//! Finds the record of a pending timer, so that it can be due at another time.
//!
//! The index knows when a timer is due, not where its record stands. The record goes down the ladder by a rule, which says
//! in which tier it should be, and about when it was appended there. If it is not there, because it was late or was spilled,
//! the search reads all tiers. A record that was let go stays in its topic for a while, and any copy of it will do.
//!
//! # Invariants
//! 1. The result is a record of that version: its state says so and is authentic; or it stands where that version was
//!    submitted, at that offset and time, with that key and id.
//! 2. The search takes a bounded time, and ends as soon as the timer no longer has that version.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::commands::Terms;
use crate::engine::header;
use crate::engine::state::{Kind, State};
use crate::engine::timers::Timer;
use crate::engine::{Lane, Millis, Offset, Record, Setup, TopicId, UnixMillis};
use crate::kafka::topic_reader::{self, Consumed, Patience, ReadError, Span, StartAt};
use crate::kafka::{Connection, Isolation, KafkaError, TopicReader};

/// How the client is named in the brokers' logs.
const CLIENT: &str = "waterclock-find";
/// How long a broker holds a fetch for which there is nothing.
const WAIT: Duration = Duration::from_millis(50);
/// How long the whole search may take at most.
pub(crate) const MAX: Duration = Duration::from_secs(10);
/// If nothing comes from a partition for this long, it is read to its end, or its end cannot be read.
const SILENCE_MAX: Duration = Duration::from_millis(500);
/// librdkafka counts in whole milliseconds: a question ends a little before the time that it was given.
pub(super) const EARLY_MAX: Duration = Duration::from_millis(20);
/// How much earlier than by the rule a record may have been appended: the linger was shorter, a clock differs.
pub(super) const EARLIER: Millis = Millis(2_000);
/// How much later the search looks before it reads everything.
pub(super) const LATER: Millis = Millis(30_000);

/// Where to look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SearchRange {
    /// At this offset.
    At(i64),
    /// Among what was appended between these times.
    Between(UnixMillis, UnixMillis),
    /// Among all.
    All,
}

/// A search for one timer's record.
pub(super) struct Search<'a> {
    connection: &'a Connection,
    setup: &'a Setup,
    lane: Lane,
    timer: &'a Timer,
    by: Instant,
}

impl<'a> Search<'a> {
    pub(super) fn new(
        connection: &'a Connection,
        setup: &'a Setup,
        lane: Lane,
        timer: &'a Timer,
        by: Instant,
    ) -> Self {
        Self { connection, setup, lane, timer, by }
    }

    /// The record, and what of it stays; `None`: not found in time, or as long as the timer `stands`.
    ///
    /// # Errors
    /// Kafka does not let us read.
    pub(super) fn run(
        &self,
        now: UnixMillis,
        stands: &dyn Fn() -> bool,
    ) -> Result<Option<(Record, Terms)>, ReadError> {
        let (name, lane) = (self.setup.topics.name(TopicId(0)), i32::from(self.lane.0));
        let mut reader = reader(self.connection, (name, lane))?;
        for (n, (topic, place)) in places(self.setup, self.timer, now).into_iter().enumerate() {
            if Instant::now() > self.by || n > 0 && !stands() {
                break;
            }
            match self.look(&mut reader, topic, place) {
                Ok(None) => {}
                // There was no time left for a last request: that is no error of Kafka.
                Err(_) if Instant::now() + EARLY_MAX >= self.by => break,
                found => return found,
            }
        }
        Ok(None)
    }

    fn look(
        &self,
        reader: &mut TopicReader,
        topic: TopicId,
        place: SearchRange,
    ) -> Result<Option<(Record, Terms)>, ReadError> {
        let at = (&**self.setup.topics.name(topic), i32::from(self.lane.0));
        look(reader, at, place, self.by, |message| self.recognize(topic, message))
    }

    /// The record, if this message is of the wanted version.
    fn recognize(&self, topic: TopicId, message: &Consumed<'_>) -> Option<(Record, Terms)> {
        let key = message.key();
        let is_same = match (&self.timer.key, self.timer.key_cut) {
            (Some(own), true) => key.is_some_and(|key| key.starts_with(own)),
            (own, _) => key == own.as_deref(),
        };
        if !is_same {
            return None;
        }
        let record = message.record(self.setup.limits.record_bytes_max);
        if record.is_cut().is_some() {
            return None;
        }
        let terms = self.terms(topic, message, &record)?;
        Some((record, terms))
    }

    fn terms(&self, topic: TopicId, message: &Consumed<'_>, record: &Record) -> Option<Terms> {
        let directive = header::read(record.headers()).ok()?;
        if directive.id != Some(&*self.timer.id) || directive.action == header::TimerAction::Cancel
        {
            return None;
        }
        let version = self.timer.version;
        let offset = version.offset_in_log().0;
        let topics = &self.setup.topics;
        let state = directive
            .state
            .map(|bytes| State::open(bytes, &self.setup.key, &directive.bound(record.key())));
        let is_at_its_place = message.offset().0 == offset;
        let target = directive.target.is_none().then(|| Arc::clone(&self.timer.target));
        match state {
            Some(Err(_)) => None,
            Some(Ok(state)) => {
                let is_same = state.first_appended == version.first_appended;
                let is_it = match state.kind {
                    Kind::Hop | Kind::Duplicate => is_same && state.order.offset == version.offset,
                    Kind::Move => is_same && is_at_its_place,
                    // A version of its own, which was made where it stands.
                    Kind::Amend => is_at_its_place && appended(message) == version.first_appended,
                    // Of tasks, which no name of a timer is about.
                    Kind::Submit | Kind::Work | Kind::Result => false,
                };
                let name = state.name.map(Into::into);
                let intake = state.intake;
                is_it.then_some(Terms { expires: state.expires, intake, name, target })
            }
            None => {
                let at = appended(message);
                if !is_at_its_place || at != version.first_appended {
                    return None;
                }
                let intake = match topics.tier_of(topic) {
                    Some(_) => 0,
                    None => usize::from(topic.0),
                };
                let max = self.setup.limits.max_delay;
                let expires = directive.expires.map(|when| header::expires_at(when, at, max));
                let of = topics.intakes.get(intake)?;
                let name = Some(&of.name).filter(|name| !name.is_empty()).cloned();
                let expires = expires.transpose().ok()?;
                Some(Terms { expires, intake: of.tag(), name, target })
            }
        }
    }
}

/// What `recognize` finds in a partition, in that range of it.
///
/// # Errors
/// Kafka does not let us read.
pub(super) fn look<T>(
    reader: &mut TopicReader,
    (name, partition): (&str, i32),
    range: SearchRange,
    by: Instant,
    mut recognize: impl FnMut(&Consumed<'_>) -> Option<T>,
) -> Result<Option<T>, ReadError> {
    know(reader, name, by)?;
    let (first, end) = reader.ends(name, partition, left(by))?;
    let (from, to) = match range {
        SearchRange::At(offset) => (Offset(offset), end.min(Offset(offset).next())),
        SearchRange::All => (first, end),
        SearchRange::Between(from, _) => {
            match reader.offset_at(name, partition, from, left(by))? {
                Some(offset) => (offset, end),
                // Nothing is as late.
                None => return Ok(None),
            }
        }
    };
    // What stood before the beginning is done and deleted; what is left may be the record.
    let span = Span { partition, from: StartAt::Offset(from.max(first)), to };
    let is_wanted = || true;
    let patience = Patience { silence: SILENCE_MAX, by: Some(by), is_wanted: &is_wanted };
    let mut found = None;
    let read = reader.read(name, [span], patience, |message| {
        found = recognize(message);
        let is_over = match range {
            SearchRange::Between(_, until) => appended(message) > until,
            SearchRange::At(_) | SearchRange::All => false,
        };
        Ok::<_, ReadError>(match found.is_some() || is_over {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        })
    });
    match read {
        // What does not come in time is not there, as far as anybody waits for it.
        Ok(_) | Err(ReadError::Silent { .. }) => Ok(found),
        Err(error) => Err(error),
    }
}

/// A reader for searches.
///
/// # Errors
/// Kafka does not let us read.
pub(super) fn reader(
    connection: &Connection,
    (topic, partition): (&str, i32),
) -> Result<TopicReader, ReadError> {
    TopicReader::to_ends(connection, CLIENT, Isolation::Committed, WAIT)
        .map_err(unread(topic, partition))
}

/// How long an answer may take.
fn left(by: Instant) -> Duration {
    by.saturating_duration_since(Instant::now()).min(SILENCE_MAX * 4)
}

/// Has a reader find out who leads the partitions of a topic.
fn know(reader: &TopicReader, topic: &str, by: Instant) -> Result<(), ReadError> {
    reader.find_leaders(topic, left(by)).map_err(unread(topic, 0))
}

/// Where a record with this header stands in a partition, among what was appended since then; `None`: not found in time.
///
/// # Errors
/// Kafka does not let us read.
pub(super) fn find_header(
    connection: &Connection,
    (topic, partition): (&str, i32),
    header: (&[u8], &[u8]),
    since: UnixMillis,
    by: Instant,
) -> Result<Option<Offset>, ReadError> {
    // An open transaction of another producer in the intake must not hide it from us.
    let mut reader = TopicReader::to_ends(connection, CLIENT, Isolation::Uncommitted, WAIT)
        .map_err(unread(topic, partition))?;
    know(&reader, topic, by)?;
    let since = UnixMillis(since.0.saturating_sub(EARLIER.0));
    let Some(from) = reader.offset_at(topic, partition, since, left(by))? else { return Ok(None) };
    let (_, to) = reader.ends(topic, partition, left(by))?;
    let span = Span { partition, from: StartAt::Offset(from), to };
    let mut found = None;
    let read = reader.read(topic, [span], Patience::by(by), |message| {
        found = message.has_header(header.0, header.1).then(|| message.offset());
        Ok::<_, ReadError>(match found {
            Some(_) => ControlFlow::Break(()),
            None => ControlFlow::Continue(()),
        })
    });
    match read {
        Ok(_) | Err(ReadError::Silent { .. }) => Ok(found),
        Err(error) => Err(error),
    }
}

fn unread(topic: &str, partition: i32) -> impl FnOnce(KafkaError) -> ReadError {
    let at = topic_reader::RecordPosition { topic: topic.to_owned(), partition, offset: None };
    move |source| ReadError::kafka(at, source)
}

pub(super) fn appended(message: &Consumed<'_>) -> UnixMillis {
    message.appended().unwrap_or_default()
}

/// Where a pending timer's record may be, the likeliest first. Pure.
pub(super) fn places(setup: &Setup, timer: &Timer, now: UnixMillis) -> Vec<(TopicId, SearchRange)> {
    let topics = &setup.topics;
    let version = timer.version;
    let intakes = (0..topics.intakes.len()).map(|at| TopicId(at as u16));
    let mut places = down_the_ladder(setup, (version.first_appended, timer.due), now);
    // Where it was submitted: there for half a minute at least, and all that there is of a short delay.
    let offset = version.offset_in_log().0;
    places.extend(intakes.map(|topic| (topic, SearchRange::At(offset))));
    let tiers = 0..topics.ladder.tiers().len();
    places.extend(tiers.map(|tier| (topics.of_tier(tier), SearchRange::All)));
    places
}

/// The tiers that a record passes through from one time to the other, the one where it waits now first.
pub(super) fn down_the_ladder(
    setup: &Setup,
    (from, due): (UnixMillis, UnixMillis),
    now: UnixMillis,
) -> Vec<(TopicId, SearchRange)> {
    let (topics, horizon) = (&setup.topics, setup.limits.horizon);
    let mut places = Vec::new();
    // As if nothing were ever late.
    let mut at = from;
    while at <= now
        && due - at > horizon
        && let Some(tier) = topics.ladder.pick(due - at)
    {
        places.push((topics.of_tier(tier), around(at)));
        at = at + topics.ladder.tiers()[tier].wait();
    }
    // The last leg is where it waits now; what it passed through before may be gone.
    places.reverse();
    places
}

/// What was appended at about this time.
pub(super) fn around(at: UnixMillis) -> SearchRange {
    SearchRange::Between(UnixMillis(at.0.saturating_sub(EARLIER.0)), at + LATER)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::allow::Allow;
    use crate::engine::ladder::Ladder;
    use crate::engine::state::StateKey;
    use crate::engine::timers::{TimerId, TimerState};
    use crate::engine::{Intake, Limits, Topics, timers};

    const BORN: UnixMillis = UnixMillis(1_767_225_600_000);

    fn setup() -> Setup {
        let allow = Allow::new("ns", None).unwrap();
        let intakes = ["", "eu"].map(|name| Intake::new(name, None, None, allow.clone()));
        let holds = [1_000, 10_000, 60_000].map(Millis);
        let ladder = Ladder::new(&holds, &[], Millis(2_000)).unwrap();
        let topics = Topics::new("ns", intakes.to_vec(), ladder);
        Setup { lanes: 4, topics, key: StateKey::new([1; 32]), limits: Limits::default() }
    }

    fn timer(delay_ms: u64) -> Timer {
        Timer {
            timer_id: TimerId::new(None, b"i"),
            state: TimerState::Delay,
            version: timers::Version { first_appended: BORN, offset: Offset(42) },
            supersedes: None,
            due: BORN + Millis(delay_ms),
            since: BORN,
            target: "t".into(),
            label: None,
            id: Box::from(&b"i"[..]),
            key: None,
            key_cut: false,
            code: None,
            task: None,
        }
    }

    #[test]
    fn a_record_is_looked_for_where_the_ladder_has_it_then_where_it_came_in_then_everywhere() {
        let setup = setup();
        let tier = |at| setup.topics.of_tier(at);
        let since = |ms: u64| {
            let at = BORN + Millis(ms);
            SearchRange::Between(at - EARLIER, at + LATER)
        };
        let others = [
            (TopicId(0), SearchRange::At(42)),
            (TopicId(1), SearchRange::At(42)),
            (tier(0), SearchRange::All),
            (tier(1), SearchRange::All),
            (tier(2), SearchRange::All),
        ];
        #[rustfmt::skip]
        let cases = [
            // why,                       delay ms, now ms, first
            ("in the wheel from the start",  1_500,      0, vec![]),
            ("in its only tier",            60_000, 30_000, vec![(tier(2), since(0))]),
            ("in the second, for its rest", 75_000, 60_000, vec![(tier(1), since(58_000)), (tier(2), since(0))]),
            ("not yet in the second",       75_000, 57_999, vec![(tier(2), since(0))]),
        ];
        for (why, delay_ms, now_ms, first) in cases {
            let places = places(&setup, &timer(delay_ms), BORN + Millis(now_ms));
            let want: Vec<_> = first.into_iter().chain(others).collect();
            assert_eq!(places, want, "{why}");
        }
    }

    #[test]
    fn what_came_by_another_way_is_looked_for_at_its_offset_without_the_mark() {
        let setup = setup();
        let mut timer = timer(1_500);
        let mark = setup.topics.mark(TopicId(0));
        timer.version.offset = timers::Version::not_in_log_order(Offset(42), mark);
        assert_eq!(places(&setup, &timer, BORN)[0], (TopicId(0), SearchRange::At(42)));
    }
}
