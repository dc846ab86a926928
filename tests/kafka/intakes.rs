//! The rules of an intake hold for what came by it, whatever becomes of the intake.

use waterclock::engine::header::Code;

use crate::support::{Fixture, Log, Mode, in_both_modes, out, waterclock, whole};

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

    // With the intake put back, what it forbids by now stays forbidden, whoever replays it.
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
