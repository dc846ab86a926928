//! Makes sure that no record is committed that was appended before it was due, or after it had expired. Finds the
//! clocks that are behind their believed bounds.
//!
//! A delivery is due by a lower bound of its leader's clock. That bound holds, with two exceptions: the clock was set
//! back since the last probe (`clock`), or the broker leads no partition that is probed. A record that leaves in
//! between is early by the clock as it is now. Its transaction is aborted, and it waits on, by a bound that this append
//! has shown. Any other append behind that bound is aborted, too: otherwise a record would go through a tier there
//! without waiting.
//!
//! A record has expired if its leader says that it was appended later. It has also expired if all clocks are known to
//! be later when its transaction is about to be committed: before that nobody sees it, wherever it stands.
//!
//! # Invariants
//! 1. A record that is early, or has expired, is known before the commit of its transaction begins.
//! 2. Where a topic keeps its writers' times, nothing is known of appends, and no record is refused for them. A record
//!    that has expired by the lower bound of all clocks is refused there, too.

use std::time::Instant;

use crate::cluster::{BrokerClock, probe};
use waterclock_engine::{Batch, BatchId, Destination, UnixMillis};

/// What the acknowledgements of a batch are compared with.
#[derive(Clone, Debug)]
pub(super) struct Began {
    at: Instant,
    /// All clocks were held to have reached this then.
    now: UnixMillis,
    /// Brokers whose clocks are known by what they append, and by nothing else.
    unprobed: Vec<i32>,
}

impl Began {
    pub(super) fn new(clock: &BrokerClock) -> Self {
        let at = Instant::now();
        Self { at, now: clock.now(at).unwrap_or_default(), unprobed: clock.unprobed() }
    }

    /// What an append tells of its broker's clock that was not known, if anything.
    pub(super) fn shown_by(&self, broker: i32, appended: UnixMillis) -> Option<Append> {
        let is_news = appended < self.now || self.unprobed.contains(&broker);
        is_news.then(|| Append { broker, appended, sent: self.at, acked: Instant::now() })
    }
}

/// What an acknowledgement says of a broker's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Append {
    broker: i32,
    appended: UnixMillis,
    /// The append was after this.
    sent: Instant,
    acked: Instant,
}

impl Append {
    pub(super) fn tell(self, clock: &BrokerClock) {
        if clock.learn(self.broker, self.appended, self.sent, self.acked) {
            probe::stepped_back(self.broker);
        }
    }
}

/// Why a transaction must be aborted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Untimely {
    Early(String),
    Expired(String),
}

/// When the records of the open transaction are due and when they expire, and the first that was appended outside of that.
#[derive(Debug, Default)]
pub(super) struct Early {
    batch: BatchId,
    began: Option<Began>,
    /// By place in the batch: from when to when it may be appended.
    times: Vec<(UnixMillis, UnixMillis)>,
    /// When the first of them expires.
    expires: Option<UnixMillis>,
    /// The last append of each broker that tells something of its clock.
    shown: Vec<Append>,
    found: Option<Untimely>,
}

const ALWAYS: (UnixMillis, UnixMillis) = (UnixMillis(0), UnixMillis(u64::MAX));

impl Early {
    /// A batch is about to be produced.
    pub(super) fn begin(&mut self, batch: &Batch, began: Began) {
        self.batch = batch.id;
        self.began = Some(began);
        self.found = None;
        self.shown.clear();
        self.times.clear();
        let times = batch.sends.iter().map(|send| match send.to {
            Destination::Target(_) => (send.due, send.expires.unwrap_or(ALWAYS.1)),
            _ => ALWAYS,
        });
        self.times.extend(times);
        self.expires = batch.sends.iter().filter_map(|send| send.expires).min();
    }

    /// A record was appended then, by its leader's clock in epoch milliseconds.
    pub(super) fn appended(
        &mut self,
        (batch, at): (BatchId, usize),
        (broker, appended): (i32, UnixMillis),
        topic: &str,
    ) {
        let Some(began) = self.began.as_ref().filter(|_| batch == self.batch) else { return };
        if let Some(shown) = began.shown_by(broker, appended) {
            self.shown.retain(|of| of.broker != broker);
            self.shown.push(shown);
        }
        let (due, expires) = self.times.get(at).copied().unwrap_or(ALWAYS);
        if self.found.is_some() {
            return;
        }
        let (early, late) = (due - appended, appended - expires);
        if appended < due {
            self.found = Some(Untimely::Early(format!(
                "a record for {topic} was appended {early} before it is due, as if a clock was set back"
            )));
        } else if appended > expires {
            let found = format!("a record for {topic} was appended {late} after it had expired");
            self.found = Some(Untimely::Expired(found));
        }
    }

    /// What the appends show of clocks; and why the open transaction, which is about to be committed, must be aborted,
    /// if it must.
    pub(super) fn take(&mut self, now: Option<UnixMillis>) -> (Vec<Append>, Option<Untimely>) {
        let expired = now.zip(self.expires).filter(|(now, expires)| now > expires);
        let expired = expired.map(|(now, expires)| {
            Untimely::Expired(format!("a record had expired {} before the commit", now - expires))
        });
        (std::mem::take(&mut self.shown), self.found.take().or(expired))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use waterclock_engine::messages::{HeaderRewrite, Produce};
    use waterclock_engine::{Record, TopicId};

    #[test]
    fn a_delivery_that_was_appended_before_it_is_due_or_after_it_expired_is_found() {
        let send = |to| Produce {
            to,
            partition: None,
            record: Record::empty(),
            rewrite: HeaderRewrite::Deliver { trace: None, from: TopicId(0) },
            due: UnixMillis(1_000),
            expires: Some(UnixMillis(1_500)),
        };
        let early = |of: Option<Untimely>| match of {
            None => 0,
            Some(Untimely::Early(_)) => -1,
            Some(Untimely::Expired(_)) => 1,
        };
        let sends = vec![send(Destination::Target("t".into())), send(Destination::Dead)];
        let batch = Batch { id: BatchId(7), sends, commits: Vec::new(), answers: Vec::new() };
        #[rustfmt::skip]
        let table = [
            (7, 0, 1_000, 0,  "to the millisecond"),
            (7, 0, 999,   -1, "a millisecond early"),
            (7, 0, 0,     -1, "in 1970"),
            (7, 0, 1_500, 0,  "the last millisecond"),
            (7, 0, 1_501, 1,  "a millisecond late"),
            (7, 1, 999,   0,  "a dead letter is not due"),
            (7, 1, 1_501, 0,  "and does not expire"),
            (7, 2, 999,   0,  "a checkpoint is none of the sends"),
            (6, 0, 999,   0,  "of a batch that is gone"),
        ];
        let began = |now, unprobed| {
            let (at, now) = (Instant::now(), UnixMillis(now));
            Began { at, now, unprobed }
        };
        for (id, at, appended, want, why) in table {
            let mut of = Early::default();
            of.begin(&batch, began(1_000, Vec::new()));
            of.appended((BatchId(id), at), (1, UnixMillis(appended)), "t");
            assert_eq!(early(of.take(None).1), want, "{why}");
        }
        // Where nothing is told of appends.
        for (now, want) in [(None, 0), (Some(1_500), 0), (Some(1_501), 1)] {
            let mut of = Early::default();
            of.begin(&batch, began(1_000, Vec::new()));
            assert_eq!(early(of.take(now.map(UnixMillis)).1), want, "{now:?}");
        }
        let mut early = Early::default();
        early.begin(&batch, began(1_001, vec![2]));
        for append in [(2, 1_005), (1, 1_001), (2, 1_002), (3, 1_000)] {
            early.appended((BatchId(7), 1), (append.0, UnixMillis(append.1)), "t");
        }
        let (shown, found) = early.take(None);
        let shown: Vec<_> = shown.iter().map(|of| (of.broker, of.appended.0)).collect();
        let want = vec![(2, 1_002), (3, 1_000)];
        assert_eq!((shown, found), (want, None), "the last of who is not probed, who is behind");
    }
}
