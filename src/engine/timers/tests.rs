//! Names of timers, and the code of `<ns>.timers`.

use proptest::prelude::*;

use super::*;

fn place(first: u64, offset: i64) -> Place {
    Place { first_appended: UnixMillis(first), offset: Offset(offset) }
}

#[test]
fn a_timer_is_its_key_and_its_id_and_nothing_else() {
    let name = TimerKey::new;
    #[rustfmt::skip]
    let cases = [
        // why,                                    one,                     other,                    same
        ("the same",                               name(Some(b"k"), b"i"),  name(Some(b"k"), b"i"),   true),
        ("another key",                            name(Some(b"k"), b"i"),  name(Some(b"l"), b"i"),   false),
        ("another id",                             name(Some(b"k"), b"i"),  name(Some(b"k"), b"j"),   false),
        ("bytes do not slip from key to id",       name(Some(b"ab"), b"c"), name(Some(b"a"), b"bc"),  false),
        ("empty is not null",                      name(Some(b""), b"i"),   name(None, b"i"),         false),
        ("without a key the id stands for it",     name(Some(b"i"), b"i"),  name(None, b"i"),         true),
    ];
    for (why, one, other, same) in cases {
        assert_eq!(one == other, same, "{why}");
    }
}

#[test]
fn a_timers_name_never_changes() {
    // Written to a topic that outlives versions.
    let name = format!("{:?}", TimerKey::new(Some(b"order-17"), b"expire"));
    assert_eq!(name, "4c27f37df8cb251182f115608446cd43");
}

#[test]
fn a_cancel_covers_what_was_submitted_before_it_and_not_what_came_after() {
    let before = place(1_000, 10);
    let cancel = Cancelled { timer: TimerKey([0; 16]), before, until: UnixMillis(0), met: false };
    #[rustfmt::skip]
    let cases = [
        ("appended before",                              place(999, 11),   true),
        ("in the same millisecond, before it in the log", place(1_000, 9), true),
        ("the cancel's own place",                       place(1_000, 10), false),
        ("in the same millisecond, after it in the log", place(1_000, 11), false),
        ("appended after",                               place(1_001, 9),  false),
    ];
    for (why, place, covered) in cases {
        assert_eq!(cancel.covers(place), covered, "{why}");
    }
}

#[test]
fn what_is_not_ours_or_is_newer_is_refused_with_a_reason() {
    let good = Cancelled {
        timer: TimerKey([7; 16]),
        before: place(1, 2),
        until: UnixMillis(3),
        met: true,
    };
    let key = Some(&[7; 16][..]);
    let with = |at: usize, byte: u8| {
        let mut value = good.encode();
        value[at] = byte;
        value.to_vec()
    };
    #[rustfmt::skip]
    let cases = [
        ("no key",             None,               Some(good.encode().to_vec()), DecodeError::Key { bytes: 0 }),
        ("a long key",         Some(&[7; 17][..]), None,                         DecodeError::Key { bytes: 17 }),
        ("nothing",            key,                Some(vec![]),                 DecodeError::Size { bytes: 0 }),
        ("cut",                key,                Some(vec![1; 26]),            DecodeError::Size { bytes: 26 }),
        ("longer",             key,                Some(vec![1; 28]),            DecodeError::Size { bytes: 28 }),
        ("a newer version",    key,                Some(with(0, 2)),             DecodeError::Version { version: 2 }),
        ("a state to come",    key,                Some(with(1, 2)),             DecodeError::State { state: 2, flags: 1 }),
        ("a flag to come",     key,                Some(with(2, 3)),             DecodeError::State { state: 1, flags: 3 }),
    ];
    for (why, key, value, error) in cases {
        assert_eq!(Change::decode(key, value.as_deref()), Err(error), "{why}");
    }
    assert_eq!(Change::decode(key, None), Ok(Change::Forgotten(good.timer)));
}

proptest! {
    #[test]
    fn what_is_encoded_is_decoded(
        timer: [u8; 16], first: u64, offset: i64, until: u64, met: bool,
    ) {
        let timer = TimerKey(timer);
        let cancelled = Cancelled { timer, before: place(first, offset), until: UnixMillis(until), met };
        let decoded = Change::decode(Some(&timer.0), Some(&cancelled.encode()));
        prop_assert_eq!(decoded, Ok(Change::Cancelled(cancelled)));
    }

    #[test]
    fn bytes_from_outside_never_panic(
        key in proptest::option::of(proptest::collection::vec(any::<u8>(), 0..20)),
        value in proptest::option::of(proptest::collection::vec(any::<u8>(), 0..40)),
    ) {
        let _ = Change::decode(key.as_deref(), value.as_deref());
    }
}
