//! How far the brokers' clocks are from this machine's, and what a round trip and a transaction take.
//!
//! A record that is sent at `s` and acknowledged at `a` was appended between the two, so the broker's clock minus ours is
//! between `append - a` and `append - s`. Several probes leave the narrowest bounds.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::ClientContext;
use rdkafka::error::KafkaError;
use rdkafka::message::{Message as _, Timestamp};
use rdkafka::producer::{BaseRecord, DeliveryResult, Producer as _, ProducerContext};

use super::Skew;
use crate::client::events::Events;
use crate::client::oauth::tokens;
use crate::client::raw::TopicProducer;
use crate::client::{Connection, wall_clock};
use crate::cluster::PROBE_KEY;
use waterclock_engine::Millis;

/// Probes of each broker.
const ROUNDS: usize = 5;
/// Longest wait for the acknowledgements of one round; the first one has to connect.
const ROUND_MAX: Duration = Duration::from_secs(5);
/// Small transactions, of which the quickest counts.
const TRANSACTIONS: usize = 5;
/// Longest wait for one step of them.
const STEP_MAX: Duration = Duration::from_secs(15);

/// This machine's clock, read once and advanced by monotonic time.
#[derive(Clone, Copy)]
struct Local {
    wall_us: i64,
    began: Instant,
}

impl Local {
    fn at(&self, instant: Instant) -> i64 {
        let since = instant.saturating_duration_since(self.began).as_micros();
        self.wall_us.saturating_add(i64::try_from(since).unwrap_or(i64::MAX))
    }
}

struct Context {
    local: Local,
    seen: Arc<Mutex<BTreeMap<i32, Skew>>>,
}

impl ClientContext for Context {
    tokens!();

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(%error, reason, "clock probe");
    }
}

impl ProducerContext for Context {
    type DeliveryOpaque = Box<(i32, Instant)>;

    fn delivery(&self, result: &DeliveryResult<'_>, sent: Self::DeliveryOpaque) {
        let (acked, (broker, sent)) = (Instant::now(), *sent);
        let Ok(message) = result else { return };
        let Timestamp::LogAppendTime(appended) = message.timestamp() else { return };
        let fresh = Skew {
            least_us: appended.saturating_mul(1_000) - self.local.at(acked),
            // A millisecond was cut off.
            most_us: appended.saturating_mul(1_000) + 1_000 - self.local.at(sent),
            round_trip: acked.saturating_duration_since(sent),
        };
        let mut seen = self.seen.lock();
        seen.entry(broker).and_modify(|known| *known = narrowed(*known, fresh)).or_insert(fresh);
    }
}

/// What both say; the later one, if a clock was stepped in between and they contradict each other.
fn narrowed(known: Skew, fresh: Skew) -> Skew {
    let both = Skew {
        least_us: known.least_us.max(fresh.least_us),
        most_us: known.most_us.min(fresh.most_us),
        round_trip: known.round_trip.min(fresh.round_trip),
    };
    if both.least_us <= both.most_us { both } else { fresh }
}

/// Measures every broker that leads one of these partitions of `meta`: broker and partition.
pub(super) fn skews(
    connection: &Connection,
    meta: &str,
    leaders: &[(i32, i32)],
) -> Result<BTreeMap<i32, Skew>, KafkaError> {
    let mut config = connection.client("waterclock-doctor");
    config.set("acks", "1").set("linger.ms", "0").set("message.timeout.ms", "5000");
    config.set("allow.auto.create.topics", "false");
    let local = Local {
        wall_us: i64::try_from(wall_clock().0).unwrap_or(i64::MAX).saturating_mul(1_000),
        began: Instant::now(),
    };
    let seen = Arc::new(Mutex::default());
    let context = Context { local, seen: Arc::clone(&seen) };
    let producer = Events::start("wc-acks")?.producer(&config, context)?;
    for _ in 0..ROUNDS {
        for (broker, partition) in leaders {
            let sent = Box::new((*broker, Instant::now()));
            let record: BaseRecord<'_, str, [u8], _> =
                BaseRecord::with_opaque_to(meta, sent).key(PROBE_KEY).partition(*partition);
            producer.send(record).map_err(|(error, _)| error)?;
        }
        producer.flush(ROUND_MAX)?;
    }
    let seen = seen.lock();
    Ok(seen.clone())
}

/// Reports come back with a number that nobody needs.
struct Unheard;

impl ClientContext for Unheard {
    tokens!();

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(%error, reason, "trial transaction");
    }
}

impl ProducerContext for Unheard {
    type DeliveryOpaque = usize;

    fn delivery(&self, _: &DeliveryResult<'_>, _: usize) {}
}

/// Why the trial failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failed {
    #[error("could not {0}")]
    Step(&'static str, #[source] KafkaError),
    #[error("could not commit: {0}")]
    Commit(String),
}

/// How long a transaction with one small record takes at best, under `<ns>/doctor`.
pub(super) fn commit(
    connection: &Connection,
    namespace: &str,
    meta: &str,
    partition: i32,
    timeout: Millis,
) -> Result<Duration, Failed> {
    let failed = |step| move |error| Failed::Step(step, error);
    let mut config = connection.client("waterclock-doctor");
    config
        .set("transactional.id", format!("{namespace}/doctor"))
        .set("transaction.timeout.ms", timeout.0.to_string())
        .set("message.timeout.ms", timeout.0.to_string())
        .set("linger.ms", "0")
        .set("retry.backoff.ms", "2")
        .set("allow.auto.create.topics", "false");
    // As a lane thread commits: rdkafka's own way takes up to 100 ms longer.
    let producer = TopicProducer::create(&config, Unheard).map_err(failed("make a producer"))?;
    producer
        .inner()
        .init_transactions(STEP_MAX)
        .map_err(failed("begin as a transactional producer"))?;
    let mut best = Duration::MAX;
    for _ in 0..TRANSACTIONS {
        let began = Instant::now();
        producer.inner().begin_transaction().map_err(failed("begin"))?;
        let record: BaseRecord<'_, str, [u8], usize> =
            BaseRecord::with_opaque_to(meta, 0).key(PROBE_KEY).partition(partition);
        let sent = producer.inner().send(record).map_err(|(error, _)| error);
        let done = sent
            .map_err(failed("write to the meta topic"))
            .and_then(|()| producer.commit(STEP_MAX).map_err(|(_, told)| Failed::Commit(told)));
        if let Err(error) = done {
            // What cannot be aborted ends at its time limit.
            let _ = producer.inner().abort_transaction(STEP_MAX);
            return Err(error);
        }
        best = best.min(began.elapsed());
    }
    Ok(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_narrow_the_bounds_until_they_contradict_each_other() {
        let skew = |least_us, most_us| Skew { least_us, most_us, round_trip: Duration::ZERO };
        #[rustfmt::skip]
        let cases = [
            ("a quicker one lies within",   skew(-900, 5_000), skew(10, 2_000),        skew(10, 2_000)),
            ("each has one better bound",   skew(-900, 2_000), skew(10, 5_000),        skew(10, 2_000)),
            ("the clock was stepped",       skew(-900, 2_000), skew(90_000, 95_000),   skew(90_000, 95_000)),
        ];
        for (why, known, fresh, want) in cases {
            assert_eq!(narrowed(known, fresh), want, "{why}");
        }
    }
}
