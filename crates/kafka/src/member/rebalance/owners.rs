//! Which lanes the group has given to nobody, by the group's description of its members. Pure.
//!
//! An assignment lasts until a member joins or leaves. A member that comes back under its `group.instance.id` does neither. So the
//! assignment can be of a time when topics had fewer partitions, or were not all there.

use std::collections::BTreeSet;

use waterclock_engine::Lane;

use crate::client::consumer_protocol::partitions;

/// Lanes of which nobody has the main intake, ascending; nothing if an assignment cannot be read, for it may have them.
pub(super) fn without<'a>(
    intake: &str,
    lanes: u16,
    assignments: impl Iterator<Item = &'a [u8]>,
) -> Vec<Lane> {
    let mut owned = BTreeSet::new();
    for assignment in assignments {
        let Some(given) = partitions(assignment) else { return Vec::new() };
        let of_intake = given.into_iter().filter(|(topic, _)| *topic == intake);
        owned.extend(of_intake.map(|(_, partition)| partition));
    }
    (0..lanes).filter(|lane| !owned.contains(&i32::from(*lane))).map(Lane).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::consumer_protocol::tests::assignment;

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
