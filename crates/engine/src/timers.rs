//! Timers: their names, and what `<ns>.timers` says of them.
//!
//! A timer is named by its record's key, or by having none, and its id; sixteen bytes of hashes stand for both. The topic is compacted. Of one
//! timer it keeps two records: what the timer is (its last state), and which of its versions are *void*: cancelled or
//! replaced, and perhaps still on their way down the ladder.
//!
//! # Invariants
//! 1. No key, an empty one and one that equals the id name three timers. For the lane alone the id stands for a key.
//! 2. Timers of one id are neighbours, whatever their keys: the name begins with a hash of the id alone.
//! 3. A value decodes to what was encoded, or is refused: one of another version is never guessed at.
//! 4. A cancel is about what was submitted before it: [`Void::covers`] is the only place that says so.
//! 5. What is told of a timer to who asked for one version, or for what was there before a place, is about that:
//!    [`About::found`] is the only place that says so.
//!
//! What they look like on the wire is in `code`.

mod about;
mod code;
mod remembered;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::header::Code;
use super::{Offset, UnixMillis};

pub use about::{About, Found, Replaced};
pub use code::{Change, DecodeError, KEY_MAX, VERSION};
pub(super) use code::{Told, value};
pub(super) use remembered::{ByName, Names, Pending, Remembered};

/// Bytes of a [`TimerKey`] that stand for the id alone.
pub const ID_PREFIX: usize = 6;

/// Stands for a key and an id: the key of a record of `<ns>.timers`, or the beginning of it.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TimerKey(pub [u8; 16]);

impl TimerKey {
    /// The timer of a record with this key and this id.
    #[must_use]
    pub fn new(key: Option<&[u8]>, id: &[u8]) -> Self {
        let mut hash = Sha256::new();
        // No key is as long as that.
        hash.update(key.map_or(u64::MAX, |key| key.len() as u64).to_be_bytes());
        hash.update(key.unwrap_or_default());
        hash.update((id.len() as u64).to_be_bytes());
        hash.update(id);
        let mut bytes = [0; 16];
        bytes[..ID_PREFIX].copy_from_slice(&id_prefix(id));
        bytes[ID_PREFIX..].copy_from_slice(&hash.finalize()[..16 - ID_PREFIX]);
        Self(bytes)
    }
}

/// What the names of all timers of an id begin with.
#[must_use]
pub fn id_prefix(id: &[u8]) -> [u8; ID_PREFIX] {
    let hash = Sha256::digest(id);
    let mut prefix = [0; ID_PREFIX];
    prefix.copy_from_slice(&hash[..ID_PREFIX]);
    prefix
}

impl fmt::Debug for TimerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in self.0 {
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

/// Which of two records about one timer was submitted first: [`is_before`](Self::is_before) says so. It names a version of
/// the timer; people see it as `1764000000000-42`. If it [is from elsewhere](Self::is_elsewhere), an `x` stands behind that, and
/// the mark of its topic: `1764000000000-42x3fa`. Older programs wrote no mark: `1764000000000-42x`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Place {
    /// When it was first appended to any topic of waterclock.
    pub first_appended: UnixMillis,
    /// Where it stood in its lane's intake, or in the tier that it was written to; [marked](Self::elsewhere), if it did not
    /// come straight to the main intake of its lane.
    pub offset: Offset,
}

/// The bit of an offset which says that it does not tell what was first.
pub const ELSEWHERE: i64 = 1 << 62;
/// Above this bit, and below that one, stands the mark of the topic. No log has as many records.
const TOPIC_AT: u32 = 46;
const OFFSET: i64 = (1 << TOPIC_AT) - 1;

impl Place {
    /// The offset in a place of what did not come straight to the main intake of its lane: with the mark of its topic, so that
    /// two records of one millisecond at the same offset of two topics are two.
    #[must_use]
    pub fn elsewhere(offset: Offset, mark: TopicMark) -> Offset {
        Offset(offset.0 & OFFSET | i64::from(mark.0) << TOPIC_AT | ELSEWHERE)
    }

    /// The offset as the log has it.
    #[must_use]
    pub fn offset_in_log(self) -> Offset {
        let bits = if self.is_elsewhere() { OFFSET } else { !ELSEWHERE };
        Offset(self.offset.0 & bits)
    }

    /// The same as an older program wrote it, which did not mark the topic.
    #[must_use]
    pub fn without_topic(self) -> Self {
        let mark = self.offset.0 & ELSEWHERE;
        Self { offset: Offset(self.offset_in_log().0 | mark), ..self }
    }

    /// The mark of the topic that it came by, where there is one.
    pub(super) fn mark(self) -> Option<TopicMark> {
        Some(self.topic()).filter(|mark| *mark != TopicMark::NONE)
    }

    fn topic(self) -> TopicMark {
        let bits = if self.is_elsewhere() { self.offset.0 & !ELSEWHERE } else { 0 };
        TopicMark((bits >> TOPIC_AT) as u16)
    }

    /// The place right after it.
    #[must_use]
    pub fn next(self) -> Self {
        Self { offset: self.offset.next(), ..self }
    }

    /// Whether the record was moved to its lane, or came by a further intake, or was written to a tier.
    #[must_use]
    pub fn is_elsewhere(self) -> bool {
        self.offset.0 & ELSEWHERE != 0
    }

    /// Whether this one was submitted before the other. Of two that came straight to one log the log says it, whatever
    /// its leaders' clocks were; else the times of the first appends. In one millisecond what came straight is the later: so a
    /// create right behind a cancel that has to be moved is not lost. Of two from elsewhere the offsets say it then, if they
    /// stood in one topic; else it is the one or the other, and always the same.
    #[must_use]
    pub fn is_before(self, other: Self) -> bool {
        if !self.is_elsewhere() && !other.is_elsewhere() {
            return self.offset < other.offset;
        }
        let of = |place: Self| {
            (place.first_appended, !place.is_elsewhere(), place.offset.0 & !ELSEWHERE)
        };
        of(self) < of(other)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first_appended.0, self.offset_in_log().0)?;
        match (self.is_elsewhere(), self.topic()) {
            (false, _) => Ok(()),
            (true, TopicMark::NONE) => write!(f, "x"),
            (true, TopicMark(topic)) => write!(f, "x{topic:x}"),
        }
    }
}

/// Tells the topics apart that a record may have been submitted to: the beginning of a hash of the name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TopicMark(u16);

impl TopicMark {
    /// Older programs did not mark it.
    const NONE: Self = Self(0);

    /// The mark of a topic.
    #[must_use]
    pub fn of(topic: &str) -> Self {
        let [high, low, ..] = <[u8; 32]>::from(Sha256::digest(topic));
        Self(u16::from_be_bytes([high, low]).max(1))
    }

    /// As it stands behind the `x`: at most four digits, and none in front that does not matter.
    fn parse(text: &str) -> Option<Self> {
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        match text {
            "" => Some(Self::NONE),
            _ if text.starts_with('0') || !text.bytes().all(is_digit) => None,
            _ => u16::from_str_radix(text, 16).ok().map(Self),
        }
    }
}

/// A text that is no [`Place`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no version of a timer; want one as an answer shows it, like 1764000000000-42")]
pub struct BadPlace(pub String);

impl FromStr for Place {
    type Err = BadPlace;

    fn from_str(text: &str) -> Result<Self, BadPlace> {
        let digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        let (plain, topic) = match text.split_once('x') {
            None => (text, None),
            Some((plain, topic)) => (plain, Some(topic)),
        };
        plain
            .split_once('-')
            .filter(|(first, offset)| digits(first) && digits(offset))
            .and_then(|(first, offset)| {
                let first_appended = UnixMillis(first.parse().ok()?);
                let offset = Offset(offset.parse().ok()?);
                let most = if topic.is_some() { OFFSET } else { ELSEWHERE - 1 };
                let marked = match topic {
                    None => offset,
                    Some(topic) => Self::elsewhere(offset, TopicMark::parse(topic)?),
                };
                (offset.0 <= most).then_some(Self { first_appended, offset: marked })
            })
            .ok_or_else(|| BadPlace(text.to_owned()))
    }
}

/// What has become of a timer, or of one version of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// It is pending.
    Delay,
    /// It is in its target.
    Delivered,
    /// It was cancelled, and never will be.
    Cancelled,
    /// It could not be delivered in time; it is a dead letter.
    Expired,
    /// It is a dead letter.
    Dead,
    /// Its record was gone: somebody had deleted it.
    Lost,
}

impl Phase {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Delay, Self::Delivered, Self::Cancelled, Self::Expired, Self::Dead, Self::Lost];

    /// As programs see it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Delay => "delay",
            Self::Delivered => "delivered",
            Self::Cancelled => "cancelled",
            Self::Expired => "expired",
            Self::Dead => "dead",
            Self::Lost => "lost",
        }
    }

    /// Whether nothing more can become of it.
    #[must_use]
    pub fn is_final(self) -> bool {
        self != Self::Delay
    }
}

/// A text that is no [`Phase`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no state of a timer; want delay, delivered, cancelled, expired, dead or lost")]
pub struct BadPhase(pub String);

impl FromStr for Phase {
    type Err = BadPhase;

    fn from_str(text: &str) -> Result<Self, BadPhase> {
        let found = Self::ALL.into_iter().find(|phase| phase.as_str() == text);
        found.ok_or_else(|| BadPhase(text.to_owned()))
    }
}

/// A timer: what an answer about it shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timer {
    /// Which timer.
    pub name: TimerKey,
    /// What has become of it.
    pub phase: Phase,
    /// Its version: the place of the record that made it.
    pub version: Place,
    /// The versions in whose place this one was put.
    pub supersedes: Option<Replaced>,
    /// When it is, or was, due.
    pub due: UnixMillis,
    /// When it came to be in this phase.
    pub since: UnixMillis,
    /// Where it goes.
    pub target: Arc<str>,
    /// The value of `x-delay-label`.
    pub label: Option<Box<str>>,
    /// The value of `x-delay-id`.
    pub id: Box<[u8]>,
    /// The record's key, or the first [`KEY_MAX`] bytes of it.
    pub key: Option<Box<[u8]>>,
    /// The key is longer than what is kept of it.
    pub key_cut: bool,
    /// Why it is a dead letter.
    pub code: Option<Code>,
}

impl Timer {
    /// What the engine is told of it, if it is pending.
    #[must_use]
    pub fn live(&self) -> Option<Live> {
        let Self { name, version, supersedes, due, .. } = *self;
        let label = self.label.as_deref().map(Arc::from);
        let target = Arc::clone(&self.target);
        (!self.phase.is_final()).then_some(Live { name, version, supersedes, due, target, label })
    }

    /// What the engine is told of it, if it has ended. One that was refused when it came never was pending, and nothing is a
    /// duplicate of it.
    #[must_use]
    pub fn ended(&self) -> Option<Ended> {
        let Self { version, phase, since, .. } = *self;
        let was_refused =
            matches!(phase, Phase::Dead | Phase::Expired) && since < version.first_appended;
        (phase.is_final() && !was_refused).then_some(Ended { version, phase, since })
    }
}

/// How a timer ended, as the engine is told of it for a record that comes late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The version that was pending last.
    pub version: Place,
    /// What has become of it.
    pub phase: Phase,
    /// When it came to that.
    pub since: UnixMillis,
}

impl Ended {
    /// Whether a create at this place is a duplicate, though it came after the end: it was submitted before that version,
    /// or while that was pending. How long a cancelled one was pending its cancel's mark says; of one whose record was lost
    /// nobody knows since when there was none.
    #[must_use]
    pub fn counts_for(&self, place: Place) -> bool {
        let is_told = !matches!(self.phase, Phase::Cancelled | Phase::Lost);
        let was_pending = is_told && place.first_appended < self.since;
        was_pending || place.is_before(self.version)
    }
}

/// A pending timer, as the engine is told of it when it takes a lane over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Live {
    /// Which timer.
    pub name: TimerKey,
    /// Its version: the place of the record that made it.
    pub version: Place,
    /// The versions in whose place that one was put.
    pub supersedes: Option<Replaced>,
    /// When it is due.
    pub due: UnixMillis,
    /// Where it goes.
    pub target: Arc<str>,
    /// The value of `x-delay-label`.
    pub label: Option<Arc<str>>,
}

/// Places, one of them at least after whatever is before this. Of one log the latest place stands for all, and so it does of
/// all that are from elsewhere; but of the two no one stands for the other where a leader's clock went back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Before {
    /// Of those that came straight to the main intake.
    pub log: Place,
    /// Of those from elsewhere.
    pub elsewhere: Place,
}

impl Before {
    /// What one place is after.
    #[must_use]
    pub fn of(place: Place) -> Self {
        Self::default().or(place)
    }

    /// The same, and what one more place is after.
    #[must_use]
    pub fn or(self, place: Place) -> Self {
        if place.is_elsewhere() {
            let is_later = self.elsewhere.is_before(place);
            return Self { elsewhere: if is_later { place } else { self.elsewhere }, ..self };
        }
        let first_appended = self.log.first_appended.max(place.first_appended);
        let log = Place { first_appended, offset: self.log.offset.max(place.offset) };
        Self { log, ..self }
    }

    /// Whether a place is before this.
    #[must_use]
    pub fn covers(self, place: Place) -> bool {
        place.is_before(self.log) || place.is_before(self.elsewhere)
    }
}

/// A timer of which every version from before a place is kept from its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Void {
    /// Which timer.
    pub name: TimerKey,
    /// The places of the cancels, and of the versions that were put in the place of older ones.
    pub before: Before,
    /// Remembered until then, at least.
    pub until: UnixMillis,
    /// A record was kept from its target because of it.
    pub met: bool,
    /// More than one version may be on its way: that one was met says nothing of the others.
    pub several: bool,
    /// The last of the places is that of a cancel of whatever was submitted before it.
    pub cancels: bool,
}

impl Void {
    /// Whether a record of this timer at this place is void: it was submitted before.
    #[must_use]
    pub fn covers(&self, place: Place) -> bool {
        self.before.covers(place)
    }

    /// Whether a cancel was submitted between two versions: the one behind it is no duplicate of the other, whatever became
    /// of that.
    #[must_use]
    pub fn parts(&self, version: Place, behind: Place) -> bool {
        self.cancels && self.covers(version) && !self.covers(behind)
    }
}

#[cfg(test)]
mod tests;
