//! What the lane threads report to those who answer for timers: which lanes are here, and the outcome of commands.
//!
//! # Invariants
//! 1. An answer stands here only after the batch that it belongs to was committed.
//! 2. An answer is kept for [`KEPT`], unless there are more than [`KEPT_MAX`]: a task that asks a little late still
//!    gets it.
//! 3. A task that waits for an answer is woken when the lane goes.
//! 4. A goal is reached only when everything that stands before it in its intakes was read, decided and committed.

use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::time::timeout_at;

use crate::engine::timers::TimerId;
use crate::engine::window::Window;
use crate::engine::{Answer, Lane, Offset, Outcome, Source};

/// How long an answer is remembered.
const KEPT: Duration = Duration::from_secs(60);
/// Answers that are remembered, at most.
const KEPT_MAX: usize = 100_000;

/// Where a lane is, as far as this process knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LaneState {
    /// The lane runs here, and all of its timers are known.
    Here,
    /// The lane was taken over, and not all of its timers are known yet.
    Moving,
    /// It does not run here.
    #[default]
    Elsewhere,
}

/// What was done in an intake before the lane was taken over.
#[derive(Debug)]
pub(super) struct Done {
    upto: Offset,
    pending: BTreeSet<Offset>,
}

impl Done {
    /// By what was committed.
    pub(super) fn new(next: Offset, metadata: &str) -> Self {
        let Ok(window) = Window::load(next, metadata) else {
            return Self { upto: Offset(0), pending: BTreeSet::new() };
        };
        Self { upto: window.upto(), pending: window.lowest(usize::MAX).collect() }
    }

    fn has(&self, offset: Offset) -> bool {
        offset < self.upto && !self.pending.contains(&offset)
    }
}

#[derive(Debug, Default)]
struct OfLane {
    state: LaneState,
    assignment: u64,
    /// All is decided that stood in its intakes when it was taken over.
    has_caught_up: bool,
}

/// Where the intakes of a lane ended when that was asked: all that stands before is to be decided.
#[derive(Debug)]
struct Goal {
    assignment: u64,
    lane: Lane,
    ends: Vec<(Source, Offset)>,
    /// Set when the lane was taken over: nobody waits for it.
    of_take_over: bool,
    is_reached: bool,
}

#[derive(Debug, Default)]
struct State {
    lanes: Vec<OfLane>,
    done: HashMap<Source, Done>,
    answers: HashMap<(Source, Offset), Answer>,
    /// When each of them is forgotten.
    kept: VecDeque<(Instant, (Source, Offset))>,
    goals: BTreeMap<u64, Goal>,
    /// The number of the next goal.
    next_goal: u64,
}

/// The outcome of a command, as far as it is known here.
#[derive(Clone, Copy, Debug)]
pub(super) enum Reply {
    /// This.
    Answer(Answer),
    /// It was done before the lane came here, and its answer given there.
    Before,
    /// Nothing within the time.
    Nothing,
    /// The lane is not here.
    Gone,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Replies {
    state: Mutex<State>,
    changed: Notify,
    /// How many goals are not reached: lane threads look at this in every turn.
    open_goals: AtomicUsize,
}

impl Replies {
    pub(super) fn new(lanes: u16) -> Self {
        let lanes = (0..lanes).map(|_| OfLane::default()).collect();
        Self {
            state: Mutex::new(State { lanes, ..State::default() }),
            changed: Notify::new(),
            open_goals: AtomicUsize::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// These lanes were taken over, with what was done in their intakes, and where these ended.
    pub(super) fn begin(
        &self,
        assignment: u64,
        lanes: &[Lane],
        done: impl IntoIterator<Item = (Source, Done)>,
        ends: &[(Source, Offset)],
    ) {
        let mut state = self.lock();
        for lane in lanes {
            if let Some(of) = state.lanes.get_mut(usize::from(lane.0)) {
                *of = OfLane { state: LaneState::Moving, assignment, has_caught_up: false };
            }
            let ends = ends.iter().filter(|(source, _)| source.lane == *lane).copied().collect();
            state.add(Goal {
                assignment,
                lane: *lane,
                ends,
                of_take_over: true,
                is_reached: false,
            });
        }
        self.count(&state);
        state.done.extend(done);
        drop(state);
        self.changed.notify_waiters();
    }

    /// All of this lane is known.
    pub(super) fn loaded(&self, assignment: u64, lane: Lane) {
        let mut state = self.lock();
        if let Some(of) = state.lanes.get_mut(usize::from(lane.0))
            && of.assignment == assignment
        {
            of.state = LaneState::Here;
        }
    }

    /// The lanes of this assignment are another's, or will be taken over again.
    pub(super) fn release(&self, assignment: u64) {
        let mut state = self.lock();
        for of in &mut state.lanes {
            if of.assignment == assignment {
                of.state = LaneState::Elsewhere;
            }
        }
        state.goals.retain(|_, goal| goal.assignment != assignment || !goal.of_take_over);
        self.count(&state);
        drop(state);
        self.changed.notify_waiters();
    }

    /// Answers of a batch that was committed.
    pub(super) fn give(&self, answers: Vec<Answer>) {
        if answers.is_empty() {
            return;
        }
        let now = Instant::now();
        let mut state = self.lock();
        let State { answers: all, kept, .. } = &mut *state;
        for answer in answers {
            let at = (answer.source, answer.offset);
            all.insert(at, answer);
            kept.push_back((now + KEPT, at));
        }
        while kept.front().is_some_and(|(until, _)| *until < now || kept.len() > KEPT_MAX)
            && let Some((_, at)) = kept.pop_front()
        {
            all.remove(&at);
        }
        drop(state);
        self.changed.notify_waiters();
    }

    /// Whether a version of this timer was replaced by a command that was answered since then.
    pub(super) fn was_replaced(&self, lane: Lane, timer_id: TimerId, since: Instant) -> bool {
        let state = self.lock();
        let recent = state.kept.iter().rev().take_while(|(until, _)| *until >= since + KEPT);
        let mut answers = recent.filter_map(|(_, at)| state.answers.get(at));
        answers.any(|answer| {
            let is_it = answer.source.lane == lane && answer.timer_id == timer_id;
            is_it && answer.outcome == Outcome::Replaced
        })
    }

    /// Where a lane is.
    pub(super) fn lane_state(&self, lane: Lane) -> LaneState {
        self.lock().lanes.get(usize::from(lane.0)).map_or(LaneState::Elsewhere, |of| of.state)
    }

    /// Whether all is decided that stood in the intakes of a lane when it was taken over.
    pub(super) fn has_caught_up(&self, lane: Lane) -> bool {
        self.lock().lanes.get(usize::from(lane.0)).is_some_and(|of| of.has_caught_up)
    }

    fn count(&self, state: &State) {
        let open = state.goals.values().filter(|goal| !goal.is_reached).count();
        self.open_goals.store(open, Ordering::Release);
    }

    /// Whether there is a goal that is not reached.
    pub(super) fn has_goals(&self) -> bool {
        self.open_goals.load(Ordering::Acquire) > 0
    }

    /// The goals of an assignment that are not reached, by number.
    pub(super) fn goals(&self, assignment: u64) -> Vec<(u64, Vec<(Source, Offset)>)> {
        let state = self.lock();
        let open = state.goals.iter().filter(|(_, goal)| goal.is_open(assignment));
        open.map(|(number, goal)| (*number, goal.ends.clone())).collect()
    }

    /// All that stands before these goals is decided and committed.
    pub(super) fn reached(&self, numbers: &[u64]) {
        let mut state = self.lock();
        for number in numbers {
            let Some(goal) = state.goals.get_mut(number) else { continue };
            goal.is_reached = true;
            if !goal.of_take_over {
                continue;
            }
            let (lane, assignment) = (goal.lane, goal.assignment);
            state.goals.remove(number);
            if let Some(of) = state.lanes.get_mut(usize::from(lane.0))
                && of.assignment == assignment
            {
                of.has_caught_up = true;
            }
        }
        self.count(&state);
        drop(state);
        self.changed.notify_waiters();
    }

    /// Waits until all is decided and committed that stands before these places in the intakes of these lanes; false: not by
    /// then, or one of the lanes has gone.
    pub(super) async fn decided(
        &self,
        lanes: &[Lane],
        ends: &[(Source, Offset)],
        by: Instant,
    ) -> bool {
        // All at once: each takes a while.
        let Some(goals) =
            lanes.iter().map(|lane| self.goal(*lane, ends)).collect::<Option<Vec<_>>>()
        else {
            return false;
        };
        for goal in goals {
            loop {
                let changed = self.changed.notified();
                match goal.look() {
                    Some(true) => break,
                    Some(false) if timeout_at(by.into(), changed).await.is_ok() => {}
                    _ => return false,
                }
            }
        }
        true
    }

    /// Has somebody wait until all is decided in a lane that stands before its ends; `None`: the lane is not here.
    fn goal(&self, lane: Lane, ends: &[(Source, Offset)]) -> Option<Waiting<'_>> {
        let ends = ends.iter().filter(|(source, _)| source.lane == lane).copied().collect();
        let mut state = self.lock();
        let of = state.lanes.get(usize::from(lane.0))?;
        let assignment = (of.state == LaneState::Here).then_some(of.assignment)?;
        let goal = Goal { assignment, lane, ends, of_take_over: false, is_reached: false };
        let number = state.add(goal);
        self.count(&state);
        Some(Waiting { replies: self, number })
    }

    /// Waits for the answer to the command at this place, at most until `by`. Holds no thread meanwhile.
    pub(super) async fn wait(&self, source: Source, offset: Offset, by: Instant) -> Reply {
        loop {
            // What changes after this line wakes it.
            let changed = self.changed.notified();
            let reply = self.reply(source, offset);
            if !matches!(reply, Reply::Nothing) || timeout_at(by.into(), changed).await.is_err() {
                return reply;
            }
        }
    }

    fn reply(&self, source: Source, offset: Offset) -> Reply {
        let state = self.lock();
        if let Some(answer) = state.answers.get(&(source, offset)) {
            return Reply::Answer(*answer);
        }
        let lane = state.lanes.get(usize::from(source.lane.0));
        if lane.is_none_or(|of| of.state == LaneState::Elsewhere) {
            return Reply::Gone;
        }
        if state.done.get(&source).is_some_and(|done| done.has(offset)) {
            return Reply::Before;
        }
        Reply::Nothing
    }
}

impl State {
    fn add(&mut self, goal: Goal) -> u64 {
        let number = self.next_goal;
        self.next_goal += 1;
        self.goals.insert(number, goal);
        number
    }
}

impl Goal {
    fn is_open(&self, assignment: u64) -> bool {
        !self.is_reached && self.assignment == assignment
    }
}

/// Somebody waits for a goal; it is forgotten with this.
struct Waiting<'a> {
    replies: &'a Replies,
    number: u64,
}

impl Waiting<'_> {
    /// Whether the goal is reached; `None`: its lane has gone, or was taken over again.
    fn look(&self) -> Option<bool> {
        let state = self.replies.lock();
        let goal = state.goals.get(&self.number)?;
        let of = state.lanes.get(usize::from(goal.lane.0))?;
        let is_here = of.state == LaneState::Here && of.assignment == goal.assignment;
        is_here.then_some(goal.is_reached)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut state = self.replies.lock();
        state.goals.remove(&self.number);
        self.replies.count(&state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::TopicId;
    use crate::engine::timers::{About, Version};

    const LANE: Lane = Lane(1);
    const INTAKE: Source = Source { topic: TopicId(0), lane: LANE };

    fn answer(offset: i64, outcome: Outcome) -> Answer {
        let timer_id = TimerId::new(Some(b"k"), b"i");
        let about = About::Version(Version::default());
        Answer { source: INTAKE, offset: Offset(offset), timer_id, about, outcome }
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(1)
    }

    #[tokio::test]
    async fn an_answer_is_heard_late_early_and_not_once_the_lane_has_gone() {
        let replies = Replies::new(2);
        assert!(matches!(replies.wait(INTAKE, Offset(7), soon()).await, Reply::Gone), "never here");
        replies.begin(5, &[LANE], [(INTAKE, Done::new(Offset(4), ""))], &[]);
        assert_eq!(replies.lane_state(LANE), LaneState::Moving);
        replies.loaded(4, LANE);
        assert_eq!(replies.lane_state(LANE), LaneState::Moving, "of an assignment before");
        replies.loaded(5, LANE);
        assert_eq!(replies.lane_state(LANE), LaneState::Here);
        assert!(matches!(replies.wait(INTAKE, Offset(3), soon()).await, Reply::Before));
        assert!(matches!(replies.wait(INTAKE, Offset(7), soon()).await, Reply::Nothing));
        let late = || Instant::now() + Duration::from_secs(60);
        // The first is polled first: it waits when the other one speaks.
        let (reply, ()) = tokio::join!(replies.wait(INTAKE, Offset(7), late()), async {
            replies.give(vec![answer(7, Outcome::Cancelled), answer(8, Outcome::Absent)]);
        });
        assert!(matches!(reply, Reply::Answer(Answer { outcome: Outcome::Cancelled, .. })));
        let reply = replies.wait(INTAKE, Offset(8), soon()).await;
        assert!(matches!(reply, Reply::Answer(Answer { outcome: Outcome::Absent, .. })), "late");
        let (reply, ()) =
            tokio::join!(replies.wait(INTAKE, Offset(9), late()), async { replies.release(5) });
        assert!(matches!(reply, Reply::Gone));
        assert_eq!(replies.lane_state(LANE), LaneState::Elsewhere);
    }

    #[tokio::test]
    async fn a_goal_is_reached_once_that_is_told_and_not_when_the_lane_goes() {
        let replies = Replies::new(2);
        let late = || Instant::now() + Duration::from_secs(60);
        let ends = [(INTAKE, Offset(9))];
        assert!(!replies.decided(&[LANE], &ends, late()).await, "never here");
        replies.begin(5, &[LANE], [], &[(INTAKE, Offset(4))]);
        assert_eq!(replies.goals(5), [(0, vec![(INTAKE, Offset(4))])], "where it ended");
        replies.loaded(5, LANE);
        assert!(!replies.has_caught_up(LANE));
        replies.reached(&[0]);
        assert!(replies.has_caught_up(LANE));
        assert!(!replies.has_goals());
        assert!(!replies.decided(&[LANE], &ends, soon()).await, "not in time");
        assert!(!replies.has_goals(), "forgotten by who has gone");
        // The first is polled first: it waits when the other one speaks.
        let (is_decided, ()) = tokio::join!(replies.decided(&[LANE], &ends, late()), async {
            let goals = replies.goals(5);
            assert_eq!(goals.len(), 1);
            assert!(replies.goals(4).is_empty(), "of another assignment");
            replies.reached(&[goals[0].0]);
        });
        assert!(is_decided);
        let (is_decided, ()) = tokio::join!(replies.decided(&[LANE], &ends, late()), async {
            replies.release(5);
            replies.begin(6, &[LANE], [], &[]);
            replies.loaded(6, LANE);
        });
        assert!(!is_decided, "taken over again");
        assert!(!replies.has_caught_up(LANE), "taken over again");
    }

    #[test]
    fn a_version_that_was_replaced_since_is_known_by_its_timer() {
        let replies = Replies::new(2);
        let came = Instant::now();
        assert!(
            !replies.was_replaced(LANE, answer(0, Outcome::Replaced).timer_id, came),
            "nothing was"
        );
        replies.give(vec![answer(1, Outcome::Cancelled)]);
        let timer_id = answer(0, Outcome::Replaced).timer_id;
        assert!(!replies.was_replaced(LANE, timer_id, came), "another outcome");
        replies.give(vec![answer(2, Outcome::Replaced), answer(3, Outcome::Superseded)]);
        assert!(replies.was_replaced(LANE, timer_id, came));
        assert!(!replies.was_replaced(Lane(0), timer_id, came), "of another lane");
        let other = TimerId::new(None, b"i");
        assert!(!replies.was_replaced(LANE, other, came), "of another timer");
        std::thread::sleep(Duration::from_millis(2));
        assert!(!replies.was_replaced(LANE, timer_id, Instant::now()), "before it came");
    }

    #[tokio::test]
    async fn answers_are_forgotten_when_there_are_too_many() {
        let replies = Replies::new(2);
        replies.begin(1, &[LANE], [], &[]);
        let many = (0..=KEPT_MAX as i64).map(|offset| answer(offset, Outcome::Recorded));
        replies.give(many.collect());
        assert!(matches!(replies.wait(INTAKE, Offset(0), soon()).await, Reply::Nothing));
        assert!(matches!(replies.wait(INTAKE, Offset(1), soon()).await, Reply::Answer(_)));
        assert_eq!(replies.lock().answers.len(), KEPT_MAX);
    }
}
