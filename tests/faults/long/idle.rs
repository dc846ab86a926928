//! F28: a transactional id that was not used for long expires.

use std::time::{Duration, Instant};

use crate::load::mode;
use crate::support::{Cluster, Fixture, Log, Mode, assert_promise, out, patience, whole};

const RENEWED: &str = "waterclock_producers_renewed_total";
const IDLE: Duration = Duration::from_secs(50);

#[test]
#[ignore = "scripts/faults --long: a broker of its own that is idle for a minute"]
fn f28_the_first_record_after_a_long_rest_is_delivered_once() {
    let cluster = Cluster::start(
        "transactional.id.expiration.ms=20000\ntransaction.remove.expired.transaction.cleanup.interval.ms=5000\n\
         producer.id.expiration.ms=20000\nproducer.id.expiration.check.interval.ms=5000\n",
    );
    let fixture = Fixture::on(cluster.connection(), "f28", |_| {});
    let target = fixture.target("out", 1);
    let mut process = fixture.start(mode());
    let producer = fixture.producer();
    let mut log = Log::open(&fixture, &target);
    let send = |id: &str| {
        let record = out(id).key("k").to(&target).delay(0);
        producer.send_one(&fixture.names.intake(), &record)
    };
    send("before");
    log.count(1);
    let until = Instant::now() + IDLE;
    while Instant::now() < until {
        std::thread::sleep(Duration::from_millis(500));
    }
    let before = process.metric(RENEWED);
    let ack = send("after");
    let late = log.count(2)[1].at.saturating_sub(ack.at);
    // Without transactions librdkafka begins its sequences again by itself, and says nothing.
    if mode() == Mode::ExactlyOnce {
        assert!(process.metric(RENEWED) > before, "nothing had expired");
    }
    send("last");
    log.count(3);
    process.stop_well();
    let ids = ["before", "after", "last"].map(str::to_owned);
    assert_promise(mode(), ids, &whole(&fixture, &target));
    println!("f28: the first record after {IDLE:?} of rest was {late} ms late");
    assert!(late < 10_000 * u64::from(patience()), "{late} ms late");
}
