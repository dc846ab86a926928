//! What executors say of their turns, on its way to the lane.

use std::time::Instant;

use super::{TasksOfInstance, WRITE_MAX, failure, not_cancelled};
use crate::api::tasks::Failure;
use crate::api::timers::model::TimersError;
use crate::engine::sealed::Ticket;
use crate::engine::task::id::TaskId;
use crate::engine::task::result::TaskResult;
use crate::engine::task::spec::Spec;
use crate::engine::timers::{TaskRecord, TaskReport};

impl TasksOfInstance {
    /// The turn that a ticket is for.
    pub(super) fn turn_of(&self, id: &TaskId, ticket: &str) -> Result<Ticket, Failure> {
        let service = self.service()?;
        service.ticket_of(id, ticket).map_err(|bad| Failure::WrongTicket(bad.to_string()))
    }

    /// The ticket of a task's last turn, if that is one that somebody reports.
    pub(super) async fn ticket_in_force(&self, id: &TaskId) -> Result<Option<String>, Failure> {
        let service = self.service()?;
        let TaskRecord { timer, spec, .. } = self.find(id).await?.ok_or(Failure::NoTask)?;
        let spec = spec.and_then(|spec| Spec::parse(spec.as_bytes()).ok());
        let heartbeat = spec.and_then(|spec| spec.feedback()).map(|feedback| feedback.heartbeat);
        let turn = timer.task.map(|progress| progress.turn).filter(|turn| *turn > 0);
        let (Some(heartbeat), Some(turn)) = (heartbeat, turn) else { return Ok(None) };
        Ok(Some(service.ticket(id, Ticket { version: timer.version, turn, heartbeat })))
    }

    /// Hands what an executor says to the owner of the lane. While nobody owns the lane, a success and a heartbeat are written all
    /// the same: so they count, whichever member decides them.
    pub(super) async fn hear(
        &self,
        id: &TaskId,
        ticket: &str,
        result: &TaskResult,
    ) -> Result<TaskReport, Failure> {
        let turn = self.turn_of(id, ticket)?;
        let service = self.service()?;
        let lane = id.lane_of(service.lanes());
        match self.owners.report(lane.0, id, ticket, result).await {
            Err(TimersError::Moving(_)) if !result.outcome.carries_payload() => {
                let by = Instant::now() + WRITE_MAX;
                service.write_report(id, turn, result, by).await.map_err(not_cancelled)?;
                Ok(TaskReport::Pending)
            }
            heard => heard.map_err(failure),
        }
    }
}
