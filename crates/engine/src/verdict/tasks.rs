//! What the lanes read of records of tasks: submissions, copies that come up, what workers say.
//!
//! # Invariants
//! 1. A record is about a task only if its state is sealed as that of one, for the kind of topic that it stands in.
//! 2. The lane of a task follows from its id alone, and its records stand in no other.

use std::sync::Arc;

use super::super::header::{self, Code, Directive, Refusal, TimerAction};
use super::super::sealed::{self, SUBMIT_MAX, bad_task};
use super::super::setup::Setup;
use super::super::state::{
    Bound, Dispatched, Kind, Sealed, State, SubmissionOrder, TaskState, intake_tag,
};
use super::super::task::digest;
use super::super::task::follow_up::FollowUp;
use super::super::task::id::TaskId;
use super::super::task::result::{Outcome, TaskResult};
use super::super::task::spec::{self, Spec};
use super::super::timers::{
    GRPC_TARGET, Progress, RUN_TARGET, SCHEDULE_TARGET, ShardReport, TimerId, Version,
};
use super::super::work::{Callee, Scope};
use super::super::{CutBy, Lane, Millis, Offset, Record, Source, TopicId, UnixMillis};
use super::{Origin, PendingRecord, TaskPart, cut_detail, refusal};

/// What a record of a task is.
#[derive(Debug)]
pub(crate) enum TaskRecord {
    /// A submission, or a copy that comes up.
    Copy(Box<PendingRecord>),
    /// A command: the task is to be cancelled.
    Cancel(Box<PendingRecord>),
    /// A command: the task is to be called now. It is a copy, and names what it follows.
    Retry(Box<PendingRecord>),
    /// What a worker says of a turn.
    Result(Box<PendingRecord>, Box<(Spec, TaskResult)>),
    /// What a worker says of a turn that was cancelled: nothing of it stands in this partition.
    Absent(Box<PendingRecord>, u32, Lane),
    /// What an executor says of a turn of the version that it names.
    Feedback(Box<PendingRecord>, Box<Feedback>),
    /// What the lane of a shard says of it to the lane of its run.
    Shard(Box<PendingRecord>, ShardReport),
}

/// What an executor says.
#[derive(Debug)]
pub(crate) struct Feedback {
    pub(crate) result: TaskResult,
    pub(crate) turn: u32,
    /// For how long a heartbeat counts.
    pub(crate) heartbeat: Millis,
    /// With the payload: the specification.
    pub(crate) spec: Option<Spec>,
}

/// Reads a record of a task that its partition has let go.
///
/// # Errors
/// It is to be dead-lettered with this.
pub(crate) fn read(
    setup: &Setup,
    at: (Source, Offset),
    appended: UnixMillis,
    record: Record,
) -> Result<TaskRecord, (Record, Refusal)> {
    match parts(setup, at, appended, &record) {
        Err(refusal) => Err((record, refusal)),
        Ok((entry, said)) => {
            let entry = Box::new(PendingRecord { record, ..entry });
            Ok(match said {
                Said::Cancel => TaskRecord::Cancel(entry),
                Said::Copy => TaskRecord::Copy(entry),
                Said::Retry => TaskRecord::Retry(entry),
                Said::Result(said) => TaskRecord::Result(entry, said),
                Said::Absent(turn, partition) => TaskRecord::Absent(entry, turn, partition),
                Said::Feedback(said) => TaskRecord::Feedback(entry, said),
                Said::Shard(said) => TaskRecord::Shard(entry, said),
            })
        }
    }
}

/// What a record says beside its state.
enum Said {
    Cancel,
    Copy,
    Retry,
    Result(Box<(Spec, TaskResult)>),
    Absent(u32, Lane),
    Feedback(Box<Feedback>),
    Shard(ShardReport),
}

fn parts(
    setup: &Setup,
    (source, offset): (Source, Offset),
    appended: UnixMillis,
    record: &Record,
) -> Result<(PendingRecord, Said), Refusal> {
    let most = setup.limits.record_bytes_max;
    if let Some(cut) = record.is_cut() {
        let is_unreadable = cut.by == CutBy::Unreadable;
        let code = if is_unreadable { Code::Unreadable } else { Code::TooLarge };
        return Err(refusal(code, cut_detail(cut, most)));
    }
    let directive = header::read(record.headers())?;
    if record.size() > most {
        let detail = format!("{} bytes; waterclock's own topics take {most}", record.size());
        return Err(refusal(Code::TooLarge, detail));
    }
    if setup.topics.results().is_none() {
        return Err(refusal(Code::TaskForbidden, "tasks are not in force in this namespace"));
    }
    let kind = kind_in(setup, source.topic, &directive)?;
    let (state, task) = sealed::opened(&directive, record.key(), &setup.key, kind)?;
    let id = sealed::task_id(&directive)?;
    if id.lane_of(setup.lanes) != source.lane {
        return Err(bad_task(format!("task {id} stands in a lane that is not its own")));
    }
    if kind == Kind::Submit {
        is_fresh(&state, appended)?;
    }
    let is_feedback = kind == Kind::Submit && directive.action == TimerAction::Result;
    let mut entry = pending_record(((source, offset), appended), &state, kind, &id);
    if is_feedback {
        (entry.order, entry.first_appended) = (state.order, state.order.appended);
    }
    if kind == Kind::Submit && sealed::is_cancel(&directive)? {
        entry.origin = Origin::Cancel(None);
        // When it was asked for.
        entry.due = state.first_appended;
        return Ok((entry, Said::Cancel));
    }
    if is_feedback {
        entry.due = appended;
        let said = feedback(record, &directive, &state, task)?;
        entry.target = Arc::from(said.spec.as_ref().map(target_of).unwrap_or_default());
        entry.task = said.spec.as_ref().map(|spec| Box::new(part(spec, task)));
        return Ok((entry, Said::Feedback(Box::new(said))));
    }
    // A task that was retried by hand has that action in all topics, and so has one that goes on with what feedback brought.
    if directive.action == TimerAction::Cancel {
        return Err(bad_task(format!("{} in a record of a task", header::ACTION)));
    }
    if kind == Kind::Result && directive.task.is_none() {
        let said = result(&directive)?;
        let Some(to) = Dispatched::of_word(state.intake) else {
            entry.due = appended;
            let outcome = said.outcome;
            let news = sealed::news_of(outcome)
                .ok_or_else(|| bad_task(format!("{}, of a shard", outcome.as_str())))?;
            let said = ShardReport { index: task.round, turn: task.turn, news };
            return Ok((entry, Said::Shard(said)));
        };
        if said.outcome != Outcome::Interrupted {
            let outcome = said.outcome.as_str();
            return Err(bad_task(format!("{outcome}, and no {}", header::TASK)));
        }
        entry.due = appended;
        return Ok((entry, Said::Absent(task.turn, to.partition)));
    }
    let spec = sealed::spec(&directive)?;
    entry.target = Arc::from(target_of(&spec));
    entry.task = Some(Box::new(part(&spec, task)));
    if spec.schedule().is_some() {
        if kind == Kind::Result {
            return Err(bad_task("a schedule has no result"));
        }
        // However often it comes up, it has not gone in circles.
        entry.hops = 0;
    }
    if kind == Kind::Submit {
        entry.origin = Origin::Create;
        if state.due > appended + setup.limits.max_delay && spec.schedule().is_none() {
            let most = setup.limits.max_delay;
            let detail = format!("due at {} ms, more than {most} away", state.due.0);
            return Err(refusal(Code::DelayTooLong, detail));
        }
    }
    let said = match kind {
        Kind::Result => {
            // A turn begins anew.
            entry.hops = 0;
            entry.due = appended;
            Said::Result(Box::new((spec, result(&directive)?)))
        }
        Kind::Amend => {
            entry.origin = Origin::Replace(Some(version_of(&state)));
            entry.due = appended;
            if let Some(part) = &mut entry.task {
                part.progress = followed(task, appended);
            }
            Said::Retry
        }
        _ => Said::Copy,
    };
    // Of a create it is asked once it is known that there is no such task, and of a result once it is known that it counts.
    if !matches!(kind, Kind::Submit | Kind::Result) {
        is_as_submitted(record, &task.digest)?;
    }
    Ok((entry, said))
}

/// A record of a task, by its state.
fn pending_record(
    ((source, offset), appended): ((Source, Offset), UnixMillis),
    state: &State<'_>,
    kind: Kind,
    id: &TaskId,
) -> PendingRecord {
    let (order, first_appended) = match kind {
        Kind::Submit | Kind::Amend => (SubmissionOrder { appended, offset }, appended),
        _ => (state.order, state.first_appended),
    };
    PendingRecord {
        source,
        offset,
        appended,
        record: Record::empty(),
        due: state.due,
        order,
        target: Arc::from(""),
        intake: Some(0),
        hops: state.hops,
        first_appended,
        expires: state.expires,
        timer_id: Some(TimerId::task(id)),
        origin: Origin::Hop,
        decided: false,
        deferred: false,
        task: None,
    }
}

/// The create of a shard that breaks the contract, with what can be told of it: its run is to hear that there will be no such shard.
/// `None`: it is none, it is not sealed, or it stands in a lane that is not its own, where nobody knows what became of the shard.
pub(crate) fn broken_shard(
    setup: &Setup,
    (source, offset): (Source, Offset),
    appended: UnixMillis,
    record: &Record,
) -> Option<Box<PendingRecord>> {
    setup.topics.results()?;
    let directive = header::read(record.headers()).ok()?;
    let kind = kind_in(setup, source.topic, &directive).ok()?;
    if kind != Kind::Submit || directive.action != TimerAction::Create {
        return None;
    }
    let (state, task) = sealed::opened(&directive, record.key(), &setup.key, kind).ok()?;
    let id =
        sealed::task_id(&directive).ok().filter(|id| id.lane_of(setup.lanes) == source.lane)?;
    id.as_shard()?;
    let mut entry = pending_record(((source, offset), appended), &state, kind, &id);
    entry.origin = Origin::Create;
    entry.task = Some(Box::new(match sealed::spec(&directive) {
        Ok(spec) => {
            entry.target = Arc::from(target_of(&spec));
            part(&spec, task)
        }
        // A newer release wrote it.
        Err(_) => TaskPart { trigger: task.trigger, ..TaskPart::default() },
    }));
    Some(Box::new(entry))
}

/// Which kind of records of tasks a topic takes.
fn kind_of(setup: &Setup, topic: TopicId) -> Result<Kind, Refusal> {
    let topics = &setup.topics;
    if topics.results() == Some(topic) {
        return Ok(Kind::Result);
    }
    match topics.tier_of(topic) {
        Some(_) => Ok(Kind::Hop),
        None if topic == TopicId(0) => Ok(Kind::Submit),
        None => Err(bad_task("tasks come by the main intake only")),
    }
}

/// Which kind a record is of, as far as its topic and its action say.
fn kind_in(setup: &Setup, topic: TopicId, directive: &Directive<'_>) -> Result<Kind, Refusal> {
    Ok(match kind_of(setup, topic)? {
        Kind::Submit if directive.action == TimerAction::Replace => Kind::Amend,
        kind => kind,
    })
}

/// The version that a state names.
fn version_of(state: &State<'_>) -> Version {
    Version { first_appended: state.first_appended, offset: state.order.offset }
}

/// How far a task goes on that ended, and is retried by hand: its failures count anew, its turns and attempts go on.
fn followed(task: TaskState, now: UnixMillis) -> Progress {
    let TaskState { turn, attempt: attempts, .. } = task;
    Progress {
        turn,
        attempts,
        begun: turn > 0 || attempts > 0,
        next_at: now,
        ..Progress::default()
    }
}

/// Whether value and headers are those that the state of the task was sealed with.
pub(crate) fn is_as_submitted(record: &Record, sealed: &[u8; 16]) -> Result<(), Refusal> {
    match digest(record) == *sealed {
        true => Ok(()),
        false => Err(bad_task("its body or headers are not those that were submitted")),
    }
}

fn is_fresh(state: &State<'_>, appended: UnixMillis) -> Result<(), Refusal> {
    let sealed = state.first_appended;
    let apart = if sealed > appended { sealed - appended } else { appended - sealed };
    if apart <= SUBMIT_MAX {
        return Ok(());
    }
    let detail = format!("sealed at {} ms and appended at {} ms", sealed.0, appended.0);
    Err(refusal(Code::StaleSubmit, detail))
}

fn result(directive: &Directive<'_>) -> Result<TaskResult, Refusal> {
    let json = directive.result.ok_or_else(|| bad_task(format!("no {}", header::RESULT)))?;
    TaskResult::parse(json).map_err(|wrong| bad_task(format!("{}: {wrong}", header::RESULT)))
}

/// What feedback says, and whether it has what it needs for that.
fn feedback(
    record: &Record,
    directive: &Directive<'_>,
    state: &State<'_>,
    task: TaskState,
) -> Result<Feedback, Refusal> {
    let result = result(directive)?;
    let spec = directive.task.map(|_| sealed::spec(directive)).transpose()?;
    if !sealed::may_be_feedback(result.outcome)
        || result.outcome.carries_payload() != spec.is_some()
    {
        let outcome = result.outcome.as_str();
        let detail = format!("{}: {outcome}, which no executor says like that", header::RESULT);
        return Err(bad_task(detail));
    }
    if spec.is_some() {
        is_as_submitted(record, &task.digest)?;
    }
    let heartbeat = state.due - state.first_appended;
    Ok(Feedback { result, turn: task.turn, heartbeat, spec })
}

fn part(spec: &Spec, task: TaskState) -> TaskPart {
    let TaskState { turn, trigger, digest, .. } = task;
    let scope = sealed::scope_of(spec);
    let project = match &scope {
        Some(scope) => Arc::clone(&scope.project),
        None => Arc::from(spec.project()),
    };
    let partition = match spec.kind() {
        spec::Kind::Kafka(kafka) => kafka.partition,
        spec::Kind::Http(_)
        | spec::Kind::Grpc(_)
        | spec::Kind::Schedule(_)
        | spec::Kind::Run(_) => None,
    };
    let progress = Progress::default();
    let label = format!("{}/{}", spec.project(), spec.group()).into();
    let feedback = spec.feedback();
    let follow_up = FollowUp::of(spec).map(Arc::new);
    let schedule = spec.schedule().cloned().map(Arc::new);
    let after = spec.occurrence().and_then(|of| {
        let schedule = TaskId::schedule(spec.project(), &of.schedule).ok()?;
        Some(TimerId::task(&schedule.occurrence(of.after?)))
    });
    TaskPart {
        turn,
        trigger,
        digest,
        project,
        label,
        scope,
        partition,
        feedback,
        progress,
        follow_up,
        last: None,
        schedule,
        after,
        run: spec.run().cloned().map(Arc::new),
        shard: spec.shard(),
    }
}

/// What stands for the target of a task: its topic, or whom it calls. No topic has a colon in its name.
fn target_of(spec: &Spec) -> String {
    match spec.kind() {
        spec::Kind::Kafka(kafka) => kafka.topic.clone(),
        spec::Kind::Http(_) => callee_of(spec),
        spec::Kind::Grpc(_) => format!("{GRPC_TARGET}{}", callee_of(spec)),
        spec::Kind::Schedule(schedule) => format!("{SCHEDULE_TARGET}{}", schedule.type_of_task()),
        spec::Kind::Run(run) => format!("{RUN_TARGET}{}", run.type_of_task()),
    }
}

fn callee_of(spec: &Spec) -> String {
    match sealed::scope_of(spec) {
        Some(Scope { callee: Callee::Service(service), .. }) => format!("{SERVICE}{service}"),
        Some(Scope { callee: Callee::Host(host), .. }) => format!("{HOST}{host}"),
        None => String::new(),
    }
}

const SERVICE: &str = "service:";
const HOST: &str = "host:";

/// Whose limits a task is under, by its label and by what [`target_of`] wrote.
pub(crate) fn scope_of(label: &str, target: &str) -> Option<Scope> {
    let (project, _) = label.split_once('/').unwrap_or((label, ""));
    let target = target.strip_prefix(GRPC_TARGET).unwrap_or(target);
    let callee = match (target.strip_prefix(SERVICE), target.strip_prefix(HOST)) {
        (Some(service), _) => Callee::Service(service.into()),
        (None, Some(host)) => Callee::Host(host.into()),
        (None, None) => return None,
    };
    Some(Scope { project: Arc::from(project), callee })
}

/// What stands for the tasks of a project that go to topics, by the label of one of them: they are put off together.
pub(crate) fn topics_of(label: &str) -> Scope {
    let (project, _) = label.split_once('/').unwrap_or((label, ""));
    Scope { project: Arc::from(project), callee: Callee::Service("".into()) }
}

/// Which task a record belongs to, and which version of it.
pub(crate) fn left(
    setup: &Setup,
    (source, offset): (Source, Offset),
    appended: UnixMillis,
    record: &Record,
) -> Option<(TimerId, Option<Version>)> {
    let directive = header::read(record.headers()).ok()?;
    let is_feedback = directive.action == TimerAction::Result;
    if directive.action == TimerAction::Cancel || is_feedback && directive.task.is_none() {
        return None;
    }
    let timer_id = TimerId::task(&sealed::task_id(&directive).ok()?);
    // A retry may stand for the version that it follows, or for its own.
    let version = || {
        let kind =
            kind_in(setup, source.topic, &directive).ok().filter(|kind| *kind != Kind::Amend)?;
        let (state, _) = sealed::opened(&directive, record.key(), &setup.key, kind).ok()?;
        Some(match kind {
            Kind::Submit if is_feedback => sealed::version_of_feedback(&state),
            Kind::Submit => Version { first_appended: appended, offset },
            _ => version_of(&state),
        })
    };
    Some((timer_id, version()))
}

/// Seals the state of a record of a task that goes on.
pub(super) fn seal(
    setup: &Setup,
    entry: &PendingRecord,
    kind: Kind,
    bound: Bound<'_>,
    task: TaskState,
) -> Sealed {
    seal_state(setup, &state_of(entry, kind, task), bound)
}

/// Seals it, and what a worker said stays behind.
fn seal_state(setup: &Setup, state: &State<'_>, bound: Bound<'_>) -> Sealed {
    state.seal(&setup.key, &Bound { result: None, ..bound })
}

fn state_of(entry: &PendingRecord, kind: Kind, task: TaskState) -> State<'static> {
    State {
        kind,
        due: entry.due,
        first_appended: entry.first_appended,
        order: entry.order,
        expires: entry.expires,
        intake: intake_tag(""),
        name: None,
        target: None,
        hops: entry.hops.saturating_add(1),
        task: Some(task),
    }
}

/// Seals a dispatch of a task. `said`: what goes with it that an executor said of an earlier turn.
///
/// # Errors
/// Its headers cannot be read.
pub(crate) fn seal_dispatch(
    setup: &Setup,
    entry: &PendingRecord,
    to: Dispatched,
    (task, said): (TaskState, Option<&str>),
) -> Result<Sealed, Refusal> {
    let directive = header::read(entry.record.headers())?;
    let state = State { intake: to.to_word(), ..state_of(entry, Kind::Work, task) };
    let bound = directive.bound(entry.record.key());
    Ok(state.seal(&setup.key, &Bound { result: said.map(str::as_bytes), ..bound }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What stands in `<ns>.timers` gives a lane the same limits after a take-over.
    #[test]
    fn the_scope_of_a_call_is_read_back_from_its_target() {
        for callee in [
            r#""type":"http","service":"pay""#,
            r#""type":"http","url":"http://a.example:81/x""#,
            r#""type":"grpc","named_service":"pay","service":"s","method":"m""#,
            r#""type":"grpc","host":"a.example:81","service":"s","method":"m""#,
            r#""type":"kafka","topic":"orders""#,
        ] {
            let json = format!(r#"{{"project":"p","group":"g",{callee}}}"#);
            let spec = Spec::parse(json.as_bytes()).expect("sound");
            let read = scope_of("p/g", &target_of(&spec));
            assert_eq!(read, sealed::scope_of(&spec), "{callee}");
            assert_eq!(read.is_none(), spec.type_name() == "kafka", "{callee}");
        }
    }
}
