//! Records of tasks, as waterclock writes them to its own topics: sealed, each for one kind of topic.
//!
//! | function | writes to |
//! |---|---|
//! | [`submit`], [`change_schedule`], [`cancel`], [`retry`](retry()), [`feedback`](feedback()) | `<ns>.intake`, in the lane of the task's id |
//! | [`follow_up`](follow_up()) | the same, in the lane of the task that ended |
//! | the lanes | `<ns>.tasks` |
//! | [`result_record`], [`absent_record`] | `<ns>.results`, in the lane that the task came from |
//! | [`shard_record`] | the same, in the lane of the run whose shard it is about |
//!
//! # Invariants
//! 1. What is not sealed for the topic that it stands in is refused. So who may write to one of them can create no task, and can
//!    change none.
//! 2. Value and headers that a user gave stay as they were: the digest stands for them.

mod feedback;
mod follow_up;
mod retry;
mod ticket;

use std::sync::Arc;

use crate::header::{self, Code, Directive, Refusal, TimerAction};
use crate::messages::TracedTurn;
use crate::state::{
    self, Bound, Dispatched, Kind, Sealed, State, StateKey, SubmissionOrder, TaskState, intake_tag,
};
use crate::task::digest;
use crate::task::id::TaskId;
use crate::task::result::{Outcome, TaskResult};
use crate::task::spec::{Feedback, Scope as SpecScope, Spec};
use crate::timers::{ShardNews, ShardReport, TimerId, Version};
use crate::work::{Callee, Dispatch, Form, Said, Scope, Task, Turn};
use crate::{Lane, Record, UnixMillis};

pub(crate) use feedback::version_of as version_of_feedback;
pub use feedback::{feedback, may_be_feedback};
pub(crate) use follow_up::follow_up;
pub use retry::{CopyTerms, WantedCopy, copy_of, of_letter, retry};
pub use ticket::{BadTicket, Ticket};

/// How long after it was sealed a submission may be appended; later it is [`Code::StaleSubmit`].
pub const SUBMIT_MAX: crate::Millis = crate::Millis(600_000);

/// A task that is to be created.
#[derive(Clone, Copy, Debug)]
pub struct Submission<'a> {
    /// Its id, which says its lane.
    pub id: &'a TaskId,
    /// What is to be done.
    pub spec: &'a Spec,
    /// When.
    pub due: UnixMillis,
    /// Past it, nothing is begun.
    pub expires: Option<UnixMillis>,
    /// The key at delivery, of a Kafka task.
    pub key: Option<&'a [u8]>,
    /// The body.
    pub value: Option<&'a [u8]>,
    /// Headers at delivery, of a Kafka task. None of them may be one of the contract's.
    pub headers: &'a [(String, Option<Vec<u8>>)],
}

/// The record that creates a task. `now`: the brokers' time.
#[must_use]
pub fn submit(key: &StateKey, now: UnixMillis, submission: &Submission<'_>) -> Record {
    create(key, (now, None), submission)
}

/// What a change of a schedule takes the place of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Follows {
    /// This version.
    pub version: Version,
    /// It has ended, and the change makes the schedule anew. One of a version that goes on does not bring it back if it ends meanwhile.
    pub has_ended: bool,
}

/// The record that puts this version of a schedule in the place of the one that it follows. `now`: the brokers' time.
#[must_use]
pub fn change_schedule(
    key: &StateKey,
    now: UnixMillis,
    follows: Follows,
    submission: &Submission<'_>,
) -> Record {
    create(key, (now, Some(follows)), submission)
}

fn create(
    key: &StateKey,
    (now, follows): (UnixMillis, Option<Follows>),
    submission: &Submission<'_>,
) -> Record {
    let Submission { id, spec, due, expires, key: record_key, value, headers } = *submission;
    let spec = match spec.expires() == expires {
        true => spec.to_json(),
        false => spec.clone().with_expires(expires).to_json(),
    };
    let own = || headers.iter().map(|(name, value)| (name.as_bytes(), value.as_deref()));
    let digest = digest(&Record::new(None, value, own()));
    let named = follows.map(|Follows { version: Version { first_appended, offset }, .. }| {
        (first_appended, SubmissionOrder { appended: first_appended, offset })
    });
    let (first_appended, order) = named.unwrap_or_else(|| (now, SubmissionOrder::default()));
    let state = State {
        kind: if follows.is_some() { Kind::Amend } else { Kind::Submit },
        due,
        first_appended,
        order,
        expires,
        intake: intake_tag(""),
        name: None,
        target: None,
        hops: 0,
        task: Some(TaskState {
            // A version that follows another one is not taken for its first record, which is the only one of turn 0.
            turn: u32::from(follows.is_some()),
            attempt: u32::from(follows.is_some_and(|follows| follows.has_ended)),
            trigger: due,
            digest,
            ..TaskState::default()
        }),
    };
    let bound = Bound {
        key: record_key,
        id: Some(id.as_str().as_bytes()),
        task: Some(spec.as_bytes()),
        ..Bound::default()
    };
    let sealed = state.seal(key, &bound);
    let ours = [
        (header::ID.as_bytes(), Some(id.as_str().as_bytes())),
        (header::TASK.as_bytes(), Some(spec.as_bytes())),
        (header::STATE.as_bytes(), Some(sealed.as_ref())),
    ];
    let action = follows.map(|_| (header::ACTION.as_bytes(), Some(&b"replace"[..])));
    Record::new(record_key, value, own().chain(ours).chain(action))
}

/// The record that cancels whatever is pending of a task's id. `now`: the brokers' time.
#[must_use]
pub fn cancel(key: &StateKey, now: UnixMillis, id: &TaskId) -> Record {
    let state = State {
        kind: Kind::Submit,
        due: now,
        first_appended: now,
        order: SubmissionOrder::default(),
        expires: None,
        intake: intake_tag(""),
        name: None,
        target: None,
        hops: 0,
        task: Some(TaskState::default()),
    };
    cancel_record(key, &state, id.as_str().as_bytes())
}

/// The note behind a task in `<ns>.tasks`: it was cancelled.
#[must_use]
pub(crate) fn cancel_note(key: &StateKey, turn: Turn, id: &[u8]) -> Record {
    let state = state_of_turn(Kind::Work, turn, intake_tag(""));
    cancel_record(key, &state, id)
}

/// What is sealed about a turn by who has nothing of its task but its name.
fn state_of_turn(kind: Kind, turn: Turn, intake: u64) -> State<'static> {
    State {
        kind,
        due: UnixMillis(0),
        first_appended: turn.version.first_appended,
        order: SubmissionOrder { appended: UnixMillis(0), offset: turn.version.offset },
        expires: None,
        intake,
        name: None,
        target: None,
        hops: 0,
        task: Some(TaskState { turn: turn.turn, ..TaskState::default() }),
    }
}

fn cancel_record(key: &StateKey, state: &State<'_>, id: &[u8]) -> Record {
    let sealed = state.seal(key, &Bound { id: Some(id), ..Bound::default() });
    let headers: [(&[u8], Option<&[u8]>); 3] = [
        (header::ID.as_bytes(), Some(id)),
        (header::ACTION.as_bytes(), Some(b"cancel")),
        (header::STATE.as_bytes(), Some(sealed.as_ref())),
    ];
    Record::new(None, None, headers.into_iter())
}

/// What stands in `<ns>.tasks`.
#[derive(Clone, Debug)]
pub enum Work {
    /// A turn of a task.
    Task(Box<Task>),
    /// That turn of the task with this id was cancelled.
    Cancel(Turn, TaskId),
}

/// Reads a record of `<ns>.tasks`, which has `lanes` partitions. `at`: in which of them it stands, and when it was appended there.
///
/// # Errors
/// Waterclock did not write it there: it is to become a dead letter with this.
pub fn read_work(
    key: &StateKey,
    lanes: u16,
    at: (Lane, UnixMillis),
    record: Record,
) -> Result<Work, (Box<Record>, Refusal)> {
    match work_of(key, lanes, at, &record) {
        Ok((turn, id, None)) => Ok(Work::Cancel(turn, id)),
        Ok((turn, _, Some((lane, scope, sealed, traced)))) => {
            Ok(Work::Task(Box::new(Task { turn, lane, scope, sealed, traced, record })))
        }
        Err(refusal) => Err((Box::new(record), refusal)),
    }
}

type ToCall = (Lane, Scope, Dispatch, Option<TracedTurn>);

fn work_of(
    key: &StateKey,
    lanes: u16,
    (partition, appended): (Lane, UnixMillis),
    record: &Record,
) -> Result<(Turn, TaskId, Option<ToCall>), Refusal> {
    let directive = header::read(record.headers())?;
    let (state, task) = opened(&directive, record.key(), key, Kind::Work)?;
    let id = task_id(&directive)?;
    let version = Version { first_appended: state.first_appended, offset: state.order.offset };
    let turn = Turn { name: TimerId::task(&id), version, turn: task.turn };
    if is_cancel(&directive)? {
        return Ok((turn, id, None));
    }
    let spec = spec(&directive)?;
    let Some(scope) = scope_of(&spec) else {
        return Err(bad_task(format!("a task of type {} is not called", spec.type_name())));
    };
    let dispatched = Dispatched::of_word(state.intake);
    if let Some(to) = dispatched.filter(|to| to.partition != partition) {
        return Err(bad_task(format!("it was dispatched to partition {}", to.partition.0)));
    }
    let TaskState { attempt, round, trigger, digest, .. } = task;
    let sealed = Dispatch {
        due: trigger,
        attempt,
        round,
        expires: state.expires,
        digest,
        dispatched: dispatched.map_or(state.due, |of| of.at),
        appended,
    };
    let shard = spec.shard();
    let traced = spec.feedback().map(|Feedback { heartbeat, .. }| {
        let ticket = Ticket { version, turn: turn.turn, heartbeat };
        let said = directive.result.and_then(|said| TaskResult::parse(said).ok());
        let cursor = said.and_then(|said| said.cursor).map(Arc::from);
        TracedTurn { ticket: ticket.to_text(key, &id), cursor, shard }
    });
    let lane = id.lane_of(lanes);
    Ok((turn, id, Some((lane, scope, sealed, traced))))
}

/// Whether a record has a state as those of tasks have. Nobody has looked at its seal yet.
#[must_use]
pub fn is_of_task(record: &Record) -> bool {
    let state = header::STATE.as_bytes();
    record.headers().any(|(name, value)| name == state && value.is_some_and(state::is_of_task))
}

/// Whose limits the calls of a task are under; `None`: it makes none.
#[must_use]
pub fn scope_of(spec: &Spec) -> Option<Scope> {
    let callee = match spec.scope()? {
        SpecScope::Service(service) => Callee::Service(service.into()),
        SpecScope::Host(host) => Callee::Host(host.into()),
    };
    Some(Scope { project: Arc::from(spec.project()), callee })
}

/// The state of a task, if the record has one of this kind.
pub(crate) fn opened<'a>(
    directive: &Directive<'a>,
    record_key: Option<&'a [u8]>,
    key: &StateKey,
    kind: Kind,
) -> Result<(State<'a>, TaskState), Refusal> {
    let refused = |what: &str| Refusal::new(Code::BadTask, format!("{} {what}", header::STATE));
    let bytes = directive.state.ok_or_else(|| refused("is not there"))?;
    let state = State::open(bytes, key, &directive.bound(record_key))?;
    match state.task {
        Some(task) if state.kind == kind => Ok((state, task)),
        _ => Err(refused("is not for this topic")),
    }
}

/// The id of a task's record.
pub(crate) fn task_id(directive: &Directive<'_>) -> Result<TaskId, Refusal> {
    let id = directive.id.and_then(|id| std::str::from_utf8(id).ok()).unwrap_or_default();
    TaskId::parse(id).map_err(|error| bad_task(format!("{}: {error}", header::ID)))
}

/// Whether a record cancels its task. Its action is not under its seal, but what else it has is: a cancel has no specification and no
/// result. So nobody makes a copy of another record a cancel.
pub(crate) fn is_cancel(directive: &Directive<'_>) -> Result<bool, Refusal> {
    let is_cancel = directive.action == TimerAction::Cancel;
    if is_cancel && (directive.task.is_some() || directive.result.is_some()) {
        return Err(bad_task(format!("{} in a record that was sealed without", header::ACTION)));
    }
    Ok(is_cancel)
}

/// The specification of a task's record.
pub(crate) fn spec(directive: &Directive<'_>) -> Result<Spec, Refusal> {
    let json = directive.task.ok_or_else(|| bad_task(format!("no {}", header::TASK)))?;
    Spec::parse(json).map_err(|wrongs| {
        let wrong = wrongs.first().map(ToString::to_string).unwrap_or_default();
        bad_task(format!("{}: {wrong}", header::TASK))
    })
}

pub(crate) fn bad_task(detail: impl AsRef<str>) -> Refusal {
    Refusal::new(Code::BadTask, detail)
}

/// What a worker says of a turn, as a result. `worker`: who says so.
#[must_use]
pub fn result_of(said: &Said, worker: &str, form: Form) -> TaskResult {
    let mut result = match said {
        Said::Started(since) => {
            TaskResult { started: Some(*since), ..TaskResult::new(Outcome::Started) }
        }
        Said::Deferred { until, breaker } => TaskResult {
            until: Some(*until),
            breaker: *breaker,
            ..TaskResult::new(Outcome::Deferred)
        },
        Said::Interrupted { in_doubt } => {
            TaskResult { in_doubt: *in_doubt, ..TaskResult::new(Outcome::Interrupted) }
        }
        Said::Cancelled => TaskResult::new(Outcome::Cancelled),
        Said::Ended(result) => (**result).clone(),
    };
    match form {
        Form::Whole => {
            result.worker.get_or_insert_with(|| worker.to_owned());
            result
        }
        Form::Short | Form::Letter => TaskResult {
            error: None,
            response: None,
            worker: None,
            letter: form == Form::Letter,
            ..result
        },
    }
}

/// The record of `<ns>.results`, for the lane of the task. `worker`: who says so.
#[must_use]
pub fn result_record(key: &StateKey, task: &Task, said: &Said, worker: &str, form: Form) -> Record {
    let result = result_of(said, worker, form);
    let json = result.to_json();
    let record = &task.record;
    // It was read by `read_work`.
    let directive = header::read(record.headers()).unwrap_or_default();
    let (state, _) = match opened(&directive, record.key(), key, Kind::Work) {
        Ok(opened) => opened,
        Err(_) => return Record::empty(),
    };
    let bound = Bound { result: Some(json.as_bytes()), ..directive.bound(record.key()) };
    let sealed: Sealed = State { kind: Kind::Result, ..state }.seal(key, &bound);
    let with_payload = result.outcome.carries_payload() && !result.letter;
    let kept = record.headers().filter(|(name, _)| {
        let is_ours = header::is_control(name);
        *name != header::STATE.as_bytes()
            && *name != header::RESULT.as_bytes()
            && (is_ours || with_payload)
    });
    let ours = [
        (header::RESULT.as_bytes(), Some(json.as_bytes())),
        (header::STATE.as_bytes(), Some(sealed.as_ref())),
    ];
    Record::new(record.key(), record.value().filter(|_| with_payload), kept.chain(ours))
}

/// The record of `<ns>.results` by which a worker says that nothing of a turn which it was to cancel stands in this partition. It has no
/// specification: nobody has that here. `worker`: who says so.
#[must_use]
pub fn absent_record(
    key: &StateKey,
    (turn, id): (Turn, &TaskId),
    partition: Lane,
    worker: &str,
) -> Record {
    let worker = Some(worker.to_owned());
    let result = TaskResult { worker, in_doubt: true, ..TaskResult::new(Outcome::Interrupted) };
    let at = Dispatched { partition, at: UnixMillis(0) };
    bare_result(key, &state_of_turn(Kind::Result, turn, at.to_word()), id, &result)
}

/// A record of `<ns>.results` by who has nothing of a task but its id.
fn bare_result(key: &StateKey, state: &State<'_>, id: &TaskId, result: &TaskResult) -> Record {
    let json = result.to_json();
    let (id, said) = (id.as_str().as_bytes(), json.as_bytes());
    let sealed = state.seal(key, &Bound { id: Some(id), result: Some(said), ..Bound::default() });
    let headers = [
        (header::ID.as_bytes(), Some(id)),
        (header::RESULT.as_bytes(), Some(said)),
        (header::STATE.as_bytes(), Some(sealed.as_ref())),
    ];
    Record::new(None, None, headers.into_iter())
}

/// The record of `<ns>.results` by which the lane of a shard says something of it to the lane of its run, of which this version is
/// meant.
#[must_use]
pub(crate) fn shard_record(
    key: &StateKey,
    (run, version): (&TaskId, Version),
    ShardReport { index, turn, news }: ShardReport,
) -> Record {
    let outcome = NEWS.iter().find(|(_, of)| *of == news).map_or(Outcome::Failed, |(of, _)| *of);
    let of_run = Turn { name: TimerId::task(run), version, turn: 0 };
    let mut state = state_of_turn(Kind::Result, of_run, intake_tag(""));
    state.task = Some(TaskState { round: index, turn, ..TaskState::default() });
    bare_result(key, &state, run, &TaskResult::new(outcome))
}

/// How news of shards are written: as what would be said of a turn.
const NEWS: [(Outcome, ShardNews); 4] = [
    (Outcome::Started, ShardNews::Begun),
    (Outcome::Interrupted, ShardNews::Again),
    (Outcome::Finished, ShardNews::Finished),
    (Outcome::Failed, ShardNews::Failed),
];

/// What is heard of a shard by a record with this outcome; `None`: nobody wrote that.
pub(crate) fn news_of(outcome: Outcome) -> Option<ShardNews> {
    NEWS.iter().find(|(of, _)| *of == outcome).map(|(_, news)| *news)
}

#[cfg(test)]
mod tests;
