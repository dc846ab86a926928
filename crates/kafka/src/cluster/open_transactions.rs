//! What open transactions hold back: where the readers of a partition stand before its end, and for how long. Pure.
//!
//! A `read_committed` reader stops at the first open transaction. Waterclock is such a reader, and so are the readers
//! of most targets. A transaction hangs when its producer died and its coordinator has lost it. It holds back
//! everything that is appended behind it, for ever.
//!
//! # Invariants
//! 1. A transaction's age counts from when it was first seen to be the first: it is open for that long at least.
//!    Transactions that come and go, as ours do, have no age.
//! 2. A partition without an answer stays as it was. A partition that was not asked about for a minute is forgotten: it
//!    is another member's, or no target any more. It is not forgotten at once, since a busy lane thread does not report
//!    its partitions.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::client::raw::ask::EndOf;

/// A transaction that holds readers back for longer is told: the time limit of Kafka's own producers.
const LONG: Duration = Duration::from_secs(60);
/// A partition that was not asked about for so long is forgotten.
const FORGET: Duration = Duration::from_secs(60);
/// A transaction that is still open is reported again after this long.
const SAY_AGAIN: Duration = Duration::from_secs(300);

type Partition = (String, i32);

/// The first open transaction of each partition, as it was seen.
#[derive(Debug, Default)]
pub(crate) struct Open {
    first: BTreeMap<Partition, First>,
}

#[derive(Debug)]
struct First {
    stable: i64,
    behind: u64,
    since: Instant,
    asked: Instant,
    said: Option<Instant>,
}

/// A partition whose readers are held back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) topic: String,
    pub(crate) partition: i32,
    /// Where the transaction begins, and readers stand.
    pub(crate) offset: i64,
    /// Offsets from there to the end.
    pub(crate) behind: u64,
    /// How long readers stand there, at least.
    pub(crate) age: Duration,
    /// Somebody is to hear of it now.
    pub(crate) is_to_be_told: bool,
}

impl Open {
    /// Takes in where partitions ended, and where their readers stood after that was asked: what was appended in between
    /// is no open transaction. Gives what is held back.
    pub(crate) fn look(&mut self, last: &[EndOf], stable: &[EndOf], now: Instant) -> Vec<Held> {
        let known = |ends: &[EndOf]| -> BTreeMap<Partition, Option<i64>> {
            let of = |(topic, partition, end): &EndOf| ((topic.clone(), *partition), end.ok());
            ends.iter().map(of).collect()
        };
        let (last, stable) = (known(last), known(stable));
        self.first.retain(|at, first| {
            if last.contains_key(at) {
                first.asked = now;
            }
            now.saturating_duration_since(first.asked) < FORGET
        });
        for (at, end) in last {
            let stable = stable.get(&at).copied().flatten();
            let (Some(end), Some(stable)) = (end, stable) else { continue };
            if stable >= end {
                self.first.remove(&at);
                continue;
            }
            let behind = end.abs_diff(stable);
            let new = || First { stable, behind, since: now, asked: now, said: None };
            let first = self.first.entry(at).or_insert_with(new);
            if first.stable != stable {
                *first = new();
            }
            first.behind = behind;
        }
        self.first.iter_mut().map(|(at, first)| first.held(at, now)).collect()
    }
}

impl First {
    fn held(&mut self, (topic, partition): &Partition, now: Instant) -> Held {
        let age = now.saturating_duration_since(self.since);
        let is_due = |said: Instant| now.saturating_duration_since(said) >= SAY_AGAIN;
        let is_to_be_told = age >= LONG && self.said.is_none_or(is_due);
        if is_to_be_told {
            self.said = Some(now);
        }
        Held {
            topic: topic.clone(),
            partition: *partition,
            offset: self.stable,
            behind: self.behind,
            age,
            is_to_be_told,
        }
    }
}

/// What is held back in all: the longest time, and the sum of the offsets, by the label of the topics.
pub(crate) fn by_label<L: Ord>(
    held: &[Held],
    label: impl Fn(&str) -> L,
) -> BTreeMap<L, (Duration, u64)> {
    let mut sums: BTreeMap<L, (Duration, u64)> = BTreeMap::new();
    for Held { topic, behind, age, .. } in held {
        let (longest, sum) = sums.entry(label(topic)).or_default();
        *longest = (*longest).max(*age);
        *sum += behind;
    }
    sums
}

#[cfg(test)]
mod tests {
    use rdkafka::error::RDKafkaErrorCode;

    use super::*;

    fn ends(ends: &[(i32, Option<i64>)]) -> Vec<EndOf> {
        let away = Err(RDKafkaErrorCode::OperationTimedOut);
        ends.iter().map(|(at, end)| ("t".to_owned(), *at, end.map_or(away, Ok))).collect()
    }

    #[test]
    fn a_transaction_is_as_old_as_readers_were_seen_to_stand_at_it() {
        type Ends<'a> = &'a [(i32, Option<i64>)];
        type Step<'a> = (&'a str, u64, Ends<'a>, Ends<'a>, &'a [(i32, i64, u64, u64)]);
        let all: Ends<'_> = &[(0, Some(10)), (1, Some(5))];
        #[rustfmt::skip]
        let steps: [Step<'_>; 10] = [
            // why,                                     at s, last,               stable,                       partition, offset, behind, age s
            ("nothing is open",                            0, all,                all,                          &[]),
            ("one begins",                                15, all,                &[(0, Some(7)), (1, Some(5))], &[(0, 7, 3, 0)]),
            ("the same, and more stands behind it",       30, &[(0, Some(20)), (1, Some(5))], &[(0, Some(7)), (1, Some(5))], &[(0, 7, 13, 15)]),
            ("its leader does not answer",                45, &[(0, None), (1, Some(5))], &[(0, None), (1, Some(5))], &[(0, 7, 13, 30)]),
            ("it answers one of the two questions",       50, &[(0, Some(30)), (1, Some(5))], &[(0, None)],     &[(0, 7, 13, 35)]),
            ("it has ended, and another is the first",    60, &[(0, Some(30)), (1, Some(5))], &[(0, Some(22)), (1, Some(5))], &[(0, 22, 8, 0)]),
            ("what was appended since is not open",       75, all,                &[(0, Some(12)), (1, Some(5))], &[]),
            ("both",                                      90, all,                &[(0, Some(9)), (1, Some(1))], &[(0, 9, 1, 0), (1, 1, 4, 0)]),
            ("a thread is busy and does not say it has 0", 105, &[(1, Some(5))], &[(1, Some(1))],             &[(0, 9, 1, 15), (1, 1, 4, 15)]),
            ("0 is another member's",                    150, &[(1, Some(5))],    &[(1, Some(1))],              &[(1, 1, 4, 60)]),
        ];
        let (mut open, began) = (Open::default(), Instant::now());
        for (why, at, last, stable, want) in steps {
            let held = open.look(&ends(last), &ends(stable), began + Duration::from_secs(at));
            let held: Vec<_> =
                held.iter().map(|h| (h.partition, h.offset, h.behind, h.age.as_secs())).collect();
            assert_eq!(held, want, "{why}");
        }
    }

    #[test]
    fn one_that_is_open_for_long_is_told_and_again_after_minutes() {
        let (mut open, began) = (Open::default(), Instant::now());
        let told = (0..=480).step_by(15).filter(|at| {
            let now = began + Duration::from_secs(*at);
            open.look(&ends(&[(0, Some(9))]), &ends(&[(0, Some(2))]), now)[0].is_to_be_told
        });
        assert_eq!(told.collect::<Vec<_>>(), [60, 360]);
    }

    #[test]
    fn topics_of_one_label_are_one_figure() {
        let held = |topic: &str, behind, age| Held {
            topic: topic.to_owned(),
            partition: 0,
            offset: 0,
            behind,
            age: Duration::from_secs(age),
            is_to_be_told: false,
        };
        let held = [held("intake", 3, 9), held("a", 1, 5), held("b", 2, 4)];
        let sums = by_label(&held, |topic| if topic == "intake" { "intake" } else { "targets" });
        let want =
            [("intake", (Duration::from_secs(9), 3)), ("targets", (Duration::from_secs(5), 3))];
        assert_eq!(sums, want.into());
    }
}
