//! Dead letters of tasks: one for each end that is none by success or by a cancel.

use std::collections::BTreeMap;

use waterclock::engine::header::Code;

use crate::checkers::contents::told;
use crate::checkers::{Found, is_unborn, ledger};
use crate::world::World;

pub(super) fn check(world: &World, found: &mut Found) {
    let mut letters: BTreeMap<(usize, Code), usize> = BTreeMap::new();
    let Some(dead) = world.broker.topic(&world.plan.setup.topics.dead()) else { return };
    for (_, _, _, record) in ledger(world, dead) {
        let id = told(record, "x-delay-id").unwrap_or_default();
        let task = world.tasks.drafts.iter().position(|draft| draft.id.as_str() == id);
        let code = told(record, "x-delay-error-code").and_then(|code| code.parse().ok());
        let Some(of) = task.zip(code) else {
            found.push(("no phantom", format!("{record:?} is no task's")));
            continue;
        };
        *letters.entry(of).or_default() += 1;
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
            let written = letters.get(&(*task, code)).copied().unwrap_or_default();
            let wanted = ends.get(&code).copied().unwrap_or_default();
            if written < wanted || written > wanted && !was_refused {
                let what = format!("task {task}: {written} letters with {code:?}, {wanted} ends");
                found.push(("dead letters", what));
            }
        }
    }
}
