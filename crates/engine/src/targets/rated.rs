//! Targets to which only so many records may go in a time: what is over that waits here, in memory as far as there is room.
//!
//! Each lane has an equal share of a rate and of its burst, and a bucket of its own. So nobody has to coordinate the lanes, wherever
//! they run.
//!
//! # Invariants
//! 1. A record goes on only with a token of its lane. A lane that was just taken over has none, so that brings no burst.
//! 2. Of one target, the records of a lane go on by due time as far as they wait in memory. What finds no room there is the last
//!    that is due.
//! 3. What waits in memory is bounded, in number and in bytes; but one of each lane and target always may. One target of one lane
//!    takes no more than the others leave free.
//! 4. What is put off is to come up at four times the rate of its lane: so often that hardly a token is lost while a backlog is worked
//!    off, and that each record hops about four times meanwhile, however many there are. Where that would take too long, it comes up
//!    after [`PUT_OFF_MAX`].
//! 5. What waits is gone with the lanes. The rates stay.

use std::collections::BTreeMap;
use std::num::NonZeroU16;
use std::sync::Arc;

use super::super::setup::Limits;
use super::super::task::bucket::{Bucket, Rate};
use super::super::task::registry::Registry;
use super::super::verdict::PendingRecord;
use super::super::{Lane, Millis, Offset, Source, UnixMillis};
use crate::state::SubmissionOrder;

/// Records that may wait.
const RECORDS_MAX: usize = 16_384;
/// The part of the memory budget that they may take.
const SHARE: usize = 8;
/// The shortest time for which a record is put off.
const PUT_OFF_MIN: Millis = Millis(1_000);
/// The longest one. A cancel mark is kept for twice as long: what was cancelled meanwhile is known to be so when it comes up.
const PUT_OFF_MAX: Millis = Millis(300_000);

/// No two records have the same: by due time, then by submission.
type Place = (UnixMillis, SubmissionOrder, Source, Offset);

fn place(entry: &PendingRecord) -> Place {
    (entry.due, entry.order, entry.source, entry.offset)
}

/// What goes to one target from one lane.
#[derive(Debug)]
struct Line {
    bucket: Bucket,
    #[allow(clippy::vec_box, reason = "an entry is boxed once and moved as a pointer ever after")]
    waiting: BTreeMap<Place, Box<PendingRecord>>,
    /// Bytes of what waits.
    bytes: usize,
    /// When the last of those comes up that were put off, in microseconds.
    up_at: u64,
}

impl Line {
    fn new(bucket: Bucket) -> Self {
        Self { bucket, waiting: BTreeMap::new(), bytes: 0, up_at: 0 }
    }

    /// For how long one more record is put off: until those are up that were put off before.
    fn put_off(&mut self, now: UnixMillis, per_1000_s: u64, lanes: NonZeroU16) -> Millis {
        let (now, most) = (now.0 * 1_000, PUT_OFF_MAX.0 * 1_000);
        // At four times the rate of the lane, in microseconds.
        let takes = 250_000_000 * u64::from(lanes.get()) / per_1000_s.max(1);
        self.up_at = (self.up_at.max(now) + takes).min(now + most);
        Millis((self.up_at - now) / 1_000).max(PUT_OFF_MIN)
    }
}

/// One target.
#[derive(Debug)]
struct State {
    rate: Rate,
    burst: u32,
    /// The bucket of a lane that has taken nothing yet, by burst: the first lanes may have one more.
    idle: [Bucket; 2],
    lanes: BTreeMap<Lane, Line>,
}

impl State {
    fn new(now: UnixMillis, rate: Rate, burst: u32, lanes: NonZeroU16) -> Self {
        let [less, more] = bursts(burst, lanes);
        let new = |burst| Bucket::new(rate.part_of(lanes.get()), burst, Millis(now.0));
        Self { rate, burst, idle: [new(less), new(more)], lanes: BTreeMap::new() }
    }

    /// The same of another rate or burst: tokens that are there stay.
    fn change(&mut self, now: UnixMillis, rate: Rate, burst: u32, lanes: NonZeroU16) {
        let sizes = bursts(burst, lanes);
        let part = rate.part_of(lanes.get());
        let moved = |bucket: &Bucket, burst| bucket.moved_to(part, burst, Millis(now.0));
        for (bucket, size) in self.idle.iter_mut().zip(sizes) {
            *bucket = moved(bucket, size);
        }
        for (lane, line) in &mut self.lanes {
            line.bucket = moved(&line.bucket, sizes[has_one_more(*lane, burst, lanes)]);
            // What was put off comes up as it was; what follows waits no longer than it must.
            line.up_at = 0;
        }
        (self.rate, self.burst) = (rate, burst);
    }

    fn line(&mut self, lane: Lane, lanes: NonZeroU16) -> &mut Line {
        let idle = self.idle[has_one_more(lane, self.burst, lanes)];
        self.lanes.entry(lane).or_insert_with(|| Line::new(idle))
    }
}

/// The shares of a burst: they add up to it, but each lane has one token at least, or nothing could ever go from there.
fn bursts(burst: u32, lanes: NonZeroU16) -> [u32; 2] {
    let share = burst / u32::from(lanes.get());
    [share.max(1), share + 1]
}

/// Which of the two shares a lane has.
fn has_one_more(lane: Lane, burst: u32, lanes: NonZeroU16) -> usize {
    usize::from(u32::from(lane.0) < burst % u32::from(lanes.get()))
}

/// What becomes of a record that could go on.
#[derive(Debug)]
pub(crate) enum Rationed {
    /// It goes on, and has taken a token.
    Go(Box<PendingRecord>),
    /// It waits in memory. These have to wait in a tier for so long, as they are due later, or find no room: it may be among them.
    Wait(Vec<(Box<PendingRecord>, Millis)>),
}

/// All targets that have a rate.
#[derive(Debug)]
pub(crate) struct Rated {
    by_name: BTreeMap<Arc<str>, State>,
    lanes: NonZeroU16,
    records: usize,
    bytes: usize,
    /// Records that were put off since the start.
    put_off: u64,
}

impl Rated {
    /// None, of an installation with so many lanes.
    pub(crate) fn new(lanes: u16) -> Self {
        let lanes = NonZeroU16::new(lanes).unwrap_or(NonZeroU16::MIN);
        Self { by_name: BTreeMap::new(), lanes, records: 0, bytes: 0, put_off: 0 }
    }

    /// Lanes are here from now on: what was held of those before is gone, and all buckets are empty.
    pub(crate) fn begin(&mut self, now: UnixMillis) {
        (self.records, self.bytes) = (0, 0);
        for state in self.by_name.values_mut() {
            *state = State::new(now, state.rate, state.burst, self.lanes);
        }
    }

    /// Takes in which targets have which rate now. Gives back what goes on by that: what waits for a target that has none any more.
    #[allow(clippy::vec_box, reason = "an entry is boxed once and moved as a pointer ever after")]
    pub(crate) fn set(&mut self, now: UnixMillis, registry: &Registry) -> Vec<Box<PendingRecord>> {
        let lanes = self.lanes;
        for (name, target) in registry.targets() {
            let Some((rate, burst)) = target.limit() else { continue };
            match self.by_name.get_mut(name) {
                Some(state) if (state.rate, state.burst) == (rate, burst) => {}
                Some(state) => state.change(now, rate, burst, lanes),
                None => {
                    self.by_name.insert(name.into(), State::new(now, rate, burst, lanes));
                }
            }
        }
        let is_free = |name: &str| registry.target(name).limit().is_none();
        let free = self.by_name.extract_if(.., |name, _| is_free(name));
        let free: Vec<_> = free
            .flat_map(|(_, state)| state.lanes.into_values())
            .flat_map(|line| line.waiting.into_values())
            .collect();
        free.iter().for_each(|entry| self.bytes -= entry.record.size());
        self.records -= free.len();
        free
    }

    /// Takes a token for a record; keeps it if there is none, or if others of its lane and target are due before it and wait.
    pub(crate) fn take(
        &mut self,
        now: UnixMillis,
        limits: &Limits,
        entry: Box<PendingRecord>,
    ) -> Rationed {
        let Self { by_name, lanes, records, bytes, .. } = self;
        let Some(state) = by_name.get_mut(&entry.target) else { return Rationed::Go(entry) };
        let per_1000_s = state.rate.whole_per_1000_s();
        let line = state.line(entry.source.lane, *lanes);
        let place = place(&entry);
        let is_first = line.waiting.first_key_value().is_none_or(|(first, _)| place < *first);
        if is_first && line.bucket.take(Millis(now.0)) {
            return Rationed::Go(entry);
        }
        let size = entry.record.size();
        (*records, *bytes, line.bytes) = (*records + 1, *bytes + size, line.bytes + size);
        line.waiting.insert(place, entry);
        let bytes_max = limits.memory_bytes / SHARE;
        let mut put_off = Vec::new();
        while line.waiting.len() > 1
            && (*records + line.waiting.len() > RECORDS_MAX || *bytes + line.bytes > bytes_max)
            && let Some((_, last)) = line.waiting.pop_last()
        {
            let size = last.record.size();
            (*records, *bytes, line.bytes) = (*records - 1, *bytes - size, line.bytes - size);
            put_off.push((last, line.put_off(now, per_1000_s, *lanes)));
        }
        Rationed::Wait(put_off)
    }

    /// Takes those out of memory for which there are tokens now. Each takes its token when it goes on, as one may have been cancelled.
    #[allow(clippy::vec_box, reason = "an entry is boxed once and moved as a pointer ever after")]
    pub(crate) fn take_free(&mut self, now: UnixMillis) -> Vec<Box<PendingRecord>> {
        let mut free: Vec<Box<PendingRecord>> = Vec::new();
        for line in self.by_name.values_mut().flat_map(|state| state.lanes.values_mut()) {
            let mut left = line.bucket;
            while !line.waiting.is_empty()
                && left.take(Millis(now.0))
                && let Some((_, entry)) = line.waiting.pop_first()
            {
                line.bytes -= entry.record.size();
                free.push(entry);
            }
        }
        self.records -= free.len();
        self.bytes -= free.iter().map(|entry| entry.record.size()).sum::<usize>();
        free
    }

    /// When [`take_free`](Self::take_free) has something to give.
    pub(crate) fn next_at(&self, now: UnixMillis) -> Option<UnixMillis> {
        let lines = self.by_name.values().flat_map(|state| state.lanes.values());
        let waiting = lines.filter(|line| !line.waiting.is_empty());
        waiting.map(|line| UnixMillis(line.bucket.next_at(Millis(now.0)).0)).min()
    }

    /// Takes those out of memory that `which` says, each with how long it is put off: the first due first, but by targets.
    pub(crate) fn take_where(
        &mut self,
        now: UnixMillis,
        mut which: impl FnMut(&PendingRecord) -> bool,
    ) -> Vec<(Box<PendingRecord>, Millis)> {
        let Self { by_name, lanes, records, bytes, .. } = self;
        let mut taken = Vec::new();
        for state in by_name.values_mut() {
            let per_1000_s = state.rate.whole_per_1000_s();
            for line in state.lanes.values_mut() {
                let of: Vec<_> = line.waiting.extract_if(.., |_, entry| which(entry)).collect();
                for (_, entry) in of {
                    let size = entry.record.size();
                    (*records, *bytes, line.bytes) =
                        (*records - 1, *bytes - size, line.bytes - size);
                    taken.push((entry, line.put_off(now, per_1000_s, *lanes)));
                }
            }
        }
        taken
    }

    /// A record waits in a tier.
    pub(crate) fn count_put_off(&mut self) {
        self.put_off += 1;
    }

    /// How many were put off since the start, and how many wait in memory.
    pub(crate) fn counts(&self) -> (u64, usize) {
        (self.put_off, self.records)
    }
}
