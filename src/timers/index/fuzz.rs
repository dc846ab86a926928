//! What stands on disk, given any bytes. For fuzzing only: it must neither panic nor contradict itself.
#![allow(clippy::unwrap_used, reason = "what a test may do")]

use std::ops::ControlFlow;

use super::{entry, leaf, string_table};
use crate::engine::timers::{Timer, TimerId};

/// Reads a value of the store, and each entry in it as everything that it could be.
pub fn read(name: &[u8], value: &[u8], is_leaf: bool) {
    let mut strings = string_table::StringTable::default();
    strings.add("orders");
    let entries = if is_leaf {
        leaf::Entries::of_leaf(name, value).map(|(entries, _)| entries)
    } else {
        leaf::Entries::of_run(name, value)
    };
    let Ok(entries) = entries else { return };
    let _ = entries.each(|key, value| {
        let _ =
            (entry::timed(key), entry::name_in(key), entry::attempt_in(key), entry::looked_up(key));
        let name = TimerId([7; 16]);
        if let Some(value) = value {
            let _ = (entry::read_due(value), entry::due_value(value), entry::read_end(value));
            let _ = (entry::read_attempt(name, 7, value), entry::read_definition(name, value));
            let _ = (entry::read_live(name, value, &strings), entry::read_cancel_mark(name, value));
            if let Some(timer) = entry::read_timer(name, value, &strings) {
                kept(&timer, &strings);
            }
        }
        ControlFlow::Continue(())
    });
}

/// The same with the right check behind it.
pub fn read_sealed(name: &[u8], bytes: &[u8], is_leaf: bool) {
    read(name, &leaf::sealed(name, bytes.to_vec()), is_leaf);
}

/// A timer that was read is written and read back.
fn kept(timer: &Timer, strings: &string_table::StringTable) {
    let value = entry::timer_value(timer, strings);
    assert_eq!(entry::read_timer(timer.timer_id, &value, strings).as_ref(), Some(timer));
}

/// What is written is read back, entry by entry.
pub fn write(name: &[u8], entries: &[(Vec<u8>, Option<Vec<u8>>)]) {
    let mut writer = leaf::Writer::run();
    for (key, value) in entries {
        writer.add(key, value.as_deref());
    }
    let run = writer.end_run(name);
    let mut found = Vec::new();
    let read = leaf::Entries::of_run(name, &run).unwrap().each(|key, value| {
        found.push((key.to_vec(), value.map(<[u8]>::to_vec)));
        ControlFlow::Continue(())
    });
    assert!(read.is_ok() && found == entries);
}
