//! The reserve for the time that brokers take: doubled each time that it was not enough, and halved again later.

use super::{Millis, UnixMillis};

/// It is halved again after this long.
const HALVES: Millis = Millis(60_000);
/// How often it is doubled, at most.
const DOUBLINGS_MAX: u32 = 8;

/// How long something takes, as long as it never took longer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Margin {
    least: Millis,
    doublings: u32,
    since: UnixMillis,
}

impl Margin {
    pub(super) fn new(least: Millis) -> Self {
        Self { least, doublings: 0, since: UnixMillis(0) }
    }

    pub(super) fn at(self, now: UnixMillis) -> Millis {
        Millis(self.least.0 << self.doublings_at(now))
    }

    /// It was not enough.
    pub(super) fn widen(&mut self, now: UnixMillis) {
        self.doublings = (self.doublings_at(now) + 1).min(DOUBLINGS_MAX);
        self.since = now;
    }

    fn doublings_at(self, now: UnixMillis) -> u32 {
        let halvings = (now - self.since).0 / HALVES.0;
        u64::from(self.doublings).saturating_sub(halvings) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_doubles_each_time_and_halves_with_each_minute() {
        let (mut margin, at) = (Margin::new(Millis(50)), UnixMillis);
        assert_eq!(margin.at(at(1_000_000)), Millis(50));
        margin.widen(at(1_000_000));
        margin.widen(at(1_030_000));
        assert_eq!(margin.at(at(1_089_999)), Millis(200));
        assert_eq!(margin.at(at(1_090_000)), Millis(100));
        margin.widen(at(1_090_000));
        assert_eq!(margin.at(at(1_090_001)), Millis(200));
        assert_eq!(margin.at(at(9_000_000)), Millis(50));
        (0..99).for_each(|_| margin.widen(at(9_000_000)));
        assert_eq!(margin.at(at(9_000_000)), Millis(50 * 256));
    }
}
