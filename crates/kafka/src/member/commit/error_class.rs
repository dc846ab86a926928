//! What an error of Kafka's means for a batch: the engine's class of each kind.

use rdkafka::error::{KafkaError, RDKafkaErrorCode};

use crate::client::errors::{self, ErrorKind, On};
use waterclock_engine::member::{Broken, ErrorClass};

/// The class of a code.
pub(super) fn class_of(code: RDKafkaErrorCode) -> ErrorClass {
    of_kind(ErrorKind::of(code))
}

/// The class of an error; without a code it is nobody's fault.
pub(super) fn class(error: &KafkaError) -> ErrorClass {
    of_kind(errors::kind(error))
}

fn of_kind(kind: ErrorKind) -> ErrorClass {
    match kind {
        ErrorKind::TooLarge => ErrorClass::TooLarge,
        ErrorKind::InvalidRecord => ErrorClass::InvalidRecord,
        ErrorKind::Policy => ErrorClass::Policy,
        ErrorKind::NoRight(On::Topic) => ErrorClass::Forbidden,
        ErrorKind::TopicName => ErrorClass::InvalidTopic,
        ErrorKind::TimeRefused => ErrorClass::InvalidTime,
        ErrorKind::TopicMissing => ErrorClass::Unknown,
        ErrorKind::Damaged => ErrorClass::Damaged,
        ErrorKind::ProducerFenced => ErrorClass::Fenced,
        kind if kind.is_wrong_setup() => ErrorClass::NeverAllowed,
        _ => ErrorClass::Other,
    }
}

/// An error of a transaction's step. The same codes are told when its partitions could not be added to it and when its offsets
/// could not: only the text tells one from the other.
pub(super) fn broken(class: ErrorClass, detail: String) -> Broken {
    Broken { class, of_partitions: detail.contains("add partition"), detail }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdkafka::error::RDKafkaErrorCode as Error;
    use waterclock_engine::Blame;

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
            assert_eq!(class_of(error).blame(), want, "{error:?}: {why}");
        }
    }

    #[test]
    fn partitions_that_could_not_be_added_are_told_from_offsets_that_could_not() {
        let added =
            "Failed to add partition(s) to transaction on broker a: Topic authorization failed";
        assert!(broken(ErrorClass::Forbidden, added.to_owned()).of_partitions);
        let offsets =
            "Failed to commit offsets to transaction on broker a: Topic authorization failed";
        assert!(!broken(ErrorClass::Forbidden, offsets.to_owned()).of_partitions);
    }
}
