use proptest::prelude::*;
use serde_json::json;

use super::super::retry::tests::any_retry;
use super::*;

fn parse(json: &str) -> Result<Spec, Vec<String>> {
    let wrongs = |wrongs: Vec<Wrong>| wrongs.iter().map(ToString::to_string).collect();
    Spec::parse(json.as_bytes()).map_err(wrongs)
}

/// What is wrong with an HTTP task that has these fields besides the common ones.
fn http(fields: &str) -> Vec<String> {
    let json = format!(r#"{{"type":"http","project":"shop","group":"orders",{fields}}}"#);
    parse(&json).map(|spec| spec.to_json()).err().unwrap_or_default()
}

/// The same, of a Kafka task.
fn kafka(fields: &str) -> Vec<String> {
    let json = format!(r#"{{"type":"kafka","project":"shop","group":"orders",{fields}}}"#);
    parse(&json).map(|spec| spec.to_json()).err().unwrap_or_default()
}

#[test]
fn the_design_s_example_is_read_and_written_in_full() {
    let json = concat!(
        r#"{"type":"http","project":"shop","group":"orders","service":"billing","method":"POST","path":"/expire","#,
        r#""headers":[["content-type","application/json"]],"timeout":"10s","expect":"2xx","#,
        r#""retry":{"count":3,"interval":5,"backoff":"exponential","max_interval":"10m","jitter":0.2},"#,
        r#""poll":{"interval":"10s","rounds":360},"on_result":{"topic":"orders.done"}}"#,
    );
    let spec = parse(json).unwrap();
    assert_eq!((spec.project(), spec.group(), spec.type_name()), ("shop", "orders", "http"));
    assert_eq!((spec.service(), spec.scope()), (Some("billing"), Some(Scope::Service("billing"))));
    assert_eq!(spec.on_result(), Some(&OnResult::Topic("orders.done".to_owned())));
    assert_eq!(spec.retry().map(Retry::count), Some(3));
    let Kind::Http(call) = spec.kind() else { panic!("{spec:?}") };
    let want = Http {
        address: Address::Service { name: "billing".to_owned(), path: Some("/expire".to_owned()) },
        method: Method::Post,
        headers: vec![("content-type".to_owned(), "application/json".to_owned())],
        timeout: Some(Millis(10_000)),
        expect: Expect::default(),
        poll: Some(Poll { interval: Millis(10_000), rounds: 360 }),
        feedback: None,
    };
    assert_eq!(*call, want);
    let written = concat!(
        r#"{"type":"http","project":"shop","group":"orders","service":"billing","path":"/expire","method":"POST","#,
        r#""headers":[["content-type","application/json"]],"timeout":10,"expect":"2xx","#,
        r#""retry":{"count":3,"interval":5,"backoff":"exponential","max_interval":600,"jitter":0.2},"#,
        r#""poll":{"interval":10,"rounds":360},"on_result":{"topic":"orders.done"}}"#,
    );
    assert_eq!(spec.to_json(), written);
}

#[test]
fn what_is_left_out_has_its_default() {
    let spec = parse(r#"{"type":"http","project":"p","group":"g","url":"HTTP://Example.COM"}"#);
    let spec = spec.unwrap();
    let want = r#"{"type":"http","project":"p","group":"g","url":"http://example.com/","method":"POST","expect":"2xx"}"#;
    assert_eq!(spec.to_json(), want);
    assert_eq!((spec.retry(), spec.on_result(), spec.service()), (None, None, None));
    let spec =
        parse(r#"{"type":"kafka","project":"p","group":"g","topic":"t","retry":{}}"#).unwrap();
    assert_eq!((spec.scope(), spec.service(), spec.type_name()), (None, None, "kafka"));
    assert_eq!(spec.retry(), Some(&Retry::default()));
    let want = Kafka { topic: "t".to_owned(), partition: None, key: None, feedback: None };
    assert_eq!(*spec.kind(), Kind::Kafka(want));
    let full = r#"{"type":"kafka","project":"p","group":"g","topic":"t","partition":2147483647,"key_b64":"/w=="}"#;
    let spec = parse(full).unwrap();
    let (partition, key) = (Some(i32::MAX), Some(vec![0xff]));
    let want = Kafka { topic: "t".to_owned(), partition, key, feedback: None };
    assert_eq!((spec.kind(), spec.to_json().as_str()), (&Kind::Kafka(want), full));
}

#[test]
fn a_document_that_is_none_is_refused() {
    let long = format!("{}{{}}", " ".repeat(SCHEDULE_MAX - 1));
    // Only a schedule may have as much.
    let of_http = r#"{"type":"http","project":"p","group":"g","url":"http://a.example/"}"#;
    let of_http = format!("{}{of_http}", " ".repeat(SPEC_MAX));
    #[rustfmt::skip]
    let cases: &[(&str, &[&str])] = &[
        ("", &["x-delay-task is not JSON: EOF while parsing a value at line 1 column 0"]),
        ("[]", &["x-delay-task is []; want a JSON object"]),
        (&long, &["x-delay-task has 65537 bytes; want at most 65536"]),
        (&of_http, &["x-delay-task has 16451 bytes; want at most 16384"]),
        ("{}", &[
            "type is missing; want http, kafka or grpc",
            "project is missing; want 1 to 64 of a-z 0-9 . _ -, not . or ..",
            "group is missing; want 1 to 64 of a-z 0-9 . _ -, not . or ..",
        ]),
    ];
    for (json, want) in cases {
        assert_eq!(parse(json).unwrap_err(), *want, "{json}");
    }
}

#[test]
fn every_wrong_field_is_named_in_one_answer() {
    let json = r#"{"type":"http","type":"http","project":"Shop","group":7,"service":"","url":"x","path":"a","method":"post",
        "headers":[["a"],["",1],["Host","b"],["c","d\n"]],"timeout":"6m","expect":"ok","retry":{"count":"3","cuont":1},
        "poll":{"interval":0,"round":1},"feedback":{},"on_result":{"topic":"a b","url":"http://"},"expects":1,"body":"b"}"#;
    let name = "want 1 to 64 of a-z 0-9 . _ -, not . or ..";
    let url = "want a URL that begins with http:// or https:// and has a host";
    #[rustfmt::skip]
    let want = [
        "type is there more than once; want it once",
        &format!("project is \"Shop\"; {name}"),
        &format!("group is 7; {name}"),
        "body is not a field of http tasks; the fields are type, project, group, request_id, retry, on_result, occurrence, shard, expires_at, service, url, path, method, \
         headers, timeout, expect, poll, feedback",
        "expects is not a field of http tasks; did you mean expect?",
        &format!("service is \"\"; {name}"),
        &format!("url is \"x\"; {url}"),
        "path is \"a\"; want a path that begins with one / and has no . or .. segments",
        "url is there beside service; want exactly one of them",
        "method is \"post\"; want GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS",
        "headers[0] is not a pair; want [name, value]",
        "headers[1][0] is \"\"; want the name of a header: letters, digits and !#$%&'*+-.^_`|~",
        "headers[1][1] is not a text; want the value of a header",
        "headers[2][0] is \"Host\"; want none of the headers that HTTP itself sets",
        "headers[3][1] has a control character at 1; want a value without them",
        "timeout is \"6m\"; want a length of time (\"1m30s\"; a number is seconds), from 1ms to 5m",
        "expect is \"ok\"; want classes from 2xx to 5xx and codes from 200 to 599, as in \"2xx,404\"",
        "poll.round is not a field of poll; did you mean rounds?",
        "poll.interval is 0; want a length of time (\"1m30s\"; a number is seconds), from 1s to 1d",
        "poll.rounds is missing; want an integer from 1 to 100000",
        "feedback.deadline is missing; want a length of time (\"1m30s\"; a number is seconds), from 1s to 30d",
        "retry.cuont is not a field of retry; did you mean count?",
        "retry.count is \"3\"; want an integer from 0 to 1000",
        "on_result.topic is \"a b\"; want a topic name: 1 to 249 of a-z A-Z 0-9 . _ -, not . or ..",
        &format!("on_result.url is \"http://\"; {url}"),
        "on_result has topic and url; want exactly one of topic, service, url",
    ];
    assert_eq!(parse(json).unwrap_err(), want);
}

#[test]
fn each_type_has_its_own_fields() {
    let of = |of_type: &str, rest: &str| {
        parse(&format!(r#"{{"type":{of_type},"project":"p","group":"g"{rest}}}"#)).unwrap_err()
    };
    let wrongs = of("\"htpp\"", r#","url":"x","topic":"y","metod":"GET""#);
    let want = [
        "type is \"htpp\"; want http, kafka or grpc",
        "metod is not a field of tasks; did you mean method?",
    ];
    assert_eq!(wrongs, want);
    let fields = "the fields are type, project, group, request_id, retry, on_result, occurrence, shard, expires_at, topic, partition, key_b64, feedback";
    #[rustfmt::skip]
    let want = [
        format!("timeout is not a field of kafka tasks; {fields}"),
        format!("url is not a field of kafka tasks; {fields}"),
        "topic is missing; want a topic name: 1 to 249 of a-z A-Z 0-9 . _ -, not . or ..".to_owned(),
    ];
    let mut wrongs = kafka(r#""url":"http://a","timeout":1"#);
    wrongs.sort_by_key(|wrong| wrong.starts_with("topic"));
    assert_eq!(wrongs, want);
    #[rustfmt::skip]
    let cases: &[(&str, &[&str])] = &[
        (r#""topic":"t","partition":2147483648"#, &["partition is 2147483648; want an integer from 0 to 2147483647"]),
        (r#""topic":"t","partition":-1"#, &["partition is -1; want an integer from 0 to 2147483647"]),
        (r#""topic":"..""#, &["topic is \"..\"; want a topic name: 1 to 249 of a-z A-Z 0-9 . _ -, not . or .."]),
        (r#""topic":"t","key_b64":"a""#, &["key_b64 is \"a\"; want base64 with padding, of at most 1024 bytes"]),
        (r#""topic":"t","feedback":null"#, &["feedback is null; want a JSON object"]),
        (r#""topic":"t","feedback":{"deadline":"1m","heartbeat":"1s","beat":1}"#, &[
            "feedback.beat is not a field of feedback; the fields are deadline, heartbeat",
            "feedback.heartbeat is \"1s\"; want a length of time (\"1m30s\"; a number is seconds), from 2s to 30d",
        ]),
        (r#""topic":"t","feedback":{"deadline":"1m","heartbeat":"61s"}"#,
         &["feedback.heartbeat is longer than the deadline; want at most that"]),
    ];
    for (fields, want) in cases {
        assert_eq!(kafka(fields), *want, "{fields}");
    }
    for (len, is_fit) in [(KEY_MAX, true), (KEY_MAX + 1, false)] {
        let wrongs = kafka(&format!(r#""topic":"t","key_b64":"{}""#, base64(&vec![1; len])));
        assert_eq!(wrongs.is_empty(), is_fit, "{wrongs:?}");
    }
}

#[test]
fn names_are_of_a_small_alphabet() {
    let longest = "a".repeat(NAME_MAX);
    let longer = "a".repeat(NAME_MAX + 1);
    for (given, is_name) in [
        ("a", true),
        ("a-b_c.9", true),
        ("...", true),
        (&longest, true),
        (&longer, false),
        ("", false),
        (".", false),
        ("..", false),
        ("A", false),
        ("a/b", false),
        ("a b", false),
        ("é", false),
    ] {
        for field in ["project", "group", "service"] {
            let mut json = json!({ "type": "http", "project": "p", "group": "g", "service": "s" });
            json[field] = given.into();
            assert_eq!(parse(&json.to_string()).is_ok(), is_name, "{field} {given}");
        }
    }
}

#[test]
fn exactly_one_address_is_wanted() {
    #[rustfmt::skip]
    let cases: &[(&str, &[&str])] = &[
        (r#""service":"s""#, &[]),
        (r#""service":"s","path":"/a""#, &[]),
        (r#""url":"http://a""#, &[]),
        (r#""method":"GET""#, &["url is missing; want exactly one of url and service"]),
        (r#""path":"/a""#, &["url is missing; want exactly one of url and service"]),
        (r#""url":"http://a","service":"s""#, &["url is there beside service; want exactly one of them"]),
        (r#""url":"http://a","path":"/a""#, &["path is there beside url; want it as a part of the url"]),
    ];
    for (fields, want) in cases {
        assert_eq!(http(fields), *want, "{fields}");
    }
}

/// A URL as it is kept, and its scope.
type Kept<'a> = (&'a str, &'a str);

#[test]
fn a_url_is_taken_as_it_is_or_refused() {
    let long = format!("http://a/{}", "b".repeat(URL_MAX - 9));
    let longer = format!("{long}b");
    // Each of them takes six bytes when it is percent-encoded.
    let grows = format!("http://a/{}", "é".repeat(400));
    const WANT: &str = "want a URL that begins with http:// or https:// and has a host";
    const USER: &str = "has user information; want a URL without it: use a service's secret";
    #[rustfmt::skip]
    let cases: &[(&str, Result<Kept<'_>, String>)] = &[
        ("http://a",                       Ok(("http://a/", "a"))),
        ("HTTPS://A.example:443/B?c=D",    Ok(("https://a.example/B?c=D", "a.example"))),
        ("https://a:80/b/../c",            Ok(("https://a:80/c", "a:80"))),
        ("http://[::1]:8080/",             Ok(("http://[::1]:8080/", "[::1]:8080"))),
        ("http://0x7f.1/",                 Ok(("http://127.0.0.1/", "127.0.0.1"))),
        ("http://bücher.example/é?ü",      Ok(("http://xn--bcher-kva.example/%C3%A9?%C3%BC", "xn--bcher-kva.example"))),
        ("http://a/b@c?d@e",               Ok(("http://a/b@c?d@e", "a"))),
        (&long,                            Ok((&long, "a"))),
        (&longer,                          Err("has 2049 bytes; want at most 2048".to_owned())),
        (&grows,                           Err("has 2409 bytes once it is percent-encoded; want at most 2048".to_owned())),
        ("",                               Err(format!("is \"\"; {WANT}"))),
        ("a.example/b",                    Err(format!("is \"a.example/b\"; {WANT}"))),
        ("ftp://a/",                       Err(format!("is \"ftp://a/\"; {WANT}"))),
        ("ftp://u:p@a/",                   Err(format!("is something else (not shown, as it may have a password); {WANT}"))),
        (" http://a/",                     Err(format!("is \" http://a/\"; {WANT}"))),
        ("http:a",                         Err(format!("is \"http:a\"; {WANT}"))),
        ("http:///a",                      Err(format!("is \"http:///a\"; {WANT}"))),
        ("http://?a",                      Err(format!("is \"http://?a\"; {WANT}"))),
        ("http://:80/",                    Err(format!("is \"http://:80/\" (empty host); {WANT}"))),
        ("http://a:65536/",                Err(format!("is \"http://a:65536/\" (invalid port number); {WANT}"))),
        ("http://256.1.1.1/",              Err(format!("is \"http://256.1.1.1/\" (invalid IPv4 address); {WANT}"))),
        ("http://user:secret@a/",          Err(USER.to_owned())),
        ("http://@a/",                     Err(USER.to_owned())),
        ("http://user:secret@a:99999/",    Err(USER.to_owned())),
        ("http://a\\@b/",                  Err(format!("is \"http://a\\\\@b/\" (backslash); {WANT}"))),
        ("http://a/b c",                   Err(format!("is \"http://a/b c\" (a character that is to be percent-encoded); {WANT}"))),
        ("http://a/%zz",                   Err(format!("is \"http://a/%zz\" (expected 2 hex digits after %); {WANT}"))),
        ("http://a/b\t",                   Err(format!("is \"http://a/b\\t\" (leading or trailing control or space character are ignored in URLs); {WANT}"))),
        ("http://a/b\tc",                  Err(format!("is \"http://a/b\\tc\" (tabs or newlines are ignored in URLs); {WANT}"))),
        ("http://a/#b",                    Err("is \"http://a/#b\"; want it without a fragment, which is never sent".to_owned())),
    ];
    for (given, want) in cases {
        let json = json!({ "type": "http", "project": "p", "group": "g", "url": given });
        let spec = parse(&json.to_string());
        let found = spec.as_ref().map(|spec| match (spec.kind(), spec.scope()) {
            (Kind::Http(Http { address: Address::Url(url), .. }), Some(Scope::Host(host))) => {
                (url.as_str(), host)
            }
            other => panic!("{other:?}"),
        });
        let want = want.clone().map_err(|detail| vec![format!("url {detail}")]);
        assert_eq!(found, want.as_ref().map(|want| *want), "{given}");
        // The same rules hold for who hears of the result.
        let json = json!({ "type": "kafka", "project": "p", "group": "g", "topic": "t", "on_result": { "url": given } });
        assert_eq!(parse(&json.to_string()).is_ok(), want.is_ok(), "{given}");
    }
}

#[test]
fn a_path_stays_below_its_service() {
    let long = format!("/{}", "b".repeat(URL_MAX));
    const WANT: &str = "want a path that begins with one / and has no . or .. segments";
    #[rustfmt::skip]
    let cases: &[(&str, Result<&str, String>)] = &[
        ("/",           Ok("/")),
        ("/a/b?c=../d", Ok("/a/b?c=../d")),
        ("/a//b/...",   Ok("/a//b/...")),
        ("/é",          Ok("/%C3%A9")),
        (&long,         Err("has 2049 bytes; want at most 2048".to_owned())),
        ("",            Err(format!("is \"\"; {WANT}"))),
        ("a",           Err(format!("is \"a\"; {WANT}"))),
        ("?a",          Err(format!("is \"?a\"; {WANT}"))),
        ("//host/a",    Err(format!("is \"//host/a\"; {WANT}"))),
        ("/../admin",   Err(format!("is \"/../admin\"; {WANT}"))),
        ("/a/.%2E/b",   Err(format!("is \"/a/.%2E/b\"; {WANT}"))),
        ("/a/%2e",      Err(format!("is \"/a/%2e\"; {WANT}"))),
        ("/\\a",        Err(format!("is \"/\\\\a\" (backslash); {WANT}"))),
        ("/a b",        Err(format!("is \"/a b\" (a character that is to be percent-encoded); {WANT}"))),
        ("/a#b",        Err("is \"/a#b\"; want it without a fragment, which is never sent".to_owned())),
    ];
    for (given, want) in cases {
        let json =
            json!({ "type": "http", "project": "p", "group": "g", "service": "s", "path": given });
        let spec = parse(&json.to_string());
        let found = spec.as_ref().map(|spec| match spec.kind() {
            Kind::Http(Http { address: Address::Service { path: Some(path), .. }, .. }) => path,
            other => panic!("{other:?}"),
        });
        let want = want.clone().map_err(|detail| vec![format!("path {detail}")]);
        assert_eq!(found.map(String::as_str), want.as_ref().map(|want| *want), "{given}");
    }
}

#[test]
fn headers_that_others_decide_are_refused() {
    const HTTPS: &str = "want none of the headers that HTTP itself sets";
    const SECRET: &str = "want no secret in a task: use a service's secret";
    const OURS: &str = "want none of the headers that only waterclock may set";
    const NAME: &str = "want the name of a header: letters, digits and !#$%&'*+-.^_`|~";
    #[rustfmt::skip]
    let cases = [
        ("X-Api-Version", None), ("webhook", None), ("forwarded", None), ("!#$%&'*+-.^_`|~", None),
        ("Host", Some(HTTPS)), ("Expect", Some(HTTPS)), ("content-length", Some(HTTPS)), ("TRANSFER-ENCODING", Some(HTTPS)), ("Connection", Some(HTTPS)),
        ("Keep-Alive", Some(HTTPS)), ("TE", Some(HTTPS)), ("Trailer", Some(HTTPS)), ("Upgrade", Some(HTTPS)),
        ("Proxy-Connection", Some(HTTPS)), ("Proxy-Authenticate", Some(HTTPS)),
        ("Authorization", Some(SECRET)), ("Cookie", Some(SECRET)), ("proxy-authorization", Some(SECRET)),
        ("X-Forwarded-For", Some(OURS)), ("Webhook-Id", Some(OURS)), ("waterclock-turn", Some(OURS)),
        ("", Some(NAME)), ("a b", Some(NAME)), ("a:", Some(NAME)), ("é", Some(NAME)),
    ];
    for (given, want) in cases {
        let json = json!([["a", "b"], [given, "secret"]]);
        let wrongs = http(&format!(r#""service":"s","headers":{json}"#));
        let want = want.map(|want| format!("headers[1][0] is \"{given}\"; {want}"));
        assert_eq!(wrongs, Vec::from_iter(want), "{given}");
    }
    let many = |count: usize| json!(vec![["a", ""]; count]);
    assert_eq!(http(&format!(r#""service":"s","headers":{}"#, many(64))), [""; 0]);
    let wrongs = http(&format!(r#""service":"s","headers":{}"#, many(65)));
    assert_eq!(wrongs, ["headers has 65 headers; want at most 64"]);
    let wrongs = http(r#""service":"s","headers":{"a":"b"}"#);
    assert_eq!(wrongs, ["headers is {\"a\":\"b\"}; want a list of [name, value] pairs"]);
}

#[test]
fn an_answer_does_not_repeat_a_secret() {
    let wrongs = http(
        r#""url":"http://user:secret@a b:0/","headers":[["a","secret\u0000"],["b",["secret"]],["c","d","secret"]],
        "on_result":{"url":"https://secret@a#"}"#,
    );
    assert_eq!(wrongs.len(), 5, "{wrongs:?}");
    // A service's secret is where it belongs.
    assert!(wrongs.iter().all(|wrong| !wrong.replace("service's secret", "").contains("secret")));
}

#[test]
fn who_hears_of_the_result_is_exactly_one() {
    #[rustfmt::skip]
    let cases: &[(&str, &[&str])] = &[
        (r#"{"topic":"t"}"#, &[]),
        (r#"{"service":"s"}"#, &[]),
        (r#"{"url":"http://a"}"#, &[]),
        (r#"{}"#, &["on_result has none; want exactly one of topic, service, url"]),
        (r#"{"topics":"t"}"#, &[
            "on_result.topics is not a field of on_result; did you mean topic?",
            "on_result has none; want exactly one of topic, service, url",
        ]),
        (r#"{"topic":"t","service":"s","url":"http://a"}"#,
            &["on_result has topic and service and url; want exactly one of topic, service, url"]),
        (r#""t""#, &["on_result is \"t\"; want a JSON object"]),
    ];
    for (to, want) in cases {
        assert_eq!(kafka(&format!(r#""topic":"t","on_result":{to}"#)), *want, "{to}");
    }
}

#[test]
fn expected_statuses_are_classes_and_codes() {
    #[rustfmt::skip]
    let cases = [
        ("2xx",                 Some("2xx")),
        ("404",                 Some("404")),
        ("404, 2xx ,410,404",   Some("2xx,404,410")),
        ("200,2xx,5xx,299",     Some("2xx,5xx")),
        ("599,200",             Some("200,599")),
        ("", None), (",", None), ("2xx,", None), ("1xx", None), ("6xx", None), ("2XX", None), ("2x", None), ("199", None),
        ("600", None), ("2000", None), ("+20", None), ("2xx;3xx", None), ("200-299", None), ("２xx", None),
    ];
    for (text, want) in cases {
        let expect = Expect::parse(text);
        assert_eq!(expect.as_ref().map(ToString::to_string).as_deref(), want, "{text:?}");
    }
    let expect = Expect::parse("2xx,404").unwrap();
    let found: Vec<u16> = (0..=u16::MAX).filter(|status| expect.matches(*status)).collect();
    assert_eq!(found, (200..300).chain([404]).collect::<Vec<_>>());
}

#[test]
fn what_would_be_too_long_as_it_is_written_is_refused() {
    // Percent-encoded, a path takes a little less than twice as many bytes more than are left here.
    let json = |filler: usize| {
        let value = "v".repeat(filler);
        json!({
            "type": "http", "project": "p", "group": "g", "service": "s", "path": format!("/{}", "é".repeat(300)),
            "headers": [["a", value]],
        })
        .to_string()
    };
    let spare = SPEC_MAX - json(0).len();
    assert!(parse(&json(spare - 1_300)).is_ok());
    let wrongs = parse(&json(spare)).unwrap_err();
    let want = format!(
        "x-delay-task has {} bytes once its defaults are written out; want at most 16384",
        SPEC_MAX + 300 * 4 + r#""method":"POST","expect":"2xx","#.len()
    );
    assert_eq!(wrongs, [want]);
}

fn any_name() -> impl Strategy<Value = String> {
    "[a-z0-9._-]{0,63}[a-z0-9]"
}

fn any_url() -> impl Strategy<Value = Url> {
    let text = "https?://([a-z]{1,9}|\\[::[0-9a-f]{1,4}\\]|ü[a-z]{1,3}\\.example)(:[1-9][0-9]{0,3})?(/[a-zé@.%]{0,9}){0,3}(\\?[a-z=&'ü]{0,9})?";
    text.prop_filter_map("a URL that is taken", |text| address::url(&Value::from(text)).ok())
}

fn any_on_result() -> impl Strategy<Value = OnResult> {
    prop_oneof![
        "[a-zA-Z0-9_-]{1,249}".prop_map(OnResult::Topic),
        any_name().prop_map(OnResult::Service),
        any_url().prop_map(OnResult::Url),
    ]
}

fn any_address() -> impl Strategy<Value = Address> {
    let path = "/[a-zé@]{0,9}(/[a-z]{0,3}){0,2}(\\?[a-z=&]{0,9})?"
        .prop_filter_map("a path that is taken", |text| address::path(&Value::from(text)).ok());
    prop_oneof![
        (any_name(), proptest::option::of(path))
            .prop_map(|(name, path)| Address::Service { name, path }),
        any_url().prop_map(Address::Url),
    ]
}

fn any_http() -> impl Strategy<Value = Http> {
    let header = ("x-[a-zA-Z0-9!#]{1,20}", "\\PC{0,50}")
        .prop_filter("not ours", |(name, _)| !name.to_lowercase().starts_with("x-forwarded-"));
    let headers = proptest::collection::vec(header, 0..5);
    let timeout = proptest::option::of((1..=TIMEOUT_MAX.0).prop_map(Millis));
    let expect = proptest::collection::vec(
        prop_oneof![
            (2..=5u8).prop_map(|class| format!("{class}xx")),
            (200..600u16).prop_map(|code| code.to_string())
        ],
        1..6,
    );
    let expect = expect.prop_map(|parts| Expect::parse(&parts.join(",")).unwrap());
    let poll = proptest::option::of((1_000..=86_400_000u64, 1..=ROUNDS_MAX));
    (any_address(), 0..Method::ALL.len(), headers, timeout, expect, poll, any_feedback()).prop_map(
        |(address, method, headers, timeout, expect, poll, feedback)| Http {
            address,
            method: Method::ALL[method],
            headers,
            timeout,
            expect,
            poll: poll
                .filter(|_| feedback.is_none())
                .map(|(interval, rounds)| Poll { interval: Millis(interval), rounds }),
            feedback,
        },
    )
}

fn any_feedback() -> impl Strategy<Value = Option<Feedback>> {
    let heartbeat = HEARTBEAT_MIN.0..=DEADLINE.1.0;
    let feedback = (DEADLINE.0.0..=DEADLINE.1.0, heartbeat).prop_map(|(deadline, heartbeat)| {
        let heartbeat = if heartbeat > deadline { deadline } else { heartbeat };
        Feedback { deadline: Millis(deadline), heartbeat: Millis(heartbeat) }
    });
    proptest::option::of(feedback)
}

fn any_kafka() -> impl Strategy<Value = Kafka> {
    let key = proptest::option::of(proptest::collection::vec(any::<u8>(), 0..=KEY_MAX));
    ("[a-zA-Z0-9_-]{1,249}", proptest::option::of(0..=i32::MAX), key, any_feedback())
        .prop_map(|(topic, partition, key, feedback)| Kafka { topic, partition, key, feedback })
}

fn any_grpc() -> impl Strategy<Value = Grpc> {
    let host =
        "([a-z]{1,9}|\\[::[0-9a-f]{1,4}\\]|ü[a-z]{1,3}\\.example|127\\.0\\.0\\.1):[1-9][0-9]{0,3}";
    let host = (host, any::<bool>()).prop_filter_map("a host that is taken", |(text, tls)| {
        let json = json!({ "host": text, "tls": tls, "service": "s", "method": "m" });
        let fields = Fields::of_document(json.as_object()?);
        let grpc = grpc::read(&fields, &mut Wrongs::default())?;
        assert_eq!(grpc.host().map(|(_, is_tls)| is_tls), Some(tls));
        Some(grpc.address)
    });
    let address = prop_oneof![any_name().prop_map(GrpcAddress::Service), host];
    let names = ("[a-zA-Z_]{1,9}(\\.[A-Z][a-z0-9_]{0,9}){0,3}", "[A-Za-z_][A-Za-z0-9_]{0,20}");
    let headers = proptest::collection::vec(("x-[a-zA-Z0-9_.]{1,20}(-bin)?", "[ -~]{0,50}"), 0..5);
    let timeout = proptest::option::of((1..=TIMEOUT_MAX.0).prop_map(Millis));
    let poll = proptest::option::of((1_000..=86_400_000u64, 1..=ROUNDS_MAX));
    (address, names, any::<bool>(), headers, timeout, poll, any_feedback()).prop_map(
        |(address, (service, method), is_json, headers, timeout, poll, feedback)| Grpc {
            address,
            service,
            method,
            format: if is_json { BodyFormat::Json } else { BodyFormat::Protobuf },
            headers: headers
                .into_iter()
                .filter(|(name, _)| !name.to_lowercase().starts_with("x-forwarded-"))
                .collect(),
            timeout,
            poll: poll
                .filter(|_| feedback.is_none())
                .map(|(interval, rounds)| Poll { interval: Millis(interval), rounds }),
            feedback,
        },
    )
}

fn any_spec() -> impl Strategy<Value = Spec> {
    let kind = prop_oneof![
        any_http().prop_map(Kind::Http),
        any_kafka().prop_map(Kind::Kafka),
        any_grpc().prop_map(Kind::Grpc)
    ];
    let occurrence = ("[a-z0-9_-]{1,64}", 0..=NEVER.0, proptest::option::of(0..=NEVER.0));
    let occurrence = occurrence.prop_map(|(schedule, nominal, after)| Occurrence {
        schedule,
        nominal: UnixMillis(nominal),
        after: after.map(UnixMillis),
    });
    let shard = (0..SHARDS_MAX, 0..SHARDS_MAX)
        .prop_map(|(one, two)| Shard { index: one.min(two), count: one.max(two) + 1 });
    let rest = (
        proptest::option::of(any_retry()),
        proptest::option::of(any_on_result()),
        proptest::option::of(occurrence),
        proptest::option::of(shard),
    );
    let names = (any_name(), any_name(), proptest::option::of("[ -~]{1,128}"));
    (names, kind, rest).prop_map(|(names, kind, (retry, on_result, occurrence, shard))| {
        let (project, group, request_id) = names;
        let expires = Some(UnixMillis(99_000));
        Spec { project, group, request_id, kind, retry, on_result, occurrence, shard, expires }
    })
}

proptest! {
    #[test]
    fn a_specification_is_read_back(spec in any_spec()) {
        let json = spec.to_json();
        prop_assert!(json.len() <= SPEC_MAX);
        prop_assert_eq!(Spec::parse(json.as_bytes()), Ok(spec));
    }

    /// One field more, or one field less than is needed, is always named.
    #[test]
    fn a_field_too_many_or_too_few_is_named(spec in any_spec(), more in "[a-z]{12}", fewer in 0..3usize) {
        let mut json: Value = serde_json::from_str(&spec.to_json()).unwrap();
        json[&more] = 1.into();
        let fewer = ["type", "project", "group"][fewer];
        json.as_object_mut().unwrap().remove(fewer);
        let wrongs = Spec::parse(json.to_string().as_bytes()).unwrap_err();
        let at: Vec<_> = wrongs.iter().map(|wrong| wrong.at.as_str()).collect();
        prop_assert!(at.contains(&more.as_str()) && at.contains(&fewer), "{:?}", at);
    }

    /// Whatever a URL is: it is refused without a secret, or read back as it is kept.
    #[test]
    fn any_url_is_kept_or_refused(rest in "\\PC{0,30}|[a-z:@/?#\\\\.%0-9\\[\\]]{0,30}") {
        let url = address::url(&Value::from(format!("http://{rest}")));
        if let Ok(url) = url {
            prop_assert!(url.has_host() && url.username().is_empty() && url.password().is_none());
            prop_assert_eq!(address::url(&Value::from(url.as_str())), Ok(url));
        }
        if let Ok(path) = address::path(&Value::from(format!("/{rest}"))) {
            prop_assert!(path.starts_with('/') && !path.starts_with("//"));
            prop_assert_eq!(address::path(&Value::from(path.as_str())), Ok(path));
        }
    }

    #[test]
    fn made_up_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), text in "\\PC*") {
        prop_assert!(Spec::parse(&bytes).is_err_and(|wrongs| !wrongs.is_empty()));
        let json = json!({ "type": "http", "project": text, "url": text, text.clone(): text, "headers": [[text, text]] });
        let wrongs = Spec::parse(json.to_string().as_bytes()).unwrap_err();
        prop_assert!(wrongs.iter().all(|wrong| !wrong.to_string().chars().any(char::is_control)));
    }
}

#[test]
fn a_grpc_task_is_read_with_all_its_fields() {
    let full = concat!(
        r#"{"type":"grpc","project":"shop","group":"orders","host":"shop.example:443","tls":true,"#,
        r#""service":"shop.v1.Orders","method":"Expire","format":"json","headers":[["x-shop","eu"]],"timeout":10,"#,
        r#""retry":{"count":3,"interval":5,"backoff":"fixed","max_interval":3600,"jitter":0.0},"poll":{"interval":10,"rounds":360}}"#
    );
    let spec = parse(full).unwrap();
    assert_eq!(spec.to_json(), full);
    assert_eq!((spec.type_name(), spec.service()), ("grpc", None));
    // As an HTTP task that calls the same address has it.
    assert_eq!(spec.scope(), Some(Scope::Host("shop.example")));
    let Kind::Grpc(call) = spec.kind() else { panic!("{spec:?}") };
    assert_eq!(call.path(), "/shop.v1.Orders/Expire");
    assert_eq!(call.host(), Some(("shop.example:443".to_owned(), true)));
    assert_eq!(spec.poll(), Some(Poll { interval: Millis(10_000), rounds: 360 }));

    let least = r#"{"type":"grpc","project":"p","group":"g","host":"A.example:80","service":"s","method":"m"}"#;
    let spec = parse(least).unwrap();
    let want = r#"{"type":"grpc","project":"p","group":"g","host":"a.example:80","tls":false,"service":"s","method":"m","format":"protobuf"}"#;
    assert_eq!((spec.to_json().as_str(), spec.scope()), (want, Some(Scope::Host("a.example"))));

    let named = r#"{"type":"grpc","project":"p","group":"g","named_service":"billing","service":"s","method":"m","format":"protobuf"}"#;
    let spec = parse(named).unwrap();
    assert_eq!(spec.to_json(), named);
    assert_eq!((spec.service(), spec.scope()), (Some("billing"), Some(Scope::Service("billing"))));
}

#[test]
fn every_wrong_field_of_a_grpc_task_is_named() {
    let json = r#"{"type":"grpc","project":"p","group":"g","named_service":"B","host":"a.example","tls":1,"service":"a..b",
        "method":"a.b","format":"xml","headers":[["grpc-timeout","1S"],["x","ä"],["a!","b"]],"timeout":0,"poll":{},
        "feedback":{"deadline":5},"url":"http://a"}"#;
    let wrongs = parse(json).unwrap_err();
    let at: Vec<_> = wrongs.iter().map(|wrong| wrong.split(' ').next().unwrap()).collect();
    #[rustfmt::skip]
    let want = [
        "url", "named_service", "tls", "host", "host", "service", "method", "format", "headers[0]", "headers[1]",
        "headers[2]", "timeout", "poll.interval", "poll.rounds", "feedback",
    ];
    assert_eq!(at, want, "{wrongs:?}");
    assert!(!wrongs.iter().any(|wrong| wrong.contains('ä')), "{wrongs:?}");
    let of = |more: &str| {
        parse(&format!(
            r#"{{"type":"grpc","project":"p","group":"g","service":"s","method":"m"{more}}}"#
        ))
    };
    assert_eq!(
        of("").unwrap_err(),
        ["host is missing; want exactly one of host and named_service"]
    );
    let tls = of(r#","named_service":"b","tls":true"#).unwrap_err();
    assert_eq!(
        tls,
        ["tls is there beside named_service, whose address says it; want it with host"]
    );
    for host in [
        "a",
        "a:",
        ":1",
        "a:0",
        "a:65536",
        "a:+1",
        "a:1/",
        "a:1?b",
        "a:1#b",
        "a\\\\b:1",
        "a b:1",
        "http://a:1",
        "u:p@a:1",
        "a:1@b:2",
        "::1:1",
        "",
    ] {
        let wrongs = of(&format!(r#","host":"{host}""#)).expect_err(host);
        assert!(wrongs.len() == 1 && wrongs[0].starts_with("host "), "{host}: {wrongs:?}");
        assert!(!wrongs[0].contains('@'), "{wrongs:?}");
    }
    for host in ["a:1", "[::1]:50051", "127.0.0.1:1", "a.b-c.example:65535"] {
        assert!(of(&format!(r#","host":"{host}""#)).is_ok(), "{host}");
    }
}

#[test]
fn a_task_reports_or_is_asked_and_not_both() {
    let of = |more: &str| {
        parse(&format!(
            r#"{{"type":"http","project":"p","group":"g","url":"http://a.example"{more}}}"#
        ))
    };
    let spec = of(r#","feedback":{"deadline":"1h","heartbeat":"30s"}"#).unwrap();
    let want = Feedback { deadline: Millis(3_600_000), heartbeat: Millis(30_000) };
    assert_eq!(spec.feedback(), Some(want));
    // Without a heartbeat, who reports nothing else has the deadline for it.
    let spec = of(r#","feedback":{"deadline":60}"#).unwrap();
    let want = Feedback { deadline: Millis(60_000), heartbeat: Millis(60_000) };
    assert_eq!(spec.feedback(), Some(want));
    assert!(spec.to_json().ends_with(r#""feedback":{"deadline":60}}"#), "{}", spec.to_json());
    let both = of(r#","poll":{"interval":1,"rounds":1},"feedback":{"deadline":60}"#).unwrap_err();
    assert_eq!(both, ["feedback is there beside poll; want at most one of them"]);
    let grpc = r#"{"type":"grpc","project":"p","group":"g","host":"a:1","service":"s","method":"m","feedback":{"deadline":60}}"#;
    assert_eq!(parse(grpc).unwrap().feedback(), Some(want));
}

#[test]
fn executors_read_the_topic_of_what_they_report_on() {
    let kafka = r#""type":"kafka","topic":"parts""#;
    let awaited = format!(r#"{kafka},"feedback":{{"deadline":"1h"}}"#);
    let http = r#""type":"http","url":"https://a.example/","feedback":{"deadline":"1h"}"#;
    let run = |task: &str| format!(r#""type":"run","shards":3,"task":{{{task}}}"#);
    let every = |task: &str| {
        format!(r#""type":"schedule","name":"nightly","every":"1d","task":{{{task}}}"#)
    };
    #[rustfmt::skip]
    let cases = [
        (kafka.to_owned(),      None),
        (awaited.clone(),       Some("parts")),
        (http.to_owned(),       None),
        (run(&awaited),         Some("parts")),
        (run(http),             None),
        (every(kafka),          None),
        (every(&awaited),       Some("parts")),
        (every(&run(&awaited)), Some("parts")),
        (every(http),           None),
    ];
    for (of, want) in cases {
        let spec = parse(&format!(r#"{{"project":"shop","group":"orders",{of}}}"#));
        let spec = spec.unwrap_or_else(|wrongs| panic!("{of}: {wrongs:?}"));
        assert_eq!(spec.executed_from().as_deref(), want, "{of}");
    }
}

fn schedule(more: &str) -> String {
    format!(
        r#"{{"type":"schedule","project":"shop","group":"g","name":"nightly"{more},"task":{{"type":"http","url":"http://a.example/","body":"b"}}}}"#
    )
}

#[test]
fn a_schedule_is_read_back_with_its_task_as_it_was_written() {
    for more in [
        r#","cron":"30 2 * * *","zone":"Europe/Berlin""#,
        r#","every":"90s","paused":true,"expires":"5m","overlap":"queue_one""#,
    ] {
        let spec =
            Spec::parse(schedule(more).as_bytes()).unwrap_or_else(|wrongs| panic!("{wrongs:?}"));
        let of = spec.schedule().expect("a schedule");
        assert_eq!(
            (of.name(), of.type_of_task(), spec.type_name()),
            ("nightly", "http", "schedule")
        );
        assert_eq!((spec.feedback(), spec.scope(), spec.service()), (None, None, None));
        assert_eq!(of.is_paused(), more.contains("paused"));
        assert_eq!(Spec::parse(spec.to_json().as_bytes()), Ok(spec.clone()));
        assert_eq!(of.task().get("body").and_then(|body| body.as_str()), Some("b"));
        let again = spec.clone().with_paused(true).with_paused(of.is_paused());
        assert_eq!(again, spec);
    }
}

#[test]
fn what_is_wrong_with_a_schedule_and_its_task_is_named() {
    let of = |json: &str| {
        let wrongs = Spec::parse(json.as_bytes()).expect_err(json);
        wrongs.iter().map(|wrong| wrong.at.clone()).collect::<Vec<_>>()
    };
    let every = schedule(r#","every":"1s""#);
    #[rustfmt::skip]
    let cases: &[(String, &[&str])] = &[
        (schedule(""),                                             &["cron"]),
        (schedule(r#","every":"1s","retry":{}"#),                  &["retry"]),
        (schedule(r#","every":"1s","occurrence":{}"#),             &["occurrence", "occurrence.schedule", "occurrence.nominal"]),
        (every.replace("nightly", "a.b"),                          &["name"]),
        (every.replace("nightly", "a@b"),                          &["name"]),
        (every.replace("\"http\"", "\"schedule\""),                &["task.type"]),
        (every.replace("\"http\"", "\"run\""),                     &["task.body", "task.url", "task.shards", "task.task"]),
        (every.replace("\"body\"", "\"trigger_at\""),              &["task.trigger_at"]),
        (every.replace("\"body\"", "\"occurrence\""),              &["task.occurrence"]),
        (every.replace("http://a.example/", "ftp://a.example/"),   &["task.url"]),
    ];
    for (json, want) in cases {
        assert_eq!(of(json), *want, "{json}");
    }
    let long = every.replace("\"b\"", &format!("\"{}\"", "x".repeat(SCHEDULE_MAX)));
    assert_eq!(of(&long), ["x-delay-task"]);
}

#[test]
fn a_count_is_counted_out_once() {
    let of = |more: &str| {
        let spec = Spec::parse(schedule(more).as_bytes());
        spec.unwrap_or_else(|wrongs| panic!("{more}: {wrongs:?}"))
    };
    let last = |spec: &Spec| {
        let timing = spec.schedule().expect("a schedule").timing();
        timing.times(UnixMillis(0), UnixMillis(u64::MAX), 1_000).times.last().copied()
    };
    let day = |day: u64| UnixMillis(1_800_000_000_000 / DAY * DAY + day * DAY);
    const DAY: u64 = 86_400_000;
    let start = format!(r#","cron":"@daily","start":{}"#, day(0).0);
    for (more, want) in [
        (r#","count":30"#.to_owned(), day(29)),
        (format!(r#","count":30,"end":{}"#, day(10).0), day(9)),
    ] {
        let spec = of(&format!("{start}{more}"));
        let written = format!(r#","last_of_count":{}"#, want.0);
        assert!(spec.to_json().contains(&written), "{}", spec.to_json());
        assert_eq!(
            (last(&spec), Spec::parse(spec.to_json().as_bytes())),
            (Some(want), Ok(spec.clone()))
        );
        // It is believed. What was written before it was is counted out.
        let sooner = spec.to_json().replace(&written, &format!(r#","last_of_count":{}"#, day(3).0));
        assert_eq!(last(&Spec::parse(sooner.as_bytes()).expect("sound")), Some(day(3)));
        let older = spec.to_json().replace(&written, "");
        assert_eq!(Spec::parse(older.as_bytes()), Ok(spec));
    }
    assert!(!of(&start).to_json().contains("last_of_count"));
    // Nobody asks for it, and nobody is offered it.
    let request = schedule(&format!(r#"{start},"count":3,"last_of_count":{}"#, day(3).0));
    let request = request.replace(r#""type":"schedule","#, "");
    let wrongs = Spec::read_schedule(request.as_bytes(), None).expect_err("it is there");
    assert_eq!(wrongs[0].to_string(), "last_of_count is there; it is what waterclock writes");
    let wrongs = Spec::parse(schedule(r#","every":"1s","counter":1"#).as_bytes()).expect_err("one");
    assert!(!wrongs[0].to_string().contains("last_of_count"), "{wrongs:?}");
}

#[test]
fn a_request_for_a_schedule_says_no_type_and_no_other_name_than_its_path() {
    let json = schedule(r#","every":"1s""#);
    let request = json.replace(r#""type":"schedule","#, "");
    let read = |json: &str, of| {
        Spec::read_schedule(json.as_bytes(), of).map_err(|wrongs| wrongs[0].at.clone())
    };
    let spec = Spec::parse(json.as_bytes()).expect("sound");
    assert_eq!(read(&request, None), Ok(spec.clone()));
    assert_eq!(read(&request, Some(("shop", "nightly"))), Ok(spec.clone()));
    assert_eq!(
        read(&request.replace(r#""name":"nightly","#, ""), Some(("shop", "nightly"))),
        Ok(spec)
    );
    assert_eq!(read(&json, None), Err("type".to_owned()));
    assert_eq!(read(&request, Some(("home", "nightly"))), Err("project".to_owned()));
    assert_eq!(read(&request, Some(("shop", "daily"))), Err("name".to_owned()));
}
