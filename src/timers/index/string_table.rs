//! Targets and labels by number: a million entries name a few of them.

use std::collections::HashMap;
use std::sync::Arc;

/// Labels get no number any more when there are so many texts. Targets do: each is a topic.
const LABELS_MAX: usize = 4_096;

/// The texts of a lane.
#[derive(Debug, Default)]
pub(super) struct StringTable {
    by_number: Vec<Arc<str>>,
    numbers: HashMap<Arc<str>, u32>,
}

impl StringTable {
    pub(super) fn number(&self, text: &str) -> Option<u32> {
        self.numbers.get(text).copied()
    }

    pub(super) fn text(&self, number: u32) -> Option<&Arc<str>> {
        self.by_number.get(number as usize)
    }

    /// Whether a label that has no number is to get one.
    pub(super) fn takes_labels(&self) -> bool {
        self.by_number.len() < LABELS_MAX
    }

    /// Gives a text the next number.
    pub(super) fn add(&mut self, text: &str) -> u32 {
        let (number, text) = (self.by_number.len() as u32, Arc::from(text));
        self.by_number.push(Arc::clone(&text));
        self.numbers.insert(text, number);
        number
    }
}
