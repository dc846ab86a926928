use proptest::prelude::*;

use super::super::tests::{any_timing, at, timing};
use super::*;

/// By walking over each time that has passed.
fn by_walking(timing: &Timing, last: UnixMillis, now: UnixMillis, grace: Millis) -> Late {
    let mut passed = Vec::new();
    let mut next = timing.next_after(last);
    while let Some(time) = next.filter(|next| *next <= now) {
        // Else it would walk for ever.
        assert!(passed.last().is_none_or(|last| *last < time), "{time:?} twice");
        passed.push(time);
        next = timing.next_after(time);
    }
    let on_time = passed.iter().filter(|time| now.0 - time.0 <= grace.0).count();
    let count = match timing.misfire() {
        Misfire::Skip => on_time,
        Misfire::FireOnce => on_time.max(1),
        Misfire::FireAll => passed.len(),
    };
    let create = passed[passed.len().saturating_sub(count.min(100))..].to_vec();
    Late { has_skipped: create.len() < passed.len(), create, next }
}

#[test]
fn what_was_missed_is_made_up_for_as_the_schedule_says() {
    let every_minute =
        |misfire: &str| timing(&format!(r#"{{"every":"1m","misfire":"{misfire}"}}"#));
    let [once, skip, all] = ["fire_once", "skip", "fire_all"].map(every_minute);
    let minute = |n: u64| at("2027-01-01T12:00:00Z") + Millis(n * 60_000);
    let minutes = |range: std::ops::RangeInclusive<u64>| range.map(minute).collect::<Vec<_>>();
    let (none, s) = (Vec::new(), Millis(1_000));
    #[rustfmt::skip]
    let cases = [
        // why,                                      timing, now,                grace,     create,           has_skipped, next
        ("nothing has passed",                        &once, minute(1) - s,      Millis(0), none.clone(),     false, 1),
        ("it is now",                                 &once, minute(1),          Millis(0), minutes(1..=1),   false, 2),
        ("it is now, and none is late",               &skip, minute(1),          Millis(0), minutes(1..=1),   false, 2),
        ("a moment late without grace",               &skip, minute(1) + s,      Millis(0), none.clone(),     true,  2),
        ("within its grace",                          &skip, minute(1) + s,      s,         minutes(1..=1),   false, 2),
        ("five missed: the last",                     &once, minute(5) + s,      Millis(0), minutes(5..=5),   true,  6),
        ("five missed: none",                         &skip, minute(5) + s,      Millis(0), none.clone(),     true,  6),
        ("five missed: each",                         &all,  minute(5) + s,      Millis(0), minutes(1..=5),   false, 6),
        ("one in time stands for the others",         &once, minute(5) + s,      s,         minutes(5..=5),   true,  6),
        ("only the one in time",                      &skip, minute(5) + s,      s,         minutes(5..=5),   true,  6),
        ("all of those in time",                      &once, minute(5) + s,      Millis(61_000), minutes(4..=5), true, 6),
        ("a hundred of them",                         &all,  minute(100) + s,    Millis(0), minutes(1..=100), false, 101),
        ("the last hundred",                          &all,  minute(101),        Millis(0), minutes(2..=101), true,  102),
        ("a hundred also of those in time",           &skip, minute(500),        Millis(u64::MAX), minutes(401..=500), true, 501),
    ];
    for (why, timing, now, grace, create, has_skipped, next) in cases {
        let want = Late { create, has_skipped, next: Some(minute(next)) };
        assert_eq!(timing.late(minute(0), (now, now), grace), want, "{why}");
    }
    // A clock that is behind the last time: there is nothing to do before the next one.
    let want = Late { create: Vec::new(), has_skipped: false, next: Some(minute(8)) };
    assert_eq!(all.late(minute(7), (minute(3), minute(3)), s), want);
}

#[test]
fn what_fell_behind_the_end_is_not_made_up_for() {
    let ended = timing(r#"{"every":"1h","end":"2027-01-01T03:00:00Z","misfire":"fire_all"}"#);
    let now = at("2028-01-01T00:00:00Z");
    let late = ended.late(at("2027-01-01T00:00:00Z"), (now, now), Millis(0));
    let create = vec![at("2027-01-01T01:00:00Z"), at("2027-01-01T02:00:00Z")];
    assert_eq!(late, Late { create, has_skipped: false, next: None });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn it_agrees_with_a_walk_over_each_time(
        timing in any_timing(), last in 1_000_000_000_000..4_000_000_000_000u64, steps in 0..150u64, grace in 0..7_200_000u64,
        beyond in 0..10_000u64,
    ) {
        let last = UnixMillis(last);
        // So that about so many times have passed.
        let mut now = last;
        for _ in 0..steps {
            now = timing.next_after(now).unwrap_or(now);
        }
        let now = now + Millis(beyond);
        let grace = Millis(grace);
        prop_assert_eq!(timing.late(last, (now, now), grace), by_walking(&timing, last, now, grace));
    }
}
