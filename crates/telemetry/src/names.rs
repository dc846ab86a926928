//! Every metric, every label, and one function for each thing that is counted.
//!
//! The lane threads keep a [`LaneFigures`]: its handles are looked up once, so that counting costs an atomic
//! addition, and it is called once per batch, not once per record (but for lateness, which is a value each).

use parking_lot::Mutex;
use std::collections::HashMap;
use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, Unit, counter, gauge, histogram};
use metrics::{describe_counter, describe_gauge, describe_histogram};

use waterclock_engine::header::Code;
use waterclock_engine::member::Renewed;
use waterclock_engine::timers::RunStatus;
use waterclock_engine::{Millis, Outcome, TopicId};

/// Values of `x-delay-label` that are counted apart.
const LABELS_MAX: usize = 100;
/// All others.
const OTHER: &str = "other";

/// What a figure does over time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It only grows.
    Counter,
    /// It is what it is now.
    Gauge,
    /// How often it was how large.
    Histogram,
}

/// A metric, as the documents list it.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Its full name.
    pub name: &'static str,
    /// What it does over time.
    pub kind: Kind,
    unit: Unit,
    /// Its label; empty where it has none.
    pub label: &'static str,
    /// What it says.
    pub help: &'static str,
}

pub(super) const LATENESS: &str = "waterclock_lateness_seconds";
const OVERDUE: &str = "waterclock_overdue_seconds";
const DELIVERED: &str = "waterclock_delivered_total";
const LABELLED: &str = "waterclock_delivered_by_label_total";
const FORWARDED: &str = "waterclock_forwarded_total";
const MOVED: &str = "waterclock_moved_total";
const TIMERS: &str = "waterclock_timers_pending";
const DUPLICATES: &str = "waterclock_duplicates_total";
const SUPERSEDED: &str = "waterclock_superseded_total";
const ANSWERS: &str = "waterclock_answers_total";
const CANCELS: &str = "waterclock_cancels_total";
const CANCELLED: &str = "waterclock_cancelled_total";
const CANCELS_REMEMBERED: &str = "waterclock_cancels_remembered";
const GATED: &str = "waterclock_waiting_for_cancels";
const ORDERED: &str = "waterclock_waiting_for_order";
const RATED: &str = "waterclock_waiting_for_rate";
const LATE_HOPS: &str = "waterclock_late_hops_total";
const FOREIGN_WAITS: &str = "waterclock_foreign_waits_total";
const ASKS: &str = "waterclock_asks_total";
const SPILLED: &str = "waterclock_spilled_total";
const PUT_OFF: &str = "waterclock_put_off_total";
const PUT_OFF_PAUSED: &str = "waterclock_put_off_paused_total";
const OVER_RATE: &str = "waterclock_over_rate_total";
pub(super) const DEAD_LETTERS: &str = "waterclock_dead_letters_total";
const PENDING: &str = "waterclock_pending";
const HELD_BACK: &str = "waterclock_held_back_offsets";
const HELD_BACK_FOR: &str = "waterclock_held_back_seconds";
const IN_MEMORY: &str = "waterclock_pending_in_memory";
const MEMORY: &str = "waterclock_memory_bytes";
const MEMORY_LIMIT: &str = "waterclock_memory_limit_bytes";
const WINDOW_FILL: &str = "waterclock_window_fill_ratio";
const PAUSED: &str = "waterclock_paused_partitions";
pub(super) const COMMIT: &str = "waterclock_commit_seconds";
pub(super) const PRODUCERS_RENEWED: &str = "waterclock_producers_renewed_total";
const LANES: &str = "waterclock_lanes_owned";
const READY: &str = "waterclock_ready";
const BUILD_INFO: &str = "waterclock_build_info";
const API_REQUESTS: &str = "waterclock_api_requests";
const API_REFUSED: &str = "waterclock_api_refused_total";
const CERTIFICATES_READ: &str = "waterclock_certificates_read_total";
const CERTIFICATE_EXPIRES: &str = "waterclock_certificate_expires_seconds";
const CLOCK_OFFSET: &str = "waterclock_clock_offset_seconds";
const CLOCK_STEPS: &str = "waterclock_clock_steps_total";
const CLOCK_SKEW: &str = "waterclock_clock_skew_seconds";
const LOCAL_CLOCK_STEPS: &str = "waterclock_local_clock_steps_total";
pub(super) const LOST: &str = "waterclock_records_lost_total";
const TOPICS_UNFIT: &str = "waterclock_topics_unfit";
const TOPICS_WEAK: &str = "waterclock_topics_weak";
const TOPICS_REMADE: &str = "waterclock_topics_remade_total";
const LOST_TIMERS: &str = "waterclock_timers_lost_total";
const UNREADABLE: &str = "waterclock_partitions_unreadable_total";
const INDEX_REBUILDS: &str = "waterclock_index_rebuilds_total";
const INDEX_GIVEN_UP: &str = "waterclock_index_given_up";
const INDEX_ENTRIES: &str = "waterclock_index_entries";
const INDEX_LAG: &str = "waterclock_index_lag";
const LOADING: &str = "waterclock_lanes_loading";
const LOADING_LEFT: &str = "waterclock_lanes_loading_left";
const INDEX_DISK: &str = "waterclock_index_disk_bytes";

const CALLS: &str = "waterclock_calls_total";
const CALLS_OPEN: &str = "waterclock_calls_open";
pub(super) const CALL: &str = "waterclock_call_seconds";
const SUSPECTS: &str = "waterclock_suspects";
const HALVED: &str = "waterclock_suspects_halved_total";
const TASKS_DISPATCHED: &str = "waterclock_tasks_dispatched_total";
const TASKS_PUT_OFF: &str = "waterclock_tasks_put_off_total";
const SCHEDULE_TASKS: &str = "waterclock_schedule_tasks_total";
const SCHEDULE_SKIPPED: &str = "waterclock_schedule_times_skipped_total";
const RUN_SHARDS: &str = "waterclock_run_shards_total";
const RUNS_OPEN: &str = "waterclock_runs_open";
const RUNS_ENDED: &str = "waterclock_runs_ended_total";
const TASKS_STALE: &str = "waterclock_tasks_stale_total";
const TASKS_IN_LANES: &str = "waterclock_tasks_waiting";
const TASKS_OVERDUE: &str = "waterclock_tasks_overdue";
const TASKS_HELD: &str = "waterclock_tasks_credits_in_use";

pub(super) const TASKS_READ: &str = "waterclock_worker_tasks_read_total";
pub(super) const RESULTS: &str = "waterclock_worker_results_total";
pub(super) const IN_DOUBT: &str = "waterclock_worker_in_doubt_total";
pub(super) const BATCHES: &str = "waterclock_worker_batches_total";
pub(super) const TASKS_WAITING: &str = "waterclock_worker_tasks_waiting";
pub(super) const WORKER_PAUSED: &str = "waterclock_worker_paused_partitions";
pub(super) const WORKER_MEMORY: &str = "waterclock_worker_memory_bytes";

/// Every metric. `docs/operations.md` has the same table; a test compares them.
#[rustfmt::skip]
pub const ALL: [Metric; 81] = [
    Metric { name: LATENESS, kind: Kind::Histogram, unit: Unit::Seconds, label: "tier", help: "How long after its due time a record was committed in its target, by the tier or intake that it waited in last. Of a record that was submitted after its due time: how long after it was submitted" },
    Metric { name: OVERDUE, kind: Kind::Gauge, unit: Unit::Seconds, label: "thread", help: "How long the oldest record that was read and not yet delivered has been due" },
    Metric { name: DELIVERED, kind: Kind::Counter, unit: Unit::Count, label: "", help: "Records delivered to their targets" },
    Metric { name: LABELLED, kind: Kind::Counter, unit: Unit::Count, label: "label", help: "Those of them that have an `x-delay-label`, by that: the first 100 labels that a process meets, and `other` for the rest" },
    Metric { name: FORWARDED, kind: Kind::Counter, unit: Unit::Count, label: "tier", help: "Records appended to a tier" },
    Metric { name: MOVED, kind: Kind::Counter, unit: Unit::Count, label: "", help: "Records moved from another partition to their lane" },
    Metric { name: TIMERS, kind: Kind::Gauge, unit: Unit::Count, label: "", help: "Tracked timers that are pending in the lanes owned" },
    Metric { name: DUPLICATES, kind: Kind::Counter, unit: Unit::Count, label: "", help: "Creates whose id was pending already: nothing comes of them, unless a cancel from before them is on its way" },
    Metric { name: SUPERSEDED, kind: Kind::Counter, unit: Unit::Count, label: "", help: "Pending timers in whose place another version was put" },
    Metric { name: ANSWERS, kind: Kind::Counter, unit: Unit::Count, label: "outcome", help: "Cancels and replaces decided, by what they came to" },
    Metric { name: CANCELS, kind: Kind::Counter, unit: Unit::Count, label: "", help: "Cancels recorded" },
    Metric { name: CANCELLED, kind: Kind::Counter, unit: Unit::Count, label: "", help: "Records kept from their targets because they were cancelled" },
    Metric { name: CANCELS_REMEMBERED, kind: Kind::Gauge, unit: Unit::Count, label: "", help: "Ids of which cancelled or replaced versions may still be on their way" },
    Metric { name: GATED, kind: Kind::Gauge, unit: Unit::Count, label: "", help: "Due records with an id that wait until their intakes are known to be read far enough, so that no cancel that was in time is missed" },
    Metric { name: ASKS, kind: Kind::Counter, unit: Unit::Count, label: "", help: "Questions to the brokers for where partitions end, so that records with an id, or in strict order with a key, may fire" },
    Metric { name: ORDERED, kind: Kind::Gauge, unit: Unit::Count, label: "", help: "Due records with a key that wait until nothing that was due before them can come after them (order = strict)" },
    Metric { name: RATED, kind: Kind::Gauge, unit: Unit::Count, label: "", help: "Due records that wait in memory, since as many go to their target as its rate allows" },
    Metric { name: LATE_HOPS, kind: Kind::Counter, unit: Unit::Count, label: "", help: "Partitions of batches in which hops came to stand later than their tier needs and were committed: in `at_least_once`, or in strict order in the shortest tier" },
    Metric { name: FOREIGN_WAITS, kind: Kind::Counter, unit: Unit::Count, label: "", help: "Times that records with an id were not held up any longer for a transaction that a producer keeps open on their intake" },
    Metric { name: PUT_OFF, kind: Kind::Counter, unit: Unit::Count, label: "", help: "Due records that went back to a tier, since a partition of their target has no leader" },
    Metric { name: PUT_OFF_PAUSED, kind: Kind::Counter, unit: Unit::Count, label: "", help: "Due records that went back to a tier, since their target is paused" },
    Metric { name: OVER_RATE, kind: Kind::Counter, unit: Unit::Count, label: "", help: "Due records that went back to a tier, since as many go to their target as its rate allows, and more wait in memory than there is room for" },
    Metric { name: SPILLED, kind: Kind::Counter, unit: Unit::Count, label: "", help: "Records that hopped once more to free memory, or what a commit can say" },
    Metric { name: DEAD_LETTERS, kind: Kind::Counter, unit: Unit::Count, label: "code", help: "Records that went to the dead letters" },
    Metric { name: PENDING, kind: Kind::Gauge, unit: Unit::Count, label: "tier", help: "Offsets of the lanes owned here that are not done, by tier or intake; some are marks of transactions, or duplicates, which are kept for ten minutes" },
    Metric { name: HELD_BACK_FOR, kind: Kind::Gauge, unit: Unit::Seconds, label: "tier", help: "How long readers stand at one open transaction, by tier, intake, timers, meta, or all targets in use; the longest, by looks every 15 s" },
    Metric { name: HELD_BACK, kind: Kind::Gauge, unit: Unit::Count, label: "tier", help: "Offsets behind the first open transaction of a partition, by tier, intake, timers, meta, or all targets in use" },
    Metric { name: IN_MEMORY, kind: Kind::Gauge, unit: Unit::Count, label: "", help: "Records in memory that wait for their due time" },
    Metric { name: MEMORY, kind: Kind::Gauge, unit: Unit::Bytes, label: "", help: "Bytes of records in memory" },
    Metric { name: MEMORY_LIMIT, kind: Kind::Gauge, unit: Unit::Bytes, label: "", help: "Bytes of records in memory over which nothing is read" },
    Metric { name: WINDOW_FILL, kind: Kind::Gauge, unit: Unit::Count, label: "thread", help: "How full the fullest window is: at 1 its partition is not read" },
    Metric { name: PAUSED, kind: Kind::Gauge, unit: Unit::Count, label: "", help: "Partitions that are not fetched: nothing of them is due soon, or memory is full" },
    Metric { name: COMMIT, kind: Kind::Histogram, unit: Unit::Seconds, label: "", help: "How long a commit took, records and offsets together" },
    Metric { name: PRODUCERS_RENEWED, kind: Kind::Counter, unit: Unit::Count, label: "reason", help: "Producers renewed after a commit that failed or was not known to have succeeded" },
    Metric { name: LANES, kind: Kind::Gauge, unit: Unit::Count, label: "", help: "Lanes that this process owns" },
    Metric { name: READY, kind: Kind::Gauge, unit: Unit::Count, label: "", help: "1 if /health/ready says yes, else 0" },
    Metric { name: BUILD_INFO, kind: Kind::Gauge, unit: Unit::Count, label: "version", help: "Always 1; the label says which version runs" },
    Metric { name: API_REQUESTS, kind: Kind::Gauge, unit: Unit::Count, label: "", help: "Requests to /v1 that are being answered" },
    Metric { name: API_REFUSED, kind: Kind::Counter, unit: Unit::Count, label: "reason", help: "Requests to /v1 that were refused for how they were asked: busy, credentials, host, page, media_type, peer, project, role, slow; and connections without the TLS that is wanted: tls" },
    Metric { name: CERTIFICATES_READ, kind: Kind::Counter, unit: Unit::Count, label: "outcome", help: "Times that changed files of certificates were read again: ok, or failed, where the old ones stay in force" },
    Metric { name: CERTIFICATE_EXPIRES, kind: Kind::Gauge, unit: Unit::Seconds, label: "", help: "When the certificate of the listener ends, in seconds since 1970; there only with TLS" },
    Metric { name: CLOCK_OFFSET, kind: Kind::Gauge, unit: Unit::Seconds, label: "broker", help: "How far the lower bound of a broker's clock is ahead of the slowest broker's" },
    Metric { name: CLOCK_STEPS, kind: Kind::Counter, unit: Unit::Count, label: "broker", help: "Times that a broker's clock was seen to go back" },
    Metric { name: CLOCK_SKEW, kind: Kind::Gauge, unit: Unit::Seconds, label: "broker", help: "How far a broker's clock is ahead of this machine's, less than 0 if it is behind; true to a round trip" },
    Metric { name: LOCAL_CLOCK_STEPS, kind: Kind::Counter, unit: Unit::Count, label: "", help: "Times that this machine's clock was seen to be set" },
    Metric { name: LOST, kind: Kind::Counter, unit: Unit::Count, label: "", help: "Records that Kafka no longer had when they were to be read; anything but zero is an alarm" },
    Metric { name: LOST_TIMERS, kind: Kind::Counter, unit: Unit::Count, label: "", help: "Tracked timers that had no record any more: they have ended as lost; anything but zero is an alarm" },
    Metric { name: TOPICS_UNFIT, kind: Kind::Gauge, unit: Unit::Count, label: "", help: "Settings of own topics that may lose what is pending, and topics that are not there: nothing new is admitted while it is not 0" },
    Metric { name: TOPICS_WEAK, kind: Kind::Gauge, unit: Unit::Count, label: "", help: "Own topics in which fewer replicas have to acknowledge than could: one lost broker loses what it acknowledged" },
    Metric { name: TOPICS_REMADE, kind: Kind::Counter, unit: Unit::Count, label: "", help: "Own topics that were deleted and created again while this process ran: what was pending in them is gone" },
    Metric { name: UNREADABLE, kind: Kind::Counter, unit: Unit::Count, label: "", help: "Partitions whose committed metadata could not be read, so that their lanes rest" },
    Metric { name: INDEX_REBUILDS, kind: Kind::Counter, unit: Unit::Count, label: "reason", help: "Times that an index, or a lane of it, was thrown away and read from the changelog again" },
    Metric { name: INDEX_GIVEN_UP, kind: Kind::Gauge, unit: Unit::Count, label: "", help: "1 if this process goes on without an index, since its disk is full or does not work: of its lanes nothing is looked up, and a request id finds pending tasks only" },
    Metric { name: INDEX_ENTRIES, kind: Kind::Gauge, unit: Unit::Count, label: "", help: "Entries in the index of the lanes owned" },
    Metric { name: INDEX_LAG, kind: Kind::Gauge, unit: Unit::Count, label: "", help: "Offsets of the changelog that the index of the lanes owned has still to read, by the last look" },
    Metric { name: LOADING, kind: Kind::Gauge, unit: Unit::Count, label: "", help: "Lanes taken over of which it is not known yet what is pending: their records with an id wait" },
    Metric { name: LOADING_LEFT, kind: Kind::Gauge, unit: Unit::Count, label: "", help: "Offsets of the changelog that are still to be read for those lanes" },
    Metric { name: INDEX_DISK, kind: Kind::Gauge, unit: Unit::Bytes, label: "", help: "What the index takes on disk" },
    Metric { name: SUSPECTS, kind: Kind::Gauge, unit: Unit::Count, label: "", help: "Records and targets that Kafka may have refused, and that are tried in batches of their own" },
    Metric { name: HALVED, kind: Kind::Counter, unit: Unit::Count, label: "", help: "Groups of suspects that failed and were halved to find who it is that Kafka refuses" },
    Metric { name: TASKS_DISPATCHED, kind: Kind::Counter, unit: Unit::Count, label: "", help: "Turns of tasks that lanes gave to workers" },
    Metric { name: SCHEDULE_TASKS, kind: Kind::Counter, unit: Unit::Count, label: "", help: "Tasks that schedules have submitted" },
    Metric { name: SCHEDULE_SKIPPED, kind: Kind::Counter, unit: Unit::Count, label: "", help: "Times of schedules that passed without a task, as their overlap or misfire says" },
    Metric { name: RUN_SHARDS, kind: Kind::Counter, unit: Unit::Count, label: "", help: "Shards that runs have created" },
    Metric { name: RUNS_OPEN, kind: Kind::Gauge, unit: Unit::Count, label: "", help: "Runs of the lanes owned that have shards and have not ended" },
    Metric { name: RUNS_ENDED, kind: Kind::Counter, unit: Unit::Count, label: "status", help: "Runs that have ended, by how: finished, failed, expired, cancelled" },
    Metric { name: TASKS_PUT_OFF, kind: Kind::Counter, unit: Unit::Count, label: "", help: "Times that an overdue task was put off, since its project is paused or its service has enough to do" },
    Metric { name: TASKS_STALE, kind: Kind::Counter, unit: Unit::Count, label: "", help: "Results and copies of tasks that counted no more: of a turn that is over, or said twice" },
    Metric { name: TASKS_IN_LANES, kind: Kind::Gauge, unit: Unit::Count, label: "", help: "Overdue tasks that wait in memory until their service has room" },
    Metric { name: TASKS_OVERDUE, kind: Kind::Gauge, unit: Unit::Count, label: "waits_for", help: "Overdue tasks that were put off and wait in tiers: their project or service is `paused`, has enough to do (`limit`), or could not be called (`breaker`)" },
    Metric { name: TASKS_HELD, kind: Kind::Gauge, unit: Unit::Count, label: "", help: "Credits of the tasks that workers hold: one of a task, and one more for each 64 KiB of its body" },
    Metric { name: CALLS, kind: Kind::Counter, unit: Unit::Count, label: "outcome", help: "Calls of tasks that ended here, by what they came to; `cut`: stopped, since partitions moved or the process stopped" },
    Metric { name: CALLS_OPEN, kind: Kind::Gauge, unit: Unit::Count, label: "", help: "Calls of tasks that are open" },
    Metric { name: CALL, kind: Kind::Histogram, unit: Unit::Seconds, label: "outcome", help: "How long a call of a task took, with the look-up of the name and the answer's body" },
    Metric { name: TASKS_READ, kind: Kind::Counter, unit: Unit::Count, label: "", help: "Tasks that the worker read; those that are read again after a take-over count again" },
    Metric { name: RESULTS, kind: Kind::Counter, unit: Unit::Count, label: "outcome", help: "Results that are committed, by what they say of a turn" },
    Metric { name: IN_DOUBT, kind: Kind::Counter, unit: Unit::Count, label: "", help: "Those of them that say of a turn that an earlier owner of its partition may have called it" },
    Metric { name: BATCHES, kind: Kind::Counter, unit: Unit::Count, label: "", help: "Batches of results and positions that are committed; the results divided by this are the size of a batch" },
    Metric { name: TASKS_WAITING, kind: Kind::Gauge, unit: Unit::Count, label: "", help: "Tasks that were read, and whose calls have not begun" },
    Metric { name: WORKER_PAUSED, kind: Kind::Gauge, unit: Unit::Count, label: "", help: "Partitions of tasks that are not fetched: memory is full, or what a commit can say" },
    Metric { name: WORKER_MEMORY, kind: Kind::Gauge, unit: Unit::Bytes, label: "", help: "Bytes of tasks in memory" },
];

/// Tells the recorder what each metric is, and makes those without labels appear as zero.
pub fn describe() {
    for Metric { name, kind, unit, label, help } in ALL {
        match kind {
            Kind::Counter => describe_counter!(name, unit, help),
            Kind::Gauge => describe_gauge!(name, unit, help),
            Kind::Histogram => describe_histogram!(name, unit, help),
        }
        match kind {
            Kind::Counter if label.is_empty() => counter!(name).increment(0),
            Kind::Gauge if label.is_empty() => gauge!(name).increment(0.0),
            _ => {}
        }
    }
    gauge!(BUILD_INFO, "version" => env!("CARGO_PKG_VERSION")).set(1.0);
    for reason in Rebuilt::ALL {
        counter!(INDEX_REBUILDS, "reason" => reason.as_str()).increment(0);
    }
    for reason in [
        "busy",
        "credentials",
        "host",
        "page",
        "media_type",
        "peer",
        "project",
        "role",
        "slow",
        "tls",
    ] {
        counter!(API_REFUSED, "reason" => reason).increment(0);
    }
    for outcome in ["ok", "failed"] {
        counter!(CERTIFICATES_READ, "outcome" => outcome).increment(0);
    }
    for waits_for in ["paused", "limit", "breaker"] {
        gauge!(TASKS_OVERDUE, "waits_for" => waits_for).increment(0.0);
    }
    for outcome in ["finished", "accepted", "not_yet", "gone", "failed", CUT] {
        counter!(CALLS, "outcome" => outcome).increment(0);
    }
}

/// The value of the label `reason` for a producer that was renewed.
#[must_use]
pub fn reason_of(why: Renewed) -> &'static str {
    match why {
        Renewed::Fenced => "fenced",
        Renewed::Refused => "refused",
        Renewed::Aborted => "aborted",
        Renewed::Unknown => "unknown",
        Renewed::Slow => "slow",
        Renewed::Disconnected => "disconnected",
        Renewed::Late => "late",
        Renewed::Early => "early",
        Renewed::Expired => "expired",
    }
}

/// Why an index was thrown away and started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rebuilt {
    /// What stands on disk cannot be read.
    Corrupt,
    /// The store panicked.
    Panicked,
    /// Another cluster, namespace or format.
    Foreign,
    /// So old that the changelog may have dropped tombstones which it has not seen.
    Stale,
    /// Its position is not in the changelog.
    Outside,
}

impl Rebuilt {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Corrupt, Self::Panicked, Self::Foreign, Self::Stale, Self::Outside];

    /// The value of the metric's label `reason`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Corrupt => "corrupt",
            Self::Panicked => "panicked",
            Self::Foreign => "foreign",
            Self::Stale => "stale",
            Self::Outside => "outside",
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
    pub(super) fn new(gauge: Gauge) -> Self {
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
    /// By index of the topic: intakes, then tiers.
    lateness: Vec<Histogram>,
    delivered: Counter,
    labels: Mutex<HashMap<Box<str>, Counter>>,
    /// By index of the tier in the ladder.
    forwarded: Vec<Counter>,
    /// By position in [`Code::ALL`].
    dead_letters: Vec<Counter>,
    moved: Counter,
    cancels: Counter,
    cancelled: Counter,
    commit: Histogram,
    /// By position in [`Renewed::ALL`].
    renewed: Vec<Counter>,
    lost: Counter,
    lost_timers: Counter,
    halved: Counter,
    tasks_dispatched: Counter,
    tasks_put_off: Counter,
    schedule_tasks: Counter,
    schedule_skipped: Counter,
    run_shards: Counter,
    /// By position in [`RUN_ENDS`].
    runs_ended: Vec<Counter>,
    tasks_stale: Counter,
    spilled: Counter,
    put_off: Counter,
    put_off_paused: Counter,
    over_rate: Counter,
    late_hops: Counter,
    unreadable: Counter,
    duplicates: Counter,
    superseded: Counter,
    /// By position in [`OUTCOMES`].
    answers: Vec<Counter>,
}

/// The values of the label `outcome`.
const OUTCOMES: [&str; 9] = [
    "recorded",
    "cancelled",
    "superseded",
    "replaced",
    "created",
    "absent",
    "refused",
    "underway",
    "reported",
];

/// How a run ends: the values of the label `status`.
const RUN_ENDS: [RunStatus; 4] =
    [RunStatus::Finished, RunStatus::Failed, RunStatus::Expired, RunStatus::Cancelled];

fn outcome(outcome: Outcome) -> usize {
    match outcome {
        Outcome::Recorded => 0,
        Outcome::Cancelled => 1,
        Outcome::Superseded => 2,
        Outcome::Replaced => 3,
        Outcome::Created => 4,
        Outcome::Absent => 5,
        Outcome::Refused(_) => 6,
        Outcome::Underway => 7,
        Outcome::Reported(_) => 8,
    }
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
    /// Overdue tasks that wait in memory.
    pub tasks_waiting: Level,
    /// Overdue tasks that wait in tiers, as their project or service is paused.
    pub tasks_paused: Level,
    /// The same, as it has enough to do.
    pub tasks_over_limit: Level,
    /// The same, as it could not be called.
    pub tasks_behind_breaker: Level,
    /// Credits of the tasks that workers hold.
    pub tasks_held: Level,
    /// Runs that have shards and have not ended.
    pub runs_open: Level,
    /// Partitions paused.
    pub paused: Level,
    /// Cancelled ids remembered.
    pub cancels: Level,
    /// Timers pending.
    pub timers: Level,
    /// Due records that wait until the lane knows which timers were cancelled.
    pub gated: Level,
    /// Due records with a key that wait for their order.
    pub ordered: Level,
    /// Due records that wait for the rate of their target.
    pub rated: Level,
    _memory_limit: Level,
    window: Gauge,
    overdue: Gauge,
}

impl LaneLevels {
    /// Looks the handles up for this thread, which may hold so many bytes.
    #[must_use]
    pub fn new(thread: usize, memory_limit_bytes: u64) -> Self {
        let mut memory_limit = Level::new(gauge!(MEMORY_LIMIT));
        memory_limit.set(memory_limit_bytes);
        let overdue = |waits_for| Level::new(gauge!(TASKS_OVERDUE, "waits_for" => waits_for));
        Self {
            pending: Level::new(gauge!(IN_MEMORY)),
            memory_bytes: Level::new(gauge!(MEMORY)),
            lanes: Level::new(gauge!(LANES)),
            suspects: Level::new(gauge!(SUSPECTS)),
            tasks_waiting: Level::new(gauge!(TASKS_IN_LANES)),
            tasks_paused: overdue("paused"),
            tasks_over_limit: overdue("limit"),
            tasks_behind_breaker: overdue("breaker"),
            tasks_held: Level::new(gauge!(TASKS_HELD)),
            runs_open: Level::new(gauge!(RUNS_OPEN)),
            paused: Level::new(gauge!(PAUSED)),
            cancels: Level::new(gauge!(CANCELS_REMEMBERED)),
            timers: Level::new(gauge!(TIMERS)),
            gated: Level::new(gauge!(GATED)),
            ordered: Level::new(gauge!(ORDERED)),
            rated: Level::new(gauge!(RATED)),
            _memory_limit: memory_limit,
            window: gauge!(WINDOW_FILL, "thread" => thread.to_string()),
            overdue: gauge!(OVERDUE, "thread" => thread.to_string()),
        }
    }

    /// How full this thread's fullest window is, in thousandths.
    pub fn window(&self, permille: u32) {
        self.window.set(f64::from(permille) / 1_000.0);
    }

    /// How long this thread's record has been due that has been so the longest.
    pub fn overdue(&self, by: Millis) {
        self.overdue.set(by.0 as f64 / 1_000.0);
    }
}

impl Drop for LaneLevels {
    fn drop(&mut self) {
        self.window.set(0.0);
        self.overdue.set(0.0);
    }
}

/// How many offsets of a tier (its hold) or an intake (`intake`, `intake.eu`) are not done, in the lanes owned here.
pub fn pending(tier: &str, count: u64) {
    gauge!(PENDING, "tier" => tier.to_owned()).set(count as f64);
}

/// How long readers of a tier, an intake, or another label of topics stand at an open transaction at the longest, and how
/// many offsets are behind such.
pub fn held_back(tier: &str, longest: Duration, offsets: u64) {
    gauge!(HELD_BACK_FOR, "tier" => tier.to_owned()).set(longest.as_secs_f64());
    gauge!(HELD_BACK, "tier" => tier.to_owned()).set(offsets as f64);
}

/// Whether this process is ready.
pub fn ready(is_ready: bool) {
    gauge!(READY).set(f64::from(u8::from(is_ready)));
}

/// Requests to the API that are being answered.
pub fn api_requests(count: usize) {
    gauge!(API_REQUESTS).set(count as f64);
}

/// A request to the API was refused, whatever it was about.
pub fn api_refused(reason: &'static str) {
    counter!(API_REFUSED, "reason" => reason).increment(1);
}

/// Files of certificates have changed, and were read again. `is_well`: they are in force.
pub fn certificates_read(is_well: bool) {
    let outcome = if is_well { "ok" } else { "failed" };
    counter!(CERTIFICATES_READ, "outcome" => outcome).increment(1);
}

/// When the certificate of the listener ends, in seconds since the epoch.
pub fn certificate_expires(at: i64) {
    gauge!(CERTIFICATE_EXPIRES).set(at as f64);
}

/// The outcome of a call that was stopped.
const CUT: &str = "cut";

/// Calls of tasks that are open.
pub fn calls_open(count: usize) {
    gauge!(CALLS_OPEN).set(count as f64);
}

/// A call of a task ended, and took so long. `outcome`: one of those of tasks.
pub fn call_ended(outcome: &'static str, took: Duration) {
    counter!(CALLS, "outcome" => outcome).increment(1);
    histogram!(CALL, "outcome" => outcome).record(took.as_secs_f64());
}

/// A call of a task was stopped before it ended.
pub fn call_cut() {
    counter!(CALLS, "outcome" => CUT).increment(1);
}

/// How far a broker's clock is ahead of the slowest one, at most.
pub fn clock_offset(broker: i32, ahead: Duration) {
    let broker = broker.to_string();
    counter!(CLOCK_STEPS, "broker" => broker.clone()).increment(0);
    gauge!(CLOCK_OFFSET, "broker" => broker).set(ahead.as_secs_f64());
}

/// A broker's clock went back.
pub fn clock_stepped_back(broker: i32) {
    counter!(CLOCK_STEPS, "broker" => broker.to_string()).increment(1);
}

/// How far a broker's clock is ahead of this machine's, in seconds.
pub fn clock_skew(broker: i32, ahead_seconds: f64) {
    gauge!(CLOCK_SKEW, "broker" => broker.to_string()).set(ahead_seconds);
}

/// This machine's clock was set.
pub fn local_clock_stepped() {
    counter!(LOCAL_CLOCK_STEPS).increment(1);
}

/// So many things of own topics are not as they must be.
pub fn topics_unfit(count: usize) {
    gauge!(TOPICS_UNFIT).set(count as f64);
}

/// So many own topics lose what they hold with one broker.
pub fn topics_weak(count: usize) {
    gauge!(TOPICS_WEAK).set(count as f64);
}

/// A topic of ours was deleted and created again.
pub fn topic_remade() {
    counter!(TOPICS_REMADE).increment(1);
}

/// A committed position was outside of its log by `count` offsets.
pub fn position_lost(count: u64) {
    counter!(LOST).increment(count);
}

/// An index, or a lane of it, was thrown away and is read from the changelog again.
pub fn index_rebuilt(reason: Rebuilt) {
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

/// A question for where intakes end.
pub fn end_offsets_asked() {
    counter!(ASKS).increment(1);
}

/// A transaction of somebody else was not waited for any longer.
pub fn foreign_wait() {
    counter!(FOREIGN_WAITS).increment(1);
}

/// How many offsets the index of the lanes owned was behind its changelog at the last look.
pub fn index_lag(offsets: u64) {
    gauge!(INDEX_LAG).set(offsets as f64);
}

/// How many lanes are not known yet, and how many offsets are left to read for that.
pub fn lanes_loading(lanes: u64, offsets: u64) {
    gauge!(LOADING).set(lanes as f64);
    gauge!(LOADING_LEFT).set(offsets as f64);
}

impl LaneFigures {
    /// Looks the handles up, for intakes of these names and a ladder of these holds.
    #[must_use]
    pub fn new(
        intakes: impl IntoIterator<Item = String>,
        holds: impl IntoIterator<Item = Millis>,
    ) -> Self {
        let holds: Vec<String> = holds.into_iter().map(|hold| hold.to_string()).collect();
        let topics = intakes.into_iter().chain(holds.iter().cloned());
        let lateness = topics.map(|tier| histogram!(LATENESS, "tier" => tier)).collect();
        let tier = |hold: String| counter!(FORWARDED, "tier" => hold);
        let code = |code: &Code| counter!(DEAD_LETTERS, "code" => code.as_str());
        let reason = |why| counter!(PRODUCERS_RENEWED, "reason" => reason_of(why));
        Self {
            lateness,
            delivered: counter!(DELIVERED),
            labels: Mutex::default(),
            forwarded: holds.into_iter().map(tier).collect(),
            dead_letters: Code::ALL.iter().map(code).collect(),
            moved: counter!(MOVED),
            cancels: counter!(CANCELS),
            cancelled: counter!(CANCELLED),
            commit: histogram!(COMMIT),
            renewed: Renewed::ALL.into_iter().map(reason).collect(),
            lost: counter!(LOST),
            lost_timers: counter!(LOST_TIMERS),
            halved: counter!(HALVED),
            tasks_dispatched: counter!(TASKS_DISPATCHED),
            tasks_put_off: counter!(TASKS_PUT_OFF),
            schedule_tasks: counter!(SCHEDULE_TASKS),
            schedule_skipped: counter!(SCHEDULE_SKIPPED),
            run_shards: counter!(RUN_SHARDS),
            runs_ended: RUN_ENDS
                .into_iter()
                .map(|end| counter!(RUNS_ENDED, "status" => end.as_str()))
                .collect(),
            tasks_stale: counter!(TASKS_STALE),
            spilled: counter!(SPILLED),
            put_off: counter!(PUT_OFF),
            put_off_paused: counter!(PUT_OFF_PAUSED),
            over_rate: counter!(OVER_RATE),
            late_hops: counter!(LATE_HOPS),
            unreadable: counter!(UNREADABLE),
            duplicates: counter!(DUPLICATES),
            superseded: counter!(SUPERSEDED),
            answers: OUTCOMES.into_iter().map(|of| counter!(ANSWERS, "outcome" => of)).collect(),
        }
    }

    /// Deliveries of a batch that is committed: where each waited last, and how late it was in its target.
    pub fn delivered(&self, deliveries: impl Iterator<Item = (TopicId, Millis)>) {
        let mut count = 0;
        for (from, late) in deliveries {
            if let Some(lateness) = self.lateness.get(usize::from(from.0)) {
                lateness.record(late.0 as f64 / 1_000.0);
            }
            count += 1;
        }
        self.delivered.increment(count);
    }

    /// `count` deliveries of a batch that is committed had this label.
    pub fn labelled(&self, label: &str, count: u64) {
        let mut labels = self.labels.lock();
        // Writers of records choose the labels, and each label is a time series.
        let label =
            if labels.len() < LABELS_MAX || labels.contains_key(label) { label } else { OTHER };
        let counter = labels
            .entry(label.into())
            .or_insert_with(|| counter!(LABELLED, "label" => label.to_owned()));
        counter.increment(count);
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

    /// Cancels that a batch that is committed recorded, and records that were kept from their targets by it.
    pub fn cancels(&self, recorded: u64, cancelled: u64) {
        self.cancels.increment(recorded);
        self.cancelled.increment(cancelled);
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

    /// So many turns of tasks were dispatched, put off, or over when something was said of them.
    pub fn tasks(&self, dispatched: u64, put_off: u64, stale: u64) {
        self.tasks_dispatched.increment(dispatched);
        self.tasks_put_off.increment(put_off);
        self.tasks_stale.increment(stale);
    }

    /// So many times of schedules have passed with a task, and so many without one.
    pub fn schedules(&self, tasks: u64, skipped: u64) {
        self.schedule_tasks.increment(tasks);
        self.schedule_skipped.increment(skipped);
    }

    /// So many shards of runs were created.
    pub fn shards(&self, created: u64) {
        self.run_shards.increment(created);
    }

    /// A run has ended like that in a batch that is committed.
    pub fn run_ended(&self, end: RunStatus) {
        let at = RUN_ENDS.iter().position(|known| *known == end);
        if let Some(counter) = at.and_then(|at| self.runs_ended.get(at)) {
            counter.increment(1);
        }
    }

    /// Hops came to stand late, `count` times in a partition and batch.
    pub fn late_hops(&self, count: u64) {
        self.late_hops.increment(count);
    }

    /// `count` records hopped once more to make room.
    pub fn spilled(&self, count: u64) {
        self.spilled.increment(count);
    }

    /// Due records that went back to a tier, since a partition of their target has no leader.
    pub fn put_off(&self, count: u64) {
        self.put_off.increment(count);
    }

    /// Due records that went back to a tier, since their target is paused.
    pub fn put_off_paused(&self, count: u64) {
        self.put_off_paused.increment(count);
    }

    /// Due records that went back to a tier, since as many go to their target as its rate allows.
    pub fn over_rate(&self, count: u64) {
        self.over_rate.increment(count);
    }

    /// `count` records were of an id that was pending, and `superseded` put another version in the place of one.
    pub fn timers(&self, duplicates: u64, superseded: u64) {
        self.duplicates.increment(duplicates);
        self.superseded.increment(superseded);
    }

    /// What a command of a batch that is committed came to.
    pub fn answered(&self, of: Outcome) {
        if let Some(counter) = self.answers.get(outcome(of)) {
            counter.increment(1);
        }
    }

    /// What is pending in `count` partitions could not be read from their commits.
    pub fn unreadable(&self, count: u64) {
        self.unreadable.increment(count);
    }

    /// Kafka no longer had `count` records that were still to be read.
    pub fn lost(&self, count: u64) {
        self.lost.increment(count);
    }

    /// `count` timers were overdue, and their records were gone.
    pub fn lost_timers(&self, count: u64) {
        self.lost_timers.increment(count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The figures that `record` leaves, as Prometheus reads them.
    fn rendered(record: impl FnOnce()) -> String {
        let builder = metrics_exporter_prometheus::PrometheusBuilder::new();
        let builder = crate::BUCKETS.into_iter().fold(builder, |builder, (name, buckets)| {
            let name = metrics_exporter_prometheus::Matcher::Full(name.to_owned());
            builder.set_buckets_for_metric(name, buckets).unwrap()
        });
        let recorder = builder.build_recorder();
        let handle = recorder.handle();
        metrics::with_local_recorder(&recorder, record);
        handle.render()
    }

    #[test]
    fn what_is_counted_is_rendered_with_its_labels_and_buckets() {
        let text = rendered(|| {
            describe();
            let figures = LaneFigures::new(["intake".to_owned()], [Millis(1_000), Millis(90_000)]);
            let late = [0, 1, 4_000].map(|late| (TopicId(1), Millis(late)));
            figures.delivered(late.into_iter().chain([(TopicId(0), Millis(3))]));
            for n in 0..LABELS_MAX as u64 + 20 {
                figures.labelled(&format!("label-{n}"), 2);
            }
            figures.labelled("label-0", 1);
            figures.forwarded(1, 7);
            figures.forwarded(9, 1);
            figures.dead_letter(Code::Expired);
            figures.renewed(Renewed::Fenced);
            figures.run_ended(RunStatus::Expired);
            figures.committed(Duration::from_millis(3));
            LaneLevels::new(0, 40).memory_bytes.set(12);
        });
        for line in [
            "waterclock_delivered_total 4",
            "waterclock_delivered_by_label_total{label=\"label-0\"} 3",
            "waterclock_delivered_by_label_total{label=\"label-99\"} 2",
            "waterclock_delivered_by_label_total{label=\"other\"} 40",
            "waterclock_forwarded_total{tier=\"1m30s\"} 7",
            "waterclock_forwarded_total{tier=\"1s\"} 0",
            "waterclock_dead_letters_total{code=\"expired\"} 1",
            "waterclock_producers_renewed_total{reason=\"fenced\"} 1",
            "waterclock_runs_ended_total{status=\"expired\"} 1",
            "waterclock_runs_ended_total{status=\"failed\"} 0",
            "waterclock_records_lost_total 0",
            "waterclock_lateness_seconds_bucket{tier=\"1s\",le=\"0.0005\"} 1",
            "waterclock_lateness_seconds_bucket{tier=\"1s\",le=\"0.001\"} 2",
            "waterclock_lateness_seconds_bucket{tier=\"1s\",le=\"3600\"} 3",
            "waterclock_lateness_seconds_count{tier=\"intake\"} 1",
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
                (LaneLevels::new(0, 5), LaneLevels::new(1, 5), LaneLevels::new(2, 5));
            one.lanes.set(3);
            one.lanes.set(2);
            two.lanes.set(4);
            gone.lanes.set(5);
            drop(gone);
            std::mem::forget((one, two));
        });
        assert!(text.contains("waterclock_lanes_owned 6"), "{text}");
        assert!(text.contains("waterclock_memory_limit_bytes 10"), "{text}");
    }

    #[test]
    fn names_are_those_that_prometheus_expects_and_stand_once() {
        let mut names: Vec<&str> = ALL.iter().map(|metric| metric.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ALL.len());
        for Metric { name, kind, .. } in ALL {
            assert!(name.starts_with("waterclock_"), "{name}");
            assert_eq!(name.ends_with("_total"), kind == Kind::Counter, "{name}");
        }
    }

    #[test]
    fn documents_rules_and_dashboard_name_only_metrics_that_there_are() {
        for text in [OPERATIONS, ALERTS, DASHBOARD] {
            for word in text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_') {
                let named = word.starts_with("waterclock_");
                let bucket = word.strip_suffix("_bucket");
                let stem = bucket.unwrap_or(word);
                let metric = ALL.iter().find(|metric| metric.name == stem);
                assert!(!named || metric.is_some(), "{word}");
                let is_histogram = metric.is_some_and(|metric| metric.kind == Kind::Histogram);
                assert!(bucket.is_none() || !named || is_histogram, "{word}");
            }
        }
    }

    const OPERATIONS: &str = include_str!("../../../docs/operations.md");
    const ALERTS: &str = include_str!("../../../docs/monitoring/alerts.yml");
    const DASHBOARD: &str = include_str!("../../../docs/monitoring/grafana.json");

    /// A sum by a label that a metric does not have is one number, and an alert by it says nothing of what is meant.
    #[test]
    fn rules_and_dashboard_sum_by_labels_that_their_metrics_have() {
        fn expressions(of: &serde_json::Value, found: &mut Vec<String>) {
            match of {
                serde_json::Value::Object(all) => {
                    found.extend(all.get("expr").and_then(|expr| expr.as_str()).map(str::to_owned));
                    all.values().for_each(|value| expressions(value, found));
                }
                serde_json::Value::Array(all) => {
                    all.iter().for_each(|value| expressions(value, found));
                }
                _ => {}
            }
        }
        let mut all = Vec::new();
        expressions(&serde_json::from_str(DASHBOARD).expect("JSON"), &mut all);
        let rules: Vec<&str> = ALERTS.lines().collect();
        for (at, line) in rules.iter().enumerate() {
            let Some(first) = line.trim().trim_start_matches("- ").strip_prefix("expr:") else {
                continue;
            };
            let indent = |line: &str| line.len() - line.trim_start().len();
            let more = rules[at + 1..].iter().take_while(|next| indent(next) > indent(line));
            all.push(more.fold(first.to_owned(), |text, next| text + " " + next.trim()));
        }
        assert!(all.len() > 40, "{all:#?}");
        let metric = regex::Regex::new(r"waterclock_[a-z_]+").expect("sound");
        let by = regex::Regex::new(r"\b(?:by|without) *\(([^)]*)\)").expect("sound");
        let matched = regex::Regex::new(r#"([a-z_]+) *(?:=~|!=|!~|=) *\\?""#).expect("sound");
        let mut sums = 0;
        for expression in &all {
            let mut has: Vec<&str> = vec!["job", "instance"];
            for name in metric.find_iter(expression) {
                let stem = name.as_str().strip_suffix("_bucket");
                has.extend(stem.map(|_| "le"));
                let stem = stem.unwrap_or(name.as_str());
                has.extend(ALL.iter().find(|of| of.name == stem).map(|of| of.label));
            }
            let groups = by.captures_iter(expression).flat_map(|found| {
                found.get(1).map_or("", |labels| labels.as_str()).split(',').map(str::trim)
            });
            let groups: Vec<&str> = groups.collect();
            sums += groups.len();
            let matches = matched.captures_iter(expression);
            let matches = matches.filter_map(|found| Some(found.get(1)?.as_str()));
            for label in groups.into_iter().chain(matches) {
                assert!(has.contains(&label), "{label} in {expression}: there is {has:?}");
            }
        }
        assert!(sums > 15, "{sums}");
    }

    #[test]
    fn every_alert_is_explained_and_its_runbook_is_there() {
        let (_, table) = OPERATIONS.split_once("| alert | what it means |").expect("the table");
        let (table, _) = table.split_once("\n\n").expect("its end");
        let rows = table.lines().filter_map(|row| row.strip_prefix("| ")?.split(" | ").next());
        let mut explained: Vec<&str> = rows.flat_map(|names| names.split(", ")).collect();
        let of = |what: &'static str| {
            ALERTS.lines().filter_map(move |line| line.trim().strip_prefix(what))
        };
        let mut alerts: Vec<&str> = of("- alert: Waterclock").collect();
        explained.sort_unstable();
        alerts.sort_unstable();
        assert_eq!(alerts, explained);
        let anchor = |heading: &str| heading.to_lowercase().replace(' ', "-");
        let headings: Vec<String> =
            OPERATIONS.lines().filter_map(|line| line.strip_prefix("### ")).map(anchor).collect();
        let runbooks: Vec<&str> = of("runbook: docs/operations.md#").collect();
        assert_eq!(runbooks.len(), alerts.len());
        for runbook in runbooks {
            assert!(headings.iter().any(|heading| heading == runbook), "{runbook}");
        }
        let dashboard: serde_json::Value = serde_json::from_str(DASHBOARD).expect("JSON");
        let panels = dashboard["panels"].as_array().expect("panels");
        assert!(panels.len() > 15 && panels.iter().all(|panel| panel["title"].is_string()));
    }
}
