//! What `/openapi.json` says, asked of a process that wants tokens, by a program that makes requests up.

use std::process::Command;

use serde_json::Value;

use super::fixture;
use crate::support::{Mode, waterclock};

/// Of each operation: so many requests, the same in every run.
const REQUESTS: &str = "8";

#[test]
fn the_description_of_the_api_holds_for_requests_that_schemathesis_makes_up() {
    let fixture = fixture("tasks-described");
    let made = waterclock().args(["token", "all", "--all", "--role", "admin", "--json"]).output();
    let made: Value = serde_json::from_slice(&made.expect("it runs").stdout).expect("JSON");
    let lines = format!(
        "[[api.tokens]]\nname = {}\nsha256 = {}\nrole = {}\nprojects = {}\n",
        made["name"], made["sha256"], made["role"], made["projects"]
    );
    // Without a worker: no URL that is made up is called.
    let launch = fixture.launch(Mode::ExactlyOnce).config(&lines).arg("--roles").arg("lanes,api");
    let mut process = launch.start();
    let url = format!("http://{}", process.address().expect("it serves"));
    let token = made["token"].as_str().expect("a token");
    let holder = format!("Authorization: Bearer {token}");
    let mut script = Command::new("scripts/schemathesis");
    script.args(["--url", &url, "--seed", "1", "--max-examples", REQUESTS, "--header", &holder]);
    let ended = script.output().expect("it runs");
    let said = String::from_utf8_lossy(&ended.stdout).into_owned()
        + &String::from_utf8_lossy(&ended.stderr);
    println!("{said}");
    assert_eq!(ended.status.code(), Some(0), "scripts/schemathesis says what it found");
    // It was let in, and its changes were made.
    let log = process.log();
    let is_done =
        |line: &str| line.contains("waterclock::audit") && line.contains("outcome=\"done\"");
    assert!(log.lines().any(is_done), "{log}");
    process.stop_well();
}
