//! A question to the API of one process, whatever it answers.

use std::time::{Duration, Instant};

use reqwest::blocking::Client;
use reqwest::header::HeaderMap;
use serde_json::Value;

use super::{PATIENCE, Process};

/// For so long a client keeps a connection that it does not use: for less than the API, which closes it after 10 s. A request at that
/// moment would have no answer.
const IDLE: Duration = Duration::from_secs(5);

/// A client that waits at most so long for an answer.
pub fn client(longest: Duration) -> Client {
    client_with(longest, HeaderMap::new())
}

/// The same, which sends these headers with each request.
pub fn client_with(longest: Duration, headers: HeaderMap) -> Client {
    let client = Client::builder().timeout(longest).pool_idle_timeout(IDLE).no_proxy();
    client.default_headers(headers).build().expect("a client")
}

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
    let url = format!("http://{}{path}", process.address().expect("it serves"));
    let request = client(2 * PATIENCE).request(method.parse().expect("a method"), url);
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
