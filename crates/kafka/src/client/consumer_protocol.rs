//! What members of a group of consumers say of themselves in the classic protocol: which topics they subscribe to, and which partitions
//! they are given. Pure.
//!
//! To Kafka these are bytes: clients write them, and any client may write anything.
//!
//! # Invariants
//! 1. What cannot be read is `None`. No count makes room for what is not there.

/// The topics of a subscription: version, topics, and whatever its version has behind them.
pub(crate) fn topics(subscription: &[u8]) -> Option<Vec<&str>> {
    let mut rest = subscription;
    take(&mut rest, 2)?;
    let mut found = Vec::new();
    for _ in 0..count(&mut rest)? {
        found.push(text(&mut rest)?);
    }
    Some(found)
}

/// Topic and partition of all of an assignment: version, topics with their partitions, and whatever the assignor has added. An empty
/// one has none.
pub(crate) fn partitions(assignment: &[u8]) -> Option<Vec<(&str, i32)>> {
    let mut found = Vec::new();
    if assignment.is_empty() {
        return Some(found);
    }
    let mut rest = assignment;
    take(&mut rest, 2)?;
    for _ in 0..count(&mut rest)? {
        let topic = text(&mut rest)?;
        for _ in 0..count(&mut rest)? {
            found.push((topic, i32::from_be_bytes(take(&mut rest, 4)?.try_into().ok()?)));
        }
    }
    Some(found)
}

fn text<'a>(rest: &mut &'a [u8]) -> Option<&'a str> {
    let length = i16::from_be_bytes(take(rest, 2)?.try_into().ok()?);
    str::from_utf8(take(rest, usize::try_from(length).ok()?)?).ok()
}

fn count(rest: &mut &[u8]) -> Option<usize> {
    usize::try_from(i32::from_be_bytes(take(rest, 4)?.try_into().ok()?)).ok()
}

fn take<'a>(rest: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (taken, left) = rest.split_at_checked(length)?;
    *rest = left;
    Some(taken)
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// As Kafka's clients write it (`ConsumerProtocolSubscription`, version 0, no user data).
    pub(crate) fn subscription(topics: &[&str]) -> Vec<u8> {
        let mut bytes = vec![0, 0];
        bytes.extend((topics.len() as i32).to_be_bytes());
        for topic in topics {
            bytes.extend((topic.len() as i16).to_be_bytes());
            bytes.extend(topic.as_bytes());
        }
        bytes.extend((-1_i32).to_be_bytes());
        bytes
    }

    /// As Kafka's clients write it (`ConsumerProtocolAssignment`, version 0, no user data).
    pub(crate) fn assignment(topics: &[(&str, &[i32])]) -> Vec<u8> {
        let mut bytes = vec![0, 0];
        bytes.extend((topics.len() as i32).to_be_bytes());
        for (topic, partitions) in topics {
            bytes.extend((topic.len() as i16).to_be_bytes());
            bytes.extend(topic.as_bytes());
            bytes.extend((partitions.len() as i32).to_be_bytes());
            bytes.extend(partitions.iter().flat_map(|partition| partition.to_be_bytes()));
        }
        bytes.extend((-1_i32).to_be_bytes());
        bytes
    }

    #[test]
    fn what_clients_write_is_read() {
        let of = subscription(&["orders", "parts"]);
        assert_eq!(topics(&of), Some(vec!["orders", "parts"]));
        // Version 3: user data, partitions of before, generation, rack.
        let later =
            [&[0, 3][..], &of[2..of.len() - 4], b"\0\0\0\x01u\0\0\0\0\0\0\0\x07\xff\xff"].concat();
        assert_eq!(topics(&later), Some(vec!["orders", "parts"]));
        assert_eq!(topics(&subscription(&[])), Some(Vec::new()));
        let of = assignment(&[("orders", &[0, 2]), ("parts", &[]), ("bills", &[1])]);
        assert_eq!(partitions(&of), Some(vec![("orders", 0), ("orders", 2), ("bills", 1)]));
        assert_eq!(partitions(&[]), Some(Vec::new()));
    }

    #[test]
    fn what_is_cut_short_or_says_what_cannot_be_is_not_read() {
        let of = subscription(&["orders", "parts"]);
        // Whatever is behind the topics may be cut short: it is not looked at.
        for length in 0..of.len() - 4 {
            assert_eq!(topics(&of[..length]), None, "{length}");
        }
        let of = assignment(&[("orders", &[0, 2])]);
        for length in 1..of.len() - 4 {
            assert_eq!(partitions(&of[..length]), None, "{length}");
        }
        #[rustfmt::skip]
        let cases: [(&str, &[u8]); 4] = [
            ("less than no topics",      b"\0\0\xff\xff\xff\xff"),
            ("more topics than there is", b"\0\0\x7f\xff\xff\xff\0\x01a"),
            ("a name of less than none", b"\0\0\0\0\0\x01\xff\xff"),
            ("a name that is no text",   b"\0\0\0\0\0\x01\0\x01\xff\0\0\0\0"),
        ];
        for (why, bytes) in cases {
            assert_eq!((topics(bytes), partitions(bytes)), (None, None), "{why}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_not(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = (topics(&bytes), partitions(&bytes));
        }

        #[test]
        fn what_was_written_is_read_back(names in prop::collection::vec("[a-z.]{1,9}", 0..5)) {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let bytes = subscription(&names);
            prop_assert_eq!(topics(&bytes), Some(names.clone()));
            let each: Vec<(&str, &[i32])> = names.iter().map(|name| (*name, &[7][..])).collect();
            let bytes = assignment(&each);
            prop_assert_eq!(partitions(&bytes), Some(names.iter().map(|name| (*name, 7)).collect()));
        }
    }
}
