//! What a compressed batch may become in memory.
//!
//! A compressor makes a thousandth of zeros: two megabytes on the wire are two gigabytes here. So what is inflated goes through
//! a sieve, piece by piece, before librdkafka sees it: a record that is small enough passes byte for byte; of one that is not,
//! its key and its first headers pass, and a mark that says what was left out.
//!
//! ```text
//!  compressed batch ─▶ inflater, 64 KiB at a time ─▶ Sieve ─▶ records, and what is left of those that are too large
//! ```
//!
//! # Invariants
//! 1. What comes out is bounded by [`Bounds`], whatever goes in.
//! 2. A record that passes whole is the same, byte for byte. Every other one is told of: by its own mark, or, beyond
//!    [`Bounds::records`], by that of the last one.
//! 3. Only this process can make a mark: it has a token that nobody else knows.

use std::sync::OnceLock;

use crate::engine::{Cut, CutBy};

/// What a batch may become.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// The largest record that passes whole.
    pub(super) record: usize,
    /// Bytes of records that pass whole, and of keys and headers of others.
    pub(super) batch: usize,
    /// Records, whole or not. librdkafka keeps some hundred bytes for each.
    pub(super) records: usize,
    /// How much is inflated. It takes time, in which nothing else is read.
    pub(super) inflated: usize,
    /// Bytes of a key that is kept of a record which does not pass, and of its headers.
    pub(super) kept: usize,
}

/// What a record costs beside its bytes, in librdkafka.
const BESIDE: usize = 256;
/// The name of the header by which a record is marked.
pub(super) const MARK: &[u8] = b"x-delay-cut";
/// Token, bytes, reason, what is left out, others.
const MARK_BYTES: usize = 16 + 8 + 1 + 1 + 4;

/// Why nothing comes out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// These are no records.
    Broken,
    /// There is no room for the batch now.
    Full,
}

/// Where what passes goes.
pub(super) trait Sink {
    /// Adds bytes at the end.
    fn put(&mut self, bytes: &[u8]);
    /// How many there are.
    fn len(&self) -> usize;
}

impl Sink for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }

    fn len(&self) -> usize {
        Self::len(self)
    }
}

fn token() -> &'static [u8; 16] {
    static TOKEN: OnceLock<[u8; 16]> = OnceLock::new();
    TOKEN.get_or_init(|| uuid::Uuid::new_v4().into_bytes())
}

/// What a mark says; `None`: it is none of ours.
pub(super) fn read_mark(name: &[u8], value: Option<&[u8]>) -> Option<Cut> {
    let value: &[u8; MARK_BYTES] = value?.try_into().ok()?;
    let (of, rest) = value.split_first_chunk::<16>()?;
    let (bytes, rest) = rest.split_first_chunk::<8>()?;
    let ([by, left_out], rest) = rest.split_first_chunk::<2>()?;
    let others = rest.first_chunk::<4>()?;
    (name == MARK && of == token()).then(|| Cut {
        bytes: u64::from_be_bytes(*bytes),
        by: if *by == 0 { CutBy::Record } else { CutBy::Batch },
        without_key: left_out & 1 != 0,
        without_headers: left_out & 2 != 0,
        others: u32::from_be_bytes(*others),
    })
}

fn mark(cut: &Cut) -> [u8; MARK_BYTES] {
    let mut value = [0; MARK_BYTES];
    value[..16].copy_from_slice(token());
    value[16..24].copy_from_slice(&cut.bytes.to_be_bytes());
    // Nothing else is cut here.
    value[24] = u8::from(cut.by == CutBy::Batch);
    value[25] = u8::from(cut.without_key) | u8::from(cut.without_headers) << 1;
    value[26..].copy_from_slice(&cut.others.to_be_bytes());
    value
}

/// What is read next of a record that does not pass whole, and how much of it is left.
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
    by_batch: bool,
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
        let lost = Self { unread: true, by_batch: true, ..Self::new(bytes, number) };
        Self { without_key: true, without_headers: true, ..lost }
    }
}

/// Lets records through; see the module.
pub(super) struct Sieve<'a, S: Sink> {
    bounds: Bounds,
    /// What may come out in all, [`BESIDE`] counted; beyond it, nothing does.
    room: usize,
    out: &'a mut S,
    /// Records that come out.
    told: usize,
    /// Records that have begun. Of a topic that is not compacted, a record's number in its batch is its offset there.
    begun: usize,
    /// How much was pushed.
    inflated: usize,
    step: Step,
    /// The number that is being read, and how many bits of it there are.
    number: (u64, u32),
    partial: Partial,
    /// The last record that was not read, as it is told of.
    unread: Option<Partial>,
}

impl<'a, S: Sink> Sieve<'a, S> {
    pub(super) fn new(bounds: Bounds, room: usize, out: &'a mut S) -> Self {
        Self {
            bounds,
            room,
            out,
            told: 0,
            begun: 0,
            inflated: 0,
            step: Step::Length,
            number: (0, 0),
            partial: Partial::default(),
            unread: None,
        }
    }

    /// Takes the next piece of what was inflated; false: no more is wanted.
    pub(super) fn push(&mut self, mut bytes: &[u8]) -> Result<bool, Stop> {
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
        Ok(self.inflated < self.bounds.inflated || self.is_whole())
    }

    /// What was inflated is at its end, or was ended; `count`: how many records the batch says that it has. Says what it costs.
    pub(super) fn end(mut self, count: usize) -> Result<usize, Stop> {
        let short = self.inflated >= self.bounds.inflated;
        if !short && (self.step != Step::Length || self.number.1 != 0) {
            return Err(Stop::Broken);
        }
        if self.step != Step::Length {
            let mut partial = std::mem::take(&mut self.partial);
            partial.without_headers = true;
            self.unread = Some(partial);
        } else if self.unread.is_none() && self.begun < count {
            self.begun += 1;
            self.unread = Some(Partial::unread(0, self.begun - 1));
        }
        if let Some(last) = self.unread.take() {
            let others = count.max(self.begun).saturating_sub(self.told + 1);
            self.tell(&last, u32::try_from(others).unwrap_or(u32::MAX));
        }
        Ok(self.cost())
    }

    fn cost(&self) -> usize {
        self.out.len() + self.told * BESIDE
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
        Ok(later)
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
                self.partial.offset = number;
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
                    put_number(header, number);
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
            self.partial.by_batch = !too_large;
            self.step = Step::Attributes;
        } else {
            let mut length = Vec::with_capacity(5);
            put_number(&mut length, size as i64);
            self.out.put(&length);
            self.told += 1;
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
            self.tell(&partial, 0);
        }
        Ok(())
    }

    /// Puts what is kept of a record in its place.
    fn tell(&mut self, partial: &Partial, others: u32) {
        self.told += 1;
        let cut = Cut {
            bytes: partial.bytes as u64,
            by: if partial.by_batch { CutBy::Batch } else { CutBy::Record },
            without_key: partial.without_key,
            without_headers: partial.without_headers,
            others,
        };
        let mut body = vec![partial.attributes];
        put_number(&mut body, partial.time);
        put_number(&mut body, partial.offset);
        match &partial.key {
            Some(key) => put_text(&mut body, key),
            None => put_number(&mut body, -1),
        }
        put_number(&mut body, -1);
        put_number(&mut body, partial.count + 1);
        body.extend_from_slice(&partial.kept);
        put_text(&mut body, MARK);
        put_text(&mut body, &mark(&cut));
        let mut length = Vec::with_capacity(5);
        put_number(&mut length, body.len() as i64);
        self.out.put(&length);
        self.out.put(&body);
    }
}

/// A number as a zigzag varint.
fn put_number(out: &mut Vec<u8>, number: i64) {
    let mut rest = ((number << 1) ^ (number >> 63)).cast_unsigned();
    while rest > 0x7f {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

fn put_text(out: &mut Vec<u8>, text: &[u8]) {
    put_number(out, text.len() as i64);
    out.extend_from_slice(text);
}

#[cfg(test)]
mod tests;
