//! A broker's disk that does not give back what was written.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt as _;

use crate::support::{
    Fixture, Log, Mode, assert_each_once, eventually, in_both_modes, out, variable, whole,
};

in_both_modes!(a_damaged_batch_is_told_of_and_read_when_it_is_whole_again);

/// The log of a partition as it lies on the broker's disk, and where these bytes stand in it.
fn on_disk(topic: &str, partition: u16, bytes: &[u8]) -> (File, u64) {
    let nodes = std::fs::read_dir(variable("WATERCLOCK_KAFKA_DIR")).expect("the broker's files");
    let name = format!("data/{topic}-{partition}/00000000000000000000.log");
    let mut logs = nodes.map(|node| node.expect("a file").path().join(&name));
    let path = logs.find(|path| path.exists()).expect("a log");
    let all = std::fs::read(&path).expect("readable");
    let at = all.windows(bytes.len()).position(|window| window == bytes).expect("it is there");
    (OpenOptions::new().write(true).open(path).expect("writable"), at as u64)
}

fn a_damaged_batch_is_told_of_and_read_when_it_is_whole_again(mode: Mode) {
    let fixture = Fixture::new(if mode == Mode::ExactlyOnce { "damaged" } else { "damaged-alo" });
    let target = fixture.target("out", 1);
    let intake = fixture.names.intake();
    let producer = fixture.producer();
    let keys: Vec<_> = (0..2).map(|lane| fixture.keys(lane).next().expect("a key")).collect();
    // Each is acknowledged before the next is sent, and so is a batch of its own.
    for value in ["before", "needle", "after"] {
        producer.send_one(&intake, &out(value).key(&keys[0]).delay(100).to(&target));
    }
    producer.send_one(&intake, &out("beside").key(&keys[1]).delay(100).to(&target));
    let (log, at) = on_disk(&intake, 0, b"needle");
    log.write_all_at(b"beetle", at).expect("written");
    let mut process = fixture.launch(mode).spawn();
    Log::open(&fixture, &target).until("those beside it", |seen| {
        ["before", "beside"].iter().all(|text| seen.iter().any(|rec| rec.text() == *text))
    });
    eventually("it says which batch it is", || match process.get("/health/ready")? {
        (503, text) if text.contains("offset 1 ") && text.contains("checksum") => Ok(()),
        (status, text) => Err(format!("{status}: {text}")),
    });
    assert_each_once(["before", "beside"].map(str::to_owned), &whole(&fixture, &target));
    log.write_all_at(b"needle", at).expect("written");
    process.wait_until_ready();
    fixture.wait_until_nothing_is_pending();
    process.stop_well();
    let all = ["before", "beside", "needle", "after"];
    assert_each_once(all.map(str::to_owned), &whole(&fixture, &target));
    assert_eq!(whole(&fixture, &fixture.names.dead()).len(), 0);
}
