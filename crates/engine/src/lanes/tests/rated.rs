//! Targets to which only so many records may go in a time.

use super::*;
use crate::messages::Outcome;
use crate::setup::Arrival;
use crate::task::registry::{Change, Registry, read_request};

const TARGET: &str = "orders.expire";

/// A rate and a burst of all lanes together, or none; and whether it is paused.
fn registry(settings: &str) -> Event {
    let mut registry = Registry::default();
    let change = read_request(&format!("target/{TARGET}"), settings.as_bytes()).expect("sound");
    registry.apply(Change::with_revision(change, 1)).expect("room");
    Event::Registry(Arc::new(registry))
}

/// A key of each lane.
fn keys() -> Vec<String> {
    let mut keys = vec![String::new(); usize::from(LANES)];
    for n in 0..200 {
        let key = format!("k{n}");
        let lane = murmur2::partition(key.as_bytes(), LANES);
        keys[usize::from(lane)] = key;
    }
    keys
}

/// What was delivered, and when.
#[derive(Debug)]
struct Delivered {
    at: UnixMillis,
    lane: u16,
    target: String,
    value: String,
}

/// A world in which what goes into tiers comes up again.
struct Running {
    world: World,
    delivered: Vec<Delivered>,
    hops: usize,
}

impl Running {
    fn new(limits: Limits, settings: &str) -> Self {
        let mut world = World::new(&[1, 2, 5, 10, 30, 60], limits);
        let mut setup = Setup::clone(&world.engine.setup);
        setup.topics = setup.topics.with_tasks();
        world.engine = LaneEngine::new(Arc::new(setup));
        world.assign(&[]);
        world.tell(registry(settings));
        Self { world, delivered: Vec::new(), hops: 0 }
    }

    /// Submits a record with this value by the key of a lane.
    fn submit(&mut self, lane: u16, value: &str, delay: u64, more: &[(&str, &str)]) {
        let (key, delay) = (keys().swap_remove(usize::from(lane)), delay.to_string());
        let mut headers = vec![("x-delay", delay.as_str())];
        if !more.iter().any(|(name, _)| *name == "x-delay-target") {
            headers.push(("x-delay-target", TARGET));
        }
        headers.extend(more);
        let named = headers.iter().map(|(name, value)| (name.as_bytes(), Some(value.as_bytes())));
        let record = Record::new(Some(key.as_bytes()), Some(value.as_bytes()), named);
        let out = self.world.record(source(0, lane), record);
        self.carry_out(out);
    }

    fn carry_out(&mut self, mut out: Vec<Action>) {
        while let Some(action) = out.pop() {
            match action {
                Action::DescribeTarget(name) => {
                    out.extend(self.world.tell(Event::Target(name, FOUND)));
                }
                Action::Recall { lane, timers } => {
                    let timers = timers.into_iter().map(|timer_id| (timer_id, None)).collect();
                    out.extend(self.world.tell(Event::Recalled { lane, timers }));
                }
                Action::ListEndOffsets(sources) => {
                    let at = self.world.now;
                    for source in sources {
                        out.extend(self.world.tell(Event::ReadUpTo { source, at }));
                    }
                }
                Action::Batch(batch) => {
                    let mut back = Vec::new();
                    for send in &batch.sends {
                        match &send.to {
                            Destination::Target(target) => self.delivered.push(Delivered {
                                at: self.world.now,
                                lane: murmur2::partition(send.record.key().expect("one"), LANES),
                                target: target.to_string(),
                                value: String::from_utf8_lossy(
                                    send.record.value().unwrap_or_default(),
                                )
                                .into_owned(),
                            }),
                            Destination::Lane(topic) => {
                                let lane = send.partition.expect("a lane") as u16;
                                back.push((source(topic.0, lane), written(send)));
                            }
                            _ => {}
                        }
                    }
                    out.extend(self.world.tell(Event::Committed(batch.id)));
                    self.hops += back.len();
                    for (source, record) in back {
                        out.extend(self.world.record(source, record));
                    }
                }
                _ => {}
            }
        }
    }

    fn go_on(&mut self, ms: u64) {
        let until = self.world.now + Millis(ms);
        while self.world.now < until {
            // Whatever the engine waits for: no tick comes too late because of this test.
            let wake = self.world.engine.wake_at().unwrap_or(until);
            let at = wake.clamp(self.world.now + Millis(1), until);
            let out = self.world.after((at - self.world.now).0);
            self.carry_out(out);
        }
    }

    /// What went to the target, by when.
    fn arrived(&self) -> impl Iterator<Item = &Delivered> {
        self.delivered.iter().filter(|of| of.target == TARGET)
    }

    fn values(&self) -> Vec<&str> {
        self.arrived().map(|of| of.value.as_str()).collect()
    }

    /// How long after a time each has arrived, in milliseconds.
    fn after(&self, from: UnixMillis) -> Vec<u64> {
        self.arrived().map(|of| (of.at - from).0).collect()
    }

    /// In any window no more have arrived than the rate and the burst let go: of all lanes, or of one.
    #[track_caller]
    fn assert_holds(&self, lane: Option<u16>, per_second: u64, burst: u64) {
        let of_lane = |of: &&Delivered| lane.is_none_or(|lane| of.lane == lane);
        let at: Vec<u64> = self.arrived().filter(of_lane).map(|of| of.at.0).collect();
        for (from, first) in at.iter().enumerate() {
            for (to, last) in at.iter().enumerate().skip(from) {
                let (count, ms) = ((to - from + 1) as u64, last - first);
                // Time counts in whole milliseconds.
                let most = per_second * (ms + 1) + burst * 1_000;
                assert!(count * 1_000 <= most, "{count} in {ms} ms");
            }
        }
    }

    fn rated(&self) -> usize {
        self.world.engine.figures().rated
    }
}

#[test]
fn a_lane_delivers_its_share_of_the_rate_by_due_time_and_hurts_no_other_target() {
    let mut running = Running::new(Limits::default(), r#"{"rate":8,"burst":8}"#);
    running.go_on(10_000);
    for n in (10..50).rev() {
        running.submit(1, &n.to_string(), 1_000 + n, &[]);
    }
    running.submit(1, "other", 1_100, &[("x-delay-target", "orders.other")]);
    let due = running.world.now + Millis(1_000);
    running.go_on(30_000);
    let want: Vec<String> = (10..50).map(|n| n.to_string()).collect();
    assert_eq!(running.values(), want);
    running.assert_holds(Some(1), 2, 2);
    // Two at once, for it was idle; then one in half a second.
    let after = running.after(due);
    assert!(after[1] <= 60 && (18_900..=19_200).contains(&after[39]), "{after:?}");
    let other = running.delivered.iter().find(|of| of.value == "other").expect("it arrives");
    assert!((other.at - due).0 <= 150, "{other:?} is due 100 ms after {due:?}");
    assert_eq!((running.rated(), running.hops), (0, 0));
    assert_eq!(running.world.engine.figures().memory_bytes, 0);
    // An idle hour saves no more than the burst.
    running.go_on(3_600_000);
    running.delivered.clear();
    let now = running.world.now;
    (0..5).for_each(|n| running.submit(1, &n.to_string(), 100, &[]));
    running.go_on(5_000);
    let after = running.after(now);
    assert!(after[1] <= 150 && after[2] >= 500 && after[4] <= 1_800, "{after:?}");
    running.assert_holds(Some(1), 2, 2);
}

#[test]
fn all_lanes_together_keep_to_the_rate_and_to_the_burst() {
    for (burst, at_once, settings) in [
        (6, 6, r#"{"rate":8,"burst":6}"#),
        // Each lane has one.
        (4, 4, r#"{"rate":8,"burst":1}"#),
        (8, 8, r#"{"rate":8}"#),
    ] {
        let mut running = Running::new(Limits::default(), settings);
        running.go_on(10_000);
        for n in 0..80 {
            running.submit(n % LANES, &n.to_string(), 500, &[]);
        }
        let due = running.world.now + Millis(500);
        running.go_on(30_000);
        running.assert_holds(None, 8, burst);
        let after = running.after(due);
        assert_eq!(after.len(), 80, "{settings}");
        assert_eq!(after.iter().filter(|ms| **ms <= 50).count(), at_once, "{after:?}");
        assert!(after[79] <= 10_000, "{after:?}");
    }
}

#[test]
fn who_takes_lanes_over_has_no_tokens() {
    let mut running = Running::new(Limits::default(), r#"{"rate":8,"burst":40}"#);
    running.go_on(60_000);
    running.world.tell(Event::Revoked);
    running.world.next.clear();
    running.world.assign(&[]);
    let now = running.world.now;
    (0..8).for_each(|n| running.submit(2, &n.to_string(), 10, &[]));
    running.go_on(10_000);
    let after = running.after(now);
    assert!(after[0] >= 500 && after[7] >= 4_000 && after[7] <= 4_200, "{after:?}");
    // What has waited is gone with its lane: its next owner reads it again.
    (0..20).for_each(|n| running.submit(2, &n.to_string(), 10, &[]));
    running.go_on(200);
    assert!(running.rated() > 0);
    running.world.tell(Event::Revoked);
    assert_eq!((running.rated(), running.world.engine.figures().memory_bytes), (0, 0));
}

#[test]
fn what_finds_no_room_is_put_off_comes_once_and_costs_few_hops() {
    // Room for some fifty of them.
    let limits = Limits { memory_bytes: 400_000, ..Limits::default() };
    let mut running = Running::new(limits, r#"{"rate":40,"burst":4}"#);
    let due = running.world.now + Millis(1_000);
    for n in 100..700 {
        running.submit(3, &n.to_string(), 1_000, &[]);
    }
    running.submit(3, "other", 1_000, &[("x-delay-target", "orders.other")]);
    running.go_on(5_000);
    let other = running.delivered.iter().find(|of| of.value == "other").expect("it arrives");
    assert!((other.at - due).0 <= 100, "{other:?} is due at {due:?}");
    let waiting = running.rated();
    assert!((10..200).contains(&waiting), "{waiting}");
    running.go_on(120_000);
    running.assert_holds(Some(3), 10, 1);
    let mut values = running.values();
    values.sort_unstable();
    let want: Vec<String> = (100..700).map(|n| n.to_string()).collect();
    assert_eq!(values, want);
    let after = running.after(due);
    // 600 of 10 in a second. No token is lost to speak of, and each record hops about four times.
    assert!(after[599] <= 66_000, "{}", after[599]);
    assert!((600..=3_000).contains(&running.hops), "{}", running.hops);
    assert_eq!((running.rated(), running.world.engine.figures().memory_bytes), (0, 0));
}

#[test]
fn a_rate_that_is_taken_away_lets_all_go_and_a_pause_keeps_to_it_after_its_end() {
    let mut running = Running::new(Limits::default(), r#"{"rate":4,"paused":true}"#);
    (10..30).for_each(|n| running.submit(0, &n.to_string(), 100 + n, &[]));
    running.go_on(60_000);
    assert_eq!(running.values(), [""; 0]);
    let resumed = running.world.now;
    let out = running.world.tell(registry(r#"{"rate":4}"#));
    running.carry_out(out);
    running.go_on(5_500);
    let after = running.after(resumed);
    assert!(after.len() == 6 && after[0] <= 50 && after[5] >= 4_990, "{after:?}");
    // Slower, then as fast as can be.
    let out = running.world.tell(registry(r#"{"rate":0.4}"#));
    running.carry_out(out);
    running.go_on(10_500);
    assert_eq!(running.values().len(), 7, "one comes in ten seconds");
    let out = running.world.tell(registry("{}"));
    running.carry_out(out);
    running.go_on(50);
    let want: Vec<String> = (10..30).map(|n| n.to_string()).collect();
    assert_eq!(running.values(), want);
}

#[test]
fn what_is_cancelled_or_expired_while_it_waits_takes_no_token() {
    let limits = Limits { settle: Some(Millis(0)), ..Limits::default() };
    let mut running = Running::new(limits, r#"{"rate":4,"burst":1}"#);
    for id in ["a", "b", "c", "d"] {
        running.submit(2, id, 1_000, &[("x-delay-id", id)]);
    }
    running.submit(2, "e", 1_100, &[("x-delay-expires", "1500")]);
    running.submit(2, "f", 1_100, &[]);
    let due = running.world.now + Millis(1_000);
    running.go_on(1_500);
    assert_eq!(running.values(), ["a"]);
    let (key, mut outcomes) = (keys().swap_remove(2), Vec::new());
    for id in ["b", "c", "d"] {
        let cancel = [("x-delay-id", id), ("x-delay-action", "cancel")];
        let mut out = running.world.record(source(0, 2), record(&key, &cancel));
        out.extend(running.world.after(20));
        let batch = batch(out);
        outcomes.extend(batch.answers.iter().map(|answer| answer.outcome));
        let out = running.world.tell(Event::Committed(batch.id));
        running.carry_out(out);
    }
    assert_eq!(outcomes, [Outcome::Cancelled; 3]);
    running.go_on(10_000);
    assert_eq!(running.values(), ["a", "f"]);
    let after = running.after(due);
    assert!(after[1] <= 1_050, "{after:?}");
}

#[test]
fn in_strict_order_those_of_a_key_stay_in_order_and_other_targets_go_on() {
    let limits = Limits {
        arrival: Arrival::Strict,
        settle: Some(Millis(50)),
        memory_bytes: 200_000,
        ..Limits::default()
    };
    let mut running = Running::new(limits, r#"{"rate":40,"burst":4}"#);
    running.go_on(1_000);
    for n in 100..108 {
        running.submit(3, &n.to_string(), 1_000 + n, &[]);
    }
    let elsewhere = [("x-delay-target", "orders.other")];
    running.submit(3, "other", 1_150, &elsewhere);
    let due = running.world.now + Millis(1_150);
    running.go_on(5_000);
    let other = running.delivered.iter().find(|of| of.value == "other").expect("it arrives");
    // As soon as it is known that nothing is due before it: with the records of its lane that have room in memory nothing is late.
    assert!((other.at - due).0 <= 200, "{other:?} is due at {due:?}");
    for n in 108..300 {
        running.submit(3, &n.to_string(), 1_000 + n, &[]);
    }
    running.go_on(60_000);
    let want: Vec<String> = (100..300).map(|n| n.to_string()).collect();
    assert_eq!(running.values(), want);
    running.assert_holds(Some(3), 10, 1);
    assert!(running.hops > 0, "some found no room");
    assert_eq!((running.rated(), running.world.engine.figures().memory_bytes), (0, 0));
}
