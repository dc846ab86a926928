//! Schedules: which of their times have a task, by which definition, and that no more of their tasks are open than may be. A task that is
//! a run is open until it has ended, and it ends with its shards.
//!
//! The commands about a schedule in its lane's intake are a chain: each version takes the place of the one that it follows, if that is the
//! last one. So it is known what is in force without asking a lane.

use std::collections::{BTreeMap, BTreeSet};

use waterclock::engine::header::Code;
use waterclock::engine::messages::Outcome;
use waterclock::engine::schedule::{GRACE, Misfire, Overlap, Schedule};
use waterclock::engine::sealed::Follows;
use waterclock::engine::task::spec::Spec;
use waterclock::engine::timers::{Change, Timer, TimerId, TimerState, Version};
use waterclock::engine::{Millis, Offset, UnixMillis};

use super::runs::{self, Life};
use crate::broker::{EPOCH_MS, Time};
use crate::checkers::{Found, is_unborn, ledger};
use crate::plan::SECOND;
use crate::world::{Called, Command, Create, Planned, Submitted, World, Wrote};

/// What waits for the end of a run begins within this where all is well, beside the time that it waits in a tier.
const BEGINS_WITHIN: Time = 5 * SECOND;

pub(super) fn check(world: &World, found: &mut Found) {
    let histories = histories(world);
    if histories.is_empty() {
        return;
    }
    let runs = runs::lives_of_all(world);
    for (index, history) in histories.into_iter().enumerate() {
        let case = Case::new(world, index, history, &runs);
        case.occurrences(found);
        case.changes(found);
        case.none_left_out(found);
        case.no_overlap(found);
        case.no_overlap_of_runs(found);
        case.goes_on(found);
        case.ends(found);
    }
}

/// What the changelog says of a timer, and when that was appended.
type History = Vec<(Time, Timer)>;

/// Of each schedule; but for what was refused when it came.
fn histories(world: &World) -> Vec<History> {
    let planned = &world.tasks.schedules.planned;
    let of = planned.iter().enumerate().map(|(index, of)| (TimerId::task(&of.id), index));
    let of: BTreeMap<TimerId, usize> = of.collect();
    let mut histories = vec![History::new(); planned.len()];
    if planned.is_empty() {
        return histories;
    }
    for (_, _, entry, record) in ledger(world, world.timers_topic) {
        if let Ok(Change::Timer(timer)) = Change::decode(record.key(), record.value())
            && let Some(index) = of.get(&timer.timer_id)
            && !is_unborn(&timer)
        {
            histories[*index].push((entry.at, timer));
        }
    }
    histories
}

/// All times before this were passed when that was written; `None`: it does not say so.
fn passed_by(timer: &Timer) -> Option<UnixMillis> {
    match timer.state {
        TimerState::Delivered => Some(UnixMillis(u64::MAX)),
        state if state.is_final() => None,
        _ => timer.task.map(|of| of.next_at),
    }
}

/// What is in force from a command on.
struct Link<'a> {
    command: &'a Command,
    /// `None`: it is deleted.
    spec: Option<&'a Spec>,
    /// It has no time before this.
    from: UnixMillis,
}

impl<'a> Link<'a> {
    fn schedule(&self) -> Option<&'a Schedule> {
        self.spec?.schedule()
    }

    fn is_paused(&self) -> bool {
        self.schedule().is_some_and(Schedule::is_paused)
    }
}

/// A schedule, and all that is known of it.
struct Case<'a> {
    world: &'a World,
    index: usize,
    of: &'a Planned,
    history: History,
    /// As they stand in the intake.
    commands: Vec<&'a Command>,
    links: Vec<Link<'a>>,
    creates: Vec<&'a Create>,
    /// The versions of each run.
    runs: &'a [Vec<Life>],
}

impl<'a> Case<'a> {
    fn new(world: &'a World, index: usize, history: History, runs: &'a [Vec<Life>]) -> Self {
        let all = &world.tasks.schedules;
        let commands = all.commands.iter().filter(|command| command.schedule == index);
        let mut commands: Vec<&Command> = commands.collect();
        commands.sort_by_key(|command| command.version.offset);
        let creates = all.creates.iter().filter(|create| create.schedule == index).collect();
        let of = &all.planned[index];
        let links = Vec::new();
        let mut case = Self { world, index, of, history, commands, links, creates, runs };
        case.links = case.chain();
        case
    }

    fn was_project_deleted(&self) -> bool {
        let mut versions = self.world.tasks.versions.iter();
        versions.any(|of| of.registry.project(self.of.project).is_deleted)
    }

    /// Whether the changelog says that this version took its place.
    fn is_told(&self, version: Version) -> bool {
        self.history.iter().any(|(_, timer)| timer.version == version)
    }

    fn chain(&self) -> Vec<Link<'a>> {
        let may_be_refused = self.was_project_deleted();
        let mut links: Vec<Link<'a>> = Vec::new();
        let mut last: Option<Version> = None;
        for &command in &self.commands {
            let appended = command.version.first_appended;
            match &command.what {
                Wrote::Delete if last.is_none() => {}
                Wrote::Delete => links.push(Link { command, spec: None, from: appended }),
                Wrote::Version { follows, spec, due, .. } => {
                    // One whose project is deleted is refused, and takes no place.
                    let is_refused = may_be_refused && !self.is_told(command.version);
                    let is_of_last = follows.map(|of| of.version) == last
                        && follows.is_none_or(|of| self.may_follow(of, &links, command.version));
                    if !is_of_last || is_refused {
                        continue;
                    }
                    let is_anew = follows.is_some_and(|of| of.has_ended);
                    let from = match links.last() {
                        None => *due,
                        // What fell into a pause is not made up for.
                        Some(before) if is_anew || before.is_paused() => appended + Millis(1),
                        // What has come and was not acted on is up to the new definition.
                        Some(before) => self.upto(before).min(appended + Millis(1)),
                    };
                    last = Some(command.version);
                    links.push(Link { command, spec: Some(&**spec), from });
                }
            }
        }
        links
    }

    /// Whether what a change follows goes on, or has ended, as the change says. Only of one that has ended by itself its lane alone
    /// knows which was first.
    fn may_follow(&self, of: Follows, links: &[Link<'_>], by: Version) -> bool {
        let is_deleted = links.last().is_some_and(|last| last.spec.is_none());
        let mut ends = self.history.iter().filter(|(_, timer)| timer.version == of.version);
        let has_ended = ends.any(|(_, timer)| timer.state.is_final());
        match (of.has_ended, is_deleted) {
            (true, _) => has_ended,
            (false, true) => false,
            (false, false) => !has_ended || self.is_told(by),
        }
    }

    /// How many versions have ended.
    fn lives(&self) -> usize {
        let ended = self.history.iter().filter(|(_, timer)| timer.state.is_final());
        let ended = ended.map(|(_, timer)| timer.version.offset);
        ended.collect::<BTreeSet<Offset>>().len()
    }

    /// What may be in force for the time of a create. A command that could be read `settle` before it counts for it; another one that
    /// stands before the create may count.
    fn in_force(&self, create: &Create) -> Vec<&Link<'a>> {
        let slack = Millis(self.world.plan.settle + self.world.clocks_apart());
        let mut links = Vec::new();
        for link in self.links.iter().rev() {
            let Version { first_appended, offset } = link.command.version;
            if offset > create.offset {
                continue;
            }
            links.push(link);
            let is_in_time = first_appended + slack < create.nominal
                && self.world.was_readable(link.command.place, offset);
            if is_in_time {
                break;
            }
        }
        links
    }

    /// Whether a create is that of a time which a definition has, as that has it.
    fn fits(&self, link: &Link<'_>, create: &Create) -> bool {
        let (Some(spec), Some(schedule)) = (link.spec, link.schedule()) else { return false };
        let nominal = create.nominal;
        let timing = schedule.timing();
        let has_it = timing.times(nominal, nominal + Millis(1), 1).times.contains(&nominal);
        if schedule.is_paused() || nominal < link.from || !has_it {
            return false;
        }
        let after = create.spec.occurrence().and_then(|of| of.after);
        let (of, id) = ((spec.project(), spec.group()), self.of.id.occurrence(nominal));
        let wanted = schedule.occurrence(of, id, (nominal, nominal), after);
        // When it expires goes by when it is submitted.
        let expires = create.spec.expires();
        wanted.is_ok_and(|wanted| {
            wanted.spec.with_expires(expires) == create.spec && wanted.due == create.due
        })
    }

    /// What lanes submit is the task of a time that the schedule has then, and no time has two.
    fn occurrences(&self, found: &mut Found) {
        let mut times: BTreeMap<UnixMillis, usize> = BTreeMap::new();
        for create in &self.creates {
            let nominal = create.nominal;
            *times.entry(nominal).or_default() += 1;
            let of = format!("schedule {}: the task of {}", self.index, nominal.0);
            if self.world.broker.slowest_clock(create.at) < nominal {
                found.push(("never early", format!("{of} is submitted at {}", create.at)));
            }
            let links = self.in_force(create);
            if links.iter().any(|link| self.fits(link, create)) {
                continue;
            }
            let links: Vec<_> = links.iter().map(|link| (link.command, link.from)).collect();
            found.push(("one occurrence", format!("{of}, {create:?}, in force {links:?}")));
        }
        // One that has ended and is made anew in that moment may have its last time again. It is one task.
        let most = self.lives().max(1);
        for (nominal, times) in times.into_iter().filter(|(_, times)| *times > most) {
            let of = format!("schedule {}: the task of {}", self.index, nominal.0);
            found.push(("one occurrence", format!("{of} is submitted {times} times")));
        }
    }

    /// Of the versions that follow one the first takes its place, and no other.
    fn changes(&self, found: &mut Found) {
        let told = self.history.iter().map(|(_, timer)| timer.version.offset);
        let told: BTreeSet<Offset> = told.collect();
        let links = self.links.iter().filter(|link| link.spec.is_some());
        let links: BTreeSet<Offset> = links.map(|link| link.command.version.offset).collect();
        for offset in told.symmetric_difference(&links) {
            let what = match links.contains(offset) {
                true => "takes no place, and follows the last one",
                false => "takes a place, and does not follow the last one",
            };
            let what = format!("schedule {}: what stands at {offset:?} {what}", self.index);
            found.push(("changes of schedules", what));
        }
        for command in &self.commands {
            if command.told.contains(&Outcome::Replaced) && !told.contains(&command.version.offset)
            {
                let what = format!("schedule {}: {command:?} was taken", self.index);
                found.push(("changes of schedules", what));
            }
        }
    }

    /// When what was submitted has ended, if it has.
    fn end_of(&self, of: Submitted) -> Option<Time> {
        let end = match of {
            Submitted::Run(run) => self.runs[run].iter().find_map(Life::end),
            Submitted::Task(task) => {
                let mut seen = self.world.tasks.seen.get(&task)?.iter();
                seen.find(|(_, of)| of.state.is_final() && !is_unborn(of))
            }
        };
        end.map(|(at, _)| *at)
    }

    /// Whether what was submitted was begun well before that.
    fn was_begun(&self, of: Submitted, by: UnixMillis) -> bool {
        let slack = Millis(self.world.clocks_apart() + SECOND);
        let is_begun = |(_, timer): &(Time, Timer)| {
            timer.task.is_some_and(|of| of.turn > 0) && timer.since + slack < by
        };
        match of {
            Submitted::Run(run) => {
                self.runs[run].iter().any(|life| life.timers.iter().any(is_begun))
            }
            Submitted::Task(task) => {
                self.world.tasks.seen.get(&task).is_some_and(|seen| seen.iter().any(is_begun))
            }
        }
    }

    /// The overlap that it has from the beginning to the end. One that is made anew knows nothing of the tasks that it had before.
    fn overlap(&self) -> Overlap {
        let first = self.links.iter().find_map(Link::schedule);
        match first.filter(|_| self.lives() <= 1) {
            Some(schedule) => schedule.timing().overlap(),
            None => Overlap::Allow,
        }
    }

    /// What the changelog says of a version.
    fn said_of(&self, version: Version) -> impl Iterator<Item = &(Time, Timer)> {
        self.history.iter().filter(move |(_, timer)| timer.version == version)
    }

    /// The first time that a version has not passed.
    fn upto(&self, link: &Link<'_>) -> UnixMillis {
        let said = self.said_of(link.command.version);
        said.filter_map(|(_, timer)| passed_by(timer)).max().unwrap_or_default().max(link.from)
    }

    /// Each time that is a version's own has a task, but for what its `misfire` and its `overlap` leave out.
    ///
    /// Its own are those from its begin (`Link::from`) to the first one that it has not passed when the next version takes its place.
    /// What has come by then is the next one's; a pause or a deletion leaves it out. How much that may be cannot be seen from outside,
    /// but where all is well: no lane is late by [`GRACE`] there. Schedules whose project was deleted are not looked at: when a lane
    /// heard of that is not seen, either.
    fn none_left_out(&self, found: &mut Found) {
        if self.was_project_deleted() {
            return;
        }
        let lanes_are_well = self.world.plan.tasks.is_some_and(|of| of.lanes_are_well);
        let submitted: BTreeSet<UnixMillis> =
            self.creates.iter().map(|create| create.nominal).collect();
        // Where its life begins in the intake: it knows nothing of the tasks that it had before.
        let mut born = Offset(0);
        for (nth, link) in self.links.iter().enumerate() {
            if let Wrote::Version { follows, .. } = &link.command.what
                && follows.is_none_or(|of| of.has_ended)
            {
                born = link.command.version.offset;
            }
            let said: Vec<&(Time, Timer)> = self.said_of(link.command.version).collect();
            let schedule = link.schedule().filter(|schedule| !schedule.is_paused());
            let (Some(schedule), Some((_, begin))) = (schedule, said.first()) else { continue };
            let timing = schedule.timing();
            let times = |from, to| timing.times(from, to, usize::MAX).times;
            // No time is passed twice: those up to the last task of the version before are not its own.
            let begins = passed_by(begin).unwrap_or_default();
            let last = submitted.range(..begins).next_back().copied().unwrap_or_default();
            let (from, upto) = (link.from.max(last + Millis(1)), self.upto(link));
            for nominal in times(from, upto) {
                if submitted.contains(&nominal) {
                    continue;
                }
                let is_passed = |timer: &Timer| passed_by(timer).is_some_and(|of| of > nominal);
                let passed = said.iter().position(|(_, timer)| is_passed(timer));
                // What is said first of a version is when it begins: no time is left out by that.
                let is_excused = passed.is_some_and(|at| {
                    at > 0
                        && self.may_leave_out(schedule, nominal, said[at], (born, lanes_are_well))
                });
                if !is_excused {
                    let passed = passed.map(|at| said[at]);
                    let what = format!(
                        "schedule {} has no task of {}, which was passed by {passed:?}; in force {:?}",
                        self.index, nominal.0, link.command
                    );
                    found.push(("no time left out", what));
                }
            }
            let change = self.links.get(nth + 1).map(|next| next.command.version.first_appended);
            let change = change.filter(|change| lanes_are_well && upto < *change);
            let late = change.and_then(|change| {
                Some((times(from.max(upto), change - GRACE).first().copied()?, change))
            });
            if let Some((late, change)) = late {
                let what = format!(
                    "schedule {} has not passed {} by its change at {}",
                    self.index, late.0, change.0
                );
                found.push(("no time left out", what));
            }
        }
    }

    /// Whether a time may have no task, by what was written when it was passed. `born`: where the life of its schedule begins.
    fn may_leave_out(
        &self,
        schedule: &Schedule,
        nominal: UnixMillis,
        (at, passed): &(Time, Timer),
        (born, lanes_are_well): (Offset, bool),
    ) -> bool {
        let timing = schedule.timing();
        // Nothing holds a lane up for so long where all is well.
        let is_missed = !lanes_are_well && passed.since - nominal > GRACE;
        let by_misfire = match timing.misfire() {
            Misfire::FireAll => false,
            Misfire::Skip => is_missed,
            // Another one that was passed with it stands for it.
            Misfire::FireOnce => {
                let upto = passed_by(passed).unwrap_or_default();
                is_missed && timing.next_after(nominal).is_some_and(|next| next < upto)
            }
        };
        // With `queue_one` another one may wait for one that is begun.
        let is_in_the_way = |create: &&Create| {
            create.nominal < nominal
                && create.offset > born
                && create.at <= *at
                && self.end_of(create.of).is_none_or(|end| end >= *at)
                && (timing.overlap() == Overlap::Skip || !self.was_begun(create.of, passed.since))
        };
        let may_be_in_the_way = timing.overlap() != Overlap::Allow;
        by_misfire || may_be_in_the_way && self.creates.iter().any(is_in_the_way)
    }

    /// With an overlap other than `allow` no call of a task begins while another one of its schedule is begun and has not ended.
    fn no_overlap(&self, found: &mut Found) {
        if self.overlap() == Overlap::Allow {
            return;
        }
        let drafts = &self.world.tasks.drafts;
        let is_of_it = |call: &&Called| {
            let of = drafts[call.task].of_schedule;
            !call.is_copied && of.is_some_and(|(index, _)| index == self.index)
        };
        let calls: Vec<&Called> = self.world.tasks.calls.iter().filter(is_of_it).collect();
        for (nth, call) in calls.iter().enumerate() {
            let mut before = calls[..nth].iter().filter(|other| other.task != call.task);
            let is_open = |other: &&&Called| {
                self.end_of(Submitted::Task(other.task)).is_none_or(|end| end > call.at)
            };
            if let Some(other) = before.find(is_open) {
                let what = format!("schedule {}: {call:?}, and {other:?}", self.index);
                found.push(("no overlap", what));
            }
        }
    }

    /// Its runs, with the create of each.
    fn runs(&self) -> impl Iterator<Item = (&'a Create, usize)> {
        self.creates.iter().filter_map(|create| match create.of {
            Submitted::Run(run) => Some((*create, run)),
            Submitted::Task(_) => None,
        })
    }

    /// When the first shards of a run were created: that is written with their creates. By when those are read says nothing: lanes of
    /// shards may be taken over, and the run may have ended since then.
    fn begin_of(&self, run: usize) -> Option<Time> {
        self.runs[run].iter().find_map(|life| life.shards.first()).map(|(at, _)| *at)
    }

    /// Whether the lane could read the create that one says to be the last before it. If not, it did not know whether its task was open.
    fn has_read_before(&self, create: &Create) -> bool {
        let after = create.spec.occurrence().and_then(|of| of.after);
        let other = after.and_then(|after| self.creates.iter().find(|of| of.nominal == after));
        let place = self.commands.first().map(|command| command.place);
        let hidden = place.zip(other).filter(|(at, of)| !self.world.was_readable(*at, of.offset));
        hidden.is_none()
    }

    /// The same for runs: none has shards before the one before it has ended. And with `skip` there is none, if its lane could know.
    fn no_overlap_of_runs(&self, found: &mut Found) {
        let since = |create: &Create, run: usize| match self.overlap() {
            Overlap::Allow => None,
            Overlap::Skip if self.has_read_before(create) => {
                self.runs[run].first()?.timers.first().map(|(at, _)| *at)
            }
            Overlap::Skip | Overlap::QueueOne => self.begin_of(run),
        };
        let since = self
            .runs()
            .filter_map(|(create, run)| Some((since(create, run)?, create.nominal, run)));
        let mut since: Vec<(Time, UnixMillis, usize)> = since.collect();
        since.sort_unstable();
        for (nth, (at, nominal, _)) in since.iter().enumerate() {
            let is_open = |(.., run): &&(Time, UnixMillis, usize)| {
                self.end_of(Submitted::Run(*run)).is_none_or(|end| end > *at)
            };
            if let Some((_, other, run)) = since[..nth].iter().find(is_open) {
                let what = format!(
                    "schedule {}: the run of {} is there at {at}, and run {run} of {} ends at {:?}",
                    self.index,
                    nominal.0,
                    other.0,
                    self.end_of(Submitted::Run(*run))
                );
                found.push(("no overlap", what));
            }
        }
    }

    /// Where all is well, a run that waits for another one begins soon after that has ended.
    fn goes_on(&self, found: &mut Found) {
        let lanes_are_well = self.world.plan.tasks.is_some_and(|of| of.lanes_are_well);
        if !lanes_are_well || self.overlap() == Overlap::Allow || self.was_project_deleted() {
            return;
        }
        let ladder = &self.world.plan.setup.topics.ladder;
        let within = ladder.tiers().iter().map(|tier| tier.hold.0).min().unwrap_or_default();
        let within = within + BEGINS_WITHIN;
        for (create, run) in self.runs() {
            let after = create.spec.occurrence().and_then(|of| of.after);
            let other = after.and_then(|after| self.runs().find(|(of, _)| of.nominal == after));
            let ended = other.and_then(|(other, _)| self.end_of(other.of));
            let due = create.due.0.saturating_sub(EPOCH_MS);
            let Some(ended) = ended.map(|ended| ended.max(create.at).max(due)) else { continue };
            // It may have ended while it waited.
            let goes_on = self.begin_of(run).or_else(|| self.end_of(create.of));
            if goes_on.is_none_or(|at| at > ended + within) {
                let what = format!(
                    "schedule {}: the run of {} waited until {ended}, and begins at {goes_on:?}",
                    self.index, create.nominal.0
                );
                found.push(("on time", what));
            }
        }
    }

    /// It is finished, or somebody has deleted it or its project.
    fn ends(&self, found: &mut Found) {
        let was_deleted = self.was_project_deleted();
        let has_ended = match self.history.last().map(|(_, timer)| timer) {
            // Its create was refused.
            None => was_deleted,
            Some(timer) => match timer.state {
                TimerState::Delivered | TimerState::Cancelled => true,
                TimerState::Dead => timer.code == Some(Code::ProjectDeleted),
                TimerState::Delay | TimerState::Expired | TimerState::Lost => false,
            },
        };
        if !self.commands.is_empty() && !has_ended {
            let last = self.history.last();
            found.push(("liveness", format!("schedule {} does not end: {last:?}", self.index)));
        }
    }
}
