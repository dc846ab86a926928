//! The life of a member: when it takes its partitions over again, and when it leaves the group and joins it again.
//!
//! ```text
//!  out ──assigned──▶ running ──failure──▶ resting ──resumes──▶ running
//!   ▲                   │                    │
//!   └──────revoked──────┴────────────────────┘
//! ```
//!
//! # Invariants
//! 1. After a failure nothing is worked on until the partitions are taken over again: what is committed counts.
//! 2. A revocation ends a rest: the next assignment takes over by itself.
//! 3. The group is left for partitions that are nobody's, and not more often than every five minutes in the end: each time
//!    stops the work of all members.
//! 4. Who is fenced again and again has another process in its place, and gives in.

use std::collections::VecDeque;

use super::super::{Lane, Millis};

/// How long a heartbeat may take to say that the partitions are another's.
const LOOK_AGAIN: Millis = Millis(1_000);
/// Between two attempts to take over.
const TRY_AGAIN: Millis = Millis(500);
/// Between two times that the group is left and joined again since partitions are nobody's; twice as long each time.
const REJOIN_LEAST: Millis = Millis(5_000);
const REJOIN_MOST: Millis = Millis(300_000);
/// A member that is fenced so often within a minute is fenced by another process.
const FENCED_MAX: usize = 6;
/// Within this time.
const FENCED_WITHIN: Millis = Millis(60_000);
/// The pause before a member starts again; twice as long each time.
const PAUSE_LEAST: Millis = Millis(250);
const PAUSE_MOST: Millis = Millis(5_000);
/// One that lasted longer starts again as if it was the first time.
const LASTED: Millis = Millis(60_000);

/// Why partitions are taken over again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// A batch failed, or it hangs. Or a topic is another one now.
    Work,
    /// A position is outside of its log. A member that lost its partitions meanwhile learns of that first.
    Outside,
    /// They could not be taken over.
    TakeOver,
}

/// What a member does now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It has no partitions.
    Out,
    Running,
    /// It takes its partitions over again from then on.
    Resting(Millis),
}

/// The life of a member between joining and leaving.
#[derive(Debug)]
pub struct Life {
    state: State,
    /// Partitions are nobody's: when the group is left and joined again for them.
    retry: Option<(Millis, Vec<Lane>)>,
    /// How long that waits from when it is known.
    rejoin_after: Millis,
}

impl Life {
    /// Begins outside of the group.
    #[must_use]
    pub fn new(rejoin_after: Millis) -> Self {
        Self { state: State::Out, retry: None, rejoin_after }
    }

    /// Partitions were taken over.
    pub fn began(&mut self) {
        self.state = State::Running;
    }

    /// The group took all partitions back. What comes next is another assignment.
    pub fn revoked(&mut self) {
        (self.state, self.retry) = (State::Out, None);
    }

    /// The group has no partition for it.
    pub fn spare(&mut self) {
        self.state = State::Out;
    }

    /// Everything that is held is dropped.
    pub fn failed(&mut self, now: Millis, failure: Failure) {
        let wait = match failure {
            Failure::Work => Millis(0),
            Failure::Outside => LOOK_AGAIN,
            Failure::TakeOver => TRY_AGAIN,
        };
        self.state = State::Resting(now + wait);
    }

    /// Whether it waits to take its partitions over again.
    #[must_use]
    pub fn is_resting(&self) -> bool {
        matches!(self.state, State::Resting(_))
    }

    /// How long until it takes its partitions over again; `None`: it does not.
    #[must_use]
    pub fn resumes_in(&self, now: Millis) -> Option<Millis> {
        match self.state {
            State::Resting(at) => Some(at.saturating_sub(now)),
            State::Out | State::Running => None,
        }
    }

    /// Takes down which partitions are nobody's. Says how long it waits before it leaves the group for them; `None`: there are
    /// none.
    pub fn nobodys(&mut self, now: Millis, lanes: Vec<Lane>) -> Option<Millis> {
        let before = self.retry.take();
        if lanes.is_empty() {
            return None;
        }
        let at = before.map_or(now + self.rejoin_after, |(at, _)| at);
        self.retry = Some((at, lanes));
        Some(at.saturating_sub(now))
    }

    /// The partitions for which the group is left now, if it is.
    pub fn leaves(&mut self, now: Millis) -> Option<Vec<Lane>> {
        self.retry.take_if(|(at, _)| *at <= now).map(|(_, lanes)| lanes)
    }
}

/// What is remembered from one membership to the next.
#[derive(Debug)]
pub struct Restarts {
    pause: Millis,
    /// When memberships began that ended since the member was fenced.
    fenced: VecDeque<Millis>,
    rejoin_after: Millis,
}

impl Default for Restarts {
    fn default() -> Self {
        let fenced = VecDeque::with_capacity(FENCED_MAX);
        Self { pause: PAUSE_LEAST, fenced, rejoin_after: Millis(0) }
    }
}

impl Restarts {
    /// How long the next membership waits before it leaves the group for partitions that are nobody's.
    #[must_use]
    pub fn rejoin_after(&self) -> Millis {
        self.rejoin_after
    }

    /// The member that joined at `began` was fenced. Whether it may take its place again, at once: librdkafka may be told that
    /// of a request that its own rejoin overtook; a copy of this one is told so, too, again and again.
    pub fn fenced(&mut self, began: Millis, now: Millis) -> bool {
        self.fenced.retain(|before| now.saturating_sub(*before) < FENCED_WITHIN);
        self.fenced.push_back(began);
        self.fenced.len() < FENCED_MAX
    }

    /// It left the group for partitions that are nobody's. That helps at once, or hardly.
    pub fn left_for_nobodys(&mut self) {
        let twice = self.rejoin_after + self.rejoin_after;
        self.rejoin_after = twice.clamp(REJOIN_LEAST, REJOIN_MOST);
    }

    /// It failed after so long. How long it pauses before it starts again.
    pub fn pause(&mut self, lasted: Millis) -> Millis {
        let twice = (self.pause + self.pause).min(PAUSE_MOST);
        self.pause = if lasted > LASTED { PAUSE_LEAST } else { twice };
        self.pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_failed_is_taken_over_again_in_its_time_unless_it_is_revoked() {
        let mut life = Life::new(Millis(0));
        assert_eq!(life.resumes_in(Millis(0)), None, "it has nothing");
        life.began();
        assert_eq!(life.resumes_in(Millis(0)), None, "it runs");
        #[rustfmt::skip]
        let table = [(Failure::Work, 0), (Failure::Outside, 1_000), (Failure::TakeOver, 500)];
        for (failure, wait) in table {
            life.failed(Millis(70), failure);
            assert!(life.is_resting(), "{failure:?}");
            assert_eq!(life.resumes_in(Millis(70)), Some(Millis(wait)), "{failure:?}");
            assert_eq!(life.resumes_in(Millis(9_000)), Some(Millis(0)), "{failure:?}");
        }
        life.revoked();
        assert!(!life.is_resting());
        life.failed(Millis(70), Failure::Work);
        life.spare();
        assert!(!life.is_resting());
    }

    #[test]
    fn the_group_is_left_once_for_what_is_nobodys_and_later_each_time() {
        let (mut restarts, mut waits) = (Restarts::default(), Vec::new());
        for _ in 0..9 {
            let mut life = Life::new(restarts.rejoin_after());
            assert_eq!(life.nobodys(Millis(7), Vec::new()), None);
            let wait = life.nobodys(Millis(7), vec![Lane(3)]).expect("it is nobody's");
            assert_eq!(
                life.nobodys(Millis(9), vec![Lane(3)]),
                Some(wait.saturating_sub(Millis(2))),
                "it was known"
            );
            waits.push(wait.0);
            assert_eq!(life.leaves(Millis(7) + wait), Some(vec![Lane(3)]));
            assert_eq!(life.leaves(Millis(7) + wait), None);
            restarts.left_for_nobodys();
        }
        assert_eq!(waits, [0, 5_000, 10_000, 20_000, 40_000, 80_000, 160_000, 300_000, 300_000]);
        let mut life = Life::new(Millis(0));
        life.nobodys(Millis(7), vec![Lane(3)]);
        life.revoked();
        assert_eq!(life.leaves(Millis(9_000)), None, "another assignment comes");
    }

    #[test]
    fn who_is_fenced_six_times_in_a_minute_gives_in() {
        let often = |every: u64| {
            let mut restarts = Restarts::default();
            (1..9)
                .map(|nth| restarts.fenced(Millis((nth - 1) * every), Millis(nth * every)))
                .collect::<Vec<_>>()
        };
        assert_eq!(often(1_000), [true, true, true, true, true, false, false, false]);
        assert_eq!(often(12_000), [true; 8]);
    }

    #[test]
    fn a_pause_grows_until_a_membership_lasted() {
        let mut restarts = Restarts::default();
        let pauses = [0, 0, 0, 0, 0, 0, 60_001, 0].map(|lasted| restarts.pause(Millis(lasted)).0);
        assert_eq!(pauses, [500, 1_000, 2_000, 4_000, 5_000, 5_000, 250, 500]);
        // Twice as long each time is more than any number can hold before ten minutes are over.
        let last = (0..200).map(|_| restarts.pause(Millis(0))).last();
        assert_eq!(last, Some(Millis(5_000)));
    }
}
