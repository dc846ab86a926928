//! Commands that waterclock makes itself: a cancel, or one about a version of a timer that it has found.
//!
//! # Invariants
//! 1. A command about a version does nothing to any other: it names the version in a sealed state, which only an intake of
//!    its lane takes.
//! 2. What is put off stays the record that it was: key, value, headers, when it expires, and the intake whose rules it is
//!    under. Only when it is due is another.

use std::collections::HashMap;

use super::header::{self, Refusal};
use super::setup::Setup;
use super::state::{Kind, Order, State};
use super::timers::{Place, TimerKey};
use super::verdict;
use super::{Offset, Record, Source, UnixMillis};

/// A record that stands somewhere, as far as timers are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its timer.
    pub name: TimerKey,
    /// Which version it is.
    pub version: Place,
    /// When it is due.
    pub due: UnixMillis,
}

/// Which version of which timer a record is that stands in an intake or a tier; `None`: of none, or it breaks the
/// contract, or it belongs to another lane.
#[must_use]
pub fn look(
    setup: &Setup,
    at: (Source, Offset),
    appended: UnixMillis,
    record: &Record,
) -> Option<Found> {
    let (entry, lane) = verdict::known(setup, &HashMap::new(), at, appended, record).ok()?;
    let found = Found { name: entry.timer?, version: entry.place(), due: entry.due };
    (!entry.way.is_cancel() && lane.is_none()).then_some(found)
}

/// The record that puts a version off: it is due at `due` instead, if that version is pending when its lane reads it. It
/// goes to the main intake, to the partition of its lane.
///
/// # Errors
/// What stands there breaks the contract: there is nothing to put off.
pub fn put_off(
    setup: &Setup,
    at: (Source, Offset),
    appended: UnixMillis,
    record: &Record,
    due: UnixMillis,
) -> Result<Record, Refusal> {
    let (entry, _) = verdict::known(setup, &HashMap::new(), at, appended, record)?;
    let directive = header::read(record.headers())?;
    let version = entry.place();
    let state = State {
        kind: Kind::Amend,
        due,
        first_appended: version.first_appended,
        order: Order { appended: entry.order.appended, offset: version.offset },
        expires: entry.expires,
        intake: setup.topics.intakes[usize::from(entry.intake)].tag,
        hops: 0,
    };
    let sealed = state.seal(&setup.key, &directive.bound(record.key()));
    let own = [header::ACTION.as_bytes(), header::STATE.as_bytes()];
    let kept = record.headers().filter(|(name, _)| !own.contains(name));
    let added = [(own[0], Some(&b"replace"[..])), (own[1], Some(sealed.as_ref()))];
    Ok(Record::new(record.key(), record.value(), kept.chain(added)))
}

/// A cancel of what is pending, or of one version.
#[must_use]
pub fn cancel(setup: &Setup, key: Option<&[u8]>, id: &[u8], version: Option<Place>) -> Record {
    let named =
        [(header::ACTION.as_bytes(), Some(&b"cancel"[..])), (header::ID.as_bytes(), Some(id))];
    let Some(version) = version else {
        return Record::new(key, None, named.into_iter());
    };
    let state = State {
        kind: Kind::Amend,
        due: UnixMillis(0),
        first_appended: version.first_appended,
        order: Order { appended: version.first_appended, offset: version.offset },
        expires: None,
        intake: setup.topics.intakes[0].tag,
        hops: 0,
    };
    let bound = super::state::Bound { key, id: Some(id), ..Default::default() };
    let sealed = state.seal(&setup.key, &bound);
    let added = [(header::STATE.as_bytes(), Some(sealed.as_ref()))];
    Record::new(key, None, named.into_iter().chain(added))
}
