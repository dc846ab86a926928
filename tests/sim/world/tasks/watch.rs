//! What is checked of every call when it begins: that nobody has stopped it, and that no more are open than may be.

use std::collections::BTreeMap;

use waterclock::engine::sealed::scope_of;
use waterclock::engine::task::registry::Registry;
use waterclock::engine::task::scope::SERVICE_CONCURRENCY;
use waterclock::engine::work::{Callee, Scope};

use super::{Called, plain_value};
use crate::plan::SECOND;
use crate::world::World;

/// Which promise forbids calls of a scope by what a registry says, if one does.
pub fn stop_of(registry: &Registry, scope: &Scope) -> Option<&'static str> {
    let project = registry.project(&scope.project);
    let service = match &scope.callee {
        Callee::Service(name) => Some(project.services.get(&**name)),
        Callee::Host(_) => None,
    };
    let is_paused = service.flatten().is_some_and(|service| service.paused);
    if project.is_deleted || service == Some(None) {
        Some("deleted")
    } else {
        (project.paused || is_paused).then_some("paused")
    }
}

/// One more credit for each of these of a task's bytes.
const BYTES_PER_CREDIT: usize = 64 << 10;

impl World {
    pub(super) fn check_stopped(&mut self, called: &Called) {
        let versions = self.tasks.versions[..=self.tasks.published].iter().rev();
        let stops =
            versions.map_while(|of| Some((of.since, stop_of(&of.registry, &called.scope)?)));
        let stops: Vec<_> = stops.collect();
        let (Some((_, promise)), Some((since, _))) = (stops.first(), stops.last()) else { return };
        // A worker that stood still meanwhile may not have heard of it.
        let awake_since = self.workers[called.worker].awake_since;
        if called.at >= since.max(&awake_since) + 2 * SECOND {
            let what = format!("task {} is called {} ms later", called.task, called.at - since);
            self.breach(promise, what);
        }
    }

    pub(super) fn check_open(&mut self, last: usize) {
        let scope = self.tasks.calls[last].scope.clone();
        let calls = self.tasks.calls.iter();
        let open = calls.filter(|of| of.is_open && self.is_live_worker(of.worker));
        let open: Vec<&Called> = open.filter(|of| of.scope.project == scope.project).collect();
        let of_scope = open.iter().filter(|of| of.scope == scope).count();
        let of_project = self.tasks.versions[0].registry.project(&scope.project);
        let service = match &scope.callee {
            Callee::Service(name) => of_project.services.get(&**name),
            Callee::Host(_) => None,
        };
        let most = service.map_or(u32::MAX, |service| service.concurrency) as usize;
        if of_scope > most || open.len() > of_project.concurrency as usize {
            let what = format!("{of_scope} of {most} of {scope:?}, {} of its project", open.len());
            self.breach("open calls", what);
        }
    }

    /// What workers hold of a scope is bounded in each lane, by bytes; but one task may be larger than that.
    pub(super) fn check_credits_of_scopes(&mut self) {
        let lanes = self.plan.setup.lanes;
        let mut held: BTreeMap<(u16, Scope), Vec<usize>> = BTreeMap::new();
        let mut breaches = Vec::new();
        for (task, draft) in self.tasks.drafts.iter().enumerate() {
            let now = self.task_now(task).filter(|timer| !timer.state.is_final());
            let of_worker = now.and_then(|timer| timer.task?.held);
            let (Some(of_worker), Some(scope)) = (of_worker, scope_of(&draft.spec)) else {
                continue;
            };
            let credits = usize::from(of_worker.credits);
            if credits < 1 + draft.body.len() / BYTES_PER_CREDIT {
                let bytes = draft.body.len();
                breaches.push(format!("task {task} of {bytes} bytes has {credits} credits"));
            }
            held.entry((draft.id.lane_of(lanes).0, scope)).or_default().push(credits);
        }
        for ((lane, scope), credits) in held {
            let most = self.credits_of(&scope);
            if credits.len() > 1 && credits.iter().sum::<usize>() > most {
                breaches.push(format!("{scope:?} in lane {lane}: {credits:?} of {most} credits"));
            }
        }
        breaches.into_iter().for_each(|what| self.breach("credits", what));
    }

    /// Twice the calls that may be open, within bounds.
    fn credits_of(&self, scope: &Scope) -> usize {
        let calls = |of: &Registry| match &scope.callee {
            Callee::Service(name) => {
                let service = of.service(&scope.project, name);
                service.map_or(SERVICE_CONCURRENCY, |service| service.concurrency)
            }
            Callee::Host(_) => SERVICE_CONCURRENCY,
        };
        let most = self.tasks.versions.iter().map(|of| calls(&of.registry)).max();
        (2 * most.unwrap_or_default() as usize).clamp(16, 512)
    }

    /// Whether all records have arrived that are no tasks.
    pub(super) fn have_plains_arrived(&self) -> bool {
        let arrived = |index: usize| {
            let topic = self.broker.topic(self.tasks.plains[index].topic);
            let logs = topic.into_iter().flat_map(|topic| &self.broker.topics[topic].partitions);
            let value = plain_value(index);
            logs.flat_map(|log| log.ledger()).any(|(_, entry)| {
                let record = entry.record.as_ref();
                record.is_some_and(|record| record.value() == Some(value.as_bytes()))
            })
        };
        (0..self.tasks.plains.len()).all(arrived)
    }
}
