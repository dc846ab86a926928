//! `waterclock schedule apply`: makes schedules what the files of a directory say.
//!
//! # Invariants
//! 1. Nothing is changed before all files are read, and if one of them is wrong.
//! 2. Nothing is changed that was not shown before.
//! 3. A change is made to the version that was shown. If another one is in force by then, that schedule stays as it is.
//! 4. Nothing is deleted without `--prune`, and nothing of a project that no file names.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::io::{self, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::definition::{Definition, Format, unread, with_defaults};
use super::{PATH, ScheduleId, delete, found, look};
use crate::api::schedules::model::{ScheduleStatus, ScheduleView};
use crate::cli::client::{Client, ClientError, Kind, typed};
use crate::cli::pages::{PAGE, Pages};
use crate::cli::project::To;
use crate::cli::{Exit, Failure, Global, Outcome, output};
use crate::client::http::Method;

/// How long to wait until a delete is decided.
const DELETED_WITHIN: Duration = Duration::from_secs(5);
/// Characters of a value that are shown; `--json` has all.
const SHOWN: usize = 200;

/// Arguments of `schedule apply`.
#[derive(Args)]
pub(super) struct Apply {
    /// A directory; each of its files that ends in .toml or .json defines one schedule
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Also deletes schedules that no file defines, of the projects that the files name
    #[arg(long)]
    prune: bool,
    /// Does it without a question
    #[arg(long, conflicts_with = "dry_run")]
    yes: bool,
    /// Only shows what would change
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    to: To,
}

#[derive(Debug, thiserror::Error)]
enum ApplyError {
    #[error("could not read {}", .0.display())]
    Unread(PathBuf, #[source] io::Error),
    #[error("no file of {} ends in .toml or .json", .0.display())]
    Empty(PathBuf),
    #[error("nothing was changed, since these files are wrong:\n  {}", .0.join("\n  "))]
    WrongFiles(Vec<String>),
    #[error("nothing was changed; to have it done without a terminal, add --yes")]
    Unasked,
    #[error("not all of it is done:\n  {}", .0.join("\n  "))]
    Refused(Vec<String>),
}

/// What is done about one schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Action {
    /// There is none of this name.
    Create,
    /// It is another one than the file says.
    Change,
    /// It is what the file says.
    Nothing,
    /// No file defines it, and it stays.
    Keep,
    /// No file defines it, and it is deleted.
    Delete,
}

impl Action {
    const fn is_change(self) -> bool {
        matches!(self, Self::Create | Self::Change | Self::Delete)
    }
}

/// A field that differs. One that is missing is a null.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Difference {
    /// Where it stands: `task.url`.
    field: String,
    old: Option<Value>,
    new: Option<Value>,
}

/// A schedule that an instance keeps.
#[derive(Clone, Debug, PartialEq)]
struct Existing {
    version: String,
    /// Its last time has passed.
    is_finished: bool,
    /// With their defaults.
    fields: Map<String, Value>,
}

/// What is done about one schedule, and what came of it.
#[derive(Clone, Debug, Serialize)]
struct Step<'a> {
    name: ScheduleId,
    action: Action,
    changes: Vec<Difference>,
    /// `created`, `changed`, `deleted`, or `pending`: the delete is not decided yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<&'static str>,
    /// Why it was not done.
    #[serde(skip_serializing_if = "Option::is_none")]
    refused: Option<String>,
    #[serde(skip)]
    definition: Option<&'a Definition>,
    #[serde(skip)]
    existing: Option<&'a Existing>,
}

impl Apply {
    pub(super) fn run(self, global: &Global) -> Outcome {
        let definitions = read(&self.directory)?;
        let client = self.to.open(global)?;
        let existing = existing(&client, &definitions)?;
        let mut steps = plan(&definitions, &existing, self.prune);
        let is_due = steps.iter().any(|step| step.action.is_change()) && !self.dry_run;
        if !global.json() {
            output::write(sheet(&steps).as_bytes())?;
            output::line(&summary(&steps, self.dry_run))?;
        }
        let is_agreed = !is_due || self.yes || is_confirmed(global);
        if !is_agreed && !may_ask(global) {
            self.print(&steps, global)?;
            return Err(Failure::new(Exit::Usage, ApplyError::Unasked));
        }
        if !is_agreed {
            output::aside("nothing was changed");
            return Ok(Exit::Negative);
        }
        let stopped = if is_due { carry_out_all(&client, &mut steps, global) } else { Ok(()) };
        self.print(&steps, global)?;
        stopped?;
        ended(&steps)
    }

    /// Prints all steps for a program.
    fn print(&self, steps: &[Step<'_>], global: &Global) -> Outcome {
        if !global.json() {
            return Ok(Exit::Ok);
        }
        let told = json!({ "dry_run": self.dry_run, "schedules": steps });
        output::line(&told.to_string())
    }
}

/// Asks the person at the terminal, if there is one.
fn is_confirmed(global: &Global) -> bool {
    if !may_ask(global) {
        return false;
    }
    let _ = io::stderr().write_all(b"Do it? [y/N] ");
    let mut answer = String::new();
    let is_read = io::stdin().read_line(&mut answer).is_ok();
    is_read && matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes")
}

/// Whether somebody can be asked. Programs are not.
fn may_ask(global: &Global) -> bool {
    !global.json() && io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// Reads the files of a directory, in the order of their names.
fn read(directory: &Path) -> Result<Vec<Definition>, Failure> {
    let wrong = |error: ApplyError| Failure::new(Exit::Usage, error);
    let unread = |error: io::Error| wrong(ApplyError::Unread(directory.to_owned(), error));
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).map_err(unread)? {
        let path = entry.map_err(unread)?.path();
        if let Some(format) = Format::of_name(&path).filter(|_| path.is_file()) {
            files.push((path, format));
        }
    }
    if files.is_empty() {
        return Err(wrong(ApplyError::Empty(directory.to_owned())));
    }
    files.sort();
    let texts = files.into_iter().map(|(path, format)| {
        let text = fs::read_to_string(&path);
        (path.to_string_lossy().into_owned(), text, format)
    });
    define(texts).map_err(|all| wrong(ApplyError::WrongFiles(all)))
}

/// What files define: their names, their texts, and how they are written.
///
/// # Errors
/// Every file that is wrong, or that defines a schedule of another one again.
fn define(
    files: impl IntoIterator<Item = (String, io::Result<String>, Format)>,
) -> Result<Vec<Definition>, Vec<String>> {
    let (mut definitions, mut wrong) = (Vec::new(), Vec::new());
    let mut defined_by: BTreeMap<ScheduleId, String> = BTreeMap::new();
    for (file, text, format) in files {
        let text = text.map_err(|error| unread(&file, &error));
        let definition = match text.and_then(|text| Definition::parse(&file, &text, format)) {
            Ok(definition) => definition,
            Err(why) => {
                wrong.push(why);
                continue;
            }
        };
        match defined_by.entry(definition.id.clone()) {
            Entry::Occupied(first) => {
                let (id, first) = (&definition.id, first.get());
                wrong.push(format!("{file}: {first} defines {id} already"));
            }
            Entry::Vacant(place) => {
                place.insert(file);
                definitions.push(definition);
            }
        }
    }
    if wrong.is_empty() { Ok(definitions) } else { Err(wrong) }
}

/// What instances keep of the schedules that are defined, and of all others of their projects.
fn existing(
    client: &Client,
    definitions: &[Definition],
) -> Result<BTreeMap<ScheduleId, Existing>, Failure> {
    let mut all = BTreeMap::new();
    let projects: BTreeSet<&str> = definitions.iter().map(|of| of.id.project()).collect();
    for project in projects {
        let filters = vec![("project", project.to_owned())];
        let pages = Pages { path: PATH, items: "schedules", filters, limit: None, page: PAGE };
        pages.each(client, |schedules| {
            for view in typed::<Vec<ScheduleView>>(schedules)? {
                all.extend(Existing::of(view)?);
            }
            Ok(())
        })?;
    }
    // Lists leave out what has ended.
    for Definition { id, .. } in definitions {
        if all.contains_key(id) {
            continue;
        }
        if let Some(view) = found(client, id)? {
            all.extend(Existing::of(view)?);
        }
    }
    Ok(all)
}

/// What one definition changes, as [`sheet`] has it. `before`: what was there.
pub(super) fn came_of(
    definition: &Definition,
    before: Option<ScheduleView>,
) -> Result<String, ClientError> {
    let existing = before.map(Existing::of).transpose()?.flatten();
    let existing: BTreeMap<_, _> = existing.into_iter().collect();
    let steps = plan(std::slice::from_ref(definition), &existing, false);
    let ends_pause = |change: &Difference| {
        let [old, new] = [&change.old, &change.new].map(|of| *of == Some(Value::Bool(true)));
        change.field == "paused" && old && !new
    };
    let is_resumed = steps.iter().flat_map(|step| &step.changes).any(ends_pause);
    let pause =
        if is_resumed { "    its pause is over: the file has no paused = true\n" } else { "" };
    Ok(sheet(&steps) + pause)
}

impl Existing {
    /// What an instance tells of a schedule; `None`: it was deleted or has failed, so it can only be made anew.
    fn of(view: ScheduleView) -> Result<Option<(ScheduleId, Self)>, ClientError> {
        let is_finished = match view.status {
            ScheduleStatus::Active | ScheduleStatus::Paused => false,
            ScheduleStatus::Finished => true,
            ScheduleStatus::Deleted | ScheduleStatus::Failed => return Ok(None),
        };
        let id: ScheduleId = view.schedule_id.parse().map_err(|_| {
            ClientError::Strange(format!(
                "an instance (the id {:?} of a schedule)",
                view.schedule_id
            ))
        })?;
        let fields = with_defaults(json!(view.settings));
        Ok(Some((id, Self { version: view.version, is_finished, fields })))
    }
}

/// What is done: about the schedules that are defined, in the order of their files, and then about the others.
fn plan<'a>(
    definitions: &'a [Definition],
    existing: &'a BTreeMap<ScheduleId, Existing>,
    prune: bool,
) -> Vec<Step<'a>> {
    let defined: BTreeSet<&ScheduleId> = definitions.iter().map(|of| &of.id).collect();
    let of_files = definitions.iter().map(|definition| {
        let before = existing.get(&definition.id);
        let changes = before.map(|before| differences(&before.fields, &definition.fields));
        let action = match (before, changes.as_deref()) {
            (Some(_), Some([])) => Action::Nothing,
            (Some(before), _) if !before.is_finished => Action::Change,
            _ => Action::Create,
        };
        step(&definition.id, action, changes.unwrap_or_default(), (Some(definition), before))
    });
    let others = existing.iter().filter(|(id, _)| !defined.contains(id));
    let action = if prune { Action::Delete } else { Action::Keep };
    let others = others.map(|(id, existing)| step(id, action, Vec::new(), (None, Some(existing))));
    of_files.chain(others).collect()
}

fn step<'a>(
    id: &ScheduleId,
    action: Action,
    changes: Vec<Difference>,
    (definition, existing): (Option<&'a Definition>, Option<&'a Existing>),
) -> Step<'a> {
    Step { name: id.clone(), action, changes, result: None, refused: None, definition, existing }
}

/// The fields that differ. Objects are compared field by field.
fn differences(old: &Map<String, Value>, new: &Map<String, Value>) -> Vec<Difference> {
    let mut found = Vec::new();
    compare("", old, new, &mut found);
    found
}

fn compare(
    above: &str,
    old: &Map<String, Value>,
    new: &Map<String, Value>,
    found: &mut Vec<Difference>,
) {
    let names: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    for name in names {
        let field = if above.is_empty() { name.clone() } else { format!("{above}.{name}") };
        match (old.get(name), new.get(name)) {
            (Some(Value::Object(old)), Some(Value::Object(new))) => {
                compare(&field, old, new, found);
            }
            (old, new) if old != new => {
                found.push(Difference { field, old: old.cloned(), new: new.cloned() });
            }
            _ => {}
        }
    }
}

/// All steps for people: a line for each schedule, and one for each field that differs.
fn sheet(steps: &[Step<'_>]) -> String {
    let width = steps.iter().map(|step| step.name.to_string().len()).max().unwrap_or_default();
    let mut text = String::new();
    for Step { name, action, changes, existing, .. } in steps {
        let is_finished = existing.is_some_and(|existing| existing.is_finished);
        let (mark, word) = match action {
            Action::Create if is_finished => ('+', "new: the last one of this name has ended"),
            Action::Create => ('+', "new"),
            Action::Change => ('~', "changed"),
            Action::Nothing if is_finished => ('=', "same, and its last time has passed"),
            Action::Nothing => ('=', "same"),
            Action::Keep => ('-', "not in DIR, and stays: --prune deletes it"),
            Action::Delete => ('-', "not in DIR, and is deleted"),
        };
        let _ = writeln!(text, "{mark} {:width$}  {word}", name.to_string());
        for Difference { field, old, new } in changes {
            let field = output::shown(Some(field.as_bytes()));
            let (old, new) = (shown(old.as_ref()), shown(new.as_ref()));
            let _ = writeln!(text, "    {field}: {old} -> {new}");
        }
    }
    text
}

/// A value as JSON has it, at most so much of it.
fn shown(value: Option<&Value>) -> String {
    let text = value.map_or_else(|| "(nothing)".to_owned(), Value::to_string);
    output::shortened(Some(text.as_bytes()), SHOWN)
}

/// How many schedules change, in a line.
fn summary(steps: &[Step<'_>], is_dry: bool) -> String {
    let count = |action: Action| steps.iter().filter(|step| step.action == action).count();
    let counts =
        [(Action::Create, "new"), (Action::Change, "changed"), (Action::Delete, "deleted")];
    let counts = counts.map(|(action, word)| (count(action), word));
    let all: usize = counts.iter().map(|(count, _)| count).sum();
    if all == 0 {
        return "nothing to change".to_owned();
    }
    let parts = counts.iter().filter(|(count, _)| *count > 0);
    let parts: Vec<String> = parts.map(|(count, word)| format!("{count} {word}")).collect();
    let would = if is_dry { "would change" } else { "to change" };
    format!("{all} of {} schedules {would}: {}", steps.len(), parts.join(", "))
}

/// Does all of it, and notes in each step what came of it. A schedule that is refused keeps no other one from its change.
///
/// # Errors
/// No instance answers, or none that can do it: the rest is left as it is.
fn carry_out_all(
    client: &Client,
    steps: &mut [Step<'_>],
    global: &Global,
) -> Result<(), ClientError> {
    for step in steps.iter_mut().filter(|step| step.action.is_change()) {
        match carry_out(client, step) {
            Ok(result) => {
                step.result = result;
                if let Some(result) = result.filter(|_| !global.json()) {
                    // Somebody who has seen enough does not keep it from being done.
                    let _ = output::line(&format!("{}  {result}", step.name));
                }
            }
            Err(error @ ClientError::Refused { status: ..500, .. }) => {
                step.refused = Some(error.to_string());
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Does one step; `None`: there was nothing to do.
fn carry_out(client: &Client, step: &Step<'_>) -> Result<Option<&'static str>, ClientError> {
    let settings = step.definition.map(|definition| &definition.settings);
    let version = step.existing.map(|existing| existing.version.as_str());
    Ok(match step.action {
        Action::Create => {
            client.ask(Kind::NewSchedule, &Method::POST, PATH, &[], settings)?;
            Some("created")
        }
        Action::Change => {
            let (kind, path) = (Kind::ChangeSchedule(version), step.name.path(""));
            match client.ask(kind, &Method::PUT, &path, &[], settings) {
                // A request that was sent again meets what it has made itself.
                Err(ClientError::Refused { status: 409, .. }) if is_made(client, step)? => {}
                answer => {
                    answer?;
                }
            }
            Some("changed")
        }
        Action::Delete => Some(delete_shown(client, &step.name, version)?),
        Action::Nothing | Action::Keep => None,
    })
}

/// Whether what is in force is what the file says.
fn is_made(client: &Client, step: &Step<'_>) -> Result<bool, ClientError> {
    let now = Existing::of(typed(&look(client, &step.name)?)?)?;
    let wanted = step.definition.map(|definition| &definition.fields);
    Ok(now.is_some_and(|(_, now)| Some(&now.fields) == wanted))
}

/// Deletes a schedule that is still what was shown.
fn delete_shown(
    client: &Client,
    id: &ScheduleId,
    shown: Option<&str>,
) -> Result<&'static str, ClientError> {
    const DONE: &str = "deleted";
    match delete(client, id, (DELETED_WITHIN, shown)) {
        Ok((_, is_decided)) => Ok(if is_decided { DONE } else { "pending" }),
        // Somebody was faster, or a request that was sent again meets what it has done itself.
        Err(ClientError::Refused { status: 404 | 409, .. }) if has_ended(client, id)? => Ok(DONE),
        Err(error) => Err(error),
    }
}

/// Whether there is no such schedule any more.
fn has_ended(client: &Client, id: &ScheduleId) -> Result<bool, ClientError> {
    match look(client, id) {
        Ok(told) => Ok(typed::<ScheduleView>(&told)?.status.is_final()),
        Err(ClientError::Refused { status: 404, .. }) => Ok(true),
        Err(error) => Err(error),
    }
}

/// How it ends: not well, if a step was refused.
fn ended(steps: &[Step<'_>]) -> Outcome {
    let refused = steps.iter().filter_map(|step| {
        let why = step.refused.as_ref()?;
        Some(format!("{}: {why}", step.name))
    });
    let refused: Vec<String> = refused.collect();
    if !refused.is_empty() {
        return Err(Failure::new(Exit::Negative, ApplyError::Refused(refused)));
    }
    let is_pending = steps.iter().any(|step| step.result == Some("pending"));
    Ok(if is_pending { Exit::Pending } else { Exit::Ok })
}

#[cfg(test)]
mod tests {
    use super::*;

    const URL: &str = "https://a.example/";

    /// A file that defines a schedule of the project `shop`, with these lines besides.
    fn file(name: &str, lines: &str, url: &str) -> String {
        format!(
            "project = \"shop\"\ngroup = \"reports\"\nname = \"{name}\"\n{lines}\n[task]\ntype = \"http\"\nurl = \"{url}\"\n"
        )
    }

    fn definition(name: &str, lines: &str, url: &str) -> Definition {
        let text = file(name, lines, url);
        Definition::parse("a.toml", &text, Format::Toml).expect("a schedule")
    }

    /// A schedule as an instance tells it: with its defaults.
    fn told(name: &str, more: Value) -> Value {
        let mut all = json!({
            "schedule_id": format!("schedule.shop.{name}"), "version": "1767225500000-42", "status": "active",
            "tasks_total": 3, "changed_at": 1_767_225_500_000_u64, "project": "shop", "group": "reports",
            "name": name, "cron": "30 2 * * *", "zone": "UTC", "jitter": 0, "misfire": "fire_once",
            "overlap": "allow", "task": {"type": "http", "url": URL},
        });
        all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        all
    }

    fn kept(all: impl IntoIterator<Item = Value>) -> BTreeMap<ScheduleId, Existing> {
        let views = all
            .into_iter()
            .map(|told| serde_json::from_value::<ScheduleView>(told).expect("a schedule"));
        views.filter_map(|view| Existing::of(view).expect("with an id")).collect()
    }

    fn actions(steps: &[Step<'_>]) -> Vec<(String, Action)> {
        steps.iter().map(|step| (step.name.to_string(), step.action)).collect()
    }

    #[test]
    fn what_is_the_same_but_for_its_defaults_does_not_differ() {
        let nightly = [definition("nightly", "cron = \"30 2 * * *\"", URL)];
        let kept_of = |more| kept([told("nightly", more)]);
        let existing = kept_of(json!({}));
        let steps = plan(&nightly, &existing, true);
        assert_eq!(actions(&steps), [("shop/nightly".to_owned(), Action::Nothing)]);
        assert!(steps[0].changes.is_empty(), "{steps:?}");
        // A length of time has several forms, and so has a point in time.
        let lines = "every = \"1m\"\nstart = 2027-01-01T00:00:00Z\nexpires = \"1h\"";
        let period = [definition("nightly", lines, URL)];
        let mut told = told("nightly", json!({}));
        let fields = told.as_object_mut().expect("an object");
        fields.retain(|name, _| !["cron", "zone"].contains(&name.as_str()));
        let more = json!({"every": 60, "aligned": false, "start": 1_798_761_600_000_u64, "expires": 3_600});
        fields.extend(more.as_object().expect("an object").clone());
        let existing = kept([told]);
        let steps = plan(&period, &existing, true);
        assert!(steps[0].changes.is_empty(), "{steps:?}");
        // It has no times any more, and is not made again.
        let existing = kept_of(json!({"status": "finished", "ended_at": 1_767_225_600_000_u64}));
        let steps = plan(&nightly, &existing, true);
        assert_eq!(steps[0].action, Action::Nothing);
        assert!(sheet(&steps).contains("same, and its last time has passed"), "{}", sheet(&steps));
    }

    #[test]
    fn each_field_that_differs_has_its_old_and_its_new_value() {
        let lines = "cron = \"30 3 * * *\"\njitter = \"5m\"";
        let files = [definition("nightly", lines, "https://b.example/")];
        let task = json!({"type": "http", "url": URL, "timeout": "5s"});
        let existing = kept([told("nightly", json!({"paused": true, "task": task}))]);
        let steps = plan(&files, &existing, false);
        assert_eq!(actions(&steps), [("shop/nightly".to_owned(), Action::Change)]);
        let said = sheet(&steps);
        let want = "\
~ shop/nightly  changed
    cron: \"30 2 * * *\" -> \"30 3 * * *\"
    jitter: 0 -> 300
    paused: true -> (nothing)
    task.timeout: \"5s\" -> (nothing)
    task.url: \"https://a.example/\" -> \"https://b.example/\"
";
        assert_eq!(said, want);
        let step = json!(steps[0]);
        assert_eq!((&step["name"], &step["action"]), (&json!("shop/nightly"), &json!("change")));
        let jitter = json!({"field": "jitter", "old": 0, "new": 300});
        assert_eq!(step["changes"][1], jitter);
        assert_eq!(step["changes"][2]["new"], Value::Null);
        assert_eq!(step.as_object().map(Map::len), Some(3), "{step}");
        assert_eq!(steps[0].existing.map(|of| of.version.as_str()), Some("1767225500000-42"));
    }

    #[test]
    fn a_put_says_what_it_changes_and_that_it_ends_a_pause() {
        let file = definition("nightly", "cron = \"30 2 * * *\"", URL);
        let view = |more| serde_json::from_value(told("nightly", more)).expect("a schedule");
        let said = |before: Option<ScheduleView>| came_of(&file, before).expect("with an id");
        assert_eq!(said(None), "+ shop/nightly  new\n");
        assert_eq!(said(Some(view(json!({})))), "= shop/nightly  same\n");
        assert_eq!(said(Some(view(json!({"status": "deleted"})))), "+ shop/nightly  new\n");
        let paused = said(Some(view(json!({"status": "paused", "paused": true}))));
        let want = "\
~ shop/nightly  changed
    paused: true -> (nothing)
    its pause is over: the file has no paused = true
";
        assert_eq!(paused, want);
    }

    #[test]
    fn what_no_file_defines_is_deleted_only_if_that_is_asked_for() {
        let cron = "cron = \"30 2 * * *\"";
        let files = [definition("weekly", cron, URL), definition("nightly", cron, URL)];
        let gone = json!({"status": "deleted", "ended_at": 1_767_225_600_000_u64});
        let existing = kept([
            told("nightly", json!({})),
            told("old", json!({"status": "paused", "paused": true})),
            // It was deleted: it can be made anew.
            told("weekly", gone),
        ]);
        for (prune, last) in [(false, Action::Keep), (true, Action::Delete)] {
            let steps = plan(&files, &existing, prune);
            let want = [("weekly", Action::Create), ("nightly", Action::Nothing), ("old", last)];
            let want = want.map(|(name, action)| (format!("shop/{name}"), action));
            assert_eq!(actions(&steps), want);
        }
        let dry = summary(&plan(&files, &existing, true), true);
        assert_eq!(dry, "2 of 3 schedules would change: 1 new, 1 deleted");
        let steps = plan(&files[1..], &existing, false);
        assert_eq!(summary(&steps, false), "nothing to change");
    }

    #[test]
    fn every_file_that_is_wrong_is_named_and_so_is_one_that_defines_another_again() {
        let text = |name: &str, text: String| (name.to_owned(), Ok(text), Format::Toml);
        let cron = "cron = \"@daily\"";
        let right = text("d/a.toml", file("a", cron, URL));
        assert_eq!(define([right]).map(|all| all.len()), Ok(1));
        let all = define([
            text("d/a.toml", file("a", cron, URL)),
            text("d/b.toml", file("b", "cron = daily", URL)),
            text("d/c.toml", file("c", "cron = \"soon\"\nevery = \"1s\"", URL)),
            ("d/d.json".to_owned(), Err(io::Error::other("no disk")), Format::Json),
            text("d/e.toml", file("a", "cron = \"@hourly\"", URL)),
        ]);
        let wrong = all.expect_err("they are wrong");
        assert_eq!(wrong.len(), 4, "{wrong:#?}");
        assert!(wrong[0].starts_with("d/b.toml:4: it is no TOML: "), "{wrong:#?}");
        assert!(wrong[1].starts_with("d/c.toml: "), "{wrong:#?}");
        assert_eq!(wrong[2], "d/d.json: could not read it: no disk");
        assert_eq!(wrong[3], "d/e.toml: d/a.toml defines shop/a already");
    }

    /// An instance that has this version of each schedule; `None`: all have ended. It takes no other version for one to delete.
    fn instance(version: Option<&'static str>) -> Client {
        use std::io::{BufRead as _, BufReader};
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = BufReader::new(stream.expect("a connection"));
                let lines = (&mut stream).lines().map_while(Result::ok);
                let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
                let first = head.first().map(String::as_str).unwrap_or_default();
                let of = |line: &String| {
                    let line = line.to_ascii_lowercase();
                    Some(line.strip_prefix("if-match: ")?.trim_matches('"').to_owned())
                };
                let is_meant = head.iter().find_map(of).as_deref() == version;
                let (status, body) = match version {
                    _ if first.contains("health/live") => ("200 OK", json!({})),
                    Some(version) if first.starts_with("GET") => {
                        ("200 OK", told("old", json!({ "version": version })))
                    }
                    None if first.starts_with("GET") => {
                        ("404 None", json!({"code": "unknown_schedule", "detail": "there is none"}))
                    }
                    Some(_) if is_meant => {
                        let id = "schedule.shop.old";
                        ("200 OK", json!({"schedule_id": id, "outcome": "deleted"}))
                    }
                    _ => ("409 No", json!({"code": "version_conflict", "detail": "it is another"})),
                };
                let answer = format!("HTTP/1.1 {status}\r\nConnection: close\r\n\r\n{body}");
                stream.get_mut().write_all(answer.as_bytes()).expect("written");
            }
        });
        let url = crate::client::http::address(&format!("http://{address}")).expect("a URL");
        Client::new(None, vec![url], &crate::client::http::Tls::default()).expect("a client")
    }

    #[test]
    fn only_the_version_that_was_shown_is_deleted() {
        let id: ScheduleId = "shop/old".parse().expect("an id");
        let deleted = |client: &Client| delete_shown(client, &id, Some("1-1"));
        assert!(matches!(deleted(&instance(Some("1-1"))), Ok("deleted")));
        let changed = deleted(&instance(Some("2-2"))).expect_err("somebody has changed it");
        assert!(matches!(changed, ClientError::Refused { status: 409, .. }), "{changed}");
        assert!(changed.to_string().contains("not at version 1-1"), "{changed}");
        let gone = deleted(&instance(None));
        assert!(matches!(gone, Ok("deleted")), "what is to be done is done: {gone:?}");
    }

    #[test]
    fn only_files_that_define_schedules_are_read_in_the_order_of_their_names() {
        let directory = tempfile::tempdir().expect("a directory");
        let refused = |directory: &Path| read(directory).expect_err("nothing to read").exit();
        assert_eq!(refused(directory.path()), Exit::Usage);
        assert_eq!(refused(&directory.path().join("nowhere")), Exit::Usage);
        let path = |name: &str| directory.path().join(name);
        fs::create_dir(path("deeper.toml")).expect("made");
        fs::write(path("b.toml"), file("first", "cron = \"@daily\"", URL)).expect("written");
        fs::write(path("README.md"), "not a schedule").expect("written");
        let json = json!({
            "project": "shop", "group": "reports", "name": "second", "every": "1m",
            "task": {"type": "http", "url": URL},
        });
        fs::write(path("c.json"), json.to_string()).expect("written");
        let found = read(directory.path()).expect("they are right");
        let found: Vec<String> = found.iter().map(|of| of.id.to_string()).collect();
        assert_eq!(found, ["shop/first", "shop/second"]);
    }
}
