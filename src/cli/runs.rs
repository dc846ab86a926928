//! `waterclock runs`: creates, lists, shows, cancels and retries runs over the HTTP API, and lists their shards.

use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::cancel::asked;
use super::client::{Client, ClientError, Kind, ServerArg, typed, wait};
use super::pages::{PAGE, Pages};
use super::project::To;
use super::{Exit, Global, Outcome, output};
use crate::api::runs::model::{RunCancelled, RunView, ShardState, ShardView};
use crate::api::tasks::model::CancelOutcome;
use crate::client::http::Method;
use crate::config::Overrides;
use crate::engine::task::id::TaskId;
use crate::engine::timers::RunStatus;

mod create;
pub(super) mod show;

use create::Create;

/// Where runs stand in the API.
const PATH: &str = "v1/runs";
/// Shards that are asked for at once.
const SHARD_PAGE: u64 = 100;

/// Arguments of `runs`.
#[derive(Args)]
pub(super) struct Runs {
    #[command(subcommand)]
    command: OfRuns,
}

#[derive(Subcommand)]
enum OfRuns {
    /// Creates a run: so many shards of one task, which are handed out at one time
    Create(Box<Create>),
    /// Lists runs by due time
    List(List),
    /// Says what is known of a run; exit code 1 if there is none
    Get(One),
    /// Lists the shards of a run, with who executes each, how far that is, and why one has failed
    Shards(Shards),
    /// Ends a run and its shards, and says what became of that
    Cancel(Cancel),
    /// Makes a run anew that has failed or expired: with all its shards, now
    Retry(One),
}

#[derive(Args)]
struct One {
    /// The id of the run
    #[arg(value_name = "ID", value_parser = run_id)]
    id: TaskId,
    #[command(flatten)]
    to: To,
}

#[derive(Args)]
struct List {
    /// Only those of this project
    #[arg(long, value_name = "NAME")]
    project: Option<String>,
    /// Only those of this group
    #[arg(long, value_name = "NAME")]
    group: Option<String>,
    /// Only those with this status
    #[arg(long, value_parser = RunStatus::ALL.map(RunStatus::as_str))]
    status: Option<String>,
    /// At most so many [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
    #[command(flatten)]
    to: To,
}

#[derive(Args)]
struct Shards {
    #[command(flatten)]
    one: One,
    /// Only those that stand there
    #[arg(long, value_parser = ShardState::ALL.map(ShardState::as_str))]
    state: Option<String>,
    /// At most so many [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
}

#[derive(Args)]
struct Cancel {
    /// The id of the run
    #[arg(value_name = "ID", value_parser = run_id)]
    id: TaskId,
    /// How long to wait for an instance that is starting, and then for what becomes of it, at most 1m each
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = wait)]
    wait: Duration,
    #[command(flatten)]
    server: ServerArg,
}

/// The id of a run. It names nothing else in the path of a request.
pub(super) fn run_id(text: &str) -> Result<TaskId, String> {
    TaskId::parse(text).map_err(|_| "want the id of a run: 1 to 255 of a-z 0-9 . _ @ -".to_owned())
}

/// Where a run stands in the API, with what follows.
pub(super) fn path(id: &TaskId, action: &str) -> String {
    format!("{PATH}/{id}{action}")
}

/// A run as an instance tells it.
pub(super) fn look(client: &Client, id: &TaskId) -> Result<Value, ClientError> {
    client.ask(Kind::Look, &Method::GET, &path(id, ""), &[], None)
}

impl Runs {
    pub(super) fn run(self, global: &Global) -> Outcome {
        match self.command {
            OfRuns::Create(create) => create.run(global),
            OfRuns::List(list) => list.run(global),
            OfRuns::Get(one) => show(&look(&one.to.open(global)?, &one.id)?, global),
            OfRuns::Shards(shards) => shards.run(global),
            OfRuns::Cancel(cancel) => cancel.run(global),
            OfRuns::Retry(one) => one.retry(global),
        }
    }
}

impl One {
    fn retry(&self, global: &Global) -> Outcome {
        let client = self.to.open(global)?;
        let path = path(&self.id, ":retry");
        // Asked twice, the second one would find a run that is pending.
        let kind = Kind::Change(None);
        show(&client.ask(kind, &Method::POST, &path, &[], Some(&json!({})))?, global)
    }
}

impl List {
    fn run(self, global: &Global) -> Outcome {
        let client = self.to.open(global)?;
        let filters = [("project", self.project), ("group", self.group), ("status", self.status)];
        let filters =
            filters.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
        let pages = Pages { path: PATH, items: "runs", filters, limit: self.limit, page: PAGE };
        pages.show::<RunView>(&client, global, show::rows)
    }
}

impl Shards {
    fn run(self, global: &Global) -> Outcome {
        let client = self.one.to.open(global)?;
        let (path, page) = (path(&self.one.id, "/shards"), SHARD_PAGE);
        let filters = self.state.map(|state| ("state", state)).into_iter().collect();
        let pages = Pages { path: &path, items: "shards", filters, limit: self.limit, page };
        pages.show::<ShardView>(&client, global, show::shards)
    }
}

impl Cancel {
    fn run(self, global: &Global) -> Outcome {
        let config = global.load(Overrides::default())?;
        let client = self.server.open_within(self.wait, global, &config)?;
        let (path, query) = (path(&self.id, ""), [("wait", asked(self.wait))]);
        let told = client.ask(Kind::Cancel(self.wait), &Method::DELETE, &path, &query, None)?;
        let RunCancelled { outcome, .. } = typed(&told)?;
        match global.json() {
            true => output::line(&told.to_string())?,
            false => output::line(told["outcome"].as_str().unwrap_or_default())?,
        };
        if outcome == CancelOutcome::Pending && !global.json() {
            output::aside(
                "the cancel is written, and was not decided within the wait. Cancel again to wait longer, or see what became of it with `waterclock runs get`",
            );
        }
        Ok(match outcome {
            CancelOutcome::Cancelled | CancelOutcome::Stopped => Exit::Ok,
            CancelOutcome::Pending => Exit::Pending,
            CancelOutcome::Finished | CancelOutcome::Failed | CancelOutcome::Expired => {
                Exit::Negative
            }
        })
    }
}

fn show(told: &Value, global: &Global) -> Outcome {
    match global.json() {
        true => output::line(&told.to_string()),
        false => output::line(&show::whole(&typed(told)?)),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(subcommand)]
        command: OfRuns,
    }

    fn parsed(line: &str) -> Result<OfRuns, clap::Error> {
        Line::try_parse_from(line.split_whitespace()).map(|line| line.command)
    }

    #[test]
    fn each_command_says_what_it_needs() {
        for right in [
            "x list --project shop --group settlement --status re-executing --limit 5",
            "x get 9f2c53b1f4e04dd9a4a3d4a0c9cf4c11",
            "x get k0a1b2c3d-schedule.shop.nightly@1767225600000",
            "x shards 9f2c --state failed --limit 5",
            "x cancel 9f2c --wait 1m",
            "x retry 9f2c",
        ] {
            assert!(parsed(right).is_ok(), "{right}");
        }
        for wrong in [
            "x list --status running",
            "x get",
            "x get ..",
            "x get shop/nightly",
            "x get 9f2c:retry",
            "x shards 9f2c --state done",
            "x shards 9f2c --limit 0",
            "x cancel 9f2c --wait 2m",
            "x retry 9F2C",
        ] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_run_stands_below_the_runs_of_the_api() {
        let id = run_id("k0a1b2c3d-schedule.shop.nightly@1767225600000").expect("an id");
        let want = "v1/runs/k0a1b2c3d-schedule.shop.nightly@1767225600000:retry";
        assert_eq!(path(&id, ":retry"), want);
    }
}
