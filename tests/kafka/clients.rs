//! Clients that are not ours: the programs of `docs/clients/`, as they stand there, against a real Kafka.

use std::path::PathBuf;
use std::process::Command;

use waterclock::engine::murmur2;

use crate::support::{
    Fixture, Log, Mode, PATIENCE, Process, Rec, eventually_within, variable, whole,
};

/// Longer than a JVM may take to compile and start between two records about one timer, on a machine that also builds.
const SOON: &str = "40s";

/// The code blocks of a document, one after another, as one program.
fn program(document: &str, language: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("docs/clients").join(document);
    let text = std::fs::read_to_string(&path).expect("the document");
    let (open, mut blocks) = (format!("```{language}\n"), Vec::new());
    for part in text.split(&open).skip(1) {
        blocks.push(part.split("```").next().expect("a block ends"));
    }
    assert!(!blocks.is_empty(), "no program in {}", path.display());
    blocks.join("\n\n")
}

/// A program of a document, and what runs it.
struct Client {
    runner: Vec<String>,
    environment: Vec<(&'static str, String)>,
}

impl Client {
    fn new(fixture: &Fixture, process: &Process, runner: Vec<String>) -> Self {
        let environment = vec![
            ("BROKERS", fixture.connection.brokers.clone()),
            ("INTAKE", fixture.names.intake()),
            ("SERVER", format!("http://{}", process.address().expect("it runs"))),
        ];
        Self { runner, environment }
    }

    /// confluent-kafka, which is librdkafka: its own default partitioner is CRC32.
    fn python(fixture: &Fixture, process: &Process, partitioner: &str) -> Self {
        let file = fixture.path("timers.py");
        std::fs::write(&file, program("python.md", "python")).expect("written");
        let runner = vec![python(), file.display().to_string()];
        let mut client = Self::new(fixture, process, runner);
        client.environment.push(("PARTITIONER", partitioner.to_owned()));
        client
    }

    /// Kafka's own client: its default partitioner is murmur2.
    fn java(fixture: &Fixture, process: &Process) -> Self {
        let file = fixture.path("Timers.java");
        std::fs::write(&file, program("java.md", "java")).expect("written");
        let (script, dir) = (variable("WATERCLOCK_KAFKA_SCRIPT"), variable("WATERCLOCK_KAFKA_DIR"));
        let tool = ["tool", "--dir"].map(str::to_owned);
        let runner = [vec![script], tool.to_vec(), vec![dir, file.display().to_string()]].concat();
        Self::new(fixture, process, runner)
    }

    /// What it says.
    #[track_caller]
    fn run(&self, arguments: &[&str]) -> String {
        let mut command = Command::new(&self.runner[0]);
        command.args(&self.runner[1..]).args(arguments);
        command.env_remove("KAFKA_BOOTSTRAP").envs(self.environment.iter().cloned());
        let ended = command.output().expect("it starts");
        let errors = String::from_utf8_lossy(&ended.stderr);
        assert!(
            ended.status.success(),
            "{:?} {arguments:?}: {errors}\n(a .java file is run by a JDK of 17 or later, not by a mere JRE)",
            self.runner
        );
        String::from_utf8_lossy(&ended.stdout).trim().to_owned()
    }
}

/// A Python with confluent-kafka, as scripts/test makes it.
#[allow(clippy::disallowed_methods, reason = "a test must be told where it is")]
#[track_caller]
fn python() -> String {
    std::env::var("WATERCLOCK_TEST_PYTHON").unwrap_or_else(|_| {
        panic!(
            "WATERCLOCK_TEST_PYTHON is not set: scripts/test sets it to a Python with confluent-kafka; by hand: \
             python3 -m venv V && V/bin/pip install confluent-kafka && export WATERCLOCK_TEST_PYTHON=V/bin/python"
        )
    })
}

/// The partition of librdkafka's default partitioner.
fn crc32_partition(key: &str, partitions: u16) -> u16 {
    let mut crc = !0u32;
    for byte in key.bytes() {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg());
        }
    }
    (!crc % u32::from(partitions)) as u16
}

fn texts(records: &[Rec]) -> Vec<String> {
    let mut texts: Vec<String> = records.iter().map(Rec::text).collect();
    texts.sort();
    texts
}

/// Sends, replaces, cancels, asks and polls by the program of a document.
fn does_what_its_document_says(fixture: &Fixture, process: &mut Process, client: &Client) {
    let target = fixture.target("out", 3);
    let polls = fixture.target("polls", 3);
    for text in ["arrives", "is the same, sent again"] {
        client.run(&["send", &target, "k", "a", SOON, text]);
    }
    client.run(&["send", &target, "k", "by header", "1h", "cancelled by a header"]);
    client.run(&["cancel", "k", "by header"]);
    assert_eq!(client.run(&["ask", "k", "by header"]), "cancelled", "it was, by the header");
    client.run(&["send", &target, "k", "b/c d", "1h", "cancelled with an answer"]);
    for _ in 0..2 {
        assert_eq!(client.run(&["ask", "k", "b/c d"]), "cancelled");
    }
    assert_eq!(client.run(&["ask", "k", "never was"]), "unknown");
    client.run(&["send", &target, "k", "d", "1h", "is replaced"]);
    client.run(&["replace", &target, "k", "d", "1s", "replaces"]);
    Log::open(fixture, &target).until_within(2 * PATIENCE, "both", |seen| seen.len() >= 2);
    assert_eq!(client.run(&["ask", "k", "d"]), "delivered");
    assert_eq!(client.run(&["poll", &polls, "k", "1s", "3"]), "round 1\nround 2\nround 3");
    process.stop_well();
    assert_eq!(texts(&whole(fixture, &target)), ["arrives", "replaces"]);
    assert_eq!(whole(fixture, &polls).len(), 3);
}

#[test]
fn the_python_program_of_the_documents_does_what_it_says() {
    let fixture = Fixture::new("clients-python");
    let mut process = fixture.start(Mode::ExactlyOnce);
    let client = Client::python(&fixture, &process, "murmur2_random");
    does_what_its_document_says(&fixture, &mut process, &client);
}

#[test]
fn the_java_program_of_the_documents_does_what_it_says() {
    let fixture = Fixture::new("clients-java");
    let mut process = fixture.start(Mode::ExactlyOnce);
    let client = Client::java(&fixture, &process);
    does_what_its_document_says(&fixture, &mut process, &client);
}

#[test]
fn a_timer_and_its_cancel_meet_in_their_lane_whatever_partitioners_wrote_them() {
    let fixture = Fixture::new("clients-meet");
    let target = fixture.target("out", 3);
    let mut process = fixture.start(Mode::ExactlyOnce);
    let (python, java) =
        (Client::python(&fixture, &process, "consistent_random"), Client::java(&fixture, &process));
    let lanes = fixture.lanes();
    let keys: Vec<String> = (0..)
        .map(|n| format!("customer-{n}"))
        .filter(|key| crc32_partition(key, lanes) != murmur2::partition(key.as_bytes(), lanes))
        .take(4)
        .collect();
    for (n, key) in keys.iter().enumerate() {
        let (creates, cancels) = if n % 2 == 0 { (&python, &java) } else { (&java, &python) };
        creates.run(&["send", &target, key, "i", SOON, "must not arrive"]);
        cancels.run(&["cancel", key, "i"]);
        assert_eq!(python.run(&["ask", key, "i"]), "cancelled", "{n}: {key}");
    }
    eventually_within(PATIENCE, "what stood elsewhere was moved to its lane", || {
        let moved = process.metric("waterclock_moved_total");
        if moved == 4.0 { Ok(()) } else { Err(format!("{moved} were moved")) }
    });
    // Sent after all of them, due after all of them.
    python.run(&["send", &target, &keys[0], "last", SOON, "arrives"]);
    Log::open(&fixture, &target).until_within(2 * PATIENCE, "the last", |seen| !seen.is_empty());
    process.stop_well();
    assert_eq!(texts(&whole(&fixture, &target)), ["arrives"]);
}
