//! What strict order waits for, one thing at a time.

use super::*;

#[test]
fn on_time_everything_arrives_when_it_is_due() {
    let mut kafka = Kafka::new(Kafka::limits());
    for second in 0..40 {
        for (at, key) in KEYS.iter().enumerate() {
            let delay = (second * 977 + at as u64 * 331) % 15_000 + 100;
            kafka.submit(key, &[("x-delay", &delay.to_string())], false);
        }
        kafka.run(Millis(500));
    }
    kafka.run(Millis(20_000));
    assert_eq!(kafka.arrived.len(), 120, "{:?}", kafka.engine.figures());
    let late = kafka.arrived.iter().map(|(n, at)| at.0 - kafka.submitted[*n].due.0);
    // A batch takes 3 ms, and the gap before the next one 5.
    let most = late.max().expect("some");
    assert!(most <= 11, "{most} ms");
    assert_eq!(kafka.aborted, 0);
    assert!(kafka.asked < 3_000, "{}", kafka.asked);
}

#[test]
fn more_that_is_due_at_one_instant_than_memory_holds_arrives_in_order() {
    let mut kafka = Kafka::new(Limits { memory_bytes: 3_000, ..Kafka::limits() });
    let due = (kafka.now + Millis(8_000)).0.to_string();
    for n in 0..200 {
        kafka.submit(KEYS[n % 3], &[("x-delay-until", &due)], false);
    }
    kafka.run(Millis(60_000));
    assert_eq!(kafka.arrived.len(), 200, "{:?}", kafka.engine.figures());
    assert_eq!(disorder(&kafka), None);
}

#[test]
fn what_is_late_goes_on_arriving_though_memory_holds_little_of_it_and_batches_fail() {
    let few = Limits { memory_bytes: 3_000, batch_records_max: 4, ..Kafka::limits() };
    let mut kafka = Kafka::new(few);
    kafka.stop();
    for n in 0..300_u64 {
        let delay = (n * 977) % 15_000 + 100;
        kafka.submit(KEYS[n as usize % 3], &[("x-delay", &delay.to_string())], false);
    }
    kafka.run(Millis(20_000));
    kafka.take_over();
    kafka.aborts_every = Some(4);
    kafka.run(Millis(3_600_000));
    assert!(kafka.aborted > 10, "{}", kafka.aborted);
    assert_eq!(kafka.arrived.len(), 300, "{:?}", kafka.engine.figures());
    assert_eq!(disorder(&kafka), None);
}

#[test]
fn copies_of_a_record_do_not_wait_for_each_other_though_memory_holds_one_of_them() {
    let mut kafka = Kafka::new(Limits { memory_bytes: 200, ..Kafka::limits() });
    kafka.copies = 3;
    for n in 0..9 {
        kafka.submit(KEYS[n % 3], &[("x-delay", "8000")], false);
    }
    kafka.run(Millis(5_000));
    kafka.copies = 1;
    kafka.run(Millis(600_000));
    let times = |n| kafka.arrived.iter().filter(|(arrived, _)| *arrived == n).count();
    let times: [usize; 9] = std::array::from_fn(times);
    assert!(times.iter().all(|times| *times >= 3), "{times:?}, {:?}", kafka.engine.figures());
    assert_eq!(kafka.engine.figures().ordered, 0);
    assert_eq!(disorder(&kafka), None);
}
