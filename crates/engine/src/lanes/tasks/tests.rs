//! Credits: how many tasks of a scope, a project and a lane are with workers at once.

use super::super::super::task::registry::{Change, Project, Registry, Service, read_request};
use super::*;

const NOW: UnixMillis = UnixMillis(1_000_000);
const LANE: Lane = Lane(0);
const MANY: u32 = 10_000;
const KIB: usize = 1 << 10;

/// Projects `p0` to `p9`, each with services `s0` to `s9` that may have so many open calls.
fn tasks(concurrency: u32) -> Tasks {
    let mut registry = Registry::default();
    for project in (0..10).map(|n| format!("p{n}")) {
        let of = Project { concurrency: MANY, ..Project::NEVER_PUT };
        registry.apply(Change::of_project(&project, of)).expect("room");
        for service in (0..10).map(|n| format!("s{n}")) {
            let key = format!("service/{project}/{service}");
            let read = read_request(&key, br#"{"address":"http://a"}"#).expect("sound");
            registry.apply(read).expect("room");
            let known = registry.service(&project, &service).expect("put").clone();
            let of = Service { concurrency, ..known };
            registry.apply(Change::of_service(&project, &service, Some(of))).expect("room");
        }
    }
    let mut tasks = Tasks::new(1);
    tasks.set_registry(Arc::new(registry));
    tasks
}

fn scope(project: u32, service: u32) -> Scope {
    let callee = Callee::Service(format!("s{service}").into());
    Scope { project: format!("p{project}").into(), callee }
}

/// Gives tasks of so many bytes to workers until one has to wait; how many that were, and their credits.
fn fill(tasks: &mut Tasks, scope: &Scope, bytes: usize) -> (u32, u32) {
    let (mut count, mut credits) = (0, 0);
    while let Permit::Go(held) = tasks.permit(NOW, LANE, scope, bytes) {
        let mut name = [0; 16];
        name[..8].copy_from_slice(&(tasks.progress.len() as u64).to_be_bytes());
        let progress = Progress { turn: 1, held: Some(held), ..Progress::default() };
        tasks.set(LANE, TimerId(name), Some(scope), progress);
        (count, credits) = (count + 1, credits + u32::from(held.credits));
    }
    (count, credits)
}

#[test]
fn a_service_has_twice_its_share_and_no_less_than_16_and_no_more_than_512() {
    for (concurrency, want) in [(1, 16), (8, 16), (9, 18), (64, 128), (256, 512), (MANY, 512)] {
        let mut tasks = tasks(concurrency);
        assert_eq!(fill(&mut tasks, &scope(0, 0), 100), (want, want), "of {concurrency}");
        assert!(matches!(tasks.permit(NOW, LANE, &scope(0, 1), 100), Permit::Go(_)), "another one");
    }
}

#[test]
fn a_project_has_2048_and_a_lane_8192_and_each_project_16_whatever_the_others_have() {
    let mut tasks = tasks(MANY);
    let mut of_project = |project| -> u32 {
        (0..10).map(|service| fill(&mut tasks, &scope(project, service), 100).0).sum()
    };
    let first: Vec<u32> = (0..4).map(&mut of_project).collect();
    assert_eq!(first, [2_048; 4]);
    assert_eq!([of_project(4), of_project(5)], [16, 16], "the lane is full");
}

#[test]
fn a_task_costs_one_credit_more_for_each_64_kib_and_one_goes_in_any_case() {
    for (bytes, cost) in
        [(100, 1), (64 * KIB - 1, 1), (64 * KIB, 2), (512 * KIB, 9), (1_024 * KIB, 17)]
    {
        let mut tasks = tasks(64);
        let (count, credits) = fill(&mut tasks, &scope(0, 0), bytes);
        assert_eq!((count, credits), (128 / cost, 128 / cost * cost), "{bytes} bytes");
        let mut tasks = self::tasks(1);
        let (count, _) = fill(&mut tasks, &scope(0, 0), bytes);
        assert_eq!(count, (16 / cost).max(1), "{bytes} bytes under the least limit");
    }
}

/// For how long one more task is put off, after so many milliseconds.
fn put_off_at(tasks: &mut Tasks, after: u64) -> Millis {
    let now = NOW + Millis(after);
    tasks.put_off(LANE, &scope(0, 0), true);
    match tasks.permit(now, LANE, &scope(0, 0), WAITING_BYTES_MAX + 1) {
        Permit::PutOff(wait) => wait.most(),
        permit => panic!("{permit:?}"),
    }
}

#[test]
fn how_slow_a_scope_is_counts_from_when_its_pause_ended_or_its_last_was_put_off() {
    let mut tasks = tasks(1);
    fill(&mut tasks, &scope(0, 0), 100);
    tasks.turn_ended(NOW, LANE, &scope(0, 0));
    let mut registry = Registry::clone(&tasks.registry);
    let running = Arc::clone(&tasks.registry);
    let paused = Project { paused: true, ..registry.project("p0").clone() };
    registry.apply(Change::of_project("p0", paused)).expect("room");
    tasks.set_registry(Arc::new(registry));
    assert_eq!(put_off_at(&mut tasks, 0), PUT_OFF_MIN);
    assert_eq!(put_off_at(&mut tasks, 400_000), Millis(100_000), "a quarter of the pause");
    tasks.set_registry(running);
    assert!(tasks.reconsider(NOW + Millis(400_000)).is_empty());
    // One turn has ended in a second.
    assert_eq!(put_off_at(&mut tasks, 400_000), PUT_OFF_MIN);
    tasks.turn_ended(NOW + Millis(401_000), LANE, &scope(0, 0));
    for _ in 0..1_000 {
        tasks.put_off(LANE, &scope(0, 0), true);
    }
    assert_eq!(put_off_at(&mut tasks, 405_000), Millis(20_000), "the pause does not count");
    for _ in 0..1_004 {
        tasks.put_off(LANE, &scope(0, 0), false);
    }
    assert_eq!(put_off_at(&mut tasks, 500_000), PUT_OFF_MIN, "none was left");
}
