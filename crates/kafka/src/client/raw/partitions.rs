//! Partitions that a consumer without a group reads. For a group, librdkafka runs one more thread in each client and looks for
//! the group's coordinator; rdkafka can assign partitions only in a group.
//!
//! # Invariants
//! 1. What is read comes to the client's main queue, which is the one that a consumer of rdkafka's without a group polls.
//! 2. Nothing that was read before [`stop`] is polled after it: librdkafka drops it by its version.
//! 3. A partition is stopped before it is started again, and before its client goes.

use std::ffi::CString;

use rdkafka::bindings as rdsys;
use rdkafka::client::{Client, ClientContext};
use rdkafka::error::KafkaError;
use rdkafka::topic_partition_list::Offset;

use super::Waker;

/// A handle of a topic.
struct Topic(*mut rdsys::rd_kafka_topic_t);

impl Topic {
    fn new<C: ClientContext>(client: &Client<C>, name: &str) -> Result<Self, KafkaError> {
        let name = CString::new(name).map_err(KafkaError::Nul)?;
        // SAFETY: the client is alive, and the name is copied. The handle that is given is ours, and none outlives a call here.
        let topic = unsafe {
            rdsys::rd_kafka_topic_new(client.native_ptr(), name.as_ptr(), std::ptr::null_mut())
        };
        if topic.is_null() { Err(last_error()) } else { Ok(Self(topic)) }
    }
}

impl Drop for Topic {
    fn drop(&mut self) {
        // SAFETY: a handle of ours, destroyed once. librdkafka has its own of what is read.
        unsafe { rdsys::rd_kafka_topic_destroy(self.0) }
    }
}

/// Why the call before on this thread failed.
fn last_error() -> KafkaError {
    // SAFETY: it reads a variable of this thread.
    KafkaError::MessageConsumption(unsafe { rdsys::rd_kafka_last_error() }.into())
}

/// Begins to read partitions of a topic. `queue` is the client's own.
///
/// # Errors
/// librdkafka refused one; those before it are being read.
pub(crate) fn start<C: ClientContext>(
    client: &Client<C>,
    queue: &Waker,
    topic: &str,
    partitions: impl IntoIterator<Item = (i32, Offset)>,
) -> Result<(), KafkaError> {
    let topic = Topic::new(client, topic)?;
    for (partition, from) in partitions {
        let from = from.to_raw().ok_or(KafkaError::Canceled)?;
        // SAFETY: topic and queue are alive during the call; librdkafka keeps references of its own.
        let code =
            unsafe { rdsys::rd_kafka_consume_start_queue(topic.0, partition, from, queue.0) };
        if code != 0 {
            return Err(last_error());
        }
    }
    Ok(())
}

/// Reads these partitions of a topic no more. One that was not being read stays so.
pub(crate) fn stop<C: ClientContext>(
    client: &Client<C>,
    topic: &str,
    partitions: impl IntoIterator<Item = i32>,
) {
    let Ok(topic) = Topic::new(client, topic) else { return };
    for partition in partitions {
        // SAFETY: the topic is alive during the call. It fails only for a partition that was not being read.
        let _ = unsafe { rdsys::rd_kafka_consume_stop(topic.0, partition) };
    }
}

/// Where the log ended when a broker last answered a fetch of it; `None` before that.
pub(crate) fn known_end<C: ClientContext>(
    client: &Client<C>,
    topic: &str,
    partition: i32,
) -> Option<i64> {
    let topic = CString::new(topic).ok()?;
    let (mut low, mut high) = (-1, -1);
    // SAFETY: the client is alive, the name is alive during the call, and both numbers are ours. It asks no broker.
    let code = unsafe {
        rdsys::rd_kafka_get_watermark_offsets(
            client.native_ptr(),
            topic.as_ptr(),
            partition,
            &raw mut low,
            &raw mut high,
        )
    };
    (code == rdsys::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR && high >= 0).then_some(high)
}
