//! Which dead letters are meant: by code, by target, by when they were put there.

use std::str::FromStr;

use clap::Args;
use jiff::Timestamp;

use super::last;
use crate::engine::UnixMillis;
use crate::engine::header::{self, Code};
use crate::kafka::DeadRecord;

/// All that is said has to be so.
#[derive(Args, Clone, Debug, Default)]
pub(super) struct Filter {
    /// Only those with this code, e.g. target_missing; may be given again
    #[arg(long)]
    code: Vec<Code>,
    /// Only those whose x-delay-target is this
    #[arg(long, value_name = "TOPIC")]
    target: Option<String>,
    /// Only those put there since then: RFC 3339, or how long ago, e.g. 2h
    #[arg(long, value_name = "TIME")]
    since: Option<Moment>,
    /// Only those put there before then: RFC 3339, or how long ago
    #[arg(long, value_name = "TIME")]
    until: Option<Moment>,
}

impl Filter {
    /// Whether nothing is said, so that all are meant.
    pub(super) fn is_empty(&self) -> bool {
        self.code.is_empty()
            && self.target.is_none()
            && self.since.is_none()
            && self.until.is_none()
    }

    pub(super) fn takes(&self, letter: &DeadRecord) -> bool {
        let text = |name| last(&letter.record, name);
        let code = || {
            text(header::ERROR_CODE)
                .is_some_and(|found| self.code.iter().any(|code| code.as_str().as_bytes() == found))
        };
        let target =
            |wanted: &String| text(header::TARGET).is_some_and(|found| found == wanted.as_bytes());
        (self.code.is_empty() || code())
            && self.target.as_ref().is_none_or(target)
            && self.since.is_none_or(|since| since.0 <= letter.timestamp)
            && self.until.is_none_or(|until| letter.timestamp < until.0)
    }
}

/// A point in time, as a person says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Moment(UnixMillis);

impl FromStr for Moment {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let millis = |at: Timestamp| u64::try_from(at.as_millisecond()).unwrap_or_default();
        // A bare number would be taken for milliseconds, which nobody means here.
        match (text.parse::<Timestamp>(), header::duration_with_unit(text)) {
            (Ok(at), _) => Ok(Self(UnixMillis(millis(at)))),
            (_, Some(ago)) => Ok(Self(UnixMillis(millis(Timestamp::now())) - ago)),
            _ => Err("a time is RFC 3339 with a zone, or how long ago, as in 2h"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Offset, Record};

    fn letter(time_ms: u64, code: &str, target: &str) -> DeadRecord {
        let headers = [(header::TARGET, target), (header::ERROR_CODE, code)];
        let headers = headers.map(|(name, value)| (name.as_bytes(), Some(value.as_bytes())));
        let record = Record::new(None, None, headers.iter().copied());
        DeadRecord { partition: 0, offset: Offset(0), timestamp: UnixMillis(time_ms), record }
    }

    #[test]
    fn all_that_is_said_has_to_be_so() {
        let at = |ms| Some(Moment(UnixMillis(ms)));
        let code = || vec![Code::Expired, Code::TargetMissing];
        let none = Filter::default;
        #[rustfmt::skip]
        let table = [
            ("nothing is said",     none(),                                               true),
            ("one of the codes",    Filter { code: code(), ..none() },                    true),
            ("another code",        Filter { code: vec![Code::BadDelay], ..none() },      false),
            ("its target",          Filter { target: Some("orders".into()), ..none() },   true),
            ("another target",      Filter { target: Some("order".into()), ..none() },    false),
            ("since just then",     Filter { since: at(1_000), ..none() },                true),
            ("since later",         Filter { since: at(1_001), ..none() },                false),
            ("until just then",     Filter { until: at(1_000), ..none() },                false),
            ("until later",         Filter { until: at(1_001), ..none() },                true),
            ("one of two is wrong", Filter { code: code(), since: at(2_000), ..none() },  false),
        ];
        for (why, filter, want) in table {
            assert_eq!(filter.takes(&letter(1_000, "expired", "orders")), want, "{why}");
        }
    }

    #[test]
    fn a_moment_is_a_time_with_a_zone_or_how_long_ago() {
        let day = "2026-01-01T00:00:00Z".parse::<Moment>();
        assert_eq!(day, Ok(Moment(UnixMillis(1_767_225_600_000))));
        assert!("2h".parse::<Moment>().unwrap().0 > day.unwrap().0);
        for wrong in ["", "2", "soon", "2026-01-01", "-2h", "2026-01-01T00:00:00"] {
            assert!(wrong.parse::<Moment>().is_err(), "{wrong}");
        }
    }
}
