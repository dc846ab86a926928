//! How far each partition is to be read: to the end that it had when somebody asked.
//!
//! At a take-over that is where each log ended; later it is what was asked for. The part that decides about the records may then release
//! those that wait for it. The last entry may be a marker, which is no record; the consumer's position passes it. An
//! open transaction of somebody else holds up everything behind it. The member waits for that, but not for ever.
//!
//! # Invariants
//! 1. A goal is reached once. It is reached when reading is past it, or has stood at the beginning of the same foreign
//!    transaction for `foreign_wait`.
//! 2. While there are no goals, nothing is looked at.

use std::collections::BTreeMap;

use super::super::{Millis, Offset, Source, UnixMillis};

/// How often to check whether a partition is read to its goal, where something waits for it; for an intake something
/// may.
const LOOK_SOON: Millis = Millis(5);
/// How often to check tiers for which nothing waits.
const LOOK_AT_TIERS: Millis = Millis(1_000);
/// An answer is mostly of what was read already, or is about to be: that is looked at for this long.
const FRESH: Millis = Millis(1_000);
/// A goal that is not reached for longer may be behind an open transaction.
const LONG: Millis = Millis(100);
/// Between two looks for open transactions.
const LOOK_FOR_OPEN: Millis = Millis(200);
/// A partition that is not read to its goal is told of this often.
const SAY_BEHIND: Millis = Millis(10_000);

/// Somewhere to be read to.
#[derive(Clone, Copy, Debug)]
struct ReadGoal {
    source: Source,
    end: Offset,
    /// When it was the end.
    at: UnixMillis,
    since: Millis,
    /// Not only where it ended when it was taken over.
    is_asked: bool,
}

/// A partition that is read to the beginning of a transaction.
#[derive(Clone, Copy, Debug)]
struct Blocked {
    stable: Offset,
    since: Millis,
}

/// The goals to be reached.
#[derive(Debug)]
pub struct ReadGoals {
    goals: Vec<ReadGoal>,
    blocked: BTreeMap<Source, Blocked>,
    /// Intakes come first among the topics.
    tiers_from: usize,
    foreign_wait: Millis,
    looked: Option<Millis>,
    looked_for_open: Option<Millis>,
    told: Option<Millis>,
}

impl ReadGoals {
    /// None yet. The first topics are so many intakes; what a foreign transaction hides is waited for that long.
    #[must_use]
    pub fn new(tiers_from: usize, foreign_wait: Millis) -> Self {
        Self {
            goals: Vec::new(),
            blocked: BTreeMap::new(),
            tiers_from,
            foreign_wait,
            looked: None,
            looked_for_open: None,
            told: None,
        }
    }

    /// Forgets all goals: the lanes have gone.
    pub fn clear(&mut self) {
        self.goals.clear();
        self.blocked.clear();
    }

    /// To be told when this partition, which ended there at that time when it was taken over, is read to there.
    pub fn begin(&mut self, source: Source, end: Offset, at: UnixMillis, since: Millis) {
        self.goals.push(ReadGoal { source, end, at, since, is_asked: false });
    }

    /// The same, where the engine has asked for it.
    pub fn add(&mut self, source: Source, end: Offset, at: UnixMillis, since: Millis) {
        self.goals.push(ReadGoal { source, end, at, since, is_asked: true });
    }

    fn is_intake(&self, goal: &ReadGoal) -> bool {
        usize::from(goal.source.topic.0) < self.tiers_from
    }

    /// Goals for which something waits, or may wait; `awaited` says of which tiers.
    fn urgent(&self, awaited: impl Fn(Source) -> bool) -> impl Iterator<Item = &ReadGoal> {
        self.goals.iter().filter(move |goal| self.is_intake(goal) || awaited(goal.source))
    }

    /// How long to wait before the next look; `None`: nothing is to be reached soon.
    pub fn patience(&self, awaited: impl Fn(Source) -> bool) -> Option<Millis> {
        self.urgent(awaited).next().map(|_| LOOK_SOON)
    }

    /// Whether a goal is to be looked at now: something waits for it or may, it is new, or all are looked at.
    fn is_goal_due(&self, goal: &ReadGoal, now: Millis, awaited: &impl Fn(Source) -> bool) -> bool {
        is_over(self.looked, LOOK_AT_TIERS, now)
            || self.is_intake(goal)
            || goal.is_asked && now.saturating_sub(goal.since) < FRESH
            || awaited(goal.source)
    }

    /// Whether a partition is to be looked at now.
    pub fn is_due(&self, source: Source, now: Millis, awaited: impl Fn(Source) -> bool) -> bool {
        let mut goals = self.goals.iter().filter(|goal| goal.source == source);
        goals.any(|goal| self.is_goal_due(goal, now, &awaited))
    }

    /// The partitions to look at now.
    pub fn due(&mut self, now: Millis, awaited: impl Fn(Source) -> bool) -> Vec<Source> {
        if self.goals.is_empty() {
            return Vec::new();
        }
        let due = self.goals.iter().filter(|goal| self.is_goal_due(goal, now, &awaited));
        let mut due: Vec<Source> = due.map(|goal| goal.source).collect();
        if is_over(self.looked, LOOK_AT_TIERS, now) {
            self.looked = Some(now);
        }
        due.sort_unstable();
        due.dedup();
        due
    }

    /// The partitions that are to be read to somewhere, some of them more than once.
    pub fn sources(&self) -> impl Iterator<Item = Source> {
        self.goals.iter().map(|goal| goal.source)
    }

    /// Whether a partition that is read to `next` has reached a goal.
    #[must_use]
    pub fn is_reached(&self, source: Source, next: Offset) -> bool {
        self.goals.iter().any(|goal| goal.source == source && next >= goal.end)
    }

    /// Takes in how far a partition is read; gives the times up to which everything of it is.
    pub fn read(&mut self, source: Source, next: Offset) -> Vec<UnixMillis> {
        let passed = |goal: &ReadGoal| goal.source == source && next >= goal.end;
        let reached = self.goals.iter().filter(|goal| passed(goal)).map(|goal| goal.at).collect();
        self.goals.retain(|goal| !passed(goal));
        reached
    }

    /// The partitions of which it is to be asked whether a transaction is open in them.
    pub fn suspects(&mut self, now: Millis, awaited: impl Fn(Source) -> bool) -> Vec<Source> {
        if !is_over(self.looked_for_open, LOOK_FOR_OPEN, now) {
            return Vec::new();
        }
        let long = self.urgent(awaited).filter(|goal| now.saturating_sub(goal.since) >= LONG);
        let mut suspects: Vec<Source> = long.map(|goal| goal.source).collect();
        suspects.sort_unstable();
        suspects.dedup();
        if !suspects.is_empty() {
            self.looked_for_open = Some(now);
        }
        suspects
    }

    /// Takes in where the first open transaction of a partition begins, if there is one, and that it is read to `next`;
    /// gives the goals that are waited for no longer.
    pub fn open(
        &mut self,
        source: Source,
        next: Offset,
        stable: Offset,
        now: Millis,
    ) -> Vec<UnixMillis> {
        let is_behind = |goal: &ReadGoal| goal.source == source && stable < goal.end;
        if next < stable {
            self.blocked.remove(&source);
            return Vec::new();
        }
        if !self.goals.iter().any(is_behind) {
            return Vec::new();
        }
        let blocked = self.blocked.entry(source).or_insert(Blocked { stable, since: now });
        if blocked.stable != stable {
            *blocked = Blocked { stable, since: now };
        }
        if now.saturating_sub(blocked.since) < self.foreign_wait {
            return Vec::new();
        }
        let given_up =
            self.goals.iter().filter(|goal| is_behind(goal)).map(|goal| goal.at).collect();
        self.goals.retain(|goal| !is_behind(goal));
        given_up
    }

    /// A partition that is not read to its goal for so long that somebody should hear of it.
    pub fn is_to_be_told(
        &mut self,
        now: Millis,
        awaited: impl Fn(Source) -> bool,
    ) -> Option<Source> {
        if !is_over(self.told, SAY_BEHIND, now) {
            return None;
        }
        let late =
            self.urgent(awaited).find(|goal| now.saturating_sub(goal.since) >= SAY_BEHIND)?.source;
        self.told = Some(now);
        Some(late)
    }
}

/// Whether so much time is over since then, if it ever was.
fn is_over(since: Option<Millis>, every: Millis, now: Millis) -> bool {
    since.is_none_or(|since| now.saturating_sub(since) >= every)
}

#[cfg(test)]
mod tests;
