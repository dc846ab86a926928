//! What a thread remembers of its lanes' timers: those that are pending, and their cancel marks.
//!
//! # Invariants
//! 1. Looking one up touches one place in memory and allocates nothing. A pending timer takes 48 bytes and its part of a
//!    table's free places, one in the place of others 48 more; its target and label stand once, however many timers have them.
//! 2. Forgetting touches only what is to be forgotten: cancel marks stand in buckets by the time at which they may be.
//! 3. Nothing is forgotten before its `until`.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use super::super::{Lane, UnixMillis};
use super::{CancelMark, Live, Replaced, TimerId, Version, VersionBound};

/// Cancel marks are forgotten by buckets of this time.
const BUCKET_MS: u64 = 300_000;
/// Stands for no label.
const NONE: u32 = PUT_OFF - 1;
/// With the label: a record of it is in memory, or in a batch that is being filled. Elsewhere it stands in a topic.
const HERE: u32 = 1 << 31;
/// With the label: a search in the topics has not found its record yet.
const MISSING: u32 = 1 << 30;
/// With the label: of a task that is overdue, and waits until its project or service may be called.
const PUT_OFF: u32 = 1 << 29;
const LABEL: u32 = !(HERE | MISSING | PUT_OFF);

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
pub(crate) type ByName<V> = HashMap<TimerId, V, BuildHasherDefault<NameHasher>>;
/// A set of names.
pub(crate) type Names = std::collections::HashSet<TimerId, BuildHasherDefault<NameHasher>>;

/// A pending timer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pending {
    pub(crate) version: Version,
    pub(crate) due: UnixMillis,
    target: u32,
    label: u32,
}

/// A [`CancelMark`] without its timer.
#[derive(Clone, Copy, Debug)]
struct Kept {
    before: VersionBound,
    until: UnixMillis,
    seen: bool,
    may_repeat: bool,
    cancels: bool,
}

/// Timers by lane.
#[derive(Debug, Default)]
pub(crate) struct Remembered {
    live: Vec<ByName<Pending>>,
    live_len: usize,
    /// Of those that replaced others.
    replaced: Vec<ByName<Replaced>>,
    words: Words,
    cancel_marks: Vec<ByName<Kept>>,
    cancel_marks_len: usize,
    /// Cancel marks by the bucket at whose end they may be forgotten. One that is remembered for longer by now is in
    /// another bucket, too.
    buckets: BTreeMap<u64, Vec<(Lane, TimerId)>>,
}

impl Remembered {
    pub(crate) fn new(lanes: u16) -> Self {
        Self {
            live: (0..lanes).map(|_| ByName::default()).collect(),
            replaced: (0..lanes).map(|_| ByName::default()).collect(),
            cancel_marks: (0..lanes).map(|_| ByName::default()).collect(),
            ..Self::default()
        }
    }

    /// How many timers are pending.
    pub(crate) fn live_len(&self) -> usize {
        self.live_len
    }

    /// How many timers have a cancel mark.
    pub(crate) fn cancel_marks_len(&self) -> usize {
        self.cancel_marks_len
    }

    /// How many entries there are in all.
    pub(crate) fn len(&self) -> usize {
        self.live_len + self.cancel_marks_len
    }

    /// How many tasks of a project are pending. A timer whose label looks like that of such a task is counted, too: who may
    /// write timers may fill the table anyway.
    pub(crate) fn len_of(&self, project: &str) -> usize {
        self.words.projects.get(project).copied().unwrap_or_default()
    }

    /// The pending version of a timer.
    pub(crate) fn live(&self, lane: Lane, timer_id: TimerId) -> Option<Pending> {
        self.live.get(usize::from(lane.0))?.get(&timer_id).copied()
    }

    /// The versions that the pending one replaced.
    pub(crate) fn replaced(&self, lane: Lane, timer_id: TimerId) -> Option<Replaced> {
        self.replaced.get(usize::from(lane.0))?.get(&timer_id).copied()
    }

    /// Target and label of a pending version.
    pub(crate) fn words(&self, pending: Pending) -> (&str, Option<&str>) {
        let target = self.words.word(pending.target).unwrap_or_default();
        (target, self.words.word(pending.label & LABEL))
    }

    /// A record of the pending version of a timer is in memory, or has left it for a tier.
    pub(crate) fn set_here(&mut self, lane: Lane, timer_id: TimerId, is_here: bool) {
        let of_lane = self.live.get_mut(usize::from(lane.0));
        if let Some(pending) = of_lane.and_then(|of_lane| of_lane.get_mut(&timer_id)) {
            let rest = if is_here { LABEL | PUT_OFF } else { !HERE };
            pending.label = pending.label & rest | if is_here { HERE } else { 0 };
        }
    }

    /// A task waits until its project or service may be called, or no more. Says whether that was not so before.
    pub(crate) fn set_put_off(&mut self, lane: Lane, timer_id: TimerId, is_put_off: bool) -> bool {
        let of_lane = self.live.get_mut(usize::from(lane.0));
        let Some(pending) = of_lane.and_then(|of_lane| of_lane.get_mut(&timer_id)) else {
            return false;
        };
        let was = pending.label & PUT_OFF != 0;
        pending.label = pending.label & !PUT_OFF | if is_put_off { PUT_OFF } else { 0 };
        was != is_put_off
    }

    /// Whether this version is pending, and no record of it is in memory.
    pub(crate) fn is_absent(&self, lane: Lane, timer_id: TimerId, version: Version) -> bool {
        let live = self.live(lane, timer_id);
        live.is_some_and(|live| live.version == version && live.label & HERE == 0)
    }

    /// Every pending timer of a lane is missing from now on of which no record is in memory. How many these are.
    pub(crate) fn miss(&mut self, lane: Lane) -> usize {
        let Some(of_lane) = self.live.get_mut(usize::from(lane.0)) else { return 0 };
        let absent = of_lane.values_mut().filter(|pending| pending.label & HERE == 0);
        absent.map(|pending| pending.label |= MISSING).count()
    }

    /// A record of a timer was found: of this version, or nobody can say of which.
    pub(crate) fn found(&mut self, lane: Lane, timer_id: TimerId, version: Option<Version>) {
        let of_lane = self.live.get_mut(usize::from(lane.0));
        let Some(pending) = of_lane.and_then(|of_lane| of_lane.get_mut(&timer_id)) else { return };
        // Whatever the marks say: an older program did not write them, and those of an intake that was created again are others.
        let of = |version: Version| (version.first_appended, version.offset_in_log());
        if version.is_none_or(|version| of(version) == of(pending.version)) {
            pending.label &= !MISSING;
        }
    }

    /// Whether this version is pending, and no record of it was found since it is [missed](Self::miss), nor came.
    pub(crate) fn is_missing(&self, lane: Lane, timer_id: TimerId, version: Version) -> bool {
        let live = self.live(lane, timer_id);
        let is_missing = |live: Pending| live.label & (HERE | MISSING) == MISSING;
        live.is_some_and(|live| live.version == version && is_missing(live))
    }

    /// Sets the pending version of a timer, which is in nobody's place until that is said.
    pub(crate) fn put_live(
        &mut self,
        lane: Lane,
        timer_id: TimerId,
        (version, due): (Version, UnixMillis),
        (target, label): (&str, Option<&str>),
    ) {
        self.put_replaced(lane, timer_id, None);
        let Some(of_lane) = self.live.get_mut(usize::from(lane.0)) else { return };
        let target = self.words.take(target);
        let label = label.map_or(NONE, |label| self.words.take_label(label));
        match of_lane.insert(timer_id, Pending { version, due, target, label }) {
            Some(old) => self.words.give_back(old),
            None => self.live_len += 1,
        }
    }

    /// Sets in whose place the pending version of a timer was put.
    pub(crate) fn put_replaced(
        &mut self,
        lane: Lane,
        timer_id: TimerId,
        replaced: Option<Replaced>,
    ) {
        let Some(of_lane) = self.replaced.get_mut(usize::from(lane.0)) else { return };
        match replaced {
            Some(replaced) => drop(of_lane.insert(timer_id, replaced)),
            None => drop(of_lane.remove(&timer_id)),
        }
    }

    /// Takes in one that is pending by what is committed.
    pub(crate) fn know_live(&mut self, lane: Lane, live: &Live) {
        let words = (&*live.target, live.label.as_deref());
        self.put_live(lane, live.timer_id, (live.version, live.due), words);
        self.put_replaced(lane, live.timer_id, live.supersedes);
    }

    /// A timer is pending no more.
    pub(crate) fn end(&mut self, lane: Lane, timer_id: TimerId) {
        self.put_replaced(lane, timer_id, None);
        let of_lane = self.live.get_mut(usize::from(lane.0));
        if let Some(old) = of_lane.and_then(|of_lane| of_lane.remove(&timer_id)) {
            self.words.give_back(old);
            self.live_len -= 1;
        }
    }

    /// The cancel mark of a timer.
    pub(crate) fn cancel_mark(&self, lane: Lane, timer_id: TimerId) -> Option<CancelMark> {
        let kept = self.cancel_marks.get(usize::from(lane.0))?.get(&timer_id)?;
        let Kept { before, until, seen, may_repeat, cancels } = *kept;
        Some(CancelMark { timer_id, before, until, seen, may_repeat, cancels })
    }

    /// A mark that covers all versions before one, and what the mark that is there covers. Their records come up by then.
    pub(crate) fn mark_before(
        &self,
        (lane, timer_id): (Lane, TimerId),
        before: Version,
        until: UnixMillis,
    ) -> CancelMark {
        let old = self.cancel_mark(lane, timer_id);
        CancelMark {
            timer_id,
            before: old.map(|old| old.before).unwrap_or_default().or(before),
            until: old.map_or(until, |old| until.max(old.until)),
            seen: true,
            may_repeat: false,
            cancels: old.is_some_and(|old| old.cancels),
        }
    }

    /// Sets the cancel mark of a timer.
    pub(crate) fn put_cancel_mark(&mut self, lane: Lane, mark: CancelMark) {
        let Some(of_lane) = self.cancel_marks.get_mut(usize::from(lane.0)) else { return };
        let CancelMark { timer_id, before, until, seen, may_repeat, cancels } = mark;
        let old = of_lane.insert(timer_id, Kept { before, until, seen, may_repeat, cancels });
        self.cancel_marks_len += usize::from(old.is_none());
        let bucket = bucket_after(until);
        if old.is_none_or(|old| bucket_after(old.until) != bucket) {
            self.buckets.entry(bucket).or_default().push((lane, timer_id));
        }
    }

    /// When to look again for what may be forgotten.
    pub(crate) fn forget_at(&self) -> Option<UnixMillis> {
        self.buckets.keys().next().map(|bucket| UnixMillis(bucket.saturating_mul(BUCKET_MS)))
    }

    /// Forgets cancel marks of at most `most` timers whose time is over, of lanes that `may` forget; those of others are
    /// asked for again in some minutes.
    pub(crate) fn forget(
        &mut self,
        now: UnixMillis,
        most: usize,
        may: impl Fn(Lane) -> bool,
    ) -> Vec<(Lane, TimerId)> {
        let mut forgotten = Vec::new();
        let this = now.0 / BUCKET_MS;
        while forgotten.len() < most
            && let Some(mut first) = self.buckets.first_entry()
            && *first.key() <= this
        {
            let Some((lane, timer_id)) = first.get_mut().pop() else {
                first.remove();
                continue;
            };
            let Some(of_lane) = self.cancel_marks.get_mut(usize::from(lane.0)) else { continue };
            if of_lane.get(&timer_id).is_none_or(|kept| kept.until > now) {
                continue;
            }
            if may(lane) {
                of_lane.remove(&timer_id);
                self.cancel_marks_len -= 1;
                forgotten.push((lane, timer_id));
            } else {
                self.buckets.entry(this + 1).or_default().push((lane, timer_id));
            }
        }
        forgotten
    }
}

fn bucket_after(at: UnixMillis) -> u64 {
    at.0 / BUCKET_MS + 1
}

/// A target or a label.
#[derive(Debug)]
struct Word {
    text: Arc<str>,
    /// How many timers have it.
    count: usize,
    /// The project that it names, if it is the label of a task.
    project: Option<Arc<str>>,
}

/// Targets and labels, each once, by number; those that no timer has any more are dropped.
#[derive(Debug, Default)]
struct Words {
    numbers: HashMap<Arc<str>, u32>,
    words: Vec<Option<Word>>,
    free: Vec<u32>,
    /// How many timers have a label that names the project.
    projects: HashMap<Arc<str>, usize>,
    /// The word asked for last: mostly it is the next one, too.
    last: Option<u32>,
}

impl Words {
    fn word(&self, number: u32) -> Option<&str> {
        self.words.get(number as usize)?.as_ref().map(|word| &*word.text)
    }

    fn take_label(&mut self, label: &str) -> u32 {
        let number = self.take(label);
        if let Some(Some(Word { project: Some(project), .. })) = self.words.get(number as usize) {
            *self.projects.entry(Arc::clone(project)).or_default() += 1;
        }
        number
    }

    /// The number of a word, for one more timer.
    fn take(&mut self, word: &str) -> u32 {
        if let Some(last) = self.last
            && let Some(Some(known)) = self.words.get_mut(last as usize)
            && *known.text == *word
        {
            known.count += 1;
            return last;
        }
        let number = match self.numbers.get(word) {
            Some(&number) => {
                if let Some(Some(known)) = self.words.get_mut(number as usize) {
                    known.count += 1;
                }
                number
            }
            None => self.add(Arc::from(word)),
        };
        self.last = Some(number);
        number
    }

    fn add(&mut self, word: Arc<str>) -> u32 {
        let project = super::tasks::group_of(Some(&word)).map(|(project, _)| Arc::from(project));
        let kept = Some(Word { text: Arc::clone(&word), count: 1, project });
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
        for (number, is_label) in [(target, false), (label & LABEL, true)] {
            let Some(slot) = self.words.get_mut(number as usize) else { continue };
            let Some(word) = slot else { continue };
            word.count -= 1;
            if let Some(project) = word.project.as_ref().filter(|_| is_label)
                && let Some(count) = self.projects.get_mut(project)
            {
                *count -= 1;
                if *count == 0 {
                    self.projects.remove(project);
                }
            }
            if word.count == 0 {
                self.numbers.remove(&word.text);
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

    fn name(n: u8) -> TimerId {
        TimerId::new(None, &[n])
    }

    #[test]
    fn a_word_stands_once_and_is_dropped_with_the_last_timer_that_has_it() {
        let mut remembered = Remembered::new(1);
        let at = (Version::default(), NOW);
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
    fn the_tasks_of_a_project_are_counted_whatever_their_groups() {
        let mut remembered = Remembered::new(1);
        let at = (Version::default(), NOW);
        for n in 0..30 {
            let label = format!("{}/group {}", if n < 20 { "shop" } else { "home" }, n % 3);
            remembered.put_live(Lane(0), name(n), at, ("", Some(&label)));
            remembered.put_live(Lane(0), name(100 + n), at, ("orders", Some("shop")));
        }
        assert_eq!((remembered.len_of("shop"), remembered.len_of("home")), (20, 10));
        // Another version, of another group or of nobody.
        remembered.put_live(Lane(0), name(0), at, ("", Some("shop/group 9")));
        remembered.put_live(Lane(0), name(1), at, ("orders", None));
        assert_eq!(remembered.len_of("shop"), 19);
        for n in 0..30 {
            remembered.end(Lane(0), name(n));
        }
        assert_eq!((remembered.len_of("shop"), remembered.words.projects.len()), (0, 0));
    }

    #[test]
    fn a_void_is_forgotten_after_its_time_and_not_before_and_only_where_it_may_be() {
        let mut remembered = Remembered::new(2);
        let mark = |n, until| CancelMark {
            timer_id: name(n),
            before: VersionBound::default(),
            until,
            seen: false,
            may_repeat: false,
            cancels: false,
        };
        remembered.put_cancel_mark(Lane(0), mark(1, NOW + Millis(1)));
        remembered.put_cancel_mark(Lane(1), mark(2, NOW + Millis(1)));
        remembered.put_cancel_mark(Lane(0), mark(3, NOW + Millis(1)));
        // Remembered for longer by now.
        remembered.put_cancel_mark(Lane(0), mark(3, NOW + Millis(10 * BUCKET_MS)));
        let soon = NOW + Millis(BUCKET_MS + 1);
        assert_eq!(remembered.forget(NOW, 9, |_| true), []);
        assert!(remembered.forget_at().is_some_and(|at| at > NOW && at <= soon));
        assert_eq!(remembered.forget(soon, 9, |lane| lane == Lane(0)), [(Lane(0), name(1))]);
        assert_eq!(remembered.forget(soon, 9, |_| true), [], "asked for again in some minutes");
        let later = soon + Millis(BUCKET_MS);
        assert_eq!(remembered.forget(later, 9, |_| true), [(Lane(1), name(2))]);
        assert_eq!(remembered.cancel_marks_len(), 1);
    }
}
