//! The timers of a lane for its lane thread: collected, and handed over in pieces.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crossbeam_channel::Sender;

use crate::engine::timers::{CancelMark, Change, Live, TimerId};
use crate::engine::{Event, Lane};
use crate::kafka::member::AssignmentEvent;
use crate::timers::index::Held;

/// Timers in one piece: the engine takes some milliseconds for it.
const PIECE: usize = 5_000;

/// Names that many timers share, each kept once.
#[derive(Debug, Default)]
struct Shared(HashSet<Arc<str>>);

impl Shared {
    fn one(&mut self, name: Arc<str>) -> Arc<str> {
        match self.0.get(&name) {
            Some(known) => Arc::clone(known),
            None => {
                self.0.insert(Arc::clone(&name));
                name
            }
        }
    }
}

/// All that holds of a lane's timers, by the records that were taken in.
#[derive(Debug, Default)]
pub(super) struct Holding {
    live: HashMap<TimerId, Live>,
    cancel_marks: HashMap<TimerId, CancelMark>,
    shared: Shared,
}

impl Holding {
    /// Takes in what the index has.
    pub(super) fn hold(&mut self, held: Held) {
        match held {
            Held::Live(live) => self.live(live),
            Held::CancelMark(mark) => {
                self.cancel_marks.insert(mark.timer_id, mark);
            }
        }
    }

    fn live(&mut self, mut live: Live) {
        live.target = self.shared.one(live.target);
        live.label = live.label.map(|label| self.shared.one(label));
        self.live.insert(live.timer_id, live);
    }

    /// Takes in a record of the changelog.
    pub(super) fn take(&mut self, change: &Change) {
        match change {
            Change::Timer(timer) => match timer.live() {
                Some(live) => self.live(live),
                None => {
                    self.live.remove(&timer.timer_id);
                }
            },
            Change::CancelMark(mark) => {
                self.cancel_marks.insert(mark.timer_id, *mark);
            }
            Change::ForgottenTimer(timer_id) => {
                self.live.remove(timer_id);
            }
            Change::ForgottenCancelMark(timer_id) => {
                self.cancel_marks.remove(timer_id);
            }
            // Only readers of the index need them.
            Change::Attempt(_)
            | Change::ForgottenAttempt(..)
            | Change::Definition(..)
            | Change::ForgottenDefinition(_) => {}
        }
    }

    /// Hands all of it over, for an assignment; the last piece says that it is the last.
    pub(super) fn hand_over(self, lane: Lane, assignment: u64, to: &Sender<AssignmentEvent>) {
        let Self { live, cancel_marks, .. } = self;
        let known = |live, cancel_marks, whole| {
            // Nobody waits for it any more when the lanes have gone.
            let _ = to.send(AssignmentEvent {
                assignment,
                event: Event::TimersLoaded { lane, live, cancel_marks, last: whole },
            });
        };
        pieces(live.into_values(), |live| known(live, Vec::new(), false));
        pieces(cancel_marks.into_values(), |cancel_marks| known(Vec::new(), cancel_marks, false));
        known(Vec::new(), Vec::new(), true);
    }
}

fn pieces<T>(mut all: impl Iterator<Item = T>, mut each: impl FnMut(Vec<T>)) {
    loop {
        let piece: Vec<T> = all.by_ref().take(PIECE).collect();
        if piece.is_empty() {
            return;
        }
        each(piece);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::timers::{Timer, TimerState, Version, VersionBound};
    use crate::engine::{Offset, UnixMillis};

    fn name(n: u64) -> TimerId {
        TimerId::new(Some(&n.to_be_bytes()), b"i")
    }

    fn timer(n: u64, state: TimerState, offset: i64) -> Timer {
        Timer {
            timer_id: name(n),
            state,
            version: Version { first_appended: UnixMillis(1), offset: Offset(offset) },
            supersedes: None,
            due: UnixMillis(n),
            since: UnixMillis(1),
            target: Arc::from("orders"),
            label: None,
            id: Box::from(&b"i"[..]),
            key: None,
            key_cut: false,
            code: None,
            task: None,
        }
    }

    fn mark(n: u64) -> CancelMark {
        let before = VersionBound::of(Version { first_appended: UnixMillis(1), offset: Offset(1) });
        CancelMark {
            timer_id: name(n),
            before,
            until: UnixMillis(9),
            seen: false,
            may_repeat: false,
            cancels: false,
        }
    }

    #[test]
    fn each_timer_is_told_once_as_it_was_last_and_the_last_piece_says_so() {
        let mut holding = Holding::default();
        let many = 2 * PIECE as u64 + 1;
        for n in 0..many {
            holding.take(&Change::Timer(timer(n, TimerState::Delay, 1)));
        }
        // Of the index comes first what the changelog then changes.
        holding.hold(Held::CancelMark(mark(0)));
        holding.hold(Held::CancelMark(mark(1)));
        for change in [
            Change::Timer(timer(0, TimerState::Delivered, 1)),
            Change::Timer(timer(1, TimerState::Delay, 7)),
            Change::ForgottenTimer(name(2)),
            Change::ForgottenCancelMark(name(0)),
        ] {
            holding.take(&change);
        }
        let (to, told) = crossbeam_channel::unbounded();
        holding.hand_over(Lane(3), 9, &to);
        drop(to);
        let (mut versions, mut names, mut wholes) = (HashMap::new(), Vec::new(), Vec::new());
        let mut targets = HashSet::new();
        for AssignmentEvent { assignment, event } in told {
            assert_eq!(assignment, 9);
            let Event::TimersLoaded { lane, live, cancel_marks, last: whole } = event else {
                panic!("{event:?}")
            };
            assert_eq!(lane, Lane(3));
            assert!(live.len() <= PIECE && cancel_marks.len() <= PIECE);
            for live in live {
                targets.insert(Arc::as_ptr(&live.target).cast::<u8>());
                assert!(versions.insert(live.timer_id, live.version.offset).is_none(), "once");
            }
            names.extend(cancel_marks.iter().map(|mark| mark.timer_id));
            wholes.push(whole);
        }
        assert_eq!(versions.len() as u64, many - 2);
        assert_eq!(versions[&name(1)], Offset(7));
        assert!(!versions.contains_key(&name(0)) && !versions.contains_key(&name(2)));
        assert_eq!(names, [name(1)]);
        assert_eq!(targets.len(), 1, "a name that all share is kept once");
        assert_eq!(wholes.iter().position(|whole| *whole), Some(wholes.len() - 1));
    }
}
