//! `rows.txt` and the tests say the same: `scripts/faults --list` shows what there is.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Rows by number, with the modules that they run in; `out`: left out, for the reason that follows.
fn listed() -> BTreeMap<u32, BTreeSet<String>> {
    let mut rows = BTreeMap::new();
    for line in include_str!("rows.txt").lines().filter(|line| !line.starts_with('#')) {
        let mut words = line.split_whitespace();
        let (row, places) = words.next().zip(words.next()).expect("a row and where it runs");
        let row = row.strip_prefix('F').and_then(|row| row.parse().ok()).expect("F and a number");
        assert!(words.count() > 2, "F{row}: what it is, or why it is left out");
        let places = places.split(',').map(str::to_owned).collect();
        assert!(rows.insert(row, places).is_none(), "F{row} is there twice");
    }
    rows
}

/// The numbers of the tests of a module: `fn f16_...`.
fn tested(module: &str) -> BTreeSet<u32> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/faults").join(module);
    let Ok(files) = std::fs::read_dir(directory) else { return BTreeSet::new() };
    let mut rows = BTreeSet::new();
    for file in files {
        let text = std::fs::read_to_string(file.expect("a file").path()).expect("readable");
        let named = text.lines().filter_map(|line| line.strip_prefix("fn f")?.split_once('_'));
        rows.extend(named.filter_map(|(row, _)| row.parse::<u32>().ok()));
    }
    rows
}

#[test]
fn every_row_is_listed_where_it_runs_or_with_the_reason_why_it_does_not() {
    let listed = listed();
    for module in ["one", "three", "root", "long"] {
        let here =
            |(row, places): (&u32, &BTreeSet<String>)| places.contains(module).then_some(*row);
        let want: BTreeSet<u32> = listed.iter().filter_map(here).collect();
        assert_eq!(tested(module), want, "tests and rows.txt, of module {module}");
    }
    let known = ["one", "three", "root", "long", "elsewhere", "out"];
    for (row, places) in &listed {
        assert!(places.iter().all(|place| known.contains(&&**place)), "F{row}: {places:?}");
    }
}
