//! A Bloom filter: it says which names are surely not there, in ten bits a name. Most names that come are new, and need no
//! look at the disk.

/// Bits for each name that it is made for.
const BITS: usize = 10;
/// Bits of a name's block, all of one line of memory.
const BLOCK: usize = 512;

/// May say of one name in a hundred that it is there when it is not, and never the other way round.
#[derive(Debug, Default)]
pub(super) struct KeyFilter {
    blocks: Vec<[u64; BLOCK / 64]>,
    /// How many it has room for.
    room: usize,
    added: usize,
}

impl KeyFilter {
    /// One with room for so many names.
    pub(super) fn new(room: usize) -> Self {
        let blocks = (room * BITS).div_ceil(BLOCK).max(1);
        Self { blocks: vec![[0; BLOCK / 64]; blocks], room, added: 0 }
    }

    /// Whether it has taken all that it has room for.
    pub(super) fn is_full(&self) -> bool {
        self.added >= self.room
    }

    fn place(&self, name: u64) -> (usize, [usize; 6]) {
        let block = ((u128::from(name) * self.blocks.len() as u128) >> 64) as usize;
        let bits = name.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (block, std::array::from_fn(|n| (bits >> (9 * n)) as usize % BLOCK))
    }

    pub(super) fn add(&mut self, name: u64) {
        let (block, bits) = self.place(name);
        for bit in bits {
            self.blocks[block][bit / 64] |= 1 << (bit % 64);
        }
        self.added += 1;
    }

    /// Whether it may be there.
    pub(super) fn may_have(&self, name: u64) -> bool {
        let (block, bits) = self.place(name);
        bits.iter().all(|bit| self.blocks[block][bit / 64] & (1 << (bit % 64)) != 0)
    }
}
