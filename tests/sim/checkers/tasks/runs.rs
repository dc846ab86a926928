//! Runs: each of their shards is created once, what is counted of shards is what their own history says, and a run ends as they do.

use std::collections::BTreeMap;

use waterclock::engine::header::Code;
use waterclock::engine::messages::Outcome;
use waterclock::engine::timers::{
    Change, RunProgress, ShardState, Timer, TimerId, TimerState, Version,
};
use waterclock::engine::{Offset, UnixMillis};

use crate::broker::{EPOCH_MS, Time};
use crate::checkers::{Found, is_unborn, ledger};
use crate::plan::{MINUTE, SECOND};
use crate::world::{PlannedRun, RunAct, RunCommand, Shard, World};

/// What is said of a shard is heard within this where all is well.
const HEARD_WITHIN: Time = 5 * SECOND;
/// The same where not all is.
const HEARD_LATE: Time = 3 * MINUTE;
/// No shard begins later than that after its run was said to have ended.
const NONE_AFTER: Time = 2 * SECOND;

/// What the changelog says of a run.
enum Said {
    Timer(Timer),
    Shards(RunProgress),
}

pub(super) fn check(world: &World, found: &mut Found) {
    if world.tasks.runs.planned.is_empty() {
        return;
    }
    for (run, lives) in lives_of_all(world).into_iter().enumerate() {
        if !world.tasks.runs.is_made(run) {
            continue;
        }
        let of = Of { world, run, planned: &world.tasks.runs.planned[run], lives: &lives };
        of.created_once(found);
        of.commands_told(found);
        of.ends(found);
        for life in &lives {
            of.agrees(life, found);
        }
    }
}

/// Of each run, in the order of its lane; but for what was refused when it came.
fn histories(world: &World) -> Vec<Vec<(Time, Said)>> {
    let planned = &world.tasks.runs.planned;
    let of = planned.iter().enumerate().map(|(index, of)| (of.timer_id, index));
    let of: BTreeMap<TimerId, usize> = of.collect();
    let mut histories: Vec<Vec<(Time, Said)>> = planned.iter().map(|_| Vec::new()).collect();
    if planned.is_empty() {
        return histories;
    }
    for (_, _, entry, record) in ledger(world, world.timers_topic) {
        let Ok(change) = Change::decode(record.key(), record.value()) else { continue };
        let Some(run) = of.get(&change.timer_id()) else { continue };
        match change {
            Change::Timer(timer) if !is_unborn(&timer) => {
                histories[*run].push((entry.at, Said::Timer(timer)));
            }
            Change::Shards(_, shards) => histories[*run].push((entry.at, Said::Shards(*shards))),
            _ => {}
        }
    }
    histories
}

/// What was said of one version of a run.
pub(super) struct Life {
    version: Version,
    pub(super) timers: Vec<(Time, Timer)>,
    pub(super) shards: Vec<(Time, RunProgress)>,
}

impl Life {
    pub(super) fn end(&self) -> Option<&(Time, Timer)> {
        self.timers.iter().find(|(_, timer)| timer.state.is_final())
    }
}

/// The versions of each run.
pub(super) fn lives_of_all(world: &World) -> Vec<Vec<Life>> {
    histories(world).into_iter().map(lives).collect()
}

/// How far shards are stands behind the first word about their version.
fn lives(history: Vec<(Time, Said)>) -> Vec<Life> {
    let mut lives: Vec<Life> = Vec::new();
    for (at, said) in history {
        match said {
            Said::Timer(timer) => {
                if lives.last().is_none_or(|life| life.version != timer.version) {
                    let (timers, shards) = (Vec::new(), Vec::new());
                    lives.push(Life { version: timer.version, timers, shards });
                }
                lives.last_mut().expect("it was pushed").timers.push((at, timer));
            }
            Said::Shards(shards) => {
                if let Some(life) = lives.last_mut() {
                    life.shards.push((at, shards));
                }
            }
        }
    }
    lives
}

/// What became of a shard, by its own history: when that is said first.
#[derive(Clone, Copy, Debug, Default)]
struct Own {
    begun: Option<Time>,
    again: Option<Time>,
    end: Option<(Time, TimerState)>,
    /// When it was handed out last.
    handed: Option<Time>,
}

struct Of<'a> {
    world: &'a World,
    run: usize,
    planned: &'a PlannedRun,
    lives: &'a [Life],
}

impl Of<'_> {
    fn shards(&self) -> impl Iterator<Item = &Shard> {
        self.world.tasks.runs.shards.iter().filter(|shard| shard.run == self.run)
    }

    fn commands(&self) -> impl Iterator<Item = &RunCommand> {
        self.world.tasks.runs.commands.iter().filter(|command| command.run == self.run)
    }

    /// Nothing goes wrong with lanes, and nothing is in doubt at workers.
    fn is_well(&self) -> bool {
        let tasks = self.world.plan.tasks;
        tasks.is_some_and(|of| of.lanes_are_well && of.workers_are_gentle)
    }

    fn own(&self, shard: &Shard) -> Own {
        let mut own = Own::default();
        let seen = self.world.tasks.seen.get(&shard.task).map_or(&[][..], Vec::as_slice);
        let mut turn = 0;
        // What is said of a copy that was refused in another lane says nothing of the shard.
        let was_born = seen.iter().any(|(_, timer)| !is_unborn(timer));
        for (at, timer) in seen.iter().filter(|(_, timer)| !was_born || !is_unborn(timer)) {
            let task = timer.task.unwrap_or_default();
            if task.turn > turn {
                (turn, own.handed) = (task.turn, Some(*at));
            }
            if timer.state.is_final() {
                own.end.get_or_insert((*at, timer.state));
                if timer.state == TimerState::Delivered {
                    own.begun.get_or_insert(*at);
                }
                continue;
            }
            if task.open {
                own.begun.get_or_insert(*at);
            } else if task.turn > 1 && task.begun && (task.held.is_some() || task.with_executor) {
                // A turn behind one that could not be called is no second try.
                own.again.get_or_insert(*at);
            }
        }
        own
    }

    fn created_once(&self, found: &mut Found) {
        let of = |version: Version| (version.first_appended, version.offset);
        let mut created: BTreeMap<((UnixMillis, Offset), u32), usize> = BTreeMap::new();
        for shard in self.shards() {
            *created.entry((of(shard.version), shard.index)).or_default() += 1;
        }
        for ((version, index), times) in &created {
            let is_of_it = self.lives.iter().any(|life| of(life.version) == *version);
            if !is_of_it || *times != 1 {
                let what = format!(
                    "shard {index} of version {version:?} of run {} was created {times} times",
                    self.run
                );
                found.push(("shards", what));
            }
        }
        for life in self.lives {
            let count = created.keys().filter(|(version, _)| *version == of(life.version)).count();
            let said = life.shards.last().map_or(0, |(_, shards)| shards.created() as usize);
            let is_all = life.end().is_none_or(|(_, end)| end.state != TimerState::Delivered)
                || said == self.planned.shape.shards as usize;
            if count != said || !is_all {
                let what = format!(
                    "run {} says that it has {said} of {} shards, and has {count}",
                    self.run, self.planned.shape.shards
                );
                found.push(("shards", what));
            }
        }
    }

    /// What clients were told is what became of it.
    fn commands_told(&self, found: &mut Found) {
        for command in self.commands() {
            let life = self.lives.iter().position(|life| life.version == command.version);
            for (at, told) in &command.told {
                let is_true = match (command.act, told) {
                    (RunAct::Cancel, Outcome::Cancelled) => self
                        .lives
                        .iter()
                        .filter_map(Life::end)
                        .any(|(since, end)| end.state == TimerState::Cancelled && since <= at),
                    (RunAct::Retry, Outcome::Replaced) => life.is_some(),
                    (RunAct::Retry, Outcome::Superseded) => {
                        life.is_none_or(|at| self.lives[at].end().is_some())
                    }
                    (RunAct::Retry, Outcome::Refused(_)) => life.is_none(),
                    _ => true,
                };
                if !is_true {
                    found.push(("runs agree", format!("run {}: {command:?}", self.run)));
                }
            }
        }
        for pair in self.lives.windows(2) {
            let retry = self.commands().find(|command| command.version == pair[1].version);
            let last = pair[0].timers.last().map(|(_, timer)| timer.state);
            let may_be = matches!(last, Some(TimerState::Dead | TimerState::Expired));
            if retry.is_none_or(|retry| retry.follows != Some(pair[0].version)) || !may_be {
                let what = format!("run {} is {last:?}, and {retry:?} brings it back", self.run);
                found.push(("runs agree", what));
            }
        }
    }

    fn ends(&self, found: &mut Found) {
        for life in self.lives {
            let Some((_, end)) = life.end() else { continue };
            let mut ends = life.timers.iter().map(|(_, timer)| timer.state);
            let other = ends.rfind(|state| *state != end.state && state.is_final());
            let goes_on = life.timers.last().is_some_and(|(_, last)| !last.state.is_final());
            if other.is_some() || goes_on {
                let what = format!("run {} is {:?}, then {other:?}", self.run, end.state);
                found.push(("one end", what));
            }
        }
        let last = self.lives.last().and_then(|life| life.timers.last());
        let is_over = last.is_some_and(|(_, timer)| timer.state.is_final());
        // One that was refused when it came has no life.
        let was_refused = self.lives.is_empty() && self.world.tasks.runs.shown(self.run).is_some();
        if !is_over && !was_refused {
            found.push(("liveness", format!("run {} waits for ever: {last:?}", self.run)));
        }
    }

    /// What is counted of the shards of a version, and how it ended.
    fn agrees(&self, life: &Life, found: &mut Found) {
        let shards: BTreeMap<u32, (&Shard, Own)> = self
            .shards()
            .filter(|shard| shard.version == life.version)
            .map(|shard| (shard.index, (shard, self.own(shard))))
            .collect();
        let mut wrong = |promise, what: String| {
            found.push((promise, format!("run {} of {}: {what}", self.run, life.version)));
        };
        // No shard is retried by hand here: what is said of one that has ended stays.
        for ((_, before), (at, said)) in life.shards.iter().zip(life.shards.iter().skip(1)) {
            let is_kept = |index: &u32| match before.state(*index) {
                ShardState::Finished => said.state(*index) == ShardState::Finished,
                ShardState::Failed => {
                    matches!(said.state(*index), ShardState::Failed | ShardState::Finished)
                }
                _ => true,
            };
            if let Some(index) = (0..said.shards()).find(|index| !is_kept(index)) {
                return wrong("runs agree", format!("shard {index} at {at}: its end is forgotten"));
            }
        }
        for (at, said) in &life.shards {
            for (index, (_, own)) in &shards {
                if let Some(what) = self.contradicts(*at, said.state(*index), own) {
                    return wrong("runs agree", format!("shard {index} at {at}: {what}"));
                }
            }
        }
        let Some((at, end)) = life.end() else { return };
        let heard = life.shards.iter().rfind(|(said, _)| said <= at).map(|(_, of)| of);
        let counts = heard.map(RunProgress::counts).unwrap_or_default();
        let is_all = counts.finished + counts.failed == self.planned.shape.shards;
        let ends = shards.values().filter_map(|(_, own)| own.end);
        let finished = ends.clone().filter(|(_, of)| *of == TimerState::Delivered).count();
        let in_time = at.saturating_sub(if self.is_well() { HEARD_WITHIN } else { HEARD_LATE });
        let ended_in_time = ends.clone().filter(|(ended, _)| *ended <= in_time).count();
        // It was refused, or its project is deleted.
        let is_letter = end.code.is_some_and(|code| code != Code::TaskFailed);
        let is_right = match end.state {
            TimerState::Delivered => {
                is_all && counts.failed == 0 && finished == self.planned.shape.shards as usize
            }
            TimerState::Dead if is_letter => true,
            TimerState::Dead if self.planned.shape.stops => counts.failed > 0,
            TimerState::Dead => is_all && counts.failed > 0 && finished == counts.finished as usize,
            // It came too late to begin.
            TimerState::Expired if is_letter => {
                let expires = self.planned.expires.map(|expires| EPOCH_MS + expires);
                heard.is_none() && expires.is_some_and(|expires| end.since.0 >= expires)
            }
            TimerState::Expired => !is_all && ended_in_time < self.planned.shape.shards as usize,
            TimerState::Cancelled => self.commands().any(|of| of.act == RunAct::Cancel),
            TimerState::Lost | TimerState::Delay => false,
        };
        if !is_right {
            let what = format!(
                "it is {:?}, its shards are {counts:?}, {finished} finished, {ended_in_time} ended by {in_time}",
                end.state
            );
            wrong("runs agree", what);
        }
        let all = shards.values().map(|(_, own)| own);
        if let Some(late) = self.late(life, *at, all).filter(|_| !is_letter) {
            wrong("runs end in time", late);
        }
        // What had not ended by then was cancelled with it.
        let Some(heard) = heard.filter(|_| !is_letter) else { return };
        for index in heard.unfinished() {
            let Some((shard, own)) = shards.get(&index) else { continue };
            let id = &self.world.tasks.drafts[shard.task].id;
            if !self.world.tasks.runs.cancels.contains_key(id.as_str()) {
                wrong("cancelled shards", format!("shard {index}: {own:?}"));
            }
        }
        self.none_later(life, shards.values().copied(), found);
    }

    /// A version of it ends by its deadline, and with its first shard that fails, if it is to: else what is wrong with its end.
    fn late<'b>(
        &self,
        life: &Life,
        ended: Time,
        shards: impl Iterator<Item = &'b Own>,
    ) -> Option<String> {
        let (begun, _) = life.shards.first()?;
        let slack = if self.is_well() { HEARD_WITHIN } else { HEARD_LATE };
        // Its record waits in a tier.
        let tiers = self.world.plan.setup.topics.ladder.tiers();
        let hold = tiers.iter().map(|tier| tier.hold.0).min().unwrap_or_default();
        let deadline = begun + self.planned.shape.deadline * SECOND;
        let ends = shards.filter_map(|own| own.end).filter(|_| self.planned.shape.stops);
        let failed = ends.filter(|(_, of)| *of != TimerState::Delivered).map(|(at, _)| at).min();
        let latest = failed.unwrap_or(Time::MAX).min(deadline + hold) + slack;
        (ended > latest).then(|| {
            format!("it ends at {ended}, its deadline is {deadline}, a shard failed at {failed:?}")
        })
    }

    /// What is said of a shard then is what its own history says.
    fn contradicts(&self, at: Time, said: ShardState, own: &Own) -> Option<String> {
        let by = |time: Option<Time>| time.is_some_and(|time| time <= at);
        let is_right = match said {
            ShardState::ToCreate | ShardState::Waiting => true,
            ShardState::Executing => by(own.begun),
            ShardState::Again => by(own.again),
            ShardState::Finished => {
                own.end.is_some_and(|(ended, of)| ended <= at && of == TimerState::Delivered)
            }
            ShardState::Failed => {
                own.end.is_some_and(|(ended, of)| ended <= at && of != TimerState::Delivered)
            }
        };
        let slack = if self.is_well() { HEARD_WITHIN } else { HEARD_LATE };
        let long_since = |time: Option<Time>| time.is_some_and(|time| time + slack < at);
        let is_missed = match said {
            ShardState::Waiting => {
                long_since(own.begun)
                    || long_since(own.again)
                    || long_since(own.end.map(|(ended, _)| ended))
            }
            ShardState::Executing => {
                long_since(own.again) || long_since(own.end.map(|(ended, _)| ended))
            }
            ShardState::Again => long_since(own.end.map(|(ended, _)| ended)),
            ShardState::ToCreate | ShardState::Finished | ShardState::Failed => false,
        };
        (!is_right || is_missed).then(|| format!("{said:?}, and {own:?}"))
    }

    /// Once its client knows that it has ended, no shard begins much later.
    fn none_later<'b>(
        &self,
        life: &Life,
        shards: impl Iterator<Item = (&'b Shard, Own)>,
        found: &mut Found,
    ) {
        let lanes_are_well = self.world.plan.tasks.is_some_and(|of| of.lanes_are_well);
        let Some((_, end)) = life.end().filter(|_| lanes_are_well) else { return };
        let told = self.commands().filter(|of| of.act == RunAct::Cancel);
        let told = told.flat_map(|of| &of.told);
        let told = told.filter(|(_, outcome)| *outcome == Outcome::Cancelled);
        let told = told.map(|(at, _)| *at).min();
        let Some(told) = told.filter(|_| end.state == TimerState::Cancelled) else { return };
        for (shard, own) in shards {
            if let Some(handed) = own.handed.filter(|handed| *handed > told + NONE_AFTER) {
                let what = format!(
                    "shard {} of run {} is handed out at {handed}, and it was cancelled by {told}",
                    shard.index, self.run
                );
                found.push(("no shard later", what));
            }
        }
    }
}

/// What is to be told of a version of a run that has ended.
pub(super) struct ToTell {
    /// The id of its follow-up.
    pub(super) id: String,
    pub(super) statuses: &'static [&'static str],
    /// It was refused when it came, and may not have been readable.
    pub(super) may_be_none: bool,
    /// How it ended.
    pub(super) what: String,
}

/// What is to be told of runs.
pub(super) fn follow_ups(world: &World) -> Vec<ToTell> {
    let planned = &world.tasks.runs.planned;
    let mut all = Vec::new();
    let mut tell = |run: usize, end: &Timer| {
        let PlannedRun { id, spec, .. } = &planned[run];
        let tells = spec.on_result().is_some();
        let id = id.follow_up((end.version.first_appended, end.version.offset));
        let statuses: &[&str] = match end.state {
            TimerState::Delivered if tells => &["finished"],
            TimerState::Dead if tells => &["failed"],
            _ => &[],
        };
        let what = format!("run {run} is {:?}", end.state);
        let (id, may_be_none) = (id.as_str().to_owned(), is_unborn(end));
        all.push(ToTell { id, statuses, may_be_none, what });
    };
    for (run, lives) in lives_of_all(world).iter().enumerate() {
        lives.iter().filter_map(Life::end).for_each(|(_, end)| tell(run, end));
    }
    if planned.is_empty() {
        return all;
    }
    for (_, _, _, record) in ledger(world, world.timers_topic) {
        if let Ok(Change::Timer(timer)) = Change::decode(record.key(), record.value())
            && is_unborn(&timer)
            && let Some(run) = planned.iter().position(|of| of.timer_id == timer.timer_id)
        {
            tell(run, &timer);
        }
    }
    all
}
