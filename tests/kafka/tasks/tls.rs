//! TLS on the listener: instances, commands and foreign clients that know each other by certificates.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Output};
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use serde_json::{Value, json};

use super::fixture;
use super::grpc::grpcurl_by;
use crate::support::{Endpoint, Fixture, Mode, Process, eventually, now_ms, patient, waterclock};

pub(super) type Issuer = CertifiedIssuer<'static, KeyPair>;

pub(super) fn authority(name: &str) -> Issuer {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("signed")
}

/// Files of certificates and keys, in the directory of a fixture.
struct Pki<'a> {
    fixture: &'a Fixture,
    servers: Issuer,
    clients: Issuer,
}

impl<'a> Pki<'a> {
    fn new(fixture: &'a Fixture) -> Self {
        let this = Self { fixture, servers: authority("servers"), clients: authority("clients") };
        this.put("ca.pem", &this.servers.pem());
        this.put("client-ca.pem", &this.clients.pem());
        for name in ["a", "b"] {
            this.put_pair(name, &this.servers);
        }
        for name in ["instance", "ci", "reader", "nobody"] {
            this.put_pair(name, &this.clients);
        }
        this
    }

    fn put(&self, name: &str, text: &str) {
        let path = self.fixture.path(name);
        std::fs::write(&path, text).expect("written");
        std::fs::set_permissions(path, Permissions::from_mode(0o600)).expect("its own");
    }

    fn put_pair(&self, name: &str, by: &Issuer) {
        let names = ["127.0.0.1".to_owned(), format!("{name}.example")];
        let params = CertificateParams::new(names).expect("names");
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, by).expect("signed");
        self.put(&format!("{name}.key"), &key.serialize_pem());
        self.put(&format!("{name}.pem"), &certificate.pem());
    }

    fn path(&self, name: &str) -> String {
        self.fixture.path(name).display().to_string()
    }

    /// The configuration of an instance.
    fn config(&self, name: &str) -> String {
        let path = |name: &str| self.path(name);
        format!(
            "[callbacks]\nnetworks = [\"127.0.0.0/8\"]\n\
             [api]\nca = {:?}\nclient-certificate = {:?}\nclient-key = {:?}\n\
             [api.tls]\ncertificate = {:?}\nkey = {:?}\nclient-ca = {:?}\nclient-auth = \"required\"\n\
             [[api.tls.principals]]\nname = \"ci\"\nsubject = \"dns:ci.example\"\nrole = \"write\"\nprojects = [\"shop\"]\n\
             [[api.tls.principals]]\nname = \"reader\"\nsubject = \"dns:reader.example\"\nrole = \"read\"\nprojects = [\"*\"]\n",
            path("ca.pem"),
            path("instance.pem"),
            path("instance.key"),
            path(&format!("{name}.pem")),
            path(&format!("{name}.key")),
            path("client-ca.pem"),
        )
    }

    fn spawn(&self, name: &str) -> Process {
        self.fixture.launch(Mode::ExactlyOnce).data(name).config(&self.config(name)).spawn()
    }

    /// Runs curl as the holder of a certificate, or of none; and what it says.
    fn curl(&self, by: Option<&str>, more: &[&str]) -> Output {
        let mut curl = Command::new("curl");
        curl.args(["-sS", "--noproxy", "*", "-w", "\n%{http_code} %{http_version}"]);
        curl.args(["--cacert", &self.path("ca.pem")]);
        if let Some(by) = by {
            let (certificate, key) = (format!("{by}.pem"), format!("{by}.key"));
            curl.args(["--cert", &self.path(&certificate), "--key", &self.path(&key)]);
        }
        curl.args(more).output().expect("curl runs")
    }

    /// What an instance answers to it: status, HTTP version, body.
    #[track_caller]
    fn asked(&self, by: &str, of: &Process, path: &str, more: &[&str]) -> (u16, String, Value) {
        let url = format!("https://{}{path}", of.address().expect("it serves"));
        let ended = self.curl(Some(by), &[&[&*url], more].concat());
        let said = String::from_utf8_lossy(&ended.stdout).into_owned();
        let error = String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.success(), "{url}: {said}{error}");
        let (body, end) = said.rsplit_once('\n').expect("the code");
        let (status, version) = end.split_once(' ').expect("the version");
        let status = status.parse().expect("a status");
        (status, version.to_owned(), serde_json::from_str(body).unwrap_or_else(|_| json!(body)))
    }

    /// Runs a command with the configuration of an instance.
    fn command(&self, name: &str, words: &[&str]) -> Output {
        let (brokers, namespace) = (&self.fixture.connection.brokers, self.fixture.namespace());
        let config = self.path(&format!("{name}.toml"));
        let mut command = waterclock();
        command.args(["--brokers", brokers, "--namespace", namespace, "--config", &config]);
        command.args(words).output().expect("it runs")
    }

    /// Whether it is ready, as `waterclock health` says.
    fn wait_until_ready(&self, name: &str, process: &Process) {
        eventually("it is ready", || {
            let server = format!("https://{}", process.address()?);
            let ended = self.command(name, &["health", "--server", &server]);
            let said = [ended.stdout, ended.stderr].concat();
            let said = String::from_utf8_lossy(&said).into_owned();
            if ended.status.success() { Ok(()) } else { Err(said + &process.log()) }
        });
    }
}

fn json_lines(ended: &Output) -> Vec<Value> {
    let said = String::from_utf8_lossy(&ended.stdout);
    said.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// Creates tasks over one instance, and looks each up over both: whichever has the lane is asked by the other.
#[track_caller]
fn create_and_look_up(pki: &Pki<'_>, [a, b]: [&Process; 2]) {
    let stub = Endpoint::start();
    let tasks: Vec<Value> = (0..16)
        .map(|_| json!({"type": "http", "project": "shop", "group": "g", "delay": "1h", "url": stub.url("/ok")}))
        .collect();
    let body = json!({ "tasks": tasks }).to_string();
    let json = ["--header", "content-type: application/json", "--data", &body];
    let (status, version, told) = pki.asked("ci", a, "/v1/tasks:batchCreate", &json);
    assert_eq!((status, version.as_str()), (200, "2"), "{told}");
    for task in told["tasks"].as_array().expect("tasks") {
        let path = format!("/v1/tasks/{}", task["task_id"].as_str().expect("an id"));
        for (of, more, version) in [(a, &[][..], "2"), (b, &["--http1.1"], "1.1")] {
            // A lane may still be on its way to its owner: then it is a 503, which says to ask again.
            let (status, spoken, told) = eventually("somebody has the lane", || {
                let answer = pki.asked("ci", of, &path, more);
                if answer.0 == 503 { Err(answer.2.to_string()) } else { Ok(answer) }
            });
            assert_eq!((status, spoken.as_str()), (200, version), "{told}");
            assert_eq!(told["task_status"], "delay", "{told}");
        }
        let (status, _, told) = pki.asked("ci", b, &path, &["--request", "DELETE"]);
        assert_eq!((status, &told["outcome"]), (200, &json!("cancelled")), "{told}");
    }
}

#[test]
fn the_go_program_of_grpcurl_curl_instances_and_commands_know_each_other_by_certificates() {
    let fixture = fixture("tasks-tls");
    let pki = Pki::new(&fixture);
    let (mut a, mut b) = (pki.spawn("a"), pki.spawn("b"));
    pki.wait_until_ready("a", &a);
    pki.wait_until_ready("b", &b);
    eventually("the lanes are shared, say those that Kafka names", || {
        let members = json_lines(&pki.command("a", &["members", "--json"]));
        let all: Vec<_> = members
            .iter()
            .map(|of| (of["health"].clone(), of["lanes"].as_array().map(Vec::len)))
            .collect();
        let want = (json!("ready"), Some(2));
        if all == [want.clone(), want] { Ok(()) } else { Err(format!("{members:?}")) }
    });
    create_and_look_up(&pki, [&a, &b]);

    // Who has no role, no certificate, or no TLS.
    let (list, shop) = ("/v1/tasks", "/v1/projects/shop");
    let put = ["--request", "PUT", "--json", "{}"];
    #[rustfmt::skip]
    let cases = [
        ("nobody", list, &[][..], 403, json!("role_denied")),
        ("reader", list, &[],     200, Value::Null),
        ("reader", shop, &put,    403, json!("role_denied")),
    ];
    for (by, path, more, status, code) in cases {
        let (got, _, told) = pki.asked(by, &a, path, more);
        assert_eq!((got, &told["code"]), (status, &code), "{by} {path}: {told}");
    }
    let address = a.address().expect("it serves");
    let without = pki.curl(None, &[&format!("https://{address}/health/live")]);
    assert!(!without.status.success(), "{without:?}");
    let plain = pki.curl(Some("ci"), &[&format!("http://{address}/health/live")]);
    let said = String::from_utf8_lossy(&plain.stdout).into_owned();
    assert!(said.contains("takes TLS only") && said.contains("\n400 "), "{said}");

    // Over gRPC, by a client that is not ours.
    let target = fixture.target("out", 1);
    let files =
        ["-cacert", &pki.path("ca.pem"), "-cert", &pki.path("ci.pem"), "-key", &pki.path("ci.key")];
    let mut ids = Vec::new();
    for n in 0..8 {
        let task = json!({
            "project": "shop", "group": "g", "topic": target, "value": "dg==", "trigger_at": now_ms() + 3_600_000,
            "request_id": format!("r{n}"),
        });
        let told = grpcurl_by(&files, &a, "waterclock.v1.Tasks/CreateKafkaTask", Some(&task));
        let told: Value = serde_json::from_str(&told).expect("JSON");
        ids.push(told["taskId"].clone());
    }
    for id in &ids {
        let asked = json!({ "task_id": id });
        let told = grpcurl_by(&files, &b, "waterclock.v1.Tasks/GetTask", Some(&asked));
        assert!(told.contains("TASK_STATUS_DELAY"), "{told}");
    }
    // A command finds the instances in Kafka, and shows what it is told to.
    let id = ids[0].as_str().expect("an id");
    let (certificate, key) = (pki.path("ci.pem"), pki.path("ci.key"));
    let shown = ["--api-client-certificate", &certificate, "--api-client-key", &key];
    let get = pki.command("b", &[&["task", "get", id, "--json"][..], &shown].concat());
    assert_eq!(json_lines(&get).first().map(|task| &task["task_id"]), Some(&ids[0]), "{get:?}");
    let by_instance = pki.command("b", &["task", "get", id, "--json"]);
    assert_eq!(by_instance.status.code(), Some(1), "an instance has no role: {by_instance:?}");

    rotate(&pki, &mut a);
    create_and_look_up(&pki, [&a, &b]);
    a.stop_well();
    b.stop_well();
}

/// Gives an instance a certificate that is new, and one that cannot be used.
#[track_caller]
fn rotate(pki: &Pki<'_>, process: &mut Process) {
    let within = patient(Duration::from_secs(30));
    pki.put_pair("a", &pki.servers);
    process.wait_until_logged(within, "the certificates were read again, and are in force");
    pki.put("a.key", "nothing");
    process.wait_until_logged(within, "the new certificates cannot be used");
    let (_, _, metrics) = pki.asked("ci", process, "/metrics", &[]);
    let metrics = metrics.as_str().expect("text");
    for line in ["{outcome=\"ok\"} ", "{outcome=\"failed\"} "] {
        let line = format!("waterclock_certificates_read_total{line}");
        let found = metrics.lines().find_map(|of| of.strip_prefix(&line));
        assert!(found.is_some_and(|count| count != "0"), "{line}: {found:?}");
    }
    let expires =
        metrics.lines().find(|of| of.starts_with("waterclock_certificate_expires_seconds "));
    assert!(expires.is_some(), "{metrics}");
    // It does not start with that.
    let config = pki.path("a.toml");
    let ended = waterclock().args(["run", "--config", &config]).output().expect("it runs");
    let error = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(78), "{error}");
    assert!(error.contains("api.tls.key") && error.contains("a.key"), "{error}");
}
