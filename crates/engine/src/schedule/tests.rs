use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use super::cron::tests::any_cron;
use super::*;

pub(super) fn at(text: &str) -> UnixMillis {
    UnixMillis(text.parse::<jiff::Timestamp>().unwrap().as_millisecond() as u64)
}

fn read(json: &str) -> Result<Timing, Vec<String>> {
    let timing = Timing::parse(json.as_bytes());
    timing.map_err(|wrongs| wrongs.iter().map(ToString::to_string).collect())
}

#[track_caller]
pub(super) fn timing(json: &str) -> Timing {
    read(json).unwrap_or_else(|wrongs| panic!("{json}: {wrongs:?}"))
}

fn of_cron(cron: &str, zone: &str) -> Timing {
    timing(&format!(r#"{{"cron":"{cron}","zone":"{zone}"}}"#))
}

/// Zones whose clocks are changed in all ways that there are.
pub(super) const ZONES: [&str; 10] = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "America/St_Johns",
    "America/Sao_Paulo",
    "Australia/Lord_Howe",
    "Africa/Casablanca",
    "Asia/Kathmandu",
    "Pacific/Apia",
    "Antarctica/Troll",
];

/// A legal timing. Its start is at 2010 or later, as are its end and what is counted.
pub(super) fn any_timing() -> impl Strategy<Value = Timing> {
    let zone = proptest::sample::select(&ZONES[..]);
    let rule = prop_oneof![
        3 => (any_cron(), zone)
            .prop_map(|(cron, zone)| format!(r#""cron":"{cron}","zone":"{zone}""#)),
        1 => prop_oneof![1_000..10_000u64, 1_000..=EVERY.1.0]
            .prop_map(|ms| format!(r#""every":"{ms}ms""#)),
    ];
    let time = || 1_262_304_000_000..4_000_000_000_000u64;
    let start = prop_oneof![2 => Just(None), 1 => time().prop_map(Some)];
    let end = prop_oneof![3 => Just(None), 1 => time().prop_map(Some)];
    let rest =
        (proptest::option::of(1..100u32), 0..=JITTER_MAX.0, 0..3usize, 0..3usize, any::<bool>());
    (rule, start, end, rest).prop_map(
        |(rule, start, end, (count, jitter, misfire, overlap, aligned))| {
            let mut json = format!(
                r#"{{{rule},"jitter":"{jitter}ms","misfire":"{}","overlap":"{}""#,
                Misfire::ALL[misfire].as_str(),
                Overlap::ALL[overlap].as_str(),
            );
            if let Some(start) = start {
                json += &format!(r#","start":{start}"#);
                if let Some(count) = count {
                    json += &format!(r#","count":{count}"#);
                }
                if aligned && rule.contains("every") {
                    json += r#","aligned":true"#;
                }
            }
            if let Some(end) = end.filter(|end| start.is_none_or(|start| start < *end)) {
                json += &format!(r#","end":{end}"#);
            }
            timing(&(json + "}"))
        },
    )
}

#[test]
fn a_timing_is_read_with_its_defaults_and_written_with_them() {
    let rest = r#""jitter":0,"misfire":"fire_once","overlap":"allow"}"#;
    #[rustfmt::skip]
    let cases = [
        (r#"{"cron":"30 7 * * mon-fri","zone":"europe/berlin"}"#,
            format!(r#"{{"cron":"30 7 * * MON-FRI","zone":"Europe/Berlin",{rest}"#)),
        (r#"{"cron":"@daily"}"#, format!(r#"{{"cron":"@daily","zone":"UTC",{rest}"#)),
        (r#"{"every":"10s"}"#, format!(r#"{{"every":10,"aligned":true,{rest}"#)),
        (r#"{"every":"1s500ms","start":"2027-01-31T08:00:00.5+01:00"}"#,
            format!(r#"{{"every":"1s500ms","aligned":false,"start":1801378800500,{rest}"#)),
        (r#"{"every":86400,"aligned":true,"start":1801378800000,"end":"2028-01-01T00:00:00Z","count":7,"jitter":"90s",
            "misfire":"fire_all","overlap":"queue_one"}"#,
            r#"{"every":86400,"aligned":true,"start":1801378800000,"end":1830297600000,"count":7,"jitter":90,"misfire":"fire_all","overlap":"queue_one"}"#.to_owned()),
        (r#"{"cron":"0 0 1 1 *","misfire":"skip","overlap":"skip"}"#,
            r#"{"cron":"0 0 1 1 *","zone":"UTC","jitter":0,"misfire":"skip","overlap":"skip"}"#.to_owned()),
    ];
    for (json, want) in cases {
        assert_eq!(timing(json).to_json(), want, "{json}");
        assert_eq!(timing(&want), timing(json), "{json}");
    }
}

#[test]
fn every_wrong_field_is_named() {
    let time = |field: &str, shown: &str| {
        format!(
            "{field} is {shown}; want RFC 3339 with a zone (\"2027-01-31T08:00:00Z\"), or epoch milliseconds, from 2001 to 5138"
        )
    };
    let length = "a length of time (\"1m30s\"; a number is seconds), from";
    #[rustfmt::skip]
    let cases: &[(&str, &[&str])] = &[
        ("[]", &["schedule is []; want a JSON object"]),
        ("{}", &["cron is missing; want exactly one of cron and every"]),
        (r#"{"cron":"0 0 * * *","every":"1m"}"#, &["every is there beside cron; want exactly one of them"]),
        (r#"{"cron":"0 0 * * *","aligned":true}"#, &["aligned is there beside cron; want it beside every only"]),
        (r#"{"every":60,"zone":"UTC"}"#, &["zone is there beside every; want it beside cron only"]),
        (r#"{"every":60,"aligned":false}"#,
            &["aligned is false, and there is no start; want the time that periods are counted from"]),
        (r#"{"cron":5,"timezone":"UTC","zone":"Europe/Paros","start":"2027-01-31","end":-1,"count":0,"jitter":"2h","misfire":"fire","overlap":1,"mis_fire":2}"#, &[
            "mis_fire is not a field of schedules; did you mean misfire?",
            "timezone is not a field of schedules; the fields are cron, zone, every, aligned, start, end, count, jitter, misfire, overlap",
            &time("start", "\"2027-01-31\""),
            &time("end", "-1"),
            "count is 0; want an integer from 1 to 10000",
            &format!("jitter is \"2h\"; want {length} 0s to 1h"),
            "misfire is \"fire\"; want fire_once, skip, fire_all",
            "overlap is 1; want allow, skip, queue_one",
            "cron is 5; want a text with five or six fields, or one as @daily",
            "zone is \"Europe/Paros\"; want the name of an IANA zone, as Europe/Berlin or UTC; did you mean Europe/Paris?",
        ]),
        (r#"{"every":"999ms","aligned":1}"#, &[
            &format!("every is \"999ms\"; want {length} 1s to 3650d"),
            "aligned is 1; want true or false",
        ]),
        (r#"{"every":"3651d"}"#, &[&format!("every is \"3651d\"; want {length} 1s to 3650d")]),
        // Digits in quotes could be anything.
        (r#"{"every":1,"start":"1801378800000"}"#, &[&time("start", "\"1801378800000\"")]),
        (r#"{"every":1,"end":999999999999}"#, &[&time("end", "999999999999")]),
        (r#"{"every":1,"count":2}"#, &["count is there without start; want the time to count from"]),
        (r#"{"every":1,"start":1801378800000,"end":1801378800000}"#,
            &["end is not after start; want a time after it"]),
        (r#"{"cron":"0 0 30 2 *"}"#, &["cron is \"0 0 30 2 *\"; want days that some month has"]),
        (r#"{"cron":"0 25 * * *"}"#,
            &["cron is \"0 25 * * *\"; want hours from 0 to 23, with *, lists (1,3), ranges (1-5) and steps (*/2, 1-5/2), not \"25\""]),
    ];
    for (json, want) in cases {
        assert_eq!(read(json).unwrap_err(), *want, "{json}");
    }
    let long = format!(r#"{{"cron":"{}"}}"#, " ".repeat(TIMING_MAX));
    assert_eq!(read(&long).unwrap_err(), ["schedule has 4107 bytes; want at most 4096"]);
}

/// The times of a pattern as the clock of the zone shows them.
fn shown(cron: &str, zone: &str, from: &str, to: &str) -> Vec<String> {
    let timing = of_cron(cron, zone);
    let listed = timing.times(at(from), at(to), LISTED_MAX);
    assert!(!listed.has_more);
    listed.times.into_iter().map(|time| timing.zone().unwrap().show(time)).collect()
}

#[test]
fn a_clock_that_is_changed_leaves_no_fixed_time_out_and_has_none_twice() {
    // Why, pattern, zone, from, to, times.
    type Case<'a> = (&'a str, &'a str, &'a str, &'a str, &'a str, &'a [&'a str]);
    #[rustfmt::skip]
    let cases: &[Case<'_>] = &[
        ("in a gap: when it is over", "30 2 * * *", "Europe/Berlin", "2027-03-27T12:00:00Z", "2027-03-29T12:00:00Z",
            &["2027-03-28T03:00:00+02:00", "2027-03-29T02:30:00+02:00"]),
        ("several in a gap: once", "0,20,40 2 * * *", "Europe/Berlin", "2027-03-27T12:00:00Z", "2027-03-28T12:00:00Z",
            &["2027-03-28T03:00:00+02:00"]),
        ("in a gap, and at its end: once", "0,30 2,3 * * *", "Europe/Berlin", "2027-03-27T12:00:00Z", "2027-03-28T12:00:00Z",
            &["2027-03-28T03:00:00+02:00", "2027-03-28T03:30:00+02:00"]),
        ("in a fold: the first", "30 2 * * *", "Europe/Berlin", "2027-10-30T12:00:00Z", "2027-11-01T12:00:00Z",
            &["2027-10-31T02:30:00+02:00", "2027-11-01T02:30:00+01:00"]),
        ("at the end of a fold", "0 2,3 * * *", "Europe/Berlin", "2027-10-30T12:00:00Z", "2027-10-31T12:00:00Z",
            &["2027-10-31T02:00:00+02:00", "2027-10-31T03:00:00+01:00"]),
        ("hours follow the clock over a gap", "30 * * * *", "Europe/Berlin", "2027-03-28T00:00:00Z", "2027-03-28T03:00:00Z",
            &["2027-03-28T01:30:00+01:00", "2027-03-28T03:30:00+02:00", "2027-03-28T04:30:00+02:00"]),
        ("quarters go on through a fold", "*/15 * * * *", "Europe/Berlin", "2027-10-31T00:30:00Z", "2027-10-31T02:15:00Z",
            &["2027-10-31T02:30:00+02:00", "2027-10-31T02:45:00+02:00", "2027-10-31T02:00:00+01:00", "2027-10-31T02:15:00+01:00",
              "2027-10-31T02:30:00+01:00", "2027-10-31T02:45:00+01:00", "2027-10-31T03:00:00+01:00"]),
        ("and none is made up in a gap", "*/15 2 * * *", "Europe/Berlin", "2027-03-28T00:00:00Z", "2027-03-28T12:00:00Z", &[]),
        ("half an hour is jumped over", "15 2 * * *", "Australia/Lord_Howe", "2027-10-02T00:00:00Z", "2027-10-03T12:00:00Z",
            &["2027-10-03T02:30:00+11:00"]),
        ("half an hour comes again", "*/10 1 * * *", "Australia/Lord_Howe", "2027-04-03T12:00:00Z", "2027-04-04T12:00:00Z",
            &["2027-04-04T01:00:00+11:00", "2027-04-04T01:10:00+11:00", "2027-04-04T01:20:00+11:00", "2027-04-04T01:30:00+11:00",
              "2027-04-04T01:40:00+11:00", "2027-04-04T01:50:00+11:00", "2027-04-04T01:30:00+10:30", "2027-04-04T01:40:00+10:30",
              "2027-04-04T01:50:00+10:30"]),
        ("midnight is jumped over", "0 0 * * *", "America/Sao_Paulo", "2018-11-03T12:00:00Z", "2018-11-05T12:00:00Z",
            &["2018-11-04T01:00:00-02:00", "2018-11-05T00:00:00-02:00"]),
        ("before midnight comes again: the day is the one that is shown", "30 23 * * SAT", "America/Sao_Paulo", "2018-02-17T12:00:00Z",
            "2018-02-18T12:00:00Z", &["2018-02-17T23:30:00-02:00"]),
        ("a day is jumped over", "0 12 30 12 *", "Pacific/Apia", "2011-12-01T00:00:00Z", "2012-01-15T00:00:00Z",
            &["2011-12-31T00:00:00+14:00"]),
        ("a day is jumped over, and the next one counts, too", "0 12 * * *", "Pacific/Apia", "2011-12-29T12:00:00Z", "2011-12-31T12:00:00Z",
            &["2011-12-29T12:00:00-10:00", "2011-12-31T00:00:00+14:00", "2011-12-31T12:00:00+14:00"]),
        ("two hours are jumped over", "0 2 * * *", "Antarctica/Troll", "2027-03-27T12:00:00Z", "2027-03-28T12:00:00Z",
            &["2027-03-28T03:00:00+02:00"]),
    ];
    for (why, cron, zone, from, to, want) in cases {
        assert_eq!(shown(cron, zone, from, to), *want, "{why}");
    }
}

#[test]
fn the_next_time_is_after_the_one_that_is_given() {
    let berlin = of_cron("30 2 * * *", "Europe/Berlin");
    #[rustfmt::skip]
    let cases = [
        ("2027-03-28T00:59:59.999Z", "2027-03-28T01:00:00Z"),
        ("2027-03-28T01:00:00Z",     "2027-03-29T00:30:00Z"),
        // In the second hour of a fold: it has been.
        ("2027-10-31T01:00:00Z",     "2027-11-01T01:30:00Z"),
        ("2027-10-31T00:29:59.001Z", "2027-10-31T00:30:00Z"),
        ("2027-10-31T00:30:00Z",     "2027-11-01T01:30:00Z"),
    ];
    for (after, want) in cases {
        assert_eq!(berlin.next_after(at(after)), Some(at(want)), "{after}");
    }
    // Up to the last one that waterclock knows of.
    let hourly = timing(r#"{"every":"1h"}"#);
    assert_eq!(hourly.next_after(TIME_MAX), None);
    assert_eq!(hourly.next_after(UnixMillis(u64::MAX)), None);
    assert_eq!(of_cron("@hourly", "UTC").next_after(UnixMillis(u64::MAX)), None);
    assert_eq!(of_cron("@hourly", "UTC").next_after(UnixMillis(0)), Some(UnixMillis(3_600_000)));
}

#[test]
fn start_end_and_count_bound_the_times() {
    let list = |json: &str| {
        let listed = timing(json).times(at("2027-01-01T00:00:00Z"), at("2027-02-01T00:00:00Z"), 4);
        let times = listed.times.iter().map(|time| Zone::default().show(*time)[..19].to_owned());
        (times.collect::<Vec<_>>(), listed.has_more)
    };
    #[rustfmt::skip]
    let cases: &[(&str, &str, &[&str], bool)] = &[
        ("aligned to the epoch", r#"{"every":"7d"}"#,
            &["2027-01-07T00:00:00", "2027-01-14T00:00:00", "2027-01-21T00:00:00", "2027-01-28T00:00:00"], false),
        ("counted from the start, which is one", r#"{"every":"7d","start":"2027-01-02T10:00:00Z"}"#,
            &["2027-01-02T10:00:00", "2027-01-09T10:00:00", "2027-01-16T10:00:00", "2027-01-23T10:00:00"], true),
        ("a start long ago", r#"{"every":"10d","start":"2001-12-31T10:00:00Z"}"#,
            &["2027-01-09T10:00:00", "2027-01-19T10:00:00", "2027-01-29T10:00:00"], false),
        ("aligned from a start on", r#"{"every":"7d","start":"2027-01-07T00:00:01Z","aligned":true}"#,
            &["2027-01-14T00:00:00", "2027-01-21T00:00:00", "2027-01-28T00:00:00"], false),
        ("the end is no time", r#"{"every":"7d","end":"2027-01-21T00:00:00Z"}"#,
            &["2027-01-07T00:00:00", "2027-01-14T00:00:00"], false),
        ("the start may be one", r#"{"cron":"0 9 * * MON","start":"2027-01-11T09:00:00Z","end":"2027-01-18T09:00:01Z"}"#,
            &["2027-01-11T09:00:00", "2027-01-18T09:00:00"], false),
        ("two, and no more", r#"{"cron":"0 9 * * MON","start":"2027-01-11T09:00:00Z","count":2}"#,
            &["2027-01-11T09:00:00", "2027-01-18T09:00:00"], false),
        ("three of a period", r#"{"every":"2d","start":"2027-01-11T09:00:00Z","count":3}"#,
            &["2027-01-11T09:00:00", "2027-01-13T09:00:00", "2027-01-15T09:00:00"], false),
        ("two that are aligned", r#"{"every":"7d","start":"2027-01-08T00:00:00Z","count":2,"aligned":true}"#,
            &["2027-01-14T00:00:00", "2027-01-21T00:00:00"], false),
        ("the end comes before the count", r#"{"cron":"0 9 * * MON","start":"2027-01-11T09:00:00Z","count":9,"end":"2027-01-12T00:00:00Z"}"#,
            &["2027-01-11T09:00:00"], false),
    ];
    for (why, json, want, has_more) in cases {
        assert_eq!(
            list(json),
            (want.iter().map(|at| (*at).to_owned()).collect(), *has_more),
            "{why}"
        );
    }
}

#[test]
fn a_list_has_a_thousand_times_at_most() {
    let listed = timing(r#"{"every":"1s"}"#).times(UnixMillis(0), UnixMillis(u64::MAX), usize::MAX);
    assert!(listed.times.len() == LISTED_MAX && listed.has_more);
    let none = timing(r#"{"every":"1s"}"#).times(UnixMillis(0), UnixMillis(u64::MAX), 0);
    assert_eq!(none, Listed { times: Vec::new(), has_more: true });
}

#[test]
fn a_schedule_that_has_no_more_time_says_which_field_is_the_reason() {
    let now = at("2027-06-01T00:00:00Z");
    let first = |json: &str| timing(json).first_after(now).map_err(|wrong| wrong.to_string());
    #[rustfmt::skip]
    let cases = [
        (r#"{"cron":"@monthly"}"#, Ok(at("2027-07-01T00:00:00Z"))),
        (r#"{"every":"1d","start":"2030-01-01T00:00:00Z"}"#, Ok(at("2030-01-01T00:00:00Z"))),
        // Every second quarter past two on a day on which there is none.
        (r#"{"cron":"*/15 2 * 3 SUNL","zone":"Europe/Berlin"}"#,
            Err("cron has no time within 100 years on the clock of Europe/Berlin".to_owned())),
        (r#"{"cron":"@yearly","end":"2027-12-31T00:00:00Z"}"#,
            Err("end leaves no time; the next one would be 1830297600000 (2028-01-01T00:00:00+00:00)".to_owned())),
        (r#"{"every":"1d","start":"2027-01-01T00:00:00Z","count":30}"#,
            Err("count leaves no time: all of them are past".to_owned())),
        (r#"{"every":"3650d","start":100000000000000,"count":3}"#, Ok(UnixMillis(100_000_000_000_000))),
    ];
    for (json, want) in cases {
        assert_eq!(first(json), want, "{json}");
    }
}

#[test]
fn jitter_delays_a_task_by_its_id() {
    let id = TaskId::parse("schedule.shop.report@1801378800000").unwrap();
    let nominal = UnixMillis(1_801_378_800_000);
    assert_eq!(timing(r#"{"every":"1h"}"#).due(nominal, &id), nominal);
    let due = timing(r#"{"every":"1h","jitter":"10m"}"#).due(nominal, &id);
    assert_eq!(due, nominal + id.offset_in(Millis(600_000)));
    assert!(due - nominal < Millis(600_000) && due > nominal);
}

/// What is asked, how long it may take in milliseconds, and how it is asked. The bounds have room for a slow machine: what was measured
/// stands in docs/adr/0041-schedules.md.
type Question = (&'static str, u64, fn(&Timing, UnixMillis));
const QUESTIONS: [Question; 4] = [
    ("the next time", 100, |timing, at| {
        let _ = timing.next_after(at);
    }),
    ("the last hundred", 1_000, |timing, at| {
        let all = Timing { misfire: Misfire::FireAll, ..timing.clone() };
        let _ = all.late(UnixMillis(0), (at, at), Millis(0));
    }),
    ("a thousand times", 1_000, |timing, at| {
        let _ = timing.times(at, UnixMillis(u64::MAX), LISTED_MAX);
    }),
    ("the last of ten thousand", 1_000, |timing, at| {
        let counted = Timing { start: Some(at), count: Some(COUNT_MAX), ..timing.clone() };
        let _ = counted.last_of_count();
    }),
];

#[test]
fn no_question_takes_long() {
    #[rustfmt::skip]
    let mut crons: Vec<String> = [
        // Once in 40 years.
        "0 0 * 2 1#5", "59 59 23 */28 2 0#5", "* * * * 2 1#5",
        // In leap years.
        "0 0 29W 2 *", "0 0 29 2 *",
        // Not once where clocks are changed then.
        "*/15 2 * 3 SUNL", "* 2 */28 2 1#5",
        // At each second, and at each but those of a fold.
        "* * * * * *", "0-58 0-58 0-22 * * *",
        "0 0 31 12 *",
    ].map(str::to_owned).into();
    let mut runner = TestRunner::deterministic();
    crons.extend((0..50).map(|_| any_cron().new_tree(&mut runner).unwrap().current()));
    // Those with the most changes of clocks.
    let zones = ["UTC", "Europe/Berlin", "Africa/Casablanca", "Antarctica/Troll"];
    let froms = ["2027-01-01", "2072-03-01", "2027-10-31", "5000-01-01"];
    let froms = froms.map(|day| at(&format!("{day}T00:59:59Z")));
    for (what, bound_ms, ask) in QUESTIONS {
        let mut slowest = (Duration::ZERO, String::new());
        for (cron, zone) in crons.iter().flat_map(|cron| zones.map(|zone| (cron, zone))) {
            let timing = of_cron(cron, zone);
            for from in froms {
                let begin = Instant::now();
                ask(&timing, from);
                slowest = slowest.max((begin.elapsed(), format!("{cron} {zone} {}", utc(from))));
            }
        }
        eprintln!("{what}: {slowest:?}");
        assert!(slowest.0 < Duration::from_millis(bound_ms), "{what}: {slowest:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn a_timing_is_read_back(timing in any_timing()) {
        let json = timing.to_json();
        prop_assert_eq!(read(&json), Ok(timing), "{}", json);
        prop_assert!(json.len() <= TIMING_MAX);
    }

    /// Times strictly increase, each is the next one of all that are before it, and a search from behind finds the same ones.
    #[test]
    fn times_strictly_increase(timing in any_timing(), from in 0..4_000_000_000_000u64, back in 1..1_000_000u64) {
        let from = UnixMillis(from);
        let mut before = from;
        for _ in 0..20 {
            let Some(next) = timing.next_after(before) else { break };
            prop_assert!(next > before);
            prop_assert_eq!(timing.next_after(next - Millis(1)), Some(next));
            let between = UnixMillis(next.0 - back % (next.0 - before.0));
            prop_assert_eq!(timing.next_after(between - Millis(1)), Some(next));
            prop_assert_eq!(timing.last_until(next, from), Some(next));
            let last = timing.last_until(next - Millis(1), from);
            prop_assert!(last == Some(before) || last.is_none_or(|last| last == from) && before == from, "{:?}", last);
            before = next;
        }
    }

    #[test]
    fn a_list_is_the_walk_over_its_times(timing in any_timing(), from in 0..4_000_000_000_000u64, max in 0..50usize) {
        let from = UnixMillis(from);
        let listed = timing.times(from, UnixMillis(u64::MAX), max);
        let mut walk = Vec::new();
        let mut before = from - Millis(1);
        while let Some(next) = timing.next_after(before) {
            if walk.len() > max {
                break;
            }
            walk.push(next);
            before = next;
        }
        prop_assert_eq!(listed.has_more, walk.len() > max);
        walk.truncate(max);
        prop_assert_eq!(listed.times, walk);
    }
}
