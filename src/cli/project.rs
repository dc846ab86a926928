//! `waterclock project` and `waterclock service`: limits, pauses and addresses, over the HTTP API.

use std::fmt;

use clap::{Args, Subcommand};
use serde::{Deserialize as _, Serialize};
use serde_json::{Value, json};

use super::client::{Client, ClientError, Kind, ServerArg, StartWait, typed};
use super::task::{Retries, at_most, length, name, show};
use super::{Failure, Global, Outcome, output, table};
use crate::api::projects::model::{
    EndedTasks, PendingTasks, ProjectList, ProjectSettings, ProjectStats, ProjectView,
    RefusedCreates, ServiceSettings,
};
use crate::api::tasks::model::{Length, RetryInfo};
use crate::client::http::Method;
use crate::config::Overrides;
use crate::engine::task::registry;

/// Arguments of `project`.
#[derive(Args)]
pub(super) struct Project {
    #[command(subcommand)]
    command: OfProject,
}

#[derive(Subcommand)]
enum OfProject {
    /// Puts a project: what is not said has its default
    Put(Box<Put>),
    /// Shows a project and its services
    Get(One),
    /// Lists the projects of which something was put
    List(To),
    /// Counts its tasks by where they stand, and the creates that the instance which answers has refused
    Stats(One),
    /// Keeps its tasks from being dispatched
    Pause(One),
    /// Ends its pause
    Resume(One),
    /// Deletes it: it takes no tasks, and those that wait end
    Delete(One),
}

/// Arguments of `service`.
#[derive(Args)]
pub(super) struct Service {
    #[command(subcommand)]
    command: OfService,
}

#[derive(Subcommand)]
enum OfService {
    /// Puts a service of a project: what is not said has its default
    Put(Box<PutService>),
    /// Shows a service
    Get(OneService),
    /// Lists the services of a project
    List(One),
    /// Keeps its tasks from being dispatched
    Pause(OneService),
    /// Ends its pause
    Resume(OneService),
    /// Deletes it: tasks for it fail
    Delete(OneService),
}

/// Whom to ask.
#[derive(Args)]
pub(super) struct To {
    #[command(flatten)]
    wait: StartWait,
    #[command(flatten)]
    server: ServerArg,
}

/// Which revision a change is made to.
#[derive(Args, Clone, Copy, Debug)]
pub(super) struct Revision {
    /// Changes it only if it has this revision, as `get` shows it; 0: only if nothing was put yet
    #[arg(long, value_name = "N")]
    if_revision: Option<u64>,
}

#[derive(Args)]
struct One {
    /// The name of the project
    #[arg(value_name = "PROJECT", value_parser = name)]
    project: String,
    #[command(flatten)]
    to: To,
}

#[derive(Args)]
struct OneService {
    /// The name of the project
    #[arg(value_name = "PROJECT", value_parser = name)]
    project: String,
    /// The name of the service
    #[arg(value_name = "SERVICE", value_parser = name)]
    service: String,
    #[command(flatten)]
    to: To,
}

/// Limits of a project or a service.
#[derive(Args)]
struct Limits {
    /// Open calls at once
    #[arg(long, value_name = "N", value_parser = at_most::<u32>(registry::CONCURRENCY_MAX.into()))]
    concurrency: Option<u32>,
    /// Calls that may begin per second
    #[arg(long, value_name = "NUMBER")]
    rate: Option<f64>,
    /// Calls that may begin at once [default: what comes in a second]
    #[arg(long, value_name = "N", requires = "rate", value_parser = at_most::<u32>(registry::BURST_MAX.into()))]
    burst: Option<u32>,
    /// It begins paused
    #[arg(long)]
    paused: bool,
}

#[derive(Args)]
struct Put {
    #[command(flatten)]
    one: One,
    #[command(flatten)]
    revision: Revision,
    #[command(flatten)]
    limits: Limits,
    /// A topic that its Kafka tasks may go to, as a regular expression; may be given several times
    #[arg(long = "target", value_name = "PATTERN")]
    targets: Vec<String>,
    /// A host that its tasks may call: a name, an IP address, or *. and a name for all below it; may be given several times
    #[arg(long = "host", value_name = "HOST")]
    hosts: Vec<String>,
    /// Tasks that may be created per second; a create beyond it is refused
    #[arg(long, value_name = "NUMBER")]
    create_rate: Option<f64>,
    /// Tasks that may be created at once [default: what comes in a second]
    #[arg(long, value_name = "N", requires = "create_rate", value_parser = at_most::<u32>(registry::BURST_MAX.into()))]
    create_burst: Option<u32>,
    /// Pending tasks that it may have; a create beyond that is refused. Some more may be created
    #[arg(long, value_name = "N", value_parser = at_most::<u64>(registry::PENDING_MAX))]
    max_pending: Option<u64>,
    /// How far ahead its tasks may be when they are created, from 1s [default: max-delay of the lanes]
    #[arg(long, value_name = "DURATION", value_parser = length)]
    max_delay: Option<Length>,
    /// How many bytes a task's body or value may have, at most 1048576 [default: so many]
    #[arg(long, value_name = "BYTES")]
    max_body: Option<u32>,
    /// Spreads its tasks over so long a time behind what was asked for, at most 1h [default: 0s]
    #[arg(long, value_name = "DURATION", value_parser = length)]
    window: Option<Length>,
    /// How long its tasks are remembered after their end, from 1h to 400d [default: 7d]
    #[arg(long, value_name = "DURATION", value_parser = length)]
    history: Option<Length>,
}

#[derive(Args)]
struct PutService {
    #[command(flatten)]
    one: OneService,
    #[command(flatten)]
    revision: Revision,
    #[command(flatten)]
    limits: Limits,
    /// The URL that the paths of tasks are put behind; of a gRPC service, one without a path
    #[arg(long, value_name = "URL")]
    address: String,
    /// How it is called [default: http]
    #[arg(long, value_parser = ["http", "grpc"])]
    protocol: Option<String>,
    /// How long a call may take, at most 5m [default: 10s]
    #[arg(long, value_name = "DURATION", value_parser = length)]
    timeout: Option<Length>,
    #[command(flatten)]
    retries: Retries,
    /// The name of the secret that calls are signed with
    #[arg(long, value_name = "NAME")]
    secret: Option<String>,
    /// The name of the secret that is sent as bearer token
    #[arg(long, value_name = "NAME")]
    bearer: Option<String>,
    /// The name of the secret with the client certificate that its calls show
    #[arg(long, value_name = "NAME")]
    client_certificate: Option<String>,
}

/// Whatever revision it has.
const ANY: Revision = Revision { if_revision: None };

impl To {
    pub(super) fn open(&self, global: &Global) -> Result<Client, Failure> {
        let config = global.load(Overrides::default())?;
        Ok(self.server.open_within(self.wait.wait, global, &config)?.of_options())
    }

    /// Changes what has this path, and says which revision that made.
    pub(super) fn change(
        &self,
        revision: Revision,
        method: &Method,
        path: &str,
        body: Option<&Value>,
        global: &Global,
    ) -> Outcome {
        let told = changed(&self.open(global)?, revision, method, path, body)?;
        output::line(&if global.json() { told.to_string() } else { made(&told) })
    }

    /// Puts settings in the place of all that were there, and says which ones are defaults again, as the command did not name them.
    /// `settings`: those that a project's answer has.
    fn put(
        &self,
        revision: Revision,
        path: &str,
        body: &Value,
        global: &Global,
        (project, settings): (&str, impl Fn(&Value) -> Value),
    ) -> Outcome {
        let client = self.open(global)?;
        // What it was is good to know, and no reason to put nothing.
        let look = || {
            let path = format!("v1/projects/{project}");
            client.ask(Kind::Look, &Method::GET, &path, &[], None).ok().map(|told| settings(&told))
        };
        let before = look();
        let told = changed(&client, revision, &Method::PUT, path, Some(body))?;
        let lost = before.zip(look()).map(|(before, now)| defaults_again(&before, &now, body));
        let lost = lost.unwrap_or_default();
        output::line(&if global.json() { with_lost(told, &lost) } else { shown(&told, &lost) })
    }
}

fn changed(
    client: &Client,
    Revision { if_revision }: Revision,
    method: &Method,
    path: &str,
    body: Option<&Value>,
) -> Result<Value, ClientError> {
    client.ask(Kind::Change(if_revision), method, path, &[], body)
}

/// Which revision a change made.
fn made(told: &Value) -> String {
    let new = match told["revision"].as_u64() {
        Some(0) => " (nothing is put there now)",
        Some(1) => " (nothing was put there before)",
        _ => "",
    };
    format!("revision {}{new}", told["revision"])
}

/// A setting that a put has changed without naming it.
#[derive(Serialize)]
struct DefaultAgain {
    name: String,
    was: Value,
    /// What it is now, if the answer has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    is: Option<Value>,
}

impl fmt::Display for DefaultAgain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, was, is } = self;
        write!(f, "{name} was {}, and ", setting(name, was))?;
        match is {
            Some(is) => write!(f, "is {}", setting(name, is))?,
            None => f.write_str("has its default")?,
        }
        f.write_str(" now: the command did not name it")
    }
}

fn defaults_again(before: &Value, now: &Value, put: &Value) -> Vec<DefaultAgain> {
    let was = before.as_object().into_iter().flatten();
    let unnamed = was.filter(|(name, was)| {
        // What is no setting differs, too.
        let is_setting = !matches!(&***name, "revision" | "project" | "services");
        is_setting && put.get(name).is_none() && now.get(name) != Some(was)
    });
    let again = |(name, was): (&String, &Value)| DefaultAgain {
        name: name.clone(),
        was: was.clone(),
        is: now.get(name).cloned(),
    };
    unnamed.map(again).collect()
}

/// What a put has made, for a person.
fn shown(told: &Value, lost: &[DefaultAgain]) -> String {
    let lost = lost.iter().map(ToString::to_string);
    std::iter::once(made(told)).chain(lost).collect::<Vec<_>>().join("\n")
}

/// The same for a program.
fn with_lost(mut told: Value, lost: &[DefaultAgain]) -> String {
    if let Some(told) = told.as_object_mut().filter(|_| !lost.is_empty()) {
        told.insert("defaults_again".to_owned(), json!(lost));
    }
    told.to_string()
}

impl One {
    fn path(&self, action: &str) -> String {
        format!("v1/projects/{}{action}", self.project)
    }

    fn get(&self, global: &Global) -> Outcome {
        let client = self.to.open(global)?;
        let told = client.ask(Kind::Look, &Method::GET, &self.path(""), &[], None)?;
        match global.json() {
            true => output::line(&told.to_string()),
            false => output::line(&whole(&typed(&told)?)),
        }
    }
}

impl One {
    fn stats(&self, global: &Global) -> Outcome {
        let client = self.to.open(global)?;
        let told = client.ask(Kind::AllLanes, &Method::GET, &self.path("/stats"), &[], None)?;
        match global.json() {
            true => output::line(&told.to_string()),
            false => output::line(&counted(&typed(&told)?)),
        }
    }
}

impl One {
    fn services(&self, global: &Global) -> Outcome {
        let client = self.to.open(global)?;
        let told = client.ask(Kind::Look, &Method::GET, &self.path(""), &[], None)?;
        if global.json() {
            for (name, service) in told["services"].as_object().into_iter().flatten() {
                output::line(&named(&self.project, name, service).to_string())?;
            }
            return Ok(super::Exit::Ok);
        }
        output::line(&services(&typed(&told)?))
    }
}

/// A service as a project's answer has it, with the names of both.
fn named(project: &str, service: &str, told: &Value) -> Value {
    let mut named = told.as_object().cloned().unwrap_or_default();
    named.insert("project".to_owned(), project.into());
    named.insert("service".to_owned(), service.into());
    named.into()
}

/// The services of a project, a line each.
fn services(project: &ProjectView) -> String {
    if project.services.is_empty() {
        return "no services".to_owned();
    }
    let mut table = table::fitted();
    table.set_header(["service", "revision", "paused", "address"]);
    table.add_rows(project.services.iter().map(|(name, of)| {
        let paused = yes(of.settings.paused == Some(true));
        [name.clone(), of.revision.to_string(), paused, of.settings.address.clone()]
    }));
    table.trim_fmt()
}

impl OneService {
    fn path(&self, action: &str) -> String {
        format!("v1/projects/{}/services/{}{action}", self.project, self.service)
    }

    fn get(&self, global: &Global) -> Outcome {
        let client = self.to.open(global)?;
        let path = format!("v1/projects/{}", self.project);
        let project = client.ask(Kind::Look, &Method::GET, &path, &[], None)?;
        let told = self.of(&project)?;
        output::line(&if global.json() { told.to_string() } else { of_service(&told) })
    }

    /// The service as the answer about its project has it, with the names of both.
    fn of(&self, project: &Value) -> Result<Value, ClientError> {
        let service =
            project["services"].get(&self.service).ok_or_else(|| ClientError::Refused {
                status: 404,
                detail: format!("there is no service {} in project {}", self.service, self.project),
                at: None,
            })?;
        Ok(named(&self.project, &self.service, service))
    }
}

impl Put {
    fn settings(&self) -> ProjectSettings {
        let Limits { concurrency, rate, burst, paused } = self.limits;
        ProjectSettings {
            paused: paused.then_some(true),
            concurrency,
            rate,
            burst,
            create_rate: self.create_rate,
            create_burst: self.create_burst,
            max_pending: self.max_pending,
            max_delay: self.max_delay.clone(),
            max_body: self.max_body,
            window: self.window.clone(),
            targets: (!self.targets.is_empty()).then(|| self.targets.clone()),
            hosts: (!self.hosts.is_empty()).then(|| self.hosts.clone()),
            history: self.history.clone(),
        }
    }
}

impl PutService {
    fn settings(&self) -> ServiceSettings {
        let Limits { concurrency, rate, burst, paused } = self.limits;
        ServiceSettings {
            address: self.address.clone(),
            protocol: self.protocol.clone(),
            paused: paused.then_some(true),
            concurrency,
            rate,
            burst,
            timeout: self.timeout.clone(),
            retry: self.retries.info(),
            secret: self.secret.clone(),
            bearer: self.bearer.clone(),
            client_certificate: self.client_certificate.clone(),
        }
    }
}

impl Project {
    pub(super) fn run(self, global: &Global) -> Outcome {
        let bare = json!({});
        match self.command {
            OfProject::Put(put) => {
                let (body, path) = (json!(put.settings()), put.one.path(""));
                let of = (&*put.one.project, Value::clone);
                put.one.to.put(put.revision, &path, &body, global, of)
            }
            OfProject::Get(one) => one.get(global),
            OfProject::List(to) => list(&to, global),
            OfProject::Stats(one) => one.stats(global),
            OfProject::Pause(one) => {
                one.to.change(ANY, &Method::POST, &one.path(":pause"), Some(&bare), global)
            }
            OfProject::Resume(one) => {
                one.to.change(ANY, &Method::POST, &one.path(":resume"), Some(&bare), global)
            }
            OfProject::Delete(one) => {
                one.to.change(ANY, &Method::DELETE, &one.path(""), None, global)
            }
        }
    }
}

impl Service {
    pub(super) fn run(self, global: &Global) -> Outcome {
        let bare = json!({});
        match self.command {
            OfService::Put(put) => {
                let (body, path) = (json!(put.settings()), put.one.path(""));
                let of =
                    (&*put.one.project, |told: &Value| told["services"][&put.one.service].clone());
                put.one.to.put(put.revision, &path, &body, global, of)
            }
            OfService::Get(one) => one.get(global),
            OfService::List(one) => one.services(global),
            OfService::Pause(one) => {
                one.to.change(ANY, &Method::POST, &one.path(":pause"), Some(&bare), global)
            }
            OfService::Resume(one) => {
                one.to.change(ANY, &Method::POST, &one.path(":resume"), Some(&bare), global)
            }
            OfService::Delete(one) => {
                one.to.change(ANY, &Method::DELETE, &one.path(""), None, global)
            }
        }
    }
}

fn list(to: &To, global: &Global) -> Outcome {
    let told = to.open(global)?.ask(Kind::Look, &Method::GET, "v1/projects", &[], None)?;
    let projects: ProjectList = typed(&told)?;
    if global.json() {
        for project in told["projects"].as_array().into_iter().flatten() {
            output::line(&project.to_string())?;
        }
        return Ok(super::Exit::Ok);
    }
    if projects.projects.is_empty() {
        return output::line("no projects");
    }
    let mut table = table::fitted();
    table.set_header(["project", "revision", "paused", "concurrency", "services"]);
    table.add_rows(projects.projects.iter().map(|of| {
        [
            of.project.clone(),
            of.revision.to_string(),
            yes(of.paused),
            of.concurrency.to_string(),
            of.services.join(", "),
        ]
    }));
    output::line(&table.trim_fmt())
}

pub(super) fn yes(is: bool) -> String {
    if is { "yes" } else { "no" }.to_owned()
}

/// Everything that is known of a project, a line each.
fn whole(project: &ProjectView) -> String {
    let mut table = table::plain();
    let mut row = |name: &str, value: String| {
        table.add_row([name.to_owned(), value]);
    };
    row("project", project.project.clone());
    row("revision", project.revision.to_string());
    let settings = json!(project.settings);
    for (name, value) in settings.as_object().into_iter().flatten() {
        row(name, setting(name, value));
    }
    for (name, service) in &project.services {
        let paused = if service.settings.paused == Some(true) { ", paused" } else { "" };
        let of = format!("{}, revision {}{paused}", service.settings.address, service.revision);
        row(&format!("service {name}"), of);
    }
    table.trim_fmt()
}

/// How many tasks a project has, a line each.
fn counted(stats: &ProjectStats) -> String {
    let ProjectStats { project, pending, ended, refused } = stats;
    let PendingTasks { total, delay, ready, overdue, running } = *pending;
    let EndedTasks { finished, failed, cancelled, expired } = *ended;
    let RefusedCreates { over_create_rate, over_pending } = *refused;
    let mut table = table::plain();
    table.add_row(["project".to_owned(), project.clone()]);
    let counts = [
        ("pending", total),
        ("  delay", delay),
        ("  ready", ready),
        ("    overdue", overdue),
        ("  running", running),
        ("finished", finished),
        ("failed", failed),
        ("cancelled", cancelled),
        ("expired", expired),
        ("refused (over_create_rate)", over_create_rate),
        ("refused (over_pending)", over_pending),
    ];
    table.add_rows(counts.map(|(name, count)| [name.to_owned(), count.to_string()]));
    table.trim_fmt()
}

/// A setting, in words where JSON has none.
fn setting(name: &str, value: &Value) -> String {
    let shown = match name {
        "max_delay" | "window" | "history" | "timeout" => {
            Length::deserialize(value).ok().map(|of| show::length(&of))
        }
        "retry" => RetryInfo::deserialize(value).ok().map(|of| show::retries(&of)),
        _ => None,
    };
    shown.unwrap_or_else(|| plain(value))
}

/// A value, and a text without its quotes.
pub(super) fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Everything that is known of a service, a line each.
fn of_service(told: &Value) -> String {
    const FIRST: [&str; 3] = ["project", "service", "revision"];
    let mut table = table::plain();
    for name in FIRST {
        table.add_row([name.to_owned(), plain(&told[name])]);
    }
    let settings = told.as_object().into_iter().flatten();
    for (name, value) in settings.filter(|(name, _)| !FIRST.contains(&name.as_str())) {
        table.add_row([name.to_owned(), setting(name, value)]);
    }
    table.trim_fmt()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::engine::task::registry::read_request;

    #[derive(Parser)]
    struct Line {
        #[command(subcommand)]
        command: Either,
    }

    #[derive(Subcommand)]
    enum Either {
        Project(Project),
        Service(Service),
    }

    #[test]
    fn what_the_options_say_is_a_change_that_is_taken() {
        #[rustfmt::skip]
        let lines = [
            "x project put shop --concurrency 5 --rate 2.5 --burst 9 --create-rate 7 --create-burst 70 --max-pending 1000 --max-delay 30d --max-body 4096 --window 5m --host a.example --host *.b.example --if-revision 3 --target a.* --target b --history 30d --paused",
            "x project put shop --if-revision 0",
            "x project put shop",
            "x service put shop billing --address https://b.example:50051 --protocol grpc",
            "x service put shop billing --address https://b.example --retries 5 --retry-interval 10s --backoff exponential --max-interval 5m --jitter 0.25 --timeout 30s --secret s --bearer b --client-certificate c --concurrency 2",
        ];
        for line in lines {
            let parsed = Line::try_parse_from(line.split_whitespace()).expect(line);
            let (key, body) = match parsed.command {
                Either::Project(Project { command: OfProject::Put(put) }) => {
                    ("project/shop", json!(put.settings()))
                }
                Either::Service(Service { command: OfService::Put(put) }) => {
                    assert_eq!(put.one.path(":pause"), "v1/projects/shop/services/billing:pause");
                    ("service/shop/billing", json!(put.settings()))
                }
                _ => panic!("{line}"),
            };
            let read = read_request(key, body.to_string().as_bytes());
            assert!(read.is_ok(), "{line}: {read:?}");
        }
    }

    #[test]
    fn a_name_is_one_that_the_api_takes() {
        for (line, is_taken) in [
            ("x project put shop.v2_x-1", true),
            ("x project put Shop", false),
            ("x project get ..", false),
            ("x service get shop Billing", false),
            ("x service get shop/services/x billing", false),
        ] {
            let parsed = Line::try_parse_from(line.split_whitespace());
            assert_eq!(parsed.is_ok(), is_taken, "{line}");
            let error = parsed.err().map(|error| error.to_string()).unwrap_or_default();
            assert!(is_taken || error.contains("a-z 0-9 . _ -"), "{error}");
        }
    }

    #[test]
    fn a_put_tells_what_it_took_back_without_a_word_of_it() {
        let before = json!({
            "project": "shop", "revision": 3, "paused": true, "rate": 2.5, "window": "5m",
            "services": {"billing": {"revision": 2}},
        });
        let now = json!({
            "project": "shop", "revision": 4, "paused": false, "rate": 7, "window": "5m", "burst": 7,
            "services": {"billing": {"revision": 9}},
        });
        let told = |put: &Value| -> Vec<String> {
            defaults_again(&before, &now, put).iter().map(ToString::to_string).collect()
        };
        let paused = "paused was true, and is false now: the command did not name it";
        assert_eq!(told(&json!({"rate": 7})), [paused]);
        let rate = "rate was 2.5, and is 7 now: the command did not name it";
        assert_eq!(told(&json!({"paused": false})), [rate]);
        assert!(told(&json!({"paused": false, "rate": 7})).is_empty());
        let service = json!({"timeout": 600, "retry": {"count": 3, "interval": 5}});
        let of_service = json!({"timeout": "10s"});
        let lost: Vec<String> = defaults_again(&service, &of_service, &json!({}))
            .iter()
            .map(ToString::to_string)
            .collect();
        let want = [
            "retry was 3 after a failure, each 5s later, and has its default now: the command did not name it",
            "timeout was 10m, and is 10s now: the command did not name it",
        ];
        assert_eq!(lost, want);
        let limited = json!({"max_pending": 9});
        let line = "max_pending was 9, and has its default now: the command did not name it";
        let lost = defaults_again(&limited, &json!({}), &json!({}));
        let made = json!({"revision": 12});
        assert_eq!(shown(&made, &lost), format!("revision 12\n{line}"));
        // A program learns the same.
        let want = json!({"revision": 12, "defaults_again": [{"name": "max_pending", "was": 9}]});
        assert_eq!(with_lost(made.clone(), &lost), want.to_string());
        assert_eq!(with_lost(made.clone(), &[]), made.to_string());
        let lost = defaults_again(&before, &now, &json!({"rate": 7}));
        let want = json!([{"name": "paused", "was": true, "is": false}]);
        assert_eq!(json!(lost), want);
    }

    #[test]
    fn a_service_is_shown_as_its_project_has_it() {
        let of = |line: &str| -> OneService {
            let parsed = Line::try_parse_from(line.split_whitespace()).expect(line);
            match parsed.command {
                Either::Service(Service { command: OfService::Get(one) }) => one,
                _ => panic!("{line}"),
            }
        };
        let project = json!({"project": "shop", "revision": 7, "paused": true, "services": {
            "billing": {"revision": 3, "address": "https://b.example", "retry": {"count": 5}},
            "mails": {"revision": 4, "address": "https://m.example"},
        }});
        let told = of("x service get shop billing").of(&project).expect("it is there");
        let want = json!({"project": "shop", "service": "billing", "revision": 3, "address": "https://b.example", "retry": {"count": 5}});
        assert_eq!(told, want);
        let text = of_service(&told);
        let lines: Vec<Vec<&str>> =
            text.lines().map(|line| line.split_whitespace().collect()).collect();
        let want = [
            ["project", "shop"],
            ["service", "billing"],
            ["revision", "3"],
            ["address", "https://b.example"],
        ];
        assert_eq!(lines[..4], want, "{text}");
        assert_eq!(lines[4], ["retry", "5", "after", "a", "failure"], "{text}");
        assert!(Line::try_parse_from(["x", "service", "list", "shop"]).is_ok());
        let shop = json!({"project": "shop", "revision": 7, "services": {
            "billing": {"revision": 3, "address": "https://b.example", "paused": true},
        }});
        let text = services(&serde_json::from_value(shop).expect("a project"));
        let last: Vec<&str> = text.lines().last().unwrap_or_default().split_whitespace().collect();
        assert_eq!(last, ["billing", "3", "yes", "https://b.example"], "{text}");
        let error = of("x service get shop bill").of(&project).expect_err("there is none");
        assert_eq!(error.to_string(), "there is no service bill in project shop");
    }
}
