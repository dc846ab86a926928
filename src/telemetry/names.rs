//! Every metric, every label, and one function for each thing that is counted.
//!
//! The lane threads keep a [`LaneFigures`]: its handles are looked up once, so that counting costs an atomic
//! addition, and it is called once per batch, not once per record (but for lateness, which is a value each).

use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, Unit, counter, gauge, histogram};
use metrics::{describe_counter, describe_gauge, describe_histogram};

use crate::engine::Millis;
use crate::engine::header::Code;
use crate::index::Reason;

/// Histogram, seconds: the target's append time minus the due time.
pub(super) const LATENESS: &str = "waterclock_lateness_seconds";
/// Counter.
const DELIVERED: &str = "waterclock_delivered_total";
/// Counter. Label `tier`: a hold of the ladder.
const FORWARDED: &str = "waterclock_forwarded_total";
/// Counter. Label `code`: one of the closed list of [`Code`].
const DEAD_LETTERS: &str = "waterclock_dead_letters_total";
/// Counter.
const MOVED: &str = "waterclock_moved_total";
/// Histogram, seconds.
pub(super) const COMMIT: &str = "waterclock_commit_seconds";
/// Counter. Label `reason`: one of [`Renewed`].
const PRODUCERS_RENEWED: &str = "waterclock_producers_renewed_total";
/// Gauge.
const PENDING: &str = "waterclock_pending_in_memory";
/// Gauge, bytes.
const MEMORY: &str = "waterclock_memory_bytes";
/// Gauge.
const LANES: &str = "waterclock_lanes_owned";
/// Gauge, seconds. Label `broker`: its id.
const CLOCK_OFFSET: &str = "waterclock_clock_offset_seconds";
/// Counter. Label `broker`: its id.
const CLOCK_STEPS: &str = "waterclock_clock_steps_total";
/// Counter.
const LOST: &str = "waterclock_records_lost_total";
/// Counter. Label `reason`: one of [`Reason`](crate::index::Reason).
const INDEX_REBUILDS: &str = "waterclock_index_rebuilds_total";
/// Gauge: 1 if this process goes on without an index.
const INDEX_GIVEN_UP: &str = "waterclock_index_given_up";
/// Gauge.
const INDEX_ENTRIES: &str = "waterclock_index_entries";
/// Gauge, bytes.
const INDEX_DISK: &str = "waterclock_index_disk_bytes";

/// Gauge.
const SUSPECTS: &str = "waterclock_suspects";
/// Counter.
const HALVED: &str = "waterclock_suspects_halved_total";

/// Tells the recorder what each metric is, and makes those without labels appear as zero.
pub(super) fn describe() {
    describe_histogram!(
        LATENESS,
        Unit::Seconds,
        "How long after its due time a record was in its target"
    );
    describe_counter!(DELIVERED, Unit::Count, "Records delivered to their targets");
    describe_counter!(FORWARDED, Unit::Count, "Records appended to a tier");
    describe_counter!(DEAD_LETTERS, Unit::Count, "Records that went to the dead letters");
    describe_counter!(MOVED, Unit::Count, "Records moved from another partition to their lane");
    describe_histogram!(
        COMMIT,
        Unit::Seconds,
        "How long a commit took, records and offsets together"
    );
    describe_counter!(
        PRODUCERS_RENEWED,
        Unit::Count,
        "Producers renewed after a commit that failed or was not known to have succeeded"
    );
    describe_gauge!(PENDING, Unit::Count, "Records in memory: buffers, wheel and batches");
    describe_gauge!(MEMORY, Unit::Bytes, "Bytes of records in memory");
    describe_gauge!(LANES, Unit::Count, "Lanes that this process owns");
    describe_gauge!(
        CLOCK_OFFSET,
        Unit::Seconds,
        "How far the lower bound of a broker's clock is ahead of the slowest broker's"
    );
    describe_counter!(CLOCK_STEPS, Unit::Count, "Times that a broker's clock was seen to go back");
    describe_counter!(
        LOST,
        Unit::Count,
        "Records that Kafka no longer had when they were to be read; anything but zero is an alarm"
    );
    describe_counter!(
        INDEX_REBUILDS,
        Unit::Count,
        "Times that an index, or a lane of it, was thrown away and read from the changelog again"
    );
    describe_gauge!(
        INDEX_GIVEN_UP,
        "1 if this process goes on without an index, since its disk is full or does not work"
    );
    describe_gauge!(INDEX_ENTRIES, Unit::Count, "Entries in the index of the lanes owned");
    describe_gauge!(INDEX_DISK, Unit::Bytes, "What the index takes on disk");
    describe_gauge!(
        SUSPECTS,
        Unit::Count,
        "Records and targets that Kafka may have refused, and that are tried in batches of their own"
    );
    describe_counter!(
        HALVED,
        Unit::Count,
        "Groups of suspects that failed and were halved to find who it is that Kafka refuses"
    );
    for name in [DELIVERED, MOVED, LOST, HALVED] {
        counter!(name).increment(0);
    }
    for reason in Reason::ALL {
        counter!(INDEX_REBUILDS, "reason" => reason.as_str()).increment(0);
    }
    gauge!(INDEX_GIVEN_UP).set(0.0);
}

/// Why a producer was renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewed {
    /// A newer owner of the name fenced it.
    Fenced,
    /// Kafka refused a record, or a target.
    Refused,
    /// Kafka asked for the transaction to be aborted.
    Aborted,
    /// Nobody knows whether the commit happened.
    Unknown,
    /// The commit took longer than is safe.
    Slow,
    /// A broker disconnected while the transaction was open.
    Disconnected,
}

impl Renewed {
    const ALL: [Self; 6] =
        [Self::Fenced, Self::Refused, Self::Aborted, Self::Unknown, Self::Slow, Self::Disconnected];

    /// The value of the label `reason`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Fenced => "fenced",
            Self::Refused => "refused",
            Self::Aborted => "aborted",
            Self::Unknown => "unknown",
            Self::Slow => "slow",
            Self::Disconnected => "disconnected",
        }
    }
}

/// One thread's part of a gauge that all threads of the process share.
///
/// It adds what changed, so that parts add up, and takes its part back when it is dropped.
pub struct Level {
    gauge: Gauge,
    part: u64,
}

impl Level {
    fn new(gauge: Gauge) -> Self {
        Self { gauge, part: 0 }
    }

    /// Sets this thread's part.
    pub fn set(&mut self, part: u64) {
        if part != self.part {
            self.gauge.increment(part as f64 - self.part as f64);
            self.part = part;
        }
    }
}

impl Drop for Level {
    fn drop(&mut self) {
        self.gauge.decrement(self.part as f64);
    }
}

/// What one lane thread counts, with every handle looked up beforehand.
pub struct LaneFigures {
    lateness: Histogram,
    delivered: Counter,
    /// By index of the tier in the ladder.
    forwarded: Vec<Counter>,
    /// By position in [`Code::ALL`].
    dead_letters: Vec<Counter>,
    moved: Counter,
    commit: Histogram,
    /// By position in [`Renewed::ALL`].
    renewed: Vec<Counter>,
    lost: Counter,
    halved: Counter,
}

/// What one lane thread holds now; its parts of the process's gauges.
pub struct LaneLevels {
    /// Records in memory.
    pub pending: Level,
    /// Bytes of records in memory.
    pub memory_bytes: Level,
    /// Lanes owned.
    pub lanes: Level,
    /// Records and targets that Kafka may have refused.
    pub suspects: Level,
}

impl LaneLevels {
    /// Looks the handles up.
    #[must_use]
    #[allow(clippy::new_without_default, reason = "it registers with the process's recorder")]
    pub fn new() -> Self {
        Self {
            pending: Level::new(gauge!(PENDING)),
            memory_bytes: Level::new(gauge!(MEMORY)),
            lanes: Level::new(gauge!(LANES)),
            suspects: Level::new(gauge!(SUSPECTS)),
        }
    }
}

/// How far a broker's clock is ahead of the slowest one, at most.
pub fn clock_offset(broker: i32, ahead: Duration) {
    gauge!(CLOCK_OFFSET, "broker" => broker.to_string()).set(ahead.as_secs_f64());
}

/// A broker's clock went back.
pub fn clock_stepped_back(broker: i32) {
    counter!(CLOCK_STEPS, "broker" => broker.to_string()).increment(1);
}

/// A committed position was outside of its log by `count` offsets.
pub fn position_lost(count: u64) {
    counter!(LOST).increment(count);
}

/// An index, or a lane of it, was thrown away and is read from the changelog again.
pub fn index_rebuilt(reason: Reason) {
    counter!(INDEX_REBUILDS, "reason" => reason.as_str()).increment(1);
}

/// This process goes on without an index.
pub fn index_given_up() {
    gauge!(INDEX_GIVEN_UP).set(1.0);
}

/// How large the index is now.
pub fn index_size(entries: u64, disk_bytes: u64) {
    gauge!(INDEX_ENTRIES).set(entries as f64);
    gauge!(INDEX_DISK).set(disk_bytes as f64);
}

impl LaneFigures {
    /// Looks the handles up, for a ladder of these holds.
    #[must_use]
    pub fn new(holds: impl IntoIterator<Item = Millis>) -> Self {
        let tier = |hold: Millis| counter!(FORWARDED, "tier" => hold.to_string());
        let code = |code: &Code| counter!(DEAD_LETTERS, "code" => code.as_str());
        let reason = |why: Renewed| counter!(PRODUCERS_RENEWED, "reason" => why.as_str());
        Self {
            lateness: histogram!(LATENESS),
            delivered: counter!(DELIVERED),
            forwarded: holds.into_iter().map(tier).collect(),
            dead_letters: Code::ALL.iter().map(code).collect(),
            moved: counter!(MOVED),
            commit: histogram!(COMMIT),
            renewed: Renewed::ALL.into_iter().map(reason).collect(),
            lost: counter!(LOST),
            halved: counter!(HALVED),
        }
    }

    /// Deliveries of a batch that is committed, by how late each was in its target.
    pub fn delivered(&self, lateness: impl Iterator<Item = Millis>) {
        let mut count = 0;
        for late in lateness {
            self.lateness.record(late.0 as f64 / 1_000.0);
            count += 1;
        }
        self.delivered.increment(count);
    }

    /// `count` records of a batch that is committed were appended to this tier.
    pub fn forwarded(&self, tier: usize, count: u64) {
        if let Some(counter) = self.forwarded.get(tier) {
            counter.increment(count);
        }
    }

    /// A dead letter of a batch that is committed.
    pub fn dead_letter(&self, code: Code) {
        let at = Code::ALL.iter().position(|known| *known == code);
        if let Some(counter) = at.and_then(|at| self.dead_letters.get(at)) {
            counter.increment(1);
        }
    }

    /// `count` records of a batch that is committed were moved to their lane.
    pub fn moved(&self, count: u64) {
        self.moved.increment(count);
    }

    /// A commit, from its first record handed over to Kafka's answer.
    pub fn committed(&self, took: Duration) {
        self.commit.record(took);
    }

    /// A producer was renewed.
    pub fn renewed(&self, why: Renewed) {
        let at = Renewed::ALL.iter().position(|known| *known == why);
        if let Some(counter) = at.and_then(|at| self.renewed.get(at)) {
            counter.increment(1);
        }
    }

    /// `count` groups of suspects failed and were halved.
    pub fn halved(&self, count: u64) {
        self.halved.increment(count);
    }

    /// Kafka no longer had `count` records that were still to be read.
    pub fn lost(&self, count: u64) {
        self.lost.increment(count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The figures that `record` leaves, as Prometheus reads them.
    fn rendered(record: impl FnOnce()) -> String {
        let recorder = super::super::builder().unwrap().build_recorder();
        let handle = recorder.handle();
        metrics::with_local_recorder(&recorder, record);
        handle.render()
    }

    #[test]
    fn what_is_counted_is_rendered_with_its_labels_and_buckets() {
        let text = rendered(|| {
            describe();
            let figures = LaneFigures::new([Millis(1_000), Millis(90_000)]);
            figures.delivered([Millis(0), Millis(1), Millis(4_000)].into_iter());
            figures.forwarded(1, 7);
            figures.forwarded(9, 1);
            figures.dead_letter(Code::Expired);
            figures.renewed(Renewed::Fenced);
            figures.committed(Duration::from_millis(3));
            LaneLevels::new().memory_bytes.set(12);
        });
        for line in [
            "waterclock_delivered_total 3",
            "waterclock_forwarded_total{tier=\"1m30s\"} 7",
            "waterclock_forwarded_total{tier=\"1s\"} 0",
            "waterclock_dead_letters_total{code=\"expired\"} 1",
            "waterclock_producers_renewed_total{reason=\"fenced\"} 1",
            "waterclock_records_lost_total 0",
            "waterclock_lateness_seconds_bucket{le=\"0.0005\"} 1",
            "waterclock_lateness_seconds_bucket{le=\"0.001\"} 2",
            "waterclock_lateness_seconds_bucket{le=\"3600\"} 3",
            "waterclock_commit_seconds_bucket{le=\"0.005\"} 1",
            "# TYPE waterclock_lateness_seconds histogram",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn parts_of_a_gauge_add_up_and_go_with_their_thread() {
        let text = rendered(|| {
            let (mut one, mut two, mut gone) =
                (LaneLevels::new(), LaneLevels::new(), LaneLevels::new());
            one.lanes.set(3);
            one.lanes.set(2);
            two.lanes.set(4);
            gone.lanes.set(5);
            drop(gone);
            std::mem::forget((one, two));
        });
        assert!(text.contains("waterclock_lanes_owned 6"), "{text}");
    }
}
