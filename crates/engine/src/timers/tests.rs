//! Names of timers, their versions, and the code of `<ns>.timers`.

use proptest::prelude::*;

use super::*;
use crate::task::result::{Outcome, TaskResult};
use crate::task::scope::TasksPartition;

fn version_at(first: u64, offset: i64) -> Version {
    Version { first_appended: UnixMillis(first), offset: Offset(offset) }
}

#[test]
fn a_timer_is_its_key_and_its_id_and_nothing_else() {
    let name = TimerId::new;
    #[rustfmt::skip]
    let cases = [
        // why,                                    one,                     other,                    same
        ("the same",                               name(Some(b"k"), b"i"),  name(Some(b"k"), b"i"),   true),
        ("another key",                            name(Some(b"k"), b"i"),  name(Some(b"l"), b"i"),   false),
        ("another id",                             name(Some(b"k"), b"i"),  name(Some(b"k"), b"j"),   false),
        ("bytes do not slip from key to id",       name(Some(b"ab"), b"c"), name(Some(b"a"), b"bc"),  false),
        ("empty is not null",                      name(Some(b""), b"i"),   name(None, b"i"),         false),
        ("a key that equals the id is a key",      name(Some(b"i"), b"i"),  name(None, b"i"),         false),
    ];
    for (why, one, other, same) in cases {
        assert_eq!(one == other, same, "{why}");
    }
}

#[test]
fn a_timers_name_never_changes() {
    // Written to a topic that outlives versions. The first 12 digits: printf expire | sha256sum
    let name = format!("{:?}", TimerId::new(Some(b"order-17"), b"expire"));
    assert_eq!(name, "b2dae5aed5b74c27f37df8cb251182f1");
}

#[test]
fn timers_of_one_id_begin_alike_and_differ_after_that() {
    let names = [None, Some(&b"k"[..]), Some(b"l"), Some(b"")].map(|key| TimerId::new(key, b"i"));
    assert!(names.iter().all(|timer_id| timer_id.0.starts_with(&id_prefix(b"i"))));
    let mut ends = names.map(|timer_id| timer_id.0[ID_PREFIX..].to_vec()).to_vec();
    ends.sort();
    ends.dedup();
    assert_eq!(ends.len(), 4);
    assert_ne!(id_prefix(b"i"), id_prefix(b"j"));
}

#[test]
fn a_version_is_read_as_it_is_shown_and_nothing_else_is() {
    assert_eq!(version_at(1_764_000_000_000, 42).to_string(), "1764000000000-42");
    assert_eq!("1764000000000-42".parse(), Ok(version_at(1_764_000_000_000, 42)));
    let elsewhere =
        |topic| version_at(1, Version::not_in_log_order(Offset(42), TopicMark::of(topic)).0);
    // printf waterclock.intake | sha256sum
    assert_eq!(elsewhere("waterclock.intake").to_string(), "1-42xe136");
    assert_eq!("1-42xe136".parse(), Ok(elsewhere("waterclock.intake")));
    // As older programs wrote it.
    let plain = version_at(1, 42 | NOT_IN_LOG_ORDER);
    assert_eq!((plain.to_string(), "1-42x".parse()), ("1-42x".to_owned(), Ok(plain)));
    #[rustfmt::skip]
    let cases = [
        ("a topic of five digits", "1-42x12345"),
        ("a topic in capitals",    "1-42xE136"),
        ("a zero in front",        "1-42x0136"),
        ("no topic",               "1-42x0"),
        ("two marks",              "1-42xx"),
        ("a sign in the topic",    "1-42x+136"),
        ("an offset that no log has", "1-70368744177664x"),
        ("nothing",             ""),
        ("half of it",          "1764000000000"),
        ("no offset",           "1764000000000-"),
        ("no time",             "-42"),
        ("a negative offset",   "1764000000000--42"),
        ("a sign",              "+1-42"),
        ("a space",             "1764000000000 -42"),
        ("too large a time",    "99999999999999999999-1"),
        ("too large an offset", "1-9223372036854775808"),
        ("an offset with a mark", "1-4611686018427387904"),
        ("a mark alone",        "x"),
    ];
    for (why, text) in cases {
        assert_eq!(text.parse::<Version>(), Err(BadVersion(text.to_owned())), "{why}");
    }
}

#[test]
fn the_last_state_of_a_timer_says_what_became_of_what_a_command_is_about_or_nothing() {
    let x = |first, offset: i64| version_at(first, offset | NOT_IN_LOG_ORDER);
    let last = |state, version, supersedes| Timer { state, version, supersedes, ..timer() };
    let of = |first, last| Some(Replaced { first, last });
    let (version, before, replace) = (About::Version, About::Before, About::Replace);
    let (ended, nothing) = (Found::Ended, Found::Nothing);
    use TimerState::{Cancelled, Dead, Delay, Delivered};
    #[rustfmt::skip]
    let cases = [
        // why,                                    about,                 the last state,                             found
        ("that version",                           version(version_at(5, 5)),  last(Delivered, version_at(5, 5), None),         ended(Delivered)),
        ("that version, which is pending since",   version(x(5, 5)),      last(Delay, x(5, 5), None),                 nothing),
        ("another one, after it or before it",     version(version_at(4, 4)),  last(Cancelled, version_at(5, 5), None),         nothing),
        ("one that it replaced",                   version(version_at(4, 4)),  last(Delivered, version_at(5, 5), of(version_at(4, 4), version_at(4, 4))), Found::Replaced),
        ("the first of several",                   version(version_at(1, 1)),  last(Cancelled, version_at(5, 5), of(version_at(1, 1), version_at(4, 4))), Found::Replaced),
        ("one of several",                         version(version_at(3, 3)),  last(Delay, version_at(5, 5), of(version_at(1, 1), version_at(4, 4))), Found::Replaced),
        ("one that came by a further intake, with a time between them", version(x(3, 3)), last(Delay, version_at(5, 5), of(version_at(1, 1), version_at(4, 4))), nothing),
        ("one with a time between them, and the first came by one", version(version_at(3, 3)), last(Delay, version_at(5, 5), of(x(1, 1), version_at(4, 4))), nothing),
        ("that first one",                         version(x(1, 1)),      last(Delay, version_at(5, 5), of(x(1, 1), version_at(4, 4))), Found::Replaced),
        ("one that was delivered before these",    version(version_at(1, 1)),  last(Delay, version_at(5, 5), of(version_at(2, 2), version_at(4, 4))), nothing),
        ("one that came after it",                 version(version_at(6, 6)),  last(Delivered, version_at(5, 5), of(version_at(2, 2), version_at(4, 4))), nothing),
        ("what was there before the cancel",       before(version_at(6, 6)),   last(Delivered, version_at(5, 5), None),         ended(Delivered)),
        ("the same, and it was cancelled",         before(version_at(6, 6)),   last(Cancelled, version_at(5, 5), None),         ended(Cancelled)),
        ("the same, a dead letter",                before(version_at(6, 6)),   last(Dead, version_at(5, 5), None),              ended(Dead)),
        ("what came after the cancel",             before(version_at(6, 6)),   last(Delivered, version_at(7, 7), None),         nothing),
        ("the same, in the place of what was not", before(version_at(6, 6)),   last(Delivered, version_at(9, 9), of(version_at(7, 7), version_at(8, 8))), nothing),
        ("what was written to a tier before it",   before(version_at(6, 6)),   last(Delivered, x(5, 9), None),             ended(Delivered)),
        ("what was written to a tier after it",    before(version_at(6, 6)),   last(Delivered, x(7, 1), None),             nothing),
        ("another time for one that was cancelled", replace(version_at(1, 1), version_at(5, 5)), last(Cancelled, version_at(1, 1), None), ended(Cancelled)),
        ("another time for one that was replaced",  replace(version_at(1, 1), version_at(5, 5)), last(Delay, version_at(3, 3), of(version_at(1, 1), version_at(1, 1))), Found::Replaced),
        ("another time, read again",                replace(version_at(1, 1), version_at(5, 5)), last(Delay, version_at(5, 5), of(version_at(1, 1), version_at(1, 1))), Found::Done),
        ("one that came too late, others came since", replace(version_at(1, 1), version_at(5, 5)), last(Delay, version_at(9, 9), of(version_at(4, 4), version_at(8, 8))), nothing),
        ("the same, and that was replaced since",   replace(version_at(1, 1), version_at(5, 5)), last(Dead, version_at(9, 9), of(version_at(1, 1), version_at(5, 5))), Found::Done),
    ];
    for (why, about, last, found) in cases {
        assert_eq!(about.found(Some(&last)), found, "{why}");
    }
    assert_eq!(before(version_at(6, 6)).found(None), nothing);
}

#[test]
fn phases_are_read_as_they_are_shown() {
    for state in TimerState::ALL {
        assert_eq!(state.as_str().parse(), Ok(state));
        assert_eq!(state.is_final(), state != TimerState::Delay);
    }
    assert!("Delay".parse::<TimerState>().is_err());
}

#[test]
fn a_void_covers_what_was_submitted_before_it_and_not_what_came_after() {
    let before = version_at(1_000, 10);
    let mark = CancelMark { before: VersionBound::of(before), ..cancel_mark() };
    #[rustfmt::skip]
    let cases = [
        ("before it in the log",                     version_at(999, 9),                true),
        ("its own place",                            version_at(1_000, 10),             false),
        ("after it in the log",                      version_at(1_001, 11),             false),
        ("moved here after it, but appended before", version_at(999, 11 | NOT_IN_LOG_ORDER),   true),
        ("moved here before it, but appended after", version_at(1_001, 9 | NOT_IN_LOG_ORDER),  false),
    ];
    for (why, version, covered) in cases {
        assert_eq!(mark.covers(version), covered, "{why}");
    }
}

#[test]
fn one_log_tells_what_was_first_and_else_the_time_does() {
    let x = |first, offset: i64| version_at(first, offset | NOT_IN_LOG_ORDER);
    #[rustfmt::skip]
    let cases = [
        // why,                                            one,           other,          one was first
        ("in one log, and in time",                        version_at(1, 1),   version_at(2, 2),    true),
        ("in one log, a leader's clock went back",         version_at(9, 1),   version_at(2, 2),    true),
        ("the same, the other way round",                  version_at(2, 2),   version_at(9, 1),    false),
        ("one was moved: its first append counts",         x(1, 9),       version_at(2, 2),    true),
        ("the same, the other way round",                  version_at(2, 2),   x(1, 9),        false),
        ("both were written to tiers",                     x(1, 9),       x(2, 1),        true),
        ("within a millisecond offsets count",             x(1, 1),       version_at(1, 2),    true),
        ("nothing is before itself",                       x(1, 1),       x(1, 1),        false),
    ];
    for (why, one, other, first) in cases {
        assert_eq!(one.is_before(other), first, "{why}");
    }
    // At one offset of two topics, in one millisecond: one of them is first.
    let [one, other] = ["wc.delay.1s", "wc.delay.5s"]
        .map(|topic| version_at(1, Version::not_in_log_order(Offset(7), TopicMark::of(topic)).0));
    assert_ne!(one.is_before(other), other.is_before(one));
    assert_eq!((one.without_topic(), one.offset_in_log()), (x(1, 7), Offset(7)));
}

proptest! {
    /// A version that a mark covers stays covered, whatever else it is made to cover.
    #[test]
    fn a_void_covers_all_that_it_did_and_what_it_is_to_cover(
        places in proptest::collection::vec((0..4_u64, 0..4_i64, any::<bool>()), 1..4),
        (first, offset, marked) in (0..4_u64, 0..4_i64, any::<bool>()),
    ) {
        let mark = |first, offset, is: bool| version_at(first, offset | if is { NOT_IN_LOG_ORDER } else { 0 });
        let version = mark(first, offset, marked);
        let places: Vec<_> = places.into_iter().map(|(f, o, is)| mark(f, o, is)).collect();
        let before = places.iter().fold(VersionBound::default(), |before, place| before.or(*place));
        let is_before_one = places.iter().any(|place| version.is_before(*place));
        prop_assert!(before.covers(version) || !is_before_one);
        let text = version.to_string();
        prop_assert_eq!(text.parse::<Version>(), Ok(version));
    }
}

fn cancel_mark() -> CancelMark {
    let (before, until) = (VersionBound::of(version_at(1, 2)), UnixMillis(3));
    CancelMark {
        timer_id: TimerId([7; 16]),
        before,
        until,
        seen: true,
        may_repeat: false,
        cancels: false,
    }
}

fn timer() -> Timer {
    Timer {
        timer_id: TimerId([7; 16]),
        state: TimerState::Dead,
        version: version_at(1, 2),
        supersedes: Some(Replaced { first: version_at(0, 1), last: version_at(0, 1) }),
        due: UnixMillis(3),
        since: UnixMillis(4),
        target: "orders".into(),
        label: Some("blue".into()),
        id: b"i".as_slice().into(),
        key: Some(b"k".as_slice().into()),
        key_cut: false,
        code: Some(Code::TargetMissing),
        task: None,
    }
}

#[test]
fn what_is_not_ours_or_is_newer_is_refused_with_a_reason() {
    let (of_timer, of_void) = ([7; 16], CancelMark::key(TimerId([7; 16])));
    let (timer, mark) =
        (Change::Timer(timer()).encode().1, Change::CancelMark(cancel_mark()).encode().1);
    let (timer, mark) = (timer.unwrap(), mark.unwrap());
    let with = |value: &[u8], at: usize, byte: u8| {
        let mut value = value.to_vec();
        value[at] = byte;
        Some(value)
    };
    let (timer_key, void_key) = (Some(&of_timer[..]), Some(&of_void[..]));
    let size = |bytes: usize| DecodeError::Size { bytes };
    #[rustfmt::skip]
    let cases = [
        ("no key",                   None,               Some(mark.clone()),               DecodeError::Key { bytes: 0 }),
        ("a short key",              Some(&[7; 15][..]), Some(timer.clone()),              DecodeError::Key { bytes: 15 }),
        ("a key of another kind",    Some(&[7; 17][..]), Some(mark.clone()),               DecodeError::Key { bytes: 17 }),
        ("a long key",               Some(&[7; 18][..]), None,                             DecodeError::Key { bytes: 18 }),
        ("a void of nothing",        void_key,           Some(vec![]),                     size(0)),
        ("a void that is cut",       void_key,           Some(mark[..25].to_vec()),        size(25)),
        ("a longer void",            void_key,           Some([&mark[..], &[0]].concat()), size(27)),
        ("a void of the version before", void_key,       with(&mark, 0, 1),                DecodeError::Version { version: 1 }),
        ("a void of two, with one",  void_key,           with(&mark, 1, 5),                size(26)),
        ("a flag of a void to come", void_key,           with(&mark, 1, 17),                DecodeError::State { state: 0, flags: 17 }),
        ("a timer of nothing",       timer_key,          Some(vec![]),                     size(0)),
        ("a timer that is cut",      timer_key,          Some(timer[..40].to_vec()),       size(40)),
        ("a newer timer",            timer_key,          with(&timer, 0, 4),               DecodeError::Version { version: 4 }),
        ("a phase to come",          timer_key,          with(&timer, 1, 7),               DecodeError::State { state: 7, flags: 29 }),
        ("a flag to come",           timer_key,          with(&timer, 2, 64),              DecodeError::State { state: 5, flags: 64 }),
        ("several of none",          timer_key,          with(&timer, 2, 32),              DecodeError::State { state: 5, flags: 32 }),
        ("cut, but no key",          timer_key,          with(&timer, 2, 2),               DecodeError::State { state: 5, flags: 2 }),
        ("a target that is no text", timer_key,          with(&timer, 52, 0xff),           DecodeError::Text),
        ("a code to come",           timer_key,          with(&timer, 66, b'T'),           DecodeError::Text),
    ];
    for (why, key, value, error) in cases {
        assert_eq!(Change::decode(key, value.as_deref()), Err(error), "{why}");
    }
    let timer_id = TimerId([7; 16]);
    assert_eq!(Change::decode(timer_key, None), Ok(Change::ForgottenTimer(timer_id)));
    assert_eq!(Change::decode(void_key, None), Ok(Change::ForgottenCancelMark(timer_id)));
}

#[test]
fn of_a_long_key_the_beginning_is_kept_and_that_it_is_cut() {
    for (len, cut) in [(KEY_MAX, false), (KEY_MAX + 1, true), (1 << 20, true)] {
        let key = vec![b'k'; len];
        let fields = TimerFields {
            state: TimerState::Delay,
            version: version_at(1, 2),
            supersedes: None,
            due: UnixMillis(3),
            since: UnixMillis(4),
            target: "orders",
            label: None,
            id: b"i",
            key: Some(&key),
            code: None,
            task: None,
        };
        let value = value(&fields);
        let Ok(Change::Timer(timer)) = Change::decode(Some(&[7; 16]), Some(&value)) else {
            panic!("{len}")
        };
        assert_eq!((timer.key_cut, timer.key.map(|key| key.len())), (cut, Some(KEY_MAX)), "{len}");
        assert!(value.len() < 2_000, "well below what the topic takes");
    }
}

#[test]
fn only_a_pending_timer_is_told_as_live() {
    for state in TimerState::ALL {
        let live = Timer { state, ..timer() }.live();
        assert_eq!(live.is_some(), state == TimerState::Delay, "{state:?}");
    }
}

fn any_place() -> impl Strategy<Value = Version> {
    (any::<u64>(), any::<i64>()).prop_map(|(first, offset)| version_at(first, offset))
}

fn any_bytes(len: std::ops::RangeInclusive<usize>) -> impl Strategy<Value = Box<[u8]>> {
    proptest::collection::vec(any::<u8>(), len).prop_map(Into::into)
}

fn any_progress() -> impl Strategy<Value = Progress> {
    let held = proptest::option::of(any::<(u16, u16)>());
    (any::<[u32; 4]>(), any::<(u16, u64)>(), held, any::<[bool; 3]>()).prop_map(
        |([turn, attempts, failures, rounds], (interruptions, next_at), held, flags)| {
            let [begun, open, cancelling] = flags;
            let held = held.map(|(partition, credits)| HeldBy {
                partition: TasksPartition(partition),
                credits,
            });
            let next_at = UnixMillis(next_at);
            #[rustfmt::skip]
            let progress = Progress {
                turn, attempts, failures, rounds, interruptions, held, begun, open, cancelling, breaker: begun && !open, with_executor: begun && open, next_at,
            };
            progress
        },
    )
}

fn any_attempt() -> impl Strategy<Value = Attempt> {
    let said = (any::<Option<u16>>(), proptest::option::of("[a-z ]{0,200}"));
    (any::<[u8; 16]>(), any::<(u32, u32)>(), said).prop_map(
        |(name, (turn, number), (status, error))| Attempt {
            timer_id: TimerId(name),
            turn,
            number,
            result: TaskResult {
                status: status.map(|status| 100 + status % 500),
                error,
                ended: Some(UnixMillis(7)),
                ..TaskResult::new(Outcome::Failed)
            },
        },
    )
}

fn any_timer() -> impl Strategy<Value = Timer> {
    let replaced = prop_oneof![
        any_place().prop_map(|last| Replaced { first: last, last }),
        (any_place(), any_place()).prop_map(|(first, last)| Replaced { first, last }),
    ];
    let versions = (any_place(), proptest::option::of(replaced), any::<u64>(), any::<u64>());
    let names = ("[a-z.]{1,249}", any_bytes(1..=255), proptest::option::of(any_bytes(0..=1_024)));
    let rest = (
        proptest::option::of("[a-z]{1,64}"),
        proptest::option::of(proptest::sample::select(Code::ALL)),
        proptest::sample::select(&TimerState::ALL[..]),
        (any::<([u8; 16], bool)>(), proptest::option::of(any_progress())),
    );
    (versions, names, rest).prop_map(|(versions, (target, id, key), (label, code, state, more))| {
        let ((version, supersedes, due, since), ((name, cut), task)) = (versions, more);
        Timer {
            timer_id: TimerId(name),
            state,
            version,
            supersedes,
            due: UnixMillis(due),
            since: UnixMillis(since),
            target: target.into(),
            label: label.map(Into::into),
            id,
            key_cut: cut && key.is_some(),
            key,
            code,
            task,
        }
    })
}

fn any_change() -> impl Strategy<Value = Change> {
    let name = || any::<[u8; 16]>().prop_map(TimerId);
    let before = (any_place(), any_place(), any::<bool>()).prop_map(|(one, other, two)| {
        let one = VersionBound::of(one);
        if two { one.or(other) } else { one }
    });
    let mark = (name(), before, any::<(u64, bool, bool, bool)>()).prop_map(
        |(timer_id, before, (until, seen, may_repeat, cancels))| {
            Change::CancelMark(CancelMark {
                timer_id,
                before,
                until: UnixMillis(until),
                seen,
                may_repeat,
                cancels,
            })
        },
    );
    prop_oneof![
        any_timer().prop_map(Change::Timer),
        mark,
        name().prop_map(Change::ForgottenTimer),
        name().prop_map(Change::ForgottenCancelMark),
        any_attempt().prop_map(Change::Attempt),
        (name(), 0..progress::SLOTS).prop_map(|(name, slot)| Change::ForgottenAttempt(name, slot)),
        (name(), "[ -~]{0,300}").prop_map(|(name, spec)| Change::Definition(name, spec.into())),
        name().prop_map(Change::ForgottenDefinition),
    ]
}

proptest! {
    #[test]
    fn what_is_encoded_is_decoded(change in any_change()) {
        let (key, value) = change.encode();
        prop_assert_eq!(Change::decode(Some(&key), value.as_deref()), Ok(change));
    }

    #[test]
    fn bytes_from_outside_never_panic(
        key in proptest::sample::select(vec![
            None, Some(vec![7; 16]), Some(vec![7; 17]), Some(vec![1; 17]), Some(vec![2; 18]), Some(vec![3; 17]),
        ]),
        change in any_change(), at: prop::sample::Index, byte: u8, cut: prop::sample::Index,
    ) {
        let Some(mut value) = change.encode().1 else { return Ok(()) };
        let at = at.index(value.len());
        value[at] = byte;
        value.truncate(cut.index(value.len() + 1));
        let _ = Change::decode(key.as_deref(), Some(&value));
    }
}
