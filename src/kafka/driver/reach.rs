//! Which partitions are read to where they ended when somebody asked.
//!
//! The engine may let go what waits for that. What stands last may be a marker, which leaves no record; the consumer's
//! position passes it. A transaction of somebody else that is open holds up what stands behind it; that is waited for,
//! but not for ever.
//!
//! # Invariants
//! 1. A goal is reached once, when reading is past it, or is at the beginning of the same foreign transaction for
//!    `foreign_wait`.
//! 2. While there are no goals nothing is looked at.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::engine::{Offset, Source, UnixMillis};

/// How often it is looked whether an intake is read to its goal.
const LOOK_AT_INTAKES: Duration = Duration::from_millis(5);
/// The same for tiers, for which nothing waits.
const LOOK_AT_TIERS: Duration = Duration::from_secs(1);
/// A goal that is not reached for longer may be behind an open transaction.
const LONG: Duration = Duration::from_millis(100);
/// Between two looks for open transactions.
const LOOK_FOR_OPEN: Duration = Duration::from_millis(200);
/// An intake that is not read to its goal is told of this often.
const SAY_BEHIND: Duration = Duration::from_secs(10);

/// Somewhere to be read to.
#[derive(Clone, Copy, Debug)]
struct Goal {
    source: Source,
    end: Offset,
    /// When it was the end.
    at: UnixMillis,
    since: Instant,
}

/// A partition that is read to the beginning of a transaction.
#[derive(Clone, Copy, Debug)]
struct Blocked {
    stable: Offset,
    since: Instant,
}

/// What is to be reached.
#[derive(Debug)]
pub(super) struct Reach {
    goals: Vec<Goal>,
    blocked: HashMap<Source, Blocked>,
    /// Intakes come first among the topics.
    tiers_from: usize,
    foreign_wait: Duration,
    looked: Instant,
    looked_for_open: Instant,
    told: Instant,
}

impl Reach {
    pub(super) fn new(tiers_from: usize, foreign_wait: Duration) -> Self {
        let now = Instant::now();
        Self {
            goals: Vec::new(),
            blocked: HashMap::new(),
            tiers_from,
            foreign_wait,
            looked: now,
            looked_for_open: now,
            told: now,
        }
    }

    /// Forgets all goals: the lanes have gone.
    pub(super) fn clear(&mut self) {
        self.goals.clear();
        self.blocked.clear();
    }

    /// To be told when this partition, which ended there at that time, is read to there.
    pub(super) fn add(&mut self, source: Source, end: Offset, at: UnixMillis) {
        let since = Instant::now();
        if self.goals.is_empty() {
            self.told = since;
        }
        self.goals.push(Goal { source, end, at, since });
    }

    fn is_intake(&self, goal: &Goal) -> bool {
        usize::from(goal.source.topic.0) < self.tiers_from
    }

    /// How long to wait before the next look; `None`: nothing is to be reached soon.
    pub(super) fn patience(&self) -> Option<Duration> {
        let awaits = self.goals.iter().any(|goal| self.is_intake(goal));
        awaits.then_some(LOOK_AT_INTAKES)
    }

    /// The partitions to look at now.
    pub(super) fn due(&mut self, now: Instant) -> Vec<Source> {
        if self.goals.is_empty() {
            return Vec::new();
        }
        let intakes = self.goals.iter().filter(|goal| self.is_intake(goal));
        let mut due: Vec<Source> = intakes.map(|goal| goal.source).collect();
        if now - self.looked >= LOOK_AT_TIERS {
            self.looked = now;
            due = self.goals.iter().map(|goal| goal.source).collect();
        }
        due.sort_unstable();
        due.dedup();
        due
    }

    /// Takes in how far a partition is read; gives the times up to which everything of it is.
    pub(super) fn read(&mut self, source: Source, next: Offset) -> Vec<UnixMillis> {
        let passed = |goal: &Goal| goal.source == source && next >= goal.end;
        let reached = self.goals.iter().filter(|goal| passed(goal)).map(|goal| goal.at).collect();
        self.goals.retain(|goal| !passed(goal));
        reached
    }

    /// The intakes of which it is to be asked whether a transaction is open in them.
    pub(super) fn suspects(&mut self, now: Instant) -> Vec<Source> {
        if now - self.looked_for_open < LOOK_FOR_OPEN {
            return Vec::new();
        }
        let long = self.goals.iter().filter(|g| self.is_intake(g) && now - g.since >= LONG);
        let mut suspects: Vec<Source> = long.map(|goal| goal.source).collect();
        suspects.sort_unstable();
        suspects.dedup();
        if !suspects.is_empty() {
            self.looked_for_open = now;
        }
        suspects
    }

    /// Takes in where the first open transaction of an intake begins, if there is one, and that it is read to `next`;
    /// gives the goals that are waited for no longer.
    pub(super) fn open(
        &mut self,
        source: Source,
        next: Offset,
        stable: Offset,
        now: Instant,
    ) -> Vec<UnixMillis> {
        let is_behind = |goal: &Goal| goal.source == source && stable < goal.end;
        if next < stable || !self.goals.iter().any(is_behind) {
            self.blocked.remove(&source);
            return Vec::new();
        }
        let blocked = self.blocked.entry(source).or_insert(Blocked { stable, since: now });
        if blocked.stable != stable {
            *blocked = Blocked { stable, since: now };
        }
        if now - blocked.since < self.foreign_wait {
            return Vec::new();
        }
        let given_up =
            self.goals.iter().filter(|goal| is_behind(goal)).map(|goal| goal.at).collect();
        self.goals.retain(|goal| !is_behind(goal));
        given_up
    }

    /// Whether somebody should hear that intakes are not read to their goals for long.
    pub(super) fn is_to_be_told(&mut self, now: Instant) -> bool {
        let late = self.goals.iter().any(|g| self.is_intake(g) && now - g.since >= SAY_BEHIND);
        let is = late && now - self.told >= SAY_BEHIND;
        if is {
            self.told = now;
        }
        is
    }
}
