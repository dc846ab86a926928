//! Which record a delivery report is about: a number that goes with the record and comes back.

use waterclock_engine::BatchId;

/// Which record a delivery report is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Of {
    pub(super) batch: BatchId,
    /// Its place among the batch's sends, or [`CHECKPOINT`].
    pub(super) at: usize,
    /// Where it stands matters to the part that handed the batch over.
    pub(super) is_followed: bool,
}

impl Of {
    /// As it goes with the record.
    pub(super) fn opaque(self) -> usize {
        ((self.batch.0 as usize) << (AT_BITS + 1))
            | (usize::from(self.is_followed) << AT_BITS)
            | self.at.min(AT_MAX)
    }

    /// As it comes back.
    pub(super) fn read(opaque: usize) -> Self {
        Self {
            batch: BatchId((opaque >> (AT_BITS + 1)) as u64),
            at: opaque & AT_MAX,
            is_followed: opaque >> AT_BITS & 1 == 1,
        }
    }
}

/// A batch has some ten thousand records.
const AT_BITS: u32 = 24;
const AT_MAX: usize = (1 << AT_BITS) - 1;
/// The place of a checkpoint, which is no send of any batch.
pub(super) const CHECKPOINT: usize = AT_MAX;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_comes_back_as_it_was_given() {
        for (batch, at, is_followed) in
            [(0, 0, false), (1, 9_999, true), (1 << 38, AT_MAX, false), (7, 1, true)]
        {
            let of = Of { batch: BatchId(batch), at, is_followed };
            assert_eq!(Of::read(of.opaque()), of);
        }
    }
}
