//! What a pool does next: loads a batch of a part, or processes an item. It does neither itself.
//!
//! # Invariants
//! 1. A part is loaded by one load at a time, each from behind the last item of the one before.
//! 2. Items that wait to be processed are at most as many as the queue takes, those that are being loaded included.
//! 3. The cursor of a part is the last before which all of its items are processed.

use std::collections::VecDeque;

use waterclock_engine::task::result::CURSOR_MAX;

use super::window::Window;
use crate::worker::Failed;

/// An item that is far ahead of the slowest one waits: what is behind the cursor is at most so many times what the queue takes.
const AHEAD: usize = 16;

/// What to load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Next {
    pub(super) part: usize,
    pub(super) cursor: Option<String>,
    pub(super) limit: usize,
}

/// Which item is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Number {
    part: usize,
    item: u64,
}

#[derive(Debug)]
struct Part {
    window: Window,
    /// What is being loaded of it, at the most.
    loading: Option<usize>,
    is_at_end: bool,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Plan<T> {
    parts: Vec<Part>,
    /// The part that is looked at first.
    turn: usize,
    waiting: VecDeque<(Number, T)>,
    queue: usize,
    processing: usize,
}

/// The parts of a cursor: a JSON list of texts, `null` for a part of which nothing is processed. How many parts a shard has is
/// said by its first cursor.
pub(super) fn parse(cursor: Option<&str>, parts: usize) -> Result<Vec<Option<String>>, Failed> {
    let Some(cursor) = cursor else { return Ok(vec![None; parts]) };
    let read: Option<Vec<Option<String>>> = serde_json::from_str(cursor).ok();
    read.filter(|parts| !parts.is_empty())
        .ok_or_else(|| Failed::gone(format!("the cursor {cursor:?} is not one of a pool")))
}

impl<T> Plan<T> {
    pub(super) fn new(parts: Vec<Option<String>>, queue: usize) -> Self {
        let part = |cursor| Part { window: Window::new(cursor), loading: None, is_at_end: false };
        let parts = parts.into_iter().map(part).collect();
        Self { parts, turn: 0, waiting: VecDeque::new(), queue, processing: 0 }
    }

    pub(super) fn parts(&self) -> usize {
        self.parts.len()
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Whether all items are loaded and processed.
    pub(super) fn is_done(&self) -> bool {
        self.parts.iter().all(|part| part.is_at_end && part.window.len() == 0)
    }

    /// The next load, if one of so many producers is free, and there is room for what it brings.
    pub(super) fn load(&mut self, producers: usize) -> Option<Next> {
        let loading = self.parts.iter().filter(|part| part.loading.is_some()).count();
        // Half of the queue, so that the next batch is loaded while this one is processed.
        let limit = (self.queue / 2 / producers.clamp(1, self.parts.len())).max(1);
        let reserved: usize = self.parts.iter().filter_map(|part| part.loading).sum();
        let open: usize = self.parts.iter().map(|part| part.window.len()).sum();
        if loading >= producers
            || self.waiting.len() + reserved + limit > self.queue
            || open + reserved + limit > self.queue.saturating_mul(AHEAD)
        {
            return None;
        }
        let count = self.parts.len();
        let at = (0..count).map(|next| (self.turn + next) % count).find(|at| {
            let part = &self.parts[*at];
            part.loading.is_none() && !part.is_at_end
        })?;
        self.turn = at + 1;
        let part = &mut self.parts[at];
        part.loading = Some(limit);
        Some(Next { part: at, cursor: part.window.end().map(str::to_owned), limit })
    }

    /// A load has brought these items, each with the cursor behind it; none: the part has no more. What is beyond the limit is left
    /// for the next load. Gives how many were taken.
    pub(super) fn loaded(&mut self, part: usize, items: Vec<(String, T)>) -> usize {
        let of = &mut self.parts[part];
        let limit = of.loading.take().unwrap_or_default();
        of.is_at_end = items.is_empty();
        let before = self.waiting.len();
        for (cursor, item) in items.into_iter().take(limit) {
            let number = Number { part, item: of.window.push(cursor) };
            self.waiting.push_back((number, item));
        }
        self.waiting.len() - before
    }

    /// The next item, if one of so many consumers is free.
    pub(super) fn process(&mut self, consumers: usize) -> Option<(Number, T)> {
        let next = (self.processing < consumers).then(|| self.waiting.pop_front())??;
        self.processing += 1;
        Some(next)
    }

    /// An item is processed well; whether the cursor has moved.
    pub(super) fn processed(&mut self, number: Number) -> bool {
        self.processing = self.processing.saturating_sub(1);
        self.parts[number.part].window.done(number.item)
    }

    /// The cursor of the shard; `None`: nothing of it is processed.
    ///
    /// # Errors
    /// It is longer than a cursor may be.
    pub(super) fn cursor(&self) -> Result<Option<String>, Failed> {
        let parts: Vec<Option<&str>> = self.parts.iter().map(|part| part.window.cursor()).collect();
        if parts.iter().all(Option::is_none) {
            return Ok(None);
        }
        let text = serde_json::to_string(&parts)?;
        if text.len() > CURSOR_MAX {
            let error =
                format!("the cursors of {} parts have more than {CURSOR_MAX} bytes", parts.len());
            return Err(Failed::gone(error));
        }
        Ok(Some(text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(of: std::ops::Range<u64>) -> Vec<(String, u64)> {
        of.map(|row| ((row + 1).to_string(), row)).collect()
    }

    #[test]
    fn a_part_is_loaded_by_one_load_at_a_time_and_the_queue_is_a_bound() {
        let mut plan: Plan<u64> = Plan::new(vec![None, Some("7".to_owned())], 8);
        assert_eq!(plan.cursor(), Ok(Some(r#"[null,"7"]"#.to_owned())));
        let first = plan.load(2).expect("room");
        assert_eq!(first, Next { part: 0, cursor: None, limit: 2 });
        let second = plan.load(2).expect("room");
        assert_eq!(second, Next { part: 1, cursor: Some("7".to_owned()), limit: 2 });
        assert_eq!(plan.load(9), None, "each part is being loaded");
        assert_eq!(plan.process(9), None);
        assert_eq!(plan.loaded(0, rows(0..3)), 2, "what is too much is left");
        assert_eq!(plan.load(1), None, "one producer has enough to do");
        let third = plan.load(2).expect("room");
        assert_eq!(third, Next { part: 0, cursor: Some("2".to_owned()), limit: 2 });
        assert_eq!(plan.loaded(0, rows(2..4)), 2);
        assert_eq!(plan.loaded(1, rows(7..9)), 2);
        let fourth = plan.load(2).expect("just so much room");
        assert_eq!((fourth.part, plan.waiting()), (1, 6));
        assert_eq!(plan.load(2), None, "full");
        let item = plan.process(1).expect("an item");
        assert_eq!(item.1, 0);
        assert_eq!(plan.process(1), None, "one consumer has enough to do");
        assert!(plan.processed(item.0));
        assert_eq!(plan.cursor(), Ok(Some(r#"["1","7"]"#.to_owned())));
        // Fewer consumers than are at work: the next item waits until there are fewer.
        let (one, two) = (plan.process(2).expect("an item"), plan.process(2).expect("an item"));
        assert_eq!(plan.process(1), None);
        assert!(plan.processed(one.0) | plan.processed(two.0));
        assert!(plan.process(1).is_some());
    }

    #[test]
    fn a_slow_item_keeps_the_others_from_running_too_far_ahead() {
        let mut plan: Plan<u64> = Plan::new(vec![None], 2);
        let (mut row, mut slow) = (0, None);
        while let Some(next) = plan.load(1) {
            assert_eq!(next.cursor, (row > 0).then(|| row.to_string()));
            row += plan.loaded(0, rows(row..row + 1)) as u64;
            let item = plan.process(9).expect("an item");
            match slow {
                None => slow = Some(item.0),
                Some(_) => assert!(!plan.processed(item.0)),
            }
        }
        assert_eq!((row, plan.cursor()), (32, Ok(None)));
        assert!(plan.processed(slow.expect("the first")));
        assert_eq!(plan.cursor(), Ok(Some(r#"["32"]"#.to_owned())));
        assert!(plan.load(1).is_some() && !plan.is_done());
        assert_eq!(plan.loaded(0, Vec::new()), 0);
        assert!(plan.load(1).is_none() && plan.is_done(), "it is at its end");
    }

    #[test]
    fn a_cursor_says_how_many_parts_there_are_and_has_a_bound() {
        assert_eq!(parse(None, 3), Ok(vec![None; 3]));
        let two = parse(Some(r#"["a",null]"#), 3).expect("a cursor");
        assert_eq!(two, [Some("a".to_owned()), None]);
        for wrong in ["", "7", "[]", "[7]", "{}", "row:8"] {
            let failed = parse(Some(wrong), 1).expect_err("none of a pool");
            assert!(failed.is_final(), "{wrong}");
        }
        let long = |length: usize| Plan::<u64>::new(vec![Some("x".repeat(length))], 1);
        assert_eq!(long(252).cursor().expect("short").map(|text| text.len()), Some(256));
        assert!(long(253).cursor().expect_err("too long").is_final());
        let sound = Plan::<u64>::new(vec![Some("a\nb".to_owned())], 1).cursor().expect("short");
        assert_eq!(sound.as_deref(), Some(r#"["a\nb"]"#), "no control character");
    }
}
