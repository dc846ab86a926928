//! What a thread remembers of its lanes' timers: those that are pending, and which versions are void.
//!
//! # Invariants
//! 1. Looking one up touches one place in memory and allocates nothing. A pending timer takes 48 bytes and its part of a
//!    table's free places, one in the place of others 48 more; its target and label stand once, however many timers have them.
//! 2. Forgetting touches only what is to be forgotten: void versions stand in buckets by the time at which they may be.
//! 3. Nothing is forgotten before its `until`.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use super::super::{Lane, UnixMillis};
use super::{Before, Live, Place, Replaced, TimerKey, Void};

/// Void versions are forgotten by buckets of this time.
const BUCKET_MS: u64 = 300_000;
/// Stands for no label.
const NONE: u32 = MISSING - 1;
/// With the label: a record of it is in memory, or in a batch that is being filled. Elsewhere it stands in a topic.
const HERE: u32 = 1 << 31;
/// With the label: it is looked for in the topics, and was not found yet.
const MISSING: u32 = 1 << 30;
const LABEL: u32 = !(HERE | MISSING);

/// A name is a hash already: eight bytes of the part that stands for key and id are as good as a hash of it.
#[derive(Debug, Default)]
pub(crate) struct NameHasher(u64);

impl Hasher for NameHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        if let Some(last) = bytes.last_chunk() {
            self.0 = u64::from_ne_bytes(*last);
        }
    }

    fn write_usize(&mut self, _: usize) {}
}

/// A table by name.
pub(crate) type ByName<V> = HashMap<TimerKey, V, BuildHasherDefault<NameHasher>>;
/// A set of names.
pub(crate) type Names = std::collections::HashSet<TimerKey, BuildHasherDefault<NameHasher>>;

/// A pending timer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pending {
    pub(crate) version: Place,
    pub(crate) due: UnixMillis,
    target: u32,
    label: u32,
}

/// A [`Void`] without its timer.
#[derive(Clone, Copy, Debug)]
struct Kept {
    before: Before,
    until: UnixMillis,
    met: bool,
    several: bool,
    cancels: bool,
}

/// Timers by lane.
#[derive(Debug, Default)]
pub(crate) struct Remembered {
    live: Vec<ByName<Pending>>,
    live_len: usize,
    /// Of those that are pending in the place of others.
    replaced: Vec<ByName<Replaced>>,
    words: Words,
    voids: Vec<ByName<Kept>>,
    voids_len: usize,
    /// Void versions by the bucket at whose end they may be forgotten. One that is remembered for longer by now is in
    /// another bucket, too.
    buckets: BTreeMap<u64, Vec<(Lane, TimerKey)>>,
}

impl Remembered {
    pub(crate) fn new(lanes: u16) -> Self {
        Self {
            live: (0..lanes).map(|_| ByName::default()).collect(),
            replaced: (0..lanes).map(|_| ByName::default()).collect(),
            voids: (0..lanes).map(|_| ByName::default()).collect(),
            ..Self::default()
        }
    }

    /// How many timers are pending.
    pub(crate) fn live_len(&self) -> usize {
        self.live_len
    }

    /// How many timers have void versions.
    pub(crate) fn voids_len(&self) -> usize {
        self.voids_len
    }

    /// How many entries there are in all.
    pub(crate) fn len(&self) -> usize {
        self.live_len + self.voids_len
    }

    /// The pending version of a timer.
    pub(crate) fn live(&self, lane: Lane, name: TimerKey) -> Option<Pending> {
        self.live.get(usize::from(lane.0))?.get(&name).copied()
    }

    /// The versions in whose place the pending one was put.
    pub(crate) fn replaced(&self, lane: Lane, name: TimerKey) -> Option<Replaced> {
        self.replaced.get(usize::from(lane.0))?.get(&name).copied()
    }

    /// Target and label of a pending version.
    pub(crate) fn words(&self, pending: Pending) -> (&str, Option<&str>) {
        let target = self.words.word(pending.target).unwrap_or_default();
        (target, self.words.word(pending.label & LABEL))
    }

    /// A record of the pending version of a timer is in memory, or has left it for a tier.
    pub(crate) fn set_here(&mut self, lane: Lane, name: TimerKey, is_here: bool) {
        let of_lane = self.live.get_mut(usize::from(lane.0));
        if let Some(pending) = of_lane.and_then(|of_lane| of_lane.get_mut(&name)) {
            let rest = if is_here { LABEL } else { !HERE };
            pending.label = pending.label & rest | if is_here { HERE } else { 0 };
        }
    }

    /// Whether this version is pending, and no record of it is in memory.
    pub(crate) fn is_absent(&self, lane: Lane, name: TimerKey, version: Place) -> bool {
        let live = self.live(lane, name);
        live.is_some_and(|live| live.version == version && live.label & HERE == 0)
    }

    /// Every pending timer of a lane is missing from now on of which no record is in memory. How many these are.
    pub(crate) fn miss(&mut self, lane: Lane) -> usize {
        let Some(of_lane) = self.live.get_mut(usize::from(lane.0)) else { return 0 };
        let absent = of_lane.values_mut().filter(|pending| pending.label & HERE == 0);
        absent.map(|pending| pending.label |= MISSING).count()
    }

    /// A record of a timer was found: of this version, or nobody can say of which.
    pub(crate) fn found(&mut self, lane: Lane, name: TimerKey, version: Option<Place>) {
        let of_lane = self.live.get_mut(usize::from(lane.0));
        let Some(pending) = of_lane.and_then(|of_lane| of_lane.get_mut(&name)) else { return };
        // Whatever the marks say: an older program did not write them, and those of an intake that was made anew are others.
        let of = |place: Place| (place.first_appended, place.offset_in_log());
        if version.is_none_or(|version| of(version) == of(pending.version)) {
            pending.label &= !MISSING;
        }
    }

    /// Whether this version is pending, and no record of it was found since it is [missed](Self::miss), nor came.
    pub(crate) fn is_missing(&self, lane: Lane, name: TimerKey, version: Place) -> bool {
        let live = self.live(lane, name);
        let is_missing = |live: Pending| live.label & (HERE | MISSING) == MISSING;
        live.is_some_and(|live| live.version == version && is_missing(live))
    }

    /// Sets the pending version of a timer, which is in nobody's place until that is said.
    pub(crate) fn put_live(
        &mut self,
        lane: Lane,
        name: TimerKey,
        (version, due): (Place, UnixMillis),
        (target, label): (&str, Option<&str>),
    ) {
        self.put_replaced(lane, name, None);
        let Some(of_lane) = self.live.get_mut(usize::from(lane.0)) else { return };
        let target = self.words.take(target);
        let label = label.map_or(NONE, |label| self.words.take(label));
        match of_lane.insert(name, Pending { version, due, target, label }) {
            Some(old) => self.words.give_back(old),
            None => self.live_len += 1,
        }
    }

    /// Sets in whose place the pending version of a timer was put.
    pub(crate) fn put_replaced(&mut self, lane: Lane, name: TimerKey, replaced: Option<Replaced>) {
        let Some(of_lane) = self.replaced.get_mut(usize::from(lane.0)) else { return };
        match replaced {
            Some(replaced) => drop(of_lane.insert(name, replaced)),
            None => drop(of_lane.remove(&name)),
        }
    }

    /// Takes in one that is pending by what is committed.
    pub(crate) fn know_live(&mut self, lane: Lane, live: &Live) {
        let words = (&*live.target, live.label.as_deref());
        self.put_live(lane, live.name, (live.version, live.due), words);
        self.put_replaced(lane, live.name, live.supersedes);
    }

    /// A timer is pending no more.
    pub(crate) fn end(&mut self, lane: Lane, name: TimerKey) {
        self.put_replaced(lane, name, None);
        let of_lane = self.live.get_mut(usize::from(lane.0));
        if let Some(old) = of_lane.and_then(|of_lane| of_lane.remove(&name)) {
            self.words.give_back(old);
            self.live_len -= 1;
        }
    }

    /// Which versions of a timer are void.
    pub(crate) fn void(&self, lane: Lane, name: TimerKey) -> Option<Void> {
        let kept = self.voids.get(usize::from(lane.0))?.get(&name)?;
        let Kept { before, until, met, several, cancels } = *kept;
        Some(Void { name, before, until, met, several, cancels })
    }

    /// Sets which versions of a timer are void.
    pub(crate) fn put_void(&mut self, lane: Lane, void: Void) {
        let Some(of_lane) = self.voids.get_mut(usize::from(lane.0)) else { return };
        let Void { name, before, until, met, several, cancels } = void;
        let old = of_lane.insert(name, Kept { before, until, met, several, cancels });
        self.voids_len += usize::from(old.is_none());
        let bucket = bucket_after(until);
        if old.is_none_or(|old| bucket_after(old.until) != bucket) {
            self.buckets.entry(bucket).or_default().push((lane, name));
        }
    }

    /// When to look again for what may be forgotten.
    pub(crate) fn forget_at(&self) -> Option<UnixMillis> {
        self.buckets.keys().next().map(|bucket| UnixMillis(bucket.saturating_mul(BUCKET_MS)))
    }

    /// Forgets void versions of at most `most` timers whose time is over, of lanes that `may` forget; those of others are
    /// asked for again in some minutes.
    pub(crate) fn forget(
        &mut self,
        now: UnixMillis,
        most: usize,
        may: impl Fn(Lane) -> bool,
    ) -> Vec<(Lane, TimerKey)> {
        let mut forgotten = Vec::new();
        let this = now.0 / BUCKET_MS;
        while forgotten.len() < most
            && let Some(mut first) = self.buckets.first_entry()
            && *first.key() <= this
        {
            let Some((lane, name)) = first.get_mut().pop() else {
                first.remove();
                continue;
            };
            let Some(of_lane) = self.voids.get_mut(usize::from(lane.0)) else { continue };
            if of_lane.get(&name).is_none_or(|kept| kept.until > now) {
                continue;
            }
            if may(lane) {
                of_lane.remove(&name);
                self.voids_len -= 1;
                forgotten.push((lane, name));
            } else {
                self.buckets.entry(this + 1).or_default().push((lane, name));
            }
        }
        forgotten
    }
}

fn bucket_after(at: UnixMillis) -> u64 {
    at.0 / BUCKET_MS + 1
}

/// Targets and labels, each once, by number; those that no timer has any more are dropped.
#[derive(Debug, Default)]
struct Words {
    numbers: HashMap<Arc<str>, u32>,
    words: Vec<Option<(Arc<str>, usize)>>,
    free: Vec<u32>,
    /// The word asked for last: mostly it is the next one, too.
    last: Option<u32>,
}

impl Words {
    fn word(&self, number: u32) -> Option<&str> {
        self.words.get(number as usize)?.as_ref().map(|(word, _)| &**word)
    }

    /// The number of a word, for one more timer.
    fn take(&mut self, word: &str) -> u32 {
        if let Some(last) = self.last
            && let Some(Some((known, count))) = self.words.get_mut(last as usize)
            && **known == *word
        {
            *count += 1;
            return last;
        }
        let number = match self.numbers.get(word) {
            Some(&number) => {
                if let Some(Some((_, count))) = self.words.get_mut(number as usize) {
                    *count += 1;
                }
                number
            }
            None => self.add(Arc::from(word)),
        };
        self.last = Some(number);
        number
    }

    fn add(&mut self, word: Arc<str>) -> u32 {
        let kept = Some((Arc::clone(&word), 1));
        let number = match self.free.pop() {
            Some(number) => {
                self.words[number as usize] = kept;
                number
            }
            None => {
                self.words.push(kept);
                (self.words.len() - 1) as u32
            }
        };
        self.numbers.insert(word, number);
        number
    }

    fn give_back(&mut self, Pending { target, label, .. }: Pending) {
        for number in [target, label & LABEL] {
            let Some(slot) = self.words.get_mut(number as usize) else { continue };
            let Some((word, count)) = slot else { continue };
            *count -= 1;
            if *count == 0 {
                self.numbers.remove(word);
                *slot = None;
                self.free.push(number);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Millis;

    const NOW: UnixMillis = UnixMillis(1_800_000_000_000);

    fn name(n: u8) -> TimerKey {
        TimerKey::new(None, &[n])
    }

    #[test]
    fn a_word_stands_once_and_is_dropped_with_the_last_timer_that_has_it() {
        let mut remembered = Remembered::new(1);
        let at = (Place::default(), NOW);
        for n in 0..100 {
            let label = format!("label {}", n % 2);
            remembered.put_live(Lane(0), name(n), at, ("orders", Some(&label)));
        }
        assert_eq!((remembered.live_len(), remembered.words.numbers.len()), (100, 3));
        let pending = remembered.live(Lane(0), name(7)).expect("it is pending");
        assert_eq!(remembered.words(pending), ("orders", Some("label 1")));
        // Another version of one: its words are given back once.
        remembered.put_live(Lane(0), name(7), at, ("bills", None));
        let pending = remembered.live(Lane(0), name(7)).expect("it is pending");
        assert_eq!(remembered.words(pending), ("bills", None));
        for n in 0..100 {
            remembered.end(Lane(0), name(n));
            remembered.end(Lane(0), name(n));
        }
        assert_eq!((remembered.live_len(), remembered.words.numbers.len()), (0, 0));
        remembered.put_live(Lane(0), name(7), at, ("orders", None));
        assert_eq!(remembered.words.words.len(), 4, "places are used again");
    }

    #[test]
    fn a_void_is_forgotten_after_its_time_and_not_before_and_only_where_it_may_be() {
        let mut remembered = Remembered::new(2);
        let void = |n, until| Void {
            name: name(n),
            before: Before::default(),
            until,
            met: false,
            several: false,
            cancels: false,
        };
        remembered.put_void(Lane(0), void(1, NOW + Millis(1)));
        remembered.put_void(Lane(1), void(2, NOW + Millis(1)));
        remembered.put_void(Lane(0), void(3, NOW + Millis(1)));
        // Remembered for longer by now.
        remembered.put_void(Lane(0), void(3, NOW + Millis(10 * BUCKET_MS)));
        let soon = NOW + Millis(BUCKET_MS + 1);
        assert_eq!(remembered.forget(NOW, 9, |_| true), []);
        assert!(remembered.forget_at().is_some_and(|at| at > NOW && at <= soon));
        assert_eq!(remembered.forget(soon, 9, |lane| lane == Lane(0)), [(Lane(0), name(1))]);
        assert_eq!(remembered.forget(soon, 9, |_| true), [], "asked for again in some minutes");
        let later = soon + Millis(BUCKET_MS);
        assert_eq!(remembered.forget(later, 9, |_| true), [(Lane(1), name(2))]);
        assert_eq!(remembered.voids_len(), 1);
    }
}
