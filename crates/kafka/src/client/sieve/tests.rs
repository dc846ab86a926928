use super::*;
use proptest::prelude::*;

const SMALL: Bounds =
    Bounds { record: 2_000, batch: 10_000, records: 40, wasted: usize::MAX, kept: 300 };

#[derive(Clone, Debug, PartialEq)]
struct Plain {
    key: Option<Vec<u8>>,
    value: Option<Vec<u8>>,
    headers: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

fn encode(records: &[Plain]) -> Vec<u8> {
    let mut out = Vec::new();
    for (number, record) in records.iter().enumerate() {
        let mut body = vec![0];
        put_number(&mut body, 1_000 + number as i64);
        put_number(&mut body, number as i64);
        put_nullable(&mut body, record.key.as_deref());
        put_nullable(&mut body, record.value.as_deref());
        put_number(&mut body, record.headers.len() as i64);
        for (name, value) in &record.headers {
            put_text(&mut body, name);
            put_nullable(&mut body, value.as_deref());
        }
        put_number(&mut out, body.len() as i64);
        out.extend_from_slice(&body);
    }
    out
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn number(&mut self) -> i64 {
        take_number(&mut self.0).expect("a number")
    }

    fn text(&mut self) -> Option<Vec<u8>> {
        let size = usize::try_from(self.number()).ok()?;
        let (text, rest) = self.0.split_at(size);
        self.0 = rest;
        Some(text.to_vec())
    }
}

/// Records with their times and offsets, and their marks.
fn decode(bytes: &[u8]) -> Vec<(i64, i64, Plain, Option<Cut>)> {
    let (mut all, mut rest) = (Vec::new(), Reader(bytes));
    while !rest.0.is_empty() {
        let size = rest.number() as usize;
        let mut body = Reader(&rest.0[1..size]);
        rest.0 = &rest.0[size..];
        let (time, offset) = (body.number(), body.number());
        let (key, value) = (body.text(), body.text());
        let mut headers: Vec<(Vec<u8>, Option<Vec<u8>>)> =
            (0..body.number()).map(|_| (body.text().expect("a name"), body.text())).collect();
        assert!(body.0.is_empty());
        let cut = headers.last().and_then(|(name, value)| read_mark(name, value.as_deref()));
        if cut.is_some() {
            headers.pop();
        }
        all.push((time, offset, Plain { key, value, headers }, cut));
    }
    all
}

fn sift(
    bounds: Bounds,
    room: usize,
    bytes: &[u8],
    piece: usize,
    count: usize,
) -> Result<(Vec<u8>, usize), Stop> {
    sift_as(bounds, room, bytes, piece, BatchShape { count, last: count as i64 - 1 })
}

fn sift_as(
    bounds: Bounds,
    room: usize,
    bytes: &[u8],
    piece: usize,
    said: BatchShape,
) -> Result<(Vec<u8>, usize), Stop> {
    let mut out = Vec::new();
    let mut sieve = Sieve::new(bounds, room, &mut out, said);
    let mut well = true;
    for piece in bytes.chunks(piece) {
        match sieve.push(piece) {
            Ok(true) => {}
            Ok(false) => break,
            Err(Stop::Full) => return Err(Stop::Full),
            Err(Stop::Broken) => {
                well = false;
                break;
            }
        }
    }
    let cost = sieve.end(well);
    Ok((out, cost))
}

fn of(value: usize) -> Plain {
    let headers = vec![(b"x-delay".to_vec(), Some(b"1s".to_vec())), (b"n".to_vec(), None)];
    Plain { key: Some(b"k".to_vec()), value: Some(vec![7; value]), headers }
}

#[test]
fn a_record_that_is_too_large_keeps_its_key_and_headers_and_its_neighbours_are_whole() {
    let records = [of(10), of(5_000_000), of(20)];
    let (out, _) = sift(SMALL, usize::MAX, &encode(&records), 997, 3).expect("records");
    let out = decode(&out);
    assert_eq!(out.len(), 3);
    assert_eq!((&out[0].2, &out[2].2), (&records[0], &records[2]));
    let (time, offset, plain, cut) = &out[1];
    assert_eq!((*time, *offset), (1_001, 1));
    assert_eq!(plain, &Plain { value: None, ..records[1].clone() });
    let cut = cut.expect("a mark");
    assert!(cut.bytes > 5_000_000 && cut.by == CutBy::Record && cut.others == 0, "{cut:?}");
    assert!(!cut.without_key && !cut.without_headers, "{cut:?}");
}

#[test]
fn a_key_and_headers_without_end_are_left_out_and_said_to_be() {
    let mut record = of(10);
    record.key = Some(vec![1; 100_000]);
    record.headers.extend((0..10_000).map(|_| (b"h".to_vec(), Some(b"v".to_vec()))));
    let (out, _) = sift(SMALL, usize::MAX, &encode(&[record]), 64, 1).expect("records");
    assert!(out.len() < 1_000, "{}", out.len());
    let (_, _, plain, cut) = decode(&out).remove(0);
    let cut = cut.expect("a mark");
    assert!(cut.without_key && cut.without_headers && plain.key.is_none(), "{cut:?}");
    assert_eq!(plain.headers[0].0, b"x-delay");
}

#[test]
fn a_batch_of_many_is_bounded_and_each_is_told_of() {
    let records: Vec<Plain> = (0..30).map(|_| of(1_500)).collect();
    let (out, cost) = sift(SMALL, usize::MAX, &encode(&records), 333, 30).expect("records");
    assert!(out.len() < 15_000 && cost < 25_000, "{} bytes, {cost}", out.len());
    let out = decode(&out);
    assert_eq!(out.len(), 30);
    let whole = out.iter().filter(|(.., cut)| cut.is_none()).count();
    assert_eq!(whole, 6, "those for which there is room");
    assert!(out[6..].iter().all(|(.., cut)| cut.is_some_and(|cut| cut.by == CutBy::Batch)));
    assert_eq!(out[29].1, 29, "the offset of the last");
}

#[test]
fn records_without_number_are_told_of_by_the_last() {
    let records: Vec<Plain> = (0..5_000).map(|_| of(0)).collect();
    let (out, _) = sift(SMALL, usize::MAX, &encode(&records), 10_000, 5_000).expect("records");
    let out = decode(&out);
    assert_eq!(out.len(), 41);
    let (_, offset, _, cut) = &out[40];
    assert_eq!((*offset, cut.expect("a mark").others), (4_999, 4_959));
}

#[test]
fn inflating_has_an_end() {
    let bounds = Bounds { wasted: 90_000, ..SMALL };
    // In the middle of a record, between records, and among those that are beyond number.
    for (records, told, others) in [
        (vec![of(10), of(10_000_000), of(10), of(10)], 2, 2),
        ((0..100).map(|_| of(10_000)).collect(), 11, 89),
        ((0..100_000).map(|_| of(0)).collect(), 41, 99_959),
    ] {
        let count = records.len();
        let (out, _) = sift(bounds, usize::MAX, &encode(&records), 500, count).expect("records");
        let out = decode(&out);
        let cut = out.last().and_then(|last| last.3).expect("a mark");
        assert!(out.len().abs_diff(told) <= 1, "{} records", out.len());
        assert_eq!(out.len() + cut.others as usize, count);
        assert!((cut.others as usize).abs_diff(others) <= 1, "{cut:?}");
    }
}

#[test]
fn what_has_no_room_stops() {
    let bytes = encode(&[of(900), of(900)]);
    assert_eq!(sift(SMALL, 1_000, &bytes, 100, 2).expect_err("no room"), Stop::Full);
    assert!(sift(SMALL, 100_000, &bytes, 100, 2).is_ok());
}

/// Offsets, whether each passes, and what the mark of the last says.
fn seen(bytes: &[u8], count: usize) -> (Vec<(i64, bool)>, Option<Cut>) {
    let (out, _) = sift(SMALL, usize::MAX, bytes, 64, count).expect("room");
    let out = decode(&out);
    let all = out.iter().map(|(_, offset, _, cut)| (*offset, cut.is_none())).collect();
    (all, out.last().and_then(|last| last.3))
}

#[test]
fn what_cannot_be_read_is_told_of_by_one_mark_and_what_stood_before_it_passes() {
    let bytes = encode(&[of(900), of(900), of(900), of(900)]);
    let (all, cut) = seen(&bytes[..1_200], 4);
    assert_eq!(all, [(0, true), (3, false)], "in the middle of the second");
    let cut = cut.expect("a mark");
    assert_eq!((cut.by, cut.others), (CutBy::Unreadable, 2));
    let large = encode(&[of(5_000)]);
    let (all, cut) = seen(&large[..4_000], 1);
    assert_eq!((all, cut.map(|cut| cut.by)), (vec![(0, false)], Some(CutBy::Unreadable)));
    // All are there, and something behind them.
    let mut bytes = encode(&[of(9), of(9)]);
    bytes.extend_from_slice(&[1, 2, 3]);
    assert_eq!(seen(&bytes, 2), (vec![(0, true), (1, true)], None));
    // More than Kafka has given offsets to.
    assert_eq!(seen(&encode(&[of(9), of(9), of(9)]), 2), (vec![(0, true), (1, true)], None));
    let (all, cut) = seen(&[], 3);
    assert_eq!((all, cut.map(|cut| cut.others)), (vec![(2, false)], Some(2)), "nothing comes");
}

#[test]
fn a_record_that_is_too_large_has_the_offset_that_kafka_gave_it_too() {
    let mut body = vec![0];
    for number in [1_000, 1 << 31, -1] {
        put_number(&mut body, number);
    }
    put_text(&mut body, &[7; 5_000]);
    put_number(&mut body, 0);
    let mut bytes = encode(&[of(9)]);
    put_text(&mut bytes, &body);
    assert_eq!(seen(&bytes, 2).0, [(0, true), (1, false)]);
}

/// Attributes, time, offset, the length of the key, the key, the length of the value; a value of two bytes, no headers.
fn raw(offset: i64, key_len: i64, value_len: i64) -> Vec<u8> {
    let mut body = vec![0];
    for number in [1_000, offset, key_len] {
        put_number(&mut body, number);
    }
    if key_len > 0 {
        body.push(b'k');
    }
    put_number(&mut body, value_len);
    if value_len > 0 {
        body.extend_from_slice(b"vv");
    }
    put_number(&mut body, 0);
    body
}

/// The same with as many headers as it says, of which one is there: a name of one byte, and a value of two if it has one.
fn with_header(count: i64, name_len: i64, value_len: i64) -> Vec<u8> {
    let mut body = raw(1, 1, 2);
    body.pop();
    put_number(&mut body, count);
    put_number(&mut body, name_len);
    body.push(b'n');
    put_number(&mut body, value_len);
    if value_len > 0 {
        body.extend_from_slice(b"vv");
    }
    body
}

#[test]
fn a_record_has_the_offset_that_kafka_gave_it_and_a_length_below_nothing_is_null() {
    #[rustfmt::skip]
    let cases = [
        // why                    record               passes  is as it was
        ("as it should be",       raw(1, 1, 2),        true,   true),
        ("null",                  raw(1, -1, -1),      true,   true),
        ("an offset ahead",       raw(1_000, 1, 2),    true,   false),
        ("far ahead",             raw(1 << 31, 1, 2),  true,   false),
        ("its neighbour's",       raw(0, 1, 2),        true,   false),
        ("before its batch",      raw(-7, 1, 2),       true,   false),
        ("a key below nothing",   raw(1, -2, 2),       true,   false),
        ("so is its value",       raw(1, -2, -9),      true,   false),
        ("a key beyond its end",  raw(1, 90, 2),       false,  false),
        ("a value beyond its end", raw(1, 1, 90),      false,  false),
        ("a header",              with_header(1, 1, 2),    true,   true),
        ("a header of null",      with_header(1, 1, -1),   true,   true),
        ("a header below nothing", with_header(1, 1, -2),  true,   false),
        ("its name is, too",      with_header(1, -1, 2),   false,  false),
        ("headers below nothing", with_header(-1, 1, 2),   false,  false),
        ("more headers than are", with_header(3, 1, 2),    false,  false),
        ("nothing",               vec![0],             false,  false),
        ("numbers without end",   vec![0xff; 30],      false,  false),
    ];
    for (why, record, passes, same) in cases {
        let good = |number| raw(number, 1, 2);
        let mut bytes = Vec::new();
        for body in [good(0), record, good(2)] {
            put_text(&mut bytes, &body);
        }
        let said = BatchShape { count: 3, last: 2 };
        assert_eq!(is_sound(&bytes, said), same, "{why}");
        let (out, _) = sift(SMALL, usize::MAX, &bytes, 7, 3).expect("room");
        assert_eq!(out == bytes, same, "{why}");
        assert!(is_sound(&out, said), "{why}: librdkafka can read it");
        let (all, _) = seen(&bytes, 3);
        assert_eq!(all, [(0, true), (1, passes), (2, true)], "{why}");
    }
    assert!(!is_sound(&encode(&[of(9)]), BatchShape { count: 2, last: 1 }), "one is not there");
    // Compaction leaves some out.
    let mut bytes = Vec::new();
    put_text(&mut bytes, &raw(4, 1, 2));
    assert!(is_sound(&bytes, BatchShape { count: 1, last: 9 }));
    assert!(!is_sound(&bytes, BatchShape { count: 1, last: 3 }), "beyond its batch");
}

#[test]
fn nobody_else_can_make_a_mark() {
    let forged = [0; MARK_BYTES];
    assert_eq!(read_mark(MARK, Some(&forged)), None);
    assert_eq!(read_mark(MARK, None), None);
    let cut =
        Cut { bytes: 7, by: CutBy::Batch, without_key: true, without_headers: false, others: 9 };
    assert_eq!(read_mark(MARK, Some(&mark(&cut))), Some(cut));
    assert_eq!(read_mark(b"other", Some(&mark(&cut))), None);
}

/// Whether librdkafka can read all of it.
fn can_be_read(out: &[u8]) -> bool {
    let (mut rest, mut count) = (out, 0);
    while take_number(&mut rest).and_then(|size| take(&mut rest, size)).is_some() {
        count += 1;
    }
    is_sound(out, BatchShape { count, last: i64::MAX })
}

#[test]
fn a_record_that_ends_before_it_is_whole_is_told_of_however_much_was_wasted() {
    let bytes = encode(&[of(3_000), of(1_000)]);
    let bounds = Bounds { wasted: 2_000, ..SMALL };
    let (out, _) = sift(bounds, usize::MAX, &bytes[..3_500], 3_400, 2).expect("room");
    assert!(can_be_read(&out));
    let last = decode(&out).pop().and_then(|(.., cut)| cut).expect("a mark");
    assert_eq!((last.by, last.others), (CutBy::Unreadable, 0));
}

fn plain() -> impl Strategy<Value = Plain> {
    let bytes = |most| proptest::option::of(proptest::collection::vec(any::<u8>(), 0..most));
    let header = (proptest::collection::vec(any::<u8>(), 0..9), bytes(400));
    (bytes(500), bytes(4_000), proptest::collection::vec(header, 0..5))
        .prop_map(|(key, value, headers)| Plain { key, value, headers })
}

proptest! {
    #[test]
    fn small_records_pass_whole_and_each_record_is_told_of(
        records in proptest::collection::vec(plain(), 1..40), piece in 1_usize..5_000,
    ) {
        let (out, cost) = sift(SMALL, usize::MAX, &encode(&records), piece, records.len()).expect("records");
        let out = decode(&out);
        prop_assert_eq!(out.len(), records.len());
        prop_assert!(cost <= SMALL.batch + records.len() * (BESIDE + 200 + SMALL.kept));
        for (number, ((time, offset, got, cut), sent)) in out.iter().zip(&records).enumerate() {
            prop_assert_eq!((*time, *offset), (1_000 + number as i64, number as i64));
            match cut {
                None => prop_assert_eq!(got, sent),
                Some(cut) => {
                    prop_assert!(got.value.is_none());
                    prop_assert_eq!(got.key.is_none(), cut.without_key || sent.key.is_none());
                    prop_assert!(cut.without_headers || got.headers == sent.headers);
                }
            }
        }
    }

    #[test]
    fn bytes_from_outside_never_panic_and_stay_bounded(
        bytes in proptest::collection::vec(any::<u8>(), 0..20_000), piece in 1_usize..5_000, count in 0_usize..100,
    ) {
        if let Ok((out, _)) = sift(SMALL, usize::MAX, &bytes, piece, count) {
            prop_assert!(out.len() <= SMALL.batch + 41 * (200 + 2 * SMALL.kept));
            prop_assert!(can_be_read(&out));
        }
    }

    #[test]
    fn records_that_were_cut_or_changed_never_panic_and_can_be_read(
        records in proptest::collection::vec(plain(), 1..40),
        cut in proptest::option::of(any::<proptest::sample::Index>()),
        changed in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 0..4),
        piece in 1_usize..5_000, count in 0_usize..45, gaps in 0_i64..50, wasted in 0_usize..20_000,
    ) {
        let mut bytes = encode(&records);
        for (at, byte) in changed {
            *at.get_mut(&mut bytes) = byte;
        }
        bytes.truncate(cut.map_or(usize::MAX, |cut| cut.index(bytes.len())));
        let said = BatchShape { count, last: count as i64 - 1 + gaps };
        for wasted in [wasted, usize::MAX] {
            let bounds = Bounds { wasted, ..SMALL };
            let (out, _) = sift_as(bounds, usize::MAX, &bytes, piece, said).expect("room");
            prop_assert!(out.len() <= SMALL.batch + 41 * (200 + 2 * SMALL.kept));
            prop_assert!(can_be_read(&out));
        }
    }
}
