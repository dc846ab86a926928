//! Whether a transaction ended cleanly, and what follows if it did not (docs/adr/0004).
//!
//! librdkafka speaks EndTxn v1 and repeats requests by itself. So a late EndTxn could end a *later* transaction (KAFKA-17754,
//! librdkafka 5423), and late offsets could move those of a later one back. A commit that says OK is clean only if none of
//! the transaction's requests can still be on its way.
//!
//! # Invariants
//! 1. A transaction is clean only if its commit took at most half of `socket.timeout.ms`, all of it less than
//!    `socket.timeout.ms`, and no connection has ended since its producer was made.
//! 2. After anything else the producer is renewed, and the lanes are taken over again from what is committed.
//! 3. What came to stand at a wrong time was found by us. It is told as that, whatever rights we have.
//! 4. A transaction that Kafka refused, without a name of a record, blames a record or a target only if our own topics can be
//!    written to.

use std::sync::Arc;
use std::time::Duration;

use super::append_times::Untimely;
use super::blame::{ErrorClass, Failures};
use crate::{BatchId, Blame, Refused};

/// How much longer a client looks for a coordinator that does not answer, on a new connection.
const RECONNECT_MAX: Duration = Duration::from_secs(2);
/// What a batch may take beside twice the transaction's time: for its offsets, and for its commit.
const BESIDE_MAX: Duration = Duration::from_secs(15);

/// Why a producer is renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewed {
    /// A newer owner of the name fenced it.
    Fenced,
    /// Kafka refused a record, or a target.
    Refused,
    /// Kafka asked for the transaction to be aborted.
    Aborted,
    /// Nobody knows whether the commit happened.
    Unknown,
    /// The commit, or all of the transaction, took longer than is safe.
    Slow,
    /// A connection of the producer ended.
    Disconnected,
    /// A hop came to stand too late for its tier.
    Late,
    /// A record came to stand before it was due: a broker's clock was set back.
    Early,
    /// A record came to stand after it had expired.
    Expired,
}

impl Renewed {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Fenced,
        Self::Refused,
        Self::Aborted,
        Self::Unknown,
        Self::Slow,
        Self::Disconnected,
        Self::Late,
        Self::Early,
        Self::Expired,
    ];
}

/// A step of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A new producer gets its epoch.
    Init,
    /// The transaction begins.
    Begin,
    /// Its records are handed to the client.
    Produce,
    /// Its offsets are added to it.
    SendOffsets,
    /// All of its records are waited for.
    Flush,
    /// It is committed.
    Commit,
}

impl Step {
    /// As logs say it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Init => "init",
            Self::Begin => "begin",
            Self::Produce => "produce",
            Self::SendOffsets => "send_offsets",
            Self::Flush => "flush",
            Self::Commit => "commit",
        }
    }
}

/// How long the client's calls may take.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// `socket.timeout.ms`: after this long the client repeats a request.
    pub socket_timeout: Duration,
    /// `transaction.timeout.ms`.
    pub transaction_timeout: Duration,
}

impl Patience {
    /// How long a transaction's offsets are waited for. A coordinator that stands still is asked once more, on a new
    /// connection; another client finds another one sooner.
    #[must_use]
    pub fn for_offsets(self) -> Duration {
        self.transaction_timeout.min(self.socket_timeout + RECONNECT_MAX)
    }

    /// How long a commit is waited for, of a transaction that has taken so long. Where that is all of
    /// `socket.timeout.ms`, its coordinator may be what stands still, and its producers are not used again anyway.
    #[must_use]
    pub fn for_commit(self, took: Duration) -> Duration {
        if took < self.socket_timeout { self.transaction_timeout } else { RECONNECT_MAX }
    }

    /// How long a batch is waited for, from when it is handed over. Each of its waits is bounded, so one that takes longer
    /// hangs: it is left behind.
    #[must_use]
    pub fn for_batch(self) -> Duration {
        2 * self.transaction_timeout + BESIDE_MAX
    }
}

/// What was seen of a transaction whose commit said OK.
#[derive(Clone, Copy, Debug)]
pub struct Course {
    /// How long it took, from its begin.
    pub took: Duration,
    /// How long its commit took.
    pub commit: Duration,
    /// A connection of its producer has ended since that was made: of a second one at the same broker within 30 s librdkafka
    /// says nothing.
    pub disconnected: bool,
}

impl Course {
    /// Whether it was clean.
    ///
    /// # Errors
    /// One of its requests may have been sent again while the first one is still on its way.
    pub fn clean(self, patience: Patience) -> Result<(), Dirty> {
        let dirty = |reason, detail| Err(Dirty { step: Step::Commit, reason, blame: None, detail });
        let Self { took, commit, disconnected } = self;
        if commit > patience.socket_timeout / 2 {
            return dirty(Renewed::Slow, format!("the commit took {commit:?}"));
        }
        if took >= patience.socket_timeout {
            return dirty(Renewed::Slow, format!("the transaction took {took:?}"));
        }
        if disconnected {
            return dirty(Renewed::Disconnected, "a connection to a broker ended".to_owned());
        }
        Ok(())
    }
}

/// An error of the client's.
#[derive(Clone, Debug)]
pub struct Broken {
    /// What kind it is.
    pub class: ErrorClass,
    /// It was told while partitions were added to the transaction.
    pub of_partitions: bool,
    /// In words.
    pub detail: String,
}

/// Why a producer is not used again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dirty {
    /// Where it was found.
    pub step: Step,
    reason: Renewed,
    /// What the failure may be due to, if no record was named.
    blame: Option<Blame>,
    /// In words.
    pub detail: String,
}

/// What follows from a failure, beside a new producer and lanes that are taken over again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    /// Why the producer is renewed.
    pub reason: Renewed,
    /// What Kafka refused, if that is why.
    pub refused: Option<Refused>,
    /// Topics of records that were not taken in time.
    pub doubted: Vec<Arc<str>>,
}

impl Dirty {
    /// A step failed. Of a commit nobody knows then whether it happened.
    #[must_use]
    pub fn broken(step: Step, broken: Broken) -> Self {
        let Broken { class, of_partitions, detail } = broken;
        let reason = match (step, class) {
            (Step::Commit, _) => Renewed::Unknown,
            (_, ErrorClass::Fenced) => Renewed::Fenced,
            _ => Renewed::Aborted,
        };
        Self { step, reason, blame: class.blame_of_transaction(of_partitions), detail }
    }

    /// A record was refused, or could not be handed over, or stands nowhere: [`Failures`] know which.
    #[must_use]
    pub fn not_written(step: Step, detail: String) -> Self {
        Self { step, reason: Renewed::Aborted, blame: None, detail }
    }

    /// What was written must not be committed.
    #[must_use]
    pub fn untimely(found: Untimely) -> Self {
        let (reason, blame, detail) = match found {
            Untimely::Early(detail) => (Renewed::Early, None, detail),
            Untimely::Expired(detail) => (Renewed::Expired, Some(Blame::Expired), detail),
            Untimely::Late(detail) => (Renewed::Late, Some(Blame::Late), detail),
        };
        Self { step: Step::Commit, reason, blame, detail }
    }

    /// Whether it must be asked if our own topics can be written to, before anybody is blamed: a transaction whose partitions cannot
    /// be added does not say which.
    #[must_use]
    pub fn must_ask_for_rights(&self) -> bool {
        self.blame.is_some_and(|blame| !is_ours(blame))
    }

    /// What follows. `batch`: the only one that can have failed. `may_write`: our own topics can be written to, as far as
    /// that [must be asked](Self::must_ask_for_rights).
    #[must_use]
    pub fn to_failure(
        &self,
        batch: Option<BatchId>,
        may_write: bool,
        failures: &mut Failures,
    ) -> Failed {
        let blame = self.blame.filter(|blame| is_ours(*blame) || may_write);
        let refused = failures.take_refused().or_else(|| {
            let why = self.detail.as_str().into();
            Some(Refused { batch: batch?, named: Vec::new(), blame: blame?, why })
        });
        let by_kafka = refused.as_ref().is_some_and(|refused| !is_ours(refused.blame));
        let reason = if by_kafka { Renewed::Refused } else { self.reason };
        Failed { reason, refused, doubted: failures.take_doubted() }
    }
}

/// What came to stand at a wrong time was found out by us: no right of ours has to do with it.
fn is_ours(blame: Blame) -> bool {
    matches!(blame, Blame::Late | Blame::Expired)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Patience = Patience {
        socket_timeout: Duration::from_secs(8),
        transaction_timeout: Duration::from_secs(15),
    };

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_transaction_is_clean_only_if_no_request_of_it_can_be_on_its_way_still() {
        #[rustfmt::skip]
        let table = [
            (20,    5,     false, None,                        "as mostly"),
            (7_999, 4_000, false, None,                        "as long as it may take"),
            (4_002, 4_001, false, Some(Renewed::Slow),         "its commit may have been repeated"),
            (8_000, 5,     false, Some(Renewed::Slow),         "its offsets may have been"),
            (20,    5,     true,  Some(Renewed::Disconnected), "and these, at once"),
        ];
        for (took, commit, disconnected, want, why) in table {
            let course = Course { took: ms(took), commit: ms(commit), disconnected };
            let found = course.clean(PATIENCE).err();
            assert_eq!(found.as_ref().map(|dirty| dirty.reason), want, "{why}");
            let refused = found
                .map(|dirty| dirty.to_failure(Some(BatchId(1)), true, &mut Failures::default()))
                .and_then(|failed| failed.refused);
            assert_eq!(refused, None, "nobody is to blame for that");
        }
    }

    #[test]
    fn a_coordinator_that_stands_still_is_waited_for_no_longer_than_another_one_takes() {
        assert_eq!(PATIENCE.for_offsets(), ms(10_000));
        assert_eq!(
            Patience { transaction_timeout: ms(3_000), ..PATIENCE }.for_offsets(),
            ms(3_000)
        );
        assert_eq!(PATIENCE.for_commit(ms(7_999)), ms(15_000));
        assert_eq!(PATIENCE.for_commit(ms(8_000)), ms(2_000));
    }

    #[test]
    fn a_batch_hangs_only_when_it_takes_longer_than_all_of_its_waits() {
        for (timeout, want) in [(15_000, 45_000), (3_000, 21_000)] {
            let patience = Patience { transaction_timeout: ms(timeout), ..PATIENCE };
            assert_eq!(patience.for_batch(), ms(want));
            // Its records have as long as a transaction; then come its offsets, and its commit.
            let waits = patience.transaction_timeout + patience.for_offsets();
            for took in [ms(0), patience.socket_timeout] {
                assert!(waits + patience.for_commit(took) <= patience.for_batch());
            }
        }
    }

    #[test]
    fn a_failure_blames_who_was_named_else_what_its_error_says_else_nobody() {
        let broken = |step, class, of_partitions| {
            Dirty::broken(step, Broken { class, of_partitions, detail: "d".to_owned() })
        };
        let late = Dirty::untimely(Untimely::Late("d".to_owned()));
        let expired = Dirty::untimely(Untimely::Expired("d".to_owned()));
        let early = Dirty::untimely(Untimely::Early("d".to_owned()));
        let not_written = Dirty::not_written(Step::Produce, "d".to_owned());
        #[rustfmt::skip]
        let table = [
            (broken(Step::Commit, ErrorClass::TooLarge, false),  true,  Some(Blame::Record),  Renewed::Refused),
            (broken(Step::Commit, ErrorClass::Forbidden, true),  true,  Some(Blame::Target),  Renewed::Refused),
            (broken(Step::Commit, ErrorClass::Forbidden, true),  false, None,                 Renewed::Unknown),
            (broken(Step::Commit, ErrorClass::Forbidden, false), true,  None,                 Renewed::Unknown),
            (broken(Step::Commit, ErrorClass::Fenced, false),    true,  None,                 Renewed::Unknown),
            (broken(Step::Begin, ErrorClass::Fenced, false),     true,  None,                 Renewed::Fenced),
            (broken(Step::Flush, ErrorClass::Other, false),      true,  None,                 Renewed::Aborted),
            (not_written,                                        true,  None,                 Renewed::Aborted),
            (late,                                               false, Some(Blame::Late),    Renewed::Late),
            (expired,                                            false, Some(Blame::Expired), Renewed::Expired),
            (early,                                              false, None,                 Renewed::Early),
        ];
        for (dirty, may_write, want, reason) in table {
            // Nothing is asked of what we found ourselves.
            assert!(may_write || dirty.must_ask_for_rights() || reason != Renewed::Unknown);
            let failed = dirty.to_failure(Some(BatchId(3)), may_write, &mut Failures::default());
            let blamed = failed.refused.as_ref().map(|refused| refused.blame);
            assert_eq!((blamed, failed.reason), (want, reason), "{dirty:?}");
            let nobody = dirty.to_failure(None, may_write, &mut Failures::default());
            assert_eq!(nobody.refused, None, "no batch can have failed");
            // A record that was named is to blame, whatever the transaction's own error says.
            let mut failures = Failures::default();
            failures.add(Some((BatchId(2), 5)), ErrorClass::InvalidRecord, "t", || "w".to_owned());
            let named = dirty.to_failure(Some(BatchId(3)), may_write, &mut failures);
            let refused = named.refused.map(|refused| (refused.batch, refused.named));
            assert_eq!((refused, named.reason), (Some((BatchId(2), vec![5])), Renewed::Refused));
        }
    }
}
