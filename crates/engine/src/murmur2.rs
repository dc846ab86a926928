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
    partition_of(murmur2(key), count)
}

/// The partition of a key with this hash among `count`; 0 if there are none.
#[must_use]
pub fn partition_of(hash: u32, count: u16) -> u16 {
    // The remainder is below a u16, so nothing is cut off.
    (hash & 0x7fff_ffff).checked_rem(u32::from(count)).unwrap_or(0) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(hex: &str) -> Vec<u8> {
        (0..hex.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap())
            .collect()
    }

    /// Made by kafka-clients 4.3.0: `Utils.murmur2(key)`, and `Utils.toPositive` of it modulo 6 and 264.
    #[test]
    fn hashes_and_partitions_are_those_of_java() {
        #[rustfmt::skip]
        let cases = [
            // why, key, Utils.murmur2, partition of 6, partition of 264
            ("length 0", "", 275_646_681, 3, 57),
            ("length 1", "61", -1_563_381_124, 4, 148),
            ("length 2", "6162", 316_155_434, 2, 122),
            ("length 3", "616263", 479_470_107, 3, 171),
            ("length 4", "61626364", -1_323_649_548, 2, 188),
            ("length 5", "6162636465", 461_995_741, 1, 229),
            ("length 6", "616263646566", 1_870_650_108, 0, 228),
            ("length 7", "61626364656667", -346_467_175, 1, 25),
            ("length 8", "6162636465666768", -955_427_363, 3, 189),
            ("length 9", "616263646566676869", -619_679_810, 0, 198),
            ("length 10", "6162636465666768696a", 8_205_847, 1, 199),
            ("length 11", "6162636465666768696a6b", -232_389_549, 5, 83),
            ("length 12", "6162636465666768696a6b6c", -535_286_937, 5, 191),
            ("length 13", "6162636465666768696a6b6c6d", 387_415_655, 5, 143),
            ("length 14", "6162636465666768696a6b6c6d6e", 1_842_055_212, 0, 228),
            ("length 15", "6162636465666768696a6b6c6d6e6f", 1_680_674_526, 0, 102),
            ("length 16", "6162636465666768696a6b6c6d6e6f70", -253_887_988, 4, 220),
            ("length 17", "6162636465666768696a6b6c6d6e6f7071", 1_490_128_915, 1, 187),
            ("length 18", "6162636465666768696a6b6c6d6e6f707172", 816_947_939, 5, 203),
            ("length 19", "6162636465666768696a6b6c6d6e6f70717273", 111_171_840, 0, 120),
            ("length 20", "6162636465666768696a6b6c6d6e6f7071727374", 844_227_805, 1, 157),
            ("negative bytes, length 1", "ff", -311_467_685, 3, 243),
            ("negative bytes, length 2", "ffee", 1_750_061_758, 4, 214),
            ("negative bytes, length 3", "ffeedd", 2_053_089_151, 1, 223),
            ("negative bytes, length 4", "ffeeddcc", 705_638_213, 5, 5),
            ("negative bytes, length 5", "ffeeddccbb", -435_349_888, 4, 40),
            ("negative bytes, length 6", "ffeeddccbbaa", -1_576_922_666, 0, 222),
            ("negative bytes, length 7", "ffeeddccbbaa99", -1_046_235_303, 5, 65),
            ("negative bytes, length 8", "ffeeddccbbaa9988", -809_053_009, 1, 7),
            ("negative bytes, length 9", "ffeeddccbbaa998877", -1_660_089_088, 4, 136),
            ("all zero", "00000000", 850_957_120, 4, 112),
            ("a NUL and a tail", "0000000001", -2_105_056_731, 5, 5),
            ("all ones", "ffffffffffffffff", 185_950_397, 5, 149),
            ("umlaut", "4772c3bcc39f65", 1_190_824_359, 3, 87),
            ("CJK", "e6b0b4e69982e8a888", 1_671_212_982, 0, 54),
            ("emoji", "e28fb3f09f9a80", -1_090_402_308, 2, 260),
            ("a UUID", "35353065383430302d653239622d343164342d613731362d343436363535343430303030", 2_143_099_391, 5, 191),
            ("an order", "6f726465722d3432", 501_153_024, 0, 240),
        ];
        for (why, key, hash, of_6, of_264) in cases {
            let key = bytes(key);
            assert_eq!(murmur2(&key).cast_signed(), hash, "{why}");
            assert_eq!(partition(&key, 6), of_6, "{why}");
            assert_eq!(partition(&key, 264), of_264, "{why}");
        }
        let long: Vec<u8> = (0..1000u32).map(|i| (i * 7) as u8).collect();
        assert_eq!(murmur2(&long).cast_signed(), 483_719_753, "a thousand bytes");
    }

    #[test]
    fn a_topic_without_partitions_has_partition_0() {
        assert_eq!(partition(b"key", 0), 0);
    }
}
