//! Tokens of processes that run: who may ask, and what a change of the file does.

use std::time::Duration;

use serde_json::{Value, json};

use super::{Api, command, fixture, task};
use crate::support::{Endpoint, Fixture, Mode, Process, eventually, waterclock};

/// A token, and the lines of the configuration that let its holder in.
struct Token {
    text: String,
    lines: String,
}

/// As `waterclock token` makes it.
fn token(name: &str) -> Token {
    let made = waterclock().args(["token", name, "--all", "--role", "write", "--json"]).output();
    let made: Value = serde_json::from_slice(&made.expect("it runs").stdout).expect("JSON");
    let lines = format!(
        "[[api.tokens]]\nname = {}\nsha256 = {}\nrole = {}\nprojects = {}\n",
        made["name"], made["sha256"], made["role"], made["projects"]
    );
    Token { text: made["token"].as_str().expect("a token").to_owned(), lines }
}

/// The file of an instance that lets the holders of these tokens in.
fn file(tokens: &[&Token]) -> String {
    let lines = tokens.iter().map(|token| token.lines.as_str());
    "[callbacks]\nnetworks = [\"127.0.0.0/8\"]\n".to_owned() + &lines.collect::<String>()
}

#[track_caller]
fn start(fixture: &Fixture, data: &str, tokens: &[&Token]) -> Process {
    let launch = fixture.launch(Mode::ExactlyOnce).data(data).config(&file(tokens));
    launch.arg("--roles").arg("lanes,worker,api").start()
}

/// What a process answers to those who want a task, by what they bring.
#[track_caller]
fn answers(process: &Process, stub: &Endpoint, brings: [Option<&Token>; 3]) -> Vec<Value> {
    let asked = task("shop", stub, "/ok", "1h");
    let answer = |token: Option<&Token>| {
        let api = token.map(|token| Api::of_holder(process, &token.text));
        let api = api.unwrap_or_else(|| Api::of(process));
        let (status, told) = api.answered("POST", "/v1/tasks/http", Some(&asked));
        if status == 201 { json!(status) } else { json!([status, told["code"]]) }
    };
    brings.map(answer).to_vec()
}

/// Cancels tasks over two instances, one after the other. Each asks the owner of a lane that it does not own.
#[track_caller]
fn cancel_over_both(of: [(&Process, &Token); 2], stub: &Endpoint) {
    let apis = of.map(|(process, token)| Api::of_holder(process, &token.text));
    let ids = apis[0].create_all(vec![task("shop", stub, "/ok", "1h"); 16]);
    for (n, id) in ids.iter().enumerate() {
        assert_eq!(apis[n % 2].cancel(id), "cancelled");
        assert_eq!(apis[(n + 1) % 2].task(id)["task_status"], "cancelled");
    }
}

#[test]
fn a_started_process_lets_the_holders_of_its_tokens_in_and_follows_its_file() {
    let fixture = fixture("tasks-tokens");
    let (one, other) = (token("one"), token("other"));
    let (mut a, mut b) = (start(&fixture, "a", &[&one]), start(&fixture, "b", &[&one]));
    eventually("the lanes are shared", || {
        let own = [a.lanes(), b.lanes()];
        if own == [2, 2] { Ok(()) } else { Err(format!("{own:?}")) }
    });
    let stub = Endpoint::start();
    let all = [Some(&one), None, Some(&other)];
    let (none, bad) = (json!([401, "no_credentials"]), json!([401, "bad_credentials"]));
    assert_eq!(answers(&a, &stub, all), [json!(201), none.clone(), bad.clone()]);

    // Commands send what they are told.
    let url = stub.url("/ok");
    let create = |more: &[&str]| {
        let words = ["task", "create", "http", "--project", "shop", "--group", "g", "--in", "1h"];
        command(&a, &[&words, &["--url", &url][..], more].concat())
    };
    let codes = [&["--api-token", &one.text][..], &[], &["--api-token", &other.text]];
    let codes = codes.map(|more| create(more).code);
    assert_eq!(codes, [Some(0), Some(1), Some(1)]);

    cancel_over_both([(&a, &one), (&b, &one)], &stub);

    // Another token in the file of one: it holds there once it is told, and not before.
    std::fs::write(fixture.path("a.toml"), file(&[&other])).expect("written");
    assert_eq!(answers(&a, &stub, all), [json!(201), none.clone(), bad.clone()]);
    a.hang_up();
    a.wait_until_logged(Duration::from_secs(10), "its allow-lists and tokens are in force");
    assert_eq!(answers(&a, &stub, all), [bad.clone(), none.clone(), json!(201)]);
    assert_eq!(answers(&b, &stub, all), [json!(201), none, bad]);
    cancel_over_both([(&a, &other), (&b, &one)], &stub);
    b.stop_well();
    a.stop_well();
}
