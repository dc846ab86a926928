use super::*;
use crate::client::sieve::{MARK, put_number, put_text, read_mark};
use waterclock_engine::CutBy;

const MIB: usize = 1 << 20;
/// Where the attributes begin, from which on the checksum is taken.
const ATTRIBUTES: usize = 21;
const ZSTD: u8 = 4;
const LZ4: u8 = 3;

/// A record up to its value's length, and what stands behind the value.
fn around(offset: i64, value: usize) -> (Vec<u8>, Vec<u8>) {
    let (mut before, mut behind) = (vec![0, 0], Vec::new());
    put_number(&mut before, offset);
    put_text(&mut before, b"key");
    put_number(&mut before, value as i64);
    put_number(&mut behind, 1);
    put_text(&mut behind, b"mine");
    put_text(&mut behind, b"yes");
    let mut all = Vec::new();
    put_number(&mut all, (before.len() + value + behind.len()) as i64);
    all.extend(before);
    (all, behind)
}

fn record(offset: i64, value: &[u8]) -> Vec<u8> {
    let (before, behind) = around(offset, value.len());
    [&before, value, &behind].concat()
}

/// A frame of zstd with a window of 128 MiB: these bytes, so many zeros, and those bytes.
fn zstd(before: &[u8], zeros: usize, behind: &[u8]) -> Vec<u8> {
    const BLOCK: usize = 128 << 10;
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0, 17 << 3];
    let mut block = |kind: u32, len: usize, bytes: &[u8], is_last: bool| {
        let head = (len as u32) << 3 | kind << 1 | u32::from(is_last);
        frame.extend_from_slice(&head.to_le_bytes()[..3]);
        frame.extend_from_slice(bytes);
    };
    block(0, before.len(), before, false);
    let mut left = zeros;
    while left > 0 {
        let len = left.min(BLOCK);
        block(1, len, &[0], false);
        left -= len;
    }
    block(0, behind.len(), behind, true);
    frame
}

/// One record whose value is zeros.
fn bomb(bytes: usize) -> Batch {
    let (before, behind) = around(0, bytes);
    Batch::new(ZSTD, 1, &zstd(&before, bytes, &behind))
}

/// A batch of version 2, as a broker sends it.
#[derive(Clone)]
struct Batch(Vec<u8>);

impl Batch {
    fn new(codec: u8, count: i32, records: &[u8]) -> Self {
        let mut bytes = vec![0; HEADER];
        let len = HEADER + records.len() - 12;
        bytes[8..12].copy_from_slice(&(len as i32).to_be_bytes());
        bytes[16] = 2;
        bytes[ATTRIBUTES + 1] = codec;
        bytes[23..27].copy_from_slice(&(count - 1).to_be_bytes());
        bytes[57..61].copy_from_slice(&count.to_be_bytes());
        bytes.extend_from_slice(records);
        let mut batch = Self(bytes);
        batch.seal(batch.sum());
        batch
    }

    fn sum(&self) -> u32 {
        crc32c::crc32c(&self.0[ATTRIBUTES..])
    }

    fn seal(&mut self, sum: u32) {
        self.0[17..21].copy_from_slice(&sum.to_be_bytes());
    }

    fn codec(&self) -> u8 {
        self.0[ATTRIBUTES + 1] & CODEC
    }

    /// What librdkafka is told of its checksum. It compares that with what stands in the batch.
    fn check(&mut self) -> u32 {
        let rest = &mut self.0[ATTRIBUTES..];
        // SAFETY: all that stands before them is there, too.
        unsafe { rd_crc32c(0, rest.as_mut_ptr().cast(), rest.len()) }
    }

    /// What librdkafka is given of its records; `None`: it is to ask again.
    fn read(&mut self) -> Option<Vec<u8>> {
        let told = u32::from_be_bytes(self.0[17..21].try_into().expect("four bytes"));
        assert_eq!(self.check(), told, "librdkafka goes on");
        let codec = self.codec();
        let records = &mut self.0[HEADER..];
        let (at, len) = (records.as_mut_ptr(), records.len());
        let (mut out, mut size) = (ptr::null_mut(), 0);
        // SAFETY: as librdkafka calls them.
        let well = unsafe {
            match codec {
                0 => return Some(records.to_vec()),
                GZIP => {
                    let mut made = 0;
                    out = rd_gz_decompress(at.cast(), len as c_int, &raw mut made);
                    size = made as usize;
                    !out.is_null()
                }
                ZSTD => {
                    let (out, size) = (&raw mut out, &raw mut size);
                    rd_kafka_zstd_decompress(ptr::null_mut(), at.cast(), len, out, size)
                        == Answer::RD_KAFKA_RESP_ERR_NO_ERROR
                }
                _ => {
                    let (out, size) = (&raw mut out, &raw mut size);
                    rd_kafka_lz4_decompress(ptr::null_mut(), 1, 0, at.cast(), len, out, size)
                        == Answer::RD_KAFKA_RESP_ERR_NO_ERROR
                }
            }
        };
        well.then(|| {
            // SAFETY: so many bytes were made there, and are given back.
            unsafe {
                let made = std::slice::from_raw_parts(out.cast::<u8>(), size).to_vec();
                free(out);
                made
            }
        })
    }
}

/// In a thread of its own, as of a broker that was never read from.
fn alone<T: Send + 'static>(test: impl FnOnce() -> T + Send + 'static) -> T {
    bound();
    std::thread::spawn(test).join().expect("it passes")
}

fn has(bytes: &[u8], text: &[u8]) -> bool {
    bytes.windows(text.len()).any(|window| window == text)
}

/// What the mark at the end says.
fn told(bytes: &[u8]) -> waterclock_engine::Cut {
    let value = &bytes[bytes.len() - 30..];
    read_mark(MARK, Some(value)).expect("a mark")
}

#[test]
fn a_flood_of_bombs_has_half_of_the_time_and_what_passes_waits_for_nothing() {
    alone(|| {
        let first = bomb(600 * MIB).read().expect("read at once");
        assert!(has(&first, b"mine") && !told(&first).without_headers, "its headers, too");
        let innocents: Vec<_> = (0..10).map(|n| record(n, b"innocent")).collect();
        let innocents = innocents.concat();
        let (mut began, mut read, mut wasted) = (Instant::now(), 0_usize, 600 * MIB);
        for n in 0..100 {
            let before = Instant::now();
            let made = bomb(600 * MIB).read();
            if n == 0 {
                // The first one may have been long ago, on a machine that does much else.
                began = before;
            }
            if let Some(made) = made {
                let cut = told(&made);
                assert!(cut.by == CutBy::Record && cut.bytes > 600 << 20, "{cut:?}");
                wasted += if has(&made, b"mine") { 600 * MIB } else { 16 * MIB };
                read += 1;
            }
            let batch = Batch::new(ZSTD, 10, &zstd(&innocents, 0, b"")).read();
            assert_eq!(batch.as_deref(), Some(&innocents[..]), "behind bomb {n}");
        }
        assert!(read >= 1, "the second has what is left");
        // What was left, what came in the meantime, and what one more may take.
        let most = (2 << 30) + began.elapsed().as_millis() as usize * (513 << 20) / 1_000;
        assert!(wasted <= most, "{wasted} bytes for nothing in {:?}", began.elapsed());
        if began.elapsed() < Duration::from_secs(2) {
            assert!(read < 100, "some have to wait");
        }
        // It is asked for again, and read.
        let until = Instant::now() + Duration::from_secs(10);
        while bomb(600 * MIB).read().is_none() {
            assert!(Instant::now() < until, "never read");
            std::thread::sleep(Duration::from_millis(20));
        }
    });
}

#[test]
fn a_batch_with_a_wrong_checksum_is_asked_for_again_whatever_it_is_compressed_by() {
    alone(|| {
        for codec in [0, GZIP, SNAPPY, LZ4, ZSTD, 7] {
            let good = Batch::new(codec, 1, &record(0, b"v"));
            let mut bad = good.clone();
            *bad.0.last_mut().expect("bytes") ^= 1;
            assert_eq!(bad.read(), None, "{codec}");
            assert_eq!(bad.codec(), GZIP, "it comes to a function that says no");
            assert_eq!(damaged(), Some(0));
        }
        let records = record(0, b"v");
        assert_eq!(Batch::new(0, 1, &records).read(), Some(records), "the next one is read");
    });
}

#[test]
fn bytes_that_nothing_can_be_made_of_are_told_of_by_a_mark() {
    alone(|| {
        for codec in [GZIP, SNAPPY, LZ4, ZSTD] {
            let made = Batch::new(codec, 3, b"no such thing").read().expect("a mark");
            let cut = told(&made);
            assert_eq!((cut.by, cut.others), (CutBy::Unreadable, 2), "{codec}");
        }
    });
}

#[test]
fn a_compressed_record_has_the_offset_that_kafka_gave_it() {
    alone(|| {
        let want = [record(0, b"one"), record(1, b"two")].concat();
        let forged = [record(0, b"one"), record(1 << 31, b"two")].concat();
        let snappy = snap::raw::Encoder::new().compress_vec(&forged).expect("compressed");
        for (codec, records) in [(ZSTD, zstd(&forged, 0, b"")), (SNAPPY, snappy), (0, forged)] {
            assert_eq!(Batch::new(codec, 2, &records).read().as_ref(), Some(&want), "{codec}");
        }
    });
}

/// Four bytes at the end of the records by which the checksum is zero: it is linear, so each of their bits changes it by
/// what that bit alone would.
fn with_sum_zero(mut batch: Batch) -> Batch {
    let at = batch.0.len() - 4;
    let plain = batch.sum();
    let mut rows: Vec<(u32, u32)> = Vec::new();
    for bit in 0..32 {
        batch.0[at + bit / 8] ^= 1 << (bit % 8);
        rows.push((batch.sum() ^ plain, 1 << bit));
        batch.0[at + bit / 8] ^= 1 << (bit % 8);
    }
    let (mut left, mut flips) = (plain, 0);
    for bit in 0..32 {
        let Some(at) = rows.iter().position(|row| row.0 >> bit & 1 == 1) else { continue };
        let (sum, of) = rows.swap_remove(at);
        for row in &mut rows {
            if row.0 >> bit & 1 == 1 {
                *row = (row.0 ^ sum, row.1 ^ of);
            }
        }
        if left >> bit & 1 == 1 {
            (left, flips) = (left ^ sum, flips ^ of);
        }
    }
    for bit in 0..32 {
        batch.0[at + bit / 8] ^= ((flips >> bit & 1) as u8) << (bit % 8);
    }
    batch.seal(batch.sum());
    assert_eq!(batch.sum(), 0);
    batch
}

#[test]
fn a_checksum_of_zero_hides_nothing_and_what_is_about_to_be_sent_stays_as_it_is() {
    alone(|| {
        // The free bytes are the value of the last header.
        let mut forged = record(40, b"v");
        let end = forged.len();
        forged.splice(end - 4.., [8, 0, 0, 0, 0]);
        forged[0] += 2;
        let mut batch = with_sum_zero(Batch::new(0, 1, &forged));
        let made = batch.read().expect("read");
        assert_eq!(made[3], 0, "its offset");
        let mut sound = Batch::new(0, 1, &record(0, b"v"));
        assert_eq!((sound.check(), sound.codec()), (sound.sum(), 0), "as it is");
        // librdkafka puts the sum there after it has asked for it.
        let mut own = Batch::new(0, 1, &record(40, b"v"));
        let sum = own.sum();
        own.seal(0);
        assert_eq!((own.check(), own.codec()), (sum, 0), "as it is");
    });
}

#[test]
fn a_marker_of_a_transaction_stays_as_it_is() {
    alone(|| {
        let mut marker = Batch::new(CONTROL, 1, &[1, 2, 3]);
        assert_eq!((marker.check(), marker.0[ATTRIBUTES + 1]), (marker.sum(), CONTROL));
    });
}
