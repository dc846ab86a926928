//! Counts what is pending in the lanes that this process owns, for the metrics: every 15 seconds, off the hot path.
//!
//! The lane threads say how far each partition was read and what of that is pending; the brokers say where it ends, in
//! one request to each leader. What lies between is pending, too, but for the marks of transactions.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rdkafka::error::KafkaError;

use super::Connection;
use super::driver::Status;
use super::envoy::Envoy;
use super::raw::ask::{End, EndOf, ends};
use crate::engine::{Read, Topics};
use crate::engine::{Setup, TopicId};
use crate::telemetry;

/// Between two counts.
const EVERY: Duration = Duration::from_secs(15);
/// How long a lane thread is given to say how far it has read.
const SAID_WITHIN: Duration = Duration::from_millis(1_500);
/// Longest wait for the ends.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// What was counted last, by tier or intake.
type Counts = Arc<Mutex<Vec<(String, u64)>>>;

/// The counting thread; stops when dropped.
#[derive(Debug)]
pub(super) struct Backlog {
    stop: Arc<AtomicBool>,
    counted: Counts,
    thread: JoinHandle<()>,
}

impl Backlog {
    /// Starts the thread.
    ///
    /// # Errors
    /// The client could not be made: the configuration is wrong.
    pub(super) fn start(
        connection: &Connection,
        setup: Arc<Setup>,
        statuses: Vec<Arc<Status>>,
    ) -> Result<Self, KafkaError> {
        let mut envoy = Envoy::new(connection, "waterclock-backlog")?;
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, counted) = (Arc::clone(&stop), Counts::default());
        let counts = Arc::clone(&counted);
        let thread = std::thread::Builder::new()
            .name("wc-backlog".into())
            .spawn(move || run(&mut envoy, &setup.topics, &statuses, &counts, &stopped))
            .map_err(|_| KafkaError::Canceled)?;
        Ok(Self { stop, counted, thread })
    }

    /// How many records stood in each intake and tier, in the lanes of this process, when they were last counted.
    pub(super) fn counted(&self) -> Vec<(String, u64)> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Backlog {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // Not waited for: with the brokers away it may be asking still.
        self.thread.thread().unpark();
    }
}

fn run(
    envoy: &mut Envoy,
    topics: &Topics,
    statuses: &[Arc<Status>],
    counted: &Counts,
    stop: &AtomicBool,
) {
    let pause = |most: Duration| {
        let until = Instant::now() + most;
        while !stop.load(Ordering::Relaxed) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            std::thread::park_timeout(left);
        }
    };
    while !stop.load(Ordering::Relaxed) {
        statuses.iter().for_each(|status| status.ask_for_reads());
        pause(SAID_WITHIN);
        let reads: Vec<Read> = statuses.iter().flat_map(|status| status.reads()).collect();
        let asked: Vec<(String, i32)> = reads
            .iter()
            .map(|read| (topics.name(read.source.topic).to_string(), i32::from(read.source.lane.0)))
            .collect();
        match envoy.ask(|admin| ends(admin.inner(), &asked, End::Last, ANSWER_MAX)) {
            Ok(ends) if !stop.load(Ordering::Relaxed) => {
                let counts = pending(topics, &reads, &ends).into_iter().enumerate();
                let counts: Vec<(String, u64)> =
                    counts.map(|(at, count)| (label(topics, TopicId(at as u16)), count)).collect();
                counts.iter().for_each(|(label, count)| telemetry::pending(label, *count));
                *counted.lock().unwrap_or_else(PoisonError::into_inner) = counts;
                envoy.heard(ends.iter().filter_map(|(_, _, end)| end.as_ref().err().copied()));
            }
            Ok(_) => {}
            Err(error) => tracing::debug!(%error, "what is pending is not known anew"),
        }
        pause(EVERY.saturating_sub(SAID_WITHIN));
    }
    for at in 0..topics.names().len() {
        telemetry::pending(&label(topics, TopicId(at as u16)), 0);
    }
}

/// The hold of a tier; `intake`, or `intake.eu`.
fn label(topics: &Topics, topic: TopicId) -> String {
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

#[cfg(test)]
mod tests {
    use rdkafka::error::RDKafkaErrorCode;

    use super::*;
    use crate::engine::allow::Allow;
    use crate::engine::ladder::Ladder;
    use crate::engine::{Intake, Lane, Millis, Offset, Source};

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
    fn labels_are_holds_and_intakes_without_the_namespace() {
        let topics = topics();
        let labels: Vec<String> = (0..4).map(|at| label(&topics, TopicId(at))).collect();
        assert_eq!(labels, ["intake", "intake.eu", "1s", "1m30s"]);
    }
}
