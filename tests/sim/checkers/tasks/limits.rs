//! What projects and services ask for: how many calls may begin in a time, and what becomes of tasks of a project that is deleted.

use std::collections::BTreeMap;

use waterclock::engine::header::Code;
use waterclock::engine::task::scope::Limits;
use waterclock::engine::timers::{Timer, TimerState};
use waterclock::engine::work::Callee;

use crate::broker::Time;
use crate::checkers::Found;
use crate::plan::SECOND;
use crate::world::World;

/// In any time no more calls begin than come in it at the rate, and the burst.
pub(super) fn rates(world: &World, found: &mut Found) {
    let Some(first) = world.tasks.versions.first() else { return };
    let mut begun: BTreeMap<(String, Option<String>), Vec<Time>> = BTreeMap::new();
    for call in &world.tasks.calls {
        let project = call.scope.project.to_string();
        if let Callee::Service(service) = &call.scope.callee {
            let of = (project.clone(), Some(service.to_string()));
            begun.entry(of).or_default().push(call.at);
        }
        begun.entry((project, None)).or_default().push(call.at);
    }
    for ((project, service), mut times) in begun {
        let of_project = first.registry.project(&project);
        let limits = match service.as_ref().map(|service| of_project.services.get(service)) {
            None => of_project.limits(),
            Some(Some(service)) => service.limits(),
            Some(None) => continue,
        };
        times.sort_unstable();
        if let Some((from, to, count)) = too_many(&limits, &times) {
            let what =
                format!("{project} {service:?}: {count} calls from {from} to {to}; {limits:?}");
            found.push(("rates", what));
        }
    }
}

fn too_many(limits: &Limits, times: &[Time]) -> Option<(Time, Time, usize)> {
    let rate = limits.rate?.whole_per_1000_s();
    let may_begin = |over: Time| u64::from(limits.burst) + rate * (over + 1) / 1_000_000;
    times.iter().enumerate().find_map(|(first, from)| {
        let rest = times[first..].iter().enumerate();
        let mut counts = rest.map(|(more, to)| (*from, *to, more + 1));
        counts.find(|(from, to, count)| *count as u64 > may_begin(to - from))
    })
}

/// A task that comes up once its project is deleted fails, and says so.
pub(super) fn deleted(world: &World, task: usize, (at, end): (Time, &Timer), found: &mut Found) {
    let project = world.tasks.drafts[task].spec.project();
    let versions = world.tasks.versions.iter();
    let mut deleted = versions.clone().filter(|of| of.registry.project(project).is_deleted);
    if end.code == Some(Code::ProjectDeleted) {
        if !deleted.any(|of| of.since <= at) {
            found.push(("deleted ends", format!("task {task}: nobody has deleted {project}")));
        }
        return;
    }
    let since =
        versions.rev().map_while(|of| of.registry.project(project).is_deleted.then_some(of.since));
    let Some(since) = since.last() else { return };
    let was_called = end.task.is_some_and(|progress| progress.turn > 0);
    // What somebody has changed of a create that was refused is refused, too.
    let is_foreign = end.code == Some(Code::BadTask) && !world.tasks.foreign.is_empty();
    let may_fail =
        !is_foreign && end.state == TimerState::Dead && !was_called && at > since + 2 * SECOND;
    if may_fail {
        let what = format!("task {task} fails with {:?}, and {project} was deleted", end.code);
        found.push(("deleted ends", what));
    }
}
