//! What executors say of their turns, on its way to the lane.

use std::time::Instant;

use super::{TasksOfInstance, WRITE_MAX, failure, not_cancelled};
use crate::api::tasks::Failure;
use crate::api::timers::model::TimersError;
use crate::engine::sealed::Ticket;
use crate::engine::task::id::TaskId;
use crate::engine::task::report::Report;
use crate::engine::timers::TaskReport;

impl TasksOfInstance {
    /// The turn that a ticket is for.
    pub(super) fn turn_of(&self, id: &TaskId, ticket: &str) -> Result<Ticket, Failure> {
        let service = self.service()?;
        service.ticket_of(id, ticket).map_err(|bad| Failure::WrongTicket(bad.to_string()))
    }

    /// Hands what an executor says to the owner of the lane. While nobody owns the lane, a success and a heartbeat are written all
    /// the same: so they count, whichever member decides them.
    pub(super) async fn hear(&self, id: &TaskId, report: &Report) -> Result<TaskReport, Failure> {
        let Report { ticket, result } = report;
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
