//! Schedules: their lane decides about each change, and its index says what became of it.

use std::time::{Duration, Instant};

use tokio::time::sleep;

use super::{TasksOfInstance, WRITE_MAX, not_created};
use crate::api::schedules::{Schedules, Written};
use crate::api::tasks::Failure;
use crate::api::timers::model::Soon;
use crate::engine::sealed::{Follows, Submission};
use crate::engine::task::id::TaskId;
use crate::engine::task::spec::Spec;
use crate::engine::timers::{TaskRecord, TimerState};
use crate::engine::{Offset, UnixMillis};
use crate::timers::service::Ticket;

/// Between two looks at what became of a change.
const LOOK_EVERY: Duration = Duration::from_millis(50);

impl TasksOfInstance {
    async fn write_schedule(
        &self,
        id: &TaskId,
        follows: Option<Follows>,
        spec: &Spec,
        (due, wait): (UnixMillis, Duration),
    ) -> Result<Written, Failure> {
        let (service, until) = (self.service()?, Instant::now() + wait);
        let submission =
            Submission { id, spec, due, expires: None, key: None, value: None, headers: &[] };
        let by = Instant::now() + WRITE_MAX;
        let ticket = service.write_version(follows, &submission, by).await.map_err(not_created)?;
        loop {
            // An owner that has just taken the lane over may not answer yet.
            let found = match self.find(id).await {
                Err(Failure::Moving(_)) if Instant::now() < until => None,
                found => Some(found?),
            };
            match found.map(|found| decided(found, follows, ticket.offset)) {
                Some(Written::Pending) | None if Instant::now() < until => sleep(LOOK_EVERY).await,
                Some(Written::Superseded(Some(other))) if follows.is_some() => {
                    return Ok(self.beside(other, &ticket).await);
                }
                Some(written) => return Ok(written),
                None => return Ok(Written::Pending),
            }
        }
    }

    /// Another version than that of a change is there. It came first, or it followed the change between two looks. Only the lane knows
    /// which: if that is not remembered, as after a take-over, the change counts as refused.
    async fn beside(&self, other: Box<TaskRecord>, ticket: &Ticket) -> Written {
        match self.owners.taken(ticket.lane.0, ticket.to_string()).await {
            Ok(true) => Written::Replaced(other),
            Ok(false) | Err(_) => Written::Superseded(Some(other)),
        }
    }
}

/// What has become of a record that stands there, by what is kept of its schedule.
fn decided(found: Option<TaskRecord>, follows: Option<Follows>, offset: Offset) -> Written {
    let Some(found) = found else {
        // A look that finds nothing waits until the lane has decided what stands in its intake.
        return if follows.is_some() { Written::Superseded(None) } else { Written::Pending };
    };
    let version = found.timer.version;
    if version.offset_in_log() == offset {
        let refused = found.timer.code.filter(|_| found.timer.state == TimerState::Dead);
        return match refused {
            Some(code) => Written::Refused(code.as_str()),
            None => Written::Done(Box::new(found)),
        };
    }
    match follows {
        // It may have ended meanwhile, or be there again: then it is another one.
        Some(Follows { version: of, has_ended })
            if version == of && has_ended == found.timer.state.is_final() =>
        {
            Written::Pending
        }
        _ => Written::Superseded(Some(Box::new(found))),
    }
}

impl Schedules for TasksOfInstance {
    fn write<'a>(
        &'a self,
        id: &'a TaskId,
        follows: Option<Follows>,
        spec: &'a Spec,
        terms: (UnixMillis, Duration),
    ) -> Soon<'a, Result<Written, Failure>> {
        Box::pin(self.write_schedule(id, follows, spec, terms))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Lane;
    use crate::engine::header::Code;
    use crate::engine::timers::{LaneTimer, Timer, TimerId, Version};

    #[test]
    fn a_change_is_done_once_its_own_record_is_the_version() {
        let version = |at: u64, offset: i64| Version {
            first_appended: UnixMillis(at),
            offset: Offset(offset),
        };
        let kept = |version: Version, state: TimerState| {
            let timer = Timer {
                timer_id: TimerId([1; 16]),
                state,
                version,
                supersedes: None,
                due: UnixMillis(2),
                since: UnixMillis(2),
                target: "schedule:http".into(),
                label: Some("shop/g".into()),
                id: b"schedule.shop.a".as_slice().into(),
                key: None,
                key_cut: false,
                code: (state == TimerState::Dead).then_some(Code::TooManyTimers),
                task: None,
            };
            Some(TaskRecord::new(LaneTimer { lane: Lane(0), timer }, None, Vec::new()).unwrap())
        };
        let (old, other, own) = (version(1, 5), version(2, 6), version(3, 7));
        let of = |found, follows| match decided(found, follows, Offset(7)) {
            Written::Done(_) => "done",
            Written::Replaced(_) => "replaced",
            Written::Superseded(_) => "superseded",
            Written::Refused(code) => code,
            Written::Pending => "pending",
        };
        let (live, over) = (TimerState::Delay, TimerState::Cancelled);
        let follows = |has_ended| Some(Follows { version: old, has_ended });
        #[rustfmt::skip]
        let cases = [
            (kept(own, live),   follows(false), "done"),
            (kept(own, over),   follows(false), "done"),
            (kept(old, live),   follows(false), "pending"),
            (kept(old, over),   follows(false), "superseded"),
            (kept(other, live), follows(false), "superseded"),
            (None,              follows(false), "superseded"),
            (kept(old, over),   follows(true),  "pending"),
            (kept(old, live),   follows(true),  "superseded"),
            (kept(own, live),   None,           "done"),
            (kept(own, TimerState::Dead), None, "too_many_timers"),
            (kept(other, live), None,           "superseded"),
            (None,              None,           "pending"),
        ];
        for (found, follows, want) in cases {
            let shown = format!("{found:?} {follows:?}");
            assert_eq!(of(found, follows), want, "{shown}");
        }
    }
}
