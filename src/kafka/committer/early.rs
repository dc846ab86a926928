//! Sees that nothing is committed that came to stand before it was due, and which clocks are behind what is believed.
//!
//! What leaves is due by a lower bound of its leader's clock, which holds unless that clock was set back since the last probe
//! (`clock`), or it leads nothing that is probed. What left in between is early by the clock as it is now: its transaction is
//! aborted, and it waits on, by a bound that this append has shown. So does any other append that is behind that bound: a
//! record would go through a tier there without waiting.
//!
//! # Invariants
//! 1. A record that is early is known before the commit of its transaction begins.
//! 2. Where a topic keeps its writers' times nothing is known, and nothing refused.

use std::time::Instant;

use crate::engine::{Batch, BatchId, To, UnixMillis};
use crate::kafka::{BrokerClock, probe};

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

/// When the records of the open transaction are due, and the first that was appended before that.
#[derive(Debug, Default)]
pub(super) struct Early {
    batch: BatchId,
    began: Option<Began>,
    /// By place in the batch; 0: it may come at any time.
    due: Vec<u64>,
    /// The last append of each broker that tells something of its clock.
    shown: Vec<Append>,
    found: Option<String>,
}

impl Early {
    /// A batch is about to be produced.
    pub(super) fn begin(&mut self, batch: &Batch, began: Began) {
        self.batch = batch.id;
        self.began = Some(began);
        self.found = None;
        self.shown.clear();
        self.due.clear();
        let due = batch.sends.iter().map(|send| match send.to {
            To::Target(_) => send.due.0,
            _ => 0,
        });
        self.due.extend(due);
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
        let due = self.due.get(at).copied().unwrap_or_default();
        let early_ms = due.saturating_sub(appended.0);
        if early_ms > 0 && self.found.is_none() {
            self.found = Some(format!(
                "a record for {topic} was appended {early_ms} ms before it is due, as if a clock was set back"
            ));
        }
    }

    /// What is shown of clocks, and why the open transaction must be aborted, if it must.
    pub(super) fn take(&mut self) -> (Vec<Append>, Option<String>) {
        (std::mem::take(&mut self.shown), self.found.take())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Record;
    use crate::engine::orders::{Edit, Send};

    #[test]
    fn a_delivery_that_was_appended_before_it_is_due_is_found() {
        let send = |to| Send {
            to,
            partition: None,
            record: Record::empty(),
            edit: Edit::Deliver(None),
            due: UnixMillis(1_000),
        };
        let sends = vec![send(To::Target("t".into())), send(To::Dead)];
        let batch = Batch { id: BatchId(7), sends, commits: Vec::new(), answers: Vec::new() };
        #[rustfmt::skip]
        let table = [
            (7, 0, 1_000, false, "to the millisecond"),
            (7, 0, 999,   true,  "a millisecond early"),
            (7, 0, 0,     true,  "in 1970"),
            (7, 1, 999,   false, "a dead letter is not due"),
            (7, 2, 999,   false, "a checkpoint is none of the sends"),
            (6, 0, 999,   false, "of a batch that is gone"),
        ];
        let began = |now, unprobed| {
            let (at, now) = (Instant::now(), UnixMillis(now));
            Began { at, now, unprobed }
        };
        for (id, at, appended, want, why) in table {
            let mut early = Early::default();
            early.begin(&batch, began(1_000, Vec::new()));
            early.appended((BatchId(id), at), (1, UnixMillis(appended)), "t");
            assert_eq!(early.take().1.is_some(), want, "{why}");
        }
        let mut early = Early::default();
        early.begin(&batch, began(1_001, vec![2]));
        for append in [(2, 1_005), (1, 1_001), (2, 1_002), (3, 1_000)] {
            early.appended((BatchId(7), 1), (append.0, UnixMillis(append.1)), "t");
        }
        let (shown, found) = early.take();
        let shown: Vec<_> = shown.iter().map(|of| (of.broker, of.appended.0)).collect();
        let want = vec![(2, 1_002), (3, 1_000)];
        assert_eq!((shown, found), (want, None), "the last of who is not probed, who is behind");
    }
}
