use proptest::prelude::*;

use super::*;

const SHOP: &str = "project/shop";
const PAY: &str = "service/shop/pay";
const IN_META: &str = r#"{"version":1,"revision":3}"#;
const PAY_IN_META: &str = r#"{"version":1,"revision":4,"address":"https://pay.example/v1"}"#;

fn rate(per_1000_s: u64) -> Option<Rate> {
    Rate::per_1000_s(per_1000_s)
}

fn hosts_of(texts: &[&str]) -> Option<Hosts> {
    Hosts::new(texts.iter().map(|text| (*text).to_owned()).collect()).ok()
}

fn thrice() -> Retry {
    let json = r#"{"address":"http://a","retry":{"count":3,"interval":1}}"#;
    let change = read_request(PAY, json.as_bytes()).unwrap();
    let Setting::Service(_, _, Some(service)) = change.setting else { panic!("a service") };
    service.retry
}

fn heard(registry: &mut Registry, key: &str, json: Option<&str>) {
    registry.apply(read(key, json.map(str::as_bytes)).unwrap()).unwrap();
}

/// What is wrong with a request, as texts.
fn wrong(key: &str, json: &str) -> Vec<String> {
    let wrong = read_request(key, json.as_bytes()).err().unwrap_or_default();
    wrong.iter().map(Wrong::to_string).collect()
}

/// Where something is wrong, by the alphabet.
fn places(key: &str, json: &str) -> Vec<String> {
    let wrong = read_request(key, json.as_bytes()).err().unwrap_or_default();
    let mut places: Vec<String> = wrong.into_iter().map(|wrong| wrong.at).collect();
    places.sort_unstable();
    places
}

#[test]
fn a_project_that_was_never_put_has_the_defaults() {
    let mut registry = Registry::default();
    let never = registry.project("shop");
    assert_eq!((never.revision, never.concurrency, never.history), (0, 256, Millis(604_800_000)));
    assert!(!never.is_deleted && !never.paused && never.rate.is_none() && never.targets.is_none());
    heard(&mut registry, SHOP, Some(IN_META));
    let put = Project { revision: 3, ..Project::NEVER_PUT };
    assert_eq!(registry.project("shop"), &put);
    assert_eq!(registry.project("other"), &Project::NEVER_PUT);
    heard(&mut registry, SHOP, None);
    assert_eq!(registry, Registry::default(), "nothing is left of it");
}

#[test]
fn all_fields_are_read() {
    let mut registry = Registry::default();
    let project = r#"{"version":1,"revision":9,"deleted":true,"paused":true,"concurrency":10000,"rate":0.125,
        "burst":7,"create_rate":2.5,"max_pending":0,"max_delay":"30d","max_body":0,"window":"5m","targets":["orders","billing\\..*"],"hosts":["a.example","*.b.example","10.0.0.7"],"history":"400d","quota":{"later":[1]}}"#;
    heard(&mut registry, SHOP, Some(project));
    let want = Project {
        revision: 9,
        is_deleted: true,
        paused: true,
        concurrency: 10_000,
        rate: rate(125),
        burst: 7,
        create_rate: rate(2_500),
        create_burst: 3,
        max_pending: Some(0),
        max_delay: Some(Millis(30 * 86_400_000)),
        max_body: Some(0),
        window: Millis(300_000),
        targets: Topics::new(vec!["orders".to_owned(), "billing\\..*".to_owned()]).ok(),
        hosts: hosts_of(&["a.example", "*.b.example", "10.0.0.7"]),
        history: HISTORY_MAX,
        services: BTreeMap::new(),
    };
    assert_eq!(registry.project("shop"), &want);
    assert_eq!(want.limits(), Limits { concurrency: 10_000, rate: rate(125), burst: 7 });
    let service = r#"{"version":1,"revision":2,"protocol":"http","address":"https://10.0.0.7:81/a","paused":true,
        "concurrency":1,"rate":2.5,"timeout":"1m30s","retry":{"count":3,"interval":1},"secret":"pay.key","bearer":"pay-token",
        "client_certificate":"pay-cert","tls":{}}"#;
    heard(&mut registry, PAY, Some(service));
    let want = Service {
        revision: 2,
        protocol: Protocol::Http,
        address: "https://10.0.0.7:81/a".to_owned(),
        paused: true,
        concurrency: 1,
        rate: rate(2_500),
        burst: 3,
        timeout: Millis(90_000),
        retry: thrice(),
        secret: Some("pay.key".to_owned()),
        bearer: Some("pay-token".to_owned()),
        client_certificate: Some("pay-cert".to_owned()),
    };
    assert_eq!(registry.service("shop", "pay"), Some(&want));
    assert_eq!(want.limits(), Limits { concurrency: 1, rate: rate(2_500), burst: 3 });
    heard(&mut registry, PAY, Some(PAY_IN_META));
    let plain = registry.service("shop", "pay").unwrap();
    assert_eq!((plain.concurrency, plain.timeout, plain.burst), (64, Millis(10_000), 1));
}

#[test]
fn the_last_record_of_a_key_wins() {
    let mut registry = Registry::default();
    heard(&mut registry, PAY, Some(PAY_IN_META));
    assert!(registry.service("shop", "pay").is_some(), "before its project");
    assert_eq!(registry.project("shop").concurrency, 256);
    heard(&mut registry, SHOP, Some(r#"{"version":1,"revision":9,"concurrency":5}"#));
    heard(&mut registry, SHOP, Some(r#"{"version":1,"revision":2,"concurrency":6}"#));
    let shop = registry.project("shop");
    assert_eq!((shop.revision, shop.concurrency), (2, 6), "whatever its revision");
    assert!(shop.services.contains_key("pay"), "a project keeps its services");
    heard(&mut registry, SHOP, None);
    assert!(registry.service("shop", "pay").is_some(), "also if nothing is said of it any more");
    heard(&mut registry, PAY, None);
    assert_eq!(registry.projects().count(), 0);
}

#[test]
fn the_revision_that_a_change_takes_the_place_of_is_that_of_its_key() {
    let mut registry = Registry::default();
    let of = |key: &str, json: Option<&str>| read(key, json.map(str::as_bytes)).unwrap();
    let (shop, pay) = (of(SHOP, Some(IN_META)), of(PAY, Some(PAY_IN_META)));
    assert_eq!((shop.revision(), pay.revision()), (3, 4));
    assert_eq!((of(SHOP, None).revision(), of(PAY, None).revision()), (0, 0));
    let before = |registry: &Registry| {
        (registry.revision_before(&of(SHOP, None)), registry.revision_before(&of(PAY, None)))
    };
    assert_eq!(before(&registry), (0, 0));
    registry.apply(pay.clone()).unwrap();
    assert_eq!(before(&registry), (0, 4), "a service may be heard of before its project");
    registry.apply(shop.with_revision(8)).unwrap();
    assert_eq!(before(&registry), (8, 4));
    heard(&mut registry, PAY, None);
    assert_eq!((registry.revision_before(&pay), before(&registry)), (0, (8, 0)));
}

#[test]
fn a_pause_is_of_a_project_or_of_a_service() {
    let paused = r#"{"version":1,"revision":1,"address":"http://x","paused":true}"#;
    let mut registry = Registry::default();
    heard(&mut registry, PAY, Some(paused));
    heard(&mut registry, "service/shop/mail", Some(PAY_IN_META));
    #[rustfmt::skip]
    let asked = [("shop", None), ("shop", Some("pay")), ("shop", Some("mail")), ("shop", Some("x")), ("x", Some("pay"))];
    let now =
        |registry: &Registry| asked.map(|(project, service)| registry.paused(project, service));
    assert_eq!(now(&registry), [false, true, false, false, false]);
    heard(&mut registry, SHOP, Some(r#"{"version":1,"revision":1,"paused":true}"#));
    assert_eq!(now(&registry), [true, true, true, true, false]);
}

#[test]
fn every_wrong_field_is_named() {
    let longest = format!("http://{}", "a".repeat(ADDRESS_MAX - 7));
    let too_long = format!(r#"{{"address":"{longest}a"}}"#);
    let longest = format!(r#"{{"address":"{longest}"}}"#);
    #[rustfmt::skip]
    let cases: [(&str, &str, &[&str]); 63] = [
        (SHOP, "{}",                                           &[]),
        (SHOP, r#"{"rate":null,"targets":null}"#,              &["rate", "targets"]),
        (SHOP, r#"{"concurrency":1,"history":"1h"}"#,          &[]),
        (SHOP, r#"{"concurrency":0}"#,                         &["concurrency"]),
        (SHOP, r#"{"concurrency":10001}"#,                     &["concurrency"]),
        (SHOP, r#"{"concurrency":1.5}"#,                       &["concurrency"]),
        (SHOP, r#"{"concurrency":"1"}"#,                       &["concurrency"]),
        (SHOP, r#"{"paused":"yes","history":5}"#,              &["paused", "history"]),
        (SHOP, r#"{"history":"59m"}"#,                         &["history"]),
        (SHOP, r#"{"history":"400d1ms"}"#,                     &["history"]),
        (SHOP, r#"{"create_burst":5}"#,                       &["create_burst"]),
        (SHOP, r#"{"create_rate":0}"#,                        &["create_rate"]),
        (SHOP, r#"{"max_delay":"3650d","max_body":1048576}"#,  &[]),
        (SHOP, r#"{"max_delay":1,"max_body":0}"#,              &[]),
        (SHOP, r#"{"max_delay":"999ms","max_body":1048577}"#,  &["max_delay", "max_body"]),
        (SHOP, r#"{"max_delay":"3650d1ms","max_body":-1}"#,    &["max_delay", "max_body"]),
        (SHOP, r#"{"max_delay":"a week","max_body":"1"}"#,     &["max_delay", "max_body"]),
        (SHOP, r#"{"hosts":["a","*.b.example","::1"]}"#,       &[]),
        (SHOP, r#"{"hosts":["a","b:80","*.c","http://d"]}"#,   &["hosts[1]", "hosts[3]"]),
        (SHOP, r#"{"hosts":"a"}"#,                             &["hosts"]),
        (SHOP, r#"{"window":"1h"}"#,                           &[]),
        (SHOP, r#"{"window":0}"#,                              &[]),
        (SHOP, r#"{"window":"1h1ms"}"#,                        &["window"]),
        (SHOP, r#"{"max_pending":1000000000}"#,                &[]),
        (SHOP, r#"{"max_pending":1000000001}"#,                &["max_pending"]),
        (SHOP, r#"{"rate":0.001}"#,                            &[]),
        (SHOP, r#"{"rate":1000000,"burst":1}"#,                &[]),
        (SHOP, r#"{"rate":0}"#,                                &["rate"]),
        (SHOP, r#"{"rate":-1}"#,                               &["rate"]),
        (SHOP, r#"{"rate":1000000.001}"#,                      &["rate"]),
        (SHOP, r#"{"rate":0.0005}"#,                           &["rate"]),
        (SHOP, r#"{"rate":1.0001}"#,                           &["rate"]),
        (SHOP, r#"{"rate":"5"}"#,                              &["rate"]),
        (SHOP, r#"{"burst":5}"#,                               &["burst"]),
        (SHOP, r#"{"rate":0,"burst":0}"#,                      &["rate", "burst"]),
        (SHOP, r#"{"rate":5,"burst":1000001}"#,                &["burst"]),
        (SHOP, r#"{"targets":[]}"#,                            &[]),
        (SHOP, r#"{"targets":["a","a)|(b","c","("]}"#,         &["targets[1]", "targets[3]"]),
        (SHOP, r#"{"targets":["a",5]}"#,                       &["targets"]),
        (SHOP, r#"{"targets":"a"}"#,                           &["targets"]),
        (SHOP, r#"{"version":1,"deleted":true,"x":null}"#,     &["deleted", "version", "x"]),
        (SHOP, r#"{"concurrency":1,"concurrency":1}"#,         &["concurrency"]),
        (SHOP, r#"{"concurrency":0,"paused":1,"y":2}"#,        &["paused", "concurrency", "y"]),
        (SHOP, "[]",                                           &[SHOP]),
        (SHOP, "{",                                            &[SHOP]),
        (SHOP, "{}{}",                                         &[SHOP]),
        (SHOP, "",                                             &[SHOP]),
        (PAY,  "{}",                                           &["address"]),
        (PAY,  r#"{"address":5}"#,                             &["address"]),
        (PAY,  r#"{"address":"http://a/"}"#,                   &[]),
        (PAY,  r#"{"address":"ftp://a"}"#,                     &["address"]),
        (PAY,  r#"{"address":"http://"}"#,                     &["address"]),
        (PAY,  r#"{"address":"https://:80/"}"#,                &["address"]),
        (PAY,  r#"{"address":"http://me:pw@a"}"#,              &["address"]),
        (PAY,  r#"{"address":"http://a\\@b"}"#,                &["address"]),
        (PAY,  r#"{"address":"http://a?b=c"}"#,                &["address"]),
        (PAY,  r#"{"address":"http://a b"}"#,                  &["address"]),
        (PAY,  &longest,                                       &[]),
        (PAY,  &too_long,                                      &["address"]),
        (PAY,  r#"{"address":"http://a","protocol":"tcp"}"#,   &["protocol"]),
        (PAY,  r#"{"address":"http://a","timeout":"5m1ms","secret":"A","bearer":"","client_certificate":"a b"}"#, &["timeout", "secret", "bearer", "client_certificate"]),
        (PAY,  r#"{"address":"https://a","client_certificate":"a"}"#, &[]),
        (PAY,  r#"{"address":"http://a","client_certificate":"a"}"#,  &["client_certificate"]),
    ];
    for (key, json, want) in cases {
        let mut want = want.to_vec();
        want.sort_unstable();
        assert_eq!(places(key, json), want, "{key} {json}");
    }
}

#[test]
fn what_is_wrong_says_what_is_wanted() {
    #[rustfmt::skip]
    let cases = [
        (SHOP, r#"{"concurrency":0}"#,     "concurrency is 0; want an integer from 1 to 10000"),
        (SHOP, r#"{"history":"1m"}"#,      "history is \"1m\"; want a length of time (\"1m30s\"; a number is seconds), from 1h to 400d"),
        (SHOP, r#"{"concurency":1}"#,      "concurency is not a field of a project; did you mean concurrency?"),
        (SHOP, "[]",                      "project/shop is []; want a JSON object"),
        (PAY,  "{}",                       "address is missing; want a URL http:// or https:// of at most 2048 bytes, without user information, query and fragment"),
    ];
    for (key, json, want) in cases {
        assert_eq!(wrong(key, json), [want], "{key} {json}");
    }
    let host = wrong(SHOP, r#"{"hosts":["a","http://foo","http://u:p@foo"]}"#);
    assert!(host[0].starts_with("hosts[1] is \"http://foo\"; want "), "{host:?}");
    assert!(host[1].starts_with("hosts[2] is something else (not shown"), "{host:?}");
    let target = "targets[0] is \"a(\", which is no regular expression: unclosed group";
    assert_eq!(wrong(SHOP, r#"{"targets":["a("]}"#), [target]);
    // Who puts a password where a name or an address belongs does not find it in a log.
    for field in ["secret", "bearer", "client_certificate", "address", "protocol"] {
        let found = wrong(PAY, &format!(r#"{{"{field}":"Hunter 2"}}"#)).join("; ");
        assert!(found.contains(field) && !found.contains("Hunter"), "{found}");
    }
}

#[test]
fn meta_has_a_version_and_a_revision() {
    #[rustfmt::skip]
    let cases: [(&str, &[&str]); 7] = [
        (IN_META,                                          &[]),
        (r#"{"version":1,"revision":1,"later":{"a":[]}}"#, &[]),
        ("{}",                                             &["version", "revision"]),
        (r#"{"version":2,"revision":1}"#,                  &["version"]),
        (r#"{"version":1,"revision":0}"#,                  &["revision"]),
        (r#"{"version":1,"revision":1,"deleted":1}"#,      &["deleted"]),
        (r#"{"version":1,"revision":1,"concurrency":0}"#,  &["concurrency"]),
    ];
    for (json, want) in cases {
        let wrong = read(SHOP, Some(json.as_bytes())).err().unwrap_or_default();
        let places: Vec<_> = wrong.iter().map(|wrong| wrong.at.as_str()).collect();
        assert_eq!(places, want, "{json}");
    }
}

#[test]
fn other_keys_are_refused() {
    let long = format!("project/{}", "a".repeat(NAME_MAX));
    let longer = format!("{long}a");
    #[rustfmt::skip]
    let cases = [
        (SHOP,                true,  true),
        (PAY,                 true,  true),
        (long.as_str(),       true,  true),
        (longer.as_str(),     false, true),
        ("project/",          false, true),
        ("project/a/b",       false, true),
        ("project/A",         false, true),
        ("project/..",        false, true),
        ("service/a",         false, true),
        ("service/a/",        false, true),
        ("service//a",        false, true),
        ("service/a/b/c",     false, true),
        ("target/orders.A_1", true,  true),
        ("target/a/b",        false, true),
        ("target/..",         false, true),
        ("tasks",             false, false),
        ("projects/a",        false, false),
        ("",                  false, false),
    ];
    for (key, sound, of_registry) in cases {
        assert_eq!(is_key(key), of_registry, "{key}");
        let tombstone = read(key, None);
        assert_eq!(tombstone.is_ok(), sound, "{key}");
        let is_named = |wrong: &[Wrong]| wrong.len() == 1 && wrong[0].at == key;
        assert!(tombstone.err().is_none_or(|wrong| is_named(&wrong)), "{key}");
        let json = PAY_IN_META.as_bytes();
        assert_eq!(read(key, Some(json)).is_ok(), sound, "{key}");
    }
}

#[test]
fn there_is_room_for_so_many_keys() {
    let mut registry = Registry::default();
    for n in 0..KEYS_MAX {
        heard(&mut registry, &format!("project/p{n}"), Some(IN_META));
    }
    let full = registry.clone();
    for key in [SHOP, PAY] {
        let refused = registry.apply(read(key, Some(PAY_IN_META.as_bytes())).unwrap());
        assert_eq!(refused.unwrap_err().at, key);
    }
    assert_eq!(registry, full);
    heard(&mut registry, "project/p7", Some(r#"{"version":1,"revision":8,"paused":true}"#));
    assert!(registry.paused("p7", None), "a key that is there may change");
    heard(&mut registry, "project/gone", None);
    heard(&mut registry, "project/p7", None);
    heard(&mut registry, PAY, Some(PAY_IN_META));
}

#[test]
fn there_is_room_for_so_many_bytes() {
    let long = |bytes: usize| {
        let json = r#"{"version":1,"revision":1,"later":""}"#;
        json.replace(r#""""#, &format!("\"{}\"", "x".repeat(bytes - json.len())))
    };
    let mut registry = Registry::default();
    let over = read(SHOP, Some(long(VALUE_MAX + 1).as_bytes())).unwrap_err();
    assert_eq!((over.len(), over[0].at.as_str()), (1, SHOP));
    let key = |n: usize| format!("project/{n:04}");
    let of_one = VALUE_MAX + key(0).len();
    let many = BYTES_MAX / of_one;
    for n in 0..many {
        heard(&mut registry, &key(n), Some(&long(VALUE_MAX)));
    }
    let rest = BYTES_MAX - many * of_one - key(0).len();
    let last = key(many);
    let change = |bytes| read(&last, Some(long(bytes).as_bytes())).unwrap();
    assert_eq!(registry.apply(change(rest + 1)).unwrap_err().at, last);
    assert_eq!(registry.project(&last[8..]).revision, 0, "it had no effect");
    registry.apply(change(rest)).unwrap();
    // Again: what it takes the place of does not count.
    registry.apply(change(rest)).unwrap();
    assert!(registry.apply(change(rest + 1)).is_err());
    assert_eq!(registry.project(&last[8..]).revision, 1, "what was there stays");
    assert_eq!(registry.bytes, BYTES_MAX);
    for n in 0..=many {
        heard(&mut registry, &key(n), None);
    }
    assert_eq!(registry, Registry::default());
}

#[test]
fn a_request_becomes_a_record_of_meta() {
    let change =
        read_request(PAY, br#"{"address":"http://a","rate":5}"#).unwrap().with_revision(12);
    assert_eq!(
        change.value().unwrap(),
        r#"{"address":"http://a","burst":5,"concurrency":64,"paused":false,"protocol":"http","rate":5,"retry":{"backoff":"fixed","count":0,"interval":5,"jitter":0.0,"max_interval":3600},"revision":12,"timeout":"10s","version":1}"#
    );
    assert_eq!(change.key(), PAY);
    assert_eq!(Change::of_service("shop", "pay", None), read(PAY, None).unwrap());
    assert_eq!(Change::of_service("shop", "pay", None).value(), None);
    let mut registry = Registry::default();
    registry.apply(change).unwrap();
    // A change of one thing keeps the rest.
    let pay = registry.service("shop", "pay").cloned().unwrap();
    let paused = Change::of_service(
        "shop",
        "pay",
        Some(Service { paused: true, revision: 13, ..pay.clone() }),
    );
    heard(&mut registry, PAY, paused.value().as_deref());
    assert_eq!(
        registry.service("shop", "pay"),
        Some(&Service { paused: true, revision: 13, ..pay })
    );
}

fn rates() -> impl Strategy<Value = (Option<Rate>, u32)> {
    let rate = proptest::option::of((1..=1_000_000_000u64, 1..=BURST_MAX));
    rate.prop_map(|rate| {
        rate.map_or((None, 1), |(tokens, burst)| (Rate::per_1000_s(tokens), burst))
    })
}

prop_compose! {
    fn any_project()(
        revision in 1..=u64::MAX,
        is_deleted in any::<bool>(),
        paused in any::<bool>(),
        concurrency in 1..=CONCURRENCY_MAX,
        (rate, burst) in rates(),
        targets in proptest::option::of(proptest::collection::vec("[a-z.*]{1,9}".prop_filter("sound", |text| Allow::new("", Some(std::slice::from_ref(text))).is_ok()), 0..4)),
        history in HISTORY_MIN.0..=HISTORY_MAX.0,
        max_pending in proptest::option::of(0..=PENDING_MAX),
        max_delay in proptest::option::of(DELAY_MIN.0..=DELAY_MAX.0),
        max_body in proptest::option::of(0..=BODY_MAX),
        window in 0..=WINDOW_MAX.0,
        hosts in proptest::option::of(proptest::collection::vec("([*][.])?[a-z]{1,9}", 0..4)),
    ) -> Project {
        let hosts = hosts.map(|of| Hosts::new(of).expect("sound"));
        let (history, max_delay) = (Millis(history), max_delay.map(Millis));
        Project { revision, is_deleted, paused, concurrency, rate, burst, create_rate: rate, create_burst: burst, max_pending, max_delay, max_body, window: Millis(window), targets: targets.map(|of| Topics::new(of).expect("sound")), hosts, history, services: BTreeMap::new() }
    }
}

prop_compose! {
    fn any_service()(
        revision in 1..=u64::MAX,
        is_grpc in any::<bool>(),
        address in "https?://[a-z0-9.]{1,20}(/[!-~&&[^\\\\?#\"<>`{}|^]]{0,9})?",
        paused in any::<bool>(),
        concurrency in 1..=CONCURRENCY_MAX,
        (rate, burst) in rates(),
        timeout in 1..=TIMEOUT_MAX.0,
        retry in crate::task::retry::tests::any_retry(),
        secret in proptest::option::of("[a-z0-9_-]{1,64}"),
        bearer in proptest::option::of("[a-z0-9_-]{1,64}"),
        certificate in proptest::option::of("[a-z0-9_-]{1,64}"),
    ) -> Service {
        let client_certificate = certificate.filter(|_| address.starts_with("https:"));
        let is_grpc = is_grpc && is_grpc_address(&address);
        let protocol = if is_grpc { Protocol::Grpc } else { Protocol::Http };
        let timeout = Millis(timeout);
        Service { revision, protocol, address, paused, concurrency, rate, burst, timeout, retry, secret, bearer, client_certificate }
    }
}

#[test]
fn the_address_of_a_grpc_service_has_no_path() {
    let put = |address: &str| {
        let body = json!({"protocol": "grpc", "address": address}).to_string();
        read_request(PAY, body.as_bytes())
    };
    for address in ["http://10.0.0.7:50051", "https://billing.example", "https://[::1]:1/"] {
        let change = put(address).expect(address);
        let Setting::Service(_, _, Some(service)) = &change.setting else { panic!("a service") };
        assert_eq!((service.protocol, service.address.as_str()), (Protocol::Grpc, address));
    }
    for address in ["billing:50051", "grpc://billing", "http://billing/v1", "http://billing//"] {
        let wrongs = put(address).expect_err(address);
        assert!(wrongs.len() == 1 && wrongs[0].at == "address", "{address}: {wrongs:?}");
        assert!(wrongs[0].detail.contains("without user information, path"), "{wrongs:?}");
    }
}

proptest! {
    #[test]
    fn what_is_written_is_read_the_same(project in any_project(), service in any_service()) {
        for change in [Change::of_project("shop", project), Change::of_service("shop", "pay", Some(service))] {
            let value = change.value().unwrap();
            prop_assert_eq!(read(change.key(), Some(value.as_bytes())), Ok(change));
        }
    }

    /// Every rate of three decimals is exact, however it is written.
    #[test]
    fn rates_are_exact(tokens in 1..=1_000_000_000u64) {
        let json = format!("{{\"rate\":{}.{:03}}}", tokens / 1_000, tokens % 1_000);
        let change = read_request(SHOP, json.as_bytes()).unwrap();
        let Setting::Project(_, Some(project)) = change.setting else { panic!("a project") };
        prop_assert_eq!(project.rate, Rate::per_1000_s(tokens));
    }

    #[test]
    fn no_text_does_harm(text in "[{}\\[\\]\":,0-9a-z.\\\\-]{0,40}", bytes in any::<Vec<u8>>()) {
        for key in [SHOP, PAY, text.as_str()] {
            for value in [text.as_bytes(), &bytes] {
                let read = [read(key, Some(value)), read_request(key, value)];
                prop_assert!(read.iter().flat_map(|read| read.as_ref().err()).all(|wrong| !wrong.is_empty()));
            }
        }
    }

    /// In whatever order records come, the last of each key holds and the bytes are those of what is there.
    #[test]
    fn bytes_are_those_of_what_is_there(
        steps in proptest::collection::vec((0..3usize, any::<bool>(), any_service(), any_project()), 1..20),
    ) {
        let mut registry = Registry::default();
        let mut last: BTreeMap<String, usize> = BTreeMap::new();
        for (which, is_there, service, project) in steps {
            let change = match (which, is_there) {
                (0, true) => Change::of_project("shop", project),
                (0, false) => read(SHOP, None).unwrap(),
                (which, is_there) => Change::of_service("shop", &which.to_string(), is_there.then_some(service)),
            };
            let bytes = change.value().map(|value| value.len() + change.key().len());
            last.insert(change.key().to_owned(), bytes.unwrap_or_default());
            registry.apply(change).unwrap();
            prop_assert_eq!(registry.bytes, last.values().sum::<usize>());
        }
        for (key, bytes) in &last {
            let is_there = match key.strip_prefix("service/shop/") {
                Some(name) => registry.service("shop", name).is_some(),
                None => registry.project("shop").revision > 0,
            };
            prop_assert_eq!(is_there, *bytes > 0, "{}", key);
        }
    }
}

#[test]
fn a_target_is_paused_by_a_key_of_its_own_and_leaves_projects_alone() {
    let topic = "orders.Expire_1";
    let mut registry = Registry::default();
    let paused =
        read(&format!("target/{topic}"), Some(br#"{"version":1,"revision":4,"paused":true}"#));
    registry.apply(paused.expect("sound")).expect("room");
    assert!(registry.is_target_paused(topic) && !registry.is_target_paused("orders"));
    let paused = TargetTopic { revision: 4, paused: true, ..TargetTopic::NEVER_PUT };
    assert_eq!(registry.target(topic), paused);
    assert_eq!((registry.projects().count(), registry.paused_targets().count()), (0, 1));
    let put = read_request(&format!("target/{topic}"), br#"{"paused":false}"#).expect("sound");
    assert_eq!(registry.revision_before(&put), 4);
    registry.apply(put.with_revision(5)).expect("room");
    assert!(!registry.is_target_paused(topic));
    registry.apply(read(&format!("target/{topic}"), None).expect("sound")).expect("room");
    assert_eq!(registry, Registry::default());
    for (key, body) in [
        ("target/", "{}"),
        ("target/..", "{}"),
        ("target/a b", "{}"),
        ("target/a/b", "{}"),
        ("target/a", r#"{"paused":1}"#),
        ("target/a", r#"{"pause":true}"#),
    ] {
        assert!(read_request(key, body.as_bytes()).is_err(), "{key} {body}");
    }
}

#[test]
fn a_target_has_a_rate_and_says_what_is_wrong_with_it() {
    let (key, topic) = ("target/orders", "orders");
    let asked = |json: &str| read_request(key, json.as_bytes());
    let limit = |json: &str| {
        let mut registry = Registry::default();
        let change = asked(json).expect("sound").with_revision(3);
        let value = change.value().expect("a value");
        // What is written is read as the same.
        assert_eq!(read(key, Some(value.as_bytes())), Ok(change.clone()), "{value}");
        registry.apply(change).expect("room");
        registry.target(topic).limit().map(|(rate, burst)| (rate.whole_per_1000_s(), burst))
    };
    #[rustfmt::skip]
    let cases = [
        ("{}",                                       None),
        (r#"{"paused":true}"#,                       None),
        (r#"{"rate":20}"#,                           Some((20_000, 20))),
        (r#"{"rate":0.5}"#,                          Some((500, 1))),
        (r#"{"rate":2.5,"paused":true}"#,            Some((2_500, 3))),
        (r#"{"rate":20,"burst":1}"#,                 Some((20_000, 1))),
        (r#"{"rate":1000000,"burst":1000000}"#,      Some((1_000_000_000, 1_000_000))),
    ];
    for (json, want) in cases {
        assert_eq!(limit(json), want, "{json}");
    }
    #[rustfmt::skip]
    let wrong = [
        (r#"{"rate":0}"#,                  &["rate"][..]),
        (r#"{"rate":-1}"#,                 &["rate"]),
        (r#"{"rate":"20"}"#,               &["rate"]),
        (r#"{"rate":null}"#,               &["rate"]),
        (r#"{"rate":0.0005}"#,             &["rate"]),
        (r#"{"rate":1000001}"#,            &["rate"]),
        (r#"{"burst":5}"#,                 &["burst"]),
        (r#"{"rate":20,"burst":0}"#,       &["burst"]),
        (r#"{"rate":20,"burst":1000001}"#, &["burst"]),
        (r#"{"rate":"a","burst":-1}"#,     &["rate", "burst"]),
        (r#"{"rate":20,"bursts":5}"#,      &["bursts"]),
        (r#"{"rate":20,"concurrency":5}"#, &["concurrency"]),
    ];
    for (json, want) in wrong {
        let wrong = asked(json).expect_err(json);
        let places: Vec<_> = wrong.iter().map(|wrong| wrong.at.as_str()).collect();
        assert_eq!(places, want, "{json}");
    }
}
