//! Makes a run that fails smaller: fewer submissions, fewer faults, as long as the same promise is broken.
//!
//! Delta debugging: ever smaller pieces are left out. A run is decided by its luck, too, and leaving something out changes
//! what comes of it; so a piece counts as needed only when a few orders of events do not fail without it.

use std::collections::BTreeSet;

use crate::options::Options;
use crate::plan::Plan;
use crate::run;

/// Runs that it may take.
const RUNS_MAX: u32 = 1_000;
/// Orders of events that are tried of each smaller plan.
const LUCKS: u64 = 4;

/// A smaller run that breaks the same promise, if `options` does.
pub struct Shrinking {
    promise: &'static str,
    pub least: Options,
    runs: u32,
}

impl Shrinking {
    pub fn new(options: Options, promise: &'static str) -> Self {
        Self { promise, least: options, runs: 0 }
    }

    /// Takes the smaller one if it fails.
    fn take(&mut self, smaller: &Options) -> bool {
        for more in 0..LUCKS {
            if self.runs == RUNS_MAX {
                return false;
            }
            self.runs += 1;
            let tried = Options { luck: self.least.luck + more, ..smaller.clone() };
            let world = run(&tried, 0);
            if world.breaches.iter().any(|breach| breach.promise == self.promise) {
                self.least = tried;
                return true;
            }
        }
        false
    }

    /// Leaves out what need not be among `of`; `with` puts what is left into the options.
    fn thin<T: Ord + Clone>(&mut self, of: Vec<T>, with: impl Fn(&mut Options, BTreeSet<T>)) {
        let mut left = of;
        let mut size = left.len();
        while size > 0 {
            let mut at = 0;
            while at < left.len() {
                let mut without = left.clone();
                without.drain(at..(at + size).min(left.len()));
                let mut smaller = self.least.clone();
                with(&mut smaller, without.iter().cloned().collect());
                if self.take(&smaller) {
                    left = without;
                } else {
                    at += size;
                }
            }
            size /= 2;
        }
    }

    /// Does it.
    pub fn run(mut self) -> Options {
        for _ in 0..2 {
            let faults = match &self.least.faults {
                Some(of) => of.iter().copied().collect(),
                None => (0..Plan::of(&self.least).faults.len()).collect(),
            };
            let submissions = match &self.least.submissions {
                Some(of) => of.iter().copied().collect(),
                None => (0..run_length(&self.least)).collect(),
            };
            let chances: Vec<String> = match &self.least.chances {
                Some(of) => of.iter().cloned().collect(),
                None => {
                    let mut network = Plan::of(&self.least).network;
                    network.chances().iter().map(|(name, _)| (*name).to_owned()).collect()
                }
            };
            self.thin(submissions, |options, of| options.submissions = Some(of));
            self.thin(faults, |options, of| options.faults = Some(of));
            self.thin(chances, |options, of| options.chances = Some(of));
        }
        self.least
    }
}

/// How many submissions a run has.
fn run_length(options: &Options) -> usize {
    let world = crate::world::World::new(options, 0);
    let tasks = &world.tasks;
    let planned = tasks.schedules.planned.len() + tasks.runs.planned.len();
    world.workload.submissions.len() + tasks.drafts.len() + planned
}
