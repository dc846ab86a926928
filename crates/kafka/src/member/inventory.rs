//! Reads the rest of a lane, once, after records of it were found gone: on a thread of its own, beside the lane's work.
//!
//! The engine knows which timers are pending. It declares those lost of which the reading finds nothing.
//!
//! # Invariants
//! 1. Everything that stood in the lane's partitions when the reading was ordered is reported before its end is.
//! 2. Its end is reported once, even if nothing could be read.
//! 3. Few results wait to be taken: the lane's thread sets the pace.

use parking_lot::Mutex;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crossbeam_channel::Sender;
use rdkafka::error::KafkaError;

use super::timers::AssignmentEvent;
use crate::client::connect::Isolation;
use crate::client::topic_reader::{Consumed, Ended, Patience, ReadError, Span, StartAt};
use crate::client::{Connection, TopicReader};
use crate::cluster::end_offsets::{EndOffsets, Partition};
use waterclock_engine::{Event, Lane, Left, Offset, Setup, Source};

/// How the client is named in the brokers' logs.
const CLIENT: &str = "waterclock-inventory";
/// How long a broker holds a fetch for which there is nothing.
const WAIT: Duration = Duration::from_millis(50);
/// How long to ask where the partitions end.
const ENDS_MAX: Duration = Duration::from_secs(30);
/// A partition of which nothing comes for this long cannot be read now.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// Records that are told at once.
const PIECE: usize = 500;
/// Pieces that wait to be taken, at most.
const WAITING_MAX: usize = 4;
/// How long it sleeps then.
const PAUSE: Duration = Duration::from_millis(2);

/// The one reader in the whole process holds it.
static READING: Mutex<()> = Mutex::new(());

/// What to read, and to whom to report it.
pub(crate) struct InventoryRequest {
    pub(crate) connection: Connection,
    pub(crate) setup: Arc<Setup>,
    pub(crate) ends: EndOffsets,
    /// Which assignment asks.
    pub(crate) assignment: u64,
    pub(crate) lane: Lane,
    /// The lane's partitions, and where nothing before is pending.
    pub(crate) from: Vec<(Source, Offset)>,
    /// Gone as soon as nobody waits for it any more.
    pub(crate) stands: Weak<()>,
    pub(crate) to: Sender<AssignmentEvent>,
}

/// Why it could not be read.
#[derive(Debug, thiserror::Error)]
enum InventoryError {
    #[error(transparent)]
    Kafka(#[from] KafkaError),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("nothing came of {topic}/{partition} for {} s", SILENCE_MAX.as_secs())]
    Silent { topic: Arc<str>, partition: i32 },
    #[error("the lane is not asked about any more")]
    Over,
    #[error("a mistake of ours; see above")]
    Fault,
}

/// Begins to read.
///
/// # Errors
/// The system has no thread left.
pub(crate) fn begin(order: InventoryRequest) -> std::io::Result<()> {
    let thread = std::thread::Builder::new().name("wc-inventory".into());
    thread.spawn(move || order.run()).map(drop)
}

impl InventoryRequest {
    fn run(self) {
        let lane = self.lane.0;
        // One at a time, so that the memory is that of one.
        let _turn = READING.lock();
        if self.stands.strong_count() == 0 {
            return;
        }
        let began = Instant::now();
        tracing::info!(lane, "records are gone; reading what is left of the lane");
        let read =
            catch_unwind(AssertUnwindSafe(|| self.read())).unwrap_or(Err(InventoryError::Fault));
        match &read {
            Ok(records) => {
                let took = began.elapsed();
                tracing::info!(lane, records, ?took, "read what is left of the lane");
            }
            Err(InventoryError::Over) => return,
            Err(error) => tracing::warn!(
                lane,
                %error,
                "could not read what is left of the lane; timers whose records are gone are listed as pending until it is read \
                 again, in a minute, or until they are overdue"
            ),
        }
        self.tell(Event::Counted { lane: self.lane, is_complete: read.is_ok() });
    }

    fn tell(&self, event: Event) {
        let _ = self.to.send(AssignmentEvent { assignment: self.assignment, event });
    }

    /// Reads one partition after the other; how many records that were.
    fn read(&self) -> Result<u64, InventoryError> {
        fail::fail_point!("lane_unread", |_| Err(InventoryError::Kafka(KafkaError::Canceled)));
        let topics = &self.setup.topics;
        let partition = |(source, _): &(Source, Offset)| -> Partition {
            (Arc::clone(topics.name(source.topic)), i32::from(source.lane.0))
        };
        let partitions: Vec<Partition> = self.from.iter().map(partition).collect();
        let told = self.ends.wait(&partitions, ENDS_MAX)?;
        // What an open transaction holds up counts as there: it may be a hop.
        let isolation = Isolation::Uncommitted;
        let mut reader = TopicReader::to_ends(&self.connection, CLIENT, isolation, WAIT)?;
        let mut records = 0;
        for ((source, low), (topic, partition)) in self.from.iter().zip(&partitions) {
            let ends = told.iter().find(|of| of.topic == *topic && of.partition == *partition);
            let Some((first, last)) = ends.and_then(|of| of.first.zip(of.last)) else {
                let (topic, partition) = (Arc::clone(topic), *partition);
                return Err(InventoryError::Silent { topic, partition });
            };
            records += self.read_one(&mut reader, *source, (first.max(*low), last))?;
        }
        Ok(records)
    }

    fn read_one(
        &self,
        reader: &mut TopicReader,
        source: Source,
        (first, last): (Offset, Offset),
    ) -> Result<u64, InventoryError> {
        let (topic, partition) = (self.setup.topics.name(source.topic), i32::from(source.lane.0));
        let is_wanted = || self.stands.strong_count() > 0;
        let patience = Patience { silence: SILENCE_MAX, by: None, is_wanted: &is_wanted };
        let span = Span { partition, from: StartAt::Offset(first), to: last };
        let (mut records, mut piece) = (0, Vec::with_capacity(PIECE));
        let ended = reader.read(topic, [span], patience, |record| {
            records += 1;
            piece.extend(self.left(source, record));
            if piece.len() == PIECE {
                self.pass_on(&mut piece);
            }
            Ok::<_, ReadError>(ControlFlow::Continue(()))
        })?;
        if ended == Ended::Unwanted {
            return Err(InventoryError::Over);
        }
        self.pass_on(&mut piece);
        Ok(records)
    }

    fn left(&self, source: Source, record: &Consumed<'_>) -> Option<Left> {
        let appended = record.appended().unwrap_or_default();
        let copy = record.record(self.setup.limits.record_bytes_max);
        waterclock_engine::left(&self.setup, (source, record.offset()), appended, &copy)
    }

    fn pass_on(&self, piece: &mut Vec<Left>) {
        while self.to.len() > WAITING_MAX && self.stands.strong_count() > 0 {
            std::thread::sleep(PAUSE);
        }
        let records = std::mem::replace(piece, Vec::with_capacity(PIECE));
        if !records.is_empty() {
            self.tell(Event::Left { lane: self.lane, records });
        }
    }
}
