use super::*;

fn read_all(records: &[(&str, Option<&str>)]) -> Result<Meta, Error> {
    let mut reading = Reading::new();
    for (offset, (key, value)) in (0..).zip(records) {
        reading.record(offset, Some(key.as_bytes()), value.map(str::as_bytes));
    }
    reading.finish("ns.meta")
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
    let secret = Secret::random().unwrap();
    let values = [Value::Ladder(ladder()), Value::Secret(secret.clone())];
    let texts: Vec<String> = values.iter().map(Value::encode).collect();
    let records: Vec<_> =
        values.iter().zip(&texts).map(|(value, text)| (value.key(), Some(text.as_str()))).collect();
    assert_eq!(read_all(&records).unwrap(), Meta { ladder: Some(ladder()), secret: Some(secret) });
    assert_eq!(texts[0], r#"{"draining":["500ms"],"holds":["1s","1m30s"],"lanes":6,"version":1}"#);
}

#[test]
fn the_last_readable_value_counts_and_strangers_are_passed_over() {
    let good = Value::Ladder(ladder()).encode();
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
        ("newer, then ours again",     &[("ladder", Some(r#"{"version":2}"#)), ("ladder", Some(&good))], Some(6)),
    ];
    for (why, records, lanes) in cases {
        let meta = read_all(records).unwrap();
        assert_eq!(meta.ladder.map(|ladder| ladder.lanes), lanes, "{why}");
    }
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
    let meta = Meta { ladder: None, secret: Some(secret.clone()) };
    assert_eq!(format!("{meta:?}"), "Meta { ladder: None, secret: Some(Secret(..)) }");
    assert_eq!(format!("{:?}", Value::Secret(secret)), "Secret(Secret(..))");
}
