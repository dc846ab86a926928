//! Polls a consumer. rdkafka's own poll keeps back which partition an error is about, and the offset at which a partition
//! ended: the last record does not tell, since marks of transactions and what was compacted stand behind it.
//!
//! # Invariants
//! 1. Every event is destroyed once, and a record does not outlive its event, nor its event the consumer.
//! 2. What rdkafka's poll does by the way is done here, too: lines of the log and errors go to the context, and a client that
//!    asks for a token is given one.

use std::ffi::CStr;
use std::marker::PhantomData;
use std::ptr;
use std::time::{Duration, Instant};

use rdkafka::bindings as rdsys;
use rdkafka::client::Client;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdsys::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR as NO_ERROR;

use super::ask::{Event, owned};
use super::{Parts, Waker, parts_of};

/// What a poll came to.
pub(crate) enum Polled<'a> {
    /// A record.
    Record(Fetched<'a>),
    /// An error, or the end of a partition.
    Error {
        error: KafkaError,
        /// The partition that it is about, and the offset that was to be read next; `None`: about the client.
        at: Option<(String, i32, i64)>,
    },
}

/// A record that is librdkafka's until it is dropped.
pub(crate) struct Fetched<'a> {
    message: *const rdsys::rd_kafka_message_t,
    /// What owns the message.
    _event: Event,
    consumer: PhantomData<&'a ()>,
}

impl Fetched<'_> {
    pub(crate) fn topic(&self) -> &str {
        // SAFETY: the message lives as long as its event, and holds a reference to its topic; names are ASCII.
        unsafe {
            let name = rdsys::rd_kafka_topic_name((*self.message).rkt);
            CStr::from_ptr(name).to_str().unwrap_or_default()
        }
    }

    pub(crate) fn partition(&self) -> i32 {
        // SAFETY: the message lives as long as its event.
        unsafe { (*self.message).partition }
    }

    pub(crate) fn offset(&self) -> i64 {
        // SAFETY: the message lives as long as its event.
        unsafe { (*self.message).offset }
    }

    /// In milliseconds; negative where there is none.
    pub(crate) fn timestamp(&self) -> i64 {
        let mut kind = rdsys::rd_kafka_timestamp_type_t::RD_KAFKA_TIMESTAMP_NOT_AVAILABLE;
        // SAFETY: the message lives as long as its event.
        unsafe { rdsys::rd_kafka_message_timestamp(self.message, &raw mut kind) }
    }

    pub(super) fn parts(&self) -> Parts<'_> {
        // SAFETY: the message lives as long as its event, which is borrowed with `self`.
        unsafe { parts_of(self.message) }
    }
}

/// The next record or error; `None`: nothing within this time. `queue` is the consumer's own.
pub(crate) fn poll<'a, C: ConsumerContext>(
    consumer: &'a BaseConsumer<C>,
    queue: &Waker,
    most: Duration,
) -> Option<Polled<'a>> {
    let until = Instant::now() + most;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let left_ms = i32::try_from(left.as_millis()).unwrap_or(i32::MAX);
        // SAFETY: the queue lives until `queue` is dropped; the event that is given is ours.
        let event = unsafe { rdsys::rd_kafka_queue_poll(queue.0, left_ms) };
        if event.is_null() {
            // It can end early, when a queue of another is served by it.
            if left_ms == 0 {
                return None;
            }
            continue;
        }
        let event = Event(event);
        // SAFETY: the event lives.
        let polled = unsafe { taken(consumer.client(), event) };
        if polled.is_some() {
            return polled;
        }
    }
}

/// What an event is for the one who polls; `None`: nothing, it is dealt with.
///
/// # Safety
/// The event is one of the client's.
unsafe fn taken<'a, C: ConsumerContext>(client: &'a Client<C>, event: Event) -> Option<Polled<'a>> {
    // SAFETY: the event lives, and what is taken from it is copied, or kept no longer than it.
    unsafe {
        match rdsys::rd_kafka_event_type(event.0) {
            rdsys::RD_KAFKA_EVENT_FETCH => {
                let message = rdsys::rd_kafka_event_message_next(event.0);
                let consumer = PhantomData;
                let fetched = Fetched { message, _event: event, consumer };
                (!message.is_null()).then_some(Polled::Record(fetched))
            }
            rdsys::RD_KAFKA_EVENT_ERROR => failed(client, &event),
            rdsys::RD_KAFKA_EVENT_LOG => {
                log(client, &event);
                None
            }
            rdsys::RD_KAFKA_EVENT_OAUTHBEARER_TOKEN_REFRESH => {
                refresh(client, &event);
                None
            }
            _ => None,
        }
    }
}

/// # Safety
/// The event is an error.
unsafe fn failed<'a, C: ConsumerContext>(client: &Client<C>, event: &Event) -> Option<Polled<'a>> {
    // SAFETY: the event lives; the partition that is given is ours to destroy, after it was copied.
    unsafe {
        let code = rdsys::rd_kafka_event_error(event.0);
        if code == NO_ERROR {
            return None;
        }
        let code = RDKafkaErrorCode::from(code);
        let partition = rdsys::rd_kafka_event_topic_partition(event.0);
        let at = (!partition.is_null()).then(|| {
            let at = (owned((*partition).topic), (*partition).partition, (*partition).offset);
            rdsys::rd_kafka_topic_partition_destroy(partition);
            at
        });
        let why = owned(rdsys::rd_kafka_event_error_string(event.0));
        client.context().error(KafkaError::Global(code), why.trim());
        let is_fatal = rdsys::rd_kafka_event_error_is_fatal(event.0) != 0;
        let error = match is_fatal {
            true => KafkaError::MessageConsumptionFatal(code),
            false => KafkaError::MessageConsumption(code),
        };
        Some(Polled::Error { error, at })
    }
}

/// # Safety
/// The event is a line of the log.
unsafe fn log<C: ConsumerContext>(client: &Client<C>, event: &Event) {
    let (mut facility, mut text, mut level) = (ptr::null(), ptr::null(), 0);
    // SAFETY: the event lives, and both texts are copied.
    let (facility, text) = unsafe {
        rdsys::rd_kafka_event_log(event.0, &raw mut facility, &raw mut text, &raw mut level);
        (owned(facility), owned(text))
    };
    let level = match level {
        0 => RDKafkaLogLevel::Emerg,
        1 => RDKafkaLogLevel::Alert,
        2 => RDKafkaLogLevel::Critical,
        3 => RDKafkaLogLevel::Error,
        4 => RDKafkaLogLevel::Warning,
        5 => RDKafkaLogLevel::Notice,
        6 => RDKafkaLogLevel::Info,
        _ => RDKafkaLogLevel::Debug,
    };
    client.context().log(level, facility.trim(), text.trim());
}

/// # Safety
/// The event asks for a token.
unsafe fn refresh<C: ConsumerContext>(client: &Client<C>, event: &Event) {
    // SAFETY: the event lives, and the text is copied.
    let config = unsafe {
        let config = rdsys::rd_kafka_event_config_string(event.0);
        (!config.is_null()).then(|| owned(config))
    };
    let token = client.context().generate_oauth_token(config.as_deref());
    let given =
        token.map_err(|why| why.to_string()).and_then(|token| super::give_token(client, &token));
    if let Err(why) = given {
        super::no_token(client, &why);
    }
}
