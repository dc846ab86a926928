//! What a life of a task appends to Kafka, as `docs/sizing.md` tells operators.

use super::*;
use crate::task::spec::Spec;

/// What one task appends until it has ended: to the intake, `<ns>.timers`, `<ns>.tasks`, `<ns>.results`, and its target. Hops are
/// left out, as they depend on how long it waits.
fn appends(mut world: World, spec: &str) -> [usize; 5] {
    let spec = Spec::parse(spec.as_bytes()).expect("sound");
    let id = world.create_spec(1, 5_000, &spec, None);
    world.after(600_000);
    assert_eq!(world.state(&id), Some(TimerState::Delivered));
    ["intake", "timers", "tasks", "results", "target"]
        .map(|kind| world.appends.get(kind).copied().unwrap_or_default())
}

/// Of an HTTP task, each of whose first calls is answered so.
fn http(unfinished: usize, answer: fn() -> TaskResult, more: &str) -> [usize; 5] {
    let world = World::new(move |_, nth| (5, if nth < unfinished { answer() } else { finished() }));
    let spec = r#"{"type":"http","project":"shop","group":"g","url":"http://a.example/x""#;
    appends(world, &format!("{spec}{more}}}"))
}

#[test]
fn a_life_appends_as_much_as_operators_are_told() {
    let retries = r#","retry":{"count":5,"interval":5}"#;
    let rounds = r#","poll":{"interval":5,"rounds":9}"#;
    let kafka = r#"{"type":"kafka","project":"shop","group":"g","topic":"orders.out"}"#;
    let failed = || failed(500);
    let lives = [
        ("to a topic", appends(World::new(|_, _| (5, finished())), kafka)),
        ("one call", http(0, failed, "")),
        ("one retry", http(1, failed, retries)),
        ("three retries", http(3, failed, retries)),
        ("one round", http(1, not_yet, rounds)),
        ("three rounds", http(3, not_yet, rounds)),
    ];
    #[rustfmt::skip]
    let want = [
        //                intake, timers, tasks, results, target
        ("to a topic",    [1,      3,      0,     0,       1]),
        ("one call",      [1,      5,      1,     1,       0]),
        ("one retry",     [1,      8,      2,     2,       0]),
        ("three retries", [1,      14,     4,     4,       0]),
        ("one round",     [1,      7,      2,     2,       0]),
        ("three rounds",  [1,      11,     4,     4,       0]),
    ];
    assert_eq!(lives, want);
}
