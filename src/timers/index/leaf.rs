//! Leaves and runs: many entries in one value of the store.
//!
//! sled keeps sixteen keys in a page, and needs some hundred bytes of memory for each page, whatever stands in it. So a
//! value holds a range of entries in their order (a *leaf*) or the latest changes (a *run*).
//!
//! # Invariants
//! 1. A value is read only if it is exactly what was written under this name: a check of name and bytes ends every
//!    value.
//! 2. A leaf says where the next one begins. So a reader that asks for an entry of a missing leaf notices that it is
//!    missing.
//!
//! Layout, numbers in few bytes: length and bytes of the next leaf's first key (0: there is none), in leaves only; then
//! each entry: bytes shared with the key before, further bytes and their number first, 0 (removed) or 1 + length of the
//! value, the value; at last eight bytes of check.

use std::ops::ControlFlow;

use super::bytes::{check, put_varint, take_bytes, take_varint};

/// Bytes at the end of each value.
const CHECK: usize = 8;

/// The value is not the one that was written.
#[derive(Debug)]
pub(super) struct Damaged;

/// Writes entries in the order of their keys.
#[derive(Debug, Default)]
pub(super) struct Writer {
    bytes: Vec<u8>,
    last: Vec<u8>,
}

impl Writer {
    /// Begins a run.
    pub(super) fn run() -> Self {
        Self::default()
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Adds an entry; `None`: it is removed.
    pub(super) fn add(&mut self, key: &[u8], value: Option<&[u8]>) {
        let shared = self.last.iter().zip(key).take_while(|(a, b)| a == b).count();
        put_varint(&mut self.bytes, shared as u64);
        put_varint(&mut self.bytes, (key.len() - shared) as u64);
        self.bytes.extend_from_slice(&key[shared..]);
        put_varint(&mut self.bytes, value.map_or(0, |value| value.len() as u64 + 1));
        self.bytes.extend_from_slice(value.unwrap_or_default());
        self.last.truncate(shared);
        self.last.extend_from_slice(&key[shared..]);
    }

    /// The value of a run in the store, and begins the next one.
    pub(super) fn end_run(&mut self, name: &[u8]) -> Vec<u8> {
        self.last.clear();
        sealed(name, std::mem::take(&mut self.bytes))
    }

    /// The value of a leaf in the store, and begins the next one.
    pub(super) fn end_leaf(&mut self, name: &[u8], next: Option<&[u8]>) -> Vec<u8> {
        self.last.clear();
        let next = next.unwrap_or_default();
        let mut bytes = Vec::with_capacity(self.bytes.len() + next.len() + 2 + CHECK);
        put_varint(&mut bytes, next.len() as u64);
        bytes.extend_from_slice(next);
        bytes.append(&mut self.bytes);
        sealed(name, bytes)
    }
}

/// Bytes with a check behind them.
pub(super) fn sealed(name: &[u8], mut bytes: Vec<u8>) -> Vec<u8> {
    let check = check(name, &bytes);
    bytes.extend_from_slice(&check.to_le_bytes());
    bytes
}

/// Bytes without the check behind them.
pub(super) fn opened<'a>(name: &[u8], bytes: &'a [u8]) -> Result<&'a [u8], Damaged> {
    let (bytes, written) = bytes.split_last_chunk::<CHECK>().ok_or(Damaged)?;
    if check(name, bytes).to_le_bytes() == *written { Ok(bytes) } else { Err(Damaged) }
}

/// The entries of one value.
#[derive(Debug)]
pub(super) struct Entries<'a> {
    rest: &'a [u8],
    key: Vec<u8>,
}

impl<'a> Entries<'a> {
    /// Those of a run.
    pub(super) fn of_run(name: &[u8], bytes: &'a [u8]) -> Result<Self, Damaged> {
        Ok(Self { rest: opened(name, bytes)?, key: Vec::new() })
    }

    /// Those of a leaf, and where the next one begins.
    pub(super) fn of_leaf(
        name: &[u8],
        bytes: &'a [u8],
    ) -> Result<(Self, Option<&'a [u8]>), Damaged> {
        let mut rest = opened(name, bytes)?;
        let next = take_varint(&mut rest).and_then(|length| take_bytes(&mut rest, length));
        let next = next.ok_or(Damaged)?;
        Ok((Self { rest, key: Vec::new() }, (!next.is_empty()).then_some(next)))
    }

    /// Tells the next entry, which then stands in [`key`](Self::key).
    fn step(&mut self) -> Result<Option<Option<&'a [u8]>>, Damaged> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let shared = take_varint(&mut self.rest).and_then(|shared| usize::try_from(shared).ok());
        let shared = shared.filter(|shared| *shared <= self.key.len()).ok_or(Damaged)?;
        let further = take_varint(&mut self.rest).ok_or(Damaged)?;
        let further = take_bytes(&mut self.rest, further).ok_or(Damaged)?;
        self.key.truncate(shared);
        self.key.extend_from_slice(further);
        match take_varint(&mut self.rest).ok_or(Damaged)? {
            0 => Ok(Some(None)),
            length => Ok(Some(Some(take_bytes(&mut self.rest, length - 1).ok_or(Damaged)?))),
        }
    }

    /// Tells entries in their order until told to stop.
    pub(super) fn each(
        mut self,
        mut each: impl FnMut(&[u8], Option<&'a [u8]>) -> ControlFlow<()>,
    ) -> Result<(), Damaged> {
        while let Some(value) = self.step()? {
            if each(&self.key, value).is_break() {
                break;
            }
        }
        Ok(())
    }

    /// The value below this key.
    pub(super) fn find(self, key: &[u8]) -> Result<Option<&'a [u8]>, Damaged> {
        let mut found = None;
        self.each(|known, value| match known.cmp(key) {
            std::cmp::Ordering::Less => ControlFlow::Continue(()),
            std::cmp::Ordering::Equal => {
                found = value;
                ControlFlow::Break(())
            }
            std::cmp::Ordering::Greater => ControlFlow::Break(()),
        })?;
        Ok(found)
    }
}
