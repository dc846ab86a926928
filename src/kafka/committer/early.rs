//! Sees that nothing is committed that came to stand before it was due.
//!
//! What leaves is due by a lower bound of its leader's clock, which holds unless that clock was set back since the last probe
//! (`clock`). What left in between is early by the clock as it is now: its transaction is aborted, and it waits on.
//!
//! # Invariants
//! 1. A record that is early is known before the commit of its transaction begins.
//! 2. Where a topic keeps its writers' times nothing is known, and nothing refused.

use crate::engine::{Batch, BatchId, To};

/// When the records of the open transaction are due, and the first that was appended before that.
#[derive(Debug, Default)]
pub(super) struct Early {
    batch: BatchId,
    /// By place in the batch; 0: it may come at any time.
    due: Vec<u64>,
    found: Option<String>,
}

impl Early {
    /// A batch is about to be produced.
    pub(super) fn begin(&mut self, batch: &Batch) {
        self.batch = batch.id;
        self.found = None;
        self.due.clear();
        let due = batch.sends.iter().map(|send| match send.to {
            To::Target(_) => send.due.0,
            _ => 0,
        });
        self.due.extend(due);
    }

    /// A record was appended then, by its leader's clock in epoch milliseconds.
    pub(super) fn appended(&mut self, (batch, at): (BatchId, usize), appended: i64, topic: &str) {
        let due = self.due.get(at).filter(|_| batch == self.batch).copied().unwrap_or_default();
        let early_ms = due.saturating_sub(u64::try_from(appended).unwrap_or_default());
        if early_ms > 0 && self.found.is_none() {
            self.found = Some(format!(
                "a record for {topic} was appended {early_ms} ms before it is due, as if a clock was set back"
            ));
        }
    }

    /// Why the open transaction must be aborted, if it must.
    pub(super) fn found(&mut self) -> Option<String> {
        self.found.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Record;
    use crate::engine::UnixMillis;
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
            (7, 0, -1,    true,  "before 1970"),
            (7, 1, 999,   false, "a dead letter is not due"),
            (7, 2, 999,   false, "a checkpoint is none of the sends"),
            (6, 0, 999,   false, "of a batch that is gone"),
        ];
        for (id, at, appended, want, why) in table {
            let mut early = Early::default();
            early.begin(&batch);
            early.appended((BatchId(id), at), appended, "t");
            assert_eq!(early.found().is_some(), want, "{why}");
        }
    }
}
