//! Whether what was said and seen of one timer can have happened one thing after the other: a search, as Wing and Gong
//! have it, over everything that clients did, were answered and saw.
//!
//! It knows only what is known outside: when a command was sent and where Kafka said that it stands, when an answer came,
//! when a record was visible in its target. What an owner decided, and when, it has to find out.
//!
//! # Invariants
//! 1. An operation takes effect after it was sent, and before its answer came or its record was seen.
//! 2. Commands that went to their own lane's intake take effect in the order of that log. One that was moved there, or
//!    written to a tier, takes effect when it comes by; a cancel is about what stood before it all the same.
//! 3. What cannot be told from outside counts as possible: it never objects to what may have been right.

#[cfg(test)]
mod tests;

use std::collections::HashSet;

/// An operation by its index.
pub type Index = usize;

/// Operations that a history may have, at most.
pub const OPERATIONS_MAX: usize = 64;
/// States that a search looks at, at most.
const STATES_MAX: usize = 400_000;

/// What a cancel was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    Cancelled,
    Delivered,
    Superseded,
    Unknown,
    /// It was not taken, and did nothing.
    Refused,
}

/// What is done, or seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    Create,
    /// A replace of whatever is pending, or of the one version that an operation made.
    Replace {
        of: Option<Index>,
    },
    /// A cancel of the timer, or of the one version that an operation made.
    Cancel {
        of: Option<Index>,
        answer: Option<Answer>,
        /// What became of the timer may have been forgotten by then.
        forgotten: bool,
    },
    /// This version was seen in its target.
    Fire(Index),
    /// This version was seen among the dead letters.
    Dead(Index),
}

/// Where a command stands, as Kafka told who sent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stand {
    /// The append time.
    pub stamp: u64,
    /// Topic and partition.
    pub log: (usize, i32),
    pub offset: i64,
    /// It is its own lane's intake.
    pub prompt: bool,
}

/// One operation, in any unit of time.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    pub what: What,
    pub from: u64,
    /// `u64::MAX`: nobody was told when it was done.
    pub until: u64,
    /// Where a command stands; of what is seen, where its version does.
    pub stand: Stand,
}

/// All that is known of one timer.
#[derive(Clone, Debug, Default)]
pub struct History {
    pub operations: Vec<Operation>,
    /// What must have come before what, besides what follows from their times.
    pub before: Vec<(Index, Index)>,
}

/// Why there is no order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// There is none.
    Impossible,
    /// It was not searched to its end.
    TooWide,
}

/// What became of a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Fate {
    /// Nobody decided about it yet; or it is no version.
    Ahead,
    Live,
    Delivered,
    Cancelled,
    Superseded,
    /// Another one was pending.
    Duplicate,
    /// A command that was decided before it is about it.
    Void,
    Dead,
    /// It never was pending, and became a dead letter.
    Refused,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    done: u64,
    live: Option<Index>,
    /// The version that was pending last, or is.
    last: Option<Index>,
    fates: Vec<Fate>,
}

impl State {
    fn settle(&self, of: Index, fate: Fate) -> Self {
        let mut next = self.clone();
        next.fates[of] = fate;
        next.live = next.live.filter(|live| *live != of);
        next
    }

    fn begin(&self, version: Index) -> Self {
        let mut next = self.clone();
        if let Some(live) = next.live {
            next.fates[live] = Fate::Superseded;
        }
        next.fates[version] = Fate::Live;
        (next.live, next.last) = (Some(version), Some(version));
        next
    }
}

impl History {
    /// Finds an order in which all of it can have happened: the operations in that order.
    ///
    /// # Errors
    /// There is none, or it takes too long to find out.
    pub fn order(&self) -> Result<Vec<Index>, Failure> {
        let count = self.operations.len();
        if count > OPERATIONS_MAX {
            return Err(Failure::TooWide);
        }
        let search = Search { history: self, after: self.precedence(), tries: self.tries() };
        let start = State { done: 0, live: None, last: None, fates: vec![Fate::Ahead; count] };
        let (mut seen, mut order) = (HashSet::new(), Vec::new());
        match search.go(start, &mut seen, &mut order) {
            true => Ok(order),
            false if seen.len() >= STATES_MAX => Err(Failure::TooWide),
            false => Err(Failure::Impossible),
        }
    }

    /// By operation: those that must be done before it, as bits.
    fn precedence(&self) -> Vec<u64> {
        let ops = &self.operations;
        let mut after = vec![0; ops.len()];
        for (a, one) in ops.iter().enumerate() {
            for (b, other) in ops.iter().enumerate() {
                let logged = one.is_command()
                    && other.is_command()
                    && one.stand.prompt
                    && other.stand.prompt
                    && one.stand.log == other.stand.log
                    && one.stand.offset < other.stand.offset;
                if a != b && (one.until < other.from || logged) {
                    after[b] |= 1 << a;
                }
            }
        }
        for &(a, b) in &self.before {
            after[b] |= 1 << a;
        }
        after
    }

    /// The order in which a search tries: that of the times, which is nearly always one that holds.
    fn tries(&self) -> Vec<Index> {
        let mut tries: Vec<Index> = (0..self.operations.len()).collect();
        tries.sort_by_key(|&index| {
            let of = &self.operations[index];
            if of.is_command() { (of.from, 0) } else { (of.until, 1) }
        });
        tries
    }

    /// Whether a command is about a version: that one was submitted before. `None`: it cannot be told.
    fn covers(&self, command: Index, version: Index) -> Option<bool> {
        let (by, of) = (&self.operations[command].stand, &self.operations[version].stand);
        if by.prompt && of.prompt && by.log == of.log {
            return Some(of.offset < by.offset);
        }
        (by.stamp != of.stamp).then_some(of.stamp < by.stamp)
    }
}

impl Operation {
    fn is_command(&self) -> bool {
        !matches!(self.what, What::Fire(_) | What::Dead(_))
    }
}

struct Search<'a> {
    history: &'a History,
    after: Vec<u64>,
    tries: Vec<Index>,
}

impl Search<'_> {
    fn go(&self, state: State, seen: &mut HashSet<State>, order: &mut Vec<Index>) -> bool {
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
    fn apply(&self, state: &State, index: Index) -> Vec<State> {
        match self.history.operations[index].what {
            What::Create => self.create(state, index),
            What::Replace { of } => self.replace(state, index, of),
            What::Cancel { of: None, answer, forgotten } => {
                self.cancel(state, index, answer, forgotten)
            }
            What::Cancel { of: Some(version), answer, forgotten } => {
                let forgotten = forgotten || self.is_overtaken(index);
                cancel_version(state, version, answer, forgotten)
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
            nexts.push(match state.live {
                None => state.begin(version),
                Some(_) => state.settle(version, Fate::Duplicate),
            });
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
            nexts.push(state.settle(live, Fate::Cancelled));
        }
        let misses = state.live.is_none_or(|live| covers(live) != Some(true));
        if misses && answer.is_none_or(|answer| self.is_true(state, index, answer, forgotten)) {
            nexts.push(state.clone());
        }
        nexts
    }

    /// Whether the timer was made anew before the answer came: only the last version's end is kept.
    fn is_overtaken(&self, cancel: Index) -> bool {
        let ops = &self.history.operations;
        ops.iter().enumerate().any(|(index, of)| {
            matches!(of.what, What::Create | What::Replace { .. })
                && of.from < ops[cancel].until
                && self.history.covers(cancel, index) != Some(true)
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
}

/// A cancel that names a version does nothing to any other.
fn cancel_version(
    state: &State,
    version: Index,
    answer: Option<Answer>,
    forgotten: bool,
) -> Vec<State> {
    let fate = state.fates[version];
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
            fate != Fate::Live && (!known || forgotten || state.last != Some(version))
        }
    };
    if !answer.is_none_or(is_true) {
        return Vec::new();
    }
    let acts = fate == Fate::Live && answer != Some(Answer::Refused);
    vec![if acts { state.settle(version, Fate::Cancelled) } else { state.clone() }]
}
