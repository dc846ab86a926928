//! Tables without lines, for people.

use comfy_table::{ContentArrangement, Table, presets};

use crate::terminal;

/// An empty table; its rows are as wide as what stands in them.
pub(super) fn plain() -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table
}

/// An empty table that is no wider than the terminal: what does not fit is broken into lines.
pub(super) fn fitted() -> Table {
    let mut table = plain();
    if let Some(columns) = terminal::columns() {
        table.set_width(columns).set_content_arrangement(ContentArrangement::Dynamic);
    }
    table
}
