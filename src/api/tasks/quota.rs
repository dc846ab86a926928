//! How many tasks of a project may be created in a time, and how many it may have. Each instance takes its share of the rate that the
//! project has. Of what is pending it knows what the owners of the lanes have counted last, and what it has created since.
//!
//! # Invariants
//! 1. A create that is refused has cost nothing: who waits as long as the answer says is taken, if nobody else was first.
//! 2. Projects without a rate take no room among the buckets, and those without a bound are not counted.
//! 3. A count that is older than [`COUNT_MAX`] refuses nothing: it may be wrong by any number.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use parking_lot::Mutex;

use super::super::problem::Problem;
use super::super::projects::model::RefusedCreates;
use super::Tasks;
use crate::engine::Millis;
use crate::engine::task::bucket::{Bucket, Rate};
use crate::engine::task::registry::{Project, Registry};
use crate::engine::timers::TaskCounts;

/// Time counts from here on. So a bucket that is empty at zero is full by now, whatever its burst is.
const EPOCH: Millis = Millis(1 << 50);
/// Between two counts of what is pending.
const COUNT_EVERY: Duration = Duration::from_secs(5);
/// For how long a count says something, if no other one follows.
const COUNT_MAX: Millis = Millis(60_000);

/// What all projects may still create.
pub struct Quotas {
    began: Instant,
    buckets: Mutex<HashMap<String, Held>>,
    /// Of the projects with a bound.
    pending: Mutex<HashMap<String, Pending>>,
    /// Of the projects that were refused creates.
    refused: Mutex<HashMap<String, RefusedCreates>>,
}

struct Held {
    rate: Rate,
    burst: u32,
    bucket: Bucket,
}

/// Pending tasks of a project with a bound.
#[derive(Default)]
struct Pending {
    /// How many were counted, and when that was asked; `None`: not yet.
    counted: Option<(u64, Millis)>,
    /// How many were created here since.
    created: u64,
}

impl Pending {
    /// How many there are, as far as that is known.
    fn now(&self, now: Millis) -> u64 {
        let is_fresh = |(_, at): &(u64, Millis)| now.saturating_sub(*at) <= COUNT_MAX;
        let counted = self.counted.filter(is_fresh);
        counted.map_or(0, |(count, _)| count.saturating_add(self.created))
    }
}

/// Why a create is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Over {
    /// Too many in this time; so long to wait.
    Rate(Millis),
    /// So many are pending.
    Pending(u64),
}

/// That a create is over a quota.
pub(in crate::api) struct Refusal {
    over: Over,
    problem: Problem,
}

/// Counts what is pending of projects with a bound, again and again, until `stop`.
pub async fn count_pending(tasks: Tasks, stop: impl Future<Output = ()>) {
    let counting = async {
        loop {
            tokio::time::sleep(COUNT_EVERY).await;
            tasks.quotas.count(&tasks).await;
        }
    };
    tokio::select! {
        () = counting => {}
        () = stop => {}
    }
}

impl Default for Quotas {
    fn default() -> Self {
        Self {
            began: Instant::now(),
            buckets: Mutex::default(),
            pending: Mutex::default(),
            refused: Mutex::default(),
        }
    }
}

impl Quotas {
    fn now(&self) -> Millis {
        let passed = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        Millis(EPOCH.0.saturating_add(passed))
    }

    /// Takes one create. `instances`: how many share the rate.
    ///
    /// # Errors
    /// There were too many, or there are: [`Quotas::refuse`] it, unless its task exists.
    pub(in crate::api) fn take(
        &self,
        name: &str,
        project: &Project,
        instances: u16,
    ) -> Result<(), Refusal> {
        let Err(over) = self.take_at(self.now(), name, project, instances) else { return Ok(()) };
        let (code, detail, wait) = match over {
            Over::Rate(wait) => {
                let rate = project.create_rate.map_or(0, Rate::whole_per_1000_s) as f64 / 1_000.0;
                let detail = format!(
                    "the project {name} may create {rate} tasks a second (`create_rate`), and up to {} at once, over all instances with the API; \
                     this instance's share is used up, and this request created nothing",
                    project.create_burst
                );
                ("over_create_rate", detail, wait)
            }
            Over::Pending(pending) => {
                let detail = format!(
                    "the project {name} may have {} pending tasks (`max_pending`), and had {pending} when they were counted last; this request created nothing",
                    project.max_pending.unwrap_or_default()
                );
                ("over_pending", detail, Millis(COUNT_EVERY.as_millis() as u64))
            }
        };
        let seconds = u32::try_from(wait.0.div_ceil(1_000).max(1)).unwrap_or(u32::MAX);
        let problem = Problem::new(StatusCode::TOO_MANY_REQUESTS, code, detail).later(seconds);
        Err(Refusal { over, problem })
    }

    /// Counts that a create of a project was refused; what to answer: 429, with when to come back.
    pub(in crate::api) fn refuse(&self, name: &str, refusal: Refusal) -> Problem {
        let mut all = self.refused.lock();
        let refused = all.entry(name.to_owned()).or_default();
        match refusal.over {
            Over::Rate(_) => refused.over_create_rate += 1,
            Over::Pending(_) => refused.over_pending += 1,
        }
        refusal.problem
    }

    /// How many creates of a project were refused.
    pub(in crate::api) fn refused(&self, name: &str) -> RefusedCreates {
        self.refused.lock().get(name).copied().unwrap_or_default()
    }

    /// The same at a time.
    fn take_at(
        &self,
        now: Millis,
        name: &str,
        project: &Project,
        instances: u16,
    ) -> Result<(), Over> {
        let of_rate = || self.take_of_rate(now, name, project, instances).map_err(Over::Rate);
        let Some(most) = project.max_pending else { return of_rate() };
        let mut all = self.pending.lock();
        let pending = all.entry(name.to_owned()).or_default();
        let known = pending.now(now);
        if known >= most {
            return Err(Over::Pending(known));
        }
        of_rate()?;
        pending.created += 1;
        Ok(())
    }

    /// Takes one create of the rate; an error is how long to wait.
    fn take_of_rate(
        &self,
        now: Millis,
        name: &str,
        project: &Project,
        instances: u16,
    ) -> Result<(), Millis> {
        let mut buckets = self.buckets.lock();
        let Some(rate) = project.create_rate else {
            buckets.remove(name);
            return Ok(());
        };
        let rate = rate.part_of(instances);
        let burst = (project.create_burst / u32::from(instances.max(1))).max(1);
        let held = match buckets.get_mut(name) {
            Some(held) => held,
            None => buckets.entry(name.to_owned()).or_insert_with(|| Held {
                rate,
                burst,
                bucket: Bucket::new(rate, burst, Millis(0)),
            }),
        };
        if (held.rate, held.burst) != (rate, burst) {
            // What it holds goes on: a change brings no burst, and takes none away.
            *held = Held { rate, burst, bucket: held.bucket.moved_to(rate, burst, now) };
        }
        match held.bucket.take(now) {
            true => Ok(()),
            false => Err(held.bucket.next_at(now).saturating_sub(now)),
        }
    }

    /// Asks the owners of all lanes what is pending of projects with a bound. If they do not answer, the last count stands.
    pub(super) async fn count(&self, tasks: &Tasks) {
        let Ok(registry) = tasks.projects.registry() else { return };
        let (projects, asked) = self.begin_count(self.now(), &registry);
        if projects.is_empty() {
            return;
        }
        match super::counts(tasks, &projects).await {
            Ok(counts) => self.end_count(asked, &counts),
            Err(problem) => {
                tracing::debug!(problem = %problem.as_json(), "pending tasks are not counted now");
            }
        }
    }

    /// Which projects are to be counted, and what was created of them before that is asked.
    fn begin_count(&self, now: Millis, registry: &Registry) -> (BTreeSet<String>, Asked) {
        let is_bound = |name: &str| registry.project(name).max_pending.is_some();
        let mut pending = self.pending.lock();
        pending.retain(|name, _| is_bound(name));
        let is_limited =
            |name: &str| is_bound(name) || registry.project(name).create_rate.is_some();
        self.refused.lock().retain(|name, _| is_limited(name));
        let projects = registry.projects().filter(|(_, of)| of.max_pending.is_some());
        let projects: BTreeSet<String> = projects.map(|(name, _)| name.to_owned()).collect();
        let created = pending.iter().map(|(name, of)| (name.clone(), of.created)).collect();
        (projects, Asked { at: now, created })
    }

    /// What was created before the question is in the answer.
    fn end_count(&self, asked: Asked, counts: &BTreeMap<String, TaskCounts>) {
        let mut pending = self.pending.lock();
        for (name, created) in &asked.created {
            if let Some(of) = pending.get_mut(name) {
                of.created = of.created.saturating_sub(*created);
                // Nothing is told of a project without tasks.
                of.counted = Some((0, asked.at));
            }
        }
        for (name, counts) in counts {
            pending.entry(name.clone()).or_default().counted = Some((counts.pending(), asked.at));
        }
    }
}

/// What was asked for a count.
struct Asked {
    at: Millis,
    /// Creates of each project until then.
    created: BTreeMap<String, u64>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::task::registry::Change;

    fn project(per_1000_s: u64, create_burst: u32) -> Project {
        let create_rate = Rate::per_1000_s(per_1000_s);
        Project { create_rate, create_burst, ..Project::NEVER_PUT }
    }

    #[test]
    fn a_burst_is_taken_at_once_and_then_what_the_rate_gives() {
        let (quotas, shop) = (Quotas::default(), project(2_000, 3));
        let take = |ms| quotas.take_at(EPOCH + Millis(ms), "shop", &shop, 1);
        assert_eq!([take(0), take(0), take(0)], [Ok(()), Ok(()), Ok(())]);
        let Err(Over::Rate(wait)) = take(0) else { panic!("over the rate") };
        assert!((400..=500).contains(&wait.0), "{wait}");
        assert!(take(wait.0 - 1).is_err());
        assert_eq!(take(wait.0), Ok(()));
        assert_eq!(quotas.take_at(EPOCH, "other", &shop, 1), Ok(()), "each project has its own");
    }

    #[test]
    fn instances_share_a_rate_and_a_change_neither_brings_a_burst_nor_takes_one() {
        let (quotas, shop) = (Quotas::default(), project(4_000, 4));
        let take = |ms, of| quotas.take_at(EPOCH + Millis(ms), "shop", &shop, of);
        assert_eq!(take(0, 4), Ok(()));
        assert!(take(0, 4).is_err(), "a quarter of the burst is one");
        assert!(take(900, 4).is_err(), "a quarter of it is one in a second");
        assert_eq!(take(1_000, 4), Ok(()));
        assert!(take(1_000, 1).is_err(), "alone by now, and with an empty bucket");
        assert_eq!(take(1_250, 1), Ok(()));
        // Four tokens have come by then. Who joins leaves this instance the two that are its share.
        assert_eq!([take(9_000, 2), take(9_000, 2)], [Ok(()), Ok(())]);
        assert!(take(9_000, 2).is_err());
        let free = Project::NEVER_PUT;
        assert_eq!(quotas.take_at(EPOCH, "shop", &free, 1), Ok(()));
        assert!(quotas.buckets.lock().is_empty());
    }

    fn bound(most: u64) -> (Registry, Project) {
        let shop = Project { revision: 1, max_pending: Some(most), ..Project::NEVER_PUT };
        let mut registry = Registry::default();
        registry.apply(Change::of_project("shop", shop.clone())).expect("room");
        (registry, shop)
    }

    #[test]
    fn what_is_pending_is_what_was_counted_and_what_was_created_since_the_question() {
        let (quotas, (registry, shop)) = (Quotas::default(), bound(10));
        let take = |ms| quotas.take_at(EPOCH + Millis(ms), "shop", &shop, 1);
        for _ in 0..20 {
            assert_eq!(take(0), Ok(()), "nothing was counted yet");
        }
        let (projects, asked) = quotas.begin_count(EPOCH, &registry);
        assert_eq!(projects, BTreeSet::from(["shop".to_owned()]));
        // Two more, while the owners count.
        assert_eq!([take(1), take(2)], [Ok(()), Ok(())]);
        let counts = |delay, running| {
            let counts = TaskCounts { delay, running, finished: 99, ..TaskCounts::default() };
            BTreeMap::from([("shop".to_owned(), counts)])
        };
        quotas.end_count(asked, &counts(4, 2));
        assert_eq!([take(3), take(4)], [Ok(()), Ok(())], "six and these two");
        assert_eq!(take(5), Err(Over::Pending(10)));
        assert_eq!(quotas.take_at(EPOCH, "other", &Project::NEVER_PUT, 1), Ok(()));
        // What was refused has cost nothing, and what has ended makes room.
        let (_, asked) = quotas.begin_count(EPOCH + Millis(5_000), &registry);
        quotas.end_count(asked, &counts(8, 1));
        assert_eq!([take(5_001), take(5_002)], [Ok(()), Err(Over::Pending(10))]);
        let (_, asked) = quotas.begin_count(EPOCH + Millis(6_000), &registry);
        quotas.end_count(asked, &BTreeMap::new());
        assert_eq!(take(6_001), Ok(()), "nothing is told of it: it has none");
        let (_, asked) = quotas.begin_count(EPOCH + Millis(7_000), &registry);
        quotas.end_count(asked, &counts(500, 0));
        assert_eq!(take(67_000), Err(Over::Pending(500)));
        assert_eq!(take(67_001), Ok(()), "a count of long ago says nothing");
    }

    #[test]
    fn a_project_without_a_bound_is_not_counted_and_one_of_none_takes_none() {
        let (quotas, (registry, shop)) = (Quotas::default(), bound(0));
        assert_eq!(quotas.take_at(EPOCH, "shop", &shop, 1), Err(Over::Pending(0)));
        let rate = Project { create_rate: Rate::per_1000_s(1), ..shop.clone() };
        let free = Project { max_pending: Some(1), ..rate };
        assert_eq!(quotas.take_at(EPOCH, "shop", &free, 1), Ok(()));
        assert!(matches!(quotas.take_at(EPOCH, "shop", &free, 1), Err(Over::Rate(_))));
        assert_eq!(quotas.pending.lock()["shop"].created, 1, "what was refused was not created");
        let Err(refusal) = quotas.take("shop", &shop, 1) else { panic!("over the bound") };
        assert_eq!(quotas.refused("shop").over_pending, 0, "its task may exist");
        assert_eq!(quotas.refuse("shop", refusal).status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(quotas.refused("shop").over_pending, 1);
        let (projects, asked) = quotas.begin_count(EPOCH, &Registry::default());
        assert!(projects.is_empty() && asked.created.is_empty());
        assert!(quotas.pending.lock().is_empty() && quotas.refused.lock().is_empty());
        assert_eq!(quotas.begin_count(EPOCH, &registry).0.len(), 1);
    }
}
