use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

fn limits(concurrency: u32, per_1000_s: Option<u64>) -> Limits {
    let rate = per_1000_s.map(|tokens| Rate::per_1000_s(tokens).unwrap());
    Limits { concurrency, rate, burst: 10 }
}

fn numbers(serving: &Serving) -> Vec<u16> {
    serving.partitions().map(|partition| partition.0).collect()
}

/// Why, project, concurrency, rate per 1,000 s, lanes, and its partitions.
type Case = (&'static str, &'static str, u32, Option<u64>, u16, &'static [u16]);

/// The hash of `order-42` is from the tests of `murmur2`: 0 modulo 6, 240 modulo 264.
#[test]
fn partitions_follow_from_name_and_limits() {
    #[rustfmt::skip]
    let cases: [Case; 9] = [
        ("all lanes",                         "order-42", 256, None,          6, &[0, 1, 2, 3, 4, 5]),
        ("fewer calls than lanes",            "order-42",   2, None,          6, &[0, 1]),
        ("one call",                          "order-42",   1, None,          6, &[0]),
        ("a rate below the lanes",            "order-42", 256, Some(3_000),   6, &[0, 1, 2]),
        ("a rate is rounded up",              "order-42", 256, Some(2_001),   6, &[0, 1, 2]),
        ("a rate below one",                  "order-42", 256, Some(1),       6, &[0]),
        ("from the hash on",                  "order-42",   2, None,        264, &[240, 241]),
        ("past the last goes on at 0",        "abcd",       4, None,          6, &[2, 3, 4, 5]),
        ("no lanes are one",                  "abcd",     256, None,          0, &[0]),
    ];
    for (why, project, concurrency, rate, lanes, want) in cases {
        let serving = Serving::of_project(project, &limits(concurrency, rate), lanes);
        assert_eq!(numbers(&serving), want, "{why}");
    }
    let one_at_once = Limits { burst: 1, ..limits(256, Some(20_000)) };
    assert_eq!(numbers(&Serving::of_project("order-42", &one_at_once, 6)), [0]);
    // `ab` is 2 modulo 6.
    let serving = Serving::of_project("ab", &limits(5, None), 6);
    assert_eq!(numbers(&serving), [2, 3, 4, 5, 0]);
    let for_lane = [0, 1, 2, 3, 4, 5].map(|lane| serving.partition_for(Lane(lane)).0);
    assert_eq!(for_lane, [2, 3, 4, 5, 0, 2]);
    let of_service = serving.of_service(&limits(2, None));
    assert_eq!(numbers(&of_service), [2, 3]);
    assert_eq!(numbers(&serving.of_service(&limits(64, None))), numbers(&serving));
}

#[test]
fn the_first_partitions_have_what_cannot_be_divided() {
    let all = limits(8, Some(30_000));
    let serving = Serving::of_project("ab", &all, 3);
    let shares = |partition| serving.share(&all, TasksPartition(partition));
    let of = |concurrency| {
        let rate = all.rate.map(|rate| rate.part_of(3));
        Some(Limits { concurrency, rate, burst: 3 })
    };
    // `ab` is 2 modulo 6, so it is modulo 3.
    assert_eq!([2, 0, 1, 3].map(shares), [of(3), of(3), of(2), None]);
    let small = Limits { burst: 1, ..all };
    assert_eq!(serving.share(&small, TasksPartition(0)).map(|share| share.burst), Some(1));
}

fn any_limits() -> impl Strategy<Value = Limits> {
    let rate = proptest::option::of(prop_oneof![1..20_000u64, 1..1_000_000_000u64]);
    let concurrency = prop_oneof![1..20u32, 1..=10_000u32];
    (concurrency, rate, 1..1_000u32)
        .prop_map(|(concurrency, rate, burst)| Limits { burst, ..limits(concurrency, rate) })
}

proptest! {
    #[test]
    fn shares_add_up_and_none_is_empty(
        name in "[a-z0-9._-]{1,12}",
        of_project in any_limits(),
        of_service in any_limits(),
        lanes in prop_oneof![1..20u16, 1..=u16::MAX],
    ) {
        let project = Serving::of_project(&name, &of_project, lanes);
        let service = project.of_service(&of_service);
        for (serving, limits) in [(project, of_project), (service, of_service)] {
            let (mut calls, mut seen) = (0u64, BTreeSet::new());
            for (k, partition) in serving.partitions().enumerate() {
                prop_assert!(partition.0 < lanes);
                prop_assert!(seen.insert(partition), "twice");
                prop_assert_eq!(serving.position(partition).map(usize::from), Some(k));
                let share = serving.share(&limits, partition).unwrap();
                prop_assert!(share.concurrency >= 1 && share.burst >= 1);
                prop_assert_eq!(share.rate, limits.rate.map(|rate| rate.part_of(serving.count())));
                calls += u64::from(share.concurrency);
            }
            prop_assert_eq!(calls, u64::from(limits.concurrency));
            prop_assert_eq!(seen.len(), usize::from(serving.count()));
            // No other partition has a share.
            let others = (0..=lanes).map(TasksPartition).filter(|other| !seen.contains(other));
            for other in others.take(50).chain([TasksPartition(u16::MAX)]) {
                prop_assert_eq!(serving.share(&limits, other).is_some(), seen.contains(&other));
            }
        }
    }

    #[test]
    fn a_service_is_served_by_partitions_of_its_project(
        name in "[a-z0-9._-]{1,12}",
        of_project in any_limits(),
        of_service in any_limits(),
        lanes in 1..300u16,
    ) {
        let project = Serving::of_project(&name, &of_project, lanes);
        let service = project.of_service(&of_service);
        let of: BTreeSet<_> = project.partitions().collect();
        let served: BTreeSet<_> = service.partitions().collect();
        prop_assert!(served.is_subset(&of) && !served.is_empty());
        for lane in (0..lanes).map(Lane) {
            prop_assert!(of.contains(&project.partition_for(lane)));
            prop_assert!(served.contains(&service.partition_for(lane)));
        }
        // Each of them is dispatched to: a share that no lane uses would be lost.
        let used: BTreeSet<_> = (0..lanes).map(|lane| service.partition_for(Lane(lane))).collect();
        prop_assert_eq!(used, served);
    }

    #[test]
    fn no_more_may_begin_at_once_than_the_burst_says(name in "[a-z]{1,5}", of_project in any_limits(), lanes in 1..300u16) {
        let serving = Serving::of_project(&name, &of_project, lanes);
        let shares = serving.partitions().filter_map(|at| serving.share(&of_project, at));
        let sum: u32 = shares.map(|share| share.burst).sum();
        prop_assert!(of_project.rate.is_none() || sum <= of_project.burst);
    }
}
