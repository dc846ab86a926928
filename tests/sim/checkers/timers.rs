//! Promise 6, where all timers are tracked. The outcomes of each timer can have happened one after the other. Answers
//! are true. A cancel that comes in time wins. `<ns>.timers` agrees with what can be seen.

mod answers;

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;

use waterclock::engine::Limits;
use waterclock::engine::messages::Outcome;
use waterclock::engine::timers::{self, Change, Timer, TimerId, TimerState};

use super::contents::code_of;
use super::{Accepted, Arrival, Found, Said, Unborn, View, forgotten_in_time, said};
use crate::linear::{self, Failure, History, Index, Operation, Stand, What};
use crate::network::Told;
use crate::plan::{Fault, Kind, SECOND};
use crate::workload::Act;
use crate::world::{Answered, World};

/// The commands of one timer, and what was seen of it.
struct Tale<'a> {
    timer: TimerId,
    commands: Vec<&'a Accepted<'a>>,
    said: &'a [Said],
}

pub(super) fn check(world: &World, view: &View<'_>, found: &mut Found) {
    let (said, unborn) = said(world, found);
    forgotten_in_time(world, &said, found);
    let mut tales: BTreeMap<TimerId, Tale<'_>> = BTreeMap::new();
    for accepted in &view.accepted {
        let Some(timer) = accepted.submission.timer else { continue };
        let of_timer: &[Said] = said.get(&timer).map_or(&[], Vec::as_slice);
        let tale = Tale { timer, commands: Vec::new(), said: of_timer };
        tales.entry(timer).or_insert(tale).commands.push(accepted);
    }
    for timer in said.keys().filter(|timer| !tales.contains_key(timer)) {
        found.push(("timers", format!("{timer:?} is of nobody")));
    }
    // A crash may do some of it twice; then only some of it can be said.
    let sure = world.plan.exactly_once() || world.plan.healthy();
    for of in &unborn {
        is_refused(view, of, sure, found);
    }
    for tale in tales.values() {
        answers::check(world, view, tale, found);
        if sure {
            who_cancels_in_time_wins(world, view, tale, found);
            if world.plan.kind != Kind::Storm {
                has_an_order(world, view, tale, found);
                said_is_seen(world, view, tale, found);
            }
        } else if world.plan.kind != Kind::Storm {
            is_explained(view, tale, found);
        }
    }
}

/// Whether a record has the name of this timer, even if it breaks the contract.
fn is_named(accepted: &Accepted<'_>, timer: TimerId) -> bool {
    let record = &accepted.submission.record;
    let id = record.headers().find(|(name, _)| *name == b"x-delay-id").and_then(|(_, id)| id);
    id.is_some_and(|id| TimerId::new(record.key(), id) == timer)
}

/// A timer that is reported dead and never was pending is a dead letter, and no version of it was pending.
fn is_refused(view: &View<'_>, unborn: &Unborn, sure: bool, found: &mut Found) {
    let is_dead = |accepted: &Accepted<'_>| {
        let code = unborn.code.map(|code| code.as_str());
        view.of(accepted).iter().any(|arrival| code_of(arrival).as_deref() == code)
    };
    let timer_id = unborn.name;
    if !view.accepted.iter().any(|accepted| is_named(accepted, timer_id) && is_dead(accepted)) {
        found.push((
            "timers",
            format!("{timer_id:?} is told as dead, and there is no such dead letter"),
        ));
    }
    if sure && unborn.over_pending {
        found.push(("timers", format!("{timer_id:?} is told as dead while it is pending")));
    }
}

fn answer_of(world: &World, number: usize) -> Option<Answered> {
    world.told.get(&number)?.first().copied()
}

/// An answer, as far as a search knows it.
fn plain(told: Told) -> Option<linear::Answer> {
    match told {
        Told::By(Outcome::Cancelled) => Some(linear::Answer::Cancelled),
        Told::By(Outcome::Superseded) => Some(linear::Answer::Superseded),
        Told::By(Outcome::Refused(_)) => Some(linear::Answer::Refused),
        Told::By(_) => None,
        Told::Found(timers::Found::Ended(TimerState::Delivered)) => Some(linear::Answer::Delivered),
        Told::Found(timers::Found::Ended(TimerState::Cancelled)) => Some(linear::Answer::Cancelled),
        Told::Found(timers::Found::Replaced) => Some(linear::Answer::Superseded),
        Told::Found(timers::Found::Done) => None,
        Told::Found(timers::Found::Ended(_) | timers::Found::Nothing) => {
            Some(linear::Answer::Unknown)
        }
    }
}

impl<'a> Tale<'a> {
    /// What a command with an answer, or a version that a record's number names, is about: those submitted before.
    fn covers(&self, by: &Accepted<'_>, of: &Accepted<'_>) -> bool {
        if let Some(version) = by.submission.act.version() {
            return version == of.number;
        }
        let (by, of) = (stand(by), stand(of));
        if by.prompt && of.prompt && by.log == of.log {
            return of.offset < by.offset;
        }
        of.stamp < by.stamp
    }

    fn versions(&self) -> impl Iterator<Item = &&'a Accepted<'a>> {
        self.commands.iter().filter(|command| !command.submission.act.cancels())
    }

    fn cancels(&self) -> impl Iterator<Item = &&'a Accepted<'a>> {
        self.commands.iter().filter(|command| command.submission.act.cancels())
    }

    fn arrivals<'v>(
        &self,
        view: &'v View<'a>,
    ) -> impl Iterator<Item = (&'a Accepted<'a>, &'v Arrival<'a>)> {
        let of = |version: &&'a Accepted<'a>| {
            let version = *version;
            view.of(version).iter().map(move |arrival| (version, arrival))
        };
        self.versions().flat_map(of).filter(|(_, arrival)| arrival.target.is_some())
    }
}

/// Where a command stands. In further intakes append times count, and not the log's order: where clocks stepped back they
/// are as good as strange partitions.
fn stand(of: &Accepted<'_>) -> Stand {
    Stand {
        stamp: of.appended,
        log: (of.place.topic, of.place.partition),
        offset: of.offset.0,
        prompt: of.submission.own_lane && of.submission.topic < of.prompt_topics,
        straight: of.submission.own_lane && of.submission.topic == 0,
        in_tier: of.submission.topic >= of.prompt_topics,
    }
}

/// Whether a command must have been known when this version fired: it could be read in time, `settle` before.
fn is_in_time(world: &World, command: &Accepted<'_>, version: &Accepted<'_>) -> bool {
    let moved = world.plan.faults.iter().any(|(_, fault)| matches!(fault, Fault::Leader { .. }));
    // Another leader may stamp an earlier time than what was read before.
    let stepped = !world.stepped_back.is_empty();
    // A clock that a member does not know is taken to be no slower than the others (ADR 0002).
    let unknown = world.plan.unprobed == Some(world.broker.leader(command.place));
    let apart = if moved || stepped || unknown { world.clocks_apart() } else { 0 };
    // A due record waits for the intake by which it came, and for the main one.
    let intakes = world.plan.setup.topics.intakes.len();
    let intake = Some(version.submission.topic).filter(|topic| *topic < intakes).unwrap_or(0);
    stand(command).prompt
        && [intake, 0].contains(&command.submission.topic)
        && command.appended + world.plan.settle + apart < version.due()
        && world.was_readable(command.place, command.offset)
}

/// Whether it was written to a tier and came up once its cancel was forgotten, in a world where few timers are remembered: a
/// quarter of them may have been cancelled ones, and then those of what was pending are remembered for a shorter time.
fn is_not_caught(
    world: &World,
    tale: &Tale<'_>,
    version: &Accepted<'_>,
    within: Range<u64>,
) -> bool {
    let is_few = world.plan.setup.limits.tracked_max < Limits::default().tracked_max;
    let is_forgotten = |said: &Said| {
        matches!(said.change, Change::ForgottenCancelMark(_)) && within.contains(&said.moment)
    };
    is_few && stand(version).in_tier && tale.said.iter().any(is_forgotten)
}

/// What was cancelled or replaced in time never arrives.
fn who_cancels_in_time_wins(world: &World, view: &View<'_>, tale: &Tale<'_>, found: &mut Found) {
    for command in &tale.commands {
        let act = command.submission.act;
        let refused = !view.of(command).is_empty() && view.of(command)[0].target.is_none();
        let ends = act.cancels() && !act.names_a_version() || act == Act::Replace;
        if !ends || refused {
            continue;
        }
        for (version, arrival) in tale.arrivals(view) {
            if is_not_caught(world, tale, version, 0..arrival.moment) {
                continue;
            }
            // What was written to a tier is not known before its head comes up; a cancel waits for it.
            let unknown = act == Act::Replace && !stand(version).prompt;
            if !unknown && tale.covers(command, version) && is_in_time(world, command, version) {
                let (number, by) = (version.number, command.number);
                let what = format!("n={number} arrived, though n={by} was in time");
                found.push(("cancelled in time", what));
            }
        }
    }
}

/// All that is known of it can have happened one thing after the other.
fn has_an_order(world: &World, view: &View<'_>, tale: &Tale<'_>, found: &mut Found) {
    // What comes from elsewhere is put in order by the brokers' clocks. Where these step back it may be first what was last.
    if world.plan.kind == Kind::Clocks && tale.commands.iter().any(|command| !stand(command).prompt)
    {
        return;
    }
    let Some((history, numbers)) = history(world, view, tale) else { return };
    match history.order() {
        Ok(_) => {}
        // One timer of thousands of records: a flooding producer does not ask.
        Err(Failure::TooWide) if world.plan.kind == Kind::Flood => {}
        Err(Failure::TooWide) => found.push(("too wide", format!("{:?}", tale.timer))),
        Err(Failure::Impossible) => {
            let each = history.operations.iter().zip(&numbers);
            let lines: Vec<String> = each.map(|(of, number)| line(of, *number)).collect();
            let what = format!("{:?}: no order of\n  {}", tale.timer, lines.join("\n  "));
            found.push(("linearizable", what));
        }
    }
}

fn line(of: &Operation, number: usize) -> String {
    let until = if of.until == u64::MAX { "-".to_owned() } else { of.until.to_string() };
    let Stand { stamp, log, offset, prompt, .. } = of.stand;
    let way = if prompt { "" } else { " stray" };
    format!(
        "n={number} {:?} from {} until {until}; {stamp} at {log:?} {offset}{way}",
        of.what, of.from
    )
}

/// What a search is given, and the submission that each operation is of. `None`: of nothing but what it cannot judge.
fn history(world: &World, view: &View<'_>, tale: &Tale<'_>) -> Option<(History, Vec<usize>)> {
    let (mut history, mut numbers) = (History::default(), Vec::new());
    history.forgotten =
        tale.said.iter().any(|said| matches!(said.change, Change::ForgottenTimer(_)));
    history.poisoned = world.seen.contains_key("batches refused");
    let index_of = |number: usize| tale.commands.iter().position(|of| of.number == number);
    for command in &tale.commands {
        let told = answer_of(world, command.number);
        let entry = world.broker.partition(command.place)?.read(command.offset)?;
        let is_dead = view.of(command).iter().any(|arrival| arrival.target.is_none());
        let answer = if is_dead { Some(linear::Answer::Refused) } else { None };
        let answer = answer.or_else(|| plain(told?.told));
        let is_not_caught = |version: &&Accepted<'_>| {
            let came = view.of(version).first().map(|arrival| arrival.moment);
            came.is_some_and(|came| is_not_caught(world, tale, version, 0..came))
        };
        let forgotten = tale.versions().any(is_not_caught)
            || tale.said.iter().any(|said| {
                matches!(said.change, Change::ForgottenTimer(_) | Change::ForgottenCancelMark(_))
                    && told.is_none_or(|told| said.moment < told.moment)
            });
        let what = match command.submission.act {
            Act::Create => What::Create,
            Act::Replace => What::Replace { of: None },
            Act::ReplaceVersion(of) => What::Replace { of: Some(index_of(of)?) },
            Act::Cancel => What::Cancel { of: None, answer, forgotten },
            Act::CancelVersion(of) => What::Cancel { of: Some(index_of(of)?), answer, forgotten },
        };
        let cancels = command.submission.act.cancels();
        let until = told.filter(|_| cancels).map_or(u64::MAX, |told| told.moment);
        history.operations.push(Operation {
            what,
            from: entry.moment,
            until,
            stand: stand(command),
            due: command.due(),
        });
        numbers.push(command.number);
    }
    for (index, version) in tale.commands.iter().enumerate() {
        let Some(arrival) = view.of(version).first() else { continue };
        if version.submission.act.cancels() {
            continue;
        }
        let Operation { from, stand, due, .. } = history.operations[index];
        let what = if arrival.target.is_some() { What::Fire(index) } else { What::Dead(index) };
        let fire = history.operations.len();
        history.operations.push(Operation { what, from, until: arrival.moment, stand, due });
        numbers.push(version.number);
        if arrival.target.is_some() {
            must_precede(world, tale, (version, fire), &mut history.before);
        }
    }
    Some((history, numbers))
}

/// Commands that could be read in time come before a version fires.
fn must_precede(
    world: &World,
    tale: &Tale<'_>,
    (version, fire): (&Accepted<'_>, Index),
    before: &mut Vec<(Index, Index)>,
) {
    for (index, command) in tale.commands.iter().enumerate() {
        if is_in_time(world, command, version) {
            before.push((index, fire));
        }
    }
}

/// Where a crash may do things twice: what arrived nowhere was a duplicate, or somebody ended it. So was what a hostile producer
/// has copied of one.
fn is_explained(view: &View<'_>, tale: &Tale<'_>, found: &mut Found) {
    for version in tale.versions() {
        let is_sure = tale.commands.len() == 1 && !version.submission.hostile;
        if view.of(version).is_empty() && is_sure {
            found.push(("never lost", format!("n={} arrived nowhere", version.number)));
        }
    }
}

/// What `<ns>.timers` says of a timer's versions is what can be seen of them, at the same moment.
fn said_is_seen(world: &World, view: &View<'_>, tale: &Tale<'_>, found: &mut Found) {
    let mut complain = |what: String| found.push(("timers", format!("{:?}: {what}", tale.timer)));
    let timers: Vec<(&Said, &Timer)> = tale
        .said
        .iter()
        .filter_map(|said| match &said.change {
            Change::Timer(timer) => Some((said, timer)),
            _ => None,
        })
        .collect();
    let is_of = |timer: &Timer, version: &Accepted<'_>| {
        let stands = stand(version);
        timer.version.first_appended.0 == version.appended
            && (!stands.prompt || timer.version.offset_in_log() == version.offset)
    };
    for (_, timer) in &timers {
        if !tale.versions().any(|version| is_of(timer, version)) {
            complain(format!("a version {} that nobody made", timer.version));
        }
    }
    for version in tale.versions() {
        let alone = tale.versions().filter(|of| of.appended == version.appended).count() == 1;
        for arrival in view.of(version).iter().filter(|_| alone || stand(version).prompt) {
            let of_arrival = timers.iter().find(|(said, timer)| {
                said.moment == arrival.moment && timer.state.is_final() && is_of(timer, version)
            });
            let moments_count = world.plan.exactly_once();
            let said_so = match (of_arrival, arrival.target) {
                (Some((_, timer)), Some(_)) => timer.state == TimerState::Delivered,
                (Some((_, timer)), None) => {
                    matches!(timer.state, TimerState::Dead | TimerState::Expired)
                }
                // It never was pending.
                (None, None) => true,
                (None, Some(_)) => !moments_count,
            };
            if !said_so {
                let arrived = (version.number, arrival.target, of_arrival.map(|(_, timer)| timer));
                complain(format!("n, where and what was said: {arrived:?}"));
            }
        }
        let seen = view.of(version).iter().any(|arrival| arrival.target.is_some());
        let lies = |timer: &Timer| match timer.state {
            TimerState::Delivered => !seen,
            TimerState::Cancelled | TimerState::Dead | TimerState::Expired => seen,
            // Nobody deletes anything here.
            TimerState::Delay | TimerState::Lost => false,
        };
        let lie = timers.iter().find(|(_, timer)| is_of(timer, version) && lies(timer));
        if let Some((_, timer)) = lie.filter(|_| alone) {
            complain(format!("n={} is not {:?}", version.number, timer.state));
        }
    }
    // One that is lost and comes up all the same is delivered, where a leader's clock is ahead by more than that.
    let may_return = world.plan.clocks_apart() >= 5 * SECOND;
    ends_in_order(tale.said, world.plan.clocks_apart(), may_return, &mut complain);
}

/// Nothing is pending at the end; what ended never ends again; nothing pending, and nothing young, is forgotten.
fn ends_in_order(
    said: &[Said],
    clocks_apart: u64,
    may_return: bool,
    complain: &mut impl FnMut(String),
) {
    let mut last: Option<&Timer> = None;
    let mut ended = HashSet::new();
    for of in said {
        match &of.change {
            Change::Timer(timer) => {
                if ended.contains(&timer.version) {
                    complain(format!("{} ended already, and is {:?}", timer.version, timer.state));
                }
                if timer.state.is_final() && !(may_return && timer.state == TimerState::Lost) {
                    ended.insert(timer.version);
                }
                last = Some(timer);
            }
            Change::ForgottenTimer(_) => {
                let early = last.take().is_some_and(|last| {
                    !last.state.is_final() || last.since.0 > of.appended + clocks_apart
                });
                if early {
                    complain("it is forgotten while it is pending".to_owned());
                }
            }
            _ => {}
        }
    }
    if let Some(last) = last.filter(|last| !last.state.is_final()) {
        complain(format!("{} is still pending", last.version));
    }
}
