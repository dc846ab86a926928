//! How far each intake is known to be read, also when nothing comes from it. A record with an id waits for this watermark
//! before it fires: only then are the cancels known that were there in time.
//!
//! # Invariants
//! 1. A record that waits here is taken once its intake in its lane is let go up to `due - settle`, by the append times
//!    there. As long as that is not known, it waits.
//! 2. No end offset is listed that reading has passed anyway, none twice at a time, and none more often than every half
//!    reach of a partition (`settle` for an intake, hold minus lead for a tier), however much is due.
//! 3. A record without an id waits for nothing here. What strict order waits for is in [`strict_order`](super::strict_order).

use std::collections::BTreeSet;

use super::super::hold::Hold;
use super::super::setup::{Arrival, Setup};
use super::super::state::SubmissionOrder;
use super::super::verdict::PendingRecord;
use super::figures::Figures;
use super::partitions::Partitions;
use super::rank::{Waiting, rank_key};
use super::{Millis, Offset, Source, TopicId, UnixMillis};

/// Strict order where nothing waits for cancels.
const SETTLE: Millis = Millis(50);

/// What waits for one partition.
#[derive(Debug, Default)]
struct IntakeWatermark {
    /// Its end offset is being listed.
    asked: bool,
    /// When to list it again; multiples of half the reach.
    wanted: BTreeSet<UnixMillis>,
    /// Due records with an id that wait for what stands in this intake.
    waiting: Waiting,
}

/// A record here is due at least this long after its append, if anything waits for this partition.
pub(super) fn reach(setup: &Setup, topic: TopicId) -> Option<Millis> {
    let (limits, topics) = (&setup.limits, &setup.topics);
    if topics.results() == Some(topic) {
        // Nothing waits for what workers say.
        return None;
    }
    match (limits.arrival, topics.tier_of(topic)) {
        (Arrival::ByDue, None) => limits.settle,
        (Arrival::ByDue, Some(_)) => None,
        (Arrival::Strict, None) => Some(limits.settle.unwrap_or(SETTLE)),
        (Arrival::Strict, Some(tier)) => topics.ladder.tiers().get(tier).map(|t| t.wait()),
    }
}

/// The watermarks of all partitions.
#[derive(Debug)]
pub(super) struct IntakeWatermarks {
    /// By lane topic, then lane.
    of: Vec<Vec<IntakeWatermark>>,
}

impl IntakeWatermarks {
    pub(super) fn new(setup: &Setup) -> Self {
        let lanes = || (0..setup.lanes).map(|_| IntakeWatermark::default()).collect();
        Self { of: setup.topics.names().iter().map(|_| lanes()).collect() }
    }

    fn get_mut(&mut self, source: Source) -> Option<&mut IntakeWatermark> {
        self.of.get_mut(usize::from(source.topic.0))?.get_mut(usize::from(source.lane.0))
    }

    // Questions.

    /// A record is due then, so the partition must be known to be read up to there. Returns when to list its end.
    pub(super) fn want(
        &mut self,
        now: UnixMillis,
        (setup, partitions): (&Setup, &Partitions),
        source: Source,
        due: UnixMillis,
    ) -> Option<UnixMillis> {
        let reach = reach(setup, source.topic)?;
        let from = due - reach;
        if partitions.get(source)?.read_upto() >= from {
            return None;
        }
        let grid = reach.half().0.max(1);
        // An overdue record needs the answer now, however long it has been overdue.
        let at = UnixMillis(from.0.div_ceil(grid).max(now.0 / grid).saturating_mul(grid));
        let watermark = self.get_mut(source)?;
        if !watermark.wanted.insert(at) {
            return None;
        }
        if at <= now {
            // One question answers what was to be asked before.
            watermark.wanted = watermark.wanted.split_off(&at);
        }
        (!watermark.asked).then_some(at)
    }

    /// The partitions for which it is time to ask, and when it is time for the next one.
    pub(super) fn list(
        &mut self,
        now: UnixMillis,
        (setup, partitions): (&Setup, &Partitions),
    ) -> (Vec<Source>, Option<UnixMillis>) {
        let (mut ask, mut next) = (Vec::new(), None::<UnixMillis>);
        for (topic, watermarks) in self.of.iter_mut().enumerate() {
            let topic = TopicId(topic as u16);
            if reach(setup, topic).is_none() {
                continue;
            }
            for (lane, watermark) in watermarks.iter_mut().enumerate() {
                let IntakeWatermark { asked, wanted, .. } = watermark;
                if wanted.is_empty() || *asked {
                    continue;
                }
                let source = Source { topic, lane: super::Lane(lane as u16) };
                let known = partitions.get(source).map(Hold::read_upto);
                while wanted.first().is_some_and(|at| known.is_none_or(|known| *at <= known)) {
                    wanted.pop_first();
                }
                while wanted.first().is_some_and(|at| *at <= now) {
                    wanted.pop_first();
                    *asked = true;
                }
                if *asked {
                    ask.push(source);
                } else if let Some(at) = wanted.first() {
                    next = Some(next.map_or(*at, |next| next.min(*at)));
                }
            }
        }
        (ask, next)
    }

    /// Notes that the end of a partition is being listed; false: it was noted already.
    pub(super) fn ask(&mut self, source: Source) -> bool {
        self.get_mut(source).is_some_and(|watermark| !std::mem::replace(&mut watermark.asked, true))
    }

    /// The end of a partition was listed. Returns when the first record is due that waits for it.
    pub(super) fn answered(&mut self, source: Source) -> Option<UnixMillis> {
        let watermark = self.get_mut(source)?;
        watermark.asked = false;
        watermark.waiting.first_key_value().map(|((due, ..), _)| *due)
    }

    // Records.

    /// A due record waits for what stands in its intake.
    pub(super) fn wait(&mut self, intake: Source, entry: Box<PendingRecord>) {
        if let Some(watermark) = self.get_mut(intake) {
            watermark.waiting.insert(rank_key(&entry), entry);
        }
    }

    /// Takes the records that wait for an intake no more, which was let go up to a time. `settle`: what they wait for.
    pub(super) fn take_free(
        &mut self,
        intake: Source,
        gone_upto: UnixMillis,
        settle: Option<Millis>,
    ) -> impl ExactSizeIterator<Item = Box<PendingRecord>> + use<> {
        let mut free = Waiting::new();
        if let Some(IntakeWatermark { waiting, .. }) = self.get_mut(intake)
            && !waiting.is_empty()
        {
            let rest = settle.map(|settle| {
                let due = gone_upto + settle + Millis(1);
                let key = (due, SubmissionOrder::default(), Source::default(), Offset::default());
                waiting.split_off(&key)
            });
            free = std::mem::replace(waiting, rest.unwrap_or_default());
        }
        free.into_values()
    }

    /// Takes the records that wait and that `which` says.
    #[allow(clippy::vec_box, reason = "an entry is boxed once and moved as a pointer ever after")]
    pub(super) fn take_where(
        &mut self,
        mut which: impl FnMut(&PendingRecord) -> bool,
    ) -> Vec<Box<PendingRecord>> {
        let mut out = Vec::new();
        for watermark in self.of.iter_mut().flatten() {
            let taken = watermark.waiting.extract_if(.., |_, entry| which(entry));
            out.extend(taken.map(|(_, entry)| entry));
        }
        out
    }

    /// Counts for the metrics.
    pub(super) fn count(&self, figures: &mut Figures) {
        let waiting = || self.of.iter().flatten().map(|watermark| &watermark.waiting);
        figures.gated = waiting().map(Waiting::len).sum();
        let firsts = waiting().filter_map(Waiting::first_key_value);
        figures.due(firsts.map(|((due, ..), _)| *due).min());
    }
}
