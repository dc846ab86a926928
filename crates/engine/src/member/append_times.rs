//! Compares when records were appended with when they may be: what is early, what has expired, which hops are late
//! (docs/adr/0025, docs/adr/0013). Finds the brokers' clocks that are behind their believed bounds.
//!
//! A delivery is due by a lower bound of its leader's clock. That bound holds, with two exceptions: the clock was set back since
//! it was last asked, or nobody asks that broker. A record that leaves in between is early by the clock as it is now. Its
//! transaction is aborted, and it waits on, by a bound that this append has shown.
//!
//! A record has expired if its leader says that it was appended later. It has also expired if all clocks are known to be later
//! when its transaction is about to be committed: before that nobody sees it, wherever it stands.
//!
//! # Invariants
//! 1. What must not be committed is known before the commit of its transaction begins, if it can be aborted.
//! 2. Where a topic keeps its writers' times, nothing is known of appends, and no delivery is refused for them. One that has
//!    expired by the lower bound of all clocks is refused there, too.
//! 3. What is told of a batch's late hops is of that batch: of each partition the last offset and the least due time.
//! 4. Every batch that is begun is held until it ends; the engine bounds how many there are.

use std::collections::VecDeque;
use std::time::Duration;

use crate::{BatchId, Offset, Source, UnixMillis};

/// When a record may be appended. The part that hands a batch over gives it for each record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Timing {
    /// At any time.
    #[default]
    Any,
    /// A delivery: not before it is due, and not after it has expired.
    Delivery {
        /// When it is due.
        due: UnixMillis,
        /// Until when it may be there.
        expires: Option<UnixMillis>,
    },
    /// A hop: early enough to come up in time.
    Hop {
        /// The partition that it goes to.
        to: Source,
        /// When its record is due.
        due: UnixMillis,
        /// The last time at which it may be appended.
        last: UnixMillis,
        /// A later one must not be committed; otherwise it is only told.
        must_abort: bool,
    },
}

/// What is known of the brokers' clocks when a batch begins.
#[derive(Clone, Debug, Default)]
pub struct Clocks {
    /// When that is, by the asker's clock: nothing of the batch was appended before.
    pub at: Duration,
    /// All are held to have reached this.
    pub now: UnixMillis,
    /// Brokers whose clocks are known by what they append, and by nothing else.
    pub unprobed: Vec<i32>,
}

/// What a delivery report says of a record that was written.
#[derive(Clone, Copy, Debug, Default)]
pub struct Appended {
    /// Where it stands; `None` where it was sent twice.
    pub offset: Option<Offset>,
    /// The record's time; `None` where it was sent twice.
    pub time: Option<UnixMillis>,
    /// The broker whose clock says so; `None`: the topic keeps its writers' times.
    pub leader: Option<i32>,
}

/// An append tells of its broker's clock what was not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct News {
    /// Whose clock.
    pub leader: i32,
    /// What it said when the record was appended.
    pub appended: UnixMillis,
    /// The append was after this, by the asker's clock.
    pub since: Duration,
}

/// Hops of one batch that came to stand late in one partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LateHop {
    /// Which partition.
    pub source: Source,
    /// The last of them.
    pub offset: Offset,
    /// When the first of them is due.
    pub due: UnixMillis,
}

/// Why a transaction must be aborted that could be committed; with the details in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Untimely {
    /// A record was appended before it was due: a clock was set back, or nobody knew it.
    Early(String),
    /// A record was appended after it had expired.
    Expired(String),
    /// A hop was appended too late for its tier.
    Late(String),
}

/// The batches in flight, and what their delivery reports said of their appends.
#[derive(Debug, Default)]
pub struct Appends {
    /// A transaction can be aborted.
    aborts: bool,
    open: VecDeque<Open>,
}

#[derive(Debug)]
struct Open {
    batch: BatchId,
    clocks: Clocks,
    /// By place in the batch; what was reported is [`Timing::Any`] from then on.
    times: Vec<Timing>,
    /// When the first delivery expires.
    expires: Option<UnixMillis>,
    /// The first delivery that was appended at a wrong time.
    untimely: Option<Untimely>,
    /// The first hop that must not be committed.
    refused: Option<String>,
    late: Vec<LateHop>,
}

impl Appends {
    /// Nothing is in flight. `aborts`: what is not to be there can be taken back.
    #[must_use]
    pub fn new(aborts: bool) -> Self {
        Self { aborts, open: VecDeque::new() }
    }

    /// A batch is about to be produced; `times` are those of its records, in their order.
    pub fn begin(&mut self, batch: BatchId, times: Vec<Timing>, clocks: Clocks) {
        let expires = |timing: &Timing| match timing {
            Timing::Delivery { expires, .. } => *expires,
            _ => None,
        };
        let expires = times.iter().filter_map(expires).min();
        let (untimely, refused, late) = (None, None, Vec::new());
        self.open.push_back(Open { batch, clocks, times, expires, untimely, refused, late });
    }

    /// A record was written: that of this batch at this place, or beyond its places what goes with it. Returns what that tells of
    /// a broker's clock that was not known.
    pub fn appended(
        &mut self,
        (batch, at): (BatchId, usize),
        told: Appended,
        topic: &str,
    ) -> Option<News> {
        let aborts = self.aborts;
        let open = self.open.iter_mut().find(|open| open.batch == batch)?;
        let timing = open.times.get_mut(at).map(std::mem::take).unwrap_or_default();
        let by_clock = told.leader.zip(told.time);
        match timing {
            Timing::Any => {}
            Timing::Delivery { due, expires } if aborts && open.untimely.is_none() => {
                let of = |(_, time)| untimely((due, expires), time, topic);
                open.untimely = by_clock.and_then(of);
            }
            Timing::Delivery { .. } => {}
            Timing::Hop { to, due, last, must_abort } => {
                open.hop(aborts, (to, due), (last, must_abort), told, topic);
            }
        }
        let clocks = &open.clocks;
        let (leader, appended) = by_clock?;
        let is_news = appended < clocks.now || clocks.unprobed.contains(&leader);
        is_news.then_some(News { leader, appended, since: clocks.at })
    }

    /// Why the transaction of this batch, which is about to be committed, must be aborted, if it must. `now`: all clocks have
    /// reached it.
    pub fn before_commit(
        &mut self,
        batch: BatchId,
        now: Option<UnixMillis>,
    ) -> Result<(), Untimely> {
        let Some(open) = self.open.iter_mut().find(|open| open.batch == batch) else {
            return Ok(());
        };
        if let Some(untimely) = open.untimely.take() {
            return Err(untimely);
        }
        let expired = now.zip(open.expires).filter(|(now, expires)| now > expires);
        if let Some((now, expires)) = expired {
            let ago = now - expires;
            return Err(Untimely::Expired(format!("a record had expired {ago} before the commit")));
        }
        open.refused.take().map_or(Ok(()), |late| Err(Untimely::Late(late)))
    }

    /// A batch has ended; returns its hops that came to stand late.
    pub fn end(&mut self, batch: BatchId) -> Vec<LateHop> {
        let at = self.open.iter().position(|open| open.batch == batch);
        at.and_then(|at| self.open.remove(at)).map_or_else(Vec::new, |open| open.late)
    }
}

fn untimely(
    (due, expires): (UnixMillis, Option<UnixMillis>),
    time: UnixMillis,
    topic: &str,
) -> Option<Untimely> {
    if time < due {
        let early = due - time;
        return Some(Untimely::Early(format!(
            "a record for {topic} was appended {early} before it is due, as if a clock was set back"
        )));
    }
    let late = time - expires.filter(|expires| time > *expires)?;
    Some(Untimely::Expired(format!(
        "a record for {topic} was appended {late} after it had expired"
    )))
}

impl Open {
    /// A hop was written.
    fn hop(
        &mut self,
        aborts: bool,
        (source, due): (Source, UnixMillis),
        (last, must_abort): (UnixMillis, bool),
        told: Appended,
        topic: &str,
    ) {
        // Of one that was sent twice nobody knows when its first copy was written.
        let time = told.time.filter(|time| time.0 > 0 && told.offset.is_some());
        if time.is_some_and(|time| time <= last) {
            return;
        }
        let is_refused = must_abort || time.is_none();
        match told.offset {
            Some(offset) if !(aborts && is_refused) => {
                match self.late.iter_mut().find(|late| late.source == source) {
                    Some(late) => {
                        late.offset = late.offset.max(offset);
                        late.due = late.due.min(due);
                    }
                    None => self.late.push(LateHop { source, offset, due }),
                }
            }
            _ if aborts => {
                let overdue = time.map_or(0, |time| time.0.saturating_sub(due.0));
                self.refused.get_or_insert_with(|| {
                    format!(
                        "a hop to {topic} came to stand too late for its tier, {overdue} ms overdue"
                    )
                });
            }
            // Nobody knows where it stands, and it cannot be taken back.
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Lane, TopicId};
    use proptest::prelude::*;

    const BATCH: BatchId = BatchId(7);
    const AT: Duration = Duration::from_secs(3);

    fn clocks(now: u64, unprobed: &[i32]) -> Clocks {
        Clocks { at: AT, now: UnixMillis(now), unprobed: unprobed.to_vec() }
    }

    fn written(leader: i32, time: u64) -> Appended {
        let (offset, time) = (Some(Offset(1)), Some(UnixMillis(time)));
        Appended { offset, time, leader: Some(leader) }
    }

    fn delivery() -> Timing {
        Timing::Delivery { due: UnixMillis(1_000), expires: Some(UnixMillis(1_500)) }
    }

    fn kind(verdict: Result<(), Untimely>) -> i32 {
        match verdict {
            Ok(()) => 0,
            Err(Untimely::Early(_)) => -1,
            Err(Untimely::Expired(_)) => 1,
            Err(Untimely::Late(_)) => 2,
        }
    }

    #[test]
    fn a_delivery_that_was_appended_before_it_is_due_or_after_it_expired_is_found() {
        #[rustfmt::skip]
        let table = [
            (7, 0, 1_000, 0,  "to the millisecond"),
            (7, 0, 999,   -1, "a millisecond early"),
            (7, 0, 0,     -1, "in 1970"),
            (7, 0, 1_500, 0,  "the last millisecond"),
            (7, 0, 1_501, 1,  "a millisecond late"),
            (7, 1, 999,   0,  "a dead letter is not due"),
            (7, 1, 1_501, 0,  "and does not expire"),
            (7, 2, 999,   0,  "a checkpoint is none of the records"),
            (6, 0, 999,   0,  "of a batch that is gone"),
        ];
        for (batch, at, time, want, why) in table {
            let mut of = Appends::new(true);
            of.begin(BATCH, vec![delivery(), Timing::Any], clocks(1_000, &[]));
            of.appended((BatchId(batch), at), written(1, time), "t");
            assert_eq!(kind(of.before_commit(BATCH, None)), want, "{why}");
        }
    }

    #[test]
    fn where_nothing_is_told_of_appends_the_lower_bound_of_all_clocks_says_what_has_expired() {
        for (now, want) in [(None, 0), (Some(1_500), 0), (Some(1_501), 1)] {
            let mut of = Appends::new(true);
            of.begin(BATCH, vec![delivery()], clocks(1_000, &[]));
            let by_writer = Appended { leader: None, ..written(1, 3) };
            assert_eq!(of.appended((BATCH, 0), by_writer, "t"), None);
            assert_eq!(kind(of.before_commit(BATCH, now.map(UnixMillis))), want, "{now:?}");
        }
    }

    #[test]
    fn an_append_is_news_of_a_clock_that_is_behind_or_that_nobody_asks() {
        let mut of = Appends::new(false);
        of.begin(BATCH, vec![delivery()], clocks(1_001, &[2]));
        #[rustfmt::skip]
        let table = [(2, 1_005, true), (1, 1_001, false), (2, 1_002, true), (3, 1_000, true)];
        for (leader, time, want) in table {
            let news = of.appended((BATCH, 9), written(leader, time), "t");
            let appended = UnixMillis(time);
            assert_eq!(news, want.then_some(News { leader, appended, since: AT }));
        }
        assert_eq!(of.before_commit(BATCH, None), Ok(()), "what goes with a batch is never early");
        of.end(BATCH);
        assert_eq!(of.appended((BATCH, 0), written(3, 1), "t"), None, "of a batch that has ended");
    }

    #[test]
    fn a_late_hop_is_refused_where_that_can_be_and_told_where_it_stands_otherwise() {
        let to = |lane| Source { topic: TopicId(1), lane: Lane(lane) };
        let hop = |lane, due, must_abort| {
            let (due, last) = (UnixMillis(due), UnixMillis(100));
            Timing::Hop { to: to(lane), due, last, must_abort }
        };
        let at = |offset, time| Appended {
            offset: Some(Offset(offset)),
            time: Some(UnixMillis(time)),
            leader: Some(1),
        };
        let twice = Appended { leader: Some(1), ..Appended::default() };
        let late = |lane, offset, due| LateHop {
            source: to(lane),
            offset: Offset(offset),
            due: UnixMillis(due),
        };
        #[rustfmt::skip]
        let table = [
            (true,  false, at(5, 100), 0, vec![],                "in time"),
            (true,  false, at(5, 101), 0, vec![late(0, 5, 900)], "told"),
            (true,  true,  at(5, 101), 2, vec![],                "aborted"),
            (false, true,  at(5, 101), 0, vec![late(0, 5, 900)], "it is too late to abort it"),
            (true,  false, twice,      2, vec![],                "nobody knows when"),
            (false, true,  twice,      0, vec![],                "nor where, and it is there"),
            (false, false, at(5, 0),   0, vec![late(0, 5, 900)], "a record without a time"),
        ];
        for (aborts, must_abort, told, verdict, want, why) in table {
            let mut of = Appends::new(aborts);
            of.begin(BATCH, vec![hop(0, 900, must_abort)], clocks(1, &[]));
            of.appended((BATCH, 0), told, "delay.1m");
            assert_eq!(kind(of.before_commit(BATCH, None)), verdict, "{why}");
            assert_eq!(of.end(BATCH), want, "{why}");
        }
        // Two batches, and two partitions.
        let mut of = Appends::new(false);
        for batch in [1, 2] {
            let hops = vec![hop(0, 900, false), hop(0, 800, false), hop(3, 700, false)];
            of.begin(BatchId(batch), hops, clocks(1, &[]));
        }
        for (batch, place, offset) in [(2, 0, 9), (1, 0, 5), (1, 1, 4), (1, 2, 1), (1, 0, 77)] {
            of.appended((BatchId(batch), place), at(offset, 500), "delay.1m");
        }
        assert_eq!(of.end(BatchId(1)), [late(0, 5, 800), late(3, 1, 700)], "each counts once");
        assert_eq!(of.end(BatchId(2)), [late(0, 9, 900)]);
        assert!(of.open.is_empty());
    }

    proptest! {
        /// Invariants 1 and 2: whatever is early or expired by its leader's clock is found, and nothing else is.
        #[test]
        fn a_transaction_is_aborted_if_and_only_if_something_stands_where_it_may_not(
            records in proptest::collection::vec(
                (0..20_u64, proptest::option::of(0..20_u64), 0..40_u64, any::<bool>()), 0..20),
            now in proptest::option::of(0..40_u64),
        ) {
            let mut of = Appends::new(true);
            let expiry = |(due, lasts): (u64, Option<u64>)| lasts.map(|lasts| due + lasts);
            let times = records.iter().map(|(due, lasts, ..)| Timing::Delivery {
                due: UnixMillis(*due),
                expires: expiry((*due, *lasts)).map(UnixMillis),
            });
            of.begin(BATCH, times.collect(), clocks(0, &[]));
            for (at, (_, _, time, is_stamped)) in records.iter().enumerate() {
                let told = Appended { leader: is_stamped.then_some(1), ..written(1, *time) };
                of.appended((BATCH, at), told, "t");
            }
            let is_wrong = |(due, lasts, time, is_stamped): &(u64, Option<u64>, u64, bool)| {
                let expires = expiry((*due, *lasts));
                *is_stamped && (time < due || expires.is_some_and(|at| *time > at))
                    || expires.zip(now).is_some_and(|(at, now)| now > at)
            };
            let verdict = of.before_commit(BATCH, now.map(UnixMillis));
            prop_assert_eq!(verdict.is_err(), records.iter().any(is_wrong));
        }
    }
}
