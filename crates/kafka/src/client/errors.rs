//! What each error of Kafka means for the caller: one list for the whole crate.
//!
//! A caller asks for the [`ErrorKind`] of an error, or one of the questions below it, and never for a code. So a code that
//! Kafka adds is sorted in once.
//!
//! # Invariants
//! 1. Every code has one kind. What is not listed is [`ErrorKind::Other`]: nobody may conclude anything from it.
//! 2. No other file names a code; `tests/layers.rs` holds the crate to that. `client/raw` hands codes on as librdkafka gives
//!    them, and says with [`no_answer`] that there was none.

use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};

/// What an error means, and what the caller should do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum ErrorKind {
    /// A broker, or the way to it, is away. Wait: librdkafka connects again by itself.
    BrokerAway,
    /// None of the brokers is there. Wait; why was said of each of them before.
    AllBrokersAway,
    /// A broker's name has no address. Wait as for a broker that is away; at a start, name it to the user.
    NoAddress,
    /// There was no answer in time. What was asked for may have been done: look before you do it again.
    NoAnswer,
    /// Another broker leads the partition, or none does yet. Ask again.
    LeaderMoved,
    /// Another broker coordinates the group or the transaction. Ask again.
    CoordinatorMoved,
    /// The topic or the partition is not there, or the broker has not heard of it yet. Ask again for a while; then it is
    /// missing.
    TopicMissing,
    /// No topic can have this name. Never ask again.
    TopicName,
    /// The topic is there already. It is as good as made.
    TopicExists,
    /// The group is not there. It is as good as deleted.
    GroupMissing,
    /// The group has members, and so is not deleted. Wait until they have left.
    GroupBusy,
    /// Our principal has no right to this. Name the right to the user; ask again, since it may be given.
    NoRight(On),
    /// The broker refused our name and password, our token or our certificate. Name it to the user.
    LoginRefused,
    /// Another producer has our transactional id. Drop this one: what it had open is decided.
    ProducerFenced,
    /// Another member has our `group.instance.id`. End: there is one too many.
    MemberFenced,
    /// The position is not in the log: what was to be read next was deleted, or the log was cut. Begin where the log begins,
    /// and say that records are gone.
    OffsetOutOfRange,
    /// Everything that a partition had is read. No error.
    EndOfPartition,
    /// The client's own queue is full; nothing was sent. Wait a millisecond, and hand it over again.
    QueueFull,
    /// The client dropped it before the broker had it. It is not written.
    Dropped,
    /// The client dropped it while it was on its way. It may be written.
    DroppedInFlight,
    /// A record, or a batch with its neighbours, is larger than the broker takes. Send it alone; then it is the record's fault.
    TooLarge,
    /// The broker refused a record for its form, as one without a key in a compacted topic. The next one may be good.
    InvalidRecord,
    /// A rule of the broker's own refused a record. The next one may be good.
    Policy,
    /// The broker refused the time of a record, which all records of a topic share. None will be better.
    TimeRefused,
    /// The broker found the bytes of a request wrong. Whose they are is not said.
    Damaged,
    /// A batch could not be inflated: there was no room, or its checksum is wrong. Ask for it again.
    BadCompression,
    /// The brokers cannot do what our settings ask for. Name it to the user: it does not change by itself.
    Unsupported,
    /// The client can do nothing any more. Make a new one.
    ClientFatal,
    /// Nothing is known about it. Say it, and go on as if it passed.
    Other,
}

/// What a right is missing on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum On {
    /// A topic.
    Topic,
    /// A group.
    Group,
    /// The cluster.
    Cluster,
    /// A transactional id.
    TransactionalId,
}

impl ErrorKind {
    /// The kind of a code.
    pub(crate) fn of(code: Code) -> Self {
        match code {
            Code::BrokerTransportFailure => Self::BrokerAway,
            Code::AllBrokersDown => Self::AllBrokersAway,
            Code::Resolve => Self::NoAddress,
            Code::OperationTimedOut
            | Code::RequestTimedOut
            | Code::MessageTimedOut
            | Code::TimedOutQueue => Self::NoAnswer,
            Code::NotLeaderForPartition
            | Code::LeaderNotAvailable
            // librdkafka's own word for a partition that has no leader now.
            | Code::NoEnt
            | Code::FencedLeaderEpoch
            | Code::UnknownLeaderEpoch
            | Code::OffsetNotAvailable => Self::LeaderMoved,
            Code::WaitingForCoordinator
            | Code::NotCoordinator
            | Code::CoordinatorNotAvailable
            | Code::CoordinatorLoadInProgress => Self::CoordinatorMoved,
            Code::UnknownTopicOrPartition | Code::UnknownTopic | Code::UnknownPartition => {
                Self::TopicMissing
            }
            Code::InvalidTopic => Self::TopicName,
            Code::TopicAlreadyExists => Self::TopicExists,
            Code::GroupIdNotFound => Self::GroupMissing,
            Code::NonEmptyGroup => Self::GroupBusy,
            Code::TopicAuthorizationFailed => Self::NoRight(On::Topic),
            Code::GroupAuthorizationFailed => Self::NoRight(On::Group),
            Code::ClusterAuthorizationFailed => Self::NoRight(On::Cluster),
            Code::TransactionalIdAuthorizationFailed => Self::NoRight(On::TransactionalId),
            Code::Authentication | Code::SaslAuthenticationFailed | Code::SSL => Self::LoginRefused,
            Code::Fenced | Code::ProducerFenced => Self::ProducerFenced,
            Code::FencedInstanceId => Self::MemberFenced,
            Code::AutoOffsetReset | Code::OffsetOutOfRange => Self::OffsetOutOfRange,
            Code::PartitionEOF => Self::EndOfPartition,
            Code::QueueFull => Self::QueueFull,
            Code::PurgeQueue => Self::Dropped,
            Code::PurgeInflight => Self::DroppedInFlight,
            Code::MessageSizeTooLarge | Code::MessageBatchTooLarge | Code::InvalidMessageSize => {
                Self::TooLarge
            }
            Code::InvalidRecord => Self::InvalidRecord,
            Code::PolicyViolation => Self::Policy,
            Code::InvalidTimestamp => Self::TimeRefused,
            Code::InvalidMessage | Code::BadMessage => Self::Damaged,
            Code::BadCompression => Self::BadCompression,
            Code::InvalidTransactionTimeout | Code::UnsupportedFeature => Self::Unsupported,
            Code::Fatal => Self::ClientFatal,
            _ => Self::Other,
        }
    }

    /// Whether librdkafka gets over it by itself. Go on with the same client; only long silence is an end.
    pub(crate) fn is_passing(self) -> bool {
        self.is_silence() || self == Self::NoAddress
    }

    /// Whether nobody gave an answer, rather than one that is not liked. The client that asked may go on asking a broker that
    /// has died: ask by a new one.
    pub(crate) fn is_silence(self) -> bool {
        matches!(
            self,
            Self::NoAnswer
                | Self::BrokerAway
                | Self::AllBrokersAway
                | Self::LeaderMoved
                | Self::CoordinatorMoved
        )
    }

    /// Whether only a connection is lost. It is not worth a line of the log: librdkafka says it, too.
    pub(crate) fn is_lost_connection(self) -> bool {
        matches!(self, Self::BrokerAway | Self::AllBrokersAway | Self::NoAddress | Self::NoAnswer)
    }

    /// Whether a topic that was made a moment ago is answered so, by brokers that have not heard all of it. Ask again for a
    /// while.
    pub(crate) fn may_be_new(self) -> bool {
        matches!(self, Self::LeaderMoved | Self::TopicMissing)
    }

    /// Whether a record that failed with it may have been written. Read before you write it again.
    pub(crate) fn may_be_written(self) -> bool {
        matches!(
            self,
            Self::NoAnswer | Self::BrokerAway | Self::AllBrokersAway | Self::DroppedInFlight
        )
    }

    /// Whether reading does not go on until a person mends something. Tell the user.
    pub(crate) fn is_lasting(self) -> bool {
        matches!(self, Self::ClientFatal | Self::NoRight(On::Topic) | Self::TopicMissing)
    }

    /// Whether a person has to mend how we log in, or the address. Tell the user at once: waiting helps nobody.
    pub(crate) fn is_refusal(self) -> bool {
        matches!(self, Self::LoginRefused | Self::NoAddress)
    }

    /// Whether no producer with these settings will ever start. Tell the user, and end.
    pub(crate) fn is_wrong_setup(self) -> bool {
        matches!(self, Self::NoRight(On::TransactionalId | On::Cluster) | Self::Unsupported)
    }
}

/// Whether a later producer has begun under our transactional id, or Kafka has ended our transaction at its time limit. The
/// coordinator says so by its own code, and a broker that a record goes to by another one.
pub(crate) fn is_of_old_epoch(code: Code) -> bool {
    code == Code::InvalidProducerEpoch || ErrorKind::of(code) == ErrorKind::ProducerFenced
}

/// The code of an error, where it has one. rdkafka's own function leaves out the errors of admin requests.
pub(crate) fn code(error: &KafkaError) -> Option<Code> {
    match error {
        KafkaError::AdminOp(code) => Some(*code),
        KafkaError::PartitionEOF(_) => Some(Code::PartitionEOF),
        error => error.rdkafka_error_code(),
    }
}

/// The kind of an error.
pub(crate) fn kind(error: &KafkaError) -> ErrorKind {
    code(error).map_or(ErrorKind::Other, ErrorKind::of)
}

/// Whether the client is being closed: whatever it is asked fails at once.
pub(crate) fn is_closing(error: &KafkaError) -> bool {
    code(error) == Some(Code::BrokerDestroy)
}

/// Whether a consumer can do nothing any more. What it was fenced by is in its kind.
pub(crate) fn is_consumer_lost(error: &KafkaError) -> bool {
    matches!(error, KafkaError::MessageConsumptionFatal(_)) || kind(error) == ErrorKind::ClientFatal
}

/// What a question comes to that is not asked, since no broker is there.
pub(crate) fn away() -> KafkaError {
    KafkaError::AdminOp(Code::BrokerTransportFailure)
}

/// That there was no answer in time, as librdkafka would say it.
pub(crate) fn no_answer() -> KafkaError {
    KafkaError::OffsetFetch(NO_ANSWER)
}

/// That another member changes what we ask for, as a coordinator says it of a member whose place is taken.
pub(crate) fn unsettled() -> KafkaError {
    KafkaError::OffsetFetch(Code::IllegalGeneration)
}

/// Whether a broker answered that it had not waited for the others to do the same: its own part is done. Its client says
/// [`NO_ANSWER`] when there was no answer at all.
pub(crate) fn is_done_by_leader(code: Code) -> bool {
    code == Code::RequestTimedOut
}

/// Whether the client knows the topic, but not this partition of it. It may have been added since the client asked last.
pub(crate) fn is_partition_unknown(error: &KafkaError) -> bool {
    code(error) == Some(Code::UnknownPartition)
}

/// The code of a part that was not answered in time.
pub(crate) const NO_ANSWER: Code = Code::OperationTimedOut;

/// That a topic is not in the brokers' answer, as they would say it of one that is not there.
pub(crate) const NO_TOPIC: Code = Code::UnknownTopicOrPartition;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_admin_requests_error_has_a_kind_like_any_other() {
        let code = Code::TopicAuthorizationFailed;
        for error in [KafkaError::AdminOp(code), KafkaError::MessageConsumption(code)] {
            assert_eq!(kind(&error), ErrorKind::NoRight(On::Topic), "{error}");
        }
        assert_eq!(kind(&KafkaError::PartitionEOF(1)), ErrorKind::EndOfPartition);
        assert_eq!(kind(&KafkaError::Canceled), ErrorKind::Other);
        assert_eq!(kind(&no_answer()), ErrorKind::NoAnswer);
    }

    #[test]
    fn what_the_caller_is_told_to_do_follows_from_the_kind() {
        /// passing, silence, lost connection, may be new, may be written, lasting, refusal, wrong setup
        fn told(kind: ErrorKind) -> [bool; 8] {
            [
                kind.is_passing(),
                kind.is_silence(),
                kind.is_lost_connection(),
                kind.may_be_new(),
                kind.may_be_written(),
                kind.is_lasting(),
                kind.is_refusal(),
                kind.is_wrong_setup(),
            ]
        }
        let (x, o) = (true, false);
        #[rustfmt::skip]
        let table = [
            //                                     passing silence lost new written lasting refusal setup
            (Code::BrokerTransportFailure,             [x, x, x, o, x, o, o, o], "the network"),
            (Code::AllBrokersDown,                     [x, x, x, o, x, o, o, o], "the network"),
            (Code::Resolve,                            [x, o, x, o, o, o, x, o], "a name without an address"),
            (Code::OperationTimedOut,                  [x, x, x, o, x, o, o, o], "ours"),
            (Code::RequestTimedOut,                    [x, x, x, o, x, o, o, o], "the broker's"),
            (Code::MessageTimedOut,                    [x, x, x, o, x, o, o, o], "a produce"),
            (Code::TimedOutQueue,                      [x, x, x, o, x, o, o, o], "a request that was not sent in time"),
            (Code::NotLeaderForPartition,              [x, x, o, x, o, o, o, o], "a leader moved"),
            (Code::LeaderNotAvailable,                 [x, x, o, x, o, o, o, o], "nobody leads yet"),
            (Code::FencedLeaderEpoch,                  [x, x, o, x, o, o, o, o], "we know an old leader"),
            (Code::UnknownLeaderEpoch,                 [x, x, o, x, o, o, o, o], "the broker does not know that it leads yet"),
            (Code::OffsetNotAvailable,                 [x, x, o, x, o, o, o, o], "it leads, and does not know its log's end yet"),
            (Code::WaitingForCoordinator,              [x, x, o, o, o, o, o, o], "librdkafka looks for it"),
            (Code::NotCoordinator,                     [x, x, o, o, o, o, o, o], "it moved"),
            (Code::UnknownTopicOrPartition,            [o, o, o, x, o, x, o, o], "deleted, or new"),
            (Code::UnknownTopic,                       [o, o, o, x, o, x, o, o], "the same, by librdkafka"),
            (Code::UnknownPartition,                   [o, o, o, x, o, x, o, o], "the same, by librdkafka"),
            (Code::TopicAuthorizationFailed,           [o, o, o, o, o, x, o, o], "the operator's to mend"),
            (Code::GroupAuthorizationFailed,           [o, o, o, o, o, o, o, o], "asked again"),
            (Code::ClusterAuthorizationFailed,         [o, o, o, o, o, o, o, x], "no idempotent producer"),
            (Code::TransactionalIdAuthorizationFailed, [o, o, o, o, o, o, o, x], "no transaction"),
            (Code::InvalidTransactionTimeout,          [o, o, o, o, o, o, o, x], "the brokers allow less"),
            (Code::UnsupportedFeature,                 [o, o, o, o, o, o, o, x], "old brokers"),
            (Code::SaslAuthenticationFailed,           [o, o, o, o, o, o, x, o], "a wrong password"),
            (Code::SSL,                                [o, o, o, o, o, o, x, o], "a wrong certificate"),
            (Code::PurgeQueue,                         [o, o, o, o, o, o, o, o], "never sent"),
            (Code::PurgeInflight,                      [o, o, o, o, x, o, o, o], "on its way"),
            (Code::Fatal,                              [o, o, o, o, o, x, o, o], "a new client"),
            (Code::OffsetOutOfRange,                   [o, o, o, o, o, o, o, o], "a kind of its own"),
            (Code::Unknown,                            [o, o, o, o, o, o, o, o], "a broker that is ill says this of anything"),
        ];
        for (code, want, why) in table {
            assert_eq!(told(ErrorKind::of(code)), want, "{code:?}: {why}");
        }
    }
}
