//! `waterclock target`: pauses and rates of topics that records go to, over the HTTP API.

use clap::{Args, Subcommand};
use serde_json::json;

use super::client::{Kind, typed};
use super::project::{Revision, To, yes};
use super::task::segment;
use super::{Exit, Global, Outcome, output, table};
use crate::api::projects::model::{TargetList, TargetSettings, TargetView};
use crate::client::http::Method;

/// Arguments of `target`.
#[derive(Args)]
pub(super) struct Target {
    #[command(subcommand)]
    command: OfTarget,
}

#[derive(Subcommand)]
enum OfTarget {
    /// Puts the rate of a topic: what is not said has its default
    Put(Put),
    /// Says whether a topic is paused, and its rate
    Get(One),
    /// Lists the topics of which something was put
    List(To),
    /// Lets no record go to a topic, neither of timers nor of tasks: they wait
    Pause(Change),
    /// Ends its pause: what has waited goes there in the order of due time
    Resume(Change),
}

#[derive(Args)]
struct One {
    /// The name of the topic
    #[arg(value_name = "TOPIC", value_parser = segment)]
    topic: String,
    #[command(flatten)]
    to: To,
}

#[derive(Args)]
struct Put {
    #[command(flatten)]
    one: One,
    #[command(flatten)]
    revision: Revision,
    /// Records that may go there per second, of timers and tasks together; each lane has an equal share [default: any number]
    #[arg(long, value_name = "NUMBER")]
    rate: Option<f64>,
    /// Records that may go there at once; each lane has one at least [default: what comes in a second]
    #[arg(long, value_name = "N", requires = "rate")]
    burst: Option<u32>,
    /// No record goes there
    #[arg(long)]
    paused: bool,
}

#[derive(Args)]
struct Change {
    #[command(flatten)]
    one: One,
    #[command(flatten)]
    revision: Revision,
}

impl One {
    fn path(&self, action: &str) -> String {
        format!("v1/targets/{}{action}", self.topic)
    }

    fn get(&self, global: &Global) -> Outcome {
        let client = self.to.open(global)?;
        let told = client.ask(Kind::Look, &Method::GET, &self.path(""), &[], None)?;
        if global.json() {
            return output::line(&told.to_string());
        }
        let TargetView { topic, revision, paused, rate, burst } = typed(&told)?;
        let mut table = table::plain();
        table.add_row(["topic".to_owned(), topic]);
        table.add_row(["revision".to_owned(), revision.to_string()]);
        table.add_row(["paused".to_owned(), yes(paused)]);
        let limits =
            [("rate", rate.map(|of| of.to_string())), ("burst", burst.map(|of| of.to_string()))];
        for (name, limit) in limits {
            table.add_row([name.to_owned(), limit.unwrap_or_else(none)]);
        }
        output::line(&table.trim_fmt())
    }
}

impl Put {
    fn settings(&self) -> TargetSettings {
        TargetSettings { paused: self.paused.then_some(true), rate: self.rate, burst: self.burst }
    }

    fn put(&self, global: &Global) -> Outcome {
        let (path, body) = (self.one.path(""), json!(self.settings()));
        self.one.to.change(self.revision, &Method::PUT, &path, Some(&body), global)
    }
}

impl Change {
    fn act(&self, action: &str, global: &Global) -> Outcome {
        let (path, bare) = (self.one.path(action), json!({}));
        self.one.to.change(self.revision, &Method::POST, &path, Some(&bare), global)
    }
}

impl Target {
    pub(super) fn run(self, global: &Global) -> Outcome {
        match self.command {
            OfTarget::Put(put) => put.put(global),
            OfTarget::Get(one) => one.get(global),
            OfTarget::List(to) => list(&to, global),
            OfTarget::Pause(change) => change.act(":pause", global),
            OfTarget::Resume(change) => change.act(":resume", global),
        }
    }
}

fn list(to: &To, global: &Global) -> Outcome {
    let told = to.open(global)?.ask(Kind::Look, &Method::GET, "v1/targets", &[], None)?;
    if global.json() {
        for target in told["targets"].as_array().into_iter().flatten() {
            output::line(&target.to_string())?;
        }
        return Ok(Exit::Ok);
    }
    let TargetList { targets } = typed(&told)?;
    if targets.is_empty() {
        return output::line("no targets");
    }
    let mut table = table::fitted();
    table.set_header(["topic", "revision", "paused", "rate", "burst"]);
    table.add_rows(targets.into_iter().map(|of| {
        let rate = of.rate.map_or_else(none, |rate| rate.to_string());
        let burst = of.burst.map_or_else(none, |burst| burst.to_string());
        [of.topic, of.revision.to_string(), yes(of.paused), rate, burst]
    }));
    output::line(&table.trim_fmt())
}

/// Stands for no limit.
fn none() -> String {
    "-".to_owned()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::engine::task::registry::read_request;

    #[derive(Parser)]
    struct Line {
        #[command(subcommand)]
        command: OfTarget,
    }

    #[test]
    fn what_the_options_say_is_a_change_that_is_taken() {
        let cases = [
            ("x put orders", json!({})),
            ("x put orders --rate 2.5", json!({"rate": 2.5})),
            (
                "x put orders --rate 20 --burst 1 --paused --if-revision 3",
                json!({"rate": 20.0, "burst": 1, "paused": true}),
            ),
        ];
        for (line, want) in cases {
            let parsed = Line::try_parse_from(line.split_whitespace()).expect(line);
            let OfTarget::Put(put) = parsed.command else { panic!("{line}") };
            let body = json!(put.settings());
            assert_eq!(body, want, "{line}");
            let read = read_request("target/orders", body.to_string().as_bytes());
            assert!(read.is_ok(), "{line}: {read:?}");
        }
        assert!(Line::try_parse_from(["x", "put", "orders", "--burst", "1"]).is_err());
    }
}
