//! Gives clients their brokers back after an outage.
//!
//! A broker that comes back may answer before its controller counts it among the living: then its metadata name no broker.
//! librdkafka (2.12.1) forgets all brokers by such an answer, also those that it was given at its start. It takes these again when
//! the last connection ends, but misses that moment where connections had ended before; then it asks nobody any more, and the
//! client hangs for good. To give it the addresses once more mends it. A client that has its brokers gets one thread more for each
//! address, until its next metadata, in five minutes at the latest.
//!
//! # Invariants
//! 1. Who notices that no broker answers says so, as long as that lasts and a while longer. Every client of the process is given
//!    its brokers once for each time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rdkafka::client::{Client, ClientContext};

use super::{Connection, raw};

/// Between two times.
const EVERY: Duration = Duration::from_secs(5);
/// The same where silence may have another reason, and may last.
const RARELY: Duration = Duration::from_secs(60);
/// How long after the last silence a broker may still answer with metadata that name none.
const AFTER: Duration = Duration::from_secs(20);

/// How often it was said that no broker answers; of a process.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outages(Arc<AtomicU64>);

impl Outages {
    fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// One client's addresses, and for which outage it was given them.
#[derive(Debug)]
pub(crate) struct Bootstrap {
    brokers: String,
    outages: Outages,
    seen: u64,
}

impl Bootstrap {
    pub(crate) fn new(connection: &Connection) -> Self {
        let Connection { brokers, outages, .. } = connection;
        Self { brokers: brokers.clone(), outages: outages.clone(), seen: outages.count() }
    }

    /// Gives a client its brokers again, if it was said since the last call that no broker answers.
    pub(crate) fn after_outage<C: ClientContext>(&mut self, client: &Client<C>) {
        self.all_after_outage([client]);
    }

    /// The same for clients that belong together.
    pub(crate) fn all_after_outage<'a, C: ClientContext + 'a>(
        &mut self,
        clients: impl IntoIterator<Item = &'a Client<C>>,
    ) {
        let now = self.outages.count();
        if now != self.seen {
            self.seen = now;
            clients.into_iter().for_each(|client| raw::add_brokers(client, &self.brokers));
        }
    }
}

/// Says for a process that no broker answers.
#[derive(Debug)]
pub(crate) struct OutageWatch {
    outages: Outages,
    every: Duration,
    /// When it was last said.
    said: Option<Instant>,
    until: Option<Instant>,
}

impl OutageWatch {
    pub(crate) fn new(connection: &Connection) -> Self {
        Self { outages: connection.outages.clone(), every: EVERY, said: None, until: None }
    }

    /// The same of one who cannot tell whether brokers are silent, or those whose records it reads.
    pub(crate) fn rarely(connection: &Connection) -> Self {
        Self { every: RARELY, ..Self::new(connection) }
    }

    /// Is to be called every second or so: whether no broker answers.
    pub(crate) fn look(&mut self, now: Instant, is_silent: bool) {
        if is_silent {
            self.until = Some(now + AFTER);
        }
        let is_over = self.until.is_none_or(|until| until <= now);
        let is_early = self.said.is_some_and(|at| now.saturating_duration_since(at) < self.every);
        if !is_over && !is_early {
            self.said = Some(now);
            self.outages.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_said_during_a_silence_and_a_while_longer_and_not_all_the_time() {
        let connection = Connection::default();
        let (mut watch, start) = (OutageWatch::new(&connection), Instant::now());
        let mut count = |from: u64, to: u64, is_silent: bool| {
            let before = connection.outages.count();
            (from..to).for_each(|at| watch.look(start + Duration::from_secs(at), is_silent));
            connection.outages.count() - before
        };
        assert_eq!(count(0, 100, false), 0, "brokers answer");
        assert_eq!(count(100, 110, true), 2, "one at once, and one after each 5 s");
        assert_eq!(count(110, 1_000, false), 4, "the last silence was at 109");
        assert_eq!(count(1_000, 1_001, true), 1);
    }
}
