//! `waterclock list`: timers by due time, all of those that fit a filter.

use std::str::FromStr;

use crate::client::Timer;
use clap::Args;
use jiff::Timestamp;

use super::client::{ServerArg, StartWait};
use super::pages::{PAGE, Pages};
use super::{Global, Outcome, output, table};
use crate::config::Overrides;
use crate::engine::UnixMillis;
use crate::engine::header;
use crate::kafka::wall_clock;

/// Characters of an id or a key in the table.
const SHOWN: usize = 32;

/// Arguments of `list`.
#[derive(Args)]
pub(super) struct List {
    /// Only those with this target
    #[arg(long, value_name = "TOPIC")]
    target: Option<String>,
    /// Only those with this label
    #[arg(long, value_name = "TEXT")]
    label: Option<String>,
    /// Only those in this state; pending ones are in `delay`
    #[arg(long, value_parser = ["delay", "delivered", "cancelled", "expired", "dead", "lost"])]
    state: Option<String>,
    /// Only those due then or later: RFC 3339, epoch milliseconds, or how long from now, e.g. 2h
    #[arg(long, value_name = "TIME")]
    due_after: Option<Moment>,
    /// Only those due before
    #[arg(long, value_name = "TIME")]
    due_before: Option<Moment>,
    /// At most so many [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
    #[command(flatten)]
    wait: StartWait,
    #[command(flatten)]
    server: ServerArg,
}

/// A point in time in epoch milliseconds, as a person says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Moment(pub(super) u64);

impl FromStr for Moment {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Ok(at) = text.parse::<Timestamp>() {
            return Ok(Self(u64::try_from(at.as_millisecond()).unwrap_or_default()));
        }
        if let Ok(header::When::At(at)) = header::until(text) {
            return Ok(Self(at.0));
        }
        // A bare number could be meant as either.
        header::duration_with_unit(text).map(|span| Self((wall_clock() + span).0)).ok_or_else(
            || {
                "a time is RFC 3339 with a zone, epoch milliseconds (13 digits; seconds have 10), or how long from now, as in 2h"
                    .to_owned()
            },
        )
    }
}

impl List {
    pub(super) fn run(self, global: &Global) -> Outcome {
        let config = global.load(Overrides::default())?;
        let client = self.server.open_within(self.wait.wait, global, &config)?;
        let time = |at: Option<Moment>| at.map(|at| at.0.to_string());
        let filters = [
            ("target", self.target),
            ("label", self.label),
            ("state", self.state),
            ("due_after", time(self.due_after)),
            ("due_before", time(self.due_before)),
        ];
        let filters: Vec<(&str, String)> =
            filters.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
        let pages =
            Pages { path: "v1/timers", items: "timers", filters, limit: self.limit, page: PAGE };
        pages.show::<Timer>(&client, global, page_table)
    }
}

/// A table of a page; the heads of its columns only above the first.
fn page_table(timers: &[Timer], with_heads: bool) -> String {
    if timers.is_empty() {
        return String::new();
    }
    let mut table = table::fitted();
    if with_heads {
        table.set_header(["due", "state", "target", "key", "id", "label", "lane"]);
    }
    table.add_rows(timers.iter().map(|timer| {
        [
            time(Some(timer.due)),
            text(Some(&timer.state)),
            text(timer.target.as_ref()),
            key(timer),
            shortened(Some(&timer.id)),
            text(timer.label.as_ref()),
            timer.lane.to_string(),
        ]
    }));
    format!("{}\n", table.trim_fmt())
}

/// Everything that is known of a timer, a line each.
pub(super) fn whole(timer: &Timer) -> String {
    let mut table = table::plain();
    let mut row = |name: &str, value: String| {
        table.add_row([name.to_owned(), value]);
    };
    row("id", text(Some(&timer.id)));
    row("key", key(timer));
    row("state", text(Some(&timer.state)));
    row("since", time(timer.since));
    row("target", text(timer.target.as_ref()));
    row("due", time(Some(timer.due)));
    row("label", text(timer.label.as_ref()));
    row("lane", timer.lane.to_string());
    row("version", text(timer.version.as_ref()));
    for (name, value) in [("supersedes", &timer.supersedes), ("code", &timer.code)] {
        if value.is_some() {
            row(name, text(value.as_ref()));
        }
    }
    table.trim_fmt()
}

fn time(at: Option<u64>) -> String {
    at.map_or_else(|| "-".to_owned(), |at| output::time(UnixMillis(at)))
}

fn text(value: Option<&String>) -> String {
    value.map_or_else(|| "-".to_owned(), |text| output::shown(Some(text.as_bytes())))
}

fn shortened(value: Option<&String>) -> String {
    output::shortened(value.map(String::as_bytes), SHOWN)
}

fn key(timer: &Timer) -> String {
    match &timer.key_base64 {
        Some(base64) => format!("base64 {}", output::shortened(Some(base64.as_bytes()), SHOWN)),
        None => shortened(timer.key.as_ref()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_a_time_with_a_zone_or_milliseconds_or_how_long_from_now() {
        let day = "2026-01-01T00:00:00Z".parse::<Moment>();
        assert_eq!(day, Ok(Moment(1_767_225_600_000)));
        assert_eq!("1767225600000".parse::<Moment>(), day);
        assert!("2h".parse::<Moment>().unwrap().0 > wall_clock().0 + 7_000_000);
        for wrong in ["", "2", "soon", "2026-01-01", "-2h", "2026-01-01T00:00:00"] {
            assert!(wrong.parse::<Moment>().is_err(), "{wrong}");
        }
    }
}
