use proptest::prelude::*;

use super::*;

fn wrong(json: &str) -> String {
    TaskResult::parse(json.as_bytes()).unwrap_err().to_string()
}

#[test]
fn a_result_is_read_and_written() {
    let full = TaskResult {
        started: Some(UnixMillis(1)),
        ended: Some(UnixMillis(2)),
        status: Some(503),
        error: Some("connection refused".to_owned()),
        retry_after: Some(Millis(3)),
        until: Some(UnixMillis(4)),
        worker: Some("w-1".to_owned()),
        response: Some(b"{}".to_vec()),
        in_doubt: true,
        ..TaskResult::new(Outcome::Interrupted)
    };
    #[rustfmt::skip]
    let cases = [
        (r#"{"outcome":"finished"}"#, TaskResult::new(Outcome::Finished)),
        (r#"{"outcome":"started","cursor":"row:8000","percent":40}"#,
            TaskResult { cursor: Some("row:8000".to_owned()), percent: Some(40), ..TaskResult::new(Outcome::Started) }),
        (r#"{"outcome":"failed","error":"","response_b64":""}"#,
            TaskResult { error: Some(String::new()), response: Some(Vec::new()), ..TaskResult::new(Outcome::Failed) }),
        (concat!(
            r#"{"outcome":"interrupted","started":1,"ended":2,"status":503,"error":"connection refused","#,
            r#""retry_after_ms":3,"until":4,"worker":"w-1","response_b64":"e30=","in_doubt":true}"#,
        ), full),
    ];
    for (json, result) in cases {
        assert_eq!(TaskResult::parse(json.as_bytes()), Ok(result.clone()), "{json}");
        assert_eq!(result.to_json(), json);
    }
    let said = TaskResult::parse(br#" {"in_doubt":false, "outcome":"gone"} "#);
    assert_eq!(said.map(|said| said.to_json()), Ok(r#"{"outcome":"gone"}"#.to_owned()));
}

#[test]
fn what_is_no_result_is_refused() {
    let long = format!(r#"{{"outcome":"failed","error":"{}"}}"#, "e".repeat(201));
    let worker = format!(r#"{{"outcome":"failed","worker":"{}"}}"#, "é".repeat(128));
    let response = format!(r#"{{"outcome":"failed","response_b64":"{}"}}"#, base64(&[0; 1_025]));
    let padded = format!("{}{{}}", " ".repeat(4_095));
    #[rustfmt::skip]
    let cases = [
        ("", "x-delay-result is not JSON: EOF while parsing a value at line 1 column 0"),
        ("[]", "x-delay-result is []; want a JSON object"),
        (&padded, "x-delay-result has 4097 bytes; want at most 4096"),
        ("{}", "outcome is missing; want started, finished, accepted, not_yet, gone, failed, deferred, interrupted, cancelled"),
        (r#"{"outcome":"done"}"#,
            "outcome is \"done\"; want started, finished, accepted, not_yet, gone, failed, deferred, interrupted, cancelled"),
        (r#"{"outcome":"gone","outcome":"gone"}"#, "outcome is there more than once; want it once"),
        (r#"{"outcome":"gone","statuss":1}"#, "statuss is not a field of results; did you mean status?"),
        (r#"{"outcome":"gone","status":65536}"#, "status is 65536; want an integer from 0 to 65535"),
        (r#"{"outcome":"gone","started":-1}"#, "started is -1; want an integer from 0 to 18446744073709551615"),
        (r#"{"outcome":"gone","until":null}"#, "until is null; want an integer from 0 to 18446744073709551615"),
        (r#"{"outcome":"gone","error":"a\nb"}"#,
            "error is \"a\\nb\"; want at most 200 bytes of text without control characters"),
        (r#"{"outcome":"gone","response_b64":"e30"}"#,
            "response_b64 is \"e30\"; want base64 with padding, of at most 1024 bytes"),
        (r#"{"outcome":"gone","in_doubt":1}"#, "in_doubt is 1; want true or false"),
        (r#"{"outcome":"gone","in_doubt":true}"#,
            "in_doubt is true of a result that is gone; want it of interrupted only"),
    ];
    for (json, want) in cases {
        assert_eq!(wrong(json), want, "{json}");
    }
    for (json, want) in [
        (long, "want at most 200 bytes of text without control characters"),
        (worker, "want at most 255 bytes of text without control characters"),
        (response, "want base64 with padding, of at most 1024 bytes"),
    ] {
        assert!(wrong(&json).ends_with(want), "{json}");
    }
}

#[test]
fn the_longest_result_fits() {
    let longest = TaskResult {
        started: Some(UnixMillis(u64::MAX)),
        ended: Some(UnixMillis(u64::MAX)),
        status: Some(u16::MAX),
        // A quotation mark takes two bytes in JSON.
        error: Some("\"".repeat(ERROR_MAX)),
        retry_after: Some(Millis(u64::MAX)),
        until: Some(UnixMillis(u64::MAX)),
        worker: Some("\\".repeat(WORKER_MAX)),
        response: Some(vec![0xff; RESPONSE_MAX]),
        in_doubt: true,
        ..TaskResult::new(Outcome::Interrupted)
    };
    let json = longest.to_json();
    assert!((2_400..=RESULT_MAX).contains(&json.len()), "{} bytes", json.len());
    assert_eq!(TaskResult::parse(json.as_bytes()), Ok(longest));
}

#[test]
fn what_is_too_long_is_cut_where_a_character_ends() {
    let result = TaskResult {
        error: Some(format!("a\0{}", "é".repeat(100))),
        worker: Some("🦀".repeat(64)),
        response: Some(vec![7; RESPONSE_MAX + 1]),
        in_doubt: true,
        ..TaskResult::new(Outcome::Failed)
    };
    let want = TaskResult {
        error: Some(format!("a {}", "é".repeat(99))),
        worker: Some("🦀".repeat(63)),
        response: Some(vec![7; RESPONSE_MAX]),
        in_doubt: false,
        ..result.clone()
    };
    assert_eq!(TaskResult::parse(result.to_json().as_bytes()), Ok(want));
}

#[test]
fn what_ends_or_only_says_that_it_began_carries_no_payload() {
    let without: Vec<_> =
        Outcome::ALL.into_iter().filter(|outcome| !outcome.carries_payload()).collect();
    assert_eq!(without, [Outcome::Started, Outcome::Finished, Outcome::Cancelled]);
}

fn maybe<T: std::fmt::Debug>(of: impl Strategy<Value = T>) -> impl Strategy<Value = Option<T>> {
    proptest::option::of(of)
}

fn any_result() -> impl Strategy<Value = TaskResult> {
    let times =
        (maybe(any::<u64>()), maybe(any::<u64>()), maybe(any::<u64>()), maybe(any::<u64>()));
    let texts = (maybe("\\PC{0,50}"), maybe(".{0,300}"), maybe("\\PC{0,63}"), maybe("\\PC{0,90}"));
    let rest = (0..9usize, maybe(any::<u16>()), any::<bool>(), maybe(0..=100u8));
    let response = maybe(proptest::collection::vec(any::<u8>(), 0..1_100));
    (times, texts, rest, response).prop_map(
        |((started, ended, until, after), (error, longer, worker, cursor), rest, response)| {
            TaskResult {
                started: started.map(UnixMillis),
                ended: ended.map(UnixMillis),
                status: rest.1,
                error: if rest.2 { error } else { longer },
                retry_after: after.map(Millis),
                until: until.map(UnixMillis),
                worker,
                response,
                in_doubt: rest.2,
                letter: rest.2,
                breaker: rest.2,
                cursor,
                percent: rest.3,
                outcome: Outcome::ALL[rest.0],
            }
        },
    )
}

proptest! {
    /// Whatever is written is legal; what was legal before is read back as it was.
    #[test]
    fn a_result_is_read_back(result in any_result()) {
        let json = result.to_json();
        prop_assert!(json.len() <= RESULT_MAX);
        let read = TaskResult::parse(json.as_bytes()).unwrap();
        prop_assert_eq!(read.to_json(), json);
        let is_line = |text: &Option<String>, max| {
            text.as_ref().is_none_or(|text| text.len() <= max && !text.chars().any(char::is_control))
        };
        let is_legal = is_line(&result.error, ERROR_MAX)
            && is_line(&result.worker, WORKER_MAX)
            && is_line(&result.cursor, CURSOR_MAX)
            && result.response.as_ref().is_none_or(|bytes| bytes.len() <= RESPONSE_MAX)
            && (!result.in_doubt || result.outcome == Outcome::Interrupted)
            && (!result.breaker || result.outcome == Outcome::Deferred);
        prop_assert_eq!(read == result, is_legal);
    }

    /// What was read is written and read back, and never panics.
    #[test]
    fn made_up_results_do_no_harm(
        outcome in "started|gone|interrupted|deferred|\\PC*", name in "error|worker|until|in_doubt|letter|breaker|cursor|percent|\\PC*", value in "true|[0-9]{1,21}|\"\\PC*\"",
    ) {
        let json = format!(r#"{{"outcome":"{outcome}","{name}":{value}}}"#);
        if let Ok(result) = TaskResult::parse(json.as_bytes()) {
            prop_assert_eq!(TaskResult::parse(result.to_json().as_bytes()), Ok(result));
        }
    }
}
