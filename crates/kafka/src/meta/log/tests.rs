use super::*;

fn read_all(records: &[(&str, Option<&str>)]) -> Result<Meta, Error> {
    let mut reading = Reading::new();
    for (offset, (key, value)) in (0..).zip(records) {
        reading.record(offset, Some(key.as_bytes()), value.map(str::as_bytes));
    }
    reading.found("ns.meta")
}

fn ladder() -> LadderInForce {
    LadderInForce {
        lanes: 6,
        holds: vec![Millis(1_000), Millis(90_000)],
        draining: vec![Millis(500)],
    }
}

#[test]
fn what_is_written_is_read_back() {
    let began = LadderInForce { lanes: 6, holds: vec![Millis::HOUR], draining: vec![] };
    let first = Value::first(began.clone(), false).unwrap();
    let Value::First { secret, .. } = first.clone() else { panic!("{first:?}") };
    let (key, text) = (first.key(), first.encode());
    let begun = [(key.as_str(), Some(text.as_str()))];
    let meta = Meta { ladder: Some(began), secret: Some(secret.clone()), ..Meta::default() };
    assert_eq!(read_all(&begun).unwrap(), meta);
    assert!(text.starts_with(r#"{"holds":["1h"],"key":""#), "{text}");
    assert!(text.ends_with(r#"","lanes":6,"version":1}"#), "{text}");

    let later = Value::Ladder { ladder: ladder(), tasks: false };
    let text = later.encode();
    let meta = read_all(&[begun[0], ("ladder", Some(&text))]).unwrap();
    assert_eq!(meta, Meta { ladder: Some(ladder()), secret: Some(secret), ..Meta::default() });
    assert_eq!(text, r#"{"draining":["500ms"],"holds":["1s","1m30s"],"lanes":6,"version":1}"#);
}

#[test]
fn the_first_of_several_starts_counts_whatever_comes_later_and_whatever_compaction_takes() {
    let first = |lanes| {
        let ladder = LadderInForce { lanes, holds: vec![Millis::HOUR], draining: vec![] };
        let first = Value::first(ladder, false).unwrap();
        (first.key(), first.encode())
    };
    let (a, b, c) = (first(3), first(6), first(9));
    let read = |records: &[(i64, &(String, String))]| {
        let mut reading = Reading::new();
        for (offset, (key, text)) in records {
            reading.record(*offset, Some(key.as_bytes()), Some(text.as_bytes()));
        }
        reading.found("ns.meta").unwrap()
    };
    let lanes = |meta: &Meta| meta.ladder.as_ref().map(|ladder| ladder.lanes);
    let one = read(&[(4, &a)]);
    assert_eq!(lanes(&one), Some(3));
    assert_eq!(read(&[(4, &a), (5, &b), (9, &c)]), one);
    assert_ne!(read(&[(4, &b), (5, &a)]), one);
    // A key of its own each: compaction, which keeps the last value of a key, keeps each of them at its offset.
    let keys = std::collections::BTreeSet::from([&a.0, &b.0, &c.0]);
    assert_eq!(keys.len(), 3);
    // What an older program has put there under the old keys counts.
    let old = ("secret".to_owned(), format!(r#"{{"version":1,"key":"{}"}}"#, "ab".repeat(32)));
    let meta = read(&[(4, &a), (5, &old)]);
    assert_eq!((lanes(&meta), meta.secret), (Some(3), Some(Secret([0xab; 32]))));
    // A broken one is passed over, unless it is all there is; a newer one is not.
    let broken = (a.0.clone(), "{".to_owned());
    assert_eq!(lanes(&read(&[(4, &broken), (5, &b)])), Some(6));
    let alone = read_all(&[("first/x", Some("{"))]);
    assert!(matches!(alone, Err(Error::Unreadable { key: "first/", .. })), "{alone:?}");
    let beside = read_all(&[(&b.0, Some(&b.1)), ("secret", Some("{")), ("ladder", Some("{"))]);
    assert_eq!(lanes(&beside.unwrap()), Some(6), "what is broken hides nothing");
    let newer = read_all(&[("first/x", Some(r#"{"version":3}"#)), (&b.0, Some(&b.1))]);
    assert!(matches!(newer, Err(Error::Newer { version: 3, .. })), "{newer:?}");
    let after = read_all(&[(&b.0, Some(&b.1)), ("first/x", Some(r#"{"version":3}"#))]);
    assert_eq!(lanes(&after.unwrap()), Some(6));
}

#[test]
fn the_secret_that_is_in_force_is_known_while_records_come() {
    let ladder = || LadderInForce { lanes: 3, holds: vec![Millis::HOUR], draining: vec![] };
    let [a, b] = [(); 2].map(|()| Value::first(ladder(), false).unwrap());
    let secret = |value: &Value| match value {
        Value::First { secret, .. } => secret.clone(),
        _ => panic!("{value:?}"),
    };
    let mut known = SecretInForce::default();
    let mut take = |offset, key: &str, text: &str| {
        known.take(offset, Some(key.as_bytes()), Some(text.as_bytes()));
        known.get()
    };
    assert_eq!(take(0, "member/a", "{}"), None);
    assert_eq!(take(1, &a.key(), &a.encode()), Some(secret(&a)));
    assert_eq!(take(2, &b.key(), &b.encode()), Some(secret(&a)), "the first counts");
    let old = format!(r#"{{"version":1,"key":"{}"}}"#, "ab".repeat(32));
    assert_eq!(take(3, "secret", &old), Some(Secret([0xab; 32])), "an older program's counts");
}

/// One whose first intake was deleted and created again between its question and its write must not say that the later one was
/// first: nor may who writes after another that has begun to work.
#[test]
fn the_first_intake_that_was_noted_stays_the_first_when_another_is_noted_later() {
    let note = |id: &str| {
        let value = Value::intake(id.to_owned()).unwrap();
        (value.key(), value.encode())
    };
    let (a, b) = (note("X"), note("Y"));
    assert_ne!(a.0, b.0, "compaction keeps both");
    let read = |records: &[&(String, String)]| {
        let records: Vec<_> =
            records.iter().map(|(key, text)| (key.as_str(), Some(text.as_str()))).collect();
        read_all(&records).map(|meta| meta.intake)
    };
    assert_eq!(read(&[]).unwrap(), None);
    assert_eq!(read(&[&a, &b]).unwrap().as_deref(), Some("X"));
    assert_eq!(read(&[&b, &a]).unwrap().as_deref(), Some("Y"));
    let broken = (b.0.clone(), "{".to_owned());
    assert_eq!(read(&[&broken, &a]).unwrap().as_deref(), Some("X"));
    assert!(matches!(read(&[&broken]), Err(Error::Unreadable { key: "intake/", .. })));
    // Noted by a program that shared its key, before there were others.
    let old = ("intake".to_owned(), r#"{"version":1,"id":"W"}"#.to_owned());
    assert_eq!(read(&[&a, &old]).unwrap().as_deref(), Some("W"));
}

#[test]
fn the_last_readable_value_counts_and_strangers_are_passed_over() {
    let good = Value::Ladder { ladder: ladder(), tasks: false }.encode();
    let other = good.replace("\"lanes\":6", "\"lanes\":9");
    type Records<'a> = &'a [(&'a str, Option<&'a str>)];
    #[rustfmt::skip]
    let cases: [(&str, Records<'_>, Option<u16>); 10] = [
        ("nothing there",              &[], None),
        ("the last one",               &[("ladder", Some(&good)), ("ladder", Some(&other))], Some(9)),
        ("garbage after it",           &[("ladder", Some(&good)), ("ladder", Some("{"))], Some(6)),
        ("no lanes",                   &[("ladder", Some(&good)), ("ladder", Some(r#"{"version":1,"lanes":0,"holds":["1s"]}"#))], Some(6)),
        ("no holds",                   &[("ladder", Some(&good)), ("ladder", Some(r#"{"version":1,"lanes":3,"holds":[]}"#))], Some(6)),
        ("a hold that is none",        &[("ladder", Some(&good)), ("ladder", Some(r#"{"version":1,"lanes":3,"holds":["soon"]}"#))], Some(6)),
        ("taken away",                 &[("ladder", Some(&good)), ("ladder", None)], None),
        ("a probe and an unknown key", &[("clock-1", Some("x")), ("ladder", Some(&good)), ("?", None)], Some(6)),
        ("what a member says",         &[("ladder", Some(&good)), ("member/a", Some(&other)), ("member/ladder", None)], Some(6)),
        ("newer, then ours again",     &[("ladder", Some(r#"{"version":3}"#)), ("ladder", Some(&good))], Some(6)),
    ];
    for (why, records, lanes) in cases {
        let meta = read_all(records).unwrap();
        assert_eq!(meta.ladder.map(|ladder| ladder.lanes), lanes, "{why}");
    }
}

#[test]
fn tasks_are_in_force_once_somebody_put_them_there() {
    let text = Value::Tasks.encode();
    assert_eq!((Value::Tasks.key().as_str(), text.as_str()), ("tasks", r#"{"version":1}"#));
    let tasks = |records: &[(&str, Option<&str>)]| read_all(records).map(|meta| meta.tasks);
    assert_eq!(tasks(&[]).unwrap(), None);
    assert_eq!(tasks(&[("tasks", Some(&text))]).unwrap(), Some(1));
    assert_eq!(tasks(&[("tasks", Some(&text)), ("tasks", Some("{"))]).unwrap(), Some(1));
    assert_eq!(tasks(&[("tasks", Some(&text)), ("tasks", None)]).unwrap(), None);
    for broken in ["", "{", "{}", r#"{"version":0}"#, r#"{"version":"1"}"#] {
        let read = tasks(&[("tasks", Some(broken))]);
        assert!(matches!(read, Err(Error::Unreadable { key: "tasks", .. })), "{broken}: {read:?}");
    }
    let newer = tasks(&[("tasks", Some(r#"{"version":2}"#))]);
    assert!(matches!(newer, Err(Error::Newer { key: "tasks", version: 2, .. })), "{newer:?}");
    // Others read these.
    let others = [("project/a", Some("{")), ("service/a/b", None), ("target/orders", Some("1"))];
    assert_eq!(read_all(&others).unwrap(), Meta::default());
}

/// A program that knows no tasks would make dead letters of them. It knows version 1 of a ladder.
#[test]
fn a_ladder_with_tasks_has_a_form_that_older_programs_refuse() {
    let ladder = LadderInForce { draining: vec![], ..ladder() };
    for tasks in [false, true] {
        let first = Value::first(ladder.clone(), tasks).unwrap();
        let later = Value::Ladder { ladder: ladder.clone(), tasks };
        for value in [&first, &later] {
            let text = value.encode();
            assert_eq!(text.contains(r#""version":2"#), tasks, "{text}");
            let Value::First { secret, .. } = &first else { panic!("{first:?}") };
            let records =
                [(first.key(), first.encode()), (value.key(), text)].map(|(key, text)| (key, text));
            let records: Vec<_> =
                records.iter().map(|(key, text)| (key.as_str(), Some(text.as_str()))).collect();
            let meta = read_all(&records).unwrap();
            assert_eq!((meta.ladder.as_ref(), meta.secret.as_ref()), (Some(&ladder), Some(secret)));
        }
    }
}

#[test]
fn a_running_member_learns_that_tasks_came_into_force() {
    let mut tasks = TasksInForce::default();
    let mut after = |offset, key: &str, text: Option<&str>| {
        tasks.take(offset, Some(key.as_bytes()), text.map(str::as_bytes));
        tasks.are()
    };
    assert!(!after(0, "tasks/", Some(r#"{"version":1}"#)));
    assert!(!after(1, "tasks", Some("{")));
    assert!(after(2, "tasks", Some(r#"{"version":1}"#)));
    assert!(!after(3, "tasks", None));
    assert!(after(4, "tasks", Some(r#"{"version":9}"#)), "a later version of them");
}

#[test]
fn a_broken_secret_is_not_an_absent_one() {
    for broken in ["", "{", r#"{"version":1,"key":"00"}"#, r#"{"version":1,"key":"é"}"#] {
        let read = read_all(&[("secret", Some(broken))]);
        assert!(
            matches!(read, Err(Error::Unreadable { key: "secret", offset: 0, .. })),
            "{broken}"
        );
    }
    let newer = read_all(&[("secret", Some(r#"{"version":2,"kind":"x"}"#))]);
    assert!(matches!(newer, Err(Error::Newer { version: 2, .. })));
}

#[test]
fn a_secret_is_not_printed() {
    let secret = Secret::random().unwrap();
    assert_ne!(secret, Secret::random().unwrap());
    let meta = Meta { secret: Some(secret), ..Meta::default() };
    assert_eq!(
        format!("{meta:?}"),
        "Meta { ladder: None, secret: Some(Secret(..)), intake: None, tasks: None }"
    );
    let first = format!("{:?}", Value::first(ladder(), false).unwrap());
    assert!(first.contains("secret: Secret(..)"), "{first}");
}
