use proptest::prelude::*;

use super::super::Offset;
use super::*;

fn order(appended: u64, offset: i64) -> SubmissionOrder {
    SubmissionOrder { appended: UnixMillis(appended), offset: Offset(offset) }
}

#[derive(Clone, Debug)]
enum Op {
    /// Due this long after `now`, or before it.
    Insert {
        ahead_ms: i64,
        appended: u64,
        count: u8,
    },
    Pop {
        step_ms: u64,
        limit: usize,
    },
    /// A clock that went back.
    PopBefore {
        back_ms: u64,
    },
    Take {
        one_in: u64,
    },
    Clear,
}

fn op() -> impl Strategy<Value = Op> {
    let ahead_ms = prop_oneof![
        6 => 0..120_i64,
        3 => Just(0_i64),
        3 => Just(1_i64),
        2 => -40..0_i64,
        1 => Just(-86_400_000_i64),
        2 => 100..400_i64,
        1 => Just(7 * 86_400_000_i64),
    ];
    let step_ms = prop_oneof![
        4 => Just(0_u64),
        6 => 1..5_u64,
        3 => 0..200_u64,
        1 => 500..2_000_u64,
        1 => Just(3 * 86_400_000_u64),
        1 => Just(8 * 86_400_000_u64),
    ];
    let limit = prop_oneof![2 => 0..4_usize, 2 => 1..20_usize, 2 => Just(usize::MAX)];
    prop_oneof![
        10 => (ahead_ms, 0..6_u64, 1..6_u8)
            .prop_map(|(ahead_ms, appended, count)| Op::Insert { ahead_ms, appended, count }),
        10 => (step_ms, limit).prop_map(|(step_ms, limit)| Op::Pop { step_ms, limit }),
        2 => (0..300_u64).prop_map(|back_ms| Op::PopBefore { back_ms }),
        1 => (1..5_u64).prop_map(|one_in| Op::Take { one_in }),
        1 => Just(Op::Clear),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    /// Whatever is put in, and however time goes, what leaves is what a sorted map would give, and in the end
    /// everything has left.
    #[test]
    fn the_wheel_agrees_with_a_sorted_map(
        horizon_ms in prop_oneof![Just(0_u64), 1..100_u64, Just(2_000_u64)],
        ops in prop::collection::vec(op(), 1..120),
    ) {
        let mut wheel = Wheel::new(Millis(horizon_ms));
        let mut model = BTreeMap::new();
        let mut now = 1_700_000_000_000_u64;
        let mut number = 0_i64;
        for op in ops.into_iter().chain([Op::Pop { step_ms: 30 * 86_400_000, limit: usize::MAX }]) {
            match op {
                Op::Insert { ahead_ms, appended, count } => {
                    for _ in 0..count {
                        // Each offset once, in no order, so that what comes later does not always go last.
                        number += 1;
                        let order = order(appended, number * 7_919 % 10_007);
                        let due = UnixMillis(now.saturating_add_signed(ahead_ms));
                        wheel.insert(due, order, number);
                        model.insert((due, order), number);
                    }
                }
                Op::Pop { step_ms, limit } => {
                    now += step_ms;
                    check_pop(&mut wheel, &mut model, now, limit);
                }
                Op::PopBefore { back_ms } => check_pop(&mut wheel, &mut model, now - back_ms, 10),
                Op::Take { one_in } => {
                    let pred = |number: &i64| (*number as u64).is_multiple_of(one_in);
                    let taken = wheel.take_where(pred);
                    let want: Vec<_> = model
                        .extract_if(.., |_, number| pred(number))
                        .map(|((due, order), number)| (due, order, number))
                        .collect();
                    prop_assert_eq!(taken, want);
                }
                Op::Clear => {
                    wheel.clear();
                    model.clear();
                }
            }
            prop_assert_eq!(wheel.len(), model.len());
            prop_assert_eq!(wheel.is_empty(), model.is_empty());
            prop_assert_eq!(wheel.next_due(), model.keys().next().map(|(due, _)| *due));
        }
        prop_assert!(wheel.is_empty());
    }
}

fn check_pop(
    wheel: &mut Wheel<i64>,
    model: &mut BTreeMap<(UnixMillis, SubmissionOrder), i64>,
    now: u64,
    limit: usize,
) {
    let mut popped = Vec::new();
    let count = wheel.pop_due(UnixMillis(now), limit, |due, order, number| {
        popped.push(((due, order), number));
    });
    assert_eq!(count, popped.len());
    let mut want = Vec::new();
    while want.len() < limit
        && let Some(first) = model.first_entry()
        && first.key().0.0 <= now
    {
        want.push(first.remove_entry());
    }
    assert_eq!(popped, want);
}

#[test]
fn entries_leave_when_due_by_due_and_order() {
    let mut wheel = Wheel::new(Millis(100));
    for (due, n) in [(1_050, 2), (1_050, 1), (1_001, 3), (900_000, 4), (7, 5)] {
        wheel.insert(UnixMillis(due), order(0, n), n);
    }
    let mut pop = |now| {
        let mut popped = Vec::new();
        wheel.pop_due(UnixMillis(now), 10, |_, _, n| popped.push(n));
        (popped, wheel.next_due().map(|due| due.0))
    };
    assert_eq!(pop(1_000), (vec![5], Some(1_001)));
    assert_eq!(pop(1_049), (vec![3], Some(1_050)));
    assert_eq!(pop(1_050), (vec![1, 2], Some(900_000)));
    assert_eq!(pop(899_999), (vec![], Some(900_000)));
    assert_eq!(pop(900_000), (vec![4], None));
}

#[test]
fn a_spike_leaves_in_order_in_portions_while_more_comes_in() {
    let (count, portion) = (200_000_i64, 500);
    let due = UnixMillis(1_002_000);
    let mut wheel = Wheel::new(Millis(2_000));
    wheel.pop_due(UnixMillis(1_000_000), 1, |_, _, _| {});
    // Read from 6 partitions in turn, each in order.
    for i in 0..count {
        wheel.insert(due, order(0, i % 6 * count + i / 6), ());
    }
    let (mut popped, mut last, mut late) = (0, order(0, -1), 0);
    while !wheel.is_empty() {
        popped += wheel.pop_due(due, portion, |_, order, ()| {
            assert!(order > last, "{order:?} after {last:?}");
            last = order;
        });
        if late < 100 {
            late += 1;
            wheel.insert(due, order(1, late), ());
        }
    }
    assert_eq!(popped as i64, count + late);
}

#[test]
fn memory_goes_when_a_spike_is_over() {
    let mut wheel = Wheel::new(Millis(2_000));
    wheel.pop_due(UnixMillis(10_000), 1, |_, _, _| {});
    for ms in 0..100 {
        for i in 0..5_000 {
            wheel.insert(UnixMillis(10_001 + ms), order(0, i), 0_u64);
            wheel.insert(UnixMillis(9_999 - ms), order(0, i), 0_u64);
        }
    }
    wheel.pop_due(UnixMillis(11_000), usize::MAX, |_, _, _| {});
    let entries = |vecs: &[Vec<_>]| vecs.iter().map(Vec::capacity).sum::<usize>();
    let kept = entries(&wheel.slots) + entries(&wheel.spares) + wheel.late.capacity();
    assert!(kept <= SPARES_MAX * SPARE_ENTRIES_MAX, "{kept}");
}
