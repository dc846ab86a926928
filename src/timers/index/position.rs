//! How far the entries of a lane reach, and the digest that identifies them.

use super::bytes::check;
use crate::engine::{Offset, UnixMillis};

/// Bytes of a position on disk: four numbers and a check of them.
const BYTES: usize = 40;
/// What its check is made under.
const NAME: &[u8] = b"position";

/// How far the entries of a lane reach in the changelog, their number and their digest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// The next offset of the changelog to read.
    pub next: Offset,
    /// A time by which nothing before `next` was missing.
    pub at: UnixMillis,
    /// How many entries there are.
    pub entries: u64,
    /// Sum of the digests of all entries: in whatever order they came and went, equal entries have an equal one.
    pub digest: u64,
}

impl Position {
    /// Counts an entry with this check in.
    pub(super) fn add(&mut self, check: u64) {
        self.entries = self.entries.wrapping_add(1);
        self.digest = self.digest.wrapping_add(check);
    }

    /// Counts an entry with this check out.
    pub(super) fn remove(&mut self, check: u64) {
        self.entries = self.entries.wrapping_sub(1);
        self.digest = self.digest.wrapping_sub(check);
    }

    pub(super) fn bytes(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        let numbers =
            [self.next.0.to_be_bytes(), self.at.0.to_be_bytes(), self.entries.to_be_bytes()];
        for (slot, number) in bytes.chunks_exact_mut(8).zip(numbers) {
            slot.copy_from_slice(&number);
        }
        bytes[24..32].copy_from_slice(&self.digest.to_be_bytes());
        let check = check(NAME, &bytes[..32]);
        bytes[32..].copy_from_slice(&check.to_be_bytes());
        bytes
    }

    /// `None`: these bytes were not written by [`bytes`](Self::bytes).
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; BYTES] = bytes.try_into().ok()?;
        let number = |at: usize| first_eight(&bytes[at..]);
        if check(NAME, &bytes[..32]) != number(32) {
            return None;
        }
        Some(Self {
            next: Offset(i64::from_be_bytes(number(0).to_be_bytes())),
            at: UnixMillis(number(8)),
            entries: number(16),
            digest: number(24),
        })
    }
}

/// The first eight bytes as a number; of less than eight, none.
fn first_eight(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |eight| u64::from_be_bytes(*eight))
}
