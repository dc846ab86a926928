//! The settings in force for a namespace, and its members, as they change: for clients, which live long and join no
//! group.
//!
//! # Invariants
//! 1. It knows everything up to the topic's end as of the start, and follows the topic from then on.
//! 2. It says by itself how fresh that is. An instance writes probes of the brokers' clocks, and with every probe this
//!    reader reaches the topic's end again. So it is fresh as long as instances run and can be heard.

use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::live::{LiveMeta, MetaState};
use super::log::{Error, LadderInForce, Reading, open, to_end};
use crate::client::Connection;
use crate::client::topic_reader::{Consumed, StartAt};
use crate::meta::{Member, Roster};
use waterclock_engine::Lane;

/// How often the thread looks whether it is to end.
const POLL: Duration = Duration::from_millis(200);
/// How long a broker holds a fetch for which there is nothing: probes end most of them.
const WAIT: Duration = Duration::from_millis(250);
/// Probes come every second at least, from every instance.
const FRESH: Duration = Duration::from_secs(5);

/// Follows one namespace on a thread of its own, which ends when this is dropped.
#[derive(Debug)]
pub struct Follower {
    topic: String,
    known: Arc<Mutex<Known>>,
    stop: Arc<AtomicBool>,
}

#[derive(Debug)]
struct Known {
    reading: Reading,
    roster: Roster,
    /// When the end was last reached.
    complete: Option<Instant>,
}

impl Default for Known {
    fn default() -> Self {
        Self { reading: Reading::new(), roster: Roster::default(), complete: None }
    }
}

impl MetaState for Known {
    fn take(&mut self, record: &Consumed<'_>) {
        self.roster.take_record(record);
        self.reading.record(record.offset().0, record.key(), record.value());
    }

    fn reached_end(&mut self) {
        self.complete = Some(Instant::now());
    }
}

impl Follower {
    /// Reads the topic to its end, and follows it from there. `topic` is `<ns>.meta`, `group` the namespace (nothing is
    /// committed).
    ///
    /// Blocks for at most 40 s.
    ///
    /// # Errors
    /// As [`meta::read`](super::read).
    pub fn start(connection: &Connection, topic: &str, group: &str) -> Result<Self, Error> {
        let mut known = Known::default();
        let mut reader = open(connection, topic, group, WAIT)?;
        let end = to_end(&mut reader, topic, |record| known.take(record))?;
        known.reached_end();
        let known = Arc::new(Mutex::new(known));
        let mut meta =
            LiveMeta::new(connection, reader, topic, Arc::clone(&known), StartAt::Offset(end));
        let stop = Arc::new(AtomicBool::new(false));
        let follower = Self { topic: topic.to_owned(), known, stop: Arc::clone(&stop) };
        let follow = move || {
            while !stop.load(Ordering::Relaxed) {
                meta.poll(POLL);
                meta.look_at_brokers();
            }
        };
        std::thread::Builder::new().name("wc-meta".into()).spawn(follow).map_err(Error::Thread)?;
        Ok(follower)
    }

    /// Ladder and lanes in force; `None` if there are none.
    ///
    /// # Errors
    /// [`Error::Unreadable`], [`Error::Newer`]: what was put there last says nothing to this version.
    pub fn ladder(&self) -> Result<Option<LadderInForce>, Error> {
        Ok(self.lock().reading.found(&self.topic)?.ladder)
    }

    /// Whether what is known was the topic's end a few seconds ago.
    #[must_use]
    pub fn is_fresh(&self) -> bool {
        self.lock().complete.is_some_and(|at| at.elapsed() < FRESH)
    }

    /// Where to ask for a timer of this lane: its owner answers, and every other instance passes it on. The first and
    /// every second attempt go to the owner, as far as one is known; the others go round.
    #[must_use]
    pub fn url(&self, lane: Lane, attempt: usize) -> Option<String> {
        chosen(&self.lock().roster, lane, attempt).map(Member::url)
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock()
    }
}

fn chosen(roster: &Roster, lane: Lane, attempt: usize) -> Option<&Member> {
    let other = (attempt / 2).checked_rem(roster.members().count());
    let owner = roster.owner(lane).filter(|_| attempt.is_multiple_of(2));
    owner.or_else(|| roster.members().nth(other?))
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use waterclock_engine::UnixMillis;

    #[test]
    fn the_owner_is_asked_first_and_then_everybody_in_turn() {
        let mut roster = Roster::default();
        for (offset, (name, lanes)) in (0..).zip([("a", "0"), ("b", "1"), ("c", "")]) {
            let said = format!(
                r#"{{"version":1,"instance":"{name}","boot":"1","address":"{name}:80","lanes":[{lanes}],"at":0}}"#
            );
            let key = format!("member/{name}");
            let (key, said) = (Some(key.as_bytes()), Some(said.as_bytes()));
            roster.take(offset, UnixMillis(0), key, said);
        }
        let asked = |lane: u16| -> Vec<&str> {
            (0..6).filter_map(|n| Some(&*chosen(&roster, Lane(lane), n)?.instance)).collect()
        };
        assert_eq!(asked(1), ["b", "a", "b", "b", "b", "c"], "every second time the owner");
        assert_eq!(asked(7), ["a", "a", "b", "b", "c", "c"], "nobody owns it: in turn");
        assert_eq!(chosen(&Roster::default(), Lane(0), 0), None, "nobody is there");
    }
}
