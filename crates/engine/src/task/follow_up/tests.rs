use serde_json::json;

use super::super::result::Outcome;
use super::super::spec::{Address, Http, Kind, Method};
use super::*;

const TO: [&str; 3] =
    [r#"{"topic":"told"}"#, r#"{"service":"one"}"#, r#"{"url":"https://a.example/x?y=1"}"#];

fn definition(to: &str, more: &str) -> String {
    format!(
        r#"{{"type":"http","project":"p","group":"g","url":"http://b.example"{more},"on_result":{to}}}"#
    )
}

fn parsed(json: &str) -> Spec {
    Spec::parse(json.as_bytes()).expect("sound")
}

#[test]
fn a_follow_up_is_sound_and_has_none_itself() {
    for to in TO {
        let spec = parsed(&definition(to, ""));
        let follow_up = FollowUp::of(&spec).expect("somebody is told").spec();
        assert_eq!(parsed(&follow_up.to_json()), follow_up);
        assert_eq!((follow_up.project(), follow_up.group()), ("p", "g"));
        assert_eq!(FollowUp::of(&follow_up), None);
        // A service says itself how often it is called.
        let retries = follow_up.retry().map(Retry::count);
        assert_eq!(retries, if follow_up.service().is_some() { None } else { Some(5) });
        if let Kind::Http(Http { method, headers, address, .. }) = follow_up.kind() {
            let json = ("content-type".to_owned(), "application/json".to_owned());
            assert_eq!((*method, &headers[..]), (Method::Post, &[json][..]));
            let url = matches!(address, Address::Url(url) if url.as_str().ends_with("/x?y=1"));
            assert_eq!(url, to.contains("url"));
        }
    }
}

#[test]
fn a_definition_is_kept_only_where_the_lane_has_nothing_else_at_its_end() {
    let feedback = r#","feedback":{"deadline":"1h"}"#;
    let awaited = definition(TO[0], feedback);
    assert_eq!(FollowUp::of_awaited(&awaited), FollowUp::of(&parsed(&awaited)));
    assert!(FollowUp::of_awaited(&awaited).is_some());
    let of = |json: &str| FollowUp::of_awaited(json);
    assert_eq!(of(&definition(TO[0], "")), None, "a worker's result brings it");
    let silent = awaited.replace(&format!(r#","on_result":{}"#, TO[0]), "");
    assert_eq!(of(&silent), None);
    assert_eq!(of(r#"{"on_result""#), None);
}

#[test]
fn what_is_told_is_bounded_and_the_rest_of_a_result_is_not_told() {
    let spec = parsed(&definition(TO[0], ""));
    let id = TaskId::of_request("p", "r", None).expect("sound");
    let last = TaskResult {
        error: Some("e".repeat(10_000)),
        response: Some(vec![0xff; 100_000]),
        cursor: Some("\u{1f600}".repeat(1_000)),
        until: Some(UnixMillis(5)),
        in_doubt: true,
        ..TaskResult::new(Outcome::Interrupted)
    };
    let refusal = Refusal::new(Code::TaskFailed, "d".repeat(100_000));
    let end = End {
        id: &id,
        version: (UnixMillis(1), Offset(2)),
        trigger: UnixMillis(3),
        at: UnixMillis(4),
        counts: (7, 6, 5),
        failed: Some((Code::TaskFailed, Some(&refusal))),
        last: Some(&last),
        shards: None,
    };
    let body = FollowUp::of(&spec).expect("somebody is told").body(&end);
    assert!(body.len() < 8_192, "{} bytes", body.len());
    let body: Value = serde_json::from_str(&body).expect("JSON");
    assert_eq!(
        (&body["turn"], &body["attempts_total"], &body["failures"]),
        (&json!(7), &json!(6), &json!(5))
    );
    assert_eq!((&body["trigger_at"], &body["ended_at"]), (&json!(3), &json!(4)));
    assert_eq!(body["last"]["outcome"], json!("interrupted"));
    assert!(body["last"].get("until").is_none() && body["last"].get("in_doubt").is_none());
    assert!(body.get("request_id").is_none());
}
