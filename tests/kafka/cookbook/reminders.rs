//! `crates/client/examples/reminders.rs` with its own lengths and events that are near, against a real Kafka.

use super::*;

/// Times that lie before or behind an event, each for what it is used for. A reminder comes once, at its last time, and never
/// once it was dropped.
#[test]
fn reminders_follow_their_events() {
    const DAY: i64 = 86_400;
    let shop = Shop::open("reminders", |f, p| Client::rust_example(f, p, "reminders"));
    shop.client.says_how_it_is_used(&["set"], "set TOPIC WHOM WHAT LENGTH before|after EVENT");
    let topic = shop.fixture.timed_target("reminders", 3);
    let mut log = Log::open(&shop.fixture, &topic);
    // A coupon's end, a membership's, and an order that its shop is to accept.
    let cases = [
        ("customer-7", "coupon-5", "24h", "before", DAY),
        ("member-8", "membership", "3d", "before", 3 * DAY),
        ("shop-9", "order-17", "15m", "after", -900),
    ];
    let event = |second: i64| Timestamp::from_second(second).expect("a time").to_string();
    let set = |whom: &str, what: &str, length: &str, side: &str, event: &str| {
        let said = shop.run(&["set", &topic, whom, what, length, side, event]);
        assert_eq!(said, "", "{what}");
    };
    let near = (now_ms() + patient(Duration::from_secs(30)).as_millis() as u64) / 1_000;
    let due = near * 1_000;
    for (whom, what, length, side, far) in cases {
        // One that is dropped before its time, which is that of the others, or a second earlier.
        let dropped = format!("dropped-{what}");
        set(whom, &dropped, length, side, &event(near as i64 - 1 + far));
        assert_eq!(shop.run(&["drop", whom, &dropped]), "cancelled", "{what}");
        // One whose event comes earlier than was thought.
        let later = near as i64 + 30 * DAY;
        set(whom, what, length, side, &event(later + far));
        shop.is_due(whom, what, |due| due == later as u64 * 1_000);
        set(whom, what, length, side, &event(near as i64 + far));
        shop.is_due(whom, what, |found| found == due);
        // One whose event comes later: a membership that was renewed.
        let renewed = format!("renewed-{what}");
        set(whom, &renewed, length, side, &event(near as i64 - 1 + far));
        set(whom, &renewed, length, side, &event(later + far));
        shop.is_due(whom, &renewed, |due| due == later as u64 * 1_000);
    }
    assert!(now_ms() < due - 1_000, "this machine was too slow for this test");

    log.count(cases.len());
    // The times of those that were dropped or renewed are over, too.
    for (whom, what, ..) in cases {
        assert_eq!(shop.run(&["drop", whom, &format!("renewed-{what}")]), "cancelled");
    }
    let all = shop.arrived(&topic);
    assert_eq!(all.len(), cases.len(), "{all:?}");
    for (whom, what, length, side, far) in cases {
        let of = |rec: &&Rec| rec.key.as_deref() == Some(whom.as_bytes());
        let rec = all.iter().find(of).expect(what);
        let event = event(near as i64 + far);
        assert_eq!(rec.text(), format!("{what}: {length} {side} {event}"));
        let late = patient(Duration::from_secs(10)).as_millis() as u64;
        assert!((due..due + late).contains(&rec.at), "{due}: {rec:?}");
        assert_eq!(shop.run(&["drop", whom, what]), "delivered");
    }

    // A coupon that has ended: nobody is reminded of it.
    let ended = event(now_ms() as i64 / 1_000 - 60);
    set("customer-7", "coupon-6", "24h", "before", &ended);
    let dead = Log::open(&shop.fixture, &shop.fixture.names.dead()).count(1)[0].clone();
    assert_eq!(dead.header("x-delay-error-code").as_deref(), Some("expired"), "{dead:?}");
    assert!(shop.client.fails(&["drop", "customer-7", "coupon-6"]).contains("Unknown"));
    assert_eq!(shop.arrived(&topic).len(), cases.len());
}
