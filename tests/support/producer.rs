//! Producers as users have them, which tell where every record came to stand.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rdkafka::ClientContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header, Message as _, OwnedHeaders};
use rdkafka::producer::{
    BaseProducer, BaseRecord, DeliveryResult, Producer as _, ProducerContext, ThreadedProducer,
};

use super::{Fixture, PATIENCE, patient};

/// A record to be written.
#[derive(Clone, Debug, Default)]
pub struct Out {
    pub key: Option<Vec<u8>>,
    pub value: Option<Vec<u8>>,
    pub headers: Vec<(String, Option<Vec<u8>>)>,
    /// Where it is to stand; `None`: its partitioner says it.
    pub partition: Option<i32>,
}

/// A record with a text as its value, which the tests take as its id.
pub fn out(value: impl AsRef<[u8]>) -> Out {
    Out { value: Some(value.as_ref().to_vec()), ..Out::default() }
}

impl Out {
    pub fn key(self, key: impl AsRef<[u8]>) -> Self {
        Self { key: Some(key.as_ref().to_vec()), ..self }
    }

    pub fn header(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.headers.push((name.to_owned(), Some(value.as_ref().to_vec())));
        self
    }

    pub fn null_header(mut self, name: &str) -> Self {
        self.headers.push((name.to_owned(), None));
        self
    }

    /// In this partition, whatever its key is.
    pub fn at(self, partition: i32) -> Self {
        Self { partition: Some(partition), ..self }
    }

    /// `x-delay-target`.
    pub fn to(self, target: &str) -> Self {
        self.header("x-delay-target", target)
    }

    /// `x-delay`.
    pub fn delay(self, delay: impl ToString) -> Self {
        self.header("x-delay", delay.to_string())
    }
}

/// Where a record came to stand, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ack {
    pub partition: i32,
    pub offset: i64,
    /// The broker's append time, epoch milliseconds.
    pub at: u64,
}

type Acks = Arc<Mutex<Vec<Option<Result<Ack, String>>>>>;

struct Context {
    acks: Acks,
}

impl ClientContext for Context {
    fn error(&self, _: KafkaError, _: &str) {}
}

impl ProducerContext for Context {
    type DeliveryOpaque = Box<usize>;

    fn delivery(&self, result: &DeliveryResult<'_>, number: Box<usize>) {
        let ack = match result {
            Ok(message) => Ok(Ack {
                partition: message.partition(),
                offset: message.offset(),
                at: message.timestamp().to_millis().unwrap_or_default() as u64,
            }),
            Err((error, _)) => Err(error.to_string()),
        };
        self.acks.lock()[*number] = Some(ack);
    }
}

/// A producer with `acks=all`.
pub struct Producer {
    producer: ThreadedProducer<Context>,
    acks: Acks,
}

impl Producer {
    pub fn new(fixture: &Fixture, settings: &[(&str, &str)]) -> Self {
        let acks = Acks::default();
        let mut config = fixture.client();
        config.set("acks", "all").set("enable.idempotence", "true").set("linger.ms", "1");
        config.set("message.max.bytes", "4000000");
        for (key, value) in settings {
            config.set(*key, *value);
        }
        let context = Context { acks: Arc::clone(&acks) };
        Self { producer: config.create_with_context(context).expect("a producer"), acks }
    }

    /// Enqueues a record.
    pub fn send(&self, topic: &str, out: &Out) {
        let number = {
            let mut acks = self.acks.lock();
            acks.push(None);
            acks.len() - 1
        };
        let mut headers = OwnedHeaders::new();
        for (name, value) in &out.headers {
            headers = headers.insert(Header { key: name, value: value.as_ref() });
        }
        let mut record: BaseRecord<'_, [u8], [u8], Box<usize>> =
            BaseRecord::with_opaque_to(topic, Box::new(number)).headers(headers);
        record.key = out.key.as_deref();
        record.payload = out.value.as_deref();
        record.partition = out.partition;
        loop {
            match self.producer.send(record) {
                Ok(()) => return,
                Err((error, back))
                    if error.rdkafka_error_code() == Some(RDKafkaErrorCode::QueueFull) =>
                {
                    record = back;
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err((error, _)) => panic!("could not send to {topic}: {error}"),
            }
        }
    }

    /// Whether the broker has the record that was sent as this one, counted from 0.
    pub fn has(&self, number: usize) -> bool {
        let acks = self.acks.lock();
        acks.get(number).is_some_and(|ack| matches!(ack, Some(Ok(_))))
    }

    /// What is known by now of all that was sent, in the order of sending.
    pub fn heard(&self) -> Vec<Option<Result<Ack, String>>> {
        self.acks.lock().clone()
    }

    /// Waits until something is known of all that was sent.
    #[track_caller]
    pub fn settled(&self) -> Vec<Option<Result<Ack, String>>> {
        self.producer.flush(patient(PATIENCE)).expect("flushed");
        self.heard()
    }

    /// Waits for the acknowledgements of all that was sent, in the order of sending.
    #[track_caller]
    pub fn acks(&self) -> Vec<Ack> {
        let acks = self.settled().into_iter();
        acks.map(|ack| ack.expect("acknowledged").expect("accepted by the broker")).collect()
    }

    /// Sends one record and waits for its acknowledgement.
    #[track_caller]
    pub fn send_one(&self, topic: &str, out: &Out) -> Ack {
        self.send(topic, out);
        *self.acks().last().expect("one was sent")
    }
}

/// A foreign producer that has written a record and keeps its transaction open; to this partition, or that of its key.
#[track_caller]
pub fn open_transaction(
    fixture: &Fixture,
    topic: &str,
    partition: Option<i32>,
    record: &Out,
) -> BaseProducer {
    let mut config = fixture.client();
    config
        .set("transactional.id", fixture.name("foreign"))
        .set("transaction.timeout.ms", "60000")
        .set("partitioner", "murmur2_random");
    let producer: BaseProducer = config.create().expect("a producer");
    producer.init_transactions(patient(PATIENCE)).expect("ready");
    producer.begin_transaction().expect("begun");
    let mut headers = OwnedHeaders::new();
    for (key, value) in &record.headers {
        headers = headers.insert(Header { key, value: value.as_ref() });
    }
    let mut sent: BaseRecord<'_, [u8], [u8]> = BaseRecord::to(topic).headers(headers);
    sent.partition = partition;
    sent.key = record.key.as_deref();
    sent.payload = record.value.as_deref();
    producer.send(sent).expect("sent");
    producer.flush(patient(PATIENCE)).expect("written");
    producer
}
