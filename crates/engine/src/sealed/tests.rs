use super::*;
use crate::Offset;

/// Where a dispatch stands, and when it was appended there.
const AT: (Lane, UnixMillis) = (Lane(4), UnixMillis(8_020));

fn key() -> StateKey {
    StateKey::new([7; 32])
}

fn spec() -> Spec {
    let json = br#"{"type":"http","project":"shop","group":"g","url":"http://a.example:81/x","timeout":"3s"}"#;
    Spec::parse(json).expect("sound")
}

/// The record of a turn, as a lane makes it of a submission.
fn dispatched(record: &Record, turn: u32) -> Record {
    let directive = header::read(record.headers()).expect("of the contract");
    let (state, task) = opened(&directive, record.key(), &key(), Kind::Submit).expect("a submit");
    let order = SubmissionOrder { appended: UnixMillis(5_050), offset: Offset(42) };
    let task = Some(TaskState { turn, attempt: 2, round: 3, ..task });
    let first_appended = UnixMillis(5_050);
    let intake = Dispatched { partition: AT.0, at: UnixMillis(8_000) }.to_word();
    let state = State { kind: Kind::Work, first_appended, order, task, intake, ..state };
    let sealed = state.seal(&key(), &directive.bound(record.key()));
    let kept = record.headers().filter(|(name, _)| *name != header::STATE.as_bytes());
    let ours = [(header::STATE.as_bytes(), Some(sealed.as_ref()))];
    Record::new(record.key(), record.value(), kept.chain(ours))
}

fn submitted() -> Record {
    let id = TaskId::of_request("shop", "o-17", None).expect("sound");
    let headers = [("content-language".to_owned(), Some(b"de".to_vec()))];
    let spec = spec();
    let submission = Submission {
        id: &id,
        spec: &spec,
        due: UnixMillis(9_000),
        expires: Some(UnixMillis(99_000)),
        key: None,
        value: Some(b"body"),
        headers: &headers,
    };
    submit(&key(), UnixMillis(5_000), &submission)
}

fn headers(record: &Record) -> Vec<String> {
    record.headers().map(|(name, _)| String::from_utf8_lossy(name).into_owned()).collect()
}

#[test]
fn a_task_says_when_it_expires_to_who_reads_its_specification() {
    let record = submitted();
    let text = record.headers().find(|(name, _)| *name == header::TASK.as_bytes());
    let written = text.and_then(|(_, value)| Spec::parse(value?).ok()).expect("a specification");
    assert_eq!(written, spec().with_expires(Some(UnixMillis(99_000))));
}

#[test]
fn a_task_goes_to_a_worker_and_its_result_comes_back_as_it_was_sealed() {
    let id = TaskId::of_request("shop", "o-17", None).expect("sound");
    let record = dispatched(&submitted(), 4);
    let Ok(Work::Task(task)) = read_work(&key(), 6, AT, record) else { panic!("a task") };
    assert_eq!(task.turn.name, TimerId::task(&id));
    assert_eq!(task.turn.turn, 4);
    assert_eq!(task.lane, id.lane_of(6));
    assert_eq!(task.scope.callee, Callee::Host("a.example:81".into()));
    assert_eq!(
        (task.sealed.due, task.sealed.attempt, task.sealed.round),
        (UnixMillis(9_000), 2, 3)
    );
    assert_eq!(task.sealed.digest, digest(&task.record), "what a user gave is as it was");
    assert_eq!((task.sealed.dispatched, task.sealed.appended), (UnixMillis(8_000), AT.1));

    let failed =
        Said::Ended(Box::new(TaskResult { status: Some(503), ..TaskResult::new(Outcome::Failed) }));
    let cases = [
        (failed, true),
        (Said::Started(UnixMillis(1)), false),
        (Said::Deferred { until: UnixMillis(7), breaker: true }, true),
        (Said::Interrupted { in_doubt: true }, true),
        (Said::Cancelled, false),
    ];
    for (said, has_payload) in cases {
        let record = result_record(&key(), &task, &said, "w1", Form::Whole);
        assert_eq!(record.value().is_some(), has_payload, "{said:?}");
        assert_eq!(
            headers(&record).contains(&"content-language".to_owned()),
            has_payload,
            "{said:?}"
        );
        let directive = header::read(record.headers()).expect("of the contract");
        let (state, of) = opened(&directive, None, &key(), Kind::Result).expect("a result");
        assert_eq!((of.turn, state.order.offset), (4, Offset(42)));
        let result = TaskResult::parse(directive.result.expect("a result")).expect("legal");
        assert_eq!(result, result_of(&said, "w1", Form::Whole));
        assert_eq!(result.worker.as_deref(), Some("w1"));
        if has_payload {
            assert_eq!(digest(&record), of.digest, "the body is as it was");
        }
    }
}

#[test]
fn a_cancel_is_about_its_turn() {
    let id = TaskId::of_request("shop", "o-17", None).expect("sound");
    let version = Version { first_appended: UnixMillis(5_050), offset: Offset(42) };
    let turn = Turn { name: TimerId::task(&id), version, turn: 4 };
    let note = cancel_note(&key(), turn, id.as_str().as_bytes());
    let read = read_work(&key(), 6, AT, note);
    assert!(matches!(read, Ok(Work::Cancel(of, of_id)) if (of, &of_id) == (turn, &id)));
}

#[test]
fn a_worker_that_has_not_a_turn_says_so_for_the_results_only() {
    let id = TaskId::of_request("shop", "o-17", None).expect("sound");
    let version = Version { first_appended: UnixMillis(5_050), offset: Offset(42) };
    let turn = Turn { name: TimerId::task(&id), version, turn: 4 };
    let record = absent_record(&key(), (turn, &id), Lane(3), "w1");
    let directive = header::read(record.headers()).expect("readable");
    let (state, of) = opened(&directive, None, &key(), Kind::Result).expect("a result");
    assert_eq!((of.turn, state.first_appended, state.order.offset.0), (4, UnixMillis(5_050), 42));
    assert_eq!(Dispatched::of_word(state.intake).map(|of| of.partition), Some(Lane(3)));
    assert!(directive.task.is_none(), "nobody has it there");
    let result = TaskResult::parse(directive.result.expect("a result")).expect("legal");
    assert_eq!((result.outcome, result.in_doubt), (Outcome::Interrupted, true));
    assert_eq!(result.worker.as_deref(), Some("w1"));
    assert!(read_work(&key(), 6, AT, record).is_err(), "it is no work");
}

#[test]
fn what_is_not_sealed_for_the_topic_is_refused() {
    let id = TaskId::of_request("shop", "o-17", None).expect("sound");
    let work = dispatched(&submitted(), 1);
    let Ok(Work::Task(task)) = read_work(&key(), 6, AT, work.clone()) else { panic!("a task") };
    let with = |name: &'static str, value: &'static [u8]| {
        let headers = work.headers().map(move |(found, old)| {
            (found, if found == name.as_bytes() { Some(value) } else { old })
        });
        Record::new(None, work.value(), headers)
    };
    let of_another_key = StateKey::new([8; 32]);
    let said: (&[u8], Option<&[u8]>) =
        (header::RESULT.as_bytes(), Some(br#"{"outcome":"started","cursor":"x"}"#));
    let action: (&[u8], Option<&[u8]>) = (header::ACTION.as_bytes(), Some(b"cancel"));
    let cases = [
        ("a cancel", Record::new(None, None, work.headers().chain([action]))),
        ("a submission", submitted()),
        ("a cancel of a submission", cancel(&key(), UnixMillis(0), &id)),
        ("a result", result_record(&key(), &task, &Said::Cancelled, "w", Form::Whole)),
        ("another id", with(header::ID, b"0123456789abcdef0123456789abcdef")),
        ("another specification", with(header::TASK, b"{}")),
        ("a cursor", Record::new(None, work.value(), work.headers().chain([said]))),
        ("another key", Record::new(Some(b"k"), work.value(), work.headers())),
        ("nothing", Record::new(None, Some(b"x"), std::iter::empty())),
        ("another namespace", cancel(&of_another_key, UnixMillis(0), &id)),
    ];
    for (why, record) in cases {
        assert!(read_work(&key(), 6, AT, record).is_err(), "{why}");
    }
    let elsewhere = read_work(&key(), 6, (Lane(3), AT.1), work).map_err(|(_, refusal)| refusal);
    assert_eq!(
        elsewhere.expect_err("another partition").detail,
        "it was dispatched to partition 4"
    );
}
