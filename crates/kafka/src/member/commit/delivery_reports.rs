//! Collects what the delivery reports say, and what the metrics get when a batch is done.

use parking_lot::{Mutex, MutexGuard};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crossbeam_channel::Sender;
use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Message as _, Timestamp};
use rdkafka::producer::{DeliveryResult, ProducerContext};

use super::blame::{self, CHECKPOINT, Named, Of};
use super::early::{Began, Early};
use super::late_hops::LateHops;
use super::letters;
use super::{Order, Report, Shared, Written};
use crate::client::connect;
use crate::client::oauth::tokens;
use crate::client::raw;
use crate::cluster::BrokerClock;
use waterclock_engine::header;
use waterclock_engine::messages::{ChangeReason, DeadLetter};
use waterclock_engine::{
    Batch, BatchId, Commit, Destination, HeaderRewrite, Lane, Offset, Record, TopicId, UnixMillis,
};
use waterclock_telemetry::LaneFigures;

/// What the delivery reports say: how much of each batch is still on its way.
#[derive(Debug, Default)]
pub(super) struct DeliveryReports {
    pub(super) batches: Mutex<VecDeque<Open>>,
    /// Connections that ended with requests on them, perhaps.
    pub(super) lost: AtomicU64,
    pub(super) failed: Mutex<Failed>,
    /// Where what went to `<ns>.timers` stands, until its transaction has committed.
    timers: Mutex<Vec<(Lane, Option<Offset>)>>,
    /// None before a producer was made.
    pub(super) hops: Option<LateHops>,
    early: Mutex<Early>,
}

/// Records whose delivery reports say that they failed.
#[derive(Debug, Default)]
pub(super) struct Failed {
    /// The first of them, in words.
    pub(super) first: Option<String>,
    /// Those that were refused for what they are, or for where they go.
    pub(super) refused: Vec<Named>,
    /// Topics of those that were not taken in time, each once.
    pub(super) doubted: Vec<Arc<str>>,
}

impl DeliveryReports {
    pub(super) fn new(hops: Option<LateHops>) -> Self {
        Self { hops, ..Self::default() }
    }

    pub(super) fn failed(&self) -> MutexGuard<'_, Failed> {
        self.failed.lock()
    }

    pub(super) fn early(&self) -> MutexGuard<'_, Early> {
        self.early.lock()
    }

    fn timers(&self) -> MutexGuard<'_, Vec<(Lane, Option<Offset>)>> {
        self.timers.lock()
    }

    /// What went to `<ns>.timers` counts from now on.
    pub(super) fn count_timers(&self, written: &Written) {
        for (lane, offset) in self.timers().drain(..) {
            written.raise(lane, offset);
        }
    }
}

#[derive(Debug)]
pub(super) struct Open {
    pub(super) id: BatchId,
    pub(super) left: usize,
    pub(super) commits: Vec<Commit>,
    pub(super) told: Told,
    pub(super) began: Began,
}

/// What the metrics get when a batch is done.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// Where each waited last, and when it was due.
    delivered: Vec<(TopicId, UnixMillis)>,
    labels: HashMap<Box<str>, u64>,
    forwarded: Vec<(usize, u64)>,
    moved: u64,
    dead: Vec<DeadLetter>,
    recorded: u64,
    cancelled: u64,
}

pub(super) struct Context {
    pub(super) ledger: Arc<DeliveryReports>,
    pub(super) done: Option<Done>,
}

/// What a delivery report needs in `at_least_once`, where it is what finishes a batch.
pub(super) struct Done {
    pub(super) orders: Sender<Order>,
    pub(super) shared: Arc<Shared>,
    pub(super) reports: Sender<Report>,
    pub(super) clock: Arc<BrokerClock>,
    pub(super) figures: Arc<LaneFigures>,
    pub(super) written: Arc<Written>,
}

impl ClientContext for Context {
    tokens!(without_log);

    /// librdkafka reports the end of a connection as an error only where the system does (RST). A broker, or a
    /// middlebox, may end a connection in good order (FIN). Then only librdkafka's log tells.
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        if is_end_of_connection(facility, message) {
            self.ledger.lost.fetch_add(1, Ordering::SeqCst);
        }
        connect::said(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        let code = error.rdkafka_error_code();
        if matches!(
            code,
            Some(
                RDKafkaErrorCode::BrokerTransportFailure
                    | RDKafkaErrorCode::AllBrokersDown
                    | RDKafkaErrorCode::OperationTimedOut
                    | RDKafkaErrorCode::Resolve
            )
        ) {
            tracing::debug!(%error, reason, "producer lost a broker");
        } else {
            tracing::warn!(%error, reason, "producer");
        }
    }
}

/// Whether librdkafka (2.12.1) says so that a connection has ended which requests may have been on: not one that did not come
/// about, as to a broker that is away for hours.
fn is_end_of_connection(facility: &str, message: &str) -> bool {
    facility == "FAIL" && ["in state UP", "in state REAUTH"].iter().any(|up| message.contains(up))
}

impl ProducerContext for Context {
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, opaque: usize) {
        let Of { batch, at, is_timer } = Of::read(opaque);
        let message = match result {
            Ok(message) => message,
            Err((error, message)) => return self.failed((batch, at), error, message),
        };
        // One that was sent twice is acknowledged without an offset.
        let offset = Some(Offset(message.offset())).filter(|offset| offset.0 >= 0);
        if let Some(hops) = &self.ledger.hops {
            let appended = message.timestamp().to_millis().and_then(|ms| u64::try_from(ms).ok());
            let appended = appended.filter(|ms| *ms > 0 && offset.is_some()).map(UnixMillis);
            hops.appended((batch, at), offset, appended);
        }
        let appended = match message.timestamp() {
            Timestamp::LogAppendTime(at) => {
                Some((raw::broker_of(message), UnixMillis(u64::try_from(at).unwrap_or_default())))
            }
            _ => None,
        };
        // Without a transaction it is there already.
        if let Some(appended) = appended.filter(|_| self.done.is_none()) {
            self.ledger.early().appended((batch, at), appended, message.topic());
        }
        if is_timer && let Ok(lane) = u16::try_from(message.partition()) {
            self.ledger.timers().push((Lane(lane), offset));
        }
        let Some(done) = self.done.as_ref().filter(|_| at != CHECKPOINT) else { return };
        let mut batches = self.ledger.batches.lock();
        if let Some(open) = batches.iter_mut().find(|open| open.id == batch) {
            open.left = open.left.saturating_sub(1);
            if let Some(shown) = appended.and_then(|(broker, at)| open.began.shown_by(broker, at)) {
                shown.tell(&done.clock);
            }
        }
        self.ledger.count_timers(&done.written);
        done.finish(&mut batches, self.ledger.hops.as_ref());
    }
}

impl Context {
    fn failed(
        &self,
        (batch, at): (BatchId, usize),
        error: &KafkaError,
        message: &BorrowedMessage<'_>,
    ) {
        let is_checkpoint = at == CHECKPOINT;
        if is_checkpoint && self.done.is_some() {
            let partition = message.partition();
            return tracing::warn!(%error, partition, "a checkpoint was not written");
        }
        let mut failed = self.ledger.failed();
        let blame = error.rdkafka_error_code().and_then(blame::blame);
        let blame = blame.filter(|_| !is_checkpoint);
        if blame.is_none() && !failed.doubted.iter().any(|topic| **topic == *message.topic()) {
            failed.doubted.push(message.topic().into());
        }
        if blame.is_none() && failed.first.is_some() {
            return;
        }
        let what = format!("{} partition {}: {error}", message.topic(), message.partition());
        if let Some(blame) = blame {
            let why = what.as_str().into();
            failed.refused.push(Named { batch, at, blame, why });
        }
        if failed.first.is_none() {
            if let Some(done) = &self.done {
                let _ = done.orders.send(Order::Failed(what.clone()));
            }
            failed.first = Some(what);
        }
    }
}

impl Done {
    /// Reports the batches at the front that are complete. One whose record failed never is: it stays, and nothing
    /// after it is reported.
    pub(super) fn finish(&self, batches: &mut VecDeque<Open>, hops: Option<&LateHops>) {
        while batches.front().is_some_and(|open| open.left == 0)
            && let Some(open) = batches.pop_front()
        {
            open.told.tell(&self.clock, &self.figures);
            self.shared.update(|progress| {
                progress.open = progress.open.saturating_sub(1);
                progress.commits.extend(open.commits.into_iter().map(|c| (c.source, c)));
            });
            let late = hops.map_or_else(Vec::new, |hops| hops.take(open.id));
            let _ = self.reports.send(Report::Done(open.id, late));
        }
    }
}

impl Told {
    pub(super) fn of(batch: &Batch, tiers_from: usize) -> Self {
        let mut told = Self::default();
        for send in &batch.sends {
            match (&send.to, &send.rewrite) {
                (Destination::Target(_), rewrite) => {
                    let from = if let HeaderRewrite::Deliver { from, .. } = rewrite {
                        *from
                    } else {
                        TopicId(0)
                    };
                    told.delivered.push((from, send.due));
                    if let Some(label) = label_of(&send.record) {
                        *told.labels.entry(label.into()).or_default() += 1;
                    }
                }
                (Destination::Lane(topic), _) if usize::from(topic.0) < tiers_from => {
                    told.moved += 1
                }
                (Destination::Lane(topic), _) => {
                    let tier = usize::from(topic.0) - tiers_from;
                    match told.forwarded.iter_mut().find(|(known, _)| *known == tier) {
                        Some((_, count)) => *count += 1,
                        None => told.forwarded.push((tier, 1)),
                    }
                }
                (Destination::Dead, HeaderRewrite::Dead(letter)) => {
                    told.dead.push((**letter).clone())
                }
                (Destination::Timers, HeaderRewrite::Timer(timer)) => match timer.reason {
                    ChangeReason::Recorded => told.recorded += 1,
                    ChangeReason::Suppressed | ChangeReason::Cancelled => told.cancelled += 1,
                    _ => {}
                },
                (Destination::Dead | Destination::Timers, _) => {}
            }
        }
        told
    }

    pub(super) fn tell(&self, clock: &BrokerClock, figures: &LaneFigures) {
        let now = clock.now(Instant::now()).unwrap_or(UnixMillis(0));
        figures.delivered(self.delivered.iter().map(|(from, due)| (*from, now - *due)));
        self.labels.iter().for_each(|(label, count)| figures.labelled(label, *count));
        for (tier, count) in &self.forwarded {
            figures.forwarded(*tier, *count);
        }
        figures.moved(self.moved);
        figures.cancels(self.recorded, self.cancelled);
        for letter in &self.dead {
            figures.dead_letter(letter.code);
            letters::tell(letter);
        }
    }
}

/// The label of a record that is delivered, if it has one.
fn label_of(record: &Record) -> Option<&str> {
    let mut headers = record.headers();
    let label =
        headers.find(|(name, _)| *name == header::LABEL.as_bytes()).and_then(|(_, value)| value)?;
    std::str::from_utf8(label).ok().filter(|label| !label.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_ends_only_if_it_was_there() {
        #[rustfmt::skip]
        let cases = [
            (true,  "FAIL",     "[thrd:b:9092/1]: b:9092/1: Disconnected (after 8012ms in state UP)"),
            (true,  "FAIL",     "[thrd:b:9092/1]: b:9092/1: Receive failed: Connection reset by peer (after 3ms in state UP)"),
            (true,  "FAIL",     "[thrd:b:9092/1]: b:9092/1: Disconnected (after 8012ms in state REAUTH)"),
            (false, "FAIL",     "[thrd:b:9092/1]: b:9092/1: Connect to ipv4#127.0.0.1:9 failed: Connection refused (after 0ms in state CONNECT)"),
            (false, "FAIL",     "[thrd:b:9092/1]: b:9092/1: ApiVersionRequest failed: Local: Timed out (after 2001ms in state APIVERSION_QUERY)"),
            (false, "REQTMOUT", "[thrd:b:9092/1]: b:9092/1: Timed out 1 in-flight, 0 retry-queued, 0 out-queue, 0 partially-sent requests"),
        ];
        for (ends, facility, message) in cases {
            assert_eq!(is_end_of_connection(facility, message), ends, "{facility} {message}");
        }
    }
}
