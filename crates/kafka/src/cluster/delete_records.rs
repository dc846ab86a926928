//! Deletes done records from our own topics: up to the committed low watermark, never beyond.
//!
//! Own topics keep records for ever (`retention.ms=-1`), so this is what frees the disk. It runs behind the commits, on
//! the thread of [`Upkeep`](super::upkeep::Upkeep). What it misses it deletes the next time.

use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};
use rdkafka::error::KafkaError;

use crate::client::errors;
use crate::client::raw::ask;
use crate::client::resilient_admin::ResilientAdmin;

/// Longest wait for an answer.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// Topic, partition, and the offset before which everything is done.
pub(crate) type Lows = Vec<(String, i32, i64)>;

/// Says what is done.
#[derive(Clone, Debug)]
pub(crate) struct Trim {
    asks: Sender<Lows>,
}

impl Trim {
    /// Deletes before these offsets, some time soon. Asking too often is passed over: the next time covers it.
    pub(crate) fn ask(&self, lows: Lows) {
        if !lows.is_empty() {
            let _ = self.asks.try_send(lows);
        }
    }
}

/// What there is to delete.
pub(crate) struct Deletes {
    admin: ResilientAdmin,
    asks: Sender<Lows>,
    inbox: Receiver<Lows>,
}

impl Deletes {
    pub(crate) fn new(admin: ResilientAdmin) -> Self {
        let (asks, inbox) = crossbeam_channel::bounded(64);
        Self { admin, asks, inbox }
    }

    /// For those who know what is done.
    pub(crate) fn trim(&self) -> Trim {
        Trim { asks: self.asks.clone() }
    }

    /// Whether there is an order.
    pub(super) fn is_asked(&self) -> bool {
        !self.inbox.is_empty()
    }

    /// The next order, if there is one.
    pub(super) fn next(&self) -> Option<Lows> {
        self.inbox.try_recv().ok()
    }

    pub(super) fn delete(&self, lows: &Lows) {
        let told = self.admin.ask_parts(|admin| -> Result<_, KafkaError> {
            let mut codes = Vec::new();
            for (topic, partition, code) in ask::delete_before(admin, lows, ANSWER_MAX)? {
                // Its followers delete theirs later, and it did not wait for them.
                if !errors::is_done_by_leader(code) {
                    tracing::debug!(%code, topic, partition, "could not delete what is done");
                    codes.push(code);
                }
            }
            Ok(((), codes))
        });
        if let Err(error) = told {
            tracing::warn!(%error, "could not delete what is done; the disk is not freed");
        }
    }
}
