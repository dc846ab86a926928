use std::collections::BTreeSet;
use std::ops::Range;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use proptest::prelude::*;

use super::*;

/// What the window is judged by: sets, and a log that can be read again.
struct Model {
    /// Every offset that holds a record, read or not yet read again.
    log: BTreeSet<i64>,
    /// Begun and not finished.
    pending: BTreeSet<i64>,
    /// Finished by a commit or given up; never to be begun again.
    done: BTreeSet<i64>,
    /// Finished since the last commit.
    finished: BTreeSet<i64>,
    upto: i64,
    committed: (Offset, String),
    committed_upto: i64,
}

struct Pair {
    window: Window,
    model: Model,
}

impl Pair {
    fn new(next: i64) -> Self {
        Self {
            window: Window::load(Offset(next), "").unwrap(),
            model: Model {
                log: BTreeSet::new(),
                pending: BTreeSet::new(),
                done: BTreeSet::new(),
                finished: BTreeSet::new(),
                upto: next,
                committed: (Offset(next), String::new()),
                committed_upto: next,
            },
        }
    }

    /// A record that was never read before; false without room.
    fn read(&mut self, gap: i64) -> bool {
        let at = self.model.upto + gap;
        if !self.window.room(Offset(at)) {
            return false;
        }
        let began = self.window.begin(Offset(at));
        assert_eq!(began, Began { state: OffsetState::New, lost: 0 });
        self.model.log.insert(at);
        self.model.pending.insert(at);
        self.model.upto = at + 1;
        true
    }

    /// Finishes the pending offset at a fraction of all.
    fn finish(&mut self, which: u16) {
        let place = self.model.pending.len() * usize::from(which) / (usize::from(u16::MAX) + 1);
        let Some(at) = self.model.pending.iter().nth(place).copied() else { return };
        self.window.finish(Offset(at));
        self.model.pending.remove(&at);
        self.model.finished.insert(at);
    }

    fn commit(&mut self) {
        let commit = self.window.commit();
        assert_eq!(commit.is_none(), self.model.finished.is_empty());
        if let Some((next, metadata)) = commit {
            assert!(metadata.len() <= METADATA_MAX && metadata.is_ascii());
            self.model.committed = (next, metadata);
            self.model.committed_upto = self.model.upto;
            self.model.done.append(&mut self.model.finished);
        }
    }

    /// Loses everything since the last commit, and reads the log again, but for the records deleted meanwhile.
    fn crash(&mut self, deleted: &[u16]) {
        let model = &mut self.model;
        let (next, metadata) = &model.committed;
        self.window = Window::load(*next, metadata).unwrap();
        assert_eq!(self.window.lowest(1).next(), None, "nothing is in memory yet");
        for which in deleted {
            let place = model.log.len() * usize::from(*which) / (usize::from(u16::MAX) + 1);
            if let Some(at) = model.log.iter().nth(place).copied() {
                model.log.remove(&at);
            }
        }
        model.finished.clear();
        let was_pending: BTreeSet<i64> = (self.window.pending_set()).into_iter().collect();
        model.pending.clear();
        let mut lost = 0;
        let mut unread = i64::MAX;
        for at in model.log.range(next.0..).copied() {
            if !self.window.room(Offset(at)) {
                assert!(at >= model.committed_upto, "what was read before has room");
                unread = at;
                break;
            }
            let began = self.window.begin(Offset(at));
            lost += began.lost as usize;
            let want = if model.done.contains(&at) {
                OffsetState::Done
            } else {
                model.pending.insert(at);
                if at < model.committed_upto { OffsetState::Known } else { OffsetState::New }
            };
            assert_eq!(began.state, want, "{at}");
        }
        // As if the rest had not been written yet.
        model.log.split_off(&unread);
        model.upto = unread.min(model.upto);
        lost += self.window.pass(Offset(model.upto)) as usize;
        let gone: Vec<i64> = was_pending.difference(&model.log).copied().collect();
        assert_eq!(lost, gone.len());
        model.done.extend(gone.iter());
        model.finished.extend(gone);
        model.upto = self.window.upto().0.max(model.committed_upto);
    }

    fn check(&self) {
        let (window, model) = (&self.window, &self.model);
        assert_eq!(window.pending(), model.pending.len());
        assert_eq!(window.upto().0, model.upto);
        assert_eq!(window.low().0, model.pending.first().copied().unwrap_or(model.upto));
        let lowest: Vec<i64> = window.lowest(5).map(|at| at.0).collect();
        assert_eq!(lowest, model.pending.iter().take(5).copied().collect::<Vec<_>>());
        assert!(exact_bits(window) <= window.sealed_bits + window.open_bits);
        assert_eq!(
            window.hollow,
            window.blocks.iter().filter(|block| block.is_empty()).count(),
            "empty blocks are counted"
        );
    }
}

impl Window {
    fn pending_set(&self) -> Vec<i64> {
        self.blocks.iter().flat_map(Block::offsets).collect()
    }
}

/// What the blocks take in the encoding, to the bit.
fn exact_bits(window: &Window) -> usize {
    let (mut last, mut sum) = (None, 0);
    for block in window.blocks.iter().filter(|block| !block.is_empty()) {
        let (from, to) = (block.start().max(window.low), block.end().min(window.upto));
        sum += code::gap_bits(last, block.index) + 4 + code::shortest(block, from, to).1;
        last = Some(block.index);
    }
    sum
}

#[derive(Clone, Debug)]
enum Op {
    Read { count: u16, gap: i64 },
    Finish { which: u16, count: u16 },
    Sweep { every: u16 },
    Commit,
    Crash { deleted: Vec<u16> },
}

fn op() -> impl Strategy<Value = Op> {
    let gap = prop_oneof![
        10 => Just(0_i64),
        4 => 0..4_i64,
        2 => 0..2_000_i64,
        1 => Just(30_003_i64),
        1 => Just(1_000_000_000_i64),
        1 => Just(1_i64 << 44),
    ];
    prop_oneof![
        6 => (1..700_u16, gap).prop_map(|(count, gap)| Op::Read { count, gap }),
        4 => (any::<u16>(), 1..60_u16).prop_map(|(which, count)| Op::Finish { which, count }),
        2 => (2..9_u16).prop_map(|every| Op::Sweep { every }),
        3 => Just(Op::Commit),
        1 => prop::collection::vec(any::<u16>(), 0..4).prop_map(|deleted| Op::Crash { deleted }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    /// Low watermark, commits, restarts and bounds agree with sets, whatever happens in whatever order; at the end
    /// everything is done and the commit says nothing but the watermark.
    #[test]
    fn the_window_agrees_with_a_model_that_keeps_sets(
        next in prop_oneof![Just(0_i64), 0..2_000_i64, Just(1_i64 << 40)],
        ops in prop::collection::vec(op(), 1..60),
    ) {
        let mut pair = Pair::new(next);
        for op in ops {
            match op {
                // The first record has the gap, and now and then another one.
                Op::Read { count, gap } => {
                    for i in 0..count {
                        if !pair.read(if i % 64 == 0 || gap < 4 { gap } else { 0 }) {
                            break;
                        }
                    }
                }
                Op::Finish { which, count } => {
                    (0..count).for_each(|i| pair.finish(which.wrapping_add(i.wrapping_mul(7_919))));
                }
                Op::Sweep { every } => {
                    let all: Vec<i64> = pair.model.pending.iter().copied().collect();
                    for at in all.into_iter().step_by(usize::from(every)) {
                        pair.window.finish(Offset(at));
                        pair.model.pending.remove(&at);
                        pair.model.finished.insert(at);
                    }
                }
                Op::Commit => pair.commit(),
                Op::Crash { deleted } => pair.crash(&deleted),
            }
            pair.check();
        }
        while !pair.model.pending.is_empty() {
            pair.finish(0);
        }
        pair.check();
        prop_assert_eq!(pair.window.low(), pair.window.upto());
        if let Some(commit) = pair.window.commit() {
            prop_assert_eq!(commit, (pair.window.upto(), String::new()));
        }
    }

    /// Taking any offset out of any set never makes the encoding longer, to the bit.
    #[test]
    fn finishing_never_makes_the_encoding_longer(
        offsets in prop::collection::btree_set(
            prop_oneof![0..600_i64, 0..3_000_i64, 0..200_000_i64, 0..(1_i64 << 50)], 1..200),
        order in prop::collection::vec(any::<u16>(), 200),
    ) {
        let mut window = Window::load(Offset(0), "").unwrap();
        offsets.iter().for_each(|at| { window.begin(Offset(*at)); });
        let mut left: Vec<i64> = offsets.into_iter().collect();
        let mut last = exact_bits(&window);
        for which in order {
            if left.is_empty() {
                break;
            }
            window.finish(Offset(left.remove(usize::from(which) % left.len())));
            let now = exact_bits(&window);
            prop_assert!(now <= last, "{now} after {last}");
            last = now;
        }
    }

    /// A window that was filled until there was no room, by any pattern, fits into a commit with any part of it
    /// finished, and holds more than 23,000 offsets.
    #[test]
    fn a_full_window_fits_whatever_part_of_it_finishes(
        gaps in prop::collection::vec(prop_oneof![Just(0_i64), 0..3_i64, 0..40_i64], 1..50),
        finish in prop::collection::vec(any::<bool>(), 1..97),
    ) {
        let mut pair = Pair::new(77);
        let mut gap = gaps.iter().cycle();
        while pair.read(*gap.next().unwrap()) {}
        pair.check();
        prop_assert!(pair.window.upto().0 - pair.window.low().0 > 23_000);
        for (at, finish) in pair.window.pending_set().into_iter().zip(finish.iter().cycle()) {
            if *finish {
                pair.window.finish(Offset(at));
            }
        }
        if let Some((next, metadata)) = pair.window.commit() {
            prop_assert!(metadata.len() <= METADATA_MAX);
            let again = Window::load(next, &metadata).unwrap();
            prop_assert_eq!(again.pending_set(), pair.window.pending_set());
        }
    }

    /// Whatever stands in the metadata, loading answers, and what it takes it would also write.
    #[test]
    fn no_metadata_does_harm(
        next in prop_oneof![any::<i64>(), 0..5_000_i64],
        text in ".{0,40}",
        mut bytes in prop::collection::vec(any::<u8>(), 0..80),
        ours in any::<bool>(),
    ) {
        let _ = Window::load(Offset(next), &text);
        if ours {
            bytes.splice(0..0, [1, 0xff, 0x0f, 1 + (bytes.len() as u8 & 3)]);
        }
        if let Ok(window) = Window::load(Offset(next), &STANDARD_NO_PAD.encode(bytes)) {
            let metadata = code::encode(window.low, window.upto, &window.blocks);
            let again = Window::load(window.low(), &metadata).unwrap();
            prop_assert_eq!(again.pending_set(), window.pending_set());
        }
    }

    /// A damaged character is an error or another set, never a panic; a cut is always an error.
    #[test]
    fn damage_does_no_harm(
        offsets in prop::collection::btree_set(100..9_000_i64, 1..300),
        place in any::<prop::sample::Index>(),
        other in any::<u8>(),
    ) {
        let mut window = Window::load(Offset(100), "").unwrap();
        offsets.iter().for_each(|at| { window.begin(Offset(*at)); });
        window.begin(Offset(10_000));
        window.finish(Offset(10_000));
        let (next, metadata) = window.commit().unwrap();
        let place = place.index(metadata.len());
        let mut bytes = metadata.clone().into_bytes();
        bytes[place] = other & 0x7f;
        let _ = Window::load(next, &String::from_utf8(bytes).unwrap());
        if place > 0 {
            prop_assert!(Window::load(next, &metadata[..place]).is_err());
        }
    }
}

fn full(pending: impl Fn(i64) -> bool) -> Range<i64> {
    let mut window = Window::load(Offset(0), "").unwrap();
    let mut at = 0;
    while window.room(Offset(at)) {
        window.begin(Offset(at));
        if !pending(at) {
            window.finish(Offset(at));
        }
        at += 1;
        if at % 1_000 == 0 {
            window.commit();
        }
    }
    window.low().0..at
}

#[test]
fn the_more_is_done_the_more_offsets_a_window_spans() {
    // A plain hash, so that the pattern has no period that a code could use.
    let one_in = |n: u64| {
        move |at: i64| (at as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40 & 0xffff < 65_536 / n
    };
    #[rustfmt::skip]
    let cases = [
        // why                                    pending: one in  want
        ("nothing finishes",                      1,               23_500..24_600),
        ("half: a bitmap is the best there is",   2,               23_500..24_600),
        ("near its entropy of 0.47 bits",         10,              45_000..52_000),
        ("near its entropy of 0.08 bits",         100,             225_000..300_000),
        ("blocks of one or two cost a header",    1_000,           900_000..2_000_000),
    ];
    for (why, n, want) in cases {
        let span = full(one_in(n));
        let span = span.end - span.start;
        assert!(want.contains(&span), "{why}: {span}");
    }
}

/// The bytes stand in Kafka between two releases. A second reader, written from the module's text alone, read the
/// same from them.
#[test]
fn a_commit_is_what_it_was() {
    #[rustfmt::skip]
    let cases: [(&str, &[i64], i64, &str); 6] = [
        // why                         pending                               upto           metadata
        ("nothing pending",            &[],                                  7,             ""),
        ("one",                        &[7],                                 8,             "AQEBhA"),
        ("one and many done",          &[7],                                 500,           "Ae0DAbwA7A"),
        ("bitmaps of two blocks",      &[508, 509, 511, 512, 514],           516,           "AQgChsKA"),
        ("far apart",                  &[7, 1_000_000_007],                  1_000_000_008, "AYGU69wDArwA+AAADuayiOA"),
        ("a Rice code of several",     &[1_024, 1_100, 1_180, 1_300, 1_400], 1_536,         "AYAEAbQEtPd2Mjg"),
    ];
    for (why, pending, upto, want) in cases {
        let mut window = Window::load(Offset(0), "").unwrap();
        pending.iter().for_each(|at| {
            window.begin(Offset(*at));
        });
        if window.upto().0 < upto {
            window.begin(Offset(upto - 1));
            window.finish(Offset(upto - 1));
        }
        let metadata = code::encode(window.low, window.upto, &window.blocks);
        assert_eq!(metadata, want, "{why}");
    }
}

#[test]
fn what_is_not_ours_is_an_error() {
    let long = "A".repeat(METADATA_MAX + 1);
    #[rustfmt::skip]
    let cases = [
        // why                        next  metadata    want
        ("no such offset",            -1,   "",         WindowError::Negative(-1)),
        ("a note of a person",        5,    "see wiki", WindowError::NotOurs { chars: 8 }),
        ("longer than a commit",      5,    &long,      WindowError::NotOurs { chars: METADATA_MAX + 1 }),
        ("a later release",           5,    "Ag",       WindowError::Version(2)),
    ];
    for (why, next, metadata, want) in cases {
        assert_eq!(Window::load(Offset(next), metadata).unwrap_err(), want, "{why}");
    }
    let bytes = |bytes: &[u8]| Window::load(Offset(5), &STANDARD_NO_PAD.encode(bytes)).unwrap_err();
    #[rustfmt::skip]
    let damaged: [(&str, &[u8]); 8] = [
        ("no upto",                   &[1]),
        ("upto beyond all offsets",   &[1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f, 0]),
        ("a block is missing",        &[1, 9, 1]),
        ("a mode that is none",       &[1, 9, 1, 0b1111_1000]),
        ("a block without pending",   &[1, 4, 1, 0b1000_0000, 0]),
        ("a block behind upto",       &[1, 4, 1, 0b0100_0001, 0xff]),
        ("a distance beyond upto",    &[1, 4, 1, 0b1100_1100, 0b0000_0111, 0b0000_0010, 0b1000_0000]),
        ("bytes left over",           &[1, 4, 0, 0]),
    ];
    for (why, damage) in damaged {
        assert!(matches!(bytes(damage), WindowError::Damaged(_)), "{why}");
    }
    let last = Window::load(Offset(i64::MAX - 100), &STANDARD_NO_PAD.encode([1, 50, 0]));
    assert!(matches!(last, Err(WindowError::Damaged(_))), "no room to count");
}

#[test]
fn what_the_log_no_longer_shows_is_given_up_and_counted() {
    let mut window = Window::load(Offset(10), "").unwrap();
    for at in [10, 11, 12, 600, 5_000] {
        window.begin(Offset(at));
    }
    window.finish(Offset(12));
    let (next, metadata) = window.commit().unwrap();
    let mut window = Window::load(next, &metadata).unwrap();
    assert_eq!(window.begin(Offset(11)), Began { state: OffsetState::Known, lost: 1 });
    assert_eq!(window.commit().unwrap().0, Offset(11), "what is given up is committed");
    assert_eq!(window.begin(Offset(12)), Began { state: OffsetState::Done, lost: 0 });
    assert_eq!(window.pass(Offset(4_999)), 1, "600");
    assert_eq!(window.pass(Offset(9_000)), 1, "5000");
    assert_eq!(window.pass(Offset(9_000)), 0);
    window.finish(Offset(11));
    assert_eq!((window.low(), window.pending()), (Offset(5_001), 0));
    assert_eq!(window.pass(Offset(9_000)), 0);
    assert_eq!(window.low(), Offset(9_000), "nothing pending: the watermark follows the reader");
}

#[test]
fn what_was_dropped_after_a_rewind_begins_as_known() {
    let mut window = Window::load(Offset(0), "").unwrap();
    (0..10).for_each(|at| {
        window.begin(Offset(at));
    });
    window.finish(Offset(7));
    window.rewind(Offset(20));
    assert_eq!(window.lowest(20).count(), 9, "nothing was read that far, so nothing was dropped");
    window.rewind(Offset(5));
    assert_eq!(window.lowest(20).count(), 5);
    window.rewind(Offset(8));
    assert_eq!(window.lowest(20).count(), 5, "5 is still to be read again");
    for (at, state) in [
        (5, OffsetState::Known),
        (6, OffsetState::Known),
        (7, OffsetState::Done),
        (8, OffsetState::Known),
    ] {
        assert_eq!(window.begin(Offset(at)), Began { state, lost: 0 });
    }
    assert_eq!(window.begin(Offset(10)), Began { state: OffsetState::New, lost: 1 });
}

#[test]
fn a_huge_gap_takes_no_memory_and_one_old_record_does_not_keep_the_rest() {
    let mut window = Window::load(Offset(0), "").unwrap();
    window.begin(Offset(0));
    for i in 1..20_000 {
        let at = Offset(i * 1_000_003);
        assert!(window.room(at));
        window.begin(at);
        window.finish(at);
        if i % 500 == 0 {
            window.commit();
        }
    }
    assert_eq!(window.low(), Offset(0));
    assert!(window.size() < 64 * 1024, "{}", window.size());
}

#[test]
fn what_finished_makes_room_with_the_next_commit() {
    let mut window = Window::load(Offset(0), "").unwrap();
    let mut at = 0;
    while window.room(Offset(at)) {
        window.begin(Offset(at));
        at += 1;
    }
    (1..at).filter(|at| at % 10 != 0).for_each(|at| window.finish(Offset(at)));
    window.commit().unwrap();
    assert!(window.room(Offset(at + 20_000)), "nine of ten are done");
    (0..at).step_by(10).for_each(|at| window.finish(Offset(at)));
    assert!(window.room(Offset(at)), "nothing is pending");
}

#[test]
fn a_full_window_whose_records_were_all_deleted_does_not_bar_the_next_one() {
    let mut window = Window::load(Offset(0), "").unwrap();
    let mut at = 0;
    while window.room(Offset(at)) {
        window.begin(Offset(at));
        at += 1;
    }
    window.finish(Offset(0));
    let (next, metadata) = window.commit().unwrap();
    let mut window = Window::load(next, &metadata).unwrap();
    assert!(window.room(Offset(at + 9)), "all before it are gone");
    window.begin(Offset(1));
    assert!(window.room(Offset(at + 9)), "all before it but one are gone");
    (2..at).for_each(|at| {
        window.begin(Offset(at));
    });
    assert!(!window.room(Offset(at + 9)), "all before it are there");
    window.rewind(Offset(2));
    let began = window.begin(Offset(at + 9));
    assert_eq!(began, Began { state: OffsetState::New, lost: at as u32 - 2 });
    assert_eq!(window.pending(), 2);
}

#[test]
fn a_log_that_was_cut_loses_what_was_pending_there_and_keeps_what_is_done_above() {
    // Read to 100; done but for these.
    let mut window = Window::load(Offset(10), "").unwrap();
    for at in 10..100 {
        window.begin(Offset(at));
    }
    let pending = [10, 20, 30, 90];
    (10..100).filter(|at| !pending.contains(at)).for_each(|at| window.finish(Offset(at)));
    let (next, metadata) = window.commit_anyway();
    #[rustfmt::skip]
    let table: [(i64, i64, u64, &[i64], &str); 5] = [
        (10,   10, 0, &[10, 20, 30, 90], "nothing is gone"),
        (15,   20, 1, &[20, 30, 90],     "what is done next is not read again"),
        (21,   30, 2, &[30, 90],         "two are gone"),
        (95,  100, 4, &[],               "nothing is left"),
        (120, 120, 24, &[],              "more is gone than was read"),
    ];
    for (start, low, lost, left, why) in table {
        let cut = Window::cut(next, &metadata, Offset(start)).unwrap();
        assert_eq!((cut.0, cut.2), (Offset(low), lost), "{why}");
        let mut window = Window::load(cut.0, &cut.1).unwrap();
        let again = (low..100).filter(|at| window.begin(Offset(*at)).state != OffsetState::Done);
        assert_eq!(again.collect::<Vec<_>>(), left, "{why}");
    }
}
