//! Schedules, through the binary on a real Kafka: each nominal time is one task, whatever becomes of instances.

use std::collections::{BTreeMap, BTreeSet};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Api, command, fixture, launch};
use crate::support::{Call, Endpoint, eventually, eventually_within, now_ms, patient};

/// A schedule of the project shop; `more` says when. Its task calls this path.
fn schedule(name: &str, stub: &Endpoint, path: &str, more: Value) -> Value {
    let mut all = json!({
        "project": "shop", "group": "g", "name": name,
        "task": {"type": "http", "url": stub.url(path), "timeout": "1m"},
    });
    for (field, value) in more.as_object().expect("fields") {
        all[field] = value.clone();
    }
    all
}

fn path_of(name: &str) -> String {
    format!("/v1/schedules/schedule.shop.{name}")
}

#[track_caller]
fn put(api: &Api, of: &Value) -> Value {
    let path = path_of(of["name"].as_str().expect("a name"));
    let (status, told) = api.answered("PUT", &path, Some(of));
    assert!(status == 200 || status == 201, "{told}");
    told
}

#[track_caller]
fn get(api: &Api, name: &str) -> Value {
    let (status, told) = api.answered("GET", &path_of(name), None);
    assert_eq!(status, 200, "{told}");
    told
}

/// The nominal time of the task of a call.
fn nominal(call: &Call) -> u64 {
    let (_, at) =
        call.task().rsplit_once('@').unwrap_or_else(|| panic!("of no schedule: {call:?}"));
    at.parse().unwrap_or_else(|_| panic!("of no time: {call:?}"))
}

/// The calls of a path, in the order in which they began.
fn calls(stub: &Endpoint, path: &str) -> Vec<Call> {
    stub.calls().into_iter().filter(|call| call.target == path).collect()
}

/// The first whole second that is at least so far from now.
fn second_in(ms: u64) -> u64 {
    (now_ms() + ms).div_ceil(1_000) * 1_000
}

fn sleep_until(at: u64) {
    sleep(Duration::from_millis(at.saturating_sub(now_ms())));
}

#[test]
fn each_second_has_one_task_though_the_owner_of_its_lane_is_killed_twice() {
    const SECONDS: u64 = 45;
    let fixture = fixture("schedules-killed");
    let mut processes = vec![
        launch(&fixture, "a", "lanes,worker,api").start(),
        launch(&fixture, "b", "lanes,worker,api").start(),
    ];
    let stub = Endpoint::start();
    let start = second_in(4_000);
    let names: Vec<String> = (0..8).map(|n| format!("tick-{n}")).collect();
    for name in &names {
        let when = json!({"every": "1s", "start": start, "count": SECONDS, "misfire": "skip"});
        put(&Api::of(&processes[0]), &schedule(name, &stub, &format!("/ok?of={name}"), when));
    }
    for (round, data) in [(1, "a"), (2, "b")] {
        sleep_until(start + round * 12_000);
        processes[usize::from(data == "b")].kill();
        sleep(Duration::from_secs(4));
        processes[usize::from(data == "b")] = launch(&fixture, data, "lanes,worker,api").start();
    }
    let want: BTreeSet<u64> = (0..SECONDS).map(|n| start + n * 1_000).collect();
    for name in &names {
        let path = format!("/ok?of={name}");
        let all = eventually_within(Duration::from_secs(90), "each time is called", || {
            let all = calls(&stub, &path);
            let seen: BTreeSet<u64> = all.iter().map(nominal).collect();
            if seen.len() >= want.len() { Ok(all) } else { Err(format!("{name}: {}", seen.len())) }
        });
        assert_eq!(all.iter().map(nominal).collect::<BTreeSet<_>>(), want, "{name}");
        let tasks: BTreeSet<&str> = all.iter().map(|call| call.task()).collect();
        assert_eq!(tasks.len(), want.len(), "{name}: one task each");
        for call in &all {
            assert!(call.began >= nominal(call), "{call:?}");
        }
        let told = eventually("it has ended", || match get(&Api::of(&processes[0]), name) {
            told if told["status"] == "finished" => Ok(told),
            told => Err(told.to_string()),
        });
        assert_eq!(told["tasks_total"], SECONDS, "{told}");
    }
    // Those beside the kills, and what follows a kill until its lanes run again.
    let mut late: Vec<u64> = stub
        .calls()
        .iter()
        .filter(|call| call.turn == 1)
        .map(|call| (nominal(call), call.began - nominal(call)))
        .filter(|(at, _)| {
            [1, 2].iter().all(|round| {
                !(0..12_000).contains(&(*at as i64 - (start + round * 12_000) as i64 + 500))
            })
        })
        .map(|(_, late)| late)
        .collect();
    late.sort_unstable();
    assert!(late.len() > 100, "{}", late.len());
    let p99 = late[late.len() * 99 / 100 - 1];
    println!(
        "late beside the kills: p50 {} ms, p99 {p99} ms, of {}",
        late[late.len() / 2],
        late.len()
    );
    assert!(p99 < patient(Duration::from_millis(1_000)).as_millis() as u64, "{late:?}");
    for process in &mut processes {
        process.stop_well();
    }
}

#[test]
fn after_an_outage_times_are_made_up_for_as_each_schedule_says() {
    let fixture = fixture("schedules-outage");
    let mut process = launch(&fixture, "a", "lanes,worker,api").start();
    let stub = Endpoint::start();
    let first = second_in(5_000);
    for misfire in ["fire_once", "skip", "fire_all"] {
        let when = json!({"every": "40s", "start": first, "misfire": misfire});
        let name = misfire.replace('_', "-");
        put(&Api::of(&process), &schedule(&name, &stub, &format!("/ok?of={misfire}"), when));
    }
    sleep_until(first + 3_000);
    eventually("the first time is called", || match stub.begun() {
        3 => Ok(()),
        begun => Err(begun.to_string()),
    });
    process.stop_well();
    // Two times pass, and both are late by then. The next one is to come.
    sleep_until(first + 102_000);
    let mut process = launch(&fixture, "a", "lanes,worker,api").start();
    sleep_until(first + 123_000);
    let called = |misfire: &str| {
        let all = calls(&stub, &format!("/ok?of={misfire}"));
        let times = all.iter().map(|call| (nominal(call) - first) / 40_000);
        times.collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>()
    };
    assert_eq!(called("skip"), [0, 3]);
    assert_eq!(called("fire_once"), [0, 2, 3]);
    assert_eq!(called("fire_all"), [0, 1, 2, 3]);
    process.stop_well();
}

#[test]
fn tasks_of_one_schedule_overlap_only_if_they_may() {
    let fixture = fixture("schedules-overlap");
    let mut process = launch(&fixture, "a", "lanes,worker,api").start();
    let (api, stub) = (Api::of(&process), Endpoint::start());
    let start = second_in(4_000);
    let skip = json!({"every": "1s", "start": start, "count": 16, "overlap": "skip"});
    put(&api, &schedule("skip", &stub, "/slow?ms=3000&of=skip", skip));
    let queue = json!({"every": "1s", "start": start, "count": 16, "overlap": "queue_one"});
    put(&api, &schedule("queue", &stub, "/slow?ms=3000&of=queue", queue));
    let expires =
        json!({"every": "1s", "start": start, "count": 8, "overlap": "queue_one", "expires": "2s"});
    put(&api, &schedule("expires", &stub, "/slow?ms=10000&of=expires", expires));
    for name in ["skip", "queue", "expires"] {
        eventually_within(Duration::from_secs(60), "it has ended", || match get(&api, name) {
            told if told["status"] == "finished" => Ok(()),
            told => Err(told.to_string()),
        });
    }
    let settled = |path: &str| {
        eventually_within(Duration::from_secs(60), "all calls have ended", || {
            let all = calls(&stub, path);
            let open = all.iter().filter(|call| call.ended.is_none()).count();
            if open == 0 { Ok(all) } else { Err(format!("{open} are open")) }
        })
    };
    for (path, least) in [
        ("/slow?ms=3000&of=skip", 4),
        ("/slow?ms=3000&of=queue", 4),
        ("/slow?ms=10000&of=expires", 1),
    ] {
        let all = settled(path);
        for pair in all.windows(2) {
            assert!(
                pair[1].began + 20 >= pair[0].ended.expect("it has ended"),
                "two are open: {pair:?}"
            );
        }
        assert!(all.len() >= least && all.len() <= 8, "{path}: {}", all.len());
    }
    // The one that waited behind the first has expired, and is there to be looked at.
    let waited = get(&api, "expires")["last_task_id"].as_str().expect("one").to_owned();
    let of = waited.rsplit_once('@').expect("its time").0.to_owned();
    let second = format!("{of}@{}", start + 1_000);
    let told = api.end_of(&second);
    assert_eq!(told["task_status"], "expired", "{told}");
    process.stop_well();
}

#[test]
fn a_change_a_pause_and_a_backfill_hold_for_the_times_that_they_are_about() {
    let fixture = fixture("schedules-changes");
    let mut process = launch(&fixture, "a", "lanes,worker,api").start();
    let (api, stub) = (Api::of(&process), Endpoint::start());
    let start = second_in(6_000);
    let when = json!({"every": "10s", "start": start});
    let first = put(&api, &schedule("report", &stub, "/ok?of=old", when.clone()));
    sleep_until(start - 1_000);
    let version = first["version"].as_str().expect("a version").to_owned();
    let new = schedule("report", &stub, "/ok?of=new", when.clone());
    let change =
        |of: &Value, version: &str| api.answered_if("PUT", &path_of("report"), version, Some(of));
    let both: Vec<u16> = std::thread::scope(|scope| {
        let asked: Vec<_> = (0..2).map(|_| scope.spawn(|| change(&new, &version).0)).collect();
        asked.into_iter().map(|asked| asked.join().expect("answered")).collect()
    });
    let mut both = both;
    both.sort_unstable();
    assert_eq!(both, [200, 409], "two changes of one version");
    eventually("the new one is called", || match calls(&stub, "/ok?of=new").first() {
        Some(call) if nominal(call) == start => Ok(()),
        other => Err(format!("{other:?}")),
    });
    assert!(calls(&stub, "/ok?of=old").is_empty(), "the old one never runs");

    // A pause one second before the next time, and its end.
    sleep_until(start + 9_000);
    let (status, paused) = api.answered("POST", &format!("{}:pause", path_of("report")), None);
    assert_eq!((status, &paused["status"]), (200, &json!("paused")), "{paused}");
    sleep_until(start + 13_000);
    assert_eq!(calls(&stub, "/ok?of=new").len(), 1, "nothing while it is paused");
    let (status, told) = api.answered("POST", &format!("{}:resume", path_of("report")), None);
    assert_eq!((status, &told["next_at"]), (200, &json!(start + 20_000)), "{told}");
    eventually("the next time is called", || match calls(&stub, "/ok?of=new").last() {
        Some(call) if nominal(call) == start + 20_000 => Ok(()),
        other => Err(format!("{other:?}")),
    });

    // What fell into the pause is asked for, twice: it runs once, and what ran does not run again.
    let span = json!({"from": start, "to": start + 20_001});
    for _ in 0..2 {
        let (status, told) =
            api.answered("POST", &format!("{}:backfill", path_of("report")), Some(&span));
        assert_eq!((status, told["tasks"].as_array().map(Vec::len)), (200, Some(3)), "{told}");
        sleep(Duration::from_secs(2));
    }
    let mut seen: BTreeMap<u64, usize> = BTreeMap::new();
    for call in calls(&stub, "/ok?of=new") {
        *seen.entry((nominal(&call) - start) / 10_000).or_default() += 1;
    }
    assert_eq!(
        seen.into_iter().filter(|(at, _)| *at <= 2).collect::<Vec<_>>(),
        [(0, 1), (1, 1), (2, 1)]
    );

    // One more, by hand.
    let (status, told) = api.answered("POST", &format!("{}:trigger", path_of("report")), None);
    assert_eq!(status, 201, "{told}");
    let task = told["task_id"].as_str().expect("an id");
    assert_eq!(api.end_of(task)["task_status"], "finished");

    // After its end it is there to be looked at, and can be made anew.
    let (status, told) = api.answered("DELETE", &path_of("report"), None);
    assert_eq!((status, &told["outcome"]), (200, &json!("deleted")), "{told}");
    assert_eq!(get(&api, "report")["status"], "deleted");
    let (_, listed) = api.answered("GET", "/v1/schedules?project=shop", None);
    assert_eq!(listed["schedules"], json!([]));
    let (status, told) = api.answered(
        "POST",
        "/v1/schedules",
        Some(&schedule("report", &stub, "/ok?of=anew", json!({"every": "1s"}))),
    );
    assert_eq!((status, &told["status"]), (201, &json!("active")), "{told}");
    eventually("it is called", || match calls(&stub, "/ok?of=anew").len() {
        0 => Err("none".to_owned()),
        _ => Ok(()),
    });
    let (_, listed) = api.answered("GET", "/v1/schedules?project=shop&limit=10", None);
    assert_eq!(listed["schedules"].as_array().map(Vec::len), Some(1), "{listed}");
    let (_, tasks) = api.answered("GET", "/v1/tasks?project=shop&status=delay", None);
    assert!(!tasks.to_string().contains("\"schedule\""), "a schedule is no task: {tasks}");
    process.stop_well();
}

#[test]
fn many_schedules_of_one_second_are_each_called_once_and_in_time() {
    const SCHEDULES: usize = 100;
    const SECONDS: u64 = 10;
    let fixture = fixture("schedules-many");
    let mut process = launch(&fixture, "a", "lanes,worker,api").start();
    let (api, stub) = (Api::of(&process), Endpoint::start());
    let start = second_in(20_000);
    let began = Instant::now();
    for n in 0..SCHEDULES {
        let when = json!({"every": "1s", "start": start, "count": SECONDS});
        put(&api, &schedule(&format!("s{n}"), &stub, &format!("/ok?of={n}"), when));
    }
    println!("{SCHEDULES} schedules in {:?}", began.elapsed());
    assert!(now_ms() < start, "the machine is too slow for this test");
    let all = SCHEDULES * SECONDS as usize;
    eventually_within(Duration::from_secs(60), "all are called", || match stub.begun() {
        begun if begun >= all => Ok(()),
        begun => Err(begun.to_string()),
    });
    sleep(Duration::from_secs(2));
    let calls = stub.calls();
    let each: BTreeSet<(&str, u64)> =
        calls.iter().map(|call| (call.target.as_str(), nominal(call))).collect();
    assert_eq!((calls.len(), each.len()), (all, all), "each once");
    let mut late: Vec<u64> = calls.iter().map(|call| call.began - nominal(call)).collect();
    late.sort_unstable();
    let (p50, p99) = (late[all / 2], late[all * 99 / 100]);
    println!("late: p50 {p50} ms, p99 {p99} ms");
    assert!(p99 < patient(Duration::from_secs(1)).as_millis() as u64, "{p50} {p99}");
    process.stop_well();
}

#[test]
fn the_files_of_a_directory_are_applied_after_their_diff() {
    let fixture = fixture("schedules-files");
    let mut process = launch(&fixture, "a", "lanes,worker,api").start();
    let stub = Endpoint::start();
    let dir = fixture.path("schedules");
    std::fs::create_dir(&dir).expect("a directory");
    let write = |name: &str, text: &str| std::fs::write(dir.join(name), text).expect("written");
    let toml = |name: &str, when: &str| {
        let url = stub.url(&format!("/ok?of={name}"));
        format!(
            "project = \"shop\"\ngroup = \"g\"\nname = \"{name}\"\n{when}\n[task]\ntype = \"http\"\nurl = \"{url}\"\n"
        )
    };
    let dir_word = dir.display().to_string();
    let apply = |more: &[&str]| {
        let words = [&["schedule", "apply", &dir_word][..], more].concat();
        eventually("an instance answers", || match command(&process, &words) {
            ended if ended.code == Some(69) => Err(ended.error),
            ended => Ok(ended),
        })
    };
    write("a.toml", &toml("tick", "every = \"1s\""));
    write("b.toml", &toml("night", "cron = \"30 2 * * *\"\nzone = \"Europe/Berlin\""));
    let ended = apply(&["--dry-run"]);
    assert_eq!(ended.code, Some(0), "{} {}", ended.said, ended.error);
    assert!(
        ended.said.contains("+ shop/tick") && ended.said.contains("+ shop/night"),
        "{}",
        ended.said
    );
    assert_eq!(stub.begun(), 0);
    let ended = apply(&[]);
    assert_eq!(ended.code, Some(2), "nobody to ask: {} {}", ended.said, ended.error);
    assert!(ended.error.contains("--yes"), "{}", ended.error);
    let ended = apply(&["--yes"]);
    assert_eq!(ended.code, Some(0), "{} {}", ended.said, ended.error);
    eventually("it is called", || match stub.begun() {
        0 => Err("nothing".to_owned()),
        _ => Ok(()),
    });
    let ended = apply(&["--yes"]);
    assert!(
        ended.code == Some(0) && ended.said.contains("= shop/tick"),
        "{} {}",
        ended.said,
        ended.error
    );

    // One is changed, and one is not in the directory any more.
    write("a.toml", &toml("tick", "every = \"2s\""));
    std::fs::remove_file(dir.join("b.toml")).expect("removed");
    let ended = apply(&["--yes", "--prune"]);
    assert_eq!(ended.code, Some(0), "{} {}", ended.said, ended.error);
    for want in ["~ shop/tick", "every: 1 -> 2", "- shop/night"] {
        assert!(ended.said.contains(want), "{want}: {}", ended.said);
    }
    let said = |words: &[&str]| {
        let ended = command(&process, words);
        assert_eq!(ended.code, Some(0), "{words:?}: {} {}", ended.said, ended.error);
        ended.said
    };
    let listed = said(&["schedule", "list"]);
    assert!(listed.contains("tick") && !listed.contains("night"), "{listed}");
    let shown: Value =
        serde_json::from_str(&said(&["schedule", "get", "shop/tick", "--json"])).expect("JSON");
    assert_eq!((&shown["every"], &shown["status"]), (&json!(2), &json!("active")));
    assert!(said(&["schedule", "pause", "shop/tick"]).contains("paused"));
    let before = stub.begun();
    assert!(said(&["schedule", "trigger", "shop/tick"]).contains("@manual-"));
    eventually("the task by hand is called", || match stub.begun() {
        begun if begun > before => Ok(()),
        begun => Err(begun.to_string()),
    });
    said(&["schedule", "resume", "schedule.shop.tick"]);
    said(&["schedule", "delete", "shop/tick", "--wait", "20s"]);
    let ended = command(&process, &["schedule", "get", "shop/none"]);
    assert_eq!(ended.code, Some(1), "{} {}", ended.said, ended.error);
    // All that is wrong is named, and nothing is changed.
    write("a.toml", &toml("tick", "every = \"2s\"\ncron = \"@daily\""));
    write("c.toml", "project = \n");
    let ended = apply(&["--yes"]);
    assert_eq!(ended.code, Some(2), "{} {}", ended.said, ended.error);
    for want in ["a.toml", "every", "c.toml"] {
        assert!(ended.error.contains(want), "{want}: {}", ended.error);
    }
    process.stop_well();
}
