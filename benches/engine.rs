//! What the engine costs per record, and its two data structures. `cargo bench --bench engine`.

use std::hint::black_box;
use std::sync::Arc;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use waterclock::engine::allow::Allow;
use waterclock::engine::ladder::Ladder;
use waterclock::engine::murmur2;
use waterclock::engine::state::{StateKey, SubmissionOrder};
use waterclock::engine::wheel::Wheel;
use waterclock::engine::window::Window;
use waterclock::engine::{
    Action, Event, Intake, Lane, LaneEngine, Limits, Millis, Offset, Record, Setup, Source, Start,
    Target, TopicId, Topics, UnixMillis,
};

/// Multiplier of a linear congruence, so that each run does the same.
const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;

fn spread(n: i64) -> u64 {
    (n as u64).wrapping_mul(SPREAD) >> 32
}

fn empty() -> Window {
    Window::load(Offset(0), "").unwrap_or_else(|error| panic!("{error}"))
}

/// A window that has begun `count` offsets and finished those that `done` says.
fn filled(count: i64, done: impl Fn(i64) -> bool) -> Window {
    let mut window = empty();
    for at in 0..count {
        window.begin(Offset(at));
        if done(at) {
            window.finish(Offset(at));
        }
    }
    window
}

fn window(c: &mut Criterion) {
    let count = 20_000_i64;
    let mut group = c.benchmark_group("window");
    group.throughput(Throughput::Elements(count as u64));
    group.bench_function("begin and finish in order, 2,000 pending", |b| {
        b.iter_batched_ref(
            || filled(2_000, |_| false),
            |window| {
                for at in 2_000..2_000 + count {
                    black_box(window.room(Offset(at)));
                    black_box(window.begin(Offset(at)));
                    window.finish(Offset(at - 2_000));
                }
                black_box(window.low())
            },
            BatchSize::SmallInput,
        );
    });
    let mut order: Vec<i64> = (0..count).collect();
    order.sort_by_key(|at| spread(*at));
    group.bench_function("begin all, finish at random", |b| {
        b.iter_batched_ref(
            empty,
            |window| {
                (0..count).for_each(|at| {
                    window.begin(Offset(at));
                });
                order.iter().for_each(|at| window.finish(Offset(*at)));
                black_box(window.low())
            },
            BatchSize::SmallInput,
        );
    });
    group.finish();

    let mut group = c.benchmark_group("commit");
    for (name, percent) in [("1 %", 1), ("10 %", 10), ("50 %", 50), ("all", 100)] {
        let window = filled(20_000, |at| at == 1 || spread(at) % 100 >= percent && at > 0);
        group.bench_function(format!("20,000 offsets, {name} pending"), |b| {
            b.iter_batched_ref(|| window.clone(), Window::commit, BatchSize::SmallInput);
        });
        let Some((next, metadata)) = window.clone().commit() else { continue };
        group.bench_function(format!("load 20,000 offsets, {name} pending"), |b| {
            b.iter(|| Window::load(next, &metadata));
        });
    }
    group.finish();
}

fn wheel(c: &mut Criterion) {
    let count = 200_000_i64;
    let start = UnixMillis(1_700_000_000_000);
    let order =
        |n: i64| SubmissionOrder { appended: UnixMillis((n / 100) as u64), offset: Offset(n) };
    let ready = || {
        let mut wheel = Wheel::new(Millis(2_000));
        wheel.pop_due(start, 1, |_, _, _: [u64; 2]| {});
        wheel
    };
    let mut group = c.benchmark_group("wheel");
    group.throughput(Throughput::Elements(count as u64));
    group.sample_size(20);
    group.bench_function("insert and pop, uniform over 2 s", |b| {
        b.iter_batched_ref(
            ready,
            |wheel| {
                for n in 0..count {
                    wheel.insert(start + Millis(spread(n) % 2_000), order(n), [n as u64; 2]);
                }
                for ms in 0..2_000 {
                    wheel.pop_due(start + Millis(ms), usize::MAX, |_, _, entry| {
                        black_box(entry);
                    });
                }
            },
            BatchSize::LargeInput,
        );
    });
    for (name, ahead_ms) in [("one due time", 1_000), ("all overdue", 0)] {
        group.bench_function(format!("insert and pop by 500, {name}"), |b| {
            b.iter_batched_ref(
                ready,
                |wheel| {
                    let due = start + Millis(ahead_ms) - Millis(u64::from(ahead_ms == 0));
                    for n in 0..count {
                        wheel.insert(due, order(n), [n as u64; 2]);
                    }
                    while wheel.pop_due(due, 500, |_, _, entry| {
                        black_box(entry);
                    }) > 0
                    {}
                },
                BatchSize::LargeInput,
            );
        });
    }
    group.finish();
}

const LANES: u16 = 6;
const BEGAN: UnixMillis = UnixMillis(1_800_000_000_000);

/// An engine with all lanes, at their logs' starts, that has been told of the target.
fn engine() -> LaneEngine {
    let fine = |error: &dyn std::fmt::Display| -> ! { panic!("{error}") };
    let holds = [1_000, 10_000, 60_000].map(Millis);
    let ladder = Ladder::new(&holds, &[], Millis(2_000)).unwrap_or_else(|e| fine(&e));
    let allow = Allow::new("wc", None).unwrap_or_else(|e| fine(&e));
    let topics = Topics::new("wc", vec![Intake::new("", None, None, allow)], ladder);
    let count = topics.names().len() as u16;
    let limits = Limits { memory_bytes: 4 << 30, ..Limits::default() };
    let setup = Setup { lanes: LANES, topics, key: StateKey::new([7; 32]), limits };
    let mut engine = LaneEngine::new(Arc::new(setup));
    let start = |topic, lane| Start {
        source: Source { topic: TopicId(topic), lane: Lane(lane) },
        next: Offset(0),
        metadata: String::new(),
        end: Offset(0),
        gone: false,
    };
    let starts = (0..count).flat_map(|t| (0..LANES).map(move |l| start(t, l))).collect();
    let mut out = Vec::new();
    engine.step(BEGAN, Event::Registry(Arc::default()), &mut out);
    engine.step(BEGAN, Event::Assigned { starts }, &mut out);
    for lane in (0..LANES).map(Lane) {
        let known =
            Event::TimersLoaded { lane, live: Vec::new(), cancel_marks: Vec::new(), last: true };
        engine.step(BEGAN, known, &mut out);
    }
    engine
}

/// Records of 200 bytes with three headers of their own, as the benchmark of the whole has them, by lane.
fn records(count: u64, delay: &str, tracked: bool) -> Vec<(u16, Record)> {
    (0..count)
        .map(|n| {
            let (key, number) = (format!("{n:08x}"), n.to_be_bytes());
            let headers: [(&[u8], Option<&[u8]>); 6] = [
                (b"x-delay", Some(delay.as_bytes())),
                (b"x-delay-target", Some(b"orders.expire")),
                (b"sequence", Some(&number)),
                (b"due", Some(&number)),
                (b"origin", Some(b"bench")),
                (b"x-delay-id", Some(key.as_bytes())),
            ];
            let headers = headers.into_iter().take(if tracked { 6 } else { 5 });
            let record = Record::new(Some(key.as_bytes()), Some(&[b'x'; 200]), headers);
            (murmur2::partition(key.as_bytes(), LANES), record)
        })
        .collect()
}

/// Carries out what the engine orders as the shell does, at once: targets are there, batches commit.
fn carry_out(engine: &mut LaneEngine, now: UnixMillis, out: &mut Vec<Action>, sent: &mut u64) {
    while let Some(order) = out.pop() {
        match order {
            Action::DescribeTarget(name) => {
                let found =
                    Target::Found { partitions: 6, record_bytes_max: 1_048_588, keyed: false };
                engine.step(now, Event::Target(name, found), out);
            }
            Action::ListEndOffsets(sources) => {
                for source in sources {
                    engine.step(now, Event::ReadUpTo { source, at: now }, out);
                }
            }
            Action::Batch(batch) => {
                *sent += batch.sends.len() as u64;
                engine.step(now, Event::Committed(black_box(batch).id), out);
            }
            _ => {}
        }
    }
}

/// Submits all within 200 ms, then lets time pass by milliseconds for as long as `until_ms`.
fn run(engine: &mut LaneEngine, records: Vec<(u16, Record)>, until_ms: u64) -> u64 {
    let (mut out, mut sent, mut next) = (Vec::new(), 0, [0_i64; LANES as usize]);
    let per_ms = records.len() / 200;
    for (n, (lane, record)) in records.into_iter().enumerate() {
        let now = BEGAN + Millis((n / per_ms) as u64);
        let source = Source { topic: TopicId(0), lane: Lane(lane) };
        let offset = Offset(next[usize::from(lane)]);
        next[usize::from(lane)] += 1;
        engine.step(now, Event::Record { source, offset, appended: now, record }, &mut out);
        if n % per_ms == 0 {
            engine.step(now, Event::Tick, &mut out);
            carry_out(engine, now, &mut out, &mut sent);
        }
    }
    for ms in 200..until_ms {
        let now = BEGAN + Millis(ms);
        engine.step(now, Event::Tick, &mut out);
        carry_out(engine, now, &mut out, &mut sent);
    }
    sent
}

/// From a record that was read to its batch, committed: two steps of a record's way, or what a hop takes.
fn steps(c: &mut Criterion) {
    let count = 100_000_u64;
    let mut group = c.benchmark_group("engine");
    group.throughput(Throughput::Elements(count));
    group.sample_size(20);
    // What is said of a timer is sent, too: that it is pending, and that it was delivered.
    for (name, delay, until_ms, tracked, sends) in [
        ("a record read, held in the wheel, delivered and committed", "1s", 1_300, false, 1),
        ("a record read, hopped to a tier and committed", "30s", 2_000, false, 1),
        ("the same two for a record with an id: delivered", "1s", 1_300, true, 3),
        ("the same two for a record with an id: hopped", "30s", 2_000, true, 2),
    ] {
        group.bench_function(name, |b| {
            b.iter_batched(
                || (engine(), records(count, delay, tracked)),
                |(mut engine, records)| {
                    assert_eq!(run(&mut engine, records, until_ms), count * sends);
                    engine
                },
                BatchSize::LargeInput,
            );
        });
    }
    group.finish();
}

criterion_group!(benches, steps, window, wheel);
criterion_main!(benches);
