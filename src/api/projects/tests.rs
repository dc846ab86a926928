use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::header;
use serde_json::{Value, json};

use super::super::tasks::Failure;
use super::super::tasks::tests::{Api, Told};
use crate::engine::task::registry::{Change, TargetTopic, read_request};
use crate::engine::timers::TaskCounts;

async fn with_match(api: &Api, method: &str, path: &str, revision: &str, body: &Value) -> Told {
    let request = Request::builder().method(method).uri(path).header(header::IF_MATCH, revision);
    let request = request.header(header::CONTENT_TYPE, "application/json");
    api.send(request, Body::from(body.to_string())).await
}

#[tokio::test]
async fn before_the_registry_is_read_nobody_is_told_that_there_is_nothing() {
    let api = Api::new();
    let none = Value::Null;
    let put = |path: &'static str, body: Value| {
        let api = &api;
        async move { assert_eq!(api.ask("", "PUT", path, &body).await.status, 200, "{path}") }
    };
    put("/v1/projects/shop", json!({})).await;
    let service = "/v1/projects/shop/services/billing";
    put(service, json!({"address": "https://billing.example"})).await;
    let questions = [
        ("GET", "/v1/projects"),
        ("GET", "/v1/projects/shop"),
        ("GET", "/v1/projects/nobody"),
        ("POST", "/v1/projects/shop:pause"),
        ("DELETE", "/v1/projects/shop"),
        ("POST", "/v1/projects/shop/services/billing:pause"),
        ("DELETE", service),
        ("GET", "/v1/targets"),
        ("GET", "/v1/targets/orders"),
        ("POST", "/v1/targets/orders:pause"),
    ];
    api.world().unread = Some(Failure::Moving("not read".to_owned()));
    for (method, path) in questions {
        let told = api.ask("", method, path, &none).await;
        assert_eq!((told.status, told.code()), (503, "lane_moving"), "{method} {path}");
        assert!(told.headers.contains_key(header::RETRY_AFTER), "{method} {path}");
    }
    api.world().unread = None;
    let told = api.ask("", "GET", "/v1/projects", &none).await;
    assert_eq!(told.json["projects"][0]["project"], "shop", "nothing was changed meanwhile");
    assert_eq!(told.json["projects"][0]["revision"], 1, "{told:?}");
}

#[tokio::test]
async fn a_project_is_put_shown_paused_and_deleted() {
    let api = Api::new();
    let none = Value::Null;
    assert_eq!(api.ask("", "GET", "/v1/projects/shop", &none).await.code(), "unknown_project");
    let body = json!({"concurrency": 10, "rate": 5, "history": "1d"});
    let told = api.ask("", "PUT", "/v1/projects/shop", &body).await;
    assert_eq!((told.status, &told.json), (200, &json!({"revision": 1})));
    assert_eq!(told.headers[header::ETAG], "\"1\"");
    let service = json!({"address": "https://billing.example", "secret": "billing"});
    let told = api.ask("", "PUT", "/v1/projects/shop/services/billing", &service).await;
    assert_eq!((told.status, &told.json["revision"]), (200, &json!(2)));

    let told = api.ask("", "POST", "/v1/projects/shop:pause", &none).await;
    assert_eq!((told.status, &told.json["revision"]), (200, &json!(3)));
    let told = api.ask("", "POST", "/v1/projects/shop/services/billing:pause", &none).await;
    assert_eq!(told.status, 200, "{told:?}");
    let told = api.ask("", "GET", "/v1/projects/shop", &none).await;
    let shown = &told.json;
    assert_eq!(
        (&shown["paused"], &shown["concurrency"], &shown["rate"]),
        (&json!(true), &json!(10), &json!(5.0))
    );
    assert_eq!(shown["services"]["billing"]["paused"], true);
    assert_eq!(shown["services"]["billing"]["address"], "https://billing.example");
    assert_eq!(told.headers[header::ETAG], "\"3\"");
    for path in ["/v1/projects/shop:resume", "/v1/projects/shop/services/billing:resume"] {
        assert_eq!(api.ask("", "POST", path, &none).await.status, 200);
    }
    assert!(!api.world().registry.paused("shop", Some("billing")));

    let told = api.ask("", "GET", "/v1/projects", &none).await;
    assert_eq!(told.json["projects"][0]["services"], json!(["billing"]));
    let told = api.ask("", "DELETE", "/v1/projects/shop/services/billing", &none).await;
    assert_eq!(told.status, 200);
    let told = api.ask("", "DELETE", "/v1/projects/shop/services/billing", &none).await;
    assert_eq!((told.status, told.code()), (404, "unknown_service"));
    assert_eq!(api.ask("", "DELETE", "/v1/projects/shop", &none).await.status, 200);
    assert_eq!(api.ask("", "GET", "/v1/projects", &none).await.json, json!({"projects": []}));
    for (method, path) in [
        ("GET", "/v1/projects/shop"),
        ("DELETE", "/v1/projects/shop"),
        ("POST", "/v1/projects/shop:pause"),
    ] {
        assert_eq!(
            api.ask("", method, path, &none).await.code(),
            "unknown_project",
            "{method} {path}"
        );
    }
    // It may be put again.
    assert_eq!(api.ask("", "PUT", "/v1/projects/shop", &json!({})).await.status, 200);
    assert!(!api.world().registry.project("shop").is_deleted);
}

#[tokio::test]
async fn a_change_is_made_to_the_revision_that_it_names() {
    let api = Api::new();
    let path = "/v1/projects/shop";
    assert_eq!(with_match(&api, "PUT", path, "\"0\"", &json!({})).await.status, 200);
    let told = with_match(&api, "PUT", path, "\"0\"", &json!({"paused": true})).await;
    assert_eq!(
        (told.status, told.code(), &told.json["current"]),
        (409, "revision_conflict", &json!(1))
    );
    assert!(!api.world().registry.paused("shop", None));
    assert_eq!(with_match(&api, "PUT", path, "\"1\"", &json!({"paused": true})).await.status, 200);
    let told = with_match(&api, "POST", "/v1/projects/shop:resume", "\"1\"", &json!({})).await;
    assert_eq!((told.status, told.code()), (409, "revision_conflict"));
    for bad in ["2", "*", "W/\"2\"", "\"x\"", "\"2\", \"3\""] {
        let told = with_match(&api, "PUT", path, bad, &json!({})).await;
        assert_eq!((told.status, told.code()), (400, "bad_if_match"), "{bad}");
    }
}

/// Another instance has made a change, and its caller names that revision here at once.
#[tokio::test]
async fn a_pause_of_a_revision_that_is_not_heard_of_yet_waits_and_brings_nothing_old_back() {
    let api = Api::new();
    let service = "/v1/projects/shop/services/billing";
    #[rustfmt::skip]
    let cases = [
        ("/v1/projects/shop",  "/v1/projects/shop",  "project/shop",         json!({"concurrency": 5}), json!({"concurrency": 20})),
        (service,              "/v1/projects/shop",  "service/shop/billing", json!({"address": "https://a.example", "concurrency": 5}), json!({"address": "https://a.example", "concurrency": 20})),
        ("/v1/targets/orders", "/v1/targets/orders", "target/orders",        json!({"rate": 5}),        json!({"rate": 20})),
    ];
    for (path, shown, key, old, new) in cases {
        assert_eq!(api.ask("", "PUT", path, &old).await.status, 200, "{path}");
        let before = api.world().revision;
        let elsewhere = async {
            tokio::time::sleep(Duration::from_millis(200)).await;
            let change = read_request(key, new.to_string().as_bytes()).expect("sound");
            let mut world = api.world();
            world.revision += 1;
            world.registry.apply(change.with_revision(before + 1)).expect("room");
        };
        let pause = format!("{path}:pause");
        let (named, none) = (format!("\"{}\"", before + 1), json!({}));
        let (told, ()) = tokio::join!(with_match(&api, "POST", &pause, &named, &none), elsewhere);
        assert_eq!((told.status, &told.json["revision"]), (200, &json!(before + 2)), "{told:?}");
        let told = api.ask("", "GET", shown, &Value::Null).await.json;
        let of = if key.starts_with("service") { &told["services"]["billing"] } else { &told };
        assert_eq!(of["paused"], true, "{of}");
        let kept = of.get("concurrency").or_else(|| of.get("rate"));
        assert_eq!(kept.and_then(Value::as_f64), Some(20.0), "the other change stands: {of}");
    }
    // One that nobody has made is waited for, too, and is a conflict in the end.
    let told = with_match(&api, "POST", "/v1/projects/shop:resume", "\"99\"", &json!({})).await;
    assert_eq!((told.status, told.code()), (409, "revision_conflict"), "{told:?}");
}

#[tokio::test]
async fn what_is_wrong_with_a_project_or_a_service_is_named() {
    let api = Api::new();
    let (project, service) = ("/v1/projects/shop", "/v1/projects/shop/services/billing");
    #[rustfmt::skip]
    let cases = [
        (project, json!({"concurrency": 0, "colour": 1}),                       vec!["concurrency", "colour"]),
        (project, json!({"burst": 5}),                                          vec!["burst"]),
        (project, json!([]),                                                    vec!["project/shop"]),
        (service, json!({}),                                                    vec!["address"]),
        (service, json!({"address": "ftp://x"}),                                vec!["address"]),
        (service, json!({"address": "http://169.254.169.254"}),                 vec!["address"]),
        (service, json!({"address": "https://x.example", "timeout": "1h"}),     vec!["timeout"]),
    ];
    for (path, body, want) in cases {
        let told = api.ask("", "PUT", path, &body).await;
        assert_eq!((told.status, told.code()), (422, "wrong_fields"), "{body}");
        let errors = told.json["errors"].as_array().expect("errors");
        let mut places: Vec<&str> =
            errors.iter().filter_map(|error| error["at"].as_str()).collect();
        places.sort_by_key(|at| want.iter().position(|of| of == at));
        assert_eq!(places, want, "{body}");
    }
    for path in ["/v1/projects/Shop", "/v1/projects/shop/services/B", "/v1/projects/a%2Fb"] {
        let told = api.ask("", "PUT", path, &json!({})).await;
        assert_eq!((told.status, told.code()), (400, "bad_name"), "{path}");
    }
    assert_eq!(api.world().revision, 0);
    assert_eq!(api.ask("", "POST", "/v1/projects/shop:burn", &json!({})).await.status, 405);
}

#[tokio::test]
async fn only_an_admin_changes_a_project_and_a_token_sees_its_own() {
    let api = Api::with_tokens();
    for name in ["shop", "bank"] {
        let told = api.ask("admin", "PUT", &format!("/v1/projects/{name}"), &json!({})).await;
        assert_eq!(told.status, 200);
    }
    let none = Value::Null;
    #[rustfmt::skip]
    let cases = [
        ("reader", "GET",    "/v1/projects/shop",              none.clone(), 200, ""),
        ("reader", "GET",    "/v1/projects/bank",              none.clone(), 404, "unknown_project"),
        ("writer", "PUT",    "/v1/projects/shop",              json!({}),    403, "role_denied"),
        ("writer", "DELETE", "/v1/projects/shop",              none.clone(), 403, "role_denied"),
        ("writer", "POST",   "/v1/projects/shop:pause",        none.clone(), 403, "role_denied"),
        ("writer", "DELETE", "/v1/projects/shop/services/a",   none.clone(), 403, "role_denied"),
        ("",       "GET",    "/v1/projects",                   none.clone(), 401, "no_credentials"),
    ];
    for (token, method, path, body, status, code) in cases {
        let told = api.ask(token, method, path, &body).await;
        assert_eq!((told.status, told.code()), (status, code), "{token} {method} {path}");
    }
    let names = |told: Told| -> Vec<String> {
        let all = told.json["projects"].as_array().cloned().unwrap_or_default();
        all.iter().filter_map(|of| of["project"].as_str().map(str::to_owned)).collect()
    };
    assert_eq!(names(api.ask("reader", "GET", "/v1/projects", &none).await), ["shop"]);
    assert_eq!(names(api.ask("admin", "GET", "/v1/projects", &none).await), ["bank", "shop"]);
}

/// Of another team's project and of one that nobody has put, one is told the same.
#[tokio::test]
async fn a_project_of_others_is_as_if_it_were_not_there_whatever_is_asked() {
    let api = Api::with_tokens();
    let service = json!({"address": "https://billing.example"});
    for path in ["/v1/projects/bank", "/v1/projects/bank/services/billing"] {
        let body = if path.ends_with("bank") { json!({}) } else { service.clone() };
        assert_eq!(api.ask("admin", "PUT", path, &body).await.status, 200, "{path}");
    }
    let (none, task) = (
        Value::Null,
        |project: &str| json!({"project": project, "group": "g", "delay": "1m", "url": "https://x.example"}),
    );
    #[rustfmt::skip]
    let cases = [
        ("GET",    "/v1/projects/NAME",                         none.clone()),
        ("PUT",    "/v1/projects/NAME",                         json!({})),
        ("PUT",    "/v1/projects/NAME",                         json!({"x": 1})),
        ("DELETE", "/v1/projects/NAME",                         none.clone()),
        ("POST",   "/v1/projects/NAME:pause",                   none.clone()),
        ("POST",   "/v1/projects/NAME:resume",                  none.clone()),
        ("PUT",    "/v1/projects/NAME/services/billing",        service.clone()),
        ("DELETE", "/v1/projects/NAME/services/billing",        none.clone()),
        ("POST",   "/v1/projects/NAME/services/billing:pause",  none.clone()),
        ("POST",   "/v1/projects/NAME/services/billing:resume", none.clone()),
        ("GET",    "/v1/tasks?project=NAME",                    none.clone()),
        ("POST",   "/v1/tasks/http",                            task("NAME")),
    ];
    for (method, path, body) in cases {
        let ask = async |name: &str| {
            let body = match &body {
                Value::Object(of) if of.contains_key("project") => task(name),
                other => other.clone(),
            };
            let told = api.ask("chief", method, &path.replace("NAME", name), &body).await;
            (told.status, told.json.to_string().replace(name, "NAME"))
        };
        let foreign = ask("bank").await;
        assert_eq!(foreign, ask("nobody").await, "{method} {path}");
        assert_eq!(foreign.0, 404, "{method} {path}: {}", foreign.1);
        assert!(foreign.1.contains("unknown_project"), "{method} {path}: {}", foreign.1);
    }
    // Who may see all is told the same where there is nothing.
    let told = api.ask("admin", "GET", "/v1/projects/nobody", &none).await;
    assert_eq!(told.json, api.ask("chief", "GET", "/v1/projects/nobody", &none).await.json);
    assert_eq!(api.ask("admin", "GET", "/v1/projects/bank", &none).await.json["revision"], 1);
    assert!(api.world().submitted.is_empty());
    // An admin of one project changes that one, and no other thing.
    assert_eq!(api.ask("chief", "PUT", "/v1/projects/shop", &json!({})).await.status, 200);
}

#[tokio::test]
async fn a_target_is_paused_and_resumed_by_an_admin_of_all_projects() {
    let api = Api::with_tokens();
    let (path, none) = ("/v1/targets/Orders.expire_1", Value::Null);
    let told = api.ask("admin", "GET", path, &none).await;
    let want = json!({"topic": "Orders.expire_1", "revision": 0, "paused": false});
    assert_eq!(
        (told.status, &told.json, &told.headers[header::ETAG]),
        (200, &want, &"\"0\"".parse().expect("a value"))
    );
    let told = api.ask("admin", "POST", &format!("{path}:pause"), &none).await;
    assert_eq!((told.status, &told.json), (200, &json!({"revision": 1})));
    assert!(api.world().registry.is_target_paused("Orders.expire_1"));
    let told = api.ask("admin", "GET", "/v1/targets", &none).await;
    let want = json!({"topic": "Orders.expire_1", "revision": 1, "paused": true});
    assert_eq!(told.json, json!({"targets": [want]}));
    assert_eq!(api.ask("admin", "POST", &format!("{path}:resume"), &none).await.status, 200);
    assert!(!api.world().registry.is_target_paused("Orders.expire_1"));
    assert_eq!(api.ask("admin", "PUT", path, &json!({"paused": true})).await.status, 200);
    assert!(api.world().registry.is_target_paused("Orders.expire_1"));
    #[rustfmt::skip]
    let cases = [
        ("writer", "PUT",  path,                    json!({"rate": 5}),     403, "role_denied"),
        ("admin",  "PUT",  path,                    json!({"rate": 0}),     422, "wrong_fields"),
        ("admin",  "PUT",  path,                    json!({"burst": 5}),    422, "wrong_fields"),
        ("reader", "GET",  "/v1/targets",           none.clone(),           403, "project_denied"),
        ("reader", "GET",  path,                    none.clone(),           403, "project_denied"),
        ("writer", "PUT",  path,                    json!({}),              403, "role_denied"),
        ("admin",  "PUT",  path,                    json!({"pause": true}), 422, "wrong_fields"),
        ("admin",  "PUT",  "/v1/targets/a%20b",     json!({}),              400, "bad_name"),
        ("admin",  "POST", "/v1/targets/a:burn",    json!({}),              405, "no_such_method"),
        ("admin",  "POST", "/v1/targets/..:pause",  none.clone(),           400, "bad_name"),
    ];
    for (token, method, path, body, status, code) in cases {
        let told = api.ask(token, method, path, &body).await;
        assert_eq!((told.status, told.code()), (status, code), "{token} {method} {path}");
    }
}

#[tokio::test]
async fn a_topic_to_which_no_record_ever_goes_is_no_target() {
    let api = Api::new();
    let none = Value::Null;
    for topic in ["__consumer_offsets", "wc.intake", "wc.intake.eu", "wc.delay.1m", "wc.results"] {
        let path = format!("/v1/targets/{topic}");
        let (pause, resume) = (format!("{path}:pause"), format!("{path}:resume"));
        for (method, path, body) in [
            ("PUT", &path, &json!({"rate": 5})),
            ("PUT", &path, &json!({})),
            ("POST", &pause, &none),
            ("POST", &resume, &none),
        ] {
            let told = api.ask("", method, path, body).await;
            assert_eq!((told.status, told.code()), (422, "wrong_fields"), "{method} {path}");
            assert_eq!(told.json["errors"][0]["at"], "path.topic", "{method} {path}");
        }
        let told = api.ask("", "GET", &path, &none).await;
        assert_eq!((told.status, &told.json["revision"]), (200, &json!(0)), "{told:?}");
    }
    // It is another namespace's by its name, or anybody's: only the cluster knows.
    for topic in ["orders.dead", "wc2.intake", "wc.orders", "_mine"] {
        let told = api.ask("", "PUT", &format!("/v1/targets/{topic}"), &json!({})).await;
        assert_eq!(told.status, 200, "{topic}: {told:?}");
    }
    // A pause that an older version has taken can be ended, and no other can begin.
    let paused = TargetTopic { paused: true, ..TargetTopic::NEVER_PUT };
    let change = Change::of_target("wc.dead", Some(paused)).with_revision(1);
    api.world().registry.apply(change).expect("room");
    assert_eq!(api.ask("", "POST", "/v1/targets/wc.dead:pause", &none).await.status, 422);
    assert_eq!(api.ask("", "POST", "/v1/targets/wc.dead:resume", &none).await.status, 200);
    assert!(!api.world().registry.is_target_paused("wc.dead"));
}

#[tokio::test]
async fn a_target_has_a_rate_that_stays_while_it_is_paused_and_goes_with_the_next_put() {
    let api = Api::new();
    let (path, none) = ("/v1/targets/orders", Value::Null);
    let limit = || api.world().registry.target("orders").limit();
    let told = with_match(&api, "PUT", path, "\"0\"", &json!({"rate": 2.5, "burst": 7})).await;
    assert_eq!((told.status, &told.json), (200, &json!({"revision": 1})));
    assert_eq!(limit().map(|(rate, burst)| (rate.whole_per_1000_s(), burst)), Some((2_500, 7)));
    let told = with_match(&api, "PUT", path, "\"0\"", &json!({"rate": 9})).await;
    assert_eq!((told.status, told.code()), (409, "revision_conflict"));
    for (action, revision, paused) in [("pause", 2, true), ("resume", 3, false)] {
        let told = api.ask("", "POST", &format!("{path}:{action}"), &none).await;
        assert_eq!((told.status, &told.json), (200, &json!({"revision": revision})));
        let told = api.ask("", "GET", path, &none).await;
        let want = json!({"topic": "orders", "revision": revision, "paused": paused, "rate": 2.5, "burst": 7});
        assert_eq!(told.json, want);
    }
    assert_eq!(api.ask("", "PUT", path, &json!({})).await.status, 200);
    assert_eq!(limit(), None);
    let told = api.ask("", "GET", "/v1/targets", &none).await;
    let want = json!({"topic": "orders", "revision": 4, "paused": false});
    assert_eq!(told.json, json!({"targets": [want]}));
    let wrong = json!({"rate": "fast", "burst": 0, "pause": true});
    let told = api.ask("", "PUT", path, &wrong).await;
    let errors = told.json["errors"].as_array().into_iter().flatten();
    let places: Vec<_> = errors.filter_map(|error| error["at"].as_str()).collect();
    assert_eq!(places, ["rate", "burst", "pause"], "{}", told.json);
}

#[tokio::test]
async fn a_pause_of_a_target_is_made_to_the_revision_that_it_names() {
    let api = Api::new();
    let path = "/v1/targets/orders:pause";
    assert_eq!(with_match(&api, "POST", path, "\"0\"", &json!({})).await.status, 200);
    let told = with_match(&api, "POST", "/v1/targets/orders:resume", "\"0\"", &json!({})).await;
    assert_eq!((told.status, told.code()), (409, "revision_conflict"));
    assert!(api.world().registry.is_target_paused("orders"));
}

#[tokio::test]
async fn the_tasks_of_a_project_are_counted_for_who_may_know_of_it() {
    let api = Api::with_tokens();
    let limits = json!({"create_rate": 0.001});
    assert_eq!(api.ask("admin", "PUT", "/v1/projects/shop", &limits).await.status, 200);
    let counts = TaskCounts {
        delay: 5,
        ready: 4,
        overdue: 3,
        running: 2,
        finished: 60,
        failed: 7,
        cancelled: 8,
        expired: 9,
    };
    api.world().counts.insert("shop".to_owned(), counts);
    let task = json!({"project": "shop", "group": "o", "delay": 5, "url": "https://a.example"});
    let statuses = [
        api.ask("writer", "POST", "/v1/tasks/http", &task).await.status,
        api.ask("writer", "POST", "/v1/tasks/http", &task).await.status,
    ];
    assert_eq!(statuses, [201, 429]);
    let (path, none) = ("/v1/projects/shop/stats", Value::Null);
    let told = api.ask("reader", "GET", path, &none).await;
    let want = json!({
        "project": "shop",
        "pending": {"total": 11, "delay": 5, "ready": 4, "overdue": 3, "running": 2},
        "ended": {"finished": 60, "failed": 7, "cancelled": 8, "expired": 9},
        "refused": {"over_create_rate": 1, "over_pending": 0},
    });
    assert_eq!((told.status, &told.json), (200, &want));
    // A project need not have been put to have tasks, and another one is as if it were not there.
    let told = api.ask("admin", "GET", "/v1/projects/bank/stats", &none).await;
    assert_eq!((told.status, &told.json["pending"]["total"]), (200, &json!(0)));
    let told = api.ask("reader", "GET", "/v1/projects/bank/stats", &none).await;
    assert_eq!((told.status, told.code()), (404, "unknown_project"));
    api.world().failure = Some(Failure::Moving("moves".to_owned()));
    let told = api.ask("reader", "GET", path, &none).await;
    assert_eq!((told.status, told.code()), (503, "lane_moving"));
}
