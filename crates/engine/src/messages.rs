//! What goes in and out of the engine: events from the shell, actions for it.

use std::sync::Arc;

use super::header::Code;
use super::setup::Setup;
use super::state::{self, Sealed};
use super::task::registry::Registry;
use super::task::spec::Shard;
use super::timers::{About, After, CancelMark, Ended, Live, Timer, TimerId, Version, Written};
use super::{BatchId, Lane, Offset, Record, Source, TopicId, UnixMillis, header};

/// A fact that the shell gives to [`LaneEngine::step`](super::LaneEngine::step).
#[derive(Debug)]
pub enum Event {
    /// The group gave these partitions, or they are taken over again after a failed commit. Replaces all that
    /// was held. A lane runs only where every lane topic's partition is among them; its records with an id wait until
    /// all of its [timers are loaded](Event::TimersLoaded).
    Assigned {
        /// Where every partition begins.
        starts: Vec<Start>,
    },
    /// Timers of a lane, as they are committed: a part of them. Follows `Assigned`. No timer comes twice.
    TimersLoaded {
        /// Which lane.
        lane: Lane,
        /// Those that are pending.
        live: Vec<Live>,
        /// Their cancel marks.
        cancel_marks: Vec<CancelMark>,
        /// This is the last part: the lane may go to work.
        last: bool,
    },
    /// Follows `Assigned` where the main intake was recreated: its offsets do not order its records against those of the earlier
    /// topic.
    Recreated,
    /// The group took everything back, or the last commit failed: all that is held is dropped.
    Revoked,
    /// The next record of a partition, in offset order.
    Record {
        /// Where it stands.
        source: Source,
        /// Its position there.
        offset: Offset,
        /// When the broker appended it.
        appended: UnixMillis,
        /// Its bytes.
        record: Record,
    },
    /// The partition was read up to what stood in it at a time: at that time or later its end offset was listed, and
    /// reading has passed it since. Answers [`Action::ListEndOffsets`]. It also comes once unasked, when reading has passed
    /// [`Start::end`].
    ReadUpTo {
        /// Which partition.
        source: Source,
        /// When that was: a lower bound of its leader's time then. Zero if it was not asked for.
        at: UnixMillis,
    },
    /// A hop of a batch in flight was appended later than its tier needs ([`Setup::timing`]). It comes before the batch is
    /// [`Committed`](Event::Committed). For several hops of one batch in one partition: the last offset, the least due time.
    Late {
        /// The tier's partition.
        source: Source,
        /// Where it stands there.
        offset: Offset,
        /// When it is due.
        due: UnixMillis,
    },
    /// Timers of a lane that have been final for longer than `history`, by what was committed when
    /// [`Action::ListExpired`] was carried out. Answers that action once, with no timers if there are none.
    Expired {
        /// Which lane.
        lane: Lane,
        /// Which timers.
        timers: Vec<TimerId>,
        /// Those of them that are tasks, and what was written of each.
        tasks: Vec<(TimerId, Written)>,
    },
    /// The answer to [`Action::Recall`]: what became of each of the timers by all that was committed when that action was given,
    /// if it ended and is not forgotten.
    Recalled {
        /// Which lane.
        lane: Lane,
        /// Which timers, and how they ended.
        timers: Vec<(TimerId, Option<Ended>)>,
    },
    /// Pending timers of a lane that are overdue, by the index. Answers [`Action::Overdue`] once.
    Overdue {
        /// Which lane.
        lane: Lane,
        /// Some of them, by due time.
        timers: Vec<Timer>,
        /// Where to go on, unless these were the last.
        more: Option<After>,
    },
    /// Some of the records that are left of a lane. Comes while [`Action::Inventory`] is carried out.
    Left {
        /// Which lane.
        lane: Lane,
        /// Where they stand, and which timers they are of.
        records: Vec<Left>,
    },
    /// The inventory of a lane has ended. Answers [`Action::Inventory`] once.
    Counted {
        /// Which lane.
        lane: Lane,
        /// Every partition was read to where it ended when this action was given, or later.
        is_complete: bool,
    },
    /// Answers [`Action::DescribeTarget`]; also comes unasked when the description changed.
    Target(Arc<str>, Target),
    /// Which partitions of a target have no leader now, ascending. Comes before each `Target`.
    TargetOutage(Arc<str>, Arc<[i32]>),
    /// A batch failed: records for these topics were not taken in time, and no record is to blame. What the engine knows of
    /// these targets is not valid any more. `Revoked` and `Assigned` follow.
    InvalidateTargets(Vec<Arc<str>>),
    /// A batch failed where nothing is aborted (`at_least_once`), and these sends are acknowledged nevertheless: the batch,
    /// and the place in it. `Revoked` and `Assigned` follow.
    PartlyAcknowledged(Vec<(BatchId, usize)>),
    /// A batch is done: every record of it acknowledged, and in `exactly_once` its transaction committed.
    Committed(BatchId),
    /// Projects and services have changed, or were heard of for the first time.
    Registry(Arc<Registry>),
    /// The same setup with other allow-lists. From now on they hold for records that come in, and for records that
    /// fire.
    Policies(Arc<Setup>),
    /// A batch failed, and the reason may be one of its records or targets; `Revoked` and `Assigned` follow. Failures of
    /// brokers, networks, coordinators or fencing do not cause it: no record is to blame for those.
    Refused(Refused),
    /// Nothing new, but time has passed.
    Tick,
    /// The process is to stop: read no more; finish due records and collected ones.
    Drain,
}

/// What Kafka says of a batch that it refused something of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Which batch.
    pub batch: BatchId,
    /// The sends that Kafka named, by their place in the batch: the culprit, or what went in one request with it.
    /// Empty when it named none.
    pub named: Vec<usize>,
    /// What the reason has to do with.
    pub blame: Blame,
    /// Kafka's words.
    pub why: Arc<str>,
}

/// What a refusal of Kafka's has to do with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    /// A record: its size, a key that it lacks.
    Record,
    /// A target: we may not write there, or it refuses the time of what is delivered now.
    Target,
    /// A hop came to stand too late for its tier, which would let it go late ([`Setup::timing`]): nothing was refused, and
    /// nobody is to blame.
    Late,
    /// A delivery came to stand after its record had expired: nothing was refused, and nobody is to blame.
    Expired,
    /// It may be a record or a target, and may pass: it counts only when it happens again and again.
    Unclear,
}

/// What a batch carries of one record: where it was read, and where it goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Carried {
    pub(super) source: Source,
    pub(super) offset: Offset,
    pub(super) to: Destination,
}

/// Where one partition begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    /// Which partition.
    pub source: Source,
    /// The offset that the consumer reads first.
    pub next: Offset,
    /// The metadata of the commit that said so; empty when there is none.
    pub metadata: String,
    /// Where its log ended when it was taken over: every record that was acknowledged to a user by then stands before it.
    pub end: Offset,
    /// Records of the partition were found gone before they were done. The committed position may still be the one that
    /// was found outside of its log: then a member that takes the lane over before it is counted finds the gap, too.
    /// Once the lane is counted, the position is committed.
    pub gone: bool,
}

/// A record with an id that is left in a partition of its lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
    /// Where it stands.
    pub source: Source,
    /// Its position there.
    pub offset: Offset,
    /// The timer that it is of.
    pub timer_id: TimerId,
    /// Which version; `None`: it cannot be said.
    pub version: Option<Version>,
}

/// The description of a target topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Kafka says that there is no such topic.
    Missing,
    /// Kafka does not let us see it.
    Hidden,
    /// It belongs to a waterclock namespace.
    Owned,
    /// Kafka does not let us write to it.
    Closed,
    /// It takes no times but those of this very moment. It may refuse the mark that ends a transaction, too, and then that never
    /// ends.
    Narrow,
    /// It is there.
    Found {
        /// How many partitions it has.
        partitions: i32,
        /// The largest record batch that it takes (`max.message.bytes`).
        record_bytes_max: u64,
        /// It is compacted, so that it takes no record without a key.
        keyed: bool,
    },
}

/// What the shell is to do.
#[derive(Debug)]
pub enum Action {
    /// Stop fetching this partition.
    Pause(Source),
    /// Fetch it again, from the record after the last one told.
    Resume(Source),
    /// Read this (paused) partition from here when it is resumed: something that had been read was dropped. This never skips
    /// what was not read yet.
    Seek(Source, Offset),
    /// Describe this target and answer with [`Event::Target`].
    DescribeTarget(Arc<str>),
    /// List the end offsets of these partitions, also behind open transactions. Answer with [`Event::ReadUpTo`] for each of
    /// them once reading has passed that offset. No partition is listed again before.
    ListEndOffsets(Vec<Source>),
    /// Look for timers of this lane that are final for longer than `history`, in all that is committed by now, and
    /// answer with [`Event::Expired`]. Not given again before.
    ListExpired(Lane),
    /// Look up what became of these timers, in all that is committed by now, and answer with [`Event::Recalled`]. Of a lane
    /// not given again before.
    Recall {
        /// Which lane.
        lane: Lane,
        /// Which timers.
        timers: Vec<TimerId>,
    },
    /// Look for timers of this lane that are pending and were due before a time, and answer with [`Event::Overdue`]. Not given
    /// again before.
    Overdue {
        /// Which lane.
        lane: Lane,
        /// Due before this.
        before: UnixMillis,
        /// Only those behind this one.
        after: Option<After>,
    },
    /// Read what is left of this lane, committed or not, and answer with [`Event::Left`] for the records that have an id
    /// ([`left`](super::left)), and with [`Event::Counted`] once. Not given again before.
    Inventory {
        /// Which lane.
        lane: Lane,
        /// Its partitions, and where nothing before is pending.
        from: Vec<(Source, Offset)>,
    },
    /// Hand this to the producer; answer with [`Event::Committed`], or with `Revoked` and `Assigned` if it failed.
    Batch(Batch),
}

/// What goes to Kafka together: in `exactly_once` one transaction.
#[derive(Debug)]
pub struct Batch {
    /// Its number, to be named in the answer.
    pub id: BatchId,
    /// Records to produce, in this order.
    pub sends: Vec<Produce>,
    /// Where reading stands once they are there. Only partitions that changed.
    pub commits: Vec<Commit>,
    /// The outcomes of the commands in it. They may be published only after the batch is committed.
    pub answers: Vec<Answer>,
}

/// What became of a command: a cancel or a replace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The intake that it stood in, in its lane.
    pub source: Source,
    /// Where it stood there.
    pub offset: Offset,
    /// The timer that it is about.
    pub timer_id: TimerId,
    /// Which versions of the timer it is about.
    pub about: About,
    /// The outcome.
    pub outcome: Outcome,
}

/// The outcome of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Recorded only: with [`Tracking::Cancellations`](super::Tracking) the lane does not know what is pending.
    Recorded,
    /// The pending version was cancelled. It will never be in its target.
    Cancelled,
    /// The version that it names was replaced; or it is a replace, and came too late: a later one was there before it, or a
    /// later cancel.
    Superseded,
    /// Its version is pending in the place of the one before.
    Replaced,
    /// Nothing was pending; its version is now.
    Created,
    /// Nothing that it is about was pending. The index knows what became of it:
    /// [`About::found`](super::timers::About::found).
    Absent,
    /// It is a dead letter.
    Refused(Code),
    /// A worker holds the task. Of a cancel: it went after the task, and the index knows what it comes to. Of feedback: the worker's
    /// own result comes first.
    Underway,
    /// What came of feedback about a task that is pending, or was until then.
    Reported(Reported),
}

/// What came of feedback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reported {
    /// The task is finished.
    Finished,
    /// The turn has failed, and another one follows.
    Retrying,
    /// The turn has failed, and none follows.
    Failed,
    /// The turn goes on: it is to report again by then.
    Running(UnixMillis),
    /// It is about a turn that is over.
    Stale,
}

/// The position of one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    /// Which partition.
    pub source: Source,
    /// The low watermark: everything before is done.
    pub next: Offset,
    /// Which of the offsets from there on are still pending; see [`window`](super::window).
    pub metadata: String,
}

/// A record to produce to a topic.
#[derive(Debug)]
pub struct Produce {
    /// Which topic.
    pub to: Destination,
    /// Which partition of it; `None` leaves it to Java's default partitioner for the key.
    pub partition: Option<i32>,
    /// Key, value and headers as they were read; empty where nothing was.
    pub record: Record,
    /// What to do to the headers.
    pub rewrite: HeaderRewrite,
    /// When it is due: for the figures, and for [`Setup::timing`]. Of a hop that is deferred, never.
    pub due: UnixMillis,
    /// Of a delivery: until when it may be there.
    pub expires: Option<UnixMillis>,
}

impl Produce {
    /// A record that a lane makes itself, as it is, for a partition of one of waterclock's topics.
    pub(super) fn own(to: Destination, lane: Lane, now: UnixMillis, record: Record) -> Self {
        let (partition, rewrite) = (Some(i32::from(lane.0)), HeaderRewrite::Whole);
        Self { to, partition, record, rewrite, due: now, expires: None }
    }

    /// The create or the cancel of a task, for its lane.
    pub(super) fn submitted(lane: Lane, now: UnixMillis, record: Record) -> Self {
        Self::own(Destination::Submitted, lane, now, record)
    }

    /// When a delivery is due; `None`: it is something else.
    pub(super) fn delivered_at(&self) -> Option<UnixMillis> {
        matches!(self.to, Destination::Target(_)).then_some(self.due)
    }
}

/// A destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// A tier (a hop) or an intake (a move between lanes).
    Lane(TopicId),
    /// The user's topic at the end.
    Target(Arc<str>),
    /// `<ns>.dead`.
    Dead,
    /// `<ns>.timers`.
    Timers,
    /// `<ns>.tasks`: a turn of a task, or the cancel of one.
    Tasks,
    /// `<ns>.intake`: a task that a lane submits, or cancels: a follow-up, the task of a schedule, a shard of a run.
    Submitted,
    /// `<ns>.results`: what the lane of a shard says to the lane of its run.
    Results,
}

/// How the headers of a record change on its way out.
#[derive(Debug)]
pub enum HeaderRewrite {
    /// A hop or a move: the state is replaced, everything else stays, but for what a worker said of a task.
    State(Sealed),
    /// A dispatch: the same, and what an executor said last of an earlier turn, if anybody has.
    Dispatch(Sealed, Option<String>),
    /// A delivery: the control headers go, and some are added.
    Deliver {
        /// The headers to add.
        added: Added,
        /// The tier or intake that it waited in last: for the figures.
        from: TopicId,
        /// When it was submitted: for the figures.
        first_appended: UnixMillis,
    },
    /// A dead letter: the state goes, and why and whence is added at the end.
    Dead(Box<DeadLetter>),
    /// A change of a timer goes out instead of the record.
    Timer(Box<TimerChange>),
    /// None: the record goes out as it is.
    Whole,
}

/// A record of `<ns>.timers`, and why it is written.
#[derive(Debug)]
pub struct TimerChange {
    /// Key and value.
    pub record: Record,
    /// Why.
    pub reason: ChangeReason,
}

/// Why something is written to `<ns>.timers`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeReason {
    /// It is pending now.
    Created,
    /// It is in its target.
    Delivered,
    /// Its pending version was cancelled.
    Cancelled,
    /// It is a dead letter.
    Dead,
    /// A cancel was read: its mark covers what was submitted before it.
    Recorded,
    /// Another version replaced one, which a cancel mark covers now.
    Superseded,
    /// A record was suppressed: a cancel mark covers it.
    Suppressed,
    /// The same, of a timer: it was cancelled before anybody knew of it.
    Missed,
    /// The time for which it is kept is over.
    Forgotten,
    /// It was overdue, and its record was gone.
    Lost,
    /// Of a task: it was dispatched.
    Dispatched,
    /// Of a task: what a worker or an executor said of a turn was taken in.
    Reported,
}

/// What is added at delivery.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Added {
    /// What a trace tells.
    pub trace: Option<Box<Trace>>,
    /// For which nominal time, of a task of a schedule and of a shard of its run.
    pub nominal: Option<UnixMillis>,
}

impl Added {
    /// Calls `each` for every header.
    pub(super) fn headers(&self, mut each: impl FnMut(&'static str, &[u8])) {
        if let Some(trace) = &self.trace {
            trace.headers(&mut each);
        }
        if let Some(nominal) = self.nominal {
            each(header::NOMINAL, nominal.0.to_string().as_bytes());
        }
    }
}

/// What `x-delay-trace: 1` adds at delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// When it was due.
    pub due: UnixMillis,
    /// When it left the wheel.
    pub fired: UnixMillis,
    /// The caller's name for the timer, if it has one.
    pub id: Option<Box<[u8]>>,
    /// Which try this is, from 1.
    pub attempt: u32,
    /// Of a task with feedback.
    pub turn: Option<TracedTurn>,
}

/// What an executor learns of the turn that it is to report on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracedTurn {
    /// What it reports with.
    pub ticket: String,
    /// How far an earlier turn came.
    pub cursor: Option<Arc<str>>,
    /// Which shard of a run it is, if it is one.
    pub shard: Option<Shard>,
}

impl Trace {
    /// Calls `each` for every header that it adds.
    fn headers(&self, mut each: impl FnMut(&'static str, &[u8])) {
        each(header::DUE, self.due.0.to_string().as_bytes());
        each(header::FIRED, self.fired.0.to_string().as_bytes());
        if let Some(id) = &self.id {
            each(header::ID, id);
        }
        each(header::ATTEMPT, self.attempt.to_string().as_bytes());
        if let Some(TracedTurn { ticket, cursor, shard }) = &self.turn {
            each(header::TICKET, ticket.as_bytes());
            if let Some(cursor) = cursor {
                each(header::CURSOR, cursor.as_bytes());
            }
            if let Some(shard) = shard {
                each(header::SHARD, shard.to_string().as_bytes());
            }
        }
    }
}

/// Why a record is not delivered, and where it stood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    /// One of a closed list.
    pub code: Code,
    /// A sentence for people, at most 256 bytes.
    pub detail: String,
    /// The topic it was read from.
    pub topic: Arc<str>,
    /// The partition of it.
    pub partition: i32,
    /// The offset in it.
    pub offset: Offset,
    /// When it was appended there.
    pub timestamp: UnixMillis,
    /// The intake by which it came; empty if nobody can say.
    pub intake: Arc<str>,
}

impl Produce {
    /// The record whose key and value go out.
    #[must_use]
    pub fn body(&self) -> &Record {
        match &self.rewrite {
            HeaderRewrite::Timer(timer) => &timer.record,
            _ => &self.record,
        }
    }

    /// Calls `each` for every header of the outgoing record, in order.
    pub fn headers(&self, mut each: impl FnMut(&[u8], Option<&[u8]>)) {
        match &self.rewrite {
            HeaderRewrite::State(sealed) | HeaderRewrite::Dispatch(sealed, _) => {
                for (name, value) in self.record.headers() {
                    // What a worker said of an earlier turn is done with.
                    if ![header::STATE.as_bytes(), header::RESULT.as_bytes()].contains(&name) {
                        each(name, value);
                    }
                }
                if let HeaderRewrite::Dispatch(_, Some(said)) = &self.rewrite {
                    each(header::RESULT.as_bytes(), Some(said.as_bytes()));
                }
                each(header::STATE.as_bytes(), Some(sealed.as_ref()));
            }
            HeaderRewrite::Timer(_) => {}
            HeaderRewrite::Whole => {
                self.record.headers().for_each(|(name, value)| each(name, value))
            }
            HeaderRewrite::Deliver { added, .. } => {
                for (name, value) in self.record.headers() {
                    if !header::is_control(name) {
                        each(name, value);
                    }
                }
                added.headers(|name, value| each(name.as_bytes(), Some(value)));
            }
            HeaderRewrite::Dead(letter) => {
                for (name, value) in self.record.headers() {
                    // That of a task stays: who retries it by hand knows its body again by it.
                    let stays = value.is_some_and(state::is_of_task);
                    if name != header::STATE.as_bytes() || stays {
                        each(name, value);
                    }
                }
                each(header::ERROR_CODE.as_bytes(), Some(letter.code.as_str().as_bytes()));
                each(header::ERROR_DETAIL.as_bytes(), Some(letter.detail.as_bytes()));
                each(header::ERROR_TOPIC.as_bytes(), Some(letter.topic.as_bytes()));
                each(
                    header::ERROR_PARTITION.as_bytes(),
                    Some(letter.partition.to_string().as_bytes()),
                );
                each(header::ERROR_OFFSET.as_bytes(), Some(letter.offset.0.to_string().as_bytes()));
                each(
                    header::ERROR_TIMESTAMP.as_bytes(),
                    Some(letter.timestamp.0.to_string().as_bytes()),
                );
                each(header::ERROR_INTAKE.as_bytes(), Some(letter.intake.as_bytes()));
            }
        }
    }
}
