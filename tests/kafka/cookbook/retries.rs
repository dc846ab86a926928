//! `crates/client/examples/retries.rs` with shorter steps, against a real Kafka.

use std::collections::BTreeSet;

use super::*;
use crate::callbacks::Service;
use crate::support::Out;

/// The program of the example `retries`, which runs until it is dropped.
fn retries(shop: &Shop, topic: &str, dead: &str, steps: [&str; 3]) -> Service {
    Service::start(shop.client.prepared(&[&[topic, dead], &steps[..]].concat()))
}

fn with(written: &Out, more: &[(&str, &str)]) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
    let written = written.headers.iter().map(|(name, value)| (name.clone().into(), value.clone()));
    let more = more.iter().map(|(name, value)| ((*name).into(), Some((*value).into())));
    written.chain(more).collect()
}

/// What fails comes again after each step, with the number of the attempt; after the last one it is in the dead letter topic, once.
/// Nothing waits for it.
#[test]
fn a_consumer_retries_in_steps_and_blocks_nothing() {
    let shop = Shop::open("retries", |f, p| Client::rust_example(f, p, "retries"));
    shop.client.says_how_it_is_used(&[], "retries TOPIC DEAD STEP...");
    let orders = shop.fixture.timed_target("orders", 3);
    let dead = shop.fixture.timed_target("orders-dead", 1);
    let program = retries(&shop, &orders, &dead, ["2s", "4s", "7s"]);
    let producer = shop.fixture.producer();
    // From then on it reads at once what is written.
    producer.send_one(&orders, &out("first").at(1));
    program.said("first: done at attempt 1");

    let records = [
        out("fails 2, a").key("a").at(1).header("own", b"\xff").null_header("none"),
        out("fails 9, b").at(1).header("own", b"\xff").header("attempt", "no number"),
        out("good").key("a").at(1),
    ];
    for record in &records {
        producer.send(&orders, record);
    }
    producer.acks();
    let good = program.said("good: done at attempt 1");
    program.said("fails 2, a: done at attempt 3");
    program.said("fails 9, b: failure 4, given up");
    let letters = shop.arrived(&dead);
    let all = shop.arrived(&orders);

    assert_eq!(all.len(), 1 + 3 + 4 + 1, "{all:?}");
    for (record, times) in records.iter().zip([3, 4, 1]) {
        let of: Vec<&Rec> = all.iter().filter(|rec| rec.value == record.value).collect();
        assert_eq!(of.len(), times, "{of:?}");
        for (n, rec) in of.iter().enumerate() {
            assert_eq!((rec.partition, &rec.key), (1, &record.key), "{rec:?}");
            let own = record.headers.iter().filter(|(name, _)| n == 0 || name != "attempt");
            let own = Out { headers: own.cloned().collect(), ..record.clone() };
            let number = (n + 1).to_string();
            let attempt = [("attempt", &*number)];
            assert_eq!(rec.headers, with(&own, if n == 0 { &[] } else { &attempt }), "{rec:?}");
        }
        for ((n, pair), step) in of.windows(2).enumerate().zip([2_000, 4_000, 7_000]) {
            let (took, late) = (pair[1].at - pair[0].at, patient(Duration::from_secs(10)));
            let range = step..step + late.as_millis() as u64;
            assert!(range.contains(&took), "{took} ms, and not {step}, after attempt {}", n + 1);
        }
        if times > 1 {
            assert!(good < of[1].at, "good is done at {good}, and not before {:?}", of[1]);
        }
    }
    shop.is_committed(&orders, &all);

    assert_eq!(letters.len(), 1, "{letters:?}");
    let own = Out { headers: records[1].headers[..1].to_vec(), ..records[1].clone() };
    let more = [("attempt", "4"), ("reason", "failure 4")];
    assert_eq!((&letters[0].value, &letters[0].key), (&records[1].value, &None));
    assert_eq!(letters[0].headers, with(&own, &more));
}

/// What was in its hands when it was killed is consumed once more, and what waits for its next attempt waits elsewhere.
#[test]
fn a_consumer_with_retries_that_is_killed_loses_nothing() {
    const ORDERS: usize = 300;
    let shop = Shop::open("retries-killed", |f, p| Client::rust_example(f, p, "retries"));
    // In one partition: what comes again stands behind all others.
    let orders = shop.fixture.target("orders", 1);
    let dead = shop.fixture.target("orders-dead", 1);
    let producer = shop.fixture.producer();
    let fails = |n: usize| if n.is_multiple_of(3) { 9 } else { 1 };
    let order = |n: usize| format!("fails {}, order {n}", fails(n));
    for n in 0..ORDERS {
        producer.send(&orders, &out(order(n)).key(n.to_string()));
    }
    producer.acks();

    let run = |until: &dyn Fn(&[String]) -> Result<(), String>| {
        let program = retries(&shop, &orders, &dead, ["1s", "2s", "1s"]);
        eventually("the program has come so far", || {
            let said: Vec<String> =
                program.lines.lock().iter().map(|(_, line)| line.clone()).collect();
            until(&said)
        });
        // Killed here, whatever it was at.
    };
    for _ in 0..3 {
        run(&|said| {
            let is_early = said.iter().all(|line| line.ends_with("failure 1, again in 1 s"));
            assert!(is_early, "too fast to be killed while it reads them: {:?}", said.last());
            if said.len() < 40 { Err(said.len().to_string()) } else { Ok(()) }
        });
    }
    run(&|said| {
        let ends = said.iter().filter_map(|line| line.split_once(": "));
        let ends = ends.filter(|(_, what)| what.starts_with("done") || what.ends_with("given up"));
        let ended: BTreeSet<&str> = ends.map(|(order, _)| order).collect();
        let lost = (0..ORDERS).map(order).filter(|order| !ended.contains(&**order));
        let lost: Vec<String> = lost.collect();
        if lost.is_empty() { Ok(()) } else { Err(format!("{} are lost: {lost:?}", lost.len())) }
    });
    let letters: BTreeSet<String> = shop.arrived(&dead).iter().map(Rec::text).collect();
    let want: BTreeSet<String> = (0..ORDERS).filter(|n| fails(*n) == 9).map(order).collect();
    assert_eq!(letters, want);
}
