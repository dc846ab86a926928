//! What goes to topics: each record once, not before it is due, not while somebody has paused its topic or its project, and no faster
//! than the rate of its topic.

use std::collections::BTreeMap;

use waterclock::engine::timers::TimerState;
use waterclock::engine::{UnixMillis, header};

use crate::broker::{EPOCH_MS, Entry, Time};
use crate::checkers::contents::{expiry_slack, told};
use crate::checkers::{Found, ledger};
use crate::plan::SECOND;
use crate::world::{World, plain_value};

/// Nothing is delivered later than this where all is well with lanes.
const LATE_MAX: Time = SECOND;
/// Who asks for a task later than that before it is due does not ask in time for that.
const IN_TIME: Time = 5 * SECOND;
/// A pause is in force within this.
const IN_FORCE: Time = 2 * SECOND;
/// Where all goes wrong with lanes, a batch may be on its way for so long.
const ON_ITS_WAY_MAX: Time = 90 * SECOND;
/// What waits in tiers for a topic has come up within this, and what is due later waits for it.
const COMES_UP_WITHIN: Time = 40 * SECOND;

/// Of the bytes that a project has for topics so many come up again in a second, and the tiers that they wait in are up to three
/// times as long as that takes.
const BYTES_PER_SECOND: usize = (4 << 20) / 3;

/// Of a task's body the first bytes are its id.
const ID_BYTES: usize = 32;

/// What is to go to a topic.
struct Item<'a> {
    name: String,
    /// How long its value is.
    bytes: usize,
    at: Time,
    due: Time,
    /// Somebody may have it called before it is due.
    earliest: UnixMillis,
    expires: Option<Time>,
    topic: &'static str,
    /// The project, of a task.
    project: Option<&'a str>,
    /// Whether it has to arrive.
    is_to_arrive: bool,
    /// Of a task with feedback: how often it was handed over.
    turns: Option<usize>,
}

/// When somebody held an item up, and who.
struct Stop {
    from: Time,
    to: Time,
    is_of_topic: bool,
}

pub(super) fn check(world: &World, found: &mut Found) {
    let mut items = items(world);
    let lanes_are_well = world.plan.tasks.is_some_and(|of| of.lanes_are_well);
    let mut arrived: BTreeMap<Vec<u8>, usize> = BTreeMap::new();
    let mut at_topics: BTreeMap<&str, Vec<Time>> = BTreeMap::new();
    for topic in ["t0", "t1", "later"].iter().filter_map(|name| world.broker.topic(name)) {
        for (_, _, entry, record) in ledger(world, topic) {
            let value = record.value().unwrap_or_default();
            // Shards of a run have one body.
            let value = match told(record, header::ID).filter(|id| id.starts_with("r.")) {
                Some(id) => id.into_bytes(),
                None => value.get(..ID_BYTES).unwrap_or(value).to_vec(),
            };
            let Some(item) = items.get(&value) else {
                found.push(("no phantom", format!("{record:?} was never asked for")));
                continue;
            };
            if *world.broker.topics[topic].name != *item.topic {
                found.push(("as agreed", format!("{} arrived in another topic", item.name)));
            }
            if entry.appended < item.earliest {
                found.push(("never early", format!("{} at {}", item.name, entry.appended.0)));
            }
            let slack = expiry_slack(world);
            if item.expires.is_some_and(|at| entry.appended.0 > EPOCH_MS + at + slack) {
                found.push(("expired", format!("{} at {}", item.name, entry.appended.0)));
            }
            if item.bytes != record.value().map_or(0, <[u8]>::len) {
                found.push(("your bytes", format!("{}: {} bytes", item.name, record.size())));
            }
            while_stopped(world, item, entry, found);
            let times = at_topics.entry(item.topic).or_default();
            times.push(entry.at);
            let is_first = told(record, header::ATTEMPT).is_none_or(|attempt| attempt == "1");
            if lanes_are_well && is_first {
                on_time(world, item, entry, found);
            }
            *arrived.entry(value).or_default() += 1;
        }
    }
    for (topic, times) in at_topics {
        within_rate(world, topic, times, found);
    }
    for (value, item) in std::mem::take(&mut items) {
        match (arrived.get(&value).copied().unwrap_or_default(), item.is_to_arrive) {
            (times, _) if item.turns == Some(times) => {}
            (1, true) | (0, false) => {}
            (0, true) => found.push(("never lost", format!("{} has not arrived", item.name))),
            (times, _) => {
                let what = format!("{} arrived {times} times", item.name);
                found.push(("exactly once", what));
            }
        }
    }
}

fn items(world: &World) -> BTreeMap<Vec<u8>, Item<'_>> {
    let made = |task: &usize| world.plan.only.as_ref().is_none_or(|only| only.contains(task));
    let tasks = world.tasks.drafts.iter().enumerate().filter(|(task, _)| made(task));
    let tasks = tasks.filter_map(|(task, draft)| {
        let state = world.task_now(task).map(|timer| timer.state);
        let item = Item {
            name: format!("task {task}"),
            bytes: draft.body.len(),
            at: draft.at,
            due: draft.due,
            expires: draft.expires,
            earliest: world.due_of(task),
            topic: draft.topic?,
            project: Some(draft.spec.project()),
            is_to_arrive: state == Some(TimerState::Delivered),
            turns: draft.spec.feedback().map(|_| turns(world, task)),
        };
        Some((draft.id.as_str().as_bytes().to_vec(), item))
    });
    let plains = world.tasks.plains.iter().enumerate().map(|(index, plain)| {
        let name = plain_value(index);
        let item = Item {
            name: name.clone(),
            bytes: name.len(),
            at: plain.at,
            due: plain.due,
            expires: None,
            earliest: UnixMillis(EPOCH_MS + plain.due),
            topic: plain.topic,
            project: None,
            is_to_arrive: true,
            turns: None,
        };
        (name.into_bytes(), item)
    });
    tasks.chain(plains).collect()
}

/// How often a task was dispatched.
fn turns(world: &World, task: usize) -> usize {
    let seen = world.tasks.seen.get(&task).map_or(&[][..], Vec::as_slice);
    let turns = seen.iter().filter_map(|(_, timer)| timer.task).map(|progress| progress.turn);
    turns.max().unwrap_or_default() as usize
}

impl Item<'_> {
    /// When it is held up, and by what. A pause that begins again at once may be heard of as one.
    fn stops(&self, world: &World) -> Vec<Stop> {
        let versions = &world.tasks.versions;
        let ends = versions.iter().skip(1).map(|of| of.since).chain([Time::MAX]);
        let mut stops: Vec<Stop> = Vec::new();
        for (of, to) in versions.iter().zip(ends) {
            let is_of_topic = of.registry.is_target_paused(self.topic);
            let project = self.project.map(|name| of.registry.project(name));
            let is_of_project = project.is_some_and(|of| of.paused || of.is_deleted);
            match stops.last_mut() {
                _ if !is_of_topic && !is_of_project => {}
                Some(last) if last.to + IN_FORCE >= of.since => {
                    last.to = to;
                    last.is_of_topic |= is_of_topic;
                }
                _ => stops.push(Stop { from: of.since, to, is_of_topic }),
            }
        }
        stops
    }

    /// When it has arrived at the latest where all is well.
    fn latest(&self, world: &World) -> Time {
        let mut latest = self.due + LATE_MAX;
        let drafts = world.tasks.drafts.iter().filter(|draft| draft.topic.is_some());
        let bytes: usize = drafts.map(|draft| draft.body.len()).sum();
        let of_bytes = (bytes as Time * SECOND) / BYTES_PER_SECOND as Time;
        for stop in self.stops(world) {
            if stop.from > latest {
                break;
            }
            let comes_up = if stop.is_of_topic { COMES_UP_WITHIN } else { 0 };
            // Lanes may hear of its end only then.
            if stop.to.saturating_add(IN_FORCE) > self.due {
                let put_off = (stop.to - stop.from) / 4;
                let put_off = put_off.max(SECOND).max(of_bytes).saturating_add(comes_up);
                latest = latest.max(stop.to.saturating_add(IN_FORCE + put_off + LATE_MAX));
            } else {
                latest = latest.max(stop.to + IN_FORCE + comes_up + LATE_MAX);
            }
        }
        latest
    }
}

/// Nothing goes to a topic while that is paused, or the project of the task.
fn while_stopped(world: &World, item: &Item<'_>, entry: &Entry, found: &mut Found) {
    let versions = world.tasks.versions.iter().filter(|of| of.since <= entry.at);
    let stop = |registry: &waterclock::engine::task::registry::Registry| {
        let project = item.project.map(|name| registry.project(name));
        if project.is_some_and(|of| of.is_deleted) {
            Some("deleted")
        } else if registry.is_target_paused(item.topic) || project.is_some_and(|of| of.paused) {
            Some("paused topics")
        } else {
            None
        }
    };
    let stops = versions.rev().map_while(|of| Some((of.since, stop(&of.registry)?)));
    let stops: Vec<_> = stops.collect();
    let (Some((_, promise)), Some((since, _))) = (stops.first(), stops.last()) else { return };
    let lanes_are_well = world.plan.tasks.is_some_and(|of| of.lanes_are_well);
    let slack = if lanes_are_well { 0 } else { ON_ITS_WAY_MAX };
    let late = entry.at - since;
    if late >= IN_FORCE + slack {
        let what = format!("{} goes to {} {late} ms later", item.name, item.topic);
        found.push((promise, what));
    }
}

/// In any time no more goes to a topic than comes in it at its rate, and the burst; but what was on its way before.
fn within_rate(world: &World, topic: &str, mut times: Vec<Time>, found: &mut Found) {
    let Some((rate, burst)) = limit_of(world, topic) else { return };
    // Each lane has one at least.
    let burst = u64::from(burst).max(u64::from(world.plan.setup.lanes));
    let lanes_are_well = world.plan.tasks.is_some_and(|of| of.lanes_are_well);
    let on_its_way = if lanes_are_well { LATE_MAX } else { ON_ITS_WAY_MAX };
    times.sort_unstable();
    for (first, from) in times.iter().enumerate() {
        for (more, to) in times[first..].iter().enumerate() {
            let may = burst + rate * (to - from + on_its_way) / 1_000_000;
            if more as u64 + 1 > may {
                let what = format!("{} go to {topic} from {from} to {to}: {may} may", more + 1);
                return found.push(("rates of topics", what));
            }
        }
    }
}

/// The rate of a topic, in records of 1,000 s, and its burst: they stay as they are.
fn limit_of(world: &World, topic: &str) -> Option<(u64, u32)> {
    let (rate, burst) = world.tasks.versions.first()?.registry.target(topic).limit()?;
    Some((rate.whole_per_1000_s(), burst))
}

/// What goes to a topic waits for no worker, and not for the rate of another topic.
fn on_time(world: &World, item: &Item<'_>, entry: &Entry, found: &mut Found) {
    let latest = item.latest(world).saturating_add(EPOCH_MS + world.plan.clocks_apart());
    let mut versions = world.tasks.versions.iter();
    let is_deleted = |name| versions.any(|of| of.registry.project(name).is_deleted);
    // A create that was refused may have been made good by a later one.
    let was_refused = item.project.is_some_and(is_deleted);
    let is_there = item.topic != "later";
    let has_rate = limit_of(world, item.topic).is_some();
    let is_as_asked =
        is_there && !has_rate && !was_refused && item.earliest.0 == EPOCH_MS + item.due;
    if is_as_asked && item.due >= item.at + IN_TIME && entry.appended.0 > latest {
        let late = entry.appended.0 - EPOCH_MS - item.due;
        let most = latest - EPOCH_MS - item.due;
        found.push(("on time", format!("{} is {late} ms late, {most} at most", item.name)));
    }
}
