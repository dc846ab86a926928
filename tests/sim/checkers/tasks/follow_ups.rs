//! Of the end of a task that wishes it is told once, with what it ended as, and of nothing else.

use std::collections::BTreeMap;

use serde_json::Value;
use waterclock::engine::timers::TimerState;

use super::runs::{self, ToTell};
use crate::broker::Place;
use crate::checkers::contents::told;
use crate::checkers::{Found, is_unborn, ledger};
use crate::world::World;

/// Whether this is the id of a follow-up: no task that users ask for here has a key, and one of a schedule has its time.
pub(super) fn is_of_one(id: &str) -> bool {
    id.starts_with('k') && !id.contains('@')
}

pub(super) fn check(world: &World, found: &mut Found) {
    let mut submitted = submitted(world);
    for (task, seen) in &world.tasks.seen {
        let draft = &world.tasks.drafts[*task];
        let tells = draft.spec.on_result().is_some();
        for life in seen.chunk_by(|(_, one), (_, next)| one.version == next.version) {
            let Some((_, end)) = life.iter().find(|(_, timer)| timer.state.is_final()) else {
                continue;
            };
            let id = draft.id.follow_up((end.version.first_appended, end.version.offset));
            let statuses = submitted.remove(id.as_str()).unwrap_or_default();
            let wanted: &[&str] = match end.state {
                TimerState::Delivered if tells => &["finished"],
                TimerState::Dead if tells => &["failed"],
                _ => &[],
            };
            // What was refused when it came may not have been readable.
            let is_as_agreed = statuses == wanted || is_unborn(end) && statuses.is_empty();
            if !is_as_agreed {
                let what = format!("task {task} is {:?}, and told is {statuses:?}", end.state);
                found.push(("follow-ups", what));
            }
        }
    }
    for ToTell { id, statuses: wanted, may_be_none, what } in runs::follow_ups(world) {
        let statuses = submitted.remove(&id).unwrap_or_default();
        if statuses != wanted && !(may_be_none && statuses.is_empty()) {
            found.push(("follow-ups", format!("{what}, and told is {statuses:?}")));
        }
    }
    for (id, statuses) in submitted {
        found.push(("follow-ups", format!("{id} tells of {statuses:?}, which nothing ended as")));
    }
}

/// What the follow-ups that lanes have submitted say, by their ids.
fn submitted(world: &World) -> BTreeMap<String, Vec<String>> {
    let mut all: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let topic = world.lane_topics[0];
    for (partition, offset, _, record) in ledger(world, topic) {
        let place = (Place { topic, partition }, offset);
        let Some(id) = told(record, "x-delay-id").filter(|id| is_of_one(id)) else { continue };
        if world.tasks.foreign.contains(&place) {
            continue;
        }
        let body = serde_json::from_slice::<Value>(record.value().unwrap_or_default());
        let status = body.ok().and_then(|body| Some(body["task_status"].as_str()?.to_owned()));
        all.entry(id).or_default().push(status.unwrap_or_default());
    }
    all
}
