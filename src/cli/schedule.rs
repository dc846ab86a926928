//! `waterclock schedule`: puts, shows, lists, pauses, triggers and deletes schedules over the HTTP API, and shows their times.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use super::cancel::asked;
use super::client::{Client, ClientError, Kind, ServerArg, typed, wait};
use super::list::Moment;
use super::pages::{PAGE, Pages, lines};
use super::project::To;
use super::{Exit, Failure, Global, Outcome, output};
use crate::api::schedules::model::{BackfillRequest, Backfilled, ScheduleView, Triggered};
use crate::client::http::Method;
use crate::config::Overrides;
use crate::engine::UnixMillis;
use crate::engine::task::id::TaskId;
use crate::engine::timers::Version;

mod apply;
pub(super) mod definition;
mod preview;
mod show;

use definition::Definition;
use show::{rows, whole};

/// Where schedules stand in the API.
const PATH: &str = "v1/schedules";

/// Arguments of `schedule`.
#[derive(Args)]
pub(super) struct Schedule {
    #[command(subcommand)]
    command: OfSchedule,
}

#[derive(Subcommand)]
enum OfSchedule {
    /// Puts the schedule that a file defines: what the file does not say has its default
    Put(Put),
    /// Shows a schedule; exit code 1 if there is none
    Get(One),
    /// Lists the schedules that have not ended
    List(List),
    /// Deletes a schedule; the tasks that it has submitted stay as they are
    Delete(Delete),
    /// Pauses a schedule: it submits no tasks, and what falls into the pause is not made up for
    Pause(Change),
    /// Ends its pause: it goes on with its next time
    Resume(Change),
    /// Submits one task of a schedule now, beside its times, also while it is paused
    Trigger(One),
    /// Submits the tasks of times that have passed; a time that has a task already gets no second one
    Backfill(Backfill),
    /// Shows what would change to make schedules what the files of a directory say, and does it
    Apply(apply::Apply),
    /// Shows the next times of a schedule or of a pattern, on the clock of the zone and in UTC
    Preview(preview::Preview),
}

/// Which schedule is meant. People write `shop/nightly`, the API writes `schedule.shop.nightly`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ScheduleId(TaskId);

#[derive(Args)]
struct One {
    /// The schedule, as shop/nightly; its id will do, too
    #[arg(value_name = "PROJECT/NAME")]
    id: ScheduleId,
    #[command(flatten)]
    to: To,
}

/// Which version a change is made to.
#[derive(Args)]
struct Condition {
    /// Changes it only if this version is in force, as `get` shows it
    #[arg(long, value_name = "VERSION", value_parser = version)]
    if_version: Option<String>,
}

#[derive(Args)]
struct Put {
    /// A file in TOML or JSON with the fields of one schedule; -: standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    condition: Condition,
    #[command(flatten)]
    to: To,
}

#[derive(Args)]
struct Change {
    #[command(flatten)]
    one: One,
    #[command(flatten)]
    condition: Condition,
}

#[derive(Args)]
struct List {
    /// Only those of this project
    #[arg(long, value_name = "NAME")]
    project: Option<String>,
    /// Only those of this group
    #[arg(long, value_name = "NAME")]
    group: Option<String>,
    #[command(flatten)]
    to: To,
}

#[derive(Args)]
struct Delete {
    /// The schedule, as shop/nightly; its id will do, too
    #[arg(value_name = "PROJECT/NAME")]
    id: ScheduleId,
    /// How long to wait for an instance that is starting, and then until it is decided, at most 1m each
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = wait)]
    wait: Duration,
    #[command(flatten)]
    server: ServerArg,
}

#[derive(Args)]
struct Backfill {
    #[command(flatten)]
    one: One,
    /// The first time that may have a task: RFC 3339 or epoch milliseconds
    #[arg(long, value_name = "TIME")]
    from: Moment,
    /// Only times before this one, and before now
    #[arg(long, value_name = "TIME")]
    to: Moment,
}

/// A file that defines no schedule.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct WrongFile(String);

/// The version of a schedule. It is sent as it was typed.
fn version(text: &str) -> Result<String, String> {
    text.parse::<Version>().map(|_| text.to_owned()).map_err(|_| {
        "want the version that `waterclock schedule get` shows, as 1764000000000-42".to_owned()
    })
}

impl FromStr for ScheduleId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let id = match text.split_once('/') {
            Some((project, name)) => TaskId::schedule(project, name),
            None => TaskId::parse(text),
        };
        let id = id.ok().filter(|id| id.as_schedule().is_some());
        id.map(Self).ok_or_else(|| {
            "want PROJECT/NAME, as in shop/nightly, or the id of a schedule, as in schedule.shop.nightly"
                .to_owned()
        })
    }
}

impl fmt::Display for ScheduleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_schedule() {
            Some((project, name)) => write!(f, "{project}/{name}"),
            None => write!(f, "{}", self.0),
        }
    }
}

impl Serialize for ScheduleId {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl ScheduleId {
    fn project(&self) -> &str {
        self.0.as_schedule().map_or("", |(project, _)| project)
    }

    /// Where it stands in the API, with what follows.
    fn path(&self, action: &str) -> String {
        format!("{PATH}/{}{action}", self.0)
    }
}

impl Schedule {
    pub(super) fn run(self, global: &Global) -> Outcome {
        match self.command {
            OfSchedule::Put(put) => put.run(global),
            OfSchedule::Get(one) => one.get(global),
            OfSchedule::List(list) => list.run(global),
            OfSchedule::Delete(delete) => delete.run(global),
            OfSchedule::Pause(change) => change.act(":pause", global),
            OfSchedule::Resume(change) => change.act(":resume", global),
            OfSchedule::Trigger(one) => one.trigger(global),
            OfSchedule::Backfill(backfill) => backfill.run(global),
            OfSchedule::Apply(apply) => apply.run(global),
            OfSchedule::Preview(preview) => preview.run(global),
        }
    }
}

impl Condition {
    fn kind(&self) -> Kind<'_> {
        Kind::ChangeSchedule(self.if_version.as_deref())
    }
}

impl Put {
    fn run(self, global: &Global) -> Outcome {
        let file = Definition::read(&self.file);
        let file = file.map_err(|why| Failure::new(Exit::Usage, WrongFile(why)))?;
        let client = self.to.open(global)?;
        let before = if global.json() { None } else { found(&client, &file.id)? };
        let (kind, path) = (self.condition.kind(), file.id.path(""));
        let told = client.ask(kind, &Method::PUT, &path, &[], Some(&file.settings))?;
        if !global.json() {
            output::line(&apply::came_of(&file, before)?)?;
        }
        show(&told, global)
    }
}

impl One {
    fn get(&self, global: &Global) -> Outcome {
        show(&look(&self.to.open(global)?, &self.id)?, global)
    }

    fn trigger(&self, global: &Global) -> Outcome {
        let client = self.to.open(global)?;
        let path = self.id.path(":trigger");
        // Asked twice, it would be two tasks.
        let told = client.ask(Kind::ChangeSchedule(None), &Method::POST, &path, &[], None)?;
        let Triggered { task_id, trigger_at } = typed(&told)?;
        output::line(&match global.json() {
            true => told.to_string(),
            false => format!("{task_id}  due {}", output::time(UnixMillis(trigger_at))),
        })
    }
}

impl Change {
    fn act(&self, action: &str, global: &Global) -> Outcome {
        let client = self.one.to.open(global)?;
        let (kind, path) = (self.condition.kind(), self.one.id.path(action));
        show(&client.ask(kind, &Method::POST, &path, &[], None)?, global)
    }
}

impl List {
    fn run(self, global: &Global) -> Outcome {
        let client = self.to.open(global)?;
        let filters = [("project", self.project), ("group", self.group)];
        let filters =
            filters.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
        let pages = Pages { path: PATH, items: "schedules", filters, limit: None, page: PAGE };
        pages.show::<ScheduleView>(&client, global, rows)
    }
}

impl Delete {
    fn run(self, global: &Global) -> Outcome {
        let config = global.load(Overrides::default())?;
        let client = self.server.open_within(self.wait, global, &config)?;
        let (told, is_decided) = delete(&client, &self.id, (self.wait, None))?;
        match global.json() {
            true => output::line(&told.to_string())?,
            false => output::line(told["outcome"].as_str().unwrap_or_default())?,
        };
        if is_decided {
            return Ok(Exit::Ok);
        }
        if !global.json() {
            output::aside(
                "the delete is written, and was not decided within the wait: see what became of it with `waterclock schedule get`",
            );
        }
        Ok(Exit::Pending)
    }
}

impl Backfill {
    fn run(self, global: &Global) -> Outcome {
        let client = self.one.to.open(global)?;
        let path = self.one.id.path(":backfill");
        let (mut from, mut count) = (self.from.0, 0);
        loop {
            let body = json!(BackfillRequest { from: from.into(), to: self.to.0.into() });
            let kind = Kind::NewSchedule;
            let told = client.ask(kind, &Method::POST, &path, &[], Some(&body));
            let told = told.inspect_err(|_| {
                if count > 0 && !global.json() {
                    output::aside(&format!("{}; go on with --from {from}", submitted(count)));
                }
            })?;
            let Backfilled { tasks, next_from } = typed(&told)?;
            count += tasks.len();
            if global.json() {
                output::write(lines(&told["tasks"]).as_bytes())?;
            }
            match next_from {
                Some(next) if next > from => from = next,
                Some(_) => {
                    let what = "an instance (a backfill that does not go on)".to_owned();
                    return Err(ClientError::Strange(what).into());
                }
                None => break,
            }
        }
        if global.json() { Ok(Exit::Ok) } else { output::line(&submitted(count)) }
    }
}

/// What a backfill has come to. The answer does not say which of the times had a task before.
fn submitted(count: usize) -> String {
    format!("asked for {count} times; a time that has a task already gets no second one")
}

/// A schedule as an instance tells it.
fn look(client: &Client, id: &ScheduleId) -> Result<Value, ClientError> {
    client.ask(Kind::Look, &Method::GET, &id.path(""), &[], None)
}

/// The same; `None`: there is none.
fn found(client: &Client, id: &ScheduleId) -> Result<Option<ScheduleView>, ClientError> {
    match look(client, id) {
        Ok(told) => typed(&told).map(Some),
        Err(ClientError::Refused { status: 404, .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Deletes a schedule, or only this version of it, and says whether that is decided.
fn delete(
    client: &Client,
    id: &ScheduleId,
    (wait, version): (Duration, Option<&str>),
) -> Result<(Value, bool), ClientError> {
    let (path, query) = (id.path(""), [("wait", asked(wait))]);
    let kind = Kind::DeleteSchedule(wait, version);
    let told = client.ask(kind, &Method::DELETE, &path, &query, None)?;
    let is_decided = match told["outcome"].as_str() {
        Some("deleted") => true,
        Some("pending") => false,
        _ => {
            let what = "an instance (an outcome that no delete has)".to_owned();
            return Err(ClientError::Strange(what));
        }
    };
    Ok((told, is_decided))
}

fn show(told: &Value, global: &Global) -> Outcome {
    match global.json() {
        true => output::line(&told.to_string()),
        false => output::line(&whole(&typed(told)?)),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(subcommand)]
        command: OfSchedule,
    }

    fn parsed(line: &str) -> Result<OfSchedule, clap::Error> {
        Line::try_parse_from(line.split_whitespace()).map(|line| line.command)
    }

    #[test]
    fn a_schedule_is_named_by_project_and_name_or_by_its_id() {
        for text in ["shop/nightly", "schedule.shop.nightly"] {
            let id: ScheduleId = text.parse().expect(text);
            assert_eq!(id.to_string(), "shop/nightly");
            assert_eq!(id.project(), "shop");
            assert_eq!(id.path(":pause"), "v1/schedules/schedule.shop.nightly:pause");
        }
        // A project may have dots, and a name has none.
        let id: ScheduleId = "schedule.shop.eu.nightly".parse().expect("an id");
        assert_eq!((id.to_string().as_str(), id.project()), ("shop.eu/nightly", "shop.eu"));
        for wrong in [
            "",
            "nightly",
            "shop/",
            "/nightly",
            "shop/a.b",
            "shop/a/b",
            "shop/a b",
            "Shop/nightly",
            "schedule.nightly",
            "9f2c53b1f4e04dd9a4a3d4a0c9cf4c11",
            "shop/nightly@1767225600000",
            "shop/nightly:pause",
        ] {
            assert!(wrong.parse::<ScheduleId>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn each_command_says_what_it_needs() {
        for right in [
            "x put nightly.toml",
            "x put - --if-version 1767225600000-42",
            "x get shop/nightly",
            "x list --project shop --group reports",
            "x delete shop/nightly --wait 1m",
            "x pause shop/nightly --if-version 1767225600000-42x3f",
            "x resume schedule.shop.nightly",
            "x trigger shop/nightly",
            "x backfill shop/nightly --from 2026-01-01T00:00:00Z --to 1767312000000",
            "x apply schedules --prune --yes",
            "x apply schedules --dry-run",
            "x preview shop/nightly --from 2h --count 3",
            "x preview --every 10s",
        ] {
            assert!(parsed(right).is_ok(), "{right}");
        }
        for wrong in [
            "x put",
            "x put a.toml --if-version \"1\"",
            "x pause shop/nightly --if-version abc",
            "x get nightly",
            "x backfill shop/nightly --from 2026-01-01T00:00:00Z",
            "x apply",
            "x apply schedules --yes --dry-run",
            "x preview",
            "x preview shop/nightly --cron @daily",
            "x preview shop/nightly --zone UTC",
        ] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
    }
}
