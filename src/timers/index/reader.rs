//! Queries of the index, from any thread.

use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use super::entry::{self, DUE, Due, TIMER};
use super::lane::{Shared, minute, unreadable};
use super::position::Position;
use super::store::Trouble;
use super::{Error, Lanes};
use crate::engine::timers::{Timer, TimerId, TimerState, id_prefix};
use crate::engine::{After, Lane, UnixMillis};
use crate::telemetry::Rebuilt;

/// Entries looked at in one call, at most: about a millisecond.
pub const LOOKED_AT_MAX: usize = 4_096;

/// Which timers are meant; what is `None` holds for all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Those with this target.
    pub target: Option<String>,
    /// Those with this label.
    pub label: Option<String>,
    /// Those in this phase.
    pub phase: Option<TimerState>,
    /// Those due then or later.
    pub due_from: Option<UnixMillis>,
    /// Those due before.
    pub due_before: Option<UnixMillis>,
}

/// Some of the timers that are meant, by due time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// Perhaps none, even if there are more.
    pub timers: Vec<Timer>,
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

/// When pending timers of one target fall due. All intervals begin with the minute that is running.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forecast {
    /// Which.
    pub target: Arc<str>,
    /// All of them.
    pub total: u64,
    /// Due before this minute.
    pub overdue: u64,
    /// In each of the next 60 minutes.
    pub minutes: Vec<u64>,
    /// In each of the next 24 hours.
    pub hours: Vec<u64>,
    /// In each of the next 30 days.
    pub days: Vec<u64>,
    /// After that.
    pub later: u64,
}

/// What stands in the index of the lanes that are open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Lanes.
    pub lanes: u64,
    /// Pending timers.
    pub live: u64,
    /// Timers that ended and are kept for their history.
    pub ended: u64,
    /// Timers with void versions.
    pub voids: u64,
}

/// Asks the index. Any number of them, in any threads; every call is short.
#[derive(Clone, Debug)]
pub struct Reader {
    pub(super) lanes: Arc<RwLock<Lanes>>,
}

impl Reader {
    fn ask<T>(
        &self,
        lane: Lane,
        question: impl FnOnce(&Shared) -> Result<T, Trouble>,
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
        let answer = super::store::guard(move || question(&shared));
        answer.map_err(|trouble| {
            let error = trouble.into_error("read", &path);
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
        self.ask(lane, |shared| Ok(shared.entered.position()))
    }

    /// The timer of a name, pending or ended.
    ///
    /// # Errors
    /// As those of [`position`](Self::position).
    pub fn find(&self, lane: Lane, timer_id: TimerId) -> Result<Option<Timer>, Error> {
        self.ask(lane, |shared| shared.timer(timer_id))
    }

    /// All timers of an id that are in this lane, whatever their keys; at most so many.
    ///
    /// # Errors
    /// As those of [`position`](Self::position).
    pub fn by_id(&self, lane: Lane, id: &[u8], most: usize) -> Result<Vec<Timer>, Error> {
        self.ask(lane, |shared| {
            let prefix = [&[TIMER][..], &id_prefix(id)].concat();
            let mut values = Vec::new();
            shared.entered.each_from(&prefix, |key, value| {
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

    /// The timers that are meant, by due time, behind a place; at most so many, and no more than what one call looks at.
    ///
    /// # Errors
    /// As those of [`position`](Self::position).
    pub fn page(
        &self,
        lane: Lane,
        filter: &Filter,
        after: Option<After>,
        most: usize,
    ) -> Result<Page, Error> {
        self.ask(lane, |shared| {
            let mut meant = Vec::new();
            let more = scan(shared, filter, after, |at, _| {
                meant.push(at);
                if meant.len() >= most { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })?;
            let mut timers = Vec::with_capacity(meant.len());
            for (due, timer_id) in meant {
                // It may have changed since.
                let timer = shared.timer(timer_id)?.filter(|timer| timer.due == due);
                timers.extend(timer.filter(|timer| filter.takes(timer)));
            }
            Ok(Page { timers, more })
        })
    }

    /// The minute in which the pending timer is due that is due first; `None`: nothing is pending.
    ///
    /// # Errors
    /// As those of [`position`](Self::position).
    pub fn first_due(&self, lane: Lane) -> Result<Option<UnixMillis>, Error> {
        self.ask(lane, |shared| {
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

    /// How many timers are meant, of those that one call looks at.
    ///
    /// # Errors
    /// As those of [`position`](Self::position).
    pub fn count(
        &self,
        lane: Lane,
        filter: &Filter,
        after: Option<After>,
    ) -> Result<Counted, Error> {
        self.ask(lane, |shared| {
            let (mut count, mut unsure) = (0, Vec::new());
            let more = scan(shared, filter, after, |(_, timer_id), is_sure| {
                if is_sure {
                    count += 1;
                } else {
                    unsure.push(timer_id);
                }
                ControlFlow::Continue(())
            })?;
            for name in unsure {
                let timer = shared.timer(name)?;
                count += u64::from(timer.is_some_and(|timer| filter.takes(&timer)));
            }
            Ok(Counted { count, more })
        })
    }

    /// When pending timers fall due, for each target that has some.
    ///
    /// # Errors
    /// As those of [`position`](Self::position).
    pub fn forecast(
        &self,
        lane: Lane,
        now: UnixMillis,
        target: Option<&str>,
    ) -> Result<Vec<Forecast>, Error> {
        self.ask(lane, |shared| {
            let tables = shared.tables();
            let from = minute(now);
            let mut targets: BTreeMap<u32, Forecast> = BTreeMap::new();
            let only = match target.map(|target| tables.texts.number(target)) {
                Some(None) => return Ok(Vec::new()),
                Some(Some(number)) => number..=number,
                None => 0..=u32::MAX,
            };
            let dues = tables.due.range((*only.start(), 0)..=(*only.end(), u32::MAX));
            for (&(target, minute), &count) in dues {
                let Some(text) = tables.texts.text(target) else { continue };
                let forecast = targets.entry(target).or_insert_with(|| Forecast::of(text));
                forecast.add(minute.checked_sub(from), u64::from(count));
            }
            Ok(targets.into_values().collect())
        })
    }

    /// How much stands in the index, of all lanes that are open.
    ///
    /// # Errors
    /// [`Error::Aside`]: not now.
    pub fn figures(&self) -> Result<Figures, Error> {
        let lanes = self.lanes.read();
        if lanes.is_aside {
            return Err(Error::Aside);
        }
        let all = lanes.open.values().map(|shared| Figures::of(shared));
        Ok(all.fold(Figures::default(), |sum, of| Figures {
            lanes: sum.lanes + of.lanes,
            live: sum.live + of.live,
            ended: sum.ended + of.ended,
            voids: sum.voids + of.voids,
        }))
    }

    /// How much stands in the index of one lane.
    ///
    /// # Errors
    /// As those of [`position`](Self::position).
    pub fn figures_of(&self, lane: Lane) -> Result<Figures, Error> {
        self.ask(lane, |shared| Ok(Figures::of(shared)))
    }
}

impl Figures {
    fn of(shared: &Shared) -> Self {
        let tables = shared.tables();
        Self { lanes: 1, live: tables.live, ended: tables.ended, voids: tables.voids }
    }
}

impl Forecast {
    fn of(target: &Arc<str>) -> Self {
        let target = Arc::clone(target);
        let (minutes, hours, days) = (vec![0; 60], vec![0; 24], vec![0; 30]);
        Self { target, total: 0, overdue: 0, minutes, hours, days, later: 0 }
    }

    /// Counts timers that are due so many minutes from now; `None`: in the past.
    fn add(&mut self, minutes: Option<u32>, count: u64) {
        self.total += count;
        let Some(minutes) = minutes.map(|minutes| minutes as usize) else {
            self.overdue += count;
            return;
        };
        let spans = [(&mut self.minutes, 1), (&mut self.hours, 60), (&mut self.days, 24 * 60)];
        for (slots, length) in spans {
            if let Some(slot) = slots.get_mut(minutes / length) {
                *slot += count;
            }
        }
        if minutes / (24 * 60) >= self.days.len() {
            self.later += count;
        }
    }
}

impl Filter {
    /// Whether a timer is meant.
    #[must_use]
    pub fn takes(&self, timer: &Timer) -> bool {
        self.target.as_deref().is_none_or(|target| *timer.target == *target)
            && self.label.as_deref().is_none_or(|label| timer.label.as_deref() == Some(label))
            && self.phase.is_none_or(|state| timer.state == state)
            && self.due_from.is_none_or(|from| timer.due >= from)
            && self.due_before.is_none_or(|before| timer.due < before)
    }
}

/// Looks at timers by due time behind a place, and tells those that are meant, and whether that is sure without looking at
/// the timer itself. Returns where to go on, if it stopped before the end.
fn scan(
    shared: &Shared,
    filter: &Filter,
    after: Option<After>,
    mut meant: impl FnMut(After, bool) -> ControlFlow<()>,
) -> Result<Option<After>, Trouble> {
    let mut from = entry::timed_key(DUE, filter.due_from.unwrap_or_default(), TimerId::default());
    if let Some((due, timer_id)) = after {
        // The least key behind that of this timer.
        let behind = [&entry::timed_key(DUE, due, timer_id)[..], &[0]].concat();
        from = from.max(behind);
    }
    let wanted = {
        let tables = shared.tables();
        let number = |text: &Option<String>| {
            text.as_deref()
                .map(|text| tables.texts.number(text).map(|number| u64::from(number) + 1))
        };
        (number(&filter.target), number(&filter.label))
    };
    // A target or a label without a number is none of those with one.
    let fits = |wanted: Option<Option<u64>>, found: Option<u64>| match (wanted, found) {
        (None, _) => Some(true),
        (Some(_), Some(0)) => None,
        (Some(wanted), found) => Some(wanted.is_some() && wanted == found),
    };
    let (mut looked_at, mut more, mut trouble) = (0, None, None);
    shared.entered.each_from(&from, |key, value| {
        let Some(at) = entry::timed(key).filter(|_| key.first() == Some(&DUE)) else {
            return ControlFlow::Break(());
        };
        if filter.due_before.is_some_and(|before| at.0 >= before) {
            return ControlFlow::Break(());
        }
        let Some(Due { phase: state, target, label }) = entry::read_due(value) else {
            trouble = Some(unreadable(DUE));
            return ControlFlow::Break(());
        };
        looked_at += 1;
        let fits = [
            Some(filter.phase.is_none_or(|wanted| wanted == state)),
            fits(wanted.0, Some(target)),
            fits(wanted.1, label),
        ];
        let told = if fits.contains(&Some(false)) {
            ControlFlow::Continue(())
        } else {
            meant(at, !fits.contains(&None))
        };
        if told.is_break() || looked_at >= LOOKED_AT_MAX {
            more = Some(at);
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    })?;
    match trouble {
        Some(trouble) => Err(trouble),
        None => Ok(more),
    }
}
