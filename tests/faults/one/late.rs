//! F17: a Produce that is held up on its way for longer than its records have time.

use std::time::Duration;

use waterclock::engine::Millis;

use crate::load::mode;
use crate::support::{
    Fixture, Hold, Log, Mode, Out, PATIENCE, PRODUCE, Process, Proxy, State, eventually, out,
    patience, whole,
};

/// How long a request is held, unless something is waited for: less than makes a transaction a slow one.
const HELD: Duration = Duration::from_secs(3);

/// As Kafka makes targets.
const BY_WRITER: &str = "CreateTime";
const BY_APPEND: &str = "LogAppendTime";

/// A process that reaches its brokers through the proxy, and has just delivered something to its target.
struct Bed {
    fixture: Fixture,
    proxy: std::sync::Arc<Proxy>,
    process: Process,
    target: String,
    log: Log,
}

impl Bed {
    #[track_caller]
    fn make(name: &str, mode: Mode, order: &str, stamp: &str) -> Self {
        let holds = [1_000, 10_000].map(Millis).to_vec();
        let fixture = Fixture::with(name, |request| request.holds = Some(holds));
        let target = fixture.target_with("out", 1, &[("message.timestamp.type", stamp)]);
        let proxy = Proxy::shared();
        let launch = fixture.launch(mode).brokers(&proxy.brokers).env("WATERCLOCK_ORDER", order);
        let process = launch.start();
        let log = Log::open(&fixture, &target);
        let mut bed = Self { fixture, proxy, process, target, log };
        bed.send(&out("first").delay(100));
        bed.log.count(1);
        // What is committed by itself, once nothing else is.
        std::thread::sleep(Duration::from_secs(3));
        bed
    }

    /// When the broker has it.
    fn send(&self, record: &Out) -> u64 {
        let producer = self.fixture.producer();
        producer.send(&self.fixture.names.intake(), &record.clone().key("k").to(&self.target));
        producer.acks()[0].at
    }

    /// Holds the next requests that write something, as many as there are tries.
    fn hold(&self, tries: usize) -> Vec<Hold> {
        (0..tries).map(|_| self.proxy.hold(PRODUCE, self.fixture.namespace(), None)).collect()
    }

    /// Texts of what was delivered besides the first, and codes of dead letters.
    #[track_caller]
    fn outcome(mut self) -> (Vec<String>, Vec<String>) {
        self.fixture.wait_until_nothing_is_pending();
        self.process.stop_well();
        let there = whole(&self.fixture, &self.target).into_iter().map(|rec| rec.text());
        let dead = whole(&self.fixture, &self.fixture.names.dead());
        let codes = dead.iter().filter_map(|rec| rec.header("x-delay-error-code")).collect();
        (there.filter(|text| text != "first").collect(), codes)
    }
}

#[test]
fn f17_a_delivery_that_is_held_up_until_it_has_expired_is_a_dead_letter_or_late_and_never_both() {
    [BY_WRITER, BY_APPEND].iter().for_each(|stamp| held_up_until_it_has_expired(stamp));
}

fn held_up_until_it_has_expired(stamp: &str) {
    let bed = Bed::make("f17-expiry", mode(), "by-due", stamp);
    let holds = bed.hold(1);
    bed.send(&out("held").delay(1_500).header("x-delay-expires", "2000"));
    holds[0].wait_until(State::Held);
    std::thread::sleep(HELD);
    drop(holds);
    let process_log = |bed: &Bed| bed.process.log();
    if mode() == Mode::ExactlyOnce {
        eventually("it is aborted", || {
            let log = process_log(&bed);
            if log.contains("had expired") { Ok(()) } else { Err(log) }
        });
    }
    let (there, codes) = bed.outcome();
    match mode() {
        Mode::ExactlyOnce => {
            assert_eq!((there.len(), &codes[..]), (0, &["expired".to_owned()][..]))
        }
        // It was on its way when it expired, and nothing can take it back.
        Mode::AtLeastOnce => assert_eq!((there, codes), (vec!["held".to_owned()], Vec::new())),
    }
}

/// Its delivery is tried until it is given up; whether it was carried out, nobody can know.
#[test]
fn f17_what_may_have_been_delivered_before_it_expired_is_no_dead_letter() {
    let mut bed = Bed::make("f17-unknown", Mode::AtLeastOnce, "by-due", BY_WRITER);
    let holds = bed.hold(4);
    bed.send(&out("held").delay(1_500).header("x-delay-expires", "2000"));
    bed.process.wait_until_logged(PATIENCE, "batch failed, renewing the producer");
    drop(holds);
    let (there, codes) = bed.outcome();
    println!("f17-unknown: delivered {} times", there.len());
    assert!(!there.is_empty() && codes.is_empty(), "{there:?}, {codes:?}");
}

#[track_caller]
fn a_held_hop_comes_up_in_time(name: &str, order: &str) {
    let mut bed = Bed::make(name, Mode::ExactlyOnce, order, BY_WRITER);
    let holds = bed.hold(1);
    // Into the tier of 10 s, which lets it go after 8 s: with 3 s less that would be too late by 2 s.
    let due = bed.send(&out("held").delay(9_800)) + 9_800;
    holds[0].wait_until(State::Held);
    std::thread::sleep(HELD);
    drop(holds);
    bed.log.count(2);
    let at = bed.log.read_at[1];
    println!("{name}: read {} ms after it was due", at - due);
    assert!(at >= due, "early");
    assert!(at < due + 800 * u64::from(patience()), "{} ms late", at - due);
    assert!(bed.process.log().contains("too late for its tier"), "{}", bed.process.log());
    assert_eq!(bed.outcome(), (vec!["held".to_owned()], Vec::new()));
}

#[test]
fn f17_a_hop_that_is_held_up_comes_up_in_time() {
    a_held_hop_comes_up_in_time("f17-hop", "by-due");
}

#[test]
fn f17_a_hop_that_is_held_up_comes_up_in_time_in_strict_order() {
    a_held_hop_comes_up_in_time("f17-hop-strict", "strict");
}
