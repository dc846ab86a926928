use super::*;
use crate::{Lane, TopicId};

const WAIT: Millis = Millis(10_000);
const INTAKE: Source = Source { topic: TopicId(0), lane: Lane(3) };
const TIER: Source = Source { topic: TopicId(1), lane: Lane(3) };

fn never(_: Source) -> bool {
    false
}

fn ms(ms: u64) -> Millis {
    Millis(ms)
}

fn reach(goals: &[(Source, i64, u64)], now: Millis) -> ReadGoals {
    let mut reach = ReadGoals::new(1, WAIT);
    for (source, end, at) in goals {
        reach.add(*source, Offset(*end), UnixMillis(*at), now);
    }
    reach
}

#[test]
fn a_goal_is_reached_once_when_reading_is_past_it() {
    let now = Millis(5);
    let mut reach = reach(&[(INTAKE, 10, 1), (INTAKE, 12, 2), (TIER, 5, 1)], now);
    #[rustfmt::skip]
    let steps = [
        ("before it",                  INTAKE, 9,  vec![]),
        ("at the first, not the next", INTAKE, 11, vec![UnixMillis(1)]),
        ("the first is told once",     INTAKE, 11, vec![]),
        ("another partition",          TIER,   99, vec![UnixMillis(1)]),
        ("past the last",              INTAKE, 99, vec![UnixMillis(2)]),
        ("none is left",               INTAKE, 99, vec![]),
    ];
    for (why, source, next, want) in steps {
        assert_eq!(reach.read(source, Offset(next)), want, "{why}");
    }
    assert!(reach.due(now, never).is_empty() && reach.patience(never).is_none());
}

#[test]
fn intakes_are_looked_at_often_and_tiers_seldom() {
    let now = Millis(5);
    let mut reach = reach(&[(INTAKE, 5, 1), (INTAKE, 6, 2)], now);
    reach.begin(TIER, Offset(5), UnixMillis(1), now);
    assert_eq!(reach.patience(never), Some(LOOK_SOON));
    assert_eq!(reach.due(now, never), [INTAKE, TIER]);
    assert_eq!(reach.due(now + ms(5), never), [INTAKE]);
    assert_eq!(reach.due(now + ms(5), |source| source == TIER), [INTAKE, TIER], "awaited");
    assert_eq!(reach.due(now + ms(1_000), never), [INTAKE, TIER]);
    reach.add(TIER, Offset(7), UnixMillis(3), now + ms(1_000));
    assert_eq!(reach.due(now + ms(1_005), never), [INTAKE, TIER], "asked a moment ago");
    assert_eq!(reach.due(now + ms(1_999), never), [INTAKE, TIER]);
    reach.read(INTAKE, Offset(6));
    assert_eq!(reach.patience(never), None, "nothing waits for a tier");
}

#[test]
fn a_foreign_transaction_is_waited_for_from_when_it_was_first_seen() {
    let now = Millis(5);
    let mut reach = reach(&[(INTAKE, 10, 1)], now);
    assert!(
        reach.suspects(now + ms(50), never).is_empty(),
        "it may be that reading takes a moment"
    );
    assert_eq!(reach.suspects(now + ms(100), never), [INTAKE]);
    assert!(reach.suspects(now + ms(200), never).is_empty(), "just asked");
    #[rustfmt::skip]
    let steps = [
        // why,                                                    after ms, read to, stable, want
        ("not read to it yet",                                          100,       4,      7, vec![]),
        ("first seen",                                                  200,       7,      7, vec![]),
        ("another one is the first now",                              9_000,       8,      8, vec![]),
        ("not for long enough",                                      18_999,       8,      8, vec![]),
        ("for long enough",                                          19_000,       8,      8, vec![UnixMillis(1)]),
        ("once",                                                     19_001,       8,      8, vec![]),
    ];
    for (why, after, next, stable, want) in steps {
        let told = reach.open(INTAKE, Offset(next), Offset(stable), now + ms(after));
        assert_eq!(told, want, "{why}");
    }
}

#[test]
fn what_was_waited_for_once_is_not_waited_for_again_while_it_is_open() {
    let now = Millis(5);
    let mut reach = reach(&[(INTAKE, 10, 1)], now);
    reach.open(INTAKE, Offset(7), Offset(7), now);
    assert_eq!(reach.open(INTAKE, Offset(7), Offset(7), now + WAIT), [UnixMillis(1)]);
    reach.add(INTAKE, Offset(11), UnixMillis(2), now + WAIT);
    assert_eq!(reach.open(INTAKE, Offset(7), Offset(7), now + WAIT + ms(1)), [UnixMillis(2)]);
    reach.add(INTAKE, Offset(12), UnixMillis(3), now + WAIT);
    assert!(reach.open(INTAKE, Offset(9), Offset(9), now + WAIT).is_empty(), "another one");
}
