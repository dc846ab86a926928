//! The raw calls into librdkafka, in one place. `ask` has the admin requests that rdkafka lacks; `bell` wakes a thread for
//! what a client has for it; `inflate` decides what librdkafka is given of a batch; `partitions` reads without a group; `poll`
//! says where a partition ended.
//!
//! Eight reasons, and nothing else stands here:
//! 1. rdkafka's safe header access panics on a header name that is not UTF-8, which any producer can write.
//! 2. A produce by cached topic handle, with headers added straight from our record, costs about two thirds of
//!    the safe one (measured: 329 k/s against 272 k/s by name and 199 k/s through the safe types).
//! 3. A client that nobody polls is never asked for a token; it is handed one.
//! 4. The positions of some partitions: the safe call asks for those of the whole assignment, and for the assignment
//!    first.
//! 5. No safe call can wake a thread that waits in a poll, or waits for events without spinning (`bell`).
//! 6. rdkafka does not say which broker has acknowledged a message.
//! 7. rdkafka does not say which partition an error is about, nor where a partition ended.
//! 8. rdkafka assigns partitions only in a group (`partitions`).
//!
//! # Invariants
//! 1. A pointer never outlives the client or the message that it came from: handles are destroyed before the client.
//! 2. Headers belong to librdkafka once a produce has succeeded, and are destroyed here when it has not.
//! 3. librdkafka copies key and value before `produce` returns.
#![allow(unsafe_code)]

pub(crate) mod ask;
pub(crate) mod bell;
pub(crate) mod inflate;
pub(crate) mod partitions;
pub(crate) mod poll;

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_void};
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::bindings as rdsys;
use rdkafka::client::{Client, ClientContext, OAuthToken};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Message as _};
use rdkafka::producer::{BaseProducer, Producer as _, ProducerContext};
use rdkafka::topic_partition_list::TopicPartitionList;

use waterclock_engine::{Cut, CutBy, HEADER_BESIDE};
use waterclock_engine::{Record, UnixMillis};

use self::poll::Fetched;
use super::events::{Events, Producer};
use super::sieve;

/// Tells a client of brokers that it may not know, as at its start.
pub(crate) fn add_brokers<C: ClientContext>(client: &Client<C>, brokers: &str) {
    let Ok(brokers) = CString::new(brokers) else { return };
    // SAFETY: the client is alive, and the text is copied.
    unsafe { rdsys::rd_kafka_brokers_add(client.native_ptr(), brokers.as_ptr()) };
}

/// Hands a client its token for SASL/OAUTHBEARER, which it uses for its next connections.
pub(crate) fn set_token<C: ClientContext>(client: &Client<C>, token: &OAuthToken) {
    if let Err(why) = give_token(client, token) {
        tracing::warn!(why, "librdkafka does not take a token");
    }
}

fn give_token<C: ClientContext>(client: &Client<C>, token: &OAuthToken) -> Result<(), String> {
    let texts = (CString::new(&*token.token), CString::new(&*token.principal_name));
    let (Ok(text), Ok(principal)) = texts else {
        return Err("it has a NUL byte".to_owned());
    };
    let mut told = [0; 256];
    // SAFETY: the client is alive, all texts are copied, and what is told fits and ends with a NUL.
    let (answer, why) = unsafe {
        let answer = rdsys::rd_kafka_oauthbearer_set_token(
            client.native_ptr(),
            text.as_ptr(),
            token.lifetime_ms,
            principal.as_ptr(),
            ptr::null_mut(),
            0,
            told.as_mut_ptr(),
            told.len(),
        );
        (answer, CStr::from_ptr(told.as_ptr()).to_string_lossy())
    };
    match answer {
        rdsys::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR => Ok(()),
        _ => Err(why.into_owned()),
    }
}

/// Tells a client that asked for a token why there is none. It asks again after some seconds.
fn no_token<C: ClientContext>(client: &Client<C>, why: &str) {
    let Ok(why) = CString::new(why.replace('\0', " ")) else { return };
    // SAFETY: the client is alive, and the text is copied. That the text is empty, or that the client uses no tokens, is
    // answered with an error that says nothing to anybody.
    let _ =
        unsafe { rdsys::rd_kafka_oauthbearer_set_token_failure(client.native_ptr(), why.as_ptr()) };
}

/// Sets each partition of the list to the position that a consumer has in it: one past the last record that was polled, and
/// past the marks of transactions behind that. Asks nobody.
///
/// # Errors
/// The client is being closed.
pub(crate) fn positions<C: ClientContext>(
    client: &Client<C>,
    list: &TopicPartitionList,
) -> Result<(), KafkaError> {
    // SAFETY: client and list are alive during the call, which keeps neither.
    match unsafe { rdsys::rd_kafka_position(client.native_ptr(), list.ptr()) } {
        rdsys::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR => Ok(()),
        error => Err(KafkaError::MetadataFetch(error.into())),
    }
}

/// Ends a poll that somebody waits in, from another thread.
#[derive(Debug)]
pub(crate) struct Waker(*mut rdsys::rd_kafka_queue_t);

// SAFETY: queues are thread-safe by librdkafka's contract, and to yield is all that is done with this one.
unsafe impl Send for Waker {}
// SAFETY: as above.
unsafe impl Sync for Waker {}

impl Waker {
    /// Of a consumer that is polled.
    pub(crate) fn of_consumer<C: ClientContext>(client: &Client<C>) -> Option<Self> {
        // SAFETY: the client is alive; the reference that is given is ours.
        let queue = unsafe { rdsys::rd_kafka_queue_get_consumer(client.native_ptr()) };
        (!queue.is_null()).then(|| Self(queue))
    }

    /// Of a consumer that is polled, and may have no group.
    pub(crate) fn of_reader<C: ClientContext>(client: &Client<C>) -> Self {
        Self::of_consumer(client).unwrap_or_else(|| {
            // SAFETY: the client is alive; the reference that is given is ours. Every client has this queue.
            Self(unsafe { rdsys::rd_kafka_queue_get_main(client.native_ptr()) })
        })
    }

    /// Ends the poll that is going on, if there is one.
    pub(crate) fn wake(&self) {
        // SAFETY: the queue lives until this is dropped.
        unsafe { rdsys::rd_kafka_queue_yield(self.0) }
    }
}

impl Drop for Waker {
    fn drop(&mut self) {
        // SAFETY: a reference of ours, destroyed once, before the client (invariant 1).
        unsafe { rdsys::rd_kafka_queue_destroy(self.0) }
    }
}

/// Commits positions without waiting: the answer comes to the consumer's `commit_callback` as it is polled. With the call that
/// is meant for it nobody hears of the answer, since an event-based client has no callback.
///
/// # Errors
/// There is no group.
pub(crate) fn commit<C: ClientContext>(
    client: &Client<C>,
    offsets: &TopicPartitionList,
) -> Result<(), KafkaError> {
    let Some(queue) = Waker::of_consumer(client) else { return Err(KafkaError::Canceled) };
    // SAFETY: client, list and queue are alive; the list is copied, and the queue is kept as long as the request needs it.
    let code = unsafe {
        rdsys::rd_kafka_commit_queue(
            client.native_ptr(),
            offsets.ptr(),
            queue.0,
            None,
            ptr::null_mut(),
        )
    };
    if code == rdsys::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR {
        Ok(())
    } else {
        Err(KafkaError::ConsumerCommit(code.into()))
    }
}

/// Copies key, value and headers of a message into one allocation of ours, byte for byte.
///
/// A header name ends at its first NUL: librdkafka itself hands names out as C strings.
#[must_use]
pub fn copy_record(message: &BorrowedMessage<'_>) -> Record {
    let (key, value, headers, _) = parts(message);
    Record::new(key, value, headers)
}

/// The same of a record that a reader polled.
pub(crate) fn copy_whole(message: &Fetched<'_>) -> Record {
    let (key, value, headers, _) = message.parts();
    Record::new(key, value, headers)
}

/// The same, as [`copy_bounded`] does it.
pub(crate) fn copy_fetched(message: &Fetched<'_>, most: usize) -> Record {
    bounded(message.parts(), most)
}

/// The same of a record that is no larger than `most`; of another what is kept of such. What was left out before librdkafka
/// saw it is known by its mark.
#[must_use]
pub(crate) fn copy_bounded(message: &BorrowedMessage<'_>, most: usize) -> Record {
    bounded(parts(message), most)
}

fn bounded((key, value, headers, readable): Parts<'_>, most: usize) -> Record {
    let len = |part: Option<&[u8]>| part.map_or(0, <[u8]>::len);
    if !readable {
        let bytes = (len(key) + len(value)) as u64;
        let cut = Cut { bytes, by: CutBy::Headers, without_headers: true, ..Cut::default() };
        return Record::cut(cut, key, headers);
    }
    let count = headers.clone().count();
    let marked = count.checked_sub(1).and_then(|last| {
        let (name, value) = headers.clone().nth(last)?;
        sieve::read_mark(name, value)
    });
    if let Some(cut) = marked {
        return Record::cut(cut, key, headers.take(count - 1));
    }
    let of_headers: usize = headers.clone().map(|(name, value)| name.len() + len(value)).sum();
    let bytes = len(key) + len(value) + of_headers;
    if bytes.saturating_add(count.saturating_mul(HEADER_BESIDE)) <= most {
        return Record::new(key, value, headers);
    }
    let none = Cut { bytes: bytes as u64, ..Cut::default() };
    Record::cut(none, key, headers)
}

/// Topic and partition of a message.
#[must_use]
pub fn place<'a>(message: &'a BorrowedMessage<'_>) -> (&'a str, i32) {
    (message.topic(), message.partition())
}

/// Key and value of a message.
pub(crate) fn key_and_value<'a>(message: &'a Fetched<'_>) -> (Option<&'a [u8]>, Option<&'a [u8]>) {
    let (key, value, _, _) = message.parts();
    (key, value)
}

/// Whether a message has this header with this value.
pub(crate) fn has_header(message: &Fetched<'_>, name: &[u8], value: &[u8]) -> bool {
    let (_, _, mut headers, _) = message.parts();
    headers.any(|of| of == (name, Some(value)))
}

/// Key, value, headers, and whether there are no others.
type Parts<'a> = (Option<&'a [u8]>, Option<&'a [u8]>, HeadersOf<'a>, bool);

fn parts<'a>(message: &'a BorrowedMessage<'_>) -> Parts<'a> {
    // SAFETY: the pointers are valid while `message` is borrowed.
    unsafe { parts_of(message.ptr()) }
}

/// # Safety
/// The message is valid during `'a`.
unsafe fn parts_of<'a>(raw: *const rdsys::rd_kafka_message_t) -> Parts<'a> {
    // SAFETY: by this function's contract.
    unsafe {
        let key = slice((*raw).key, (*raw).key_len);
        let value = slice((*raw).payload, (*raw).len);
        let mut headers = ptr::null_mut();
        let found = rdsys::rd_kafka_message_headers(raw, &raw mut headers);
        let readable = match found {
            rdsys::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR => true,
            none => {
                headers = ptr::null_mut();
                none == rdsys::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR__NOENT
            }
        };
        let headers = HeadersOf { headers, next: 0, borrow: std::marker::PhantomData };
        (key, value, headers, readable)
    }
}

/// The broker that has acknowledged a message, -1 where that is not known.
pub(crate) fn broker_of(message: &BorrowedMessage<'_>) -> i32 {
    // SAFETY: the pointer is valid while `message` is borrowed, and nothing of it is kept.
    unsafe { rdsys::rd_kafka_message_broker_id(message.ptr()) }
}

/// Null stays null, empty stays empty.
///
/// # Safety
/// `at` is null or valid for `len` bytes during `'a`.
unsafe fn slice<'a>(at: *const c_void, len: usize) -> Option<&'a [u8]> {
    if at.is_null() {
        None
    } else {
        // SAFETY: by this function's contract.
        Some(unsafe { std::slice::from_raw_parts(at.cast::<u8>(), len) })
    }
}

#[derive(Clone)]
struct HeadersOf<'a> {
    headers: *mut rdsys::rd_kafka_headers_t,
    next: usize,
    borrow: std::marker::PhantomData<&'a ()>,
}

impl<'a> Iterator for HeadersOf<'a> {
    type Item = (&'a [u8], Option<&'a [u8]>);

    fn next(&mut self) -> Option<Self::Item> {
        if self.headers.is_null() {
            return None;
        }
        let (mut name, mut value, mut size) = (ptr::null(), ptr::null(), 0);
        // SAFETY: the headers belong to a message that is borrowed for 'a; an index past the end is answered with an error.
        unsafe {
            let found = rdsys::rd_kafka_header_get_all(
                self.headers,
                self.next,
                &raw mut name,
                &raw mut value,
                &raw mut size,
            );
            if found != rdsys::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR {
                return None;
            }
            self.next += 1;
            Some((CStr::from_ptr(name).to_bytes(), slice(value, size)))
        }
    }
}

/// A topic handle; librdkafka counts references to it.
struct Topic(*mut rdsys::rd_kafka_topic_t);

impl Drop for Topic {
    fn drop(&mut self) {
        // SAFETY: made by rd_kafka_topic_new, destroyed once, while the client still lives (invariant 1).
        unsafe { rdsys::rd_kafka_topic_destroy(self.0) }
    }
}

/// Adds one header, with a value or null.
pub(crate) type AddHeader<'a> = dyn FnMut(&[u8], Option<&[u8]>) + 'a;

/// A producer with its topic handles.
pub struct TopicProducer<C: ProducerContext<DeliveryOpaque = usize> + 'static> {
    /// Dropped before the producer: fields drop in order.
    topics: HashMap<Arc<str>, Topic>,
    producer: Arc<Producer<C>>,
}

// SAFETY: rd_kafka_topic_t is thread-safe by librdkafka's contract; the map is only touched through &mut self.
unsafe impl<C: ProducerContext<DeliveryOpaque = usize> + 'static> Send for TopicProducer<C> {}

/// RD_KAFKA_PARTITION_UA: the partitioner chooses.
const UNASSIGNED: i32 = -1;
/// librdkafka puts this machine's time in its place.
const NO_TIME: i64 = 0;

/// More targets than this and the handles are created again: a bound, not a limit.
const HANDLES_MAX: usize = 4_096;

impl<C: ProducerContext<DeliveryOpaque = usize> + 'static> TopicProducer<C> {
    /// Makes a producer whose events a thread of its own takes.
    ///
    /// # Errors
    /// librdkafka refused its settings.
    pub fn create(config: &ClientConfig, context: C) -> Result<Self, KafkaError> {
        Events::start("wc-acks")?.producer(config, context).map(Self::new)
    }

    /// Wraps a producer.
    pub(crate) fn new(producer: impl Into<Arc<Producer<C>>>) -> Self {
        Self { topics: HashMap::new(), producer: producer.into() }
    }

    /// The producer itself, for transactions and flushes.
    pub fn inner(&self) -> &BaseProducer<C> {
        &self.producer
    }

    /// Enqueues one record. `at` is its timestamp, for a topic that keeps its writers' times; without one it is this machine's
    /// clock. `headers` is given a function that adds one header at a time; `opaque` comes back in the delivery report.
    ///
    /// # Errors
    /// `QueueFull`: nothing was enqueued, wait a little and call again. Anything else: the record cannot be produced.
    pub fn produce(
        &mut self,
        topic: &Arc<str>,
        partition: Option<i32>,
        at: Option<UnixMillis>,
        record: &Record,
        headers: impl FnOnce(&mut AddHeader<'_>),
        opaque: usize,
    ) -> Result<(), KafkaError> {
        let handle = self.handle(topic)?;
        let part = |bytes: Option<&[u8]>| match bytes {
            None => (ptr::null_mut::<c_void>(), 0),
            Some(bytes) => (bytes.as_ptr().cast_mut().cast::<c_void>(), bytes.len()),
        };
        let (key, key_len) = part(record.key());
        let (value, value_len) = part(record.value());
        // SAFETY: handle and client are alive; key and value outlive the call, which copies them (MSG_F_COPY); the
        // headers are ours until the call succeeds.
        unsafe {
            let list = rdsys::rd_kafka_headers_new(8);
            headers(&mut |name, value| {
                let (value, len) = part(value);
                rdsys::rd_kafka_header_add(
                    list,
                    name.as_ptr().cast(),
                    name.len() as isize,
                    value,
                    len as isize,
                );
            });
            let error = rdsys::rd_kafka_producev(
                self.producer.client().native_ptr(),
                rdsys::rd_kafka_vtype_t::RD_KAFKA_VTYPE_RKT,
                handle,
                rdsys::rd_kafka_vtype_t::RD_KAFKA_VTYPE_PARTITION,
                partition.unwrap_or(UNASSIGNED),
                rdsys::rd_kafka_vtype_t::RD_KAFKA_VTYPE_TIMESTAMP,
                at.map_or(NO_TIME, |at| at.0.cast_signed()),
                rdsys::rd_kafka_vtype_t::RD_KAFKA_VTYPE_MSGFLAGS,
                rdsys::RD_KAFKA_MSG_F_COPY,
                rdsys::rd_kafka_vtype_t::RD_KAFKA_VTYPE_VALUE,
                value,
                value_len,
                rdsys::rd_kafka_vtype_t::RD_KAFKA_VTYPE_KEY,
                key,
                key_len,
                rdsys::rd_kafka_vtype_t::RD_KAFKA_VTYPE_HEADERS,
                list,
                rdsys::rd_kafka_vtype_t::RD_KAFKA_VTYPE_OPAQUE,
                opaque as *mut c_void,
                rdsys::rd_kafka_vtype_t::RD_KAFKA_VTYPE_END,
            );
            if error == rdsys::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR {
                return Ok(());
            }
            rdsys::rd_kafka_headers_destroy(list);
            Err(KafkaError::MessageProduction(error.into()))
        }
    }

    /// Waits until all that was handed over has been acknowledged or has failed, and its delivery reports were taken by the
    /// producer's own thread; false if that takes longer. rdkafka's own flush takes steps of 100 ms, each to its end.
    pub fn flush(&self, most: Duration) -> bool {
        let timeout_ms = i32::try_from(most.as_millis()).unwrap_or(i32::MAX);
        // SAFETY: the client is alive.
        let told =
            unsafe { rdsys::rd_kafka_flush(self.producer.client().native_ptr(), timeout_ms) };
        told == rdsys::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR
    }

    /// Commits the open transaction; flushes first. rdkafka's own commit flushes in a loop of its own before, which
    /// cost up to 100 ms.
    ///
    /// # Errors
    /// The outcome is unknown or the transaction must be aborted: either way, drop this producer and make a new one.
    pub fn commit(&self, most: Duration) -> Result<(), (RDKafkaErrorCode, String)> {
        let timeout_ms = i32::try_from(most.as_millis()).unwrap_or(i32::MAX);
        // SAFETY: the client is alive; the error, if any, is ours to destroy, after its text was copied.
        unsafe {
            let native = self.producer.client().native_ptr();
            let error = rdsys::rd_kafka_commit_transaction(native, timeout_ms);
            if error.is_null() {
                return Ok(());
            }
            let text = CStr::from_ptr(rdsys::rd_kafka_error_string(error)).to_string_lossy();
            let name = CStr::from_ptr(rdsys::rd_kafka_error_name(error)).to_string_lossy();
            let told = format!("{name}: {text}");
            let code = RDKafkaErrorCode::from(rdsys::rd_kafka_error_code(error));
            rdsys::rd_kafka_error_destroy(error);
            Err((code, told))
        }
    }

    fn handle(&mut self, topic: &Arc<str>) -> Result<*mut rdsys::rd_kafka_topic_t, KafkaError> {
        if let Some(found) = self.topics.get(topic) {
            return Ok(found.0);
        }
        if self.topics.len() >= HANDLES_MAX {
            self.topics.clear();
        }
        let name = CString::new(&**topic)?;
        // SAFETY: the client is alive; the name is copied; a null configuration means the client's defaults.
        let raw = unsafe {
            let native = self.producer.client().native_ptr();
            rdsys::rd_kafka_topic_new(native, name.as_ptr(), ptr::null_mut())
        };
        if raw.is_null() {
            return Err(KafkaError::MessageProduction(RDKafkaErrorCode::InvalidTopic));
        }
        self.topics.insert(Arc::clone(topic), Topic(raw));
        Ok(raw)
    }
}
