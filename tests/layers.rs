//! Which crate and which room may know which. The manifests keep the walls between crates; here stands what they may name, and
//! what the compiler cannot keep inside of one.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// What no line of the engine may name, outside of comments and tests. Its manifest keeps other people's libraries out.
const WORLD: [&str; 10] = [
    "std::fs",
    "std::net",
    "std::thread",
    "std::env",
    "std::process",
    "Instant",
    "SystemTime",
    "Mutex",
    "async ",
    ".await",
];
/// What the engine's manifest may name: text, numbers and hashes.
const ENGINE_MAY_USE: [&str; 7] = ["base64", "hmac", "jiff", "regex", "serde", "sha2", "thiserror"];
/// Crates of ours from the bottom to the top, by their directories. Each may use some of those above it in this list.
const CRATES: [(&str, &[&str]); 8] = [
    ("crates/engine", &[]),
    ("crates/terminal", &["engine"]),
    ("crates/telemetry", &["engine"]),
    ("crates/kafka", &["engine", "telemetry"]),
    ("crates/client", &["engine", "kafka"]),
    ("crates/tools", &["engine", "kafka", "terminal"]),
    (".", &["client", "engine", "kafka", "telemetry", "terminal", "tools"]),
    ("crates/fuzz-targets", &["engine"]),
];
/// Libraries that only these crates may name among their dependencies.
const LIBRARIES: [(&str, &[&str]); 9] = [
    ("rdkafka", &["crates/kafka"]),
    ("metrics", &["crates/telemetry", "."]),
    ("sled", &["."]),
    ("axum", &["."]),
    ("ratatui", &["crates/tools"]),
    ("plotters", &["crates/tools"]),
    ("hdrhistogram", &["crates/tools"]),
    ("clap", &[".", "crates/tools"]),
    ("metrics-exporter-prometheus", &["."]),
];
/// Where the root names the other crates; it says `crate::engine` elsewhere. They name each other as they are.
const FACES: [&str; 3] = ["src/lib.rs", "src/telemetry/mod.rs", "crates/"];
/// What only these may name: a word, and the rooms.
const OWNERS: [(&str, &[&str]); 12] = [
    ("waterclock_engine", &FACES),
    ("waterclock_telemetry", &FACES),
    ("waterclock_kafka", &FACES),
    ("waterclock_client", &FACES),
    ("waterclock_terminal", &FACES),
    ("waterclock_tools", &FACES),
    ("axum::", &["src/api"]),
    ("ratatui::", &["crates/tools"]),
    ("clap::", &["src/cli", "crates/tools"]),
    ("sled::", &["src/timers/index"]),
    ("metrics::", &["src/telemetry", "crates/telemetry"]),
    ("SystemTime::now", &["crates/kafka/src/client/wall_clock.rs"]),
];
/// Rooms that may not import these rooms.
const STRANGERS: [(&str, &[&str]); 5] = [
    ("src/timers", &["crate::api", "crate::app", "crate::cli", "crate::config"]),
    ("src/timers/index", &["crate::kafka", "crate::timers::", "super::super::"]),
    (
        "src/api",
        &[
            "crate::kafka",
            "crate::app",
            // Not crate::client, whose timer in JSON the API writes.
            "crate::cli::",
            "crate::cli;",
            "crate::config",
            "crate::timers",
            // Of the engine, only the words of the contract and the model of a timer.
            "LaneEngine",
            "crate::engine::lanes",
            "crate::engine::messages",
            "crate::engine::state",
            "crate::engine::window",
        ],
    ),
    ("src/telemetry", &["crate::kafka", "crate::app", "crate::cli", "crate::timers"]),
    ("src/app", &["crate::cli", "crate::terminal", "crate::tools"]),
];
/// The rooms of `crates/kafka`, from the bottom to the top: each knows those below it.
const ROOMS: [&str; 8] =
    ["client", "meta", "topics", "cluster", "logs", "member", "doctor", "bench"];

/// Every source file below a place, with its path from the root of the project.
fn sources(below: &str) -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    let mut rooms: Vec<PathBuf> = vec![root.join(below)];
    while let Some(room) = rooms.pop() {
        for entry in fs::read_dir(&room).expect("a room of the tree") {
            let path = entry.expect("readable").path();
            if path.is_dir() {
                rooms.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let name = path.strip_prefix(root).expect("below the root").display().to_string();
                found.push((name, fs::read_to_string(&path).expect("utf-8")));
            }
        }
    }
    assert!(!found.is_empty(), "the rule checked nothing below {below}");
    found
}

/// The lines of code of a file with their numbers: no comments, and no item that only tests have.
fn code(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    // The indentation of the item that is passed over.
    let mut passed_over = None;
    for (at, line) in text.lines().enumerate() {
        let indent = line.len() - line.trim_start().len();
        let word = line.trim();
        match passed_over {
            // As rustfmt lays an item out, no line before its last one ends like this so far to the left.
            Some(of_item) => {
                let is_attribute = word.starts_with("#[");
                if indent == of_item && !is_attribute && word.ends_with([';', '}', ',']) {
                    passed_over = None;
                }
            }
            None if word.starts_with("#[cfg(test)]") || word.starts_with("#[cfg(all(test") => {
                passed_over = Some(indent);
            }
            None => found.push((at + 1, line.split("//").next().unwrap_or_default())),
        }
    }
    found
}

fn breaches(below: &str, words: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    for (name, text) in sources(below) {
        // An example is a service, which may name what it likes.
        if ["tests.rs", "/tests/", "/examples/"].iter().any(|of| name.contains(of)) {
            continue;
        }
        for (number, line) in code(&text) {
            for word in words.iter().filter(|word| line.contains(*word)) {
                found.push(format!("{name}:{number}: {word}"));
            }
        }
    }
    found
}

#[test]
fn the_engine_does_not_reach_for_the_world() {
    assert_eq!(breaches("crates/engine/src", &WORLD), Vec::<String>::new());
}

/// The lines of a struct of the engine's lanes.
fn fields<'a>(lines: &[(usize, &'a str)], name: &str) -> Vec<&'a str> {
    let head = format!("struct {name} {{");
    let lines = lines.iter().map(|(_, line)| *line).skip_while(|line| !line.ends_with(&head));
    let fields = lines.skip(1).take_while(|line| *line != "}").map(str::trim);
    fields.filter(|field| field.contains(": ")).collect()
}

/// Which file may touch what: a field that is private belongs to its file.
#[test]
fn the_engine_of_a_thread_has_few_parts_and_their_fields_are_private() {
    let sources = sources("crates/engine/src");
    let files: Vec<_> = sources.iter().map(|(name, text)| (name, code(text))).collect();
    let of = |name: &str| -> Vec<&str> {
        files.iter().flat_map(|(_, lines)| fields(lines, name)).collect()
    };
    let parts = of("LaneEngine");
    assert!((1..=12).contains(&parts.len()), "{} fields: {parts:?}", parts.len());
    for part in parts {
        let (_, kind) = part.split_once(": ").expect("a name and a type");
        let kind = kind.trim_end_matches(',');
        if kind == "Arc<Setup>" {
            continue;
        }
        let fields = of(kind);
        assert!(!fields.is_empty(), "no struct {kind}");
        let (name, lines) = files
            .iter()
            .find(|(_, lines)| !self::fields(lines, kind).is_empty())
            .expect("a file that has it");
        let knows_engine = lines.iter().any(|(_, line)| line.contains("LaneEngine"));
        assert!(!knows_engine, "{name} has {kind}, and knows the engine");
        // What is a part itself has walls of its own.
        let is_part = |field: &str| {
            field.split_once(": ").is_some_and(|(_, kind)| {
                ["Past", "Retention", "Calling"].contains(&kind.trim_end_matches(','))
            })
        };
        let open: Vec<_> =
            fields.iter().filter(|field| field.starts_with("pub") && !is_part(field)).collect();
        assert!(open.is_empty(), "{kind} shows {open:?}");
    }
}

fn manifest(path: &str) -> toml::Table {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path));
    text.expect("a manifest").parse().expect("a manifest in TOML")
}

#[test]
fn the_engines_manifest_names_nothing_of_the_world() {
    let manifest = manifest("crates/engine/Cargo.toml");
    let tables: Vec<_> = manifest.keys().map(String::as_str).collect();
    // No other table: neither dependencies of a build or of one platform, nor features that could bring some.
    assert_eq!(tables, ["dependencies", "dev-dependencies", "lints", "package"]);
    let names: Vec<_> = manifest["dependencies"].as_table().expect("a table").keys().collect();
    assert_eq!(names, ENGINE_MAY_USE);
    for (name, said) in manifest["dependencies"].as_table().expect("a table") {
        // A manifest with `package = ...` would bring another library under this name.
        assert_eq!(said.to_string(), "{ workspace = true }", "{name}");
    }
}

#[test]
fn a_crate_names_those_below_it_and_no_library_of_another() {
    let shared = manifest("Cargo.toml");
    let shared = shared["workspace"]["dependencies"].as_table().expect("a table");
    for (name, from) in shared {
        assert!(from.get("package").is_none(), "{name} is another package");
    }
    for (at, below) in CRATES {
        let manifest = manifest(&format!("{at}/Cargo.toml"));
        let names = manifest["dependencies"].as_table().expect("a table");
        assert!(manifest.get("target").is_none() && manifest.get("build-dependencies").is_none());
        let ours = names.keys().filter_map(|name| name.strip_prefix("waterclock-"));
        assert_eq!(ours.collect::<Vec<_>>(), below, "{at}");
        for (library, crates) in LIBRARIES {
            assert!(!names.contains_key(library) || crates.contains(&at), "{at} names {library}");
        }
        for (name, from) in names {
            assert!(from.get("package").is_none(), "{at}: {name} is another package");
        }
    }
}

/// The room of a file of `crates/kafka`, and what it names of the crate.
fn named(path: &str, text: &str) -> (String, BTreeSet<String>) {
    let inside = path.strip_prefix("crates/kafka/src/").expect("a file of it");
    let room = inside.split(['/', '.']).next().expect("a name").to_owned();
    let lines = code(text);
    let words = lines.iter().flat_map(|(_, line)| line.split("crate::").skip(1));
    let first = |rest: &str| -> String {
        rest.chars().take_while(|c| c.is_alphanumeric() || "_{".contains(*c)).collect()
    };
    (room, words.map(first).collect())
}

#[test]
fn the_rooms_of_kafka_know_those_below_them() {
    let mut seen = BTreeSet::new();
    for (path, text) in sources("crates/kafka/src") {
        if path.ends_with("src/lib.rs") || path.ends_with("tests.rs") || path.contains("/tests/") {
            continue;
        }
        let (room, named) = named(&path, &text);
        let floor = ROOMS.iter().position(|of| *of == room);
        let floor = floor.unwrap_or_else(|| panic!("{path} is in no room"));
        seen.insert(room);
        for name in named {
            let is_below = ROOMS[..=floor].contains(&name.as_str());
            assert!(is_below, "{path} names {name}");
        }
    }
    assert_eq!(seen.len(), ROOMS.len(), "{seen:?}");
}

/// Else a plain `cargo test` would pass over the engine's tests in silence.
#[test]
fn a_plain_cargo_command_takes_every_crate() {
    let workspace = &manifest("Cargo.toml")["workspace"];
    assert_eq!(workspace["default-members"], workspace["members"]);
    let members = workspace["members"].as_array().expect("a list");
    let members: Vec<_> = members.iter().map(|member| member.as_str().expect("a path")).collect();
    assert!(members.iter().all(|member| CRATES.iter().any(|(at, _)| at == member)), "{members:?}");
    let mut there = vec![".".to_owned()];
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates");
    for entry in fs::read_dir(crates).expect("crates") {
        there.push(format!("crates/{}", entry.expect("readable").file_name().display()));
    }
    there[1..].sort();
    assert_eq!(members, there);
}

#[test]
fn a_library_is_named_in_its_own_room_only() {
    for (word, rooms) in OWNERS {
        let strays = ["src", "crates"].map(|below| breaches(below, &[word])).concat();
        let strays: Vec<_> =
            strays.iter().filter(|at| !rooms.iter().any(|room| at.starts_with(room))).collect();
        assert!(strays.is_empty(), "{word} belongs to {rooms:?}: {strays:#?}");
    }
}

/// Else each place has a list of its own, and each list a gap of its own. What librdkafka answers in codes is handed on as it
/// is by `client/raw`; of what a code means `client/errors.rs` has the only list.
#[test]
fn what_an_error_code_means_is_said_in_one_place() {
    let codes = breaches("crates/kafka/src", &["RDKafkaErrorCode::", "RDKafkaErrorCode as"]);
    let at_home = ["crates/kafka/src/client/errors.rs", "crates/kafka/src/client/raw"];
    let strays: Vec<_> =
        codes.iter().filter(|at| !at_home.iter().any(|home| at.starts_with(home))).collect();
    assert!(strays.is_empty(), "{strays:#?}");
    let home = codes.iter().filter(|at| at.starts_with(at_home[0])).count();
    assert!(home > 0, "the rule sees the list");
}

/// Else each reader of a topic has a loop of its own, which takes a transaction's mark or an old end for something else.
#[test]
fn topics_are_read_in_one_place() {
    #[rustfmt::skip]
    let may = [
        // Where clients are made, asked and polled.
        "crates/kafka/src/client/",
        // The lane thread's own consumer is a member of the group.
        "crates/kafka/src/member/thread", "crates/kafka/src/member/rebalance",
        // It announces and reads on one thread.
        "crates/kafka/src/meta/members.rs",
        // They read nothing: one asks where partitions end, one for the positions of a group.
        "crates/kafka/src/cluster/end_offsets.rs", "crates/kafka/src/doctor/ask.rs",
        // It measures what a service's consumer gets.
        "crates/kafka/src/bench",
    ];
    let mut strays = Vec::new();
    for (name, text) in sources("crates/kafka/src") {
        let is_consumer = |line: &str| {
            line.contains("BaseConsumer") || line.contains("connect::") && line.contains("Reader")
        };
        let lines = code(&text).into_iter().filter(|(_, line)| is_consumer(line));
        if !may.iter().any(|of| name.starts_with(of)) {
            strays.extend(lines.map(|(number, line)| format!("{name}:{number}: {line}")));
        }
    }
    assert!(strays.is_empty(), "{strays:#?}");
}

#[test]
fn rooms_do_not_import_their_neighbours() {
    for (room, others) in STRANGERS {
        assert_eq!(breaches(room, others), Vec::<String>::new(), "{room}");
    }
}

#[test]
fn the_rule_sees_code_and_not_comments_or_tests() {
    let text = "\
use rdkafka::X; // tokio
// sled
#[cfg(test)]
use axum::{
    Router,
};
#[cfg(test)]
#[path = \"x.rs\"]
mod tests;
struct A {
    #[cfg(test)]
    b: tokio::B,
    c: sled::C,
}
#[cfg(all(test, unix))]
fn d(
    e: tokio::E,
) {
    if true {}
}
use std::fs;
";
    let lines: Vec<_> = code(text).into_iter().map(|(at, line)| (at, line.trim())).collect();
    let (first, last) = ((1, "use rdkafka::X;"), (21, "use std::fs;"));
    assert_eq!(lines, [first, (2, ""), (10, "struct A {"), (13, "c: sled::C,"), (14, "}"), last]);
}
