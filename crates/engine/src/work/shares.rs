//! What one partition of `<ns>.tasks` may do of what a project and its callees may do.

use std::sync::Arc;

use super::Callee;
use crate::Lane;
use crate::task::registry::Registry;
use crate::task::scope::{Limits, SERVICE_CONCURRENCY, Serving, TasksPartition};

/// Projects and services, and over how many partitions their limits are spread.
#[derive(Clone, Debug)]
pub(super) struct Shares {
    pub(super) registry: Arc<Registry>,
    pub(super) lanes: u16,
}

impl Shares {
    /// What a partition may do of a project and of one of its callees; `None`: nothing, as one is paused, the project was deleted,
    /// or the partition does not serve the callee. The task goes back to its lane then, which knows what follows.
    pub(super) fn of(
        &self,
        partition: Lane,
        name: &str,
        callee: &Callee,
    ) -> Option<(Limits, Limits)> {
        let project = self.registry.project(name);
        let service = match callee {
            Callee::Service(service) => project.services.get(&**service),
            Callee::Host(_) => None,
        };
        if project.is_deleted || project.paused || service.is_some_and(|service| service.paused) {
            return None;
        }
        let of_project = project.limits();
        let of_callee =
            service.map_or(Limits::of_concurrency(SERVICE_CONCURRENCY), |service| service.limits());
        let partition = TasksPartition(partition.0);
        let serving = Serving::of_project(name, &of_project, self.lanes);
        let share = serving.of_service(&of_callee).share(&of_callee, partition)?;
        Some((serving.share(&of_project, partition)?, share))
    }
}
