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
    let named = Regex::new(r#"skip "?(\w+)::([\w${}]+)"#).expect("sound");
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
        let source = tests().join("kafka").join(format!("{}.rs", &found[1]));
        let source = std::fs::read_to_string(source).expect("text");
        for language in ["java", "python", "go"] {
            let test = found[2].replace("${language}", language);
            assert!(source.contains(&format!("#[test]\nfn {test}(")), "{}::{test}", &found[1]);
            count += 1;
        }
    }
    assert_eq!(count, 8 * 3, "scripts/test names eight");
}

/// A machine that has these programs, and what `scripts/needs` says there.
fn needs(what: &str, stubs: &[(&str, &str)]) -> (Option<i32>, String) {
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    let bin = tempfile::tempdir().expect("a directory");
    let path = std::env::var_os("PATH").expect("a PATH");
    for tool in ["bash", "cat", "dirname", "env", "grep", "head", "sed"] {
        let is_there = |dir: std::path::PathBuf| Some(dir.join(tool)).filter(|at| at.is_file());
        let found = std::env::split_paths(&path).find_map(is_there).expect(tool);
        symlink(found, bin.path().join(tool)).expect("linked");
    }
    for (name, text) in stubs {
        let stub = bin.path().join(name);
        std::fs::write(&stub, format!("#!/usr/bin/env bash\n{text}\n")).expect("written");
        let all = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(&stub, all).expect("its owner's");
    }
    let mut command = std::process::Command::new(tests().join("../scripts/needs"));
    command.arg(what).env_clear().env("PATH", bin.path());
    let told = command.output().expect("it runs");
    let text = [told.stdout, told.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    (told.status.code(), text.concat())
}

#[test]
fn what_a_machine_lacks_is_named_with_its_package() {
    let (code, told) = needs("build", &[]);
    assert_eq!(code, Some(69), "{told}");
    for tool in ["cargo", "cc", "c++", "make", "perl"] {
        let line = told.lines().find(|line| line.starts_with(&format!("{tool} is missing: ")));
        assert!(line.is_some_and(|line| line.len() > 30), "{tool}: {told}");
    }
    let well = ["cargo", "cc", "c++", "make", "perl"].map(|tool| (tool, "exit 0"));
    assert_eq!(needs("build", &well), (Some(0), String::new()));

    let names = |told: &str| -> Vec<String> {
        told.lines().filter_map(|line| Some(line.split_once(": ")?.0.to_owned())).collect()
    };
    let (code, told) = needs("clients", &[]);
    let all = ["java", "python", "kcat", "curl", "script", "go"];
    assert_eq!((code, names(&told)), (Some(0), all.map(str::to_owned).to_vec()), "{told}");
    let java = |version| {
        format!(
            "if [[ $1 == -version ]]; then echo 'openjdk version \"{version}\"' >&2; else echo jdk.compiler@{version}; fi"
        )
    };
    let (old, new) = (java("11.0.2"), java("17.0.1"));
    let mut stubs = vec![
        ("java", &*old),
        ("python3", "exit 0"),
        ("kcat", ""),
        ("jq", ""),
        ("curl", ""),
        ("script", "echo script from util-linux 2.38.1"),
        ("go", "echo go version go1.19.8 linux/amd64"),
    ];
    let (_, told) = needs("clients", &stubs);
    assert_eq!(names(&told), ["java", "go"], "{told}");
    assert!(told.contains("version 11") && told.contains("1.21 or later"), "{told}");
    stubs[0].1 = &new;
    stubs[6].1 = "echo go version go1.26.8 linux/amd64";
    assert_eq!(needs("clients", &stubs), (Some(0), String::new()));

    // One that is there may not be enough, and one alone may be missing.
    let jre = new.replace("jdk.compiler", "java.base");
    #[rustfmt::skip]
    let cases = [
        ("java",    Some(&*jre),                              "java",   "is a JRE"),
        ("python3", Some("exit 1"),                           "python", "without venv"),
        ("script",  Some("echo 'usage: script [-t]'"),        "script", "util-linux"),
        ("kcat",    None,                                     "kcat",   "no kcat, or no jq"),
        ("jq",      None,                                     "kcat",   "no kcat, or no jq"),
        ("curl",    None,                                     "curl",   "no curl"),
    ];
    for (tool, text, language, why) in cases {
        let others = stubs.iter().copied().filter(|(name, _)| *name != tool);
        let stubs: Vec<_> = others.chain(text.map(|text| (tool, text))).collect();
        let (code, told) = needs("clients", &stubs);
        assert_eq!((code, names(&told)), (Some(0), vec![language.to_owned()]), "{tool}: {told}");
        assert!(told.contains(why), "{tool}: {told}");
    }
    let mut split = well;
    split[4].1 = "echo \"Can't locate IPC/Cmd.pm in @INC\" >&2; exit 2";
    let (code, told) = needs("build", &split);
    let want = "perl is not whole: Can't locate IPC/Cmd.pm";
    assert!(code == Some(69) && told.contains(want), "{code:?} {told}");
}
