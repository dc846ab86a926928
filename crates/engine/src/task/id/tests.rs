use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::header;
use crate::timers::TimerId;

fn of(project: &str, request_id: &str, key: Option<&[u8]>) -> TaskId {
    TaskId::of_request(project, request_id, key).unwrap()
}

/// Made by Python: `hashlib.sha256` over the three parts, each behind its length as eight bytes, big-endian. The digits of
/// the key are `Utils.murmur2` of kafka-clients, from the tests of `murmur2`.
#[test]
fn an_id_of_a_request_never_changes() {
    #[rustfmt::skip]
    let cases: [(&str, &str, Option<&[u8]>, &str); 4] = [
        ("shop", "o-17", None,             "9e1d35e5f6f41e0b952dc0f386cfecdb"),
        ("shop", "o-17", Some(b"order-42"), "k1ddefd00-9e1d35e5f6f41e0b952dc0f386cfecdb"),
        ("shop", "o-17", Some(b"abc"),     "k1c94221b-9e1d35e5f6f41e0b952dc0f386cfecdb"),
        ("s",    "hopo-17", None,          "bed31d309a9b4b87ce44041ba0e7cd0b"),
    ];
    for (project, request_id, key, want) in cases {
        assert_eq!(of(project, request_id, key).as_str(), want, "{project} {request_id} {key:?}");
    }
}

/// Made in the same way.
#[test]
fn a_run_has_another_id_than_the_task_of_the_same_request_id() {
    for (project, request_id, want) in [
        ("shop", "o-17", "6f4f29bffe9ab5f2d88933120101f743"),
        ("s", "hopo-17", "ec8ca7f3ca5ea23e073b91028b2a9beb"),
    ] {
        let run = TaskId::run_of_request(project, request_id).unwrap();
        assert_eq!(run.as_str(), want, "{project} {request_id}");
        assert_ne!(run, of(project, request_id, None));
    }
}

#[test]
fn a_request_id_has_1_to_128_bytes() {
    for (bytes, sound) in [(0, false), (1, true), (128, true), (129, false)] {
        let request_id = "x".repeat(bytes);
        for made in [
            TaskId::of_request("shop", &request_id, None),
            TaskId::run_of_request("shop", &request_id),
        ] {
            assert_eq!(made.is_ok(), sound, "{bytes}");
            if !sound {
                assert_eq!(made, Err(IdError::RequestId(bytes)));
            }
        }
    }
    // Bytes and not characters.
    assert!(TaskId::of_request("shop", &"\u{20ac}".repeat(43), None).is_err());
}

#[test]
fn parse_keeps_the_rule() {
    let long = "a".repeat(ID_MAX);
    let longer = "a".repeat(ID_MAX + 1);
    #[rustfmt::skip]
    let cases = [
        ("9f2c00000000000000000000000000aa",           true),
        ("k1ddef3a0-9f2c00000000000000000000000000aa", true),
        ("schedule.shop.nightly",                      true),
        ("r.9f2c@3-1_b",                               true),
        ("...",                                        true),
        (long.as_str(),                                true),
        (longer.as_str(),                              false),
        ("",                                           false),
        (".",                                          false),
        ("..",                                         false),
        ("A",                                          false),
        ("a/b",                                        false),
        ("a b",                                        false),
        ("a+b",                                        false),
        ("\u{e4}",                                     false),
        ("a\n",                                        false),
    ];
    for (text, sound) in cases {
        let read = TaskId::parse(text);
        assert_eq!(read.is_ok(), sound, "{text:?}");
        if let Ok(id) = read {
            assert_eq!(id.as_str(), text);
            assert_eq!(text.parse(), Ok(id));
        }
    }
}

#[test]
fn json_with_another_text_is_no_id() {
    let id: TaskId = serde_json::from_str("\"r.1\"").unwrap();
    assert_eq!(serde_json::to_string(&id).unwrap(), "\"r.1\"");
    assert!(serde_json::from_str::<TaskId>("\"R.1\"").is_err());
}

#[test]
fn only_k_with_eight_digits_is_the_hash_of_a_key() {
    let cases = [
        ("k0000002a-x", Some(42)),
        ("kffffffff-", Some(u32::MAX)),
        ("k0000002a", None),
        ("k000002a-x", None),
        ("k00000002a-x", None),
        ("k0000002g-x", None),
        ("0000002a-x", None),
        ("xk0000002a-x", None),
        ("kafka-x", None),
    ];
    for (text, want) in cases {
        let id = TaskId::parse(text).unwrap();
        assert_eq!(id.key_hash(), want, "{text}");
        let own = murmur2::murmur2(text.as_bytes());
        let lane = Lane(murmur2::partition_of(want.unwrap_or(own), 264));
        assert_eq!(id.lane_of(264), lane, "{text}");
    }
}

#[test]
fn a_task_is_never_the_timer_of_a_record() {
    let id = TaskId::parse("9f2c").unwrap();
    let task = TimerId::task(&id);
    let others = [None, Some(&b""[..]), Some(b"9f2c"), Some(b"k")];
    let others = others.map(|key| TimerId::new(key, b"9f2c"));
    assert!(!others.contains(&task));
    // Not even a neighbour of them: who looks for the timers of the id does not find it.
    assert!(!task.0.starts_with(&crate::timers::id_prefix(b"9f2c")));
    assert_ne!(task, TimerId::task(&TaskId::parse("9f2d").unwrap()));
    assert_eq!(task, TimerId::task(&id));
}

proptest! {
    #[test]
    fn a_task_with_a_key_is_in_the_lane_of_the_key(
        key in proptest::collection::vec(any::<u8>(), 0..40),
        bytes in any::<[u8; 16]>(),
        request_id in "[a-z]{1,8}",
        lanes in 1..2_000u16,
    ) {
        let lane = Lane(murmur2::partition(&key, lanes));
        prop_assert_eq!(TaskId::random(bytes, Some(&key)).lane_of(lanes), lane);
        prop_assert_eq!(of("p", &request_id, Some(&key)).lane_of(lanes), lane);
    }

    #[test]
    fn an_id_is_read_as_what_was_made(bytes in any::<[u8; 16]>(), key in any::<Option<[u8; 3]>>()) {
        let id = TaskId::random(bytes, key.as_ref().map(<[u8; 3]>::as_slice));
        prop_assert_eq!(id.as_str().len(), if key.is_some() { 42 } else { 32 });
        prop_assert_eq!(TaskId::parse(id.as_str()), Ok(id.clone()));
        let digits = format!("{:032x}", u128::from_be_bytes(bytes));
        prop_assert!(id.as_str().ends_with(&digits));
        // It can stand in the header.
        let of_header = [(header::ID.as_bytes(), Some(id.as_str().as_bytes()))];
        prop_assert!(header::read(of_header.into_iter()).is_ok());
    }

    /// Parts that run together are other parts.
    #[test]
    fn other_parts_make_another_id(parts in proptest::collection::btree_set(("[ab]{0,3}", "[ab]{1,3}"), 2..6)) {
        let ids: BTreeSet<_> =
            parts.iter().map(|(project, request_id)| of(project, request_id, None)).collect();
        prop_assert_eq!(ids.len(), parts.len());
    }
}

#[test]
fn tasks_are_spread_evenly_over_a_window_and_each_has_its_place_there() {
    let id = |n: usize| TaskId::of_request("shop", &n.to_string(), None).unwrap();
    let window = Millis(10_000);
    let mut tenths = [0; 10];
    for n in 0..10_000 {
        let offset = id(n).offset_in(window);
        assert!(offset < window && offset == id(n).offset_in(window), "{offset}");
        tenths[(offset.0 / 1_000) as usize] += 1;
    }
    // A thousand each, and 30 by chance.
    assert!(tenths.iter().all(|tenth| (850..1_150).contains(tenth)), "{tenths:?}");
    // Those of one lane are spread, too.
    let of_lane = (0..10_000).map(id).filter(|id| id.lane_of(10) == Lane(3));
    let places: BTreeSet<u64> = of_lane.map(|id| id.offset_in(Millis(10)).0).collect();
    assert_eq!(places.len(), 10);
    // The due times of tasks that there are do not move with a release.
    assert_eq!(id(1).offset_in(Millis::HOUR), Millis(1_840_239));
    assert_eq!([0, 1].map(|window| id(1).offset_in(Millis(window))), [Millis(0); 2]);
}

#[test]
fn beside_each_task_there_is_an_id_of_its_lane_that_no_task_has() {
    for key in [None, Some(&b"order-17"[..])] {
        let id = of("shop", "a", key);
        let beside = id.absent_beside();
        assert_ne!(beside, id);
        assert_eq!(TaskId::parse(beside.as_str()), Ok(beside.clone()));
        for lanes in [1, 6, 100] {
            assert_eq!(beside.lane_of(lanes), id.lane_of(lanes));
        }
        assert_eq!(id.absent_beside(), beside);
        assert_ne!(of("shop", "b", key).absent_beside(), beside);
    }
}

#[test]
fn a_follow_up_has_an_id_of_its_own_for_each_version_in_the_lane_of_its_task() {
    let of = |id: &TaskId, at: u64, offset: i64| id.follow_up((UnixMillis(at), Offset(offset)));
    for key in [None, Some(&b"o-17"[..])] {
        let task = TaskId::of_request("shop", "r", key).expect("sound");
        let follow_up = of(&task, 5, 7);
        assert_eq!(TaskId::parse(follow_up.as_str()), Ok(follow_up.clone()));
        assert_eq!(of(&task, 5, 7), follow_up, "the same again");
        let other = TaskId::of_request("shop", "s", key).expect("sound");
        let others = [of(&task, 5, 8), of(&task, 6, 7), of(&other, 5, 7), task.absent_beside()];
        assert!(!others.contains(&follow_up));
        for lanes in [1, 2, 6, 48, 1_000] {
            assert_eq!(follow_up.lane_of(lanes), task.lane_of(lanes));
            // Nor is that of a follow-up's anywhere else.
            assert_eq!(of(&follow_up, 1, 1).lane_of(lanes), task.lane_of(lanes));
        }
    }
}

#[test]
fn a_task_of_a_schedule_says_its_nominal_time_and_so_does_a_shard_of_its_run() {
    let version = (UnixMillis(1_764_000_000_000), Offset(42));
    for project in ["shop", "a.b-c_d", &"p".repeat(64)] {
        let schedule = TaskId::schedule(project, "every-day_2").unwrap();
        assert_eq!(schedule.nominal(), None);
        for at in [0, 1_801_353_600_000, u64::MAX] {
            let task = schedule.occurrence(UnixMillis(at));
            for id in [task.shard(version, 59), task.clone()] {
                assert_eq!(id.nominal(), Some(UnixMillis(at)), "{id}");
                assert_eq!(TaskId::parse(id.as_str()).unwrap().nominal(), id.nominal());
            }
            // What tells how it ended is no task of the schedule.
            assert_eq!(
                (task.follow_up(version).nominal(), task.absent_beside().nominal()),
                (None, None)
            );
        }
        let by_hand = schedule.triggered([7; 8]);
        assert_eq!((by_hand.nominal(), by_hand.shard(version, 0).nominal()), (None, None));
    }
    let task =
        TaskId::schedule("shop", "nightly").unwrap().occurrence(UnixMillis(1_801_353_600_000));
    let text = task.as_str();
    for other in [
        "9f2c".to_owned(),
        "9f2c@1801353600000".to_owned(),
        "schedule.shop.nightly@1801353600000".to_owned(),
        // Of another lane, of another schedule, with another text for the same number, of none.
        format!("k0000002a{}", &text[9..]),
        text.replace("nightly", "daily"),
        text.replace('@', "@0"),
        text.replace('@', "@manual-"),
        text.replace("@1801353600000", "@"),
        format!("{text}@{text}"),
        format!("x{text}"),
        format!("{text}.r1"),
        of("shop", text, None).to_string(),
    ] {
        let id = TaskId::parse(&other).unwrap();
        assert_eq!((id.nominal(), id.shard(version, 1).nominal()), (None, None), "{other}");
    }
}

#[test]
fn a_shard_says_its_run_its_version_and_which_it_is() {
    let version = (UnixMillis(1_764_000_000_000), Offset(42));
    for run in ["9f2c", "k0000002a-schedule.shop.nightly@1764000000000", "a.b.c"] {
        let run = TaskId::parse(run).unwrap();
        let shard = run.shard(version, 59);
        assert_eq!(shard.as_shard(), Some((run.clone(), version, 59)), "{run}");
        assert_eq!(TaskId::parse(shard.as_str()).as_ref(), Ok(&shard));
        assert_eq!(run.as_shard(), None, "{run}");
    }
    let lanes: BTreeSet<Lane> = (0..60)
        .map(|index| TaskId::parse("9f2c").unwrap().shard(version, index).lane_of(6))
        .collect();
    assert_eq!(lanes.len(), 6, "all lanes have some");
    for other in ["r.1", "r.9f2c.59", "r.9f2c.1-2", "r.9f2c.1.2", "r.9f2c.x-2.1", "r..1-2.1"] {
        assert_eq!(TaskId::parse(other).unwrap().as_shard(), None, "{other}");
    }
    let longest = "k0000002a-schedule.".len() + 64 + 1 + 64 + "@1764000000000".len();
    let longest = TaskId::parse(&"s".repeat(longest)).unwrap();
    let shard = longest.shard((UnixMillis(u64::MAX), Offset(i64::MAX)), 9_999);
    assert!(TaskId::parse(shard.as_str()).is_ok(), "every run has shards");
}
