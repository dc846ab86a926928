//! F26: what own topics hold may be taken away.

use waterclock::engine::Millis;
use waterclock::engine::ladder::Ladder;
use waterclock::kafka::topics::wanted;

use crate::load::mode;
use crate::support::{Fixture, Log, PATIENCE, Rec, assert_promise, eventually, out, whole};

const UNFIT: &str = "waterclock_topics_unfit";

/// Sets one thing of an own topic, and all else as it must be.
fn set(fixture: &Fixture, topic: &str, name: &str, value: &str) {
    let holds = fixture.request.holds.clone().expect("holds");
    let ladder = Ladder::new(&holds, &[], Millis(2_000)).expect("a ladder");
    let specs = wanted(&fixture.names, fixture.lanes(), &ladder, &[], 1, true);
    let spec = specs.into_iter().find(|spec| spec.name == topic).expect("a topic of ours");
    let mut settings = spec.must;
    settings.extend(spec.advice);
    settings.insert(name.to_owned(), value.to_owned());
    let settings: Vec<(&str, &str)> =
        settings.iter().map(|(name, value)| (&**name, &**value)).collect();
    fixture.configure(topic, &settings);
}

pub fn ids(name: &str, count: usize) -> Vec<String> {
    (0..count).map(|n| format!("{name}{n}")).collect()
}

pub fn send(fixture: &Fixture, target: &str, ids: &[String], delay_ms: u64) {
    let producer = fixture.producer();
    for (n, id) in ids.iter().enumerate() {
        let record = out(id).key(format!("k{}", n % 10)).to(target).delay(delay_ms);
        producer.send(&fixture.names.intake(), &record);
    }
    producer.acks();
}

pub fn arrived(seen: &[Rec], ids: &[String]) -> usize {
    seen.iter().filter(|rec| ids.contains(&rec.text())).count()
}

#[test]
fn f26_a_tier_that_may_lose_records_is_told_and_nothing_new_is_admitted() {
    let fixture = Fixture::new("f26");
    let target = fixture.target("out", 1);
    let tier = fixture.names.tier(Millis(5_000));
    let mut process = fixture.start(mode());
    let mut log = Log::open(&fixture, &target);
    let [before, held, after] = ["before", "held", "after"].map(|name| ids(name, 40));
    send(&fixture, &target, &before, 45_000);

    set(&fixture, &tier, "retention.ms", "600000");
    eventually("it is seen", || match process.metric(UNFIT) {
        1.0 => Ok(()),
        found => Err(format!("{found}")),
    });
    assert!(process.log().contains("retention.ms"), "{}", process.log());
    let (code, body) = process.get("/health/ready").expect("an answer");
    assert!(code == 200 && body.contains("nothing new is admitted"), "{code} {body}");
    send(&fixture, &target, &held, 0);
    // What is in the tiers moves on, and what came later stays in the intake.
    log.until("what was pending arrives", |seen| arrived(seen, &before) == before.len());
    assert_eq!(arrived(&log.seen, &held), 0, "it was admitted");

    set(&fixture, &tier, "retention.ms", "-1");
    send(&fixture, &target, &after, 0);
    log.until("all arrive", |seen| {
        arrived(seen, &held) == held.len() && arrived(seen, &after) == after.len()
    });
    assert!(process.metric(UNFIT) == 0.0, "it is fit again");
    process.stop_well();
    assert_promise(mode(), [before, held, after].concat(), &whole(&fixture, &target));

    set(&fixture, &tier, "retention.bytes", "1000000");
    let mut refused = fixture.launch(mode()).spawn();
    assert_eq!(refused.wait(PATIENCE), Some(78), "{}", refused.log());
    assert!(refused.log().contains("retention.bytes is 1000000, want -1"), "{}", refused.log());
}
