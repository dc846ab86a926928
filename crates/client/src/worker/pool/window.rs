//! The items of one part of a shard that were loaded, in their order, and how far all of them are processed.

use std::collections::VecDeque;

/// See the module.
#[derive(Debug)]
pub(super) struct Window {
    /// The last cursor before which all items are processed; `None`: none is.
    cursor: Option<String>,
    /// The number of the first item behind it.
    first: u64,
    items: VecDeque<Item>,
}

#[derive(Debug)]
struct Item {
    /// Stands behind it.
    cursor: String,
    is_done: bool,
}

impl Window {
    pub(super) fn new(cursor: Option<String>) -> Self {
        Self { cursor, first: 0, items: VecDeque::new() }
    }

    pub(super) fn cursor(&self) -> Option<&str> {
        self.cursor.as_deref()
    }

    /// Where to go on loading: behind the last item that was loaded.
    pub(super) fn end(&self) -> Option<&str> {
        self.items.back().map_or_else(|| self.cursor(), |item| Some(&item.cursor))
    }

    /// Items that are not below the cursor.
    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

    /// The next item was loaded. Gives its number.
    pub(super) fn push(&mut self, cursor: String) -> u64 {
        self.items.push_back(Item { cursor, is_done: false });
        self.first + self.items.len() as u64 - 1
    }

    /// An item is processed; whether the cursor has moved.
    pub(super) fn done(&mut self, number: u64) -> bool {
        let at = number.checked_sub(self.first).and_then(|at| usize::try_from(at).ok());
        if let Some(item) = at.and_then(|at| self.items.get_mut(at)) {
            item.is_done = true;
        }
        let first = self.first;
        while let Some(item) = self.items.pop_front_if(|item| item.is_done) {
            self.cursor = Some(item.cursor);
            self.first += 1;
        }
        self.first > first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cursor_stands_before_the_first_item_that_is_open() {
        let mut window = Window::new(Some("0".to_owned()));
        assert_eq!((window.cursor(), window.end()), (Some("0"), Some("0")));
        let numbers: Vec<u64> = (1..=4).map(|row| window.push(row.to_string())).collect();
        assert_eq!(window.end(), Some("4"));
        assert!(!window.done(numbers[1]) && !window.done(numbers[2]));
        assert_eq!((window.cursor(), window.len()), (Some("0"), 4));
        assert!(window.done(numbers[0]));
        assert_eq!((window.cursor(), window.len()), (Some("3"), 1));
        // Said twice, or of an item that is not there.
        assert!(!window.done(numbers[0]) && !window.done(99));
        assert!(window.done(numbers[3]));
        assert_eq!((window.cursor(), window.end(), window.len()), (Some("4"), Some("4"), 0));
        assert!({
            let next = window.push("5".to_owned());
            window.done(next)
        });
        assert_eq!(window.cursor(), Some("5"));
    }

    #[test]
    fn in_whatever_order_items_end_no_open_one_is_below_the_cursor() {
        // Every order of five items.
        let mut orders = vec![vec![]];
        for _ in 0..5 {
            let longer = |order: &Vec<u64>| {
                let order = order.clone();
                let rest = (0..5).filter({
                    let order = order.clone();
                    move |next| !order.contains(next)
                });
                rest.map(move |next| [&order[..], &[next]].concat()).collect::<Vec<_>>()
            };
            orders = orders.iter().flat_map(longer).collect();
        }
        assert_eq!(orders.len(), 120);
        for order in orders {
            let mut window = Window::new(None);
            let pushed = (1..=5_u64).map(|row| window.push(row.to_string()));
            assert_eq!(pushed.last(), Some(4));
            for (count, number) in order.iter().enumerate() {
                let before = window.cursor().map(str::to_owned);
                let has_moved = window.done(*number);
                let done = &order[..=count];
                let want = (0..5).take_while(|row| done.contains(row)).count();
                let cursor = window.cursor().map_or(0, |cursor| cursor.parse().expect("a row"));
                assert_eq!(cursor, want, "{order:?}");
                assert_eq!(has_moved, before.as_deref() != window.cursor(), "{order:?}");
            }
        }
    }
}
