//! `waterclock plan`: what a ladder costs for given delays, how it looks, and which one serves given delays.
//!
//! It connects to nothing. The configuration supplies what the arguments leave out.

use std::fmt::Write as _;
use std::num::NonZeroU16;
use std::str::FromStr;

use clap::Args;
use comfy_table::{CellAlignment, Table};
use serde_json::{Value, json};

use super::topics::{Holds, configured};
use super::{Exit, Failure, Global, Outcome, output, table};
use crate::config::Overrides;
use crate::engine::Millis;
use crate::engine::header::duration;
use crate::engine::ladder::{
    Delays, HopFigures, Ladder, LadderError, Leg, Preset, figures, propose,
};
use crate::kafka::topics::{Kind, LANES_DEFAULT, Names, TopicSpec, holds_text, wanted};

/// Columns of the longest bar.
const BAR: usize = 40;
/// More tiers than this are drawn only where the record passes.
const ROWS_MAX: usize = 40;

/// Arguments of `plan`.
#[derive(Args)]
pub(super) struct Plan {
    /// classic, round, clock, or holds like 1s,5s,1m [default: the configuration's, else round]
    #[arg(long, value_name = "LADDER", conflicts_with = "delays")]
    ladder: Option<Holds>,
    /// Proposes a ladder on which each of these is one hop, e.g. 30m,7d
    #[arg(long, value_name = "LIST")]
    delays: Option<List>,
    /// With --delays: the most hops of any delay up to the longest of them
    #[arg(long, value_name = "N", default_value = "15", requires = "delays")]
    hops_max: u32,
    /// Figures for delays of 0 to this, each equally likely; may be given again
    #[arg(long, value_name = "DURATION")]
    uniform: Vec<Length>,
    /// Figures for delays of FROM to TO, each order of magnitude equally likely; may be given again
    #[arg(long, value_name = "FROM..TO")]
    log_uniform: Vec<Span>,
    /// Figures for these delays, equally often
    #[arg(long, value_name = "LIST")]
    exact: Option<List>,
    /// Draws the way of a record of this delay
    #[arg(long, value_name = "DURATION", default_value = "1d3h25m45s")]
    way: Length,
    /// What may wait in memory [default: the configuration's, else 2s]
    #[arg(long, value_name = "DURATION")]
    horizon: Option<Length>,
    /// How long before the end of a hold a record is let go [default: the configuration's, else 2s]
    #[arg(long, value_name = "DURATION")]
    lead: Option<Length>,
    /// Partitions of every lane topic [default: the configuration's, else 6]
    #[arg(long, value_name = "N")]
    lanes: Option<NonZeroU16>,
}

/// A length of time as an argument.
#[derive(Clone, Copy, Debug)]
struct Length(Millis);

impl FromStr for Length {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        duration(text.trim()).map(Self).map_err(|error| error.to_string())
    }
}

/// `30m,7d`.
#[derive(Clone, Debug)]
struct List(Vec<Millis>);

impl FromStr for List {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let one = |entry: &str| match entry.parse()? {
            // A bare number is milliseconds, and no tier is so short.
            Length(delay) if delay < Millis(1_000) => {
                Err(format!("{entry}: want a delay of 1s or more, with its unit, as in 30m"))
            }
            Length(delay) => Ok(delay),
        };
        text.split(',').map(one).collect::<Result<_, _>>().map(Self)
    }
}

/// `1s..24h`.
#[derive(Clone, Copy, Debug)]
struct Span(Millis, Millis);

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (from, to) = text.split_once("..").ok_or("a span is FROM..TO, as in 1s..24h")?;
        let (Length(from), Length(to)) = (from.parse()?, to.parse()?);
        if from == Millis(0) || from > to {
            return Err("a span begins above 0 and ends after its beginning".to_owned());
        }
        Ok(Self(from, to))
    }
}

impl Plan {
    pub(super) fn run(self, global: &Global) -> Outcome {
        let config = global.load(Overrides::default())?;
        let usage = |error: LadderError| Failure::new(Exit::Usage, error);
        let horizon = self.horizon.map_or(config.horizon, |length| length.0);
        let lead = self.lead.map_or_else(|| config.lead().min(horizon), |length| length.0);
        let holds = match (&self.delays, &self.ladder) {
            (Some(List(delays)), _) => {
                propose(delays, self.hops_max, lead, horizon).map_err(usage)?
            }
            (None, Some(Holds(holds))) => holds.clone(),
            (None, None) => configured(&config).unwrap_or_else(|| Preset::default().holds()),
        };
        let ladder = Ladder::new(&holds, &[], lead).map_err(usage)?;
        ladder.check(horizon).map_err(usage)?;
        let lanes = self.lanes.map(NonZeroU16::get).or(config.lanes).unwrap_or(LANES_DEFAULT);
        let sheet = Sheet {
            rows: self
                .rows()
                .into_iter()
                .map(|delays| {
                    let figures = figures(&ladder, &delays, horizon);
                    (delays, figures)
                })
                .collect(),
            further: config.further_intakes().map(str::to_owned).collect(),
            way: self.way.0,
            ladder,
            horizon,
            lead,
            lanes,
        };
        let text = if global.json() { format!("{}\n", sheet.json()) } else { sheet.text() };
        output::write(text.as_bytes())
    }

    /// The delays to give figures for: what was asked, or some that are usual.
    fn rows(&self) -> Vec<Delays> {
        let exact = self.exact.iter().chain(&self.delays);
        let mut rows: Vec<Delays> =
            exact.map(|List(delays)| Delays::Exactly(delays.clone())).collect();
        rows.extend(self.uniform.iter().map(|length| Delays::Uniform(length.0)));
        rows.extend(self.log_uniform.iter().map(|span| Delays::LogUniform(span.0, span.1)));
        if self.exact.is_some() || !self.uniform.is_empty() || !self.log_uniform.is_empty() {
            return rows;
        }
        match &self.delays {
            Some(List(delays)) => {
                rows.push(Delays::Uniform(delays.iter().copied().max().unwrap_or_default()));
            }
            None => {
                let week = Millis(7 * Millis::DAY.0);
                rows.push(Delays::Uniform(Millis::DAY));
                rows.push(Delays::Uniform(week));
                rows.push(Delays::LogUniform(Millis::SECOND, Millis::DAY));
                rows.push(Delays::Exactly(vec![Millis(30 * Millis::MINUTE.0)]));
            }
        }
        rows
    }
}

fn named(delays: &Delays) -> String {
    match delays {
        Delays::Uniform(max) => format!("uniform to {max}"),
        Delays::LogUniform(min, max) => format!("log-uniform {min}..{max}"),
        Delays::Exactly(delays) => format!("exactly {}", holds_text(delays)),
    }
}

/// Everything there is to say about one ladder.
struct Sheet {
    ladder: Ladder,
    horizon: Millis,
    lead: Millis,
    lanes: u16,
    /// Further intakes.
    further: Vec<String>,
    rows: Vec<(Delays, HopFigures)>,
    way: Millis,
}

impl Sheet {
    fn holds(&self) -> Vec<Millis> {
        self.ladder.tiers().iter().map(|tier| tier.hold).collect()
    }

    /// What `topics apply` makes, however many brokers there are.
    fn topics(&self) -> Vec<TopicSpec> {
        wanted(&Names::new(""), self.lanes, &self.ladder, &self.further, 1, true)
    }

    /// Of all topics but meta, whose follow the brokers.
    fn partitions(&self) -> i32 {
        let of_lanes = self.topics().into_iter().filter(|topic| topic.kind != Kind::Meta);
        of_lanes.map(|topic| topic.partitions).sum()
    }

    fn legs(&self) -> Vec<Leg> {
        self.ladder.way(self.way, self.horizon).collect()
    }

    fn text(&self) -> String {
        let mut text = String::new();
        let Self { horizon, lead, lanes, .. } = self;
        let _ = writeln!(text, "ladder   {}", holds_text(&self.holds()));
        let _ = writeln!(text, "horizon  {horizon}, lead {lead}");
        let (tiers, topics) = (self.ladder.tiers().len(), self.topics().len());
        let intakes = 1 + self.further.len();
        let _ = writeln!(
            text,
            "topics   {topics}: {tiers} tiers, {intakes} intake{}, dead letters, timers, tasks, results, meta",
            if intakes == 1 { "" } else { "s" }
        );
        let _ = writeln!(
            text,
            "         {} partitions with {lanes} lanes, and meta's",
            self.partitions()
        );
        let _ = writeln!(text, "\n{}\n", self.table());
        text.push_str(&self.drawing());
        text
    }

    fn table(&self) -> Table {
        let mut table = table::plain();
        table.set_header(["delays", "hops, max", "hops, mean", "appends, max", "appends, mean"]);
        for (delays, figures) in &self.rows {
            table.add_row([
                named(delays),
                figures.hops_max.to_string(),
                format!("{:.1}", figures.hops_mean),
                figures.appends_max().to_string(),
                format!("{:.1}", figures.appends_mean()),
            ]);
        }
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        table
    }

    /// The tiers as vessels, longest on top, each as wide as its hold on a scale of powers; and one record's way.
    fn drawing(&self) -> String {
        let legs = self.legs();
        let hops: u32 = legs.iter().map(|leg| leg.hops).sum();
        let mut text = format!(
            "a record of {} on its way down: {hops} hop{}\n\n",
            self.way,
            if hops == 1 { "" } else { "s" }
        );
        let tiers = self.ladder.tiers();
        let all = tiers.len() <= ROWS_MAX;
        let mut hidden = 0;
        for (at, tier) in tiers.iter().enumerate().rev() {
            let leg = legs.iter().find(|leg| leg.tier == at);
            if leg.is_none() && !all {
                hidden += 1;
                continue;
            }
            self.skipped(&mut text, &mut hidden);
            let bar = "~".repeat(self.width(tier.hold));
            let hold = tier.hold.to_string();
            let _ = match leg {
                None => writeln!(text, "{hold:>9} |{bar}|"),
                Some(Leg { hops, remaining, .. }) => {
                    let fill = bar.replace('~', "#");
                    let pad = BAR + 1 - fill.len();
                    writeln!(
                        text,
                        "{hold:>9} |{fill}|{:pad$}{hops} x {}, {remaining} left",
                        "",
                        tier.wait()
                    )
                }
            };
        }
        self.skipped(&mut text, &mut hidden);
        let left = legs.last().map_or(self.way, |leg| leg.remaining);
        let _ = writeln!(
            text,
            "   memory \\{}/  {left} to the millisecond, then the target",
            "_".repeat(4)
        );
        text
    }

    fn skipped(&self, text: &mut String, hidden: &mut usize) {
        if *hidden > 0 {
            let _ = writeln!(text, "{:>9} ({hidden} more)", ":");
            *hidden = 0;
        }
    }

    fn width(&self, hold: Millis) -> usize {
        let tiers = self.ladder.tiers();
        let ends = (tiers.first(), tiers.last());
        let (Some(shortest), Some(longest)) = ends else { return 1 };
        let log = |hold: Millis| (hold.0.max(1) as f64).ln();
        let span = log(longest.hold) - log(shortest.hold);
        let part = if span > 0.0 { (log(hold) - log(shortest.hold)) / span } else { 1.0 };
        4 + (part * (BAR - 4) as f64).round() as usize
    }

    fn json(&self) -> Value {
        let rows = self.rows.iter().map(|(delays, figures)| {
            json!({
                "delays": named(delays),
                "hops_max": figures.hops_max,
                "hops_mean": figures.hops_mean,
                "appends_max": figures.appends_max(),
                "appends_mean": figures.appends_mean(),
            })
        });
        let legs = self.legs().into_iter().map(|leg| {
            let tier = &self.ladder.tiers()[leg.tier];
            json!({ "tier": tier.hold.to_string(), "hops": leg.hops, "remaining_ms": leg.remaining.0 })
        });
        json!({
            "holds": self.holds().iter().map(Millis::to_string).collect::<Vec<_>>(),
            "horizon_ms": self.horizon.0,
            "lead_ms": self.lead.0,
            "lanes": self.lanes,
            "topics": self.topics().len(),
            "partitions": self.partitions(),
            "figures": rows.collect::<Vec<_>>(),
            "way": { "delay_ms": self.way.0, "legs": legs.collect::<Vec<_>>() },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sheet(holds: &str, way: &str) -> Sheet {
        let Holds(holds) = holds.parse().unwrap();
        let (horizon, lead) = (Millis(2_000), Millis(2_000));
        let ladder = Ladder::new(&holds, &[], lead).unwrap();
        let delays = Delays::Exactly(vec![Millis(30 * Millis::MINUTE.0)]);
        let figures = figures(&ladder, &delays, horizon);
        let Length(way) = way.parse().unwrap();
        Sheet {
            ladder,
            horizon,
            lead,
            lanes: 6,
            further: Vec::new(),
            rows: vec![(delays, figures)],
            way,
        }
    }

    #[test]
    fn a_sheet_shows_cost_topics_and_the_way_down() {
        let text = sheet("classic", "1h1m30s").text();
        for part in [
            "ladder   1s,1m,1h\n",
            "horizon  2s, lead 2s\n",
            "topics   9: 3 tiers, 1 intake, dead letters, timers, tasks, results, meta\n",
            "48 partitions with 6 lanes",
            "a record of 1h1m30s on its way down: ",
            "1 x 59m58s, 1m32s left",
            "1 x 58s, 34s left",
        ] {
            assert!(text.contains(part), "{part} is not in:\n{text}");
        }
        let row = text.lines().find(|line| line.contains("exactly 30m")).unwrap();
        let row: Vec<&str> = row.split_whitespace().collect();
        assert_eq!(row, ["exactly", "30m", "31", "31.0", "33", "33.0"]);
    }

    #[test]
    fn longer_holds_are_wider_vessels_and_none_is_wider_than_the_page() {
        for name in ["classic", "round", "clock", "1s", "1s,400d"] {
            let sheet = sheet(name, "1d3h25m45s");
            let widths: Vec<usize> = sheet.holds().iter().map(|&hold| sheet.width(hold)).collect();
            assert!(widths.is_sorted(), "{name}");
            assert!(widths.iter().all(|width| (1..=BAR).contains(width)), "{name}: {widths:?}");
            assert!(
                sheet.text().lines().all(|line| line.len() <= 100 || line.starts_with("ladder"))
            );
        }
        let rows = sheet("clock", "1d3h25m45s").drawing().lines().count();
        assert!(rows < 20, "what the record does not pass is summed up: {rows} rows");
    }

    #[test]
    fn programs_get_the_same_as_people() {
        let json = sheet("classic", "1h1m30s").json();
        assert_eq!(json["holds"], json!(["1s", "1m", "1h"]));
        assert_eq!((json["topics"].as_u64(), json["partitions"].as_u64()), (Some(9), Some(48)));
        assert_eq!(json["figures"][0]["appends_max"], 33);
        assert_eq!(
            json["way"]["legs"][0],
            json!({ "tier": "1h", "hops": 1, "remaining_ms": 92_000 })
        );
    }

    #[test]
    fn arguments_that_are_no_times_are_refused() {
        assert!("30m, 7d".parse::<List>().is_ok());
        for text in ["", "30m,", "x"] {
            assert!(text.parse::<List>().is_err(), "{text:?}");
        }
        assert!("1s..24h".parse::<Span>().is_ok());
        for text in ["1s", "0..5s", "5s..1s", "..5s"] {
            assert!(text.parse::<Span>().is_err(), "{text:?}");
        }
    }
}
