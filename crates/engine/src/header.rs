//! The header contract: what a producer may ask for, read from a record's headers.
//!
//! The words are in `docs/header-contract.md`, which is normative; this room is checked against it.
//!
//! # Invariants
//! 1. A record has one meaning or is refused: nothing is guessed, and of two answers none is taken.
//! 2. A due time is never earlier than what was asked for, in milliseconds.
//! 3. Headers that are not of the contract are not looked at, whatever their bytes.
//! 4. A record that is in order is read without an allocation.
//!
//! What needs the configuration or the cluster (defaults, allow-lists, whether a target exists) is for
//! the lane to decide, with the codes of this room.

mod code;
#[cfg(test)]
mod tests;
mod time;

pub use code::{Code, DETAIL_MAX, Refusal, UnknownCode};
pub use time::{
    DurationError, EPOCH_MAX, EPOCH_MIN, When, duration, duration_with_unit, expires_at, until,
};

use code::Shown;

/// `x-delay`: how long to wait from the append.
pub const DELAY: &str = "x-delay";
/// `x-delay-until`: when it is due.
pub const UNTIL: &str = "x-delay-until";
/// `x-delay-target`: the topic to deliver to.
pub const TARGET: &str = "x-delay-target";
/// `x-delay-id`: the caller's name for the timer.
pub const ID: &str = "x-delay-id";
/// `x-delay-action`: create, replace or cancel.
pub const ACTION: &str = "x-delay-action";
/// `x-delay-partition`: the partition of the target.
pub const PARTITION: &str = "x-delay-partition";
/// `x-delay-expires`: past it, the record is not delivered.
pub const EXPIRES: &str = "x-delay-expires";
/// `x-delay-label`: a word for lists and bulk cancels.
pub const LABEL: &str = "x-delay-label";
/// `x-delay-trace`: whether the delivery tells about itself.
pub const TRACE: &str = "x-delay-trace";
/// `x-delay-state`: waterclock's own, see [`state`](super::state).
pub const STATE: &str = "x-delay-state";
/// `x-delay-task`: what is to be done when it is due; only where the [state](STATE) is sealed, see [`Spec`](super::task::spec::Spec).
pub const TASK: &str = "x-delay-task";
/// `x-delay-result`: what a worker says of one turn of a task, see [`TaskResult`](super::task::result::TaskResult).
pub const RESULT: &str = "x-delay-result";
/// `x-delay-due`: told at delivery, epoch milliseconds.
pub const DUE: &str = "x-delay-due";
/// `x-delay-fired`: told at delivery, epoch milliseconds.
pub const FIRED: &str = "x-delay-fired";
/// `x-delay-attempt`: told at delivery, from 1.
pub const ATTEMPT: &str = "x-delay-attempt";
/// `x-delay-ticket`: told at delivery of a task with feedback: what its executor reports with, see
/// [`Ticket`](super::sealed::Ticket).
pub const TICKET: &str = "x-delay-ticket";
/// `x-delay-cursor`: told at delivery of a task with feedback, if an earlier turn said how far it came.
pub const CURSOR: &str = "x-delay-cursor";
/// `x-delay-shard`: told at delivery of a shard of a run: which one of how many, from 0, as `3/60`.
pub const SHARD: &str = "x-delay-shard";
/// `x-delay-nominal`: told at delivery of a task of a schedule, and of a shard of its run: for which nominal time, epoch milliseconds.
pub const NOMINAL: &str = "x-delay-nominal";
/// `x-delay-error-code`: told of a dead letter, a [`Code`].
pub const ERROR_CODE: &str = "x-delay-error-code";
/// `x-delay-error-detail`: told of a dead letter, a sentence.
pub const ERROR_DETAIL: &str = "x-delay-error-detail";
/// `x-delay-error-topic`: told of a dead letter, where it stood.
pub const ERROR_TOPIC: &str = "x-delay-error-topic";
/// `x-delay-error-partition`: told of a dead letter, where it stood.
pub const ERROR_PARTITION: &str = "x-delay-error-partition";
/// `x-delay-error-offset`: told of a dead letter, where it stood.
pub const ERROR_OFFSET: &str = "x-delay-error-offset";
/// `x-delay-error-timestamp`: told of a dead letter, when it was appended there, epoch milliseconds.
pub const ERROR_TIMESTAMP: &str = "x-delay-error-timestamp";
/// `x-delay-error-intake`: told of a dead letter, the intake by which it came; empty if nobody can say.
pub const ERROR_INTAKE: &str = "x-delay-error-intake";
/// The headers that a dead letter gets, in this order.
pub const ERRORS: [&str; 7] = [
    ERROR_CODE,
    ERROR_DETAIL,
    ERROR_TOPIC,
    ERROR_PARTITION,
    ERROR_OFFSET,
    ERROR_TIMESTAMP,
    ERROR_INTAKE,
];

/// Most headers a record may have. Kafka has no limit, and a header of two bytes costs a hundred in memory.
pub const HEADERS_MAX: usize = 1_000;
/// Longest `x-delay-id`, in bytes.
pub const ID_MAX: usize = 255;
/// Longest `x-delay-label`, in bytes.
pub const LABEL_MAX: usize = 64;
/// Longest name of a topic, in bytes.
pub const TOPIC_MAX: usize = 249;
/// Largest number that `x-delay-partition` and `x-delay-attempt` may have.
pub(super) const NUMBER_MAX: u64 = i32::MAX as u64;

/// What a record does to the timer of its id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TimerAction {
    /// Makes one; a second one of a pending id is a no-op.
    #[default]
    Create,
    /// Makes one in the place of the pending one.
    Replace,
    /// Ends the pending one.
    Cancel,
    /// Says what came of a turn of a task. Only an instance writes it.
    Result,
}

/// What the headers of one record ask for. Borrows from them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Directive<'a> {
    /// `x-delay` or `x-delay-until`; `None` leaves it to the intake's default.
    pub when: Option<When>,
    /// `x-delay-target`, a possible name of a topic; `None` leaves it to the intake's default.
    pub target: Option<&'a str>,
    /// `x-delay-id`: UTF-8 without control characters, 1 to [`ID_MAX`] bytes.
    pub id: Option<&'a [u8]>,
    /// `x-delay-action`.
    pub action: TimerAction,
    /// `x-delay-partition`, zero or more; whether the target has it is not known here.
    pub partition: Option<i32>,
    /// `x-delay-expires`, for [`expires_at`].
    pub expires: Option<When>,
    /// `x-delay-label`: UTF-8 without control characters, at most [`LABEL_MAX`] bytes; an empty one is `None`.
    pub label: Option<&'a [u8]>,
    /// `x-delay-trace`.
    pub trace: bool,
    /// `x-delay-attempt` of an earlier delivery, 0 if there was none. At most `i32::MAX`.
    pub attempt: u32,
    /// `x-delay-state`, not opened.
    pub state: Option<&'a [u8]>,
    /// `x-delay-task`, not read.
    pub task: Option<&'a [u8]>,
    /// `x-delay-result`, not read.
    pub result: Option<&'a [u8]>,
}

/// The names of the contract that a producer may send.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Name {
    Delay,
    Until,
    Target,
    Id,
    Action,
    Partition,
    Expires,
    Label,
    Trace,
    State,
    Due,
    Fired,
    Attempt,
    Task,
    Result,
    Ticket,
    Cursor,
    Shard,
    Nominal,
}

impl Name {
    /// By what follows `x-delay`.
    fn by_suffix(suffix: &[u8]) -> Option<Self> {
        Some(match suffix {
            b"" => Self::Delay,
            b"-until" => Self::Until,
            b"-target" => Self::Target,
            b"-id" => Self::Id,
            b"-action" => Self::Action,
            b"-partition" => Self::Partition,
            b"-expires" => Self::Expires,
            b"-label" => Self::Label,
            b"-trace" => Self::Trace,
            b"-state" => Self::State,
            b"-due" => Self::Due,
            b"-fired" => Self::Fired,
            b"-attempt" => Self::Attempt,
            b"-task" => Self::Task,
            b"-result" => Self::Result,
            b"-ticket" => Self::Ticket,
            b"-cursor" => Self::Cursor,
            b"-shard" => Self::Shard,
            b"-nominal" => Self::Nominal,
            _ => return None,
        })
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Delay => DELAY,
            Self::Until => UNTIL,
            Self::Target => TARGET,
            Self::Id => ID,
            Self::Action => ACTION,
            Self::Partition => PARTITION,
            Self::Expires => EXPIRES,
            Self::Label => LABEL,
            Self::Trace => TRACE,
            Self::State => STATE,
            Self::Due => DUE,
            Self::Fired => FIRED,
            Self::Attempt => ATTEMPT,
            Self::Task => TASK,
            Self::Result => RESULT,
            Self::Ticket => TICKET,
            Self::Cursor => CURSOR,
            Self::Shard => SHARD,
            Self::Nominal => NOMINAL,
        }
    }
}

/// Whether a header is one of the contract and is gone at delivery (a trace puts some in again).
///
/// The `x-delay-error-*` of a dead letter are not among them: a record with one is refused.
#[must_use]
pub fn is_control(name: &[u8]) -> bool {
    name.strip_prefix(DELAY.as_bytes()).is_some_and(|suffix| Name::by_suffix(suffix).is_some())
}

/// Reads what the headers of a record ask for, in the order in which they stand.
///
/// # Errors
/// The first thing that is wrong: the record is to be dead-lettered.
pub fn read<'a>(
    headers: impl Iterator<Item = (&'a [u8], Option<&'a [u8]>)>,
) -> Result<Directive<'a>, Refusal> {
    let mut directive = Directive::default();
    let (mut seen, mut count) = (0u32, 0);
    for (name, value) in headers {
        // The state is waterclock's own, and a record has one more with it.
        count += usize::from(name != STATE.as_bytes());
        if count > HEADERS_MAX {
            let detail = format!("more than {HEADERS_MAX} headers; want fewer");
            return Err(Refusal::new(Code::TooManyHeaders, detail));
        }
        let Some(suffix) = name.strip_prefix(DELAY.as_bytes()) else { continue };
        let Some(known) = Name::by_suffix(suffix) else {
            if suffix.starts_with(b"-") {
                return Err(unknown(name));
            }
            continue;
        };
        let bit = 1u32 << (known as u8);
        if seen & bit != 0 {
            let detail = format!("{} is there more than once; want it once", known.as_str());
            return Err(Refusal::new(Code::DuplicateHeader, detail));
        }
        seen |= bit;
        directive.take(known, value)?;
    }
    let both = 1u32 << (Name::Delay as u8) | 1 << (Name::Until as u8);
    if seen & both == both {
        let detail = format!("both {DELAY} and {UNTIL}; want one of them");
        return Err(Refusal::new(Code::ConflictingDirectives, detail));
    }
    if directive.state.is_none() && (directive.task.is_some() || directive.result.is_some()) {
        let detail = format!("{TASK} or {RESULT} without {STATE}: tasks are created over the API");
        return Err(Refusal::new(Code::TaskForbidden, detail));
    }
    if directive.action == TimerAction::Result && directive.state.is_none() {
        return Err(bad_action("result"));
    }
    if directive.action != TimerAction::Create && directive.id.is_none() {
        let detail = format!("{ACTION} needs {ID}: the id of the timer that it is about");
        return Err(Refusal::new(Code::MissingId, detail));
    }
    Ok(directive)
}

impl<'a> Directive<'a> {
    /// Takes one header of the contract in.
    fn take(&mut self, name: Name, value: Option<&'a [u8]>) -> Result<(), Refusal> {
        let value = value.ok_or_else(|| {
            Refusal::new(Code::BadHeader, format!("{} is null; want a value", name.as_str()))
        })?;
        match name {
            Name::Delay => self.when = Some(time::delay(text(name, value)?)?),
            Name::Until => self.when = Some(until(text(name, value)?)?),
            Name::Expires => self.expires = Some(time::expires(text(name, value)?)?),
            Name::Target => {
                let target = text(name, value)?;
                topic_name(target)?;
                self.target = Some(target);
            }
            Name::Id => self.id = Some(id(value)?),
            Name::Label => self.label = label(text(name, value)?)?,
            Name::Action => self.action = action(text(name, value)?)?,
            Name::Partition => {
                let number = number(name, Code::BadPartition, text(name, value)?)?;
                self.partition = Some(number.cast_signed());
            }
            Name::Attempt => self.attempt = number(name, Code::BadHeader, text(name, value)?)?,
            Name::Trace => self.trace = trace(text(name, value)?)?,
            Name::State => self.state = Some(value),
            Name::Task => self.task = Some(value),
            Name::Result => self.result = Some(value),
            // Told by an earlier delivery; nothing follows from them.
            Name::Due | Name::Fired | Name::Ticket | Name::Cursor | Name::Shard | Name::Nominal => {
            }
        }
        Ok(())
    }
}

fn unknown(name: &[u8]) -> Refusal {
    let detail = if name.starts_with(b"x-delay-error-") {
        format!(
            "{} is a mark of a dead letter; to submit the record again leave out every x-delay-error-* header",
            Shown(name)
        )
    } else {
        format!(
            "{} is not in the contract; names that begin with x-delay- are kept for it",
            Shown(name)
        )
    };
    Refusal::new(Code::UnknownHeader, detail)
}

fn text(name: Name, value: &[u8]) -> Result<&str, Refusal> {
    std::str::from_utf8(value)
        .map_err(|_| Refusal::of_value(Code::BadHeader, name.as_str(), value, "UTF-8"))
}

fn number(name: Name, code: Code, text: &str) -> Result<u32, Refusal> {
    match time::integer(text.as_bytes()) {
        Some(number @ 0..=NUMBER_MAX) => Ok(number as u32),
        _ => Err(Refusal::of_value(
            code,
            name.as_str(),
            text.as_bytes(),
            "an integer from 0 to 2147483647",
        )),
    }
}

fn action(text: &str) -> Result<TimerAction, Refusal> {
    match text {
        "create" => Ok(TimerAction::Create),
        "replace" => Ok(TimerAction::Replace),
        "cancel" => Ok(TimerAction::Cancel),
        "result" => Ok(TimerAction::Result),
        _ => Err(bad_action(text)),
    }
}

fn bad_action(text: &str) -> Refusal {
    Refusal::of_value(Code::BadAction, ACTION, text.as_bytes(), "create, replace or cancel")
}

fn trace(text: &str) -> Result<bool, Refusal> {
    match text {
        "1" => Ok(true),
        "0" => Ok(false),
        _ => Err(Refusal::of_value(Code::BadTrace, TRACE, text.as_bytes(), "1 or 0")),
    }
}

/// Ids stand in lists, logs and URLs, so they are text of one line, and no segment of them means another path.
pub(super) fn id(value: &[u8]) -> Result<&[u8], Refusal> {
    let sound = std::str::from_utf8(value).is_ok_and(|text| {
        !text.chars().any(char::is_control)
            && !text.split('/').any(|segment| matches!(segment, "." | ".."))
    });
    if (1..=ID_MAX).contains(&value.len()) && sound {
        return Ok(value);
    }
    Err(Refusal::of_value(
        Code::BadId,
        ID,
        value,
        "1 to 255 bytes of UTF-8 without control characters and without a segment . or ..",
    ))
}

fn label(text: &str) -> Result<Option<&[u8]>, Refusal> {
    if text.len() > LABEL_MAX || text.chars().any(char::is_control) {
        return Err(Refusal::of_value(
            Code::BadLabel,
            LABEL,
            text.as_bytes(),
            "at most 64 bytes of UTF-8 without control characters",
        ));
    }
    Ok((!text.is_empty()).then_some(text.as_bytes()))
}

/// What the name of a topic must be.
pub(super) const TOPIC_WANTED: &str = "a topic name: 1 to 249 of a-z A-Z 0-9 . _ -, not . or ..";

/// Whether Kafka could have a topic of this name.
pub(super) fn is_topic_name(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    (1..=TOPIC_MAX).contains(&name.len())
        && name.bytes().all(allowed)
        && !matches!(name, "." | "..")
}

/// Checks that Kafka could have a topic of this name.
///
/// # Errors
/// `bad_target`: no such topic can exist.
pub fn topic_name(name: &str) -> Result<(), Refusal> {
    if is_topic_name(name) {
        return Ok(());
    }
    Err(Refusal::of_value(Code::BadTarget, TARGET, name.as_bytes(), TOPIC_WANTED))
}
