//! A batch has failed, and the assignment goes on: its role is told once there is a clean producer.
//!
//! # Invariants
//! 1. The role hears of the failure once the transaction of the batch is decided: then nothing of it is on its way any more.
//! 2. The thread does not wait for the producer: it goes on polling.
//! 3. Producers are not renewed more often than every [`EVERY`].

use std::time::{Duration, Instant};

use super::Session;
use crate::member::commit::NotReady;
use crate::member::rebalance::Error as TakeOver;
use crate::member::thread::Error;
use crate::member::thread::role::Role;
use waterclock_engine::Refused;

/// Between two renewals, at least.
const EVERY: Duration = Duration::from_millis(500);
/// A producer that could not be made is asked for again after this long.
const ASK_AGAIN: Duration = Duration::from_secs(2);
/// A committer that has made no producer by then may hang: another thread takes its place.
const PATIENCE: Duration = Duration::from_secs(40);

/// A producer that is made anew.
#[derive(Debug)]
pub(super) struct Renewal {
    /// When the producer was asked for last.
    asked: Instant,
    /// When the committer that makes it was asked for the first time.
    since: Instant,
}

impl<R: Role> Session<'_, R> {
    /// A batch has failed, and Kafka said this of it.
    pub(super) fn renew(&mut self, refused: Option<Refused>) {
        if let Some(refused) = refused {
            let (thread, Refused { named, blame, why, .. }) = (self.member.plan.thread, &refused);
            tracing::error!(
                thread,
                records = named.len(),
                ?blame,
                %why,
                "Kafka refuses what this member writes; what it has refused is written again by itself"
            );
            self.role.refused(&mut self.member, refused);
        }
        self.member.in_flight.clear();
        self.member.committer.ask_ready();
        let now = Instant::now();
        self.renewal = Some(Renewal { asked: now, since: now });
    }

    /// A batch hangs: the committer is left behind, and the producers of another one fence its batch.
    pub(super) fn abandon_and_renew(&mut self) {
        if let Err(error) = self.member.committer.abandon() {
            return tracing::warn!(%error, "could not abandon the commit thread, waiting for batches in flight");
        }
        self.renew(None);
    }

    /// Tells the role that its batch has failed, once there is a clean producer.
    pub(super) fn renew_when_ready(&mut self) -> Result<(), Error> {
        let Some(renewal) = &mut self.renewal else { return Ok(()) };
        let now = Instant::now();
        let failed = |not_ready: NotReady| {
            let (partitions, fatal) = (self.member.starts.len(), not_ready.fatal);
            Error::from(TakeOver::Producer { partitions, why: not_ready.to_string(), fatal })
        };
        if self.member.committer.is_ready().map_err(failed)? {
            if self.renewed.is_none_or(|at| now - at >= EVERY) {
                (self.renewal, self.renewed) = (None, Some(now));
                self.member.status.tell(None);
                self.role.failed(&mut self.member, Vec::new(), Vec::new());
            }
        } else if now - renewal.since >= PATIENCE {
            renewal.since = now;
            renewal.asked = now;
            self.member.committer.abandon().map_err(failed)?;
            self.member.committer.ask_ready();
        } else if now - renewal.asked >= ASK_AGAIN {
            renewal.asked = now;
            self.member.committer.ask_ready();
        }
        Ok(())
    }
}
