//! `waterclock schedule preview`: the next times of a schedule, or those that a pattern would have.
//!
//! An instance says those of a schedule. Those of a pattern are worked out here, and nobody is asked: the zones are those of this
//! program, as they are of an instance of the same release.

use clap::{ArgGroup, Args};
use serde_json::json;

use super::ScheduleId;
use crate::api::schedules::model::Preview as Times;
use crate::cli::client::{Kind, of_option, typed};
use crate::cli::list::Moment;
use crate::cli::project::To;
use crate::cli::{Exit, Failure, Global, Outcome, output, table};
use crate::client::http::Method;
use crate::engine::header::duration_with_unit;
use crate::engine::schedule::{LISTED_MAX, Timing, Zone, database_version};
use crate::engine::{Millis, UnixMillis};
use crate::kafka::wall_clock;

/// Arguments of `schedule preview`.
#[derive(Args)]
#[command(group(ArgGroup::new("when").required(true)))]
pub(super) struct Preview {
    /// A schedule, as shop/nightly; an instance is asked for its times
    #[arg(value_name = "PROJECT/NAME", group = "when")]
    schedule: Option<ScheduleId>,
    /// Five fields (minute, hour, day of the month, month, day of the week), six with the second before them, or @daily
    #[arg(long, value_name = "PATTERN", group = "when")]
    cron: Option<String>,
    /// The zone whose clock the pattern goes by, as Europe/Berlin [default: UTC]
    #[arg(long, value_name = "ZONE", conflicts_with_all = ["every", "schedule"])]
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
    #[command(flatten)]
    to: To,
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

impl Preview {
    pub(super) fn run(self, global: &Global) -> Outcome {
        match &self.schedule {
            Some(id) => self.of_schedule(id, global),
            None => self.of_pattern(global),
        }
    }

    fn of_schedule(&self, id: &ScheduleId, global: &Global) -> Outcome {
        let client = self.to.open(global)?;
        let mut query = vec![("count", self.count.to_string())];
        query.extend(self.from.map(|from| ("from", from.0.to_string())));
        let told = client.ask(Kind::Look, &Method::GET, &id.path("/preview"), &query, None)?;
        let times: Times = typed(&told)?;
        if times.times.is_empty() {
            let none = Refused(format!("{id} has no time from then on"));
            return Err(Failure::new(Exit::Negative, none));
        }
        let text =
            if global.json() { lines_of_schedule(&times) } else { sheet_of_schedule(&times) };
        output::write(text.as_bytes())
    }

    fn of_pattern(&self, global: &Global) -> Outcome {
        let given = [("cron", &self.cron), ("zone", &self.zone), ("every", &self.every)];
        let given = given.into_iter().filter_map(|(name, value)| Some((name, value.as_ref()?)));
        let given: serde_json::Map<_, _> =
            given.map(|(name, value)| (name.to_owned(), json!(value))).collect();
        // The fields of a schedule are the options here.
        let timing = Timing::parse(json!(given).to_string().as_bytes()).map_err(|wrongs| {
            let wrongs: Vec<_> =
                wrongs.iter().map(|wrong| of_option(&format!("--{wrong}"))).collect();
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

/// An object for each time of a schedule, whose zone an instance does not name here.
fn lines_of_schedule(Times { times, shown, zones, .. }: &Times) -> String {
    let line = |(time, local): (&u64, &String)| {
        let utc = output::time(UnixMillis(*time));
        let line = json!({"nominal": time, "utc": utc, "local": local, "zones": zones});
        format!("{line}\n")
    };
    times.iter().zip(shown).map(line).collect()
}

fn sheet_of_schedule(Times { times, shown, zones, .. }: &Times) -> String {
    let text = |text: &String| output::shown(Some(text.as_bytes()));
    let mut table = table::plain();
    table.set_header(["on its clock", "in UTC"]);
    table.add_rows(
        times.iter().zip(shown).map(|(time, local)| [text(local), output::time(UnixMillis(*time))]),
    );
    format!("{}\n\nzones of the IANA database {}\n", table.trim_fmt(), text(zones))
}
