//! What this instance knows of timers, for the API: the service of its lanes, and where the other lanes are.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use hmac::{Hmac, Mac as _};
use sha2::Sha256;

use crate::api::timers::model::{
    CommandStatus, Cursor, Filter, Forecast, LaneOwner, LaneTimer, Page, PeerAddress, RequestTimes,
    Soon, TaskCancel, TaskFilter, TaskPayload, TaskRecord, TaskReport, TaskRetry, TimerCommand,
    TimerName, Timers, TimersError,
};
use crate::engine::task::id::TaskId;
use crate::engine::task::result::TaskResult;
use crate::engine::timers::{TaskCounts, TimerId};
use crate::engine::{Lane, UnixMillis};
use crate::kafka::meta::Secret;
use crate::kafka::{LaneThreads, Member, Members, SubmitError};
use crate::timers::Service;
use crate::timers::index::{Listing, TaskListing};
use crate::timers::service::{self, LaneState, Ticket};

/// How many timers of one id a lane looks at. Some of them are shown to a caller that has left the key out.
const SAME_ID_MAX: usize = 10;

/// Answers for timers; filled in when the lane threads have started.
pub(super) struct TimersOfInstance {
    address: String,
    since: Instant,
    running: OnceLock<Running>,
}

struct Running {
    lane_threads: Arc<LaneThreads>,
    service: Arc<Service>,
    members: Arc<Members>,
    instance: String,
    secret: Secret,
}

impl TimersOfInstance {
    /// Of a process that tells the others this address.
    pub(super) fn new(address: String) -> Self {
        Self { address, since: Instant::now(), running: OnceLock::new() }
    }

    pub(super) fn started(
        &self,
        lane_threads: Arc<LaneThreads>,
        service: Arc<Service>,
        members: Arc<Members>,
        instance: String,
        secret: Secret,
    ) {
        // There is one start in a run.
        let _ = self.running.set(Running { lane_threads, service, members, instance, secret });
    }

    /// What is known of the namespace; `None` before the lane threads have started.
    pub(super) fn members(&self) -> Option<&Arc<Members>> {
        self.running.get().map(|running| &running.members)
    }

    /// The name of this instance, and what the members have announced.
    pub(super) fn listed(&self) -> Result<(&str, Vec<Member>), TimersError> {
        let running = self.running.get().ok_or_else(TimersError::not_ready)?;
        // Before, some of them are not known.
        if !running.members.registry().is_known() {
            let detail = "this instance has not read <ns>.meta yet".to_owned();
            return Err(TimersError::Moving(detail));
        }
        Ok((&running.instance, running.members.listed()))
    }

    pub(super) fn service(&self) -> Result<&Arc<Service>, TimersError> {
        let running = self.running.get();
        running.map(|running| &running.service).ok_or_else(TimersError::not_ready)
    }
}

impl Timers for TimersOfInstance {
    fn lanes(&self) -> u16 {
        self.service().map_or(0, |service| service.lanes())
    }

    fn lane_of(&self, name: &TimerName) -> u16 {
        self.service().map_or(0, |service| service.lane_of(name).0)
    }

    fn owner_of(&self, lane: u16) -> LaneOwner {
        let Some(running) = self.running.get() else { return LaneOwner::Moving };
        match running.service.lane_state(Lane(lane)) {
            LaneState::Here => LaneOwner::Here,
            LaneState::Moving => LaneOwner::Moving,
            LaneState::Elsewhere => match running.members.owner(Lane(lane)) {
                Some(member) if member.instance != running.instance => {
                    LaneOwner::Elsewhere(PeerAddress { address: member.address, tls: member.tls })
                }
                // The lane has just left, and its new owner has not announced itself yet.
                _ => LaneOwner::Moving,
            },
        }
    }

    fn address(&self) -> String {
        self.address.clone()
    }

    fn tracks(&self) -> bool {
        self.service().is_ok_and(|service| service.tracks())
    }

    fn now(&self) -> Option<u64> {
        self.service().ok()?.now().map(|now| now.0)
    }

    fn since(&self) -> Option<u64> {
        let ran = u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.now().map(|now| now.saturating_sub(ran))
    }

    fn seal(&self, what: &[u8]) -> [u8; 32] {
        let secret = self.running.get().map(|running| running.secret.bytes()).unwrap_or_default();
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&secret) else {
            // HMAC takes a key of any length.
            return [0; 32];
        };
        // The seals of records have another form.
        mac.update(b"waterclock api\n");
        mac.update(what);
        mac.finalize().into_bytes().into()
    }

    fn find<'a>(
        &'a self,
        names: &'a [(u16, TimerName)],
    ) -> Soon<'a, Result<Vec<Option<LaneTimer>>, TimersError>> {
        Box::pin(async move {
            let of = |(lane, name): &(u16, TimerName)| (Lane(*lane), TimerId::of_name(name));
            let ids = names.iter().map(of).collect();
            let found = self.service()?.find_all(ids).await.map_err(error)?;
            let in_lane = |(timer, (lane, _)): (Option<_>, &(u16, _))| {
                timer.map(|timer| LaneTimer { lane: Lane(*lane), timer })
            };
            Ok(found.into_iter().zip(names).map(in_lane).collect())
        })
    }

    fn by_ids<'a>(
        &'a self,
        of: &'a [u16],
        ids: &'a [String],
    ) -> Soon<'a, Result<Vec<LaneTimer>, TimersError>> {
        Box::pin(async move {
            let ids = ids.iter().map(|id| id.clone().into_bytes()).collect();
            self.service()?.by_ids(lanes(of), ids, SAME_ID_MAX).await.map_err(error)
        })
    }

    fn page<'a>(
        &'a self,
        lane: u16,
        filter: &'a Filter,
        after: Option<Cursor>,
        most: usize,
    ) -> Soon<'a, Result<Page, TimersError>> {
        Box::pin(async move {
            let lane = Lane(lane);
            let page = self.service()?.page(lane, filter.clone(), after.map(Into::into), most);
            let Listing { timers, more } = page.await.map_err(error)?;
            Ok(Page {
                timers: timers.into_iter().map(|timer| LaneTimer { lane, timer }).collect(),
                more: more.map(Into::into),
            })
        })
    }

    fn task<'a>(&'a self, id: &'a TaskId) -> Soon<'a, Result<Option<TaskRecord>, TimersError>> {
        Box::pin(async move { self.service()?.task(id).await.map_err(error) })
    }

    fn tasks<'a>(
        &'a self,
        lane: u16,
        filter: &'a TaskFilter,
        after: Option<Cursor>,
        most: usize,
    ) -> Soon<'a, Result<Page<TaskRecord>, TimersError>> {
        Box::pin(async move {
            let after = after.map(Into::into);
            let page = self.service()?.tasks(Lane(lane), filter.clone(), after, most);
            let TaskListing { tasks, more } = page.await.map_err(error)?;
            Ok(Page { timers: tasks, more: more.map(Into::into) })
        })
    }

    fn task_counts<'a>(
        &'a self,
        of: &'a [u16],
        projects: &'a BTreeSet<String>,
    ) -> Soon<'a, Result<BTreeMap<String, TaskCounts>, TimersError>> {
        Box::pin(async move {
            let counts = self.service()?.task_counts(lanes(of), projects.clone());
            counts.await.map_err(error)
        })
    }

    fn task_cancel<'a>(
        &'a self,
        lane: u16,
        ticket: &'a str,
        wait: Duration,
    ) -> Soon<'a, Result<TaskCancel, TimersError>> {
        Box::pin(async move {
            let ticket = ticket_of(lane, ticket)?;
            self.service()?.task_cancel(&ticket, wait).await.map_err(error)
        })
    }

    fn schedule_taken<'a>(
        &'a self,
        lane: u16,
        ticket: &'a str,
    ) -> Soon<'a, Result<bool, TimersError>> {
        Box::pin(async move {
            let ticket = ticket_of(lane, ticket)?;
            self.service()?.schedule_taken(&ticket).await.map_err(error)
        })
    }

    fn task_retry<'a>(
        &'a self,
        id: &'a TaskId,
        by: Instant,
    ) -> Soon<'a, Result<TaskRetry, TimersError>> {
        Box::pin(async move { self.service()?.retry_task(id, by).await.map_err(error) })
    }

    fn task_report<'a>(
        &'a self,
        id: &'a TaskId,
        (ticket, result): (&'a str, &'a str),
        by: Instant,
    ) -> Soon<'a, Result<TaskReport, TimersError>> {
        Box::pin(async move {
            let service = self.service()?;
            // The instance that has sent it has read both.
            let wrong = |of: &dyn std::fmt::Display| {
                TimersError::Refused("bad_ticket".to_owned(), of.to_string())
            };
            let ticket = service.ticket_of(id, ticket).map_err(|bad| wrong(&bad))?;
            let result = TaskResult::parse(result.as_bytes()).map_err(|bad| wrong(&bad))?;
            service.report_task(id, ticket, &result, by).await.map_err(error)
        })
    }

    fn task_payload<'a>(
        &'a self,
        id: &'a TaskId,
        by: Instant,
    ) -> Soon<'a, Result<Option<TaskPayload>, TimersError>> {
        Box::pin(async move { self.service()?.task_payload(id, by).await.map_err(error) })
    }

    fn count<'a>(
        &'a self,
        of: &'a [u16],
        filter: &'a Filter,
    ) -> Soon<'a, Result<u64, TimersError>> {
        Box::pin(async move {
            let (service, mut count) = (self.service()?, 0);
            for lane in lanes(of) {
                let mut after = None;
                loop {
                    let counted = service.count(lane, filter, after).await.map_err(error)?;
                    count += counted.count;
                    after = counted.more;
                    if after.is_none() {
                        break;
                    }
                }
            }
            Ok(count)
        })
    }

    fn forecast<'a>(
        &'a self,
        of: &'a [u16],
        now: u64,
        target: Option<&'a str>,
    ) -> Soon<'a, Result<Vec<Forecast>, TimersError>> {
        Box::pin(async move {
            let service = self.service()?;
            if !service.tracks() {
                return Ok(Vec::new());
            }
            let target = target.map(str::to_owned);
            service.forecast(lanes(of), UnixMillis(now), target).await.map_err(error)
        })
    }

    fn backlog(&self) -> Vec<(String, u64)> {
        self.running.get().map(|running| running.lane_threads.backlog()).unwrap_or_default()
    }

    fn submit<'a>(
        &'a self,
        lane: u16,
        commands: &'a [TimerCommand],
        times: RequestTimes,
    ) -> Soon<'a, Vec<Result<String, TimersError>>> {
        Box::pin(async move {
            let service = match self.service() {
                Ok(service) => service,
                Err(why) => return commands.iter().map(|_| Err(why.clone())).collect(),
            };
            let tickets = service.command(Lane(lane), commands, (times.came, times.by)).await;
            let text = |ticket: Ticket| ticket.to_string();
            tickets.into_iter().map(|ticket| ticket.map(text).map_err(error)).collect()
        })
    }

    fn status<'a>(
        &'a self,
        lane: u16,
        ticket: &'a str,
        wait: Duration,
    ) -> Soon<'a, Result<CommandStatus, TimersError>> {
        Box::pin(async move {
            let ticket = ticket_of(lane, ticket)?;
            self.service()?.answer(&ticket, wait).await.map_err(error)
        })
    }

    fn settle<'a>(&'a self, of: &'a [u16], by: Instant) -> Soon<'a, Result<(), TimersError>> {
        Box::pin(async move { self.service()?.settle(&lanes(of), by).await.map_err(error) })
    }
}

/// The ticket of a command that stands in this lane.
fn ticket_of(lane: u16, text: &str) -> Result<Ticket, TimersError> {
    let ticket = text.parse().ok().filter(|ticket: &Ticket| ticket.lane == Lane(lane));
    ticket.ok_or_else(|| refused("bad_ticket", "it is not one that an answer gave"))
}

fn lanes(of: &[u16]) -> Vec<Lane> {
    of.iter().copied().map(Lane).collect()
}

fn refused(code: &str, detail: impl Into<String>) -> TimersError {
    TimersError::Refused(code.to_owned(), detail.into())
}

pub(super) fn error(why: service::Error) -> TimersError {
    match why {
        service::Error::Moving(_) | service::Error::Behind(_) | service::Error::Undecided(_) => {
            TimersError::Moving(why.to_string())
        }
        service::Error::Without => TimersError::NoIndex(
            "its owner runs without an index: its disk is full, or does not work".to_owned(),
        ),
        service::Error::Timeless => TimersError::Away(why.to_string()),
        service::Error::Late => TimersError::Moving(why.to_string()),
        service::Error::Busy => TimersError::Busy(why.to_string()),
        service::Error::Fault => TimersError::Moving(why.to_string()),
        service::Error::Submit(error @ SubmitError::Unacknowledged { .. }) => {
            TimersError::Away(format!("{error}; to ask again is safe"))
        }
        service::Error::Submit(error) if error.is_too_large() => refused(
            "record_too_large",
            "with its new time the record is larger than the intake takes; nothing was written",
        ),
        service::Error::NotPending(state) => TimersError::NotPending(state),
        service::Error::Superseded(_) => refused("superseded", why.to_string()),
        service::Error::TooLate(_) => refused("delay_too_long", why.to_string()),
        service::Error::NotFound => TimersError::NotFound(format!(
            "{why}; nothing was written; ask again (the search takes as long as the wait, and {} s at most)",
            service::SEARCH_MAX.as_secs()
        )),
        service::Error::Search(_) => TimersError::Away(format!("{why}; nothing was written")),
        service::Error::Submit(error) => TimersError::Away(format!("{error}; nothing was written")),
    }
}
