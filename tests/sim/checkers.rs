//! The promises of design 1, stated once and from outside: over the logs as a `read_committed` reader sees them.
//!
//! Nothing here asks the engine. Memory is watched while the run is on (`member.rs`), as logs do not show it.

mod cancellations;
mod timers;

use std::collections::{BTreeMap, BTreeSet};

use waterclock::engine::timers::{Change, TimerKey};
use waterclock::engine::{Offset, Record, Tracking};

use crate::broker::{Entry, Place};
use crate::member::number_of;
use crate::workload::{Fate, Submission, TARGETS, WIDENED, java_partition};
use crate::world::World;

/// `settle`: what was readable this long before it was due is delivered in order.
const SETTLE_MS: u64 = 50;
/// A record that expires while its commit is on its way may arrive that much later, once it was let go in time.
const EXPIRY_SLACK_MS: u64 = 2_000;

/// How far two brokers' clocks are apart, at most, with what they step.
const CLOCKS_MS: u64 = 300_000;

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
const ERROR: [&str; 6] = [
    "x-delay-error-code", "x-delay-error-detail", "x-delay-error-topic", "x-delay-error-partition",
    "x-delay-error-offset", "x-delay-error-timestamp",
];

type Header = (Vec<u8>, Option<Vec<u8>>);

/// One record in a target or among the dead letters.
pub struct Arrival<'a> {
    /// `None`: a dead letter.
    target: Option<&'static str>,
    partition: i32,
    offset: Offset,
    appended: u64,
    /// When it was there for good, in the order of all that happened.
    moment: u64,
    record: &'a Record,
}

/// A submission that Kafka acknowledged and whose transaction, if any, committed.
struct Accepted<'a> {
    number: usize,
    submission: &'a Submission,
    place: Place,
    offset: Offset,
    appended: u64,
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
    let view = view(world, &mut found);
    never_early(&view, &mut found);
    never_lost(world, &view, &mut found);
    exactly_once(world, &view, &mut found);
    bytes(&view, &mut found);
    fates(&view, &mut found);
    dead_letters(world, &view, &mut found);
    match world.plan.setup.limits.tracking {
        Tracking::Full => timers::check(world, &view, &mut found),
        Tracking::Cancellations => cancellations::check(world, &view, &mut found),
    }
    if world.plan.healthy() {
        in_order(&view, &mut found);
    }
    if let Some(late_max) = world.plan.late_max {
        on_time(world, &view, late_max, &mut found);
    }
    drop(view);
    for (promise, what) in found {
        world.breach(promise, what);
    }
}

type Found = Vec<(&'static str, String)>;

fn ledger(world: &World, topic: usize) -> impl Iterator<Item = (i32, Offset, &Entry, &Record)> {
    let partitions = world.broker.topics[topic].partitions.iter().enumerate();
    partitions.flat_map(|(partition, log)| {
        log.ledger().filter_map(move |(offset, entry)| {
            Some((partition as i32, offset, entry, entry.record.as_ref()?))
        })
    })
}

fn view<'a>(world: &'a World, found: &mut Found) -> View<'a> {
    let mut accepted = Vec::new();
    for (number, submission) in world.workload.submissions.iter().enumerate() {
        let Some(&(place, offset)) = world.accepted.get(&number) else { continue };
        let committed = world.broker.partition(place).and_then(|log| log.read(offset));
        if let Some(entry) = committed {
            let appended = entry.appended.0;
            accepted.push(Accepted { number, submission, place, offset, appended });
        }
    }
    let known: BTreeSet<usize> = accepted.iter().map(|accepted| accepted.number).collect();
    let mut arrivals: BTreeMap<usize, Vec<Arrival<'a>>> = BTreeMap::new();
    let targets = TARGETS.iter().map(|(name, ..)| (Some(*name), world.broker.topic(name)));
    let dead = world.broker.topic(&world.plan.setup.topics.dead());
    for (target, topic) in targets.chain([(None, dead)]) {
        let Some(topic) = topic else { continue };
        for (partition, offset, entry, record) in ledger(world, topic) {
            let number = number_of(record).map(|number| number as usize);
            let Some(number) = number.filter(|number| known.contains(number)) else {
                found.push((
                    "no phantom",
                    format!("n={number:?} in {target:?} was never submitted"),
                ));
                continue;
            };
            let appended = entry.appended.0;
            let moment = world.broker.moment_of(entry);
            let arrival = Arrival { target, partition, offset, appended, moment, record };
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

/// Promise 1.
fn never_early(view: &View<'_>, found: &mut Found) {
    for (accepted, arrival) in view.deliveries() {
        if arrival.appended < accepted.due() {
            let early = accepted.due() - arrival.appended;
            found.push(("never early", format!("n={} is {early} ms early", accepted.number)));
        }
    }
}

/// Promise 2: everything arrived somewhere, and nothing is pending.
fn never_lost(world: &World, view: &View<'_>, found: &mut Found) {
    for accepted in &view.accepted {
        // What became of a timer is looked into by itself.
        if view.of(accepted).is_empty() && accepted.submission.timer.is_none() {
            let Accepted { number, place, offset, .. } = accepted;
            found.push((
                "never lost",
                format!("n={number} of {place:?} {offset:?} arrived nowhere"),
            ));
        }
    }
    for &topic in &world.lane_topics {
        let mut last: BTreeMap<i32, Offset> = BTreeMap::new();
        ledger(world, topic).for_each(|(partition, offset, ..)| {
            last.insert(partition, offset);
        });
        for (partition, last) in last {
            let place = Place { topic, partition };
            let committed = world.broker.committed(&[place]);
            let done =
                matches!(&committed, Ok(of) if of[0].as_ref().is_some_and(|p| p.next > last.0));
            if !done {
                let name = &world.broker.topics[topic].name;
                let what =
                    format!("{name} {partition} ends at {last:?} and stands at {committed:?}");
                found.push(("never lost", what));
            }
        }
    }
}

/// Promise 3: once; in `at_least_once` more often only where a crash had it in flight.
fn exactly_once(world: &World, view: &View<'_>, found: &mut Found) {
    for accepted in &view.accepted {
        let times = view.of(accepted).len();
        let excused =
            !world.plan.exactly_once() && world.exposed.contains(&(accepted.number as u32));
        if times > 1 && !excused {
            found.push(("exactly once", format!("n={} arrived {times} times", accepted.number)));
        }
    }
}

/// Promise 4: by due time, then in the order of submission, for one key and one partition of a target.
fn in_order(view: &View<'_>, found: &mut Found) {
    let mut lines: BTreeMap<_, Vec<(Offset, u64, Offset, usize)>> = BTreeMap::new();
    for (accepted, arrival) in view.deliveries() {
        let submission = accepted.submission;
        let counts = submission.topic == 0
            && submission.own_lane
            && submission.transaction.is_none()
            && accepted.due() >= accepted.appended + SETTLE_MS * 2;
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

/// What `<ns>.timers` said of a timer, and when that was there for good.
struct Said {
    moment: u64,
    appended: u64,
    change: Change,
}

fn said(world: &World, found: &mut Found) -> BTreeMap<TimerKey, Vec<Said>> {
    let mut said: BTreeMap<TimerKey, Vec<Said>> = BTreeMap::new();
    for (partition, offset, entry, record) in ledger(world, world.timers_topic) {
        match Change::decode(record.key(), record.value()) {
            Ok(change) => {
                let (moment, appended) = (world.broker.moment_of(entry), entry.appended.0);
                said.entry(change.name()).or_default().push(Said { moment, appended, change });
            }
            Err(error) => {
                found.push(("timers", format!("{offset:?} of lane {partition}: {error:?}")));
            }
        }
    }
    said
}

/// A void version is not forgotten before its time.
fn forgotten_in_time(said: &BTreeMap<TimerKey, Vec<Said>>, found: &mut Found) {
    for (timer, of_timer) in said {
        let mut until = None;
        for said in of_timer {
            match &said.change {
                Change::Void(void) => until = Some(void.until.0),
                Change::ForgottenVoid(_) => {
                    if until.take().is_some_and(|until| until > said.appended + CLOCKS_MS) {
                        found.push(("cancelled", format!("{timer:?} is forgotten too early")));
                    }
                }
                Change::Timer(_) | Change::ForgottenTimer(_) => {}
            }
        }
    }
}

/// Promise 5: the user's bytes, nothing else but what was asked for, in the right partition.
fn bytes(view: &View<'_>, found: &mut Found) {
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
        None => want.retain(|header| !is(header, &["x-delay-state"])),
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

/// Promises 2, 5, 8 and 9: it ended as the contract says, where the contract says.
fn fates(view: &View<'_>, found: &mut Found) {
    for accepted in &view.accepted {
        let submission = accepted.submission;
        for arrival in view.of(accepted) {
            let code = code_of(arrival);
            let right = submission.fates.iter().any(|fate| match fate {
                Fate::Dead(wanted) => arrival.target.is_none() && code.as_deref() == Some(*wanted),
                Fate::Deliver { target, partition } => {
                    arrival.target == Some(*target) && in_partition(accepted, arrival, *partition)
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
                && expires.is_some_and(|at| arrival.appended > at + EXPIRY_SLACK_MS * 30)
            {
                found.push(("as agreed", format!("n={} arrived expired", accepted.number)));
            }
        }
    }
}

/// A header's value as text.
fn told(arrival: &Arrival<'_>, name: &str) -> Option<String> {
    let (_, value) = arrival.record.headers().find(|(known, _)| *known == name.as_bytes())?;
    Some(String::from_utf8_lossy(value?).into_owned())
}

fn code_of(arrival: &Arrival<'_>) -> Option<String> {
    told(arrival, "x-delay-error-code")
}

/// Promise 8: a dead letter says where its record stood, and there it stands.
fn dead_letters(world: &World, view: &View<'_>, found: &mut Found) {
    for accepted in &view.accepted {
        for arrival in view.of(accepted).iter().filter(|arrival| arrival.target.is_none()) {
            if origin(world, arrival)
                != Some((accepted.number as u32, told(arrival, "x-delay-error-timestamp")))
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
fn origin(world: &World, arrival: &Arrival<'_>) -> Option<(u32, Option<String>)> {
    let topic = world.broker.topic(&told(arrival, "x-delay-error-topic")?)?;
    let partition = told(arrival, "x-delay-error-partition")?.parse().ok()?;
    let offset = Offset(told(arrival, "x-delay-error-offset")?.parse().ok()?);
    let entry = world.broker.partition(Place { topic, partition })?.read(offset)?;
    Some((number_of(entry.record.as_ref()?)?, Some(entry.appended.0.to_string())))
}

fn in_partition(accepted: &Accepted<'_>, arrival: &Arrival<'_>, asked: Option<i32>) -> bool {
    let count = TARGETS.iter().find(|(name, ..)| Some(*name) == arrival.target).map_or(1, |t| t.1);
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

/// Promise 10, while nothing goes wrong, or nothing but a record that is refused.
fn on_time(world: &World, view: &View<'_>, late_max: u64, found: &mut Found) {
    for (accepted, arrival) in view.deliveries() {
        let submission = accepted.submission;
        // A tier does not let go before its time, and a user's transaction hides what it has.
        let hold = world.plan.hold_of(submission.topic);
        let earliest = accepted.due().max(accepted.appended + hold);
        let late = arrival.appended.saturating_sub(earliest);
        if submission.transaction.is_none() && late > late_max {
            found.push(("on time", format!("n={} is {late} ms late", accepted.number)));
        }
    }
}
