//! The one source of luck: a generator seeded with a `u64`, and the few draws that a simulation needs.
//!
//! A seed alone repeats a run, because nothing else is drawn: no clock, no thread, no hash order.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// A seeded stream of draws.
pub struct Chance(StdRng);

impl Chance {
    pub fn new(seed: u64) -> Self {
        Self(StdRng::seed_from_u64(seed))
    }

    /// A stream of its own, so that drawing more in one part leaves the others as they were.
    pub fn split(&mut self) -> Self {
        Self::new(self.0.random())
    }

    /// `low..=high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        self.0.random_range(low..=high)
    }

    /// An index below `len`, which is not zero.
    pub fn below(&mut self, len: usize) -> usize {
        self.0.random_range(0..len)
    }

    pub fn percent(&mut self, of_hundred: u32) -> bool {
        self.0.random_range(0..100) < of_hundred
    }

    /// `low..=high`, each order of magnitude equally often.
    pub fn spread(&mut self, low: u64, high: u64) -> u64 {
        let (from, to) = ((low.max(1) as f64).ln(), (high as f64).ln());
        (self.0.random_range(from..=to).exp() as u64).clamp(low, high)
    }

    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }

    /// A time on the way: mostly next to nothing, sometimes nothing, seldom as long as it gets.
    pub fn latency(&mut self, most: u64) -> u64 {
        match self.between(0, 9) {
            0..=2 => 0,
            3..=8 => self.between(0, most.div_ceil(8)),
            _ => self.between(0, most),
        }
    }
}
