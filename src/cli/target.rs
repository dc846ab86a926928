//! `waterclock target`: pauses of topics that records go to, over the HTTP API.

use clap::{Args, Subcommand};
use serde_json::json;

use super::client::{Kind, typed};
use super::project::{Revision, To, yes};
use super::task::segment;
use super::{Exit, Global, Outcome, output, table};
use crate::api::projects::model::{TargetList, TargetView};
use crate::client::http::Method;

/// Arguments of `target`.
#[derive(Args)]
pub(super) struct Target {
    #[command(subcommand)]
    command: OfTarget,
}

#[derive(Subcommand)]
enum OfTarget {
    /// Says whether a topic is paused
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
        let TargetView { topic, revision, paused } = typed(&told)?;
        let mut table = table::plain();
        table.add_row(["topic".to_owned(), topic]);
        table.add_row(["revision".to_owned(), revision.to_string()]);
        table.add_row(["paused".to_owned(), yes(paused)]);
        output::line(&table.trim_fmt())
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
    table.set_header(["topic", "revision", "paused"]);
    table.add_rows(
        targets.into_iter().map(|of| [of.topic, of.revision.to_string(), yes(of.paused)]),
    );
    output::line(&table.trim_fmt())
}
