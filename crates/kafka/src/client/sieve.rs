//! Decides what librdkafka is given of a batch: nothing that it cannot read, and no more than fits in memory.
//!
//! A compressor makes a thousandth of zeros: two megabytes on the wire are two gigabytes here. So inflated data goes
//! through a sieve, piece by piece, before librdkafka sees it. A record that is small enough passes byte for byte. Of a
//! larger one, the key and the first headers pass, and a mark that says what was left out.
//!
//! ```text
//!  compressed batch ─▶ inflater, 64 KiB at a time ─▶ Sieve ─▶ records, and what is left of those that are too large
//! ```
//!
//! # Invariants
//! 1. The output is bounded by [`Bounds`], whatever the input.
//! 2. A record that passes whole is unchanged, byte for byte. Every other record is reported: by its own mark, or,
//!    beyond [`Bounds::records`], by that of the last one.
//! 3. Only this process can make a mark: it has a token that nobody else knows.
//! 4. librdkafka can read the output. If it met a record that it cannot read, it would read nothing of that partition
//!    any more.
//! 5. A record has the offset that Kafka gave it, whatever its batch says: Kafka checks that in compressed batches
//!    only. With another offset, everything in between would count as done.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use waterclock_engine::{Cut, CutBy};

/// What a batch may become.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// The largest record that passes whole.
    pub(crate) record: usize,
    /// Bytes of records that pass whole, and of keys and headers of others.
    pub(crate) batch: usize,
    /// Records, whole or not. librdkafka keeps some hundred bytes for each.
    pub(crate) records: usize,
    /// How much is inflated for nothing. It takes time, in which nothing else is read.
    pub(crate) wasted: usize,
    /// Bytes of a key that is kept of a record which does not pass, and of its headers.
    pub(crate) kept: usize,
}

/// What the header of a batch says of its records.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchShape {
    /// How many there are.
    pub(crate) count: usize,
    /// The offset of the last one, counted from that of the batch.
    pub(crate) last: i64,
}

impl BatchShape {
    /// Whether the offset of each follows from its number. Kafka takes no other batch from a producer; later, compaction may
    /// leave some out.
    fn is_dense(self) -> bool {
        i64::try_from(self.count) == Ok(self.last.saturating_add(1))
    }
}

/// What a record costs beside its bytes, in librdkafka.
const BESIDE: usize = 256;
/// The name of the header by which a record is marked.
pub(crate) const MARK: &[u8] = b"x-delay-cut";
/// Token, bytes, reason, what is left out, others.
const MARK_BYTES: usize = 16 + 8 + 1 + 1 + 4;

/// Why nothing comes out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// These are no records.
    Broken,
    /// There is no room for the batch now.
    Full,
}

/// Where what passes goes.
pub(crate) trait Sink {
    /// Adds bytes at the end.
    fn put(&mut self, bytes: &[u8]);
    /// How many there are.
    fn len(&self) -> usize;
    /// Those from there on.
    fn since(&self, at: usize) -> &[u8];
    /// Takes those from there on away.
    fn cut(&mut self, to: usize);
}

impl Sink for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }

    fn len(&self) -> usize {
        Self::len(self)
    }

    fn since(&self, at: usize) -> &[u8] {
        &self[at..]
    }

    fn cut(&mut self, to: usize) {
        self.truncate(to);
    }
}

fn token() -> &'static [u8; 16] {
    static TOKEN: OnceLock<[u8; 16]> = OnceLock::new();
    TOKEN.get_or_init(|| uuid::Uuid::new_v4().into_bytes())
}

/// What a mark says; `None`: it is none of ours.
pub(crate) fn read_mark(name: &[u8], value: Option<&[u8]>) -> Option<Cut> {
    let value: &[u8; MARK_BYTES] = value?.try_into().ok()?;
    let (of, rest) = value.split_first_chunk::<16>()?;
    let (bytes, rest) = rest.split_first_chunk::<8>()?;
    let ([by, left_out], rest) = rest.split_first_chunk::<2>()?;
    let others = rest.first_chunk::<4>()?;
    (name == MARK && of == token()).then(|| Cut {
        bytes: u64::from_be_bytes(*bytes),
        by: match by {
            0 => CutBy::Record,
            1 => CutBy::Batch,
            _ => CutBy::Unreadable,
        },
        without_key: left_out & 1 != 0,
        without_headers: left_out & 2 != 0,
        others: u32::from_be_bytes(*others),
    })
}

fn mark(cut: &Cut) -> [u8; MARK_BYTES] {
    let mut value = [0; MARK_BYTES];
    value[..16].copy_from_slice(token());
    value[16..24].copy_from_slice(&cut.bytes.to_be_bytes());
    value[24] = match cut.by {
        CutBy::Record | CutBy::Headers => 0,
        CutBy::Batch => 1,
        CutBy::Unreadable => 2,
    };
    value[25] = u8::from(cut.without_key) | u8::from(cut.without_headers) << 1;
    value[26..].copy_from_slice(&cut.others.to_be_bytes());
    value
}

/// What to read next of a record that does not pass whole, and how much of it is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Length,
    /// Bytes of a record that passes.
    Whole(usize),
    Attributes,
    Time,
    Offset,
    KeyLength,
    Key(usize),
    ValueLength,
    Value(usize),
    Headers,
    NameLength,
    Name(usize),
    TextLength,
    Text(usize),
    /// Behind the last header: of no known meaning.
    Rest,
}

/// A record that does not pass whole.
#[derive(Default)]
struct Partial {
    bytes: usize,
    /// Of it, not read yet.
    left: usize,
    by: CutBy,
    /// There is no room for it at all, so that only the last one is told of.
    unread: bool,
    attributes: u8,
    time: i64,
    offset: i64,
    key: Option<Vec<u8>>,
    without_key: bool,
    /// Headers that are still to be read.
    headers: i64,
    /// Those that are kept, as they stand in a batch, and how many.
    kept: Vec<u8>,
    count: i64,
    /// The one that is being read; `None`: it is not kept.
    header: Option<Vec<u8>>,
    without_headers: bool,
}

impl Partial {
    fn new(bytes: usize, number: usize) -> Self {
        let offset = i64::try_from(number).unwrap_or(i64::MAX);
        Self { bytes, left: bytes, offset, ..Self::default() }
    }

    /// One of which nothing is read.
    fn unread(bytes: usize, number: usize) -> Self {
        let lost = Self { unread: true, by: CutBy::Batch, ..Self::new(bytes, number) };
        Self { without_key: true, without_headers: true, ..lost }
    }

    /// One that nobody can read.
    fn broken(bytes: usize, number: usize) -> Self {
        Self { by: CutBy::Unreadable, ..Self::unread(bytes, number) }
    }
}

/// Lets records through; see the module.
pub(crate) struct Sieve<'a, S: Sink> {
    bounds: Bounds,
    /// What may come out in all, [`BESIDE`] counted; beyond it, nothing does.
    room: usize,
    out: &'a mut S,
    shape: BatchShape,
    /// Records that come out.
    emitted: usize,
    /// Where the last of those that pass begins there, and its bytes behind its length.
    whole_at: (usize, usize),
    /// Records that have begun. Of a topic that is not compacted, a record's number in its batch is its offset there.
    begun: usize,
    /// How much was pushed.
    inflated: usize,
    step: Step,
    /// The number that is being read, and how many bits of it there are.
    number: (u64, u32),
    partial: Partial,
    /// The last record that was not read, as it is reported.
    unread: Option<Partial>,
}

impl<'a, S: Sink> Sieve<'a, S> {
    pub(crate) fn new(bounds: Bounds, room: usize, out: &'a mut S, shape: BatchShape) -> Self {
        Self {
            bounds,
            room,
            out,
            shape,
            emitted: 0,
            whole_at: (0, 0),
            begun: 0,
            inflated: 0,
            step: Step::Length,
            number: (0, 0),
            partial: Partial::default(),
            unread: None,
        }
    }

    /// Takes the next piece of what was inflated; false: no more is wanted.
    pub(crate) fn push(&mut self, mut bytes: &[u8]) -> Result<bool, Stop> {
        self.inflated += bytes.len();
        while !bytes.is_empty() {
            bytes = match self.step {
                Step::Whole(left) => self.whole(left, bytes)?,
                Step::Key(left) | Step::Value(left) | Step::Name(left) | Step::Text(left) => {
                    self.text(left, bytes)?
                }
                Step::Rest => {
                    let take = self.partial.left.min(bytes.len());
                    self.spend(take)?;
                    &bytes[take..]
                }
                Step::Attributes => {
                    self.partial.attributes = bytes[0];
                    self.step = Step::Time;
                    self.spend(1)?;
                    &bytes[1..]
                }
                _ => self.digit(bytes)?,
            };
            if self.step != Step::Length && !self.is_whole() && self.partial.left == 0 {
                self.end_partial()?;
            }
        }
        let is_last = self.begun >= self.shape.count && self.step == Step::Length;
        Ok(!is_last && (!self.is_short() || self.is_whole()))
    }

    /// What was inflated and does not come out.
    pub(crate) fn wasted(&self) -> usize {
        self.inflated.saturating_sub(self.out.len())
    }

    /// No more is inflated: too much of it was for nothing.
    pub(crate) fn is_short(&self) -> bool {
        self.wasted() >= self.bounds.wasted
    }

    /// What was inflated is at its end, or was ended; `well`: it could be inflated up to there. Says what it costs.
    pub(crate) fn end(mut self, well: bool) -> usize {
        let count = self.shape.count;
        let short = self.is_short();
        let within = self.step != Step::Length || self.number.1 != 0;
        if !well || self.is_whole() || !short && (within || self.begun < count) {
            self.give_up();
        } else if self.step != Step::Length {
            let mut partial = std::mem::take(&mut self.partial);
            partial.without_headers = true;
            self.unread = Some(partial);
        } else if self.unread.is_none() && self.begun < count {
            self.begun += 1;
            self.unread = Some(Partial::unread(0, self.begun - 1));
        }
        if let Some(last) = self.unread.take() {
            let others = count.max(self.begun).saturating_sub(self.emitted + 1);
            self.report(&last, u32::try_from(others).unwrap_or(u32::MAX));
        }
        self.cost()
    }

    /// The rest cannot be read.
    fn give_up(&mut self) {
        if self.is_whole() {
            self.out.cut(self.whole_at.0);
            self.emitted -= 1;
        }
        (self.step, self.number) = (Step::Length, (0, 0));
        // All records that exist were read: the bytes behind them are nothing.
        let rest = self.emitted < self.shape.count;
        let last = usize::try_from(self.shape.last).unwrap_or(0);
        self.unread = rest.then(|| Partial::broken(0, last));
    }

    fn cost(&self) -> usize {
        self.out.len() + self.emitted * BESIDE
    }

    fn is_whole(&self) -> bool {
        matches!(self.step, Step::Whole(_))
    }

    fn whole<'b>(&mut self, left: usize, bytes: &'b [u8]) -> Result<&'b [u8], Stop> {
        let (now, later) = bytes.split_at(left.min(bytes.len()));
        self.out.put(now);
        self.step = match left - now.len() {
            0 => Step::Length,
            left => Step::Whole(left),
        };
        if self.step == Step::Length {
            self.end_whole();
        }
        Ok(later)
    }

    /// One that passes is there as a whole.
    fn end_whole(&mut self) {
        let (start, body) = self.whole_at;
        let number = self.begun - 1;
        let read = Read::of(self.out.since(body), number, self.shape);
        match read {
            Read::Sound => {}
            Read::Mended(mended) => {
                self.out.cut(start);
                self.put(&mended);
            }
            Read::Broken => {
                let bytes = self.out.len() - body;
                self.out.cut(start);
                self.emitted -= 1;
                self.report(&Partial::broken(bytes, number), 0);
            }
        }
    }

    /// A record as it stands in a batch, with its length.
    fn put(&mut self, body: &[u8]) {
        let mut length = Vec::with_capacity(5);
        put_number(&mut length, body.len() as i64);
        self.out.put(&length);
        self.out.put(body);
    }

    /// Bytes of the record that is read in parts.
    fn spend(&mut self, count: usize) -> Result<(), Stop> {
        self.partial.left = self.partial.left.checked_sub(count).ok_or(Stop::Broken)?;
        Ok(())
    }

    fn text<'b>(&mut self, left: usize, bytes: &'b [u8]) -> Result<&'b [u8], Stop> {
        let (now, later) = bytes.split_at(left.min(bytes.len()));
        self.spend(now.len())?;
        let left = left - now.len();
        let partial = &mut self.partial;
        match self.step {
            Step::Key(_) => {
                if let Some(key) = &mut partial.key {
                    key.extend_from_slice(now);
                }
            }
            Step::Name(_) | Step::Text(_) => {
                if let Some(header) = &mut partial.header {
                    header.extend_from_slice(now);
                }
            }
            _ => {}
        }
        self.step = match (self.step, left) {
            (Step::Key(_), 1..) => Step::Key(left),
            (Step::Key(_), 0) => Step::ValueLength,
            (Step::Value(_), 1..) => Step::Value(left),
            (Step::Value(_), 0) => Step::Headers,
            (Step::Name(_), 1..) => Step::Name(left),
            (Step::Name(_), 0) => Step::TextLength,
            (_, 1..) => Step::Text(left),
            (_, 0) => self.end_header(),
        };
        Ok(later)
    }

    /// One byte of a number.
    fn digit<'b>(&mut self, bytes: &'b [u8]) -> Result<&'b [u8], Stop> {
        let (value, bits) = self.number;
        if bits > 63 {
            return Err(Stop::Broken);
        }
        let value = value | u64::from(bytes[0] & 0x7f) << bits;
        if self.step != Step::Length {
            self.spend(1)?;
        }
        if bytes[0] & 0x80 != 0 {
            self.number = (value, bits + 7);
            return Ok(&bytes[1..]);
        }
        self.number = (0, 0);
        self.number((value >> 1).cast_signed() ^ -(value & 1).cast_signed())?;
        Ok(&bytes[1..])
    }

    fn number(&mut self, number: i64) -> Result<(), Stop> {
        let kept = self.bounds.kept;
        let size = usize::try_from(number);
        match self.step {
            Step::Length => return self.begin(size.map_err(|_| Stop::Broken)?),
            Step::Time => {
                self.partial.time = number;
                self.step = Step::Offset;
            }
            Step::Offset => {
                // Else it is the one that Kafka gave it, by its number.
                if !self.shape.is_dense() && (0..=self.shape.last).contains(&number) {
                    self.partial.offset = number;
                }
                self.step = Step::KeyLength;
            }
            Step::KeyLength => {
                self.step = match size {
                    Ok(size) if size <= kept && self.has_room(size) => {
                        self.partial.key = Some(Vec::with_capacity(size));
                        if size == 0 { Step::ValueLength } else { Step::Key(size) }
                    }
                    Ok(size) => {
                        self.partial.without_key = true;
                        Step::Key(size)
                    }
                    Err(_) => Step::ValueLength,
                };
            }
            Step::ValueLength => {
                self.step = match size {
                    Ok(size @ 1..) => Step::Value(size),
                    _ => Step::Headers,
                };
            }
            Step::Headers => {
                self.partial.headers = number;
                self.step = self.next_header();
            }
            Step::NameLength => {
                let size = size.map_err(|_| Stop::Broken)?;
                let fits = !self.partial.without_headers
                    && self.partial.kept.len().saturating_add(size) <= kept
                    && self.has_room(self.partial.kept.len().saturating_add(size));
                self.partial.header = fits.then(|| {
                    let mut header = Vec::new();
                    put_number(&mut header, number);
                    header
                });
                self.step = if size == 0 { Step::TextLength } else { Step::Name(size) };
            }
            Step::TextLength => {
                let before = self.partial.header.as_ref().map_or(0, Vec::len);
                let all = (self.partial.kept.len() + before).saturating_add(size.unwrap_or(0));
                if all > kept || !self.has_room(all) {
                    self.partial.header = None;
                }
                if let Some(header) = &mut self.partial.header {
                    put_number(header, number.max(-1));
                }
                self.step = match size {
                    Ok(size @ 1..) => Step::Text(size),
                    _ => self.end_header(),
                };
            }
            _ => return Err(Stop::Broken),
        }
        Ok(())
    }

    /// Whether so much of a record that does not pass may be kept.
    fn has_room(&self, bytes: usize) -> bool {
        self.out.len().saturating_add(bytes) <= self.bounds.batch
    }

    fn begin(&mut self, size: usize) -> Result<(), Stop> {
        if size == 0 {
            return Err(Stop::Broken);
        }
        let number = self.begun;
        if number >= self.shape.count {
            // Kafka has given offsets to those before it only.
            return Err(Stop::Broken);
        }
        self.begun += 1;
        if number >= self.bounds.records {
            self.partial = Partial::unread(size, number);
            self.step = Step::Rest;
            return Ok(());
        }
        let too_large = size > self.bounds.record;
        let too_much = self.out.len().saturating_add(size) > self.bounds.batch;
        let costs = if too_large || too_much { 0 } else { size };
        if self.cost().saturating_add(costs) > self.room {
            return Err(Stop::Full);
        }
        if too_large || too_much {
            self.partial = Partial::new(size, number);
            self.partial.by = if too_large { CutBy::Record } else { CutBy::Batch };
            self.step = Step::Attributes;
        } else {
            let mut length = Vec::with_capacity(5);
            put_number(&mut length, size as i64);
            let start = self.out.len();
            self.out.put(&length);
            self.whole_at = (start, self.out.len());
            self.emitted += 1;
            self.step = Step::Whole(size);
        }
        Ok(())
    }

    fn next_header(&mut self) -> Step {
        if self.partial.headers <= 0 {
            return Step::Rest;
        }
        self.partial.headers -= 1;
        Step::NameLength
    }

    fn end_header(&mut self) -> Step {
        let partial = &mut self.partial;
        match partial.header.take() {
            Some(header) => {
                partial.kept.extend_from_slice(&header);
                partial.count += 1;
            }
            None => partial.without_headers = true,
        }
        self.next_header()
    }

    fn end_partial(&mut self) -> Result<(), Stop> {
        if self.step != Step::Rest || self.number.1 != 0 {
            return Err(Stop::Broken);
        }
        self.step = Step::Length;
        let partial = std::mem::take(&mut self.partial);
        if partial.unread {
            self.unread = Some(partial);
        } else {
            self.report(&partial, 0);
        }
        Ok(())
    }

    /// Puts what is kept of a record in its place.
    fn report(&mut self, partial: &Partial, others: u32) {
        self.emitted += 1;
        let cut = Cut {
            bytes: partial.bytes as u64,
            by: partial.by,
            without_key: partial.without_key,
            without_headers: partial.without_headers,
            others,
        };
        let mut body = vec![partial.attributes];
        put_number(&mut body, partial.time);
        put_number(&mut body, partial.offset);
        put_nullable(&mut body, partial.key.as_deref());
        put_number(&mut body, -1);
        put_number(&mut body, partial.count + 1);
        body.extend_from_slice(&partial.kept);
        put_text(&mut body, MARK);
        put_text(&mut body, &mark(&cut));
        self.put(&body);
    }
}

/// Whether librdkafka can read these records of a batch that is not compressed, and takes each for what it is.
pub(crate) fn is_sound(mut bytes: &[u8], shape: BatchShape) -> bool {
    let mut number = 0;
    while !bytes.is_empty() {
        let Some(body) = take_number(&mut bytes).and_then(|size| take(&mut bytes, size)) else {
            return false;
        };
        if number >= shape.count || !matches!(Read::of(body, number, shape), Read::Sound) {
            return false;
        }
        number += 1;
    }
    number == shape.count
}

/// What librdkafka makes of a record.
enum Read {
    Sound,
    /// Its meaning is plain.
    Mended(Vec<u8>),
    Broken,
}

impl Read {
    fn of(body: &[u8], number: usize, shape: BatchShape) -> Self {
        Self::try_of(body, number, shape).unwrap_or(Self::Broken)
    }

    fn try_of(body: &[u8], number: usize, shape: BatchShape) -> Option<Self> {
        let mut rest = body;
        let attributes = take(&mut rest, 1)?[0];
        let (time, offset) = (take_number(&mut rest)?, take_number(&mut rest)?);
        let right = if shape.is_dense() { i64::try_from(number).ok()? } else { offset };
        if !(0..=shape.last).contains(&right) {
            return None;
        }
        let (key_len, key) = take_text(&mut rest)?;
        let (value_len, value) = take_text(&mut rest)?;
        let (headers, well) = read_headers(rest)?;
        // Java takes any length below nothing for null; librdkafka only this one.
        if offset == right && key_len >= -1 && value_len >= -1 && well {
            return Some(Self::Sound);
        }
        let mut mended = Vec::with_capacity(body.len() + 8);
        mended.push(attributes);
        put_number(&mut mended, time);
        put_number(&mut mended, right);
        put_nullable(&mut mended, key);
        put_nullable(&mut mended, value);
        put_number(&mut mended, headers.clone().count() as i64);
        for (name, value) in headers {
            put_text(&mut mended, name);
            put_nullable(&mut mended, value);
        }
        Some(Self::Mended(mended))
    }
}

/// A header as it stands in a record; one without a value has none.
type Header<'a> = (&'a [u8], Option<&'a [u8]>);

/// The headers of a record, which end it, and whether librdkafka takes the lengths of their values.
fn read_headers(bytes: &[u8]) -> Option<(impl Iterator<Item = Header<'_>> + Clone, bool)> {
    fn next<'a>(bytes: &mut &'a [u8]) -> Option<(Header<'a>, bool)> {
        let len = take_number(bytes)?;
        let name = take(bytes, len)?;
        let (len, value) = take_text(bytes)?;
        Some(((name, value), len >= -1))
    }
    let mut rest = bytes;
    let count = usize::try_from(take_number(&mut rest)?).ok()?;
    let (mut again, mut well) = (rest, true);
    for _ in 0..count {
        well &= next(&mut rest)?.1;
    }
    let headers = (0..count).map_while(move |_| next(&mut again).map(|(header, _)| header));
    Some((headers, well))
}

fn put_nullable(out: &mut Vec<u8>, text: Option<&[u8]>) {
    match text {
        Some(text) => put_text(out, text),
        None => put_number(out, -1),
    }
}

/// How much a thread that reads from a broker may still inflate for nothing: nothing else of that broker is read meanwhile.
/// What passes is not counted, so that producers who mean no harm never wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allowance {
    left: usize,
    at: Instant,
}

impl Allowance {
    /// At once.
    pub(crate) const MOST: usize = 1 << 30;
    /// In a second: half of what can be inflated in that time, or less.
    const REFILL: usize = 512 << 20;

    pub(crate) fn new(now: Instant) -> Self {
        Self { left: Self::MOST, at: now }
    }

    /// How much it is now.
    pub(crate) fn left(&mut self, now: Instant) -> usize {
        let since = now.saturating_duration_since(self.at).min(Duration::from_secs(10));
        let more = since.as_micros() as usize * (Self::REFILL / 1_000_000);
        (self.left, self.at) = (self.left.saturating_add(more).min(Self::MOST), now);
        self.left
    }

    pub(crate) fn spend(&mut self, wasted: usize) {
        self.left = self.left.saturating_sub(wasted);
    }
}

fn take<'a>(bytes: &mut &'a [u8], size: impl TryInto<usize>) -> Option<&'a [u8]> {
    let (taken, rest) = bytes.split_at_checked(size.try_into().ok()?)?;
    *bytes = rest;
    Some(taken)
}

/// A length, and so many bytes; none, where it is below nothing.
fn take_text<'a>(bytes: &mut &'a [u8]) -> Option<(i64, Option<&'a [u8]>)> {
    let len = take_number(bytes)?;
    let text = if len < 0 { None } else { Some(take(bytes, len)?) };
    Some((len, text))
}

/// A zigzag varint.
fn take_number(bytes: &mut &[u8]) -> Option<i64> {
    let (mut value, mut bits) = (0_u64, 0);
    while bits < 64 {
        let byte = take(bytes, 1)?[0];
        value |= u64::from(byte & 0x7f) << bits;
        if byte & 0x80 == 0 {
            return Some((value >> 1).cast_signed() ^ -(value & 1).cast_signed());
        }
        bits += 7;
    }
    None
}

/// A number as a zigzag varint.
pub(crate) fn put_number(out: &mut Vec<u8>, number: i64) {
    let mut rest = ((number << 1) ^ (number >> 63)).cast_unsigned();
    while rest > 0x7f {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

pub(crate) fn put_text(out: &mut Vec<u8>, text: &[u8]) {
    put_number(out, text.len() as i64);
    out.extend_from_slice(text);
}

#[cfg(test)]
mod tests;
