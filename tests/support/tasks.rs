//! The API of tasks, asked as callers do.

use std::time::Duration;

use serde_json::{Value, json};

use super::ask::client_with;
use super::{Call, Endpoint, PATIENCE, Process, eventually_within, waterclock};

/// What asks the API of one process, over one connection after the other.
pub struct Api {
    client: reqwest::blocking::Client,
    base: String,
}

impl Api {
    #[track_caller]
    pub fn of(process: &Process) -> Self {
        Self::with(process, reqwest::header::HeaderMap::new())
    }

    /// One that sends this token.
    #[track_caller]
    pub fn of_holder(process: &Process, token: &str) -> Self {
        let value = format!("Bearer {token}").parse().expect("a header");
        Self::with(process, [(reqwest::header::AUTHORIZATION, value)].into_iter().collect())
    }

    #[track_caller]
    fn with(process: &Process, headers: reqwest::header::HeaderMap) -> Self {
        let client = client_with(2 * PATIENCE, headers);
        Self { client, base: format!("http://{}", process.address().expect("it serves")) }
    }

    /// Status and body, whatever they are.
    #[track_caller]
    pub fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> (u16, Value) {
        self.ask_if(method, path, None, body)
    }

    /// The answer to a request that is about one version.
    fn ask_if(
        &self,
        method: &str,
        path: &str,
        version: Option<&str>,
        body: Option<&Value>,
    ) -> (u16, Value) {
        let method = method.parse().expect("a method");
        let request = self.client.request(method, format!("{}{path}", self.base));
        let request = match version {
            Some(version) => request.header("if-match", format!("\"{version}\"")),
            None => request,
        };
        let request = match body {
            Some(body) => request.json(body),
            None => request,
        };
        let answer = request.send().expect("it answers");
        let status = answer.status().as_u16();
        let text = answer.text().expect("a body");
        (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
    }

    /// The answer, once it is no "try again".
    #[track_caller]
    pub fn answered(&self, method: &str, path: &str, body: Option<&Value>) -> (u16, Value) {
        eventually_within(PATIENCE, &format!("{method} {path} is answered"), || {
            match self.ask(method, path, body) {
                (503, told) => Err(told.to_string()),
                told => Ok(told),
            }
        })
    }

    /// The same, of a request that is about one version.
    #[track_caller]
    pub fn answered_if(
        &self,
        method: &str,
        path: &str,
        version: &str,
        body: Option<&Value>,
    ) -> (u16, Value) {
        eventually_within(PATIENCE, &format!("{method} {path} is answered"), || {
            match self.ask_if(method, path, Some(version), body) {
                (503, told) => Err(told.to_string()),
                told => Ok(told),
            }
        })
    }

    /// Creates an HTTP task, and says its id.
    #[track_caller]
    pub fn create(&self, task: &Value) -> String {
        let (status, told) = self.answered("POST", "/v1/tasks/http", Some(task));
        assert_eq!(status, 201, "{task}: {told}");
        told["task_id"].as_str().expect("an id").to_owned()
    }

    /// Creates so many tasks, of type `http` unless they say another, and says their ids.
    #[track_caller]
    pub fn create_all(&self, tasks: Vec<Value>) -> Vec<String> {
        let tasks = tasks.into_iter().map(|task| with(json!({"type": "http"}), task));
        let tasks: Vec<Value> = tasks.collect();
        let mut ids = Vec::with_capacity(tasks.len());
        // A batch has a thousand at most.
        for tasks in tasks.chunks(1_000) {
            let (status, told) =
                self.answered("POST", "/v1/tasks:batchCreate", Some(&json!({ "tasks": tasks })));
            assert_eq!(status, 200, "{told}");
            let each = told["tasks"].as_array().expect("answers").iter();
            ids.extend(each.map(|one| {
                assert_eq!(one["status"], 201, "{one}");
                one["task_id"].as_str().expect("an id").to_owned()
            }));
        }
        ids
    }

    #[track_caller]
    pub fn task(&self, id: &str) -> Value {
        let (status, told) = self.answered("GET", &format!("/v1/tasks/{id}"), None);
        assert_eq!(status, 200, "{told}");
        told
    }

    /// Waits until the task has ended, and says how.
    #[track_caller]
    pub fn end_of(&self, id: &str) -> Value {
        eventually_within(PATIENCE, &format!("task {id} ends"), || {
            let task = self.task(id);
            if is_final(&task) { Ok(task) } else { Err(task.to_string()) }
        })
    }

    /// Waits until so many tasks of a project have this status.
    #[track_caller]
    pub fn wait_for(
        &self,
        within: Duration,
        project: &str,
        status: &str,
        count: usize,
    ) -> Vec<Value> {
        eventually_within(within, &format!("{count} tasks of {project} are {status}"), || {
            let found = self.list(&format!("project={project}&status={status}"));
            if found.len() == count { Ok(found) } else { Err(format!("{} are", found.len())) }
        })
    }

    /// All pages of a list.
    #[track_caller]
    pub fn list(&self, filter: &str) -> Vec<Value> {
        let (mut all, mut page) = (Vec::new(), String::new());
        loop {
            let path = format!("/v1/tasks?limit=1000&{filter}{page}");
            let (status, told) = self.answered("GET", &path, None);
            assert_eq!(status, 200, "{told}");
            all.extend(told["tasks"].as_array().expect("tasks").iter().cloned());
            match told["next"].as_str() {
                Some(next) => page = format!("&page={next}"),
                None => return all,
            }
        }
    }

    /// The outcome of a cancel.
    #[track_caller]
    pub fn cancel(&self, id: &str) -> String {
        let path = format!("/v1/tasks/{id}?wait=20s");
        let (status, told) = self.answered("DELETE", &path, None);
        assert_eq!(status, 200, "{told}");
        told["outcome"].as_str().expect("an outcome").to_owned()
    }
}

/// How a command ended, and what it printed.
#[derive(Debug)]
pub struct Ended {
    pub code: Option<i32>,
    pub said: String,
    pub error: String,
}

impl Ended {
    /// The only line that it printed.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.said).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Each line that it printed.
    #[track_caller]
    pub fn lines(&self) -> Vec<Value> {
        let each = self.said.lines().map(serde_json::from_str);
        each.collect::<Result<_, _>>().unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// Runs a command that asks this process.
#[track_caller]
pub fn command(process: &Process, words: &[&str]) -> Ended {
    let server = format!("http://{}", process.address().expect("it serves"));
    let ended = waterclock().args(words).args(["--server", &server]).output().expect("it runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ended { code: ended.status.code(), said: text(&ended.stdout), error: text(&ended.stderr) }
}

/// Whether nothing becomes of it any more.
pub fn is_final(task: &Value) -> bool {
    ["finished", "failed", "cancelled", "expired"]
        .contains(&task["task_status"].as_str().unwrap_or(""))
}

/// A task of this project that calls this target so soon.
pub fn task(project: &str, to: &Endpoint, target: &str, delay: &str) -> Value {
    json!({"project": project, "group": "g", "delay": delay, "url": to.url(target)})
}

/// The same with further fields.
pub fn with(mut task: Value, more: Value) -> Value {
    let fields = task.as_object_mut().expect("an object");
    fields.extend(more.as_object().expect("an object").clone());
    task
}

/// The turns of calls.
pub fn turns(calls: &[Call]) -> Vec<u32> {
    calls.iter().map(|call| call.turn).collect()
}
