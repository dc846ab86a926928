//! Two namespaces in one cluster: a producer of the one reaches nothing of the other.

use std::collections::BTreeMap;
use std::time::Duration;

use waterclock::engine::Millis;
use waterclock::engine::header::Code;
use waterclock::kafka::meta;

use crate::support::{Fixture, Log, Mode, in_both_modes, out, whole};

in_both_modes!(no_topic_of_another_namespace_is_a_target);

fn no_topic_of_another_namespace_is_a_target(mode: Mode) {
    let short = if mode == Mode::ExactlyOnce { "eos" } else { "alo" };
    let other = Fixture::with(&format!("other-{short}"), |request| {
        request.further_intakes = vec!["eu".to_owned()];
    });
    let fixture = Fixture::new(&format!("mine-{short}"));
    // Topics of a user's own with such names: nothing of a namespace stands beside them.
    let own =
        ["dead", "intake", "delay.1s"].map(|last| fixture.target(&format!("orders.{last}"), 1));
    let before = meta::read(&other.connection, &other.names.meta(), other.namespace()).unwrap();
    // Nothing is forbidden by a list.
    let mut process = fixture.start(mode);
    process.wait_until_logged(Duration::from_secs(10), "every topic is allowed");
    let names = &other.names;
    let forbidden = [
        names.meta(),
        names.timers(),
        names.intake(),
        names.further_intake("eu"),
        names.tier(Millis(1_000)),
        names.dead(),
        names.tasks(),
        names.results(),
    ];
    let ends = |topics: &[String]| -> BTreeMap<String, usize> {
        let end = |topic: &String| (topic.clone(), whole(&other, topic).len());
        topics.iter().map(end).collect()
    };
    let written = ends(&forbidden);
    let producer = fixture.producer();
    let secret = format!(r#"{{"version":1,"key":"{}"}}"#, "ab".repeat(32));
    for (n, topic) in forbidden.iter().enumerate() {
        // At once, and by way of a tier.
        for delay in ["0", "4s"] {
            let record = out(secret.clone()).key("secret").delay(delay).to(topic);
            producer.send(&fixture.names.intake(), &record.header("n", n.to_string()));
        }
    }
    for topic in &own {
        producer.send(&fixture.names.intake(), &out("mine").key("k").delay("1s").to(topic));
    }
    let dead = Log::open(&fixture, &fixture.names.dead()).count(2 * forbidden.len()).to_vec();
    for letter in &dead {
        let code = letter.header("x-delay-error-code");
        assert_eq!(code.as_deref(), Some(Code::TargetForbidden.as_str()), "{letter:?}");
    }
    for topic in &own {
        Log::open(&fixture, topic).count(1);
    }
    fixture.wait_until_nothing_is_pending();
    process.stop_well();
    assert_eq!(ends(&forbidden), written, "nothing was written there");
    let after = meta::read(&other.connection, &other.names.meta(), other.namespace()).unwrap();
    assert_eq!(after, before);
}
