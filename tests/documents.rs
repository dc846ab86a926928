//! What the pages point at is there: files and headings, and for each example its program, its commands and the tests that run it.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use regex::Regex;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The pages of a directory, and of those in it.
fn pages_below(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).expect("readable") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            pages_below(&path, found);
        } else if path.extension().is_some_and(|of| of == "md") {
            found.push(path);
        }
    }
}

fn pages() -> Vec<PathBuf> {
    let top = fs::read_dir(root()).expect("readable").map(|entry| entry.expect("an entry").path());
    let mut found: Vec<_> =
        top.filter(|path| path.extension().is_some_and(|of| of == "md")).collect();
    for directory in ["docs", "topics"] {
        pages_below(&root().join(directory), &mut found);
    }
    found
}

/// The lines of a page that stand in no block.
fn prose(text: &str) -> String {
    let mut is_block = false;
    let is_prose = |line: &&str| {
        let is_fence = line.trim_start().starts_with("```");
        is_block ^= is_fence;
        !is_fence && !is_block
    };
    text.lines().filter(is_prose).map(|line| format!("{line}\n")).collect()
}

/// What a link to each heading of a page ends with, as GitHub makes it.
fn anchors(page: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for line in prose(&read(page)).lines() {
        let Some((_, heading)) =
            line.split_once("# ").filter(|(level, _)| level.trim_matches('#').is_empty())
        else {
            continue;
        };
        let is_kept = |c: &char| c.is_alphanumeric() || " -_".contains(*c);
        let anchor: String = heading.trim().to_lowercase().chars().filter(is_kept).collect();
        let anchor = anchor.replace(' ', "-");
        let again = (1..).map(|n| format!("{anchor}-{n}")).find(|next| !found.contains(next));
        let is_first = !found.contains(&anchor);
        found.insert(again.filter(|_| !is_first).unwrap_or(anchor));
    }
    found
}

#[test]
fn every_link_of_the_pages_leads_somewhere() {
    let link = Regex::new(r"\]\(([^)\s]+)\)").expect("sound");
    let code = Regex::new(r"`[^`\n]*`").expect("sound");
    let (mut count, mut wrong) = (0, Vec::new());
    for page in pages() {
        let text = prose(&read(&page));
        let text = code.replace_all(&text, "");
        let of_ours = |to: &str| !to.contains("://") && !to.starts_with("mailto:");
        for to in link
            .captures_iter(&text)
            .map(|found| found.extract::<1>().1[0])
            .filter(|to| of_ours(to))
        {
            let (file, heading) = to.split_once('#').unwrap_or((to, ""));
            let directory = page.parent().expect("it is in one");
            let path = if file.is_empty() { page.clone() } else { directory.join(file) };
            let is_there =
                path.exists() && (heading.is_empty() || anchors(&path).contains(heading));
            if !is_there {
                wrong.push(format!("{}: {to}", page.display()));
            }
            count += 1;
        }
    }
    assert!(count > 500, "{count} links");
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// A row of the table of `docs/examples.md`.
struct Example {
    what: String,
    /// The files that it links to.
    files: Vec<PathBuf>,
    /// What stands there between backquotes.
    commands: Vec<String>,
    /// Who runs it.
    by: String,
}

fn examples() -> Vec<Example> {
    let page = root().join("docs/examples.md");
    let file = Regex::new(r"\]\(([^)#\s]+)").expect("sound");
    let code = Regex::new("`([^`]+)`").expect("sound");
    let all = |of: &Regex, text: &str| -> Vec<String> {
        of.captures_iter(text).map(|found| found[1].to_owned()).collect()
    };
    let text = read(&page);
    // Behind the heads of the columns.
    let rows = text.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |")).skip(1);
    let row = |row: &str| {
        let cells: Vec<&str> = row.split(" | ").collect();
        let [what, place, by] = cells[..] else { panic!("want three cells: {row}") };
        let files = all(&file, place).iter().map(|file| page.with_file_name(file)).collect();
        Example { what: what.to_owned(), files, commands: all(&code, place), by: by.to_owned() }
    };
    rows.map(row).collect()
}

#[test]
fn each_example_stands_somewhere_and_names_tests_that_are_there() {
    let named = Regex::new("`(tests/[^`]+)`").expect("sound");
    let is_test = Regex::new(r"(?m)^#\[test\]$|^in_every_language!\(").expect("sound");
    let examples = examples();
    assert!(examples.len() >= 10, "{}", examples.len());
    for (n, Example { what, files, by, .. }) in examples.iter().enumerate() {
        assert!(!files.is_empty(), "{what}: where it stands");
        let tests: Vec<_> = named.captures_iter(by).map(|found| root().join(&found[1])).collect();
        // That of the row before.
        assert!(!tests.is_empty() || by == "the same" && n > 0, "{what}: which test runs it: {by}");
        for test in tests {
            assert!(is_test.is_match(&read(&test)), "{what}: {} has no test", test.display());
        }
    }
}

/// Whether a command has the form that a line of usage says: words in capitals stand for something, `a|b` is one of them.
fn fits(usage: &str, command: &str) -> bool {
    let is_literal = |word: &str| word.chars().any(char::is_lowercase);
    let fits =
        |(want, word): (&str, &str)| !is_literal(want) || want.split('|').any(|of| of == word);
    usage.split_whitespace().count() == command.split_whitespace().count()
        && usage.split_whitespace().zip(command.split_whitespace()).all(fits)
}

#[test]
fn each_command_of_the_examples_is_one_of_its_program() {
    // The words by which a program is told what to do: `set`, and not `15m`.
    let word = Regex::new("^[a-z]+( |$)").expect("sound");
    let recipes = root().join("crates/client/examples/cookbook.rs");
    let mut count = 0;
    for Example { what, files, commands, .. } in examples() {
        let programs: Vec<_> =
            files.iter().filter(|file| file.extension().is_some_and(|of| of == "rs")).collect();
        for command in commands.iter().filter(|command| word.is_match(command)) {
            let usages = programs.iter().copied().chain([&recipes]).flat_map(|program| {
                let name =
                    program.file_stem().expect("a name").to_string_lossy().into_owned() + " ";
                let lines: Vec<String> =
                    read(program).lines().map(|line| line.trim().to_owned()).collect();
                lines.into_iter().filter_map(move |line| Some(line.strip_prefix(&name)?.to_owned()))
            });
            // A word alone names the command.
            let is_one = |usage: String| match command.contains(' ') {
                true => fits(&usage, command),
                false => usage.split(' ').next() == Some(command),
            };
            assert!(usages.into_iter().any(is_one), "{what}: no program has `{command}`");
            count += 1;
        }
    }
    assert!(count >= 5, "{count} commands");
}
