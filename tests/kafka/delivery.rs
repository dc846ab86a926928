//! What is submitted comes out of its target: in each mode, by every header form, never early, each once.

use std::collections::HashMap;

use waterclock::engine::Millis;

use crate::support::{
    Fixture, Log, Mode, Out, Rec, assert_each_once, in_both_modes, out, patience, whole,
};

in_both_modes!(
    mixed_delays_in_one_partition_do_not_block_each_other,
    no_record_is_in_its_target_before_it_is_due,
    every_form_of_a_time_is_understood,
    an_intake_has_defaults_and_a_list_of_its_own,
    a_record_written_straight_to_a_tier_is_delivered,
    what_is_pending_outlives_a_restart,
);

fn fixed(test: &str, mode: Mode) -> Fixture {
    let short = if mode == Mode::ExactlyOnce { "eos" } else { "alo" };
    Fixture::new(&format!("{test}-{short}"))
}

fn mixed_delays_in_one_partition_do_not_block_each_other(mode: Mode) {
    let fixture = fixed("mixed", mode);
    let target = fixture.timed_target("out", 1);
    let mut process = fixture.start(mode);
    let producer = fixture.producer();
    let intake = fixture.names.intake();
    // One key, so one lane and one partition everywhere; behind each record that waits for an hour stand others.
    let delays = [3_600_000, 700, 3_600_000, 2_500, 100, 3_600_000, 1_500, 6_000, 0, 4_000, 50];
    for (n, delay) in delays.iter().enumerate() {
        producer.send(&intake, &out(format!("{n}")).key("one").delay(delay).to(&target));
    }
    let acks = producer.acks();
    let short: Vec<usize> = (0..delays.len()).filter(|n| delays[*n] < 3_600_000).collect();
    Log::open(&fixture, &target).count(short.len());
    process.stop_well();
    let seen = whole(&fixture, &target);
    assert_each_once(short.iter().map(ToString::to_string), &seen);
    // By due time, since they were all known long before.
    let due = |rec: &Rec| {
        let n: usize = rec.text().parse().unwrap();
        acks[n].at + delays[n]
    };
    let waited: Vec<&Rec> = seen.iter().filter(|rec| due(rec) > acks[10].at + 500).collect();
    assert!(waited.windows(2).all(|two| due(two[0]) <= due(two[1])), "out of order: {waited:#?}");
}

fn no_record_is_in_its_target_before_it_is_due(mode: Mode) {
    let fixture = fixed("early", mode);
    let target = fixture.timed_target("out", 3);
    let mut process = fixture.start(mode);
    let producer = fixture.producer();
    let intake = fixture.names.intake();
    // Around every bound that routing has: 0, half and whole holds, the horizon, sums of holds.
    let delays: Vec<u64> = (0..500).map(|n| (n * 7_919) % 7_000 + n % 3).collect();
    for (n, delay) in delays.iter().enumerate() {
        let record = out(format!("{n}")).key(format!("k{}", n % 40)).delay(delay).to(&target);
        producer.send(&intake, &record);
    }
    let acks = producer.acks();
    Log::open(&fixture, &target).count(delays.len());
    process.stop_well();
    let seen = whole(&fixture, &target);
    assert_each_once((0..delays.len()).map(|n| n.to_string()), &seen);
    let mut late: Vec<i64> = Vec::new();
    for rec in &seen {
        let n: usize = rec.text().parse().unwrap();
        let due = acks[n].at + delays[n];
        late.push(rec.at as i64 - due as i64);
        assert!(rec.at >= due, "early by {} ms, delay {}: {rec:?}", due - rec.at, delays[n]);
    }
    late.sort_unstable();
    println!("{mode:?}: late by p50 {} p99 {} max {:?} ms", late[250], late[495], late.last());
}

fn every_form_of_a_time_is_understood(mode: Mode) {
    let fixture = fixed("forms", mode);
    let target = fixture.timed_target("out", 5);
    let mut process = fixture.start(mode);
    let producer = fixture.producer();
    let intake = fixture.names.intake();
    // The broker's time, for the absolute forms.
    let now = producer.send_one(&intake, &out("now").key("now").delay(0).to(&target)).at;
    let until = now + 4_000;
    let rfc3339 = |ms: u64, offset_h: i64| {
        let local = jiff::Timestamp::from_millisecond(ms as i64 + offset_h * 3_600_000).unwrap();
        let zone = if offset_h == 0 { "Z".to_owned() } else { format!("{offset_h:+03}:00") };
        format!("{}{zone}", local.strftime("%Y-%m-%dT%H:%M:%S%.3f"))
    };
    enum Due {
        After(u64),
        At(u64),
    }
    use Due::{After, At};
    #[rustfmt::skip]
    let cases = [
        ("milliseconds",                 "x-delay",       "1500".to_owned(),         After(1_500)),
        ("zeros in front",               "x-delay",       "0002500".to_owned(),      After(2_500)),
        ("at once",                      "x-delay",       "0".to_owned(),            After(0)),
        ("seconds",                      "x-delay",       "3s".to_owned(),           After(3_000)),
        ("seconds and milliseconds",     "x-delay",       "1s250ms".to_owned(),      After(1_250)),
        ("all units",                    "x-delay",       "0d0h0m2s1ms".to_owned(),  After(2_001)),
        ("epoch milliseconds",           "x-delay-until", until.to_string(),         At(until)),
        ("RFC 3339 in UTC",              "x-delay-until", rfc3339(until, 0),         At(until)),
        ("RFC 3339 in another zone",     "x-delay-until", rfc3339(until, 2),         At(until)),
        ("RFC 3339 west of Greenwich",   "x-delay-until", rfc3339(until, -7),        At(until)),
        ("a past time is due at once",   "x-delay-until", rfc3339(now - 9_000_000, 0), At(now - 9_000_000)),
    ];
    for (n, (_, name, value, _)) in cases.iter().enumerate() {
        let record = out(format!("{n}")).key(format!("{n}")).header(name, value).to(&target);
        producer.send(&intake, &record);
    }
    let more = [
        out("partition").key("p").delay("1s").to(&target).header("x-delay-partition", "4"),
        out("label").key("l").delay("1s").to(&target).header("x-delay-label", "reminder"),
        out("expires").key("e").delay("1s").to(&target).header("x-delay-expires", "1h"),
        out("create").key("c").delay("1s").to(&target).header("x-delay-action", "create"),
        out("id").key("i").delay("1s").to(&target).header("x-delay-id", "order-1"),
        // Another id of the same key is another timer.
        out("other id").key("i").delay("1s").to(&target).header("x-delay-id", "order-2"),
        out("trace")
            .key("t")
            .delay("1s")
            .to(&target)
            .header("x-delay-trace", "1")
            .header("x-delay-id", "seven"),
        out("no trace")
            .key("t")
            .delay("1s")
            .to(&target)
            .header("x-delay-trace", "0")
            .header("x-delay-attempt", "8"),
        // More cannot be submitted again.
        out("last attempt")
            .key("t")
            .delay("1s")
            .to(&target)
            .header("x-delay-trace", "1")
            .header("x-delay-attempt", "2147483647"),
    ];
    for record in &more {
        producer.send(&intake, record);
    }
    let acks = producer.acks();
    Log::open(&fixture, &target).count(1 + cases.len() + more.len());
    process.stop_well();
    let seen = whole(&fixture, &target);
    let texts = more.iter().map(|out| String::from_utf8(out.value.clone().unwrap()).unwrap());
    let ids = (0..cases.len()).map(|n| n.to_string()).chain(texts).chain(["now".to_owned()]);
    assert_each_once(ids, &seen);
    let by_id: HashMap<String, &Rec> = seen.iter().map(|rec| (rec.text(), rec)).collect();
    for (n, (why, _, value, due)) in cases.iter().enumerate() {
        let due = match due {
            After(delay) => acks[n + 1].at + delay,
            At(at) => *at,
        };
        let rec = by_id[&n.to_string()];
        assert!(rec.at >= due, "{why}: {value}: due {due}: {rec:?}");
        // The bound is loose: the check is that no form is misread by a zone or a unit.
        assert!(
            rec.at < due.max(now) + 30_000 * u64::from(patience()),
            "{why}: {value}: due {due}: {rec:?}"
        );
    }
    assert_eq!(by_id["partition"].partition, 4);
    let trace = by_id["trace"];
    let names: Vec<String> =
        trace.headers.iter().map(|(name, _)| String::from_utf8_lossy(name).into_owned()).collect();
    assert_eq!(names, ["x-delay-due", "x-delay-fired", "x-delay-id", "x-delay-attempt"]);
    let due = acks[1 + cases.len() + 6].at + 1_000;
    assert_eq!(trace.header("x-delay-due"), Some(due.to_string()), "{trace:?}");
    let fired: u64 = trace.header("x-delay-fired").unwrap().parse().unwrap();
    assert!((due..=trace.at).contains(&fired), "fired {fired}, due {due}: {trace:?}");
    assert_eq!(trace.header("x-delay-id").as_deref(), Some("seven"));
    assert_eq!(trace.header("x-delay-attempt").as_deref(), Some("1"));
    assert_eq!(by_id["last attempt"].header("x-delay-attempt").as_deref(), Some("2147483647"));
    for rec in seen.iter().filter(|rec| !["trace", "last attempt"].contains(&&*rec.text())) {
        assert_eq!(rec.headers, [], "control headers are gone: {rec:?}");
    }
}

fn an_intake_has_defaults_and_a_list_of_its_own(mode: Mode) {
    let short = if mode == Mode::ExactlyOnce { "eos" } else { "alo" };
    let fixture = Fixture::with(&format!("defaults-{short}"), |request| {
        request.further_intakes = vec!["reminders".to_owned()];
    });
    let (orders, other) = (fixture.timed_target("orders", 1), fixture.timed_target("other", 1));
    let mut process = fixture
        .launch(mode)
        .config(&format!(
            "[intakes.default]\ntarget = '{other}'\n\
             [intakes.reminders]\ndelay = '1500ms'\ntarget = '{orders}'\nallow = ['.*-orders']\n"
        ))
        .start();
    let producer = fixture.producer();
    let (main, reminders) = (fixture.names.intake(), fixture.names.further_intake("reminders"));
    let bare = producer.send_one(&reminders, &out("bare").key("a"));
    let waits = producer.send_one(&reminders, &out("waits").key("b").delay("3s"));
    producer.send_one(&reminders, &out("elsewhere").key("c").to(&other));
    let targetless = producer.send_one(&main, &out("targetless").key("d").delay("2s"));
    producer.send_one(&main, &out("timeless").key("e"));

    let mut at_orders = Log::open(&fixture, &orders);
    let of_orders = at_orders.count(2).to_vec();
    let of_other = Log::open(&fixture, &other).count(1).to_vec();
    let dead = Log::open(&fixture, &fixture.names.dead()).count(2).to_vec();
    process.stop_well();
    let after = |seen: &[Rec], id: &str, due: u64| {
        let rec = seen.iter().find(|rec| rec.text() == id).expect("delivered").clone();
        assert!(rec.at >= due, "{rec:?}, due {due}");
    };
    after(&of_orders, "bare", bare.at + 1_500);
    after(&of_orders, "waits", waits.at + 3_000);
    after(&of_other, "targetless", targetless.at + 2_000);
    let code = |id: &str| {
        let rec = dead.iter().find(|rec| rec.text() == id).expect("a dead letter");
        rec.header("x-delay-error-code")
    };
    assert_eq!(code("elsewhere").as_deref(), Some("target_denied"));
    assert_eq!(code("timeless").as_deref(), Some("missing_delay"));
    assert_each_once(["bare", "waits"].map(str::to_owned), &whole(&fixture, &orders));
    assert_each_once(["targetless".to_owned()], &whole(&fixture, &other));
}

fn a_record_written_straight_to_a_tier_is_delivered(mode: Mode) {
    let fixture = fixed("direct", mode);
    let target = fixture.timed_target("out", 1);
    let mut process = fixture.start(mode);
    let producer = fixture.producer();
    let tier = |hold| fixture.names.tier(Millis(hold));
    #[rustfmt::skip]
    let cases: Vec<(&str, String, Out, u64)> = vec![
        ("append + hold",                  tier(1_000), out("1s"), 1_000),
        ("append + hold",                  tier(2_000), out("2s"), 2_000),
        ("append + hold",                  tier(5_000), out("5s"), 5_000),
        ("a longer delay goes on to wait", tier(1_000), out("longer").delay("4s"), 4_000),
        ("a time that the tier keeps",     tier(2_000), out("as long").delay("2s"), 2_000),
    ];
    for (n, (_, topic, record, _)) in cases.iter().enumerate() {
        producer.send(topic, &record.clone().key(format!("{n}")).to(&target));
    }
    // Shorter than the hold: not before the tier lets it go, which is `lead` before append + hold.
    producer.send(&tier(2_000), &out("shorter").key("s").delay(100).to(&target));
    let acks = producer.acks();
    Log::open(&fixture, &target).count(cases.len() + 1);
    process.stop_well();
    let seen = whole(&fixture, &target);
    let ids = ["1s", "2s", "5s", "longer", "as long", "shorter"];
    assert_each_once(ids.map(str::to_owned), &seen);
    let by_id: HashMap<String, &Rec> = seen.iter().map(|rec| (rec.text(), rec)).collect();
    for ((why, _, _, delay), (ack, id)) in cases.iter().zip(acks.iter().zip(ids)) {
        let due = ack.at + delay;
        assert!(by_id[id].at >= due, "{why}: due {due}: {:?}", by_id[id]);
        assert_eq!(by_id[id].headers, [], "{why}");
    }
    let shorter = by_id["shorter"];
    assert!(shorter.at >= acks[5].at + 1_000, "sent at {}: {shorter:?}", acks[5].at);
}

fn what_is_pending_outlives_a_restart(mode: Mode) {
    let fixture = fixed("restart", mode);
    let target = fixture.timed_target("out", 3);
    let mut first = fixture.start(mode);
    let producer = fixture.producer();
    let intake = fixture.names.intake();
    // Some delivered before, some in the wheel and some in tiers when it stops.
    let delays: Vec<u64> = (0..300).map(|n| (n * 31) % 9_000).collect();
    for (n, delay) in delays.iter().enumerate() {
        let record = out(format!("{n}")).key(format!("k{}", n % 17)).delay(delay).to(&target);
        producer.send(&intake, &record);
    }
    let acks = producer.acks();
    let mut log = Log::open(&fixture, &target);
    log.count(30);
    first.stop_well();
    let before = whole(&fixture, &target).len();
    assert!(before < 300, "all were delivered before the restart: it showed nothing");
    let mut second = fixture.start(mode);
    log.ids(300);
    fixture.wait_until_nothing_is_pending();
    second.stop_well();
    let seen = whole(&fixture, &target);
    println!("{mode:?}: {before} of 300 before the restart");
    // A clean stop repeats nothing in either mode.
    assert_each_once((0..300).map(|n| n.to_string()), &seen);
    for rec in &seen {
        let n: usize = rec.text().parse().unwrap();
        assert!(rec.at >= acks[n].at + delays[n], "early: delay {}: {rec:?}", delays[n]);
    }
}
