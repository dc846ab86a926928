//! Dead letters of tasks: one for each end that is none by success or by a cancel.

use std::collections::{BTreeMap, BTreeSet};

use waterclock::engine::header::Code;

use super::follow_ups;
use crate::checkers::contents::{stood, told};
use crate::checkers::{Found, is_unborn, ledger};
use crate::world::World;

pub(super) fn check(world: &World, found: &mut Found) {
    let mut letters: BTreeMap<(usize, Code), Vec<String>> = BTreeMap::new();
    let mut foreign = BTreeSet::new();
    let Some(dead) = world.broker.topic(&world.plan.setup.topics.dead()) else { return };
    for (_, _, _, record) in ledger(world, dead) {
        if let Some(place) = stood(world, record).filter(|at| world.tasks.foreign.contains(at)) {
            // A worker that does not hear what became of its commit writes the same again.
            let of_worker = place.0.topic == world.tasks.tasks_topic;
            let may_be_twice = of_worker && world.seen.contains_key("workers' commits unknown");
            if !foreign.insert(place) && !may_be_twice {
                found.push(("dead letters", format!("{place:?} is a letter twice")));
            }
            continue;
        }
        let id = told(record, "x-delay-id").unwrap_or_default();
        if follow_ups::is_of_one(&id) {
            continue;
        }
        let code: Option<Code> =
            told(record, "x-delay-error-code").and_then(|code| code.parse().ok());
        let run = world.tasks.runs.planned.iter().find(|of| of.id.as_str() == id);
        if run.is_some() || world.tasks.schedules.planned.iter().any(|of| of.id.as_str() == id) {
            let may_expire = run.is_some_and(|of| of.expires.is_some());
            let is_sound = match code {
                Some(Code::Expired) => may_expire,
                code => code == Some(Code::ProjectDeleted),
            };
            if !is_sound {
                found.push(("dead letters", format!("{id} is one: {code:?}")));
            }
            continue;
        }
        let task = world.tasks.drafts.iter().position(|draft| draft.id.as_str() == id);
        let Some(of) = task.zip(code) else {
            found.push(("no phantom", format!("{record:?} is no task's")));
            continue;
        };
        let why = told(record, "x-delay-error-detail").unwrap_or_default();
        letters.entry(of).or_default().push(format!("{:?}: {why}", stood(world, record)));
    }
    for (task, seen) in &world.tasks.seen {
        let mut ends: BTreeMap<Code, usize> = BTreeMap::new();
        let lives = seen.chunk_by(|(_, one), (_, next)| one.version == next.version);
        let last = lives.filter_map(|life| life.last()).map(|(_, timer)| timer);
        // What was refused when it came may be a letter and nothing else.
        let was_refused = last.clone().any(is_unborn);
        for code in last.filter_map(|timer| timer.code) {
            *ends.entry(code).or_default() += 1;
        }
        let of_task = letters.range((*task, Code::ALL[0])..).take_while(|((of, _), _)| of == task);
        let codes = of_task.map(|((_, code), _)| *code).chain(ends.keys().copied());
        for code in codes.collect::<Vec<_>>() {
            let written = letters.get(&(*task, code)).map_or(&[][..], Vec::as_slice);
            let wanted = ends.get(&code).copied().unwrap_or_default();
            // What a worker says of a changed record is one, too: its lane sees that the body is another.
            let is_of_foreign = code == Code::BadTask && !world.tasks.foreign.is_empty();
            if is_of_foreign {
                continue;
            }
            if written.len() < wanted || written.len() > wanted && !was_refused {
                let what = format!("task {task}: {wanted} ends with {code:?}, letters {written:?}");
                found.push(("dead letters", what));
            }
        }
    }
}
