//! What to do at a nominal time, and with those that nobody was there for.

use super::{Misfire, Timing};
use crate::{Millis, UnixMillis};

/// Most nominal times that are created at once, with any [`Misfire`].
pub const FIRE_ALL_MAX: usize = 100;

/// What has come of a schedule's nominal times up to now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Late {
    /// Those whose tasks are to be created, the first ones first.
    pub create: Vec<UnixMillis>,
    /// There are others that have passed, and no task is created for them.
    pub has_skipped: bool,
    /// The next one after those; `None`: the schedule is over.
    pub next: Option<UnixMillis>,
}

impl Timing {
    /// What to do now with the times up to `upto`, after `last`: the last nominal time that was handled, or the time at which the schedule
    /// was made, changed or resumed.
    ///
    /// A time is late if it is more than `grace` before now. Those that are not late are created each. Of those that are late,
    /// `skip` creates none, `fire_all` all of them, and `fire_once` the last one, unless one that is not late stands for it.
    /// In all, the last [`FIRE_ALL_MAX`] are created at most.
    ///
    /// The search begins at `upto` and goes backwards, so it does not matter how many times were missed.
    #[must_use]
    pub fn late(
        &self,
        last: UnixMillis,
        (upto, now): (UnixMillis, UnixMillis),
        grace: Millis,
    ) -> Late {
        let since = last + Millis(1);
        let mut create: Vec<UnixMillis> = Vec::new();
        let mut passed = self.last_until(upto, since);
        while let Some(time) = passed {
            let is_late = now - time > grace;
            let is_created = match self.misfire {
                Misfire::FireOnce => !is_late || create.is_empty(),
                Misfire::Skip => !is_late,
                Misfire::FireAll => true,
            };
            if !is_created || create.len() == FIRE_ALL_MAX {
                break;
            }
            create.push(time);
            passed = self.last_until(time - Millis(1), since);
        }
        create.reverse();
        Late { create, has_skipped: passed.is_some(), next: self.next_after(upto.max(last)) }
    }
}

#[cfg(test)]
mod tests;
