//! Decides what becomes of a record: the header contract (`docs/header-contract.md`) applied, without time passing.
//!
//! Two questions. [`accept`]: a record was let go by an intake or a tier; when is it due, where does it go, is its lane
//! this one? [`deliver`]: it is due; may its target have it?
//!
//! # Invariants
//! 1. A relative delay becomes absolute once, from the append time of the first topic it was written to. From then on
//!    the state carries it, and only an authentic state is believed.
//! 2. The right to write a delay is no right to write anywhere: the allow-list of the intake by which a record came in
//!    is checked when the record is accepted and when it fires. The target is sealed when the record is accepted, so
//!    that no later change widens what was allowed then. A record of an intake that is not configured any more waits,
//!    and is not delivered.
//! 3. Nothing is dropped: a record that cannot be delivered gets a refusal with a code, and becomes a dead letter.

use std::sync::Arc;

use super::header::{self, Code, Directive, Refusal, TimerAction, When};
use super::messages::{Added, Left, Target, Trace, TracedTurn};
use super::murmur2;
use super::run::Run;
use super::schedule::Schedule;
use super::sealed;
use super::setup::{Intake, Setup, Topics};
use super::state::TaskState;
use super::state::{Kind, Sealed, State, SubmissionOrder};
use super::targets::Targets;
use super::task::follow_up::FollowUp;
use super::task::result::TaskResult;
use super::task::spec::{Feedback, Shard};
use super::timers::{Progress, Replaced, TimerFields, TimerId, TimerState, Version, value};
use super::work::Scope;
use super::{Cut, CutBy, Lane, Millis, NOT_KEPT, Offset, Record, Source, TopicId, UnixMillis};

pub(super) mod tasks;

/// A pending record, with all that is known of it.
#[derive(Debug)]
pub(super) struct PendingRecord {
    /// Where it stands now, and is pending.
    pub(super) source: Source,
    pub(super) offset: Offset,
    /// When it was appended there.
    pub(super) appended: UnixMillis,
    pub(super) record: Record,
    pub(super) due: UnixMillis,
    /// Its place among records of the same due time.
    pub(super) order: SubmissionOrder,
    pub(super) target: Arc<str>,
    /// Index of the intake whose policy holds for it; `None`: that is not configured any more.
    pub(super) intake: Option<u16>,
    pub(super) hops: u16,
    pub(super) first_appended: UnixMillis,
    pub(super) expires: Option<UnixMillis>,
    /// The timer that it is of; `None`: it has no id.
    pub(super) timer_id: Option<TimerId>,
    pub(super) origin: Origin,
    /// Its version was pending when it was let go: it is not any more as soon as another is.
    pub(super) decided: bool,
    /// Deferred by an outage of its target: it waits longer than until it is due.
    pub(super) deferred: bool,
    /// Of a task.
    pub(super) task: Option<Box<TaskPart>>,
}

/// What is known of a record of a task beside what is known of every record. Its [`due`](PendingRecord::due) says when it is to be
/// acted on next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TaskPart {
    /// The turn that brought the record here; 0: it was never dispatched.
    pub(super) turn: u32,
    /// When it is or was due first.
    pub(super) trigger: UnixMillis,
    /// What stands for its body.
    pub(super) digest: [u8; 16],
    pub(super) project: Arc<str>,
    /// Project and group, as lists show them.
    pub(super) label: Box<str>,
    /// Whose limits its calls are under; `None`: it goes to a topic.
    pub(super) scope: Option<Scope>,
    /// The partition of that topic.
    pub(super) partition: Option<i32>,
    /// By when its executor has to report.
    pub(super) feedback: Option<Feedback>,
    /// How far it is, of one that goes to a topic now and ends by that; or how far one goes on that is retried by hand.
    pub(super) progress: Progress,
    /// Who is told how it ends.
    pub(super) follow_up: Option<Arc<FollowUp>>,
    /// What ends it, of one of which that is told.
    pub(super) last: Option<Box<TaskResult>>,
    /// What it is, of one that is no task.
    pub(super) schedule: Option<Arc<Schedule>>,
    /// The task of a schedule that is to have ended before it is begun.
    pub(super) after: Option<TimerId>,
    /// What it is, of one whose results come from its shards.
    pub(super) run: Option<Arc<Run>>,
    /// Which shard of a run it is.
    pub(super) shard: Option<Shard>,
}

impl TaskPart {
    /// Whether it is delivered to a topic.
    pub(super) fn goes_to_topic(&self) -> bool {
        self.scope.is_none() && self.schedule.is_none() && self.run.is_none()
    }
}

/// How a record came to be let go here, and what it asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// From a tier, where waterclock had put it.
    Hop,
    /// From a tier that its producer wrote it to.
    Tier,
    /// From a tier, where waterclock had put it since a version of its timer was pending.
    Duplicate,
    /// From an intake.
    Create,
    /// From an intake; with a version, it replaces only that.
    Replace(Option<Version>),
    /// From an intake; with a version, only of that.
    Cancel(Option<Version>),
}

impl Origin {
    /// Whether it was accepted before: waterclock itself put it into the tier.
    pub(super) fn was_accepted(self) -> bool {
        matches!(self, Self::Hop | Self::Duplicate)
    }

    /// Whether somebody waits for what it comes to.
    pub(super) fn is_command(self) -> bool {
        matches!(self, Self::Replace(_) | Self::Cancel(_))
    }

    /// Whether it is a record of its own that is about a version, of which only the terms are old.
    fn amends(self) -> bool {
        matches!(self, Self::Replace(Some(_)) | Self::Cancel(Some(_)))
    }
}

impl PendingRecord {
    /// Its version of its timer.
    pub(super) fn version(&self) -> Version {
        Version { first_appended: self.first_appended, offset: self.order.offset }
    }

    /// The turn of a task that brought it here.
    pub(super) fn turn(&self) -> Option<u32> {
        self.task.as_ref().map(|task| task.turn)
    }
}

/// What [`accept`] says.
#[derive(Debug)]
pub(super) enum Verdict {
    /// It waits here, by its due time.
    Wait(Box<PendingRecord>),
    /// It ends a timer of this lane.
    Cancel(Box<PendingRecord>),
    /// It belongs to another lane and is moved there first.
    Move(Box<PendingRecord>, Lane),
    /// It breaks the contract.
    Refuse(Record, Refusal),
}

/// Refuses with a code and a sentence.
pub(super) fn refusal(code: Code, detail: impl Into<String>) -> Refusal {
    Refusal::new(code, detail.into())
}

/// Partitions, largest batch and whether it wants keys, of a target that records can go to.
pub(super) fn present(name: &str, target: Target) -> Result<(i32, u64, bool), Refusal> {
    match target {
        Target::Found { partitions, record_bytes_max, keyed } => {
            Ok((partitions, record_bytes_max, keyed))
        }
        Target::Missing => {
            Err(refusal(Code::TargetMissing, format!("target {name} does not exist")))
        }
        Target::Owned => {
            let detail = format!("target {name} is a topic of another waterclock namespace");
            Err(refusal(Code::TargetForbidden, detail))
        }
        Target::Hidden => {
            let detail = format!("target {name} is refused by Kafka: we may not describe it");
            Err(refusal(Code::TargetRefused, detail))
        }
        Target::Narrow => {
            let detail = format!(
                "target {name} takes only the time of its own clock (message.timestamp.before.max.ms, \
                 message.timestamp.after.max.ms)"
            );
            Err(refusal(Code::TargetRefused, detail))
        }
        Target::Closed => {
            let detail = format!("target {name} is refused by Kafka: we may not write to it");
            Err(refusal(Code::TargetRefused, detail))
        }
    }
}

/// Decides about a record that its partition has let go.
pub(super) fn accept(
    setup: &Setup,
    targets: &Targets,
    (source, offset): (Source, Offset),
    appended: UnixMillis,
    record: Record,
) -> Verdict {
    match from_headers(setup, targets, (source, offset), appended, &record) {
        Err(refusal) => Verdict::Refuse(record, refusal),
        Ok((entry, lane)) => {
            let entry = Box::new(PendingRecord { record, ..entry });
            match (lane, entry.origin) {
                (Some(lane), _) => Verdict::Move(entry, lane),
                (None, Origin::Cancel(_)) => Verdict::Cancel(entry),
                (None, _) => Verdict::Wait(entry),
            }
        }
    }
}

/// All that follows from the headers; the pending record's own record is left empty. Also the lane, if it is another one.
fn from_headers(
    setup: &Setup,
    targets: &Targets,
    (source, offset): (Source, Offset),
    appended: UnixMillis,
    record: &Record,
) -> Result<(PendingRecord, Option<Lane>), Refusal> {
    if let Some(cut) = record.is_cut() {
        let code = match cut.by {
            CutBy::Unreadable => Code::Unreadable,
            CutBy::Record | CutBy::Batch | CutBy::Headers => Code::TooLarge,
        };
        return Err(refusal(code, cut_detail(cut, setup.limits.record_bytes_max)));
    }
    let directive = header::read(record.headers())?;
    let size = record.size();
    if size > setup.limits.record_bytes_max {
        let detail =
            format!("{size} bytes; waterclock's own topics take {}", setup.limits.record_bytes_max);
        return Err(refusal(Code::TooLarge, detail));
    }
    let tier = setup.topics.tier_of(source.topic);
    let (state, origin) = opened(setup, &directive, record.key(), tier)?;
    if let (Some(State { kind: Kind::Move, intake, .. }), Some(here)) =
        (&state, setup.topics.intakes.get(usize::from(source.topic.0)))
        && *intake != here.tag
    {
        // Copied from another intake, whose rules it would carry over.
        return Err(refusal(Code::BadState, format!("{} of another intake", header::STATE)));
    }
    let amends = origin.amends();
    let intake = match &state {
        Some(state) => setup.topics.intakes.iter().position(|intake| intake.tag == state.intake),
        // Written to a tier directly: the main intake's policy.
        None if tier.is_some() => Some(0),
        None => Some(usize::from(source.topic.0)),
    };
    let policy = intake.and_then(|intake| setup.topics.intakes.get(intake));
    let cancels = matches!(origin, Origin::Cancel(_));
    // A sealed target goes before a default, which may have changed by now.
    let target = match directive.target.or_else(|| state.and_then(|state| state.target)) {
        _ if cancels => Arc::from(""),
        Some(target) => targets.name(target),
        None => match policy {
            Some(policy) => policy.target.clone().ok_or_else(|| {
                refusal(
                    Code::MissingTarget,
                    format!("no {}, and the intake has no default", header::TARGET),
                )
            })?,
            // An older program did not seal it. It is not delivered anyway.
            None => Arc::from(""),
        },
    };
    let (due, expires) = match &state {
        Some(state) => (state.due, state.expires),
        None if cancels => (appended, None),
        None => times(setup, &directive, tier, policy, appended)?,
    };
    if amends && due > appended + setup.limits.max_delay {
        let detail = format!("due at {} ms, more than {} away", due.0, setup.limits.max_delay);
        return Err(refusal(Code::DelayTooLong, detail));
    }
    let (order, first_appended) =
        counts_from(setup, (source, offset), appended, state.as_ref(), origin);
    let entry = PendingRecord {
        source,
        offset,
        appended,
        record: Record::empty(),
        due,
        order,
        target,
        intake: intake.map(|intake| intake as u16),
        hops: state.as_ref().map_or(0, |state| state.hops),
        first_appended,
        expires,
        timer_id: directive.id.map(|id| TimerId::new(record.key(), id)),
        origin,
        decided: false,
        deferred: false,
        task: None,
    };
    // With no record key the id stands for the key; with neither, a record's lane is where it is.
    let identity = record.key().or(directive.id);
    let lane = identity.map_or(source.lane, |key| Lane(murmur2::partition(key, setup.lanes)));
    let lane = (lane != source.lane).then_some(lane);
    if lane.is_some() && intake.is_none() {
        return Err(unknown_intake());
    }
    if amends && lane.is_some() {
        let detail = format!("{} of a version that is of another lane", header::STATE);
        return Err(refusal(Code::BadState, detail));
    }
    Ok((entry, lane))
}

/// A record's state, if it has one and that is authentic, and how it came here.
fn opened<'a>(
    setup: &Setup,
    directive: &Directive<'a>,
    key: Option<&'a [u8]>,
    tier: Option<usize>,
) -> Result<(Option<State<'a>>, Origin), Refusal> {
    let open = |bytes| State::open(bytes, &setup.key, &directive.bound(key));
    let state = directive.state.map(open).transpose()?;
    let origin = origin(directive, state.as_ref(), tier.is_some())?;
    Ok((state, origin))
}

/// A record's place among those of one due time, and when it was first appended to any topic of waterclock.
fn counts_from(
    setup: &Setup,
    (source, offset): (Source, Offset),
    appended: UnixMillis,
    state: Option<&State<'_>>,
    origin: Origin,
) -> (SubmissionOrder, UnixMillis) {
    let amends = origin.amends();
    let straight = matches!(origin, Origin::Hop | Origin::Duplicate)
        || (state.is_none() || amends) && source.topic == TopicId(0);
    let place = match straight {
        true => offset,
        false => Version::not_in_log_order(offset, setup.topics.mark(source.topic)),
    };
    let own = SubmissionOrder { appended, offset: place };
    // A record that was moved counts for order from its move.
    let order = state
        .filter(|state| matches!(state.kind, Kind::Hop | Kind::Duplicate))
        .map_or(own, |state| state.order);
    let first_appended = state.filter(|_| !amends).map_or(appended, |state| state.first_appended);
    (order, first_appended)
}

/// Which timer, and which version of it, a record in a topic of waterclock belongs to. `None`: it belongs to none, or
/// it is a cancel. Some records do not tell their version (they may become dead letters): such a record counts for
/// every version.
#[must_use]
pub fn left(
    setup: &Setup,
    (source, offset): (Source, Offset),
    appended: UnixMillis,
    record: &Record,
) -> Option<Left> {
    let is_id = |(name, _): &(&[u8], Option<&[u8]>)| *name == header::ID.as_bytes();
    let id = record.headers().find(is_id).and_then(|(_, id)| id)?;
    if sealed::is_of_task(record) {
        let (timer_id, version) = tasks::left(setup, (source, offset), appended, record)?;
        return Some(Left { source, offset, timer_id, version });
    }
    let timer_id = TimerId::new(record.key(), id);
    let of = || -> Result<Option<Version>, Refusal> {
        let directive = header::read(record.headers())?;
        let tier = setup.topics.tier_of(source.topic);
        let (state, origin) = opened(setup, &directive, record.key(), tier)?;
        if matches!(origin, Origin::Cancel(_)) {
            return Ok(None);
        }
        let (order, first_appended) =
            counts_from(setup, (source, offset), appended, state.as_ref(), origin);
        Ok(Some(Version { first_appended, offset: order.offset }))
    };
    let version = match of() {
        Ok(None) => return None,
        Ok(version) => version,
        Err(_) => None,
    };
    Some(Left { source, offset, timer_id, version })
}

/// Since when one is dead that never was pending: before its record came. [`Timer::ended`](super::timers::Timer::ended) knows it
/// by that.
pub(super) fn before(first_appended: UnixMillis) -> UnixMillis {
    UnixMillis(first_appended.0.saturating_sub(1))
}

/// What can be said of the timer of a record that breaks the contract, as its lane knows it: that it is dead, by a code. Nothing
/// of a command, of a record whose id or key is not known, and of one that is not in its timer's lane.
pub(super) fn never_pending<'a>(
    setup: &Setup,
    source: Source,
    offset: Offset,
    appended: UnixMillis,
    record: &'a Record,
) -> Option<(TimerId, impl FnOnce(Code) -> Record + use<'a>)> {
    if record.is_cut().is_some_and(|cut| cut.without_key || cut.without_headers)
        || !setup.topics.is_intake(source.topic)
    {
        return None;
    }
    let of = |wanted: &str| {
        let mut headers = record.headers();
        headers.find(|(name, _)| *name == wanted.as_bytes()).and_then(|(_, value)| value)
    };
    let is_create = of(header::ACTION).is_none_or(|action| action == b"create");
    let id = header::id(of(header::ID)?).ok()?;
    let key = record.key();
    let lane = Lane(murmur2::partition(key.unwrap_or(id), setup.lanes));
    if !is_create || of(header::STATE).is_some() || lane != source.lane {
        return None;
    }
    let (order, first_appended) =
        counts_from(setup, (source, offset), appended, None, Origin::Create);
    let target = of(header::TARGET).and_then(|target| std::str::from_utf8(target).ok());
    let target = target.filter(|target| header::topic_name(target).is_ok()).unwrap_or_default();
    let timer_id = TimerId::new(key, id);
    let change = move |code| {
        let version = Version { first_appended, offset: order.offset };
        let fields = TimerFields {
            state: TimerState::Dead,
            version,
            supersedes: None,
            // It has no time of its own.
            due: first_appended,
            since: before(first_appended),
            target,
            label: None,
            id,
            key,
            code: Some(code),
            task: None,
        };
        timer_record(timer_id, &fields)
    };
    Some((timer_id, change))
}

/// What was left out of a record, for people.
fn cut_detail(cut: &Cut, most: usize) -> String {
    let Cut { bytes, others, .. } = cut;
    let why = match cut.by {
        CutBy::Record => format!("{bytes} bytes; waterclock's own topics take {most}"),
        CutBy::Batch => {
            format!("{bytes} bytes, in a compressed batch that has more than is held of one")
        }
        CutBy::Headers => "more headers than can be read".to_owned(),
        CutBy::Unreadable => "its batch is broken, as its producer made it".to_owned(),
    };
    let kept = match (cut.without_key, cut.without_headers) {
        (false, false) => "its value is",
        (true, false) => "its key and value are",
        (false, true) => "its value and its further headers are",
        (true, true) => "its key, its value and its further headers are",
    };
    let others = match others {
        0 => String::new(),
        _ => format!("; nothing was read of {others} further records of the batch"),
    };
    format!("{why}; {kept} {NOT_KEPT}{others}")
}

/// How a record came here, by its action, its state and whether it stands in a tier.
fn origin(
    directive: &Directive<'_>,
    state: Option<&State<'_>>,
    in_tier: bool,
) -> Result<Origin, Refusal> {
    let version = match state {
        None => None,
        Some(State { kind: Kind::Hop, .. }) if in_tier => None,
        Some(State { kind: Kind::Duplicate, .. })
            if in_tier && directive.action == TimerAction::Create && directive.id.is_some() =>
        {
            None
        }
        Some(State { kind: Kind::Move, .. }) if !in_tier => None,
        Some(State { kind: Kind::Amend, first_appended, order, .. })
            if !in_tier && directive.action != TimerAction::Create && directive.id.is_some() =>
        {
            Some(Version { first_appended: *first_appended, offset: order.offset })
        }
        Some(_) => {
            let detail = format!("{} of another kind than this topic takes", header::STATE);
            return Err(refusal(Code::BadState, detail));
        }
    };
    match (directive.action, in_tier, state) {
        (TimerAction::Create, false, _) => Ok(Origin::Create),
        (TimerAction::Replace, false, _) => Ok(Origin::Replace(version)),
        (TimerAction::Cancel, false, _) => Ok(Origin::Cancel(version)),
        (TimerAction::Create, true, None) => Ok(Origin::Tier),
        (TimerAction::Create, true, Some(State { kind: Kind::Duplicate, .. })) => {
            Ok(Origin::Duplicate)
        }
        // It did what it was to do when an intake let it go.
        (TimerAction::Create | TimerAction::Replace, true, Some(_)) => Ok(Origin::Hop),
        // Of a task, which has a state of its own.
        (TimerAction::Result, _, _) => {
            let detail = format!("{}: a result is of a task", header::ACTION);
            Err(refusal(Code::UnsupportedAction, detail))
        }
        (TimerAction::Cancel | TimerAction::Replace, true, _) => {
            let what = if directive.action == TimerAction::Cancel { "cancel" } else { "replace" };
            let detail =
                format!("{}: a {what} is taken by an intake, not by a tier", header::ACTION);
            Err(refusal(Code::UnsupportedAction, detail))
        }
    }
}

/// When a record is due that has no state yet, and when it expires.
fn times(
    setup: &Setup,
    directive: &Directive<'_>,
    tier: Option<usize>,
    policy: Option<&Intake>,
    appended: UnixMillis,
) -> Result<(UnixMillis, Option<UnixMillis>), Refusal> {
    let max = setup.limits.max_delay;
    let default = match tier {
        // Written to a tier by a producer who knows the ladder: due when the hold is over.
        Some(tier) => Some(setup.topics.ladder.tiers()[tier].hold),
        None => policy.and_then(|policy| policy.delay),
    };
    let when = directive.when.or_else(|| default.map(When::After)).ok_or_else(|| {
        let detail = format!("neither {} nor {}", header::DELAY, header::UNTIL);
        refusal(Code::MissingDelay, detail)
    })?;
    let due = when.resolve(appended, max)?;
    let expires = directive.expires.map(|at| header::expires_at(at, appended, max)).transpose()?;
    Ok((due, expires))
}

/// Nobody can say what the intake of a record allows now.
fn unknown_intake() -> Refusal {
    let detail = "the intake by which it came is not in the configuration any more";
    refusal(Code::UnknownIntake, detail)
}

/// Whether the policy of an intake lets a record go to a target.
pub(super) fn allowed(
    setup: &Setup,
    targets: &Targets,
    intake: Option<u16>,
    target: &str,
) -> Result<(), Refusal> {
    let policy = intake.and_then(|intake| setup.topics.intakes.get(usize::from(intake)));
    let (Some(intake), Some(policy)) = (intake, policy) else { return Err(unknown_intake()) };
    if targets.is_allowed(target, intake) {
        return Ok(());
    }
    policy.allow.permits(target).map_err(|code| {
        let why = match code {
            Code::TargetForbidden => "is a topic of waterclock's or of Kafka's own",
            _ => "is not on the allow-list that holds for its intake",
        };
        refusal(code, format!("target {target} {why}"))
    })
}

/// Seals the state of a record that hops or moves.
pub(super) fn seal(setup: &Setup, entry: &PendingRecord, kind: Kind) -> Result<Sealed, Refusal> {
    let directive = header::read(entry.record.headers())?;
    let bound = directive.bound(entry.record.key());
    if let Some(task) = &entry.task {
        let TaskPart { turn, trigger, digest, .. } = **task;
        let task = TaskState { turn, trigger, digest, ..TaskState::default() };
        return Ok(tasks::seal(setup, entry, kind, bound, task));
    }
    let policy = entry.intake.and_then(|intake| setup.topics.intakes.get(usize::from(intake)));
    let (intake, name, target) = match policy {
        Some(policy) => {
            let target = directive.target.is_none().then_some(&*entry.target);
            (policy.tag, Some(&*policy.name), target)
        }
        // What an intake that is not there any more has said of it is kept as it is.
        None => {
            let sealed = directive.state.ok_or_else(unknown_intake)?;
            let State { intake, name, target, .. } = State::open(sealed, &setup.key, &bound)?;
            (intake, name, target)
        }
    };
    let state = State {
        kind,
        due: entry.due,
        first_appended: entry.first_appended,
        order: entry.order,
        expires: entry.expires,
        intake,
        name: name.filter(|name| !name.is_empty()),
        target: target.filter(|target| !target.is_empty()),
        hops: entry.hops.saturating_add(1),
        task: None,
    };
    Ok(state.seal(&setup.key, &bound))
}

/// The topic of the intake by which a record came that was read from `topic`; empty: nobody can say.
pub(super) fn came_by(setup: &Setup, topic: TopicId, record: &Record) -> Arc<str> {
    let topics = &setup.topics;
    let is_state = |(name, _): &(&[u8], _)| *name == header::STATE.as_bytes();
    let open = || {
        let directive = header::read(record.headers()).ok()?;
        State::open(directive.state?, &setup.key, &directive.bound(record.key())).ok()
    };
    let sealed = record.headers().any(|header| is_state(&header)).then(open);
    match (sealed, topics.tier_of(topic)) {
        // Copied from another intake: it came by this one.
        (Some(Some(State { task: Some(_), .. })), _) => Arc::clone(topics.name(TopicId(0))),
        (Some(Some(state)), None) if state.kind == Kind::Move => Arc::clone(topics.name(topic)),
        (Some(Some(state)), _) => {
            match (topics.intakes.iter().position(|i| i.tag == state.intake), state.name) {
                (Some(known), _) => Arc::clone(topics.name(TopicId(known as u16))),
                (None, Some(name)) => Topics::intake_topic(&topics.namespace, name).into(),
                (None, None) => Arc::default(),
            }
        }
        (_, None) => Arc::clone(topics.name(topic)),
        // Written to the tier by its producer, under the rules of the main intake.
        (None, Some(_)) if record.is_cut().is_none() => Arc::clone(topics.name(TopicId(0))),
        (_, Some(_)) => Arc::default(),
    }
}

/// The header of a record batch (message format 2).
const BATCH_HEADER: u64 = 61;

/// Bytes of an uncompressed batch with this one record as it is delivered: what `max.message.bytes` is held against.
fn delivered_bytes(record: &Record, added: &Added) -> u64 {
    let part = |bytes: Option<&[u8]>| match bytes {
        None => 1,
        Some(bytes) => varint(bytes.len() as u64) + bytes.len() as u64,
    };
    let kept = || record.headers().filter(|(name, _)| !header::is_control(name));
    let mut headers: u64 = kept().map(|(name, value)| part(Some(name)) + part(value)).sum();
    let mut count = kept().count() as u64;
    added.headers(|name, value| {
        headers += part(Some(name.as_bytes())) + part(Some(value));
        count += 1;
    });
    // Attributes, and the first record's deltas of time and offset.
    let body = 3 + part(record.key()) + part(record.value()) + varint(count) + headers;
    BATCH_HEADER + varint(body) + body
}

/// Bytes of a number as a zigzag varint.
fn varint(number: u64) -> u64 {
    (64 - u64::from((number << 1).leading_zeros())).div_ceil(7).max(1)
}

/// A target that takes less than this gets nothing. A broker could not append the mark that ends a transaction (78 bytes), and the
/// transaction, which holds all other targets of its batch, would never end: Kafka's coordinator gives up (4.3, seen).
const MARK_BYTES: u64 = 128;

/// Checks a due record against its target as it is now; its version replaced these. `hand`: what a delivery
/// may take; none: it does not expire any more. `turn`: what the executor of a task with feedback is to learn.
///
/// # Errors
/// The record is to be dead-lettered with this.
pub(super) fn deliver(
    entry: &PendingRecord,
    (now, hand): (UnixMillis, Option<Millis>),
    target: Target,
    (supersedes, turn): (Option<Replaced>, Option<TracedTurn>),
) -> Result<Delivery, Refusal> {
    let (partitions, record_bytes_max, keyed) = present(&entry.target, target)?;
    if record_bytes_max < MARK_BYTES {
        let detail = format!(
            "target {} takes {record_bytes_max} bytes (max.message.bytes): the marks of transactions need {MARK_BYTES}",
            entry.target
        );
        return Err(refusal(Code::TooLarge, detail));
    }
    let directive = header::read(entry.record.headers())?;
    if let Some((expires, hand)) = entry.expires.zip(hand)
        && now + hand > expires
    {
        let (late, left) = (now - expires, expires - now);
        let detail = if now > expires {
            format!("expired {late} ago, at {} ms", expires.0)
        } else {
            format!("expires in {left}, at {} ms; a delivery may take {hand}", expires.0)
        };
        return Err(refusal(Code::Expired, detail));
    }
    let asked = match &entry.task {
        None => directive.partition,
        Some(task) => task.partition.or_else(|| {
            // Shards that leave together are to go to all who wait for them.
            let shard = task.shard.filter(|_| entry.record.key().is_none())?;
            Some((shard.index % partitions.max(1).unsigned_abs()) as i32)
        }),
    };
    if let Some(asked) = asked
        && asked >= partitions
    {
        let detail =
            format!("partition {asked} of target {}, which has {partitions}", entry.target);
        return Err(refusal(Code::BadPartition, detail));
    }
    if keyed && entry.record.key().is_none() {
        let detail =
            format!("target {} is compacted and takes no record without a key", entry.target);
        return Err(refusal(Code::MissingKey, detail));
    }
    let trace = (directive.trace || turn.is_some()).then(|| {
        let of_task = entry.task.as_ref().filter(|_| turn.is_some());
        // The record of a timer brings this number back when it is submitted again.
        let before = of_task.map_or(directive.attempt, |task| task.progress.attempts);
        Box::new(Trace {
            due: of_task.map_or(entry.due, |task| task.trigger),
            fired: now,
            id: directive.id.map(Into::into),
            attempt: before.saturating_add(1).min(header::NUMBER_MAX as u32),
            turn,
        })
    });
    let id = entry.task.as_ref().and_then(|_| sealed::task_id(&directive).ok());
    let added = Added { trace, nominal: id.and_then(|id| id.nominal()) };
    // A trace adds four short headers and the id, and of a task with feedback a ticket and a cursor. A nominal time is one more.
    let of_trace = added.trace.as_ref().map_or(0, |trace| {
        let of_turn = if trace.turn.is_some() { 400 } else { 0 };
        160 + of_turn + trace.id.as_ref().map_or(0, |id| id.len() as u64)
    });
    let more = of_trace + if added.nominal.is_some() { 40 } else { 0 };
    // Our own size is above the exact one in all but absurd cases: only near the limit is it worth counting.
    if entry.record.size() as u64 + 2 * BATCH_HEADER + more > record_bytes_max
        && let size = delivered_bytes(&entry.record, &added)
        && size > record_bytes_max
    {
        let detail = format!("{size} bytes; target {} takes {record_bytes_max}", entry.target);
        return Err(refusal(Code::TooLarge, detail));
    }
    if let Some(task) = &entry.task
        && let Some(feedback) = task.feedback
    {
        // It goes on until its executor reports.
        let after = Progress {
            turn: task.progress.turn.saturating_add(1),
            begun: true,
            with_executor: true,
            next_at: now + feedback.deadline,
            ..task.progress
        };
        let stage = StateChange { task: Some(after), ..StateChange::new(TimerState::Delay, now) };
        let timer = entry.decided.then(|| timer_change(entry, &directive, stage)).flatten();
        let (task, with_executor) = (None, Some(after));
        return Ok(Delivery { partition: asked, added, timer, task, with_executor });
    }
    // To deliver it is the last attempt of a task that goes to a topic.
    let task = entry.task.as_ref().map(|task| Progress {
        turn: task.progress.turn.saturating_add(1),
        attempts: task.progress.attempts.saturating_add(1),
        begun: true,
        ..task.progress
    });
    let stage = StateChange { supersedes, task, ..StateChange::new(TimerState::Delivered, now) };
    let timer = entry.decided.then(|| timer_change(entry, &directive, stage)).flatten();
    Ok(Delivery { partition: asked, added, timer, task, with_executor: None })
}

/// How a record is delivered.
#[derive(Debug)]
pub(super) struct Delivery {
    pub(super) partition: Option<i32>,
    pub(super) added: Added,
    /// The timer change to write then.
    pub(super) timer: Option<Record>,
    /// How far a task is then that ends by that.
    pub(super) task: Option<Progress>,
    /// How far a task is then that goes on: its executor is to report.
    pub(super) with_executor: Option<Progress>,
}

/// The new state of a timer, since when, and why.
#[derive(Clone, Copy, Debug)]
pub(super) struct StateChange {
    pub(super) state: TimerState,
    pub(super) since: UnixMillis,
    pub(super) supersedes: Option<Replaced>,
    pub(super) code: Option<Code>,
    /// Of a task: how far it is.
    pub(super) task: Option<Progress>,
}

impl StateChange {
    pub(super) fn new(state: TimerState, since: UnixMillis) -> Self {
        Self { state, since, supersedes: None, code: None, task: None }
    }
}

/// The record of `<ns>.timers` that says what has become of a record's timer; none if it has no id.
pub(super) fn timer_change(
    entry: &PendingRecord,
    directive: &Directive<'_>,
    stage: StateChange,
) -> Option<Record> {
    let task = entry.task.as_ref();
    let fields = TimerFields {
        state: stage.state,
        version: entry.version(),
        supersedes: stage.supersedes,
        due: task.map_or(entry.due, |task| task.trigger),
        since: stage.since,
        target: &entry.target,
        label: task.map_or(directive.label, |task| Some(task.label.as_bytes())),
        id: directive.id?,
        key: entry.record.key(),
        code: stage.code,
        task: task.map(|task| {
            let turn = task.turn;
            stage.task.unwrap_or_else(|| Progress {
                turn,
                next_at: entry.due,
                ..Progress::default()
            })
        }),
    };
    Some(timer_record(entry.timer_id?, &fields))
}

/// A record of `<ns>.timers`.
pub(super) fn timer_record(timer_id: TimerId, fields: &TimerFields<'_>) -> Record {
    Record::new(Some(&timer_id.0), Some(&value(fields)), std::iter::empty())
}
