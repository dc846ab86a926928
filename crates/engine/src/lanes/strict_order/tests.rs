//! Strict order, against a Kafka whose leaders stall and crawl: what arrives is compared with what was submitted.

mod cases;
mod kafka;

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;

use crate::task::registry::{Registry, read_request};
use crate::{Limits, Millis, UnixMillis};
use kafka::{Kafka, Pace, SETTLE, TIERS};

const KEYS: [&str; 3] = ["a", "b", "c"];

/// What a test does.
#[derive(Clone, Debug)]
enum Step {
    /// Submits a record, to its lane's partition of the intake or to another one.
    Submit {
        key: usize,
        delay: u64,
        stray: bool,
    },
    /// Submits one that is due at a round time, so that several are due together.
    Until {
        key: usize,
        seconds: u64,
    },
    /// Writes straight to a tier.
    Tier {
        key: usize,
        tier: usize,
    },
    Wait(u64),
    /// How quickly a partition is read and written from now on.
    Pace(usize, Pace),
    /// The owner is gone, and another takes over after so long.
    TakeOver(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let key = 0..KEYS.len();
    prop_oneof![
        8 => (key.clone(), 0_u64..16_000, prop::bool::weighted(0.1))
            .prop_map(|(key, delay, stray)| Step::Submit { key, delay, stray }),
        3 => (key.clone(), 1_u64..16).prop_map(|(key, seconds)| Step::Until { key, seconds }),
        2 => (key, 0..TIERS.len()).prop_map(|(key, tier)| Step::Tier { key, tier }),
        5 => (0_u64..4_000).prop_map(Step::Wait),
        3 => (0..=TIERS.len(), prop_oneof![
            Just(Pace::Stalls), Just(Pace::Crawls), Just(Pace::Runs)
        ]).prop_map(|(topic, pace)| Step::Pace(topic, pace)),
        1 => (0_u64..8_000).prop_map(Step::TakeOver),
    ]
}

fn play(kafka: &mut Kafka, steps: &[Step]) {
    for step in steps {
        match *step {
            Step::Submit { key, delay, stray } => {
                kafka.submit(KEYS[key], &[("x-delay", &delay.to_string())], stray);
            }
            Step::Until { key, seconds } => {
                let due = UnixMillis((kafka.now.0 / 1_000 + seconds) * 1_000);
                kafka.submit(KEYS[key], &[("x-delay-until", &due.0.to_string())], false);
            }
            Step::Tier { key, tier } => kafka.write_to_tier(KEYS[key], tier),
            Step::Wait(ms) => kafka.run(Millis(ms)),
            Step::Pace(topic, pace) => kafka.pace(topic, pace),
            Step::TakeOver(ms) => {
                kafka.stop();
                kafka.run(Millis(ms));
                kafka.take_over();
            }
        }
    }
}

/// The first record of a key that arrived out of order, if any.
fn disorder(kafka: &Kafka) -> Option<String> {
    let mut last: BTreeMap<&str, usize> = BTreeMap::new();
    for &(n, at) in &kafka.arrived {
        let this = &kafka.submitted[n];
        if at < this.due {
            return Some(format!("{n} is early: {this:?} at {at:?}"));
        }
        // It was not readable in its lane in time.
        if this.due < this.appended + SETTLE && this.source.topic.0 == 0 {
            continue;
        }
        if let Some(before) = last.insert(&this.key, n) {
            let before = &kafka.submitted[before];
            // In which order two topics took what they took in one millisecond nobody knows.
            let same = before.source.topic == this.source.topic || before.appended != this.appended;
            let rank = |of: &kafka::Submitted| (of.due, of.appended, of.offset);
            if if same { rank(before) > rank(this) } else { before.due > this.due } {
                return Some(format!("{n} at {at:?}: {before:?} came before {this:?}"));
            }
        }
    }
    None
}

fn all_arrive_in_order(limits: Limits, steps: &[Step]) -> Result<(), TestCaseError> {
    all_arrive_in_order_at(None, limits, steps)
}

/// The same; the target may have a rate per second, which each lane has half of.
fn all_arrive_in_order_at(
    rate: Option<u32>,
    limits: Limits,
    steps: &[Step],
) -> Result<(), TestCaseError> {
    let mut kafka = Kafka::new(limits);
    if let Some(rate) = rate {
        let json = format!(r#"{{"rate":{rate},"burst":2}}"#);
        let change = read_request("target/out", json.as_bytes()).expect("sound");
        let mut registry = Registry::default();
        registry.apply(change.with_revision(1)).expect("room");
        kafka.registry = Arc::new(registry);
    }
    kafka.hear();
    play(&mut kafka, steps);
    kafka.heal();
    for _ in 0..60 {
        kafka.run(Millis(5_000));
        if kafka.arrived.len() >= kafka.submitted.len() {
            break;
        }
    }
    kafka.run(Millis(2_000));
    prop_assert_eq!(disorder(&kafka), None);
    let mut arrived: Vec<usize> = kafka.arrived.iter().map(|(n, _)| *n).collect();
    arrived.sort_unstable();
    let all: Vec<usize> = (0..kafka.submitted.len()).collect();
    prop_assert_eq!(arrived, all, "everything arrives once: {:?}", kafka.engine.figures());
    prop_assert_eq!(kafka.engine.figures().ordered, 0);
    prop_assert_eq!(kafka.engine.figures().memory_bytes, 0);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, max_shrink_iters: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn whatever_is_late_a_key_s_records_arrive_in_order_and_all_of_them(
        steps in prop::collection::vec(step(), 1..80),
    ) {
        all_arrive_in_order(Kafka::limits(), &steps)?;
    }

    #[test]
    fn to_a_target_with_a_rate_they_do_so_too_with_room_to_wait_and_without(
        rate in prop::sample::select(&[2_u32, 4, 20][..]),
        memory_bytes in prop::sample::select(&[6_000, 100_000_000][..]),
        steps in prop::collection::vec(step(), 1..80),
    ) {
        let limits = Limits { memory_bytes, ..Kafka::limits() };
        all_arrive_in_order_at(Some(rate), limits, &steps)?;
    }

    #[test]
    fn with_memory_for_a_few_records_they_do_so_too(
        steps in prop::collection::vec(step(), 20..100),
    ) {
        let limits = Limits { memory_bytes: 3_000, ..Kafka::limits() };
        all_arrive_in_order(limits, &steps)?;
    }
}
