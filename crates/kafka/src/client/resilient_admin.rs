//! An admin client for threads that ask again and again.
//!
//! librdkafka sends a question to the broker that it believes to lead the cluster or a partition. It believes that for up to
//! five minutes. When that broker has died, the same client asks a dead one all that while. A new client knows nothing and
//! asks any broker that answers.
//!
//! # Invariants
//! 1. A client that had no answer is not asked again: it is made anew, once, however many threads had no answer from it.
//! 2. It has a token before each question.
//! 3. No thread waits for a client to close: that takes a tenth of a second, and can hang.

use parking_lot::Mutex;
use std::sync::Arc;

use rdkafka::error::{KafkaError, RDKafkaErrorCode};

use super::Connection;
use super::connect::{Asker, aside};
use super::errors::ErrorKind;

/// One client, for each thread that has a clone of this.
#[derive(Clone)]
pub(crate) struct ResilientAdmin(Arc<Shared>);

struct Shared {
    connection: Connection,
    /// How the client is named in the brokers' logs.
    client_id: &'static str,
    client: Mutex<Arc<Client>>,
}

/// It is closed on a thread of its own, whichever thread asks it last.
struct Client(Option<Asker>);

impl Drop for Client {
    fn drop(&mut self) {
        if let Some(admin) = self.0.take() {
            aside(admin);
        }
    }
}

impl ResilientAdmin {
    /// Makes the first client.
    ///
    /// # Errors
    /// librdkafka refused its settings.
    pub(crate) fn new(
        connection: &Connection,
        client_id: &'static str,
    ) -> Result<Self, KafkaError> {
        let client = Arc::new(Client(Some(connection.asker(client_id)?)));
        let (connection, client) = (connection.clone(), Mutex::new(client));
        Ok(Self(Arc::new(Shared { connection, client_id, client })))
    }

    /// Asks what one broker alone may leave unanswered: the next question goes by the same client, whatever comes of this one.
    pub(crate) fn ask_one_broker<T>(&self, question: impl FnOnce(&Asker) -> T) -> T {
        let client = self.0.client();
        question(self.0.ready(&client))
    }

    /// Asks. After an error the next question goes by a new client.
    ///
    /// # Errors
    /// Those of the question.
    pub(crate) fn ask<T, E>(&self, question: impl FnOnce(&Asker) -> Result<T, E>) -> Result<T, E> {
        self.ask_parts(|admin| question(admin).map(|answer| (answer, Vec::new())))
    }

    /// Asks a question whose parts brokers answer each for themselves, and that gives the errors of the parts, too. If one of
    /// the brokers was silent, the next question goes by a new client.
    ///
    /// # Errors
    /// Those of the question.
    pub(crate) fn ask_parts<T, E>(
        &self,
        question: impl FnOnce(&Asker) -> Result<(T, Vec<RDKafkaErrorCode>), E>,
    ) -> Result<T, E> {
        let client = self.0.client();
        let told = question(self.0.ready(&client));
        let is_silent = told
            .as_ref()
            .map_or(true, |(_, parts)| parts.iter().any(|code| ErrorKind::of(*code).is_silence()));
        if is_silent {
            self.0.renew(&client);
        }
        told.map(|(answer, _)| answer)
    }
}

impl Shared {
    fn client(&self) -> Arc<Client> {
        Arc::clone(&self.client.lock())
    }

    /// The client, with the token in hand.
    fn ready<'a>(&self, client: &'a Client) -> &'a Asker {
        let admin = client.0.as_ref().expect("it is taken only when it is dropped");
        self.connection.token(admin);
        admin
    }

    /// Makes a new client in the place of one that had no answer, if no other thread has done so.
    fn renew(&self, silent: &Arc<Client>) {
        let mut client = self.client.lock();
        if !Arc::ptr_eq(&client, silent) {
            return;
        }
        match self.connection.asker(self.client_id) {
            Ok(fresh) => *client = Arc::new(Client(Some(fresh))),
            Err(error) => {
                tracing::warn!(%error, client = self.client_id, "no new client, the old one is asked again");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::settings::Given;

    #[test]
    fn a_client_that_had_no_answer_is_made_anew_and_another_goes_on() {
        use RDKafkaErrorCode as Code;
        // Nobody is there: whether there was an answer is said by the questions.
        let connection = Connection::new("127.0.0.1:1", Given::new());
        let admin = ResilientAdmin::new(&connection, "test").unwrap();
        let parts = |codes: &[Code]| {
            let told = admin.ask_parts(|_| Ok::<_, KafkaError>(((), codes.to_vec())));
            assert_eq!(told, Ok(()));
        };
        type Case<'a> = (&'a str, bool, &'a dyn Fn());
        #[rustfmt::skip]
        let table: [Case<'_>; 6] = [
            ("an answer",               false, &|| assert_eq!(admin.ask(|_| Ok::<_, KafkaError>(1)), Ok(1))),
            ("no answer",               true,  &|| assert!(admin.ask(|_| Err::<(), _>(KafkaError::AdminOp(Code::OperationTimedOut))).is_err())),
            ("every part was answered", false, &|| parts(&[])),
            ("one was refused",         false, &|| parts(&[Code::TopicAuthorizationFailed, Code::OffsetOutOfRange])),
            ("one was silent",          true,  &|| parts(&[Code::TopicAuthorizationFailed, Code::OperationTimedOut])),
            ("one leads no more",       true,  &|| parts(&[Code::NotLeaderForPartition])),
        ];
        for (why, want, act) in table {
            let before = admin.0.client();
            act();
            assert_eq!(!Arc::ptr_eq(&admin.0.client(), &before), want, "{why}");
        }
    }

    #[test]
    fn threads_that_had_no_answer_from_one_client_make_one_new_one() {
        let connection = Connection::new("127.0.0.1:1", Given::new());
        let admin = ResilientAdmin::new(&connection, "test").unwrap();
        let (first, other) = (admin.0.client(), admin.clone());
        let silence = || Err::<(), _>(KafkaError::AdminOp(RDKafkaErrorCode::OperationTimedOut));
        // The other one's question is on its way while this one has no answer.
        let told = other.ask(|_| {
            assert!(admin.ask(|_| silence()).is_err());
            silence()
        });
        assert!(told.is_err());
        let second = admin.0.client();
        assert!(!Arc::ptr_eq(&first, &second));
        // What had no answer was the first one: the second one is asked on.
        other.0.renew(&first);
        assert!(Arc::ptr_eq(&second, &other.0.client()));
    }
}
