//! What callers ask about tasks, and what they hear. The index, the service and the API share these types, and instances send
//! them to each other as JSON.

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD as STANDARD;
use serde::{Deserialize, Serialize};

use super::progress::{Attempt, Progress};
use super::runs::RunProgress;
use super::{LaneTimer, Timer, TimerState};
use crate::header;
use crate::task::id::{IdError, TaskId};
use crate::task::result::TaskResult;
use crate::task::spec::{RUN, SCHEDULE};
use crate::{Lane, Record, UnixMillis};

/// Where a task stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TaskStatus {
    /// It waits for its time: the first one, a retry, or a polling round.
    Delay,
    /// It is due, and no call of it is open.
    Ready,
    /// Its call is open, or its executor is to report.
    Running,
    /// It is done.
    Finished,
    /// It failed, and is not tried again.
    Failed,
    /// It was cancelled.
    Cancelled,
    /// Its time was over before it began.
    Expired,
}

impl TaskStatus {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Delay,
        Self::Ready,
        Self::Running,
        Self::Finished,
        Self::Failed,
        Self::Cancelled,
        Self::Expired,
    ];

    /// The status of a task. `now`: the brokers' time.
    #[must_use]
    pub fn of(timer: &Timer, now: UnixMillis) -> Self {
        Self::of_progress(timer.state, &timer.task.unwrap_or_default(), now)
    }

    /// The status of a task whose timer is in this state.
    #[must_use]
    pub fn of_progress(state: TimerState, task: &Progress, now: UnixMillis) -> Self {
        match state {
            TimerState::Delay if task.held.is_some() && task.open || task.with_executor => {
                Self::Running
            }
            // It was due when its worker sent it back.
            TimerState::Delay if task.held.is_some() || task.breaker || task.next_at <= now => {
                Self::Ready
            }
            TimerState::Delay => Self::Delay,
            TimerState::Delivered => Self::Finished,
            TimerState::Cancelled => Self::Cancelled,
            TimerState::Expired => Self::Expired,
            // Nothing is left of it that could be called.
            TimerState::Dead | TimerState::Lost => Self::Failed,
        }
    }

    /// Whether a task whose timer is in this state may have this status.
    #[must_use]
    pub const fn may_be(self, state: TimerState) -> bool {
        match self {
            Self::Delay | Self::Ready | Self::Running => matches!(state, TimerState::Delay),
            Self::Finished => matches!(state, TimerState::Delivered),
            Self::Failed => matches!(state, TimerState::Dead | TimerState::Lost),
            Self::Cancelled => matches!(state, TimerState::Cancelled),
            Self::Expired => matches!(state, TimerState::Expired),
        }
    }

    /// Whether nothing follows.
    #[must_use]
    pub const fn is_final(self) -> bool {
        !matches!(self, Self::Delay | Self::Ready | Self::Running)
    }
}

/// How many tasks of a project stand where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskCounts {
    /// [`TaskStatus::Delay`], and those that fell due in this minute and wait in their lane.
    pub delay: u64,
    /// [`TaskStatus::Ready`], without these.
    pub ready: u64,
    /// Of those that are ready: they wait in their lane, and fell due in a minute that is over.
    pub overdue: u64,
    /// [`TaskStatus::Running`].
    pub running: u64,
    /// [`TaskStatus::Finished`], as long as that is remembered.
    pub finished: u64,
    /// [`TaskStatus::Failed`], likewise.
    pub failed: u64,
    /// [`TaskStatus::Cancelled`], likewise.
    pub cancelled: u64,
    /// [`TaskStatus::Expired`], likewise.
    pub expired: u64,
}

impl TaskCounts {
    /// Those that have not ended.
    #[must_use]
    pub const fn pending(&self) -> u64 {
        self.delay + self.ready + self.running
    }

    /// Where the tasks of this status are counted.
    pub fn of(&mut self, status: TaskStatus) -> &mut u64 {
        match status {
            TaskStatus::Delay => &mut self.delay,
            TaskStatus::Ready => &mut self.ready,
            TaskStatus::Running => &mut self.running,
            TaskStatus::Finished => &mut self.finished,
            TaskStatus::Failed => &mut self.failed,
            TaskStatus::Cancelled => &mut self.cancelled,
            TaskStatus::Expired => &mut self.expired,
        }
    }

    /// Counts the tasks of another lane, too.
    pub fn add(&mut self, mut other: Self) {
        for status in TaskStatus::ALL {
            *self.of(status) += *other.of(status);
        }
        self.overdue += other.overdue;
    }
}

/// Selects tasks. A field that is not set matches any.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskFilter {
    /// Of one of these projects.
    pub projects: Option<BTreeSet<String>>,
    /// Of this group.
    pub group: Option<String>,
    /// With this status.
    pub status: Option<TaskStatus>,
    /// Of this type, as a specification has it: `http`, `kafka`.
    #[serde(rename = "type")]
    pub of_type: Option<String>,
    /// Due earlier.
    pub due_before: Option<UnixMillis>,
    /// The brokers' time, by which a task is `delay` or `ready`.
    pub now: UnixMillis,
}

impl TaskFilter {
    /// Whether the tasks of a project and a group are meant.
    #[must_use]
    pub fn has_group(&self, project: &str, group: &str) -> bool {
        self.projects.as_ref().is_none_or(|projects| projects.contains(project))
            && self.group.as_deref().is_none_or(|wanted| wanted == group)
    }

    /// Whether projects or groups are told apart.
    #[must_use]
    pub const fn is_of_group(&self) -> bool {
        self.projects.is_some() || self.group.is_some()
    }

    /// Whether a timer is that of a task which may be meant: as [`matches`](Self::matches), but for what only its definition
    /// says.
    #[must_use]
    pub fn may_match(&self, timer: &Timer) -> bool {
        // Schedules and runs have lists of their own: who asks for tasks does not mean them.
        let of_type = timer.type_of_task();
        let is_meant =
            ![SCHEDULE, RUN].contains(&of_type) || self.of_type.as_deref() == Some(of_type);
        timer.task.is_some()
            && is_meant
            && self.status.is_none_or(|status| status == TaskStatus::of(timer, self.now))
            && self.due_before.is_none_or(|before| timer.due < before)
            && group_of(timer.label.as_deref())
                .is_none_or(|(project, group)| self.has_group(project, group))
    }

    /// Whether a task matches. One without a definition was refused when it was created: its timer says what is known of it.
    #[must_use]
    pub fn matches(&self, task: &TaskRecord) -> bool {
        if !self.may_match(&task.timer) {
            return false;
        }
        let spec = task.spec.as_deref().and_then(|spec| serde_json::from_str::<Brief>(spec).ok());
        let of_type = spec.as_ref().map_or_else(|| task.timer.type_of_task(), |spec| &spec.of_type);
        let group = match group_of(task.timer.label.as_deref()) {
            Some(group) => Some(group),
            None => spec.as_ref().map(|spec| (spec.project.as_str(), spec.group.as_str())),
        };
        self.of_type.as_deref().is_none_or(|wanted| of_type == wanted)
            && group.map_or_else(
                || !self.is_of_group(),
                |(project, group)| self.has_group(project, group),
            )
    }
}

impl Timer {
    /// The type of a task, as its timer tells it: what stands for the target of a task that calls has a colon, and no topic has.
    #[must_use]
    pub fn type_of_task(&self) -> &'static str {
        type_of_task(&self.target)
    }
}

/// The same, by the target alone.
pub(crate) fn type_of_task(target: &str) -> &'static str {
    if target.starts_with(SCHEDULE_TARGET) {
        SCHEDULE
    } else if target.starts_with(RUN_TARGET) {
        RUN
    } else if target.starts_with(GRPC_TARGET) {
        "grpc"
    } else if target.contains(':') {
        "http"
    } else {
        "kafka"
    }
}

/// What begins the text that stands for the target of a gRPC task.
pub(crate) const GRPC_TARGET: &str = "grpc:";
/// What begins the text that stands for the target of a schedule; the type of its tasks follows.
pub(crate) const SCHEDULE_TARGET: &str = "schedule:";
/// What begins the text that stands for the target of a run; the type of its shards follows.
pub(crate) const RUN_TARGET: &str = "run:";

/// What a filter looks at in a specification. The rest of it may be of a later version.
#[derive(Deserialize)]
struct Brief {
    #[serde(rename = "type")]
    of_type: String,
    project: String,
    group: String,
}

/// Project and group of a task, as the label of its timer has them; `None`: it does not.
#[must_use]
pub fn group_of(label: Option<&str>) -> Option<(&str, &str)> {
    label?.split_once('/')
}

/// A page of tasks, schedules or runs ends with the one that fills so many [bytes](TaskRecord::bytes). Clients of gRPC take messages of
/// 4 MiB, unless they were told otherwise.
pub const PAGE_BYTES_MAX: usize = 2 << 20;
/// What a task takes on a page beside its specification, about.
const BESIDE_SPEC: usize = 1 << 10;

/// A task: all that is kept of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "PeerTask", try_from = "PeerTask")]
pub struct TaskRecord {
    /// Its lane.
    pub lane: Lane,
    /// Its id.
    pub id: TaskId,
    /// Its timer, which says how far it is.
    pub timer: Timer,
    /// Its specification as JSON, where it is known.
    pub spec: Option<Box<str>>,
    /// Attempts, the oldest first: at most the newest [`SLOTS`](super::progress::SLOTS).
    pub attempts: Vec<Attempt>,
    /// How far the shards of a run are, once there are some.
    pub run: Option<Box<RunProgress>>,
}

impl TaskRecord {
    /// The task of a timer.
    ///
    /// # Errors
    /// [`IdError::Text`]: its id is none of a task.
    pub fn new(
        LaneTimer { lane, timer }: LaneTimer,
        spec: Option<Box<str>>,
        attempts: Vec<Attempt>,
    ) -> Result<Self, IdError> {
        let id = std::str::from_utf8(&timer.id).map_err(|_| IdError::Text)?;
        Ok(Self { lane, id: TaskId::parse(id)?, timer, spec, attempts, run: None })
    }

    /// Where a listing by due time goes on behind it.
    #[must_use]
    pub const fn after(&self) -> super::After {
        (self.timer.due, self.timer.timer_id)
    }

    /// How many bytes it takes on a page, about, without its attempts.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let shards = self.run.as_ref().map_or(0, |run| run.shards() as usize);
        BESIDE_SPEC + self.spec.as_ref().map_or(0, |spec| spec.len()) + shards
    }
}

/// A task as instances send it to each other.
#[derive(Serialize, Deserialize)]
struct PeerTask {
    timer: LaneTimer,
    spec: Option<Box<str>>,
    attempts: Vec<PeerAttempt>,
    /// In base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    run: Option<String>,
}

/// An attempt, with its result in the form that it has everywhere.
#[derive(Serialize, Deserialize)]
struct PeerAttempt {
    turn: u32,
    number: u32,
    result: String,
}

/// Why what an instance sent is no task.
#[derive(Debug, thiserror::Error)]
enum BadTask {
    #[error(transparent)]
    Id(#[from] IdError),
    #[error("the result of attempt {0}: {1}")]
    Result(u32, String),
    #[error("its shards cannot be read")]
    Shards,
}

impl From<TaskRecord> for PeerTask {
    fn from(of: TaskRecord) -> Self {
        let attempt = |of: &Attempt| PeerAttempt {
            turn: of.turn,
            number: of.number,
            result: of.result.to_json(),
        };
        Self {
            attempts: of.attempts.iter().map(attempt).collect(),
            run: of.run.as_ref().map(|run| STANDARD.encode(run.value())),
            spec: of.spec,
            timer: LaneTimer { lane: of.lane, timer: of.timer },
        }
    }
}

impl TryFrom<PeerTask> for TaskRecord {
    type Error = BadTask;

    fn try_from(of: PeerTask) -> Result<Self, BadTask> {
        let timer_id = of.timer.timer.timer_id;
        let attempt = |PeerAttempt { turn, number, result }| {
            let result = TaskResult::parse(result.as_bytes())
                .map_err(|wrong| BadTask::Result(number, wrong.to_string()))?;
            Ok(Attempt { timer_id, turn, number, result })
        };
        let attempts = of.attempts.into_iter().map(attempt).collect::<Result<_, BadTask>>()?;
        let run = of.run.map(|run| {
            let bytes = STANDARD.decode(run).map_err(|_| BadTask::Shards)?;
            RunProgress::read(&bytes).map(Box::new).map_err(|_| BadTask::Shards)
        });
        Ok(Self { run: run.transpose()?, ..Self::new(of.timer, of.spec, attempts)? })
    }
}

/// What became of the cancel of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TaskCancel {
    /// No call ever began, and none will.
    Cancelled,
    /// Calls were made, or may have been; none follows.
    Stopped,
    /// Too late: it is done.
    Finished,
    /// Too late: it failed, and is not tried again.
    Failed,
    /// Too late: its time was over before it began.
    Expired,
    /// There is no such task, or its history has run out.
    Absent,
    /// It is written, and not decided within the wait.
    Pending,
}

/// What became of feedback.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TaskReport {
    /// The task is finished.
    Finished,
    /// The turn has failed, and another one follows.
    Retrying,
    /// The turn has failed, and none follows.
    Failed,
    /// The turn goes on: it is to report again by then.
    Running(UnixMillis),
    /// The turn is over.
    Stale,
    /// The call that handed the turn over is open: its worker speaks first.
    Open,
    /// The task was cancelled.
    Cancelled,
    /// There is no such task, or its history has run out.
    Absent,
    /// It is written, and not decided in time.
    Pending,
}

/// What became of a retry by hand.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TaskRetry {
    /// The task is due now, or was so before.
    Due,
    /// A worker has it: its call is open, or about to begin.
    Held,
    /// It is a run, and has not ended.
    Open,
    /// It ended like this, and is not brought back.
    Ended(TimerState),
    /// It failed, and what was to be sent is not there any more.
    Gone,
    /// Another command, or its own time, came first.
    Superseded,
    /// It may not be called, by this code.
    Refused(String),
    /// It was refused by this code when it was created, and never was pending.
    Unborn(String),
    /// There is no such task, or its history has run out.
    Absent,
    /// It is written, and not decided in time.
    Pending,
}

/// What is sent to whom a task calls.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskPayload {
    /// The key at delivery, of a Kafka task.
    pub key: Option<Base64>,
    /// The body.
    pub value: Option<Base64>,
    /// Headers at delivery, of a Kafka task.
    pub headers: Vec<(String, Option<Base64>)>,
}

impl TaskPayload {
    /// The payload of a record of a task.
    #[must_use]
    pub fn of(record: &Record) -> Self {
        let own = record.headers().filter(|(name, _)| !header::is_control(name));
        let header = |(name, value): (&[u8], Option<&[u8]>)| {
            (String::from_utf8_lossy(name).into_owned(), value.map(Base64::of))
        };
        Self {
            key: record.key().map(Base64::of),
            value: record.value().map(Base64::of),
            headers: own.map(header).collect(),
        }
    }
}

/// Bytes that instances send each other as text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Base64(pub Vec<u8>);

impl Base64 {
    fn of(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }
}

impl From<Base64> for String {
    fn from(Base64(bytes): Base64) -> Self {
        STANDARD.encode(bytes)
    }
}

impl TryFrom<String> for Base64 {
    type Error = base64::DecodeError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        STANDARD.decode(text).map(Self)
    }
}

impl TaskCancel {
    /// What a task that has ended says of a cancel; `None`: it has not ended.
    #[must_use]
    pub fn of(timer: &Timer) -> Option<Self> {
        let has_begun = timer.task.is_some_and(|task| task.begun);
        match timer.state {
            TimerState::Delay => None,
            TimerState::Cancelled if has_begun => Some(Self::Stopped),
            TimerState::Cancelled => Some(Self::Cancelled),
            TimerState::Delivered => Some(Self::Finished),
            TimerState::Dead | TimerState::Lost => Some(Self::Failed),
            TimerState::Expired => Some(Self::Expired),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::{HeldBy, Progress, Version};
    use super::*;
    use crate::Offset;
    use crate::task::result::Outcome;
    use crate::task::scope::TasksPartition;
    use crate::timers::TimerId;

    fn task(state: TimerState, progress: Progress) -> Timer {
        Timer {
            timer_id: TimerId([7; 16]),
            state,
            version: Version { first_appended: UnixMillis(5), offset: Offset(4) },
            supersedes: None,
            due: UnixMillis(100),
            since: UnixMillis(10),
            target: Arc::from("shop/billing"),
            label: Some("shop/orders".into()),
            id: b"9f2c".as_slice().into(),
            key: None,
            key_cut: false,
            code: None,
            task: Some(progress),
        }
    }

    fn record(timer: Timer, spec: Option<&str>) -> TaskRecord {
        let result = TaskResult { status: Some(503), ..TaskResult::new(Outcome::Failed) };
        let attempt = Attempt { timer_id: timer.timer_id, turn: 3, number: 2, result };
        let of = LaneTimer { lane: Lane(3), timer };
        TaskRecord::new(of, spec.map(Into::into), vec![attempt]).unwrap()
    }

    #[test]
    fn a_status_follows_from_the_state_the_worker_and_the_time() {
        let held = Some(HeldBy { partition: TasksPartition(1), credits: 1 });
        let waits = Progress { next_at: UnixMillis(100), ..Progress::default() };
        let ready = Progress { held, ..waits };
        let running = Progress { open: true, ..ready };
        // What a worker said of a turn that it has not any more.
        let over = Progress { held: None, ..running };
        let awaited = Progress { with_executor: true, ..waits };
        #[rustfmt::skip]
        let cases = [
            (TimerState::Delay,     waits,   99,  TaskStatus::Delay),
            (TimerState::Delay,     waits,   100, TaskStatus::Ready),
            (TimerState::Delay,     ready,   99,  TaskStatus::Ready),
            (TimerState::Delay,     running, 99,  TaskStatus::Running),
            (TimerState::Delay,     over,    99,  TaskStatus::Delay),
            (TimerState::Delay,     awaited, 99,  TaskStatus::Running),
            (TimerState::Delay,     awaited, 101, TaskStatus::Running),
            (TimerState::Delivered, running, 99,  TaskStatus::Finished),
            (TimerState::Dead,      running, 99,  TaskStatus::Failed),
            (TimerState::Lost,      waits,   99,  TaskStatus::Failed),
            (TimerState::Cancelled, waits,   100, TaskStatus::Cancelled),
            (TimerState::Expired,   waits,   100, TaskStatus::Expired),
        ];
        for (state, progress, now, want) in cases {
            let found = TaskStatus::of(&task(state, progress), UnixMillis(now));
            assert_eq!(found, want, "{state:?} {progress:?} at {now}");
            assert!(found.may_be(state));
            assert_eq!(found.is_final(), state.is_final());
            for other in TaskStatus::ALL {
                assert!(other.is_final() == state.is_final() || !other.may_be(state));
            }
        }
    }

    #[test]
    fn the_type_of_a_task_without_a_definition_is_told_by_its_target() {
        for (target, want) in [
            ("orders", "kafka"),
            ("service:pay", "http"),
            ("host:a.example:81", "http"),
            ("grpc:service:pay", "grpc"),
            ("grpc:host:a.example:81", "grpc"),
        ] {
            let timer =
                Timer { target: Arc::from(target), ..task(TimerState::Delay, Progress::default()) };
            assert_eq!(timer.type_of_task(), want, "{target}");
        }
    }

    #[test]
    fn a_filter_looks_at_the_label_and_where_that_says_nothing_at_the_definition() {
        let of = |project: &str| Some(BTreeSet::from([project.to_owned()]));
        let spec = r#"{"type":"http","project":"shop","group":"orders"}"#;
        let timer = task(TimerState::Delay, Progress::default());
        let bare = Timer { label: None, ..timer.clone() };
        let plain = Timer { task: None, ..timer.clone() };
        let all = TaskFilter::default();
        let shop = TaskFilter { projects: of("shop"), ..all.clone() };
        let home = TaskFilter { projects: of("home"), ..all.clone() };
        let orders = TaskFilter { group: Some("orders".to_owned()), ..all.clone() };
        let http = TaskFilter { of_type: Some("http".to_owned()), ..all.clone() };
        let kafka = TaskFilter { of_type: Some("kafka".to_owned()), ..all.clone() };
        let early = TaskFilter { due_before: Some(UnixMillis(100)), ..all.clone() };
        let done = TaskFilter { status: Some(TaskStatus::Finished), ..all.clone() };
        #[rustfmt::skip]
        let cases = [
            (&all,    &timer, Some(spec), true),  (&all,    &timer, None, true),
            (&all,    &bare,  None,       true),  (&all,    &plain, Some(spec), false),
            (&shop,   &timer, None,       true),  (&shop,   &bare,  Some(spec), true),
            (&shop,   &bare,  None,       false), (&home,   &timer, Some(spec), false),
            (&home,   &bare,  Some(spec), false), (&orders, &timer, None,       true),
            (&orders, &bare,  Some(spec), true),  (&http,   &timer, Some(spec), true),
            (&http,   &timer, None,       false), (&kafka,  &timer, Some(spec), false),
            (&early,  &timer, Some(spec), false), (&done,   &timer, Some(spec), false),
        ];
        for (filter, timer, spec, want) in cases {
            let found = filter.matches(&record(timer.clone(), spec));
            assert_eq!(found, want, "{filter:?} {timer:?} {spec:?}");
            assert!(filter.may_match(timer) || !found);
        }
    }

    #[test]
    fn instances_send_each_other_a_task_whole() {
        let held = Some(HeldBy { partition: TasksPartition(4), credits: 2 });
        let progress = Progress {
            turn: 3,
            attempts: 2,
            failures: 2,
            held,
            begun: true,
            ..Progress::default()
        };
        let of = record(task(TimerState::Delay, progress), Some(r#"{"type":"http"}"#));
        let text = serde_json::to_string(&of).unwrap();
        assert_eq!(serde_json::from_str::<TaskRecord>(&text).unwrap(), of);
        let other = text.replace("9f2c", "A/B");
        assert!(serde_json::from_str::<TaskRecord>(&other).is_err(), "{other}");
        let other = text.replace("failed", "strange");
        assert!(serde_json::from_str::<TaskRecord>(&other).is_err(), "{other}");
    }

    #[test]
    fn a_cancel_that_came_too_late_says_how_the_task_ended() {
        let begun = Progress { begun: true, ..Progress::default() };
        let of = |state, progress| TaskCancel::of(&task(state, progress));
        assert_eq!(of(TimerState::Delay, begun), None);
        assert_eq!(of(TimerState::Cancelled, begun), Some(TaskCancel::Stopped));
        assert_eq!(of(TimerState::Cancelled, Progress::default()), Some(TaskCancel::Cancelled));
        assert_eq!(of(TimerState::Delivered, begun), Some(TaskCancel::Finished));
        assert_eq!(of(TimerState::Dead, begun), Some(TaskCancel::Failed));
        assert_eq!(of(TimerState::Expired, Progress::default()), Some(TaskCancel::Expired));
    }
}
