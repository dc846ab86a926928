//! Which lanes the group has given to nobody, by the group's description of its members. Pure.
//!
//! An assignment lasts until a member joins or leaves. A member that comes back under its `group.instance.id` does neither. So the
//! assignment can be of a time when topics had fewer partitions, or were not all there.

use std::collections::BTreeSet;

use waterclock_engine::Lane;

/// Lanes of which nobody has the main intake, ascending; nothing if an assignment cannot be read, for it may have them.
pub(super) fn without<'a>(
    intake: &str,
    lanes: u16,
    assignments: impl Iterator<Item = &'a [u8]>,
) -> Vec<Lane> {
    let mut owned = BTreeSet::new();
    for assignment in assignments {
        match partitions(intake, assignment) {
            Some(partitions) => owned.extend(partitions),
            None => return Vec::new(),
        }
    }
    (0..lanes).filter(|lane| !owned.contains(&i32::from(*lane))).map(Lane).collect()
}

/// The partitions of a topic in an assignment of the consumer protocol: version, topics with their partitions, and whatever
/// the assignor has added.
fn partitions(of: &str, assignment: &[u8]) -> Option<Vec<i32>> {
    if assignment.is_empty() {
        return Some(Vec::new());
    }
    let mut rest = assignment;
    let mut found = Vec::new();
    take(&mut rest, 2)?;
    for _ in 0..count(&mut rest)? {
        let length = i16::from_be_bytes(take(&mut rest, 2)?.try_into().ok()?);
        let topic = take(&mut rest, usize::try_from(length).ok()?)?;
        for _ in 0..count(&mut rest)? {
            let partition = i32::from_be_bytes(take(&mut rest, 4)?.try_into().ok()?);
            if topic == of.as_bytes() {
                found.push(partition);
            }
        }
    }
    Some(found)
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
mod tests {
    use super::*;

    /// As Kafka's clients write it (`ConsumerProtocolAssignment`, version 0, no user data).
    fn assignment(topics: &[(&str, &[i32])]) -> Vec<u8> {
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
    fn a_lane_is_nobodys_whose_main_intake_is_nobodys() {
        let a = assignment(&[("ns.intake", &[0, 1]), ("ns.intake.eu", &[0, 1, 2, 3])]);
        let b = assignment(&[("ns.delay.1s", &[2, 3]), ("ns.intake", &[3])]);
        let short = &a[..a.len() - 9];
        type Case<'a> = (&'a str, &'a [&'a [u8]], &'a [u16]);
        #[rustfmt::skip]
        let table: [Case<'_>; 6] = [
            ("nobody is there",                   &[],              &[0, 1, 2, 3]),
            ("a spare has nothing",               &[&[], &a, &b],   &[2]),
            ("another topic of it counts not",    &[&a],            &[2, 3]),
            ("of one that has no lane",           &[&b],            &[0, 1, 2]),
            ("one that is cut short may have it", &[short, &b],     &[]),
            ("so may one that is no list at all", &[b"\0\0\xff\xff\xff\xff", &b], &[]),
        ];
        for (why, given, want) in table {
            let found = without("ns.intake", 4, given.iter().copied());
            assert_eq!(found, want.iter().copied().map(Lane).collect::<Vec<_>>(), "{why}");
        }
    }
}
