//! `waterclock schedule`: when the tasks of a schedule would be due.
//!
//! It asks nobody: the zones are those of this program, as they are of an instance of the same release.

use clap::{ArgGroup, Args, Subcommand};
use serde_json::json;

use super::list::Moment;
use super::{Exit, Failure, Global, Outcome, output, table};
use crate::engine::header::duration_with_unit;
use crate::engine::schedule::{LISTED_MAX, Timing, Zone, database_version};
use crate::engine::{Millis, UnixMillis};
use crate::kafka::wall_clock;

/// Arguments of `schedule`.
#[derive(Args)]
pub(super) struct Schedule {
    #[command(subcommand)]
    command: OfSchedule,
}

#[derive(Subcommand)]
enum OfSchedule {
    /// Shows the next times of a pattern, on the clock of its zone and in UTC
    Preview(Preview),
}

#[derive(Args)]
#[command(group(ArgGroup::new("when").required(true)))]
struct Preview {
    /// Five fields (minute, hour, day of the month, month, day of the week), six with the second before them, or @daily
    #[arg(long, value_name = "PATTERN", group = "when")]
    cron: Option<String>,
    /// The zone whose clock the pattern goes by, as Europe/Berlin [default: UTC]
    #[arg(long, value_name = "ZONE", conflicts_with = "every")]
    zone: Option<String>,
    /// A period, as 10s, in place of a pattern; its times are aligned to the epoch
    #[arg(long, value_name = "DURATION", group = "when", value_parser = period)]
    every: Option<String>,
    /// The first time that may be shown: RFC 3339, epoch milliseconds, or how long from now, e.g. 2h [default: now]
    #[arg(long, value_name = "TIME")]
    from: Option<Moment>,
    /// How many times are shown, 1000 at most
    #[arg(long, value_name = "N", default_value = "10", value_parser = clap::value_parser!(u16).range(1..=LISTED_MAX as i64))]
    count: u16,
}

/// In the configuration a bare number would be milliseconds, in JSON seconds.
fn period(text: &str) -> Result<String, String> {
    let is_length = duration_with_unit(text).is_some();
    is_length
        .then(|| text.to_owned())
        .ok_or_else(|| "want a length of time with its unit, as in 10s".to_owned())
}

/// What was asked for is no schedule, or has no time.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Refused(String);

impl Schedule {
    pub(super) fn run(self, global: &Global) -> Outcome {
        match self.command {
            OfSchedule::Preview(preview) => preview.run(global),
        }
    }
}

impl Preview {
    fn run(self, global: &Global) -> Outcome {
        let given = [("cron", &self.cron), ("zone", &self.zone), ("every", &self.every)];
        let given = given.into_iter().filter_map(|(name, value)| Some((name, value.as_ref()?)));
        let given: serde_json::Map<_, _> =
            given.map(|(name, value)| (name.to_owned(), json!(value))).collect();
        // The fields of a schedule are the options here.
        let timing = Timing::parse(json!(given).to_string().as_bytes()).map_err(|wrongs| {
            let wrongs: Vec<_> = wrongs.iter().map(|wrong| format!("--{wrong}")).collect();
            Failure::new(Exit::Usage, Refused(wrongs.join("; ")))
        })?;
        let from = self.from.map_or_else(wall_clock, |from| UnixMillis(from.0));
        let none = |wrong| Failure::new(Exit::Negative, Refused(format!("--{wrong}")));
        timing.first_after(from - Millis(1)).map_err(none)?;
        let times = timing.times(from, UnixMillis(u64::MAX), self.count.into()).times;
        let zone = timing.zone().cloned().unwrap_or_default();
        let text = if global.json() { lines(&times, &zone) } else { sheet(&times, &zone) };
        output::write(text.as_bytes())
    }
}

/// An object for each time.
fn lines(times: &[UnixMillis], zone: &Zone) -> String {
    let line = |time: &UnixMillis| {
        let line = json!({
            "nominal": time.0,
            "utc": output::time(*time),
            "local": zone.show(*time),
            "zone": zone.name(),
            "zones": database_version(),
        });
        format!("{line}\n")
    };
    times.iter().map(line).collect()
}

fn sheet(times: &[UnixMillis], zone: &Zone) -> String {
    let mut table = table::plain();
    if *zone == Zone::default() {
        table.set_header(["in UTC"]);
        table.add_rows(times.iter().map(|time| [output::time(*time)]));
    } else {
        table.set_header([zone.name(), "in UTC"]);
        table.add_rows(times.iter().map(|time| [zone.show(*time), output::time(*time)]));
    }
    format!("{}\n\nzones of the IANA database {}\n", table.trim_fmt(), database_version())
}
