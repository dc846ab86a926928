//! The commands of the README and of the other pages, line by line, as somebody types them who has nothing but the page.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};

use waterclock::kafka::topics::delete;

use crate::support::{Fixture, free_address, variable, waterclock};

const BROKER: &str = "localhost:9092";
const HTTP: [&str; 2] = ["127.0.0.1:8080", "localhost:8080"];
const TARGET: &str = "orders.expire";
/// The tools of Kafka that it uses, and what they are in its jars.
const TOOLS: [(&str, &str); 2] = [
    ("kafka-topics.sh", "org.apache.kafka.tools.TopicCommand"),
    ("kafka-console-consumer.sh", "org.apache.kafka.tools.consumer.ConsoleConsumer"),
];

/// How many blocks of commands of each page are run here. The others say in the page why no test runs them.
const RUN: [(&str, usize); 10] = [
    ("README.md", 3),
    ("docs/cli.md", 13),
    ("docs/clients/go.md", 2),
    ("docs/clients/java.md", 2),
    ("docs/clients/kcat.md", 7),
    ("docs/clients/python.md", 2),
    ("docs/cookbook-runs.md", 10),
    ("docs/cookbook.md", 7),
    ("docs/header-contract.md", 1),
    ("docs/http-api.md", 10),
];
/// The blocks that have no commands, by the name of their language. One that shows something else has none, or is text.
const SHOWN: [&str; 12] = [
    "", "abnf", "example", "go", "java", "json", "lane", "python", "rust", "state", "text", "toml",
];
/// Where the pages are read that are run from the root of the repository.
const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// A page's blocks of commands, but for those that say why no test runs them.
fn blocks(page: &str) -> Vec<String> {
    let path = std::path::Path::new(ROOT).join(page);
    let text = std::fs::read_to_string(&path).expect("a page");
    let pieces: Vec<&str> = text.split("```sh\n").collect();
    let command =
        regex::Regex::new(r"^ *(\$ )?((waterclock|cargo|docker|curl|kcat) |kafka-|(\./)?scripts/)");
    let command = command.expect("sound");
    let mut fence: Option<&str> = None;
    for line in text.lines() {
        match (fence, line.trim().strip_prefix("```")) {
            (None, Some(name)) => {
                let is_found = line == "```sh" || SHOWN.contains(&name);
                assert!(
                    is_found,
                    "{page}: commands stand in a block that begins with ```sh: {line}"
                );
                fence = Some(name);
            }
            (Some(_), Some("")) => fence = None,
            (Some("" | "text"), None) => {
                assert!(!command.is_match(line), "{page}: commands stand in a block of sh: {line}");
            }
            _ => {}
        }
    }
    let is_run = |before: &str| {
        let last = before.trim_end().rsplit_once("\n").map_or("", |(_, last)| last);
        !(last.starts_with("<!-- no test runs this: ") && last.ends_with(" -->"))
    };
    let text = |block: &str| block.split_once("\n```").expect("its end").0.to_owned();
    let pairs = pieces.windows(2).filter(|pair| is_run(pair[0]));
    let blocks: Vec<String> = pairs.map(|pair| text(pair[1])).collect();
    let said = RUN.iter().find(|(name, _)| *name == page).map_or(0, |(_, count)| *count);
    assert_eq!(blocks.len(), said, "{page}: how many blocks of commands are run by a test");
    blocks
}

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
        let docs = std::path::Path::new(ROOT).join("docs");
        std::os::unix::fs::symlink(docs, fixture.path("docs")).expect("linked");
        Self { fixture, http: free_address() }
    }

    /// A program that the pages call.
    fn add(&self, name: &str, script: &str) {
        let path = self.fixture.path("bin").join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("written");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("set");
    }

    /// What each block of a page prints; all end well. Behind its line `send` is waited for what it made.
    #[track_caller]
    fn page(&self, page: &str, blocks: &[String], targets: &[&str]) -> Vec<String> {
        let mut script = String::new();
        for (n, block) in blocks.iter().enumerate() {
            writeln!(script, "echo '== {n}'\n{}", self.here(block, targets)).expect("written");
        }
        let (out, errors) = self.run(&script);
        self.delete(targets);
        let said: Vec<String> = out.split("== ").skip(1).map(str::to_owned).collect();
        assert_eq!(said.len(), blocks.len(), "{page}: {out}\n{errors}");
        said
    }

    /// A line, but for where Kafka is, on which address an instance answers, and these names of targets.
    fn here(&self, line: &str, targets: &[&str]) -> String {
        let line = line.replace(BROKER, &self.fixture.connection.brokers);
        let line = line.replace("waterclock.intake", &self.fixture.names.intake());
        let line = HTTP.iter().fold(line, |line, address| line.replace(address, &self.http));
        // First the patterns, in which a dot is another thing.
        let line = targets.iter().fold(line, |line, target| {
            let Some((first, _)) = target.split_once('.') else { return line };
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
        shell.env("INTAKE", self.fixture.names.intake());
        shell.current_dir(self.fixture.path("")).args(["-c", &all]).stdin(Stdio::null());
        let ended = shell.output().expect("bash runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (out, errors) = (text(&ended.stdout), text(&ended.stderr));
        assert!(ended.status.success(), "{}\n{out}\n{errors}", ended.status);
        (out, errors)
    }

    fn delete(&self, targets: &[&str]) {
        let names: Vec<String> = targets.iter().map(|target| self.fixture.name(target)).collect();
        delete(&self.fixture.connection, &names).expect("deleted");
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
    let put_off = said("waterclock reschedule payment");
    assert!(put_off.starts_with("replaced, due 20"), "{put_off}: {errors}");
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
    const PAGE: &str = "docs/cookbook.md";
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
    let said = shell.page(PAGE, &blocks(PAGE), &TARGETS);
    assert!(said[2].contains("cancelled"), "{said:?}");
    assert!(said[3].contains("replaced") && said[3].contains("delay\n"), "{said:?}");
    assert!(said[6].contains(r#"{"payment": 3}"#), "{said:?}");
}

#[test]
fn the_cookbook_shows_the_programs_as_they_stand() {
    const PROGRAMS: [(&str, &str); 4] = [
        ("python", include_str!("../../docs/clients/timers.py")),
        ("java", include_str!("../../docs/clients/Timers.java")),
        ("go", include_str!("../../docs/clients/timers.go")),
        ("rust", include_str!("../../crates/client/examples/cookbook.rs")),
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

/// A page about a client: its program is sent to the same places as `waterclock`.
fn page_of_a_client(language: &str, program: &str, install: &[(&str, &str)]) {
    let fixture = Fixture::cold(&format!("page-{language}"));
    let shell = Shell::new(&fixture);
    shell.add(language, program);
    for (name, script) in install {
        shell.add(name, script);
    }
    let page = format!("docs/clients/{language}.md");
    let said = shell.page(&page, &blocks(&page), &["reminders"]);
    assert_eq!(said[1].lines().last(), Some("cancelled"), "{said:?}");
}

#[test]
fn the_python_program_of_its_page() {
    let python = super::clients::python();
    page_of_a_client(
        "python",
        &format!("exec '{python}' \"$@\""),
        &[("pip", &format!("exec '{python}' -m pip --disable-pip-version-check --quiet \"$@\""))],
    );
}

/// A line of an executor of runs: `begin 3/60 turn 2 from row:7 at 1767225600000`.
#[derive(Debug)]
struct Said {
    word: String,
    shard: String,
    turn: u32,
    /// From where it begins, and for which nominal time; or how it ended.
    what: String,
    at: u64,
}

impl Said {
    /// For which time of its schedule a shard is that begins.
    fn nominal(&self) -> Option<u64> {
        self.what.rsplit_once(" nominal ")?.1.parse().ok()
    }
}

/// The nominal times of the runs of a schedule whose ids stand in this text, in their order.
#[track_caller]
fn nominal_times(text: &str, schedule: &str) -> Vec<u64> {
    let time = |id: &str| {
        let digits = id.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
        digits.parse::<u64>().unwrap_or_else(|_| panic!("of no time: {id}"))
    };
    let times: BTreeSet<u64> = text.split(&format!("{schedule}@")).skip(1).map(time).collect();
    times.into_iter().collect()
}

/// All that an executor of the page about runs has said.
#[track_caller]
fn said_by(fixture: &Fixture, log: &str) -> Vec<Said> {
    let text = std::fs::read_to_string(fixture.path(log)).expect("its log");
    let read = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let (head, rest) = words.split_at_checked(4)?;
        let [what @ .., "at", at] = rest else { return None };
        Some(Said {
            word: head[0].to_owned(),
            shard: head[1].to_owned(),
            turn: head[3].parse().ok()?,
            what: what.join(" "),
            at: at.parse().ok()?,
        })
    };
    text.lines().map(|line| read(line).unwrap_or_else(|| panic!("{log}: {line}"))).collect()
}

/// When each turn of each shard began, and when it ended for its executor, if that lived: in the order in which they began.
fn spans(logs: &[Vec<Said>]) -> Vec<(&str, u32, u64, Option<u64>)> {
    let mut spans = Vec::new();
    for log in logs {
        for (n, begin) in log.iter().enumerate().filter(|(_, said)| said.word == "begin") {
            let is_end = |end: &&Said| {
                (&*end.shard, end.turn) == (&*begin.shard, begin.turn) && end.word != "begin"
            };
            let end = log[n..].iter().find(is_end).map(|end| end.at);
            spans.push((&*begin.shard, begin.turn, begin.at, end));
        }
    }
    spans.sort_by_key(|span| span.2);
    spans
}

#[test]
fn the_python_program_of_the_cookbook_of_runs() {
    const PAGE: &str = "docs/cookbook-runs.md";
    const TARGETS: [&str; 3] = ["shop.settlement", "shop.reports", "shop.drain"];
    let fixture = Fixture::cold("cookbook-runs");
    let shell = Shell::new(&fixture);
    shell.add("python3", &format!("exec '{}' \"$@\"", super::clients::python()));
    // Of a job that was killed a shell remembers it, until it is asked.
    const KILL: &str = "kill -9 \"$NODE\"";
    let gone = format!("{KILL}\nwait \"$NODE\" || true");
    let all: Vec<String> =
        blocks(PAGE).into_iter().map(|block| block.replace(KILL, &gone)).collect();
    let said = shell.page(PAGE, &all, &TARGETS);

    // The settlement: each shard is finished once, and what the dead node had in hand went on from where it was.
    let logs = ["node-1.log", "node-2.log", "node-3.log"].map(|log| said_by(&fixture, log));
    let mut finished: Vec<&str> = logs
        .iter()
        .flatten()
        .filter(|said| said.word == "end" && said.what == "finished")
        .map(|said| &*said.shard)
        .collect();
    finished.sort_unstable();
    let mut want: Vec<String> = (0..60).map(|n| format!("{n}/60")).collect();
    want.sort_unstable();
    assert_eq!(finished, want, "each once");
    let last = logs[0].last().expect("it has begun one");
    assert_eq!(last.word, "begin", "it was killed while it worked: {last:?}");
    let next = logs[1..].iter().flatten().find(|said| {
        said.word == "begin" && said.shard == last.shard && said.turn == last.turn + 1
    });
    let next = next.expect("another one went on");
    assert!(next.what.starts_with("from row:"), "{next:?}");
    let spans_of_nodes = spans(&logs);
    for one in &spans_of_nodes {
        for two in spans_of_nodes.iter().filter(|two| two.0 == one.0 && two.1 > one.1) {
            let is_one = one.3.is_none_or(|ended| ended <= two.2);
            assert!(is_one, "two work on one shard: {one:?} {two:?}");
        }
    }
    assert!(said[4].contains("finished") && said[4].contains("turn 2"), "{said:#?}");

    // The report: at half past seven on either clock, and one by hand.
    let page = std::fs::read_to_string(std::path::Path::new(ROOT).join(PAGE)).expect("the page");
    let (_, times) = page.split_once("```text\n").expect("what is shown");
    let (times, _) = times.split_once("```").expect("its end");
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let previewed: Vec<_> = said[5].lines().map(words).collect();
    assert_eq!(times.lines().count(), 5);
    for line in times.lines() {
        assert!(previewed.contains(&words(line)), "{line}: {said:#?}");
    }
    assert!(said[7].contains("report of the day"), "{said:#?}");

    // The drains: two parts each, and none begins before the one of before has ended.
    let logs = ["drain-1.log", "drain-2.log"].map(|log| said_by(&fixture, log));
    let spans_of_drains = spans(&logs);
    let first = spans_of_drains.iter().filter(|span| span.1 == 1);
    let ended: Vec<_> = first.filter_map(|span| Some((span.2, span.3?))).collect();
    assert!(ended.len() >= 4, "{ended:?}");
    let drains: Vec<(u64, u64)> =
        ended.chunks_exact(2).map(|two| (two[0].0, two[0].1.max(two[1].1))).collect();
    for pair in drains.windows(2) {
        assert!(pair[0].1 <= pair[1].0, "two drains at once: {spans_of_drains:?}");
    }
    assert!(said[9].matches("finished").count() >= 2, "{said:#?}");
    // A drain takes at least 12 s, so the time 10 s after its own is left out. Only the ids show that: executors work one part after the
    // other also if each time has a drain.
    let times = nominal_times(&said[9], "schedule.shop.drain");
    assert!(times.len() >= 2, "{said:#?}");
    assert!(times.windows(2).all(|two| two[1] - two[0] >= 20_000), "{times:?}: {said:#?}");
    // The parts of the first two say for which time they are.
    for time in &times[..2] {
        let of_time = |said: &&Said| said.word == "begin" && said.nominal() == Some(*time);
        let parts = logs.iter().flatten().filter(of_time).map(|said| &*said.shard);
        let parts: BTreeSet<&str> = parts.collect();
        assert_eq!(parts, BTreeSet::from(["0/2", "1/2"]), "{time}: {logs:?}");
    }
}

#[test]
fn the_go_program_of_its_page() {
    // It is built already: `go mod` and `go get` would ask the network.
    let go = super::clients::go();
    let script = format!(r#"[ "$1" != run ] || {{ shift 2 && exec '{go}' "$@"; }}"#);
    page_of_a_client("go", &script, &[]);
}

#[test]
fn the_java_program_of_its_page() {
    let (script, dir) = (variable("WATERCLOCK_KAFKA_SCRIPT"), variable("WATERCLOCK_KAFKA_DIR"));
    // Its jars are where the script put them.
    let program = std::path::Path::new(ROOT).join("docs/clients").join("Timers.java");
    let java =
        format!("shift 3\nexec '{script}' tool --dir '{dir}' '{}' \"$@\"", program.display());
    page_of_a_client("java", &java, &[]);
}

#[test]
fn the_page_of_kcat_does_what_it_says() {
    const PAGE: &str = "docs/clients/kcat.md";
    let fixture = Fixture::cold("page-kcat");
    let shell = Shell::new(&fixture);
    let said = shell.page(PAGE, &blocks(PAGE), &["reminders", "polls"]);
    assert!(said[5].contains(r#""outcome":"cancelled""#), "{said:?}");
    let again: Vec<&str> = said[6].lines().skip(1).collect();
    assert_eq!(again, [r#"payment-3 {"payment": 3} tenant=acme"#; 2], "{said:?}");
}

#[test]
fn the_header_contracts_own_record_of_kcat_is_delivered() {
    let fixture = Fixture::cold("page-contract");
    let shell = Shell::new(&fixture);
    let block = blocks("docs/header-contract.md").remove(0).replace("x-delay=90s", "x-delay=2s");
    let quick = commands("## Quick start");
    // The target, waterclock's topics, an instance.
    let first = quick[1..4].join("\n");
    let show = format!("kcat -C -b {BROKER} -t {TARGET} -o beginning -c 1 -q -f '%k:%s%h\\n'");
    let said = shell.page("docs/header-contract.md", &[first, block, show], &[TARGET]);
    assert_eq!(said[2].lines().nth(1), Some("customer-7:hello"), "{said:?}");
}

#[test]
fn the_lines_about_http_are_answered_as_their_page_says() {
    const PAGE: &str = "docs/http-api.md";
    let fixture = Fixture::cold("page-http");
    let shell = Shell::new(&fixture);
    // The target, waterclock's topics, an instance.
    let mut all = vec![commands("## Quick start")[1..4].join("\n")];
    for block in blocks(PAGE) {
        let mut lines = String::new();
        for line in block.lines() {
            writeln!(lines, "{line}").expect("written");
            if let Some(key) = line.strip_prefix("waterclock send ") {
                let (_, key) = key.split_once("--key ").expect("a key");
                let key = key.split(' ').next().unwrap_or_default();
                let wait = format!("waterclock status payment --key {key} | grep -q delay");
                writeln!(lines, "until {wait}; do sleep 0.2; done").expect("written");
                // An instance that has just started says 503 of lanes whose timers it does not know yet.
                writeln!(lines, "waterclock list > /dev/null").expect("written");
            }
        }
        // The token of the count.
        if lines.contains("due_before") {
            let count = lines.trim_end().rsplit('\n').next().unwrap_or_default().to_owned();
            let take = format!("counted=$({count}); echo \"$counted\"\n");
            let token = "TOKEN=${counted##*'\"token\":\"'}; TOKEN=${TOKEN%%'\"'*}\n";
            lines = lines.replace(&count, &format!("{take}{token}"));
        }
        all.push(lines);
    }
    let said = shell.page(PAGE, &all, &[TARGET]);
    let holds = [
        (1, r#""state":"delay""#),
        (2, r#""outcome":"cancelled""#),
        (3, r#""outcome":"#),
        (4, r#""outcome":"replaced""#),
        (5, r#""id":"payment""#),
        (6, r#""outcome":"cancelled""#),
        (7, r#"{"count":2,"expires":"#),
        (8, r#""outcomes":{"cancelled":2}"#),
        (9, r#""tracking":"full""#),
        (10, r#""code":"key_needed""#),
    ];
    for (n, text) in holds {
        assert!(said[n].contains(text), "{n}: {text}: {said:?}");
    }
}

#[test]
fn the_commands_of_the_page_about_the_command_line_run_as_they_stand() {
    const PAGE: &str = "docs/cli.md";
    const TARGETS: [&str; 2] = [TARGET, "orders.reminder"];
    let fixture = Fixture::cold("page-cli");
    let shell = Shell::new(&fixture);
    let quick = commands("## Quick start");
    let create = |target| quick[1].replace(TARGET, target);
    let send = "waterclock send --target orders.expire --in 30m --key order-17 --id payment x\n\
                until waterclock status payment --key order-17 | grep -q delay; do sleep 0.2; done\n";
    let mut all = Vec::new();
    for block in blocks(PAGE) {
        all.push(match block.split_whitespace().nth(1).unwrap_or_default() {
            // The targets before, an instance behind.
            "topics" => {
                let targets = TARGETS.map(create).join("\n");
                format!("echo body >body.bin\n{targets}\n{block}\n{}", quick[3])
            }
            "reschedule" => format!("{send}{block}"),
            "list" => format!("{block}\ncat timers.json"),
            "cancel" => {
                let (count, cancel) = block.split_once('\n').expect("two lines");
                let counted = format!("{send}counted=$({count} --json)\necho \"$counted\"");
                let token = "TOKEN=${counted##*'\"token\":\"'}; TOKEN=${TOKEN%%'\"'*}";
                format!("{counted}\n{token}\n{}", cancel.replace("TOKEN", "$TOKEN"))
            }
            _ => block,
        });
    }
    let said = shell.page(PAGE, &all, &TARGETS);
    #[rustfmt::skip]
    let holds = [
        (0, "12 lanes"), (1, "appends"), (2, "orders.reminder"), (3, "cancelled"), (4, r#""count":1"#), (5, "replaced"),
        (6, "order-17"), (7, "payment"), (8, "stands in"), (9, "ready"), (10, &*shell.http), (11, "\"problems\":"), (12, "--group"),
    ];
    for (n, text) in holds {
        assert!(said[n].contains(text), "{n}: {text}: {said:#?}");
    }
}

#[test]
fn kafka_without_docker_is_started_and_stopped_by_the_lines_of_the_readme() {
    let dir = tempfile::tempdir().expect("a directory");
    let [.., block] = &blocks("README.md")[..] else { panic!("blocks") };
    assert!(block.starts_with("scripts/kafka start"), "{block}");
    let (lines, stop) = block.rsplit_once('\n').expect("lines");
    // Beside the others' own; and a topic is made, as the quick start does.
    let mut all = format!("set -eu\n{lines}\n");
    let create = commands("## Quick start")[1].replace(BROKER, "$KAFKA_BOOTSTRAP");
    writeln!(all, "{create}\nkafka-topics.sh --bootstrap-server $KAFKA_BOOTSTRAP --list\n{stop}")
        .expect("written");
    let mut shell = Command::new("bash");
    for (name, _) in std::env::vars().filter(|(name, _)| name.contains("KAFKA_")) {
        shell.env_remove(name);
    }
    shell.env("WATERCLOCK_KAFKA_DIR", dir.path().join("kafka"));
    shell.current_dir(ROOT).args(["-c", &all]).stdin(Stdio::null());
    let ended = shell.output().expect("bash runs");
    let out = String::from_utf8_lossy(&ended.stdout);
    assert!(ended.status.success(), "{ended:?}");
    assert!(out.contains(TARGET), "{ended:?}");
}

#[test]
fn every_block_of_commands_is_run_or_says_why_not() {
    let mut pages = vec!["README.md".to_owned()];
    let mut dirs = vec!["docs".to_owned(), "topics".to_owned(), "examples".to_owned()];
    for entry in std::fs::read_dir(ROOT).expect("readable") {
        let name = entry.expect("an entry").file_name().to_string_lossy().into_owned();
        pages.extend((name.ends_with(".md") && name != "README.md").then_some(name));
    }
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(std::path::Path::new(ROOT).join(&dir)).expect("readable") {
            let entry = entry.expect("an entry");
            let name = format!("{dir}/{}", entry.file_name().to_string_lossy());
            if entry.path().is_dir() {
                dirs.push(name);
            } else if entry.path().extension().is_some_and(|of| of == "md") {
                pages.push(name);
            }
        }
    }
    assert!(pages.len() > 30, "{pages:?}");
    for page in pages {
        blocks(&page);
    }
}
