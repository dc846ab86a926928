//! Puts ladder, lanes and tasks in force, and finds out what is.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use super::admin::{ANSWER_MAX, create, failed, id_of, inspect, live_members};
use super::{
    Error, Finding, Found, LANES_DEFAULT, Names, Severity, TopicSpec, diff, holds_text, wanted,
};
use crate::client::connect::Isolation;
use crate::client::raw::ask::End;
use crate::client::topic_reader::{Ended, Patience, ReadError, RecordPosition, Span, StartAt};
use crate::client::{Connection, TopicReader};
use crate::meta::{self, LadderInForce, Meta, Secret, Value};
use waterclock_engine::ladder::{Ladder, Preset};
use waterclock_engine::{Millis, Offset};

/// How long a broker holds a fetch for which there is nothing.
const WAIT: Duration = Duration::from_millis(50);
/// Longest look into a tier that is being drained.
const LOOK_MAX: Duration = Duration::from_secs(20);

/// How long to wait for members that have ended: the last one to stop keeps its `group.instance.id` for its session's length, which is
/// 6 s by default.
const SEATS_MAX: Duration = Duration::from_secs(8);
/// Between two looks.
const SEATS_AGAIN: Duration = Duration::from_millis(500);

/// Longest wait for what another process that starts at the same time puts in force, and for brokers to have heard of it.
const FIRST_MAX: Duration = Duration::from_secs(20);
/// Between two looks.
const FIRST_AGAIN: Duration = Duration::from_millis(100);
/// Brokers that were not there when the topics were made have heard of them after this long.
const HEARD_MAX: Duration = Duration::from_secs(2);

/// What was asked for. `None` takes what is in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Prefix of the topics, and the group's name.
    pub namespace: String,
    /// Names of the intakes beside the main one.
    pub further_intakes: Vec<String>,
    /// Number of lanes.
    pub lanes: Option<u16>,
    /// Holds of the ladder, in any order.
    pub holds: Option<Vec<Millis>>,
    /// Longest lead of a tier.
    pub lead_max: Millis,
    /// What may wait in memory.
    pub horizon: Millis,
    /// Tasks are to be in force. A namespace that is new has them anyway, and nothing takes them away.
    pub tasks: bool,
}

/// What an instance needs to know of its namespace.
#[derive(Clone, Debug)]
pub struct InForce {
    /// Partitions of every lane topic.
    pub lanes: u16,
    /// The ladder, with the tiers that are being drained.
    pub ladder: Ladder,
    /// What states are sealed with.
    pub secret: Secret,
    /// The id of the main intake that was there first, once that was looked at.
    pub first_intake: Option<String>,
    /// Tasks are in force.
    pub tasks: bool,
    /// The lane topics in the order of the engine's `TopicId`.
    pub topics: Vec<String>,
    /// Every topic, as it must be.
    pub specs: Vec<TopicSpec>,
    /// The cluster's id, if it tells.
    pub cluster_id: Option<String>,
    /// How long `<ns>.timers` keeps a tombstone at least, for readers that have not seen it yet.
    pub tombstones: Millis,
    /// What could be better; to be logged.
    pub notes: Vec<Finding>,
}

/// What [`apply`] did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// What is in force now.
    pub in_force: LadderInForce,
    /// Tasks are in force now.
    pub tasks: bool,
    /// Whether anything of that differs from before.
    pub changed: bool,
    /// Topics that were created.
    pub created: Vec<String>,
    /// Tiers taken off the ladder for good: nothing was pending in them.
    pub drained: Vec<Millis>,
    /// Tiers with nothing pending that are kept on the list, since the group has members.
    pub empty: Vec<Millis>,
    /// What is there and not as it should be.
    pub findings: Vec<Finding>,
}

/// Creates what is missing and puts ladder, lanes and, where that is asked, tasks in force.
///
/// # Errors
/// Nothing is put in force. Topics that were created stay; apply again when the cause is mended.
pub fn apply(connection: &Connection, request: &Request) -> Result<Applied, Error> {
    let names = Names::new(&request.namespace);
    let mut before = read(connection, &names, request)?;
    let Made { mut created, founded } = if before.is_whole() {
        Made::default()
    } else {
        begin(connection, &names, request, &mut before)?
    };
    let mut live = live_members(connection, &request.namespace)?;
    let until = Instant::now() + SEATS_MAX;
    let (mut plan, tasks) = loop {
        let plan = next(request, None, before.ladder.as_ref(), live)
            .and_then(|plan| Ok((plan, next_tasks(request, before.tasks, live)?)));
        match plan {
            Err(Error::Live { .. } | Error::LiveForTasks { .. }) if Instant::now() < until => {
                std::thread::sleep(SEATS_AGAIN);
                live = live_members(connection, &request.namespace)?;
            }
            plan => break plan?,
        }
    };
    let (drained, empty) = drain(connection, &names, request, &mut plan, live)?;
    let ladder = ladder_of(request, &plan)?;

    let found = inspect(connection, &names)?;
    let brokers = found.brokers.len();
    let specs = wanted(&names, plan.lanes, &ladder, &request.further_intakes, brokers, tasks);
    let missing: Vec<_> =
        specs.iter().filter(|spec| !found.topics.contains_key(&spec.name)).cloned().collect();
    created.extend(create(connection, &missing)?);

    let is_new_ladder = before.ladder.as_ref() != Some(&plan);
    if is_new_ladder {
        let value = Value::Ladder { ladder: plan.clone(), tasks: before.tasks.is_some() };
        meta::write(connection, &names.meta(), &value)?;
    }
    let findings = diff(&names, &specs, &inspect(connection, &names)?);
    let is_new_to_tasks = tasks && before.tasks.is_none();
    if is_new_to_tasks {
        // There is no way back: a topic that somebody made in another form would keep every instance from its start.
        let misfits = misfits_of_tasks(&specs, &findings);
        if !misfits.is_empty() {
            return Err(Error::Misconfigured(misfits));
        }
        // First of all: from here on no older program starts.
        let value = Value::Ladder { ladder: plan.clone(), tasks };
        meta::write(connection, &names.meta(), &value)?;
        meta::write(connection, &names.meta(), &Value::Tasks)?;
    }
    let changed = is_new_ladder || is_new_to_tasks || founded;
    Ok(Applied { in_force: plan, tasks, changed, created, drained, empty, findings })
}

/// What keeps the topics of tasks from holding what is promised.
fn misfits_of_tasks(specs: &[TopicSpec], findings: &[Finding]) -> Vec<Finding> {
    let is_of_tasks =
        |topic: &str| specs.iter().any(|spec| spec.name == topic && spec.kind.is_of_tasks());
    let misfits = findings.iter().filter(|of| of.refuses() && is_of_tasks(&of.topic));
    misfits.cloned().collect()
}

/// What [`begin`] made.
#[derive(Default)]
struct Made {
    created: Vec<String>,
    /// What the namespace begins with is ours.
    founded: bool,
}

/// Makes the topics of a namespace for which nothing is in force, and puts tasks, a secret, lanes and a ladder in force, unless
/// somebody else does so at the same time: then theirs are taken.
fn begin(
    connection: &Connection,
    names: &Names,
    request: &Request,
    before: &mut Meta,
) -> Result<Made, Error> {
    let found = inspect(connection, names)?;
    // Nobody can be running.
    let plan = next(request, lanes_left(names, &found), before.ladder.as_ref(), 0)?;
    let ladder = ladder_of(request, &plan)?;
    let tasks = begins_with_tasks(names, request, before, &found);
    let brokers = found.brokers.len();
    let specs = wanted(names, plan.lanes, &ladder, &request.further_intakes, brokers, tasks);
    // A topic that is there with other partitions would fix a wrong number of lanes for good.
    let wrong = |found: &Found| -> Vec<Finding> {
        let findings = diff(names, &specs, found).into_iter();
        findings.filter(|finding| finding.what == "partitions" && finding.refuses()).collect()
    };
    // Somebody else may be making them at this moment, for other lanes: then that is in force soon.
    let give_way = |misfits, before: &mut Meta, created| {
        let theirs = wait_for_first(connection, names, request);
        *before = theirs.map_err(|_| Error::Misconfigured(misfits))?;
        Ok(Made { created, founded: false })
    };
    let misfits = wrong(&found);
    if !misfits.is_empty() {
        return give_way(misfits, before, Vec::new());
    }
    // By the other topics others know a namespace, and keep off: `meta`, which everything rests on, is made when they are
    // there.
    let (meta, others): (Vec<_>, Vec<_>) = specs
        .iter()
        .filter(|spec| !found.topics.contains_key(&spec.name))
        .cloned()
        .partition(|spec| spec.name == names.meta());
    let wanted = meta.len() + others.len();
    let mut created = create(connection, &others)?;
    created.extend(create(connection, &meta)?);
    // Somebody else makes them, too, and maybe for other lanes.
    if created.len() < wanted {
        let misfits = wrong(&inspect(connection, names)?);
        if !misfits.is_empty() {
            return give_way(misfits, before, created);
        }
    }
    // A broker may not know of the topic yet, and say that nothing is in force: then the record written here is not the
    // first.
    *before = read(connection, names, request)?;
    if before.is_whole() {
        return Ok(Made { created, founded: false });
    }
    // Before what makes the namespace whole: who finds it whole finds its tasks, too.
    if tasks && before.tasks.is_none() {
        meta::write(connection, &names.meta(), &Value::Tasks)?;
    }
    let ours = Value::first(plan, tasks)?;
    meta::write(connection, &names.meta(), &ours)?;
    *before = wait_for_first(connection, names, request)?;
    let founded =
        matches!(&ours, Value::First { secret, .. } if before.secret.as_ref() == Some(secret));
    Ok(Made { created, founded })
}

/// The lanes of a namespace of which only meta is gone: as many as its intake has partitions, if there are its timers, too.
fn lanes_left(names: &Names, found: &Found) -> Option<u16> {
    let partitions = |topic: &str| found.topics.get(topic).map(|topic| topic.partitions);
    let of_intake = partitions(&names.intake())?;
    (partitions(&names.timers()) == Some(of_intake))
        .then(|| u16::try_from(of_intake).ok())
        .flatten()
}

/// Whether a namespace in which nothing is in force gets tasks. One of which only meta is gone is as it was before.
fn begins_with_tasks(names: &Names, request: &Request, before: &Meta, found: &Found) -> bool {
    let is_left = lanes_left(names, found).is_some();
    let had_them = before.tasks.is_some() || found.topics.contains_key(&names.tasks());
    request.tasks || had_them || !is_left
}

/// Reads until something is in force.
fn wait_for_first(
    connection: &Connection,
    names: &Names,
    request: &Request,
) -> Result<Meta, Error> {
    let until = Instant::now() + FIRST_MAX;
    loop {
        match read(connection, names, request)? {
            meta if meta.is_whole() => return Ok(meta),
            _ if Instant::now() >= until => {
                return Err(Error::NotApplied { namespace: request.namespace.clone() });
            }
            _ => std::thread::sleep(FIRST_AGAIN),
        }
    }
}

/// What is in force, what is wanted for it, and what is there.
#[derive(Clone, Debug)]
pub struct Survey {
    /// Something was put in force; else all is compared with what `apply` would put there.
    pub applied: bool,
    /// Tasks are in force, or would be.
    pub tasks: bool,
    /// Partitions of every lane topic.
    pub lanes: u16,
    /// The ladder, with the tiers that are being drained.
    pub ladder: Ladder,
    /// The lane topics in the order of the engine's `TopicId`.
    pub topics: Vec<String>,
    /// Every topic that there should be.
    pub wanted: Vec<TopicSpec>,
    /// What is there.
    pub found: Found,
    /// Every difference.
    pub findings: Vec<Finding>,
}

/// Looks at everything without changing anything.
///
/// # Errors
/// The cluster could not be looked at, or what was asked could never be applied.
pub fn survey(connection: &Connection, request: &Request) -> Result<Survey, Error> {
    let names = Names::new(&request.namespace);
    let before = read(connection, &names, request)?;
    let found = inspect(connection, &names)?;
    let plan = next(request, lanes_left(&names, &found), before.ladder.as_ref(), 0)?;
    let ladder = ladder_of(request, &plan)?;
    let tasks = if before.is_whole() {
        before.tasks.is_some() || request.tasks
    } else {
        begins_with_tasks(&names, request, &before, &found)
    };
    let brokers = found.brokers.len();
    let wanted = wanted(&names, plan.lanes, &ladder, &request.further_intakes, brokers, tasks);
    Ok(Survey {
        applied: before.is_whole(),
        tasks,
        lanes: plan.lanes,
        topics: names.of_lanes(&request.further_intakes, &ladder, tasks),
        findings: diff(&names, &wanted, &found),
        ladder,
        wanted,
        found,
    })
}

/// Compares without changing anything: with what is in force, else with what `apply` would put in force.
///
/// # Errors
/// As [`survey`].
pub fn compare(connection: &Connection, request: &Request) -> Result<Vec<Finding>, Error> {
    Ok(survey(connection, request)?.findings)
}

/// Finds out what is in force, and whether the topics can hold it; to be called before anything starts.
///
/// # Errors
/// Nothing was applied, other lanes or another ladder were asked than are in force, or a topic is misconfigured. Do not
/// start; every error says what to do.
pub fn check(connection: &Connection, request: &Request) -> Result<InForce, Error> {
    let until = Instant::now() + HEARD_MAX;
    loop {
        let checked = check_once(connection, request);
        let is_missing = match &checked {
            Err(Error::NotApplied { .. }) => true,
            Err(Error::Misconfigured(findings)) => {
                findings.iter().any(|finding| finding.severity == Severity::Missing)
            }
            _ => false,
        };
        if !is_missing || Instant::now() >= until {
            return checked;
        }
        std::thread::sleep(FIRST_AGAIN);
    }
}

fn check_once(connection: &Connection, request: &Request) -> Result<InForce, Error> {
    let names = Names::new(&request.namespace);
    // Side by side: this delays every restart of an instance. Where nobody answers, the first that gives up is enough.
    let looking = std::thread::spawn({
        let (connection, names) = (connection.clone(), names.clone());
        move || inspect(&connection, &names)
    });
    let Meta { ladder: Some(plan), secret: Some(secret), intake: first_intake, tasks } =
        read(connection, &names, request)?
    else {
        return Err(Error::NotApplied { namespace: request.namespace.clone() });
    };
    same_lanes(request, &plan)?;
    if let Some(requested) = &request.holds
        && sorted(requested) != plan.holds
    {
        return Err(Error::Ladder {
            namespace: request.namespace.clone(),
            requested: holds_text(&sorted(requested)),
            in_force: holds_text(&plan.holds),
        });
    }
    let ladder = ladder_of(request, &plan)?;
    let found = looking.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    let (brokers, tasks) = (found.brokers.len(), tasks.is_some());
    let specs = wanted(&names, plan.lanes, &ladder, &request.further_intakes, brokers, tasks);
    let (misconfigured, notes): (Vec<_>, Vec<_>) =
        diff(&names, &specs, &found).into_iter().partition(Finding::refuses);
    if !misconfigured.is_empty() {
        return Err(Error::Misconfigured(misconfigured));
    }
    let topics = names.of_lanes(&request.further_intakes, &ladder, tasks);
    let kept =
        found.topics.get(&names.timers()).and_then(|t| t.settings.get("delete.retention.ms"));
    let tombstones = Millis(kept.and_then(|ms| ms.parse().ok()).unwrap_or(Millis::DAY.0));
    Ok(InForce {
        lanes: plan.lanes,
        ladder,
        secret,
        first_intake,
        tasks,
        topics,
        specs,
        cluster_id: found.cluster_id,
        tombstones,
        notes,
    })
}

/// Writes down which main intake is the first one, where that was never done, and says which one it is: another start may
/// have written another one before.
///
/// # Errors
/// Nobody told its id, or it could not be written or read again.
pub fn note_first_intake(connection: &Connection, namespace: &str) -> Result<String, Error> {
    let names = Names::new(namespace);
    let id = id_of(connection, &names.intake())?;
    let written = meta::write(connection, &names.meta(), &Value::intake(id.clone())?);
    // What is not known to have been written may be there all the same.
    let found = meta::read(connection, &names.meta(), namespace)?.intake;
    let Some(first) = found else {
        written?;
        return Ok(id);
    };
    tracing::info!(
        id = first,
        "recorded the topic id of the main intake; a topic that is created again will be recognised"
    );
    Ok(first)
}

fn read(connection: &Connection, names: &Names, request: &Request) -> Result<Meta, Error> {
    match meta::read(connection, &names.meta(), &request.namespace) {
        Err(meta::Error::Missing { .. }) => Ok(Meta::default()),
        other => Ok(other?),
    }
}

fn ladder_of(request: &Request, plan: &LadderInForce) -> Result<Ladder, Error> {
    let ladder = Ladder::new(&plan.holds, &plan.draining, request.lead_max)?;
    ladder.check(request.horizon)?;
    Ok(ladder)
}

fn sorted(holds: &[Millis]) -> Vec<Millis> {
    let mut holds = holds.to_vec();
    holds.sort_unstable();
    holds
}

fn same_lanes(request: &Request, in_force: &LadderInForce) -> Result<(), Error> {
    match request.lanes {
        Some(requested) if requested != in_force.lanes => Err(Error::Lanes {
            namespace: request.namespace.clone(),
            requested,
            in_force: in_force.lanes,
        }),
        _ => Ok(()),
    }
}

/// What would be in force after this request. `left`: the lanes that the topics show where nothing is in force. Pure.
pub(super) fn next(
    request: &Request,
    left: Option<u16>,
    before: Option<&LadderInForce>,
    live: usize,
) -> Result<LadderInForce, Error> {
    let requested = request.holds.as_deref().map(sorted);
    let Some(before) = before else {
        let holds = requested.unwrap_or_else(|| Preset::default().holds());
        let lanes = request.lanes.or(left).unwrap_or(LANES_DEFAULT);
        return Ok(LadderInForce { lanes, holds, draining: Vec::new() });
    };
    same_lanes(request, before)?;
    let Some(holds) = requested.filter(|holds| *holds != before.holds) else {
        return Ok(before.clone());
    };
    if live > 0 {
        let (namespace, requested) = (request.namespace.clone(), holds_text(&holds));
        return Err(Error::Live { namespace, members: live, requested });
    }
    let old: BTreeSet<Millis> = before.holds.iter().chain(&before.draining).copied().collect();
    let draining = old.into_iter().filter(|hold| !holds.contains(hold)).collect();
    Ok(LadderInForce { lanes: before.lanes, holds, draining })
}

/// Whether tasks are in force after this request. `before`: the version in force. Pure.
pub(super) fn next_tasks(
    request: &Request,
    before: Option<u32>,
    live: usize,
) -> Result<bool, Error> {
    if before.is_some() || !request.tasks {
        return Ok(before.is_some());
    }
    if live > 0 {
        return Err(Error::LiveForTasks { namespace: request.namespace.clone(), members: live });
    }
    Ok(true)
}

/// Takes tiers off the list in which nothing is pending; only while nobody reads by the old list.
fn drain(
    connection: &Connection,
    names: &Names,
    request: &Request,
    plan: &mut LadderInForce,
    live: usize,
) -> Result<(Vec<Millis>, Vec<Millis>), Error> {
    let mut empty = Vec::new();
    for &hold in &plan.draining {
        if nothing_pending(connection, &names.tier(hold), plan.lanes, &request.namespace)? {
            empty.push(hold);
        }
    }
    if live > 0 {
        return Ok((Vec::new(), empty));
    }
    plan.draining.retain(|hold| !empty.contains(hold));
    Ok((empty, Vec::new()))
}

/// Whether the group has finished every record of a topic: none can be read from where it stands, and none can
/// still appear.
fn nothing_pending(
    connection: &Connection,
    topic: &str,
    lanes: u16,
    group: &str,
) -> Result<bool, Error> {
    let what = format!("find out what is pending in {topic}");
    let mut reader =
        TopicReader::in_group(connection, ("waterclock-topics", group), Isolation::Committed, WAIT)
            .map_err(failed(what.clone()))?;
    let read = unfinished(&mut reader, topic, lanes);
    read.or_else(|error| match error {
        // Nothing is known of what did not answer.
        ReadError::Silent { .. } => Ok(false),
        error => Err(failed(format!("{what}: {error}"))(error.into_kafka())),
    })
}

/// As [`nothing_pending`].
fn unfinished(reader: &mut TopicReader, topic: &str, lanes: u16) -> Result<bool, ReadError> {
    let lanes = || 0..i32::from(lanes);
    let committed = reader.committed(topic, lanes(), ANSWER_MAX).map_err(|source| {
        let at = RecordPosition { topic: topic.to_owned(), partition: 0, offset: None };
        ReadError::kafka(at, source)
    })?;
    let ends = |end| reader.offsets(topic, lanes(), end, ANSWER_MAX);
    // The stable ends come last: a record that is appended in between is not taken for an open transaction.
    let (first, last, stable) = (ends(End::First)?, ends(End::Last)?, ends(End::Stable)?);
    let mut open = Vec::new();
    for lane in lanes() {
        let of = |ends: &BTreeMap<i32, Offset>| ends.get(&lane).copied().unwrap_or_default();
        // A transaction that a crash left open: it may yet be committed.
        if of(&stable) < of(&last) {
            return Ok(false);
        }
        let next = committed.get(&lane).copied().flatten().unwrap_or_default();
        let from = StartAt::Offset(next.max(of(&first)));
        open.push(Span { partition: lane, from, to: of(&last) });
    }
    // What is left may be the marks of transactions alone, which only a reader can tell from records.
    let until = Patience::by(Instant::now() + LOOK_MAX);
    let read = reader.read(topic, open, until, |_| Ok::<_, ReadError>(ControlFlow::Break(())))?;
    Ok(read == Ended::Whole)
}
