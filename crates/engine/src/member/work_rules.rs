//! How positions of workers are read: the metadata of one is what [`Position`] says.

use super::{LogBounds, Rules, Unknown};
use crate::Offset;
use crate::work::Position;

/// Workers: one that cannot know what was called takes all of it for doubtful. So nobody has to decide anything, and nothing is
/// lost: what is reported twice is stale.
#[derive(Clone, Copy, Debug)]
pub enum WorkRules {}

impl Rules for WorkRules {
    fn cut(next: Offset, metadata: &str, start: Offset) -> Option<(Offset, String, u64)> {
        let (Position { next, metadata }, lost) = Position::cut(next, metadata, start)?;
        Some((next, metadata, lost))
    }

    /// The engine tells of one that it cannot read, and goes on.
    fn is_readable(_: Offset, _: &str) -> bool {
        true
    }

    fn unknown(_: LogBounds, _: bool) -> Unknown {
        Unknown::Fresh
    }

    fn first_metadata(log: LogBounds) -> String {
        Position::first(log.first).metadata
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_partition_that_nothing_was_deleted_from_begins_without_doubt() {
        let first = |first| WorkRules::first_metadata(LogBounds { first, end: Offset(9) });
        assert_eq!((first(Offset(0)), first(Offset(3))), ("c".to_owned(), "d".to_owned()));
    }

    #[test]
    fn a_position_whose_log_begins_later_keeps_its_letter() {
        let cut = |metadata| WorkRules::cut(Offset(3), metadata, Offset(7));
        assert_eq!(cut("c"), Some((Offset(7), "c".to_owned(), 4)));
        assert_eq!(cut("d"), Some((Offset(7), "d".to_owned(), 4)));
        assert_eq!(cut(""), Some((Offset(7), "d".to_owned(), 4)), "in doubt, as it does not say");
        assert_eq!(cut("c!"), None);
    }
}
