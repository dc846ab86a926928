//! Promise 4: the order of what arrives.

use std::collections::{BTreeMap, HashSet};

use waterclock::engine::Offset;
use waterclock::engine::timers::TimerId;

use super::{Found, View, ledger};
use crate::broker::Place;
use crate::member::number_of;
use crate::plan::{Fault, Kind};
use crate::world::World;

/// `settle`: what was readable this long before it was due is delivered in order.
const SETTLE_MS: u64 = 50;

pub(super) fn check(world: &World, view: &View<'_>, found: &mut Found) {
    match world.plan.kind {
        Kind::Healthy => in_order(view, u64::MAX, found),
        // Of what is late because of others, nobody promises an order.
        Kind::Hostile if world.plan.healthy() => in_order(view, SETTLE_MS, found),
        Kind::Strict if world.plan.exactly_once() => strictly_in_order(world, view, found),
        _ => {}
    }
}

/// Promise 4 where it was asked for: the same, whatever was late, and with everything that has an id or came by a tier.
fn strictly_in_order(world: &World, view: &View<'_>, found: &mut Found) {
    let moved = world.plan.faults.iter().any(|(_, of)| matches!(of, Fault::Leader { .. }));
    // Another leader's clock may be behind: what it stamps may have been readable too late.
    let apart = if moved { world.clocks_apart() } else { 0 };
    let late = late_cancels(view);
    let mut lines: BTreeMap<_, Vec<(Offset, u64, u64, usize)>> = BTreeMap::new();
    for (accepted, arrival) in view.deliveries() {
        let submission = accepted.submission;
        if submission.timer.is_some_and(|timer| late.contains(&timer)) {
            continue;
        }
        let in_time = accepted.due() >= accepted.appended + world.plan.settle + apart;
        let counts = submission.topic == 0
            && submission.own_lane
            && in_time
            && world.was_readable(accepted.place, accepted.offset);
        let Some(key) = submission.record.key().filter(|_| counts) else { continue };
        let of = (arrival.offset, accepted.due(), accepted.offset.0 as u64, accepted.number);
        lines.entry((arrival.target, arrival.partition, key)).or_default().push(of);
    }
    for line in lines.values_mut() {
        line.sort();
        let mut last = None;
        for &(_, due, submitted, number) in line.iter() {
            if let Some((before, first, then)) = last
                && before > (due, submitted)
            {
                if was_hidden(world, number) {
                    continue;
                }
                let what = format!("n={first} (due {then}) arrived before n={number} (due {due})");
                found.push(("strictly in order", what));
            }
            last = Some(((due, submitted), number, due));
        }
    }
}

/// Whether a transaction hid a submission in some tier on its way, for as long as such a one is waited for.
fn was_hidden(world: &World, number: usize) -> bool {
    world.lane_topics.iter().any(|&topic| {
        ledger(world, topic).any(|(partition, offset, _, record)| {
            number_of(record) == u32::try_from(number).ok()
                && !world.was_readable(Place { topic, partition }, offset)
        })
    })
}

/// Timers of which a cancel may come late: what is made again behind that may be late, too.
fn late_cancels(view: &View<'_>) -> HashSet<TimerId> {
    let cancels = view.accepted.iter().map(|of| of.submission).filter(|of| of.act.cancels());
    let late = cancels.filter(|of| of.topic != 0 || !of.own_lane);
    late.filter_map(|of| of.timer).collect()
}

/// Promise 4: by due time, then in the order of submission, for one key and one partition of a target; of what is not later
/// than this.
fn in_order(view: &View<'_>, late_max: u64, found: &mut Found) {
    let late = late_cancels(view);
    let mut lines: BTreeMap<_, Vec<(Offset, u64, Offset, usize)>> = BTreeMap::new();
    for (accepted, arrival) in view.deliveries() {
        let submission = accepted.submission;
        let counts = submission.topic == 0
            && submission.timer.is_none_or(|timer| !late.contains(&timer))
            && submission.own_lane
            && submission.transaction.is_none()
            && accepted.due() >= accepted.appended + SETTLE_MS * 2
            && arrival.appended.saturating_sub(accepted.due()) <= late_max;
        let Some(key) = submission.record.key().filter(|_| counts) else { continue };
        // One with an id may have to wait for its intake: it is late, and others pass it.
        let line = (arrival.target, arrival.partition, key, submission.timer.is_some());
        let of = (arrival.offset, accepted.due(), accepted.offset, accepted.number);
        lines.entry(line).or_default().push(of);
    }
    for line in lines.values_mut() {
        line.sort();
        for pair in line.windows(2) {
            let ((_, due, submitted, first), (_, then, later, second)) = (pair[0], pair[1]);
            if (due, submitted) > (then, later) {
                let what = format!("n={first} (due {due}) arrived before n={second} (due {then})");
                found.push(("in order", what));
            }
        }
    }
}
