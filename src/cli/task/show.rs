//! Tasks as tables, for people.

use serde_json::json;

use super::super::{output, table};
use crate::api::tasks::model::{
    Attempt, FeedbackInfo, Length, ResultTo, RetryInfo, TaskStatus, TaskView,
};
use crate::engine::UnixMillis;

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
        let why = match &task.last {
            _ if task.task_status == TaskStatus::Expired => "its expires_at was over".to_owned(),
            Some(_) => {
                format!("to have it called again: waterclock task retry {}", text(&task.task_id))
            }
            None => format!("its dead letter says why: waterclock dead list --code {code}"),
        };
        row("code", format!("{code} ({why})"));
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
        let mut either = |name: &str, of: &Option<String>, base64: &Option<String>| {
            let short = |of: &String| output::shortened(Some(of.as_bytes()), PAYLOAD_SHOWN);
            match (of, base64) {
                (Some(of), _) => row(name, short(of)),
                (None, Some(base64)) => row(&format!("{name} (base64)"), short(base64)),
                (None, None) => {}
            }
        };
        either("key", &payload.key, &payload.key_b64);
        either("sends", &payload.body, &payload.body_b64);
        if payload.body.is_none() && payload.body_b64.is_none() {
            row("sends", "no body".to_owned());
        }
    }
    table.trim_fmt()
}

/// A length of time.
pub(in crate::cli) fn length(of: &Length) -> String {
    match of {
        Length::Seconds(seconds) => format!("{seconds}s"),
        Length::Text(length) => text(length),
    }
}

/// How often a task is tried again, and when, in a line.
fn retries(retry: &RetryInfo) -> String {
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

pub(super) fn attempts(attempts: &[Attempt]) -> String {
    let mut table = table::fitted();
    table.set_header(["turn", "started", "ended", "outcome", "status", "error", "worker"]);
    let word = |value: Option<&String>| value.map_or_else(|| "-".to_owned(), |value| text(value));
    table.add_rows(attempts.iter().map(|attempt| {
        [
            attempt.turn.to_string(),
            time(attempt.started),
            time(attempt.ended),
            text(&attempt.outcome),
            attempt.status.map_or_else(|| "-".to_owned(), |status| status.to_string()),
            word(attempt.error.as_ref()),
            word(attempt.worker.as_ref()),
        ]
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
        let tells = told(json!({"on_result": {"service": "billing"}, "follow_up": "k17"}));
        assert!(tells.contains("tells service billing\ntold by k17\n"), "{tells}");
        let polls = told(json!({
            "poll": {"interval": 90, "rounds": 5}, "timeout": "1m30s", "expect": "2xx,404", "headers": [["a", "b"]],
        }));
        for line in [
            "header a=b",
            "timeout 1m30s",
            "done by status 2xx,404",
            "polls each 90s, at most 5 times",
        ] {
            assert!(polls.lines().any(|of| of == line), "{line}: {polls}");
        }
        let failed = told(
            json!({"task_status": "failed", "code": "unexpected_status", "last": {"turn": 1, "outcome": "failed", "status": 500}}),
        );
        assert!(failed.contains("waterclock task retry 9f2c"), "{failed}");
        assert!(failed.contains("last failed 500\n"), "{failed}");
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
        let want = "retries 8 after a failure, 1m30s after the first, and twice as long each time, at most 3600s, \
                    up to 0.25 of that less by chance\n";
        assert!(doubled.contains(want), "{doubled}");
        assert!(told(json!({"count": 0, "interval": 5})).contains("retries none\n"));
        assert!(!self::told(json!({})).contains("retries"));
    }

    #[test]
    fn what_a_task_sends_is_shown_as_text_or_as_base64() {
        let told = |payload| told(json!({"payload": payload}));
        assert!(told(json!({"body": "hello"})).contains("sends hello\n"));
        assert!(told(json!({"body_b64": "AAE="})).contains("sends (base64) AAE="));
        assert!(told(json!({"key": "k"})).contains("no body"));
    }
}
