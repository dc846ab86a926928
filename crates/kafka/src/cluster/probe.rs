//! Keeps the [`BrokerClock`] fresh: one small acknowledged produce to a partition of `<ns>.meta` on every broker.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rdkafka::ClientContext;
use rdkafka::client::Client;
use rdkafka::error::KafkaError;

use super::BrokerClock;
use crate::client::Connection;
use crate::client::outages::{Bootstrap, OutageWatch};
use crate::client::wall_clock_us;
use crate::meta::{MetaWriter, Written};
use waterclock_engine::UnixMillis;
use waterclock_telemetry as telemetry;

/// Between two probes while something falls due soon. An append time is cut to the millisecond, and what a clock may drift
/// (0.5 ms a second) is lateness: of several probes in a second the best one counts.
const EVERY: Duration = Duration::from_millis(250);
/// Between two probes when nothing does.
const IDLE_EVERY: Duration = Duration::from_secs(1);
/// Leaders are looked up again this often.
const LEADERS_EVERY: Duration = Duration::from_secs(15);
/// The key of a probe; readers of `<ns>.meta` pass over it.
pub(crate) const PROBE_KEY: &str = "clock";

/// A probe on its way: when it was sent.
#[derive(Clone, Copy)]
struct Sent {
    at: Instant,
    /// This machine's time then, in microseconds.
    wall_us: u64,
}

/// A probe was acknowledged.
fn acknowledged(clock: &BrokerClock, sent: Sent, written: Written) {
    // A broker that leads no more hands a probe on: what counts is who wrote it.
    let Written { broker, appended: Some(appended), acked } = written else { return };
    if clock.observe(broker, appended, sent.at, acked) {
        stepped_back(broker);
    }
    compare(clock, broker, sent, appended, acked);
}

/// Compares a broker's clock with this machine's: the append was between the two times.
fn compare(clock: &BrokerClock, broker: i32, sent: Sent, appended: UnixMillis, acked: Instant) {
    let took_us = acked.saturating_duration_since(sent.at).as_micros() as i64;
    // A millisecond was cut off.
    let least_us = appended.0.cast_signed() * 1_000 - (sent.wall_us.cast_signed() + took_us);
    let most_us = least_us + took_us + 1_000;
    let middle_us = least_us.midpoint(most_us);
    telemetry::clock_skew(broker, middle_us as f64 / 1e6);
    let certain_us = if least_us > 0 { least_us } else { most_us.min(0) };
    if clock.note_skew(broker, certain_us / 1_000) {
        match clock.skewed().iter().find(|(id, _)| *id == broker) {
            Some((_, ahead_ms)) => tracing::error!(
                broker,
                ahead_ms,
                "the clocks of a broker and of this machine differ: delays count by the brokers' clocks, none is early by \
                 those. Synchronise them (chrony, ntpd)"
            ),
            None => {
                tracing::info!(broker, "the clocks of a broker and of this machine agree again")
            }
        }
    }
}

/// Says and counts it.
pub(crate) fn stepped_back(broker: i32) {
    telemetry::clock_stepped_back(broker);
    tracing::warn!(broker, "clock of a broker was stepped back");
}

/// The probing thread; stops when dropped.
#[derive(Debug)]
pub struct Probe {
    stop: Arc<AtomicBool>,
}

impl Probe {
    /// Starts probing, by a producer of its own.
    ///
    /// # Errors
    /// The client could not be made: the configuration is wrong.
    pub fn start(
        connection: &Connection,
        meta: &str,
        clock: Arc<BrokerClock>,
    ) -> Result<Self, KafkaError> {
        Self::start_with(MetaWriter::new(connection, meta)?, clock)
    }

    /// The same by this one, whose events are taken here.
    ///
    /// # Errors
    /// The operating system gives no thread.
    pub(crate) fn start_with(
        writer: Arc<MetaWriter>,
        clock: Arc<BrokerClock>,
    ) -> Result<Self, KafkaError> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        std::thread::Builder::new()
            .name("wc-clock".into())
            .spawn(move || run(&writer, &clock, &stopped))
            .map_err(|_| KafkaError::Canceled)?;
        Ok(Self { stop })
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // The thread is not waited for: with the brokers away it may be asking for metadata still.
    }
}

fn run(writer: &MetaWriter, clock: &Arc<BrokerClock>, stop: &AtomicBool) {
    let bell = writer.bell();
    let meta = writer.topic();
    let mut leaders: Vec<(i32, i32)> = Vec::new();
    let mut looked: Option<Instant> = None;
    let mut reach = Reach::default();
    let began = Instant::now();
    let mut outages = OutageWatch::new(writer.connection());
    let mut bootstrap = Bootstrap::new(writer.connection());
    while !stop.load(Ordering::Relaxed) {
        let doubted = clock.take_doubt();
        if leaders.is_empty() || doubted || looked.is_none_or(|at| at.elapsed() > LEADERS_EVERY) {
            if let Some(found) = leaders_of(writer.client(), meta) {
                let brokers: Vec<i32> = found.iter().map(|(broker, _)| *broker).collect();
                clock.keep(&brokers, Instant::now());
                say_changes(&leaders, &found);
                leaders = found;
            }
            looked = Some(Instant::now());
        }
        probe(writer, clock, &leaders);
        let mut now = Instant::now();
        let is_silent = clock.silence(now).map_or_else(
            || now.saturating_duration_since(began) > START_MAX,
            |silence| silence > AWAY_AFTER,
        );
        outages.look(now, is_silent);
        bootstrap.after_outage(writer.client());
        let mut is_away = true;
        if reach.is_new(clock.silence(now)) {
            // This process may have stood still, or the topic may be gone. Brokers that answer have a while for a probe that is
            // sent now: they may have stood still as well.
            is_away = leaders_of(writer.client(), meta).is_none();
            if !is_away {
                probe(writer, clock, &leaders);
            }
            let most = if is_away { EVERY } else { AWAY_AFTER };
            writer.take_events(&bell, most, || !reach.is_new(clock.silence(Instant::now())));
            now = Instant::now();
        }
        match reach.look(now, clock.silence(now)) {
            Some(Event::Away) if is_away => {
                tracing::warn!(
                    "Kafka is away: no broker answers. Nothing is lost, and what falls due meanwhile is late"
                );
            }
            Some(Event::Away) => {
                tracing::warn!(
                    topic = meta,
                    "the brokers answer, and none tells its time: the topic cannot be written. Nothing is delivered until it can"
                );
            }
            Some(Event::Back(after)) => tracing::info!(?after, "Kafka is back"),
            None => {}
        }
        for (broker, ahead) in clock.offsets(Instant::now()) {
            telemetry::clock_offset(broker, ahead);
        }
        let known = !leaders.is_empty() && clock.now(Instant::now()).is_some();
        // Acknowledgements are taken as they come.
        let every = if known && !clock.is_wanted() { IDLE_EVERY } else { EVERY };
        writer.take_events(&bell, every, || false);
    }
}

/// Sends a probe to each of these brokers.
fn probe(writer: &MetaWriter, clock: &Arc<BrokerClock>, leaders: &[(i32, i32)]) {
    for (broker, partition) in leaders {
        let clock = Arc::clone(clock);
        let sent = Sent { at: Instant::now(), wall_us: wall_clock_us() };
        let tell = move |report: Result<Written, KafkaError>| {
            if let Ok(written) = report {
                acknowledged(&clock, sent, written);
            }
        };
        if let Err(error) = writer.write(*partition, PROBE_KEY, None, tell) {
            tracing::debug!(%error, broker, "clock probe not sent");
        }
    }
}

/// Brokers that lead partitions of ours and did not before, and those that do not any more.
fn say_changes(before: &[(i32, i32)], now: &[(i32, i32)]) {
    let only = |these: &[(i32, i32)], those: &[(i32, i32)]| -> Vec<i32> {
        let is_new = |broker: &i32| !those.iter().any(|(other, _)| other == broker);
        these.iter().map(|(broker, _)| *broker).filter(is_new).collect()
    };
    let (gone, come) = (only(before, now), only(now, before));
    let is_other = !gone.is_empty() || !come.is_empty();
    if is_other && !before.is_empty() {
        tracing::info!(?gone, ?come, "other brokers lead the partitions of the meta topic");
    }
}

/// What a start may take until a broker has answered. Clients that are new have forgotten no brokers.
const START_MAX: Duration = Duration::from_secs(10);
/// With no answer for this long all brokers are away.
const AWAY_AFTER: Duration = Duration::from_secs(3);

/// What is said of all brokers together.
#[derive(Debug, PartialEq, Eq)]
enum Event {
    Away,
    /// After so long.
    Back(Duration),
}

/// Whether any broker answers: one line when none does any more, and one when it does again.
#[derive(Debug, Default)]
struct Reach {
    /// The last answer before they went.
    away_since: Option<Instant>,
}

impl Reach {
    /// Whether such a silence would be told as a new one.
    fn is_new(&self, silence: Option<Duration>) -> bool {
        self.away_since.is_none() && silence.is_some_and(|silence| silence > AWAY_AFTER)
    }

    /// `silence`: how long no broker has answered; `None`: none ever has, which is said elsewhere.
    fn look(&mut self, now: Instant, silence: Option<Duration>) -> Option<Event> {
        let silence = silence?;
        match self.away_since {
            None if silence > AWAY_AFTER => {
                self.away_since = Some(now - silence);
                Some(Event::Away)
            }
            Some(since) if silence <= AWAY_AFTER => {
                self.away_since = None;
                Some(Event::Back(now - since))
            }
            _ => None,
        }
    }
}

/// One partition of the topic for every broker that leads any.
fn leaders_of(client: &Client<impl ClientContext>, meta: &str) -> Option<Vec<(i32, i32)>> {
    let metadata = client.fetch_metadata(Some(meta), Duration::from_secs(5)).ok()?;
    let topic = metadata.topics().iter().find(|topic| topic.name() == meta)?;
    let mut leaders = std::collections::BTreeMap::new();
    for partition in topic.partitions().iter().filter(|partition| partition.leader() >= 0) {
        leaders.entry(partition.leader()).or_insert_with(|| partition.id());
    }
    Some(leaders.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn that_nobody_answers_is_said_once_and_so_is_that_somebody_does() {
        let start = Instant::now();
        let mut reach = Reach::default();
        let mut look = |at: u64, silent: Option<u64>| {
            reach.look(start + Duration::from_secs(at), silent.map(Duration::from_secs))
        };
        assert_eq!(look(0, None), None);
        assert_eq!(look(10, Some(3)), None);
        assert_eq!(look(14, Some(7)), Some(Event::Away));
        assert_eq!((look(15, Some(8)), look(60, Some(53))), (None, None));
        assert_eq!(look(61, Some(0)), Some(Event::Back(Duration::from_secs(54))));
        assert_eq!(look(62, Some(1)), None);
    }
}
