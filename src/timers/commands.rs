//! Commands as they stand in the intake: a cancel as anybody would write it, or a sealed command about one version of a
//! timer.

use std::sync::Arc;

use crate::engine::header::{self, Refusal};
use crate::engine::state::{self, Bound, Kind, State};
use crate::engine::timers::{TimerName, Version};
use crate::engine::{Record, Setup, UnixMillis};

/// A header by which a cancel is known again in the intake, where Kafka does not say where it stands. It means nothing.
const MARK: &str = "waterclock-command";

/// A cancel of a timer, whichever version is pending, or of one version.
pub(super) fn cancel(setup: &Setup, name: &TimerName, version: Option<Version>) -> Record {
    let (key, id) = (name.key.as_deref(), name.id.as_bytes());
    let sealed = version.map(|version| {
        let bound = Bound { key, id: Some(id), ..Bound::default() };
        let tag = setup.topics.intakes[0].tag();
        let state = about(version, UnixMillis(0), tag);
        state.seal(&setup.key, &bound)
    });
    let mark = rand::random::<u128>().to_be_bytes();
    let headers = [
        Some((MARK.as_bytes(), Some(&mark[..]))),
        Some((header::ID.as_bytes(), Some(id))),
        Some((header::ACTION.as_bytes(), Some(&b"cancel"[..]))),
        sealed.as_ref().map(|sealed| (header::STATE.as_bytes(), Some(sealed.as_ref()))),
    ];
    Record::new(key, None, headers.into_iter().flatten())
}

/// The header by which a cancel is known again; no other command has one. That of a task is known by its seal: two with the same
/// seal came in one millisecond, and cancel the same.
pub(super) fn mark(command: &Record) -> Option<(&[u8], &[u8])> {
    let of = |wanted: &str| {
        let mut headers = command.headers().filter_map(|(name, value)| Some((name, value?)));
        headers.find(|(name, _)| *name == wanted.as_bytes())
    };
    let is_cancel = of(header::ACTION).is_some_and(|(_, action)| action == b"cancel");
    of(MARK).or_else(|| of(header::STATE).filter(|_| is_cancel))
}

fn about(version: Version, due: UnixMillis, intake: u64) -> State<'static> {
    State {
        kind: Kind::Amend,
        due,
        first_appended: version.first_appended,
        order: state::SubmissionOrder { appended: UnixMillis(0), offset: version.offset },
        expires: None,
        intake,
        name: None,
        target: None,
        hops: 0,
        task: None,
    }
}

/// What a record says of itself that stays when it is due at another time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Terms {
    pub(super) expires: Option<UnixMillis>,
    /// The tag of the intake whose rules it is under.
    pub(super) intake: u64,
    /// That intake's name, if it is not the main one.
    pub(super) name: Option<Arc<str>>,
    /// The target that it was accepted for, where no header says it.
    pub(super) target: Option<Arc<str>>,
}

/// The record with headers that put it in the place of its version, due at that time.
///
/// # Errors
/// Its headers do not follow the contract, so that it cannot be pending.
pub(super) fn replace(
    setup: &Setup,
    record: &Record,
    version: Version,
    terms: Terms,
    due: UnixMillis,
) -> Result<Record, Refusal> {
    let directive = header::read(record.headers())?;
    let state = State {
        expires: terms.expires,
        name: terms.name.as_deref(),
        target: terms.target.as_deref(),
        ..about(version, due, terms.intake)
    };
    let sealed = state.seal(&setup.key, &directive.bound(record.key()));
    let own = [header::STATE, header::ACTION];
    let kept = record.headers().filter(|(name, _)| !own.iter().any(|own| own.as_bytes() == *name));
    let added = [
        (header::ACTION.as_bytes(), Some(&b"replace"[..])),
        (header::STATE.as_bytes(), Some(sealed.as_ref())),
    ];
    Ok(Record::new(record.key(), record.value(), kept.chain(added)))
}
