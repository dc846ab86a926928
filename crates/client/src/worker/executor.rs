//! One shard from its record to its result.

use std::any::Any;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::watch;
use waterclock_engine::Record;
use waterclock_kafka::KafkaError;

use super::super::tasks::{Error, Handed, Tasks, Turn};
use super::first::{First, first};
use super::{Context, Event, Failed, Handler, Observer, Shard};

/// Between two attempts to begin a turn, or to commit its offset.
const PAUSE: Duration = Duration::from_millis(500);

/// A handler of whatever type.
pub(super) trait Erased: Send + Sync {
    fn start(&self, shard: Shard, context: Context) -> Working<'_>;
}

type Working<'a> = Pin<Box<dyn Future<Output = Result<Value, Failed>> + Send + 'a>>;

impl<H: Handler> Erased for H {
    fn start(&self, shard: Shard, context: Context) -> Working<'_> {
        Box::pin(async move { self.run(shard, context).await })
    }
}

/// The place of a record in its group.
pub(super) trait Place: Sync {
    /// Whether its partition is still the member's.
    fn is_ours(&self) -> bool;
    /// Commits it; false: the partition is not the member's any more.
    fn commit(&self) -> impl Future<Output = Result<bool, KafkaError>> + Send;
}

/// How long a turn is ours after a heartbeat: 0.8 of the period after which waterclock hands the next one out.
pub(super) fn hold(period: Duration) -> Duration {
    period / 5 * 4
}

/// See the module.
pub(super) struct Executor {
    pub(super) topic: String,
    pub(super) handler: Arc<dyn Erased>,
    pub(super) tasks: Tasks,
    pub(super) heartbeat: Option<Duration>,
    pub(super) grace: Duration,
    pub(super) stop: watch::Receiver<bool>,
    pub(super) observer: Observer,
}

impl Executor {
    /// Works on a record. Once this returns the next one may be taken.
    pub(super) async fn execute(&self, record: &Record, place: &impl Place) {
        let handed = match Handed::of(record.headers()) {
            Ok(handed) => handed,
            Err(error) => return self.pass(place, error).await,
        };
        let shard = Shard::of(&self.topic, &handed, record.key(), record.value());
        let Some(turn) = self.begin(&handed, place).await else { return };
        self.say(Event::Begun { shard: shard.clone() });
        let context = Context::new(turn.beats());
        let work = caught(self.handler.start(shard.clone(), context));
        let ended = match turn.unless_over(first(work, self.grace_is_over())).await {
            Ok(First::One(ended)) => ended,
            Ok(First::Other(())) => Err(Failed::retry("the executor was stopped")),
            Err(over) => return self.say(Event::Over { shard, over }),
        };
        self.report(&turn, shard, ended).await;
    }

    pub(super) fn say(&self, event: Event) {
        (self.observer)(event);
    }

    pub(super) fn is_stopping(&self) -> bool {
        *self.stop.borrow()
    }

    async fn stopping(&self) {
        // The worker lets go of the other end only together with us.
        if self.stop.clone().wait_for(|stop| *stop).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    async fn grace_is_over(&self) {
        self.stopping().await;
        tokio::time::sleep(self.grace).await;
    }

    /// Begins the turn and commits the offset of its record; `None`: the turn is not ours.
    async fn begin(&self, handed: &Handed, place: &impl Place) -> Option<Turn> {
        loop {
            let begun = match first(self.turn(handed), self.stopping()).await {
                First::One(begun) => begun,
                // It is not committed: another member takes it.
                First::Other(()) => return None,
            };
            match begun {
                Ok(turn) => match self.commit(place, Some(&turn)).await {
                    Some(true) => return Some(turn),
                    Some(false) => return None,
                    // Heartbeats were not answered meanwhile. The same turn may begin anew.
                    None => {}
                },
                Err(error) if is_of_no_turn(&error) => {
                    self.pass(place, error).await;
                    return None;
                }
                Err(error) => {
                    let (topic, error) = (self.topic.clone(), Arc::new(error));
                    self.say(Event::NotBegun { topic, error });
                    tokio::time::sleep(PAUSE).await;
                }
            }
            if !place.is_ours() {
                self.say(Event::Moved { topic: self.topic.clone() });
                return None;
            }
        }
    }

    async fn turn(&self, handed: &Handed) -> Result<Turn, Error> {
        let period = match self.heartbeat {
            Some(period) => period,
            None => self.tasks.period(handed).await?,
        };
        self.tasks.begin_with(handed.clone(), hold(period)).await
    }

    /// Commits the offset; `None`: the turn is over before that is done.
    async fn commit(&self, place: &impl Place, turn: Option<&Turn>) -> Option<bool> {
        loop {
            match place.commit().await {
                Ok(true) => return Some(true),
                Ok(false) => {
                    self.say(Event::Moved { topic: self.topic.clone() });
                    return Some(false);
                }
                Err(error) => self.say(Event::Kafka { topic: self.topic.clone(), error }),
            }
            if turn.is_none_or(|turn| turn.is_over().is_some()) {
                return None;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// There is nothing to do. If the offset is not committed the record is looked at once more, which does no harm.
    async fn pass(&self, place: &impl Place, error: Error) {
        self.say(Event::Passed { topic: self.topic.clone(), error: Arc::new(error) });
        self.commit(place, None).await;
    }

    async fn report(&self, turn: &Turn, shard: Shard, mut ended: Result<Value, Failed>) {
        loop {
            let told = match &ended {
                Ok(_) => turn.finished().await,
                Err(failed) => turn.report(failed.report()).await,
            };
            return self.say(match (told, ended) {
                // The work is done, and a success counts, also if another executor has the turn by then.
                (Err(Error::Busy { retry_after, .. }), again) if !self.is_stopping() => {
                    ended = again;
                    tokio::time::sleep(retry_after).await;
                    continue;
                }
                (Err(error), _) => Event::NotReported { shard, error: Arc::new(error) },
                (Ok(reported), Ok(value)) => Event::Finished { shard, value, reported },
                (Ok(reported), Err(failed)) => Event::Failed { shard, failed, reported },
            });
        }
    }
}

/// Whether nobody waits for a report of this turn, so that the record is done with.
fn is_of_no_turn(error: &Error) -> bool {
    match error {
        Error::Stale { .. }
        | Error::NotHanded { .. }
        | Error::BadShard { .. }
        | Error::BadNominal { .. } => true,
        Error::Refused { code, .. } => {
            ["unknown_task", "wrong_ticket", "wrong_fields"].contains(&&**code)
        }
        _ => false,
    }
}

/// A panic is a failure of the shard, and of nothing else.
async fn caught(work: impl Future<Output = Result<Value, Failed>>) -> Result<Value, Failed> {
    let mut work = pin!(work);
    poll_fn(|context| {
        let polled = catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context)));
        polled.unwrap_or_else(|panic| Poll::Ready(Err(panicked(&*panic))))
    })
    .await
}

pub(super) fn panicked(panic: &(dyn Any + Send)) -> Failed {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    Failed::retry(format!("the handler panicked: {}", text.unwrap_or("no text")))
}
