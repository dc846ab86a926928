//! Which errors may be due to a record or a target, and which records were refused with them (docs/adr/0004).
//!
//! # Invariants
//! 1. An error that is not in the list is never blamed on a record: none becomes a dead letter because a broker, a network or a
//!    coordinator was away, or because another process has fenced this one.
//! 2. A record that is no part of a batch, such as a checkpoint, is never blamed.
//! 3. What is named belongs to one batch, the first that failed, and to one kind of refusal: of others the next try tells.

use std::sync::Arc;

use crate::{BatchId, Blame, Refused};

/// What kind of error Kafka, or its client, gave. The shell translates its library's codes into these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorClass {
    /// A record, or the request that it was in, is too large.
    TooLarge,
    /// A record lacks what its topic wants, such as a key.
    InvalidRecord,
    /// A rule of the broker's own.
    Policy,
    /// We have no right to that topic.
    Forbidden,
    /// No topic can have that name.
    InvalidTopic,
    /// The topic takes no record of that time.
    InvalidTime,
    /// The topic or the partition is not there, or metadata is late.
    Unknown,
    /// Bytes were damaged, on the way or before.
    Damaged,
    /// A newer producer of the same name is there.
    Fenced,
    /// No producer of this name, or of these settings, will ever be allowed.
    NeverAllowed,
    /// Brokers, networks, coordinators, rebalances, and whatever else there is.
    Other,
}

impl ErrorClass {
    /// What it may be due to; `None`: to no record.
    #[must_use]
    pub fn blame(self) -> Option<Blame> {
        match self {
            Self::TooLarge | Self::InvalidRecord | Self::Policy => Some(Blame::Record),
            // Every delivery has the time at which it leaves: what a topic refuses of that it refuses of all.
            Self::Forbidden | Self::InvalidTopic | Self::InvalidTime => Some(Blame::Target),
            // A topic that was deleted is found missing when the lanes are taken over again, mostly.
            Self::Unknown | Self::Damaged => Some(Blame::Unclear),
            Self::Fenced | Self::NeverAllowed | Self::Other => None,
        }
    }

    /// What a transaction's own error says, when no record was named. Where its partitions were being added to it, that may
    /// be about targets; where its offsets were, it is about topics of our own.
    pub(super) fn blame_of_transaction(self, of_partitions: bool) -> Option<Blame> {
        match self.blame()? {
            Blame::Target | Blame::Unclear if !of_partitions => None,
            blame => Some(blame),
        }
    }
}

/// A record that was refused.
#[derive(Clone, Debug)]
struct Named {
    batch: BatchId,
    /// Its place among the batch's produces.
    at: usize,
    blame: Blame,
    why: Arc<str>,
}

/// Records that were not written, as the client's delivery reports tell it.
#[derive(Debug, Default)]
pub struct Failures {
    /// The first of them, in words.
    first: Option<String>,
    /// Those that were refused for what they are, or for where they go.
    named: Vec<Named>,
    /// Topics of those that were not taken in time, each once.
    doubted: Vec<Arc<str>>,
}

impl Failures {
    /// A record was not written. `place`: its batch, and where in it; `None`: it is of no batch. `what` says it in words. True
    /// if it is the first.
    pub fn add(
        &mut self,
        place: Option<(BatchId, usize)>,
        class: ErrorClass,
        topic: &str,
        what: impl FnOnce() -> String,
    ) -> bool {
        let named = place.zip(class.blame());
        if named.is_none() && !self.doubted.iter().any(|known| **known == *topic) {
            self.doubted.push(topic.into());
        }
        let is_first = self.first.is_none();
        if named.is_none() && !is_first {
            return false;
        }
        let what = what();
        if let Some(((batch, at), blame)) = named {
            self.named.push(Named { batch, at, blame, why: what.as_str().into() });
        }
        if is_first {
            self.first = Some(what);
        }
        is_first
    }

    /// A record was refused before it was on its way: its error is told by itself, and it is no failure of a report.
    pub fn refuse(&mut self, (batch, at): (BatchId, usize), class: ErrorClass, what: &str) {
        if let Some(blame) = class.blame() {
            self.named.push(Named { batch, at, blame, why: what.into() });
        }
    }

    /// Whether any record failed.
    #[must_use]
    pub fn any(&self) -> bool {
        self.first.is_some()
    }

    /// Whether any record was refused for what it is, or for where it goes.
    #[must_use]
    pub fn is_any_refused(&self) -> bool {
        !self.named.is_empty()
    }

    /// The first, in words; only once.
    pub fn take_first(&mut self) -> Option<String> {
        self.first.take()
    }

    /// Topics of records that were not taken in time, and no record was to blame.
    pub(super) fn take_doubted(&mut self) -> Vec<Arc<str>> {
        std::mem::take(&mut self.doubted)
    }

    /// The first batch's refusals of one kind.
    pub(super) fn take_refused(&mut self) -> Option<Refused> {
        let named = std::mem::take(&mut self.named);
        let (batch, blame) =
            named.iter().map(|one| (one.batch, one.blame)).min_by_key(|of| of.0)?;
        let mut of = named.into_iter().filter(|one| (one.batch, one.blame) == (batch, blame));
        let first = of.next()?;
        let mut places = vec![first.at];
        places.extend(of.map(|one| one.at));
        places.sort_unstable();
        Some(Refused { batch, named: places, blame, why: first.why })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ALL: [ErrorClass; 11] = [
        ErrorClass::TooLarge,
        ErrorClass::InvalidRecord,
        ErrorClass::Policy,
        ErrorClass::Forbidden,
        ErrorClass::InvalidTopic,
        ErrorClass::InvalidTime,
        ErrorClass::Unknown,
        ErrorClass::Damaged,
        ErrorClass::Fenced,
        ErrorClass::NeverAllowed,
        ErrorClass::Other,
    ];

    #[test]
    fn no_record_is_blamed_for_fencing_rights_of_the_producer_and_the_rest_of_the_world() {
        for class in ALL {
            let is_nobodys =
                matches!(class, ErrorClass::Fenced | ErrorClass::NeverAllowed | ErrorClass::Other);
            assert_eq!(class.blame().is_none(), is_nobodys, "{class:?}");
        }
    }

    #[test]
    fn offsets_that_may_not_be_committed_are_no_fault_of_a_target() {
        assert_eq!(ErrorClass::Forbidden.blame_of_transaction(true), Some(Blame::Target));
        assert_eq!(ErrorClass::Forbidden.blame_of_transaction(false), None);
        assert_eq!(ErrorClass::Unknown.blame_of_transaction(false), None);
        assert_eq!(ErrorClass::TooLarge.blame_of_transaction(false), Some(Blame::Record));
    }

    #[test]
    fn of_several_batches_the_first_is_told_and_of_several_kinds_one() {
        let mut failures = Failures::default();
        #[rustfmt::skip]
        let all = [
            (5, 1, ErrorClass::TooLarge),
            (4, 9, ErrorClass::InvalidRecord),
            (4, 2, ErrorClass::Forbidden),
            (4, 3, ErrorClass::TooLarge),
        ];
        for (batch, at, class) in all {
            failures.add(Some((BatchId(batch), at)), class, "t", || format!("{batch}/{at}"));
        }
        let told = failures.take_refused();
        let told = told.map(|of| (of.batch, of.named, of.blame, of.why));
        assert_eq!(told, Some((BatchId(4), vec![3, 9], Blame::Record, "4/9".into())));
        assert_eq!(failures.take_refused(), None, "only once");
        assert_eq!(failures.take_first().as_deref(), Some("5/1"));
        assert!(failures.take_doubted().is_empty(), "who is to blame makes no topic doubted");
    }

    #[test]
    fn what_belongs_to_no_batch_is_a_failure_and_blames_nobody() {
        let mut failures = Failures::default();
        assert!(failures.add(None, ErrorClass::Forbidden, "meta", || "no right".to_owned()));
        assert!(!failures.add(None, ErrorClass::Other, "meta", || unreachable!("not said")));
        assert_eq!(failures.take_refused(), None);
        assert_eq!(failures.take_doubted(), ["meta".into()]);
        assert!(failures.any());
    }

    fn class() -> impl Strategy<Value = ErrorClass> {
        (0..ALL.len()).prop_map(|at| ALL[at])
    }

    proptest! {
        /// Invariants 1 to 3, whatever the reports say.
        #[test]
        fn who_is_named_was_refused_and_all_of_one_batch_and_kind(
            reports in proptest::collection::vec((proptest::option::of((0..4_u64, 0..9_usize)), class()), 0..40)
        ) {
            let mut failures = Failures::default();
            for (place, class) in &reports {
                let place = place.map(|(batch, at)| (BatchId(batch), at));
                failures.add(place, *class, "t", || "w".to_owned());
            }
            prop_assert_eq!(failures.any(), !reports.is_empty());
            let blamed: Vec<_> = reports
                .iter()
                .filter_map(|(place, class)| Some(((*place)?, class.blame()?)))
                .collect();
            match failures.take_refused() {
                None => prop_assert!(blamed.is_empty()),
                Some(told) => {
                    let first = blamed.iter().map(|((batch, _), _)| *batch).min();
                    prop_assert_eq!(Some(told.batch.0), first);
                    let mut want: Vec<usize> = blamed
                        .iter()
                        .filter(|((batch, _), blame)| (*batch, *blame) == (told.batch.0, told.blame))
                        .map(|((_, at), _)| *at)
                        .collect();
                    want.sort_unstable();
                    prop_assert_eq!(told.named, want);
                }
            }
        }
    }
}
