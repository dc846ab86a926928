//! Which errors may be due to a record or a target, and which records were refused with them.
//!
//! An error that is not in the list is never blamed on a record. No record becomes a dead letter because a broker, a
//! network or a coordinator was away, or because another process has fenced this one.

use std::sync::Arc;

use rdkafka::error::RDKafkaErrorCode as Error;

use waterclock_engine::{BatchId, Blame, Refused};

/// What an error of Kafka's may be due to; `None`: to no record.
pub(super) fn blame(error: Error) -> Option<Blame> {
    match error {
        Error::MessageSizeTooLarge
        | Error::MessageBatchTooLarge
        | Error::InvalidMessageSize
        | Error::InvalidRecord
        | Error::PolicyViolation => Some(Blame::Record),
        // Every delivery has the time at which it leaves: what a topic refuses of that it refuses of all.
        Error::TopicAuthorizationFailed | Error::InvalidTopic | Error::InvalidTimestamp => {
            Some(Blame::Target)
        }
        // A topic that was deleted is found missing when the lanes are taken over anew, mostly.
        Error::UnknownTopicOrPartition
        | Error::UnknownTopic
        | Error::UnknownPartition
        | Error::InvalidMessage
        | Error::BadMessage => Some(Blame::Unclear),
        _ => None,
    }
}

/// Whether a transaction failed because its partitions could not be added to it. The same codes are told when its
/// offsets could not, which is about topics of our own.
fn of_partitions(text: &str) -> bool {
    text.contains("add partition")
}

/// What a transaction's own error says, when no record was named.
pub(super) fn of_transaction(error: Error, text: &str) -> Option<Blame> {
    match blame(error)? {
        Blame::Target | Blame::Unclear if !of_partitions(text) => None,
        blame => Some(blame),
    }
}

/// A record that was refused.
#[derive(Debug)]
pub(super) struct Named {
    pub(super) batch: BatchId,
    /// Its place among the batch's sends.
    pub(super) at: usize,
    pub(super) blame: Blame,
    pub(super) why: Arc<str>,
}

/// Which record a delivery report is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Of {
    pub(super) batch: BatchId,
    /// Its place among the batch's sends, or [`CHECKPOINT`].
    pub(super) at: usize,
    /// It goes to `<ns>.timers`, where it stands matters.
    pub(super) is_timer: bool,
}

impl Of {
    /// As it goes with the record.
    pub(super) fn opaque(self) -> usize {
        ((self.batch.0 as usize) << (AT_BITS + 1))
            | (usize::from(self.is_timer) << AT_BITS)
            | self.at.min(AT_MAX)
    }

    /// As it comes back.
    pub(super) fn read(opaque: usize) -> Self {
        Self {
            batch: BatchId((opaque >> (AT_BITS + 1)) as u64),
            at: opaque & AT_MAX,
            is_timer: opaque >> AT_BITS & 1 == 1,
        }
    }
}

/// A batch has some ten thousand records.
const AT_BITS: u32 = 24;
const AT_MAX: usize = (1 << AT_BITS) - 1;
/// The place of a checkpoint, which is no send of any batch.
pub(super) const CHECKPOINT: usize = AT_MAX;

/// The first batch's refusals of one kind: of several kinds the others come again.
pub(super) fn gather(named: Vec<Named>) -> Option<Refused> {
    let (batch, blame) = named.iter().map(|one| (one.batch, one.blame)).min_by_key(|of| of.0)?;
    let mut of = named.into_iter().filter(|one| (one.batch, one.blame) == (batch, blame));
    let first = of.next()?;
    let mut places = vec![first.at];
    places.extend(of.map(|one| one.at));
    places.sort_unstable();
    Some(Refused { batch, named: places, blame, why: first.why })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_record_is_blamed_for_troubles_of_brokers_networks_and_coordinators() {
        #[rustfmt::skip]
        let table = [
            (Error::MessageSizeTooLarge,        Some(Blame::Record),  "too large, alone or with its neighbours"),
            (Error::InvalidRecord,              Some(Blame::Record),  "a compacted topic wants a key"),
            (Error::InvalidTimestamp,           Some(Blame::Target),  "the time is that of the delivery, and the same for all"),
            (Error::PolicyViolation,            Some(Blame::Record),  "a broker's own rule"),
            (Error::TopicAuthorizationFailed,   Some(Blame::Target),  "holds for all of its records"),
            (Error::UnknownTopic,               Some(Blame::Unclear), "deleted, or metadata that is late"),
            (Error::MessageTimedOut,            None, "a broker was away"),
            (Error::PurgeQueue,                 None, "we dropped it ourselves"),
            (Error::PurgeInflight,              None, "and this"),
            (Error::BrokerTransportFailure,     None, "the network"),
            (Error::NotLeaderForPartition,      None, "a leader moved"),
            (Error::NotEnoughReplicas,          None, "replicas are away"),
            (Error::NotCoordinator,             None, "the coordinator moved"),
            (Error::ProducerFenced,             None, "another has our name"),
            (Error::IllegalGeneration,          None, "a rebalance"),
            (Error::OffsetMetadataTooLarge,     None, "our own doing"),
            (Error::GroupAuthorizationFailed,   None, "the operator's to mend"),
            (Error::TransactionalIdAuthorizationFailed, None, "the operator's to mend"),
            (Error::KafkaStorageError,          None, "a disk"),
            (Error::Unknown,                    None, "a broker that is ill says this of anything"),
        ];
        for (error, want, why) in table {
            assert_eq!(blame(error), want, "{error:?}: {why}");
        }
    }

    #[test]
    fn offsets_that_may_not_be_committed_are_no_fault_of_a_target() {
        let error = Error::TopicAuthorizationFailed;
        let added =
            "Failed to add partition(s) to transaction on broker a: Topic authorization failed";
        assert_eq!(of_transaction(error, added), Some(Blame::Target));
        let offsets =
            "Failed to commit offsets to transaction on broker a: Topic authorization failed";
        assert_eq!(of_transaction(error, offsets), None);
        assert_eq!(of_transaction(Error::UnknownTopicOrPartition, offsets), None);
    }

    #[test]
    fn a_place_comes_back_as_it_was_given() {
        for (batch, at, is_timer) in
            [(0, 0, false), (1, 9_999, true), (1 << 38, AT_MAX, false), (7, 1, true)]
        {
            let of = Of { batch: BatchId(batch), at, is_timer };
            assert_eq!(Of::read(of.opaque()), of);
        }
    }

    #[test]
    fn of_several_batches_the_first_is_told_and_of_several_kinds_one() {
        let named = |batch, at, blame| Named { batch: BatchId(batch), at, blame, why: "w".into() };
        let all = vec![
            named(5, 1, Blame::Record),
            named(4, 9, Blame::Record),
            named(4, 2, Blame::Target),
            named(4, 3, Blame::Record),
        ];
        let told = gather(all).map(|told| (told.batch, told.named, told.blame));
        assert_eq!(told, Some((BatchId(4), vec![3, 9], Blame::Record)));
        assert_eq!(gather(Vec::new()), None);
    }
}
