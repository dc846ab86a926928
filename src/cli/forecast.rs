//! `waterclock forecast`: how much falls due when, per target, and what stands in each tier.

use crate::client::http::Method;
use clap::{Args, ValueEnum};
use comfy_table::Table;
use serde_json::Value;

use super::client::{Kind, ServerArg};
use super::{Global, Outcome, output, table};
use crate::config::Overrides;
use crate::engine::{Millis, UnixMillis};

/// Arguments of `forecast`.
#[derive(Args)]
pub(super) struct Forecast {
    /// Only this target
    #[arg(long, value_name = "TOPIC")]
    target: Option<String>,
    /// A line for each interval in which something falls due, instead of one for each target
    #[arg(long)]
    by: Option<By>,
    #[command(flatten)]
    server: ServerArg,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum By {
    /// The next 60 minutes
    Minute,
    /// The next 24 hours
    Hour,
    /// The next 30 days
    Day,
}

impl Forecast {
    pub(super) fn run(self, global: &Global) -> Outcome {
        let config = global.load(Overrides::default())?;
        let client = self.server.open(global, &config)?;
        let query: Vec<_> = self.target.into_iter().map(|target| ("target", target)).collect();
        let told = client.ask(Kind::AllLanes, &Method::GET, "v1/forecast", &query, None)?;
        if global.json() {
            return output::line(&told.to_string());
        }
        let targets = match self.by {
            None => by_target(&told),
            Some(by) => by_interval(&told, by),
        };
        output::line(&format!("{targets}\n\n{}", tiers(&told)))
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn sum(counts: &[Value]) -> u64 {
    counts.iter().filter_map(Value::as_u64).sum()
}

fn new<const N: usize>(heads: [&str; N]) -> Table {
    let mut table = table::fitted();
    table.set_header(heads);
    table
}

fn by_target(told: &Value) -> String {
    let targets = list(&told["targets"]);
    if targets.is_empty() {
        return match told["tracking"].as_str() {
            Some("full") => "no tracked timers are pending".to_owned(),
            _ => "timers are not tracked here".to_owned(),
        };
    }
    let mut table =
        new(["target", "pending", "overdue", "1 minute", "1 hour", "1 day", "30 days", "later"]);
    for each in targets {
        let [minutes, hours, days] = ["minutes", "hours", "days"].map(|name| list(&each[name]));
        table.add_row([
            output::shown(each["target"].as_str().map(str::as_bytes)),
            each["total"].to_string(),
            each["overdue"].to_string(),
            sum(&minutes[..minutes.len().min(1)]).to_string(),
            sum(minutes).to_string(),
            sum(hours).to_string(),
            sum(days).to_string(),
            each["later"].to_string(),
        ]);
    }
    table.trim_fmt()
}

fn by_interval(told: &Value, by: By) -> String {
    let (name, length) = match by {
        By::Minute => ("minutes", Millis::MINUTE),
        By::Hour => ("hours", Millis(60 * Millis::MINUTE.0)),
        By::Day => ("days", Millis::DAY),
    };
    let from = told["from"].as_u64().unwrap_or_default();
    let mut table = new(["from", "target", "due"]);
    let mut rows = Vec::new();
    for each in list(&told["targets"]) {
        for (n, count) in (0..).zip(list(&each[name])) {
            if count.as_u64() != Some(0) {
                rows.push((from + n * length.0, each["target"].as_str(), count.to_string()));
            }
        }
    }
    if rows.is_empty() {
        return format!("nothing falls due in these {name}");
    }
    rows.sort();
    table.add_rows(rows.into_iter().map(|(at, target, count)| {
        [output::time(UnixMillis(at)), output::shown(target.map(str::as_bytes)), count]
    }));
    table.trim_fmt()
}

fn tiers(told: &Value) -> String {
    let mut table = new(["stands in", "offsets not done, up to 15 s ago"]);
    for tier in list(&told["tiers"]) {
        let name = output::shown(tier["tier"].as_str().map(str::as_bytes));
        table.add_row([name, tier["pending"].to_string()]);
    }
    table.trim_fmt()
}
