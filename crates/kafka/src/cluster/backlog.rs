//! Counts pending records in the lanes that this process owns, and what open transactions hold back there and in the
//! targets in use. This is for the metrics: every 15 seconds, off the hot path. A consumer that fetches nothing although there is
//! more is found here, too.
//!
//! The lane threads report how far each partition was read and how much of that is pending. The brokers report where it
//! ends, in one request to each leader. Records in between are pending, too, but for the markers of transactions.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::Lookup;
use super::open_transactions::{Held, Open, by_label};
use super::stalls::{Fetched, Stalled, Stalls};
use crate::client::log_limiter::LogLimiter;
use crate::client::outages::OutageWatch;
use crate::client::raw::ask::{End, EndOf};
use crate::client::resilient_admin::ResilientAdmin;
use crate::client::{Connection, errors};
use crate::meta::CHECKPOINT_PARTITION;
use waterclock_engine::{Lane, Read, Setup, TopicId, Topics};
use waterclock_telemetry as telemetry;

/// Between two counts.
const EVERY: Duration = Duration::from_secs(15);
/// How long a lane thread is given to say how far it has read.
const SAID_WITHIN: Duration = Duration::from_millis(1_500);
/// Longest wait for the ends.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// Lines about transactions that stay open in one look, at most.
const SAY_MAX: usize = 5;
/// The label of all targets together: their names are not ours, and there may be many.
const TARGETS: &str = "targets";

/// What was counted last.
type Counts = Arc<Mutex<Counted>>;

#[derive(Debug, Default)]
struct Counted {
    /// The lanes of this process then, ascending.
    lanes: Vec<Lane>,
    /// What is pending, by tier or intake.
    pending: Vec<(String, u64)>,
}

/// How far a lane thread has read each of its partitions: asked now and then, and answered within a second if the thread
/// turns.
#[derive(Debug, Default)]
pub(crate) struct Reads(Mutex<Option<Vec<Fetched>>>);

impl Reads {
    /// Asks the thread.
    fn ask(&self) {
        *self.0.lock() = None;
    }

    /// Its answer; empty where it has not answered.
    fn answer(&self) -> Vec<Fetched> {
        self.0.lock().clone().unwrap_or_default()
    }

    /// Whether the thread is to answer.
    pub(crate) fn is_asked(&self) -> bool {
        self.0.lock().is_none()
    }

    /// The thread answers.
    pub(crate) fn tell(&self, fetched: Vec<Fetched>) {
        *self.0.lock() = Some(fetched);
    }
}

/// What was counted last.
#[derive(Clone, Debug, Default)]
pub(crate) struct Backlog {
    counted: Counts,
}

impl Backlog {
    /// How many records stood in each intake and tier, in the lanes of this process, when they were last counted.
    pub(crate) fn counted(&self) -> Vec<(String, u64)> {
        self.counted.lock().pending.clone()
    }

    /// The same in all of them together; `None`: when they were last counted, this process had other lanes than these, which ascend.
    pub(crate) fn in_lanes(&self, lanes: &[Lane]) -> Option<u64> {
        let counted = self.counted.lock();
        let pending = counted.pending.iter().map(|(_, count)| count).sum();
        (counted.lanes == lanes).then_some(pending)
    }
}

/// Counts, on the thread of [`Upkeep`](super::upkeep::Upkeep).
pub(crate) struct Count {
    admin: ResilientAdmin,
    setup: Arc<Setup>,
    threads: Vec<Arc<Reads>>,
    lookup: Lookup,
    counted: Counts,
    open: Open,
    stalls: Stalls,
    outages: OutageWatch,
    said: LogLimiter,
    step: Step,
    due: Instant,
}

/// What is to be done next.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Ask the lane threads how far they have read.
    Ask,
    /// Take their answers, and count.
    Count,
}

impl Count {
    /// Counts for all that have a clone of this backlog.
    pub(crate) fn new(
        admin: ResilientAdmin,
        setup: Arc<Setup>,
        threads: Vec<Arc<Reads>>,
        lookup: Lookup,
        backlog: &Backlog,
        connection: &Connection,
    ) -> Self {
        Self {
            admin,
            setup,
            threads,
            lookup,
            counted: Arc::clone(&backlog.counted),
            open: Open::default(),
            stalls: Stalls::default(),
            outages: OutageWatch::new(connection),
            said: LogLimiter::default(),
            step: Step::Ask,
            due: Instant::now(),
        }
    }

    /// When it is to be called.
    pub(super) fn due(&self) -> Instant {
        self.due
    }

    pub(super) fn tick(&mut self, stop: &AtomicBool) {
        match self.step {
            Step::Ask => {
                self.threads.iter().for_each(|thread| thread.ask());
                (self.step, self.due) = (Step::Count, Instant::now() + SAID_WITHIN);
            }
            Step::Count => {
                let threads = self.threads.iter();
                let fetched: Vec<Fetched> = threads.flat_map(|thread| thread.answer()).collect();
                let reads: Vec<Read> = fetched.iter().map(|fetched| fetched.read).collect();
                let ends = self.count(&reads, stop);
                self.look_for_stalls(&fetched, &ends);
                if !stop.load(Ordering::Relaxed) {
                    self.look_for_open(ends, &reads);
                }
                let pause = EVERY.saturating_sub(SAID_WITHIN);
                (self.step, self.due) = (Step::Ask, Instant::now() + pause);
            }
        }
    }

    /// Nothing is pending here any more.
    pub(super) fn end(&mut self) {
        let topics = &self.setup.topics;
        for at in 0..topics.names().len() {
            telemetry::pending(&label(topics, TopicId(at as u16)), 0);
        }
        self.tell(&[]);
    }

    /// Counts what is pending; gives where the partitions end.
    fn count(&mut self, reads: &[Read], stop: &AtomicBool) -> Vec<EndOf> {
        let topics = &self.setup.topics;
        let asked: Vec<(String, i32)> = reads.iter().map(|read| place(topics, read)).collect();
        let told = match self.admin.ends(&asked, End::Last, ANSWER_MAX) {
            Ok(told) => told,
            Err(error) => {
                tracing::debug!(%error, "could not count what is pending; the last count stays");
                return unknown(&asked);
            }
        };
        if !stop.load(Ordering::Relaxed) {
            let counts = pending(topics, reads, &told).into_iter().enumerate();
            let counts: Vec<(String, u64)> =
                counts.map(|(at, count)| (label(topics, TopicId(at as u16)), count)).collect();
            counts.iter().for_each(|(label, count)| telemetry::pending(label, *count));
            *self.counted.lock() = Counted { lanes: lanes_of(reads), pending: counts };
        }
        told
    }

    /// Looks whether consumers fetch what there is. One that does not may have forgotten its brokers.
    fn look_for_stalls(&mut self, fetched: &[Fetched], ends: &[EndOf]) {
        let (stalled, now) = (self.stalls.look(fetched, ends), Instant::now());
        self.outages.look(now, !stalled.is_empty());
        if let Some(Stalled { topic, partition, offset, end }) = stalled.first()
            && self.said.admits(None, now)
        {
            tracing::warn!(
                topic,
                partition,
                offset,
                end,
                partitions = stalled.len(),
                "a partition is not fetched although there is more of it; the clients are given their brokers again (logged once a \
                 minute)"
            );
        }
    }

    /// Looks whether a transaction holds readers back: in the lanes owned here, of which the ends are known, in meta, and
    /// in the targets in use. These are asked about by themselves: one that was deleted a moment ago takes its time.
    fn look_for_open(&mut self, mut last: Vec<EndOf>, reads: &[Read]) {
        let topics = &self.setup.topics;
        let intakes = reads.iter().filter(|read| read.source.topic == TopicId(0));
        let timers =
            intakes.map(|read| (topics.timers().to_string(), i32::from(read.source.lane.0)));
        let meta = (topics.meta().to_string(), CHECKPOINT_PARTITION);
        let own: Vec<(String, i32)> = timers.chain([meta]).collect();
        let lanes: Vec<(String, i32)> =
            last.iter().map(|(topic, partition, _)| (topic.clone(), *partition)).collect();
        let mut stable = Vec::new();
        for (asked, is_last_known) in [(lanes, true), (own, false), (self.lookup.in_use(), false)] {
            let ask = |end| {
                let told = self.admin.ends(&asked, end, ANSWER_MAX);
                told.unwrap_or_else(|error| {
                    tracing::debug!(%error, "could not ask for open transactions; the last answer stays");
                    unknown(&asked)
                })
            };
            // The readers' positions are asked last: a record that is appended in between is no open transaction.
            if !is_last_known {
                last.extend(ask(End::Last));
            }
            stable.extend(ask(End::Stable));
        }
        let held = self.open.look(&last, &stable, Instant::now());
        self.tell(&held);
        let told = held.iter().filter(|held| held.is_to_be_told);
        for Held { topic, partition, offset, behind, age, .. } in told.take(SAY_MAX) {
            tracing::error!(
                topic,
                partition,
                offset,
                behind,
                age_s = age.as_secs(),
                "a transaction stays open: what stands behind it is not read. If its producer has died: kafka-transactions.sh \
                 find-hanging, then abort"
            );
        }
    }

    fn tell(&self, held: &[Held]) {
        let topics = &self.setup.topics;
        let mut labels: BTreeMap<String, String> = BTreeMap::new();
        for (at, name) in topics.names().iter().enumerate() {
            labels.insert(name.to_string(), label(topics, TopicId(at as u16)));
        }
        labels.insert(topics.timers().to_string(), "timers".to_owned());
        labels.insert(topics.meta().to_string(), "meta".to_owned());
        let sums = by_label(held, |topic| labels.get(topic).map_or(TARGETS, String::as_str));
        for label in labels.values().map(String::as_str).chain([TARGETS]) {
            let (age, behind) = sums.get(label).copied().unwrap_or_default();
            telemetry::held_back(label, age, behind);
        }
    }
}

/// The answer where nobody answers: unknown for each partition, so that what was seen of it before stays.
fn unknown(asked: &[(String, i32)]) -> Vec<EndOf> {
    let away = Err(errors::NO_ANSWER);
    asked.iter().map(|(topic, partition)| (topic.clone(), *partition, away)).collect()
}

/// A partition as it is asked about.
fn place(topics: &Topics, read: &Read) -> (String, i32) {
    (topics.name(read.source.topic).to_string(), i32::from(read.source.lane.0))
}

/// What a tier or an intake is called in the figures: `1m`, `intake`, `intake.eu`.
pub(crate) fn label(topics: &Topics, topic: TopicId) -> String {
    match topics.tier_of(topic) {
        Some(tier) => topics.ladder.tiers()[tier].hold.to_string(),
        None => {
            let name = topics.name(topic);
            name.strip_prefix(&format!("{}.", topics.namespace)).unwrap_or(name).to_owned()
        }
    }
}

/// What is pending of each topic. Pure.
fn pending(topics: &Topics, reads: &[Read], ends: &[EndOf]) -> Vec<u64> {
    let ends: BTreeMap<(&str, i32), i64> = ends
        .iter()
        .filter_map(|(topic, partition, end)| {
            Some(((topic.as_str(), *partition), *end.as_ref().ok()?))
        })
        .collect();
    let mut counts = vec![0; topics.names().len()];
    for Read { source, upto, pending } in reads {
        let at = (&**topics.name(source.topic), i32::from(source.lane.0));
        // Without an end, what was read is all that is known.
        let unread = ends.get(&at).map_or(0, |end| end.saturating_sub(upto.0).max(0));
        counts[usize::from(source.topic.0)] += *pending as u64 + unread.unsigned_abs();
    }
    counts
}

/// The lanes that these partitions are of, ascending: those that run have their main intake among them.
fn lanes_of(reads: &[Read]) -> Vec<Lane> {
    let intakes = reads.iter().filter(|read| read.source.topic == TopicId(0));
    let mut lanes: Vec<Lane> = intakes.map(|read| read.source.lane).collect();
    lanes.sort_unstable();
    lanes
}

#[cfg(test)]
mod tests {
    use rdkafka::error::RDKafkaErrorCode;

    use super::*;
    use waterclock_engine::allow::Allow;
    use waterclock_engine::ladder::Ladder;
    use waterclock_engine::{Intake, Millis, Offset, Source};

    fn topics() -> Topics {
        let allow = Allow::new("ns", None).unwrap();
        let intake = |name| Intake::new(name, None, None, allow.clone());
        let ladder = Ladder::new(&[Millis(1_000), Millis(90_000)], &[], Millis(2_000)).unwrap();
        Topics::new("ns", vec![intake(""), intake("eu")], ladder)
    }

    #[test]
    fn what_is_pending_is_what_was_read_and_not_done_and_what_was_not_read() {
        let topics = topics();
        let read = |topic, lane, upto, pending| Read {
            source: Source { topic: TopicId(topic), lane: Lane(lane) },
            upto: Offset(upto),
            pending,
        };
        let reads = [read(0, 0, 10, 2), read(0, 1, 10, 0), read(3, 0, 7, 1), read(3, 1, 7, 4)];
        let away = Err(RDKafkaErrorCode::LeaderNotAvailable);
        let ends = [
            ("ns.intake".to_owned(), 0, Ok(15)),
            ("ns.intake".to_owned(), 1, Ok(10)),
            ("ns.delay.1m30s".to_owned(), 0, Ok(3)),
            ("ns.delay.1m30s".to_owned(), 1, away),
        ];
        assert_eq!(pending(&topics, &reads, &ends), [7, 0, 0, 5]);
    }

    #[test]
    fn what_is_pending_in_lanes_that_were_not_counted_is_not_known() {
        let read = |topic, lane| Read {
            source: Source { topic: TopicId(topic), lane: Lane(lane) },
            upto: Offset(0),
            pending: 0,
        };
        let backlog = Backlog::default();
        assert_eq!(backlog.in_lanes(&[]), Some(0), "it has none, and nothing is pending there");
        assert_eq!(backlog.in_lanes(&[Lane(1)]), None);
        let lanes = lanes_of(&[read(0, 3), read(2, 3), read(2, 7), read(0, 1)]);
        let pending = vec![("intake".to_owned(), 2), ("1s".to_owned(), 5)];
        *backlog.counted.lock() = Counted { lanes, pending };
        assert_eq!(backlog.in_lanes(&[Lane(1), Lane(3)]), Some(7));
        for others in [&[][..], &[Lane(1)], &[Lane(1), Lane(2), Lane(3)]] {
            assert_eq!(backlog.in_lanes(others), None, "{others:?}");
        }
    }

    #[test]
    fn labels_are_holds_and_intakes_without_the_namespace() {
        let topics = topics();
        let labels: Vec<String> = (0..4).map(|at| label(&topics, TopicId(at))).collect();
        assert_eq!(labels, ["intake", "intake.eu", "1s", "1m30s"]);
    }
}
