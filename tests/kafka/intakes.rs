//! The rules of an intake hold for what came by it, whatever becomes of the intake.

use rdkafka::producer::Producer as _;
use waterclock::engine::Millis;
use waterclock::engine::header::Code;

use crate::support::{
    Fixture, Log, Mode, Out, PATIENCE, Producer, Rec, ask, eventually, in_both_modes,
    open_transaction, out, waterclock, whole,
};

in_both_modes!(what_waits_keeps_the_rules_of_its_intake);

/// Submits a dead letter again: code, and what is said.
fn replay(fixture: &Fixture, arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = waterclock();
    command.args(["dead", "replay"]).args(arguments);
    command.args(["--brokers", &fixture.connection.brokers, "--namespace", fixture.namespace()]);
    let output = command.output().expect("the binary runs");
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&text).into_owned())
}

fn what_waits_keeps_the_rules_of_its_intake(mode: Mode) {
    let short = if mode == Mode::ExactlyOnce { "eos" } else { "alo" };
    let fixture = Fixture::with(&format!("intakes-{short}"), |request| {
        request.further_intakes = vec!["eu".to_owned(), "us".to_owned()];
    });
    let (eu, us) = (fixture.target("eu", 1), fixture.target("us", 1));
    let other = fixture.target("other", 1);
    let both = format!(
        "[intakes.eu]\ntarget = '{eu}'\nallow = ['{eu}']\n[intakes.us]\ntarget = '{us}'\nallow = ['.*-us']\n"
    );
    let mut process = fixture.launch(mode).config(&both).start();
    let producer = fixture.producer();
    let of = |name: &str| fixture.names.further_intake(name);
    // Long enough to stand in a tier through a restart.
    producer.send(&of("eu"), &out("default").key("a").delay("12s"));
    producer.send(&of("us"), &out("left behind").key("b").delay("12s"));
    producer.send_one(&of("us"), &out("named, left behind").key("c").delay("12s").to(&us));
    // Each lane has accepted them when what came after them is there.
    for key in ["a", "b", "c"] {
        producer.send(&of("eu"), &out(format!("after {key}")).key(key).delay(0));
        producer.send(&of("us"), &out(format!("after {key}")).key(key).delay(0));
    }
    Log::open(&fixture, &eu).count(3);
    Log::open(&fixture, &us).count(3);
    process.stop_well();

    // Another default for the one, and nothing at all for the other.
    let changed = format!(
        "[intakes.default]\ntarget = '{other}'\n[intakes.eu]\ntarget = '{other}'\nallow = ['.*']\n"
    );
    let mut process = fixture.launch(mode).config(&changed).start();
    let dead = Log::open(&fixture, &fixture.names.dead()).count(2).to_vec();
    for letter in &dead {
        let error = |name: &str| letter.header(&format!("x-delay-error-{name}"));
        assert_eq!(error("code").as_deref(), Some(Code::UnknownIntake.as_str()), "{letter:?}");
        assert_eq!(error("intake"), Some(of("us")), "{letter:?}");
    }
    let seen = Log::open(&fixture, &eu).count(4).to_vec();
    assert_eq!(seen[3].text(), "default", "where it was accepted for");
    assert_eq!(whole(&fixture, &other), [], "nothing went by the rules of another");
    process.stop_well();

    // With the intake put back, a target that it forbids by now stays forbidden, whoever replays the record.
    let narrower = format!("{changed}[intakes.us]\nallow = ['none']\n");
    let mut process = fixture.launch(mode).config(&narrower).start();
    let (code, text) = replay(&fixture, &["--code", Code::UnknownIntake.as_str()]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.lines().take(2).all(|line| line.contains(&of("us"))), "{text}");
    let dead = Log::open(&fixture, &fixture.names.dead()).count(4).to_vec();
    let code = |text: &str| {
        let of_it = dead.iter().filter(|letter| letter.text() == text);
        of_it.filter_map(|letter| letter.header("x-delay-error-code")).next_back()
    };
    assert_eq!(code("left behind").as_deref(), Some(Code::MissingTarget.as_str()));
    assert_eq!(code("named, left behind").as_deref(), Some(Code::TargetDenied.as_str()));
    process.stop_well();

    // And with its own list again they are delivered.
    let mut process = fixture.launch(mode).config(&both).start();
    let (code, text) = replay(&fixture, &["--code", Code::UnknownIntake.as_str()]);
    assert_eq!(code, Some(0), "{text}");
    let mut arrived: Vec<_> =
        Log::open(&fixture, &us).count(5)[3..].iter().map(|rec| rec.text()).collect();
    arrived.sort();
    assert_eq!(arrived, ["left behind", "named, left behind"]);
    process.stop_well();
}

/// The only record of a topic that has a state.
#[track_caller]
fn with_a_state(fixture: &Fixture, topic: &str) -> Rec {
    let is_sealed = |rec: &&Rec| rec.header("x-delay-target").is_some() && has_state(rec);
    let mut log = Log::open(fixture, topic);
    log.until("a record with a state", |seen| seen.iter().any(|rec| is_sealed(&rec)));
    log.seen.iter().find(is_sealed).expect("it was waited for").clone()
}

fn has_state(rec: &Rec) -> bool {
    rec.headers.iter().any(|(name, _)| name == b"x-delay-state")
}

/// The same record, byte by byte, written by somebody who has read it.
fn copy(of: &Rec) -> Out {
    let name = |name: &[u8]| String::from_utf8(name.to_vec()).expect("a name in text");
    let headers = of.headers.iter().map(|(header, value)| (name(header), value.clone()));
    Out {
        key: of.key.clone(),
        value: of.value.clone(),
        headers: headers.collect(),
        ..Out::default()
    }
}

#[test]
fn a_state_is_worth_nothing_in_a_topic_that_it_was_not_made_for() {
    let fixture = Fixture::with("intakes-copied", |request| {
        request.further_intakes = vec!["eu".to_owned()];
        request.holds = Some([1_000, 10_000].map(Millis).to_vec());
    });
    let target = fixture.target("out", 1);
    let narrow = "[intakes.eu]\nallow = ['none']\n[intakes.default]\nallow = ['.*-out']\n";
    let mut process = fixture.launch(Mode::ExactlyOnce).config(narrow).start();
    let producer = fixture.producer();
    let (main, eu) = (fixture.names.intake(), fixture.names.further_intake("eu"));
    let tier = fixture.names.tier(Millis(10_000));
    // Moved to its lane, it stands in the main intake with a state, and then in a tier with another one.
    let beside = Producer::new(&fixture, &[("partitioner", "consistent_random")]);
    let key = fixture.astray(0).next().expect("one of many");
    beside.send_one(&main, &out("v").key(&key).delay("20s").to(&target));
    let (moved, hopped) = (with_a_state(&fixture, &main), with_a_state(&fixture, &tier));
    let mut want = Vec::new();
    for (what, record, topic, why) in [
        ("a move", &moved, &eu, "x-delay-state of another intake"),
        ("a move", &moved, &tier, "x-delay-state"),
        ("a hop", &hopped, &main, "x-delay-state"),
        ("a hop", &hopped, &eu, "x-delay-state"),
    ] {
        producer.send_one(topic, &copy(record));
        want.push((format!("{what} in {topic}"), topic.clone(), why));
    }
    let dead = Log::open(&fixture, &fixture.names.dead()).count(want.len()).to_vec();
    for (what, topic, why) in &want {
        let of = |letter: &&Rec| letter.header("x-delay-error-topic").as_ref() == Some(topic);
        let letters: Vec<&Rec> = dead.iter().filter(of).collect();
        let count = want.iter().filter(|(_, other, _)| other == topic).count();
        assert_eq!(letters.len(), count, "{what}: {dead:?}");
        for letter in &letters {
            assert_eq!(letter.header("x-delay-error-code").as_deref(), Some("bad_state"), "{what}");
        }
        let detail = |letter: &Rec| letter.header("x-delay-error-detail").unwrap_or_default();
        assert!(letters.iter().any(|letter| detail(letter).contains(why)), "{what}: {letters:?}");
    }
    fixture.wait_until_nothing_is_pending();
    process.stop_well();
    assert_eq!(whole(&fixture, &target).len(), 1, "it arrives, and none of its copies");
    assert_eq!(whole(&fixture, &fixture.names.dead()).len(), want.len());
}

#[test]
fn a_timer_of_a_further_intake_waits_for_a_cancel_behind_a_transaction_on_the_main_one() {
    let fixture = Fixture::with("intakes-wait", |request| {
        request.lanes = Some(1);
        request.further_intakes = vec!["more".to_owned()];
    });
    let target = fixture.target("out", 1);
    let waits = "foreign-wait = '5m'\n[intakes.more]\n";
    let mut process = fixture.launch(Mode::ExactlyOnce).config(waits).start();
    let (main, more) = (fixture.names.intake(), fixture.names.further_intake("more"));
    let timer = out("v").key("k").delay(3_000).to(&target).header("x-delay-id", "i");
    fixture.producer().send_one(&more, &timer);
    let other = out("other").key("o").delay(1).to(&target);
    let open = open_transaction(&fixture, &main, Some(0), &other);
    let told = ask(&process, "DELETE", "/v1/timers/i?key=k&wait=0s", None);
    assert_eq!((told.status, &told.body["outcome"]), (202, &"pending".into()), "{}", told.body);
    let again = told.body["again"].as_str().expect("where to ask again").to_owned();
    eventually("it is overdue", || {
        let overdue = process.metric("waterclock_overdue_seconds");
        if overdue > 2.0 { Ok(()) } else { Err(format!("{overdue} s")) }
    });
    open.abort_transaction(PATIENCE).expect("aborted");
    eventually("the cancel is decided", || {
        let told = ask(&process, "GET", &again, None);
        if told.body["outcome"] == "cancelled" { Ok(()) } else { Err(told.body.to_string()) }
    });
    process.stop_well();
    assert_eq!(whole(&fixture, &target), []);
}
