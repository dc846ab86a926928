//! F22, F24, F25: the index and its directory, and the changelog that it is read from.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use waterclock::index::{Identity, Index};

use crate::checkers::{Wish, check};
use crate::load::{Load, Mix, mode};
use crate::support::{Fixture, Log, Mode, PATIENCE, Process, eventually_within, tool};

/// A restart, and the changelog read from its beginning.
const RESTARTED: Wish = Wish { recovery: Duration::from_secs(10) };

/// Half have ids, and many are cancelled at once; some wait through every restart of a row.
pub fn mix() -> Mix {
    let delays = vec![400, 1_100, 2_600, 7_700, 21_000, 34_000];
    Mix { delays, tracked_every: 2, cancelled_every: 2, ..Mix::default() }
}

fn files(below: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(below).expect("there") {
        let path = entry.expect("readable").path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found.sort();
    found
}

/// The directory of an index, wherever it is below a data directory.
pub fn index_of(data: &Path) -> PathBuf {
    let all = files(data);
    let inside = all.iter().find(|path| path.parent().is_some_and(|at| at.ends_with("index")));
    inside.and_then(|path| path.parent()).expect("an index").to_owned()
}

fn change_each(index: &Path, change: fn(&mut Vec<u8>)) {
    for file in files(index) {
        let mut bytes = fs::read(&file).expect("readable");
        change(&mut bytes);
        fs::write(&file, bytes).expect("written");
    }
}

fn of_another(index: &Path, cluster_id: &str, version: u32) {
    fs::remove_dir_all(index).expect("removed");
    let identity =
        Identity { cluster_id: cluster_id.to_owned(), namespace: "other".to_owned(), version };
    Index::open(index, &identity).expect("made").close();
}

/// Damage done to an index while its process is down, and whether it shows in the metrics, if that can be known.
type Damage = (&'static str, fn(&Path), Option<bool>);

const DAMAGES: [Damage; 6] = [
    ("missing", |index| fs::remove_dir_all(index).expect("removed"), Some(false)),
    ("flipped", |index| change_each(index, |bytes| flip(bytes)), Some(true)),
    ("cut short", |index| change_each(index, |bytes| bytes.truncate(bytes.len() / 2)), Some(true)),
    // Of a small one nothing is left, as if it were missing.
    ("half copied", half_copied, None),
    ("of another cluster", |index| of_another(index, "another", 1), Some(true)),
    ("of another version", |index| of_another(index, "another", 99), Some(true)),
];

/// 64 bytes in the middle are others.
fn flip(bytes: &mut [u8]) {
    let middle = bytes.len() / 2;
    bytes.iter_mut().skip(middle).take(64).for_each(|byte| *byte ^= 0x55);
}

/// The copy was ended in the middle of its largest file, and what comes after it is not there.
fn half_copied(index: &Path) {
    let all = files(index);
    let size = |file: &PathBuf| fs::metadata(file).map_or(0, |about| about.len());
    let largest = all.iter().max_by_key(|file| size(file)).expect("a file");
    let mut bytes = fs::read(largest).expect("readable");
    bytes.truncate(bytes.len() / 3);
    for file in all.iter().filter(|file| *file >= largest) {
        fs::remove_file(file).expect("removed");
    }
    fs::write(largest, bytes).expect("written");
}

#[test]
fn f22_a_process_that_is_started_on_a_damaged_index_delivers_as_without_one() {
    let fixture = Fixture::new("f22");
    let mut process = fixture.start(mode());
    let load = Load::begin(&fixture, mix());
    load.cancel_through(&[&process]);
    load.wait_for_more(100);
    for (what, damage, is_told) in DAMAGES {
        process.stop_well();
        damage(&index_of(&fixture.path("a")));
        process = fixture.start(mode());
        load.cancel_through(&[&process]);
        let rebuilt = process.metric("waterclock_index_rebuilds_total");
        assert!(is_told.is_none_or(|told| told == (rebuilt >= 1.0)), "{what}: {rebuilt}");
        assert_eq!(process.metric("waterclock_index_given_up"), 0.0, "{what}");
        load.wait_for_more(30);
    }
    load.healed();
    load.wait_for_more(60);
    let history = load.finish("f22");
    process.stop_well();
    check(&history, RESTARTED);
}

#[test]
fn f24_a_second_process_on_a_data_directory_is_refused_and_the_first_goes_on() {
    let fixture = Fixture::new("f24");
    let mut first = fixture.start(mode());
    let load = Load::begin(&fixture, Mix::default());
    load.cancel_through(&[&first]);
    load.wait_for_more(60);
    for _ in 0..2 {
        let mut second = fixture.launch(mode()).spawn();
        assert_eq!(second.wait(PATIENCE), Some(73));
        let last = second.log().lines().last().unwrap_or_default().to_owned();
        assert!(last.contains("is in use by another process"), "{last}");
        assert!(last.contains(&*fixture.path("a").to_string_lossy()), "{last}");
    }
    load.healed();
    load.wait_for_more(60);
    let history = load.finish("f24");
    first.stop_well();
    // Of its lane thread, and of its worker, which there is where there are transactions.
    let members = 1 + usize::from(mode() == Mode::ExactlyOnce);
    assert_eq!(first.log().matches("revoked partitions").count(), members, "at its end only");
    check(&history, Wish { recovery: Duration::from_secs(3) });
}

/// Has a topic compacted as eagerly as it goes; the broker looks every 15 s.
#[track_caller]
fn compact_eagerly(topic: &str) {
    let eagerly = "segment.ms=1000,min.cleanable.dirty.ratio=0.01,delete.retention.ms=1000,max.compaction.lag.ms=1000";
    let of_topic = ["--alter", "--entity-type", "topics", "--entity-name", topic];
    tool("kafka.admin.ConfigCommand", &[&of_topic[..], &["--add-config", eagerly]].concat());
}

#[test]
fn f25_what_compaction_left_of_the_changelog_is_enough_to_rebuild_an_index() {
    let fixture = Fixture::new("f25");
    let timers = format!("{}.timers", fixture.namespace());
    compact_eagerly(&timers);
    let mut process = fixture.start(mode());
    let load = Load::begin(&fixture, mix());
    load.cancel_through(&[&process]);
    load.wait_for_more(100);
    let offsets = || -> Vec<(i32, i64)> {
        let mut log = Log::open(&fixture, &timers);
        log.read_on(Duration::from_secs(2));
        log.seen.iter().map(|rec| (rec.partition, rec.offset)).collect()
    };
    let before = offsets();
    let gone = eventually_within(PATIENCE, "the changelog was compacted", || {
        let after = offsets();
        let gone = before.iter().filter(|place| !after.contains(place)).count();
        if gone > 0 { Ok(gone) } else { Err(format!("all {} are there", before.len())) }
    });
    process.kill();
    fs::remove_dir_all(index_of(&fixture.path("a"))).expect("removed");
    process = fixture.start(mode());
    load.cancel_through(&[&process]);
    load.healed();
    load.wait_for_more(100);
    println!("f25: {gone} records of the changelog were gone when it was read again");
    let history = load.finish("f25");
    Process::stop_well(&mut process);
    check(&history, RESTARTED);
}
