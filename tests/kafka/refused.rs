//! Creates that are refused: their state says so, wherever a producer's partitioner put them, and nothing else is kept from
//! its target by them.

use serde_json::Value;

use crate::support::{
    Fixture, Mode, Told, ask, assert_each_once, eventually, in_both_modes, out, whole,
};

in_both_modes!(what_is_refused_is_told_as_dead_and_its_name_is_free);

fn state(told: &Value) -> (String, String) {
    let word = |name: &str| told[name].as_str().unwrap_or_default().to_owned();
    (word("state"), word("code"))
}

fn what_is_refused_is_told_as_dead_and_its_name_is_free(mode: Mode) {
    let fixture = Fixture::new("refused");
    let (target, elsewhere) = (fixture.target("out", 1), fixture.target("elsewhere", 1));
    let missing = fixture.name("nowhere");
    let allow = [target.as_str(), missing.as_str()].map(regex::escape);
    let mut process =
        fixture.launch(mode).arg("--allow").arg(&allow[0]).arg("--allow").arg(&allow[1]).start();
    let producer = fixture.producer();
    let (intake, lanes) = (fixture.names.intake(), i32::from(fixture.lanes()));
    let lane_of = |key: &str| {
        i32::from(waterclock::engine::murmur2::partition(key.as_bytes(), fixture.lanes()))
    };
    let status = |key: &str| {
        let path = format!("/v1/timers/i?key={key}");
        move |process: &crate::support::Process| ask(process, "GET", &path, None)
    };
    let is = |key: &str, want: (&str, &str)| {
        let look = status(key);
        eventually(&format!("{key} is {want:?}"), || match look(&process) {
            Told { status: 200, body, .. }
                if state(&body) == (want.0.to_owned(), want.1.to_owned()) =>
            {
                Ok(body)
            }
            told => Err(format!("{} {}", told.status, told.body)),
        })
    };
    let make = |key: &str| out(format!("refused {key}")).key(key).header("x-delay-id", "i");
    #[rustfmt::skip]
    let refused = [
        // key          what is wrong                                       another lane  code
        ("denied",      make("denied").delay("1s").to(&elsewhere),          false, "target_denied"),
        ("denied-far",  make("denied-far").delay("1s").to(&elsewhere),      true,  "target_denied"),
        ("missing",     make("missing").delay("1s").to(&missing),           false, "target_missing"),
        // By then the process knows that there is no such topic.
        ("missing-2",   make("missing-2").delay("1s").to(&missing),         false, "target_missing"),
        ("missing-far", make("missing-far").delay("1s").to(&missing),       true,  "target_missing"),
        ("delay",       make("delay").delay("soon").to(&target),            false, "bad_delay"),
        ("no-target",   make("no-target").delay("1s"),                      false, "missing_target"),
        ("own",         make("own").delay("1s").to(&intake),                false, "target_forbidden"),
        ("unknown",     make("unknown").delay("1s").to(&target).header("x-delay-colour", "red"), false, "unknown_header"),
    ];
    for (key, record, is_far, code) in &refused {
        let lane = lane_of(key);
        let at = if *is_far { (lane + 1) % lanes } else { lane };
        producer.send_one(&intake, &record.clone().at(at));
        let told = is(key, ("dead", code));
        assert_eq!(told["key"], *key, "{told}");
        assert!(told["version"].is_string(), "{told}");
    }

    // Whatever was refused under a name, what is right comes through, also by another partition; once.
    let mut want: Vec<String> = Vec::new();
    for (key, _, is_far, _) in &refused {
        let lane = lane_of(key);
        let at = if *is_far { lane } else { (lane + 1) % lanes };
        let value = format!("right {key}");
        producer.send_one(
            &intake,
            &out(&value).key(key).header("x-delay-id", "i").delay("1s").to(&target).at(at),
        );
        want.push(value);
    }
    for (key, ..) in &refused {
        is(key, ("delivered", ""));
    }

    // A refused one says nothing of what is pending, nor of what ended before it.
    let pending = |key: &str| {
        out(format!("pending {key}")).key(key).header("x-delay-id", "i").delay("1h").to(&target)
    };
    producer.send_one(&intake, &pending("pending"));
    let before = is("pending", ("delay", ""));
    let wrong = |key: &str| make(key).delay("1s").to(&elsewhere).at(lane_of(key));
    for record in
        [wrong("pending"), wrong("pending").header("x-delay-action", "replace"), wrong("denied")]
    {
        producer.send_one(&intake, &record);
    }
    producer.send_one(&intake, &wrong("last"));
    is("last", ("dead", "target_denied"));
    eventually("all are dead letters", || {
        let dead = whole(&fixture, &fixture.names.dead()).len();
        // A create whose id is pending is a duplicate before anybody asks for its target.
        if dead == refused.len() + 3 { Ok(()) } else { Err(dead.to_string()) }
    });
    assert_eq!(is("pending", ("delay", ""))["version"], before["version"]);
    is("denied", ("delivered", ""));
    let told = ask(&process, "DELETE", "/v1/timers/i?key=pending&wait=20s", None);
    assert_eq!(told.body["outcome"], "cancelled", "{}", told.body);
    let told = ask(&process, "DELETE", "/v1/timers/i?key=last&wait=20s", None);
    assert_eq!(
        (told.body["outcome"].as_str(), state(&told.body)),
        (Some("unknown"), ("dead".into(), "target_denied".into()))
    );

    fixture.wait_until_nothing_is_pending();
    process.stop_well();
    assert_each_once(want, &whole(&fixture, &target));
}
