//! A question to the API of one process, whatever it answers.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::{IDLE, PATIENCE, Process};

/// What the API answered, and how long that took.
pub struct Told {
    pub status: u16,
    /// As text where it is no JSON.
    pub body: Value,
    pub took: Duration,
}

/// Asks the API of a process.
#[track_caller]
pub fn ask(process: &Process, method: &str, path: &str, body: Option<&Value>) -> Told {
    let client = reqwest::blocking::Client::builder()
        .timeout(2 * PATIENCE)
        .pool_idle_timeout(IDLE)
        .no_proxy()
        .build();
    let url = format!("http://{}{path}", process.address().expect("it serves"));
    let request = client.expect("a client").request(method.parse().expect("a method"), url);
    let request = match body {
        Some(body) => request.json(body),
        None => request,
    };
    let began = Instant::now();
    let answer = request.send().expect("it answers");
    let status = answer.status().as_u16();
    let body = answer.text().expect("a body");
    let body = serde_json::from_str(&body).unwrap_or(Value::String(body));
    Told { status, body, took: began.elapsed() }
}
