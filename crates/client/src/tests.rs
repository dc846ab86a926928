use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::time::{Duration, UNIX_EPOCH};

use super::ask::{self, Ask};
use super::*;
use waterclock_engine::Millis;

type Pairs<'a> = &'a [(&'a str, Option<&'a str>)];

fn headers(record: &Record) -> Vec<(String, Option<String>)> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    record.headers().map(|(name, value)| (text(name), value.map(text))).collect()
}

fn same(record: &Record, want: Pairs<'_>) -> bool {
    let want = want.iter().map(|(name, value)| ((*name).to_owned(), value.map(str::to_owned)));
    headers(record) == want.collect::<Vec<_>>()
}

#[test]
fn a_record_says_in_headers_what_is_asked_for() {
    let at = UNIX_EPOCH + Duration::from_millis(1_767_225_600_000);
    let to = || Delayed::to("orders");
    let target = ("x-delay-target", Some("orders"));
    #[rustfmt::skip]
    let cases: [(&str, Delayed, Pairs<'_>); 8] = [
        ("no time: the intake's default", to(), &[target]),
        ("a delay", to().after(Duration::from_secs(90)), &[("x-delay", Some("90000ms")), target]),
        ("never early", to().after(Duration::from_nanos(1)), &[("x-delay", Some("1ms")), target]),
        ("a time, never early", to().until(at + Duration::from_nanos(1)), &[("x-delay-until", Some("1767225600001")), target]),
        ("before the contract's first", to().until(UNIX_EPOCH), &[("x-delay-until", Some("1000000000000")), target]),
        ("the later word counts", to().until(at).after(Duration::ZERO), &[("x-delay", Some("0ms")), target]),
        ("everything", to().after(Duration::ZERO).id("i").partition(3).expires_after(Duration::from_secs(1)).label("l").header("mine", "1"),
            &[("x-delay", Some("0ms")), target, ("x-delay-id", Some("i")), ("x-delay-partition", Some("3")),
              ("x-delay-expires", Some("1000ms")), ("x-delay-label", Some("l")), ("mine", Some("1"))]),
        ("a trace says how long it was", to().after(Duration::from_secs(5)).trace().attempt(2),
            &[("x-delay", Some("5000ms")), target, ("x-delay-trace", Some("1")), ("x-delay-attempt", Some("2")), ("waterclock-interval", Some("5000"))]),
    ];
    for (why, delayed, want) in cases {
        let record = delayed.record(TimerAction::Create, false).expect(why);
        assert!(same(&record, want), "{why}: {:?}", headers(&record));
    }
}

#[test]
fn what_the_contract_refuses_has_its_code() {
    let to = || Delayed::to("orders").after(Duration::ZERO);
    #[rustfmt::skip]
    let cases = [
        ("no topic can have that name", Delayed::to("a b"), "bad_target"),
        ("an id of nothing", to().id(""), "bad_id"),
        ("a path that is another", to().id("a/../b"), "bad_id"),
        ("a long label", to().label("x".repeat(65)), "bad_label"),
        ("a header of the contract", to().header("x-delay", "1"), "duplicate_header"),
        ("an unknown header of it", to().header("x-delay-retries", "1"), "unknown_header"),
        ("beyond time", to().after(Duration::MAX), "delay_overflow"),
    ];
    for (why, delayed, code) in cases {
        let refusal = delayed.record(TimerAction::Create, false).expect_err(why);
        assert_eq!(refusal.code.as_str(), code, "{why}");
    }
}

#[test]
fn a_header_that_is_replaced_stands_once_and_the_others_stay() {
    let pairs: Pairs<'_> = &[("attempt", Some("1")), ("a", None), ("attempt", None)];
    let pairs = pairs.iter().map(|(name, value)| (name.as_bytes(), value.map(str::as_bytes)));
    let message = Message::new("orders", 4, None, None, pairs);
    let delayed = message.delayed().after(Duration::from_secs(1)).replace_header("attempt", "2");
    let record = delayed.record(TimerAction::Create, true).expect("in order");
    let want: Pairs<'_> = &[
        ("x-delay-target", Some("orders")),
        ("x-delay-partition", Some("4")),
        ("a", None),
        ("attempt", Some("2")),
    ];
    assert!(same(&record, want), "{:?}", headers(&record));
}

#[test]
fn only_a_plain_delay_without_an_id_may_go_to_a_tier() {
    let to = || Delayed::to("orders");
    let minute = Duration::from_secs(60);
    #[rustfmt::skip]
    let cases = [
        ("a delay", to().after(minute), Some(Millis(60_000))),
        ("an id must be met in the intake", to().after(minute).id("a"), None),
        ("a time fits no hold", to().until(UNIX_EPOCH + minute), None),
        ("the default is the intake's", to(), None),
    ];
    for (why, delayed, hold) in cases {
        assert_eq!(delayed.hold(), hold, "{why}");
    }
    let record = to().after(minute).record(TimerAction::Create, true).expect("in order");
    assert!(same(&record, &[("x-delay-target", Some("orders"))]), "the tier says how long");
}

#[test]
fn a_consumed_record_goes_the_same_way_again() {
    let traced: Pairs<'_> = &[
        ("a", Some("1")),
        ("a", None),
        ("waterclock-interval", Some("5000")),
        ("x-delay-due", Some("1767225605000")),
        ("x-delay-fired", Some("1767225605001")),
        ("x-delay-id", Some("poll-1")),
        ("x-delay-attempt", Some("2")),
    ];
    let pairs = traced.iter().map(|(name, value)| (name.as_bytes(), value.map(str::as_bytes)));
    let message = Message::new("polls", 4, Some(b"k"), None, pairs);
    assert_eq!(message.interval(), Some(Duration::from_secs(5)));
    assert_eq!(message.due(), Some(UNIX_EPOCH + Duration::from_millis(1_767_225_605_000)));
    assert_eq!((message.attempt(), message.id()), (2, Some("poll-1")));

    let again =
        message.again().expect("traced").record(TimerAction::Create, false).expect("in order");
    let want: Pairs<'_> = &[
        ("x-delay", Some("5000ms")),
        ("x-delay-target", Some("polls")),
        ("x-delay-id", Some("poll-1")),
        ("x-delay-partition", Some("4")),
        ("x-delay-trace", Some("1")),
        ("x-delay-attempt", Some("2")),
        ("waterclock-interval", Some("5000")),
        ("a", Some("1")),
        ("a", None),
    ];
    assert!(same(&again, want), "{:?}", headers(&again));
    assert_eq!((again.key(), again.value()), (Some(&b"k"[..]), None));
}

#[test]
fn what_was_not_traced_needs_to_be_told_when() {
    let message = Message::new("polls", 0, None, Some(b"v"), std::iter::empty());
    assert!(matches!(message.again(), Err(Error::NoInterval)));
    let record = message.delayed().after(Duration::from_secs(1)).record(TimerAction::Create, false);
    let want: Pairs<'_> = &[
        ("x-delay", Some("1000ms")),
        ("x-delay-target", Some("polls")),
        ("x-delay-partition", Some("0")),
    ];
    assert!(same(&record.expect("in order"), want));
}

#[test]
fn ids_and_keys_stand_in_urls() {
    type Case<'a> = (&'a str, &'a str, Option<&'a [u8]>, &'a str, &'a str);
    #[rustfmt::skip]
    let cases: [Case<'_>; 5] = [
        ("plain", "http://a:1", Some(b"k"), "order-42", "http://a:1/v1/timers/order-42?key=k"),
        ("no key", "http://a:1", None, "x", "http://a:1/v1/timers/x"),
        ("an empty key is one", "http://a:1/", Some(b""), "x", "http://a:1/v1/timers/x?key="),
        ("behind a path, all escaped", "https://a/wc/", Some(b"a&b"), "a/b?c d", "https://a/wc/v1/timers/a%2Fb%3Fc%20d?key=a%26b"),
        ("a key that is no text", "http://a:1", Some(b"\xff\x00"), "x", "http://a:1/v1/timers/x?key_base64=_wA"),
    ];
    for (why, base, key, id, want) in cases {
        let base = http::address(base).expect(why);
        assert_eq!(ask::timer(&base, key, id).as_str(), want, "{why}");
    }
    for wrong in ["", "a:1", "ftp://a", "http://"] {
        let address = http::address(wrong).map_err(Error::from);
        assert!(matches!(address, Err(Error::Address { .. })), "{wrong}");
    }
}

/// A server that gives these answers, one a connection, and then no more; and what it was asked.
fn server(answers: Vec<&'static str>) -> (Url, std::thread::JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    let serving = std::thread::spawn(move || {
        let serve = |answer: &str| {
            let (mut stream, _) = listener.accept().expect("a connection");
            let mut asked = [0; 4_096];
            let size = stream.read(&mut asked).expect("a request");
            let length = answer.split_once("\r\n\r\n").map_or(0, |(_, body)| body.len());
            let head = format!("\r\ncontent-length: {length}\r\nconnection: close\r\n");
            stream.write_all(answer.replacen("\r\n", &head, 1).as_bytes()).expect("answered");
            let asked = String::from_utf8_lossy(&asked[..size]);
            let line = asked.lines().next().unwrap_or_default();
            // How long it may wait depends on the clock.
            line.split("wait=").next().unwrap_or_default().to_owned()
        };
        answers.into_iter().map(serve).collect()
    });
    (http::address(&url).expect("an address"), serving)
}

fn cancelling(
    answers: Vec<&'static str>,
    within: Duration,
) -> (Result<Outcome, Error>, Vec<String>) {
    let (base, serving) = server(answers);
    let http = Http::new(None, &Tls::default()).expect("a client");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let ask = Ask { http: &http, within };
    let asked = ask.cancel(|_| Ok(ask::timer(&base, Some(b"k"), "a")));
    let outcome = runtime.expect("a runtime").block_on(asked);
    (outcome, serving.join().expect("served"))
}

const MOVING: &str = "HTTP/1.1 503 Moving\r\nretry-after: 0\r\n\r\n{}";
const PENDING: &str =
    "HTTP/1.1 202 Later\r\nlocation: /v1/cancels/7\r\n\r\n{\"outcome\":\"pending\"}";
const CANCELLED: &str = "HTTP/1.1 200 OK\r\n\r\n{\"id\":\"a\",\"outcome\":\"cancelled\"}";
const DEAD: &str =
    "HTTP/1.1 200 OK\r\n\r\n{\"id\":\"a\",\"outcome\":\"unknown\",\"state\":\"dead\"}";
const LOST: &str = "HTTP/1.1 410 Gone\r\n\r\n{\"code\":\"answer_lost\"}";
const STRANGE: &str = "HTTP/1.1 200 OK\r\n\r\n<html>";

#[test]
fn a_cancel_is_asked_until_it_is_decided() {
    let long = Duration::from_secs(10);
    let (outcome, asked) = cancelling(vec![MOVING, PENDING, MOVING, CANCELLED], long);
    assert_eq!(outcome.expect("decided"), Outcome::Cancelled);
    let delete = "DELETE /v1/timers/a?key=k&";
    let get = "GET /v1/cancels/7 HTTP/1.1";
    assert_eq!(asked, [delete, delete, get, get], "what goes by is asked again where it was asked");

    let (outcome, asked) = cancelling(vec![PENDING, LOST, CANCELLED], long);
    assert_eq!(outcome.expect("decided"), Outcome::Cancelled);
    assert_eq!(asked, [delete, get, delete], "an answer that is lost is asked for again");

    let (outcome, _) = cancelling(vec![DEAD], long);
    assert_eq!(
        outcome.expect("decided"),
        Outcome::Unknown { state: Some("dead".to_owned()), code: None }
    );
    let (outcome, _) = cancelling(vec![STRANGE], long);
    assert!(matches!(outcome, Err(Error::Answer { .. })), "{outcome:?}");
}

#[test]
fn nothing_is_asked_for_longer_than_the_bound() {
    let (outcome, _) = cancelling(vec![MOVING], Duration::ZERO);
    assert!(matches!(outcome, Err(Error::Busy { .. })), "{outcome:?}");
    let (outcome, _) = cancelling(vec![PENDING], Duration::ZERO);
    assert_eq!(outcome.expect("an answer"), Outcome::Pending);
}

#[test]
fn what_the_server_refuses_is_said_in_its_words_and_not_asked_again() {
    let bad = "HTTP/1.1 400 Bad\r\n\r\n{\"code\":\"bad_id\",\"detail\":\"the id is empty\"}";
    let (outcome, asked) = cancelling(vec![bad], Duration::from_secs(10));
    assert_eq!(asked.len(), 1);
    match outcome {
        Err(error @ Error::Refused { status: 400, .. }) => {
            assert!(error.to_string().ends_with("answered 400 bad_id: the id is empty"), "{error}");
            assert!(!error.is_safe_to_repeat());
        }
        other => panic!("{other:?}"),
    }
}
