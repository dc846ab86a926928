//! Why a record is not delivered: the closed list of reasons, and the sentence that goes with one.
//!
//! The list is part of the contract: programs match on it. A code is never reused for another reason,
//! and `docs/header-contract.md` is checked against [`Code::ALL`] by a test.

use std::fmt;
use std::str::FromStr;

/// Longest [`Refusal::detail`], in bytes.
pub const DETAIL_MAX: usize = 256;

/// How many bytes of an offending value a detail shows.
const SHOWN_MAX: usize = 32;

macro_rules! codes {
    ($($(#[doc = $meaning:literal])+ $name:ident = $text:literal,)+) => {
        /// Why a record went to `<ns>.dead`: the value of `x-delay-error-code`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Code {
            $($(#[doc = $meaning])+ $name,)+
        }

        impl Code {
            /// Every code, in the order of the documents.
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];

            /// As written in `x-delay-error-code`.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)+ }
            }

            /// One sentence for people, as the documents print it.
            #[must_use]
            pub fn meaning(self) -> &'static str {
                match self { $(Self::$name => concat!($($meaning,)+).trim_ascii(),)+ }
            }
        }
    };
}

codes! {
    /// No `x-delay` or `x-delay-until`, and the intake has no default delay.
    MissingDelay = "missing_delay",
    /// `x-delay` is neither milliseconds nor units.
    BadDelay = "bad_delay",
    /// `x-delay` is below zero.
    NegativeDelay = "negative_delay",
    /// `x-delay` does not fit into Kafka's 64-bit milliseconds, alone or added to the append time.
    DelayOverflow = "delay_overflow",
    /// The due time is more than `max_delay` after the append.
    DelayTooLong = "delay_too_long",
    /// `x-delay-until` is neither RFC 3339 with a zone nor an integer.
    BadUntil = "bad_until",
    /// `x-delay-until` is an integer that can hardly be epoch milliseconds.
    AmbiguousTimestamp = "ambiguous_timestamp",
    /// Both `x-delay` and `x-delay-until` are there.
    ConflictingDirectives = "conflicting_directives",
    /// No `x-delay-target`, and the intake has no default target.
    MissingTarget = "missing_target",
    /// `x-delay-target` is not a name that a Kafka topic can have.
    BadTarget = "bad_target",
    /// The target is a topic of a waterclock namespace or begins with `__`.
    TargetForbidden = "target_forbidden",
    /// The configuration does not allow the target.
    TargetDenied = "target_denied",
    /// The target does not exist.
    TargetMissing = "target_missing",
    /// Kafka does not let waterclock see the target or write to it.
    /// Or Kafka refused the record, or any record for this target, when it stood alone; the detail has Kafka's words.
    TargetRefused = "target_refused",
    /// The target is compacted, which takes no record without a key.
    MissingKey = "missing_key",
    /// `x-delay-partition` is not a partition number, or the target does not have that partition.
    BadPartition = "bad_partition",
    /// `x-delay-action` is `replace` or `cancel` and there is no `x-delay-id`.
    MissingId = "missing_id",
    /// `x-delay-id` is empty, too long, not UTF-8, or has characters that it must not have.
    BadId = "bad_id",
    /// `x-delay-action` is none of `create`, `replace`, `cancel`.
    BadAction = "bad_action",
    /// This version does not carry out that `x-delay-action`, or not in a tier.
    UnsupportedAction = "unsupported_action",
    /// More timers are remembered than `max-tracked` allows.
    TooManyTimers = "too_many_timers",
    /// `x-delay-expires` is not a time, or a relative one longer than `max_delay`.
    BadExpires = "bad_expires",
    /// The record could not be delivered by `x-delay-expires`.
    Expired = "expired",
    /// `x-delay-label` is too long or has control characters.
    BadLabel = "bad_label",
    /// `x-delay-trace` is neither `0` nor `1`.
    BadTrace = "bad_trace",
    /// A header of the contract is null or not UTF-8, or `x-delay-attempt` is not a number.
    BadHeader = "bad_header",
    /// A header of the contract is there more than once.
    DuplicateHeader = "duplicate_header",
    /// A header begins with `x-delay-` and is not in the contract.
    UnknownHeader = "unknown_header",
    /// The record has more than 1000 headers.
    TooManyHeaders = "too_many_headers",
    /// The record, or the batch that it was compressed in, is too large for the target or for waterclock's own topics.
    TooLarge = "too_large",
    /// Kafka has the record in a batch of which it cannot be read.
    Unreadable = "unreadable",
    /// The record made more hops than any delay needs.
    TooManyHops = "too_many_hops",
    /// `x-delay-state` was not written by this waterclock for this record.
    BadState = "bad_state",
    /// The intake by which the record came is not in the configuration any more.
    UnknownIntake = "unknown_intake",
    /// `x-delay-task` or `x-delay-result` is there, and waterclock did not write it: tasks are created over the API.
    TaskForbidden = "task_forbidden",
    /// The specification or the state of a task cannot be read, or its body is another than was submitted.
    BadTask = "bad_task",
    /// A sealed task was written too long after it was sealed.
    StaleSubmit = "stale_submit",
    /// A task was dispatched as often as its specification allows, or its answer was final: it has failed.
    TaskFailed = "task_failed",
    /// The project of the task was deleted.
    ProjectDeleted = "project_deleted",
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A text that is no code of the closed list.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no such dead-letter code: {0:?}; section 6 of the header contract lists them")]
pub struct UnknownCode(pub String);

impl FromStr for Code {
    type Err = UnknownCode;

    fn from_str(text: &str) -> Result<Self, UnknownCode> {
        let found = Self::ALL.iter().find(|code| code.as_str() == text);
        found.copied().ok_or_else(|| UnknownCode(text.to_owned()))
    }
}

/// A record that breaks the contract: what goes to the dead letter with it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {detail}")]
pub struct Refusal {
    /// One of the closed list.
    pub code: Code,
    /// A sentence for people: printable ASCII, at most [`DETAIL_MAX`] bytes.
    pub detail: String,
}

impl Refusal {
    /// Makes one. The detail is cut and escaped to what a header of a dead letter may hold.
    pub fn new(code: Code, detail: impl AsRef<str>) -> Self {
        let mut kept = String::new();
        for byte in detail.as_ref().bytes() {
            // Backslashes stay as they are: a detail may hold escaped bytes already.
            match byte {
                b' '..=b'~' if kept.len() < DETAIL_MAX => kept.push(char::from(byte)),
                0..b' ' | 0x7f.. if kept.len() + 4 <= DETAIL_MAX => {
                    kept.push_str("\\x");
                    for nibble in [byte >> 4, byte & 15] {
                        kept.extend(char::from_digit(u32::from(nibble), 16));
                    }
                }
                _ => break,
            }
        }
        Self { code, detail: kept }
    }

    /// Says which header is wrong, shows its bytes, and names what is wanted.
    pub(super) fn of_value(code: Code, name: &str, value: &[u8], wanted: &str) -> Self {
        Self::new(code, format!("{name} is {}; want {wanted}", Shown(value)))
    }
}

/// Bytes from outside, quoted, escaped and cut, so that a detail is one harmless line.
pub(super) struct Shown<'a>(pub(super) &'a [u8]);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cut = &self.0[..self.0.len().min(SHOWN_MAX)];
        write!(f, "\"{}\"", cut.escape_ascii())?;
        if cut.len() < self.0.len() {
            write!(f, "... ({} bytes)", self.0.len())?;
        }
        Ok(())
    }
}
