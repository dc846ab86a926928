//! Bytes of a fuzzer, taken as numbers and parts.

/// What is left of them.
pub(super) struct Input<'a>(pub(super) &'a [u8]);

impl<'a> Input<'a> {
    /// The next byte; 0 behind the end.
    pub(super) fn byte(&mut self) -> u8 {
        let Some((byte, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *byte
    }

    /// The next eight as a number.
    pub(super) fn word(&mut self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }

    /// A number that is small more often than not.
    pub(super) fn number(&mut self) -> u64 {
        let word = self.word();
        word >> (self.byte() & 63)
    }

    /// At most so many bytes.
    pub(super) fn take(&mut self, most: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(most.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// A part with its length before it.
    pub(super) fn part(&mut self) -> &'a [u8] {
        let most = usize::from(self.byte());
        self.take(most)
    }

    /// A part, or null.
    pub(super) fn null_or_part(&mut self) -> Option<&'a [u8]> {
        (self.byte() & 7 != 0).then(|| self.part())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
