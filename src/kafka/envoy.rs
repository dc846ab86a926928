//! An admin client for a thread that asks again and again.
//!
//! librdkafka sends a question to whatever broker it was told leads, the cluster or a partition, and believes that for up to
//! five minutes: when that broker has died, the same client asks a dead one all that while. A new client knows nothing and
//! asks whoever answers.
//!
//! # Invariants
//! 1. A client that had no answer is not asked again: it is made anew.
//! 2. It has a token before each question.

use rdkafka::error::{KafkaError, RDKafkaErrorCode};

use super::Connection;
use super::connect::{Admin, aside};

/// Whoever asks again and again.
pub(super) struct Envoy {
    connection: Connection,
    /// How the client is named in the brokers' logs.
    client_id: &'static str,
    admin: Admin,
}

impl Envoy {
    /// Makes the first client.
    ///
    /// # Errors
    /// librdkafka refused its settings.
    pub(super) fn new(
        connection: &Connection,
        client_id: &'static str,
    ) -> Result<Self, KafkaError> {
        let admin = connection.admin(client_id)?;
        Ok(Self { connection: connection.clone(), client_id, admin })
    }

    /// Asks; who asks next after an error does so by a new client.
    ///
    /// # Errors
    /// Those of the question.
    pub(super) fn ask<T, E>(
        &mut self,
        question: impl FnOnce(&Admin) -> Result<T, E>,
    ) -> Result<T, E> {
        self.connection.token(self.admin.inner());
        let answer = question(&self.admin);
        if answer.is_err() {
            self.renew();
        }
        answer
    }

    /// Takes in what was said of the parts of a question that brokers answer each for themselves: if one of them was
    /// silent, the next question goes by a new client.
    pub(super) fn heard(&mut self, parts: impl IntoIterator<Item = RDKafkaErrorCode>) {
        if parts.into_iter().any(is_silence) {
            self.renew();
        }
    }

    fn renew(&mut self) {
        match self.connection.admin(self.client_id) {
            // Closing the old one takes a while, and can hang.
            Ok(fresh) => aside(std::mem::replace(&mut self.admin, fresh)),
            Err(error) => {
                tracing::warn!(%error, client = self.client_id, "no new client, the old one is asked again");
            }
        }
    }
}

/// Whether a broker gave no answer, rather than one that is not liked.
fn is_silence(code: RDKafkaErrorCode) -> bool {
    matches!(
        code,
        RDKafkaErrorCode::OperationTimedOut
            | RDKafkaErrorCode::RequestTimedOut
            | RDKafkaErrorCode::MessageTimedOut
            | RDKafkaErrorCode::TimedOutQueue
            | RDKafkaErrorCode::BrokerTransportFailure
            | RDKafkaErrorCode::AllBrokersDown
            | RDKafkaErrorCode::WaitingForCoordinator
            | RDKafkaErrorCode::NotLeaderForPartition
            | RDKafkaErrorCode::LeaderNotAvailable
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kafka::settings::Given;

    #[test]
    fn a_client_that_had_no_answer_is_made_anew_and_another_goes_on() {
        use RDKafkaErrorCode as Code;
        // Nobody is there: whether there was an answer is said by the questions.
        let connection = Connection::new("127.0.0.1:1", Given::new());
        let mut envoy = Envoy::new(&connection, "test").unwrap();
        // The next one is made before the last one goes, so they never have the same address.
        let is_another = |envoy: &mut Envoy, act: &dyn Fn(&mut Envoy)| {
            let before = envoy.admin.inner().native_ptr();
            act(envoy);
            envoy.admin.inner().native_ptr() != before
        };
        type Case<'a> = (&'a str, bool, &'a dyn Fn(&mut Envoy));
        #[rustfmt::skip]
        let table: [Case<'_>; 6] = [
            ("an answer",               false, &|envoy| assert_eq!(envoy.ask(|_| Ok::<_, KafkaError>(1)), Ok(1))),
            ("no answer",               true,  &|envoy| assert!(envoy.ask(|_| Err::<(), _>(KafkaError::AdminOp(Code::OperationTimedOut))).is_err())),
            ("every part was answered", false, &|envoy| envoy.heard([])),
            ("one was refused",         false, &|envoy| envoy.heard([Code::TopicAuthorizationFailed, Code::OffsetOutOfRange])),
            ("one was silent",          true,  &|envoy| envoy.heard([Code::TopicAuthorizationFailed, Code::OperationTimedOut])),
            ("one leads no more",       true,  &|envoy| envoy.heard([Code::NotLeaderForPartition])),
        ];
        for (why, want, act) in table {
            assert_eq!(is_another(&mut envoy, act), want, "{why}");
        }
    }
}
