//! Finds the record, or the target, that Kafka refuses: suspects leave in batches of their own, which are halved.
//!
//! A refusal fails a whole batch, and what Kafka names of it is more than the culprit: a broker refuses all that came
//! in one request, and in a transaction often nobody is named. See docs/adr/0004-failed-batch.md.
//!
//! # Invariants
//! 1. Nothing is found to be poison that was not refused alone: a record as the only one of its batch, a target as the only
//!    destination of one.
//! 2. A group that fails leaves groups of half its size: `k` culprits among `n` cost at most `k * (log2(n) + 2)`
//!    failed batches. A group that is acknowledged is cleared.
//! 3. Suspicions outlive the take-over that follows a failure, but not the process: after a crash they start again. So does
//!    what is known of records that were acknowledged while their batch failed (`at_least_once`).

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::hash::Hash;
use std::sync::Arc;

use super::super::messages::{Blame, Carried, Refused};
use super::{Destination, Millis, Offset, Source, UnixMillis};

/// How often the same records may fail for a reason that is not clear before they are suspects.
const STRIKES: u8 = 3;
/// Names of targets that Kafka refused, at most; beyond it the old ones are forgotten.
const BLOCKED_TARGETS_MAX: usize = 4_096;
/// Records that are delivered though their batch failed: beyond it, and what was in flight, the old ones are forgotten.
const DELIVERED_MAX: usize = 1 << 16;

/// Whom a refusal may be due to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Suspect {
    Record(Source, Offset),
    Target(Arc<str>),
}

impl Suspect {
    /// Whom a refusal of this kind puts under suspicion for one send. Never a dead letter, which has nowhere else to
    /// go; and a topic of our own is no reason to give a record up.
    fn of(blame: Blame, carried: &Carried) -> Option<Self> {
        let Carried { source, offset, to } = carried;
        match (blame, to) {
            (Blame::Late | Blame::Expired, _)
            | (
                _,
                Destination::Dead
                | Destination::Timers
                | Destination::Tasks
                | Destination::Submitted
                | Destination::Results,
            )
            | (Blame::Target | Blame::Unclear, Destination::Lane(_)) => None,
            (Blame::Target, Destination::Target(name)) => Some(Self::Target(Arc::clone(name))),
            (Blame::Record | Blame::Unclear, Destination::Target(_))
            | (Blame::Record, Destination::Lane(_)) => Some(Self::Record(*source, *offset)),
        }
    }
}

/// Suspects, what is held of them, and what was found out. `T` is a record to produce.
#[derive(Debug)]
pub(super) struct Suspects<T> {
    /// The group of each suspect; a group of a lower number is tested first.
    groups: HashMap<Suspect, u64>,
    next_group: u64,
    /// Sends of suspects, which wait for the test of their group.
    held: BTreeMap<u64, VecDeque<T>>,
    /// Records that Kafka refused alone, with its words.
    poison: HashMap<(Source, Offset), Arc<str>>,
    /// Targets that Kafka refused alone, since when, and with what words.
    blocked_targets: HashMap<Arc<str>, (UnixMillis, Arc<str>)>,
    strikes: HashMap<(Source, Offset), u8>,
    /// Records that are in their target, though their batch failed.
    delivered: HashSet<(Source, Offset)>,
    /// Groups that failed and were halved.
    pub(super) halvings: u64,
}

impl<T> Default for Suspects<T> {
    fn default() -> Self {
        Self {
            groups: HashMap::new(),
            next_group: 0,
            held: BTreeMap::new(),
            poison: HashMap::new(),
            blocked_targets: HashMap::new(),
            strikes: HashMap::new(),
            delivered: HashSet::new(),
            halvings: 0,
        }
    }
}

impl<T> Suspects<T> {
    /// The group that a send has to be tested with; `None`: it is under no suspicion.
    pub(super) fn group(&self, source: Source, offset: Offset, to: &Destination) -> Option<u64> {
        if self.groups.is_empty() {
            return None;
        }
        let target = match to {
            Destination::Dead
            | Destination::Timers
            | Destination::Tasks
            | Destination::Submitted
            | Destination::Results => return None,
            Destination::Target(name) => {
                self.groups.get(&Suspect::Target(Arc::clone(name))).copied()
            }
            Destination::Lane(_) => None,
        };
        target.or_else(|| self.groups.get(&Suspect::Record(source, offset)).copied())
    }

    /// Keeps a send of this group until the group is tested.
    pub(super) fn hold(&mut self, group: u64, send: T) {
        self.held.entry(group).or_default().push_back(send);
    }

    /// All that is held.
    pub(super) fn held(&self) -> impl Iterator<Item = &T> {
        self.held.values().flatten()
    }

    /// The same with their groups, those that are tested first first.
    pub(super) fn held_by_group(&self) -> impl Iterator<Item = (u64, &T)> {
        self.held.iter().flat_map(|(group, sends)| sends.iter().map(|send| (*group, send)))
    }

    /// Takes the first send of a group that may be taken.
    pub(super) fn take_where(&mut self, group: u64, may: impl Fn(&T) -> bool) -> Option<T> {
        let sends = self.held.get_mut(&group)?;
        let at = sends.iter().position(may)?;
        let send = sends.remove(at);
        if sends.is_empty() {
            self.held.remove(&group);
        }
        send
    }

    /// The group to test next, of those of which something is here.
    pub(super) fn next(&self) -> Option<u64> {
        self.held.keys().next().copied()
    }

    /// How many are under suspicion.
    pub(super) fn len(&self) -> usize {
        self.groups.len()
    }

    /// What Kafka said of a record when it stood alone.
    pub(super) fn verdict(&self, source: Source, offset: Offset) -> Option<Arc<str>> {
        if self.poison.is_empty() {
            return None;
        }
        self.poison.get(&(source, offset)).cloned()
    }

    /// What Kafka said of a target when it stood alone. Once that is older than `fresh`, the next that is due for the
    /// target is tried by itself: the target is a suspect again.
    pub(super) fn blocked(
        &mut self,
        now: UnixMillis,
        fresh: Millis,
        target: &Arc<str>,
    ) -> Option<Arc<str>> {
        let (since, why) = self.blocked_targets.get(target)?;
        if now - *since <= fresh {
            return Some(Arc::clone(why));
        }
        self.blocked_targets.remove(target);
        self.suspect(vec![Suspect::Target(Arc::clone(target))]);
        None
    }

    /// These sends are acknowledged, and their batch has failed.
    pub(super) fn delivered<'a>(&mut self, sends: impl Iterator<Item = &'a Carried>) {
        if self.delivered.len() >= DELIVERED_MAX {
            self.delivered.clear();
        }
        let to_targets = sends.filter(|carried| matches!(carried.to, Destination::Target(_)));
        self.delivered.extend(to_targets.map(|carried| (carried.source, carried.offset)));
    }

    /// Whether a record is in its target for certain, though its batch failed.
    pub(super) fn is_delivered(&self, source: Source, offset: Offset) -> bool {
        !self.delivered.is_empty() && self.delivered.contains(&(source, offset))
    }

    /// A batch failed, and Kafka blames something in it: those named, or with no names any of it. `by_itself`: no other
    /// batch was on its way, of which something may have gone in one request with this one.
    pub(super) fn refused(
        &mut self,
        now: UnixMillis,
        batch: &[Carried],
        by_itself: bool,
        Refused { named, blame, why, .. }: &Refused,
    ) {
        let blame = *blame;
        let tested = batch.iter().any(|c| self.group(c.source, c.offset, &c.to).is_some());
        let all = named.is_empty();
        let blamed: Vec<&Carried> = if all {
            batch.iter().collect()
        } else {
            named.iter().filter_map(|at| batch.get(*at)).collect()
        };
        let mut suspects = Vec::new();
        let mut met = HashSet::new();
        for carried in blamed {
            let Some(suspect) = Suspect::of(blame, carried) else { continue };
            if blame == Blame::Unclear && !tested && !self.struck(carried) {
                continue;
            }
            if met.insert(suspect.clone()) {
                suspects.push(suspect);
            }
        }
        if suspects.is_empty() {
            return;
        }
        // A record that was tested and is not among them is no suspect any more.
        self.clear(batch);
        let alone = match &suspects[..] {
            [one] => {
                by_itself
                    && batch
                        .iter()
                        // A timer change and a follow-up go with a record. Kafka refuses them only for good.
                        .filter(|carried| {
                            !matches!(
                                carried.to,
                                Destination::Timers | Destination::Submitted | Destination::Results
                            )
                        })
                        .all(|carried| Suspect::of(blame, carried).as_ref() == Some(one))
            }
            _ => false,
        };
        if alone {
            match suspects.remove(0) {
                Suspect::Record(source, offset) => {
                    self.poison.insert((source, offset), Arc::clone(why));
                }
                Suspect::Target(name) => {
                    if self.blocked_targets.len() >= BLOCKED_TARGETS_MAX {
                        self.blocked_targets.clear();
                    }
                    self.blocked_targets.insert(name, (now, Arc::clone(why)));
                }
            }
            return;
        }
        if suspects.len() > 1 {
            self.halvings += 1;
            let second = suspects.split_off(suspects.len().div_ceil(2));
            self.suspect(suspects);
            self.suspect(second);
        } else {
            self.suspect(suspects);
        }
    }

    /// Counts a failure that may be this record's; says whether it was one too many.
    fn struck(&mut self, carried: &Carried) -> bool {
        let strikes = self.strikes.entry((carried.source, carried.offset)).or_default();
        *strikes = strikes.saturating_add(1);
        *strikes >= STRIKES
    }

    fn suspect(&mut self, group: Vec<Suspect>) {
        let number = self.next_group;
        self.next_group += 1;
        self.groups.extend(group.into_iter().map(|suspect| (suspect, number)));
    }

    /// A batch is acknowledged: nobody in it is to blame for anything. What was found to be poison stays so until its offset is
    /// committed: in `at_least_once` that comes later, and its dead letter may have to be written again. The same holds for
    /// what is delivered.
    pub(super) fn acknowledged(&mut self, batch: &[Carried]) {
        self.clear(batch);
        if self.strikes.is_empty() {
            return;
        }
        for Carried { source, offset, .. } in batch {
            self.strikes.remove(&(*source, *offset));
        }
    }

    fn clear(&mut self, batch: &[Carried]) {
        if self.groups.is_empty() {
            return;
        }
        for Carried { source, offset, to } in batch {
            self.groups.remove(&Suspect::Record(*source, *offset));
            if let Destination::Target(name) = to {
                self.groups.remove(&Suspect::Target(Arc::clone(name)));
            }
        }
    }

    /// Nothing goes to this target any more, so that nothing is to be tested.
    pub(super) fn clear_target(&mut self, target: &Arc<str>) {
        if !self.groups.is_empty() {
            self.groups.remove(&Suspect::Target(Arc::clone(target)));
        }
    }

    /// The lanes are gone, with all that was held of them.
    pub(super) fn release(&mut self) {
        self.held.clear();
    }

    /// Forgets records that are committed as done, and those of lanes that are another's now.
    pub(super) fn keep(&mut self, pending: impl Fn(Source, Offset) -> bool) {
        self.groups.retain(|suspect, _| match suspect {
            Suspect::Record(source, offset) => pending(*source, *offset),
            Suspect::Target(_) => true,
        });
        self.poison.retain(|(source, offset), _| pending(*source, *offset));
        self.strikes.retain(|(source, offset), _| pending(*source, *offset));
        self.delivered.retain(|(source, offset)| pending(*source, *offset));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{BatchId, Lane, TopicId};

    const NOW: UnixMillis = UnixMillis(1_800_000_000_000);

    fn place(n: usize) -> (Source, Offset) {
        (Source { topic: TopicId(0), lane: Lane(0) }, Offset(n as i64))
    }

    fn carried(n: usize, target: &str) -> Carried {
        let (source, offset) = place(n);
        Carried { source, offset, to: Destination::Target(target.into()) }
    }

    fn no(blame: Blame, named: &[usize]) -> Refused {
        Refused { batch: BatchId(0), named: named.to_vec(), blame, why: "no".into() }
    }

    /// What Kafka says of a failed batch.
    #[derive(Clone, Copy, Debug)]
    enum Reported {
        /// Only the culprits.
        Culprits,
        /// All that went in one request with a culprit: records of the same number modulo this.
        Requests(usize),
        Nobody,
    }

    /// Sends `n` records until all are delivered or found to be poison, as the engine does: those without suspicion
    /// together, groups by themselves, all read again after a failure. Returns who was found to be poison, and the failures.
    fn play(
        n: usize,
        poison: &[usize],
        blame: Blame,
        reported: Reported,
        test_max: usize,
    ) -> (Vec<usize>, usize) {
        let mut suspects: Suspects<usize> = Suspects::default();
        let (mut culprits, mut failed) = (Vec::new(), 0);
        let mut pending: Vec<usize> = (0..n).collect();
        while !pending.is_empty() {
            // A take-over: all that is pending is read again.
            suspects.release();
            pending.retain(|&at| {
                let (source, offset) = place(at);
                let found = suspects.verdict(source, offset).is_some();
                if found {
                    culprits.push(at);
                }
                !found
            });
            let mut open = Vec::new();
            for &at in &pending {
                let Carried { source, offset, to } = carried(at, "t");
                match suspects.group(source, offset, &to) {
                    Some(group) => suspects.hold(group, at),
                    None => open.push(at),
                }
            }
            loop {
                let mut batch = std::mem::take(&mut open);
                if batch.is_empty() {
                    let Some(group) = suspects.next() else { break };
                    while batch.len() < test_max
                        && let Some(at) = suspects.take_where(group, |_| true)
                    {
                        batch.push(at);
                    }
                }
                let sends: Vec<Carried> = batch.iter().map(|at| carried(*at, "t")).collect();
                let bad: Vec<usize> =
                    batch.iter().copied().filter(|at| poison.contains(at)).collect();
                if bad.is_empty() {
                    suspects.acknowledged(&sends);
                    pending.retain(|at| !batch.contains(at));
                    continue;
                }
                failed += 1;
                let named: Vec<usize> = (0..batch.len())
                    .filter(|i| match reported {
                        Reported::Culprits => bad.contains(&batch[*i]),
                        Reported::Requests(by) => bad.iter().any(|at| at % by == batch[*i] % by),
                        Reported::Nobody => false,
                    })
                    .collect();
                suspects.refused(NOW, &sends, true, &no(blame, &named));
                break;
            }
            assert!(failed < 10_000, "no end");
        }
        culprits.sort_unstable();
        (culprits, failed)
    }

    proptest! {
        #[test]
        fn every_culprit_is_found_and_nobody_else_and_failures_grow_with_the_logarithm(
            n in 1_usize..400,
            seeds in proptest::collection::btree_set(any::<usize>(), 0..5),
            reported in prop_oneof![
                Just(Reported::Culprits),
                (1_usize..6).prop_map(Reported::Requests),
                Just(Reported::Nobody),
            ],
            unclear in any::<bool>(),
            test_max in 1_usize..500,
        ) {
            let mut poison: Vec<usize> = seeds.iter().map(|seed| seed % n).collect();
            poison.sort_unstable();
            poison.dedup();
            let blame = if unclear { Blame::Unclear } else { Blame::Record };
            let (found, failed) = play(n, &poison, blame, reported, test_max);
            prop_assert_eq!(&found, &poison);
            let logarithm = n.next_power_of_two().ilog2() as usize;
            let strikes = if unclear { usize::from(STRIKES) - 1 } else { 0 };
            let most = poison.len() * (logarithm + 2 + strikes);
            prop_assert!(failed <= most, "{} culprits among {}: {} failures, {} at most", poison.len(), n, failed, most);
        }
    }

    #[test]
    fn a_refusal_blames_what_it_can_be_due_to_and_nothing_else() {
        let (source, offset) = place(1);
        let record = Some(Suspect::Record(source, offset));
        let target = Some(Suspect::Target("t".into()));
        #[rustfmt::skip]
        let table = [
            (Blame::Record,  Destination::Target("t".into()), record.clone(), "the record, wherever it was going"),
            (Blame::Record,  Destination::Lane(TopicId(1)),   record.clone(), "too large for a tier is too large"),
            (Blame::Record,  Destination::Dead,               None,           "a dead letter has nowhere else to go"),
            (Blame::Target,  Destination::Target("t".into()), target,         "what holds for all of its records"),
            (Blame::Target,  Destination::Lane(TopicId(1)),   None,           "our own topic's rights are the operator's to mend"),
            (Blame::Target,  Destination::Dead,               None,           "and so here"),
            (Blame::Unclear, Destination::Target("t".into()), record,         "after three times"),
            (Blame::Unclear, Destination::Lane(TopicId(1)),   None,           "a topic of ours that is gone is no fault of a record"),
            (Blame::Unclear, Destination::Dead,               None,           "and so here"),
        ];
        for (blame, to, want, why) in table {
            let of = Suspect::of(blame, &Carried { source, offset, to: to.clone() });
            assert_eq!(of, want, "{blame:?} {to:?}: {why}");
        }
    }

    #[test]
    fn a_denied_target_is_remembered_for_a_while_and_then_tried_by_itself() {
        let fresh = Millis(30_000);
        let mut suspects: Suspects<usize> = Suspects::default();
        let (one, two): (Arc<str>, Arc<str>) = ("one".into(), "two".into());
        let both = [carried(1, "one"), carried(2, "two"), carried(3, "one")];
        suspects.refused(NOW, &both, true, &no(Blame::Target, &[]));
        assert_eq!(suspects.blocked(NOW, fresh, &one), None, "either may be it");
        let groups = both.each_ref().map(|c| suspects.group(c.source, c.offset, &c.to));
        assert!(groups[0].is_some() && groups[0] == groups[2] && groups[0] != groups[1]);

        suspects.refused(NOW, &both[..1], true, &no(Blame::Target, &[]));
        assert_eq!(suspects.blocked(NOW + fresh, fresh, &one).as_deref(), Some("no"));
        suspects.acknowledged(&both[1..2]);
        assert_eq!(suspects.len(), 0);
        assert_eq!(suspects.blocked(NOW, fresh, &two), None);

        let later = NOW + fresh + Millis(1);
        assert_eq!(suspects.blocked(later, fresh, &one), None, "asked again");
        let Carried { source, offset, to } = carried(9, "one");
        assert!(suspects.group(source, offset, &to).is_some(), "in a batch of its own");
        suspects.acknowledged(&[carried(9, "one")]);
        assert_eq!(suspects.group(source, offset, &to), None, "allowed by now");
    }

    #[test]
    fn what_a_failure_may_be_due_to_is_suspected_only_after_three_of_them() {
        let mut suspects: Suspects<usize> = Suspects::default();
        let two = [carried(1, "t"), carried(2, "t")];
        for _ in 0..2 {
            suspects.refused(NOW, &two, true, &no(Blame::Unclear, &[]));
            assert_eq!(suspects.len(), 0);
        }
        // One that went through in between starts again.
        suspects.acknowledged(&two[1..]);
        suspects.refused(NOW, &two, true, &no(Blame::Unclear, &[]));
        assert_eq!(suspects.len(), 1);
    }

    #[test]
    fn who_was_refused_beside_another_batch_was_not_alone() {
        let mut suspects: Suspects<usize> = Suspects::default();
        let one = [carried(1, "t")];
        let (source, offset) = place(1);
        suspects.refused(NOW, &one, false, &no(Blame::Record, &[0]));
        assert_eq!(suspects.verdict(source, offset), None);
        assert!(suspects.group(source, offset, &one[0].to).is_some());
        suspects.refused(NOW, &one, true, &no(Blame::Record, &[0]));
        assert_eq!(suspects.verdict(source, offset).as_deref(), Some("no"));
    }

    #[test]
    fn what_is_poison_stays_so_until_the_offset_is_committed() {
        let mut suspects: Suspects<usize> = Suspects::default();
        let one = [carried(1, "t")];
        let (source, offset) = place(1);
        suspects.refused(NOW, &one, true, &no(Blame::Record, &[0]));
        // Its dead letter is acknowledged, and the batch after it fails before the offset is committed.
        suspects.acknowledged(&[Carried { source, offset, to: Destination::Dead }]);
        suspects.keep(|_, at| at >= offset);
        assert!(suspects.verdict(source, offset).is_some());
        suspects.keep(|_, at| at > offset);
        assert!(suspects.verdict(source, offset).is_none());
    }

    #[test]
    fn what_is_delivered_is_remembered_until_its_offset_is_committed_and_within_a_bound() {
        let mut suspects: Suspects<usize> = Suspects::default();
        let is_known =
            |suspects: &Suspects<usize>, n| suspects.is_delivered(place(n).0, place(n).1);
        let (source, offset) = place(2);
        let dead = Carried { source, offset, to: Destination::Dead };
        suspects.delivered([carried(1, "t"), dead].iter());
        assert!(is_known(&suspects, 1) && !is_known(&suspects, 2), "deliveries only");
        // It is sent again, and acknowledged; its offset is not committed yet.
        suspects.acknowledged(&[carried(1, "t")]);
        suspects.keep(|_, at| at >= place(1).1);
        assert!(is_known(&suspects, 1));
        suspects.keep(|_, at| at > place(1).1);
        assert!(!is_known(&suspects, 1));

        let many: Vec<Carried> = (0..DELIVERED_MAX).map(|n| carried(n, "t")).collect();
        suspects.delivered(many.iter());
        suspects.delivered([carried(DELIVERED_MAX, "t")].iter());
        assert!(is_known(&suspects, DELIVERED_MAX) && suspects.delivered.len() <= DELIVERED_MAX);
    }

    #[test]
    fn suspicions_stay_with_the_lanes_and_go_with_them() {
        let mut suspects: Suspects<usize> = Suspects::default();
        let both = [carried(1, "t"), carried(2, "t")];
        suspects.refused(NOW, &both, true, &no(Blame::Record, &[]));
        suspects.hold(0, 1);
        suspects.release();
        assert_eq!((suspects.next(), suspects.len()), (None, 2));
        suspects.keep(|source, _| source.lane == Lane(0));
        assert_eq!(suspects.len(), 2);
        suspects.keep(|source, _| source.lane != Lane(0));
        assert_eq!(suspects.len(), 0);
    }
}
