//! Ends the transactions that dead members have left open, so that nobody waits for them.
//!
//! Offsets in an open transaction are not stable, and the next owner of the lanes waits for them: for the dead member's
//! transaction timeout and the coordinator's next look, 25 s with the defaults of both. Initialising a producer of the
//! same transactional id aborts the transaction at once.
//! The engine says [whose](waterclock_engine::member::Fenced).

use parking_lot::Mutex;
use std::time::{Duration, Instant};

use rdkafka::ClientContext;
use rdkafka::error::KafkaError;
use rdkafka::producer::{BaseProducer, DeliveryResult, Producer as _, ProducerContext};

use crate::client::Connection;
use crate::client::oauth::tokens;
use crate::client::raw::ask;
use crate::meta::{Member, SharedRoster};
use waterclock_engine::member::{Announced, Fenced, Named};

/// How the client is named in the brokers' logs.
const CLIENT: &str = "waterclock-fence";
/// How long one may take.
const FENCE_MAX: Duration = Duration::from_secs(5);

/// It produces nothing.
struct Context;

impl ClientContext for Context {
    tokens!();

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(%error, reason, "fencing");
    }
}

impl ProducerContext for Context {
    type DeliveryOpaque = ();

    fn delivery(&self, _: &DeliveryResult<'_>, (): ()) {}
}

/// Which members of a process are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Members {
    /// Its lane threads.
    Lanes,
    /// Its worker.
    Worker,
}

/// Fences dead members; one for each thread of a member.
pub(crate) struct Fence {
    connection: Connection,
    namespace: String,
    transaction_timeout: Duration,
    /// Producers of a thread.
    turns: usize,
    members: Members,
    roster: SharedRoster,
    done: Mutex<Fenced>,
}

impl Fence {
    pub(crate) fn new(
        connection: Connection,
        namespace: String,
        transaction_timeout: Duration,
        turns: usize,
        members: Members,
        roster: SharedRoster,
    ) -> Self {
        let done = Mutex::default();
        Self { connection, namespace, transaction_timeout, turns, members, roster, done }
    }

    /// Ends what those have left open of whom `is_here` says that they are not in the group any more.
    pub(crate) fn fence(&self, is_here: impl Fn(&str) -> bool) {
        if self.turns == 0 {
            return;
        }
        for member in self.gone(is_here) {
            let began = Instant::now();
            let instance = &member.instance;
            let ids = member.transactional_ids(&self.namespace, self.turns);
            // Side by side: each has to be aborted and its markers written.
            std::thread::scope(|scope| {
                for id in &ids {
                    scope.spawn(move || {
                        if let Err(error) = self.abort(id) {
                            tracing::warn!(
                                %error,
                                instance,
                                id,
                                "could not abort the open transaction of a member that is gone; Kafka aborts it at its timeout"
                            );
                        }
                    });
                }
            });
            tracing::info!(
                instance = member.instance,
                took = ?began.elapsed(),
                "ended what a member that is gone had left open"
            );
        }
    }

    fn gone(&self, is_here: impl Fn(&str) -> bool) -> Vec<Announced> {
        let roster = self.roster.lock();
        let announced = |member: &Member| announced(member, self.members);
        self.done.lock().dead(roster.members().map(announced), is_here)
    }

    fn abort(&self, id: &str) -> Result<(), KafkaError> {
        let mut config = self.connection.client(CLIENT);
        let timeout_ms = self.transaction_timeout.as_millis().to_string();
        config
            .set("transactional.id", id)
            .set("transaction.timeout.ms", &timeout_ms)
            .set("message.timeout.ms", &timeout_ms)
            .set("retry.backoff.ms", "2")
            .set("retry.backoff.max.ms", "50");
        let producer: BaseProducer<Context> = config.create_with_context(Context)?;
        self.connection.token(producer.client());
        // As for every producer: without a connection it looks for its coordinator every half second only.
        let _ = ask::reach(producer.client(), FENCE_MAX);
        producer.init_transactions(FENCE_MAX)
    }
}

/// What a process has said of its lane threads, or of its worker.
fn announced(member: &Member, of: Members) -> Announced {
    let (members, has_partitions) = match of {
        Members::Lanes => (Named::Threads(usize::from(member.threads)), !member.lanes.is_empty()),
        Members::Worker => (Named::Worker, member.worker),
    };
    let (instance, incarnation) = (member.instance.clone(), member.incarnation.clone());
    Announced { instance, incarnation, members, has_partitions }
}
