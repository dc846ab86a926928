//! Retries of tasks by hand, and what tasks send, as the API says it.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

use super::{TasksOfInstance, failure};
use crate::api::runs::NOT_ENDED;
use crate::api::tasks::Failure;
use crate::api::tasks::model::{Payload, PayloadHeader, TaskStatus, TaskView};
use crate::engine::task::id::TaskId;
use crate::engine::timers::{Base64, TaskPayload, TaskRetry, TimerState};

impl TasksOfInstance {
    /// Has a task called now, and gives it back as it is then.
    pub(super) async fn call_now(&self, id: &TaskId) -> Result<TaskView, Failure> {
        let lane = id.lane_of(self.service()?.lanes());
        let end = self.owners.retry(lane.0, id).await.map_err(failure)?;
        let is_outrun = end == TaskRetry::Superseded;
        if let Some(failure) = refused(id, end) {
            return Err(failure);
        }
        let task = self.task(id).await?.ok_or(Failure::NoTask)?;
        let has_ended = !matches!(
            task.task_status,
            TaskStatus::Delay | TaskStatus::Ready | TaskStatus::Running
        );
        if is_outrun && has_ended {
            let detail = match &task.code {
                Some(code) => format!(
                    "it ended meanwhile, and says {code}; mend that, and retry it again if it has failed"
                ),
                None => {
                    "it ended meanwhile; look at it, and retry it again if it has failed".to_owned()
                }
            };
            return Err(Failure::NotRetryable(detail));
        }
        Ok(task)
    }

    /// What a task sends.
    pub(super) async fn sent_by(&self, id: &TaskId) -> Result<Option<Payload>, Failure> {
        let lane = id.lane_of(self.service()?.lanes());
        let payload = self.owners.payload(lane.0, id).await.map_err(failure)?;
        Ok(payload.map(shown))
    }
}

/// Why a task is not retried; `None`: it is due now, or somebody was faster.
fn refused(id: &TaskId, end: TaskRetry) -> Option<Failure> {
    let not = |detail: &str| Some(Failure::NotRetryable(detail.to_owned()));
    match end {
        TaskRetry::Due | TaskRetry::Superseded => None,
        TaskRetry::Absent => Some(Failure::NoTask),
        TaskRetry::Held => not("it was given to the workers; wait for what comes of that turn, or cancel it. If nothing comes, `waterclock doctor` says whether a worker runs"),
        TaskRetry::Open => not(NOT_ENDED),
        TaskRetry::Ended(TimerState::Cancelled) => {
            not("it was cancelled, and its payload is gone; create the task again, with another request id")
        }
        TaskRetry::Ended(TimerState::Expired) => {
            not("its time to expire was over; create the task again, with a later one and another request id")
        }
        TaskRetry::Ended(_) => not("it is finished; to do it once more, create another task"),
        TaskRetry::Gone => {
            let detail = "it has failed, and its payload stands in no dead letter any more; create the task again, with another request id";
            Some(Failure::PayloadGone(detail.to_owned()))
        }
        TaskRetry::Refused(code) => {
            Some(Failure::NotRetryable(format!(
                "it may not be called ({code}): its project was deleted, or its topic is not allowed; mend that, and retry it again"
            )))
        }
        TaskRetry::Unborn(code) => Some(Failure::NotRetryable(match id.as_shard() {
            Some((run, ..)) => format!(
                "it was refused when its run created it ({code}); mend that, and once the run has ended, have it made anew: `waterclock runs retry {run}`"
            ),
            None => format!(
                "it was refused when it was created ({code}); mend that, and create it again, with the same request id if it had one"
            ),
        })),
        TaskRetry::Pending => Some(Failure::Unknown(
            "the retry is written, and its lane has not decided it yet; look at the task, or retry it again"
                .to_owned(),
        )),
    }
}

fn shown(payload: TaskPayload) -> Payload {
    let TaskPayload { key, value, headers } = payload;
    let text = |bytes: Option<Base64>| text(bytes.as_ref().map(|Base64(bytes)| &bytes[..]));
    let header = |(name, value): (String, Option<Base64>)| {
        let (value, value_b64) = text(value);
        PayloadHeader { name, value, value_b64 }
    };
    let ((body, body_b64), (key, key_b64)) = (text(value), text(key));
    let headers = headers.into_iter().map(header).collect();
    Payload { body, body_b64, key, key_b64, headers }
}

/// Bytes as text, or else in base64.
pub(super) fn text(bytes: Option<&[u8]>) -> (Option<String>, Option<String>) {
    let Some(bytes) = bytes else { return (None, None) };
    match std::str::from_utf8(bytes) {
        Ok(text) => (Some(text.to_owned()), None),
        Err(_) => (None, Some(BASE64_STANDARD.encode(bytes))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Record;

    #[test]
    fn who_cannot_retry_a_task_is_told_what_to_do() {
        let of = |id: &str, end| match refused(&TaskId::parse(id).expect("an id"), end) {
            Some(Failure::NotRetryable(detail)) => ("not_retryable", detail),
            Some(Failure::PayloadGone(detail)) => ("payload_gone", detail),
            Some(Failure::Unknown(detail)) => ("unknown", detail),
            Some(Failure::NoTask) => ("none", String::new()),
            None => ("", String::new()),
            Some(other) => panic!("{other:?}"),
        };
        #[rustfmt::skip]
        let cases = [
            (TaskRetry::Due,                          "",              ""),
            (TaskRetry::Unborn("target_denied".into()), "not_retryable", "with the same request id"),
            (TaskRetry::Superseded,                   "",              ""),
            (TaskRetry::Absent,                       "none",          ""),
            (TaskRetry::Held,                         "not_retryable", "wait"),
            (TaskRetry::Open,                         "not_retryable", "it has not ended"),
            (TaskRetry::Ended(TimerState::Cancelled), "not_retryable", "create the task again"),
            (TaskRetry::Ended(TimerState::Expired),   "not_retryable", "a later one"),
            (TaskRetry::Ended(TimerState::Delivered), "not_retryable", "create another"),
            (TaskRetry::Gone,                         "payload_gone",  "create the task again"),
            (TaskRetry::Refused("task_failed".into()), "not_retryable", "task_failed"),
            (TaskRetry::Pending,                      "unknown",       "retry it again"),
        ];
        for (end, code, part) in cases {
            let (found, detail) = of("9f2c", end.clone());
            assert_eq!(found, code, "{end:?}");
            assert!(detail.contains(part), "{detail}");
        }
        // A shard is not created by a request.
        let refused = TaskRetry::Unborn("target_denied".into());
        let (code, detail) = of("r.9f2c.1801353600012-42.7", refused);
        assert_eq!(code, "not_retryable");
        assert!(detail.ends_with("`waterclock runs retry 9f2c`"), "{detail}");
    }

    #[test]
    fn a_payload_is_shown_as_text_where_it_is_text() {
        let headers: [(&[u8], Option<&[u8]>); 3] =
            [(b"a", Some(b"1")), (b"b", None), (b"x-delay-id", Some(b"9f"))];
        let record = Record::new(Some(b"\xff"), Some(b"{}"), headers.into_iter());
        let found = shown(TaskPayload::of(&record));
        assert_eq!((found.body.as_deref(), found.body_b64), (Some("{}"), None));
        assert_eq!((found.key, found.key_b64.as_deref()), (None, Some("/w==")));
        let headers: Vec<_> =
            found.headers.iter().map(|of| (&*of.name, of.value.as_deref())).collect();
        assert_eq!(headers, [("a", Some("1")), ("b", None)]);
    }
}
