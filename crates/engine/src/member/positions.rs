//! Where each partition begins when it is taken over, and what is lost by that.
//!
//! A member learns three things of each partition: the committed offset, our own checkpoint where the group has none, and
//! where the log begins and ends. From these it decides where to begin.
//!
//! # Invariants
//! 1. The committed offset counts. Else the checkpoint counts, if it is of the same topic. Else the log's start counts,
//!    if nothing was ever deleted there.
//! 2. No record is done again or passed over by a guess: where the program cannot tell, a person decides
//!    ([`PositionGone`]).
//! 3. What was deleted undone is reported once by each member: never twice, and never not at all. If more is deleted
//!    behind a position that was reported, the rest is reported, too.
//! 4. A position beyond the end is believed until a broker has refused it: a leader that has just become one may not know
//!    yet how far its log goes.
//! 5. Nothing is taken for reported, and no topic for known, before the take-over has succeeded
//!    ([`taken`](Positions::taken)).

use std::collections::{BTreeMap, BTreeSet};

use super::super::window::Window;
use super::super::{Commit, Offset, Source, Start};

/// What differs between those who decide about a member's records.
pub trait Rules {
    /// Corrects a position whose log now begins at `start`, beyond it: where to go on, the metadata for that, and how many
    /// records that were not done are gone. `None`: the metadata cannot be read.
    fn cut(next: Offset, metadata: &str, start: Offset) -> Option<(Offset, String, u64)>;

    /// Whether the metadata of a position can be read. Where it cannot, the partition is not worked on.
    fn is_readable(next: Offset, metadata: &str) -> bool;

    /// What to make of a partition of which nobody knows a position. `is_first_read`: it is an intake that nobody has read.
    fn unknown(log: LogBounds, is_first_read: bool) -> Unknown;

    /// The metadata of the first position of a partition of which nobody knows one.
    fn first_metadata(_log: LogBounds) -> String {
        String::new()
    }
}

/// Lanes: the metadata is that of a [`Window`], and positions are kept for ever in checkpoints.
#[derive(Clone, Copy, Debug)]
pub enum LaneRules {}

impl Rules for LaneRules {
    fn cut(next: Offset, metadata: &str, start: Offset) -> Option<(Offset, String, u64)> {
        Window::cut(next, metadata, start).ok()
    }

    fn is_readable(next: Offset, metadata: &str) -> bool {
        Window::load(next, metadata).is_ok()
    }

    /// A partition that was ever taken over has a checkpoint, if only of the position that it began with. A partition
    /// without one has lost it, or its records were deleted before waterclock came. In a tier every record was a delay in
    /// either case: nothing else is written there. An intake may have been used for something else before it became one. A
    /// retention of that time is no loss of delays. Nobody can tell, so it is reported, and not counted.
    fn unknown(log: LogBounds, is_first_read: bool) -> Unknown {
        match (log.first.0, is_first_read) {
            (..=0, _) => Unknown::Fresh,
            _ if log.first < log.end => Unknown::Gone,
            (_, false) => Unknown::Lost,
            (_, true) => Unknown::Before,
        }
    }
}

/// What a partition is of which neither the group nor a checkpoint has a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unknown {
    /// It begins at its start, and nothing is lost.
    Fresh,
    /// Something is left, and whether that is done cannot be told: a person has to say.
    Gone,
    /// Nothing is left, and what was pending is lost.
    Lost,
    /// Nothing is left of what stood in an intake before it was read for the first time.
    Before,
}

/// Where the log of a partition begins and ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogBounds {
    /// The log start offset.
    pub first: Offset,
    /// The log end offset. It may lie behind records of an open transaction.
    pub end: Offset,
}

impl LogBounds {
    /// Nothing is known: any position is inside.
    pub const UNKNOWN: Self = Self { first: Offset(0), end: Offset(i64::MAX) };
}

/// Where a partition stood, as a checkpoint says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// The id of the topic that it is about.
    pub id: String,
    /// The first offset that is not done, or behind all.
    pub next: Offset,
    /// Pending marks, as they are committed.
    pub metadata: String,
}

/// All that is known of the partitions of a take-over.
#[derive(Debug)]
pub(super) struct Facts<'a> {
    pub(super) partitions: &'a [Source],
    /// The committed offset and metadata of each.
    pub(super) committed: &'a [Option<(Offset, String)>],
    pub(super) logs: &'a [LogBounds],
    /// All checkpoints that were read, also those of other partitions.
    pub(super) checkpoints: &'a BTreeMap<Source, Checkpoint>,
    /// The ids of the topics; empty where topics have none.
    pub(super) ids: &'a [String],
    /// The first of the topics are so many intakes.
    pub(super) intakes: usize,
}

/// Why records are gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossCause {
    /// The position is outside of the log: records were deleted, or the log was cut.
    Outside,
    /// The topic was deleted and created again.
    Recreated,
    /// Nobody knows a position, and all records were deleted.
    AllDeleted,
    /// The same, of an intake that nobody had read. It need not be a loss.
    BeforeFirstRead,
}

/// What is to be reported of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Why.
    pub cause: LossCause,
    /// Records that are gone and were not reported yet, as far as they can be counted.
    pub count: u64,
    /// The position that was found.
    pub from: Offset,
    /// Where reading goes on.
    pub until: Offset,
}

/// Where one partition begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartAt {
    /// Which partition.
    pub source: Source,
    /// The offset to read first.
    pub next: Offset,
    /// The marks for it.
    pub metadata: String,
    /// Its log.
    pub log: LogBounds,
    /// The group does not have this position, and is to have it at once.
    pub is_new: bool,
    /// Records that were not done are gone, whether that was reported or not.
    pub gone: bool,
    /// What is to be reported.
    pub loss: Option<Loss>,
    /// The marks can be read. Otherwise the lane rests.
    pub is_readable: bool,
    /// The position is not the one that was found.
    is_moved: bool,
    /// Of how many lost records the member will have told by this.
    told: u64,
    /// The position that was found; `None`: nobody had one.
    found: Option<Offset>,
}

/// Where all partitions begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Each of them, in the order in which they were asked about.
    pub starts: Vec<StartAt>,
    /// The ids of the topics.
    pub ids: Vec<String>,
}

impl Plan {
    /// Positions that are to be committed at once.
    pub fn fresh(&self) -> impl Iterator<Item = Commit> {
        self.starts.iter().filter(|start| start.is_new).map(|start| Commit {
            source: start.source,
            next: start.next,
            metadata: start.metadata.clone(),
        })
    }

    /// How many records are lost, as far as that can be counted.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.starts.iter().filter_map(|start| start.loss).map(|loss| loss.count).sum()
    }

    /// What is done, by the group's positions, and stands in the log yet: everything before these offsets. A position that was
    /// moved is new, or at the log's start.
    pub fn done(&self) -> impl Iterator<Item = (Source, Offset)> {
        let stands = |start: &&StartAt| start.log.first < start.next && start.next <= start.log.end;
        let starts = self.starts.iter().filter(|start| !start.is_new).filter(stands);
        starts.map(|start| (start.source, start.next))
    }

    /// The same for the engine.
    pub fn starts(&self) -> impl Iterator<Item = Start> {
        self.starts.iter().map(|start| Start {
            source: start.source,
            next: start.next,
            metadata: start.metadata.clone(),
            end: start.log.end,
            gone: start.gone,
        })
    }

    /// A position is not where it was found, or nobody had one and records were deleted. Somebody else may have committed, and
    /// deleted what is done, since the committed offsets were asked for.
    pub(super) fn is_doubtful(&self) -> bool {
        self.starts.iter().any(|start| start.is_moved)
    }
}

/// Records of a partition were deleted, some are left, and nobody knows which of these are done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PositionGone {
    /// Which partition.
    pub source: Source,
    /// Where its log begins.
    pub first: Offset,
}

/// What a member knows of positions, for as long as it lives.
#[derive(Debug, Default)]
pub struct Positions {
    /// By partition: a position that was found outside of its log, and of how many records beyond it was told.
    told: BTreeMap<Source, (Offset, u64)>,
    /// A broker has said that a position is outside of its log.
    is_refused: bool,
    /// The ids of the topics at the last take-over; empty before the first.
    ids: Vec<String>,
}

impl Positions {
    /// A broker has said that a position is outside of its log: one that is beyond the end is not believed any more.
    pub fn refused(&mut self) {
        self.is_refused = true;
    }

    /// Lanes were taken over as planned, and all that is lost by that was reported.
    pub fn taken(&mut self, plan: &Plan) {
        self.is_refused = false;
        self.ids.clone_from(&plan.ids);
        for start in &plan.starts {
            match start.found.filter(|_| start.told > 0) {
                Some(found) => drop(self.told.insert(start.source, (found, start.told))),
                None => drop(self.told.remove(&start.source)),
            }
        }
    }

    /// Decides where each partition begins.
    ///
    /// # Errors
    /// A person has to decide.
    pub(super) fn plan<R: Rules>(&self, facts: &Facts<'_>) -> Result<Plan, PositionGone> {
        let has = |(_, position): &(&Source, &Option<(Offset, String)>)| position.is_some();
        let known = facts.partitions.iter().zip(facts.committed).filter(has);
        let known: BTreeSet<Source> =
            known.map(|(source, _)| *source).chain(facts.checkpoints.keys().copied()).collect();
        let mut starts = Vec::with_capacity(facts.partitions.len());
        for ((source, committed), log) in
            facts.partitions.iter().zip(facts.committed).zip(facts.logs)
        {
            starts.push(self.start::<R>(facts, &known, (*source, committed.as_ref()), *log)?);
        }
        Ok(Plan { starts, ids: facts.ids.to_vec() })
    }

    fn start<R: Rules>(
        &self,
        facts: &Facts<'_>,
        known: &BTreeSet<Source>,
        (source, committed): (Source, Option<&(Offset, String)>),
        log: LogBounds,
    ) -> Result<StartAt, PositionGone> {
        let id = |ids: &'_ [String]| ids.get(usize::from(source.topic.0)).cloned();
        let now = id(facts.ids);
        let is_recreated = !self.ids.is_empty() && id(&self.ids) != now;
        let checkpoint = facts.checkpoints.get(&source);
        let same = checkpoint.filter(|checkpoint| Some(&checkpoint.id) == now.as_ref());
        Ok(match (committed, same) {
            (Some(_), _) if is_recreated => recreated(source, log),
            (Some((next, metadata)), _) => {
                self.inside::<R>((source, log), *next, metadata, self.is_refused)
            }
            // The group is to know it again.
            (None, Some(Checkpoint { next, metadata, .. })) => {
                StartAt { is_new: true, ..self.inside::<R>((source, log), *next, metadata, true) }
            }
            (None, None) if checkpoint.is_some() => recreated(source, log),
            (None, None) => {
                let is_intake = usize::from(source.topic.0) < facts.intakes;
                never_known::<R>(source, log, is_intake && is_first_read(known, source))?
            }
        })
    }

    /// A position that is inside of its log, and its marks: the records in between are gone. What is left is delivered.
    fn inside<R: Rules>(
        &self,
        (source, log): (Source, LogBounds),
        found: Offset,
        metadata: &str,
        is_refused: bool,
    ) -> StartAt {
        let LogBounds { first, end } = log;
        let most = if is_refused { end.max(first) } else { Offset(i64::MAX) };
        let until = found.clamp(first, most);
        if until == found {
            let is_readable = R::is_readable(found, metadata);
            let metadata = metadata.to_owned();
            return StartAt { metadata, is_readable, ..at(source, log, found) };
        }
        let cut = (until > found).then(|| R::cut(found, metadata, until));
        // It is committed once the lane is counted: its next owner would not know.
        let is_new = !matches!(cut, Some(Some((.., 1..))));
        // Metadata that cannot be read is reported by who reads it; of a log that was cut at its end it says nothing.
        let (next, metadata, lost) = match cut {
            Some(Some(cut)) => cut,
            Some(None) => (until, metadata.to_owned(), until.0.abs_diff(found.0)),
            None => (until, String::new(), found.0.abs_diff(until.0)),
        };
        let before = self.told.get(&source).filter(|(position, _)| *position == found);
        let told = before.map_or(0, |(_, told)| *told);
        let count = lost.saturating_sub(told);
        let is_news = before.is_none() || count > 0;
        StartAt {
            is_readable: R::is_readable(next, &metadata),
            metadata,
            is_new,
            gone: lost > 0,
            loss: is_news.then_some(Loss { cause: LossCause::Outside, count, from: found, until }),
            is_moved: true,
            told: lost.max(told),
            found: Some(found),
            ..at(source, log, next)
        }
    }
}

/// A partition that begins here, of which nothing is lost.
fn at(source: Source, log: LogBounds, next: Offset) -> StartAt {
    StartAt {
        source,
        next,
        metadata: String::new(),
        log,
        is_new: false,
        gone: false,
        loss: None,
        is_readable: true,
        is_moved: false,
        told: 0,
        found: None,
    }
}

/// What was pending in the old topic is gone, nothing of the new one is done.
fn recreated(source: Source, log: LogBounds) -> StartAt {
    let from = log.first;
    let loss = Loss { cause: LossCause::Recreated, count: 0, from, until: from };
    StartAt { is_new: true, gone: true, loss: Some(loss), ..at(source, log, log.first) }
}

/// Where a partition starts of which nobody knows a position.
fn never_known<R: Rules>(
    source: Source,
    log: LogBounds,
    is_first_read: bool,
) -> Result<StartAt, PositionGone> {
    let first = log.first;
    let (cause, count) = match R::unknown(log, is_first_read) {
        Unknown::Gone => return Err(PositionGone { source, first }),
        Unknown::Fresh => (None, 0),
        // More than that it cannot be.
        Unknown::Lost => (Some(LossCause::AllDeleted), first.0.unsigned_abs()),
        Unknown::Before => (Some(LossCause::BeforeFirstRead), 0),
    };
    let loss = |cause| Loss { cause, count, from: Offset(0), until: first };
    let (gone, is_moved) = (count > 0, cause.is_some());
    let loss = cause.map(loss);
    let metadata = R::first_metadata(log);
    Ok(StartAt { metadata, is_new: true, gone, loss, is_moved, ..at(source, log, first) })
}

/// Whether nobody ever knew a position in any partition of this topic, or in any topic of this lane: lanes are taken over
/// with all of their topics, so such an intake was not read before.
fn is_first_read(known: &BTreeSet<Source>, of: Source) -> bool {
    known.iter().all(|known| known.topic != of.topic)
        || known.iter().all(|known| known.lane != of.lane)
}

#[cfg(test)]
mod tests;
