//! Runs and their shards as tables, for people.

use serde_json::{Map, Value};

use crate::api::runs::model::{RunView, ShardCounts, ShardState, ShardView};
use crate::api::tasks::model::ResultTo;
use crate::cli::project::plain;
use crate::cli::task::show::{ANSWER_SHOWN, length, text, time, word};
use crate::cli::{output, table};
use crate::engine::Millis;
use crate::engine::timers::RunStatus;

/// A table of a page of runs; the heads of its columns only above the first.
pub(super) fn rows(runs: &[RunView], with_heads: bool) -> String {
    if runs.is_empty() {
        return String::new();
    }
    let mut table = table::fitted();
    if with_heads {
        table.set_header(["due", "status", "project", "group", "shards", "ended", "failed", "id"]);
    }
    table.add_rows(runs.iter().map(row));
    format!("{}\n", table.trim_fmt())
}

fn row(run: &RunView) -> [String; 8] {
    let ShardCounts { finished, failed, .. } = run.counts;
    [
        time(Some(run.trigger_at)),
        word(run.run_status),
        text(&run.settings.project),
        text(&run.settings.group),
        run.settings.shards.to_string(),
        finished.saturating_add(failed).to_string(),
        failed.to_string(),
        text(&run.run_id),
    ]
}

/// A table of a page of shards; the heads of its columns only above the first.
pub(super) fn shards(shards: &[ShardView], with_heads: bool) -> String {
    if shards.is_empty() {
        return String::new();
    }
    let mut table = table::fitted();
    if with_heads {
        table.set_header([
            "shard", "state", "task", "worker", "turn", "started", "ended", "done", "error", "id",
        ]);
    }
    table.add_rows(shards.iter().map(|shard| {
        [
            shard.index.to_string(),
            state(shard),
            word(shard.task_status),
            shard.worker.as_deref().map_or_else(none, text),
            shard.turn.to_string(),
            time(shard.started),
            time(shard.ended),
            done(shard),
            error(shard),
            text(&shard.task_id),
        ]
    }));
    format!("{}\n", table.trim_fmt())
}

/// Where a shard stands, in words.
pub(in crate::cli) fn state(shard: &ShardView) -> String {
    match shard.shard_state {
        ShardState::ToCreate => "to create",
        ShardState::Again => "handed out again",
        state => state.as_str(),
    }
    .to_owned()
}

/// How far its executor says that it is.
pub(in crate::cli) fn done(shard: &ShardView) -> String {
    shard.percent.map_or_else(none, |percent| format!("{percent} %"))
}

/// What went wrong.
pub(in crate::cli) fn error(shard: &ShardView) -> String {
    let error = shard.error.as_ref();
    error.map_or_else(none, |error| output::shortened(Some(error.as_bytes()), ANSWER_SHOWN))
}

/// Stands for what is not known.
pub(in crate::cli) fn none() -> String {
    "-".to_owned()
}

/// Everything that is known of a run but its grid, a line each.
pub(super) fn whole(run: &RunView) -> String {
    let mut table = table::plain();
    let mut row = |name: &str, value: String| {
        table.add_row([name.to_owned(), value]);
    };
    row("id", text(&run.run_id));
    row("version", text(&run.version));
    row("status", word(run.run_status));
    if let Some(code) = &run.code {
        row("code", because(run.run_status, &text(code), &text(&run.run_id)));
    }
    row("project", text(&run.settings.project));
    row("group", text(&run.settings.group));
    row("shards", counts(run.settings.shards, run.counts));
    if let Some(count) = run.members {
        row("executors", members(count, &run.settings.task));
    }
    if let Some(why) = unbegun(run) {
        row("executors", why);
    }
    row("due", time(Some(run.trigger_at)));
    if run.nominal_at.is_some() {
        row("nominal time", time(run.nominal_at));
    }
    row("created", time(Some(run.created_at)));
    if let Some(deadline) = &run.settings.deadline {
        row("deadline", format!("{} after its first shards are created", length(deadline)));
    }
    if run.deadline_at.is_some() && run.ended_at.is_none() {
        row("expires", time(run.deadline_at));
    }
    if run.ended_at.is_some() {
        row("ended", time(run.ended_at));
    }
    row(
        "if one fails",
        match run.settings.on_shard_failure.as_deref() {
            None | Some("continue") => "the others go on".to_owned(),
            Some("stop") => "the others are cancelled".to_owned(),
            Some(other) => text(other),
        },
    );
    if let Some(ResultTo { topic, service, url }) = &run.settings.on_finished {
        let to = [("topic", topic), ("service", service), ("url", url)];
        let to = to
            .into_iter()
            .filter_map(|(kind, name)| Some(format!("{kind} {}", text(name.as_ref()?))));
        row("tells", to.collect());
    }
    if let Some(request_id) = &run.settings.request_id {
        row("request id", text(request_id));
    }
    for (name, value) in &run.settings.task {
        let value = output::shortened(Some(plain(value).as_bytes()), ANSWER_SHOWN);
        row(&format!("task {}", text(name)), value);
    }
    table.trim_fmt()
}

/// Why it has ended so, and what to do. `code` and `id` are fit to be shown.
fn because(status: RunStatus, code: &str, id: &str) -> String {
    match status {
        RunStatus::Failed if code == "task_failed" => format!(
            "{code} (which shards: waterclock runs shards {id} --state failed; all anew: waterclock runs retry {id})"
        ),
        RunStatus::Failed => {
            format!(
                "{code} (its dead letter says why: waterclock dead list --code {code}; once that is mended, create it again)"
            )
        }
        _ => code.to_owned(),
    }
}

/// How many are there to execute this task, or the shards of this run.
pub(in crate::cli) fn members(count: u32, task: &Map<String, Value>) -> String {
    let of = task.get("task").and_then(Value::as_object).unwrap_or(task);
    let topic = of.get("topic").map_or_else(none, |topic| text(&plain(topic)));
    match count {
        0 => format!("nobody reads topic {topic}: start an executor"),
        1 => format!("1 member of a consumer group reads topic {topic}"),
        _ => format!("{count} members of consumer groups read topic {topic}"),
    }
}

/// What may be the reason if a run has expired of which nobody has begun a shard.
pub(in crate::cli) fn unbegun(run: &RunView) -> Option<String> {
    let topic = run.settings.task.get("topic")?;
    let ShardCounts { created, begun, .. } = run.counts;
    let is_unbegun = run.run_status == RunStatus::Expired && created > 0 && begun == 0;
    is_unbegun.then(|| format!("no shard was begun: nobody reads topic {}?", text(&plain(topic))))
}

/// How many shards stand where, in a line.
pub(in crate::cli) fn counts(shards: u32, counts: ShardCounts) -> String {
    let ShardCounts { created, begun, again, finished, failed } = counts;
    format!(
        "{shards}: {created} created, {begun} begun, {again} handed out again, {finished} finished, {failed} failed"
    )
}

/// A length of time to the second.
pub(in crate::cli) fn span(length: Millis) -> String {
    Millis(length.0 / 1_000 * 1_000).to_string()
}

#[cfg(test)]
pub(in crate::cli) mod tests {
    use serde_json::json;

    use super::*;

    /// A run as an instance tells it, with these members besides.
    pub(in crate::cli) fn run(more: Value) -> RunView {
        let mut all = json!({
            "run_id": "9f2c", "run_status": "executing", "project": "shop", "group": "settlement",
            "version": "1767225500000-42", "trigger_at": 1_767_225_600_000_u64, "created_at": 1_767_225_500_000_u64,
            "deadline_at": 1_767_312_000_000_u64, "shards": 60,
            "counts": {"created": 60, "begun": 12, "again": 1, "finished": 10, "failed": 1},
            "deadline": "1d", "on_shard_failure": "continue",
            "task": {"type": "kafka", "topic": "settlement", "value": "{}", "feedback": {"deadline": "1h"}},
        });
        all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(all).expect("a run")
    }

    /// A shard as an instance tells it, with these members besides.
    pub(in crate::cli) fn shard(index: u32, state: &str, more: Value) -> ShardView {
        let mut all = json!({
            "index": index, "task_id": format!("r.9f2c.1767225500000-42.{index}"), "task_status": "running",
            "shard_state": state, "turn": 1, "attempts_total": 0,
        });
        all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(all).expect("a shard")
    }

    /// Without the blanks that align columns.
    fn words(text: &str) -> Vec<String> {
        text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
    }

    #[test]
    fn a_run_says_how_far_it_is_and_what_its_shards_are() {
        let more =
            json!({"on_finished": {"topic": "settled"}, "nominal_at": 1_767_225_600_000_u64});
        let lines = words(&whole(&run(more)));
        for line in [
            "id 9f2c",
            "version 1767225500000-42",
            "status executing",
            "shards 60: 60 created, 12 begun, 1 handed out again, 10 finished, 1 failed",
            "due 2026-01-01T00:00:00.000Z",
            "nominal time 2026-01-01T00:00:00.000Z",
            "deadline 1d after its first shards are created",
            "expires 2026-01-02T00:00:00.000Z",
            "if one fails the others go on",
            "tells topic settled",
            "task topic settlement",
            "task feedback {\"deadline\":\"1h\"}",
        ] {
            assert!(lines.iter().any(|of| of == line), "{line}: {lines:#?}");
        }
        assert!(!lines.iter().any(|of| of.starts_with("code")), "{lines:#?}");
    }

    #[test]
    fn a_run_says_whether_anybody_is_there_to_execute_it() {
        let says = |members: Option<u32>| {
            let lines = words(&whole(&run(json!({ "members": members }))));
            lines.into_iter().find(|line| line.starts_with("executors"))
        };
        assert_eq!(says(None), None);
        let nobody = "executors nobody reads topic settlement: start an executor";
        assert_eq!(says(Some(0)).as_deref(), Some(nobody));
        let one = "executors 1 member of a consumer group reads topic settlement";
        assert_eq!(says(Some(1)).as_deref(), Some(one));
        // The task of a schedule may be a run.
        let of = json!({"type": "run", "task": {"type": "kafka", "topic": "a\u{1b}"}});
        let said = members(2, of.as_object().expect("an object"));
        assert_eq!(said, "2 members of consumer groups read topic a\\u{1b}");
    }

    #[test]
    fn a_run_that_has_expired_and_that_nobody_has_begun_says_so() {
        let of = |begun: u32, more: Value| {
            let counts =
                json!({"created": 60, "begun": begun, "again": 0, "finished": 0, "failed": 60});
            let mut all = json!({"run_status": "expired", "ended_at": 1_767_312_000_000_u64, "counts": counts});
            all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            words(&whole(&run(all)))
        };
        let nobody = "executors no shard was begun: nobody reads topic settlement?".to_owned();
        let lines = of(0, json!({}));
        assert!(lines.contains(&nobody), "{lines:#?}");
        assert!(!lines.iter().any(|line| line.starts_with("expires")), "it has ended: {lines:#?}");
        let call = json!({"task": {"type": "http", "url": "https://a.example/"}});
        for other in [of(1, json!({})), of(0, json!({"run_status": "cancelled"})), of(0, call)] {
            assert!(!other.iter().any(|line| line.starts_with("executors")), "{other:#?}");
        }
    }

    #[test]
    fn a_run_that_has_failed_says_what_to_do() {
        let failed = |code: &str| {
            whole(&run(json!({"run_status": "failed", "code": code, "on_shard_failure": "stop"})))
        };
        let by_shards = failed("task_failed");
        assert!(by_shards.contains("waterclock runs shards 9f2c --state failed"), "{by_shards}");
        assert!(by_shards.contains("waterclock runs retry 9f2c"), "{by_shards}");
        assert!(by_shards.contains("the others are cancelled"), "{by_shards}");
        let refused = failed("target_denied");
        assert!(refused.contains("waterclock dead list --code target_denied"), "{refused}");
        let expired = whole(&run(json!({"run_status": "expired", "code": "expired"})));
        assert!(words(&expired).contains(&"code expired".to_owned()), "{expired}");
    }

    #[test]
    fn lists_have_a_line_for_each_run_and_shard() {
        let re_executing = run(json!({"run_status": "re-executing"}));
        let day = "2026-01-01T00:00:00.000Z";
        let want = [day, "re-executing", "shop", "settlement", "60", "11", "1", "9f2c"];
        assert_eq!(row(&re_executing), want);
        assert_eq!((rows(&[], true), shards(&[], true)), (String::new(), String::new()));
        let more = json!({"worker": "w-1\u{1b}[2J", "turn": 2, "percent": 40, "started": 1_767_225_600_000_u64});
        let lines = words(&shards(&[shard(7, "again", more)], false));
        let want = format!(
            "7 handed out again running w-1\\u{{1b}}[2J 2 {day} - 40 % - r.9f2c.1767225500000-42.7"
        );
        assert_eq!(lines, [want]);
        let absent: ShardView = serde_json::from_value(json!({
            "index": 8, "task_id": "r.9f2c.1-2.8", "task_status": "delay", "shard_state": "to_create", "turn": 0, "attempts_total": 0,
        }))
        .expect("a shard");
        assert_eq!(
            words(&shards(&[absent], false)),
            ["8 to create delay - 0 - - - - r.9f2c.1-2.8"]
        );
    }

    #[test]
    fn a_length_of_time_is_told_to_the_second() {
        for (ms, want) in [(0, "0s"), (999, "0s"), (61_999, "1m1s"), (86_400_000, "1d")] {
            assert_eq!(span(Millis(ms)), want);
        }
    }
}
