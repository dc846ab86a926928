//! Records of `<ns>.tasks` that somebody deletes before a worker has read them.

use std::collections::BTreeSet;

use serde_json::json;

use super::{Api, LANES, fixture, launch, put_service};
use crate::support::{Endpoint, PATIENCE, eventually};

/// More than the 16 of each lane that may be at workers, however few calls the service allows.
const TASKS: usize = 25 * LANES as usize;

#[test]
fn a_task_whose_dispatch_was_deleted_ends_with_its_cancel_and_its_service_goes_on() {
    let fixture = fixture("tasks-deleted");
    let mut lanes = launch(&fixture, "a", "lanes,api").start();
    let (api, stub) = (Api::of(&lanes), Endpoint::start());
    let settings = json!({"address": stub.url(""), "concurrency": 1});
    put_service(&api, "shop", "narrow", &settings);
    let one = || json!({"type": "http", "project": "shop", "group": "g", "delay": "0s", "service": "narrow", "path": "/ok"});
    let ids: BTreeSet<String> =
        api.create_all((0..TASKS).map(|_| one()).collect()).into_iter().collect();
    // No worker runs: the places of the service are taken, and the rest waits for one.
    let waits = |id: &String| api.task(id)["waits_for"].as_str().unwrap_or_default().to_owned();
    let given = eventually("each has its place, or waits for one", || {
        let waits: Vec<_> = ids.iter().map(|id| (id, waits(id))).collect();
        let given = waits.iter().filter(|(_, of)| of == "worker").map(|(id, _)| (*id).clone());
        let given: BTreeSet<String> = given.collect();
        let limited = waits.iter().filter(|(_, of)| of == "limit").count();
        let is_so = !given.is_empty() && limited > 0 && given.len() + limited == TASKS;
        if is_so { Ok(given) } else { Err(format!("{waits:?}")) }
    });
    for partition in 0..i32::from(LANES) {
        fixture.delete_records(&fixture.names.tasks(), partition, rdkafka::Offset::End);
    }
    let mut worker = launch(&fixture, "w", "worker").start();
    eventually("a worker has the partitions", || {
        let has = super::partitions(&worker);
        if has == usize::from(LANES) { Ok(()) } else { Err(format!("{has}")) }
    });
    assert!(given.iter().all(|id| waits(id) == "worker"), "nobody knows that they are gone");
    for id in &given {
        assert_eq!(api.cancel(id), "stopped");
    }
    let finished = api.wait_for(PATIENCE, "shop", "finished", TASKS - given.len());
    let finished: BTreeSet<String> =
        finished.iter().map(|task| task["task_id"].as_str().expect("an id").to_owned()).collect();
    assert!(finished.is_disjoint(&given));
    let called: BTreeSet<String> = stub.calls().iter().map(|call| call.task().to_owned()).collect();
    assert_eq!(called, finished, "what was deleted is never called");
    worker.stop_well();
    lanes.stop_well();
}
