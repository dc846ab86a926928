//! Tasks as tables, for people.

use serde_json::json;

use super::super::{output, table};
use crate::api::tasks::model::{
    Attempt, FeedbackInfo, Length, ResultTo, RetryInfo, TaskStatus, TaskView,
};
use crate::engine::task::id::TaskId;
use crate::engine::task::spec::RUN;
use crate::engine::{Millis, UnixMillis};

/// A point in time that may be missing.
pub(in crate::cli) fn time(at: Option<u64>) -> String {
    at.map_or_else(|| "-".to_owned(), |at| output::time(UnixMillis(at)))
}

/// A text from elsewhere.
pub(in crate::cli) fn text(text: &str) -> String {
    output::shown(Some(text.as_bytes()))
}

/// Characters of an answer that are shown.
pub(in crate::cli) const ANSWER_SHOWN: usize = 200;

/// Characters of what it sends that are shown; `--json` has all.
const PAYLOAD_SHOWN: usize = 1_000;

/// A word of the API, as JSON has it.
pub(in crate::cli) fn word(of: impl serde::Serialize) -> String {
    json!(of).as_str().unwrap_or("-").to_owned()
}

/// A table of a page; the heads of its columns only above the first.
pub(super) fn rows(tasks: &[TaskView], with_heads: bool) -> String {
    if tasks.is_empty() {
        return String::new();
    }
    let mut table = table::fitted();
    if with_heads {
        table.set_header([
            "due",
            "next",
            "status",
            "waits for",
            "project",
            "group",
            "type",
            "attempts",
            "id",
        ]);
    }
    table.add_rows(tasks.iter().map(|task| {
        [
            time(Some(task.trigger_at)),
            time(task.next_at),
            word(task.task_status),
            task.waits_for.map_or_else(|| "-".to_owned(), word),
            text(&task.project),
            text(&task.group),
            text(&task.task_type),
            task.attempts_total.to_string(),
            text(&task.task_id),
        ]
    }));
    format!("{}\n", table.trim_fmt())
}

/// Everything that is known of a task but its attempts, a line each.
pub(super) fn whole(task: &TaskView) -> String {
    let mut table = table::plain();
    let mut row = |name: &str, value: String| {
        table.add_row([name.to_owned(), value]);
    };
    row("id", text(&task.task_id));
    row("type", text(&task.task_type));
    row("status", word(task.task_status));
    if let Some(outcome) = task.outcome {
        row("outcome", word(outcome));
    }
    if task.cancelling {
        row(
            "cancel",
            "written, and not decided yet: a worker may have the call (waterclock doctor)"
                .to_owned(),
        );
    }
    if let Some(waits_for) = task.waits_for {
        let by: Vec<String> = task.paused_by.iter().map(word).collect();
        let by = if by.is_empty() { String::new() } else { format!(" ({})", by.join(", ")) };
        row("waits for", word(waits_for) + &by);
    }
    row("project", text(&task.project));
    row("group", text(&task.group));
    if let Some(callee) = callee(task) {
        row("calls", callee);
    }
    for (name, value) in &task.headers {
        row(
            "header",
            format!("{}={}", text(name), output::shortened(Some(value.as_bytes()), ANSWER_SHOWN)),
        );
    }
    if let Some(timeout) = &task.timeout {
        row("timeout", length(timeout));
    }
    if let Some(expect) = task.expect.as_ref().filter(|expect| *expect != "2xx") {
        row("done by", format!("status {}", text(expect)));
    }
    if let Some(poll) = &task.poll {
        row("polls", format!("each {}, at most {} times", length(&poll.interval), poll.rounds));
    }
    if let Some(FeedbackInfo { deadline, heartbeat }) = &task.feedback {
        let beat = heartbeat.as_ref().map(|of| format!(", heartbeats within {}", length(of)));
        row("reports", format!("within {}{}", length(deadline), beat.unwrap_or_default()));
    }
    if let Some(ResultTo { topic, service, url }) = &task.on_result {
        let to = [("topic", topic), ("service", service), ("url", url)];
        let to = to
            .into_iter()
            .filter_map(|(kind, name)| Some(format!("{kind} {}", text(name.as_ref()?))));
        row("tells", to.collect());
    }
    if let Some(follow_up) = &task.follow_up {
        row("told by", text(follow_up));
    }
    if let Some(topic) = &task.topic {
        let at =
            task.partition.map_or_else(String::new, |partition| format!(", partition {partition}"));
        row("topic", text(topic) + &at);
    }
    row("due", time(Some(task.trigger_at)));
    if task.nominal_at.is_some() {
        row("nominal time", time(task.nominal_at));
    }
    if task.expires_at.is_some() {
        row("expires", time(task.expires_at));
    }
    row("next", time(task.next_at));
    row("created", time(Some(task.created_at)));
    if task.ended_at.is_some() {
        row("ended", time(task.ended_at));
    }
    if let Some(request_id) = &task.request_id {
        row("request id", text(request_id));
    }
    if let Some(code) = &task.code {
        let code = text(code);
        row("code", format!("{code} ({})", what_to_do(task, &code)));
    }
    if let Some(retry) = &task.retry {
        row("retries", retries(retry));
    }
    row("attempts", task.attempts_total.to_string());
    row("failures", task.failures.to_string());
    if task.rounds > 0 {
        row("rounds", task.rounds.to_string());
    }
    if task.interruptions > 0 {
        row(
            "interruptions",
            format!("{} (a worker was lost, and may have called)", task.interruptions),
        );
    }
    if let Some(last) = &task.last {
        // A delivery is no attempt: of a task that goes to a topic only failures are kept.
        let is_over = task.task_status == TaskStatus::Finished && last.outcome == "failed";
        row(if is_over { "last failure" } else { "last" }, said(last));
        if let Some(percent) = last.percent {
            row("done so far", format!("{percent} %"));
        }
        if let Some(cursor) = &last.cursor {
            row("cursor", output::shortened(Some(cursor.as_bytes()), ANSWER_SHOWN));
        }
        if let Some(response) = &last.response {
            row("its answer", output::shortened(Some(response.as_bytes()), ANSWER_SHOWN));
        }
    }
    if let Some(payload) = &task.payload {
        let mut either = |name: &str, of: &Option<String>, base64: &Option<String>, none: &str| {
            let short = |of: &String| output::shortened(Some(of.as_bytes()), PAYLOAD_SHOWN);
            match (of, base64) {
                (Some(of), _) => row(name, short(of)),
                (None, Some(base64)) => row(&format!("{name} (base64)"), short(base64)),
                (None, None) if none.is_empty() => {}
                (None, None) => row(name, none.to_owned()),
            }
        };
        either("key", &payload.key, &payload.key_b64, "");
        for header in &payload.headers {
            let name = format!("header {}", text(&header.name));
            either(&name, &header.value, &header.value_b64, "no value");
        }
        either("sends", &payload.body, &payload.body_b64, "no body");
    }
    table.trim_fmt()
}

/// Why it has failed, and what to do. `code` is fit to be shown.
fn what_to_do(task: &TaskView, code: &str) -> String {
    let id = text(&task.task_id);
    let dead_letter = format!("its dead letter says why: waterclock dead list --code {code}");
    let run = TaskId::parse(&task.task_id).ok().and_then(|id| Some(id.as_shard()?.0));
    match (run, &task.last) {
        _ if task.task_type == RUN => format!("it is a run: waterclock runs get {id}"),
        _ if task.task_status == TaskStatus::Expired => "its expires_at was over".to_owned(),
        (None, Some(_)) => format!("to have it called again: waterclock task retry {id}"),
        (None, None) => {
            format!("{dead_letter}; once that is mended: waterclock task retry {id}")
        }
        (Some(run), Some(_)) => format!(
            "to have it called again: waterclock task retry {id}; once its run has ended: waterclock runs retry {run}"
        ),
        (Some(run), None) => format!(
            "{dead_letter}; once that is mended, and its run has ended: waterclock runs retry {run}"
        ),
    }
}

/// A length of time.
pub(in crate::cli) fn length(of: &Length) -> String {
    match of {
        Length::Seconds(seconds) => Millis(seconds.saturating_mul(1_000)).to_string(),
        Length::Text(length) => text(length),
    }
}

/// How often a task is tried again, and when, in a line.
pub(in crate::cli) fn retries(retry: &RetryInfo) -> String {
    let RetryInfo { count, interval, backoff, max_interval, jitter } = retry;
    let Some(count) = count.filter(|count| *count > 0) else { return "none".to_owned() };
    let is_doubled = backoff.as_deref() == Some("exponential");
    let mut parts = vec![format!("{count} after a failure")];
    parts.extend(interval.as_ref().map(|interval| match is_doubled {
        true => format!("{} after the first, and twice as long each time", length(interval)),
        false => format!("each {} later", length(interval)),
    }));
    let longest = max_interval.as_ref().filter(|_| is_doubled);
    parts.extend(longest.map(|longest| format!("at most {}", length(longest))));
    let jitter = jitter.filter(|jitter| *jitter > 0.0);
    parts.extend(jitter.map(|jitter| format!("up to {jitter} of that less by chance")));
    parts.join(", ")
}

/// What a task calls, in a line.
fn callee(task: &TaskView) -> Option<String> {
    if task.task_type == "grpc" {
        let of_service =
            || task.named_service.as_ref().map(|name| format!("service {}", text(name)));
        let address = task.host.as_deref().map(text).or_else(of_service)?;
        let service = task.service.as_deref().unwrap_or_default();
        let method = task.method.as_deref().unwrap_or_default();
        let tls = if task.tls == Some(true) { " with TLS" } else { "" };
        return Some(format!("{}/{} of {address}{tls}", text(service), text(method)));
    }
    let of_service = || {
        let path = task.path.as_deref().unwrap_or_default();
        task.service.as_ref().map(|service| format!("service {} {}", text(service), text(path)))
    };
    let address = task.url.as_deref().map(text).or_else(of_service)?;
    let method = task.method.as_deref().unwrap_or_default();
    Some(format!("{} {}", text(method), address.trim_end()))
}

/// What became of an attempt, in a line.
fn said(attempt: &Attempt) -> String {
    let status = attempt.status.map(|status| status.to_string());
    let error = attempt.error.as_deref().map(text);
    let parts = [Some(text(&attempt.outcome)), status, error];
    parts.into_iter().flatten().collect::<Vec<_>>().join(" ")
}

/// Attempts, a line each. How far they came is shown if an executor has said it of one of them.
pub(super) fn attempts(attempts: &[Attempt]) -> String {
    let mut table = table::fitted();
    let is_said = attempts.iter().any(|of| of.percent.is_some() || of.cursor.is_some());
    let heads = ["turn", "started", "ended", "outcome", "status", "error", "worker"];
    let far = ["done", "cursor"];
    table.set_header(heads.into_iter().chain(far.into_iter().filter(|_| is_said)));
    let word = |value: Option<&String>| value.map_or_else(|| "-".to_owned(), |value| text(value));
    table.add_rows(attempts.iter().map(|attempt| {
        let far = [
            attempt.percent.map_or_else(|| "-".to_owned(), |percent| format!("{percent} %")),
            word(attempt.cursor.as_ref()),
        ];
        let row = [
            attempt.turn.to_string(),
            time(attempt.started),
            time(attempt.ended),
            text(&attempt.outcome),
            attempt.status.map_or_else(|| "-".to_owned(), |status| status.to_string()),
            word(attempt.error.as_ref()),
            word(attempt.worker.as_ref()),
        ];
        row.into_iter().chain(far.into_iter().filter(|_| is_said)).collect::<Vec<_>>()
    }));
    table.trim_fmt()
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    /// Without the blanks that align columns.
    fn words(line: &str) -> String {
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// A task as an instance tells it, with these members besides.
    fn told(more: Value) -> String {
        let mut all = json!({
            "task_id": "9f2c", "task_type": "http", "task_status": "ready", "project": "shop", "group": "orders",
            "trigger_at": 1_767_225_600_000_u64, "created_at": 1_767_225_500_000_u64, "method": "POST",
            "url": "http://a.example/x", "turn": 1, "attempts_total": 1, "failures": 1, "rounds": 0,
        });
        all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let shown = whole(&serde_json::from_value(all).expect("a task"));
        shown.lines().map(|line| words(line) + "\n").collect()
    }

    #[test]
    fn a_task_says_what_it_waits_for_and_whether_its_cancel_is_decided() {
        let plain = told(json!({}));
        assert!(!plain.contains("cancel") && !plain.contains("waits for"), "{plain}");
        let paused = told(json!({"waits_for": "paused", "paused_by": ["project", "service"]}));
        assert!(paused.contains("waits for paused (project, service)"), "{paused}");
        let cancelling = told(json!({"cancelling": true}));
        assert!(cancelling.contains("cancel written, and not decided yet"), "{cancelling}");
        let reports = told(json!({"feedback": {"deadline": "1h", "heartbeat": 30}}));
        assert!(reports.contains("reports within 1h, heartbeats within 30s\n"), "{reports}");
        let expires = told(json!({"expires_at": 1_767_225_600_000_u64}));
        assert!(expires.contains("expires 2026-01-01T00:00:00.000Z\n"), "{expires}");
        let nominal = told(json!({"nominal_at": 1_767_225_600_000_u64}));
        assert!(nominal.contains("nominal time 2026-01-01T00:00:00.000Z\n"), "{nominal}");
        assert!(!plain.contains("nominal"), "{plain}");
        let tells = told(json!({"on_result": {"service": "billing"}, "follow_up": "k17"}));
        assert!(tells.contains("tells service billing\ntold by k17\n"), "{tells}");
        let polls = told(json!({
            "poll": {"interval": 90, "rounds": 5}, "timeout": "1m30s", "expect": "2xx,404", "headers": [["a", "b"]],
        }));
        for line in [
            "header a=b",
            "timeout 1m30s",
            "done by status 2xx,404",
            "polls each 1m30s, at most 5 times",
        ] {
            assert!(polls.lines().any(|of| of == line), "{line}: {polls}");
        }
        let failed = told(
            json!({"task_status": "failed", "code": "unexpected_status", "last": {"turn": 1, "outcome": "failed", "status": 500}}),
        );
        assert!(failed.contains("waterclock task retry 9f2c"), "{failed}");
        assert!(failed.contains("last failed 500\n"), "{failed}");
        let refused =
            told(json!({"task_status": "failed", "code": "bad_partition", "attempts_total": 0}));
        assert!(refused.contains("dead list --code bad_partition; once"), "{refused}");
        assert!(refused.contains("waterclock task retry 9f2c"), "{refused}");
        // A shard that was refused is not created again by itself, and a run has commands of its own.
        let shard = "r.9f2c.1801353600012-42.7";
        let refused =
            told(json!({"task_id": shard, "task_status": "failed", "code": "target_denied"}));
        assert!(refused.contains("dead list --code target_denied; once"), "{refused}");
        assert!(refused.contains("waterclock runs retry 9f2c)"), "{refused}");
        assert!(!refused.contains("task retry"), "{refused}");
        let last = json!({"turn": 1, "outcome": "failed", "status": 500});
        let failed = told(
            json!({"task_id": shard, "task_status": "failed", "code": "task_failed", "last": last}),
        );
        assert!(failed.contains(&format!("waterclock task retry {shard}; once")), "{failed}");
        let run = told(json!({"task_type": "run", "task_status": "failed", "code": "task_failed"}));
        assert!(run.contains("task_failed (it is a run: waterclock runs get 9f2c)"), "{run}");
        let done = told(
            json!({"task_status": "finished", "last": {"turn": 0, "outcome": "failed", "error": "target_missing"}}),
        );
        assert!(done.contains("last failure failed target_missing\n"), "{done}");
        let works = told(
            json!({"task_status": "running", "last": {"turn": 1, "outcome": "started", "cursor": "row:7", "percent": 70}}),
        );
        assert!(works.contains("last started\ndone so far 70 %\ncursor row:7\n"), "{works}");
        assert!(!failed.contains("interruptions"), "{failed}");
        let expired = told(
            json!({"task_status": "expired", "code": "expired", "last": {"turn": 1, "outcome": "failed", "status": 500}}),
        );
        assert!(expired.contains("expired (its expires_at was over)"), "{expired}");
        assert!(!expired.contains("task retry"), "{expired}");
        let lost = told(json!({"interruptions": 2}));
        assert!(
            lost.contains("interruptions 2 (a worker was lost, and may have called)"),
            "{lost}"
        );
    }

    #[test]
    fn a_task_says_how_often_it_is_tried_again_and_when() {
        let told = |retry| told(json!({"retry": retry}));
        let fixed =
            told(json!({"count": 3, "interval": 5, "backoff": "fixed", "max_interval": "1h"}));
        assert!(fixed.contains("retries 3 after a failure, each 5s later\n"), "{fixed}");
        let doubled = told(
            json!({"count": 8, "interval": "1m30s", "backoff": "exponential", "max_interval": 3_600, "jitter": 0.25}),
        );
        let want = "retries 8 after a failure, 1m30s after the first, and twice as long each time, at most 1h, \
                    up to 0.25 of that less by chance\n";
        assert!(doubled.contains(want), "{doubled}");
        assert!(told(json!({"count": 0, "interval": 5})).contains("retries none\n"));
        assert!(!self::told(json!({})).contains("retries"));
    }

    #[test]
    fn attempts_of_executors_say_how_far_they_came() {
        let one = Attempt { turn: 1, outcome: "failed".to_owned(), ..Attempt::default() };
        assert!(!attempts(std::slice::from_ref(&one)).contains("cursor"));
        let far =
            Attempt { percent: Some(70), cursor: Some("row:7".to_owned()), turn: 2, ..one.clone() };
        let lines: Vec<String> = attempts(&[one, far]).lines().map(words).collect();
        assert!(lines[0].ends_with("worker done cursor"), "{lines:?}");
        assert!(lines[1].ends_with("- - -") && lines[2].ends_with("- 70 % row:7"), "{lines:?}");
    }

    #[test]
    fn what_a_task_sends_is_shown_as_text_or_as_base64() {
        let told = |payload| told(json!({"payload": payload}));
        assert!(told(json!({"body": "hello"})).contains("sends hello\n"));
        assert!(told(json!({"body_b64": "AAE="})).contains("sends (base64) AAE="));
        assert!(told(json!({"key": "k"})).contains("no body"));
        let headers =
            json!([{"name": "h", "value": "1"}, {"name": "b", "value_b64": "AAE="}, {"name": "n"}]);
        let shown = told(json!({"key": "k", "headers": headers}));
        assert!(
            shown.contains("header h 1\nheader b (base64) AAE=\nheader n no value\n"),
            "{shown}"
        );
    }
}
