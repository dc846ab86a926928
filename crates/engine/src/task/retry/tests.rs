use proptest::prelude::*;

use super::super::fields::{document, to_json};
use super::*;

fn read(json: &str) -> Result<Retry, Vec<String>> {
    let mut wrongs = Wrongs::default();
    let json = format!(r#"{{"retry":{json}}}"#);
    let map = document("x-test", json.as_bytes(), 4_096, &mut wrongs).unwrap();
    let fields = Fields::of_document(&map).inside("retry", &mut wrongs);
    let retry = fields.map(|fields| Retry::read(&fields, &mut wrongs));
    let wrongs = wrongs.list("x-test");
    match retry {
        Some(retry) if wrongs.is_empty() => Ok(retry),
        _ => Err(wrongs.iter().map(ToString::to_string).collect()),
    }
}

/// A legal policy.
pub(in super::super) fn any_retry() -> impl Strategy<Value = Retry> {
    let length = || prop_oneof![1_000..=100_000u64, 1_000..=INTERVAL_MAX.0];
    let rest = (0..=COUNT_MAX, any::<bool>(), 0..=1_000u16);
    (length(), length(), rest).prop_map(|(one, other, (count, doubles, jitter))| Retry {
        count,
        interval: Millis(one.min(other)),
        backoff: if doubles { Backoff::Exponential } else { Backoff::Fixed },
        max_interval: Millis(one.max(other)),
        jitter,
    })
}

#[test]
fn a_policy_is_read_with_its_defaults() {
    let default = Retry::default();
    #[rustfmt::skip]
    let cases = [
        ("{}", default),
        (r#"{"count":1000,"interval":"1s","backoff":"fixed","max_interval":1,"jitter":1}"#,
            Retry { count: 1_000, interval: Millis(1_000), max_interval: Millis(1_000), jitter: 1_000, ..default }),
        (r#"{"count":3,"interval":5,"backoff":"exponential","max_interval":"10m","jitter":0.2}"#,
            Retry { count: 3, backoff: Backoff::Exponential, max_interval: Millis(600_000), jitter: 200, ..default }),
        // The default of the maximum follows an interval that is longer.
        (r#"{"interval":"1d"}"#, Retry { interval: Millis::DAY, max_interval: Millis::DAY, ..default }),
        (r#"{"jitter":0.12345}"#, Retry { jitter: 123, ..default }),
        (r#"{"jitter":0.9996}"#, Retry { jitter: 1_000, ..default }),
    ];
    for (json, want) in cases {
        assert_eq!(read(json), Ok(want), "{json}");
    }
}

#[test]
fn every_wrong_field_of_a_policy_is_named() {
    let interval = |shown: &str| {
        format!("{shown}; want a length of time (\"1m30s\"; a number is seconds), from 1s to 1d")
    };
    #[rustfmt::skip]
    let cases: &[(&str, &[&str])] = &[
        ("3", &["retry is 3; want a JSON object"]),
        (r#"{"count":1001,"interval":0,"max_interval":"2d","backoff":"linear","jitter":1.1,"attempts":1}"#, &[
            "retry.attempts is not a field of retry; the fields are count, interval, backoff, max_interval, jitter",
            "retry.count is 1001; want an integer from 0 to 1000",
            &interval("retry.interval is 0"),
            &interval("retry.max_interval is \"2d\""),
            "retry.backoff is \"linear\"; want fixed or exponential",
            "retry.jitter is 1.1; want a number from 0 to 1",
        ]),
        (r#"{"interval":10,"max_interval":"9s"}"#,
            &["retry.max_interval is \"9s\"; want at least retry.interval (10s)"]),
        (r#"{"max_interval":4}"#, &["retry.max_interval is 4; want at least retry.interval (5s)"]),
        // Nothing is compared with an interval that is none.
        (r#"{"interval":"5000"}"#, &[&interval("retry.interval is \"5000\"")]),
        (r#"{"interval":"999","max_interval":1}"#, &[&interval("retry.interval is \"999\"")]),
        (r#"{"jitter":-0.1}"#, &["retry.jitter is -0.1; want a number from 0 to 1"]),
        (r#"{"jitter":"0.5"}"#, &["retry.jitter is \"0.5\"; want a number from 0 to 1"]),
        (r#"{"backoff":"Fixed"}"#, &["retry.backoff is \"Fixed\"; want fixed or exponential"]),
        (r#"{"count":-1}"#, &["retry.count is -1; want an integer from 0 to 1000"]),
        (r#"{"count":2.0}"#, &["retry.count is 2.0; want an integer from 0 to 1000"]),
    ];
    for (json, want) in cases {
        assert_eq!(read(json).unwrap_err(), *want, "{json}");
    }
}

#[test]
fn attempts_are_left_up_to_the_count() {
    let retry = Retry { count: 3, ..Retry::default() };
    let left = [0, 1, 3, 4, u32::MAX].map(|failures| retry.is_left(failures));
    assert_eq!(left, [true, true, true, false, false]);
    assert!(!Retry::default().is_left(1));
}

#[test]
fn the_wait_follows_backoff_jitter_and_what_was_asked() {
    let fixed = Retry { interval: Millis(10_000), ..Retry::default() };
    let doubles = Retry { backoff: Backoff::Exponential, max_interval: Millis(75_000), ..fixed };
    let jittered = Retry { jitter: 250, ..doubles };
    let all = Retry { jitter: 1_000, ..fixed };
    let long = Retry { interval: Millis::DAY, max_interval: Millis::DAY, ..fixed };
    let asked = |ms| Some(Millis(ms));
    #[rustfmt::skip]
    let cases = [
        // why,                            policy, failures, asked,             luck,         want ms
        ("fixed",                           fixed,        1, None,              u64::MAX,     10_000),
        ("fixed, however often",            fixed,      900, None,              0,            10_000),
        ("none was told",                 doubles,        0, None,              0,            10_000),
        ("the first",                     doubles,        1, None,              0,            10_000),
        ("doubles",                       doubles,        2, None,              0,            20_000),
        ("doubles again",                 doubles,        3, None,              0,            40_000),
        ("no longer than the maximum",    doubles,        4, None,              0,            75_000),
        ("the last shift that fits",      doubles,       64, None,              0,            75_000),
        ("the first that does not",       doubles,       65, None,              0,            75_000),
        ("saturates",                     doubles, u32::MAX, None,              0,            75_000),
        ("jitter takes nothing",         jittered,        2, None,              0,            20_000),
        ("half of its part",             jittered,        2, None,              u64::MAX / 2, 17_501),
        ("all of its part",              jittered,        2, None,              u64::MAX,     15_000),
        ("of the maximum",               jittered,        9, None,              u64::MAX,     56_250),
        ("all of it",                         all,        1, None,              u64::MAX,          0),
        ("asked for more",               jittered,        1, asked(30_000),     u64::MAX,     30_000),
        ("asked for less",               jittered,        9, asked(1),          u64::MAX,     10_000),
        ("asked for more than an hour",  jittered,        1, asked(3_600_001),  0,         3_600_000),
        ("asked for ever",               jittered,        1, asked(u64::MAX),   0,         3_600_000),
        ("an interval above an hour",        long,        1, asked(1),          0,        86_400_000),
    ];
    for (why, retry, failures, asked, luck, want) in cases {
        assert_eq!(retry.after(failures, asked, luck), Millis(want), "{why}");
    }
}

proptest! {
    #[test]
    fn a_policy_is_read_back(retry in any_retry()) {
        prop_assert_eq!(read(&to_json(&retry.wire())), Ok(retry));
    }

    /// Waits grow with the failures, stay within their bounds, and shrink with luck by no more than jitter's part.
    #[test]
    fn a_wait_stays_within_its_bounds(
        retry in any_retry(), failures in 1..100u32, luck in any::<u64>(), asked in any::<u64>(),
    ) {
        let whole = retry.after(failures, None, 0);
        let wait = retry.after(failures, None, luck);
        prop_assert!(whole >= retry.interval && whole <= retry.max_interval);
        prop_assert!(whole <= retry.after(failures + 1, None, 0));
        prop_assert!(wait <= whole);
        prop_assert!(u64::from(1_000 - retry.jitter) * whole.0 <= 1_000 * wait.0);
        prop_assert!(retry.after(failures, None, u64::MAX) <= wait);
        let asked = retry.after(failures, Some(Millis(asked)), luck);
        prop_assert!(asked >= retry.interval && asked <= RETRY_AFTER_MAX.max(retry.interval));
    }
}
