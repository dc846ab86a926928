use super::*;
use proptest::prelude::*;

const SMALL: Bounds =
    Bounds { record: 2_000, batch: 10_000, records: 40, inflated: usize::MAX, kept: 300 };

#[derive(Clone, Debug, PartialEq)]
struct Plain {
    key: Option<Vec<u8>>,
    value: Option<Vec<u8>>,
    headers: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

fn optional(out: &mut Vec<u8>, text: Option<&[u8]>) {
    match text {
        Some(text) => put_text(out, text),
        None => put_number(out, -1),
    }
}

fn encode(records: &[Plain]) -> Vec<u8> {
    let mut out = Vec::new();
    for (number, record) in records.iter().enumerate() {
        let mut body = vec![0];
        put_number(&mut body, 1_000 + number as i64);
        put_number(&mut body, number as i64);
        optional(&mut body, record.key.as_deref());
        optional(&mut body, record.value.as_deref());
        put_number(&mut body, record.headers.len() as i64);
        for (name, value) in &record.headers {
            put_text(&mut body, name);
            optional(&mut body, value.as_deref());
        }
        put_number(&mut out, body.len() as i64);
        out.extend_from_slice(&body);
    }
    out
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn number(&mut self) -> i64 {
        let (mut value, mut bits) = (0_u64, 0);
        loop {
            let byte = self.0[0];
            self.0 = &self.0[1..];
            value |= u64::from(byte & 0x7f) << bits;
            bits += 7;
            if byte & 0x80 == 0 {
                return (value >> 1) as i64 ^ -((value & 1) as i64);
            }
        }
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
    let mut out = Vec::new();
    let mut sieve = Sieve::new(bounds, room, &mut out);
    for piece in bytes.chunks(piece) {
        if !sieve.push(piece)? {
            break;
        }
    }
    let cost = sieve.end(count)?;
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
    let bounds = Bounds { inflated: 100_000, ..SMALL };
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
fn what_has_no_room_stops_and_nonsense_does_too() {
    let bytes = encode(&[of(900), of(900)]);
    assert_eq!(sift(SMALL, 1_000, &bytes, 100, 2).expect_err("no room"), Stop::Full);
    assert!(sift(SMALL, 100_000, &bytes, 100, 2).is_ok());
    assert_eq!(sift(SMALL, usize::MAX, &bytes[..700], 100, 1).expect_err("cut off"), Stop::Broken);
    let large = encode(&[of(5_000)]);
    assert_eq!(
        sift(SMALL, usize::MAX, &large[..4_000], 100, 1).expect_err("cut off"),
        Stop::Broken
    );
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
        }
    }
}
