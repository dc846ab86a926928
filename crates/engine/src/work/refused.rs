//! Results that Kafka may have refused: each is tried by itself, and shorter, so that none is sent for ever and none holds up
//! others.
//!
//! # Invariants
//! 1. What Kafka refuses as a record is a suspect. Suspects leave in batches of their own, fewer with each refusal, and take turns
//!    with all others.
//! 2. A result that is refused alone is written shorter. If it brings its task back and its short form is refused, too, the task's
//!    record becomes a dead letter, and the result says that the task has failed.
//! 3. What is refused in its last form waits, for a minute at most, and begins anew. Its offset stays pending, so nothing is
//!    lost. Its partition goes on.
//! 4. A refusal that is due to a topic shortens nothing.
//! 5. What may have landed goes again first: no committed position falls behind one that was committed before.

use std::collections::{BTreeSet, VecDeque};

use super::{BATCH_MAX, CallId, Done, Entry, Form, Said};
use crate::header::{Code, Refusal};
use crate::task::result::Outcome;
use crate::{Blame, Millis, Refused};

/// The first wait of what is refused in its last form. It doubles with each.
const WAIT_MIN: Millis = Millis(1_000);
/// The longest.
const WAIT_MAX: Millis = Millis(60_000);
/// The longest wait for a topic to take records again.
const TOPIC_WAIT_MAX: Millis = Millis(5_000);

/// What Kafka may have refused.
#[derive(Debug)]
struct Suspect {
    done: Done,
    /// It is not tried before.
    at: Millis,
    /// How often it has waited.
    waits: u32,
}

/// All of them, the next first.
#[derive(Debug)]
pub(super) struct Suspects {
    held: VecDeque<Suspect>,
    /// How often each of the batch on its way has waited; empty: that batch is no test.
    tested: Vec<u32>,
    /// How many are tried together.
    at_once: usize,
    /// The last batch was a test.
    was_test: bool,
    /// A batch may have landed, and goes again. It is a test, or none.
    again: Option<bool>,
}

impl Default for Suspects {
    fn default() -> Self {
        Self {
            held: VecDeque::new(),
            tested: Vec::new(),
            at_once: BATCH_MAX,
            was_test: false,
            again: None,
        }
    }
}

/// A batch that has failed.
pub(super) struct FailedBatch {
    /// Calls that it told as begun.
    pub(super) told: Vec<CallId>,
    pub(super) done: Vec<Done>,
    /// Its entries behind those calls: which of `done` each belongs to.
    pub(super) owners: Vec<usize>,
    pub(super) refused: Option<Refused>,
}

impl Suspects {
    /// Whether the next batch is a test. `others`: there is something else to commit.
    pub(super) fn are_next(&self, now: Millis, others: bool) -> bool {
        let may_test = self.next_at().is_some_and(|at| at <= now);
        match self.again {
            Some(false) if others => false,
            Some(true) if may_test => true,
            _ => may_test && !(self.was_test && others),
        }
    }

    /// When the next one may be tried.
    pub(super) fn next_at(&self) -> Option<Millis> {
        self.held.iter().map(|suspect| suspect.at).min()
    }

    /// Takes those that are tried next.
    pub(super) fn take(&mut self, now: Millis) -> Vec<Done> {
        let (mut taken, mut left) = (Vec::new(), VecDeque::new());
        for suspect in std::mem::take(&mut self.held) {
            if suspect.at <= now && taken.len() < self.at_once {
                self.tested.push(suspect.waits);
                taken.push(suspect.done);
            } else {
                left.push_back(suspect);
            }
        }
        self.held = left;
        taken
    }

    /// What they are.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Done> {
        self.held.iter().map(|suspect| &suspect.done)
    }

    /// All of them: their partitions are gone.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = Done> + use<> {
        std::mem::take(self).held.into_iter().map(|suspect| suspect.done)
    }

    /// Whether partitions are let go only after them. Those that wait are left to the next owner.
    pub(super) fn hold_up_the_end(&self) -> bool {
        self.held.iter().any(|suspect| suspect.waits == 0)
    }

    /// The batch on its way is committed.
    pub(super) fn committed(&mut self) {
        self.again = None;
        self.was_test = !self.tested.is_empty();
        if self.was_test {
            self.at_once = (self.at_once * 2).min(BATCH_MAX);
        }
        self.tested.clear();
    }

    /// The batch on its way has failed. Keeps what is suspect of it, and gives back what goes again as if nothing had been: calls to
    /// tell, and what has ended.
    pub(super) fn failed(&mut self, now: Millis, batch: FailedBatch) -> (Vec<CallId>, Vec<Done>) {
        let FailedBatch { told, done, owners, refused } = batch;
        let tested = std::mem::take(&mut self.tested);
        self.was_test = !tested.is_empty();
        let Some(refused) = refused.filter(is_of_records) else {
            self.again = Some(self.was_test);
            if tested.is_empty() {
                return (told, done);
            }
            for (done, waits) in done.into_iter().zip(tested).rev() {
                self.held.push_front(Suspect { done, at: now, waits });
            }
            return (told, Vec::new());
        };
        let is_named = |entry: usize| refused.named.is_empty() || refused.named.contains(&entry);
        let calls = told.len();
        let named = owners.iter().enumerate().filter(|(nth, _)| is_named(calls + nth));
        let suspects: BTreeSet<usize> = named.map(|(_, owner)| *owner).collect();
        let with_entry = owners.iter().collect::<BTreeSet<_>>().len();
        let is_alone = with_entry == 1 && calls == 0;
        self.at_once = (with_entry / 2).max(1);
        let mut innocent = Vec::new();
        for (nth, done) in done.into_iter().enumerate() {
            if !suspects.contains(&nth) {
                innocent.push(done);
                continue;
            }
            let suspect = Suspect { done, at: now, waits: tested.get(nth).copied().unwrap_or(0) };
            self.held.push_back(match (refused.blame, is_alone) {
                (Blame::Record, true) => refused_alone(suspect, &refused.why),
                (Blame::Record, false) => suspect,
                _ => suspect.waiting(TOPIC_WAIT_MAX),
            });
        }
        // That a call is open is no more than news: its end says all. So what was refused of that is not told again.
        let told = told.into_iter().enumerate().filter(|(nth, _)| !is_named(*nth));
        (told.map(|(_, call)| call).collect(), innocent)
    }
}

/// Whether a refusal is due to some records of the batch: else all goes again.
fn is_of_records(refused: &Refused) -> bool {
    match refused.blame {
        Blame::Record => true,
        // Not named, it may be any topic.
        Blame::Target => !refused.named.is_empty(),
        Blame::Late | Blame::Expired | Blame::Unclear => false,
    }
}

impl Suspect {
    /// It is tried again after a while, as it was at first: Kafka may take it then.
    fn waiting(mut self, most: Millis) -> Self {
        let wait = WAIT_MIN.0.saturating_mul(1 << self.waits.min(16)).min(most.0);
        self.at = self.at + Millis(wait);
        self.waits = self.waits.saturating_add(1);
        self
    }
}

/// Kafka has refused a record, and nothing else was in its batch.
fn refused_alone(mut suspect: Suspect, why: &str) -> Suspect {
    let next = match &mut suspect.done.entry {
        Some(Entry::Result(_, said, form)) => match *form {
            Form::Whole => Some((form, Form::Short)),
            Form::Short if brings_task_back(said) => Some((form, Form::Letter)),
            Form::Short | Form::Letter => {
                *form = Form::Whole;
                None
            }
        },
        Some(Entry::Absent { .. } | Entry::Dead { .. }) | None => None,
    };
    let Some((form, shorter)) = next else { return suspect.waiting(WAIT_MAX) };
    *form = shorter;
    if shorter == Form::Letter {
        suspect.done.why = Some(why.into());
    }
    suspect
}

fn brings_task_back(said: &Said) -> bool {
    match said {
        Said::Deferred { .. } | Said::Interrupted { .. } => true,
        Said::Started(_) | Said::Cancelled => false,
        Said::Ended(result) => result.outcome.carries_payload(),
    }
}

/// What is written of something that is done: nothing, a result, a dead letter, or both.
pub(super) fn entries(done: &Done) -> impl Iterator<Item = Entry> + use<> {
    let letter = match &done.entry {
        Some(Entry::Result(task, said, Form::Letter)) => {
            let why = done.why.as_deref().unwrap_or_default();
            let turn = task.turn.turn;
            let outcome = outcome(said).as_str();
            let detail = format!("turn {turn} ({outcome}): Kafka takes no result with it: {why}");
            Some(Entry::Dead {
                partition: done.partition,
                offset: done.offset,
                appended: task.sealed.appended,
                record: Box::new(task.record.clone()),
                refusal: Refusal::new(Code::TaskFailed, detail),
            })
        }
        _ => None,
    };
    done.entry.clone().into_iter().chain(letter)
}

/// What is said of a turn.
fn outcome(said: &Said) -> Outcome {
    match said {
        Said::Started(_) => Outcome::Started,
        Said::Deferred { .. } => Outcome::Deferred,
        Said::Interrupted { .. } => Outcome::Interrupted,
        Said::Cancelled => Outcome::Cancelled,
        Said::Ended(result) => result.outcome,
    }
}
