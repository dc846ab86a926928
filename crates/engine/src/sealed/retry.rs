//! A retry by hand: a record of the main intake that brings a task's payload, and names the version and the turn that it follows.
//!
//! # Invariants
//! 1. A copy of a task is recognized by its seal, and its body by the digest that the seal covers: who may write to a topic cannot
//!    have another body sent.
//! 2. The retry is about one version and one turn. The lane decides whether these are the last ones.

use crate::header::{self, TimerAction};
use crate::state::{Bound, Kind, State, StateKey, SubmissionOrder, TaskState, intake_tag};
use crate::task::digest;
use crate::task::id::TaskId;
use crate::timers::{Progress, Version};
use crate::{Offset, Record, UnixMillis};

/// Which copy of a task is wanted: what brings the body of this turn of this version.
#[derive(Clone, Copy, Debug)]
pub struct WantedCopy<'a> {
    /// The task.
    pub id: &'a TaskId,
    /// Its version.
    pub version: Version,
    /// The last turn that was dispatched; 0: none was.
    pub turn: u32,
    /// When it was due first. A copy may say otherwise: it may have been made before a retry.
    pub trigger: UnixMillis,
}

/// What a copy of a task says of itself beside its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyTerms {
    /// Past it, nothing is begun.
    pub expires: Option<UnixMillis>,
    pub(super) digest: [u8; 16],
}

/// Whether a record that stands in a topic of waterclock, or stood at `place` (its offset and append time), is the wanted copy.
#[must_use]
pub fn copy_of(
    key: &StateKey,
    record: &Record,
    (offset, appended): (Offset, UnixMillis),
    wanted: &WantedCopy<'_>,
) -> Option<CopyTerms> {
    let directive = header::read(record.headers()).ok()?;
    if directive.id != Some(wanted.id.as_str().as_bytes())
        || directive.action == TimerAction::Cancel
    {
        return None;
    }
    let state = State::open(directive.state?, key, &directive.bound(record.key())).ok()?;
    let task = state.task?;
    let Version { first_appended, offset: version_offset } = wanted.version;
    let is_named = (state.first_appended, state.order.offset) == (first_appended, version_offset)
        && task.turn == wanted.turn;
    // What makes a version does not name it: that is where it stands.
    let is_there = (offset, appended) == (wanted.version.offset_in_log(), first_appended);
    let is_it = match state.kind {
        Kind::Submit if directive.action == TimerAction::Result => {
            super::version_of_feedback(&state) == wanted.version
                && task.turn == wanted.turn
                && directive.task.is_some()
        }
        Kind::Submit => is_there,
        Kind::Amend => is_there || is_named,
        Kind::Hop | Kind::Work | Kind::Result => is_named,
        Kind::Move | Kind::Duplicate => false,
    };
    // A result that needs no further turn has no body.
    (is_it && digest(record) == task.digest)
        .then_some(CopyTerms { expires: state.expires, digest: task.digest })
}

/// What a dead letter holds: the record as it was before it became one, and where that stood (offset, append time). `None`: it is
/// no dead letter.
#[must_use]
pub fn of_letter(letter: &Record) -> Option<(Record, (Offset, UnixMillis))> {
    let number = |wanted: &str| {
        let mut headers = letter.headers();
        let (_, value) = headers.find(|(name, _)| *name == wanted.as_bytes())?;
        std::str::from_utf8(value?).ok()?.parse::<u64>().ok()
    };
    let offset = i64::try_from(number(header::ERROR_OFFSET)?).ok()?;
    let place = (Offset(offset), UnixMillis(number(header::ERROR_TIMESTAMP)?));
    let is_error = |name: &[u8]| header::ERRORS.iter().any(|error| error.as_bytes() == name);
    let own = letter.headers().filter(|(name, _)| !is_error(name));
    Some((Record::new(letter.key(), letter.value(), own), place))
}

/// The record that has a task called now: it brings the body of `copy`, and follows this version as far as it had come.
/// `now`: the brokers' time.
#[must_use]
pub fn retry(
    key: &StateKey,
    now: UnixMillis,
    copy: (&Record, CopyTerms),
    wanted: &WantedCopy<'_>,
    progress: &Progress,
) -> Record {
    let (record, CopyTerms { expires, digest }) = copy;
    let Version { first_appended, offset } = wanted.version;
    let id = wanted.id.as_str().as_bytes();
    let state = State {
        kind: Kind::Amend,
        due: now,
        first_appended,
        order: SubmissionOrder { appended: first_appended, offset },
        expires,
        intake: intake_tag(""),
        name: None,
        target: None,
        hops: 0,
        task: Some(TaskState {
            turn: wanted.turn,
            attempt: progress.attempts,
            round: progress.rounds,
            trigger: wanted.trigger,
            digest,
        }),
    };
    let is_task = |(name, _): &(&[u8], Option<&[u8]>)| *name == header::TASK.as_bytes();
    let spec = record.headers().find(is_task).and_then(|(_, spec)| spec);
    let bound = Bound { key: record.key(), id: Some(id), task: spec, ..Bound::default() };
    let sealed = state.seal(key, &bound);
    let own = record.headers().filter(|(name, _)| !header::is_control(name));
    let ours = [
        (header::ID.as_bytes(), Some(id)),
        (header::TASK.as_bytes(), spec),
        (header::ACTION.as_bytes(), Some(&b"replace"[..])),
        (header::STATE.as_bytes(), Some(sealed.as_ref())),
    ];
    Record::new(record.key(), record.value(), own.chain(ours))
}
