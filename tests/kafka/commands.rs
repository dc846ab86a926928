//! A timer from the command line alone: replaced, given another time, named by a key that is no text; and who runs.

use serde_json::Value;

use crate::support::on_terminal::{OnTerminal, is_left};
use crate::support::terminal::{on_a_terminal, read_until};
use crate::support::{
    Fixture, Mode, PATIENCE, assert_each_once, eventually, now_ms, start_all, waterclock, whole,
};

/// Exit code, what it says, and its error.
fn run(fixture: &Fixture, arguments: &[&str]) -> (Option<i32>, String, String) {
    let mut command = waterclock();
    command.args(arguments);
    command.args(["--brokers", &fixture.connection.brokers, "--namespace", fixture.namespace()]);
    let told = command.output().expect("it runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    (told.status.code(), text(&told.stdout), text(&told.stderr))
}

/// What it says, which is one JSON object; it ends well.
#[track_caller]
fn json(fixture: &Fixture, arguments: &[&str]) -> Value {
    let (code, said, error) = run(fixture, &[arguments, &["--json"]].concat());
    assert_eq!(code, Some(0), "{arguments:?}: {said} {error}");
    serde_json::from_str(&said).unwrap_or_else(|_| panic!("{arguments:?}: {said}"))
}

#[track_caller]
fn is_known(fixture: &Fixture, name: &[&str], version: &str) -> Value {
    eventually("another version is known", || {
        let (code, said, error) = run(fixture, &[&["status", "--json"], name].concat());
        let told: Value = serde_json::from_str(&said).map_err(|_| error)?;
        let is_there = code == Some(0) && told["version"] != version;
        if is_there { Ok(told) } else { Err(said) }
    })
}

#[test]
fn a_timer_is_replaced_and_given_another_time() {
    let fixture = Fixture::new("commands");
    let target = fixture.target("out", 1);
    let mut process = fixture.start(Mode::ExactlyOnce);
    let name = ["payment", "--key", "order 17"];
    let send = |more: &[&str], value: &str| {
        let own = ["send", "--target", &target, "--key", "order 17", "--id", "payment"];
        json(&fixture, &[&own[..], more, &[value]].concat());
    };
    send(&["--in", "1h"], "first");
    let first = is_known(&fixture, &name, "");
    let first = first["version"].as_str().expect("a version");
    send(&["--in", "2h"], "a duplicate");
    send(&["--in", "2h", "--replace"], "second");
    let second = is_known(&fixture, &name, first);
    assert_eq!(second["supersedes"], first, "{second}");

    let reschedule = |more: &[&str]| run(&fixture, &[&["reschedule"], &name[..], more].concat());
    let (code, said, error) = reschedule(&["--in", "1s", "--only", first]);
    assert_eq!(code, Some(1), "that version was replaced: {said} {error}");
    let before = now_ms();
    let (code, said, error) = reschedule(&["--in", "3h"]);
    let put_off_to = said.strip_prefix("replaced, due ").and_then(|due| due.parse().ok());
    let put_off_to: jiff::Timestamp = put_off_to.unwrap_or_else(|| panic!("{said}: {error}"));
    let put_off_by = put_off_to.as_millisecond().unsigned_abs() - before;
    // The brokers' clock is that of this machine. It is known to some milliseconds.
    assert!((3 * 3_600_000 - 1_000..3 * 3_600_000 + 60_000).contains(&put_off_by), "{said}");
    assert_eq!(code, Some(0), "{said}: {error}");
    let due = second["due"].as_u64().expect("a time") - 3_600_000;
    let told =
        json(&fixture, &[&["reschedule"], &name[..], &["--until", &due.to_string()]].concat());
    assert_eq!((&told["outcome"], &told["due"]), (&"replaced".into(), &due.into()), "{told}");
    let told = json(&fixture, &[&["reschedule"], &name[..], &["--in", "1s"]].concat());
    assert_eq!(told["outcome"], "replaced", "{told}");
    fixture.wait_until_nothing_is_pending();
    assert_each_once(["second".to_owned()], &whole(&fixture, &target));

    let (code, said, error) = reschedule(&["--in", "1s"]);
    assert!(code == Some(1) && error.contains("delivered"), "too late: {said} {error}");
    let (code, said, error) = run(&fixture, &["reschedule", "nobody", "--in", "1s"]);
    assert!(code == Some(1) && error.contains("never submitted"), "{code:?} {said} {error}");
    process.stop_well();
}

#[test]
fn a_key_that_is_no_text_names_its_timer_in_base64() {
    let fixture = Fixture::new("commands-base64");
    let target = fixture.target("out", 1);
    let mut process = fixture.start(Mode::ExactlyOnce);
    let name = ["i", "--key-base64", "/+8="];
    let own = ["send", "--target", &target, "--in", "1h", "--id", "i", "--key-base64", "_-8", "v"];
    json(&fixture, &own);
    let told = is_known(&fixture, &name, "");
    assert_eq!((&told["key_base64"], &told["state"]), (&"/+8=".into(), &"delay".into()), "{told}");
    let told = json(&fixture, &[&["reschedule"], &name[..], &["--in", "2h"]].concat());
    assert_eq!(told["outcome"], "replaced", "{told}");
    let told = json(&fixture, &[&["cancel", "--wait", "20s"], &name[..]].concat());
    assert_eq!(told["outcome"], "cancelled", "{told}");
    process.stop_well();
}

#[test]
fn members_are_listed_with_their_lanes_and_how_they_are() {
    let fixture = Fixture::with("commands-members", |request| request.lanes = Some(4));
    let members = || {
        let (code, said, error) = run(&fixture, &["members", "--json"]);
        let lines = said.lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>();
        (code, lines.unwrap_or_else(|_| panic!("{said} {error}")))
    };
    assert_eq!(members(), (Some(1), Vec::new()), "nobody runs");
    let [a, b] = start_all(["a", "b"].map(|data| fixture.launch(Mode::ExactlyOnce).data(data)));
    let of = |name: &str, all: &[Value]| -> Vec<Value> {
        all.iter().map(|member| member[name].clone()).collect()
    };
    eventually("each lane is somebody's", || {
        let (code, all) = members();
        let lanes = of("lanes", &all);
        let mut each: Vec<u64> = lanes
            .iter()
            .flat_map(|of| of.as_array().cloned())
            .flatten()
            .filter_map(|n| n.as_u64())
            .collect();
        each.sort_unstable();
        let is_well = code == Some(0) && of("health", &all) == ["ready", "ready"];
        let is_shared = lanes.iter().all(|of| of.as_array().is_some_and(|of| of.len() == 2));
        let is_so = is_well && is_shared && each == [0, 1, 2, 3];
        if is_so { Ok(()) } else { Err(format!("{code:?} {all:?}")) }
    });
    for member in members().1 {
        let roles: Vec<&str> =
            member["roles"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        assert!(roles.contains(&"lanes") && roles.contains(&"api"), "{member}");
    }
    let (code, said, _) = run(&fixture, &["members"]);
    assert_eq!((code, said.lines().count()), (Some(0), 3), "{said}");
    assert!(said.starts_with("instance"), "{said}");
    b.freeze();
    let (code, all) = members();
    let mut health = of("health", &all);
    health.sort_by_key(Value::to_string);
    assert_eq!((code, health), (Some(1), vec!["ready".into(), "silent".into()]), "{all:?}");
    b.thaw();
    for mut process in [a, b] {
        process.stop_well();
    }
}

#[test]
fn one_look_shows_what_all_do_and_who_does_not_answer() {
    let fixture = Fixture::with("commands-top", |request| request.lanes = Some(2));
    let target = fixture.target("out", 1);
    let mut process = fixture.start(Mode::ExactlyOnce);
    let send = |id: &str, delay: &str| {
        json(
            &fixture,
            &["send", "--target", &target, "--in", delay, "--id", id, "--label", "x", "v"],
        );
    };
    send("now", "1s");
    send("later", "2h");
    let top = || -> (Option<i32>, Value) {
        let (code, said, error) = run(&fixture, &["top", "--json"]);
        (code, serde_json::from_str(&said).unwrap_or_else(|_| panic!("{said} {error}")))
    };
    // What stands in the tiers is counted every 15 seconds.
    let shown = eventually("one is delivered, one waits, and the tiers are counted", || {
        let (code, told) = top();
        let seen = (code, told["delivered"].as_f64(), told["due"]["day"].as_u64());
        let is_so = seen == (Some(0), Some(1.0), Some(1)) && told["tiers"][0]["tier"] == "intake";
        if is_so { Ok(told) } else { Err(told.to_string()) }
    });
    let member = &shown["members"][0];
    assert_eq!(
        (&member["health"], &member["lanes"]),
        (&"ready".into(), &serde_json::json!([0, 1]))
    );
    assert_eq!(shown["overdue_seconds"], 0.0, "{shown}");
    let (code, said, error) = run(&fixture, &["top", "--once"]);
    assert_eq!(code, Some(0), "{said} {error}");
    for word in ["ready", "stands in", "in 1 day 1", "half of the records up to"] {
        assert!(said.contains(word), "{word:?} is not in\n{said}");
    }
    process.kill();
    let (code, told) = top();
    assert_eq!((code, &told["members"][0]["health"]), (Some(1), &"silent".into()), "{told}");
}

/// On a terminal it draws until `q`, and leaves the terminal as it was.
#[test]
fn top_draws_on_a_terminal_until_a_key_ends_it() {
    let fixture = Fixture::with("top-drawn", |request| request.lanes = Some(2));
    let mut process = fixture.start(Mode::ExactlyOnce);
    let (brokers, namespace) = (&*fixture.connection.brokers, fixture.namespace());
    let mut command = waterclock();
    command.args(["top", "--every", "1", "--brokers", brokers, "--namespace", namespace]);
    let mut top = OnTerminal::start(command);
    // What was a blank stays one, and is not drawn.
    top.has_drawn(&["ready", "intake", "Ctrl-C"]);
    top.press("q");
    let (code, drawn) = top.ended();
    assert_eq!(code, Some(0), "{drawn:?}");
    is_left(&drawn);
    process.stop_well();
}

#[test]
fn top_ends_when_its_terminal_is_gone() {
    let fixture = Fixture::with("top-gone", |request| request.lanes = Some(1));
    let (brokers, namespace) = (&*fixture.connection.brokers, fixture.namespace());
    // The terminal goes before it has drawn anything, and while it waits for a key.
    for seen in ["\x1b[?1049h", "no instance of this namespace runs"] {
        let mut command = waterclock();
        command.args(["top", "--every", "600", "--brokers", brokers, "--namespace", namespace]);
        let mut window = on_a_terminal(command.env("TERM", "xterm"));
        let mut child = command.spawn().expect("the binary runs");
        drop(command);
        read_until(&mut window, seen);
        drop(window);
        let code = eventually("it ends", || {
            let ended = child.try_wait().map_err(|error| error.to_string())?;
            ended.map(|status| status.code()).ok_or_else(|| "it goes on".to_owned())
        });
        assert_eq!(code, Some(0), "after {seen:?}");
    }
}

#[test]
fn who_sends_to_what_no_instance_allows_is_warned_and_doctor_goes_by_the_instances() {
    let fixture = Fixture::new("commands-allow");
    let (target, other) = (fixture.target("out", 1), fixture.target("other", 1));
    let launch = fixture.launch(Mode::ExactlyOnce);
    let launch = launch.config("max-delay = \"1h\"\n");
    let mut process = launch.arg("--allow").arg(regex::escape(&target)).start();
    let send = |target: &str| run(&fixture, &["send", "--target", target, "--in", "1s", "v"]);
    // What an instance allows it says in the meta topic, a moment after it is ready.
    eventually("the warning is there", || match send(&other) {
        (Some(0), _, error) if error.contains("does not deliver to") => Ok(()),
        told => Err(format!("{told:?}")),
    });
    let (code, _, error) = send(&target);
    assert_eq!((code, error.as_str()), (Some(0), ""));
    let (code, _, error) = run(&fixture, &["send", "--target", &target, "--in", "2h", "v"]);
    let is_told = error.contains("delay_too_long") && error.contains("max-delay");
    assert!(code == Some(0) && is_told, "the instance takes an hour at most: {code:?} {error}");
    let (_, said, error) = run(&fixture, &["doctor", "--read-only"]);
    assert!(
        said.contains(
            "1 topic that is there may be delivered to, by `allow` of the instance that runs"
        ),
        "{said} {error}"
    );
    process.stop_well();
    let (_, said, _) = run(&fixture, &["doctor", "--read-only"]);
    assert!(said.contains("configuration of this command"), "{said}");
}

#[test]
fn doctor_says_that_instances_have_different_lists() {
    let fixture = Fixture::new("commands-differ");
    let (target, other) = (fixture.target("out", 1), fixture.target("other", 1));
    let launch = |data: &str| fixture.launch(Mode::ExactlyOnce).data(data).arg("--allow");
    let start = |data: &str, target: &str| launch(data).arg(regex::escape(target)).start();
    let (mut first, mut alike) = (start("a", &target), start("b", &target));
    // Each says its list in the meta topic, a moment after it is ready.
    let doctor = |want: &str| {
        eventually("doctor knows the lists", || {
            let (_, said, error) = run(&fixture, &["doctor", "--read-only"]);
            if said.contains(want) { Ok(said) } else { Err(said + &error) }
        })
    };
    let told = doctor("by `allow` of the 2 instances that are known");
    assert!(!told.contains("different allow-lists"), "{told}");
    alike.stop_well();
    let mut differs = start("c", &other);
    let told = doctor("the instances have different allow-lists");
    assert!(told.contains("give all instances the same configuration"), "{told}");
    for process in [&first, &differs] {
        assert!(told.contains(&process.address().expect("an address")), "{told}");
    }
    // Once it has the lanes of the other, that one's list holds for nothing.
    differs.kill();
    let all = usize::from(fixture.lanes());
    eventually("its lanes are taken over", || match first.lanes() {
        lanes if lanes == all => Ok(()),
        lanes => Err(format!("{lanes} lanes")),
    });
    doctor("by `allow` of the instance that runs");
    let (_, told, _) = run(&fixture, &["members", "--json"]);
    let lanes = told.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let lanes: Vec<usize> = lanes.map(|m| m["lanes"].as_array().map_or(0, Vec::len)).collect();
    assert_eq!(lanes.iter().sum::<usize>(), all, "each lane has one owner: {told}");
    first.stop_well();
}

#[test]
fn a_target_that_is_not_there_is_named_with_the_command_that_makes_it() {
    let fixture = Fixture::new("commands-missing");
    let target = fixture.name("made-later");
    let send = || run(&fixture, &["send", "--target", &target, "--in", "1s", "v"]);
    let (code, said, error) = send();
    let command = format!(
        "kafka-topics.sh --bootstrap-server {} --create --topic {target}",
        fixture.connection.brokers
    );
    assert!(code == Some(2) && error.ends_with(&command), "{code:?} {said} {error}");
    let (code, said, _) =
        run(&fixture, &["send", "--target", &target, "--in", "1s", "v", "--json"]);
    assert_eq!(code, Some(2), "{said}");
    assert_eq!(fixture.target("made-later", 1), target);
    let (code, said, error) = send();
    assert_eq!((code, error.as_str()), (Some(0), ""), "{said}");
}

#[test]
fn a_question_waits_for_an_instance_that_is_starting() {
    let fixture = Fixture::new("commands-starting");
    let target = fixture.target("out", 1);
    let mut process = fixture.start(Mode::ExactlyOnce);
    json(&fixture, &["send", "--target", &target, "--in", "1h", "--key", "k", "--id", "i", "v"]);
    is_known(&fixture, &["i", "--key", "k"], "");
    process.stop_well();

    // Longer than to look for one takes on a busy machine.
    let (code, said, error) = run(&fixture, &["list", "--wait", "3s"]);
    assert!(code == Some(69) && error.contains("waiting for one"), "{code:?} {said} {error}");
    for no_wait in ["2m", "20"] {
        let (code, _, error) = run(&fixture, &["list", "--wait", no_wait]);
        assert!(code == Some(2) && error.contains("at most 1m"), "{code:?} {error}");
    }
    for question in [&["status", "i", "--key", "k", "--wait", "1m"][..], &["list", "--wait", "1m"]]
    {
        std::thread::scope(|scope| {
            let told = scope.spawn(|| run(&fixture, question));
            // Longer than without --wait.
            std::thread::sleep(std::time::Duration::from_secs(7));
            assert!(!told.is_finished(), "it waits as long as it is told to");
            let mut process = fixture.start(Mode::ExactlyOnce);
            let (code, said, error) = told.join().expect("it ran");
            let is_there = said.contains(&target);
            assert!(code == Some(0) && is_there, "{question:?}: {code:?} {said} {error}");
            // It says so once more where the answer takes long after that.
            let first = error.lines().next();
            assert_eq!(
                first,
                Some("no instance answers; waiting for one that is starting"),
                "{error}"
            );
            process.stop_well();
        });
    }

    // One that was killed is still known, and takes no connections. The cancel is not only written: it is decided.
    let mut process = fixture.start(Mode::ExactlyOnce);
    is_known(&fixture, &["i", "--key", "k"], "");
    process.kill();
    let cancel = ["cancel", "i", "--key", "k", "--wait", "1m"];
    std::thread::scope(|scope| {
        let told = scope.spawn(|| run(&fixture, &cancel));
        std::thread::sleep(std::time::Duration::from_millis(1_500));
        assert!(!told.is_finished(), "it waits");
        let mut process = fixture.start(Mode::ExactlyOnce);
        let (code, said, error) = told.join().expect("it ran");
        assert_eq!((code, said.as_str()), (Some(0), "cancelled"), "{error}");
        // It says so once more where the cancel takes long after that.
        let first = error.lines().next();
        assert_eq!(first, Some("no instance answers; waiting for one that is starting"), "{error}");
        process.stop_well();
    });
}

/// A timer's name is its key and its id, whichever intake it came by.
#[test]
fn a_timer_of_a_further_intake_is_asked_about_and_cancelled_by_its_name() {
    let fixture = Fixture::with("commands-intake", |request| {
        request.further_intakes = vec!["more".to_owned()];
    });
    let target = fixture.target("out", 1);
    let mut process = fixture.launch(Mode::ExactlyOnce).config("[intakes.more]\n").start();
    let submit = ["send", "--intake", "more", "--target", &target, "--in", "1h"];
    json(&fixture, &[&submit[..], &["--key", "k", "--id", "i", "v"]].concat());
    is_known(&fixture, &["i", "--key", "k", "--intake", "more"], "");
    let (code, _, error) = run(&fixture, &["status", "i", "--key", "k", "--intake", "mroe"]);
    assert!(code == Some(1) && error.contains(".intake.mroe"), "{code:?} {error}");
    let (code, said, error) = run(&fixture, &["cancel", "i", "--key", "k", "--wait", "20s"]);
    assert_eq!((code, said.as_str()), (Some(0), "cancelled"), "{error}");
    process.stop_well();
    assert_eq!(whole(&fixture, &target), []);
}

#[test]
fn a_first_start_says_nothing_alarming_and_each_line_can_be_json() {
    let fixture = Fixture::new("commands-log");
    let launch = fixture.launch(Mode::ExactlyOnce).arg("--allow").arg("out");
    let mut process = launch.arg("--log-format").arg("json").spawn();
    process.wait_until_logged(PATIENCE, r#""message":"ready""#);
    process.stop_well();
    let log = process.log();
    let mut is_ready = false;
    for line in log.lines() {
        let told: Value =
            serde_json::from_str(line).unwrap_or_else(|_| panic!("{line:?} in\n{log}"));
        assert!(["INFO", "DEBUG"].contains(&told["level"].as_str().expect(line)), "{line}");
        assert!(told["timestamp"].is_string(), "{line}");
        is_ready |= told["fields"]["message"] == "ready";
        if let Some(mode) = told["fields"].get("delivery") {
            assert_eq!(mode, "exactly_once", "{line}");
        }
    }
    assert!(is_ready, "{log}");
    assert!(log.contains("exactly_once") && !log.contains("ExactlyOnce"), "{log}");
}
