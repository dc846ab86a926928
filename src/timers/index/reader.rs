//! Queries of the index, from any thread.

use parking_lot::RwLock;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use super::entry::{self, DUE, Due, TIMER};
use super::lane::{Shared, minute, unreadable};
use super::position::Position;
use super::store::StoreError;
use super::{Error, Lanes};
use crate::engine::timers::{
    Attempt, Filter, Forecast, LaneTimer, PAGE_BYTES_MAX, TaskCounts, TaskFilter, TaskRecord,
    Timer, TimerId, Written, group_of, id_prefix,
};
use crate::engine::{After, Lane, UnixMillis};
use crate::telemetry::Rebuilt;

/// Entries looked at in one call, at most: about a millisecond.
pub const LOOKED_AT_MAX: usize = 4_096;

/// Some of the timers that are meant, by due time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// Perhaps none, even if there are more.
    pub timers: Vec<Timer>,
    /// Where to go on, unless these were the last.
    pub more: Option<After>,
}

/// Some of the tasks that are meant, by due time, without their attempts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaskListing {
    /// Perhaps none, even if there are more.
    pub tasks: Vec<TaskRecord>,
    /// Where to go on, unless these were the last.
    pub more: Option<After>,
}

/// How many of the timers are meant, among those looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// How many.
    pub count: u64,
    /// Where to go on, unless these were the last.
    pub more: Option<After>,
}

/// What stands in the index of the lanes that are open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IndexCounts {
    /// Lanes.
    pub lanes: u64,
    /// Pending timers.
    pub live: u64,
    /// Timers that ended and are kept for their history.
    pub ended: u64,
    /// Timers with void versions.
    pub cancel_marks: u64,
}

/// Asks the index. Any number of them, in any threads; every call is short.
#[derive(Clone, Debug)]
pub struct Reader {
    pub(super) lanes: Arc<RwLock<Lanes>>,
}

impl Reader {
    fn with_lane<T>(
        &self,
        lane: Lane,
        query: impl FnOnce(&Shared) -> Result<T, StoreError>,
    ) -> Result<T, Error> {
        let (shared, path) = {
            let lanes = self.lanes.read();
            if lanes.is_aside {
                return Err(Error::Aside);
            }
            let shared = lanes.open.get(&lane).map(Arc::clone);
            (shared.ok_or(Error::Closed(lane))?, Arc::clone(&lanes.path))
        };
        // Also the end of the last handle is guarded: it may be what closes a store that was set aside.
        let answer = super::store::guard(move || query(&shared));
        answer.map_err(|error| {
            let error = error.into_error("read", &path);
            if let Error::Broken { reason, detail, .. } = &error {
                self.found_broken(*reason, detail);
            }
            error
        })
    }

    /// The writer notices with what it does next.
    fn found_broken(&self, reason: Rebuilt, detail: &str) {
        let mut lanes = self.lanes.write();
        lanes.broken.get_or_insert_with(|| (reason, detail.to_owned()));
    }

    /// How far a lane's entries reach; `None` where nothing was entered yet.
    ///
    /// # Errors
    /// [`Error::Closed`] and [`Error::Aside`]: not now. [`Error::Broken`]: not now, either; it will be renewed.
    pub fn position(&self, lane: Lane) -> Result<Option<Position>, Error> {
        self.with_lane(lane, |shared| Ok(shared.view.position()))
    }

    /// The timer of a name, pending or ended.
    ///
    /// # Errors
    /// As those of [`position`](Self::position).
    pub fn find(&self, lane: Lane, timer_id: TimerId) -> Result<Option<Timer>, Error> {
        self.with_lane(lane, |shared| shared.timer(timer_id))
    }

    /// All timers of an id that are in this lane, whatever their keys; at most so many.
    ///
    /// # Errors
    /// As those of [`position`](Self::position).
    pub fn by_id(&self, lane: Lane, id: &[u8], most: usize) -> Result<Vec<Timer>, Error> {
        self.with_lane(lane, |shared| {
            let prefix = [&[TIMER][..], &id_prefix(id)].concat();
            let mut values = Vec::new();
            shared.view.each_from(&prefix, |key, value| {
                match entry::name_in(key).filter(|_| key.starts_with(&prefix)) {
                    // Another id may have the same prefix, so these are some more than are told.
                    Some(timer_id) if values.len() < most.saturating_add(64) => {
                        values.push((timer_id, value.to_vec()));
                        ControlFlow::Continue(())
                    }
                    _ => ControlFlow::Break(()),
                }
            })?;
            let timers = values.iter().map(|(timer_id, value)| shared.read_timer(*timer_id, value));
            let mut timers = timers.collect::<Result<Vec<_>, _>>()?;
            timers.retain(|timer| *timer.id == *id);
            timers.truncate(most);
            Ok(timers)
        })
    }

    /// A task, with all that is kept of it; `None`: there is none of this name, or what has it is no task.
    ///
    /// # Errors
    /// As those of [`position`](Self::position).
    pub fn task(&self, lane: Lane, timer_id: TimerId) -> Result<Option<TaskRecord>, Error> {
        self.with_lane(lane, |shared| {
            let Some(timer) = shared.timer(timer_id)? else { return Ok(None) };
            let attempts = shared.attempts(timer_id)?;
            task_of(shared, lane, timer, attempts)
        })
    }

    /// The timers that are meant, by due time, behind a place; at most so many, and no more than what one call looks at.
    /// Tasks are not among them.
    ///
    /// # Errors
    /// As those of [`position`](Self::position).
    pub fn page(
        &self,
        lane: Lane,
        filter: &Filter,
        after: Option<After>,
        most: usize,
    ) -> Result<Listing, Error> {
        self.listing(lane, (filter, false), after, most)
    }

    /// The same, with those that are tasks.
    ///
    /// # Errors
    /// As those of [`position`](Self::position).
    pub fn page_with_tasks(
        &self,
        lane: Lane,
        filter: &Filter,
        after: Option<After>,
        most: usize,
    ) -> Result<Listing, Error> {
        self.listing(lane, (filter, true), after, most)
    }

    fn listing(
        &self,
        lane: Lane,
        (filter, with_tasks): (&Filter, bool),
        after: Option<After>,
        most: usize,
    ) -> Result<Listing, Error> {
        self.with_lane(lane, |shared| {
            let fits = timers_that_fit(shared, filter, with_tasks);
            let mut meant = Meant::new(most);
            let span = (filter.due_after, filter.due_before);
            let more = scan(shared, span, after, fits, |at, _| meant.add(at))?;
            let mut timers = Vec::with_capacity(meant.places.len());
            for (due, timer_id) in meant.places {
                // It may have changed since.
                let timer = shared.timer(timer_id)?.filter(|timer| timer.due == due);
                timers.extend(timer.filter(|timer| filter.matches(timer)));
            }
            Ok(Listing { timers, more })
        })
    }

    /// The tasks that are meant, by due time, behind a place; at most so many, no more than what one call looks at, and none behind
    /// the one that fills [`PAGE_BYTES_MAX`].
    ///
    /// # Errors
    /// As those of [`position`](Self::position).
    pub fn tasks(
        &self,
        lane: Lane,
        filter: &TaskFilter,
        after: Option<After>,
        most: usize,
    ) -> Result<TaskListing, Error> {
        self.with_lane(lane, |shared| {
            let mut meant = Meant::new(most);
            let fits = |due: &Due| task_fits(shared, filter, due);
            let span = (None, filter.due_before);
            let mut more = scan(shared, span, after, fits, |at, _| meant.add(at))?;
            let mut tasks = Vec::with_capacity(meant.places.len());
            let (mut bytes, mut last) = (0, None);
            for (due, timer_id) in meant.places {
                if bytes >= PAGE_BYTES_MAX {
                    more = last;
                    break;
                }
                last = Some((due, timer_id));
                // It may have changed since.
                let timer = shared.timer(timer_id)?;
                let Some(timer) = timer.filter(|of| of.due == due && filter.may_match(of)) else {
                    continue;
                };
                let task = task_of(shared, lane, timer, Vec::new())?;
                if let Some(task) = task.filter(|task| filter.matches(task)) {
                    bytes += task.bytes();
                    tasks.push(task);
                }
            }
            Ok(TaskListing { tasks, more })
        })
    }

    /// The minute in which the pending timer is due that is due first; `None`: nothing is pending.
    ///
    /// # Errors
    /// As those of [`position`](Self::position).
    pub fn first_due(&self, lane: Lane) -> Result<Option<UnixMillis>, Error> {
        self.with_lane(lane, |shared| {
            let tables = shared.tables();
            let (mut first, mut from) = (None, Some(0));
            // The first of each target.
            while let Some(target) = from
                && let Some((&(target, minute), _)) = tables.due.range((target, 0)..).next()
            {
                first = Some(first.map_or(minute, |first: u32| first.min(minute)));
                from = target.checked_add(1);
            }
            Ok(first.map(|minute| UnixMillis(u64::from(minute) * 60_000)))
        })
    }

    /// How many timers are meant, of those that one call looks at. Tasks are not among them.
    ///
    /// # Errors
    /// As those of [`position`](Self::position).
    pub fn count(
        &self,
        lane: Lane,
        filter: &Filter,
        after: Option<After>,
    ) -> Result<Counted, Error> {
        self.with_lane(lane, |shared| {
            let (mut count, mut unsure) = (0, Vec::new());
            let fits = timers_that_fit(shared, filter, false);
            let span = (filter.due_after, filter.due_before);
            let more = scan(shared, span, after, fits, |(_, timer_id), is_sure| {
                if is_sure {
                    count += 1;
                } else {
                    unsure.push(timer_id);
                }
                ControlFlow::Continue(())
            })?;
            for name in unsure {
                let timer = shared.timer(name)?;
                count += u64::from(timer.is_some_and(|timer| filter.matches(&timer)));
            }
            Ok(Counted { count, more })
        })
    }

    /// When pending timers fall due, for each target that has some. A task that runs does not.
    ///
    /// # Errors
    /// As those of [`position`](Self::position).
    pub fn forecast(
        &self,
        lane: Lane,
        now: UnixMillis,
        target: Option<&str>,
    ) -> Result<Vec<Forecast>, Error> {
        self.with_lane(lane, |shared| {
            let tables = shared.tables();
            let from = minute(now);
            let mut targets: BTreeMap<u32, Forecast> = BTreeMap::new();
            let only = match target.map(|target| tables.strings.number(target)) {
                Some(None) => return Ok(Vec::new()),
                Some(Some(number)) => number..=number,
                None => 0..=u32::MAX,
            };
            let dues = tables.due.range((*only.start(), 0)..=(*only.end(), u32::MAX));
            for (&(target, minute), &count) in dues {
                let running = tables.running.get(&(target, minute)).copied().unwrap_or_default();
                let Some(count) = count.checked_sub(running).filter(|count| *count > 0) else {
                    continue;
                };
                let Some(text) = tables.strings.text(target) else { continue };
                let forecast = targets.entry(target).or_insert_with(|| nothing_due(text));
                add(forecast, minute.checked_sub(from), u64::from(count));
            }
            Ok(targets.into_values().collect())
        })
    }

    /// How much stands in the index, of all lanes that are open.
    ///
    /// # Errors
    /// [`Error::Aside`]: not now.
    pub fn counts(&self) -> Result<IndexCounts, Error> {
        let lanes = self.lanes.read();
        if lanes.is_aside {
            return Err(Error::Aside);
        }
        let all = lanes.open.values().map(|shared| IndexCounts::of(shared));
        Ok(all.fold(IndexCounts::default(), |sum, of| IndexCounts {
            lanes: sum.lanes + of.lanes,
            live: sum.live + of.live,
            ended: sum.ended + of.ended,
            cancel_marks: sum.cancel_marks + of.cancel_marks,
        }))
    }

    /// How many tasks of these projects a lane has, by where they stand at a time. A project without any is not told.
    ///
    /// # Errors
    /// As those of [`position`](Self::position).
    pub fn task_counts(
        &self,
        lane: Lane,
        projects: &BTreeSet<String>,
        now: UnixMillis,
    ) -> Result<BTreeMap<String, TaskCounts>, Error> {
        self.with_lane(lane, |shared| {
            let tables = shared.tables();
            let of = |project: &String| {
                let counts = tables.projects.get(project.as_str())?.at(now);
                Some((project.clone(), counts))
            };
            Ok(projects.iter().filter_map(of).collect())
        })
    }

    /// How much stands in the index of one lane.
    ///
    /// # Errors
    /// As those of [`position`](Self::position).
    pub fn counts_of(&self, lane: Lane) -> Result<IndexCounts, Error> {
        self.with_lane(lane, |shared| Ok(IndexCounts::of(shared)))
    }
}

impl IndexCounts {
    fn of(shared: &Shared) -> Self {
        let tables = shared.tables();
        Self { lanes: 1, live: tables.live, ended: tables.ended, cancel_marks: tables.cancel_marks }
    }
}

/// A forecast of a target for which nothing is pending.
fn nothing_due(target: &str) -> Forecast {
    let (minutes, hours, days) = (vec![0; 60], vec![0; 24], vec![0; 30]);
    Forecast { target: target.to_owned(), minutes, hours, days, ..Forecast::default() }
}

/// Counts timers that are due so many minutes from now; `None`: in the past.
fn add(forecast: &mut Forecast, minutes: Option<u32>, count: u64) {
    forecast.total += count;
    let Some(minutes) = minutes.map(|minutes| minutes as usize) else {
        forecast.overdue += count;
        return;
    };
    let Forecast { minutes: by_minute, hours, days, later, .. } = forecast;
    for (slots, length) in [(&mut *by_minute, 1), (&mut *hours, 60), (&mut *days, 24 * 60)] {
        if let Some(slot) = slots.get_mut(minutes / length) {
            *slot += count;
        }
    }
    if minutes / (24 * 60) >= days.len() {
        *later += count;
    }
}

/// Where timers are that are meant, up to a number of them.
struct Meant {
    places: Vec<After>,
    most: usize,
}

impl Meant {
    fn new(most: usize) -> Self {
        Self { places: Vec::new(), most }
    }

    fn add(&mut self, at: After) -> ControlFlow<()> {
        self.places.push(at);
        match self.places.len() >= self.most {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }
}

/// The task of a timer, if it is one.
fn task_of(
    shared: &Shared,
    lane: Lane,
    timer: Timer,
    attempts: Vec<Attempt>,
) -> Result<Option<TaskRecord>, StoreError> {
    let Some(of) = Written::of(&timer) else { return Ok(None) };
    let spec = shared.definition(timer.timer_id)?;
    let run = if of.is_run { shared.shards(timer.timer_id)? } else { None };
    // Lanes take no task whose id is none.
    let task = TaskRecord::new(LaneTimer { lane, timer }, spec, attempts);
    Ok(task.ok().map(|task| TaskRecord { run, ..task }))
}

/// Says of a timer by due time whether it is meant; `None`: the timer itself says it.
fn timers_that_fit(
    shared: &Shared,
    filter: &Filter,
    with_tasks: bool,
) -> impl Fn(&Due) -> Option<bool> + use<> {
    let (target, label) = {
        let tables = shared.tables();
        let number = |text: &Option<String>| {
            text.as_deref()
                .map(|text| tables.strings.number(text).map(|number| u64::from(number) + 1))
        };
        (number(&filter.target), number(&filter.label))
    };
    // A target or a label without a number is none of those with one.
    let fits = |wanted: Option<Option<u64>>, found: Option<u64>| match (wanted, found) {
        (None, _) => Some(true),
        (Some(_), Some(0)) => None,
        (Some(wanted), found) => Some(wanted.is_some() && wanted == found),
    };
    let state = filter.state;
    move |due| {
        all([
            Some(with_tasks || !due.is_task),
            Some(state.is_none_or(|wanted| wanted == due.state)),
            fits(target, Some(due.target)),
            fits(label, due.label),
        ])
    }
}

/// Says of a task by due time whether it may be meant; `None`: more than that has to be looked at.
fn task_fits(shared: &Shared, filter: &TaskFilter, due: &Due) -> Option<bool> {
    let group = match due.label {
        _ if !filter.is_of_group() => Some(true),
        // A text without a number, or no text: the timer or its definition says it.
        Some(0) | None => None,
        Some(number) => {
            let tables = shared.tables();
            let label = u32::try_from(number - 1).ok().and_then(|at| tables.strings.text(at));
            group_of(label.map(|label| &**label))
                .map(|(project, group)| filter.has_group(project, group))
        }
    };
    all([
        Some(due.is_task),
        Some(filter.status.is_none_or(|wanted| wanted.may_be(due.state))),
        // The timer says the rest of its status, and the definition its type.
        (filter.status.is_none() && filter.of_type.is_none()).then_some(true),
        group,
    ])
}

/// Whether all of these are so, if that is known.
fn all<const N: usize>(fits: [Option<bool>; N]) -> Option<bool> {
    if fits.contains(&Some(false)) {
        return Some(false);
    }
    (!fits.contains(&None)).then_some(true)
}

/// Looks at timers that are due between two times, by due time behind a place. Tells those that fit, and whether that is sure
/// without looking at the timer itself. Returns where to go on, if it stopped before the end.
fn scan(
    shared: &Shared,
    (due_after, due_before): (Option<UnixMillis>, Option<UnixMillis>),
    after: Option<After>,
    fits: impl Fn(&Due) -> Option<bool>,
    mut meant: impl FnMut(After, bool) -> ControlFlow<()>,
) -> Result<Option<After>, StoreError> {
    let mut from = entry::timed_key(DUE, due_after.unwrap_or_default(), TimerId::default());
    if let Some((due, timer_id)) = after {
        // The least key behind that of this timer.
        let behind = [&entry::timed_key(DUE, due, timer_id)[..], &[0]].concat();
        from = from.max(behind);
    }
    let (mut looked_at, mut more, mut error) = (0, None, None);
    shared.view.each_from(&from, |key, value| {
        let Some(at) = entry::timed(key).filter(|_| key.first() == Some(&DUE)) else {
            return ControlFlow::Break(());
        };
        if due_before.is_some_and(|before| at.0 >= before) {
            return ControlFlow::Break(());
        }
        let Some(due) = entry::read_due(value) else {
            error = Some(unreadable(DUE));
            return ControlFlow::Break(());
        };
        looked_at += 1;
        let go_on = match fits(&due) {
            Some(false) => ControlFlow::Continue(()),
            fits => meant(at, fits.is_some()),
        };
        if go_on.is_break() || looked_at >= LOOKED_AT_MAX {
            more = Some(at);
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    })?;
    match error {
        Some(error) => Err(error),
        None => Ok(more),
    }
}
