//! Deletes done records from our own topics: up to the committed low watermark, never beyond.
//!
//! Own topics keep records for ever (`retention.ms=-1`), so this is what frees the disk. It runs behind the commits, on
//! a thread of its own. What it misses it deletes the next time.

use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};
use rdkafka::admin::AdminOptions;
use rdkafka::error::KafkaError;
use rdkafka::topic_partition_list::{Offset as At, TopicPartitionList};

use crate::client::Connection;
use crate::client::resilient_admin::ResilientAdmin;

/// Topic, partition, and the offset before which everything is done.
type Lows = Vec<(String, i32, i64)>;

/// Handle on the deleting thread; it ends when the last handle is dropped.
#[derive(Clone, Debug)]
pub struct Trim {
    asks: Sender<Lows>,
}

impl Trim {
    /// Starts the thread.
    ///
    /// # Errors
    /// The client could not be made: the configuration is wrong.
    pub fn start(connection: &Connection) -> Result<Self, KafkaError> {
        let (asks, inbox) = crossbeam_channel::bounded(64);
        let admin = ResilientAdmin::new(connection, "waterclock-trim")?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .map_err(|_| KafkaError::Canceled)?;
        std::thread::Builder::new()
            .name("wc-trim".into())
            .spawn(move || run(&inbox, &admin, &runtime))
            .map_err(|_| KafkaError::Canceled)?;
        Ok(Self { asks })
    }

    /// Deletes before these offsets, some time soon. Asking too often is passed over: the next time covers it.
    pub fn ask(&self, lows: Lows) {
        if !lows.is_empty() {
            let _ = self.asks.try_send(lows);
        }
    }
}

fn run(inbox: &Receiver<Lows>, admin: &ResilientAdmin, runtime: &tokio::runtime::Runtime) {
    let options = AdminOptions::new().request_timeout(Some(Duration::from_secs(10)));
    for lows in inbox {
        let mut list = TopicPartitionList::with_capacity(lows.len());
        for (topic, partition, low) in &lows {
            let _ = list.add_partition_offset(topic, *partition, At::Offset(*low));
        }
        let told = admin.ask_parts(|admin| -> Result<_, KafkaError> {
            let deleted = runtime.block_on(admin.delete_records(&list, &options))?;
            let mut codes = Vec::new();
            for element in deleted.elements() {
                if let Err(error) = element.error() {
                    let (topic, partition) = (element.topic(), element.partition());
                    tracing::debug!(%error, topic, partition, "could not delete what is done");
                    codes.extend(error.rdkafka_error_code());
                }
            }
            Ok(((), codes))
        });
        if let Err(error) = told {
            tracing::warn!(%error, "could not delete what is done; the disk is not freed");
        }
    }
}
