//! What tasks there are in a world, and how their endpoints answer.

use std::sync::Arc;

use waterclock::engine::task::id::TaskId;
use waterclock::engine::task::registry::{self, Registry};
use waterclock::engine::task::result::{Outcome, TaskResult};
use waterclock::engine::task::spec::Spec;
use waterclock::engine::timers::TimerId;

use super::Tasks;
use crate::broker::Time;
use crate::chance::Chance;
use crate::plan::{Plan, SECOND};

/// No call takes longer.
const TIMEOUT: Time = 10 * SECOND;

/// A task that somebody asks for.
#[derive(Clone, Debug)]
pub struct Draft {
    /// When it is asked for first, and when it is due, in the world's time.
    pub at: Time,
    pub due: Time,
    pub id: TaskId,
    pub spec: Spec,
    /// Retries that it may have.
    pub retries: u32,
    pub polls: bool,
    /// It goes to a topic.
    pub is_kafka: bool,
    /// When it is asked for again, its creation is replayed, and it is to be cancelled.
    pub again: Vec<Time>,
    pub replays: Vec<Time>,
    pub cancels: Vec<Time>,
    behaviour: Behaviour,
    takes: Time,
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
    let callee = match chance.between(0, 3) {
        0 => r#""service":"one""#,
        1 => r#""service":"two""#,
        2 => r#""url":"http://a.example/x""#,
        _ => r#""url":"http://b.example/x""#,
    };
    let project = *chance.pick(&["p", "q"]);
    let poll = if polls { r#","poll":{"interval":"2s","rounds":5}"# } else { "" };
    let json = match is_kafka {
        true => r#"{"type":"kafka","project":"k","group":"g","topic":"t0"}"#.to_owned(),
        false => {
            format!(r#"{{"type":"http","project":"{project}","group":"g",{callee},{retry}{poll}}}"#)
        }
    };
    let spec = Spec::parse(json.as_bytes()).expect("the draft is sound");
    let id = TaskId::of_request(spec.project(), &format!("r{index}"), None).expect("short");
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
    let takes = chance.spread(1, 5 * SECOND);
    Draft { at, due, id, spec, retries, polls, is_kafka, again, replays, cancels, behaviour, takes }
}

impl Tasks {
    /// Draws them, and what becomes of projects meanwhile.
    pub(in crate::world) fn draw(plan: &Plan, tasks_topic: usize, chance: &mut Chance) -> Self {
        let Some(of) = plan.tasks else { return Self::default() };
        let drafts: Vec<Draft> = (0..of.count).map(|index| draft(plan, chance, index)).collect();
        let last = |draft: &Draft| {
            let all = draft.again.iter().chain(&draft.replays).chain(&draft.cancels);
            all.copied().max().unwrap_or_default().max(draft.due)
        };
        let ends = drafts.iter().map(last).max().unwrap_or_default();
        let names = drafts.iter().enumerate();
        let names = names.map(|(index, draft)| (TimerId::task(&draft.id), index)).collect();
        let registries = registries(plan, chance);
        Self { of: names, tasks_topic, registries, ends, drafts, ..Self::default() }
    }
}

fn put(registry: &mut Registry, key: &str, json: &str) {
    let change = registry::read_request(key, json.as_bytes()).expect("it is sound");
    registry.apply(change).expect("there is room");
}

/// The same projects and services, of which more calls may be open.
pub(super) fn with_more(registry: &Registry) -> Registry {
    let mut more = registry.clone();
    for (name, project) in registry.projects() {
        let json = format!(r#"{{"concurrency":200,"paused":{}}}"#, project.paused);
        put(&mut more, &format!("project/{name}"), &json);
        for service in project.services.keys() {
            let json = r#"{"address":"http://c.example","concurrency":50}"#;
            put(&mut more, &format!("service/{name}/{service}"), json);
        }
    }
    more
}

fn registries(plan: &Plan, chance: &mut Chance) -> Vec<(Time, Arc<Registry>)> {
    let mut registry = Registry::default();
    let projects = ["p", "q"].map(|name| (name, chance.between(2, 12)));
    let set = |registry: &mut Registry, (name, concurrency): (&str, u64), paused: bool| {
        let json = format!(r#"{{"concurrency":{concurrency},"paused":{paused}}}"#);
        put(registry, &format!("project/{name}"), &json);
    };
    for of in projects {
        set(&mut registry, of, false);
        for service in ["one", "two"] {
            let concurrency = chance.between(1, 5);
            let json = format!(r#"{{"address":"http://c.example","concurrency":{concurrency}}}"#);
            put(&mut registry, &format!("service/{}/{service}", of.0), &json);
        }
    }
    let mut all = vec![(0, Arc::new(registry.clone()))];
    let mut at = plan.submits.0;
    for _ in 0..chance.between(0, 4) {
        at += chance.spread(100, 20 * SECOND);
        set(&mut registry, projects[chance.below(2)], chance.percent(60));
        all.push((at, Arc::new(registry.clone())));
    }
    projects.into_iter().for_each(|of| set(&mut registry, of, false));
    all.push((at.max(plan.submits.1) + 20 * SECOND, Arc::new(registry)));
    all
}
