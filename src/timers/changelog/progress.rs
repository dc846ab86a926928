//! How far each lane's index is, for the queries that wait for it.

use parking_lot::{Mutex, MutexGuard};
use std::time::Instant;

use tokio::sync::Notify;
use tokio::time::timeout_at;

use crate::engine::{Lane, Offset};

/// What the index of a lane is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::timers) enum Reach {
    /// It holds what was asked for.
    Reached,
    /// Not yet, or nobody follows the lane here.
    Behind,
    /// There is no index in this run.
    Without,
}

#[derive(Debug)]
struct State {
    /// One past the last offset that is in the index; `None` where no lane is followed.
    lanes: Vec<Option<Offset>>,
    is_without: bool,
}

/// Positions of the lanes that are followed, shared with the look-ups of timers.
#[derive(Debug)]
pub(in crate::timers) struct Progress {
    state: Mutex<State>,
    changed: Notify,
}

impl Progress {
    pub(super) fn new(lanes: u16) -> Self {
        let state = State { lanes: vec![None; usize::from(lanes)], is_without: false };
        Self { state: Mutex::new(state), changed: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    pub(super) fn set(&self, lane: Lane, next: Option<Offset>) {
        if let Some(known) = self.lock().lanes.get_mut(usize::from(lane.0)) {
            *known = next;
        }
        self.changed.notify_waiters();
    }

    pub(super) fn give_up(&self) {
        self.lock().is_without = true;
        self.changed.notify_waiters();
    }

    /// Waits until the index of a lane holds everything before `mark`, at most until `by`.
    pub(in crate::timers) async fn wait(&self, lane: Lane, mark: Offset, by: Instant) -> Reach {
        loop {
            // What changes after this line wakes it.
            let changed = self.changed.notified();
            let reach = self.reach(lane, mark);
            if reach != Reach::Behind || timeout_at(by.into(), changed).await.is_err() {
                return reach;
            }
        }
    }

    fn reach(&self, lane: Lane, mark: Offset) -> Reach {
        let state = self.lock();
        if state.is_without {
            return Reach::Without;
        }
        let next = state.lanes.get(usize::from(lane.0)).copied().flatten();
        if next.is_some_and(|next| next >= mark) { Reach::Reached } else { Reach::Behind }
    }
}
