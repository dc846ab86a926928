//! Runs: who makes, cancels and retries them, and which shards their lanes submit.
//!
//! Nobody draws the shards of a run, nor the runs that schedules submit. Each is known from when its create stands in the intake.

use std::collections::BTreeMap;

use waterclock::engine::header::{self, TimerAction};
use waterclock::engine::messages::{Answer, Outcome};
use waterclock::engine::sealed::{self, Follows, Submission};
use waterclock::engine::task::id::TaskId;
use waterclock::engine::task::spec::Spec;
use waterclock::engine::timers::{Timer, TimerId, TimerState, Version};
use waterclock::engine::{Record, UnixMillis};

use super::schedules::Planned;
use super::{Draft, settings};
use crate::broker::{EPOCH_MS, Place, Time};
use crate::chance::Chance;
use crate::network::{Act, Scheduled};
use crate::plan::{MINUTE, Plan, SECOND};
use crate::world::World;

/// Most shards of a run, and its longest deadline.
const LARGEST: (u64, Time) = (40, 3 * MINUTE);
/// The same of a run that a schedule submits: it has many of them.
const LARGEST_OF_SCHEDULE: (u64, Time) = (6, MINUTE);
/// Percent of the runs of a schedule that somebody cancels.
const CANCELLED: u32 = 15;
/// Bytes of large bodies: so some shards are created in one transaction, and others in the next.
const LARGE: usize = 24 << 10;
/// Whom shards call: the fields for that.
const CALLEES: [&str; 4] = [
    r#""service":"one","path":"/run""#,
    r#""service":"two","path":"/run""#,
    r#""url":"http://a.example/run""#,
    r#""url":"http://b.example/run""#,
];

/// What somebody does to a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunAct {
    /// It is asked for, or asked for again.
    Create,
    /// The record that made it first is written once more.
    Replay,
    Cancel,
    /// It is made again, if it has failed or has expired by then.
    Retry,
}

/// What a run is, but for its name.
#[derive(Clone, Debug)]
pub struct Shape {
    pub project: &'static str,
    pub shards: u32,
    pub stops: bool,
    /// The topic that its shards go to; `None`: they make calls.
    pub topic: Option<&'static str>,
    /// Retries that its shards may have.
    pub retries: u32,
    /// In seconds, from its first shards on.
    pub deadline: Time,
    tells: bool,
    /// The fields of its shards that say to whom they go.
    to: String,
    /// Bytes behind what its shards are sent.
    behind: usize,
}

impl Shape {
    fn draw(chance: &mut Chance, (shards_max, deadline_max): (u64, Time)) -> Self {
        let shards = chance.spread(1, shards_max) as u32;
        let stops = chance.percent(35);
        let topic = chance.percent(60).then(|| *chance.pick(&["t0", "t1"]));
        let project = match topic {
            Some(_) => settings::WRITER,
            None => *chance.pick(&settings::CALLERS),
        };
        let retries = chance.between(0, 2) as u32;
        // Large ones are created some at a time.
        let behind = if chance.percent(25) { LARGE } else { 0 };
        let to = match topic {
            Some(topic) => {
                let (deadline, heartbeat) = (chance.between(5, 30), chance.between(2, 5));
                format!(
                    r#""type":"kafka","topic":"{topic}","feedback":{{"deadline":{deadline},"heartbeat":{heartbeat}}}"#
                )
            }
            None => format!(r#""type":"http",{}"#, chance.pick(&CALLEES)),
        };
        // Some end before their shards can.
        let deadline = chance.spread(3, deadline_max / SECOND);
        let tells = chance.percent(60);
        Self { project, shards, stops, topic, retries, deadline, tells, to, behind }
    }

    /// That of the runs of a schedule.
    pub(super) fn of_schedule(chance: &mut Chance) -> Self {
        Self::draw(chance, LARGEST_OF_SCHEDULE)
    }

    /// It as JSON, but for its project. What its shards are sent begins with `body`.
    pub(super) fn fields(&self, body: &str) -> String {
        let Self { shards, deadline, retries, to, .. } = self;
        let stop = if self.stops { "stop" } else { "continue" };
        let tells = if self.tells { r#","on_finished":{"topic":"t2"}"# } else { "" };
        let value = if self.topic.is_some() { "value" } else { "body" };
        let behind = ".".repeat(self.behind);
        format!(
            r#""type":"run","shards":{shards},"deadline":{deadline},"on_shard_failure":"{stop}"{tells},"task":{{{to},"{value}":"{body}{behind}","retry":{{"count":{retries},"interval":1}}}}"#
        )
    }
}

/// A run that somebody is to make, or that a schedule has submitted.
#[derive(Clone, Debug)]
pub struct PlannedRun {
    pub id: TaskId,
    pub timer_id: TimerId,
    pub spec: Spec,
    pub shape: Shape,
    /// When it is due.
    pub due: Time,
    /// Past it, it is not begun.
    pub expires: Option<Time>,
    /// A schedule has submitted it.
    is_of_schedule: bool,
    /// What endpoints of its shards do is drawn from that.
    pub luck: u64,
    acts: Vec<(Time, RunAct)>,
}

/// What somebody has written about a run.
#[derive(Clone, Debug)]
pub struct RunCommand {
    pub run: usize,
    pub act: RunAct,
    /// The version that a retry follows.
    pub follows: Option<Version>,
    pub place: Place,
    /// Where it stands: this is the version that it makes, if it makes one.
    pub version: Version,
    /// What its client is told, each time, and when.
    pub told: Vec<(Time, Outcome)>,
}

/// The create of a shard, as it stands in the intake.
#[derive(Clone, Debug)]
pub struct Shard {
    pub run: usize,
    /// The version of its run, as its id has it.
    pub version: Version,
    pub index: u32,
    /// Its place in the list of tasks.
    pub task: usize,
}

/// All that is known of runs in a world.
#[derive(Debug, Default)]
pub struct Runs {
    pub planned: Vec<PlannedRun>,
    /// In the order in which they were written.
    pub commands: Vec<RunCommand>,
    /// One for each create that stands in an intake.
    pub shards: Vec<Shard>,
    /// Shards that lanes cancel, by their ids, and when that was written first.
    pub cancels: BTreeMap<String, Time>,
    /// The record that made each first.
    first: BTreeMap<usize, Record>,
    /// What the changelog says of each now.
    shown: BTreeMap<usize, Timer>,
}

impl Runs {
    /// Draws them. Their luck is their own: nothing else of the world is another one by that.
    pub(super) fn draw(plan: &Plan) -> Self {
        let Some(seed) = plan.tasks.and_then(|of| of.runs) else { return Self::default() };
        let mut chance = Chance::new(seed ^ 0x7275_6e73);
        let count = chance.between(1, 3) as usize;
        let planned = (0..count).map(|index| planned(plan, chance.split(), index)).collect();
        Self { planned, ..Self::default() }
    }

    /// When the last of them is due, and nobody does anything to one any more.
    pub(super) fn ends(&self) -> Option<Time> {
        let times = |of: &PlannedRun| of.acts.iter().map(|(at, _)| *at).max().max(Some(of.due));
        self.planned.iter().filter_map(times).max()
    }

    /// The changelog says this of a timer, which may be a run.
    pub(super) fn see(&mut self, timer: Timer) {
        let index = self.position(&timer.timer_id);
        // What is said of a copy that was refused in another lane says nothing of the run.
        let is_news = |index: &usize| {
            timer.ended().is_some() || !timer.state.is_final() || !self.shown.contains_key(index)
        };
        if let Some(index) = index.filter(is_news) {
            self.shown.insert(index, timer);
        }
    }

    /// The version of a run that is pending, by what the changelog says.
    pub fn pending(&self, timer_id: &TimerId) -> Option<Version> {
        let run = self.position(timer_id)?;
        let timer = self.shown.get(&run).filter(|timer| !timer.state.is_final())?;
        Some(timer.version)
    }

    /// Whether somebody has made it, or a schedule.
    pub fn is_made(&self, run: usize) -> bool {
        self.planned[run].is_of_schedule || self.commands.iter().any(|of| of.run == run)
    }

    /// Where it stands among all of them.
    pub(super) fn position(&self, timer_id: &TimerId) -> Option<usize> {
        self.planned.iter().position(|of| of.timer_id == *timer_id)
    }

    /// A run as the changelog has it now.
    pub fn shown(&self, run: usize) -> Option<&Timer> {
        self.shown.get(&run)
    }
}

fn planned(plan: &Plan, mut chance: Chance, index: usize) -> PlannedRun {
    let (from, to) = plan.submits;
    let at = chance.between(from, to);
    let due = at + chance.between(0, plan.delay_max.min(30 * SECOND));
    let shape = Shape::draw(&mut chance, LARGEST);
    let project = shape.project;
    let id = TaskId::of_request(project, &format!("run{index}"), None).expect("short");
    let fields = shape.fields(id.as_str());
    let json = format!(r#"{{"project":"{project}","group":"g",{fields}}}"#);
    let spec = Spec::parse(json.as_bytes()).unwrap_or_else(|wrongs| panic!("{json}: {wrongs:?}"));
    let until = due + shape.deadline * SECOND;
    let mut acts = vec![(at, RunAct::Create)];
    if chance.percent(20) {
        acts.push((chance.between(at, until), RunAct::Create));
    }
    if chance.percent(20) {
        acts.push((chance.between(at, until), RunAct::Replay));
    }
    if chance.percent(35) {
        // Often about when its shards are created.
        let cancel = match chance.percent(50) {
            true => (due + chance.between(0, SECOND)).saturating_sub(200).max(at),
            false => chance.between(at, until),
        };
        acts.push((cancel, RunAct::Cancel));
    }
    if chance.percent(60) {
        // Somebody who waits for its end tries again and again.
        for _ in 0..chance.between(1, 20) {
            acts.push((chance.between(due, until + 20 * SECOND), RunAct::Retry));
        }
    }
    PlannedRun {
        timer_id: TimerId::task(&id),
        id,
        spec,
        shape,
        due,
        expires: None,
        is_of_schedule: false,
        luck: chance.between(0, u64::MAX),
        acts,
    }
}

/// The run of a nominal time of a schedule, as its create stands in the intake since then.
fn of_schedule(
    (planned, shape): (&Planned, &Shape),
    nominal: UnixMillis,
    (spec, due, expires): (Spec, UnixMillis, Option<UnixMillis>),
    at: Time,
) -> PlannedRun {
    let luck = planned.luck ^ nominal.0;
    let mut chance = Chance::new(luck);
    let since_start = |at: UnixMillis| at.0.saturating_sub(EPOCH_MS);
    let mut acts = Vec::new();
    if chance.percent(CANCELLED) {
        // Often about when its shards are created.
        let soon = chance.percent(50);
        let within = if soon { SECOND } else { shape.deadline * SECOND };
        acts.push((at + chance.between(0, within), RunAct::Cancel));
    }
    let id = planned.id.occurrence(nominal);
    PlannedRun {
        timer_id: TimerId::task(&id),
        id,
        spec,
        shape: shape.clone(),
        due: since_start(due),
        expires: expires.map(since_start),
        is_of_schedule: true,
        luck,
        acts,
    }
}

/// The shard that an id is of: the place of its run among these, the version of that, and which.
fn shard_of(planned: &[PlannedRun], id: &TaskId) -> Option<(usize, Version, u32)> {
    let (run, (first_appended, offset), index) = id.as_shard()?;
    let at = planned.iter().position(|of| of.id == run)?;
    Some((at, Version { first_appended, offset }, index))
}

impl World {
    /// Whether a run is made in this one: they are counted behind the schedules.
    fn is_run_planned(&self, index: usize) -> bool {
        let place = self.tasks.asked + self.tasks.schedules.planned.len() + index;
        self.plan.only.as_ref().is_none_or(|only| only.contains(&place))
    }

    /// What is done to runs, and when.
    pub(super) fn acts_on_runs(&self) -> Vec<(Time, usize, RunAct)> {
        let planned = self.tasks.runs.planned.iter().enumerate();
        let planned = planned.filter(|(index, _)| self.is_run_planned(*index));
        let acts =
            planned.flat_map(|(index, of)| of.acts.iter().map(move |(at, act)| (*at, index, *act)));
        acts.collect()
    }

    /// Does what the API does.
    pub(super) fn act_on_run(&mut self, run: usize, act: RunAct) {
        self.follow_tasks();
        let now = self.api_now();
        let planned = &self.tasks.runs.planned[run];
        let (id, spec) = (planned.id.clone(), planned.spec.clone());
        let due = UnixMillis(EPOCH_MS + planned.due);
        let submission = |due| Submission {
            id: &id,
            spec: &spec,
            due,
            expires: None,
            key: None,
            value: None,
            headers: &[],
        };
        let key = self.plan.setup.key.clone();
        let shown = self.tasks.runs.shown.get(&run).cloned();
        let (record, follows) = match act {
            RunAct::Create => {
                self.count("runs made");
                let record = sealed::submit(&key, now, &submission(due));
                self.tasks.runs.first.entry(run).or_insert_with(|| record.clone());
                (record, None)
            }
            RunAct::Replay => {
                let Some(record) = self.tasks.runs.first.get(&run).cloned() else { return };
                self.count("runs replayed");
                (record, None)
            }
            RunAct::Cancel if self.tasks.runs.is_made(run) => {
                self.count("runs to be cancelled");
                (sealed::cancel(&key, now, &id), None)
            }
            RunAct::Retry
                if let Some(timer) = &shown
                    && matches!(timer.state, TimerState::Dead | TimerState::Expired)
                    && timer.ended().is_some() =>
            {
                let version = timer.version;
                self.count("runs to be retried");
                let follows = Follows { version, has_ended: true };
                let record = sealed::change_schedule(&key, now, follows, &submission(now));
                (record, Some(version))
            }
            _ => return,
        };
        let lane = id.lane_of(self.plan.setup.lanes);
        let place = Place { topic: self.lane_topics[0], partition: i32::from(lane.0) };
        self.stirred = true;
        match self.broker.produce(self.at, None, place, record) {
            Ok(offset) => {
                let first_appended = self.broker.clock(self.broker.leader(place), self.at);
                let version = Version { first_appended, offset };
                let told = Vec::new();
                let command = RunCommand { run, act, follows, place, version, told };
                self.tasks.runs.commands.push(command);
            }
            Err(refusal) => self.breach("model", format!("run {run} is refused: {refusal:?}")),
        }
    }

    /// What became of a command about a run may be told; `false`: the answer is that of another command.
    pub(super) fn run_answered(&mut self, answer: &Answer) -> bool {
        let (place, at) = (self.place(answer.source), self.at);
        let is_it = |of: &&mut RunCommand| (of.place, of.version.offset) == (place, answer.offset);
        let Some(command) = self.tasks.runs.commands.iter_mut().find(is_it) else { return false };
        command.told.push((at, answer.outcome));
        let is_of_schedule = self.tasks.runs.planned[command.run].is_of_schedule;
        self.count(match answer.outcome {
            Outcome::Replaced => "retries of runs taken",
            Outcome::Superseded => "retries of runs outrun",
            Outcome::Cancelled if is_of_schedule => "runs of schedules cancelled",
            Outcome::Cancelled => "runs cancelled",
            _ => "commands about runs with another answer",
        });
        true
    }

    /// A schedule has submitted a run, which stands in the intake since then.
    pub(super) fn take_run(
        &mut self,
        (schedule, nominal): (usize, UnixMillis),
        terms: (Spec, UnixMillis, Option<UnixMillis>),
        at: Time,
    ) -> usize {
        let planned = &self.tasks.schedules.planned[schedule];
        let timer_id = TimerId::task(&planned.id.occurrence(nominal));
        if let Some(run) = self.tasks.runs.position(&timer_id) {
            return run;
        }
        let shape = planned.shape.as_ref().expect("its tasks are runs");
        let planned = of_schedule((planned, shape), nominal, terms, at);
        let run = self.tasks.runs.planned.len();
        for (at, act) in planned.acts.clone() {
            self.push(at, Scheduled::Task(Act::Run(run, act)));
        }
        self.count("runs of schedules");
        let after = planned.spec.occurrence().and_then(|of| of.after);
        let other = after.map(|after| {
            TimerId::task(&self.tasks.schedules.planned[schedule].id.occurrence(after))
        });
        let runs = &self.tasks.runs;
        let other = other.and_then(|other| runs.shown(runs.position(&other)?));
        if other.is_some_and(|other| !other.state.is_final()) {
            self.count("runs of schedules that wait for others");
        }
        self.tasks.runs.planned.push(planned);
        run
    }

    /// A record of the intake may be the create of a shard, or the cancel of one.
    pub(super) fn take_shard(&mut self, at: Time, record: &Record) {
        let Ok(directive) = header::read(record.headers()) else { return };
        let id = directive.id.and_then(|id| std::str::from_utf8(id).ok());
        let id = id.and_then(|id| TaskId::parse(id).ok());
        let Some(id) = id.filter(|id| id.as_shard().is_some()) else { return };
        match directive.action {
            TimerAction::Cancel => {
                self.tasks.runs.cancels.entry(id.as_str().to_owned()).or_insert(at);
                return;
            }
            TimerAction::Create => {}
            TimerAction::Replace | TimerAction::Result => return,
        }
        let spec = directive.task.and_then(|json| Spec::parse(json).ok());
        let of = shard_of(&self.tasks.runs.planned, &id).zip(spec);
        let Some(((run, version, index), spec)) = of else {
            return self.breach("no phantom", format!("{id} is of no run"));
        };
        let planned = &self.tasks.runs.planned[run];
        let said = spec.shard().map(|of| (of.index, of.count));
        let shards = planned.shape.shards;
        if said != Some((index, shards)) {
            let what = format!("{id} says that it is {said:?} of {shards}");
            return self.breach("shards", what);
        }
        let name = TimerId::task(&id);
        let task = match self.tasks.of.get(&name) {
            Some(task) => *task,
            None => {
                self.count("shards");
                let body = record.value().unwrap_or_default();
                let planned = &self.tasks.runs.planned[run];
                let draft = Draft::of_shard(planned, id, index, spec, body);
                let task = self.tasks.drafts.len();
                self.tasks.drafts.push(draft);
                self.tasks.of.insert(name, task);
                task
            }
        };
        self.tasks.runs.shards.push(Shard { run, version, index, task });
    }

    /// Whether each run that was made has ended.
    pub(super) fn are_runs_over(&self) -> bool {
        let Runs { planned, shown, .. } = &self.tasks.runs;
        let is_over = |run: usize| {
            !self.tasks.runs.is_made(run)
                || shown.get(&run).is_some_and(|timer| timer.state.is_final())
        };
        (0..planned.len()).all(is_over)
    }
}
