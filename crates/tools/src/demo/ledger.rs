//! The demo's own books: what was written, where an onlooker saw it last, when it arrived.
//!
//! Nothing here comes from waterclock itself. A consumer of all topics sees each record where it was first written, and due
//! times are counted from the timestamp there. Levels are counted from where it sees the record last. Lateness is
//! counted from the moment when a consumer of the target sees the record. (Acknowledgements do not serve: the embedded
//! broker makes their timestamps up.)
//!
//! # Invariants
//! 1. A record is in one place: one that was seen in the target or among the dead letters stays there.
//! 2. A record that was cancelled long enough before its due time counts as wrong if it is seen in the target all the
//!    same.
//! 3. `early` counts every delivery that is stamped before its due time, even by a millisecond.

use std::collections::VecDeque;

use hdrhistogram::Histogram;

use waterclock_engine::header::Code;
use waterclock_engine::ladder::Ladder;
use waterclock_engine::{Millis, UnixMillis};

/// A cancel that is acknowledged this long before the due time wins. The contract promises 50 ms; the rest is for the
/// clocks of an onlooker.
const CANCEL_MIN: Millis = Millis(500);
/// The time that one value of the curves stands for.
pub(super) const SLOT: Millis = Millis(250);
/// Dead letters shown.
const LETTERS_MAX: usize = 8;
/// Upper bounds of the bars of lateness, in ms; what is above the last has a bar of its own.
pub(super) const BARS_MS: [u64; 6] = [1, 2, 5, 10, 20, 50];

/// What should become of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expect {
    /// Delivered this long after its append.
    After(Millis),
    /// Delivered at this time.
    At(UnixMillis),
    /// A dead letter with this code.
    Dead(Code),
}

/// Where a record was seen last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LastSeen {
    /// Handed to the producer; not seen yet.
    Handed,
    /// In the intake, or in a tier, since then.
    Standing(Option<usize>, UnixMillis),
    Delivered,
    Dead,
    /// Its cancel was acknowledged in time: it is to be seen nowhere any more.
    Cancelled,
    /// Its cancel was acknowledged too late to be sure of: it may be delivered or not.
    Forgiven,
    /// Kafka did not take it.
    Failed,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    expect: Expect,
    /// Written to this tier, not to the intake.
    tier: Option<usize>,
    place: LastSeen,
    due: Option<UnixMillis>,
    /// Stamped and measured, when it was seen in the target first.
    arrived: Option<Arrival>,
}

/// A record seen in the target.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    /// The record's own timestamp.
    pub(super) stamped: UnixMillis,
    /// What lateness is counted to.
    pub(super) measured: UnixMillis,
    /// Since the start.
    pub(super) elapsed: Millis,
}

/// One value of the curves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Interval {
    pub(super) delivered: u64,
    pub(super) late_ms_max: u64,
}

/// How much is pending, and where.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Levels {
    /// By tier: kept back by its hold.
    pub(super) tiers: Vec<u64>,
    /// On the way from the intake or a tier to the next.
    pub(super) moving: u64,
    /// Let go by its last tier, and due within the horizon: in memory.
    pub(super) wheel: u64,
}

/// All figures at one moment.
#[derive(Clone, Debug, Default)]
pub(super) struct Figures {
    pub(super) sent: u64,
    pub(super) bad: u64,
    pub(super) delivered: u64,
    pub(super) dead_letters: u64,
    pub(super) pending: u64,
    pub(super) duplicates: u64,
    pub(super) early: u64,
    /// Cancelled before it was due.
    pub(super) cancelled: u64,
    /// Seen in the target though cancelled.
    pub(super) escaped: u64,
    /// Delivered though bad or cancelled, a dead letter though good, or one of another code.
    pub(super) wrong: u64,
    /// Not taken by Kafka.
    pub(super) unsent: u64,
    pub(super) late_p50: u64,
    pub(super) late_p90: u64,
    pub(super) late_p99: u64,
    pub(super) late_max: u64,
    /// Deliveries by lateness, see [`BARS_MS`].
    pub(super) bars: Vec<u64>,
    pub(super) slots: Vec<Interval>,
    pub(super) levels: Levels,
    /// The latest dead letters, newest first.
    pub(super) letters: Vec<Code>,
}

/// The books.
#[derive(Debug)]
pub(super) struct Ledger {
    waits: Vec<Millis>,
    horizon: Millis,
    entries: Vec<Entry>,
    /// Entries before this one are all settled.
    settled: usize,
    lateness: Histogram<u64>,
    counts: Figures,
    letters: VecDeque<Code>,
}

impl Ledger {
    pub(super) fn new(ladder: &Ladder, horizon: Millis) -> Self {
        // No demo is an hour late. More than that is counted as an hour.
        let lateness = Histogram::new_with_bounds(1, 3_600_000, 3)
            .unwrap_or_else(|_| unreachable!("bounds that hdrhistogram documents as good"));
        Self {
            waits: ladder.tiers().iter().map(|tier| tier.wait()).collect(),
            horizon,
            entries: Vec::new(),
            settled: 0,
            lateness,
            counts: Figures { bars: vec![0; BARS_MS.len() + 1], ..Figures::default() },
            letters: VecDeque::new(),
        }
    }

    /// The number of the record written next.
    pub(super) fn next_number(&self) -> u32 {
        self.entries.len() as u32
    }

    /// A record is handed to the producer, for the intake or for `tier`.
    pub(super) fn handed(&mut self, expect: Expect, tier: Option<usize>) {
        self.entries.push(Entry {
            expect,
            tier,
            place: LastSeen::Handed,
            due: None,
            arrived: None,
        });
    }

    /// Kafka did not take it.
    pub(super) fn failed(&mut self, number: usize) {
        if let Some(entry) = self.entries.get_mut(number) {
            entry.place = LastSeen::Failed;
            self.counts.unsent += 1;
        }
    }

    /// It was written.
    pub(super) fn acked(&mut self, number: usize) {
        let Some(entry) = self.entries.get_mut(number) else { return };
        self.counts.sent += 1;
        self.counts.bad += u64::from(matches!(entry.expect, Expect::Dead(_)));
    }

    /// The cancel of it was written, as is known `now`.
    pub(super) fn cancelled(&mut self, number: usize, now: UnixMillis) {
        let Some(entry) = self.entries.get_mut(number).filter(|entry| entry.is_open()) else {
            return;
        };
        if entry.due.is_some_and(|due| now + CANCEL_MIN <= due) {
            entry.place = LastSeen::Cancelled;
            self.counts.cancelled += 1;
        } else {
            entry.place = LastSeen::Forgiven;
        }
    }

    /// The cancel of it was not taken: it is delivered like any other.
    pub(super) fn uncancelled(&mut self) {
        self.counts.unsent += 1;
    }

    /// The onlooker saw it in the intake or in a tier.
    pub(super) fn seen(&mut self, number: u32, tier: Option<usize>, appended: UnixMillis) {
        let number = number as usize;
        let Some(entry) = self.entries.get_mut(number) else { return };
        if tier == entry.tier {
            let due = match entry.expect {
                Expect::After(delay) => Some(appended + delay),
                // Nothing can be there before it was written.
                Expect::At(due) => Some(due.max(appended)),
                Expect::Dead(_) => None,
            };
            // A record that is moved to its lane stands in the intake twice; the first time counts.
            entry.due = entry.due.min(due).or(due);
        }
        let newer = match entry.place {
            LastSeen::Handed => true,
            // Topics are read side by side: an older place may be seen later.
            LastSeen::Standing(_, since) => appended >= since,
            LastSeen::Delivered
            | LastSeen::Dead
            | LastSeen::Cancelled
            | LastSeen::Forgiven
            | LastSeen::Failed => false,
        };
        if newer {
            entry.place = LastSeen::Standing(tier, appended);
        }
        if entry.due.is_some()
            && let Some(arrival) = entry.arrived.take()
        {
            self.measure(number, arrival);
        }
    }

    /// It was seen in the target.
    pub(super) fn delivered(&mut self, number: u32, arrival: Arrival) {
        let number = number as usize;
        let Some(entry) = self.entries.get_mut(number) else { return };
        if entry.place == LastSeen::Delivered {
            self.counts.duplicates += 1;
            return;
        }
        let escaped = entry.place == LastSeen::Cancelled;
        entry.place = LastSeen::Delivered;
        self.counts.delivered += 1;
        if escaped {
            self.counts.escaped += 1;
            self.counts.wrong += 1;
        } else if matches!(entry.expect, Expect::Dead(_)) {
            self.counts.wrong += 1;
        } else if entry.due.is_some() {
            self.measure(number, arrival);
        } else {
            entry.arrived = Some(arrival);
        }
    }

    /// It was seen among the dead letters.
    pub(super) fn died(&mut self, number: u32, code: Option<Code>) {
        let Some(entry) = self.entries.get_mut(number as usize) else { return };
        if entry.place == LastSeen::Dead {
            self.counts.duplicates += 1;
            return;
        }
        entry.place = LastSeen::Dead;
        self.counts.dead_letters += 1;
        if code.map(Expect::Dead) != Some(entry.expect) {
            self.counts.wrong += 1;
        }
        self.letters.extend(code);
        if self.letters.len() > LETTERS_MAX {
            self.letters.pop_front();
        }
    }

    fn measure(&mut self, number: usize, arrival: Arrival) {
        let Some(due) = self.entries[number].due else { return };
        if arrival.stamped < due {
            self.counts.early += 1;
        }
        let late = (arrival.measured - due).0;
        self.lateness.saturating_record(late);
        let bar = BARS_MS.iter().position(|most| late <= *most).unwrap_or(BARS_MS.len());
        self.counts.bars[bar] += 1;
        let slot = (arrival.elapsed.0 / SLOT.0) as usize;
        if self.counts.slots.len() <= slot {
            self.counts.slots.resize(slot + 1, Interval::default());
        }
        let slot = &mut self.counts.slots[slot];
        slot.delivered += 1;
        slot.late_ms_max = slot.late_ms_max.max(late);
    }

    /// How many records are not settled and fall due by then, bad ones included.
    pub(super) fn due_by(&mut self, by: UnixMillis) -> usize {
        self.settle();
        let open = self.entries[self.settled..].iter().filter(|entry| entry.is_open());
        open.filter(|entry| entry.due.is_none_or(|due| due <= by)).count()
    }

    fn settle(&mut self) {
        let rest = &self.entries[self.settled..];
        self.settled += rest.iter().take_while(|entry| !entry.is_open()).count();
    }

    /// All figures now.
    pub(super) fn figures(&mut self, now: UnixMillis) -> Figures {
        self.settle();
        let mut levels = Levels { tiers: vec![0; self.waits.len()], ..Levels::default() };
        let mut pending = 0;
        for entry in &self.entries[self.settled..] {
            let LastSeen::Standing(tier, since) = entry.place else { continue };
            pending += 1;
            let held = tier.filter(|tier| now < since + self.waits[*tier]);
            match (held, entry.due) {
                (Some(tier), _) => levels.tiers[tier] += 1,
                (None, Some(due)) if due - now <= self.horizon => levels.wheel += 1,
                (None, _) => levels.moving += 1,
            }
        }
        let late = |quantile| self.lateness.value_at_quantile(quantile);
        Figures {
            pending,
            levels,
            late_p50: late(0.5),
            late_p90: late(0.9),
            late_p99: late(0.99),
            late_max: self.lateness.max(),
            letters: self.letters.iter().rev().copied().collect(),
            ..self.counts.clone()
        }
    }
}

impl Entry {
    fn is_open(&self) -> bool {
        matches!(self.place, LastSeen::Handed | LastSeen::Standing(..))
    }
}

impl Figures {
    /// Deliveries in the last whole second before `elapsed`.
    pub(super) fn delivered_lately(&self, elapsed: Millis) -> u64 {
        let (now, slots) = ((elapsed.0 / SLOT.0) as usize, 1_000 / SLOT.0 as usize);
        let before = now.saturating_sub(slots);
        self.slots.iter().take(now).skip(before).map(|slot| slot.delivered).sum()
    }

    /// Whether anything happened that must not.
    pub(super) fn is_clean(&self) -> bool {
        self.early == 0 && self.duplicates == 0 && self.wrong == 0 && self.unsent == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: UnixMillis = UnixMillis(1_000_000);

    fn ledger() -> Ledger {
        let holds = [Millis(1_000), Millis(5_000)];
        Ledger::new(&Ladder::new(&holds, &[], Millis(1_000)).unwrap(), Millis(1_000))
    }

    fn arrival(at: u64) -> Arrival {
        let at = START + Millis(at);
        Arrival { stamped: at, measured: at + Millis(3), elapsed: at - START }
    }

    #[test]
    fn a_record_is_counted_where_it_stands_until_it_arrives() {
        let mut ledger = ledger();
        ledger.handed(Expect::After(Millis(6_000)), None);
        assert_eq!(ledger.figures(START).pending, 0, "nobody knows yet");
        ledger.acked(0);
        ledger.seen(0, None, START);
        let level = |ledger: &mut Ledger, at| ledger.figures(START + Millis(at)).levels;
        let levels = |five, moving, wheel| Levels { tiers: vec![0, five], moving, wheel };
        #[rustfmt::skip]
        let steps = [
            // at      seen in tier  want               why
            (10,       None,         levels(0, 1, 0),   "in the intake, far from due"),
            (600,      Some(1),      levels(1, 0, 0),   "in delay.5s"),
            (4_599,    None,         levels(1, 0, 0),   "held back: hold less lead"),
            (4_600,    None,         levels(0, 1, 0),   "let go, and not yet due within the horizon"),
            (5_000,    None,         levels(0, 0, 1),   "due within the horizon"),
        ];
        for (at, seen, want, why) in steps {
            if seen.is_some() {
                ledger.seen(0, seen, START + Millis(at));
            }
            assert_eq!(level(&mut ledger, at), want, "{why}");
        }
        ledger.delivered(0, arrival(6_002));
        ledger.seen(0, Some(0), START + Millis(7_000));
        let figures = ledger.figures(START + Millis(7_000));
        assert_eq!((figures.pending, figures.delivered, figures.late_max), (0, 1, 5));
        assert_eq!(figures.levels, levels(0, 0, 0));
        assert_eq!(figures.bars[2], 1, "between 2 and 5 ms late");
        assert_eq!(figures.slots[24], Interval { delivered: 1, late_ms_max: 5 });
    }

    #[test]
    fn early_twice_and_wrong_ones_are_counted() {
        let mut ledger = ledger();
        for expect in [
            Expect::After(Millis(1_000)),
            Expect::At(START + Millis(1_000)),
            Expect::Dead(Code::BadDelay),
            Expect::Dead(Code::BadDelay),
            Expect::After(Millis(1_000)),
        ] {
            ledger.handed(expect, None);
        }
        for number in 0..5 {
            ledger.acked(number);
            ledger.seen(number as u32, None, START);
        }
        ledger.delivered(0, arrival(999));
        ledger.delivered(1, arrival(1_000));
        ledger.delivered(1, arrival(1_000));
        ledger.died(2, Some(Code::BadDelay));
        ledger.died(3, Some(Code::BadTarget));
        ledger.died(4, Some(Code::BadDelay));
        let figures = ledger.figures(START);
        assert_eq!((figures.sent, figures.bad, figures.delivered), (5, 2, 2));
        assert_eq!((figures.early, figures.duplicates, figures.dead_letters), (1, 1, 3));
        assert_eq!(figures.wrong, 2, "another code, and a good one that died");
        assert!(!figures.is_clean());
    }

    #[test]
    fn what_was_cancelled_in_time_is_to_be_seen_nowhere() {
        let mut ledger = ledger();
        for number in 0..4 {
            ledger.handed(Expect::After(Millis(1_000)), None);
            ledger.acked(number);
            ledger.seen(number as u32, None, START);
        }
        ledger.cancelled(0, START + Millis(500));
        ledger.cancelled(1, START + Millis(500));
        ledger.cancelled(2, START + Millis(501));
        ledger.delivered(3, arrival(1_000));
        ledger.cancelled(3, START + Millis(1_001));
        let figures = ledger.figures(START);
        assert_eq!((figures.cancelled, figures.pending, figures.delivered), (2, 0, 1));
        assert!(figures.is_clean());
        ledger.delivered(2, arrival(1_000));
        assert!(ledger.figures(START).is_clean(), "its cancel came too late to be sure of");
        ledger.delivered(1, arrival(1_000));
        let figures = ledger.figures(START);
        assert_eq!((figures.cancelled, figures.escaped, figures.wrong), (2, 1, 1));
        assert!(!figures.is_clean());
    }

    #[test]
    fn an_arrival_that_is_seen_before_its_start_is_measured_then() {
        let mut ledger = ledger();
        ledger.handed(Expect::After(Millis(500)), None);
        ledger.delivered(0, arrival(520));
        assert_eq!(ledger.figures(START).bars.iter().sum::<u64>(), 0);
        ledger.seen(0, None, START);
        let figures = ledger.figures(START);
        assert_eq!((figures.late_max, figures.delivered, figures.early), (23, 1, 0));
        assert_eq!(figures.pending, 0);
    }

    #[test]
    fn a_delay_counts_from_the_first_append_of_a_record_that_is_moved() {
        let mut ledger = ledger();
        ledger.handed(Expect::After(Millis(500)), None);
        // Partitions are read side by side: the second copy may be seen first.
        ledger.seen(0, None, START + Millis(9));
        ledger.seen(0, None, START);
        ledger.delivered(0, arrival(499));
        assert_eq!(ledger.figures(START).early, 1);
    }

    #[test]
    fn what_falls_due_soon_is_known_without_what_is_settled() {
        let mut ledger = ledger();
        for _ in 0..3 {
            ledger.handed(Expect::After(Millis(1_000)), None);
        }
        ledger.seen(0, None, START);
        ledger.seen(1, None, START + Millis(5_000));
        ledger.failed(2);
        assert_eq!(ledger.due_by(START + Millis(2_000)), 1);
        ledger.delivered(0, arrival(1_000));
        assert_eq!(ledger.due_by(START + Millis(2_000)), 0);
        assert_eq!(ledger.due_by(START + Millis(9_000)), 1);
    }

    #[test]
    fn percentiles_are_those_of_the_deliveries() {
        let mut ledger = ledger();
        for number in 0..1_000 {
            ledger.handed(Expect::At(START), None);
            ledger.seen(number, None, START);
            let at = START + Millis(u64::from(number) + 1);
            ledger.delivered(number, Arrival { stamped: at, measured: at, elapsed: Millis(1_100) });
        }
        let figures = ledger.figures(START);
        assert_eq!(
            (figures.late_p50, figures.late_p90, figures.late_p99, figures.late_max),
            (500, 900, 990, 1_000)
        );
        assert_eq!(figures.delivered_lately(Millis(2_100)), 1_000);
        assert_eq!(figures.delivered_lately(Millis(4_000)), 0);
    }
}
