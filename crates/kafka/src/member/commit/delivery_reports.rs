//! Collects what the delivery reports say.

use parking_lot::{Mutex, MutexGuard};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crossbeam_channel::Sender;
use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::KafkaError;
use rdkafka::message::{BorrowedMessage, Message as _, Timestamp};
use rdkafka::producer::{DeliveryResult, ProducerContext};

use super::error_class::class;
use super::place::{CHECKPOINT, Of};
use super::{BatchOwner, OnDone, Report, Request, Shared};
use crate::client::connect;
use crate::client::errors;
use crate::client::oauth::tokens;
use crate::client::raw;
use crate::cluster::{BrokerClock, probe};
use waterclock_engine::member::{Appended, Appends, Clocks, Failures, News};
use waterclock_engine::{Batch, BatchId, Commit, Offset, UnixMillis};

/// What the delivery reports of a set of producers say.
#[derive(Debug)]
pub(super) struct DeliveryReports {
    /// What the times of the batches in flight count from.
    epoch: Instant,
    /// How much of each batch is still on its way (`at_least_once`).
    pub(super) batches: Mutex<VecDeque<Open>>,
    /// Connections that ended with requests on them, perhaps.
    pub(super) lost: AtomicU64,
    failures: Mutex<Failures>,
    appends: Mutex<Appends>,
    /// Where records stand that are followed, until their transaction has committed.
    followed: Mutex<Vec<(i32, Option<Offset>)>>,
}

impl DeliveryReports {
    /// `aborts`: what was written can be taken back.
    pub(super) fn new(aborts: bool) -> Self {
        Self {
            epoch: Instant::now(),
            batches: Mutex::default(),
            lost: AtomicU64::default(),
            failures: Mutex::default(),
            appends: Mutex::new(Appends::new(aborts)),
            followed: Mutex::default(),
        }
    }

    pub(super) fn failures(&self) -> MutexGuard<'_, Failures> {
        self.failures.lock()
    }

    pub(super) fn appends(&self) -> MutexGuard<'_, Appends> {
        self.appends.lock()
    }

    /// A batch is about to be produced.
    pub(super) fn begin(&self, batch: &Batch, owner: &dyn BatchOwner, clock: &BrokerClock) {
        let at = Instant::now();
        let now = clock.now(at).unwrap_or_default();
        let at = at.saturating_duration_since(self.epoch);
        let clocks = Clocks { at, now, unprobed: clock.unprobed() };
        let times = batch.sends.iter().map(|send| owner.timing(send)).collect();
        self.appends().begin(batch.id, times, clocks);
    }

    /// The sends that are acknowledged of batches that are not done: by batch and place in it.
    pub(super) fn acknowledged(&self) -> Vec<(BatchId, usize)> {
        let batches = self.batches.lock();
        let sends =
            batches.iter().flat_map(|open| open.acknowledged.iter().map(|at| (open.id, *at)));
        sends.collect()
    }

    /// What is followed counts from now on.
    pub(super) fn tell_followed(&self, owner: &dyn BatchOwner) {
        for (partition, offset) in self.followed.lock().drain(..) {
            owner.stands(partition, offset);
        }
    }
}

/// A batch in flight.
pub(super) struct Open {
    pub(super) id: BatchId,
    /// How many sends it has.
    pub(super) sends: usize,
    /// The places of those that are acknowledged.
    pub(super) acknowledged: Vec<usize>,
    pub(super) commits: Vec<Commit>,
    pub(super) on_done: OnDone,
}

impl Open {
    fn is_done(&self) -> bool {
        self.acknowledged.len() >= self.sends
    }
}

impl std::fmt::Debug for Open {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Open")
            .field("id", &self.id)
            .field("sends", &self.sends)
            .field("acknowledged", &self.acknowledged)
            .finish_non_exhaustive()
    }
}

pub(super) struct Context {
    pub(super) delivery_reports: Arc<DeliveryReports>,
    pub(super) clock: Arc<BrokerClock>,
    pub(super) done: Option<Done>,
}

/// What a delivery report needs in `at_least_once`, where it is what finishes a batch.
pub(super) struct Done {
    pub(super) requests: Sender<Request>,
    pub(super) shared: Arc<Shared>,
    pub(super) reports: Sender<Report>,
    pub(super) clock: Arc<BrokerClock>,
    pub(super) owner: Arc<dyn BatchOwner>,
}

impl ClientContext for Context {
    tokens!(without_log);

    /// librdkafka reports the end of a connection as an error only where the system does (RST). A broker, or a
    /// middlebox, may end a connection in good order (FIN). Then only librdkafka's log tells.
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        if is_end_of_connection(facility, message) {
            self.delivery_reports.lost.fetch_add(1, Ordering::SeqCst);
        }
        connect::said(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        if errors::kind(&error).is_lost_connection() {
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
        let of = Of::read(opaque);
        let message = match result {
            Ok(message) => message,
            Err((error, message)) => return self.failed((of.batch, of.at), error, message),
        };
        let told = appended(message);
        let place = (of.batch, of.at);
        let news = self.delivery_reports.appends().appended(place, told, message.topic());
        if let Some(News { leader, appended, since }) = news {
            let since = self.delivery_reports.epoch + since;
            if self.clock.learn(leader, appended, since, Instant::now()) {
                probe::stepped_back(leader);
            }
        }
        if of.is_followed {
            self.delivery_reports.followed.lock().push((message.partition(), told.offset));
        }
        let Some(done) = self.done.as_ref().filter(|_| of.at != CHECKPOINT) else { return };
        let mut batches = self.delivery_reports.batches.lock();
        if let Some(open) = batches.iter_mut().find(|open| open.id == of.batch) {
            open.acknowledged.push(of.at);
        }
        // It is there already.
        self.delivery_reports.tell_followed(&*done.owner);
        done.finish(&mut batches, &self.delivery_reports);
    }
}

/// What a delivery report says of a record that was written.
fn appended(message: &BorrowedMessage<'_>) -> Appended {
    let (time, leader) = match message.timestamp() {
        Timestamp::LogAppendTime(at) => (Some(at), Some(raw::broker_of(message))),
        Timestamp::CreateTime(at) => (Some(at), None),
        Timestamp::NotAvailable => (None, None),
    };
    Appended {
        // One that was sent twice is acknowledged without an offset.
        offset: Some(Offset(message.offset())).filter(|offset| offset.0 >= 0),
        time: time.and_then(|ms| u64::try_from(ms).ok()).map(UnixMillis),
        leader,
    }
}

impl Context {
    fn failed(&self, place: (BatchId, usize), error: &KafkaError, message: &BorrowedMessage<'_>) {
        let is_checkpoint = place.1 == CHECKPOINT;
        let (topic, partition) = (message.topic(), message.partition());
        if is_checkpoint && self.done.is_some() {
            return tracing::warn!(%error, partition, "a checkpoint was not written");
        }
        let place = (!is_checkpoint).then_some(place);
        let what = || format!("{topic} partition {partition}: {error}");
        let is_first = self.delivery_reports.failures().add(place, class(error), topic, what);
        if let Some(done) = self.done.as_ref().filter(|_| is_first) {
            let _ = done.requests.send(Request::Failed(what()));
        }
    }
}

impl Done {
    /// Reports the batches at the front that are complete. One whose record failed never is: it stays, and nothing
    /// after it is reported.
    pub(super) fn finish(&self, batches: &mut VecDeque<Open>, delivery_reports: &DeliveryReports) {
        while batches.front().is_some_and(Open::is_done)
            && let Some(open) = batches.pop_front()
        {
            (open.on_done)(self.clock.now(Instant::now()).unwrap_or_default());
            self.shared.update(|progress| {
                progress.open = progress.open.saturating_sub(1);
                progress.commits.extend(open.commits.into_iter().map(|c| (c.source, c)));
            });
            let late = delivery_reports.appends().end(open.id);
            let _ = self.reports.send(Report::Done(open.id, late));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_batches_that_are_not_done_it_is_known_what_is_acknowledged() {
        let delivery_reports = DeliveryReports::new(false);
        let open = |id, sends| {
            let (acknowledged, commits) = (Vec::new(), Vec::new());
            Open { id: BatchId(id), sends, acknowledged, commits, on_done: Box::new(|_| {}) }
        };
        delivery_reports.batches.lock().extend([open(7, 3), open(8, 1)]);
        for (batch, at) in [(7, 2), (8, 0), (9, 0), (7, 0)] {
            let mut batches = delivery_reports.batches.lock();
            if let Some(open) = batches.iter_mut().find(|open| open.id == BatchId(batch)) {
                open.acknowledged.push(at);
            }
        }
        let is_done: Vec<bool> =
            delivery_reports.batches.lock().iter().map(Open::is_done).collect();
        assert_eq!(is_done, [false, true]);
        let want = [(7, 2), (7, 0), (8, 0)].map(|(batch, at)| (BatchId(batch), at));
        assert_eq!(delivery_reports.acknowledged(), want);
    }

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
