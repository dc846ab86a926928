//! The scripts, run as they are in a tree that is like this one, with stand-ins for what they start: nothing is built, and no
//! Kafka is there. Of programs there are only those that a machine has anyway, and those that a test adds.

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use regex::Regex;
use serde_json::Value;

/// What every script may take for granted, beside bash.
const TOOLS: [&str; 33] = [
    "awk", "basename", "bash", "cat", "chmod", "cp", "cut", "df", "dirname", "env", "find", "grep",
    "head", "id", "ls", "mkdir", "mktemp", "mv", "nproc", "readlink", "rm", "sed", "sh", "sleep",
    "sort", "tail", "tee", "touch", "tr", "uname", "uniq", "wc", "xargs",
];
/// What a build needs; of these stand-ins are enough.
const BUILD: [&str; 5] = ["cc", "c++", "make", "perl", "cargo"];
/// Notes what it was called with, and passes.
const CARGO: &str = r#"printf '%s|%s|%s\n' "${no_proxy-}" "${NO_PROXY-}" "$*" >>"$HOME/cargo.log"
case $1 in
    deny) exit 1 ;;
    test) echo "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured" ;;
esac"#;
/// A Kafka that is there at once.
const KAFKA: &str = r#"echo "$*" >>"$HOME/kafka.log"
while [ $# -gt 0 ]; do [ "$1" != --dir ] || dir=$2; [ "$1" != start ] || start=yes; shift; done
[ -z "${start-}" ] || { mkdir -p "$dir" && echo via=java >"$dir/cluster"; }"#;

/// Such a tree, and a machine's programs.
struct Tree(tempfile::TempDir);

/// What a script said, and how it ended.
struct Ended {
    code: Option<i32>,
    said: String,
}

impl Tree {
    fn new() -> Self {
        let tree = Self(tempfile::tempdir().expect("a directory"));
        for dir in ["bin", "home", "tree/scripts"] {
            std::fs::create_dir_all(tree.at(dir)).expect("made");
        }
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        for entry in std::fs::read_dir(root).expect("readable") {
            let entry = entry.expect("an entry");
            let name = entry.file_name().to_string_lossy().into_owned();
            let to = tree.at("tree").join(&name);
            match &*name {
                "target" | ".git" | "scripts" => {}
                // Tests change these.
                "Dockerfile" | "docker-compose.yml" => {
                    std::fs::copy(entry.path(), to).map(|_| ()).expect("copied");
                }
                _ => symlink(entry.path(), to).expect("linked"),
            }
        }
        for entry in std::fs::read_dir(root.join("scripts")).expect("readable") {
            let entry = entry.expect("an entry");
            let to = tree.at("tree/scripts").join(entry.file_name());
            if entry.path().is_dir() {
                symlink(entry.path(), to).expect("linked");
            } else {
                std::fs::copy(entry.path(), to).map(|_| ()).expect("copied");
            }
        }
        let path = std::env::var_os("PATH").expect("a PATH");
        for tool in TOOLS {
            let is_there = |dir: PathBuf| Some(dir.join(tool)).filter(|at| at.is_file());
            let found = std::env::split_paths(&path).find_map(is_there).expect(tool);
            symlink(found, tree.at("bin").join(tool)).expect("linked");
        }
        tree
    }

    /// One in which a build and all that it starts would pass.
    fn building() -> Self {
        let tree = Self::new();
        for tool in BUILD {
            tree.stub(tool, "");
        }
        tree.stub("cargo", CARGO);
        tree
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.at(name)).unwrap_or_default()
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.at(name), text).expect("written");
    }

    /// Puts a program in place of another one.
    fn program(&self, name: &str, text: &str) {
        let at = self.at(name);
        if at.exists() {
            std::fs::remove_file(&at).expect("removed");
        }
        std::fs::write(&at, format!("#!/bin/sh\n{text}\n")).expect("written");
        let all = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(&at, all).expect("its owner's");
    }

    /// Installs one.
    fn stub(&self, name: &str, text: &str) {
        self.program(&format!("bin/{name}"), text);
    }

    /// Deinstalls one.
    fn without(self, name: &str) -> Self {
        std::fs::remove_file(self.at("bin").join(name)).expect("removed");
        self
    }

    fn run(&self, line: &str) -> Ended {
        self.run_with(line, &[])
    }

    fn run_with(&self, line: &str, environment: &[(&str, &str)]) -> Ended {
        let mut words = line.split(' ');
        let script = self.at("tree").join(words.next().expect("a script"));
        let mut command = Command::new(script);
        command.args(words).env_clear().env("PATH", self.at("bin")).env("HOME", self.at("home"));
        let told = command.envs(environment.iter().copied()).output().expect("it runs");
        let said =
            [told.stdout, told.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        Ended { code: told.status.code(), said: said.concat() }
    }
}

/// Whether the line that begins like that names packages, for who has Debian and for who has Fedora.
fn names_packages(said: &str, begins: &str) -> bool {
    let line = said.lines().find(|line| line.starts_with(begins));
    line.is_some_and(|line| line.contains("Debian: ") && line.contains("Fedora"))
}

/// What `scripts/test` says at its end that it has left out.
fn left_out(said: &str) -> Vec<&str> {
    said.lines().filter_map(|line| line.strip_prefix("test: left out: ")).collect()
}

#[test]
fn what_a_build_lacks_is_named_with_its_package_even_without_bash() {
    let bare = Tree::new().without("bash");
    let Ended { code, said } = bare.run("scripts/needs build");
    assert_eq!(code, Some(69), "{said}");
    for tool in ["cargo", "cc", "c++", "make", "perl", "bash"] {
        let line = said.lines().find(|line| line.starts_with(&format!("{tool} is missing: ")));
        let line = line.unwrap_or_else(|| panic!("{tool}: {said}"));
        let packages = ["Debian: ", "Fedora: ", "macOS: "];
        assert!(tool == "cargo" || packages.iter().all(|of| line.contains(of)), "{line}");
        // The documents name it, too.
        let documents = [
            ("README.md", include_str!("../README.md"), "You need a Rust toolchain"),
            ("README.md", include_str!("../README.md"), "A build needs:"),
            ("CONTRIBUTING.md", include_str!("../CONTRIBUTING.md"), "You need the Rust toolchain"),
        ];
        for (name, page, begins) in documents {
            let line = page.lines().find(|line| line.starts_with(begins)).expect(begins);
            let word = match tool {
                "cargo" => "Rust",
                "cc" => "a C and",
                "c++" => "C++",
                other => other,
            };
            let line = &line[..line.find("`./scripts/needs").unwrap_or(line.len())];
            assert!(line.contains(word), "{name}, {begins}: {word}");
        }
    }
    let whole = Tree::building().run("scripts/needs build");
    let want = "all that waterclock is compiled with is here\n";
    assert_eq!((whole.code, &*whole.said), (Some(0), want));
    let split = Tree::building();
    split.stub("perl", "echo \"Can't locate IPC/Cmd.pm in @INC\" >&2; exit 2");
    let Ended { code, said } = split.run("scripts/needs build");
    let want = "perl is not whole: Can't locate IPC/Cmd.pm";
    assert!(code == Some(69) && said.contains(want), "{code:?} {said}");
}

#[test]
fn what_the_programs_of_the_documents_lack_is_named_with_its_package() {
    let names = |said: &str| -> Vec<String> {
        said.lines().filter_map(|line| Some(line.split_once(": ")?.0.to_owned())).collect()
    };
    let tree = Tree::new().without("bash");
    let Ended { code, said } = tree.run("scripts/needs clients");
    let all = ["java", "python", "kcat", "kcat", "curl", "go"];
    assert_eq!((code, names(&said)), (Some(0), all.map(str::to_owned).to_vec()), "{said}");
    for line in said.lines() {
        assert!(names_packages(line, line), "{line}");
    }
    let java = |version| {
        format!(
            "if [ \"$1\" = -version ]; then echo 'openjdk version \"{version}\"' >&2; else echo jdk.compiler@{version}; fi"
        )
    };
    tree.stub("java", &java("11.0.2"));
    tree.stub("go", "echo go version go1.19.8 linux/amd64");
    for tool in ["python3", "kcat", "jq", "curl"] {
        tree.stub(tool, "exit 0");
    }
    let Ended { said, .. } = tree.run("scripts/needs clients");
    assert_eq!(names(&said), ["java", "go"], "{said}");
    assert!(said.contains("version 11") && said.contains("1.21 or later"), "{said}");
    tree.stub("java", &java("17.0.1"));
    tree.stub("go", "echo go version go1.26.8 linux/amd64");
    let Ended { code, said } = tree.run("scripts/needs clients");
    assert_eq!((code, &*said), (Some(0), ""));

    // One that is there may not be enough.
    let jre = java("17.0.1").replace("jdk.compiler", "java.base");
    let cases =
        [("java", &*jre, "java", "is a JRE"), ("python3", "exit 1", "python", "without venv")];
    for (tool, text, language, why) in cases {
        let before = tree.read(&format!("bin/{tool}"));
        tree.stub(tool, text);
        let Ended { code, said } = tree.run("scripts/needs clients");
        assert_eq!((code, names(&said)), (Some(0), vec![language.to_owned()]), "{tool}: {said}");
        assert!(said.contains(why), "{tool}: {said}");
        tree.write(&format!("bin/{tool}"), &before);
    }
}

#[test]
fn a_script_says_in_its_first_second_what_else_it_needs() {
    let tree = Tree::building();
    // No Kafka can come from anywhere.
    let Ended { code, said } = tree.run("scripts/kafka start");
    assert_eq!(code, Some(69), "{said}");
    for tool in ["java", "mvn", "curl", "python3", "pip"] {
        assert!(names_packages(&said, &format!("kafka:   {tool}: ")), "{tool}: {said}");
    }
    // Nor what checks the compose file, or the scripts.
    for check in ["scripts/check --compose", "scripts/check --scripts"] {
        let Ended { code, said } = tree.run(check);
        assert_eq!(code, Some(69), "{check}: {said}");
        assert!(names_packages(&said, "python3 is missing: "), "{check}: {said}");
        assert!(names_packages(&said, "venv is missing: "), "{check}: {said}");
    }
    // Nor the tools of rows that need root, which its being there does not bring.
    tree.program("tree/scripts/test", "echo started");
    for (id, rest) in [("0", ""), ("1000", "scripts/faults: these rows need root")] {
        tree.stub("id", &format!("echo {id}"));
        let Ended { code, said } = tree.run("scripts/faults --root");
        assert_eq!(code, Some(69), "{said}");
        assert!(said.contains(rest) && !said.contains("started"), "{said}");
        for tool in ["mount", "unshare", "mkfs.ext4", "strace", "python3"] {
            assert!(names_packages(&said, &format!("{tool} is missing: ")), "{tool}: {said}");
        }
    }
    tree.stub("id", "echo 0");
    for tool in ["mount", "mkfs.ext4", "strace", "python3"] {
        tree.stub(tool, "");
    }
    tree.stub("unshare", "shift; exec \"$@\"");
    let Ended { code, said } = tree.run("scripts/faults --root");
    assert_eq!((code, &*said), (Some(0), "started\n"));
}

#[test]
fn a_wrong_argument_is_named_before_anything_is_built_or_started() {
    let tree = Tree::building();
    tree.program("tree/scripts/test", "echo started");
    tree.program("tree/scripts/kafka", "echo started");
    for (line, named) in [
        ("scripts/bench --nope", "--nope"),
        ("scripts/bench --markdown --lanes", "--lanes"),
        ("scripts/bench steady", "steady"),
        ("scripts/check --bogus", "--bogus"),
        ("scripts/faults f1 f999", "f999"),
        ("scripts/faults f1x", "f1x"),
        ("scripts/faults f5", "f5 has its test elsewhere"),
        ("scripts/faults f30", "f30 is left out"),
        ("scripts/sim --kind Nope", "Nope"),
        ("scripts/sim --seeds 5 --kind", "no kind"),
    ] {
        let Ended { code, said } = tree.run(line);
        assert_eq!(code, Some(64), "{line}: {said}");
        assert!(said.contains(named) && !said.contains("started"), "{line}: {said}");
        assert!(!tree.at("home/cargo.log").exists(), "{line} has built something");
    }
    // What is right still goes on.
    let Ended { code, said } = tree.run("scripts/faults f1");
    assert_eq!((code, &*said), (Some(0), "started\n"));
    tree.run("scripts/sim --seeds 5 --kind Storm");
    assert!(tree.read("home/cargo.log").contains("--test sim"));
    let Ended { said, .. } =
        tree.run("scripts/bench --case spike --lanes=12 --markdown --json-file x -v");
    assert!(!said.contains("unknown argument"), "{said}");
    assert!(tree.read("home/cargo.log").contains("build --release"));
}

/// Packages have other names on each system, and what is said twice is soon said in two ways.
#[test]
fn only_one_script_knows_packages() {
    for entry in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/scripts")).expect("it") {
        let path = entry.expect("an entry").path();
        if path.is_dir() || path.ends_with("needs") {
            continue;
        }
        let script = std::fs::read_to_string(&path).expect("text");
        let knows = ["Debian:", "Fedora:", "apt-get", "brew "].iter().any(|of| script.contains(of));
        assert!(!knows, "{}: ask scripts/needs --package", path.display());
    }
}

#[test]
fn what_is_left_out_anywhere_is_named_and_counted_at_the_end_of_the_tests() {
    let tree = Tree::building();
    tree.program("tree/scripts/kafka", KAFKA);
    let ended = tree.run("scripts/test");
    let said = &ended.said;
    assert_eq!(ended.code, Some(0), "{said}");
    let named = left_out(said);
    // All that the check can leave out it does leave out here.
    let check = tree.read("tree/scripts/check");
    let call = Regex::new(r#"leave_out "([^"]+)" "#).expect("sound");
    let calls: Vec<&str> =
        call.captures_iter(&check).map(|found| found.get(1).expect("it").as_str()).collect();
    assert_eq!(calls.len(), 4, "shellcheck, promtool, cargo-deny, compose: {calls:?}");
    assert_eq!(check.matches("left out: %s").count(), 2, "it is said by leave_out, and at the end");
    let tests = [
        "one::held::f16_without_a_new_producer_a_held_commit_delivers_twice",
        "the_java_program_of",
        "the_python_program_of",
        "the_go_program_of",
        "readme::the_quick_start_and_what_is_done_with_timers_do_what_they_say",
        "the rows of the fault suite that need root",
        "the index on a full disk",
    ];
    for what in calls.iter().chain(&tests) {
        let lines = named.iter().filter(|line| line.starts_with(what)).count();
        assert_eq!(lines, 1, "{what}: {named:#?}");
    }
    // What was skipped by cargo test, and what was not even tried.
    let ran = tree.read("home/cargo.log");
    let runs: Vec<&str> =
        ran.lines().filter_map(|line| line.split('|').nth(2)?.strip_prefix("test ")).collect();
    let skipped =
        format!("{} passed, 0 failed, {} skipped", 3 * runs.len(), runs.len() + named.len());
    assert_eq!(said.lines().last(), Some(&*skipped), "{said}");
    // And is left out indeed.
    for run in &runs {
        for name in ["one::held::f16_without_a_new_producer", "the_java_program_of"] {
            assert!(run.contains(&format!("--skip {name}")) || !run.contains("faults"), "{run}");
        }
    }
    let alone = tree.run("scripts/check --lint").said;
    for what in &calls {
        assert!(alone.contains(&format!("\ncheck: left out: {what}: ")), "{what}: {alone}");
    }
}

#[test]
fn what_the_steps_of_all_leave_out_is_named_at_the_end_of_all() {
    let tree = Tree::building();
    tree.program("tree/scripts/kafka", KAFKA);
    for step in ["recovery", "sim", "schemathesis", "fuzz"] {
        let lacks = ["schemathesis", "fuzz"].contains(&step);
        tree.program(&format!("tree/scripts/{step}"), if lacks { "exit 69" } else { "" });
    }
    let Ended { code, said } = tree.run("scripts/test --all");
    assert_eq!(code, Some(0), "{said}");
    let (_, end) = said.split_once("\n== scripts/fuzz").expect("the last step");
    for what in [
        "shellcheck",
        "rules for Prometheus",
        "one::held::f16_without",
        "scripts/schemathesis: something",
        "scripts/fuzz: no nightly",
    ] {
        let lines = left_out(end).iter().filter(|line| line.starts_with(what)).count();
        assert_eq!(lines, 1, "{what}: {end}");
    }
}

/// One who reads `--all` takes it for all.
#[test]
fn the_help_of_all_says_of_each_script_whether_it_is_run() {
    let help = Tree::building().run("scripts/test --help").said;
    let (_, all) = help.split_once("--all runs these").expect("its list");
    let (steps, rest) = all.split_once("The rows that need root").expect("what is not in it");
    for entry in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/scripts")).expect("it") {
        let entry = entry.expect("an entry");
        let name = entry.file_name().to_string_lossy().into_owned();
        // These are parts of others.
        if entry.path().is_dir() || ["check", "kafka", "needs"].contains(&&*name) {
            continue;
        }
        let step = format!("  scripts/{name} ");
        let (is_run, is_not) = (steps.contains(&step), rest.contains(&format!("scripts/{name},")));
        assert!(is_run != is_not, "{name}: is it run by --all? {all}");
    }
}

#[test]
fn loopback_is_not_asked_through_a_proxy_by_anything_that_the_tests_start() {
    let tree = Tree::building();
    tree.program("tree/scripts/kafka", KAFKA);
    for (given, want) in
        [("NO_PROXY", "corp.example,"), ("no_proxy", "corp.example,"), ("OTHER", "")]
    {
        let environment = [("http_proxy", "http://127.0.0.1:9"), (given, "corp.example")];
        let ended = tree.run_with("scripts/test some_test", &environment);
        assert_eq!(ended.code, Some(0), "{}", ended.said);
        let ran = tree.read("home/cargo.log");
        let last = ran.lines().last().expect("it ran").to_owned();
        let want = format!("{want}127.0.0.1,localhost,::1");
        assert!(last.starts_with(&format!("{want}|{want}|test ")), "{given}: {last}");
    }
    // Who pastes a line of the README has no script around it.
    let readme = include_str!("../README.md");
    let (before, _) = readme.split_once("\ncurl ").expect("a line with curl");
    let (_, section) = before.rsplit_once("\n## ").expect("its section");
    assert!(section.contains("no_proxy=localhost") && section.contains("--noproxy localhost"));
}

#[test]
fn the_image_builds_what_it_depends_on_before_it_has_the_sources() {
    let tree = Tree::building();
    let ended = tree.run("scripts/check --image");
    assert_eq!(ended.code, Some(0), "{}", ended.said);
    let file = tree.read("tree/Dockerfile");
    let first = "COPY Cargo.toml Cargo.lock ./\n";
    for (early, name) in [("src src", "src"), ("crates crates", "crates"), (". .", ".")] {
        let moved = file.replace(&format!("COPY {early}\n"), "");
        tree.write("tree/Dockerfile", &moved.replace(first, &format!("{first}COPY {early}\n")));
        let Ended { code, said } = tree.run("scripts/check --image");
        let want = format!("COPY {name}: only manifests come before the build of the dependencies");
        assert!(code == Some(1) && said.contains(&want), "{early}: {said}");
    }
    tree.write("tree/Dockerfile", &file.replace("COPY src src", "ADD src src"));
    let Ended { code, said } = tree.run("scripts/check --image");
    assert!(code == Some(1) && said.contains("ADD src src"), "{said}");
}

#[test]
fn no_two_services_build_one_tag() {
    let tree = Tree::building();
    let file = tree.read("tree/docker-compose.yml");
    let with = |pairs: &[(&str, &str)]| {
        let text = pairs.iter().fold(file.clone(), |text, (old, new)| {
            assert!(text.contains(old), "{old}");
            text.replace(old, new)
        });
        tree.write("tree/docker-compose.yml", &text);
        let Ended { code, said } = tree.run("scripts/check --image");
        (code, said)
    };
    // By what both take over.
    let (code, said) =
        with(&[("\n  build: .\n", "\n  build: .\n  image: \"waterclock:dev\" # both\n")]);
    let want = "docker-compose.yml: topics and waterclock build one tag, waterclock:dev";
    assert!(code == Some(1) && said.contains(want), "{said}");
    // Each for itself.
    let topics = "    command: [topics, apply]\n";
    let run = "    # The topics that it may deliver to.\n";
    let tag = |line: &str, name: &str| format!("    image: {name}\n{line}");
    let (code, said) = with(&[(topics, &tag(topics, "one")), (run, &tag(run, "one"))]);
    assert!(code == Some(1) && said.contains("build one tag, one"), "{said}");
    let (code, said) = with(&[(topics, &tag(topics, "one")), (run, &tag(run, "other"))]);
    assert_eq!(code, Some(0), "{said}");
    // Two that only run one image build nothing, as Kafka's.
    assert_eq!(file.matches("image: apache/kafka").count(), 2);
    assert_eq!(with(&[]).0, Some(0));
}

/// `promtool test rules` runs the cases; that each alert has them is looked at here, where there may be none.
#[test]
fn each_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not() {
    let rules = include_str!("../docs/monitoring/alerts.yml");
    let cases = include_str!("../docs/monitoring/alerts-test.yml");
    let groups: Vec<&str> = cases.split("\n  - name: ").skip(1).collect();
    let alerts: Vec<&str> =
        rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(alerts.len() >= 20, "{alerts:?}");
    for alert in alerts {
        let mut of = groups.iter().filter(|group| group.lines().next() == Some(alert));
        let fires = format!("alertname=\"{alert}\"}}', value: 1");
        assert!(
            of.any(|group| group.contains(&fires) && group.contains("exp_samples: []")),
            "{alert}"
        );
    }
}

#[test]
fn promtool_gets_the_rules_their_cases_and_all_that_the_dashboard_asks() {
    fn asked(of: &Value, found: &mut Vec<String>) {
        match of {
            Value::Object(all) => {
                found.extend(all.get("expr").and_then(Value::as_str).map(str::to_owned));
                all.values().for_each(|value| asked(value, found));
            }
            Value::Array(all) => all.iter().for_each(|value| asked(value, found)),
            _ => {}
        }
    }
    let tree = Tree::building();
    let promtool = "echo \"$1 $2 $3\" >>\"$HOME/promtool.log\"; cp \"$3\" \"$HOME/last.yml\"";
    tree.stub("promtool", promtool);
    let ended = tree.run("scripts/check --lint");
    assert_eq!(ended.code, Some(0), "{}", ended.said);
    assert!(!ended.said.contains("left out: rules for Prometheus"), "{}", ended.said);
    let log = tree.read("home/promtool.log");
    let rules =
        ["check rules docs/monitoring/alerts.yml", "test rules docs/monitoring/alerts-test.yml"];
    assert!(log.lines().count() == 3 && log.starts_with(&rules.join("\n")), "{log}");
    let mut want = Vec::new();
    asked(
        &serde_json::from_str(include_str!("../docs/monitoring/grafana.json")).expect("JSON"),
        &mut want,
    );
    let record = Regex::new(r"(?m)^ +- \{ record: 'panel:\d+', expr: '(.*)' \}$").expect("sound");
    let panels = tree.read("home/last.yml");
    let got: Vec<String> =
        record.captures_iter(&panels).map(|found| found[1].replace("''", "'")).collect();
    assert_eq!(got, want);
    // What it refuses stops the check.
    tree.stub("promtool", "case $3 in *panels.yml) exit 1 ;; esac");
    let ended = tree.run("scripts/check --lint");
    assert!(ended.code == Some(1) && ended.said.contains("Nth \"expr\""), "{}", ended.said);
}
