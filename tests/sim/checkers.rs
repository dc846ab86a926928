//! The promises of `docs/reliability.md`, stated once and from outside: over the logs as a `read_committed` reader sees them,
//! or will see them (`ledger`).
//!
//! Nothing here asks the engine. Memory is watched while the run is on (`member.rs`), as logs do not show it.

mod arrivals;
mod cancellations;
mod contents;
mod order;
mod tasks;
mod timers;

use std::collections::{BTreeMap, BTreeSet};

use waterclock::engine::header::Code;
use waterclock::engine::timers::{CancelMark, Change, Timer, TimerId};
use waterclock::engine::{Offset, Record, Tracking};

use crate::broker::{Entry, Place, Time};
use crate::member::number_of;
use crate::plan::{Delivery, Fault, Kind};
use crate::workload::{Submission, TARGETS, hostile};
use crate::world::World;

/// One record in a target or among the dead letters.
pub struct Arrival<'a> {
    /// `None`: a dead letter.
    target: Option<&'static str>,
    partition: i32,
    offset: Offset,
    appended: u64,
    /// When it was there for good, in the order of all that happened.
    moment: u64,
    /// When and where it was appended, in the world's time.
    at: Time,
    node: usize,
    record: &'a Record,
}

/// A submission that Kafka acknowledged and whose transaction, if any, committed.
struct Accepted<'a> {
    number: usize,
    submission: &'a Submission,
    place: Place,
    offset: Offset,
    appended: u64,
    /// The intakes whose log is the order of what stands in it.
    prompt_topics: usize,
}

/// All that the checkers look at.
struct View<'a> {
    accepted: Vec<Accepted<'a>>,
    arrivals: BTreeMap<usize, Vec<Arrival<'a>>>,
}

/// Checks a world that has healed and had its time, and adds what it finds to the world's breaches.
pub fn check(world: &mut World) {
    if !world.breaches.is_empty() {
        return;
    }
    let mut found = Vec::new();
    if let Some(of) = world.plan.tasks {
        if of.schedules.is_some() || of.runs.is_some() {
            // All that they have submitted is to be known.
            world.follow_tasks();
        }
        tasks::check(world, &mut found);
        tasks::met(world).into_iter().for_each(|code| world.count(code));
        return found.into_iter().for_each(|(promise, what)| world.breach(promise, what));
    }
    let view = view(world, &mut found);
    let safety = world.plan.kind == Kind::Storm;
    arrivals::never_early(world, &view, &mut found);
    if safety {
        arrivals::still_stands(world, &view, &mut found);
    } else {
        arrivals::never_lost(world, &view, &mut found);
        arrivals::all_is_done(world, &mut found);
    }
    arrivals::exactly_once(world, &view, &mut found);
    contents::bytes(&view, &mut found);
    let codes = contents::fates(world, &view, &mut found);
    contents::dead_letters(world, &view, &mut found);
    match world.plan.setup.limits.tracking {
        Tracking::Full => timers::check(world, &view, &mut found),
        Tracking::Cancellations if safety => {}
        Tracking::Cancellations => cancellations::check(world, &view, &mut found),
    }
    order::check(world, &view, &mut found);
    if let Some(late_max) = world.plan.late_max {
        arrivals::on_time(world, &view, late_max, &mut found);
    }
    drop(view);
    codes.into_iter().for_each(|code| world.count(code));
    for (promise, what) in found {
        world.breach(promise, what);
    }
}

type Found = Vec<(&'static str, String)>;

/// All that is there for good in a topic. A storm ends while markers are on their way, and a node that stands still gets
/// its own last: what one partition shows may be hidden in another one, though one transaction wrote both. There what was
/// decided counts, seen or not.
fn ledger(world: &World, topic: usize) -> impl Iterator<Item = (i32, Offset, &Entry, &Record)> {
    let in_storm = world.plan.kind == Kind::Storm;
    (0..world.broker.topics[topic].partitions.len()).flat_map(move |at| {
        let (log, partition) = (&world.broker.topics[topic].partitions[at], at as i32);
        let decided = world.broker.decided_entries(Place { topic, partition });
        let decided = in_storm.then_some(decided).into_iter().flatten();
        let readable = (!in_storm).then(|| log.ledger()).into_iter().flatten();
        decided.chain(readable).filter_map(move |(offset, entry)| {
            Some((partition, offset, entry, entry.record.as_ref()?))
        })
    })
}

fn view<'a>(world: &'a World, found: &mut Found) -> View<'a> {
    let mut accepted = Vec::new();
    // Another leader of it may be behind the one before.
    let has_new_leader = world
        .plan
        .faults
        .iter()
        .any(|(_, fault)| matches!(fault, Fault::Leader { place, .. } if place.topic == 1));
    let prompt_topics = if world.stepped_back.is_empty() && !has_new_leader { 2 } else { 1 };
    for (number, submission) in world.workload.submissions.iter().enumerate() {
        let Some(&(place, offset)) = world.accepted.get(&number) else { continue };
        let committed = world.broker.partition(place).and_then(|log| log.read(offset));
        if let Some(entry) = committed {
            let appended = entry.appended.0;
            let of = Accepted { number, submission, place, offset, appended, prompt_topics };
            accepted.push(of);
        }
    }
    let placed: BTreeMap<(Place, Offset), usize> =
        accepted.iter().map(|of| ((of.place, of.offset), of.number)).collect();
    let known: BTreeSet<usize> = accepted.iter().map(|accepted| accepted.number).collect();
    let mut arrivals: BTreeMap<usize, Vec<Arrival<'a>>> = BTreeMap::new();
    let targets = TARGETS
        .iter()
        .chain(&hostile::TARGETS)
        .map(|(name, ..)| (Some(*name), world.broker.topic(name)));
    let dead = world.broker.topic(&world.plan.setup.topics.dead());
    for (target, topic) in targets.chain([(None, dead)]) {
        let Some(topic) = topic else { continue };
        for (partition, offset, entry, record) in ledger(world, topic) {
            // A cut record without its number is known by the place where it stood.
            let stood = || placed.get(&contents::stood(world, record)?).copied();
            let number = number_of(record).map(|number| number as usize).or_else(stood);
            let Some(number) = number.filter(|number| known.contains(number)) else {
                found.push((
                    "no phantom",
                    format!("n={number:?} in {target:?} was never submitted"),
                ));
                continue;
            };
            let appended = entry.appended.0;
            let moment = world.broker.moment_of(entry);
            let arrival = Arrival {
                target,
                partition,
                offset,
                appended,
                moment,
                at: entry.at,
                node: entry.node,
                record,
            };
            arrivals.entry(number).or_default().push(arrival);
        }
    }
    View { accepted, arrivals }
}

impl<'a> View<'a> {
    fn of(&self, accepted: &Accepted<'_>) -> &[Arrival<'a>] {
        self.arrivals.get(&accepted.number).map_or(&[], Vec::as_slice)
    }

    fn deliveries(&self) -> impl Iterator<Item = (&Accepted<'a>, &Arrival<'a>)> {
        self.accepted.iter().flat_map(|accepted| {
            self.of(accepted).iter().filter(|a| a.target.is_some()).map(move |a| (accepted, a))
        })
    }
}

impl Accepted<'_> {
    fn due(&self) -> u64 {
        self.submission.when.due(self.appended)
    }
}

/// What `<ns>.timers` said of a timer, and when that was there for good.
struct Said {
    moment: u64,
    appended: u64,
    change: Change,
}

/// The changes of each timer; and the changes of records that were refused before they were pending, which are about no
/// timer that anybody could cancel or see.
fn said(world: &World, found: &mut Found) -> (BTreeMap<TimerId, Vec<Said>>, Vec<Unborn>) {
    let mut said: BTreeMap<TimerId, Vec<Said>> = BTreeMap::new();
    let (mut unborn, mut last) = (Vec::new(), BTreeSet::new());
    for (partition, offset, entry, record) in ledger(world, world.timers_topic) {
        match Change::decode(record.key(), record.value()) {
            Ok(change) => {
                let (moment, appended) = (world.broker.moment_of(entry), entry.appended.0);
                let timer_id = change.timer_id();
                match &change {
                    Change::Timer(timer) if is_unborn(timer) => {
                        last.insert(timer_id);
                        let is_pending = |said: &Said| match &said.change {
                            Change::Timer(timer) => Some(!timer.state.is_final()),
                            Change::ForgottenTimer(_) => Some(false),
                            _ => None,
                        };
                        let before = said.get(&timer_id).map_or(&[][..], Vec::as_slice);
                        let over_pending = before.iter().rev().find_map(is_pending) == Some(true);
                        unborn.push(Unborn { name: timer_id, code: timer.code, over_pending });
                        continue;
                    }
                    Change::ForgottenTimer(_) if last.remove(&timer_id) => continue,
                    Change::Timer(_) => drop(last.remove(&timer_id)),
                    _ => {}
                }
                said.entry(timer_id).or_default().push(Said { moment, appended, change });
            }
            Err(error) => {
                found.push(("timers", format!("{offset:?} of lane {partition}: {error:?}")));
            }
        }
    }
    (said, unborn)
}

/// A record that was refused before it was pending, as `<ns>.timers` says it.
struct Unborn {
    name: TimerId,
    code: Option<Code>,
    /// A version of its timer was pending.
    over_pending: bool,
}

/// By its time: it is dead since before it came.
fn is_unborn(timer: &Timer) -> bool {
    timer.state.is_final() && timer.since < timer.version.first_appended && timer.code.is_some()
}

/// A cancel mark is not forgotten before its time. In `at_least_once` a batch that was given up may be appended later: what
/// it says of a mark is older than that the mark was seen.
fn forgotten_in_time(world: &World, said: &BTreeMap<TimerId, Vec<Said>>, found: &mut Found) {
    let apart = world.plan.clocks_apart();
    let may_come_late = world.plan.delivery == Delivery::AtLeastOnce;
    for (timer, of_timer) in said {
        let mut last: Option<&CancelMark> = None;
        for said in of_timer {
            match &said.change {
                Change::CancelMark(mark) => {
                    let was_seen = |last: &CancelMark| last.seen && last.before == mark.before;
                    let is_old = may_come_late && !mark.seen && last.is_some_and(was_seen);
                    last = if is_old { last } else { Some(mark) };
                }
                Change::ForgottenCancelMark(_) => {
                    if last.take().is_some_and(|mark| mark.until.0 > said.appended + apart) {
                        found.push(("cancelled", format!("{timer:?} is forgotten too early")));
                    }
                }
                Change::Timer(_)
                | Change::ForgottenTimer(_)
                | Change::Attempt(_)
                | Change::ForgottenAttempt(..)
                | Change::Definition(..)
                | Change::ForgottenDefinition(_)
                | Change::Shards(..)
                | Change::ForgottenShards(_) => {}
            }
        }
    }
}
