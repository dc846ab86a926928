//! `setups.txt` names the tests that not every Kafka is enough for. `scripts/test` leaves them out by it, so it must be true.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use regex::Regex;

/// What in a test's source says that it needs nodes of `scripts/kafka`, or rights in a cluster that has an authorizer.
const NODES: &str = r#"variable\("(WATERCLOCK_KAFKA|KAFKA_PROXY)|Proxy::shared\(|Nodes::ours\(|\bCluster::start|Secured::shared\(|"scripts/kafka start"|[^.\w]tool\(|[^.\w\[]allow(_only)?\("#;
/// What says that these must be processes of this machine: they read a file of the test's, or load a library of its.
const HOST: &str =
    r#"Secured::shared\(|"Timers\.java"|Cluster::start_with\(|--reassignment-json-file"#;

/// A function of a source, as rustfmt lays it out: its name (`Type::name` in an `impl`), and its text.
fn functions(source: &str) -> Vec<(String, String)> {
    let item = Regex::new(r"^( {4})?(?:pub(?:\([^)]*\))? )?(?:async )?fn (\w+)").expect("sound");
    let of_type = Regex::new(r"^impl(?:<[^>]*>)? (?:[\w<>']+ for )?(\w+)").expect("sound");
    let (mut found, mut of) = (Vec::<(String, String)>::new(), String::new());
    for line in source.lines() {
        if let Some(named) = of_type.captures(line) {
            of = named[1].to_owned();
        }
        if let Some(named) = item.captures(line) {
            let is_method = named.get(1).is_some();
            let prefix = if is_method { format!("{of}::") } else { String::new() };
            found.push((prefix + &named[2], String::new()));
        } else if let Some((_, text)) = found.last_mut() {
            text.push_str(line);
            text.push('\n');
        }
        // What follows is another item's.
        if line == "}" {
            found.push((String::new(), String::new()));
        }
    }
    found
}

/// The tests of a source that need what the pattern finds, themselves or by a function that they call.
fn needy(source: &str, pattern: &Regex) -> BTreeSet<String> {
    let functions = functions(source);
    let mut needy: BTreeSet<&str> = BTreeSet::new();
    loop {
        let before = needy.len();
        for (name, text) in functions.iter().filter(|(name, _)| !name.is_empty()) {
            let calls = |other: &&str| {
                let call = format!(r"(^|[^.:\w]){}\(", regex::escape(other));
                Regex::new(&call).expect("sound").is_match(text)
            };
            if pattern.is_match(text) || needy.iter().any(calls) {
                needy.insert(name);
            }
        }
        if needy.len() == before {
            break;
        }
    }
    let is_test = |name: &str| {
        let alone = Regex::new(&format!(r"#\[test\]\n(#\[.*\n)*fn {name}\(")).expect("sound");
        // The arguments of `in_both_modes!`.
        let both =
            Regex::new(&format!(r"(?m)(^ +|in_both_modes!\(){name}(,$|\);)")).expect("sound");
        alone.is_match(source) || both.is_match(source)
    };
    needy.into_iter().filter(|name| is_test(name)).map(str::to_owned).collect()
}

/// The recipes of which there is a test in every language, and whether they need nodes.
fn recipes() -> Vec<(String, bool)> {
    let source = include_str!("kafka/cookbook.rs");
    let (nodes, functions) = (Regex::new(NODES).expect("sound"), functions(source));
    let list = Regex::new(r"(?m)^in_every_language!\(([\w, ]+)\);").expect("sound");
    let list = list.captures(source).expect("the recipes")[1].to_owned();
    let text = |recipe: &str| {
        functions.iter().find(|(name, _)| name == recipe).expect("a recipe").1.clone()
    };
    list.split(", ").map(|recipe| (recipe.to_owned(), nodes.is_match(&text(recipe)))).collect()
}

fn tests() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests"))
}

/// The tests of a directory, each behind what stands before its name in a run.
fn found(directory: &str, prefix: &str, pattern: &str) -> BTreeSet<String> {
    let pattern = Regex::new(pattern).expect("sound");
    let mut all = BTreeSet::new();
    for file in std::fs::read_dir(tests().join(directory)).expect("readable") {
        let path = file.expect("a file").path();
        if path.is_dir() {
            // What the tests of the file beside it share.
            continue;
        }
        let module = path.file_stem().expect("a name").to_string_lossy().into_owned();
        let source = std::fs::read_to_string(&path).expect("text");
        all.extend(needy(&source, &pattern).iter().map(|test| format!("{prefix}{module}::{test}")));
    }
    all
}

#[test]
fn the_list_names_exactly_the_tests_that_need_more_than_an_address_of_kafka() {
    let mut listed: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    let list = include_str!("setups.txt");
    for line in list.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (needs, test) =
            line.split_once(char::is_whitespace).expect("what it needs, and its name");
        listed.entry(needs).or_default().insert(test.trim().to_owned());
    }
    // All of `three` needs a cluster of three; there only what does not go with Docker is listed.
    let places = [
        ("kafka", ""),
        ("faults/one", "one::"),
        ("faults/long", "long::"),
        ("faults/root", "root::"),
    ];
    let of = |pattern| -> BTreeSet<String> {
        places.iter().flat_map(|(directory, prefix)| found(directory, prefix, pattern)).collect()
    };
    let mut host = of(HOST);
    let mut nodes: BTreeSet<String> = of(NODES).difference(&host).cloned().collect();
    for (recipe, needs_nodes) in recipes() {
        let test = |language| format!("cookbook::{recipe}::the_{language}_program_of_the_cookbook");
        host.insert(test("java"));
        nodes.extend(["python", "go", "rust"].map(test).into_iter().filter(|_| needs_nodes));
    }
    host.extend(found("faults/three", "three::", HOST));
    assert_eq!(listed.get("nodes"), Some(&nodes), "tests/setups.txt, those that need nodes");
    assert_eq!(
        listed.get("host"),
        Some(&host),
        "tests/setups.txt, those that need them on this machine"
    );
    assert_eq!(listed.len(), 2, "{:?}", listed.keys());
}

#[test]
fn the_names_that_are_left_out_for_want_of_a_tool_are_those_of_tests() {
    let script = std::fs::read_to_string(tests().join("../scripts/test")).expect("text");
    let named = Regex::new(r#"skip "?((?:\w+::)+)([\w${}]+)"#).expect("sound");
    for (file, language) in ["clients", "cookbook", "readme"]
        .into_iter()
        .flat_map(|file| ["java", "python", "go"].map(|of| (file, of)))
    {
        let source = std::fs::read_to_string(tests().join("kafka").join(format!("{file}.rs")))
            .expect("text");
        assert!(source.contains(&format!("fn the_{language}_program_of_")), "{file}: {language}");
    }
    let mut count = 0;
    for found in named.captures_iter(&script) {
        let file = found[1].trim_end_matches("::").replace("::", "/") + ".rs";
        let file = ["kafka", "faults"].map(|target| tests().join(target).join(&file));
        let file = file.iter().find(|file| file.exists()).expect("a file of one target");
        let source = std::fs::read_to_string(file).expect("text");
        for language in ["java", "python", "go"] {
            let test = found[2].replace("${language}", language);
            let is_there =
                Regex::new(&format!(r"#\[test\]\n(#\[.*\n)*fn {test}\(")).expect("sound");
            assert!(is_there.is_match(&source), "{}{test}", &found[1]);
            count += 1;
        }
    }
    assert_eq!(count, 9 * 3, "scripts/test names nine");
}

/// What plain `cargo test` shows in place of the suite, which is a target that it does not run.
#[test]
#[ignore = "the fault suite is a target of its own, with --features failpoints: scripts/faults runs it"]
fn the_fault_suite_is_a_target_of_its_own() {
    panic!("scripts/faults runs it");
}

/// A target that `cargo test` passes over would be missed by nobody.
#[test]
fn plain_cargo_test_shows_what_it_passes_over() {
    let manifest = include_str!("../Cargo.toml");
    let passed_over: Vec<&str> = manifest
        .split("[[test]]\n")
        .skip(1)
        .map(|block| block.split("\n[").next().expect("a block"))
        .filter(|block| block.contains("\ntest = false") && !block.contains("\nharness = false"))
        .map(|block| block.split('"').nth(1).expect("a name"))
        .collect();
    assert_eq!(
        passed_over,
        ["faults"],
        "each needs a test here that is ignored and says who runs it"
    );
    let stands_in = Regex::new(r#"\n#\[test\]\n#\[ignore = ".*: scripts/faults runs it"\]\nfn "#);
    assert!(stands_in.expect("sound").is_match(include_str!("setups.rs")));
    let script = include_str!("../scripts/test");
    assert!(script.contains("--skip the_fault_suite_is_a_target_of_its_own"), "it is run there");
    let readme = include_str!("../README.md");
    let line = readme.lines().find(|line| line.contains("Plain `cargo test`")).expect("a line");
    assert!(line.contains("the whole fault suite (`tests/faults`)"), "{line}");
    // Without the feature a test is ignored with a reason; one that is not compiled is not shown.
    let hidden = Regex::new(r#"#\[cfg\((all\()?(not\()?feature = "failpoints""#).expect("sound");
    for directory in ["", "kafka", "sim", "support"] {
        for file in std::fs::read_dir(tests().join(directory)).expect("readable") {
            let path = file.expect("a file").path();
            if path.extension().is_some_and(|of| of == "rs") {
                let source = std::fs::read_to_string(&path).expect("text");
                assert!(!hidden.is_match(&source), "{}: use cfg_attr and ignore", path.display());
            }
        }
    }
}
