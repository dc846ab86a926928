//! Wakes a thread of ours when a client has an event for it.
//!
//! A poll of rdkafka's with a time limit spins through the last millisecond of it. With a bell a thread waits by the
//! monotonic clock, spins never, and then takes what is there without waiting.

use std::ffi::c_void;
use std::ptr;
use std::thread::Thread;

use rdkafka::ClientContext;
use rdkafka::bindings as rdsys;
use rdkafka::client::Client;

/// Unparks a thread whenever a queue of a client gets an event and had none.
///
/// # Invariants
/// 1. The client outlives it: the owner of a bell keeps the client for as long.
/// 2. librdkafka rings while it holds the queue's lock, and the bell is taken off under that lock. So none rings once this
///    is dropped.
pub(crate) struct Bell {
    queue: *mut rdsys::rd_kafka_queue_t,
    /// Boxed, since librdkafka keeps its address.
    _thread: Box<Thread>,
}

// SAFETY: queues are thread-safe by librdkafka's contract, and so is a handle of a thread.
unsafe impl Send for Bell {}
// SAFETY: as above.
unsafe impl Sync for Bell {}

/// Called by threads of librdkafka with a lock held: it may neither block nor call librdkafka.
unsafe extern "C" fn ring(_: *mut rdsys::rd_kafka_t, thread: *mut c_void) {
    // SAFETY: the address of the box in a bell that is not dropped yet (invariant 2).
    unsafe { (*thread.cast::<Thread>()).unpark() }
}

impl Bell {
    /// Wakes `thread` for everything that is polled of a producer, or of a consumer without a group: delivery reports, records,
    /// errors, log lines and tokens.
    pub(crate) fn of<C: ClientContext>(client: &Client<C>, thread: Thread) -> Self {
        // SAFETY: the client is alive; the reference that is given is ours. Every client has this queue.
        let queue = unsafe { rdsys::rd_kafka_queue_get_main(client.native_ptr()) };
        Self::hang(queue, thread)
    }

    /// Wakes `thread` for everything that is polled of a member of a group: records, answers to commits, rebalances, errors.
    pub(crate) fn of_member<C: ClientContext>(client: &Client<C>, thread: Thread) -> Option<Self> {
        // SAFETY: the client is alive; the reference that is given is ours.
        let queue = unsafe { rdsys::rd_kafka_queue_get_consumer(client.native_ptr()) };
        (!queue.is_null()).then(|| Self::hang(queue, thread))
    }

    fn hang(queue: *mut rdsys::rd_kafka_queue_t, thread: Thread) -> Self {
        let mut thread = Box::new(thread);
        let at = ptr::from_mut(&mut *thread).cast::<c_void>();
        // SAFETY: the queue lives until this is dropped, and so does what `at` points to.
        unsafe { rdsys::rd_kafka_queue_cb_event_enable(queue, Some(ring), at) };
        Self { queue, _thread: thread }
    }

    /// Whether there are events. A thread looks here before it parks: an event that comes in between unparks it.
    pub(crate) fn has_events(&self) -> bool {
        // SAFETY: the queue lives until this is dropped.
        unsafe { rdsys::rd_kafka_queue_length(self.queue) > 0 }
    }
}

impl Drop for Bell {
    fn drop(&mut self) {
        // SAFETY: a reference of ours, destroyed once, before the client (invariant 1).
        unsafe {
            rdsys::rd_kafka_queue_cb_event_enable(self.queue, None, ptr::null_mut());
            rdsys::rd_kafka_queue_destroy(self.queue);
        }
    }
}
