//! Takes the events of producers: delivery reports, errors, log lines, requests for tokens. Does small tasks besides.
//!
//! rdkafka has threads of its own for that, one for each producer. They spin through the clock for a hundredth of their
//! time. Here one thread takes the events of all producers of one owner, and sleeps while there are none. Short tasks that
//! are due now and then ([`Task`]) can have their turns on it, so that they need no thread of their own.
//!
//! # Invariants
//! 1. One owner, one thread: what one of them does wrong holds up nobody else.
//! 2. The thread closes no producer and keeps none alive: it borrows one only while it takes its events.
//! 3. Taking events is short, and so is a turn of a task. A context hands on what it is told, and waits for nobody.
//! 4. The thread waits by the monotonic clock.
//! 5. A producer that is closed waits for events of its own that are being taken, and for nothing else. After that none
//!    is taken any more.

use std::sync::{Arc, Weak};
use std::thread::{JoinHandle, Thread};
use std::time::Duration;

use parking_lot::Mutex;
use rdkafka::ClientConfig;
use rdkafka::config::FromClientConfigAndContext as _;
use rdkafka::error::KafkaError;
use rdkafka::producer::{BaseProducer, Producer as _, ProducerContext};

use super::raw::bell::Bell;

/// The thread looks at all producers this often, even if no bell rang and no task is due.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Events of one producer that are taken before those of the next one.
const EVENTS_MAX: usize = 64;

/// The thread that takes the events of some producers; it ends when this and all of its producers and tasks are dropped.
#[derive(Clone)]
pub(crate) struct Events(Arc<Shared>);

struct Shared {
    places: Mutex<Vec<Weak<TaskSlot>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Where the thread finds a task; empty once that is being taken away.
struct TaskSlot {
    task: Mutex<Option<Box<dyn Task>>>,
    /// The longest time between two turns.
    every: Duration,
}

/// What has turns on the thread: at least as often as was said, and whenever a bell of the thread rings.
pub(crate) trait Task: Send {
    /// One turn; true if there is more to do at once.
    fn turn(&mut self) -> bool;
}

/// A producer as the thread needs it. The bell is dropped before the producer is: fields drop in order.
struct Polled {
    bell: Bell,
    producer: Arc<dyn TakesEvents>,
}

trait TakesEvents: Send + Sync {
    /// Takes one event, if there is one.
    fn take_one(&self);
}

impl<C: ProducerContext + 'static> TakesEvents for BaseProducer<C> {
    fn take_one(&self) {
        self.poll(Duration::ZERO);
    }
}

impl Task for Polled {
    fn turn(&mut self) -> bool {
        for _ in 0..EVENTS_MAX {
            if !self.bell.has_events() {
                return false;
            }
            self.producer.take_one();
        }
        true
    }
}

impl std::fmt::Debug for Events {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Events").finish_non_exhaustive()
    }
}

impl Events {
    /// Starts a thread of this name.
    ///
    /// # Errors
    /// The operating system gives no thread.
    pub(crate) fn start(name: &str) -> Result<Self, KafkaError> {
        let shared = Arc::new(Shared { places: Mutex::default(), thread: Mutex::default() });
        let seen = Arc::downgrade(&shared);
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || take_events(&seen))
            .map_err(|_| KafkaError::Canceled)?;
        *shared.thread.lock() = Some(thread);
        Ok(Self(shared))
    }

    /// Makes a producer whose events the thread takes.
    ///
    /// # Errors
    /// librdkafka refused its settings.
    pub(crate) fn producer<C: ProducerContext + 'static>(
        &self,
        config: &ClientConfig,
        context: C,
    ) -> Result<Producer<C>, KafkaError> {
        let producer = Arc::new(BaseProducer::from_config_and_context(config, context)?);
        let bell = Bell::of(producer.client(), self.thread()?);
        let polled = Polled { bell, producer: Arc::clone(&producer) as Arc<dyn TakesEvents> };
        Ok(Producer { _taking: self.add(LOOK_EVERY, polled)?, producer })
    }

    /// The thread, for a bell of a task.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn thread(&self) -> Result<Thread, KafkaError> {
        let thread = self.0.thread.lock();
        thread.as_ref().map(|thread| thread.thread().clone()).ok_or(KafkaError::Canceled)
    }

    /// Gives a task turns on the thread, the first one at once, and one at least `every` so often.
    ///
    /// # Errors
    /// There is no thread.
    pub(crate) fn add(
        &self,
        every: Duration,
        task: impl Task + 'static,
    ) -> Result<Turns, KafkaError> {
        let thread = self.thread()?;
        let place = Arc::new(TaskSlot { task: Mutex::new(Some(Box::new(task))), every });
        self.0.places.lock().push(Arc::downgrade(&place));
        // What a producer said before the bell was hung is taken now.
        thread.unpark();
        Ok(Turns { place, _events: self.clone() })
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.get_mut() {
            // Not waited for: it has nothing of anybody.
            thread.thread().unpark();
        }
    }
}

/// The turns of a task. When this is dropped a turn that goes on is waited for, there are no more, and the task is dropped.
pub(crate) struct Turns {
    place: Arc<TaskSlot>,
    /// The thread goes on for as long as there is a task.
    _events: Events,
}

impl std::fmt::Debug for Turns {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Turns").field("every", &self.place.every).finish_non_exhaustive()
    }
}

impl Drop for Turns {
    fn drop(&mut self) {
        let task = self.place.task.lock().take();
        drop(task);
    }
}

/// A producer whose events are taken by a thread of [`Events`]. From its drop on only the one who drops it has the producer,
/// which hands out its last reports as it closes: fields drop in order.
pub(crate) struct Producer<C: ProducerContext + 'static> {
    _taking: Turns,
    producer: Arc<BaseProducer<C>>,
}

impl<C: ProducerContext + 'static> std::ops::Deref for Producer<C> {
    type Target = BaseProducer<C>;

    fn deref(&self) -> &BaseProducer<C> {
        &self.producer
    }
}

fn take_events(shared: &Weak<Shared>) {
    loop {
        let places: Vec<Arc<TaskSlot>> = {
            let Some(shared) = shared.upgrade() else { return };
            let mut all = shared.places.lock();
            all.retain(|place| place.strong_count() > 0);
            all.iter().filter_map(Weak::upgrade).collect()
        };
        let (mut is_more, mut wait) = (false, LOOK_EVERY);
        for place in places {
            is_more |= place.task.lock().as_mut().is_some_and(|task| task.turn());
            wait = wait.min(place.every);
        }
        if !is_more {
            std::thread::park_timeout(wait);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Instant;

    use rdkafka::ClientContext;
    use rdkafka::producer::{BaseRecord, DeliveryResult};

    use super::*;
    use crate::client::Connection;
    use crate::client::settings::Given;

    /// Longest wait for what must come.
    const MOST: Duration = Duration::from_secs(30);

    /// Says that a report is being taken, and takes it once it may.
    struct Slow {
        begun: Sender<()>,
        may: Mutex<Receiver<()>>,
        taken: Arc<AtomicUsize>,
    }

    impl ClientContext for Slow {}

    impl ProducerContext for Slow {
        type DeliveryOpaque = ();

        fn delivery(&self, _: &DeliveryResult<'_>, (): ()) {
            let _ = self.begun.send(());
            let _ = self.may.lock().recv();
            self.taken.fetch_add(1, Ordering::SeqCst);
        }
    }

    struct Test {
        producer: Producer<Slow>,
        begun: Receiver<()>,
        may: Sender<()>,
        taken: Arc<AtomicUsize>,
    }

    /// A producer to nobody: its record fails within a moment.
    fn producer(events: &Events) -> Test {
        let (begin, begun) = channel();
        let (may, wait) = channel();
        let taken = Arc::new(AtomicUsize::new(0));
        let mut config = Connection::new("127.0.0.1:1", Given::new()).client("test");
        config.set("message.timeout.ms", "100").set("linger.ms", "0");
        let context = Slow { begun: begin, may: Mutex::new(wait), taken: Arc::clone(&taken) };
        let producer = events.producer(&config, context).unwrap();
        let record: BaseRecord<'_, str, str> = BaseRecord::to("t").payload("").key("");
        producer.send(record).map_err(|(error, _)| error).unwrap();
        Test { producer, begun, may, taken }
    }

    #[test]
    fn reports_are_taken_as_they_come_and_by_one_thread_for_all() {
        let events = Events::start("test-events").unwrap();
        let (one, other) = (producer(&events), producer(&events));
        // Either one's may come first.
        for test in [&one, &other] {
            test.may.send(()).unwrap();
        }
        for test in [&one, &other] {
            test.begun.recv_timeout(MOST).expect("nobody polls it but the thread");
        }
        let until = Instant::now() + MOST;
        while [&one, &other].iter().any(|test| test.taken.load(Ordering::SeqCst) == 0) {
            assert!(Instant::now() < until, "both reports are taken");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_producer_that_hangs_in_a_report_holds_up_no_other_owner() {
        let (first, second) =
            (Events::start("test-first").unwrap(), Events::start("test-second").unwrap());
        let hangs = producer(&first);
        hangs.begun.recv_timeout(MOST).unwrap();
        // Another one of the same owner is closed all the same, and so is one of another owner, whose reports are taken.
        let beside = producer(&first);
        beside.may.send(()).unwrap();
        drop(beside.producer);
        assert_eq!(beside.taken.load(Ordering::SeqCst), 1, "it takes its own reports as it closes");
        let other = producer(&second);
        other.may.send(()).unwrap();
        other.begun.recv_timeout(MOST).unwrap();
        drop(other.producer);
        assert_eq!(hangs.taken.load(Ordering::SeqCst), 0, "that one still hangs");
        // It is closed once it does not hang any more.
        let is_closed = Arc::new(AtomicBool::new(false));
        let (closing, seen) = (hangs.producer, Arc::clone(&is_closed));
        let closes = std::thread::spawn(move || {
            drop(closing);
            seen.store(true, Ordering::SeqCst);
        });
        assert!(!is_closed.load(Ordering::SeqCst));
        drop(hangs.may);
        closes.join().unwrap();
        assert_eq!(hangs.taken.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn the_thread_ends_with_the_last_producer() {
        let events = Events::start("test-ends").unwrap();
        let test = producer(&events);
        let shared = Arc::downgrade(&events.0);
        drop(events);
        assert!(shared.upgrade().is_some(), "a producer needs it");
        drop(test.may);
        drop(test.producer);
        let until = Instant::now() + MOST;
        while shared.upgrade().is_some() {
            assert!(Instant::now() < until, "nobody needs it");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
