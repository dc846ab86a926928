//! The bytes of a commit's metadata.
//!
//! Base64 (standard, no padding) of: version u8 (1), varint `upto - next`, varint number of blocks, then bits, most
//! significant first. A block is 512 offsets, aligned, with at least one of them pending: how many blocks further
//! than the one before (Elias gamma; the first counts from the one before `next`), 4 bits of mode, and its part of
//! `[next, upto)`: mode 0 as a bitmap, mode k of 1 to 9 as the distances between pending offsets in a Rice code
//! (quotient by 2^k in unary, k bits of rest), the last one reaching to the end. The shortest mode is taken.
//!
//! # Why finishing never makes it longer
//! 1. Within a block and a mode: a bitmap keeps its length. In a Rice code, taking an offset out joins two distances
//!    a and b to a + b + 1; the quotient of that is at most one more than the sum of both, and k + 1 >= 2 bits go.
//!    The shortest of several lengths that do not grow does not grow.
//! 2. A block that becomes empty goes with at least 4 + 2 bits; gamma of the joined gap takes at most two more than
//!    the longer of the two.
//! 3. When the low watermark rises, the first block begins at a pending offset as before, and is shorter.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;

/// Longest metadata in characters: Kafka's default `offset.metadata.max.bytes`.
pub const METADATA_MAX: usize = 4096;
/// Log2 of the offsets in a block.
pub(super) const BLOCK_SHIFT: u32 = 9;
const BLOCK: i64 = 1 << BLOCK_SHIFT;
const WORDS: usize = (BLOCK / 64) as usize;
const VERSION: u8 = 1;
const MODE_BITS: u32 = 4;
/// Largest parameter of the Rice code: a distance within a block has no quotient then.
const RICE_MAX: u32 = BLOCK_SHIFT;
/// A block at its worst, without its gap: a bitmap.
pub(super) const BLOCK_BITS_MAX: usize = MODE_BITS as usize + BLOCK as usize;
/// What all blocks together may take: the bytes of [`METADATA_MAX`] characters without version, the two longest
/// varints and the rest of the last byte.
pub(super) const PENDING_BITS_MAX: usize = (METADATA_MAX / 4 * 3 - 1 - 10 - 3) * 8 - 7;

/// Why metadata says nothing to us.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WindowError {
    /// No commit has a negative offset.
    #[error("committed offset {0} is negative")]
    Negative(i64),
    /// Somebody else committed for this group, or set the offset with a note of their own.
    #[error("commit metadata of {chars} characters is not base64 of at most {METADATA_MAX}")]
    NotOurs {
        /// Its length.
        chars: usize,
    },
    /// Written by a later release; run that one, or let it drain the namespace first.
    #[error("commit metadata has version {0}, known is {VERSION}")]
    Version(u8),
    /// It ends early, goes on too long, or contradicts itself.
    #[error("commit metadata is damaged: {0}")]
    Damaged(&'static str),
}

/// The pending ones of 512 offsets.
#[derive(Clone, Debug)]
pub(super) struct Block {
    /// Its first offset is `index * 512`.
    pub(super) index: i64,
    words: [u64; WORDS],
}

fn place(at: i64) -> (usize, u64) {
    let bit = at & (BLOCK - 1);
    ((bit >> 6) as usize, 1 << (bit & 63))
}

impl Block {
    pub(super) fn with(at: i64) -> Self {
        let mut block = Self { index: at >> BLOCK_SHIFT, words: [0; WORDS] };
        block.set(at);
        block
    }

    pub(super) fn start(&self) -> i64 {
        self.index << BLOCK_SHIFT
    }

    /// One past its last offset.
    pub(super) fn end(&self) -> i64 {
        self.start().saturating_add(BLOCK)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.words.iter().fold(0, |all, word| all | word) == 0
    }

    pub(super) fn count(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    pub(super) fn has(&self, at: i64) -> bool {
        let (word, bit) = place(at);
        self.words[word] & bit != 0
    }

    /// Makes an offset pending.
    pub(super) fn set(&mut self, at: i64) {
        let (word, bit) = place(at);
        self.words[word] |= bit;
    }

    /// Takes an offset out; false when it was not pending.
    pub(super) fn clear(&mut self, at: i64) -> bool {
        let (word, bit) = place(at);
        let was = self.words[word] & bit != 0;
        self.words[word] &= !bit;
        was
    }

    /// The lowest pending offset from `from` on.
    pub(super) fn first(&self, from: i64) -> Option<i64> {
        let skip = (from - self.start()).max(0);
        if skip >= BLOCK {
            return None;
        }
        let mut word = (skip >> 6) as usize;
        let mut rest = self.words[word] & (u64::MAX << (skip & 63));
        while rest == 0 {
            word += 1;
            rest = *self.words.get(word)?;
        }
        Some(self.start() + word as i64 * 64 + i64::from(rest.trailing_zeros()))
    }

    /// The pending offsets in order.
    pub(super) fn offsets(&self) -> impl Iterator<Item = i64> {
        let start = self.start();
        self.words.iter().zip(0_i64..).flat_map(move |(word, i)| {
            let mut rest = *word;
            std::iter::from_fn(move || {
                let bit = rest.trailing_zeros();
                (rest != 0).then(|| {
                    rest &= rest - 1;
                    start + i * 64 + i64::from(bit)
                })
            })
        })
    }
}

/// Bits that tell a block's distance from the last one before it; `None` for the first.
pub(super) fn gap_bits(last: Option<i64>, index: i64) -> usize {
    let gap = last.map_or(1, |last| (index - last).max(1));
    2 * gap.ilog2() as usize + 1
}

/// Bits that a block takes at its worst, gap included.
pub(super) fn worst_bits(last: Option<i64>, index: i64) -> usize {
    gap_bits(last, index) + BLOCK_BITS_MAX
}

/// Bits that a block takes at most from now on, without its gap, whatever finishes and wherever reading goes.
pub(super) fn bits(block: &Block, low: i64) -> usize {
    if block.is_empty() {
        return 0;
    }
    MODE_BITS as usize + shortest(block, low.max(block.start()), block.end()).1
}

/// The mode for the part `[from, to)` of a block that takes the fewest bits, and how many.
pub(super) fn shortest(block: &Block, from: i64, to: i64) -> (u32, usize) {
    let span = (to - from) as usize;
    let codes = block.count() + 1;
    let (mut mode, mut least) = (0, span);
    for k in 1..=RICE_MAX {
        // Each code takes k + 1 bits at least, so most modes, and all for a dense block, need no look.
        let fixed = codes * (k as usize + 1);
        if fixed >= least {
            break;
        }
        // And each loses less than one to rounding, so the quotients sum up to this at least.
        let room = span + 1 - codes;
        if fixed + (room >> k).saturating_sub(codes) >= least {
            continue;
        }
        let quotients: i64 = distances(block, from, to).map(|distance| distance >> k).sum();
        if fixed + (quotients as usize) < least {
            (mode, least) = (k, fixed + quotients as usize);
        }
    }
    (mode, least)
}

/// How many offsets are done before each pending one, and before the end.
fn distances(block: &Block, from: i64, to: i64) -> impl Iterator<Item = i64> {
    let mut next = from;
    block.offsets().chain(std::iter::once(to)).map(move |at| {
        let distance = at - next;
        next = at + 1;
        distance
    })
}

/// The words that `[from, to)` of a block covers: which one, its bits before `from`, and how many bits count.
fn parts(block: &Block, from: i64, to: i64) -> impl Iterator<Item = (usize, u32, u32)> + use<> {
    let (first, last) = ((from - block.start()) as u32, (to - block.start()) as u32);
    (0..WORDS as u32).filter_map(move |word| {
        let (start, end) = ((word * 64).max(first), (word * 64 + 64).min(last));
        (start < end).then(|| (word as usize, start % 64, end - start))
    })
}

/// Says in ASCII which offsets are pending; empty when none is. `blocks` hold nothing outside `[low, upto)`.
pub(super) fn encode<'a>(
    low: i64,
    upto: i64,
    blocks: impl IntoIterator<Item = &'a Block> + Copy,
) -> String {
    let blocks = || blocks.into_iter().filter(|block| !block.is_empty());
    let count = blocks().count();
    if count == 0 {
        return String::new();
    }
    let mut out = Writer { bytes: vec![VERSION], pending: 0, held: 0 };
    out.varint((upto - low) as u64);
    out.varint(count as u64);
    let mut last = (low >> BLOCK_SHIFT) - 1;
    for block in blocks() {
        out.gamma((block.index - last) as u64);
        last = block.index;
        let (from, to) = (block.start().max(low), block.end().min(upto));
        let (mode, _) = shortest(block, from, to);
        out.bits(u64::from(mode), MODE_BITS);
        if mode == 0 {
            for (word, skip, count) in parts(block, from, to) {
                // The lowest offset is the first bit.
                out.wide((block.words[word] >> skip).reverse_bits() >> (64 - count), count);
            }
        } else {
            for distance in distances(block, from, to) {
                out.rice(distance as u64, mode);
            }
        }
    }
    STANDARD_NO_PAD.encode(out.end())
}

/// Reads what [`encode`] wrote: `upto`, and the blocks. Takes any text without harm.
pub(super) fn decode(next: i64, metadata: &str) -> Result<(i64, Vec<Block>), WindowError> {
    if next < 0 {
        return Err(WindowError::Negative(next));
    }
    if metadata.is_empty() {
        return Ok((next, Vec::new()));
    }
    let not_ours = || WindowError::NotOurs { chars: metadata.len() };
    if metadata.len() > METADATA_MAX {
        return Err(not_ours());
    }
    let bytes = STANDARD_NO_PAD.decode(metadata).map_err(|_| not_ours())?;
    let (version, rest) = bytes.split_first().ok_or_else(not_ours)?;
    if *version != VERSION {
        return Err(WindowError::Version(*version));
    }
    let mut input = Reader { bytes: rest, at: 0 };
    let found = blocks(next, &mut input)
        .ok_or(WindowError::Damaged("a number is cut off or out of range"))?;
    let left = rest.len() * 8 - input.at;
    if left >= 8 || input.bits(left as u32) != Some(0) {
        return Err(WindowError::Damaged("bytes are left over"));
    }
    Ok(found)
}

fn blocks(next: i64, input: &mut Reader<'_>) -> Option<(i64, Vec<Block>)> {
    // Further up there is no room to count; no log gets there.
    let upto =
        next.checked_add_unsigned(input.varint()?).filter(|at| *at < i64::MAX - 8 * BLOCK)?;
    let count = input.varint()?;
    let mut found = Vec::new();
    let mut index = (next >> BLOCK_SHIFT) - 1;
    for _ in 0..count {
        index = index.checked_add_unsigned(input.gamma()?)?;
        if index > upto >> BLOCK_SHIFT {
            return None;
        }
        let mut block = Block { index, words: [0; WORDS] };
        let (from, to) = (block.start().max(next), block.end().min(upto));
        match input.bits(MODE_BITS)? as u32 {
            0 => {
                for (word, skip, count) in parts(&block, from, to) {
                    let bits = input.bits(count)?;
                    block.words[word] = (bits << (64 - count)).reverse_bits() << skip;
                }
            }
            k @ 1..=RICE_MAX => {
                let mut at = from;
                loop {
                    at += input.rice(k)?;
                    if at >= to {
                        break;
                    }
                    block.set(at);
                    at += 1;
                }
                if at != to {
                    return None;
                }
            }
            _ => return None,
        }
        if block.is_empty() {
            return None;
        }
        found.push(block);
    }
    Some((upto, found))
}

/// Bits, most significant first.
struct Writer {
    bytes: Vec<u8>,
    /// Bits not yet in `bytes`, in the low end.
    pending: u64,
    /// How many of them, below 8 between calls.
    held: u32,
}

impl Writer {
    /// The low `count` (at most 56) bits of `value`.
    fn bits(&mut self, value: u64, count: u32) {
        self.pending = self.pending << count | value & ((1 << count) - 1);
        self.held += count;
        while self.held >= 8 {
            self.held -= 8;
            self.bytes.push((self.pending >> self.held) as u8);
        }
    }

    /// LEB128; whole bytes, before any bits.
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }

    /// Elias gamma of 1 or more: as many zeros as bits follow the first one.
    fn gamma(&mut self, value: u64) {
        let more = value.ilog2();
        self.zeros(more);
        self.bits(1, 1);
        self.wide(value, more);
    }

    fn rice(&mut self, value: u64, k: u32) {
        self.zeros((value >> k) as u32);
        self.bits(1, 1);
        self.bits(value, k);
    }

    fn zeros(&mut self, mut count: u32) {
        while count > 32 {
            self.bits(0, 32);
            count -= 32;
        }
        self.bits(0, count);
    }

    fn wide(&mut self, value: u64, count: u32) {
        if count > 32 {
            self.bits(value >> 32, count - 32);
        }
        self.bits(value, count.min(32));
    }

    fn end(mut self) -> Vec<u8> {
        self.bits(0, (8 - self.held) % 8);
        self.bytes
    }
}

/// The other direction; `None` at the end of the bytes, or for a number that none of ours could be.
struct Reader<'a> {
    bytes: &'a [u8],
    /// Position in bits.
    at: usize,
}

impl Reader<'_> {
    /// At most 64 bits.
    fn bits(&mut self, count: u32) -> Option<u64> {
        let (mut value, mut left) = (0, count);
        while left > 0 {
            let held = 8 - (self.at % 8) as u32;
            let take = held.min(left);
            let byte = u64::from(*self.bytes.get(self.at / 8)?);
            value = value << take | byte >> (held - take) & ((1 << take) - 1);
            self.at += take as usize;
            left -= take;
        }
        Some(value)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.bits(8)?;
            let part = byte & 0x7f;
            if part << shift >> shift != part {
                return None;
            }
            value |= part << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    /// How many zeros come before the next one, which is read, too.
    fn zeros(&mut self, at_most: u32) -> Option<u32> {
        let mut count = 0;
        while self.bits(1)? == 0 {
            count += 1;
            if count > at_most {
                return None;
            }
        }
        Some(count)
    }

    fn gamma(&mut self) -> Option<u64> {
        let more = self.zeros(63)?;
        Some(1 << more | self.bits(more)?)
    }

    fn rice(&mut self, k: u32) -> Option<i64> {
        let quotient = self.zeros((BLOCK >> k) as u32)?;
        Some(i64::from(quotient) << k | self.bits(k)? as i64)
    }
}
