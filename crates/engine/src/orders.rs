//! What goes in and out of the engine: facts from the shell, orders to it.

use std::sync::Arc;

use super::header::Code;
use super::lanes::After;
use super::setup::Setup;
use super::state::Sealed;
use super::timers::{About, Ended, Live, Place, Timer, TimerKey, Void};
use super::{BatchId, Lane, Offset, Record, Source, TopicId, UnixMillis, header};

/// A fact, told to [`Engine::step`](super::Engine::step).
#[derive(Debug)]
pub enum Input {
    /// The group gave these partitions, or they are taken over anew after a failed commit. Replaces all that
    /// was held. A lane runs only where every lane topic's partition is among them; its records with an id wait until
    /// all is [`Known`](Input::Known) of its timers.
    Assigned {
        /// Where every partition begins.
        starts: Vec<Start>,
    },
    /// What holds of a lane's timers by what is committed: a piece of it. Told after `Assigned`, once for each of them;
    /// nothing that was told is told again.
    Known {
        /// Which lane.
        lane: Lane,
        /// Those that are pending.
        live: Vec<Live>,
        /// Versions that are void.
        voids: Vec<Void>,
        /// Nothing of the lane's timers is left to tell: it may go to work.
        whole: bool,
    },
    /// Follows `Assigned` where the main intake is not the first one of its name: offsets there say nothing of what was submitted
    /// before or after what stood in another.
    Remade,
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
    /// Everything that stood in this partition at a time has been told, or was no record: at that time or later its end
    /// was asked for, and reading has passed it since. Answers [`Output::Ask`]; and told unasked, once, when reading has
    /// passed [`Start::end`].
    Passed {
        /// Which partition.
        source: Source,
        /// When that was: a lower bound of the time that its leader had then. Zero for what was not asked for.
        at: UnixMillis,
    },
    /// A hop of a batch on its way was appended later than its tier needs ([`Setup::tardiness`]); told before the batch is
    /// [`Committed`](Input::Committed). Of several of one batch in one partition: the last offset, the least due time.
    Late {
        /// The tier's partition.
        source: Source,
        /// Where it stands there.
        offset: Offset,
        /// When it is due.
        due: UnixMillis,
    },
    /// Timers of a lane that are final for longer than `history`, by what was committed when
    /// [`Output::Forgettable`] was carried out; it is answered by this once, with none if there are none.
    Ended {
        /// Which lane.
        lane: Lane,
        /// Which timers.
        timers: Vec<TimerKey>,
    },
    /// The answer to [`Output::Recall`]: what became of each of the timers by all that was committed when that was ordered,
    /// if it ended and is not forgotten.
    Recalled {
        /// Which lane.
        lane: Lane,
        /// Which timers, and how they ended.
        timers: Vec<(TimerKey, Option<Ended>)>,
    },
    /// Pending timers of a lane that are overdue, by what is known on disk. Answers [`Output::Overdue`] once.
    Overdue {
        /// Which lane.
        lane: Lane,
        /// Some of them, by due time.
        timers: Vec<Timer>,
        /// Where to go on, unless these were the last.
        more: Option<After>,
    },
    /// Records that are left of a lane, some of them: told while [`Output::Inventory`] is carried out.
    Left {
        /// Which lane.
        lane: Lane,
        /// Where they stand, and which timers they are of.
        records: Vec<Left>,
    },
    /// All that is left of a lane was told. Answers [`Output::Inventory`] once.
    Counted {
        /// Which lane.
        lane: Lane,
        /// Every partition was read to where it ended when this was ordered, or later.
        whole: bool,
    },
    /// The answer to [`Output::Lookup`]; also told unasked when it changed.
    Target(Arc<str>, Target),
    /// Which partitions of a target have no leader now, ascending; told before each `Target`.
    Away(Arc<str>, Arc<[i32]>),
    /// A batch failed, records for these topics in it were not taken in time, and nobody is to blame: what is known of
    /// them is void. `Revoked` and `Assigned` follow.
    Doubt(Vec<Arc<str>>),
    /// A batch is done: every record of it acknowledged, and in `exactly_once` its transaction committed.
    Committed(BatchId),
    /// The same setup with other allow-lists, which hold from now on: for what comes in, and for what fires.
    Policies(Arc<Setup>),
    /// A batch failed, and the reason may lie in one of its records or targets; `Revoked` and `Assigned` follow. Never
    /// told of troubles of brokers, networks, coordinators or fencing: no record is to blame for those.
    Refused(Refused),
    /// Nothing new, but time has passed.
    Tick,
    /// The process is to stop: read no more, finish what is due and what is collected.
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
    /// A hop came to stand too late for its tier, which would let it go late ([`Setup::tardiness`]): nothing was refused, and
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
    pub(super) to: To,
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
    /// Where its log ended when it was taken over: what users were told is written stands before it.
    pub end: Offset,
    /// Records of it were found gone that were not done. What is committed may still be the position that was found outside of
    /// its log: so whoever takes the lane over before it is counted finds it, too. Once it is, the position is committed.
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
    pub name: TimerKey,
    /// Which version; `None`: it cannot be said.
    pub version: Option<Place>,
}

/// What is known of a target topic.
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

/// An order to the shell.
#[derive(Debug)]
pub enum Output {
    /// Stop fetching this partition.
    Pause(Source),
    /// Fetch it again, from the record after the last one told.
    Resume(Source),
    /// Read this (paused) partition from here when it is resumed: something that had been read was dropped. Nothing that was
    /// not read yet is passed over by that.
    Rewind(Source, Offset),
    /// Find out about this target and answer with [`Input::Target`].
    Lookup(Arc<str>),
    /// Ask where these partitions end (be it that what stands last is of an open transaction), and answer with
    /// [`Input::Passed`] for each of them once reading has passed that. No partition is asked for again before.
    Ask(Vec<Source>),
    /// Look for timers of this lane that are final for longer than `history`, in all that is committed by now, and
    /// answer with [`Input::Ended`]. Not ordered again before.
    Forgettable(Lane),
    /// Look up what became of these timers, in all that is committed by now, and answer with [`Input::Recalled`]. Of a lane
    /// not ordered again before.
    Recall {
        /// Which lane.
        lane: Lane,
        /// Which timers.
        timers: Vec<TimerKey>,
    },
    /// Look for timers of this lane that are pending and were due before a time, and answer with [`Input::Overdue`]. Not ordered
    /// again before.
    Overdue {
        /// Which lane.
        lane: Lane,
        /// Due before this.
        before: UnixMillis,
        /// Only those behind this one.
        after: Option<After>,
    },
    /// Read what is left of this lane, committed or not, and answer with [`Input::Left`] for the records that have an id
    /// ([`left`](super::left)), and with [`Input::Counted`] once. Not ordered again before.
    Inventory {
        /// Which lane.
        lane: Lane,
        /// Its partitions, and where nothing before is pending.
        from: Vec<(Source, Offset)>,
    },
    /// Hand this to the producer; answer with [`Input::Committed`], or with `Revoked` and `Assigned` if it failed.
    Batch(Batch),
}

/// What goes to Kafka together: in `exactly_once` one transaction.
#[derive(Debug)]
pub struct Batch {
    /// Its number, to be named in the answer.
    pub id: BatchId,
    /// Records to produce, in this order.
    pub sends: Vec<Send>,
    /// Where reading stands once they are there. Only partitions that changed.
    pub commits: Vec<Commit>,
    /// What the commands in it came to. Nobody may learn of it before the batch is committed.
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
    pub name: TimerKey,
    /// What of it.
    pub about: About,
    /// What it came to.
    pub outcome: Outcome,
}

/// What a command came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Only written down: with [`Tracking::Cancellations`](super::Tracking) it is not known what is pending.
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
    /// Nothing that it is about was pending. What became of that is asked of the index:
    /// [`About::found`](super::timers::About::found).
    Absent,
    /// It is a dead letter.
    Refused(Code),
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

/// One record on its way to a topic.
#[derive(Debug)]
pub struct Send {
    /// Which topic.
    pub to: To,
    /// Which partition of it; `None` leaves it to Java's default partitioner for the key.
    pub partition: Option<i32>,
    /// Key, value and headers as they were read; empty where nothing was.
    pub record: Record,
    /// What is to be done to the headers.
    pub edit: Edit,
    /// When it is due: for the figures, and for [`Setup::tardiness`]. Of a hop that is put off, never.
    pub due: UnixMillis,
    /// Of a delivery: until when it may be there.
    pub expires: Option<UnixMillis>,
}

impl Send {
    /// When a delivery is due; `None`: it is something else.
    pub(super) fn delivered_at(&self) -> Option<UnixMillis> {
        matches!(self.to, To::Target(_)).then_some(self.due)
    }
}

/// A destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum To {
    /// A tier (a hop) or an intake (a move between lanes).
    Lane(TopicId),
    /// The user's topic at the end.
    Target(Arc<str>),
    /// `<ns>.dead`.
    Dead,
    /// `<ns>.timers`.
    Timers,
}

/// How the headers of a record change on its way out.
#[derive(Debug)]
pub enum Edit {
    /// A hop or a move: the state is replaced, everything else stays.
    State(Sealed),
    /// A delivery: the control headers go; with a trace, what it tells is added.
    Deliver {
        /// What is added.
        trace: Option<Box<Trace>>,
        /// The tier or intake that it waited in last: for the figures.
        from: TopicId,
    },
    /// A dead letter: the state goes, and why and whence is added at the end.
    Dead(Box<DeadLetter>),
    /// What is said of a timer goes out in the place of the record.
    Timer(Box<Said>),
}

/// A record of `<ns>.timers`, and why it is written.
#[derive(Debug)]
pub struct Said {
    /// Key and value.
    pub record: Record,
    /// Why.
    pub because: Because,
}

/// Why something is written to `<ns>.timers`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Because {
    /// It is pending now.
    Created,
    /// It is in its target.
    Delivered,
    /// Its pending version was cancelled.
    Cancelled,
    /// It is a dead letter.
    Dead,
    /// A cancel was read: what was submitted before it is void.
    Recorded,
    /// Another version was put in the place of one, which is void.
    Superseded,
    /// A record was kept from its target that was not known to be pending.
    Met,
    /// The same, of a timer: it was cancelled before anybody knew of it.
    Missed,
    /// The time for which it is kept is over.
    Forgotten,
    /// It was overdue, and its record was gone.
    Lost,
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
}

impl Trace {
    /// Calls `each` for every header that it adds.
    pub(super) fn headers(&self, mut each: impl FnMut(&'static str, &[u8])) {
        each(header::DUE, self.due.0.to_string().as_bytes());
        each(header::FIRED, self.fired.0.to_string().as_bytes());
        if let Some(id) = &self.id {
            each(header::ID, id);
        }
        each(header::ATTEMPT, self.attempt.to_string().as_bytes());
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

impl Send {
    /// The record whose key and value go out.
    #[must_use]
    pub fn body(&self) -> &Record {
        match &self.edit {
            Edit::Timer(timer) => &timer.record,
            _ => &self.record,
        }
    }

    /// Calls `each` for every header of the outgoing record, in order.
    pub fn headers(&self, mut each: impl FnMut(&[u8], Option<&[u8]>)) {
        match &self.edit {
            Edit::State(sealed) => {
                for (name, value) in self.record.headers() {
                    if name != header::STATE.as_bytes() {
                        each(name, value);
                    }
                }
                each(header::STATE.as_bytes(), Some(sealed.as_ref()));
            }
            Edit::Timer(_) => {}
            Edit::Deliver { trace, .. } => {
                for (name, value) in self.record.headers() {
                    if !header::is_control(name) {
                        each(name, value);
                    }
                }
                if let Some(trace) = trace {
                    trace.headers(|name, value| each(name.as_bytes(), Some(value)));
                }
            }
            Edit::Dead(letter) => {
                for (name, value) in self.record.headers() {
                    if name != header::STATE.as_bytes() {
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
