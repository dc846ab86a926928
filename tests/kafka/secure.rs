//! TLS and SASL: everything that waterclock does goes through a listener that is not open to everybody, no log line
//! holds a secret, and who is refused is told why.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Output;
use std::time::{Duration, Instant};

use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use serde_json::{Value, json};
use waterclock::kafka::Connection;

use crate::support::secure::{CLIENT_SECRET, PASSWORD, Secured, token, token_endpoint};
use crate::support::tasks::{Api, is_final, task, with};
use crate::support::{self, Endpoint, Fixture, Launch, Log, Mode, Process, Rec, acl};
use crate::support::{eventually, eventually_within, free_address, out, patient, preload, whole};

/// Settings as variables of the environment.
type Settings = Vec<(&'static str, String)>;

fn over_tls(secured: &Secured, more: &[(&'static str, &str)]) -> Settings {
    let ca = ("SSL_CA_LOCATION", secured.file("ca.pem"));
    let more = more.iter().map(|(name, value)| (*name, (*value).to_owned()));
    std::iter::once(ca).chain(more).collect()
}

fn sasl(secured: &Secured, mechanism: &str, more: &[(&'static str, &str)]) -> Settings {
    let by = [("SECURITY_PROTOCOL", "SASL_SSL"), ("SASL_MECHANISM", mechanism)];
    over_tls(secured, &[&by[..], more].concat())
}

fn user(secured: &Secured, mechanism: &str, password: &str) -> Settings {
    sasl(secured, mechanism, &[("SASL_USERNAME", "anna"), ("SASL_PASSWORD", password)])
}

fn by_endpoint(secured: &Secured, secret: &str) -> Settings {
    let url = token_endpoint();
    let client = [
        ("SASL_OAUTHBEARER_TOKEN_ENDPOINT_URL", url.as_str()),
        ("SASL_OAUTHBEARER_CLIENT_ID", "waterclock"),
        ("SASL_OAUTHBEARER_CLIENT_SECRET", secret),
    ];
    sasl(secured, "OAUTHBEARER", &client)
}

fn by_file(secured: &Secured, path: &str) -> Settings {
    let url = format!("file://{path}");
    sasl(secured, "OAUTHBEARER", &[("SASL_OAUTHBEARER_TOKEN_ENDPOINT_URL", &url)])
}

fn set(settings: &Settings) -> impl Iterator<Item = (String, &str)> {
    settings.iter().map(|(name, value)| (format!("WATERCLOCK_KAFKA__{name}"), value.as_str()))
}

/// A short command, with what it took.
fn waterclock(brokers: &str, settings: &Settings, arguments: &[&str]) -> (Output, Duration) {
    let mut command = support::waterclock();
    command.envs(set(settings)).args(arguments).args(["--brokers", brokers]);
    let began = Instant::now();
    (command.output().expect("it runs"), began.elapsed())
}

#[track_caller]
fn succeeds(brokers: &str, settings: &Settings, arguments: &[&str]) -> String {
    let (output, _) = waterclock(brokers, settings, arguments);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {said}");
    said
}

/// A namespace on the open listener of the secured broker.
fn fixture(secured: &Secured, test: &str) -> Fixture {
    let open = Connection::new(&secured.open, BTreeMap::new());
    Fixture::on(open, test, |request| request.lanes = Some(1))
}

fn no_secret_in(case: &str, log: &str) {
    for secret in [PASSWORD, CLIENT_SECRET, "PRIVATE KEY"] {
        assert!(!log.contains(secret), "{case}: a secret is in the log");
    }
}

#[test]
fn a_record_goes_through_every_kind_of_secured_listener() {
    let secured = Secured::shared();
    let kept = |name: &str, text: &str| {
        let path = secured.file(name);
        std::fs::write(&path, text).expect("written");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o400)).expect("chmod");
        path
    };
    let (password, bearer) =
        (kept("password", &format!("{PASSWORD}\n")), kept("bearer", &token(600)));
    let key = std::fs::read_to_string(secured.file("anna.key")).expect("a key");
    let key = kept("anna.secret", &key);
    let certificate = secured.file("anna.pem");
    let mutual = [
        ("SECURITY_PROTOCOL", "SSL"),
        ("SSL_CERTIFICATE_LOCATION", &certificate),
        ("SSL_KEY_PEM_FILE", &key),
    ];
    let from_file = [("SASL_USERNAME", "anna"), ("SASL_PASSWORD_FILE", password.as_str())];
    #[rustfmt::skip]
    let cases = [
        ("tls",      &secured.tls,    over_tls(&secured, &[("SECURITY_PROTOCOL", "SSL")])),
        ("mutual",   &secured.mutual, over_tls(&secured, &mutual)),
        ("plain",    &secured.sasl,   user(&secured, "PLAIN", PASSWORD)),
        ("scram256", &secured.sasl,   sasl(&secured, "SCRAM-SHA-256", &from_file)),
        ("scram512", &secured.sasl,   user(&secured, "SCRAM-SHA-512", PASSWORD)),
        ("endpoint", &secured.sasl,   by_endpoint(&secured, CLIENT_SECRET)),
        ("file",     &secured.sasl,   by_file(&secured, &bearer)),
    ];
    let secured = &secured;
    for some in cases.chunks(AT_ONCE) {
        std::thread::scope(|scope| {
            for (case, brokers, settings) in some {
                scope.spawn(move || goes_through(secured, case, brokers, settings));
            }
        });
    }
}

/// So many listeners at once: their instances and commands mostly wait.
const AT_ONCE: usize = 4;

#[track_caller]
fn goes_through(secured: &Secured, case: &str, brokers: &str, settings: &Settings) {
    let fixture = fixture(secured, case);
    let target = fixture.target("out", 1);
    let made = format!("{}-made", fixture.namespace());
    let apply = ["topics", "apply", "--namespace", &made, "--lanes", "1", "--ladder", "1s,5s"];
    no_secret_in(case, &succeeds(brokers, settings, &[&apply[..], &["-vvv"]].concat()));
    let mut launch = fixture.launch(Mode::ExactlyOnce).brokers(brokers).arg("-vv");
    for (name, value) in set(settings) {
        launch = launch.env(&name, value);
    }
    let mut process = launch.env("WATERCLOCK_KAFKA__DEBUG", "all").start();
    // Longer than a token of the endpoint lives: it is renewed meanwhile.
    let wait = if case == "endpoint" { "15s" } else { "1s" };
    let send =
        ["send", "--namespace", fixture.namespace(), "--target", &target, "--in", wait, case];
    no_secret_in(case, &succeeds(brokers, settings, &send));
    let seen = Log::open(&fixture, &target).count(1).to_vec();
    assert_eq!(seen[0].text(), case);
    fixture.wait_until_nothing_is_pending();
    process.stop_well();
    no_secret_in(case, &process.log());
}

/// librdkafka's threads run beside exit handlers, and one that makes a connection crashes if OpenSSL's handler cleans
/// up just then: two of 400 processes on a busy machine. A process that ends well must not look killed by a signal.
#[test]
fn openssl_is_not_cleaned_up_at_exit() {
    let secured = Secured::shared();
    let settings = over_tls(&secured, &[("SECURITY_PROTOCOL", "SSL")]);
    let fixture = fixture(&secured, "handlers");
    let files = tempfile::tempdir().expect("a directory");
    let handlers = preload::compile("handlers", files.path());
    let mut launch = fixture.launch(Mode::ExactlyOnce).brokers(&secured.tls);
    for (name, value) in set(&settings) {
        launch = launch.env(&name, value);
    }
    let mut process = launch.env("LD_PRELOAD", &handlers).start();
    process.stop_well();
    // One is the preloaded library's own: without it nothing would have been watched.
    let registered = process.log().matches("exit handler registered").count();
    assert_eq!(registered, 1, "{}", process.log());
}

#[test]
fn who_is_refused_is_told_why_within_seconds_and_tries_again() {
    let secured = Secured::shared();
    let expired = secured.file("expired");
    std::fs::write(&expired, token(-60)).expect("written");
    let own = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(&expired, own).expect("chmod");
    let stranger: Settings = vec![
        ("SECURITY_PROTOCOL", "SSL".into()),
        ("SSL_CA_LOCATION", secured.file("stranger.pem")),
    ];
    #[rustfmt::skip]
    let cases = [
        // why                  listener         settings                                             words
        ("a wrong password",    &secured.sasl,   user(&secured, "PLAIN", "wrong"),                    "uthentication failed"),
        ("a wrong password",    &secured.sasl,   user(&secured, "SCRAM-SHA-512", "wrong"),            "uthentication failed"),
        ("a wrong authority",   &secured.tls,    stranger,                                            "certificate verify failed"),
        ("no certificate",      &secured.mutual, over_tls(&secured, &[("SECURITY_PROTOCOL", "SSL")]), "certificate"),
        ("a wrong secret",      &secured.sasl,   by_endpoint(&secured, "wrong"),                      "answered 401 (invalid_client)"),
        ("an expired token",    &secured.sasl,   by_file(&secured, &expired),                         "expired"),
        ("no TLS",              &secured.tls,    vec![],                                              "no answer from Kafka"),
    ];
    let fixture = fixture(&secured, "refused");
    for (why, brokers, settings, words) in &cases {
        let check = ["topics", "check", "--namespace", fixture.namespace()];
        let (output, took) = waterclock(brokers, settings, &check);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(69), "{why}: {said}");
        assert!(said.contains(words), "{why}: {said}");
        assert!(took < patient(Duration::from_secs(15)), "{why}: {took:?}");
    }

    // The service is alive and not ready, says why, and works once somebody has mended it.
    let mut launch = fixture.launch(Mode::ExactlyOnce).brokers(&secured.sasl);
    for (name, value) in set(&by_file(&secured, &expired)) {
        launch = launch.env(&name, value);
    }
    let mut process = launch.spawn();
    process.wait_until_logged(Duration::from_secs(15), "Kafka does not answer");
    process.wait_until_logged(Duration::from_secs(1), "expired");
    assert_eq!(process.get("/health/ready").expect("an answer").0, 503);
    assert_eq!(process.get("/health/live").expect("an answer").0, 200);
    std::fs::write(&expired, token(600)).expect("written");
    process.wait_until_ready();
    process.stop_well();
}

#[test]
fn nobody_there_is_told_within_seconds() {
    let nowhere = free_address();
    let send = ["send", "--target", "t", "--in", "5s", "v"];
    for command in [&["topics", "check"][..], &["topics", "apply"], &send, &["dead", "list"]] {
        let (output, took) = waterclock(&nowhere, &Settings::new(), command);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(69), "{command:?}: {said}");
        assert!(said.contains(&format!("no answer from Kafka at {nowhere}")), "{said}");
        assert!(said.contains("Connection refused"), "{command:?}: {said}");
        assert!(took < patient(Duration::from_secs(15)), "{command:?}: {took:?}");
    }
}

#[test]
fn a_service_without_brokers_says_so_and_is_alive_and_not_ready() {
    let fixture = Fixture::new("nowhere");
    let nowhere = free_address();
    let mut process = fixture.launch(Mode::ExactlyOnce).brokers(&nowhere).spawn();
    process.wait_until_logged(Duration::from_secs(10), "Kafka does not answer, trying again");
    process
        .wait_until_logged(Duration::from_secs(1), &format!("no answer from Kafka at {nowhere}"));
    assert_eq!(process.get("/health/ready").expect("an answer").0, 503);
    assert_eq!(process.get("/health/live").expect("an answer").0, 200);
    process.stop_well();
}

/// The rows of the documents' table: resource, name, pattern, operations.
fn documented_permissions() -> Vec<[String; 4]> {
    let document = include_str!("../../docs/security.md");
    let table = document.split("<!-- permissions: begin -->").nth(1).expect("a begin mark");
    let table = table.split("<!-- permissions: end -->").next().expect("an end mark");
    let rows = table.lines().filter(|line| line.starts_with("| ")).skip(1);
    let cells = rows.map(|row| {
        let mut cells = row.split('|').skip(1).map(|cell| cell.trim().trim_matches('`').to_owned());
        std::array::from_fn(|_| cells.next().unwrap_or_default())
    });
    cells.collect()
}

#[test]
fn the_documented_permissions_are_enough() {
    let secured = Secured::shared();
    let fixture = fixture(&secured, "minimal");
    let namespace = fixture.namespace();
    let target = fixture.target("out", 1);
    let rows = documented_permissions();
    assert_eq!(rows.len(), 6, "{rows:?}");
    let grants = rows.iter().map(|[resource, name, pattern, operations]| {
        let name = name.replace("waterclock", namespace).replace("orders.", &target);
        let operations: Vec<&str> = operations.split(", ").collect();
        json!({ "resource": resource, "name": name, "pattern": pattern, "operations": operations })
    });
    let grants = json!({ "grants": grants.collect::<Vec<_>>() });
    acl::grant(&secured.open, "User:minimal", &grants);
    let by = [("SASL_USERNAME", "minimal"), ("SASL_PASSWORD", PASSWORD)];
    let settings = sasl(&secured, "PLAIN", &by);
    let brokers = &secured.sasl;
    let below = format!("{namespace}.below");
    let apply = ["topics", "apply", "--namespace", &below, "--lanes", "1", "--ladder", "1s"];
    succeeds(brokers, &settings, &apply);
    let mut launch = fixture.launch(Mode::ExactlyOnce).brokers(brokers);
    for (name, value) in set(&settings) {
        launch = launch.env(&name, value);
    }
    let mut process = launch.start();
    let send = ["send", "--namespace", namespace, "--target", &target, "--in", "4s", "granted"];
    succeeds(brokers, &settings, &send);
    assert_eq!(Log::open(&fixture, &target).count(1)[0].text(), "granted");
    fixture.wait_until_nothing_is_pending();
    // Done records are deleted, too.
    let intake = fixture.names.intake();
    eventually("the intake is trimmed", || match whole(&fixture, &intake) {
        left if left.is_empty() => Ok(()),
        left => Err(format!("{left:?}")),
    });
    succeeds(brokers, &settings, &["dead", "list", "--namespace", namespace]);
    // It knows what is needed, and finds it granted.
    succeeds(brokers, &settings, &["doctor", "--namespace", namespace]);
    process.stop_well();
    let denied = process.log().lines().filter(|line| line.contains("uthoriz")).count();
    assert_eq!(denied, 0, "something was denied: {}", process.log());
}

/// A right that is printed: the kind of resource, its name behind that of the namespace, and the operation.
type Grant<'a> = [&'a str; 3];
/// The name of all that is of a kind, in whichever namespace.
const ANY: &str = "*";

/// Somebody who may do what `waterclock acl print` says of some roles, and nothing else.
struct Principal<'a> {
    secured: &'a Secured,
    fixture: &'a Fixture,
    target: &'a str,
    name: String,
    settings: Settings,
    printed: Value,
}

impl<'a> Principal<'a> {
    #[track_caller]
    fn with_roles(of: (&'a Secured, &'a Fixture, &'a str), roles: &str) -> Self {
        Self::in_namespace(of, of.1.namespace(), roles)
    }

    #[track_caller]
    fn in_namespace(of: (&'a Secured, &'a Fixture, &'a str), namespace: &str, roles: &str) -> Self {
        let (secured, fixture, target) = of;
        let name = format!("{}-{}", roles.replace(',', "-"), fixture.namespace());
        secured.add_user(&name);
        let by = [("SASL_USERNAME", name.as_str()), ("SASL_PASSWORD", PASSWORD)];
        let settings = sasl(secured, "SCRAM-SHA-512", &by);
        let mut print = support::waterclock();
        print.args(["acl", "print", "--json", "--namespace", namespace, "--role", roles]);
        let printed = print.env("WATERCLOCK_ALLOW", regex(target)).output().expect("it runs");
        let printed: Value = serde_json::from_slice(&printed.stdout).expect("JSON");
        assert_eq!(printed["notes"], json!([]), "{printed}");
        acl::grant(&secured.open, &format!("User:{name}"), &printed);
        Self { secured, fixture, target, name, settings, printed }
    }

    fn launch(&self, data: &str, roles: &str) -> Launch<'a> {
        let launch = self.fixture.launch(Mode::ExactlyOnce).data(data).brokers(&self.secured.sasl);
        let config = "[callbacks]\nnetworks = [\"127.0.0.0/8\"]\n".to_owned();
        let launch = launch.config(&format!("allow = ['{}']\n{config}", regex(self.target)));
        let mut launch = launch.arg("--roles").arg(roles);
        for (name, value) in set(&self.settings) {
            launch = launch.env(&name, value);
        }
        launch
    }

    /// A short command of the namespace.
    fn does(&self, arguments: &[&str]) -> Output {
        let namespace = ["--namespace", self.fixture.namespace()];
        waterclock(&self.secured.sasl, &self.settings, &[arguments, &namespace].concat()).0
    }

    /// What a command prints that succeeds.
    #[track_caller]
    fn succeeds(&self, arguments: &[&str]) -> String {
        let ended = self.does(arguments);
        let text = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(0), "{arguments:?}: {text}");
        String::from_utf8_lossy(&ended.stdout).into_owned()
    }

    /// Takes a right away that it has.
    #[track_caller]
    fn loses(&self, of: Grant<'_>) {
        acl::deny(&self.secured.open, &format!("User:{}", self.name), &self.grant(of));
    }

    /// Gives it back.
    #[track_caller]
    fn gets_back(&self, of: Grant<'_>) {
        acl::deny_no_more(&self.secured.open, &format!("User:{}", self.name), &self.grant(of));
    }

    /// Takes a grant away: another one may still give it the same.
    #[track_caller]
    fn has_no_more(&self, of: Grant<'_>) {
        acl::revoke(&self.secured.open, &format!("User:{}", self.name), &self.grant(of));
    }

    /// One that was printed for it.
    #[track_caller]
    fn grant(&self, [resource, name, operation]: Grant<'_>) -> Value {
        let within = format!("{}{name}", self.fixture.namespace());
        let name = if name == ANY { ANY } else { &within };
        let mut grants = self.printed["grants"].as_array().into_iter().flatten();
        let found = grants.find(|of| {
            (of["resource"].as_str(), of["name"].as_str()) == (Some(resource), Some(name))
        });
        let found = found.unwrap_or_else(|| panic!("{resource} {name}: {}", self.printed));
        let has = found["operations"].as_array().expect("operations").contains(&json!(operation));
        assert!(has, "{operation}: {found}");
        let mut grant = found.clone();
        grant["operations"] = json!([operation]);
        grant
    }

    /// Rights that nothing has needed.
    fn unused(&self) -> Vec<String> {
        self.secured.unused(&self.name, &self.printed)
    }

    /// Submits a record as a client does that knows nothing of waterclock but its headers.
    fn produces(&self, value: &str) {
        let mut client = rdkafka::ClientConfig::new();
        client.set("bootstrap.servers", &self.secured.sasl);
        for (name, value) in &self.settings {
            client.set(name.to_ascii_lowercase().replace('_', "."), value);
        }
        let producer: BaseProducer = client.create().expect("a producer");
        let header = |key, value| Header { key, value: Some(value) };
        let headers = OwnedHeaders::new().insert(header("x-delay", "3s"));
        let headers = headers.insert(header("x-delay-target", self.target));
        let intake = self.fixture.names.intake();
        let record = BaseRecord::to(&intake).key("k").payload(value).headers(headers);
        producer.send(record).map_err(|(error, _)| error).expect("sent");
        producer.flush(patient(Duration::from_secs(15))).expect("acknowledged");
    }
}

fn regex(target: &str) -> String {
    target.replace('.', r"\.")
}

/// The ticket of the turn of a task with this value, by what its executors have been handed.
#[track_caller]
fn ticket(fixture: &Fixture, topic: &str, value: &str, turn: usize) -> String {
    let mut log = Log::open(fixture, topic);
    let of = |seen: &[Rec]| seen.iter().filter(|rec| rec.text() == value).cloned().collect();
    log.until("it is handed over", |seen| Vec::len(&of(seen)) >= turn);
    let handed: Vec<Rec> = of(&log.seen);
    handed[turn - 1].header("x-delay-ticket").expect("a ticket")
}

/// Tasks of every type, reports, a retry of each kind and a follow-up, over an instance that makes no calls and has no lanes.
#[track_caller]
fn every_kind_of_task(
    asked: &Api,
    stub: &Endpoint,
    (fixture, target): (&Fixture, &str),
    host: &str,
) {
    let post = |id: &str, what: &str, body: Option<&Value>| {
        let (status, told) = asked.answered("POST", &format!("/v1/tasks/{id}{what}"), body);
        assert_eq!(status, 200, "{id}{what}: {told}");
        told
    };
    let cancelled = asked.create(&task("shop", stub, "/ok", "1h"));
    assert_eq!(asked.cancel(&cancelled), "cancelled");
    let retried = with(
        task("shop", stub, "/fail?n=2", "1s"),
        json!({ "retry": { "count": 1, "interval": 1 } }),
    );
    let failed = asked.create(&retried);
    assert_eq!(asked.end_of(&failed)["task_status"], "failed");
    let (status, told) = asked.answered("PUT", "/v1/projects/shop", Some(&json!({})));
    assert_eq!(status, 200, "{told}");
    // Its payload stands in the dead letter.
    post(&failed, ":retry", None);
    eventually("it is finished", || {
        let task = asked.task(&failed);
        if task["task_status"] == "finished" { Ok(()) } else { Err(task.to_string()) }
    });

    let rest = json!({"project": "shop", "group": "g", "delay": "1s"});
    let kafka = with(rest.clone(), json!({"type": "kafka", "topic": target, "value": "task"}));
    let more = json!({
        "value": "reported", "feedback": {"deadline": "1h"}, "retry": {"count": 1, "interval": 1}, "on_result": {"topic": target},
    });
    let grpc = json!({
        "type": "grpc", "host": host, "service": "grpc.health.v1.Health", "method": "Check", "format": "json", "body": {},
    });
    let ids = asked.create_all(vec![kafka.clone(), with(rest, grpc), with(kafka, more)]);
    for id in &ids[..2] {
        let ended = asked.end_of(id);
        assert_eq!(ended["task_status"], "finished", "{ended}");
    }
    // What a worker holds.
    let slow = with(task("shop", stub, "/slow?ms=4000", "0s"), json!({"body": "held"}));
    let held = asked.create(&slow);
    let path = format!("/v1/tasks/{held}?payload=1");
    eventually("its call is open", || match asked.answered("GET", &path, None).1 {
        told if told["task_status"] == "running" && told["payload"]["body"] == "held" => Ok(()),
        told => Err(told.to_string()),
    });
    assert_eq!(asked.end_of(&held)["task_status"], "finished");
    // The next turn has what the first one had, and that stands in a tier.
    let reported = &ids[2];
    let say = |turn: usize, more: Value| {
        with(json!({"ticket": ticket(fixture, target, "reported", turn)}), more)
    };
    post(reported, "/heartbeat", Some(&say(1, json!({"cursor": "row:7"}))));
    let told = post(reported, "/result", Some(&say(1, json!({"outcome": "failed"}))));
    assert_eq!(told["outcome"], "retrying");
    let (_, told) = asked.answered("GET", &format!("/v1/tasks/{reported}?payload=1"), None);
    assert_eq!(told["payload"]["body"], "reported", "{told}");
    let told = post(reported, "/result", Some(&say(2, json!({"outcome": "finished"}))));
    assert_eq!(told["outcome"], "finished");
    let follow_up = asked.end_of(reported)["follow_up"].as_str().expect("an id").to_owned();
    assert_eq!(asked.end_of(&follow_up)["task_status"], "finished");
    let says_so = |rec: &Rec| rec.text().contains(&format!("\"{reported}\""));
    Log::open(fixture, target).until("it is told how it ended", |seen| seen.iter().any(says_so));
}

/// Commands that ask Kafka, and those that find an instance there.
#[track_caller]
fn every_kind_of_command(cli: &Principal<'_>, stub: &Endpoint) {
    let url = stub.url("/ok");
    let create = ["task", "create", "http", "--project", "shop", "--group", "g", "--in", "1h"];
    let created = cli.succeeds(&[&create[..], &["--url", &url, "--json"]].concat());
    let created: Value = serde_json::from_str(&created).expect("JSON");
    let id = created["task_id"].as_str().expect("an id");
    for command in [
        &["task", "get", id, "--payload"][..],
        &["task", "history", id],
        &["task", "list", "--project", "shop"],
        &["task", "retry", id],
        &["project", "put", "shop", "--max-pending", "100000"],
        &["project", "pause", "shop"],
        &["project", "resume", "shop"],
        &["project", "get", "shop"],
        &["project", "stats", "shop"],
        &["service", "put", "shop", "billing", "--address", &url],
        &["target", "get", cli.target],
        &["members"],
        &["dead", "list"],
        &["topics", "check"],
    ] {
        cli.succeeds(command);
    }
    let nobody = cli.does(&["cancel", "nobody", "--key", "k", "--wait", "20s"]);
    assert_eq!(nobody.status.code(), Some(1), "{}", String::from_utf8_lossy(&nobody.stderr));
}

/// A run whose shards are in all lanes: each tells the lane of the run how it ended.
fn run_of_calls(stub: &Endpoint) -> Value {
    let mut shard = task("shop", stub, "/ok", "1s");
    let of_task = shard.as_object_mut().expect("an object");
    of_task.retain(|field, _| !["project", "group", "delay"].contains(&field.as_str()));
    of_task.insert("type".to_owned(), json!("http"));
    json!({"project": "shop", "group": "g", "delay": "1s", "shards": 8, "task": shard})
}

/// Asks how many are there to execute a run that is due in an hour, until that is told; `None`: until it is not told any more.
#[track_caller]
fn says_members(asked: &Api, target: &str, want: Option<u64>) {
    let task = json!({"type": "kafka", "topic": target, "feedback": {"deadline": "1h"}});
    let run = json!({"project": "shop", "group": "g", "delay": "1h", "shards": 2, "task": task});
    let (status, told) = asked.answered("POST", "/v1/runs", Some(&run));
    assert_eq!(status, 201, "{told}");
    let path = format!("/v1/runs/{}", told["run_id"].as_str().expect("an id"));
    // An answer is kept for 3 s, and other tests have groups, too, which may be in a rebalance.
    eventually_within(Duration::from_secs(60), &format!("it has {want:?} members"), || {
        let (status, told) = asked.answered("GET", &path, None);
        assert_eq!(status, 200, "{told}");
        let members = told.get("members").and_then(Value::as_u64);
        if members == want { Ok(()) } else { Err(told.to_string()) }
    });
    let (status, told) = asked.answered("DELETE", &format!("{path}?wait=20s"), None);
    assert_eq!((status, &told["outcome"]), (200, &json!("cancelled")), "{told}");
}

/// Timers, tasks, a cancel, a rebalance and a restart, over TLS and SCRAM, by instances of each role that have the rights of their
/// roles only; all of these rights are needed, and what comes of it when one of them is missing.
#[test]
fn each_role_runs_with_the_rights_that_are_printed_and_nothing_more() {
    let secured = Secured::shared();
    let open = Connection::new(&secured.open, BTreeMap::new());
    let fixture = Fixture::on(open, "roles", |request| request.lanes = Some(2));
    let namespace = fixture.namespace();
    let target = fixture.target("out", 1);
    let of = (&*secured, &fixture, target.as_str());
    secured.log_what_is_allowed();
    let lanes = Principal::with_roles(of, "lanes");
    let worker = Principal::with_roles(of, "worker");
    // The role `api` does not run alone.
    let (api, of_lanes) =
        (Principal::with_roles(of, "worker,api"), Principal::with_roles(of, "lanes,api"));
    let producer = Principal::with_roles(of, "producer");
    let cli = Principal::with_roles(of, "cli");
    let below = format!("{namespace}.below");
    let admin = Principal::in_namespace(of, &below, "admin");
    let apply = ["topics", "apply", "--namespace", &below, "--lanes", "1", "--ladder", "1s"];
    succeeds(&secured.sasl, &admin.settings, &apply);

    let mut processes: Vec<Process> = vec![
        lanes.launch("a", "lanes").start(),
        worker.launch("b", "worker").start(),
        api.launch("c", "worker,api").start(),
    ];
    let asked = Api::of(&processes[2]);
    let stub = Endpoint::start();
    producer.produces("by headers");
    let sent = cli.does(&["send", "--target", &target, "--in", "3s", "--key", "k", "by command"]);
    assert_eq!(sent.status.code(), Some(0), "{}", String::from_utf8_lossy(&sent.stderr));
    assert_eq!(Log::open(&fixture, &target).count(2).len(), 2);
    let host = processes[2].address().expect("it serves");
    every_kind_of_task(&asked, &stub, (&fixture, &target), &host);
    every_kind_of_command(&cli, &stub);

    // A second owner of lanes, and then the first one again, after it was killed.
    processes.push(of_lanes.launch("d", "lanes,api").start());
    let by_lanes = Api::of(&processes[3]);
    eventually("the lanes are shared", || match (processes[0].lanes(), processes[3].lanes()) {
        (1, 1) => Ok(()),
        other => Err(format!("{other:?}")),
    });
    processes[0].kill();
    processes[0] = lanes.launch("a", "lanes").start();
    for api in [&asked, &by_lanes] {
        for id in api.create_all(vec![task("shop", &stub, "/ok", "1s"); 8]) {
            assert_eq!(api.end_of(&id)["task_status"], "finished");
        }
        let (status, told) = api.answered("PUT", "/v1/projects/shop", Some(&json!({})));
        assert_eq!(status, 200, "{told}");
        let (status, told) = api.answered("POST", "/v1/runs", Some(&run_of_calls(&stub)));
        assert_eq!(status, 201, "{told}");
    }
    // Nobody is there to execute a run, and both may see that.
    says_members(&asked, &target, Some(0));
    says_members(&by_lanes, &target, Some(0));
    // Done records are deleted, too.
    let intake = fixture.names.intake();
    eventually("the intake is trimmed", || match whole(&fixture, &intake).len() {
        0 => Ok(()),
        left => Err(format!("{left} are left")),
    });
    // What no lane wrote is a dead letter, of each worker.
    let (forger, tasks) = (fixture.producer(), fixture.names.tasks());
    for partition in 0..2 {
        forger.send_one(&tasks, &out("forged").at(partition));
    }
    Log::open(&fixture, &fixture.names.dead()).until("both are dead letters", |seen| {
        seen.iter().filter(|rec| rec.text() == "forged").count() == 2
    });
    let everybody = [&lanes, &worker, &api, &of_lanes, &producer, &cli, &admin];
    for of in everybody {
        assert_eq!(secured.denied(&of.name), [""; 0], "{}", of.name);
    }
    for process in &processes {
        let log = process.log();
        let said: Vec<&str> = log.lines().filter(|line| line.contains("uthoriz")).collect();
        assert!(said.is_empty(), "{said:#?}");
    }

    // Who may not describe all groups does not say how many are there, and does all else.
    of_lanes.has_no_more(["group", ANY, "Describe"]);
    says_members(&by_lanes, &target, None);
    eventually("a group that nobody has is refused", || {
        let denied = secured.denied(&of_lanes.name);
        let is_refused = denied.iter().any(|line| line.contains("Group:LITERAL:? for request"));
        if is_refused { Ok(()) } else { Err(format!("{denied:?}")) }
    });
    let id = by_lanes.create(&task("shop", &stub, "/ok", "1s"));
    assert_eq!(by_lanes.end_of(&id)["task_status"], "finished");

    // These rights and no others: each is needed by something. What these two commands say is no matter.
    processes[3].stop_well();
    processes[1].stop_well();
    let index = fixture.path("d").display().to_string();
    cli.does(&["index", "verify", "--data-dir", &index]);
    waterclock(&secured.sasl, &admin.settings, &["doctor", "--namespace", &below]);
    // Lanes trim what is done once in 30 s, and only where something was done since they were taken over.
    for of in everybody.into_iter().filter(|of| of.name != of_lanes.name) {
        let what = format!("{} needs all its rights", of.name);
        eventually_within(Duration::from_secs(120), &what, || match of.unused() {
            unused if unused.is_empty() => Ok(()),
            unused => {
                asked.create(&task("shop", &stub, "/ok", "5s"));
                let (status, told) = asked.answered("POST", "/v1/runs", Some(&run_of_calls(&stub)));
                assert_eq!(status, 201, "{told}");
                std::thread::sleep(Duration::from_secs(1));
                Err(unused.join(", "))
            }
        });
    }

    // Without one of them something does not work, and it goes on with it.
    #[rustfmt::skip]
    let rights = [
        (&api,   ["topic", ".tasks", "Read"],     0),
        (&api,   ["topic", ".results", "Write"],  0),
        (&api,   ["group", "-workers", "Read"],   0),
        (&lanes, ["topic", ".delay.", "Read"],    4),
        (&lanes, ["topic", ".intake", "Read"],    0),
        (&lanes, ["topic", ".tasks", "Write"],    0),
        (&lanes, ["topic", ".timers", "Write"],   0),
        (&lanes, ["group", "", "Read"],           0),
    ];
    for (who, right, delay) in rights {
        is_held_up_without(who, right, (&asked, &stub, delay));
    }
    // A lane that may not write to its tiers holds the record, and has it called in time.
    let before = secured.denied(&lanes.name).len();
    lanes.loses(["topic", ".delay.", "Write"]);
    let id = asked.create(&task("shop", &stub, "/ok", "4s"));
    eventually("the hop is refused", || match secured.denied(&lanes.name).len() {
        now if now > before => Ok(()),
        now => Err(format!("{now}")),
    });
    assert_eq!(asked.end_of(&id)["task_status"], "finished");
    lanes.gets_back(["topic", ".delay.", "Write"]);
    let refused = |what: &str, method: &str, path: &str, body: &Value| {
        eventually(what, || match asked.ask(method, path, Some(body)) {
            (200 | 201, told) => Err(told.to_string()),
            _ => Ok(()),
        });
    };
    api.loses(["topic", ".intake", "Write"]);
    let create = task("shop", &stub, "/ok", "1h");
    refused("a create is refused without Write on the intake", "POST", "/v1/tasks/http", &create);
    api.loses(["topic", ".meta", "Write"]);
    let project = "/v1/projects/shop";
    refused("a change is refused without Write on meta", "PUT", project, &json!({}));
    cli.loses(["topic", ".dead", "Read"]);
    assert_ne!(cli.does(&["dead", "list"]).status.code(), Some(0));
    cli.loses(["topic", "-out", "Describe"]);
    let sent = cli.does(&["send", "--target", &target, "--in", "1s", "x"]);
    assert!(String::from_utf8_lossy(&sent.stderr).contains("target_missing"), "{sent:?}");
    cli.loses(["topic", ".meta", "Read"]);
    assert_ne!(cli.does(&["task", "list", "--project", "shop"]).status.code(), Some(0));
    drop(processes);
    let without = [(&lanes, "a", "lanes"), (&worker, "b", "worker")].map(|(who, data, role)| {
        who.loses(["transactional-id", "/", "Write"]);
        (who, who.launch(data, role).spawn())
    });
    for (who, mut process) in without {
        assert_eq!(process.wait(patient(Duration::from_secs(60))), Some(70), "{}", process.log());
        assert!(!secured.denied(&who.name).is_empty());
    }
}

/// Takes a right away, has a task created that is due in so many seconds, and gives the right back once the broker has refused
/// what needs it. The task is not finished before, and it is after that.
#[track_caller]
fn is_held_up_without(who: &Principal<'_>, right: Grant<'_>, of: (&Api, &Endpoint, u64)) {
    let (asked, stub, delay) = of;
    let denied = || who.secured.denied(&who.name).len();
    let before = denied();
    who.loses(right);
    let id = asked.create(&task("shop", stub, "/ok", &format!("{delay}s")));
    let until = Instant::now() + Duration::from_secs(delay + 2);
    eventually(&format!("{right:?} is missed"), || {
        if denied() > before { Ok(()) } else { Err("nothing was refused".to_owned()) }
    });
    std::thread::sleep(until.saturating_duration_since(Instant::now()));
    // Its lane may have no owner now.
    let look = || asked.ask("GET", &format!("/v1/tasks/{id}"), None).1;
    let seen = look();
    who.gets_back(right);
    assert!(!is_final(&seen), "without {right:?}: {seen}");
    eventually(&format!("with {right:?} it goes on"), || match look() {
        seen if seen["task_status"] == "finished" => Ok(()),
        seen => Err(seen.to_string()),
    });
}
