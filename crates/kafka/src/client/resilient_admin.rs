//! An admin client for threads that ask again and again.
//!
//! librdkafka sends a question to the broker that it believes to lead the cluster or a partition. It believes that for up to
//! five minutes. When that broker has died, the same client asks a dead one all that while. A new client knows nothing and
//! asks any broker that answers.
//!
//! While a question waits for a broker that is away, librdkafka connects to it again and again, without the pause of
//! `reconnect.backoff.ms` (2,500 times in 4 s were seen). So when nobody has answered, a plain connection shows whether
//! anybody would, before librdkafka is asked again.
//!
//! # Invariants
//! 1. A client that had no answer is not asked again: it is created again, once, however many threads had no answer from it.
//! 2. It has a token before each question.
//! 3. No thread waits for a client to close: that takes a tenth of a second, and can hang.
//! 4. While no broker takes a connection, one question goes out every [`TRY_EVERY`]: brokers may be where nobody has heard of.
//!    All others fail at once.

use parking_lot::Mutex;
use std::net::{TcpStream, ToSocketAddrs as _};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::metadata::Metadata;

use super::Connection;
use super::connect::{Asker, aside};
use super::errors::{self, ErrorKind};
use super::raw::ask::{self, End, EndOf};

/// How long a broker may take to accept a connection.
const CONNECT_MAX: Duration = Duration::from_millis(300);
/// Between two looks whether any broker takes connections.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Between two questions while no broker takes connections.
const TRY_EVERY: Duration = Duration::from_secs(30);
/// Brokers that are tried in one look, at most.
const LOOK_AT_MOST: usize = 8;

/// One client, for each thread that has a clone of this.
#[derive(Clone)]
pub(crate) struct ResilientAdmin(Arc<Shared>);

struct Shared {
    connection: Connection,
    /// How the client is named in the brokers' logs.
    client_id: &'static str,
    client: Mutex<Arc<Client>>,
    /// `host:port` of each broker, by the last metadata.
    brokers: Mutex<Vec<String>>,
    outage: Mutex<Outage>,
}

/// Whether the brokers answer.
#[derive(Clone, Copy, Debug, Default)]
enum Outage {
    #[default]
    None,
    /// The last question had no answer.
    Suspected,
    /// No broker took a connection: when that was seen last, and when a question went out last.
    Seen { at: Instant, tried: Instant },
}

/// An answer, and the errors of its parts.
type Parts<T, E> = Result<(T, Vec<RDKafkaErrorCode>), E>;

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
        let (brokers, outage) = (Mutex::default(), Mutex::default());
        Ok(Self(Arc::new(Shared { connection, client_id, client, brokers, outage })))
    }

    /// Takes down where the brokers are. Until then it is not looked whether they take connections.
    pub(crate) fn remember(&self, metadata: &Metadata) {
        let brokers = metadata.brokers().iter();
        *self.0.brokers.lock() =
            brokers.map(|broker| format!("{}:{}", broker.host(), broker.port())).collect();
    }

    /// Asks. After an error the next question goes by a new client.
    ///
    /// # Errors
    /// Those of the question; or no broker takes a connection.
    pub(crate) fn ask<T, E: From<KafkaError>>(
        &self,
        question: impl FnOnce(&Asker) -> Result<T, E>,
    ) -> Result<T, E> {
        self.ask_parts(|admin| question(admin).map(|answer| (answer, Vec::new())))
    }

    /// Asks where partitions begin or end. If one of their leaders was silent, the next question goes by a new client.
    ///
    /// # Errors
    /// No answer in time; or no broker takes a connection.
    pub(crate) fn ends(
        &self,
        partitions: &[(String, i32)],
        end: End,
        within: Duration,
    ) -> Result<Vec<EndOf>, KafkaError> {
        self.ask_parts(|admin| ends(admin, partitions, end, within))
    }

    /// The same of partitions of one leader: the next question goes by the same client, whatever comes of this one.
    ///
    /// # Errors
    /// As [`ends`](Self::ends).
    pub(crate) fn ends_of_one_leader(
        &self,
        partitions: &[(String, i32)],
        end: End,
        within: Duration,
    ) -> Result<Vec<EndOf>, KafkaError> {
        let (_, parts) = self.ask_once(|admin| ends(admin, partitions, end, within))?;
        parts.map(|(answer, _)| answer)
    }

    /// Asks a question whose parts brokers answer each for themselves, and that gives the errors of the parts, too. If one of
    /// the brokers was silent, the next question goes by a new client.
    ///
    /// # Errors
    /// Those of the question; or no broker takes a connection.
    pub(crate) fn ask_parts<T, E: From<KafkaError>>(
        &self,
        question: impl FnOnce(&Asker) -> Parts<T, E>,
    ) -> Result<T, E> {
        let (client, parts) = self.ask_once(question)?;
        if is_silence(&parts) {
            self.0.renew(&client);
        }
        parts.map(|(answer, _)| answer)
    }

    /// Asks, and gives the client that was asked. It stays the one of the next question.
    fn ask_once<T, E>(
        &self,
        question: impl FnOnce(&Asker) -> Parts<T, E>,
    ) -> Result<(Arc<Client>, Parts<T, E>), KafkaError> {
        self.0.look()?;
        let client = self.0.client();
        let parts = question(self.0.ready(&client));
        self.0.note(is_silence(&parts));
        Ok((client, parts))
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

    /// Whether a question may go out.
    fn look(&self) -> Result<(), KafkaError> {
        let now = Instant::now();
        let before = *self.outage.lock();
        let tried = match before {
            Outage::None => return Ok(()),
            Outage::Seen { at, .. } if now - at < LOOK_EVERY => return Err(errors::away()),
            Outage::Seen { tried, .. } => tried,
            // The question that had no answer.
            Outage::Suspected => now,
        };
        // Without the lock: it takes a while.
        let is_away = !self.takes_connections();
        let tries = now - tried >= TRY_EVERY;
        let tried = if tries { now } else { tried };
        *self.outage.lock() = match is_away {
            true => Outage::Seen { at: Instant::now(), tried },
            false => Outage::None,
        };
        if is_away && !tries { Err(errors::away()) } else { Ok(()) }
    }

    /// Whether one of the brokers takes a connection; so it is assumed where none is known. Those that were given are tried,
    /// too: all that were heard of may be gone.
    fn takes_connections(&self) -> bool {
        let brokers = self.brokers.lock().clone();
        // A few of many, and others each time.
        let from = rand::random_range(0..brokers.len().max(1));
        let given = self.connection.brokers.split(',').map(|broker| broker.trim().to_owned());
        let some = brokers.iter().cycle().skip(from).take(brokers.len().min(LOOK_AT_MOST)).cloned();
        let others = given.filter(|given| !brokers.contains(given));
        brokers.is_empty() || some.chain(others).any(|broker| takes_connection(&broker))
    }

    /// Takes down whether a question had no answer.
    fn note(&self, is_silent: bool) {
        let mut outage = self.outage.lock();
        *outage = match (is_silent, *outage) {
            (false, _) => Outage::None,
            (true, Outage::Seen { at, tried }) => Outage::Seen { at, tried },
            (true, _) => Outage::Suspected,
        };
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

/// Where partitions begin or end, and the errors among that.
fn ends(
    admin: &Asker,
    partitions: &[(String, i32)],
    end: End,
    within: Duration,
) -> Parts<Vec<EndOf>, KafkaError> {
    let ends = ask::ends(admin, partitions, end, within)?;
    let errors = ends.iter().filter_map(|(_, _, end)| end.err()).collect();
    Ok((ends, errors))
}

/// Whether a question had no answer, or a part of it. An error of the whole question counts as silence, whichever it is: all that
/// follows is one look for a broker.
fn is_silence<T, E>(parts: &Parts<T, E>) -> bool {
    parts
        .as_ref()
        .map_or(true, |(_, codes)| codes.iter().any(|code| ErrorKind::of(*code).is_silence()))
}

fn takes_connection(broker: &str) -> bool {
    let mut addresses = broker.to_socket_addrs().into_iter().flatten();
    addresses.any(|address| TcpStream::connect_timeout(&address, CONNECT_MAX).is_ok())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::client::settings::Given;

    #[test]
    fn a_client_that_had_no_answer_is_created_again_and_another_goes_on() {
        use RDKafkaErrorCode as Code;
        // Nobody is there: whether there was an answer is said by the questions.
        let connection = Connection::new("127.0.0.1:1", Given::new());
        let admin = ResilientAdmin::new(&connection, "test").unwrap();
        let parts = |codes: &[Code]| {
            let answer = admin.ask_parts(|_| Ok::<_, KafkaError>(((), codes.to_vec())));
            assert_eq!(answer, Ok(()));
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
        let answer = other.ask(|_| {
            assert!(admin.ask(|_| silence()).is_err());
            silence()
        });
        assert!(answer.is_err());
        let second = admin.0.client();
        assert!(!Arc::ptr_eq(&first, &second));
        // What had no answer was the first one: the second one is asked on.
        other.0.renew(&first);
        assert!(Arc::ptr_eq(&second, &other.0.client()));
    }

    #[test]
    fn after_a_silence_nothing_is_asked_until_a_broker_takes_connections() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its address");
        let connection = Connection::new(&address.to_string(), Given::new());
        let admin = ResilientAdmin::new(&connection, "test").unwrap();
        *admin.0.brokers.lock() = vec!["127.0.0.1:1".to_owned(), address.to_string()];
        // How many questions go out of one of each kind that have no answer.
        let questions = || {
            let count = std::cell::Cell::new(0);
            let silent = || {
                count.set(count.get() + 1);
                KafkaError::AdminOp(RDKafkaErrorCode::OperationTimedOut)
            };
            let _ = admin.ask(|_| Err::<(), _>(silent()));
            let _ = admin.ask_parts(|_| Err::<((), Vec<_>), _>(silent()));
            let _ = admin.ask_once(|_| Err::<((), Vec<_>), _>(silent()));
            count.get()
        };
        assert_eq!(questions(), 3, "a broker is there, and may answer the next one");
        drop(listener);
        assert_eq!(questions(), 0);
        std::thread::sleep(LOOK_EVERY);
        assert_eq!(questions(), 0, "looked at again");
        let _again = TcpListener::bind(address).expect("the same port");
        std::thread::sleep(LOOK_EVERY);
        assert_eq!(questions(), 3);
    }

    #[test]
    fn brokers_that_are_all_elsewhere_now_are_found_by_the_addresses_that_were_given() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its address").to_string();
        let connection = Connection::new(&format!("127.0.0.1:1, {address}"), Given::new());
        let admin = ResilientAdmin::new(&connection, "test").unwrap();
        *admin.0.brokers.lock() = vec!["127.0.0.1:1".to_owned(); 20];
        admin.0.note(true);
        assert_eq!(admin.ask(|_| Ok::<_, KafkaError>(1)), Ok(1));
    }

    #[test]
    fn a_question_goes_out_now_and_then_though_nobody_takes_connections() {
        let connection = Connection::new("127.0.0.1:1", Given::new());
        let admin = ResilientAdmin::new(&connection, "test").unwrap();
        *admin.0.brokers.lock() = vec!["127.0.0.1:1".to_owned()];
        let ago = |seconds| Instant::now().checked_sub(Duration::from_secs(seconds)).expect("up");
        for (tried, want) in [(29, false), (31, true), (29, false)] {
            *admin.0.outage.lock() = Outage::Seen { at: ago(1), tried: ago(tried) };
            assert_eq!(admin.ask(|_| Ok::<_, KafkaError>(())).is_ok(), want, "{tried} s");
        }
        // One that had no answer leaves the next ones where they were.
        *admin.0.outage.lock() = Outage::Seen { at: ago(1), tried: ago(31) };
        assert!(admin.ask(|_| Err::<(), _>(errors::away())).is_err());
        let was_asked = admin.ask(|_| Ok::<_, KafkaError>(())).is_ok();
        assert!(!was_asked, "not before the next try is due");
    }
}
