//! What the API needs of an instance.
//!
//! The API reaches the instance only through [`Timers`]; `app` implements it. Timers, filters and commands are those of
//! the engine. Times are epoch milliseconds of the brokers' clocks.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::engine::UnixMillis;
use crate::engine::task::id::TaskId;
use crate::engine::timers::{After, TimerId};
pub use crate::engine::timers::{
    CommandKind, CommandOutcome, CommandStatus, Filter, Forecast, LaneTimer, PAGE_BYTES_MAX,
    TaskCancel, TaskCounts, TaskFilter, TaskPayload, TaskRecord, TaskReport, TaskRetry,
    TimerCommand, TimerName, TimerState,
};

/// Where a page ended: what is behind it comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Cursor {
    /// The due time of the last one that was looked at.
    pub due: u64,
    /// Its timer id, which orders timers of the same due time.
    pub order: [u8; 16],
}

impl From<After> for Cursor {
    fn from((due, timer_id): After) -> Self {
        Self { due: due.0, order: timer_id.0 }
    }
}

impl From<Cursor> for After {
    fn from(of: Cursor) -> Self {
        (UnixMillis(of.due), TimerId(of.order))
    }
}

/// What stands in the order of due time.
pub trait Placed {
    /// Where.
    fn cursor(&self) -> Cursor;
    /// How many bytes of its page it takes, about. Timers are small: only the number of those is bounded.
    fn bytes(&self) -> usize {
        0
    }
}

impl Placed for LaneTimer {
    fn cursor(&self) -> Cursor {
        (self.timer.due, self.timer.timer_id).into()
    }
}

impl Placed for TaskRecord {
    fn cursor(&self) -> Cursor {
        self.after().into()
    }

    fn bytes(&self) -> usize {
        self.bytes()
    }
}

/// Timers in the order of due time, or tasks.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Page<T = LaneTimer> {
    /// Those that fit the filter; may be none though there are more.
    pub timers: Vec<T>,
    /// Up to where it was looked; `None`: to the end.
    pub more: Option<Cursor>,
}

impl<T> Default for Page<T> {
    fn default() -> Self {
        Self { timers: Vec::new(), more: None }
    }
}

/// Who runs a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LaneOwner {
    /// This instance, and all of the lane is known.
    Here,
    /// The lane is coming here and not ready, or no owner is known.
    Moving,
    /// Another instance announced that it runs the lane.
    Elsewhere(PeerAddress),
}

/// Where another instance is reached.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PeerAddress {
    /// `host:port`.
    pub address: String,
    /// Whether it takes TLS there.
    pub tls: bool,
}

impl PeerAddress {
    /// The URL of a path there.
    pub(super) fn url(&self, path: &str) -> String {
        let scheme = if self.tls { "https" } else { "http" };
        format!("{scheme}://{}{path}", self.address)
    }
}

/// The times of a request.
#[derive(Clone, Copy, Debug)]
pub struct RequestTimes {
    /// When it came. Where no version is named, what was pending then is meant.
    pub came: Instant,
    /// By when its answer has to be there: nothing is written afterwards.
    pub by: Instant,
}

/// Why a query or a command has no answer. Nothing was changed, unless it says so. Instances send it to each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TimersError {
    /// The lane is on its way from one member to another, or its owner does not answer; soon it will.
    Moving(String),
    /// An instance was asked for a change and has not answered: it may have been made, or be made yet. The text says so.
    Unknown(String),
    /// Kafka does not answer.
    Away(String),
    /// The owner has no index in this run; a person must mend that.
    NoIndex(String),
    /// As much is asked already as may be at once.
    Busy(String),
    /// The record of a pending timer was not found in time.
    NotFound(String),
    /// The timer that was to be due at another time is not pending: how it ended, if that is known.
    NotPending(Option<TimerState>),
    /// The request cannot be applied: a code for programs, a sentence for people.
    Refused(String, String),
}

/// What an instance says that is starting, or has lost Kafka.
pub const NOT_READY: &str = "this instance is not ready: it is starting, or it has lost Kafka";

impl TimersError {
    /// The instance is starting, or has lost Kafka; soon it is ready.
    pub fn not_ready() -> Self {
        Self::Moving(NOT_READY.to_owned())
    }
}

/// An answer to come.
pub type Soon<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What the API needs of the instance. Nothing here blocks the calling thread. An answer about lanes is
/// [`TimersError::Moving`] unless all of them are [`Here`](LaneOwner::Here). It is true at the moment when it is given.
pub trait Timers: Send + Sync + 'static {
    /// How many lanes there are; 0 until the instance has started.
    fn lanes(&self) -> u16;
    /// The lane of a timer.
    fn lane_of(&self, name: &TimerName) -> u16;
    /// Who runs a lane.
    fn owner_of(&self, lane: u16) -> LaneOwner;
    /// The address that this instance announced to the others.
    fn address(&self) -> String;
    /// Whether records with an id are tracked at all.
    fn tracks(&self) -> bool;
    /// The brokers' time; `None` before it is known.
    fn now(&self) -> Option<u64>;
    /// Since when this instance runs, by the brokers' time; `None` before that is known.
    fn since(&self) -> Option<u64>;
    /// A seal that only instances of this namespace can make.
    fn seal(&self, what: &[u8]) -> [u8; 32];
    /// The timers of these names, each in its lane.
    ///
    /// # Errors
    /// See [`TimersError`].
    fn find<'a>(
        &'a self,
        names: &'a [(u16, TimerName)],
    ) -> Soon<'a, Result<Vec<Option<LaneTimer>>, TimersError>>;
    /// All timers of these ids in these lanes, whatever their keys.
    ///
    /// # Errors
    /// See [`TimersError`].
    fn by_ids<'a>(
        &'a self,
        lanes: &'a [u16],
        ids: &'a [String],
    ) -> Soon<'a, Result<Vec<LaneTimer>, TimersError>>;
    /// At most so many of a lane's timers behind a place, in the order of due time.
    ///
    /// # Errors
    /// See [`TimersError`].
    fn page<'a>(
        &'a self,
        lane: u16,
        filter: &'a Filter,
        after: Option<Cursor>,
        most: usize,
    ) -> Soon<'a, Result<Page, TimersError>>;
    /// The task of an id, with its attempts. One whose create was acknowledged before is found.
    ///
    /// # Errors
    /// See [`TimersError`].
    fn task<'a>(&'a self, id: &'a TaskId) -> Soon<'a, Result<Option<TaskRecord>, TimersError>>;
    /// At most so many of a lane's tasks behind a place, and about [`PAGE_BYTES_MAX`] of them, in the order of due time, without their
    /// attempts.
    ///
    /// # Errors
    /// See [`TimersError`].
    fn tasks<'a>(
        &'a self,
        lane: u16,
        filter: &'a TaskFilter,
        after: Option<Cursor>,
        most: usize,
    ) -> Soon<'a, Result<Page<TaskRecord>, TimersError>>;
    /// How many tasks of these projects these lanes have together, by where they stand now. A project without any is not told.
    ///
    /// # Errors
    /// See [`TimersError`].
    fn task_counts<'a>(
        &'a self,
        lanes: &'a [u16],
        projects: &'a BTreeSet<String>,
    ) -> Soon<'a, Result<BTreeMap<String, TaskCounts>, TimersError>>;
    /// What became of the cancel of a task, waiting for at most so long.
    ///
    /// # Errors
    /// See [`TimersError`]; the cancel stands.
    fn task_cancel<'a>(
        &'a self,
        lane: u16,
        ticket: &'a str,
        wait: Duration,
    ) -> Soon<'a, Result<TaskCancel, TimersError>>;
    /// Whether a change of a schedule was in force, as far as this instance remembers what its lane has said.
    ///
    /// # Errors
    /// See [`TimersError`].
    fn schedule_taken<'a>(
        &'a self,
        lane: u16,
        ticket: &'a str,
    ) -> Soon<'a, Result<bool, TimersError>>;
    /// Has a task called now that waits for its time or has failed.
    ///
    /// # Errors
    /// See [`TimersError`]. To ask again is safe.
    fn task_retry<'a>(
        &'a self,
        id: &'a TaskId,
        by: Instant,
    ) -> Soon<'a, Result<TaskRetry, TimersError>>;
    /// Takes what the executor of a task says, as JSON, with the ticket of its turn.
    ///
    /// # Errors
    /// See [`TimersError`]. To report again is safe.
    fn task_report<'a>(
        &'a self,
        id: &'a TaskId,
        report: (&'a str, &'a str),
        by: Instant,
    ) -> Soon<'a, Result<TaskReport, TimersError>>;
    /// What a task sends; `None`: that is not there any more.
    ///
    /// # Errors
    /// See [`TimersError`].
    fn task_payload<'a>(
        &'a self,
        id: &'a TaskId,
        by: Instant,
    ) -> Soon<'a, Result<Option<TaskPayload>, TimersError>>;
    /// How many timers of these lanes are meant.
    ///
    /// # Errors
    /// See [`TimersError`].
    fn count<'a>(
        &'a self,
        lanes: &'a [u16],
        filter: &'a Filter,
    ) -> Soon<'a, Result<u64, TimersError>>;
    /// When the pending timers of these lanes fall due, from `now` on.
    ///
    /// # Errors
    /// See [`TimersError`].
    fn forecast<'a>(
        &'a self,
        lanes: &'a [u16],
        now: u64,
        target: Option<&'a str>,
    ) -> Soon<'a, Result<Vec<Forecast>, TimersError>>;
    /// How many records stand in each tier and intake in the lanes that run here, as last counted.
    fn backlog(&self) -> Vec<(String, u64)>;
    /// Writes commands; for each a ticket to ask for its answer with. A cancel is written wherever its lane runs; another
    /// time is given only [`Here`](LaneOwner::Here).
    fn submit<'a>(
        &'a self,
        lane: u16,
        commands: &'a [TimerCommand],
        times: RequestTimes,
    ) -> Soon<'a, Vec<Result<String, TimersError>>>;
    /// What became of a command, waiting for at most so long.
    ///
    /// # Errors
    /// See [`TimersError`]; the command stands.
    fn status<'a>(
        &'a self,
        lane: u16,
        ticket: &'a str,
        wait: Duration,
    ) -> Soon<'a, Result<CommandStatus, TimersError>>;
    /// Waits until all is decided that stands in the intakes of these lanes now: what belongs in another lane stands there then.
    ///
    /// # Errors
    /// Not by then; see [`TimersError`].
    fn settle<'a>(&'a self, lanes: &'a [u16], by: Instant) -> Soon<'a, Result<(), TimersError>>;
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;

    use serde::de::DeserializeOwned;

    use super::*;
    use crate::engine::header::Code;
    use crate::engine::timers::{Replaced, Timer, TimerId, Version};
    use crate::engine::{Lane, Offset, UnixMillis};

    fn timer() -> LaneTimer {
        let version =
            |ms, offset| Version { first_appended: UnixMillis(ms), offset: Offset(offset) };
        let timer = Timer {
            timer_id: TimerId([7; 16]),
            state: TimerState::Dead,
            version: version(9, 42),
            supersedes: Some(Replaced { first: version(8, 41), last: version(8, 41) }),
            due: UnixMillis(10),
            since: UnixMillis(11),
            target: "out".into(),
            label: Some("l".into()),
            id: b"i".as_slice().into(),
            key: Some(b"k".as_slice().into()),
            key_cut: true,
            code: Some(Code::TooLarge),
            task: None,
        };
        LaneTimer { lane: Lane(3), timer }
    }

    fn same<T: Serialize + DeserializeOwned + PartialEq + Debug>(of: &T, text: &str) {
        assert_eq!(serde_json::to_string(of).unwrap(), text);
        assert_eq!(&serde_json::from_str::<T>(text).unwrap(), of);
    }

    /// Instances of other versions read it.
    #[test]
    fn what_instances_send_each_other_has_always_had_this_form() {
        let order = ["7"; 16].join(",");
        same(
            &timer(),
            &format!(
                r#"{{"name":{{"id":"i","key":"aw=="}},"key_cut":true,"order":[{order}],"state":"dead","target":"out","due":10,"lane":3,"label":"l","version":"9-42","supersedes":"8-41","since":11,"code":"too_large"}}"#
            ),
        );
        let filter = Filter { state: Some(TimerState::Delay), ..Filter::default() };
        same(
            &Filter { due_before: Some(UnixMillis(5)), ..filter },
            r#"{"target":null,"label":null,"state":"delay","due_after":null,"due_before":5}"#,
        );
        let name = TimerName { id: "i".to_owned(), key: None };
        let version = Some("1-42xe136".parse().unwrap());
        same(
            &TimerCommand { name: name.clone(), version, kind: CommandKind::Cancel },
            r#"{"name":{"id":"i","key":null},"version":"1-42xe136","order":"Cancel"}"#,
        );
        let kind = CommandKind::Reschedule(UnixMillis(7));
        same(
            &TimerCommand { name, version: None, kind },
            r#"{"name":{"id":"i","key":null},"version":null,"order":{"Reschedule":7}}"#,
        );
        let status =
            |outcome, state, code| CommandStatus::Decided { outcome, state, code, is_last: true };
        same(
            &status(CommandOutcome::Unknown, Some(TimerState::Dead), Some(Code::TooLarge)),
            r#"{"Decided":{"outcome":"unknown","state":"dead","code":"too_large","is_last":true}}"#,
        );
        same(&CommandStatus::Pending, r#""Pending""#);
        same(&TimersError::NotPending(Some(TimerState::Expired)), r#"{"NotPending":"expired"}"#);
    }

    #[test]
    fn a_code_of_a_later_version_is_left_out() {
        let text = serde_json::to_string(&timer()).unwrap().replace("too_large", "of_tomorrow");
        let read: LaneTimer = serde_json::from_str(&text).unwrap();
        assert_eq!(read.timer.code, None);
    }

    #[test]
    fn every_word_of_an_outcome_and_a_state_is_the_same_in_json() {
        for state in TimerState::ALL {
            assert_eq!(serde_json::to_value(state).unwrap(), state.as_str());
        }
        use CommandOutcome::*;
        for outcome in
            [Cancelled, Delivered, Superseded, Replaced, Created, Recorded, Unknown, Refused]
        {
            assert_eq!(serde_json::to_value(outcome).unwrap(), outcome.as_str());
        }
    }
}
