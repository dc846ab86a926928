//! Cancels: recorded, remembered, met, forgotten; and what waits until it is known what was cancelled.
//!
//! # Invariants
//! 1. A cancel's offset is finished in the batch that carries it to `<ns>.timers`, and that of a cancelled record in the
//!    one that says that it was met.
//! 2. Whether a record is cancelled is asked when it is let go and again when it fires.
//! 3. A timer is forgotten only after its `until`, and while its lane is on time: in a lane that is late a record from
//!    before the cancel may still stand in a tier.

use super::super::header::Code;
use super::super::orders::{Because, Edit, Said, Send, To};
use super::super::timers::{Place, TimerKey, Void};
use super::super::verdict::{Entry, refusal};
use super::{Engine, Lane, Offset, Record, Source, UnixMillis};

/// Timers that one batch forgets, at most: it must not grow because an hour is over.
const FORGET_MAX: usize = 100;

impl Engine {
    /// Takes in what holds of a lane's timers; once it is all of it, shuts its gate if its intakes have something left to
    /// read.
    pub(super) fn known(&mut self, lane: Lane, voids: Vec<Void>, whole: bool) {
        let at = usize::from(lane.0);
        let runs = self.holds.first().and_then(|holds| holds.get(at)).is_some_and(Option::is_some);
        if !runs {
            return;
        }
        for void in voids {
            self.remembered.put(lane, void);
        }
        if whole {
            self.gates[at].is_open = self.has_read_intakes(lane);
        }
    }

    /// Everything that stood in a partition at the take-over was read.
    pub(super) fn passed(&mut self, now: UnixMillis, source: Source) {
        if let Some(hold) = self.hold(source) {
            hold.passed();
        }
        self.try_gate(now, source);
    }

    fn has_read_intakes(&self, lane: Lane) -> bool {
        let intakes = self.setup.topics.intakes.len();
        self.holds[..intakes]
            .iter()
            .all(|holds| holds[usize::from(lane.0)].as_ref().is_none_or(super::Hold::caught_up))
    }

    /// Opens the gate of a partition's lane, if all that was to be known is.
    pub(super) fn try_gate(&mut self, now: UnixMillis, source: Source) {
        let lane = source.lane;
        let is_shut = self.gates.get(usize::from(lane.0)).is_some_and(|gate| !gate.is_open);
        if !is_shut
            || self.setup.topics.tier_of(source.topic).is_some()
            || !self.has_read_intakes(lane)
        {
            return;
        }
        let gate = &mut self.gates[usize::from(lane.0)];
        gate.is_open = true;
        if !gate.waiting.is_empty() {
            self.late.append(&mut gate.waiting);
            self.wake(now);
        }
    }

    /// Gives an entry back that may go on, and keeps one that must wait until its lane's intakes are read.
    pub(super) fn let_through(&mut self, entry: Box<Entry>) -> Option<Box<Entry>> {
        let gate = &mut self.gates[usize::from(entry.source.lane.0)];
        if entry.timer.is_none() || gate.is_open {
            return Some(entry);
        }
        gate.waiting.push_back(entry);
        None
    }

    pub(super) fn is_cancelled(&self, entry: &Entry) -> bool {
        let named = entry.timer.map(|timer| (timer, entry.place()));
        named.is_some_and(|named| self.is_named_cancelled(entry.source.lane, named))
    }

    /// Whether a record of this timer and place is cancelled.
    pub(super) fn is_named_cancelled(&self, lane: Lane, (timer, place): (TimerKey, Place)) -> bool {
        self.remembered.find(lane, timer).is_some_and(|cancelled| cancelled.covers(place))
    }

    /// A cancel was let go by an intake of its lane.
    pub(super) fn cancel(&mut self, now: UnixMillis, entry: Entry) {
        let Some(timer) = entry.timer else { return };
        let limits = &self.setup.limits;
        let known = self.remembered.find(entry.source.lane, timer);
        if known.is_none() && self.remembered.len() >= limits.tracked_max {
            let detail = format!(
                "{} cancelled ids are remembered already; max-tracked allows no more",
                self.remembered.len()
            );
            return self.refuse(entry, refusal(Code::TooManyCancels, detail));
        }
        // Nothing from before it is due later than that; and be it late, there is some time to meet it.
        let until = (entry.first_appended + limits.max_delay).max(now) + limits.history;
        let cancelled = match known {
            // An older one that comes late: it was moved here, or is read again.
            Some(known) if entry.place() <= known.before => known,
            _ => Void { name: timer, before: entry.place(), until, met: false, several: false },
        };
        let Entry { source, offset, record, due, .. } = entry;
        self.write((source, offset), cancelled, Because::Recorded, record, due);
    }

    /// A cancelled record is kept from its target.
    pub(super) fn meet(&mut self, now: UnixMillis, entry: Entry) {
        let Entry { source, offset, record, due, timer: Some(timer), .. } = entry else { return };
        self.meet_record(now, (source, offset), timer, record, due);
    }

    /// The same, where only this is left of it.
    pub(super) fn meet_record(
        &mut self,
        now: UnixMillis,
        done: (Source, Offset),
        timer: TimerKey,
        record: Record,
        due: UnixMillis,
    ) {
        let Some(known) = self.remembered.find(done.0.lane, timer) else { return };
        // Another submit of it, by a producer that did not hear of the first, comes soon or never.
        let until = now + self.setup.limits.history;
        let met = Void { until, met: true, ..known };
        self.write(done, met, Because::Met, record, due);
    }

    fn write(
        &mut self,
        done: (Source, Offset),
        void: Void,
        because: Because,
        record: Record,
        due: UnixMillis,
    ) {
        let lane = done.0.lane;
        self.remembered.put(lane, void);
        let changed = timers_record(void.name, Some(&void.value()));
        let send = to_timers(lane, changed, because, record, due);
        self.ready.push_back((Some(done), send));
    }

    /// Forgets timers whose time is over.
    pub(super) fn forget(&mut self, now: UnixMillis) {
        if self.remembered.forget_at().is_none_or(|at| at > now) {
            return;
        }
        let on_time: Vec<bool> = (0..self.setup.lanes)
            .map(|lane| {
                let mut holds = self.holds.iter().map(|holds| &holds[usize::from(lane)]);
                holds.all(|hold| hold.as_ref().is_none_or(|hold| hold.on_time(now)))
            })
            .collect();
        let may = |lane: Lane| on_time[usize::from(lane.0)];
        for (lane, timer) in self.remembered.forget(now, FORGET_MAX, may) {
            let record = Record::empty();
            self.figures.memory_bytes += record.size();
            let send = to_timers(lane, timers_record(timer, None), Because::Forgotten, record, now);
            self.ready.push_back((None, send));
        }
    }

    /// Lets records that wait for their gate hop once more, through the shortest tier: they would hold up what opens it.
    pub(super) fn spill_waiting(&mut self, now: UnixMillis, mut which: impl FnMut(&Entry) -> bool) {
        for lane in 0..self.gates.len() {
            let waiting = std::mem::take(&mut self.gates[lane].waiting);
            for mut entry in waiting {
                if which(&entry) {
                    self.figures.spilled += 1;
                    // However long it takes, it is no fault of the record's.
                    entry.hops = entry.hops.saturating_sub(1);
                    self.hop(now, 0, entry);
                } else {
                    self.gates[lane].waiting.push_back(entry);
                }
            }
        }
    }
}

fn timers_record(timer: TimerKey, value: Option<&[u8]>) -> Record {
    Record::new(Some(&Void::key(timer)), value, std::iter::empty())
}

fn to_timers(
    lane: Lane,
    changed: Record,
    because: Because,
    record: Record,
    due: UnixMillis,
) -> Send {
    let edit = Edit::Timer(Box::new(Said { record: changed, because }));
    Send { to: To::Timers, partition: Some(i32::from(lane.0)), record, edit, due }
}
