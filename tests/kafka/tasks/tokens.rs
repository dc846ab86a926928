//! Tokens of processes that run: who may ask, and what a change of the file does.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use openssl::pkey::{PKey, Private};
use openssl::sign::Signer;
use serde_json::{Value, json};
use waterclock::engine::task::id::TaskId;

use super::grpc::{NOT_FOUND, PERMISSION_DENIED, UNAUTHENTICATED, asked_by};
use super::{Api, LANES, command, fixture, task, with};
use crate::support::{Endpoint, Fixture, Log, Mode, Process, eventually, now_ms, waterclock};

/// A token, and the lines of the configuration that let its holder in.
pub(super) struct Token {
    pub(super) text: String,
    lines: String,
}

/// One of all projects, as `waterclock token` makes it.
fn token(name: &str) -> Token {
    token_of(name, "*", "write")
}

/// One of this project, or of all (`*`), with this role.
pub(super) fn token_of(name: &str, project: &str, role: &str) -> Token {
    let words = ["token", name, "--project", project, "--role", role, "--json"];
    let made = waterclock().args(words).output();
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
pub(super) fn start(fixture: &Fixture, data: &str, tokens: &[&Token]) -> Process {
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

/// Waits until two instances have the half of all lanes each, and says the lanes of each by its address.
#[track_caller]
fn lanes_of(fixture: &Fixture) -> BTreeMap<String, Vec<u16>> {
    eventually("the lanes are shared, and all know of it", || {
        let mut members = waterclock();
        members.args(["members", "--json", "--brokers", &fixture.connection.brokers]);
        let told = members.args(["--namespace", fixture.namespace()]).output().expect("it runs");
        let told = String::from_utf8_lossy(&told.stdout).into_owned();
        let mut found = BTreeMap::new();
        for line in told.lines() {
            let member: Value = serde_json::from_str(line).expect("JSON");
            let lanes = member["lanes"].as_array().into_iter().flatten();
            let lanes: Vec<u16> = lanes.filter_map(Value::as_u64).map(|lane| lane as u16).collect();
            found.insert(member["address"].as_str().expect("an address").to_owned(), lanes);
        }
        let is_half = |lanes: &Vec<u16>| lanes.len() == usize::from(LANES) / 2;
        if found.len() == 2 && found.values().all(is_half) { Ok(found) } else { Err(told) }
    })
}

/// Tasks of the project `bank`: one for each instance that has its lane, by its address.
#[track_caller]
fn one_in_each(api: &Api, of: &BTreeMap<String, Vec<u16>>, more: Value) -> Vec<(String, String)> {
    let one = with(json!({"type": "kafka", "project": "bank", "group": "g"}), more);
    let ids = api.create_all(vec![one; 16]);
    let lane = |id: &String| TaskId::parse(id).expect("an id").lane_of(LANES).0;
    let first = |(address, lanes): (&String, &Vec<u16>)| {
        let found = ids.iter().find(|id| lanes.contains(&lane(id)));
        (address.clone(), found.expect("one of 16").clone())
    };
    of.iter().map(first).collect()
}

/// Asks over gRPC for a task of another project by each method that names one. `is_of_it`: the ticket is one of this task.
#[track_caller]
fn is_not_there_over_grpc(
    process: &Process,
    token: &Token,
    id: &str,
    (ticket, is_of_it): (&str, bool),
) {
    let say = json!({ "ticket": ticket });
    let result = with(say.clone(), json!({"outcome": "REPORTED_OUTCOME_FINISHED"}));
    let unknown = (NOT_FOUND, "unknown_task".to_owned());
    // As over HTTP: a ticket of another task is refused whether there is such a task or not.
    let of_ticket =
        if is_of_it { unknown.clone() } else { (PERMISSION_DENIED, "wrong_ticket".to_owned()) };
    #[rustfmt::skip]
    let cases = [
        ("GetTask",      json!({"payload": true}), &unknown),
        ("CancelTask",   json!({"wait": "5s"}),    &unknown),
        ("RetryTask",    json!({}),                &unknown),
        ("ReportResult", result,                   &of_ticket),
        ("Heartbeat",    say,                      &of_ticket),
    ];
    for (method, more, want) in cases {
        let request = with(json!({ "task_id": id }), more);
        let told = asked_by(Some(&token.text), process, &format!("Tasks/{method}"), &request);
        assert_eq!(told.as_ref(), Err(want), "{method} of {id} by {}", token.lines);
    }
}

/// Asks over gRPC for what is there of the project bank: nothing, as far as this token goes.
#[track_caller]
fn nothing_of_bank_over_grpc(process: &Process, token: &Token) {
    let ask = |method: &str, request: Value| asked_by(Some(&token.text), process, method, &request);
    let unknown = Err((NOT_FOUND, "unknown_project".to_owned()));
    assert_eq!(ask("Tasks/ListTasks", json!({})), Ok(json!({})));
    for method in ["Tasks/ListTasks", "Projects/Get", "Projects/GetStats"] {
        assert_eq!(ask(method, json!({"project": "bank"})), unknown, "{method}");
    }
}

/// The owner of a task's lane answers, or asks another instance that does: who may not know of the task hears the same from both.
#[test]
fn the_go_program_of_grpcurl_and_http_find_no_task_of_another_project_anywhere() {
    const NONE: &str = "0123456789abcdef0123456789abcdef";
    let fixture = fixture("tasks-foreign");
    let topic = fixture.target("work", 1);
    let (shop, chief) = (token_of("shop", "shop", "write"), token_of("chief", "shop", "admin"));
    let bank = token_of("bank", "bank", "write");
    let tokens = [&shop, &chief, &bank];
    let (mut a, mut b) = (start(&fixture, "a", &tokens), start(&fixture, "b", &tokens));
    let lanes = lanes_of(&fixture);
    let of_bank = [&a, &b].map(|process| Api::of_holder(process, &bank.text));
    let waiting = json!({"delay": "1h", "topic": topic, "value": "v"});
    let running =
        json!({"delay": "0s", "topic": topic, "value": "v", "feedback": {"deadline": "1h"}});
    let waiting = one_in_each(&of_bank[0], &lanes, waiting);
    let running = one_in_each(&of_bank[0], &lanes, running);
    let mut log = Log::open(&fixture, &topic);
    let handed: BTreeMap<String, String> = log
        .count(16)
        .iter()
        .map(|rec| {
            let header = |name: &str| rec.header(name).unwrap_or_else(|| panic!("{name}: {rec:?}"));
            (header("x-delay-id"), header("x-delay-ticket"))
        })
        .collect();
    let ids: Vec<&String> = waiting.iter().chain(&running).map(|(_, id)| id).collect();
    let all = |api: &Api| ids.iter().map(|id| api.task(id)).collect::<Vec<_>>();
    let before = all(&of_bank[0]);

    for process in [&a, &b] {
        for token in [&shop, &chief] {
            let api = Api::of_holder(process, &token.text);
            for id in &ids {
                let ticket = handed.get(*id).unwrap_or_else(|| &handed[&running[0].1]);
                let say = json!({ "ticket": ticket });
                let result = with(say.clone(), json!({"outcome": "finished"}));
                #[rustfmt::skip]
                let requests = [
                    ("GET",    "",             None),
                    ("GET",    "?payload=1",   None),
                    ("DELETE", "?wait=5s",     None),
                    ("POST",   ":retry",       None),
                    ("POST",   "/result",      Some(&result)),
                    ("POST",   "/heartbeat",   Some(&say)),
                ];
                for (method, end, body) in requests {
                    let path = |id: &str| format!("/v1/tasks/{id}{end}");
                    let told = api.answered(method, &path(id), body);
                    // A ticket says of which task it is: one of another is refused whether there is such a task or not.
                    let is_forged = body.is_some() && !handed.contains_key(*id);
                    let want =
                        if is_forged { (403, "wrong_ticket") } else { (404, "unknown_task") };
                    let who = (&token.lines, process.address(), &lanes);
                    let is_so = (told.0, told.1["code"].as_str()) == (want.0, Some(want.1));
                    assert!(is_so, "{method} {} by {who:?}: {told:?}", path(id));
                    if body.is_none() || is_forged {
                        assert_eq!(told, api.answered(method, &path(NONE), body), "as of none");
                    }
                }
                is_not_there_over_grpc(process, token, id, (ticket, handed.contains_key(*id)));
            }
            nothing_of_bank_over_grpc(process, token);
            let (status, listed) = api.answered("GET", "/v1/tasks", None);
            assert_eq!((status, &listed["tasks"]), (200, &json!([])), "{listed}");
            let (status, told) = api.answered("GET", "/v1/tasks?project=bank", None);
            assert_eq!((status, &told["code"]), (404, &json!("unknown_project")), "{told}");
        }
        // An admin needs no ticket, but for tasks of other projects.
        let result = json!({"task_id": running[0].1, "outcome": "REPORTED_OUTCOME_FINISHED"});
        let told = asked_by(Some(&chief.text), process, "Tasks/ReportResult", &result);
        assert_eq!(told, Err((NOT_FOUND, "unknown_task".to_owned())));
    }

    // They are as they were, at both, and go on.
    for api in &of_bank {
        assert_eq!(all(api), before);
    }
    for (_, id) in &waiting {
        assert_eq!(of_bank[0].cancel(id), "cancelled");
    }
    for (_, id) in &running {
        let say = json!({"ticket": handed[id], "cursor": "row:7"});
        let (status, told) =
            of_bank[1].answered("POST", &format!("/v1/tasks/{id}/heartbeat"), Some(&say));
        assert_eq!(status, 200, "{told}");
        let say = json!({"ticket": handed[id], "outcome": "finished"});
        let told = of_bank[0].answered("POST", &format!("/v1/tasks/{id}/result"), Some(&say));
        assert_eq!(told, (200, json!({"outcome": "finished"})));
        let ended = of_bank[1].task(id);
        assert_eq!((&ended["task_status"], &ended["turn"]), (&json!("finished"), &json!(1)));
    }
    b.stop_well();
    a.stop_well();
}

/// Signs tokens, and serves its keys on loopback until the process ends.
struct Issuer {
    key: PKey<Private>,
    jwks: String,
}

impl Issuer {
    fn start() -> Self {
        let key = PKey::generate_ed25519().expect("a key");
        let x = URL_SAFE_NO_PAD.encode(key.raw_public_key().expect("a point"));
        let key_shown = json!({ "kty": "OKP", "crv": "Ed25519", "x": x, "kid": "one" });
        let set = json!({ "keys": [key_shown] }).to_string();
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let jwks = format!("http://{}/keys", listener.local_addr().expect("an address"));
        std::thread::spawn(move || {
            for mut stream in listener.incoming().map_while(Result::ok) {
                let mut lines = BufReader::new(&stream).lines().map_while(Result::ok);
                while lines.next().is_some_and(|line| !line.is_empty()) {}
                let head = format!("content-length: {}\r\nconnection: close", set.len());
                let _ = write!(stream, "HTTP/1.1 200 OK\r\n{head}\r\n\r\n{set}");
            }
        });
        Self { key, jwks }
    }

    /// An instance that takes its tokens.
    #[track_caller]
    fn process(&self, fixture: &Fixture) -> Process {
        let lines = format!(
            "[api.jwt]\nissuer = \"us\"\naudience = \"waterclock\"\njwks = \"{}\"\n",
            self.jwks
        );
        let launch = fixture.launch(Mode::ExactlyOnce).data("a").config(&(file(&[]) + &lines));
        launch.arg("--roles").arg("lanes,worker,api").start()
    }

    /// A token of anna for the project shop.
    fn token(&self, role: &str) -> String {
        self.token_with(role, json!({}))
    }

    /// One with other claims.
    fn token_with(&self, role: &str, more: Value) -> String {
        let part = |of: &Value| URL_SAFE_NO_PAD.encode(of.to_string());
        let claims = json!({
            "iss": "us", "aud": "waterclock", "sub": "anna", "exp": now_ms() / 1_000 + 600,
            "role": role, "projects": ["shop"],
        });
        let claims = with(claims, more);
        let header = json!({ "alg": "EdDSA", "kid": "one" });
        let message = format!("{}.{}", part(&header), part(&claims));
        let mut signer = Signer::new_without_digest(&self.key).expect("a signer");
        let signature = signer.sign_oneshot_to_vec(message.as_bytes()).expect("signed");
        format!("{message}.{}", URL_SAFE_NO_PAD.encode(signature))
    }
}

#[test]
fn the_go_program_of_grpcurl_and_http_bring_signed_tokens_and_the_log_says_who_changed_what() {
    let fixture = fixture("tasks-issuer");
    let issuer = Issuer::start();
    let mut process = issuer.process(&fixture);
    let of = |role: &str| Api::of_holder(&process, &issuer.token(role));
    let (writer, admin) = (of("write"), of("admin"));
    let stub = Endpoint::start();
    let id = writer.create(&task("shop", &stub, "/ok", "1s"));
    assert_eq!(writer.end_of(&id)["task_status"], "finished");
    let project = "/v1/projects/shop";
    #[rustfmt::skip]
    let cases = [
        (&writer, "POST", "/v1/tasks/http",     task("bank", &stub, "/ok", "1s"), (404, "unknown_project")),
        (&writer, "PUT",  project,              json!({}),                        (403, "role_denied")),
        (&admin,  "PUT",  project,              json!({}),                        (200, "")),
        (&admin,  "PUT",  "/v1/projects/bank",  json!({}),                        (404, "unknown_project")),
    ];
    for (who, method, path, body, want) in cases {
        let (status, told) = who.answered(method, path, Some(&body));
        assert_eq!((status, told["code"].as_str().unwrap_or_default()), want, "{method} {path}");
    }
    assert_eq!(Api::of(&process).answered("GET", "/v1/tasks", None).0, 401);
    // The same over gRPC.
    let put = json!({"project": "shop", "settings": {}});
    let over_grpc = |role| asked_by(Some(&issuer.token(role)), &process, "Projects/Put", &put);
    assert_eq!(over_grpc("write"), Err((PERMISSION_DENIED, "role_denied".to_owned())));
    assert_eq!(over_grpc("admin"), Ok(json!({"revision": "2"})));
    let audit = eventually("each change has its line", || {
        let log = process.log();
        let audit = log.lines().filter(|line| line.contains("waterclock::audit"));
        let audit: Vec<String> = audit.map(str::to_owned).collect();
        if audit.len() >= 5 { Ok(audit) } else { Err(format!("{audit:?}")) }
    });
    assert_eq!(audit.len(), 5, "{audit:?}");
    for (line, (key, outcome)) in audit.iter().zip([
        ("projects/shop", "role_denied"),
        ("projects/shop", "done"),
        ("projects/bank", "unknown_project"),
        ("projects/shop", "role_denied"),
        ("projects/shop", "done"),
    ]) {
        let words = format!("from=127.0.0.1 action=\"put\" key=\"{key}\"");
        let is_said = line.contains(r#"by="anna""#) && line.contains(&words);
        assert!(is_said && line.contains(&format!("outcome=\"{outcome}\"")), "{line}");
    }

    // The issuer is taken out of the file.
    let own = token("own");
    std::fs::write(fixture.path("a.toml"), file(&[&own])).expect("written");
    process.hang_up();
    eventually("the issuer's tokens are refused", || {
        match writer.answered("GET", &format!("/v1/tasks/{id}"), None) {
            (401, told) if told["code"] == "bad_credentials" => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
    assert_eq!(Api::of_holder(&process, &own.text).task(&id)["task_status"], "finished");
    process.stop_well();
}

#[test]
fn the_go_program_of_grpcurl_is_let_in_by_signed_tokens() {
    let fixture = fixture("tasks-grpcurl-issuer");
    let topic = fixture.target("work", 1);
    let (issuer, stranger) = (Issuer::start(), Issuer::start());
    let mut process = issuer.process(&fixture);
    let ask = |token: &str, method: &str, request: &Value| {
        asked_by(Some(token), &process, &format!("Tasks/{method}"), request)
    };
    let refused = |code: u64, reason: &str| Err((code, reason.to_owned()));
    let task = |project: &str| {
        let trigger_at = now_ms() + 3_600_000;
        json!({"project": project, "group": "g", "topic": topic, "value": "dg==", "trigger_at": trigger_at})
    };
    let [reader, writer] = ["read", "write"].map(|role| issuer.token(role));
    let of_bank = issuer.token_with("write", json!({"projects": ["bank"]}));

    // Another issuer's key has the same name. What the reader's token says is changed behind its signature.
    let expired = issuer.token_with("write", json!({"exp": now_ms() / 1_000 - 3_600}));
    let (claims, _) = writer.rsplit_once('.').expect("a signature");
    let (_, signature) = reader.rsplit_once('.').expect("a signature");
    let forged = format!("{claims}.{signature}");
    for (token, reason) in [
        (expired, "expired_token"),
        (stranger.token("write"), "bad_credentials"),
        (forged, "bad_credentials"),
    ] {
        for (method, request) in [("CreateKafkaTask", task("shop")), ("ListTasks", json!({}))] {
            let told = ask(&token, method, &request);
            assert_eq!(told, refused(UNAUTHENTICATED, reason), "{method}");
        }
    }
    let told = ask(&reader, "CreateKafkaTask", &task("shop"));
    assert_eq!(told, refused(PERMISSION_DENIED, "role_denied"));
    let told = ask(&writer, "CreateKafkaTask", &task("bank"));
    assert_eq!(told, refused(NOT_FOUND, "unknown_project"));
    for token in [&reader, &of_bank] {
        assert_eq!(ask(token, "ListTasks", &json!({})), Ok(json!({})), "nothing was created");
    }

    let create = |token: &str, project: &str| {
        let created = ask(token, "CreateKafkaTask", &task(project)).expect("created");
        json!({"task_id": created["taskId"]})
    };
    let (own, other) = (create(&writer, "shop"), create(&of_bank, "bank"));
    for token in [&reader, &writer] {
        let shown = ask(token, "GetTask", &own).expect("it is shown");
        assert_eq!(shown["taskStatus"], "TASK_STATUS_DELAY", "{shown}");
        assert_eq!(ask(token, "GetTask", &other), refused(NOT_FOUND, "unknown_task"));
    }
    assert_eq!(ask(&reader, "CancelTask", &own), refused(PERMISSION_DENIED, "role_denied"));
    assert_eq!(ask(&writer, "CancelTask", &other), refused(NOT_FOUND, "unknown_task"));
    for (token, id) in [(&writer, &own), (&of_bank, &other)] {
        let cancelled = ask(token, "CancelTask", id).expect("cancelled");
        assert_eq!(cancelled["outcome"], "CANCEL_OUTCOME_CANCELLED", "{cancelled}");
    }
    process.stop_well();
}
