//! How many tasks of a project may be created in a time. Each instance takes its share of the rate that the project has.
//!
//! # Invariants
//! 1. A create that is refused has cost nothing: who waits as long as the answer says is taken, if nobody else was first.
//! 2. Projects without a rate take no room here.

use std::collections::HashMap;
use std::time::Instant;

use axum::http::StatusCode;
use parking_lot::Mutex;

use super::super::problem::Problem;
use super::super::projects::model::RefusedCreates;
use crate::engine::Millis;
use crate::engine::task::bucket::{Bucket, Rate};
use crate::engine::task::registry::Project;

/// Time counts from here on. So a bucket that is empty at zero is full by now, whatever its burst is.
const EPOCH: Millis = Millis(1 << 50);

/// The buckets of all projects.
pub struct Quotas {
    began: Instant,
    buckets: Mutex<HashMap<String, Held>>,
    /// Of the projects that were refused creates.
    refused: Mutex<HashMap<String, RefusedCreates>>,
}

struct Held {
    rate: Rate,
    burst: u32,
    bucket: Bucket,
}

impl Default for Quotas {
    fn default() -> Self {
        Self { began: Instant::now(), buckets: Mutex::default(), refused: Mutex::default() }
    }
}

impl Quotas {
    /// Takes one create. `instances`: how many share the rate.
    ///
    /// # Errors
    /// There were too many: 429, with when to come back.
    pub(super) fn take(
        &self,
        name: &str,
        project: &Project,
        instances: u16,
    ) -> Result<(), Problem> {
        let passed = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        let now = Millis(EPOCH.0.saturating_add(passed));
        let Err(wait) = self.take_at(now, name, project, instances) else { return Ok(()) };
        self.refused.lock().entry(name.to_owned()).or_default().over_create_rate += 1;
        let rate = project.create_rate.map_or(0, Rate::whole_per_1000_s) as f64 / 1_000.0;
        let detail = format!(
            "the project {name} may create {rate} tasks a second (`create_rate`), and up to {} at once, over all instances with the API; \
             this instance's share is used up, and nothing was created",
            project.create_burst
        );
        let seconds = u32::try_from(wait.0.div_ceil(1_000).max(1)).unwrap_or(u32::MAX);
        Err(Problem::new(StatusCode::TOO_MANY_REQUESTS, "over_create_rate", detail).later(seconds))
    }

    /// How many creates of a project were refused.
    pub(in crate::api) fn refused(&self, name: &str) -> RefusedCreates {
        self.refused.lock().get(name).copied().unwrap_or_default()
    }

    /// The same at a time; an error is how long to wait.
    fn take_at(
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
}

#[cfg(test)]
mod tests {
    use super::*;

    fn project(per_1000_s: u64, create_burst: u32) -> Project {
        let create_rate = Rate::per_1000_s(per_1000_s);
        Project { create_rate, create_burst, ..Project::NEVER_PUT }
    }

    #[test]
    fn a_burst_is_taken_at_once_and_then_what_the_rate_gives() {
        let (quotas, shop) = (Quotas::default(), project(2_000, 3));
        let take = |ms| quotas.take_at(EPOCH + Millis(ms), "shop", &shop, 1);
        assert_eq!([take(0), take(0), take(0)], [Ok(()), Ok(()), Ok(())]);
        let wait = take(0).unwrap_err();
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
}
