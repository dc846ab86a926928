//! The search: every order that the times allow, depth first, with a memory of the states it has seen.

use std::collections::HashSet;

use super::{Answer, Fate, History, Index, STATES_MAX, State, What};

pub(super) struct Search<'a> {
    pub(super) history: &'a History,
    pub(super) after: Vec<u64>,
    pub(super) tries: Vec<Index>,
}

impl Search<'_> {
    pub(super) fn go(
        &self,
        state: State,
        seen: &mut HashSet<State>,
        order: &mut Vec<Index>,
    ) -> bool {
        if order.len() == self.tries.len() {
            return state.live.is_none();
        }
        if seen.len() >= STATES_MAX || !seen.insert(state.clone()) {
            return false;
        }
        for &index in &self.tries {
            let ready = state.done & (1 << index) == 0 && self.after[index] & !state.done == 0;
            if !ready {
                continue;
            }
            order.push(index);
            for mut next in self.apply(&state, index) {
                next.done |= 1 << index;
                if self.go(next, seen, order) {
                    return true;
                }
            }
            order.pop();
        }
        false
    }

    /// All that can come of an operation.
    pub(super) fn apply(&self, state: &State, index: Index) -> Vec<State> {
        match self.history.operations[index].what {
            What::Create => self.create(state, index),
            What::Replace { of } => self.replace(state, index, of),
            What::Cancel { of: None, answer, forgotten } => {
                self.cancel(state, index, answer, forgotten)
            }
            What::Cancel { of: Some(version), answer, forgotten } => {
                let forgotten = forgotten || self.is_overtaken(index);
                self.cancel_version(state, version, answer, forgotten)
            }
            What::Fire(version) => match state.fates[version] {
                Fate::Live => vec![state.settle(version, Fate::Delivered)],
                _ => Vec::new(),
            },
            What::Dead(version) => match state.fates[version] {
                Fate::Live => vec![state.settle(version, Fate::Dead)],
                Fate::Refused => vec![state.clone()],
                _ => Vec::new(),
            },
        }
    }

    fn create(&self, state: &State, version: Index) -> Vec<State> {
        let mut nexts = Vec::new();
        let (must, may) = self.void(state, version);
        if !must {
            let is_duplicate = match state.live {
                Some(_) => Some(true),
                None => self.history.is_late(state, version),
            };
            if is_duplicate != Some(true) {
                nexts.push(state.begin(version));
            }
            if is_duplicate != Some(false) {
                nexts.push(state.settle(version, Fate::Duplicate));
            }
        }
        if may {
            nexts.push(state.settle(version, Fate::Void));
        }
        nexts.extend(self.refused(state, version));
        nexts
    }

    fn replace(&self, state: &State, version: Index, of: Option<Index>) -> Vec<State> {
        let mut nexts = Vec::new();
        if of.is_some() && of != state.live {
            // It says so, and is nothing.
            nexts.push(state.settle(version, Fate::Void));
            return nexts;
        }
        let (must, may) = self.void(state, version);
        let is_late = match state.live {
            None => self.history.is_late(state, version),
            Some(_) => Some(false),
        };
        let (must, may) = (must || is_late == Some(true), may || is_late != Some(false));
        if !must {
            nexts.push(state.begin(version));
        }
        // One that comes late finds a later one in its place.
        let late = state.live.is_some_and(|live| self.history.covers(version, live) != Some(true));
        if may || late {
            nexts.push(state.settle(version, Fate::Void));
        }
        nexts.extend(self.refused(state, version));
        nexts
    }

    /// A dead letter that never was pending.
    fn refused(&self, state: &State, version: Index) -> Option<State> {
        let mut all = self.history.operations.iter();
        all.any(|of| of.what == What::Dead(version)).then(|| state.settle(version, Fate::Refused))
    }

    /// Whether a version must be void by what was decided before, and whether it may be.
    fn void(&self, state: &State, version: Index) -> (bool, bool) {
        let (mut must, mut may) = (false, false);
        for (index, of) in self.history.operations.iter().enumerate() {
            if state.done & (1 << index) == 0 {
                continue;
            }
            let covers = || self.history.covers(index, version);
            match of.what {
                What::Cancel { of: None, answer, forgotten } if answer != Some(Answer::Refused) => {
                    must |= covers() == Some(true) && !forgotten;
                    may |= covers() != Some(false);
                }
                What::Cancel { of: Some(of), .. } => may |= of == version,
                What::Replace { .. } => may |= covers() != Some(false),
                _ => {}
            }
        }
        (must, may || must)
    }

    fn cancel(
        &self,
        state: &State,
        index: Index,
        answer: Option<Answer>,
        forgotten: bool,
    ) -> Vec<State> {
        if answer == Some(Answer::Refused) {
            return vec![state.clone()];
        }
        let covers = |version| self.history.covers(index, version);
        let mut nexts = Vec::new();
        if let Some(live) = state.live
            && covers(live) != Some(false)
            && answer.is_none_or(|answer| answer == Answer::Cancelled)
        {
            nexts.extend(self.follow(state.settle(live, Fate::Cancelled), index, live));
        }
        let misses = state.live.is_none_or(|live| covers(live) != Some(true));
        if misses && answer.is_none_or(|answer| self.is_true(state, index, answer, forgotten)) {
            // It is not promised that one that comes after the end still parts what was before it from what was behind it.
            nexts.push(state.clone());
            let met =
                state.last.filter(|last| state.live.is_none() && covers(*last) != Some(false));
            nexts.extend(met.into_iter().flat_map(|last| self.follow(state.clone(), index, last)));
        }
        nexts
    }

    /// What is pending once a cancel has met this version, which has ended: nothing; or if the cancel came late, the first create
    /// that was taken for a duplicate of that version and had been sent after the cancel.
    fn follow(&self, state: State, cancel: Index, ended: Index) -> Vec<State> {
        let ops = &self.history.operations;
        let is_behind = |at: &Index| {
            ops[*at].what == What::Create
                && self.history.covers(cancel, *at) != Some(true)
                && self.history.covers(*at, ended) != Some(false)
                && !self.void(&state, *at).0
        };
        let duplicates = (0..ops.len()).filter(|at| state.fates[*at] == Fate::Duplicate);
        let behind: Vec<Index> = duplicates.filter(is_behind).collect();
        let mut nexts: Vec<State> = behind.iter().map(|at| state.begin(*at)).collect();
        // A later version of the timer may stand for it: which of them is pending is not promised after a change of
        // owners.
        let is_later = |at: Index| {
            let is_ahead = state.done & (1 << at) == 0;
            is_ahead && matches!(ops[at].what, What::Create | What::Replace { of: None })
        };
        let is_certain = |at: &Index| {
            let stand = &ops[*at].stand;
            !stand.in_tier
                && !self.history.poisoned
                && self.history.covers(cancel, *at) == Some(false)
        };
        if !behind.iter().any(is_certain) || (0..ops.len()).any(is_later) {
            nexts.push(state);
        }
        nexts
    }

    /// Whether the timer was created again before the answer came: only the last version's end is kept.
    fn is_overtaken(&self, cancel: Index) -> bool {
        let ops = &self.history.operations;
        ops.iter().enumerate().any(|(index, of)| {
            matches!(of.what, What::Create | What::Replace { .. })
                && of.from < ops[cancel].until
                && self.history.covers(cancel, index) != Some(true)
        })
    }

    /// Whether a cancel may have kept a version from its target between its effect and its answer. What became of a timer is
    /// looked up for the answer, and not when the cancel is decided: an owner that stood still in between finds what came by
    /// meanwhile. A later cancel can have been answered before that, when nothing had come.
    fn is_kept_later(&self, state: &State, cancel: Index) -> bool {
        let ops = &self.history.operations;
        let is_seen = |at: Index| {
            ops.iter().any(|of| matches!(of.what, What::Fire(of) | What::Dead(of) if of == at))
        };
        ops.iter().enumerate().any(|(at, of)| {
            matches!(of.what, What::Create | What::Replace { .. })
                && state.done & (1 << at) == 0
                && of.from < ops[cancel].until
                && self.history.covers(cancel, at) != Some(false)
                && !is_seen(at)
        })
    }

    /// Whether a cancel that finds nothing pending may be answered so.
    fn is_true(&self, state: &State, index: Index, answer: Answer, forgotten: bool) -> bool {
        let covered = |version: &Index| self.history.covers(index, *version) != Some(false);
        let of = |fate: Fate| (0..state.fates.len()).filter(move |at| state.fates[*at] == fate);
        let last = state.last.map(|last| state.fates[last]);
        // The last one was submitted after the cancel: nothing is promised but of those from before.
        let late = state.last.is_some_and(|last| self.history.covers(index, last) != Some(true));
        match answer {
            Answer::Cancelled => {
                last == Some(Fate::Cancelled)
                    || of(Fate::Void).any(|at| covered(&at))
                    || late && of(Fate::Cancelled).any(|at| covered(&at))
                    || self.is_kept_later(state, index)
            }
            Answer::Delivered => {
                last == Some(Fate::Delivered) || late && of(Fate::Delivered).any(|at| covered(&at))
            }
            Answer::Unknown => {
                forgotten
                    || late
                    || self.is_overtaken(index)
                    || last.is_none_or(|last| last == Fate::Dead)
                    || of(Fate::Refused).next().is_some()
            }
            Answer::Superseded | Answer::Refused => false,
        }
    }

    /// A cancel that names a version does nothing to any other.
    fn cancel_version(
        &self,
        state: &State,
        version: Index,
        answer: Option<Answer>,
        forgotten: bool,
    ) -> Vec<State> {
        let fate = state.fates[version];
        // One that was submitted since, and cancelled before it came, is told in its place.
        let is_told_of_another = || {
            (0..state.fates.len()).any(|at| {
                let is_late = !self.history.operations[at].stand.straight;
                state.fates[at] == Fate::Void
                    && is_late
                    && self.history.covers(at, version) != Some(false)
            })
        };
        let is_true = |answer: Answer| match answer {
            Answer::Refused => true,
            Answer::Cancelled => matches!(fate, Fate::Live | Fate::Cancelled | Fate::Void),
            Answer::Delivered => fate == Fate::Delivered,
            // One that was cancelled, and another is there now: either is said of it.
            Answer::Superseded => {
                let other = state.last.is_some_and(|last| last != version);
                fate == Fate::Superseded || other && matches!(fate, Fate::Cancelled | Fate::Void)
            }
            Answer::Unknown => {
                let known = matches!(fate, Fate::Live | Fate::Cancelled | Fate::Delivered);
                let is_last = state.last == Some(version) && !is_told_of_another();
                fate != Fate::Live && (!known || forgotten || !is_last)
            }
        };
        if !answer.is_none_or(is_true) {
            return Vec::new();
        }
        let acts = fate == Fate::Live && answer != Some(Answer::Refused);
        vec![if acts { state.settle(version, Fate::Cancelled) } else { state.clone() }]
    }
}
