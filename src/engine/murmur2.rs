//! Java's hash of record keys, so that lanes and targets are those of Java's default partitioner.
//!
//! Source: `org.apache.kafka.common.utils.Utils.murmur2` and `toPositive`. The numbers of the tests were
//! made by that class.

const M: u32 = 0x5bd1_e995;
const SEED: u32 = 0x9747_b28c;

/// The hash of a key. Java's is the same bits, signed.
#[must_use]
pub fn murmur2(key: &[u8]) -> u32 {
    let mut hash = SEED ^ (key.len() as u32);
    let (words, tail) = key.as_chunks::<4>();
    for word in words {
        let word = u32::from_le_bytes(*word).wrapping_mul(M);
        hash = hash.wrapping_mul(M) ^ (word ^ (word >> 24)).wrapping_mul(M);
    }
    if !tail.is_empty() {
        let mut last = [0; 4];
        last[..tail.len()].copy_from_slice(tail);
        hash = (hash ^ u32::from_le_bytes(last)).wrapping_mul(M);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(M);
    hash ^ (hash >> 15)
}

/// The partition of a key among `count`; 0 if there are none.
#[must_use]
pub fn partition(key: &[u8], count: u16) -> u16 {
    // The remainder is below a u16, so nothing is cut off.
    (murmur2(key) & 0x7fff_ffff).checked_rem(u32::from(count)).unwrap_or(0) as u16
}
