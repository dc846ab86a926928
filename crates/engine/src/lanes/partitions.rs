//! The lanes that run here: a [`Hold`] for each of their partitions, and a gate for each lane.
//!
//! # Invariants
//! 1. A lane runs with all its partitions, or it rests and none of them is read.
//! 2. A lane decides nothing about records with an id before all is known of its timers. Its commands stay in their
//!    intakes until then, and what tiers let go is kept here.
//! 3. Its gate opens once its timers are known and all that stood in its intakes at the take-over was let go. It never
//!    closes again before the next take-over.
//! 4. Offsets finish only here, and commits say exactly what is pending in the windows.

use super::super::hold::{Held, Hold};
use super::super::messages::{Commit, Start};
use super::super::setup::Setup;
use super::super::window::{Began, OffsetState, Window};
use super::figures::{Figures, Read};
use super::{Lane, Millis, Offset, Source, TopicId, UnixMillis};

/// How far the records of a lane that have an id may go.
#[derive(Debug, Default)]
struct Gate {
    /// All is known of the lane's timers: it may decide.
    is_known: bool,
    /// Cancel marks, and timers that have ended, are forgotten from then on.
    forgets_from: UnixMillis,
    /// Whatever ended since then has ended here.
    ends_from: UnixMillis,
    /// All that stood in the lane's intakes when it was taken over was let go: they may fire.
    is_open: bool,
    /// What tiers have let go before anything could be decided about it.
    early: Vec<(Source, Held)>,
}

/// The partitions of all lanes.
#[derive(Debug)]
pub(super) struct Partitions {
    /// By lane topic, then lane; `None` where this thread does not run the lane.
    holds: Vec<Vec<Option<Hold>>>,
    /// By lane.
    gates: Vec<Gate>,
    /// The first of the lane topics are so many intakes.
    intakes: usize,
    /// Pending records that were gone when their partition was read again.
    lost: u64,
    /// Partitions whose committed metadata could not be read.
    unreadable: u64,
}

impl Partitions {
    pub(super) fn new(setup: &Setup) -> Self {
        let topics = setup.topics.names().len();
        Self {
            holds: (0..topics).map(|_| (0..setup.lanes).map(|_| None).collect()).collect(),
            gates: (0..setup.lanes).map(|_| Gate::default()).collect(),
            intakes: setup.topics.intakes.len(),
            lost: 0,
            unreadable: 0,
        }
    }

    /// The lanes are gone.
    pub(super) fn reset(&mut self, setup: &Setup) {
        let Self { lost, unreadable, .. } = *self;
        *self = Self { lost, unreadable, ..Self::new(setup) };
    }

    /// Takes lanes over where none are. Says which partitions are not to be read.
    pub(super) fn assign(&mut self, setup: &Setup, starts: Vec<Start>) -> Vec<Source> {
        let topics = self.holds.len();
        let mut given = vec![0; self.gates.len()];
        for start in &starts {
            if usize::from(start.source.topic.0) < topics
                && let Some(count) = given.get_mut(usize::from(start.source.lane.0))
            {
                *count += 1;
            }
        }
        let mut windows = Vec::with_capacity(starts.len());
        for start in &starts {
            let window = Window::load(start.next, &start.metadata).ok();
            if window.is_none()
                && let Some(count) = given.get_mut(usize::from(start.source.lane.0))
            {
                // The commit does not tell which offsets above the watermark are done. Reading on might deliver twice.
                *count = 0;
                self.unreadable += 1;
            }
            windows.push(window);
        }
        let mut rest = Vec::new();
        for (Start { source, next, end, .. }, window) in starts.into_iter().zip(windows) {
            let is_whole = given.get(usize::from(source.lane.0)) == Some(&topics);
            let (Some(window), true) = (window, is_whole) else {
                // Not all of the lane is here (a ladder is being changed), or its commit is not ours: it rests.
                rest.push(source);
                continue;
            };
            let tier = setup.topics.tier_of(source.topic);
            let wait = tier.map_or(Millis(0), |tier| setup.topics.ladder.tiers()[tier].wait());
            self.holds[usize::from(source.topic.0)][usize::from(source.lane.0)] =
                Some(Hold::new(wait, (next, end), window));
        }
        rest
    }

    // Which there are.

    /// The hold of a partition; `None`: its lane does not run here.
    pub(super) fn get(&self, source: Source) -> Option<&Hold> {
        self.holds.get(usize::from(source.topic.0))?.get(usize::from(source.lane.0))?.as_ref()
    }

    pub(super) fn get_mut(&mut self, source: Source) -> Option<&mut Hold> {
        self.holds
            .get_mut(usize::from(source.topic.0))?
            .get_mut(usize::from(source.lane.0))?
            .as_mut()
    }

    /// Whether all that was read of these partitions before these ends was let go. Of one that is not here there is nothing.
    pub(super) fn have_let_go(&self, ends: &[(Source, Offset)]) -> bool {
        ends.iter().all(|(source, end)| self.get(*source).is_none_or(|hold| hold.has_let_go(*end)))
    }

    /// All that could be here, by topic.
    pub(super) fn sources(&self) -> impl Iterator<Item = Source> + use<> {
        let lanes = self.gates.len();
        (0..self.holds.len()).flat_map(move |topic| {
            (0..lanes)
                .map(move |lane| Source { topic: TopicId(topic as u16), lane: Lane(lane as u16) })
        })
    }

    /// The partitions that a lane has or would have.
    pub(super) fn of_lane(&self, lane: Lane) -> impl Iterator<Item = Source> + use<> {
        (0..self.holds.len()).map(move |topic| Source { topic: TopicId(topic as u16), lane })
    }

    /// Those that run here.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Source, &Hold)> {
        self.sources().filter_map(|source| Some((source, self.get(source)?)))
    }

    /// How many partitions there could be.
    pub(super) fn len(&self) -> usize {
        self.holds.len() * self.gates.len()
    }

    /// The lanes that run here, ascending.
    pub(super) fn lanes(&self) -> impl Iterator<Item = Lane> {
        let lanes = (0..self.gates.len()).map(|lane| Lane(lane as u16));
        lanes.filter(|lane| self.runs(*lane))
    }

    pub(super) fn runs(&self, lane: Lane) -> bool {
        self.get(Source { topic: TopicId(0), lane }).is_some()
    }

    /// Whether a lane is here, and all is known of its timers.
    pub(super) fn is_at_work(&self, lane: Lane) -> bool {
        self.is_known(lane) && self.of_lane(lane).all(|source| self.get(source).is_some())
    }

    /// The pending offsets of each partition, as far as it was read.
    pub(super) fn read_positions(&self) -> impl Iterator<Item = Read> {
        self.iter().map(|(source, Hold { window, .. })| Read {
            source,
            upto: window.upto(),
            pending: window.pending(),
        })
    }

    /// Counts for the metrics.
    pub(super) fn count(&self, figures: &mut Figures) {
        let holds = || self.iter().map(|(_, hold)| hold);
        figures.lanes = self.lanes().count();
        figures.paused = holds().filter(|hold| hold.is_paused()).count();
        figures.window_permille =
            holds().map(|hold| hold.window.fill_permille()).max().unwrap_or_default();
        (figures.lost, figures.unreadable) = (self.lost, self.unreadable);
    }

    // Records and offsets.

    /// Lets the head of a partition go, if it may.
    pub(super) fn release(
        &mut self,
        now: UnixMillis,
        source: Source,
    ) -> Option<(Held, OffsetState)> {
        let (held, Began { state, lost }) = self.get_mut(source)?.release(now)?;
        self.lost += u64::from(lost);
        Some((held, state))
    }

    /// These are done: the next commits say so.
    pub(super) fn finish(&mut self, done: &[(Source, Offset)]) {
        for (source, offset) in done {
            if let Some(hold) = self.get_mut(*source) {
                hold.window.finish(*offset);
            }
        }
    }

    /// Where reading stands, of the partitions of which that has changed.
    pub(super) fn commits(&mut self) -> Vec<Commit> {
        let mut commits = Vec::new();
        for (topic, lanes) in self.holds.iter_mut().enumerate() {
            for (lane, hold) in lanes.iter_mut().enumerate() {
                if let Some((next, metadata)) = hold.as_mut().and_then(|hold| hold.window.commit())
                {
                    let source = Source { topic: TopicId(topic as u16), lane: Lane(lane as u16) };
                    commits.push(Commit { source, next, metadata });
                }
            }
        }
        commits
    }

    /// Kafka checks the group generation only on offset commits. So a batch that finishes nothing, but says something of
    /// a lane, commits this: the position of an intake as it is.
    pub(super) fn fence(&mut self, lane: Lane) -> Option<Commit> {
        let source = Source { topic: TopicId(0), lane };
        let (next, metadata) = self.get_mut(source)?.window.commit_anyway();
        Some(Commit { source, next, metadata })
    }

    /// All positions of a lane are to be committed.
    pub(super) fn touch(&mut self, lane: Lane) {
        for source in self.of_lane(lane) {
            if let Some(hold) = self.get_mut(source) {
                hold.touch();
            }
        }
    }

    // Gates.

    fn gate(&self, lane: Lane) -> Option<&Gate> {
        self.gates.get(usize::from(lane.0))
    }

    /// Whether all is known of a lane's timers.
    pub(super) fn is_known(&self, lane: Lane) -> bool {
        self.gate(lane).is_some_and(|gate| gate.is_known)
    }

    /// All is known of a lane's timers from now on. Marks, and timers that have ended, are forgotten from a time on. Whatever
    /// ended since another time has ended here. Says what the lane's tiers let go before.
    pub(super) fn know(
        &mut self,
        lane: Lane,
        forgets_from: UnixMillis,
        ends_from: UnixMillis,
    ) -> Vec<(Source, Held)> {
        let gate = &mut self.gates[usize::from(lane.0)];
        gate.is_known = true;
        (gate.forgets_from, gate.ends_from) = (forgets_from, ends_from);
        std::mem::take(&mut gate.early)
    }

    /// A tier let this go, and nothing can be decided about it yet.
    pub(super) fn keep_early(&mut self, source: Source, held: Held) {
        self.gates[usize::from(source.lane.0)].early.push((source, held));
    }

    /// Whatever ended in a lane since then has ended here.
    pub(super) fn ends_from(&self, lane: Lane) -> Option<UnixMillis> {
        self.gate(lane).map(|gate| gate.ends_from)
    }

    /// Whether records of a lane that have an id may fire.
    pub(super) fn is_open(&self, lane: Lane) -> bool {
        self.gate(lane).is_some_and(|gate| gate.is_open)
    }

    /// Opens the gate of a lane, if all that was to be known is. Says whether it was opened by that.
    pub(super) fn try_open(&mut self, lane: Lane) -> bool {
        let intakes = self.of_lane(lane).take(self.intakes);
        let has_read = |source| self.get(source).is_none_or(Hold::caught_up);
        let opens = !self.is_open(lane) && self.is_known(lane) && { intakes }.all(has_read);
        if opens {
            self.gates[usize::from(lane.0)].is_open = true;
        }
        opens
    }

    /// The lanes that may forget cancel marks and what has ended, ascending.
    pub(super) fn may_forget(&self, now: UnixMillis) -> Vec<Lane> {
        let is_on_time = |lane| {
            self.of_lane(lane).all(|source| self.get(source).is_none_or(|hold| hold.on_time(now)))
        };
        let gates = self.gates.iter().enumerate();
        let may = gates.filter(|(_, gate)| gate.is_known && gate.forgets_from <= now);
        may.map(|(lane, _)| Lane(lane as u16)).filter(|lane| is_on_time(*lane)).collect()
    }
}
