//! Inflates batches in the place of librdkafka, which does not bound its output, and keeps unreadable data from it
//! (ADR 0019).
//!
//! librdkafka is linked as an archive of objects, and the linker takes an object only for symbols that nothing else
//! defines. The functions here have the names of librdkafka's own. So the linker takes these, and librdkafka calls
//! them. An object has a function for each direction; those that compress are here for that reason alone.
//!
//! Until [`bound`] is called they do what librdkafka's do. A program that embeds waterclock may have consumers of its
//! own in the process, of which nothing is known here.
//!
//! # Invariants
//! 1. What is handed out was made by `malloc`: librdkafka frees it.
//! 2. Nothing unwinds into librdkafka.

use parking_lot::Mutex;
use std::cell::Cell;
use std::ffi::{c_char, c_int, c_uint, c_ulong, c_ulonglong, c_void};
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rdkafka::bindings as rdsys;

use crate::client::sieve::{Allowance, BatchShape, Bounds, Sieve, Sink, Stop, is_sound};
use waterclock_engine::{KEPT_BYTES, Limits};

use rdsys::rd_kafka_resp_err_t as Answer;

/// What is inflated at a time.
const PIECE: usize = 64 << 10;
/// What a batch may become, and the batches of one answer but for the first. Producers' own bounds are far below: a batch is
/// 16 KiB by Java's defaults, and 1 MB by librdkafka's.
const BATCH_BYTES: usize = 32 << 20;
const ANSWER_BYTES: usize = 16 << 20;
/// As many as a batch can have that is not compressed: seven bytes each.
const BATCH_RECORDS: usize = 300_000;
/// Some two seconds' work is allowed for nothing at once. Who has used that up has so much allowed for a batch, and waits for it:
/// a batch that needs more than a little is not read before, and asked for again.
const WASTED_LEAST: usize = 16 << 20;
const WASTED_LITTLE: usize = 1 << 20;
/// The header of a batch of version 2, which begins with the offset of its first record.
const HEADER: usize = 61;
/// What stands in it, counted back from its end: the number of its records, the offset of the
/// last, its attributes, its checksum, its version, and how long all from there on is that stands between length and version.
const TO_COUNT: usize = 4;
const TO_LAST: usize = 38;
const TO_ATTRIBUTES: usize = 40;
const TO_SUM: usize = 44;
const TO_MAGIC: usize = 45;
const TO_LENGTH: usize = 53;
/// Between the length and the attributes.
const BEFORE_ATTRIBUTES: usize = 9;
/// The low byte of the attributes.
const CODEC: u8 = 7;
const GZIP: u8 = 1;
const SNAPPY: u8 = 2;
const CONTROL: u8 = 32;
/// Longer than an answer (the readers' are 4 MiB and one batch), and than it takes to make one into records.
const ANSWER_SPAN: usize = 8 << 20;
const ANSWER_MAX: Duration = Duration::from_millis(200);

static BOUND: AtomicBool = AtomicBool::new(false);

/// From now on, no Kafka consumer of this process, whichever code made it, is given more of a compressed batch than
/// lanes may hold. A record above 2 MiB and 64 KiB, or one behind the first 32 MiB of its batch, comes without its
/// value. `waterclock run` calls it. A program that embeds waterclock calls it if this may hold for all of its
/// consumers. Otherwise a hostile producer can have this process take as much memory as a batch of 2 MiB inflates to.
pub fn bound() {
    BOUND.store(true, Ordering::Relaxed);
}

fn bounds(wasted: usize) -> Bounds {
    Bounds {
        record: Limits::default().record_bytes_max,
        batch: BATCH_BYTES,
        records: BATCH_RECORDS,
        wasted,
        kept: KEPT_BYTES,
    }
}

/// The batches of one response of a broker stand one behind the other in one buffer. The thread of that broker inflates
/// them in that order.
///
/// The buffer of the next response may lie at the same address, so that the two cannot be told apart. What is refused
/// then is fetched again, and after 200 ms it counts as another response.
#[derive(Clone, Copy)]
struct OneAnswer {
    first: usize,
    last: usize,
    spent: usize,
    ended: Instant,
}

thread_local! {
    static ANSWER: Cell<Option<OneAnswer>> = const { Cell::new(None) };
    /// Of this thread, which reads from one broker.
    static ALLOWANCE: Cell<Option<Allowance>> = const { Cell::new(None) };
}

impl OneAnswer {
    /// What was spent before this batch in the same answer.
    fn of(at: usize) -> Self {
        let now = Instant::now();
        match ANSWER.get() {
            Some(before)
                if at > before.last
                    && at - before.first < ANSWER_SPAN
                    && now - before.ended < ANSWER_MAX =>
            {
                Self { last: at, ..before }
            }
            _ => Self { first: at, last: at, spent: 0, ended: now },
        }
    }

    fn spend(self, spent: usize) {
        let spent = self.spent.saturating_add(spent);
        ANSWER.set(Some(Self { spent, ended: Instant::now(), ..self }));
    }
}

/// Bytes that `malloc` made.
struct Made {
    at: *mut u8,
    len: usize,
    room: usize,
    failed: bool,
}

impl Made {
    fn new() -> Self {
        Self { at: ptr::null_mut(), len: 0, room: 0, failed: false }
    }

    fn reserve(&mut self, more: usize) {
        let want = self.len.saturating_add(more);
        if want <= self.room || self.failed {
            return;
        }
        let room = want.max(self.room.saturating_mul(2)).max(PIECE);
        // SAFETY: the memory at this pointer was made by realloc, or the pointer is null.
        let at = unsafe { realloc(self.at.cast(), room) };
        if at.is_null() {
            self.failed = true;
        } else {
            (self.at, self.room) = (at.cast(), room);
        }
    }

    /// Hands it over to somebody who frees it; null where there was no memory.
    fn give(mut self) -> (*mut c_void, usize) {
        self.reserve(1);
        if self.failed {
            return (ptr::null_mut(), 0);
        }
        let given = (self.at.cast(), self.len);
        self.at = ptr::null_mut();
        given
    }
}

impl Sink for Made {
    fn put(&mut self, bytes: &[u8]) {
        self.reserve(bytes.len());
        if !self.failed {
            // SAFETY: there is room for them, and they overlap nothing that was just made.
            unsafe {
                ptr::copy_nonoverlapping(bytes.as_ptr(), self.at.add(self.len), bytes.len());
            }
            self.len += bytes.len();
        }
    }

    fn len(&self) -> usize {
        self.len
    }

    fn since(&self, at: usize) -> &[u8] {
        if at >= self.len {
            return &[];
        }
        // SAFETY: so many bytes were put there.
        unsafe { std::slice::from_raw_parts(self.at.add(at), self.len - at) }
    }

    fn cut(&mut self, to: usize) {
        self.len = self.len.min(to);
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        // SAFETY: made by realloc and not given away, or null.
        unsafe { free(self.at.cast()) }
    }
}

/// Inflates a batch by a function that hands piece after piece on until it is told to stop; that says false where it cannot.
///
/// # Safety
/// `at` is that of the records of a batch of version 2, behind the header of the batch, or of a version before.
unsafe fn inflate(
    at: *const u8,
    by: impl FnOnce(&mut dyn FnMut(&[u8]) -> bool) -> bool,
) -> Option<(*mut c_void, usize)> {
    let inflated = catch_unwind(AssertUnwindSafe(|| {
        let mut made = Made::new();
        if !BOUND.load(Ordering::Relaxed) {
            let done = by(&mut |piece| {
                made.put(piece);
                !made.failed
            });
            return (done && !made.failed).then_some(made);
        }
        // SAFETY: the header of the batch stands before its records, in the same answer.
        let said = unsafe { said(at) }?;
        let answer = OneAnswer::of(at as usize);
        let room = match answer.spent {
            0 => usize::MAX,
            spent => ANSWER_BYTES.saturating_sub(spent),
        };
        let now = Instant::now();
        let mut allowance = ALLOWANCE.get().unwrap_or_else(|| Allowance::new(now));
        let allowed = Some(allowance.left(now)).filter(|left| *left >= WASTED_LEAST);
        let bounds = bounds(allowed.unwrap_or(WASTED_LITTLE));
        let mut sieve = Sieve::new(bounds, room, &mut made, said);
        let mut stop = None;
        let done = by(&mut |piece| match sieve.push(piece) {
            Ok(more) => more,
            Err(why) => {
                stop = Some(why);
                false
            }
        });
        allowance.spend(sieve.wasted());
        ALLOWANCE.set(Some(allowance));
        let must_wait = allowed.is_none() && sieve.is_short();
        let (spent, made) = match stop {
            // Nothing of the rest of this response is read; it is fetched again.
            Some(Stop::Full) => (ANSWER_BYTES, None),
            _ if must_wait => (0, None),
            _ => (sieve.end(done && stop.is_none()), Some(made)),
        };
        answer.spend(spent);
        made.filter(|made| !made.failed)
    }));
    let (at, len) = inflated.ok().flatten()?.give();
    (!at.is_null()).then_some((at, len))
}

/// What the header of a batch says; `None`: it is of a version before.
///
/// # Safety
/// `at` is that of the records of a batch, behind its header.
unsafe fn said(at: *const u8) -> Option<BatchShape> {
    // SAFETY: as promised.
    let (magic, count, last) =
        unsafe { (*at.sub(TO_MAGIC), number(at, TO_COUNT), number(at, TO_LAST)) };
    let count = usize::try_from(count.cast_signed()).unwrap_or(0);
    (magic == 2).then_some(BatchShape { count, last: i64::from(last.cast_signed()) })
}

/// A number in the header of a batch, so many bytes before its end.
///
/// # Safety
/// `at` is that of the records of a batch, behind its header.
unsafe fn number(at: *const u8, back: usize) -> u32 {
    // SAFETY: as promised; nothing there is aligned.
    u32::from_be_bytes(unsafe { at.sub(back).cast::<[u8; 4]>().read_unaligned() })
}

/// How records stand in a batch that librdkafka is told is one of gzip.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Plain,
    Snappy,
    /// It is not what its producer wrote, and its header may be wrong, too: nothing of it is read, and it is fetched
    /// again.
    Damaged,
}

/// The last batch with a wrong checksum, by the offset that its header says, and when it came.
static DAMAGED: Mutex<Option<(i64, Instant)>> = Mutex::new(None);
/// A batch is asked for every 100 ms; for so long it may be on its way.
const DAMAGED_FOR: Duration = Duration::from_secs(5);

/// The offset of a batch that Kafka has not as it was written, if one was met in the last seconds: its partition is not read on.
pub fn damaged() -> Option<i64> {
    let last = DAMAGED.lock();
    last.filter(|(_, met)| met.elapsed() < DAMAGED_FOR).map(|(offset, _)| offset)
}

thread_local! {
    /// The batch that is read now, by where its records are.
    static TURNED: Cell<Option<(*const u8, Form)>> = const { Cell::new(None) };
}

/// librdkafka's checksum of a batch. It asks for that before it looks at anything behind it, with the whole batch in one piece:
/// the one place where an uncompressed batch can be seen before it is read. One that it could not read, or would read wrongly, and
/// one of snappy is made one of gzip here, so that it comes to [`rd_gz_decompress`].
///
/// # Safety
/// librdkafka calls it with memory of its own: a batch that it was sent, or one that it is about to send.
#[unsafe(no_mangle)]
unsafe extern "C" fn rd_crc32c(sum: u32, at: *const c_void, len: usize) -> u32 {
    // SAFETY: as librdkafka promises.
    let bytes = unsafe { std::slice::from_raw_parts(at.cast::<u8>(), len) };
    let whole = crc32c::crc32c_append(sum, bytes);
    if sum != 0 || len < TO_ATTRIBUTES || !BOUND.load(Ordering::Relaxed) {
        return whole;
    }
    let turned = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: at least a header's length of bytes stands behind the beginning of a batch, received or about to be
        // sent. A received batch is in a buffer that librdkafka has for this response alone, and reads in this thread.
        unsafe { turn(at.cast::<u8>().cast_mut(), len, whole) }
    }));
    turned.unwrap_or(whole)
}

/// # Safety
/// As [`rd_crc32c`], with what begins at a batch's attributes.
unsafe fn turn(attributes: *mut u8, len: usize, sum: u32) -> u32 {
    TURNED.set(None);
    // SAFETY: as promised.
    let (records, length, told) = unsafe {
        let records = attributes.add(TO_ATTRIBUTES).cast_const();
        (records, number(records, TO_LENGTH), number(records, TO_SUM))
    };
    // One that is about to be sent has no checksum yet: there is a zero in its place, which a producer can make a true one, too.
    let is_sent = (told != 0 || sum == 0) && length as usize == len + BEFORE_ATTRIBUTES;
    // SAFETY: as promised.
    let Some(said) = (unsafe { said(records) }).filter(|_| is_sent) else { return sum };
    // SAFETY: as promised.
    let (low, bytes) = unsafe {
        let bytes = std::slice::from_raw_parts(records, len - TO_ATTRIBUTES);
        (*attributes.add(1), bytes)
    };
    let form = match low & CODEC {
        // librdkafka goes astray behind a batch whose checksum is wrong.
        _ if told != sum => Form::Damaged,
        _ if low & CONTROL != 0 => return sum,
        0 if is_sound(bytes, said) => return sum,
        0 => Form::Plain,
        SNAPPY => Form::Snappy,
        GZIP..=4 => return sum,
        _ => Form::Damaged,
    };
    if form == Form::Damaged {
        // SAFETY: as promised.
        let offset = unsafe { records.sub(HEADER).cast::<[u8; 8]>().read_unaligned() };
        let met = Some((i64::from_be_bytes(offset), Instant::now()));
        *DAMAGED.lock() = met;
    }
    TURNED.set(Some((records, form)));
    // SAFETY: as promised; it is not read before this returns.
    unsafe { *attributes.add(1) = low & !(CODEC | CONTROL) | GZIP };
    told
}

/// Called once, by librdkafka: what it sets up is not used.
#[unsafe(no_mangle)]
extern "C" fn rd_crc32c_global_init() {}

/// A test of librdkafka's own, which is never run here.
#[unsafe(no_mangle)]
extern "C" fn unittest_rd_crc32c() -> c_int {
    0
}

/// What Java's library puts before its pieces, each with its length. It reads several streams one behind the other.
const SNAPPY_MAGIC: &[u8] = b"\x82SNAPPY\0";
const SNAPPY_HEADER: usize = 16;
/// More is never made of a byte: the longest copy is 64 bytes and takes three.
const SNAPPY_GROWS: usize = 22;

fn unsnappy(mut bytes: &[u8], next: &mut dyn FnMut(&[u8]) -> bool) -> bool {
    let mut decoder = snap::raw::Decoder::new();
    let mut inflate = |piece: &[u8]| {
        let len = snap::raw::decompress_len(piece).ok()?;
        (len <= piece.len().saturating_mul(SNAPPY_GROWS)).then_some(())?;
        decoder.decompress_vec(piece).ok()
    };
    if !bytes.starts_with(SNAPPY_MAGIC) {
        return inflate(bytes).is_some_and(|all| {
            next(&all);
            true
        });
    }
    while !bytes.is_empty() {
        if bytes.starts_with(SNAPPY_MAGIC) {
            let Some((_, rest)) = bytes.split_at_checked(SNAPPY_HEADER) else { return false };
            bytes = rest;
            continue;
        }
        let Some((len, rest)) = bytes.split_first_chunk::<4>() else { return false };
        let len = u32::from_be_bytes(*len) as usize;
        let Some((piece, rest)) = rest.split_at_checked(len) else { return false };
        bytes = rest;
        match inflate(piece) {
            Some(made) if !next(&made) => return true,
            Some(_) => {}
            None => return false,
        }
    }
    true
}

/// zlib's.
#[repr(C)]
struct ZStream {
    next_in: *const u8,
    avail_in: c_uint,
    total_in: c_ulong,
    next_out: *mut u8,
    avail_out: c_uint,
    total_out: c_ulong,
    msg: *const c_char,
    state: *mut c_void,
    zalloc: *const c_void,
    zfree: *const c_void,
    opaque: *mut c_void,
    data_type: c_int,
    adler: c_ulong,
    reserved: c_ulong,
}

/// gzip or zlib, whichever it is.
const EITHER: c_int = 15 + 32;
const STREAM_END: c_int = 1;
const BUF_ERROR: c_int = -5;

/// zstd's.
#[repr(C)]
struct ZIn {
    at: *const u8,
    size: usize,
    pos: usize,
}
#[repr(C)]
struct ZOut {
    at: *mut u8,
    size: usize,
    pos: usize,
}

/// lz4's.
#[repr(C)]
#[derive(Default)]
struct LPreferences {
    block_size: c_int,
    block_mode: c_int,
    content_checksum: c_int,
    frame_type: c_int,
    content_size: c_ulonglong,
    dictionary: c_uint,
    block_checksum: c_int,
    level: c_int,
    auto_flush: c_uint,
    favor_speed: c_uint,
    reserved: [c_uint; 3],
}
const LZ4F_VERSION: c_uint = 100;
const INDEPENDENT: c_int = 1;

unsafe extern "C" {
    fn realloc(at: *mut c_void, size: usize) -> *mut c_void;
    fn free(at: *mut c_void);

    fn inflateInit2_(stream: *mut ZStream, bits: c_int, v: *const c_char, size: c_int) -> c_int;
    #[link_name = "inflate"]
    fn zlib_inflate(stream: *mut ZStream, flush: c_int) -> c_int;
    fn inflateReset(stream: *mut ZStream) -> c_int;
    fn inflateEnd(stream: *mut ZStream) -> c_int;

    fn ZSTD_createDStream() -> *mut c_void;
    fn ZSTD_freeDStream(stream: *mut c_void) -> usize;
    fn ZSTD_decompressStream(stream: *mut c_void, out: *mut ZOut, input: *mut ZIn) -> usize;
    fn ZSTD_createCStream() -> *mut c_void;
    fn ZSTD_initCStream(stream: *mut c_void, level: c_int) -> usize;
    fn ZSTD_freeCStream(stream: *mut c_void) -> usize;
    fn ZSTD_compressBound(size: usize) -> usize;
    fn ZSTD_compressStream(stream: *mut c_void, out: *mut ZOut, input: *mut ZIn) -> usize;
    fn ZSTD_endStream(stream: *mut c_void, out: *mut ZOut) -> usize;
    fn ZSTD_isError(code: usize) -> c_uint;

    fn LZ4F_createDecompressionContext(context: *mut *mut c_void, version: c_uint) -> usize;
    fn LZ4F_freeDecompressionContext(context: *mut c_void) -> usize;
    fn LZ4F_decompress(
        context: *mut c_void,
        out: *mut u8,
        out_size: *mut usize,
        input: *const u8,
        in_size: *mut usize,
        options: *const c_void,
    ) -> usize;
    fn LZ4F_createCompressionContext(context: *mut *mut c_void, version: c_uint) -> usize;
    fn LZ4F_freeCompressionContext(context: *mut c_void) -> usize;
    fn LZ4F_compressBound(size: usize, preferences: *const LPreferences) -> usize;
    fn LZ4F_compressBegin(
        context: *mut c_void,
        out: *mut u8,
        room: usize,
        preferences: *const LPreferences,
    ) -> usize;
    fn LZ4F_compressUpdate(
        context: *mut c_void,
        out: *mut u8,
        room: usize,
        input: *const u8,
        size: usize,
        options: *const c_void,
    ) -> usize;
    fn LZ4F_compressEnd(
        context: *mut c_void,
        out: *mut u8,
        room: usize,
        options: *const c_void,
    ) -> usize;
    fn LZ4F_isError(code: usize) -> c_uint;

    fn rd_slice_reader(slice: *mut c_void, at: *mut *const u8) -> usize;
}

/// gzip. Several streams one behind the other are one: so Java reads them.
///
/// # Safety
/// `at` is valid for `len` bytes.
unsafe fn gunzip(at: *const u8, len: usize, next: &mut dyn FnMut(&[u8]) -> bool) -> bool {
    let mut piece = vec![0; PIECE];
    let mut stream = MaybeUninit::<ZStream>::zeroed();
    let stream = stream.as_mut_ptr();
    // SAFETY: zlib is given a zeroed stream of its own layout, which it checks by its size; the pointers in it are valid for
    // the lengths beside them.
    unsafe {
        let size = size_of::<ZStream>() as c_int;
        if inflateInit2_(stream, EITHER, c"1.2.11".as_ptr(), size) != 0 {
            return false;
        }
        (*stream).next_in = at;
        (*stream).avail_in = len as c_uint;
        let done = loop {
            (*stream).next_out = piece.as_mut_ptr();
            (*stream).avail_out = PIECE as c_uint;
            let code = zlib_inflate(stream, 0);
            let made = PIECE - (*stream).avail_out as usize;
            if !next(&piece[..made]) {
                break true;
            }
            match code {
                STREAM_END if (*stream).avail_in == 0 => break true,
                STREAM_END if inflateReset(stream) == 0 => {}
                0 if made > 0 => {}
                // All is read, and the stream has no end: librdkafka's takes what there is.
                0 | BUF_ERROR => break true,
                _ => break false,
            }
        };
        inflateEnd(stream);
        done
    }
}

/// # Safety
/// `at` is valid for `len` bytes.
unsafe fn unzstd(at: *const u8, len: usize, next: &mut dyn FnMut(&[u8]) -> bool) -> bool {
    let mut piece = vec![0; PIECE];
    let mut input = ZIn { at, size: len, pos: 0 };
    // SAFETY: the stream is made and freed here; the buffers are valid for their sizes.
    unsafe {
        let stream = ZSTD_createDStream();
        if stream.is_null() {
            return false;
        }
        let done = loop {
            let mut out = ZOut { at: piece.as_mut_ptr(), size: PIECE, pos: 0 };
            let code = ZSTD_decompressStream(stream, &raw mut out, &raw mut input);
            if ZSTD_isError(code) != 0 {
                break false;
            }
            if !next(&piece[..out.pos]) {
                break true;
            }
            if input.pos == len && out.pos < PIECE {
                break code == 0;
            }
        };
        ZSTD_freeDStream(stream);
        done
    }
}

/// # Safety
/// `at` is valid for `len` bytes.
unsafe fn unlz4(at: *const u8, len: usize, next: &mut dyn FnMut(&[u8]) -> bool) -> bool {
    let mut piece = vec![0; PIECE];
    let mut context = ptr::null_mut();
    let mut read = 0;
    // SAFETY: the context is made and freed here; the buffers are valid for their sizes.
    unsafe {
        if LZ4F_isError(LZ4F_createDecompressionContext(&raw mut context, LZ4F_VERSION)) != 0 {
            return false;
        }
        let done = loop {
            let (mut made, mut taken) = (PIECE, len - read);
            let code = LZ4F_decompress(
                context,
                piece.as_mut_ptr(),
                &raw mut made,
                at.add(read),
                &raw mut taken,
                ptr::null(),
            );
            if LZ4F_isError(code) != 0 {
                break false;
            }
            read += taken;
            if !next(&piece[..made]) {
                break true;
            }
            if code == 0 || (taken == 0 && made == 0) {
                break read == len;
            }
        };
        LZ4F_freeDecompressionContext(context);
        done
    }
}

fn answer(
    inflated: Option<(*mut c_void, usize)>,
    out: *mut *mut c_void,
    size: *mut usize,
) -> Answer {
    let Some((at, len)) = inflated else { return Answer::RD_KAFKA_RESP_ERR__BAD_COMPRESSION };
    // SAFETY: librdkafka gives us where it wants them.
    unsafe {
        *out = at;
        *size = len;
    }
    Answer::RD_KAFKA_RESP_ERR_NO_ERROR
}

/// librdkafka's inflater of gzip.
///
/// # Safety
/// librdkafka calls it with a batch of an answer of a broker's.
#[unsafe(no_mangle)]
unsafe extern "C" fn rd_gz_decompress(
    at: *const c_void,
    len: c_int,
    size: *mut u64,
) -> *mut c_void {
    let (at, len) = (at.cast::<u8>(), usize::try_from(len).unwrap_or(0));
    let form = TURNED.take().filter(|(records, _)| *records == at);
    if form.is_some_and(|(_, form)| form == Form::Damaged) {
        return ptr::null_mut();
    }
    let by = |next: &mut dyn FnMut(&[u8]) -> bool| {
        let Some((_, form)) = form else {
            // SAFETY: as librdkafka promises.
            return unsafe { gunzip(at, len, next) };
        };
        // SAFETY: as librdkafka promises.
        let bytes = unsafe { std::slice::from_raw_parts(at, len) };
        if form == Form::Snappy {
            return unsnappy(bytes, next);
        }
        next(bytes);
        true
    };
    // SAFETY: as librdkafka promises.
    let inflated = unsafe { inflate(at, by) };
    let Some((made, len)) = inflated else { return ptr::null_mut() };
    // SAFETY: as librdkafka promises.
    unsafe { *size = len as u64 };
    made
}

/// librdkafka's inflater of zstd.
///
/// # Safety
/// librdkafka calls it with a batch of an answer of a broker's.
#[unsafe(no_mangle)]
unsafe extern "C" fn rd_kafka_zstd_decompress(
    _broker: *mut c_void,
    at: *mut c_char,
    len: usize,
    out: *mut *mut c_void,
    size: *mut usize,
) -> Answer {
    let at = at.cast::<u8>().cast_const();
    // SAFETY: as librdkafka promises.
    answer(unsafe { inflate(at, |next| unzstd(at, len, next)) }, out, size)
}

/// librdkafka's inflater of lz4. Batches with a wrong frame are of brokers before 0.10.
///
/// # Safety
/// librdkafka calls it with a batch of an answer of a broker's.
#[unsafe(no_mangle)]
unsafe extern "C" fn rd_kafka_lz4_decompress(
    _broker: *mut c_void,
    _proper: c_int,
    _offset: i64,
    at: *mut c_char,
    len: usize,
    out: *mut *mut c_void,
    size: *mut usize,
) -> Answer {
    let at = at.cast::<u8>().cast_const();
    // SAFETY: as librdkafka promises.
    answer(unsafe { inflate(at, |next| unlz4(at, len, next)) }, out, size)
}

/// The data to compress, in pieces, and its total size.
///
/// # Safety
/// The slice is librdkafka's.
unsafe fn pieces(slice: *mut c_void) -> (Vec<(*const u8, usize)>, usize) {
    let (mut all, mut bytes) = (Vec::new(), 0);
    loop {
        let mut at = ptr::null();
        // SAFETY: as promised; what it hands out lives as long as the slice.
        let len = unsafe { rd_slice_reader(slice, &raw mut at) };
        if len == 0 {
            return (all, bytes);
        }
        all.push((at, len));
        bytes += len;
    }
}

/// librdkafka's compressor of zstd, as it is there.
///
/// # Safety
/// librdkafka calls it with a slice of its own.
#[unsafe(no_mangle)]
unsafe extern "C" fn rd_kafka_zstd_compress(
    _broker: *mut c_void,
    level: c_int,
    slice: *mut c_void,
    out: *mut *mut c_void,
    size: *mut usize,
) -> Answer {
    let mut made = Made::new();
    // SAFETY: the stream is made and freed here; the buffers are valid for their sizes, and the slice is librdkafka's.
    let done = unsafe {
        let (pieces, bytes) = pieces(slice);
        made.reserve(ZSTD_compressBound(bytes));
        let stream = ZSTD_createCStream();
        if stream.is_null() || made.failed {
            ZSTD_freeCStream(stream);
            return Answer::RD_KAFKA_RESP_ERR__CRIT_SYS_RESOURCE;
        }
        let mut into = ZOut { at: made.at, size: made.room, pos: 0 };
        let mut well = ZSTD_isError(ZSTD_initCStream(stream, level)) == 0;
        for (at, len) in pieces {
            let mut input = ZIn { at, size: len, pos: 0 };
            let code = ZSTD_compressStream(stream, &raw mut into, &raw mut input);
            well = well && ZSTD_isError(code) == 0 && input.pos == len;
        }
        well = well && ZSTD_endStream(stream, &raw mut into) == 0;
        ZSTD_freeCStream(stream);
        made.len = into.pos;
        well
    };
    answer(done.then(|| made.give()), out, size)
}

/// librdkafka's compressor of lz4, as it is there but for brokers before 0.10.
///
/// # Safety
/// librdkafka calls it with a slice of its own.
#[unsafe(no_mangle)]
unsafe extern "C" fn rd_kafka_lz4_compress(
    _broker: *mut c_void,
    _proper: c_int,
    level: c_int,
    slice: *mut c_void,
    out: *mut *mut c_void,
    size: *mut usize,
) -> Answer {
    let preferences = LPreferences { block_mode: INDEPENDENT, level, ..LPreferences::default() };
    let mut made = Made::new();
    let mut context = ptr::null_mut();
    // SAFETY: the context is made and freed here; the buffers are valid for their sizes, and the slice is librdkafka's.
    let done = unsafe {
        let (pieces, bytes) = pieces(slice);
        made.reserve(LZ4F_compressBound(bytes, ptr::null()) + 1_000);
        let code = LZ4F_createCompressionContext(&raw mut context, LZ4F_VERSION);
        if LZ4F_isError(code) != 0 || made.failed {
            LZ4F_freeCompressionContext(context);
            return Answer::RD_KAFKA_RESP_ERR__CRIT_SYS_RESOURCE;
        }
        let step = |made: &mut Made, code: usize| {
            let well = LZ4F_isError(code) == 0;
            made.len += if well { code } else { 0 };
            well
        };
        let code = LZ4F_compressBegin(context, made.at, made.room, &raw const preferences);
        let mut well = step(&mut made, code);
        for (at, len) in pieces {
            let (to, room) = (made.at.add(made.len), made.room - made.len);
            let code = LZ4F_compressUpdate(context, to, room, at, len, ptr::null());
            well = well && step(&mut made, code);
        }
        if well {
            let (to, room) = (made.at.add(made.len), made.room - made.len);
            let code = LZ4F_compressEnd(context, to, room, ptr::null());
            well = step(&mut made, code);
        }
        LZ4F_freeCompressionContext(context);
        well
    };
    answer(done.then(|| made.give()), out, size)
}

#[cfg(test)]
mod tests;
