use proptest::prelude::*;

use super::*;
use crate::state::Bound;
use crate::{Millis, UnixMillis};

const APPENDED: UnixMillis = UnixMillis(1_767_225_600_000); // 2026-01-01T00:00:00Z
const MAX_DELAY: Millis = Millis(400 * Millis::DAY.0);

type Pair<'a> = (&'a str, Option<&'a [u8]>);

fn read_pairs<'a>(pairs: &[Pair<'a>]) -> Result<Directive<'a>, Refusal> {
    read(pairs.iter().map(|(name, value)| (name.as_bytes(), *value)))
}

fn read_one<'a>(name: &'a str, value: &'a str) -> Result<Directive<'a>, Refusal> {
    read(std::iter::once((name.as_bytes(), Some(value.as_bytes()))))
}

/// The due time, or the code of what was refused on the way.
fn due_of(name: &str, value: &str) -> Result<u64, Code> {
    let when = read_one(name, value).map_err(|refusal| refusal.code)?.when.unwrap();
    when.resolve(APPENDED, MAX_DELAY).map(|due| due.0).map_err(|refusal| refusal.code)
}

#[test]
fn delays_have_one_meaning_or_a_code() {
    const A: u64 = APPENDED.0;
    let digits_400 = "9".repeat(400);
    #[rustfmt::skip]
    let cases: &[(&str, &str, Result<u64, Code>)] = &[
        ("an integer is milliseconds",          "1500",     Ok(A + 1_500)),
        ("zero is now",                         "0",        Ok(A)),
        ("leading zeros are zeros",             "007",      Ok(A + 7)),
        ("seconds",                             "90s",      Ok(A + 90_000)),
        ("two units",                           "1h30m",    Ok(A + 5_400_000)),
        ("days",                                "7d",       Ok(A + 604_800_000)),
        ("milliseconds said",                   "250ms",    Ok(A + 250)),
        ("all units",                           "1d2h3m4s5ms", Ok(A + 93_784_005)),
        ("m then ms",                           "1m1ms",    Ok(A + 60_001)),
        ("a unit may hold more than the next",  "1h90m",    Ok(A + 9_000_000)),
        ("exactly max_delay",                   "400d",     Ok(A + 400 * 86_400_000)),
        ("row 1: a word",                       "abc",      Err(Code::BadDelay)),
        ("row 1: nothing",                      "",         Err(Code::BadDelay)),
        ("row 1: a space",                      " ",        Err(Code::BadDelay)),
        ("row 1: a space before",               " 5",       Err(Code::BadDelay)),
        ("row 1: a space after",                "5 ",       Err(Code::BadDelay)),
        ("row 1: a space within",               "1h 30m",   Err(Code::BadDelay)),
        ("row 1: a line end",                   "5\n",      Err(Code::BadDelay)),
        ("row 1: a plus",                       "+5",       Err(Code::BadDelay)),
        ("row 1: hexadecimal",                  "0x10",     Err(Code::BadDelay)),
        ("row 1: an underscore",                "1_000",    Err(Code::BadDelay)),
        ("row 1: an exponent",                  "1e3",      Err(Code::BadDelay)),
        ("row 1: a fraction",                   "5.5",      Err(Code::BadDelay)),
        ("row 1: a fraction of a unit",         "1.5h",     Err(Code::BadDelay)),
        ("row 1: not a number",                 "NaN",      Err(Code::BadDelay)),
        ("row 1: infinity",                     "inf",      Err(Code::BadDelay)),
        ("a unit without a number",             "h",        Err(Code::BadDelay)),
        ("a number without its unit",           "1h30",     Err(Code::BadDelay)),
        ("units out of order",                  "30m1h",    Err(Code::BadDelay)),
        ("a unit twice",                        "1h1h",     Err(Code::BadDelay)),
        ("ms before s",                         "1ms1s",    Err(Code::BadDelay)),
        ("an unknown unit",                     "1w",       Err(Code::BadDelay)),
        ("upper case",                          "1H",       Err(Code::BadDelay)),
        ("ISO 8601",                            "PT5M",     Err(Code::BadDelay)),
        ("row 2: negative",                     "-5",       Err(Code::NegativeDelay)),
        ("row 2: negative zero",                "-0",       Err(Code::NegativeDelay)),
        ("row 2: negative units",               "-5s",      Err(Code::NegativeDelay)),
        ("row 2: negative, and huge",           "-99999999999999999999", Err(Code::NegativeDelay)),
        ("a lone minus is no number",           "-",        Err(Code::BadDelay)),
        ("minus before no number",              "-abc",     Err(Code::BadDelay)),
        ("two minuses",                         "--5",      Err(Code::BadDelay)),
        ("row 3: 2^63 - 1: the sum overflows",  "9223372036854775807", Err(Code::DelayOverflow)),
        ("row 3: 2^63",                         "9223372036854775808", Err(Code::DelayOverflow)),
        ("row 3: 2^64",                         "18446744073709551616", Err(Code::DelayOverflow)),
        ("row 3: 400 digits",                   &digits_400, Err(Code::DelayOverflow)),
        ("row 3: 2^63 by units",                "106751991168d", Err(Code::DelayOverflow)),
        ("bad is worse than huge",              "99999999999999999999x", Err(Code::BadDelay)),
        ("row 4: Arabic digits",                "\u{661}\u{662}\u{663}", Err(Code::BadDelay)),
        ("row 4: full-width digits",            "\u{ff11}\u{ff12}", Err(Code::BadDelay)),
        ("row 4: a byte order mark",            "\u{feff}5", Err(Code::BadDelay)),
        ("row 4: a NUL at the end",             "5\0",      Err(Code::BadDelay)),
        ("row 4: a right-to-left mark",         "\u{200f}5", Err(Code::BadDelay)),
        ("row 6: one above max_delay",          "34560000001", Err(Code::DelayTooLong)),
        ("row 6: units above max_delay",        "400d1ms",  Err(Code::DelayTooLong)),
        ("row 6: far above, no overflow",       "9000000000000000000", Err(Code::DelayTooLong)),
    ];
    for (why, text, want) in cases {
        assert_eq!(due_of(DELAY, text), *want, "{why}: {text:?}");
    }
}

#[test]
fn points_in_time_have_one_meaning_or_a_code() {
    const A: u64 = APPENDED.0;
    #[rustfmt::skip]
    let cases: &[(&str, &str, Result<u64, Code>)] = &[
        ("UTC",                             "2026-01-01T00:00:01Z",          Ok(A + 1_000)),
        ("lower case, as the RFC allows",   "2026-01-01t00:00:01z",          Ok(A + 1_000)),
        ("east of UTC is earlier",          "2026-01-01T02:00:01+02:00",     Ok(A + 1_000)),
        ("west of UTC is later",            "2025-12-31T18:30:01-05:30",     Ok(A + 1_000)),
        ("no known zone is UTC",            "2026-01-01T00:00:01-00:00",     Ok(A + 1_000)),
        ("tenths",                          "2026-01-01T00:00:01.5Z",        Ok(A + 1_500)),
        ("milliseconds",                    "2026-01-01T00:00:01.250Z",      Ok(A + 1_250)),
        ("finer than a millisecond: up",    "2026-01-01T00:00:01.2500001Z",  Ok(A + 1_251)),
        ("zeros beyond are nothing",        "2026-01-01T00:00:01.250000000000Z", Ok(A + 1_250)),
        ("a carry into the next second",    "2026-01-01T00:00:01.999999999Z", Ok(A + 2_000)),
        ("29 February of a leap year",      "2024-02-29T00:00:00Z",          Ok(1_709_164_800_000)),
        ("29 February of no leap year",     "2025-02-29T00:00:00Z",          Err(Code::BadUntil)),
        ("31 April",                        "2026-04-31T00:00:00Z",          Err(Code::BadUntil)),
        ("row 8: past is at once",          "2020-01-01T00:00:00Z",          Ok(1_577_836_800_000)),
        ("row 8: before 1970",              "1969-12-31T23:59:59Z",          Ok(0)),
        ("row 8: before 1970, fraction",    "1969-12-31T23:59:59.9999Z",     Ok(0)),
        ("row 8: Go's zero time",           "0001-01-01T00:00:00Z",          Ok(0)),
        ("year 0",                          "0000-01-01T00:00:00Z",          Ok(0)),
        ("a leap second is the next one",   "2016-12-31T23:59:60Z",          Ok(1_483_228_800_000)),
        ("with its fraction",               "2016-12-31T23:59:60.5Z",        Ok(1_483_228_800_500)),
        ("a leap second seen from Athens",  "2017-01-01T01:59:60+02:00",     Ok(1_483_228_800_000)),
        ("no leap second is there",         "2016-12-31T12:34:60Z",          Err(Code::BadUntil)),
        ("nor at midnight in Athens",       "2016-12-31T23:59:60+02:00",     Err(Code::BadUntil)),
        ("second 61",                       "2016-12-31T23:59:61Z",          Err(Code::BadUntil)),
        ("hour 24",                         "2026-01-01T24:00:00Z",          Err(Code::BadUntil)),
        ("minute 60",                       "2026-01-01T00:60:00Z",          Err(Code::BadUntil)),
        ("month 13",                        "2026-13-01T00:00:00Z",          Err(Code::BadUntil)),
        ("month 0",                         "2026-00-01T00:00:00Z",          Err(Code::BadUntil)),
        ("no zone",                         "2026-01-01T00:00:01",           Err(Code::BadUntil)),
        ("no time",                         "2026-01-01",                    Err(Code::BadUntil)),
        ("no seconds",                      "2026-01-01T00:00Z",             Err(Code::BadUntil)),
        ("a space for the T",               "2026-01-01 00:00:01Z",          Err(Code::BadUntil)),
        ("a point and no digits",           "2026-01-01T00:00:01.Z",         Err(Code::BadUntil)),
        ("a comma",                         "2026-01-01T00:00:01,5Z",        Err(Code::BadUntil)),
        ("a zone without its colon",        "2026-01-01T00:00:01+0200",      Err(Code::BadUntil)),
        ("a zone of 24 hours",              "2026-01-01T00:00:01+24:00",     Err(Code::BadUntil)),
        ("a zone by name",                  "2026-01-01T00:00:01[Europe/Berlin]", Err(Code::BadUntil)),
        ("a zone and a name",               "2026-01-01T00:00:01+01:00[Europe/Berlin]", Err(Code::BadUntil)),
        ("five digits of year",             "12026-01-01T00:00:01Z",         Err(Code::BadUntil)),
        ("a signed year",                   "+2026-01-01T00:00:01Z",         Err(Code::BadUntil)),
        ("a space before",                  " 2026-01-01T00:00:01Z",         Err(Code::BadUntil)),
        ("something after",                 "2026-01-01T00:00:01Z ",         Err(Code::BadUntil)),
        ("full-width digits",               "\u{ff12}026-01-01T00:00:01Z",   Err(Code::BadUntil)),
        ("row 6: the last year",            "9999-12-31T23:59:59Z",          Err(Code::DelayTooLong)),
        ("row 6: later than jiff's last",   "9999-12-31T23:59:59.999-23:59", Err(Code::DelayTooLong)),
        ("exactly max_delay",               "2027-02-05T00:00:00Z",          Ok(A + MAX_DELAY.0)),
        ("one above max_delay",             "2027-02-05T00:00:00.001Z",      Err(Code::DelayTooLong)),
        ("epoch milliseconds",              "1767225601000",                 Ok(A + 1_000)),
        ("the least integer",               "1000000000000",                 Ok(1_000_000_000_000)),
        ("row 7: one below it",             "999999999999",                  Err(Code::AmbiguousTimestamp)),
        ("row 7: seconds",                  "1767225601",                    Err(Code::AmbiguousTimestamp)),
        ("the largest integer",             "100000000000000",               Err(Code::DelayTooLong)),
        ("row 7: one above it",             "100000000000001",               Err(Code::AmbiguousTimestamp)),
        ("row 7: microseconds",             "1767225601000000",              Err(Code::AmbiguousTimestamp)),
        ("row 7: nanoseconds",              "1767225601000000000",           Err(Code::AmbiguousTimestamp)),
        ("row 7: zero",                     "0",                             Err(Code::AmbiguousTimestamp)),
        ("more than 64 bits",               "99999999999999999999999",       Err(Code::AmbiguousTimestamp)),
        ("a negative integer",              "-1767225601000",                Err(Code::BadUntil)),
        ("a fraction of milliseconds",      "1767225601000.5",               Err(Code::BadUntil)),
        ("a length is no point",            "5s",                            Err(Code::BadUntil)),
        ("nothing",                         "",                              Err(Code::BadUntil)),
    ];
    for (why, text, want) in cases {
        assert_eq!(due_of(UNTIL, text), *want, "{why}: {text:?}");
    }
}

#[test]
fn an_expiry_is_relative_or_absolute_by_its_size_and_never_both() {
    const A: u64 = APPENDED.0;
    #[rustfmt::skip]
    let cases: &[(&str, &str, Result<u64, Code>)] = &[
        ("an integer up to max_delay",     "5000",                 Ok(A + 5_000)),
        ("zero",                           "0",                    Ok(A)),
        ("max_delay itself",               "34560000000",          Ok(A + MAX_DELAY.0)),
        ("above max_delay",                "34560000001",          Err(Code::BadExpires)),
        ("between the two meanings",       "999999999999",         Err(Code::BadExpires)),
        ("the least epoch milliseconds",   "1000000000000",        Ok(1_000_000_000_000)),
        ("the largest",                    "100000000000000",      Ok(100_000_000_000_000)),
        ("one above",                      "100000000000001",      Err(Code::BadExpires)),
        ("units",                          "1h30m",                Ok(A + 5_400_000)),
        ("units above max_delay",          "401d",                 Err(Code::BadExpires)),
        ("RFC 3339",                       "2026-01-01T00:00:01Z", Ok(A + 1_000)),
        ("RFC 3339, finer: up",            "2026-01-01T00:00:01.0001Z", Ok(A + 1_001)),
        ("no zone",                        "2026-01-01T00:00:01",  Err(Code::BadExpires)),
        ("negative",                       "-5",                   Err(Code::BadExpires)),
        ("nothing",                        "",                     Err(Code::BadExpires)),
        ("400 digits of units",            "99999999999999999999d", Err(Code::BadExpires)),
    ];
    for (why, text, want) in cases {
        let got = read_one(EXPIRES, text)
            .and_then(|directive| expires_at(directive.expires.unwrap(), APPENDED, MAX_DELAY));
        assert_eq!(got.map(|at| at.0).map_err(|refusal| refusal.code), *want, "{why}: {text:?}");
    }
}

#[test]
fn the_parser_of_units_keeps_its_limits_without_a_header_too() {
    #[rustfmt::skip]
    let cases = [
        ("the longest",          "9223372036854775807",     Ok(Millis(i64::MAX as u64))),
        ("one more",             "9223372036854775808",     Err(DurationError::Overflow)),
        ("one more, with units", "9223372036854775s808ms",  Err(DurationError::Overflow)),
        ("below zero",           "-1ms",                    Err(DurationError::Negative)),
        ("not a length",         "1 ms",                    Err(DurationError::Malformed)),
        ("nothing",              "",                        Err(DurationError::Malformed)),
    ];
    for (why, text, want) in cases {
        assert_eq!(duration(text), want, "{why}: {text}");
    }
}

#[test]
fn a_due_time_beyond_63_bits_is_an_overflow_whatever_max_delay_is() {
    let last = UnixMillis(i64::MAX as u64);
    let anything = Millis(u64::MAX);
    assert_eq!(When::After(Millis(0)).resolve(last, anything), Ok(last));
    let beyond = When::After(Millis(1)).resolve(last, anything);
    assert_eq!(beyond.unwrap_err().code, Code::DelayOverflow);
}

#[test]
fn values_have_one_meaning_or_a_code() {
    let long = |n: usize| "x".repeat(n);
    let (id_255, id_256) = (long(255), long(256));
    let (label_64, label_65) = (long(64), long(65));
    let (topic_249, topic_250) = (long(249), long(250));
    let umlauts_256 = "\u{fc}".repeat(128);
    #[rustfmt::skip]
    let cases: &[(&str, &str, &str, Option<Code>)] = &[
        ("a plain topic",                      TARGET, "orders.v2_x-Y9",  None),
        ("row 12: the longest name",           TARGET, &topic_249,        None),
        ("row 12: one more",                   TARGET, &topic_250,        Some(Code::BadTarget)),
        ("row 12: empty",                      TARGET, "",                Some(Code::BadTarget)),
        ("row 12: a dot",                      TARGET, ".",               Some(Code::BadTarget)),
        ("row 12: two dots",                   TARGET, "..",              Some(Code::BadTarget)),
        ("three dots are a name",              TARGET, "...",             None),
        ("row 12: a slash",                    TARGET, "a/b",             Some(Code::BadTarget)),
        ("row 12: a space",                    TARGET, "a b",             Some(Code::BadTarget)),
        ("row 12: an emoji",                   TARGET, "\u{23f3}",        Some(Code::BadTarget)),
        ("row 12: a line end",                 TARGET, "a\n",             Some(Code::BadTarget)),
        ("row 15: the lane forbids it",        TARGET, "__consumer_offsets", None),
        ("row 18: metrics may clash, names not", TARGET, "a.b",           None),
        ("row 18: metrics may clash, names not", TARGET, "a_b",           None),
        ("the first partition",                PARTITION, "0",            None),
        ("the last possible one",              PARTITION, "2147483647",   None),
        ("row 19: negative",                   PARTITION, "-1",           Some(Code::BadPartition)),
        ("row 19: more than 31 bits",          PARTITION, "2147483648",   Some(Code::BadPartition)),
        ("row 19: empty",                      PARTITION, "",             Some(Code::BadPartition)),
        ("row 19: a plus",                     PARTITION, "+1",           Some(Code::BadPartition)),
        ("row 24: one byte",                   ID, "x",                   None),
        ("row 24: the longest",                ID, &id_255,               None),
        ("row 24: one more",                   ID, &id_256,               Some(Code::BadId)),
        ("row 24: bytes count, not letters",   ID, &umlauts_256,          Some(Code::BadId)),
        ("row 24: empty",                      ID, "",                    Some(Code::BadId)),
        ("row 24: a control character",        ID, "a\u{1}",              Some(Code::BadId)),
        ("row 24: a control character of C1",  ID, "a\u{85}",             Some(Code::BadId)),
        ("row 24: a line end",                 ID, "a\nb",                Some(Code::BadId)),
        ("row 24: a NUL",                      ID, "a\0",                 Some(Code::BadId)),
        ("row 24: a way up",                   ID, "../x",                Some(Code::BadId)),
        ("row 24: a way up within",            ID, "a/../b",              Some(Code::BadId)),
        ("row 24: a way up at the end",        ID, "a/..",                Some(Code::BadId)),
        ("row 24: a dot as a segment",         ID, "a/./b",               Some(Code::BadId)),
        ("dots in a segment are harmless",     ID, "a..b/c...",           None),
        ("slashes are harmless",               ID, "tenant/order/42",     None),
        ("any script",                         ID, "\u{6c34}\u{6642}\u{8a08} 7", None),
        ("create",                             ACTION, "create",          None),
        ("upper case",                         ACTION, "Create",          Some(Code::BadAction)),
        ("empty",                              ACTION, "",                Some(Code::BadAction)),
        ("another word",                       ACTION, "delete",          Some(Code::BadAction)),
        ("cancel what?",                       ACTION, "cancel",          Some(Code::MissingId)),
        ("replace what?",                      ACTION, "replace",         Some(Code::MissingId)),
        ("a label",                            LABEL, "reminders",        None),
        ("an empty label is none",             LABEL, "",                 None),
        ("the longest label",                  LABEL, &label_64,          None),
        ("one more",                           LABEL, &label_65,          Some(Code::BadLabel)),
        ("a tab",                              LABEL, "a\tb",             Some(Code::BadLabel)),
        ("trace on",                           TRACE, "1",                None),
        ("trace off",                          TRACE, "0",                None),
        ("trace by word",                      TRACE, "true",             Some(Code::BadTrace)),
        ("trace by nothing",                   TRACE, "",                 Some(Code::BadTrace)),
        ("told by an earlier delivery",        DUE, "whatever",           None),
        ("told by an earlier delivery",        FIRED, "",                 None),
        ("an attempt",                         ATTEMPT, "7",              None),
        ("no number of attempts",              ATTEMPT, "seven",          Some(Code::BadHeader)),
        ("too many attempts",                  ATTEMPT, "2147483648",     Some(Code::BadHeader)),
        ("an unknown name",                    "x-delay-foo", "1",        Some(Code::UnknownHeader)),
        ("a prefix and no name",               "x-delay-", "1",           Some(Code::UnknownHeader)),
        ("a slip of the pen",                  "x-delay-targets", "t",    Some(Code::UnknownHeader)),
        ("a dead letter as it is",             ERROR_CODE, "expired",     Some(Code::UnknownHeader)),
        ("another's name with our beginning",  "x-delayed", "1",          None),
        ("names are case-sensitive",           "X-Delay-Until", "1",      None),
        ("another's name with ours within",    "ax-delay-until", "1",     None),
        ("row 5: no name at all",              "", "1",                   None),
    ];
    for (why, name, value, want) in cases {
        let got = read_one(name, value).err().map(|refusal| refusal.code);
        assert_eq!(got, *want, "{why}: {name}: {value:?}");
    }
}

#[test]
fn null_is_not_empty_and_bytes_are_not_text() {
    let text = [DELAY, UNTIL, TARGET, ACTION, PARTITION, EXPIRES, LABEL, TRACE, ATTEMPT];
    for name in text {
        let refusal = read_pairs(&[(name, Some(b"1\xff"))]).unwrap_err();
        assert_eq!(refusal.code, Code::BadHeader, "row 5: {name} is not UTF-8");
        assert!(refusal.detail.starts_with(&format!("{name} is \"1\\xff\"")), "{}", refusal.detail);
    }
    for name in text.into_iter().chain([ID, STATE, DUE, FIRED]) {
        let refusal = read_pairs(&[(name, None)]).unwrap_err();
        assert_eq!(refusal.code, Code::BadHeader, "row 5: {name} is null");
    }
    let refusal = read_pairs(&[(ID, Some(b"\xff"))]).unwrap_err();
    assert_eq!(refusal.code, Code::BadId, "row 24: an id has a code of its own");
    assert_eq!(read_pairs(&[(STATE, Some(b"\xff\0"))]).unwrap().state, Some(&b"\xff\0"[..]));
    let alien: [(&[u8], Option<&[u8]>); 3] =
        [(b"\xff\xfe", None), (b"x-dela\xff", Some(b"\xff")), (b"traceparent", Some(b""))];
    assert_eq!(read(alien.into_iter()), Ok(Directive::default()), "headers of others are not read");
}

#[test]
fn headers_that_contradict_each_other_are_refused() {
    #[rustfmt::skip]
    let cases: &[(&str, &[Pair<'_>], Option<Code>)] = &[
        ("row 9: neither; the lane knows the default", &[(TARGET, Some(b"t"))], None),
        ("row 9: both", &[(DELAY, Some(b"5")), (UNTIL, Some(b"1767225601000"))], Some(Code::ConflictingDirectives)),
        ("row 9: both, the other way round", &[(UNTIL, Some(b"1767225601000")), (DELAY, Some(b"5"))], Some(Code::ConflictingDirectives)),
        ("row 10: twice the same", &[(DELAY, Some(b"5")), (DELAY, Some(b"5"))], Some(Code::DuplicateHeader)),
        ("row 10: twice and different", &[(DELAY, Some(b"5")), (DELAY, Some(b"6"))], Some(Code::DuplicateHeader)),
        ("row 10: the second is null", &[(TARGET, Some(b"t")), (TARGET, None)], Some(Code::DuplicateHeader)),
        ("row 10: two states", &[(STATE, Some(b"1")), (STATE, Some(b"1"))], Some(Code::DuplicateHeader)),
        ("row 10: told twice", &[(DUE, Some(b"1")), (DUE, Some(b"1"))], Some(Code::DuplicateHeader)),
        ("row 10: others may repeat", &[("a", Some(b"1")), ("a", Some(b"1")), ("a", None)], None),
        ("an expiry is no time to be due", &[(DELAY, Some(b"5")), (EXPIRES, Some(b"6"))], None),
        ("the first fault counts", &[(TRACE, Some(b"2")), (DELAY, Some(b"x"))], Some(Code::BadTrace)),
        ("a fault counts before a contradiction", &[(DELAY, Some(b"5")), (UNTIL, Some(b"x"))], Some(Code::BadUntil)),
        ("the id may stand behind its action", &[(ACTION, Some(b"cancel")), (ID, Some(b"i"))], None),
    ];
    for (why, pairs, want) in cases {
        assert_eq!(read_pairs(pairs).err().map(|refusal| refusal.code), *want, "{why}");
    }
}

#[test]
fn a_task_without_a_state_is_forbidden() {
    for name in [TASK, RESULT] {
        let refusal = read_pairs(&[(DELAY, Some(b"1s")), (name, Some(b"{}"))]).unwrap_err();
        assert_eq!(refusal.code, Code::TaskForbidden, "{refusal}");
    }
}

#[test]
fn everything_at_once_is_read() {
    let directive = read_pairs(&[
        ("before", Some(b"\xff")),
        (DELAY, Some(b"90s")),
        (TARGET, Some(b"orders")),
        (ID, Some(b"order-42")),
        (ACTION, Some(b"replace")),
        (PARTITION, Some(b"3")),
        (EXPIRES, Some(b"2m")),
        (LABEL, Some(b"reminders")),
        (TRACE, Some(b"1")),
        (ATTEMPT, Some(b"2")),
        (STATE, Some(b"\0")),
        (DUE, Some(b"1")),
        (FIRED, Some(b"1")),
        (TASK, Some(b"{}")),
        (RESULT, Some(b"{1}")),
        ("after", None),
    ]);
    let want = Directive {
        when: Some(When::After(Millis(90_000))),
        target: Some("orders"),
        id: Some(b"order-42"),
        action: TimerAction::Replace,
        partition: Some(3),
        expires: Some(When::After(Millis(120_000))),
        label: Some(b"reminders"),
        trace: true,
        attempt: 2,
        state: Some(b"\0"),
        task: Some(b"{}"),
        result: Some(b"{1}"),
    };
    assert_eq!(directive, Ok(want));
    let bound = Bound {
        key: Some(b"k"),
        target: Some(b"orders"),
        id: Some(b"order-42"),
        partition: Some(3),
        task: Some(b"{}"),
        result: Some(b"{1}"),
    };
    assert_eq!(
        want.bound(Some(b"k")),
        bound,
        "a state is tied to all that it could be carried away by"
    );
    assert_eq!(want.bound(None), Bound { key: None, ..bound });
}

#[test]
fn a_record_may_have_a_thousand_headers_and_large_ones() {
    let header: (&[u8], Option<&[u8]>) = (b"a", Some(b"1"));
    assert!(read(std::iter::repeat_n(header, HEADERS_MAX)).is_ok(), "row 11: the most");
    let refusal = read(std::iter::repeat_n(header, 10_000)).unwrap_err();
    assert_eq!(refusal.code, Code::TooManyHeaders, "row 11: ten thousand");
    assert!(
        refusal.detail.contains("1000"),
        "the documents and the code agree: {}",
        refusal.detail
    );
    let one_more = read(std::iter::repeat_n(header, HEADERS_MAX + 1)).unwrap_err();
    assert_eq!(one_more.code, Code::TooManyHeaders);
    // On its way it has one more, which is waterclock's own.
    let own: (&[u8], Option<&[u8]>) = (STATE.as_bytes(), Some(b"1"));
    let hops = std::iter::repeat_n(header, HEADERS_MAX).chain([own]);
    assert!(read(hops.clone()).is_ok(), "the most, and its state");
    assert_eq!(read(hops.chain([header])).unwrap_err().code, Code::TooManyHeaders);
    let mib = vec![b'x'; 1 << 20];
    assert!(read_pairs(&[("a", Some(&mib))]).is_ok(), "row 11: a large one of another is theirs");
    let refusal = read_pairs(&[(DELAY, Some(&mib))]).unwrap_err();
    assert_eq!(refusal.code, Code::BadDelay, "row 11: a large one of ours");
    assert!(refusal.detail.contains("(1048576 bytes)"), "{}", refusal.detail);
}

#[test]
fn what_is_gone_at_delivery_is_the_contract_and_nothing_else() {
    for name in [
        DELAY, UNTIL, TARGET, ID, ACTION, PARTITION, EXPIRES, LABEL, TRACE, STATE, DUE, FIRED,
        ATTEMPT,
    ] {
        assert!(is_control(name.as_bytes()), "{name}");
        assert_eq!(Name::by_suffix(&name.as_bytes()[7..]).unwrap().as_str(), name);
    }
    for name in [
        "",
        "x",
        "x-dela",
        "x-delayed",
        "X-Delay",
        "x-delay-",
        "x-delay-foo",
        "traceparent",
        ERROR_CODE,
    ] {
        assert!(!is_control(name.as_bytes()), "{name}");
    }
}

#[test]
fn a_detail_names_the_header_shows_the_value_and_says_what_is_wanted() {
    #[rustfmt::skip]
    let cases = [
        (DELAY, "5 min", r#"x-delay is "5 min"; want milliseconds (1500) or units, largest first (7d, 1h30m, 90s, 250ms)"#),
        (DELAY, "\u{661}", r#"x-delay is "\xd9\xa1"; want milliseconds (1500) or units, largest first (7d, 1h30m, 90s, 250ms)"#),
        (UNTIL, "1767225601", r#"x-delay-until is "1767225601"; want epoch milliseconds from 10^12 to 10^14 (13 to 15 digits; seconds have 10), or RFC 3339 with a zone (2026-01-31T08:00:00Z)"#),
        (TARGET, "a\"\r\nb", r#"x-delay-target is "a\"\r\nb"; want a topic name: 1 to 249 of a-z A-Z 0-9 . _ -, not . or .."#),
        (ERROR_CODE, "expired", r#""x-delay-error-code" is a mark of a dead letter; to submit the record again leave out every x-delay-error-* header"#),
    ];
    for (name, value, want) in cases {
        assert_eq!(read_one(name, value).unwrap_err().detail, want);
    }
}

#[test]
fn every_code_has_a_name_of_its_own_that_reads_back() {
    let mut names: Vec<_> = Code::ALL.iter().map(|code| code.as_str()).collect();
    for code in Code::ALL {
        assert_eq!(code.as_str().parse(), Ok(*code));
        assert!(code.as_str().bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'));
        assert!(code.meaning().ends_with('.') && !code.meaning().starts_with(' '), "{code}");
    }
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), Code::ALL.len());
    assert!("Expired".parse::<Code>().is_err());
}

/// Names that lead somewhere, and names that lead nowhere.
fn any_name() -> impl Strategy<Value = Vec<u8>> {
    let known = [
        DELAY,
        UNTIL,
        TARGET,
        ID,
        ACTION,
        PARTITION,
        EXPIRES,
        LABEL,
        TRACE,
        STATE,
        DUE,
        FIRED,
        ATTEMPT,
        ERROR_TOPIC,
        "x-delay-foo",
    ];
    prop_oneof![
        4 => proptest::sample::select(known.to_vec()).prop_map(|name| name.as_bytes().to_vec()),
        1 => proptest::collection::vec(any::<u8>(), 0..300),
        1 => proptest::collection::vec(any::<u8>(), 0..300)
            .prop_map(|tail| [b"x-delay-".to_vec(), tail].concat()),
    ]
}

fn any_value() -> impl Strategy<Value = Option<Vec<u8>>> {
    proptest::option::weighted(
        0.9,
        prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..300),
            "[-+]?[0-9]{0,25}".prop_map(String::into_bytes),
            "([0-9]{1,22}(d|h|m|s|ms|w)){0,6}".prop_map(String::into_bytes),
            "[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-6][0-9](\\.[0-9]{0,12})?(Z|z|[+-][0-9]{2}:[0-9]{2})?"
                .prop_map(String::into_bytes),
        ],
    )
}

fn any_headers() -> impl Strategy<Value = Vec<(Vec<u8>, Option<Vec<u8>>)>> {
    proptest::collection::vec((any_name(), any_value()), 0..8)
}

fn borrowed(headers: &[(Vec<u8>, Option<Vec<u8>>)]) -> Vec<(&[u8], Option<&[u8]>)> {
    headers.iter().map(|(name, value)| (name.as_slice(), value.as_deref())).collect()
}

fn check_detail(refusal: &Refusal) -> Result<(), TestCaseError> {
    prop_assert!(refusal.detail.len() <= DETAIL_MAX && !refusal.detail.is_empty());
    prop_assert!(refusal.detail.bytes().all(|byte| (b' '..=b'~').contains(&byte)));
    Ok(())
}

proptest! {
    /// No bytes whatever make the reader panic, and what it says is fit for a header, a log and a terminal.
    #[test]
    fn any_headers_are_read_or_refused_in_printable_words(
        headers in any_headers(), appended in 0..=i64::MAX as u64, max_delay in any::<u64>(),
    ) {
        match read(borrowed(&headers).into_iter()) {
            Err(refusal) => check_detail(&refusal)?,
            Ok(directive) => {
                for when in directive.when.into_iter().chain(directive.expires) {
                    let times = [
                        when.resolve(UnixMillis(appended), Millis(max_delay)),
                        expires_at(when, UnixMillis(appended), Millis(max_delay)),
                    ];
                    for refusal in times.into_iter().filter_map(Result::err) {
                        check_detail(&refusal)?;
                    }
                }
            }
        }
    }

    /// Any text makes a detail that keeps the limits.
    #[test]
    fn any_detail_is_cut_and_printable(detail in ".{0,400}") {
        let refusal = Refusal::new(Code::TargetDenied, &detail);
        prop_assert!(refusal.detail.len() <= DETAIL_MAX);
        prop_assert!(refusal.detail.bytes().all(|byte| (b' '..=b'~').contains(&byte)));
    }

    /// Headers of others change nothing, wherever they stand.
    #[test]
    fn headers_of_others_change_nothing(
        headers in any_headers(), at in any::<proptest::sample::Index>(),
        name in proptest::collection::vec(any::<u8>(), 0..20), value in any_value(),
    ) {
        prop_assume!(!name.starts_with(b"x-delay"));
        let plain = borrowed(&headers);
        let mut mixed = plain.clone();
        mixed.insert(at.index(plain.len() + 1), (&name, value.as_deref()));
        prop_assert_eq!(read(plain.into_iter()), read(mixed.into_iter()));
    }

    /// What a length of time prints, reads back as the same.
    #[test]
    fn a_printed_duration_reads_back(
        millis in prop_oneof![0..=i64::MAX as u64, 0..10_000_000_000u64, 0..100_000u64],
    ) {
        prop_assert_eq!(duration(&Millis(millis).to_string()), Ok(Millis(millis)));
        prop_assert_eq!(duration(&millis.to_string()), Ok(Millis(millis)));
    }

    /// A relative delay is due at exactly append + delay, or refused.
    #[test]
    fn due_is_append_plus_delay(appended in 0..=i64::MAX as u64, delay in 0..=i64::MAX as u64) {
        let text = delay.to_string();
        let when = read_one(DELAY, &text).unwrap().when.unwrap();
        match when.resolve(UnixMillis(appended), Millis(u64::MAX)) {
            Ok(due) => prop_assert_eq!(due.0, appended + delay),
            Err(refusal) => {
                prop_assert_eq!(refusal.code, Code::DelayOverflow);
                prop_assert!(appended.checked_add(delay).is_none_or(|due| due > i64::MAX as u64));
            }
        }
    }

    /// A point in time as jiff prints it, in any zone, is due then or less than a millisecond later, never before.
    #[test]
    fn a_printed_point_in_time_reads_back_and_rounds_up(
        nanos in 0..8_000_000_000_000_000_000i128, minutes in -1439..=1439i32,
    ) {
        let instant = jiff::Timestamp::from_nanosecond(nanos).unwrap();
        let zone = jiff::tz::Offset::from_seconds(minutes * 60).unwrap();
        let text = instant.display_with_offset(zone).to_string();
        let Some(When::At(due)) = read_one(UNTIL, &text).unwrap().when else { panic!("{text}") };
        prop_assert_eq!(i128::from(due.0), (nanos + 999_999) / 1_000_000, "{}", text);
    }
}
