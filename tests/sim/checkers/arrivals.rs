//! Promises 1, 2, 3 and 10: what arrives, when, and how often.

use std::collections::{BTreeMap, BTreeSet};

use waterclock::engine::Offset;
use waterclock::engine::window::{OffsetState, Window};

use super::{Accepted, Found, View, ledger};
use crate::broker::{Place, Time};
use crate::member::number_of;
use crate::plan::{Kind, SECOND};
use crate::workload::{TARGETS, hostile};
use crate::world::World;

/// A record that was let go before its target's clock stepped back may be that long on its way: its process may stand still.
const ON_ITS_WAY: Time = 60 * SECOND;

/// Promise 1. In `at_least_once`, and where append times are not told, what a clock's step back makes early was on its way, or
/// was let go before anyone can have seen the step.
pub(super) fn never_early(world: &World, view: &View<'_>, found: &mut Found) {
    for (accepted, arrival) in view.deliveries() {
        let early = accepted.due().saturating_sub(arrival.appended);
        let steps = world.stepped_back.iter().filter(|(node, at, _)| {
            !(world.plan.exactly_once() && world.plan.stamped)
                && *node == arrival.node
                && (*at..at + ON_ITS_WAY).contains(&arrival.at)
        });
        if early > steps.map(|(_, _, by)| by).sum() {
            found.push(("never early", format!("n={} is {early} ms early", accepted.number)));
        }
    }
}

/// Promise 2: everything arrived somewhere, or it was deleted under us and that was said.
pub(super) fn never_lost(world: &World, view: &View<'_>, found: &mut Found) {
    let copies = copies(world);
    for accepted in &view.accepted {
        let Accepted { number, place, offset, .. } = accepted;
        // What became of a timer is looked into by itself.
        if !view.of(accepted).is_empty() || accepted.submission.timer.is_some() {
            continue;
        }
        let stood = copies.get(number).map_or(&[][..], Vec::as_slice);
        let among = |spans: &[(Place, Offset, Offset)]| {
            stood.iter().any(|(place, offset)| {
                spans.iter().any(|(of, from, to)| of == place && (from..to).contains(&offset))
            })
        };
        if !among(&world.deleted) {
            let what = format!("n={number} of {place:?} {offset:?} arrived nowhere");
            found.push(("never lost", what));
        } else if !among(&world.told_lost) {
            found.push(("never silent", format!("n={number} was deleted, and nobody said so")));
        }
    }
    for (place, from, to) in &world.told_lost {
        if !world.deleted.iter().any(|(of, first, last)| of == place && first < to && from < last) {
            let what = format!("{place:?} {from:?} to {to:?} is said to be lost, and is not");
            found.push(("never silent", what));
        }
    }
}

/// Where each submission ever stood in a lane topic, even if its transaction's markers are still on their way.
fn copies(world: &World) -> BTreeMap<usize, Vec<(Place, Offset)>> {
    let mut copies: BTreeMap<usize, Vec<(Place, Offset)>> = BTreeMap::new();
    for &topic in &world.lane_topics {
        let count = world.broker.topics[topic].partitions.len() as i32;
        for place in (0..count).map(|partition| Place { topic, partition }) {
            for (offset, record) in world.broker.decided_records(place) {
                if let Some(number) = number_of(record) {
                    copies.entry(number as usize).or_default().push((place, offset));
                }
            }
        }
    }
    copies
}

/// Promise 2, while anything may still go wrong: what did not arrive stands in a topic, and is not said to be done.
pub(super) fn still_stands(world: &World, view: &View<'_>, found: &mut Found) {
    let copies = copies(world);
    let mut windows: BTreeMap<Place, BTreeSet<Offset>> = BTreeMap::new();
    for accepted in &view.accepted {
        if !view.of(accepted).is_empty() || accepted.submission.timer.is_some() {
            continue;
        }
        let stood = copies.get(&accepted.number).map_or(&[][..], Vec::as_slice);
        let arrives = || {
            targets(world).any(|place| {
                world
                    .broker
                    .decided_records(place)
                    .any(|(_, record)| number_of(record) == Some(accepted.number as u32))
            })
        };
        let stands = stood.iter().any(|(place, offset)| {
            let log_start = world.broker.partition(*place).map_or(Offset(0), |log| log.start());
            let is_pending =
                windows.entry(*place).or_insert_with(|| pending(world, *place)).contains(offset);
            *offset >= log_start && is_pending
        });
        if !stands && !arrives() {
            let what = format!("n={} arrived nowhere and stands nowhere", accepted.number);
            found.push(("never lost", what));
        }
    }
}

/// Every partition of every target, and those of the dead letters.
fn targets(world: &World) -> impl Iterator<Item = Place> {
    let dead = world.plan.setup.topics.dead();
    let names = TARGETS.iter().chain(&hostile::TARGETS).map(|(name, ..)| *name).collect::<Vec<_>>();
    let topics = names.into_iter().map(|name| world.broker.topic(name));
    let topics: Vec<usize> = topics.chain([world.broker.topic(&dead)]).flatten().collect();
    topics.into_iter().flat_map(|topic| {
        let count = world.broker.topics[topic].partitions.len() as i32;
        (0..count).map(move |partition| Place { topic, partition })
    })
}

/// The records of a partition that are not said to be done.
fn pending(world: &World, place: Place) -> BTreeSet<Offset> {
    let all = || world.broker.decided_records(place).map(|(offset, _)| offset);
    let Some(position) = world.decided_position(place) else { return all().collect() };
    let Ok(mut window) = Window::load(Offset(position.next), &position.metadata) else {
        return BTreeSet::new();
    };
    let ahead = all().filter(|offset| offset.0 >= position.next);
    ahead.filter(|offset| window.begin(*offset).state != OffsetState::Done).collect()
}

/// Promise 2: nothing is pending.
pub(super) fn all_is_done(world: &World, found: &mut Found) {
    for &topic in &world.lane_topics {
        let mut last: BTreeMap<i32, Offset> = BTreeMap::new();
        ledger(world, topic).for_each(|(partition, offset, ..)| {
            last.insert(partition, offset);
        });
        for (partition, last) in last {
            let place = Place { topic, partition };
            let committed = world.position(place);
            let start = world.broker.partition(place).map_or(Offset(0), |log| log.start());
            // Where retention cut the log, the remaining records may be done already: then nothing is committed until
            // something comes.
            let cut = committed.as_ref().is_some_and(|position| position.next < start.0);
            let deleted = world.plan.kind == Kind::Retention && (cut || start > last);
            if !deleted && committed.as_ref().is_none_or(|position| position.next <= last.0) {
                let name = &world.broker.topics[topic].name;
                let what =
                    format!("{name} {partition} ends at {last:?} and stands at {committed:?}");
                found.push(("never lost", what));
            }
        }
    }
}

/// Promise 3: once; in `at_least_once` more often only where a crash had it in flight.
pub(super) fn exactly_once(world: &World, view: &View<'_>, found: &mut Found) {
    for accepted in &view.accepted {
        let times = view.of(accepted).len();
        // A record that was cut has lost its number: nobody saw that it was in flight.
        let is_cut = accepted.submission.hostile
            && view.of(accepted).iter().all(|arrival| arrival.target.is_none());
        let excused = !world.plan.exactly_once()
            && (is_cut || world.exposed.contains(&(accepted.number as u32)));
        if times > 1 && !excused {
            found.push(("exactly once", format!("n={} arrived {times} times", accepted.number)));
        }
    }
}

/// Promise 10, while nothing goes wrong, or nothing but a record that is refused.
pub(super) fn on_time(world: &World, view: &View<'_>, late_max: u64, found: &mut Found) {
    for (accepted, arrival) in view.deliveries() {
        let submission = accepted.submission;
        if submission.hostile {
            continue;
        }
        // A tier does not let go before its time, and a user's transaction hides what it has.
        let hold = world.plan.hold_of(submission.topic);
        let earliest = accepted.due().max(accepted.appended + hold);
        let late = arrival.appended.saturating_sub(earliest);
        if submission.transaction.is_none() && late > late_max {
            found.push(("on time", format!("n={} is {late} ms late", accepted.number)));
        }
    }
}
