//! Several first starts at once, as containers do it that apply the topics and then run.

use std::time::Duration;

use crate::support::{
    Fixture, Log, Mode, PATIENCE, Process, Rec, assert_each_once, assert_promise, in_both_modes,
    out, whole,
};

in_both_modes!(
    three_containers_that_apply_and_run_on_a_cold_namespace_agree,
    a_damaged_instance_file_never_stops_a_start,
);

fn three_containers_that_apply_and_run_on_a_cold_namespace_agree(mode: Mode) {
    let short = if mode == Mode::ExactlyOnce { "eos" } else { "alo" };
    let fixture = Fixture::cold(&format!("starts-{short}"));
    let target = fixture.target("out", 2);
    let (brokers, namespace) = (&fixture.connection.brokers, fixture.namespace());
    let options = format!("--brokers '{brokers}' --namespace '{namespace}'");
    let script = format!(
        "\"$0\" topics apply --lanes 3 --ladder 1s,2s,5s {options} >/dev/null || exit 99; exec \"$0\" \"$@\""
    );
    let mut processes: Vec<Process> = ["a", "b", "c"]
        .map(|data| fixture.launch(mode).data(data).through(&["sh", "-c", &script]).spawn())
        .into();
    processes.iter_mut().for_each(Process::wait_until_ready);
    let producer = fixture.producer();
    let records = |from: usize, to: usize, delay: &str| {
        for n in from..to {
            let record = out(n.to_string()).key(format!("k{n}")).delay(delay).to(&target);
            producer.send(&fixture.names.intake(), &record);
        }
    };
    // Each process seals for others, who take its lanes over.
    for (gone, process) in processes.iter_mut().enumerate() {
        records(gone * 40, gone * 40 + 40, "6s");
        records(1_000 + gone, 1_001 + gone, "0s");
        let marker = (1_000 + gone).to_string();
        let arrived = |seen: &[Rec]| seen.iter().any(|rec| rec.text() == marker);
        Log::open(&fixture, &target).until("what was due at once is there", arrived);
        std::thread::sleep(Duration::from_secs(1));
        process.stop_well();
    }
    let mut last = fixture.launch(mode).data("d").start();
    Log::open(&fixture, &target).count(123);
    fixture.wait_until_nothing_is_pending();
    last.stop_well();
    assert_eq!(whole(&fixture, &fixture.names.dead()), []);
    let ids = (0..120).chain(1_000..1_003).map(|n: usize| n.to_string());
    assert_each_once(ids, &whole(&fixture, &target));
}

#[test]
#[cfg_attr(not(feature = "failpoints"), ignore = "needs --features failpoints")]
fn a_take_over_that_is_long_says_in_the_log_how_far_it_is() {
    let fixture = Fixture::new("starts-slow");
    // One question to Kafka is answered after 10 s.
    let slow = "take_over_waits=1*sleep(10000)->off";
    let process = fixture.launch(Mode::ExactlyOnce).env("FAILPOINTS", slow);
    // A worker takes partitions over, too.
    let mut process = process.env("WATERCLOCK_ROLES", "lanes,api").spawn();
    process.wait_until_logged(PATIENCE, "taking lanes over");
    process.wait_until_ready();
    let log = process.log();
    let begins = log.find("taking lanes over").expect("it was waited for");
    let ends = log.find("a step of taking lanes over took long").expect("it took 10 s");
    let said: Vec<&str> =
        log[begins..ends].lines().filter(|line| line.contains("still taking lanes over")).collect();
    assert!(said.len() >= 2, "at least every 5 s: {log}");
    for line in said {
        let fields = ["partitions=15 ", "step=\"asking where the logs begin and end\"", "took="];
        assert!(fields.iter().all(|field| line.contains(field)), "{line}");
    }
    process.stop_well();
    // When it is over, so is that.
    let log = process.log();
    let after = &log[log.find("took long").expect("it is there")..];
    assert!(!after.contains("still taking lanes over"), "{log}");
}

fn a_damaged_instance_file_never_stops_a_start(mode: Mode) {
    const GARBAGE: &[u8] = b"amber-1\n\0\xff\xfe\x80 no name\n\n";
    let short = if mode == Mode::ExactlyOnce { "eos" } else { "alo" };
    let fixture = Fixture::new(&format!("starts-damaged-{short}"));
    let target = fixture.target("out", 2);
    let producer = fixture.producer();
    let send = |id: &str, delay: &str| {
        let record = out(id).key(id).delay(delay).to(&target);
        producer.send_one(&fixture.names.intake(), &record);
    };
    let file = fixture.path("a").join("instance");
    let (mut names, mut want) = (Vec::new(), Vec::new());
    let mut process = fixture.start(mode);
    for (damage, found, said) in [
        ("none", None, None),
        ("empty", Some(&b""[..]), Some("the instance file is empty: using a new name")),
        ("binary", Some(GARBAGE), Some("the instance file is damaged: using a new name")),
    ] {
        if let Some(found) = found {
            // What the last run has left pending is delivered all the same.
            process.kill();
            std::fs::write(&file, found).expect("written");
            process = fixture.start(mode);
        }
        let log = process.log();
        for line in ["the instance file is empty", "the instance file is damaged"] {
            let is_said = said.is_some_and(|said| said.starts_with(line));
            assert_eq!(log.contains(line), is_said, "{damage}: {line}: {log}");
        }
        assert!(said.is_none_or(|said| log.contains(said)), "{damage}: {log}");
        let (now, later) = (format!("{damage} now"), format!("{damage} later"));
        send(&now, "0s");
        send(&later, "8s");
        let arrived = |seen: &[Rec]| seen.iter().any(|rec| rec.text() == now);
        Log::open(&fixture, &target).until("what was due at once is there", arrived);
        want.extend([now, later]);
        names.push(std::fs::read_to_string(&file).expect("a name"));
    }
    let set_aside = std::fs::read(fixture.path("a").join("instance.damaged"));
    assert_eq!(set_aside.expect("it is kept"), GARBAGE);
    let mut each = names.clone();
    each.sort();
    each.dedup();
    assert_eq!(each.len(), names.len(), "a new name each time: {names:?}");
    fixture.wait_until_nothing_is_pending();
    process.stop_well();
    assert_promise(mode, want, &whole(&fixture, &target));
    // And it is kept.
    fixture.start(mode).stop_well();
    assert_eq!(Some(&std::fs::read_to_string(&file).expect("a name")), names.last());
}

/// `timeout` signals its child and then its group, so that a child has two within milliseconds.
#[test]
fn two_signals_at_once_are_one() {
    let fixture = Fixture::new("starts-signals");
    for apart in [Duration::from_millis(5), Duration::from_millis(50)] {
        let mut process = fixture.start(Mode::ExactlyOnce);
        process.terminate();
        std::thread::sleep(apart);
        process.terminate();
        assert_eq!(process.wait(PATIENCE), Some(0), "{apart:?}: {}", process.log());
        assert!(!process.log().contains("ended by a second signal"), "{}", process.log());
    }
}
