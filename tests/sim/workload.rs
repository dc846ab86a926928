//! What users submit, and what each of them may expect: drawn from the seed, known before anything runs.
//!
//! The expectation is stated by the header contract, from outside: nothing here asks the engine.

mod draft;
pub mod hostile;
mod stories;
mod wire;

use std::collections::BTreeMap;

use waterclock::engine::Record;
use waterclock::engine::timers::TimerId;

use crate::broker::{EPOCH_MS, Time};
use crate::chance::Chance;
use crate::plan::{Kind, Plan, SECOND};
use draft::{Draft, malformed};
pub use wire::{amend, java_partition};

/// The header that names a submission; the contract does not know it, so it is kept.
pub const NUMBER: &[u8] = b"n";
/// Bytes of a record that the small target takes.
pub const SMALL_TARGET: u64 = 1_500;
/// Every other topic's limit.
pub const RECORD_BYTES_MAX: u64 = 1 << 20;
/// Targets: name, partitions, limit. `later` is made while the run is on.
pub const TARGETS: [(&str, usize, u64); 4] = [
    ("t0", 3, RECORD_BYTES_MAX),
    ("t1", 1, RECORD_BYTES_MAX),
    ("t2", 5, SMALL_TARGET),
    ("later", 2, RECORD_BYTES_MAX),
];

/// A target that nobody may write to, though it is there and allowed.
pub const DENIED: &str = "t9";

/// A target that gets more partitions while a faulty run is on, and how many it has then.
pub const WIDENED: (&str, usize) = ("t1", 4);

/// When a record is due, as it was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// This long after its first append.
    After(u64),
    /// At this broker time.
    At(u64),
}

impl When {
    pub fn due(self, appended: u64) -> u64 {
        match self {
            Self::After(delay) => appended + delay,
            Self::At(due) => due,
        }
    }
}

/// What may become of a submission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    Deliver { target: &'static str, partition: Option<i32> },
    Dead(&'static str),
}

/// One record that a user sends.
#[derive(Debug)]
pub struct Submission {
    pub at: Time,
    /// Index of the lane topic.
    pub topic: usize,
    pub partition: i32,
    pub record: Record,
    pub when: When,
    /// Any of these is right.
    pub fates: Vec<Fate>,
    pub expires: Option<When>,
    pub trace: bool,
    /// The index of the user's transaction.
    pub transaction: Option<usize>,
    /// Whether it goes to its key's lane by itself.
    pub own_lane: bool,
    /// The timer that it makes or ends.
    pub timer: Option<TimerId>,
    pub act: Act,
    /// Its producer is hostile: nobody promises it to be on time.
    pub hostile: bool,
    /// The state that it steals when it is written.
    pub theft: Option<hostile::Theft>,
}

impl Submission {
    /// In a line.
    pub fn brief(&self) -> String {
        let headers = self.record.headers().filter(|(name, _)| name.starts_with(b"x-delay"));
        let text = |of: Option<&[u8]>| of.map(|of| String::from_utf8_lossy(of).into_owned());
        let headers: Vec<String> = headers
            .filter(|(name, _)| *name != b"x-delay-state")
            .map(|(name, value)| {
                format!("{}={}", String::from_utf8_lossy(name), text(value).unwrap_or_default())
            })
            .collect();
        let Self { topic, partition, act, transaction, .. } = self;
        let key = text(self.record.key());
        let within = transaction.map_or(String::new(), |of| format!(" in transaction {of}"));
        format!("{act:?} to {topic}/{partition} key {key:?} {}{within}", headers.join(" "))
    }
}

/// What a record is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    Create,
    Replace,
    Cancel,
    /// What waterclock writes for one who names a version: that which this submission made.
    CancelVersion(usize),
    ReplaceVersion(usize),
}

impl Act {
    pub fn cancels(self) -> bool {
        matches!(self, Self::Cancel | Self::CancelVersion(_))
    }

    pub fn replaces(self) -> bool {
        matches!(self, Self::Replace | Self::ReplaceVersion(_))
    }

    pub fn names_a_version(self) -> bool {
        self.version().is_some()
    }

    pub fn version(self) -> Option<usize> {
        match self {
            Self::CancelVersion(of) | Self::ReplaceVersion(of) => Some(of),
            Self::Create | Self::Replace | Self::Cancel => None,
        }
    }
}

/// How a user's transaction ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Commit(Time),
    Abort(Time),
    /// Never: the broker ends it.
    Hang,
}

/// Everything that users do.
#[derive(Debug, Default)]
pub struct Workload {
    pub submissions: Vec<Submission>,
    /// The submissions that end a timer.
    pub cancels: BTreeMap<TimerId, Vec<usize>>,
    pub transactions: Vec<End>,
}

type Header = (Vec<u8>, Option<Vec<u8>>);

fn header(name: &str, value: impl ToString) -> Header {
    (name.as_bytes().to_vec(), Some(value.to_string().into_bytes()))
}

/// Builds a record from owned headers.
pub fn record(key: Option<&[u8]>, value: Option<&[u8]>, headers: &[Header]) -> Record {
    Record::new(key, value, headers.iter().map(|(name, value)| (name.as_slice(), value.as_deref())))
}

/// Draws what users do in a run.
pub fn draw(plan: &Plan, chance: &mut Chance) -> Workload {
    let mut load = Workload::default();
    let instants: Vec<u64> = (0..3).map(|_| absolute(plan, chance)).collect();
    let mut at = plan.submits.0;
    let mut open: Option<(usize, usize)> = None;
    for number in 0..plan.submissions {
        if open.is_some() {
            at += chance.between(0, 3);
        } else if chance.percent(50) {
            at = chance.between(plan.submits.0, plan.submits.1);
        }
        let mut submission = one(plan, chance, number, at, &instants);
        if open.is_none() && plan.kind != Kind::Flood && chance.percent(6) {
            load.transactions.push(End::Hang);
            open = Some((load.transactions.len() - 1, chance.between(1, 8) as usize));
        }
        if let Some((transaction, left)) = open {
            submission.transaction = Some(transaction);
            let late = chance.spread(1, if plan.healthy() { 10 } else { 20 * SECOND });
            let last = load.submissions.iter().filter(|s| s.transaction == Some(transaction));
            let end_at = last.map(|s| s.at).max().unwrap_or_default().max(at) + late;
            load.transactions[transaction] = match chance.between(0, 9) {
                0..=5 => End::Commit(end_at),
                6..=8 => End::Abort(end_at),
                _ if plan.healthy() => End::Abort(end_at),
                _ => End::Hang,
            };
            open = (left > 1).then_some((transaction, left - 1));
        }
        load.submissions.push(submission);
    }
    if plan.kind != Kind::Flood {
        load.cancel(plan, chance);
        load.stories(plan, chance);
    }
    if let Some(of) = &plan.hostile {
        load.attack(plan, of, chance);
    }
    load
}

impl Workload {
    /// Users change their minds: about half of the timers are cancelled, some in the same millisecond, some long after
    /// they fired; and some are created again.
    fn cancel(&mut self, plan: &Plan, chance: &mut Chance) {
        for index in 0..self.submissions.len() {
            let of = &self.submissions[index];
            let Some(timer) = of.timer.filter(|_| chance.percent(50)) else { continue };
            let at = of.at + chance.between(0, 1) * chance.spread(1, plan.delay_max);
            let id = of.record.headers().find(|(name, _)| *name == b"x-delay-id");
            let Some((_, Some(id))) = id else { continue };
            // One without a key is not the one whose key is its id.
            let key = of.record.key().map(<[u8]>::to_vec);
            let headers = [
                header("n", self.submissions.len()),
                header("x-delay-action", "cancel"),
                (b"x-delay-id".to_vec(), Some(id.to_vec())),
            ];
            let lanes = u32::from(plan.setup.lanes);
            let own = java_partition(key.as_deref().unwrap_or(id), lanes);
            let partition =
                if chance.percent(80) { own } else { chance.below(lanes as usize) as i32 };
            let cancel = Submission {
                at,
                // The commands of one id use one intake.
                topic: if of.topic < plan.setup.topics.intakes.len() { of.topic } else { 0 },
                partition,
                record: record(key.as_deref(), None, &headers),
                when: When::After(0),
                fates: Vec::new(),
                expires: None,
                trace: false,
                transaction: None,
                own_lane: own == partition,
                timer: Some(timer),
                act: Act::Cancel,
                hostile: false,
                theft: None,
            };
            self.cancels.entry(timer).or_default().push(self.submissions.len());
            self.submissions.push(cancel);
            if chance.percent(40) {
                self.again(index, at, chance);
            }
        }
    }

    /// The same record once more, soon after its cancel.
    fn again(&mut self, index: usize, after: Time, chance: &mut Chance) {
        let number = self.submissions.len();
        let of = &self.submissions[index];
        let headers: Vec<Header> = of
            .record
            .headers()
            .map(|(name, value)| match name {
                NUMBER => header("n", number),
                _ => (name.to_vec(), value.map(<[u8]>::to_vec)),
            })
            .collect();
        let again = Submission {
            at: after + chance.spread(1, SECOND) - 1,
            record: record(of.record.key(), of.record.value(), &headers),
            fates: of.fates.clone(),
            transaction: None,
            ..*of
        };
        self.submissions.push(again);
    }
}

/// A point in time that several records may share; a few are in the past.
fn absolute(plan: &Plan, chance: &mut Chance) -> u64 {
    let (from, to) = plan.submits;
    EPOCH_MS + chance.between(from, to) + chance.spread(1, plan.delay_max)
        - chance.pick(&[0, 3 * SECOND])
}

fn one(plan: &Plan, chance: &mut Chance, number: usize, at: Time, instants: &[u64]) -> Submission {
    let key = key(plan, chance);
    let id = (plan.ids && chance.percent(20)).then(|| format!("id-{}", chance.below(20)));
    let mut draft = Draft {
        headers: vec![header("n", number)],
        when: When::After(0),
        fates: Vec::new(),
        expires: None,
        trace: false,
        topic: 0,
        broken: false,
    };
    let crowd = plan.kind != Kind::Flood && chance.percent(15);
    let key = if crowd { Some(b"k0".to_vec()) } else { key };
    match chance.between(0, 99) {
        _ if plan.kind == Kind::Flood => draft.brief(chance),
        _ if crowd => draft.crowd(instants[0]),
        _ if plan.poison > 0 && chance.percent(plan.poison) => draft.poison(plan, chance),
        0..=9 => draft.bad(chance),
        10..=14 => draft.defaults(),
        15..=22 => draft.tier(plan, chance),
        _ => draft.ordinary(plan, chance, at, instants),
    }
    let id = id.map(|id| if draft.topic == 1 { format!("orders-{id}") } else { id });
    if let Some(id) = id.filter(|_| !draft.has("x-delay-id") && !draft.has("x-delay-action")) {
        draft.headers.push(header("x-delay-id", id));
    }
    let named = draft.headers.iter().find(|(name, _)| name == b"x-delay-id");
    let timer = named
        .and_then(|(_, id)| id.as_deref())
        .filter(|_| !draft.broken)
        .map(|id| TimerId::new(key.as_deref(), id));
    let identity = key.as_deref().or_else(|| named?.1.as_deref());
    let lanes = u32::from(plan.setup.lanes);
    let own = identity.map(|key| java_partition(key, lanes));
    let partition = match own {
        Some(own) if !chance.percent(15) => own,
        _ => chance.between(0, u64::from(lanes) - 1) as i32,
    };
    let value = draft.value(plan, chance, key.as_deref());
    draft.noise(chance);
    Submission {
        at,
        topic: draft.topic,
        partition,
        record: record(key.as_deref(), value.as_deref(), &draft.headers),
        when: draft.when,
        fates: draft.fates,
        expires: draft.expires,
        trace: draft.trace,
        transaction: None,
        own_lane: own.is_none_or(|own| own == partition),
        timer,
        act: Act::Create,
        hostile: false,
        theft: None,
    }
}

fn key(plan: &Plan, chance: &mut Chance) -> Option<Vec<u8>> {
    match chance.between(0, 9) {
        0 => None,
        1 => Some(Vec::new()),
        2 => Some(vec![0, 0xff, chance.between(0, 3) as u8]),
        _ => Some(format!("k{}", chance.below(plan.keys)).into_bytes()),
    }
}
