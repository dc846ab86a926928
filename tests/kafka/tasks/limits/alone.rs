//! A fast project beside one that is slow. `scripts/test` runs these one by one, with no other test beside them: what is
//! measured is what waterclock does to the fast one, and not what the machine does.

use std::time::{Duration, Instant};

use serde_json::json;

use super::super::{Api, LANES, launch, put_service, task, with};
use super::with_longer_tiers;
use crate::support::{Endpoint, eventually_within, now_ms, patient};

const FAST: usize = 150;

/// Calls to one service that a process has open at most: a quarter of its 1,000.
const OF_SERVICE: usize = 250;

/// Tasks that are all overdue at once, and the calls that their service allows in a second.
const BACKLOG: usize = 20_000;
const BACKLOG_RATE: usize = 50;

/// How late the calls of a fast project began, in milliseconds: all but one of a hundred were quicker.
fn p99(api: &Api, stub: &Endpoint, project: &str) -> u64 {
    let mut late = Vec::new();
    // Spread over five seconds.
    for n in 0..FAST {
        let due = now_ms() + 1_000 + (n * 5_000 / FAST) as u64;
        let asked =
            json!({"project": project, "group": "g", "url": stub.url("/ok"), "trigger_at": due});
        late.push((api.create(&asked), due));
    }
    api.wait_for(Duration::from_secs(60), project, "finished", FAST);
    let begins = |(id, due): (String, u64)| {
        let calls = stub.calls_of(&id);
        assert_eq!(calls.len(), 1, "{calls:?}");
        assert!(calls[0].began >= due, "{calls:?}, due at {due}");
        calls[0].began - due
    };
    let mut late: Vec<u64> = late.into_iter().map(begins).collect();
    late.sort_unstable();
    late[(FAST * 99).div_ceil(100) - 1]
}

/// Has a project wait, with at least so many calls open that hang, and checks that another one is called in time meanwhile.
#[track_caller]
fn beside(test: &str, open: usize, create: impl Fn(&Api, &Endpoint)) {
    let fixture = with_longer_tiers(test);
    let mut process = launch(&fixture, "a", "lanes,worker,api").start();
    let (api, stub, fast) = (Api::of(&process), Endpoint::start(), Endpoint::start());
    let alone = p99(&api, &fast, "alone");
    let began = Instant::now();
    create(&api, &stub);
    let created = began.elapsed();
    eventually_within(Duration::from_secs(90), "the slow project has calls open", || {
        let begun = stub.begun();
        if begun >= open { Ok(()) } else { Err(format!("{begun}")) }
    });
    let beside = p99(&api, &fast, "beside");
    println!(
        "{test}: p99 alone: {alone} ms; beside a slow project, created in {created:?}, of which {} calls are open: {beside} ms",
        stub.begun()
    );
    let most = patient(Duration::from_secs(1)).as_millis() as u64;
    assert!(beside < most, "{beside} ms, and {alone} ms alone");
    assert_eq!(stub.ended(), 0, "the slow project was slow all the time");
    assert_eq!(stub.begun() > 0, open > 0, "nothing of a paused project is called");
    // Its calls are open: it is not waited for.
    process.kill();
}

/// A project may have 5,000 calls open, and so have its service. So many of its tasks are overdue, and each call hangs. A process has
/// [`OF_SERVICE`] of them open.
#[track_caller]
fn beside_hanging(test: &str, overdue: usize) {
    beside(test, OF_SERVICE, |api, stub| {
        let limits = json!({"concurrency": 5_000});
        let (status, told) = api.answered("PUT", "/v1/projects/slow", Some(&limits));
        assert_eq!(status, 200, "{told}");
        put_service(api, "slow", "stuck", &with(limits, json!({"address": stub.url("")})));
        // Every instance knows the limits within two seconds.
        std::thread::sleep(Duration::from_secs(2));
        let one = json!({
            "project": "slow", "group": "g", "delay": "0s", "service": "stuck", "path": "/hang",
            "timeout": "5m",
        });
        for _ in 0..overdue.div_ceil(1_000) {
            api.create_all(vec![one.clone(); 1_000]);
        }
    });
}

#[test]
fn ten_thousand_tasks_that_hang_do_not_hold_up_a_fast_project() {
    beside_hanging("tasks-hang", 10_000);
}

#[test]
#[ignore = "takes minutes: scripts/test --all"]
fn a_hundred_thousand_tasks_that_hang_do_not_hold_up_a_fast_project() {
    beside_hanging("tasks-hang-many", 105_000);
}

/// They come up again and again, and are put off each time.
#[test]
fn forty_thousand_paused_tasks_do_not_hold_up_a_fast_project() {
    beside("tasks-paused", 0, |api, stub| {
        let (status, told) =
            api.answered("PUT", "/v1/projects/slow", Some(&json!({"paused": true})));
        assert_eq!(status, 200, "{told}");
        // A pause is in force within two seconds.
        std::thread::sleep(Duration::from_secs(2));
        let one = task("slow", stub, "/ok", "0s");
        for _ in 0..40 {
            api.create_all(vec![one.clone(); 1_000]);
        }
    });
}

/// So many tasks of a mebibyte hang.
#[track_caller]
fn beside_large(test: &str, count: usize) {
    // Each lane lets one go: for two its credits of one service are not enough.
    beside(test, usize::from(LANES), |api, stub| {
        let more = json!({"timeout": "5m", "body": "x".repeat(1 << 20)});
        let one = with(task("slow", stub, "/hang", "0s"), more);
        for _ in 0..count {
            api.create(&one);
        }
    });
}

#[test]
fn sixty_tasks_of_a_mebibyte_that_hang_do_not_hold_up_a_fast_project() {
    beside_large("tasks-large", 60);
}

#[test]
fn five_hundred_tasks_of_a_mebibyte_that_hang_do_not_hold_up_a_fast_project() {
    beside_large("tasks-larger", 500);
}

#[test]
#[ignore = "takes seven minutes: scripts/test --all"]
fn a_backlog_of_twenty_thousand_is_called_at_its_rate_and_put_off_six_times_at_most() {
    let fixture = with_longer_tiers("tasks-backlog");
    let mut process = launch(&fixture, "a", "lanes,worker,api").start();
    let (api, stub) = (Api::of(&process), Endpoint::start());
    put_service(&api, "shop", "billing", &json!({"address": stub.url(""), "rate": BACKLOG_RATE}));
    let due = now_ms() + 20_000;
    let one = json!({
        "project": "shop", "group": "g", "trigger_at": due, "service": "billing", "path": "/ok",
    });
    for _ in 0..BACKLOG / 1_000 {
        api.create_all(vec![one.clone(); 1_000]);
    }
    let most = Duration::from_secs(600);
    eventually_within(most, "all are called", || {
        let begun = stub.begun();
        if begun >= BACKLOG { Ok(()) } else { Err(format!("{begun} calls")) }
    });
    let put_offs = process.metric("waterclock_tasks_put_off_total") / BACKLOG as f64;
    let mut calls: Vec<u64> = stub.calls().iter().map(|call| call.began).collect();
    calls.sort_unstable();
    assert_eq!(calls.len(), BACKLOG, "each once");
    let took = (calls[BACKLOG - 1] - due) as usize;
    let of_rate = BACKLOG * 1_000 / BACKLOG_RATE;
    println!("{BACKLOG} calls in {took} ms, {of_rate} at the rate; {put_offs:.2} put-offs of each");
    assert!(calls[0] >= due && took <= of_rate * 11 / 10, "{took} ms for {of_rate}");
    assert!(put_offs <= 6.0, "{put_offs} put-offs of each");
    let behind = |at: usize| calls[at..].partition_point(|call| *call < calls[at] + 10_000);
    let most = (0..BACKLOG).map(behind).max().expect("calls");
    assert!(most <= 11 * BACKLOG_RATE, "{most} calls in 10 s");
    process.stop_well();
}
