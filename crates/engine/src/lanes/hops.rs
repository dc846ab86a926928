//! Hops: which tier a record goes to, the buffer in which hops are collected, and when what a batch sends may be appended.
//!
//! # Invariants
//! 1. A record goes to the largest tier that lets it go in time, also if its append takes the margin; or to the shortest one,
//!    if that lets it go in time where its append takes the least margin.
//! 2. The margin grows with every hop that was appended too late (ADR 0025).
//! 3. No record hops without end: what hops more often than any delay takes becomes a dead letter.

use super::super::header::{Code, Refusal};
use super::super::hop_buffer::HopBuffer;
use super::super::ladder::{Ladder, Tier};
use super::super::member::Timing;
use super::super::messages::{Destination, Produce};
use super::super::setup::{Arrival, Setup};
use super::super::verdict::{PendingRecord, refusal};
use super::figures::Figures;
use super::margin::Margin;
use super::{Lane, Millis, Source, UnixMillis};

/// What a hop may take between the closing of its batch and its append, as long as none took longer; in both orders.
const MARGIN: Millis = Millis(250);

/// How long an overdue record waits in a tier, at most: a longer wait spares the brokers work during an outage, but the record
/// is later after it.
pub(super) const OVERDUE_MAX: Millis = Millis(30_000);

/// How long a task waits in a tier, at most, that is overdue and may not be called: there may be a million of them.
pub(super) const PUT_OFF_MAX: Millis = Millis(600_000);

/// The last tier into which a record may hop that is overdue.
pub(super) fn last_for_overdue(setup: &Setup) -> usize {
    let ladder = &setup.topics.ladder;
    let most = if setup.topics.results().is_some() { PUT_OFF_MAX } else { OVERDUE_MAX };
    ladder.pick(most).unwrap_or(0).max(ladder.shortest())
}

/// Hops that are collected.
#[derive(Debug)]
pub(super) struct Hops {
    buffer: HopBuffer<Box<PendingRecord>>,
    /// Their bytes.
    bytes: usize,
    /// What hops take to be appended.
    margin: Margin,
    /// What must remain for a hop at all: the wait in the shortest tier, its collecting, and the least margin.
    least: Millis,
    /// How often a record may hop.
    limit: u16,
    /// Hops that came to stand later than their tier needs and were committed.
    late: u64,
}

impl Hops {
    pub(super) fn new(setup: &Setup) -> Self {
        let (ladder, limits) = (&setup.topics.ladder, &setup.limits);
        // Spills and large records hop more often than the ladder alone would have it.
        let most = ladder.hops_max(limits.max_delay, limits.large_horizon.min(limits.horizon));
        let most = u16::try_from(most).unwrap_or(u16::MAX);
        let shortest = &ladder.tiers()[ladder.shortest()];
        Self {
            least: shortest.wait() + shortest.slack().max(limits.hop_linger) + MARGIN,
            buffer: HopBuffer::new(ladder.tiers().len()),
            bytes: 0,
            margin: Margin::new(MARGIN),
            limit: most.saturating_mul(2).saturating_add(64),
            late: 0,
        }
    }

    /// The lanes are gone, with all that was collected.
    pub(super) fn reset(&mut self, setup: &Setup) {
        *self = Self { margin: self.margin, late: self.late, ..Self::new(setup) };
    }

    // Which tier.

    /// The tier to wait in next: the longest that leaves the margin in hand. Where that has grown, the shortest takes what has
    /// less. `None`: the record stays in memory, for even the shortest would let it go late, and others of its key would pass it.
    pub(super) fn pick(&self, ladder: &Ladder, now: UnixMillis, remains: Millis) -> Option<usize> {
        let shortest = ladder.shortest();
        match ladder.pick(remains.saturating_sub(self.margin.at(now))) {
            Some(longer) if longer != shortest => Some(longer),
            _ => (remains >= self.least).then_some(shortest),
        }
    }

    /// How much time a hop into this tier must have left now, so that it comes up in time if its append takes no more than
    /// the margin. The shortest tier takes what has less, too.
    pub(super) fn needs(&self, setup: &Setup, now: UnixMillis, tier: usize) -> Option<Millis> {
        let needs = setup.needs(tier)?;
        (tier != setup.topics.ladder.shortest()).then(|| needs + self.margin.at(now))
    }

    /// Whether a record may hop once more.
    pub(super) fn permits(&self, entry: &PendingRecord) -> Result<(), Refusal> {
        if entry.hops < self.limit {
            return Ok(());
        }
        let detail = format!("{} hops; no delay takes more than {}", entry.hops, self.limit);
        Err(refusal(Code::TooManyHops, detail))
    }

    /// A hop was appended too late, and its batch was given up.
    pub(super) fn widen_margin(&mut self, now: UnixMillis) {
        self.margin.widen(now);
    }

    /// A hop was appended too late and is committed.
    pub(super) fn count_late(&mut self) {
        self.late += 1;
    }

    /// Counts for the metrics.
    pub(super) fn count(&self, figures: &mut Figures) {
        figures.late_hops = self.late;
    }

    // The buffer.

    pub(super) fn push(
        &mut self,
        now: UnixMillis,
        tier: usize,
        lane: Lane,
        entry: Box<PendingRecord>,
    ) {
        self.bytes += entry.record.size();
        self.buffer.push(now, tier, lane, entry);
    }

    /// When the oldest hop must leave.
    pub(super) fn ripe_at(&self, linger: Millis) -> Option<UnixMillis> {
        self.buffer.ripe_at(linger)
    }

    /// Takes ripe hops, of at most so many partitions, until `take` says that there is no more room.
    pub(super) fn take(
        &mut self,
        now: UnixMillis,
        (linger, partitions): (Millis, usize),
        mut take: impl FnMut(usize, Lane, Box<PendingRecord>) -> bool,
    ) {
        let bytes = &mut self.bytes;
        self.buffer.take(now, linger, partitions, |tier, lane, entry| {
            *bytes -= entry.record.size();
            take(tier, lane, entry)
        });
    }

    pub(super) fn len(&self) -> usize {
        self.buffer.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// Bytes of what is collected.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    #[cfg(test)]
    pub(super) fn limit(&self) -> u16 {
        self.limit
    }
}

impl Setup {
    /// When a record of a batch may be appended, by its leader's clock.
    #[must_use]
    pub fn timing(&self, send: &Produce) -> Timing {
        let lane = send.partition.and_then(|lane| u16::try_from(lane).ok()).map(Lane);
        match (&send.to, lane) {
            (Destination::Target(_), _) => {
                Timing::Delivery { due: send.due, expires: send.expires }
            }
            (Destination::Lane(topic), Some(lane)) => {
                self.timing_of_hop(Source { topic: *topic, lane }, send.due)
            }
            _ => Timing::Any,
        }
    }

    /// When a hop to this partition may be appended that is due then.
    pub(crate) fn timing_of_hop(&self, to: Source, due: UnixMillis) -> Timing {
        let Some(tier) = self.topics.tier_of(to.topic) else { return Timing::Any };
        let needs = self.needs(tier).unwrap_or_default();
        let (is_shortest, arrival) = (tier == self.topics.ladder.shortest(), self.limits.arrival);
        let last = match arrival {
            Arrival::Strict => due - needs,
            // It is let go within its hold, which is the shortest.
            Arrival::ByDue if is_shortest => UnixMillis(u64::MAX),
            // What is tolerated is less than what it costs everybody else to refuse it.
            Arrival::ByDue => {
                let tier = self.topics.ladder.tiers().get(tier);
                due + tier.map_or(Millis(0), Tier::tolerated) - needs
            }
        };
        Timing::Hop { to, due, last, must_abort: !is_shortest }
    }
}
