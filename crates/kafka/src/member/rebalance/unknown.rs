//! Where a partition starts when nobody knows a position of it. Pure.
//!
//! # Invariants
//! 1. No record is done again or passed over by a guess: where the program cannot tell, a person decides.
//! 2. All deleted records are reported. A record that may have been no delay is not counted as one.

/// What a partition is of which neither the group nor meta knows a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unknown {
    /// Nothing was ever deleted: it begins at its start.
    Fresh,
    /// Something is left, and whether that is done cannot be told: a person has to say.
    Gone,
    /// Nothing is left, and what was pending is lost.
    Lost,
    /// Nothing is left of what stood in an intake before it was read for the first time.
    Before,
}

/// A partition that was ever taken over has a checkpoint, if only of the position that it began with. A partition
/// without one has lost it, or its records were deleted before waterclock came. In a tier every record was a delay in
/// either case: nothing else is written there. An intake may have been used for something else before it became one. A
/// retention of that time is no loss of delays. Nobody can tell, so it is reported, and not counted.
pub(super) fn unknown(first: i64, end: i64, is_new: bool) -> Unknown {
    match (first, is_new) {
        (..=0, _) => Unknown::Fresh,
        _ if first < end => Unknown::Gone,
        (_, false) => Unknown::Lost,
        (_, true) => Unknown::Before,
    }
}

/// Whether nobody ever knew a position in any partition of this topic, or in any topic of this lane: lanes are taken over
/// with all of their topics, so such an intake was not read before.
pub(super) fn is_new(known: &[(&str, i32)], topic: &str, partition: i32) -> bool {
    known.iter().all(|(of, _)| *of != topic) || known.iter().all(|(_, lane)| *lane != partition)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_deleted_where_no_position_is_known_is_said_and_nothing_is_guessed() {
        #[rustfmt::skip]
        let table = [
            // why,                                                   first, end, new,   want
            ("a topic that was just made",                            0,     0,   false, Unknown::Fresh),
            ("delays were submitted before the first start",          0,     9,   true,  Unknown::Fresh),
            ("the position went, and nothing was ever deleted",       0,     9,   false, Unknown::Fresh),
            ("what is left may be done",                              4,     9,   false, Unknown::Gone),
            ("so it may, should meta and the group be made anew",     4,     9,   true,  Unknown::Gone),
            ("a retention took all of a tier",                        9,     9,   false, Unknown::Lost),
            ("or of an intake, perhaps from before it was one",       9,     9,   true,  Unknown::Before),
        ];
        for (why, first, end, is_new, want) in table {
            assert_eq!(unknown(first, end, is_new), want, "{why}");
        }
    }

    #[test]
    fn an_intake_was_read_before_if_its_lane_was_and_the_intake_was_there() {
        let (lane_one, but_intake) =
            ([("intake", 1), ("delay.1s", 1)], [("intake", 2), ("delay.1s", 1)]);
        type Case<'a> = (&'a str, &'a [(&'a str, i32)], &'a str, i32, bool);
        #[rustfmt::skip]
        let table: [Case<'_>; 4] = [
            ("the first start of all",             &[],       "intake",    1, true),
            ("another lane's first start",         &lane_one, "intake",    2, true),
            ("an intake that was added later",     &lane_one, "intake.eu", 1, true),
            ("a checkpoint of it is gone",         &but_intake, "intake",  1, false),
        ];
        for (why, known, topic, partition, want) in table {
            assert_eq!(is_new(known, topic, partition), want, "{why}");
        }
    }
}
