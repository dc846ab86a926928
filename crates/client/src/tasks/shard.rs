//! Which shard of a run a task is.

use std::fmt;

/// Shards of one run.
const SHARDS_MAX: u32 = 10_000;

/// Which shard of how many: `3/60`, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ShardIndex {
    index: u32,
    count: u32,
}

impl ShardIndex {
    /// A task that is no shard of a run: 0 of 1.
    pub const WHOLE: Self = Self { index: 0, count: 1 };

    /// Reads `i/n`: n from 1 to 10,000, i from 0 and below n.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (index, count) = text.split_once('/')?;
        let number = |text: &str| -> Option<u32> {
            let is_plain = text == "0" || !text.starts_with(['0', '+']);
            text.parse().ok().filter(|_| is_plain)
        };
        let (index, count) = (number(index)?, number(count)?);
        (index < count && count <= SHARDS_MAX).then_some(Self { index, count })
    }

    /// Which one, from 0.
    #[must_use]
    pub const fn index(self) -> u32 {
        self.index
    }

    /// How many the run has.
    #[must_use]
    pub const fn count(self) -> u32 {
        self.count
    }
}

/// As a header has it.
impl fmt::Display for ShardIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.index, self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_is_below_the_count_of_its_run() {
        for (text, index, count) in [("0/1", 0, 1), ("3/60", 3, 60), ("9999/10000", 9_999, 10_000)]
        {
            let shard = ShardIndex::parse(text).expect("sound");
            assert_eq!((shard.index(), shard.count(), &*shard.to_string()), (index, count, text));
        }
        let wrong = [
            "",
            "/",
            "1",
            "1/",
            "/1",
            "1/1",
            "2/1",
            "0/0",
            "-1/2",
            "+1/2",
            "01/2",
            "0/02",
            " 0/1",
            "0/1 ",
            "0/10001",
            "0/1/2",
            "a/b",
            "0/4294967296",
        ];
        for text in wrong {
            assert_eq!(ShardIndex::parse(text), None, "{text:?}");
        }
    }
}
