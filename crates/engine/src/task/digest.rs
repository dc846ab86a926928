//! What stands for the body of a task: a task's state covers it, so that nobody who may write to a tier can have another body sent.

use sha2::{Digest as _, Sha256};

use crate::Record;
use crate::header;

/// The first 16 bytes of SHA-256 of a record's value and of the headers that are not of the contract, in their order. Each part
/// has its length before it, so that no two records share one text.
#[must_use]
pub fn digest(record: &Record) -> [u8; 16] {
    let mut hash = Sha256::new();
    part(&mut hash, record.value());
    for (name, value) in record.headers().filter(|(name, _)| !header::is_control(name)) {
        part(&mut hash, Some(name));
        part(&mut hash, value);
    }
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&hash.finalize()[..16]);
    bytes
}

fn part(hash: &mut Sha256, bytes: Option<&[u8]>) {
    // No part is as long as the mark of null.
    hash.update(bytes.map_or(u64::MAX, |bytes| bytes.len() as u64).to_be_bytes());
    hash.update(bytes.unwrap_or_default());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(value: Option<&[u8]>, headers: &[(&[u8], Option<&[u8]>)]) -> [u8; 16] {
        digest(&Record::new(Some(b"k"), value, headers.iter().copied()))
    }

    #[test]
    fn each_part_counts_and_headers_of_the_contract_do_not() {
        let plain = of(Some(b"body"), &[(b"a", Some(b"1"))]);
        let hop: &[(&[u8], Option<&[u8]>)] =
            &[(b"x-delay-state", Some(b"s")), (b"a", Some(b"1")), (b"x-delay-id", Some(b"i"))];
        assert_eq!(of(Some(b"body"), hop), plain);
        let others = [
            of(None, &[(b"a", Some(b"1"))]),
            of(Some(b""), &[(b"a", Some(b"1"))]),
            of(Some(b"bod"), &[(b"ya", Some(b"1"))]),
            of(Some(b"body"), &[]),
            of(Some(b"body"), &[(b"a", None)]),
            of(Some(b"body"), &[(b"a", Some(b"2"))]),
            of(Some(b"body"), &[(b"a", Some(b"1")), (b"a", Some(b"1"))]),
        ];
        for (at, other) in others.iter().enumerate() {
            assert_ne!(*other, plain, "case {at}");
            assert!(others[..at].iter().all(|earlier| earlier != other), "case {at}");
        }
    }
}
