//! The binary as a shell sees it, where no broker is needed.
#![allow(unreachable_pub, reason = "a test target has no outside")]

#[allow(dead_code, reason = "the tests on a real Kafka use another part of it")]
#[path = "support/binary.rs"]
mod binary;
#[path = "support/terminal.rs"]
mod terminal;

use std::collections::BTreeSet;
use std::io::{ErrorKind, Write as _};
use std::net::TcpListener;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use serde_json::Value;

use binary::patience;
use terminal::{ignores_hangup, on_a_terminal, read_until};

/// The binary, without what this shell's environment might configure.
fn waterclock(arguments: &[&str]) -> Command {
    let mut command = binary::waterclock();
    command.args(arguments);
    command
}

fn run(arguments: &[&str]) -> Output {
    waterclock(arguments).output().expect("the binary runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

/// A listener that takes connections like a broker, to see whether there are any.
fn nobody_connects(command: impl FnOnce(&str) -> Output) -> Output {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.set_nonblocking(true).expect("non-blocking");
    let output = command(&listener.local_addr().expect("an address").to_string());
    let accepted = listener.accept().map(|_| ()).map_err(|error| error.kind());
    assert_eq!(accepted, Err(ErrorKind::WouldBlock), "something connected");
    output
}

#[test]
fn a_wrong_configuration_stops_every_command_before_anything_connects() {
    for command in [
        vec!["run", "--data-dir", "/nowhere/at/all"],
        vec!["send", "--target", "t", "--in", "5s", "v"],
        vec!["cancel", "i"],
        vec!["dead", "list"],
    ] {
        let output = nobody_connects(|address| {
            waterclock(&command)
                .args(["--brokers", address])
                .env("WATERCLOCK_HORIZON", "5 parsecs")
                .env("WATERCLOCK_LANES", "0")
                .output()
                .expect("the binary runs")
        });
        assert_eq!(output.status.code(), Some(78), "{command:?}");
        assert_eq!(text(&output.stdout), "", "{command:?}");
        let lines: Vec<String> = text(&output.stderr).lines().map(str::to_owned).collect();
        assert_eq!(
            lines,
            [
                "error: configuration: WATERCLOCK_HORIZON in the environment: got \"5 parsecs\", want a duration with units, such as 90s or 1h30m, 1s to 1m",
                "error: configuration: WATERCLOCK_LANES in the environment: got 0, want 1 to 1000",
            ],
            "{command:?}"
        );
    }
}

#[test]
fn all_errors_of_file_environment_and_flags_come_at_once_also_as_json() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("wc.toml");
    std::fs::write(&file, "thread = 3\nmemory = \"1MiB\"\n").expect("written");
    let output = waterclock(&[
        "run",
        "--json",
        "--threads",
        "-4",
        "--delivery",
        "twice",
        "--log-format",
        "xml",
        "--config",
    ])
    .arg(&file)
    .env("WATERCLOCK_DRAIN", "1h")
    .output()
    .expect("the binary runs");
    assert_eq!(output.status.code(), Some(78));
    let told: Value = serde_json::from_slice(&output.stderr).expect("JSON");
    let mut keys: Vec<&str> = told["invalid"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|i| i["key"].as_str())
        .collect();
    keys.sort_unstable();
    assert_eq!(
        keys,
        ["--delivery", "--log-format", "--threads", "WATERCLOCK_DRAIN", "memory", "thread"]
    );
    assert_eq!(told["exit"], 78);
}

#[test]
fn the_error_that_ends_an_instance_is_an_object_where_log_lines_are() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("file");
    std::fs::write(&file, "").expect("written");
    let arguments = ["run", "--allow", "out", "--http", "127.0.0.1:0", "--log-format"];
    let file = file.to_str().expect("a path");
    // One that the configuration shows, and one that the start meets.
    for wrong in [["--threads", "0"], ["--data-dir", file]] {
        for format in ["json", "text"] {
            let mut command = waterclock(&arguments);
            let output = command.arg(format).args(wrong).output().expect("it runs");
            let told = text(&output.stderr);
            let last = told.lines().last().expect("a line");
            if format == "text" {
                assert!(last.starts_with("error: "), "{told}");
                continue;
            }
            let lines = told.lines().map(|line| serde_json::from_str(line).expect(line));
            let lines: Vec<Value> = lines.collect();
            let last = lines.last().expect("a line");
            assert_eq!(last["level"], "ERROR", "{told}");
            let exit = last["fields"]["exit"].as_i64().map(|exit| exit as i32);
            assert_eq!(exit, output.status.code(), "{told}");
            assert!(
                last["fields"]["because"].as_str().is_some_and(|why| !why.is_empty()),
                "{told}"
            );
        }
    }
}

#[test]
fn exit_codes_tell_usage_from_configuration_and_from_a_kafka_that_is_away() {
    // Nothing listens on port 1 of this machine.
    let away = ["--brokers", "127.0.0.1:1"];
    #[rustfmt::skip]
    let cases: [(&str, Vec<&str>, i32); 38] = [
        ("help",                         vec!["--help"],                                            0),
        ("version",                      vec!["--version"],                                         0),
        ("completions",                  vec!["completions", "bash"],                               0),
        ("no command",                   vec![],                                                    2),
        ("unknown command",              vec!["pour"],                                              2),
        ("both times",                   vec!["send", "--in", "1s", "--until", "2", "--target", "t", "v"], 2),
        ("no time",                      vec!["send", "--target", "t", "v"],                        2),
        ("no target",                    vec!["send", "--in", "5s", "v"],                           2),
        ("not a duration",               vec!["send", "--in", "soon", "--target", "t", "v"],        2),
        ("a flag that is misspelt",      vec!["send", "--in", "5s", "--target", "t", "--kye=x"],     2),
        ("no id",                        vec!["cancel", "--key", "k"],                              2),
        ("an id as send has it",         vec!["cancel", "--id", "payment"],                         2),
        ("a key and no id",              vec!["cancel", "--key", "k", "--all"],                     2),
        ("a key that is not base64",     vec!["status", "i", "--key-base64", "!"],                  2),
        ("a replace without an id",      vec!["send", "--in", "5s", "--target", "t", "--replace", "v"], 2),
        ("another time, and none",       vec!["reschedule", "i"],                                   2),
        ("another time, and two",        vec!["reschedule", "i", "--in", "1s", "--until", "5"],     2),
        ("another time that is none",    vec!["reschedule", "i", "--in", "soon"],                   2),
        ("no directory for the manual",  vec!["man", "/nowhere/at/all"],                            73),
        ("a ladder that is not sorted",  vec!["plan", "--ladder", "5s,1s"],                         2),
        ("a hold that is there twice",   vec!["topics", "apply", "--ladder", "1s,1s"],              2),
        ("not an intake",                vec!["cancel", "i", "--intake", "a b"],            2),
        ("unknown code",                 vec!["dead", "list", "--code", "nonsense"],                2),
        ("not a place",                  vec!["dead", "show", "3"],                                 2),
        ("replay of nothing",            vec!["dead", "replay"],                                    2),
        ("replay of two kinds",          vec!["dead", "replay", "0@0", "--all"],                    2),
        ("runs, and nothing of them",    vec!["runs"],                                              2),
        ("a run that nobody names",      vec!["run-status", "--watch"],                             2),
        ("not the id of a run",          vec!["run-status", "shop/nightly"],                        2),
        ("a run of nothing",             vec!["runs", "create", "--delay", "1s"],                   2),
        ("a file of a run, and options", vec!["runs", "create", "--file", "f", "--shards", "8"],    2),
        ("not a status of a run",        vec!["runs", "list", "--status", "running"],               2),
        ("not a state of a shard",       vec!["runs", "shards", "i", "--state", "done"],            2),
        ("no file",                      vec!["dead", "list", "--config", "/nowhere/wc.toml"],      78),
        ("an address that is not ours",   vec!["run", "--http", "192.0.2.1:80", "--http-unauthenticated"], 78),
        ("an address that others reach", vec!["run", "--http", "0.0.0.0:0"],                        78),
        ("every topic, of everybody",     vec!["run", "--brokers", "192.0.2.1:9092"],                78),
        ("some topics, and every topic",  vec!["run", "--allow", "a", "--allow-all"],                2),
    ];
    for (why, arguments, want) in cases {
        let output = run(&arguments);
        let code = output.status.code();
        assert_eq!(code, Some(want), "{why}: {}", text(&output.stderr));
    }
    for command in [
        vec!["send", "--in", "5s", "--target", "t", "v"],
        vec!["cancel", "i"],
        vec!["dead", "list"],
        vec!["dead", "show", "0@0"],
        vec!["doctor"],
    ] {
        let began = Instant::now();
        let output = waterclock(&command).args(away).output().expect("the binary runs");
        let told = text(&output.stderr);
        assert_eq!(output.status.code(), Some(69), "{command:?}: {told}");
        assert!(
            told.starts_with("error: could not reach Kafka: no answer from Kafka at 127.0.0.1:1: "),
            "{told}"
        );
        assert_eq!(told.lines().count(), 1, "{told}");
        let bound = Duration::from_secs(8) * patience();
        assert!(began.elapsed() < bound, "{command:?} took {:?}", began.elapsed());
    }
}

#[test]
fn every_command_has_a_manual_page_and_says_what_is_for_every_command_apart() {
    let directory = tempfile::tempdir().expect("a directory");
    let written = waterclock(&["man"]).arg(directory.path()).output().expect("the binary runs");
    assert_eq!(written.status.code(), Some(0), "{}", text(&written.stderr));
    let help = text(&run(&["--help"]).stdout);
    let commands = help.split("Commands:").nth(1).expect("they are listed");
    let names = commands.lines().filter_map(|line| {
        let name = line.strip_prefix("  ")?.split(' ').next()?;
        (!name.is_empty() && name != "help").then(|| name.to_owned())
    });
    let names: Vec<String> = names.take_while(|name| !name.starts_with('-')).collect();
    assert!(names.len() > 15, "{names:?}");
    for name in names {
        let page = directory.path().join(format!("waterclock-{name}.1"));
        let page = std::fs::read_to_string(&page).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(page.contains(".SH NAME") && page.contains("\\-\\-brokers"), "{name}: {page}");
        let help = text(&run(&[&name, "--help"]).stdout);
        let (own, of_all) = help.split_once("Options of every command:").expect("apart");
        assert!(!own.contains("--brokers <") && of_all.contains("--brokers <"), "{help}");
        assert!(of_all.contains("[env: WATERCLOCK_BROKERS]"), "{help}");
    }
}

/// Each option of `run` that is a key of the configuration names its variable, and the variable is the one that is read.
#[test]
fn completions_know_the_commands_in_every_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = run(&["completions", shell]);
        assert_eq!(output.status.code(), Some(0), "{shell}");
        let script = text(&output.stdout);
        for word in ["reschedule", "key-base64", "doctor", "run-status"] {
            assert!(script.contains(word), "{shell} does not know {word}");
        }
    }
}

#[test]
fn the_variables_that_run_names_are_those_that_it_reads() {
    let help = text(&run(&["run", "--help"]).stdout);
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    let names: BTreeSet<&str> = help
        .split("[env: ")
        .skip(1)
        .filter_map(|rest| rest.split([']', '=']).next())
        // Any text is a directory; the other two are of every command.
        .filter(|name| !["CONFIG", "BROKERS", "DATA_DIR"].iter().any(|end| name.ends_with(end)))
        .collect();
    assert!(names.len() >= 8, "{names:?}");
    for name in names {
        // No address, pattern, number, mode, name or switch.
        let mut command = waterclock(&["run", "--brokers", "127.0.0.1:1"]);
        let output = command.env(name, "( ").output().expect("it runs");
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(78), "{name}: {error}");
        assert!(error.contains(name), "{name}: {error}");
    }
}

#[test]
fn what_the_contract_refuses_is_refused_before_anything_connects_with_its_code() {
    #[rustfmt::skip]
    let cases: [(&[&str], &str); 17] = [
        (&["--in", "-5s", "--target", "t", "v"],                                "negative_delay"),
        (&["--in", "401d", "--target", "t", "v"],                               "delay_too_long"),
        (&["--until", "2130-01-31T08:00:00Z", "--target", "t", "v"],            "delay_too_long"),
        (&["--until", "1700000000", "--target", "t", "v"],                      "ambiguous_timestamp"),
        (&["--until", "tomorrow", "--target", "t", "v"],                        "bad_until"),
        (&["--in", "5s", "--target", "a b", "v"],                               "bad_target"),
        (&["--in", "5s", "--target", "__consumer_offsets", "v"],                "target_forbidden"),
        (&["--in", "5s", "--target", "waterclock.dead", "v"],                   "target_forbidden"),
        (&["--in", "5s", "--target", "t", "--partition", "-1", "v"],            "bad_partition"),
        (&["--in", "5s", "--target", "t", "--id", "", "v"],                     "bad_id"),
        (&["--in", "5s", "--target", "t", "--expires", "500d", "v"],            "bad_expires"),
        (&["--in", "10s", "--target", "t", "--expires", "5s", "v"],             "bad_expires"),
        (&["--until", "2020-01-31T08:00:00Z", "--expires", "2021-01-31T08:00:00Z", "--target", "t", "v"], "bad_expires"),
        (&["--in", "5s", "--target", "t", "--header", "x-delay-what=1", "v"],   "unknown_header"),
        (&["--in", "5s", "--target", "t", "--header", "x-delay-target=u", "v"], "duplicate_header"),
        (&["--in", "5s", "--target", "t", "--id", "i", "--header", "x-delay-action=cancel", "v"], "unsupported_action"),
        (&["--target", "t", "v"],                                               "missing_delay"),
    ];
    for (arguments, code) in cases {
        let output = nobody_connects(|address| {
            let mut command = waterclock(&["send", "--json", "--brokers", address]);
            command.args(arguments).output().expect("the binary runs")
        });
        let told: Value = serde_json::from_slice(&output.stderr).expect("JSON");
        assert_eq!(told["exit"], 2, "{arguments:?}: {told}");
        let because = told["because"][0].as_str().unwrap_or_default();
        assert!(because.starts_with(&format!("{code}: ")), "{arguments:?}: {because}");
    }
    let denied = waterclock(&["send", "--in", "5s", "--target", "orders2", "v"])
        .env("WATERCLOCK_ALLOW", "orders")
        .output()
        .expect("the binary runs");
    assert_eq!(denied.status.code(), Some(2));
    assert!(text(&denied.stderr).contains("target_denied"), "{}", text(&denied.stderr));
}

#[test]
fn the_least_acls_are_told_without_asking_anybody() {
    let output = nobody_connects(|address| {
        let mut command = waterclock(&["acl", "print", "--principal", "User:wc"]);
        command.args(["--brokers", address]).env("WATERCLOCK_ALLOW", r"orders\..*");
        command.output().expect("the binary runs")
    });
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let told = text(&output.stdout);
    for words in ["--topic waterclock.intake ", "--group waterclock ", "prefixed --topic orders. "]
    {
        assert!(told.contains(words), "{words} is not in\n{told}");
    }
}

#[test]
fn the_times_of_a_schedule_are_shown_without_asking_anybody() {
    let preview = |arguments: &[&str]| {
        nobody_connects(|address| {
            let mut command = waterclock(&["schedule", "preview", "--brokers", address]);
            // Of the machine no zone is known.
            command.args(arguments).env("TZDIR", "/nowhere").env("TZ", "Asia/Tokyo");
            command.output().expect("the binary runs")
        })
    };
    let berlin = ["--cron", "30 2 * * *", "--zone", "europe/berlin", "--count", "2"];
    let from = ["--from", "2027-03-27T12:00:00Z"];
    let output = preview(&[&berlin[..], &from].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let told = text(&output.stdout);
    let lines: Vec<&str> = told.lines().collect();
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(words(lines[0]), ["Europe/Berlin", "in", "UTC"], "{told}");
    assert_eq!(
        words(lines[1]),
        ["2027-03-28T03:00:00+02:00", "2027-03-28T01:00:00.000Z"],
        "{told}"
    );
    assert_eq!(
        words(lines[2]),
        ["2027-03-29T02:30:00+02:00", "2027-03-29T00:30:00.000Z"],
        "{told}"
    );
    assert!(lines[3].is_empty() && lines[4].starts_with("zones of the IANA database 20"), "{told}");
    assert_eq!(lines.len(), 5, "{told}");

    let told = text(&preview(&[&["--cron", "@yearly", "--count", "1"], &from[..]].concat()).stdout);
    assert_eq!(
        words(told.lines().nth(1).unwrap_or_default()),
        ["2028-01-01T00:00:00.000Z"],
        "{told}"
    );

    // From now on.
    let told = text(&preview(&["--every", "10s", "--json"]).stdout);
    let times: Vec<Value> =
        told.lines().map(|of| serde_json::from_str(of).expect("JSON")).collect();
    let nominal = |of: &Value| of["nominal"].as_u64().expect("a time");
    assert_eq!(times.len(), 10, "{told}");
    assert!(times.windows(2).all(|pair| nominal(&pair[1]) == nominal(&pair[0]) + 10_000), "{told}");
    assert!(nominal(&times[0]).is_multiple_of(10_000) && nominal(&times[0]) > 1_790_000_000_000);
    assert_eq!(
        (&times[0]["zone"], times[0]["utc"].as_str().map(str::len)),
        (&"UTC".into(), Some(24))
    );

    #[rustfmt::skip]
    let cases = [
        (vec!["--cron", "61 * * * *", "--zone", "Europe/Berln"], 2,
            "error: --cron is \"61 * * * *\"; want minutes from 0 to 59, with *, lists (1,3), ranges (1-5) and steps (*/2, 1-5/2), not \"61\"; \
             --zone is \"Europe/Berln\"; want the name of an IANA zone, as Europe/Berlin or UTC; did you mean Europe/Berlin?\n"),
        (vec!["--every", "3651d"], 2,
            "error: --every is \"3651d\"; want a length of time (\"1m30s\"), from 1s to 3650d\n"),
        (vec!["--cron", "*/15 2 * 3 SUNL", "--zone", "Europe/Berlin"], 1,
            "error: --cron has no time within 100 years on the clock of Europe/Berlin\n"),
    ];
    for (arguments, code, want) in cases {
        let output = preview(&arguments);
        assert_eq!(text(&output.stderr), want, "{arguments:?}");
        assert_eq!(output.status.code(), Some(code), "{arguments:?}");
    }
    let bare = text(&preview(&["--every", "10"]).stderr);
    assert!(
        bare.contains("'10' for '--every <DURATION>': want a length of time with its unit"),
        "{bare}"
    );
    for arguments in
        [&[][..], &["--every", "1m", "--cron", "@daily"], &["--every", "1m", "--zone", "UTC"]]
    {
        assert_eq!(preview(arguments).status.code(), Some(2), "{arguments:?}");
    }
    assert_eq!(preview(&["--every", "1m", "--count", "1001"]).status.code(), Some(2));
}

#[test]
fn files_of_schedules_are_looked_at_before_anything_connects() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name).display().to_string();
    let head = "project = \"shop\"\ngroup = \"g\"\nname = \"a\"\n";
    let task = "[task]\ntype = \"http\"\nurl = \"http://a.example/\"\n";
    let files = [
        ("a.toml", format!("{head}every = \"1m\"\n{task}")),
        ("b.toml", format!("{head}every = soon\n{task}")),
        ("c.toml", format!("{head}every = \"1m\"\nmisfire = \"never\"\n{task}")),
        ("d.toml", format!("{head}every = \"2m\"\n{task}")),
    ];
    for (name, text) in files {
        std::fs::write(path(name), text).expect("written");
    }
    let refused = |arguments: &[&str]| {
        let output = nobody_connects(|address| {
            let mut command = waterclock(&["schedule"]);
            command.args(arguments).args(["--yes", "--brokers", address]);
            command.output().expect("the binary runs")
        });
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert_eq!(text(&output.stdout), "", "{arguments:?}");
        text(&output.stderr)
    };
    let told = refused(&["apply", &path("")]);
    let lines: Vec<&str> = told.lines().collect();
    assert_eq!(lines[0], "error: nothing was changed, since these files are wrong:", "{told}");
    assert!(lines[1].contains("b.toml:4: it is no TOML: "), "{told}");
    assert!(lines[2].contains("c.toml: misfire is \"never\"; want "), "{told}");
    assert!(lines[3].ends_with("a.toml defines shop/a already"), "{told}");
    assert_eq!(lines.len(), 4, "{told}");
    assert!(refused(&["apply", &path("nowhere")]).contains("could not read "));
    let output = nobody_connects(|address| {
        let file = path("c.toml");
        let mut command = waterclock(&["schedule", "put", &file, "--brokers", address]);
        command.output().expect("the binary runs")
    });
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("c.toml: misfire is "), "{}", text(&output.stderr));
}

#[test]
fn a_run_is_looked_at_before_anything_connects() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name).display().to_string();
    let task = r#"{"type": "kafka", "topic": "t"}"#;
    let run = format!(r#"{{"project": "shop", "group": "g", "shards": 10001, "task": {task}}}"#);
    std::fs::write(path("run.json"), run).expect("written");
    std::fs::write(path("none.json"), "{\n\"project\": shop}").expect("written");
    let refused = |arguments: &[&str]| {
        let output = nobody_connects(|address| {
            let mut command = waterclock(&["runs", "create"]);
            command.args(arguments).args(["--delay", "1s", "--brokers", address]);
            command.output().expect("the binary runs")
        });
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert_eq!(text(&output.stdout), "", "{arguments:?}");
        text(&output.stderr)
    };
    // All that is wrong, at once.
    let told = refused(&["--file", &path("run.json")]);
    assert!(told.starts_with("error: ") && told.lines().count() == 1, "{told}");
    for word in ["run.json: ", "shards is 10001", "task.feedback is missing"] {
        assert!(told.contains(word), "{word}: {told}");
    }
    let told = refused(&["--file", &path("none.json")]);
    assert!(told.contains("none.json:2: it is no JSON: "), "{told}");
    assert!(refused(&["--file", &path("nowhere.json")]).contains("could not read it"));
    let of = ["--project", "shop", "--group", "g", "--shards", "8"];
    let told = refused(&[&of[..], &["--url", "ftp://a.example/"]].concat());
    assert!(told.contains("--url is "), "{told}");
    let told = refused(&[&of[..], &["--topic", "t"]].concat());
    assert!(told.contains("--feedback-deadline"), "{told}");
}

#[test]
fn the_commands_of_runs_show_examples() {
    for command in [&["runs", "create"][..], &["run-status"]] {
        let output = run(&[command, &["--help"]].concat());
        let help = text(&output.stdout);
        assert_eq!(output.status.code(), Some(0), "{command:?}");
        assert!(help.contains("Examples:\n  waterclock "), "{help}");
    }
    let help = text(&run(&["runs", "--help"]).stdout);
    for command in ["create", "list", "get", "shards", "cancel", "retry"] {
        assert!(help.contains(&format!("\n  {command} ")), "{command}: {help}");
    }
}

#[test]
fn an_id_that_no_timer_can_have_is_refused_before_anything_connects() {
    let long = "i".repeat(256);
    for id in ["", "a\tb", "..", "orders/../17", &long] {
        let output = nobody_connects(|address| {
            let mut command = waterclock(&["cancel", "--json", "--brokers", address, id]);
            command.output().expect("the binary runs")
        });
        let told: Value = serde_json::from_slice(&output.stderr).expect("JSON");
        assert_eq!(told["exit"], 2, "{id:?}: {told}");
        let because = told["because"][0].as_str().unwrap_or_default();
        assert!(because.starts_with("bad_id: "), "{id:?}: {because}");
    }
}

#[test]
fn a_value_that_own_topics_do_not_take_is_refused_before_anything_connects() {
    let output = nobody_connects(|address| {
        let mut child =
            waterclock(&["send", "--in", "5s", "--target", "t", "--brokers", address, "-"])
                .stdin(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .expect("the binary runs");
        // It stops reading when it has seen enough, and then this cannot be written to its end.
        let _ = child.stdin.take().expect("a pipe").write_all(&vec![b'x'; 3 << 20]);
        child.wait_with_output().expect("it ends")
    });
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("larger than 2097152 bytes"));
}

/// What README says of the default ladder is what `plan` computes.
#[test]
fn the_readme_and_the_plan_agree_on_topics_and_appends() {
    let plan: Value = serde_json::from_slice(&run(&["plan", "--json"]).stdout).expect("JSON");
    let holds = plan["holds"].as_array().expect("tiers").len();
    let readme = include_str!("../README.md");
    let topics = format!("{} with the default ladder ({holds} tiers)", plan["topics"]);
    assert!(readme.contains(&topics), "{topics}");
    let figures = plan["figures"].as_array().expect("figures");
    let of = |what: &str| {
        let found = figures.iter().find(|of| of.to_string().contains(what));
        found.unwrap_or_else(|| panic!("{what}: {plan}"))
    };
    let half_an_hour = of("exactly 30m");
    let (hops, appends) = (&half_an_hour["hops_max"], &half_an_hour["appends_max"]);
    assert_eq!((hops.as_u64(), appends.as_u64()), (Some(1), Some(3)), "{half_an_hour}");
    assert!(readme.contains("30 minutes are one hop (3 appends)"));
    let week = of("uniform to 7d");
    let most = format!("{} hops ({} appends)", week["hops_max"], week["appends_max"]);
    assert!(readme.contains(&format!("any delay up to 7 days takes at most {most}")), "{most}");
}

/// The allocator that gives memory back serves Rust and C alike: it answers to its own variable, without a prefix. It is set as
/// `.cargo/config.toml` says. Cargo may have built it before that was changed: `cargo clean -p tikv-jemalloc-sys` helps.
#[test]
fn the_program_has_the_allocator_that_gives_memory_back() {
    let output = waterclock(&["--version"]).env("MALLOC_CONF", "stats_print:true").output();
    let told = text(&output.expect("it runs").stderr);
    assert!(told.contains("Begin jemalloc statistics"), "{told}");
    for setting in ["narenas: 4", "dirty_decay_ms: 1000 (arenas.dirty_decay_ms: 1000)"] {
        assert!(told.lines().any(|line| line == format!("  opt.{setting}")), "{setting}: {told}");
    }
}

/// As in a file: see `src/config/check.rs`.
#[test]
fn a_ladder_that_is_not_ascending_is_refused_as_in_a_file() {
    for command in [&["plan", "--ladder", "5s,1s"][..], &["topics", "apply", "--ladder", "5s,1s"]] {
        let output = nobody_connects(|address| {
            waterclock(command).args(["--brokers", address]).output().expect("the binary runs")
        });
        let told = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{told}");
        assert!(told.contains("5s before 1s: want holds in ascending order"), "{told}");
    }
}

#[test]
fn tickets_and_tokens_that_are_none_are_refused_before_anything_connects() {
    for (option, want) in [("--again", "ticket"), ("--token", "token")] {
        for given in ["abc", "", "eyJ0b29fc2hvcnQiOjF9/"] {
            let output = nobody_connects(|address| {
                let mut command = waterclock(&["cancel", option, given, "--brokers", address]);
                command.output().expect("the binary runs")
            });
            let told = text(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{option} {given:?}: {told}");
            assert!(told.contains(want), "{told}");
        }
    }
}

#[test]
fn an_address_that_is_in_use_is_told_from_a_wrong_configuration() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address").to_string();
    let output = run(&["run", "--http", &address]);
    let told = text(&output.stderr);
    assert_eq!(output.status.code(), Some(73), "{told}");
    assert!(told.contains("could not listen on"), "{told}");
}

/// `top` on a terminal and a broker that takes connections and never answers.
fn top_that_waits() -> (TcpListener, std::fs::File, std::process::Child) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address").to_string();
    let mut command = waterclock(&["top", "--brokers", &address]);
    let mut window = on_a_terminal(command.env("TERM", "xterm"));
    let child = command.spawn().expect("the binary runs");
    drop(command);
    read_until(&mut window, "asking the instances");
    (listener, window, child)
}

/// Its exit code, if it ends soon.
fn code_of(mut child: std::process::Child) -> Option<i32> {
    let until = Instant::now() + Duration::from_secs(3) * patience();
    while Instant::now() < until {
        if let Some(ended) = child.try_wait().expect("its end") {
            return ended.code();
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    child.kill().expect("it runs");
    child.wait().expect("its end");
    panic!("it goes on");
}

#[test]
fn top_ends_when_its_terminal_goes_while_nobody_answers() {
    let (_listener, window, child) = top_that_waits();
    drop(window);
    assert_eq!(code_of(child), Some(0));
}

#[test]
fn a_signal_ends_top_and_gives_the_terminal_back() {
    let hangup = (!ignores_hangup()).then_some(Signal::HUP);
    for signal in [Signal::TERM, Signal::INT].into_iter().chain(hangup) {
        let (_listener, mut window, child) = top_that_waits();
        rustix::process::kill_process(Pid::from_child(&child), signal).expect("it runs");
        // The cursor is shown, and the screen is that of before.
        read_until(&mut window, "\x1b[?25h\x1b[?1049l");
        assert_eq!(code_of(child), Some(0), "{signal:?}");
    }
}
