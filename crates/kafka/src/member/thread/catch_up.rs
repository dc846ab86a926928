//! Which partitions are read to the end that they had when somebody asked.
//!
//! The engine may let go the records that wait for that. The last entry may be a marker, which is no record; the
//! consumer's position passes it. An open transaction of somebody else holds up everything behind it. The thread waits
//! for that, but not for ever.
//!
//! # Invariants
//! 1. A goal is reached once. It is reached when reading is past it, or has stood at the beginning of the same foreign
//!    transaction for `foreign_wait`.
//! 2. While there are no goals, nothing is looked at.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use waterclock_engine::{Offset, Source, UnixMillis};

/// How often to check whether a partition is read to its goal, where something waits for it; for an intake something
/// may.
const LOOK_SOON: Duration = Duration::from_millis(5);
/// How often to check tiers for which nothing waits.
const LOOK_AT_TIERS: Duration = Duration::from_secs(1);
/// An answer is mostly of what was read already, or is about to be: that is looked at for this long.
const FRESH: Duration = Duration::from_secs(1);
/// A goal that is not reached for longer may be behind an open transaction.
const LONG: Duration = Duration::from_millis(100);
/// Between two looks for open transactions.
const LOOK_FOR_OPEN: Duration = Duration::from_millis(200);
/// A partition that is not read to its goal is told of this often.
const SAY_BEHIND: Duration = Duration::from_secs(10);

/// Somewhere to be read to.
#[derive(Clone, Copy, Debug)]
struct ReadGoal {
    source: Source,
    end: Offset,
    /// When it was the end.
    at: UnixMillis,
    since: Instant,
    /// Not only where it ended when it was taken over.
    is_asked: bool,
}

/// A partition that is read to the beginning of a transaction.
#[derive(Clone, Copy, Debug)]
struct Blocked {
    stable: Offset,
    since: Instant,
}

/// The goals to be reached.
#[derive(Debug)]
pub(super) struct CatchUp {
    goals: Vec<ReadGoal>,
    blocked: HashMap<Source, Blocked>,
    /// Intakes come first among the topics.
    tiers_from: usize,
    foreign_wait: Duration,
    looked: Option<Instant>,
    looked_for_open: Option<Instant>,
    told: Option<Instant>,
}

impl CatchUp {
    pub(super) fn new(tiers_from: usize, foreign_wait: Duration) -> Self {
        Self {
            goals: Vec::new(),
            blocked: HashMap::new(),
            tiers_from,
            foreign_wait,
            looked: None,
            looked_for_open: None,
            told: None,
        }
    }

    /// Forgets all goals: the lanes have gone.
    pub(super) fn clear(&mut self) {
        self.goals.clear();
        self.blocked.clear();
    }

    /// To be told when this partition, which ended there at that time when it was taken over, is read to there.
    pub(super) fn begin(&mut self, source: Source, end: Offset, at: UnixMillis, since: Instant) {
        self.goals.push(ReadGoal { source, end, at, since, is_asked: false });
    }

    /// The same, where the engine has asked for it.
    pub(super) fn add(&mut self, source: Source, end: Offset, at: UnixMillis, since: Instant) {
        self.goals.push(ReadGoal { source, end, at, since, is_asked: true });
    }

    fn is_intake(&self, goal: &ReadGoal) -> bool {
        usize::from(goal.source.topic.0) < self.tiers_from
    }

    /// Goals for which something waits, or may wait; `awaited` says of which tiers.
    fn awaited(&self, awaited: impl Fn(Source) -> bool) -> impl Iterator<Item = &ReadGoal> {
        self.goals.iter().filter(move |goal| self.is_intake(goal) || awaited(goal.source))
    }

    /// How long to wait before the next look; `None`: nothing is to be reached soon.
    pub(super) fn patience(&self, awaited: impl Fn(Source) -> bool) -> Option<Duration> {
        self.awaited(awaited).next().map(|_| LOOK_SOON)
    }

    /// The partitions to look at now.
    pub(super) fn due(&mut self, now: Instant, awaited: impl Fn(Source) -> bool) -> Vec<Source> {
        if self.goals.is_empty() {
            return Vec::new();
        }
        let fresh = self.goals.iter().filter(|goal| goal.is_asked && now - goal.since < FRESH);
        let mut due: Vec<Source> =
            self.awaited(awaited).chain(fresh).map(|goal| goal.source).collect();
        if is_over(self.looked, LOOK_AT_TIERS, now) {
            self.looked = Some(now);
            due = self.goals.iter().map(|goal| goal.source).collect();
        }
        due.sort_unstable();
        due.dedup();
        due
    }

    /// Takes in how far a partition is read; gives the times up to which everything of it is.
    pub(super) fn read(&mut self, source: Source, next: Offset) -> Vec<UnixMillis> {
        let passed = |goal: &ReadGoal| goal.source == source && next >= goal.end;
        let reached = self.goals.iter().filter(|goal| passed(goal)).map(|goal| goal.at).collect();
        self.goals.retain(|goal| !passed(goal));
        reached
    }

    /// The partitions of which it is to be asked whether a transaction is open in them.
    pub(super) fn suspects(
        &mut self,
        now: Instant,
        awaited: impl Fn(Source) -> bool,
    ) -> Vec<Source> {
        if !is_over(self.looked_for_open, LOOK_FOR_OPEN, now) {
            return Vec::new();
        }
        let long = self.awaited(awaited).filter(|goal| now - goal.since >= LONG);
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
    pub(super) fn open(
        &mut self,
        source: Source,
        next: Offset,
        stable: Offset,
        now: Instant,
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
        if now - blocked.since < self.foreign_wait {
            return Vec::new();
        }
        let given_up =
            self.goals.iter().filter(|goal| is_behind(goal)).map(|goal| goal.at).collect();
        self.goals.retain(|goal| !is_behind(goal));
        given_up
    }

    /// A partition that is not read to its goal for so long that somebody should hear of it.
    pub(super) fn is_to_be_told(
        &mut self,
        now: Instant,
        awaited: impl Fn(Source) -> bool,
    ) -> Option<Source> {
        if !is_over(self.told, SAY_BEHIND, now) {
            return None;
        }
        let late = self.awaited(awaited).find(|goal| now - goal.since >= SAY_BEHIND)?.source;
        self.told = Some(now);
        Some(late)
    }
}

/// Whether so much time is over since then, if it ever was.
fn is_over(since: Option<Instant>, every: Duration, now: Instant) -> bool {
    since.is_none_or(|since| now - since >= every)
}

#[cfg(test)]
mod tests {
    use super::*;
    use waterclock_engine::{Lane, TopicId};

    const WAIT: Duration = Duration::from_secs(10);
    const INTAKE: Source = Source { topic: TopicId(0), lane: Lane(3) };
    const TIER: Source = Source { topic: TopicId(1), lane: Lane(3) };

    fn never(_: Source) -> bool {
        false
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn reach(goals: &[(Source, i64, u64)], now: Instant) -> CatchUp {
        let mut reach = CatchUp::new(1, WAIT);
        for (source, end, at) in goals {
            reach.add(*source, Offset(*end), UnixMillis(*at), now);
        }
        reach
    }

    #[test]
    fn a_goal_is_reached_once_when_reading_is_past_it() {
        let now = Instant::now();
        let mut reach = reach(&[(INTAKE, 10, 1), (INTAKE, 12, 2), (TIER, 5, 1)], now);
        #[rustfmt::skip]
        let steps = [
            ("before it",                  INTAKE, 9,  vec![]),
            ("at the first, not the next", INTAKE, 11, vec![UnixMillis(1)]),
            ("the first is told once",     INTAKE, 11, vec![]),
            ("another partition",          TIER,   99, vec![UnixMillis(1)]),
            ("past the last",              INTAKE, 99, vec![UnixMillis(2)]),
            ("none is left",               INTAKE, 99, vec![]),
        ];
        for (why, source, next, want) in steps {
            assert_eq!(reach.read(source, Offset(next)), want, "{why}");
        }
        assert!(reach.due(now, never).is_empty() && reach.patience(never).is_none());
    }

    #[test]
    fn intakes_are_looked_at_often_and_tiers_seldom() {
        let now = Instant::now();
        let mut reach = reach(&[(INTAKE, 5, 1), (INTAKE, 6, 2)], now);
        reach.begin(TIER, Offset(5), UnixMillis(1), now);
        assert_eq!(reach.patience(never), Some(LOOK_SOON));
        assert_eq!(reach.due(now, never), [INTAKE, TIER]);
        assert_eq!(reach.due(now + ms(5), never), [INTAKE]);
        assert_eq!(reach.due(now + ms(5), |source| source == TIER), [INTAKE, TIER], "awaited");
        assert_eq!(reach.due(now + ms(1_000), never), [INTAKE, TIER]);
        reach.add(TIER, Offset(7), UnixMillis(3), now + ms(1_000));
        assert_eq!(reach.due(now + ms(1_005), never), [INTAKE, TIER], "asked a moment ago");
        assert_eq!(reach.due(now + ms(1_999), never), [INTAKE, TIER]);
        reach.read(INTAKE, Offset(6));
        assert_eq!(reach.patience(never), None, "nothing waits for a tier");
    }

    #[test]
    fn a_foreign_transaction_is_waited_for_from_when_it_was_first_seen() {
        let now = Instant::now();
        let mut reach = reach(&[(INTAKE, 10, 1)], now);
        assert!(
            reach.suspects(now + ms(50), never).is_empty(),
            "it may be that reading takes a moment"
        );
        assert_eq!(reach.suspects(now + ms(100), never), [INTAKE]);
        assert!(reach.suspects(now + ms(200), never).is_empty(), "just asked");
        #[rustfmt::skip]
        let steps = [
            // why,                                                    after ms, read to, stable, want
            ("not read to it yet",                                          100,       4,      7, vec![]),
            ("first seen",                                                  200,       7,      7, vec![]),
            ("another one is the first now",                              9_000,       8,      8, vec![]),
            ("not for long enough",                                      18_999,       8,      8, vec![]),
            ("for long enough",                                          19_000,       8,      8, vec![UnixMillis(1)]),
            ("once",                                                     19_001,       8,      8, vec![]),
        ];
        for (why, after, next, stable, want) in steps {
            let told = reach.open(INTAKE, Offset(next), Offset(stable), now + ms(after));
            assert_eq!(told, want, "{why}");
        }
    }

    #[test]
    fn what_was_waited_for_once_is_not_waited_for_again_while_it_is_open() {
        let now = Instant::now();
        let mut reach = reach(&[(INTAKE, 10, 1)], now);
        reach.open(INTAKE, Offset(7), Offset(7), now);
        assert_eq!(reach.open(INTAKE, Offset(7), Offset(7), now + WAIT), [UnixMillis(1)]);
        reach.add(INTAKE, Offset(11), UnixMillis(2), now + WAIT);
        assert_eq!(reach.open(INTAKE, Offset(7), Offset(7), now + WAIT + ms(1)), [UnixMillis(2)]);
        reach.add(INTAKE, Offset(12), UnixMillis(3), now + WAIT);
        assert!(reach.open(INTAKE, Offset(9), Offset(9), now + WAIT).is_empty(), "another one");
    }
}
