//! How many tasks of a project may be created in a time, and how many it may have. Each instance takes its share of the rate that the
//! project has. Of what is pending it knows what the owners of the lanes have counted last, and what it has created that may not be
//! in that.
//!
//! # Invariants
//! 1. A create that is refused has cost nothing: who waits as long as the answer says is taken, if nobody else was first.
//! 2. Projects without a rate take no room among the buckets, and those without a bound are not counted.
//! 3. A count that is older than [`COUNT_MAX`] refuses nothing: it may be wrong by any number.
//! 4. A create counts from the moment that it is taken, before the first count of its project, too.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use parking_lot::Mutex;

use super::super::problem::Problem;
use super::super::projects::model::RefusedCreates;
use super::Tasks;
use crate::engine::Millis;
use crate::engine::task::bucket::{Bucket, Rate};
use crate::engine::task::registry::{Project, Registry};
use crate::engine::task::spec::Spec;
use crate::engine::timers::TaskCounts;

/// Time counts from here on. So a bucket that is empty at zero is full by now, whatever its burst is.
const EPOCH: Millis = Millis(1 << 50);
/// Between two counts of what is pending.
const COUNT_EVERY: Duration = Duration::from_secs(5);
/// For how long a count says something, if no other one follows.
const COUNT_MAX: Millis = Millis(60_000);
/// So long after it was taken, a create is in a count at the latest: it is written, its lane has decided it, and the index has read
/// that.
const READ_MAX: Millis = Millis(2_000);
/// Creates are remembered by so long a time.
const SLOT: u64 = 100;

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
struct Pending {
    /// How many were counted, and when that was asked. Before the first count: none, when the first one was created here.
    counted: (u64, Millis),
    /// How many were created here that may not be counted, by when that was, in order.
    created: VecDeque<(Millis, u64)>,
}

impl Pending {
    const fn uncounted(now: Millis) -> Self {
        Self { counted: (0, now), created: VecDeque::new() }
    }

    /// How many there are, as far as that is known: those that were counted, and those that were created here and may not be among
    /// them. `None`: too little is known.
    fn now(&self, now: Millis) -> Option<(u64, u64)> {
        let (counted, at) = self.counted;
        let is_fresh = now.saturating_sub(at) <= COUNT_MAX;
        is_fresh.then(|| (counted, self.created.iter().map(|(_, count)| count).sum()))
    }

    fn create(&mut self, now: Millis, makes: u64) {
        let slot = Millis(now.0 / SLOT * SLOT);
        match self.created.back_mut() {
            Some((at, count)) if *at == slot => *count = count.saturating_add(makes),
            _ => self.created.push_back((slot, makes)),
        }
    }

    /// Forgets what was created so long before then that it is in a count.
    fn forget(&mut self, asked: Millis) {
        let is_counted = |at: Millis| at.0 + SLOT + READ_MAX.0 <= asked.0;
        while self.created.pop_front_if(|(at, _)| is_counted(*at)).is_some() {}
    }

    fn end_count(&mut self, count: u64, asked: Millis) {
        self.counted = (count, asked);
        self.forget(asked);
    }
}

/// Why a create is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Over {
    /// Too many in this time; so long to wait.
    Rate(Millis),
    /// So many were counted, and so many were created here that may not be among them.
    Pending(u64, u64),
}

/// That a create is over a quota.
pub(in crate::api) struct Refusal {
    over: Over,
    problem: Problem,
}

/// How many tasks of its project are pending by one create: one, or a run and its shards.
pub(in crate::api) fn pending_of(spec: &Spec) -> u64 {
    1 + spec.run().map_or(0, |run| u64::from(run.shards()))
}

/// How many creates of a project there is room for, of so many: at least one. `pending`: how many tasks each of them makes.
pub(in crate::api) fn take_room(
    tasks: &Tasks,
    project: &str,
    (wanted, pending): (usize, u64),
) -> Result<usize, Problem> {
    let registry = tasks.projects.registry()?;
    let of = registry.project(project);
    for taken in 0..wanted {
        match tasks.quotas.take(project, of, (tasks.desk.instances(), pending)) {
            Ok(()) => {}
            Err(refusal) if taken == 0 => return Err(tasks.quotas.refuse(project, refusal)),
            Err(_) => return Ok(taken),
        }
    }
    Ok(wanted)
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

    /// Takes one create. `instances`: how many share the rate. `pending`: how many tasks it makes, see [`pending_of`].
    ///
    /// # Errors
    /// There were too many, or there are: [`Quotas::refuse`] it, unless its task exists.
    pub(in crate::api) fn take(
        &self,
        name: &str,
        project: &Project,
        (instances, pending): (u16, u64),
    ) -> Result<(), Refusal> {
        let taken = self.take_at(self.now(), name, project, (instances, pending));
        let Err(over) = taken else { return Ok(()) };
        let never = project.max_pending.is_some_and(|most| pending > most);
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
            Over::Pending(counted, created) => {
                let run = match pending {
                    0 | 1 => String::new(),
                    more => format!("with its shards the run is {more} of them, "),
                };
                let detail = format!(
                    "the project {name} may have {} pending tasks (`max_pending`); {run}{counted} were counted last, and this instance has created {created} \
                     that may not be among them; this request created nothing",
                    project.max_pending.unwrap_or_default()
                );
                ("over_pending", detail, Millis(COUNT_EVERY.as_millis() as u64))
            }
        };
        let seconds = u32::try_from(wait.0.div_ceil(1_000).max(1)).unwrap_or(u32::MAX);
        let problem = Problem::new(StatusCode::TOO_MANY_REQUESTS, code, detail);
        // It does not help to wait for what may have none.
        let problem = if never { problem } else { problem.later(seconds) };
        Err(Refusal { over, problem })
    }

    /// Counts that a create of a project was refused; what to answer: 429, with when to come back.
    pub(in crate::api) fn refuse(&self, name: &str, refusal: Refusal) -> Problem {
        let mut all = self.refused.lock();
        let refused = all.entry(name.to_owned()).or_default();
        match refusal.over {
            Over::Rate(_) => refused.over_create_rate += 1,
            Over::Pending(..) => refused.over_pending += 1,
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
        (instances, makes): (u16, u64),
    ) -> Result<(), Over> {
        let of_rate = || self.take_of_rate(now, name, project, instances).map_err(Over::Rate);
        let Some(most) = project.max_pending else { return of_rate() };
        let mut all = self.pending.lock();
        let pending = all.entry(name.to_owned()).or_insert_with(|| Pending::uncounted(now));
        let (counted, created) = pending.now(now).unwrap_or_default();
        if counted.saturating_add(created).saturating_add(makes) > most {
            return Err(Over::Pending(counted, created));
        }
        of_rate()?;
        pending.create(now, makes);
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
        let asked = self.now();
        let projects = self.begin_count(asked, &registry);
        if projects.is_empty() {
            return;
        }
        match super::counts(tasks, &projects).await {
            Ok(counts) => self.end_count(asked, &projects, &counts),
            Err(problem) => {
                tracing::debug!(problem = %problem.as_json(), "pending tasks are not counted now");
            }
        }
    }

    /// Which projects are to be counted.
    fn begin_count(&self, now: Millis, registry: &Registry) -> BTreeSet<String> {
        let is_bound = |name: &str| registry.project(name).max_pending.is_some();
        let mut pending = self.pending.lock();
        pending.retain(|name, _| is_bound(name));
        // A count that says something was asked after that, whether this one is answered or not.
        let before_any = now.saturating_sub(COUNT_MAX);
        pending.values_mut().for_each(|of| of.forget(before_any));
        let is_limited =
            |name: &str| is_bound(name) || registry.project(name).create_rate.is_some();
        self.refused.lock().retain(|name, _| is_limited(name));
        let projects = registry.projects().filter(|(_, of)| of.max_pending.is_some());
        projects.map(|(name, _)| name.to_owned()).collect()
    }

    /// What was counted of these projects. Nothing is told of one without tasks.
    fn end_count(
        &self,
        asked: Millis,
        projects: &BTreeSet<String>,
        counts: &BTreeMap<String, TaskCounts>,
    ) {
        let mut pending = self.pending.lock();
        for name in projects {
            let count = counts.get(name).map_or(0, TaskCounts::pending);
            let of = pending.entry(name.clone()).or_insert_with(|| Pending::uncounted(asked));
            of.end_count(count, asked);
        }
    }
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
        let take = |ms| quotas.take_at(EPOCH + Millis(ms), "shop", &shop, (1, 1));
        assert_eq!([take(0), take(0), take(0)], [Ok(()), Ok(()), Ok(())]);
        let Err(Over::Rate(wait)) = take(0) else { panic!("over the rate") };
        assert!((400..=500).contains(&wait.0), "{wait}");
        assert!(take(wait.0 - 1).is_err());
        assert_eq!(take(wait.0), Ok(()));
        assert_eq!(
            quotas.take_at(EPOCH, "other", &shop, (1, 1)),
            Ok(()),
            "each project has its own"
        );
    }

    #[test]
    fn instances_share_a_rate_and_a_change_neither_brings_a_burst_nor_takes_one() {
        let (quotas, shop) = (Quotas::default(), project(4_000, 4));
        let take = |ms, of| quotas.take_at(EPOCH + Millis(ms), "shop", &shop, (of, 1));
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
        assert_eq!(quotas.take_at(EPOCH, "shop", &free, (1, 1)), Ok(()));
        assert!(quotas.buckets.lock().is_empty());
    }

    fn bound(most: u64) -> (Registry, Project) {
        let shop = Project { revision: 1, max_pending: Some(most), ..Project::NEVER_PUT };
        let mut registry = Registry::default();
        registry.apply(Change::of_project("shop", shop.clone())).expect("room");
        (registry, shop)
    }

    /// Asks at one time for a count, which says this of the project.
    fn count(quotas: &Quotas, ms: u64, registry: &Registry, pending: u64) {
        let asked = EPOCH + Millis(ms);
        let projects = quotas.begin_count(asked, registry);
        assert_eq!(projects, BTreeSet::from(["shop".to_owned()]));
        let counts = TaskCounts { delay: pending, finished: 99, ..TaskCounts::default() };
        // Nothing is told of a project without tasks.
        let counts = (pending > 0).then(|| ("shop".to_owned(), counts)).into_iter().collect();
        quotas.end_count(asked, &projects, &counts);
    }

    #[test]
    fn what_is_pending_is_what_was_counted_and_what_was_created_since() {
        let (quotas, (registry, shop)) = (Quotas::default(), bound(10));
        let take = |ms| quotas.take_at(EPOCH + Millis(ms), "shop", &shop, (1, 1));
        count(&quotas, 0, &registry, 6);
        let run = quotas.take_at(EPOCH, "shop", &shop, (1, 5));
        assert_eq!(run, Err(Over::Pending(6, 0)), "a run of four shards");
        assert_eq!([take(1), take(4_999)], [Ok(()), Ok(())]);
        // Two more, while the owners count.
        let asked = EPOCH + Millis(9_000);
        let projects = quotas.begin_count(asked, &registry);
        assert_eq!([take(9_001), take(9_002)], [Ok(()), Ok(())]);
        assert_eq!(take(9_003), Err(Over::Pending(6, 4)));
        let counts = TaskCounts { delay: 5, ready: 1, running: 2, ..TaskCounts::default() };
        quotas.end_count(asked, &projects, &BTreeMap::from([("shop".to_owned(), counts)]));
        assert_eq!(take(9_004), Err(Over::Pending(8, 2)), "those are in no count");
        assert_eq!(quotas.take_at(EPOCH, "other", &Project::NEVER_PUT, (1, 1)), Ok(()));
        // What was refused has cost nothing, and what has ended makes room.
        count(&quotas, 14_000, &registry, 9);
        assert_eq!([take(14_001), take(14_002)], [Ok(()), Err(Over::Pending(9, 1))]);
        count(&quotas, 30_000, &registry, 500);
        assert_eq!(take(90_000), Err(Over::Pending(500, 0)));
        assert_eq!(take(90_001), Ok(()), "a count of long ago says nothing");
    }

    #[test]
    fn the_first_tasks_of_a_project_are_bound_whether_it_was_counted_or_not() {
        for is_counted in [true, false] {
            let (quotas, (registry, shop)) = (Quotas::default(), bound(2));
            if is_counted {
                count(&quotas, 0, &registry, 0);
            }
            let take = |ms| quotas.take_at(EPOCH + Millis(ms), "shop", &shop, (1, 1));
            assert_eq!([take(1_000), take(1_010)], [Ok(()), Ok(())], "{is_counted}");
            for ms in [1_020, 1_030, 1_040] {
                assert_eq!(take(ms), Err(Over::Pending(0, 2)), "{is_counted}");
            }
        }
        // Nobody counts: so little is known that nothing is refused.
        let (quotas, (_, shop)) = (Quotas::default(), bound(1));
        let take = |ms| quotas.take_at(EPOCH + Millis(ms), "shop", &shop, (1, 1));
        assert_eq!([take(0), take(60_000)], [Ok(()), Err(Over::Pending(0, 1))]);
        assert_eq!(take(60_001), Ok(()));
    }

    #[test]
    fn a_create_counts_until_a_count_has_it() {
        let (quotas, (registry, shop)) = (Quotas::default(), bound(3));
        let take = |ms| quotas.take_at(EPOCH + Millis(ms), "shop", &shop, (1, 1));
        count(&quotas, 0, &registry, 1);
        assert_eq!([take(4_900), take(4_980)], [Ok(()), Ok(())]);
        // Their lanes have not read them yet.
        count(&quotas, 5_000, &registry, 1);
        for ms in [5_020, 9_999] {
            assert_eq!(take(ms), Err(Over::Pending(1, 2)));
        }
        count(&quotas, 10_000, &registry, 3);
        assert_eq!(take(10_001), Err(Over::Pending(3, 0)));
        count(&quotas, 15_000, &registry, 2);
        assert_eq!([take(15_001), take(15_002)], [Ok(()), Err(Over::Pending(2, 1))]);
    }

    #[test]
    fn what_other_instances_have_created_counts_from_the_next_count_on() {
        let (registry, shop) = bound(3);
        let [here, there] = [Quotas::default(), Quotas::default()];
        let take = |of: &Quotas, ms| of.take_at(EPOCH + Millis(ms), "shop", &shop, (2, 1));
        for of in [&here, &there] {
            count(of, 0, &registry, 0);
        }
        assert_eq!([take(&here, 100), take(&here, 200)], [Ok(()), Ok(())]);
        assert_eq!([take(&there, 100), take(&there, 200)], [Ok(()), Ok(())]);
        for of in [&here, &there] {
            count(of, 5_000, &registry, 4);
        }
        assert_eq!(take(&here, 5_001), Err(Over::Pending(4, 0)));
        assert_eq!(take(&there, 5_001), Err(Over::Pending(4, 0)));
    }

    #[test]
    fn creates_that_nobody_counts_take_no_more_room() {
        let (quotas, (registry, shop)) = (Quotas::default(), bound(1 << 40));
        for second in 0..1_000 {
            let now = EPOCH + Millis(second * 1_000);
            assert_eq!(quotas.take_at(now, "shop", &shop, (1, 1)), Ok(()));
            quotas.begin_count(now, &registry);
        }
        assert!(quotas.pending.lock()["shop"].created.len() <= 64);
    }

    #[test]
    fn a_project_without_a_bound_is_not_counted_and_one_of_none_takes_none() {
        let (quotas, (registry, shop)) = (Quotas::default(), bound(0));
        assert_eq!(quotas.take_at(EPOCH, "shop", &shop, (1, 1)), Err(Over::Pending(0, 0)));
        let rate = Project { create_rate: Rate::per_1000_s(1), ..shop.clone() };
        let free = Project { max_pending: Some(9), ..rate };
        assert_eq!(quotas.take_at(EPOCH, "shop", &free, (1, 1)), Ok(()));
        assert!(matches!(quotas.take_at(EPOCH, "shop", &free, (1, 1)), Err(Over::Rate(_))));
        let created = quotas.pending.lock()["shop"].now(EPOCH).map(|(_, created)| created);
        assert_eq!(created, Some(1), "what was refused was not created");
        let Err(refusal) = quotas.take("shop", &shop, (1, 1)) else { panic!("over the bound") };
        assert_eq!(quotas.refused("shop").over_pending, 0, "its task may exist");
        let problem = quotas.refuse("shop", refusal);
        assert_eq!((problem.status(), problem.retry_s()), (StatusCode::TOO_MANY_REQUESTS, None));
        assert_eq!(quotas.refused("shop").over_pending, 1);
        assert!(quotas.begin_count(EPOCH, &Registry::default()).is_empty());
        assert!(quotas.pending.lock().is_empty() && quotas.refused.lock().is_empty());
        assert_eq!(quotas.begin_count(EPOCH, &registry).len(), 1);
    }
}
