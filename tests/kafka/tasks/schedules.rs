//! Schedules, through the binary on a real Kafka: each nominal time is one task, whatever becomes of instances.

mod clocks;

use std::collections::{BTreeMap, BTreeSet};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use waterclock::engine::Millis;
use waterclock::engine::task::id::TaskId;

use super::{Api, command, fixture, has_all_lanes, launch, owner_of, share_lanes, with};
use crate::support::on_terminal::OnTerminal;
use crate::support::tasks::Ended;
use crate::support::{
    Call, Endpoint, Process, eventually, eventually_within, now_ms, patient, start_all, waterclock,
};

/// A schedule of the project shop; `more` says when. Its task calls this path.
fn schedule(name: &str, stub: &Endpoint, path: &str, more: Value) -> Value {
    let task = json!({"type": "http", "url": stub.url(path), "timeout": "1m"});
    with(json!({"project": "shop", "group": "g", "name": name, "task": task}), more)
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

/// The nominal time of the task of a call, which its id and its header say.
fn nominal(call: &Call) -> u64 {
    let (_, at) =
        call.task().rsplit_once('@').unwrap_or_else(|| panic!("of no schedule: {call:?}"));
    let at = at.parse().unwrap_or_else(|_| panic!("of no time: {call:?}"));
    assert_eq!(call.nominal, Some(at), "{call:?}");
    at
}

/// The calls of a path, in the order in which they began.
fn calls(stub: &Endpoint, path: &str) -> Vec<Call> {
    stub.calls().into_iter().filter(|call| call.target == path).collect()
}

/// How a command ends, once an instance answers.
#[track_caller]
fn ended(process: &Process, words: &[&str]) -> Ended {
    eventually("an instance answers", || match command(process, words) {
        ended if ended.code == Some(69) => Err(ended.error),
        ended => Ok(ended),
    })
}

/// What a command prints that ends well.
#[track_caller]
fn said(process: &Process, words: &[&str]) -> String {
    let ended = ended(process, words);
    assert_eq!(ended.code, Some(0), "{words:?}: {} {}", ended.said, ended.error);
    ended.said
}

/// The first whole second that is at least so far from now.
fn second_in(ms: u64) -> u64 {
    (now_ms() + ms).div_ceil(1_000) * 1_000
}

fn sleep_until(at: u64) {
    sleep(Duration::from_millis(at.saturating_sub(now_ms())));
}

/// One of the schedules that go on while owners of lanes are lost, by its number: each second has a task.
struct Tick {
    name: String,
    misfire: &'static str,
    jitter: Millis,
}

impl Tick {
    fn of(n: usize) -> Self {
        let misfire = ["fire_all", "fire_once"][n % 2];
        Self { name: format!("tick-{n}"), misfire, jitter: Millis(if n > 4 { 3_000 } else { 0 }) }
    }

    /// Puts it; `more` says when.
    #[track_caller]
    fn put(&self, api: &Api, stub: &Endpoint, more: Value) {
        let jitter = format!("{}ms", self.jitter.0);
        let when = json!({"every": "1s", "misfire": self.misfire, "jitter": jitter});
        put(api, &schedule(&self.name, stub, &self.path(), with(when, more)));
    }

    fn path(&self) -> String {
        format!("/ok?of={}", self.name)
    }

    /// When the task of this call was due.
    fn due(&self, call: &Call) -> u64 {
        let id = TaskId::parse(call.task()).expect("an id");
        nominal(call) + id.offset_in(self.jitter).0
    }
}

#[test]
fn each_second_has_one_task_though_the_owner_of_its_lane_is_killed_twice_and_stands_still_once() {
    /// A time is missed that is over for longer, as docs/schedules.md says.
    const GRACE_MS: u64 = 20_000;
    /// How long nothing happens before an owner is lost.
    const CALM: Duration = Duration::from_secs(3);
    let fixture = fixture("schedules-killed");
    // It makes all calls, and nothing happens to it: none is made twice.
    let mut server = launch(&fixture, "api", "worker,api").spawn();
    let owner = |data: &str| launch(&fixture, data, "lanes");
    let mut owners = start_all(["a", "b"].map(owner));
    server.wait_until_ready();
    share_lanes(owners.each_ref());
    let (api, stub) = (Api::of(&server), Endpoint::start());
    let ticks: Vec<Tick> = (0..8).map(Tick::of).collect();
    let start = second_in(4_000);
    for tick in &ticks {
        tick.put(&api, &stub, json!({ "start": start }));
    }
    sleep_until(start);
    let mut calm = Vec::new();
    // Who comes in the place of the owner that is lost: another one, which knows nothing, or itself.
    for comes in [Some("c"), Some("d"), None] {
        let from = now_ms();
        sleep(CALM);
        calm.push(from..now_ms());
        // What was due is called.
        sleep(Duration::from_secs(1));
        let hit = owner_of(&fixture, "schedule.shop.tick-0", &owners.each_ref());
        match comes {
            Some(_) => owners[hit].kill(),
            None => owners[hit].freeze(),
        }
        let lost = now_ms();
        has_all_lanes(&owners[1 - hit]);
        // Times that came meanwhile are called together, in any order: the longest wait of one says how long the lane stood still.
        let stood =
            eventually("the other one goes on with times that nobody was there for", || {
                let of_first = calls(&stub, &ticks[0].path());
                let since = of_first.iter().filter(|call| nominal(call) > lost);
                match since.map(|call| call.began - ticks[0].due(call)).max() {
                    Some(stood) if stood > 2_000 => Ok(stood),
                    other => Err(format!("it may be another one's lane: {other:?} ms")),
                }
            });
        println!("{:?} comes; the lane stood still for {stood} ms", comes.unwrap_or("itself"));
        match comes {
            Some(data) => owners[hit] = owner(data).start(),
            None => owners[hit].thaw(),
        }
        share_lanes(owners.each_ref());
        // What is overdue is called, too.
        sleep(Duration::from_secs(1));
    }
    let end = second_in(patient(CALM).as_millis() as u64);
    calm.push(now_ms()..end);
    for tick in &ticks {
        tick.put(&api, &stub, json!({"start": start, "end": end}));
    }
    assert!(now_ms() < end, "the machine is too slow for this test");

    let want: Vec<u64> = (start..end).step_by(1_000).collect();
    let mut late = Vec::new();
    for tick in &ticks {
        let name = &tick.name;
        let told = eventually("it has ended", || match get(&api, name) {
            told if told["status"] == "finished" => Ok(told),
            told => Err(told.to_string()),
        });
        let total = told["tasks_total"].as_u64().expect("a number") as usize;
        let all = eventually("all its tasks are called", || {
            let all = calls(&stub, &tick.path());
            if all.len() >= total { Ok(all) } else { Err(format!("{name}: {}", all.len())) }
        });
        let by_time: BTreeMap<u64, &Call> = all.iter().map(|call| (nominal(call), call)).collect();
        assert_eq!([all.len(), by_time.len()], [total; 2], "{name}: one call each");
        assert!(by_time.keys().all(|at| want.contains(at)), "{name}: {by_time:?}");
        for at in want.iter().filter(|at| !by_time.contains_key(*at)) {
            let (_, next) = by_time.range(*at..).next().unwrap_or_else(|| panic!("{name}: {at}"));
            let is_missed = tick.misfire == "fire_once" && next.began > at + GRACE_MS;
            assert!(is_missed, "{name}: {at} was left out, and then there is {next:?}");
        }
        for call in &all {
            let due = tick.due(call);
            assert!(call.began >= due, "{due}: {call:?}");
            if calm.iter().any(|calm| calm.contains(&due)) {
                late.push(call.began - due);
            }
        }
    }
    late.sort_unstable();
    assert!(late.len() > 80, "{}", late.len());
    let (p50, p99) = (late[late.len() / 2], late[late.len() * 99 / 100 - 1]);
    println!(
        "{} s; late beside the take-overs: p50 {p50} ms, p99 {p99} ms, of {}",
        want.len(),
        late.len()
    );
    // Of so few the worst percentile is one call or two: a busy machine may have them wait.
    let bounds = [1_000, 3_000].map(|ms| patient(Duration::from_millis(ms)).as_millis() as u64);
    assert!(p50 < bounds[0] && p99 < bounds[1], "{late:?}");
    for process in &mut owners {
        process.stop_well();
    }
    server.stop_well();
}

#[test]
fn after_an_outage_times_are_made_up_for_as_each_schedule_says() {
    let fixture = fixture("schedules-outage");
    let mut process = launch(&fixture, "a", "lanes,worker,api").start();
    let stub = Endpoint::start();
    let first = second_in(5_000);
    // So many seconds from the first time on: two that are missed, and one after the grace of 20 s and a start.
    let times = [0, 12, 17, 56];
    let seconds = times.map(|time| ((first / 1_000 + time) % 60).to_string()).join(",");
    for misfire in ["fire_once", "skip", "fire_all"] {
        let cron = format!("{seconds} * * * * *");
        let when = json!({"cron": cron, "start": first, "misfire": misfire});
        let name = misfire.replace('_', "-");
        put(&Api::of(&process), &schedule(&name, &stub, &format!("/ok?of={misfire}"), when));
    }
    sleep_until(first + 3_000);
    eventually("the first time is called", || match stub.begun() {
        3 => Ok(()),
        begun => Err(begun.to_string()),
    });
    process.stop_well();
    // Two times pass, and both are late by then. The next one is to come, and the one after that is not looked at.
    assert!(now_ms() < first + times[1] * 1_000, "it stopped before the second time");
    sleep_until(first + 39_000);
    let mut process = launch(&fixture, "a", "lanes,worker,api").start();
    sleep_until(first + 59_000);
    let called = |misfire: &str| {
        let all = calls(&stub, &format!("/ok?of={misfire}"));
        let times =
            all.iter().map(|call| (nominal(call) - first) / 1_000).filter(|time| *time < 60);
        times.collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>()
    };
    let [first, _, second_missed, next] = times;
    assert_eq!(called("skip"), [first, next]);
    assert_eq!(called("fire_once"), [first, second_missed, next]);
    assert_eq!(called("fire_all"), times);
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
    check_order(&api, &stub);
    check_races(&api, &stub);
    process.stop_well();
}

/// Schedules are listed by the first time that each had when it was made, changed or resumed, on pages of any size. Those that are
/// paused come last.
#[track_caller]
fn check_order(api: &Api, stub: &Endpoint) {
    let put_at = |name: &str, hours: u64, paused: bool| {
        let more = json!({"every": "1h", "start": second_in(hours * 3_600_000), "paused": paused});
        put(api, &schedule(name, stub, "/ok?of=order", more));
    };
    let listed = |limit: usize| -> Vec<String> {
        let (mut names, mut page) = (Vec::new(), String::new());
        loop {
            let path = format!("/v1/schedules?project=shop&limit={limit}{page}");
            let (status, told) = api.answered("GET", &path, None);
            assert_eq!(status, 200, "{told}");
            let all = told["schedules"].as_array().expect("a list");
            names.extend(all.iter().filter_map(|of| Some(of["name"].as_str()?.to_owned())));
            match told["next"].as_str() {
                Some(next) => page = format!("&page={next}"),
                None => return names,
            }
        }
    };
    let are_listed = |want: [&str; 5]| {
        eventually(&format!("{want:?} are listed in this order"), || {
            let of_pages = [1, 2, 10].map(listed);
            if of_pages.iter().all(|names| *names == want) {
                Ok(())
            } else {
                Err(format!("{of_pages:?}"))
            }
        });
    };
    for (name, hours, paused) in
        [("three", 3, false), ("one", 1, false), ("halted", 1, true), ("two", 2, false)]
    {
        put_at(name, hours, paused);
    }
    // The first one has a time each second, and stays where it was.
    are_listed(["report", "one", "two", "three", "halted"]);
    put_at("one", 4, false);
    are_listed(["report", "two", "three", "one", "halted"]);
    let (status, told) = api.answered("POST", &format!("{}:resume", path_of("halted")), None);
    assert_eq!(status, 200, "{told}");
    are_listed(["report", "halted", "two", "three", "one"]);
}

/// Several change one schedule as fast as they can, each in the place of the version that it has found. Of all changes of one version
/// exactly one is taken, and its caller is told so, also if the next one follows at once.
fn check_races(api: &Api, stub: &Endpoint) {
    const CHANGES: usize = 12;
    let daily = schedule("raced", stub, "/ok?of=raced", json!({"every": "1d"}));
    put(api, &daily);
    let change = |who: usize| -> Vec<(String, bool)> {
        let each = (0..CHANGES).map(|n| {
            let version = get(api, "raced")["version"].as_str().expect("a version").to_owned();
            let mut new = daily.clone();
            new["task"]["body"] = format!("{who}-{n}").into();
            let (status, told) = api.answered_if("PUT", &path_of("raced"), &version, Some(&new));
            assert!(status == 200 || status == 409, "{told}");
            (version, status == 200)
        });
        each.collect()
    };
    let made: Vec<(String, bool)> = std::thread::scope(|scope| {
        let change = &change;
        let asked: Vec<_> = (0..4).map(|who| scope.spawn(move || change(who))).collect();
        asked.into_iter().flat_map(|asked| asked.join().expect("answered")).collect()
    });
    let last = get(api, "raced")["version"].as_str().expect("a version").to_owned();
    let mut taken: BTreeMap<String, usize> = BTreeMap::new();
    for (version, is_taken) in &made {
        *taken.entry(version.clone()).or_default() += usize::from(*is_taken);
    }
    println!("{} changes of {} versions", made.len(), taken.len());
    for (version, taken) in taken {
        assert_eq!(taken, usize::from(version != last), "of {version}: {made:?}");
    }
}

#[test]
fn many_schedules_of_one_second_are_each_called_once_and_in_time() {
    const SCHEDULES: usize = 100;
    const SECONDS: u64 = 10;
    let fixture = fixture("schedules-many");
    let mut process = launch(&fixture, "a", "lanes,worker,api").start();
    let (api, stub) = (Api::of(&process), Endpoint::start());
    let start = second_in(patient(Duration::from_secs(20)).as_millis() as u64);
    let began = Instant::now();
    let put_each = |numbers: std::ops::Range<usize>| {
        for n in numbers {
            let when = json!({"every": "1s", "start": start, "count": SECONDS});
            put(&api, &schedule(&format!("s{n}"), &stub, &format!("/ok?of={n}"), when));
        }
    };
    std::thread::scope(|scope| {
        for part in 0..10 {
            let put_each = &put_each;
            scope.spawn(move || put_each(part * SCHEDULES / 10..(part + 1) * SCHEDULES / 10));
        }
    });
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
    let (api, stub) = (Api::of(&process), Endpoint::start());
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
    let apply =
        |more: &[&str]| ended(&process, &[&["schedule", "apply", &dir_word][..], more].concat());
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
    // At a terminal a person is asked. All but a yes is a no.
    let answered = |answer: &str| {
        let mut command = waterclock();
        let server = format!("http://{}", process.address().expect("it serves"));
        command.args(["schedule", "apply", &dir_word, "--server", &server]);
        let mut asked = OnTerminal::start(command);
        asked.has_drawn(&["+ shop/night", "Do it? [y/N] "]);
        asked.press(answer);
        asked.ended()
    };
    for no in ["\n", "n\n", "maybe\n", "\x04"] {
        let (code, drawn) = answered(no);
        assert!(
            code == Some(1) && drawn.contains("nothing was changed"),
            "{no:?}: {code:?} {drawn}"
        );
    }
    assert_eq!((stub.begun(), said(&process, &["schedule", "list", "--json"])), (0, String::new()));
    let (code, drawn) = answered("y\n");
    assert!(code == Some(0) && !drawn.contains("nothing was changed"), "{code:?} {drawn}");
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
    let said = |words: &[&str]| said(&process, words);
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
    // Five times of an hour ago, twice: each of them runs once.
    let from = (now_ms() - 3_600_000) / 2_000 * 2_000;
    let (begin, end) = (from.to_string(), (from + 10_000).to_string());
    let backfill = ["schedule", "backfill", "shop/tick", "--from", &begin, "--to", &end];
    let first = said(&backfill);
    assert!(first.contains("asked for 5 times"), "{first}");
    let again = said(&[&backfill[..], &["--json"]].concat());
    let ids: Vec<Value> = again
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("JSON")["task_id"].clone())
        .collect();
    assert_eq!(ids.len(), 5, "{again}");
    for id in &ids {
        let told = api.end_of(id.as_str().expect("an id"));
        assert_eq!((&told["task_status"], &told["turn"]), (&json!("finished"), &json!(1)));
    }
    let all = calls(&stub, "/ok?of=tick");
    let (by_hand, of_times): (Vec<Call>, Vec<Call>) =
        all.into_iter().partition(|call| call.task().contains("@manual-"));
    assert!(
        !by_hand.is_empty() && by_hand.iter().all(|call| call.nominal.is_none()),
        "{by_hand:?}"
    );
    let of_times = of_times.iter().map(nominal);
    let mut times: Vec<u64> = of_times.filter(|at| (from..from + 10_000).contains(at)).collect();
    times.sort_unstable();
    let want: Vec<u64> = (0..5).map(|n| from + n * 2_000).collect();
    assert_eq!(times, want, "each once");
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
