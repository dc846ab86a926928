//! Projects, services and topics of a world: their limits, and who pauses, resumes, deletes and puts them again while tasks wait.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use waterclock::engine::task::registry::{self, Registry};

use crate::broker::Time;
use crate::chance::Chance;
use crate::mutation::Mutation;
use crate::plan::{Plan, SECOND};

/// Projects whose tasks make calls.
pub const CALLERS: [&str; 2] = ["p", "q"];
/// The project whose tasks go to topics.
pub const WRITER: &str = "k";
/// Services of each project that makes calls.
const SERVICES: [&str; 2] = ["one", "two"];
/// Topics that are paused and resumed.
const TOPICS: [&str; 2] = ["t0", "t1"];

/// Projects and services as they are from a time on.
pub struct Version {
    pub since: Time,
    pub registry: Arc<Registry>,
    /// What processes hear of it: the same, but for mutations.
    pub heard: Arc<Registry>,
}

/// How often, and how many at once.
#[derive(Clone, Debug, Default)]
struct Limits {
    concurrency: u64,
    rate: Option<&'static str>,
    burst: Option<u64>,
}

impl Limits {
    /// Some of them so small that they bind.
    fn draw(chance: &mut Chance, most: u64) -> Self {
        let concurrency = chance.spread(1, most);
        let rate = chance.percent(35).then(|| *chance.pick(&["0.5", "1", "2", "5", "20"]));
        let burst = (rate.is_some() && chance.percent(60)).then(|| chance.spread(1, 10));
        Self { concurrency, rate, burst }
    }

    fn json(&self) -> String {
        format!(r#""concurrency":{}{}"#, self.concurrency, self.rate_json())
    }

    fn rate_json(&self) -> String {
        let rate = self.rate.map(|rate| format!(r#","rate":{rate}"#)).unwrap_or_default();
        let burst = self.burst.map(|burst| format!(r#","burst":{burst}"#)).unwrap_or_default();
        format!("{rate}{burst}")
    }
}

/// All that is said, by key of meta.
#[derive(Clone, Debug, Default)]
struct Settings {
    limits: BTreeMap<String, Limits>,
    paused: BTreeSet<String>,
    deleted: BTreeSet<String>,
}

impl Settings {
    fn draw(chance: &mut Chance) -> Self {
        let mut settings = Self::default();
        let mut put = |key: String, limits| {
            settings.limits.insert(key, limits);
        };
        for project in CALLERS {
            put(format!("project/{project}"), Limits::draw(chance, 12));
            for service in SERVICES {
                put(format!("service/{project}/{service}"), Limits::draw(chance, 5));
            }
        }
        put(format!("project/{WRITER}"), Limits::draw(chance, 12));
        TOPICS.iter().for_each(|topic| put(format!("target/{topic}"), Limits::default()));
        settings
    }

    /// One thing of it is another from now on.
    fn change(&mut self, chance: &mut Chance, deletes: bool) {
        let keys: Vec<&String> = self.limits.keys().collect();
        let key = (*chance.pick(&keys)).clone();
        let of = match deletes && !key.starts_with("target/") && chance.percent(50) {
            true => &mut self.deleted,
            false => &mut self.paused,
        };
        if !of.remove(&key) {
            of.insert(key);
        }
    }

    fn registry(&self) -> Registry {
        let mut registry = Registry::default();
        for (key, limits) in &self.limits {
            let paused = self.paused.contains(key);
            let is_deleted = self.deleted.contains(key);
            let json = match key.split('/').collect::<Vec<_>>()[..] {
                ["project", _] if is_deleted => {
                    let json = r#"{"version":1,"revision":1,"deleted":true}"#;
                    let deleted = registry::read(key, Some(json.as_bytes()));
                    registry.apply(deleted.expect("it is sound")).expect("there is room");
                    continue;
                }
                ["service", project, _]
                    if is_deleted || self.deleted.contains(&format!("project/{project}")) =>
                {
                    continue;
                }
                ["project", _] => format!(r#"{{{},"paused":{paused}}}"#, limits.json()),
                ["service", ..] => format!(
                    r#"{{"address":"http://c.example",{},"paused":{paused}}}"#,
                    limits.json()
                ),
                _ => format!(r#"{{"paused":{paused}{}}}"#, limits.rate_json()),
            };
            let change = registry::read_request(key, json.as_bytes()).expect("it is sound");
            registry.apply(change).expect("there is room");
        }
        registry
    }

    fn forget_rates(&mut self, of: fn(&str) -> bool) {
        let these = self.limits.iter_mut().filter(|(key, _)| of(key));
        these.for_each(|(_, of)| (of.rate, of.burst) = (None, None));
    }

    /// What is heard of it by processes that do something wrong.
    fn misheard(mut self, mutation: Mutation) -> Self {
        match mutation {
            Mutation::MissesPauses => self.paused.clear(),
            Mutation::MissesServicePauses => self.paused.retain(|key| !key.starts_with("service/")),
            Mutation::MissesTopicPauses => self.paused.retain(|key| !key.starts_with("target/")),
            Mutation::MissesDeletions => self.deleted.clear(),
            Mutation::OpensMore => {
                self.limits.values_mut().for_each(|limits| limits.concurrency = 200);
            }
            Mutation::IgnoresRates => self.forget_rates(|key| !key.starts_with("target/")),
            Mutation::IgnoresTopicRates => self.forget_rates(|key| key.starts_with("target/")),
            _ => {}
        }
        self
    }
}

/// Versions of all of it. After the last one nothing is paused.
pub fn draw(plan: &Plan, chance: &mut Chance, mutation: Option<Mutation>) -> Vec<Version> {
    let mut now = Settings::draw(chance);
    if plan.tasks.is_some_and(|of| of.newer_kinds) {
        // The tasks of a world are few: only small rates bind.
        for topic in TOPICS {
            let rate = chance.percent(40).then(|| *chance.pick(&["0.5", "1", "2", "5"]));
            let burst = (rate.is_some() && chance.percent(60)).then(|| chance.spread(1, 10));
            let limits = Limits { concurrency: 0, rate, burst };
            now.limits.insert(format!("target/{topic}"), limits);
        }
    }
    let mut all = Vec::new();
    let version = |since: Time, now: &Settings| {
        let registry = Arc::new(now.registry());
        let misheard = mutation.map(|mutation| now.clone().misheard(mutation));
        let heard = misheard.map_or_else(|| Arc::clone(&registry), |of| Arc::new(of.registry()));
        Version { since, registry, heard }
    };
    all.push(version(0, &now));
    let mut at = plan.submits.0;
    let deletes = chance.percent(25);
    for _ in 0..chance.between(0, 10) {
        at += chance.spread(100, 20 * SECOND);
        now.change(chance, deletes);
        all.push(version(at, &now));
    }
    now.paused.clear();
    // Of what was deleted some never comes back.
    if chance.percent(50) {
        now.deleted.clear();
    }
    all.push(version(at.max(plan.submits.1) + 20 * SECOND, &now));
    all
}
