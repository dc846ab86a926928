//! How far each intake is known to be read, also when nothing comes from it. A record with an id waits for this watermark
//! before it fires: only then are the cancels known that were there in time.
//!
//! # Invariants
//! 1. A record with an id fires once its intake in its lane is let go up to `due - settle`, by the append times there; and
//!    not before all that stood in its lane's intakes at the take-over is let go. As long as that is not known, it waits.
//! 2. Nothing is asked for that reading has told anyway, nothing twice at a time, and nothing more often than every half
//!    reach in a partition (`settle` of an intake, the hold but for the lead of a tier), however much is due.
//! 3. A record without an id waits for nothing here. What strict order waits for is in [`strict_order`](super::strict_order).

use std::collections::{BTreeMap, BTreeSet};

use super::super::setup::Arrival;
use super::super::state::SubmissionOrder;
use super::super::verdict::PendingRecord;
use super::{Action, Lane, LaneEngine, Millis, Offset, Source, TopicId, UnixMillis};

/// Records by what they wait for: first what is due first, at the same time what was submitted first.
pub(super) type Waiting =
    BTreeMap<(UnixMillis, SubmissionOrder, Source, Offset), Box<PendingRecord>>;

/// Strict order where nothing waits for cancels.
const SETTLE: Millis = Millis(50);

/// A partition, as far as records wait for what stands there.
#[derive(Debug, Default)]
pub(super) struct IntakeWatermark {
    /// Its end is being asked for.
    asked: bool,
    /// When to ask again; multiples of half the reach.
    wanted: BTreeSet<UnixMillis>,
    /// Due records with an id that wait for what stands in this intake.
    waiting: Waiting,
}

impl IntakeWatermark {
    /// When the first record is due that waits here.
    pub(super) fn first_due(&self) -> Option<UnixMillis> {
        self.waiting.first_key_value().map(|((due, ..), _)| *due)
    }
}

/// Where a pending record waits.
pub(super) fn rank_key(entry: &PendingRecord) -> (UnixMillis, SubmissionOrder, Source, Offset) {
    (entry.due, entry.order, entry.source, entry.offset)
}

impl LaneEngine {
    fn intake_watermark(&mut self, source: Source) -> Option<&mut IntakeWatermark> {
        self.intake_watermarks
            .get_mut(usize::from(source.topic.0))?
            .get_mut(usize::from(source.lane.0))
    }

    pub(super) fn is_open(&self, lane: Lane) -> bool {
        self.gates.get(usize::from(lane.0)).is_some_and(|gate| gate.is_open)
    }

    /// How much later than its append a record here is due, at least, if anything waits for what is here.
    pub(super) fn reach(&self, topic: TopicId) -> Option<Millis> {
        let (limits, topics) = (&self.setup.limits, &self.setup.topics);
        match (limits.arrival, topics.tier_of(topic)) {
            (Arrival::ByDue, None) => limits.settle,
            (Arrival::ByDue, Some(_)) => None,
            (Arrival::Strict, None) => Some(limits.settle.unwrap_or(SETTLE)),
            (Arrival::Strict, Some(tier)) => topics.ladder.tiers().get(tier).map(|t| t.wait()),
        }
    }

    /// Gives a record back that may fire, and keeps one that must wait.
    pub(super) fn let_through(
        &mut self,
        now: UnixMillis,
        entry: Box<PendingRecord>,
    ) -> Option<Box<PendingRecord>> {
        let entry = self.let_arrive(now, entry)?;
        if entry.timer_id.is_none() {
            return Some(entry);
        }
        // It is refused: nobody asks what its intake says.
        let Some(intake) = entry.intake else { return Some(entry) };
        let intake = Source { topic: TopicId(intake), lane: entry.source.lane };
        let (due, settle) = (entry.due, self.setup.limits.settle);
        let is_open = self.is_open(intake.lane);
        let Some(hold) = self.hold(intake) else { return Some(entry) };
        if is_open && settle.is_none_or(|settle| hold.gone_upto() >= due - settle) {
            return Some(entry);
        }
        self.intake_watermark(intake)?.waiting.insert(rank_key(&entry), entry);
        if settle.is_some() {
            self.want(now, intake, due);
        }
        None
    }

    /// A record is due then: what is due by that time must be known of a partition.
    pub(super) fn want(&mut self, now: UnixMillis, source: Source, due: UnixMillis) {
        let Some(reach) = self.reach(source.topic) else { return };
        let from = due - reach;
        let Some(hold) = self.hold(source) else { return };
        if hold.read_upto() >= from {
            return;
        }
        let grid = reach.half().0.max(1);
        // An overdue record needs the answer now, however long it has been overdue.
        let at = UnixMillis(from.0.div_ceil(grid).max(now.0 / grid).saturating_mul(grid));
        let Some(watermark) = self.intake_watermark(source) else { return };
        if watermark.wanted.insert(at) {
            if at <= now {
                // One question answers what was to be asked before.
                watermark.wanted = watermark.wanted.split_off(&at);
            }
            if !watermark.asked {
                self.wake(at);
            }
        }
    }

    /// Lists the end offsets of the partitions for which it is time.
    pub(super) fn list_end_offsets(&mut self, now: UnixMillis, out: &mut Vec<Action>) {
        self.want_for_order(now);
        let (mut ask, mut next) = (Vec::new(), None::<UnixMillis>);
        for topic in 0..self.intake_watermarks.len() {
            if self.reach(TopicId(topic as u16)).is_none() {
                continue;
            }
            for (lane, watermark) in self.intake_watermarks[topic].iter_mut().enumerate() {
                if watermark.wanted.is_empty() || watermark.asked {
                    continue;
                }
                let known = self.holds[topic][lane].as_ref().map(super::Hold::read_upto);
                while watermark
                    .wanted
                    .first()
                    .is_some_and(|at| known.is_none_or(|known| *at <= known))
                {
                    watermark.wanted.pop_first();
                }
                while watermark.wanted.first().is_some_and(|at| *at <= now) {
                    watermark.wanted.pop_first();
                    watermark.asked = true;
                }
                if watermark.asked {
                    ask.push(Source { topic: TopicId(topic as u16), lane: Lane(lane as u16) });
                } else if let Some(at) = watermark.wanted.first() {
                    next = Some(next.map_or(*at, |next| next.min(*at)));
                }
            }
        }
        if !ask.is_empty() {
            out.push(Action::ListEndOffsets(ask));
        }
        if let Some(at) = next {
            self.wake(at);
        }
    }

    /// Takes down that the end of a partition is being asked for; false: it is already.
    pub(super) fn ask_unasked(&mut self, source: Source) -> bool {
        self.intake_watermark(source)
            .is_some_and(|watermark| !std::mem::replace(&mut watermark.asked, true))
    }

    /// Everything that stood in a partition at a time was told.
    pub(super) fn read_up_to(&mut self, now: UnixMillis, source: Source, at: UnixMillis) {
        let Some(hold) = self.hold(source) else { return };
        hold.passed(at);
        if at > UnixMillis(0)
            && let Some(watermark) = self.intake_watermark(source)
        {
            watermark.asked = false;
            // Records that wait for a later time ask again.
            self.wake(now);
            self.want_for_waiting(now, source);
        }
        self.let_go(source);
    }

    /// Asks on behalf of the records that wait, also when the last answer was for too early a time.
    fn want_for_waiting(&mut self, now: UnixMillis, source: Source) {
        let first = self
            .intake_watermark(source)
            .and_then(|watermark| watermark.waiting.first_key_value().map(|((due, ..), _)| *due));
        if let Some(due) = first
            && self.setup.limits.settle.is_some()
        {
            self.want(now, source, due);
        }
    }

    /// Records of a partition were let go, or there are none: fires the records that have waited for that.
    pub(super) fn let_go(&mut self, source: Source) {
        if !self.is_open(source.lane) && self.try_gate(source.lane) {
            for topic in 0..self.setup.topics.intakes.len() {
                self.fire_waiting(Source { topic: TopicId(topic as u16), ..source });
            }
        }
        self.fire_waiting(source);
    }

    fn fire_waiting(&mut self, source: Source) {
        let (settle, is_open) = (self.setup.limits.settle, self.is_open(source.lane));
        let gone_upto = self.hold(source).map_or(UnixMillis(0), |hold| hold.gone_upto());
        let Some(watermark) = self.intake_watermark(source) else { return };
        if !is_open || watermark.waiting.is_empty() {
            return;
        }
        let rest = match settle {
            None => BTreeMap::new(),
            Some(settle) => {
                let due = gone_upto + settle + Millis(1);
                let key = (due, SubmissionOrder::default(), Source::default(), Offset::default());
                watermark.waiting.split_off(&key)
            }
        };
        let free = std::mem::replace(&mut watermark.waiting, rest);
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
    pub(super) fn spill_waiting(
        &mut self,
        now: UnixMillis,
        mut which: impl FnMut(&PendingRecord) -> bool,
    ) {
        let mut out = Vec::new();
        for watermark in self.intake_watermarks.iter_mut().flatten() {
            let taken = watermark.waiting.extract_if(.., |_, entry| which(entry));
            out.extend(taken.map(|(_, entry)| entry));
        }
        self.spill_late(now, out);
    }

    /// Overdue records go into the shortest tier once more.
    #[allow(clippy::vec_box, reason = "an entry is boxed once and moved as a pointer ever after")]
    pub(super) fn spill_late(&mut self, now: UnixMillis, entries: Vec<Box<PendingRecord>>) {
        let tier = self.setup.topics.ladder.shortest();
        for mut entry in entries {
            self.figures.spilled += 1;
            // However long it takes, it is no fault of the record's.
            entry.hops = entry.hops.saturating_sub(1);
            self.hop(now, tier, entry);
        }
    }

    /// How many wait.
    pub(super) fn gated(&self) -> usize {
        self.intake_watermarks.iter().flatten().map(|watermark| watermark.waiting.len()).sum()
    }
}
