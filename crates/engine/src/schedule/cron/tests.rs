use proptest::prelude::*;

use super::*;

fn cron(text: &str) -> Cron {
    Cron::parse(text).unwrap_or_else(|want| panic!("{text}: want {want}"))
}

/// One field: numbers within bounds, and what may stand beside them.
fn any_field(min: u32, max: u32, others: Vec<String>) -> BoxedStrategy<String> {
    let number = || min..=max;
    let step = || 1..=max - min;
    let range = || (number(), number()).prop_map(|(a, b)| format!("{}-{}", a.min(b), a.max(b)));
    let item = prop_oneof![
        4 => number().prop_map(|n| n.to_string()),
        2 => range(),
        1 => (range(), step()).prop_map(|(range, step)| format!("{range}/{step}")),
        1 => step().prop_map(|step| format!("*/{step}")),
    ];
    let item = if others.is_empty() {
        item.boxed()
    } else {
        prop_oneof![3 => item, 2 => proptest::sample::select(others)].boxed()
    };
    let list = proptest::collection::vec(item, 1..4).prop_map(|items| items.join(","));
    prop_oneof![1 => Just("*".to_owned()), 2 => list].boxed()
}

/// A pattern that is read, and has some time.
pub(in super::super) fn any_cron() -> impl Strategy<Value = String> {
    let of_month = (1..=31).map(|day| format!("{day}W")).chain(["L".to_owned(), "LW".to_owned()]);
    let of_week = (0..=7).flat_map(|day| {
        (1..=5).map(move |week| format!("{day}#{week}")).chain([format!("{day}L")])
    });
    let of_week = of_week.chain(["MON-FRI", "fri-sun", "SUN", "Sat#5", "wedL"].map(str::to_owned));
    let seconds = prop_oneof![2 => Just(None), 1 => any_field(0, 59, Vec::new()).prop_map(Some)];
    let rest = (
        any_field(0, 59, Vec::new()),
        any_field(0, 23, Vec::new()),
        any_field(1, 31, of_month.collect()),
        any_field(1, 12, vec!["feb".to_owned(), "MAR-OCT".to_owned()]),
        any_field(0, 6, of_week.collect()),
    );
    let text = (seconds, rest).prop_map(|(seconds, (minute, hour, day, month, weekday))| {
        let seconds = seconds.map_or_else(String::new, |seconds| format!("{seconds} "));
        format!("{seconds}{minute} {hour} {day} {month} {weekday}")
    });
    text.prop_filter("its days are in some month", |text| Cron::parse(text).is_ok())
}

#[test]
fn a_pattern_is_written_back_in_one_form() {
    #[rustfmt::skip]
    let cases = [
        ("30 7 * * 1-5", "30 7 * * 1-5"),
        ("  0\t30 7  * jan-MAR fri#2,sunL ", "0 30 7 * JAN-MAR FRI#2,SUNL"),
        ("0 0 lw,15w * *", "0 0 LW,15W * *"),
        ("@Daily", "@daily"),
        ("@annually\t", "@annually"),
    ];
    for (text, want) in cases {
        let read = cron(text);
        assert_eq!(read.to_string(), want, "{text}");
        assert_eq!(cron(want), read, "{text}");
    }
}

#[test]
fn names_with_an_at_stand_for_patterns() {
    for (name, pattern) in [
        ("@yearly", "0 0 1 1 *"),
        ("@annually", "0 0 1 1 *"),
        ("@monthly", "0 0 1 * *"),
        ("@weekly", "0 0 * * SUN"),
        ("@daily", "0 0 * * *"),
        ("@midnight", "0 0 0 * * *"),
        ("@hourly", "0 * * * *"),
    ] {
        let text = cron(name).text;
        assert_eq!(Cron { text, ..cron(pattern) }, cron(name), "{name}");
    }
}

#[test]
fn what_has_no_one_meaning_is_refused() {
    let items = ", with *, lists (1,3), ranges (1-5) and steps (*/2, 1-5/2), not ";
    let minutes = format!("minutes from 0 to 59{items}");
    let hours = format!("hours from 0 to 23{items}");
    let days = format!(
        "days of the month from 1 to 31, L (the last), LW or 15W (the nearest weekday){items}"
    );
    let months = format!("months from 1 to 12 or JAN to DEC{items}");
    let weekdays = format!(
        "days of the week from 0 to 7 (0 and 7 are Sunday) or SUN to SAT, FRI#2 (the second), FRIL (the last){items}"
    );
    let fields = "five fields (minute, hour, day of the month, month, day of the week), six with the second before them, or @daily; it has ";
    let names =
        "five fields, or one of @yearly, @annually, @monthly, @weekly, @daily, @midnight, @hourly";
    let long = format!("{} * * * *", "0,".repeat(300));
    #[rustfmt::skip]
    let cases = [
        ("",                    format!("{fields}0")),
        ("* * * *",             format!("{fields}4")),
        ("0 0 0 1 1 * 2027",    format!("{fields}7")),
        ("* * *\n* *",          format!("{fields}4")),
        ("@reboot",             names.to_owned()),
        ("@every 5m",           names.to_owned()),
        (&long,                 "a pattern of at most 512 bytes".to_owned()),
        ("60 * * * *",          format!("{minutes}\"60\"")),
        ("-1 * * * *",          format!("{minutes}\"-1\"")),
        ("+1 * * * *",          format!("{minutes}\"+1\"")),
        ("001 * * * *",         format!("{minutes}\"001\"")),
        ("1, * * * *",          format!("{minutes}\"\"")),
        ("9-5 * * * *",         format!("{minutes}\"9-5\"")),
        ("1-2-3 * * * *",       format!("{minutes}\"1-2-3\"")),
        // Some begin at 5, some take 5 alone.
        ("5/15 * * * *",        format!("{minutes}\"5/15\"")),
        ("*/0 * * * *",         format!("{minutes}\"*/0\"")),
        // No hour and a half.
        ("*/90 * * * *",        format!("{minutes}\"*/90\"")),
        ("*/5/5 * * * *",       format!("{minutes}\"*/5/5\"")),
        ("** * * * *",          format!("{minutes}\"**\"")),
        ("0 24 * * *",          format!("{hours}\"24\"")),
        ("0 MON * * *",         format!("{hours}\"MON\"")),
        ("60 0 0 * * *",        format!("seconds from 0 to 59{items}\"60\"")),
        ("0 0 0 * *",           format!("{days}\"0\"")),
        ("0 0 ? * MON",         format!("{days}\"?\"")),
        ("0 0 32W * *",         format!("{days}\"32W\"")),
        ("0 0 1-5W * *",        format!("{days}\"1-5W\"")),
        ("0 0 W * *",           format!("{days}\"W\"")),
        ("0 0 L-3 * *",         format!("{days}\"L-3\"")),
        ("0 0 * 13 *",          format!("{months}\"13\"")),
        ("0 0 * JANUARY *",     format!("{months}\"JANUARY\"")),
        ("0 0 * * 8",           format!("{weekdays}\"8\"")),
        // The last day of the week, or of the month?
        ("0 0 * * L",           format!("{weekdays}\"L\"")),
        ("0 0 * * MON#6",       format!("{weekdays}\"MON#6\"")),
        ("0 0 * * MON#0",       format!("{weekdays}\"MON#0\"")),
        ("0 0 * * 1#L",         format!("{weekdays}\"1#L\"")),
        ("0 0 * * 5-1",         format!("{weekdays}\"5-1\"")),
        ("0 0 30 2 *",          "days that some month has".to_owned()),
        ("0 0 31W 4,6,9,11 *",  "days that some month has".to_owned()),
        ("0 0 */30 2 1#2",      "days that some month has".to_owned()),
    ];
    for (text, want) in cases {
        assert_eq!(Cron::parse(text), Err(want), "{text}");
    }
}

/// The days of one month that match.
fn days(day: &str, weekday: &str, (year, month): (i64, i64)) -> Vec<u32> {
    let found =
        cron(&format!("0 0 {day} * {weekday}")).days_of(Month::of_year(year).plus(month - 1));
    (0..32)
        .filter(|day| found.checked_shr(*day).is_some_and(|left| left & 1 == 1))
        .map(|day| day + 1)
        .collect()
}

#[test]
fn days_are_told_by_the_month_the_week_or_either() {
    // A Monday is the first of February 2027, a Saturday that of May; Sunday is the last of February.
    let (february, may, leap) = ((2027, 2), (2027, 5), (2028, 2));
    type Case<'a> = (&'a str, &'a str, &'a str, (i64, i64), &'a [u32]);
    #[rustfmt::skip]
    let cases: &[Case<'_>] = &[
        ("lists, ranges, steps",         "1,5-7,20-30/4", "*",       may,      &[1, 5, 6, 7, 20, 24, 28]),
        ("days that are not there",      "28-31",         "*",       february, &[28]),
        ("the last",                     "L",             "*",       february, &[28]),
        ("the last of a leap year",      "L",             "*",       leap,     &[29]),
        ("the last weekday",             "LW",            "*",       february, &[26]),
        ("the last is a weekday",        "LW",            "*",       may,      &[31]),
        ("nearest to a weekday",         "3W",            "*",       february, &[3]),
        ("nearest to a Saturday",        "6W",            "*",       february, &[5]),
        ("nearest to a Sunday",          "7W",            "*",       february, &[8]),
        ("not in the month before",      "1W",            "*",       may,      &[3]),
        ("not in the month after",       "28W",           "*",       february, &[26]),
        ("nearest to no day",            "29W",           "*",       february, &[]),
        ("nearest to a leap day",        "29W",           "*",       leap,     &[29]),
        ("a day of the week",            "*",             "1",       february, &[1, 8, 15, 22]),
        ("by its name",                  "*",             "mon",     february, &[1, 8, 15, 22]),
        ("Sunday is 0",                  "*",             "0",       february, &[7, 14, 21, 28]),
        ("Sunday is 7",                  "*",             "7",       february, &[7, 14, 21, 28]),
        ("over the end of the week",     "*",             "5-7",     (2027, 8),
            &[1, 6, 7, 8, 13, 14, 15, 20, 21, 22, 27, 28, 29]),
        ("the same by names",            "*",             "FRI-SUN", (2027, 8),
            &[1, 6, 7, 8, 13, 14, 15, 20, 21, 22, 27, 28, 29]),
        ("every other from Sunday",      "*",             "*/3",     february, &[3, 6, 7, 10, 13, 14, 17, 20, 21, 24, 27, 28]),
        ("the second",                   "*",             "MON#2",   february, &[8]),
        ("the first is the 1st",         "*",             "1#1",     february, &[1]),
        ("the fifth is not there",       "*",             "1#5",     february, &[]),
        ("the fifth",                    "*",             "1#5",     may,      &[31]),
        ("the last Friday",              "*",             "5L",      february, &[26]),
        ("the last Sunday, as 7",        "*",             "7L",      february, &[28]),
        ("either, for both are said",    "13",            "5",       may,      &[7, 13, 14, 21, 28]),
        ("either, with the last",        "L",             "1#1",     may,      &[3, 31]),
        ("both, for one has a star",     "*/10",          "1",       february, &[1]),
        ("both, in a list with a star",  "8-14",          "5,*/6",   february, &[12, 13, 14]),
    ];
    for (why, day, weekday, month, want) in cases {
        assert_eq!(days(day, weekday, *month), *want, "{why}: {day} {weekday}");
    }
}

#[test]
fn a_star_in_the_time_of_day_follows_the_clock() {
    for (text, follows) in [
        ("30 2 * * *", false),
        ("0,30 1-3 * * *", false),
        ("0 0-23 * * *", false),
        ("0 0 0 * * *", false),
        ("30 * * * *", true),
        ("*/15 2 * * *", true),
        ("0 */2 * * *", true),
        ("*/10 0 2 * * *", true),
        ("0,*/20 2 * * *", true),
        ("@daily", false),
        ("@hourly", true),
    ] {
        assert_eq!(cron(text).follows_clock(), follows, "{text}");
    }
}

#[test]
fn a_search_stays_in_its_span() {
    let at = |text: &str| text.parse::<jiff::Timestamp>().unwrap().as_second();
    let daily = cron("30 7 * * *");
    let [before, on, behind] =
        ["2027-05-01T07:29:59Z", "2027-05-01T07:30:00Z", "2027-05-01T07:30:01Z"].map(at);
    let day_after = on + DAY;
    #[rustfmt::skip]
    let cases = [
        (before..on,             None,            None),
        (before..behind,         Some(on),        Some(on)),
        (on..behind,             Some(on),        Some(on)),
        (on..on,                 None,            None),
        (behind..day_after,      None,            None),
        (behind..day_after + 1,  Some(day_after), Some(day_after)),
        (on..day_after + 1,      Some(on),        Some(day_after)),
    ];
    for (span, first, last) in cases {
        assert_eq!(daily.first_in(span.clone()), first, "{span:?}");
        assert_eq!(daily.last_in(span.clone()), last, "{span:?}");
    }
    // From one leap day that is a Monday to the next one, over a year that is none.
    let leap = cron("0 0 * 2 1#5");
    let found = leap.first_in(at("2072-03-01T00:00:00Z")..at("2200-01-01T00:00:00Z"));
    assert_eq!(found, Some(at("2112-02-29T00:00:00Z")));
    let found = leap.last_in(at("2000-01-01T00:00:00Z")..at("2112-02-29T00:00:00Z"));
    assert_eq!(found, Some(at("2072-02-29T00:00:00Z")));
}

proptest! {
    /// Whether a single second matches is told by the tables above.
    #[test]
    fn a_search_finds_what_single_seconds_say(
        text in any_cron(), begin in 0..4_000_000_000i64, len in 1..5_000i64,
    ) {
        let cron = cron(&text);
        let matches = |at: &i64| cron.first_in(*at..*at + 1).is_some();
        // Around a time that matches: else most spans have none.
        let near = cron.first_in(begin..i64::MAX / DAY).unwrap_or(begin) - len / 2;
        for begin in [begin, near] {
            let span = begin..begin + len;
            prop_assert_eq!(cron.first_in(span.clone()), span.clone().find(matches), "{}", text);
            prop_assert_eq!(cron.last_in(span.clone()), span.clone().rfind(matches), "{}", text);
        }
    }

    #[test]
    fn no_text_makes_the_reader_panic(text in ".{0,40}", fields in "[-0-9A-Z*/,#?@ ]{0,40}") {
        for text in [text, fields] {
            if let Ok(read) = Cron::parse(&text) {
                prop_assert_eq!(Cron::parse(&read.to_string()), Ok(read));
            }
        }
    }
}
