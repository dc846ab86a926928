//! The answers about tasks, as the client for Rust reads them. It has types of its own, which pass over what they do not know: without
//! this test the two would drift apart.

use std::time::Duration;

use super::*;
use crate::client::tasks as client;

/// Members of a task that the client keeps as they came, in `more`. A member that is new has to be a field, or stand here.
const KEPT: [&str; 12] = [
    "expect",
    "expires_at",
    "format",
    "headers",
    "interruptions",
    "on_result",
    "paused_by",
    "payload",
    "poll",
    "retry",
    "timeout",
    "tls",
];

fn text(text: &str) -> Option<String> {
    Some(text.to_owned())
}

/// Each member has a value of its own. Written out, so that a new one has to be named here.
fn full() -> TaskView {
    let attempt = Attempt {
        turn: 3,
        started: Some(NOW - 20),
        ended: Some(NOW - 10),
        status: Some(503),
        outcome: "failed".to_owned(),
        error: text("it is down"),
        worker: text("executor-1"),
        response: text("an answer"),
        response_b64: text("/w=="),
        cursor: text("row:7"),
        percent: Some(42),
    };
    TaskView {
        task_id: "h1".to_owned(),
        task_type: "grpc".to_owned(),
        task_status: TaskStatus::Failed,
        outcome: Some(CancelOutcome::Stopped),
        trigger_at: NOW,
        nominal_at: Some(NOW - 2),
        expires_at: Some(NOW + 4),
        project: "shop".to_owned(),
        group: "orders".to_owned(),
        method: text("Expire"),
        url: text("https://a.example/x"),
        service: text("shop.v1.Orders"),
        named_service: text("billing"),
        host: text("a.example:443"),
        tls: Some(true),
        format: text("json"),
        path: text("/expire"),
        timeout: Some(Length::Seconds(5)),
        expect: text("2xx"),
        poll: Some(PollInfo { interval: Length::Seconds(60), rounds: 9 }),
        feedback: Some(FeedbackInfo {
            deadline: Length::Seconds(60),
            heartbeat: Some(Length::Text("2s500ms".to_owned())),
        }),
        headers: vec![("x-a".to_owned(), "b".to_owned())],
        topic: text("work"),
        partition: Some(5),
        request_id: text("o-17"),
        created_at: NOW - 1,
        retry: Some(RetryInfo { count: Some(3), ..RetryInfo::default() }),
        turn: 4,
        attempts_total: 6,
        failures: 7,
        rounds: 8,
        interruptions: 9,
        attempts: vec![attempt.clone()],
        cancelling: true,
        next_at: Some(NOW + 2),
        waits_for: Some(WaitsFor::Breaker),
        paused_by: vec![PausedBy::Project],
        ended_at: Some(NOW + 3),
        code: text("task_failed"),
        last: Some(Attempt { turn: 2, ..attempt }),
        cursor: Some("row:7".to_owned()),
        payload: Some(Payload { body: text("{}"), ..Payload::default() }),
        on_result: Some(ResultTo { topic: text("orders.ended"), ..ResultTo::default() }),
        follow_up: text("k9f"),
    }
}

/// A task of which nothing is known that may be absent.
fn bare() -> TaskView {
    TaskView {
        outcome: None,
        nominal_at: None,
        expires_at: None,
        method: None,
        url: None,
        service: None,
        named_service: None,
        host: None,
        tls: None,
        format: None,
        path: None,
        timeout: None,
        expect: None,
        poll: None,
        feedback: None,
        headers: Vec::new(),
        topic: None,
        partition: None,
        request_id: None,
        retry: None,
        attempts: Vec::new(),
        cancelling: false,
        next_at: None,
        waits_for: None,
        paused_by: Vec::new(),
        ended_at: None,
        code: None,
        last: None,
        cursor: None,
        payload: None,
        on_result: None,
        follow_up: None,
        ..full()
    }
}

fn read(view: &TaskView) -> client::Task {
    serde_json::from_value(json!(view)).expect("the client reads it")
}

#[test]
fn the_client_reads_all_of_a_task() {
    let view = full();
    let shown = json!(view);
    let read = read(&view);
    let kept: Vec<&str> = read.more.keys().map(String::as_str).collect();
    assert_eq!(kept, KEPT);
    for name in KEPT {
        assert_eq!(read.more[name], shown[name], "{name}");
    }

    assert_eq!((&read.task_id, &read.task_type), (&view.task_id, &view.task_type));
    assert_eq!(read.task_status, client::TaskStatus::Failed);
    assert_eq!(read.outcome, Some(client::CancelOutcome::Stopped));
    assert_eq!((&read.project, &read.group), (&view.project, &view.group));
    assert_eq!((&read.method, &read.url, &read.path), (&view.method, &view.url, &view.path));
    assert_eq!((&read.service, &read.named_service), (&view.service, &view.named_service));
    assert_eq!((&read.host, &read.request_id), (&view.host, &view.request_id));
    assert_eq!((&read.topic, read.partition), (&view.topic, view.partition));
    assert_eq!((read.trigger_at, read.created_at), (view.trigger_at, view.created_at));
    assert_eq!((read.next_at, read.ended_at), (view.next_at, view.ended_at));
    assert_eq!(read.nominal_at, view.nominal_at);
    assert_eq!((read.turn, read.attempts_total), (view.turn, view.attempts_total));
    assert_eq!((read.failures, read.rounds), (view.failures, view.rounds));
    assert_eq!((read.cancelling, read.waits_for.as_deref()), (true, Some("breaker")));
    assert_eq!((&read.code, &read.follow_up), (&view.code, &view.follow_up));
    assert_eq!(read.cursor, view.cursor);
    let feedback = read.feedback.expect("it has feedback");
    assert_eq!(feedback.deadline, Duration::from_secs(60));
    assert_eq!(feedback.heartbeat, Some(Duration::from_millis(2_500)));

    let last = read.last.expect("it has a last attempt");
    assert_eq!((read.attempts.len(), read.attempts[0].turn, last.turn), (1, 3, 2));
    let mut first = read.attempts[0].clone();
    first.turn = 2;
    assert_eq!(first, last);
    let made = view.last.expect("it has one");
    assert_eq!(last.more.keys().collect::<Vec<_>>(), ["response_b64"]);
    assert_eq!(last.more["response_b64"], "/w==");
    assert_eq!((last.started, last.ended, last.status), (made.started, made.ended, made.status));
    assert_eq!((last.outcome, last.error, last.worker), (made.outcome, made.error, made.worker));
    assert_eq!((last.response, last.cursor), (made.response, made.cursor));
    assert_eq!(last.percent, made.percent);
}

#[test]
fn the_client_reads_a_task_of_which_little_is_known() {
    let mut view = bare();
    let read_bare = read(&view);
    // What is always shown, be it a number or empty.
    assert_eq!(read_bare.more.keys().collect::<Vec<_>>(), ["interruptions"]);
    assert_eq!((read_bare.outcome, read_bare.next_at, read_bare.ended_at), (None, None, None));
    assert_eq!((read_bare.feedback, read_bare.last, read_bare.waits_for), (None, None, None));
    assert_eq!((read_bare.code, read_bare.follow_up), (None, None));
    assert_eq!((read_bare.cancelling, read_bare.attempts.len()), (false, 0));
    assert_eq!((read_bare.url, read_bare.host, read_bare.topic), (None, None, None));

    view.feedback = Some(FeedbackInfo { deadline: Length::Seconds(9), heartbeat: None });
    view.attempts = vec![Attempt { turn: 1, outcome: "gone".to_owned(), ..Attempt::default() }];
    let read = read(&view);
    let feedback = read.feedback.expect("it has feedback");
    assert_eq!((feedback.heartbeat, feedback.period()), (None, Duration::from_secs(9)));
    assert_eq!((read.attempts[0].status, read.attempts[0].more.len()), (None, 0));
}

#[test]
fn the_client_knows_every_type_and_every_word() {
    // What a task is created as is what it is shown as.
    for task in [
        AnyTask::Http(HttpTask::default()),
        AnyTask::Kafka(KafkaTask::default()),
        AnyTask::Grpc(GrpcTask::default()),
    ] {
        let shown = json!(task)["type"].as_str().expect("a word").to_owned();
        assert_eq!(read(&TaskView { task_type: shown.clone(), ..bare() }).task_type, shown);
    }
    for status in TaskStatus::ALL {
        let read = read(&TaskView { task_status: status, ..bare() }).task_status;
        assert!(!matches!(read, client::TaskStatus::Other(_)), "{status:?}");
        assert_eq!((read.as_str(), read.is_final()), (status.as_str(), status.is_final()));
    }
    let outcomes = [
        (CancelOutcome::Cancelled, client::CancelOutcome::Cancelled),
        (CancelOutcome::Stopped, client::CancelOutcome::Stopped),
        (CancelOutcome::Finished, client::CancelOutcome::Finished),
        (CancelOutcome::Failed, client::CancelOutcome::Failed),
        (CancelOutcome::Expired, client::CancelOutcome::Expired),
        (CancelOutcome::Pending, client::CancelOutcome::Pending),
    ];
    for (outcome, want) in outcomes {
        // A word that is new has to stand above.
        match outcome {
            CancelOutcome::Cancelled
            | CancelOutcome::Stopped
            | CancelOutcome::Finished
            | CancelOutcome::Failed
            | CancelOutcome::Expired
            | CancelOutcome::Pending => {}
        }
        assert_eq!(read(&TaskView { outcome: Some(outcome), ..bare() }).outcome, Some(want));
    }
    let reported = [
        (ReportOutcome::Finished, client::Reported::Finished),
        (ReportOutcome::Retrying, client::Reported::Retrying),
        (ReportOutcome::Failed, client::Reported::Failed),
        (ReportOutcome::Cancelled, client::Reported::Cancelled),
    ];
    for (outcome, want) in reported {
        match outcome {
            ReportOutcome::Finished
            | ReportOutcome::Retrying
            | ReportOutcome::Failed
            | ReportOutcome::Cancelled => {}
        }
        let shown = json!(ReportAnswer { outcome });
        let read: client::Reported =
            serde_json::from_value(shown["outcome"].clone()).expect("the client reads it");
        assert_eq!(read, want);
    }
}

#[test]
fn the_client_reads_what_was_created() {
    let shown = json!(Created { task_id: "h1".to_owned(), trigger_at: NOW });
    let read: client::Created = serde_json::from_value(shown).expect("the client reads it");
    assert_eq!((&*read.task_id, read.trigger_at), ("h1", NOW));
}
