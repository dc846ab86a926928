use proptest::prelude::*;
use serde_json::json;

use super::*;

const MAX: usize = 2 << 20;

fn of_http(more: &Value) -> Result<Request, Vec<Wrong>> {
    let mut task = json!({
        "project": "shop", "group": "orders", "delay": "15m", "url": "https://shop.example/expire",
    });
    for (name, value) in more.as_object().expect("an object") {
        task[name] = value.clone();
    }
    read(TaskType::Http, task.to_string().as_bytes(), MAX)
}

fn of_kafka(more: &Value) -> Result<Request, Vec<Wrong>> {
    let mut task = json!({
        "project": "shop", "group": "orders", "trigger_at": 1_795_295_275_106_u64, "topic": "orders",
    });
    for (name, value) in more.as_object().expect("an object") {
        task[name] = value.clone();
    }
    read(TaskType::Kafka, task.to_string().as_bytes(), MAX)
}

fn of_grpc(more: &Value) -> Result<Request, Vec<Wrong>> {
    let mut task = json!({
        "project": "shop", "group": "orders", "delay": "15m", "host": "shop.example:50051",
        "service": "shop.v1.Orders", "method": "Expire",
    });
    for (name, value) in more.as_object().expect("an object") {
        task[name] = value.clone();
    }
    read(TaskType::Grpc, task.to_string().as_bytes(), MAX)
}

fn places(read: Result<Request, Vec<Wrong>>) -> Vec<String> {
    let wrongs = read.expect_err("something is wrong");
    wrongs.into_iter().map(|wrong| wrong.at).collect()
}

#[test]
fn a_call_is_read_with_all_its_fields() {
    let request = of_http(&json!({
        "headers": {"x-shop": "eu"}, "body": "{}", "retry": {"count": 3, "interval": 5},
        "expires_at": 1_795_295_275_106_u64, "request_id": "o-17",
    }));
    let request = request.expect("all is right");
    assert_eq!(request.due, Due::In(Millis(900_000)));
    assert_eq!(request.expires, Some(UnixMillis(1_795_295_275_106)));
    assert_eq!(request.request_id.as_deref(), Some("o-17"));
    assert_eq!((request.key, request.value), (None, Some(b"{}".to_vec())));
    let Kind::Http(http) = request.spec.kind() else { panic!("a call") };
    assert_eq!(http.headers, [("x-shop".to_owned(), "eu".to_owned())]);
    let seconds = of_http(&json!({"delay": 5, "body_b64": "AP8="})).expect("all is right");
    assert_eq!((seconds.due, seconds.value), (Due::In(Millis(5_000)), Some(vec![0, 255])));
}

#[test]
fn a_record_is_read_with_key_value_and_headers() {
    let request = of_kafka(&json!({
        "key_b64": "AP8=", "value": "v", "partition": 3,
        "headers": [["a", "1"], ["a", "2"]],
    }));
    let request = request.expect("all is right");
    assert_eq!(request.due, Due::At(UnixMillis(1_795_295_275_106)));
    assert_eq!((request.key, request.value), (Some(vec![0, 255]), Some(b"v".to_vec())));
    let header = |value: &str| ("a".to_owned(), Some(value.as_bytes().to_vec()));
    assert_eq!(request.headers, [header("1"), header("2")]);
    // The specification names a key of its own only where it is not the record's.
    let Kind::Kafka(kafka) = request.spec.kind() else { panic!("a record") };
    assert_eq!((&*kafka.topic, kafka.partition, &kafka.key), ("orders", Some(3), &None));
    assert_eq!(of_kafka(&json!({})).expect("a tombstone").value, None);
}

#[test]
fn the_body_of_a_grpc_task_is_what_its_format_says() {
    let value = |more: Value| of_grpc(&more).expect("all is right").value;
    let json = Some(br#"{"id":7}"#.to_vec());
    assert_eq!(value(json!({"format": "json", "body": {"id": 7}})), json);
    assert_eq!(value(json!({"format": "json", "body": r#"{"id":7}"#})), json);
    assert_eq!(value(json!({"format": "json", "body_b64": "eyJpZCI6N30="})), json);
    assert_eq!(value(json!({"format": "json"})), None);
    assert_eq!(value(json!({"body_b64": "CAc="})), Some(vec![8, 7]));
    assert_eq!(value(json!({})), None);
    let long = json!({"a": "x".repeat(BODY_MAX)});
    #[rustfmt::skip]
    let cases: Vec<(Value, &[&str])> = vec![
        (json!({"body": {"id": 7}}),                                         &["body"]),
        (json!({"body": "CAc="}),                                            &["body"]),
        (json!({"format": "json", "body": [7]}),                             &["body"]),
        (json!({"format": "json", "body": "{"}),                             &["body"]),
        (json!({"format": "json", "body_b64": "CAc="}),                      &["body_b64"]),
        (json!({"format": "json", "body": {}, "body_b64": "e30="}),          &["body_b64"]),
        (json!({"format": "json", "body": long}),                            &["body"]),
        (json!({"url": "http://a", "format": "xml", "key": "k"}),            &["key", "url", "format"]),
    ];
    for (more, want) in cases {
        assert_eq!(places(of_grpc(&more)), want, "{}", fields::shown(&more));
    }
    let payload = |bytes: &[u8]| Payload { value: Some(bytes.to_vec()), ..Payload::default() };
    let fields = |format: &str| {
        let fields = json!({"project": "p", "group": "g", "delay": 1, "host": "a:1", "service": "s", "method": "m", "format": format});
        fields.as_object().expect("an object").clone()
    };
    let beside = |format, bytes| read_beside(TaskType::Grpc, fields(format), payload(bytes));
    assert_eq!(beside("protobuf", &[8, 7]).expect("bytes").value, Some(vec![8, 7]));
    assert_eq!(beside("json", b"{}").expect("JSON").value, Some(b"{}".to_vec()));
    assert_eq!(places(beside("json", &[8, 7])), ["body"]);
}

#[test]
fn every_wrong_field_is_named_at_once() {
    let long = "x".repeat(BODY_MAX + 1);
    #[rustfmt::skip]
    let calls: Vec<(Value, &[&str])> = vec![
        (json!({"dealy": 1}),                                       &["dealy"]),
        (json!({"trigger_at": 1_795_295_275_106_u64}),              &["delay"]),
        (json!({"delay": null}),                                    &["delay"]),
        (json!({"delay": "soon"}),                                  &["delay"]),
        (json!({"expires_at": 1_795_295_275}),                      &["expires_at"]),
        (json!({"request_id": ""}),                                 &["request_id"]),
        (json!({"request_id": "x".repeat(129)}),                    &["request_id"]),
        (json!({"request_id": "a\nb"}),                             &["request_id"]),
        (json!({"body": 1}),                                        &["body"]),
        (json!({"body": long}),                                     &["body"]),
        (json!({"body": "", "body_b64": ""}),                       &["body_b64"]),
        (json!({"body_b64": "?"}),                                  &["body_b64"]),
        (json!({"type": "kafka"}),                                  &["type"]),
        (json!({"topic": "orders"}),                                &["topic"]),
        (json!({"feedback": {}}),                                   &["feedback.deadline"]),
        (json!({"headers": {"Host": "x"}}),                         &["headers[0][0]"]),
        (json!({"headers": {"x-a": "b\r\nx-c: d"}}),                &["headers[0][1]"]),
        (json!({"project": "Shop", "retry": {"count": -1}, "url": "ftp://x", "body": 7, "colour": 1}),
                                                                    &["colour", "project", "url", "retry.count", "body"]),
    ];
    for (more, want) in calls {
        assert_eq!(places(of_http(&more)), want, "{}", fields::shown(&more));
    }
    #[rustfmt::skip]
    let records: Vec<(Value, &[&str])> = vec![
        (json!({"key": "x".repeat(1_025)}),                         &["key"]),
        (json!({"key": "x", "key_b64": "eA=="}),                    &["key_b64"]),
        (json!({"headers": {"X-Delay-Task": "x"}}),                 &["headers.X-Delay-Task"]),
        (json!({"headers": [["a", null], "b"]}),                    &["headers[1]", "headers[0]"]),
        (json!({"headers": 7}),                                     &["headers"]),
        (json!({"headers": {"a": "x".repeat(HEADERS_BYTES_MAX)}}),  &["headers"]),
        (json!({"trigger_at": 1_795_295_275}),                      &["trigger_at"]),
        (json!({"expires_at": 1_795_295_275_106_u64}),              &["expires_at"]),
        (json!({"body": "x"}),                                      &["body"]),
        (json!({"topic": ".."}),                                    &["topic"]),
    ];
    for (more, want) in records {
        assert_eq!(places(of_kafka(&more)), want, "{}", fields::shown(&more));
    }
}

#[test]
fn what_is_no_request_at_all_is_named_as_a_whole() {
    let deep = "[".repeat(1_000);
    for json in ["", "[]", "7", "{\"a\":", &deep, &format!("{{\"delay\":{deep}")] {
        let wrongs = read(TaskType::Http, json.as_bytes(), MAX).expect_err("refused");
        assert_eq!(wrongs[0].at, "request", "{json}");
    }
    let doubled = br#"{"delay": 1, "delay": 2}"#;
    assert!(places(read(TaskType::Http, doubled, MAX)).contains(&"delay".to_owned()));
    let large = of_http(&json!({"headers": {"x-a": "y".repeat(spec::SPEC_MAX)}}));
    assert_eq!(places(large), ["request"]);
}

#[test]
fn a_batch_names_what_is_wrong_with_each_of_its_tasks() {
    let good = json!({"type": "http", "project": "p", "group": "g", "delay": 1, "url": "http://x.example/"});
    let record = json!({"type": "kafka", "project": "p", "group": "g", "delay": 1, "topic": "t"});
    let bad = json!({"type": "http", "project": "p", "delay": 1, "url": "http://x.example/"});
    let batch = json!({"tasks": [good, bad, 7, {}, record]}).to_string();
    let batch = read_batch(batch.as_bytes(), MAX).expect("a batch");
    let places: Vec<Vec<String>> = batch
        .into_iter()
        .map(|read| read.err().unwrap_or_default().into_iter().map(|wrong| wrong.at).collect())
        .collect();
    let none: Vec<String> = Vec::new();
    assert_eq!((&places[0], &places[4]), (&none, &none));
    assert_eq!(
        (&places[1][..], &places[2][..]),
        (&["group".to_owned()][..], &["request".to_owned()][..])
    );
    assert!(places[3].contains(&"type".to_owned()), "{:?}", places[3]);
    let many = json!({"tasks": vec![7; BATCH_MAX + 1]}).to_string();
    for text in ["{}", r#"{"tasks": []}"#, r#"{"tasks": {}}"#, r#"{"task": []}"#, &many] {
        assert!(read_batch(text.as_bytes(), MAX).is_err(), "{}", &text[..10.min(text.len())]);
    }
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        for of in [TaskType::Http, TaskType::Kafka, TaskType::Grpc] {
            if let Err(wrongs) = read(of, &bytes, MAX) {
                prop_assert!(!wrongs.is_empty());
            }
        }
        if let Err(wrongs) = read_batch(&bytes, MAX) {
            prop_assert!(!wrongs.is_empty());
        }
    }
}
