//! Feedback: a record of the main intake by which an executor says what came of the turn that its ticket names, or that it is
//! still at work.
//!
//! # Invariants
//! 1. Feedback is about one turn of one version. The lane decides whether that still counts.
//! 2. What ends an attempt without a success brings the payload: the task goes on with it, or becomes a dead letter.

use super::CopyTerms;
use crate::header;
use crate::sealed::Ticket;
use crate::state::{Bound, Kind, State, StateKey, SubmissionOrder, TaskState, intake_tag};
use crate::task::id::TaskId;
use crate::task::result::{Outcome, TaskResult};
use crate::timers::Version;
use crate::{Record, UnixMillis};

/// What an executor may say: `started` is a heartbeat.
#[must_use]
pub const fn may_be_feedback(outcome: Outcome) -> bool {
    matches!(outcome, Outcome::Started | Outcome::Finished | Outcome::Failed | Outcome::Gone)
}

/// The record that says what came of a turn. `now`: the brokers' time. `copy`: the record that brings the task's payload, its
/// terms, and when the task was due first; needed with an outcome that [carries a payload](Outcome::carries_payload).
#[must_use]
pub fn feedback(
    key: &StateKey,
    now: UnixMillis,
    (id, ticket): (&TaskId, Ticket),
    result: &TaskResult,
    copy: Option<(&Record, CopyTerms, UnixMillis)>,
) -> Record {
    let Ticket { version: Version { first_appended, offset }, turn, heartbeat } = ticket;
    let json = result.to_json();
    let id = id.as_str().as_bytes();
    let of_copy = copy.map(|(_, terms, trigger)| (terms.digest, trigger));
    let (digest, trigger) = of_copy.unwrap_or_default();
    let state = State {
        kind: Kind::Submit,
        due: now + heartbeat,
        first_appended: now,
        // The version that it is about.
        order: SubmissionOrder { appended: first_appended, offset },
        expires: copy.and_then(|(_, terms, _)| terms.expires),
        intake: intake_tag(""),
        name: None,
        target: None,
        hops: 0,
        task: Some(TaskState { turn, trigger, digest, ..TaskState::default() }),
    };
    let record = copy.map(|(record, ..)| record);
    let record_key = record.and_then(Record::key);
    let is_task = |(name, _): &(&[u8], Option<&[u8]>)| *name == header::TASK.as_bytes();
    let spec = record.and_then(|record| record.headers().find(is_task)?.1);
    let bound = Bound {
        key: record_key,
        id: Some(id),
        task: spec,
        result: Some(json.as_bytes()),
        ..Bound::default()
    };
    let sealed = state.seal(key, &bound);
    let own = record.into_iter().flat_map(Record::headers);
    let own = own.filter(|(name, _)| !header::is_control(name));
    let spec = spec.map(|spec| (header::TASK.as_bytes(), Some(spec)));
    let ours = [
        (header::ID.as_bytes(), Some(id)),
        (header::ACTION.as_bytes(), Some(&b"result"[..])),
        (header::RESULT.as_bytes(), Some(json.as_bytes())),
        (header::STATE.as_bytes(), Some(sealed.as_ref())),
    ];
    let value = record.and_then(Record::value);
    Record::new(record_key, value, own.chain(spec).chain(ours))
}

/// The version that feedback with this state is about.
pub(crate) fn version_of(state: &State<'_>) -> Version {
    Version { first_appended: state.order.appended, offset: state.order.offset }
}
