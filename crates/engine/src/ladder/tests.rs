use proptest::collection::btree_set;
use proptest::prelude::*;

use super::*;

const S: u64 = 1_000;
const M: u64 = 60 * S;
const H: u64 = 60 * M;
const D: u64 = 24 * H;
const HORIZON: Millis = Millis(2_000);

fn ladder(holds: &[u64]) -> Ladder {
    let holds: Vec<Millis> = holds.iter().copied().map(Millis).collect();
    Ladder::new(&holds, &[], LEAD_MAX).unwrap()
}

fn preset(preset: Preset) -> Ladder {
    Ladder::new(&preset.holds(), &[], LEAD_MAX).unwrap()
}

#[test]
fn a_tier_lets_go_a_lead_before_its_hold_is_over() {
    #[rustfmt::skip]
    let cases = [
        // why                             hold       lead       wait       slack
        ("the longest lead",               M,         2 * S,     58 * S,    S),
        ("half of a short hold",           S,         500,       500,       250),
        ("where both rules meet",          4 * S,     2 * S,     2 * S,     S),
        ("rounded down, so never too long", 3,        1,         2,         0),
    ];
    for (why, hold, lead, wait, slack) in cases {
        let ladder = ladder(&[hold]);
        let tier = &ladder.tiers()[0];
        let got = (tier.lead.0, tier.wait().0, tier.slack().0);
        assert_eq!(got, (lead, wait, slack), "{why}");
    }
}

#[test]
fn the_longest_tier_that_fits_with_half_its_lead_is_picked() {
    let holds = [Millis(S), Millis(10 * S), Millis(M), Millis(H)];
    let ladder = Ladder::new(&[holds[0], holds[1], holds[3]], &[holds[2]], LEAD_MAX).unwrap();
    #[rustfmt::skip]
    let cases = [
        // why                                   remaining  want
        ("overdue",                              0,         None),
        ("one short of the shortest",            749,       None),
        ("its wait and half its lead",           750,       Some(0)),
        ("exactly a hold",                       10 * S,    Some(1)),
        ("half the lead was lost on the way",    9 * S,     Some(1)),
        ("more than half was lost",              9 * S - 1, Some(0)),
        ("the tier that fits is being drained",  M,         Some(1)),
        ("longer than the ladder",               90 * H,    Some(3)),
        ("the end of time",                      u64::MAX,  Some(3)),
    ];
    for (why, remaining, want) in cases {
        assert_eq!(ladder.pick(Millis(remaining)), want, "{why}");
    }
}

#[test]
fn what_is_no_ladder_is_refused() {
    let many: Vec<Millis> = (1..=257).map(|n| Millis(n * S)).collect();
    let long = Millis(400 * D + 1);
    #[rustfmt::skip]
    let cases: [(&str, &[Millis], &[Millis], LadderError); 8] = [
        ("nowhere to wait",            &[], &[], LadderError::Empty),
        ("nowhere to write to",        &[], &[Millis(S)], LadderError::Empty),
        ("no waiting",                 &[Millis(0), Millis(S)], &[], LadderError::Zero),
        ("one topic twice",            &[Millis(S), Millis(M), Millis(S)], &[], LadderError::Twice(Millis(S))),
        ("written to and drained",     &[Millis(S), Millis(M)], &[Millis(M)], LadderError::Twice(Millis(M))),
        ("longer than any delay",      &[Millis(S), long], &[], LadderError::TooLong(long)),
        ("too many topics",            &many, &[], LadderError::TooMany(257)),
        ("too many with the drained",  &many[..200], &many[200..], LadderError::TooMany(257)),
    ];
    for (why, holds, draining, want) in cases {
        assert_eq!(Ladder::new(holds, draining, LEAD_MAX).err(), Some(want), "{why}");
    }
    let ladder = Ladder::new(&[Millis(M), Millis(S)], &[Millis(H)], LEAD_MAX).unwrap();
    let holds: Vec<Millis> = ladder.tiers().iter().map(|tier| tier.hold).collect();
    assert_eq!(holds, [Millis(S), Millis(M), Millis(H)], "the order of the list does not matter");
}

#[test]
fn ladder_and_horizon_must_leave_no_gap() {
    let open = |holds: &[u64]| ladder(holds).check(HORIZON);
    assert_eq!(open(&[S, M]), Ok(()));
    let (hold, reach, horizon) = (Millis(3 * S), Millis(2_250), HORIZON);
    assert_eq!(open(&[3 * S, M]), Err(LadderError::Gap { hold, reach, horizon }));
    let drained = Ladder::new(&[Millis(M)], &[Millis(S)], LEAD_MAX).unwrap();
    assert!(matches!(drained.check(HORIZON), Err(LadderError::Gap { .. })), "not written to");
    let long = Ladder::new(&[Millis(S), Millis(M)], &[], Millis(3 * S)).unwrap();
    let (lead, horizon) = (Millis(3 * S), HORIZON);
    assert_eq!(long.check(HORIZON), Err(LadderError::Lead { lead, horizon }));
}

#[test]
fn ladders_are_read_by_name_and_as_lists() {
    let list = |holds: &[u64]| Ok(holds.iter().copied().map(Millis).collect::<Vec<_>>());
    #[rustfmt::skip]
    let cases = [
        ("a name",               "classic",      list(&[S, M, H])),
        ("a list in any order",  "1m, 1s,1h30m", list(&[S, M, 90 * M])),
        ("one hold",             "5s",           list(&[5 * S])),
        ("no such name",         "steep",        Err(LadderError::Unknown("steep".into()))),
        ("nothing",              "",             Err(LadderError::Unknown("".into()))),
        ("a hole in the list",   "1s,,5s",       Err(LadderError::NotAHold("".into()))),
        ("no length of time",    "1s,5x",        Err(LadderError::NotAHold("5x".into()))),
        ("a bare small number",  "1s,5",         Err(LadderError::TooShort(Millis(5)))),
    ];
    for (why, text, want) in cases {
        assert_eq!(holds(text), want, "{why}");
    }
    for preset in Preset::ALL {
        assert_eq!(holds(&preset.to_string()), Ok(preset.holds()));
        assert!(Ladder::new(&preset.holds(), &[], LEAD_MAX).unwrap().check(HORIZON).is_ok());
    }
}

#[test]
fn the_default_ladder_keeps_its_promises() {
    let round = preset(Preset::default());
    assert_eq!(round.tiers().len(), 21);
    assert!(round.hops_max(Millis(7 * D), HORIZON) <= 15);
    let once =
        [5 * S, 10 * S, 30 * S, M, 5 * M, 10 * M, 15 * M, 30 * M, H, 2 * H, 12 * H, D, 7 * D];
    for delay in once {
        assert_eq!(round.hops(Millis(delay), HORIZON), 1, "{}", Millis(delay));
    }
}

#[test]
fn figures_are_those_that_the_documents_state() {
    #[rustfmt::skip]
    let cases = [
        // preset          horizon  uniform to 24 h   exactly 30 m
        (Preset::Classic,  2 * S,   99.5..101.0,      33),
        (Preset::Round,    2 * S,   9.3..9.7,         3),
        (Preset::Clock,    2 * S,   4.9..5.05,        3),
        (Preset::Classic,  60 * S,  43.5..45.0,       32),
        (Preset::Round,    60 * S,  6.8..7.0,         3),
        (Preset::Clock,    60 * S,  3.9..4.05,        3),
    ];
    for (name, horizon, uniform, exact) in cases {
        let ladder = preset(name);
        let cost = |delays| figures(&ladder, &delays, Millis(horizon));
        let mean = cost(Delays::Uniform(Millis(D))).appends_mean();
        assert!(uniform.contains(&mean), "{name}, horizon {horizon}: {mean}");
        let half_hour = cost(Delays::Exactly(vec![Millis(30 * M)]));
        assert_eq!(half_hour.appends_max(), exact, "{name}, horizon {horizon}");
    }
}

#[test]
fn a_proposed_ladder_serves_the_delays_it_is_for() {
    #[rustfmt::skip]
    let cases: [(&str, &[u64], u32); 5] = [
        ("one delay",                 &[30 * M], 15),
        ("two far apart",             &[30 * M, 7 * D], 15),
        ("two that share a tier",     &[60_000, 60_000], 15),
        ("odd ones",                  &[12_345, 987_654, 3 * D + 7], 12),
        ("some within the horizon",   &[0, 500, 10 * S], 4),
    ];
    for (why, delays, bound) in cases {
        let delays: Vec<Millis> = delays.iter().copied().map(Millis).collect();
        let holds = propose(&delays, bound, LEAD_MAX, HORIZON).unwrap();
        let ladder = Ladder::new(&holds, &[], LEAD_MAX).unwrap();
        assert_eq!(ladder.check(HORIZON), Ok(()), "{why}: {holds:?}");
        for &delay in &delays {
            assert!(ladder.hops(delay, HORIZON) <= 1, "{why}: {delay} on {holds:?}");
        }
        let longest = delays.iter().copied().max().unwrap();
        assert!(ladder.hops_max(longest, HORIZON) <= bound, "{why}: {holds:?}");
    }
    assert_eq!(propose(&[Millis(5)], 15, LEAD_MAX, HORIZON), Err(LadderError::Empty));
    let wide = propose(&[Millis(70 * S), Millis(100 * S)], 15, LEAD_MAX, Millis(60 * S)).unwrap();
    assert_eq!(wide, [Millis(M), Millis(70 * S)], "100 s are within the horizon after 70 s, too");
}

/// The way of a record, hop by hop, with `lost` milliseconds gone before each append but the first.
fn walk(ladder: &Ladder, delay: Millis, horizon: Millis, mut lost: impl FnMut() -> u64) -> u32 {
    let (mut remaining, mut hops) = (delay, 0);
    while remaining > horizon {
        let Some(at) = ladder.pick(remaining) else { break };
        let tier = &ladder.tiers()[at];
        assert!(tier.open && tier.wait() + tier.slack() <= remaining, "an overshoot");
        remaining = remaining.saturating_sub(tier.wait()).saturating_sub(Millis(lost()));
        hops += 1;
    }
    hops
}

fn small_ladders() -> impl Strategy<Value = Ladder> {
    btree_set(1u64..3_000, 1..8).prop_map(|holds| {
        let holds: Vec<Millis> = holds.into_iter().map(Millis).collect();
        Ladder::new(&holds, &[], Millis(200)).unwrap()
    })
}

proptest! {
    /// The count that skips over repeated hops is that of the hops made one by one.
    #[test]
    fn hops_are_those_of_a_walk(ladder in small_ladders(), delay in 0u64..20_000, horizon in 0u64..500) {
        let (delay, horizon) = (Millis(delay), Millis(horizon));
        prop_assert_eq!(ladder.hops(delay, horizon), walk(&ladder, delay, horizon, || 0));
    }

    /// Where ladder and horizon go together, the bound is met by some delay and passed by none.
    #[test]
    fn the_most_hops_are_those_of_the_worst_delay(
        holds in btree_set(1u64..600, 1..8), max in 0u64..6_000, more in 0u64..50, lead in 0u64..100,
    ) {
        let holds: Vec<Millis> = holds.into_iter().map(Millis).collect();
        let ladder = Ladder::new(&holds, &[], Millis(lead)).unwrap();
        let least = ladder.tiers()[0].reach().max(Millis(lead.min(holds[holds.len() - 1].half().0)));
        let horizon = least + Millis(more);
        prop_assert_eq!(ladder.check(horizon), Ok(()));
        let worst = (0..=max).map(|delay| ladder.hops(Millis(delay), horizon)).max();
        prop_assert_eq!(Some(ladder.hops_max(Millis(max), horizon)), worst);
    }

    /// Whatever time is lost between hops, there are no more of them than the bound says.
    #[test]
    fn time_that_is_lost_makes_no_more_hops(
        delay in 0u64..7 * D, losses in prop::collection::vec(0u64..3_000, 1..30), name in 0usize..3,
    ) {
        let ladder = preset(Preset::ALL[name]);
        let most = ladder.hops_max(Millis(7 * D), HORIZON);
        let mut losses = losses.iter().cycle().copied();
        let hops = walk(&ladder, Millis(delay), HORIZON, || losses.next().unwrap_or_default());
        prop_assert!(hops <= most, "{hops} > {most}");
        prop_assert!(ladder.hops(Millis(delay), HORIZON) <= most);
    }
}
