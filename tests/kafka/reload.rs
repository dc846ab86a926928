//! The allow-lists of a running process follow its file.

use std::time::Duration;

use waterclock::engine::header::Code;

use crate::support::{Fixture, Log, Mode, in_both_modes, out};

in_both_modes!(what_is_no_longer_allowed_when_it_fires_is_a_dead_letter);

fn what_is_no_longer_allowed_when_it_fires_is_a_dead_letter(mode: Mode) {
    let fixture = Fixture::new(if mode == Mode::ExactlyOnce { "reload-eos" } else { "reload-alo" });
    let (kept, lost) = (fixture.target("kept", 1), fixture.target("lost", 1));
    let file = fixture.path("a.toml");
    let write = |text: &str| std::fs::write(&file, text).expect("written");
    let mut process = fixture.launch(mode).config(&format!("allow = ['{kept}', '{lost}']")).start();
    let producer = fixture.producer();
    let intake = fixture.names.intake();
    producer.send(&intake, &out("lost").key("a").delay("6s").to(&lost));
    producer.send_one(&intake, &out("kept").key("a").delay("6s").to(&kept));
    producer.send_one(&intake, &out("first").key("a").delay(0).to(&lost));
    // Both were accepted by now: they are of one key, and so of one lane.
    Log::open(&fixture, &lost).count(1);

    write("allow = [\"(\"]\nthreads = 0");
    process.hang_up();
    process.wait_until_logged(Duration::from_secs(10), "not read again");
    assert!(process.log().contains("got 0, want 1 to 64"), "all errors are told");
    write(&format!("allow = ['{kept}']\nmax-delay = '1d'"));
    process.hang_up();
    process.wait_until_logged(Duration::from_secs(10), "its allow-lists and tokens are in force");
    process.wait_until_logged(Duration::from_secs(10), "max-delay");

    let dead = Log::open(&fixture, &fixture.names.dead()).count(1).to_vec();
    assert_eq!(dead[0].text(), "lost");
    assert_eq!(dead[0].header("x-delay-error-code").as_deref(), Some(Code::TargetDenied.as_str()));
    assert_eq!(Log::open(&fixture, &kept).count(1)[0].text(), "kept");
    process.stop_well();
}
