//! Timers: their names, and their entries in `<ns>.timers`.
//!
//! A timer's name is its record's key, or that it has none, and its id. Sixteen bytes of hashes stand for both. The
//! topic is compacted. It keeps two records of one timer. The first is the timer's last state. The second says which of
//! its versions are *void*: cancelled or replaced, and perhaps still on their way down the ladder.
//!
//! # Invariants
//! 1. No key, an empty key, and a key that equals the id name three different timers. For the lane alone the id stands
//!    for a key. The timer of a task is none of them.
//! 2. Timers of one id are neighbours, whatever their keys: the name begins with a hash of the id alone.
//! 3. A value decodes to what was encoded, or is refused. A value of another version is never guessed at.
//! 4. A cancel is about what was submitted before it: [`CancelMark::covers`] is the only place that says so.
//! 5. A query may ask for one version, or for what was there before a place. Its answer is about exactly that:
//!    [`About::found`] is the only place that says so.
//!
//! `code` has their form on the wire, `query` and `tasks` what callers ask about them.

mod about;
mod code;
pub mod progress;
mod query;
mod remembered;
mod runs;
mod tasks;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest, Sha256};

use super::header::Code;
use super::task::follow_up::FollowUp;
use super::task::id::TaskId;
use super::task::registry::HISTORY_MIN;
use super::{Millis, Offset, UnixMillis};

pub use super::run::ShardCounts;
pub use about::{About, Found, Replaced};
pub use code::{Change, DecodeError, KEY_MAX, VERSION};
pub(super) use code::{TimerFields, value};
pub use progress::{Attempt, Cursor, HeldBy, OpenTurn, Progress};
pub use query::{
    After, CommandKind, CommandOutcome, CommandStatus, Filter, Forecast, LaneTimer, TimerCommand,
    TimerName,
};
pub(super) use remembered::{ByName, Names, Pending, Remembered};
pub use runs::{RunProgress, RunStatus, ShardState};
pub(crate) use runs::{ShardNews, ShardReport};
pub use tasks::{
    Base64, PAGE_BYTES_MAX, TaskCancel, TaskCounts, TaskFilter, TaskPayload, TaskRecord,
    TaskReport, TaskRetry, TaskStatus, group_of,
};
pub(crate) use tasks::{GRPC_TARGET, RUN_TARGET, SCHEDULE_TARGET, type_of_task};

/// Bytes of a [`TimerId`] that stand for the id alone.
pub const ID_PREFIX: usize = 6;

/// Stands for a key and an id: the key of a record of `<ns>.timers`, or the beginning of it.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TimerId(pub [u8; 16]);

impl TimerId {
    /// The timer of a record with this key and this id.
    #[must_use]
    pub fn new(key: Option<&[u8]>, id: &[u8]) -> Self {
        let mut hash = Sha256::new();
        // No key is as long as that.
        hash.update(key.map_or(u64::MAX, |key| key.len() as u64).to_be_bytes());
        hash.update(key.unwrap_or_default());
        hash.update((id.len() as u64).to_be_bytes());
        hash.update(id);
        let mut bytes = [0; 16];
        bytes[..ID_PREFIX].copy_from_slice(&id_prefix(id));
        bytes[ID_PREFIX..].copy_from_slice(&hash.finalize()[..16 - ID_PREFIX]);
        Self(bytes)
    }

    /// The timer of a task. It is never that of a record, whatever key and id the record has: nobody who may write to an
    /// intake can take, cancel or replace a task.
    #[must_use]
    pub fn task(id: &TaskId) -> Self {
        let mut hash = Sha256::new();
        // Where `new` hashes the length of the key. No key is as long as that, and it is not the mark of none.
        hash.update((u64::MAX - 1).to_be_bytes());
        hash.update((id.as_str().len() as u64).to_be_bytes());
        hash.update(id.as_str());
        let mut bytes = [0; 16];
        // Nothing stands for the id alone: who looks for the timers of an id does not find tasks.
        bytes.copy_from_slice(&hash.finalize()[..16]);
        Self(bytes)
    }

    /// The timer of a name.
    #[must_use]
    pub fn of_name(name: &TimerName) -> Self {
        Self::new(name.key.as_deref(), name.id.as_bytes())
    }
}

/// What the names of all timers of an id begin with.
#[must_use]
pub fn id_prefix(id: &[u8]) -> [u8; ID_PREFIX] {
    let hash = Sha256::digest(id);
    let mut prefix = [0; ID_PREFIX];
    prefix.copy_from_slice(&hash[..ID_PREFIX]);
    prefix
}

impl fmt::Debug for TimerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in self.0 {
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

/// Which of two records about one timer was submitted first: [`is_before`](Self::is_before) says so. It names a version of
/// the timer; people see it as `1764000000000-42`. If it [is not in log order](Self::is_not_in_log_order), an `x` stands behind that, and
/// the mark of its topic: `1764000000000-42x3fa`. Older programs wrote no mark: `1764000000000-42x`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Version {
    /// When it was first appended to any topic of waterclock.
    pub first_appended: UnixMillis,
    /// Where it stood in its lane's intake, or in the tier that it was written to; [marked](Self::not_in_log_order), if it did not
    /// come straight to the main intake of its lane.
    pub offset: Offset,
}

/// The bit of an offset which says that it does not tell what was first.
pub const NOT_IN_LOG_ORDER: i64 = 1 << 62;
/// Above this bit, and below that one, stands the mark of the topic. No log has as many records.
const TOPIC_AT: u32 = 46;
const OFFSET: i64 = (1 << TOPIC_AT) - 1;

impl Version {
    /// The offset in a version that did not come straight to the main intake of its lane: with the mark of its topic, so that
    /// two records of one millisecond at the same offset of two topics are two.
    #[must_use]
    pub fn not_in_log_order(offset: Offset, mark: TopicMark) -> Offset {
        Offset(offset.0 & OFFSET | i64::from(mark.0) << TOPIC_AT | NOT_IN_LOG_ORDER)
    }

    /// The offset as the log has it.
    #[must_use]
    pub fn offset_in_log(self) -> Offset {
        let bits = if self.is_not_in_log_order() { OFFSET } else { !NOT_IN_LOG_ORDER };
        Offset(self.offset.0 & bits)
    }

    /// The same as an older program wrote it, which did not mark the topic.
    #[must_use]
    pub fn without_topic(self) -> Self {
        let mark = self.offset.0 & NOT_IN_LOG_ORDER;
        Self { offset: Offset(self.offset_in_log().0 | mark), ..self }
    }

    /// The mark of the topic that it came by, where there is one.
    pub(super) fn mark(self) -> Option<TopicMark> {
        Some(self.topic()).filter(|mark| *mark != TopicMark::NONE)
    }

    fn topic(self) -> TopicMark {
        let bits = if self.is_not_in_log_order() { self.offset.0 & !NOT_IN_LOG_ORDER } else { 0 };
        TopicMark((bits >> TOPIC_AT) as u16)
    }

    /// The version right after it.
    #[must_use]
    pub fn next(self) -> Self {
        Self { offset: self.offset.next(), ..self }
    }

    /// Whether the record was moved to its lane, or came by a further intake, or was written to a tier.
    #[must_use]
    pub fn is_not_in_log_order(self) -> bool {
        self.offset.0 & NOT_IN_LOG_ORDER != 0
    }

    /// Whether this one was submitted before the other. Of two that came straight to one log the log says it, whatever
    /// its leaders' clocks were; else the times of the first appends. In one millisecond what came straight is the later: so a
    /// create right behind a cancel that has to be moved is not lost. Of two that are not in log order the offsets say it then, if they
    /// stood in one topic; else it is the one or the other, and always the same.
    #[must_use]
    pub fn is_before(self, other: Self) -> bool {
        if !self.is_not_in_log_order() && !other.is_not_in_log_order() {
            return self.offset < other.offset;
        }
        let of = |version: Self| {
            (
                version.first_appended,
                !version.is_not_in_log_order(),
                version.offset.0 & !NOT_IN_LOG_ORDER,
            )
        };
        of(self) < of(other)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first_appended.0, self.offset_in_log().0)?;
        match (self.is_not_in_log_order(), self.topic()) {
            (false, _) => Ok(()),
            (true, TopicMark::NONE) => write!(f, "x"),
            (true, TopicMark(topic)) => write!(f, "x{topic:x}"),
        }
    }
}

impl Serialize for Version {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Version {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Tells the topics apart that a record may have been submitted to: the beginning of a hash of the name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TopicMark(u16);

impl TopicMark {
    /// Older programs did not mark it.
    const NONE: Self = Self(0);

    /// The mark of a topic.
    #[must_use]
    pub fn of(topic: &str) -> Self {
        let [high, low, ..] = <[u8; 32]>::from(Sha256::digest(topic));
        Self(u16::from_be_bytes([high, low]).max(1))
    }

    /// As it stands behind the `x`: at most four digits, and none in front that does not matter.
    fn parse(text: &str) -> Option<Self> {
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        match text {
            "" => Some(Self::NONE),
            _ if text.starts_with('0') || !text.bytes().all(is_digit) => None,
            _ => u16::from_str_radix(text, 16).ok().map(Self),
        }
    }
}

/// A text that is no [`Version`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no version of a timer; want one as an answer shows it, like 1764000000000-42")]
pub struct BadVersion(pub String);

impl FromStr for Version {
    type Err = BadVersion;

    fn from_str(text: &str) -> Result<Self, BadVersion> {
        let digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        let (plain, topic) = match text.split_once('x') {
            None => (text, None),
            Some((plain, topic)) => (plain, Some(topic)),
        };
        plain
            .split_once('-')
            .filter(|(first, offset)| digits(first) && digits(offset))
            .and_then(|(first, offset)| {
                let first_appended = UnixMillis(first.parse().ok()?);
                let offset = Offset(offset.parse().ok()?);
                let most = if topic.is_some() { OFFSET } else { NOT_IN_LOG_ORDER - 1 };
                let marked = match topic {
                    None => offset,
                    Some(topic) => Self::not_in_log_order(offset, TopicMark::parse(topic)?),
                };
                (offset.0 <= most).then_some(Self { first_appended, offset: marked })
            })
            .ok_or_else(|| BadVersion(text.to_owned()))
    }
}

/// The state of a timer, or of one version of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TimerState {
    /// It is pending.
    Delay,
    /// It is in its target.
    Delivered,
    /// It was cancelled, and never will be.
    Cancelled,
    /// It could not be delivered in time; it is a dead letter.
    Expired,
    /// It is a dead letter.
    Dead,
    /// Its record was gone: somebody had deleted it.
    Lost,
}

impl TimerState {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Delay, Self::Delivered, Self::Cancelled, Self::Expired, Self::Dead, Self::Lost];

    /// As programs see it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Delay => "delay",
            Self::Delivered => "delivered",
            Self::Cancelled => "cancelled",
            Self::Expired => "expired",
            Self::Dead => "dead",
            Self::Lost => "lost",
        }
    }

    /// Whether nothing more can become of it.
    #[must_use]
    pub fn is_final(self) -> bool {
        self != Self::Delay
    }
}

/// A text that is no [`TimerState`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no state of a timer; want delay, delivered, cancelled, expired, dead or lost")]
pub struct BadTimerState(pub String);

impl FromStr for TimerState {
    type Err = BadTimerState;

    fn from_str(text: &str) -> Result<Self, BadTimerState> {
        let found = Self::ALL.into_iter().find(|state| state.as_str() == text);
        found.ok_or_else(|| BadTimerState(text.to_owned()))
    }
}

/// A timer: what an answer about it shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timer {
    /// Which timer.
    pub timer_id: TimerId,
    /// What has become of it.
    pub state: TimerState,
    /// Its version: that of the record that made it.
    pub version: Version,
    /// The versions that this one replaced.
    pub supersedes: Option<Replaced>,
    /// When it is, or was, due.
    pub due: UnixMillis,
    /// When it came to be in this state.
    pub since: UnixMillis,
    /// Where it goes.
    pub target: Arc<str>,
    /// The value of `x-delay-label`.
    pub label: Option<Box<str>>,
    /// The value of `x-delay-id`.
    pub id: Box<[u8]>,
    /// The record's key, or the first [`KEY_MAX`] bytes of it.
    pub key: Option<Box<[u8]>>,
    /// The key is longer than what is kept of it.
    pub key_cut: bool,
    /// Why it is a dead letter.
    pub code: Option<Code>,
    /// How far it is; only of a task.
    pub task: Option<Progress>,
}

impl Timer {
    /// Since when it is in this state, as answers show it. One that was refused at once is kept as ended before it came.
    #[must_use]
    pub fn shown_since(&self) -> UnixMillis {
        self.since.max(self.version.first_appended)
    }

    /// What the engine is told of it, if it is pending. Its [`follow_up`](Live::follow_up) is in its definition.
    #[must_use]
    pub fn live(&self) -> Option<Live> {
        let Self { timer_id, version, supersedes, due, task, .. } = *self;
        let label = self.label.as_deref().map(Arc::from);
        let target = Arc::clone(&self.target);
        (!self.state.is_final()).then_some(Live {
            timer_id,
            version,
            supersedes,
            due,
            target,
            label,
            task,
            follow_up: None,
            cursor: None,
            run: None,
        })
    }

    /// Until when it is remembered how a task ended, as its project says; `None`: it has not ended, or is no task.
    #[must_use]
    pub fn kept_until(&self) -> Option<UnixMillis> {
        let task = self.task.filter(|_| self.state.is_final())?;
        // One of which nobody said so is kept for as long as the shortest history.
        Some(task.next_at.max(self.since + HISTORY_MIN))
    }

    /// What the engine is told of it, if it has ended. One that was refused when it came never was pending, and nothing is a
    /// duplicate of it.
    #[must_use]
    pub fn ended(&self) -> Option<Ended> {
        let Self { version, state, since, .. } = *self;
        let was_refused = matches!(state, TimerState::Dead | TimerState::Expired)
            && since < version.first_appended;
        let turn = self.task.map_or(0, |progress| progress.turn);
        (state.is_final() && !was_refused).then_some(Ended { version, state, since, turn })
    }
}

/// What may be forgotten of what ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forgettable {
    /// Timers that ended before this, but for tasks.
    pub ended_before: UnixMillis,
    /// Tasks that are kept until before this: now.
    pub kept_before: UnixMillis,
}

impl Forgettable {
    /// What may be forgotten of a timer at `now`, where those that are no tasks are kept for `history`.
    #[must_use]
    pub fn at(now: UnixMillis, history: Millis) -> Self {
        Self { ended_before: now - history, kept_before: now }
    }

    /// Whether this one may be.
    #[must_use]
    pub fn has(&self, timer: &Timer) -> bool {
        match timer.kept_until() {
            Some(until) => until < self.kept_before,
            None => timer.state.is_final() && timer.since < self.ended_before,
        }
    }
}

/// What was written of a task that has ended, beside its timer and its definition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// How many attempts were made.
    pub attempts: u32,
    /// It is a run, so how far its shards are was written.
    pub is_run: bool,
}

impl Written {
    /// That of a timer; `None`: it is no task.
    #[must_use]
    pub fn of(timer: &Timer) -> Option<Self> {
        let is_run = timer.target.starts_with(RUN_TARGET);
        timer.task.map(|task| Self { attempts: task.attempts, is_run })
    }
}

/// How a timer ended, as the engine is told of it for a record that comes late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The version that was pending last.
    pub version: Version,
    /// What has become of it.
    pub state: TimerState,
    /// When it came to that.
    pub since: UnixMillis,
    /// The last turn, of a task.
    pub turn: u32,
}

impl Ended {
    /// Whether a create of this version is a duplicate, though it came after the end: it was submitted before that version,
    /// or while that was pending. How long a cancelled one was pending its cancel's mark says; of one whose record was lost
    /// nobody knows since when there was none.
    #[must_use]
    pub fn counts_for(&self, version: Version) -> bool {
        let is_told = !matches!(self.state, TimerState::Cancelled | TimerState::Lost);
        let was_pending = is_told && version.first_appended < self.since;
        was_pending || version.is_before(self.version)
    }
}

/// A pending timer, as the engine is told of it when it takes a lane over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Live {
    /// Which timer.
    pub timer_id: TimerId,
    /// Its version: that of the record that made it.
    pub version: Version,
    /// The versions that it replaced.
    pub supersedes: Option<Replaced>,
    /// When it is due.
    pub due: UnixMillis,
    /// Where it goes.
    pub target: Arc<str>,
    /// The value of `x-delay-label`.
    pub label: Option<Arc<str>>,
    /// How far it is; only of a task.
    pub task: Option<Progress>,
    /// Of a task whose executor reports: [`FollowUp::of_awaited`] of its definition.
    pub follow_up: Option<Arc<FollowUp>>,
    /// How far an executor said that it came; its next turn is handed it.
    pub cursor: Option<Cursor>,
    /// How far the shards of a run are.
    pub run: Option<Box<RunProgress>>,
}

/// A bound: a version is before it if it is before one of these two. Of one log the latest version stands for all, and so it
/// does of all that are not in log order; but neither stands for the other where a leader's clock went back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VersionBound {
    /// Of those that came straight to the main intake.
    pub log: Version,
    /// Of those that are not in log order.
    pub not_in_log_order: Version,
}

impl VersionBound {
    /// What one version is after.
    #[must_use]
    pub fn of(version: Version) -> Self {
        Self::default().or(version)
    }

    /// The same, and what one more version is after.
    #[must_use]
    pub fn or(self, version: Version) -> Self {
        if version.is_not_in_log_order() {
            let is_later = self.not_in_log_order.is_before(version);
            return Self {
                not_in_log_order: if is_later { version } else { self.not_in_log_order },
                ..self
            };
        }
        let first_appended = self.log.first_appended.max(version.first_appended);
        let log = Version { first_appended, offset: self.log.offset.max(version.offset) };
        Self { log, ..self }
    }

    /// Whether all that is before this is before that version, too, as far as leaders' clocks tell.
    pub(super) fn is_within(self, version: Version) -> bool {
        let is_within = |bound: Version| {
            bound == Version::default() || bound == version || bound.is_before(version)
        };
        is_within(self.log) && is_within(self.not_in_log_order)
    }

    /// Whether a version is before this.
    #[must_use]
    pub fn covers(self, version: Version) -> bool {
        version.is_before(self.log) || version.is_before(self.not_in_log_order)
    }
}

/// What was cancelled or replaced: every version of a timer before a bound is kept from its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CancelMark {
    /// Which timer.
    pub timer_id: TimerId,
    /// The bound: the cancels, and the versions that replaced older ones.
    pub before: VersionBound,
    /// Remembered until then, at least.
    pub until: UnixMillis,
    /// It has suppressed a record.
    pub seen: bool,
    /// More than one version may still come: that one was seen says nothing of the others.
    pub may_repeat: bool,
    /// A cancel of whatever was submitted before it covers what was pending last, if the bound does: not only a cancel of one
    /// version does, or a replace.
    pub cancels: bool,
}

impl CancelMark {
    /// Whether it covers this version of the timer: it was submitted before.
    #[must_use]
    pub fn covers(&self, version: Version) -> bool {
        self.before.covers(version)
    }

    /// Whether a cancel was submitted between two versions: the one behind it is no duplicate of the other, whatever became
    /// of that.
    #[must_use]
    pub fn parts(&self, version: Version, behind: Version) -> bool {
        self.cancels && self.covers(version) && !self.covers(behind)
    }
}

#[cfg(test)]
mod tests;
