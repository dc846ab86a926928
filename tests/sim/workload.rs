//! What users submit, and what each of them may expect: drawn from the seed, known before anything runs.
//!
//! The expectation is stated by the contract (design 2), from outside: nothing here asks the engine.

mod stories;

use std::collections::BTreeMap;

use waterclock::engine::state::{Kind, Order, State, StateKey, intake_tag};
use waterclock::engine::timers::{Place, TimerKey};
use waterclock::engine::{Millis, Record, UnixMillis};

use crate::broker::{EPOCH_MS, POISON, Time};
use crate::chance::Chance;
use crate::plan::{DAY, MINUTE, Plan, SECOND};

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
    pub timer: Option<TimerKey>,
    pub act: Act,
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
    pub cancels: BTreeMap<TimerKey, Vec<usize>>,
    pub transactions: Vec<End>,
}

/// Headers that break the contract, and the code that says so; all but the time and target are set by these.
type Bad = (&'static [(&'static str, Option<&'static str>)], &'static str);

const GOOD_TARGET: (&str, Option<&str>) = ("x-delay-target", Some("t0"));

#[rustfmt::skip]
const BAD: &[Bad] = &[
    (&[GOOD_TARGET, ("x-delay", Some("soon"))], "bad_delay"),
    (&[GOOD_TARGET, ("x-delay", Some("-5"))], "negative_delay"),
    (&[GOOD_TARGET, ("x-delay", Some("500d"))], "delay_too_long"),
    (&[GOOD_TARGET, ("x-delay", Some("99999999999999999999"))], "delay_overflow"),
    (&[GOOD_TARGET, ("x-delay-until", Some("1700000000"))], "ambiguous_timestamp"),
    (&[GOOD_TARGET, ("x-delay-until", Some("yesterday"))], "bad_until"),
    (&[GOOD_TARGET, ("x-delay", Some("1s")), ("x-delay-until", Some("1800000100000"))], "conflicting_directives"),
    (&[GOOD_TARGET], "missing_delay"),
    (&[("x-delay", Some("1s"))], "missing_target"),
    (&[("x-delay", Some("1s")), ("x-delay-target", Some("a b"))], "bad_target"),
    (&[("x-delay", Some("1s")), ("x-delay-target", Some("waterclock.intake"))], "target_forbidden"),
    (&[("x-delay", Some("1s")), ("x-delay-target", Some("__consumer_offsets"))], "target_forbidden"),
    (&[("x-delay", Some("1s")), ("x-delay-target", Some("secret"))], "target_denied"),
    (&[("x-delay", Some("1s")), ("x-delay-target", Some("gone"))], "target_missing"),
    (&[GOOD_TARGET, ("x-delay", Some("1s")), ("x-delay-partition", Some("-1"))], "bad_partition"),
    (&[GOOD_TARGET, ("x-delay", Some("1s")), ("x-delay-partition", Some("99"))], "bad_partition"),
    (&[GOOD_TARGET, ("x-delay", Some("1s")), ("x-delay-action", Some("cancel"))], "missing_id"),
    (&[GOOD_TARGET, ("x-delay", Some("1s")), ("x-delay-action", Some("melt"))], "bad_action"),
    (&[GOOD_TARGET, ("x-delay", Some("1s")), ("x-delay-id", Some(""))], "bad_id"),
    (&[GOOD_TARGET, ("x-delay", Some("1s")), ("x-delay-expires", Some("never"))], "bad_expires"),
    (&[GOOD_TARGET, ("x-delay", Some("1s")), ("x-delay-trace", Some("2"))], "bad_trace"),
    (&[GOOD_TARGET, ("x-delay", Some("1s")), GOOD_TARGET], "duplicate_header"),
    (&[GOOD_TARGET, ("x-delay", Some("1s")), ("x-delay-spell", Some("1"))], "unknown_header"),
    (&[GOOD_TARGET, ("x-delay", None)], "bad_header"),
    (&[GOOD_TARGET, ("x-delay", Some("1s")), ("x-delay-state", Some("\u{1}forged"))], "bad_state"),
];

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
        if open.is_none() && !plan.flood && chance.percent(6) {
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
    if !plan.flood {
        load.cancel(plan, chance);
        load.stories(plan, chance);
    }
    load
}

impl Workload {
    /// Users change their minds: about half of the timers are cancelled, some in the same millisecond, some long after
    /// they fired; and some are made anew.
    fn cancel(&mut self, plan: &Plan, chance: &mut Chance) {
        for index in 0..self.submissions.len() {
            let of = &self.submissions[index];
            let Some(timer) = of.timer.filter(|_| chance.percent(50)) else { continue };
            let at = of.at + chance.between(0, 1) * chance.spread(1, plan.delay_max);
            let id = of.record.headers().find(|(name, _)| *name == b"x-delay-id");
            let Some((_, Some(id))) = id else { continue };
            // With no key the id stands for it, be it written down or not.
            let key = of
                .record
                .key()
                .map(<[u8]>::to_vec)
                .or_else(|| chance.percent(50).then(|| id.to_vec()));
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
    let key = key(chance);
    let id = chance.percent(20).then(|| format!("id-{}", chance.below(20)));
    let mut draft = Draft {
        headers: vec![header("n", number)],
        when: When::After(0),
        fates: Vec::new(),
        expires: None,
        trace: false,
        topic: 0,
        broken: false,
    };
    let crowd = !plan.flood && chance.percent(15);
    let key = if crowd { Some(b"k0".to_vec()) } else { key };
    match chance.between(0, 99) {
        _ if plan.flood => draft.brief(chance),
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
        .map(|id| TimerKey::new(key.as_deref(), id));
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
    }
}

fn key(chance: &mut Chance) -> Option<Vec<u8>> {
    match chance.between(0, 9) {
        0 => None,
        1 => Some(Vec::new()),
        2 => Some(vec![0, 0xff, chance.between(0, 3) as u8]),
        _ => Some(format!("k{}", chance.below(8)).into_bytes()),
    }
}

/// A submission in the making.
struct Draft {
    headers: Vec<Header>,
    when: When,
    fates: Vec<Fate>,
    expires: Option<When>,
    trace: bool,
    topic: usize,
    /// It breaks the contract.
    broken: bool,
}

impl Draft {
    fn has(&self, name: &str) -> bool {
        self.headers.iter().any(|(known, _)| known == name.as_bytes())
    }

    fn bad(&mut self, chance: &mut Chance) {
        let (headers, code) = *chance.pick(BAD);
        self.headers.extend(headers.iter().map(|(name, value)| {
            (name.as_bytes().to_vec(), value.map(|value| value.as_bytes().to_vec()))
        }));
        self.fates = vec![Fate::Dead(code)];
        // What only its target can tell may be cancelled before.
        let by_target = headers.iter().any(|(_, value)| matches!(value, Some("99" | "gone")))
            || matches!(code, "target_forbidden" | "target_denied");
        self.broken = !by_target;
    }

    /// Many of one key, due at one instant: their order is what counts.
    fn crowd(&mut self, due: u64) {
        self.when = When::At(due);
        self.headers.push(header("x-delay-until", due));
        self.headers.push(header("x-delay-target", "t0"));
        self.fates = vec![Fate::Deliver { target: "t0", partition: None }];
    }

    /// Due within the horizon, but late enough to make it through a tier.
    fn brief(&mut self, chance: &mut Chance) {
        let delay = chance.between(1_200, 1_990);
        self.after(chance, delay);
        self.headers.push(header("x-delay-target", "t0"));
        self.fates = vec![Fate::Deliver { target: "t0", partition: None }];
    }

    /// Follows the contract, and is refused by the broker.
    fn poison(&mut self, plan: &Plan, chance: &mut Chance) {
        let delay = *chance.pick(&[0, 1_000, plan.delay_max.min(30 * SECOND)]);
        self.after(chance, delay);
        if chance.percent(30) {
            self.headers.push(header("x-delay-target", DENIED));
        } else {
            self.headers.push(header("x-delay-target", chance.pick(&["t0", "t1"])));
            self.headers.push((POISON.to_vec(), None));
        }
        self.fates = vec![Fate::Dead("target_refused")];
    }

    /// Nothing but what the intake's defaults say.
    fn defaults(&mut self) {
        self.topic = 1;
        self.when = When::After(4_500);
        self.fates = vec![Fate::Deliver { target: "t0", partition: None }];
    }

    /// Written to a tier by one who knows the ladder.
    fn tier(&mut self, plan: &Plan, chance: &mut Chance) {
        let tiers = plan.setup.topics.ladder.tiers();
        let within = tiers.iter().filter(|tier| tier.hold.0 <= plan.delay_max.max(SECOND)).count();
        let tier = chance.below(within.max(1));
        self.topic = plan.setup.topics.intakes.len() + tier;
        self.when = When::After(tiers[tier].hold.0);
        if chance.percent(30) {
            let delay = chance.spread(1, plan.delay_max);
            self.when = When::After(delay);
            self.headers.push(header("x-delay", delay));
        }
        self.target(plan, chance);
    }

    fn ordinary(&mut self, plan: &Plan, chance: &mut Chance, at: Time, instants: &[u64]) {
        match chance.between(0, 9) {
            0 => self.after(chance, 0),
            1 => self.after(chance, 1_000),
            2..=5 => {
                let delay = chance.spread(1, plan.delay_max);
                self.after(chance, delay);
            }
            6..=7 => {
                let due = *chance.pick(instants);
                self.when = When::At(due);
                self.headers.push(header("x-delay-until", due));
            }
            8 => {
                let due = EPOCH_MS + at + chance.spread(1, plan.delay_max);
                // A fraction of a millisecond is rounded up.
                let fraction = chance.between(0, 999_999);
                self.when = When::At(due + u64::from(fraction > 0));
                self.headers.push(header("x-delay-until", rfc3339(due, fraction)));
            }
            _ => {
                let due = EPOCH_MS - chance.spread(1, DAY);
                self.when = When::At(due);
                self.headers.push(header("x-delay-until", due));
            }
        }
        self.target(plan, chance);
        if chance.percent(10) {
            self.expiry(plan, chance);
        }
        if chance.percent(10) {
            self.trace = true;
            self.headers.push(header("x-delay-trace", 1));
        }
        if chance.percent(10) {
            self.headers.push(header("x-delay-label", "a label"));
        }
    }

    fn after(&mut self, chance: &mut Chance, delay: u64) {
        self.when = When::After(delay);
        let text = if chance.percent(50) { delay.to_string() } else { Millis(delay).to_string() };
        self.headers.push(header("x-delay", text));
    }

    fn target(&mut self, plan: &Plan, chance: &mut Chance) {
        let (name, partitions, _) = *chance.pick(&TARGETS);
        self.headers.push(header("x-delay-target", name));
        let widens = name == WIDENED.0 && !plan.healthy();
        let most = if widens { WIDENED.1 } else { partitions };
        let partition = chance.percent(15).then(|| chance.below(most) as i32);
        if let Some(partition) = partition {
            self.headers.push(header("x-delay-partition", partition));
        }
        self.fates = vec![Fate::Deliver { target: name, partition }];
        if partition.is_some_and(|partition| partition as usize >= partitions) {
            // Before it is widened there is no such partition.
            self.fates.push(Fate::Dead("bad_partition"));
        }
        if name == "later" {
            // Before it is made it is not there.
            self.fates.push(Fate::Dead("target_missing"));
        }
    }

    /// Either before the due time, so that it never arrives, or long after it.
    fn expiry(&mut self, plan: &Plan, chance: &mut Chance) {
        let When::After(delay) = self.when else { return };
        let after = match chance.between(0, 2) {
            0 if delay > 1 => {
                self.fates.retain(|fate| matches!(fate, Fate::Dead(_)));
                self.fates.push(Fate::Dead("expired"));
                chance.between(1, delay - 1)
            }
            1 if !plan.healthy() => {
                self.fates.push(Fate::Dead("expired"));
                delay + chance.spread(1, 2 * SECOND)
            }
            _ => delay + plan.heal_at + 30 * MINUTE,
        };
        self.expires = Some(When::After(after));
        self.headers.push(header("x-delay-expires", format!("{after}ms")));
    }

    fn value(&mut self, plan: &Plan, chance: &mut Chance, key: Option<&[u8]>) -> Option<Vec<u8>> {
        let bytes = match chance.between(0, 19) {
            0 => return None,
            1 => 0,
            2 if plan.large => chance.spread(1 << 10, 40 << 10),
            3 => chance.between(1_100, 1_500),
            _ => chance.between(1, 100),
        };
        let value: Vec<u8> = (0..bytes).map(|byte| byte as u8).collect();
        if self.fates.iter().any(|fate| matches!(fate, Fate::Deliver { target: "t2", .. })) {
            // What is close to the limit may be refused or not: the state and other headers come and go.
            let size = crate::broker::batch_bytes(&record(key, Some(&value), &[]));
            if size + 800 > SMALL_TARGET {
                self.fates.push(Fate::Dead("too_large"));
            }
            if size > SMALL_TARGET {
                self.fates.retain(|fate| matches!(fate, Fate::Dead(_)));
            }
        }
        Some(value)
    }

    /// Headers of the user's own, in any place: repeated, null, empty, not text.
    fn noise(&mut self, chance: &mut Chance) {
        for _ in 0..chance.between(0, 4) {
            let noise: Header = match chance.between(0, 5) {
                0 => (b"twice".to_vec(), Some(b"1".to_vec())),
                1 => (b"twice".to_vec(), None),
                2 => (b"".to_vec(), Some(Vec::new())),
                3 => (vec![0xff, 0], Some(vec![0xfe])),
                4 => (b"x-delayed".to_vec(), Some(b"not of the contract".to_vec())),
                _ => (b"traceparent".to_vec(), Some(b"00-1-2-01".to_vec())),
            };
            let place = chance.below(self.headers.len() + 1);
            self.headers.insert(place, noise);
        }
    }
}

/// `ms` and `fraction` nanoseconds after it, in words.
fn rfc3339(ms: u64, fraction: u64) -> String {
    let nanoseconds = i128::from(ms) * 1_000_000 + i128::from(fraction);
    jiff::Timestamp::from_nanosecond(nanoseconds).map(|at| at.to_string()).unwrap_or_default()
}

/// The partition that Java's default partitioner gives a key: written from Kafka's `Utils.murmur2`, not from ours.
pub fn java_partition(key: &[u8], partitions: u32) -> i32 {
    const M: u32 = 0x5bd1_e995;
    let mut hash = 0x9747_b28c ^ key.len() as u32;
    let mut chunks = key.chunks_exact(4);
    for chunk in &mut chunks {
        let mut word = u32::from_le_bytes([chunk[0], chunk[1], chunk[2], chunk[3]]).wrapping_mul(M);
        word = (word ^ (word >> 24)).wrapping_mul(M);
        hash = hash.wrapping_mul(M) ^ word;
    }
    let rest = chunks.remainder();
    for (index, byte) in rest.iter().enumerate().rev() {
        hash ^= u32::from(*byte) << (8 * index);
    }
    if !rest.is_empty() {
        hash = hash.wrapping_mul(M);
    }
    hash = (hash ^ (hash >> 13)).wrapping_mul(M);
    hash ^= hash >> 15;
    ((hash & 0x7fff_ffff) % partitions) as i32
}

/// A command about one version of a timer, as waterclock writes it for who asks for that.
pub fn amend(command: &Record, version: Place, due: u64, key: &StateKey) -> Record {
    let headers: Vec<Header> =
        command.headers().map(|(name, value)| (name.to_vec(), value.map(<[u8]>::to_vec))).collect();
    let state = State {
        kind: Kind::Amend,
        due: UnixMillis(due),
        first_appended: version.first_appended,
        order: Order { appended: version.first_appended, offset: version.offset },
        expires: None,
        intake: intake_tag(""),
        hops: 0,
    };
    let with = |headers: &[Header]| record(command.key(), command.value(), headers);
    let plain = with(&headers);
    let Ok(directive) = waterclock::engine::header::read(plain.headers()) else { return plain };
    let sealed = state.seal(key, &directive.bound(command.key()));
    let mut headers = headers;
    headers.push((b"x-delay-state".to_vec(), Some(sealed.as_ref().to_vec())));
    with(&headers)
}
