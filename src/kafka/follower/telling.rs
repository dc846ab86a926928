//! What a lane thread is told of its timers: collected, and handed over in pieces.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crossbeam_channel::Sender;

use super::Told;
use crate::engine::timers::{Change, Live, TimerKey, Void};
use crate::engine::{Input, Lane};
use crate::index::Held;

/// Timers in one piece: the engine takes some milliseconds for it.
const PIECE: usize = 5_000;

/// Names that many timers share, each kept once.
#[derive(Debug, Default)]
struct Shared(HashSet<Arc<str>>);

impl Shared {
    fn one(&mut self, name: Arc<str>) -> Arc<str> {
        match self.0.get(&name) {
            Some(known) => Arc::clone(known),
            None => {
                self.0.insert(Arc::clone(&name));
                name
            }
        }
    }
}

/// All that holds of a lane's timers, by the records that were taken in.
#[derive(Debug, Default)]
pub(super) struct Holding {
    live: HashMap<TimerKey, Live>,
    voids: HashMap<TimerKey, Void>,
    shared: Shared,
}

impl Holding {
    /// Takes in what the index has.
    pub(super) fn hold(&mut self, held: Held) {
        match held {
            Held::Live(live) => self.live(live),
            Held::Void(void) => {
                self.voids.insert(void.name, void);
            }
        }
    }

    fn live(&mut self, mut live: Live) {
        live.target = self.shared.one(live.target);
        live.label = live.label.map(|label| self.shared.one(label));
        self.live.insert(live.name, live);
    }

    /// Takes in a record of the changelog.
    pub(super) fn take(&mut self, change: &Change) {
        match change {
            Change::Timer(timer) => match timer.live() {
                Some(live) => self.live(live),
                None => {
                    self.live.remove(&timer.name);
                }
            },
            Change::Void(void) => {
                self.voids.insert(void.name, *void);
            }
            Change::ForgottenTimer(name) => {
                self.live.remove(name);
            }
            Change::ForgottenVoid(name) => {
                self.voids.remove(name);
            }
        }
    }

    /// Hands all of it over, for an assignment; the last piece says that it is the last.
    pub(super) fn tell(self, lane: Lane, assignment: u64, to: &Sender<Told>) {
        let Self { live, voids, .. } = self;
        let known = |live, voids, whole| {
            // Nobody waits for it any more when the lanes have gone.
            let _ = to.send(Told { assignment, input: Input::Known { lane, live, voids, whole } });
        };
        pieces(live.into_values(), |live| known(live, Vec::new(), false));
        pieces(voids.into_values(), |voids| known(Vec::new(), voids, false));
        known(Vec::new(), Vec::new(), true);
    }
}

fn pieces<T>(mut all: impl Iterator<Item = T>, mut each: impl FnMut(Vec<T>)) {
    loop {
        let piece: Vec<T> = all.by_ref().take(PIECE).collect();
        if piece.is_empty() {
            return;
        }
        each(piece);
    }
}
