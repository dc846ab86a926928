//! Clients that are not ours: the programs of `docs/clients/`, as they stand there, against a real Kafka.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::support::{
    Fixture, Log, Mode, PATIENCE, Process, Rec, eventually_within, patient, variable, whole,
};

/// Longer than a JVM may take to start between two records about one timer, on a machine that also builds.
const SOON: &str = "20s";

/// Where a program of the documents stands.
fn program(name: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("docs/clients").join(name);
    path.display().to_string()
}

/// A program of a document, and what runs it.
pub struct Client {
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
    pub fn python(fixture: &Fixture, process: &Process, partitioner: &str) -> Self {
        let runner = vec![python(), program("timers.py")];
        let mut client = Self::new(fixture, process, runner);
        client.environment.push(("PARTITIONER", partitioner.to_owned()));
        client
    }

    /// A shop that is called back; it needs nothing beside Python.
    pub fn callbacks(
        fixture: &Fixture,
        process: &Process,
        environment: &[(&'static str, &str)],
    ) -> Self {
        let mut client = Self::new(fixture, process, vec![python(), program("callbacks.py")]);
        client.environment.retain(|(name, _)| *name == "SERVER");
        client.environment.extend(environment.iter().map(|(name, is)| (*name, (*is).to_owned())));
        client
    }

    /// franz-go: its default partitioner is Java's.
    pub fn go(fixture: &Fixture, process: &Process) -> Self {
        Self::new(fixture, process, vec![go()])
    }

    /// Kafka's own client: its default partitioner is murmur2. `java` would compile its file in each run, as the test of its page
    /// has it.
    pub fn java(fixture: &Fixture, process: &Process) -> Self {
        let classes = java_classes();
        let mut client = Self::new(fixture, process, java_tool("Timers"));
        client.environment.push(("CLASSPATH", classes));
        client
    }

    /// The client of this crate: it finds the instance to ask through Kafka.
    pub fn rust(fixture: &Fixture, process: &Process) -> Self {
        Self::rust_example(fixture, process, "cookbook")
    }

    /// The same, another program.
    pub fn rust_example(fixture: &Fixture, process: &Process, name: &str) -> Self {
        let program = example(name).display().to_string();
        let mut client = Self::new(fixture, process, vec![program]);
        client.environment.retain(|(name, _)| *name == "BROKERS");
        client.environment.push(("NAMESPACE", fixture.namespace().to_owned()));
        client
    }

    /// The same for tasks: any instance is asked, and the program is an executor, too.
    pub fn rust_tasks(fixture: &Fixture, process: &Process) -> Self {
        Self::new(fixture, process, vec![example("tasks").display().to_string()])
    }

    /// What executes shards of runs by the worker of this crate. It is told everything by its arguments.
    pub fn rust_worker(fixture: &Fixture, process: &Process) -> Self {
        let server = format!("http://{}", process.address().expect("it runs"));
        let program = example("worker").display().to_string();
        let runner = vec![program, fixture.connection.brokers.clone(), server];
        Self { runner, environment: Vec::new() }
    }

    /// franz-go, with HTTP or gRPC for tasks.
    pub fn go_tasks(fixture: &Fixture, process: &Process) -> Self {
        Self::new(fixture, process, vec![go_tasks()])
    }

    /// Kafka's own client, with java.net.http or grpc-java for tasks.
    #[track_caller]
    pub fn java_tasks(fixture: &Fixture, process: &Process) -> Self {
        Self::new(fixture, process, Self::java_of_tasks("Tasks.java"))
    }

    /// What executes shards of runs, in Python: it needs nothing but confluent-kafka.
    #[track_caller]
    pub fn python_executor(fixture: &Fixture, process: &Process) -> Self {
        Self::executor(fixture, process, vec![python(), program("run_executor.py")])
    }

    /// The same in Java.
    #[track_caller]
    pub fn java_executor(fixture: &Fixture, process: &Process) -> Self {
        Self::executor(fixture, process, Self::java_of_tasks("Executor.java"))
    }

    /// It is told where the API is by its first argument.
    fn executor(fixture: &Fixture, process: &Process, mut runner: Vec<String>) -> Self {
        runner.push(process.address().expect("it runs"));
        let mut client = Self::new(fixture, process, runner);
        client.environment.retain(|(name, _)| *name == "BROKERS");
        client.environment.extend([("TOKEN", String::new()), ("HEARTBEAT", "5".to_owned())]);
        client
    }

    /// What runs a program of docs/clients/tasks-java.
    #[allow(clippy::disallowed_methods, reason = "a test must be told where it is")]
    #[track_caller]
    fn java_of_tasks(name: &str) -> Vec<String> {
        let lib = std::env::var("WATERCLOCK_TEST_JAVA_LIB").unwrap_or_else(|_| {
            panic!("WATERCLOCK_TEST_JAVA_LIB is not set: scripts/test sets it to the jars of docs/clients/tasks-java/pom.xml, as Maven brings them")
        });
        let java = std::env::var("JAVA_HOME")
            .map_or_else(|_| "java".to_owned(), |home| format!("{home}/bin/java"));
        let program = program(&format!("tasks-java/{name}"));
        [&*java, "-cp", &format!("{lib}/*"), &program].map(str::to_owned).to_vec()
    }

    /// As it would be run.
    pub fn prepared(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.runner[0]);
        command.args(&self.runner[1..]).args(arguments);
        command.env_remove("KAFKA_BOOTSTRAP").env_remove("SERVER");
        command.envs(self.environment.iter().cloned());
        command
    }

    /// Waits until it has ended; one that does not end fails the test, and is ended.
    #[track_caller]
    fn command(&self, arguments: &[&str]) -> Output {
        let mut command = self.prepared(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let until = Instant::now() + patient(2 * PATIENCE);
        // What they print fits into a pipe.
        while child.try_wait().expect("it can be waited for").is_none() {
            if Instant::now() > until {
                child.kill().expect("killed");
                let ended = child.wait_with_output().expect("it ended");
                panic!("{:?} {arguments:?} does not end: {ended:?}", self.runner);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        child.wait_with_output().expect("it ended")
    }

    /// It is told how it is used, in place of where it broke.
    #[track_caller]
    pub fn says_how_it_is_used(&self, arguments: &[&str], usage: &str) {
        let errors = self.fails(arguments);
        assert!(errors.contains(usage), "{arguments:?}: {errors}");
        assert!(!errors.contains("rror"), "{arguments:?}: {errors}");
    }

    /// What it complains of.
    #[track_caller]
    pub fn fails(&self, arguments: &[&str]) -> String {
        let ended = self.command(arguments);
        let errors = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(1), "{arguments:?}: {errors}");
        errors.into_owned()
    }

    /// What it says.
    #[track_caller]
    pub fn run(&self, arguments: &[&str]) -> String {
        let ended = self.command(arguments);
        let errors = String::from_utf8_lossy(&ended.stderr);
        assert!(
            ended.status.success(),
            "{:?} {arguments:?}: {errors}\n(a .java file is run by a JDK of 17 or later, not by a mere JRE)",
            self.runner
        );
        String::from_utf8_lossy(&ended.stdout).trim().to_owned()
    }
}

/// An example of this crate, as Cargo builds it beside its tests.
#[track_caller]
fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("this is a test");
    let built = test.parent().and_then(Path::parent).expect("in target/debug/deps");
    let program = built.join("examples").join(name).with_extension(std::env::consts::EXE_EXTENSION);
    assert!(program.is_file(), "{} is not built: cargo build --example {name}", program.display());
    program
}

/// What runs a class with Kafka's jars, or a file.
fn java_tool(class: &str) -> Vec<String> {
    let (script, dir) = (variable("WATERCLOCK_KAFKA_SCRIPT"), variable("WATERCLOCK_KAFKA_DIR"));
    [&*script, "tool", "--dir", &dir, class].map(str::to_owned).to_vec()
}

/// Where the classes of Timers.java are, which are made once.
#[track_caller]
fn java_classes() -> String {
    static CLASSES: OnceLock<String> = OnceLock::new();
    let made = CLASSES.get_or_init(|| {
        // Beside the cluster of the run, with which it goes.
        let beside = PathBuf::from(variable("WATERCLOCK_KAFKA_DIR")).with_file_name("timers-java");
        let to = beside.display().to_string();
        let runner = java_tool("com.sun.tools.javac.Main");
        let mut command = Command::new(&runner[0]);
        // Without it, the compiler goes by what it was itself started with.
        command
            .args(&runner[1..])
            .args(["-d", &to, &program("Timers.java")])
            .env_remove("CLASSPATH");
        let ended = command.output().expect("it starts");
        let errors = String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.success(), "it wants a JDK of 17 or later, not a mere JRE: {errors}");
        to
    });
    made.clone()
}

/// The program in Go, built.
#[allow(clippy::disallowed_methods, reason = "a test must be told where it is")]
#[track_caller]
pub fn go() -> String {
    std::env::var("WATERCLOCK_TEST_GO").unwrap_or_else(|_| {
        panic!("WATERCLOCK_TEST_GO is not set: scripts/test sets it to docs/clients/timers.go, built by go")
    })
}

/// The program in Go for tasks, built.
#[allow(clippy::disallowed_methods, reason = "a test must be told where it is")]
#[track_caller]
fn go_tasks() -> String {
    std::env::var("WATERCLOCK_TEST_GO_TASKS").unwrap_or_else(|_| {
        panic!("WATERCLOCK_TEST_GO_TASKS is not set: scripts/test sets it to docs/clients/tasks-go, built by go")
    })
}

/// A Python with confluent-kafka and grpcio, as scripts/test makes it.
#[allow(clippy::disallowed_methods, reason = "a test must be told where it is")]
#[track_caller]
pub fn python() -> String {
    std::env::var("WATERCLOCK_TEST_PYTHON").unwrap_or_else(|_| {
        panic!(
            "WATERCLOCK_TEST_PYTHON is not set: scripts/test sets it to a Python with confluent-kafka and grpcio; by hand: \
             python3 -m venv V && V/bin/pip install confluent-kafka grpcio grpcio-tools grpcio-reflection && export WATERCLOCK_TEST_PYTHON=V/bin/python"
        )
    })
}

fn texts(records: &[Rec]) -> Vec<String> {
    let mut texts: Vec<String> = records.iter().map(Rec::text).collect();
    texts.sort();
    texts
}

/// Sends, replaces, cancels and asks by the program of a document.
fn does_what_its_document_says(fixture: &Fixture, process: &mut Process, client: &Client) {
    let target = fixture.target("out", 3);
    let usage = "send TARGET KEY ID DELAY TEXT";
    client.says_how_it_is_used(&[], usage);
    client.says_how_it_is_used(&["send", &target], usage);
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
    client.run(&["send", &fixture.name("nowhere"), "k", "lost in the post", "0", "has no target"]);
    Log::open(fixture, &fixture.names.dead()).count(1);
    assert_eq!(client.run(&["ask", "k", "lost in the post"]), "unknown (dead, target_missing)");
    client.run(&["send", &target, "k", "d", "1h", "is replaced"]);
    client.run(&["replace", &target, "k", "d", "1s", "replaces"]);
    Log::open(fixture, &target).until_within(2 * PATIENCE, "both", |seen| seen.len() >= 2);
    assert_eq!(client.run(&["ask", "k", "d"]), "delivered");
    process.stop_well();
    assert_eq!(texts(&whole(fixture, &target)), ["arrives", "replaces"]);
}

#[test]
fn the_python_program_of_the_documents_does_what_it_says() {
    let fixture = Fixture::new("clients-python");
    let mut process = fixture.start(Mode::ExactlyOnce);
    let client = Client::python(&fixture, &process, "murmur2_random");
    does_what_its_document_says(&fixture, &mut process, &client);
}

/// No Kafka is asked for it. The proxy is there, and would be asked: by the same program for another machine it is.
#[test]
fn the_python_program_of_the_documents_asks_this_machine_without_a_proxy() {
    let stub = tempfile::tempdir().expect("a directory");
    let client = "class Producer:\n    def __init__(self, _): pass\nConsumer = Producer\n";
    std::fs::write(stub.path().join("confluent_kafka.py"), client).expect("written");
    let listen = || TcpListener::bind("127.0.0.1:0").expect("a free port");
    let (server, proxy) = (listen(), listen());
    let port = server.local_addr().expect("an address").port();
    let through = format!("http://{}", proxy.local_addr().expect("an address"));
    let asked = Arc::new(AtomicUsize::new(0));
    for (listener, answer, count) in
        [(server, "200 OK", None), (proxy, "502 Bad Gateway", Some(Arc::clone(&asked)))]
    {
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.expect("a connection");
                let mut lines = BufReader::new(&stream).lines().map_while(Result::ok);
                while lines.next().is_some_and(|line| !line.is_empty()) {}
                if let Some(count) = &count {
                    count.fetch_add(1, Ordering::SeqCst);
                }
                let body = r#"{"timers": [], "next": null}"#;
                let length = body.len();
                let head = format!("HTTP/1.1 {answer}\r\nContent-Length: {length}\r\n");
                write!(stream, "{head}Connection: close\r\n\r\n{body}").expect("answered");
            }
        });
    }
    let ends_well = |host: &str| {
        let mut command = Command::new(python());
        command.args([&*program("timers.py"), "labelled", "trial"]);
        command.env("PYTHONPATH", stub.path()).env("SERVER", format!("http://{host}:{port}"));
        for name in ["no_proxy", "NO_PROXY"] {
            command.env_remove(name);
        }
        let output = command.env("http_proxy", &through).output().expect("it runs");
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        // What goes wrong is one line with the server, and no traceback.
        let names_it = printed.starts_with(&format!("the server http://{host}:{port}: "));
        assert!(output.status.success() || names_it && printed.lines().count() == 1, "{printed}");
        output.status.success()
    };
    assert!(
        ["localhost", "127.0.0.1"].into_iter().all(ends_well),
        "through the proxy, or not at all"
    );
    assert_eq!(asked.load(Ordering::SeqCst), 0, "it asked the proxy");
    assert!(!ends_well("elsewhere.invalid"));
    assert_eq!(asked.load(Ordering::SeqCst), 1, "this proxy is none");
}

#[test]
fn the_go_program_of_the_documents_does_what_it_says() {
    let fixture = Fixture::new("clients-go");
    let mut process = fixture.start(Mode::ExactlyOnce);
    let client = Client::go(&fixture, &process);
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
    let of_lane = |lane| fixture.astray(lane).take(2);
    let keys: Vec<String> = (0..2).flat_map(of_lane).collect();
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
