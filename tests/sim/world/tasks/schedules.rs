//! Schedules: who makes, changes, pauses and deletes them, and which tasks they submit.
//!
//! Nobody draws the tasks of a schedule, of which some are runs. Each is known from when its create stands in the intake.

use std::collections::BTreeMap;

use waterclock::engine::header::TimerAction;
use waterclock::engine::messages::{Answer, Outcome};
use waterclock::engine::sealed::{self, Follows, Submission};
use waterclock::engine::state::State;
use waterclock::engine::task::id::TaskId;
use waterclock::engine::task::spec::Spec;
use waterclock::engine::timers::{Timer, TimerId, Version};
use waterclock::engine::{Millis, Offset, Record, UnixMillis, header};

use super::runs::Shape;
use super::{Draft, settings};
use crate::broker::{EPOCH_MS, Place, Time};
use crate::chance::Chance;
use crate::plan::{MINUTE, Plan, SECOND};
use crate::world::World;

/// The longest period.
const EVERY_MAX: Time = 10 * SECOND;
/// By whose clocks patterns go.
const ZONES: [&str; 3] = ["Europe/Berlin", "America/New_York", "Asia/Kathmandu"];
/// Whom tasks of schedules call: the fields for that, up to the last part of the path.
const CALLEES: [&str; 4] = [
    r#""service":"one","path":"/"#,
    r#""service":"two","path":"/"#,
    r#""url":"http://a.example/"#,
    r#""url":"http://b.example/"#,
];

/// What a schedule goes by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Rule {
    /// A period that is counted from its start.
    #[default]
    FromStart,
    /// A period that is counted from the epoch.
    Aligned,
    /// A pattern of seconds about as far apart, on the clock of this zone.
    Cron(&'static str),
}

/// When a schedule has times, beside its period, start and count.
#[derive(Clone, Copy, Debug, Default)]
struct More {
    rule: Rule,
    end: Option<Time>,
    jitter: Time,
}

impl More {
    /// How much later than `count` periods after its start its last task may be due.
    fn longer(&self, every: Time) -> Time {
        let first = if self.rule == Rule::FromStart { 0 } else { every };
        first + self.jitter
    }
}

/// What may become another one of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Its period.
    pub every: Time,
    /// The last part of the path that is called, or of what shards are sent.
    path: u64,
    is_paused: bool,
}

/// What somebody does to a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScheduleAct {
    /// It is made, or made anew.
    Put,
    /// The record that made it first is written once more.
    Replay,
    Pause,
    Resume,
    /// It calls another path.
    Path(u64),
    /// It has another period.
    Every(Time),
    /// A task of it now.
    Trigger,
    Delete,
}

impl ScheduleAct {
    /// What these terms become by it.
    fn applied_to(self, terms: Terms) -> Terms {
        match self {
            Self::Pause => Terms { is_paused: true, ..terms },
            Self::Resume => Terms { is_paused: false, ..terms },
            Self::Path(path) => Terms { path, ..terms },
            Self::Every(every) => Terms { every, ..terms },
            Self::Put | Self::Replay | Self::Trigger | Self::Delete => terms,
        }
    }
}

/// A schedule that somebody is to make.
#[derive(Clone, Debug)]
pub struct Planned {
    pub id: TaskId,
    timer_id: TimerId,
    pub project: &'static str,
    name: String,
    callee: &'static str,
    /// Its tasks are such runs.
    pub shape: Option<Shape>,
    /// Its first time, and how many it has.
    start: Time,
    count: u64,
    more: More,
    misfire: &'static str,
    overlap: &'static str,
    expires: Option<Millis>,
    /// Retries that its tasks may have.
    pub retries: u32,
    /// A call takes about as long as a period.
    pub is_slow: bool,
    /// What its endpoint does is drawn from that.
    pub luck: u64,
    /// What it is at first.
    pub terms: Terms,
    /// What is done to it, and when.
    acts: Vec<(Time, ScheduleAct)>,
}

impl Planned {
    fn spec(&self, terms: Terms) -> Spec {
        let Self { id, project, name, callee, count, misfire, overlap, retries, .. } = self;
        let Terms { every, path, is_paused } = terms;
        let start = EPOCH_MS + self.start;
        let rule = match self.more.rule {
            Rule::FromStart => format!(r#""every":"{}""#, Millis(every)),
            Rule::Aligned => format!(r#""every":"{}","aligned":true"#, Millis(every)),
            Rule::Cron(zone) => {
                format!(r#""cron":"*/{} * * * * *","zone":"{zone}""#, every / SECOND)
            }
        };
        let end = self.more.end.map(|end| format!(r#","end":{}"#, EPOCH_MS + end));
        let end = end.unwrap_or_default();
        let jitter = Millis(self.more.jitter);
        let expires = self.expires.map(|expires| format!(r#","expires":"{expires}""#));
        let expires = expires.unwrap_or_default();
        let task = match &self.shape {
            Some(shape) => shape.fields(&format!("{id}/{path}")),
            None => format!(
                r#""type":"http",{callee}{path}","retry":{{"count":{retries},"interval":1}},"body":"{id}""#
            ),
        };
        let json = format!(
            r#"{{"type":"schedule","project":"{project}","group":"g","name":"{name}",{rule},"start":{start}{end},"count":{count},"jitter":"{jitter}","misfire":"{misfire}","overlap":"{overlap}"{expires},"paused":{is_paused},"task":{{{task}}}}}"#
        );
        Spec::parse(json.as_bytes()).expect("the schedule is sound")
    }

    /// When its last time is at the latest, and nobody does anything to it any more.
    fn ends(&self) -> Time {
        let every = |act: &ScheduleAct| act.applied_to(self.terms).every;
        let longest = self.acts.iter().map(|(_, act)| every(act)).max();
        let longest = longest.unwrap_or_default();
        let last = self.start + (self.count - 1) * longest + self.more.longer(longest);
        self.acts.iter().map(|(at, _)| *at).max().unwrap_or_default().max(last)
    }
}

/// What somebody has written about a schedule.
#[derive(Clone, Debug)]
pub struct Command {
    pub schedule: usize,
    pub what: Wrote,
    pub place: Place,
    /// Where it stands: this is the version that it makes, if it makes one.
    pub version: Version,
    /// What its client is told, each time.
    pub told: Vec<Outcome>,
}

/// What a command says.
#[derive(Clone, Debug)]
pub enum Wrote {
    /// This is what the schedule is to be, in the place of another version or of none.
    Version {
        follows: Option<Follows>,
        terms: Terms,
        spec: Box<Spec>,
        /// Its first time, as its client found it.
        due: UnixMillis,
    },
    Delete,
}

/// What a lane has submitted for a nominal time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Submitted {
    /// A task: its place in the list of tasks.
    Task(usize),
    /// A run: its place in the list of runs.
    Run(usize),
}

/// A lane has submitted the task of a nominal time.
#[derive(Clone, Debug)]
pub struct Create {
    pub schedule: usize,
    pub of: Submitted,
    pub nominal: UnixMillis,
    /// Where it stands in the intake, and since when.
    pub at: Time,
    pub offset: Offset,
    pub spec: Spec,
    pub due: UnixMillis,
}

/// All that is known of schedules in a world.
#[derive(Debug, Default)]
pub struct Schedules {
    pub planned: Vec<Planned>,
    /// In the order in which they were written.
    pub commands: Vec<Command>,
    /// Lane by lane as they stand there.
    pub creates: Vec<Create>,
    /// The record that made each first, and what it says.
    first: BTreeMap<usize, (Record, Wrote)>,
    /// What the changelog says of each now.
    shown: BTreeMap<usize, Timer>,
    /// How far each lane's intake was looked at.
    looked: BTreeMap<i32, Offset>,
    /// When it was looked last whether one stays paused.
    swept: Time,
}

impl Schedules {
    /// Draws them. Their luck is their own: nothing else of the world is another one by that.
    pub(super) fn draw(plan: &Plan) -> Self {
        let Some(seed) = plan.tasks.and_then(|of| of.schedules) else { return Self::default() };
        let mut chance = Chance::new(seed ^ 0x7363_6865_6475_6c65);
        let count = chance.between(1, 4) as usize;
        let planned = (0..count).map(|index| planned(plan, chance.split(), index)).collect();
        Self { planned, ..Self::default() }
    }

    /// When the last time of any of them is at the latest.
    pub(super) fn ends(&self) -> Option<Time> {
        self.planned.iter().map(Planned::ends).max()
    }

    /// The changelog says this of a timer, which may be a schedule.
    pub(super) fn see(&mut self, timer: Timer) {
        let index = self.planned.iter().position(|of| of.timer_id == timer.timer_id);
        // What is said of a copy that was refused in another lane says nothing of the schedule.
        let is_news = |index: &usize| !was_refused(&timer) || !self.shown.contains_key(index);
        if let Some(index) = index.filter(is_news) {
            self.shown.insert(index, timer);
        }
    }

    /// A schedule as its users see it. One that was refused when it came never was one.
    fn shown(&self, index: usize) -> Option<&Timer> {
        self.shown.get(&index).filter(|timer| !was_refused(timer))
    }

    /// The terms of a version.
    fn terms_of(&self, index: usize, version: Version) -> Option<Terms> {
        let mut of_it = self.commands.iter().filter(|command| command.schedule == index);
        of_it.find(|command| command.version == version).and_then(|command| match command.what {
            Wrote::Version { terms, .. } => Some(terms),
            Wrote::Delete => None,
        })
    }
}

/// Whether it never was pending.
fn was_refused(timer: &Timer) -> bool {
    timer.state.is_final() && timer.ended().is_none()
}

fn planned(plan: &Plan, mut chance: Chance, index: usize) -> Planned {
    let (from, to) = plan.submits;
    let at = chance.between(from, to);
    // Some are made when their first times are past.
    let start = (at + chance.between(0, 12 * SECOND)).saturating_sub(2 * SECOND);
    let count = chance.spread(3, 25);
    let every = chance.between(SECOND, EVERY_MAX);
    let misfire = *chance.pick(&["fire_once", "skip", "fire_all"]);
    let overlap = *chance.pick(&["allow", "skip", "queue_one"]);
    let expires = chance.percent(30).then(|| Millis(chance.spread(SECOND, 30 * SECOND)));
    let has_runs = plan.tasks.is_some_and(|of| of.schedules_of_runs) && chance.percent(60);
    let shape = has_runs.then(|| Shape::of_schedule(&mut chance));
    let project = match &shape {
        Some(shape) => shape.project,
        None => *chance.pick(&settings::CALLERS),
    };
    let callee = *chance.pick(&CALLEES);
    let retries = chance.between(0, 2) as u32;
    let is_slow = chance.percent(if overlap == "allow" { 30 } else { 70 });
    let name = format!("s{index}");
    let id = TaskId::schedule(project, &name).expect("they are names");
    let until = start.max(at) + count * every;
    let mut acts = acts(&mut chance, at, until);
    let luck = chance.between(0, u64::MAX);
    // Drawn by themselves: other worlds are as they were.
    let mut chance = Chance::new(luck ^ 0x6d6f_7265);
    let more = match plan.tasks.is_some_and(|of| of.more_of_schedules) {
        true => more(&mut chance, start, count * every),
        false => More::default(),
    };
    // A run that is asked for by hand is as any other.
    if plan.tasks.is_some_and(|of| of.more_of_schedules) && shape.is_none() {
        let times = chance.between(0, 3);
        acts.extend((0..times).map(|_| (chance.between(at, until), ScheduleAct::Trigger)));
    }
    Planned {
        timer_id: TimerId::task(&id),
        id,
        project,
        name,
        callee,
        shape,
        start,
        count,
        more,
        misfire,
        overlap,
        expires,
        retries,
        is_slow,
        luck,
        terms: Terms { every, path: 0, is_paused: false },
        acts,
    }
}

/// Of one that starts then, and has times for about so long.
fn more(chance: &mut Chance, start: Time, lasts: Time) -> More {
    let rule = match chance.between(0, 3) {
        0 => Rule::FromStart,
        1 => Rule::Aligned,
        _ => {
            let &zone = chance.pick(&ZONES);
            Rule::Cron(zone)
        }
    };
    let end = chance.percent(30).then(|| start + chance.between(SECOND, lasts));
    let jitter = if chance.percent(40) { chance.spread(50, 5 * SECOND) } else { 0 };
    More { rule, end, jitter }
}

/// What is done to a schedule that is made then and has its last time about then.
fn acts(chance: &mut Chance, at: Time, until: Time) -> Vec<(Time, ScheduleAct)> {
    let mut acts = vec![(at, ScheduleAct::Put)];
    if chance.percent(25) {
        acts.push((at + chance.between(0, 300), ScheduleAct::Put));
    }
    if chance.percent(25) {
        acts.push((chance.between(at, until), ScheduleAct::Replay));
    }
    // The others stay as they are.
    let changes = if chance.percent(60) { chance.between(1, 5) } else { 0 };
    for _ in 0..changes {
        let at = chance.between(at, until);
        match chance.between(0, 9) {
            0..=3 => {
                acts.push((at, ScheduleAct::Pause));
                if chance.percent(70) {
                    acts.push((at + chance.spread(50, 30 * SECOND), ScheduleAct::Resume));
                }
            }
            4 => acts.push((at, ScheduleAct::Resume)),
            5 | 6 => acts.push((at, ScheduleAct::Path(chance.between(1, 3)))),
            7 | 8 => acts.push((at, ScheduleAct::Every(chance.between(SECOND, EVERY_MAX)))),
            _ => {
                acts.push((at, ScheduleAct::Delete));
                if chance.percent(50) {
                    acts.push((at + chance.spread(50, 20 * SECOND), ScheduleAct::Put));
                }
            }
        }
        if chance.percent(30) {
            // Somebody else does so about then, and may follow the same version.
            let other = match chance.percent(50) {
                true => ScheduleAct::Path(chance.between(4, 6)),
                false => ScheduleAct::Pause,
            };
            acts.push((at + chance.between(0, 300), other));
        }
    }
    acts
}

impl World {
    /// Whether a schedule is made in this run: they are counted behind the tasks that are asked for.
    fn is_planned(&self, index: usize) -> bool {
        let place = self.tasks.asked + index;
        self.plan.only.as_ref().is_none_or(|only| only.contains(&place))
    }

    /// What is done to schedules, and when: the schedules that are made in this run.
    pub(super) fn acts_on_schedules(&self) -> Vec<(Time, usize, ScheduleAct)> {
        let planned = self.tasks.schedules.planned.iter().enumerate();
        let planned = planned.filter(|(index, _)| self.is_planned(*index));
        let acts =
            planned.flat_map(|(index, of)| of.acts.iter().map(move |(at, act)| (*at, index, *act)));
        acts.collect()
    }

    /// Does what the API does.
    pub(super) fn act_on_schedule(&mut self, index: usize, act: ScheduleAct) {
        self.follow_tasks();
        let shown = self.tasks.schedules.shown(index);
        let shown = shown.map(|timer| (timer.version, timer.state.is_final()));
        match (act, shown) {
            (ScheduleAct::Replay, _) => {
                if let Some((record, what)) = self.tasks.schedules.first.get(&index).cloned() {
                    self.count("schedules replayed");
                    self.command_schedule(index, what, record);
                }
            }
            (ScheduleAct::Put, None | Some((_, true))) => {
                self.count("schedules made");
                let terms = self.tasks.schedules.planned[index].terms;
                let follows = shown.map(|(version, has_ended)| Follows { version, has_ended });
                self.write_schedule(index, follows, terms);
            }
            // It is there, or there is none.
            (ScheduleAct::Put, Some((_, false))) | (_, None | Some((_, true))) => {}
            (ScheduleAct::Delete, Some(_)) => {
                self.count("schedules deleted");
                let id = &self.tasks.schedules.planned[index].id;
                let record = sealed::cancel(&self.plan.setup.key, self.api_now(), id);
                self.command_schedule(index, Wrote::Delete, record);
            }
            (ScheduleAct::Trigger, Some((version, false))) => self.trigger_schedule(index, version),
            (_, Some((version, false))) => {
                let Some(terms) = self.tasks.schedules.terms_of(index, version) else {
                    let what = format!("nobody has written {version} of schedule {index}");
                    return self.breach("changes of schedules", what);
                };
                let changed = act.applied_to(terms);
                if changed != terms {
                    self.count("schedules changed");
                    let follows = Follows { version, has_ended: false };
                    self.write_schedule(index, Some(follows), changed);
                }
            }
        }
    }

    /// Writes a version of a schedule, unless the API refuses it: its project is deleted, or it has no time left.
    fn write_schedule(&mut self, index: usize, follows: Option<Follows>, terms: Terms) {
        let now = self.api_now();
        let planned = &self.tasks.schedules.planned[index];
        let (id, spec) = (planned.id.clone(), planned.spec(terms));
        let registry = &self.tasks.versions[self.tasks.published].registry;
        let due = spec.schedule().and_then(|schedule| schedule.first_after(now).ok());
        let Some(due) = due.filter(|_| !registry.project(planned.project).is_deleted) else {
            return self.count("schedules refused");
        };
        let submission = Submission {
            id: &id,
            spec: &spec,
            due,
            expires: None,
            key: None,
            value: None,
            headers: &[],
        };
        let key = &self.plan.setup.key;
        let record = match follows {
            Some(follows) => sealed::change_schedule(key, now, follows, &submission),
            None => sealed::submit(key, now, &submission),
        };
        let what = Wrote::Version { follows, terms, spec: Box::new(spec), due };
        if follows.is_none() {
            let first = || (record.clone(), what.clone());
            self.tasks.schedules.first.entry(index).or_insert_with(first);
        }
        self.command_schedule(index, what, record);
    }

    /// Asks for a task of a schedule as it is in this version, unless the API refuses it: its project is deleted.
    fn trigger_schedule(&mut self, index: usize, version: Version) {
        let now = self.api_now();
        let planned = &self.tasks.schedules.planned[index];
        let registry = &self.tasks.versions[self.tasks.published].registry;
        let terms = self.tasks.schedules.terms_of(index, version);
        let Some(terms) = terms.filter(|_| !registry.project(planned.project).is_deleted) else {
            return self.count("schedules refused");
        };
        let spec = planned.spec(terms);
        let schedule = spec.schedule().expect("it is one");
        let id = planned.id.triggered((self.tasks.drafts.len() as u64).to_be_bytes());
        let (of, at) = ((spec.project(), spec.group()), (now, now));
        let task = schedule.occurrence(of, id, at, None).expect("its tasks are sound");
        // It is asked for now: nothing spreads it.
        let submission = Submission {
            id: &task.id,
            spec: &task.spec,
            due: now,
            expires: task.expires,
            key: task.key.as_deref(),
            value: task.value.as_deref(),
            headers: &task.headers,
        };
        let record = sealed::submit(&self.plan.setup.key, now, &submission);
        let place = Place {
            topic: self.lane_topics[0],
            partition: i32::from(task.id.lane_of(self.plan.setup.lanes).0),
        };
        let of = (index, now);
        let draft = Draft::of_schedule(planned, of, task.spec.clone(), (now, task.expires));
        let draft = draft.by_hand(task.id.clone());
        self.stirred = true;
        self.count("tasks of schedules by hand");
        self.tasks.of.insert(TimerId::task(&task.id), self.tasks.drafts.len());
        self.tasks.drafts.push(draft);
        if let Err(refusal) = self.broker.produce(self.at, None, place, record) {
            self.breach("model", format!("{} is refused: {refusal:?}", task.id));
        }
    }

    fn command_schedule(&mut self, schedule: usize, what: Wrote, record: Record) {
        let id = &self.tasks.schedules.planned[schedule].id;
        let lane = id.lane_of(self.plan.setup.lanes);
        let place = Place { topic: self.lane_topics[0], partition: i32::from(lane.0) };
        self.stirred = true;
        match self.broker.produce(self.at, None, place, record) {
            Ok(offset) => {
                let first_appended = self.broker.clock(self.broker.leader(place), self.at);
                let version = Version { first_appended, offset };
                let told = Vec::new();
                let command = Command { schedule, what, place, version, told };
                self.tasks.schedules.commands.push(command);
            }
            Err(refusal) => {
                self.breach("model", format!("schedule {schedule} is refused: {refusal:?}"));
            }
        }
    }

    /// What became of a command about a schedule may be told; `false`: the answer is that of another command.
    pub(super) fn schedule_answered(&mut self, answer: &Answer) -> bool {
        let place = self.place(answer.source);
        let is_it = |of: &&mut Command| (of.place, of.version.offset) == (place, answer.offset);
        let Some(command) = self.tasks.schedules.commands.iter_mut().find(is_it) else {
            return false;
        };
        command.told.push(answer.outcome);
        self.count(match answer.outcome {
            Outcome::Replaced => "changes of schedules taken",
            Outcome::Superseded => "changes of schedules outrun",
            Outcome::Cancelled => "schedules cancelled",
            Outcome::Refused(_) => "changes of schedules refused",
            _ => "changes of schedules with another answer",
        });
        true
    }

    // Their tasks.

    /// Reads on in the intakes: which tasks schedules have submitted.
    pub fn follow_creates(&mut self) {
        if self.tasks.schedules.planned.is_empty() && self.tasks.runs.planned.is_empty() {
            return;
        }
        let mut records = Vec::new();
        for partition in 0..i32::from(self.plan.setup.lanes) {
            let place = Place { topic: self.lane_topics[0], partition };
            let looked = self.tasks.schedules.looked.get(&partition).copied().unwrap_or_default();
            let Some(log) = self.broker.partition(place) else { continue };
            let new = log.ledger_from(looked).filter_map(|(offset, entry)| {
                Some((place, offset, entry.at, entry.record.clone()?))
            });
            records.extend(new);
        }
        for (Place { partition, .. }, offset, ..) in &records {
            self.tasks.schedules.looked.insert(*partition, offset.next());
        }
        records.retain(|(place, offset, ..)| !self.tasks.foreign.contains(&(*place, *offset)));
        // The create of a run may stand behind that of its shards, in another lane.
        for (_, offset, at, record) in &records {
            self.take_create(*offset, *at, record);
        }
        for (_, _, at, record) in &records {
            self.take_shard(*at, record);
        }
    }

    /// A record of the intake may be the create of a task of a schedule: no other task has such an id.
    fn take_create(&mut self, offset: Offset, at: Time, record: &Record) {
        let Ok(directive) = header::read(record.headers()) else { return };
        let id = directive.id.and_then(|id| std::str::from_utf8(id).ok()).unwrap_or_default();
        let of = id.rsplit_once('@').filter(|_| !id.starts_with("r."));
        let Some((_, nominal)) = of.filter(|_| directive.action == TimerAction::Create) else {
            return;
        };
        let name = TaskId::parse(id).ok().map(|id| TimerId::task(&id));
        let is_by_hand = nominal.starts_with("manual-");
        if is_by_hand && name.is_some_and(|name| self.tasks.of.contains_key(&name)) {
            return;
        }
        let nominal = nominal.parse().ok().map(UnixMillis);
        let found = nominal.and_then(|nominal| {
            let mut planned = self.tasks.schedules.planned.iter();
            let index = planned.position(|of| of.id.occurrence(nominal).as_str() == id)?;
            Some((index, nominal))
        });
        let bound = directive.bound(record.key());
        let state = directive.state.and_then(|state| {
            let state = State::open(state, &self.plan.setup.key, &bound).ok()?;
            Some((state.due, state.expires))
        });
        let spec = directive.task.and_then(|json| Spec::parse(json).ok());
        let (Some((schedule, nominal)), Some((due, expires)), Some(spec)) = (found, state, spec)
        else {
            return self.breach("no phantom", format!("{id} at {offset:?} is of no schedule"));
        };
        let planned = &self.tasks.schedules.planned[schedule];
        let of = match (&planned.shape, spec.run()) {
            (Some(_), Some(_)) => {
                let terms = (spec.clone(), due, expires);
                Submitted::Run(self.take_run((schedule, nominal), terms, at))
            }
            (None, None) => {
                Submitted::Task(self.take_task((schedule, nominal), spec.clone(), (due, expires)))
            }
            _ => return self.breach("one occurrence", format!("{id} at {offset:?} is {spec:?}")),
        };
        let create = Create { schedule, of, nominal, at, offset, spec, due };
        self.tasks.schedules.creates.push(create);
    }

    /// A schedule has submitted a task.
    fn take_task(
        &mut self,
        (schedule, nominal): (usize, UnixMillis),
        spec: Spec,
        (due, expires): (UnixMillis, Option<UnixMillis>),
    ) -> usize {
        let planned = &self.tasks.schedules.planned[schedule];
        let name = TimerId::task(&planned.id.occurrence(nominal));
        if let Some(task) = self.tasks.of.get(&name) {
            return *task;
        }
        let draft = Draft::of_schedule(planned, (schedule, nominal), spec, (due, expires));
        let task = self.tasks.drafts.len();
        self.tasks.drafts.push(draft);
        self.tasks.of.insert(name, task);
        task
    }

    // Their ends.

    /// Whether each schedule that was made has ended, and all that they have submitted is known.
    pub(super) fn are_schedules_over(&self) -> bool {
        let Schedules { planned, commands, shown, .. } = &self.tasks.schedules;
        let is_over = |index: usize| {
            let is_made = commands.iter().any(|command| command.schedule == index);
            !is_made || shown.get(&index).is_some_and(|timer| timer.state.is_final())
        };
        (0..planned.len()).all(is_over)
    }

    /// One that stays paused never ends: somebody deletes it in the end.
    pub(super) fn end_paused_schedules(&mut self) {
        let schedules = &mut self.tasks.schedules;
        if self.at < schedules.swept + MINUTE {
            return;
        }
        schedules.swept = self.at;
        let schedules = &self.tasks.schedules;
        let is_paused = |index: &usize| {
            let shown = schedules.shown(*index).filter(|timer| !timer.state.is_final());
            let terms = shown.and_then(|timer| schedules.terms_of(*index, timer.version));
            terms.is_some_and(|terms| terms.is_paused)
        };
        let paused: Vec<usize> = (0..schedules.planned.len()).filter(is_paused).collect();
        paused.into_iter().for_each(|index| self.act_on_schedule(index, ScheduleAct::Delete));
    }
}
