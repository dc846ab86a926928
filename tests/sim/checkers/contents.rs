//! Promises 5, 8 and 9: what arrives is what was sent, where it was asked for, or a dead letter that says why and whence.

use std::collections::BTreeSet;

use waterclock::engine::header::Code;
use waterclock::engine::{Limits, Offset, Record};

use super::{Accepted, Arrival, Found, View};
use crate::broker::Place;
use crate::member::number_of;
use crate::workload::{Fate, TARGETS, WIDENED, hostile, java_partition};
use crate::world::World;

/// A record that expires while its commit is on its way may arrive that much later, once it was let go in time.
const EXPIRY_SLACK_MS: u64 = 60_000;

/// Every header of the contract, which is gone at delivery.
#[rustfmt::skip]
const CONTROL: [&str; 13] = [
    "x-delay", "x-delay-until", "x-delay-target", "x-delay-id", "x-delay-action", "x-delay-partition",
    "x-delay-expires", "x-delay-label", "x-delay-trace", "x-delay-state", "x-delay-due", "x-delay-fired",
    "x-delay-attempt",
];
/// What a trace adds; the id only if there is one.
const TRACE: [&str; 4] = ["x-delay-due", "x-delay-fired", "x-delay-id", "x-delay-attempt"];
/// What a dead letter has at the end.
#[rustfmt::skip]
const ERROR: [&str; 7] = [
    "x-delay-error-code", "x-delay-error-detail", "x-delay-error-topic", "x-delay-error-partition",
    "x-delay-error-offset", "x-delay-error-timestamp", "x-delay-error-intake",
];

type Header = (Vec<u8>, Option<Vec<u8>>);

/// Promise 5: the user's bytes, nothing else but what was asked for, in the right partition.
pub(super) fn bytes(view: &View<'_>, found: &mut Found) {
    for accepted in &view.accepted {
        let sent = &accepted.submission.record;
        for arrival in view.of(accepted) {
            let got = arrival.record;
            let same = (got.key(), got.value()) == (sent.key(), sent.value());
            if !same || !headers_match(accepted, arrival) {
                let what = format!("n={}: sent {sent:?}, got {got:?}", accepted.number);
                found.push(("your bytes", what));
            }
        }
    }
}

fn headers(record: &Record) -> Vec<Header> {
    record.headers().map(|(name, value)| (name.to_vec(), value.map(<[u8]>::to_vec))).collect()
}

fn headers_match(accepted: &Accepted<'_>, arrival: &Arrival<'_>) -> bool {
    let submission = accepted.submission;
    let mut got = headers(arrival.record);
    let mut want = headers(&submission.record);
    let is = |header: &Header, names: &[&str]| names.iter().any(|name| name.as_bytes() == header.0);
    let has_id = want.iter().any(|header| is(header, &["x-delay-id"]));
    let added: Vec<&str> = match arrival.target {
        None => ERROR.to_vec(),
        Some(_) if submission.trace => {
            TRACE.into_iter().filter(|name| has_id || *name != "x-delay-id").collect()
        }
        Some(_) => Vec::new(),
    };
    match arrival.target {
        None => want.retain(|header| {
            let stays = header.1.as_deref().is_some_and(hostile::is_of_task);
            stays || !is(header, &["x-delay-state"])
        }),
        Some(_) => want.retain(|header| !is(header, &CONTROL)),
    }
    let tail = got.split_off(want.len().min(got.len()));
    got == want
        && tail.len() == added.len()
        && tail
            .iter()
            .zip(&added)
            .all(|(header, name)| is(header, &[name]) && added_fits(accepted, header))
}

/// Whether what a trace says is true.
fn added_fits(accepted: &Accepted<'_>, (name, value): &Header) -> bool {
    let number = || std::str::from_utf8(value.as_deref()?).ok()?.parse::<u64>().ok();
    match name.as_slice() {
        b"x-delay-due" => number() == Some(accepted.due()),
        b"x-delay-fired" => number().is_some_and(|fired| fired >= accepted.due()),
        b"x-delay-attempt" => number() == Some(1),
        _ => value.is_some(),
    }
}

/// Promises 2, 5, 8 and 9: it ended as the contract says, where the contract says. The codes of all dead letters.
pub(super) fn fates(world: &World, view: &View<'_>, found: &mut Found) -> BTreeSet<&'static str> {
    let mut codes = BTreeSet::new();
    for accepted in &view.accepted {
        let submission = accepted.submission;
        for arrival in view.of(accepted) {
            let code = code_of(arrival);
            let known = code.as_deref().and_then(|code| code.parse::<Code>().ok());
            codes.extend(known.map(Code::as_str));
            // A record with an id may be one too many, whichever timers took the places.
            let is_too_many = code.as_deref() == Some("too_many_timers")
                && submission.timer.is_some()
                && world.plan.setup.limits.tracked_max < Limits::default().tracked_max;
            let right = is_too_many
                || submission.fates.iter().any(|fate| match fate {
                    Fate::Dead(wanted) => {
                        arrival.target.is_none() && code.as_deref() == Some(*wanted)
                    }
                    Fate::Deliver { target, partition } => {
                        arrival.target == Some(*target)
                            && in_partition(accepted, arrival, *partition)
                    }
                });
            if !right {
                let (target, partition) = (arrival.target, arrival.partition);
                let what = format!(
                    "n={} ended in {target:?} {partition} {code:?}; want {:?}",
                    accepted.number, submission.fates
                );
                found.push(("as agreed", what));
            }
            let expires = submission.expires.map(|when| when.due(accepted.appended));
            if arrival.target.is_some()
                && expires.is_some_and(|at| arrival.appended > at + expiry_slack(world))
            {
                found.push(("as agreed", format!("n={} arrived expired", accepted.number)));
            }
        }
    }
    codes
}

/// How late an expired record may stand in its target: nothing where that is aborted; what clocks are not known to where the
/// append time is not told; and where nothing can be aborted, as long as a request may be on its way.
pub(super) fn expiry_slack(world: &World) -> u64 {
    match (world.plan.exactly_once(), world.plan.stamped) {
        (true, true) => 0,
        (true, false) => world.clocks_apart() + world.plan.lag_max,
        (false, _) => EXPIRY_SLACK_MS + world.clocks_apart(),
    }
}

/// A header's value as text; of names that are there twice the last one counts.
pub(super) fn told(record: &Record, name: &str) -> Option<String> {
    let (_, value) = record.headers().filter(|(known, _)| *known == name.as_bytes()).last()?;
    Some(String::from_utf8_lossy(value?).into_owned())
}

pub(super) fn code_of(arrival: &Arrival<'_>) -> Option<String> {
    told(arrival.record, "x-delay-error-code")
}

/// Where a dead letter says that its record stood.
pub(super) fn stood(world: &World, record: &Record) -> Option<(Place, Offset)> {
    let topic = world.broker.topic(&told(record, "x-delay-error-topic")?)?;
    let partition = told(record, "x-delay-error-partition")?.parse().ok()?;
    let offset = Offset(told(record, "x-delay-error-offset")?.parse().ok()?);
    Some((Place { topic, partition }, offset))
}

/// Promise 8: a dead letter says where its record stood, and there it stands.
pub(super) fn dead_letters(world: &World, view: &View<'_>, found: &mut Found) {
    for accepted in &view.accepted {
        for arrival in view.of(accepted).iter().filter(|arrival| arrival.target.is_none()) {
            if origin(world, accepted, arrival)
                != Some((accepted.number as u32, told(arrival.record, "x-delay-error-timestamp")))
            {
                found.push((
                    "dead letters",
                    format!("n={} does not say where it stood", accepted.number),
                ));
            }
        }
    }
}

/// Which submission stands where a dead letter says, and since when.
fn origin(
    world: &World,
    accepted: &Accepted<'_>,
    arrival: &Arrival<'_>,
) -> Option<(u32, Option<String>)> {
    let (place, offset) = stood(world, arrival.record)?;
    let entry = world.broker.partition(place)?.read(offset)?;
    let own = (place, offset) == (accepted.place, accepted.offset);
    let number = match number_of(entry.record.as_ref()?) {
        None if own => accepted.number as u32,
        number => number?,
    };
    Some((number, Some(entry.appended.0.to_string())))
}

fn in_partition(accepted: &Accepted<'_>, arrival: &Arrival<'_>, asked: Option<i32>) -> bool {
    let mut all = TARGETS.iter().chain(&hostile::TARGETS);
    let count = all.find(|(name, ..)| Some(*name) == arrival.target).map_or(1, |t| t.1);
    match (asked, accepted.submission.record.key()) {
        (Some(asked), _) => arrival.partition == asked,
        (None, Some(key)) => {
            let widened = (arrival.target == Some(WIDENED.0)).then_some(WIDENED.1);
            let of = |count: usize| java_partition(key, count as u32) == arrival.partition;
            of(count) || widened.is_some_and(of)
        }
        (None, None) => true,
    }
}
