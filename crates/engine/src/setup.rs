//! What the engine is given once: topics, policies, limits.

use std::sync::Arc;

use super::allow::Allow;
use super::ladder::Ladder;
use super::state::{StateKey, intake_tag};
use super::timers::TopicMark;
use super::{Millis, TopicId};

/// One intake topic and what holds for records that came in by it.
#[derive(Clone, Debug)]
pub struct Intake {
    /// Its name below `<ns>.intake.`; empty for the main intake.
    pub name: Arc<str>,
    /// How long a record without a time header waits.
    pub delay: Option<Millis>,
    /// Where a record without a target goes.
    pub target: Option<Arc<str>>,
    /// Where records from here may go.
    pub allow: Allow,
    /// What the state header keeps of the name.
    pub(super) tag: u64,
}

impl Intake {
    /// What states of records that are under its rules name it by.
    #[must_use]
    pub fn tag(&self) -> u64 {
        self.tag
    }

    /// An intake; `name` is empty for the main one.
    #[must_use]
    pub fn new(name: &str, delay: Option<Millis>, target: Option<&str>, allow: Allow) -> Self {
        Self {
            name: name.into(),
            delay,
            target: target.map(Into::into),
            allow,
            tag: intake_tag(name),
        }
    }
}

/// Every topic that belongs to lanes, by [`TopicId`]: intakes first, then tiers, shortest hold first, then `<ns>.results` where
/// tasks are in force.
#[derive(Clone, Debug)]
pub struct Topics {
    /// The namespace, which is the prefix of every name.
    pub namespace: Arc<str>,
    /// The main intake, then further ones.
    pub intakes: Vec<Intake>,
    /// The tiers.
    pub ladder: Ladder,
    names: Vec<Arc<str>>,
    marks: Vec<TopicMark>,
    has_tasks: bool,
}

impl Topics {
    /// Lays out the topics of a namespace; the first intake is the main one.
    #[must_use]
    pub fn new(namespace: &str, intakes: Vec<Intake>, ladder: Ladder) -> Self {
        let of_intake = |intake: &Intake| Self::intake_topic(namespace, &intake.name);
        let names: Vec<Arc<str>> = intakes
            .iter()
            .map(of_intake)
            .chain(ladder.tiers().iter().map(|tier| format!("{namespace}.delay.{}", tier.hold)))
            .map(Arc::from)
            .collect();
        let marks = names.iter().map(|name| TopicMark::of(name)).collect();
        let namespace = namespace.into();
        Self { namespace, intakes, ladder, names, marks, has_tasks: false }
    }

    /// The same where tasks are in force: lanes read the results of workers, too.
    #[must_use]
    pub fn with_tasks(mut self) -> Self {
        if !self.has_tasks {
            self.has_tasks = true;
            self.names.push(Self::results_topic(&self.namespace).into());
            self.marks.push(TopicMark::of(&Self::results_topic(&self.namespace)));
        }
        self
    }

    /// `<ns>.results`, where tasks are in force.
    #[must_use]
    pub fn results(&self) -> Option<TopicId> {
        self.has_tasks.then(|| self.of_tier(self.ladder.tiers().len()))
    }

    /// `<ns>.tasks`.
    #[must_use]
    pub fn tasks(&self) -> Arc<str> {
        Self::tasks_topic(&self.namespace).into()
    }

    /// The topic of an intake; `name` is empty for the main one.
    #[must_use]
    pub fn intake_topic(namespace: &str, name: &str) -> String {
        match name {
            "" => format!("{namespace}.intake"),
            name => format!("{namespace}.intake.{name}"),
        }
    }

    /// Every lane topic's name, by [`TopicId`].
    #[must_use]
    pub fn names(&self) -> &[Arc<str>] {
        &self.names
    }

    /// The name of one.
    #[must_use]
    pub fn name(&self, topic: TopicId) -> &Arc<str> {
        &self.names[usize::from(topic.0)]
    }

    /// What versions that were made of its records are marked with.
    #[must_use]
    pub fn mark(&self, topic: TopicId) -> TopicMark {
        self.marks[usize::from(topic.0)]
    }

    /// The lane topic of this name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<TopicId> {
        self.names.iter().position(|known| **known == *name).map(|at| TopicId(at as u16))
    }

    /// `<ns>.dead`.
    #[must_use]
    pub fn dead(&self) -> Arc<str> {
        format!("{}.dead", self.namespace).into()
    }

    /// `<ns>.timers`.
    #[must_use]
    pub fn timers(&self) -> Arc<str> {
        format!("{}.timers", self.namespace).into()
    }

    /// `<ns>.meta`.
    #[must_use]
    pub fn meta(&self) -> Arc<str> {
        format!("{}.meta", self.namespace).into()
    }

    /// `<ns>.tasks`: what was dispatched to workers.
    #[must_use]
    pub fn tasks_topic(namespace: &str) -> String {
        format!("{namespace}.tasks")
    }

    /// `<ns>.results`: what workers say of it.
    #[must_use]
    pub fn results_topic(namespace: &str) -> String {
        format!("{namespace}.results")
    }

    /// The topic of a tier.
    #[must_use]
    pub fn of_tier(&self, tier: usize) -> TopicId {
        TopicId((self.intakes.len() + tier) as u16)
    }

    /// Which tier a topic is; `None` for an intake, and for the results of workers.
    #[must_use]
    pub fn tier_of(&self, topic: TopicId) -> Option<usize> {
        let tier = usize::from(topic.0).checked_sub(self.intakes.len())?;
        (tier < self.ladder.tiers().len()).then_some(tier)
    }

    /// Whether a topic is an intake.
    #[must_use]
    pub fn is_intake(&self, topic: TopicId) -> bool {
        usize::from(topic.0) < self.intakes.len()
    }
}

/// What the engine remembers of records with an id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tracking {
    /// Every timer, from its creation until `history` after its end.
    #[default]
    Full,
    /// Only what was cancelled or replaced, until it was seen.
    Cancellations,
}

/// In which order records of one key arrive at one target when their lane is late.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Arrival {
    /// Each as soon as it can: what comes up late may arrive after what was due later.
    #[default]
    ByDue,
    /// By due time, and at the same due time by submission, always. See `docs/adr/0013-strict-order.md`.
    Strict,
}

/// Bounds and waits. Every one has a default that a user may keep.
#[derive(Clone, Debug)]
pub struct Limits {
    /// What may wait in memory: a record due within this long goes to the wheel.
    pub horizon: Millis,
    /// How long a hop is collected before it is produced, at most.
    pub hop_linger: Millis,
    /// How many partitions of tiers one batch may touch: a transaction's cost grows with them.
    pub hop_partitions_max: usize,
    /// How many batches may be on their way at once: 1 in `exactly_once`, where one is one transaction.
    pub batches_max: usize,
    /// Nothing is left of a batch that failed, as in `exactly_once`.
    pub aborts: bool,
    /// The least time between the end of one batch and the start of the next.
    pub batch_gap: Millis,
    /// Records in one batch, at most.
    pub batch_records_max: usize,
    /// Bytes in one batch, at most (but for one record).
    pub batch_bytes_max: usize,
    /// Bytes of records held in all: buffers, wheel, hop buffer, batches.
    pub memory_bytes: usize,
    /// The longest delay that is accepted.
    pub max_delay: Millis,
    /// The largest record that own topics take, in our own count; a larger one came in compressed.
    pub record_bytes_max: usize,
    /// A record larger than this waits in tiers until it is due within [`large_horizon`](Self::large_horizon).
    pub large_bytes: usize,
    /// The horizon of large records.
    pub large_horizon: Millis,
    /// A partition is paused when the last record read of it must wait for longer than this.
    pub read_ahead: Millis,
    /// A paused partition is resumed this long before the last record read of it is let go. librdkafka took up to a
    /// second to deliver again after a resume.
    pub resume_lead: Millis,
    /// How long a description of a target is valid; that of a missing one, for a fifteenth of it.
    pub target_fresh: Millis,
    /// What the engine remembers of records with an id.
    pub tracking: Tracking,
    /// How long before its due time a cancel must be readable in the intake to win for certain: a timer fires only once
    /// its intake is read up to there. `None`: it does not wait for that.
    pub settle: Option<Millis>,
    /// In which order records of one key arrive when their lane is late.
    pub arrival: Arrival,
    /// How long the outcome of a timer is kept.
    pub history: Millis,
    /// How long a tracked timer must be overdue before it can be lost: an append may be delayed, and clocks differ and step.
    pub lost_after: Millis,
    /// How long a duplicate create is kept: a cancel that was submitted between the two may still come.
    pub duplicates_kept: Millis,
    /// Timers that are remembered, pending ones and cancel marks together, at most.
    pub tracked_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            horizon: Millis(2_000),
            hop_linger: Millis(500),
            hop_partitions_max: 8,
            batches_max: 1,
            aborts: true,
            batch_gap: Millis(5),
            batch_records_max: 10_000,
            batch_bytes_max: 16 << 20,
            memory_bytes: 256 << 20,
            max_delay: Millis(400 * 86_400_000),
            record_bytes_max: (2 << 20) + (64 << 10),
            large_bytes: 64 << 10,
            large_horizon: Millis(1_000),
            read_ahead: Millis(10_000),
            resume_lead: Millis(1_500),
            target_fresh: Millis(30_000),
            tracking: Tracking::Full,
            settle: Some(Millis(50)),
            arrival: Arrival::ByDue,
            history: Millis::DAY,
            lost_after: Millis(600_000),
            duplicates_kept: Millis(600_000),
            tracked_max: 1_000_000,
        }
    }
}

/// All that an [`LaneEngine`](super::LaneEngine) is given at its start.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Partitions of every lane topic.
    pub lanes: u16,
    /// The topics and their policies.
    pub topics: Topics,
    /// What states are sealed with.
    pub key: StateKey,
    /// Bounds and waits.
    pub limits: Limits,
}

impl Setup {
    /// How much time a hop must have left when it is appended to this tier, so that it comes up in time. Strict order has to
    /// bear a new leader, too, whose clock is behind.
    pub(super) fn needs(&self, tier: usize) -> Option<Millis> {
        let tier = self.topics.ladder.tiers().get(tier)?;
        let guard = if self.limits.arrival == Arrival::Strict { tier.guard() } else { Millis(0) };
        Some(tier.wait() + guard)
    }

    /// The same setup with other allow-lists: one for each of [`Topics::intakes`], in their order.
    #[must_use]
    pub fn with_allow(&self, allow: impl IntoIterator<Item = Allow>) -> Self {
        let mut setup = self.clone();
        for (intake, allow) in setup.topics.intakes.iter_mut().zip(allow) {
            intake.allow = allow;
        }
        setup
    }
}
