//! Schedules: which of their times have a task, by which definition, and that no more of their tasks are open than may be.
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

use crate::broker::Time;
use crate::checkers::{Found, is_unborn, ledger};
use crate::world::{Called, Command, Create, Planned, World, Wrote};

pub(super) fn check(world: &World, found: &mut Found) {
    for (index, history) in histories(world).into_iter().enumerate() {
        let case = Case::new(world, index, history);
        case.occurrences(found);
        case.changes(found);
        case.none_left_out(found);
        case.no_overlap(found);
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
}

impl<'a> Case<'a> {
    fn new(world: &'a World, index: usize, history: History) -> Self {
        let all = &world.tasks.schedules;
        let commands = all.commands.iter().filter(|command| command.schedule == index);
        let mut commands: Vec<&Command> = commands.collect();
        commands.sort_by_key(|command| command.version.offset);
        let creates = all.creates.iter().filter(|create| create.schedule == index).collect();
        let of = &all.planned[index];
        let mut case = Self { world, index, of, history, commands, links: Vec::new(), creates };
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
                    let from = match links.last() {
                        None => *due,
                        // What fell into a pause is not made up for.
                        Some(before) if before.spec.is_none() || before.is_paused() => {
                            appended + Millis(1)
                        }
                        Some(_) => UnixMillis(0),
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
        wanted.is_ok_and(|wanted| wanted.spec == create.spec && wanted.due == create.due)
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

    /// When a task has ended, if it has.
    fn end_of(&self, task: usize) -> Option<Time> {
        let seen = self.world.tasks.seen.get(&task)?;
        let end = seen.iter().find(|(_, of)| of.state.is_final() && !is_unborn(of));
        end.map(|(at, _)| *at)
    }

    /// Of a schedule that nobody has changed each time has a task, but for what its `misfire` and its `overlap` leave out.
    fn none_left_out(&self, found: &mut Found) {
        let [link] = &self.links[..] else { return };
        let last = self.history.last().map(|(_, timer)| timer.state);
        let Some(schedule) = link.schedule().filter(|_| last == Some(TimerState::Delivered)) else {
            return;
        };
        if self.was_project_deleted() {
            return;
        }
        let timing = schedule.timing();
        let lanes_are_well = self.world.plan.tasks.is_some_and(|of| of.lanes_are_well);
        let times = timing.times(link.from, UnixMillis(u64::MAX), usize::MAX).times;
        let submitted: BTreeSet<UnixMillis> =
            self.creates.iter().map(|create| create.nominal).collect();
        for nominal in times.iter().filter(|nominal| !submitted.contains(*nominal)) {
            // What was written when that time was passed.
            let has_passed = |timer: &Timer| {
                timer.state.is_final() || timer.task.is_some_and(|of| of.next_at > *nominal)
            };
            let Some((at, passed)) = self.history.iter().find(|(_, timer)| has_passed(timer))
            else {
                continue;
            };
            // Nothing holds a lane up for so long where all is well.
            let is_missed = !lanes_are_well && passed.since - *nominal > GRACE;
            let by_misfire = match timing.misfire() {
                Misfire::FireAll => false,
                Misfire::Skip => is_missed,
                Misfire::FireOnce => is_missed && times.last() != Some(nominal),
            };
            let is_open = |create: &&Create| {
                create.nominal < *nominal
                    && create.at <= *at
                    && self.end_of(create.task).is_none_or(|end| end >= *at)
            };
            let by_overlap = timing.overlap() != Overlap::Allow && self.creates.iter().any(is_open);
            if !by_misfire && !by_overlap {
                let what = format!(
                    "schedule {} has no task of {}, which was passed at {at}: {passed:?}",
                    self.index, nominal.0
                );
                found.push(("no time left out", what));
            }
        }
    }

    /// With an overlap other than `allow` no call of a task begins while another one of its schedule is begun and has not ended.
    fn no_overlap(&self, found: &mut Found) {
        let mut schedules = self.links.iter().filter_map(Link::schedule);
        let may_overlap = schedules.any(|of| of.timing().overlap() == Overlap::Allow);
        // One that is made anew knows nothing of the tasks that it had before.
        if may_overlap || self.lives() > 1 {
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
            let is_open =
                |other: &&&Called| self.end_of(other.task).is_none_or(|end| end > call.at);
            if let Some(other) = before.find(is_open) {
                let what = format!("schedule {}: {call:?}, and {other:?}", self.index);
                found.push(("no overlap", what));
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
