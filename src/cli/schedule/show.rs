//! Schedules as tables, for people.

use serde_json::Value;

use crate::api::schedules::model::{ScheduleSettings, ScheduleView};
use crate::api::tasks::model::Length;
use crate::cli::project::{plain, yes};
use crate::cli::runs::show::members;
use crate::cli::task::show::{ANSWER_SHOWN, length, text, time, word};
use crate::cli::{output, table};
use crate::engine::UnixMillis;

/// A table of a page; the heads of its columns only above the first.
pub(super) fn rows(schedules: &[ScheduleView], with_heads: bool) -> String {
    if schedules.is_empty() {
        return String::new();
    }
    let mut table = table::fitted();
    if with_heads {
        table.set_header(["name", "status", "when", "next", "last", "tasks"]);
    }
    table.add_rows(schedules.iter().map(row));
    format!("{}\n", table.trim_fmt())
}

fn row(schedule: &ScheduleView) -> [String; 6] {
    [
        name(&schedule.settings),
        word(schedule.status),
        when(&schedule.settings),
        time(schedule.next_at),
        time(schedule.last_at),
        schedule.tasks_total.to_string(),
    ]
}

/// Everything that is known of a schedule, a line each.
pub(super) fn whole(schedule: &ScheduleView) -> String {
    let settings = &schedule.settings;
    let mut table = table::plain();
    let mut row = |name: &str, value: String| {
        table.add_row([name.to_owned(), value]);
    };
    row("name", name(settings));
    row("id", text(&schedule.schedule_id));
    row("version", text(&schedule.version));
    row("status", word(schedule.status));
    if let Some(code) = &schedule.code {
        let code = text(code);
        row(
            "code",
            format!("{code} (its dead letter says why: waterclock dead list --code {code})"),
        );
    }
    row("group", text(&settings.group));
    row("when", when(settings));
    if let Some(aligned) = settings.aligned {
        row("aligned", yes(aligned));
    }
    for (name, at) in [("start", &settings.start), ("end", &settings.end)] {
        if let Some(at) = at {
            row(name, moment(at));
        }
    }
    if let Some(count) = settings.count {
        row("count", count.to_string());
    }
    if let Some(jitter) = settings.jitter.as_ref().filter(|of| **of != Length::Seconds(0)) {
        row("jitter", length(jitter));
    }
    for (name, word) in [("misfire", &settings.misfire), ("overlap", &settings.overlap)] {
        if let Some(word) = word {
            row(name, text(word));
        }
    }
    if let Some(expires) = &settings.expires {
        row("expires", length(expires));
    }
    row("next", time(schedule.next_at));
    row("last", time(schedule.last_at));
    if let Some(id) = &schedule.last_task_id {
        row("last task", text(id));
    }
    row("tasks", schedule.tasks_total.to_string());
    if let Some(count) = schedule.members {
        row("executors", members(count, &settings.task));
    }
    row("changed", time(Some(schedule.changed_at)));
    if schedule.ended_at.is_some() {
        row("ended", time(schedule.ended_at));
    }
    for (name, value) in &settings.task {
        let value = output::shortened(Some(plain(value).as_bytes()), ANSWER_SHOWN);
        row(&format!("task {}", text(name)), value);
    }
    table.trim_fmt()
}

fn name(of: &ScheduleSettings) -> String {
    format!("{}/{}", text(&of.project), text(&of.name))
}

/// When its tasks are due, in a few words.
fn when(of: &ScheduleSettings) -> String {
    match (&of.cron, &of.zone, &of.every) {
        (Some(cron), Some(zone), _) => format!("{} {}", text(cron), text(zone)),
        (Some(cron), None, _) => text(cron),
        (None, _, Some(every)) => format!("every {}", length(every)),
        (None, _, None) => "-".to_owned(),
    }
}

/// A point in time as the API has it.
fn moment(at: &Value) -> String {
    match at.as_u64() {
        Some(at) => output::time(UnixMillis(at)),
        None => text(&plain(at)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A schedule as an instance tells it, with these members besides.
    fn view(more: Value) -> ScheduleView {
        let mut all = json!({
            "schedule_id": "schedule.shop.nightly", "version": "1767225500000-42", "status": "active",
            "next_at": 1_767_225_600_000_u64, "tasks_total": 3, "changed_at": 1_767_225_500_000_u64,
            "project": "shop", "group": "reports", "name": "nightly",
            "task": {"type": "http", "url": "http://a.example/x", "body": "{}"},
        });
        all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(all).expect("a schedule")
    }

    /// Without the blanks that align columns.
    fn words(text: &str) -> Vec<String> {
        text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
    }

    #[test]
    fn a_schedule_says_when_it_submits_what() {
        let lines = words(&whole(&view(json!({
            "cron": "30 2 * * *", "zone": "Europe/Berlin", "start": 1_767_225_600_000_u64, "jitter": 0, "misfire": "fire_once",
            "expires": 3_600,
        }))));
        for line in [
            "name shop/nightly",
            "status active",
            "when 30 2 * * * Europe/Berlin",
            "start 2026-01-01T00:00:00.000Z",
            "misfire fire_once",
            "expires 1h",
            "next 2026-01-01T00:00:00.000Z",
            "last -",
            "task url http://a.example/x",
            "task body {}",
        ] {
            assert!(lines.iter().any(|of| of == line), "{line}: {lines:#?}");
        }
        assert!(!lines.iter().any(|of| of.starts_with("jitter")), "{lines:#?}");
    }

    #[test]
    fn a_schedule_whose_runs_nobody_executes_says_so() {
        let task = json!({"type": "kafka", "topic": "settlement", "feedback": {"deadline": "1h"}});
        let run = json!({"type": "run", "shards": 60, "task": task});
        let lines = words(&whole(&view(json!({"every": "1d", "members": 0, "task": run}))));
        let nobody = "executors nobody reads topic settlement: start an executor".to_owned();
        assert!(lines.contains(&nobody), "{lines:#?}");
    }

    #[test]
    fn a_list_has_a_line_for_each_schedule() {
        let paused =
            view(json!({"status": "paused", "every": "1m30s", "last_at": 1_767_225_600_000_u64}));
        let day = "2026-01-01T00:00:00.000Z";
        let active = row(&view(json!({"cron": "@daily"})));
        assert_eq!(active, ["shop/nightly", "active", "@daily", day, "-", "3"]);
        assert_eq!(row(&paused), ["shop/nightly", "paused", "every 1m30s", day, day, "3"]);
        assert_eq!(rows(&[], true), "");
    }
}
