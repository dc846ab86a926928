//! Cancelled timers: their names, and what `<ns>.timers` says of them.
//!
//! A timer is named by its record's key and its id; sixteen bytes of a hash stand for both. The topic is compacted by
//! them, so that what it says of a timer last is what holds, and a tombstone forgets it.
//!
//! # Invariants
//! 1. Null and empty keys name different timers; without a key the id stands for it, as it does for the lane.
//! 2. A value decodes to what was encoded, or is refused: one of a newer version is never guessed at.
//! 3. A cancel is about what was submitted before it: [`Cancelled::covers`] is the only place that says so.
//!
//! Layout of a value, big-endian: version u8, state u8 (1: cancelled; others are left for what is to come), flags u8
//! (1: met), then first append u64, offset i64, until u64.

mod remembered;

use std::fmt;

use sha2::{Digest, Sha256};

use super::{Offset, UnixMillis};

pub(super) use remembered::Remembered;

/// Bytes of an encoded [`Cancelled`] without its timer.
pub const VALUE_SIZE: usize = 27;
/// The only version there is.
const VERSION: u8 = 1;
/// The only state there is.
const CANCELLED: u8 = 1;
/// The only flag there is.
const MET: u8 = 1;

/// Stands for a key and an id: the key of a record of `<ns>.timers`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TimerKey(pub [u8; 16]);

impl TimerKey {
    /// The timer of a record with this key and this id.
    #[must_use]
    pub fn new(key: Option<&[u8]>, id: &[u8]) -> Self {
        let key = key.unwrap_or(id);
        let mut hash = Sha256::new();
        hash.update((key.len() as u64).to_be_bytes());
        hash.update(key);
        hash.update((id.len() as u64).to_be_bytes());
        hash.update(id);
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&hash.finalize()[..16]);
        Self(bytes)
    }
}

impl fmt::Debug for TimerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in self.0 {
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

/// Which of two records about one timer was submitted first: the first append of all counts, then the place in the
/// lane's intake.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// When it was first appended to any topic of waterclock.
    pub first_appended: UnixMillis,
    /// Where it stood in its lane's intake, or in the tier that it was written to.
    pub offset: Offset,
}

/// A timer of which every record from before a place is kept from its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cancelled {
    /// Which timer.
    pub timer: TimerKey,
    /// The place of the cancel.
    pub before: Place,
    /// Remembered until then, at least.
    pub until: UnixMillis,
    /// A record was kept from its target because of it.
    pub met: bool,
}

impl Cancelled {
    /// Whether a record of this timer at this place is cancelled: it was submitted before the cancel was.
    #[must_use]
    pub fn covers(&self, place: Place) -> bool {
        place < self.before
    }

    /// The value of its record in `<ns>.timers`; the key is its timer's.
    #[must_use]
    pub fn encode(&self) -> [u8; VALUE_SIZE] {
        let mut bytes = [0; VALUE_SIZE];
        bytes[0] = VERSION;
        bytes[1] = CANCELLED;
        bytes[2] = if self.met { MET } else { 0 };
        bytes[3..11].copy_from_slice(&self.before.first_appended.0.to_be_bytes());
        bytes[11..19].copy_from_slice(&self.before.offset.0.to_be_bytes());
        bytes[19..].copy_from_slice(&self.until.0.to_be_bytes());
        bytes
    }
}

/// What a record of `<ns>.timers` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// This holds of the timer from now on.
    Cancelled(Cancelled),
    /// A tombstone: nothing is to be remembered of it.
    Forgotten(TimerKey),
}

impl Change {
    /// Reads a record of `<ns>.timers`.
    ///
    /// # Errors
    /// It says nothing that this version knows. Pass it over, count it, and go on.
    pub fn decode(key: Option<&[u8]>, value: Option<&[u8]>) -> Result<Self, DecodeError> {
        let bytes = key.unwrap_or_default();
        let timer = bytes.try_into().map_err(|_| DecodeError::Key { bytes: bytes.len() })?;
        let timer = TimerKey(timer);
        let Some(value) = value else { return Ok(Self::Forgotten(timer)) };
        match value.first() {
            None => return Err(DecodeError::Size { bytes: 0 }),
            Some(&VERSION) => {}
            Some(&version) => return Err(DecodeError::Version { version }),
        }
        let Ok(value) = <&[u8; VALUE_SIZE]>::try_from(value) else {
            return Err(DecodeError::Size { bytes: value.len() });
        };
        let (state, flags) = (value[1], value[2]);
        if state != CANCELLED || flags & !MET != 0 {
            return Err(DecodeError::State { state, flags });
        }
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&value[at..at + 8]);
            u64::from_be_bytes(word)
        };
        let before =
            Place { first_appended: UnixMillis(word(3)), offset: Offset(word(11).cast_signed()) };
        let (until, met) = (UnixMillis(word(19)), flags & MET != 0);
        Ok(Self::Cancelled(Cancelled { timer, before, until, met }))
    }
}

/// Why a record of `<ns>.timers` says nothing to this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Somebody else wrote it.
    #[error("its key has {bytes} bytes, want 16")]
    Key {
        /// How many.
        bytes: usize,
    },
    /// A newer waterclock wrote it.
    #[error("its value is of version {version}, want {VERSION}")]
    Version {
        /// Which.
        version: u8,
    },
    /// Somebody else wrote it, or it is damaged.
    #[error("its value has {bytes} bytes, want {VALUE_SIZE}")]
    Size {
        /// How many.
        bytes: usize,
    },
    /// A newer waterclock wrote it.
    #[error("its value is of state {state} with flags {flags}, want {CANCELLED} with 0 or {MET}")]
    State {
        /// Which state.
        state: u8,
        /// Which flags.
        flags: u8,
    },
}

#[cfg(test)]
mod tests;
