//! One engine, told facts by hand: what it orders, and when. The simulation in `tests/sim` does it by the million.

mod paused;
mod rated;

use std::collections::HashMap;

use super::*;
use crate::allow::Allow;
use crate::header::{self, Code};
use crate::ladder::Ladder;
use crate::messages::{Blame, ChangeReason, Commit, Refused, Target};
use crate::murmur2;
use crate::setup::{Intake, Limits, Topics};
use crate::state::StateKey;
use crate::timers::TimerId;

const LANES: u16 = 4;
const FOUND: Target = Target::Found { partitions: 3, record_bytes_max: 1_048_588, keyed: false };

/// An engine with all lanes, and what it ordered.
struct World {
    engine: LaneEngine,
    now: UnixMillis,
    out: Vec<Action>,
    next: HashMap<Source, i64>,
}

impl World {
    fn new(holds: &[u64], limits: Limits) -> Self {
        Self::with(holds, limits, &[("", None)])
    }

    /// The same with these intakes, and their default targets.
    fn with(holds: &[u64], limits: Limits, intakes: &[(&str, Option<&str>)]) -> Self {
        let holds: Vec<Millis> = holds.iter().map(|s| Millis(s * 1_000)).collect();
        let ladder = Ladder::new(&holds, &[], Millis(2_000)).expect("a ladder");
        let allow = Allow::new("wc", Some(&["orders\\..*".to_owned()])).expect("patterns");
        let intake = |(name, target): &(&str, _)| Intake::new(name, None, *target, allow.clone());
        let topics = Topics::new("wc", intakes.iter().map(intake).collect(), ladder);
        let setup = Setup { lanes: LANES, topics, key: StateKey::new([7; 32]), limits };
        let mut world = Self {
            engine: LaneEngine::new(Arc::new(setup)),
            now: UnixMillis(1_800_000_000_000),
            out: Vec::new(),
            next: HashMap::new(),
        };
        world.tell(Event::Registry(Arc::default()));
        world.assign(&[]);
        world
    }

    fn assign(&mut self, commits: &[Commit]) {
        let topics = self.engine.setup.topics.names().len() as u16;
        let every = (0..topics).flat_map(|t| (0..LANES).map(move |l| source(t, l)));
        let starts = every.map(|source| {
            let of = commits.iter().rev().find(|commit| commit.source == source);
            let (next, metadata) =
                of.map_or((Offset(0), String::new()), |c| (c.next, c.metadata.clone()));
            Start { source, next, metadata, end: next, gone: false }
        });
        let starts = starts.collect();
        self.tell(Event::Assigned { starts });
        for lane in (0..LANES).map(Lane) {
            self.tell(Event::TimersLoaded {
                lane,
                live: Vec::new(),
                cancel_marks: Vec::new(),
                last: true,
            });
        }
    }

    fn tell(&mut self, event: Event) -> Vec<Action> {
        self.engine.step(self.now, event, &mut self.out);
        std::mem::take(&mut self.out)
    }

    /// Tells a record at the next offset of a partition, appended now.
    fn record(&mut self, source: Source, record: Record) -> Vec<Action> {
        let next = self.next.entry(source).or_default();
        let offset = Offset(*next);
        *next += 1;
        let appended = self.now;
        self.tell(Event::Record { source, offset, appended, record })
    }

    /// Tells a record of the intake with its key's lane, and answers what is asked about its target.
    fn submit(&mut self, key: &str, headers: &[(&str, &str)]) -> Vec<Action> {
        let lane = murmur2::partition(key.as_bytes(), LANES);
        let mut out = self.record(source(0, lane), record(key, headers));
        let asked: Vec<Arc<str>> = out
            .iter()
            .filter_map(|o| {
                if let Action::DescribeTarget(name) = o { Some(Arc::clone(name)) } else { None }
            })
            .collect();
        for name in asked {
            out.extend(self.tell(Event::Target(name, FOUND)));
        }
        out
    }

    fn after(&mut self, ms: u64) -> Vec<Action> {
        self.now = self.now + Millis(ms);
        self.tell(Event::Tick)
    }
}

fn source(topic: u16, lane: u16) -> Source {
    Source { topic: TopicId(topic), lane: Lane(lane) }
}

fn record(key: &str, headers: &[(&str, &str)]) -> Record {
    let headers = headers.iter().map(|(name, value)| (name.as_bytes(), Some(value.as_bytes())));
    Record::new(Some(key.as_bytes()), Some(b"value"), headers)
}

fn batch(out: Vec<Action>) -> Batch {
    let mut batches =
        out.into_iter().filter_map(|o| if let Action::Batch(b) = o { Some(b) } else { None });
    let batch = batches.next().expect("a batch");
    assert!(batches.next().is_none(), "more than one batch");
    batch
}

fn no_batch(out: &[Action]) -> bool {
    !out.iter().any(|o| matches!(o, Action::Batch(_)))
}

fn headers_of(send: &Produce) -> Vec<(String, String)> {
    let mut headers = Vec::new();
    send.headers(|name, value| {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        headers.push((text(name), value.map(text).unwrap_or_default()));
    });
    headers
}

#[test]
fn a_record_within_the_horizon_is_delivered_at_its_due_time_and_not_before() {
    let mut world = World::new(&[1, 5], Limits::default());
    world.submit("k", &[("x-delay", "1500"), ("x-delay-target", "orders.expire"), ("mine", "1")]);
    assert!(no_batch(&world.after(1_499)));
    assert_eq!(world.engine.wake_at(), Some(world.now + Millis(1)));
    let batch = batch(world.after(1));
    assert_eq!(batch.sends.len(), 1);
    assert_eq!(batch.sends[0].to, Destination::Target("orders.expire".into()));
    assert_eq!(headers_of(&batch.sends[0]), [("mine".to_owned(), "1".to_owned())]);
    assert_eq!(batch.commits.len(), 1);
    assert_eq!(batch.commits[0].next, Offset(1));
}

#[test]
fn a_partition_that_was_just_added_is_looked_for_before_it_is_refused() {
    let mut world = World::new(&[1, 5], Limits::default());
    let to = |partition| {
        [("x-delay", "10"), ("x-delay-target", "orders.expire"), ("x-delay-partition", partition)]
    };
    world.submit("k", &to("0"));
    let first = batch(world.after(10));
    world.tell(Event::Committed(first.id));
    // Somebody adds one; nobody has looked since.
    world.after(3_000);
    world.submit("k", &to("3"));
    let out = world.after(10);
    assert!(
        matches!(&out[..], [Action::DescribeTarget(name)] if &**name == "orders.expire"),
        "{out:?}"
    );
    world.submit("k", &to("4"));
    assert!(no_batch(&world.after(10)), "asked once, and both wait");
    let Target::Found { record_bytes_max, .. } = FOUND else { unreachable!() };
    let grown = Target::Found { partitions: 4, record_bytes_max, keyed: false };
    let mut out = world.tell(Event::Target("orders.expire".into(), grown));
    out.extend(world.after(0));
    let delivered = batch(out);
    let sent: Vec<_> = delivered.sends.iter().map(|send| (&send.to, send.partition)).collect();
    assert_eq!(sent[0], (&Destination::Target("orders.expire".into()), Some(3)));
    assert_eq!(sent[1].0, &Destination::Dead, "it has no fifth: {sent:?}");
}

#[test]
fn nothing_overtakes_a_record_whose_partition_is_looked_for() {
    let mut world = World::new(&[1, 5], Limits::default());
    let to = |delay, partition| {
        [("x-delay", delay), ("x-delay-target", "orders.expire"), ("x-delay-partition", partition)]
    };
    world.submit("k", &to("10", "0"));
    let first = batch(world.after(10));
    world.tell(Event::Committed(first.id));
    world.after(3_000);
    world.submit("k", &to("10", "3"));
    world.submit("k", &to("11", "0"));
    let out = world.after(10);
    assert!(matches!(&out[..], [Action::DescribeTarget(_)]), "{out:?}");
    assert!(no_batch(&world.after(10)), "the one behind it is due, too, and waits");
    let Target::Found { record_bytes_max, .. } = FOUND else { unreachable!() };
    let grown = Target::Found { partitions: 4, record_bytes_max, keyed: false };
    let mut out = world.tell(Event::Target("orders.expire".into(), grown));
    out.extend(world.after(0));
    let sent: Vec<_> = batch(out).sends.iter().map(|send| send.partition).collect();
    assert_eq!(sent, [Some(3), Some(0)]);
}

#[test]
fn what_was_written_before_the_clock_of_an_intake_went_back_holds_up_nothing_behind_it() {
    let mut world = World::new(&[1, 5, 600], Limits::default());
    let to = [("x-delay", "0"), ("x-delay-target", "orders.expire")];
    let intake = source(0, murmur2::partition(b"k", LANES));
    let (offset, appended) = (Offset(0), world.now + Millis(600_000));
    world.next.insert(intake, 1);
    world.tell(Event::Record { source: intake, offset, appended, record: record("k", &to) });
    world.tell(Event::Target("orders.expire".into(), FOUND));
    let mut out = world.submit("k", &to);
    out.extend(world.after(0));
    let batch = batch(out);
    assert_eq!(batch.sends.len(), 1, "the second, and not the first, which is due in ten minutes");
    assert_eq!(batch.sends[0].to, Destination::Target("orders.expire".into()));
    assert_eq!(batch.sends[0].due, world.now);
}

#[test]
fn a_record_beyond_the_horizon_hops_to_the_largest_tier_that_fits_after_the_linger() {
    let mut world = World::new(&[1, 5, 60], Limits::default());
    world.submit("k", &[("x-delay", "5s"), ("x-delay-target", "orders.expire")]);
    assert!(no_batch(&world.after(499)));
    let hop = batch(world.after(1));
    let tier = world.engine.setup.topics.of_tier(1);
    assert_eq!(hop.sends[0].to, Destination::Lane(tier));
    assert!(headers_of(&hop.sends[0]).iter().any(|(name, _)| name == header::STATE));

    // It comes back from the tier, is let go at hold - lead, and waits the rest in the wheel.
    let lane = hop.commits[0].source.lane;
    let mut headers = Vec::new();
    hop.sends[0].headers(|n, v| headers.push((n.to_vec(), v.map(<[u8]>::to_vec))));
    let back = Record::new(
        hop.sends[0].record.key(),
        hop.sends[0].record.value(),
        headers.iter().map(|(n, v)| (&n[..], v.as_deref())),
    );
    world.tell(Event::Committed(hop.id));
    world.record(Source { topic: tier, lane }, back);
    assert!(no_batch(&world.after(4_499)), "due 5 s after the submit, 4.5 s after the hop");
    let delivery = batch(world.after(1));
    assert_eq!(delivery.sends[0].to, Destination::Target("orders.expire".into()));
    assert!(!headers_of(&delivery.sends[0]).iter().any(|(name, _)| name.starts_with("x-delay")));
}

#[test]
fn due_times_in_one_partition_do_not_block_each_other() {
    let mut world = World::new(&[1, 60], Limits::default());
    let target = ("x-delay-target", "orders.expire");
    world.submit("k", &[("x-delay", "1900"), target]);
    world.submit("k", &[("x-delay", "100"), target]);
    let first = batch(world.after(100));
    assert_eq!(first.sends.len(), 1);
    // The first is still pending: the watermark stays, and the mark of the second says that it is done.
    assert_eq!(first.commits[0].next, Offset(0));
    assert!(!first.commits[0].metadata.is_empty());

    // A crash here: the next owner skips the second and delivers the first.
    world.tell(Event::Revoked);
    world.assign(&first.commits);
    world.next.clear();
    world.now = world.now - Millis(100);
    world.submit("k", &[("x-delay", "1900"), target]);
    world.submit("k", &[("x-delay", "100"), target]);
    world.now = world.now + Millis(2_000);
    let rest = batch(world.tell(Event::Tick));
    assert_eq!(rest.sends.len(), 1, "what was delivered before the crash is not delivered again");
    assert_eq!(rest.commits[0].next, Offset(2));
}

#[test]
fn equal_due_times_leave_in_the_order_of_submission() {
    let mut world = World::new(&[1, 60], Limits::default());
    let due = (world.now + Millis(1_000)).0.to_string();
    for n in 0..5 {
        let n = n.to_string();
        world.submit(
            "k",
            &[("x-delay-until", &due), ("x-delay-target", "orders.expire"), ("n", &n)],
        );
        world.now = world.now + Millis(1);
    }
    let batch = batch(world.after(1_000));
    let order: Vec<String> = batch.sends.iter().map(|send| headers_of(send)[0].1.clone()).collect();
    assert_eq!(order, ["0", "1", "2", "3", "4"]);
}

#[test]
fn a_record_in_another_partition_than_its_lane_is_moved_there_first() {
    let mut world = World::new(&[1, 60], Limits::default());
    let lane = murmur2::partition(b"k", LANES);
    let wrong = (lane + 1) % LANES;
    world.record(
        source(0, wrong),
        record("k", &[("x-delay", "0"), ("x-delay-target", "orders.expire")]),
    );
    let batch = batch(world.after(0));
    assert_eq!(batch.sends[0].to, Destination::Lane(TopicId(0)));
    assert_eq!(batch.sends[0].partition, Some(i32::from(lane)));
    assert_eq!(batch.commits[0].source, source(0, wrong));
}

#[test]
fn what_cannot_be_delivered_is_a_dead_letter_with_its_code_and_place() {
    let target = ("x-delay-target", "orders.expire");
    type Headers<'a> = &'a [(&'a str, &'a str)];
    #[rustfmt::skip]
    let cases: &[(&str, Headers<'_>, &str)] = &[
        ("no time and no default",        &[target],                                              "missing_delay"),
        ("no target and no default",      &[("x-delay", "1")],                                    "missing_target"),
        ("no number",                     &[("x-delay", "soon"), target],                         "bad_delay"),
        ("not on the allow-list",         &[("x-delay", "1"), ("x-delay-target", "payments")],    "target_denied"),
        ("waterclock's own",              &[("x-delay", "1"), ("x-delay-target", "wc.intake")],   "target_forbidden"),
        ("longer than the longest",       &[("x-delay", "401d"), target],                         "delay_too_long"),
        ("a state that nobody sealed",    &[("x-delay", "1"), target, ("x-delay-state", "x")],    "bad_state"),
        ("a partition that is not there", &[("x-delay", "0"), target, ("x-delay-partition", "3")], "bad_partition"),
        ("expired before it was due",     &[("x-delay", "2"), target, ("x-delay-expires", "1")],  "expired"),
    ];
    for (why, headers, code) in cases {
        let mut world = World::new(&[1, 60], Limits::default());
        let lane = murmur2::partition(b"k", LANES);
        world.submit("k", headers);
        let batch = batch(world.after(10));
        let HeaderRewrite::Dead(letter) = &batch.sends[0].rewrite else {
            panic!("{why}: {:?}", batch.sends[0])
        };
        assert_eq!(letter.code.as_str(), *code, "{why}");
        assert_eq!(
            (&*letter.topic, letter.partition, letter.offset),
            ("wc.intake", i32::from(lane), Offset(0))
        );
        assert_eq!(batch.commits[0].next, Offset(1), "{why}: it stops nothing");
    }
}

#[test]
fn a_missing_target_is_found_out_before_anything_is_produced() {
    let mut world = World::new(&[1, 60], Limits::default());
    let lane = murmur2::partition(b"k", LANES);
    let out = world.record(
        source(0, lane),
        record("k", &[("x-delay", "0"), ("x-delay-target", "orders.typo")]),
    );
    assert!(
        matches!(&out[..], [Action::DescribeTarget(name)] if &**name == "orders.typo"),
        "{out:?}"
    );
    assert!(no_batch(&world.after(50)), "the answer is waited for");
    world.tell(Event::Target("orders.typo".into(), Target::Missing));
    let batch = batch(world.after(0));
    let HeaderRewrite::Dead(letter) = &batch.sends[0].rewrite else {
        panic!("{:?}", batch.sends[0])
    };
    assert_eq!(letter.code, Code::TargetMissing);
}

/// Dead letters and deliveries of the batch that this tick gives.
fn answered(world: &mut World, ms: u64) -> (usize, usize) {
    let sends = batch(world.after(ms)).sends;
    let count = |to: fn(&Destination) -> bool| sends.iter().filter(|send| to(&send.to)).count();
    (count(|to| *to == Destination::Dead), count(|to| matches!(to, Destination::Target(_))))
}

#[test]
fn more_records_than_may_wait_for_unknown_targets_go_on_and_hold_nobody_up() {
    // An eighth of the budget is room for a few of them.
    let limits = Limits { memory_bytes: 64_000, ..Limits::default() };
    let mut world = World::new(&[1, 60], limits);
    let good = ("x-delay-target", "orders.good");
    world.submit("k", &[("x-delay", "0"), good]);
    let first = batch(world.after(0));
    world.tell(Event::Committed(first.id));
    let lane = murmur2::partition(b"k", LANES);
    let mut asked = 0;
    for n in 0..60 {
        let target = format!("orders.unknown-{n}");
        let headers = [("x-delay", "1000"), ("x-delay-target", target.as_str())];
        let out = world.record(source(0, lane), record("k", &headers));
        asked += out.iter().filter(|o| matches!(o, Action::DescribeTarget(_))).count();
    }
    assert_eq!(asked, 60, "they are asked for all the same");
    let parked = world.engine.targets.parked_len();
    assert!(parked > 0 && parked < 60, "{parked:?}");
    world.submit("k", &[("x-delay", "1000"), good]);
    assert_eq!(answered(&mut world, 1_000), (0, 1), "it is on time");
    let deferred = world.engine.figures().deferred;
    assert_eq!(deferred as usize, 60 - parked, "those that had no room are due, too");
    for n in 0..60 {
        world.tell(Event::Target(format!("orders.unknown-{n}").into(), Target::Missing));
    }
    assert_eq!(world.engine.targets.parked_len(), 0);
    let in_flight = world.engine.batches.first().expect("a batch");
    world.tell(Event::Committed(in_flight));
    assert_eq!(answered(&mut world, 100), (parked, 0));
}

#[test]
fn a_target_that_has_no_room_for_the_marks_of_transactions_gets_nothing() {
    let mut world = World::new(&[1, 60], Limits::default());
    let lane = murmur2::partition(b"k", LANES);
    let headers = [("x-delay", "0"), ("x-delay-target", "orders.tiny")];
    world.record(source(0, lane), record("k", &headers));
    // The record itself would fit.
    let tiny = Target::Found { partitions: 1, record_bytes_max: 127, keyed: false };
    let mut out = world.tell(Event::Target("orders.tiny".into(), tiny));
    out.extend(world.after(0));
    let batch = batch(out);
    let HeaderRewrite::Dead(letter) = &batch.sends[0].rewrite else {
        panic!("{:?}", batch.sends[0])
    };
    assert_eq!(letter.code, Code::TooLarge);
}

#[test]
fn nothing_is_produced_to_a_target_of_which_was_heard_long_ago() {
    let mut world = World::new(&[1, 60], Limits::default());
    let headers = [("x-delay", "0"), ("x-delay-target", "orders.good")];
    world.submit("k", &headers);
    let first = batch(world.after(0));
    world.tell(Event::Committed(first.id));
    let lane = murmur2::partition(b"k", LANES);
    // A little old it is believed, and asked for at the same time.
    world.after(31_000);
    let out = world.record(source(0, lane), record("k", &headers));
    assert!(matches!(&out[..], [Action::DescribeTarget(_)]), "{out:?}");
    let second = batch(world.after(0));
    world.tell(Event::Committed(second.id));
    world.tell(Event::Target("orders.good".into(), FOUND));
    world.after(241_000);
    let out = world.record(source(0, lane), record("k", &headers));
    assert!(matches!(&out[..], [Action::DescribeTarget(_)]), "{out:?}");
    assert!(no_batch(&world.after(50)), "its limits may be others");
    world.tell(Event::Target("orders.good".into(), FOUND));
    assert_eq!(answered(&mut world, 0), (0, 1));
}

#[test]
fn a_target_that_is_closed_costs_dead_letters_and_no_test() {
    let mut world = World::new(&[1, 60], Limits::default());
    let (open, closed) = (("x-delay-target", "orders.open"), ("x-delay-target", "orders.closed"));
    world.submit("k", &[("x-delay", "0"), open]);
    world.submit("k", &[("x-delay", "0"), closed]);
    let refused = batch(world.after(0));
    assert_eq!(refused.sends.len(), 2);
    let why = Refused {
        batch: refused.id,
        named: Vec::new(),
        blame: Blame::Target,
        why: "Topic authorization failed".into(),
    };
    world.tell(Event::Refused(why));
    assert_eq!(world.engine.figures().suspects, 2);
    world.tell(Event::Revoked);
    world.assign(&[]);
    world.next.clear();
    let lane = murmur2::partition(b"k", LANES);
    for target in [open, closed] {
        world.record(source(0, lane), record("k", &[("x-delay", "0"), target]));
    }
    world.tell(Event::Target("orders.closed".into(), Target::Closed));
    world.tell(Event::Target("orders.open".into(), FOUND));
    assert_eq!(world.engine.figures().suspects, 1, "nothing is produced there");
    assert_eq!(answered(&mut world, 0), (1, 0));
}

#[test]
fn a_tier_is_paused_while_its_head_has_long_to_wait_and_resumed_before() {
    let mut world = World::new(&[1, 60], Limits::default());
    let tier = world.engine.setup.topics.of_tier(1).0;
    let lane = murmur2::partition(b"k", LANES);
    let at = source(tier, lane);
    let out = world.record(at, record("k", &[("x-delay-target", "orders.expire")]));
    assert!(matches!(&out[..], [Action::Pause(paused)] if *paused == at), "{out:?}");
    // Let go at 60 s - 2 s; resumed 1.5 s before that.
    world.after(0);
    assert_eq!(world.engine.wake_at(), Some(world.now + Millis(56_500)));
    assert!(world.after(56_499).is_empty());
    let out = world.after(1);
    assert!(matches!(&out[..], [Action::Resume(resumed)] if *resumed == at), "{out:?}");
    let out = world.after(1_500);
    assert!(
        matches!(&out[..], [Action::DescribeTarget(_)]),
        "let go, and its target asked for: {out:?}"
    );
    world.tell(Event::Target("orders.expire".into(), FOUND));
    assert!(no_batch(&world.after(1_999)), "due at append + hold");
    assert_eq!(batch(world.after(1)).sends[0].to, Destination::Target("orders.expire".into()));
}

#[test]
fn one_batch_at_a_time_and_the_next_right_after_it() {
    let mut world = World::new(&[1, 60], Limits { batch_gap: Millis(5), ..Limits::default() });
    let target = ("x-delay-target", "orders.expire");
    world.submit("k", &[("x-delay", "0"), target]);
    let first = batch(world.after(0));
    world.submit("k", &[("x-delay", "0"), target]);
    assert!(no_batch(&world.after(1_000)), "one transaction at a time");
    assert!(no_batch(&world.tell(Event::Committed(first.id))), "the gap lets markers be written");
    assert_eq!(batch(world.after(5)).sends.len(), 1);
}

#[test]
fn a_record_that_is_larger_than_what_may_wait_for_a_lookup_is_told_all_the_same() {
    let mut world = World::new(&[1, 60], Limits { memory_bytes: 2_000, ..Limits::default() });
    let lane = murmur2::partition(b"k", LANES);
    let (target, value) = ("orders.unknown", [b'v'; 1_000]);
    let headers = [("x-delay", "0"), ("x-delay-target", target)];
    let headers = headers.iter().map(|(name, value)| (name.as_bytes(), Some(value.as_bytes())));
    let large = Record::new(Some(b"k"), Some(&value), headers);
    world.record(source(0, lane), large);
    world.tell(Event::Target(target.into(), Target::Missing));
    assert_eq!(
        answered(&mut world, 100),
        (1, 0),
        "it is a dead letter, and does not wait for ever"
    );
}

#[test]
fn over_the_budget_reading_stops_and_goes_on_once_there_is_room() {
    let limits = Limits { memory_bytes: 2_000, ..Limits::default() };
    let mut world = World::new(&[1, 60], limits);
    let target = ("x-delay-target", "orders.expire");
    let mut paused = 0;
    for _ in 0..30 {
        let out = world.submit("k", &[("x-delay", "500"), target]);
        paused += out.iter().filter(|o| matches!(o, Action::Pause(_))).count();
    }
    assert!(paused > 0, "{:?}", world.engine.figures());
    let due = batch(world.after(500));
    assert_eq!(due.sends.len(), 30);
    let out = world.tell(Event::Committed(due.id));
    assert!(out.iter().any(|o| matches!(o, Action::Resume(_))), "{out:?}");
    assert_eq!(world.engine.figures().memory_bytes, 0);
}

#[test]
fn a_lane_runs_only_where_all_its_topics_are() {
    let mut world = World::new(&[1, 60], Limits::default());
    let some = vec![
        Start {
            source: source(0, 0),
            next: Offset(0),
            metadata: String::new(),
            end: Offset(0),
            gone: false,
        },
        Start {
            source: source(1, 0),
            next: Offset(0),
            metadata: String::new(),
            end: Offset(0),
            gone: false,
        },
    ];
    let out = world.tell(Event::Assigned { starts: some });
    assert_eq!(out.len(), 2, "both rest: {out:?}");
    assert_eq!(world.engine.figures().lanes, 0);
}

#[test]
fn draining_finishes_hops_and_leaves_what_is_not_due() {
    let mut world = World::new(&[1, 60], Limits::default());
    let target = ("x-delay-target", "orders.expire");
    world.submit("a", &[("x-delay", "60s"), target]);
    world.submit("a", &[("x-delay", "1900"), target]);
    let hop = batch(world.tell(Event::Drain));
    assert_eq!(hop.sends.len(), 1, "the hop does not wait for its linger");
    assert!(!world.engine.is_drained());
    world.tell(Event::Committed(hop.id));
    assert!(world.engine.is_drained(), "what is in the wheel is pending in the commit");
}

/// What the dead letters of a batch say.
fn codes(batch: &Batch) -> Vec<Code> {
    let dead = batch.sends.iter().filter_map(|send| match &send.rewrite {
        HeaderRewrite::Dead(letter) => Some(letter.code),
        _ => None,
    });
    dead.collect()
}

#[test]
fn other_policies_hold_for_what_comes_in_and_for_what_was_accepted_before() {
    let mut world = World::new(&[1], Limits::default());
    world.submit("a", &[("x-delay", "1000"), ("x-delay-target", "orders.a")]);
    world.submit("b", &[("x-delay", "1000"), ("x-delay-target", "orders.b")]);
    let allow = Allow::new("wc", Some(&["orders\\.b|bills".to_owned()])).expect("patterns");
    let setup = Arc::new(world.engine.setup.with_allow([allow]));
    assert!(no_batch(&world.tell(Event::Policies(setup))));
    let fired = batch(world.after(1_000));
    assert_eq!(codes(&fired), [Code::TargetDenied], "orders.a is no longer on the list");
    assert_eq!(fired.sends.len(), 2, "orders.b is");
    world.tell(Event::Committed(fired.id));

    world.submit("c", &[("x-delay", "0"), ("x-delay-target", "bills")]);
    world.submit("d", &[("x-delay", "0"), ("x-delay-target", "orders.a")]);
    let next = batch(world.after(100));
    assert_eq!((codes(&next), next.sends.len()), (vec![Code::TargetDenied], 2));
    world.tell(Event::Committed(next.id));

    // Lanes that are taken over again go on under the same policies.
    world.assign(&[]);
    world.submit("e", &[("x-delay", "0"), ("x-delay-target", "orders.a")]);
    assert_eq!(codes(&batch(world.after(100))), [Code::TargetDenied]);
}

/// What stands in a lane topic by a send, as it is read there.
fn stands(send: &Produce) -> Record {
    let mut headers = Vec::new();
    send.headers(|name, value| headers.push((name.to_vec(), value.map(<[u8]>::to_vec))));
    let headers = headers.iter().map(|(name, value)| (name.as_slice(), value.as_deref()));
    Record::new(send.body().key(), send.body().value(), headers)
}

/// What leaves first, and to where, with what was asked about targets answered.
fn leaves(world: &mut World, mut out: Vec<Action>, most_ms: u64) -> Option<Batch> {
    for _ in 0..most_ms / 100 {
        for asked in std::mem::take(&mut out) {
            match asked {
                Action::DescribeTarget(name) => out.extend(world.tell(Event::Target(name, FOUND))),
                Action::Batch(batch) => return Some(batch),
                _ => {}
            }
        }
        out.extend(world.after(100));
    }
    None
}

/// A record without a target is written to the intake `b` of one world, and its first hop is read in another.
fn hop_into(world: &mut World, state: Option<fn(&World, &Record) -> Record>) -> Vec<Action> {
    let intakes = [("", Some("orders.main")), ("b", Some("orders.b"))];
    let mut before = World::with(&[1, 10, 60], Limits::default(), &intakes);
    let lane = murmur2::partition(b"k", LANES);
    let out = before.record(source(1, lane), record("k", &[("x-delay", "75s")]));
    let hop = leaves(&mut before, out, 2_000).expect("a hop");
    assert_eq!(hop.sends[0].to, Destination::Lane(before.engine.setup.topics.of_tier(2)));
    let hopped = stands(&hop.sends[0]);
    let hopped = state.map_or_else(|| hopped.clone(), |other| other(&before, &hopped));
    world.now = before.now;
    let tier = world.engine.setup.topics.of_tier(2).0;
    world.record(source(tier, lane), hopped)
}

/// What becomes of it in the end, and how long its state was in each tier that it went through.
fn ends(world: &mut World, mut out: Vec<Action>) -> (Produce, Vec<usize>) {
    let mut sizes = Vec::new();
    loop {
        let mut batch = leaves(world, out, 90_000).expect("it goes on");
        let send = batch.sends.remove(0);
        let Destination::Lane(tier) = send.to else { return (send, sizes) };
        let hopped = stands(&send);
        let state = hopped.headers().find(|(name, _)| *name == header::STATE.as_bytes());
        sizes.push(state.and_then(|(_, value)| value).map_or(0, <[u8]>::len));
        world.tell(Event::Committed(batch.id));
        out = world.record(source(tier.0, murmur2::partition(b"k", LANES)), hopped);
    }
}

#[test]
fn a_default_target_is_that_of_the_time_when_the_record_was_accepted() {
    let intakes = [("", Some("orders.main")), ("b", Some("orders.elsewhere"))];
    let mut world = World::with(&[1, 10, 60], Limits::default(), &intakes);
    let out = hop_into(&mut world, None);
    let (fired, sizes) = ends(&mut world, out);
    assert_eq!(fired.to, Destination::Target("orders.b".into()));
    assert_eq!(headers_of(&fired), []);
    let size = crate::state::SIZE + 2 + 1 + 8;
    assert!(sizes.len() > 1 && sizes.iter().all(|of| *of == size), "it grows: {sizes:?}");
}

#[test]
fn a_target_counts_when_a_record_is_accepted_and_when_it_is_due_and_not_on_its_way_down() {
    let intakes = [("", Some("orders.main")), ("b", Some("orders.b"))];
    for is_denied in [true, false] {
        let mut world = World::with(&[1, 10, 60], Limits::default(), &intakes);
        let policies = Arc::clone(&world.engine.setup);
        if is_denied {
            let none = || Allow::new("wc", Some(&["nothing".to_owned()])).expect("a pattern");
            world.tell(Event::Policies(Arc::new(policies.with_allow([none(), none()]))));
        }
        let mut out = hop_into(&mut world, None);
        let hop = loop {
            assert!(world.now < UnixMillis(1 << 60), "it goes on");
            match std::mem::take(&mut out).into_iter().next() {
                Some(Action::Batch(batch)) => break batch,
                Some(Action::DescribeTarget(name)) => {
                    let target = if is_denied { FOUND } else { Target::Missing };
                    out = world.tell(Event::Target(name, target));
                }
                _ => out = world.after(100),
            }
        };
        let Destination::Lane(tier) = hop.sends[0].to else { panic!("{is_denied}: {hop:?}") };
        let hopped = stands(&hop.sends[0]);
        world.tell(Event::Committed(hop.id));
        // It is mended before the record is due.
        world.tell(Event::Policies(policies));
        let out = world.record(source(tier.0, murmur2::partition(b"k", LANES)), hopped);
        let (fired, _) = ends(&mut world, out);
        assert_eq!(fired.to, Destination::Target("orders.b".into()), "{is_denied}");
    }
}

#[test]
fn what_an_intake_leaves_behind_waits_and_is_not_delivered_by_the_rules_of_another() {
    // As an older program has sealed it: without the name, and without the target.
    fn older(before: &World, hopped: &Record) -> Record {
        let bare: Vec<_> =
            hopped.headers().filter(|(name, _)| *name != header::STATE.as_bytes()).collect();
        let directive = header::read(hopped.headers()).expect("it follows the contract");
        let (key, bound) = (&before.engine.setup.key, directive.bound(Some(b"k")));
        let state = crate::state::State::open(directive.state.unwrap(), key, &bound);
        let state = crate::state::State { name: None, target: None, ..state.unwrap() };
        let sealed = state.seal(key, &bound);
        let headers = bare.into_iter().chain([(header::STATE.as_bytes(), Some(sealed.as_ref()))]);
        let headers: Vec<_> = headers.collect();
        Record::new(Some(b"k"), Some(b"value"), headers.into_iter())
    }
    for (state, came_by) in [(None, "wc.intake.b"), (Some(older as fn(&_, &_) -> _), "")] {
        let mut world = World::with(&[1, 10, 60], Limits::default(), &[("", Some("orders.main"))]);
        let out = hop_into(&mut world, state);
        let due = world.now + Millis(74_000);
        let (dead, sizes) = ends(&mut world, out);
        assert!(world.now >= due && sizes.len() > 1, "it waits as if its intake were there");
        let HeaderRewrite::Dead(letter) = &dead.rewrite else { panic!("{dead:?}") };
        assert_eq!((letter.code, &*letter.intake), (Code::UnknownIntake, came_by));
    }
    // One that is configured again in time is delivered, also what an older program has sealed.
    let intakes = [("", Some("orders.main")), ("c", None), ("b", Some("orders.b"))];
    let mut world = World::with(&[1, 10, 60], Limits::default(), &intakes);
    let out = hop_into(&mut world, Some(older));
    let (fired, sizes) = ends(&mut world, out);
    assert_eq!(fired.to, Destination::Target("orders.b".into()));
    assert_eq!(sizes[0], crate::state::SIZE + 2 + 1 + 8, "name and target are sealed now");
}

#[test]
fn a_move_between_lanes_is_worth_nothing_in_another_intake() {
    let intakes = [("", None), ("b", None)];
    let mut world = World::with(&[1], Limits::default(), &intakes);
    let lane = murmur2::partition(b"k", LANES);
    let soon = record("k", &[("x-delay", "1"), ("x-delay-target", "orders.x")]);
    let out = world.record(source(1, (lane + 1) % LANES), soon);
    let moved = leaves(&mut world, out, 1_000).expect("a move");
    assert_eq!(moved.sends[0].to, Destination::Lane(TopicId(1)));
    world.tell(Event::Committed(moved.id));
    let copied = stands(&moved.sends[0]);
    let out = world.record(source(0, lane), copied.clone());
    let dead = leaves(&mut world, out, 1_000).expect("a dead letter");
    let HeaderRewrite::Dead(letter) = &dead.sends[0].rewrite else { panic!("{:?}", dead.sends[0]) };
    assert_eq!((letter.code, &*letter.intake), (Code::BadState, "wc.intake"));
    world.tell(Event::Committed(dead.id));
    let out = world.record(source(1, lane), copied);
    let fired = leaves(&mut world, out, 1_000).expect("a delivery");
    assert_eq!(fired.sends[0].to, Destination::Target("orders.x".into()));
}

/// Plays Kafka to records that are all due at once, and fails every batch of which `refuses` names somebody.
struct Strict<'a> {
    world: World,
    records: Vec<Vec<(&'a str, &'a str)>>,
    commits: Vec<Commit>,
    /// Batches in the order in which they were handed out: the `n` of each send, and whether the batch went through.
    batches: Vec<(Vec<String>, bool)>,
    dead: Vec<(String, Code)>,
}

impl Strict<'_> {
    fn run(&mut self, blame: Blame, refuses: impl Fn(&Produce) -> bool) {
        let lane = source(0, murmur2::partition(b"k", LANES));
        loop {
            self.world.tell(Event::Revoked);
            self.world.assign(&self.commits);
            self.world.next.clear();
            for headers in &self.records {
                let target = headers.iter().find(|(name, _)| *name == header::TARGET).unwrap().1;
                self.world.record(lane, record("k", headers));
                self.world.tell(Event::Target(target.into(), FOUND));
            }
            if self.until_refused(blame, &refuses) {
                return;
            }
        }
    }

    /// Whether there is nothing more to come.
    fn until_refused(&mut self, blame: Blame, refuses: &impl Fn(&Produce) -> bool) -> bool {
        let mut out = self.world.after(10);
        for _ in 0..200 {
            for batch in std::mem::take(&mut out) {
                let Action::Batch(batch) = batch else { continue };
                let n = |send: &Produce| {
                    headers_of(send).into_iter().find(|(name, _)| name == "n").unwrap().1
                };
                let fine = !batch.sends.iter().any(refuses);
                self.batches.push((batch.sends.iter().map(n).collect(), fine));
                assert!(self.batches.len() < 100, "no end: {:?}", self.batches);
                if !fine {
                    let why = "no".into();
                    let named = Vec::new();
                    let refused = Refused { batch: batch.id, named, blame, why };
                    self.world.tell(Event::Refused(refused));
                    return false;
                }
                for send in &batch.sends {
                    if let HeaderRewrite::Dead(letter) = &send.rewrite {
                        self.dead.push((n(send), letter.code));
                    }
                }
                self.commits.extend(batch.commits);
                out.extend(self.world.tell(Event::Committed(batch.id)));
            }
            out.extend(self.world.after(10));
        }
        true
    }
}

fn strict<'a>(records: Vec<Vec<(&'a str, &'a str)>>) -> Strict<'a> {
    let world = World::new(&[1, 60], Limits::default());
    Strict { world, records, commits: Vec::new(), batches: Vec::new(), dead: Vec::new() }
}

#[test]
fn a_record_that_kafka_refuses_is_found_by_halving_and_the_others_are_delivered() {
    let names = ["0", "1", "2", "3", "4", "5", "6", "7"];
    let to = (header::TARGET, "orders.out");
    let mut strict = strict(names.map(|n| vec![("x-delay", "0"), to, ("n", n)]).into());
    let poison = |send: &Produce| {
        matches!(send.to, Destination::Target(_))
            && headers_of(send).contains(&("n".into(), "5".into()))
    };
    strict.run(Blame::Record, poison);
    assert_eq!(strict.dead, [("5".to_owned(), Code::TargetRefused)]);
    let failed = strict.batches.iter().filter(|(_, fine)| !fine).count();
    assert_eq!(failed, 4, "eight, four, two, one: {:?}", strict.batches);
    let mut through: Vec<String> =
        strict.batches.iter().filter(|(_, fine)| *fine).flat_map(|(n, _)| n.clone()).collect();
    through.sort();
    assert_eq!(through, names, "each once, the dead letter among them");
    assert_eq!(strict.world.engine.figures().suspects, 0);
    assert_eq!(strict.world.engine.figures().memory_bytes, 0);
}

#[test]
fn a_target_that_we_may_not_write_to_is_found_and_its_records_are_dead_at_once() {
    let names = ["0", "1", "2", "3", "4", "5"];
    let target = |n: &str| if n < "3" { "orders.denied" } else { "orders.out" };
    let records = names.map(|n| vec![("x-delay", "0"), (header::TARGET, target(n)), ("n", n)]);
    let mut strict = strict(records.into());
    strict.run(Blame::Target, |send| send.to == Destination::Target("orders.denied".into()));
    let dead: Vec<&str> = strict.dead.iter().map(|(n, _)| n.as_str()).collect();
    assert_eq!(dead, ["0", "1", "2"]);
    let failed = strict.batches.iter().filter(|(_, fine)| !fine).count();
    assert_eq!(failed, 2, "both targets, then the one: {:?}", strict.batches);

    // Within half a minute nothing is tried there; after it one batch is.
    let lane = source(0, murmur2::partition(b"k", LANES));
    let more = || record("k", &[("x-delay", "0"), (header::TARGET, "orders.denied"), ("n", "9")]);
    strict.world.record(lane, more());
    let dead = batch(strict.world.after(10));
    assert!(matches!(dead.sends[0].rewrite, HeaderRewrite::Dead(_)), "{dead:?}");
    strict.world.tell(Event::Committed(dead.id));
    strict.world.after(30_001);
    strict.world.record(lane, more());
    let tried = batch(strict.world.after(300));
    assert_eq!(tried.sends[0].to, Destination::Target("orders.denied".into()));
}

#[test]
fn neighbours_leave_before_the_next_test_of_suspects() {
    let to = (header::TARGET, "orders.out");
    // Suspects go by themselves; a neighbour that comes meanwhile is never in their batch and never waits for them.
    let mut world = World::new(&[1, 60], Limits::default());
    let submit = |world: &mut World, n: &str| {
        world.submit("k", &[("x-delay", "0"), to, ("n", n)]);
    };
    submit(&mut world, "a");
    submit(&mut world, "b");
    let both = batch(world.after(0));
    assert_eq!(both.sends.len(), 2);
    let (batch_id, blame) = (both.id, Blame::Record);
    let refused = Refused { batch: batch_id, named: vec![], blame, why: "no".into() };
    world.tell(Event::Refused(refused));
    world.tell(Event::Revoked);
    world.assign(&[]);
    world.next.clear();
    for n in ["a", "b", "c"] {
        submit(&mut world, n);
    }
    let n = |batch: &Batch| -> Vec<String> {
        batch.sends.iter().map(|send| headers_of(send)[0].1.clone()).collect()
    };
    let first = batch(world.after(0));
    assert_eq!(n(&first), ["c"]);
    world.tell(Event::Committed(first.id));
    submit(&mut world, "d");
    let second = batch(world.after(5));
    assert_eq!(n(&second), ["d"]);
    world.tell(Event::Committed(second.id));
    submit(&mut world, "e");
    let test = batch(world.after(300));
    assert_eq!(n(&test), ["a"], "its turn, half of the suspects");
    assert!(no_batch(&world.after(10)), "nothing beside a test");
    world.tell(Event::Committed(test.id));
    assert_eq!(n(&batch(world.after(5))), ["e"], "in turns");
}

#[test]
fn a_compacted_target_takes_no_record_without_a_key() {
    let mut world = World::new(&[1, 60], Limits::default());
    let keyed = Target::Found { partitions: 3, record_bytes_max: 1_048_588, keyed: true };
    let headers = [("x-delay", "0"), (header::TARGET, "orders.table"), ("n", "1")];
    let headers = headers.map(|(name, value)| (name.as_bytes(), Some(value.as_bytes())));
    world.record(source(0, 1), Record::new(None, Some(b"v"), headers.iter().copied()));
    world.tell(Event::Target("orders.table".into(), keyed));
    let dead = batch(world.after(0));
    let HeaderRewrite::Dead(letter) = &dead.sends[0].rewrite else { panic!("{:?}", dead.sends[0]) };
    assert_eq!(letter.code, Code::MissingKey);
}

#[test]
fn a_record_that_hopped_more_often_than_any_delay_needs_is_a_dead_letter() {
    use crate::state::{Kind, State, SubmissionOrder};

    let mut world = World::new(&[1, 60], Limits::default());
    let lane = murmur2::partition(b"k", LANES);
    let tier = world.engine.setup.topics.of_tier(0).0;
    let own = [("x-delay", "1h"), (header::TARGET, "orders.out")];
    let bare = record("k", &own);
    let directive = header::read(bare.headers()).expect("it follows the contract");
    let state = State {
        kind: Kind::Hop,
        due: world.now + Millis(3_600_000),
        first_appended: world.now,
        order: SubmissionOrder { appended: world.now, offset: Offset(0) },
        expires: None,
        intake: world.engine.setup.topics.intakes[0].tag,
        name: None,
        target: None,
        hops: world.engine.hops.limit(),
        task: None,
    };
    let sealed = state.seal(&world.engine.setup.key, &directive.bound(Some(b"k")));
    let mut headers: Vec<(&[u8], Option<&[u8]>)> = bare.headers().collect();
    headers.push((header::STATE.as_bytes(), Some(sealed.as_ref())));
    let looped = Record::new(Some(b"k"), Some(b"value"), headers.iter().copied());
    world.record(source(tier, lane), looped);
    let dead = batch(world.after(1_000));
    let HeaderRewrite::Dead(letter) = &dead.sends[0].rewrite else { panic!("{:?}", dead.sends[0]) };
    assert_eq!(letter.code, Code::TooManyHops);
}

#[test]
fn a_target_without_a_leader_holds_up_nobody_and_gets_its_records_once_it_has_one() {
    let mut world = World::new(&[1, 5, 60], Limits::default());
    let to: Arc<str> = "orders.far".into();
    let submit = |world: &mut World, target| {
        let submitted = world.submit("k", &[("x-delay", "100"), ("x-delay-target", target)]);
        assert!(no_batch(&submitted));
    };
    submit(&mut world, "orders.far");
    submit(&mut world, "orders.near");
    let all: Arc<[i32]> = [0, 1, 2].into();
    world.tell(Event::TargetOutage(Arc::clone(&to), all));

    // Only what has a leader is delivered, and the other waits on disk: longer, the longer its target has been away.
    let mut out = world.after(100);
    let first = batch(std::mem::take(&mut out));
    assert_eq!(first.sends.len(), 1);
    assert_eq!(first.sends[0].to, Destination::Target("orders.near".into()));
    let mut sent = world.tell(Event::Committed(first.id));
    sent.extend(world.after(500));
    let hop = batch(sent);
    let tier = world.engine.setup.topics.of_tier(1);
    assert_eq!(
        hop.sends.iter().map(|send| &send.to).collect::<Vec<_>>(),
        [&Destination::Lane(tier)]
    );
    let (lane, back) = (hop.commits[0].source.lane, written(&hop.sends[0]));
    world.tell(Event::Committed(hop.id));

    // It comes up again and is asked about; its own partition alone decides.
    world.record(Source { topic: tier, lane }, back);
    let own = i32::from(murmur2::partition(b"k", 3));
    world.tell(Event::TargetOutage(Arc::clone(&to), [(own + 1) % 3].into()));
    let late = batch(world.after(5_000));
    assert_eq!(late.sends[0].to, Destination::Target(to));
    assert!(!headers_of(&late.sends[0]).iter().any(|(name, _)| name.starts_with("x-delay")));
}

/// The record that a hop writes.
fn written(send: &Produce) -> Record {
    let mut headers = Vec::new();
    send.headers(|n, v| headers.push((n.to_vec(), v.map(<[u8]>::to_vec))));
    let headers = headers.iter().map(|(n, v)| (&n[..], v.as_deref()));
    Record::new(send.record.key(), send.record.value(), headers)
}

#[test]
fn what_is_away_is_asked_about_again_soon_and_what_is_in_doubt_at_once() {
    let mut world = World::new(&[1, 5, 60], Limits::default());
    let to: Arc<str> = "orders.far".into();
    let submit = |world: &mut World| {
        let lane = murmur2::partition(b"k", LANES);
        let headers = [("x-delay", "1h"), ("x-delay-target", "orders.far")];
        let out = world.record(source(0, lane), record("k", &headers));
        out.iter().any(|out| matches!(out, Action::DescribeTarget(_)))
    };
    assert!(submit(&mut world), "nothing is known of it");
    world.tell(Event::Target(Arc::clone(&to), FOUND));
    world.after(5_000);
    assert!(!submit(&mut world), "it is known");
    world.tell(Event::TargetOutage(Arc::clone(&to), [1].into()));
    assert!(submit(&mut world), "one of its partitions is away");
    world.tell(Event::TargetOutage(Arc::clone(&to), Arc::default()));
    world.tell(Event::Target(Arc::clone(&to), FOUND));
    assert!(!submit(&mut world), "it is back");
    world.tell(Event::InvalidateTargets(vec!["wc.timers".into(), to]));
    assert!(submit(&mut world), "a batch with a record for it failed");
}

/// What a batch does with the one record that it carries.
fn code_of(batch: &Batch) -> Option<Code> {
    match &batch.sends[0].rewrite {
        HeaderRewrite::Dead(letter) => Some(letter.code),
        _ => None,
    }
}

#[test]
fn what_expires_before_it_can_be_there_is_not_delivered() {
    let headers = |expires| {
        [("x-delay", "1000"), ("x-delay-target", "orders.expire"), ("x-delay-expires", expires)]
    };
    for (expires, want) in [("1049", Some(Code::Expired)), ("1050", None)] {
        let mut world = World::new(&[1, 60], Limits::default());
        world.submit("k", &headers(expires));
        assert_eq!(code_of(&batch(world.after(1_000))), want, "{expires}");
    }
    // Deliveries have taken longer than that: for a minute more is kept in hand.
    let mut world = World::new(&[1, 60], Limits::default());
    world.submit("k", &headers("1099"));
    let (named, why) = (Vec::new(), "late".into());
    let refused = |batch| Refused { batch, named, blame: Blame::Expired, why };
    let first = batch(world.after(1_000));
    assert_eq!(code_of(&first), None);
    world.tell(Event::Refused(refused(first.id)));
    world.tell(Event::Revoked);
    world.assign(&[]);
    world.next.clear();
    world.now = world.now - Millis(1_000);
    world.submit("k", &headers("1099"));
    assert_eq!(code_of(&batch(world.after(1_000))), Some(Code::Expired));
}

#[test]
fn what_may_be_there_is_no_dead_letter_besides_where_nothing_can_be_aborted() {
    for (aborts, want) in [(true, Some(Code::Expired)), (false, None)] {
        let mut world = World::new(&[1, 60], Limits { aborts, ..Limits::default() });
        let headers =
            [("x-delay", "0"), ("x-delay-target", "orders.expire"), ("x-delay-expires", "500")];
        let appended = world.now;
        world.submit("k", &headers);
        assert_eq!(code_of(&batch(world.after(5))), None, "handed over in time");
        world.tell(Event::Revoked);
        world.assign(&[]);
        world.now = world.now + Millis(2_000);
        let at = source(0, murmur2::partition(b"k", LANES));
        let (offset, record) = (Offset(0), record("k", &headers));
        let out = world.tell(Event::Record { source: at, offset, appended, record });
        for asked in out {
            if let Action::DescribeTarget(name) = asked {
                world.tell(Event::Target(name, FOUND));
            }
        }
        assert_eq!(code_of(&batch(world.after(5))), want, "aborts: {aborts}");
    }
}

/// Two records for one target leave together. The first, which has an id, is acknowledged; the second is refused, and their
/// batch fails. Both are read again, and the target is told to be as it is `then`. The codes of the dead letters, how many are
/// delivered, and how many timers are.
fn read_again(acknowledged: bool, blame: Blame, then: Target) -> (Vec<Code>, usize, usize) {
    let limits = Limits { aborts: false, ..Limits::default() };
    let mut world = World::new(&[1, 60], limits);
    let to = (header::TARGET, "orders.out");
    let records = [
        vec![("x-delay", "0"), to, (header::ID, "i"), ("n", "0")],
        vec![("x-delay", "0"), to, ("n", "1")],
    ];
    records.iter().for_each(|headers| drop(world.submit("k", headers)));
    let first = batch(world.after(0));
    let place = |n: &str| {
        let is_it = |send: &Produce| headers_of(send).contains(&("n".into(), n.into()));
        let is_delivery = |send: &Produce| matches!(send.to, Destination::Target(_));
        first.sends.iter().position(|send| is_delivery(send) && is_it(send)).expect("a delivery")
    };
    if acknowledged {
        // Also of the timer changes in the batch, which are no deliveries.
        let at = (0..first.sends.len()).filter(|at| *at != place("1"));
        world.tell(Event::PartlyAcknowledged(at.map(|at| (first.id, at)).collect()));
    }
    let (named, why) = (vec![place("1")], "no".into());
    world.tell(Event::Refused(Refused { batch: first.id, named, blame, why }));
    world.tell(Event::Revoked);
    world.assign(&[]);
    world.next.clear();
    let lane = source(0, murmur2::partition(b"k", LANES));
    for headers in &records {
        world.record(lane, record("k", headers));
    }
    world.tell(Event::Target("orders.out".into(), then));
    let (mut codes, mut delivered, mut timers, mut next) = (Vec::new(), 0, 0, None);
    for _ in 0..4 {
        for out in world.after(500) {
            let Action::Batch(batch) = out else { continue };
            for send in &batch.sends {
                match &send.rewrite {
                    HeaderRewrite::Dead(letter) => codes.push(letter.code),
                    HeaderRewrite::Deliver { .. } => delivered += 1,
                    HeaderRewrite::Timer(said) => {
                        timers += usize::from(said.reason == ChangeReason::Delivered);
                    }
                    HeaderRewrite::State(_)
                    | HeaderRewrite::Dispatch(..)
                    | HeaderRewrite::Whole => {}
                }
            }
            next = batch.commits.last().map(|commit| commit.next).or(next);
            world.tell(Event::Committed(batch.id));
        }
    }
    assert_eq!(next, Some(Offset(2)), "both are done");
    let figures = world.engine.figures();
    assert_eq!((figures.memory_bytes, figures.live), (0, 0));
    (codes, delivered, timers)
}

#[test]
fn what_is_in_its_target_though_its_batch_failed_is_no_dead_letter_besides() {
    use Blame::{Record, Target as OfTarget, Unclear};
    let refused = Code::TargetRefused;
    #[rustfmt::skip]
    let cases = [
        (true,  OfTarget, FOUND,           vec![refused],             (0, 1), "the target was refused alone"),
        (false, OfTarget, FOUND,           vec![refused; 2],          (0, 0), "nothing was acknowledged"),
        (true,  Unclear,  Target::Closed,  vec![refused],             (0, 1), "found closed at once"),
        (true,  Unclear,  Target::Missing, vec![Code::TargetMissing], (0, 1), "found missing at once"),
        (true,  Unclear,  FOUND,           vec![],                    (2, 1), "it still takes records"),
        (true,  Record,   FOUND,           vec![],                    (2, 1), "one other record is a suspect"),
    ];
    for (acknowledged, blame, then, codes, (delivered, timers), why) in cases {
        let want = (codes, delivered, timers);
        assert_eq!(read_again(acknowledged, blame, then), want, "{why}");
    }
}

#[test]
fn a_record_that_kafka_refuses_and_that_is_in_its_target_is_not_sent_again_without_end() {
    for (acknowledged, want) in [(true, None), (false, Some(Code::TargetRefused))] {
        let mut world = World::new(&[1, 60], Limits { aborts: false, ..Limits::default() });
        let headers = [("x-delay", "0"), (header::TARGET, "orders.out")];
        world.submit("k", &headers);
        let id = batch(world.after(0)).id;
        if acknowledged {
            world.tell(Event::PartlyAcknowledged(vec![(id, 0)]));
        }
        // It was acknowledged when it was sent before, and the target takes smaller ones now.
        let (named, blame, why) = (vec![0], Blame::Record, "no".into());
        world.tell(Event::Refused(Refused { batch: id, named, blame, why }));
        world.tell(Event::Revoked);
        world.assign(&[]);
        world.next.clear();
        world.submit("k", &headers);
        let next = leaves(&mut world, Vec::new(), 5_000).expect("it ends");
        assert_eq!(next.commits[0].next, Offset(1), "it is done");
        assert_eq!(next.sends.first().and_then(|_| code_of(&next)), want);
        assert_eq!(next.sends.len(), usize::from(want.is_some()));
    }
}

#[test]
fn a_copy_of_what_was_delivered_in_time_is_nothing_once_it_has_expired() {
    let limits = Limits { aborts: false, hop_linger: Millis(0), ..Limits::default() };
    let mut world = World::new(&[1, 5, 60], limits);
    let lane = murmur2::partition(b"k", LANES);
    let headers =
        [("x-delay", "5s"), ("x-delay-target", "orders.expire"), ("x-delay-expires", "6s")];
    let out = world.record(source(0, lane), record("k", &headers));
    let hop = leaves(&mut world, out, 1_000).expect("a hop");
    world.tell(Event::Committed(hop.id));
    let (tier, copy) = (source(2, lane), stands(&hop.sends[0]));
    assert_eq!(hop.sends[0].to, Destination::Lane(tier.topic));
    // Two owners of the lane have written it, and the second one late.
    for want in [&[Destination::Target("orders.expire".into())][..], &[]] {
        let out = world.record(tier, copy.clone());
        let next = leaves(&mut world, out, 10_000).expect("a batch");
        world.tell(Event::Committed(next.id));
        let sent: Vec<Destination> = next.sends.iter().map(|send| send.to.clone()).collect();
        assert_eq!((&*sent, next.commits[0].source), (want, tier));
    }
    assert_eq!(world.engine.figures().memory_bytes, 0);
}

#[test]
fn what_was_moved_twice_is_no_dead_letter_besides() {
    let limits = Limits { aborts: false, ..Limits::default() };
    let mut world = World::new(&[1, 60], limits);
    let lane = murmur2::partition(b"k", LANES);
    let headers =
        [("x-delay", "0"), ("x-delay-target", "orders.expire"), ("x-delay-expires", "500")];
    let out = world.record(source(0, (lane + 1) % LANES), record("k", &headers));
    let moved = leaves(&mut world, out, 1_000).expect("a move");
    world.tell(Event::Committed(moved.id));
    for wait in [0, 2_000] {
        world.after(wait);
        let out = world.record(source(0, lane), stands(&moved.sends[0]));
        let next = leaves(&mut world, out, 1_000).expect("a delivery");
        world.tell(Event::Committed(next.id));
        assert_eq!(code_of(&next), None, "after {wait} ms");
    }
    // Another one that is the same in all but its time was never handed over.
    world.after(2_000);
    let appended = world.now - Millis(1_000);
    let (at, record) = (source(0, lane), record("k", &headers));
    let out = world.tell(Event::Record { source: at, offset: Offset(2), appended, record });
    let dead = leaves(&mut world, out, 1_000).expect("a dead letter");
    assert_eq!(code_of(&dead), Some(Code::Expired));
}

#[test]
fn a_hop_that_waited_too_long_for_its_batch_goes_another_way() {
    // Picked for the tier of a minute, with a second to spare; the batch before it takes ten.
    let mut world = World::new(&[1, 5, 60], Limits { hop_linger: Millis(0), ..Limits::default() });
    let to = |batch: &Batch| match &batch.sends[0].to {
        Destination::Lane(topic) => world_tier(*topic),
        other => panic!("{other:?}"),
    };
    world.submit("k", &[("x-delay", "10m"), ("x-delay-target", "orders.expire")]);
    let first = batch(world.after(5));
    assert_eq!(to(&first), 2);
    world.submit("k", &[("x-delay", "60s"), ("x-delay-target", "orders.expire")]);
    assert!(no_batch(&world.after(10_000)));
    let (id, mut out) = (first.id, Vec::new());
    world.engine.step(world.now, Event::Committed(id), &mut out);
    // The lane looks at it when it may close a batch. It leaves with the next one.
    (0..2).for_each(|_| out.extend(world.after(10)));
    assert_eq!(to(&batch(out)), 1, "50 s are left, and its tier takes 58");
}

fn world_tier(topic: TopicId) -> u16 {
    topic.0 - 1
}

#[test]
fn a_hop_that_was_under_suspicion_is_looked_for_like_any_other_once_it_has_left() {
    let to = (header::TARGET, "orders.out");
    let mut world = World::new(&[1, 5, 60], Limits::default());
    let submit = |world: &mut World| {
        world.submit("k", &[("x-delay", "1h"), to, (header::ID, "i")]);
        world.submit("k", &[("x-delay", "1h"), to]);
    };
    submit(&mut world);
    let both = batch(world.after(500));
    assert_eq!(both.sends.iter().filter(|send| matches!(send.to, Destination::Lane(_))).count(), 2);
    let (id, blame) = (both.id, Blame::Record);
    world.tell(Event::Refused(Refused { batch: id, named: vec![], blame, why: "no".into() }));
    world.tell(Event::Revoked);
    world.assign(&[]);
    world.next.clear();
    submit(&mut world);
    let (lane, timer_id) = (Lane(murmur2::partition(b"k", LANES)), TimerId::new(Some(b"k"), b"i"));
    let is_absent = |world: &World| {
        let live = world.engine.timers.table().live(lane, timer_id).expect("it is pending");
        world.engine.timers.table().is_absent(lane, timer_id, live.version)
    };
    let mut hops = 0;
    for _ in 0..10 {
        assert!(hops > 0 || !is_absent(&world), "it is here until it leaves");
        for out in world.after(500) {
            let Action::Batch(batch) = out else { continue };
            hops +=
                batch.sends.iter().filter(|send| matches!(send.to, Destination::Lane(_))).count();
            world.tell(Event::Committed(batch.id));
        }
    }
    assert_eq!((hops, world.engine.figures().suspects), (2, 0));
    assert!(is_absent(&world), "it stands in a tier and nowhere else");
}

#[test]
fn dead_letters_without_end_hold_up_nothing_that_is_due() {
    const FLOOD: usize = 24_000;
    let mut world = World::new(&[1, 60], Limits::default());
    let to = (header::TARGET, "orders.out");
    for n in 0..FLOOD {
        let delay = if n % 2 == 0 { "soon" } else { "-5" };
        world.record(source(0, n as u16 % LANES), record("", &[("x-delay", delay), to]));
    }
    // Two behind the flood: one due with the first batch, and one soon after it.
    world.submit("k", &[("x-delay", "100"), to, ("n", "1")]);
    world.submit("k", &[("x-delay", "110"), to, ("n", "2")]);
    let is_delivery = |send: &&Produce| matches!(send.to, Destination::Target(_));
    let first = batch(world.after(100));
    assert!(is_delivery(&&first.sends[0]), "what is due is the first of its batch");
    let beside = first.sends.len() - 1;
    assert!(
        (1..=2_500).contains(&beside),
        "{beside} dead letters beside it, and another is due soon"
    );
    world.tell(Event::Committed(first.id));
    let second = batch(world.after(10));
    assert_eq!(second.sends.iter().filter(is_delivery).count(), 1);
    // With nothing due they leave as fast as batches do.
    let (mut dead, mut last) = (first.sends.len() + second.sends.len() - 2, second.id);
    for _ in 0..2 {
        world.tell(Event::Committed(last));
        let next = batch(world.after(10));
        (dead, last) = (dead + next.sends.len(), next.id);
    }
    assert_eq!(dead, FLOOD);
    world.tell(Event::Committed(last));
    assert_eq!(world.engine.figures().memory_bytes, 0);
    assert!(world.engine.is_drained());
}
