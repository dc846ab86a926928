//! The timers of a lane for its lane thread: collected, and handed over in pieces.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crossbeam_channel::Sender;

use crate::engine::task::follow_up::FollowUp;
use crate::engine::timers::{CancelMark, Change, Cursor, Live, RunProgress, TimerId};
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
    /// Of pending tasks whose executors report. A definition comes before its task is pending.
    follow_ups: HashMap<TimerId, FollowUp>,
    /// How far executors of pending tasks came.
    cursors: HashMap<TimerId, Cursor>,
    /// How far the shards of pending runs are.
    runs: HashMap<TimerId, Box<RunProgress>>,
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
            // All timers of the index come before.
            Held::FollowUp(timer_id, follow_up) => {
                if self.live.contains_key(&timer_id) {
                    self.follow_ups.insert(timer_id, follow_up);
                }
            }
            Held::Cursor(timer_id, cursor) => {
                if self.live.contains_key(&timer_id) {
                    self.came_to(timer_id, cursor);
                }
            }
            Held::Shards(timer_id, run) => {
                if self.live.contains_key(&timer_id) {
                    self.runs.insert(timer_id, run);
                }
            }
        }
    }

    fn live(&mut self, mut live: Live) {
        live.target = self.shared.one(live.target);
        live.label = live.label.map(|label| self.shared.one(label));
        self.live.insert(live.timer_id, live);
    }

    /// One that comes back is defined anew.
    fn ended(&mut self, timer_id: TimerId) {
        self.live.remove(&timer_id);
        self.follow_ups.remove(&timer_id);
        self.cursors.remove(&timer_id);
        self.runs.remove(&timer_id);
    }

    fn came_to(&mut self, timer_id: TimerId, cursor: Cursor) {
        if self.cursors.get(&timer_id).is_none_or(|known| known.number <= cursor.number) {
            self.cursors.insert(timer_id, cursor);
        }
    }

    /// Takes in a record of the changelog.
    pub(super) fn take(&mut self, change: &Change) {
        match change {
            Change::Timer(timer) => match timer.live() {
                Some(live) => self.live(live),
                None => self.ended(timer.timer_id),
            },
            Change::CancelMark(mark) => {
                self.cancel_marks.insert(mark.timer_id, *mark);
            }
            Change::ForgottenTimer(timer_id) => self.ended(*timer_id),
            Change::ForgottenCancelMark(timer_id) => {
                self.cancel_marks.remove(timer_id);
            }
            Change::Definition(timer_id, definition) => match FollowUp::of_awaited(definition) {
                Some(follow_up) => drop(self.follow_ups.insert(*timer_id, follow_up)),
                None => drop(self.follow_ups.remove(timer_id)),
            },
            Change::ForgottenDefinition(timer_id) => {
                self.follow_ups.remove(timer_id);
            }
            Change::Attempt(attempt) => {
                if let Some(cursor) = attempt.cursor() {
                    self.came_to(attempt.timer_id, cursor);
                }
            }
            Change::Shards(timer_id, run) => {
                self.runs.insert(*timer_id, run.clone());
            }
            Change::ForgottenShards(timer_id) => {
                self.runs.remove(timer_id);
            }
            // What has ended forgets them all.
            Change::ForgottenAttempt(..) => {}
        }
    }

    /// Hands all of it over, for an assignment; the last piece says that it is the last.
    pub(super) fn hand_over(self, lane: Lane, assignment: u64, to: &Sender<AssignmentEvent>) {
        let Self { live, cancel_marks, mut follow_ups, mut cursors, mut runs, .. } = self;
        let known = |live, cancel_marks, whole| {
            // Nobody waits for it any more when the lanes have gone.
            let _ = to.send(AssignmentEvent {
                assignment,
                event: Event::TimersLoaded { lane, live, cancel_marks, last: whole },
            });
        };
        let live = live.into_values().map(|live| {
            let follow_up = follow_ups.remove(&live.timer_id).map(Arc::new);
            let cursor = cursors.remove(&live.timer_id);
            let run = runs.remove(&live.timer_id);
            Live { follow_up, cursor, run, ..live }
        });
        pieces(live, |live| known(live, Vec::new(), false));
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
    use crate::engine::task::result::{Outcome, TaskResult};
    use crate::engine::timers::{Attempt, Timer, TimerState, Version, VersionBound};
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

    #[test]
    fn a_pending_task_comes_with_the_last_cursor_of_its_executors() {
        let attempt = |n: u64, number: u32, cursor: Option<&str>| {
            let result = TaskResult {
                cursor: cursor.map(str::to_owned),
                ..TaskResult::new(Outcome::Failed)
            };
            Attempt { timer_id: name(n), turn: number, number, result }
        };
        let cursor = |n, number, text| attempt(n, number, Some(text)).cursor().expect("a cursor");
        let mut holding = Holding::default();
        (0..4).for_each(|n| holding.take(&Change::Timer(timer(n, TimerState::Delay, 1))));
        // Slots come in any order of their numbers.
        holding.hold(Held::Cursor(name(0), cursor(0, 33, "last")));
        holding.hold(Held::Cursor(name(0), cursor(0, 2, "old")));
        holding.hold(Held::Cursor(name(1), cursor(1, 1, "index")));
        holding.hold(Held::Cursor(name(9), cursor(9, 1, "of one that has ended")));
        for change in [
            // A heartbeat changes the attempt that is open.
            Change::Attempt(attempt(1, 1, Some("changelog"))),
            Change::Attempt(attempt(1, 2, None)),
            Change::Attempt(attempt(2, 1, Some("over"))),
            Change::Timer(timer(2, TimerState::Delivered, 1)),
            Change::Timer(timer(2, TimerState::Delay, 2)),
        ] {
            holding.take(&change);
        }
        let (to, told) = crossbeam_channel::unbounded();
        holding.hand_over(Lane(3), 9, &to);
        drop(to);
        let mut with = Vec::new();
        for AssignmentEvent { event, .. } in told {
            let Event::TimersLoaded { live, .. } = event else { panic!("{event:?}") };
            with.extend(
                live.into_iter().map(|live| (live.due.0, live.cursor.and_then(|of| of.text))),
            );
        }
        with.sort_unstable();
        let with: Vec<_> = with.iter().map(|(n, cursor)| (*n, cursor.as_deref())).collect();
        assert_eq!(with, [(0, Some("last")), (1, Some("changelog")), (2, None), (3, None)]);
    }

    #[test]
    fn a_pending_task_whose_executor_reports_comes_with_whom_to_tell_of_its_end() {
        let told = r#"{"type":"kafka","project":"p","group":"g","topic":"t","feedback":{"deadline":"1h"},"on_result":{"topic":"done"}}"#;
        let silent = told.replace(r#","on_result":{"topic":"done"}"#, "");
        let follow_up = FollowUp::of_awaited(told).expect("somebody is told");
        let mut holding = Holding::default();
        (0..5).for_each(|n| holding.take(&Change::Timer(timer(n, TimerState::Delay, 1))));
        // The index has three of them. Of one the definition is another by now, and one is forgotten.
        for n in [0, 1, 2, 9] {
            holding.hold(Held::FollowUp(name(n), follow_up.clone()));
        }
        assert!(!holding.follow_ups.contains_key(&name(9)), "it has ended");
        for change in [
            Change::Definition(name(1), silent.as_str().into()),
            Change::ForgottenDefinition(name(2)),
            Change::Definition(name(3), told.into()),
            Change::Definition(name(4), silent.as_str().into()),
            // One that has ended needs none, until it comes back.
            Change::Definition(name(5), told.into()),
            Change::Timer(timer(5, TimerState::Delivered, 1)),
            Change::Timer(timer(5, TimerState::Delay, 2)),
        ] {
            holding.take(&change);
        }
        let (to, told) = crossbeam_channel::unbounded();
        holding.hand_over(Lane(3), 9, &to);
        drop(to);
        let mut with = Vec::new();
        for AssignmentEvent { event, .. } in told {
            let Event::TimersLoaded { live, .. } = event else { panic!("{event:?}") };
            let of = live.into_iter().filter(|live| live.follow_up.as_deref() == Some(&follow_up));
            with.extend(of.map(|live| live.due.0));
        }
        with.sort_unstable();
        assert_eq!(with, [0, 3]);
    }
}
