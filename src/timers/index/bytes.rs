//! Bytes on disk: a check of them, and numbers in few of them.

/// Odd numbers without a pattern, which the check multiplies with.
const ODD: [u64; 3] = [0xa076_1d64_78bd_642f, 0xe703_7ed1_a0b4_28db, 0x8ebc_6af0_9c88_c6e3];

fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product as u64) ^ ((product >> 64) as u64)
}

/// A number that stands for these bytes below that name: it sees every flipped bit, and is no secret.
///
/// It is part of the form on disk. Another form costs every instance a rebuild, so a library's checksum (crc32fast) waits for the
/// next one.
pub(super) fn check(name: &[u8], bytes: &[u8]) -> u64 {
    let begin = fold(name.len() as u64 ^ ODD[0], bytes.len() as u64 ^ ODD[1]);
    [name, bytes].into_iter().fold(begin, |mut sum, part| {
        let (pairs, rest) = part.as_chunks::<16>();
        for pair in pairs {
            sum = fold(word(&pair[..8]) ^ ODD[1], word(&pair[8..]) ^ sum);
        }
        let (low, high) = rest.split_at(rest.len().min(8));
        fold(word(low) ^ ODD[1], word(high) ^ sum ^ ODD[2])
    })
}

/// Up to eight bytes as a number.
fn word(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

/// Appends a number: seven bits in a byte, the least first.
pub(super) fn put_varint(to: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        to.push(number as u8 | 0x80);
        number >>= 7;
    }
    to.push(number as u8);
}

/// Takes a number from the front; `None` if there is none.
pub(super) fn take_varint(from: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = from.split_first()?;
        *from = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

/// Takes so many bytes from the front; `None` if there are less.
pub(super) fn take_bytes<'a>(from: &mut &'a [u8], length: u64) -> Option<&'a [u8]> {
    let (taken, rest) = from.split_at_checked(usize::try_from(length).ok()?)?;
    *from = rest;
    Some(taken)
}
