//! Ends the transactions that dead members have left open, so that nobody waits for them.
//!
//! Offsets in an open transaction are not stable, and the next owner of the lanes waits for them: for the dead member's
//! transaction timeout and the coordinator's next look, 25 s with the defaults of both. Initialising a producer of the
//! same transactional id aborts the transaction at once.
//!
//! # Invariants
//! 1. Fenced is only a member that is not in the group and left lanes behind. Its commits are refused anyway, as its
//!    generation is over. A member that was only thrown out makes new producers, as after any failed batch.
//! 2. Each start of a process is fenced once.

use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use rdkafka::ClientContext;
use rdkafka::error::KafkaError;
use rdkafka::producer::{BaseProducer, DeliveryResult, Producer as _, ProducerContext};

use crate::client::Connection;
use crate::client::oauth::tokens;
use crate::client::raw::ask;
use crate::meta::{Heard, Member};

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

/// Fences dead members; one for each lane thread.
pub(crate) struct Fence {
    connection: Connection,
    namespace: String,
    transaction_timeout: Duration,
    /// Producers of a thread.
    turns: usize,
    heard: Heard,
    /// By instance and start.
    done: Mutex<BTreeSet<(String, String)>>,
}

impl Fence {
    pub(crate) fn new(
        connection: Connection,
        namespace: String,
        transaction_timeout: Duration,
        turns: usize,
        heard: Heard,
    ) -> Self {
        Self { connection, namespace, transaction_timeout, turns, heard, done: Mutex::default() }
    }

    /// Ends what those have left open of whom `is_here` says that they are not in the group any more.
    pub(crate) fn fence(&self, is_here: impl Fn(&str) -> bool) {
        if self.turns == 0 {
            return;
        }
        for member in self.gone(is_here) {
            let began = Instant::now();
            let ids = (0..member.threads.max(1))
                .flat_map(|thread| (0..self.turns).map(move |turn| (thread, turn)));
            let ids = ids.map(|(thread, turn)| {
                format!("{}/{}/{thread}/{turn}", self.namespace, member.instance)
            });
            let ids: Vec<String> = ids.collect();
            // Side by side: each has to be aborted and its markers written.
            std::thread::scope(|scope| {
                for id in &ids {
                    scope.spawn(move || {
                        if let Err(error) = self.abort(id) {
                            tracing::warn!(%error, id, "could not end what it left open; it ends by its timeout");
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

    /// Members that had lanes, and are not in the group; each is told of once.
    fn gone(&self, is_here: impl Fn(&str) -> bool) -> Vec<Member> {
        let heard = self.heard.lock();
        let mut done = self.done.lock();
        let gone = heard.members().filter(|member| !member.lanes.is_empty());
        let gone = gone.filter(|member| !is_here(&member.instance));
        gone.filter(|member| done.insert((member.instance.clone(), member.boot.clone())))
            .cloned()
            .collect()
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
        let _ = ask::controller(producer.client(), FENCE_MAX);
        producer.init_transactions(FENCE_MAX)
    }
}
