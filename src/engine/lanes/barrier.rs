//! What a record with an id waits for before it fires: that the cancels which were there in time are known.
//!
//! # Invariants
//! 1. It fires once its intake in its lane is let go up to `due - settle`, by the append times there; and not before all
//!    that stood in its lane's intakes at the take-over is let go. As long as that is not known, it waits.
//! 2. Nothing is asked for that reading has told anyway, nothing twice at a time, and nothing more often than every half
//!    `settle` in a partition, however much is due.
//! 3. A record without an id waits for nothing here.

use std::collections::{BTreeMap, BTreeSet};

use super::super::state::Order;
use super::super::verdict::Entry;
use super::{Engine, Lane, Millis, Offset, Output, Source, TopicId, UnixMillis};

/// An intake's partition, as far as records wait for what stands there.
#[derive(Debug, Default)]
pub(super) struct Barrier {
    /// Everything that was appended up to then is let go.
    pub(super) passed: UnixMillis,
    /// Told, but not let go yet: everything before the offset, and up to when it is what stood here then.
    told: Option<(Offset, UnixMillis)>,
    /// Its end is being asked for.
    asked: bool,
    /// When to ask again; multiples of half `settle`.
    wanted: BTreeSet<UnixMillis>,
    /// Due records that wait, by what they wait for.
    waiting: BTreeMap<(UnixMillis, Order, Source, Offset), Box<Entry>>,
}

impl Engine {
    fn barrier(&mut self, source: Source) -> Option<&mut Barrier> {
        self.barriers.get_mut(usize::from(source.topic.0))?.get_mut(usize::from(source.lane.0))
    }

    fn is_open(&self, lane: Lane) -> bool {
        self.gates.get(usize::from(lane.0)).is_some_and(|gate| gate.is_open)
    }

    /// Gives an entry back that may fire, and keeps one that must wait.
    pub(super) fn let_through(&mut self, now: UnixMillis, entry: Box<Entry>) -> Option<Box<Entry>> {
        if entry.timer.is_none() {
            return Some(entry);
        }
        let intake = Source { topic: TopicId(entry.intake), lane: entry.source.lane };
        let is_open = self.is_open(intake.lane);
        let settle = self.setup.limits.settle;
        let Some(barrier) = self.barrier(intake) else { return Some(entry) };
        if is_open && settle.is_none_or(|settle| barrier.passed >= entry.due - settle) {
            return Some(entry);
        }
        let due = entry.due;
        barrier.waiting.insert((due, entry.order, entry.source, entry.offset), entry);
        self.want(now, intake, due);
        None
    }

    /// A record with an id is due then: what is in its intake must be known by that time.
    pub(super) fn want(&mut self, now: UnixMillis, intake: Source, due: UnixMillis) {
        let Some(settle) = self.setup.limits.settle else { return };
        let grid = settle.half().0.max(1);
        let Some(barrier) = self.barrier(intake) else { return };
        let from = due - settle;
        if barrier.passed >= from {
            return;
        }
        // What is overdue wants to know it now, however long it is overdue.
        let at = UnixMillis(from.0.div_ceil(grid).max(now.0 / grid).saturating_mul(grid));
        if barrier.wanted.insert(at) && !barrier.asked {
            self.wake(at);
        }
    }

    /// Asks where intakes end, for which it is time.
    pub(super) fn ask(&mut self, now: UnixMillis, out: &mut Vec<Output>) {
        if self.setup.limits.settle.is_none() {
            return;
        }
        let (mut ask, mut next) = (Vec::new(), None::<UnixMillis>);
        for (topic, lanes) in self.barriers.iter_mut().enumerate() {
            for (lane, barrier) in lanes.iter_mut().enumerate() {
                while barrier.wanted.first().is_some_and(|at| *at <= barrier.passed) {
                    barrier.wanted.pop_first();
                }
                // An answer that is not let go up to yet says more than another would.
                if barrier.asked || barrier.told.is_some() {
                    continue;
                }
                while barrier.wanted.first().is_some_and(|at| *at <= now) {
                    barrier.wanted.pop_first();
                    barrier.asked = true;
                }
                if barrier.asked {
                    ask.push(Source { topic: TopicId(topic as u16), lane: Lane(lane as u16) });
                } else if let Some(at) = barrier.wanted.first() {
                    next = Some(next.map_or(*at, |next| next.min(*at)));
                }
            }
        }
        if !ask.is_empty() {
            out.push(Output::Ask(ask));
        }
        if let Some(at) = next {
            self.wake(at);
        }
    }

    /// Everything that stood in a partition at a time was told.
    pub(super) fn passed(&mut self, now: UnixMillis, source: Source, at: UnixMillis) {
        let Some(hold) = self.hold(source) else { return };
        hold.passed();
        // What was dropped, which an intake's never is, would have to be told again.
        let next = hold.next();
        if at == UnixMillis(0) {
            return self.let_go(now, source);
        }
        if let Some(barrier) = self.barrier(source) {
            barrier.asked = false;
            barrier.told = Some((next, at));
        }
        self.let_go(now, source);
    }

    /// What is kept waiting needs to be known about, be it that the last answer was of too early a time.
    fn want_for_waiting(&mut self, now: UnixMillis, source: Source) {
        let first = self
            .barrier(source)
            .and_then(|barrier| barrier.waiting.first_key_value().map(|((due, ..), _)| *due));
        if let Some(due) = first {
            self.want(now, source, due);
        }
    }

    /// Records of an intake were let go, or it is known that there are none: fires what has waited for that.
    pub(super) fn let_go(&mut self, now: UnixMillis, source: Source) {
        if !self.is_open(source.lane) && self.try_gate(source.lane) {
            for topic in 0..self.barriers.len() {
                self.release_waiting(now, Source { topic: TopicId(topic as u16), ..source });
            }
        }
        self.release_waiting(now, source);
    }

    fn release_waiting(&mut self, now: UnixMillis, source: Source) {
        let first = self.hold(source).and_then(|hold| hold.first());
        let (settle, is_open) = (self.setup.limits.settle, self.is_open(source.lane));
        let Some(barrier) = self.barrier(source) else { return };
        if let Some((next, at)) = barrier.told
            && first.is_none_or(|first| first >= next)
        {
            barrier.told = None;
            barrier.passed = barrier.passed.max(at);
            // What is needed beyond that is asked for anew.
            self.wake(now);
            self.fire_waiting(source, settle, is_open);
            self.want_for_waiting(now, source);
        } else {
            self.fire_waiting(source, settle, is_open);
        }
    }

    fn fire_waiting(&mut self, source: Source, settle: Option<Millis>, is_open: bool) {
        let Some(barrier) = self.barrier(source) else { return };
        if !is_open || barrier.waiting.is_empty() {
            return;
        }
        let rest = match settle {
            None => BTreeMap::new(),
            Some(settle) => {
                let due = barrier.passed + settle + Millis(1);
                let key = (due, Order::default(), Source::default(), Offset::default());
                barrier.waiting.split_off(&key)
            }
        };
        let free = std::mem::replace(&mut barrier.waiting, rest);
        if !free.is_empty() {
            self.late.extend(free.into_values());
            // At the next tick.
            self.wake(UnixMillis(0));
        }
    }

    fn has_read_intakes(&self, lane: Lane) -> bool {
        let intakes = self.setup.topics.intakes.len();
        self.holds[..intakes]
            .iter()
            .all(|holds| holds[usize::from(lane.0)].as_ref().is_none_or(super::Hold::caught_up))
    }

    /// Opens the gate of a lane, if all that was to be known is.
    fn try_gate(&mut self, lane: Lane) -> bool {
        let at = usize::from(lane.0);
        let is_known = self.gates.get(at).is_some_and(|gate| gate.is_known);
        if is_known && self.has_read_intakes(lane) {
            self.gates[at].is_open = true;
        }
        self.gates[at].is_open
    }

    /// Lets records that wait hop once more, through the shortest tier: they would hold up what they wait for.
    pub(super) fn spill_waiting(&mut self, now: UnixMillis, mut which: impl FnMut(&Entry) -> bool) {
        for topic in 0..self.barriers.len() {
            for lane in 0..self.barriers[topic].len() {
                let waiting = &mut self.barriers[topic][lane].waiting;
                if waiting.is_empty() {
                    continue;
                }
                let all = std::mem::take(waiting);
                for (key, mut entry) in all {
                    if which(&entry) {
                        self.figures.spilled += 1;
                        // However long it takes, it is no fault of the record's.
                        entry.hops = entry.hops.saturating_sub(1);
                        self.hop(now, 0, entry);
                    } else {
                        self.barriers[topic][lane].waiting.insert(key, entry);
                    }
                }
            }
        }
    }

    /// How many wait.
    pub(super) fn gated(&self) -> usize {
        self.barriers.iter().flatten().map(|barrier| barrier.waiting.len()).sum()
    }
}
