use proptest::prelude::*;

use super::*;

/// What is wrong with a document, and whether there is something to read in it.
fn read(json: &[u8]) -> (bool, Vec<String>) {
    let mut wrongs = Wrongs::default();
    let map = document("x-test", json, 64 * 1024, &mut wrongs);
    (map.is_some(), wrongs.list("x-test").iter().map(ToString::to_string).collect())
}

#[test]
fn a_document_is_one_object_without_doubles() {
    let deep = [b"{\"a\":".as_slice(), &b"[".repeat(200)].concat();
    let long = [b"{}".as_slice(), &b" ".repeat(64 * 1024)].concat();
    #[rustfmt::skip]
    let cases: &[(&[u8], &[&str])] = &[
        (br#"{"a":[{"b":1},{"b":2}],"b":null,"c":{"a":true,"b":-1,"c":1.5,"d":"x"}}"#, &[]),
        (b"", &["x-test is not JSON: EOF while parsing a value at line 1 column 0"]),
        (b"{} {}", &["x-test is not JSON: trailing characters at line 1 column 4"]),
        (b"{\"a\":\"\xff\"}", &["x-test is not JSON: invalid unicode code point at line 1 column 7"]),
        (b"[1]", &["x-test is [1]; want a JSON object"]),
        (&deep, &["x-test is not JSON: recursion limit exceeded at line 1 column 132"]),
        (&long, &["x-test has 65538 bytes; want at most 65536"]),
        (br#"{"a":1,"a":1}"#, &["a is there more than once; want it once"]),
        (br#"{"a":[0,{"b":{"c":1,"d":2,"c":3}}],"\u0061":1}"#, &[
            "a[1].b.c is there more than once; want it once",
            "a is there more than once; want it once",
        ]),
    ];
    for (json, want) in cases {
        let (_, wrongs) = read(json);
        assert_eq!(wrongs, *want, "{}", json.escape_ascii());
    }
}

#[test]
fn an_answer_is_one_harmless_line_and_short() {
    let name = format!("a\n\u{7f}{}", "é".repeat(100));
    let json = serde_json::json!({ name: "\n\u{85}\"".repeat(100) });
    let mut wrongs = Wrongs::default();
    let map = json.as_object().unwrap();
    let fields = Fields::of_document(map);
    fields.only(&["b"], "tests", &mut wrongs);
    let name = map.keys().next().unwrap();
    fields.read(name, &mut wrongs, |value| length(value, Millis(0)..=Millis(1)));
    let wrongs = wrongs.list("x-test");
    let at = format!(r"a\n\u{{7f}}{}...", "é".repeat(SHOWN_MAX - 9));
    let value = r#""\n\u{85}\"\n\u{85}\"\n\u{85}\"\n\u{85}\"\n\u{85}\"\n\u{85}\..."#;
    let length = r#"want a length of time ("1m30s"; a number is seconds), from 0s to 1ms"#;
    let want = [
        Wrong { at: at.clone(), detail: "is not a field of tests; the fields are b".to_owned() },
        Wrong { at, detail: format!("is {value}; {length}") },
    ];
    assert_eq!(wrongs, want);
}

#[test]
fn so_many_mistakes_are_named_and_the_rest_is_counted() {
    for (count, more) in [(WRONG_MAX, None), (WRONG_MAX + 1, Some(1)), (WRONG_MAX + 70, Some(70))] {
        let mut wrongs = Wrongs::default();
        for at in 0..count {
            wrongs.add(item("a", at), "is wrong");
        }
        let mut wrongs = wrongs.list("x-test");
        let more = more.map(|more| format!("x-test has {more} more mistakes"));
        assert_eq!(more, wrongs.get(WRONG_MAX).map(ToString::to_string));
        wrongs.truncate(WRONG_MAX);
        assert!(wrongs.iter().enumerate().all(|(at, wrong)| wrong.at == format!("a[{at}]")));
    }
}

#[test]
fn a_name_is_meant_where_it_is_near() {
    let long = "a".repeat(10_000);
    for (name, want) in [
        ("retyr", Some("retry")),
        ("Retry", Some("retry")),
        ("retries", None),
        ("max-interval", Some("max_interval")),
        ("maxInterval", Some("max_interval")),
        ("rety", Some("retry")),
        ("body", None),
        ("deadline", None),
        (&long, None),
    ] {
        assert_eq!(nearest(name, &["retry", "max_interval", "url"]), want, "{name}");
    }
}

#[test]
fn a_length_is_seconds_or_a_text() {
    for (json, want) in [
        ("1", Ok(1_000)),
        ("86400", Ok(86_400_000)),
        ("\"1500\"", Err("\"1500\"")),
        ("\"1500ms\"", Ok(1_500)),
        ("\"1d\"", Ok(86_400_000)),
        ("\"1ms\"", Ok(1)),
        ("86401", Err("86401")),
        ("0", Err("0")),
        ("\"0\"", Err("\"0\"")),
        ("18446744073709551615", Err("18446744073709551615")),
        ("-1", Err("-1")),
        ("1.0", Err("1.0")),
        ("\"5 s\"", Err("\"5 s\"")),
        ("\"-5s\"", Err("\"-5s\"")),
        ("null", Err("null")),
        ("[5]", Err("[5]")),
    ] {
        let value: Value = serde_json::from_str(json).unwrap();
        let want = want.map(Millis).map_err(|shown| {
            format!(
                "is {shown}; want a length of time (\"1m30s\"; a number is seconds), from 1ms to 1d"
            )
        });
        assert_eq!(length(&value, Millis(1)..=Millis::DAY), want, "{json}");
    }
}

proptest! {
    /// What is written is read back, in the shortest of the two forms.
    #[test]
    fn a_length_is_read_back(ms in prop_oneof![0..100_000u64, 0..=u64::from(u32::MAX)]) {
        let json = serde_json::to_value(Length(Millis(ms))).unwrap();
        prop_assert_eq!(json.is_u64(), ms % 1_000 == 0);
        prop_assert_eq!(length(&json, Millis(0)..=Millis(u64::MAX)), Ok(Millis(ms)));
    }

    #[test]
    fn bytes_are_read_back_if_they_are_not_too_many(given in proptest::collection::vec(any::<u8>(), 0..20)) {
        let json = Value::from(base64(&given));
        let want = if given.len() <= 10 { Some(given) } else { None };
        prop_assert_eq!(bytes(&json, 10).ok(), want);
    }
}
