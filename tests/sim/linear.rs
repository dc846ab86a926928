//! Whether what was said and seen of one timer can have happened one thing after the other: a search, as Wing and Gong
//! have it, over everything that clients did, were answered and saw.
//!
//! It knows only what is known outside: when a command was sent and where Kafka said that it stands, when an answer came,
//! when a record was visible in its target. What an owner decided, and when, it has to find out.
//!
//! # Invariants
//! 1. An operation takes effect after it was sent, and before its answer came or its record was seen.
//! 2. Commands that went to their own lane's intake take effect in the order of that log. One that was moved there, or
//!    written to a tier, takes effect when it comes by; a cancel is about what stood before it all the same. So is what was
//!    made of the id meanwhile: of two the older is nothing, and a create is nothing that was sent while one was pending, also
//!    when the other has ended by then.
//! 3. What cannot be told from outside counts as possible: it never objects to what may have been right.

mod search;
#[cfg(test)]
mod tests;

use std::collections::HashSet;

use search::Search;

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
    /// It is the main one, in which nothing can be late.
    pub straight: bool,
    /// It is a tier: what is written there counts when it comes up.
    pub in_tier: bool,
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
    /// When a version is due, as append times are.
    pub due: u64,
}

/// All that is known of one timer.
#[derive(Clone, Debug, Default)]
pub struct History {
    pub operations: Vec<Operation>,
    /// What must have come before what, besides what follows from their times.
    pub before: Vec<(Index, Index)>,
    /// What became of the timer was forgotten at some time.
    pub forgotten: bool,
    /// Batches are refused: what may be a duplicate is not kept then.
    pub poisoned: bool,
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

    /// Whether a version that comes late is nothing, since the one that was pending last was sent after it; or, for a create, was
    /// not due yet when it was sent, and no cancel was sent between the two. `None`: it cannot be told.
    fn is_late(&self, state: &State, version: Index) -> Option<bool> {
        let of = &self.operations[version];
        let Some(last) = state.last.filter(|_| !of.stand.straight) else {
            return Some(false);
        };
        let (stamp, other) = (of.stand.stamp, &self.operations[last]);
        let is_first = self.covers(last, version);
        // It may have come before what became of the other one was forgotten, or after that.
        let late = Some(true).filter(|_| !self.forgotten);
        if is_first == Some(true) {
            return late;
        }
        let within = of.what == What::Create && state.fates[last] == Fate::Delivered;
        if !within || stamp >= other.due {
            return is_first;
        }
        match self.is_parted(state, last, version) {
            Some(false) => late,
            // In one millisecond it may have been sent before the other one.
            Some(true) => is_first,
            None => None,
        }
    }

    /// Whether a cancel that was decided was sent between two versions. `None`: it cannot be told.
    fn is_parted(&self, state: &State, version: Index, behind: Index) -> Option<bool> {
        let mut found = Some(false);
        for (index, of) in self.operations.iter().enumerate() {
            let What::Cancel { of: None, answer, forgotten } = of.what else { continue };
            if state.done & (1 << index) == 0 || answer == Some(Answer::Refused) {
                continue;
            }
            match (self.covers(index, version), self.covers(index, behind)) {
                (Some(false), _) | (_, Some(true)) => {}
                (Some(true), Some(false)) if !forgotten => return Some(true),
                _ => found = None,
            }
        }
        found
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
