//! Bounds how many requests of each kind run at once, so that no kind takes the permits of another.
//!
//! # Invariants
//! 1. A kind that has no permit left refuses: no request waits for one.
//! 2. All permits together are fewer than connections: one is always left for health and metrics.

use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::telemetry;

/// Connections at once where enough files may be open.
const CONNECTIONS_MAX: u64 = 1_024;
/// Connections at once, however few files may be open.
const CONNECTIONS_MIN: u64 = 32;
/// How long it counts that a request was refused.
const REFUSED_FOR: Duration = Duration::from_secs(5);
/// A look-up that has no answer for longer will have none: its owner is given less.
const LOOK_MAX: Duration = Duration::from_secs(60);

/// The caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Who {
    /// Anybody.
    Caller,
    /// Another instance.
    Peer,
}

/// What a request costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// It waits for what becomes of one command.
    Wait,
    /// It creates one task.
    Create,
    /// It looks one timer up.
    Look,
    /// It is about many timers.
    Large,
}

impl Kind {
    /// As people are told.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Wait => "requests that cancel a timer, or give it another time",
            Self::Create => "requests that create one task",
            Self::Look => "look-ups of one timer",
            Self::Large => "lists, batches and forecasts",
        }
    }

    /// Its part of all connections.
    fn part(self) -> usize {
        match self {
            Self::Wait => 4,
            Self::Create => 8,
            Self::Look => 16,
            Self::Large => 32,
        }
    }
}

/// Places of one kind, for callers or for peers.
#[derive(Debug)]
struct Room {
    who: Who,
    kind: Kind,
    most: usize,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    next: u64,
    /// Since when each permit is taken; the first is the oldest.
    since: BTreeMap<u64, Instant>,
    refused: Option<Instant>,
}

impl Room {
    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock()
    }

    fn trouble(&self, now: Instant) -> Option<String> {
        let taken = self.lock();
        let what = match self.who {
            Who::Caller => self.kind.as_str().to_owned(),
            Who::Peer => format!("{} of other instances", self.kind.as_str()),
        };
        let is_recent = |at: Instant| now.saturating_duration_since(at) < REFUSED_FOR;
        if taken.since.len() >= self.most || taken.refused.is_some_and(is_recent) {
            return Some(format!("the API refuses {what}: {} at once are the most", self.most));
        }
        let oldest =
            taken.since.first_key_value().map(|(_, at)| now.saturating_duration_since(*at));
        let hangs = oldest.filter(|age| self.kind == Kind::Look && *age > LOOK_MAX)?;
        Some(format!("the API does not answer: one of the {what} waits for {} s", hangs.as_secs()))
    }
}

/// The right of a request to run; dropping it gives the room back.
#[derive(Debug)]
pub(super) struct Permit {
    room: Arc<Room>,
    number: u64,
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.room.lock().since.remove(&self.number);
    }
}

/// Permits of requests whose answers are not handed to the system yet, of one connection.
#[derive(Clone, Debug, Default)]
pub(super) struct Held(Arc<Mutex<Vec<Permit>>>);

impl Held {
    /// Keeps a permit until the answer is written.
    pub(super) fn keep(&self, permit: Permit) {
        self.0.lock().push(permit);
    }

    /// All of it is written.
    pub(super) fn clear(&self) {
        self.0.lock().clear();
    }
}

/// See the module.
#[derive(Debug)]
pub struct Gate {
    /// Connections at once.
    pub(super) connections: usize,
    rooms: Vec<Arc<Room>>,
}

impl Gate {
    /// For a process that may have so many files open (`None`: any number): half of them are left to it.
    #[must_use]
    pub fn new(files: Option<u64>) -> Self {
        let most = files.map_or(CONNECTIONS_MAX, |files| files / 2);
        let most = most.clamp(CONNECTIONS_MIN, CONNECTIONS_MAX);
        let connections = usize::try_from(most).unwrap_or(usize::MAX);
        let rooms = [Who::Caller, Who::Peer].into_iter().flat_map(|who| {
            [Kind::Wait, Kind::Create, Kind::Look, Kind::Large].map(|kind| {
                let most = connections / kind.part();
                Arc::new(Room { who, kind, most, taken: Mutex::default() })
            })
        });
        Self { connections, rooms: rooms.collect() }
    }

    fn room(&self, who: Who, kind: Kind) -> Option<&Arc<Room>> {
        self.rooms.iter().find(|room| room.who == who && room.kind == kind)
    }

    /// A permit for a request.
    ///
    /// # Errors
    /// None is left; says how many there are.
    pub(super) fn enter(&self, who: Who, kind: Kind) -> Result<Permit, String> {
        let room = self.room(who, kind).ok_or_else(|| format!("no {}", kind.as_str()))?;
        let mut taken = room.lock();
        let now = Instant::now();
        if taken.since.len() >= room.most {
            taken.refused = Some(now);
            telemetry::api_refused("busy");
            return Err(format!("{} {} at once are the most", room.most, kind.as_str()));
        }
        taken.next += 1;
        let number = taken.next;
        taken.since.insert(number, now);
        Ok(Permit { room: Arc::clone(room), number })
    }

    /// Why the API cannot be counted on now; nothing: it can.
    #[must_use]
    pub fn trouble(&self) -> Vec<String> {
        let now = Instant::now();
        self.rooms.iter().filter_map(|room| room.trouble(now)).collect()
    }

    /// Places that are taken, of all kinds.
    #[must_use]
    pub fn taken(&self) -> usize {
        self.rooms.iter().map(|room| room.lock().since.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_that_is_full_refuses_says_so_and_takes_no_place_of_another() {
        let gate = Gate::new(None);
        let mut permits: Vec<Permit> =
            (0..256).map(|_| gate.enter(Who::Caller, Kind::Wait).expect("a permit")).collect();
        assert_eq!(gate.trouble().len(), 1, "full: {:?}", gate.trouble());
        assert!(gate.enter(Who::Caller, Kind::Wait).is_err());
        for (who, kind) in [(Who::Caller, Kind::Look), (Who::Caller, Kind::Large)] {
            assert!(gate.enter(who, kind).is_ok());
        }
        assert!(gate.enter(Who::Peer, Kind::Wait).is_ok());
        assert_eq!(gate.taken(), 256);
        permits.pop();
        assert_eq!(gate.trouble().len(), 1, "it has refused just now");
        assert!(gate.enter(Who::Caller, Kind::Wait).is_ok());
        let room = gate.room(Who::Caller, Kind::Wait).expect("a room");
        assert_eq!(room.trouble(Instant::now() + REFUSED_FOR), None);
    }

    #[test]
    fn a_look_up_that_hangs_is_told_and_a_wait_may_be_long() {
        let gate = Gate::new(None);
        let _permits = [Kind::Wait, Kind::Look].map(|kind| gate.enter(Who::Caller, kind));
        let later = Instant::now() + LOOK_MAX + Duration::from_secs(1);
        let told: Vec<String> = gate.rooms.iter().filter_map(|room| room.trouble(later)).collect();
        assert!(matches!(&told[..], [one] if one.contains("does not answer")), "{told:?}");
        assert!(gate.trouble().is_empty());
    }

    #[test]
    fn a_connection_is_left_whatever_is_asked_and_files_are_left_for_the_rest() {
        for (files, connections) in
            [(None, 1_024), (Some(1 << 20), 1_024), (Some(1_024), 512), (Some(64), 32)]
        {
            let gate = Gate::new(files);
            assert_eq!(gate.connections, connections, "{files:?}");
            let permits: usize = gate.rooms.iter().map(|room| room.most).sum();
            assert!(permits < connections, "{files:?}: {permits}");
            assert!(gate.rooms.iter().all(|room| room.most > 0), "{files:?}");
        }
    }
}
