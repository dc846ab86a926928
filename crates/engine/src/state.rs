//! `x-delay-state`: what waterclock remembers of a record from hop to hop, in the record itself.
//!
//! It is bounded, versioned, and authenticated with HMAC-SHA256. The code also covers what the record must not change
//! on its way: key, target, id and partition. So the state of one record is worth nothing on another. Otherwise anybody
//! who can write to a tier could get round an intake's allow-list.
//!
//! # Invariants
//! 1. A state that opens was sealed with the same secret, for the same key, target, id and partition.
//! 2. Its size is fixed when the record is accepted, and never above [`SIZE_MAX`]: a record does not grow from hop to
//!    hop.
//! 3. The target is sealed: by the code where a header names it, in the state where the intake's default does.
//!
//! The value is not covered, as it may be a MiB and a hop must be cheap. A state can be used twice. Both only help
//! somebody who can read *and* write tiers, and only towards the target that the state was made for.
//!
//! A record of a task has version 3. Its code covers the specification, too, and what a worker says of a turn. The value is covered by
//! the task's digest, which a worker checks before it makes a call: who may write to a tier cannot have another body sent.
//!
//! Layout, big-endian: version u8, kind u8, hops u16, due u64, first append u64, order append u64, order offset i64,
//! expires u64 (all ones: none), intake tag u64, then 16 bytes of the code. Version 2 has two texts before the code,
//! each with its length as u8: the name of the intake, and the target (both may be empty). Version 1 says that the
//! record came by the main intake and has a target of its own; older programs wrote it for all records. Version 3 has before the
//! code: turn u32, attempt u32, round u32, trigger u64, digest of 16 bytes. Such a record came by the main intake. A dispatch has
//! the place and time that it was written for where other records have the intake tag: see [`Dispatched`].

use std::fmt;

use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256};

use super::header::{Code, Directive, RESULT, Refusal, STATE, TASK as TASK_HEADER, TOPIC_MAX};
use super::{Lane, Offset, UnixMillis};

/// Bytes of an `x-delay-state` of a record that came by the main intake and has a target of its own.
pub const SIZE: usize = BODY + CODE;
/// Bytes of the longest `x-delay-state`.
pub const SIZE_MAX: usize = SIZE + 2 + INTAKE_MAX + TOPIC_MAX;
/// Longest name of an intake, in bytes.
pub const INTAKE_MAX: usize = 100;
/// Bytes of the `x-delay-state` of a task.
pub const TASK_SIZE: usize = BODY + TASK_BODY + CODE;
/// What a task says besides.
const TASK_BODY: usize = 36;
/// Bytes of what is said in every version.
const BODY: usize = 52;
/// Bytes of the authentication code: the left half of HMAC-SHA256.
pub(super) const CODE: usize = 16;
/// Without texts.
const PLAIN: u8 = 1;
/// With the intake's name, and the target.
const NAMED: u8 = 2;
/// Of a task.
const TASK: u8 = 3;
/// How "no expiry" is written.
const NEVER: u64 = u64::MAX;
/// One block of SHA-256, so that a state's code is never that of something else under the same secret. It is
/// hashed once per key, not once per record.
const DOMAIN: [u8; 64] = {
    let mut block = [0; 64];
    let (name, _) = block.split_at_mut(24);
    name.copy_from_slice(b"waterclock x-delay-state");
    block
};
/// The same, of a [ticket](super::sealed::Ticket).
const TICKET_DOMAIN: [u8; 64] = {
    let mut block = [0; 64];
    let (name, _) = block.split_at_mut(25);
    name.copy_from_slice(b"waterclock x-delay-ticket");
    block
};

/// The secret that states are sealed with. All instances of a namespace have the same.
#[derive(Clone)]
pub struct StateKey {
    /// With the key and [`DOMAIN`] taken in already; cloned for each code.
    mac: Hmac<Sha256>,
    /// The same with [`TICKET_DOMAIN`].
    of_tickets: Hmac<Sha256>,
}

impl StateKey {
    /// Prepares a secret of 32 random bytes.
    #[must_use]
    pub fn new(secret: [u8; 32]) -> Self {
        let mut block = [0; 64];
        block[..32].copy_from_slice(&secret);
        let with = |domain: &[u8; 64]| {
            let mut mac = Hmac::<Sha256>::new(&block.into());
            mac.update(domain);
            mac
        };
        Self { mac: with(&DOMAIN), of_tickets: with(&TICKET_DOMAIN) }
    }

    fn of_ticket(&self, body: &[u8], id: &[u8]) -> Hmac<Sha256> {
        let mut mac = self.of_tickets.clone();
        take_part(&mut mac, Some(body));
        take_part(&mut mac, Some(id));
        mac
    }

    /// What authenticates a ticket of the task with this id.
    pub(super) fn ticket_code(&self, body: &[u8], id: &[u8]) -> [u8; CODE] {
        let whole = self.of_ticket(body, id).finalize().into_bytes();
        let mut code = [0; CODE];
        code.copy_from_slice(&whole[..CODE]);
        code
    }

    /// Whether this authenticates it; compares in constant time.
    pub(super) fn is_ticket_code(&self, body: &[u8], id: &[u8], code: &[u8]) -> bool {
        code.len() == CODE && self.of_ticket(body, id).verify_truncated_left(code).is_ok()
    }

    fn code(&self, body: &[u8], bound: &Bound<'_>) -> Hmac<Sha256> {
        let mut mac = self.mac.clone();
        mac.update(body);
        let partition = bound.partition.map(i32::to_be_bytes);
        let partition = partition.as_ref().map(<[u8; 4]>::as_slice);
        for part in [bound.key, bound.target, bound.id, partition] {
            take_part(&mut mac, part);
        }
        if body.first() == Some(&TASK) {
            take_part(&mut mac, bound.task);
            take_part(&mut mac, bound.result);
        }
        mac
    }
}

fn take_part(mac: &mut Hmac<Sha256>, part: Option<&[u8]>) {
    // No length reaches the mark of null: a record of 4 GiB does not exist.
    let len = part.map_or(u32::MAX, |bytes| bytes.len() as u32);
    mac.update(&len.to_be_bytes());
    mac.update(part.unwrap_or_default());
}

impl fmt::Debug for StateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StateKey(..)")
    }
}

/// What a state was made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// To stand in a tier.
    Hop,
    /// To stand in an intake, in another lane than the record was written to.
    Move,
    /// To stand in an intake: it is about one version of a timer, which [`State::first_appended`] and the offset of
    /// [`State::order`] name. A replace is due when the state says so. Of a task it is a retry by hand, and names the turn, too.
    Amend,
    /// To stand in a tier: a create that was a duplicate when it came to its lane, unless a cancel from before it is late.
    Duplicate,
    /// To stand in the main intake: a task that an instance creates, or a command about one. [`State::first_appended`] is the
    /// brokers' time at which it was sealed.
    Submit,
    /// To stand in `<ns>.tasks`: a turn of a task, or a cancel of that turn.
    Work,
    /// To stand in `<ns>.results`: what a worker says of a turn.
    Result,
}

/// What a state says of a task besides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskState {
    /// Which dispatch it is of, from 1; 0: it was never dispatched.
    pub turn: u32,
    /// Which attempt that is, from 1.
    pub attempt: u32,
    /// How often it was asked before and was not ready.
    pub round: u32,
    /// When it is or was due first. [`State::due`] says when it is to be acted on next.
    pub trigger: UnixMillis,
    /// [`digest`](crate::task::digest) of its body.
    pub digest: [u8; 16],
}

/// Where a dispatch of a task was written to, and when. It tells a dispatch from a copy of it that somebody wrote again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dispatched {
    /// The partition of `<ns>.tasks`.
    pub partition: Lane,
    /// The brokers' time at which its lane sealed it.
    pub at: UnixMillis,
}

impl Dispatched {
    /// Bits of the time: enough until the year 10889.
    const TIME_BITS: u32 = 48;

    /// As it stands in [`State::intake`]: the partition u16, then the time in 48 bits.
    #[must_use]
    pub fn to_word(self) -> u64 {
        let time = self.at.0 & ((1 << Self::TIME_BITS) - 1);
        u64::from(self.partition.0) << Self::TIME_BITS | time
    }

    /// Reads what [`to_word`](Self::to_word) made; `None`: an older program wrote the dispatch, and did not say.
    #[must_use]
    pub fn of_word(word: u64) -> Option<Self> {
        let partition = Lane((word >> Self::TIME_BITS) as u16);
        let at = UnixMillis(word & ((1 << Self::TIME_BITS) - 1));
        (word != intake_tag("")).then_some(Self { partition, at })
    }
}

/// Which of two records of one key and one due time was submitted first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SubmissionOrder {
    /// When it was appended to its lane's intake, or to the tier that it was written to.
    pub appended: UnixMillis,
    /// Where it stood there.
    pub offset: Offset,
}

/// What waterclock remembers of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State<'a> {
    /// Which topics it may stand in.
    pub kind: Kind,
    /// When it is due.
    pub due: UnixMillis,
    /// When it was first appended to any topic of waterclock; relative times count from here.
    pub first_appended: UnixMillis,
    /// Its place among records of the same key and due time.
    pub order: SubmissionOrder,
    /// Past it, the record is not delivered.
    pub expires: Option<UnixMillis>,
    /// [`intake_tag`] of the intake whose rules it is under. In a dispatch of a task: a [`Dispatched`].
    pub intake: u64,
    /// The name of that intake below `<ns>.intake.`; `None`: the main one, or an older program did not say.
    pub name: Option<&'a str>,
    /// The target that it was accepted for, where that is the intake's default.
    pub target: Option<&'a str>,
    /// How many topics of waterclock it was written to by waterclock.
    pub hops: u16,
    /// Of a task.
    pub task: Option<TaskState>,
}

/// The parts of a record that a state is tied to; see [`Directive::bound`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bound<'a> {
    /// The record's key.
    pub key: Option<&'a [u8]>,
    /// The value of `x-delay-target`.
    pub target: Option<&'a [u8]>,
    /// The value of `x-delay-id`.
    pub id: Option<&'a [u8]>,
    /// The number in `x-delay-partition`.
    pub partition: Option<i32>,
    /// The value of `x-delay-task`. Only the state of a task is tied to it.
    pub task: Option<&'a [u8]>,
    /// The value of `x-delay-result`. Only the state of a task is tied to it.
    pub result: Option<&'a [u8]>,
}

impl<'a> Directive<'a> {
    /// What the state of a record with these headers and this key is tied to.
    #[must_use]
    pub fn bound(&self, key: Option<&'a [u8]>) -> Bound<'a> {
        Bound {
            key,
            target: self.target.map(str::as_bytes),
            id: self.id,
            partition: self.partition,
            task: self.task,
            result: self.result,
        }
    }
}

/// A state, encoded and authenticated: the value of `x-delay-state`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sealed(Form);

/// Most states have no texts, and cost no allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Form {
    Plain([u8; SIZE]),
    Task(Box<[u8; TASK_SIZE]>),
    Named(Box<[u8]>),
}

impl AsRef<[u8]> for Sealed {
    fn as_ref(&self) -> &[u8] {
        match &self.0 {
            Form::Plain(bytes) => bytes,
            Form::Task(bytes) => bytes.as_slice(),
            Form::Named(bytes) => bytes,
        }
    }
}

/// Eight bytes that stand for the name of an intake: the first of its SHA-256.
#[must_use]
pub fn intake_tag(name: &str) -> u64 {
    let hash = Sha256::digest(name.as_bytes());
    u64::from_be_bytes([hash[0], hash[1], hash[2], hash[3], hash[4], hash[5], hash[6], hash[7]])
}

impl<'a> State<'a> {
    /// Encodes and authenticates it for the record that `bound` is of.
    #[must_use]
    pub fn seal(&self, key: &StateKey, bound: &Bound<'_>) -> Sealed {
        let mut bytes = [0; SIZE];
        let is_named = self.name.is_some() || self.target.is_some();
        bytes[0] = match (self.task, is_named) {
            (Some(_), _) => TASK,
            (None, true) => NAMED,
            (None, false) => PLAIN,
        };
        bytes[1] = match self.kind {
            Kind::Hop => 1,
            Kind::Move => 2,
            Kind::Amend => 3,
            Kind::Duplicate => 4,
            Kind::Submit => 5,
            Kind::Work => 6,
            Kind::Result => 7,
        };
        bytes[2..4].copy_from_slice(&self.hops.to_be_bytes());
        let words = [
            self.due.0,
            self.first_appended.0,
            self.order.appended.0,
            self.order.offset.0.cast_unsigned(),
            self.expires.map_or(NEVER, |expires| expires.0),
            self.intake,
        ];
        let (slots, _) = bytes[4..BODY].as_chunks_mut::<8>();
        for (slot, word) in slots.iter_mut().zip(words) {
            *slot = word.to_be_bytes();
        }
        if let Some(task) = self.task {
            return task.seal(&bytes, key, bound);
        }
        if !is_named {
            let code = key.code(&bytes[..BODY], bound).finalize().into_bytes();
            bytes[BODY..].copy_from_slice(&code[..CODE]);
            return Sealed(Form::Plain(bytes));
        }
        let mut body = Vec::with_capacity(SIZE_MAX);
        body.extend_from_slice(&bytes[..BODY]);
        for text in [self.name, self.target] {
            // The configuration and the contract keep both below that.
            let text = text.filter(|text| text.len() <= TEXT_MAX).unwrap_or_default();
            body.push(text.len() as u8);
            body.extend_from_slice(text.as_bytes());
        }
        let code = key.code(&body, bound).finalize().into_bytes();
        body.extend_from_slice(&code[..CODE]);
        Sealed(Form::Named(body.into_boxed_slice()))
    }

    /// Decodes a state, if it was sealed with this key for this record.
    ///
    /// # Errors
    /// `bad_state`: the record is to be dead-lettered.
    pub fn open(bytes: &'a [u8], key: &StateKey, bound: &Bound<'_>) -> Result<Self, Refusal> {
        let refused = |what: &str| Refusal::new(Code::BadState, format!("{STATE} {what}"));
        let is_fit = |bytes: &&[u8]| match bytes.first() {
            Some(&NAMED) => (SIZE + 2..=SIZE_MAX).contains(&bytes.len()),
            Some(&TASK) => bytes.len() == TASK_SIZE,
            _ => bytes.len() == SIZE,
        };
        let Some((body, code)) =
            Some(bytes).filter(is_fit).and_then(|bytes| bytes.split_at_checked(bytes.len() - CODE))
        else {
            return Err(refused(&format!("has {} bytes; want {SIZE}", bytes.len())));
        };
        if !matches!(body[0], PLAIN | NAMED | TASK) {
            return Err(refused(&format!("is of version {}; want {PLAIN} to {TASK}", body[0])));
        }
        // Compares in constant time.
        if key.code(body, bound).verify_truncated_left(code).is_err() {
            return Err(refused("is not authentic: want one of this namespace, for this record"));
        }
        let is_task = body[0] == TASK;
        if !is_task && (bound.task.is_some() || bound.result.is_some()) {
            let detail = format!("{TASK_HEADER} or {RESULT} with a {STATE} of another record");
            return Err(Refusal::new(Code::TaskForbidden, detail));
        }
        let kind = match body[1] {
            1 => Kind::Hop,
            2 => Kind::Move,
            3 => Kind::Amend,
            4 => Kind::Duplicate,
            5 if is_task => Kind::Submit,
            6 if is_task => Kind::Work,
            7 if is_task => Kind::Result,
            other => {
                let most = if is_task { 7 } else { 4 };
                return Err(refused(&format!("is of kind {other}; want 1 to {most}")));
            }
        };
        let mut words = [0; 6];
        let (slots, _) = body[4..BODY].as_chunks::<8>();
        for (word, slot) in words.iter_mut().zip(slots) {
            *word = u64::from_be_bytes(*slot);
        }
        let task = is_task.then(|| TaskState::read(&body[BODY..]).ok_or_else(|| refused("is cut")));
        let [name, target] = match body[0] {
            NAMED => texts(&body[BODY..]).ok_or_else(|| refused("has texts that are none"))?,
            _ => [None; 2],
        };
        let [due, first_appended, order_appended, order_offset, expires, intake] = words;
        Ok(Self {
            kind,
            due: UnixMillis(due),
            first_appended: UnixMillis(first_appended),
            order: SubmissionOrder {
                appended: UnixMillis(order_appended),
                offset: Offset(order_offset.cast_signed()),
            },
            expires: (expires != NEVER).then_some(UnixMillis(expires)),
            intake,
            name,
            target,
            hops: u16::from_be_bytes([body[2], body[3]]),
            task: task.transpose()?,
        })
    }
}

impl TaskState {
    fn seal(&self, plain: &[u8; SIZE], key: &StateKey, bound: &Bound<'_>) -> Sealed {
        let mut bytes = Box::new([0; TASK_SIZE]);
        bytes[..BODY].copy_from_slice(&plain[..BODY]);
        for (at, number) in [self.turn, self.attempt, self.round].into_iter().enumerate() {
            bytes[BODY + 4 * at..][..4].copy_from_slice(&number.to_be_bytes());
        }
        bytes[BODY + 12..][..8].copy_from_slice(&self.trigger.0.to_be_bytes());
        bytes[BODY + 20..][..16].copy_from_slice(&self.digest);
        let code = key.code(&bytes[..BODY + TASK_BODY], bound).finalize().into_bytes();
        bytes[BODY + TASK_BODY..].copy_from_slice(&code[..CODE]);
        Sealed(Form::Task(bytes))
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let (turn, rest) = bytes.split_first_chunk()?;
        let (attempt, rest) = rest.split_first_chunk()?;
        let (round, rest) = rest.split_first_chunk()?;
        let (trigger, rest) = rest.split_first_chunk()?;
        let (digest, rest) = rest.split_first_chunk()?;
        rest.is_empty().then(|| Self {
            turn: u32::from_be_bytes(*turn),
            attempt: u32::from_be_bytes(*attempt),
            round: u32::from_be_bytes(*round),
            trigger: UnixMillis(u64::from_be_bytes(*trigger)),
            digest: *digest,
        })
    }
}

/// Whether a state is that of a task, as far as its first byte says.
#[must_use]
pub fn is_of_task(state: &[u8]) -> bool {
    state.first() == Some(&TASK)
}

/// Longest text in a state.
const TEXT_MAX: usize = u8::MAX as usize;

/// Two texts with their lengths in front, and nothing behind them; an empty one is none.
fn texts(bytes: &[u8]) -> Option<[Option<&str>; 2]> {
    let (name, rest) = text(bytes)?;
    let (target, rest) = text(rest)?;
    rest.is_empty().then_some([name, target])
}

fn text(bytes: &[u8]) -> Option<(Option<&str>, &[u8])> {
    let (len, rest) = bytes.split_first()?;
    let (text, rest) = rest.split_at_checked(usize::from(*len))?;
    let text = std::str::from_utf8(text).ok()?;
    Some(((!text.is_empty()).then_some(text), rest))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key() -> StateKey {
        StateKey::new([7; 32])
    }

    fn state() -> State<'static> {
        State {
            kind: Kind::Hop,
            due: UnixMillis(1_767_225_690_000),
            first_appended: UnixMillis(1_767_225_600_000),
            order: SubmissionOrder { appended: UnixMillis(1_767_225_600_050), offset: Offset(42) },
            expires: None,
            intake: intake_tag(""),
            name: None,
            target: None,
            hops: 3,
            task: None,
        }
    }

    /// Of a task that was dispatched twice.
    fn task() -> State<'static> {
        let digest = *b"0123456789abcdef";
        let trigger = UnixMillis(1_767_225_690_000);
        State {
            kind: Kind::Result,
            task: Some(TaskState { turn: 2, attempt: 1, round: 7, trigger, digest }),
            ..state()
        }
    }

    /// Of a further intake, for its default target.
    fn named() -> State<'static> {
        State { intake: intake_tag("b"), name: Some("b"), target: Some("orders"), ..state() }
    }

    const BOUND: Bound<'static> = Bound {
        key: Some(b"k"),
        target: Some(b"orders"),
        id: None,
        partition: Some(3),
        task: None,
        result: None,
    };

    #[test]
    fn a_bit_flip_anywhere_is_refused() {
        for (state, size) in
            [(state(), SIZE), (named(), SIZE + 2 + 1 + 6), (task(), SIZE + TASK_BODY)]
        {
            let sealed = state.seal(&key(), &BOUND);
            assert_eq!(sealed.as_ref().len(), size);
            assert_eq!(State::open(sealed.as_ref(), &key(), &BOUND), Ok(state));
            for bit in 0..size * 8 {
                let mut bytes = sealed.as_ref().to_vec();
                bytes[bit / 8] ^= 1 << (bit % 8);
                let refusal = State::open(&bytes, &key(), &BOUND).unwrap_err();
                assert_eq!(refusal.code, Code::BadState, "bit {bit}");
            }
        }
    }

    #[test]
    fn the_state_of_a_task_is_tied_to_its_specification_and_to_what_is_said_of_it() {
        let bound = Bound { task: Some(b"{}"), result: Some(b"{1}"), ..BOUND };
        let sealed = task().seal(&key(), &bound);
        assert_eq!(State::open(sealed.as_ref(), &key(), &bound), Ok(task()));
        let others = [
            Bound { task: Some(b"{ }"), ..bound },
            Bound { task: None, ..bound },
            Bound { result: None, ..bound },
            Bound { result: Some(b"{2}"), ..bound },
            Bound { task: Some(b"{}{1}"), result: Some(b""), ..bound },
        ];
        for other in others {
            let refusal = State::open(sealed.as_ref(), &key(), &other).unwrap_err();
            assert_eq!(refusal.code, Code::BadState, "{other:?}");
        }
        // No state of another record makes a task of one.
        let plain = state().seal(&key(), &BOUND);
        let refusal = State::open(plain.as_ref(), &key(), &bound).unwrap_err();
        assert_eq!(refusal.code, Code::TaskForbidden);
        for kind in [Kind::Submit, Kind::Work, Kind::Result] {
            let plain = State { kind, ..state() }.seal(&key(), &BOUND);
            let refusal = State::open(plain.as_ref(), &key(), &BOUND).unwrap_err();
            assert_eq!(refusal.code, Code::BadState, "{kind:?}");
        }
    }

    #[test]
    fn the_longest_names_fit() {
        let (name, target) = ("n".repeat(INTAKE_MAX), "t".repeat(TOPIC_MAX));
        let state = State { name: Some(&name), target: Some(&target), ..state() };
        let sealed = state.seal(&key(), &BOUND);
        assert_eq!(sealed.as_ref().len(), SIZE_MAX);
        assert_eq!(State::open(sealed.as_ref(), &key(), &BOUND), Ok(state));
    }

    #[test]
    fn a_state_of_another_size_version_or_secret_is_refused() {
        let sealed = state().seal(&key(), &BOUND);
        let longer = [sealed.as_ref(), b"\0"].concat();
        let mut newer = sealed.as_ref().to_vec();
        newer[0] = 4;
        let mut cut = named().seal(&key(), &BOUND).as_ref().to_vec();
        cut.remove(BODY);
        #[rustfmt::skip]
        let cases: &[(&str, &[u8], StateKey, &str)] = &[
            ("empty",          b"",                        key(), "x-delay-state has 0 bytes; want 68"),
            ("one byte short", &sealed.as_ref()[..SIZE-1], key(), "x-delay-state has 67 bytes; want 68"),
            ("one byte more",  &longer,                    key(), "x-delay-state has 69 bytes; want 68"),
            ("a newer one",    &newer,                     key(), "x-delay-state is of version 4; want 1 to 3"),
            ("a text too few",  &cut,                      key(),
                "x-delay-state is not authentic: want one of this namespace, for this record"),
            ("another secret", sealed.as_ref(), StateKey::new([8; 32]),
                "x-delay-state is not authentic: want one of this namespace, for this record"),
        ];
        for (why, bytes, key, want) in cases {
            let refusal = State::open(bytes, key, &BOUND).unwrap_err();
            assert_eq!((refusal.code, refusal.detail.as_str()), (Code::BadState, *want), "{why}");
        }
    }

    #[test]
    fn a_state_is_worth_nothing_on_another_record() {
        let sealed = state().seal(&key(), &BOUND);
        #[rustfmt::skip]
        let others = [
            ("another key",            Bound { key: Some(b"l"), ..BOUND }),
            ("no key",                 Bound { key: None, ..BOUND }),
            ("an empty key",           Bound { key: Some(b""), ..BOUND }),
            ("another target",         Bound { target: Some(b"payments"), ..BOUND }),
            ("the default target",     Bound { target: None, ..BOUND }),
            ("an id",                  Bound { id: Some(b"i"), ..BOUND }),
            ("an empty id",            Bound { id: Some(b""), ..BOUND }),
            ("another partition",      Bound { partition: Some(4), ..BOUND }),
            ("any partition",          Bound { partition: None, ..BOUND }),
            ("a letter moved over",    Bound { key: Some(b"ko"), target: Some(b"rders"), ..BOUND }),
            ("a part moved over",      Bound { target: None, id: Some(b"orders"), ..BOUND }),
        ];
        for (why, bound) in others {
            let refusal = State::open(sealed.as_ref(), &key(), &bound).unwrap_err();
            assert_eq!(refusal.code, Code::BadState, "{why}");
        }
    }

    #[test]
    fn an_unknown_kind_is_refused_even_when_authentic() {
        let mut bytes = state().seal(&key(), &BOUND).as_ref().to_vec();
        bytes[1] = 5;
        let code = key().code(&bytes[..BODY], &BOUND).finalize().into_bytes();
        bytes[BODY..].copy_from_slice(&code[..CODE]);
        let refusal = State::open(&bytes, &key(), &BOUND).unwrap_err();
        assert_eq!(refusal.detail, "x-delay-state is of kind 5; want 1 to 4");
    }

    #[test]
    fn order_is_by_append_time_then_offset() {
        let order = |appended, offset| SubmissionOrder {
            appended: UnixMillis(appended),
            offset: Offset(offset),
        };
        assert!(order(1, 9) < order(2, 0));
        assert!(order(1, 1) < order(1, 2));
    }

    #[test]
    fn a_secret_is_not_printed() {
        assert_eq!(format!("{:?}", key()), "StateKey(..)");
    }

    #[test]
    fn intakes_have_different_tags() {
        assert_ne!(intake_tag("waterclock.intake"), intake_tag("waterclock.intake.b"));
        // printf waterclock.intake | sha256sum
        assert_eq!(intake_tag("waterclock.intake"), 0xe136_2947_a1bc_2675);
    }

    fn any_part() -> impl Strategy<Value = Option<Vec<u8>>> {
        proptest::option::of(proptest::collection::vec(any::<u8>(), 0..200))
    }

    fn any_state() -> impl Strategy<Value = State<'static>> {
        let times = (any::<u64>(), any::<u64>(), any::<u64>(), 0..=i64::MAX);
        let rest = (0..4_u8, proptest::option::of(0..u64::MAX), any::<u64>(), any::<u16>());
        (times, rest).prop_map(|((due, first, appended, offset), (kind, expires, intake, hops))| {
            State {
                kind: [Kind::Hop, Kind::Move, Kind::Amend, Kind::Duplicate][usize::from(kind)],
                due: UnixMillis(due),
                first_appended: UnixMillis(first),
                order: SubmissionOrder { appended: UnixMillis(appended), offset: Offset(offset) },
                expires: expires.map(UnixMillis),
                intake,
                name: None,
                target: None,
                hops,
                task: None,
            }
        })
    }

    fn any_task() -> impl Strategy<Value = Option<TaskState>> {
        let numbers = (any::<u32>(), any::<u32>(), any::<u32>(), any::<u64>());
        let task =
            (numbers, any::<[u8; 16]>()).prop_map(|((turn, attempt, round, trigger), digest)| {
                TaskState { turn, attempt, round, trigger: UnixMillis(trigger), digest }
            });
        proptest::option::of(task)
    }

    proptest! {
        /// A sealed state opens unchanged, for any record.
        #[test]
        fn a_sealed_state_opens_as_it_was(
            state in any_state(), secret in any::<[u8; 32]>(),
            name in proptest::option::of("[a-z]{1,100}"), to in proptest::option::of("[a-z.]{1,249}"),
            key in any_part(), target in any_part(), id in any_part(), partition in any::<Option<i32>>(),
            task in any_task(), spec in any_part(), result in any_part(),
        ) {
            let (spec, result) = (spec.filter(|_| task.is_some()), result.filter(|_| task.is_some()));
            let bound = Bound {
                key: key.as_deref(), target: target.as_deref(),
                id: id.as_deref(), partition, task: spec.as_deref(), result: result.as_deref(),
            };
            let secret = StateKey::new(secret);
            let is_plain = task.is_none();
            let (name, to) = (name.filter(|_| is_plain), to.filter(|_| is_plain));
            let state = State { name: name.as_deref(), target: to.as_deref(), task, ..state };
            let sealed = state.seal(&secret, &bound);
            prop_assert!(sealed.as_ref().len() <= SIZE_MAX);
            prop_assert_eq!(State::open(sealed.as_ref(), &secret, &bound), Ok(state));
        }

        /// Bytes that nobody sealed never open, and never panic.
        #[test]
        fn made_up_bytes_never_open(bytes in proptest::collection::vec(any::<u8>(), 0..2 * SIZE)) {
            prop_assert!(State::open(&bytes, &key(), &BOUND).is_err());
            let mut bytes = bytes;
            for (version, size) in [(PLAIN, SIZE), (NAMED, SIZE + 2)] {
                bytes.resize(size, 0);
                bytes[0] = version;
                prop_assert!(State::open(&bytes, &key(), &BOUND).is_err());
            }
        }
    }
}
