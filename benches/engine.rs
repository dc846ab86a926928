//! What the engine's two data structures cost per record. `cargo bench --bench engine`.

use std::hint::black_box;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use waterclock::engine::state::Order;
use waterclock::engine::wheel::Wheel;
use waterclock::engine::window::Window;
use waterclock::engine::{Millis, Offset, UnixMillis};

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
    let order = |n: i64| Order { appended: UnixMillis((n / 100) as u64), offset: Offset(n) };
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

criterion_group!(benches, window, wheel);
criterion_main!(benches);
