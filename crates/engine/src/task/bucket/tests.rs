use proptest::prelude::*;

use super::*;

fn rate(per_1000_s: u64, parts: u16) -> Rate {
    Rate::per_1000_s(per_1000_s).unwrap().part_of(parts)
}

/// Tokens that a rate gives in a time, rounded down.
fn given(per_1000_s: u64, parts: u16, millis: u64) -> u64 {
    let tokens = u128::from(per_1000_s) * u128::from(millis) / (1_000_000 * u128::from(parts));
    u64::try_from(tokens).unwrap()
}

fn take_all(bucket: &mut Bucket, now: Millis) -> u64 {
    (0..).take_while(|_| bucket.take(now)).count() as u64
}

#[test]
fn tokens_come_when_the_rate_says() {
    #[rustfmt::skip]
    let cases: [(&str, u64, u16, u32, &[u64]); 7] = [
        // why, in 1,000 s, parts, burst, first times of a taker who waits for each
        ("one per second",                1_000,  1, 1, &[1_000, 2_000, 3_000]),
        ("a burst is not there at first", 1_000,  1, 9, &[1_000, 2_000, 3_000]),
        ("three per second: no drift",    3_000,  1, 1, &[334, 667, 1_000, 1_334]),
        ("a third of one per second",     1_000,  3, 1, &[3_000, 6_000]),
        ("one in 1,000 s",                    1,  1, 1, &[1_000_000, 2_000_000]),
        ("2,500 per second",          2_500_000,  1, 1, &[1, 1, 2, 2, 2, 3, 3]),
        ("a seventh of 5 per second",     5_000,  7, 1, &[1_400, 2_800, 4_200]),
    ];
    for (why, tokens, parts, burst, want) in cases {
        let mut bucket = Bucket::new(rate(tokens, parts), burst, Millis(0));
        let mut now = Millis(0);
        for (nth, at) in want.iter().enumerate() {
            now = bucket.next_at(now);
            assert_eq!(now, Millis(*at), "{why}: token {nth}");
            assert!(at == &0 || !Bucket::take(&mut bucket.clone(), Millis(at - 1)), "{why}: {nth}");
            assert!(bucket.take(now), "{why}: token {nth}");
        }
    }
}

#[test]
fn what_is_not_taken_is_kept_up_to_the_burst() {
    #[rustfmt::skip]
    let cases = [
        // burst, idle ms, tokens at one per second
        (1,   999,    0),
        (1, 60_000,   1),
        (0, 60_000,   1),
        (5,  3_000,   3),
        (5, 60_000,   5),
    ];
    for (burst, idle, want) in cases {
        let mut bucket = Bucket::new(rate(1_000, 1), burst, Millis(7));
        assert_eq!(take_all(&mut bucket, Millis(7 + idle)), want, "burst {burst}, idle {idle}");
    }
}

#[test]
fn a_clock_that_goes_back_gives_nothing() {
    let mut bucket = Bucket::new(rate(1_000, 1), 1, Millis(10_000));
    assert!(!bucket.take(Millis(0)) && bucket.take(Millis(11_000)));
    assert!(!bucket.take(Millis(500)) && !bucket.take(Millis(11_999)));
    assert_eq!(bucket.next_at(Millis(500)), Millis(12_000));
    assert!(bucket.take(Millis(12_000)));
}

#[test]
fn a_rate_of_zero_is_none_and_others_round_up() {
    assert_eq!(Rate::per_1000_s(0), None);
    for (tokens, want) in
        [(1, 1), (1_000, 1), (1_001, 2), (2_500, 3), (u64::MAX, u64::MAX / 1_000 + 1)]
    {
        assert_eq!(rate(tokens, 1).per_second_rounded_up(), want, "{tokens}");
        assert_eq!(rate(tokens, 9).per_second_rounded_up(), want, "{tokens}: of all parts");
    }
    assert_eq!(rate(5, 0), rate(5, 1));
    assert_eq!(rate(5, 4).part_of(1), rate(5, 1), "not divided twice");
}

/// Rates from one in 1,000 s to 20,000 per second.
fn rates() -> impl Strategy<Value = u64> {
    prop_oneof![1..100u64, 100..100_000u64, 100_000..20_000_000u64]
}

proptest! {
    /// Takers come when they like and take what they can get.
    #[test]
    fn no_window_has_more_than_rate_and_burst(
        tokens in rates(),
        parts in 1..20u16,
        burst in 0..50u32,
        start in 0..5_000u64,
        gaps in proptest::collection::vec(prop_oneof![0..3u64, 0..2_000u64, 0..200_000u64], 1..60),
        greed in proptest::collection::vec(1..200u64, 1..60),
    ) {
        let mut bucket = Bucket::new(rate(tokens, parts), burst, Millis(start));
        let (mut now, mut taken) = (start, Vec::new());
        for (gap, greed) in gaps.iter().zip(greed.iter().cycle()) {
            now += gap;
            let got = (0..*greed).take_while(|_| bucket.take(Millis(now))).count() as u64;
            taken.push((now, got));
        }
        for from in 0..taken.len() {
            let mut sum = 0;
            for (at, got) in &taken[from..] {
                sum += got;
                // Of the millisecond `at` the whole belongs to the window.
                let millis = at - taken[from].0 + 1;
                let most = given(tokens, parts, millis) + u64::from(burst.max(1)) + 1;
                prop_assert!(sum <= most, "{sum} in {millis} ms, at most {most}");
            }
        }
        prop_assert!(taken.iter().map(|(_, got)| got).sum::<u64>() <= given(tokens, parts, now - start));
    }

    /// Who waits for each token gets as many as the rate gives, and each time that is named is the first one.
    #[test]
    fn a_patient_taker_loses_nothing(
        tokens in rates(),
        parts in 1..20u16,
        burst in 0..50u32,
        start in 0..u64::from(u32::MAX),
        count in 1..300u64,
    ) {
        let mut bucket = Bucket::new(rate(tokens, parts), burst, Millis(start));
        let mut now = Millis(start);
        for taken in 1..=count {
            let next = bucket.next_at(now);
            if next > now {
                prop_assert!(!bucket.clone().take(Millis(next.0 - 1)), "there was one before");
            }
            prop_assert!(bucket.take(next));
            now = next;
            prop_assert!(given(tokens, parts, now.0 - start) >= taken);
            // All but those of this very millisecond are taken.
            prop_assert!(given(tokens, parts, (now.0 - start).saturating_sub(1)) <= taken);
        }
    }

    #[test]
    fn parts_add_up_to_the_whole(tokens in rates(), parts in 1..20u16, millis in 0..20_000_000u64) {
        // In `parts` times the time, a part gives exactly what the whole gives in that time.
        let mut part = Bucket::new(rate(tokens, parts), u32::MAX, Millis(0));
        let mut whole = Bucket::new(rate(tokens, 1), u32::MAX, Millis(0));
        let millis = millis.min(1_000_000_000_000 / tokens / u64::from(parts));
        prop_assume!(given(tokens, 1, millis) < 10_000);
        prop_assert_eq!(
            take_all(&mut part, Millis(millis * u64::from(parts))),
            take_all(&mut whole, Millis(millis))
        );
    }

    /// Tests run with checks of overflow.
    #[test]
    fn nothing_overflows(
        tokens in 1..=u64::MAX,
        parts in any::<u16>(),
        burst in any::<u32>(),
        times in proptest::collection::vec(prop_oneof![any::<u64>(), Just(0), Just(u64::MAX), Just(u64::MAX - 1)], 1..20),
    ) {
        for tokens in [tokens, 1, u64::MAX] {
            let mut bucket = Bucket::new(rate(tokens, parts), burst, Millis(times[0]));
            for now in &times {
                prop_assert!(bucket.next_at(Millis(*now)) >= Millis(*now));
                bucket.take(Millis(*now));
                prop_assert!(bucket.empty_at <= u128::from(u64::MAX) * u128::from(tokens));
            }
        }
    }
}
