//! Who reads a topic, for the API: what Kafka said last, asked anew once that is too old.
//!
//! # Invariants
//! 1. Kafka is asked once at a time, and at most once in [`KEEP`], however many want to know.
//! 2. Nobody waits longer than [`WAIT_MAX`]. A question that takes longer goes on, and its answer is there for the next one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Mutex;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::kafka::{Connection, Subscribers, Subscriptions};

/// How long an answer is good, also one that there was none.
const KEEP: Duration = Duration::from_secs(3);
/// How long an answer of the API may be held up for it.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// Knows how many members of consumer groups read a topic.
#[derive(Clone)]
pub(super) struct Executors(Arc<Mutex<Kept<Arc<Subscriptions>>>>);

impl Executors {
    /// Asks these brokers, from the first question on.
    pub(super) fn new(connection: &Connection) -> Self {
        let mut subscribers = Subscribers::new(connection);
        let ask = move || match subscribers.ask() {
            Ok(told) => Some(Arc::new(told)),
            Err(error) => {
                tracing::debug!(%error, "Kafka does not say who reads which topic");
                None
            }
        };
        Self(Kept::new(ask))
    }

    /// How many read this topic; `None`: Kafka does not say.
    pub(super) async fn of(&self, topic: &str) -> Option<u32> {
        Kept::get(&self.0).await?.of(topic)
    }
}

/// An answer that is kept for a while.
struct Kept<T> {
    ask: Box<dyn FnMut() -> Option<T> + Send>,
    /// The last one, and when it came.
    last: Option<(Instant, Option<T>)>,
}

impl<T: Clone + Send + 'static> Kept<T> {
    fn new(ask: impl FnMut() -> Option<T> + Send + 'static) -> Arc<Mutex<Self>> {
        Arc::new(Mutex::new(Self { ask: Box::new(ask), last: None }))
    }

    /// The last answer, or the next one if it comes in time.
    async fn get(this: &Arc<Mutex<Self>>) -> Option<T> {
        let next = async {
            let mut kept = Arc::clone(this).lock_owned().await;
            if let Some((at, answer)) = &kept.last
                && at.elapsed() < KEEP
            {
                return answer.clone();
            }
            // It has the lock until there is an answer, whether or not anybody still waits.
            let asking = spawn_blocking(move || {
                let answer = (kept.ask)();
                kept.last = Some((Instant::now(), answer.clone()));
                answer
            });
            asking.await.ok().flatten()
        };
        timeout(WAIT_MAX, next).await.ok().flatten()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
    use std::sync::mpsc::channel;

    use tokio::task::JoinSet;

    use super::*;
    use crate::patient::eventually;

    #[tokio::test]
    async fn kafka_is_asked_once_for_all_and_nobody_waits_long_for_it() {
        let (answers, next) = channel();
        let asked = Arc::<AtomicU32>::default();
        let count = Arc::clone(&asked);
        let kept = Kept::new(move || {
            count.fetch_add(1, SeqCst);
            next.recv().ok().flatten()
        });
        let is_old = async || {
            let mut kept = kept.lock().await;
            let (at, _) = kept.last.as_mut().expect("an answer");
            *at = at.checked_sub(KEEP).expect("the machine is up for longer");
        };
        let mut readers = JoinSet::new();
        for _ in 0..20 {
            let kept = Arc::clone(&kept);
            readers.spawn(async move { Kept::get(&kept).await });
        }
        answers.send(Some(7)).expect("it is asked");
        assert_eq!(readers.join_all().await, [Some(7); 20]);
        assert_eq!((Kept::get(&kept).await, asked.load(SeqCst)), (Some(7), 1));
        // That there was no answer is kept, too.
        is_old().await;
        answers.send(None).expect("it is asked");
        assert_eq!((Kept::get(&kept).await, Kept::get(&kept).await), (None, None));
        assert_eq!(asked.load(SeqCst), 2);

        is_old().await;
        let began = Instant::now();
        assert_eq!(Kept::get(&kept).await, None);
        assert!(began.elapsed() >= WAIT_MAX, "{:?}", began.elapsed());
        // What came too late for one is there for the next one.
        answers.send(Some(9)).expect("it is asked");
        let told = eventually("there is an answer", async || {
            Kept::get(&kept).await.ok_or_else(|| "none".to_owned())
        });
        assert_eq!((told.await, asked.load(SeqCst)), (9, 3));
    }
}
