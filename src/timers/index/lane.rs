//! One lane: timers by name, by due time and by when they ended, their void versions, and attempts and definitions of tasks, all
//! kept in step.

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use super::bytes::check;
use super::entry::{self, ATTEMPT, CANCEL_MARK, DEFINITION, DUE, END, KEPT, SHARDS, TEXT, TIMER};
use super::lane_tree::{self, LaneTree, ReadView};
use super::position::Position;
use super::store::{StoreError, Tree};
use super::string_table::StringTable;
use crate::engine::task::follow_up::FollowUp;
use crate::engine::timers::{
    Attempt, CancelMark, Change, Cursor, Forgettable, Live, Progress, RunProgress, TaskCounts,
    TaskStatus, Timer, TimerId, TimerState, Written, group_of,
};
use crate::engine::{Offset, UnixMillis};

/// What holds in a lane and concerns the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Held {
    /// A pending timer.
    Live(Live),
    /// Void versions of a timer.
    CancelMark(CancelMark),
    /// Who is told how a task ends, pending or not, whose executor reports it.
    FollowUp(TimerId, FollowUp),
    /// How far an executor of a task came in one of its attempts, pending or not.
    Cursor(TimerId, Cursor),
    /// How far the shards of a run are, pending or not.
    Shards(TimerId, Box<RunProgress>),
}

/// A timer that has ended and may be forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone {
    /// Which one.
    pub timer_id: TimerId,
    /// What was written of it beside its timer; only of a task.
    pub task: Option<Written>,
}

/// What is kept in memory of a lane's entries.
#[derive(Debug, Default)]
pub(super) struct Tables {
    pub(super) strings: StringTable,
    /// Pending timers by number of their target and minute of their due time.
    pub(super) due: BTreeMap<(u32, u32), u32>,
    /// Those of them that are tasks and run: they do not fall due.
    pub(super) running: BTreeMap<(u32, u32), u32>,
    pub(super) live: u64,
    pub(super) ended: u64,
    pub(super) cancel_marks: u64,
    /// Tasks by project. A project without tasks is not here.
    pub(super) projects: BTreeMap<Box<str>, OfProject>,
}

/// The tasks of one project.
#[derive(Debug, Default)]
pub(super) struct OfProject {
    /// By status. Those that wait in their lane count as [`TaskStatus::Delay`] here, however late they are.
    counts: TaskCounts,
    /// These, by the minute in which something is done with them.
    waiting: BTreeMap<u32, u32>,
}

impl OfProject {
    /// Counts a task, or takes it out; `false`: no task is left.
    fn count(&mut self, state: TimerState, task: &Progress, is_there: bool) -> bool {
        // Nothing is due at the epoch: this is `Delay` for all that wait in their lane.
        let status = TaskStatus::of_progress(state, task, UnixMillis(0));
        let count = self.counts.of(status);
        *count = if is_there { *count + 1 } else { count.saturating_sub(1) };
        if status == TaskStatus::Delay {
            tally(&mut self.waiting, minute(task.next_at), is_there);
        }
        self.counts != TaskCounts::default()
    }

    /// The counts at a time.
    pub(super) fn at(&self, now: UnixMillis) -> TaskCounts {
        let before = self.waiting.range(..minute(now));
        let overdue = before.map(|(_, count)| u64::from(*count)).sum::<u64>();
        let TaskCounts { delay, ready, .. } = self.counts;
        let (delay, ready) = (delay.saturating_sub(overdue), ready + overdue);
        TaskCounts { delay, ready, overdue, ..self.counts }
    }
}

/// Counts one more of something, or one less.
fn tally<K: Ord>(counts: &mut BTreeMap<K, u32>, of: K, is_there: bool) {
    if is_there {
        *counts.entry(of).or_default() += 1;
    } else if let Some(count) = counts.get_mut(&of) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&of);
        }
    }
}

/// The minute in which something is due; the last one stands for all that follow.
pub(super) fn minute(due: UnixMillis) -> u32 {
    u32::try_from(due.0 / 60_000).unwrap_or(u32::MAX)
}

impl Tables {
    fn count(
        &mut self,
        state: TimerState,
        (target, due): (&str, UnixMillis),
        task: Option<&Progress>,
        is_there: bool,
    ) {
        let count = if state.is_final() { &mut self.ended } else { &mut self.live };
        *count = if is_there { *count + 1 } else { count.saturating_sub(1) };
        let Some(target) = self.strings.number(target).filter(|_| !state.is_final()) else {
            return;
        };
        tally(&mut self.due, (target, minute(due)), is_there);
        let status = task.map(|task| TaskStatus::of_progress(state, task, due));
        if status == Some(TaskStatus::Running) {
            tally(&mut self.running, (target, minute(due)), is_there);
        }
    }

    /// Counts a task of a project.
    fn count_task(&mut self, project: &str, state: TimerState, task: &Progress, is_there: bool) {
        let of = match self.projects.get_mut(project) {
            Some(of) => of,
            None => self.projects.entry(project.into()).or_default(),
        };
        if !of.count(state, task, is_there) {
            self.projects.remove(project);
        }
    }
}

/// What readers have of a lane.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) view: Arc<ReadView>,
    tables: RwLock<Tables>,
}

impl Shared {
    pub(super) fn tables(&self) -> RwLockReadGuard<'_, Tables> {
        self.tables.read()
    }

    fn tables_mut(&self) -> RwLockWriteGuard<'_, Tables> {
        self.tables.write()
    }

    /// The timer of a name.
    pub(super) fn timer(&self, timer_id: TimerId) -> Result<Option<Timer>, StoreError> {
        let found = self.view.get(&entry::timer_key(timer_id))?;
        found.map(|value| self.read_timer(timer_id, &value)).transpose()
    }

    /// The definition of a task.
    pub(super) fn definition(&self, timer_id: TimerId) -> Result<Option<Box<str>>, StoreError> {
        let found = self.view.get(&entry::definition_key(timer_id))?;
        let read = |value: Vec<u8>| {
            entry::read_definition(timer_id, &value).ok_or_else(|| unreadable(DEFINITION))
        };
        found.map(read).transpose()
    }

    /// The attempts of a task that are kept, the oldest first.
    pub(super) fn attempts(&self, timer_id: TimerId) -> Result<Vec<Attempt>, StoreError> {
        let (mut attempts, mut unread) = (Vec::new(), false);
        self.view.each_from(&entry::attempt_key(timer_id, 0), |key, value| {
            let of = (key.first() == Some(&ATTEMPT)).then(|| entry::attempt_in(key)).flatten();
            match of.filter(|(of, _)| *of == timer_id) {
                Some((_, slot)) => match entry::read_attempt(timer_id, slot, value) {
                    Some(attempt) => {
                        attempts.push(attempt);
                        ControlFlow::Continue(())
                    }
                    None => {
                        unread = true;
                        ControlFlow::Break(())
                    }
                },
                None => ControlFlow::Break(()),
            }
        })?;
        if unread {
            return Err(unreadable(ATTEMPT));
        }
        attempts.sort_by_key(|attempt| attempt.number);
        Ok(attempts)
    }

    /// How far the shards of a run are.
    pub(super) fn shards(&self, timer_id: TimerId) -> Result<Option<Box<RunProgress>>, StoreError> {
        let found = self.view.get(&entry::shards_key(timer_id))?;
        let read =
            |value: Vec<u8>| entry::read_shards(timer_id, &value).ok_or_else(|| unreadable(SHARDS));
        found.map(read).transpose()
    }

    pub(super) fn read_timer(&self, timer_id: TimerId, value: &[u8]) -> Result<Timer, StoreError> {
        entry::read_timer(timer_id, value, &self.tables().strings).ok_or_else(|| unreadable(TIMER))
    }
}

pub(super) fn unreadable(kind: u8) -> StoreError {
    StoreError::Damaged(format!("an entry of kind {kind} cannot be read"))
}

/// The writer's side of a lane.
#[derive(Debug)]
pub(super) struct Lane {
    tree: LaneTree,
    shared: Arc<Shared>,
}

impl Lane {
    /// Opens a lane, and tells what holds of it.
    pub(super) fn open(tree: Tree, mut each: impl FnMut(Held)) -> Result<Self, StoreError> {
        let mut tables = Tables::default();
        let mut error = None;
        let mut dues = 0_u64;
        let tree = LaneTree::open(tree, entry::looked_up, |key, value| {
            let read = match key.first() {
                Some(&DUE) => {
                    dues += 1;
                    Some(())
                }
                Some(&END | &KEPT) => Some(()),
                _ => load_entry(&mut tables, key, value, &mut each),
            };
            if read.is_none() {
                let kind = key.first().copied().unwrap_or(u8::MAX);
                error.get_or_insert_with(|| unreadable(kind));
            }
        })?;
        if let Some(error) = error {
            return Err(error);
        }
        if dues != tables.live + tables.ended {
            return Err(StoreError::Damaged(format!("{dues} timers by due time, others by name")));
        }
        let shared = Shared { view: Arc::clone(tree.view()), tables: RwLock::new(tables) };
        Ok(Self { tree, shared: Arc::new(shared) })
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(super) fn position(&self) -> Option<Position> {
        self.shared.view.position()
    }

    /// Carries changes out, and tells how far the lane's entries reach now. `lanes`: how many are open.
    pub(super) fn apply(
        &mut self,
        changes: &[Change],
        next: Offset,
        at: UnixMillis,
        lanes: usize,
    ) -> Result<Position, StoreError> {
        let kept = self.position().unwrap_or_default();
        let mut position = Position { next, at, ..kept };
        let mut work = BatchChanges { lane: self, changes: BTreeMap::new(), counts: Vec::new() };
        for change in changes {
            work.change(change)?;
        }
        let BatchChanges { mut changes, counts, .. } = work;
        changes.retain(|_, change| change.old != change.new);
        for (key, lane_tree::Change { old, new }) in &changes {
            if let Some(old) = old {
                position.remove(check(key, old));
            }
            if let Some(new) = new {
                position.add(check(key, new));
            }
        }
        self.tree.write(&changes, &position)?;
        let mut tables = self.shared.tables_mut();
        for count in counts {
            match count {
                Count::Timer { state, target, due, task, is_there } => {
                    tables.count(state, (&target, due), task.as_ref(), is_there);
                }
                Count::Task { project, state, task, is_there } => {
                    tables.count_task(&project, state, &task, is_there);
                }
                Count::CancelMark { is_there: true } => tables.cancel_marks += 1,
                Count::CancelMark { is_there: false } => {
                    tables.cancel_marks = tables.cancel_marks.saturating_sub(1)
                }
            }
        }
        drop(tables);
        let size = changes.len();
        self.tree.show(changes, position, entry::looked_up);
        self.tree.compact(size, lanes, entry::looked_up)?;
        Ok(position)
    }

    /// Tells all timers, what is void, and attempts and definitions of tasks.
    pub(super) fn entries(&self, mut each: impl FnMut(Change)) -> Result<(), StoreError> {
        let mut unread = None;
        self.shared.view.each_from(&[TIMER], |key, value| {
            let kind = key.first().copied().unwrap_or_default();
            let read = match kind {
                TIMER => entry::name_in(key)
                    .and_then(|timer_id| {
                        entry::read_timer(timer_id, value, &self.shared.tables().strings)
                    })
                    .map(Change::Timer),
                CANCEL_MARK => entry::name_in(key)
                    .and_then(|timer_id| entry::read_cancel_mark(timer_id, value))
                    .map(Change::CancelMark),
                ATTEMPT => entry::attempt_in(key)
                    .and_then(|(timer_id, slot)| entry::read_attempt(timer_id, slot, value))
                    .map(Change::Attempt),
                DEFINITION => entry::name_in(key).and_then(|timer_id| {
                    let spec = entry::read_definition(timer_id, value)?;
                    Some(Change::Definition(timer_id, spec))
                }),
                SHARDS => entry::name_in(key).and_then(|timer_id| {
                    Some(Change::Shards(timer_id, entry::read_shards(timer_id, value)?))
                }),
                _ => return ControlFlow::Continue(()),
            };
            match read {
                Some(change) => {
                    each(change);
                    ControlFlow::Continue(())
                }
                None => {
                    unread = Some(unreadable(kind));
                    ControlFlow::Break(())
                }
            }
        })?;
        unread.map_or(Ok(()), Err)
    }

    /// Timers and tasks that may be forgotten, the oldest first.
    pub(super) fn forgettable(
        &self,
        what: Forgettable,
        most: usize,
    ) -> Result<Vec<Gone>, StoreError> {
        let mut gone = self.listed_before(END, what.ended_before, most)?;
        let left = most.saturating_sub(gone.len());
        gone.extend(self.listed_before(KEPT, what.kept_before, left)?);
        Ok(gone)
    }

    /// What stands below a kind of key before a time, the oldest first.
    fn listed_before(
        &self,
        kind: u8,
        before: UnixMillis,
        most: usize,
    ) -> Result<Vec<Gone>, StoreError> {
        let (mut gone, mut unread) = (Vec::new(), false);
        self.shared.view.each_from(&[kind], |key, value| {
            match (key.first(), entry::timed(key)) {
                (Some(found), Some((at, timer_id)))
                    if *found == kind && at < before && gone.len() < most =>
                {
                    let Some(task) = entry::read_end(value) else {
                        unread = true;
                        return ControlFlow::Break(());
                    };
                    gone.push(Gone { timer_id, task });
                    ControlFlow::Continue(())
                }
                _ => ControlFlow::Break(()),
            }
        })?;
        if unread { Err(unreadable(kind)) } else { Ok(gone) }
    }
}

/// Tells one entry while a lane is opened; `None`: it cannot be read.
fn load_entry(
    tables: &mut Tables,
    key: &[u8],
    value: &[u8],
    each: &mut impl FnMut(Held),
) -> Option<()> {
    match *key.first()? {
        TEXT => {
            let number = u32::from_be_bytes(key[1..].try_into().ok()?);
            let text = std::str::from_utf8(value).ok()?;
            return (tables.strings.add(text) == number).then_some(());
        }
        TIMER => {
            let (state, live) = entry::read_live(entry::name_in(key)?, value, &tables.strings)?;
            tables.count(state, (&live.target, live.due), live.task.as_ref(), true);
            if let (Some(task), Some((project, _))) = (&live.task, group_of(live.label.as_deref()))
            {
                tables.count_task(project, state, task, true);
            }
            if !state.is_final() {
                each(Held::Live(live));
            }
        }
        CANCEL_MARK => {
            tables.cancel_marks += 1;
            each(Held::CancelMark(entry::read_cancel_mark(entry::name_in(key)?, value)?));
        }
        // The digest covers them; here it is checked that they can be read.
        ATTEMPT => {
            let (timer_id, slot) = entry::attempt_in(key)?;
            let attempt = entry::read_attempt(timer_id, slot, value)?;
            if let Some(cursor) = attempt.cursor() {
                each(Held::Cursor(timer_id, cursor));
            }
        }
        DEFINITION => {
            let timer_id = entry::name_in(key)?;
            let definition = entry::read_definition(timer_id, value)?;
            if let Some(follow_up) = FollowUp::of_awaited(&definition) {
                each(Held::FollowUp(timer_id, follow_up));
            }
        }
        SHARDS => {
            let timer_id = entry::name_in(key)?;
            each(Held::Shards(timer_id, entry::read_shards(timer_id, value)?));
        }
        _ => return None,
    }
    Some(())
}

enum Count {
    Timer {
        state: TimerState,
        target: Arc<str>,
        due: UnixMillis,
        task: Option<Progress>,
        is_there: bool,
    },
    /// One that is a task of a project, too.
    Task {
        project: Box<str>,
        state: TimerState,
        task: Progress,
        is_there: bool,
    },
    CancelMark {
        is_there: bool,
    },
}

/// What a batch comes to.
struct BatchChanges<'a> {
    lane: &'a mut Lane,
    changes: BTreeMap<Vec<u8>, lane_tree::Change>,
    counts: Vec<Count>,
}

impl BatchChanges<'_> {
    /// What an entry is after what was done so far.
    fn now(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        match self.changes.get(key) {
            Some(change) => Ok(change.new.clone()),
            None => match entry::looked_up(key) {
                Some(name) => self.lane.tree.get(key, name),
                None => self.lane.shared.view.get(key),
            },
        }
    }

    fn set(&mut self, key: Vec<u8>, old: Option<Vec<u8>>, new: Option<Vec<u8>>) {
        self.changes.entry(key).or_insert(lane_tree::Change { old, new: None }).new = new;
    }

    fn change(&mut self, change: &Change) -> Result<(), StoreError> {
        match change {
            Change::Timer(timer) => {
                self.forget(timer.timer_id)?;
                self.number(&timer.target);
                let takes_labels = self.lane.shared.tables().strings.takes_labels();
                if let Some(label) = timer.label.as_ref().filter(|_| takes_labels) {
                    self.number(label);
                }
                self.enter(timer)?;
            }
            Change::ForgottenTimer(timer_id) => self.forget(*timer_id)?,
            Change::CancelMark(mark) => self.set_cancel_mark(mark.timer_id, Some(mark.value()))?,
            Change::ForgottenCancelMark(timer_id) => self.set_cancel_mark(*timer_id, None)?,
            Change::Attempt(attempt) => {
                let key = entry::attempt_key(attempt.timer_id, attempt.slot());
                self.put(key, change.encode().1)?;
            }
            Change::ForgottenAttempt(timer_id, slot) => {
                self.put(entry::attempt_key(*timer_id, *slot), None)?;
            }
            Change::Definition(timer_id, _) => {
                self.put(entry::definition_key(*timer_id), change.encode().1)?;
            }
            Change::ForgottenDefinition(timer_id) => {
                self.put(entry::definition_key(*timer_id), None)?;
            }
            Change::Shards(timer_id, _) => {
                self.put(entry::shards_key(*timer_id), change.encode().1)?;
            }
            Change::ForgottenShards(timer_id) => self.put(entry::shards_key(*timer_id), None)?,
        }
        Ok(())
    }

    fn put(&mut self, key: Vec<u8>, new: Option<Vec<u8>>) -> Result<(), StoreError> {
        let old = self.now(&key)?;
        self.set(key, old, new);
        Ok(())
    }

    /// Takes a timer out of all orders.
    fn forget(&mut self, timer_id: TimerId) -> Result<(), StoreError> {
        let key = entry::timer_key(timer_id);
        let Some(value) = self.now(&key)? else { return Ok(()) };
        let timer = self.lane.shared.read_timer(timer_id, &value)?;
        let by_due = entry::due_value(&value).ok_or_else(|| unreadable(TIMER))?;
        self.set(key, Some(value), None);
        self.set(entry::timed_key(DUE, timer.due, timer_id), Some(by_due), None);
        if timer.state.is_final() {
            self.set(entry::end_key(&timer), Some(entry::end_value(&timer)), None);
        }
        self.count(&timer, false);
        Ok(())
    }

    fn enter(&mut self, timer: &Timer) -> Result<(), StoreError> {
        let value = entry::timer_value(timer, &self.lane.shared.tables().strings);
        let by_due = entry::due_value(&value).ok_or_else(|| unreadable(TIMER))?;
        self.set(entry::timer_key(timer.timer_id), None, Some(value));
        self.set(entry::timed_key(DUE, timer.due, timer.timer_id), None, Some(by_due));
        if timer.state.is_final() {
            self.set(entry::end_key(timer), None, Some(entry::end_value(timer)));
        }
        self.count(timer, true);
        Ok(())
    }

    fn count(&mut self, timer: &Timer, is_there: bool) {
        let (state, target, due) = (timer.state, Arc::clone(&timer.target), timer.due);
        self.counts.push(Count::Timer { state, target, due, task: timer.task, is_there });
        if let (Some(task), Some((project, _))) = (timer.task, group_of(timer.label.as_deref())) {
            let project = project.into();
            self.counts.push(Count::Task { project, state, task, is_there });
        }
    }

    fn set_cancel_mark(
        &mut self,
        timer_id: TimerId,
        new: Option<Vec<u8>>,
    ) -> Result<(), StoreError> {
        let key = entry::cancel_mark_key(timer_id);
        let old = self.now(&key)?;
        if old.is_some() {
            self.counts.push(Count::CancelMark { is_there: false });
        }
        if new.is_some() {
            self.counts.push(Count::CancelMark { is_there: true });
        }
        self.set(key, old, new);
        Ok(())
    }

    /// Gives a text a number, if it has none.
    fn number(&mut self, text: &str) {
        if self.lane.shared.tables().strings.number(text).is_none() {
            let number = self.lane.shared.tables_mut().strings.add(text);
            self.set(entry::text_key(number), None, Some(text.as_bytes().to_vec()));
        }
    }
}
