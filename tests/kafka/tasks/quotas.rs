//! What projects may do: which hosts they call, to which topics their records go, how many tasks they may create and have, how far
//! ahead and how large, how many calls they may have open, and over how long a time they are spread.

use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Api, command, fixture, launch, put_service, share, task, with};
use crate::support::{
    Call, Endpoint, Log, eventually, eventually_within, now_ms, patience, start_all, whole,
};

/// Tasks that a project may create in a second, and at once.
const RATE: usize = 20;
const BURST: usize = 10;
/// Calls that a project may have open.
const OPEN: usize = 3;
/// How long each of them takes, in milliseconds.
const OPEN_MS: u64 = 200;
/// How many there are of each kind.
const CALLS: usize = 40;
/// Tasks that are spread over so long a time, in milliseconds.
const SPREAD: usize = 120;
const SPREAD_MS: u64 = 6_000;

fn put(api: &Api, settings: &Value) {
    let (status, told) = api.answered("PUT", "/v1/projects/shop", Some(settings));
    assert_eq!(status, 200, "{told}");
}

/// The field that is wrong with a request.
fn wrong(api: &Api, method: &str, path: &str, body: &Value) -> Result<String, String> {
    let (status, told) = api.answered(method, path, Some(body));
    let is_wrong = (status, &told["code"]) == (422, &json!("wrong_fields"));
    let at = told["errors"][0]["at"].as_str().filter(|_| is_wrong);
    at.map(str::to_owned).ok_or_else(|| told.to_string())
}

/// Waits until an instance has heard of a setting of the project.
#[track_caller]
fn hears(api: &Api, setting: &str, value: &Value) {
    eventually(&format!("{setting} is heard of"), || {
        let (_, told) = api.answered("GET", "/v1/projects/shop", None);
        if told[setting] == *value { Ok(()) } else { Err(told.to_string()) }
    });
}

#[test]
fn the_hosts_of_a_project_hold_for_tasks_that_wait() {
    let fixture = fixture("tasks-hosts");
    let mut process = launch(&fixture, "a", "lanes,worker,api").start();
    let (api, stub) = (Api::of(&process), Endpoint::start());
    put(&api, &json!({"hosts": ["127.0.0.1"]}));
    let service = json!({"address": stub.url("/")});
    put_service(&api, "shop", "billing", &service);
    let raw = api.create(&task("shop", &stub, "/ok", "6s"));
    let named = json!({"project": "shop", "group": "g", "delay": "6s", "service": "billing", "path": "/ok"});
    let named = api.create(&named);

    put(&api, &json!({"hosts": ["*.shop.example"]}));
    let at = eventually("another host is refused", || {
        wrong(&api, "POST", "/v1/tasks/http", &task("shop", &stub, "/ok", "1h"))
    });
    assert_eq!(at, "url");
    let at = wrong(&api, "PUT", "/v1/projects/shop/services/billing", &service);
    assert_eq!(at.as_deref(), Ok("address"));
    for id in [&raw, &named] {
        let ended = api.end_of(id);
        let error = ended["last"]["error"].as_str().unwrap_or_default();
        assert_eq!(ended["task_status"], "failed", "{ended}");
        assert!(error.starts_with("address_denied: 127.0.0.1 is not in the hosts of"), "{ended}");
    }
    assert_eq!(stub.begun(), 0);

    put(&api, &json!({"hosts": ["127.0.0.1"]}));
    let ended = eventually("the host is called again", || {
        let ended = api.end_of(&api.create(&task("shop", &stub, "/ok", "0s")));
        if ended["task_status"] == "finished" { Ok(ended) } else { Err(ended.to_string()) }
    });
    assert_eq!(ended["attempts_total"], 1);
    process.stop_well();
}

#[test]
fn the_topics_of_a_project_hold_for_tasks_that_wait() {
    let fixture = fixture("tasks-topics");
    let (orders, bills) = (fixture.target("orders", 1), fixture.target("bills", 1));
    let mut process = launch(&fixture, "a", "lanes,worker,api").start();
    let api = Api::of(&process);
    let list = |pattern: &str| {
        put(&api, &json!({ "targets": [pattern] }));
        hears(&api, "targets", &json!([pattern]));
    };
    let record = |topic: &str, value: &str, delay: &str| json!({"project": "shop", "group": "g", "topic": topic, "value": value, "delay": delay});
    let create = |task: &Value| {
        let (status, told) = api.answered("POST", "/v1/tasks/kafka", Some(task));
        assert_eq!(status, 201, "{told}");
        told["task_id"].as_str().expect("an id").to_owned()
    };
    let refused = |topic: &str| {
        let record = record(topic, "refused", "0s");
        let at = wrong(&api, "POST", "/v1/tasks/kafka", &record);
        assert_eq!(at.as_deref(), Ok("topic"), "{topic}");
        let batch = json!({"tasks": [with(record, json!({"type": "kafka"}))]});
        let (_, told) = api.answered("POST", "/v1/tasks:batchCreate", Some(&batch));
        assert_eq!(told["tasks"][0]["status"], 422, "{told}");
    };
    // Names of topics have the namespace before them. A pattern is for a whole name.
    list(".*-orders");
    refused(&bills);
    refused(&format!("{orders}.late"));
    let first = api.end_of(&create(&record(&orders, "inside", "0s")));
    assert_eq!(first["task_status"], "finished", "{first}");
    let mut log = Log::open(&fixture, &orders);
    assert_eq!(log.count(1)[0].text(), "inside");

    // It is in force two seconds after the put at the latest, and so before the task is due.
    let waits = create(&record(&orders, "outside by then", "6s"));
    list(".*-bills");
    refused(&orders);
    let ended = api.end_of(&waits);
    let told = (&ended["task_status"], &ended["code"]);
    assert_eq!(told, (&json!("failed"), &json!("target_denied")), "{ended}");
    let other = api.end_of(&create(&record(&bills, "inside", "0s")));
    assert_eq!(other["task_status"], "finished", "{other}");

    let values = |topic: &str| -> Vec<String> {
        whole(&fixture, topic).iter().map(|record| record.text()).collect()
    };
    assert_eq!(values(&orders), ["inside"]);
    assert_eq!(values(&bills), ["inside"]);
    process.stop_well();
}

/// One process holds the lanes, another one takes the tasks: it has to ask.
#[test]
fn a_project_gets_no_more_pending_tasks_than_it_may_have_and_its_stats_count_them() {
    let fixture = fixture("tasks-quotas");
    let [mut lanes, mut door] =
        start_all([launch(&fixture, "a", "lanes"), launch(&fixture, "b", "worker,api")]);
    let (api, stub) = (Api::of(&door), Endpoint::start());
    let told = |words: &[&str]| {
        let ended = command(&door, words);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        ended
    };
    let stats = || told(&["project", "stats", "shop", "--json"]).json();
    let done = api.create(&task("shop", &stub, "/ok", "0s"));
    assert_eq!(api.end_of(&done)["task_status"], "finished");
    let named = |name: &str| with(task("shop", &stub, "/ok", "1h"), json!({"request_id": name}));
    let (status, first) = api.answered("POST", "/v1/tasks/http", Some(&named("named")));
    assert_eq!(status, 201, "{first}");
    api.create_all((0..2).map(|_| task("shop", &stub, "/ok", "1h")).collect());
    api.create(&task("other", &stub, "/ok", "1h"));
    eventually("all are counted", || {
        let now = stats();
        let is_right = now["pending"]
            == json!({"total": 3, "delay": 3, "ready": 0, "overdue": 0, "running": 0})
            && now["ended"] == json!({"finished": 1, "failed": 0, "cancelled": 0, "expired": 0});
        if is_right { Ok(()) } else { Err(now.to_string()) }
    });

    told(&["project", "put", "shop", "--max-pending", "4"]);
    let create = |want: u16| {
        let (status, told) =
            api.ask("POST", "/v1/tasks/http", Some(&task("shop", &stub, "/ok", "1h")));
        if status == want {
            return Ok(told);
        }
        sleep(Duration::from_secs(1));
        Err(told.to_string())
    };
    let refused = eventually("creates are refused", || create(429));
    assert_eq!(refused["code"], "over_pending");
    // What was created before is told again, by whichever instance; a batch tells of each.
    let (status, answer) = api.answered("POST", "/v1/tasks/http", Some(&named("named")));
    assert_eq!((status, &answer["task_id"]), (201, &first["task_id"]), "{answer}");
    let batch = ["named", "new"].map(|name| with(named(name), json!({"type": "http"})));
    let batch = json!({ "tasks": batch });
    let (_, answer) = api.answered("POST", "/v1/tasks:batchCreate", Some(&batch));
    let statuses = [0, 1].map(|nth| answer["tasks"][nth]["status"].clone());
    assert_eq!(statuses, [201, 429].map(Value::from), "{answer}");
    let (status, answer) =
        api.answered("POST", "/v1/tasks/http", Some(&task("other", &stub, "/ok", "1h")));
    assert_eq!(status, 201, "another project: {answer}");
    let pending = api.list("project=shop&status=delay");
    assert!((4..20).contains(&pending.len()), "a soft bound: {}", pending.len());
    let now = stats();
    assert_eq!(now["pending"]["total"], pending.len(), "{now}");
    assert!(now["refused"]["over_pending"].as_u64() >= Some(1), "{now}");
    let text = told(&["project", "stats", "shop"]).said;
    assert!(text.contains("over_pending") && text.contains("finished"), "{text}");

    // What ends makes room.
    for task in &pending {
        assert_eq!(api.cancel(task["task_id"].as_str().expect("an id")), "cancelled");
    }
    eventually("a create is taken", || create(201));
    let now = stats();
    assert_eq!(now["ended"]["cancelled"], pending.len(), "{now}");
    door.stop_well();
    lanes.stop_well();
}

/// How many creates each of these instances takes within so long a time. They are asked in turn, as fast as they answer.
#[track_caller]
fn taken(apis: &[&Api], stub: &Endpoint, long: Duration) -> Vec<usize> {
    let (until, asked) = (Instant::now() + long, task("shop", stub, "/ok", "1h"));
    let mut taken = vec![0; apis.len()];
    for nth in (0..apis.len()).cycle() {
        let (status, told) = apis[nth].ask("POST", "/v1/tasks/http", Some(&asked));
        if Instant::now() >= until {
            break;
        }
        match status {
            201 => taken[nth] += 1,
            429 => assert_eq!(told["code"], "over_create_rate", "{told}"),
            _ => panic!("{status}: {told}"),
        }
        sleep(Duration::from_millis(5));
    }
    taken
}

/// The most that one of so many instances takes within so long a time, if they share the rate of creates.
fn share_of_rate(instances: usize, long: Duration) -> usize {
    (RATE * long.as_secs() as usize + BURST) / instances
}

#[test]
fn instances_share_the_rate_of_creates_and_the_last_one_has_all_of_it() {
    let fixture = fixture("tasks-create-rate");
    let of = |data: &str| launch(&fixture, data, "lanes,worker,api");
    let [mut a, mut b] = start_all(["a", "b"].map(of));
    let (of_a, of_b, stub) = (Api::of(&a), Api::of(&b), Endpoint::start());
    put(&of_a, &json!({"create_rate": RATE, "create_burst": BURST}));
    hears(&of_b, "create_rate", &json!(RATE as f64));
    let both = [&of_a, &of_b];
    let short = Duration::from_secs(2);
    // It takes what they may create at once, too.
    eventually_within(Duration::from_secs(20), "both know of each other", || {
        let taken = taken(&both, &stub, short);
        let most = share_of_rate(2, short);
        if taken.iter().all(|of| *of <= most) { Ok(()) } else { Err(format!("{taken:?}")) }
    });
    let long = Duration::from_secs(10);
    let (of_each, most) = (taken(&both, &stub, long), share_of_rate(2, long));
    println!("in {long:?} these took {of_each:?}");
    for of in &of_each {
        assert!((most * 3 / 4..=most).contains(of), "each may take {most}: {of_each:?}");
    }
    let (_, stats) = of_a.answered("GET", "/v1/projects/shop/stats", None);
    assert!(stats["refused"]["over_create_rate"].as_u64() > Some(0), "{stats}");

    b.stop_well();
    let stopped = Instant::now();
    let most = share_of_rate(1, short);
    let alone = eventually_within(Duration::from_secs(10), "it has the whole rate", || {
        let taken = taken(&[&of_a], &stub, short)[0];
        assert!(taken <= most, "{taken} of {most}");
        if taken * 4 >= most * 3 { Ok(taken) } else { Err(format!("{taken} of {most}")) }
    });
    println!("{:?} after the stop it takes {alone} in {short:?}", stopped.elapsed());
    a.stop_well();
}

/// Put by one instance, and asked of another.
#[test]
fn what_is_too_far_ahead_or_too_large_for_its_project_is_refused_by_its_field() {
    let fixture = fixture("tasks-too-much");
    let target = fixture.target("out", 1);
    let [mut lanes, mut door] =
        start_all([launch(&fixture, "a", "lanes,worker,api"), launch(&fixture, "b", "worker,api")]);
    let (api, stub) = (Api::of(&door), Endpoint::start());
    put(&Api::of(&lanes), &json!({"max_delay": "1h", "max_body": 1_000}));
    hears(&api, "max_body", &json!(1_000));
    let most = "x".repeat(1_000);
    let more = format!("{most}x");
    let http = |more: Value| ("http", with(task("shop", &stub, "/ok", "1h"), more));
    let rest = json!({"project": "shop", "group": "g", "delay": "1h"});
    let kafka = |more: Value| ("kafka", with(with(rest.clone(), json!({"topic": target})), more));
    let called = json!({"host": "127.0.0.1:50051", "service": "shop.v1.Orders", "method": "Expire", "format": "json"});
    let grpc = |more: Value| ("grpc", with(with(rest.clone(), called.clone()), more));
    let at = now_ms() + 3_700_000;
    let at = |(of, task): (&'static str, Value)| {
        let mut task = with(task, json!({"trigger_at": at}));
        task.as_object_mut().expect("an object").remove("delay");
        (of, task)
    };
    #[rustfmt::skip]
    let cases = [
        (http(json!({})),                                  None),
        (http(json!({"delay": "3601s"})),                  Some("delay")),
        (at(http(json!({}))),                              Some("trigger_at")),
        (http(json!({"body": most})),                      None),
        (http(json!({"body": more})),                      Some("body")),
        (kafka(json!({"value": most})),                    None),
        (kafka(json!({"value": more})),                    Some("value")),
        (kafka(json!({"value": "v", "delay": "2h"})),      Some("delay")),
        (grpc(json!({"body": {"a": &most[8..]}})),         None),
        (grpc(json!({"body": {"a": most}})),               Some("body")),
        (at(grpc(json!({"body": {}}))),                    Some("trigger_at")),
    ];
    let fine = cases.iter().filter(|(_, want)| want.is_none()).count();
    for ((of, task), want) in &cases {
        let (status, told) = api.answered("POST", &format!("/v1/tasks/{of}"), Some(task));
        let told = match status {
            201 => None,
            _ => Some((status, told["code"].clone(), told["errors"][0]["at"].clone())),
        };
        let want = want.map(|at| (422, json!("wrong_fields"), json!(at)));
        assert_eq!(told, want, "{of}: {task}");
    }
    // In a batch, and in another project.
    let batch: Vec<Value> =
        cases.iter().map(|((of, task), _)| with(task.clone(), json!({"type": of}))).collect();
    let (_, told) = api.answered("POST", "/v1/tasks:batchCreate", Some(&json!({"tasks": batch})));
    let told = told["tasks"].as_array().expect("one for each").iter();
    let told: Vec<_> = told.map(|one| one["status"].clone()).collect();
    let want = cases.iter().map(|(_, want)| if want.is_none() { 201 } else { 422 });
    assert_eq!(json!(told), json!(want.collect::<Vec<_>>()));
    let free = with(http(json!({"body": more, "delay": "2h"})).1, json!({"project": "other"}));
    api.create(&free);
    // Of what is refused nothing stays.
    api.wait_for(Duration::from_secs(10), "shop", "delay", 2 * fine);
    door.stop_well();
    lanes.stop_well();
}

#[test]
fn a_window_spreads_the_calls_of_a_project_and_none_is_early() {
    let fixture = fixture("tasks-window");
    let mut process = launch(&fixture, "a", "lanes,worker,api").start();
    let (api, stub) = (Api::of(&process), Endpoint::start());
    put(&api, &json!({"window": format!("{SPREAD_MS}ms")}));
    let due = now_ms() + 5_000 * u64::from(patience());
    let of = |n: usize, more: Value| {
        let at = json!({"trigger_at": due, "request_id": format!("r{n}")});
        let mut asked = with(with(task("shop", &stub, "/ok", "0s"), at), more);
        asked.as_object_mut().expect("an object").remove("delay");
        asked
    };
    eventually("it is in force", || {
        let asked = with(of(SPREAD, json!({})), json!({"trigger_at": due + 3_600_000}));
        let (_, told) = api.answered("POST", "/v1/tasks/http", Some(&asked));
        let is_spread = told["trigger_at"].as_u64() > Some(due + 3_600_000);
        if is_spread { Ok(()) } else { Err(told.to_string()) }
    });
    let ids = api.create_all((0..SPREAD).map(|n| of(n, json!({}))).collect());
    let exact = api.create(&of(SPREAD + 1, json!({"window": "0s"})));
    assert!(now_ms() < due, "this machine is too slow for this test");
    // The request ids say which part of the window each has, so this is the same every time.
    let mut parts = [0; 4];
    let mut dues: BTreeMap<String, u64> = BTreeMap::new();
    for id in &ids {
        let at = api.task(id)["trigger_at"].as_u64().expect("a time");
        let later = at.checked_sub(due).unwrap_or_else(|| panic!("{id}: {at} is before {due}"));
        assert!(later < SPREAD_MS, "{id}: {later} ms later");
        parts[(later * 4 / SPREAD_MS) as usize] += 1;
        dues.insert(id.clone(), at);
    }
    assert!(parts.iter().all(|count| *count >= SPREAD / 8), "of the quarters: {parts:?}");
    assert_eq!(api.task(&exact)["trigger_at"], due);
    dues.insert(exact, due);
    api.wait_for(Duration::from_secs(30), "shop", "finished", SPREAD + 1);
    for (id, due) in &dues {
        let calls = stub.calls_of(id);
        let most = due + 1_000 * u64::from(patience());
        let is_so = |call: &Call| (*due..most).contains(&call.began);
        assert!(calls.len() == 1 && calls.iter().all(is_so), "due {due}: {calls:?}");
    }
    process.stop_well();
}

#[test]
fn a_project_never_has_more_calls_open_than_it_may_over_all_of_its_services() {
    let fixture = fixture("tasks-concurrency");
    let start = |data: &str, roles: &str| launch(&fixture, data, roles).start();
    let (mut a, mut b) = (start("a", "lanes,worker,api"), start("b", "worker,api"));
    share(&[&a, &b]);
    let (api, stub, free) = (Api::of(&a), Endpoint::start(), Endpoint::start());
    put(&api, &json!({"concurrency": OPEN}));
    for service in ["billing", "mail"] {
        put_service(&api, "shop", service, &json!({"address": stub.url("")}));
    }
    hears(&Api::of(&b), "concurrency", &json!(OPEN));
    let path = format!("/slow?ms={OPEN_MS}");
    let named = |service: &str| json!({"project": "shop", "group": "g", "delay": "1s", "service": service, "path": path});
    let kinds = [named("billing"), named("mail"), task("shop", &stub, &path, "1s")];
    let all = kinds.len() * CALLS;
    api.create_all((0..CALLS).flat_map(|_| kinds.clone()).collect());
    let begun = |count: usize| {
        eventually(&format!("{count} calls have begun"), || {
            let begun = stub.begun();
            if begun >= count { Ok(()) } else { Err(format!("{begun}")) }
        });
    };
    begun(all / 4);
    let other = api.create(&task("other", &free, "/ok", "0s"));
    assert_eq!(api.end_of(&other)["task_status"], "finished");
    let mut c = launch(&fixture, "c", "worker").spawn();
    share(&[&a, &b, &c]);
    assert!(all - stub.begun() > all / 10, "too few were left when the last worker came");
    let finished = api.wait_for(Duration::from_secs(60), "shop", "finished", all);
    assert!(finished.iter().all(|task| task["attempts_total"] == 1), "{finished:?}");
    let mut calls = stub.calls();
    assert_eq!(calls.len(), all, "each once");
    calls.sort_by_key(|call| call.began);
    // Its answer was not written before.
    let are_open = |of: &&[Call]| of[of.len() - 1].began < of[0].began + OPEN_MS;
    let over = calls.windows(OPEN + 1).find(are_open);
    assert_eq!(over.map(|of| format!("{of:?}")), None, "more than {OPEN} were open");
    let full = calls.windows(OPEN).filter(are_open).count();
    println!("{OPEN} of {all} calls were open {full} times");
    assert!(full > all / 20, "it may have {OPEN} open, and had {full} times");
    c.stop_well();
    b.stop_well();
    a.stop_well();
}
