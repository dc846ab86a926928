//! Follow-ups, as their lane submits them.

use super::{Submission, submit};
use crate::state::StateKey;
use crate::task::follow_up::{CONTENT_TYPE, End, FollowUp};
use crate::task::spec::Kind;
use crate::{Record, UnixMillis};

/// The record that creates the follow-up of a task that has ended: due at once. `now`: the brokers' time. One that goes to a topic has
/// the id of the task as its key.
pub(crate) fn follow_up(key: &StateKey, now: UnixMillis, of: &FollowUp, end: &End<'_>) -> Record {
    let (spec, body) = (of.spec(), of.body(end));
    let is_record = matches!(spec.kind(), Kind::Kafka(_));
    let (name, value) = CONTENT_TYPE;
    // Those of a call stand in its specification.
    let headers = [(name.to_owned(), Some(value.as_bytes().to_vec()))];
    let submission = Submission {
        id: &end.id.follow_up(end.version),
        spec: &spec,
        due: now,
        expires: None,
        key: is_record.then(|| end.id.as_str().as_bytes()),
        value: Some(body.as_bytes()),
        headers: if is_record { &headers } else { &[] },
    };
    submit(key, now, &submission)
}
