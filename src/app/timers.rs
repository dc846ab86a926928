//! What this instance knows of timers, for the API: the service of its lanes, and where the other lanes are.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use hmac::{Hmac, Mac as _};
use sha2::Sha256;

use crate::api::timers::known::{
    Answer, Asked, Command, Cursor, Filter, Forecast, Name, Order, Page, Soon, Standing, Timer,
    Timers, Trouble,
};
use crate::engine::header::{self, When};
use crate::engine::timers::{self, TimerId, TimerState, Version};
use crate::engine::{Lane, UnixMillis};
use crate::kafka::meta::Secret;
use crate::kafka::{Members, Processor, SubmitError};
use crate::timers::Service;
use crate::timers::index;
use crate::timers::service::{self, Decided, Fate, Ticket};

/// How many timers of one id a lane looks at. Some of them are shown to a caller that has left the key out.
const SAME_ID_MAX: usize = 10;

/// Answers for timers; filled in when the lane threads have started.
pub(super) struct Known {
    address: String,
    since: Instant,
    running: OnceLock<Running>,
}

struct Running {
    processor: Arc<Processor>,
    service: Arc<Service>,
    members: Arc<Members>,
    instance: String,
    secret: Secret,
}

impl Known {
    /// Of a process that tells the others this address.
    pub(super) fn new(address: String) -> Self {
        Self { address, since: Instant::now(), running: OnceLock::new() }
    }

    pub(super) fn started(
        &self,
        processor: Arc<Processor>,
        service: Arc<Service>,
        members: Arc<Members>,
        instance: String,
        secret: Secret,
    ) {
        // There is one start in a run.
        let _ = self.running.set(Running { processor, service, members, instance, secret });
    }

    fn service(&self) -> Result<&Arc<Service>, Trouble> {
        let running = self.running.get();
        running.map(|running| &running.service).ok_or_else(starting)
    }
}

fn starting() -> Trouble {
    Trouble::Moving("this instance has not started yet".to_owned())
}

impl Timers for Known {
    fn lanes(&self) -> u16 {
        self.service().map_or(0, |service| service.lanes())
    }

    fn lane_of(&self, name: &Name) -> u16 {
        let lane =
            |service: &Arc<Service>| service.lane_of(name.key.as_deref(), name.id.as_bytes()).0;
        self.service().map_or(0, lane)
    }

    fn standing(&self, lane: u16) -> Standing {
        let Some(running) = self.running.get() else { return Standing::Moving };
        match running.service.standing(Lane(lane)) {
            service::Standing::Here => Standing::Here,
            service::Standing::Moving => Standing::Moving,
            service::Standing::Elsewhere => match running.members.owner(Lane(lane)) {
                Some(member) if member.instance != running.instance => {
                    Standing::Elsewhere(member.address)
                }
                // It has just gone, and nobody has said yet that he has it.
                _ => Standing::Moving,
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

    fn span(&self, text: &str) -> Result<u64, String> {
        header::duration(text).map(|span| span.0).map_err(|error| error.to_string())
    }

    fn moment(&self, text: &str) -> Result<u64, String> {
        match header::until(text) {
            Ok(When::At(at)) => Ok(at.0),
            _ => Err(format!(
                "{text:?} is no point in time; want RFC 3339 with a zone, or epoch milliseconds from 10^12 to 10^14"
            )),
        }
    }

    fn version(&self, text: &str) -> Result<(), String> {
        text.parse::<Version>().map(drop).map_err(|error| error.to_string())
    }

    fn find<'a>(
        &'a self,
        names: &'a [(u16, Name)],
    ) -> Soon<'a, Result<Vec<Option<Timer>>, Trouble>> {
        Box::pin(async move {
            let of = |(lane, name): &(u16, Name)| {
                (Lane(*lane), TimerId::new(name.key.as_deref(), name.id.as_bytes()))
            };
            let keys = names.iter().map(of).collect();
            let found = self.service()?.find_all(keys).await.map_err(trouble)?;
            let told = found.iter().zip(names);
            Ok(told.map(|(of, (lane, _))| of.as_ref().map(|of| timer(*lane, of))).collect())
        })
    }

    fn by_ids<'a>(
        &'a self,
        of: &'a [u16],
        ids: &'a [String],
    ) -> Soon<'a, Result<Vec<Timer>, Trouble>> {
        Box::pin(async move {
            let ids = ids.iter().map(|id| id.clone().into_bytes()).collect();
            let found =
                self.service()?.by_ids(lanes(of), ids, SAME_ID_MAX).await.map_err(trouble)?;
            Ok(found.iter().map(|(lane, found)| timer(lane.0, found)).collect())
        })
    }

    fn page<'a>(
        &'a self,
        lane: u16,
        filter: &'a Filter,
        after: Option<Cursor>,
        most: usize,
    ) -> Soon<'a, Result<Page, Trouble>> {
        Box::pin(async move {
            let after = after.map(|Cursor { due, order }| (UnixMillis(due), TimerId(order)));
            let page = self.service()?.page(Lane(lane), of_index(filter), after, most);
            let index::Page { timers, more } = page.await.map_err(trouble)?;
            Ok(Page {
                timers: timers.iter().map(|found| timer(lane, found)).collect(),
                more: more.map(|(due, timer_id)| Cursor { due: due.0, order: timer_id.0 }),
            })
        })
    }

    fn count<'a>(&'a self, of: &'a [u16], filter: &'a Filter) -> Soon<'a, Result<u64, Trouble>> {
        Box::pin(async move {
            let (service, filter, mut count) = (self.service()?, of_index(filter), 0);
            for lane in lanes(of) {
                let mut after = None;
                loop {
                    let counted = service.count(lane, &filter, after).await.map_err(trouble)?;
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
    ) -> Soon<'a, Result<Vec<Forecast>, Trouble>> {
        Box::pin(async move {
            let service = self.service()?;
            if !service.tracks() {
                return Ok(Vec::new());
            }
            let asked = service.forecast(lanes(of), UnixMillis(now), target.map(str::to_owned));
            let all = asked.await.map_err(trouble)?;
            let plain = |of: index::Forecast| Forecast {
                target: of.target.to_string(),
                total: of.total,
                overdue: of.overdue,
                minutes: of.minutes,
                hours: of.hours,
                days: of.days,
                later: of.later,
            };
            Ok(all.into_iter().map(plain).collect())
        })
    }

    fn backlog(&self) -> Vec<(String, u64)> {
        self.running.get().map(|running| running.processor.backlog()).unwrap_or_default()
    }

    fn submit<'a>(
        &'a self,
        lane: u16,
        commands: &'a [Command],
        asked: Asked,
    ) -> Soon<'a, Vec<Result<String, Trouble>>> {
        Box::pin(async move {
            let own: Result<Vec<_>, _> = commands.iter().map(command).collect();
            let (service, own) = match (self.service(), own) {
                (Ok(service), Ok(own)) => (service, own),
                (Err(why), _) | (_, Err(why)) => {
                    return commands.iter().map(|_| Err(why.clone())).collect();
                }
            };
            let told = service.command(Lane(lane), &own, (asked.came, asked.by)).await;
            let text = |ticket: Ticket| ticket.to_string();
            told.into_iter().map(|ticket| ticket.map(text).map_err(trouble)).collect()
        })
    }

    fn answer<'a>(
        &'a self,
        lane: u16,
        ticket: &'a str,
        wait: Duration,
    ) -> Soon<'a, Result<Answer, Trouble>> {
        Box::pin(async move {
            let ticket: Ticket = ticket
                .parse()
                .ok()
                .filter(|ticket: &Ticket| ticket.lane == Lane(lane))
                .ok_or_else(|| refused("bad_ticket", "it is not one that an answer gave"))?;
            let service = self.service()?;
            let decided = service.answer(&ticket, wait).await.map_err(trouble)?;
            Ok(match decided {
                Decided::Pending => Answer::Pending,
                Decided::Lost => Answer::Lost,
                Decided::Decided(fate) | Decided::Last(fate) => {
                    let code = match fate {
                        Fate::Refused(code) => Some(code),
                        Fate::Unknown(Some((_, code))) => code,
                        _ => None,
                    };
                    let state = match fate {
                        Fate::Unknown(Some((phase, _))) => Some(phase.as_str().to_owned()),
                        _ => None,
                    };
                    let code = code.map(|code| code.as_str().to_owned());
                    let is_last = matches!(decided, Decided::Last(_));
                    Answer::Decided { outcome: fate.as_str().to_owned(), state, code, is_last }
                }
            })
        })
    }

    fn settle<'a>(&'a self, of: &'a [u16], by: Instant) -> Soon<'a, Result<(), Trouble>> {
        Box::pin(async move { self.service()?.settle(&lanes(of), by).await.map_err(trouble) })
    }
}

fn lanes(of: &[u16]) -> Vec<Lane> {
    of.iter().copied().map(Lane).collect()
}

fn refused(code: &str, detail: impl Into<String>) -> Trouble {
    Trouble::Refused(code.to_owned(), detail.into())
}

fn command(command: &Command) -> Result<service::Command, Trouble> {
    let bad = |_| refused("bad_version", "it is no version of a timer");
    Ok(service::Command {
        key: command.name.key.clone(),
        id: command.name.id.clone().into_bytes(),
        version: command.version.as_deref().map(str::parse).transpose().map_err(bad)?,
        order: match command.order {
            Order::Cancel => service::Order::Cancel,
            Order::Reschedule(due) => service::Order::Reschedule(UnixMillis(due)),
        },
    })
}

fn trouble(why: service::Error) -> Trouble {
    match why {
        service::Error::Moving(_) | service::Error::Behind(_) | service::Error::Undecided(_) => {
            Trouble::Moving(why.to_string())
        }
        service::Error::Without => Trouble::NoIndex(
            "its owner runs without an index: its disk is full, or does not work".to_owned(),
        ),
        service::Error::Late => Trouble::Moving(why.to_string()),
        service::Error::Busy => Trouble::Busy(why.to_string()),
        service::Error::Fault => Trouble::Moving(why.to_string()),
        service::Error::Submit(error @ SubmitError::Unacknowledged { .. }) => {
            Trouble::Away(format!("{error}; to ask again is safe"))
        }
        service::Error::NotPending(state) => {
            Trouble::NotPending(state.map(|phase| phase.as_str().to_owned()))
        }
        service::Error::Superseded(_) => refused("superseded", why.to_string()),
        service::Error::TooLate(_) => refused("delay_too_long", why.to_string()),
        service::Error::NotFound => Trouble::NotFound(format!(
            "{why}; nothing was written; ask again (the search takes as long as the wait, and {} s at most)",
            service::SEARCH_MAX.as_secs()
        )),
        service::Error::Search(_) => Trouble::Away(format!("{why}; nothing was written")),
        service::Error::Submit(error) => Trouble::Away(format!("{error}; nothing was written")),
    }
}

fn of_index(filter: &Filter) -> index::Filter {
    let phase = |state: &String| state.parse::<TimerState>().ok();
    index::Filter {
        target: filter.target.clone(),
        label: filter.label.clone(),
        phase: filter.state.as_ref().and_then(phase),
        due_from: filter.due_after.map(UnixMillis),
        due_before: filter.due_before.map(UnixMillis),
    }
}

fn timer(lane: u16, of: &timers::Timer) -> Timer {
    Timer {
        name: Name {
            id: String::from_utf8_lossy(&of.id).into_owned(),
            key: of.key.as_ref().map(|key| key.to_vec()),
        },
        key_cut: of.key_cut,
        order: of.timer_id.0,
        state: of.state.as_str().to_owned(),
        target: of.target.to_string(),
        due: of.due.0,
        lane,
        label: of.label.as_ref().map(ToString::to_string),
        version: of.version.to_string(),
        supersedes: of.supersedes.map(|of| of.last.to_string()),
        since: of.since.0.max(of.version.first_appended.0),
        code: of.code.map(|code| code.as_str().to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::timers::known::STATES;

    #[test]
    fn every_state_of_the_api_is_a_phase_of_the_engine() {
        for state in STATES {
            let filter = Filter { state: Some(state.to_owned()), ..Filter::default() };
            let phase = of_index(&filter).phase.expect(state);
            assert_eq!(phase.as_str(), state);
        }
    }
}
