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
