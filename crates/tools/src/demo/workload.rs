//! What the demo's producer writes: round delays, a share of every other way in, a few bad records, and some that are
//! cancelled before they are due.
//!
//! Whatever is asked for falls due before the demo ends, so that a demo that runs to its end delivers all of it, and
//! nothing of what it cancelled.

use std::collections::VecDeque;
use std::sync::Arc;

use rand::Rng;
use rand::seq::IndexedRandom as _;

use super::ledger::Expect;
use waterclock_engine::header::{self, Code};
use waterclock_engine::{Millis, Record, UnixMillis, murmur2};

/// The delays, each as often as it stands here.
const DELAYS_MS: [u64; 14] = [
    500, 1_000, 2_000, 3_000, 4_000, 5_000, 5_000, 7_000, 8_000, 10_000, 12_000, 15_000, 20_000,
    25_000,
];
/// What must be left of the demo after a due time.
const MARGIN: Millis = Millis(500);
/// Keys; each has its lane.
const KEYS: [&str; 12] = [
    "amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heath", "inlet", "larch",
    "maple", "ridge",
];
/// Between two bad records.
const BAD_EVERY: Millis = Millis(2_000);
/// A record that is cancelled has a delay of this at least, and is cancelled when half of it is over: long before its
/// due time even where the broker is slow.
const CANCEL_DELAY_MIN: Millis = Millis(3_000);
/// Between two bursts: records that all fall due in the same millisecond.
const BURST_EVERY: Millis = Millis(6_000);
/// From the start of the last second before a burst to the second in which it is due.
const BURST_DELAY: Millis = Millis(4_000);
/// Header that carries a record's number.
pub(super) const NUMBER: &str = "demo-number";

/// Where a record is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Destination {
    /// To the intake, by the key's partition.
    Intake,
    /// To the intake, into this partition, as a client with another partitioner does.
    Partition(u16),
    /// To the shortest tier.
    Tier,
}

/// One record to write.
#[derive(Clone, Debug)]
pub(super) struct Submission {
    pub(super) destination: Destination,
    pub(super) record: Record,
    pub(super) expect: Expect,
}

/// What a record asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    After(Millis),
    Until(UnixMillis),
    Foreign(Millis),
    Direct,
    /// With an id, to be cancelled on its way.
    Cancelled(Millis),
    Bad(Code),
}

/// Decides what is written next.
#[derive(Debug)]
pub(super) struct Workload {
    target: Arc<str>,
    lanes: u16,
    /// Hold of the shortest tier.
    shortest: Millis,
    /// Length of the demo.
    total: Millis,
    burst_size: usize,
    next_bad: Millis,
    next_burst: Millis,
    bursting: Option<(UnixMillis, usize)>,
    bads: usize,
    /// Records to be cancelled: from when on, the number of the record, its key.
    cancels: VecDeque<(Millis, u32, &'static str)>,
}

/// What is wrong with the bad ones, in turn.
const BADS: [Code; 5] = [
    Code::BadDelay,
    Code::MissingTarget,
    Code::ConflictingDirectives,
    Code::TargetDenied,
    Code::UnknownHeader,
];

impl Workload {
    pub(super) fn new(
        target: &Arc<str>,
        lanes: u16,
        shortest: Millis,
        total: Millis,
        rate: u32,
    ) -> Self {
        Self {
            target: Arc::clone(target),
            lanes,
            shortest,
            total,
            burst_size: rate as usize,
            next_bad: Millis(1_000),
            next_burst: Millis(2_500),
            bursting: None,
            bads: 0,
            cancels: VecDeque::new(),
        }
    }

    /// The next record, `elapsed` after the start, which is `now` by the calendar; `None` when whatever is written now
    /// would not be due before the end.
    pub(super) fn next(
        &mut self,
        number: u32,
        elapsed: Millis,
        now: UnixMillis,
        random: &mut impl Rng,
    ) -> Option<Submission> {
        let left = self.total.saturating_sub(elapsed).saturating_sub(MARGIN);
        let key = KEYS.choose(random).copied().unwrap_or_default();
        let kind = self.kind(elapsed, left, now, random)?;
        if let Kind::Cancelled(delay) = kind {
            self.cancels.push_back((elapsed + delay.half(), number, key));
        }
        Some(self.submission(number, key, kind))
    }

    /// A record whose time to be cancelled has come: its number, and what cancels it.
    pub(super) fn cancel(&mut self, elapsed: Millis) -> Option<(u32, Record)> {
        let at = self.cancels.iter().position(|(from, ..)| *from <= elapsed)?;
        let (_, number, key) = self.cancels.remove(at)?;
        let headers = [(header::ACTION, "cancel".to_owned()), (header::ID, id(number))];
        let headers = headers.iter().map(|(name, value)| (name.as_bytes(), Some(value.as_bytes())));
        Some((number, Record::new(Some(key.as_bytes()), None, headers)))
    }

    /// How many records a burst adds at this moment.
    pub(super) fn burst(&self) -> usize {
        self.bursting.map_or(0, |(_, left)| left)
    }

    fn kind(
        &mut self,
        elapsed: Millis,
        left: Millis,
        now: UnixMillis,
        random: &mut impl Rng,
    ) -> Option<Kind> {
        if let Some((due, more)) = self.bursting {
            self.bursting = (more > 1).then(|| (due, more - 1));
            return Some(Kind::Until(due));
        }
        if elapsed >= self.next_burst && left > BURST_DELAY + Millis(1_000) {
            self.next_burst = self.next_burst + BURST_EVERY;
            let due = UnixMillis((now.0 / 1_000 + 1) * 1_000) + BURST_DELAY;
            self.bursting = (self.burst_size > 1).then_some((due, self.burst_size - 1));
            return Some(Kind::Until(due));
        }
        if elapsed >= self.next_bad && left > Millis(0) {
            self.next_bad = self.next_bad + BAD_EVERY;
            self.bads += 1;
            return Some(Kind::Bad(BADS[(self.bads - 1) % BADS.len()]));
        }
        let most = DELAYS_MS.iter().filter(|delay| **delay <= left.0).count();
        let delay = Millis(*DELAYS_MS[..most].choose(random)?);
        Some(match random.random_range(0..100) {
            0..4 if self.shortest <= left => Kind::Direct,
            4..7 => Kind::Foreign(delay),
            7..15 if delay >= CANCEL_DELAY_MIN => Kind::Cancelled(delay),
            _ => Kind::After(delay),
        })
    }

    fn submission(&self, number: u32, key: &str, kind: Kind) -> Submission {
        let id = id(number);
        let number = number.to_string();
        let mut headers: Vec<(&str, String)> = vec![(NUMBER, number)];
        let target = self.target.to_string();
        let mut destination = Destination::Intake;
        let expect = match kind {
            Kind::After(delay) | Kind::Foreign(delay) => {
                headers.extend([(header::DELAY, delay.to_string()), (header::TARGET, target)]);
                if let Kind::Foreign(_) = kind {
                    let own = murmur2::partition(key.as_bytes(), self.lanes);
                    destination = Destination::Partition((own + 1) % self.lanes);
                }
                Expect::After(delay)
            }
            Kind::Cancelled(delay) => {
                headers.extend([(header::DELAY, delay.to_string()), (header::TARGET, target)]);
                headers.push((header::ID, id));
                Expect::After(delay)
            }
            Kind::Until(due) => {
                headers.extend([(header::UNTIL, due.0.to_string()), (header::TARGET, target)]);
                Expect::At(due)
            }
            Kind::Direct => {
                headers.push((header::TARGET, target));
                destination = Destination::Tier;
                Expect::After(self.shortest)
            }
            Kind::Bad(code) => {
                let five = "5s".to_owned();
                match code {
                    Code::BadDelay => {
                        headers
                            .extend([(header::DELAY, "soon".to_owned()), (header::TARGET, target)]);
                    }
                    Code::ConflictingDirectives => headers.extend([
                        (header::DELAY, five),
                        (header::UNTIL, "2030-01-01T00:00:00Z".to_owned()),
                        (header::TARGET, target),
                    ]),
                    Code::TargetDenied => headers.extend([
                        (header::DELAY, five),
                        (header::TARGET, "somebody-elses-topic".to_owned()),
                    ]),
                    Code::UnknownHeader => headers.extend([
                        ("x-delay-untill", five),
                        (header::DELAY, "5s".to_owned()),
                        (header::TARGET, target),
                    ]),
                    _ => headers.push((header::DELAY, five)),
                }
                Expect::Dead(code)
            }
        };
        let value = format!("{{\"leaf\":\"{key}\",\"wish\":\"{kind:?}\"}}");
        let headers = headers.iter().map(|(name, value)| (name.as_bytes(), Some(value.as_bytes())));
        let record = Record::new(Some(key.as_bytes()), Some(value.as_bytes()), headers);
        Submission { destination, record, expect }
    }
}

/// The id of a record that is to be cancelled.
fn id(number: u32) -> String {
    format!("leaf-{number}")
}

/// The number that a record of the demo carries.
pub(super) fn number_of(record: &Record) -> Option<u32> {
    let (_, value) = record.headers().find(|(name, _)| *name == NUMBER.as_bytes())?;
    std::str::from_utf8(value?).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng as _;
    use rand::rngs::StdRng;

    use super::*;

    /// Every record of a demo of `seconds` at `rate` a second, with when it was written.
    fn whole(seconds: u64, rate: u32) -> Vec<(Millis, Submission)> {
        let mut random = StdRng::seed_from_u64(7);
        let target = Arc::from("submissions");
        let total = Millis(seconds * 1_000);
        let mut workload = Workload::new(&target, 4, Millis(1_000), total, rate);
        let mut submissions = Vec::new();
        for step in 0..seconds * u64::from(rate) {
            let at = Millis(step * 1_000 / u64::from(rate));
            let now = UnixMillis(1_700_000_000_300) + at;
            for _ in 0..=workload.burst() {
                let submission = workload.next(submissions.len() as u32, at, now, &mut random);
                submissions.extend(submission.map(|submission| (at, submission)));
            }
        }
        submissions
    }

    #[test]
    fn whatever_is_written_falls_due_before_the_end() {
        for seconds in [2, 6, 30] {
            for (at, submission) in whole(seconds, 50) {
                let due = match submission.expect {
                    Expect::After(delay) => UnixMillis(1_700_000_000_300) + at + delay,
                    Expect::At(due) => due,
                    Expect::Dead(_) => continue,
                };
                let end = UnixMillis(1_700_000_000_300) + Millis(seconds * 1_000);
                assert!(due + MARGIN <= end, "{seconds} s, written at {at}: {submission:?}");
            }
        }
    }

    #[test]
    fn what_is_to_be_cancelled_is_cancelled_once_and_well_before_it_is_due() {
        let mut random = StdRng::seed_from_u64(7);
        let total = Millis(30_000);
        let mut workload = Workload::new(&Arc::from("submissions"), 4, Millis(1_000), total, 200);
        let (mut ids, mut number) = (std::collections::BTreeMap::new(), 0);
        let mut cancelled = 0;
        for at in (0..30_000).step_by(5).map(Millis) {
            while let Some((number, cancel)) = workload.cancel(at) {
                let read = header::read(cancel.headers()).expect("sound");
                assert_eq!(read.action, header::TimerAction::Cancel);
                let id = read.id.expect("an id").to_vec();
                let (key, due): (Vec<u8>, Millis) = ids.remove(&id).expect("written before");
                assert_eq!(cancel.key(), Some(&*key), "{number}");
                assert!(at + Millis(1_495) <= due, "{number}: at {at}, due {due}");
                cancelled += 1;
            }
            if let Some(submission) =
                workload.next(number, at, UnixMillis(1_700_000_000_300) + at, &mut random)
            {
                let Expect::After(delay) = submission.expect else { continue };
                let read = header::read(submission.record.headers()).expect("sound");
                let (id, key) =
                    (read.id.map(<[u8]>::to_vec), submission.record.key().map(<[u8]>::to_vec));
                ids.extend(id.map(|id| (id, (key.expect("a key"), at + delay))));
            }
            number += 1;
        }
        assert_eq!((ids.len(), cancelled > 50), (0, true), "{cancelled}");
    }

    #[test]
    fn every_way_in_and_every_kind_of_bad_record_is_taken() {
        let submissions = whole(30, 200);
        let count = |what: &dyn Fn(&Submission) -> bool| {
            submissions.iter().filter(|(_, o)| what(o)).count()
        };
        assert!(count(&|o| o.destination == Destination::Tier) > 50);
        assert!(count(&|o| matches!(o.destination, Destination::Partition(_))) > 50);
        assert!(count(&|o| matches!(o.expect, Expect::At(_))) > 500);
        for code in BADS {
            assert!(count(&|o| o.expect == Expect::Dead(code)) >= 2, "{code}");
        }
        assert!(count(&|o| matches!(o.expect, Expect::Dead(_))) < 20);
    }

    #[test]
    fn the_contract_refuses_the_bad_ones_as_expected_and_no_other() {
        let key = "amber";
        for (_, submission) in whole(30, 50) {
            let read = header::read(submission.record.headers()).map_err(|refusal| refusal.code);
            match submission.expect {
                // These two are not read from the headers: the engine finds them.
                Expect::Dead(code @ (Code::MissingTarget | Code::TargetDenied)) => {
                    assert!(read.is_ok(), "{code}");
                }
                Expect::Dead(code) => assert_eq!(read.err(), Some(code)),
                _ => assert!(read.is_ok(), "{key}: {submission:?}"),
            }
        }
    }

    #[test]
    fn a_record_carries_its_number() {
        let (_, submission) = whole(2, 50).remove(3);
        assert_eq!(number_of(&submission.record), Some(3));
        assert_eq!(number_of(&Record::empty()), None);
    }
}
