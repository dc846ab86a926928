//! What tasks there are in a world, and how their endpoints answer.

use std::sync::Arc;

use waterclock::engine::UnixMillis;
use waterclock::engine::task::id::TaskId;
use waterclock::engine::task::request::BODY_MAX;
use waterclock::engine::task::result::{Outcome, TaskResult};
use waterclock::engine::task::spec::Spec;
use waterclock::engine::timers::TimerId;

use super::runs::{PlannedRun, Runs};
use super::schedules::{Planned, Schedules};
use super::{Tasks, settings};
use crate::broker::{EPOCH_MS, Time};
use crate::chance::Chance;
use crate::mutation::Mutation;
use crate::plan::{Plan, SECOND};

/// No call takes longer.
const TIMEOUT: Time = 10 * SECOND;

/// Where is told how some tasks ended. No other task goes there.
const TOLD: &str = "t2";

/// A task that somebody asks for, or that a schedule has submitted.
#[derive(Clone, Debug)]
pub struct Draft {
    /// When it is asked for first, and when it is due, in the world's time.
    pub at: Time,
    pub due: Time,
    /// Past it nothing is begun.
    pub expires: Option<Time>,
    pub id: TaskId,
    /// What is sent: the id, and maybe much behind it.
    pub body: Arc<[u8]>,
    pub spec: Spec,
    /// Retries that it may have.
    pub retries: u32,
    pub polls: bool,
    /// The topic that it goes to; `None`: it makes calls.
    pub topic: Option<&'static str>,
    /// When it is asked for again, its creation is replayed, and it is to be cancelled.
    pub again: Vec<Time>,
    pub replays: Vec<Time>,
    pub cancels: Vec<Time>,
    /// When somebody has it called, if that can be done then.
    pub retries_by_hand: Vec<Time>,
    /// Which schedule has submitted it, and for which time.
    pub of_schedule: Option<(usize, UnixMillis)>,
    /// It is a shard of a run.
    pub is_shard: bool,
    behaviour: Behaviour,
    takes: Time,
}

/// A record that is no task, and goes to the same topics.
#[derive(Clone, Debug)]
pub struct Plain {
    pub at: Time,
    pub due: Time,
    pub topic: &'static str,
    pub partition: i32,
}

#[derive(Clone, Copy, Debug)]
enum Behaviour {
    Answers,
    FailsFirst(usize),
    NotYet(usize),
    Gone,
    Hangs(usize),
}

impl Draft {
    /// The task of a nominal time of a schedule, as it stands in the intake.
    pub(super) fn of_schedule(
        of: &Planned,
        (index, nominal): (usize, UnixMillis),
        spec: Spec,
        (due, expires): (UnixMillis, Option<UnixMillis>),
    ) -> Self {
        let mut chance = Chance::new(of.luck ^ nominal.0);
        let behaviour = match chance.between(0, 9) {
            0..=6 => Behaviour::Answers,
            7 => Behaviour::FailsFirst(chance.between(1, 3) as usize),
            8 => Behaviour::Gone,
            _ => Behaviour::Hangs(1),
        };
        let every = of.terms.every;
        let takes = match of.is_slow {
            true => chance.between(every / 2, 2 * every).min(TIMEOUT - SECOND),
            false => chance.spread(1, 2 * SECOND),
        };
        let since_start = |at: UnixMillis| at.0.saturating_sub(EPOCH_MS);
        Self {
            at: since_start(nominal),
            due: since_start(due),
            expires: expires.map(since_start),
            id: of.id.occurrence(nominal),
            body: of.id.as_str().as_bytes().into(),
            spec,
            retries: of.retries,
            polls: false,
            topic: None,
            again: Vec::new(),
            replays: Vec::new(),
            cancels: Vec::new(),
            retries_by_hand: Vec::new(),
            of_schedule: Some((index, nominal)),
            is_shard: false,
            behaviour,
            takes,
        }
    }

    /// The same as one that somebody has asked for: it is of no time.
    pub(super) fn by_hand(self, id: TaskId) -> Self {
        Self { id, of_schedule: None, ..self }
    }

    /// A shard of a run, as it stands in the intake.
    pub(super) fn of_shard(
        of: &PlannedRun,
        id: TaskId,
        index: u32,
        spec: Spec,
        body: &[u8],
    ) -> Self {
        let mut chance = Chance::new(of.luck ^ u64::from(index));
        let behaviour = match chance.between(0, 29) {
            0..=23 => Behaviour::Answers,
            24..=27 => Behaviour::FailsFirst(chance.between(1, 2) as usize),
            28 => Behaviour::Gone,
            _ => Behaviour::Hangs(1),
        };
        Self {
            at: of.due,
            due: of.due,
            expires: None,
            id,
            body: body.into(),
            spec,
            retries: of.shape.retries,
            polls: false,
            topic: of.shape.topic,
            again: Vec::new(),
            replays: Vec::new(),
            cancels: Vec::new(),
            retries_by_hand: Vec::new(),
            of_schedule: None,
            is_shard: true,
            behaviour,
            takes: chance.spread(1, 5 * SECOND),
        }
    }

    /// How the endpoint answers its nth call, from 0: after how long, what, and whether it seems to be away.
    pub fn answer(&self, nth: usize) -> (Time, TaskResult, bool) {
        let of = |outcome, status| TaskResult { status, ..TaskResult::new(outcome) };
        match self.behaviour {
            Behaviour::FailsFirst(many) if nth < many => {
                (self.takes, of(Outcome::Failed, Some(503)), true)
            }
            Behaviour::NotYet(many) if nth < many && self.polls => {
                (self.takes, of(Outcome::NotYet, Some(202)), false)
            }
            Behaviour::Hangs(many) if nth < many => (TIMEOUT, of(Outcome::Failed, None), true),
            Behaviour::Gone => (self.takes, of(Outcome::Gone, Some(410)), false),
            _ if self.spec.feedback().is_some() => {
                (self.takes, of(Outcome::Accepted, Some(202)), false)
            }
            _ => (self.takes, of(Outcome::Finished, Some(200)), false),
        }
    }
}

fn draft(plan: &Plan, chance: &mut Chance, index: usize) -> Draft {
    let (from, to) = plan.submits;
    let at = chance.between(from, to);
    let due = at + chance.between(0, plan.delay_max);
    let is_kafka = chance.percent(20);
    let polls = !is_kafka && chance.percent(20);
    let retries = chance.between(0, 3) as u32;
    let interval = chance.between(1, 4);
    let retry = format!(r#""retry":{{"count":{retries},"interval":{interval}}}"#);
    let (callee, over_grpc) = match chance.between(0, 3) {
        0 => (r#""service":"one""#, r#""named_service":"one""#),
        1 => (r#""service":"two""#, r#""named_service":"two""#),
        2 => (r#""url":"http://a.example/x""#, r#""host":"a.example:80""#),
        _ => (r#""url":"http://b.example/x""#, r#""host":"b.example:80""#),
    };
    let project = *chance.pick(&settings::CALLERS);
    // The last one is made while the run is on.
    let topic = is_kafka.then(|| *chance.pick(&["t0", "t1", "t0", "later"]));
    let expires = chance.percent(25).then(|| due + chance.spread(50, 60 * SECOND));
    let newer_kinds = plan.tasks.is_some_and(|of| of.newer_kinds);
    let has_feedback = newer_kinds && chance.percent(if is_kafka { 60 } else { 15 });
    let feedback = match has_feedback && !polls {
        true => {
            let (deadline, heartbeat) = (chance.between(5, 30), chance.between(2, 5));
            format!(r#","feedback":{{"deadline":{deadline},"heartbeat":{heartbeat}}}"#)
        }
        false => String::new(),
    };
    let poll = if polls { r#","poll":{"interval":"2s","rounds":5}"# } else { "" };
    let tells = if newer_kinds && index % 5 < 2 {
        format!(r#","on_result":{{"topic":"{TOLD}"}}"#)
    } else {
        String::new()
    };
    let json = match topic {
        Some(topic) => {
            let project = settings::WRITER;
            format!(
                r#"{{"type":"kafka","project":"{project}","group":"g","topic":"{topic}",{retry}{feedback}{tells}}}"#
            )
        }
        // To lanes and workers it is one more call.
        None if newer_kinds && index % 3 == 1 => {
            format!(
                r#"{{"type":"grpc","project":"{project}","group":"g",{over_grpc},"service":"s","method":"m",{retry}{poll}{feedback}{tells}}}"#
            )
        }
        None => {
            format!(
                r#"{{"type":"http","project":"{project}","group":"g",{callee},{retry}{poll}{feedback}{tells}}}"#
            )
        }
    };
    let spec = Spec::parse(json.as_bytes()).expect("the draft is sound");
    let id = TaskId::of_request(spec.project(), &format!("r{index}"), None).expect("short");
    let is_large = plan.tasks.is_some_and(|of| of.large) && chance.percent(50);
    let mut body = id.as_str().as_bytes().to_vec();
    if is_large {
        body.resize(chance.spread(64 << 10, BODY_MAX as u64) as usize, b'.');
    }
    let behaviour = match chance.between(0, 9) {
        0..=3 => Behaviour::Answers,
        4..=6 => Behaviour::FailsFirst(chance.between(1, 5) as usize),
        7 => Behaviour::NotYet(chance.between(1, 6) as usize),
        8 => Behaviour::Gone,
        _ => Behaviour::Hangs(chance.between(1, 2) as usize),
    };
    let until = due + 30 * SECOND;
    let times = |percent: u32, chance: &mut Chance| -> Vec<Time> {
        let many = if chance.percent(percent) { chance.between(1, 2) } else { 0 };
        (0..many).map(|_| chance.between(at, until)).collect()
    };
    let (again, replays) = (times(20, chance), times(20, chance));
    let mut cancels = times(30, chance);
    if !cancels.is_empty() && chance.percent(60) {
        // About when it is called.
        cancels.push((due + chance.between(0, 2 * SECOND)).saturating_sub(500).max(at));
    }
    let mut retries_by_hand = times(40, chance);
    if !retries_by_hand.is_empty() {
        retries_by_hand.push(until + chance.between(0, 60 * SECOND));
    }
    let takes = chance.spread(1, 5 * SECOND);
    Draft {
        at,
        due,
        expires,
        id,
        body: body.into(),
        spec,
        retries,
        polls,
        topic,
        again,
        replays,
        cancels,
        retries_by_hand,
        of_schedule: None,
        is_shard: false,
        behaviour,
        takes,
    }
}

fn plain(plan: &Plan, chance: &mut Chance) -> Plain {
    let (from, to) = plan.submits;
    let at = chance.between(from, to);
    let due = at + chance.between(0, plan.delay_max);
    let topic = *chance.pick(&["t0", "t1"]);
    Plain { at, due, topic, partition: chance.below(usize::from(plan.setup.lanes)) as i32 }
}

impl Tasks {
    /// Draws them, and what becomes of projects meanwhile.
    pub(in crate::world) fn draw(
        plan: &Plan,
        mutation: Option<Mutation>,
        tasks_topic: usize,
        chance: &mut Chance,
    ) -> Self {
        let Some(of) = plan.tasks else { return Self::default() };
        let drafts: Vec<Draft> = (0..of.count).map(|index| draft(plan, chance, index)).collect();
        let last = |draft: &Draft| {
            let acts = draft.again.iter().chain(&draft.replays).chain(&draft.cancels);
            let all = acts.chain(&draft.retries_by_hand);
            all.copied().max().unwrap_or_default().max(draft.due)
        };
        let plains: Vec<Plain> = (0..of.plains).map(|_| plain(plan, chance)).collect();
        let dues = plains.iter().map(|plain| plain.due);
        let schedules = Schedules::draw(plan);
        let runs = Runs::draw(plan);
        let dues = dues.chain(schedules.ends()).chain(runs.ends());
        let ends = drafts.iter().map(last).chain(dues).max().unwrap_or_default();
        let names = drafts.iter().enumerate();
        let names = names.map(|(index, draft)| (TimerId::task(&draft.id), index)).collect();
        let versions = settings::draw(plan, chance, mutation);
        let asked = drafts.len();
        Self {
            of: names,
            asked,
            tasks_topic,
            versions,
            ends,
            drafts,
            plains,
            schedules,
            runs,
            ..Self::default()
        }
    }
}
