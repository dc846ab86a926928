//! The README's commands, line by line, as somebody types it who has nothing but the README.

use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};

use crate::support::{Fixture, free_address, tool, variable, waterclock};

const BROKER: &str = "localhost:9092";
const HTTP: [&str; 2] = ["127.0.0.1:8080", "localhost:8080"];
const TARGET: &str = "orders.expire";
/// The tools of Kafka that it uses, and what they are in its jars.
const TOOLS: [(&str, &str); 2] = [
    ("kafka-topics.sh", "org.apache.kafka.tools.TopicCommand"),
    ("kafka-console-consumer.sh", "org.apache.kafka.tools.consumer.ConsoleConsumer"),
];

/// The lines of the first block of commands behind a heading.
fn commands(heading: &str) -> Vec<&'static str> {
    let text = include_str!("../../README.md");
    let (_, behind) = text.split_once(&format!("\n{heading}\n")).expect("the heading");
    let (_, block) = behind.split_once("\n```sh\n").expect("commands");
    let (block, _) = block.split_once("\n```").expect("their end");
    block.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect()
}

/// A shell in which waterclock and Kafka's tools are at hand, and that means a namespace of its own beside others' on one broker.
struct Shell<'a> {
    fixture: &'a Fixture,
    http: String,
}

impl<'a> Shell<'a> {
    fn new(fixture: &'a Fixture) -> Self {
        let bin = fixture.path("bin");
        std::fs::create_dir(&bin).expect("made");
        for (name, class) in TOOLS {
            let (script, dir) =
                (variable("WATERCLOCK_KAFKA_SCRIPT"), variable("WATERCLOCK_KAFKA_DIR"));
            let text = format!("#!/bin/sh\nexec '{script}' tool --dir '{dir}' {class} \"$@\"\n");
            std::fs::write(bin.join(name), text).expect("written");
            let all = std::fs::Permissions::from_mode(0o755);
            std::fs::set_permissions(bin.join(name), all).expect("set");
        }
        let plain = waterclock();
        std::os::unix::fs::symlink(plain.get_program(), bin.join("waterclock")).expect("linked");
        Self { fixture, http: free_address() }
    }

    /// A line, but for where Kafka is, on which address an instance answers, and these names of targets.
    fn here(&self, line: &str, targets: &[&str]) -> String {
        let line = line.replace(BROKER, &self.fixture.connection.brokers);
        let line = HTTP.iter().fold(line, |line, address| line.replace(address, &self.http));
        // First the patterns, in which a dot is another thing.
        let line = targets.iter().fold(line, |line, target| {
            let (first, _) = target.split_once('.').expect("two words");
            line.replace(&format!(r"'{first}\..*'"), &format!("'.*{first}[.].*'"))
        });
        targets.iter().fold(line, |line, target| line.replace(target, &self.fixture.name(target)))
    }

    /// What a script prints; it ends well.
    #[track_caller]
    fn run(&self, script: &str) -> (String, String) {
        let plain = waterclock();
        let mut all = String::from("set -euo pipefail\ntrap 'kill $(jobs -p); wait' EXIT\n");
        writeln!(all, "PATH='{}':$PATH\n{script}", self.fixture.path("bin").display())
            .expect("written");
        let mut shell = Command::new("bash");
        shell.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
        for (name, _) in plain.get_envs().filter(|(_, value)| value.is_none()) {
            shell.env_remove(name);
        }
        shell.env("WATERCLOCK_NAMESPACE", self.fixture.namespace());
        shell.env("WATERCLOCK_BROKERS", &self.fixture.connection.brokers);
        shell.current_dir(self.fixture.path("")).args(["-c", &all]).stdin(Stdio::null());
        let ended = shell.output().expect("bash runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (out, errors) = (text(&ended.stdout), text(&ended.stderr));
        assert!(ended.status.success(), "{}\n{out}\n{errors}", ended.status);
        (out, errors)
    }

    fn delete(&self, targets: &[&str]) {
        for target in targets {
            tool(TOOLS[0].1, &["--delete", "--topic", &self.fixture.name(target)]);
        }
    }
}

#[test]
fn the_quick_start_and_what_is_done_with_timers_do_what_they_say() {
    let fixture = Fixture::cold("readme");
    let shell = Shell::new(&fixture);
    let mut lines = commands("## Quick start");
    assert_eq!(lines.remove(0), "cargo install --path . --locked", "it is installed already");
    lines.extend(commands("## Timers"));
    let mut script = String::new();
    for (n, line) in lines.iter().enumerate() {
        writeln!(script, "echo '== {n}'\n{}", shell.here(line, &[TARGET])).expect("written");
    }
    let (out, errors) = shell.run(&script);
    shell.delete(&[TARGET]);
    // What each line printed, by how it begins.
    let said = |beginning: &str| {
        let n = lines.iter().position(|line| line.starts_with(beginning)).expect(beginning);
        let (_, behind) = out.split_once(&format!("== {n}\n")).expect("it ran");
        behind.split("\n== ").next().unwrap_or_default()
    };
    assert_eq!(said("kafka-console-consumer.sh").trim(), r#"{"order": 17}"#, "{errors}");
    let status = said("waterclock status payment");
    assert!(status.contains("delay\n") && status.contains("order-18"), "{status}");
    assert_eq!(said("waterclock reschedule payment").trim(), "replaced", "{errors}");
    assert!(said("waterclock cancel payment").contains("cancelled"), "{out}");
    let list = said("waterclock list");
    assert!(list.contains("payment"), "{list}");
    assert!(said("curl 'localhost").contains(r#""state":"cancelled""#), "{out}");
    assert!(said("curl -X DELETE").contains(r#""outcome":"cancelled""#), "{out}");
    assert!(said("curl 'localhost:8080/v1/timers?").contains(r#""timers":["#), "{out}");
    assert!(said("waterclock forecast").contains("stands in"), "{out}");
}

#[test]
fn the_cookbook_does_what_it_says() {
    const TARGETS: [&str; 6] = [
        "shop.unpaid",
        "shop.stock",
        "shop.coupons",
        "shop.payments",
        "shop.orders",
        "shop.failed",
    ];
    let fixture = Fixture::cold("cookbook");
    let shell = Shell::new(&fixture);
    let page = include_str!("../../docs/cookbook.md");
    let blocks: Vec<&str> = page.split("\n```sh\n").skip(1).collect();
    assert_eq!(blocks.len(), 7, "all of the page");
    let mut script = String::new();
    for (n, block) in blocks.iter().enumerate() {
        let (block, _) = block.split_once("\n```").expect("its end");
        writeln!(script, "echo '== {n}'\n{}", shell.here(block, &TARGETS)).expect("written");
    }
    let (out, errors) = shell.run(&script);
    shell.delete(&TARGETS);
    let said: Vec<&str> = out.split("== ").skip(1).collect();
    assert!(said[2].contains("cancelled"), "{out}\n{errors}");
    assert!(said[3].contains("replaced") && said[3].contains("delay\n"), "{out}\n{errors}");
    assert!(said[6].contains(r#"{"payment": 3}"#), "{out}\n{errors}");
}

#[test]
fn the_cookbook_shows_the_programs_as_they_stand() {
    const PROGRAMS: [(&str, &str); 4] = [
        ("python", include_str!("../../docs/clients/timers.py")),
        ("java", include_str!("../../docs/clients/Timers.java")),
        ("go", include_str!("../../docs/clients/timers.go")),
        ("rust", include_str!("../../examples/cookbook.rs")),
    ];
    // A function may stand deeper in its program than on the page.
    let lines = |text: &str| text.lines().fold(String::new(), |all, line| all + line.trim() + "\n");
    let page = include_str!("../../docs/cookbook.md");
    for (language, program) in PROGRAMS {
        let program = lines(program);
        let blocks: Vec<&str> = page.split(&format!("\n```{language}\n")).skip(1).collect();
        assert_eq!(
            blocks.len(),
            6,
            "of {language}: one for each recipe, and what two of them share"
        );
        for block in blocks {
            let (block, _) = block.split_once("\n```").expect("its end");
            for piece in block.split("\n\n") {
                assert!(program.contains(&lines(piece)), "not in the program: {piece}");
            }
        }
    }
}
